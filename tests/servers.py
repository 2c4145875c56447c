"""Servers on the loopback, for tests of streams: they send numbered pictures (see `clips.py`), each at its time.

A `Feed` is what is sent: chunks of MPEG-TS, one for each picture. A server sends it to whoever connects, from the
picture whose turn it is; `kill` cuts all connections at once, as a power failure would.
"""

import base64
import contextlib
import io
import itertools
import socket
import socketserver
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Self

import av
from clips import HEIGHT, WIDTH, picture

TS_PACKET = 188


def transport_stream(
    num_frames: int,
    *,
    fps: int = 10,
    first: int = 0,
    codec: str = "mpeg2video",
    width: int = WIDTH,
    height: int = HEIGHT,
    pts: Callable[[int], int] = lambda number: number,
) -> list[bytes]:
    """Pictures first, first + 1 … as MPEG-TS, a chunk for each; every fifth is a key frame. pts: in 1 / fps seconds."""
    written = io.BytesIO()
    chunks = []
    options = {"libx264": {"preset": "ultrafast", "tune": "zerolatency"}}.get(codec, {})
    with av.open(written, "w", format="mpegts", options={"flush_packets": "1", "pat_period": "0.3"}) as output:
        stream = output.add_stream(codec, rate=fps, options={"g": "5", "bf": "0"} | options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        stream.bit_rate = 2_000_000
        for number in range(first, first + num_frames):
            frame = av.VideoFrame.from_ndarray(picture(number % 256, width=width, height=height), format="rgb24")
            frame.pts, frame.time_base = pts(number), Fraction(1, fps)
            output.mux(stream.encode(frame))
            chunks.append(written.getvalue())
            written.seek(0)
            written.truncate()
    return chunks


@dataclass
class Feed:
    chunks: Sequence[bytes]
    fps: float = 10.0
    began: float = 0.0

    def __iter__(self) -> Iterator[bytes]:
        """What is left of it, each chunk at its time; a feed begins when it is first asked for."""
        self.began = self.began or time.monotonic()
        first = round((time.monotonic() - self.began) * self.fps)
        for number, chunk in enumerate(self.chunks[first:], start=first):
            time.sleep(max(self.began + number / self.fps - time.monotonic(), 0))
            yield chunk


class Server:
    """A TCP server that calls `answer` with the file of each connection, in a thread."""

    def __init__(self, answer: Callable[[Any], None], *, port: int = 0) -> None:
        server = self
        self.connections: list[socket.socket] = []

        class Handler(socketserver.StreamRequestHandler):
            def handle(self) -> None:
                server.connections.append(self.connection)
                with contextlib.suppress(OSError, ValueError):  # the other side, or `kill`, has closed it
                    answer(self)

            def finish(self) -> None:
                with contextlib.suppress(OSError, ValueError):
                    super().finish()

        class Listener(socketserver.ThreadingTCPServer):
            allow_reuse_address = True
            daemon_threads = True

        self._listener = Listener(("127.0.0.1", port), Handler)
        self.port = self._listener.server_address[1]
        threading.Thread(target=self._listener.serve_forever, args=(0.02,), daemon=True).start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()

    def kill(self) -> None:
        self._listener.shutdown()
        self._listener.server_close()
        for connection in self.connections:
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
                connection.close()


def http(feed: Feed, *, port: int = 0, credentials: str | None = None) -> Server:
    """HTTP without a length, as from a camera or a transcoder."""

    def answer(request: Any) -> None:
        headers = _read_headers(request.rfile)
        if credentials and not _authorised(headers, credentials):
            request.wfile.write(b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="cam"\r\n\r\n')
            return
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\nConnection: close\r\n\r\n")
        for chunk in feed:
            request.wfile.write(chunk)

    return Server(answer, port=port)


def download(content: bytes, *, cut: Sequence[int] = ()) -> Server:
    """HTTP with a length, whose first connections break off after so many bytes of content. It knows no ranges."""
    cuts = iter(cut)

    def answer(request: Any) -> None:
        _read_headers(request.rfile)
        request.wfile.write(f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n".encode())
        request.wfile.write(content[: next(cuts, len(content))])

    return Server(answer)


def hls(chunks: Sequence[bytes], *, num_live: int | None = None) -> Server:
    """HLS in segments of ten chunks, a second each: all of them, or the first two and one more each second."""
    segments = [b"".join(chunks[start : start + 10]) for start in range(0, len(chunks), 10)]
    began = time.monotonic()

    def playlist() -> bytes:
        last = len(segments) if num_live is None else min(int(time.monotonic() - began) + 2, len(segments))
        first = 0 if num_live is None else max(last - num_live, 0)
        lines = ["#EXTM3U", "#EXT-X-VERSION:3", "#EXT-X-TARGETDURATION:1", f"#EXT-X-MEDIA-SEQUENCE:{first}"]
        lines += [line for number in range(first, last) for line in ("#EXTINF:1.0,", f"{number}.ts")]
        return "\n".join(lines + ["#EXT-X-ENDLIST"] * (num_live is None)).encode() + b"\n"

    def answer(request: Any) -> None:
        name = request.rfile.readline().split()[1].decode().rpartition("/")[2]
        _read_headers(request.rfile)
        content = segments[int(name.removesuffix(".ts"))] if name.endswith(".ts") else playlist()
        kind = "video/mp2t" if name.endswith(".ts") else "application/vnd.apple.mpegurl"
        request.wfile.write(
            f"HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {len(content)}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        request.wfile.write(content)

    return Server(answer)


def udp(feed: Feed, port: int) -> threading.Thread:
    """Send the feed to a port, seven packets of MPEG-TS a datagram."""

    def send() -> None:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            for chunk in feed:
                for start in range(0, len(chunk), 7 * TS_PACKET):
                    sender.sendto(chunk[start : start + 7 * TS_PACKET], ("127.0.0.1", port))

    thread = threading.Thread(target=send, daemon=True)
    thread.start()
    return thread


def free_port(kind: int = socket.SOCK_STREAM) -> int:
    with socket.socket(socket.AF_INET, kind) as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def silent() -> Server:
    """Takes connections and never says a word."""
    return Server(lambda request: request.rfile.read())


def rtsp(feed: Feed, *, port: int = 0, credentials: str | None = None) -> Server:
    """RTSP 1.0 that plays MPEG-TS in RTP, interleaved with the commands on one TCP connection."""
    description = (
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n"
        "m=video 0 RTP/AVP 33\r\na=rtpmap:33 MP2T/90000\r\na=control:track1\r\n"
    )

    def answer(request: Any) -> None:
        while start := request.rfile.read(1):
            if start == b"$":  # a report of the receiver: channel, length, content
                request.rfile.read(int.from_bytes(request.rfile.read(3)[1:], "big"))
                continue
            method = (start + request.rfile.readline()).split()[0].decode()
            headers = _read_headers(request.rfile)
            status, more, body = "200 OK", [], ""
            if method == "OPTIONS":
                more = ["Public: OPTIONS, DESCRIBE, SETUP, PLAY, TEARDOWN, GET_PARAMETER"]
            elif credentials and not _authorised(headers, credentials):
                status, more = "401 Unauthorized", ['WWW-Authenticate: Basic realm="camera"']
            elif method == "DESCRIBE":
                more, body = ["Content-Type: application/sdp"], description
            elif method == "SETUP" and "TCP" in headers["transport"]:
                more = ["Transport: RTP/AVP/TCP;unicast;interleaved=0-1"]
            elif method == "SETUP":
                status = "461 Unsupported Transport"
            head = [f"RTSP/1.0 {status}", f"CSeq: {headers['cseq']}", "Session: 1", f"Content-Length: {len(body)}"]
            request.wfile.write("\r\n".join([*head, *more, "", body]).encode())
            if method == "PLAY" and status == "200 OK":
                threading.Thread(target=play, args=(request,), daemon=True).start()

    def play(request: Any) -> None:
        sequence = 0
        with contextlib.suppress(OSError, ValueError):
            for chunk in feed:
                for start in range(0, len(chunk), 7 * TS_PACKET):
                    payload = chunk[start : start + 7 * TS_PACKET]
                    stamp = int(time.monotonic() * 90_000) & 0xFFFFFFFF
                    # Version 2, payload type 33 (MPEG-TS), sequence number, time, an identifier.
                    header = bytes([0x80, 33]) + sequence.to_bytes(2, "big") + stamp.to_bytes(4, "big") + b"cam1"
                    packet = header + payload
                    request.wfile.write(b"$\0" + len(packet).to_bytes(2, "big") + packet)
                    sequence = (sequence + 1) & 0xFFFF

    return Server(answer, port=port)


NODE_RTSP = """
const Server = require("rtsp-streaming-server").default;
const [publish, play, rtp] = process.argv.slice(1).map(Number);
const authentication = async (user, password) => user === "me" && password === "geheim";
new Server({serverPort: publish, clientPort: play, rtpPortStart: rtp, rtpPortCount: 100,
            clientServerHooks: {authentication}}).start().then(() => console.log("up"));
"""


def has_node_rtsp() -> bool:
    """Whether the npm package rtsp-streaming-server is where Node.js looks for it: NODE_PATH names the folder."""
    try:
        command = ["node", "-e", "require.resolve('rtsp-streaming-server')"]
        return subprocess.run(command, capture_output=True, timeout=20, check=False).returncode == 0
    except (OSError, subprocess.TimeoutExpired):
        return False


def node_rtsp(publish: int, play: int) -> "subprocess.Popen[str]":
    """An RTSP server of somebody else's: H.264 in RTP over UDP, with a password. Kill it with `kill`."""
    ports = [str(port) for port in (publish, play, 20_000)]
    process = subprocess.Popen(["node", "-e", NODE_RTSP, *ports], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def publish(address: str, *, fps: int = 10) -> threading.Event:
    """Send pictures 0, 1, 2 … to an RTSP server, and to the one after it when it is killed, until the event is set."""
    done = threading.Event()

    def send() -> None:
        numbers = itertools.count()
        while not done.wait(0.1):
            with contextlib.suppress(av.FFmpegError), av.open(address, "w", format="rtsp") as output:
                options = {"preset": "ultrafast", "tune": "zerolatency", "g": "5"}
                stream = output.add_stream("libx264", rate=fps, options=options)
                stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
                for number in numbers:
                    frame = av.VideoFrame.from_ndarray(picture(number % 256), format="rgb24")
                    frame.pts, frame.time_base = number, Fraction(1, fps)
                    output.mux(stream.encode(frame))
                    if done.wait(1 / fps):
                        return

    threading.Thread(target=send, daemon=True).start()
    return done


def _read_headers(file: Any) -> dict[str, str]:
    headers = {}
    while line := file.readline().decode().strip():
        name, _, value = line.partition(":")
        headers[name.strip().lower()] = value.strip()
    return headers


def _authorised(headers: dict[str, str], credentials: str) -> bool:
    return headers.get("authorization") == "Basic " + base64.b64encode(credentials.encode()).decode()
