"""Charts with matplotlib: lines over axes, labelled at their ends, and the histograms of picks.

matplotlib is an optional extra and takes half a second to import, so it is imported when a chart is drawn. Files are
deterministic: the same data gives the same bytes.
"""

import contextlib
import importlib.util
import io
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from picknet.errors import PicknetError
from picknet.files import written_whole

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INK, GREY, LIGHT_GREY, GRID = "#16191d", "#6b7280", "#a3aab5", "#e7eaee"
GREEN, DARK_GREEN = "#19b75b", "#0c8a41"
COLOURS = ("#2563eb", "#dc2626", "#0891b2", "#d97706", "#8b5cf6", "#db2777", "#65a30d", "#7c5b3b")
"""Distinct from each other, from green and from grey."""

WIDTH = 8.0
"""Inches; at 200 dots per inch, twice the 800 pixels that a README gives a picture."""
DPI = 200
METADATA: dict[str, dict[str, None] | None] = {
    ".png": {"Software": None}, ".svg": {"Date": None}, ".jpg": None, ".jpeg": None, ".webp": None,
}  # fmt: skip
"""The formats by suffix. Neither a date nor a version is written: equal charts are equal files."""
TEXT_SIZE = 9.0
MARGIN = 0.2
LEFT = 0.75
"""Inches from the left edge to the y axis."""
LABEL_PITCH = 0.16
"""Inches between the labels of two lines, at least."""
MARKER_SIZE = 4.5
"""Points."""
LOG_TICKS = (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000)

STYLE: dict[str, Any] = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": TEXT_SIZE,
    "axes.edgecolor": LIGHT_GREY,
    "axes.labelcolor": GREY,
    "axes.unicode_minus": True,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "svg.hashsalt": "picknet",
    "svg.fonttype": "none",  # text stays text: smaller files that can be searched
    "text.parse_math": False,  # a run may be called $x$
}

Point = tuple[float, float]


class BadChart(PicknetError):
    """A chart that cannot be drawn or written as asked."""


class MissingMatplotlib(PicknetError):
    """matplotlib is not installed."""


