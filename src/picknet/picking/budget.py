"""At most N frames of a video of any length, chosen in one pass."""

from collections.abc import Iterable, Iterator

import numpy as np

from picknet.picking.glances import OUTLINE_SIZE, changes, outline
from picknet.picking.picker import BadPicker, Pick, picked
from picknet.video.frame import Frame

MAX_BUDGET = 1000
"""Frames that a budget's picker may hold: of a 1080p video each takes 3 MB."""
STILL = 0.1
"""What a frame counts in which nothing moves, where a live one counts 1 more."""
AGAIN = 0.3
"""What the same thing counts when it happens again, where another thing counts 1 more."""
SAME = 0.1
"""The change up to which two pictures are the same, and one of them will do."""
FAMILIAR_SECONDS = 30.0
"""The time after which a frame is half as far from another as it can be."""


class BudgetPicker:
    """At most so many frames of a video of any length, in one pass: those that show what happens in it.

    The frames worth keeping are unlike the others kept, far from them in time, and live: they differ from the frame
    before and from the frame after. Of one frame too many that one is let go whose

        (STILL + live) · min over the others of (AGAIN + change) · t / (t + FAMILIAR_SECONDS)

    is least, where t is the time between two frames and `change` what their glances differ by, from 0 to 1. So an hour
    in which nothing happens is given up for a few seconds in which something does, and where all is alike what remains
    is a steady stride. The first frame is always kept.
    """

    def __init__(self, budget: int, *, exact: bool = False) -> None:
        """exact: with it, the budget is spent in full even on frames that show nothing new."""
        if not 1 <= budget <= MAX_BUDGET:
            raise BadPicker(f"budget is {budget}: 1 to {MAX_BUDGET} frames are possible")
        self._budget = budget
        self._exact = exact

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        kept = _Kept(self._budget)
        for frame in frames:
            kept.add(frame)
        yield from map(picked, kept.frames(repeated=self._exact))


class _Kept:
    """The frames of a budget so far, and the newest, which is not judged before the next one has come."""

    def __init__(self, budget: int) -> None:
        size = budget + 1
        self._budget = budget
        self._frames: dict[int, Frame] = {}
        """By their places in the arrays below, in the order they came; the first frame is at 0 for good."""
        self._outlines = np.zeros((size, OUTLINE_SIZE * OUTLINE_SIZE), np.float32)
        self._seconds = np.zeros(size)
        self._worth = np.zeros(size)
        self._distances = np.full((size, size), np.inf)

    def add(self, frame: Frame) -> None:
        shape, live = outline(frame.glance()), 0.0
        if self._frames:
            newest = next(reversed(self._frames))
            live = float(changes(self._outlines[[newest]], shape)[0])
            self._worth[newest] = min(self._worth[newest], STILL + live)
        place = self._let_go() if len(self._frames) > self._budget else len(self._frames)
        others = list(self._frames)
        times = np.abs(frame.seconds - self._seconds[others])
        distances = AGAIN + changes(self._outlines[others], shape)
        distances *= times / (times + FAMILIAR_SECONDS)
        self._distances[place, others] = self._distances[others, place] = distances
        self._outlines[place], self._seconds[place], self._worth[place] = shape, frame.seconds, STILL + live
        self._frames[place] = frame

    def frames(self, *, repeated: bool) -> list[Frame]:
        """Those within the budget, in order; without `repeated` not those that stand still as one before them does."""
        if len(self._frames) > self._budget:
            self._let_go()
        shown: list[int] = []
        for place in self._frames:
            is_live = self._worth[place] > STILL + SAME
            if repeated or is_live or (changes(self._outlines[shown], self._outlines[place]) > SAME).all():
                shown.append(place)
        return [self._frames[place] for place in shown]

    def _let_go(self) -> int:
        """Forget the frame that is missed least; its place is free then."""
        losses = self._worth * self._distances.min(axis=1)
        losses[0] = np.inf
        place = int(losses.argmin())
        del self._frames[place]
        self._distances[place] = self._distances[:, place] = np.inf
        return place
