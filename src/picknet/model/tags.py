"""The words that people would use for the picks, judged by the CNN's features alone: a second opinion on a caption.

`tags.safetensors` is an optional part of a model folder, learned by `study/tag_learning.py`. A caption whose words are
not those to expect is seldom good, however likely the decoder finds it: so they count in its confidence and, where a
style has a weight for them, in the choice among the sentences that the search finds.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.model.folder import TAGS, BadModel, ModelFolder, last_line

Array = NDArray[Any]

LOWEST_SHARE = 1e-3
"""The least share of captions that a word is expected in: a linear function knows no limits."""
CALIBRATE_AGAIN = "calibrate the model again"


@dataclass(frozen=True)
class Tags:
    """A linear function from the features of a clip's picks to the share of its captions that have each word."""

    words: Sequence[str]
    """As `content_words` shortens them."""
    shares: Array
    """(words,): the share of captions that have each word, mean over clips."""
    mean: Array
    """(feature,): the mean features, of length 1 for each clip."""
    weights: Array
    """(feature, words)"""

    def expected(self, features: Array) -> Array:
        """How much more often than usual each word is to be expected; rare words count more. -> (words,)

        features: (feature,), the mean over the cells of all picks, or any multiple; none are expected if they are 0.
        """
        if not (length := float(np.linalg.norm(features))):
            return np.zeros_like(self.shares)
        # Not as a product of matrices: BLAS would share it among threads, which then spin on the cores that decode.
        shares = self.shares + np.einsum("f,fw->w", features / length - self.mean, self.weights)
        return np.asarray((np.clip(shares, LOWEST_SHARE, 1.0) - self.shares) * self._rarity)

    def agreement(self, expected: Array, content: Collection[str]) -> float:
        """The cosine of the words of a caption and the `expected` ones; 0 for a caption without any of the words."""
        said = [self._places[word] for word in content if word in self._places]
        lengths = np.linalg.norm(expected) * np.linalg.norm(self._rarity[said])
        return float(expected[said] @ self._rarity[said] / lengths) if lengths else 0.0

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    @cached_property
    def _rarity(self) -> Array:
        return np.asarray(-np.log(self.shares + LOWEST_SHARE))

    def save(self, path: Path) -> None:
        from safetensors.numpy import save

        words = np.frombuffer("\n".join(self.words).encode(), np.uint8)
        weights = self.weights.astype(np.float16)
        path.write_bytes(save({"words": words, "shares": self.shares, "mean": self.mean, "weights": weights}))

    @classmethod
    def of(cls, folder: ModelFolder) -> "Tags | None":
        """Those of a model folder; None if it has none."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = folder.path / TAGS
        if not path.is_file():
            return None
        try:
            tensors = load(folder.read(TAGS))
            words = tensors.pop("words").tobytes().decode().split("\n")
            shares, mean, weights = (tensors[name].astype(np.float32) for name in ("shares", "mean", "weights"))
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise BadModel(f"{path}: is damaged ({last_line(error)}); {CALIBRATE_AGAIN}") from error
        if shares.shape != (len(words),) or mean.ndim != 1 or weights.shape != (len(mean), len(words)):
            raise BadModel(f"{path}: the sizes of its tensors do not fit each other; {CALIBRATE_AGAIN}")
        limit = np.finfo(np.float16).max
        in_range = all((np.abs(array) <= limit).all() for array in (mean, weights))
        if not in_range or not ((shares >= 0) & (shares <= 1)).all():
            raise BadModel(f"{path}: holds what is not a number, or is out of range; {CALIBRATE_AGAIN}")
        return cls(words, shares, mean, weights)
