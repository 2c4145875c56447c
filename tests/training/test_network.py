"""The paper's equations, each against numbers worked out by hand or by NumPy in float64."""

import math
import re
import sys
import types
from dataclasses import replace
from fnmatch import fnmatch
from typing import ClassVar

import numpy as np
import pytest
import torch

from picknet.config import ModelConfig
from picknet.text import BOS, EOS, PAD, UNK
from picknet.training.cnn import CNN, UnknownCNN
from picknet.training.network import Attention, Decoder, Encoder, LSTMState, Memory, Network
from picknet.training.policies import PickNet, RatePickNet

SMALL = ModelConfig(
    cnn="efficientnet_lite0", image_size=64, embedding_size=6, state_size=5, picker_hidden=7, dropout=0.0
)
ATTENDING = replace(SMALL, grid=2, attention_heads=2, attention_hidden=8)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(module):
    return {name: p.detach().double().numpy() for name, p in module.named_parameters()}


def video_alone(video):
    """The memory of a decoder without attention."""
    nothing = torch.zeros(len(video), 0, 6)
    return Memory(video, nothing, nothing, torch.ones(len(video), 0, dtype=torch.bool))


def test_the_network_has_the_picker_of_its_config():
    pickers = [Network(replace(SMALL, picker=name), 5, pretrained=False).picknet for name in ("difference", "rate")]
    assert [type(picker) for picker in pickers] == [PickNet, RatePickNet]


@pytest.mark.parametrize(("gate", "function"), [("sigmoid", sigmoid), ("tanh", np.tanh)])
def test_the_encoder_is_the_papers_lstm(gate, function):
    encoder = Encoder(ModelConfig(embedding_size=6, state_size=5, output_gate=gate, dropout=0.0), feature_size=4)
    w = arrays(encoder)
    features = torch.randn(2, 3, 1, 4)
    h = c = np.zeros((2, 5))
    for t in range(3):
        x = features[:, t, 0].double().numpy() @ w["embed.weight"].T + w["embed.bias"]

        def gate_of(k, x=x, h=h):
            rows = slice(5 * k, 5 * k + 5)
            return x @ w["from_input.weight"][rows].T + h @ w["from_state.weight"][rows].T + w["from_input.bias"][rows]

        i, f, g, o = sigmoid(gate_of(0)), sigmoid(gate_of(1)), np.tanh(gate_of(2)), function(gate_of(3))
        c = f * c + i * g
        h = o * np.tanh(c)
    np.testing.assert_allclose(encoder(features, torch.tensor([3, 3])).video.detach().numpy(), h, atol=1e-6)


def test_with_a_sigmoid_gate_the_encoder_is_pytorchs_own_lstm():
    encoder = Encoder(ModelConfig(embedding_size=6, state_size=5, dropout=0.0), feature_size=4)
    peer = torch.nn.LSTM(6, 5, batch_first=True)
    peer.load_state_dict(
        {
            "weight_ih_l0": encoder.from_input.weight,
            "weight_hh_l0": encoder.from_state.weight,
            "bias_ih_l0": encoder.from_input.bias,
            "bias_hh_l0": torch.zeros(20),
        }
    )
    features = torch.randn(2, 7, 1, 4)
    _, (h, _) = peer(encoder.embed(features[:, :, 0]))
    torch.testing.assert_close(encoder(features, torch.tensor([7, 7])).video, h[0])


def test_the_encoder_takes_the_mean_of_a_frames_cells():
    encoder = Encoder(replace(SMALL, grid=2), feature_size=4)
    features = torch.randn(2, 3, 4, 4)
    memory = encoder(features, torch.tensor([3, 3]))
    torch.testing.assert_close(memory.video, encoder(features.mean(2, keepdim=True), torch.tensor([3, 3])).video)
    assert memory.keys.shape == memory.values.shape == (2, 0, 6)  # nobody would look at them


