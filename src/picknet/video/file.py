"""Frames out of video files, and pictures as frames. With connection.py the only file that imports PyAV.

A `Video` is read front to back, as often as it is sampled. Of what is read only that is decoded which a wanted frame
depends on; wherever there is a doubt, everything. Passes have the file open for themselves, so they never disturb each
other. A `Frame` stays in the decoder's own pixel format: a glance costs one small scaling of its luma plane, and colour
is computed for the few frames whose pixels somebody asks for.
"""

import contextlib
import functools
import itertools
import math
import os
import stat
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import av
import numpy as np
from av.container import InputContainer
from av.stream import Disposition, Stream
from av.video.frame import PictureType
from av.video.stream import VideoStream
from numpy.typing import NDArray

from picknet.errors import PicknetError
from picknet.video.frame import Frame, metronome, pixel_aspect, quarter_turns, sides
from picknet.video.packets import Timetable
from picknet.video.pictures import is_picture, read_picture

if TYPE_CHECKING:
    pass


# The suffixes .ts and .mts are left out: in most folders they are TypeScript.
VIDEO_SUFFIXES = frozenset(
    {".3gp", ".avi", ".flv", ".gif", ".h264", ".h265", ".hevc", ".m2ts", ".m4v"}
    | {".mkv", ".mov", ".mp4", ".mpeg", ".mpg", ".ogv", ".webm", ".wmv"}
)
"""The lower-case file name endings a folder is searched for."""


_TOLERATED_GAP = 0.3
"""Seconds that a file's stored length, its data and its last frame may differ by and still be called healthy."""


_REWINDABLE = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"})
"""Containers that can be read from the start again without being opened again."""

_DISPOSING_DECODERS = frozenset({"h264", "mpeg1video", "mpeg2video", "mpeg4"})
"""Those that leave out, when told to, exactly the frames that no other frame refers to. That of HEVC would leave out
frames, too, which those of a higher temporal layer may refer to."""


class UnreadableVideo(PicknetError):
    """A file no frame can be had from; the message starts with its path."""


