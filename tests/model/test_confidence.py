"""The confidence of a caption: numbers worked out by hand, and calibration on made-up captions."""

import math
from pathlib import Path

import numpy as np
import pytest

from picknet.model.confidence import BadCalibration, Bin, Confidence, auc, calibrate, calibration_bins, fit


def logit(probability):
    return math.log(probability / (1 - probability))


def test_the_confidence_is_the_logistic_function_of_the_mean_log_probability():
    # Three words and <eos>, log P = -2: a mean of -0.5. 3 - 4 / 2 = 1, and 1 / (1 + 1/e) = 0.731059.
    assert Confidence(bias=3.0, slope=4.0).of("a cat sleeps", -2.0) == pytest.approx(0.731059, abs=1e-6)
    assert Confidence(bias=0.0, slope=4.0).of("", 0.0) == 0.5


def test_a_confidence_never_overflows():
    assert Confidence(bias=1e6, slope=1.0).of("a cat", -1.0) == 1.0
    assert Confidence(bias=-1e6, slope=1.0).of("a cat", -1.0) == 0.0


def test_a_fit_on_two_different_means_gives_each_its_mean_target():
    # With 3 good and 5 bad captions Platt's targets are 4/5 and 1/7. At -1 two of three are good, at -2 one of five;
    # two numbers can meet both means: (4/5 + 4/5 + 1/7) / 3 = 61/105 and (4/5 + 4 · 1/7) / 5 = 48/175.
    means = np.array([-1.0, -1, -1, -2, -2, -2, -2, -2])
    good = np.array([True, True, False, True, False, False, False, False])
    fitted = fit(means, good)
    assert fitted.slope == pytest.approx(logit(61 / 105) - logit(48 / 175), abs=1e-9)
    assert fitted.bias == pytest.approx(2 * logit(61 / 105) - logit(48 / 175), abs=1e-9)


def test_a_fit_on_equal_means_gives_the_share_of_good_captions():
    # 3 good and 1 bad: (3 · 4/5 + 1/3) / 4 = 41/60.
    fitted = fit(np.full(4, -0.7), np.array([True, True, True, False]))
    assert fitted.at(np.array([-0.7]))[0] == pytest.approx(41 / 60, abs=1e-9)


def test_perfectly_separated_captions_do_not_give_a_confidence_of_0_and_1():
    # With targets 0 and 1 the fit would diverge; with 11/12 and 1/12 it does not.
    fitted = fit(np.repeat([-0.5, -1.5], 10), np.repeat([True, False], 10))
    assert fitted.at(np.array([-0.5, -1.5])) == pytest.approx([11 / 12, 1 / 12], abs=1e-9)


def test_a_fit_maximises_the_likelihood():
    generator = np.random.default_rng(0)
    means = -generator.exponential(size=200)
    good = generator.random(200) < 1 / (1 + np.exp(-(2 + 3 * means)))
    targets = np.where(good, (good.sum() + 1) / (good.sum() + 2), 1 / ((~good).sum() + 2))
    fitted = fit(means, good)

    def likelihood(bias, slope):
        probabilities = 1 / (1 + np.exp(-(bias + slope * means)))
        return (targets * np.log(probabilities) + (1 - targets) * np.log(1 - probabilities)).sum()

    top = likelihood(fitted.bias, fitted.slope)
    for bias, slope in ((0.01, 0), (-0.01, 0), (0, 0.01), (0, -0.01), (0.01, 0.01), (-0.01, 0.01)):
        assert likelihood(fitted.bias + bias, fitted.slope + slope) < top
    assert (fitted.bias, fitted.slope) == (pytest.approx(2, abs=0.8), pytest.approx(3, abs=1))


def test_a_bin_has_the_mean_confidence_and_the_share_of_good_captions():
    confidences = np.array([0.1, 0.19, 0.2, 0.9, 0.8, 1.0])
    good = np.array([False, True, False, True, True, False])
    assert calibration_bins(confidences, good) == (
        Bin(2, pytest.approx(0.145), 0.5),
        Bin(1, pytest.approx(0.2), 0.0),
        Bin(3, pytest.approx(0.9), pytest.approx(2 / 3)),
    )


