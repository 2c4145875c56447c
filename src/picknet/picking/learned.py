"""The learned pickers: the paper's PickNet, and one with a memory whose probabilities add up to the next pick.

Both decide frame by frame. `CountedPicker` picks a given number of frames by either, once it has seen all of them.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.config import GlanceKind, ModelConfig
from picknet.picking.picker import BadPicker, Pick, checked_k, likeliest, picked
from picknet.video.frame import Frame

Array = NDArray[Any]

Policy = Callable[[Mapping[str, Array]], Mapping[str, Array]]
"""A policy graph: named inputs -> named outputs, each (n, …) for n frames."""

OnGlance = Callable[[Frame, float | None], object]
"""Called with every frame that a picker has looked at, and its probability of picking it, as in `Pick`."""

OUTLINE_SIZE = 14 * 14
"""What is where in a glance, without its mean and contrast."""
CODE_SIZE = 64
"""What the policy's convolution makes of a glance and its change."""
STATE_SIZE = 64
"""The policy's recurrent state."""
NUM_RECENT = 4
"""Number of last frames that a new one is compared with."""
NUM_PICKED = 16
"""Number of last picks that a new frame is compared with."""
FIRST_CHARGE = 0.5
"""Where the charge starts: a stride begins half way, so that picks fall on the middles of equal parts. After a pick no
more than this is left, so that one certain frame is not picked twice."""
GAIN = 3.0
"""At once: the rate of every frame is multiplied by this, so that a pick comes soon."""
LEAK = 0.5
"""At once, after the first pick: with every frame the charge first returns to FIRST_CHARGE by this share of the way, so
that an hour in which nothing happens does not add up to picks."""
LEAST_WAIT = 3
"""At once: least number of frames from one pick to the next, and from the start to the first; divided by the dial."""
SPREAD = 12
"""Spread: number of frames over which the rate is averaged."""
LEAST_RATE, MOST_RATE = 0.03, 0.5
"""Spread: what every frame adds, so that a still clip of thirty frames is picked twice, and the most that the rate of a
single frame counts."""
GROUP = 4
"""Spread: number of frames that are looked at one after the other, once all of them are decoded; fewer where a pick is
expected sooner. The policy takes twice as long when its weights and code have left the processor's caches, as they do
while a frame is decoded."""
FLAT = 8.0
"""Standard deviation in grey values below which a glance shows nothing, as a black one: it is not picked."""
RULED_OUT, PATIENCE = -3.0, 4
"""A frame whose logit is below RULED_OUT (p < 0.047) is passed over though the charge is full: PATIENCE at most."""
DARK, BRIGHT, LONG_PATIENCE = 20.0, 235.0, 8
"""So is one whose mean grey value is outside DARK to BRIGHT, up to LONG_PATIENCE of them: few fades take longer."""