class Video:
    """A video file. Use it as a context manager: `with Video(path) as video:`.

    width, height: of an upright frame with square pixels.
    seconds: the video's length, or None where the file does not tell.

    Opening decodes the first frame, so a file that is no video is refused here and not half-way through the work.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._breaks_off: str | None = None
        self._undecodable: str | None = None
        self._opened = contextlib.ExitStack()
        self._timetable = Timetable()
        _check_file(self.path)
        container = self._opened.enter_context(_open(self.path))
        try:
            stream = video_stream(container, self.path)
            self.seconds = _stored_seconds(container, stream)
            self._pixel_aspect = pixel_aspect(stream)
            self._unit = float(stream.time_base or 1)
            self._unread = self._noted(container, stream)
            picture, _ = next(self._frames(container, stream, self._unread))
        except BaseException:
            container.close()
            raise
        self._begun: tuple[InputContainer, VideoStream] | None = (container, stream)
        """The file as it was left by looking for the first frame."""
        self._start, self._is_interlaced = picture.pts, picture.interlaced_frame
        upright = sides(picture, self._pixel_aspect)
        self.width, self.height = upright if quarter_turns(picture) % 2 == 0 else upright[::-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._opened.close()

    @property
    def damage(self) -> str | None:
        """What is lost of the file, in one line, as far as it has been read; None for a healthy file."""
        return "; ".join(filter(None, (self._breaks_off, self._undecodable))) or None

    def num_samples(self, count: int) -> int:
        """How many frames `sample_evenly` yields of a healthy video: `count`, or all there are."""
        return min(count, self._num_frames)

    def sample_evenly(self, *, count: int = 30, only: Collection[int] | None = None) -> Iterator[Frame]:
        """Yield the middle frames of `count` equal parts: frame ⌊(i + ½) n / count⌋ of n; all n where n ≤ count.

        only: of these the ones with such an index, and nothing else is decoded than what they depend on. If none of
        them can be had, it is the last one that can.

        n is the number of packets, read without decoding. A frame is then known by its presentation time, not by
        counting: where a packet turns out to hold no frame (a hidden reference, a damaged part), the next frame stands
        in and all others keep their places, evenly spaced; a long damage leaves a gap, so fewer frames come. Packets
        without a presentation time of their own cannot be trusted to be frames: such a file is decoded once to count.
        """
        wanted = self._middles(count)
        chosen = {index: position for index, position in enumerate(wanted) if only is None or index in only}
        yield from self._seen_at_or(self._at_positions(wanted, only), chosen)

    def sample_by_time(self, *, fps: float = 1.0) -> Iterator[Frame]:
        """Yield, as it is decoded, the first frame at or after each of 0, 1/fps, 2/fps … seconds.

        A frame that is the first after several of these moments (the picture stood still) is yielded once.
        """
        wanted: list[int] = []
        if (times := self._times) and times[0] == self._start:
            is_due = metronome(fps)
            wanted = [position for position, time in enumerate(times) if is_due((time - times[0]) * self._unit)]
        yield from self._seen_at_or(self._at_ticks(fps), dict(enumerate(wanted)))

    def _seen_at_or(self, by_decoding_everything: Iterator[Frame], wanted: Mapping[int, int]) -> Iterator[Frame]:
        """Those of `_seen_at`; where they end before the last of them, the others as they come otherwise."""
        num_seen = 0
        for frame in self._seen_at(wanted):
            yield frame
            num_seen += 1
        if num_seen < len(wanted) or not wanted:
            yield from itertools.islice(by_decoding_everything, num_seen, None)

    def _middles(self, count: int) -> list[int]:
        """The positions of the frames that `sample_evenly` yields."""
        count = self.num_samples(count)
        return [(2 * i + 1) * self._num_frames // (2 * count) for i in range(count)]

    def _at_positions(self, wanted: Sequence[int], only: Collection[int] | None = None) -> Iterator[Frame]:
        """The frames at these positions, or those that stand in for them, by decoding everything.

        only: of these the ones with such an index; if none of them comes, the last one that does.
        """
        with self._reading() as (container, stream):
            index = num_served = num_yielded = 0
            last = None
            for number, (picture, seconds) in enumerate(self._frames(container, stream)):
                position = bisect_left(self._times, picture.pts) if self._times and picture.pts is not None else number
                if num_served < len(wanted) and position >= wanted[num_served]:
                    if only is None or index in only:
                        yield self._frame(picture, index=index, seconds=seconds, number=position)
                        num_yielded += 1
                    num_served = bisect_right(wanted, position)
                    index += 1
                last = picture, seconds
            if not num_yielded and last:  # the file broke off before the first frame wanted: what there is has to do
                yield self._frame(last[0], index=max(index - 1, 0), seconds=last[1], number=number)

    def _at_ticks(self, fps: float) -> Iterator[Frame]:
        """Those that `sample_by_time` yields, by decoding everything."""
        with self._reading() as (container, stream):
            index, is_due = 0, metronome(fps)
            for number, (picture, seconds) in enumerate(self._frames(container, stream)):
                if is_due(seconds):
                    yield self._frame(picture, index=index, seconds=seconds, number=number)
                    index += 1

    def _frame(self, picture: av.VideoFrame, *, index: int, seconds: float, number: int) -> Frame:
        return Frame(picture, index=index, seconds=seconds, number=number, pixel_aspect=self._pixel_aspect)

    @contextlib.contextmanager
    def _reading(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        """The file, opened for one pass from its start; what is still open when the video is left is closed then."""
        container = self._opened.enter_context(_open(self.path))
        try:
            yield container, video_stream(container, self.path)
        finally:
            container.close()

    @functools.cached_property
    def _times(self) -> "array[int] | None":
        """When each frame is shown, sorted, in the stream's unit; None where the packets do not tell."""
        for _ in self._unread:
            pass
        return self._timetable.times()

    @functools.cached_property
    def _num_frames(self) -> int:
        return len(self._times) if self._times else self._count_frames()

    def _count_frames(self) -> int:
        with self._reading() as (container, stream):
            return sum(1 for _ in self._frames(container, stream))

    def _noted(self, container: InputContainer, stream: VideoStream) -> "Iterator[av.Packet[Stream]]":
        """The video's packets, each noted in the timetable."""
        for packet in self._packets(container, stream):
            if _guesses_times(container) and packet.pts != packet.dts:
                self._timetable.is_trusted = False
            self._timetable.add(
                shown=packet.pts, decoded=packet.dts, is_key=packet.is_keyframe, is_hidden=packet.is_discard
            )
            yield packet

    @contextlib.contextmanager
    def _reading_again(self) -> Iterator[tuple[InputContainer, VideoStream]]:
        """As `_reading`, but the file is not opened anew where it is still open and can be wound back."""
        begun, self._begun = self._begun, None
        if begun is None or begun[0].format.name not in _REWINDABLE:
            if begun is not None:
                begun[0].close()
            with self._reading() as opened:
                yield opened
            return
        container, stream = begun
        try:
            container.seek(self._timetable.shown(0), stream=stream)
            yield container, stream
        finally:
            container.close()

    def _seen_at(self, positions: Mapping[int, int]) -> Iterator[Frame]:
        """The frames with these indexes at these positions; only what they depend on is decoded.

        They are those that decoding everything gives. Where that is in doubt no more of them come: at damage, a frame
        that does not appear, a key frame that is none, a file that does not read as it did before.
        """
        if not positions or not self._times or self._start is None:
            return
        shown = [self._times[position] for position in positions.values()]
        wanted = deque(zip(positions.items(), shown, strict=True))
        with self._reading_again() as (container, stream):
            packets = self._packets(container, stream)
            leave_out = stream.codec_context.name in _DISPOSING_DECODERS and not self._is_interlaced
            for time, picture in _pictures_needed(packets, stream, self._timetable, shown, leave_out=leave_out):
                (index, number), next_time = wanted[0]
                if time > next_time:
                    return
                if time == next_time:
                    seconds = time * self._unit - self._start * self._unit
                    yield self._frame(picture, index=index, seconds=seconds, number=number)
                    wanted.popleft()
                if not wanted:
                    return

    def _packets(self, container: InputContainer, stream: VideoStream) -> "Iterator[av.Packet[Stream]]":
        """The video's packets; a file that breaks off is noted."""
        reached = 0.0
        reason = ""
        units = {each.index: float(each.time_base or 0) for each in container.streams}
        try:
            # Packets of all streams, since the stored length is that of the longest, often the sound.
            for packet in container.demux():
                if packet.size == 0:
                    continue  # a decoder would take an empty packet for the end
                if packet.pts is not None:
                    unit = units.get(packet.stream_index) or float(packet.time_base)
                    reached = max(reached, (packet.pts + (packet.duration or 0)) * unit)
                if packet.stream_index == stream.index:
                    yield packet
        except av.FFmpegError as error:
            reason = f" ({error.strerror})"
        reached -= (container.start_time or 0) / av.time_base
        length = _promised_seconds(container, stream)
        if reason or 0 < reached < length - _TOLERATED_GAP:
            self._breaks_off = f"the file breaks off after {max(reached, 0.0):.1f} of {length:.1f} s{reason}"
        elif container.format.name == "gif" and not _ends_as_gif(self.path):
            self._breaks_off = f"the file breaks off after {reached:.1f} s"

    def _pictures(
        self, stream: VideoStream, packets: "Iterator[av.Packet[Stream]]"
    ) -> Iterator[av.VideoFrame]:
        """Every picture that decodes, in the order shown; what does not decode is noted and passed over."""
        stream.thread_type = "AUTO"
        num_packets = num_pictures = num_whole = 0
        last_packet = last_picture = stream.start_time or 0
        lost_at: int | None = None
        for packet in itertools.chain(packets, [None]):  # None empties the decoder
            healthy = True
            if packet is not None and not packet.is_discard:
                num_packets += 1
                last_packet = packet.pts if packet.pts is not None else last_packet
                healthy = not packet.is_corrupt
            try:
                pictures = stream.decode(packet)
            except av.FFmpegError:
                pictures, healthy = [], False
            for picture in pictures:
                num_pictures += 1
                num_whole += not picture.is_corrupt
                last_picture = picture.pts if picture.pts is not None else last_picture
                healthy = healthy and not picture.is_corrupt
                yield picture
            if not healthy and lost_at is None:
                lost_at = last_picture  # decoding in several threads, the packet at fault is some way back
                self._undecodable = f"some of its data cannot be decoded{_since_start(lost_at, stream)}"
        if num_pictures == 0:
            what = f"none of its {num_packets} frames can be decoded" if num_packets else "its video stream is empty"
            raise UnreadableVideo(f"{self.path}: {what}")
        gap = (last_packet - last_picture) * float(stream.time_base or 1)
        if lost_at is None and (gap > _TOLERATED_GAP or 2 * num_pictures < num_packets - 1):
            # Some decoders pass over rubbish without a word. (Half as many pictures as packets is healthy: fields.)
            lost_at = last_picture
        if lost_at is not None:
            num_lost = max(num_packets - num_whole, 1)
            since = _since_start(lost_at, stream)
            self._undecodable = f"{num_lost} of {num_packets} frames are lost or damaged{since}"

    def _frames(
        self, container: InputContainer, stream: VideoStream, packets: "Iterator[av.Packet[Stream]] | None" = None
    ) -> Iterator[tuple[av.VideoFrame, float]]:
        """Every picture that decodes, with its seconds from the first one, which only ever increase."""
        unit = float(stream.time_base or 1)
        step = 1 / float(stream.average_rate or stream.guessed_rate or 25)
        start, seconds = math.inf, -step
        for picture in self._pictures(stream, packets or self._packets(container, stream)):
            time = seconds + step  # without times of their own, frames follow each other at the stream's rate
            if picture.pts is not None and not _guesses_times(container):
                time = picture.pts * unit - start
                if time < seconds - _TOLERATED_GAP:
                    # The first frame; or times are set back, as in joined recordings, and go on from where they were.
                    start = picture.pts * unit - (seconds + step)
            seconds = time if time > seconds else seconds + step
            yield picture, seconds


