"""Which frames of a long video to look at, when there is no time to decode it all: what its packets tell about that.

A keyframe can be decoded alone, any other frame only together with all that it depends on. So one look at a group of
frames is one at its keyframe. Packets that are larger than usual are a sign that something moves: the busiest groups
are looked at closely. So is a group that lasts long, since its keyframe tells too little about it.
"""

import itertools
from bisect import bisect_right
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.video.frame import due_positions
from picknet.video.packets import Timetable

LONGEST_GROUP = 12.0
"""Seconds from a keyframe to the next for which one look is enough. The usual most is ten."""
BUSY = 1.5
"""A second is busy if its packets have so many times the usual bytes."""
USUAL_TICKS = 120
"""The usual bytes are the median over about as many samples."""
MOST_CLOSELY = 0.06
"""Share of all frames that may be decoded for a close look at busy groups."""


def sparse_positions(table: Timetable, times: Sequence[int], *, fps: float, unit: float) -> list[int]:
    """Positions of the frames to look at, at most `fps` a second.

    times: when each frame of the timetable is shown. unit: seconds of a tick of them.
    """
    ticks = due_positions(times, fps=fps, unit=unit)
    keys = table.key_positions(times)
    first_looks = due_positions([times[key] for key in keys], fps=fps, unit=unit)
    chosen = {ticks[0], *(keys[place] for place in first_looks)}
    activity = _activity(np.asarray(table.sums().others), np.array(ticks))
    busy: list[tuple[float, int, list[int]]] = []
    for group, members in itertools.groupby(range(len(ticks)), key=lambda place: bisect_right(keys, ticks[place])):
        places = list(members)
        start, end = keys[group - 1] if group else 0, keys[group] if group < len(keys) else len(times)
        if (times[end - 1] - times[start]) * unit > LONGEST_GROUP:
            chosen.update(ticks[place] for place in places)
        elif (most := activity[places].max()) > BUSY:
            last = max(place for place in places if activity[place] > BUSY)
            busy.append((most, ticks[last] - start, [ticks[place] for place in places if place <= last]))
    num_left = MOST_CLOSELY * len(times)
    for _, num_decoded, looks in sorted(busy, reverse=True):
        if num_decoded <= num_left:
            num_left -= num_decoded
            chosen.update(looks)
    return sorted(chosen)


def _activity(sums: NDArray[Any], ticks: NDArray[Any]) -> NDArray[Any]:
    """sums: bytes of the first 0, 1, 2 … frames, keyframes not counted -> of each tick the bytes since the one before
    or up to the next one, whichever are more, as a multiple of what is usual there."""
    seconds = np.diff(sums[[*ticks, len(sums) - 1]]).astype(float)
    blocks = np.array_split(seconds, max(len(seconds) // USUAL_TICKS, 1))
    usual = np.concatenate([np.full(len(block), np.median(block)) for block in blocks])
    relative = seconds / np.maximum(usual, 1.0)
    return np.asarray(np.maximum(relative, np.concatenate([relative[:1], relative[:-1]])))
