"""Which frames to look at: the learned picker of the paper, and the plain ones it is compared with.

A picker is a lazy filter over frames. PickNet, every n-th, a coin, scene changes and "all of them" decide frame by
frame and never look ahead, so they can follow a live stream; uniform, random-k and k-means have to see the last frame
before they can name the first. A picker that need not look at frames at all can say beforehand which it will pick. The
budget's picker reads a video once and holds one frame more than it may pick, but names its picks only at the end, since
what is yet to come may be worth more.
"""

import dataclasses
import functools
import itertools
import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from picknet.config import ModelConfig
from picknet.errors import PicknetError
from picknet.video import GLANCE_SIZE, Frame

Array = NDArray[Any]

MAX_LLOYD_STEPS = 100
"""Lloyd's algorithm settles in a handful of steps on 30 frames; this only bounds the worst case."""

MAX_BUDGET = 1000
"""Frames that a budget's picker may hold: of a 1080p video each takes 3 MB."""
OUTLINE_SIZE = GLANCE_SIZE // 2
"""Height and width of an outline: a mean over 2×2 values has half the noise."""
FAINTEST_CONTRAST = 8.0
"""Grey values: in a scene of less contrast, noise is no longer made larger with the scene."""
HALF_CHANGED = 0.03
"""The difference of outlines that counts as half a change. Noise and compression stay far below it, and more than a few
times as much is all the same: what is happening matters, not how much of the picture is."""
STILL = 0.1
"""What a frame counts in which nothing moves, where a live one counts 1 more."""
AGAIN = 0.3
"""What the same thing counts when it happens again, where another thing counts 1 more."""
SAME = 0.1
"""The change up to which two pictures are the same, and one of them will do."""
FAMILIAR_SECONDS = 30.0
"""The time after which a frame is half as far from another as it can be."""


class BadPicker(PicknetError):
    """A picker asked for something impossible."""


@dataclass(frozen=True)
class Pick:
    """A frame that was picked."""

    index: int
    """The frame's position among the sampled ones, from 0."""
    seconds: float
    """Where in the video it stands."""
    probability: float | None = None
    """The policy's probability of picking it. None where no policy was asked: other pickers, and the first frame,
    which PickNet takes by force."""
    frame_number: int | None = None
    """The frame's position among all frames of the video, from 0; None where they are not counted: live."""

    def as_json(self) -> dict[str, Any]:
        # Of a sum of binary fractions, what is beyond a microsecond is noise.
        return dataclasses.asdict(self) | {"seconds": round(self.seconds, 6)}


class Picker(Protocol):
    """Anything that lets some frames through."""

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        """The picked ones among `frames`, in order."""
        ...


@runtime_checkable
class Planner(Picker, Protocol):
    """A picker that may know what it will pick before it has seen a frame, so that no other need be decoded."""

    def plan(self, count: int) -> "Plan | None":
        """What it will pick of so many frames; None if it has to look at them."""
        ...


@dataclass(frozen=True)
class Plan:
    """What will be picked of `count` frames: their indexes, and the probability of each as in a `Pick`.

    It is a picker itself. Should none of them come, because the video is damaged, it takes the last frame that does.
    """

    count: int
    probabilities: Mapping[int, float | None]

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        any_pick, frame = False, None
        for frame in frames:
            if frame.index in self.probabilities:
                any_pick = True
                yield _picked(frame, self.probabilities[frame.index])
        if frame is not None and not any_pick:
            yield _picked(frame)


def planned(picker: Picker, count: int) -> Plan | None:
    """What a picker will pick of so many frames, if it can tell."""
    return picker.plan(count) if isinstance(picker, Planner) and count else None


Policy = Callable[[Array, Array, Array], Array]
"""glances (n, 56, 56) uint8, templates (n, 56, 56) uint8, waits (n,) -> probabilities of picking (n,)

A template is the glance of the last picked frame, a wait the time since then, in strides.
"""


class PickNetPicker:
    """The paper's picker: it compares each glance with the glance of the last picked frame.

    All it remembers is that one glance and how long ago it was, however long the video.
    """

    def __init__(self, policy: Policy, *, threshold: float = 0.5, max_gap: int | None = None) -> None:
        """max_gap: with it, at the latest every so many frames one is picked, whatever the policy says."""
        if not 0 <= threshold <= 1:
            raise BadPicker(f"threshold is {threshold}: from 0 (pick all) to 1 (only the first) is possible")
        if max_gap is not None and max_gap < 1:
            raise BadPicker(f"max_gap is {max_gap}: 1 (pick all) or more is possible")
        self._policy = policy
        self._threshold = threshold
        self._max_gap = math.inf if max_gap is None else max_gap

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        template: Array | None = None
        gap = 0
        for frame in frames:
            glance = frame.glance()
            probability = None
            gap += 1
            if template is not None:
                probability = _probability(self._policy, glance, template, wait=0.0)
                if probability <= self._threshold and gap < self._max_gap:
                    continue
            template, gap = glance, 0
            yield _picked(frame, probability)


