"""Charts: points where they belong, labels that do not overlap, equal data in equal files."""

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from matplotlib.figure import Figure
from PIL import Image

from picknet.study.charts import GREEN, BadChart, Line, Panel, line_chart, pick_histograms, save, spread


def panel(*lines: Line, **more: Any) -> Panel:
    return Panel("Title", "a note", "picks", lines, **more)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for part in (figure, *figure.axes) for text in part.texts]


def test_pieces_of_a_line_are_not_joined() -> None:
    figure = line_chart([panel(Line("a", [[(0, 0), (1, 0)], [(3, 0), (4, 1)]], GREEN))])
    assert [line.get_xdata().tolist() for line in figure.axes[0].lines] == [[0, 1], [3, 4]]


def test_title_note_axis_lines_levels_and_stretches_are_named() -> None:
    line = Line("rise & fall", [[(1, 1), (2, 3)]], GREEN, band=[(1, 0, 2), (2, 2, 4)], ringed=(2, 3))
    figure = line_chart([panel(line, levels=[("all", 2.5)], stretches=[("stage", 1, 2)])])
    assert {"Title", "a note", "rise & fall", "all", "stage"} <= set(texts(figure))
    assert figure.axes[0].get_xlabel() == "picks"
    assert len(figure.axes[0].collections) == 1  # the band


def test_labels_do_not_overlap_and_stay_inside_the_panel() -> None:
    lines = [Line(f"line {number}", [[(0, 0), (1, 10 + number / 1000)]], GREEN) for number in range(8)]
    axes = line_chart([panel(*lines, levels=[("bottom", 0.0)])]).axes[0]
    height = axes.get_position().height * axes.figure.get_figheight()
    places = {text.get_text(): text.xyann[1] * height for text in axes.texts}
    heights = [places[f"line {number}"] for number in range(8)]
    assert all(later - earlier >= 0.1599 for earlier, later in pairwise(heights))
    assert 0 <= places["bottom"] < heights[0]
    assert heights[-1] <= height + 1e-9


@pytest.mark.parametrize(("places", "expected"), [
    ([100, 200], [100, 200]),
    ([100, 100], [85, 115]),
    ([100, 110, 300], [90, 120, 300]),
    ([0, 0], [0, 30]),  # moved in at the lower end
    ([400, 400], [370, 400]),
    ([], []),
])  # fmt: skip
def test_labels_move_as_little_as_needed(places: Sequence[float], expected: Sequence[float]) -> None:
    assert spread(places, pitch=30, low=0, high=400) == pytest.approx(expected)


def test_a_symmetric_axis_is_centred_on_zero_and_at_least_twice_the_padding() -> None:
    figure = line_chart([panel(Line("a", [[(0, 1), (1, 2)]]), padding=5.0, symmetric=True)])
    assert figure.axes[0].get_ylim() == (-10, 10)
    figure = line_chart([panel(Line("a", [[(0, 1), (1, 2)]], band=[(0, -17, 4)]), padding=5.0, symmetric=True)])
    assert figure.axes[0].get_ylim() == (-19.5, 19.5)


def test_an_axis_has_its_padding_or_starts_at_zero() -> None:
    assert line_chart([panel(Line("a", [[(0, 90), (1, 91)]]), padding=5.0)]).axes[0].get_ylim() == (85, 96)
    assert line_chart([panel(Line("a", [[(0, 90), (1, 91)]]), from_zero=True)]).axes[0].get_ylim()[0] == 0


def test_histograms_are_shares_in_percent() -> None:
    figure = pick_histograms([1, 1, 1, 2], [0, 0, 1, 29, 0], num_frames=30)
    counts, positions = ([bar.get_height() for bar in axes.patches] for axes in figure.axes)
    assert counts[:3] == [75.0, 25.0, 0.0]
    assert len(counts) == 10
    assert (positions[0], positions[1], positions[29]) == pytest.approx((60.0, 20.0, 20.0))
    assert {"share of 4 clips · 1.2 picks per clip on average", "share of 5 picks"} <= set(texts(figure))


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_equal_data_gives_equal_files(tmp_path: Path, suffix: str) -> None:
    line = Line("a", [[(1, 1), (2, 3)]], GREEN, band=[(1, 0, 2), (2, 2, 4)])
    for name in ("one", "two"):
        save(line_chart([panel(line)]), tmp_path / f"{name}{suffix}")
    content = (tmp_path / f"one{suffix}").read_bytes()
    assert content == (tmp_path / f"two{suffix}").read_bytes()
    assert b"Matplotlib v" not in content or suffix == ".svg"
    assert b"<dc:date>" not in content


def test_a_chart_is_1600_pixels_wide_and_its_svg_has_text(tmp_path: Path) -> None:
    figure = line_chart([panel(Line("一 & $x$", [[(3, 7)]], GREEN))])
    save(figure, tmp_path / "chart.png")
    save(figure, tmp_path / "chart.svg")
    with Image.open(tmp_path / "chart.png") as picture:
        assert picture.width == 1600
        assert np.asarray(picture.convert("RGB"))[0, 0].tolist() == [255, 255, 255]
    root = ElementTree.fromstring((tmp_path / "chart.svg").read_text(encoding="utf-8"))
    assert "一 & $x$" in {"".join(element.itertext()) for element in root.iter("{http://www.w3.org/2000/svg}text")}


def test_a_chart_without_a_point_or_with_an_unknown_suffix_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(BadChart, match=r"^a chart needs at least one point$"):
        line_chart([panel(Line("a", [], GREEN))])
    with pytest.raises(BadChart, match=r"^the histograms of picks need at least one clip with a pick$"):
        pick_histograms([], [], num_frames=30)
    with pytest.raises(BadChart, match=r"chart.pdf: a chart ends in .png, .svg, .jpg, .jpeg, .webp$"):
        save(line_chart([panel(Line("a", [[(3, 7)]]))]), tmp_path / "chart.pdf")
    assert list(tmp_path.iterdir()) == []
