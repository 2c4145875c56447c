"""The captioning systems of the paper's tables: what is special in each, and what all have in common."""

import numpy as np
import pytest
import torch

from picknet.config import ModelConfig
from picknet.text import BOS, EOS, PAD, UNK
from picknet.training.systems import SYSTEMS, build

FEATURES, WORDS = 7, 9


def built(system, **settings):
    torch.manual_seed(0)
    sizes = {"embedding_size": 6, "state_size": 5, "dropout": 0.0, **settings}
    encoder, decoder = build(ModelConfig(system=system, **sizes), feature_size=FEATURES, num_words=WORDS)
    return encoder.eval(), decoder.eval()


def features(clips=3, picks=4):
    return torch.randn(clips, picks, 1, FEATURES, generator=torch.Generator().manual_seed(1))


every_system = pytest.mark.parametrize("system", SYSTEMS)


@every_system
def test_frames_read_one_by_one_give_the_memory_of_the_whole_clip_and_padding_changes_nothing(system):
    encoder, _ = built(system)
    frames, counts = features(), torch.tensor([4, 2, 1])
    whole = encoder(frames, counts)
    for clip, count in enumerate(counts.tolist()):
        state, cells = encoder.start(1), []
        for frame in frames[clip, :count]:
            state, *kept = encoder.step(frame[None], state)
            cells.append(kept)
        torch.testing.assert_close(whole.video[clip], state.h[0])
        keys, values = (torch.cat(parts, dim=1)[0] for parts in zip(*cells, strict=True))
        present = whole.present[clip]
        torch.testing.assert_close(whole.keys[clip][present], keys)
        torch.testing.assert_close(whole.values[clip][present], values)
    assert (whole.keys.shape[1] > 0) == encoder.attended == ModelConfig(system=system).attends


@every_system
def test_words_written_one_by_one_have_the_probabilities_of_the_whole_sentence(system):
    encoder, decoder = built(system)
    memory = encoder(features(), torch.tensor([4, 4, 4]))
    words = torch.tensor([[BOS, 4, 5], [BOS, 6, 7], [BOS, 8, 4]])
    logits = decoder(memory, words)
    state = torch.zeros(3, decoder.size)
    for t in range(3):
        log_probabilities, state = decoder.step(words[:, t], *memory[:3], state)
        torch.testing.assert_close(logits[:, t].log_softmax(-1), log_probabilities)
    fed_back = decoder(memory, words, feed_back=(False, True, False))
    logits[:, :, [PAD, BOS, UNK]] = -torch.inf
    own = decoder(memory, torch.stack([words[:, 0], logits[:, 0].argmax(-1), words[:, 2]], dim=1))
    torch.testing.assert_close(fed_back, own)


@every_system
def test_a_few_steps_teach_a_system_to_tell_two_videos_apart(system):
    encoder, decoder = built(system, embedding_size=16, state_size=16)
    frames, counts = features(clips=2), torch.tensor([4, 3])
    words = torch.tensor([[BOS, 4, 5, EOS, PAD], [BOS, 6, 7, 8, EOS]])
    parameters = list({id(p): p for module in (encoder, decoder) for p in module.parameters()}.values())
    optimiser = torch.optim.Adam(parameters, lr=0.02)
    settings = {"feed_back": (), "never_written": (PAD, BOS, UNK), "label_smoothing": 0.0}
    for _ in range(60):
        optimiser.zero_grad()
        decoder.loss(encoder(frames, counts), words, **settings).backward()
        optimiser.step()
    assert all(parameter.grad is not None for parameter in parameters)
    written = decoder.write(encoder(frames, counts), max_words=8)
    assert written[:, :4].tolist() == words[:, 1:].tolist()


def test_the_mean_of_features_is_taken_of_the_frames_that_there_are():
    encoder, _ = built("mean")
    frames = features()
    expected = encoder.embed(frames[1, :2, 0].mean(0))
    torch.testing.assert_close(encoder(frames, torch.tensor([4, 2, 1])).video[1], expected)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(module):
    return {name: weight.detach().double().numpy() for name, weight in module.state_dict().items()}


def lstm(w, name, x, h, c):
    """One step of an LSTM in float64."""
    gates = x @ w[f"{name}.weight_ih"].T + w[f"{name}.bias_ih"] + h @ w[f"{name}.weight_hh"].T + w[f"{name}.bias_hh"]
    i, f, g, o = np.split(gates, 4, axis=-1)
    c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
    return sigmoid(o) * np.tanh(c), c


