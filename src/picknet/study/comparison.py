"""CIDEr against mean picks: PickNet and its rivals on the same clips, described by the same captioner."""

import dataclasses
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet import metrics
from picknet.captioner import Captioner, NothingToCaption
from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split, by_name
from picknet.meteor.lexicon import MeteorFailed
from picknet.metrics import Cider, Scores
from picknet.study import detectors
from picknet.study.bootstrap import Interval, interval, resamples
from picknet.study.judging import (
    KS,
    NUM_DRAWS,
    SUBSET_SIZES,
    ClipFeatures,
    JudgedClip,
    budgets,
    counted,
    dial,
    judge,
    rivals,
)
from picknet.text import tokenise
from picknet.video.file import UnreadableVideo

Array = NDArray[Any]

REFERENCE = "uniform"
"""The picker that differences are taken to."""
NAMES = {
    "picknet": "PickNet",
    "counted": "PickNet, k picks",
    "uniform": "uniform, centres",
    "ends": "uniform, ends",
    "random": "random",
    "kmeans": "k-means",
    "hecate": "Hecate",
    "every": "every n-th",
    "coin": "coin",
    "scene": "scene change",
    "budget": "budget",
    "rule": "budget, rule alone",
    "content": "PySceneDetect, content",
    "adaptive": "PySceneDetect, adaptive",
    "histogram": "PySceneDetect, histogram",
    "all": "all frames",
}


@dataclass(frozen=True)
class Difference:
    """A difference in CIDEr, with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """A picker at one setting, over all clips. For a random picker, scores are means over its draws."""

    picker: str
    setting: str
    own: bool
    picks: Array
    """(clips,): mean over the draws."""
    ciders: Array
    """(clips,): ×100, mean over the draws."""
    scores: Scores
    spread: float | None
    """Standard deviation of the CIDEr over the draws; None for a single draw."""
    interval: Interval | None = None
    """Of the CIDEr, by bootstrap over clips."""
    differences: Mapping[str, Difference] = dataclasses.field(default_factory=dict)
    """To other pickers at the same mean picks: of every row to centred uniform, of PickNet's rows to all pickers."""

    @property
    def mean_picks(self) -> float:
        return float(self.picks.mean())


@dataclass(frozen=True)
class Room:
    """How much the choice of frames matters: CIDEr of random subsets of one size, averaged over the clips."""

    size: int
    worst: float
    mean: float
    best: float


@dataclass(frozen=True)
class Comparison:
    rows: tuple[Row, ...]
    rooms: tuple[Room, ...]
    num_subsets: int
    num_draws: int
    """Draws of a random picker."""
    clips: tuple[JudgedClip, ...]
    ciders: Mapping[tuple[str, str], float]
    """Of each (clip, caption), ×100."""
    missing: tuple[Missing, ...]
    models: tuple[str, ...]
    dataset: str
    split: str
    beam: int
    seed: int


