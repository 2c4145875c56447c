"""The files of a comparison: tables as Markdown and CSV, and its two charts."""

import csv
import dataclasses
import io
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from picknet.files import write_text
from picknet.study.charts import GREEN, INK, LIGHT_GREY, Line, Panel, line_chart, save
from picknet.study.comparison import NAMES, REFERENCE, Comparison, Difference, Row, merged
from picknet.study.evaluation import markdown_table, score_text
from picknet.study.judging import KS

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PADDING = 5.0
"""CIDEr above and below the data of a chart: a few hundred clips cannot resolve less."""
COLUMNS = ("cider_low", "cider_high", "difference", "low", "high")
"""Of comparison.csv: the interval of the CIDEr, and the difference to centred uniform with its interval."""
GREYS = ("#5f6773", "#8a919d", "#b0b6bf")
MARKERS = {
    "counted": ("o", 0), "ends": ("s", 1), "random": ("X", 2), "kmeans": ("P", 1), "hecate": ("h", 2),
    "every": ("v", 1), "coin": ("d", 2), "scene": ("^", 0), "stride": ("*", 0), "budget": ("D", 0), "rule": ("D", 2),
    "content": ("p", 1), "adaptive": ("<", 1), "histogram": (">", 1),
}  # fmt: skip
"""A marker and a shade for each rival."""
DASHES: dict[str, str | tuple[int, tuple[int, ...]]] = {
    "random": (0, (1, 1)), "coin": (0, (1, 1)), "content": (0, (4, 2)), "adaptive": (0, (4, 2)),
    "histogram": (0, (4, 2)),
}  # fmt: skip
"""Line styles of groups of rivals; the others' lines are solid."""


def write(comparison: Comparison, folder: Path, *, command: str) -> None:
    """comparison.csv, .md, .png and .svg, room.png and .svg, and clips.csv, from which all others can be computed.

    command: the command that made the comparison, for the page.
    """
    write_text(folder / "comparison.csv", csv_table(rows(comparison)))
    write_text(folder / "clips.csv", _clips_csv(comparison))
    charts = {"comparison": chart(comparison)} | ({"room": room_chart(comparison)} if comparison.rooms else {})
    for name, figure in charts.items():
        save(figure, folder / f"{name}.png")
        save(figure, folder / f"{name}.svg")
    pictures = "\n\n".join(f"![{name}]({name}.png)" for name in charts)
    parts = ["# Pickers compared", f"```console\n$ {command}\n```", pictures, tables(comparison)]
    if comparison.missing:
        parts += ["## Missing clips", "\n".join(f"- {clip.name}: {clip.reason}" for clip in comparison.missing)]
    write_text(folder / "comparison.md", "\n\n".join(parts) + "\n")


def tables(comparison: Comparison) -> str:
    """The tables as Markdown."""
    cells = [["picker", "setting", "picks", "CIDEr (95 %)", "minus uniform (95 %)", "BLEU@4", "ROUGE-L", "METEOR"]]
    for row in comparison.rows:
        scores = row.scores
        cider = score_text(scores.cider, row.interval)
        cells.append(
            [
                NAMES[row.picker] + (" *" if row.own else ""),
                row.setting,
                f"{row.mean_picks:.2f}",
                cider,
                _difference_text(row.differences.get(REFERENCE)),
                *(score_text(value) for value in (scores.bleu4, scores.rouge_l, scores.meteor)),
            ]
        )
    models = f"{len(comparison.models)} models" if len(comparison.models) > 1 else comparison.models[0]
    parts = [
        f"{models} on {comparison.dataset} {comparison.split}: {len(comparison.clips):,} clips, beam "
        f"{comparison.beam}, seed {comparison.seed}.",
        markdown_table(cells),
        f"\\* the model's own setting. In brackets: 95 % intervals, by bootstrap over clips. Random and coin are means "
        f'of {comparison.num_draws} draws. "minus uniform" is the paired difference to centred uniform at the same '
        "mean picks.",
    ]
    rivals = [name for name in NAMES if any(name in row.differences for row in comparison.rows)]
    picknet = [row for row in comparison.rows if row.picker == "picknet"]
    if picknet:
        cells = [["PickNet minus …", "picks", *(NAMES[name] for name in rivals)]]
        for row in picknet:
            against = [_difference_text(row.differences.get(name)) for name in rivals]
            cells.append([row.setting + (" *" if row.own else ""), f"{row.mean_picks:.2f}", *against])
        parts += ["## PickNet against each, at the same mean picks", markdown_table(cells)]
    if comparison.rooms:
        cells = [["frames", "worst", "mean", "best"]]
        for room in comparison.rooms:
            cells.append([str(room.size), f"{room.worst:.1f}", f"{room.mean:.1f}", f"{room.best:.1f}"])
        note = f"CIDEr of {comparison.num_subsets} random subsets of each clip's frames, averaged over the clips."
        parts += ["## How much the choice matters", note, markdown_table(cells)]
    return "\n\n".join(parts)


def _difference_text(value: Difference | None) -> str:
    if value is None:
        return "–"
    # Rounded first, and + 0.0, so that −0.04 is printed as +0.0, not as −0.0.
    mean, low, high = (round(number, 1) + 0.0 for number in (value.mean, value.low, value.high))
    return f"{mean:+.1f} ({low:+.1f} … {high:+.1f})".replace("-", "−")


def rows(comparison: Comparison) -> Iterator[dict[str, Any]]:
    """A row for each picker and setting, as JSON types: picks, scores and intervals."""
    for row in comparison.rows:
        found = row.differences.get(REFERENCE)
        ends = (*(row.interval or (None, None)), *((found.mean, found.low, found.high) if found else (None,) * 3))
        about = {"picker": row.picker, "setting": row.setting, "own": row.own, "mean_picks": row.mean_picks}
        scores = {**dataclasses.asdict(row.scores), "cider_spread": row.spread}
        yield {**about, **scores, **dict(zip(COLUMNS, ends, strict=True))}


