"""What a source is by its name, and one connection to it: packets as they arrive, pictures as they decode.

With `video.py` the only file that imports PyAV.
"""

import collections
import errno
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import av
from av.container import InputContainer
from av.video.stream import VideoStream

from picknet.video.file import UnreadableVideo, video_stream
from picknet.video.frame import pixel_aspect
from picknet.video.source import Address, UnreachableSource

PATIENCE = 1.0
"""Seconds that a packet may wait to be decoded. What is older gives way to the next key frame."""

MAX_BAD = 50
"""How many more packets of a live source may be damaged than are not: beyond that its codec may have changed."""

_TOLERATED_SHORTNESS = 2.0
"""Seconds by which a download may be shorter than it promised."""

_PACED_BY_THE_SERVER = frozenset({"rtsp", "rtsps", "rtmp", "rtmps", "rtp", "udp"})
"""Addresses that send at their own speed, even where they tell a length."""


class Broken(Exception):
    """A connection that ended before its time; the message is the reason."""


class Connection:
    """An address, opened once."""

    def __init__(self, source: Address, *, timeout: float, realtime: bool) -> None:
        self._source = source
        self._timeout = timeout
        self._container = _open(source, timeout)
        try:
            stream = video_stream(self._container, source.name)
        except UnreadableVideo:
            self._container.close()
            raise
        self._stream = stream
        stream.thread_type = "SLICE"  # decoding several frames at once would hold back as many
        self._unit = float(stream.time_base or 1)
        self.step = 1 / float(stream.average_rate or stream.guessed_rate or 25)
        """Seconds from a frame to the next, where nothing tells better."""
        self.pixel_aspect = pixel_aspect(stream)
        self._promised = _length(self._container)
        self._start = (self._container.start_time or 0) / av.time_base
        self._reached = 0.0
        self.ends = source.kind == "pipe" or self._promised is not None or _is_download(self._container)
        """Whether an end is to be expected."""
        paced_here = source.kind == "network" and source.scheme not in _PACED_BY_THE_SERVER
        self.waits = not realtime and (source.kind == "pipe" or (paced_here and self.ends))
        """Whether the source waits for whoever reads it, so that no frame needs to be dropped."""
        self.arrives = not self.waits and not (paced_here and self.ends)
        """Whether packets come at a speed that is not ours."""
        self.undecodable = False
        """Whether some of its data did not decode."""

    @property
    def is_complete(self) -> bool:
        return self._promised is None or self._reached >= self._promised - _TOLERATED_SHORTNESS

    def pictures(
        self, *, is_wanted: Callable[[], bool], drop: Callable[[], object]
    ) -> Iterator[tuple[av.VideoFrame, float | None, float]]:
        """Every picture that decodes, its time stamp in seconds, and when it came in.

        is_wanted: whether to go on; drop: is called for each packet of a live source that came too fast for us.
        """
        decoder: Any = self._stream.codec_context
        is_empty, num_bad = True, 0
        shown_at = time.monotonic()
        for packet, arrived in self._arriving(is_wanted, drop) if self.arrives else self._waiting():
            if packet is _GAP:
                decoder.flush_buffers()
                continue
            try:
                pictures = decoder.decode(packet)
                is_bad = packet is not None and packet.is_corrupt
            except av.EOFError:  # a second end, after a flush
                pictures, is_bad = [], False
            except av.FFmpegError:
                pictures, is_bad = [], True
            for picture in pictures:
                is_bad, is_empty, shown_at = is_bad or picture.is_corrupt, False, arrived
                stamp = None if picture.pts is None else picture.pts * self._unit
                self._reached = self._reached if stamp is None else max(self._reached, stamp - self._start)
                yield picture, stamp, arrived
            if self.arrives and arrived - shown_at > self._timeout:
                raise Broken(f"no frame for {self._timeout:g} s")
            if is_empty:
                continue  # a source is joined anywhere in a group of frames, so there is nothing to miss yet
            self.undecodable = self.undecodable or is_bad
            num_bad = max(num_bad + (1 if is_bad else -len(pictures)), 0)
            if self.arrives and num_bad > MAX_BAD:
                raise Broken("its data cannot be decoded any more")

    def _waiting(self) -> Iterator["_Arrival"]:
        """The packets of a source that waits."""
        try:
            for packet in self._container.demux(self._stream):
                yield _Arrival(packet if packet.size else None, time.monotonic())
        except av.FFmpegError as error:
            reason = _reason(error, self._source, self._timeout)
        else:
            return
        finally:
            self._container.close()
        raise Broken(reason)

    def _arriving(self, is_wanted: Callable[[], bool], drop: Callable[[], object]) -> Iterator["_Arrival"]:
        """The packets of a live source; those that waited for too long are left out, up to the next key frame."""
        arrivals = _Arrivals(self._container, self._stream)
        late = False
        try:
            while is_wanted():
                arrival = arrivals.take(self._timeout)
                if arrival is None:
                    return
                packet, arrived = arrival
                too_old = time.monotonic() - arrived > PATIENCE
                was_late, late = late, packet is not None and (too_old or (late and not packet.is_keyframe))
                if late:
                    drop()
                    continue
                if was_late:
                    yield _Arrival(_GAP, arrived)
                yield arrival
        except av.FFmpegError as error:
            reason = _reason(error, self._source, self._timeout)
        else:
            return
        finally:
            arrivals.leave()
        raise Broken(reason)