def test_the_encoder_stops_at_a_clips_last_picked_frame_and_steps_give_the_same():
    encoder = Encoder(ATTENDING, feature_size=4)
    features = torch.randn(2, 6, 4, 4)
    memory = encoder(features, torch.tensor([6, 2]))
    state, keys, values = encoder.start(1), [], []
    for t in range(2):
        state, *laid_out = encoder.step(features[1:, t], state)
        keys.append(laid_out[0])
        values.append(laid_out[1])
    torch.testing.assert_close(memory.video[1:], state.h)
    torch.testing.assert_close(memory.keys[1:, :8], torch.cat(keys, dim=1))
    torch.testing.assert_close(memory.values[1:, :8], torch.cat(values, dim=1))
    assert memory.present.tolist() == [[True] * 24, [True] * 8 + [False] * 16]


def layer_norm(x):
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + 1e-5)


def test_the_keys_and_values_of_a_cell_are_made_of_its_feature_and_its_place_in_the_grid():
    encoder = Encoder(ATTENDING, feature_size=4)
    w = arrays(encoder)
    features = torch.randn(3, 4, 4)
    cells = features.double().numpy() @ w["embed.weight"].T + w["embed.bias"]
    both = (layer_norm(cells) + w["place"]) @ w["lay_out.weight"].T + w["lay_out.bias"]
    _, keys, values = encoder.step(features, encoder.start(3))
    np.testing.assert_allclose(keys.detach().numpy(), both[..., :6], atol=1e-5)
    np.testing.assert_allclose(values.detach().numpy(), both[..., 6:], atol=1e-5)


def attention_in_numpy(w, states, keys, values, heads):
    """One clip: states (length, S), keys and values (cells, E) -> (length, S), head by head."""
    query = layer_norm(states) @ w["query.weight"].T + w["query.bias"]
    size = keys.shape[1] // heads
    found = []
    for head in range(heads):
        part = slice(head * size, head * size + size)
        weights = np.exp(query[:, part] @ keys[:, part].T / math.sqrt(size))
        found.append(weights / weights.sum(1, keepdims=True) @ values[:, part])
    states = states + np.concatenate(found, axis=1) @ w["found.weight"].T + w["found.bias"]
    wide = layer_norm(states) @ w["widen.weight"].T + w["widen.bias"]
    wide = wide * (1 + np.vectorize(math.erf)(wide / math.sqrt(2))) / 2  # GELU
    return layer_norm(states + wide @ w["narrow.weight"].T + w["narrow.bias"])


def test_attention_is_a_softmax_over_cells_in_each_head_then_two_layers():
    attention = Attention(ATTENDING)
    w = arrays(attention)
    states, keys, values = torch.randn(2, 3, 5), torch.randn(2, 4, 6), torch.randn(2, 4, 6)
    found = attention(states, keys, values).detach().numpy()
    for i in range(2):
        peer = attention_in_numpy(w, *(part[i].double().numpy() for part in (states, keys, values)), heads=2)
        np.testing.assert_allclose(found[i], peer, atol=1e-5)


def test_the_cells_of_picks_a_clip_does_not_have_change_nothing():
    encoder, decoder = Encoder(ATTENDING, feature_size=4), Decoder(ATTENDING, num_words=9)
    features, words = torch.randn(2, 5, 4, 4), torch.tensor([[BOS, 4, 5], [BOS, 6, 7]])
    padded = decoder(encoder(features, torch.tensor([5, 2])), words)
    alone = decoder(encoder(features[1:, :2], torch.tensor([2])), words[1:])
    torch.testing.assert_close(padded[1:], alone)
    features[1, 2:] = 1e3
    torch.testing.assert_close(decoder(encoder(features, torch.tensor([5, 2])), words), padded)


def test_a_word_follows_from_what_attention_finds():
    decoder = Decoder(ATTENDING, num_words=9)
    w = arrays(decoder.attention)
    words, video, state = torch.tensor([4, 7]), torch.randn(2, 5), torch.randn(2, 5)
    keys, values = torch.randn(1, 4, 6), torch.randn(1, 4, 6)
    log_probabilities, following = decoder.step(words, video, keys, values, state)
    p, cells = following.detach().double().numpy(), (keys[0].double().numpy(), values[0].double().numpy())
    scores = np.exp(attention_in_numpy(w, p, *cells, heads=2) @ decoder.output.weight.detach().double().numpy().T)
    expected = np.log(scores / scores.sum(1, keepdims=True))
    np.testing.assert_allclose(log_probabilities.detach().numpy(), expected, atol=1e-5)


