"""The policies, each against numbers worked out by hand or by NumPy in float64."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from policies import frames_of, lively_glances, walked

from picknet.config import ModelConfig
from picknet.picking.learned import (
    CODE_SIZE,
    FIRST_CHARGE,
    GAIN,
    LEAK,
    LEAST_RATE,
    LEAST_WAIT,
    MOST_RATE,
    NUM_PICKED,
    NUM_RECENT,
    OUTLINE_SIZE,
    PATIENCE,
    RULED_OUT,
    SPREAD,
    STATE_SIZE,
    RatePicker,
)
from picknet.training.policies import DROP, PICK, PickNet, RatePickNet

SMALL = ModelConfig(picker_hidden=7)
RATE = replace(SMALL, picker="rate", initial_pick_probability=0.2)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def arrays(module):
    return {name: p.detach().double().numpy() for name, p in module.named_parameters()}


def glances(*shape):
    return torch.randint(0, 256, (*shape, 56, 56), dtype=torch.uint8)


def lively(*shape):
    return torch.from_numpy(lively_glances(np.random.default_rng(5), *shape))


def trained_policy(std=4.0):
    """A policy that has learned something: its last layer, at first zero, is not."""
    picknet = RatePickNet(RATE)
    torch.nn.init.normal_(picknet.decide.weight, std=std)
    return picknet


def places(picked):
    return [row.nonzero().flatten().tolist() for row in picked]


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
    walk = walked(picknet, clip, torch.tensor([8]))
    template, picked, log_probabilities = clip[:, 0], [True], [0.0]  # forced
    for t in range(1, 8):
        log_policy = picknet(clip[:, t], template).log_softmax(-1)[0]
        picked.append(bool(log_policy[PICK] > log_policy[DROP]))
        log_probabilities.append(log_policy.max().item())
        if picked[-1]:
            template = clip[:, t]
    assert walk.picked[0].tolist() == picked
    assert walk.log_probabilities[0].tolist() == pytest.approx(log_probabilities, abs=1e-5)


def test_padding_of_a_short_clip_is_never_picked_and_not_part_of_the_loss():
    picknet = PickNet(SMALL)
    clip = glances(1, 8)
    short = walked(picknet, clip[:, :3], torch.tensor([3]), generator=torch.Generator().manual_seed(1))
    padded = walked(picknet, clip, torch.tensor([3]), generator=torch.Generator().manual_seed(1))
    assert not padded.picked[0, 3:].any()
    assert padded.picked[0, :3].tolist() == short.picked[0].tolist()
    expected = [*short.log_probabilities[0].tolist(), 0, 0, 0, 0, 0]
    assert padded.log_probabilities[0].tolist() == pytest.approx(expected)


def test_a_pick_forced_by_max_gap_is_not_part_of_the_loss():
    config = replace(SMALL, max_gap=3)
    picknet = PickNet(config)
    torch.nn.init.zeros_(picknet.decide.weight)
    with torch.no_grad():
        picknet.decide.bias.copy_(torch.tensor([math.log(9.0), 0.0]))  # drops nine times out of ten
    walk = walked(picknet, glances(1, 8), torch.tensor([8]))
    assert walk.picked[0].nonzero().flatten().tolist() == [0, 3, 6]
    drop = math.log(0.9)
    assert walk.log_probabilities[0].tolist() == pytest.approx([0, drop, drop, 0, drop, drop, 0, drop], abs=1e-5)


def test_sampled_picks_follow_the_policy():
    picknet = PickNet(SMALL)
    torch.nn.init.zeros_(picknet.decide.weight)
    with torch.no_grad():
        picknet.decide.bias.copy_(torch.tensor([0.0, math.log(3.0)]))  # picks three times out of four
    walk = walked(picknet, glances(1, 11).expand(400, -1, -1, -1), torch.full((400,), 11), generator=torch.Generator())
    assert walk.picked[:, 1:].float().mean().item() == pytest.approx(0.75, abs=0.03)  # 4000 draws: 4 deviations
    picks = walk.picked[:, 1:].sum(1)
    expected = picks * math.log(0.75) + (10 - picks) * math.log(0.25)
    torch.testing.assert_close(walk.log_probabilities.sum(1), expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("kind", [PickNet, RatePickNet])
def test_the_walks_of_a_clip_are_consecutive(kind):
    picknet = kind(SMALL)
    clips, counts = glances(2, 9), torch.tensor([9, 4])
    walk = walked(picknet, clips, counts, samples=3, generator=torch.Generator().manual_seed(0))
    assert walk.picked.shape == (6, 9)
    assert not walk.picked[3:, 4:].any()
    assert walk.picked[:3, 4:].any()
    again = walked(
        picknet, clips.repeat_interleave(3, 0), counts.repeat_interleave(3), generator=torch.Generator().manual_seed(0)
    )
    assert torch.equal(walk.picked, again.picked)
    torch.testing.assert_close(walk.log_probabilities, again.log_probabilities)


def test_the_gradient_of_reinforce_is_p_minus_the_action_times_the_advantage():
    # For L = −(r − b) log p(a): dL/ds = (r − b)(p − 1_a). The paper prints the opposite sign.
    logits = torch.tensor([0.3, -0.4], requires_grad=True)
    advantage = 1.7
    (-advantage * logits.log_softmax(0)[PICK]).backward()
    p = np.exp([0.3, -0.4]) / np.exp([0.3, -0.4]).sum()
    np.testing.assert_allclose(logits.grad.numpy(), advantage * (p - np.array([0.0, 1.0])), atol=1e-6)


def test_an_untrained_policy_has_the_same_probability_everywhere():
    walk = walked(RatePickNet(RATE), lively(2, 9), torch.tensor([9, 5]), samples=2, generator=torch.Generator())
    present = torch.arange(9) < torch.tensor([9, 9, 5, 5])[:, None]
    expected = torch.where(walk.picked, math.log(0.2), math.log(0.8)) * present
    torch.testing.assert_close(walk.log_probabilities, expected, atol=1e-5, rtol=0)


def test_an_untrained_policy_picks_at_a_stride():
    # −log₂(1 − 0.2) = 0.3219 a frame: 0.5 + 0.3219 n is above 1, 2, 3 with frames 1, 4 and 7; frame 1 is too soon.
    walk = walked(RatePickNet(RATE), lively(2, 10), torch.tensor([10, 7]), spread=False)
    assert places(walk.picked) == [[2, 5, 8], [2, 5]]
    # At half the rate it is above 1 with frame 3, but six frames must have passed; then a part of it leaks away.
    walk = walked(RatePickNet(RATE), lively(1, 10), torch.tensor([10]), rate=0.5, spread=False)
    assert places(walk.picked) == [[5]]


def test_a_clip_that_ends_without_a_pick_gets_its_likeliest_frame():
    picknet = trained_policy()
    clips, counts = lively(6, 8), torch.tensor([8, 8, 8, 8, 2, 1])
    picked = picknet.walk(clips, counts, rate=0.02)
    # Where all are dropped, the likeliest frame is the one that is least likely to be dropped.
    dropped = picknet.log_probabilities(clips, counts, torch.zeros_like(picked))
    likeliest = [[int(row[:count].argmin())] for row, count in zip(dropped, counts, strict=True)]
    assert places(picked) == likeliest
    assert len({*map(tuple, likeliest)}) > 1


def test_a_sampled_clip_may_have_no_pick():
    picknet = RatePickNet(replace(RATE, initial_pick_probability=0.01))
    walk = walked(picknet, lively(1, 3), torch.tensor([3]), samples=20, generator=torch.Generator().manual_seed(0))
    assert 0 in walk.picked.sum(1).tolist()


def stepped(picknet, clip, actions):
    """The log-odds of each frame, by `forward` one frame after the other, where the actions are given."""
    size = OUTLINE_SIZE + CODE_SIZE
    state = torch.zeros(1, STATE_SIZE)
    recent, picked = (torch.zeros(1, count, size) for count in (NUM_RECENT, NUM_PICKED))
    previous, wait, any_pick, logits = clip[:1], 1, False, []
    for t, action in enumerate(actions):
        clock = torch.tensor([[wait, any_pick]], dtype=torch.float32)
        logit, embedding, state = picknet(clip[t : t + 1], previous, state, recent, picked, clock)
        logits.append(logit.item())
        previous, recent = clip[t : t + 1], torch.cat([embedding[:, None], recent[:, :-1]], dim=1)
        wait += 1
        if action:
            picked, wait, any_pick = torch.cat([embedding[:, None], picked[:, :-1]], dim=1), 1, True
    return np.array(logits)


def test_a_walk_is_the_policy_frame_by_frame():
    picknet, clip = trained_policy(), lively(40)
    walk = walked(picknet, clip[None], torch.tensor([40]), generator=torch.Generator().manual_seed(2))
    actions = walk.picked[0].tolist()
    assert NUM_PICKED // 4 < sum(actions) < 40
    with torch.no_grad():
        logits = stepped(picknet, clip, actions)
    assert logits.std() > 0.3
    expected = np.log(sigmoid(np.where(actions, logits, -logits)))
    np.testing.assert_allclose(walk.log_probabilities[0].detach().numpy(), expected, atol=1e-4)


def test_more_picks_than_the_memory_holds():
    picknet, clip = trained_policy(std=1.0), lively(60)
    with torch.no_grad():
        picknet.decide.bias += 3
    walk = walked(picknet, clip[None], torch.tensor([60]), generator=torch.Generator().manual_seed(2))
    actions = walk.picked[0].tolist()
    assert sum(actions) > 2 * NUM_PICKED
    with torch.no_grad():
        logits = stepped(picknet, clip, actions)
    expected = np.log(sigmoid(np.where(actions, logits, -logits)))
    np.testing.assert_allclose(walk.log_probabilities[0].detach().numpy(), expected, atol=1e-4)


@pytest.mark.parametrize("spread", [False, True])
@pytest.mark.parametrize("rate", [0.25, 1.0, 2.5])
def test_a_walk_without_a_generator_picks_what_the_picker_picks(rate, spread):
    picknet, clips = trained_policy(), lively(4, 40)
    counts = torch.tensor([40, 40, 23, 2])

    def policy(inputs):
        with torch.no_grad():
            logits, embeddings, state = picknet(*map(torch.tensor, inputs.values()))
        return {"logits": logits.numpy(), "embeddings": embeddings.numpy(), "next_state": state.numpy()}

    with torch.no_grad():
        walk = walked(picknet, clips, counts, rate=rate, spread=spread)
    for clip, count, expected in zip(clips.numpy(), counts.tolist(), places(walk.picked), strict=True):
        frames = frames_of(clip[:count])
        assert all((frame.glance() == glance).all() for frame, glance in zip(frames, clip, strict=False))
        assert [pick.index for _, pick in RatePicker(policy, rate=rate, spread=spread).pick(frames)] == expected


def convolved(maps, weight, bias, *, step, edge):
    """maps: (in, rows, columns) -> (out, rows / step, columns / step): at every step-th position, edges of zeros."""
    padded = np.pad(maps, ((0, 0), (edge, edge), (edge, edge)))
    windows = np.lib.stride_tricks.sliding_window_view(padded, weight.shape[2:], axis=(1, 2))
    return np.einsum("iyxab,oiab->oyx", windows[:, ::step, ::step], weight) + bias[:, None, None]


class Peer:
    """RatePickNet in NumPy and float64, written from its description; one video at a time."""

    def __init__(self, picknet):
        self.w = arrays(picknet)
        self.state = np.zeros(STATE_SIZE)
        self.outlines, self.picks = [], []
        self.code_of_pick = np.zeros(CODE_SIZE)
        self.previous, self.wait = None, 0

    def logit(self, glance):
        w, now = self.w, glance.astype(float) / 255
        change = np.zeros((56, 56)) if self.previous is None else now - self.previous
        self.previous, self.wait = now, self.wait + 1
        means = now.reshape(14, 4, 14, 4).mean(axis=(1, 3)).ravel()
        spread = means - means.mean()
        self.outline = spread / np.sqrt((spread**2).sum() + 196 * (8 / 255) ** 2)
        measures = np.array(
            [
                now.mean(),
                4 * np.sqrt((spread**2).mean() + 1e-8),
                10 * np.abs(np.diff(now, axis=1)).mean(),
                np.log(np.abs(change).mean() + 1 / 255) + 3,
                (np.round(255 * np.abs(change)) >= 13).mean(),
            ]
        )
        maps = np.stack([now - 0.5, 4 * change])
        maps = np.maximum(convolved(maps, w["look.0.weight"], w["look.0.bias"], step=4, edge=0), 0)
        maps = np.maximum(convolved(maps, w["look.1.weight"], w["look.1.bias"], step=2, edge=1), 0)
        pooled = np.concatenate([maps.mean(axis=(1, 2)), maps.max(axis=(1, 2)), measures])
        self.code = np.maximum(w["code.weight"] @ pooled + w["code.bias"], 0)
        familiar = np.array([self.difference(before) for before in self.last(self.outlines, NUM_RECENT)])
        self.outlines.append(self.outline)
        self.remember(np.concatenate([self.code, familiar]))

        frame = np.concatenate([self.code, self.state, familiar, measures])
        hidden = w["from_frame.weight"] @ frame + w["from_frame.bias"]
        hidden += w["from_difference.weight"] @ (self.code - self.code_of_pick)
        novelty = [self.difference(before) for before in self.last(self.picks, NUM_PICKED)]
        last, nearest = novelty[0], min(novelty)
        clocks = [self.wait / (self.wait + scale) for scale in (4, 16, 64)]
        roots = np.sqrt(last + 1e-4), np.sqrt(nearest + 1e-4)
        hidden += w["from_picks.weight"] @ np.array([last, nearest, *roots, bool(self.picks), *clocks])
        return (w["decide.weight"] @ np.maximum(hidden, 0) + w["decide.bias"]).item()

    def pick(self):
        """Pick the frame that was seen last."""
        self.picks.append(self.outline)
        self.code_of_pick, self.wait = self.code, 0

    def remember(self, inputs):
        """One step of a GRU, as PyTorch defines it."""
        from_input = self.w["remember.weight_ih_l0"] @ inputs + self.w["remember.bias_ih_l0"]
        from_state = self.w["remember.weight_hh_l0"] @ self.state + self.w["remember.bias_hh_l0"]
        (r, z, n), (r_state, z_state, n_state) = from_input.reshape(3, -1), from_state.reshape(3, -1)
        z = sigmoid(z + z_state)
        self.state = (1 - z) * np.tanh(n + sigmoid(r + r_state) * n_state) + z * self.state

    def difference(self, other):
        """1 − cosine for outlines of norm 1."""
        return max(((self.outline - other) ** 2).sum() / 2, 0)

    @staticmethod
    def last(outlines, count):
        """The last ones, newest first, and zeros where there are none."""
        return [*outlines[::-1], *np.zeros((count, OUTLINE_SIZE))][:count]


def test_the_policy_with_a_memory_against_numpy():
    picknet, clip = trained_policy(), lively(12)
    walk = walked(picknet, clip[None], torch.tensor([12]), generator=torch.Generator().manual_seed(3))
    peer, expected = Peer(picknet), []
    for glance, action in zip(clip.numpy(), walk.picked[0].tolist(), strict=True):
        logit = peer.logit(glance)
        expected.append(np.log(sigmoid(logit if action else -logit)))
        if action:
            peer.pick()
    assert 1 < walk.picked.sum() < 11
    np.testing.assert_allclose(walk.log_probabilities[0].detach().numpy(), expected, atol=2e-4)


@pytest.mark.parametrize(("spread", "dial", "shift"), [(False, 1.0, -4.5), (True, 0.7, 0.0)])
def test_the_charge_of_a_walk_against_numpy(spread, dial, shift):
    # The rule in float64, frame by frame, from the peer's log-odds.
    picknet, clip = trained_policy(std=8.0), lively(40)
    with torch.no_grad():
        picknet.decide.bias += shift
        walk = walked(picknet, clip[None], torch.tensor([40]), rate=dial, spread=spread)
    peer, charge, mean, passed_over, expected = Peer(picknet), FIRST_CHARGE, 0.0, 0, []
    for t, glance in enumerate(clip.numpy()):
        logit = peer.logit(glance)
        rate = -np.log2(sigmoid(-logit))
        mean += (min(rate, MOST_RATE) - mean) / SPREAD
        if expected and not spread:
            charge += LEAK * (FIRST_CHARGE - charge)
        charge += dial * (mean + LEAST_RATE if spread else GAIN * rate)
        if charge >= 1 and (spread or dial * (t - (expected or [-1])[-1]) >= LEAST_WAIT):
            if logit > RULED_OUT or passed_over == PATIENCE:
                expected.append(t)
                peer.pick()
                charge, passed_over = min(charge - 1, FIRST_CHARGE), 0
            else:
                passed_over += 1
    assert places(walk.picked) == [expected]
    assert len(set(np.diff(expected))) > 1


@pytest.mark.parametrize("value", [0, 128, 255])
def test_glances_of_one_colour_have_finite_embeddings_and_gradients(value):
    picknet = trained_policy()
    blank = torch.full((1, 6, 56, 56), value, dtype=torch.uint8)
    walk = walked(picknet, blank, torch.tensor([6]), generator=torch.Generator().manual_seed(0))
    assert walk.log_probabilities.isfinite().all()
    walk.log_probabilities.sum().backward()
    assert all(weight.grad is None or weight.grad.isfinite().all() for weight in picknet.parameters())
    one, size = blank[:, 0], OUTLINE_SIZE + CODE_SIZE
    memories = torch.zeros(1, NUM_RECENT, size), torch.zeros(1, NUM_PICKED, size)
    logits, embeddings, state = picknet(one, one, torch.zeros(1, STATE_SIZE), *memories, torch.ones(1, 2))
    assert all(part.isfinite().all() for part in (logits, embeddings, state))
    # An outline has no brightness.
    assert embeddings[0, :OUTLINE_SIZE].abs().max() < 1e-6


def test_the_first_step_of_a_policy_with_a_memory_has_gradients():
    picknet = RatePickNet(RATE)
    walk = walked(picknet, lively(2, 12), torch.tensor([12, 12]), generator=torch.Generator().manual_seed(0))
    walk.log_probabilities.sum().backward()
    assert picknet.decide.weight.grad.abs().max() > 0


@pytest.mark.parametrize("max_gap", [0, 3])
def test_the_gradient_of_a_walk_is_that_of_its_single_decisions(max_gap):
    picknet = PickNet(replace(SMALL, max_gap=max_gap))
    clips, counts, weighting = glances(3, 7), torch.tensor([7, 4, 7]), torch.randn(6, 7)
    walk = walked(picknet, clips, counts, samples=2, generator=torch.Generator().manual_seed(2))
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
    both = walked(picknet, clips, counts, samples=2, generator=torch.Generator().manual_seed(1), and_greedy=True)
    sampled = walked(picknet, clips, counts, samples=2, generator=torch.Generator().manual_seed(1))
    assert torch.equal(both.picked, torch.cat([sampled.picked, walked(picknet, clips, counts).picked]))
    assert both.log_probabilities.shape == (6, 9)
    torch.testing.assert_close(both.log_probabilities, sampled.log_probabilities)
