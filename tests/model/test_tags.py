"""Tags: the words to expect by the features of picks, and a caption's agreement with them."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from picknet.captioner import load
from picknet.data import BadData
from picknet.data.split import Clip
from picknet.model.confidence import BadCalibration, without_tags
from picknet.model.folder import TAGS, BadModel, ModelFolder
from picknet.model.manifest import read_manifest, renewed
from picknet.model.tags import Forecast, Tags
from picknet.study.tag_learning import Example, fit_forecast, fit_tags, learn

CATS_AND_DOGS = Tags(
    ["cat", "dog"],
    np.array([0.5, 0.5], np.float32),
    np.zeros(2, np.float32),
    np.array([[0.3, -0.4], [-0.4, 0.3]], np.float32),
)


def test_agreement_is_the_cosine_of_words_said_and_expected():
    # Features of length 1 in the first direction: cats in 0.8 of the captions, dogs in 0.1. Beyond the usual 0.5 it is
    # (0.3, -0.4), of length 0.5; both words are as rare. Both together: (0.3 - 0.4) / (0.5 √2).
    expected = CATS_AND_DOGS.expected(np.array([7.0, 0.0], np.float32))
    assert CATS_AND_DOGS.agreement(expected, {"cat"}) == pytest.approx(0.6, abs=1e-5)
    assert CATS_AND_DOGS.agreement(expected, {"dog", "unknown"}) == pytest.approx(-0.8, abs=1e-5)
    assert CATS_AND_DOGS.agreement(expected, {"cat", "dog"}) == pytest.approx(-0.1 / (0.5 * 2**0.5), abs=1e-5)
    assert CATS_AND_DOGS.agreement(expected, {"unknown"}) == 0.0
    assert CATS_AND_DOGS.agreement(CATS_AND_DOGS.expected(np.zeros(1, np.float32)), {"cat"}) == 0.0


def test_tags_learn_which_words_go_with_which_features():
    generator = np.random.default_rng(0)
    is_cat = np.arange(60) % 2 == 0
    features = np.where(is_cat[:, None], [1.0, 0.0, 1.0], [0.0, 1.0, 1.0]) + 0.1 * generator.random((60, 3))
    captions = [["a cat sits", "cats sit"] if one else ["a dog runs", "dogs"] for one in is_cat]
    tags = fit_tags([[Example(*one) for one in zip(features, captions, strict=True)]])
    assert set(tags.words) == {"cat", "sit", "dog", "run"}
    assert dict(zip(tags.words, tags.shares.tolist(), strict=True)) == {"cat": 0.5, "sit": 0.5, "dog": 0.5, "run": 0.25}
    expected = tags.expected(np.array([1.0, 0.0, 1.0]))
    assert tags.agreement(expected, {"cat", "sit"}) > 0.5
    assert tags.agreement(expected, {"dog"}) < -0.3


def test_data_sets_count_alike_however_large_they_are():
    small = [Example(np.array([1.0, 0.0]), ["a cat"]), Example(np.array([0.0, 1.0]), ["a dog"])]
    large = [Example(np.array([1.0, 0.0]), ["a bird", "a bird sings"])] * 50
    tags = fit_tags([small, large])
    shares = dict(zip(tags.words, tags.shares.tolist(), strict=True))
    assert shares == pytest.approx({"bird": 0.5, "cat": 0.25, "dog": 0.25, "sing": 0.25})
    assert tags.words[0] == "bird"
    assert tags.mean == pytest.approx([0.75, 0.25])
    # Repeating each example changes nothing but how sure the fit is of itself.
    again = fit_tags([small * 3, large * 3])
    assert again.words == tags.words
    assert again.shares == pytest.approx(tags.shares)
    assert np.linalg.norm(again.weights) > np.linalg.norm(tags.weights)


def test_the_fit_is_that_of_ridge_regression(monkeypatch: pytest.MonkeyPatch):
    # One data set: the centred normal equations, the penalty being that of a share of an example; and in small parts.
    generator = np.random.default_rng(1)
    features = generator.random((30, 4))
    captions = [["a cat"] if one[0] > one[1] else ["a dog", "a dog runs"] for one in features]
    data = [[Example(*one) for one in zip(features, captions, strict=True)]]
    monkeypatch.setattr("picknet.study.tag_learning.ROWS", 7)
    tags = fit_tags(data)
    x = features / np.linalg.norm(features, axis=1, keepdims=True)
    y = np.array([[word in one[-1] for word in ("cat", "dog", "run")] for one in captions]) * [1, 1, 0.5]
    centred = x - x.mean(axis=0)
    gram = centred.T @ centred
    penalty = 0.3 * np.trace(gram) / 30
    weights = np.linalg.solve(gram + penalty * np.eye(4), centred.T @ (y - y.mean(axis=0)))
    columns = [["cat", "dog", "run"].index(word) for word in tags.words]
    assert tags.weights == pytest.approx(weights[:, columns], abs=1e-5)


def test_a_forecast_is_the_cosine_to_expect():
    # In the first direction a cat makes up 0.5 + 30 · 0.01 of a caption by a person, a dog 0.1; "sat" is unknown and so
    # as rare as the rarest, a dog: the sentence is (1, 2, 2), of length 3.
    weights, scales = np.array([[30, -20], [0, 0]], np.int8), np.array([0.01, 0.02], np.float32)
    shares, rarity = np.full(2, 0.5, np.float32), np.array([1.0, 2.0], np.float32)
    forecast = Forecast(["cat", "dog"], shares, np.zeros(2, np.float32), weights, scales, rarity)
    features = np.array([3.0, 0.0], np.float32)
    assert forecast.of(features, ["cat"]) == pytest.approx(0.8)
    assert forecast.of(features, ["cat", "dog", "sat"]) == pytest.approx((0.8 * 1 + 0.1 * 2) / 3)
    assert forecast.of(features, ["cat", "cat"]) == pytest.approx(0.8)
    assert forecast.of(features, ["sat"]) == forecast.of(features, []) == 0.0
    assert forecast.of(np.zeros(1, np.float32), ["cat"]) == 0.0


def test_a_forecast_learns_how_similar_captions_will_be():
    # Of two kinds of clips, told apart by their features, the forecast is the mean cosine to captions of that kind.
    cats, dogs = ["a cat sits", "a black cat"], ["a dog runs", "a dog"]
    kinds = [(np.array([1.0, 0.0]), cats), (np.array([0.0, 1.0]), dogs)]
    forecast = fit_forecast([Example(*kind) for kind in kinds] * 500)
    # Every clip has an "a", which so weighs nothing; all other words are as rare.
    assert forecast.of(kinds[0][0], ["a", "cat"]) == pytest.approx((2**-0.5 + 2**-0.5) / 2, abs=0.01)
    assert forecast.of(kinds[0][0], ["a", "cat", "sits"]) == pytest.approx((1 + 0.5) / 2, abs=0.01)
    assert forecast.of(kinds[1][0], ["a", "dog"]) == pytest.approx((2**-0.5 + 1) / 2, abs=0.01)
    assert forecast.of(kinds[1][0], ["a", "cat", "sits"]) == pytest.approx(0.0, abs=0.01)


def test_a_forecast_learns_from_other_styles_how_words_go_with_features():
    # The clips of the style do not tell cats from dogs; pictures of another one do, by the first two features. That all
    # of these have a third feature, and the word "pictured", is nothing to learn.
    few = [Example(np.array([1.0, 1.0, 0.0]), [f"a {animal}"]) for animal in ("cat", "dog")] * 4
    kinds = (np.array([1.0, 0.0, 1.0]), "cat pictured"), (np.array([0.0, 1.0, 1.0]), "dog pictured")
    alone, both = fit_forecast(few), fit_forecast(few, beside=[[Example(x, [said]) for x, said in kinds] * 100])
    assert (both.words, both.shares.tolist()) == (alone.words, alone.shares.tolist())
    assert both.mean.tolist() == alone.mean.tolist() == pytest.approx([2**-0.5, 2**-0.5, 0])
    cat = np.array([1.0, 0.0, 0.0])
    assert alone.of(cat, ["a", "cat"]) == alone.of(cat, ["a", "dog"]) == pytest.approx(0.5)
    assert both.of(cat, ["a", "cat"]) > 0.6 > 0.4 > both.of(cat, ["a", "dog"])
    assert fit_forecast(few, beside=[[]]).weights.tolist() == alone.weights.tolist()


def test_others_count_half_in_a_forecast():
    # The normal equations of both data sets, each centred by itself.
    generator = np.random.default_rng(3)
    features = generator.random((50, 4))
    data = [Example(one, ["cat" if one[0] > one[1] else "dog"]) for one in features]
    own, others = data[:30], data[30:]
    x = features / np.linalg.norm(features, axis=1, keepdims=True)
    y = np.array([[example.captions == [word] for word in ("cat", "dog")] for example in data], float)
    gram, products = np.zeros((4, 4)), np.zeros((4, 2))
    for rows, worth in ((slice(30), 1.0), (slice(30, None), 0.5)):
        centred = x[rows] - x[rows].mean(axis=0)
        gram += worth * centred.T @ centred
        products += worth * centred.T @ (y[rows] - y[rows].mean(axis=0))
    weights = np.linalg.solve(gram + 0.3 * np.trace(gram) / 40 * np.eye(4), products)
    forecast = fit_forecast(own, beside=[others])
    columns = [["cat", "dog"].index(word) for word in forecast.words]
    assert forecast.weights.dtype == np.int8
    # A weight is off by half a step at most, and the largest one of a word has 127.
    steps = np.abs(weights[:, columns]).max(axis=0) / 127
    assert forecast.scales == pytest.approx(steps)
    assert np.abs(forecast.weights * forecast.scales - weights[:, columns]).max() <= 0.501 * steps.max()


def _pictures(folder: Path, **greys: int) -> list[Clip]:
    """Clips that show one grey and say their name."""
    for name, grey in greys.items():
        Image.fromarray(np.full((40, 60, 3), grey, np.uint8)).save(folder / f"{name}.png")
    return [Clip(name, folder / f"{name}.png", (f"a {name} picture",)) for name in greys]


def test_forecasts_are_learned_beside_tags(model_folder: Path, tmp_path: Path):
    captioner = load(model_folder)
    clips = _pictures(tmp_path, dark=20, bright=230, grey=128)
    assert learn(captioner, style="msvd", forecast=[clips]) == (None, {})  # there are no tags
    captioner.runtime.tags, _ = learn(captioner, style="msvd", tags=[clips])
    assert captioner.runtime.tags is not None
    learned, unaware = learn(captioner, style="msvd", forecast=[clips[:2], clips[2:]])
    assert learned is not None
    assert unaware == {}
    assert learned.words == captioner.runtime.tags.words
    assert set(learned.forecasts["msvd"].words) == {"a", "dark", "bright", "picture"}  # the other one is beside
    captioner.runtime.tags = learned
    again, _ = learn(captioner, style="msvd", tags=[clips[:2]])
    assert again is not None
    assert again.forecasts == learned.forecasts


def test_a_clip_held_back_is_judged_by_a_forecast_that_knows_nothing_of_it(model_folder: Path, tmp_path: Path):
    captioner = load(model_folder)
    greys = {f"grey{letter}": 70 + 7 * number for number, letter in enumerate("abcdefghijkl")}
    clips = _pictures(tmp_path, dark=20, bright=230, **greys)
    known, held_back = clips[:2], clips[2:]
    seen: list[str] = []
    learned, unaware = learn(
        captioner, style="msvd", tags=[clips], forecast=[clips], held_back=held_back,
        on_clip=lambda clip: seen.append(clip.name),
    )  # fmt: skip
    assert learned is not None
    assert set(learned.words) == {"dark", "bright", "pictur"}
    assert {clip.name for clip in clips} <= set(learned.forecasts["msvd"].words)
    assert sorted(unaware) == sorted(clip.path for clip in held_back)
    for clip in held_back:
        assert clip.name not in unaware[clip.path].words
        assert {one.name for one in known} <= set(unaware[clip.path].words)
    # Twelve clips in ten parts: two pairs of neighbours, which may be of one film, are left out together.
    assert len({id(forecast) for forecast in unaware.values()}) == 10
    assert len(seen) == 2 + 2 + 12  # of tags, of the forecast, and those held back


def test_pictures_teach_tags_as_clips_do(model_folder: Path, tmp_path: Path):
    captioner = load(model_folder)
    for name, grey in (("dark", 20), ("bright", 230)):
        Image.fromarray(np.full((40, 60, 3), grey, np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    said = {"dark": "night falls", "bright": "snow shines", "broken": "nothing there"}
    clips = [Clip(path.stem, path, (said[path.stem],)) for path in sorted(tmp_path.iterdir())]
    seen = []
    tags, _ = learn(captioner, style="msvd", tags=[clips], on_clip=lambda clip: seen.append(clip.name))
    assert tags is not None
    assert seen == ["bright", "broken", "dark"]
    assert set(tags.words) == {"night", "fall", "snow", "shin"}
    size = captioner.config.model.image_size
    features = captioner.runtime.features(np.full((1, size, size, 3), 20, np.uint8))[0].mean(axis=0)
    expected = tags.expected(features)
    assert tags.agreement(expected, {"night"}) > 0.3 > -0.3 > tags.agreement(expected, {"snow"})
    with pytest.raises(BadData, match="no clip to learn words from: none of them can be read"):
        learn(captioner, style="msvd", tags=[clips[1:2]])


@pytest.fixture
def tagged(model_folder: Path, tmp_path: Path) -> Path:
    """A copy of the tiny model, with tags for its features."""
    copy = Path(shutil.copytree(model_folder, tmp_path / "copy"))
    size = load(copy).runtime.features(np.zeros((1, *_pixels(copy)), np.uint8)).shape[-1]
    weights = np.random.default_rng(0).standard_normal((size, 2)).astype(np.float32)
    with renewed(copy, TAGS):
        Tags(["cat", "dog"], np.full(2, 0.25, np.float32), np.zeros(size, np.float32), weights).save(copy / TAGS)
    return copy


def _pixels(folder: Path) -> tuple[int, int, int]:
    size = ModelFolder(folder).config.model.image_size
    return size, size, 3


def test_a_model_with_tags_tells_the_agreement_with_its_caption(tagged: Path, model_folder: Path):
    from picknet.model.memory import SceneMemory
    from picknet.video.frame import Frame

    assert TAGS in (read_manifest(tagged) or {})
    for folder in (model_folder, tagged):
        captioner = load(folder)
        memory = SceneMemory(captioner.runtime)
        memory.add(Frame.blank(8))
        signals = captioner.describer.writer.write(memory.state(), beam=1).signals
        assert (signals.tags is None) == (signals.expectation is None) == (folder == model_folder)


def test_a_forecast_is_stored_with_the_tags(tagged: Path):
    tags = load(tagged).runtime.tags
    assert tags is not None
    size = len(tags.mean)
    forecast = Forecast(
        ["runs"], np.array([0.5], np.float32), np.zeros(size, np.float32), np.full((size, 1), 100, np.int8),
        np.array([0.01], np.float32), np.array([1.5], np.float32),
    )  # fmt: skip
    card = json.loads((tagged / "card.json").read_text())
    entry = {"weights": {"bias": 0.0, "forecast": 1.0}}
    with renewed(tagged, "card.json"):
        (tagged / "card.json").write_text(json.dumps({**card, "confidence": {"msvd": entry}}))
    with pytest.raises(BadCalibration, match=r"needs a forecast for its style in tags\.safetensors, which is missing"):
        load(tagged)
    with renewed(tagged, TAGS):
        replace(tags, forecasts={"msvd": forecast}).save(tagged / TAGS)
    found = load(tagged).describer.writer.forecast
    assert found is not None
    assert (found.words, found.rarity.tolist(), found.weights.dtype) == (["runs"], [1.5], np.int8)
    assert found.of(np.ones(size), ["runs"]) == forecast.of(np.ones(size), ["runs"]) > 0
    for wrong, told in (
        (replace(forecast, rarity=np.ones(2, np.float32)), "the sizes of its tensors do not fit each other"),
        (replace(forecast, scales=np.ones(2, np.float32)), "the sizes of its tensors do not fit each other"),
        (replace(forecast, weights=np.ones((size, 1), np.float32)), "is damaged"),
        (replace(forecast, scales=np.array([np.inf], np.float32)), "holds what is not a number, or is out of range"),
        (replace(forecast, rarity=np.array([np.nan], np.float32)), "holds what is not a number, or is out of range"),
    ):
        with renewed(tagged, TAGS):
            replace(tags, forecasts={"msvd": wrong}).save(tagged / TAGS)
        with pytest.raises(BadModel, match=told):
            load(tagged)


@pytest.mark.parametrize("signal", ["tags", "expectation"])
def test_a_confidence_with_tags_needs_them(tagged: Path, signal: str):
    card = json.loads((tagged / "card.json").read_text())
    entry = {"weights": {"bias": 0.0, signal: 1.0}}
    with renewed(tagged, "card.json"):
        (tagged / "card.json").write_text(json.dumps({**card, "confidence": {"msvd": entry}}))
    assert load(tagged).describer.confidence is not None
    (tagged / TAGS).unlink()
    with pytest.raises(BadModel, match=r"tags\.safetensors: is missing, but manifest\.json lists it"):
        load(tagged)
    (tagged / "manifest.json").unlink()
    with pytest.raises(BadCalibration, match=r"its confidence needs tags\.safetensors, which is missing"):
        load(tagged)


def test_damaged_tags_are_refused(tagged: Path):
    content = (tagged / TAGS).read_bytes()
    (tagged / TAGS).write_bytes(content[:-1] + b"?")
    with pytest.raises(BadModel, match=r"tags\.safetensors: has another content than manifest\.json"):
        load(tagged)
    (tagged / "manifest.json").unlink()
    (tagged / TAGS).write_bytes(content[:-3])
    with pytest.raises(BadModel, match=r"tags\.safetensors: is damaged .*; calibrate the model again"):
        load(tagged)


def test_tags_of_another_cnn_are_refused(tagged: Path):
    with renewed(tagged, TAGS):
        CATS_AND_DOGS.save(tagged / TAGS)
    with pytest.raises(BadModel, match=r"tags\.safetensors: was learned from 2 features, but the CNN has \d+; calib"):
        load(tagged)


def test_new_tags_end_the_confidences_made_with_the_old_ones():
    made_with = [{"weights": {"bias": 0.0, "tags": 1.0}}, {"weights": {"bias": 0.0, "expectation": 1.0}}]
    by_match = {"weights": {"bias": 0.0}, "match_weight": 1.0}
    entries = {"a": made_with[0], "b": {"weights": {"bias": 0.0}}, "c": made_with[1], "d": by_match}
    assert without_tags({"x": 1, "confidence": entries}) == {"x": 1, "confidence": {"b": entries["b"]}}
