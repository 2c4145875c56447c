"""The critic: how good a sentence will be, by its words and the decoder's states."""

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
from picknet.model.confidence import BadCalibration
from picknet.model.critic import Critic
from picknet.model.folder import TAGS, BadModel
from picknet.model.manifest import renewed
from picknet.model.memory import SceneMemory
from picknet.model.sentences import Found
from picknet.model.tags import Tags
from picknet.study.critic_learning import BEST_CIDER, fit_critic, learn_critic
from picknet.video.frame import Frame


def _critic(size: int = 2) -> Critic:
    states = np.arange(1, size + 1, dtype=np.float32)
    return Critic(["cat", "dog"], np.array([0.3, -0.2], np.float32), states, np.array([0.5, 0.01, 0.7], np.float32))


def test_a_critic_adds_up_words_states_score_and_length():
    critic, state = _critic(), np.array([0.1, -0.2], np.float32)
    # 0.7 for every sentence, 0.5 · -1 for the score, 1 · 0.1 - 2 · 0.2 for the states, 0.01 for each word.
    assert critic.of([], -1.0, state) == pytest.approx(-0.1)
    assert critic.of(["a", "cat"], -1.0, state) == pytest.approx(-0.1 + 0.02 + 0.3)
    assert critic.of(["cat", "cat", "dog"], -1.0, state) == pytest.approx(-0.1 + 0.03 + 0.3 - 0.2)


def test_a_critic_learns_which_words_and_states_go_with_good_sentences():
    generator = np.random.default_rng(0)
    found, cider = [], []
    for number in range(3000):
        words = [word for word in ("cat", "dog", "sits") if generator.random() < 0.5]
        words += [f"once{number}"] * generator.integers(4)  # the length tells nothing
        one = Found(words, float(-generator.random()), generator.standard_normal(4))
        found.append(one)
        cider.append(1.0 + 0.3 * ("cat" in words) - 0.2 * ("dog" in words) + 0.4 * one.score + 0.1 * one.state[2])
    critic = fit_critic(found, np.array(cider))
    assert critic.words == ["cat", "dog", "sits"]  # the others are in one sentence each
    assert critic.worths == pytest.approx([0.3, -0.2, 0.0], abs=0.01)
    # The penalty of states is as if as many sentences again contradicted them.
    assert critic.states == pytest.approx([0, 0, 0.05, 0], abs=0.005)
    assert critic.others[0] == pytest.approx(0.4, abs=0.02)
    judged = [critic.of(*one) for one in found]
    assert np.mean(judged) == pytest.approx(np.mean(cider), abs=1e-3)
    assert np.corrcoef(judged, cider)[0, 1] > 0.95


def test_a_large_number_of_sentences_is_added_up_in_parts(monkeypatch: pytest.MonkeyPatch):
    generator = np.random.default_rng(1)
    found = [Found(["a", "cat" if number % 3 else "dog"], -0.1 * number, generator.random(3)) for number in range(50)]
    cider = generator.random(50)
    whole = fit_critic(found, cider)
    monkeypatch.setattr("picknet.study.critic_learning.ROWS", 7)
    in_parts = fit_critic(found, cider)
    assert in_parts.words == whole.words
    for name in ("worths", "states", "others"):
        assert getattr(in_parts, name) == pytest.approx(getattr(whole, name), abs=1e-6)


def _pictures(folder: Path, said: str) -> list[Clip]:
    for number in range(6):
        Image.fromarray(np.full((40, 60, 3), 40 * number, np.uint8)).save(folder / f"{number}.png")
    (folder / "broken.png").write_bytes(b"no picture")
    return [Clip(path.stem, path, (said, "something else")) for path in sorted(folder.glob("*.png"))]


