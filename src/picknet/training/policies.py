"""The policies that pick frames, in PyTorch: the paper's PickNet, and RatePickNet, which has a memory."""

import itertools
import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.picking.learned import (
    BRIGHT,
    CODE_SIZE,
    DARK,
    FIRST_CHARGE,
    FLAT,
    LEAST_RATE,
    LEAST_WAIT,
    LONG_PATIENCE,
    MOST_RATE,
    NUM_PICKED,
    NUM_RECENT,
    OUTLINE_SIZE,
    PATIENCE,
    RULED_OUT,
    SPREAD,
    STATE_SIZE,
)
from picknet.video.frame import GLANCE_CHANNELS, GLANCE_SIZE

DROP, PICK = 0, 1
"""PickNet's two actions: the indices of its two logits."""

NUM_MEASURES = 5
"""Brightness, contrast, sharpness, change since the last frame, and the share of the glance that changed."""
FAINTEST_CONTRAST = 8 / 255
"""Outlines of glances with less contrast are not scaled up to norm 1, since that would amplify noise."""


class Walk(NamedTuple):
    """A policy's actions on a batch of clips or films."""

    picked: Tensor
    """(batch, frames) bool."""
    log_probabilities: Tensor
    """(batch, frames): of each action; 0 for forced picks, such as the paper's first frame, and for padding."""


