"""Pipes: an MP4 with its index at the end is copied to a temporary file, everything else is read as it comes."""

import contextlib
import itertools
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import clips
import pytest
import servers
from PIL import Image

from picknet.video.file import Video
from picknet.video.live import Live, LostSource
from picknet.video.pipe import Pipe
from picknet.video.source import Location, UnreachableSource

NOTE = "standard input: the index of this MP4 is at its end: copying it to a temporary file first"


def piped(content: bytes) -> int:
    """The read end of a pipe into which a thread writes the content."""
    reader, writer = os.pipe()

    def write() -> None:
        with open(writer, "wb") as file:
            file.write(content)

    threading.Thread(target=write, daemon=True).start()
    return reader


def numbers(frames) -> list[int]:
    return [clips.number_of(frame.pixels()) for frame in frames]


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


@pytest.mark.parametrize("realtime", [False, True])
def test_an_mp4_with_its_index_at_the_end_is_read_from_a_pipe(tmp_path: Path, temporary: Path, realtime: bool) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=30)
    content = path.read_bytes()
    assert content.index(b"mdat") < content.index(b"moov")
    notes: list[str] = []
    with Video(path) as video:
        expected = [(frame.seconds, frame.pixels().tobytes()) for frame in video.sample_by_time(fps=5)]
    with open(piped(content), "rb") as pipe:
        live = Live(pipe, fps=5, realtime=realtime, note=notes.append)
        frames = list(live)
    assert [(pytest.approx(frame.seconds), frame.pixels().tobytes()) for frame in frames] == expected
    assert (live.damage, live.num_dropped) == (None, 0)
    assert notes == [f"{live.name}: the index of this MP4 is at its end: copying it to a temporary file first"]
    assert list(temporary.iterdir()) == []


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv"])
def test_what_can_be_read_front_to_back_is_not_copied(tmp_path: Path, name: str) -> None:
    path = clips.write_clip(tmp_path / name, index_first=name.endswith("mp4"), num_frames=100)
    notes: list[str] = []
    with open(piped(path.read_bytes()), "rb", buffering=0) as pipe:
        live = Live(pipe, fps=5, note=notes.append)
        assert numbers(live) == list(range(0, 100, 5))
    assert (live.name, live.lag, live.damage, notes) == ("file", None, None, [])


def test_sound_that_begins_later_does_not_end_a_pipe_with_an_error(tmp_path: Path) -> None:
    # FFmpeg looks for streams in the first seconds, which have none but the video.
    silent = clips.write_clip(tmp_path / "silent.ts", codec="mpeg2video", num_frames=250)
    sound = clips.write_clip(tmp_path / "sound.ts", codec="mpeg2video", num_frames=50, with_audio=True)
    with open(piped(silent.read_bytes() + sound.read_bytes()), "rb") as pipe:
        shown = numbers(Live(pipe, fps=5))
    assert (shown[:50], shown[-1]) == (list(range(0, 250, 5)), 45)


