"""Which frames to look at: the learned picker of the paper, and the plain ones it is compared with.

A picker is a lazy filter over frames. PickNet, every n-th, a coin, scene changes and "all of them" decide frame by
frame and never look ahead, so they can follow a live stream; uniform, random-k and k-means have to see the last frame
before they can name the first. A picker that need not look at frames at all can say beforehand which it will pick. The
budget's picker reads a video once and holds one frame more than it may pick, but names its picks only at the end, since
what is yet to come may be worth more.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.picking.picker import BadPicker, Pick, Plan, picked
from picknet.video.frame import Frame

Array = NDArray[Any]

MAX_LLOYD_STEPS = 100
"""Lloyd's algorithm settles in a handful of steps on 30 frames; this only bounds the worst case."""


class AllPicker:
    """Every frame: the paper's baseline that encodes all samples."""

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        yield from map(picked, frames)


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
                yield picked(frame)


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
                yield picked(frame)
        if frame is not None and not any_pick:
            yield picked(frame)

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
                yield picked(frame)


class UniformPicker:
    """k frames at even distances: the centres of k equal parts, or with `ends` from the very first to the very last."""

    def __init__(self, k: int, *, ends: bool = False) -> None:
        self._k = _checked(k)
        self._ends = ends

    def plan(self, count: int) -> Plan:
        return Plan(count, dict.fromkeys(self._positions(count)))

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        every = list(frames)
        yield from (picked(every[position]) for position in self._positions(len(every)))

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
        yield from (picked(every[position]) for position in self._positions(len(every)))

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
        yield from (picked(every[position]) for position in sorted(_nearest(points, centres)))


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