class StridePicker:
    """A learned picker that keeps a steady stride, sooner or later as the glances tell it.

    The clock starts ahead, so that the first pick comes early. No frame is picked by force but the last, where the
    video would end without a pick.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        stride: float,
        first_pick: float = math.inf,
        threshold: float = 0.5,
        looks: bool = True,
    ) -> None:
        """looks: whether the policy depends on glances. One that has learned nothing from them goes by its clock."""
        if not 0 <= threshold <= 1:
            raise BadPicker(f"threshold is {threshold}: from 0 (pick all) to 1 (only the last) is possible")
        if not stride >= 1:
            raise BadPicker(f"stride is {stride}: 1 (pick all) or more is possible")
        self._policy = policy
        self._stride = stride
        self._first_gap = first_gap(stride, first_pick)
        self._threshold = threshold
        self._plan = None if looks else functools.lru_cache(self._planned)

    def plan(self, count: int) -> Plan | None:
        return self._plan(count) if self._plan else None

    def _planned(self, count: int) -> Plan:
        black = np.zeros((GLANCE_SIZE, GLANCE_SIZE, 3), np.uint8)
        anything = (Frame.from_pixels(black, index=index, seconds=0.0) for index in range(count))
        return Plan(count, {pick.index: pick.probability for _, pick in self.pick(anything)})

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        template: Array | None = None
        last: tuple[Frame, Pick] | None = None
        any_pick = False
        gap = self._first_gap
        for frame in frames:
            glance = frame.glance()
            template = glance if template is None else template
            probability = _probability(self._policy, glance, template, wait=gap / self._stride)
            last = _picked(frame, probability)
            if probability > self._threshold:
                template, any_pick = glance, True
                gap = min(max(gap - self._stride, 0.0), 1.0)  # what the stride overshot within this frame
                yield last
            gap += 1
        if last is not None and not any_pick:
            yield last


def first_gap(stride: float, first_pick: float) -> float:
    """Where a stride policy's clock starts, in frames: a pick is due when it is past the stride.

    Half a stride ahead, so that picks fall on the centres of equal parts, or further, so that the frame `first_pick`
    is due: late first picks cost more than early ones, since the ends of clips are worth least.
    """
    return max(1 + stride / 2, stride - first_pick + 0.5)


def learned_picker(policy: Policy, model: ModelConfig, *, looks: bool = True) -> Picker:
    """The picker that a model was trained with. looks: as in `StridePicker`."""
    if model.picker == "stride":
        return StridePicker(
            policy, stride=model.stride, first_pick=model.first_pick, threshold=model.pick_threshold, looks=looks
        )
    return PickNetPicker(policy, threshold=model.pick_threshold, max_gap=model.max_gap or None)


def _probability(policy: Policy, glance: Array, template: Array, *, wait: float) -> float:
    return float(policy(glance[None], template[None], np.array([wait], np.float32))[0])


class AllPicker:
    """Every frame: the paper's baseline that encodes all samples."""

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        yield from map(_picked, frames)


class CoinPicker:
    """The first frame, then each one with the same probability: about half of them, as the paper's "random" does.

    One generator serves all videos, so what is picked from a video depends on the seed and the frames before it.
    """

    def __init__(self, probability: float = 0.5, *, seed: int | np.random.Generator = 0) -> None:
        if not 0 <= probability <= 1:
            raise BadPicker(f"probability is {probability}: from 0 to 1 is possible")
        self._probability = probability
        self._generator = np.random.default_rng(seed)

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        for position, frame in enumerate(frames):
            if position == 0 or self._generator.random() < self._probability:
                yield _picked(frame)


