import csv
import errno
import io
import json
import math
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
from clips import write_audio, write_clip
from command import Picknet, on_linux, subprocess_of
from folders import unsealed
from PIL import Image

from picknet.cli.arguments import find_videos, own_names
from picknet.picking.picker import Pick
from picknet.results import Caption, Sentence
from picknet.video.file import UnreadableVideo

KEYS = [
    "video", "caption", "confidence", "not_sure", "num_picks", "picks", "frames_seen", "seconds", "width", "height",
    "model", "candidates", "damage", "error",
]  # fmt: skip


def test_a_style_is_one_that_the_model_learned(picknet: Picknet, clips: Path, attending_folder: Path) -> None:
    plain = picknet("caption", clips / "cat.mp4", "--model", attending_folder, "--format", "json")
    styled = picknet("caption", clips / "cat.mp4", "--model", attending_folder, "--format", "json", "--style", "msrvtt")
    assert (plain.code, styled.code) == (0, 0)
    assert json.loads(plain.out)["picks"] == json.loads(styled.out)["picks"]
    for command in (("caption", clips), ("stream", clips / "cat.mp4"), ("timeline", clips)):
        code, out, err = picknet(*command, "--model", attending_folder, "--style", "coco")
        assert (code, out) == (1, "")
        assert err.splitlines()[-1].endswith("was not trained on; possible: msrvtt")
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
    assert list(cat) == KEYS
    assert cat["confidence"] is None
    assert (cat["video"], cat["frames_seen"], cat["model"]) == (str(clips / "cat.mp4"), 30, str(model_folder))
    assert (cat["width"], cat["height"]) == (96, 64)
    assert (cat["num_picks"], cat["seconds"], cat["damage"], cat["error"]) == (2, 1.6, None, None)
    _, lines, _ = picknet("caption", clips, "--model", model_folder, "-f", "jsonl", "--picker", "uniform", "--k", 2)
    assert lines == out
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
    columns = ["video", "caption", "confidence", "picks", "seconds", "frames_seen", "model", "damage", "error"]
    assert list(row) == [*columns, "not_sure"]
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


def test_a_doubtful_caption_is_called_one(picknet: Picknet, clips: Path, sure: Path) -> None:
    arguments = ("caption", clips / "cat.mp4", "--model", sure)
    advice = '; --min-confidence 0.5 says "not sure" instead\n'
    assert picknet(*arguments).err == "picknet: a doubtful caption, with a confidence of 0.38" + advice
    several = picknet(*arguments, clips / "dog.mkv", clips / "gone.mp4").err
    named = f"{clips / 'cat.mp4'} (0.38), {clips / 'dog.mkv'} (0.38)"
    assert several.endswith(f"picknet: 2 of 2 captions are doubtful, with a confidence below 0.5: {named}{advice}")
    many = picknet(*arguments, *[clips / "cat.mp4"] * 5).err
    assert f"6 of 6 captions are doubtful, with a confidence below 0.5: {clips / 'cat.mp4'} (0.38), " in many
    assert f"{clips / 'cat.mp4'} (0.38), 1 more; " in many
    for shown in (("--quiet",), ("--candidates", 1), ("--format", "jsonl"), ("--min-confidence", 0.1)):
        assert picknet(*arguments, *shown).err == ""


def test_candidates_are_a_list_in_json_and_columns_in_csv(picknet: Picknet, clips: Path, sure: Path) -> None:
    options = (clips / "cat.mp4", "--model", sure, "--candidates", 3)
    content = json.loads(picknet("caption", *options, "--format", "json").out)
    assert list(content) == KEYS
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
    assert len(picks("--k", 3)) == 3
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
    assert lines[2].startswith(f"picknet: {tmp_path}/folder: no video in this folder (looked for .3g2, .3gp, ")
    assert lines[3:] == [
        f"picknet: {text}: not a known video format",
        f"picknet: {empty}: the file is empty",
        f"picknet: {sound}: no video stream found (streams: audio)",
    ]


