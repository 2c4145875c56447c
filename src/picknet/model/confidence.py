"""The confidence of a caption: the probability that it is good, fitted on clips that have captions by people.

A caption is good when its CIDEr against the clip's reference captions is above 0.5. The only input is the mean
log-probability of its words, which costs nothing; entropies, lengths, picks and the margin over other sentences added
nothing significant on a hundred clips. Platt scaling makes it a probability: two numbers in the model's card.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.errors import PicknetError

Array = NDArray[Any]

GOOD_CIDER = 0.5
"""A caption with a CIDEr above this is good; 1.0 is printed as 100 in the tables."""
MIN_OF_A_KIND = 10
"""A calibration needs this many good captions, and this many bad ones."""
NUM_FOLDS = 10
NUM_BINS = 5


class BadCalibration(PicknetError):
    """Clips that no confidence can be fitted on, or a card with an invalid confidence."""


@dataclass(frozen=True)
class Confidence:
    """P(good) = 1 / (1 + exp(-(bias + slope · m))), m the mean log-probability of a caption's words and its <eos>."""

    bias: float
    slope: float

    @classmethod
    def from_card(cls, card: Mapping[str, Any], path: Path) -> "Confidence | None":
        """The confidence in a model's card, read from this path; None if the model is not calibrated."""
        if (stored := card.get("confidence")) is None:
            return None
        try:
            bias, slope = float(stored["bias"]), float(stored["slope"])
        except (TypeError, KeyError, ValueError, OverflowError):
            bias = slope = math.nan
        if not math.isfinite(bias) or not math.isfinite(slope):
            raise BadCalibration(f"{path}: confidence needs two numbers, bias and slope; remove it, calibrate again")
        return cls(bias, slope)

    def of(self, text: str, log_probability: float) -> float:
        """The probability that a caption is good, given the log-probability of all its words and its <eos>."""
        return float(self.at(np.array([mean_log_probability(text, log_probability)]))[0])

    def at(self, means: Array) -> Array:
        """means: (n,) -> probabilities (n,)"""
        # The logistic function, written with tanh, which cannot overflow.
        probabilities: Array = 0.5 + 0.5 * np.tanh((self.bias + self.slope * means) / 2)
        return probabilities


@dataclass(frozen=True)
class Bin:
    """The clips whose confidence is in one part of the range from 0 to 1."""

    num_clips: int
    confidence: float
    """Their mean confidence."""
    good: float
    """The share of them whose captions are good: equal to the confidence if it is well calibrated."""


@dataclass(frozen=True)
class Calibration:
    """A fitted confidence, and its quality on clips it was not fitted on, by cross-validation."""

    confidence: Confidence
    num_clips: int
    num_good: int
    bins: tuple[Bin, ...]
    """Those with at least one clip, in ascending order."""
    auc: float
    """The probability that a good caption gets a higher confidence than a bad one."""

    @property
    def ece(self) -> float:
        """The expected calibration error: |confidence - share of good captions| of a clip's bin, mean over clips."""
        return sum(bin.num_clips * abs(bin.confidence - bin.good) for bin in self.bins) / self.num_clips

    def as_json(self) -> dict[str, Any]:
        """The facts that go into the model's card."""
        return {
            "bias": round(self.confidence.bias, 4),
            "slope": round(self.confidence.slope, 4),
            "good": f"CIDEr above {GOOD_CIDER}",
            "clips": self.num_clips,
            "good_clips": self.num_good,
            "ece": round(self.ece, 4),
            "auc": round(self.auc, 4),
        }


def mean_log_probability(text: str, log_probability: float) -> float:
    """The mean over a caption's words and its <eos>."""
    return log_probability / (len(text.split()) + 1)


def calibrate(captions: Mapping[str, tuple[str, float]], references: Mapping[str, Sequence[str]]) -> Calibration:
    """Fit a confidence. captions: clip -> (text, log-probability); references: clip -> captions by people.

    Its quality is measured by 10-fold cross-validation: each clip is scored by a fit without its fold. A fold is a run
    of consecutive clips, since neighbours in a data set are often cut from one film.
    """
    # Imported late: captioning needs neither.
    from picknet.metrics import Cider
    from picknet.text import tokenise

    scores = Cider({clip: [tokenise(one) for one in references[clip]] for clip in captions}).scores(
        list(captions), [tokenise(text) for text, _ in captions.values()]
    )
    good = scores > GOOD_CIDER
    num_good = int(good.sum())
    if min(num_good, len(good) - num_good) < MIN_OF_A_KIND:
        raise BadCalibration(
            f"{num_good} good and {len(good) - num_good} bad captions (good: CIDEr above {GOOD_CIDER}): "
            f"at least {MIN_OF_A_KIND} of each kind are needed to calibrate; take a larger split"
        )
    means = np.array([mean_log_probability(*caption) for caption in captions.values()])
    held_out = np.empty(len(good))
    for fold in np.array_split(np.arange(len(good)), NUM_FOLDS):
        rest = np.delete(np.arange(len(good)), fold)
        held_out[fold] = fit(means[rest], good[rest]).at(means[fold])
    return Calibration(fit(means, good), len(good), num_good, calibration_bins(held_out, good), auc(held_out, good))


def fit(means: Array, good: Array) -> Confidence:
    """Maximise the likelihood by Newton's method; means: (n,), good: (n,) bool.

    As in Platt's paper the targets are not 1 and 0 but the rule of succession's estimates: a few clips that happen to
    be perfectly separated do not give a confidence that is always 0 or 1.
    """
    num_good, num_bad = int(good.sum()), int((~good).sum())
    targets = np.where(good, (num_good + 1) / (num_good + 2), 1 / (num_bad + 2))
    inputs = np.column_stack([np.ones(len(means)), means])  # (n, 2)

    def loss(weights: Array) -> float:
        logits = inputs @ weights
        return float((np.logaddexp(0, logits) - targets * logits).sum())

    weights = np.zeros(2)
    for _ in range(100):
        probabilities = Confidence(*weights).at(means)
        gradient = inputs.T @ (probabilities - targets)
        curvature = (inputs.T * (probabilities * (1 - probabilities))) @ inputs
        # If all means are equal the curvature is singular; the pseudo-inverse gives one of many equally good steps.
        step = np.linalg.pinv(curvature, hermitian=True) @ gradient
        while loss(weights - step) > loss(weights):  # overshot
            step /= 2
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return Confidence(*weights.tolist())


def calibration_bins(confidences: Array, good: Array) -> tuple[Bin, ...]:
    """The clips in five bins of equal width, empty ones left out; confidences: (n,), good: (n,) bool."""
    places = np.minimum((confidences * NUM_BINS).astype(int), NUM_BINS - 1)
    members = [places == place for place in np.unique(places)]
    return tuple(Bin(int(m.sum()), float(confidences[m].mean()), float(good[m].mean())) for m in members)


def auc(confidences: Array, good: Array) -> float:
    """The share of (good, bad) pairs of captions in which the good one has the higher confidence; a tie counts half."""
    difference = confidences[good][:, None] - confidences[~good]
    return float((difference > 0).mean() + 0.5 * (difference == 0).mean())