def _pictures_needed(
    packets: "Iterator[av.Packet[Stream]]",
    stream: VideoStream,
    timetable: Timetable,
    times: Sequence[int],
    *,
    leave_out: bool,
) -> Iterator[tuple[int, av.VideoFrame]]:
    """The pictures shown at these times and those they depend on, in order, with their times, up to the first doubt.

    leave_out: whether frames that no other refers to need not be decoded.
    """
    decoder, wanted = stream.codec_context, frozenset(times)
    if not decoder.is_open:
        stream.thread_type = "AUTO"
    numbered = enumerate(packets)
    num_read = 0
    for needed in timetable.needed(times):
        key_time = timetable.shown(needed.start)
        is_sure = needed.start == 0  # from the first packet on it is what decoding everything does
        read = itertools.islice(numbered, needed.stop - num_read)
        num_read = needed.stop
        for number, packet in itertools.chain(read, [(num_read, None)]):  # None empties the decoder
            if packet is not None:
                if packet.pts != timetable.shown(number) or packet.is_corrupt:
                    return
                if number < needed.start:
                    continue
                is_needed = not leave_out or number == needed.start or packet.pts in wanted
                decoder.skip_frame = "DEFAULT" if is_needed else "NONREF"
            try:
                pictures = stream.decode(packet)
            except av.FFmpegError:
                return
            for picture in pictures:
                if picture.pts is None or picture.is_corrupt or (leave_out and picture.interlaced_frame):
                    return  # the two fields of an interlaced picture can be packets of their own
                if picture.pts == key_time and picture.key_frame and picture.pict_type == PictureType.I:
                    is_sure = True
                if is_sure:
                    yield picture.pts, picture
                elif picture.pts >= key_time:
                    return
        decoder.flush_buffers()


