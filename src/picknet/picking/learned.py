"""The learned pickers: the paper's PickNet, and one that picks at a steady stride."""

import math
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.config import ModelConfig
from picknet.picking.picker import BadPicker, Pick, Picker, Plan, picked
from picknet.video.frame import GLANCE_SIZE, Frame

Array = NDArray[Any]

Policy = Callable[[Array, Array, Array], Array]
"""glances (n, 56, 56) uint8, templates (n, 56, 56) uint8, waits (n,) float32 -> probabilities of picking (n,)

A template is the glance of the last picked frame; a wait is the time since that frame, in strides.
"""


class PickNetPicker:
    """The paper's picker: compares each glance with the glance of the last picked frame.

    Its state is that one glance and the number of frames since, whatever the length of the video.
    """

    def __init__(self, policy: Policy, *, threshold: float = 0.5, max_gap: int | None = None) -> None:
        """max_gap: pick at least every `max_gap`-th frame, whatever the policy says."""
        if not 0 <= threshold <= 1:
            raise BadPicker(f"threshold is {threshold}: from 0 (pick all) to 1 (only the first) is possible")
        if max_gap is not None and max_gap < 1:
            raise BadPicker(f"max_gap is {max_gap}: 1 (pick all) or more is possible")
        self._policy = policy
        self._threshold = threshold
        self._max_gap = math.inf if max_gap is None else max_gap

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        template: Array | None = None
        gap = 0
        for frame in frames:
            glance = frame.glance()
            probability = None
            gap += 1
            if template is not None:
                probability = _probability(self._policy, glance, template, wait=0.0)
                if probability <= self._threshold and gap < self._max_gap:
                    continue
            template, gap = glance, 0
            yield picked(frame, probability)


class StridePicker:
    """A learned picker with a steady stride, which the policy may shorten or stretch according to the glances.

    The clock does not start at 0, so the first pick comes early (see `first_gap`). Every pick is the policy's, with
    one exception: a video that would end without a pick gets its last frame.
    """

    def __init__(
        self,
        policy: Policy,
        *,
        stride: float,
        first_pick: float = math.inf,
        threshold: float = 0.5,
        looks: bool = True,
    ) -> None:
        """stride, first_pick: in frames. looks: whether the policy depends on the glances; if it depends on the time
        since the last pick alone, the picks are planned in advance."""
        if not 0 <= threshold <= 1:
            raise BadPicker(f"threshold is {threshold}: from 0 (pick all) to 1 (only the last) is possible")
        if not stride >= 1:
            raise BadPicker(f"stride is {stride}: 1 (pick all) or more is possible")
        self._policy = policy
        self._stride = stride
        self._first_gap = first_gap(stride, first_pick)
        self._threshold = threshold
        self._looks = looks
        self._plan_lock = threading.Lock()
        self._plans: dict[int, Plan] = {}

    def plan(self, count: int) -> Plan | None:
        if self._looks:
            return None
        with self._plan_lock:
            if count not in self._plans:
                self._plans[count] = self._make_plan(count)
            return self._plans[count]

    def _make_plan(self, count: int) -> Plan:
        black = np.zeros((GLANCE_SIZE, GLANCE_SIZE, 3), np.uint8)
        frames = (Frame.from_pixels(black, index=index, seconds=0.0) for index in range(count))
        return Plan(count, {pick.index: pick.probability for _, pick in self.pick(frames)})

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        template: Array | None = None
        last: tuple[Frame, Pick] | None = None
        any_pick = False
        gap = self._first_gap
        for frame in frames:
            glance = frame.glance()
            template = glance if template is None else template
            probability = _probability(self._policy, glance, template, wait=gap / self._stride)
            last = picked(frame, probability)
            if probability > self._threshold:
                template, any_pick = glance, True
                gap = min(max(gap - self._stride, 0.0), 1.0)  # carry over the fraction of a frame beyond the stride
                yield last
            gap += 1
        if last is not None and not any_pick:
            yield last


def first_gap(stride: float, first_pick: float) -> float:
    """Where the clock of a stride policy starts, in frames; a pick is due when the clock is past the stride.

    It starts half a stride ahead, so that picks fall on the centres of equal parts of the video. If that is later than
    frame `first_pick`, it starts so that this frame is due: a late first pick costs more than an early one.
    """
    return max(1 + stride / 2, stride - first_pick + 0.5)


def learned_picker(policy: Policy, model: ModelConfig, *, looks: bool = True, rate: float = 1.0) -> Picker:
    """The picker a model was trained with. looks: see `StridePicker`. rate: 2 for about twice as many picks."""
    if model.picker == "stride":
        stride = max(model.stride / rate, 1.0)
        return StridePicker(
            policy, stride=stride, first_pick=model.first_pick, threshold=model.pick_threshold, looks=looks
        )
    threshold = model.pick_threshold**rate
    return PickNetPicker(policy, threshold=threshold, max_gap=model.max_gap or None)


def _probability(policy: Policy, glance: Array, template: Array, *, wait: float) -> float:
    return float(policy(glance[None], template[None], np.array([wait], np.float32))[0])
