"""A decoded frame: its glance, which a picker sees, and its pixels, which the CNN sees."""

import math
import threading
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Self

import av
import numpy as np
from av.video.format import VideoFormat
from av.video.reformatter import ColorRange, Colorspace, Interpolation, VideoReformatter
from av.video.stream import VideoStream
from numpy.typing import NDArray

from picknet.config import GlanceKind
from picknet.errors import BadSetting, PicknetError
from picknet.video import hdr
from picknet.video.fields import shown_field

GLANCE_SIZE = 56
"""Height and width of a glance, the small grey picture that a picker decides on."""
GLANCE_CHANNELS: Mapping[GlanceKind, int] = {"grey": 1, "colour": 3, "motion": 3, "packets": 2}
"""Channels of each kind of glance."""
USUAL_FPS = 25.0
"""Frames a second, assumed where a video stores no frame rate."""
LARGE_PICTURE = 2**25
"""Pixels, slightly more than 8K has. Larger pictures take so much memory that they are decoded one by one."""
LONGEST_SIDE, NARROWEST = 2048, 256
"""A picture is too narrow if one side is longer than LONGEST_SIDE pixels and over NARROWEST times as long as the other.
FFmpeg cannot scale some of those that are a thousand times as long."""
TOO_NARROW = f"with a side of more than {LONGEST_SIDE:,}, at most {NARROWEST} times as long as the other is possible"
BLANK = 2.0
"""Standard deviation, of 255, below which a frame is blank: that of black frames in videos is below 1."""
_GLANCE_SCALING = Interpolation.AREA | Interpolation.ACCURATE_RND | Interpolation.BITEXACT
"""Bit-exact, so that the same frame is picked on every machine."""
_SWSCALE_COLORSPACES = frozenset({0, 1, 2, 4, 5, 6, 7, 9})
_UNSPECIFIED_COLORSPACE = 2
_HD_WIDTH, _SD_HEIGHT = 1280, 576
"""A picture is HD if it is so wide, or higher than that."""
_OPAQUE = frozenset({"bgra", "pal8"})
_TO_YCBCR = np.array([[0.299, 0.587, 0.114], [-0.168736, -0.331264, 0.5], [0.5, -0.418688, -0.081312]], np.float32)
"""From RGB, as in JPEG: ITU-T T.871."""
_BLACK = np.array((0, 128, 128), np.float32)
"""In Y, Cb and Cr."""
_TIMESTAMP_ERROR = 0.0005
"""Seconds by which a container may round a timestamp: Matroska stores whole milliseconds."""
_FASTEST = 1000
"""Frames a second. An average of more is none."""
_BROADCAST = frozenset({"mpeg", "mpegts"})
"""Containers in which the shape of pixels is told by the codec alone, with each keyframe."""
_MAX_PIXEL_ASPECT = 4.0
"""Largest credible ratio between the sides of a pixel; the widest pixels in use are twice as wide as high."""


class _Scalers(threading.local):
    """A scaler for glances in each thread: to set one up takes nearly as long as to scale."""

    def __init__(self) -> None:
        self.glances = VideoReformatter()


_scalers = _Scalers()


class BadPixels(PicknetError, ValueError, TypeError):
    """Frames that are not RGB arrays (H, W, 3) of uint8."""


class NoSuchGlance(BadSetting):
    """A kind of glance that a frame does not have: only a video has motion vectors and packets."""


class PacketBytes(NamedTuple):
    """Bytes of the packets since the sampled frame before, its own packet not counted, up to a frame's own."""

    keys: int = 0
    """Of keyframes."""
    others: int = 0
    """Of all other frames."""


