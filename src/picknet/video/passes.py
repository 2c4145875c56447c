"""One pass over a video, from its first packet to its last: packets, decoded pictures, and the damage it meets."""

import contextlib
import functools
import heapq
import itertools
import math
from array import array
from bisect import bisect_left
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import av
from av.container import InputContainer
from av.stream import Disposition, Stream
from av.video.frame import PictureType
from av.video.stream import VideoStream

from picknet.video.access import check_size, max_pixels
from picknet.video.content import Content
from picknet.video.frame import frame_rate
from picknet.video.index import Index
from picknet.video.motion import export_vectors
from picknet.video.packets import Stretch, Timetable
from picknet.video.parameter_sets import ENOUGH, HAVE_PARAMETER_SETS, has_parameter_sets
from picknet.video.source import UnreadableVideo
from picknet.workers import num_cores

_TOLERATED_GAP = 0.3
"""Seconds by which the stored length, the data and the last frame of a healthy file may differ."""

_REWINDABLE = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"})
"""Containers that can be read from the start again without being reopened."""

_INDEXED = frozenset({"mov,mp4,m4a,3gp,3g2,mj2"})
"""Containers whose index lists every packet."""

_TIMED_TO_THE_END = frozenset({"matroska,webm", "nut"})
"""Containers whose stored length is the time at which the last frame ends, whenever the first begins."""

_FAR = 30
"""Packets. To read and forget more takes longer than to seek."""

_MOST_KEPT = 4_000_000
"""Bytes of packets that are kept until they are decoded, so that they need not be read again."""

_LONGEST_SEARCH = 600
"""Packets to look at for the one that was sought."""

_FEW_CORES, _FEW_PIXELS = 2, 28e6
"""Several threads take more processor time to decode. Where so few cores have other work meanwhile, one thread is
faster for a video of so few pixels in all of its frames: 15 seconds of 320×240."""

_SKIPPING_DECODERS = frozenset({"h264", "mpeg1video", "mpeg2video", "mpeg4"})
"""Decoders that can skip exactly the frames to which no other frame refers. The HEVC decoder would also skip frames to
which those of a higher temporal layer may refer."""

Packets = Iterator["av.Packet[Stream]"]


@dataclass
class Damage:
    """What is lost of a video, as far as it has been read."""

    breaks_off: str | None = None
    undecodable: str | None = None

    def __str__(self) -> str:
        return "; ".join(filter(None, (self.breaks_off, self.undecodable)))


