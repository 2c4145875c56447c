import csv
import errno
import io
import json
import math
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import servers
from clips import number_of, picture, write_audio, write_clip
from PIL import Image

from picknet.captioner import Caption, Sentence
from picknet.cli import main
from picknet.cli.trainings import _TrainingWatch
from picknet.data.split import DataFolder
from picknet.picking.picker import Pick
from picknet.video.frame import Frame
from picknet.video.live import LostSource

on_linux = pytest.mark.skipif(sys.platform != "linux", reason="uses what only Linux has")


class Outcome(NamedTuple):
    code: int
    out: str
    err: str


Picknet = Callable[..., Outcome]


@pytest.fixture
def picknet(capsys: pytest.CaptureFixture[str]) -> Picknet:
    """The command, called in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as exit:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert "Traceback" not in err
        return Outcome(int(exit.value.code or 0), out, err)

    return run


def subprocess_of(*arguments: object, **options: Any) -> "subprocess.Popen[str]":
    command = [sys.executable, "-m", "picknet", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True, **{"stdout": subprocess.PIPE, **options})


@pytest.fixture(scope="session")
def clips(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with cat.mp4 and dog.mkv, a hidden file, and a text beside them."""
    folder = tmp_path_factory.mktemp("clips")
    write_clip(folder / "cat.mp4", num_frames=40)
    write_clip(folder / "dog.mkv", num_frames=12)
    (folder / "._cat.mp4").write_bytes(b"what a Mac leaves on foreign disks")
    (folder / "notes.txt").write_text("no video")
    return folder


# --- caption ---


def test_a_style_is_one_that_the_model_learned(picknet: Picknet, clips: Path, attending_folder: Path) -> None:
    plain = picknet("caption", clips / "cat.mp4", "--model", attending_folder, "--format", "json")
    styled = picknet("caption", clips / "cat.mp4", "--model", attending_folder, "--format", "json", "--style", "msrvtt")
    assert (plain.code, styled.code) == (0, 0)
    assert json.loads(plain.out)["picks"] == json.loads(styled.out)["picks"]
    for command in (("caption", clips), ("stream", clips / "cat.mp4"), ("timeline", clips)):
        code, out, err = picknet(*command, "--model", attending_folder, "--style", "coco")
        assert (code, out) == (1, "")
        assert err.splitlines()[-1].endswith("does not know; it knows: msrvtt")
    assert "msrvtt" in picknet("info", attending_folder).out


def test_one_video_prints_its_sentence_alone(picknet: Picknet, clips: Path, model_folder: Path) -> None:
    code, out, err = picknet("caption", clips / "cat.mp4", "--model", model_folder)
    assert code == 0
    assert err == ""
    assert out.count("\n") == 1
    assert "cat.mp4" not in out


def test_a_folder_stands_for_its_videos_in_order_with_their_names(
    picknet: Picknet, clips: Path, model_folder: Path
) -> None:
    code, out, err = picknet("caption", clips, "--model", model_folder)
    assert (code, err) == (0, "")
    assert [line.partition(": ")[0] for line in out.splitlines()] == [str(clips / "cat.mp4"), str(clips / "dog.mkv")]


def test_json_is_one_object_a_line_with_the_contracted_keys(picknet: Picknet, clips: Path, model_folder: Path) -> None:
    _, out, _ = picknet("caption", clips, "--model", model_folder, "--format", "json", "--picker", "uniform", "--k", 2)
    cat, dog = map(json.loads, out.splitlines())
    assert list(cat) == ["video", "caption", "confidence", "picks", "frames_seen", "model"]
    assert cat["confidence"] is None
    assert (cat["video"], cat["frames_seen"], cat["model"]) == (str(clips / "cat.mp4"), 30, str(model_folder))
    assert [list(pick) for pick in cat["picks"]] == [["index", "seconds", "probability", "frame_number"]] * 2
    # The centres of two halves: of 30 frames, and of the 12 that the short clip has, at 25 frames a second.
    assert [pick["index"] for pick in cat["picks"]] == [7, 22]
    assert dog["frames_seen"] == 12
    assert [(pick["index"], pick["seconds"]) for pick in dog["picks"]] == [(3, 0.12), (9, 0.36)]
    assert {pick["probability"] for pick in dog["picks"]} == {None}


def test_csv_can_be_read_back_whatever_the_names_hold(picknet: Picknet, tmp_path: Path, model_folder: Path) -> None:
    awkward = write_clip(tmp_path / 'says "hi", twice.mp4', num_frames=3)
    _, out, _ = picknet("caption", awkward, "--model", model_folder, "--format", "csv", "--picker", "all")
    (row,) = csv.DictReader(io.StringIO(out))
    assert list(row) == ["video", "caption", "confidence", "picks", "seconds", "frames_seen", "model"]
    assert row["confidence"] == ""
    assert row["video"] == str(awkward)
    assert (row["picks"], row["seconds"], row["frames_seen"]) == ("0 1 2", "0.000 0.040 0.080", "3")


