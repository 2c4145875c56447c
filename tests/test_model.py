"""The paper's equations, each against numbers worked out by hand or by NumPy in float64."""

import math
import sys
import types
from dataclasses import replace
from fnmatch import fnmatch
from typing import ClassVar

import numpy as np
import pytest
import torch

from picknet.config import ModelConfig
from picknet.model import CNN, DROP, PICK, Decoder, Encoder, PickNet, State, UnknownCNN, gather_picked
from picknet.text import BOS, EOS, PAD, UNK

SMALL = ModelConfig(
    cnn="efficientnet_lite0", image_size=64, embedding_size=6, state_size=5, picker_hidden=7, dropout=0.0
)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(module):
    return {name: p.detach().double().numpy() for name, p in module.named_parameters()}


def glances(*shape):
    return torch.randint(0, 256, (*shape, 56, 56), dtype=torch.uint8)


def test_picknet_is_two_layers_on_the_flattened_difference():
    picknet = PickNet(SMALL)
    now, last = glances(3), glances(3)
    w = arrays(picknet)
    d = ((now.double() - last.double()) / 255).flatten(1).numpy()
    expected = np.maximum(d @ w["hidden.weight"].T + w["hidden.bias"], 0) @ w["decide.weight"].T + w["decide.bias"]
    np.testing.assert_allclose(picknet(now, last).detach().numpy(), expected, atol=1e-5)


def test_picknet_has_the_papers_size():
    picknet = PickNet(ModelConfig())
    assert picknet.hidden.weight.shape == (1024, 3136)
    assert picknet.decide.weight.shape == (2, 1024)


def test_picknet_starts_out_picking_as_often_as_asked():
    config = ModelConfig(picker_hidden=7, initial_pick_probability=0.2)
    picknet = PickNet(config)
    torch.nn.init.zeros_(picknet.decide.weight)
    with torch.no_grad():
        picknet.decide.bias -= picknet.decide.bias[DROP].clone()
    plain = PickNet(ModelConfig(picker_hidden=7))
    assert plain.decide.bias.abs().max() < 1
    log_odds = (picknet.decide.bias[PICK] - picknet.decide.bias[DROP]).item()
    assert log_odds == pytest.approx(math.log(0.2 / 0.8), abs=2 / math.sqrt(7))


def test_the_walk_picks_the_first_frame_by_force_and_compares_with_the_last_picked_glance():
    picknet = PickNet(SMALL)
    clip = glances(1, 8)
    walk = picknet.walk(clip, torch.tensor([8]))
    template, picked, log_probability = clip[:, 0], [True], 0.0
    for t in range(1, 8):
        log_policy = picknet(clip[:, t], template).log_softmax(-1)[0]
        picked.append(bool(log_policy[PICK] > log_policy[DROP]))
        log_probability += log_policy.max().item()
        if picked[-1]:
            template = clip[:, t]
    assert walk.picked[0].tolist() == picked
    assert walk.log_probability.item() == pytest.approx(log_probability, abs=1e-4)


def test_frames_a_short_clip_does_not_have_are_never_picked_and_cost_nothing():
    picknet = PickNet(SMALL)
    clip = glances(1, 8)
    short = picknet.walk(clip[:, :3], torch.tensor([3]), generator=torch.Generator().manual_seed(1))
    padded = picknet.walk(clip, torch.tensor([3]), generator=torch.Generator().manual_seed(1))
    assert not padded.picked[0, 3:].any()
    assert padded.picked[0, :3].tolist() == short.picked[0].tolist()
    assert padded.log_probability.item() == pytest.approx(short.log_probability.item())


