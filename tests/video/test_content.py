"""Every kind of finite source gives the frames of the file, and opens nothing but itself."""

import contextlib
import io
import os
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import clips
import numpy as np
import pytest
import servers

from picknet.video.download import download
from picknet.video.file import UnreadableVideo, Video, is_video_file, stored_seconds
from picknet.video.frame import Frame

LOOPBACK = "http://127.0.0.1"
NAMES = {
    "mp4": lambda folder: clips.write_clip(folder / "clip.mp4"),
    "mkv": lambda folder: clips.write_clip(folder / "clip.mkv"),
    "avi": lambda folder: clips.write_packed_avi(folder / "clip.avi"),
    "gif": lambda folder: clips.write_gif(folder / "clip.gif"),
    "h264": lambda folder: clips.write_clip(folder / "clip.h264"),
}


def compared(frames: Iterator[Frame]) -> list[tuple[Any, ...]]:
    return [(frame.index, frame.seconds, frame.number, frame.pixels().tobytes()) for frame in frames]


@contextlib.contextmanager
def as_path(path: Path) -> Iterator[tuple[Any, str]]:
    yield path, str(path)


@contextlib.contextmanager
def as_bytes(path: Path) -> Iterator[tuple[Any, str]]:
    yield path.read_bytes(), "bytes"


@contextlib.contextmanager
def as_bytearray(path: Path) -> Iterator[tuple[Any, str]]:
    yield bytearray(path.read_bytes()), "bytes"


@contextlib.contextmanager
def as_memory_file(path: Path) -> Iterator[tuple[Any, str]]:
    yield io.BytesIO(path.read_bytes()), "file"


@contextlib.contextmanager
def as_open_file(path: Path) -> Iterator[tuple[Any, str]]:
    with path.open("rb") as file:
        file.seek(100)  # it is read from its start
        yield file, str(path)


@contextlib.contextmanager
def as_address(path: Path) -> Iterator[tuple[Any, str]]:
    with servers.download(path.read_bytes(), credentials="me:ge heim") as server:
        yield f"http://me:ge%20heim@127.0.0.1:{server.port}/clip", f"http://me:***@127.0.0.1:{server.port}/clip"


@pytest.mark.parametrize("opened", [as_path, as_bytes, as_bytearray, as_memory_file, as_open_file, as_address])
@pytest.mark.parametrize("kind", NAMES)
def test_every_source_gives_the_frames_of_the_file(tmp_path: Path, kind: str, opened: Callable[..., Any]) -> None:
    path = NAMES[kind](tmp_path)
    with Video(path) as video:
        expected = compared(video.sample_evenly(count=7)), compared(video.sample_by_time(fps=3))
        properties = (video.seconds, video.width, video.height, video.damage)
    assert len(expected[0]) == 7
    with opened(path) as (source, name), Video(source) as video:
        assert (compared(video.sample_evenly(count=7)), compared(video.sample_by_time(fps=3))) == expected
        assert (video.seconds, video.width, video.height, video.damage) == properties
        assert video.name == name


@pytest.mark.parametrize("opened", [as_bytes, as_memory_file, as_open_file, as_address])
def test_passes_over_one_source_do_not_disturb_each_other(tmp_path: Path, opened: Callable[..., Any]) -> None:
    path = clips.write_clip(tmp_path / "clip.mkv")
    with opened(path) as (source, _), Video(source) as video:
        pairs = list(zip(video.sample_evenly(count=6), video.sample_by_time(fps=2.5), strict=True))
        assert [clips.number_of(frame.pixels()) for frame, _ in pairs] == [5, 15, 25, 35, 45, 55]
        assert [clips.number_of(frame.pixels()) for _, frame in pairs] == [0, 10, 20, 30, 40, 50]


