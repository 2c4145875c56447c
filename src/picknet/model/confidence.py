"""The confidence of a caption: the probability that it is good, a CIDEr above 0.5 against captions by people.

It is a logistic function of what the search for the caption tells, `Signals`, and of the caption's words: one with
"guitar" is good more often than an equally likely one with "man". The weights are fitted for each style by
`study/calibration.py` and stored in the model's card, by the data set whose style it is.
"""

import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from picknet.errors import PicknetError
from picknet.model.sentences import Signals

SIGNALS = ("likelihood", "entropy", "agreement", "familiarity", "tags", "expectation", "forecast", "match", "critic")
"""Those of `Signals`; familiarity is log(state / typical state), and expectation and forecast count by their
logarithms, too. Only a model with tags has the last five."""
NEED_TAGS = frozenset({"tags", "expectation", "forecast", "match", "critic"})
LEAST_FORECAST = 0.02
"""Added to a forecast before its logarithm is taken, so that those far below this hardly differ."""
LOWEST = -100.0
"""Stands for -inf: the likelihood of no sentence, the familiarity of an empty state."""
DOUBTFUL = 0.5
"""A caption with a confidence below this is more likely bad than good."""
OWN_STYLE = "its own style"
"""What an entry of a card without a name is called in messages."""
UNNAMED = "own"
"""The same in a new card."""


def written(confidence: float, *, limit: float = DOUBTFUL) -> str:
    """For people: two digits, and more where these would reach the limit that it is below: 0.4986, not 0.50."""
    digits = 2
    while confidence < limit <= round(confidence, digits):
        digits += 2
    return f"{confidence:.{digits}f}"


class BadCalibration(PicknetError):
    """Clips that no confidence can be fitted on, or a card with an invalid confidence."""


@dataclass(frozen=True)
class Confidence:
    """P(good) = 1 / (1 + exp(-x)), where x is the bias, the weighted signals and the weights of the caption's words."""

    bias: float
    weights: Mapping[str, float]
    """By names of `SIGNALS`."""
    words: Mapping[str, float] = field(default_factory=dict)
    typical_state: float = 1.0
    """The mean length of the encoder's state, by which that of a caption is measured: each model has its own scale."""
    tags_weight: float = 0.0
    """Of the agreement with the tags, beside log P / length^exponent, in the choice among the sentences that the search
    finds: the confidence is fitted on captions that are chosen so."""
    match_weight: float = 0.0
    """The same, of the match."""

    @property
    def needs_tags(self) -> bool:
        return bool(self.tags_weight or self.match_weight or NEED_TAGS & self.weights.keys())

    def of(self, signals: Signals) -> float:
        """The probability that a caption is good."""
        return self.at(values(signals, typical_state=self.typical_state), signals.words)

    def at(self, told: Mapping[str, float], words: Iterable[str]) -> float:
        """told: the signals' `values`."""
        x = self.bias + sum(weight * told[name] for name, weight in self.weights.items())
        x += sum(self.words.get(word, 0.0) for word in words)
        return 0.5 + 0.5 * math.tanh(x / 2)  # the logistic function; tanh cannot overflow

    def to_dict(self) -> dict[str, Any]:
        return {
            "weights": {"bias": round(self.bias, 4)} | {name: round(one, 4) for name, one in self.weights.items()},
            "words": {word: round(weight, 3) for word, weight in self.words.items()},
            "typical_state": round(self.typical_state, 4),
            **({"tags_weight": self.tags_weight} if self.tags_weight else {}),
            **({"match_weight": self.match_weight} if self.match_weight else {}),
        }

    @classmethod
    def from_dict(cls, stored: Mapping[str, Any]) -> "Confidence":
        """From an entry of a card; raises an ordinary error where it is no such thing."""
        if "slope" in stored:  # an older card, whose confidence knew the likelihood alone
            stored = {"weights": {"bias": stored["bias"], "likelihood": stored["slope"]}}
        weights = {name: _finite(one) for name, one in stored["weights"].items()}
        if unknown := weights.keys() - {"bias", *SIGNALS}:
            raise ValueError(f"unknown signals {', '.join(unknown)}")
        words = {word: _finite(one) for word, one in stored.get("words", {}).items()}
        typical_state = _finite(stored.get("typical_state", 1.0))
        if typical_state <= 0:
            raise ValueError(f"typical_state is {typical_state}")
        choosing = {name: _finite(stored.get(name, 0.0)) for name in ("tags_weight", "match_weight")}
        return cls(weights.pop("bias"), weights, words, typical_state, **choosing)

    @classmethod
    def from_card(
        cls, card: Mapping[str, Any], path: Path, *, style: str | None = None, styles: Collection[str] = ()
    ) -> "Confidence | None":
        """The confidence for a style in a model's card, read from this path; None if it is not calibrated for that.

        styles: those that the model has beside its own.
        """
        stored = entries(card)
        own = own_entry(card, styles)
        if (name := style if style else own) not in stored:
            return None
        try:
            return cls.from_dict(stored[name])
        except (TypeError, KeyError, ValueError, OverflowError, AttributeError) as error:
            raise BadCalibration(
                f"{path}: the confidence of {name or OWN_STYLE} cannot be read; remove it, calibrate again "
                f"(needed: weights with a bias and any of {', '.join(SIGNALS)})"
            ) from error


