"""The policies that pick frames, in PyTorch: the paper's PickNet, and RatePickNet, which has a memory."""

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from picknet.config import ModelConfig
from picknet.model.rate_policy import FAINTEST_CONTRAST, NUM_MEASURES
from picknet.picking.learned import (
    BRIGHT,
    CODE_SIZE,
    DARK,
    FIRST_CHARGE,
    FLAT,
    GAIN,
    LEAK,
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


class Policy(nn.Module):
    """What training asks of a policy. Glances are (clips, frames, 56, 56) uint8, other kinds than grey have channels:
    (clips, frames, channels, 56, 56), see `glance_shape`. counts: (clips,) frames of each clip, the rest is padding.
    """

    def walk(
        self, glances: Tensor, counts: Tensor, chances: Tensor | None = None, *, and_greedy: bool = False
    ) -> Tensor:
        """Decide frame by frame over whole clips, as in inference, or by random numbers. -> (walks, frames) bool

        chances: (frames, clips × samples) from 0 to 1; the walks of one clip are consecutive.
        and_greedy: after the sampled walks comes one of every clip as in inference.
        """
        raise NotImplementedError

    def log_probabilities(self, glances: Tensor, counts: Tensor, picked: Tensor) -> Tensor:
        """Of each action of the walks `picked`, clips × samples; 0 for forced picks and for padding. -> (walks, frames)

        All decisions at once, so that gradients need few operations.
        """
        raise NotImplementedError

    def reinforce(self, glances: Tensor, counts: Tensor, picked: Tensor, advantage: Tensor) -> Tensor:
        """L_R, the mean over the walks of −Σ (r − b) log p(a). advantage (r − b): (walks, frames) or (walks, 1)"""
        return -(advantage * self.log_probabilities(glances, counts, picked)).sum(1).mean()


def draw_chances(glances: Tensor, samples: int, generator: torch.Generator) -> Tensor:
    """Random numbers for `samples` walks of each clip. -> (frames, clips × samples)"""
    clips, frames = glances.shape[:2]
    return torch.rand(frames, clips * samples, generator=generator, device=glances.device)


class PickNet(Policy):
    """The paper's policy: two layers on the difference between a glance and the last picked glance."""

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

    @torch.no_grad()
    def walk(
        self, glances: Tensor, counts: Tensor, chances: Tensor | None = None, *, and_greedy: bool = False
    ) -> Tensor:
        embedded = self._embed_clips(glances)
        if chances is None:
            return self._decide(embedded, counts, embedded.new_full((glances.shape[1], len(counts)), self.threshold))
        samples = chances.shape[1] // len(counts)
        walked, walked_counts = embedded.repeat_interleave(samples, dim=0), counts.repeat_interleave(samples)
        if and_greedy:
            walked, walked_counts = torch.cat([walked, embedded]), torch.cat([walked_counts, counts])
            chances = nn.functional.pad(chances, (0, len(counts)), value=self.threshold)
        return self._decide(walked, walked_counts, chances)

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

    def log_probabilities(self, glances: Tensor, counts: Tensor, picked: Tensor) -> Tensor:
        samples = len(picked) // len(counts)
        embedded = self._embed_clips(glances).repeat_interleave(samples, dim=0)
        last = _last_picks(picked).clamp(min=0)
        walks = torch.arange(len(picked), device=picked.device)[:, None]
        log_policy = self._logits(embedded, embedded[walks, last]).log_softmax(-1)
        action = torch.where(picked, log_policy[..., PICK], log_policy[..., DROP])
        numbers = torch.arange(picked.shape[1], device=picked.device)
        forced = (numbers == 0) | (numbers - last >= self.max_gap)
        return action.masked_fill(forced | (numbers >= counts.repeat_interleave(samples)[:, None]), 0.0)

    def _embed_clips(self, glances: Tensor) -> Tensor:
        """Every glance once, not once for each comparison. -> (clips, frames, hidden)"""
        return self._embed(glances.flatten(0, 1)).view(*glances.shape[:2], -1)

    def _embed(self, glances: Tensor) -> Tensor:
        # W₁(g − g̃) = W₁g − W₁g̃
        return nn.functional.linear(grey(glances).flatten(1), self.hidden.weight)

    def _logits(self, embedded: Tensor, template: Tensor) -> Tensor:
        logits: Tensor = self.decide(torch.relu(embedded - template + self.hidden.bias))
        return logits


class RatePickNet(Policy):
    """A policy with a memory: of what it sees (a GRU over all glances), of the last frames, and of the last picks.

    A glance and its change go through a small convolution, which gives its code; its outline (14 × 14, without mean and
    contrast) is compared with those of the last frames and of the last picks. Before training the probability is the
    same for every frame, which in inference gives a stride (see `RatePicker`). The convolution sees all channels of a
    glance, outlines and measures are those of the first.

    `model/rate_policy.py` is `forward` in NumPy: what changes here has to change there.
    """

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.sees_picture = config.glance in ("grey", "colour")
        patches = nn.Conv2d(2 * GLANCE_CHANNELS[config.glance], 16, 4, stride=4)  # 14 × 14 of them
        self.look = nn.ModuleList([patches, nn.Conv2d(16, 32, 3, stride=2, padding=1)])
        self.code = nn.Linear(2 * 32 + NUM_MEASURES, CODE_SIZE)
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

    @torch.no_grad()
    def walk(
        self,
        glances: Tensor,
        counts: Tensor,
        chances: Tensor | None = None,
        *,
        and_greedy: bool = False,
        rate: float = 1.0,
        spread: bool = True,
    ) -> Tensor:
        """rate, spread: of inference, see `RatePicker`."""
        seen = self._watched(glances)
        if chances is None:
            return self._fired(seen, counts, *self._quality(glances), rate=rate, spread=spread)
        samples = chances.shape[1] // len(counts)
        sampled = self._sampled(seen.repeated(samples), counts.repeat_interleave(samples), chances)
        if not and_greedy:
            return sampled
        return torch.cat([sampled, self._fired(seen, counts, *self._quality(glances), rate=rate, spread=spread)])

    def _sampled(self, seen: "Watched", counts: Tensor, chances: Tensor) -> Tensor:
        """chances: (frames, walks) -> picked: (walks, frames)"""
        memory, picks = PickMemory.empty(seen), []
        for t, chance in enumerate(chances):
            pick = (torch.sigmoid(self._logits_at(t, seen, memory)) > chance) & (t < counts)
            memory = memory.after(t, pick, seen)
            picks.append(pick)
        return torch.stack(picks, dim=1)

    def _fired(
        self, seen: "Watched", counts: Tensor, shows_something: Tensor, is_lit: Tensor, *, rate: float, spread: bool
    ) -> Tensor:
        """The rule of `RatePicker`. shows_something, is_lit: (clips, frames) -> picked: (clips, frames)"""
        memory, picks = PickMemory.empty(seen), []
        charge = torch.full_like(seen.frame[:, 0, 0], FIRST_CHARGE)
        mean, best = torch.zeros_like(charge), torch.full_like(charge, -math.inf)
        passed_over, best_place = torch.zeros_like(counts), torch.zeros_like(counts)
        for t in range(seen.frame.shape[1]):
            logits, present = self._logits_at(t, seen, memory), t < counts
            frame_rate = nn.functional.softplus(logits) / math.log(2)
            mean = mean + (frame_rate.clamp(max=MOST_RATE) - mean) / SPREAD
            if not spread:
                charge = charge - torch.where(memory.places[:, 0] >= 0, LEAK * (charge - FIRST_CHARGE), 0.0)
            charge = charge + rate * (mean + LEAST_RATE if spread else GAIN * frame_rate)
            full = (charge >= 1) & present & shows_something[:, t]
            if not spread:
                full = full & (rate * memory.wait >= LEAST_WAIT)
            patience = torch.where(logits > RULED_OUT, 0, PATIENCE)
            pick = full & (passed_over >= torch.where(is_lit[:, t], patience, LONG_PATIENCE))
            charge = torch.where(pick, (charge - 1).clamp(max=FIRST_CHARGE), charge)
            passed_over = torch.where(pick, 0, passed_over + full)
            worth = logits + torch.where(shows_something[:, t], 0.0, -1e3)
            better = present & (worth > best)
            best, best_place = torch.where(better, worth, best), torch.where(better, t, best_place)
            memory = memory.after(t, pick, seen)
            picks.append(pick)
        picked = torch.stack(picks, dim=1)
        likeliest = torch.zeros_like(picked).scatter(1, best_place[:, None], True)
        return torch.where(picked.any(1, keepdim=True), picked, likeliest)  # no video is without a pick

    def log_probabilities(self, glances: Tensor, counts: Tensor, picked: Tensor) -> Tensor:
        samples, frames = len(picked) // len(counts), picked.shape[1]
        seen = self._watched(glances).repeated(samples)
        numbers = torch.arange(frames, device=picked.device)
        # The places of the last picks before each frame, newest first: (walks, frames, NUM_PICKED), -1 for none.
        places = torch.where(picked, numbers, frames).sort(1).values
        nth = (picked.cumsum(1) - picked.long())[..., None] - 1 - torch.arange(NUM_PICKED, device=picked.device)
        rows = places[:, None].expand(-1, frames, -1)
        memory = rows.gather(2, nth.clamp(min=0)).masked_fill(nth < 0, -1)
        novelty = torch.where(memory < 0, seen.empty[..., None], seen.distances.gather(2, memory.clamp(min=0)))
        last = memory[..., 0]
        walks = torch.arange(len(picked), device=picked.device)[:, None]
        template = seen.compared[walks, last.clamp(min=0)].masked_fill(last[..., None] < 0, 0.0)
        has_pick = (last >= 0).to(novelty.dtype)
        logits = self._logits(seen.frame + seen.compared - template, novelty, (numbers - last).float(), has_pick)
        action = nn.functional.logsigmoid(torch.where(picked, logits, -logits))
        return action.masked_fill(numbers >= counts.repeat_interleave(samples)[:, None], 0.0)

    def _watched(self, glances: Tensor) -> "Watched":
        """What the decisions on whole clips need that does not depend on the picks."""
        batch, frames = glances.shape[:2]
        previous = torch.cat([glances[:, :1], glances[:, :-1]], dim=1)
        seen = self._seen(glances.flatten(0, 1), previous.flatten(0, 1))
        outlines, codes, measures = (part.view(batch, frames, -1) for part in seen)
        before = torch.nn.functional.pad(outlines, (0, 0, NUM_RECENT, 0))
        lagged = torch.stack([before[:, NUM_RECENT - lag :][:, :frames] for lag in range(1, NUM_RECENT + 1)], dim=2)
        familiar = _differences(outlines[:, :, None], lagged)[:, :, 0]
        # train=True with dropout 0: cuDNN needs the flag to compute gradients.
        start = codes.new_zeros(1, batch, STATE_SIZE)
        weights: list[Tensor] = list(self.remember.parameters())
        inputs = torch.cat([codes, familiar], dim=2)
        states = torch.gru(inputs, start, weights, True, 1, 0.0, True, False, True)[0]
        return Watched(
            frame=self.from_frame(torch.cat([codes, states, familiar, measures], dim=2)),
            compared=self.from_difference(codes),
            distances=_differences(outlines, outlines),
            empty=outlines.square().sum(2) / 2,
        )

    def _logits_at(self, t: int, seen: "Watched", memory: "PickMemory") -> Tensor:
        """-> (walks,): the logits of frame t after the picks so far"""
        places = memory.places
        novelty = torch.where(places < 0, seen.empty[:, t, None], seen.distances[:, t].gather(1, places.clamp(min=0)))
        has_pick = (places[:, 0] >= 0).to(novelty.dtype)
        return self._logits(seen.frame[:, t] + seen.compared[:, t] - memory.template, novelty, memory.wait, has_pick)

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
        """frame: (…, hidden), novelty (difference to each of the last picks): (…, NUM_PICKED), wait (frames since the
        last pick, or since the start), has_pick: (…) -> logits: (…)"""
        last, nearest = novelty[..., 0], novelty.amin(-1)
        clocks = [wait / (wait + scale) for scale in (4.0, 16.0, 64.0)]
        about = torch.stack([last, nearest, (last + 1e-4).sqrt(), (nearest + 1e-4).sqrt(), has_pick, *clocks], dim=-1)
        logits: Tensor = self.decide(torch.relu(frame + self.from_picks(about)))[..., 0]
        return logits


class Watched(NamedTuple):
    """What `RatePickNet` has seen in whole clips."""

    frame: Tensor
    """(clips, frames, hidden): what it makes of each frame."""
    compared: Tensor
    """(clips, frames, hidden): of a frame; minus that of the last pick, it is added to `frame`."""
    distances: Tensor
    """(clips, frames, frames): the difference of each two outlines."""
    empty: Tensor
    """(clips, frames): the difference to an outline of zeros, which an empty place in the memory of picks has."""

    def repeated(self, samples: int) -> "Watched":
        return Watched(*(part.repeat_interleave(samples, dim=0) for part in self))


class PickMemory(NamedTuple):
    """The picks of walks so far."""

    places: Tensor
    """(walks, NUM_PICKED): the last picks, newest first; -1 for none."""
    template: Tensor
    """(walks, hidden): `Watched.compared` of the last pick, 0 before the first."""
    wait: Tensor
    """(walks,): frames since the last pick, or since the start."""

    @staticmethod
    def empty(seen: Watched) -> "PickMemory":
        template = torch.zeros_like(seen.compared[:, 0])
        places = torch.full((len(template), NUM_PICKED), -1, device=template.device)
        return PickMemory(places, template, torch.ones_like(template[:, 0]))

    def after(self, t: int, pick: Tensor, seen: Watched) -> "PickMemory":
        """pick: (walks,), whether frame t is picked"""
        pushed = torch.cat([torch.full_like(self.places[:, :1], t), self.places[:, :-1]], dim=1)
        places = torch.where(pick[:, None], pushed, self.places)
        template = torch.where(pick[:, None], seen.compared[:, t], self.template)
        return PickMemory(places, template, torch.where(pick, 0, self.wait) + 1)


def grey(glances: Tensor) -> Tensor:
    """uint8 values, grey or of another kind of glance, as floats from 0 to 1."""
    return glances.to(torch.float32) / 255


def _last_picks(picked: Tensor) -> Tensor:
    """(walks, frames) bool -> the place of the last pick before each frame, -1 before the first"""
    numbers = torch.arange(picked.shape[1], device=picked.device)
    last = torch.where(picked, numbers, -1).cummax(1).values
    return nn.functional.pad(last[:, :-1], (1, 0), value=-1)


def _differences(outlines: Tensor, others: Tensor) -> Tensor:
    """(…, n, D), (…, m, D) -> (…, n, m): 1 − cosine for outlines of norm 1; 0 for equal ones, 1 for uncorrelated ones,
    ½ for an outline and none."""
    halves = [part.square().sum(-1) / 2 for part in (outlines, others)]
    # Below 0 only by rounding, which is coarse on a GPU.
    return (halves[0][..., :, None] + halves[1][..., None, :] - outlines @ others.transpose(-1, -2)).clamp(min=0)


def _logit(probability: float) -> float:
    return math.log(probability / (1 - probability))
