"""How well a sentence fits what is seen: both become vectors of one space, close where they belong together.

The space is that of a canonical correlation analysis, the directions in which features and words go together most,
learned for each style by `study/tag_learning.py` and stored with the tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


@dataclass(frozen=True)
class Match:
    """Two linear functions, from features and from words to the space, in whole numbers that are to be scaled."""

    words: Sequence[str]
    mean: Array
    """(feature,): the usual features, of length 1."""
    features: Array
    """(feature, dimension) int8"""
    feature_scales: Array
    """(dimension,)"""
    vectors: Array
    """(words, dimension) int8"""
    scales: Array
    """(words,)"""
    usual: Array
    """(dimension,): the vector of the usual sentence."""

    def seen(self, features: Array) -> Array:
        """The vector of what is seen, of length 1, or 0 for no features. features: as for `Tags.expected`."""
        if not np.linalg.norm(features):
            return np.zeros_like(self.usual)
        return _unit(beyond_usual(features, self.mean, self._features) * self.feature_scales)

    def of(self, seen: Array, sentence: Sequence[str]) -> float:
        """The cosine of the angle between what is `seen` and a sentence, its words: -1 to 1. 0 if no word is known."""
        distinct = dict.fromkeys(sentence)  # in their order, so that sums are the same in every run
        places = [self._places[word] for word in distinct if word in self._places]
        if not places:
            return 0.0
        said = self.scales[places] @ self.vectors[places] / np.sqrt(len(distinct))
        return float(seen @ _unit(said - self.usual))

    def tensors(self) -> dict[str, Array]:
        """By the names of the fields, to be stored."""
        return {"words": as_bytes(self.words)} | {name: getattr(self, name) for name in (*_WHOLE, *_REAL)}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> "Match":
        """Raises an ordinary error where they are no such thing."""
        words = from_bytes(tensors["words"])
        whole = {name: tensors[name].astype(np.int8, casting="safe", copy=False) for name in _WHOLE}
        match = cls(words, **whole, **{name: tensors[name].astype(np.float32) for name in _REAL})
        (num_features, dimension), num_words = match.features.shape, len(words)
        of_features = [match.mean.shape, match.feature_scales.shape, match.usual.shape]
        of_words = [match.vectors.shape, match.scales.shape]
        fitting = [(num_features,), (dimension,), (dimension,)], [(num_words, dimension), (num_words,)]
        if (of_features, of_words) != fitting:
            raise ValueError("the sizes of a match's tensors do not fit each other")
        if not all((np.abs(getattr(match, name)) <= np.finfo(np.float16).max).all() for name in _REAL):
            raise ValueError("a match holds what is not a number, or is out of range")
        return match

    @cached_property
    def _features(self) -> Array:
        return self.features.astype(np.float32)

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}


_WHOLE = ("features", "vectors")
_REAL = ("mean", "feature_scales", "scales", "usual")


def beyond_usual(features: Array, mean: Array, weights: Array) -> Array:
    """A linear function, (feature, n) -> (n,), of how features, made to have length 1, differ from the mean ones."""
    # Not as a product of matrices: BLAS would share it among threads, which then spin on the cores that decode.
    return np.asarray(np.einsum("f,fn->n", features / np.linalg.norm(features) - mean, weights))


def as_bytes(words: Sequence[str]) -> Array:
    """Words as a tensor that can be stored."""
    return np.frombuffer("\n".join(words).encode(), np.uint8)


def from_bytes(stored: Array) -> list[str]:
    return stored.tobytes().decode().split("\n")


def _unit(vector: Array) -> Array:
    length = np.linalg.norm(vector)
    return np.asarray(vector / length if length else vector)