class PickNetPicker:
    """The paper's picker: compares each glance with the glance of the last picked frame.

    Its state is that one glance and the number of frames since, whatever the length of the video.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        threshold: float = 0.5,
        max_gap: int | None = None,
        rate: float = 1.0,
        glance: GlanceKind = "grey",
        on_glance: OnGlance = lambda frame, probability: None,
    ) -> None:
        """max_gap: pick at least every `max_gap`-th frame, whatever the policy says. rate: divides the threshold.
        glance: what the policy sees."""
        if not 0 <= threshold <= 1:
            raise BadPicker(f"threshold is {threshold}: from 0 (pick all) to 1 (only the first) is possible")
        if max_gap is not None and max_gap < 1:
            raise BadPicker(f"max_gap is {max_gap}: 1 (pick all) or more is possible")
        self._policy = policy
        self._threshold = threshold / checked_rate(rate)
        self._max_gap = math.inf if max_gap is None else max_gap
        self._on_glance = on_glance
        self.glance = glance

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        return (picked(frame, probability) for frame, probability, is_pick in self.watch(frames) if is_pick)

    def watch(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, float | None, bool]]:
        """Every frame with the probability of picking it, and whether it is picked."""
        template: Array | None = None
        gap = 0
        for frame in frames:
            glance = _seen(frame, self.glance)
            probability, is_pick = None, True
            gap += 1
            if template is not None:
                logits = self._policy({"glances": glance[None], "templates": template[None]})["logits"]
                # A softmax over two is the logistic function of their difference.
                probability = _logistic(float(logits[0, 1] - logits[0, 0]))
                is_pick = probability > self._threshold or gap >= self._max_gap
            if is_pick:
                template, gap = glance, 0
            self._on_glance(frame, probability)
            yield frame, probability, is_pick


class Watched(NamedTuple):
    """A frame as a `RatePicker` saw it."""

    frame: Frame
    probability: float
    charge: float
    """What it adds to the charge."""
    is_pick: bool


class RatePicker:
    """A learned picker with a memory: it charges with every frame, by the policy's rate of picking. Full, it picks.

    The rate of a frame is −log₂(1 − p), where p is the policy's probability of picking it: 1 for p = ½. A constant rate
    is a stride; a frame that shows nothing hardly charges. The sum remembers the last frames that were nearly worth a
    pick, which a threshold on p would forget.

    Its state is bounded, whatever the length of the video: the policy's recurrent state, the embeddings of the last
    frames and of the last picks, and the likeliest frame so far, which is picked if the video ends without a pick.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        rate: float = 1.0,
        spread: bool = False,
        glance: GlanceKind = "grey",
        on_glance: OnGlance = lambda frame, probability: None,
    ) -> None:
        """rate: multiplies the charge of every frame, and at once divides the least wait: 2 picks more, 0.5 fewer.

        spread: for a clip that is described as a whole: the rate is averaged over time, so that it says how many picks
        there are, and they are spread evenly. Otherwise a pick comes at once, as a stream needs it.

        glance: what the policy sees.
        """
        self._policy = policy
        self._rate = checked_rate(rate)
        self.spread = spread
        self._on_glance = on_glance
        self.glance = glance

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        best: tuple[bool, float, Frame] | None = None
        any_pick = False
        for frame, probability, _, is_pick in self.watch(frames):
            if is_pick:
                any_pick = True
                yield picked(frame, probability)
            elif not any_pick:
                worth = _shows_something(frame), probability
                if best is None or worth > best[:2]:
                    best = *worth, frame
        if best is not None and not any_pick:
            yield picked(best[2], best[1])

    def watch(self, frames: Iterable[Frame]) -> Iterator[Watched]:
        """Every frame, picked or not."""
        memory, charge, mean, passed_over = _Memory(), FIRST_CHARGE, 0.0, 0

        def frames_to_pick() -> float:
            return (1 - charge) / (self._rate * (mean + LEAST_RATE))

        for frame in _in_groups(frames, frames_to_pick) if self.spread else frames:
            wait = memory.wait
            logit, embedding = memory.see(self._policy, _seen(frame, self.glance))
            # log₂(1 + exp(logit)), which is −log₂(1 − p), without overflow
            rate = float(np.logaddexp2(0.0, logit / math.log(2)))
            mean += (min(rate, MOST_RATE) - mean) / SPREAD
            if memory.any_pick and not self.spread:
                charge -= LEAK * (charge - FIRST_CHARGE)
            added = self._rate * (mean + LEAST_RATE if self.spread else GAIN * rate)
            charge += added
            is_full = charge >= 1 and (self.spread or self._rate * wait >= LEAST_WAIT)
            probability, is_pick = _logistic(logit), False
            if is_full and _shows_something(frame):
                is_pick = passed_over >= _patience(frame, probability)
                passed_over += 1
            if is_pick:
                charge, passed_over = min(charge - 1, FIRST_CHARGE), 0
                memory.pick(embedding)
            self._on_glance(frame, probability)
            yield Watched(frame, probability, added, is_pick)


class CountedPicker:
    """Exactly k frames of a clip by a learned picker; all frames of a clip that has no more.

    Not causal: the learned picker walks through the whole clip as usual, at its own rate, and then k frames are chosen.

    - By a `RatePicker`: those with which the charges, added up, pass the middles of k equal parts of their sum. Equal
      charges give the frames of `UniformPicker`; a lively stretch gets more of them, a still one fewer. A frame that
      would be passed over gives way to the nearest better one, as far off as it would be passed over for.
    - By the paper's picker: the first frame and the k − 1 likeliest others. Its probabilities are those of a change
      since its last pick and do not add up, so they are ranked, as `picknet pick --budget` ranks its picks.
    """

    looks_ahead = True

    def __init__(self, learned: PickNetPicker | RatePicker, k: int) -> None:
        self.k = checked_k(k)
        if isinstance(learned, RatePicker) and not learned.spread:
            raise BadPicker(f"k is {k}: not for a stream, whose picks come at once; the picker needs spread=True")
        self._learned = learned
        self.glance: GlanceKind = learned.glance

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        if isinstance(self._learned, RatePicker):
            yield from _evenly_charged(list(self._learned.watch(frames)), self.k)
        else:
            every = (picked(frame, probability) for frame, probability, _ in self._learned.watch(frames))
            yield from likeliest(every, self.k)


