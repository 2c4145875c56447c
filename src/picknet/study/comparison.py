"""CIDEr against mean picks: what a picker is worth beside plain ones, on the same clips, by the same captioner."""

import csv
import dataclasses
import io
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet import metrics
from picknet.captioner import Captioner, NothingToCaption
from picknet.data.datasets import BadData, Clip, Missing, Split
from picknet.files import write_text
from picknet.metrics import Cider, Scores
from picknet.show.page import COLOURS, GREEN, GREY, INK, save
from picknet.study.charts import Chart, Line, Panel, line_chart
from picknet.study.evaluation import markdown_table
from picknet.study.judging import KS, NUM_DRAWS, SUBSET_SIZES, JudgedClip, Look, dial, judge, rivals
from picknet.text import tokenise
from picknet.video.file import UnreadableVideo

Array = NDArray[Any]

NUM_RESAMPLES = 2000
"""Of the bootstrap."""

REFERENCE = "uniform"
NAMES = {
    "picknet": "PickNet",
    "uniform": "uniform, centres",
    "ends": "uniform, ends",
    "random": "random",
    "kmeans": "k-means",
    "every": "every n-th",
    "coin": "coin",
    "scene": "scene change",
    "all": "all frames",
}


@dataclass(frozen=True)
class Difference:
    """In CIDEr, with the ends of its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True)
class Row:
    """A picker at a setting, over all clips. Where chance plays, scores are means over the draws."""

    picker: str
    setting: str
    own: bool
    picks: Array
    """(clips,): mean over the draws."""
    ciders: Array
    """(clips,): ×100, mean over the draws."""
    scores: Scores
    spread: float | None
    """Standard deviation of the CIDEr over the draws; None where there is one."""
    differences: Mapping[str, Difference]
    """To other pickers at the same mean picks: every row's to centred uniform, PickNet's to all."""

    @property
    def mean_picks(self) -> float:
        return float(self.picks.mean())


@dataclass(frozen=True)
class Room:
    """How much the choice of frames matters: CIDEr of random subsets of one size, mean over the clips."""

    size: int
    worst: float
    mean: float
    best: float


@dataclass(frozen=True)
class Comparison:
    rows: tuple[Row, ...]
    rooms: tuple[Room, ...]
    num_subsets: int
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
    with_meteor: bool = False,
    cache: Path | None = None,
    tick: Callable[[], object] = lambda: None,
) -> Comparison:
    """Every picker at all its settings; each captioner judges the clips beside it, and all clips are pooled.

    CIDEr's document frequencies come from all clips of the pool. `tick` is called after each clip; features are kept in
    the folder `cache` where there is one.
    """
    clips: dict[str, Clip] = {}
    for _, split in judges:
        for clip in split.clips:
            if clip.name in clips:
                raise BadData(f"{clip.name}: is to be judged twice; a clip belongs to one model")
            clips[clip.name] = clip
    chance = np.random.default_rng([seed, 1])
    judged: list[JudgedClip] = []
    own: dict[tuple[str, str], bool] = {}
    missing = [clip for _, split in judges for clip in split.missing]
    for captioner, split in judges:
        look = Look(captioner, cache)
        settings = [*dial(captioner), *rivals(look.feature, seed=seed)]
        own |= {(setting.picker, setting.setting): setting.own for setting in settings}
        for clip in split.clips:
            try:
                judged.append(judge(look, clip, settings, beam=beam, num_subsets=num_subsets, chance=chance))
            except (UnreadableVideo, NothingToCaption) as error:
                missing.append(Missing(clip.name, str(error)))
            tick()
    first = judges[0][1]
    if not judged:
        raise BadData(f"no clip of the {first.name} split of {first.dataset} can be read (first: {missing[-1].reason})")
    references = {one.name: [tokenise(caption) for caption in clips[one.name].captions] for one in judged}
    ciders = _ciders(judged, references)
    return Comparison(
        rows=_rows(judged, own, references, ciders, with_meteor=with_meteor, seed=seed),
        rooms=_rooms(judged, ciders) if num_subsets else (),
        num_subsets=num_subsets,
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
    """×100, of each caption that was written of each clip."""
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
    rows = []
    for key in own:
        # Where models come with dials of their own, a setting that not all of them have is left out.
        if not all(key in clip.choices for clip in judged):
            continue
        draws = list(zip(*(clip.choices[key] for clip in judged), strict=True))  # a draw: the choice of each clip
        texts = [
            {clip.name: clip.captions[choice] for clip, choice in zip(judged, draw, strict=True)} for draw in draws
        ]
        by_draw = np.array([[ciders[pair] for pair in said.items()] for said in texts])
        scores = [
            _scores({name: tokenise(text) for name, text in said.items()}, references, cider, with_meteor=with_meteor)
            for said, cider in zip(texts, by_draw.mean(axis=1).tolist(), strict=True)
        ]
        rows.append(
            Row(
                picker=key[0],
                setting=key[1],
                own=own[key],
                picks=np.array([[len(choice) for choice in draw] for draw in draws]).mean(axis=0),
                ciders=by_draw.mean(axis=0),
                scores=_mean(scores),
                spread=float(by_draw.mean(axis=1).std(ddof=1)) if len(draws) > 1 else None,
                differences={},
            )
        )
    return _with_differences(rows, seed=seed)


def _scores(
    candidates: metrics.Candidates, references: metrics.References, cider: float, *, with_meteor: bool
) -> Scores:
    meteor = None
    if with_meteor:
        try:
            meteor = metrics.meteor(candidates, references)
        except metrics.MeteorFailed as error:
            warnings.warn(f"no METEOR: {error}", stacklevel=2)
    bleu1, bleu2, bleu3, bleu4 = (100 * value for value in metrics.bleu(candidates, references))
    rouge_l = 100 * metrics.rouge_l(candidates, references)
    return Scores(bleu1, bleu2, bleu3, bleu4, rouge_l, None if meteor is None else 100 * meteor, cider)


def _mean(scores: Sequence[Scores]) -> Scores:
    def mean(name: str) -> float | None:
        values = [getattr(one, name) for one in scores]
        return None if None in values else float(np.mean(values))

    return Scores(**{name: mean(name) for name in Scores.__dataclass_fields__})  # type: ignore[arg-type]


def _with_differences(rows: Sequence[Row], *, seed: int) -> tuple[Row, ...]:
    num_clips = len(rows[0].ciders)
    shares = np.full(num_clips, 1 / num_clips)
    weights = np.random.default_rng([seed, 2]).multinomial(num_clips, shares, size=NUM_RESAMPLES) / num_clips
    curves: dict[str, list[Row]] = {}
    for row in rows:
        curves.setdefault(row.picker, []).append(row)
    compared = []
    for row in rows:
        others = [name for name in curves if name != row.picker and (name == REFERENCE or row.picker == "picknet")]
        found = {name: difference(row, curves[name], weights) for name in others}
        kept = {name: value for name, value in found.items() if value is not None}
        compared.append(dataclasses.replace(row, differences=kept))
    return tuple(compared)


def difference(row: Row, curve: Sequence[Row], weights: Array) -> Difference | None:
    """A row's CIDEr minus that of another picker at the same mean picks, read off the line through its settings.

    weights: (resamples, clips), the share of each clip in each resample of the clips. All rows are weighed alike, so
    clips are paired; the mean picks of a resample are its own. None where the other picker never picks so many or so
    few.
    """
    picks, ciders = _merged(curve)
    means = picks.mean(axis=1)
    if not means.min() - 1e-9 <= row.mean_picks <= means.max() + 1e-9:
        return None
    every = np.full(len(row.ciders), 1 / len(row.ciders))
    weights = np.vstack([every, weights])  # the clips as they are, then the resamples
    gaps = [
        own - np.interp(place, places[order := np.argsort(places)], heights[order])
        for own, place, places, heights in zip(
            weights @ row.ciders, weights @ row.picks, weights @ picks.T, weights @ ciders.T, strict=True
        )
    ]
    low, high = np.percentile(gaps[1:], [2.5, 97.5])
    return Difference(float(gaps[0]), float(low), float(high))


def _merged(curve: Sequence[Row]) -> tuple[Array, Array]:
    """Picks and CIDErs of a picker's settings, (settings, clips) each; settings of the same mean picks are averaged."""
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


