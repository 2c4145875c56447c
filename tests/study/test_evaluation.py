import dataclasses
from pathlib import Path
from typing import Any

import pytest
from clips import write_clip

from picknet.captioner import Caption, Captioner, load
from picknet.config import Config
from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split
from picknet.metrics import Scores, cider
from picknet.picking.picker import Pick
from picknet.picking.plain import UniformPicker
from picknet.study.evaluation import Evaluation, comparison_table, evaluate, examples
from picknet.video.file import UnreadableVideo

SAID = {
    "vid1": ("a man is riding a horse", (0, 4, 9)),
    "vid2": ("two dogs are running", (0,)),
    "vid3": ("a woman is slicing an onion", (0, 2)),
}


@pytest.fixture(autouse=True)
def _no_java(monkeypatch: pytest.MonkeyPatch) -> None:
    """METEOR's Java takes seconds to start and has its own tests."""
    monkeypatch.setattr("picknet.metrics.meteor", lambda candidates, references: None)


class Parrot:
    """Stands in for a captioner: says of each clip what it was told to say."""

    name = "parrot"
    config = Config(beam=3)

    def caption(self, video: Any, **_: Any) -> Caption:
        if isinstance(video, list):
            return Caption("", (), 0, "frames", self.name, None, 0.0)
        if video.stem not in SAID:
            raise UnreadableVideo(f"{video}: no video stream found (streams: audio)")
        text, indices = SAID[video.stem]
        picks = tuple(Pick(index, index / 10) for index in indices)
        return Caption(text, picks, 30, str(video), self.name, None, -1.0)


def split(*names: str, missing: tuple[Missing, ...] = ()) -> Split:
    clips = (Clip(name, Path(f"{name}.mp4"), (SAID.get(name, ("nothing",))[0], "some words")) for name in names)
    return Split("msvd", "val", tuple(clips), missing)


def parroted(*names: str, missing: tuple[Missing, ...] = ()) -> Evaluation:
    parrot: Any = Parrot()
    return evaluate(parrot, split(*names, missing=missing))


def test_a_captioner_that_says_what_the_references_say_scores_100() -> None:
    scores = parroted("vid1", "vid2", "vid3").scores
    for score in (scores.bleu1, scores.bleu2, scores.bleu3, scores.bleu4, scores.rouge_l):
        assert score == pytest.approx(100, abs=1e-4)


def test_picks_are_counted_by_clip_and_placed_among_the_sampled_frames() -> None:
    result = parroted("vid1", "vid2", "vid3")
    assert result.num_videos == 3
    assert result.pick_counts == [3, 1, 2]
    assert result.pick_positions == [0, 4, 9, 0, 0, 2]
    assert result.mean_picks == 2.0


def test_clips_that_are_not_there_or_cannot_be_read_are_missing_and_not_dropped() -> None:
    result = parroted("vid1", "sound", "vid2", missing=(Missing("vid9", "no video named vid9"),))
    assert list(result.captions) == ["vid1", "vid2"]
    assert result.as_json()["missing"] == [
        {"clip": "vid9", "reason": "no video named vid9"},
        {"clip": "sound", "reason": "sound.mp4: no video stream found (streams: audio)"},
    ]


def test_a_split_without_a_readable_clip_is_an_error() -> None:
    with pytest.raises(BadData, match=r"^no clip of the val split of msvd can be read \(first: sound.mp4: no video"):
        parroted("sound")


def test_the_json_of_a_result_has_the_contracted_keys() -> None:
    content = parroted("vid1", "vid2").as_json()
    assert content["meteor"] is None
    promised = {"bleu4", "rouge_l", "meteor", "cider", "mean_picks", "num_videos", "seconds", "missing"}
    labels = {"bleu1", "bleu2", "bleu3", "picker", "k", "change", "beam", "split", "dataset", "model"}
    assert content.keys() == promised | labels
    assert (content["model"], content["dataset"], content["split"]) == ("parrot", "msvd", "val")
    assert (content["picker"], content["k"], content["change"], content["beam"]) == ("picknet", None, None, 3)


def row(
    picker: str, k: int | None, cider: float, seconds: float, meteor: float | None, indices: tuple[int, ...]
) -> Evaluation:
    picks = tuple(Pick(index, 0.0) for index in indices)
    return Evaluation(
        scores=Scores(80.0, 70.0, 60.0, 46.06, 69.2, meteor, cider),
        captions={"vid1": Caption("a cat", picks, 30, "cat.mp4", "m", None, -1.0)},
        missing=(),
        seconds=seconds,
        picker=picker,
        k=k,
        change=25.0 if picker == "scene" else None,
        beam=1,
        num_frames=30,
        dataset="msvd",
        split="val",
        model="m",
    )


