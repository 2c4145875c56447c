"""The baselines: pickers that follow a fixed rule.

Every n-th, a coin, scene changes and "all of them" decide frame by frame, so they can follow a live stream. Uniform,
random and k-means read the last frame before they yield the first.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from fractions import Fraction
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.picking.picker import BadPicker, Pick, Plan, checked_k, picked
from picknet.video.frame import Frame, middles

Array = NDArray[Any]

MAX_LLOYD_STEPS = 100
"""Lloyd's algorithm converges in a few steps on 30 frames; this bounds the worst case."""


class AllPicker:
    """Every frame: the paper's baseline that encodes all samples."""

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        yield from map(picked, frames)


class CoinPicker:
    """The first frame, then each one with the same probability: about half of them, as the paper's "random" does.

    One generator serves all videos, so the picks of a video depend on the seed and on all videos before it.
    """

    is_random = True

    def __init__(self, probability: float = 0.5, *, seed: int | np.random.Generator = 0) -> None:
        if not 0 <= probability <= 1:
            raise BadPicker(f"probability is {probability}: from 0 to 1 is possible")
        self.probability = probability
        self._generator = np.random.default_rng(seed)

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        for position, frame in enumerate(frames):
            if position == 0 or self._generator.random() < self.probability:
                yield picked(frame)


class EveryNthPicker:
    """Frame ⌊(i + ½) n⌋ for i = 0, 1, 2 …: the middle of each stretch of n frames, whatever the length of the video.

    n need not be an integer. For a video of exactly k stretches these are the frames of `UniformPicker(k)`. A video
    that ends before the first of them gets its last frame, since every video needs a pick.
    """

    def __init__(self, n: float) -> None:
        if not 1 <= n < math.inf:
            raise BadPicker(f"n is {n}: 1 (pick all) or more is possible")
        self.n = Fraction(n).limit_denominator(1000)  # exactly 30 / 7, not the nearest float

    def plan(self, count: int) -> Plan:
        positions = list(itertools.takewhile(lambda position: position < count, self._positions()))
        return Plan(count, dict.fromkeys(positions or [count - 1]))

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
        return ((2 * i + 1) * self.n // 2 for i in itertools.count())


class SceneChangePicker:
    """The first frame, then each whose glance differs enough from the glance of the last picked frame.

    A frame is picked if the mean absolute difference, in grey values from 0 to 255, is above `change`.
    """

    def __init__(self, change: float) -> None:
        if not 0 <= change <= 255:
            raise BadPicker(f"change is {change}: from 0 to 255 grey values are possible")
        self.change = change

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        template: Array | None = None
        for frame in frames:
            glance = frame.glance().astype(np.int16)
            if template is None or np.abs(glance - template).mean() > self.change:
                template = glance
                yield picked(frame)


class UniformPicker:
    """k evenly spaced frames: the centres of k equal parts, or with `ends` from the first frame to the last."""

    looks_ahead = True

    def __init__(self, k: int, *, ends: bool = False) -> None:
        self.k = checked_k(k)
        self._ends = ends

    def plan(self, count: int) -> Plan:
        return Plan(count, dict.fromkeys(self._positions(count)))

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        all_frames = list(frames)
        yield from (picked(all_frames[position]) for position in self._positions(len(all_frames)))

    def _positions(self, count: int) -> list[int]:
        k = min(self.k, count)
        if self._ends and k > 1:
            # i (n − 1) / (k − 1), rounded half up, in integer arithmetic.
            return [(2 * i * (count - 1) + k - 1) // (2 * (k - 1)) for i in range(k)]
        return middles(count, k)


class RandomPicker:
    """k frames, each set of k equally likely. One generator serves all videos, as in `CoinPicker`."""

    looks_ahead = True
    is_random = True

    def __init__(self, k: int, *, seed: int | np.random.Generator = 0) -> None:
        self.k = checked_k(k)
        self._generator = np.random.default_rng(seed)

    def plan(self, count: int) -> Plan:
        return Plan(count, dict.fromkeys(self._positions(count)))

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        all_frames = list(frames)
        yield from (picked(all_frames[position]) for position in self._positions(len(all_frames)))

    def _positions(self, count: int) -> list[int]:
        """Draws new positions on each call."""
        if not count:
            return []
        return sorted(self._generator.choice(count, size=min(self.k, count), replace=False).tolist())


class KMeansPicker:
    """The paper's k-means: cluster the CNN features of all frames and pick the frame nearest to each centre.

    Every frame goes through the CNN, so nothing is saved: it is a baseline only.
    """

    looks_ahead = True
    is_random = True

    def __init__(self, k: int, *, features: Callable[[Frame], Array], seed: int | np.random.Generator = 0) -> None:
        """features: a function frame -> feature (D,), such as `Captioner.feature`."""
        self.k = checked_k(k)
        self._features = features
        self._generator = np.random.default_rng(seed)

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        all_frames = list(frames)
        if not all_frames:
            return
        points = np.stack([np.asarray(self._features(frame), dtype=np.float64) for frame in all_frames])
        centres = cluster(points, min(self.k, len(all_frames)), self._generator)
        yield from (picked(all_frames[position]) for position in sorted(nearest_points(points, centres)))


def cluster(points: Array, k: int, generator: np.random.Generator) -> Array:
    """points: (n, D), k <= n -> centres: (k, D) by k-means++ and Lloyd's algorithm"""
    centres: Array = points[[generator.integers(len(points))]]  # a copy: the centres move
    while len(centres) < k:
        nearest = squared_distances(points, centres).min(axis=1)
        # If every point coincides with a centre (a still image), draw any of them.
        weights = nearest / nearest.sum() if nearest.sum() > 0 else None
        centres = np.vstack([centres, points[generator.choice(len(points), p=weights)]])
    labels = None
    for _ in range(MAX_LLOYD_STEPS):
        new_labels = squared_distances(points, centres).argmin(axis=1)
        if labels is not None and (new_labels == labels).all():
            break
        labels = new_labels
        for j in np.unique(labels):  # a centre without points stays where it is
            centres[j] = points[labels == j].mean(axis=0)
    return centres


def nearest_points(points: Array, centres: Array) -> list[int]:
    """For each centre, the position of the nearest point not taken by an earlier centre."""
    distances = squared_distances(points, centres)
    taken: list[int] = []
    for j in range(len(centres)):
        taken.append(int(distances[:, j].argmin()))
        distances[taken[-1]] = np.inf
    return taken


def squared_distances(points: Array, centres: Array) -> Array:
    """points: (n, D), centres: (k, D) -> (n, k)"""
    distances: Array = np.stack([((points - centre) ** 2).sum(axis=1) for centre in centres], axis=1)
    return distances
