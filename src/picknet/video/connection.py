"""One connection to a pipe, a camera or a network address: packets as they arrive, pictures as they decode."""

import collections
import errno
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import av
from av.container import InputContainer

from picknet.config import GlanceKind
from picknet.video.access import file_options, network_options, opened, reader_options
from picknet.video.content import UNFINISHED_MP4
from picknet.video.frame import frame_rate, pixel_aspect
from picknet.video.motion import export_vectors
from picknet.video.passes import demuxed, stored_end, video_stream
from picknet.video.pipe import Pipe
from picknet.video.source import Location, UnreachableSource

MAX_PACKET_AGE = 1.0
"""Seconds that a packet of a live source may wait to be decoded. Older ones are skipped up to the next keyframe."""

MAX_DAMAGED_PACKETS = 50
"""How many more damaged packets than good ones a live source may send before it is reconnected: beyond that, its codec
may have changed."""

MAX_WAITING_BYTES = 64 << 20
"""Of packets of a live source that wait to be decoded; a faster one is held back. Cameras send a tenth in a second."""

_TOLERATED_SHORTNESS = 2.0
"""Seconds by which a complete download may be shorter than its header says."""

_LEAST_INDEX = 500
"""Bytes. No index of an MP4 with a video is smaller, so a frame stored before them comes before the index."""

_INDEX_AT_END = (
    "the index of this MP4 is at its end, and the server did not go back to its frames; `picknet caption` and "
    "`timeline` download it first, or pipe it: curl ADDRESS | picknet stream -"
)

_PACED_BY_THE_SERVER = frozenset({"rtsp", "rtsps", "rtmp", "rtmps", "rtp", "udp"})
"""Addresses that send in real time even if they have a length."""


class BrokenConnection(Exception):
    """A connection that ended early; the message is the reason."""


