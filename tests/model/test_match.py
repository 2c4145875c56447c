"""The match: how well a sentence fits what is seen, in the space of a canonical correlation analysis."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from picknet.captioner import load
from picknet.model.confidence import BadCalibration
from picknet.model.folder import TAGS, BadModel
from picknet.model.manifest import renewed
from picknet.model.match import Match
from picknet.model.tags import Tags
from picknet.study.tag_learning import Example, fit_match

KINDS = (
    (np.array([1.0, 0.0, 0.0]), ["a cat sits", "a black cat"]),
    (np.array([0.0, 1.0, 0.0]), ["a dog runs", "a dog"]),
    (np.array([0.0, 0.0, 1.0]), ["a bird sings", "birds"]),
)
WORDS = {word for _, captions in KINDS for text in captions for word in text.split()}


def _examples(count: int = 20) -> list[Example]:
    generator = np.random.default_rng(0)
    return [Example(x + 0.05 * generator.random(3), said) for _ in range(count) for x, said in KINDS]


def _tiny(size: int = 2) -> Match:
    """A plane: cats lie in the direction of the first feature, dogs in that of the second."""
    features = np.zeros((size, 2), np.int8)
    features[0, 0], features[1, 1] = 100, 50
    vectors, usual = np.array([[10, 0], [0, 100]], np.int8), np.zeros(2, np.float32)
    scales = np.array([1.0, 2.0], np.float32)
    return Match(["cat", "dog"], np.zeros(size, np.float32), features, scales, vectors, np.ones(2, np.float32), usual)


def test_the_match_is_a_cosine():
    match = _tiny()
    cat, both = match.seen(np.array([7.0, 0.0])), match.seen(np.array([3.0, 3.0]))
    assert both == pytest.approx(np.full(2, 2**-0.5))  # 100 · 1 and 50 · 2
    assert match.of(cat, ["a", "cat"]) == pytest.approx(1.0)  # the unknown word changes the length alone
    assert match.of(cat, ["cat", "cat"]) == pytest.approx(1.0)
    assert match.of(cat, ["dog"]) == pytest.approx(0.0)
    assert match.of(cat, ["cat", "dog"]) == pytest.approx(10 / 10_100**0.5)
    assert match.of(both, ["cat"]) == pytest.approx(2**-0.5)
    assert match.of(cat, ["bird"]) == match.of(cat, []) == match.of(match.seen(np.zeros(2)), ["cat"]) == 0.0
    # What is usual is taken off: a sentence like any other points nowhere.
    usual = replace(match, usual=np.array([10.0, 0.0], np.float32))
    assert usual.of(cat, ["cat"]) == 0.0
    assert usual.of(cat, ["dog"]) < 0


def test_a_match_learns_which_sentences_go_with_which_features():
    match = fit_match([_examples()], written=WORDS)
    assert set(match.words) == WORDS
    for x, said in KINDS:
        seen = match.seen(x)
        for _, others in KINDS:
            for text in others:
                assert (match.of(seen, text.split()) > 0.5) == (others is said)
    # Only words that captions can have are kept; they are where they were.
    few = fit_match([_examples()], written={"cat", "dog", "never"})
    assert set(few.words) == {"cat", "dog"}
    seen = KINDS[0][0]
    assert few.of(few.seen(seen), ["cat"]) == pytest.approx(match.of(match.seen(seen), ["cat"]), abs=1e-4)


def test_the_space_is_that_of_a_canonical_correlation_analysis(monkeypatch: pytest.MonkeyPatch):
    # In its directions both have a variance of 1, but for the correlation they count by, and none but that covariance.
    monkeypatch.setattr("picknet.study.tag_learning.PENALTY", 0.0)
    generator = np.random.default_rng(1)
    x = generator.random((400, 3))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    said = [[word for word, one in zip(("cat", "dog"), row, strict=False) if one > 0.5] + ["it"] for row in x]
    examples = [Example(features, [" ".join(words)]) for features, words in zip(x, said, strict=True)]
    match = fit_match([examples], written={"cat", "dog", "it"})
    seen = (x - x.mean(axis=0)) @ (match.features * match.feature_scales)
    vectors = dict(zip(match.words, match.vectors * match.scales[:, None], strict=True))
    spoken = np.array([sum(vectors[word] for word in words) / len(words) ** 0.5 for words in said])
    assert spoken.mean(axis=0) == pytest.approx(match.usual, abs=0.02)
    spoken = spoken - spoken.mean(axis=0)
    correlations = np.sqrt(np.diag(seen.T @ seen) / 400)
    assert seen.T @ seen / 400 == pytest.approx(np.diag(correlations**2), abs=0.02)
    assert seen.T @ spoken / 400 == pytest.approx(np.diag(correlations**3), abs=0.05)
    assert 1 > correlations[0] > correlations[1] > 0.2


def test_what_is_usual_in_another_data_set_is_nothing_to_learn():
    # All pictures of the other data set have the first feature and say "pictured".
    far = np.array([5.0, 0.0, 0.0])
    others = [Example(one.features + far, [f"{text} pictured" for text in one.captions]) for one in _examples()]
    match = fit_match([_examples(), others], written=WORDS | {"pictured"})
    assert match.mean == pytest.approx(fit_match([_examples()], written=WORDS).mean)
    plain, pictured = (match.of(match.seen(KINDS[0][0]), text.split()) for text in ("a cat", "a cat pictured"))
    assert plain > 0.5
    assert match.of(match.seen(KINDS[0][0]), ["pictured"]) < plain
    assert pictured > match.of(match.seen(KINDS[1][0]), ["a", "cat", "pictured"])


@pytest.fixture
def matching(model_folder: Path, tmp_path: Path) -> tuple[Path, Tags]:
    """A copy of the tiny model whose captions are chosen by a match that it lacks, and its tags."""
    copy = Path(shutil.copytree(model_folder, tmp_path / "copy"))
    side = load(copy).config.model.image_size
    size = load(copy).runtime.features(np.zeros((1, side, side, 3), np.uint8)).shape[-1]
    tags = Tags(["cat"], np.full(1, 0.25, np.float32), np.zeros(size, np.float32), np.zeros((size, 1), np.float32))
    with renewed(copy, TAGS):
        tags.save(copy / TAGS)
    card = json.loads((copy / "card.json").read_text())
    entry = {"weights": {"bias": 0.0}, "match_weight": 1.5}
    with renewed(copy, "card.json"):
        (copy / "card.json").write_text(json.dumps({**card, "confidence": {"msvd": entry}}))
    return copy, tags


def test_a_match_is_stored_with_the_tags(matching: tuple[Path, Tags]):
    model, tags = matching
    with pytest.raises(BadCalibration, match=r"needs a match for its style in tags\.safetensors, which is missing"):
        load(model)
    match = _tiny(len(tags.mean))
    with renewed(model, TAGS):
        replace(tags, matches={"msvd": match}).save(model / TAGS)
    writer = load(model).describer.writer
    assert writer.match_weight == 1.5
    assert writer.match is not None
    assert (writer.match.words, writer.match.vectors.dtype) == (["cat", "dog"], np.int8)
    features = np.ones(len(tags.mean))
    assert writer.match.of(writer.match.seen(features), ["cat"]) == match.of(match.seen(features), ["cat"]) > 0


@pytest.mark.parametrize(
    ("part", "wrong", "told"),
    [
        ("scales", np.ones(3, np.float32), "the sizes of a match's tensors do not fit each other"),
        ("usual", np.ones(3, np.float32), "the sizes of a match's tensors do not fit each other"),
        ("mean", np.ones(1, np.float32), "the sizes of a match's tensors do not fit each other"),
        ("features", np.ones(2, np.int8), "is damaged"),
        ("vectors", np.ones((2, 2), np.float32), "is damaged"),
        ("scales", np.array([1, np.nan], np.float32), "holds what is not a number, or is out of range"),
        ("usual", np.array([1, 1e30], np.float32), "holds what is not a number, or is out of range"),
        ("words", ["cat"], "the sizes of a match's tensors do not fit each other"),
    ],
)
def test_a_damaged_match_is_refused(matching: tuple[Path, Tags], part: str, wrong: object, told: str):
    model, tags = matching
    with renewed(model, TAGS):
        replace(tags, matches={"msvd": replace(_tiny(len(tags.mean)), **{part: wrong})}).save(model / TAGS)
    with pytest.raises(BadModel, match=r"tags\.safetensors: is damaged \(.*\); calibrate the model again") as error:
        load(model)
    assert told in str(error.value)


def test_a_match_of_another_cnn_is_refused(matching: tuple[Path, Tags]):
    model, tags = matching
    with renewed(model, TAGS):
        replace(tags, matches={"msvd": _tiny(len(tags.mean) + 1)}).save(model / TAGS)
    with pytest.raises(BadModel, match=r"was learned from \d+ features, but the CNN has \d+; calibrate the model"):
        load(model)