def test_the_comparison_table_is_the_papers_with_time_as_a_multiple_of_picknets() -> None:
    rows = [
        row("all", None, 75.24, 50.0, 33.1, tuple(range(30))),
        row("kmeans", 6, 71.0, 55.0, None, (0, 1, 2, 3, 4, 5)),
        row("picknet", None, 100.0, 20.0, 33.1, (0, 3)),
    ]
    assert comparison_table(rows).splitlines() == [
        "| Model         | BLEU@4 | ROUGE-L | METEOR | CIDEr | picks | Time |",
        "| ------------- | -----: | ------: | -----: | ----: | ----: | ---: |",
        "| Baseline      |   46.1 |    69.2 |   33.1 |  75.2 |  30.0 | 2.5x |",
        "| k-means (k=6) |   46.1 |    69.2 |      – |  71.0 |   6.0 | 2.8x |",
        "| PickNet       |   46.1 |    69.2 |   33.1 | 100.0 |   2.0 | 1.0x |",
    ]


def test_rows_are_called_what_readers_call_them() -> None:
    labels = [row(*told, 1.0, 1.0, None, (0,)).label for told in (("every", 4), ("coin", 6), ("scene", None))]
    assert labels == ["Every n-th (k=4)", "Coin (k=6)", "Scene change (25.0)"]


def test_without_a_picknet_row_there_is_nothing_to_compare_the_time_with() -> None:
    assert comparison_table([row("uniform", 6, 1.0, 5.0, None, (0,))]).splitlines()[-1].endswith("|    – |")


def test_examples_are_the_clips_at_even_distances_whatever_they_score() -> None:
    # 30 captioned clips and one that cannot be read: of 30, places 1, 3, 6, 8, 11 … (2.5 apart, from 1.25 on).
    names = [f"clip{number}" for number in range(30)]
    captions = {name: Caption("a cat", (Pick(0, 0.0),), 30, name, "m", None, -1.0) for name in names}
    result = dataclasses.replace(row("all", None, 1.0, 1.0, None, ()), captions=captions)
    clips = [Clip(name, Path(name), ("a cat",)) for name in names]
    clips.insert(5, Clip("unreadable", Path("x"), ("a cat",)))
    chosen = examples(result, Split("msvd", "val", tuple(clips), ()))
    assert [example.clip.name for example in chosen] == [
        f"clip{place}" for place in (1, 3, 6, 8, 11, 13, 16, 18, 21, 23, 26, 28)
    ]
    few = dataclasses.replace(result, captions=dict(list(captions.items())[:2]))
    assert [one.clip.name for one in examples(few, Split("msvd", "val", tuple(clips), ()))] == ["clip0", "clip1"]


def test_an_example_has_its_cider_and_the_human_caption_most_like_it() -> None:
    clips = (
        Clip("vid1", Path("vid1.mp4"), ("Somebody rides.", "A man is riding a horse!", "a horse")),
        Clip("vid2", Path("vid2.mp4"), ("two dogs are running", "dogs")),
    )
    captions = {
        "vid1": Caption("a man is riding a horse", (), 30, "vid1", "m", None, -1.0),
        "vid2": Caption("a cat", (), 30, "vid2", "m", None, -1.0),
    }
    result = dataclasses.replace(row("all", None, 1.0, 1.0, None, ()), captions=captions)
    hit, miss = examples(result, Split("msvd", "val", clips, ()))
    assert hit.reference == "A man is riding a horse!"
    references = {
        "vid1": [["somebody", "rides"], ["a", "man", "is", "riding", "a", "horse"], ["a", "horse"]],
        "vid2": [["two", "dogs", "are", "running"], ["dogs"]],
    }
    said = {"vid1": ["a", "man", "is", "riding", "a", "horse"]}
    assert hit.cider == pytest.approx(100 * cider(said, references))
    assert miss.cider == 0.0
    assert miss.reference in clips[1].captions


def test_a_result_cannot_be_changed() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        row("all", None, 1.0, 1.0, None, ()).seconds = 0.0  # type: ignore[misc]


@pytest.fixture(scope="module")
def captioner(model_folder: Path) -> Captioner:
    return load(model_folder)


def test_real_clips_are_captioned_with_the_picker_the_beam_and_the_frames_asked_for(
    captioner: Captioner, tmp_path: Path
) -> None:
    files = [write_clip(tmp_path / f"{name}.mp4", num_frames=20) for name in ("one", "two")]
    clips = tuple(Clip(file.stem, file, ("a man is running",)) for file in files)
    ticks: list[int] = []
    result = evaluate(
        captioner,
        Split("folder", "all", clips, ()),
        picker=UniformPicker(4),
        picker_name="uniform",
        k=4,
        beam=1,
        num_frames=8,
        tick=lambda: ticks.append(1),
    )
    # The centres of four equal parts of eight frames.
    assert result.pick_positions == [1, 3, 5, 7] * 2
    assert {caption.frames_seen for caption in result.captions.values()} == {8}
    assert (result.beam, result.num_frames, result.label) == (1, 8, "Uniform (k=4)")
    assert result.seconds > 0
    assert len(ticks) == 2


def test_evaluation_imports_without_pytorch() -> None:
    import subprocess
    import sys

    code = "import sys, picknet.evaluation; print('torch' in sys.modules)"
    done: Any = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "False\n"
