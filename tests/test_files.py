"""Files are written completely or not at all, and what strangers put into a folder does no harm."""

import os
import stat
import subprocess
import sys

import pytest

from picknet import files
from picknet.files import (
    UnwritableFile,
    check_folder,
    files_below,
    matching,
    open_lock,
    open_regular,
    remove_abandoned,
    temporary_folder,
    write_text,
    written_whole,
)


@pytest.mark.parametrize("mask", [0o022, 0o077])
def test_a_file_appears_when_the_block_succeeds_with_ordinary_permissions(tmp_path, mask):
    path = tmp_path / "new" / "note.txt"
    before = os.umask(mask)
    try:
        write_text(path, "hello\n")
    finally:
        os.umask(before)
    assert path.read_bytes() == b"hello\n"
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_the_umask_of_the_process_is_not_touched(tmp_path, monkeypatch):
    # Files that other threads create meanwhile would be writable for everybody.
    monkeypatch.setattr("os.umask", lambda _: pytest.fail("the umask was changed"))
    write_text(tmp_path / "note.txt", "hello\n")


def test_a_temporary_name_that_is_taken_is_not_overwritten(tmp_path, monkeypatch):
    names = iter(["taken", "free"])
    monkeypatch.setattr("secrets.token_hex", lambda _: next(names))
    monkeypatch.setattr("picknet.files._mark", lambda: "-")
    (tmp_path / ".note-taken.txt").write_text("somebody else's")
    write_text(tmp_path / "note.txt", "hello\n")
    assert (tmp_path / ".note-taken.txt").read_text() == "somebody else's"
    assert (tmp_path / "note.txt").read_text() == "hello\n"


@pytest.mark.skipif(os.name != "posix", reason="elsewhere nobody is asked whether a process runs")
def test_what_a_killed_process_left_is_deleted_and_nothing_else(tmp_path):
    code = (
        "import os, pathlib, sys; from picknet.files import temporary_folder, written_whole\n"
        "place = pathlib.Path(sys.argv[1])\n"
        "(temporary_folder(place / 'model') / 'part').write_text('half')\n"
        "with written_whole(place / 'note.txt') as temporary:\n"
        "    temporary.write_text('half'); os.kill(os.getpid(), 9)\n"
    )
    (tmp_path / "picture.png").write_text("kept")
    (tmp_path / ".note-picknet-00000000-1-abcdefgh.txt").write_text("of another machine")
    subprocess.run([sys.executable, "-c", code, tmp_path], check=False)
    assert len(list(tmp_path.iterdir())) == 4
    with written_whole(tmp_path / "other.txt") as temporary:
        temporary.write_text("being written")
        check_folder(tmp_path)
        assert temporary.exists()
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == [".note-picknet-00000000-1-abcdefgh.txt", "other.txt", "picture.png"]
    remove_abandoned(tmp_path / "missing")
    # In a container the next process may have the same number.
    own = temporary_folder(tmp_path / "uploads")
    remove_abandoned(tmp_path)
    assert own.exists()
    remove_abandoned(tmp_path, is_fresh=True)
    assert not own.exists()


def test_a_temporary_file_that_a_signal_finds_just_created_is_deleted(tmp_path, monkeypatch):
    create = files._create

    def interrupted(path):
        create(path)
        raise SystemExit(143)  # what SIGTERM raises

    monkeypatch.setattr(files, "_create", interrupted)
    with pytest.raises(SystemExit):
        write_text(tmp_path / "note.txt", "hello\n")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_noticed_before_there_is_something_to_write(tmp_path, monkeypatch):
    monkeypatch.setattr("tempfile.TemporaryFile", lambda dir: open("/dev/full", "wb"))  # noqa: SIM115
    with pytest.raises(UnwritableFile, match=r": cannot be written \(No space left on device\)$"):
        check_folder(tmp_path)


def test_a_name_with_a_nul_byte_is_refused_in_one_line(tmp_path):
    for write in (lambda path: write_text(path, "x"), check_folder):
        with pytest.raises(UnwritableFile, match="a file name cannot contain a NUL byte"):
            write(tmp_path / "note\0.txt")


@pytest.mark.parametrize("error", [RuntimeError, KeyboardInterrupt])
def test_a_failure_leaves_the_old_file_and_nothing_else(tmp_path, error):
    path = tmp_path / "note.txt"
    path.write_text("old")
    with pytest.raises(error), written_whole(path) as temporary:
        temporary.write_text("half of the n")
        raise error
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["note.txt"]


def test_the_temporary_file_keeps_the_suffix(tmp_path):
    with written_whole(tmp_path / "picture.png") as temporary:
        assert temporary.suffix == ".png"
        temporary.write_bytes(b"x")


def test_a_folder_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnwritableFile, match=r"file/note\.txt: cannot be written \(.*file is not a folder\)"):
        write_text(tmp_path / "file" / "note.txt", "x")