# --- Tables and pictures ---


def write(comparison: Comparison, folder: Path, *, command: str) -> None:
    """All of it: comparison.csv, .md, .png and .svg, room.png and .svg, and clips.csv to check it by.

    `command` is what made it, and is told.
    """
    write_text(folder / "comparison.csv", _csv(comparison))
    write_text(folder / "clips.csv", _clips_csv(comparison))
    charts = {"comparison": chart(comparison)} | ({"room": room_chart(comparison)} if comparison.rooms else {})
    for name, drawn in charts.items():
        save(drawn.image(), folder / f"{name}.png")
        write_text(folder / f"{name}.svg", drawn.svg())
    pictures = "\n\n".join(f"![{name}]({name}.png)" for name in charts)
    made_by = f"```console\n$ {command}\n```"
    parts = ["# Pickers compared", made_by, pictures, markdown(comparison)]
    write_text(folder / "comparison.md", "\n\n".join(parts) + "\n")


def markdown(comparison: Comparison) -> str:
    """The tables, in Markdown."""
    cells = [["picker", "setting", "picks", "CIDEr", "minus uniform (95 %)", "BLEU@4", "ROUGE-L", "METEOR"]]
    for row in comparison.rows:
        scores = row.scores
        cider = f"{scores.cider:.1f}" + (f" ± {row.spread:.1f}" if row.spread is not None else "")
        others = (scores.bleu4, scores.rouge_l, scores.meteor)
        cells.append(
            [
                NAMES[row.picker] + (" *" if row.own else ""),
                row.setting,
                f"{row.mean_picks:.2f}",
                cider,
                _interval(row.differences.get(REFERENCE)),
                *("–" if value is None else f"{value:.1f}" for value in others),
            ]
        )
    several = f"{len(comparison.models)} models" if len(comparison.models) > 1 else comparison.models[0]
    parts = [
        f"{several} on {comparison.dataset} {comparison.split}: {len(comparison.clips):,} clips, beam "
        f"{comparison.beam}, seed {comparison.seed}.",
        markdown_table(cells),
        f"\\* the setting that the model comes with. ± is the standard deviation over {NUM_DRAWS} draws. "
        "\"minus uniform\" is the difference to centred uniform at the same mean picks, with its 95 % interval "
        "(bootstrap over clips, paired).",
    ]
    rivals = [name for name in NAMES if any(name in row.differences for row in comparison.rows)]
    picknet = [row for row in comparison.rows if row.picker == "picknet"]
    if picknet:
        cells = [["PickNet minus …", "picks", *(NAMES[name] for name in rivals)]]
        for row in picknet:
            against = [_interval(row.differences.get(name)) for name in rivals]
            cells.append([row.setting + (" *" if row.own else ""), f"{row.mean_picks:.2f}", *against])
        parts += ["## PickNet against each, at the same mean picks", markdown_table(cells)]
    if comparison.rooms:
        cells = [["frames", "worst", "mean", "best"]]
        for room in comparison.rooms:
            cells.append([str(room.size), f"{room.worst:.1f}", f"{room.mean:.1f}", f"{room.best:.1f}"])
        note = f"CIDEr of {comparison.num_subsets} random subsets of each clip's frames, mean over the clips."
        parts += ["## How much the choice matters", note, markdown_table(cells)]
    if comparison.missing:
        lines = [f"- {clip.name}: {clip.reason}" for clip in comparison.missing]
        parts += ["## Missing clips", "\n".join(lines)]
    return "\n\n".join(parts)