class Pass:
    """A video opened for one pass, with its own container and decoder.

    probes: see `Content.open`. motion: whether pictures are to have motion vectors. threads: that decode; 0 for one on
    each core. shares_cores: whether the cores have other work meanwhile, so that a small video may be decoded faster in
    one thread.
    """

    def __init__(
        self,
        content: Content,
        damage: Damage,
        *,
        probes: bool = True,
        motion: bool = False,
        threads: int = 0,
        shares_cores: bool = False,
    ) -> None:
        self._content = content
        self._damage = damage
        self.container: InputContainer = content.open(probes=probes)
        try:
            self.stream = video_stream(self.container, content.name)
            self._check_index()
            if not self.stream.codec_context.width:
                content.check_pixels()
            if motion:
                export_vectors(self.stream, content.name)
            # Decoding several frames at once, FFmpeg gives some vectors before they are decoded: each time others.
            self._threads = "SLICE" if motion else "AUTO"
            if shares_cores and num_cores() <= _FEW_CORES and self._has_few_pixels:
                threads = threads or 1
            self.stream.thread_count = threads
        except BaseException:
            self.container.close()
            raise
        self.rate = frame_rate(self.stream)
        self.unit = float(self.stream.time_base or 1)
        """Seconds of a tick of the stream's timestamps."""
        self._unread: Packets = iter(())
        self._num_read: int | None = None
        """Number of the next packet; None where it is not known."""
        # AVI stores decoding order only: presentation times are guesses, wrong for packed B-frames.
        self.guesses_times = self._has_slots = self.container.format.name == "avi"
        # FLV sends a new header where a recording goes on after a break.
        self._sends_headers = self.container.format.name == "flv"
        self._is_disordered = False
        self._continuity = _Continuity()
        self.num_decoded = 0
        """Packets given to the decoder by `timed_pictures`."""
        self._index: Index | None = None

    def close(self) -> None:
        self._unread = iter(())  # it refers to this object, which would keep the decoder's threads
        if self._index is not None:
            self._index.close()
        self.container.close()

    @property
    def is_rewindable(self) -> bool:
        return self.container.format.name in _REWINDABLE

    @property
    def is_small(self) -> bool:
        """Whether all packets and some pictures may be kept in memory."""
        return self._has_few_pixels and self.container.size <= _MOST_KEPT

    @property
    def can_skip(self) -> bool:
        """Whether its decoder can skip the frames to which no other frame refers."""
        return self.stream.codec_context.name in _SKIPPING_DECODERS

    @property
    def stored_seconds(self) -> float | None:
        """The length in the header; None if there is none."""
        if self.stream.duration is not None and self.stream.time_base:
            return float(self.stream.duration * self.stream.time_base)
        return self._length if self.container.duration is not None else None

    def begin(self, picture: av.VideoFrame) -> float:
        """Seconds of the file, of sound or nothing, before its first picture; players count them."""
        if picture.pts is None or self.guesses_times:
            return 0.0
        return max(picture.pts * self.unit - (self.container.start_time or 0) / av.time_base, 0.0)

    def distrust_times(self) -> None:
        """From now on, timestamps are guesses: those of decoding, where frames are shown in another order."""
        self.guesses_times = self._is_disordered = True

    def packets(self) -> Packets:
        """The packets of the video stream. A file that breaks off is recorded as damage."""
        end = 0.0
        reason = ""
        units = {stream.index: float(stream.time_base or 0) for stream in self.container.streams}
        try:
            # Of all streams, since the stored length is that of the longest one, often the sound.
            for packet in demuxed(self.container):
                if packet.pts is not None:
                    unit = units.get(packet.stream_index) or float(packet.time_base)
                    end = max(end, (packet.pts + (packet.duration or 0)) * unit)
                if packet.stream_index == self.stream.index:
                    self._note_corrupt(packet)
                    yield packet
        except av.FFmpegError as error:
            reason = f" ({error.strerror})"
        self._note_corrupt(None)
        if self.container.format.name not in _INDEXED:  # the length of an MP4 may count what is before its first frame
            end -= (self.container.start_time or 0) / av.time_base
        length = self._expected_seconds()
        if reason or 0 < end < length - _TOLERATED_GAP:
            self._damage.breaks_off = f"the file breaks off after {max(end, 0.0):.1f} of {length:.1f} s{reason}"
        elif self.container.format.name == "gif" and not self._is_complete_gif():
            self._damage.breaks_off = f"the file breaks off after {end:.1f} s"

    def _note_corrupt(self, packet: "av.Packet[Stream] | None") -> None:
        """Record the first packet that FFmpeg calls corrupt as damage, unless another recording follows.

        packet: the next one; None at the end.
        """
        self._continuity.add(packet)
        if (corrupt_at := self._continuity.corrupt_at) is not None and self._damage.undecodable is None:
            self._damage.undecodable = f"some of its data cannot be decoded{self._since_start(corrupt_at)}"

    def _video_packets(self) -> Iterator[Any]:
        """As `packets`, where an index tells how long the video is, so that no other stream has to."""
        with contextlib.suppress(av.FFmpegError):
            yield from demuxed(self.container, self.stream)

    def record(self, timetable: Timetable) -> Packets:
        """As `packets`, and each is entered in the timetable."""
        may_have_sets, have_come_again = self.stream.codec_context.name in HAVE_PARAMETER_SETS, False
        for packet in self.packets():
            if self._is_disordered or (self.guesses_times and packet.pts != packet.dts):
                timetable.is_trusted = False
            if may_have_sets and packet.is_keyframe and len(timetable):
                # A keyframe without parameter sets needs the last that came before it: where recordings are joined,
                # these are not the first.
                if has_parameter_sets(packet, self.stream.codec_context):
                    have_come_again = True
                elif have_come_again:
                    timetable.is_trusted = False
            if self._sends_headers and packet.has_sidedata("new_extradata"):
                timetable.is_trusted = False
            timetable.add(
                shown=packet.pts,
                decoded=packet.dts,
                is_key=packet.is_keyframe,
                is_hidden=packet.is_discard,
                num_bytes=packet.size,
            )
            yield packet

    def timed_pictures(self, packets: Packets | None = None) -> Iterator[tuple[av.VideoFrame, float]]:
        """Every picture that decodes, with its strictly increasing seconds from the first one."""
        step = 1 / self.rate
        start, seconds, num_joints = math.inf, -step, 0
        packets = packets or self.packets()
        # The slots of packets whose pictures are still to come: a picture takes the first that is free. AVI leaves
        # slots empty where a picture stands still.
        slots: list[int] = []
        for picture in self._pictures(_noted(packets, slots) if self._has_slots else packets):
            time = seconds + step  # pictures without a timestamp follow each other at the stream's rate
            stamp = None if self.guesses_times else picture.pts
            if slots:
                stamp = heapq.heappop(slots)
            if stamp is not None:
                time = stamp * self.unit - start
                if time < seconds - _TOLERATED_GAP:
                    packets_go_on = self._continuity.decoded is not None and self._continuity.num_joints == num_joints
                    if seconds < 0 or not packets_go_on:
                        # The first picture; or timestamps are set back, as in joined recordings: go on from the last.
                        start, num_joints = stamp * self.unit - (seconds + step), self._continuity.num_joints
                    elif self._damage.undecodable is None:
                        # Decoders put pictures into a wrong order where they find that packets are missing.
                        self._damage.undecodable = f"frames are missing{self._since_start(stamp)}"
            seconds = time if time > seconds else seconds + step
            yield picture, seconds

    def _pictures(self, packets: Packets) -> Iterator[av.VideoFrame]:
        """Every picture that decodes, in presentation order. What does not decode is recorded as damage."""
        if not self.stream.codec_context.is_open:
            self.stream.thread_type = self._threads
        num_packets = num_pictures = num_whole = self.num_decoded = 0
        last_packet = last_picture = self.stream.start_time or 0
        lost_at: int | None = None
        for packet in itertools.chain(packets, [None]):  # None drains the decoder
            healthy = True
            if packet is not None and not packet.is_discard:
                num_packets += 1
                last_packet = packet.pts if packet.pts is not None else last_packet
            self.num_decoded += 1
            try:
                pictures = self.stream.decode(packet)
            except av.FFmpegError as error:
                if isinstance(error, MemoryError | BlockingIOError):  # the latter: no room for another thread
                    what = "its pictures need more memory than there is"
                    raise UnreadableVideo(f"{self._content.name}: {what}") from error
                pictures, healthy = [], False
            for picture in pictures:
                num_pictures += 1
                num_whole += not picture.is_corrupt
                last_picture = picture.pts if picture.pts is not None else last_picture
                healthy = healthy and not picture.is_corrupt
                yield picture
            if not healthy and lost_at is None:
                lost_at = last_picture  # with several decoding threads, the damaged packet is some way back
                self._damage.undecodable = f"some of its data cannot be decoded{self._since_start(lost_at)}"
        if num_pictures == 0:
            what = f"none of its {num_packets} frames can be decoded" if num_packets else "its video stream is empty"
            if num_packets and not self.stream.codec_context.width:
                what += f": damaged, or of more than {max_pixels():,} pixels, the limit that --max-pixels sets"
                if self._content.is_animated_webp():
                    what = "an animated WebP, which is not read; save it as GIF or MP4"
            raise UnreadableVideo(f"{self._content.name}: {what}")
        gap = (last_packet - last_picture) * self.unit
        if lost_at is None and (gap > _TOLERATED_GAP or 2 * num_pictures < num_packets - 1):
            # Some decoders skip damaged data silently. (Half as many pictures as packets is healthy: fields.)
            lost_at = last_picture
        lost_at = self._continuity.corrupt_at if lost_at is None else lost_at
        if lost_at is not None:
            num_lost = max(num_packets - num_whole, 1)
            self._damage.undecodable = (
                f"{num_lost} of {num_packets} frames are lost or damaged{self._since_start(lost_at)}"
            )

    def index(self, start: int | None) -> Index | None:
        """The container's index, if it is complete. start: when the first frame is shown."""
        is_listed = self.container.format.name in _INDEXED and not self.guesses_times
        if self._index is None and start is not None and is_listed:
            seconds = self._expected_seconds() - _TOLERATED_GAP
            index = Index.of(self.container, self.stream, start=start, seconds=seconds)
            self._index = index if index and self._is_of_one_recording(index) else None
        return self._index

    def _is_of_one_recording(self, index: Index) -> bool:
        """Whether decoding may start at any keyframe. Where the first brings parameter sets and the second does not,
        others may follow at any place at which recordings were joined."""
        codec = self.stream.codec_context
        if codec.name not in HAVE_PARAMETER_SETS or len(index.keys) < 2:
            return True
        first, second = (self._content.part(*index.place(key), most=ENOUGH) for key in index.keys[:2])
        return has_parameter_sets(second, codec) or not has_parameter_sets(first, codec)

    def stretches(self, index: Index, positions: Sequence[int]) -> Iterator[Stretch]:
        """The packets to decode for the frames at these positions, which are sorted.

        They are read, but not decoded; they end where they do not agree with the index.
        """
        for numbers in index.needed(positions):
            within = positions[bisect_left(positions, numbers.start) : bisect_left(positions, numbers.stop)]
            stretch = self._read_stretch(index, numbers, index[within[0]])
            if stretch and index[within[0]] < stretch.shown[0] and numbers.start > 0:
                # Shown before the keyframe that it is stored after, so it may depend on the group before.
                numbers = range(index.key(numbers.start - 1), numbers.stop)
                stretch = self._read_stretch(index, numbers, index[within[0]])
            if not stretch or not index.shown_as_expected(stretch.first, stretch.shown, within[-1]):
                return
            yield stretch

    def _read_stretch(self, index: Index, numbers: range, time: int) -> Stretch | None:
        """These packets; None if they are not those of the index. They are kept where they take little memory.

        time: of a frame that depends on the first of them.
        """
        shown, kept, num_bytes = array("q"), [], 0
        packets = self._packets_from(numbers.start, time, lambda packet: index.has(numbers.start, packet))
        for number, packet in zip(numbers, packets, strict=False):
            if not index.has(number, packet) or packet.is_corrupt or packet.pts is None:
                return None
            shown.append(packet.pts)
            num_bytes += packet.size
            if num_bytes <= _MOST_KEPT:
                kept.append(packet)
            else:
                kept.clear()
        return Stretch(numbers.start, shown, kept) if len(shown) == len(numbers) else None

    def needed_pictures(
        self, stretches: Iterable[Stretch], times: Collection[int], *, skip: bool
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """The pictures shown at these times and those they depend on, in order, with their times.

        They are those that decoding everything gives. They end at the first doubt: damage, a keyframe that is none, a
        file that does not read as it did before.

        skip: whether frames to which no other refers need not be decoded.
        """
        decoder, wanted = self.stream.codec_context, frozenset(times)
        if not decoder.is_open:
            self.stream.thread_type = self._threads
        for first, shown, kept in stretches:
            is_sure = first == 0  # from the first packet on, this is what decoding everything does
            key_time = shown[0]
            end = 1 + max(place for place, time in enumerate(shown) if time in wanted)
            is_key = functools.partial(_is_shown_at, key_time)
            packets = iter(kept) if kept else self._packets_from(first, key_time, is_key)
            num_read = 0
            for time, packet in itertools.chain(zip(shown[:end], packets, strict=False), [(0, None)]):
                if packet is not None:
                    if packet.pts != time or packet.is_corrupt:
                        return
                    is_needed = not skip or num_read == 0 or time in wanted
                    decoder.skip_frame = "DEFAULT" if is_needed else "NONREF"
                    num_read += 1
                elif num_read < end:  # None drains the decoder
                    return
                try:
                    pictures = self.stream.decode(packet)
                except av.FFmpegError:
                    return
                for picture in pictures:
                    if picture.pts is None or picture.is_corrupt or (skip and picture.interlaced_frame):
                        return  # the two fields of an interlaced picture can be separate packets
                    if picture.pts == key_time and picture.key_frame and picture.pict_type == PictureType.I:
                        is_sure = True
                    if is_sure:
                        yield picture.pts, picture
                    elif picture.pts >= key_time:
                        return
            decoder.flush_buffers()

    def rewind(self) -> bool:
        """Begin anew with `timed_pictures` or `needed_pictures`; False if the container does not allow that."""
        if not self.is_rewindable and not self.guesses_times:
            return False
        try:
            self.container.seek(self.stream.start_time or 0, stream=self.stream)
        except av.FFmpegError:
            return False
        self._num_read = None
        return True

    def _packets_from(self, number: int, time: int, is_first: "Callable[[av.Packet[Stream]], bool]") -> Packets:
        """The packets from this one on; none if it is not found. Where many would be skipped, it is sought.

        time: when its frame is shown, or one that depends on it.
        """
        packets: Packets
        read = self.packets if self._index is None else self._video_packets
        if self._num_read is None and not self.is_rewindable:
            self._unread, self._num_read = read(), 0
        if self._num_read is None or (self.is_rewindable and not 0 <= number - self._num_read <= _FAR):
            try:
                self.container.seek(time, stream=self.stream)
            except av.FFmpegError:
                return
            self._unread = read()
            searched = itertools.islice(self._unread, _LONGEST_SEARCH)
            packets = itertools.chain(itertools.islice(filter(is_first, searched), 1), self._unread)
        else:
            packets = itertools.islice(self._unread, number - self._num_read, None)
        for self._num_read, packet in enumerate(packets, start=number + 1):
            yield packet

    @property
    def _has_few_pixels(self) -> bool:
        """Whether all frames together have few pixels; False where the length or the size is not stored."""
        rate = float(self.stream.average_rate or 0)
        num_frames = self.stream.frames or (self.stored_seconds or 0.0) * rate
        return 0 < self.stream.codec_context.width * self.stream.codec_context.height * num_frames <= _FEW_PIXELS

    def _check_index(self) -> None:
        """Refuse a file whose index lists more packets than the file has bytes: an edit list may repeat a track without
        end, and to try all of its packets would take hours."""
        num_listed, num_bytes = len(self.stream.index_entries), self.container.size
        if num_listed > num_bytes > 0:
            listed = f"its index lists {num_listed:,} packets in {num_bytes:,} bytes"
            raise UnreadableVideo(f"{self._content.name}: damaged: {listed}")

    @property
    def _length(self) -> float:
        """The length of the container by its header; 0 if there is none."""
        seconds = (self.container.duration or 0) / av.time_base
        start = (self.container.start_time or 0) / av.time_base
        return seconds - start if self.container.format.name in _TIMED_TO_THE_END and 0 < start < seconds else seconds

    def _expected_seconds(self) -> float:
        """The length in the header; 0 if there is none."""
        seconds = self._length
        if self.container.format.name == "avi" and self.stream.average_rate:
            # FFmpeg shortens the length of a truncated AVI to what the file's size allows.
            return max(seconds, float(self.stream.frames / self.stream.average_rate))
        return seconds

    def _is_complete_gif(self) -> bool:
        """A GIF stores no length, but ends in a semicolon, which some programs pad with zeros."""
        return self._content.end(1024).rstrip(b"\0\r\n").endswith(b";")

    def _since_start(self, timestamp: int) -> str:
        """A phrase for where in the video a timestamp lies; empty for a stream without timestamps."""
        if self.stream.start_time is None:
            return ""
        return f", the first after {(timestamp - self.stream.start_time) * self.unit:.1f} s"


class _Continuity:
    """Where the packets do not go on: the first that FFmpeg calls corrupt, and timestamps that begin again.

    The parts of an MPEG-TS are counted. Where the count does not go on, FFmpeg blames one of the last two packets; so
    it does where recordings are joined, and nothing is lost.
    """

    def __init__(self) -> None:
        self.corrupt_at: int | None = None
        """When the frame of the corrupt packet is shown; None where there is none."""
        self.num_joints = 0
        """How often timestamps of decoding have begun again."""
        self.decoded: int | None = None
        """When the last packet is decoded."""
        self._blamed: int | None = None
        self._num_since = 0

    def add(self, packet: "av.Packet[Stream] | None") -> None:
        """The next packet; None at the end."""
        is_joint = packet is not None and _is_before(packet.dts, self.decoded)
        self.num_joints += is_joint
        if self._blamed is not None:
            self._num_since += 1
            if packet is not None and packet.is_keyframe and is_joint:
                self._blamed = None
            elif packet is None or self._num_since == 2:
                self.corrupt_at, self._blamed = self._blamed, None
        if packet is not None:
            if packet.is_corrupt and self.corrupt_at is None and self._blamed is None:
                self._blamed, self._num_since = packet.pts or 0, 0
            self.decoded = packet.dts


def _is_before(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one < other


def _noted(packets: Packets, slots: list[int]) -> Packets:
    """The packets; the place of each in the order of decoding goes to `slots`, a heap, before it is decoded."""
    for packet in packets:
        if packet.dts is not None:
            heapq.heappush(slots, packet.dts)
        yield packet


def _is_shown_at(time: int, packet: "av.Packet[Stream]") -> bool:
    return packet.pts == time


def stored_end(container: InputContainer) -> float | None:
    """Seconds: the timestamp at which the last of all streams ends, by the header; None if there is no length.

    Of an MP4 it may be earlier than that: some lengths count what is before the first frame, some do not.
    """
    seconds = (container.duration or 0) / av.time_base
    if seconds <= 0:
        return None
    is_end = container.format.name in _TIMED_TO_THE_END or container.format.name in _INDEXED
    return seconds if is_end else seconds + (container.start_time or 0) / av.time_base


def demuxed(container: InputContainer, *streams: Stream) -> Packets:
    """The packets of these streams, or of all; without empty ones, which a decoder would take for the end.

    A stream may begin later than the others, such as the sound of an MPEG-TS or MPEG-PS. PyAV looks it up beyond the
    end of an array with a byte for each stream known before. Whatever it finds there, it drops such packets; but at the
    end it may raise an IndexError when it drains that stream. FFmpeg cannot be told to add none, and calling `demux`
    anew for each packet would meet the same in the call that adds one. So this stops at the first packet that drains a
    stream, which is one of those known before.
    """
    for packet in container.demux(*streams):
        if packet.size:
            yield packet
        elif packet.pos is None and packet.dts is None:  # nowhere in the file, at no time: it drains a stream
            return


def video_stream(container: InputContainer, name: str) -> VideoStream:
    """The stream to read: FFmpeg's choice, except for the cover pictures of music."""
    covers = [stream for stream in container.streams.video if stream.disposition & Disposition.attached_pic]
    # A large HEIC picture is stored in tiles, which depend on each other; there may be a small one of all beside them.
    parts = [stream for stream in container.streams.video if stream.disposition & Disposition.dependent]
    videos = [stream for stream in container.streams.video if stream not in covers and stream not in parts]
    if parts and not videos:
        raise UnreadableVideo(f"{name}: a picture in tiles (HEIC), which are not put together; save it as JPEG")
    if not videos:
        kinds = {"cover picture" if stream in covers else stream.type or "unknown" for stream in container.streams}
        raise UnreadableVideo(f"{name}: no video stream found (streams: {', '.join(sorted(kinds)) or 'none'})")
    best = container.streams.best("video")
    stream = best if isinstance(best, VideoStream) and best in videos else videos[0]
    if stream.codec_context is None:
        raise UnreadableVideo(f"{name}: no decoder for its video codec")
    check_size(stream, name)
    return stream
