"""A container's index: how many frames a video has, when, and where decoding can start, before a packet is read.

MP4 has a complete one. It lists the packets in the order in which they are decoded, with their decoding times. When a
frame is shown is told by its packet alone, so an `Index` assumes the usual rhythm: the frames are shown at the decoding
times, all by the same delay later. Files lie, so a stretch of packets is compared with the index (`shown_as_expected`,
`has`) before a frame is taken from it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from typing import Any, Self

import av
from av.container import InputContainer
from av.index import IndexEntries
from av.stream import Stream
from av.video.stream import VideoStream

from picknet.video.packets import joined

_MOST_KEYS = 100_000
"""Keyframes of an index that is used: they are listed one by one."""


class Index(Sequence[int]):
    """When each frame of a video is shown, in the order shown, in the stream's unit. Valid while its container is open.

    Packets are numbered in the order stored, frames (positions) in the order shown.
    """

    def __init__(self, entries: IndexEntries, keys: Sequence[int], delay: int) -> None:
        """keys: numbers of the packets that decoding can start at. delay: from decoding a frame to showing it."""
        self._entries: Any = entries
        self.keys = keys
        self._delay = delay

    @classmethod
    def of(cls, container: InputContainer, stream: VideoStream, *, start: int, seconds: float) -> Self | None:
        """The index of a stream; None if it has none, or one that cannot be true.

        start: when its first frame is shown. seconds: the least length of the video.
        """
        entries = stream.index_entries
        if not 1 < len(entries) == stream.frames <= container.size:
            return None
        ends = [_end(other, container.size) for other in container.streams if len(other.index_entries) > 1]
        if min(ends) < 0 or max(ends) - (container.start_time or 0) / av.time_base < seconds:
            return None  # the file breaks off
        keys = _keys(entries)
        return cls(entries, keys, start - entries[0].timestamp) if keys else None

    def close(self) -> None:
        """To be called before its container is closed: the entries are part of it."""
        self._entries = ()

    def __len__(self) -> int:
        return len(self._entries)

    def __getitem__(self, position):  # type: ignore[no-untyped-def, override]  # slices are not needed
        return self._entries[position].timestamp + self._delay

    def needed(self, positions: Iterable[int]) -> list[range]:
        """The numbers of the packets to read for these frames, sorted. Each range starts at a keyframe, and ends with
        the last packet that may be shown before the last of its frames."""
        return joined(range(self.key(position), self._end(position)) for position in positions)

    def key(self, number: int) -> int:
        """The last packet up to this one that decoding can start at."""
        return self.keys[max(bisect_right(self.keys, number), 1) - 1]

    def place(self, number: int) -> tuple[int, int]:
        """Where a packet is in the file, and its size."""
        entry = self._entries[number]
        return entry.pos, entry.size

    def has(self, number: int, packet: "av.Packet[Stream]") -> bool:
        """Whether this packet is in the index under this number."""
        entry = self._entries[number]
        found = (packet.dts, packet.size, packet.is_keyframe, packet.is_discard)
        return found == (entry.timestamp, entry.size, entry.is_keyframe, False)

    def shown_as_expected(self, first: int, shown: Sequence[int], last: int) -> bool:
        """Whether the frames up to position `last` are shown when the index says.

        first: a keyframe, before which are all frames that are stored before it. shown: when the frames of the packets
            from it on are shown.
        """
        expected = range(first, last + 1)
        return len(shown) >= len(expected) and all(
            time == self[position] for position, time in zip(expected, sorted(shown), strict=False)
        )

    def _end(self, position: int) -> int:
        # A frame is decoded when it is shown, or before.
        last = self._entries.search_timestamp(self[position], any_frame=True, backward=True)
        return int(max(position, last)) + 1


def _keys(entries: IndexEntries) -> list[int]:
    """Numbers of the keyframes; empty if they are out of order, or too many, or if frames are hidden.

    Where an edit list hides frames on which shown ones depend, the first of them is a keyframe.
    """
    keys = [0]
    if not entries[0].is_keyframe:
        return []
    while True:
        entry = entries[keys[-1]]
        following = entries.search_timestamp(entry.timestamp + 1, backward=False)
        if entry.is_discard or len(keys) > _MOST_KEYS:
            return []
        if following < 0:
            return keys
        if following <= keys[-1]:
            return []
        keys.append(following)


def _end(stream: Stream, size: int) -> float:
    """When a stream ends by its index, in seconds; -1 if its last packet is not in the file of this size."""
    before, last = stream.index_entries[-2:]
    if last.is_discard or not 0 <= last.pos <= last.pos + last.size <= size:
        return -1.0
    return float((2 * last.timestamp - before.timestamp) * (stream.time_base or 1))