def _interval(value: Difference | None) -> str:
    if value is None:
        return "–"
    # Rounded first: a nothing below zero would be −0.0.
    mean, low, high = (round(number, 1) + 0.0 for number in (value.mean, value.low, value.high))
    return f"{mean:+.1f} ({low:+.1f} … {high:+.1f})".replace("-", "−")


def _csv(comparison: Comparison) -> str:
    text = io.StringIO()
    scores = tuple(Scores.__dataclass_fields__)
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["picker", "setting", "own", "mean_picks", *scores, "cider_spread", "difference", "low", "high"])
    for row in comparison.rows:
        found = row.differences.get(REFERENCE)
        interval = (found.mean, found.low, found.high) if found else (None, None, None)
        numbers = (*(getattr(row.scores, name) for name in scores), row.spread, *interval)
        shown = ["" if number is None else f"{number:.4f}" for number in numbers]
        rows.writerow([row.picker, row.setting, int(row.own), f"{row.mean_picks:.4f}", *shown])
    return text.getvalue()


def _clips_csv(comparison: Comparison) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["clip", "picker", "setting", "draw", "picks", "cider", "caption"])
    for clip in comparison.clips:
        for (picker, setting), draws in clip.choices.items():
            for draw, choice in enumerate(draws):
                said = clip.captions[choice]
                cider = f"{comparison.ciders[clip.name, said]:.4f}"
                rows.writerow([clip.name, picker, setting, draw, " ".join(map(str, choice)), cider, said])
    return text.getvalue()


