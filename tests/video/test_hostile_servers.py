"""Servers made to hurt: what they send gives frames, or one line within the timeout, and opens no files."""

import itertools
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import clips
import pytest
import servers
from command import on_linux

from picknet.video.connection import MAX_WAITING_BYTES, _Receiver
from picknet.video.live import Live, LostSource
from picknet.video.source import UnreachableSource, UnreadableVideo

TIMEOUT = 0.6
PATIENT = 1.5
"""A timeout for sources that have frames at first, also on a busy machine."""
LIST = b"#EXTM3U\n#EXT-X-VERSION:3\n#EXT-X-TARGETDURATION:2\n"
SEGMENT = b"#EXTINF:2,\n0.ts\n"
END = b"#EXT-X-ENDLIST\n"
VARIANT = b"#EXT-X-STREAM-INF:BANDWIDTH=1\nlist.m3u8\n"

NOTHING = rf"no frame (received within|for) {TIMEOUT} s|no video stream found \(streams: none\)"
NO_VIDEO = "what it sends is not a known video format"
Answer = Callable[[Any, str], None]


def reply(request: Any, body: bytes = b"", *, status: str = "200 OK", headers: str = "") -> None:
    length = "" if "Content-Length" in headers else f"Content-Length: {len(body)}\r\n"
    request.wfile.write(f"HTTP/1.1 {status}\r\n{length}{headers}Connection: close\r\n\r\n".encode() + body)


def endlessly(request: Any, pieces: Iterator[bytes] | bytes, *, pause: float = 0.0, headers: str = "") -> None:
    request.wfile.write(f"HTTP/1.1 200 OK\r\n{headers}Connection: close\r\n\r\n".encode())
    for piece in itertools.repeat(pieces) if isinstance(pieces, bytes) else pieces:
        request.wfile.write(piece)
        time.sleep(pause)


def with_list(content: bytes, segment: Callable[[Any], None] = lambda request: reply(request, VIDEO)) -> Answer:
    """This playlist, and for every other name what `segment` sends."""
    return lambda request, name: reply(request, content) if name.endswith(".m3u8") else segment(request)


def redirect(target: str) -> Callable[..., None]:
    return lambda request, *_: reply(request, status="302 Found", headers=f"Location: {target}\r\n")


def bomb(request: Any, *_: object) -> None:
    """A gigabyte of playlist, compressed."""
    coder = zlib.compressobj(wbits=31)
    start = coder.compress(LIST) + coder.flush(zlib.Z_FULL_FLUSH)
    more = coder.compress(SEGMENT * 60_000) + coder.flush(zlib.Z_FULL_FLUSH)
    endlessly(request, itertools.chain([start], itertools.repeat(more, 1000)), headers="Content-Encoding: gzip\r\n")


def drip(content: bytes) -> Callable[..., None]:
    return lambda request, *_: endlessly(request, (content[at : at + 1] for at in range(len(content))), pause=0.02)


VIDEO = b"".join(servers.transport_stream(20))
PACKET = struct.pack(">BHB", 0x47, 0x100, 0x10) + bytes(range(1, 185))
"""Of the same video, and the next one continues it."""
numbers = itertools.count()

