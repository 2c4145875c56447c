"""At most N frames of a video of any length, chosen in one pass."""

from collections.abc import Iterable, Iterator

import numpy as np

from picknet.config import GlanceKind
from picknet.picking.glances import OUTLINE_SIZE, changes, outline
from picknet.picking.learned import RatePicker
from picknet.picking.picker import BadPicker, Pick, picked
from picknet.video.frame import Frame

MAX_BUDGET = 1000
"""The largest budget. All picked frames are held in memory: 3 MB each for 1080p video."""
STILL = 0.1
"""Weight of a frame in which nothing moves; a changing one weighs up to 1 more."""
REPEATED = 0.3
"""Distance between two frames that look the same; different ones are up to 1 farther apart."""
SAME = 0.1
"""The change up to which two frames count as the same, so that one of them is enough."""
HALF_DISTANT_SECONDS = 30.0
"""The time between two frames at which their distance is half of what it would be after a very long time."""


class BudgetPicker:
    """At most `budget` frames of a video of any length, chosen in one pass: those that show what happens in it.

    A frame is worth keeping if it looks different from the others kept, is far from them in time, and is changing: it
    differs from the frame before and from the frame after. When there is one frame too many, the one is dropped whose

        (STILL + changing) · min over the others of (REPEATED + change) · t / (t + HALF_DISTANT_SECONDS)

    is smallest, where t is the time between two frames and `change`, from 0 to 1, how much their glances differ. So an
    uneventful hour gives way to a few eventful seconds, and a video in which nothing happens is picked at a steady
    stride. The first frame is always kept. Memory: one frame more than the budget.

    A learned picker knows better what is worth a look: rain changes every frame, and shows nothing new. With one, the
    product above is multiplied by ½ + p, where p is its probability of picking the frame.
    """

    looks_ahead = True

    def __init__(self, budget: int, *, exact: bool = False, learned: RatePicker | None = None) -> None:
        """exact: use the whole budget, even on frames that show nothing new. learned: as for a stream, not spread."""
        if not 1 <= budget <= MAX_BUDGET:
            raise BadPicker(f"budget is {budget}: 1 to {MAX_BUDGET} frames are possible")
        self._budget = budget
        self._exact = exact
        self._learned = learned
        self.glance: GlanceKind = "grey" if learned is None else learned.glance

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        kept = _Kept(self._budget)
        if self._learned is None:
            for frame in frames:
                kept.add(frame)
        else:
            for seen in self._learned.watch(frames):
                kept.add(seen.frame, seen.probability)
        for frame, known in kept.frames(repeated=self._exact):
            yield picked(frame, known)


class _Kept:
    """The frames kept so far, and the newest, whose weight is only known once the next frame has come."""

    def __init__(self, budget: int) -> None:
        size = budget + 1
        self._budget = budget
        self._frames: dict[int, tuple[Frame, float | None]] = {}
        """Position in the arrays below -> frame and probability, in order of time. The first stays at position 0."""
        self._outlines = np.zeros((size, OUTLINE_SIZE * OUTLINE_SIZE), np.float32)
        self._seconds = np.zeros(size)
        self._weights = np.zeros(size)
        self._worth = np.ones(size)
        self._distances = np.full((size, size), np.inf)

    def add(self, frame: Frame, probability: float | None = None) -> None:
        shape, changing = outline(frame.glance()), 0.0
        if self._frames:
            newest = next(reversed(self._frames))
            changing = float(changes(self._outlines[[newest]], shape)[0])
            self._weights[newest] = min(self._weights[newest], STILL + changing)
        position = self._drop() if len(self._frames) > self._budget else len(self._frames)
        others = list(self._frames)
        times = np.abs(frame.seconds - self._seconds[others])
        distances = REPEATED + changes(self._outlines[others], shape)
        distances *= times / (times + HALF_DISTANT_SECONDS)
        self._distances[position, others] = self._distances[others, position] = distances
        self._outlines[position], self._seconds[position] = shape, frame.seconds
        self._weights[position] = STILL + changing
        self._worth[position] = 1.0 if probability is None else 0.5 + probability
        self._frames[position] = frame, probability

    def frames(self, *, repeated: bool) -> list[tuple[Frame, float | None]]:
        """The frames within the budget, in order; without `repeated`, still frames that look like an earlier one are
        left out."""
        if len(self._frames) > self._budget:
            self._drop()
        shown: list[int] = []
        for position in self._frames:
            is_changing = self._weights[position] > STILL + SAME
            is_new = (changes(self._outlines[shown], self._outlines[position]) > SAME).all()
            if repeated or is_changing or is_new:
                shown.append(position)
        return [self._frames[position] for position in shown]

    def _drop(self) -> int:
        """Drop the frame that is missed least, and return its position, which is free then."""
        losses = self._weights * self._worth * self._distances.min(axis=1)
        losses[0] = np.inf
        position = int(losses.argmin())
        del self._frames[position]
        self._distances[position] = self._distances[:, position] = np.inf
        return position
