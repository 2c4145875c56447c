"""Tags: the words to expect by the features of picks, and a caption's agreement with them."""

import json
import shutil
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
from picknet.model.tags import Tags
from picknet.study.tag_learning import Example, fit_tags, learn_tags

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


def test_pictures_teach_tags_as_clips_do(model_folder: Path, tmp_path: Path):
    captioner = load(model_folder)
    for name, grey in (("dark", 20), ("bright", 230)):
        Image.fromarray(np.full((40, 60, 3), grey, np.uint8)).save(tmp_path / f"{name}.png")
    (tmp_path / "broken.jpg").write_bytes(b"no picture")
    said = {"dark": "night falls", "bright": "snow shines", "broken": "nothing there"}
    clips = [Clip(path.stem, path, (said[path.stem],)) for path in sorted(tmp_path.iterdir())]
    seen = []
    tags = learn_tags(captioner, [clips], like=captioner, on_clip=lambda clip: seen.append(clip.name))
    assert seen == ["bright", "broken", "dark"]
    assert set(tags.words) == {"night", "fall", "snow", "shin"}
    size = captioner.config.model.image_size
    features = captioner.runtime.features(np.full((1, size, size, 3), 20, np.uint8))[0].mean(axis=0)
    expected = tags.expected(features)
    assert tags.agreement(expected, {"night"}) > 0.3 > -0.3 > tags.agreement(expected, {"snow"})
    with pytest.raises(BadData, match="no clip to learn tags from: none of them can be read"):
        learn_tags(captioner, [clips[1:2]], like=captioner)


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


def test_new_tags_end_the_confidences_made_with_the_old_ones():
    made_with = [{"weights": {"bias": 0.0, "tags": 1.0}}, {"weights": {"bias": 0.0, "expectation": 1.0}}]
    entries = {"a": made_with[0], "b": {"weights": {"bias": 0.0}}, "c": made_with[1]}
    assert without_tags({"x": 1, "confidence": entries}) == {"x": 1, "confidence": {"b": entries["b"]}}