def chart(comparison: Comparison) -> Chart:
    """CIDEr against mean picks, and below it the difference to centred uniform with PickNet's interval."""
    colours = dict(zip(NAMES, (GREEN, INK, GREY, *COLOURS), strict=False))
    most = max(KS)
    curves: dict[str, list[Row]] = {}
    for row in comparison.rows:
        if row.picker != "all" and row.mean_picks <= most:
            curves.setdefault(row.picker, []).append(row)
    lines, gaps = [], []
    for name, rows in curves.items():
        own = next((row for row in rows if row.own), None)
        look = Line(NAMES[name], (), colours[name], {"picknet": 7, REFERENCE: 5}.get(name, 3))
        picks, ciders = (each.mean(axis=1).tolist() for each in _merged(rows))
        spread = [(row.mean_picks, row.scores.cider, row.spread) for row in rows if row.spread is not None]
        lines.append(
            dataclasses.replace(
                look,
                pieces=[list(zip(picks, ciders, strict=True))],
                ringed=(own.mean_picks, own.scores.cider) if own else None,
                band=[(x, y - spread, y + spread) for x, y, spread in spread] if name == "random" else (),
            )
        )
        # Settings of the same mean picks stand on one another here, so the last of them is shown.
        found = {row.mean_picks: row.differences[REFERENCE] for row in rows if REFERENCE in row.differences}
        if found:
            at_own = own.differences.get(REFERENCE) if own else None
            gaps.append(
                dataclasses.replace(
                    look,
                    pieces=[[(x, found[x].mean) for x in sorted(found)]],
                    ringed=(own.mean_picks, at_own.mean) if own and at_own else None,
                    band=[(x, found[x].low, found[x].high) for x in sorted(found)] if name == "picknet" else (),
                )
            )
    every = [(f"all {row.mean_picks:.0f} frames", row.scores.cider) for row in comparison.rows if row.picker == "all"]
    where = f"{comparison.dataset} {comparison.split}, {len(comparison.clips):,} clips"
    ring = " · the ring is the setting the model comes with · the area is the spread of random draws"
    panels = [
        Panel("CIDEr against picks", where + ring, "mean picks of a clip", lines, levels=every, height=760),
        Panel(
            "Difference to centred uniform at the same mean picks",
            "CIDEr; the area is PickNet's 95 % interval, by bootstrap over clips",
            "mean picks of a clip",
            gaps,
            levels=[("uniform, centres", 0.0)],
        ),
    ]
    return line_chart([panel for panel in panels if panel.lines])


def room_chart(comparison: Comparison) -> Chart:
    """Best, mean and worst of random subsets of each size."""
    over = f"mean over {len(comparison.clips):,} clips"
    note = f"CIDEr of {comparison.num_subsets} random subsets of a clip's frames, {over}"
    lines = [
        Line(name, [[(room.size, getattr(room, name)) for room in comparison.rooms]], colour)
        for name, colour in (("best", GREEN), ("mean", INK), ("worst", COLOURS[1]))
    ]
    return line_chart([Panel("How much the choice of frames matters", note, "frames", lines, height=560)])