def _check_file(path: Path) -> None:
    """Refuse what is not a file with something in it, in words of our own."""
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UnreadableVideo(f"{path}: no such file") from None
    except (OSError, ValueError) as error:  # ValueError: a name no file can have
        raise UnreadableVideo(f"{path}: cannot be read ({getattr(error, 'strerror', None) or error})") from None
    if stat.S_ISDIR(found.st_mode):
        raise UnreadableVideo(f"{path}: is a folder, not a video")
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableVideo(f"{path}: is not a regular file")
    if found.st_size == 0:
        raise UnreadableVideo(f"{path}: the file is empty")


def _open(path: Path) -> InputContainer:
    try:
        # With its protocol in front, a name such as "a:b.mp4" is not taken for an address.
        return av.open(f"file:{path.absolute()}")
    except (av.InvalidDataError, av.EOFError) as error:
        with path.open("rb") as file:
            begins_as_mp4 = file.read(8)[4:] == b"ftyp"
        what = "the file ends before its first frame" if isinstance(error, av.EOFError) else "not a known video format"
        if begins_as_mp4:
            what = "an unfinished or damaged MP4 (its index, 'moov', is missing or cut)"
        raise UnreadableVideo(f"{path}: {what}") from None
    except av.FFmpegError as error:
        raise UnreadableVideo(f"{path}: cannot be read ({error.strerror})") from None


