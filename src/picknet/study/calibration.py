"""Fitting a model's confidence on clips that were not trained on, and what it is worth on clips it was not fitted on.

A model has few such clips. Models of folds, trained by the same recipe on other parts of the training split, have as
many as there are training clips: the caption of each is written by the model that has not seen it.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner
from picknet.data.split import Clip, Missing, Split
from picknet.metrics import ONE_CLIP, Cider
from picknet.model.confidence import SIGNALS, BadCalibration, Confidence, values
from picknet.model.sentences import Signals
from picknet.model.tags import Forecast
from picknet.study.bootstrap import Interval, interval, resamples
from picknet.text import tokenise
from picknet.video.file import UnreadableVideo
from picknet.walk import evenly, open_source

Array = NDArray[Any]

GOOD_CIDER = 0.5
"""A caption with a CIDEr above this is good; 1.0 is printed as 100 in the tables."""
MIN_OF_A_KIND = 10
"""A calibration needs this many good captions, and this many bad ones."""
MIN_WORD_COUNT = 10
"""Captions that a word must be in to get a weight."""
PENALTY = 10.0
"""Of squared weights in the fit, for signals of variance 1 and for words: as if some more clips contradicted it."""
TRUSTED = {"forecast", "match"}
TRUSTED_PENALTY, PENALTY_BESIDE_TRUSTED = 1.0, 50.0
"""In place of `PENALTY`, for the signals of a style with a forecast: it predicts the CIDEr itself, and the others, but
for the match, only correct it, which takes many clips to learn. The critic predicts it better than either; beside it
all others, words as well, only correct."""
NUM_FOLDS = 10
NUM_BINS = 15
SURE = 0.7
"""The confidence above which a user would trust a caption."""


class Sample(NamedTuple):
    """A clip, the caption of a model that has not seen it, and what is known about that caption."""

    clip: Clip
    text: str
    signals: Signals


@dataclass(frozen=True)
class Bin:
    """Clips of similar confidence."""

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
    """As many clips in each, in ascending order."""
    own: Bin
    """The clips that the model itself has captioned: all of them, unless there are models of folds."""
    sure: Bin
    """The clips with a confidence above `SURE`."""
    auc: float
    """The probability that a good caption gets a higher confidence than a bad one."""
    auc_interval: Interval
    chance: float
    """The calibration error that a perfect confidence of the same values would show on as many clips, on average."""

    @property
    def ece(self) -> float:
        """The expected calibration error: |confidence - share of good captions| of a clip's bin, mean over clips."""
        return calibration_error(self.bins)

    def to_dict(self) -> dict[str, Any]:
        """The facts that go into the model's card."""
        return {
            **self.confidence.to_dict(),
            "good": f"CIDEr above {GOOD_CIDER}",
            "clips": self.num_clips,
            "good_clips": self.num_good,
            "auc": round(self.auc, 4),
            "auc_interval": [round(end, 4) for end in self.auc_interval],
            "ece": round(self.ece, 4),
            "ece_by_chance": round(self.chance, 4),
            "own": _bin_dict(self.own),
            "sure": {"above": SURE, **_bin_dict(self.sure)},
            "reliability": [_bin_dict(part) for part in self.bins],
        }


def describe(
    captioner: Captioner,
    split: Split,
    *,
    like: Captioner,
    forecasts: Mapping[Path, Forecast] | None = None,
    on_clip: Callable[[Clip], object] = lambda clip: None,
) -> tuple[list[Sample], list[Missing]]:
    """Captions of the clips of a split, and the clips that have none.

    forecasts: by the clip's file, in place of the captioner's own, which may have been learned from that clip.
    like: the model that is calibrated, whose picker, samples and beam are used: the model of a fold is a captioner,
    and need not have a picker.
    """
    samples, missing, writer = [], list(split.missing), captioner.describer.writer
    own = writer.forecast
    for clip in split.clips:
        writer.forecast = forecasts.get(clip.path, own) if forecasts else own
        try:
            with open_source(clip.path, evenly(like.config.video.num_frames), like.picker) as walk:
                described = captioner.describer.describe(walk.picks(), beam=like.config.beam)
        except UnreadableVideo as error:
            missing.append(Missing(clip.name, str(error)))
        else:
            if described:
                samples.append(Sample(clip, described.sentences[0].text, described.signals))
            else:
                missing.append(Missing(clip.name, "the picker picked none of its frames"))
        on_clip(clip)
    writer.forecast = own
    return samples, missing


