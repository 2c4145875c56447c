"""How good a captioner is on a split: the paper's scores with their intervals, and what was picked.

>>> split = load_split("data/msvd", dataset="msvd", split="val")
>>> evaluate(picknet.load(), split, picker=UniformPicker(4)).scores.cider
"""

import hashlib
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from picknet import metrics
from picknet.captioner import Captioner, NothingToCaption
from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split
from picknet.metrics import METRICS, Cider, Measured, Scores
from picknet.picking.hecate import HecatePicker
from picknet.picking.learned import CountedPicker, PickNetPicker, RatePicker
from picknet.picking.picker import Picker
from picknet.picking.plain import (
    AllPicker,
    CoinPicker,
    EveryNthPicker,
    KMeansPicker,
    RandomPicker,
    SceneChangePicker,
    UniformPicker,
)
from picknet.results import Caption
from picknet.study.bootstrap import Interval, interval, resamples
from picknet.text import tokenise
from picknet.video.file import UnreadableVideo
from picknet.video.frame import GLANCE_SIZE, Frame

PICKER_NAMES: dict[type, str] = {
    PickNetPicker: "picknet",
    RatePicker: "picknet",
    CountedPicker: "picknet",
    UniformPicker: "uniform",
    RandomPicker: "random",
    KMeansPicker: "kmeans",
    HecatePicker: "hecate",
    EveryNthPicker: "every",
    CoinPicker: "coin",
    SceneChangePicker: "scene",
    AllPicker: "all",
}
ROW_NAMES = {
    "picknet": "PickNet", "all": "Baseline", "kmeans": "k-means", "hecate": "Hecate", "every": "Every n-th",
    "scene": "Scene change",
}  # fmt: skip
PICKER_SETTINGS = ("k", "n", "probability", "change")
"""Attributes of pickers that are part of a result."""


@dataclass(frozen=True)
class Evaluation:
    """One row of the tables."""

    scores: Scores
    intervals: Mapping[str, Interval]
    """The 95 % interval of each metric by its name in `Scores` (bootstrap over clips); empty for a single clip."""
    captions: dict[str, Caption]
    """By the clip's name, in the split's order."""
    missing: tuple[Missing, ...]
    """The clips without a caption: those the split lacks and those that could not be read."""
    seconds: float
    """Wall time of captioning all clips, decoding included."""
    picker: str
    """The picker's name: picknet, uniform, …"""
    settings: Mapping[str, float]
    """The picker's own settings, by names of `PICKER_SETTINGS`."""
    beam: int
    num_frames: int
    """Frames sampled from a clip, from which the picker picks."""
    dataset: str
    split: str
    model: str

    @property
    def num_videos(self) -> int:
        return len(self.captions)

    @property
    def pick_counts(self) -> list[int]:
        """The number of picks of each clip."""
        return [len(caption.picks) for caption in self.captions.values()]

    @property
    def pick_positions(self) -> list[int]:
        """The position of every pick among the sampled frames, from 0."""
        return [pick.index for caption in self.captions.values() for pick in caption.picks]

    @property
    def mean_picks(self) -> float:
        return sum(self.pick_counts) / self.num_videos

    @property
    def label(self) -> str:
        """The row's name, as the paper writes it."""
        name = ROW_NAMES.get(self.picker, self.picker[:1].upper() + self.picker[1:])
        short = {"probability": "p"}
        settings = ", ".join(f"{short.get(key, key)}={value:.3g}" for key, value in self.settings.items())
        return f"{name} ({settings})" if settings else name

    def to_dict(self) -> dict[str, Any]:
        """The result without its captions; scores ×100, intervals as [low, high]."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "split": self.split,
            "picker": self.picker,
            **{name: self.settings.get(name) for name in PICKER_SETTINGS},
            "beam": self.beam,
            **asdict(self.scores),
            "intervals": {name: list(self.intervals[name]) if name in self.intervals else None for name in METRICS},
            "mean_picks": self.mean_picks,
            "num_videos": self.num_videos,
            "seconds": round(self.seconds, 3),
            "missing": [{"clip": clip.name, "reason": clip.reason} for clip in self.missing],
        }

    def to_row(self) -> dict[str, Any]:
        """The same as one flat row of a table: `cider_low` and `cider_high` for an interval, `num_missing`."""
        row = self.to_dict()
        intervals, missing = row.pop("intervals"), row.pop("missing")
        for name, ends in intervals.items():
            row[f"{name}_low"], row[f"{name}_high"] = ends or (None, None)
        return row | {"num_missing": len(missing)}


def evaluate(
    captioner: Captioner,
    split: Split,
    *,
    picker: Picker | None = None,
    name: str | None = None,
    beam: int | None = None,
    num_frames: int | None = None,
    seed: int = 0,
    on_clip: Callable[[Clip], object] = lambda clip: None,
) -> Evaluation:
    """Caption every clip of a split and score the captions against those written by people.

    picker, beam, num_frames: as in `Captioner.caption`; by default the model's own. name: of the picker in the result,
    by default derived from its class. seed: of the bootstrap. `on_clip` is called after each clip, also after one that
    cannot be read. A model that has learned categories is told that of each clip.

    CIDEr takes its document frequencies from the clips that were captioned, as the COCO code does.
    """
    captions: dict[str, Caption] = {}
    missing = list(split.missing)
    _warm_up(captioner)
    start = time.perf_counter()
    for clip in split.clips:
        try:
            own = captioner.in_category(clip.category)
            captions[clip.name] = own.caption(clip.path, picker=picker, beam=beam, num_frames=num_frames)
        except (UnreadableVideo, NothingToCaption) as error:
            missing.append(Missing(clip.name, str(error)))
        on_clip(clip)
    seconds = time.perf_counter() - start
    if not captions:
        reason = missing[len(split.missing)].reason
        raise BadData(f"no clip of the {split.name} split of {split.dataset} can be read (first: {reason})")
    measured = metrics.measure(
        {clip: caption.text for clip, caption in captions.items()},
        {clip.name: clip.captions for clip in split.clips if clip.name in captions},
    )
    return Evaluation(
        scores=measured.scores(),
        intervals=_intervals(measured, seed=seed),
        captions=captions,
        missing=tuple(missing),
        seconds=seconds,
        picker=name or picker_name(picker),
        settings={key: float(value) for key in PICKER_SETTINGS if (value := getattr(picker, key, None)) is not None},
        beam=captioner.config.beam if beam is None else beam,
        num_frames=captioner.config.video.num_frames if num_frames is None else num_frames,
        dataset=split.dataset,
        split=split.name,
        model=captioner.name,
    )


def picker_name(picker: Picker | None) -> str:
    """The name that commands know a picker by; for a class of your own, the name of the class."""
    return "picknet" if picker is None else PICKER_NAMES.get(type(picker), type(picker).__name__)


def _intervals(measured: Measured, *, seed: int) -> dict[str, Interval]:
    num_clips = len(measured.cider)
    if num_clips < 2:
        return {}
    by_metric = measured.resampled(resamples(num_clips, seed=seed))
    return {
        name: interval(values) for name, values in zip(METRICS, by_metric, strict=True) if not np.isnan(values).any()
    }


def _warm_up(captioner: Captioner) -> None:
    """Compile every graph, so that the first of several rows does not pay for it."""
    black = np.zeros((GLANCE_SIZE, GLANCE_SIZE, 3), np.uint8)
    captioner.caption([Frame.from_pixels(black, index=index, seconds=0.0) for index in range(2)])


def score_text(value: float | None, ends: Interval | None = None) -> str:
    """91.3 (88.0 … 94.5), or – for a metric that was not computed."""
    if value is None or math.isnan(value):
        return "–"
    return f"{value:.1f}" if ends is None else f"{value:.1f} ({ends.low:.1f} … {ends.high:.1f})"


@dataclass(frozen=True)
class Example:
    """A clip's caption beside some that people wrote."""

    clip: Clip
    caption: Caption
    references: tuple[str, ...]
    """The human caption that is most similar to it, then the first others of the clip."""
    cider: float
    """Of the caption against all human captions of the clip, ×100."""


