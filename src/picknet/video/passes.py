"""One pass over a video, from its first packet to its last: packets, decoded pictures, and the damage it meets."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import av
from av.container import InputContainer
from av.stream import Disposition, Stream
from av.video.frame import PictureType
from av.video.stream import VideoStream

from picknet.video.access import check_size, max_pixels
from picknet.video.content import Content
from picknet.video.frame import USUAL_FPS
from picknet.video.motion import export_vectors
from picknet.video.packets import Timetable
from picknet.video.source import UnreadableVideo

_TOLERATED_GAP = 0.3
"""Seconds by which the stored length, the data and the last frame of a healthy file may differ."""

_REWINDABLE = frozenset({"mov,mp4,m4a,3gp,3g2,mj2", "matroska,webm"})
"""Containers that can be read from the start again without being reopened."""

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

    motion: whether pictures are to have motion vectors.
    """

    def __init__(self, content: Content, damage: Damage, *, motion: bool = False) -> None:
        self._content = content
        self._damage = damage
        self.container: InputContainer = content.open()
        try:
            self.stream = video_stream(self.container, content.name)
            if not self.stream.codec_context.width:
                content.check_pixels()
            if motion:
                export_vectors(self.stream, content.name)
            # Decoding several frames at once, FFmpeg gives some vectors before they are decoded: each time others.
            self._threads = "SLICE" if motion else "AUTO"
        except BaseException:
            self.container.close()
            raise
        self.unit = float(self.stream.time_base or 1)
        """Seconds of a tick of the stream's timestamps."""
        # AVI stores decoding order only: presentation times are guesses, wrong for packed B-frames.
        self._guesses_times = self.container.format.name == "avi"

    def close(self) -> None:
        self.container.close()

    @property
    def is_rewindable(self) -> bool:
        return self.container.format.name in _REWINDABLE

    @property
    def can_skip(self) -> bool:
        """Whether its decoder can skip the frames to which no other frame refers."""
        return self.stream.codec_context.name in _SKIPPING_DECODERS

    @property
    def stored_seconds(self) -> float | None:
        """The length in the header; None if there is none."""
        if self.stream.duration is not None and self.stream.time_base:
            return float(self.stream.duration * self.stream.time_base)
        return self.container.duration / av.time_base if self.container.duration is not None else None

    def packets(self) -> Packets:
        """The packets of the video stream. A file that breaks off is recorded as damage."""
        end = 0.0
        reason = ""
        units = {stream.index: float(stream.time_base or 0) for stream in self.container.streams}
        try:
            # Of all streams, since the stored length is that of the longest one, often the sound.
            for packet in self.container.demux():
                if packet.size == 0:
                    continue  # a decoder would take an empty packet for the end
                if packet.pts is not None:
                    unit = units.get(packet.stream_index) or float(packet.time_base)
                    end = max(end, (packet.pts + (packet.duration or 0)) * unit)
                if packet.stream_index == self.stream.index:
                    yield packet
        except av.FFmpegError as error:
            reason = f" ({error.strerror})"
        end -= (self.container.start_time or 0) / av.time_base
        length = self._expected_seconds()
        if reason or 0 < end < length - _TOLERATED_GAP:
            self._damage.breaks_off = f"the file breaks off after {max(end, 0.0):.1f} of {length:.1f} s{reason}"
        elif self.container.format.name == "gif" and not self._is_complete_gif():
            self._damage.breaks_off = f"the file breaks off after {end:.1f} s"

    def record(self, timetable: Timetable) -> Packets:
        """As `packets`, and each is entered in the timetable."""
        for packet in self.packets():
            if self._guesses_times and packet.pts != packet.dts:
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
        step = 1 / float(self.stream.average_rate or self.stream.guessed_rate or USUAL_FPS)
        start, seconds = math.inf, -step
        for picture in self._pictures(packets or self.packets()):
            time = seconds + step  # pictures without a timestamp follow each other at the stream's rate
            if picture.pts is not None and not self._guesses_times:
                time = picture.pts * self.unit - start
                if time < seconds - _TOLERATED_GAP:
                    # The first picture; or timestamps are set back, as in joined recordings: continue from the last.
                    start = picture.pts * self.unit - (seconds + step)
            seconds = time if time > seconds else seconds + step
            yield picture, seconds

    def _pictures(self, packets: Packets) -> Iterator[av.VideoFrame]:
        """Every picture that decodes, in presentation order. What does not decode is recorded as damage."""
        self.stream.thread_type = self._threads
        num_packets = num_pictures = num_whole = 0
        last_packet = last_picture = self.stream.start_time or 0
        lost_at: int | None = None
        for packet in itertools.chain(packets, [None]):  # None drains the decoder
            healthy = True
            if packet is not None and not packet.is_discard:
                num_packets += 1
                last_packet = packet.pts if packet.pts is not None else last_packet
                healthy = not packet.is_corrupt
            try:
                pictures = self.stream.decode(packet)
            except av.FFmpegError:
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
            raise UnreadableVideo(f"{self._content.name}: {what}")
        gap = (last_packet - last_picture) * self.unit
        if lost_at is None and (gap > _TOLERATED_GAP or 2 * num_pictures < num_packets - 1):
            # Some decoders skip damaged data silently. (Half as many pictures as packets is healthy: fields.)
            lost_at = last_picture
        if lost_at is not None:
            num_lost = max(num_packets - num_whole, 1)
            self._damage.undecodable = (
                f"{num_lost} of {num_packets} frames are lost or damaged{self._since_start(lost_at)}"
            )

    def needed_pictures(
        self, timetable: Timetable, times: Sequence[int], *, skip: bool, from_start: bool = False
    ) -> Iterator[tuple[int, av.VideoFrame]]:
        """The pictures shown at these times and those they depend on, in order, with their times.

        They are those that decoding everything gives. They end at the first doubt: damage, a keyframe that is none, a
        file that does not read as it did before.

        skip: whether frames to which no other refers need not be decoded.
        from_start: whether all others are decoded, from the first one on.
        """
        decoder, wanted = self.stream.codec_context, frozenset(times)
        if not decoder.is_open:
            self.stream.thread_type = self._threads
        numbered = enumerate(self.packets())
        num_read = 0
        ranges = timetable.needed(times)
        for needed in [range(ranges[-1].stop)] if from_start else ranges:
            key_time = timetable.shown(needed.start)
            is_sure = needed.start == 0  # from the first packet on, this is what decoding everything does
            to_read = itertools.islice(numbered, needed.stop - num_read)
            num_read = needed.stop
            for number, packet in itertools.chain(to_read, [(num_read, None)]):  # None drains the decoder
                if packet is not None:
                    if packet.pts != timetable.shown(number) or packet.is_corrupt:
                        return
                    if number < needed.start:
                        continue
                    is_needed = not skip or number == needed.start or packet.pts in wanted
                    decoder.skip_frame = "DEFAULT" if is_needed else "NONREF"
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

    def _expected_seconds(self) -> float:
        """The length in the header; 0 if there is none."""
        seconds = (self.container.duration or 0) / av.time_base
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


def video_stream(container: InputContainer, name: str) -> VideoStream:
    """The stream to read: FFmpeg's choice, except for the cover pictures of music."""
    covers = [stream for stream in container.streams.video if stream.disposition & Disposition.attached_pic]
    videos = [stream for stream in container.streams.video if stream not in covers]
    if not videos:
        kinds = {"cover picture" if stream in covers else stream.type or "unknown" for stream in container.streams}
        raise UnreadableVideo(f"{name}: no video stream found (streams: {', '.join(sorted(kinds)) or 'none'})")
    best = container.streams.best("video")
    stream = best if isinstance(best, VideoStream) and best in videos else videos[0]
    if stream.codec_context is None:
        raise UnreadableVideo(f"{name}: no decoder for its video codec")
    check_size(stream, name)
    return stream
