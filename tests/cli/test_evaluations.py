"""`picknet evaluate`, `picknet compare` and `picknet calibrate`."""

import csv
import errno
import importlib.util
import io
import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from command import Picknet, on_linux
from folders import unsealed
from PIL import Image

from picknet.captioner import Captioner, load
from picknet.data.split import Clip, Missing, Split
from picknet.model.folder import SHIPPED, TAGS
from picknet.model.manifest import renewed
from picknet.model.runtime import Runtime
from picknet.model.sentences import Signals
from picknet.model.tags import Forecast, Tags
from picknet.study.calibration import Sample
from picknet.text import BOS, Vocabulary

# --- evaluate ---


@pytest.fixture
def in_categories(attending_folder: Path, clips: Path, tmp_path: Path) -> tuple[Path, Path]:
    """A model that knows the category music, and one clip twice as MSR-VTT: as music, and as news."""
    model, data = unsealed(attending_folder, tmp_path / "model"), tmp_path / "msrvtt"
    words = (model / "words.txt").read_text()
    (model / "words.txt").write_text(words.replace("[msrvtt]", "[music]"))
    data.mkdir()
    videos = [{"video_id": f"video{kind}", "split": "train", "category": kind} for kind in (0, 4)]
    for video in videos:
        shutil.copy(clips / "cat.mp4", data / f"{video['video_id']}.mp4")
    sentences = [{"video_id": video["video_id"], "caption": "a cat sits"} for video in videos]
    content = json.dumps({"videos": videos, "sentences": sentences})
    (data / "train_val_videodatainfo.json").write_text(content)
    return model, data


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The first word of every sentence that is written."""
    decode, words = Runtime.decode, []

    def listening(runtime: Runtime, last: Any, memory: Any, states: Any) -> Any:
        if not states.any():
            words.append(int(last[0]))
        return decode(runtime, last, memory, states)

    monkeypatch.setattr(Runtime, "decode", listening)
    return words


def test_a_model_is_told_the_category_of_each_clip_unless_a_style_is_asked_for(
    picknet: Picknet, in_categories: tuple[Path, Path], begun: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("picknet.metrics.meteor", lambda candidates, references: None)
    for name, few in {"RATES": (1.0,), "KS": (1,)}.items():
        monkeypatch.setattr(f"picknet.study.judging.{name}", few)
    monkeypatch.setattr("picknet.study.detectors.is_installed", lambda: False)
    model, data = in_categories
    music = Vocabulary.load(model / "words.txt").styles["music"]
    options = ("--model", model, "--data", data, "--dataset", "msrvtt", "--split", "all")
    assert picknet("evaluate", *options).code == 0
    # The first sentence warms up; of the category news the model knows nothing.
    assert begun == [BOS, music, BOS]
    begun.clear()
    assert picknet("evaluate", *options, "--style", "music").code == 0
    assert begun == [music] * 3
    begun.clear()
    assert picknet("compare", *options, "--subsets", 0, "--draws", 1).code == 0
    assert list(dict.fromkeys(begun)) == [music, BOS]


def test_a_video_of_ones_own_is_captioned_in_a_category_that_the_model_learned(
    picknet: Picknet, in_categories: tuple[Path, Path], begun: list[int]
) -> None:
    model, data = in_categories
    for style in ((), ("--style", "music")):
        assert picknet("caption", data / "video0.mp4", "--model", model, *style).code == 0
    assert begun == [BOS, Vocabulary.load(model / "words.txt").styles["music"]]
    code, out, err = picknet("caption", data / "video0.mp4", "--model", model, "--style", "news")
    assert (code, out) == (1, "")
    assert err == f"picknet: style is 'news', which the model {model} was not trained on; possible: music\n"


@pytest.fixture
def data(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of two clips; a third does not exist and a fourth is not a video. METEOR is switched off."""
    monkeypatch.setattr("picknet.metrics.meteor", lambda candidates, references: None)
    folder = tmp_path / "data"
    (folder / "videos").mkdir(parents=True)
    for name in ("cat.mp4", "dog.mkv"):
        shutil.copy(clips / name, folder / "videos")
    (folder / "videos" / "text.mp4").write_text("no video")
    captions = {"cat": ["a cat is sitting"], "dog": ["a dog is running"], "gone": ["a man"], "text": ["a woman"]}
    (folder / "captions.json").write_text(json.dumps(captions))
    return folder


def folder_options(data: Path, model: Path) -> tuple[object, ...]:
    return ("--data", data, "--dataset", "folder", "--split", "all", "--model", model)