@pytest.mark.parametrize("command", [("caption", "--format", "csv"), ("pick", "--budget", "2", "--format", "csv")])
def test_a_terminal_does_not_obey_the_name_of_a_file(
    picknet: Picknet,
    model_folder: Path,
    clips: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: tuple[str, ...],
) -> None:
    hostile = tmp_path / "a\x1b[31mb.mp4"
    hostile.write_bytes((clips / "cat.mp4").read_bytes())
    name, *options = command
    arguments = (name, hostile, "--model", model_folder, *options)
    assert "a\x1b[31mb.mp4" in picknet(*arguments).out  # a program gets the name as it is
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    shown = picknet(*arguments).out
    assert "a\\x1b[31mb.mp4" in shown
    assert "\x1b" not in shown


def test_what_is_no_video_has_a_row_in_files_for_programs(
    picknet: Picknet, clips: Path, tmp_path: Path, model_folder: Path
) -> None:
    gone, out = tmp_path / "gone.mp4", tmp_path / "captions.jsonl"
    arguments = (gone, f"{tmp_path}/*.avi", "--model", model_folder)
    code, _, err = picknet("caption", clips / "cat.mp4", *arguments, "--out", out)
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["video"], row["error"]) for row in rows] == [
        (str(gone), f"{gone}: no such file or folder"),
        (f"{tmp_path}/*.avi", f"{tmp_path}/*.avi: no file matches this pattern"),
        (str(clips / "cat.mp4"), None),
    ]
    assert (code, err.count("\n")) == (1, 2)
    code, printed, err = picknet("caption", *arguments, "--format", "csv", "--jobs", 2)  # none of them is a video
    assert [row["video"] for row in csv.DictReader(io.StringIO(printed))] == [str(gone), f"{tmp_path}/*.avi"]
    assert (code, err.count("\n")) == (1, 2)


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


def test_the_name_of_a_second_sheet_is_not_too_long() -> None:
    name = "ä" * 125
    first, second, third = own_names([f"a/{name}x.mp4", f"b/{name}x.mp4", f"c/{name}x.mp4"])
    assert (first, second, third) == (f"{name}x", f"{'ä' * 115}-2", f"{'ä' * 115}-3")


def test_what_cannot_be_read_in_a_folder_is_an_error_and_the_rest_is_captioned(
    picknet: Picknet, clips: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sure: Path
) -> None:
    def scandir(path: Any) -> Any:
        if os.fspath(path).endswith("no"):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return scan(path)

    def open_regular(path: Any) -> Any:
        raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))

    scan = os.scandir
    monkeypatch.setattr("os.scandir", scandir)
    monkeypatch.setattr("picknet.video.source.open_regular", open_regular)
    monkeypatch.chdir(tmp_path)
    for name in ("d/no", "d/yes"):
        Path(name).mkdir(parents=True)
    shutil.copy(clips / "cat.mp4", "d/yes")
    Path("d/gone.mp4").symlink_to("nowhere")
    Path("d/self.mp4").symlink_to("self.mp4")
    os.mkfifo("d/pipe.mp4")
    code, out, err = picknet("caption", "d", "--model", sure, "-q")
    assert (code, out) == (1, "d/yes/cat.mp4: a cat is sitting\n")
    assert sorted(err.splitlines()) == [
        "picknet: d/gone.mp4: cannot be read (broken link)",
        "picknet: d/no: cannot be read (Permission denied)",
        "picknet: d/pipe.mp4: is not a regular file",
        "picknet: d/self.mp4: cannot be read (broken link)",
    ]
    for pattern in ("d/*/*.mp4", "d/**/cat.mp4"):
        code, out, err = picknet("caption", pattern, "--model", sure, "-q")
        assert (code, out, err) == (
            1, "d/yes/cat.mp4: a cat is sitting\n", "picknet: d/no: cannot be read (Permission denied)\n",
        )  # fmt: skip
    for alone in ("d/no", "d/no/*.mp4"):
        assert picknet("caption", alone).err == "picknet: d/no: cannot be read (Permission denied)\n"
    Path("d/yes/show.ts").touch()
    assert find_videos(["d/yes"]) == (["d/yes/cat.mp4", "d/yes/show.ts"], [])


