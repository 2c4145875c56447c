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
from picknet.text import BOS, EOS, PAD, UNK
from picknet.training.cnn import CNN, UnknownCNN
from picknet.training.network import (
    DROP,
    PICK,
    Attention,
    Decoder,
    Encoder,
    LSTMState,
    Memory,
    Network,
    PickNet,
    RatePickNet,
    StridePickNet,
    gather_picked,
)

SMALL = ModelConfig(
    cnn="efficientnet_lite0", image_size=64, embedding_size=6, state_size=5, picker_hidden=7, dropout=0.0
)
ATTENDING = replace(SMALL, grid=2, attention_heads=2, attention_hidden=8)
NO_WAIT = torch.zeros(3)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(module):
    return {name: p.detach().double().numpy() for name, p in module.named_parameters()}


def glances(*shape):
    return torch.randint(0, 256, (*shape, 56, 56), dtype=torch.uint8)


def video_alone(video):
    """The memory of a decoder without attention."""
    nothing = torch.zeros(len(video), 0, 6)
    return Memory(video, nothing, nothing, torch.ones(len(video), 0, dtype=torch.bool))


def test_picknet_is_two_layers_on_the_flattened_difference():
    picknet = PickNet(SMALL)
    now, last = glances(3), glances(3)
    w = arrays(picknet)
    d = ((now.double() - last.double()) / 255).flatten(1).numpy()
    expected = np.maximum(d @ w["hidden.weight"].T + w["hidden.bias"], 0) @ w["decide.weight"].T + w["decide.bias"]
    np.testing.assert_allclose(picknet(now, last, NO_WAIT).detach().numpy(), expected, atol=1e-5)


def test_picknet_has_the_papers_size():
    picknet = PickNet(ModelConfig())
    assert picknet.hidden.weight.shape == (1024, 3136)
    assert picknet.decide.weight.shape == (2, 1024)


def test_picknet_starts_with_the_initial_pick_probability():
    config = ModelConfig(picker_hidden=7, initial_pick_probability=0.2)
    picknet = PickNet(config)
    torch.nn.init.zeros_(picknet.decide.weight)
    with torch.no_grad():
        picknet.decide.bias -= picknet.decide.bias[DROP].clone()
    plain = PickNet(ModelConfig(picker_hidden=7))
    assert plain.decide.bias.abs().max() < 1
    log_odds = (picknet.decide.bias[PICK] - picknet.decide.bias[DROP]).item()
    assert log_odds == pytest.approx(math.log(0.2 / 0.8), abs=2 / math.sqrt(7))


def test_the_first_frame_is_always_picked_and_others_are_compared_with_the_last_pick():
    picknet = PickNet(SMALL)
    clip = glances(1, 8)
    walk = picknet.walk(clip, torch.tensor([8]))
    template, picked, log_probability = clip[:, 0], [True], 0.0
    for t in range(1, 8):
        log_policy = picknet(clip[:, t], template, NO_WAIT[:1]).log_softmax(-1)[0]
        picked.append(bool(log_policy[PICK] > log_policy[DROP]))
        log_probability += log_policy.max().item()
        if picked[-1]:
            template = clip[:, t]
    assert walk.picked[0].tolist() == picked
    assert walk.log_probability.item() == pytest.approx(log_probability, abs=1e-4)


def test_padding_of_a_short_clip_is_never_picked_and_not_part_of_the_loss():
    picknet = PickNet(SMALL)
    clip = glances(1, 8)
    short = picknet.walk(clip[:, :3], torch.tensor([3]), generator=torch.Generator().manual_seed(1))
    padded = picknet.walk(clip, torch.tensor([3]), generator=torch.Generator().manual_seed(1))
    assert not padded.picked[0, 3:].any()
    assert padded.picked[0, :3].tolist() == short.picked[0].tolist()
    assert padded.log_probability.item() == pytest.approx(short.log_probability.item())


def test_a_pick_forced_by_max_gap_is_not_part_of_the_loss():
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