@pytest.mark.parametrize("format", ["json", "jsonl"])
def test_evaluate_prints_one_object_per_picker_with_all_keys(
    picknet: Picknet, data: Path, model_folder: Path, format: str
) -> None:
    options = (*folder_options(data, model_folder), "--format", format)
    code, out, err = picknet("evaluate", *options, "--picker", "picknet", "--picker", "all")
    assert (code, err) == (0, "")
    rows = [json.loads(line) for line in out.splitlines()]
    assert [row["picker"] for row in rows] == ["picknet", "all"]
    keys = {"bleu4", "rouge_l", "meteor", "cider", "intervals", "mean_picks", "num_videos", "seconds", "missing"}
    for row in rows:
        assert keys <= row.keys()
        assert row["num_videos"] == 2
        low, high = row["intervals"]["cider"]
        assert low <= row["cider"] <= high
        assert row["intervals"]["meteor"] is None
        assert row["missing"] == [
            {"clip": "gone", "reason": "no video named gone"},
            {"clip": "text", "reason": f"{data}/videos/text.mp4: not a known video format"},
        ]


def test_evaluate_prints_a_csv_row_per_picker(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    pickers = ("--picker", "picknet", "--picker", "uniform:3", "--picker", "picknet:2", "--picker", "picknet:3")
    code, out, err = picknet("evaluate", *folder_options(data, model_folder), *pickers, "--out", tmp_path / "s.csv")
    assert (code, out, err) == (0, "", "")
    rows = list(csv.DictReader(io.StringIO((tmp_path / "s.csv").read_text())))
    assert [(row["picker"], row["k"]) for row in rows] == [
        ("picknet", ""), ("uniform", "3.0"), ("picknet", "2.0"), ("picknet", "3.0"),
    ]  # fmt: skip
    assert [row["mean_picks"] for row in rows[1:]] == ["3.0", "2.0", "3.0"]
    assert {row["num_missing"] for row in rows} == {"2"}
    for row in rows:
        assert float(row["cider_low"]) <= float(row["cider"]) <= float(row["cider_high"])
        assert row["meteor"] == row["meteor_low"] == ""


def test_evaluate_with_several_pickers_prints_the_papers_table_and_the_missing_clips(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = folder_options(data, model_folder)
    pickers = ("--picker", "picknet", "--picker", "all", "--picker", "uniform", "--picker", "random", "--k", 3)
    code, out, _ = picknet("evaluate", *options, *pickers, "--captions", tmp_path / "captions.json", "--frames", 10)
    lines = out.splitlines()
    assert code == 0
    header = ["Model", "BLEU@4", "ROUGE-L", "METEOR", "CIDEr (95 %)", "picks", "Time"]
    assert [cell.strip() for cell in lines[0].split("|")[1:-1]] == header
    labels = ["PickNet (k=3)", "Baseline", "Uniform (k=3)", "Random (k=3)"]
    assert [line.split("|")[1].strip() for line in lines[2:6]] == labels
    assert [line.split("|")[6].strip() for line in lines[2:6]] == ["3.0", "10.0", "3.0", "3.0"]
    assert lines[6:9] == [
        "In brackets: 95 % interval, by bootstrap over clips.",
        "missing 2 clips:",
        "  gone: no video named gone",
    ]
    written = json.loads((tmp_path / "captions.json").read_text())
    assert [(row["clip"], row["picker"]) for row in written[:6]] == [
        ("cat", "picknet"),
        ("dog", "picknet"),
        ("gone", "picknet"),
        ("text", "picknet"),
        ("cat", "all"),
        ("dog", "all"),
    ]
    assert (written[2]["caption"], written[2]["error"]) == (None, "no video named gone")
    assert [row["confidence"] for row in written] == [None] * 16  # the model of the tests is not calibrated
    assert written[4]["error"] is None
    assert [written[place]["k"] for place in (0, 2, 4)] == [3, 3, None]
    assert len(written[4]["picks"]) == 10


def test_evaluate_prints_a_line_per_score_with_its_interval_and_draws_histograms(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = (*folder_options(data, model_folder), "--picker", "all")
    code, out, _ = picknet("evaluate", *options, "--histograms", tmp_path / "picks.png")
    lines = out.splitlines()
    assert code == 0
    # 30 frames of one clip, and all 12 of the other.
    assert lines[0].startswith("Baseline on folder all: 2 clips, 21.0 picks per clip, ")
    assert [line.split()[0] for line in lines[1:8]] == [
        "BLEU@1", "BLEU@2", "BLEU@3", "BLEU@4", "ROUGE-L", "METEOR", "CIDEr",
    ]  # fmt: skip
    assert 'METEOR  – (needs pip install "picknet[meteor]")' in lines
    number = r"\d+\.\d"
    assert re.fullmatch(rf"CIDEr   {number} \({number} … {number}\)", lines[7])
    with Image.open(tmp_path / "picks.png") as picture:
        assert (picture.format, picture.width) == ("PNG", 1600)


def test_of_many_missing_clips_five_are_printed_and_all_are_in_the_captions_file(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    captions = json.loads((data / "captions.json").read_text())
    (data / "captions.json").write_text(json.dumps(captions | {f"lost{n:03}": ["a cat"] for n in range(655)}))
    code, out, _ = picknet("evaluate", *folder_options(data, model_folder))
    assert code == 0
    assert len(out.splitlines()) < 20
    assert "missing 657 clips:\n  gone: no video named gone\n  lost000: no video named lost000\n" in out
    assert out.endswith("  lost003: no video named lost003\n  and 652 more (with --captions FILE)\n")
    file = tmp_path / "captions.json"
    code, out, _ = picknet("evaluate", *folder_options(data, model_folder), "--captions", file)
    assert out.endswith(f"  and 652 more (in {file})\n")
    assert sum(row["error"] is not None for row in json.loads(file.read_text())) == 657


def test_evaluate_records_the_change_of_scene_and_draws_examples(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = (*folder_options(data, model_folder), "--format", "json")
    code, out, err = picknet(
        "evaluate", *options, "--picker", "scene", "--change", 12.5, "--examples", tmp_path / "examples.png"
    )
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert (content["picker"], content["k"], content["change"]) == ("scene", None, 12.5)
    with Image.open(tmp_path / "examples.png") as picture:
        assert (picture.format, picture.width) == ("PNG", 1600)
        two = picture.height
    code, _, _ = picknet("evaluate", *options, "--examples", tmp_path / "one.png", "--num-examples", 1)
    with Image.open(tmp_path / "one.png") as picture:
        assert (code, picture.height < two) == (0, True)


@pytest.fixture
def _few_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    from picknet.study import bootstrap, judging

    monkeypatch.setattr(judging, "KS", range(1, 3))
    monkeypatch.setattr(bootstrap, "NUM_RESAMPLES", 20)


@pytest.mark.usefixtures("_few_settings")
def test_compare_prints_the_tables_and_writes_them_with_the_command(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "dog.txt").write_text("dog\n")
    (tmp_path / "rest.txt").write_text("cat\ngone\ntext\n")
    folds = ("--model", model_folder, "--clips", tmp_path / "dog.txt")
    folds += ("--model", model_folder, "--clips", tmp_path / "rest.txt")
    options = ("--data", data, "--dataset", "folder", "--split", "all", *folds)
    options += ("--subsets", 2, "--draws", 2, "--seed", 3)
    code, out, err = picknet("compare", *options, "--out", tmp_path / "out", "--cache", tmp_path / "cache")
    assert (code, err) == (0, "")
    assert out.startswith("2 models on folder all: 2 clips, beam 1, seed 3.\n")
    assert "missing 2 clips:\n  gone: no video named gone\n" in out
    written = (tmp_path / "out" / "comparison.md").read_text()
    command = f"--model {model_folder} --clips {tmp_path}/dog.txt --model {model_folder} --clips {tmp_path}/rest.txt"
    command = f"--data {data} --dataset folder --split all {command} --beam 1 --subsets 2 --draws 2 --seed 3"
    assert f"$ picknet compare {command}\n" in written
    assert "- gone: no video named gone\n" in written
    assert len(list((tmp_path / "cache").iterdir())) == 2
    _, table, _ = picknet("compare", *options, "--cache", tmp_path / "cache", "--format", "csv")
    assert table == (tmp_path / "out" / "comparison.csv").read_text()
    _, lines, _ = picknet("compare", *options, "--cache", tmp_path / "cache", "--format", "jsonl")
    rows = [json.loads(line) for line in lines.splitlines()]
    assert [list(row) for row in rows] == [table.splitlines()[0].split(",")] * (table.count("\n") - 1)
    assert {row["picker"] for row in rows} >= {"picknet", "uniform", "all"}


@pytest.mark.usefixtures("_few_settings")
def test_compare_on_films_prints_the_table_and_writes_it(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path
) -> None:
    shutil.copy(clips / "cat.mp4", tmp_path / "film.mp4")
    event = {"start": 0.0, "end": 1.0, "kinds": ["noise"], "clip": "cat"}
    facts = {"dataset": "msvd", "split": "val", "seconds": 2.0, "cut": "camera", "codec": "libx264"}
    (tmp_path / "film.json").write_text(json.dumps(facts | {"events": [event], "quiet": []}))
    options = ("--films", tmp_path, "--model", model_folder, "--draws", 2)
    code, out, err = picknet("compare", *options, "--out", tmp_path / "out")
    assert (code, err) == (0, "")
    assert "1 films of msvd val, 0 minutes, 1 events, sampled at 1 frame a second, seed 0." in out
    command = f"--films {tmp_path} --model {model_folder} --draws 2 --seed 0"
    assert f"$ picknet compare {command}\n" in (tmp_path / "out" / "films.md").read_text()
    _, table, _ = picknet("compare", *options, "--format", "csv")
    assert table == (tmp_path / "out" / "films.csv").read_text()
    _, lines, _ = picknet("compare", *options, "--format", "json")
    assert list(json.loads(lines.splitlines()[0])) == table.splitlines()[0].split(",")


def test_compare_needs_clips_or_films(picknet: Picknet, tmp_path: Path) -> None:
    for given in ((), ("--data", tmp_path, "--films", tmp_path)):
        code, _, err = picknet("compare", *given)
        assert (code, "compare needs either --data, for clips, or --films" in err) == (2, True)


@on_linux
@pytest.mark.usefixtures("_few_settings")
def test_a_reader_that_has_gone_does_not_cost_the_files(
    data: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from picknet.cli import main

    for arguments, files in (
        (
            ("compare", "--subsets", 0, "--draws", 2, "--out", tmp_path / "out"),
            ["out/comparison.md", "out/comparison.svg"],
        ),
        (("evaluate", "--captions", tmp_path / "c.json", "--histograms", tmp_path / "h.svg"), ["c.json", "h.svg"]),
    ):
        read, write = os.pipe()
        os.close(read)  # what `| head` does when it has enough
        with open(write, "w") as closed, pytest.raises(SystemExit) as exit:
            monkeypatch.setattr(sys, "stdout", closed)
            main([str(word) for word in (*arguments, *folder_options(data, model_folder))])
        monkeypatch.undo()
        assert exit.value.code == 1
        for file in files:
            assert (tmp_path / file).stat().st_size > 0


@pytest.mark.parametrize("arguments", [("compare", "--out", "out"), ("evaluate", "--histograms", "h.png")])
def test_without_matplotlib_the_pip_command_is_named_before_any_clip_is_read(
    picknet: Picknet, data: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    find_spec = importlib.util.find_spec
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None if name == "matplotlib" else find_spec(name))
    monkeypatch.setattr("picknet.captioner.load", lambda *_, **__: pytest.fail("a model was loaded"))
    monkeypatch.chdir(tmp_path)
    code, out, err = picknet(*arguments, "--data", data, "--dataset", "folder", "--split", "all")
    assert (code, out) == (1, "")
    assert err == 'picknet: charts need matplotlib, which is not installed; pip install "picknet[charts]"\n'


def test_a_failed_meteor_is_a_message_and_the_other_scores_are_kept(
    picknet: Picknet, data: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from picknet.metrics import MeteorFailed

    def fail(candidates: object, references: object) -> None:
        raise MeteorFailed("not finished after 600 s")

    monkeypatch.setattr("picknet.metrics.meteor", fail)
    options = ("--data", data, "--dataset", "folder", "--split", "all", "--model", model_folder)
    code, out, err = picknet("evaluate", *options, "--format", "json")
    assert code == 0
    assert json.loads(out)["meteor"] is None
    assert err == "picknet: no METEOR: not finished after 600 s\n"


def test_data_without_a_clip_of_the_split_is_one_line(picknet: Picknet, data: Path) -> None:
    code, out, err = picknet("evaluate", "--data", data, "--dataset", "folder", "--split", "test")
    assert (code, out) == (1, "")
    assert err == f"picknet: {data}/captions.json: no clip of the test split (there are: train, val, all)\n"


@pytest.mark.usefixtures("_few_settings")
def test_the_data_set_may_stand_before_its_folder_and_a_single_clip_has_no_cider(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    shutil.move(data / "videos" / "cat.mp4", tmp_path)
    note = "picknet: CIDEr weighs words by how few clips have them: with a single clip it is 0\n"
    options = ("--data", f"folder={data}", "--split", "all", "--model", model_folder)
    code, out, err = picknet("evaluate", *options, "--format", "json")
    assert (code, err) == (0, note)
    row = json.loads(out)
    assert (row["dataset"], row["num_videos"], row["cider"]) == ("folder", 1, 0.0)
    few = ("--subsets", 0, "--draws", 1)
    code, out, err = picknet("compare", *options, *few)
    assert (code, err) == (0, note)
    assert " on folder all: 1 clip" in out
    code, _, err = picknet("compare", "--data", f"flicker={data}", *few)
    assert (code, "unknown data set 'flicker' (known: msvd, msrvtt, coco, flickr8k, folder)" in err) == (1, True)


# --- calibrate ---


@pytest.fixture
def calibratable(
    clips: Path, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """A copy of the tiny model, and 40 clips for validation and 40 for training: half get the right caption with a high
    probability, the others a wrong one with a low probability."""
    data = tmp_path / "data"
    (data / "videos").mkdir(parents=True)
    shutil.copy(clips / "dog.mkv", tmp_path / "train.mkv")
    lines = [{"clip": "gone", "caption": "a man", "split": "val"}]
    for number in range(80):
        split, file = ("val", clips / "dog.mkv") if number < 40 else ("train", tmp_path / "train.mkv")
        (data / "videos" / f"{number:02}.mkv").symlink_to(file)
        lines.append({"clip": f"{number:02}", "caption": f"dog {number:02} runs", "split": split})
    (data / "captions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))

    def describe(
        captioner: Captioner,
        split: Split,
        *,
        like: Captioner,
        forecasts: Mapping[Path, Forecast],
        on_clip: Callable[[Clip], object],
    ) -> tuple[list[Sample], list[Missing]]:
        samples = []
        assert captioner.describer.confidence is None  # an older one may need what the captioner has no more
        for clip in split.clips:
            assert not forecasts or clip.name not in forecasts[clip.path].words
            text, likelihood = (clip.captions[0], -0.5) if int(clip.name[-2:]) % 2 else ("a cat is sitting", -1.5)
            samples.append(Sample(clip, text, Signals(frozenset(text.split()), likelihood, 1.0, 1.0, 2.0)))
            on_clip(clip)
        return samples, list(split.missing)

    monkeypatch.setattr("picknet.study.calibration.describe", describe)
    monkeypatch.setattr("picknet.study.tag_learning.NUM_PARTS", 3)
    return shutil.copytree(model_folder, tmp_path / "model"), data


def test_calibrate_learns_tags_from_training_clips(picknet: Picknet, calibratable: tuple[Path, Path]) -> None:
    model, data = calibratable
    code, _, err = picknet("calibrate", "--model", model, "--data", f"folder={data}", "--tags", f"folder={data}")
    assert (code, err) == (0, "")
    tags = load(model).runtime.tags
    assert tags is not None
    assert {"dog", "run", "41"} <= set(tags.words)  # of training clips
    assert "01" not in tags.words
    assert "tags.safetensors" in (model / "manifest.json").read_text()
    assert load(model).describer.writer.tags_weight == 0

    code, out, err = picknet("calibrate", "--model", model, "--data", f"folder={data}", "--tags-weight", 1.5)
    assert (code, err) == (0, "")
    assert "captions chosen     with a weight of 1.5 for tags" in out
    assert load(model).describer.writer.tags_weight == 1.5
    assert picknet("calibrate", "--model", model, "--data", f"folder={data}")[0] == 0
    assert load(model).describer.writer.tags_weight == 1.5  # it stays as it is


def test_calibrate_keeps_features_for_the_next_time(
    picknet: Picknet, calibratable: tuple[Path, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, data = calibratable
    cache = tmp_path / "cache"
    command = ("calibrate", "--model", model, "--data", f"folder={data}", "--tags", f"folder={data}", "--cache", cache)
    assert picknet(*command).code == 0
    first = (model / "tags.safetensors").read_bytes()
    (kept,) = cache.iterdir()  # all training clips are links to one file
    with monkeypatch.context() as patch:
        patch.setattr("picknet.study.tag_learning._features", lambda *of: pytest.fail("the CNN was asked"))
        assert picknet(*command).code == 0
    assert (model / "tags.safetensors").read_bytes() == first
    kept.write_bytes(b"damaged")
    assert picknet(*command).code == 0
    assert (model / "tags.safetensors").read_bytes() == first


FORECAST_IS_STALE = (
    "--data: the model has a forecast for folder, which may have been learned from these clips: add --forecast, so "
    "that each clip is judged by one that was not"
)


def test_calibrate_learns_a_forecast_for_the_style(picknet: Picknet, calibratable: tuple[Path, Path]) -> None:
    model, data = calibratable
    command = ("calibrate", "--model", model, "--data", f"folder={data}")
    assert picknet(*command, "--tags", f"folder={data}", "--forecast", f"folder={data}").code == 0
    forecast = load(model).describer.writer.forecast
    assert forecast is not None
    assert {"dog", "runs", "41", "01"} <= set(forecast.words)  # of training clips, and of those calibrated on
    # It knows these clips, so it cannot be used to calibrate on them again.
    code, _, err = picknet(*command, "--tags", f"folder={data}")
    assert (code, err) == (2, f"picknet: {FORECAST_IS_STALE}\n")
    tags = load(model).runtime.tags
    assert tags is not None
    assert list(tags.forecasts) == ["folder"]
    # A new forecast leaves the tags as they are.
    beside = shutil.copytree(data, data.parent / "beside")
    assert picknet(*command, "--forecast", f"folder={data}", "--forecast", f"folder={beside}").code == 0
    again = load(model).runtime.tags
    assert again is not None
    assert again.words == tags.words
    assert (again.weights == tags.weights).all()


def test_calibrate_learns_a_match_beside_the_forecast(picknet: Picknet, calibratable: tuple[Path, Path]) -> None:
    model, data = calibratable
    captions = data / "captions.jsonl"
    captions.write_text(captions.read_text().replace("runs", "is running"))  # words that the model can write
    command = ("calibrate", "--model", model, "--data", f"folder={data}")
    assert picknet(*command, "--tags", f"folder={data}").code == 0
    code, _, err = picknet(*command, "--match-weight", 1)
    assert (code, err) == (2, f"picknet: --match-weight: the model {model} has no match for folder; add --forecast\n")
    learning = (*command, "--forecast", f"folder={data}")
    code, out, err = picknet(*learning, "--tags-weight", 0.5, "--match-weight", 2)
    assert (code, err) == (0, "")
    assert "captions chosen     with a weight of 0.5 for tags and 2 for the match" in out
    writer = load(model).describer.writer
    assert (writer.tags_weight, writer.match_weight) == (0.5, 2)
    assert writer.match is not None
    assert {"is", "running"} <= set(writer.match.words) <= set(load(model).runtime.vocabulary.words)
    assert picknet(*learning).code == 0
    assert load(model).describer.writer.match_weight == 2  # it stays as it is
    # Captions in no word that the model knows give no match.
    captions.write_text(captions.read_text().replace("dog", "perro").replace("is running", "corre"))
    assert picknet(*learning, "--match-weight", 0).code == 0
    assert load(model).describer.writer.match is None


def test_what_was_learned_for_the_own_style_holds_for_clips_of_another_data_set(
    picknet: Picknet, calibratable: tuple[Path, Path]
) -> None:
    model, data = calibratable
    command = ("calibrate", "--model", model, "--data", f"folder={data}")
    learning = (*command, "--tags", f"folder={data}", "--forecast", f"folder={data}")
    assert picknet(*learning, "--match-weight", 2).code == 0
    # As if it had been calibrated on another data set.
    card = json.loads((model / "card.json").read_text())
    card["confidence"] = {"msvd": card["confidence"]["folder"]}
    tags = load(model).runtime.tags
    assert tags is not None
    with renewed(model, TAGS):
        replace(
            tags, forecasts={"msvd": tags.forecasts["folder"]}, matches={"msvd": tags.matches["folder"]}
        ).save(model / TAGS)
    with renewed(model, "card.json"):
        (model / "card.json").write_text(json.dumps(card))
    assert load(model).describer.writer.match_weight == 2
    code, _, err = picknet(*command)
    assert (code, err) == (0, "")
    again = load(model)
    assert list(again.runtime.card["confidence"]) == ["msvd"]
    assert again.runtime.card["confidence"]["msvd"]["fitted_on"] == "40 clips of folder val"
    assert again.describer.writer.match is not None
    assert again.describer.writer.match_weight == 2


def test_the_calibration_of_a_shipped_model_stays(picknet: Picknet, calibratable: tuple[Path, Path]) -> None:
    card = SHIPPED / "msvd" / "card.json"
    if not card.exists():
        pytest.skip("no shipped model")
    before = card.read_bytes()
    code, _, err = picknet("calibrate", "--model", "msvd", "--data", f"folder={calibratable[1]}")
    assert code == 2
    assert err.startswith("picknet: --model msvd: its calibration is a part of picknet and would be lost; copy the ")
    assert card.read_bytes() == before


def test_calibrate_learns_a_critic_from_other_clips(
    picknet: Picknet, calibratable: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = calibratable
    command = ("calibrate", "--model", model, "--data", f"folder={data}")
    code, _, err = picknet(*command, "--tags", f"folder={data}", "--critic", f"folder={data}")
    assert (code, err) == (0, "")
    tags = load(model).runtime.tags
    assert tags is not None
    assert list(tags.critics) == ["folder"]
    # New tags leave it as it is; the model of a fold has to learn its own.
    assert picknet(*command, "--tags", f"folder={data}").code == 0
    again = load(model).runtime.critic("folder")
    assert again is not None
    assert (again.states == tags.critics["folder"].states).all()
    run = tmp_path / "fold"
    shutil.copytree(model, run / "model")
    (run / "clips.json").write_text(json.dumps({"val": {"used": [f"{number:02}" for number in range(40, 80)]}}))
    with renewed(run / "model", TAGS):
        replace(tags, critics={}).save(run / "model" / TAGS)
    code, _, err = picknet(*command, "--fold-model", run)
    told = "--fold-model: the model has a critic, which each fold's model has to learn as well: add --critic"
    assert (code, err) == (2, f"picknet: {told}\n")


def test_clips_held_back_are_not_learned_from_under_another_name_of_their_folder(
    picknet: Picknet, calibratable: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = calibratable
    (tmp_path / "link").symlink_to(data)
    for other in (tmp_path / "link", Path(os.path.relpath(data))):
        learning = ("--tags", f"folder={other}", "--tags", f"folder={data}")
        code, _, err = picknet("calibrate", "--model", model, "--data", f"folder={data}", "--split", "train", *learning)
        none_left = "none of them can be read, or all are among those that the confidence is fitted on"
        assert (code, err) == (1, f"picknet: no clip to learn words from: {none_left}\n")


@pytest.mark.parametrize("option", ["--tags-weight", "--forecast", "--critic"])
def test_what_needs_tags_is_refused_without_them(
    picknet: Picknet, calibratable: tuple[Path, Path], option: str
) -> None:
    model, data = calibratable
    value = 1 if option == "--tags-weight" else f"folder={data}"
    code, _, err = picknet("calibrate", "--model", model, "--data", f"folder={data}", option, value)
    assert code == 2
    assert err == f"picknet: {option}: the model {model} has no tags; let it learn some with --tags\n"


def test_calibrate_prints_how_good_the_confidence_is_and_stores_it_in_the_card(
    picknet: Picknet, calibratable: tuple[Path, Path]
) -> None:
    model, data = calibratable
    code, out, err = picknet("calibrate", "--model", model, "--data", f"folder={data}")
    assert (code, err) == (0, "")
    lines = out.splitlines()
    assert lines[0] == f"{model}: the confidence of captions in the style of folder"
    assert lines[2:5] == [
        "fitted on           40 clips of folder val",
        "clips               40, 20 of them with a good caption",
        "AUC                 1.000 (1.000 … 1.000)",
    ]
    assert lines[-3:] == ["missing 1 clip:", "  gone: no video named gone", f"written to {model}/card.json"]
    assert re.fullmatch(r"0\.\d\d +1\.00      2  #{33}\|#{6}", lines[-4])
    kept = json.loads((model / "card.json").read_text())
    assert kept["trained_on"] == "nothing"
    facts = kept["confidence"]["folder"]
    assert (facts["clips"], facts["good_clips"], facts["auc"], facts["good"]) == (40, 20, 1.0, "CIDEr above 0.5")
    assert facts["weights"].keys() == {"bias", "likelihood", "entropy", "agreement", "familiarity"}
    assert facts["typical_state"] == 2.0
    assert "## Confidence (folder)" in (model / "README.md").read_text(encoding="utf-8")
    shown = picknet("info", model).out
    assert "\nConfidence (folder)\n" in shown
    assert "  fitted on " in shown
    options = ("calibrate", "--model", model, "--data", data, "--dataset", "folder")
    content = json.loads(picknet(*options, "--format", "json").out)
    assert content["missing"] == [{"clip": "gone", "reason": "no video named gone"}]
    assert (content["model"], content["style"], content["weights"]) == (str(model), "folder", facts["weights"])
    (row,) = csv.DictReader(io.StringIO(picknet(*options, "--format", "csv").out))
    assert (row["model"], row["auc"], row["num_missing"]) == (str(model), "1.0", "1")


def test_clips_that_models_of_folds_have_not_seen_are_pooled(
    picknet: Picknet, calibratable: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = calibratable
    runs = [tmp_path / "fold1", tmp_path / "fold2"]
    for run, unseen in zip(runs, (range(40, 60), range(60, 80)), strict=True):
        shutil.copytree(model, run / "model")
        (run / "clips.json").write_text(json.dumps({"val": {"used": [f"{number:02}" for number in unseen]}}))
    folds = [word for run in runs for word in ("--fold-model", run)]
    code, _, err = picknet("calibrate", "--model", model, "--data", f"folder={data}", *folds)
    assert (code, err) == (0, "")
    facts = json.loads((model / "card.json").read_text())["confidence"]["folder"]
    assert facts["clips"] == 80
    assert facts["fitted_on"] == (
        "40 clips of folder val and 40 clips of folder train, those captioned by models of folds that had not seen them"
    )
    for twice in (["--fold-model", runs[0], *folds], ["--split", "all", *folds]):
        code, _, err = picknet("calibrate", "--model", model, "--data", f"folder={data}", *twice)
        assert (code, err) == (1, "picknet: 40: is given to two models; a clip belongs to one\n")
    (runs[1] / "clips.json").unlink()
    code, _, err = picknet("calibrate", "--model", model, "--data", f"folder={data}", *folds)
    assert (code, err) == (
        1, f"picknet: {runs[1]}: its clips.json does not name the clips it was validated on\n",
    )  # fmt: skip


def test_models_of_folds_need_tags_where_the_model_has_some(
    picknet: Picknet, calibratable: tuple[Path, Path], tmp_path: Path
) -> None:
    model, data = calibratable
    run = tmp_path / "fold"
    shutil.copytree(model, run / "model")
    (run / "clips.json").write_text(json.dumps({"val": {"used": [f"{number:02}" for number in range(40, 80)]}}))
    size = load(model).runtime.features(np.zeros((1, 64, 64, 3), np.uint8)).shape[-1]
    tags = Tags(["dog"], np.full(1, 0.5, np.float32), np.zeros(size, np.float32), np.ones((size, 1), np.float32))
    command = ("calibrate", "--model", model, "--data", f"folder={data}", "--fold-model", run)
    with renewed(model, TAGS):
        tags.save(model / TAGS)
    code, _, err = picknet(*command)
    told = "--fold-model: the model has tags, which each fold's model has to learn as well: add --tags"
    assert (code, err) == (2, f"picknet: {told}\n")
    with renewed(run / "model", TAGS):
        tags.save(run / "model" / TAGS)
    assert picknet(*command).code == 0
    nothing = (np.zeros((size, 1), np.int8), np.ones(1, np.float32), np.ones(1, np.float32))
    with renewed(model, TAGS):
        replace(tags, forecasts={"folder": Forecast(tags.words, tags.shares, tags.mean, *nothing)}).save(model / TAGS)
    code, _, err = picknet(*command)
    assert (code, err) == (2, f"picknet: {FORECAST_IS_STALE}\n")


def test_the_style_that_is_calibrated_is_that_of_the_data_set(
    picknet: Picknet, calibratable: tuple[Path, Path], attending_folder: Path, tmp_path: Path
) -> None:
    _, data = calibratable
    model = unsealed(attending_folder, tmp_path / "styled")
    (model / "card.json").write_text('{"confidence": {"bias": 1, "slope": 2}}')
    (data / "msrvtt").mkdir()
    videos = [{"video_id": f"video{number}", "split": "train"} for number in range(10, 50)]
    for video in videos:
        (data / "msrvtt" / f"{video['video_id']}.mkv").symlink_to(data / "videos" / "00.mkv")
    sentences = [{"video_id": one["video_id"], "caption": f"dog {one['video_id']} runs"} for one in videos]
    annotation = data / "msrvtt" / "train_val_videodatainfo.json"
    annotation.write_text(json.dumps({"videos": videos, "sentences": sentences}))
    options = ("calibrate", "--model", model, "--data", f"msrvtt={data / 'msrvtt'}", "--split", "all")
    assert picknet(*options).out.splitlines()[2] == "fitted on           40 clips of msrvtt all"
    stored = json.loads((model / "card.json").read_text())["confidence"]
    assert list(stored) == ["own", "msrvtt"]  # that of its own style was there before
    assert load(model, style="msrvtt").confidence_note is load(model).confidence_note is None
    code, out, err = picknet(*options, "--fold-model", model)
    assert (code, out) == (2, "")
    assert "--fold-model: the clips of folds have the model's own style, but msrvtt is another" in err


def test_a_style_is_calibrated_on_clips_whose_captions_have_another(
    picknet: Picknet, calibratable: tuple[Path, Path], attending_folder: Path, tmp_path: Path
) -> None:
    _, data = calibratable
    model = unsealed(attending_folder, tmp_path / "styled")
    options = ("calibrate", "--model", model, "--data", f"folder={data}", "--style")
    code, out, err = picknet(*options, "msrvtt")
    assert (code, err) == (0, "")
    assert out.splitlines()[0] == f"{model}: the confidence of captions in the style of msrvtt"
    fitted_on = "40 clips of folder val, whose captions people wrote in another style, that of folder"
    assert out.splitlines()[2] == f"fitted on           {fitted_on}"
    assert list(json.loads((model / "card.json").read_text())["confidence"]) == ["msrvtt"]
    assert load(model, style="msrvtt").confidence_note is None
    assert load(model).confidence_note is not None
    run = tmp_path / "fold"  # whose model writes in the style, too, for clips in the own style
    shutil.copytree(model, run / "model")
    (run / "clips.json").write_text(json.dumps({"val": {"used": [f"{number}" for number in range(50, 70)]}}))
    assert picknet(*options, "msrvtt", "--fold-model", run).code == 0
    told = json.loads((model / "card.json").read_text())["confidence"]["msrvtt"]["fitted_on"]
    assert told.startswith("40 clips of folder val and 20 clips of folder train")
    code, out, err = picknet(*options, "coco")
    assert (code, out) == (1, "")
    assert err == f"picknet: style is 'coco', which the model {model} was not trained on; possible: msrvtt\n"


def test_if_no_confidence_can_be_fitted_the_card_is_unchanged(
    picknet: Picknet, calibratable: tuple[Path, Path]
) -> None:
    model, data = calibratable
    rows = [{"clip": f"{number:02}", "caption": "two men", "split": "val"} for number in range(3)]
    (data / "captions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    code, out, err = picknet("calibrate", "--model", model, "--data", f"folder={data}")
    assert (code, out) == (1, "")
    assert re.match(r"picknet: \d good and \d bad captions \(good: CIDEr above 0.5\): at least 10 of each kind", err)
    assert "with a single clip" not in err
    assert json.loads((model / "card.json").read_text()) == {"trained_on": "nothing"}
    (data / "captions.jsonl").write_text(json.dumps(rows[0]) + "\n")
    _, _, err = picknet("calibrate", "--model", model, "--data", f"folder={data}")
    assert err.endswith("a larger split (CIDEr weighs words by how few clips have them: with a single clip it is 0)\n")


def test_a_card_that_cannot_be_written_is_an_error_before_any_clip_is_captioned(
    picknet: Picknet, calibratable: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(target: Path) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(target))

    model, data = calibratable
    monkeypatch.setattr("picknet.files._create", refuse)
    monkeypatch.setattr("picknet.study.calibration.describe", lambda *_, **__: pytest.fail("captioned"))
    code, out, err = picknet("calibrate", "--model", model, "--data", f"folder={data}")
    assert (code, out) == (1, "")
    assert err == f"picknet: {model}/card.json: cannot be written (Read-only file system)\n"
