"""Line charts, as a picture or as SVG.

A chart is a list of marks (lines, areas, dots, words) in pixels; `Chart.image` and `Chart.svg` put the same marks on
paper. A line is named at its right end, in its colour, so there is no legend to look things up in.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from xml.sax.saxutils import escape

from PIL import Image, ImageDraw

from picknet.show.page import DARK_GREEN, FAINT, GREEN, GREY, INK, MARGIN, PAPER, WIDTH, BadFigure, printable, typeface

LABEL_SIZE = 24
LABEL_PITCH = 30
"""Pixels from one line's name to the next, at least."""
STRETCH_ROWS = 3
"""Rows for the names of the parts of an x axis."""
SMOOTHING = 3
"""Lines are drawn so many times as large and shrunk, since Pillow's own have stairs."""

Point = tuple[float, float]


@dataclass(frozen=True)
class Line:
    """Points of one colour, joined; `pieces` are not joined with each other."""

    name: str
    pieces: Sequence[Sequence[Point]]
    colour: str
    width: int = 4
    dots: bool = True
    band: Sequence[tuple[float, float, float]] = ()
    """(x, low, high): a shaded area around the line."""
    ringed: Point | None = None
    """A point that is marked."""

    @property
    def points(self) -> list[Point]:
        return [point for piece in self.pieces for point in piece]


@dataclass(frozen=True)
class Panel:
    """Lines over one pair of axes."""

    title: str
    note: str
    x_name: str
    lines: Sequence[Line]
    levels: Sequence[tuple[str, float]] = ()
    """(name, y): heights to compare with, drawn across in grey."""
    stretches: Sequence[tuple[str, float, float]] = ()
    """(name, from x, to x): parts of the x axis, named above and parted by upright lines."""
    height: int = 640


@dataclass
class Chart:
    """Marks on a page of so many pixels."""

    width: int
    height: int
    marks: list["_Mark"] = field(default_factory=list)

    def image(self) -> Image.Image:
        large = Image.new("RGB", (self.width * SMOOTHING, self.height * SMOOTHING), PAPER)
        draw = ImageDraw.Draw(large, "RGBA")
        words = []
        for mark in self.marks:
            if isinstance(mark, _Words):
                words.append(mark)
            else:
                mark.draw(draw)
        image = large.resize((self.width, self.height), Image.Resampling.BOX)
        for mark in words:  # letters are smooth as they are
            mark.draw(ImageDraw.Draw(image))
        return image

    def svg(self) -> str:
        size = f'viewBox="0 0 {self.width} {self.height}"'
        head = f'<svg xmlns="http://www.w3.org/2000/svg" {size} font-family="sans-serif">'
        paper = f'<rect width="{self.width}" height="{self.height}" fill="{PAPER}"/>'
        return "\n".join([head, paper, *(mark.svg() for mark in self.marks), "</svg>"]) + "\n"


def line_chart(panels: Sequence[Panel]) -> Chart:
    """The panels, one below the other."""
    if not any(line.points for panel in panels for line in panel.lines):
        raise BadFigure("a chart needs at least one point")
    chart = Chart(WIDTH, 2 * MARGIN + sum(panel.height for panel in panels) + MARGIN * (len(panels) - 1))
    top = MARGIN
    for panel in panels:
        _draw_panel(chart.marks, panel, top)
        top += panel.height + MARGIN
    return chart


def ticks(low: float, high: float, *, most: int = 7) -> list[float]:
    """Round numbers at even distances, at most `most` between the first at or below `low` and the last at or above."""
    if high - low < 1e-6 * max(1.0, abs(high)):  # a level line stands in the middle
        low, high = low - 0.5, high + 0.5
    span = high - low
    power = 10.0 ** math.floor(math.log10(span / most))
    step = next(step * power for step in (1, 2, 5, 10) if span / (step * power) <= most)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [number * step for number in range(first, max(last, first + 1) + 1)]


# --- A panel ---