def test_passes_of_several_threads_share_one_file(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=200)
    found: list[list[int]] = []
    with path.open("rb") as file, Video(file) as video:
        video.num_samples(1)  # reads the timetable

        def read() -> None:
            found.append([clips.number_of(frame.pixels()) for frame in video._at_ticks(25)])

        threads = [threading.Thread(target=read) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [list(range(200))] * 4


def test_a_truncated_file_in_memory_is_damaged_as_on_disk(tmp_path: Path) -> None:
    whole = clips.write_gif(tmp_path / "whole.gif").read_bytes()
    path = tmp_path / "cut.gif"
    path.write_bytes(whole[: len(whole) // 2])
    damages = []
    for source in (path, path.read_bytes()):
        with Video(source) as video:
            list(video.sample_evenly())
            damages.append(video.damage)
    assert damages[0]
    assert damages[0] == damages[1]


# --- Refusals --------------------------------------------------------------------------------------------------------


class Failing(io.BytesIO):
    """A file on a disk that fails half-way."""

    name = "disk.avi"

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > 500_000:
            raise OSError("the disk failed")
        return super().read(size)


def closed_file() -> io.BytesIO:
    file = io.BytesIO(b"x")
    file.close()
    return file


def read_end_of_a_pipe() -> Any:
    reader, writer = os.pipe()
    os.close(writer)
    return open(reader, "rb", closefd=True)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"", "bytes: empty"),
        (b"no video at all" * 100, "bytes: not a known video format"),
        (io.BytesIO(), "file: the file is empty"),
        (io.StringIO("text"), "file: opened as text; open it with 'rb'"),
        (closed_file(), "file: cannot be read (I/O operation on closed file.)"),
        (3, "camera 3: not a finite file; `stream` describes cameras and streams"),
        ("rtsp://me:geheim@camera/1", "rtsp://me:***@camera/1: not a finite file; `stream` describes cameras and "
         "streams"),
        (3.5, "float: not a path, bytes, a binary file or an address"),
    ],
)  # fmt: skip
def test_a_source_that_is_not_a_video_is_refused_in_one_line(source: Any, message: str) -> None:
    with pytest.raises(UnreadableVideo) as caught:
        Video(source)
    assert str(caught.value) == message


def test_a_pipe_is_refused_as_a_finite_file() -> None:
    with read_end_of_a_pipe() as pipe, pytest.raises(UnreadableVideo, match="cannot be rewound; `stream` describes"):
        Video(pipe)


def test_an_error_of_the_file_is_reported_with_its_name(tmp_path: Path) -> None:
    content = clips.write_clip(tmp_path / "clip.avi", codec="rawvideo", pixel_format="bgr24").read_bytes()
    reason = r"^disk\.avi: cannot be read \(the disk failed\)$"
    with pytest.raises(UnreadableVideo, match=reason), Video(Failing(content)) as video:
        list(video.sample_evenly())


def test_whether_a_file_can_be_opened_is_told_by_opening_it_as_a_video(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = clips.write_clip(tmp_path / "clip.avi", num_frames=12)

    def denied(*_: object) -> NoReturn:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", denied)
    with Video(path) as video:
        assert len(list(video.sample_evenly())) == 12
    monkeypatch.setattr("picknet.video.content.opened", denied)
    with pytest.raises(UnreadableVideo) as caught:
        Video(path)
    assert str(caught.value) == f"{path}: cannot be read (Permission denied)"


# --- Nothing else is opened ------------------------------------------------------------------------------------------

HLS = "#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:3\n#EXTINF:2.4,\n{}\n#EXT-X-ENDLIST\n"
DASH = '<?xml version="1.0"?>\n<MPD xmlns="urn:mpeg:dash:schema:mpd:2011"><BaseURL>{}</BaseURL></MPD>\n'
CONCAT = "ffconcat version 1.0\nfile {}\n"
PLAYLIST = "a playlist, which refers to other files; `stream` follows the playlist at an address"


@pytest.fixture
def visits(tmp_path: Path) -> Iterator[tuple[str, list[str]]]:
    """An address that serves a video, and the requests it has received."""
    content = clips.write_clip(tmp_path / "other.ts").read_bytes()
    requests: list[str] = []
    with servers.download(content, requests=requests) as server:
        yield f"{LOOPBACK}:{server.port}/other.ts", requests


@pytest.mark.parametrize(("suffix", "playlist"), [("m3u8", HLS), ("mpd", DASH), ("ffconcat", CONCAT), ("mp4", CONCAT)])
@pytest.mark.parametrize("kind", [as_path, as_bytes, as_open_file, as_address])
def test_a_playlist_opens_neither_files_nor_hosts(
    tmp_path: Path, visits: tuple[str, list[str]], suffix: str, playlist: str, kind: Callable[..., Any]
) -> None:
    address, requests = visits
    path = tmp_path / f"list.{suffix}"
    for other in ("other.ts", f"file://{tmp_path}/other.ts", address):
        path.write_text(playlist.format(other))
        with kind(path) as (source, _), pytest.raises(UnreadableVideo, match=PLAYLIST):
            Video(source)
    assert requests == []


def test_a_pattern_in_a_file_name_does_not_open_other_files(tmp_path: Path) -> None:
    from PIL import Image

    for name, number in (("shot%03d.png", 7), ("shot000.png", 1), ("shot001.png", 2)):
        Image.fromarray(clips.picture(number)).save(tmp_path / name)
    with Video(tmp_path / "shot%03d.png") as video:
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly()] == [7]


