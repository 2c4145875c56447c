"""Tags: the words to expect by the features of picks, and a caption's agreement with them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from picknet.captioner import load
from picknet.model.confidence import BadCalibration, without_tags
from picknet.model.folder import TAGS, BadModel, ModelFolder
from picknet.model.manifest import read_manifest, renewed
from picknet.model.tags import Tags
from picknet.study.tag_learning import fit_tags

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
    tags = fit_tags(features, [["a cat sits", "cats sit"] if one else ["a dog runs", "dogs"] for one in is_cat])
    assert set(tags.words) == {"cat", "sit", "dog", "run"}
    assert dict(zip(tags.words, tags.shares.tolist(), strict=True)) == {"cat": 0.5, "sit": 0.5, "dog": 0.5, "run": 0.25}
    expected = tags.expected(np.array([1.0, 0.0, 1.0]))
    assert tags.agreement(expected, {"cat", "sit"}) > 0.5
    assert tags.agreement(expected, {"dog"}) < -0.3


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
        assert (signals.tags is None) == (folder == model_folder)


def test_a_confidence_with_tags_needs_them(tagged: Path):
    card = json.loads((tagged / "card.json").read_text())
    entry = {"weights": {"bias": 0.0, "tags": 1.0}}
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
    entries = {"a": {"weights": {"bias": 0.0, "tags": 1.0}}, "b": {"weights": {"bias": 0.0}}}
    assert without_tags({"x": 1, "confidence": entries}) == {"x": 1, "confidence": {"b": entries["b"]}}