def compare(
    judges: Sequence[tuple[Captioner, Split]],
    *,
    beam: int = 1,
    seed: int = 0,
    num_subsets: int = 100,
    num_draws: int = NUM_DRAWS,
    with_meteor: bool = False,
    cache: Path | None = None,
    on_clip: Callable[[Clip], object] = lambda clip: None,
) -> Comparison:
    """Compare every picker at all its settings. Each captioner describes the clips beside it; all clips are pooled.

    CIDEr's document frequencies come from all clips of the pool. cache: a folder that keeps CNN features. `on_clip` is
    called after each clip, also after one that cannot be read.
    """
    clips = by_name(split for _, split in judges)
    chance = np.random.default_rng([seed, 1])
    judged: list[JudgedClip] = []
    own: dict[tuple[str, str], bool] = {}
    missing = [clip for _, split in judges for clip in split.missing]
    for captioner, split in judges:
        features = ClipFeatures(captioner, cache)
        settings = [
            *dial(captioner),
            *counted(captioner),
            *rivals(features.of_frame, seed=seed, num_draws=num_draws),
            *budgets(captioner, KS),
        ]
        own |= {(setting.picker, setting.setting): setting.own for setting in settings}
        for clip in split.clips:
            try:
                found = judge(
                    features, clip, settings, beam=beam, num_subsets=num_subsets, chance=chance,
                    with_detectors=detectors.is_installed(),
                )  # fmt: skip
                judged.append(found)
            except (UnreadableVideo, NothingToCaption) as error:
                missing.append(Missing(clip.name, str(error)))
            on_clip(clip)
    first = judges[0][1]
    num_absent = sum(len(split.missing) for _, split in judges)  # those that could not be read come after them
    if not judged:
        reason = missing[num_absent].reason
        raise BadData(f"no clip of the {first.name} split of {first.dataset} can be read (first: {reason})")
    references = {clip.name: [tokenise(caption) for caption in clips[clip.name].captions] for clip in judged}
    ciders = _ciders(judged, references)
    return Comparison(
        rows=_rows(judged, own, references, ciders, with_meteor=with_meteor, seed=seed),
        rooms=_rooms(judged, ciders) if num_subsets else (),
        num_subsets=num_subsets,
        num_draws=num_draws,
        clips=tuple(judged),
        ciders=ciders,
        missing=tuple(missing),
        models=tuple(captioner.name for captioner, _ in judges),
        dataset=first.dataset,
        split=first.name,
        beam=beam,
        seed=seed,
    )


# --- Scoring ---


def _ciders(judged: Sequence[JudgedClip], references: metrics.References) -> dict[tuple[str, str], float]:
    """×100, of each caption of each clip."""
    pairs = [(clip.name, text) for clip in judged for text in dict.fromkeys(clip.captions.values())]
    scores = Cider(references).scores([name for name, _ in pairs], [tokenise(text) for _, text in pairs])
    return dict(zip(pairs, (100 * scores).tolist(), strict=True))


def _rows(
    judged: Sequence[JudgedClip],
    own: Mapping[tuple[str, str], bool],
    references: metrics.References,
    ciders: Mapping[tuple[str, str], float],
    *,
    with_meteor: bool,
    seed: int,
) -> tuple[Row, ...]:
    marks = _marks(judged, references)
    rows = []
    for key in dict.fromkeys((*own, *(key for clip in judged for key in clip.choices))):
        # Models may differ in their dial: a setting that not all of them have is left out.
        if not all(key in clip.choices for clip in judged):
            continue
        draws = list(zip(*(clip.choices[key] for clip in judged), strict=True))  # a draw: the choice of each clip
        texts = [
            {clip.name: clip.captions[choice] for clip, choice in zip(judged, draw, strict=True)} for draw in draws
        ]
        by_draw = np.array([[ciders[pair] for pair in captions.items()] for captions in texts])
        scores = [
            _scores(captions, references, marks, cider, with_meteor=with_meteor)
            for captions, cider in zip(texts, by_draw, strict=True)
        ]
        rows.append(
            Row(
                picker=key[0],
                setting=key[1],
                own=own.get(key, False),
                picks=np.array([[len(choice) for choice in draw] for draw in draws]).mean(axis=0),
                ciders=by_draw.mean(axis=0),
                scores=_mean(scores),
                spread=float(by_draw.mean(axis=1).std(ddof=1)) if len(draws) > 1 else None,
            )
        )
    return _with_intervals(rows, seed=seed)


def _marks(
    judged: Sequence[JudgedClip], references: metrics.References
) -> dict[tuple[str, str], metrics.Marks]:
    """Of each caption of each clip: many choices have the same one."""
    found = {}
    for clip in judged:
        texts = list(dict.fromkeys(clip.captions.values()))
        marks = metrics.marks_of([tokenise(text) for text in texts], references[clip.name])
        found.update({(clip.name, text): mark for text, mark in zip(texts, marks, strict=True)})
    return found


