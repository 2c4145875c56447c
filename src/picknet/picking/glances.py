"""What two glances have in common: outlines, tones, and the differences between them."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.video.frame import GLANCE_SIZE

Array = NDArray[Any]


OUTLINE_SIZE = GLANCE_SIZE // 2
"""Height and width of an outline: a mean over 2×2 values has half the noise."""
FAINTEST_CONTRAST = 8.0
"""Grey values: in a scene of less contrast, noise is no longer made larger with the scene."""
HALF_CHANGED = 0.03
"""The difference of outlines that counts as half a change. Noise and compression stay far below it, and more than a few
times as much is all the same: what is happening matters, not how much of the picture is."""


def outline(glance: Array) -> Array:
    """What is where, without the light it stands in: the glance at half its size, of mean 0 and of norm 1.

    The norm is less where the contrast is faint. (56, 56) -> (28 * 28,)
    """
    quarters = glance.reshape(OUTLINE_SIZE, 2, OUTLINE_SIZE, 2).mean(axis=(1, 3), dtype=np.float32).ravel()
    quarters -= quarters.mean()
    return np.asarray(quarters / math.sqrt(quarters @ quarters + quarters.size * FAINTEST_CONTRAST**2))


def tones(glance: Array) -> Array:
    """How much of a glance has each of 16 tones from black to white, as square roots of shares: of norm 1. -> (16,)"""
    return np.asarray(np.sqrt(np.bincount(glance.ravel() // 16, minlength=16) / glance.size))


def differences(vectors: Array, vector: Array) -> Array:
    """vectors: (n, D), vector: (D,), of norm 1 -> 1 − cosine: (n,), 0 for equals, 1 where nothing is in common"""
    return np.asarray(((vectors - vector) ** 2).sum(axis=1) / 2)


def changes(outlines: Array, outline: Array) -> Array:
    """outlines: (n, D), outline: (D,) -> how much has changed: (n,), 0 to 1"""
    apart = differences(outlines, outline)
    return np.asarray(apart / (apart + HALF_CHANGED))
