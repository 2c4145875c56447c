"""Frames of a finite video, sampled evenly or by time.

A `Video` is read from front to back for each sampling. Only what the sampled frames depend on is decoded; in case of
doubt, everything. Passes open the video for themselves, so they do not disturb each other.
"""

import contextlib
import functools
import itertools
import os
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import BinaryIO, Self

import av
import numpy as np
from numpy.typing import NDArray

from picknet.config import GlanceKind
from picknet.errors import BadSetting
from picknet.video.access import check_pixels
from picknet.video.content import content_of
from picknet.video.frame import (
    Frame,
    PacketBytes,
    checked_fps,
    due_positions,
    glance_shape,
    is_large,
    middles,
    pixel_aspect,
    quarter_turns,
    sampling_clock,
    sides,
)
from picknet.video.index import Index
from picknet.video.motion import Motion
from picknet.video.packets import PacketSums, Stretch, Timetable
from picknet.video.passes import Damage, Pass
from picknet.video.pictures import is_picture, read_picture
from picknet.video.source import VIDEO_SUFFIXES, UnreadableVideo, is_address, is_video_file
from picknet.video.sparse import cheap_middles, sparse_positions

__all__ = ["VIDEO_SUFFIXES", "UnreadableVideo", "Video", "is_video_file", "pixels_and_glances", "stored_seconds"]

MOST_DELAYED = 32
"""Frames that a decoder may hold back: 16 to put them in order, as many for its threads."""
NUM_PROBED = 8
"""Frames after which it is known whether they are shown in the order decoded; FFmpeg's probing takes seven."""
Stretches = Callable[[Sequence[int]], Iterable[Stretch]]
"""Positions of frames, sorted -> the packets to decode for them."""