def _draw_panel(marks: list["_Mark"], panel: Panel, top: float) -> None:
    lines = [line for line in panel.lines if line.points]
    names = [*(line.name for line in lines), *(name for name, _ in panel.levels)]
    room = max((typeface(LABEL_SIZE).getlength(printable(name)) for name in names), default=0)
    left, right = MARGIN + 70, WIDTH - MARGIN - room - 44
    upper, lower = top + 110 + (STRETCH_ROWS * 26 if panel.stretches else 0), top + panel.height - 80
    xs = [x for line in lines for x, _ in line.points] + [x for _, *ends in panel.stretches for x in ends]
    ys = [y for line in lines for _, y in line.points] + [y for line in lines for _, *ends in line.band for y in ends]
    x_ticks = ticks(min(xs), max(xs), most=8)
    y_ticks = ticks(min(ys + [y for _, y in panel.levels]), max(ys + [y for _, y in panel.levels]))
    x_span, y_span = (min(xs), max(max(xs), min(xs) + 1e-9)), (y_ticks[0], y_ticks[-1])

    def at(x: float, y: float) -> Point:
        return (
            left + (right - left) * (x - x_span[0]) / (x_span[1] - x_span[0]),
            lower - (lower - upper) * (y - y_span[0]) / (y_span[1] - y_span[0]),
        )

    marks.append(_Words((MARGIN, top), panel.title, INK, 36, "lt"))
    marks.append(_Words((MARGIN, top + 52), panel.note, GREY, 22, "lt"))
    marks.append(_Words(((left + right) / 2, top + panel.height), panel.x_name, GREY, 22, "mb"))
    for y in y_ticks:
        _, height = at(x_span[0], y)
        marks.append(_Path(((left, height), (right, height)), GREY if y == 0 else FAINT, 2))
        marks.append(_Words((left - 14, height), f"{y:g}".replace("-", "−"), GREY, 22, "rm"))
    for x in x_ticks:
        if x_span[0] <= x <= x_span[1]:
            marks.append(_Words((at(x, 0)[0], lower + 12), f"{x:g}", GREY, 22, "mt"))
    row = 0
    for name, start, end in panel.stretches:
        (first, _), (last, _) = at(start, 0), at(end, 0)
        if end < x_span[1]:
            marks.append(_Path(((last, upper - 10), (last, lower)), FAINT, 3))
        # The names of short stretches go above each other.
        row = 0 if typeface(22).getlength(name) < last - first else row % (STRETCH_ROWS - 1) + 1
        marks.append(_Words(((first + last) / 2, upper - 12 - 26 * row), name, GREY, 22, "mb"))
    ends: list[tuple[str, Point, str]] = []
    for name, y in panel.levels:
        marks.append(_Path((at(x_span[0], y), at(x_span[1], y)), GREY, 3, dashed=True))
        ends.append((name, at(x_span[1], y), GREY))
    for line in lines:
        if line.band:
            upwards = [at(x, high) for x, _, high in line.band]
            marks.append(_Area((*upwards, *(at(x, low) for x, low, _ in reversed(line.band))), line.colour))
    # The first line is the one that matters: it is drawn over the others, and named first.
    for line in reversed(lines):
        for piece in line.pieces:
            marks.append(_Path(tuple(at(*point) for point in piece), line.colour, line.width))
            if line.dots or len(piece) == 1:
                marks.extend(_Dot(at(*point), line.colour, line.width + 2) for point in piece)
        if line.ringed:
            marks.append(_Dot(at(*line.ringed), line.colour, line.width + 10))
            marks.append(_Dot(at(*line.ringed), PAPER, line.width + 5))
            marks.append(_Dot(at(*line.ringed), line.colour, line.width))
    ends += [(line.name, at(*line.points[-1]), line.colour) for line in lines]
    _name_ends(marks, ends, x=right + 30, low=upper, high=lower)


def _name_ends(marks: list["_Mark"], ends: list[tuple[str, Point, str]], *, x: float, low: float, high: float) -> None:
    """Each name beside the end of its line, moved up or down as far as the names of others ask for."""
    ends = sorted(ends, key=lambda end: end[1][1])
    for (name, end, colour), y in zip(ends, _spread([end[1] for _, end, _ in ends], low, high), strict=True):
        marks.append(_Path((end, (x - 14, y), (x - 4, y)), colour, 1))
        marks.append(_Words((x, y), name, DARK_GREEN if colour == GREEN else colour, LABEL_SIZE, "lm"))