REFUSED: dict[str, tuple[Answer, str]] = {
    # No segment, or none that has anything.
    "a list that stays empty": (with_list(LIST), NOTHING),
    "a segment that never comes": (with_list(LIST + SEGMENT, lambda request: time.sleep(2)), NOTHING),
    "a segment that is missing": (with_list(LIST + SEGMENT, lambda request: reply(request, status="404 No")), NOTHING),
    "a hundred thousand missing segments": (
        with_list(LIST + SEGMENT * 100_000 + END, lambda request: reply(request, status="404 No")), NOTHING,
    ),
    # A byte now and then.
    "a dripping list": (drip(LIST * 1000), NOTHING),
    "a dripping segment": (with_list(LIST + SEGMENT + END, drip(VIDEO)), NOTHING),
    "dripping headers": (
        lambda request, _: [request.wfile.write(b"HTTP/1.1 200 OK\r\n")]
        + [(request.wfile.write(b"X: y\r\n"), time.sleep(0.02)) for _ in range(100)],
        NOTHING,
    ),
    # Lists of lists.
    "a list that is its own segment": (with_list(LIST + b"#EXTINF:2,\nlist.m3u8\n" + END), NO_VIDEO),
    "a list that is its own variant": (with_list(b"#EXTM3U\n" + VARIANT * 20), NOTHING),
    "a list that names another one for ever": (
        lambda request, _: reply(request, b"#EXTM3U\n" + VARIANT.replace(b"list", b"%d" % next(numbers))), NOTHING,
    ),
    # Without an end.
    "an endless list": (lambda request, _: endlessly(request, LIST + SEGMENT * 500), NOTHING),
    "an endless line": (lambda request, _: endlessly(request, iter([LIST, *[b"a" * 65536] * 10_000])), NOTHING),
    "an endless segment of nothing": (with_list(LIST + SEGMENT, lambda r: endlessly(r, bytes(65536))), NO_VIDEO),
    "a compressed gigabyte": (bomb, NOTHING),
    # Failures.
    "an error for ever": (lambda request, _: reply(request, status="500 No"), "Server returned 5XX Server Error reply"),
    "a redirect to itself": (redirect("list.m3u8"), "the connection broke off"),
    "a redirect to a file": (redirect("file:///etc/passwd"), "not a valid address, or it redirects to one that is not"),
    "a list that breaks off": (
        lambda request, _: reply(request, LIST, headers="Content-Length: 1000\r\n"), NOTHING,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def server() -> Iterator[tuple[str, dict[str, Answer], list[str]]]:
    """An address, what it answers by the first part of the path, and the names that it was asked for."""
    answers = {str(number): answer for number, (answer, _) in enumerate(REFUSED.values())}
    asked: list[str] = []

    def answer(request: Any) -> None:
        first_line = request.rfile.readline().split()
        if not first_line:
            return  # it was given up before it asked
        path = first_line[1].decode()
        while request.rfile.readline().strip():
            pass
        asked.append(path)
        _, case, name = path.split("/", 2)
        answers[case](request, name)

    with servers.Server(answer) as running:
        yield f"http://127.0.0.1:{running.port}", answers, asked


@pytest.mark.parametrize("case", REFUSED)
def test_a_server_that_gives_no_frame_is_given_up_in_one_line(server, case: str) -> None:
    address = f"{server[0]}/{list(REFUSED).index(case)}/list.m3u8"
    start = time.monotonic()
    with pytest.raises((UnreachableSource, UnreadableVideo), match=rf"^{address}: ({REFUSED[case][1]})") as raised:
        list(Live(address, timeout=TIMEOUT, retries=0))
    assert time.monotonic() - start < TIMEOUT + 1.5
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "target",
    ["file://{}/clip.ts", "{}/clip.ts", "concat:{}/clip.ts", "subfile,,start,0,end,0,,:{}/clip.ts",
     "crypto+file://{}/clip.ts", "cache:{}/clip.ts", "tcp://127.0.0.1:{port}/clip.ts", "rtmp://127.0.0.1:{port}/clip.ts"],
)  # fmt: skip
def test_a_playlist_opens_web_addresses_only(tmp_path: Path, server, target: str) -> None:
    (tmp_path / "clip.ts").write_bytes(VIDEO)
    address, answers, _ = server
    with servers.Server(lambda request: connected.append(target)) as other:
        connected: list[str] = []
        line = target.replace("{}", str(tmp_path)).replace("{port}", str(other.port))
        answers["open"] = with_list(LIST + f"#EXTINF:2,\n{line}\n".encode() + END, lambda request: reply(request))
        with pytest.raises(UnreachableSource, match=NO_VIDEO):
            list(Live(f"{address}/open/list.m3u8", timeout=5, retries=0))
        assert connected == []


def test_what_came_before_the_server_turned_hostile_is_kept(server) -> None:
    address, answers, _ = server
    answers["turned"] = with_list(LIST + SEGMENT, lambda request: endlessly(request, hostile_packets()))
    frames = []
    with pytest.raises(LostSource, match=rf"lost after 1\.\d s \(no frame for {PATIENT} s\)$"):
        frames.extend(Live(f"{address}/turned/list.m3u8", fps=5, timeout=PATIENT, retries=0))
    found = [clips.number_of(frame.pixels()) for frame in frames]
    assert found == [0, 2, 4, 6, 8, 10, 12, 14, 16][-len(found) :]  # a slow reader misses the first


def hostile_packets() -> Iterator[bytes]:
    """A video, and then a picture that does not end."""
    yield VIDEO
    for _ in range(100):
        yield b"".join(PACKET[:3] + bytes([0x10 | place % 16]) + PACKET[4:] for place in range(64))


def test_packets_without_a_picture_do_not_keep_a_download_alive(tmp_path: Path, server) -> None:
    """Damage for ever, in a file that says that it has an end: no packet takes long, and none is decoded."""
    address, answers, _ = server
    path = tmp_path / "a.mkv"
    clips.write_clip(path, num_frames=12, fps=5, codec="mpeg4", options={"bf": "0"}, seekable=False)
    content = path.read_bytes()
    length = "Content-Length: 1000000000000\r\n"
    answers["damage"] = lambda request, _: endlessly(request, itertools.chain([content], damage()), headers=length)
    frames = []
    with pytest.raises(LostSource, match=rf"lost after 2\.2 s \(no frame for {PATIENT} s\)$"):
        frames.extend(Live(f"{address}/damage/a.mkv", fps=5, timeout=PATIENT, retries=0))
    assert len(frames) == 12


def damage() -> Iterator[bytes]:
    """Clusters of a Matroska file, each with hundred packets of noise."""
    for number in itertools.count(2):
        block = b"\x81\0\0\x80" + b"\xff" * 100
        cluster = b"\xe7\x84" + struct.pack(">I", 2000 * number)
        cluster += (b"\xa3" + struct.pack(">I", 1 << 28 | len(block)) + block) * 100
        yield b"\x1f\x43\xb6\x75\x01" + len(cluster).to_bytes(7, "big") + cluster


def test_segments_may_change_size_codec_and_time(server) -> None:
    address, answers, _ = server
    larger = b"".join(servers.transport_stream(10, width=192, height=128))
    other = b"".join(servers.transport_stream(10, codec="libx264"))
    later = b"".join(servers.transport_stream(10, pts=lambda number: number + 10**8))
    segments = [VIDEO, larger, later, VIDEO, other]
    lines = b"".join(b"#EXT-X-DISCONTINUITY\n#EXTINF:2,\n%d.ts\n" % number for number in range(len(segments)))

    def answer(request: Any, name: str) -> None:
        reply(request, LIST + lines + END if name.endswith(".m3u8") else segments[int(name.removesuffix(".ts"))])

    answers["changes"] = answer
    live = Live(f"{address}/changes/list.m3u8", fps=5, timeout=5, retries=0)
    frames = list(live)
    seconds = [frame.seconds for frame in frames]
    assert seconds == sorted(set(seconds))
    assert {frame.pixels().shape for frame in frames} == {(64, 96, 3), (128, 192, 3)}
    assert live.damage


# --- Memory ----------------------------------------------------------------------------------------------------------

LIMITED = """
import sys
from picknet.cli.streams import _limited_memory
from picknet.errors import PicknetError
from picknet.video.live import Live
try:
    with _limited_memory(200 << 20):
        list(Live(sys.argv[1], timeout=20, retries=0))
except PicknetError as error:
    print(error)
bytearray(400 << 20)  # possible again
"""


@on_linux
def test_what_a_server_makes_us_keep_is_limited(server) -> None:
    address, answers, _ = server
    answers["variants"] = lambda request, _: endlessly(request, b"#EXTM3U\n" + VARIANT * 2000)
    address = f"{address}/variants/list.m3u8"
    run = subprocess.run([sys.executable, "-c", LIMITED, address], capture_output=True, text=True, timeout=30)
    assert run.stderr == ""
    assert run.stdout == f"{address}: its playlists or pictures need too much memory\n"


def test_a_live_source_that_sends_faster_than_it_is_decoded_is_held_back() -> None:
    size, num_packets, sent = 1 << 20, 200, []
    packets = (sent.append(number) or SimpleNamespace(size=size, number=number) for number in range(num_packets))
    ended = threading.Event()
    receiver = _Receiver(packets, ended.set)
    deadline = time.monotonic() + 5
    while len(sent) <= MAX_WAITING_BYTES // size and time.monotonic() < deadline:
        time.sleep(0.01)
    time.sleep(0.05)
    assert len(sent) == MAX_WAITING_BYTES // size + 1
    assert [receiver.take(1.0).packet.number for _ in range(num_packets)] == list(range(num_packets))
    assert receiver.take(1.0) is None
    receiver.stop()
    assert ended.is_set()