class Connection:
    """A source, opened once.

    glance: the kind of glance that is wanted, as for `Video`.
    note: receives a line for people. on_data: called while a pipe is copied before its first frame; False ends that.
    """

    def __init__(
        self,
        location: Location,
        *,
        timeout: float,
        realtime: bool,
        glance: GlanceKind = "grey",
        note: Callable[[str], object],
        on_data: Callable[[], bool],
    ) -> None:
        self._location = location
        self._timeout = timeout
        self._pipe: Pipe | None = None
        self._container: InputContainer | None = None
        try:
            self._open(note, on_data)
            self._stream = video_stream(self._opened, location.name)
            if glance == "motion":
                export_vectors(self._stream, location.name)
        except BaseException:
            self._close()
            raise
        self._stream.thread_type = "SLICE"  # decoding several frames at once would delay each by as many
        self._unit = float(self._stream.time_base or 1)
        self.step = 1 / frame_rate(self._stream)
        """Seconds between frames, if nothing better is known."""
        self._end = stored_end(self._opened)
        self._reached = 0.0
        self.ends = location.kind == "pipe" or self._end is not None or _is_download(self._opened)
        """Whether it is expected to end."""
        is_copy = self._pipe is not None and self._pipe.is_copy
        pacable = is_copy or (location.kind == "network" and location.scheme not in _PACED_BY_THE_SERVER and self.ends)
        self.waits = not realtime and (location.kind == "pipe" or pacable)
        """Whether the source waits for the reader (back-pressure), so that no frame needs to be dropped."""
        self.arrives = not self.waits and not pacable
        """Whether packets arrive at the sender's speed."""
        self.key_bytes = self.other_bytes = 0
        """Bytes of the packets decoded so far: of keyframes, and of all other frames."""
        self.undecodable = False
        """Whether some of its data did not decode."""

    @property
    def is_complete(self) -> bool:
        return self._end is None or self._reached >= self._end - _TOLERATED_SHORTNESS

    @property
    def pixel_aspect(self) -> float:
        """Of the picture decoded last."""
        return pixel_aspect(self._stream)

    @property
    def _has_index_at_end(self) -> bool:
        is_mp4 = "mp4" in self._opened.format.name
        return is_mp4 and any(entry.pos < _LEAST_INDEX for entry in self._stream.index_entries[:1])

    @property
    def _opened(self) -> InputContainer:
        assert self._container is not None
        return self._container

    def pictures(
        self, *, is_wanted: Callable[[], bool], drop: Callable[[], object]
    ) -> Iterator[tuple[av.VideoFrame, float | None, float]]:
        """Every picture that decodes, its timestamp in seconds, and when it arrived.

        is_wanted: whether to go on. drop: called for each packet of a live source that is skipped.
        """
        decoder: Any = self._stream.codec_context
        no_picture_yet, num_damaged = True, 0
        last_picture_at = time.monotonic()
        for packet, arrived in self._live_packets(is_wanted, drop) if self.arrives else self._packets():
            if packet is _SKIPPED:
                decoder.flush_buffers()
                continue
            if packet is not None:
                self.key_bytes += packet.size if packet.is_keyframe else 0
                self.other_bytes += 0 if packet.is_keyframe else packet.size
            try:
                pictures = decoder.decode(packet)
                is_damaged = packet is not None and packet.is_corrupt
            except av.EOFError:  # a second end, after a flush
                pictures, is_damaged = [], False
            except av.FFmpegError:
                pictures, is_damaged = [], True
            for picture in pictures:
                is_damaged, no_picture_yet = is_damaged or picture.is_corrupt, False
                timestamp = None if picture.pts is None else picture.pts * self._unit
                yield picture, timestamp, arrived
                last_picture_at = time.monotonic()  # a source that waits for its reader may have waited long
            if self._location.kind != "pipe" and arrived - last_picture_at > self._timeout:
                raise BrokenConnection(f"no frame for {self._timeout:g} s")
            if no_picture_yet:
                continue  # a stream is joined in the middle of a group of frames, which is not damage
            self.undecodable = self.undecodable or is_damaged
            num_damaged = max(num_damaged + (1 if is_damaged else -len(pictures)), 0)
            if self.arrives and num_damaged > MAX_DAMAGED_PACKETS:
                raise BrokenConnection("its data can no longer be decoded")

    def _received(self) -> Iterator[Any]:
        """The packets of the video stream as they arrive, and None at the end."""
        # Of all streams, since the stored length is that of the longest one, often the sound.
        for packet in demuxed(self._opened):
            timestamp = packet.dts if packet.pts is None else packet.pts
            if timestamp is not None:
                self._reached = max(self._reached, float((timestamp + (packet.duration or 0)) * packet.time_base))
            if packet.stream_index == self._stream.index:
                yield packet
        yield None

    def _packets(self) -> Iterator["_TimedPacket"]:
        """The packets of a source that waits for the reader."""
        try:
            for packet in self._received():
                yield _TimedPacket(packet, time.monotonic())
        except av.FFmpegError as error:
            is_behind_frames = error.errno == errno.EIO and not self._reached and self._has_index_at_end
            reason = _INDEX_AT_END if is_behind_frames else _reason(error, self._location, self._timeout)
        else:
            return
        finally:
            self._close()
        raise BrokenConnection(reason)

    def _live_packets(self, is_wanted: Callable[[], bool], drop: Callable[[], object]) -> Iterator["_TimedPacket"]:
        """The packets of a live source; after one that is too old, all are skipped up to the next keyframe."""
        receiver = _Receiver(self._received(), self._close)
        skipping = False
        try:
            while is_wanted():
                received = receiver.take(self._timeout)
                if received is None:
                    return
                packet, arrived = received
                too_old = time.monotonic() - arrived > MAX_PACKET_AGE
                was_skipping = skipping
                skipping = packet is not None and (too_old or (skipping and not packet.is_keyframe))
                if skipping:
                    drop()
                    continue
                if was_skipping:
                    yield _TimedPacket(_SKIPPED, arrived)
                yield received
        except av.FFmpegError as error:
            reason = _reason(error, self._location, self._timeout)
        else:
            return
        finally:
            receiver.stop()
        raise BrokenConnection(reason)

    def _open(self, note: Callable[[str], object], on_data: Callable[[], bool]) -> None:
        location, timeout = self._location, self._timeout
        if location.kind == "camera" and location.format is None:
            raise UnreachableSource(
                f"{location.name}: cameras have numbers on Linux and macOS; elsewhere pass frames from another library"
            )
        began = time.monotonic()
        try:
            if location.kind == "pipe":
                self._pipe = Pipe(location, note=note, on_data=on_data)
                began = time.monotonic()
                self._container = opened(self._pipe.file, reader_options(), timeout=timeout)
                return
            options = dict(location.options)
            if location.kind == "network":
                is_file = location.scheme == "file"
                options |= file_options(Path(location.url)) if is_file else network_options(location.scheme)
            self._container = opened(location.url, options, format=location.format, timeout=timeout)
            return
        except (av.FFmpegError, OSError, ValueError) as error:
            is_cut = isinstance(error, av.InvalidDataError | av.EOFError)
            is_mp4 = is_cut and self._pipe is not None and self._pipe.is_copy
            reason = UNFINISHED_MP4 if is_mp4 else _reason(error, location, timeout)
            if time.monotonic() - began >= timeout:  # not every protocol reports a timeout as one
                reason = f"no frame for {timeout:g} s"
        # Outside of the block, since PyAV's error contains the address with its password.
        raise UnreachableSource(f"{location.name}: {reason}")

    def _close(self) -> None:
        if self._container is not None:
            self._container.close()
        if self._pipe is not None:
            self._pipe.close()