def test_a_sheet_that_cannot_be_is_a_usage_error(picknet: Picknet, clips: Path, tmp_path: Path) -> None:
    code, _, err = picknet("caption", clips, "--sheet", tmp_path / "a.png")
    assert code == 2
    assert err == f"picknet: --sheet {tmp_path}/a.png: one file cannot hold the sheets of 2 videos; name a folder\n"
    code, _, err = picknet("caption", clips / "cat.mp4", "--sheet", "a.pdf")
    assert code == 2
    assert err == ("picknet: --sheet a.pdf: a sheet ends in .png, .jpg, .jpeg, .webp; a folder's name has no suffix\n")


def test_a_sheet_that_cannot_be_written_is_told_before_a_video_is_read(
    picknet: Picknet, clips: Path, model_folder: Path
) -> None:
    inside_a_file = clips / "cat.mp4" / "sheet.png"
    code, out, err = picknet("caption", clips / "cat.mp4", "--model", model_folder, "--sheet", inside_a_file)
    assert (code, out) == (1, "")
    assert err.startswith(f"picknet: {inside_a_file.parent}: cannot be written (")
    assert err.count("\n") == 1


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


def test_a_rate_is_a_dial_from_few_picks_to_many(picknet: Picknet, clips: Path, attending_folder: Path) -> None:
    def picks(*options: object) -> list[tuple[int, float]]:
        command = ("caption", clips / "cat.mp4", "--model", attending_folder, "--frames", 30, "--format", "json")
        _, out, _ = picknet(*command, *options)
        return [(pick["index"], pick["probability"]) for pick in json.loads(out)["picks"]]

    few, own, many = picks("--rate", 0.25), picks(), picks("--rate", 4)
    assert 1 <= len(few) < len(own) < len(many)
    assert picks("--rate", 1) == own
    # Each pick is told with its probability at this rate.
    assert all(0 < probability < 1 for _, probability in (*few, *own, *many))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--rate", "0"], "--rate 0: more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer"),
        (["--rate", "-1"], "--rate -1: more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer"),
        (["--rate", "nan"], "--rate nan: more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer"),
        (["--rate", "inf"], "--rate inf: more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer"),
        (["--rate", "2", "--picker", "every"], "--rate 2: does not apply to every, only to picknet"),
    ],
)
def test_a_rate_that_cannot_be_is_a_usage_error(picknet: Picknet, arguments: list[str], message: str) -> None:
    assert picknet("caption", "cat.mp4", *arguments) == (2, "", f"picknet: {message}\n")


# --- Around the results ---