def _spread(heights: Sequence[float], low: float, high: float) -> list[float]:
    """Ascending heights, moved as little as keeps them LABEL_PITCH apart and, where they can be, within low … high."""
    # A group of names that would overlap stands around the mean of where its names want to be.
    groups: list[list[float]] = []
    for height in heights:
        groups.append([height])
        while len(groups) > 1 and _first(groups[-1]) < _first(groups[-2]) + LABEL_PITCH * len(groups[-2]):
            last = groups.pop()
            groups[-1] += last
    placed = [_first(group) + LABEL_PITCH * number for group in groups for number in range(len(group))]
    if not placed:
        return placed
    for number in range(len(placed)):  # from above and then from below, none beyond the ends
        placed[number] = max(placed[number], low + LABEL_PITCH * number)
    for number in range(len(placed)):
        placed[-1 - number] = min(placed[-1 - number], high - LABEL_PITCH * number)
    return placed


def _first(group: Sequence[float]) -> float:
    return sum(group) / len(group) - LABEL_PITCH * (len(group) - 1) / 2


# --- Marks ---


@dataclass(frozen=True)
class _Path:
    points: tuple[Point, ...]
    colour: str
    width: int
    dashed: bool = False

    def draw(self, draw: ImageDraw.ImageDraw) -> None:
        for piece in _dashes(self.points) if self.dashed else [self.points]:
            draw.line(_enlarged(piece), fill=self.colour, width=self.width * SMOOTHING, joint="curve")

    def svg(self) -> str:
        style = ' stroke-dasharray="12 8"' if self.dashed else ""
        return (
            f'<polyline points="{_coordinates(self.points)}" fill="none" stroke="{self.colour}" '
            f'stroke-width="{self.width}" stroke-linejoin="round"{style}/>'
        )


@dataclass(frozen=True)
class _Area:
    points: tuple[Point, ...]
    colour: str

    def draw(self, draw: ImageDraw.ImageDraw) -> None:
        draw.polygon(_enlarged(self.points), fill=f"{self.colour}28")

    def svg(self) -> str:
        return f'<polygon points="{_coordinates(self.points)}" fill="{self.colour}" fill-opacity="0.157"/>'


@dataclass(frozen=True)
class _Dot:
    centre: Point
    colour: str
    radius: float

    def draw(self, draw: ImageDraw.ImageDraw) -> None:
        x, y = (value * SMOOTHING for value in self.centre)
        radius = self.radius * SMOOTHING
        draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=self.colour)

    def svg(self) -> str:
        return f'<circle cx="{self.centre[0]:.1f}" cy="{self.centre[1]:.1f}" r="{self.radius}" fill="{self.colour}"/>'


@dataclass(frozen=True)
class _Words:
    place: Point
    text: str
    colour: str
    size: int
    anchor: str
    """Where the place is: l, m, r of the words' width, and t, m, b of their height."""

    def draw(self, draw: ImageDraw.ImageDraw) -> None:
        anchor = self.anchor.replace("t", "a").replace("b", "d")  # the ascender, so that all stand on one line
        draw.text(self.place, printable(self.text), fill=self.colour, font=typeface(self.size), anchor=anchor)

    def svg(self) -> str:
        across = {"l": "start", "m": "middle", "r": "end"}[self.anchor[0]]
        along = {"t": "text-before-edge", "m": "central", "b": "text-after-edge"}[self.anchor[1]]
        return (
            f'<text x="{self.place[0]:.1f}" y="{self.place[1]:.1f}" fill="{self.colour}" font-size="{self.size}" '
            f'text-anchor="{across}" dominant-baseline="{along}">{escape(self.text)}</text>'
        )


_Mark = _Path | _Area | _Dot | _Words


def _enlarged(points: Sequence[Point]) -> list[Point]:
    return [(x * SMOOTHING, y * SMOOTHING) for x, y in points]


def _coordinates(points: Sequence[Point]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _dashes(points: Sequence[Point], *, on: float = 12, off: float = 8) -> list[list[Point]]:
    """A straight line from the first point to the last, as dashes."""
    (x0, y0), (x1, y1) = points[0], points[-1]
    length = math.hypot(x1 - x0, y1 - y0)
    starts = [number * (on + off) / length for number in range(math.ceil(length / (on + off)))] if length else []

    def along(share: float) -> Point:
        return x0 + (x1 - x0) * min(share, 1), y0 + (y1 - y0) * min(share, 1)

    return [[along(start), along(start + on / length)] for start in starts]


# --- Letters ---