@pytest.mark.parametrize(
    ("milliseconds", "with_audio"),
    [
        pytest.param(range(0, 1000, 10), True, id="four seconds of sound, one of pictures"),
        pytest.param(range(5000, 9000, 40), False, id="pictures from second 5 on"),
    ],
)
def test_a_whole_mkv_is_told_from_one_that_breaks_off(tmp_path: Path, milliseconds: range, with_audio: bool) -> None:
    path = clips.write_clip(tmp_path / "a.mkv", num_frames=100, milliseconds=milliseconds, with_audio=with_audio)
    content, fps, notes = path.read_bytes(), 200 / milliseconds.step, list[str]()
    with open(piped(content), "rb") as pipe:
        live = Live(pipe, fps=fps)
        assert (numbers(live), live.damage) == (list(range(0, 100, 5)), None)
    with servers.download(content) as server:
        live = Live(f"http://127.0.0.1:{server.port}/a.mkv", fps=fps, note=notes.append)
        assert (numbers(live), live.num_reconnects, notes) == (list(range(0, 100, 5)), 0, [])
    with open(piped(content[: len(content) // 4]), "rb") as pipe:
        live = Live(pipe, fps=fps)
        assert numbers(live)
    assert re.fullmatch(r"it breaks off after \d\.\d s \(the source ended\)", str(live.damage))


def test_a_copy_that_takes_longer_than_the_timeout_is_waited_for(tmp_path: Path) -> None:
    content = clips.write_clip(tmp_path / "clip.mp4").read_bytes()
    timeout, piece = 1.5, len(content) // 12
    reader, writer = os.pipe()
    go_on = threading.Event()

    def write() -> None:
        with open(writer, "wb", buffering=0) as file:
            for start in range(0, len(content), piece):
                file.write(content[start : start + piece])
                go_on.wait(0.15)

    threading.Thread(target=write, daemon=True).start()
    with open(reader, "rb", buffering=0) as pipe:
        start = time.monotonic()
        # After the copy, the first frame has as long as the timeout to be decoded, on a busy machine, too.
        assert numbers(Live(pipe, fps=5, timeout=timeout, note=lambda _: None))[:3] == [0, 5, 10]
        assert time.monotonic() - start > timeout


@contextlib.contextmanager
def kept_open(pieces: Sequence[bytes], *, pause: float) -> Iterator[IO[bytes]]:
    """A pipe into which the pieces are written with a pause after each, and which has no end within the block."""
    reader, writer = os.pipe()
    is_over = threading.Event()

    def write() -> None:
        for piece in pieces:
            os.write(writer, piece)
            if is_over.wait(pause):
                break
        is_over.wait()
        os.close(writer)

    writing = threading.Thread(target=write, daemon=True)
    writing.start()
    with open(reader, "rb", buffering=0) as pipe:
        yield pipe
        is_over.set()
        writing.join()


def test_a_pipe_that_pauses_for_longer_than_the_timeout_is_lost() -> None:
    chunks = servers.transport_stream(30)
    seen: list[float] = []
    told = r"^file: lost after 2\.\d s \(no frame for 1\.5 s\)$"
    with kept_open([b"".join(chunks)], pause=0.0) as pipe, pytest.raises(LostSource, match=told):
        seen.extend(frame.seconds for frame in Live(pipe, fps=5, timeout=1.5))
    assert len(seen) > 10


def test_a_pipe_is_not_lost_while_frames_come_that_are_not_looked_at() -> None:
    chunks = servers.transport_stream(60)
    with kept_open(chunks, pause=0.1) as pipe:
        frames = itertools.islice(Live(pipe, fps=0.2, timeout=3), 2)
        assert [frame.seconds for frame in frames] == pytest.approx([0.0, 5.0])


def test_frames_of_a_copy_that_wait_for_their_time_are_no_pause(tmp_path: Path) -> None:
    content = clips.write_clip(tmp_path / "clip.mp4").read_bytes()
    with open(piped(content), "rb", buffering=0) as pipe:
        live = Live(pipe, fps=0.5, timeout=1.2, realtime=True, note=lambda _: None)
        assert [frame.seconds for frame in live] == [0.0, 2.0]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_a_copy_that_does_not_fit_is_an_error_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    content = clips.write_clip(tmp_path / "clip.mp4").read_bytes()
    monkeypatch.setattr("tempfile.TemporaryFile", lambda: open("/dev/full", "wb", buffering=0))  # noqa: SIM115
    with open(piped(content), "rb") as pipe, pytest.raises(UnreachableSource) as caught:
        list(Live(pipe, note=lambda _: None))
    assert str(caught.value) == "file: cannot be copied to a temporary file (No space left on device)"


def test_an_animated_png_in_a_pipe_is_to_be_saved(tmp_path: Path) -> None:
    pictures = [Image.fromarray(clips.picture(number)) for number in range(2)]
    pictures[0].save(tmp_path / "a.png", save_all=True, append_images=pictures[1:])
    expected = "animated PNG, cannot be read front to back; save it and give the file's path$"
    with open(piped((tmp_path / "a.png").read_bytes()), "rb") as pipe, pytest.raises(UnreachableSource, match=expected):
        list(Live(pipe))


def box(kind: bytes, size: int, *, long: bool = False) -> bytes:
    header = b"\0\0\0\1" + kind + size.to_bytes(8) if long else size.to_bytes(4) + kind
    return header + bytes(size - len(header))


@pytest.mark.parametrize(
    ("content", "is_copied"),
    [
        (box(b"ftyp", 32) + box(b"free", 5000) + box(b"mdat", 100), True),
        (box(b"ftyp", 32) + box(b"uuid", 70_000, long=True) + box(b"mdat", 100, long=True), True),
        (box(b"wide", 8) + box(b"mdat", 100), True),
        (box(b"ftyp", 32) + box(b"moov", 100) + box(b"mdat", 100), False),
        (box(b"ftyp", 32) + b"\0\0\0\0free" + bytes(100), False),  # a size that cannot be
        (box(b"ftyp", 32) + box(b"free", 3 << 20) + box(b"mdat", 100), False),  # too far to look ahead
        (b"ftyp", False),
        (b"", False),
        (bytes(range(256)) * 10, False),
    ],
)
def test_the_first_boxes_decide_whether_a_pipe_is_copied(content: bytes, is_copied: bool) -> None:
    with open(piped(content), "rb") as file:
        pipe = Pipe(Location("pipe", "file", "", file=file), note=lambda _: None, on_data=lambda: True)
        assert pipe.is_copy == is_copied
        read = b""
        while piece := pipe.file.read(1000):
            read += piece
        assert read == content
        pipe.close()


def test_the_command_reads_such_an_mp4_and_says_so(model_folder: Path, tmp_path: Path) -> None:
    content = clips.write_clip(tmp_path / "clip.mp4").read_bytes()
    command = [sys.executable, "-m", "picknet", "stream", "-", "--fps", "5", "--model", str(model_folder)]
    done = subprocess.run(command, input=content, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0
    assert done.stdout.startswith(b"0:00:00  ")
    assert done.stderr.decode().startswith(f"picknet: {NOTE}\n")
    cut = subprocess.run(command, input=content[:-500], capture_output=True, timeout=60, check=False)
    assert cut.returncode == 1
    assert "an unfinished or damaged MP4 (its index, 'moov', is missing or cut)" in cut.stderr.decode()


@pytest.mark.parametrize("playlist", ["ffconcat version 1.0\nfile {}\n", "#EXTM3U\n#EXTINF:2.4,\n{}\n#EXT-X-ENDLIST\n"])
def test_a_playlist_in_a_pipe_opens_nothing(tmp_path: Path, playlist: str) -> None:
    requests: list[str] = []
    with servers.download(clips.write_clip(tmp_path / "clip.ts").read_bytes(), requests=requests) as server:
        for other in (tmp_path / "clip.ts", f"http://127.0.0.1:{server.port}/clip.ts"):
            with open(piped(playlist.format(other).encode()), "rb") as pipe, pytest.raises(UnreachableSource) as caught:
                list(Live(pipe))
            assert re.search("not a video by itself|not a known video format", str(caught.value))
    assert requests == []
