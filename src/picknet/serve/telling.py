"""What a picker looks at and picks, told while it is at work: for people who watch."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from PIL import Image

from picknet.picking.picker import Pick, Picker, glance_kind, looks_ahead
from picknet.show.frames import encode
from picknet.video.frame import Frame

Tell = Callable[[str, dict[str, Any]], object]
"""Called with the name of an event and what is known about it, as JSON types."""

PICK_SIDE = 320
"""Pixels of the longer side of a pick's picture."""


def tell_glance(tell: Tell, frame: Frame, probability: float | None) -> None:
    about = {"index": frame.index, "seconds": round(frame.seconds, 6), "probability": probability}
    tell("glance", {**about, **_picture(Image.fromarray(frame.glance()))})


class ToldPicker:
    """A picker whose picks are told."""

    def __init__(self, picker: Picker, tell: Tell) -> None:
        self._picker = picker
        self._tell = tell
        self.glance = glance_kind(picker)
        self.looks_ahead = looks_ahead(picker)

    def pick(self, frames: Iterable[Frame]) -> Iterator[tuple[Frame, Pick]]:
        for frame, pick in self._picker.pick(frames):
            self._tell("pick", {**pick.to_dict(), **_picture(Image.fromarray(frame.thumbnail(PICK_SIDE)))})
            yield frame, pick


def _picture(image: Image.Image) -> dict[str, Any]:
    encoded = encode(image)
    return {"media_type": encoded.media_type, "data": encoded.base64}
