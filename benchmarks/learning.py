"""Time of evaluating a split, and of an epoch of each training stage.

    python benchmarks/learning.py [--repeats 2] [--clips 16]

Evaluation is compared with captioning the same clips. An epoch is that of a model of the shipped one's size, on
features of synthetic clips with 8 captions each; it is compared with its steps (forward, backward, optimiser, reward):
the rest is batching and validation. METEOR is left out: its word lists take seconds to load, whatever the split.
"""

import dataclasses
import random
import shlex
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from cider import make_captions
from footage import make
from timing import alternate, parser, ratio, save, summary, times

import picknet
from picknet import metrics
from picknet.captioner import Captioner
from picknet.config import STAGES, Config
from picknet.data.split import Clip, Split
from picknet.study.evaluation import evaluate
from picknet.text import Vocabulary
from picknet.training import judges, learner, runs, stages
from picknet.training.batches import prepare
from picknet.training.features import FeatureSplit
from picknet.training.network import Network
from picknet.training.progress import TrainingProgress
from picknet.video.frame import GLANCE_SIZE

EVALUATED_CLIPS = 10
NUM_CAPTIONS = 8
BATCH_SIZE = 32
CPU = torch.device("cpu")


def captioned_clips(path: Path, count: int) -> tuple[Clip, ...]:
    """Clips of one video, each with other captions."""
    captions = make_captions(random.Random(0), num_videos=count)
    return tuple(
        Clip(name, path, tuple(" ".join(words) for words in several[:NUM_CAPTIONS]))
        for name, several in captions.items()
    )


def evaluation(captioner: Captioner, path: Path, repeats: int) -> dict[str, Any]:
    split = Split("msvd", "val", captioned_clips(path, EVALUATED_CLIPS), ())
    things: dict[str, Callable[[], object]] = {
        "evaluate a split": lambda: evaluate(captioner, split),
        "caption its clips": lambda: [captioner.caption(clip.path) for clip in split.clips],
    }
    with patch.object(metrics, "meteor", return_value=None):  # takes seconds to load
        rounds = alternate(things, repeats=repeats)
    return {"clips": EVALUATED_CLIPS, "times": times(rounds), "ratio": ratio(rounds, *things)}


def synthetic(clips: tuple[Clip, ...], config: Config) -> FeatureSplit:
    chance = torch.Generator().manual_seed(0)
    frames = len(clips), config.video.num_frames
    glances = torch.randint(0, 256, (*frames, GLANCE_SIZE, GLANCE_SIZE), generator=chance, dtype=torch.uint8)
    features = torch.randn((*frames, config.model.grid**2, 1280), generator=chance).half()
    return FeatureSplit(clips, glances, features, torch.full((len(clips),), config.video.num_frames), ())


@contextmanager
def timed(owner: object, name: str, spent: dict[str, float], key: str) -> Iterator[None]:
    """Add up the seconds spent in a function."""
    function = getattr(owner, name)

    def measured(*arguments: Any, **named: Any) -> Any:
        start = time.perf_counter()
        try:
            return function(*arguments, **named)
        finally:
            spent[key] = spent.get(key, 0.0) + time.perf_counter() - start

    with patch.object(owner, name, measured):
        yield


def epochs(config: Config, clips: tuple[Clip, ...], repeats: int) -> dict[str, Any]:
    """Seconds of an epoch of each stage, in total, in steps and in rewards."""
    train, val = synthetic(clips, config), synthetic(clips[: len(clips) // 8], config)
    captions = {clip.name: [caption.split() for caption in clip.captions] for clip in clips}
    vocabulary = Vocabulary.from_captions((caption for own in captions.values() for caption in own), min_count=1)
    data = prepare(train, val, vocabulary, config, CPU, captions=captions)
    found: dict[str, Any] = {}
    for name in STAGES:
        learn = getattr(stages, name)
        stage = dataclasses.replace(getattr(config, name), epochs=repeats, batch_size=BATCH_SIZE, average=0.0)
        torch.manual_seed(0)
        network = Network(config.model, len(vocabulary), pretrained=False)
        spent: dict[str, float] = {}
        rows: list[dict[str, float]] = []

        def report(*values: Any, spent: dict[str, float] = spent, rows: list[dict[str, float]] = rows) -> None:
            rows.append({"epoch": values[-1]["seconds"], **spent})
            spent.clear()

        progress = TrainingProgress()
        progress.on_epoch = report  # type: ignore[method-assign]

        with tempfile.TemporaryDirectory() as folder, ExitStack() as measuring:
            measuring.enter_context(timed(learner.Learner, "step", spent, "steps"))
            measuring.enter_context(timed(judges.Environment, "scores", spent, "reward"))
            changed = dataclasses.replace(config, **{name: stage})
            learn(network, data, changed, runs.Run(Path(folder), changed, CPU, progress))
        found[name] = {part: summary([row.get(part, 0.0) for row in rows]) for part in ("epoch", "steps", "reward")}
        found[name]["against its steps"] = summary([row["epoch"] / row["steps"] for row in rows])
    return found


def main() -> None:
    options = parser(__doc__, repeats=2)
    options.add_argument("--clips", type=int, default=16)
    arguments = options.parse_args()
    captioner = picknet.load()
    path = make(arguments.work, width=320, height=240, seconds=10)
    found = {
        "evaluation": evaluation(captioner, path, arguments.repeats),
        "clips": arguments.clips,
        "epochs": epochs(captioner.config, captioned_clips(path, arguments.clips), arguments.repeats),
    }
    save("learning", found, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
