"""A decoded frame: its glance, which picking is decided on, and its pixels, which the CNN is given."""

import math
from collections.abc import Callable
from typing import Self

import av
import numpy as np
from av.video.reformatter import Interpolation, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

GLANCE_SIZE = 56
"""Height and width of a glance, the small grey picture on which picking is decided."""
_SWSCALE_COLORSPACES = frozenset({0, 1, 2, 4, 5, 6, 7, 9})

_UNSPECIFIED_COLORSPACE = 2
_STAMP_ERROR = 0.0005
"""Seconds by which a container may round a frame's time: Matroska keeps whole milliseconds."""
_WIDEST_PIXEL = 4.0
"""How much longer one side of a pixel may be than the other; the widest in use are twice as wide as high."""


class Frame:
    """A decoded frame, held as the decoder left it.

    index: its position among the sampled frames, 0, 1, 2 …
    seconds: its presentation time, counted from the video's first frame.
    number: its position among all frames of the video, from 0; None where they were not counted.
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
        """pixel_aspect: how wide the picture's pixels are beside their height."""
        if picture.colorspace not in _SWSCALE_COLORSPACES:
            # A rare or reserved matrix that the scaler refuses; the usual one serves far better than no picture.
            picture.colorspace = _UNSPECIFIED_COLORSPACE
        self.index = index
        self.seconds = seconds
        self.number = number
        self._picture = picture
        self._pixel_aspect = pixel_aspect
        self._glance: NDArray[np.uint8] | None = None

    @classmethod
    def from_pixels(cls, pixels: NDArray[np.uint8], *, index: int, seconds: float) -> Self:
        """A frame of one's own. pixels: RGB (H, W, 3), copied."""
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
            raise ValueError(f"a frame is RGB (H, W, 3) of uint8, not {pixels.shape} of {pixels.dtype}")
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        return cls(picture, index=index, seconds=seconds)

    def glance(self) -> NDArray[np.uint8]:
        """The frame small, grey and upright: (56, 56), 0 black to 255 white, computed once and read-only.

        Each value is the mean luma of its part of the frame (interpolated where the frame is narrower than a glance).
        It comes from the luma plane alone, without colour conversion; only the range is stretched where the video
        keeps black at 16 and white at 235, so that every source gives the same glance of the same scene.
        """
        if self._glance is None:
            # Bit-exact, so that the same frame is picked on every machine.
            how = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
            self._glance = self._scaled(GLANCE_SIZE, GLANCE_SIZE, "gray", how)
            self._glance.flags.writeable = False
        return self._glance

    def pixels(self, size: int | None = None) -> NDArray[np.uint8]:
        """The frame in colour, upright and with square pixels: RGB (H, W, 3), or squashed to (size, size, 3)."""
        if size is None:
            return self._scaled(*sides(self._picture, self._pixel_aspect), "rgb24", Interpolation.BILINEAR)
        return self._scaled(size, size, "rgb24", Interpolation.BICUBIC)

    def _scaled(self, width: int, height: int, pixel_format: str, how: Interpolation) -> NDArray[np.uint8]:
        # A scaler of its own for each call: one kept with the frame would weigh more than the frame, and threads
        # for so small a task cost more than they bring.
        scaled = VideoReformatter().reformat(
            self._picture, width, height, format=pixel_format, interpolation=how, threads=1
        )
        return np.array(np.rot90(scaled.to_ndarray(), quarter_turns(self._picture)))


def metronome(fps: float) -> Callable[[float], bool]:
    """A function of ever more seconds: whether one of 0, 1/fps, 2/fps … has come since it was last called."""
    next_tick = 0

    def is_due(seconds: float) -> bool:
        nonlocal next_tick
        ticks = (seconds + _STAMP_ERROR) * fps
        due = ticks >= next_tick
        next_tick = math.floor(ticks) + 1 if due else next_tick
        return due

    return is_due


def pixel_aspect(stream: VideoStream) -> float:
    """How wide its pixels are beside their height: 1 for square ones, and where nothing else can be believed."""
    told = float(stream.sample_aspect_ratio or 1)
    return told if 1 / _WIDEST_PIXEL <= told <= _WIDEST_PIXEL else 1.0


def sides(picture: av.VideoFrame, pixel_aspect: float) -> tuple[int, int]:
    """Width and height of the picture with square pixels, as players show it: its height stays."""
    return max(round(picture.width * pixel_aspect), 1), picture.height


def quarter_turns(picture: av.VideoFrame) -> int:
    """How often to turn the picture left by 90° to set it upright, as its display matrix asks."""
    return round(picture.rotation / 90) % 4