def test_a_critic_learns_from_what_the_model_writes(model_folder: Path, tmp_path: Path):
    captioner = load(model_folder)
    memory = SceneMemory(captioner.runtime)
    memory.add(Frame.blank(captioner.config.model.image_size))
    written = captioner.describer.writer.found(memory.state(), beam=captioner.config.beam)
    assert len(written) > 1
    assert all(one.state.shape == captioner.runtime.start_sentence()[0].shape for one in written)
    seen: list[str] = []
    clips = _pictures(tmp_path, " ".join(written[0].words))
    critic = learn_critic(captioner, [clips[:3], clips[3:]], on_clip=lambda clip: seen.append(clip.name))
    assert seen == [clip.name for clip in clips]  # the broken one, too
    assert set(critic.words) <= set(captioner.runtime.vocabulary.words)
    # What people said, too, is better than the others, and no better than the best.
    judged = [critic.of(*one) for one in written]
    assert judged[0] == max(judged)
    assert judged[0] <= BEST_CIDER + 0.1
    with pytest.raises(BadData, match="no clip to learn a critic from: none of them can be read"):
        learn_critic(captioner, [clips], held_back=[clip for clip in clips if clip.name != "broken"])


@pytest.fixture
def judged(model_folder: Path, tmp_path: Path) -> tuple[Path, Tags, int]:
    """A copy of the tiny model whose confidence needs a critic that it lacks, its tags, and the size of a state."""
    copy = Path(shutil.copytree(model_folder, tmp_path / "copy"))
    runtime = load(copy).runtime
    side = runtime.config.model.image_size
    size = runtime.features(np.zeros((1, side, side, 3), np.uint8)).shape[-1]
    tags = Tags(["cat"], np.full(1, 0.25, np.float32), np.zeros(size, np.float32), np.zeros((size, 1), np.float32))
    with renewed(copy, TAGS):
        tags.save(copy / TAGS)
    card = json.loads((copy / "card.json").read_text())
    with renewed(copy, "card.json"):
        entry = {"weights": {"bias": 0.0, "critic": 2.0}}
        (copy / "card.json").write_text(json.dumps({**card, "confidence": {"msvd": entry}}))
    return copy, tags, runtime.start_sentence().shape[1]


def test_a_critic_is_stored_with_the_tags(judged: tuple[Path, Tags, int]):
    folder, tags, size = judged
    with pytest.raises(BadCalibration, match=r"needs a critic for its style in tags\.safetensors, which is missing"):
        load(folder)
    critic = _critic(size)
    with renewed(folder, TAGS):
        replace(tags, critics={"msvd": critic}).save(folder / TAGS)
    captioner = load(folder)
    found = captioner.runtime.critic("msvd")
    assert found is not None
    assert captioner.runtime.critic("msrvtt") is captioner.runtime.forecast("msvd") is None
    assert found.words == critic.words
    assert found.of(["cat"], -1.0, np.ones(size)) == pytest.approx(critic.of(["cat"], -1.0, np.ones(size)))
    # It judges the caption, and the confidence follows it.
    memory = SceneMemory(captioner.runtime)
    memory.add(Frame.blank(8))
    signals = captioner.describer.writer.write(memory.state(), beam=2).signals
    best = captioner.describer.writer.found(memory.state(), beam=2)[0]
    assert signals.critic == pytest.approx(critic.of(*best), abs=1e-5)
    confidence = captioner.describer.confidence
    assert confidence is not None
    assert confidence.of(signals) == pytest.approx(1 / (1 + np.exp(-2 * signals.critic)))
    for wrong, told in (
        (replace(critic, worths=np.ones(3, np.float32)), "the sizes of a critic's tensors do not fit each other"),
        (replace(critic, others=np.ones(2, np.float32)), "the sizes of a critic's tensors do not fit each other"),
        (replace(critic, states=np.ones((size, 1), np.float32)), "the sizes of a critic's tensors do not fit"),
        (replace(critic, states=np.full(size, np.nan, np.float32)), "a critic holds what is not a number"),
        (replace(critic, worths=np.array([1e6, 0], np.float32)), "a critic holds what is not a number"),
        (_critic(size + 1), rf"states of {size + 1} numbers, but those of the decoder have {size}; calibrate the mo"),
    ):
        with renewed(folder, TAGS):
            replace(tags, critics={"msvd": wrong}).save(folder / TAGS)
        with pytest.raises(BadModel, match=told):
            load(folder)
