"""What does it cost to evaluate a split, and to learn for an epoch?

    python benchmarks/learning.py [--repeats 2] [--clips 16]

A split is evaluated clip by clip; captioning its clips and nothing else is the measure. An epoch of each stage is that
of a model of the shipped one's size, from features, on as many made-up clips as asked for, with 8 captions each. Its
measure is its steps (forward, backward, the optimiser, and the reward where there is one): what else there is, is
putting batches together, and the validation. METEOR is left out: it takes a second to start, whatever the split.
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
from timing import in_turns, parser, ratio, save, summary, times

import picknet
from picknet import metrics
from picknet.captioner import Captioner
from picknet.config import Config
from picknet.data.split import Clip, Split
from picknet.study.evaluation import evaluate
from picknet.text import Vocabulary
from picknet.training import runs, stages
from picknet.training.batches import prepare
from picknet.training.features import SeenSplit
from picknet.training.network import Network
from picknet.video.frame import GLANCE_SIZE

EVALUATED_CLIPS = 10
NUM_CAPTIONS = 8
BATCH_SIZE = 32
CPU = torch.device("cpu")


def captioned_clips(path: Path, count: int) -> tuple[Clip, ...]:
    """Clips of one video, each with captions of its own."""
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
    with patch.object(metrics, "meteor", return_value=None):  # it starts Java, whatever the size of the split
        rounds = in_turns(things, repeats=repeats)
    return {"clips": EVALUATED_CLIPS, "times": times(rounds), "ratio": ratio(rounds, *things)}


def made_up(clips: tuple[Clip, ...], config: Config) -> SeenSplit:
    chance = torch.Generator().manual_seed(0)
    frames = len(clips), config.video.num_frames
    glances = torch.randint(0, 256, (*frames, GLANCE_SIZE, GLANCE_SIZE), generator=chance, dtype=torch.uint8)
    features = torch.randn((*frames, config.model.grid**2, 1280), generator=chance).half()
    return SeenSplit(clips, glances, features, torch.full((len(clips),), config.video.num_frames), ())


@contextmanager
def timed(owner: object, name: str, spent: dict[str, float], key: str) -> Iterator[None]:
    """While this lasts, the seconds that a function takes are added up."""
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
    """Seconds of an epoch of each stage, and what they are spent on."""
    train, val = made_up(clips, config), made_up(clips[: len(clips) // 8], config)
    captions = (caption.split() for clip in clips for caption in clip.captions)
    vocabulary = Vocabulary.from_captions(captions, min_count=1)
    data = prepare(train, val, vocabulary, config, CPU)
    found: dict[str, Any] = {}
    for name, learn in stages.BY_STAGE.items():
        stage = dataclasses.replace(getattr(config, name), epochs=repeats, batch_size=BATCH_SIZE, average=0.0)
        torch.manual_seed(0)
        network = Network(config.model, len(vocabulary), pretrained=False)
        spent: dict[str, float] = {}
        rows: list[dict[str, float]] = []

        def report(*told: Any, spent: dict[str, float] = spent, rows: list[dict[str, float]] = rows) -> None:
            rows.append({"epoch": told[-1]["seconds"], **spent})
            spent.clear()

        with tempfile.TemporaryDirectory() as folder, ExitStack() as measuring:
            measuring.enter_context(timed(runs.Learner, "step", spent, "steps"))
            measuring.enter_context(timed(stages, "language_reward", spent, "reward"))
            changed = dataclasses.replace(config, **{name: stage})
            learn(network, data, changed, runs.Run(Path(folder), changed, CPU, report))
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
