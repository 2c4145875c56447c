"""The confidence of a caption: numbers worked out by hand, and what a card may say."""

import math
from dataclasses import replace
from pathlib import Path

import pytest

from picknet.model.confidence import BadCalibration, Confidence, values, with_entry
from picknet.model.sentences import Signals

CARD = Path("m/card.json")
SIGNALS = Signals(frozenset({"cat", "sleeps"}), likelihood=-0.5, entropy=2.0, agreement=0.75, state=3.0)
ENTRY = {
    "weights": {"bias": 1.0, "likelihood": 2.0, "entropy": -0.25, "agreement": 2.0, "familiarity": 3.0},
    "words": {"cat": 0.5, "man": -1.0},
    "typical_state": 3.0 * math.e,
    "clips": 99,
}


def test_the_confidence_is_the_logistic_function_of_weighted_signals_and_words():
    # 1 + 2 · -0.5 - 0.25 · 2 + 2 · 0.75 + 3 · log(1/e) + 0.5 (cat) = -1.5, and 1 / (1 + e^1.5) = 0.182426.
    assert Confidence.from_dict(ENTRY).of(SIGNALS) == pytest.approx(0.182426, abs=1e-6)


def test_a_confidence_never_overflows():
    assert Confidence(1e6, {"likelihood": 1.0}).of(SIGNALS) == 1.0
    assert Confidence(-1e6, {"likelihood": 1.0}).of(SIGNALS) == 0.0


def test_no_sentence_and_no_state_are_no_error():
    nothing = Signals(frozenset(), likelihood=-math.inf, entropy=0.0, agreement=1.0, state=0.0)
    assert values(nothing, typical_state=2.0) == {
        "likelihood": -100.0, "entropy": 0.0, "agreement": 1.0, "familiarity": -100.0,
    }  # fmt: skip
    assert Confidence.from_dict(ENTRY).of(nothing) == pytest.approx(0.0)


def test_expectation_and_forecast_count_by_their_logarithms():
    told = replace(SIGNALS, tags=0.8, expectation=2.0, forecast=0.48, match=-0.4)
    usual = values(told, typical_state=3.0)
    assert (usual["tags"], usual["expectation"]) == pytest.approx((0.8, math.log(2.0)))
    assert usual["forecast"] == pytest.approx(math.log(0.5))  # 0.02 is added
    assert usual["match"] == -0.4
    dim = values(told, typical_state=6.0)  # half of the usual state
    assert dim == pytest.approx(usual | {"familiarity": usual["familiarity"] - math.log(2)})
    assert values(replace(told, expectation=0.0), typical_state=3.0)["expectation"] == -100.0


def test_what_is_written_into_a_card_is_read_again():
    confidence = Confidence.from_dict(ENTRY)
    card = with_entry({}, "msvd", confidence.to_dict(), styles=[])
    assert Confidence.from_card(card, CARD).of(SIGNALS) == pytest.approx(confidence.of(SIGNALS), abs=1e-4)


def test_each_style_has_its_own_confidence():
    other = ENTRY | {"weights": {"bias": 7.0}}
    card = {"confidence": {"msvd": ENTRY, "msrvtt": other}}
    styles = ("msrvtt", "coco")
    assert Confidence.from_card(card, CARD, styles=styles).bias == 1.0
    assert Confidence.from_card(card, CARD, style="msrvtt", styles=styles).bias == 7.0
    assert Confidence.from_card(card, CARD, style="coco", styles=styles) is None
    assert Confidence.from_card({"confidence": {"msrvtt": other}}, CARD, styles=styles) is None
    assert Confidence.from_card({}, CARD) is None
    assert Confidence.from_card({"confidence": None}, CARD) is None


def test_an_older_card_has_the_confidence_of_the_models_own_style():
    card = {"confidence": {"bias": 3.0, "slope": 4.0, "clips": 99, "split": "msvd val"}}
    # Three words and <eos>, log P = -2: a mean of -0.5. 3 - 4 / 2 = 1, and 1 / (1 + 1/e) = 0.731059.
    assert Confidence.from_card(card, CARD, styles=["msrvtt"]).of(SIGNALS) == pytest.approx(0.731059, abs=1e-6)
    assert Confidence.from_card(card, CARD, style="msrvtt", styles=["msrvtt"]) is None
    # It is kept when another style is calibrated, and replaced when its own is.
    both = with_entry(card, "msrvtt", ENTRY, styles=["msrvtt"])["confidence"]
    assert both == {"own": card["confidence"], "msrvtt": ENTRY}
    again = with_entry({"confidence": both}, "folder", ENTRY, styles=["msrvtt"])
    assert again == {"confidence": {"folder": ENTRY, "msrvtt": ENTRY}}
    assert list(again["confidence"]) == ["folder", "msrvtt"]


@pytest.mark.parametrize(
    "entry",
    [0.7, "high", [1, 2], {}, None, {"weights": {}}, {"weights": {"bias": "low"}}, {"weights": {"bias": math.nan}},
     {"weights": {"bias": 10**400}}, {"weights": {"bias": 1, "charm": 2}}, ENTRY | {"words": ["cat"]},
     ENTRY | {"typical_state": 0}],
)  # fmt: skip
def test_an_invalid_confidence_in_a_card_is_named(entry):
    with pytest.raises(BadCalibration) as refused:
        Confidence.from_card({"confidence": {"msvd": entry}}, CARD)
    assert str(refused.value) == (
        "m/card.json: the confidence of msvd cannot be read; remove it, calibrate again (needed: weights with a bias "
        "and any of likelihood, entropy, agreement, familiarity, tags, expectation, forecast, match, critic)"
    )


@pytest.mark.parametrize("stored", [0.7, "high", [1, 2], {"bias": 1.0}, {"bias": math.nan, "slope": 1.0}])
def test_an_invalid_older_confidence_is_named(stored):
    with pytest.raises(BadCalibration, match=r"^m/card.json: the confidence of its own style cannot be read; remove"):
        Confidence.from_card({"confidence": stored}, CARD)
