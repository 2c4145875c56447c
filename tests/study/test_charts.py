"""Charts: round numbers on the axes, points where they belong, names that do not overlap."""

import re
import xml.etree.ElementTree as ElementTree
from itertools import pairwise

import numpy as np
import pytest
from PIL import ImageColor

from picknet.show.page import GREEN, BadFigure
from picknet.study import charts
from picknet.study.charts import Line, Panel, line_chart, ticks


def panel(*lines: Line, **more: object) -> Panel:
    return Panel("Title", "a note", "picks", lines, **more)  # type: ignore[arg-type]


@pytest.mark.parametrize(("low", "high", "expected"), [
    (0, 10, [0, 2, 4, 6, 8, 10]),
    (63.9, 73.5, [62, 64, 66, 68, 70, 72, 74]),
    (-4.2, 1.1, [-5, -4, -3, -2, -1, 0, 1, 2]),
    (0.31, 0.62, [0.3, 0.35, 0.4, 0.45, 0.5, 0.55, 0.6, 0.65]),
    (5, 5, [4.4, 4.6, 4.8, 5.0, 5.2, 5.4, 5.6]),  # a level line stands in the middle
])  # fmt: skip
def test_ticks_are_round_and_enclose_what_is_shown(low: float, high: float, expected: list[float]) -> None:
    found = ticks(low, high)
    assert found[: len(expected)] == pytest.approx(expected)
    assert found[0] <= low + 1e-9
    assert found[-1] >= high - 1e-9
    assert len(found) <= 9


def test_a_point_stands_at_its_place_between_the_ticks() -> None:
    # Three points on a line from the lowest to the highest tick: the middle one is half way in both directions.
    chart = line_chart([panel(Line("a", [[(0, 0), (5, 5), (10, 10)]], GREEN))])
    dots = [mark for mark in chart.marks if isinstance(mark, charts._Dot)]
    (x0, y0), (x1, y1), (x2, y2) = (dot.centre for dot in dots)
    assert (x1, y1) == pytest.approx(((x0 + x2) / 2, (y0 + y2) / 2))
    assert x0 < x2
    assert y0 > y2  # upwards
    image = np.asarray(chart.image())
    assert tuple(image[round(y1), round(x1)]) == ImageColor.getrgb(GREEN)


def test_pieces_of_a_line_are_not_joined() -> None:
    chart = line_chart([panel(Line("a", [[(0, 0), (1, 0)], [(3, 0), (4, 1)]], GREEN, width=4))])
    paths = [mark for mark in chart.marks if isinstance(mark, charts._Path) and (mark.colour, mark.width) == (GREEN, 4)]
    assert [len(path.points) for path in paths] == [2, 2]


def test_names_stand_apart_in_the_order_of_their_lines_and_inside_the_panel() -> None:
    lines = [Line(f"line {number}", [[(0, 0), (1, 10 + number / 1000)]], GREEN) for number in range(8)]
    chart = line_chart([panel(*lines, levels=[("bottom", 0.0)])])
    named = {mark.text: mark.place for mark in chart.marks if isinstance(mark, charts._Words)}
    heights = [named[f"line {number}"][1] for number in range(7, -1, -1)]
    assert all(later - earlier >= 29.99 for earlier, later in pairwise(heights))
    assert named["bottom"][1] > heights[-1]
    assert min(heights) >= 40 + 110
    assert {x for name, (x, _) in named.items() if name.startswith("line")} == {named["bottom"][0]}


@pytest.mark.parametrize(("heights", "expected"), [
    ([100, 200], [100, 200]),
    ([100, 100], [85, 115]),
    ([100, 110, 300], [90, 120, 300]),
    ([0, 0], [0, 30]),  # pushed in at the upper end
    ([400, 400], [370, 400]),
])  # fmt: skip
def test_names_move_as_little_as_needed(heights: list[float], expected: list[float]) -> None:
    assert charts._spread(heights, 0, 400) == expected


def test_the_svg_is_xml_with_the_same_words_and_points() -> None:
    line = Line("rise & fall", [[(1, 1), (2, 3)]], GREEN, band=[(1, 0, 2), (2, 2, 4)], ringed=(2, 3))
    chart = line_chart([panel(line, levels=[("all", 2.5)], stretches=[("stage", 1, 2)])])
    root = ElementTree.fromstring(chart.svg())
    texts = {element.text for element in root.iter("{http://www.w3.org/2000/svg}text")}
    assert {"Title", "a note", "picks", "rise & fall", "all", "stage"} <= texts
    assert root.get("viewBox") == f"0 0 1600 {chart.height}"
    circles = list(root.iter("{http://www.w3.org/2000/svg}circle"))
    assert len(circles) == 2 + 3  # the points, and a ring of three
    assert not re.search(r"\"-?(nan|inf)", chart.svg())


def test_one_point_is_a_chart_and_none_is_an_error() -> None:
    assert line_chart([panel(Line("a", [[(3, 7)]], GREEN))]).image().width == 1600
    with pytest.raises(BadFigure, match=r"^a chart needs at least one point$"):
        line_chart([panel(Line("a", [], GREEN))])