@pytest.mark.parametrize("max_gap", [0, 3])
def test_the_gradient_of_a_walk_is_that_of_its_single_decisions(max_gap):
    picknet = PickNet(replace(SMALL, max_gap=max_gap))
    clips, counts, weighting = glances(3, 7), torch.tensor([7, 4, 7]), torch.randn(6, 7)
    walk = picknet.walk(clips, counts, samples=2, generator=torch.Generator().manual_seed(2))
    found = torch.autograd.grad((walk.log_probabilities * weighting).sum(), list(picknet.parameters()))
    total = 0.0
    for row, picked in enumerate(walk.picked.tolist()):
        clip, last = clips[row // 2], 0
        for t in range(1, counts[row // 2]):
            log_policy = picknet(clip[t : t + 1], clip[last : last + 1]).log_softmax(-1)[0]
            if not max_gap or t - last < max_gap:
                total = total + weighting[row, t] * log_policy[PICK if picked[t] else DROP]
            last = t if picked[t] else last
    expected = torch.autograd.grad(total, list(picknet.parameters()))
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("kind", [PickNet, RatePickNet])
def test_the_greedy_walks_may_come_along_with_the_sampled_ones(kind):
    picknet, clips, counts = kind(SMALL), glances(3, 9), torch.tensor([9, 4, 1])
    both = picknet.walk(clips, counts, samples=2, generator=torch.Generator().manual_seed(1), and_greedy=True)
    sampled = picknet.walk(clips, counts, samples=2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(both.picked, torch.cat([sampled.picked, picknet.walk(clips, counts).picked]))
    assert both.log_probabilities.shape == (6, 9)
    torch.testing.assert_close(both.log_probabilities, sampled.log_probabilities)


STRIDE = replace(SMALL, picker="stride", stride=7.5, first_pick=30.0)


def trained_policy(picknet):
    """A stride policy that has learned something: its last layer, at first zero, is not."""
    torch.nn.init.normal_(picknet.decide.weight, std=20.0)
    return picknet


def test_an_untrained_stride_policy_picks_at_a_constant_stride_from_half_a_stride_on():
    # The clock starts at 1 + 7.5 / 2 = 4.75 and is above 7.5 at frame 3, where it reads 7.75. The 0.25 go over, so
    # that it reads 8.25 at frame 11, whose 0.75 go over to 7.75 at frame 18, and so on: 8 and 7 frames by turns.
    walk = StridePickNet(STRIDE).walk(glances(2, 30), torch.tensor([30, 14]))
    assert [clip.nonzero().flatten().tolist() for clip in walk.picked] == [[3, 11, 18, 26], [3, 11]]


def test_a_stride_walk_may_begin_early():
    # The clock starts at 7.5 − 2 + 0.5 = 6 and is above 7.5 at frame 2; the 0.5 that are left over go on.
    walk = StridePickNet(replace(STRIDE, first_pick=2.0)).walk(glances(1, 30), torch.tensor([30]))
    assert walk.picked[0].nonzero().flatten().tolist() == [2, 10, 17, 25]


def test_the_log_probability_of_a_stride_walk_is_that_of_its_clock():
    walk = StridePickNet(STRIDE).walk(glances(1, 6), torch.tensor([6]))
    # Waits of 4.75, 5.75 and 6.75 frames are dropped, 7.75 is a pick, then 1.25 and 2.25 are dropped.
    log_odds = [8 * (wait / 7.5 - 1) for wait in (4.75, 5.75, 6.75, 7.75, 1.25, 2.25)]
    actions = [-1, -1, -1, 1, -1, -1]
    expected = sum(math.log(sigmoid(action * odds)) for action, odds in zip(actions, log_odds, strict=True))
    assert walk.log_probability.item() == pytest.approx(expected, abs=1e-5)


def test_the_last_frame_is_forced_if_nothing_was_picked_and_is_not_part_of_the_loss():
    picknet = StridePickNet(STRIDE)
    walk = picknet.walk(glances(3, 6), torch.tensor([3, 1, 6]))
    # Three frames wait 4.75, 5.75 and 6.75 frames: none is above 7.5. The third clip picks frame 3 by itself.
    assert [clip.nonzero().flatten().tolist() for clip in walk.picked] == [[2], [0], [3]]
    expected = sum(math.log(sigmoid(-8 * (wait / 7.5 - 1))) for wait in (4.75, 5.75))
    assert walk.log_probability[:2].tolist() == pytest.approx([expected, 0.0], abs=1e-5)


def test_the_stride_policy_ignores_max_gap():
    clip = glances(1, 30)
    walks = [StridePickNet(replace(STRIDE, max_gap=gap)).walk(clip, torch.tensor([30])) for gap in (0, 2)]
    assert torch.equal(walks[0].picked, walks[1].picked)


def convolved(maps, weight, bias):
    """maps: (in, rows, columns) -> (out, rows / 2, columns / 2): 3 × 3, every second position, edges of zeros."""
    windows = np.lib.stride_tricks.sliding_window_view(np.pad(maps, ((0, 0), (1, 1), (1, 1))), (3, 3), axis=(1, 2))
    return np.einsum("iyxab,oiab->oyx", windows[:, ::2, ::2], weight) + bias[:, None, None]


def test_the_stride_policy_is_a_small_convolution_of_the_glance_and_the_last_picked_one_beside_a_clock():
    picknet = trained_policy(StridePickNet(STRIDE))
    w = arrays(picknet)
    now, last, waits = glances(3), glances(3), torch.tensor([0.1, 0.9, 2.0])

    def look(glance):
        maps = glance.double().numpy()[None] / 255 - 0.5
        for layer in range(3):
            maps = np.maximum(convolved(maps, w[f"look.{layer}.weight"], w[f"look.{layer}.bias"]), 0)
        return np.concatenate([maps.mean(axis=(1, 2)), maps.max(axis=(1, 2))])

    logits = picknet(now, last, waits).detach().numpy()
    assert not logits[:, DROP].any()
    for i in range(3):
        seen, template = look(now[i]), look(last[i])
        hidden = np.concatenate([seen, seen - template]) @ w["hidden.weight"].T + w["hidden.bias"]
        deviation = (np.maximum(hidden, 0) @ w["decide.weight"].T + w["decide.bias"]).item()
        assert logits[i, PICK] == pytest.approx(8 * (waits[i].item() - 1) + deviation, abs=1e-3)


def test_a_stride_walk_compares_with_the_last_picked_glance_and_before_it_with_the_first():
    picknet = trained_policy(StridePickNet(STRIDE))
    clip = (glances(1, 30) * torch.rand(1, 30, 1, 1)).to(torch.uint8)  # lighter and darker
    walk = picknet.walk(clip, torch.tensor([30]))
    template, gap, picked, log_probability = clip[:, 0], 1 + 7.5 / 2, [], 0.0
    for t in range(30):
        log_policy = picknet(clip[:, t], template, torch.tensor([gap / 7.5])).log_softmax(-1)[0]
        picked.append(bool(log_policy[PICK] > log_policy[DROP]))
        log_probability += log_policy.max().item()
        if picked[-1]:
            template, gap = clip[:, t], min(max(gap - 7.5, 0), 1)
        gap += 1
    assert walk.picked[0].tolist() == picked
    assert picked != StridePickNet(STRIDE).walk(clip, torch.tensor([30])).picked[0].tolist()
    assert walk.log_probability.item() == pytest.approx(log_probability, abs=1e-3)


def test_the_first_step_of_a_stride_policy_has_gradients():
    picknet = StridePickNet(STRIDE)
    walk = picknet.walk(glances(2, 12), torch.tensor([12, 12]), generator=torch.Generator().manual_seed(0))
    walk.log_probability.sum().backward()
    assert picknet.decide.weight.grad.abs().max() > 0
    assert picknet.sharpness.grad.abs() > 0


@pytest.mark.parametrize("kind", [PickNet, StridePickNet])
def test_the_walks_of_a_clip_are_consecutive(kind):
    picknet = kind(STRIDE)
    clips, counts = glances(2, 9), torch.tensor([9, 4])
    walk = picknet.walk(clips, counts, samples=3, generator=torch.Generator().manual_seed(0))
    assert walk.picked.shape == (6, 9)
    assert not walk.picked[3:, 4:].any()
    assert walk.picked[:3, 4:].any()
    again = picknet.walk(
        clips.repeat_interleave(3, 0), counts.repeat_interleave(3), generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(walk.picked, again.picked)
    torch.testing.assert_close(walk.log_probability, again.log_probability)


def test_the_network_has_the_picker_of_its_config():
    pickers = [Network(replace(SMALL, picker=name), 5, pretrained=False).picknet for name in ("difference", "stride")]
    assert [type(picker) for picker in pickers] == [PickNet, StridePickNet]


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


def test_greedy_words_do_not_depend_on_how_often_the_end_is_checked(monkeypatch):
    decoder = Decoder(SMALL, num_words=9)
    with torch.no_grad():
        decoder.embed.weight.mul_(20)  # enough spread that sentences of different lengths come out
    lengths = set()
    for video in torch.randn(30, 1, 5) * 3:
        monkeypatch.setattr("picknet.training.network.WORDS_AT_ONCE", 1)
        (expected,) = decoder.write(video_alone(video), max_words=14).tolist()
        monkeypatch.undo()
        (words,) = decoder.write(video_alone(video), max_words=14).tolist()
        assert words[: len(expected)] == expected
        assert set(words[len(expected) :]) <= {PAD}
        lengths.add(len(expected))
    assert len(lengths) > 2


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


def test_picked_features_are_gathered_in_order():
    features = torch.arange(8.0).view(2, 4, 1)
    picked = torch.tensor([[True, False, True, True], [False, True, False, False]])
    gathered, counts = gather_picked(features, picked)
    assert gathered[0, :, 0].tolist() == [0, 2, 3]
    assert gathered[1, 0, 0].item() == 5
    assert counts.tolist() == [3, 1]
    # Whatever stands behind (batch, frames) comes along.
    cells, _ = gather_picked(torch.arange(48.0).view(2, 4, 3, 2), picked)
    assert cells.shape == (2, 3, 3, 2)
    assert cells[0, 1].tolist() == [[12, 13], [14, 15], [16, 17]]


def test_the_gradient_of_reinforce_is_p_minus_the_action_times_the_advantage():
    # For L = −(r − b) log p(a): dL/ds = (r − b)(p − 1_a). The paper prints the opposite sign.
    logits = torch.tensor([0.3, -0.4], requires_grad=True)
    advantage = 1.7
    (-advantage * logits.log_softmax(0)[PICK]).backward()
    p = np.exp([0.3, -0.4]) / np.exp([0.3, -0.4]).sum()
    np.testing.assert_allclose(logits.grad.numpy(), advantage * (p - np.array([0.0, 1.0])), atol=1e-6)


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