# --- Downloads -------------------------------------------------------------------------------------------------------


def refusal(address: str, **options: float) -> str:
    with pytest.raises(UnreadableVideo) as caught:
        Video(address, **options)
    # The password is not in what a traceback would show either.
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value).removeprefix(f"{LOOPBACK}:")


def test_an_address_without_a_length_is_left_to_stream() -> None:
    feed = servers.Feed(servers.transport_stream(30))
    with servers.http(feed) as server:
        assert refusal(f"{LOOPBACK}:{server.port}/live") == (
            f"{server.port}/live: the server gives no length, so it may have no end; `stream` describes such an address"
        )


def test_a_download_that_fails_says_why_and_shows_no_password(tmp_path: Path) -> None:
    content = clips.write_clip(tmp_path / "clip.mp4").read_bytes()
    port = servers.free_port()
    assert refusal(f"{LOOPBACK}:{port}/a.mp4") == f"{port}/a.mp4: connection refused: nothing listens there"
    with servers.download(content, credentials="me:geheim") as locked:
        assert refusal(f"http://me:falsch@127.0.0.1:{locked.port}/a.mp4?token=geheim") == (
            f"http://me:***@127.0.0.1:{locked.port}/a.mp4?token=***: "
            "access denied: the user name or the password is missing or wrong"
        )
    with servers.download(content, status="404 Not Found") as missing:
        assert refusal(f"{LOOPBACK}:{missing.port}/a.mp4").endswith("/a.mp4: the server answers 404 (Not Found)")
    with servers.download(content, cut=[1000]) as short:
        told = f": the connection broke off after 1,000 of {len(content):,} bytes"
        assert refusal(f"{LOOPBACK}:{short.port}/a.mp4").endswith(told)
    with servers.silent() as silent:
        assert refusal(f"{LOOPBACK}:{silent.port}/a.mp4", timeout=0.2).endswith("/a.mp4: no data for 0.2 s")
    assert refusal("http://127.0.0.1:port/a.mp4") == "port/a.mp4: not a valid address"


@pytest.mark.skipif(shutil.which("openssl") is None, reason="makes a certificate")
def test_a_server_whose_certificate_is_not_trusted_is_refused_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, key = str(tmp_path / "own.pem"), str(tmp_path / "key.pem")
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost", "-addext",
         "subjectAltName=DNS:localhost", "-out", name, "-keyout", key], check=True, capture_output=True,
    )  # fmt: skip
    content = clips.write_clip(tmp_path / "clip.mp4").read_bytes()
    with servers.download(content, certificate=(name, key)) as server:
        address = f"https://localhost:{server.port}/a.mp4"
        trusted = "SSL_CERT_FILE can name a file of certificates to trust"
        assert refusal(address).startswith(f"{address}: the certificate of localhost is refused (self")
        assert refusal(address).endswith(f"; {trusted}")
        monkeypatch.setenv("SSL_CERT_FILE", name)
        with Video(address) as video:
            assert len(list(video.sample_evenly(count=3))) == 3
        told = f"{server.port}/a.mp4: the certificate of 127.0.0.1 is refused (IP address mismatch"
        assert told in refusal(f"https://127.0.0.1:{server.port}/a.mp4")


def test_a_server_that_sends_a_byte_now_and_then_is_given_up() -> None:
    def drip(request: Any) -> None:
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\nConnection: close\r\n\r\n")
        for _ in range(100):
            request.wfile.write(b"a")
            time.sleep(0.05)

    start = time.monotonic()
    with servers.Server(drip) as server:
        assert ": slower than 4,096 bytes a second: " in refusal(f"{LOOPBACK}:{server.port}/a.mp4", timeout=0.3)
        assert time.monotonic() - start < 3