def csv_table(compared: Iterable[dict[str, Any]]) -> str:
    """Rows as CSV, numbers with four decimals."""
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    for number, row in enumerate(compared):
        if not number:
            table.writerow(row)
        cells = {**row, "own": int(row["own"])}.values()
        table.writerow(f"{cell:.4f}" if isinstance(cell, float) else cell for cell in cells)
    return text.getvalue()


def _clips_csv(comparison: Comparison) -> str:
    text = io.StringIO()
    rows = csv.writer(text, lineterminator="\n")
    rows.writerow(["clip", "picker", "setting", "draw", "picks", "cider", "caption"])
    for clip in comparison.clips:
        for (picker, setting), draws in clip.choices.items():
            for draw, choice in enumerate(draws):
                caption = clip.captions[choice]
                cider = f"{comparison.ciders[clip.name, caption]:.4f}"
                rows.writerow([clip.name, picker, setting, draw, " ".join(map(str, choice)), cider, caption])
    return text.getvalue()


def chart(comparison: Comparison) -> "Figure":
    """CIDEr against mean picks, and the difference to centred uniform: PickNet in green with its 95 % interval."""
    most = max(KS)
    curves: dict[str, list[Row]] = {}
    for row in comparison.rows:
        if row.picker != "all" and row.mean_picks <= most:
            curves.setdefault(row.picker, []).append(row)
    scores = [_score_line(name, rows) for name, rows in curves.items()]
    differences = [line for name, rows in curves.items() if (line := _difference_line(name, rows)).points]
    every = [(f"all {row.mean_picks:.0f} frames", row.scores.cider) for row in comparison.rows if row.picker == "all"]
    where = f"{comparison.dataset} {comparison.split}, {len(comparison.clips):,} clips"
    panels = [
        Panel(
            "CIDEr against the number of picks",
            f"{where} · shaded: PickNet's 95 % interval · ring: its own setting",
            "mean picks per clip",
            scores,
            levels=every,
            padding=PADDING,
            height=3.4,
        ),
        Panel(
            "Difference to centred uniform at the same number of picks",
            "CIDEr · shaded: PickNet's 95 % interval, by paired bootstrap over clips",
            "mean picks per clip",
            differences,
            levels=[("uniform, centres", 0.0)],
            padding=PADDING,
            symmetric=True,
            height=2.6,
        ),
    ]
    return line_chart([panel for panel in panels if panel.lines])


def room_chart(comparison: Comparison) -> "Figure":
    """Best, mean and worst of random subsets of each size, with PickNet's curve."""
    rooms, count = comparison.rooms, comparison.num_subsets
    sizes = [room.size for room in rooms]
    own = [row for row in comparison.rows if row.picker == "picknet" and sizes[0] <= row.mean_picks <= sizes[-1]]
    lines = [_score_line("picknet", own, with_band=False)] if own else []
    lines += [
        Line(name, [[(room.size, getattr(room, key)) for room in rooms]], colour, band=band)
        for key, name, colour, band in (
            ("mean", "mean", INK, [(room.size, room.worst, room.best) for room in rooms]),
            ("best", f"best of {count}", LIGHT_GREY, []),
            ("worst", f"worst of {count}", LIGHT_GREY, []),
        )
    ]
    note = (
        f"CIDEr of {count} random subsets of each clip's frames, averaged over {len(comparison.clips):,} clips · "
        "best and worst are chosen by the score itself"
    )
    title = "How much the choice of frames matters"
    return line_chart([Panel(title, note, "frames", lines, padding=PADDING, height=3.0)])


def _score_line(name: str, rows: Sequence[Row], *, with_band: bool = True) -> Line:
    own = next((row for row in rows if row.own), None)
    picks, ciders = (values.mean(axis=1).tolist() for values in merged(rows))
    bands = {row.mean_picks: row.interval for row in rows} if name == "picknet" and with_band else {}
    return styled(
        name,
        list(zip(picks, ciders, strict=True)),
        band=[(x, *ends) for x, ends in bands.items() if ends],
        ringed=(own.mean_picks, own.scores.cider) if own else None,
    )


def _difference_line(name: str, rows: Sequence[Row]) -> Line:
    own = next((row for row in rows if row.own), None)
    # Of settings with equal mean picks the last one is drawn.
    found = {row.mean_picks: row.differences[REFERENCE] for row in rows if REFERENCE in row.differences}
    at_own = own.differences.get(REFERENCE) if own else None
    return styled(
        name,
        [(x, found[x].mean) for x in sorted(found)],
        band=[(x, found[x].low, found[x].high) for x in sorted(found)] if name == "picknet" else (),
        ringed=(own.mean_picks, at_own.mean) if own and at_own else None,
    )


def styled(
    name: str,
    points: Sequence[tuple[float, float]],
    *,
    band: Sequence[tuple[float, float, float]],
    ringed: tuple[float, float] | None,
    label: str = "",
) -> Line:
    """PickNet in green, the reference in black, rivals in grey. label: if it is not that of `NAMES`."""
    if name in MARKERS:
        marker, shade = MARKERS[name]
        return Line(
            label or NAMES[name], [points], GREYS[shade], 1.1, DASHES.get(name, "-"), marker=marker, band=band,
            ringed=ringed,
        )  # fmt: skip
    colour, width = (GREEN, 2.6) if name == "picknet" else (INK, 1.6)
    return Line(label or NAMES[name], [points], colour, width, band=band, ringed=ringed)