class _TimedPacket(NamedTuple):
    packet: Any
    """None at the end, to drain the decoder; _SKIPPED where packets were skipped."""
    arrived: float
    """Seconds of the monotonic clock."""


_SKIPPED = object()


class _Receiver:
    """A thread that receives the packets of a live source.

    The source never has to wait, and the age of each packet is known.
    """

    def __init__(self, packets: Iterator[Any], close: Callable[[], None]) -> None:
        self._close = close
        self._packets: collections.deque[_TimedPacket] = collections.deque()
        self._waiting_bytes = 0
        self._changed = threading.Condition()
        self._error: av.FFmpegError | None = None
        self._ended = self._stopped = False
        threading.Thread(target=self._receive, args=(packets,), name="picknet receiver", daemon=True).start()

    def _receive(self, packets: Iterator[Any]) -> None:
        error = None
        try:
            for packet in packets:
                with self._changed:
                    self._packets.append(_TimedPacket(packet, time.monotonic()))
                    self._waiting_bytes += packet.size if packet is not None else 0
                    self._changed.notify_all()
                    self._changed.wait_for(lambda: self._waiting_bytes <= MAX_WAITING_BYTES or self._stopped)
                if self._stopped:
                    break
        except av.FFmpegError as broken:
            error = broken
        finally:
            with self._changed:
                self._ended, self._error = True, error
                self._changed.notify_all()
            self._close_if_unused()

    def take(self, timeout: float) -> _TimedPacket | None:
        """The next packet; None at the end."""
        with self._changed:
            if not self._changed.wait_for(lambda: self._packets or self._ended, timeout):
                raise BrokenConnection(f"no frame for {timeout:g} s")
            if self._packets:
                received = self._packets.popleft()
                self._waiting_bytes -= received.packet.size if received.packet is not None else 0
                self._changed.notify_all()
                return received
        if self._error is not None:
            raise self._error
        return None

    def stop(self) -> None:
        with self._changed:
            self._stopped = True
            self._changed.notify_all()
        self._close_if_unused()

    def _close_if_unused(self) -> None:
        # The container may be closed once neither thread uses it: one reads packets, one decodes them.
        with self._changed:
            if self._ended and self._stopped:
                self._close()


def _is_download(container: InputContainer) -> bool:
    """Whether the server gave a number of bytes; that of a playlist means nothing."""
    return container.format.name not in ("hls", "dash") and (container.size or 0) > 0


def _reason(error: Exception, location: Location, timeout: float) -> str:
    """What went wrong, without the address."""
    if isinstance(error, av.error.ExitError):
        return f"no frame for {timeout:g} s"
    if isinstance(error, av.error.HTTPUnauthorizedError | av.error.HTTPForbiddenError):
        return "access denied: the user name or the password is missing or wrong"
    if isinstance(error, ConnectionRefusedError):
        return "connection refused: nothing listens there"
    if isinstance(error, av.error.ProtocolNotFoundError):
        return "unknown kind of address; rtsp://, rtmp://, http://, https:// and udp:// are known"
    if isinstance(error, av.EOFError):
        return "it ended before its first frame"
    if isinstance(error, av.InvalidDataError):
        # The program that writes into a pipe may have failed, and only FFmpeg knows whether there were any bytes.
        return ("nothing came, or " if location.kind == "pipe" else "") + "what it sends is not a known video format"
    if isinstance(error, av.ArgumentError) and location.kind == "pipe":
        return "not a video by itself; sound, and formats that refer to other files, such as playlists, are refused"
    if isinstance(error, av.ArgumentError) and location.kind == "network":
        return "not a valid address, or it redirects to one that is not http:// or https://"
    if isinstance(error, NotImplementedError) and location.kind == "pipe":
        return "this format, such as an animated PNG, cannot be read front to back; save it and give the file's path"
    if isinstance(error, MemoryError):
        return "its playlists or pictures need too much memory"
    if isinstance(error, FileNotFoundError) and location.kind == "camera":
        return "there is no such camera"
    if isinstance(error, OSError) and error.errno == errno.EIO and location.kind == "network":
        try:
            host = urlsplit(location.url).hostname
            socket.getaddrinfo(host, None)
        except ValueError:
            return "not a valid address"
        except OSError:
            return f"there is no host '{host}', or no network"
        return "the connection broke off"
    return str(getattr(error, "strerror", None) or type(error).__name__)
