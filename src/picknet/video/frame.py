"""A decoded frame: its glance, which a picker sees, and its pixels, which the CNN sees."""

import math
from collections.abc import Callable, Iterable, Iterator
from typing import Self

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from picknet.errors import BadSetting, PicknetError

GLANCE_SIZE = 56
"""Height and width of a glance, the small grey picture that a picker decides on."""
USUAL_FPS = 25.0
"""Frames a second, assumed where a video stores no frame rate."""
_SWSCALE_COLORSPACES = frozenset({0, 1, 2, 4, 5, 6, 7, 9})
_UNSPECIFIED_COLORSPACE = 2
_TIMESTAMP_ERROR = 0.0005
"""Seconds by which a container may round a timestamp: Matroska stores whole milliseconds."""
_MAX_PIXEL_ASPECT = 4.0
"""Largest credible ratio between the sides of a pixel; the widest pixels in use are twice as wide as high."""


class BadPixels(PicknetError, ValueError, TypeError):
    """Frames that are not RGB arrays (H, W, 3) of uint8."""


class Frame:
    """A decoded frame, kept in the decoder's pixel format: glance and pixels are computed when they are asked for.

    index: position among the sampled frames, 0, 1, 2 …
    seconds: presentation time, counted from the video's first frame.
    number: position among all frames of the video, from 0; None if they were not counted.
    """

    __slots__ = ("_glance", "_picture", "_pixel_aspect", "index", "number", "seconds")

    def __init__(
        self,
        picture: av.VideoFrame,
        *,
        index: int,
        seconds: float,
        number: int | None = None,
        pixel_aspect: float = 1.0,
    ) -> None:
        """pixel_aspect: width of a pixel divided by its height."""
        if picture.colorspace not in _SWSCALE_COLORSPACES:
            # A rare or reserved colour matrix, which the scaler refuses: slightly wrong colours beat no picture.
            picture.colorspace = _UNSPECIFIED_COLORSPACE
        self.index = index
        self.seconds = seconds
        self.number = number
        self._picture = picture
        self._pixel_aspect = pixel_aspect
        self._glance: NDArray[np.uint8] | None = None

    @classmethod
    def from_pixels(cls, pixels: NDArray[np.uint8], *, index: int, seconds: float) -> Self:
        """A frame of your own pixels: RGB (H, W, 3) of uint8, copied."""
        if not isinstance(pixels, np.ndarray):
            raise BadPixels(f"a frame is RGB (H, W, 3) of uint8, not {type(pixels).__name__}")
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
            raise BadPixels(f"a frame is RGB (H, W, 3) of uint8, not {pixels.shape} of {pixels.dtype}")
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        return cls(picture, index=index, seconds=seconds)

    def glance(self) -> NDArray[np.uint8]:
        """The frame small, grey and upright: uint8 (56, 56), 0 black to 255 white, computed once and read-only.

        Each value is the mean luma of its part of the frame (interpolated if the frame is smaller than a glance),
        taken from the luma plane without colour conversion. Limited range (16 to 235) is expanded, so that every source
        gives the same glance of the same scene.
        """
        if self._glance is None:
            # Bit-exact, so that the same frame is picked on every machine.
            how = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
            self._glance = self._scaled(GLANCE_SIZE, GLANCE_SIZE, "gray", how)
            self._glance.flags.writeable = False
        return self._glance

    def pixels(self, size: int | None = None) -> NDArray[np.uint8]:
        """The frame upright and with square pixels: RGB uint8 (H, W, 3), or squashed to (size, size, 3)."""
        if size is None:
            return self._scaled(*sides(self._picture, self._pixel_aspect), "rgb24", Interpolation.BILINEAR)
        return self._scaled(size, size, "rgb24", Interpolation.BICUBIC)

    def thumbnail(self, max_side: int) -> NDArray[np.uint8]:
        """A small copy, upright and with square pixels: RGB uint8 (h, w, 3), neither side longer than `max_side`.

        Scaled once from the decoder's format, without a conversion at full size. A smaller frame is not enlarged.
        """
        if max_side < 1:
            raise BadSetting(f"max_side is {max_side}: at least 1 pixel is needed")
        width, height = sides(self._picture, self._pixel_aspect)
        scale = min(max_side / max(width, height), 1.0)
        width, height = max(round(width * scale), 1), max(round(height * scale), 1)
        return self._scaled(width, height, "rgb24", Interpolation.AREA)

    def _scaled(self, width: int, height: int, pixel_format: str, how: Interpolation) -> NDArray[np.uint8]:
        # A new scaler for each call: kept with the frame it would use more memory than the frame, and threads cost
        # more than they gain for so small a task.
        scaled = VideoReformatter().reformat(
            self._picture, width, height, format=pixel_format, interpolation=how, threads=1
        )
        return np.array(np.rot90(scaled.to_ndarray(), quarter_turns(self._picture)))


def frames_from(items: Iterable[Frame | NDArray[np.uint8]], *, fps: float = 1.0) -> Iterator[Frame]:
    """Frames as they are; RGB arrays (H, W, 3) of uint8 as frames 1/fps seconds apart.

    items: any iterable, also one array (n, H, W, 3).
    """
    checked_fps(fps)
    if not isinstance(items, Iterable):
        raise BadPixels(f"frames are an iterable of frames or RGB arrays, not {type(items).__name__}")
    if isinstance(items, np.ndarray) and items.ndim != 4:
        raise BadPixels(f"an array of frames is RGB (n, H, W, 3) of uint8, not {items.shape} of {items.dtype}")
    return (
        item if isinstance(item, Frame) else Frame.from_pixels(item, index=index, seconds=index / fps)
        for index, item in enumerate(items)
    )


def checked_fps(fps: float) -> float:
    if not 0 < fps < math.inf:
        raise BadSetting(f"fps is {fps}: more than 0 frames a second are needed")
    return fps


def middles(total: int, count: int) -> list[int]:
    """Positions of the middles of `count` equal parts of `total` items, or of all items if they are fewer."""
    count = min(count, total)
    return [(2 * i + 1) * total // (2 * count) for i in range(count)]


def sampling_clock(fps: float) -> Callable[[float], bool]:
    """A function of increasing seconds: whether one of 0, 1/fps, 2/fps … has been reached since the last call."""
    next_tick = 0

    def is_due(seconds: float) -> bool:
        nonlocal next_tick
        ticks = (seconds + _TIMESTAMP_ERROR) * fps
        due = ticks >= next_tick
        next_tick = math.floor(ticks) + 1 if due else next_tick
        return due

    return is_due


def pixel_aspect(stream: VideoStream) -> float:
    """Width of a pixel divided by its height; 1 where the stream gives no credible value."""
    stored = float(stream.sample_aspect_ratio or 1)
    return stored if 1 / _MAX_PIXEL_ASPECT <= stored <= _MAX_PIXEL_ASPECT else 1.0


def sides(picture: av.VideoFrame, pixel_aspect: float) -> tuple[int, int]:
    """Width and height of the picture with square pixels, as players show it: the height is kept."""
    return max(round(picture.width * pixel_aspect), 1), picture.height


def quarter_turns(picture: av.VideoFrame) -> int:
    """Number of 90° turns to the left that set the picture upright, from its display matrix."""
    return round(picture.rotation / 90) % 4
