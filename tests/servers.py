"""Servers on the loopback for tests of streams: they send numbered pictures (see `clips.py`) in real time.

A `Feed` is what is sent: chunks of MPEG-TS, or of the protocol's own format, one for each picture. A server sends it to
every client, starting with the current picture; `kill` cuts all connections at once, like a power failure.
"""

import base64
import contextlib
import io
import itertools
import re
import socket
import socketserver
import ssl
import struct
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
ZERO_LATENCY = {"preset": "ultrafast", "tune": "zerolatency", "g": "5"}


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
    """Pictures first, first + 1 … as MPEG-TS, a chunk for each; every fifth is a keyframe. pts: in 1 / fps seconds."""
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
        return (chunk for _, chunk in self.numbered())

    def numbered(self) -> Iterator[tuple[int, bytes]]:
        """The remaining chunks, each at its time. A feed begins with its first client."""
        self.began = self.began or time.monotonic()
        first = round((time.monotonic() - self.began) * self.fps)
        for number, chunk in enumerate(self.chunks[first:], start=first):
            time.sleep(max(self.began + number / self.fps - time.monotonic(), 0))
            yield number, chunk


class Server:
    """A TCP server that calls `answer` with the file of each connection, in a thread.

    certificate: files of a certificate and its key; connections are encrypted then.
    """

    def __init__(
        self, answer: Callable[[Any], None], *, port: int = 0, certificate: tuple[str, str] | None = None
    ) -> None:
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
        if certificate:
            encryption = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            encryption.load_cert_chain(*certificate)
            self._listener.socket = encryption.wrap_socket(self._listener.socket, server_side=True)
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
    """HTTP without a length, as of a camera or a transcoder."""

    def answer(request: Any) -> None:
        headers = _read_headers(request.rfile)
        if credentials and not _authorised(headers, credentials):
            request.wfile.write(b'HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Basic realm="cam"\r\n\r\n')
            return
        request.wfile.write(b"HTTP/1.1 200 OK\r\nContent-Type: video/mp2t\r\nConnection: close\r\n\r\n")
        for chunk in feed:
            request.wfile.write(chunk)

    return Server(answer, port=port)


def download(
    content: bytes,
    *,
    cut: Sequence[int] = (),
    credentials: str | None = None,
    status: str = "200 OK",
    headers: Sequence[str] = (),
    requests: list[str] | None = None,
    certificate: tuple[str, str] | None = None,
) -> Server:
    """HTTP with a length and without byte ranges.

    cut: the first connections break off after these numbers of bytes. requests: receives the headers of each request.
    """
    cuts = iter(cut)

    def answer(request: Any) -> None:
        received = _read_headers(request.rfile)
        if requests is not None:
            requests.append(str(received))
        if credentials and not _authorised(received, credentials):
            request.wfile.write(b"HTTP/1.1 401 Unauthorized\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
            return
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(content)}", "Connection: close", *headers]
        request.wfile.write("\r\n".join([*head, "", ""]).encode())
        request.wfile.write(content[: next(cuts, len(content))])

    return Server(answer, certificate=certificate)


def hls(chunks: Sequence[bytes], *, num_live: int | None = None) -> Server:
    """HLS in segments of ten chunks, one second each: all of them, or the first two and one more every second."""
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
    """Accepts connections and never answers."""
    return Server(lambda request: request.rfile.read())


