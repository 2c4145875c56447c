"""Intervals by bootstrap over clips: the spread of a mean when the clips are drawn again with replacement."""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

NUM_RESAMPLES = 2000
PERCENTILES = (2.5, 97.5)


class Interval(NamedTuple):
    """The ends of a 95 % interval."""

    low: float
    high: float


def resamples(num_clips: int, *, seed: int) -> Array:
    """The share of each clip in each resample: (NUM_RESAMPLES, clips), rows that sum to 1."""
    generator = np.random.default_rng([seed, 2])
    return generator.multinomial(num_clips, np.full(num_clips, 1 / num_clips), size=NUM_RESAMPLES) / num_clips


def interval(values: Array) -> Interval:
    """values: (resamples,)"""
    low, high = np.percentile(values, PERCENTILES)
    return Interval(float(low), float(high))