class Frame:
    """A decoded frame, kept in the decoder's pixel format: glance and pixels are computed when they are asked for.

    index: position among the sampled frames, 0, 1, 2 …
    seconds: presentation time, counted from the video's first frame.
    number: position among all frames of the video, from 0; None if they were not counted.
    """

    __slots__ = (
        "_glance", "_mirrored", "_motion", "_packets", "_picture", "_pixel_aspect", "index", "number", "seconds",
    )  # fmt: skip

    def __init__(
        self,
        picture: av.VideoFrame,
        *,
        index: int,
        seconds: float,
        number: int | None = None,
        pixel_aspect: float = 1.0,
        mirrored: bool = False,
        motion: NDArray[np.uint8] | None = None,
        packets: PacketBytes | None = None,
    ) -> None:
        """pixel_aspect: width of a pixel divided by its height.

        mirrored: whether the picture is to be turned upside down, as in water, before its quarter turns.
        motion: uint8 (3, 56, 56), see `Motion.take`; None if unknown, as is `packets`.
        """
        if picture.colorspace not in _SWSCALE_COLORSPACES:
            # A rare or reserved colour matrix, which the scaler refuses: slightly wrong colours beat no picture.
            picture.colorspace = _UNSPECIFIED_COLORSPACE
        self.index = index
        self.seconds = seconds
        self.number = number
        self._picture = picture
        self._pixel_aspect = pixel_aspect
        self._mirrored = mirrored
        self._motion = motion
        self._packets = packets
        self._glance: NDArray[np.uint8] | None = None

    @classmethod
    def from_pixels(cls, pixels: NDArray[np.uint8], *, index: int, seconds: float) -> Self:
        """A frame of your own pixels: RGB (H, W, 3) of uint8, copied."""
        if not isinstance(pixels, np.ndarray):
            raise BadPixels(f"a frame is RGB (H, W, 3) of uint8, not {type(pixels).__name__}")
        if pixels.dtype != np.uint8 or pixels.ndim != 3 or pixels.shape[2] != 3 or 0 in pixels.shape:
            raise BadPixels(f"a frame is RGB (H, W, 3) of uint8, not {pixels.shape} of {pixels.dtype}")
        height, width, _ = pixels.shape
        if is_narrow(width, height):
            raise BadPixels(f"a frame has {width:,} × {height:,} pixels: {TOO_NARROW}")
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(pixels), format="rgb24")
        return cls(picture, index=index, seconds=seconds)

    @classmethod
    def blank(cls, size: int) -> Self:
        """A black frame of (size, size) pixels, with glances of every kind, to run a model once before the first."""
        picture = av.VideoFrame.from_ndarray(np.zeros((size, size, 3), np.uint8), format="rgb24")
        still = np.zeros((GLANCE_CHANNELS["motion"], GLANCE_SIZE, GLANCE_SIZE), np.uint8)
        return cls(picture, index=0, seconds=0.0, motion=still, packets=PacketBytes())

    @property
    def is_large(self) -> bool:
        """Whether it takes so much memory that few should be held."""
        return is_large(self._picture.width, self._picture.height)

    @property
    def is_blank(self) -> bool:
        """Whether there is nothing to see: nearly one brightness and colour all over, as a black screen."""
        if self.glance().std() >= BLANK:
            return False
        return bool(self.pixels(GLANCE_SIZE).std(axis=(0, 1)).max() < BLANK)

    def shrink(self, size: int) -> None:
        """Keep no more than the glance and `pixels(size)`. A thumbnail is squashed from now on."""
        self.glance()
        self._picture = av.VideoFrame.from_ndarray(self.pixels(size), format="rgb24")
        self._pixel_aspect, self._mirrored = 1.0, False

    def glance(self) -> NDArray[np.uint8]:
        """The frame small, grey and upright: uint8 (56, 56), 0 black to 255 white, computed once and read-only.

        Each value is the mean luma of its part of the frame (interpolated if the frame is smaller than a glance),
        taken from the luma plane without colour conversion. Limited range (16 to 235) is expanded, so that every source
        gives the same glance of the same scene.
        """
        if self._glance is None:
            self._glance = self._scaled(GLANCE_SIZE, GLANCE_SIZE, "gray", _GLANCE_SCALING, _scalers.glances)
            self._glance.flags.writeable = False
        return self._glance

    def glance_as(self, kind: GlanceKind) -> NDArray[np.uint8]:
        """Another view of the frame for a policy: uint8 (channels, 56, 56), with `GLANCE_CHANNELS[kind]` channels.

        grey: `glance`. colour: Y, Cb and Cr, all from 0 to 255; Y is `glance`.
        motion: movement to the right and down since the sampled frame before, and intra-coded blocks: `Motion.take`.
        packets: two planes of one value each, for the bytes of all packets since the sampled frame before that are no
            keyframes, and for those of keyframes: 16 (10 + log₂ of the bits per pixel), at least 1; 0 for no packet.
        """
        if kind == "grey":
            return self.glance()[None]
        if kind == "colour":
            return self._colours()
        if kind == "motion" and self._motion is not None:
            return self._motion
        if kind == "packets" and self._packets is not None:
            area = self._picture.width * self._picture.height
            values = [_log_bits(self._packets.others, area), _log_bits(self._packets.keys, area)]
            return np.broadcast_to(np.array(values, np.uint8)[:, None, None], (2, GLANCE_SIZE, GLANCE_SIZE))
        if kind not in GLANCE_CHANNELS:
            raise NoSuchGlance(f"glance is '{kind}'; possible: {', '.join(GLANCE_CHANNELS)}")
        raise NoSuchGlance(
            f"the frame at {self.seconds:.1f} s has no {kind}: only frames of a video do, opened with glance='{kind}'"
        )

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

    def _scaled(
        self, width: int, height: int, pixel_format: str, how: Interpolation, scaler: VideoReformatter | None = None
    ) -> NDArray[np.uint8]:
        # A scaler of large pictures is not kept: it uses more memory than the frame. Threads cost more than they gain
        # for so small a task.
        scaler = scaler or VideoReformatter()
        is_transparent, curve = _has_alpha(self._picture.format), self._picture.color_trc
        is_hdr = curve in hdr.CURVES
        shown = "rgba" if is_transparent else "rgb24" if is_hdr else pixel_format
        matrix = None if shown == "gray" else _guessed_matrix(self._picture)
        scaled = self._reformatted(scaler, width, height, format=shown, interpolation=how, src_colorspace=matrix)
        turns, pixels = quarter_turns(self._picture), scaled.to_ndarray()
        if is_transparent:
            pixels = _on_white(pixels)
        if is_hdr:
            pixels = hdr.as_ordinary(pixels, curve=curve, primaries=self._picture.color_primaries)
        if pixel_format == "gray" and pixels.ndim == 3:
            pixels = np.rint(pixels @ _TO_YCBCR[0]).astype(np.uint8)
        if self._mirrored:
            pixels = pixels[::-1]
        return np.array(np.rot90(pixels, turns) if turns else pixels)

    def _reformatted(self, scaler: VideoReformatter, width: int, height: int, **how: Any) -> av.VideoFrame:
        try:
            return scaler.reformat(shown_field(self._picture), width, height, threads=1, **how)
        except av.FFmpegError as error:
            given = f"{self._picture.width:,} × {self._picture.height:,} pixels of {self._picture.format.name}"
            what = f"the frame at {self.seconds:.1f} s"
            raise BadPixels(f"{what}: {given} cannot be scaled ({error.strerror})") from error

    def _colours(self) -> NDArray[np.uint8]:
        colours = self._shown_colours() if self._is_shown_otherwise else self._stored_colours()
        colours.flags.writeable = False
        self._glance = colours[0]
        return colours

    @property
    def _is_shown_otherwise(self) -> bool:
        """Whether its colours are not those stored: HDR, and what may be transparent."""
        return self._picture.color_trc in hdr.CURVES or _has_alpha(self._picture.format)

    def _shown_colours(self) -> NDArray[np.uint8]:
        pixels = self._scaled(GLANCE_SIZE, GLANCE_SIZE, "rgb24", _GLANCE_SCALING)
        colours = np.rint(pixels @ _TO_YCBCR.T + _BLACK).clip(0, 255).astype(np.uint8)
        return np.ascontiguousarray(colours.transpose(2, 0, 1))

    def _stored_colours(self) -> NDArray[np.uint8]:
        scaled = self._reformatted(
            VideoReformatter(),
            GLANCE_SIZE,
            GLANCE_SIZE,
            format="yuv444p",
            interpolation=_GLANCE_SCALING,
            dst_color_range=ColorRange.JPEG,
        )
        planes = scaled.to_ndarray()
        if self._mirrored:
            planes = planes[:, ::-1]
        turned = np.rot90(planes, quarter_turns(self._picture), axes=(1, 2))
        return np.array(turned, np.uint8)