@pytest.fixture
def sure(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny model's folder; whatever the video, it is given two sentences and a confidence."""

    def caption(captioner: object, video: str, **options: Any) -> Caption:
        candidates = (Sentence("a cat is sitting", math.log(0.25)), Sentence("a dog is sitting", math.log(0.125)))
        told = candidates[: options["candidates"]]
        return Caption("a cat is sitting", (Pick(0, 0.0),), 30, video, "tiny", None, math.log(0.25), 0.375, told)

    monkeypatch.setattr("picknet.captioner.Captioner.caption", caption)
    return model_folder


def test_candidates_are_a_line_each_with_their_probabilities(picknet: Picknet, clips: Path, sure: Path) -> None:
    cat, dog = clips / "cat.mp4", clips / "dog.mkv"
    assert picknet("caption", cat, "--model", sure).out == "a cat is sitting\n"
    expected = "0.2500  a cat is sitting (confidence 0.38)\n0.1250  a dog is sitting\n"
    assert picknet("caption", cat, "--model", sure, "--candidates", 3).out == expected
    _, out, _ = picknet("caption", cat, dog, "--model", sure, "--candidates", 1)
    assert out == "".join(f"{video}: 0.2500  a cat is sitting (confidence 0.38)\n" for video in (cat, dog))


def test_candidates_are_a_list_in_json_and_columns_in_csv(picknet: Picknet, clips: Path, sure: Path) -> None:
    options = (clips / "cat.mp4", "--model", sure, "--candidates", 3)
    content = json.loads(picknet("caption", *options, "--format", "json").out)
    assert list(content) == ["video", "caption", "confidence", "picks", "frames_seen", "model", "candidates"]
    assert (content["caption"], content["confidence"]) == ("a cat is sitting", 0.375)
    assert content["candidates"] == [
        {"caption": "a cat is sitting", "probability": pytest.approx(0.25)},
        {"caption": "a dog is sitting", "probability": pytest.approx(0.125)},
    ]
    (row,) = csv.DictReader(io.StringIO(picknet("caption", *options, "--format", "csv").out))
    assert (row["caption"], row["confidence"]) == ("a cat is sitting", "0.3750")
    assert [row[f"candidate_{rank}"] for rank in (1, 2, 3)] == ["a cat is sitting", "a dog is sitting", ""]
    assert [row[f"probability_{rank}"] for rank in (1, 2, 3)] == ["0.25", "0.125", ""]


def test_the_options_for_frames_and_random_picks_are_obeyed(picknet: Picknet, clips: Path, model_folder: Path) -> None:
    def picks(*options: object) -> list[int]:
        _, out, _ = picknet("caption", clips / "cat.mp4", "--model", model_folder, "--format", "json", *options)
        return [pick["index"] for pick in json.loads(out)["picks"]]

    assert picks("--picker", "all", "--frames", 5) == [0, 1, 2, 3, 4]
    assert len(picks("--picker", "kmeans", "--frames", 9, "--k", 3)) == 3
    several = [picks("--picker", "random", "--k", 5, "--seed", seed) for seed in (1, 1, 2)]
    assert several[0] == several[1] != several[2]


@pytest.mark.parametrize("name", ["-x.mp4", "two  spaces.mp4", "кот été.mp4", "[1].mp4", "100%.mp4", "a:b.mp4"])
def test_any_file_name_will_do(
    picknet: Picknet, clips: Path, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    shutil.copy(clips / "cat.mp4", tmp_path / name)
    monkeypatch.chdir(tmp_path)
    for written in (name, f"./{name}"):
        code, out, _ = picknet("caption", "--model", model_folder, "--format", "json", "--", written)
        assert code == 0
        assert json.loads(out)["video"] == written


@on_linux
def test_a_name_that_is_no_text_is_printed_with_escapes(
    picknet: Picknet, clips: Path, tmp_path: Path, model_folder: Path
) -> None:
    path = os.fsdecode(os.fsencode(tmp_path) + b"/caf\xe9.mp4")
    try:
        shutil.copy(clips / "dog.mkv", path)
    except OSError:
        pytest.skip("this file system takes no such name")
    code, out, _ = picknet("caption", "--model", model_folder, path, clips / "dog.mkv")
    assert code == 0
    assert r"caf\udce9.mp4: " in out.splitlines()[0]


def test_a_name_of_several_lines_is_told_on_one(
    picknet: Picknet, clips: Path, tmp_path: Path, model_folder: Path
) -> None:
    good = shutil.copy(clips / "dog.mkv", tmp_path / "two\nlines.mkv")
    bad = tmp_path / "red\x1b[31m\n.mp4"
    bad.write_text("no video")
    code, out, err = picknet("caption", good, bad, "--model", model_folder)
    assert code == 1
    assert out.startswith(rf"{tmp_path}/two\nlines.mkv: ")
    assert out.count("\n") == 1
    assert err == rf"picknet: {tmp_path}/red\x1b[31m\n.mp4: not a known video format" + "\n"


def test_a_quoted_pattern_is_what_the_shell_would_have_made_of_it(
    picknet: Picknet, clips: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clips)
    _, quoted, _ = picknet("caption", "--model", model_folder, "*.m*")
    _, expanded, _ = picknet("caption", "--model", model_folder, "cat.mp4", "dog.mkv")
    assert quoted == expanded


def test_one_bad_file_does_not_stop_the_others(
    picknet: Picknet, clips: Path, tmp_path: Path, model_folder: Path
) -> None:
    text, empty, sound = tmp_path / "text.mp4", tmp_path / "empty.mp4", write_audio(tmp_path / "sound.m4a")
    text.write_text("not a video at all\n" * 50)
    empty.touch()
    bad = [text, empty, sound, tmp_path / "nothing.mp4", f"{tmp_path}/*.avi", tmp_path / "folder"]
    (tmp_path / "folder").mkdir()
    code, out, err = picknet("caption", clips / "dog.mkv", *bad, clips / "cat.mp4", "--model", model_folder)
    assert code == 1
    assert [line.partition(": ")[0] for line in out.splitlines()] == [str(clips / "dog.mkv"), str(clips / "cat.mp4")]
    lines = err.splitlines()
    assert lines[:2] == [
        f"picknet: {tmp_path}/nothing.mp4: no such file or folder",
        f"picknet: {tmp_path}/*.avi: no file matches this pattern",
    ]
    assert lines[2].startswith(f"picknet: {tmp_path}/folder: no video in this folder (looked for .3gp, .avi, ")
    assert lines[3:] == [
        f"picknet: {text}: not a known video format",
        f"picknet: {empty}: the file is empty",
        f"picknet: {sound}: no video stream found (streams: audio)",
    ]


def test_an_empty_name_is_shown_as_one(picknet: Picknet) -> None:
    assert picknet("caption", "") == (1, "", "picknet: '': no such file or folder\n")


def test_with_nothing_to_caption_no_model_is_loaded(picknet: Picknet, tmp_path: Path) -> None:
    code, out, err = picknet("caption", tmp_path / "nothing.mp4", "--model", "no-such-model")
    assert (code, out) == (1, "")
    assert err == f"picknet: {tmp_path}/nothing.mp4: no such file or folder\n"


def test_a_cut_video_is_captioned_and_the_cut_is_told(picknet: Picknet, tmp_path: Path, model_folder: Path) -> None:
    whole = write_clip(tmp_path / "whole.mkv", num_frames=100)
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    code, out, err = picknet("caption", cut, "--model", model_folder, "--format", "json")
    damage = json.loads(out)["damage"]
    assert code == 0
    assert damage.startswith("the file breaks off after ")
    assert err == f"picknet: {cut}: {damage}; captioned what could be read\n"


def test_the_sheet_of_one_video_is_the_file_named(
    picknet: Picknet, clips: Path, tmp_path: Path, model_folder: Path
) -> None:
    code, _, err = picknet("caption", clips / "cat.mp4", "--model", model_folder, "--sheet", tmp_path / "new" / "a.png")
    assert (code, err) == (0, "")
    with Image.open(tmp_path / "new" / "a.png") as sheet:
        assert sheet.format == "PNG"


def test_the_sheets_of_several_videos_go_into_a_folder_and_none_over_another(
    picknet: Picknet, clips: Path, tmp_path: Path, model_folder: Path
) -> None:
    same_name = shutil.copy(clips / "dog.mkv", tmp_path / "cat.mkv")
    code, _, _ = picknet("caption", clips, same_name, "--model", model_folder, "--sheet", tmp_path / "sheets")
    assert code == 0
    assert sorted(path.name for path in (tmp_path / "sheets").iterdir()) == ["cat-2.png", "cat.png", "dog.png"]


def test_a_sheet_that_cannot_be_is_a_usage_error(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    code, _, err = picknet("caption", clips, "--sheet", tmp_path / "a.png")
    assert code == 2
    assert err == f"picknet: --sheet {tmp_path}/a.png: one file cannot hold the sheets of 2 videos; name a folder\n"
    code, _, err = picknet("caption", clips / "cat.mp4", "--sheet", "a.pdf")
    assert code == 2
    assert err == (
        "picknet: --sheet a.pdf: a sheet ends in .png, .jpg, .jpeg, .webp; a folder's name has no suffix\n"
    )


def test_a_sheet_that_cannot_be_written_is_one_line(picknet: Picknet, clips: Path, model_folder: Path) -> None:
    inside_a_file = clips / "cat.mp4" / "sheet.png"
    code, out, err = picknet("caption", clips / "cat.mp4", "--model", model_folder, "--sheet", inside_a_file)
    assert code == 1
    assert out.count("\n") == 1  # the sentence is there all the same
    assert err.startswith(f"picknet: {inside_a_file}: cannot be written (")
    assert err.count("\n") == 1


# --- pick ---


def test_pick_writes_full_size_frames_with_their_times_and_an_index(picknet: Picknet, tmp_path: Path) -> None:
    video = write_clip(tmp_path / "cat.mp4", num_frames=30, width=320, height=180)
    out = tmp_path / "new" / "frames"
    code, printed, _ = picknet("pick", video, "--out", out, "--picker", "uniform", "--k", 2)
    names = ["0001-00h00m00.280s.jpg", "0002-00h00m00.880s.jpg"]  # frames 7 and 22 at 25 a second
    assert code == 0
    assert printed.splitlines() == [str(out / name) for name in names]
    size = {"width": 320, "height": 180}
    assert json.loads((out / "index.json").read_text()) == {
        "video": str(video),
        "picker": "uniform",
        "frames_seen": 30,
        "picks": [
            {"file": names[0], "index": 7, "seconds": 0.28, "probability": None, "frame_number": 7, **size},
            {"file": names[1], "index": 22, "seconds": 0.88, "probability": None, "frame_number": 22, **size},
        ],
    }
    for name, number in zip(names, (7, 22), strict=True):
        with Image.open(out / name) as image:
            assert (image.size, image.format) == ((320, 180), "JPEG")
            assert number_of(np.asarray(image)) == number


def test_frames_of_a_turned_video_are_upright(picknet: Picknet, tmp_path: Path) -> None:
    video = write_clip(tmp_path / "phone.mp4", num_frames=3, width=96, height=64, rotation=90)
    code, printed, _ = picknet("pick", video, "--out", tmp_path / "frames", "--budget", 1, "--image-format", "png")
    assert (code, printed) == (0, f"{tmp_path}/frames/0001-00h00m00.000s.png\n")
    with Image.open(printed.strip()) as image:
        assert (image.size, image.format) == ((64, 96), "PNG")
        # As coded, red is on the left of the lower half. Turned left by 90°, it is at the bottom of the right half.
        red, blue = image.getpixel((48, 80)), image.getpixel((48, 16))
    assert red[0] > 150 > red[2]
    assert blue[2] > 150 > blue[0]


def test_a_budget_is_kept_to_and_with_exact_spent(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    for budget in (1, 5, 40):
        _, most, _ = picknet("pick", clips / "cat.mp4", "--out", tmp_path / f"most{budget}", "--budget", budget)
        _, all_of_it, _ = picknet(
            "pick", clips / "cat.mp4", "--out", tmp_path / f"all{budget}", "--budget", budget, "--exact"
        )
        assert 1 <= len(most.splitlines()) <= budget
        assert len(all_of_it.splitlines()) == budget
    code, out, err = picknet("pick", clips / "cat.mp4", "--out", tmp_path / "no", "--budget", 41, "--exact")
    assert (code, out) == (1, "")
    assert err == f"picknet: {clips}/cat.mp4: exactly 41 frames were asked for, and it has 40\n"
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--budget", "0"], "--budget 0: 1 to 1,000 frames are possible"),
        (["--budget", "-1"], "--budget -1: 1 to 1,000 frames are possible"),
        (["--budget", "10000"], "--budget 10000: 1 to 1,000 frames are possible"),
        (["--budget", "3", "--picker", "uniform"], "--budget is for --picker picknet; uniform takes --k"),
        (["--exact"], "--exact needs a --budget to keep to"),
        (["--max-side", "0"], "Invalid value for '--max-side': "),
        (["--image-format", "gif"], "Invalid value for '--image-format': "),
    ],
)
def test_picks_that_cannot_be_are_a_usage_error(
    picknet: Picknet, tmp_path: Path, arguments: list[str], message: str
) -> None:
    code, out, err = picknet("pick", "cat.mp4", "--out", tmp_path, *arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"picknet: {message}")
    assert err.count("\n") == 1


def test_without_a_folder_pick_has_to_print_the_frames_themselves(picknet: Picknet) -> None:
    code, out, err = picknet("pick", "cat.mp4", "--budget", 3)
    assert (code, out) == (2, "")
    told = "--format paths needs a folder: --out DIR; possible without one are base64, openai, anthropic"
    assert err == f"picknet: {told}\n"


def test_pick_prints_ready_parts_of_messages(
    picknet: Picknet, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    options = ("pick", clips / "cat.mp4", "--picker", "uniform", "--k", 2, "--max-side", 48)
    _, out, _ = picknet(*options, "--format", "openai")
    times, images = (json.loads(out)[start::2] for start in (0, 1))
    assert times == [{"type": "text", "text": "0:00.4"}, {"type": "text", "text": "0:01.2"}]  # 10 and 30 of 40 at 25
    assert [list(image) for image in images] == [["type", "image_url"]] * 2
    start = "data:image/jpeg;base64,"
    sent = [image["image_url"]["url"] for image in images]
    assert all(url.startswith(start) for url in sent)
    _, out, _ = picknet(*options, "--format", "anthropic")
    parts = json.loads(out)
    assert parts[0] == times[0]
    data = [url.removeprefix(start) for url in sent]
    assert [part["source"] for part in parts[1::2]] == [
        {"type": "base64", "media_type": "image/jpeg", "data": one} for one in data
    ]
    _, out, _ = picknet(*options, "--format", "base64")
    lines = [json.loads(line) for line in out.splitlines()]
    assert [line.pop("data") for line in lines] == data
    assert [round(line.pop("seconds"), 6) for line in lines] == [0.4, 1.2]
    same = {"video": f"{clips}/cat.mp4", "probability": None, "width": 48, "height": 32, "media_type": "image/jpeg"}
    # Of 40 frames at 25 a second, 30 are sampled.
    assert lines == [{**same, "index": index, "frame_number": number} for index, number in ((7, 10), (22, 30))]
    assert list(tmp_path.iterdir()) == []


def test_parts_of_messages_can_be_printed_beside_the_files(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    arguments = ("--budget", 1, "--format", "openai", "--out", tmp_path / "frames")
    _, out, _ = picknet("pick", clips / "cat.mp4", clips / "dog.mkv", *arguments)
    assert [len(json.loads(line)) for line in out.splitlines()] == [2, 2]
    assert (tmp_path / "frames" / "dog" / "0001-00h00m00.000s.jpg").exists()


def test_of_several_videos_each_has_a_folder_and_bad_ones_none(
    picknet: Picknet, clips: Path, tmp_path: Path
) -> None:
    (tmp_path / "Cat.avi").write_text("no video")
    same_name = shutil.copy(clips / "dog.mkv", tmp_path / "Cat.mkv")
    out = tmp_path / "frames"
    arguments = (clips, tmp_path / "Cat.avi", same_name, "no.mp4", "--out", out, "--budget", 1)
    code, printed, err = picknet("pick", *arguments)
    assert code == 1
    name = "0001-00h00m00.000s.jpg"
    # Cat is the same as cat where capitals do not count.
    assert printed.splitlines() == [str(out / folder / name) for folder in ("cat", "dog", "Cat-3")]
    assert err.splitlines() == [
        "picknet: no.mp4: no such file or folder",
        f"picknet: {tmp_path}/Cat.avi: not a known video format",
    ]
    assert sorted(path.name for path in out.iterdir()) == ["Cat-3", "cat", "dog"]


def test_a_cut_video_is_picked_from_and_the_cut_is_told(picknet: Picknet, tmp_path: Path) -> None:
    whole = write_clip(tmp_path / "whole.mkv", num_frames=60).read_bytes()
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(whole[: len(whole) // 2])
    code, _, err = picknet("pick", cut, "--out", tmp_path / "frames", "--budget", 2)
    damage = json.loads((tmp_path / "frames" / "index.json").read_text())["damage"]
    assert code == 0
    assert err == f"picknet: {cut}: {damage}; picked from what could be read\n"


def test_pick_leaves_a_folder_with_other_things_alone(picknet: Picknet, clips: Path) -> None:
    before = sorted(clips.iterdir())
    for place in (clips, clips / "notes.txt"):
        code, _, err = picknet("pick", clips / "cat.mp4", "--out", place, "--picker", "all")
        assert code == 2
        assert err == f"picknet: {place}: is there already and is not an empty folder; name a new one\n"
    assert sorted(clips.iterdir()) == before


def test_a_folder_that_cannot_be_written_is_told_before_a_video_is_read(
    picknet: Picknet, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("picknet.captioner.picked", None)
    inside_a_file = clips / "notes.txt" / "frames"
    code, out, err = picknet("pick", clips / "cat.mp4", "--out", inside_a_file, "--budget", 2)
    assert (code, out) == (1, "")
    assert err == f"picknet: {inside_a_file}: cannot be written (Not a directory)\n"


def test_on_a_full_disk_the_frames_that_were_written_are_kept(
    picknet: Picknet, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    num_written = 0

    def write_bytes(path: Path, content: bytes) -> None:
        nonlocal num_written
        num_written += 1
        with path.open("wb") as file:
            file.write(content[: 100 if num_written == 3 else None])
        if num_written == 3:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "write_bytes", write_bytes)
    out = tmp_path / "frames"
    code, printed, err = picknet("pick", clips / "cat.mp4", "--out", out, "--picker", "uniform", "--k", 4)
    names = [Path(line).name for line in printed.splitlines()]
    assert code == 1
    assert len(names) == 2
    assert err.startswith(f"picknet: {out}/0003-00h00m")
    assert err.endswith("s.jpg: cannot be written (No space left on device)\n")
    assert sorted(path.name for path in out.iterdir()) == [*names, "index.json"]
    assert [row["file"] for row in json.loads((out / "index.json").read_text())["picks"]] == names


def test_a_live_source_needs_a_budget(picknet: Picknet, tmp_path: Path) -> None:
    for options in ([], ["--budget", 3, "--exact"]):
        code, _, err = picknet("pick", "rtsp://me:geheim@camera/1", "--out", tmp_path / "frames", *options)
        name = "rtsp://me:***@camera/1"
        assert code == 2
        assert err == f"picknet: {name}: may have no end; --budget N, without --exact, says how much to keep\n"


def test_an_address_among_files_is_told_without_its_password(picknet: Picknet) -> None:
    code, _, err = picknet("caption", "rtsp://me:geheim@camera/1")
    told = "an address, not a file; picknet stream describes those"
    assert (code, err) == (1, f"picknet: rtsp://me:***@camera/1: {told}\n")


def test_a_pipe_is_picked_from_in_one_pass(tmp_path: Path) -> None:
    film = write_clip(tmp_path / "film.mkv", num_frames=100, seekable=False)
    with film.open("rb") as pipe:
        process = subprocess_of("pick", "-", "--budget", 3, "--out", tmp_path / "frames", stdin=pipe)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    index = json.loads((tmp_path / "frames" / "index.json").read_text())
    assert (index["video"], index["frames_seen"]) == ("standard input", 4)  # of four seconds
    assert out.splitlines() == [str(tmp_path / "frames" / row["file"]) for row in index["picks"]]
    assert index["picks"][0]["seconds"] == 0


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (write_audio, "no video stream found (streams: audio)"),
        (lambda path: path.write_bytes(b""), "nothing came, or what it sends is not a known video format"),
    ],
)
def test_a_pipe_without_a_picture_is_an_error_and_leaves_no_folder(
    tmp_path: Path, content: Callable[[Path], object], told: str
) -> None:
    content(tmp_path / "sound.mp4")
    with (tmp_path / "sound.mp4").open("rb") as pipe:
        process = subprocess_of("pick", "-", "--budget", 3, "--out", tmp_path / "frames", stdin=pipe)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out, err) == (1, "", f"picknet: standard input: {told}\n")
    assert not (tmp_path / "frames").exists()


@on_linux
@pytest.mark.parametrize(("ending", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_live_source_is_picked_from_until_it_is_enough(tmp_path: Path, ending: signal.Signals, code: int) -> None:
    feed = servers.Feed(servers.transport_stream(300))
    with servers.http(feed) as server:
        source = f"http://127.0.0.1:{server.port}/1"
        process = subprocess_of(
            "pick", source, "--budget", 3, "--out", tmp_path / "frames",
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
        )  # fmt: skip
        while not feed.began:
            time.sleep(0.05)
        time.sleep(3.5)
        process.send_signal(ending)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (code, "")
    index = json.loads((tmp_path / "frames" / "index.json").read_text())
    assert index["video"] == source
    assert 1 <= index["frames_seen"] <= 5
    assert out.splitlines() == [str(tmp_path / "frames" / row["file"]) for row in index["picks"]]


def test_of_a_source_that_is_lost_what_was_picked_is_kept(
    picknet: Picknet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lost(_: object) -> Iterator[Frame]:
        yield Frame.from_pixels(picture(7), index=0, seconds=0.0)
        raise LostSource("http://camera: lost after 1.0 s (it went dark)")

    monkeypatch.setattr("picknet.video.live.Live.__iter__", lost)
    code, out, err = picknet("pick", "http://camera", "--budget", 3, "--out", tmp_path / "frames")
    assert (code, out) == (1, f"{tmp_path}/frames/0001-00h00m00.000s.jpg\n")
    assert err == "picknet: http://camera: lost after 1.0 s (it went dark)\n"


# --- evaluate ---


@pytest.fixture
def data(clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A data folder of two clips; a third is not there and a fourth is no video."""
    monkeypatch.setattr("picknet.metrics.meteor", lambda candidates, references: None)
    folder = tmp_path / "data"
    (folder / "videos").mkdir(parents=True)
    for name in ("cat.mp4", "dog.mkv"):
        shutil.copy(clips / name, folder / "videos")
    (folder / "videos" / "text.mp4").write_text("no video")
    captions = {"cat": ["a cat is sitting"], "dog": ["a dog is running"], "gone": ["a man"], "text": ["a woman"]}
    (folder / "captions.json").write_text(json.dumps(captions))
    return folder


def test_evaluate_prints_one_object_with_the_contracted_keys(picknet: Picknet, data: Path, model_folder: Path) -> None:
    options = ("--data", data, "--dataset", "folder", "--split", "all", "--model", model_folder)
    code, out, err = picknet("evaluate", *options, "--format", "json")
    content = json.loads(out)
    assert (code, err) == (0, "")
    assert {"bleu4", "rouge_l", "meteor", "cider", "mean_picks", "num_videos", "seconds", "missing"} <= content.keys()
    assert content["num_videos"] == 2
    assert content["missing"] == [
        {"clip": "gone", "reason": "no video named gone"},
        {"clip": "text", "reason": f"{data}/videos/text.mp4: not a known video format"},
    ]


def test_evaluate_with_several_pickers_prints_the_papers_table_and_what_is_missing(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = ("--data", data, "--dataset", "folder", "--split", "all", "--model", model_folder)
    pickers = ("--picker", "picknet", "--picker", "all", "--picker", "uniform", "--picker", "random", "--k", 3)
    code, out, _ = picknet("evaluate", *options, *pickers, "--captions", tmp_path / "said.json", "--frames", 10)
    lines = out.splitlines()
    assert code == 0
    assert lines[0] == "| Model         | BLEU@4 | ROUGE-L | METEOR | CIDEr | picks | Time |"
    labels = ["PickNet", "Baseline", "Uniform (k=3)", "Random (k=3)"]
    assert [line.split("|")[1].strip() for line in lines[2:6]] == labels
    assert [line.split("|")[6].strip() for line in lines[3:6]] == ["10.0", "3.0", "3.0"]
    assert lines[7:9] == ["missing 2 clips:", "  gone: no video named gone"]
    said = json.loads((tmp_path / "said.json").read_text())
    assert [(row["clip"], row["picker"]) for row in said[:4]] == [
        ("cat", "picknet"),
        ("dog", "picknet"),
        ("cat", "all"),
        ("dog", "all"),
    ]
    assert len(said[2]["picks"]) == 10


def test_evaluate_prints_one_result_line_by_line_and_draws_its_picks(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = ("--data", data, "--dataset", "folder", "--split", "all", "--model", model_folder, "--picker", "all")
    code, out, _ = picknet("evaluate", *options, "--histograms", tmp_path / "picks.png")
    lines = out.splitlines()
    assert code == 0
    # 30 frames of one clip, and all 12 of the other.
    assert lines[0].startswith("Baseline on folder all: 2 clips, 21.0 picks a clip, ")
    assert [line.split()[0] for line in lines[1:8]] == [
        "BLEU@1", "BLEU@2", "BLEU@3", "BLEU@4", "ROUGE-L", "METEOR", "CIDEr",
    ]  # fmt: skip
    assert 'METEOR      – (needs Java and pip install "picknet[meteor]")' in lines
    with Image.open(tmp_path / "picks.png") as picture:
        assert picture.format == "PNG"


def test_pickers_that_take_a_number_on_average_are_told_it_by_k(
    picknet: Picknet, clips: Path, model_folder: Path
) -> None:
    def picks(*options: object) -> list[int]:
        _, out, _ = picknet("caption", clips / "cat.mp4", "--model", model_folder, "--format", "json", *options)
        return [pick["index"] for pick in json.loads(out)["picks"]]

    assert picks("--picker", "every", "--k", 4) == [3, 11, 18, 26]  # 30 frames: every 7.5th
    assert picks("--picker", "every", "--k", 2, "--frames", 10) == [2, 7]
    assert picks("--picker", "every") == [2, 7, 12, 17, 22, 27]
    assert picks("--picker", "coin", "--k", 1) == [0]
    assert picks("--picker", "coin", "--k", 30) == list(range(30))
    assert picks("--picker", "coin", "--k", 99, "--frames", 1) == [0]
    # Frames differ in the upper half alone, by at most 127 grey values on average.
    assert picks("--picker", "scene", "--change", 200) == [0]
    assert len(picks("--picker", "scene", "--change", 0)) > 20


def test_evaluate_tells_the_change_and_draws_examples(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path
) -> None:
    options = ("--data", data, "--dataset", "folder", "--split", "all", "--model", model_folder, "--format", "json")
    code, out, err = picknet(
        "evaluate", *options, "--picker", "scene", "--change", 12.5, "--examples", tmp_path / "examples.png"
    )
    assert (code, err) == (0, "")
    content = json.loads(out)
    assert (content["picker"], content["k"], content["change"]) == ("scene", None, 12.5)
    with Image.open(tmp_path / "examples.png") as picture:
        assert (picture.format, picture.width) == ("PNG", 1600)


def test_compare_prints_the_tables_and_writes_them_with_the_command(
    picknet: Picknet, data: Path, model_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from picknet.study import comparison, judging

    monkeypatch.setattr(judging, "KS", range(1, 3))
    monkeypatch.setattr(judging, "NUM_DRAWS", 2)
    monkeypatch.setattr(comparison, "NUM_RESAMPLES", 20)
    (tmp_path / "dog.txt").write_text("dog\n")
    (tmp_path / "rest.txt").write_text("cat\ngone\ntext\n")
    folds = ("--model", model_folder, "--clips", tmp_path / "dog.txt")
    folds += ("--model", model_folder, "--clips", tmp_path / "rest.txt")
    options = ("--data", data, "--dataset", "folder", "--split", "all", *folds, "--subsets", 2, "--seed", 3)
    code, out, err = picknet("compare", *options, "--out", tmp_path / "out", "--cache", tmp_path / "cache")
    assert (code, err) == (0, "")
    assert out.startswith("2 models on folder all: 2 clips, beam 1, seed 3.\n")
    assert "- gone: no video named gone\n" in out
    written = (tmp_path / "out" / "comparison.md").read_text()
    told = f"--model {model_folder} --clips {tmp_path}/dog.txt --model {model_folder} --clips {tmp_path}/rest.txt"
    told = f"--data {data} --dataset folder --split all {told} --beam 1 --subsets 2 --seed 3"
    assert f"$ picknet compare {told}\n" in written
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_report_writes_its_page_and_names_it(picknet: Picknet, tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "metrics.csv").write_text("stage,epoch,loss,val_cider,val_picks\nsupervision,1,3.5,42.0,6.0\n")
    code, out, err = picknet("report", run, "--out", tmp_path / "report")
    assert (code, out, err) == (0, f"{tmp_path}/report/report.md\n", "")
    assert "| supervision |    1 |          1 |  42.0 |" in (tmp_path / "report" / "report.md").read_text()
    code, out, err = picknet("report", tmp_path, "--out", tmp_path / "other")
    assert (code, out) == (1, "")
    assert err.startswith(f"picknet: {tmp_path}: is no run folder: it has none of origin.json")


def test_a_failed_meteor_is_a_note_and_not_the_end(
    picknet: Picknet, data: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from picknet.metrics import MeteorFailed

    def fail(candidates: object, references: object) -> None:
        raise MeteorFailed("METEOR: Java gave no answer")

    monkeypatch.setattr("picknet.metrics.meteor", fail)
    options = ("--data", data, "--dataset", "folder", "--split", "all", "--model", model_folder)
    code, out, err = picknet("evaluate", *options, "--format", "json")
    assert code == 0
    assert json.loads(out)["meteor"] is None
    assert err == "picknet: no METEOR: METEOR: Java gave no answer\n"


def test_data_without_a_clip_of_the_split_is_one_line(picknet: Picknet, data: Path) -> None:
    code, out, err = picknet("evaluate", "--data", data, "--dataset", "folder", "--split", "test")
    assert (code, out) == (1, "")
    assert err == f"picknet: {data}/captions.json: no clip of the test split (there are: train, val, all)\n"


# --- calibrate ---


@pytest.fixture
def calibratable(
    clips: Path, tmp_path: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[Path, Path]:
    """A copy of the tiny model, and 40 clips; it is sure of the right caption of every other one, and unsure of a
    wrong one of the rest."""
    data = tmp_path / "data"
    (data / "videos").mkdir(parents=True)
    captions = {}
    for number in range(40):
        shutil.copy(clips / "dog.mkv", data / "videos" / f"{number:02}.mkv")
        captions[f"{number:02}"] = [f"dog {number:02} is running"]
    (data / "captions.json").write_text(json.dumps(captions | {"gone": ["a man"]}))

    def caption(captioner: object, video: Path) -> Caption:
        number = Path(video).stem
        text, total = (f"dog {number} is running", -2.5) if int(number) % 2 else ("a cat is sitting", -7.5)
        return Caption(text, (Pick(0, 0.0),), 12, str(video), "tiny", None, total)

    monkeypatch.setattr("picknet.captioner.Captioner.caption", caption)
    return shutil.copytree(model_folder, tmp_path / "model"), data


def test_calibrate_tells_how_good_the_confidence_is_and_keeps_it_in_the_card(
    picknet: Picknet, calibratable: tuple[Path, Path]
) -> None:
    model, data = calibratable
    code, out, err = picknet("calibrate", "--model", model, "--data", data, "--dataset", "folder", "--split", "all")
    assert (code, err) == (0, "")
    # In each fold there are two captions of each kind, so 18 of each are fitted: 19/20 and 1/20.
    assert out.splitlines() == [
        f"{model} on folder all: 40 clips, 20 of them with a good caption (CIDEr above 0.5)",
        "AUC                         1.000",
        "expected calibration error  0.050  (10-fold cross-validation, 5 bins of equal width)",
        "  confidence 0.05: 0.00 good of 20 clips",
        "  confidence 0.95: 1.00 good of 20 clips",
        "missing 1 clip:",
        "  gone: no video named gone",
        f"written to {model}/card.json",
    ]
    kept = json.loads((model / "card.json").read_text())
    assert kept["trained_on"] == "nothing"
    assert kept["confidence"] | {"bias": 0, "slope": 0} == {
        "bias": 0, "slope": 0, "good": "CIDEr above 0.5", "clips": 40, "good_clips": 20, "ece": 0.05, "auc": 1.0,
        "split": "folder all",
    }  # fmt: skip
    _, told, _ = picknet("info", model)
    assert "\nconfidence.ece         0.05\n" in told
    _, again, _ = picknet(
        "calibrate", "--model", model, "--data", data, "--dataset", "folder", "--split", "all", "--format", "json"
    )
    content = json.loads(again)
    assert content["missing"] == [{"clip": "gone", "reason": "no video named gone"}]
    assert [bin["num_clips"] for bin in content["bins"]] == [20, 20]
    assert (content["model"], content["slope"]) == (str(model), kept["confidence"]["slope"])


def test_clips_that_no_confidence_can_be_fitted_on_leave_the_card_alone(
    picknet: Picknet, calibratable: tuple[Path, Path]
) -> None:
    model, data = calibratable
    (data / "captions.json").write_text(json.dumps({f"{number:02}": ["two men"] for number in range(3)}))
    code, out, err = picknet("calibrate", "--model", model, "--data", data, "--dataset", "folder", "--split", "all")
    assert (code, out) == (1, "")
    assert err.startswith("picknet: 0 good and 3 bad captions (good: CIDEr above 0.5): at least 10 of each kind")
    assert json.loads((model / "card.json").read_text()) == {"trained_on": "nothing"}


def test_a_model_that_cannot_be_written_is_told_before_any_clip_is_captioned(
    picknet: Picknet, calibratable: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**options: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", f"{options['dir']}/new")

    model, data = calibratable
    monkeypatch.setattr("picknet.files.tempfile.mkstemp", refuse)
    monkeypatch.setattr("picknet.captioner.Captioner.caption", lambda *_: pytest.fail("captioned"))
    code, out, err = picknet("calibrate", "--model", model, "--data", data, "--dataset", "folder", "--split", "all")
    assert (code, out) == (1, "")
    assert err == f"picknet: {model}/card.json: cannot be written (Read-only file system)\n"


# --- train and export ---


@pytest.fixture
def trained(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """What `picknet train` asked for; nothing is trained."""
    asked: dict[str, Any] = {}

    def train(config: Any, **rest: Any) -> Path:
        asked.update(rest, config=config)
        rest["seen"]("train", 1, 2)
        rest["seen"]("train", 2, 2)
        rest["note"]("2 clips of the train split, 1 missing")
        rest["report"]("supervision", 1, 2, {"loss": 2.51, "val_cider": 31.25, "val_picks": 30.0, "best": 31.25})
        return Path(rest["out"]) / "model"

    monkeypatch.setattr("picknet.training.recipe.train", train)
    return asked


def test_train_hands_on_what_it_was_told_and_prints_a_line_an_epoch(
    picknet: Picknet, tmp_path: Path, trained: dict[str, Any]
) -> None:
    config = tmp_path / "small.toml"
    config.write_text("seed = 3\n")
    code, out, err = picknet(
        "train", config, "--data", tmp_path, "--out", "RUN", "--set", "reward.penalty=-2", "--set", "beam=4",
        "--stage", "supervision", "--stage", "adaptation", "--device", "cpu", "--cache", "CACHE",
    )  # fmt: skip
    assert code == 0
    assert (trained["config"].seed, trained["config"].reward.penalty, trained["config"].beam) == (3, -2.0, 4)
    assert trained["data"] == (DataFolder("msvd", tmp_path),)
    assert (trained["out"], trained["cache"]) == (Path("RUN"), Path("CACHE"))
    assert trained["stages"] == ("supervision", "adaptation")
    assert (trained["start"], trained["resume"], trained["device"]) == (None, False, "cpu")
    assert (trained["fold"], trained["judges"]) == (None, ())
    assert out.splitlines() == [
        "train: 2 clips looked at",
        "supervision 1/2: loss 2.51, val cider 31.25, val picks 30, best 31.25",
        f"{Path('RUN') / 'model'}: trained; try picknet caption VIDEO --model RUN",
    ]
    assert err == "picknet: 2 clips of the train split, 1 missing\n"


def test_fine_tuning_takes_the_models_own_settings_and_a_folder_of_ones_own(
    picknet: Picknet, tmp_path: Path, model_folder: Path, trained: dict[str, Any]
) -> None:
    code, _, _ = picknet("train", "--from", model_folder, "--data", tmp_path, "--out", "RUN", "--set", "seed=7")
    assert code == 0
    assert (trained["data"], trained["start"]) == ((DataFolder("folder", tmp_path),), model_folder)
    assert trained["stages"] == ("adaptation",)
    assert (trained["config"].model.image_size, trained["config"].seed) == (64, 7)


def test_train_takes_several_data_sets_a_fold_and_its_judges(
    picknet: Picknet, tmp_path: Path, trained: dict[str, Any]
) -> None:
    config = tmp_path / "small.toml"
    config.write_text("seed = 3\n")
    for name in ("pictures", "videos"):
        (tmp_path / name).mkdir()
    code, _, _ = picknet(
        "train", config, "--data", f"coco={tmp_path}/pictures", "--data", f"msrvtt={tmp_path}/videos", "--out", "RUN",
        "--fold", "2/5", "--judge", "A", "--judge", "B",
    )  # fmt: skip
    assert code == 0
    assert trained["data"] == (DataFolder("coco", tmp_path / "pictures"), DataFolder("msrvtt", tmp_path / "videos"))
    assert (str(trained["fold"]), trained["judges"]) == ("2/5", [Path("A"), Path("B")])
    code, _, err = picknet("train", config, "--data", tmp_path, "--out", "RUN", "--fold", "6/5")
    assert (code, err) == (1, "picknet: --fold 6/5: expected as in 1/5, the first of five\n")


def test_a_resumed_run_goes_on_with_its_own_settings(
    picknet: Picknet, tmp_path: Path, trained: dict[str, Any]
) -> None:
    (tmp_path / "config.toml").write_text("seed = 11\n")
    code, _, _ = picknet("train", "--data", tmp_path, "--out", tmp_path, "--resume")
    assert (code, trained["resume"], trained["config"].seed) == (0, True, 11)


def test_training_without_settings_is_a_usage_error(picknet: Picknet, tmp_path: Path) -> None:
    code, _, err = picknet("train", "--data", tmp_path, "--out", "RUN")
    assert code == 2
    assert err == (
        "picknet: which settings? Name a config file, as in configs/msvd.toml, or a model to go on from: --from\n"
    )


def test_an_unknown_setting_names_the_nearest_known_one(picknet: Picknet, tmp_path: Path) -> None:
    config = tmp_path / "small.toml"
    config.write_text("seed = 3\n")
    code, _, err = picknet("train", config, "--data", tmp_path, "--out", "RUN", "--set", "reward.penality=-2")
    assert code == 2
    assert err == f"picknet: {config}: unknown setting 'reward.penality'; did you mean 'reward.penalty'?\n"


def test_training_without_pytorch_says_what_to_install(tmp_path: Path) -> None:
    (tmp_path / "small.toml").write_text("seed = 3\n")
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "from picknet.cli import main\n"
        "main(['train', 'small.toml', '--data', '.', '--out', 'RUN'])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == 'picknet: training needs torch, which is not installed; pip install "picknet[train]"\n'


def test_export_lays_more_facts_over_the_card(
    picknet: Picknet, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def export_run(run: Path, out: Path) -> None:
        out.mkdir()
        (out / "card.json").write_text('{"stages": {}, "licence": "unknown"}')

    monkeypatch.setattr("picknet.training.recipe.export_run", export_run)
    (tmp_path / "facts.json").write_text('{"licence": "Apache-2.0"}')
    out = tmp_path / "model"
    code, printed, _ = picknet("export", "RUN", out, "--card", tmp_path / "facts.json")
    assert (code, printed) == (0, f"{out}\n")
    assert json.loads((out / "card.json").read_text()) == {"stages": {}, "licence": "Apache-2.0"}


# --- info, help, version ---


def test_info_tells_of_the_model_in_text_and_json(picknet: Picknet, model_folder: Path) -> None:
    code, out, _ = picknet("info", model_folder)
    facts = {line.split(None, 1)[0]: line.split(None, 1)[1] for line in out.splitlines()}
    assert code == 0
    assert facts["cnn"] == "efficientnet_lite0"
    assert facts["vocabulary"] == "16"  # twelve words and four special ones
    assert facts["trained_on"] == "nothing"
    _, out, _ = picknet("info", model_folder, "--format", "json")
    content = json.loads(out)
    assert content["bytes"] == sum(path.stat().st_size for path in model_folder.iterdir())
    assert (content["num_frames"], content["card"]) == (30, {"trained_on": "nothing"})


def test_help_answers_at_once_and_loads_nothing_heavy() -> None:
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        done = subprocess.run([sys.executable, "-m", "picknet", "--help"], capture_output=True, text=True, check=True)
        seconds.append(time.perf_counter() - start)
    print(f"picknet --help: {min(seconds):.2f} s")
    assert min(seconds) < 2
    for command in ("caption", "pick", "evaluate", "calibrate", "train", "export", "info"):
        assert f" {command} " in done.stdout
    code = "import sys, picknet.cli; print({'numpy', 'av', 'openvino', 'torch', 'PIL'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_version_and_the_bare_command(picknet: Picknet) -> None:
    from importlib.metadata import version

    assert picknet("--version") == (0, f"picknet {version('picknet')}\n", "")
    code, out, _ = picknet()
    assert code == 0
    assert "Describe a video from the few frames that matter." in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["caption"], "Missing argument 'FILE"),
        (["caption", "a.mp4", "--bem", "3"], "No such option: --bem"),
        (["caption", "a.mp4", "--beam", "0"], "Invalid value for '--beam': "),
        (["caption", "a.mp4", "--candidates", "0"], "Invalid value for '--candidates': "),
        (["caption", "a.mp4", "--candidates", "51"], "Invalid value for '--candidates': "),
        (["calibrate", "--data", "."], "Missing option '--model'"),
        (["caption", "a.mp4", "--picker", "best"], "Invalid value for '--picker': "),
        (["evaluate", "--data", ".", "--histograms", "h.pdf"], "--histograms h.pdf: a picture ends in .png, .jpg"),
        (["captoin", "a.mp4"], "No such command 'captoin'. Did you mean 'caption'? (see picknet --help)"),
        (
            ["caption", "a.mp4", "--k", "3"],
            "--k 3: means nothing to picknet; uniform, random, kmeans, every and coin take a k",
        ),
        (
            ["evaluate", "--data", ".", "--picker", "coin", "--change", "9"],
            "--change 9: means nothing to coin; scene takes it",
        ),
        (
            ["evaluate", "--data", ".", "--examples", "e.png", "--picker", "all", "--picker", "picknet"],
            "--examples e.png: one picture shows one picker, not 2",
        ),
        (
            ["evaluate", "--data", ".", "--examples", "e.gif"],
            "--examples e.gif: a picture ends in .png, .jpg, .jpeg, .webp",
        ),
        (
            ["compare", "--data", ".", "--model", "a", "--model", "b", "--clips", "c.txt"],
            "2 models and 1 list of clips: each --model judges the clips of one --clips",
        ),
        (
            ["compare", "--data", ".", "--clips", "c.txt", "--clips", "d.txt"],
            "1 model and 2 lists of clips: each --model judges the clips of one --clips",
        ),
        (["train", "no.toml", "--data", ".", "--out", "RUN"], "no.toml: cannot be read (No such file or directory)"),
    ],
)
def test_wrong_usage_is_one_line_and_exit_code_2(picknet: Picknet, arguments: list[str], message: str) -> None:
    code, out, err = picknet(*arguments)
    assert (code, out) == (2, "")
    assert err.startswith(f"picknet: {message}")
    assert err.count("\n") == 1


# --- What can go wrong around it ---


def test_a_model_that_is_not_there_is_one_line(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    code, out, err = picknet("caption", clips, "--model", tmp_path / "nothing")
    assert (code, out) == (1, "")
    assert err.startswith(f"picknet: {tmp_path}/nothing: no such model; possible are ")
    code, _, err = picknet("info", clips)
    assert code == 1
    assert err.startswith(f"picknet: {clips}: is not a whole model: config.toml, words.txt, card.json")


@on_linux
def test_ctrl_c_is_one_line_and_exit_code_130(clips: Path, model_folder: Path) -> None:
    # A shell lets background commands ignore Ctrl-C, and children inherit that.
    process = subprocess_of(
        "caption", *[clips / "cat.mp4"] * 500, "--model", model_folder,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )  # fmt: skip
    assert process.stdout
    process.stdout.readline()
    for _ in range(5):  # impatient
        process.send_signal(signal.SIGINT)
        time.sleep(0.05)
    _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (130, "picknet: interrupted\n")


def test_ctrl_c_while_the_command_line_is_read_is_told_as_well(
    picknet: Picknet, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("typer.main.get_command", interrupt)
    monkeypatch.setattr("signal.signal", lambda *_: None)  # from then on Ctrl-C would be ignored, here as well
    assert picknet("caption", "cat.mp4") == (130, "", "picknet: interrupted\n")


@on_linux
def test_a_reader_that_has_enough_ends_the_command_without_a_word(clips: Path, model_folder: Path) -> None:
    process = subprocess_of("caption", *[clips / "dog.mkv"] * 50, "--model", model_folder)
    assert process.stdout
    assert process.stdout.readline().startswith(str(clips))
    process.stdout.close()
    assert process.stderr
    assert process.stderr.read() == ""
    assert process.wait(timeout=60) == 1


@on_linux
@pytest.mark.parametrize("command", ["caption", "help"])
def test_a_full_disk_behind_standard_output_is_one_line(clips: Path, model_folder: Path, command: str) -> None:
    arguments = ["caption", clips / "dog.mkv", "--model", model_folder] if command == "caption" else ["--help"]
    with open("/dev/full", "w") as full:
        process = subprocess_of(*arguments, stdout=full)
        _, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (1, "picknet: standard output: No space left on device\n")


def test_results_reach_a_reader_line_by_line(clips: Path, model_folder: Path) -> None:
    process = subprocess_of("caption", *[clips / "dog.mkv"] * 500, "--model", model_folder)
    assert process.stdout
    assert process.stdout.readline()
    assert process.poll() is None
    process.kill()
    process.communicate()


def test_the_bar_of_many_videos_is_on_standard_error_and_only_for_people(
    picknet: Picknet, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Deaf:
        def caption(self, video: str, **_: object) -> Caption:
            return Caption("a cat", (Pick(0, 0.0),), 30, video, "m", None, -1.0)

        picker = None

    monkeypatch.setattr("picknet.captioner.load", lambda model, style: Deaf())
    assert picknet("caption", clips / "cat.mp4", clips / "dog.mkv").err == ""
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    code, out, err = picknet("caption", clips / "cat.mp4", clips / "dog.mkv")
    assert (code, out) == (0, f"{clips / 'cat.mp4'}: a cat\n{clips / 'dog.mkv'}: a cat\n")
    assert "captioning" in err
    assert "2/2" in err


def test_the_bar_of_a_training_shows_time_left_and_all_facts_in_80_columns(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("NO_COLOR", "1")
    with _TrainingWatch() as watch:
        for epoch in (1, 2):
            facts = {"loss": 2.714, "reward": -0.123, "picks": 6.25, "val_cider": 61.75, "best_epoch": 7.0}
            watch.report("reinforcement", epoch, 200, facts)
    err = capsys.readouterr().err
    for shown in ("reinforcement", "2/200", ":", "loss 2.714", "reward -0.123", "picks 6.25", "61.75"):
        assert shown in err
    assert "…" not in err
