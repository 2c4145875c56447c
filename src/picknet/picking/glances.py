"""How different two glances are: by outline (what is where) and by tone (how much of each grey value)."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.video.frame import GLANCE_SIZE

Array = NDArray[Any]

OUTLINE_SIZE = GLANCE_SIZE // 2
"""Height and width of an outline. The mean over 2×2 values halves the noise."""
FAINTEST_CONTRAST = 8.0
"""Grey values. Outlines of scenes with less contrast are not scaled up to norm 1, since that would amplify noise."""
HALF_CHANGED = 0.03
"""The difference of outlines at which `changes` is ½. Noise and compression stay far below it. A few times as much
saturates: that something happens matters, not how much of the picture it fills."""


def outline(glance: Array) -> Array:
    """What is where, independent of the lighting: the glance at half its size, with mean 0 and norm 1.

    The norm is below 1 for faint contrasts. (56, 56) -> (28 * 28,)
    """
    means = glance.reshape(OUTLINE_SIZE, 2, OUTLINE_SIZE, 2).mean(axis=(1, 3), dtype=np.float32).ravel()
    means -= means.mean()
    return np.asarray(means / math.sqrt(means @ means + means.size * FAINTEST_CONTRAST**2))


def tones(glance: Array) -> Array:
    """The histogram over 16 tones from black to white, as square roots of shares, so of norm 1. (56, 56) -> (16,)"""
    return np.asarray(np.sqrt(np.bincount(glance.ravel() // 16, minlength=16) / glance.size))


def differences(vectors: Array, vector: Array) -> Array:
    """vectors: (n, D), vector: (D,), of norm 1 -> 1 − cosine: (n,), 0 for equal vectors, 1 for uncorrelated ones"""
    return np.asarray(((vectors - vector) ** 2).sum(axis=1) / 2)


def changes(outlines: Array, outline: Array) -> Array:
    """outlines: (n, D), outline: (D,) -> how much has changed: (n,), from 0 to 1"""
    distances = differences(outlines, outline)
    return np.asarray(distances / (distances + HALF_CHANGED))