def _guessed_matrix(picture: av.VideoFrame) -> Colorspace | None:
    """BT.709 for an HD picture that names no colour matrix, as players have it; the scaler would take BT.601, which
    is right for SD. None where the picture's own is used.

    The sizes are those of mpv: HD is 1280 or more pixels wide, or more than 576 high.
    """
    if picture.colorspace != _UNSPECIFIED_COLORSPACE or picture.format.is_rgb or picture.format.has_palette:
        return None
    return Colorspace.ITU709 if picture.width >= _HD_WIDTH or picture.height > _SD_HEIGHT else None


def _has_alpha(format: VideoFormat) -> bool:
    """Whether pictures may be transparent; not GIFs, in which FFmpeg makes such places white itself, nor palettes."""
    return format.name not in _OPAQUE and any(component.is_alpha for component in format.components)


def _on_white(pixels: NDArray[Any]) -> NDArray[np.uint8]:
    """RGBA (h, w, 4) -> RGB (h, w, 3). A picture that is transparent everywhere is shown as it is: its alpha is not
    used."""
    alpha = pixels[..., 3:].astype(np.float32) / 255
    if not alpha.any():
        alpha[:] = 1
    return np.rint(pixels[..., :3] * alpha + 255 * (1 - alpha)).astype(np.uint8)