def test_a_pick_forced_by_the_greatest_gap_is_no_part_of_the_loss():
    config = replace(SMALL, max_gap=3)
    picknet = PickNet(config)
    torch.nn.init.zeros_(picknet.decide.weight)
    with torch.no_grad():
        picknet.decide.bias.copy_(torch.tensor([math.log(9.0), 0.0]))  # drops nine times out of ten
    walk = picknet.walk(glances(1, 8), torch.tensor([8]))
    assert walk.picked[0].nonzero().flatten().tolist() == [0, 3, 6]
    assert walk.log_probability.item() == pytest.approx(5 * math.log(0.9), abs=1e-5)  # frames 1, 2, 4, 5 and 7


def test_sampled_picks_follow_the_policy():
    picknet = PickNet(SMALL)
    torch.nn.init.zeros_(picknet.decide.weight)
    with torch.no_grad():
        picknet.decide.bias.copy_(torch.tensor([0.0, math.log(3.0)]))  # picks three times out of four
    walk = picknet.walk(glances(1, 11).expand(400, -1, -1, -1), torch.full((400,), 11), generator=torch.Generator())
    assert walk.picked[:, 1:].float().mean().item() == pytest.approx(0.75, abs=0.03)  # 4000 draws: 4 deviations
    picks = walk.picked[:, 1:].sum(1)
    expected = picks * math.log(0.75) + (10 - picks) * math.log(0.25)
    torch.testing.assert_close(walk.log_probability, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize(("gate", "function"), [("sigmoid", sigmoid), ("tanh", np.tanh)])
def test_the_encoder_is_the_papers_lstm(gate, function):
    encoder = Encoder(ModelConfig(embedding_size=6, state_size=5, output_gate=gate, dropout=0.0), feature_size=4)
    w = arrays(encoder)
    features = torch.randn(2, 3, 4)
    h = c = np.zeros((2, 5))
    for t in range(3):
        x = features[:, t].double().numpy() @ w["embed.weight"].T + w["embed.bias"]

        def gate_of(k, x=x, h=h):
            rows = slice(5 * k, 5 * k + 5)
            return x @ w["from_input.weight"][rows].T + h @ w["from_state.weight"][rows].T + w["from_input.bias"][rows]

        i, f, g, o = sigmoid(gate_of(0)), sigmoid(gate_of(1)), np.tanh(gate_of(2)), function(gate_of(3))
        c = f * c + i * g
        h = o * np.tanh(c)
    np.testing.assert_allclose(encoder(features, torch.tensor([3, 3])).detach().numpy(), h, atol=1e-6)


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
    features = torch.randn(2, 7, 4)
    _, (h, _) = peer(encoder.embed(features))
    torch.testing.assert_close(encoder(features, torch.tensor([7, 7])), h[0])


def test_the_encoder_stops_at_a_clips_last_picked_frame_and_steps_give_the_same():
    encoder = Encoder(ModelConfig(embedding_size=6, state_size=5, dropout=0.0), feature_size=4)
    features = torch.randn(2, 6, 4)
    video = encoder(features, torch.tensor([6, 2]))
    state = encoder.start(1)
    for t in range(2):
        state = encoder.step(features[1:, t], state)
    torch.testing.assert_close(video[1:], state.h)


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
    log_probabilities, following = decoder.step(words, video, state)
    np.testing.assert_allclose(following.detach().numpy(), expected, atol=1e-6)
    np.testing.assert_allclose(
        log_probabilities.detach().numpy(), np.log(scores / scores.sum(1, keepdims=True)), atol=1e-5
    )


def test_teacher_forcing_gives_the_logits_of_single_steps():
    decoder = Decoder(ModelConfig(embedding_size=6, state_size=5, dropout=0.0), num_words=9)
    video, words = torch.randn(2, 5), torch.tensor([[BOS, 4, 5], [BOS, 6, 7]])
    logits = decoder(video, words)
    state = torch.zeros(2, 5)
    for t in range(3):
        log_probabilities, state = decoder.step(words[:, t], video, state)
        torch.testing.assert_close(logits[:, t].log_softmax(-1), log_probabilities)


def test_scheduled_sampling_feeds_back_the_decoders_own_word():
    decoder = Decoder(ModelConfig(embedding_size=6, state_size=5, dropout=0.0), num_words=9)
    video, words = torch.randn(2, 5), torch.tensor([[BOS, 4, 5], [BOS, 6, 7]])
    own = decoder(video, words)[:, 0].argmax(-1)
    fed = decoder(video, words, feed_back=(False, True, False))
    given = decoder(video, torch.stack([words[:, 0], own, words[:, 2]], dim=1))
    torch.testing.assert_close(fed, given)


def test_greedy_words_end_at_eos_and_are_never_pad_bos_or_unk():
    decoder = Decoder(ModelConfig(embedding_size=6, state_size=5, dropout=0.0), num_words=9)
    with torch.no_grad():
        decoder.embed.weight.mul_(20)  # enough spread that sentences of different lengths come out
    words = decoder.write(torch.randn(50, 5) * 3, max_words=6)
    assert words.shape[1] <= 6
    for row in words.tolist():
        body = row[: row.index(EOS)] if EOS in row else row
        assert not {PAD, BOS, UNK} & set(body)
        assert all(word == PAD for word in row[len(body) + 1 :])
    assert len({tuple(row) for row in words.tolist()}) > 1


def test_picked_features_come_to_the_front_in_order():
    features = torch.arange(8.0).view(2, 4, 1)
    picked = torch.tensor([[True, False, True, True], [False, True, False, False]])
    gathered, counts = gather_picked(features, picked)
    assert gathered[0, :, 0].tolist() == [0, 2, 3]
    assert gathered[1, 0, 0].item() == 5
    assert counts.tolist() == [3, 1]


def test_the_gradient_of_reinforce_is_p_minus_the_action_times_the_advantage():
    # For L = −(r − b) log p(a): dL/ds = (r − b)(p − 1_a). The paper prints the opposite sign.
    logits = torch.tensor([0.3, -0.4], requires_grad=True)
    advantage = 1.7
    (-advantage * logits.log_softmax(0)[PICK]).backward()
    p = np.exp([0.3, -0.4]) / np.exp([0.3, -0.4]).sum()
    np.testing.assert_allclose(logits.grad.numpy(), advantage * (p - np.array([0.0, 1.0])), atol=1e-6)


def test_an_unknown_cnn_is_named_with_what_is_possible():
    with pytest.raises(UnknownCNN, match=r"model.cnn is 'resnet_152'.*"):
        CNN(ModelConfig(cnn="resnet_152"))


def test_other_networks_come_from_timm_with_their_own_normalisation(monkeypatch):
    # A stand-in for timm: its models are called with num_classes=0 and then give pooled features.
    class Network(torch.nn.Module):
        num_features, head_hidden_size = 3, 3
        pretrained_cfg: ClassVar = {"mean": (0.5, 0.5, 0.5), "std": (0.25, 0.25, 0.25)}

        def forward(self, images):
            return images.mean(dim=(2, 3))

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
    torch.testing.assert_close(cnn(pixels), torch.tensor([[-2.0, 2.0, -1.2]]))
    with pytest.raises(UnknownCNN, match=r"'resnet', which timm does not know \(near: resnet152\)"):
        CNN(ModelConfig(cnn="resnet"))


@pytest.mark.parametrize("name", ["efficientnet_lite0", "efficientnet_lite2"])
def test_the_cnn_has_imagenet_weights_and_1280_features(name):
    cnn = CNN(ModelConfig(cnn=name)).eval()
    with torch.inference_mode():
        features = cnn(torch.randint(0, 256, (2, 96, 96, 3), dtype=torch.uint8))
    assert features.shape == (2, 1280)
    # An untrained network's batch norms have mean 0 and variance 1.
    assert cnn.body.network._bn1.running_var.std() > 0.01


def test_the_encoder_starts_with_nothing_in_memory():
    start = Encoder(SMALL, feature_size=4).start(2)
    assert isinstance(start, State)
    assert not start.h.any()
    assert not start.c.any()
