"""The timetable of a video, from its packets: when its frames are shown, and what each of them depends on."""

import itertools
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import av
from av.stream import Stream

MIN_SKIP = 6
"""Packets. Skipping fewer costs more than it saves: draining the decoder leaves its threads idle."""


class PacketSums(NamedTuple):
    """Bytes of the first 0, 1, 2 … frames of a video."""

    keys: "array[int]"
    """Of keyframes."""
    others: "array[int]"
    """Of all other frames."""


class Stretch(NamedTuple):
    """Packets to decode together, from a keyframe on."""

    first: int
    """Number of the first packet in the order stored."""
    shown: Sequence[int]
    """When the frame of each packet is shown."""
    packets: "Sequence[av.Packet[Stream]]" = ()
    """The packets, where they have been read and kept."""


@dataclass
class Timetable:
    """The packets of a video in the order in which they are stored and decoded. Times are in the stream's unit."""

    is_trusted: bool = True
    """Whether each packet has consistent timestamps, so that a frame can be identified by its timestamp."""
    _shown: "array[int]" = field(default_factory=lambda: array("q"))
    _sizes: "array[int]" = field(default_factory=lambda: array("q"))
    """Bytes of each packet; negative for a keyframe."""
    _keys: list[int] = field(default_factory=list)
    """Numbers of the packets that decoding can start at."""
    _hidden: set[int] = field(default_factory=set)
    """Numbers of the packets whose frames an edit list hides."""
    _last_decoded: int | None = None
    _delays: set[int] = field(default_factory=set)
    """How long after its decoding a frame is shown: up to two different times."""

    def add(self, *, shown: int | None, decoded: int | None, is_key: bool, is_hidden: bool, num_bytes: int = 0) -> None:
        """Add the next packet: when its frame is shown, and when it is decoded."""
        number = len(self._shown)
        self._sizes.append(-num_bytes if is_key else num_bytes)
        self._shown.append(0 if shown is None else shown)
        if is_key and shown is not None and (not self._keys or shown > self._shown[self._keys[-1]]):
            self._keys.append(number)
        if is_hidden:
            self._hidden.add(number)
            return
        if shown is None:
            self.is_trusted = False
        elif decoded is not None and len(self._delays) < 2:
            self._delays.add(shown - decoded)
        if decoded is not None:
            if self._last_decoded is not None and decoded < self._last_decoded:
                self.is_trusted = False
            self._last_decoded = decoded

    def __len__(self) -> int:
        """Number of packets whose frames are not hidden."""
        return len(self._shown) - len(self._hidden)

    @property
    def is_in_order(self) -> bool:
        """Whether frames seem to be shown in the order stored, as far as packets have been added.

        Then all of them wait equally long to be shown, or nearly. Of a single packet only a wait of 0 says so.
        """
        if len(self._shown) == len(self._delays) == 1:
            return 0 in self._delays
        return all(one < other for one, other in itertools.pairwise(self._shown))

    def shown(self, number: int) -> int:
        """When the frame of this packet is shown."""
        return self._shown[number]

    def times(self, start: int | None = None) -> "array[int] | None":
        """When each frame is shown, sorted; None if the packets do not tell.

        start: of the first that can be decoded. A recording that begins between keyframes has others before it.
        """
        shown_at = (shown for number, shown in enumerate(self._shown) if number not in self._hidden)
        times = array("q", sorted(time for time in shown_at if start is None or time >= start))
        unique = all(one < other for one, other in itertools.pairwise(times))
        return times if self.is_trusted and unique else None

    def key_positions(self, times: Sequence[int]) -> list[int]:
        """Positions of the keyframes that are shown. times: when each frame is shown, sorted."""
        shown = (self._shown[number] for number in self._keys if number not in self._hidden)
        return [bisect_left(times, time) for time in shown if times and time >= times[0]]

    def sums(self, start: int | None = None) -> PacketSums:
        """Bytes of the frames in the order shown, added up; in the order stored if the packets do not tell.

        start: as for `times`.
        """
        numbers = [number for number in range(len(self._sizes)) if number not in self._hidden]
        if self.is_trusted:
            numbers = [number for number in numbers if start is None or self._shown[number] >= start]
            numbers.sort(key=self._shown.__getitem__)
        sizes = [self._sizes[number] for number in numbers]
        keys = itertools.accumulate((max(-size, 0) for size in sizes), initial=0)
        others = itertools.accumulate((max(size, 0) for size in sizes), initial=0)
        return PacketSums(array("q", keys), array("q", others))

    def stretches(self, times: Collection[int], *, from_start: bool = False) -> Iterator[Stretch]:
        """The packets to decode for the frames shown at these times, which are sorted.

        from_start: whether all others are decoded, from the first one on.
        """
        ranges = self.needed(times)
        for numbers in [range(ranges[-1].stop)] if from_start else ranges:
            yield Stretch(numbers.start, self._shown[numbers.start : numbers.stop])

    def needed(self, times: Collection[int]) -> list[range]:
        """The numbers of the packets to decode for the frames shown at these times, which are sorted.

        Each range starts at a keyframe. Frames shown before a keyframe may depend on what is stored before it, even if
        they are stored after it; those shown later do not.
        """
        wanted = frozenset(times)
        numbers = {shown: number for number, shown in enumerate(self._shown) if shown in wanted}
        key_times = [self._shown[number] for number in self._keys]

        def keyframe(time: int) -> int:
            # Stored before the frame as well: files lie about which packets are keyframes.
            key = min(bisect_right(key_times, time), bisect_right(self._keys, numbers[time])) - 1
            return self._keys[key] if key >= 0 else 0

        return joined(range(keyframe(time), numbers[time] + 1) for time in times)


def joined(ranges: Iterable[range]) -> list[range]:
    """Ranges of packets in order, those joined between which few would be skipped."""
    found: list[range] = []
    for each in ranges:
        if found and each.start < found[-1].stop + MIN_SKIP:
            found[-1] = range(min(found[-1].start, each.start), max(found[-1].stop, each.stop))
        else:
            found.append(each)
    return found