class Video:
    """A finite video. Use it as a context manager: `with Video(path) as video:`.

    source: a path, the bytes of a file, a seekable binary file (read from its start), or the http(s) address of a
        file, which is downloaded into a temporary file.
    timeout: seconds to wait for the server of an address.
    glance: the kind of glance that frames shall have beside grey and colour, which they always have. For motion, all
        frames up to the last sampled one are decoded, and a codec without motion vectors is an error.
    threads: that decode; 0 for one on each core.
    shares_cores: whether the cores have other work meanwhile. A small video may then be decoded in a single thread.

    name: the source for messages: its path, "bytes", the file's name, or the address without a password.
    width, height: pixels of an upright frame with square pixels.
    seconds: the video's length, or None if the file does not store it. It is corrected once frames beyond it are found,
        as in joined recordings.
    fps: frames a second on average, as the file stores it; `USUAL_FPS` where it does not.

    Opening decodes the first frame, so a file that is not a video is refused here.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | bytearray | BinaryIO,
        *,
        timeout: float = 15.0,
        glance: GlanceKind = "grey",
        threads: int = 0,
        shares_cores: bool = False,
    ) -> None:
        self._glance = glance
        self._guesses_times = False
        self._threads = threads
        self._shares_cores = shares_cores
        self._open_passes: set[Pass] = set()
        self._all_of_first: Iterable[tuple[av.VideoFrame, float]] | None = None
        """All pictures of the first pass and their seconds, where it can go on from the first."""
        self._content = content_of(source, timeout=timeout)
        self.name = self._content.name
        try:
            first, picture = self._begun_quickly() or self._begun()
        except BaseException:
            self.close()
            raise
        self.seconds = first.stored_seconds
        self.fps = first.rate
        self._unit = first.unit
        self._first_pass: Pass | None = first
        """Still open where the search for the first frame left it."""
        self._start, self._is_interlaced = picture.pts, picture.interlaced_frame
        self._has_palette = picture.format.name == "pal8"
        """Which comes with the first packet, or changes from then on."""
        if not first.guesses_times and self._is_disordered(first):
            first.distrust_times()
        self._guesses_times = first.guesses_times
        self.begin = first.begin(picture)
        """Seconds of the file, of sound or nothing, before its first frame, from which times are counted."""
        if self.seconds and first.stream.duration is None and 0 < self.begin < self.seconds:
            self.seconds -= self.begin  # it is the length of the file
        # The other glances are of what lies between two samples, which is not in an index.
        index = first.index(picture.pts) if glance in ("grey", "colour") else None
        self._num_indexed = len(index) if index is not None else 0
        """Frames by the container's index; 0 if it has none that can be used."""
        self._mirrored = self._content.is_mirrored(first.stream.id)
        upright = sides(picture, pixel_aspect(first.stream))
        self.width, self.height = upright if quarter_turns(picture) % 2 == 0 else upright[::-1]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End all passes, and delete what was downloaded."""
        self._all_of_first = None  # it refers to a decoder, whose threads it would keep
        while self._open_passes:
            self._open_passes.pop().close()
        self._content.close()

    @property
    def has_large_pictures(self) -> bool:
        """Whether a frame takes so much memory that few should be held."""
        return is_large(self.width, self.height)

    @property
    def damage(self) -> str | None:
        """What is lost of the video, in one line, as far as it has been read; None for a healthy one."""
        return str(self._damage) or None

    @property
    def length(self) -> float:
        """As `seconds`; where the file does not store it, by its frames."""
        if self.seconds:
            return self.seconds
        times = self._times
        if times and len(times) > 1:  # the last frame is shown for as long as others are on average
            return (times[-1] - times[0]) * self._unit * len(times) / (len(times) - 1)
        return self._num_frames / self.fps

    def num_samples(self, count: int) -> int:
        """How many frames `sample_evenly` yields of a healthy video: `count`, or all if there are fewer."""
        return min(count, self._num_frames)

    def sample_evenly(self, *, count: int = 30, only: Collection[int] | None = None) -> Iterator[Frame]:
        """Yield the middle frames of `count` equal parts: frame ⌊(i + ½) n / count⌋ of n; all n if n ≤ count.

        only: yield only the samples with these indexes, and decode only what they depend on. If none of them can be
            decoded, yield the last frame that can. These frames have no glances of motion and packets.

        Of a video of more than 20 minutes, a keyframe shortly before the middle is taken in its place: an eighth of a
        part at most. It is decoded alone, where a group of frames may take longer than all else.

        n is the number of packets, by the container's index or read without decoding. A frame is identified by its
        timestamp, not by counting: if a packet holds no frame (a hidden reference, damage), the next frame takes its
        place and all others keep theirs, evenly spaced; extended damage leaves a gap, so fewer frames are yielded.
        Packets without a timestamp need not be frames: such a file is decoded once to count them, unless it is AVI.
        """
        if count < 1:
            raise BadSetting(f"count is {count}: at least 1 frame is needed")
        wanted = middles(self._num_frames, count)
        yield from self._quick_or_full(
            lambda times: dict(enumerate(self._middles(times, count))), only, self._at_positions(wanted, only)
        )

    def sample_by_time(self, *, fps: float = 1.0, only: Collection[int] | None = None) -> Iterator[Frame]:
        """Yield, as it is decoded, the first frame at or after each of 0, 1/fps, 2/fps … seconds.

        only: as for `sample_evenly`, except that there may be none of them.

        A frame that is the first after several of these times (the picture stood still) is yielded once.
        """
        checked_fps(fps)
        yield from self._quick_or_full(
            lambda times: dict(enumerate(self._positions_by_time(times, fps))), only, self._at_ticks(fps, only)
        )

    def sample_sparsely(self, *, fps: float = 1.0) -> Iterator[Frame]:
        """At most `fps` frames a second, of quiet parts keyframes only, so that little is decoded: see `sparse.py`.

        Where the packets have no reliable timestamps, as `sample_by_time`.
        """
        checked_fps(fps)
        if not (times := self._times) or times[0] != self._start:
            yield from self.sample_by_time(fps=fps)
            return
        wanted = sparse_positions(self._packets, times, fps=fps, unit=self._unit)
        yield from self._quick_or_full(
            lambda times: dict(enumerate(wanted)), None, self._at_positions(wanted), by_index=False
        )

    def packets_by_time(self, *, fps: float = 1.0) -> list[PacketBytes]:
        """For each frame of `sample_by_time` the bytes of the packets since the one before: nothing is decoded for it.

        Empty if the packets have no reliable timestamps, as in some AVI files.
        """
        since = _SinceSample(None, self._packets.sums(self._start))
        return [since.packets(position) for position in self._positions_by_time(self._times or (), fps)]

    def _middles(self, times: Sequence[int], count: int) -> list[int]:
        """Positions of the frames of `sample_evenly`."""
        # A position of the index is that of the packet: frames that are shown before the keyframe they are stored after
        # only make it take longer.
        keys = times.keys if isinstance(times, Index) else self._packets.key_positions(times)
        return cheap_middles(times, keys, count=count, unit=self._unit)

    def _positions_by_time(self, times: Sequence[int], fps: float) -> list[int]:
        """Positions of the frames of `sample_by_time`; empty if these times do not tell."""
        if not times or times[0] != self._start:
            return []
        return due_positions(times, fps=fps, unit=self._unit)

    def _quick_or_full(
        self,
        sample: Callable[[Sequence[int]], Mapping[int, int]],
        only: Collection[int] | None,
        by_decoding_everything: Iterator[Frame],
        *,
        by_index: bool = True,
    ) -> Iterator[Frame]:
        """Samples, decoding only what they depend on, up to the first doubt: the remaining ones by decoding everything.

        sample: when frames are shown -> index of each sample -> its position.
        """
        num_yielded, since = 0, self._since_sample(looks=only is None)
        for current, times, stretches in self._timetables(by_index=by_index, from_start=since.needs_all):
            samples = sample(times)
            chosen = {index: position for index, position in samples.items() if only is None or index in only}
            unread = dict(itertools.islice(chosen.items(), num_yielded, None))
            for frame in self._decoded_at(current, times, stretches, unread, since):
                yield frame
                num_yielded += 1
            if samples and num_yielded == len(chosen):
                return
        yield from itertools.islice(by_decoding_everything, num_yielded, None)

    def _timetables(
        self, *, by_index: bool, from_start: bool
    ) -> Iterator[tuple[Pass, Sequence[int], Stretches]]:
        """A pass, when its frames are shown, and which packets frames need: by the index, then by the packets."""
        if self._has_palette:
            return
        if self._num_indexed and by_index:
            with self._rewound_pass() as current:
                if (index := current.index(self._start)) is not None:
                    yield current, index, functools.partial(current.stretches, index)
        if (times := self._times) and self._start is not None:
            table = self._packets
            with self._rewound_pass() as current:
                yield current, times, lambda positions: table.stretches(
                    [times[position] for position in positions], from_start=from_start
                )

    def _decoded_at(
        self,
        current: Pass,
        times: Sequence[int],
        stretches: Stretches,
        positions: Mapping[int, int],
        since: "_SinceSample",
    ) -> Iterator[Frame]:
        """Sample index → position: these frames, decoding only what they depend on, up to the first doubt.

        No more are yielded after damage, or if a frame does not appear where it is expected.
        """
        wanted = deque((index, position, times[position]) for index, position in positions.items())
        if not wanted or self._start is None:
            return
        skip = current.can_skip and not self._is_interlaced
        wanted_times = frozenset(time for _, _, time in wanted)
        pictures = current.needed_pictures(stretches(list(positions.values())), wanted_times, skip=skip)
        for time, picture in pictures:
            since.add(picture)
            index, number, next_time = wanted[0]
            if time > next_time:
                return
            if time == next_time:
                seconds = time * self._unit - self._start * self._unit
                yield self._frame(current, picture, index, seconds, number, *since.take(picture, number))
                wanted.popleft()
            if not wanted:
                return

    def _at_positions(self, wanted: Sequence[int], only: Collection[int] | None = None) -> Iterator[Frame]:
        """The frames at these positions, or the next ones where they are missing, by decoding everything.

        only: yield only those with these indexes; if none of them appears, the last frame of all.
        """
        with self._all_pictures() as (current, pictures):
            index = num_served = num_yielded = 0
            num_chosen = len(wanted) if only is None else sum(index < len(wanted) for index in only)
            last = None
            since = self._since_sample(looks=only is None)
            for number, (picture, seconds) in enumerate(pictures):
                since.add(picture)
                position = self._position(current, picture, number)
                if num_served < len(wanted) and position >= wanted[num_served]:
                    if only is None or index in only:
                        yield self._frame(current, picture, index, seconds, position, *since.take(picture, position))
                        num_yielded += 1
                    num_served = bisect_right(wanted, position)
                    index += 1
                if num_yielded == num_chosen > 0 and only is not None:
                    return
                last = picture, seconds
            if not num_yielded and last:  # the video broke off before the first sample
                picture, seconds = last
                yield self._frame(current, picture, max(index - 1, 0), seconds, number, *since.take(picture, number))

    def _at_ticks(self, fps: float, only: Collection[int] | None = None) -> Iterator[Frame]:
        """The frames of `sample_by_time`, by decoding everything."""
        with self._all_pictures() as (current, pictures):
            index, seconds, is_due, since = 0, 0.0, sampling_clock(fps), self._since_sample(looks=only is None)
            for number, (picture, seconds) in enumerate(pictures):
                since.add(picture)
                if is_due(seconds):
                    if only is None or index in only:
                        position = self._position(current, picture, number)
                        yield self._frame(current, picture, index, seconds, number, *since.take(picture, position))
                    index += 1
            self._reach(seconds)

    def _frame(
        self,
        current: Pass,
        picture: av.VideoFrame,
        index: int,
        seconds: float,
        number: int,
        motion: NDArray[np.uint8] | None,
        packets: PacketBytes | None,
    ) -> Frame:
        check_pixels(picture.width, picture.height, self.name)  # which may change on the way
        return Frame(
            picture,
            index=index,
            seconds=seconds,
            number=number,
            pixel_aspect=pixel_aspect(current.stream),
            mirrored=self._mirrored,
            motion=motion,
            packets=packets,
        )

    def _position(self, current: Pass, picture: av.VideoFrame, number: int) -> int:
        """Position among all frames by timestamp; where there are none, `number`, counted while decoding."""
        if self._has_frame_a_packet:
            return max(number, current.num_decoded - MOST_DELAYED)  # more than that are lost
        return bisect_left(self._times, picture.pts) if self._times and picture.pts is not None else number

    def _since_sample(self, *, looks: bool = True) -> "_SinceSample":
        """looks: whether anybody will look at the glances."""
        return _SinceSample(
            Motion(mirrored=self._mirrored) if self._glance == "motion" and looks else None,
            self._packets.sums(self._start) if self._glance == "packets" and looks else None,
        )

    @functools.cached_property
    def _packets(self) -> Timetable:
        """All packets."""
        if self._first_pass is None:  # it was read for the index
            self._timetable = Timetable()
            with self._pass() as current:
                deque(current.record(self._timetable), maxlen=0)
        else:
            deque(self._unread, maxlen=0)
        return self._timetable

    @functools.cached_property
    def _times(self) -> "array[int] | None":
        """The timestamp of each frame from the first, sorted, in the stream's unit; None if the packets do not tell."""
        times = self._packets.times(self._start)
        if times:
            self._reach((times[-1] - times[0]) * self._unit)
        return times

    @functools.cached_property
    def _num_frames(self) -> int:
        if self._num_indexed:
            return self._num_indexed
        if self._times:
            return len(self._times)
        return len(self._packets) if self._has_frame_a_packet else self._count_frames()

    @functools.cached_property
    def _has_frame_a_packet(self) -> bool:
        """Whether the packets have no timestamps, but each is a frame: so it is in AVI, fields apart."""
        return self._guesses_times and not self._times and not self._is_interlaced

    def _count_frames(self) -> int:
        with self._pass() as current:
            times = [seconds for _, seconds in current.timed_pictures()]
        self._reach(max(times, default=0.0))
        return len(times)

    def _reach(self, seconds: float) -> None:
        """There is a frame at this time."""
        if self.seconds is not None and self.seconds < seconds:
            self.seconds = seconds + 1 / self.fps

    def _is_disordered(self, first: Pass) -> bool:
        """Whether frames are shown in another order than their timestamps say, which are of decoding instead."""
        if not (first.stream.codec_context.has_b_frames and self._timetable.is_in_order):
            return False
        table = Timetable()
        with self._pass() as current:
            pictures = itertools.islice(current.timed_pictures(current.record(table)), MOST_DELAYED)
            times = [picture.pts for picture, _ in pictures if picture.pts is not None]
        # Where times of decoding are set back, too, another recording begins.
        return table.is_trusted and any(one > other for one, other in itertools.pairwise(times))

    def _new_pass(self, *, probes: bool = True) -> Pass:
        new = Pass(
            self._content,
            self._damage,
            probes=probes,
            motion=self._glance == "motion",
            threads=self._threads,
            shares_cores=self._shares_cores,
        )
        if self._guesses_times and not new.guesses_times:
            new.distrust_times()
        self._open_passes.add(new)
        return new

    def _close_pass(self, current: Pass) -> None:
        self._open_passes.discard(current)
        current.close()

    @contextlib.contextmanager
    def _pass(self) -> Iterator[Pass]:
        """A new pass; one that is unfinished when the video is closed is closed with it."""
        current = self._new_pass()
        try:
            yield current
        finally:
            self._close_pass(current)

    def _begun(self) -> tuple[Pass, av.VideoFrame]:
        """A first pass, and its first picture."""
        self._damage, self._timetable = Damage(), Timetable()
        first = self._new_pass()
        self._unread = first.record(self._timetable)
        picture, _ = next(first.timed_pictures(self._unread))
        return first, picture

    def _begun_quickly(self) -> tuple[Pass, av.VideoFrame] | None:
        """The same for a small AVI file whose frames are shown in the order decoded; None for others.

        To see the order, FFmpeg would decode some frames before the first is asked for, and then again. Here they are
        decoded once, and each packet is read once: it is kept until it is decoded, while others are counted.
        """
        if not self._content.is_avi():
            return None
        self._damage, self._timetable = Damage(), Timetable()
        first = self._new_pass(probes=False)
        decoder = first.stream.codec_context
        if first.is_small and not decoder.has_b_frames:
            self._unread, packets = itertools.tee(first.record(self._timetable))
            pictures = first.timed_pictures(packets)
            begin = list(itertools.islice(pictures, NUM_PROBED))
            if not decoder.has_b_frames:
                self._all_of_first = itertools.chain(begin, pictures)
                return first, begin[0][0]
        self._close_pass(first)
        return None

    @contextlib.contextmanager
    def _all_pictures(self) -> Iterator[tuple[Pass, Iterable[tuple[av.VideoFrame, float]]]]:
        """A pass, and all of its pictures with their seconds."""
        if (pictures := self._all_of_first) is None or (first := self._first_pass) is None:
            with self._rewound_pass() if self._has_frame_a_packet else self._pass() as current:
                yield current, current.timed_pictures()
            return
        self._first_pass = self._all_of_first = None
        try:
            yield first, pictures
        finally:
            self._close_pass(first)

    @contextlib.contextmanager
    def _rewound_pass(self) -> Iterator[Pass]:
        """The first pass, rewound, if it is still open and its container allows that; otherwise a new pass."""
        first, self._first_pass, self._all_of_first = self._first_pass, None, None
        if first is not None and not first.rewind():
            self._close_pass(first)
            first = None
        if first is None:
            with self._pass() as current:
                yield current
            return
        try:
            yield first
        finally:
            self._close_pass(first)


