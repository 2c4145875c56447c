"""Videos to measure with, made from the sample, of any size and length.

H.264 with B-frames, a keyframe at least every 250 frames, 25 frames a second. The sample is scaled, slowly panned,
played back and forth, and given sensor noise, so that every frame has something to decode. A long video repeats the
packets of some seconds, so an hour is made quickly. Videos are cached.
"""

import itertools
from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from numpy.typing import NDArray

from picknet.files import written_whole
from picknet.video.file import Video

SAMPLE = Path(__file__).resolve().parent.parent / "samples" / "cockatoo.mp4"
FPS = 25
X264 = {"preset": "veryfast", "crf": "23", "x264-params": "keyint=250:log-level=error"}
REGULAR = ":min-keyint=250:scenecut=0"
"""A keyframe every ten seconds, and none between."""
NOISE = 2.0
"""Standard deviation, in grey values."""
PAN = 32
"""Width of the margin to pan over, in pixels at 720p."""
LOOP_SECONDS = 17
"""Length of the part a longer video repeats; a tenth of it for large ones, which encode slowly. An hour is not a
multiple of it, or all samples of an hour would be keyframes."""
LARGE = 1920


def make(
    folder: Path, *, width: int, height: int, seconds: float, source: Path = SAMPLE, regular: bool = False
) -> Path:
    """A video of this size and length, made if it is not in the folder. regular: see REGULAR."""
    path = folder / f"{source.stem}-{width}x{height}-{seconds:g}s{'-regular' if regular else ''}.mp4"
    if not path.exists():
        folder.mkdir(parents=True, exist_ok=True)
        loop = LOOP_SECONDS / (10 if width >= LARGE else 1)
        if seconds > loop:
            part = make(folder, width=width, height=height, seconds=loop, source=source, regular=regular)
            _repeat(part, path, seconds)
        else:
            _encode(path, source, width, height, round(seconds * FPS), regular=regular)
    return path


def _encode(path: Path, source: Path, width: int, height: int, num_frames: int, *, regular: bool) -> None:
    options = X264 | {"x264-params": X264["x264-params"] + (REGULAR if regular else "")}
    with written_whole(path) as temporary, av.open(str(temporary), "w") as output:
        stream = output.add_stream("libx264", rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, "yuv420p"
        for number, pixels in enumerate(itertools.islice(_shown(source, width, height), num_frames)):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, FPS)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))


def _shown(source: Path, width: int, height: int) -> Iterator[NDArray[np.uint8]]:
    """Endless frames: RGB (height, width, 3)."""
    chance = np.random.default_rng(0)
    # Fresh noise for every frame, cheaply: windows of one large field.
    noise = chance.normal(0, NOISE, (height + 64, width + 64, 1)).astype(np.int8)
    margin = PAN * width // 1280 // 2 * 2
    with Video(source) as video:
        given = list(video.sample_evenly(count=10**6))
        for number, place in enumerate(itertools.cycle([*range(len(given)), *reversed(range(len(given)))])):
            larger = av.VideoFrame.from_ndarray(given[place].pixels(), format="rgb24").reformat(
                width + margin, height + margin, interpolation="BICUBIC"
            )
            left, top = (round(margin / 2 * (1 + np.sin(number / period))) for period in (31, 43))
            right, bottom = left + width, top + height
            x, y = chance.integers(0, 64, 2)
            pixels = larger.to_ndarray()[top:bottom, left:right] + noise[y : y + height, x : x + width].astype(np.int16)
            yield np.clip(pixels, 0, 255).astype(np.uint8)


def _repeat(loop: Path, path: Path, seconds: float) -> None:
    with written_whole(path) as temporary, av.open(str(temporary), "w") as output, av.open(str(loop)) as given:
        (video,) = given.streams.video
        stream = output.add_stream_from_template(video, opaque=True)
        length = round(video.frames / FPS / video.time_base)
        for start in range(0, round(seconds / video.time_base), length):
            given.seek(0)
            for packet in given.demux(video):
                if packet.size and start + packet.pts < seconds / video.time_base:
                    packet.pts, packet.dts = start + packet.pts, start + packet.dts
                    packet.stream = stream
                    output.mux(packet)