class _Arrival(NamedTuple):
    packet: Any
    """None at the end, to empty the decoder; _GAP where packets were left out."""
    seconds: float
    """When it came in, by the monotonic clock."""


_GAP = object()


class _Arrivals:
    """The packets of a live source, taken in by a thread of their own.

    So the source is never kept waiting, and it is known how late we are.
    """

    def __init__(self, container: InputContainer, stream: VideoStream) -> None:
        self._container = container
        self._stream = stream
        self._packets: collections.deque[_Arrival] = collections.deque()
        self._changed = threading.Condition()
        self._error: av.FFmpegError | None = None
        self._ended = self._left = False
        threading.Thread(target=self._take_in, name="picknet arrivals", daemon=True).start()

    def _take_in(self) -> None:
        error = None
        try:
            for packet in self._container.demux(self._stream):
                with self._changed:
                    self._packets.append(_Arrival(packet if packet.size else None, time.monotonic()))
                    self._changed.notify()
                if self._left:
                    break
        except av.FFmpegError as broken:
            error = broken
        finally:
            with self._changed:
                self._ended, self._error = True, error
                self._changed.notify()
            self._close_once_both_are_done()

    def take(self, timeout: float) -> _Arrival | None:
        """The next packet; None at the end."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._packets or self._ended, timeout):
                raise Broken(f"no frame for {timeout:g} s")
            if self._packets:
                return self._packets.popleft()
        if self._error is not None:
            raise self._error
        return None

    def leave(self) -> None:
        """Take no more."""
        with self._changed:
            self._left = True
        self._close_once_both_are_done()

    def _close_once_both_are_done(self) -> None:
        # Neither may close it under the other: one reads from it, one decodes what was read.
        with self._changed:
            if self._ended and self._left:
                self._container.close()


def _open(source: Address, timeout: float) -> InputContainer:
    # Read without a buffer, standard input gives what there is at once, and no lock is held when Python ends.
    target: Any = open(0, "rb", buffering=0, closefd=False) if source.address == "-" else source.address  # noqa: SIM115
    if source.kind == "pipe" and source.address != "-":
        target = f"file:{os.path.abspath(source.address)}"
    began = time.monotonic()
    try:
        container: InputContainer = av.open(target, format=source.format, options=dict(source.options), timeout=timeout)
        return container
    except (av.FFmpegError, OSError, ValueError) as error:
        reason = _reason(error, source, timeout)
        if time.monotonic() - began >= timeout:  # not every protocol calls that by its name
            reason = f"no frame for {timeout:g} s"
    # Outside of the block, since PyAV's error knows the address with its password.
    raise UnreachableSource(f"{source.name}: {reason}")


def _length(container: InputContainer) -> float | None:
    """Seconds of video that a source promises; None for one without an end."""
    videos = container.streams.video
    lengths = [float(stream.duration * stream.time_base) for stream in videos if stream.duration and stream.time_base]
    seconds = max(lengths, default=(container.duration or 0) / av.time_base)
    return seconds if seconds > 0 else None


def _is_download(container: InputContainer) -> bool:
    """Whether a server told the number of bytes; that of a list of segments says nothing."""
    return container.format.name not in ("hls", "dash") and (container.size or 0) > 0


def _reason(error: Exception, source: Address, timeout: float) -> str:
    """What went wrong, without the address."""
    if isinstance(error, av.error.ExitError):
        return f"no frame for {timeout:g} s"
    if isinstance(error, av.error.HTTPUnauthorizedError | av.error.HTTPForbiddenError):
        return "it refuses us: the user name or the password is missing or wrong"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, av.error.ProtocolNotFoundError):
        return "no known kind of address; rtsp://, rtmp://, http://, https:// and udp:// are"
    if isinstance(error, av.EOFError):
        return "it ended before its first frame"
    if isinstance(error, av.InvalidDataError):
        # Whoever was to write into a pipe may have failed, and only FFmpeg knows whether a byte came.
        return ("nothing came, or " if source.kind == "pipe" else "") + "what it sends is not a known video format"
    if isinstance(error, FileNotFoundError) and source.kind == "camera":
        return "there is no such camera"
    if isinstance(error, OSError) and error.errno == errno.EIO and source.kind == "network":
        try:
            host = urlsplit(source.address).hostname
            socket.getaddrinfo(host, None)
        except ValueError:
            return "no address has this form"
        except OSError:
            return f"there is no host '{host}', or no network"
        return "the connection broke off"
    return str(getattr(error, "strerror", None) or type(error).__name__)
