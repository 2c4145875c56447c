import contextlib
import os
import re
import struct
import subprocess
import sys
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path

import av
import clips
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from picknet.video.file import VIDEO_SUFFIXES, UnreadableVideo, Video
from picknet.video.frame import GLANCE_SIZE, Frame
from picknet.video.pictures import PICTURE_SUFFIXES, UnreadablePicture, is_picture, read_picture

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "cockatoo.mp4"
MSVD = Path(__file__).resolve().parents[3] / "shared" / "msvd" / "videos"


def numbers(frames: list[Frame]) -> list[int]:
    return [clips.number_of(frame.pixels()) for frame in frames]


def decoded_plainly(path: Path) -> list[av.VideoFrame]:
    """The reference: one thread, first frame to last."""
    with av.open(f"file:{path}") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        return list(container.decode(stream))


def area_average(plane: NDArray[np.float64]) -> NDArray[np.float64]:
    """An independent glance: the exact mean over each of 56 × 56 equal rectangles, in float64."""

    def weights(length: int) -> NDArray[np.float64]:
        edges = np.arange(GLANCE_SIZE + 1) * length / GLANCE_SIZE
        cells = np.arange(length)
        overlap = np.minimum(edges[1:, None], cells + 1) - np.maximum(edges[:-1, None], cells)
        return np.clip(overlap, 0, None) * GLANCE_SIZE / length

    return weights(plane.shape[0]) @ plane @ weights(plane.shape[1]).T


# What people have ------------------------------------------------------------------------------------------------

WRITTEN_BY_FFMPEG = [
    ("h264.mp4", "libx264", "yuv420p"),
    ("h264.mov", "libx264", "yuv420p"),
    ("h264.mkv", "libx264", "yuv420p"),
    ("h264.avi", "libx264", "yuv420p"),
    ("h264.flv", "libx264", "yuv420p"),
    ("h264.m2ts", "libx264", "yuv420p"),
    ("h264.h264", "libx264", "yuv420p"),
    ("h264-10-bit.mp4", "libx264", "yuv420p10le"),
    ("h264-444.mp4", "libx264", "yuv444p"),
    ("h264-rgb.mkv", "libx264rgb", "rgb24"),
    ("hevc.mp4", "libx265", "yuv420p"),
    ("hevc-10-bit.mkv", "libx265", "yuv420p10le"),
    ("vp8.webm", "libvpx", "yuv420p"),
    ("vp9.webm", "libvpx-vp9", "yuv420p"),
    ("mpeg4.avi", "mpeg4", "yuv420p"),
    ("mpeg4.mp4", "mpeg4", "yuv420p"),
    ("mpeg2.mpg", "mpeg2video", "yuv420p"),
    ("wmv.wmv", "wmv2", "yuv420p"),
    ("mjpeg.avi", "mjpeg", "yuvj420p"),
    ("prores.mov", "prores_ks", "yuv422p10le"),
    ("ffv1-grey.mkv", "ffv1", "gray"),
    ("ffv1-grey-16-bit.mkv", "ffv1", "gray16le"),
    ("ffv1-bgr.mkv", "ffv1", "bgr0"),
    ("raw-bgr.avi", "rawvideo", "bgr24"),
    ("raw-packed-yuv.avi", "rawvideo", "yuyv422"),
    ("raw-black-and-white.avi", "rawvideo", "monow"),
    ("animation.mov", "qtrle", "rgb24"),
]

Writer = Callable[[Path], Path]
CLIPS: dict[str, Writer] = {
    name: lambda path, codec=codec, pixels=pixels: clips.write_clip(path, codec=codec, pixel_format=pixels)  # type: ignore[misc]
    for name, codec, pixels in WRITTEN_BY_FFMPEG
} | {
    "palette.gif": clips.write_gif,
    "av1.mp4": clips.write_av1,
    "av1.webm": clips.write_av1,
    "packed-b-frames.avi": clips.write_packed_avi,
    "to-a-pipe.mkv": lambda path: clips.write_clip(path, seekable=False),
    "with-sound.mp4": lambda path: clips.write_clip(path, with_audio=True),
}


@pytest.mark.parametrize("name", CLIPS)
def test_every_kind_of_video_gives_the_frames_a_plain_decode_gives(tmp_path: Path, name: str) -> None:
    path = CLIPS[name](tmp_path / name)
    plain = decoded_plainly(path)
    assert len(plain) == 60
    with Video(path) as video:
        frames = list(video.sample_evenly())
        assert (video.width, video.height, video.damage) == (clips.WIDTH, clips.HEIGHT, None)
    # 60 frames in 30 parts of two: the later one of each pair.
    assert numbers(frames) == list(range(1, 60, 2))
    for frame, number in zip(frames, range(1, 60, 2), strict=True):
        np.testing.assert_array_equal(frame.pixels(), plain[number].to_ndarray(format="rgb24"))
        assert clips.number_of(frame.glance()) == number
        assert frame.seconds == pytest.approx(number / 25, abs=0.001)
    assert [frame.index for frame in frames] == list(range(30))
    assert path.suffix in VIDEO_SUFFIXES


@pytest.mark.parametrize("name", CLIPS)
def test_a_glance_is_the_mean_luma_of_the_pixels(tmp_path: Path, name: str) -> None:
    path = CLIPS[name](tmp_path / name)
    with Video(path) as video:
        frame = next(video.sample_evenly())
    luma = frame.pixels().astype(np.float64) @ (0.299, 0.587, 0.114)
    difference = np.abs(frame.glance() - area_average(luma))
    # The conversion to RGB is off by one or two, and where chroma is coarser than luma, red and blue bleed into each
    # other; the exact value of a glance has its own test.
    assert difference.mean() < 2.0
    assert difference.max() < 20.0


def test_red_is_red_and_blue_is_blue(tmp_path: Path) -> None:
    for name in ("h264.mp4", "palette.gif", "av1.mp4", "ffv1-bgr.mkv", "h264-10-bit.mp4"):
        with Video(CLIPS[name](tmp_path / name)) as video:
            pixels = next(video.sample_evenly()).pixels()
        np.testing.assert_allclose(pixels[40:60, 5:40].mean(axis=(0, 1)), (200, 30, 30), atol=8, err_msg=name)
        np.testing.assert_allclose(pixels[40:60, 56:90].mean(axis=(0, 1)), (30, 30, 200), atol=8, err_msg=name)


def test_the_sample_video_is_whole() -> None:
    with Video(SAMPLE) as video:
        frames = list(video.sample_evenly())
        assert (video.width, video.height, video.seconds, video.damage) == (640, 360, 14.0, None)
    # 280 frames at 20 a second: the parts are 28/3 frames long, their middles at 14/3, 42/3, 70/3 …
    assert [round(frame.seconds * 20) for frame in frames[:4]] == [4, 14, 23, 32]
    assert len(frames) == 30


@pytest.mark.skipif(not MSVD.is_dir(), reason="the MSVD clips are not here")
def test_msvd_clips_give_what_a_plain_decode_gives() -> None:
    for path in sorted(MSVD.iterdir())[:3]:
        plain = decoded_plainly(path)
        with Video(path) as video:
            frames = list(video.sample_evenly())
        wanted = range(len(plain))
        if len(plain) > 30:
            wanted = [int((i + 0.5) * len(plain) / 30) for i in range(30)]  # type: ignore[assignment]
        assert video.damage is None
        for frame, number in zip(frames, wanted, strict=True):
            np.testing.assert_array_equal(frame.pixels(), plain[number].to_ndarray(format="rgb24"))


# Sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_frames", "count", "expected"),
    [
        (1, 30, [0]),
        (2, 30, [0, 1]),
        (29, 30, list(range(29))),
        (30, 30, list(range(30))),
        (3, 10**12, [0, 1, 2]),
        (7, 3, [1, 3, 5]),  # 7/6 = 1.17, 3.5, 5.83
        (10, 4, [1, 3, 6, 8]),  # 1.25, 3.75, 6.25, 8.75
        (31, 1, [15]),
        # 31 frames for 30 places: 0.52, 1.55 … 14.98, then 16.02: only frame 15 is left out.
        (31, 30, [*range(15), *range(16, 31)]),
    ],
)
def test_even_samples_are_the_middles_of_equal_parts(
    tmp_path: Path, num_frames: int, count: int, expected: list[int]
) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=num_frames)
    with Video(path) as video:
        assert numbers(list(video.sample_evenly(count=count))) == expected


def test_samples_by_time_are_the_first_frames_at_or_after_each_tick(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=60)
    with Video(path) as video:
        assert numbers(list(video.sample_by_time())) == [0, 25, 50]
        # Ticks 0, 0.1, 0.2 … fall on frames 0, 2.5, 5 …, and a half is rounded up.
        assert numbers(list(video.sample_by_time(fps=10)))[:8] == [0, 3, 5, 8, 10, 13, 15, 18]
        frames = list(video.sample_by_time(fps=2))
    assert [(frame.index, frame.seconds) for frame in frames] == [
        (0, 0.0),
        (1, pytest.approx(0.52)),
        (2, pytest.approx(1.0)),
        (3, pytest.approx(1.52)),
        (4, pytest.approx(2.0)),
    ]


def test_a_still_picture_is_sampled_once_however_long_it_stands(tmp_path: Path) -> None:
    # Frame 2 comes at 0.9 s and stands for five seconds, until frame 3.
    times = [0, 500, 900, 5900, 6000, 7100]
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=6, milliseconds=times)
    with Video(path) as video:
        frames = list(video.sample_by_time(fps=1))
        assert numbers(list(video.sample_evenly())) == [0, 1, 2, 3, 4, 5]
    # Ticks 1 to 5 find frame 3 first, tick 6 frame 4, tick 7 frame 5.
    assert [(clips.number_of(frame.pixels()), round(frame.seconds, 3)) for frame in frames] == [
        (0, 0.0),
        (3, 5.9),
        (4, 6.0),
        (5, 7.1),
    ]


def test_times_rounded_by_the_container_still_meet_their_tick(tmp_path: Path) -> None:
    # At 30 frames a second Matroska stores frame 10 at 333 ms, before the third of a second it stands for.
    path = clips.write_clip(tmp_path / "clip.mkv", fps=30, num_frames=60)
    with Video(path) as video:
        assert numbers(list(video.sample_by_time(fps=3))) == [0, 10, 20, 30, 40, 50]


def test_time_starts_with_the_first_frame(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=3, milliseconds=[7000, 7500, 8200])
    with Video(path) as video:
        assert [round(frame.seconds, 3) for frame in video.sample_evenly()] == [0.0, 0.5, 1.2]


def test_a_video_of_unknown_length_is_sampled_like_any_other(tmp_path: Path) -> None:
    for name in ("piped.mkv", "raw.h264"):
        path = clips.write_clip(tmp_path / name, seekable=name != "piped.mkv")
        with Video(path) as video:
            assert video.seconds is None
            assert numbers(list(video.sample_evenly(count=6))) == [5, 15, 25, 35, 45, 55]
            assert numbers(list(video.sample_by_time(fps=1))) == [0, 25, 50]


def test_packets_are_counted_without_decoding_unless_they_carry_no_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    count_frames = Video._count_frames
    monkeypatch.setattr(Video, "_count_frames", lambda self: counted.append(self.path.name) or count_frames(self))
    for name in ("h264.mp4", "h264.mkv", "vp9.webm", "mjpeg.avi", "palette.gif", "h264.h264", "packed-b-frames.avi"):
        with Video(CLIPS[name](tmp_path / name)) as video:
            assert len(list(video.sample_evenly())) == 30
    assert counted == ["h264.h264", "packed-b-frames.avi"]


def test_a_packet_without_a_frame_moves_no_other_sample(tmp_path: Path) -> None:
    # Every frame a key frame, so that a ruined packet costs itself alone.
    whole = clips.write_clip(tmp_path / "whole.mp4", codec="libvpx-vp9", options={"g": "1"})
    path = clips.remux(whole, tmp_path / "ruined.mp4", ruined={5, 15, 16})
    with Video(path) as video:
        # Wanted are 5, 15, 25 … 55; the frames after the ruined ones stand in for the first two.
        assert numbers(list(video.sample_evenly(count=6))) == [6, 17, 25, 35, 45, 55]
        assert video.damage == "3 of 60 frames are lost or damaged, the first after 0.2 s"


def test_frames_that_an_edit_list_hides_are_not_sampled(tmp_path: Path) -> None:
    # As a phone trims: the first ten frames stay in the file, for the others to refer to, but are not shown.
    whole = clips.write_clip(tmp_path / "whole.mp4")
    path = tmp_path / "trimmed.mp4"
    with av.open(str(whole)) as source, av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as output:
        stream = output.add_stream_from_template(source.streams.video[0], opaque=True)
        ten_frames = int(10 / 25 / source.streams.video[0].time_base)
        for packet in source.demux(video=0):
            if packet.size:
                packet.pts, packet.dts = packet.pts - ten_frames, packet.dts - ten_frames
                packet.stream = stream
                output.mux(packet)
    with Video(path) as video:
        assert numbers(list(video.sample_evenly(count=5))) == [15, 25, 35, 45, 55]
        assert numbers(list(video.sample_by_time(fps=1))) == [10, 35]
        assert video.damage is None


def test_two_readings_of_one_video_do_not_disturb_each_other(tmp_path: Path) -> None:
    with Video(clips.write_clip(tmp_path / "clip.mp4")) as video:
        pairs = list(zip(video.sample_evenly(count=6), video.sample_by_time(fps=2.5), strict=True))
    assert numbers([first for first, _ in pairs]) == [5, 15, 25, 35, 45, 55]
    assert numbers([second for _, second in pairs]) == [0, 10, 20, 30, 40, 50]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted under /proc")
def test_leaving_the_video_closes_a_reading_that_was_not_finished(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4")
    open_before = len(os.listdir("/proc/self/fd"))
    with Video(path) as video:
        reading = video.sample_by_time()
        frame = next(reading)
        assert len(os.listdir("/proc/self/fd")) > open_before
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert clips.number_of(frame.pixels()) == 0  # a frame outlives its video


# Upright ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("angle", "turns_left"), [(90, 1), (180, 2), (270, 3), (-90, 3)])
def test_a_rotation_flag_is_obeyed(tmp_path: Path, angle: int, turns_left: int) -> None:
    path = clips.write_clip(tmp_path / "turned.mov", num_frames=3, rotation=angle)
    with Video(path) as video:
        frame = next(video.sample_evenly())
        size = (video.width, video.height)
    assert size == ((clips.WIDTH, clips.HEIGHT) if turns_left == 2 else (clips.HEIGHT, clips.WIDTH))
    assert frame.pixels().shape == (size[1], size[0], 3)
    lying = np.rot90(frame.pixels(), -turns_left)
    assert clips.number_of(lying) == 0
    np.testing.assert_allclose(lying[50, 20], (200, 30, 30), atol=8)
    np.testing.assert_allclose(np.rot90(frame.pixels(90), -turns_left)[70, 20], (200, 30, 30), atol=8)
    luma = frame.pixels().astype(np.float64) @ (0.299, 0.587, 0.114)
    assert np.abs(frame.glance() - area_average(luma)).mean() < 1.0


@pytest.mark.parametrize(
    ("aspect", "width"),
    [
        (Fraction(4, 3), 128),
        (Fraction(2, 3), 64),
        (Fraction(1), 96),
        (Fraction(9), 96),  # no camera has such pixels
    ],
)
def test_pixels_that_are_not_square_are_made_square(tmp_path: Path, aspect: Fraction, width: int) -> None:
    path = clips.write_clip(tmp_path / "wide.mp4", num_frames=3, pixel_aspect=aspect)
    with Video(path) as video:
        frames = list(video.sample_evenly())
        assert (video.width, video.height) == (width, clips.HEIGHT)
    assert frames[0].pixels().shape == (clips.HEIGHT, width, 3)
    assert numbers(frames) == [0, 1, 2]
    # A model sees a square, whatever the shape.
    assert frames[0].pixels(90).shape == (90, 90, 3)


def test_pixels_are_made_square_before_a_video_is_turned(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "both.mov", num_frames=1, pixel_aspect=Fraction(4, 3), rotation=90)
    with Video(path) as video:
        frame = next(video.sample_by_time())
        assert (video.width, video.height) == (clips.HEIGHT, 128)
    assert frame.pixels().shape == (128, clips.HEIGHT, 3)
    assert clips.number_of(np.rot90(frame.pixels(), -1)) == 0


def test_a_frame_knows_its_number_among_all_frames(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=100)
    with Video(path) as video:
        for frames in (list(video.sample_evenly(count=7)), list(video.sample_by_time(fps=3))):
            assert [frame.number for frame in frames] == numbers(frames)
            assert [frame.index for frame in frames] == list(range(len(frames)))


def test_a_phone_held_upright_is_turned_right(tmp_path: Path) -> None:
    # Such a phone stores pictures on their side, and the matrix x' = −y, y' = x: what lay right comes to lie below.
    path = clips.write_clip(tmp_path / "phone.mp4", num_frames=1)
    one = 0x10000
    upright = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 0x40000000)
    turned = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 0x40000000)
    head, _, rest = path.read_bytes().partition(b"tkhd")
    path.write_bytes(head + b"tkhd" + rest.replace(upright, turned, 1))
    with Video(path) as video:
        pixels = next(video.sample_evenly()).pixels()
    stored = clips.picture(0)
    assert pixels.shape == (clips.WIDTH, clips.HEIGHT, 3)
    # The stored bottom right, blue, is at the upright picture's bottom left, the stored bottom left, red, above it.
    np.testing.assert_allclose(pixels[-10, 10], stored[-10, -10], atol=8)
    np.testing.assert_allclose(pixels[10, 10], stored[-10, 10], atol=8)


# Frames ----------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    height=st.integers(56, 300),
    width=st.integers(56, 300),
    pixel_format=st.sampled_from(["gray", "yuv420p", "yuvj420p", "yuv444p", "yuv420p10le", "gray16le", "yuv422p12le"]),
    seed=st.integers(0, 1000),
)
def test_a_glance_is_the_exact_area_average_of_the_luma_plane(
    height: int, width: int, pixel_format: str, seed: int
) -> None:
    picture = av.VideoFrame(width, height, pixel_format)
    bits = picture.format.components[0].bits
    wide = bits > 8
    random = np.random.default_rng(seed)
    luma = random.integers(16 << (bits - 8), 236 << (bits - 8), (height, width)).astype("<u2" if wide else "u1")
    for plane in picture.planes:
        plane.update(random.bytes(plane.buffer_size))  # neither chroma nor the padding of a line may matter
    rows = np.frombuffer(bytearray(picture.planes[0]), dtype=luma.dtype).reshape(height, -1).copy()
    rows[:, :width] = luma
    picture.planes[0].update(rows.tobytes())

    mean = area_average(luma.astype(np.float64))
    # White is the highest number in grey and JPEG video, elsewhere 235 of 255, black 16.
    full_range = pixel_format.startswith(("gray", "yuvj"))
    expected = mean * 255 / ((1 << bits) - 1) if full_range else (mean / (1 << (bits - 8)) - 16) * 255 / 219
    glance = Frame(picture, index=0, seconds=0.0).glance()
    assert glance.shape == (GLANCE_SIZE, GLANCE_SIZE)
    assert glance.dtype == np.uint8
    # Rounding to whole values costs 0.5, dithering from more bits to 8 another 1, the scaler's weights the rest.
    assert np.abs(glance - expected).max() < (2.0 if wide else 1.0)


@pytest.mark.parametrize(("height", "width"), [(1, 1), (3, 5), (2, 400), (400, 2), (30, 40), (55, 57)])
def test_a_frame_narrower_than_a_glance_has_one(height: int, width: int) -> None:
    pixels = np.full((height, width, 3), 90, dtype=np.uint8)
    pixels[: height // 2] = 30
    glance = Frame.from_pixels(pixels, index=0, seconds=0.0).glance()
    assert glance.shape == (GLANCE_SIZE, GLANCE_SIZE)
    assert abs(int(glance[-1, -1]) - 90) <= 1
    assert abs(int(glance[0, 0]) - (30 if height > 1 else 90)) <= 1


def test_a_glance_of_colours_is_their_luma() -> None:
    pixels = np.zeros((112, 112, 3), dtype=np.uint8)
    pixels[:56, :56] = (255, 0, 0)
    pixels[:56, 56:] = (0, 255, 0)
    pixels[56:, :56] = (0, 0, 255)
    pixels[56:, 56:] = (255, 255, 255)
    glance = Frame.from_pixels(pixels, index=0, seconds=0.0).glance().astype(int)
    # 0.299, 0.587 and 0.114 of 255.
    assert np.abs(glance[:28, :28] - 76).max() <= 1
    assert np.abs(glance[:28, 28:] - 150).max() <= 1
    assert np.abs(glance[28:, :28] - 29).max() <= 1
    assert np.abs(glance[28:, 28:] - 255).max() <= 1


def test_a_frame_of_pixels_gives_them_back() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (61, 97, 3), dtype=np.uint8)
    given_away = pixels.copy()
    frame = Frame.from_pixels(given_away, index=4, seconds=2.5)
    given_away[:] = 0  # a stream may fill the same buffer again
    assert (frame.index, frame.seconds) == (4, 2.5)
    np.testing.assert_array_equal(frame.pixels(), pixels)
    frame.pixels()[:] = 0
    np.testing.assert_array_equal(frame.pixels(), pixels)
    np.testing.assert_array_equal(Frame.from_pixels(pixels[:, ::-1], index=0, seconds=0.0).pixels(), pixels[:, ::-1])


def test_pixels_are_squashed_to_a_square(tmp_path: Path) -> None:
    with Video(clips.write_clip(tmp_path / "clip.mp4", width=320, height=128)) as video:
        frame = list(video.sample_evenly())[10]
    for size in (32, 224, 500):
        assert frame.pixels(size).shape == (size, size, 3)
        assert clips.number_of(frame.pixels(size)) == clips.number_of(frame.pixels()) == 21


def test_a_glance_is_computed_once_and_cannot_be_changed() -> None:
    frame = Frame.from_pixels(clips.picture(3), index=0, seconds=0.0)
    assert frame.glance() is frame.glance()
    with pytest.raises(ValueError, match="read-only"):
        frame.glance()[0, 0] = 1


@pytest.mark.parametrize("shape", [(10, 10), (10, 10, 4), (3, 10, 10), (0, 10, 3)])
def test_only_rgb_pixels_make_a_frame(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a frame is RGB \(H, W, 3\) of uint8, not"):
        Frame.from_pixels(np.zeros(shape, dtype=np.uint8), index=0, seconds=0.0)


def test_a_colour_matrix_the_scaler_does_not_know_is_no_reason_to_fail() -> None:
    for matrix in range(18):
        picture = av.VideoFrame(96, 64, "yuv420p")
        picture.colorspace = matrix
        frame = Frame(picture, index=0, seconds=0.0)
        assert frame.pixels().shape == (64, 96, 3)
        assert frame.glance().shape == (GLANCE_SIZE, GLANCE_SIZE)


# Damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.webm"])
@pytest.mark.parametrize("how", ["cut", "zeros"])
def test_of_a_video_with_a_damaged_tail_what_decodes_is_yielded_and_the_rest_is_said(
    tmp_path: Path, name: str, how: str
) -> None:
    codec = "libvpx-vp9" if name.endswith("webm") else "libx264"
    path = clips.write_clip(tmp_path / name, codec=codec, num_frames=150, index_first=name.endswith("mp4"))
    data = path.read_bytes()
    half = len(data) * 6 // 10
    path.write_bytes(data[:half] + bytes(0 if how == "cut" else len(data) - half))
    with Video(path) as video:
        sampled = list(video.sample_evenly())
        by_time = numbers(list(video.sample_by_time(fps=25)))
    assert 40 < len(by_time) < 120
    assert by_time[:40] == list(range(40))
    steps = np.diff([frame.seconds for frame in sampled[:-1]])
    assert steps.max() - steps.min() < 0.041  # evenly spaced, but for the last frames before the damage
    assert len(sampled) >= 10
    assert video.damage is not None
    assert "\n" not in video.damage
    if how == "cut" or not name.endswith("mp4"):
        assert video.damage.startswith("the file breaks off after ")
        assert "of 6.0 s" in video.damage
    else:
        assert "of 150 frames are lost or damaged, the first after " in video.damage


def test_an_avi_cut_in_its_middle_is_held_against_the_length_in_its_header(tmp_path: Path) -> None:
    # Every frame of one size, so that the share of the bytes that is left is the share of the frames.
    path = clips.write_clip(tmp_path / "clip.avi", codec="rawvideo", pixel_format="bgr24", num_frames=100)
    os.truncate(path, path.stat().st_size // 2)
    with Video(path) as video:
        list(video.sample_evenly())
        assert video.damage is not None
        assert re.match(r"the file breaks off after (1\.9|2\.0) of 4\.0 s", video.damage)


def test_a_gif_without_its_end_is_damaged(tmp_path: Path) -> None:
    whole = clips.write_gif(tmp_path / "whole.gif")
    cut, padded = tmp_path / "cut.gif", tmp_path / "padded.gif"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    padded.write_bytes(whole.read_bytes() + bytes(100))
    damages = []
    for path in (whole, cut, padded):
        with Video(path) as video:
            list(video.sample_evenly())
            damages.append(video.damage)
    assert damages[1]
    assert re.fullmatch(r"the file breaks off after 1\.\d s", damages[1])  # about half of 60 frames, 25 a second
    assert (damages[0], damages[2]) == (None, None)


def test_a_long_sound_track_is_no_damage(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=25, with_audio=True, milliseconds=range(0, 250, 10))
    with Video(path) as video:
        assert len(list(video.sample_evenly())) == 25
        assert video.damage is None


def test_damage_is_known_once_it_has_been_met(tmp_path: Path) -> None:
    whole = clips.write_clip(tmp_path / "whole.mp4", codec="libvpx-vp9", options={"g": "1"})
    path = clips.remux(whole, tmp_path / "ruined.mp4", ruined={30})
    with Video(path) as video:
        reading = video.sample_by_time(fps=25)
        for _ in range(10):
            next(reading)
        assert video.damage is None
        for _ in range(45):
            next(reading)
        assert video.damage == "some of its data cannot be decoded, the first after 1.2 s"


# Refusals --------------------------------------------------------------------------------------------------------


def write_no_frames(path: Path) -> Path:
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        output.start_encoding()
    return path


def write_half(path: Path) -> Path:
    data = clips.write_clip(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def write_most(path: Path) -> Path:
    """An MP4 whose index, at its end, is cut."""
    data = clips.write_clip(path).read_bytes()
    path.write_bytes(data[: (data.index(b"moov") + len(data)) // 2])
    return path


def write_unknown_codec(path: Path) -> Path:
    path.write_bytes(clips.write_clip(path).read_bytes().replace(b"avc1", b"zzzz"))
    return path


def write_rubbish_frames(path: Path) -> Path:
    whole = clips.write_clip(path.with_name("whole.mp4"), codec="mpeg4", num_frames=5)
    return clips.remux(whole, path, ruined=range(5))


def written(data: bytes) -> Writer:
    def write(path: Path) -> Path:
        path.write_bytes(data)
        return path

    return write


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


REFUSED: list[tuple[str, Writer, str]] = [
    ("missing.mp4", lambda path: path, "no such file"),
    ("folder.mp4", make_folder, "is a folder, not a video"),
    ("empty.mp4", written(b""), "the file is empty"),
    ("text.mp4", written(b"Not a video at all.\n" * 50), "not a known video format"),
    ("zeros.mp4", written(bytes(50_000)), "not a known video format"),
    ("subtitles.mp4", written(b"1\n00:00:00,000 --> 00:00:02,000\nHi\n"), "no video stream found (streams: subtitle)"),
    ("playlist.mp4", written(b"ffconcat version 1.0\nfile '/etc/hosts'\n"), "cannot be read (Operation not permitted)"),
    ("sound.m4a", clips.write_audio, "no video stream found (streams: audio)"),
    (
        "song.m4a",
        lambda path: clips.write_audio(path, cover=True),
        "no video stream found (streams: audio, cover picture)",
    ),
    ("half.mp4", write_half, "an unfinished or damaged MP4 (its index, 'moov', is missing or cut)"),
    ("most.mp4", write_most, "an unfinished or damaged MP4 (its index, 'moov', is missing or cut)"),
    ("nothing.avi", write_no_frames, "its video stream is empty"),
    ("nothing.mkv", write_no_frames, "the file ends before its first frame"),
    ("codec.mp4", write_unknown_codec, "no decoder for its video codec"),
    ("rubbish.mp4", write_rubbish_frames, "none of its 5 frames can be decoded"),
    ("name\0.mp4", lambda path: path, "cannot be read (embedded null byte)"),
]


@pytest.mark.parametrize(("name", "write", "reason"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_what_is_no_video_is_refused_in_one_line(tmp_path: Path, name: str, write: Writer, reason: str) -> None:
    path = write(tmp_path / name)
    with pytest.raises(UnreadableVideo) as caught:
        Video(path)
    assert str(caught.value) == f"{path}: {reason}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a thing of Unix")
def test_a_named_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(UnreadableVideo, match="is not a regular file"):
        Video(tmp_path / "pipe.mp4")


@pytest.mark.parametrize(
    "name", ["-dash.mp4", "-", "with space.mp4", "çırpı – 動画.mp4", "a:b.mp4", "http:a.mp4", "100%03d.mp4"]
)
def test_any_file_name_will_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    clip = clips.write_clip(tmp_path / "clip.mp4", num_frames=3)
    monkeypatch.chdir(tmp_path)
    clip.rename(name)
    for path in (name, Path(name), tmp_path / name):
        with Video(path) as video:
            assert numbers(list(video.sample_evenly())) == [0, 1, 2]
            assert str(video.path) == str(path)


def test_nothing_is_ever_said_on_stderr(tmp_path: Path) -> None:
    damaged = clips.write_clip(tmp_path / "damaged.mp4", index_first=True)
    damaged.write_bytes(damaged.read_bytes()[:-800] + bytes(range(200)) * 3)
    write_half(tmp_path / "half.mp4")
    clips.write_packed_avi(tmp_path / "packed.avi")
    (tmp_path / "text.mp4").write_text("no video")
    program = """
import sys
from picknet.video.file import UnreadableVideo, Video
for path in sys.argv[1:]:
    try:
        with Video(path) as video:
            frames = list(video.sample_evenly())
            print(len(frames) > 0, video.damage is None)
    except UnreadableVideo:
        print("refused")
"""
    paths = [str(tmp_path / name) for name in ("damaged.mp4", "half.mp4", "packed.avi", "text.mp4")]
    finished = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True, timeout=60)
    assert (finished.stdout.splitlines(), finished.stderr) == (["True False", "refused", "True True", "refused"], "")


def test_a_file_whose_frames_end_before_the_first_sample_still_gives_a_frame(tmp_path):
    whole = clips.write_clip(tmp_path / "whole.mkv", num_frames=250, options={"g": "10", "bf": "0"})
    with Video(clips.remux(whole, tmp_path / "ruined.mkv", ruined=range(3, 250))) as video:
        frames = list(video.sample_evenly(count=5))  # the first of five would be frame 25
        assert [clips.number_of(frame.pixels()) <= 3 for frame in frames] == [True]
        assert video.damage


# Pictures --------------------------------------------------------------------------------------------------------

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def quarters(*colours: object, mode: str = "RGB", side: int = 64) -> Image.Image:
    """A picture of four squares: left and right above, left and right below."""
    picture = Image.new(mode, (2 * side, 2 * side))
    for number, colour in enumerate(colours):
        top, left = divmod(number, 2)
        picture.paste(colour, (side * left, side * top, side * (left + 1), side * (top + 1)))  # type: ignore[arg-type]
    return picture


def middles(path: Path, size: int = 32) -> list[tuple[int, ...]]:
    """The colours in the middles of the four squares, as we read them."""
    pixels = read_picture(path, size)
    assert (pixels.shape, pixels.dtype, pixels.flags.c_contiguous) == ((size, size, 3), np.uint8, True)
    middle = (size // 4, 3 * size // 4)
    return [tuple(pixels[y, x].tolist()) for y in middle for x in middle]


@pytest.mark.parametrize("suffix", sorted(PICTURE_SUFFIXES))
def test_every_kind_of_picture_is_read_and_squashed(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"picture{suffix.upper()}"
    quarters(RED, GREEN, BLUE, WHITE).resize((300, 200), Image.Resampling.NEAREST).save(path)
    assert is_picture(path)
    # Lossy formats may move a colour a little.
    np.testing.assert_allclose(middles(path), [RED, GREEN, BLUE, WHITE], atol=3)


def test_a_video_is_no_picture() -> None:
    assert not is_picture("clip.mp4")
    assert not is_picture("clip.gif")  # moving pictures
    assert not PICTURE_SUFFIXES & VIDEO_SUFFIXES


@pytest.mark.parametrize("orientation", range(1, 9))
@pytest.mark.parametrize("suffix", [".jpg", ".png", ".webp", ".avif"])
def test_a_picture_is_set_upright_as_its_exif_asks(tmp_path: Path, orientation: int, suffix: str) -> None:
    # Which corner of the stored picture is shown at the top left, top right, bottom left, bottom right: from the
    # standard, "the 0th row is the visual …, the 0th column is the visual …".
    shown = {
        1: (RED, GREEN, BLUE, WHITE),  # top, left
        2: (GREEN, RED, WHITE, BLUE),  # top, right
        3: (WHITE, BLUE, GREEN, RED),  # bottom, right
        4: (BLUE, WHITE, RED, GREEN),  # bottom, left
        5: (RED, BLUE, GREEN, WHITE),  # left, top
        6: (BLUE, RED, WHITE, GREEN),  # right, top
        7: (WHITE, GREEN, BLUE, RED),  # right, bottom
        8: (GREEN, WHITE, RED, BLUE),  # left, bottom
    }
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned{suffix}"
    quarters(RED, GREEN, BLUE, WHITE).save(path, exif=exif)
    np.testing.assert_allclose(middles(path), shown[orientation], atol=3)


def test_what_is_see_through_lies_over_white(tmp_path: Path) -> None:
    # Black at half the opacity over white: 255 · (1 − 128/255) = 127. Red at 51/255 = 1/5: 4/5 of white and 1/5 of red.
    path = tmp_path / "alpha.png"
    quarters((0, 0, 0, 128), (255, 0, 0, 51), (0, 255, 0, 255), (9, 9, 9, 0), mode="RGBA").save(path)
    assert middles(path) == [(127, 127, 127), (255, 204, 204), GREEN, WHITE]
    quarters((0, 128), (0, 255), (200, 0), (200, 255), mode="LA").save(path)
    assert middles(path) == [(127, 127, 127), BLACK, WHITE, (200, 200, 200)]


def test_a_palette_is_looked_up_and_may_be_see_through(tmp_path: Path) -> None:
    picture = quarters(0, 1, 2, 3, mode="P")
    picture.putpalette([*RED, *GREEN, *BLUE, *BLACK])
    plain, one, each = (tmp_path / f"{name}.png" for name in ("plain", "one", "each"))
    picture.save(plain)
    picture.save(one, transparency=1)
    picture.save(each, transparency=bytes([255, 0, 51, 128]))
    assert middles(plain) == [RED, GREEN, BLUE, BLACK]
    assert middles(one) == [RED, WHITE, BLUE, BLACK]
    assert middles(each) == [RED, WHITE, (204, 204, 255), (127, 127, 127)]


def test_a_colour_that_is_declared_see_through_is_white(tmp_path: Path) -> None:
    path = tmp_path / "key.png"
    quarters(RED, GREEN, BLUE, BLACK).save(path, transparency=GREEN)
    assert middles(path) == [RED, WHITE, BLUE, BLACK]


def test_grey_of_every_depth_is_grey(tmp_path: Path) -> None:
    path = tmp_path / "grey.png"
    quarters(0, 100, 200, 255, mode="L").save(path)
    assert middles(path) == [BLACK, (100,) * 3, (200,) * 3, WHITE]
    # 16 bits: 257 · 100 = 25700 is what 100 is in 8.
    quarters(0, 25700, 51400, 65535, mode="I;16").save(path)
    assert middles(path) == [BLACK, (100,) * 3, (200,) * 3, WHITE]
    quarters(0, 1, 1, 0, mode="1").save(path)
    assert middles(path) == [BLACK, WHITE, WHITE, BLACK]


def test_a_picture_in_printers_colours_is_read(tmp_path: Path) -> None:
    path = tmp_path / "cmyk.jpg"
    # Cyan is white less red, and so on.
    inks = [(255, 0, 0, 0), (0, 255, 0, 0), (0, 0, 255, 0), (0, 0, 0, 255)]
    quarters(*inks, mode="CMYK").save(path, quality=95)
    np.testing.assert_allclose(middles(path), [(0, 255, 255), (255, 0, 255), (255, 255, 0), BLACK], atol=4)


@pytest.mark.parametrize("format", ["PNG", "WEBP", "AVIF", "GIF"])
def test_of_an_animated_picture_the_first_frame_is_read(tmp_path: Path, format: str) -> None:
    path = tmp_path / "moving.png"  # the name does not matter, but for a search of folders
    first, second = quarters(RED, GREEN, BLUE, WHITE), quarters(BLACK, BLACK, BLACK, BLACK)
    first.save(path, format, save_all=True, append_images=[second])
    np.testing.assert_allclose(middles(path), [RED, GREEN, BLUE, WHITE], atol=8)


def test_a_big_jpeg_is_not_read_too_small(tmp_path: Path) -> None:
    # Stripes 16 wide, of which a decoding at an eighth keeps 2 and at less than the size asked for would keep none.
    stripes = np.zeros((1024, 2048, 3), np.uint8)
    stripes[:, ::32] = 255
    for offset in range(16):
        stripes[:, offset::32] = 255
    path = tmp_path / "stripes.jpg"
    Image.fromarray(stripes).save(path, quality=95)
    pixels = read_picture(path, 128)
    # 128 wide, a stripe is 1 wide: light, dark, light, dark.
    assert pixels[:, 0::2].min() > 200
    assert pixels[:, 1::2].max() < 55


def test_a_frame_of_a_picture_has_its_glance(tmp_path: Path) -> None:
    path = tmp_path / "grey.png"
    quarters(0, 100, 200, 255, mode="L").save(path)
    glance = Frame.from_pixels(read_picture(path, 2 * GLANCE_SIZE), index=0, seconds=0.0).glance()
    corners = [int(glance[y, x]) for y in (3, -4) for x in (3, -4)]
    np.testing.assert_allclose(corners, [0, 100, 200, 255], atol=1)


def test_what_is_no_picture_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, path = tmp_path / "whole.png", tmp_path / "picture.png"
    rng = np.random.default_rng(0)
    Image.fromarray(rng.integers(0, 256, (64, 64, 3), dtype=np.uint8)).save(whole)
    postscript = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n"

    def complaint() -> str:
        with pytest.raises(UnreadablePicture) as error:
            read_picture(path, 32)
        assert "\n" not in str(error.value)
        return str(error.value)

    assert complaint() == f"{path}: cannot be read (No such file or directory)"
    for content in (b"", b"no picture", postscript):  # the last might start a program
        path.write_bytes(content)
        assert complaint() == f"{path}: not a known picture format (JPEG, PNG, WEBP, AVIF, BMP, GIF)"
    path.write_bytes(whole.read_bytes()[:5000])
    assert complaint().startswith(f"{path}: cannot be read (image file is truncated")
    path.write_bytes(whole.read_bytes())
    for limit in (64 * 64 - 1, 64 * 64 // 2 - 1):  # Pillow warns of the one and refuses the other
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", limit)
        assert complaint().startswith(f"{path}: too big a picture (at most ")
    monkeypatch.undo()
    assert read_picture(path, 32).shape == (32, 32, 3)


@pytest.mark.parametrize("suffix", sorted(PICTURE_SUFFIXES))
def test_damage_anywhere_gives_a_picture_or_one_error(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"damaged{suffix}"
    exif = Image.Exif()
    exif[0x0112] = 6
    quarters(RED, GREEN, BLUE, WHITE, side=16).save(path, **({} if suffix == ".bmp" else {"exif": exif}))
    content = path.read_bytes()
    rng = np.random.default_rng(0)
    for _ in range(60):
        damaged = bytearray(content[: rng.integers(1, len(content) + 1)])
        for place in rng.integers(0, len(damaged), rng.integers(0, 5)):
            damaged[place] = rng.integers(0, 256)
        path.write_bytes(damaged)
        with contextlib.suppress(UnreadablePicture):
            assert read_picture(path, 8).shape == (8, 8, 3)


def test_a_picture_with_broken_metadata_is_a_picture(tmp_path: Path) -> None:
    path = tmp_path / "picture.jpg"
    quarters(RED, GREEN, BLUE, WHITE).save(path, exif=b"Exif\0\0MM\0*\0\0\0\x08\xff\xff")
    np.testing.assert_allclose(middles(path), [RED, GREEN, BLUE, WHITE], atol=3)