def test_ta_weighs_the_frames_by_its_state_before_each_word():
    encoder, decoder = built("ta")
    memory = encoder(features(clips=1), torch.tensor([4]))
    w, (mean, keys, values, _) = arrays(decoder), (part.double().detach().numpy() for part in memory)
    h, c = np.split(np.tanh(mean @ w["start.weight"].T + w["start.bias"]), 2, axis=-1)
    scores = np.tanh(h @ w["attention.query.weight"].T + keys[0]) @ w["attention.score.weight"][0]
    weights = np.exp(scores) / np.exp(scores).sum()
    found = (weights[:, None] * values[0]).sum(0, keepdims=True)
    word = w["embed.weight"][[BOS]]
    h, c = lstm(w, "lstm", np.concatenate([word, found], axis=1), h, c)
    joined = np.concatenate([h, found, word], axis=1)
    output = np.tanh(joined @ w["before_output.weight"].T + w["before_output.bias"])
    logits = output @ w["output.weight"].T + w["output.bias"]
    np.testing.assert_allclose(decoder(memory, torch.tensor([[BOS]])).detach().numpy()[0], logits, atol=1e-5)
    assert weights.std() > 0


def test_s2vt_writes_with_the_stack_that_has_read_and_goes_on_with_its_states():
    encoder, decoder = built("s2vt")
    assert decoder.stack is encoder.stack
    frames = features(clips=1, picks=2)
    w, state = arrays(encoder), [np.zeros((1, 5))] * 4
    seen = frames[0, :, 0].double().numpy() @ w["embed.weight"].T + w["embed.bias"]
    nothing, embedded = np.zeros((1, 6)), decoder.embed.weight.detach().double().numpy()
    inputs = [(seen[:1], nothing), (seen[1:], nothing), (nothing, embedded[[BOS]]), (nothing, embedded[[4]])]
    for frame, word in inputs:
        h1, c1 = lstm(w, "stack.first", frame, *state[:2])
        h2, c2 = lstm(w, "stack.second", np.concatenate([h1, word], axis=1), *state[2:])
        state = [h1, c1, h2, c2]
    logits = decoder(encoder(frames, torch.tensor([2])), torch.tensor([[BOS, 4]]))[0, 1]
    expected = state[2] @ decoder.output.weight.detach().double().numpy().T
    np.testing.assert_allclose(logits.detach().numpy(), expected[0], atol=1e-5)


@pytest.mark.parametrize("system", ["s2vt", "p-rnn", "hrne"])
def test_the_graphs_of_a_system_compute_what_the_network_does(system, tmp_path):
    """Its two graphs alone: to export the CNN with each takes long."""
    from safetensors.torch import save_file

    from picknet.model.graphs import _core, _read
    from picknet.training import export

    network = torch.nn.ModuleDict(dict(zip(("encoder", "decoder"), built(system), strict=True)))
    network.encoder, network.decoder = network["encoder"], network["decoder"]
    weights, shared = tmp_path / "weights.safetensors", export._shared(network)
    save_file({name: weight.clone() for name, weight in network.state_dict().items() if name not in shared}, weights)
    inputs = {
        "features": torch.randn(2, 1, FEATURES),
        "h": torch.zeros(2, network.encoder.size),
        "c": torch.zeros(2, network.encoder.size),
        "words": torch.tensor([BOS, 5]),
        "video": torch.zeros(1, network.encoder.size),
        "keys": torch.zeros(1, 3, 6),
        "values": torch.zeros(1, 3, 6),
        "state": torch.zeros(2, network.decoder.size),
    }
    compiled = {}
    for name, graph in {"encoder": export._EncoderGraph(network), "decoder": export._DecoderGraph(network)}.items():
        path = tmp_path / f"{name}.onnx"
        export._export_graph(graph.eval(), {key: inputs[key] for key in graph.inputs}, path, weights, shared)
        compiled[name] = _core().compile_model(_read(path), "CPU", {"INFERENCE_PRECISION_HINT": "f32"})

    def run(name, **given):
        return list(compiled[name]({key: np.asarray(array) for key, array in given.items()}).values())

    frames = features(clips=3)
    expected = network.encoder(frames, torch.tensor([4, 4, 4]))
    state, kept = [np.zeros((3, network.encoder.size), np.float32)] * 2, []
    for frame in frames.unbind(1):
        *state, keys, values = (*run("encoder", features=frame, h=state[0], c=state[1]), None, None)[:4]
        kept.append((keys, values))
    np.testing.assert_allclose(state[0], expected.video.detach(), atol=1e-5)
    cells = {}
    if network.encoder.attended:
        keys, values = (np.concatenate(parts, axis=1) for parts in zip(*kept, strict=True))
        cells = {"keys": keys, "values": values}
    for rows in (slice(0, 1), slice(0, 3)):  # one video for all sentences, and one for each
        words, written = np.array([BOS, BOS, BOS]), np.zeros((3, network.decoder.size), np.float32)
        theirs, memory = torch.zeros(3, network.decoder.size), [part[rows] for part in expected[:3]]
        for _ in range(2):
            given = {"video": state[0][rows], **{key: part[rows] for key, part in cells.items()}, "state": written}
            log_probabilities, written = run("decoder", words=words, **given)
            with torch.no_grad():
                wanted, theirs = network.decoder.step(torch.from_numpy(words), *memory, theirs)
            np.testing.assert_allclose(log_probabilities, wanted, atol=1e-4)
            words = np.array([4, 5, 6])