def rtsp(feed: Feed, *, port: int = 0, credentials: str | None = None, over_udp: bool = False) -> Server:
    """RTSP 1.0 that plays H.264 in RTP: interleaved in the TCP connection, or over UDP as many cameras do."""
    description = (
        "v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=camera\r\nc=IN IP4 0.0.0.0\r\nt=0 0\r\n"
        "m=video 0 RTP/AVP 96\r\na=rtpmap:96 H264/90000\r\na=fmtp:96 packetization-mode=1\r\na=control:track1\r\n"
    )

    def answer(request: Any) -> None:
        send = None
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
            elif method == "SETUP" and over_udp == ("TCP" in headers["transport"]):
                status = "461 Unsupported Transport"
            elif method == "SETUP" and over_udp:
                theirs = int(headers["transport"].rpartition("client_port=")[2].partition("-")[0])
                send = _datagrams(theirs)
                more = [f"Transport: RTP/AVP;unicast;client_port={theirs}-{theirs + 1}"]
            elif method == "SETUP":
                send = _interleaved(request.wfile)
                more = ["Transport: RTP/AVP/TCP;unicast;interleaved=0-1"]
            head = [f"RTSP/1.0 {status}", f"CSeq: {headers['cseq']}", "Session: 1", f"Content-Length: {len(body)}"]
            request.wfile.write("\r\n".join([*head, *more, "", body]).encode())
            if method == "PLAY" and send:
                threading.Thread(target=play, args=(send, request.connection), daemon=True).start()

    def play(send: Callable[[bytes], object], connection: socket.socket) -> None:
        sequence = itertools.count()
        with contextlib.suppress(OSError, ValueError):
            for number, picture in feed.numbered():
                payloads = list(_rtp_payloads(picture))
                for place, payload in enumerate(payloads, start=1):
                    connection.getpeername()  # an error where it was cut: then datagrams end, too
                    marked = (place == len(payloads)) << 7  # the end of a picture
                    stamp = round(number * 90_000 / feed.fps)
                    send(struct.pack(">BBHI4s", 0x80, 96 | marked, next(sequence) & 0xFFFF, stamp, b"cam1") + payload)

    return Server(answer, port=port)


def rtsp_over_udp(feed: Feed, *, port: int = 0) -> Server:
    return rtsp(feed, port=port, over_udp=True)


def _interleaved(file: Any) -> Callable[[bytes], object]:
    return lambda packet: file.write(b"$\0" + len(packet).to_bytes(2, "big") + packet)


def _datagrams(port: int) -> Callable[[bytes], object]:
    sender = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    return lambda packet: sender.sendto(packet, ("127.0.0.1", port))


def _rtp_payloads(picture: bytes, *, largest: int = 500) -> Iterator[bytes]:
    """The NAL units of a picture as in RFC 6184: single, or in fragments if they are too large."""
    for unit in re.split(b"\0\0\0?\1", picture)[1:]:
        if len(unit) <= largest:
            yield unit
            continue
        starts = range(1, len(unit), largest)
        for start in starts:
            # Kind 28 is a fragment; then whether it is the first or the last, and the kind of the unit.
            place = (start == starts[0]) << 7 | (start == starts[-1]) << 6
            yield bytes([unit[0] & 0xE0 | 28, place | unit[0] & 0x1F]) + unit[start : start + largest]


def pictures_in_h264(num_frames: int, *, fps: int = 10) -> list[bytes]:
    """Pictures 0, 1, 2 … as H.264 with start codes, a chunk for each; every fifth is a keyframe."""
    coder = av.CodecContext.create("libx264", "w")
    coder.width, coder.height, coder.pix_fmt = WIDTH, HEIGHT, "yuv420p"
    coder.time_base, coder.options = Fraction(1, fps), ZERO_LATENCY
    return [b"".join(map(bytes, coder.encode(frame))) for frame in _frames(num_frames, fps=fps)]


def pictures_in_flash(num_frames: int, *, fps: int = 10) -> list[bytes]:
    """The same as the tags of an FLV file; the first two are the headers."""
    written = io.BytesIO()
    with av.open(written, "w", format="flv") as output:
        stream = output.add_stream("libx264", rate=fps, options=ZERO_LATENCY)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for frame in _frames(num_frames, fps=fps):
            output.mux(stream.encode(frame))
    tags, rest = [], written.getvalue()[13:]  # after the header of the file
    while rest:
        end = 11 + int.from_bytes(rest[1:4], "big")  # a tag: its kind, the length of its body, its time …
        tags.append(rest[:end])
        rest = rest[end + 4 :]
    return tags