class PickNet(nn.Module):
    """The paper's policy: two layers on the difference between a glance and the last picked glance.

    Here and below, glances of another kind than grey have channels: (…, channels, 56, 56), see `glance_shape`.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.threshold, self.max_gap = config.pick_threshold, config.max_gap or math.inf
        size = GLANCE_CHANNELS[config.glance] * GLANCE_SIZE * GLANCE_SIZE
        self.hidden = nn.Linear(size, config.picker_hidden)
        self.decide = nn.Linear(config.picker_hidden, 2)
        with torch.no_grad():
            self.decide.bias[PICK] += _logit(config.initial_pick_probability)

    def forward(self, glances: Tensor, templates: Tensor) -> Tensor:
        """glances, templates (the last picked glances): (batch, 56, 56) uint8 -> logits s_t: (batch, 2)"""
        return self._logits(self._embed(glances), self._embed(templates))

    def walk(
        self,
        glances: Tensor,
        counts: Tensor,
        *,
        samples: int = 1,
        generator: torch.Generator | None = None,
        and_greedy: bool = False,
    ) -> Walk:
        """Decide frame by frame over whole clips: sampled if a generator is given, otherwise as in inference.

        glances: (batch, frames, 56, 56) uint8; counts: (batch,) number of frames of each clip, the rest is padding.
        Every clip is walked `samples` times; the walks of one clip are consecutive rows of the result.
        and_greedy: a walk of every clip as in inference is appended to `picked`, but not to `log_probabilities`.
        """
        # Embed every glance once, not once for each comparison.
        embedded = self._embed(glances.flatten(0, 1)).view(*glances.shape[:2], -1)
        rows, row_counts = embedded.repeat_interleave(samples, dim=0), counts.repeat_interleave(samples)
        with torch.no_grad():
            walked, walked_counts = rows, row_counts
            if and_greedy:
                walked, walked_counts = torch.cat([rows, embedded]), torch.cat([row_counts, counts])
            thresholds = torch.full((glances.shape[1], len(walked)), self.threshold, device=glances.device)
            if generator is not None:
                for chances in thresholds[:, : len(rows)]:
                    chances.uniform_(generator=generator)
            picked = self._decide(walked, walked_counts, thresholds)
        return Walk(picked, self._log_probabilities(rows, row_counts, picked[: len(rows)]))

    def _decide(self, embedded: Tensor, counts: Tensor, thresholds: Tensor) -> Tensor:
        """embedded: (walks, frames, hidden), counts: (walks,), thresholds of the probability: (frames, walks)
        -> picked: (walks, frames)"""
        numbers = torch.arange(len(thresholds), device=counts.device)
        absent = numbers[:, None] >= counts
        thresholds = thresholds.masked_fill(absent, math.inf)
        thresholds[0].fill_(-math.inf)  # the first frame is always picked
        template, last, picks = embedded[:, 0], torch.zeros_like(counts), []
        for t in range(len(thresholds)):
            pick = self._logits(embedded[:, t], template).softmax(-1)[:, PICK] > thresholds[t]
            if self.max_gap < math.inf:
                pick = pick | ((t - last >= self.max_gap) & ~absent[t])
                last = torch.where(pick, numbers[t], last)
            template = torch.where(pick[:, None], embedded[:, t], template)
            picks.append(pick)
        return torch.stack(picks, dim=1)

    def _log_probabilities(self, embedded: Tensor, counts: Tensor, picked: Tensor) -> Tensor:
        """embedded: (walks, frames, hidden), counts: (walks,), picked: (walks, frames) -> (walks, frames)

        All decisions of the walks again, at once, so that gradients need few operations.
        """
        numbers = torch.arange(picked.shape[1], device=picked.device)
        last = nn.functional.pad((numbers * picked).cummax(1).values[:, :-1], (1, 0))  # the pick before each frame
        rows = torch.arange(len(picked), device=picked.device)[:, None]
        log_policy = self._logits(embedded, embedded[rows, last]).log_softmax(-1)
        action = torch.where(picked, log_policy[..., PICK], log_policy[..., DROP])
        forced = (numbers == 0) | (numbers - last >= self.max_gap)
        return action.masked_fill(forced | (numbers >= counts[:, None]), 0.0)

    def _embed(self, glances: Tensor) -> Tensor:
        # W₁(g − g̃) = W₁g − W₁g̃
        return nn.functional.linear(grey(glances).flatten(1), self.hidden.weight)

    def _logits(self, embedded: Tensor, template: Tensor) -> Tensor:
        logits: Tensor = self.decide(torch.relu(embedded - template + self.hidden.bias))
        return logits


class RatePickNet(nn.Module):
    """A policy with a memory: of what it sees (a GRU over all glances), of the last frames, and of the last picks.

    A glance and its change go through a small convolution, which gives its code; its outline (14 × 14, without mean and
    contrast) is compared with those of the last frames and of the last picks. Before training the probability is the
    same for every frame, which in inference gives a stride (see `RatePicker`). The convolution sees all channels of a
    glance, outlines and measures are those of the first.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.sees_picture = config.glance in ("grey", "colour")
        sizes = (2 * GLANCE_CHANNELS[config.glance], 16, 32, 32)
        self.look = nn.ModuleList(nn.Conv2d(a, b, 3, stride=2, padding=1) for a, b in itertools.pairwise(sizes))
        self.code = nn.Linear(2 * sizes[-1] + NUM_MEASURES, CODE_SIZE)
        self.remember = nn.GRU(CODE_SIZE + NUM_RECENT, STATE_SIZE, batch_first=True)
        self.from_frame = nn.Linear(CODE_SIZE + STATE_SIZE + NUM_RECENT + NUM_MEASURES, config.picker_hidden)
        self.from_difference = nn.Linear(CODE_SIZE, config.picker_hidden, bias=False)
        self.from_picks = nn.Linear(8, config.picker_hidden, bias=False)
        self.decide = nn.Linear(config.picker_hidden, 1)
        nn.init.zeros_(self.decide.weight)
        nn.init.constant_(self.decide.bias, _logit(config.initial_pick_probability))

    def forward(
        self, glances: Tensor, previous: Tensor, state: Tensor, recent: Tensor, picked: Tensor, clock: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """One frame of each of n videos; see `RatePicker` for the inputs.

        -> logits of picking: (n,), embeddings: (n, outline + code), the next state: (n, STATE_SIZE)
        """
        outlines, codes, measures = self._seen(glances, previous)
        remembered = torch.cat([recent, picked], dim=1)[..., :OUTLINE_SIZE]
        # As `_differences`, with fewer operations for a single outline.
        differences = (outlines[:, None] - remembered).square().sum(2) / 2
        familiar, novelty = differences[:, :NUM_RECENT], differences[:, NUM_RECENT:]
        state = self._remembered(torch.cat([codes, familiar], dim=1), state)
        frame = self.from_frame(torch.cat([codes, state, familiar, measures], dim=1))
        difference = self.from_difference(codes - picked[:, 0, OUTLINE_SIZE:])
        logits = self._logits(frame + difference, novelty, clock[:, 0], clock[:, 1])
        return logits, torch.cat([outlines, codes], dim=1), state

    def walk(
        self,
        glances: Tensor,
        counts: Tensor,
        *,
        samples: int = 1,
        generator: torch.Generator | None = None,
        and_greedy: bool = False,
        rate: float = 1.0,
        spread: bool = True,
    ) -> Walk:
        """Decide frame by frame over whole clips: sampled if a generator is given, otherwise as in inference.

        glances: (batch, frames, 56, 56) uint8; counts: (batch,) number of frames of each clip, the rest is padding.
        Every clip is walked `samples` times; the walks of one clip are consecutive rows of the result.
        and_greedy: a walk of every clip as in inference is appended to `picked`, but not to `log_probabilities`.
        rate, spread: of inference, see `RatePicker`.
        """
        if and_greedy:
            sampled = self.walk(glances, counts, samples=samples, generator=generator)
            with torch.no_grad():
                greedy = self.walk(glances, counts, rate=rate, spread=spread)
            return Walk(torch.cat([sampled.picked, greedy.picked]), sampled.log_probabilities)
        batch, frames = glances.shape[:2]
        previous = torch.cat([glances[:, :1], glances[:, :-1]], dim=1)
        seen = self._seen(glances.flatten(0, 1), previous.flatten(0, 1))
        outlines, codes, measures = (part.view(batch, frames, -1) for part in seen)
        distances = _differences(outlines, outlines)  # (batch, frames, frames)
        before = torch.nn.functional.pad(outlines, (0, 0, NUM_RECENT, 0))
        lagged = torch.stack([before[:, NUM_RECENT - lag :][:, :frames] for lag in range(1, NUM_RECENT + 1)], dim=2)
        familiar = _differences(outlines[:, :, None], lagged)[:, :, 0]
        # train=True with dropout 0: cuDNN needs the flag to compute gradients.
        start = codes.new_zeros(1, batch, STATE_SIZE)
        weights: list[Tensor] = list(self.remember.parameters())
        inputs = torch.cat([codes, familiar], dim=2)
        states = torch.gru(inputs, start, weights, True, 1, 0.0, True, False, True)[0]
        frame = self.from_frame(torch.cat([codes, states, familiar, measures], dim=2))
        compared = self.from_difference(codes)
        # An empty place in the memory of picks is an outline of zeros.
        empty = outlines.square().sum(2, keepdim=True) / 2
        distances, empty, frame, compared, counts = (
            part.repeat_interleave(samples, dim=0) for part in (distances, empty, frame, compared, counts)
        )
        shows_something, is_lit = (part.repeat_interleave(samples, dim=0) for part in self._quality(glances))
        rows = torch.arange(len(frame), device=glances.device)
        memory = torch.full((len(frame), NUM_PICKED), -1, device=glances.device)  # the last picks, newest first
        template = torch.zeros_like(compared[:, 0])
        wait, charge = torch.ones(len(frame), device=glances.device), torch.full_like(compared[:, 0, 0], FIRST_CHARGE)
        best, mean, passed_over = torch.full_like(charge, -math.inf), torch.zeros_like(charge), torch.zeros_like(rows)
        best_place, any_pick = torch.zeros_like(rows), torch.zeros_like(rows, dtype=torch.bool)
        picks, log_probabilities = [], []
        for t in range(frames):
            novelty = torch.where(memory < 0, empty[:, t], distances[rows[:, None], t, memory.clamp(min=0)])
            has_pick = (memory[:, 0] >= 0).to(novelty.dtype)
            logits = self._logits(frame[:, t] + compared[:, t] - template, novelty, wait, has_pick)
            present = t < counts
            if generator is None:
                frame_rate = nn.functional.softplus(logits) / math.log(2)
                mean = mean + (frame_rate.clamp(max=MOST_RATE) - mean) / SPREAD
                charge = charge + rate * (mean + LEAST_RATE if spread else frame_rate)
                full = (charge >= 1) & (wait >= (0 if spread else LEAST_WAIT)) & present & shows_something[:, t]
                patience = torch.where(logits > RULED_OUT, 0, PATIENCE)
                pick = full & (passed_over >= torch.where(is_lit[:, t], patience, LONG_PATIENCE))
                charge = torch.where(pick, (charge - 1).clamp(max=FIRST_CHARGE), charge)
                passed_over = torch.where(pick, 0, passed_over + full)
                worth = logits + torch.where(shows_something[:, t], 0.0, -1e3)
                better = present & (worth > best)
                best, best_place = torch.where(better, worth, best), torch.where(better, t, best_place)
            else:
                chance = torch.rand(len(frame), generator=generator, device=glances.device)
                pick = (torch.sigmoid(logits) > chance) & present
            action = nn.functional.logsigmoid(torch.where(pick, logits, -logits))
            log_probabilities.append(torch.where(present, action, 0.0))
            pushed = torch.cat([torch.full_like(memory[:, :1], t), memory[:, :-1]], dim=1)
            memory = torch.where(pick[:, None], pushed, memory)
            template = torch.where(pick[:, None], compared[:, t], template)
            wait = torch.where(pick, 0, wait) + 1
            any_pick = any_pick | pick
            picks.append(pick)
        picked = torch.stack(picks, dim=1)
        if generator is None:  # a video without a pick gets its likeliest frame
            picked[rows[~any_pick], best_place[~any_pick]] = True
        return Walk(picked, torch.stack(log_probabilities, dim=1))

    def _quality(self, glances: Tensor) -> tuple[Tensor, Tensor]:
        """(batch, frames, 56, 56) or with channels, uint8 -> whether each frame shows something, and whether it is
        neither dark nor bright: (batch, frames) bool, see `RatePicker`

        Motion and packets have no picture, so that here every frame is good. In use the frame itself is looked at.
        """
        if not self.sees_picture:
            good = torch.ones(glances.shape[:2], dtype=torch.bool, device=glances.device)
            return good, good
        luma = glances if glances.dim() == 4 else glances[:, :, 0]
        values = luma.flatten(2).float()
        means = values.mean(2)
        return values.std(2, correction=0) >= FLAT, (means >= DARK) & (means <= BRIGHT)

    def _seen(self, glances: Tensor, previous: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """(n, 56, 56) uint8 -> outlines: (n, OUTLINE_SIZE), codes: (n, CODE_SIZE), measures: (n, NUM_MEASURES)"""
        values, values_before = grey(glances), grey(previous)
        changes = values - values_before
        now, change = (part if part.dim() == 3 else part[:, 0] for part in (values, changes))
        side = math.isqrt(OUTLINE_SIZE)
        step = GLANCE_SIZE // side
        means = now.reshape(-1, side, step, side, step).mean((2, 4)).flatten(1)
        brightness = means.mean(1, keepdim=True)
        centred = means - brightness
        power = centred.square().sum(1, keepdim=True)
        outlines = centred / (power + OUTLINE_SIZE * FAINTEST_CONTRAST**2).sqrt()
        size = change.abs().mean((1, 2))
        measures = torch.stack(
            [
                brightness[:, 0],
                4 * (power[:, 0] / OUTLINE_SIZE + 1e-8).sqrt(),
                10 * (now[:, :, 1:] - now[:, :, :-1]).abs().mean((1, 2)),
                torch.log(size + 1 / 255) + 3,
                # More than 12 grey values; half a value more, so that rounding decides nothing.
                (change.abs() > 12.5 / 255).to(now.dtype).mean((1, 2)),
            ],
            dim=1,
        )
        maps = torch.stack([values - 0.5, 4 * changes], dim=1)
        if maps.dim() == 5:  # glances with channels
            maps = maps.flatten(1, 2)
        for layer in self.look:
            maps = torch.relu(layer(maps))
        pooled = torch.cat([maps.mean(dim=(2, 3)), maps.amax(dim=(2, 3)), measures], dim=1)
        return outlines, torch.relu(self.code(pooled)), measures

    def _remembered(self, inputs: Tensor, state: Tensor) -> Tensor:
        """One step of `self.remember`, written out for the ONNX graph."""
        from_input, from_state, input_bias, state_bias = self.remember.parameters()
        r_input, z_input, n_input = nn.functional.linear(inputs, from_input, input_bias).chunk(3, dim=1)
        r_state, z_state, n_state = nn.functional.linear(state, from_state, state_bias).chunk(3, dim=1)
        z = torch.sigmoid(z_input + z_state)
        return (1 - z) * torch.tanh(n_input + torch.sigmoid(r_input + r_state) * n_state) + z * state

    def _logits(self, frame: Tensor, novelty: Tensor, wait: Tensor, has_pick: Tensor) -> Tensor:
        """frame: (n, hidden), novelty (difference to each of the last picks): (n, NUM_PICKED), wait (frames since the
        last pick, or since the start), has_pick: (n,) -> logits: (n,)"""
        last, nearest = novelty[:, 0], novelty.amin(1)
        clocks = [wait / (wait + scale) for scale in (4.0, 16.0, 64.0)]
        about = torch.stack([last, nearest, (last + 1e-4).sqrt(), (nearest + 1e-4).sqrt(), has_pick, *clocks], dim=1)
        logits: Tensor = self.decide(torch.relu(frame + self.from_picks(about)))[:, 0]
        return logits


def grey(glances: Tensor) -> Tensor:
    """uint8 values, grey or of another kind of glance, as floats from 0 to 1."""
    return glances.to(torch.float32) / 255


def _differences(outlines: Tensor, others: Tensor) -> Tensor:
    """(…, n, D), (…, m, D) -> (…, n, m): 1 − cosine for outlines of norm 1; 0 for equal ones, 1 for uncorrelated ones,
    ½ for an outline and none."""
    halves = [part.square().sum(-1) / 2 for part in (outlines, others)]
    # Below 0 only by rounding, which is coarse on a GPU.
    return (halves[0][..., :, None] + halves[1][..., None, :] - outlines @ others.transpose(-1, -2)).clamp(min=0)


def _logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