def _log_bits(num_bytes: int, area: int) -> int:
    """0 for nothing; else 1 to 255: from 2⁻¹⁰ bits a pixel to nearly 2⁶."""
    return min(max(round(16 * (10 + math.log2(8 * num_bytes / area))), 1), 255) if num_bytes else 0


def is_large(width: int, height: int) -> bool:
    """Whether a picture takes so much memory that few should be held."""
    return width * height > LARGE_PICTURE


def is_narrow(width: int, height: int) -> bool:
    """Whether a picture is too narrow to be scaled."""
    return max(width, height) > max(LONGEST_SIDE, NARROWEST * min(width, height))


def glance_shape(kind: GlanceKind) -> tuple[int, ...]:
    """Shape of a stored glance: (56, 56) if it is grey, as the paper's; otherwise (channels, 56, 56)."""
    channels = () if kind == "grey" else (GLANCE_CHANNELS[kind],)
    return *channels, GLANCE_SIZE, GLANCE_SIZE


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


def due_positions(times: Sequence[int], *, fps: float, unit: float) -> list[int]:
    """Positions of the times, sorted, at which `sampling_clock` says yes; few of them are looked at.

    unit: seconds of a tick of these times.
    """

    def ticks(time: int) -> float:
        return ((time - times[0]) * unit + _TIMESTAMP_ERROR) * fps

    found, position, gap = [], 0, 1
    while position < len(times):
        found.append(position)
        next_tick = math.floor(ticks(times[position])) + 1
        # Frames come at a steady rate mostly, so the next one is about as far away as the last was.
        low, high = position + 1, position + gap + 1
        while high < len(times) and ticks(times[high]) < next_tick:
            low, high = high + 1, high + 2 * (high - position)
        following = bisect_left(times, float(next_tick), low, min(high, len(times)), key=ticks)
        position, gap = following, following - position
    return found


def pixel_aspect(stream: VideoStream) -> float:
    """Width of a pixel divided by its height; 1 where the stream gives no credible value.

    A broadcast changes it on the way: there it is that of the frame decoded last. A frame that waits for others to be
    decoded has theirs, which may be wrong for one or two before a change.
    """
    changes = stream.container.format.name in _BROADCAST
    stored = float((stream.codec_context if changes else stream).sample_aspect_ratio or 1)
    return stored if 1 / _MAX_PIXEL_ASPECT <= stored <= _MAX_PIXEL_ASPECT else 1.0


def frame_rate(stream: VideoStream) -> float:
    """Frames a second on average; the usual number where the stream stores none."""
    average = stream.average_rate
    if average and average > _FASTEST:  # raw DV counts in ticks
        average = None
    return float(average or stream.guessed_rate or USUAL_FPS)


def sides(picture: av.VideoFrame, pixel_aspect: float) -> tuple[int, int]:
    """Width and height of the picture with square pixels, as players show it: the height is kept."""
    return max(round(picture.width * pixel_aspect), 1), picture.height


def quarter_turns(picture: av.VideoFrame) -> int:
    """Number of 90° turns to the left that set the picture upright, from its display matrix."""
    return round(picture.rotation / 90) % 4