class _SinceSample:
    """What a glance tells of the time since the sampled frame before: motion, or packets, or neither."""

    def __init__(self, motion: Motion | None, sums: PacketSums | None) -> None:
        self._motion = motion
        self._sums = sums
        self._first = 0
        """Position of the first frame after the last sample."""

    @property
    def needs_all(self) -> bool:
        """Whether the frames between samples must be decoded, too."""
        return self._motion is not None

    def add(self, picture: av.VideoFrame) -> None:
        if self._motion:
            self._motion.add(picture)

    def take(self, picture: av.VideoFrame, position: int) -> tuple[NDArray[np.uint8] | None, PacketBytes | None]:
        """Motion and packets up to a sampled frame; begins anew."""
        motion = self._motion.take(picture) if self._motion else None
        return motion, self.packets(position) if self._sums else None

    def packets(self, position: int) -> PacketBytes:
        """Packets up to a sampled frame; begins anew."""
        assert self._sums
        keys, others = self._sums
        # A packet may hold two frames, so there may be more frames than packets; and a timestamp may lie.
        first, self._first = self._first, max(min(position + 1, len(keys) - 1), self._first)
        return PacketBytes(keys=keys[self._first] - keys[first], others=others[self._first] - others[first])


def stored_seconds(path: str | os.PathLike[str]) -> float | None:
    """The length in the header of a video file, without decoding it; None if it is missing or cannot be read."""
    if is_address(path):
        return None
    try:
        header = Pass(content_of(os.fspath(path), timeout=0), Damage())
    except UnreadableVideo:
        return None
    with contextlib.closing(header):
        return header.stored_seconds


def pixels_and_glances(
    path: str | os.PathLike[str], *, num_frames: int, size: int, glance: GlanceKind = "grey"
) -> list[tuple[NDArray[np.uint8], NDArray[np.uint8]]]:
    """Pixels (size, size, 3) and glance (`glance_shape`) of evenly sampled frames of a video, or of one picture.

    A picture neither moves nor has packets, as if it had been there before.
    """
    shape = glance_shape(glance)
    if is_picture(path):
        pixels = read_picture(path, size)
        if glance not in ("grey", "colour"):
            nothing = (128, 128, 0) if glance == "motion" else (0, 0)
            return [(pixels, np.broadcast_to(np.array(nothing, np.uint8)[:, None, None], shape))]
        return [(pixels, Frame.from_pixels(pixels, index=0, seconds=0.0).glance_as(glance).reshape(shape))]
    with Video(path, glance=glance) as video:
        frames = video.sample_evenly(count=num_frames)
        return [(frame.pixels(size), frame.glance_as(glance).reshape(shape)) for frame in frames]