NUM_REFERENCES = 3


def examples(evaluation: Evaluation, split: Split, *, count: int, seed: int = 0) -> list[Example]:
    """Clips of an evaluated split, good and bad alike, in the split's order; all of them if there are fewer.

    They are drawn by a rule: those whose "seed:name" have the lowest SHA-256. So neither its caption decides whether a
    clip is drawn, nor, but for the last few, which other clips are missing.
    """
    clips = [clip for clip in split.clips if clip.name in evaluation.captions]
    drawn = sorted(clips, key=lambda clip: hashlib.sha256(f"{seed}:{clip.name}".encode()).digest())[:count]
    documents = {clip.name: [tokenise(caption) for caption in clip.captions] for clip in clips}
    scorer = Cider(documents)
    found = []
    for clip in (clip for clip in clips if clip in drawn):
        caption = evaluation.captions[clip.name]
        words = tokenise(caption.text)
        # Each human caption alone, as if it were the only reference of a clip.
        alone = {str(number): [tokens] for number, tokens in enumerate(documents[clip.name])}
        similarity = Cider(alone, document_frequencies_from=documents).scores(list(alone), [words] * len(alone))
        references = dict.fromkeys((clip.captions[int(similarity.argmax())], *clip.captions))
        cider = 100 * scorer.score({clip.name: words})[clip.name]
        found.append(Example(clip, caption, tuple(references)[:NUM_REFERENCES], cider))
    return found


def comparison_table(rows: Sequence[Evaluation]) -> str:
    """The paper's table, in Markdown. Time is measured, as a multiple of PickNet's if there is such a row."""
    reference = next((row.seconds for row in rows if row.picker == "picknet"), None)
    cells = [["Model", "BLEU@4", "ROUGE-L", "METEOR", "CIDEr (95 %)", "picks", "Time"]]
    for row in rows:
        scores = row.scores
        cider = score_text(scores.cider, row.intervals.get("cider"))
        others = (score_text(value) for value in (scores.bleu4, scores.rouge_l, scores.meteor))
        time_ratio = f"{row.seconds / reference:.1f}x" if reference else "–"
        cells.append([row.label, *others, cider, f"{row.mean_picks:.1f}", time_ratio])
    return markdown_table(cells)


def markdown_table(cells: Sequence[Sequence[str]]) -> str:
    """Rows of cells, the header first; all columns but the first are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for first, *numbers in (cells[0], ruler, *cells[1:]):
        aligned = [first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]
        lines.append(f"| {' | '.join(aligned)} |")
    return "\n".join(lines)
