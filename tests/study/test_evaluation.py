import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from clips import write_clip

from picknet.captioner import Caption, Captioner, load
from picknet.config import Config
from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split
from picknet.metrics import Scores, cider
from picknet.picking.picker import Pick
from picknet.picking.plain import AllPicker, CoinPicker, EveryNthPicker, SceneChangePicker, UniformPicker
from picknet.study.bootstrap import Interval
from picknet.study.evaluation import Evaluation, comparison_table, evaluate, examples, picker_name, score_text
from picknet.video.file import UnreadableVideo

CAPTIONS = {
    "vid1": ("a man is riding a horse", (0, 4, 9)),
    "vid2": ("two dogs are running", (0,)),
    "vid3": ("a woman is slicing an onion", (0, 2)),
}


@pytest.fixture(autouse=True)
def _no_meteor(monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR takes seconds to load and has its own tests."""
    monkeypatch.setattr("picknet.metrics.meteor", lambda candidates, references: None)


def caption(text: str, indices: Iterable[int] = (), *, video: str = "cat.mp4") -> Caption:
    picks = tuple(Pick(index, index / 10) for index in indices)
    return Caption(
        text=text, picks=picks, frames_seen=30, video=video, model="m", damage=None, log_probability=-1.0
    )


class Parrot:
    """Stands in for a captioner: its captions are those of `CAPTIONS`."""

    name = "parrot"
    config = Config(beam=3)

    def in_category(self, category: str | None) -> "Parrot":
        return self

    def caption(self, video: Any, **_: Any) -> Caption:
        if isinstance(video, list):
            return caption("")
        if video.stem not in CAPTIONS:
            raise UnreadableVideo(f"{video}: no video stream found (streams: audio)")
        return caption(*CAPTIONS[video.stem], video=str(video))


def split(*names: str, missing: tuple[Missing, ...] = ()) -> Split:
    clips = (Clip(name, Path(f"{name}.mp4"), (CAPTIONS.get(name, ("nothing",))[0], "some words")) for name in names)
    return Split("msvd", "val", tuple(clips), missing)


def parroted(*names: str, missing: tuple[Missing, ...] = ()) -> Evaluation:
    parrot: Any = Parrot()
    return evaluate(parrot, split(*names, missing=missing))


def test_captions_equal_to_a_reference_score_100() -> None:
    scores = parroted("vid1", "vid2", "vid3").scores
    for score in (scores.bleu1, scores.bleu2, scores.bleu3, scores.bleu4, scores.rouge_l):
        assert score == pytest.approx(100, abs=1e-4)


def test_the_interval_of_a_score_is_the_bootstrap_over_clips(monkeypatch: pytest.MonkeyPatch) -> None:
    # Two clips, the second one wrong: resamples of the first alone, of both, and of the second alone.
    weights = np.array([[1.0, 0.0], [0.5, 0.5], [0.0, 1.0]])
    monkeypatch.setattr("picknet.study.evaluation.resamples", lambda num_clips, *, seed: weights)
    clips = [Clip("vid1", Path("vid1.mp4"), ("a man is riding a horse",)), Clip("vid2", Path("vid2.mp4"), ("no",))]
    parrot: Any = Parrot()
    result = evaluate(parrot, Split("msvd", "val", tuple(clips), ()))
    assert result.scores.rouge_l == pytest.approx(50.0)
    # Of 0, 50 and 100 the 2.5th percentile is 0.05 · 50, the 97.5th 100 − 0.05 · 50.
    assert result.intervals["rouge_l"] == pytest.approx((2.5, 97.5))
    assert result.intervals["cider"] == pytest.approx((0.05 * result.scores.cider, 1.95 * result.scores.cider))
    # BLEU-1 of the corpus: 6 of 6 words, 6 of 10 words, 0 of 4 words.
    assert result.intervals["bleu1"] == pytest.approx((3.0, 98.0), abs=1e-4)
    assert "meteor" not in result.intervals
    assert result.to_dict()["intervals"]["rouge_l"] == pytest.approx([2.5, 97.5])


def test_one_clip_has_no_interval() -> None:
    result = parroted("vid1")
    assert result.intervals == {}
    assert result.to_dict()["intervals"]["cider"] is None
    assert result.to_row()["cider_low"] is None


@pytest.mark.parametrize(("value", "ends", "expected"), [
    (91.26, Interval(88.04, 94.5), "91.3 (88.0 … 94.5)"),
    (91.26, None, "91.3"),
    (None, None, "–"),
])  # fmt: skip
def test_a_score_is_printed_with_its_interval(value: float | None, ends: Interval | None, expected: str) -> None:
    assert score_text(value, ends) == expected


def test_picks_are_counted_by_clip_and_placed_among_the_sampled_frames() -> None:
    result = parroted("vid1", "vid2", "vid3")
    assert result.num_videos == 3
    assert result.pick_counts == [3, 1, 2]
    assert result.pick_positions == [0, 4, 9, 0, 0, 2]
    assert result.mean_picks == 2.0


def test_clips_that_do_not_exist_or_cannot_be_read_are_listed_as_missing() -> None:
    result = parroted("vid1", "sound", "vid2", missing=(Missing("vid9", "no video named vid9"),))
    assert list(result.captions) == ["vid1", "vid2"]
    assert result.to_dict()["missing"] == [
        {"clip": "vid9", "reason": "no video named vid9"},
        {"clip": "sound", "reason": "sound.mp4: no video stream found (streams: audio)"},
    ]


def test_a_split_without_a_readable_clip_is_an_error() -> None:
    with pytest.raises(BadData, match=r"^no clip of the val split of msvd can be read \(first: sound.mp4: no video"):
        parroted("sound")


def test_the_dict_of_a_result_has_all_keys_and_is_json() -> None:
    content = json.loads(json.dumps(parroted("vid1", "vid2").to_dict()))
    assert content["meteor"] is None
    promised = {"bleu4", "rouge_l", "meteor", "cider", "mean_picks", "num_videos", "seconds", "missing"}
    labels = {"bleu1", "bleu2", "bleu3", "picker", "k", "change", "beam", "split", "dataset", "model"}
    assert content.keys() == promised | labels | {"n", "probability", "intervals"}
    assert (content["model"], content["dataset"], content["split"]) == ("parrot", "msvd", "val")
    assert (content["picker"], content["k"], content["change"], content["beam"]) == ("picknet", None, None, 3)


def row(
    picker: str, settings: dict[str, float], cider: float, seconds: float, meteor: float | None, indices: Iterable[int]
) -> Evaluation:
    return Evaluation(
        scores=Scores(80.0, 70.0, 60.0, 46.06, 69.2, meteor, cider),
        intervals={"cider": Interval(cider - 5, cider + 5)},
        captions={"vid1": caption("a cat", indices)},
        missing=(),
        seconds=seconds,
        picker=picker,
        settings=settings,
        beam=1,
        num_frames=30,
        dataset="msvd",
        split="val",
        model="m",
    )


def test_the_comparison_table_is_the_papers_with_time_relative_to_picknets() -> None:
    rows = [
        row("all", {}, 75.24, 50.0, 33.1, range(30)),
        row("kmeans", {"k": 6.0}, 71.0, 55.0, None, (0, 1, 2, 3, 4, 5)),
        row("picknet", {}, 100.0, 20.0, 33.1, (0, 3)),
    ]
    assert comparison_table(rows).splitlines() == [
        "| Model         | BLEU@4 | ROUGE-L | METEOR |         CIDEr (95 %) | picks | Time |",
        "| ------------- | -----: | ------: | -----: | -------------------: | ----: | ---: |",
        "| Baseline      |   46.1 |    69.2 |   33.1 |   75.2 (70.2 … 80.2) |  30.0 | 2.5x |",
        "| k-means (k=6) |   46.1 |    69.2 |      – |   71.0 (66.0 … 76.0) |   6.0 | 2.8x |",
        "| PickNet       |   46.1 |    69.2 |   33.1 | 100.0 (95.0 … 105.0) |   2.0 | 1.0x |",
    ]


def test_a_rows_name_and_settings_come_from_its_picker() -> None:
    parrot: Any = Parrot()
    pickers = (None, UniformPicker(4), EveryNthPicker(30 / 4), CoinPicker(0.5), SceneChangePicker(25), AllPicker())
    assert [evaluate(parrot, split("vid1"), picker=picker).label for picker in pickers] == [
        "PickNet", "Uniform (k=4)", "Every n-th (n=7.5)", "Coin (p=0.5)", "Scene change (change=25)", "Baseline",
    ]  # fmt: skip
    assert evaluate(parrot, split("vid1"), picker=CoinPicker(0.5), name="random").label == "Random (p=0.5)"


def test_a_picker_of_your_own_is_named_by_its_class() -> None:
    class MyPicker(UniformPicker):
        pass

    assert picker_name(MyPicker(3)) == "MyPicker"


def test_without_a_picknet_row_there_is_no_relative_time() -> None:
    assert comparison_table([row("uniform", {"k": 6.0}, 1.0, 5.0, None, (0,))]).splitlines()[-1].endswith("|    – |")


def test_examples_are_drawn_by_the_hash_of_seed_and_name_whatever_they_score() -> None:
    names = [f"clip{number}" for number in range(30)]
    captions = {name: caption("a cat", [0]) for name in names}
    result = dataclasses.replace(row("all", {}, 1.0, 1.0, None, ()), captions=captions)
    clips = [Clip(name, Path(name), ("a cat",)) for name in names]
    clips.insert(5, Clip("unreadable", Path("x"), ("a cat",)))
    split = Split("msvd", "val", tuple(clips), ())

    def drawn(result: Evaluation, **options: int) -> list[str]:
        return [example.clip.name for example in examples(result, split, **options)]

    # printf 0:clip7 | sha256sum, and so on
    expected = ["clip1", "clip10", "clip13", "clip24"]
    assert drawn(result, count=4) == expected
    assert drawn(result, count=4, seed=1) == ["clip3", "clip10", "clip13", "clip26"]
    few = dataclasses.replace(result, captions=dict(list(captions.items())[:2]))
    assert drawn(few, count=4) == ["clip0", "clip1"]
    # A clip that is missing on another machine gives its place to the next one; the others stay.
    missing = {name: one for name, one in captions.items() if name != expected[1]}
    assert set(expected) - set(drawn(dataclasses.replace(result, captions=missing), count=4)) == {expected[1]}


def test_an_example_has_its_cider_and_the_most_similar_human_caption_before_others() -> None:
    clips = (
        Clip("vid1", Path("vid1.mp4"), ("Somebody rides.", "A man is riding a horse!", "a horse")),
        Clip("vid2", Path("vid2.mp4"), ("two dogs are running", "dogs")),
    )
    captions = {
        "vid1": caption("a man is riding a horse"),
        "vid2": caption("a cat"),
    }
    result = dataclasses.replace(row("all", {}, 1.0, 1.0, None, ()), captions=captions)
    hit, miss = examples(result, Split("msvd", "val", clips, ()), count=2)
    assert hit.references == ("A man is riding a horse!", "Somebody rides.", "a horse")
    references = {
        "vid1": [["somebody", "rides"], ["a", "man", "is", "riding", "a", "horse"], ["a", "horse"]],
        "vid2": [["two", "dogs", "are", "running"], ["dogs"]],
    }
    said = {"vid1": ["a", "man", "is", "riding", "a", "horse"]}
    assert hit.cider == pytest.approx(100 * cider(said, references))
    assert miss.cider == 0.0
    assert set(miss.references) == set(clips[1].captions)


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        row("all", {}, 1.0, 1.0, None, ()).seconds = 0.0  # type: ignore[misc]


@pytest.fixture(scope="module")
def captioner(model_folder: Path) -> Captioner:
    return load(model_folder)


def test_clips_are_captioned_with_the_given_picker_beam_and_number_of_frames(
    captioner: Captioner, tmp_path: Path
) -> None:
    files = [write_clip(tmp_path / f"{name}.mp4", num_frames=20) for name in ("one", "two")]
    clips = tuple(Clip(file.stem, file, ("a man is running",)) for file in files)
    done: list[str] = []
    result = evaluate(
        captioner,
        Split("folder", "all", clips, ()),
        picker=UniformPicker(4),
        beam=1,
        num_frames=8,
        on_clip=lambda clip: done.append(clip.name),
    )
    # The centres of four equal parts of eight frames.
    assert result.pick_positions == [1, 3, 5, 7] * 2
    assert {caption.frames_seen for caption in result.captions.values()} == {8}
    assert (result.beam, result.num_frames, result.label) == (1, 8, "Uniform (k=4)")
    assert result.seconds > 0
    assert done == ["one", "two"]