@pytest.fixture
def films(model_folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tiny model's folder; cat.mp4 is given out as a film of five scenes, dog.mkv as one that cannot be read."""

    def caption(captioner: object, video: str, **options: Any) -> Caption:
        if video.endswith("dog.mkv"):
            raise UnreadableVideo(f"{video}: it barks")
        return Caption("a cat", (Pick(0, 0.0),), 30, video, "tiny", None, -1.0, seconds=31.0, num_scenes=5)

    monkeypatch.setattr("picknet.captioner.Captioner.caption", caption)
    return model_folder


def test_a_video_without_a_command_is_captioned(
    picknet: Picknet, clips: Path, sure: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(clips)
    expected = picknet("caption", "cat.mp4", "--model", sure)
    assert picknet("cat.mp4", "--model", sure) == expected
    assert picknet("--model", sure, "cat.mp4") == expected
    assert picknet("c*.mp4", "--model", sure) == expected
    assert picknet(".", "--model", sure).out == "cat.mp4: a cat is sitting\ndog.mkv: a cat is sitting\n"
    assert picknet("no.mp4", "--model", sure) == (1, "", "picknet: no.mp4: no such file or folder\n")


def test_a_film_of_many_scenes_is_pointed_to_timeline_once(picknet: Picknet, clips: Path, films: Path) -> None:
    cat = clips / "cat.mp4"
    message = "several scenes; picknet timeline describes them one by one"
    assert picknet("caption", cat, "--model", films).err == f"picknet: this video shows {message}\n"
    assert picknet("caption", cat, cat, "--model", films).err == f"picknet: 2 of 2 videos show {message}\n"
    assert picknet("caption", cat, "--model", films, "--quiet").err == ""


def test_for_programs_a_video_that_failed_has_a_row_with_the_error(
    picknet: Picknet, clips: Path, films: Path, tmp_path: Path
) -> None:
    cat, dog = clips / "cat.mp4", clips / "dog.mkv"
    code, out, err = picknet("caption", dog, cat, "--model", films, "-q", "-f", "json")
    assert (code, err) == (1, f"picknet: {dog}: it barks\n")  # --quiet leaves errors
    rows = [json.loads(line) for line in out.splitlines()]
    assert [list(row) for row in rows] == [KEYS, KEYS]
    assert [(row["caption"], row["error"]) for row in rows] == [("", f"{dog}: it barks"), ("a cat", None)]
    assert rows[0]["model"] == str(films)
    file = tmp_path / "captions.csv"
    code, out, _ = picknet("caption", dog, cat, "--model", films, "-q", "-o", file)
    assert (code, out) == (1, "")
    with file.open(newline="") as lines:
        assert [row["error"] for row in csv.DictReader(lines)] == [f"{dog}: it barks", ""]


@pytest.fixture
def unsure(attending_folder: Path, tmp_path: Path) -> Path:
    """A model whose confidence is always 0.269."""
    folder = unsealed(attending_folder, tmp_path / "unsure")
    (folder / "card.json").write_text(json.dumps({"confidence": {"msvd": {"weights": {"bias": -1.0}}}}))
    return folder


def test_below_the_least_confidence_every_command_says_not_sure(
    picknet: Picknet, clips: Path, unsure: Path, tmp_path: Path
) -> None:
    cat = clips / "cat.mp4"
    options = ("--model", unsure, "--min-confidence", 0.5)
    assert picknet("caption", cat, *options).out == "not sure (0.27)\n"
    assert picknet("caption", cat, *options, "--candidates", 3).out == "not sure (0.27)\n"
    content = json.loads(picknet("caption", cat, *options, "--format", "json").out)
    assert (content["caption"], content["not_sure"], content["candidates"], content["error"]) == (
        "", "confidence 0.27 is below 0.5", [], None,
    )  # fmt: skip
    (row,) = csv.DictReader(io.StringIO(picknet("caption", cat, *options, "--format", "csv").out))
    assert (row["caption"], row["confidence"]) == ("", "0.2689")
    assert picknet("caption", cat, *options, "--sheet", tmp_path / "cat.png").code == 0
    streamed = picknet("stream", cat, *options, "--sheet", tmp_path / "stream.png", "-q").out.splitlines()
    assert {line.partition("  ")[2] for line in streamed} == {"not sure (0.27)"}
    told = picknet("timeline", cat, *options, "--sheet", tmp_path / "board.png").out
    assert told == "0:00:00-0:00:01  not sure (0.27)\n"
    assert "not sure" not in picknet("caption", cat, "--model", unsure, "--min-confidence", 0.2).out


@pytest.mark.parametrize("format", ["srt", "vtt", "edl", "chapters"])
def test_a_note_says_that_captions_are_left_out_where_nothing_stands_for_them(
    picknet: Picknet, clips: Path, unsure: Path, format: str
) -> None:
    command = ("timeline", clips / "cat.mp4", "--model", unsure, "--format", format)
    advice = "picknet: a doubtful caption, with a confidence of 0.27; --min-confidence 0.5 leaves it out\n"
    assert picknet(*command).err == advice
    left_out = picknet(*command, "--min-confidence", 0.3)
    assert left_out.err == "picknet: 1 of 1 caption is left out: its confidence is below 0.3\n"
    assert picknet(*command, "--min-confidence", 0.2).err == ""
    assert picknet(*command, "--min-confidence", 0.3, "--quiet").err == ""


def test_a_confidence_just_below_the_limit_never_looks_as_high(
    picknet: Picknet, clips: Path, unsure: Path
) -> None:
    (unsure / "card.json").write_text(json.dumps({"confidence": {"msvd": {"weights": {"bias": -0.0056}}}}))
    command = ("caption", clips / "cat.mp4", "--model", unsure)
    assert "with a confidence of 0.4986;" in picknet(*command).err
    assert picknet(*command, "--candidates", 1).out.endswith(" (confidence 0.4986)\n")
    assert picknet(*command, "--min-confidence", 0.5).out == "not sure (0.4986)\n"
    assert "confidence" not in picknet(*command, "--min-confidence", 0.2).err


def test_a_least_confidence_needs_a_calibrated_style(picknet: Picknet, clips: Path, unsure: Path) -> None:
    message = f"picknet: --min-confidence 0.5: the model {unsure} has no confidence for the style msrvtt; fit one with"
    for command in ("caption", "stream", "timeline"):
        options = (clips / "cat.mp4", "--model", unsure, "--style", "msrvtt", "--min-confidence", 0.5)
        code, out, err = picknet(command, *options)
        assert (code, out) == (1, "")
        assert err.startswith(message)
    assert picknet("caption", clips / "cat.mp4", "--min-confidence", 2).code == 2


def test_a_style_without_confidence_says_so_where_one_would_be_shown(
    picknet: Picknet, clips: Path, attending_folder: Path, tmp_path: Path
) -> None:
    options = ("caption", clips / "dog.mkv", "--model", attending_folder, "--style", "msrvtt")
    message = (
        f"picknet: --style msrvtt: the model {attending_folder} has no confidence for the style msrvtt; fit one with "
        "`picknet calibrate`\n"
    )
    assert picknet(*options).err == ""
    assert picknet(*options, "--candidates", 2).err == message
    assert picknet(*options, "--format", "csv").err == message
    assert picknet(*options, "--sheet", tmp_path / "dog.png").err == message


def test_transport_streams_in_a_folder_are_videos_and_typescript_is_not(
    picknet: Picknet, sure: Path, tmp_path: Path
) -> None:
    write_clip(tmp_path / "film.ts", num_frames=30)
    (tmp_path / "code.ts").write_text("export const answer: number = 42;\n" * 100)
    assert picknet("caption", tmp_path, tmp_path, "--model", sure).out.count("film.ts: a cat is sitting\n") == 2


def test_a_video_may_come_from_standard_input(clips: Path, model_folder: Path) -> None:
    options = ("--model", model_folder, "--format", "json")
    with (clips / "cat.mp4").open("rb") as pipe:
        process = subprocess_of("caption", "-", *options, stdin=pipe)
        out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    assert json.loads(out)["video"] == "standard input"


def test_without_temporary_space_standard_input_is_not_read(
    picknet: Picknet, clips: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full() -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tempfile.TemporaryFile", full)
    with (clips / "cat.mp4").open() as pipe:
        monkeypatch.setattr("sys.stdin", pipe)
        code, out, err = picknet("caption", "-")
    assert (code, out) == (1, "")
    assert err == "picknet: standard input: cannot be copied to a temporary file (No space left on device)\n"


@on_linux
def test_a_video_that_takes_too_long_is_given_up(picknet: Picknet, clips: Path, model_folder: Path) -> None:
    code, out, err = picknet("caption", clips / "cat.mp4", "--model", model_folder, "--timeout", 0.1)
    assert (code, out) == (1, "")
    assert err.startswith(f"picknet: {clips / 'cat.mp4'}: ")
    assert err.count("\n") == 1


def test_no_frame_is_decoded_for_a_progress_bar(
    clips: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from picknet.cli.terminal import video_progress

    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr("picknet.video.file.Video.__init__", lambda *_, **__: pytest.fail("decoded"))
    with video_progress("picking", 2) as progress:
        for video in ("cat.mp4", "dog.mkv"):
            progress.begin(str(clips / video))
            progress.at(0.4)
    assert "picking (videos)" in capsys.readouterr().err


def test_a_failure_before_the_first_row_leaves_no_part(
    picknet: Picknet, clips: Path, attending_folder: Path, tmp_path: Path
) -> None:
    options = ("--model", attending_folder, "--style", "coco", "--jobs", 2, "--out", tmp_path / "new.csv")
    code, _, err = picknet("caption", clips, *options)
    assert code == 1
    assert "holds the results so far" not in err
    assert list(tmp_path.iterdir()) == []