@dataclass(frozen=True)
class Line:
    """Points of one colour, joined by straight lines."""

    name: str
    pieces: Sequence[Sequence[Point]]
    """Pieces are not joined with each other."""
    colour: str = GREY
    width: float = 1.3
    dashes: str | tuple[int, tuple[int, ...]] = "-"
    """A line style of matplotlib."""
    dots: bool = True
    marker: str = ""
    """A marker of matplotlib for the dots, which is then shown beside the name as well; a circle otherwise."""
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high): a shaded area around the line."""
    ringed: Point | None = None
    """A point to mark with a ring."""

    @property
    def points(self) -> list[Point]:
        return [point for piece in self.pieces for point in piece]


@dataclass(frozen=True)
class Panel:
    """Lines over one pair of axes. The first line is the one that matters: it is drawn on top."""

    title: str
    note: str
    x_name: str
    lines: Sequence[Line]
    levels: Sequence[tuple[str, float]] = ()
    """(name, y): values to compare with, drawn across as dashed lines."""
    stretches: Sequence[tuple[str, float, float]] = ()
    """(name, from x, to x): named parts of the x axis, separated by vertical lines."""
    padding: float = 0.0
    """Space above and below the data, in units of y, so that the axis does not magnify noise."""
    symmetric: bool = False
    """The y axis is centred on 0 and extends at least twice the padding to each side."""
    from_zero: bool = False
    """The y axis starts at 0."""
    logarithmic: bool = False
    """The x axis is logarithmic."""
    height: float = 3.0
    """Inches, without title and note."""


def require_matplotlib() -> None:
    """Raise `MissingMatplotlib` if it is not installed: call this before minutes of work that end in a chart."""
    if importlib.util.find_spec("matplotlib") is None:
        raise MissingMatplotlib('charts need matplotlib, which is not installed; pip install "picknet[charts]"')


def save(figure: "Figure", path: str | Path) -> None:
    """Write a chart in the format its suffix names; `path` is replaced as a whole or not at all."""
    suffix = Path(path).suffix.lower()
    if suffix not in METADATA:
        raise BadChart(f"{path}: a chart ends in {', '.join(METADATA)}")
    content = io.BytesIO()
    with _style():
        figure.savefig(content, format=suffix[1:], dpi=DPI, metadata=METADATA[suffix])
    with written_whole(path) as temporary:
        temporary.write_bytes(content.getvalue())


def line_chart(panels: Sequence[Panel]) -> "Figure":
    """The panels, one below the other."""
    if not any(line.points for panel in panels for line in panel.lines):
        raise BadChart("a chart needs at least one point")
    heights = [_header(panel) + panel.height + 0.8 for panel in panels]
    with _style():
        figure = _figure(WIDTH, sum(heights) + 2 * MARGIN - 0.35)
        top = figure.get_figheight() - MARGIN
        for panel, height in zip(panels, heights, strict=True):
            _draw_panel(figure, panel, top)
            top -= height
    return figure


@dataclass(frozen=True)
class Dots:
    """A value for each row of a dot chart, with its interval."""

    name: str
    values: Sequence[tuple[float, float, float]]
    """(value, low, high)."""
    colour: str
    marker: str = "o"


def dot_chart(title: str, note: str, x_name: str, rows: Sequence[str], dots: Sequence[Dots]) -> "Figure":
    """Rows with their names at the left; in each a dot of every kind, one above the other, with its interval."""
    if not rows:
        raise BadChart("a chart needs at least one row")
    left, height, header = 1.75, 0.42 * len(rows), 0.85
    with _style():
        figure = _figure(WIDTH, height + header + 0.6 + 2 * MARGIN)
        top = figure.get_figheight() - MARGIN
        _title(figure, title, note, left=MARGIN, top=top)
        axes = _axes(figure, left, MARGIN + 0.5, WIDTH - left - MARGIN, height)
        axes.grid(axis="x", color=GRID, linewidth=0.8)
        pitch = 0.7 / max(len(dots) - 1, 1)
        for number, kind in enumerate(dots):
            places = [row + pitch * number - 0.35 for row in range(len(rows))]
            for place, (_, low, high) in zip(places, kind.values, strict=True):
                axes.plot([low, high], [place, place], color=kind.colour, linewidth=1.0, alpha=0.4)
            values = [value for value, _, _ in kind.values]
            axes.plot(values, places, kind.marker, color=kind.colour, markersize=MARKER_SIZE, label=kind.name)
        axes.set_yticks(range(len(rows)), rows, color=INK)
        axes.set_ylim(len(rows) - 0.5, -0.5)
        axes.set_xlabel(x_name)
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=len(dots), frameon=False, handletextpad=0.2)
    return figure


def pick_histograms(
    counts: Sequence[int], positions: Sequence[int], *, num_frames: int, name: str = "Number of picks"
) -> "Figure":
    """The paper's two figures: how many frames are picked from a clip, and where in the clip they are.

    counts: picks of each clip. positions: of all picks, from 0 to num_frames − 1. name: the title of the first.
    """
    if not len(counts) or not len(positions):
        raise BadChart("the histograms of picks need at least one clip with a pick")
    by_count = np.bincount(np.asarray(counts), minlength=min(num_frames, 10) + 1)[1:] / len(counts)
    where = np.asarray(positions).clip(0, num_frames - 1)
    by_position = np.bincount(where, minlength=num_frames) / len(where)
    mean = f"{np.mean(counts):.1f} picks per clip on average"
    parts = [
        (name, f"share of {len(counts):,} clips · {mean}", "picks in a clip", by_count, 1),
        ("Position of the picks", f"share of {len(where):,} picks", f"frame, of {num_frames} sampled", by_position, 0),
    ]
    with _style():
        height = 2.9
        figure = _figure(WIDTH, height)
        for number, (title, note, x_name, shares, first) in enumerate(parts):
            left = 0.6 + number * WIDTH / 2
            axes = _axes(figure, left, 0.55, WIDTH / 2 - 0.8, height - 1.25)
            _title(figure, title, note, left=left - 0.4, top=height - 0.2)
            axes.bar(np.arange(first, first + len(shares)), 100 * shares, width=0.8, color=GREEN)
            axes.set_xlabel(x_name)
            axes.set_xlim(first - 0.7, first + len(shares) - 0.3)
            # One bar of 100 % and thirty bars of 3 % are both legible, and neither fills the panel by itself.
            axes.set_ylim(0, max(10.0, 115 * shares.max()))
            axes.yaxis.set_major_formatter(lambda y, _: f"{y:g} %")
            _whole_ticks(axes)
    return figure


# --- Parts of a figure; lengths in inches ---


@contextlib.contextmanager
def _style() -> Iterator[None]:
    require_matplotlib()
    from matplotlib import rc_context

    with rc_context(cast(Any, STYLE)), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph", UserWarning)  # a letter the font lacks is drawn as a box
        yield


def _figure(width: float, height: float) -> "Figure":
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def _axes(figure: "Figure", left: float, bottom: float, width: float, height: float) -> "Axes":
    size = figure.get_size_inches()
    axes = figure.add_axes((left / size[0], bottom / size[1], width / size[0], height / size[1]))
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="y", color=GRID, linewidth=0.8)
    axes.set_axisbelow(True)
    axes.tick_params(length=0, pad=5)
    return axes


def _header(panel: Panel) -> float:
    """The height of title, note and names of stretches."""
    return 0.55 + (0.4 if panel.stretches else 0.0)


def _title(figure: "Figure", title: str, note: str, *, left: float, top: float) -> None:
    width, height = figure.get_size_inches()
    figure.text(left / width, top / height, title, color=INK, fontsize=12.5, va="top")
    figure.text(left / width, (top - 0.25) / height, note, color=GREY, fontsize=8.5, va="top")


def _whole_ticks(axes: "Axes") -> None:
    from matplotlib.ticker import MaxNLocator

    axes.xaxis.set_major_locator(MaxNLocator(nbins=10, integer=True, steps=[1, 2, 5, 10]))


def _draw_panel(figure: "Figure", panel: Panel, top: float) -> None:
    from matplotlib.ticker import MaxNLocator

    lines = [line for line in panel.lines if line.points]
    names = [*(line.name for line in lines), *(name for name, _ in panel.levels)]
    right = 0.35 + max((_text_width(figure, name) for name in names), default=0.0)
    axes = _axes(figure, LEFT, top - _header(panel) - panel.height, WIDTH - LEFT - right - MARGIN, panel.height)
    _title(figure, panel.title, panel.note, left=MARGIN, top=top)
    axes.set_xlabel(panel.x_name)

    ys = [y for line in lines for _, y in line.points] + [y for line in lines for _, *ends in line.band for y in ends]
    axes.set_ylim(*_y_limits([*ys, *(y for _, y in panel.levels)], panel))
    axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    xs = [x for line in lines for x, _ in line.points] + [x for _, *ends in panel.stretches for x in ends]
    if panel.logarithmic:
        axes.set_xscale("log")
        axes.set_xlim(min(xs) / 1.1, max(xs) * 1.1)
        axes.set_xticks(ticks := [x for x in LOG_TICKS if min(xs) / 1.1 <= x <= max(xs) * 1.1], map(str, ticks))
        axes.set_xticks([], minor=True)
    else:
        room = 0.03 * ((max(xs) - min(xs)) or 1.0)
        axes.set_xlim(min(xs) - room, max(xs) + room)
        _whole_ticks(axes)
    _draw_stretches(axes, panel)

    ends = [(name, (max(xs), y), GREY, "") for name, y in panel.levels]
    for _, y in panel.levels:
        axes.axhline(y, color=GREY, linewidth=1.0, linestyle=(0, (4, 3)), zorder=1.5)
    for order, line in enumerate(reversed(lines)):
        zorder = 2 + order / 100
        if line.band:
            x, low, high = np.array(sorted(line.band)).T
            axes.fill_between(x, low, high, color=line.colour, alpha=0.14, linewidth=0, zorder=1.2)
        for piece in line.pieces:
            x, y = np.array(piece).T
            marker = (line.marker or "o") if line.dots or len(piece) == 1 else ""
            axes.plot(
                x, y, color=line.colour, linewidth=line.width, linestyle=line.dashes, marker=marker,
                markersize=MARKER_SIZE if line.marker else 1.6 + 1.4 * line.width, markeredgewidth=0, zorder=zorder,
            )  # fmt: skip
        if line.ringed:
            axes.plot(
                *np.array([line.ringed]).T, color=line.colour, marker="o", markersize=9, markeredgewidth=1.8,
                markerfacecolor="white", zorder=zorder + 0.005,
            )  # fmt: skip
        colour = DARK_GREEN if line.colour == GREEN else line.colour
        ends.append((line.name, line.points[-1], colour, line.marker))
    _label_ends(axes, ends, height=panel.height)


def _y_limits(ys: Sequence[float], panel: Panel) -> Point:
    low, high = min(ys), max(ys)
    if panel.symmetric:
        reach = max(2 * panel.padding, max(-low, high) + panel.padding / 2) or 1.0
        return -reach, reach
    space = max(panel.padding, 0.06 * (high - low)) or 0.5
    return (0.0 if panel.from_zero else low - space), high + space


def _draw_stretches(axes: "Axes", panel: Panel) -> None:
    last = max((end for _, _, end in panel.stretches), default=0.0)
    for number, (name, start, end) in enumerate(panel.stretches):
        if end < last:
            axes.axvline(end, color=LIGHT_GREY, linewidth=0.8, zorder=1)
        # The names of neighbours are on different rows, so that those of short stretches do not overlap.
        axes.annotate(
            name, ((start + end) / 2, 1), xycoords=("data", "axes fraction"), xytext=(0, 4 + 13 * (number % 2)),
            textcoords="offset points", color=GREY, fontsize=8.5, ha="center", va="bottom",
        )  # fmt: skip


def _label_ends(axes: "Axes", ends: Sequence[tuple[str, Point, str, str]], *, height: float) -> None:
    """The name of each line right of the axes, at the height of its last point or as near as other names permit.

    A thin line leads from a name to its last point, or the line's own marker stands before it.
    """
    low, high = axes.get_ylim()
    inches = [(end[1] - low) / (high - low) * height for _, end, *_ in ends]
    order = sorted(range(len(ends)), key=lambda number: inches[number])
    placed = spread([inches[number] for number in order], pitch=LABEL_PITCH, low=0.0, high=height)
    for number, place in zip(order, placed, strict=True):
        name, end, colour, marker = ends[number]
        if marker:
            axes.plot(
                1.02, place / height, transform=axes.transAxes, color=colour, marker=marker, markersize=MARKER_SIZE,
                markeredgewidth=0, clip_on=False,
            )  # fmt: skip
            axes.text(1.035, place / height, name, transform=axes.transAxes, color=GREY, va="center")
            continue
        leader = {"arrowstyle": "-", "color": colour, "linewidth": 0.6, "alpha": 0.5, "shrinkA": 1, "shrinkB": 3}
        axes.annotate(
            name, end, xytext=(1.035, place / height), textcoords="axes fraction", color=colour, fontsize=TEXT_SIZE,
            va="center", arrowprops=leader | {"relpos": (0, 0.5)}, annotation_clip=False,
        )  # fmt: skip


def spread(places: Sequence[float], *, pitch: float, low: float, high: float) -> list[float]:
    """Ascending places, moved apart to be at least `pitch` from each other and, if they fit, within low … high."""
    steps = pitch * np.arange(len(places))
    # Half way between pushing each one up, away from those below, and pushing each one down, away from those above.
    up = np.maximum.accumulate(places - steps) + steps
    down = np.minimum.accumulate((places - steps)[::-1])[::-1] + steps
    placed = np.maximum((up + down) / 2, low + steps)
    return [float(place) for place in np.minimum(placed, high - steps[::-1])]


def _text_width(figure: "Figure", text: str) -> float:
    from matplotlib.font_manager import FontProperties

    renderer = figure.canvas.get_renderer()  # type: ignore[attr-defined]
    width, _, _ = renderer.get_text_width_height_descent(text, FontProperties(size=TEXT_SIZE), ismath=False)
    return float(width) / figure.dpi
