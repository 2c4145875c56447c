"""The learned pickers: the paper's PickNet, and one that keeps a stride."""

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.config import ModelConfig
from picknet.picking.picker import BadPicker, Pick, Picker, Plan, picked
from picknet.video.frame import GLANCE_SIZE, Frame

Array = NDArray[Any]


Policy = Callable[[Array, Array, Array], Array]
"""glances (n, 56, 56) uint8, templates (n, 56, 56) uint8, waits (n,) -> probabilities of picking (n,)

A template is the glance of the last picked frame, a wait the time since then, in strides.
"""


class PickNetPicker:
    """The paper's picker: it compares each glance with the glance of the last picked frame.

    All it remembers is that one glance and how long ago it was, however long the video.
    """

    def __init__(self, policy: Policy, *, threshold: float = 0.5, max_gap: int | None = None) -> None:
        """max_gap: with it, at the latest every so many frames one is picked, whatever the policy says."""
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
    """A learned picker that keeps a steady stride, sooner or later as the glances tell it.

    The clock starts ahead, so that the first pick comes early. No frame is picked by force but the last, where the
    video would end without a pick.
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
        """looks: whether the policy depends on glances. One that has learned nothing from them goes by its clock."""
        if not 0 <= threshold <= 1:
            raise BadPicker(f"threshold is {threshold}: from 0 (pick all) to 1 (only the last) is possible")
        if not stride >= 1:
            raise BadPicker(f"stride is {stride}: 1 (pick all) or more is possible")
        self._policy = policy
        self._stride = stride
        self._first_gap = first_gap(stride, first_pick)
        self._threshold = threshold
        self._plan = None if looks else functools.lru_cache(self._planned)

    def plan(self, count: int) -> Plan | None:
        return self._plan(count) if self._plan else None

    def _planned(self, count: int) -> Plan:
        black = np.zeros((GLANCE_SIZE, GLANCE_SIZE, 3), np.uint8)
        anything = (Frame.from_pixels(black, index=index, seconds=0.0) for index in range(count))
        return Plan(count, {pick.index: pick.probability for _, pick in self.pick(anything)})

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
                gap = min(max(gap - self._stride, 0.0), 1.0)  # what the stride overshot within this frame
                yield last
            gap += 1
        if last is not None and not any_pick:
            yield last


def first_gap(stride: float, first_pick: float) -> float:
    """Where a stride policy's clock starts, in frames: a pick is due when it is past the stride.

    Half a stride ahead, so that picks fall on the centres of equal parts, or further, so that the frame `first_pick`
    is due: late first picks cost more than early ones, since the ends of clips are worth least.
    """
    return max(1 + stride / 2, stride - first_pick + 0.5)


def learned_picker(policy: Policy, model: ModelConfig, *, looks: bool = True) -> Picker:
    """The picker that a model was trained with. looks: as in `StridePicker`."""
    if model.picker == "stride":
        return StridePicker(
            policy, stride=model.stride, first_pick=model.first_pick, threshold=model.pick_threshold, looks=looks
        )
    return PickNetPicker(policy, threshold=model.pick_threshold, max_gap=model.max_gap or None)


def _probability(policy: Policy, glance: Array, template: Array, *, wait: float) -> float:
    return float(policy(glance[None], template[None], np.array([wait], np.float32))[0])