def test_auc_counts_pairs_in_order_and_half_of_the_ties():
    # Good: 0.9, 0.5; bad: 0.7, 0.5, 0.1. In order: 3 of 3 for the first, 1 and a tie for the second: 4.5 of 6.
    confidences = np.array([0.9, 0.5, 0.7, 0.5, 0.1])
    assert auc(confidences, np.array([True, True, False, False, False])) == 0.75


def made_up(num_good, num_bad):
    """Likely captions equal to a reference, and unlikely ones unlike theirs, alternating while there are both."""
    captions, references = {}, {}
    for number in range(max(num_good, num_bad)):
        if number < num_good:
            captions[f"good{number}"] = (f"cat {number} is sleeping", -2.5)  # 4 words and <eos>: -0.5
            references[f"good{number}"] = [f"Cat {number} is sleeping.", "the cat sleeps"]
        if number < num_bad:
            captions[f"bad{number}"] = ("a cat is sleeping", -7.5)
            references[f"bad{number}"] = ["two men play chess", f"men at a table, number {number}"]
    return captions, references


def test_a_calibration_is_checked_on_clips_it_was_not_fitted_on():
    calibration = calibrate(*made_up(20, 20))
    assert (calibration.num_clips, calibration.num_good, calibration.auc) == (40, 20, 1.0)
    assert calibration.confidence.of("a cat is sleeping", -2.5) == pytest.approx(21 / 22)
    # A fold of 4 has 2 of each kind, so it is judged by a fit on 18 of each: 19/20 where all are good, 1/20 where none.
    assert calibration.bins == (Bin(20, pytest.approx(0.05), 0.0), Bin(20, pytest.approx(0.95), 1.0))
    assert calibration.ece == pytest.approx(0.05)


def test_the_facts_in_the_card():
    facts = calibrate(*made_up(20, 20)).as_json()
    # logit(21/22) = log 21 = 3.0445 at -0.5, and the negative at -1.5: a slope of 6.0890, and a bias of as much.
    assert facts == {
        "bias": 6.089,
        "slope": 6.089,
        "good": "CIDEr above 0.5",
        "clips": 40,
        "good_clips": 20,
        "ece": 0.05,
        "auc": 1.0,
    }
    assert Confidence.from_card({"confidence": facts}, Path("card.json")) == Confidence(6.089, 6.089)


@pytest.mark.parametrize(("num_good", "num_bad"), [(0, 40), (40, 0), (2, 1), (9, 40)])
def test_too_few_captions_of_a_kind_are_refused(num_good, num_bad):
    with pytest.raises(BadCalibration) as refused:
        calibrate(*made_up(num_good, num_bad))
    assert str(refused.value) == (
        f"{num_good} good and {num_bad} bad captions (good: CIDEr above 0.5): "
        "at least 10 of each kind are needed to calibrate; take a larger split"
    )


def test_a_card_without_a_confidence_has_none():
    assert Confidence.from_card({}, Path("card.json")) is None
    assert Confidence.from_card({"confidence": None}, Path("card.json")) is None


@pytest.mark.parametrize(
    "stored",
    [0.7, "high", [1, 2], {}, {"bias": 1.0}, {"bias": "low", "slope": 1}, {"bias": math.nan, "slope": 1.0},
     {"bias": 10**400, "slope": 1}, {"bias": None, "slope": 1}],
)  # fmt: skip
def test_an_invalid_confidence_in_a_card_is_named(stored):
    with pytest.raises(BadCalibration) as refused:
        Confidence.from_card({"confidence": stored}, Path("m/card.json"))
    assert str(refused.value) == (
        "m/card.json: confidence needs two numbers, bias and slope; remove it, calibrate again"
    )