def calibrate(
    own: Sequence[Sample],
    *folds: Sequence[Sample],
    tags_weight: float = 0.0,
    match_weight: float = 0.0,
    seed: int = 0,
) -> Calibration:
    """Fit a confidence. own: captions by the model itself; folds: by each of its models of folds; tags_weight and
    match_weight: with which they were chosen.

    Its quality is measured by 10-fold cross-validation: each clip is scored by a fit without its part. A part is a run
    of consecutive clips, since neighbours in a data set are often cut from one film.
    """
    if not own:
        raise BadCalibration("no clip that the model itself was not trained on: at least one is needed to calibrate")
    by_model = [samples for samples in (own, *folds) if samples]
    # Each model has its own scale of states.
    typical = [_typical_state(samples) for samples in by_model]
    told = [
        values(sample.signals, typical_state=state)
        for samples, state in zip(by_model, typical, strict=True)
        for sample in samples
    ]
    every = [sample for samples in by_model for sample in samples]
    words = [sample.signals.words for sample in every]
    good = _is_good(every)
    num_good = int(good.sum())
    if min(num_good, len(good) - num_good) < MIN_OF_A_KIND:
        why = f" ({ONE_CLIP})" if len(good) == 1 else ""
        raise BadCalibration(
            f"{num_good} good and {len(good) - num_good} bad captions (good: CIDEr above {GOOD_CIDER}): "
            f"at least {MIN_OF_A_KIND} of each kind are needed to calibrate; take a larger split{why}"
        )

    def fitted(rows: Array) -> Confidence:
        return fit([told[row] for row in rows], [words[row] for row in rows], good[rows], typical_state=typical[0])

    held_out, rows = np.empty(len(good)), np.arange(len(good))
    for part in np.array_split(rows, NUM_FOLDS):
        confidence = fitted(np.delete(rows, part))
        held_out[part] = [confidence.at(told[row], words[row]) for row in part]
    generator = np.random.default_rng([seed, 3])
    draws = (generator.random(len(good)) < held_out for _ in range(200))
    is_sure = held_out > SURE
    return Calibration(
        replace(fitted(rows), tags_weight=tags_weight, match_weight=match_weight),
        len(good),
        num_good,
        calibration_bins(held_out, good),
        _bin(held_out[: len(own)], good[: len(own)]),
        _bin(held_out[is_sure], good[is_sure]),
        auc(held_out, good),
        _auc_interval(held_out, good, seed=seed),
        float(np.mean([calibration_error(calibration_bins(held_out, drawn)) for drawn in draws])),
    )


def _is_good(samples: Sequence[Sample]) -> Array:
    """Document frequencies are those of all clips."""
    cider = Cider({sample.clip.name: [tokenise(one) for one in sample.clip.captions] for sample in samples})
    scores = cider.scores([sample.clip.name for sample in samples], [tokenise(sample.text) for sample in samples])
    return np.asarray(scores > GOOD_CIDER)


def _typical_state(samples: Sequence[Sample]) -> float:
    return math.fsum(sample.signals.state for sample in samples) / len(samples) or 1.0


def fit(
    told: Sequence[Mapping[str, float]], words: Sequence[frozenset[str]], good: Array, *, typical_state: float = 1.0
) -> Confidence:
    """Maximise the penalised likelihood. told: the `values` of n captions; words: of each; good: (n,) bool

    A short state must not speak for a caption, though it may by chance on clips that all have long ones: titles and
    black frames leave it short. A fit that says so is made again without that signal.
    """
    names = [name for name in SIGNALS if all(name in one for one in told)]  # not every model has tags
    fitted = _fit(names, told, words, good, typical_state)
    if fitted.weights.get("familiarity", 0.0) < 0:
        fitted = _fit([name for name in names if name != "familiarity"], told, words, good, typical_state)
    return fitted


