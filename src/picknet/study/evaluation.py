"""How good a captioner is on a split: its row of the paper's tables, and what it picked."""

import dataclasses
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from picknet import metrics
from picknet.captioner import Caption, Captioner, NothingToCaption
from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split
from picknet.metrics import Cider, Scores
from picknet.picking.picker import Picker
from picknet.text import tokenise
from picknet.video.file import UnreadableVideo
from picknet.video.frame import GLANCE_SIZE, Frame


@dataclass(frozen=True)
class Evaluation:
    """One row of the tables."""

    scores: Scores
    captions: dict[str, Caption]
    """By the clip's name, in the split's order."""
    missing: tuple[Missing, ...]
    """The clips without a caption: those the split lacks and those that could not be read."""
    seconds: float
    """Wall time of captioning them all, decoding included."""
    picker: str
    k: int | None
    """How many frames the picker was told to pick; None where it decides."""
    change: float | None
    """What the scene-change picker takes for a change; None for others."""
    beam: int
    num_frames: int
    """Frames sampled from a clip, of which some are picked."""
    dataset: str
    split: str
    model: str

    @property
    def num_videos(self) -> int:
        return len(self.captions)

    @property
    def pick_counts(self) -> list[int]:
        """Picks of each clip."""
        return [len(caption.picks) for caption in self.captions.values()]

    @property
    def pick_positions(self) -> list[int]:
        """Of all picks, the place among the sampled frames, from 0."""
        return [pick.index for caption in self.captions.values() for pick in caption.picks]

    @property
    def mean_picks(self) -> float:
        return sum(self.pick_counts) / self.num_videos

    @property
    def label(self) -> str:
        """The row's name, as the paper writes it."""
        names = {
            "picknet": "PickNet",
            "all": "Baseline",
            "kmeans": "k-means",
            "every": "Every n-th",
            "scene": f"Scene change ({self.change})",
        }
        name = names.get(self.picker, self.picker.capitalize())
        return name if self.k is None else f"{name} (k={self.k})"

    def as_json(self) -> dict[str, Any]:
        """The result without its captions; scores in the tables' ×100 form."""
        return {
            "model": self.model,
            "dataset": self.dataset,
            "split": self.split,
            "picker": self.picker,
            "k": self.k,
            "change": self.change,
            "beam": self.beam,
            **dataclasses.asdict(self.scores),
            "mean_picks": self.mean_picks,
            "num_videos": self.num_videos,
            "seconds": round(self.seconds, 3),
            "missing": [{"clip": clip.name, "reason": clip.reason} for clip in self.missing],
        }


def evaluate(
    captioner: Captioner,
    split: Split,
    *,
    picker: Picker | None = None,
    picker_name: str = "picknet",
    k: int | None = None,
    change: float | None = None,
    beam: int | None = None,
    num_frames: int | None = None,
    tick: Callable[[], object] = lambda: None,
) -> Evaluation:
    """Caption every clip of a split and score the captions against the clip's own; `tick` is called after each clip.

    `picker_name`, `k` and `change` only label the result. CIDEr takes its document frequencies from the clips that were
    captioned, as the COCO code does from the references it is handed.
    """
    captions: dict[str, Caption] = {}
    missing = list(split.missing)
    _warm_up(captioner)
    start = time.perf_counter()
    for clip in split.clips:
        try:
            captions[clip.name] = captioner.caption(clip.path, picker=picker, beam=beam, num_frames=num_frames)
        except (UnreadableVideo, NothingToCaption) as error:
            missing.append(Missing(clip.name, str(error)))
        tick()
    seconds = time.perf_counter() - start
    if not captions:
        raise BadData(f"no clip of the {split.name} split of {split.dataset} can be read (first: {missing[-1].reason})")
    return Evaluation(
        scores=metrics.score(
            {name: caption.text for name, caption in captions.items()},
            {clip.name: clip.captions for clip in split.clips if clip.name in captions},
        ),
        captions=captions,
        missing=tuple(missing),
        seconds=seconds,
        picker=picker_name,
        k=k,
        change=change,
        beam=captioner.config.beam if beam is None else beam,
        num_frames=captioner.config.video.num_frames if num_frames is None else num_frames,
        dataset=split.dataset,
        split=split.name,
        model=captioner.name,
    )


def _warm_up(captioner: Captioner) -> None:
    """Have every graph compiled, so that the first of several rows does not pay for it."""
    black = np.zeros((GLANCE_SIZE, GLANCE_SIZE, 3), np.uint8)
    captioner.caption([Frame.from_pixels(black, index=index, seconds=0.0) for index in range(2)])


@dataclass(frozen=True)
class Example:
    """A clip's caption beside what people said of it."""

    clip: Clip
    caption: Caption
    reference: str
    """The human caption that is most like it."""
    cider: float
    """Of the caption, against all of the clip's own, ×100."""


def examples(evaluation: Evaluation, split: Split, *, count: int = 12) -> list[Example]:
    """Clips of an evaluated split, hits and misses alike, chosen by a rule: of n captioned clips in the split's order
    those at ⌊(i + ½) n / count⌋, or all where there are not so many."""
    clips = [clip for clip in split.clips if clip.name in evaluation.captions]
    count = min(count, len(clips))
    documents = {clip.name: [tokenise(caption) for caption in clip.captions] for clip in clips}
    scorer = Cider(documents)
    chosen = []
    for clip in (clips[(2 * i + 1) * len(clips) // (2 * count)] for i in range(count)):
        caption = evaluation.captions[clip.name]
        words = tokenise(caption.text)
        # Each human caption alone, as if it were the only one of a clip of its own.
        alone = {str(number): [tokens] for number, tokens in enumerate(documents[clip.name])}
        alike = Cider(alone, document_frequencies_from=documents).scores(list(alone), [words] * len(alone))
        reference = clip.captions[int(alike.argmax())]
        chosen.append(Example(clip, caption, reference, 100 * scorer.score({clip.name: words})[clip.name]))
    return chosen


def comparison_table(rows: Sequence[Evaluation]) -> str:
    """The paper's table, in Markdown. Time is measured, as a multiple of PickNet's where there is such a row."""
    reference = next((row.seconds for row in rows if row.picker == "picknet"), None)
    cells = [["Model", "BLEU@4", "ROUGE-L", "METEOR", "CIDEr", "picks", "Time"]]
    for row in rows:
        scores = row.scores
        values = (scores.bleu4, scores.rouge_l, scores.meteor, scores.cider, row.mean_picks)
        time_ratio = f"{row.seconds / reference:.1f}x" if reference else "–"
        cells.append([row.label, *("–" if value is None else f"{value:.1f}" for value in values), time_ratio])
    return markdown_table(cells)


def markdown_table(cells: Sequence[Sequence[str]]) -> str:
    """Lines of cells, the names of the columns first; all columns but the first are numbers, and stand to the right."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    ruler = ["-" * widths[0], *("-" * (width - 1) + ":" for width in widths[1:])]
    lines = []
    for first, *numbers in (cells[0], ruler, *cells[1:]):
        aligned = [first.ljust(widths[0]), *map(str.rjust, numbers, widths[1:])]
        lines.append(f"| {' | '.join(aligned)} |")
    return "\n".join(lines)
