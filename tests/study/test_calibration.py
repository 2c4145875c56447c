"""Fitting a confidence: numbers worked out by hand, and captions that are made up."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip

from picknet.captioner import load
from picknet.data.split import Clip, Split
from picknet.model.card import report
from picknet.model.confidence import SIGNALS, BadCalibration
from picknet.model.sentences import Signals
from picknet.model.tags import Forecast, Tags
from picknet.study.calibration import (
    PENALTY,
    PENALTY_BESIDE_TRUSTED,
    TRUSTED_PENALTY,
    Bin,
    Sample,
    auc,
    calibrate,
    calibration_bins,
    calibration_error,
    describe,
    fit,
    logistic_regression,
)


def told(**signals: float) -> Mapping[str, float]:
    return dict.fromkeys(SIGNALS, 0.0) | signals


def sample(
    name: str, text: str, *references: str, likelihood: float = -1.0, state: float = 1.0, agreement: float = 1.0
) -> Sample:
    signals = Signals(frozenset(text.split()), likelihood, 1.0, agreement, state)
    return Sample(Clip(name, Path(name), references), text, signals)


def made_up(num_good: int, num_bad: int, *, name: str = "", state: float = 1.0) -> list[Sample]:
    """Likely captions equal to a reference, and unlikely ones unlike theirs, alternating while there are both."""
    samples = []
    for number in range(max(num_good, num_bad)):
        if number < num_good:
            text = f"cat {name}{number} is sleeping"
            samples.append(sample(f"{name}good{number}", text, text, likelihood=-0.5, state=state))
        if number < num_bad:
            references = ("two men play chess", f"men at a table, number {name}{number}")
            text = "a cat is sleeping"
            samples.append(sample(f"{name}bad{number}", text, *references, likelihood=-1.5, state=state))
    return samples


# --- The fit ---


def test_a_fit_is_the_maximum_of_the_penalised_likelihood():
    generator = np.random.default_rng(0)
    inputs = generator.standard_normal((1500, 3))
    good = generator.random(1500) < 1 / (1 + np.exp(-(0.5 + inputs @ [1.0, -2.0, 0.0])))
    penalties = np.array([10.0, 1.0, 50.0])
    weights = logistic_regression(inputs, good, penalties)

    def value(weights: np.ndarray) -> float:
        chances = 1 / (1 + np.exp(-(weights[0] + inputs @ weights[1:])))
        return float(np.log(np.where(good, chances, 1 - chances)).sum() - penalties @ weights[1:] ** 2 / 2)

    for step in np.concatenate([np.eye(4), -np.eye(4)]) * 0.01:
        assert value(weights + step) < value(weights)
    assert weights == pytest.approx([0.5, 1.0, -2.0, 0.0], abs=0.5)


def test_without_signals_that_differ_the_fit_is_the_share_of_good_captions():
    confidence = fit([told()] * 8, [frozenset()] * 8, np.array([True, True, True, False] * 2))
    assert confidence.at(told(), ()) == pytest.approx(0.75, abs=1e-6)
    assert confidence.weights == dict.fromkeys(SIGNALS, 0.0)


def test_a_short_state_never_speaks_for_a_caption():
    # Good captions where the state is short: the signal is left out. Where it is long: it counts.
    states = np.repeat([-0.5, 0.5], 50)
    for good, kept in ((states < 0, False), (states > 0, True)):
        confidence = fit([told(familiarity=state) for state in states], [frozenset()] * 100, good)
        assert ("familiarity" in confidence.weights) == kept
        assert confidence.at(told(familiarity=-3.0), ()) <= 0.5


@pytest.mark.parametrize(
    ("signal", "beside", "penalty"),
    [
        ("likelihood", ("tags",), PENALTY),
        ("likelihood", ("tags", "forecast"), PENALTY_BESIDE_TRUSTED),  # which only corrects the forecast
        ("forecast", ("tags",), TRUSTED_PENALTY),
        ("match", ("tags", "forecast"), TRUSTED_PENALTY),
        ("match", ("tags",), PENALTY),  # without a forecast all count alike
        ("critic", ("tags", "forecast", "match"), TRUSTED_PENALTY),
        ("critic", ("tags",), TRUSTED_PENALTY),
        ("forecast", ("tags", "critic"), PENALTY_BESIDE_TRUSTED),  # which only corrects the critic
    ],
)
def test_perfectly_separated_captions_do_not_give_a_confidence_of_0_and_1(signal, beside, penalty):
    def one(value: float) -> dict[str, float]:
        return {signal: value} | dict.fromkeys(beside, 0.0)

    confidence = fit([one(-0.5)] * 10 + [one(-1.5)] * 10, [frozenset()] * 20, np.repeat([True, False], 10))
    # Standardised, the values are 1 and -1. The slope w maximises 20 log σ(w) - penalty w² / 2: 20 σ(-w) = penalty w.
    slope = confidence.weights[signal] / 2
    assert 20 / (1 + math.exp(slope)) == pytest.approx(penalty * slope)
    assert confidence.at(one(-0.5), ()) == pytest.approx(1 / (1 + math.exp(-slope)))
    assert confidence.at(one(-1.5), ()) == pytest.approx(1 / (1 + math.exp(slope)))


def test_a_word_has_a_weight_if_ten_captions_have_it():
    words = [frozenset({"cat"})] * 10 + [frozenset({"man"})] * 20 + [frozenset({"dog"})] * 9
    good = np.array([True] * 10 + [False] * 20 + [True, False, False] * 3)
    confidence = fit([told()] * 39, words, good)
    assert list(confidence.words) == ["cat", "man"]
    assert confidence.words["cat"] > 0 > confidence.words["man"]


def test_words_only_correct_a_critic():
    words, good = [frozenset({"cat"})] * 10 + [frozenset({"man"})] * 10, np.repeat([True, False], 10)
    alone, beside = (fit([one] * 20, words, good) for one in ({"likelihood": 0.0}, {"likelihood": 0.0, "critic": 0.0}))
    assert alone.words["cat"] > 2 * beside.words["cat"] > 0


# --- How good it is ---


def test_bins_have_as_many_clips_each_in_order_of_confidence():
    confidences = np.arange(30)[::-1] / 30
    bins = calibration_bins(confidences, confidences >= 0.5)
    assert [part.num_clips for part in bins] == [2] * 15
    assert bins[0] == Bin(2, pytest.approx(1 / 60), 0.0)
    assert bins[-1] == Bin(2, pytest.approx(57 / 60), 1.0)
    # Fewer clips than bins: one in each.
    assert calibration_bins(np.array([0.8, 0.2]), np.array([True, False])) == (Bin(1, 0.2, 0.0), Bin(1, 0.8, 1.0))


def test_the_calibration_error_is_the_mean_over_clips():
    # |0.3 - 0.5| · 2 and |0.9 - 0.8| · 6, over 8: 0.125.
    assert calibration_error([Bin(2, 0.3, 0.5), Bin(6, 0.9, 0.8)]) == pytest.approx(0.125)


def test_auc_counts_pairs_in_order_and_half_of_the_ties():
    # Good: 0.9, 0.5; bad: 0.7, 0.5, 0.1. In order: 3 of 3 for the first, 1 and a tie for the second: 4.5 of 6.
    confidences = np.array([0.9, 0.5, 0.7, 0.5, 0.1])
    assert auc(confidences, np.array([True, True, False, False, False])) == 0.75


def test_a_calibration_is_checked_on_clips_it_was_not_fitted_on():
    calibration = calibrate(made_up(30, 30))
    assert (calibration.num_clips, calibration.num_good, calibration.auc) == (60, 30, 1.0)
    assert calibration.auc_interval == pytest.approx((1.0, 1.0))
    assert [part.good for part in calibration.bins] == [0.0] * 7 + [0.5] + [1.0] * 7
    assert calibration.sure.num_clips == 30
    assert calibration.sure.good == 1.0
    # Where the signals say nothing, no fit without a clip can know it.
    generator = np.random.default_rng(1)
    noise = [one._replace(signals=sample("", "a b", likelihood=-generator.random()).signals) for one in made_up(60, 60)]
    blind = calibrate(noise)
    assert blind.auc_interval.low < 0.5 < blind.auc_interval.high
    assert blind.sure.num_clips == 0


def test_a_perfect_confidence_shows_an_error_by_chance():
    generator = np.random.default_rng(0)
    samples = []
    for number in range(600):
        likelihood = -2 * generator.random()
        is_good = generator.random() < 1 / (1 + math.exp(-(4 + 4 * likelihood)))
        text = f"cat {number} is sleeping"
        samples.append(sample(str(number), text, text if is_good else "two men play chess", likelihood=likelihood))
    calibration = calibrate(samples)
    assert 0.02 < calibration.chance < 0.08
    assert calibration.ece == pytest.approx(calibration.chance, abs=0.03)
    assert calibration.confidence.weights["likelihood"] == pytest.approx(4, abs=1)


def test_each_model_has_its_own_scale_of_states():
    # A good caption has a state that is twice as long as a bad one's, in models of different scales.
    def of_model(name: str, scale: float) -> list[Sample]:
        samples = made_up(20, 20, name=name)
        return [
            one._replace(
                signals=sample("", "a", likelihood=-1.0, state=scale * (2 if "good" in one.clip.name else 1)).signals
            )
            for one in samples
        ]

    calibration = calibrate(of_model("own", 2.0), of_model("fold", 50.0))
    assert calibration.confidence.typical_state == pytest.approx(3.0)
    assert (calibration.num_clips, calibration.auc) == (80, 1.0)
    assert (calibration.own.num_clips, calibration.own.good) == (40, 0.5)
    told = dict(report({"fitted_on": "80 clips", **calibration.to_dict()}))
    assert told["its own clips"] == "40, a mean confidence of 0.50, and 50% of them good"


@pytest.mark.parametrize(("num_good", "num_bad"), [(0, 40), (40, 0), (2, 1), (9, 40)])
def test_too_few_captions_of_a_kind_are_refused(num_good: int, num_bad: int):
    with pytest.raises(BadCalibration) as refused:
        calibrate(made_up(num_good, num_bad))
    assert str(refused.value) == (
        f"{num_good} good and {num_bad} bad captions (good: CIDEr above 0.5): "
        "at least 10 of each kind are needed to calibrate; take a larger split"
    )


def test_a_model_without_unseen_clips_of_its_own_is_refused():
    with pytest.raises(BadCalibration, match=r"^no clip that the model itself was not trained on: at least one is"):
        calibrate([], made_up(20, 20))


# --- Captions and reports ---


def test_clips_are_described_with_the_picker_of_the_model_that_is_calibrated(
    model_folder: Path, attending_folder: Path, tmp_path: Path
):
    captioner, fold = load(model_folder), load(attending_folder)
    cat = write_clip(tmp_path / "cat.mp4", num_frames=40)
    every = tuple(Clip(path.name, path, ("a cat",)) for path in (cat, tmp_path / "none.mp4"))
    asked = []
    samples, missing = describe(
        fold, Split("folder", "all", every, ()), like=captioner, on_clip=lambda clip: asked.append(clip.name)
    )
    assert asked == ["cat.mp4", "none.mp4"]
    assert [one.name for one in missing] == ["none.mp4"]
    own = fold.caption(cat, picker=captioner.picker, beam=captioner.config.beam, num_frames=30)
    (found,) = samples
    assert found.text == own.text
    assert found.signals.likelihood == pytest.approx(own.log_probability / (len(own.text.split()) + 1))


def test_a_clip_is_judged_by_its_own_forecast_where_there_is_one(model_folder: Path, tmp_path: Path):
    captioner = load(model_folder)
    writer = captioner.describer.writer
    captioner.runtime.tags = Tags(
        ["cat"], np.full(1, 0.5, np.float32), np.zeros(1, np.float32), np.zeros((1, 1), np.float32)
    )
    paths = [write_clip(tmp_path / f"{name}.mp4", num_frames=40) for name in ("cat", "dog")]
    every = tuple(Clip(path.stem, path, ("a cat",)) for path in paths)
    nothing = (np.zeros((1, 1), np.int8), np.ones(1, np.float32), np.ones(1, np.float32))

    def always(share: float) -> Forecast:
        """Of every sentence: it consists of the words that are known, and each makes up this share."""
        known = sorted(captioner.runtime.vocabulary.words)
        flat = [np.repeat(part, len(known), axis=-1) for part in nothing]
        return Forecast(known, np.full(len(known), share, np.float32), np.zeros(1, np.float32), *flat)

    writer.forecast = own = always(0.1)
    split = Split("folder", "all", every, ())
    samples, _ = describe(captioner, split, like=captioner, forecasts={paths[1]: always(0.3)})
    cat, dog = (one.signals.forecast for one in samples)
    assert cat
    assert dog == pytest.approx(3 * cat)
    assert writer.forecast is own


def test_a_report_draws_where_the_confidence_is_and_where_it_should_be():
    facts = {"fitted_on": "60 clips of msvd val", **calibrate(made_up(30, 30)).to_dict()}
    facts["reliability"] = [
        {"clips": 5, "confidence": 0.1, "good": 0.2},
        {"clips": 5, "confidence": 0.5, "good": 0.5},
        {"clips": 1200, "confidence": 1.0, "good": 0.9},
    ]
    lines = dict(report(facts))
    assert lines["fitted on"] == "60 clips of msvd val"
    assert "its own clips" not in lines
    assert lines["AUC"] == "1.000 (1.000 … 1.000)"
    assert lines["above 0.7"] == "30 clips, 100% of them good"
    assert lines["0.10"] == "0.20      5  ####|###"
    assert lines["0.50"] == "0.50      5  ####################|"
    assert lines["1.00"] == "0.90  1,200  ####################################    |"
    assert report({"bias": 1.0, "slope": 2.0}) == []
