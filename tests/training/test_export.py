"""Model folders: written completely or not at all, and read back in PyTorch and by the runtime."""

import copy
import shutil
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
import torch
from folders import unsealed
from policies import random_inputs
from safetensors.torch import load_file, save_file

from picknet.config import Config, ModelConfig
from picknet.files import UnwritableFile
from picknet.model.folder import BadModel
from picknet.model.runtime import PRECISION, Runtime
from picknet.text import BOS, Vocabulary
from picknet.training.export import export, load_network
from picknet.training.network import Network

SMALL = ModelConfig(
    cnn="efficientnet_lite0", image_size=64, embedding_size=6, state_size=5, picker_hidden=7, dropout=0.0
)


@pytest.fixture(scope="module")
def small(tmp_path_factory, traced_cnns):
    torch.manual_seed(3)
    vocabulary = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "a", "man", "cat"))
    config = Config(model=SMALL)
    network = Network(SMALL, len(vocabulary)).eval()
    folder = tmp_path_factory.mktemp("model") / "small"
    export(network, vocabulary, config, folder, card={"trained_on": "nothing"})
    return network, vocabulary, config, folder


@pytest.fixture(params=["the paper's", "attending"])
def either(request, small):
    """A model folder of each kind."""
    return small[-1] if request.param == "the paper's" else request.getfixturevalue("attending_folder")


def test_a_model_folder_loads_as_the_same_network(small):
    network, vocabulary, config, folder = small
    again, words, settings = load_network(folder)
    assert (words.words, settings) == (vocabulary.words, config)
    before, after = network.state_dict(), again.state_dict()
    for name, tensor in before.items():
        torch.testing.assert_close(after[name].float(), tensor.float(), atol=2e-3, rtol=2e-3)


def test_the_graphs_compute_what_pytorch_computes(either):
    network, _, config = load_network(either)
    network.eval()
    with patch.dict(PRECISION, encoder="f32"):  # features of random weights are large, and so are errors of 16 bits
        runtime = Runtime(either)
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    inputs = random_inputs(config.model, generator, 3)
    features = runtime.features(pixels)
    with torch.inference_mode():
        expected = network.cnn(torch.from_numpy(pixels)).numpy()
        np.testing.assert_allclose(features, expected, atol=0.05 * np.abs(expected).max())
        policy = network.picknet(*map(torch.from_numpy, inputs.values()))
        logits = policy if config.model.picker == "difference" else policy[0]
        np.testing.assert_allclose(runtime.policy(inputs)["logits"], logits.numpy(), atol=2e-3)

        # The two frames are one after the other the picks of one video.
        state, peer_state = runtime.start(), network.encoder.start(1)
        for frame in features:
            state = runtime.encode(frame[None], state)
            peer_state, _, _ = network.encoder.step(torch.from_numpy(frame[None]), peer_state)
        memory = network.encoder(torch.from_numpy(features[None]), torch.tensor([2]))
        np.testing.assert_allclose(state.h, peer_state.h.numpy(), atol=5e-3)
        np.testing.assert_allclose(state.c, peer_state.c.numpy(), atol=5e-3)
        for ours, theirs in ((state.h, memory.video), (state.keys, memory.keys), (state.values, memory.values)):
            np.testing.assert_allclose(ours, theirs.numpy(), atol=5e-3)

        words = np.array([BOS, 5, 4])
        states = generator.standard_normal((3, config.model.state_size)).astype(np.float32)
        log_probabilities, following = runtime.decode(words, state, states)
        peer_log, peer_following = network.decoder.step(torch.from_numpy(words), *memory[:3], torch.from_numpy(states))
        np.testing.assert_allclose(log_probabilities, peer_log.numpy(), atol=1e-2)
        np.testing.assert_allclose(following, peer_following.numpy(), atol=5e-3)


def test_weights_are_stored_once(either):
    graphs = sum(path.stat().st_size for path in either.glob("*.onnx"))
    assert graphs < 0.1 * (either / "weights.safetensors").stat().st_size


def test_the_policy_has_a_weights_file_of_its_own(either):
    policy, captioner = (load_file(either / name) for name in ("policy.safetensors", "weights.safetensors"))
    assert policy
    assert all(name.startswith("picknet.") for name in policy)
    assert {name.partition(".")[0] for name in captioner} == {"cnn", "encoder", "decoder"}


