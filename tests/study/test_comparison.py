"""Pickers compared: differences and intervals by hand, one pool of clips, tables that can be read back."""

import csv
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from PIL import Image

from picknet import metrics
from picknet.captioner import Captioner, load
from picknet.data import BadData
from picknet.data.split import Clip, Split
from picknet.metrics import Scores
from picknet.study import bootstrap, comparison, judging
from picknet.study.bootstrap import Interval
from picknet.study.comparison import Comparison, Difference, Row, compare, difference
from picknet.study.comparison_page import chart, room_chart, tables, write
from picknet.study.judging import JudgedClip
from picknet.text import tokenise


def row(picker: str, picks: list[float], ciders: list[float], **more: Any) -> Row:
    scores = Scores(80.0, 70.0, 60.0, 46.0, 69.0, None, float(np.mean(ciders)))
    rest = {"setting": "k=1", "own": False, "spread": None} | more
    return Row(picker=picker, picks=np.array(picks), ciders=np.array(ciders), scores=scores, **rest)


UNIFORM = [row("uniform", [1, 1], [10, 20]), row("uniform", [2, 2], [30, 40])]


def test_a_difference_is_interpolated_between_two_settings() -> None:
    # 1.5 picks on average: uniform has 15 at one pick and 35 at two, so 25 there; 30 is 5 more.
    # A resample of the first clip alone has one pick, 25 against 10: 15 more. The second alone: 35 against 40, 5 less.
    # Of these two the 2.5th percentile is −5 + 0.025 · 20, the 97.5th 15 − 0.025 · 20.
    mixed = row("picknet", [1, 2], [25, 35])
    weights = np.array([[1.0, 0.0], [0.0, 1.0]])
    found = difference(mixed, UNIFORM, weights)
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((5.0, -4.5, 14.5))


def test_clips_are_paired() -> None:
    # Each clip gains 3, so every resample does, however much the clips differ from each other.
    better = row("picknet", [1, 1], [13, 23])
    weights = np.random.default_rng(0).dirichlet([1, 1], size=50)
    found = difference(better, UNIFORM, weights)
    assert found is not None
    assert (found.mean, found.low, found.high) == pytest.approx((3.0, 3.0, 3.0))


def test_outside_the_other_pickers_range_there_is_no_difference() -> None:
    weights = np.full((3, 2), 0.5)
    assert difference(row("all", [30, 30], [50, 50]), UNIFORM, weights) is None
    assert difference(row("picknet", [1, 1], [50, 50]), UNIFORM[1:], weights) is None
    assert difference(row("picknet", [2, 2], [50, 50]), UNIFORM, weights) is not None


def test_settings_with_the_same_mean_picks_count_as_their_average() -> None:
    curve = [row("every", [2, 2], [30, 30]), row("every", [2, 2], [50, 50]), row("every", [3, 3], [60, 60])]
    found = difference(row("picknet", [2, 2], [45, 45]), curve, np.full((1, 2), 0.5))
    assert found is not None
    assert found.mean == pytest.approx(5.0)  # 45 − (30 + 50) / 2


def test_the_room_averages_the_worst_mean_and_best_of_each_clip() -> None:
    captions = {(0,): "a", (1,): "b", (2,): "c"}
    subsets = {1: [(0,), (1,)]} | {size: [(2,), (2,)] for size in range(2, 7)}
    judged = [JudgedClip(name, {}, subsets, captions) for name in ("cat", "dog")]
    ciders = {("cat", "a"): 10.0, ("cat", "b"): 30.0, ("dog", "a"): 100.0, ("dog", "b"): 0.0}
    ciders |= {("cat", "c"): 7.0, ("dog", "c"): 9.0}
    one, two, *_ = comparison._rooms(judged, ciders)
    assert (one.worst, one.mean, one.best) == (5.0, 35.0, 65.0)
    assert (two.size, two.worst, two.mean, two.best) == (2, 8.0, 8.0, 8.0)


def test_draws_are_averaged_and_their_spread_is_kept() -> None:
    references = {"cat": [["a", "cat"]], "dog": [["a", "dog"]]}
    key = ("random", "k=1")
    judged = [
        JudgedClip("cat", {key: [(0,), (1, 2)]}, {}, {(0,): "a cat", (1, 2): "no"}),
        JudgedClip("dog", {key: [(0,), (1,)]}, {}, {(0,): "a dog", (1,): "no"}),
    ]
    ciders = {("cat", "a cat"): 40.0, ("cat", "no"): 20.0, ("dog", "a dog"): 10.0, ("dog", "no"): 0.0}
    (only,) = comparison._rows(judged, {key: False}, references, ciders, with_meteor=False, seed=0)
    assert only.ciders.tolist() == [30.0, 5.0]
    assert only.picks.tolist() == [1.5, 1.0]
    # The draws have 25 and 10: mean 17.5, standard deviation 15 / √2.
    assert only.scores.cider == 17.5
    assert only.spread == pytest.approx(15 / 2**0.5)
    assert only.scores.bleu1 == pytest.approx(50.0, abs=0.1)