def _scores(
    captions: Mapping[str, str],
    references: metrics.References,
    marks: Mapping[tuple[str, str], metrics.Marks],
    ciders: Array,
    *,
    with_meteor: bool,
) -> Scores:
    """ciders: (clips,), ×100"""
    meteor = None
    if with_meteor:
        try:
            meteor = metrics.meteor({name: tokenise(text) for name, text in captions.items()}, references)
        except MeteorFailed as error:
            warnings.warn(f"no METEOR: {error}", stacklevel=2)
    found = [marks[pair] for pair in captions.items()]
    counts, rouge_l = np.array([mark.bleu_counts for mark in found]), np.array([mark.rouge_l for mark in found])
    return metrics.Measured(counts, rouge_l, meteor, ciders / 100).scores()


def _mean(scores: Sequence[Scores]) -> Scores:
    def mean(name: str) -> float | None:
        values = [getattr(draw, name) for draw in scores]
        return None if None in values else float(np.mean(values))

    return Scores(**{name: mean(name) for name in Scores.__dataclass_fields__})  # type: ignore[arg-type]


def _with_intervals(rows: Sequence[Row], *, seed: int) -> tuple[Row, ...]:
    if len(rows[0].ciders) < 2:  # nothing to resample
        return tuple(rows)
    weights = resamples(len(rows[0].ciders), seed=seed)
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(row.picker, []).append(row)
    compared = []
    for row in rows:
        others = [name for name in curves if name != row.picker and (name == REFERENCE or row.picker == "picknet")]
        differences = {name: difference(row, curves[name], weights) for name in others}
        known = {name: found for name, found in differences.items() if found is not None}
        compared.append(dataclasses.replace(row, interval=interval(weights @ row.ciders), differences=known))
    return tuple(compared)


def difference(row: Row, curve: Sequence[Row], weights: Array) -> Difference | None:
    """A row's CIDEr minus that of another picker at the same mean picks, interpolated between its settings.

    weights: (resamples, clips), the share of each clip in each resample. Both pickers are averaged over the same
    resample, so clips are paired; mean picks are those of the resample. None if the row's mean picks are outside the
    range of the other picker.
    """
    picks, ciders = merged(curve)
    means = picks.mean(axis=1)
    if not means.min() - 1e-9 <= row.mean_picks <= means.max() + 1e-9:
        return None
    equal = np.full(len(row.ciders), 1 / len(row.ciders))
    weights = np.vstack([equal, weights])  # the clips as they are, then the resamples
    gaps = [
        own - np.interp(place, places[order := np.argsort(places)], heights[order])
        for own, place, places, heights in zip(
            weights @ row.ciders, weights @ row.picks, weights @ picks.T, weights @ ciders.T, strict=True
        )
    ]
    return Difference(float(gaps[0]), *interval(np.array(gaps[1:])))


def merged(curve: Sequence[Row]) -> tuple[Array, Array]:
    """Picks and CIDErs of a picker's settings, (settings, clips) each; settings with equal mean picks are averaged."""
    alike: dict[float, list[Row]] = {}
    for row in curve:
        alike.setdefault(round(row.mean_picks, 9), []).append(row)
    groups = [rows for _, rows in sorted(alike.items())]
    picks = np.stack([np.mean([row.picks for row in rows], axis=0) for rows in groups])
    ciders = np.stack([np.mean([row.ciders for row in rows], axis=0) for rows in groups])
    return picks, ciders


def _rooms(judged: Sequence[JudgedClip], ciders: Mapping[tuple[str, str], float]) -> tuple[Room, ...]:
    rooms = []
    for size in SUBSET_SIZES:
        scores = np.array(
            [[ciders[clip.name, clip.captions[choice]] for choice in clip.subsets[size]] for clip in judged]
        )
        extremes = (scores.min(axis=1), scores.mean(axis=1), scores.max(axis=1))
        rooms.append(Room(size, *(float(each.mean()) for each in extremes)))
    return tuple(rooms)