def _frames(num_frames: int, *, fps: int) -> Iterator[av.VideoFrame]:
    for number in range(num_frames):
        frame = av.VideoFrame.from_ndarray(picture(number % 256), format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = number, Fraction(1, fps)
        yield frame


def rtmp(feed: Feed, *, port: int = 0) -> Server:
    """RTMP that plays the tags of an FLV file."""

    def answer(request: Any) -> None:
        request.rfile.read(1)
        request.wfile.write(b"\3" + bytes(1536) + request.rfile.read(1536))  # version 3, our noise, and theirs
        request.rfile.read(1536)
        send(request, 1, (1 << 24).to_bytes(4, "big"))  # our messages come in one piece
        for command, number in _rtmp_commands(request.rfile):
            if command == "connect":
                send(request, 20, _amf("_result", number, None, {"code": "NetConnection.Connect.Success"}))
            elif command == "createStream":
                send(request, 20, _amf("_result", number, None, 1.0))
            elif command == "play":
                send(request, 20, _amf("onStatus", 0.0, None, {"level": "status", "code": "NetStream.Play.Start"}))
                threading.Thread(target=play, args=(request,), daemon=True).start()

    def play(request: Any) -> None:
        with contextlib.suppress(OSError, ValueError):
            for tag in itertools.chain(feed.chunks[:2], feed):  # a late client needs the headers as well
                send(request, tag[0], tag[11:], stamp=tag[4:7])

    def send(request: Any, kind: int, body: bytes, *, stamp: bytes = bytes(3)) -> None:
        request.wfile.write(b"\3" + stamp + len(body).to_bytes(3, "big") + bytes([kind, 1, 0, 0, 0]) + body)

    return Server(answer, port=port)


def _rtmp_commands(file: Any) -> Iterator[tuple[str, float]]:
    """The commands of a player and their numbers, from messages in chunks of 128 bytes."""
    lengths, kinds, bodies = {}, {}, {}  # by the channel
    while start := file.read(1):
        form, channel = start[0] >> 6, start[0] & 63
        header = file.read((11, 7, 3, 0)[form])
        if form < 2:
            lengths[channel], kinds[channel] = int.from_bytes(header[3:6], "big"), header[6]
        body = bodies.pop(channel, b"")
        body += file.read(min(128, lengths[channel] - len(body)))
        if len(body) < lengths[channel]:
            bodies[channel] = body
        elif kinds[channel] == 20:
            end = 3 + int.from_bytes(body[1:3], "big")
            yield body[3:end].decode(), struct.unpack(">d", body[end + 1 : end + 9])[0]


def _amf(*values: Any) -> bytes:
    """Strings, numbers, None and objects of strings in AMF0."""

    def text(value: str) -> bytes:
        return len(value).to_bytes(2, "big") + value.encode()

    def written(value: Any) -> bytes:
        if value is None:
            return b"\5"
        if isinstance(value, str):
            return b"\2" + text(value)
        if isinstance(value, float):
            return b"\0" + struct.pack(">d", value)
        return b"\3" + b"".join(text(name) + written(one) for name, one in value.items()) + b"\0\0\x09"

    return b"".join(map(written, values))


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
    """A third-party RTSP server: H.264 in RTP over UDP, with a password. End it with `kill`."""
    ports = [str(port) for port in (publish, play, 20_000)]
    process = subprocess.Popen(["node", "-e", NODE_RTSP, *ports], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "up\n"
    return process


def publish(address: str, *, fps: int = 10) -> threading.Event:
    """Send pictures 0, 1, 2 … to an RTSP server, also after it was restarted, until the event is set."""
    done = threading.Event()

    def send() -> None:
        numbers = itertools.count()
        while not done.wait(0.1):
            with contextlib.suppress(av.FFmpegError), av.open(address, "w", format="rtsp") as output:
                stream = output.add_stream("libx264", rate=fps, options=ZERO_LATENCY)
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
