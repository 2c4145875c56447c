"""The picker interface. A picker is a lazy filter over frames that yields the picked ones."""

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from picknet.config import GlanceKind
from picknet.errors import PicknetError
from picknet.video.frame import Frame


class BadPicker(PicknetError):
    """A picker was given an impossible setting."""


@dataclass(frozen=True)
class Pick:
    """A picked frame: where it is in the video, and how probable picking it was."""

    index: int
    """Position among the sampled frames, from 0."""
    seconds: float
    """Presentation time, from the start of the video."""
    probability: float | None = None
    """The policy's probability of picking it. None where no policy was asked: for other pickers, and for the first
    frame, which PickNet always picks."""
    frame_number: int | None = None
    """Position among all frames of the video, from 0. None for live sources, whose frames are not counted."""

    def to_dict(self) -> dict[str, Any]:
        # Digits beyond a microsecond are rounding noise of the time base.
        return dataclasses.asdict(self) | {"seconds": round(self.seconds, 6)}


class Picker(Protocol):
    """Anything that lets some of the frames through.

    A picker may have three attributes. `looks_ahead`: whether it reads all frames before it yields the first pick, so
    that it cannot follow a live stream; `is_random`: whether its picks depend on a random generator; both are False by
    default. `glance`: what it sees of a frame besides the grey picture, so that the video is opened for it.
    """

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        """The picked frames, in order."""
        ...


def looks_ahead(picker: Picker) -> bool:
    """Whether the picker reads all frames before it yields the first pick."""
    return bool(getattr(picker, "looks_ahead", False))


def is_random(picker: Picker) -> bool:
    """Whether the picks depend on a random generator, and so on the calls before."""
    return bool(getattr(picker, "is_random", False))


def glance_kind(picker: Picker) -> GlanceKind:
    """The kind of glance that a video is to be opened with for this picker."""
    kind: GlanceKind = getattr(picker, "glance", "grey")
    return kind


@runtime_checkable
class Planner(Picker, Protocol):
    """A picker that may know its picks without looking at a frame, so that only those need decoding."""

    def plan(self, count: int) -> "Plan | None":
        """The picks among `count` frames; None if the picker has to look at them."""
        ...


@dataclass(frozen=True)
class Plan:
    """The picks among `count` frames, known in advance. A plan is itself a picker.

    If the video is damaged and none of the planned frames can be read, the last readable frame is picked.
    """

    count: int
    probabilities: Mapping[int, float | None]
    """Frame index -> probability of picking it, as in `Pick`."""

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        any_pick, frame = False, None
        for frame in frames:
            if frame.index in self.probabilities:
                any_pick = True
                yield picked(frame, self.probabilities[frame.index])
        if frame is not None and not any_pick:
            yield picked(frame)


def planned(picker: Picker, count: int) -> Plan | None:
    """The picker's plan for `count` frames, if it has one."""
    return picker.plan(count) if isinstance(picker, Planner) and count else None


def likeliest(picks: Iterable[tuple[Frame, Pick]], count: int) -> list[tuple[Frame, Pick]]:
    """The `count` most probable ones, in order. One without a probability, as PickNet's first, comes before others."""
    surest = sorted(picks, key=lambda item: -math.inf if item[1].probability is None else -item[1].probability)
    return sorted(surest[:count], key=lambda item: item[1].index)


def checked_k(k: int) -> int:
    if k < 1:
        raise BadPicker(f"k is {k}: at least 1 frame has to be picked")
    return k


def picked(frame: Frame, probability: float | None = None) -> tuple[Frame, Pick]:
    return frame, Pick(frame.index, frame.seconds, probability, frame.number)