def _evenly_charged(watched: Sequence[Watched], k: int) -> list[tuple[Frame, Pick]]:
    count = len(watched)
    k = min(k, count)
    charges = np.cumsum([one.charge for one in watched])
    # How far to go rather than take a frame: from one that shows nothing, through the whole clip.
    detours = np.array(
        [
            _patience(one.frame, one.probability) if _shows_something(one.frame) else count + LONG_PATIENCE
            for one in watched
        ],
        dtype=float,
    )
    chosen: list[int] = []
    for part in range(k):
        middle = np.searchsorted(charges, (part + 0.5) / k * charges[-1], side="right")
        costs = np.abs(np.arange(count) - middle) + detours
        costs[chosen] = np.inf
        chosen.append(int(costs.argmin()))
    return [picked(watched[place].frame, watched[place].probability) for place in sorted(chosen)]


class _Memory:
    """What the policy remembers of a video."""

    def __init__(self) -> None:
        size = OUTLINE_SIZE + CODE_SIZE
        self._state = np.zeros((1, STATE_SIZE), np.float32)
        self._recent = np.zeros((1, NUM_RECENT, size), np.float32)
        self._picked = np.zeros((1, NUM_PICKED, size), np.float32)
        self._previous: Array | None = None
        self.wait = 1
        self.any_pick = False

    def see(self, policy: Policy, glance: Array) -> tuple[float, Array]:
        """The logit of picking a frame, and its embedding, (1, size)."""
        seen = policy(
            {
                "glances": glance[None],
                "previous": (glance if self._previous is None else self._previous)[None],
                "state": self._state,
                "recent": self._recent,
                "picked": self._picked,
                "clock": np.array([[self.wait, self.any_pick]], np.float32),
            }
        )
        self._previous, self._state = glance, seen["next_state"]
        embedding = seen["embeddings"]
        self._recent = _pushed(self._recent, embedding)
        self.wait += 1
        return float(seen["logits"][0]), embedding

    def pick(self, embedding: Array) -> None:
        """Remember the embedding of a picked frame."""
        self._picked = _pushed(self._picked, embedding)
        self.wait, self.any_pick = 1, True


def _shows_something(frame: Frame) -> bool:
    values = frame.glance().ravel().astype(np.float32)
    values -= _brightness(frame)
    return float(values @ values) >= FLAT**2 * values.size  # the standard deviation, without its root


def _brightness(frame: Frame) -> float:
    """The mean grey value. NumPy's own mean takes three times as long."""
    glance = frame.glance()
    return float(np.add.reduce(glance, axis=None)) / glance.size


def _patience(frame: Frame, probability: float) -> int:
    """How many frames are passed over, this one among them, before such a frame is picked after all."""
    if not DARK <= _brightness(frame) <= BRIGHT:
        return LONG_PATIENCE
    return 0 if probability > _logistic(RULED_OUT) else PATIENCE


def _in_groups(frames: Iterable[Frame], frames_to_pick: Callable[[], float]) -> Iterator[Frame]:
    """The frames in their order, but up to GROUP of them are taken and glanced at before the first is handed on.

    frames_to_pick: how many there will be up to the next pick, as it seems after those handed on.
    """
    group: list[Frame] = []
    size: float = GROUP
    for frame in frames:
        frame.glance()  # while its picture is in the caches
        group.append(frame)
        if len(group) >= size or frame.is_large:
            yield from group
            group, size = [], min(frames_to_pick(), GROUP)
    yield from group


def _seen(frame: Frame, kind: GlanceKind) -> Array:
    """What a policy sees of a frame: uint8, in the shape that its graph takes (`glance_shape`)."""
    return frame.glance() if kind == "grey" else frame.glance_as(kind)


def _pushed(rows: Array, row: Array) -> Array:
    """rows: (1, n, size), row: (1, size) -> the rows with this one in front, without the last"""
    return np.concatenate([row[:, None], rows[:, :-1]], axis=1)


def learned_picker(
    policy: Policy,
    model: ModelConfig,
    *,
    rate: float = 1.0,
    spread: bool = True,
    on_glance: OnGlance = lambda frame, probability: None,
) -> PickNetPicker | RatePicker:
    """The picker a model was trained with. rate: the dial, from many picks (above 1) to few (below). spread: see
    `RatePicker`."""
    if model.picker == "rate":
        return RatePicker(policy, rate=rate, spread=spread, glance=model.glance, on_glance=on_glance)
    return PickNetPicker(
        policy,
        threshold=model.pick_threshold,
        max_gap=model.max_gap or None,
        rate=rate,
        glance=model.glance,
        on_glance=on_glance,
    )


def checked_rate(rate: float) -> float:
    if not 0 < rate < math.inf:
        raise BadPicker(f"rate is {rate}: more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer")
    return rate


def _logistic(x: float) -> float:
    # Written with tanh, it cannot overflow.
    return 0.5 + 0.5 * math.tanh(x / 2)
