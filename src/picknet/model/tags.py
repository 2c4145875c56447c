"""The words that people would use for the picks, judged by the CNN's features alone: a second opinion on a caption.

`tags.safetensors` is an optional part of a model folder, learned by `study/tag_learning.py`. A caption whose words are
not those to expect is seldom good, however likely the decoder finds it: so they count in its confidence and, where a
style has a weight for them, in the choice among the sentences that the search finds. The forecast for a style counts in
the confidence alone: what has chosen a sentence judges it less well. The match for a style, kept in the same file, may
do both; the critic for a style, kept there, too, is one more judge.
"""

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.model.critic import Critic
from picknet.model.folder import TAGS, BadModel, ModelFolder, last_line
from picknet.model.match import Match, as_bytes, beyond_usual, from_bytes

Array = NDArray[Any]

LOWEST_SHARE = 1e-3
"""The least share of captions that a word is expected in: a linear function knows no limits."""
CALIBRATE_AGAIN = "calibrate the model again"
_OF_MATCH, _OF_CRITIC = ".match", ".critic"
"""End what the names of a match's and a critic's tensors begin with, after the data set; those of a forecast begin with
the data set alone."""


@dataclass(frozen=True)
class _Expectation:
    """A linear function from the features of a clip's picks to how much of each word its captions have."""

    words: Sequence[str]
    shares: Array
    """(words,): mean over clips."""
    mean: Array
    """(feature,): the mean features, of length 1 for each clip."""
    weights: Array
    """(feature, words)"""

    def _beyond(self, features: Array, places: Any = slice(None)) -> Array:
        """What is added to the words' shares, or to those at some places. features: (feature,), of a length above 0."""
        return beyond_usual(features, self.mean, self.weights[:, places].astype(np.float32, copy=False))

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}

    def _tensors(self) -> dict[str, Array]:
        return {
            "words": as_bytes(self.words),
            "shares": self.shares,
            "mean": self.mean,
        }


@dataclass(frozen=True)
class Forecast(_Expectation):
    """How similar a caption will be to captions by people in the style of one data set: the CIDEr of its single words.

    The share of a word is how much of a caption it makes up: its rarity, as often as the caption has it, over the
    length of the vector of all these; mean over a clip's captions. So the share of a caption's words, weighted in the
    same way, is the mean cosine to the captions of a clip, which CIDEr is made of.
    """

    scales: Array
    """(words,): the weights of a word are whole numbers, int8, to be multiplied by this."""
    rarity: Array
    """(words,): log(number of clips / number of those whose captions have the word)."""

    def of(self, features: Array, sentence: Sequence[str]) -> float:
        """The cosine to expect, 0 to 1. features: as for `Tags.expected`; sentence: its words, all of them."""
        counts = Counter(sentence)
        said = [word for word in counts if word in self._places]
        if not np.linalg.norm(features) or not said:
            return 0.0
        places = [self._places[word] for word in said]
        shares = self.shares[places] + self._beyond(features, places) * self.scales[places]
        weighted = np.array([counts[word] for word in said]) * self.rarity[places]
        # Words that are not among those known are as rare as the rarest.
        others = sum(count**2 for word, count in counts.items() if word not in self._places)
        whole = math.hypot(float(np.linalg.norm(weighted)), math.sqrt(others) * float(self.rarity.max()))
        return float(np.clip(shares, 0.0, 1.0) @ weighted / whole) if whole else 0.0

    def _tensors(self) -> dict[str, Array]:
        return {**super()._tensors(), "weights": self.weights, "scales": self.scales, "rarity": self.rarity}


