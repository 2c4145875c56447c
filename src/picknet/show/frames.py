"""Picked frames as images that know their time, as files with an index, and as parts of a chat message."""

import base64
import contextlib
import io
import json
import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from picknet.errors import PicknetError
from picknet.files import UnwritableFile, write_text, written_whole
from picknet.picking.picker import Pick
from picknet.timecode import short_clock

IMAGE_FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    "jpeg": (".jpg", {"quality": 92, "subsampling": 0}),
    "png": (".png", {}),
}
"""Name -> file suffix and Pillow's options."""

LONGEST_JPEG_SIDE = 65_500

Part = dict[str, Any]
"""A text or an image in a message to a chat model, as JSON."""


class BadImage(PicknetError):
    """An impossible image format or size."""


class PickedFrame(Image.Image):
    """A picked frame, full size and upright: a PIL image that knows its time and position in the video.

    Images derived from it (`frame.resize(…)`, `frame.crop(…)`) are plain PIL images.
    """

    def __init__(self, pixels: NDArray[np.uint8], pick: Pick) -> None:
        """pixels: RGB (H, W, 3), copied."""
        height, width = pixels.shape[:2]
        # Pillow can fill an instance of a subclass only by restoring a pickled state.
        self.__setstate__([{}, "RGB", (width, height), None, pixels.tobytes()])
        self.pick = pick

    @property
    def seconds(self) -> float:
        return self.pick.seconds

    @property
    def index(self) -> int:
        """Position among the sampled frames, from 0."""
        return self.pick.index

    @property
    def frame_number(self) -> int | None:
        """Position among all frames of the video, from 0; None for a live source."""
        return self.pick.frame_number

    @property
    def probability(self) -> float | None:
        """The policy's probability of picking it; None where no policy was asked."""
        return self.pick.probability

    def __reduce__(self) -> tuple[type["PickedFrame"], tuple[NDArray[np.uint8], Pick]]:
        return PickedFrame, (np.asarray(self.convert("RGB")), self.pick)


@dataclass(frozen=True)
class Encoded:
    """An image as the content of a file."""

    content: bytes
    media_type: str
    width: int
    height: int

    @property
    def base64(self) -> str:
        return base64.b64encode(self.content).decode()


def encode(image: Image.Image, *, image_format: str = "jpeg", max_side: int | None = None) -> Encoded:
    """The image as JPEG or PNG, scaled down if it is wider or higher than `max_side` pixels."""
    if image_format not in IMAGE_FORMATS:
        raise BadImage(f"image_format is {image_format!r}: {' and '.join(IMAGE_FORMATS)} are possible")
    if max_side is not None and max_side < 1:
        raise BadImage(f"max_side is {max_side}: 1 pixel or more is possible")
    if max_side is not None and max(image.size) > max_side:
        image = image.copy()
        image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
    if image_format == "jpeg" and max(image.size) > LONGEST_JPEG_SIDE:
        raise BadImage(
            f"a picture of {image.width:,} × {image.height:,} pixels cannot be a JPEG, whose sides are at most "
            f"{LONGEST_JPEG_SIDE:,}: make it smaller (max_side), or a PNG"
        )
    content = io.BytesIO()
    image.save(content, image_format, **IMAGE_FORMATS[image_format][1])
    return Encoded(content.getvalue(), f"image/{image_format}", *image.size)


# --- Files ---


def write_frames(
    frames: Iterable[PickedFrame],
    folder: str | os.PathLike[str],
    *,
    about: Mapping[str, Any],
    image_format: str = "jpeg",
    max_side: int | None = None,
    written: Callable[[Path], object] = lambda path: None,
) -> None:
    """Write each frame to a file named by its number and time, then `index.json` with their picks and sizes.

    An error or Ctrl-C leaves the files written so far, all complete, and an index of them.

    about: the other facts of the index. written: called with the path of each file.
    """
    folder = Path(folder)
    rows: list[dict[str, Any]] = []
    try:
        for number, frame in enumerate(frames, start=1):
            encoded = encode(frame, image_format=image_format, max_side=max_side)
            name = f"{number:04d}-{_time_in_name(frame.seconds)}{IMAGE_FORMATS[image_format][0]}"
            with written_whole(folder / name) as temporary:
                temporary.write_bytes(encoded.content)
            rows.append({"file": name, **frame.pick.to_dict(), "width": encoded.width, "height": encoded.height})
            written(folder / name)
    except BaseException:
        if rows:
            with contextlib.suppress(UnwritableFile):  # report the first error, not this one
                _write_index(folder, about, rows)
        raise
    _write_index(folder, about, rows)


def _write_index(folder: Path, about: Mapping[str, Any], rows: list[dict[str, Any]]) -> None:
    write_text(folder / "index.json", json.dumps({**about, "num_picks": len(rows), "picks": rows}, indent=2) + "\n")


def _time_in_name(seconds: float) -> str:
    """01h02m03.200s: sorts by time, and every file system accepts it."""
    rest, milliseconds = divmod(round(seconds * 1000), 1000)
    return f"{rest // 3600:02d}h{rest // 60 % 60:02d}m{rest % 60:02d}.{milliseconds:03d}s"


# --- Messages ---


def openai_parts(
    frames: Iterable[PickedFrame], *, image_format: str = "jpeg", max_side: int | None = None
) -> list[Part]:
    """The frames as message content for OpenAI-compatible chat APIs: the time of each as text, then the image."""

    def part(encoded: Encoded) -> Part:
        url = f"data:{encoded.media_type};base64,{encoded.base64}"
        return {"type": "image_url", "image_url": {"url": url}}

    return _with_times(frames, part, image_format=image_format, max_side=max_side)


def anthropic_parts(
    frames: Iterable[PickedFrame], *, image_format: str = "jpeg", max_side: int | None = None
) -> list[Part]:
    """The frames as message content for Anthropic's messages API: the time of each as text, then the image."""

    def part(encoded: Encoded) -> Part:
        source = {"type": "base64", "media_type": encoded.media_type, "data": encoded.base64}
        return {"type": "image", "source": source}

    return _with_times(frames, part, image_format=image_format, max_side=max_side)


def _with_times(
    frames: Iterable[PickedFrame], part: Callable[[Encoded], Part], *, image_format: str, max_side: int | None
) -> list[Part]:
    parts: list[Part] = []
    for frame in frames:
        encoded = encode(frame, image_format=image_format, max_side=max_side)
        parts += [{"type": "text", "text": short_clock(frame.seconds, tenths=True)}, part(encoded)]
    return parts