def test_tied_words_are_written_by_the_matrix_they_are_read_by():
    decoder = Decoder(replace(SMALL, tied_words=True), num_words=9)
    w = arrays(decoder)
    assert w["output.weight"].shape == (6, 5)
    video, state, nothing = torch.randn(1, 5), torch.randn(1, 5), torch.zeros(1, 0, 6)
    log_probabilities, following = decoder.step(torch.tensor([4]), video, nothing, nothing, state)
    logits = following.detach().double().numpy() @ w["output.weight"].T @ w["embed.weight"].T
    expected = logits - np.log(np.exp(logits).sum())
    np.testing.assert_allclose(log_probabilities.detach().numpy(), expected, atol=1e-5)
    # An untrained decoder is unsure: no word is much likelier than 1/9.
    assert log_probabilities.exp().max().item() < 2 / 9


def test_the_memories_of_rows_are_those_rows():
    memory = Memory(*(torch.arange(3.0)[:, None] + 10 * k for k in range(4)))
    again = memory.of(torch.tensor([0, 0, 2]))
    assert [part[:, 0].tolist() for part in again] == [[0, 0, 2], [10, 10, 12], [20, 20, 22], [30, 30, 32]]


def test_the_decoder_is_the_papers_gru_and_not_pytorchs():
    decoder = Decoder(ModelConfig(embedding_size=6, state_size=5, dropout=0.0), num_words=9)
    w = arrays(decoder)
    words, video, state = torch.tensor([4, 7]), torch.randn(2, 5), torch.randn(2, 5)
    x, v, p = w["embed.weight"][[4, 7]], video.double().numpy(), state.double().numpy()
    part = [slice(0, 5), slice(5, 10), slice(10, 15)]

    def given(k):
        rows = part[k]
        return x @ w["from_word.weight"][rows].T + v @ w["from_video.weight"][rows].T + w["from_word.bias"][rows]

    z = sigmoid(given(0) + p @ w["gates_from_state.weight"][part[0]].T)
    r = sigmoid(given(1) + p @ w["gates_from_state.weight"][part[1]].T)
    candidate = np.tanh(given(2) + (r * p) @ w["from_state.weight"].T)
    expected = (1 - z) * p + z * candidate
    scores = np.exp(expected @ w["output.weight"].T)
    log_probabilities, following = decoder.step(words, *video_alone(video)[:3], state)
    np.testing.assert_allclose(following.detach().numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(
        log_probabilities.detach().numpy(), np.log(scores / scores.sum(1, keepdims=True)), atol=1e-5
    )


with_and_without_attention = pytest.mark.parametrize(
    "config", [SMALL, replace(ATTENDING, tied_words=True)], ids=["the paper's", "attending"]
)


def remembered(config):
    """The memory of two clips of noise."""
    return Encoder(config, feature_size=4)(torch.randn(2, 3, config.grid**2, 4), torch.tensor([3, 3]))


@with_and_without_attention
def test_teacher_forcing_gives_the_logits_of_single_steps(config):
    decoder, memory = Decoder(config, num_words=9), remembered(config)
    words = torch.tensor([[BOS, 4, 5], [BOS, 6, 7]])
    logits = decoder(memory, words)
    state = torch.zeros(2, 5)
    for t in range(3):
        log_probabilities, state = decoder.step(words[:, t], *memory[:3], state)
        torch.testing.assert_close(logits[:, t].log_softmax(-1), log_probabilities)


@with_and_without_attention
def test_scheduled_sampling_feeds_back_the_decoders_own_word(config):
    decoder, memory = Decoder(config, num_words=9), remembered(config)
    words = torch.tensor([[BOS, 4, 5], [BOS, 6, 7]])
    logits = decoder(memory, words)[:, 0]
    logits[:, [PAD, BOS, UNK]] = -torch.inf
    likeliest = logits.argmax(-1)
    fed_back = decoder(memory, words, feed_back=(False, True, False))
    expected = decoder(memory, torch.stack([words[:, 0], likeliest, words[:, 2]], dim=1))
    torch.testing.assert_close(fed_back, expected)


def test_scheduled_sampling_never_feeds_back_a_word_that_is_never_written():
    decoder, memory = Decoder(SMALL, num_words=9), video_alone(torch.randn(20, 5))
    never_written = [PAD, BOS, UNK, 8]
    with torch.no_grad():
        decoder.output.weight[never_written] *= 10  # so that these words are likely
    words = torch.tensor([[BOS, 4, 6]]).expand(20, -1)

    def fed_back(*excluded):
        inputs = []
        hook = decoder.embed.register_forward_hook(lambda module, given, result: inputs.append(given[0]))
        decoder(memory, words, feed_back=(False, True, True), never_written=excluded)
        hook.remove()
        return set(torch.stack(inputs[1:]).flatten().tolist())  # the first call embeds the true words

    assert fed_back() & set(never_written)
    assert not fed_back(*never_written) & set(never_written)


def test_greedy_captions_begin_with_their_first_words_and_contain_no_style_word():
    decoder = Decoder(SMALL, num_words=9)
    with torch.no_grad():
        decoder.embed.weight.mul_(20)
    memory = video_alone(torch.randn(1, 5).expand(2, -1) * 3)
    words = decoder.write(memory, max_words=6, first_words=torch.tensor([BOS, 8]), never_written=[PAD, BOS, UNK, 8])
    for row, first in zip(words, (BOS, 8), strict=True):
        alone = decoder.write(Memory(*(part[:1] for part in memory)), max_words=6, first_words=torch.tensor([first]))
        assert 8 not in row.tolist()
        if 8 not in alone.tolist()[0]:
            length = alone.shape[1]
            assert row[:length].tolist() == alone[0].tolist()
    assert words[0].tolist() != words[1].tolist()


@with_and_without_attention
def test_greedy_words_are_the_likeliest_of_every_step(config):
    decoder, memory = Decoder(config, num_words=9), remembered(config)
    words = decoder.write(memory, max_words=4)
    given = torch.nn.functional.pad(words[:, :-1], (1, 0), value=BOS)
    logits = decoder(memory, given)
    logits[:, :, [PAD, BOS, UNK]] = -torch.inf
    expected = torch.where(words == PAD, PAD, logits.argmax(-1))
    assert words.tolist() == expected.tolist()


def test_greedy_words_end_at_eos_and_are_never_pad_bos_or_unk():
    decoder = Decoder(ModelConfig(embedding_size=6, state_size=5, dropout=0.0), num_words=9)
    with torch.no_grad():
        decoder.embed.weight.mul_(20)  # enough spread that sentences of different lengths come out
    words = decoder.write(video_alone(torch.randn(50, 5) * 3), max_words=6)
    assert words.shape[1] <= 6
    for row in words.tolist():
        body = row[: row.index(EOS)] if EOS in row else row
        assert not {PAD, BOS, UNK} & set(body)
        assert all(word == PAD for word in row[len(body) + 1 :])
    assert len({tuple(row) for row in words.tolist()}) > 1


def test_an_unknown_cnn_is_an_error():
    with pytest.raises(UnknownCNN, match=r"model.cnn is 'resnet_152'.*"):
        CNN(ModelConfig(cnn="resnet_152"))


def test_other_networks_come_from_timm_with_their_own_normalisation(monkeypatch):
    # A stand-in for timm: its models are called with num_classes=0, and give the map before it is pooled.
    class Network(torch.nn.Module):
        num_features, head_hidden_size = 3, 3
        pretrained_cfg: ClassVar = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}

        def forward_features(self, images):
            return images

    calls = []
    timm = types.SimpleNamespace(
        list_models=lambda pattern="*": ["resnet152"] if fnmatch("resnet152", pattern) else [],
        is_model=lambda name: name == "resnet152",
        create_model=lambda name, **settings: calls.append((name, settings)) or Network(),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    cnn = CNN(ModelConfig(cnn="resnet152"))
    assert calls == [("resnet152", {"pretrained": True, "num_classes": 0})]
    pixels = torch.tensor([0, 255, 51], dtype=torch.uint8).expand(1, 8, 8, 3)
    # (x/255 − 0.5) / 0.25 for x = 0, 255, 51
    torch.testing.assert_close(cnn(pixels), torch.tensor([[[-2.0, 2.0, -1.2]]]))
    with pytest.raises(UnknownCNN, match=r"'resnet', which timm does not know \(similar: resnet152\)"):
        CNN(ModelConfig(cnn="resnet"))
    monkeypatch.setattr(Network, "forward_features", lambda self, images: images.flatten(2))  # as a transformer does
    with pytest.raises(UnknownCNN, match=r"model.cnn: Network has no feature map; possible: convolutional"):
        cnn(pixels)


def test_blocks_of_a_timm_network_are_left_out_in_training_where_it_allows_that(monkeypatch):
    class DropPath(torch.nn.Module):
        pass

    class Network(torch.nn.Module):
        num_features = 3
        pretrained_cfg: ClassVar = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}

        def __init__(self, drop_path_rate=0.0):
            super().__init__()
            self.normalise = torch.nn.BatchNorm2d(3)
            self.path = DropPath() if drop_path_rate else torch.nn.Identity()

    class Plain(Network):
        def __init__(self):
            super().__init__()

    class Deaf(Network):
        def __init__(self, drop_path_rate=0.0):
            super().__init__()

    networks = {"resnet152": Network, "vgg16": Plain, "deaf": Deaf}
    timm = types.SimpleNamespace(
        list_models=lambda: [*networks],
        create_model=lambda name, pretrained, num_classes, **settings: networks[name](**settings),
        layers=types.SimpleNamespace(DropPath=DropPath),
    )
    monkeypatch.setitem(sys.modules, "timm", timm)
    cnn = CNN(ModelConfig(cnn="resnet152", drop_path=0.2)).train()
    assert cnn.body.network.path.training
    assert not cnn.body.network.normalise.training
    assert not cnn.eval().body.network.path.training
    for name in ("vgg16", "deaf"):
        CNN(ModelConfig(cnn=name))
        expected = f"model.drop_path is 0.2: no block of {name} can be left out; set it to 0"
        with pytest.raises(UnknownCNN, match=re.escape(expected)):
            CNN(ModelConfig(cnn=name, drop_path=0.2))