def _fit(
    names: Sequence[str],
    told: Sequence[Mapping[str, float]],
    words: Sequence[frozenset[str]],
    good: Array,
    typical_state: float,
) -> Confidence:
    counts = Counter(word for of_one in words for word in of_one)
    known = sorted(word for word, count in counts.items() if count >= MIN_WORD_COUNT)
    signals = np.array([[one[name] for name in names] for one in told])
    mean, scale = signals.mean(axis=0), signals.std(axis=0)
    scale[scale < 1e-9] = 1.0  # a signal that is always the same
    has_word = np.array([[word in of_one for word in known] for of_one in words]).reshape(len(words), len(known))
    penalties = np.full(len(names) + len(known), PENALTY)
    trusted: set[str] = set()
    if "critic" in names:
        trusted, penalties[:] = {"critic"}, PENALTY_BESIDE_TRUSTED
    elif "forecast" in names:
        trusted, penalties[: len(names)] = TRUSTED, PENALTY_BESIDE_TRUSTED
    penalties[[place for place, name in enumerate(names) if name in trusted]] = TRUSTED_PENALTY
    bias, *weights = logistic_regression(np.column_stack([(signals - mean) / scale, has_word]), good, penalties)
    of_signals, of_words = np.array(weights[: len(names)]) / scale, weights[len(names) :]
    return Confidence(
        float(bias - of_signals @ mean),
        dict(zip(names, of_signals.tolist(), strict=True)),
        dict(zip(known, map(float, of_words), strict=True)),
        typical_state,
    )


def logistic_regression(inputs: Array, good: Array, penalties: Array) -> Array:
    """inputs: (n, k), good: (n,) bool, penalties: (k,) -> bias and weights (1 + k,), by Newton's method.

    The penalties of squared weights, not of the bias, keep the confidence away from 0 and 1 where a few clips happen to
    be perfectly separated, and a word that few captions have close to 0.
    """
    inputs = np.column_stack([np.ones(len(inputs)), inputs])
    penalty = np.array([1e-9, *penalties])

    def loss(weights: Array) -> float:
        logits = inputs @ weights
        return float((np.logaddexp(0, logits) - good * logits).sum() + (penalty * weights**2).sum() / 2)

    weights = np.zeros(inputs.shape[1])
    for _ in range(100):
        probabilities = 0.5 + 0.5 * np.tanh(inputs @ weights / 2)
        gradient = inputs.T @ (probabilities - good) + penalty * weights
        curvature = (inputs.T * (probabilities * (1 - probabilities))) @ inputs + np.diag(penalty)
        step = np.linalg.solve(curvature, gradient)
        while loss(weights - step) > loss(weights) and np.abs(step).max() > 1e-9:  # overshot
            step /= 2
        weights = weights - step
        if np.abs(step).max() < 1e-9:
            break
    return weights


def calibration_bins(confidences: Array, good: Array) -> tuple[Bin, ...]:
    """Bins of as many clips each, in order of confidence; confidences: (n,), good: (n,) bool."""
    order = np.argsort(confidences, kind="stable")
    return tuple(_bin(confidences[part], good[part]) for part in np.array_split(order, min(NUM_BINS, len(order))))


def calibration_error(bins: Sequence[Bin]) -> float:
    """|confidence - share of good captions| of a clip's bin, mean over clips."""
    return sum(part.num_clips * abs(part.confidence - part.good) for part in bins) / sum(
        part.num_clips for part in bins
    )


def auc(confidences: Array, good: Array) -> float:
    """The share of (good, bad) pairs of captions in which the good one has the higher confidence; a tie counts half."""
    return float(_in_order(confidences, good).mean())


def _auc_interval(confidences: Array, good: Array, *, seed: int) -> Interval:
    shares, in_order = resamples(len(good), seed=seed), _in_order(confidences, good)
    of_good, of_bad = shares[:, good], shares[:, ~good]
    pairs = of_good.sum(axis=1) * of_bad.sum(axis=1)
    there = pairs > 0
    return interval(((of_good @ in_order) * of_bad).sum(axis=1)[there] / pairs[there])


def _in_order(confidences: Array, good: Array) -> Array:
    """(good, bad): 1 where the good caption has the higher confidence, ½ for a tie."""
    difference = confidences[good][:, None] - confidences[~good]
    return np.asarray((np.sign(difference) + 1) / 2)


def _bin(confidences: Array, good: Array) -> Bin:
    return Bin(len(good), float(confidences.mean()), float(good.mean())) if len(good) else Bin(0, 0.0, 0.0)


def _bin_dict(part: Bin) -> dict[str, Any]:
    return {"clips": part.num_clips, "confidence": round(part.confidence, 4), "good": round(part.good, 4)}
