"""Files are written whole or not at all."""

import os
import stat

import pytest

from picknet.files import UnwritableFile, check_folder, write_text, written_whole


def test_a_file_appears_when_the_block_ends_well_with_ordinary_rights(tmp_path):
    path = tmp_path / "new" / "note.txt"
    write_text(path, "hello\n")
    assert path.read_bytes() == b"hello\n"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "note.txt"
    path.write_text("old")
    with pytest.raises(error), written_whole(path) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["note.txt"]


def test_the_temporary_file_keeps_the_suffix_that_libraries_choose_a_format_by(tmp_path):
    with written_whole(tmp_path / "picture.png") as temporary:
        assert temporary.suffix == ".png"
        temporary.write_bytes(b"x")


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnwritableFile, match=r"file/note\.txt: cannot be written \((File exists|Not a directory)\)"):
        write_text(tmp_path / "file" / "note.txt", "x")


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs a folder in which nobody may write")
def test_a_folder_that_takes_no_file_is_said_of_the_file_asked_for():
    with pytest.raises(UnwritableFile, match=r"^/proc/self/note\.txt: cannot be written \("):
        write_text("/proc/self/note.txt", "x")


def test_an_error_about_another_file_is_not_taken_for_ours(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"other\.txt"), written_whole(tmp_path / "note.txt"):
        (tmp_path / "elsewhere" / "other.txt").read_text()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_said_in_one_line(tmp_path):
    with (
        pytest.raises(UnwritableFile, match=r"note\.txt: cannot be written \(No space left on device\)"),
        written_whole(tmp_path / "note.txt"),
        open("/dev/full", "w") as full,
    ):
        full.write("x" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_checked_without_being_made(tmp_path):
    check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnwritableFile, match=r"file/a: cannot be written \(Not a directory\)"):
        check_folder(tmp_path / "file" / "a")