def values(signals: Signals, *, typical_state: float) -> dict[str, float]:
    """The numbers that are weighted, by names of `SIGNALS`."""
    told = {
        "likelihood": max(signals.likelihood, LOWEST),
        "entropy": signals.entropy,
        "agreement": signals.agreement,
        "familiarity": _log(signals.state / typical_state),
    }
    if signals.tags is not None:
        told["tags"] = signals.tags
    if signals.expectation is not None:
        told["expectation"] = _log(signals.expectation)
    if signals.forecast is not None:
        told["forecast"] = _log(signals.forecast + LEAST_FORECAST)
    if signals.match is not None:
        told["match"] = signals.match
    if signals.critic is not None:
        told["critic"] = signals.critic
    return told


def entries(card: Mapping[str, Any]) -> dict[str | None, Any]:
    """What a card says about confidence, by data set; None for an old card, which did not name it."""
    stored = card.get("confidence")
    if stored is None:
        return {}
    return {None: stored} if not isinstance(stored, Mapping) or "bias" in stored else dict(stored)


def with_entry(
    card: Mapping[str, Any], dataset: str, facts: Mapping[str, Any], *, styles: Collection[str]
) -> dict[str, Any]:
    """A card with the confidence for captions in the style of a data set: its own where that is none of the others."""
    is_own = dataset not in styles
    kept = {name or UNNAMED: one for name, one in entries(card).items() if not is_own or name in styles}
    return {**card, "confidence": {dataset: dict(facts)} | kept if is_own else kept | {dataset: dict(facts)}}


def without_tags(card: Mapping[str, Any]) -> dict[str, Any]:
    """A card without the confidences that are made with tags: they do not hold for other tags."""
    kept = {
        name or UNNAMED: one
        for name, one in entries(card).items()
        if not isinstance(one, Mapping)
        or not (one.get("tags_weight") or one.get("match_weight") or NEED_TAGS & set(one.get("weights", ())))
    }
    return {**card, "confidence": kept}


def own_entry(card: Mapping[str, Any], styles: Collection[str]) -> str | None:
    """The name of the model's own style among those of its card's entries: the one that is no other style."""
    return next((name for name in entries(card) if name not in styles), None)


def _log(number: float) -> float:
    return math.log(number) if number > 0 else LOWEST


def _finite(number: Any) -> float:
    if not math.isfinite(value := float(number)):
        raise ValueError(f"{number} is not a finite number")
    return value