@pytest.mark.skipif(not os.path.exists("/proc/self"), reason="needs a folder in which nobody may write")
def test_in_a_read_only_folder_the_error_names_the_file_asked_for():
    with pytest.raises(UnwritableFile, match=r"^/proc/self/note\.txt: cannot be written \("):
        write_text("/proc/self/note.txt", "x")


def test_an_error_about_another_file_is_passed_on(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"other\.txt"), written_whole(tmp_path / "note.txt"):
        (tmp_path / "elsewhere" / "other.txt").read_text()


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_full_disk_is_reported_in_one_line(tmp_path):
    with (
        pytest.raises(UnwritableFile, match=r"note\.txt: cannot be written \(No space left on device\)"),
        written_whole(tmp_path / "note.txt"),
        open("/dev/full", "w") as full,
    ):
        full.write("x" * 100_000)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_checked_without_being_created(tmp_path):
    check_folder(tmp_path / "a" / "b")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(UnwritableFile, match=r"file/a: cannot be written \(Not a directory\)"):
        check_folder(tmp_path / "file" / "a")


# --- Folders of strangers --------------------------------------------------------------------------------------------


def test_a_result_replaces_a_link_and_not_what_it_leads_to(tmp_path):
    (tmp_path / "precious").write_text("mine")
    (tmp_path / "note.txt").symlink_to("precious")
    write_text(tmp_path / "note.txt", "hello")
    assert (tmp_path / "precious").read_text() == "mine"
    assert not (tmp_path / "note.txt").is_symlink()


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_pipes_and_devices_are_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    for path in (tmp_path / "pipe", tmp_path / "link", "/dev/zero"):
        with pytest.raises(OSError, match="is not a regular file"):
            open_regular(path)
    with pytest.raises(UnwritableFile, match=r"lock: cannot be locked \("):
        (tmp_path / "lock").symlink_to("elsewhere")
        open_lock(tmp_path / "lock")
    assert not (tmp_path / "elsewhere").exists()


def test_a_lock_leaves_a_file_as_it_is(tmp_path):
    (tmp_path / "lock").write_text("mine")
    open_lock(tmp_path / "lock").close()
    assert (tmp_path / "lock").read_text() == "mine"


def test_folders_may_be_nested_deeper_than_the_stack(tmp_path):
    deepest = os.open(tmp_path, os.O_RDONLY)
    for _ in range(sys.getrecursionlimit() + 100):
        os.mkdir("a", dir_fd=deepest)
        outer, deepest = deepest, os.open("a", os.O_RDONLY, dir_fd=deepest)
        os.close(outer)
    os.close(os.open("clip.mp4", os.O_CREAT, dir_fd=deepest))
    os.close(deepest)
    assert [os.path.basename(path) for path in files_below(str(tmp_path))] == ["clip.mp4"]
    assert [os.path.basename(path) for path in matching(f"{tmp_path}/**/*.mp4")] == ["clip.mp4"]
    subprocess.run(["rm", "-r", tmp_path / "a"], check=True)  # too deep for Python, and so for pytest


def test_links_to_folders_are_not_followed_and_what_disappears_is_left_out(tmp_path):
    for name in ("a/1", "b/2", "c/3", ".hidden/4", "0"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / "a" / "up").symlink_to(tmp_path)
    (tmp_path / "loop").symlink_to("loop")
    found = files_below(str(tmp_path), on_error=pytest.fail)
    names = [next(found)]
    (tmp_path / "b" / "2").unlink()
    (tmp_path / "b").rmdir()
    names += found
    assert [os.path.relpath(name, tmp_path) for name in names] == ["0", "loop", "a/1", "c/3"]
    with pytest.raises(FileNotFoundError):
        list(files_below(str(tmp_path / "missing"), on_error=raised))


def test_a_pattern_for_any_number_of_folders_follows_no_links(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("top.mp4", "a/1.mp4", "a/b/2.mp4", "a/b/note.txt", "a/.hidden/3.mp4", "c/b/4.mp4"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    for name in ("left", "right"):  # with the library's own `**`, these two have 2**40 paths
        (tmp_path / "a" / name).symlink_to(".")
    assert matching("**/*.mp4") == ["a/1.mp4", "a/b/2.mp4", "c/b/4.mp4", "top.mp4"]
    assert matching("[ac]/**/b/*.mp4") == ["a/b/2.mp4", "c/b/4.mp4"]
    assert matching(f"{tmp_path}/a/**/b") == [f"{tmp_path}/a/b"]
    assert matching("a/**") == ["a/1.mp4", "a/b", "a/b/2.mp4", "a/b/note.txt"]
    assert matching("**/b/**/4*") == ["c/b/4.mp4"]
    assert matching("*/**/*.txt") == ["a/b/note.txt"]  # one of the first is no folder
    assert matching("*.mp4") == ["top.mp4"]
    assert matching("none/**/*.mp4") == []


def raised(error):
    raise error
