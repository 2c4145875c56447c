"""Time of a caption, stage by stage and against alternatives.

    python benchmarks/captioning.py [--sizes 320x240 640x360 1280x720] [--repeats 7]

A clip of ten seconds, the model loaded and warm. The alternatives: decoding the file and nothing else, with the same
decoder and threads; as many picks by a picker that does not look (every n-th), so that little is decoded; the same
model on all 30 samples, on 6 uniform ones, on a random half and on k-means (the paper's table); and without picknet:
OpenCV's loop over all frames with the same CNN in PyTorch on 30 of them, decord instead of OpenCV, and PySceneDetect to
choose frames. Alternatives that are not installed (extras `bench` and `train`) are skipped.
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
from timing import alternate, parser, ratio, save, times

import picknet
from picknet.captioner import Captioner
from picknet.model.folder import find_model
from picknet.picking.plain import AllPicker, CoinPicker, EveryNthPicker, KMeansPicker, UniformPicker
from picknet.video.file import Video

SECONDS = 10
NUM_FRAMES = 30
BLIND = "caption, every n-th frame"


def decode(path: Path, *, thread_type: str = "AUTO") -> int:
    """Decode every frame; with the thread type NONE in one thread."""
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = thread_type
        return sum(1 for _ in container.decode(video=0))


def rivals(captioner: Captioner, path: Path) -> dict[str, Callable[[], object]]:
    """The same model with other pickers."""
    k = len(captioner.caption(path).picks)
    pickers = {
        BLIND: EveryNthPicker(NUM_FRAMES / k),
        "all 30 frames": AllPicker(),
        "uniform 6": UniformPicker(6),
        "random half": CoinPicker(seed=0),
        "k-means": KMeansPicker(k, features=captioner.feature, seed=0),
    }
    return {name: partial(captioner.caption, path, picker=picker) for name, picker in pickers.items()}


def by_hand(path: Path) -> dict[str, Callable[[], object]]:
    """The same task without picknet."""
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
    """The stages of a caption, each on the output of the one before."""
    runtime, size = captioner.runtime, captioner.config.model.image_size
    with Video(path) as video:
        frames = list(video.sample_evenly(count=NUM_FRAMES))
    picks = captioner.caption(path).picks
    chosen = [frames[pick.index] for pick in picks]
    pixels = [frame.pixels(size)[None] for frame in chosen]
    features = [runtime.features(one) for one in pixels]

    def open_only() -> None:
        with Video(path):
            pass

    def decode_samples(only: Collection[int] | None = None) -> None:
        with Video(path) as video:
            for _ in video.sample_evenly(count=NUM_FRAMES, only=only):
                pass

    def glance() -> None:
        for frame in frames:
            frame._glance = None
            frame.glance()

    def encode() -> Any:
        state = runtime.start()
        for feature in features:
            state = runtime.encode(feature, state)
        return state

    memory = encode()
    return {
        "open": open_only,
        "open and decode what the picks need": partial(decode_samples, [pick.index for pick in picks]),
        "open and decode what all samples need": decode_samples,
        "glance": glance,
        "policy": lambda: list(captioner.picker.pick(frames)),
        "colour conversion": lambda: [frame.pixels(size) for frame in chosen],
        "CNN": lambda: [runtime.features(one) for one in pixels],
        "encoder": encode,
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
        rounds = alternate(things, repeats=arguments.repeats)
        parts = alternate(stages(captioner, path), repeats=arguments.repeats)
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
