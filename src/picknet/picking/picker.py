"""What a picker is: a lazy filter over frames that yields picks."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from picknet.errors import PicknetError
from picknet.video.frame import Frame


class BadPicker(PicknetError):
    """A picker asked for something impossible."""


@dataclass(frozen=True)
class Pick:
    """A frame that was picked."""

    index: int
    """The frame's position among the sampled ones, from 0."""
    seconds: float
    """Where in the video it stands."""
    probability: float | None = None
    """The policy's probability of picking it. None where no policy was asked: other pickers, and the first frame,
    which PickNet takes by force."""
    frame_number: int | None = None
    """The frame's position among all frames of the video, from 0; None where they are not counted: live."""

    def as_json(self) -> dict[str, Any]:
        # Of a sum of binary fractions, what is beyond a microsecond is noise.
        return dataclasses.asdict(self) | {"seconds": round(self.seconds, 6)}


class Picker(Protocol):
    """Anything that lets some frames through."""

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        """The picked ones among `frames`, in order."""
        ...


@runtime_checkable
class Planner(Picker, Protocol):
    """A picker that may know what it will pick before it has seen a frame, so that no other need be decoded."""

    def plan(self, count: int) -> "Plan | None":
        """What it will pick of so many frames; None if it has to look at them."""
        ...


@dataclass(frozen=True)
class Plan:
    """What will be picked of `count` frames: their indexes, and the probability of each as in a `Pick`.

    It is a picker itself. Should none of them come, because the video is damaged, it takes the last frame that does.
    """

    count: int
    probabilities: Mapping[int, float | None]

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        any_pick, frame = False, None
        for frame in frames:
            if frame.index in self.probabilities:
                any_pick = True
                yield picked(frame, self.probabilities[frame.index])
        if frame is not None and not any_pick:
            yield picked(frame)


def planned(picker: Picker, count: int) -> Plan | None:
    """What a picker will pick of so many frames, if it can tell."""
    return picker.plan(count) if isinstance(picker, Planner) and count else None


def picked(frame: Frame, probability: float | None = None) -> tuple[Frame, Pick]:
    return frame, Pick(frame.index, frame.seconds, probability, frame.number)
