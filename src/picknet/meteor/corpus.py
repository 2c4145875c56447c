"""METEOR of captions, one by one and together."""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.meteor.alignment import Aligner
from picknet.meteor.lexicon import Lexicon, MeteorFailed
from picknet.meteor.scores import Statistics, score

Array = NDArray[Any]


@dataclass(frozen=True)
class Meteor:
    """1.0 is what the tables print as 100."""

    corpus: float
    """The score of the corpus: computed from summed statistics, not the mean over the videos."""
    by_video: Array
    """(videos,)"""


def evaluate(captions: Iterable[tuple[str, Sequence[str]]], lexicon: Lexicon, *, seconds: float) -> Meteor:
    """METEOR of captions, each given with its references. Raises `MeteorFailed` after `seconds`."""
    end = time.monotonic() + seconds

    def check_time() -> None:
        if time.monotonic() > end:
            raise MeteorFailed(f"not finished after {seconds:g} s")

    statistics = []
    for candidate, references in captions:
        aligner = Aligner(lexicon, candidate, references, check_time)
        statistics.append(max(map(aligner.align, dict.fromkeys(references)), key=score))
    # A caption that is its reference word for word has no chunks as far as the corpus is concerned.
    chunks = sum(one.chunks for one in statistics if not one.is_perfect())
    counts = np.sum([one.counts for one in statistics], axis=0).tolist()
    return Meteor(score(Statistics(counts, chunks)), np.array([score(one) for one in statistics]))
