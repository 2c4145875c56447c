"""--out: a file is whole or as it was, and what was done until a failure is kept."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from command import Picknet, on_linux
from PIL import Image

from picknet.cli.arguments import BadUsage, ResultFormat
from picknet.cli.output import RESULT_SUFFIXES, check_out, format_for, opened, opened_live
from picknet.files import UnwritableFile


def test_the_file_appears_when_the_last_piece_is_written(tmp_path: Path) -> None:
    out = tmp_path / "new" / "captions.csv"
    with opened(out) as write:
        write("a\n")
        assert not out.exists()
        assert (tmp_path / "new" / "captions.csv.part").read_text() == "a\n"
        write("b\n")
    assert out.read_text() == "a\nb\n"
    assert list(out.parent.iterdir()) == [out]


def test_after_a_failure_the_old_file_is_as_it_was_and_the_pieces_are_in_the_part(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "captions.csv"
    out.write_text("before")
    with pytest.raises(KeyboardInterrupt), opened(out) as write:
        write("a\n")
        raise KeyboardInterrupt
    assert out.read_text() == "before"
    assert (tmp_path / "captions.csv.part").read_text() == "a\n"
    assert capsys.readouterr().err == f"picknet: {out}.part: holds the results so far\n"


@on_linux
def test_two_commands_do_not_write_the_same_file(tmp_path: Path) -> None:
    out = tmp_path / "captions.csv"
    with opened(out) as write:
        write("a\n")
        with pytest.raises(UnwritableFile) as caught, opened(out):
            pass
        assert str(caught.value) == (
            f"{out}: another process is writing it, to captions.csv.part; name another file"
        )
        write("b\n")
    assert out.read_text() == "a\nb\n"
    assert [path.name for path in tmp_path.iterdir()] == ["captions.csv"]


def test_a_part_that_is_a_link_or_a_pipe_is_replaced(tmp_path: Path) -> None:
    precious, part = tmp_path / "precious", tmp_path / "captions.csv.part"
    precious.write_text("mine")
    for plant in (lambda: part.symlink_to(precious), lambda: os.mkfifo(part)):
        plant()
        with opened(tmp_path / "captions.csv") as write:
            write("a\n")
        assert (tmp_path / "captions.csv").read_text() == "a\n"
        assert precious.read_text() == "mine"


def test_a_failure_before_the_first_piece_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt), opened(tmp_path / "a.csv") as write:
        write("")
        raise KeyboardInterrupt
    assert list(tmp_path.iterdir()) == []


def test_a_stream_is_in_its_file_at_once(tmp_path: Path) -> None:
    with opened_live(tmp_path / "log.txt") as write:
        write("a\n")
        assert (tmp_path / "log.txt").read_text() == "a\n"


def test_an_older_stream_is_kept_until_the_first_piece(tmp_path: Path) -> None:
    out = tmp_path / "log.txt"
    out.write_text("before")
    with opened_live(out) as write:
        assert out.read_text() == "before"
        write("a\n")
        write("b\n")
    assert out.read_text() == "a\nb\n"


def test_a_minus_is_standard_output_and_a_device_is_written_as_it_is(capsys: pytest.CaptureFixture[str]) -> None:
    for out in (None, Path("-")):
        with opened(out) as write:
            write("a\n")
        assert capsys.readouterr().out == "a\n"
    with opened(Path("/dev/null")) as write:
        write("a\n")
    assert not Path("/dev/null.part").exists()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    for check in (check_out, lambda out: opened(out).__enter__()):
        with pytest.raises(UnwritableFile, match=r": cannot be written \("):
            check(tmp_path / "file" / "a.csv")
    with pytest.raises(BadUsage, match="is a folder; name a file"):
        check_out(tmp_path)


@pytest.mark.parametrize(
    ("name", "asked", "expected"),
    [
        ("a.csv", None, "csv"),
        ("a.CSV", None, "csv"),
        ("a.json", None, "json"),
        ("a.json", "jsonl", "jsonl"),
        ("a.txt", None, "text"),
        ("a.log", "json", "json"),
        ("captions", None, "text"),
        ("-", None, "text"),
        ("/dev/stdout", "csv", "csv"),
    ],
)
def test_the_format_is_the_one_asked_for_or_that_of_the_suffix(name: str, asked: str | None, expected: str) -> None:
    format = ResultFormat(asked) if asked else None
    assert format_for(Path(name), format, RESULT_SUFFIXES, default=ResultFormat.text) == expected


def test_a_format_that_contradicts_the_suffix_is_wrong_usage() -> None:
    with pytest.raises(BadUsage, match=r"--out a\.csv: the suffix means csv, but --format is json"):
        format_for(Path("a.csv"), ResultFormat.json, RESULT_SUFFIXES, default=ResultFormat.text)
    with pytest.raises(BadUsage, match=r"--out a\.doc: unknown suffix; pass --format, or use one of \.txt, \.json,"):
        format_for(Path("a.doc"), None, RESULT_SUFFIXES, default=ResultFormat.text)


@on_linux
@pytest.mark.parametrize("command", ["caption", "timeline", "stream"])
def test_a_full_device_is_named_as_the_user_named_it(
    picknet: Picknet, clips: Path, model_folder: Path, command: str
) -> None:
    _, out, err = picknet(command, clips / "cat.mp4", "--model", model_folder, "--out", "/dev/full", "--quiet")
    assert (out, err) == ("", "picknet: /dev/full: cannot be written (No space left on device)\n")


@on_linux
def test_a_file_on_a_full_disk_is_named_also_where_closing_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Path, "open", lambda self, *_, **__: open("/dev/full", "w"))  # noqa: SIM115
    expected = rf"^{tmp_path}/a.csv: cannot be written \(No space left on device\)$"
    with pytest.raises(UnwritableFile, match=expected), opened(tmp_path / "a.csv") as write:
        write("a caption")


def test_no_result_takes_the_place_of_a_video(
    picknet: Picknet, clips: Path, model_folder: Path, tmp_path: Path
) -> None:
    shutil.copytree(clips, videos := tmp_path / "videos")
    video, picture = videos / "cat.mp4", videos / "cat.png"
    Image.new("RGB", (96, 64)).save(picture)
    os.link(video, other := tmp_path / "other.csv")
    before = {path: path.read_bytes() for path in (video, picture)}
    for command, result, options in (
        ("caption", video, ("--out", video, "--format", "csv")),
        ("caption", other, ("--out", other)),
        ("caption", picture, ("--sheet", videos)),
        ("timeline", video, ("--out", video, "--format", "srt")),
        ("timeline", picture, ("--sheet", picture)),
        ("stream", video, ("--out", video, "--format", "csv")),
    ):
        code, out, err = picknet(command, picture if result == picture else video, "--model", model_folder, *options)
        told = f"picknet: {result}: is one of the videos, and a result would take its place; name another one\n"
        assert (code, out, err) == (2, "", told)
    assert before == {path: path.read_bytes() for path in before}


@on_linux
def test_a_program_gets_names_as_they_are(clips: Path, model_folder: Path, tmp_path: Path) -> None:
    shutil.copy(clips / "cat.mp4", name := os.fsencode(tmp_path) + b"/\xff\xc3\xbc.mp4")
    command = [sys.executable, "-m", "picknet", "caption", name, "--model", model_folder, "--format", "csv"]
    for locale in ({}, {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}):
        done = subprocess.run(command, capture_output=True, env=os.environ | locale, check=True)
        assert done.stdout.splitlines()[1].startswith(name + b",")