def test_blocks_of_the_cnn_are_left_out_in_training_alone():
    config = replace(SMALL, drop_path=0.5)
    cnn = CNN(config)
    pixels = torch.randint(0, 256, (1, 64, 64, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        usual = CNN(SMALL).eval()(pixels)
        torch.testing.assert_close(cnn.eval()(pixels), usual)
        torch.manual_seed(0)
        drawn = torch.stack([cnn.train()(pixels) for _ in range(3)])
        assert not torch.allclose(drawn[0], drawn[1])
        assert not torch.allclose(drawn[1], drawn[2])
        torch.testing.assert_close(CNN(SMALL).train()(pixels), usual)  # and statistics of the batch are not used
    assert not any(part.training for part in cnn.modules() if isinstance(part, torch.nn.BatchNorm2d))


def test_cells_are_hidden_from_the_encoder_in_training_alone():
    config = replace(SMALL, grid=4, attention_heads=2, cell_dropout=0.75)
    encoder = Encoder(config, feature_size=4)
    features, counts = torch.randn(40, 3, 16, 4), torch.tensor([3] * 39 + [1])
    whole = encoder.eval()(features, counts)
    assert whole.present[:-1].all()
    torch.manual_seed(0)
    memory = encoder.train()(features, counts)
    shown = memory.present.view(40, 3, 16)
    assert shown[:-1].any(2).all()  # at least one cell of each frame
    assert 0.2 < shown[:-1].float().mean() < 0.3
    assert not shown[-1, 1:].any()  # padding stays padding
    assert not torch.equal(shown, encoder(features, counts).present.view(40, 3, 16))
    # What is hidden has no part in the video's state either.
    for row in range(3):
        frames = [features[row, pick, shown[row, pick]].mean(0) for pick in range(3)]
        alone = encoder.eval()(torch.stack(frames)[None, :, None], torch.tensor([3]))
        torch.testing.assert_close(memory.video[row], alone.video[0])
    torch.testing.assert_close(memory.keys, whole.keys)


def test_a_cell_is_the_mean_of_its_part_of_the_feature_map_row_by_row():
    cnn = CNN(replace(SMALL, grid=2), pretrained=False)
    cnn.body = torch.nn.Identity()  # a map of the pixels themselves, (x − 127) / 128
    rows = [[0, 0, 128, 128, 1, 3], [0, 0, 128, 128, 5, 7]]
    pixels = torch.tensor([rows[0], rows[1], [9] * 6, [9] * 6], dtype=torch.uint8)[None, :, :, None].expand(1, 4, 6, 3)
    # Left and right half of the upper two rows: 3 × 2 pixels each; the lower two rows are all 9.
    means = torch.tensor([256 / 6, (256 + 16) / 6, 9, 9])
    torch.testing.assert_close(cnn(pixels), ((means - 127) / 128)[None, :, None].expand(1, 4, 3))


def test_a_grid_that_does_not_divide_the_feature_map_is_refused():
    cnn = CNN(replace(SMALL, grid=3), pretrained=False).eval()
    expected = (
        "model.grid is 3, but the CNN's feature map is 2 × 2, and the grid must divide both; "
        "model.image_size and supervision.crop change the size of the map"
    )
    with pytest.raises(UnknownCNN) as caught:
        cnn(torch.zeros(1, 64, 64, 3, dtype=torch.uint8))
    assert str(caught.value) == expected


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite2"])
def test_the_cnn_has_imagenet_weights_and_1280_features(name):
    cnn = CNN(ModelConfig(cnn=name)).eval()
    with torch.inference_mode():
        features = cnn(torch.randint(0, 256, (2, 96, 96, 3), dtype=torch.uint8))
    assert features.shape == (2, 1, 1280)
    # An untrained network's batch norms have mean 0 and variance 1.
    assert cnn.body.network._bn1.running_var.std() > 0.01


def test_the_encoder_starts_with_zeros():
    start = Encoder(SMALL, feature_size=4).start(2)
    assert isinstance(start, LSTMState)
    assert not start.h.any()
    assert not start.c.any()


def test_greedy_words_do_not_depend_on_how_often_the_end_is_checked(monkeypatch):
    decoder = Decoder(SMALL, num_words=9)
    with torch.no_grad():
        decoder.embed.weight.mul_(20)  # enough spread that sentences of different lengths come out
    lengths = set()
    for video in torch.randn(30, 1, 5) * 3:
        monkeypatch.setattr("picknet.training.systems.parts.WORDS_AT_ONCE", 1)
        (expected,) = decoder.write(video_alone(video), max_words=14).tolist()
        monkeypatch.undo()
        (words,) = decoder.write(video_alone(video), max_words=14).tolist()
        assert words[: len(expected)] == expected
        assert set(words[len(expected) :]) <= {PAD}
        lengths.add(len(expected))
    assert len(lengths) > 2


@with_and_without_attention
@pytest.mark.parametrize("feed_back", [(), (False, True, False, True)])
def test_the_gradients_of_captions_are_those_of_single_steps(config, feed_back):
    decoder, memory = Decoder(config, num_words=9).double(), remembered(config)
    memory = Memory(*(part.detach().double().requires_grad_() for part in memory[:3]), memory.present)
    words = torch.tensor([[BOS, 4, 5, 8], [BOS, 6, 7, 5]])
    weighting = torch.randn(2, 4, 9, dtype=torch.float64)
    learned = [*decoder.parameters(), memory.video]
    found = torch.autograd.grad((decoder(memory, words, feed_back=feed_back) * weighting).sum(), learned)

    state, logits, given = torch.zeros(2, 5, dtype=torch.float64), [], words[:, 0]
    for t in range(4):
        if feed_back and feed_back[t]:
            allowed = logits[-1].detach().clone()
            allowed[:, [PAD, BOS, UNK]] = -torch.inf
            given = allowed.argmax(-1)
        else:
            given = words[:, t]
        w = decoder.gates_from_state.weight.chunk(2)
        z, r, p = (decoder.from_word(decoder.embed(given)) + decoder.from_video(memory.video)).chunk(3, dim=1)
        z, r = torch.sigmoid(z + state @ w[0].T), torch.sigmoid(r + state @ w[1].T)
        state = (1 - z) * state + z * torch.tanh(p + (r * state) @ decoder.from_state.weight.T)
        logits.append(decoder._logits(state[:, None], *memory[1:])[:, 0])
    expected = torch.autograd.grad((torch.stack(logits, dim=1) * weighting).sum(), learned)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other)
