"""Which frames of a long video to look at, so that little of it is decoded: what its packets tell about that.

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

from picknet.video.frame import due_positions, middles
from picknet.video.packets import Timetable

LONG_SECONDS = 1200.0
"""Of a longer video, frames are chosen with a view to what they cost."""
REACH = 0.125
"""How far before the middle of a part of a long video a keyframe may be that is taken in its place, in parts."""
LONGEST_GROUP = 12.0
"""Seconds from a keyframe to the next for which one look is enough. The usual most is ten."""
BUSY = 1.5
"""A second is busy if its packets have so many times the usual bytes."""
USUAL_TICKS = 120
"""The usual bytes are the median over about as many samples."""
MOST_CLOSELY = 0.06
"""Share of all frames that may be decoded for a close look at busy groups."""


def cheap_middles(times: Sequence[int], keys: Sequence[int], *, count: int, unit: float) -> list[int]:
    """Positions of the middles of `count` equal parts of a video; of a long one, of the keyframes just before them.

    keys: positions of the keyframes. The other arguments are those of `sparse_positions`.
    """
    wanted = middles(len(times), count)
    if not wanted or not keys or (times[-1] - times[0]) * unit <= LONG_SECONDS:
        return wanted
    before = [keys[max(bisect_right(keys, position), 1) - 1] for position in wanted]
    reach = REACH * len(times) / count
    return [key if 0 <= position - key <= reach else position for position, key in zip(wanted, before, strict=True)]


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