@dataclass(frozen=True)
class Tags(_Expectation):
    """The share of a clip's captions that have each word; words are those that `content_words` makes."""

    forecasts: Mapping[str, Forecast] = field(default_factory=dict)
    """By the data set in whose style captions are."""
    matches: Mapping[str, Match] = field(default_factory=dict)
    """The same."""
    critics: Mapping[str, Critic] = field(default_factory=dict)
    """The same."""

    def expected(self, features: Array) -> Array:
        """How much more often than usual each word is to be expected; rare words count more. -> (words,)

        features: (feature,), the mean over the cells of all picks, or any multiple; none are expected if they are 0.
        """
        if not np.linalg.norm(features):
            return np.zeros_like(self.shares)
        shares = np.clip(self.shares + self._beyond(features), LOWEST_SHARE, 1.0)
        return np.asarray((shares - self.shares) * self._rarity)

    def agreement(self, expected: Array, content: Collection[str]) -> float:
        """The cosine of the words of a caption and the `expected` ones; 0 for a caption without any of the words."""
        said = [self._places[word] for word in content if word in self._places]
        lengths = np.linalg.norm(expected) * np.linalg.norm(self._rarity[said])
        return float(expected[said] @ self._rarity[said] / lengths) if lengths else 0.0

    @cached_property
    def _rarity(self) -> Array:
        return np.asarray(-np.log(self.shares + LOWEST_SHARE))

    def save(self, path: Path) -> None:
        from safetensors.numpy import save

        tensors = {**self._tensors(), "weights": self.weights.astype(np.float16)}
        for name, forecast in self.forecasts.items():
            tensors |= {f"{name}.{part}": tensor for part, tensor in forecast._tensors().items()}
        for name, match in self.matches.items():
            tensors |= {f"{name}{_OF_MATCH}.{part}": tensor for part, tensor in match.tensors().items()}
        for name, critic in self.critics.items():
            tensors |= {f"{name}{_OF_CRITIC}.{part}": tensor for part, tensor in critic.tensors().items()}
        path.write_bytes(save(tensors))

    @classmethod
    def of(cls, folder: ModelFolder, *, feature_size: int, state_size: int) -> "Tags | None":
        """Those of a model folder; None if it has none. feature_size: of its CNN; state_size: of its decoder."""
        from safetensors import SafetensorError
        from safetensors.numpy import load

        path = folder.path / TAGS
        if not path.is_file():
            return None
        try:
            tensors = load(folder.read(TAGS))
            prefixes = sorted({name.rpartition(".")[0] for name in tensors if "." in name})
            forecasts = {
                name: Forecast(**_read(tensors, f"{name}."))
                for name in prefixes
                if not name.endswith((_OF_MATCH, _OF_CRITIC))
            }
            matches = {
                name.removesuffix(_OF_MATCH): Match.from_tensors(_under(tensors, f"{name}."))
                for name in prefixes
                if name.endswith(_OF_MATCH)
            }
            critics = {
                name.removesuffix(_OF_CRITIC): Critic.from_tensors(_under(tensors, f"{name}."))
                for name in prefixes
                if name.endswith(_OF_CRITIC)
            }
            tags = cls(**_read(tensors), forecasts=forecasts, matches=matches, critics=critics)
        except (SafetensorError, KeyError, ValueError, TypeError) as error:
            raise BadModel(f"{path}: is damaged ({last_line(error)}); {CALIBRATE_AGAIN}") from error
        for part in (tags, *forecasts.values()):
            _check(part, path)
        means = [part.mean for part in forecasts.values()] + [part.mean for part in matches.values()]
        for mean in (tags.mean, *means):
            if len(mean) != feature_size:
                raise BadModel(
                    f"{path}: was learned from {len(mean)} features, but the CNN has {feature_size}; {CALIBRATE_AGAIN}"
                )
        for critic in critics.values():
            if len(critic.states) != state_size:
                raise BadModel(
                    f"{path}: its critic was learned from states of {len(critic.states)} numbers, but those of the "
                    f"decoder have {state_size}; {CALIBRATE_AGAIN}"
                )
        # All of them are needed for every caption; of a forecast's, those of the caption's words alone.
        return replace(tags, weights=tags.weights.astype(np.float32))


def _under(tensors: Mapping[str, Array], prefix: str) -> dict[str, Array]:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}


def _read(tensors: Mapping[str, Array], prefix: str = "") -> dict[str, Any]:
    words = from_bytes(tensors[f"{prefix}words"])
    names = ("shares", "mean", *(("scales", "rarity") if prefix else ()))
    found = {name: tensors[prefix + name].astype(np.float32) for name in names}
    kind = np.int8 if prefix else np.float16
    return {"words": words, **found, "weights": tensors[f"{prefix}weights"].astype(kind, casting="safe", copy=False)}


def _check(part: _Expectation, path: Path) -> None:
    of_words = [part.shares, part.scales, part.rarity] if isinstance(part, Forecast) else [part.shares]
    num_words = len(part.words)
    fitting = all(array.shape == (num_words,) for array in of_words)
    if not fitting or part.mean.ndim != 1 or part.weights.shape != (len(part.mean), num_words):
        raise BadModel(f"{path}: the sizes of its tensors do not fit each other; {CALIBRATE_AGAIN}")
    limit = np.finfo(np.float16).max
    in_range = (part.weights.dtype == np.int8 or _is_finite(part.weights)) and (np.abs(part.mean) <= limit).all()
    at_least_0 = all((array >= 0).all() and (array <= limit).all() for array in of_words)
    if not in_range or not at_least_0 or not (part.shares <= 1).all():
        raise BadModel(f"{path}: holds what is not a number, or is out of range; {CALIBRATE_AGAIN}")


def _is_finite(halves: Array) -> bool:
    """halves: float16. By their bits, six times as fast as NumPy's own: an exponent of ones is no number."""
    return bool(((halves.view(np.uint16) & 0x7C00) != 0x7C00).all())