# --- On clips ---


@pytest.fixture(scope="module", autouse=True)
def _small() -> Iterator[None]:
    """Few settings, few resamples."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(judging, "RATES", (0.5, 1.0, 2.0))
        patch.setattr(judging, "KS", range(1, 4))
        patch.setattr(bootstrap, "NUM_RESAMPLES", 20)
        yield


@pytest.fixture(scope="module")
def captioner(model_folder: Path) -> Captioner:
    return load(model_folder)


@pytest.fixture(scope="module")
def split(tmp_path_factory: pytest.TempPathFactory) -> Split:
    folder = tmp_path_factory.mktemp("clips")
    said = {
        "cat": ("a cat is sitting", "the cat is eating"),
        "dog": ("a dog is running",),
        "man": ("a man is eating", "a woman"),
    }
    clips = [
        Clip(name, write_clip(folder / f"{name}.mp4", num_frames=9 + number), captions)
        for number, (name, captions) in enumerate(said.items())
    ]
    (folder / "text.mp4").write_text("no video")
    clips.insert(1, Clip("text", folder / "text.mp4", ("a cat",)))
    return Split("folder", "all", tuple(clips), ())


@pytest.fixture(scope="module")
def result(captioner: Captioner, split: Split) -> Comparison:
    return compare([(captioner, split)], num_draws=2, num_subsets=3)


def test_a_row_has_the_metrics_of_its_captions(result: Comparison, split: Split) -> None:
    references = {
        clip.name: [tokenise(caption) for caption in clip.captions] for clip in split.clips if clip.name != "text"
    }
    uniform = next(row for row in result.rows if (row.picker, row.setting) == ("uniform", "k=2"))
    said = {clip.name: tokenise(clip.captions[clip.choices["uniform", "k=2"][0]]) for clip in result.clips}
    assert uniform.scores.cider == pytest.approx(100 * metrics.cider(said, references))
    assert uniform.scores.bleu4 == pytest.approx(100 * metrics.bleu(said, references)[3])
    assert uniform.scores.rouge_l == pytest.approx(100 * metrics.rouge_l(said, references))
    assert uniform.mean_picks == 2.0
    counted = [row for row in result.rows if row.picker == "counted"]
    assert [(row.setting, row.mean_picks) for row in counted] == [("k=1", 1.0), ("k=2", 2.0), ("k=3", 3.0)]
    assert [clip.reason for clip in result.missing] == [f"{split.clips[1].path}: not a known video format"]


def test_one_seed_gives_one_result(captioner: Captioner, split: Split, result: Comparison) -> None:
    again = compare([(captioner, split)], num_draws=2, num_subsets=3)
    assert tables(again) == tables(result)
    assert again.clips == result.clips
    assert compare([(captioner, split)], num_draws=2, num_subsets=3, seed=1).clips != result.clips


def test_the_clips_of_several_models_are_pooled(captioner: Captioner, split: Split, result: Comparison) -> None:
    cat, _, dog, man = split.clips
    parts = [Split("folder", "all", clips, ()) for clips in ((cat,), (dog, man))]
    pooled = compare([(captioner, part) for part in parts], num_draws=2, num_subsets=0)
    assert [clip.name for clip in pooled.clips] == ["cat", "dog", "man"]
    assert (len(pooled.models), pooled.rooms) == (2, ())
    # The same captioner on the same clips: all that does not draw is as in one go, document frequencies included.
    for one, other in zip(result.rows, pooled.rows, strict=True):
        if one.picker not in ("random", "coin", "kmeans", "hecate"):
            assert one.scores == other.scores


def test_a_clip_given_to_two_models_is_an_error(captioner: Captioner, split: Split) -> None:
    with pytest.raises(BadData, match=r"^cat: is given to two models; a clip belongs to one$"):
        compare([(captioner, split), (captioner, split)])


def test_no_readable_clip_is_an_error(captioner: Captioner, split: Split) -> None:
    with pytest.raises(BadData, match=r"^no clip of the all split of folder can be read \(first: .*text.mp4: not a"):
        compare([(captioner, Split("folder", "all", split.clips[1:2], ()))])


def test_all_files_are_written_and_can_be_read_back(result: Comparison, tmp_path: Path) -> None:
    write(result, tmp_path / "out", command="picknet compare --data DATA")
    names = ["clips.csv", "comparison.csv", "comparison.md", "comparison.png", "comparison.svg", "room.png", "room.svg"]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == names
    rows = list(csv.DictReader((tmp_path / "out" / "comparison.csv").open(encoding="utf-8")))
    assert len(rows) == len(result.rows)
    uniform = next(row for row in rows if row["picker"] == "uniform")
    assert (uniform["setting"], uniform["mean_picks"], uniform["meteor"], uniform["cider_spread"]) == (
        "k=1", "1.0000", "", "",
    )  # fmt: skip
    ends = next(row for row in rows if row["picker"] == "ends" and row["setting"] == "k=2")
    assert float(ends["low"]) <= float(ends["difference"]) <= float(ends["high"])
    # The table can be made again from the clips.
    clips = [
        row for row in csv.DictReader((tmp_path / "out" / "clips.csv").open(encoding="utf-8"))
        if (row["picker"], row["setting"]) == ("ends", "k=2")
    ]  # fmt: skip
    assert [len(row["picks"].split()) for row in clips] == [2, 2, 2]
    assert np.mean([float(row["cider"]) for row in clips]) == pytest.approx(float(ends["cider"]), abs=1e-3)
    with Image.open(tmp_path / "out" / "comparison.png") as picture:
        assert (picture.format, picture.width) == ("PNG", 1600)
    text = (tmp_path / "out" / "comparison.md").read_text(encoding="utf-8")
    assert "```console\n$ picknet compare --data DATA\n```" in text
    assert "## How much the choice matters" in text
    assert "- text: " in text


def test_the_table_marks_the_models_own_setting_and_shows_intervals() -> None:
    rows = (
        row("picknet", [2, 2], [50, 60], setting="threshold=0.5", own=True, interval=Interval(50.04, 60.0),
            differences={"uniform": Difference(1.25, -0.5, 3.0), "coin": Difference(-2.0, -4.0, 0.0)}),
        row("random", [2, 2], [40, 50], setting="k=2", spread=1.5),
    )  # fmt: skip
    table = tables(Comparison(rows, (), 0, 10, (), {}, (), ("m",), "msvd", "val", 1, 0)).splitlines()
    assert [cell.strip() for cell in table[4].split("|")[1:6]] == [
        "PickNet *", "threshold=0.5", "2.00", "55.0 (50.0 … 60.0)", "+1.2 (−0.5 … +3.0)",
    ]  # fmt: skip
    assert [cell.strip() for cell in table[5].split("|")[1:6]] == ["random", "k=2", "2.00", "45.0", "–"]
    assert [cell.strip() for cell in table[-1].split("|")[1:5]] == [
        "threshold=0.5 *", "2.00", "+1.2 (−0.5 … +3.0)", "−2.0 (−4.0 … +0.0)",
    ]  # fmt: skip


def test_the_interval_of_a_row_is_the_bootstrap_of_its_cider(result: Comparison) -> None:
    weights = bootstrap.resamples(3, seed=0)
    for row in result.rows:
        assert row.interval == bootstrap.interval(weights @ row.ciders)


def test_the_chart_names_every_picker_once_in_each_panel(result: Comparison) -> None:
    figure = chart(result)
    names = [text.get_text() for axes in figure.axes for text in axes.texts]
    for name in ("random", "k-means", "every n-th", "uniform, ends", "PickNet", "uniform, centres"):
        assert names.count(name) == 2, name
    assert any(name.startswith("all ") for name in names)


def test_picknet_is_green_with_a_band_and_rivals_are_grey(result: Comparison) -> None:
    from matplotlib.colors import to_rgb

    for axes in chart(result).axes:
        assert len(axes.collections) == 1  # PickNet's band
        colours = {text.get_text(): to_rgb(text.get_color()) for text in axes.texts}
        red, green, blue = colours.pop("PickNet")
        assert green > 2 * max(red, blue)
        assert all(max(colour) - min(colour) < 0.1 for colour in colours.values())


def test_axes_do_not_magnify_noise(result: Comparison) -> None:
    scores, differences = chart(result).axes
    low, high = scores.get_ylim()
    values = [row.scores.cider for row in result.rows if row.mean_picks <= 3]
    rounding = 1e-9
    assert low <= min(values) - 5 + rounding
    assert high >= max(values) + 5 - rounding
    low, high = differences.get_ylim()
    assert -low == high >= 10
    intervals = [
        row.differences["uniform"]
        for row in result.rows
        if row.picker == "picknet" and "uniform" in row.differences
    ]
    assert all(low < found.low and found.high < high for found in intervals)


def test_the_chart_of_the_room_shows_best_mean_and_worst(result: Comparison) -> None:
    (axes,) = room_chart(result).axes
    assert {text.get_text() for text in axes.texts} >= {"mean", "best of 3", "worst of 3"}


def test_the_study_needs_neither_pytorch_nor_matplotlib_until_it_draws() -> None:
    import subprocess
    import sys

    modules = "picknet.study.evaluation, picknet.study.comparison_page, picknet.study.report"
    code = f"import sys, json, {modules}; print(json.dumps([n for n in ('torch', 'matplotlib') if n in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == []
