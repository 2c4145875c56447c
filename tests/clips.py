"""Generated test clips: tiny videos in which every frame shows its number.

The upper half of a frame shows its number as eight black or white blocks, most significant first; the lower half is
red on the left and blue on the right. So a test can read from the decoded pixels which frame it got (`number_of`), that
it is upright, and that red is red.
"""

import io
from collections.abc import Collection, Sequence
from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.stream import Disposition
from numpy.typing import NDArray
from PIL import Image

WIDTH, HEIGHT = 96, 64
_MILLISECOND = Fraction(1, 1000)


def picture(number: int, *, width: int = WIDTH, height: int = HEIGHT) -> NDArray[np.uint8]:
    """The frame with this number (0 to 255): RGB (height, width, 3)."""
    pixels = np.zeros((height, width, 3), dtype=np.uint8)
    for block in range(8):
        if number >> (7 - block) & 1:
            pixels[: height // 2, block * width // 8 : (block + 1) * width // 8] = 255
    pixels[height // 2 :, : width // 2] = (200, 30, 30)
    pixels[height // 2 :, width // 2 :] = (30, 30, 200)
    return pixels


def number_of(pixels: NDArray[np.uint8]) -> int:
    """Read a frame's number back: from RGB (H, W, 3) or grey (H, W) pixels of any size."""
    height, width = pixels.shape[:2]
    number = 0
    for block in range(8):
        # Only the middle of the block: coding and scaling blur its edges.
        left, right = (8 * block + 2) * width // 64, (8 * block + 6) * width // 64
        number = number << 1 | int(pixels[height // 8 : height * 3 // 8, left : right + 1].mean() > 127)
    return number


def area_average(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    """An independent glance: the exact mean over each of 56 × 56 equal rectangles, in float64."""

    def weights(length: int) -> NDArray[np.float64]:
        edges = np.arange(56 + 1) * length / 56
        cells = np.arange(length)
        overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
        return np.clip(overlap, 0, None) * 56 / length

    return weights(plane.shape[0]) @ plane @ weights(plane.shape[1]).T


def write_clip(
    path: Path,
    *,
    num_frames: int = 60,
    codec: str = "libx264",
    pixel_format: str = "yuv420p",
    width: int = WIDTH,
    height: int = HEIGHT,
    fps: int = 25,
    milliseconds: Sequence[int] | None = None,
    options: dict[str, str] | None = None,
    rotation: int = 0,
    pixel_aspect: Fraction | None = None,
    with_audio: bool = False,
    index_first: bool = False,
    seekable: bool = True,
) -> Path:
    """Write frames 0 … num_frames − 1 to `path`.

    milliseconds: the time of each frame. options: of the codec. rotation: angle of the flag, counter-clockwise.
    pixel_aspect: width of a pixel divided by its height.
    index_first: an MP4 for streaming. seekable: False as for a pipe, so that the header has no length.
    """
    target = str(path) if seekable else _Pipe(path)
    container_options = {"movflags": "faststart"} if index_first else {}
    kind = None if seekable else {".mkv": "matroska"}[path.suffix]
    with av.open(target, "w", format=kind, options=container_options) as output:
        stream = output.add_stream(codec, rate=fps, options=_options(codec) | (options or {}))
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        if milliseconds is not None:
            stream.codec_context.time_base = _MILLISECOND
        if pixel_aspect:
            stream.codec_context.sample_aspect_ratio = pixel_aspect
        if rotation:
            stream.set_display_rotation(rotation)
        audio = output.add_stream("aac", rate=16000) if with_audio else None
        for number in range(num_frames):
            frame = av.VideoFrame.from_ndarray(picture(number, width=width, height=height), format="rgb24")
            frame.pts = number if milliseconds is None else milliseconds[number]
            frame.time_base = Fraction(1, fps) if milliseconds is None else _MILLISECOND
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        if audio is not None:
            write_silence(output, audio, seconds=num_frames / fps)
    return path


class _Pipe:
    """A file that can only be appended to."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("wb")

    def write(self, data: bytes) -> int:
        return self._file.write(data)

    def close(self) -> None:
        self._file.close()


def write_gif(path: Path, *, num_frames: int = 60, milliseconds: int = 40) -> Path:
    """An animated GIF, written by Pillow: a palette of few colours, one for the whole clip."""
    frames = [Image.fromarray(picture(number)).quantize(16) for number in range(num_frames)]
    frames[0].save(path, save_all=True, append_images=frames[1:], duration=milliseconds, loop=0, disposal=1)
    return path


def write_av1(path: Path, *, num_frames: int = 60, fps: int = 25) -> Path:
    """AV1 in any container: Pillow encodes the pictures as an AVIF sequence, whose packets are moved over."""
    frames = [Image.fromarray(picture(number)) for number in range(num_frames)]
    sequence = io.BytesIO()
    frames[0].save(
        sequence, "AVIF", save_all=True, append_images=frames[1:], duration=1000 // fps, speed=10, max_threads=1
    )
    sequence.seek(0)
    return remux(sequence, path)


def write_packed_avi(path: Path, *, num_frames: int = 60, fps: int = 25) -> Path:
    """MPEG-4 in AVI as DivX wrote it: a P- and the following B-frame in one packet, then a packet that says "nothing".

    FFmpeg does not write such files, so its packets are joined here by hand.
    """
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=fps, options={"bf": "1", "g": "20"})
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        frames = [av.VideoFrame.from_ndarray(picture(number), format="rgb24") for number in range(num_frames)]
        coded = [bytes(packet) for frame in [*frames, None] for packet in stream.encode(frame)]
        # The name of the encoder ends in "p" for "packed"; a decoder looks for it in the first packet.
        first_picture = coded[0].index(b"\0\0\1\xb6")
        coded[0] = coded[0][:first_picture] + b"\0\0\1\xb2DivX503b1393p" + coded[0][first_picture:]
        packed: list[bytes] = []
        for data in coded:
            if data[data.index(b"\0\0\1\xb6") + 4] >> 6 == 0b10:  # a B-frame
                packed[-1] += data
                # A P-frame that is "not coded": type 01, no full second, 1, five bits of time, 1, not coded 0, padding.
                packed.append(b"\0\0\1\xb6" + bytes([0b01_0_1_0000, 0b0_1_0_01111]))
            else:
                packed.append(data)
        for number, data in enumerate(packed):
            packet = av.Packet(data)
            packet.stream, packet.time_base = stream, Fraction(1, fps)
            packet.pts = packet.dts = number
            packet.is_keyframe = number == 0
            output.mux(packet)
    return path


def without_order(h264: bytes) -> bytes:
    """A file of H.264 in the main profile, without what tells a decoder how far the order shown is from that decoded.

    That is in the optional end (VUI) of the sequence parameters, which are cut and filled up with zeros.
    """
    start = h264.index(b"\0\0\0\1\x67") + 5
    parameters = h264[start : h264.index(b"\0\0\0\1", start)]
    bits = "".join(f"{byte:08b}" for byte in parameters)
    place = 24  # after profile and level

    def number() -> int:
        nonlocal place
        num_zeros = bits.index("1", place) - place
        place += 2 * num_zeros + 1
        return int(bits[place - num_zeros - 1 : place], 2) - 1

    _, _, kind_of_order = number(), number(), number()
    if kind_of_order == 0:
        number()
    number()
    place += 1
    _, _ = number(), number()
    assert bits[place] == "1", "interlaced"
    place += 3
    if bits[place - 1] == "1":
        _ = [number() for _ in range(4)]  # what is cropped
    assert bits[place] == "1", "no VUI"
    kept = bits[:place] + "01"
    kept += "0" * (-len(kept) % 8)
    short = int(kept, 2).to_bytes(len(kept) // 8, "big")
    return h264.replace(parameters, short.ljust(len(parameters), b"\0"))


def write_joined(path: Path, *, codec: str) -> Path:
    """Raw H.264 or HEVC: two recordings of 60 frames, each with its parameter sets before its first frame alone.

    The second has another offset of the quantiser of colours, so that without its own sets its colours are wrong.
    """
    offset, sets = {"libx264": ("chroma-qp-offset", (7, 8)), "libx265": ("cbqpoffs", (32, 33, 34))}[codec]
    recordings = b""
    for number in (0, 12):
        settings = f"keyint=12:min-keyint=12:scenecut=0:bframes=0:repeat-headers=1:{offset}={number}"
        settings += ":log-level=none:pools=1" if codec == "libx265" else ""
        options = {f"{codec.removeprefix('lib')}-params": settings, "preset": "ultrafast", "crf": "23"}
        data = write_clip(path, codec=codec, options=options).read_bytes()
        seen: set[int] = set()
        for unit in data.replace(b"\0\0\0\1", b"\0\0\1").split(b"\0\0\1")[1:]:
            kind = unit[0] & 31 if codec == "libx264" else unit[0] >> 1 & 63
            if kind not in sets or kind not in seen:
                recordings += b"\0\0\0\1" + unit
            seen.add(kind)
    path.write_bytes(recordings)
    return path


def joined_flv(*recordings: Path, path: Path) -> Path:
    """FLV files one after the other, each with its header, as a recorder writes them that lost its connection."""
    joined, start = b"FLV\1\1\0\0\0\x09\0\0\0\0", 0
    for recording in recordings:
        data, place, time = recording.read_bytes(), 13, 0
        while place < len(data):
            size = int.from_bytes(data[place + 1 : place + 4], "big")
            time = int.from_bytes(data[place + 4 : place + 7], "big")
            is_end = data[place + 12] == 2  # of the stream
            if data[place] == 9 and not is_end:  # video
                moved = (start + time).to_bytes(3, "big")
                joined += data[place : place + 4] + moved + data[place + 7 : place + size + 15]
            place += size + 15
        start += time + 40
    path.write_bytes(joined)
    return path


def write_audio(path: Path, *, cover: bool = False) -> Path:
    """A file with sound only, or with sound and a cover picture."""
    with av.open(str(path), "w", format="mp4") as output:
        audio = output.add_stream("aac", rate=16000)
        if cover:
            stream = output.add_stream("mjpeg", rate=1)
            stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuvj420p"
            stream.disposition = Disposition.attached_pic
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture(0), format="rgb24")))
            output.mux(stream.encode(None))
        write_silence(output, audio, seconds=1.0)
    return path


def fragment(source: Path, path: Path) -> Path:
    """The video of an MP4 in fragments, as live encoders write it: each has an index of its own."""
    with av.open(str(source)) as given, av.open(
        str(path), "w", format="mp4", options={"movflags": "frag_keyframe+empty_moov+default_base_moof"}
    ) as output:
        copy_packets(given, output)
    return path


def copy_packets(given: av.container.InputContainer, output: av.container.OutputContainer) -> None:
    """Put the video of one container into another, without decoding it."""
    stream = output.add_stream_from_template(given.streams.video[0])
    for packet in given.demux(video=0):
        if packet.size:
            packet.stream = stream
            output.mux(packet)


def remux(source: Path | io.BytesIO, path: Path, *, ruined: Collection[int] = ()) -> Path:
    """Move the video packets of `source` into another container, with garbage in those whose numbers are `ruined`."""
    with av.open(source if isinstance(source, io.BytesIO) else str(source)) as given:
        # An AVIF sequence has a still picture, too, beside its track of frames.
        video = max(given.streams.video, key=lambda stream: stream.frames)
        with av.open(str(path), "w") as output:
            stream = output.add_stream_from_template(video, opaque=True)
            for number, packet in enumerate(given.demux(video)):
                if packet.size:
                    if number in ruined:
                        packet.update(b"\xff" * packet.size)
                    packet.stream = stream
                    output.mux(packet)
    return path


def _options(codec: str) -> dict[str, str]:
    return {
        "libx264": {"preset": "ultrafast", "bf": "2", "x264-params": "keyint=20"},
        "libx265": {"preset": "ultrafast", "x265-params": "log-level=none:keyint=20:pools=1"},
        "libvpx": {"deadline": "realtime", "cpu-used": "8"},
        "libvpx-vp9": {"deadline": "realtime", "cpu-used": "8"},
        "mpeg4": {"bf": "2", "g": "20"},
    }.get(codec, {})


def write_silence(output: av.container.OutputContainer, stream: av.AudioStream, *, seconds: float) -> None:
    frame_size = 1024
    for start in range(0, int(seconds * stream.rate), frame_size):
        frame = av.AudioFrame(format="s16", layout="stereo", samples=frame_size)
        for plane in frame.planes:
            plane.update(bytes(plane.buffer_size))
        frame.sample_rate, frame.pts = stream.rate, start
        output.mux(stream.encode(frame))
    output.mux(stream.encode(None))
