"""Hecate's rule, a baseline of the paper's published version (Song et al., "To Click or Not To Click: Automatic
Selection of Beautiful Thumbnails from Videos", CIKM 2016).

Frames that are dark, blurred or uniform are left out; the others are clustered by their colours and edges, and of each
cluster the stillest frame is picked, which differs least from those beside it. Nothing is learned, and no frame goes
through a CNN.

Its authors look at all frames, and also leave out those in transitions between shots; here it gets the sampled frames,
as every picker does. The limits, which they chose by hand, are ours.
"""

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from picknet.picking.picker import Pick, checked_k, picked
from picknet.picking.plain import cluster, squared_distances
from picknet.video.frame import Frame

Array = NDArray[Any]

SIDE = 128
"""Pixels of a side of the small pictures that are compared."""
DARKEST = 35.0
"""The mean luminance of a frame that is not dark, of 255."""
LEAST_SHARPNESS = 2.0
"""The mean gradient of a frame that is not blurred, in grey values a pixel."""
LARGEST_SHARE = 0.8
"""Of the pixels, in the fullest twentieth of 128 grey values, of a frame that is not uniform."""

_LUMINANCE = np.array([0.2126, 0.7152, 0.0722], np.float32)


class HecatePicker:
    """k frames, of each cluster the stillest; poor frames only if there are fewer than k others."""

    looks_ahead = True
    is_random = True

    def __init__(self, k: int, *, seed: int | np.random.Generator = 0) -> None:
        """seed: of k-means."""
        self.k = checked_k(k)
        self._generator = np.random.default_rng(seed)

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        all_frames = list(frames)
        if all_frames:
            pictures = np.stack([frame.pixels(SIDE) for frame in all_frames])
            yield from (picked(all_frames[position]) for position in sorted(self._positions(pictures)))

    def _positions(self, pictures: Array) -> list[int]:
        """pictures: (frames, SIDE, SIDE, 3) uint8 RGB -> the positions of the picks"""
        grey = pictures @ _LUMINANCE
        down, right = (np.asarray(np.gradient(grey, axis=axis)) for axis in (1, 2))
        good = np.flatnonzero(are_good(grey, down, right))
        changes = change_around(grey)
        chosen: list[int] = []
        if len(good):
            points = np.stack([describe(pictures[i], down[i], right[i]) for i in good])
            centres = cluster(points, min(self.k, len(good)), self._generator)
            clusters = squared_distances(points, centres).argmin(axis=1)
            chosen = [min(good[clusters == number], key=lambda i: changes[i]) for number in np.unique(clusters)]
        # Frames that are all alike form fewer clusters: then the stillest others, the good ones first.
        others = sorted(set(range(len(pictures))) - set(chosen), key=lambda i: (i not in good, changes[i]))
        return chosen + others[: max(self.k - len(chosen), 0)]


def are_good(grey: Array, down: Array, right: Array) -> Array:
    """Neither dark nor blurred nor uniform. grey, gradients down and to the right: (frames, SIDE, SIDE) -> (frames,)"""
    brightness = grey.mean(axis=(1, 2))
    sharpness = np.hypot(down, right).mean(axis=(1, 2))
    shares = np.stack([np.sort(np.histogram(frame, 128, (0, 256))[0])[-128 // 20 :].sum() for frame in grey]) / SIDE**2
    good: Array = (brightness >= DARKEST) & (sharpness >= LEAST_SHARPNESS) & (shares <= LARGEST_SHARE)
    return good


def change_around(grey: Array) -> Array:
    """The mean squared difference of each frame to those beside it. (frames, SIDE, SIDE) -> (frames,)"""
    steps = np.square(np.diff(grey, axis=0)).mean(axis=(1, 2))
    if not len(steps):
        return np.zeros(1)
    before, after = np.concatenate([steps[:1], steps]), np.concatenate([steps, steps[-1:]])
    around: Array = (before + after) / 2
    return around


def describe(picture: Array, down: Array, right: Array) -> Array:
    """Histograms of hue, saturation and value, and of the directions of edges, of the picture and of its quarters."""
    colours = np.asarray(Image.fromarray(picture).convert("HSV"))
    strength, direction = np.hypot(down, right), np.arctan2(down, right)
    half, parts = SIDE // 2, []
    for part in (np.s_[:, :], np.s_[:half, :half], np.s_[:half, half:], np.s_[half:, :half], np.s_[half:, half:]):
        for channel, bins in enumerate((16, 8, 8)):
            parts.append(_shares(np.histogram(colours[part][..., channel], bins, (0, 256))[0]))
        parts.append(_shares(np.histogram(direction[part], 8, (-np.pi, np.pi), weights=strength[part])[0]))
    return np.concatenate(parts)


def _shares(counts: Array) -> Array:
    shares: Array = counts / max(counts.sum(), 1e-9)
    return shares