@pytest.mark.parametrize("start", [b"HTTP/1.1 200 OK\r\nX: ", b"HTTP/1.1 302 Found\r\nLocation: /b\r\nX: "])
def test_a_server_whose_headers_do_not_end_is_given_up(start: bytes) -> None:
    def drip(request: Any) -> None:
        request.wfile.write(start)
        for _ in range(100):
            request.wfile.write(b"a")
            time.sleep(0.05)

    began = time.monotonic()
    with servers.Server(drip) as server:
        told = refusal(f"{LOOPBACK}:{server.port}/a.mp4", timeout=0.2)
    assert told.endswith("/a.mp4: the file did not begin within 0.6 s")
    assert time.monotonic() - began < 3


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_the_body_of_a_redirect_is_not_read(status: int) -> None:
    left = threading.Event()

    def flood(request: Any) -> None:
        location = f"Location: http://me:geheim@127.0.0.1:{target.port}/"
        request.wfile.write(f"HTTP/1.1 {status} X\r\n{location}\r\nTransfer-Encoding: chunked\r\n\r\n".encode())
        try:
            for _ in range(100):
                request.wfile.write(b"10000\r\n" + bytes(0x10000) + b"\r\n")
                time.sleep(0.05)
        except OSError:
            left.set()

    with servers.download(b"film") as target, servers.Server(flood) as server:
        with download(f"{LOOPBACK}:{server.port}/a.mp4", timeout=1) as file:
            file.seek(0)
            assert file.read() == b"film"
        assert left.wait(1)


@pytest.mark.parametrize("target", ["file:///etc/hosts", "ftp://127.0.0.1/clip.mp4", "data:,hello"])
def test_a_redirect_leads_to_web_addresses_only(target: str) -> None:
    with servers.download(b"", status="302 Found", headers=[f"Location: {target}"]) as server:
        refused = refusal(f"{LOOPBACK}:{server.port}/a.mp4")
    assert "/a.mp4: the server answers 302" in refused or "/a.mp4: cannot be downloaded" in refused


def test_a_password_is_not_sent_to_another_host(tmp_path: Path) -> None:
    requests: list[str] = []
    content = clips.write_clip(tmp_path / "clip.mp4").read_bytes()
    with servers.download(content, requests=requests) as other:
        location = f"Location: http://localhost:{other.port}/b.mp4"
        with (
            servers.download(b"", status="302 Found", headers=[location], credentials="me:geheim") as first,
            Video(f"http://me:geheim@127.0.0.1:{first.port}/a.mp4") as video,
        ):
            assert len(list(video.sample_evenly(count=3))) == 3
    assert len(requests) == 1
    assert "authorization" not in requests[0].lower()


def test_a_file_larger_than_the_disk_is_refused_before_it_is_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 1_000_000})())
    with servers.download(bytes(2_000_000)) as server:
        assert ": 2 MB do not fit into " in refusal(f"{LOOPBACK}:{server.port}/a.mp4")


# --- Names and headers -----------------------------------------------------------------------------------------------


def test_the_length_comes_from_the_header_without_decoding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4")
    with Video(path) as video:
        seconds = video.seconds
    monkeypatch.setattr("picknet.video.passes.Pass.packets", lambda _: pytest.fail("packets were read"))
    assert stored_seconds(path) == stored_seconds(str(path)) == seconds == pytest.approx(2.4)
    (tmp_path / "text.mp4").write_text("no video")
    for unreadable in (tmp_path / "text.mp4", tmp_path / "missing.mp4", tmp_path, "http://host/clip.mp4", "a\0b.mp4"):
        assert stored_seconds(unreadable) is None


def test_a_transport_stream_is_a_video_and_typescript_is_not(tmp_path: Path) -> None:
    stream = b"".join(servers.transport_stream(10))
    packets = [stream[start : start + 188] for start in range(0, len(stream), 188)]
    (tmp_path / "show.ts").write_bytes(stream)
    (tmp_path / "SHOW.MTS").write_bytes(b"".join(b"\0\0\0\0" + packet for packet in packets))
    (tmp_path / "code.ts").write_text("Generic types: export const G: number = 0;\n" * 100)
    (tmp_path / "empty.ts").touch()
    found = {name: is_video_file(tmp_path / name) for name in ("show.ts", "SHOW.MTS", "code.ts", "empty.ts", "gone.ts")}
    assert found == {"show.ts": True, "SHOW.MTS": True, "code.ts": False, "empty.ts": False, "gone.ts": False}
    assert is_video_file("clip.MP4")
    assert not is_video_file("notes.txt")
    assert not is_video_file("a\0b.ts")


def test_what_is_downloaded_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    content = clips.write_clip(tmp_path / "clip.mp4").read_bytes()
    with servers.download(content) as server, Video(f"{LOOPBACK}:{server.port}/clip.mp4") as video:
        frame = next(video.sample_evenly(count=1))
    assert list((tmp_path / "temporary").iterdir()) == []
    assert np.asarray(frame.pixels()).shape == (clips.HEIGHT, clips.WIDTH, 3)  # a frame outlives its video