class EveryNthPicker:
    """Frame ⌊(i + ½) n⌋ for i = 0, 1, 2 …: the middles of stretches of n frames, whatever the length of the video.

    n need not be whole. Where the video is k stretches long, these are the frames of `UniformPicker(k)`. A video that
    ends before the first of them is given its last frame, since something has to be seen of it.
    """

    def __init__(self, n: float) -> None:
        if not 1 <= n < math.inf:
            raise BadPicker(f"n is {n}: 1 (pick all) or more is possible")
        self._n = Fraction(n).limit_denominator(1000)  # 30 / 7 is meant, not the nearest binary number

    def plan(self, count: int) -> Plan:
        picked = list(itertools.takewhile(lambda position: position < count, self._positions()))
        return Plan(count, dict.fromkeys(picked or [count - 1]))

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        positions = self._positions()
        any_pick, frame, due = False, None, next(positions)
        for position, frame in enumerate(frames):
            if position == due:
                any_pick, due = True, next(positions)
                yield _picked(frame)
        if frame is not None and not any_pick:
            yield _picked(frame)

    def _positions(self) -> Iterator[int]:
        return ((2 * i + 1) * self._n // 2 for i in itertools.count())


class SceneChangePicker:
    """The first frame, then each whose glance differs enough from the glance of the last picked frame.

    The difference is the mean absolute one, in grey values from 0 to 255; a frame is picked when it is above `change`.
    """

    def __init__(self, change: float) -> None:
        if not 0 <= change <= 255:
            raise BadPicker(f"change is {change}: from 0 to 255 grey values are possible")
        self._change = change

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        template: Array | None = None
        for frame in frames:
            glance = frame.glance().astype(np.int16)
            if template is None or np.abs(glance - template).mean() > self._change:
                template = glance
                yield _picked(frame)


class UniformPicker:
    """k frames at even distances: the centres of k equal parts, or with `ends` from the very first to the very last."""

    def __init__(self, k: int, *, ends: bool = False) -> None:
        self._k = _checked(k)
        self._ends = ends

    def plan(self, count: int) -> Plan:
        return Plan(count, dict.fromkeys(self._positions(count)))

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        every = list(frames)
        yield from (_picked(every[position]) for position in self._positions(len(every)))

    def _positions(self, count: int) -> list[int]:
        k = min(self._k, count)
        if self._ends and k > 1:
            # i (n − 1) / (k − 1), rounded, halves upwards, in whole numbers.
            return [(2 * i * (count - 1) + k - 1) // (2 * (k - 1)) for i in range(k)]
        return [(2 * i + 1) * count // (2 * k) for i in range(k)]


class RandomPicker:
    """k frames, any k equally likely. One generator serves all videos, as in `CoinPicker`."""

    def __init__(self, k: int, *, seed: int | np.random.Generator = 0) -> None:
        self._k = _checked(k)
        self._generator = np.random.default_rng(seed)

    def plan(self, count: int) -> Plan:
        return Plan(count, dict.fromkeys(self._positions(count)))

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        every = list(frames)
        yield from (_picked(every[position]) for position in self._positions(len(every)))

    def _positions(self, count: int) -> list[int]:
        """Others with every call."""
        if not count:
            return []
        return sorted(self._generator.choice(count, size=min(self._k, count), replace=False).tolist())


class KMeansPicker:
    """The paper's k-means: cluster the CNN features of all frames, take the frame nearest to each centre.

    Every frame goes through the CNN, so it saves nothing; it is there to be compared with.
    """

    def __init__(self, k: int, *, features: Callable[[Frame], Array], seed: int | np.random.Generator = 0) -> None:
        """features: a frame -> its feature (D,); `Captioner.feature` is one."""
        self._k = _checked(k)
        self._features = features
        self._generator = np.random.default_rng(seed)

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        every = list(frames)
        if not every:
            return
        points = np.stack([np.asarray(self._features(frame), dtype=np.float64) for frame in every])
        centres = _cluster(points, min(self._k, len(every)), self._generator)
        yield from (_picked(every[position]) for position in sorted(_nearest(points, centres)))


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
        yield from map(_picked, kept.frames(repeated=self._exact))


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
        outline, live = _outline(frame.glance()), 0.0
        if self._frames:
            newest = next(reversed(self._frames))
            live = float(_changes(self._outlines[[newest]], outline)[0])
            self._worth[newest] = min(self._worth[newest], STILL + live)
        place = self._let_go() if len(self._frames) > self._budget else len(self._frames)
        others = list(self._frames)
        times = np.abs(frame.seconds - self._seconds[others])
        distances = AGAIN + _changes(self._outlines[others], outline)
        distances *= times / (times + FAMILIAR_SECONDS)
        self._distances[place, others] = self._distances[others, place] = distances
        self._outlines[place], self._seconds[place], self._worth[place] = outline, frame.seconds, STILL + live
        self._frames[place] = frame

    def frames(self, *, repeated: bool) -> list[Frame]:
        """Those within the budget, in order; without `repeated` not those that stand still as one before them does."""
        if len(self._frames) > self._budget:
            self._let_go()
        shown: list[int] = []
        for place in self._frames:
            is_live = self._worth[place] > STILL + SAME
            if repeated or is_live or (_changes(self._outlines[shown], self._outlines[place]) > SAME).all():
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


SCENE_MEMORY = 4
"""Frames that a new one is compared with."""
SCENE_CHANGED = 0.3
"""The difference of outlines from which on a scene can be another. Light that is switched on stays below."""
SCENE_TONES = 0.2
"""The difference of tones that weighs as much as that of two pictures that have nothing in common."""


class SceneWatch:
    """Where a new scene begins, told from glances: `watch(frame)` is True when it does. It never looks ahead.

    A frame is strange when it is unlike each of the last few in what is where (outlines) and in how much there is of
    each grey value (tones), which motion leaves alone. A new scene begins with the second strange frame in a row, so
    that a flash is none. Slow changes of light and slow fades are none either: each frame is like those before it.
    """

    def __init__(self, *, patience: int = 2) -> None:
        """patience: with which strange frame in a row a new scene begins."""
        if patience < 1:
            raise BadPicker(f"patience is {patience}: 1 (a flash is a scene, too) or more is possible")
        self._patience = patience
        self._seen: deque[tuple[Array, Array]] = deque(maxlen=SCENE_MEMORY)
        self._strange: list[tuple[Array, Array]] = []

    def __call__(self, frame: Frame) -> bool:
        look = _outline(frame.glance()), _tones(frame.glance())
        if not self._seen or any(_is_alike(look, other) for other in self._seen):
            self._seen.append(look)
            self._strange.clear()
            return False
        self._strange.append(look)
        if len(self._strange) < self._patience:
            return False
        self._seen.clear()
        self._seen.extend(self._strange)
        self._strange.clear()
        return True


def _is_alike(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    outlines, tones = (float(_differences(mine[None], its)[0]) for mine, its in zip(one, other, strict=True))
    return outlines < SCENE_CHANGED or outlines + tones / SCENE_TONES < 1


def _outline(glance: Array) -> Array:
    """What is where, without the light it stands in: the glance at half its size, of mean 0 and of norm 1.

    The norm is less where the contrast is faint. (56, 56) -> (28 * 28,)
    """
    quarters = glance.reshape(OUTLINE_SIZE, 2, OUTLINE_SIZE, 2).mean(axis=(1, 3), dtype=np.float32).ravel()
    quarters -= quarters.mean()
    return np.asarray(quarters / math.sqrt(quarters @ quarters + quarters.size * FAINTEST_CONTRAST**2))


def _tones(glance: Array) -> Array:
    """How much of a glance has each of 16 tones from black to white, as square roots of shares: of norm 1. -> (16,)"""
    return np.asarray(np.sqrt(np.bincount(glance.ravel() // 16, minlength=16) / glance.size))


def _differences(vectors: Array, vector: Array) -> Array:
    """vectors: (n, D), vector: (D,), of norm 1 -> 1 − cosine: (n,), 0 for equals, 1 where nothing is in common"""
    return np.asarray(((vectors - vector) ** 2).sum(axis=1) / 2)


def _changes(outlines: Array, outline: Array) -> Array:
    """outlines: (n, D), outline: (D,) -> how much has changed: (n,), 0 to 1"""
    differences = _differences(outlines, outline)
    return np.asarray(differences / (differences + HALF_CHANGED))


def _picked(frame: Frame, probability: float | None = None) -> tuple[Frame, Pick]:
    return frame, Pick(frame.index, frame.seconds, probability, frame.number)


def _checked(k: int) -> int:
    if k < 1:
        raise BadPicker(f"k is {k}: at least 1 frame has to be picked")
    return k


def _cluster(points: Array, k: int, generator: np.random.Generator) -> Array:
    """points: (n, D), k <= n -> centres: (k, D) by k-means++ and Lloyd's algorithm"""
    centres: Array = points[[generator.integers(len(points))]]  # a copy: the centres move
    while len(centres) < k:
        nearest = _squared_distances(points, centres).min(axis=1)
        # Where all points coincide with a centre (a still image), any of them will do.
        weights = nearest / nearest.sum() if nearest.sum() > 0 else None
        centres = np.vstack([centres, points[generator.choice(len(points), p=weights)]])
    labels = None
    for _ in range(MAX_LLOYD_STEPS):
        following = _squared_distances(points, centres).argmin(axis=1)
        if labels is not None and (following == labels).all():
            break
        labels = following
        for j in np.unique(labels):  # a centre that lost all its points stays where it was
            centres[j] = points[labels == j].mean(axis=0)
    return centres


def _nearest(points: Array, centres: Array) -> list[int]:
    """For each centre the position of the nearest point that no earlier centre has taken."""
    distances = _squared_distances(points, centres)
    taken: list[int] = []
    for j in range(len(centres)):
        taken.append(int(distances[:, j].argmin()))
        distances[taken[-1]] = np.inf
    return taken


def _squared_distances(points: Array, centres: Array) -> Array:
    """points: (n, D), centres: (k, D) -> (n, k)"""
    distances: Array = np.stack([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
    return distances
