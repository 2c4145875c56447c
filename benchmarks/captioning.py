"""What does a caption cost, stage by stage, and against what else one could do with the file?

    python benchmarks/captioning.py [--sizes 320x240 640x360 1280x720] [--repeats 7]

A clip of ten seconds, the model loaded and warm. Compared with a caption are: decoding the file and doing nothing with
it, by the same decoder in as many threads; the same picks by a policy that looks at a glance of each sample, which the
shipped one does not; the same model on all 30 samples, on 6 of them at even distances, on a random half and on k-means
(the paper's table); and what one would write without picknet: OpenCV's loop over all frames and the same CNN in PyTorch
on 30 of them, decord instead of OpenCV, and PySceneDetect to choose the frames. What is not installed (the `bench` and
`train` extras) is left out.
"""

import contextlib
import shlex
import sys
from collections.abc import Callable, Collection
from functools import partial
from pathlib import Path
from typing import Any

import av
import numpy as np
from footage import make
from timing import in_turns, parser, ratio, save, times

import picknet
from picknet.captioner import Captioner, find_model
from picknet.picking.picker import Picker
from picknet.picking.plain import AllPicker, CoinPicker, KMeansPicker, UniformPicker
from picknet.video.file import Video

SECONDS = 10
NUM_FRAMES = 30
LOOKING = "caption, all samples glanced at"


def decode(path: Path) -> int:
    """Every frame, nothing else."""
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "AUTO"
        return sum(1 for _ in container.decode(video=0))


class Looking:
    """A picker that has no plan, so that it is shown every sample."""

    def __init__(self, picker: Picker) -> None:
        self.pick = picker.pick


def rivals(captioner: Captioner, path: Path) -> dict[str, Callable[[], object]]:
    """The same model with other pickers."""
    k = len(captioner.caption(path).picks)
    pickers = {
        LOOKING: Looking(captioner.picker),
        "all 30 frames": AllPicker(),
        "uniform 6": UniformPicker(6),
        "random half": CoinPicker(seed=0),
        f"k-means {k}": KMeansPicker(k, features=captioner.feature, seed=0),
    }
    return {name: partial(captioner.caption, path, picker=picker) for name, picker in pickers.items()}


def by_hand(path: Path) -> dict[str, Callable[[], object]]:
    """What one would write instead."""
    found: dict[str, Callable[[], object]] = {}
    with contextlib.suppress(ImportError):
        import cv2
        import torch

        from picknet.training.export import load_network

        network, _, _ = load_network(find_model(None)[1])
        network.eval()
        size = 256

        def cnn(frames: list[np.ndarray]) -> object:
            with torch.inference_mode():
                small = np.stack([cv2.resize(frame, (size, size)) for frame in frames])
                return [network.cnn(torch.from_numpy(one[None])) for one in small]

        def opencv() -> object:
            capture = cv2.VideoCapture(str(path))
            count = int(capture.get(cv2.CAP_PROP_FRAME_COUNT))
            wanted = {(2 * i + 1) * count // (2 * NUM_FRAMES) for i in range(NUM_FRAMES)}
            kept = []
            for number in range(count):
                _, frame = capture.read()
                if number in wanted:
                    kept.append(cv2.cvtColor(frame, cv2.COLOR_BGR2RGB))
            return cnn(kept)

        found["OpenCV loop + PyTorch CNN on 30"] = opencv
        with contextlib.suppress(ImportError):
            import decord

            def with_decord() -> object:
                reader = decord.VideoReader(str(path))
                wanted = [(2 * i + 1) * len(reader) // (2 * NUM_FRAMES) for i in range(NUM_FRAMES)]
                return cnn(list(reader.get_batch(wanted).asnumpy()))

            found["decord + PyTorch CNN on 30"] = with_decord
    with contextlib.suppress(ImportError):
        import scenedetect

        found["PySceneDetect alone"] = lambda: scenedetect.detect(str(path), scenedetect.ContentDetector())
    return found


def stages(captioner: Captioner, path: Path) -> dict[str, Callable[[], object]]:
    """The parts of a caption, each by itself, on what the part before it gives."""
    runtime, size = captioner.runtime, captioner.config.model.image_size
    with Video(path) as video:
        frames = list(video.sample_evenly(count=NUM_FRAMES))
    glances = [frame.glance() for frame in frames]
    picks = captioner.caption(path).picks
    chosen = [frames[pick.index] for pick in picks]
    pixels = [frame.pixels(size)[None] for frame in chosen]
    features = [runtime.features(one) for one in pixels]

    def opened() -> None:
        with Video(path):
            pass

    def decoded(only: Collection[int] | None = None) -> None:
        with Video(path) as video:
            for _ in video.sample_evenly(count=NUM_FRAMES, only=only):
                pass

    def glanced() -> None:
        for frame in frames:
            frame._glance = None
            frame.glance()

    def encoded() -> Any:
        state = runtime.start()
        for feature in features:
            state = runtime.encode(feature, state)
        return state

    memory = encoded()
    wait = np.zeros(1, np.float32)
    return {
        "open": opened,
        "open and decode what the picks need": partial(decoded, [pick.index for pick in picks]),
        "open and decode what all samples need": decoded,
        "glance": glanced,
        "policy": lambda: [runtime.policy(glance[None], glances[0][None], wait) for glance in glances],
        "colour conversion": lambda: [frame.pixels(size) for frame in chosen],
        "CNN": lambda: [runtime.features(one) for one in pixels],
        "CNN, in 32 bits": lambda: [runtime.exact_features(one) for one in pixels],
        "encoder": encoded,
        "decoder (beam)": lambda: captioner.describe(memory),
    }


def main() -> None:
    options = parser(__doc__, repeats=7)
    options.add_argument("--sizes", nargs="+", default=["320x240", "640x360", "1280x720"])
    arguments = options.parse_args()
    captioner = picknet.load()
    clips = []
    for size in arguments.sizes:
        width, height = map(int, size.split("x"))
        path = make(arguments.work, width=width, height=height, seconds=SECONDS)
        things = {"decode alone": partial(decode, path), "caption": partial(captioner.caption, path)}
        things |= rivals(captioner, path) | by_hand(path)
        rounds = in_turns(things, repeats=arguments.repeats)
        parts = in_turns(stages(captioner, path), repeats=arguments.repeats)
        clips.append(
            {
                "size": size,
                "picks": len(captioner.caption(path).picks),
                "times": times(rounds),
                "caption against": {name: ratio(rounds, "caption", name) for name in things if name != "caption"},
                "stages": times(parts),
            }
        )
    save("captioning", {"clips": clips}, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
