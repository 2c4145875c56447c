"""What the packets of a file tell before any is decoded: when its frames are shown, and what each depends on."""

import itertools
from array import array
from bisect import bisect_right
from collections.abc import Collection
from dataclasses import dataclass, field

SHORTEST_LEAP = 6
"""Packets. To leave out fewer costs more than it saves: a decoder that is emptied has nothing to do side by side."""


@dataclass
class Timetable:
    """The packets of a video in the order they are stored, which is the order they are decoded in.

    Times are in the stream's own unit.
    """

    is_trusted: bool = True
    """Whether each packet has times of its own that make sense, so that a frame is known by its time."""
    _shown: "array[int]" = field(default_factory=lambda: array("q"))
    _keys: list[int] = field(default_factory=list)
    """The numbers of packets that decoding can begin with."""
    _hidden: set[int] = field(default_factory=set)
    """The numbers of packets whose frames an edit list hides."""
    _last_decoded: int | None = None

    def add(self, *, shown: int | None, decoded: int | None, is_key: bool, is_hidden: bool) -> None:
        """Note the next packet: when its frame is shown, and when it is decoded."""
        number = len(self._shown)
        self._shown.append(0 if shown is None else shown)
        if is_key and shown is not None and (not self._keys or shown > self._shown[self._keys[-1]]):
            self._keys.append(number)
        if is_hidden:
            self._hidden.add(number)
            return
        if shown is None:
            self.is_trusted = False
        if decoded is not None:
            if self._last_decoded is not None and decoded < self._last_decoded:
                self.is_trusted = False
            self._last_decoded = decoded

    def shown(self, number: int) -> int:
        """When the frame of the packet with this number is shown."""
        return self._shown[number]

    def times(self) -> "array[int] | None":
        """When each frame is shown, sorted; None where the packets do not tell."""
        times = array("q", sorted(shown for number, shown in enumerate(self._shown) if number not in self._hidden))
        unique = all(one < other for one, other in itertools.pairwise(times))
        return times if self.is_trusted and unique else None

    def needed(self, times: Collection[int]) -> list[range]:
        """The packets to decode, by their numbers, to see the frames shown at these times, which are sorted.

        Each range begins with a key frame. Frames that are shown before a key frame may depend on what is stored before
        it, even where they are stored after it; those shown later do not.
        """
        wanted = frozenset(times)
        numbers = {shown: number for number, shown in enumerate(self._shown) if shown in wanted}
        key_times = [self._shown[number] for number in self._keys]
        ranges: list[range] = []
        for time in times:
            key = bisect_right(key_times, time) - 1
            first, end = self._keys[key] if key >= 0 else 0, numbers[time] + 1
            if ranges and first < ranges[-1].stop + SHORTEST_LEAP:
                ranges[-1] = range(ranges[-1].start, max(ranges[-1].stop, end))
            else:
                ranges.append(range(first, end))
        return ranges
