"""Replayed functions give what the functions give. On a CPU they are just called."""

import numpy as np
import pytest
import torch
from policies import lively_glances
from torch import nn

from picknet.config import ModelConfig
from picknet.training.network import Decoder, Encoder, Memory
from picknet.training.policies import PickNet, RatePickNet, draw_chances
from picknet.training.replay import UNRECORDED_CALLS, Replayed, ReplayedLoss
from picknet.training.systems.parts import WORDS_AT_ONCE

on_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="CUDA graphs need a GPU")
DEVICES = ["cpu", pytest.param("cuda", marks=on_gpu)]
CALLS = UNRECORDED_CALLS + 3


def doubled(*parts):
    return Memory(*(2 * part for part in parts))


def pair(first, second):
    return first + second, first * second


@pytest.mark.parametrize("device", DEVICES)
def test_results_are_those_of_the_function_in_its_type(device):
    replayed_pair, replayed_memory, kept = Replayed(pair), Replayed(doubled), []
    for call in range(CALLS):
        arguments = torch.full((3,), call, device=device), torch.arange(3)  # the second is copied to the device
        if call < UNRECORDED_CALLS:
            arguments = arguments[0], arguments[1].to(device)
        found = replayed_pair(*arguments)
        assert [part.tolist() for part in found] == [[call, call + 1, call + 2], [0, call, 2 * call]]
        kept.append(found[0])
        assert isinstance(replayed_memory(*[arguments[0]] * 4), Memory)
    assert [part[0].item() for part in kept] == list(range(CALLS))  # a replay does not change earlier results


@pytest.mark.parametrize("device", DEVICES)
def test_every_shape_and_setting_is_its_own(device):
    replayed = Replayed(lambda numbers, *, factor: numbers * factor)
    for _ in range(CALLS):
        for size, factor in ((2, 3), (3, 3), (2, 5)):
            assert replayed(torch.ones(size, device=device), factor=factor).tolist() == [factor] * size


@pytest.mark.parametrize("device", DEVICES)
def test_a_loss_has_its_gradients(device):
    torch.manual_seed(0)
    linear, unused = nn.Linear(4, 2).to(device), nn.Linear(1, 1).to(device)
    linear.bias.requires_grad_(False)
    loss = ReplayedLoss(lambda inputs: linear(inputs).square().mean(), [*linear.parameters(), *unused.parameters()])
    for call in range(CALLS):
        inputs = torch.full((3, 4), float(call + 1), device=device)
        linear.weight.grad = None
        (2 * loss(inputs)).backward()
        (expected,) = torch.autograd.grad(2 * linear(inputs).square().mean(), linear.weight)
        torch.testing.assert_close(linear.weight.grad, expected)
        with torch.no_grad():
            linear.weight -= 0.01 * expected  # recordings see new weights


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("kind", [PickNet, RatePickNet])
def test_policies_replayed(kind, device):
    torch.manual_seed(0)
    rng = np.random.default_rng(0)
    picknet = kind(ModelConfig(picker="rate", picker_hidden=8)).to(device)
    for parameter in picknet.parameters():
        nn.init.normal_(parameter, std=0.2)
    walk, reinforce = Replayed(picknet.walk), ReplayedLoss(picknet.reinforce, picknet.parameters())
    counts = torch.tensor([20, 13, 20], device=device)
    for _ in range(CALLS):
        glances = torch.from_numpy(lively_glances(rng, 3, 20)).to(device)
        chances = draw_chances(glances, 2, torch.Generator(device).manual_seed(int(rng.integers(99))))
        picked = walk(glances, counts, chances, and_greedy=True)
        assert torch.equal(picked, picknet.walk(glances, counts, chances, and_greedy=True))
        advantage = torch.from_numpy(rng.normal(size=(6, 20))).float().to(device)
        learned = list(picknet.parameters())
        losses = [both(glances, counts, picked[:6], advantage) for both in (reinforce, picknet.reinforce)]
        torch.testing.assert_close(*losses)
        for found, expected in zip(*(torch.autograd.grad(loss, learned) for loss in losses), strict=True):
            torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-5)
        del losses  # nothing can be recorded while they are kept


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("attention", [{}, {"attention_heads": 2, "attention_hidden": 8}])
def test_captions_replayed(attention, device):
    torch.manual_seed(0)
    config = ModelConfig(embedding_size=8, state_size=6, dropout=0.0, **attention)
    encoder, decoder = Encoder(config, 5).to(device), Decoder(config, 30).to(device)
    encode, some_words = Replayed(encoder), Replayed(decoder.some_words)
    counts = torch.tensor([4, 2, 1], device=device)

    def loss(features, words, feed_back):
        logits = decoder(encoder(features, counts), words, feed_back=feed_back)
        return logits.log_softmax(-1).square().mean()

    learned = [*encoder.parameters(), *decoder.parameters()]
    replayed = ReplayedLoss(loss, learned)
    for call in range(CALLS):
        features = torch.randn(3, 4, 1, 5, device=device)
        with torch.no_grad():
            memory, expected = encode(features, counts), encoder(features, counts)
        torch.testing.assert_close(tuple(memory), tuple(expected))
        written = decoder.write(memory, max_words=2 * WORDS_AT_ONCE, some_words=some_words)
        assert torch.equal(written, decoder.write(expected, max_words=2 * WORDS_AT_ONCE))
        words = torch.randint(4, 30, (3, 6), device=device)
        feed_back = [False, True, bool(call % 2), False, True, False]
        losses = replayed(features, words, torch.tensor(feed_back, device=device)), loss(features, words, feed_back)
        torch.testing.assert_close(*losses)
        for found, wanted in zip(*(torch.autograd.grad(each, learned) for each in losses), strict=True):
            torch.testing.assert_close(found, wanted, rtol=1e-3, atol=1e-5)
        del losses