def test_a_new_policy_leaves_the_captioner_as_it_is(small, tmp_path):
    network, vocabulary, config, folder = small
    other = copy.deepcopy(network)
    with torch.no_grad():
        other.picknet.decide.bias += 1
    export(other, vocabulary, config, tmp_path / "other")
    for part in ("weights.safetensors", "cnn.onnx", "encoder.onnx", "decoder.onnx", "policy.onnx", "words.txt"):
        assert (tmp_path / "other" / part).read_bytes() == (folder / part).read_bytes(), part
    before, after = (Path(parent / "policy.safetensors").read_bytes() for parent in (folder, tmp_path / "other"))
    assert before != after


def test_a_model_without_its_policy_is_refused(small, tmp_path):
    broken = shutil.copytree(small[-1], tmp_path / "broken")
    (broken / "policy.safetensors").unlink()
    with pytest.raises(BadModel, match=r"broken: incomplete model: policy\.safetensors missing or empty; export"):
        Runtime(broken)
    with pytest.raises(BadModel, match=r"broken/policy\.safetensors: cannot be read \("):
        load_network(broken)


def test_the_policy_of_another_model_is_refused(small, attending_folder, tmp_path):
    broken = unsealed(small[-1], tmp_path / "broken")
    shutil.copy(attending_folder / "policy.safetensors", broken)
    expected = r"policy\.safetensors: does not fit config\.toml and words\.txt beside it \(first difference: picknet\."
    with pytest.raises(BadModel, match=expected):
        load_network(broken)


def test_an_older_policy_among_the_captioners_weights_is_ignored(small, tmp_path):
    network, *_, folder = small
    older = unsealed(folder, tmp_path / "older")
    weights = load_file(older / "weights.safetensors")
    save_file(weights | {"picknet.clock": torch.ones(3)}, older / "weights.safetensors")
    again, *_ = load_network(older)
    assert torch.equal(again.picknet.decide.bias, network.picknet.decide.bias)


def test_export_does_not_overwrite_a_folder_that_is_not_a_model(small, tmp_path):
    network, vocabulary, config, _ = small
    (tmp_path / "precious.txt").write_text("keep me")
    with pytest.raises(UnwritableFile, match="exists and is not a model folder; choose a new folder"):
        export(network, vocabulary, config, tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["precious.txt"]


def test_weights_that_do_not_fit_their_config_are_refused(small, tmp_path):
    *_, folder = small
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    config = (broken / "config.toml").read_text().replace("state_size = 5", "state_size = 4")
    (broken / "config.toml").write_text(config)
    with pytest.raises(BadModel, match=r"weights.safetensors: does not fit config.toml"):
        load_network(broken)


@pytest.fixture
def no_graphs(monkeypatch):
    monkeypatch.setattr("picknet.training.export._export_graphs", lambda *_: None)


@pytest.mark.usefixtures("no_graphs")
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
@pytest.mark.parametrize("failing", [1, 2])
def test_an_export_that_is_interrupted_between_its_renames_keeps_the_old_model(
    error, failing, small, tmp_path, monkeypatch
):
    network, vocabulary, config, _ = small
    target = tmp_path / "model"
    export(network, vocabulary, config, target, card={"version": 1})
    rename, calls = Path.rename, []

    def interrupted(self, to):
        calls.append(to)
        if len(calls) == failing:
            raise error
        return rename(self, to)

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(UnwritableFile if error is OSError else KeyboardInterrupt):
        export(network, vocabulary, config, target, card={"version": 2})
    monkeypatch.undo()
    assert (target / "card.json").read_text() == '{\n  "version": 1\n}\n'
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.usefixtures("no_graphs")
def test_an_export_interrupted_after_its_renames_leaves_the_new_model(small, tmp_path, monkeypatch):
    network, vocabulary, config, _ = small
    target = tmp_path / "model"
    export(network, vocabulary, config, target, card={"version": 1})
    rename = Path.rename

    def interrupted(self, to):
        rename(self, to)
        if to == target:
            raise KeyboardInterrupt

    monkeypatch.setattr(Path, "rename", interrupted)
    with pytest.raises(KeyboardInterrupt):
        export(network, vocabulary, config, target, card={"version": 2})
    monkeypatch.undo()
    assert '"version": 2' in (target / "card.json").read_text()
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


@pytest.mark.usefixtures("no_graphs")
def test_replacing_a_model_named_with_a_dot_touches_no_other_folder(small, tmp_path):
    network, vocabulary, config, _ = small
    target, other = tmp_path / "v1.2", tmp_path / ".v1.old"
    other.mkdir()
    (other / "precious.txt").write_text("keep me")
    for version in (1, 2):
        export(network, vocabulary, config, target, card={"version": version})
    assert '"version": 2' in (target / "card.json").read_text()
    assert sorted(path.name for path in tmp_path.iterdir()) == [".v1.old", "v1.2"]
    assert (other / "precious.txt").read_text() == "keep me"