def video_stream(container: InputContainer, name: object) -> VideoStream:
    """The stream to watch: the one FFmpeg thinks best, covers of music aside."""
    covers = [stream for stream in container.streams.video if stream.disposition & Disposition.attached_pic]
    videos = [stream for stream in container.streams.video if stream not in covers]
    if not videos:
        kinds = {"cover picture" if stream in covers else stream.type or "unknown" for stream in container.streams}
        raise UnreadableVideo(f"{name}: no video stream found (streams: {', '.join(sorted(kinds)) or 'none'})")
    best = container.streams.best("video")
    stream = best if isinstance(best, VideoStream) and best in videos else videos[0]
    if stream.codec_context is None:
        raise UnreadableVideo(f"{name}: no decoder for its video codec")
    return stream


def _guesses_times(container: InputContainer) -> bool:
    """AVI stores the order of decoding alone: times of display are guesses, wrong for packed B-frames."""
    return container.format.name == "avi"


def _stored_seconds(container: InputContainer, stream: VideoStream) -> float | None:
    if stream.duration is not None and stream.time_base:
        return float(stream.duration * stream.time_base)
    return container.duration / av.time_base if container.duration is not None else None


def _promised_seconds(container: InputContainer, stream: VideoStream) -> float:
    """The length that a file's header tells; 0 where it does not."""
    seconds = (container.duration or 0) / av.time_base
    if container.format.name == "avi" and stream.average_rate:
        # Of an AVI that was cut, FFmpeg shortens the length to what the file's size allows for.
        return max(seconds, float(stream.frames / stream.average_rate))
    return seconds


def _ends_as_gif(path: Path) -> bool:
    """A GIF stores no length, but ends in a semicolon, which some pad with zeros."""
    with path.open("rb") as file:
        file.seek(max(os.fstat(file.fileno()).st_size - 1024, 0))
        return file.read().rstrip(b"\0\r\n").endswith(b";")


def _since_start(stamp: int, stream: VideoStream) -> str:
    """A phrase for where in the video a stamp lies; empty for a stream without times."""
    if stream.start_time is None:
        return ""
    return f", the first after {(stamp - stream.start_time) * float(stream.time_base or 1):.1f} s"


def look_at(
    path: str | os.PathLike[str], *, num_frames: int, size: int
) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """(pixels (size, size, 3), glance) of frames at even distances of a video, or of a picture, which has one."""
    if is_picture(path):
        pixels = read_picture(path, size)
        return [(pixels, Frame.from_pixels(pixels, index=0, seconds=0.0).glance())]
    with Video(path) as video:
        return [(frame.pixels(size), frame.glance()) for frame in video.sample_evenly(count=num_frames)]
