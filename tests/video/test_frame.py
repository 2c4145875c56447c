"""A frame: glance, pixels, thumbnail; and arrays as frames."""

import itertools
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import clips
import numpy as np
import pytest
from clips import area_average
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray
from PIL import Image

from picknet.errors import BadSetting
from picknet.video.file import Video
from picknet.video.frame import GLANCE_SIZE, Frame, frames_from


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
def test_a_frame_smaller_than_a_glance_has_one(height: int, width: int) -> None:
    pixels = np.full((height, width, 3), 90, dtype=np.uint8)
    pixels[: height // 2] = 30
    glance = Frame.from_pixels(pixels, index=0, seconds=0.0).glance()
    assert glance.shape == (GLANCE_SIZE, GLANCE_SIZE)
    assert abs(int(glance[-1, -1]) - 90) <= 1
    assert abs(int(glance[0, 0]) - (30 if height > 1 else 90)) <= 1


def test_a_glance_does_not_depend_on_the_frames_before_it() -> None:
    random = np.random.default_rng(0)
    pictures = []
    for width, height, pixel_format in [(320, 240, "yuv420p"), (320, 240, "yuvj420p"), (160, 120, "gray")]:
        picture = av.VideoFrame(width, height, pixel_format)
        for plane in picture.planes:
            plane.update(random.bytes(plane.buffer_size))
        pictures.append(picture)

    def glance(picture: av.VideoFrame) -> bytes:
        return Frame(picture, index=0, seconds=0.0).glance().tobytes()

    def alone(picture: av.VideoFrame) -> bytes:
        with ThreadPoolExecutor(1) as thread:
            return thread.submit(glance, picture).result()

    expected = [alone(picture) for picture in pictures]
    assert len({*expected}) == 3
    assert [glance(picture) for picture in [*pictures, *pictures]] == [*expected, *expected]


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


def test_a_frame_is_blank_only_if_nothing_differs_in_brightness_or_colour() -> None:
    def frame(pixels: NDArray[np.uint8]) -> Frame:
        return Frame.from_pixels(pixels, index=0, seconds=0.0)

    flat, noise = np.full((90, 160, 3), 30, np.uint8), np.random.default_rng(0).integers(0, 30, (90, 160, 3))
    assert frame(flat).is_blank
    assert frame((flat + noise // 10).astype(np.uint8)).is_blank
    assert not frame(clips.picture(3)).is_blank
    lit = flat.copy()
    lit[40:50, 70:80] = 120  # a lamp in the dark
    assert not frame(lit).is_blank
    equal = np.zeros((90, 160, 3), np.uint8)  # as bright, in two colours
    equal[:, :80], equal[:, 80:] = (150, 0, 0), (0, 76, 0)
    assert frame(equal).glance().std() < 2
    assert not frame(equal).is_blank


@pytest.mark.parametrize("shape", [(10, 10), (10, 10, 4), (3, 10, 10), (0, 10, 3)])
def test_only_rgb_pixels_make_a_frame(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"a frame is RGB \(H, W, 3\) of uint8, not"):
        Frame.from_pixels(np.zeros(shape, dtype=np.uint8), index=0, seconds=0.0)


def test_a_colour_matrix_unknown_to_the_scaler_is_replaced() -> None:
    for matrix in range(18):
        picture = av.VideoFrame(96, 64, "yuv420p")
        picture.colorspace = matrix
        frame = Frame(picture, index=0, seconds=0.0)
        assert frame.pixels().shape == (64, 96, 3)
        assert frame.glance().shape == (GLANCE_SIZE, GLANCE_SIZE)


@pytest.mark.parametrize(
    ("width", "height", "stored", "named", "right"),
    [
        (1280, 544, "itu709", 2, True),
        (96, 720, "itu709", 2, True),
        (1280, 544, "itu709", 1, True),
        (1280, 544, "itu601", 6, True),
        (1280, 544, "itu601", 2, False),
        (1024, 576, "itu601", 2, True),
        (1024, 576, "itu709", 2, False),
    ],
)
def test_hd_that_names_no_colour_matrix_has_that_of_hd(
    width: int, height: int, stored: str, named: int, right: bool
) -> None:
    """Green is 30 grey values off by the wrong matrix, orange nearly as much."""
    shown = clips.picture(0, width=width, height=height)
    shown[height // 2 :, : width // 2], shown[height // 2 :, width // 2 :] = (30, 200, 30), (220, 120, 20)
    picture = av.VideoFrame.from_ndarray(shown, format="rgb24")
    coded = picture.reformat(format="yuv420p", dst_colorspace=stored, threads=1)
    coded.colorspace = named
    frame = Frame(coded, index=0, seconds=0.0)
    for pixels in (frame.pixels().astype(int), frame.thumbnail(64).astype(int), frame.pixels(64).astype(int)):
        place = len(pixels) * 3 // 4, pixels.shape[1] // 4
        for colour, found in (((30, 200, 30), pixels[place]), ((220, 120, 20), pixels[place[0], 3 * place[1]])):
            assert (np.abs(found - colour).max() < 8) == right


@pytest.mark.parametrize(
    ("codec", "options", "pixel_format"),
    [
        ("libx264", {"x264-params": "tff=1", "qp": "0"}, "yuv420p"),
        ("libx264", {"x264-params": "bff=1", "qp": "0"}, "yuv422p10le"),
        ("mpeg2video", {"flags": "+ildct+ilme", "qmax": "2"}, "yuv420p"),
    ],
)
@pytest.mark.parametrize(("width", "height"), [(96, 224), (100, 236)])
def test_of_an_interlaced_frame_one_field_is_shown(
    tmp_path: Path, codec: str, options: dict[str, str], pixel_format: str, width: int, height: int
) -> None:
    """A white bar has gone to the right between the first field and the second; the lower half is red, and stands."""
    fields = np.zeros((2, height, width, 3), np.uint8)
    fields[0, :, 10:30], fields[1, :, 60:80] = 255, 255
    fields[:, height // 2 :] = (200, 30, 30)
    coded = []
    for field in fields:
        whole = av.VideoFrame.from_ndarray(np.ascontiguousarray(field), format="rgb24")
        coded.append(whole.reformat(format=pixel_format, threads=1))  # the threads of the scaler race
    for first, second in zip(coded[0].planes, coded[1].planes, strict=True):
        lines = np.frombuffer(first, np.uint8).reshape(first.height, -1).copy()
        lines[1::2] = np.frombuffer(second, np.uint8).reshape(first.height, -1)[1::2]
        first.update(lines.tobytes())
    with av.open(str(tmp_path / "clip.mkv"), "w") as output:
        stream = output.add_stream(codec, rate=25, options=options)
        stream.width, stream.height, stream.pix_fmt = width, height, pixel_format
        output.mux([*stream.encode(coded[0]), *stream.encode(None)])
    with Video(tmp_path / "clip.mkv") as video:
        frame = next(video.sample_evenly())
    assert frame.pixels().shape == (height, width, 3)
    for pixels in (frame.pixels().astype(int), frame.pixels(48).astype(int), frame.thumbnail(48).astype(int)):
        upper, lower = pixels[: len(pixels) * 3 // 8], pixels[len(pixels) * 5 // 8 :]
        first, second = (upper[:, round(at * pixels.shape[1] / width)] for at in (20, 70))
        assert first.min() > 230
        assert second.max() < 25
        assert np.abs(lower - (200, 30, 30)).max() < 12
    for glance in (frame.glance(), frame.glance_as("colour")[0]):
        first, second = (glance[:20, round(at * GLANCE_SIZE / width)] for at in (20, 70))
        assert (first.min() > 230, second.max() < 25) == (True, True)


@pytest.mark.parametrize("pixel_format", ["rgb24", "gray"])
def test_no_matrix_is_guessed_where_there_are_no_colours_to_convert(pixel_format: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (720, 1280, 3), dtype=np.uint8)
    picture = av.VideoFrame.from_ndarray(noise, format="rgb24").reformat(format=pixel_format, threads=1)
    pixels = Frame(picture, index=0, seconds=0.0).pixels(64)
    picture.colorspace = 5
    assert np.array_equal(pixels, Frame(picture, index=0, seconds=0.0).pixels(64))


@pytest.mark.parametrize("aspect", [None, Fraction(4, 3)])
@pytest.mark.parametrize("rotation", [0, 90, 180])
def test_a_thumbnail_is_the_frame_small_and_upright_with_square_pixels(
    tmp_path: Path, aspect: Fraction | None, rotation: int
) -> None:
    path = clips.write_clip(tmp_path / "clip.mov", width=320, height=240, rotation=rotation, pixel_aspect=aspect)
    with Video(path) as video:
        frame = list(video.sample_evenly())[10]
        sides = (video.height, video.width)
    small = frame.thumbnail(80)
    assert small.shape == (*(round(side * 80 / max(sides)) for side in sides), 3)
    assert small.dtype == np.uint8
    full = Image.fromarray(frame.pixels()).resize((small.shape[1], small.shape[0]), Image.Resampling.BOX)
    assert np.abs(small.astype(int) - np.asarray(full)).mean() < 3
    assert clips.number_of(np.rot90(small, -rotation // 90)) == 21


def test_a_thumbnail_is_scaled_once_and_never_enlarged(monkeypatch: pytest.MonkeyPatch) -> None:
    frame = Frame.from_pixels(clips.picture(5), index=0, seconds=0.0)
    np.testing.assert_allclose(frame.thumbnail(5000), clips.picture(5), atol=1)
    scaled: list[tuple[int, int]] = []
    scale = Frame._scaled
    monkeypatch.setattr(Frame, "_scaled", lambda self, w, h, *how: scaled.append((w, h)) or scale(self, w, h, *how))
    assert frame.thumbnail(48).shape == (32, 48, 3)
    assert scaled == [(48, 32)]
    assert Frame.from_pixels(np.zeros((1, 900, 3), np.uint8), index=0, seconds=0.0).thumbnail(10).shape == (1, 10, 3)
    with pytest.raises(BadSetting, match=r"^max_side is 0: at least 1 pixel is needed$"):
        frame.thumbnail(0)


def test_arrays_are_frames_at_a_constant_rate() -> None:
    pictures = np.stack([clips.picture(number) for number in range(4)])
    for items in (pictures, list(pictures), iter(pictures)):
        frames = list(frames_from(items, fps=2))
        assert [clips.number_of(frame.pixels()) for frame in frames] == [0, 1, 2, 3]
        assert [(frame.index, frame.seconds) for frame in frames] == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]


def test_frames_are_passed_on_as_they_are() -> None:
    given = [Frame.from_pixels(clips.picture(0), index=7, seconds=3.5)]
    assert list(frames_from(given)) == given


def test_an_endless_iterable_is_read_only_as_far_as_needed() -> None:
    frames = frames_from(clips.picture(number) for number in itertools.count())
    assert clips.number_of(next(frames).pixels()) == 0


def test_what_is_not_frames_is_refused_at_the_call() -> None:
    with pytest.raises(BadSetting, match=r"^fps is 0: more than 0 frames a second are needed$"):
        frames_from([], fps=0)
    with pytest.raises(TypeError, match=r"^frames are an iterable of frames or RGB arrays, not int$"):
        frames_from(5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^an array of frames is RGB \(n, H, W, 3\) of uint8, not \(64, 96, 3\) of"):
        frames_from(clips.picture(0))
    with pytest.raises(TypeError, match=r"^a frame is RGB \(H, W, 3\) of uint8, not str$"):
        list(frames_from("no"))  # type: ignore[arg-type]


@pytest.mark.parametrize(("name", "options"), [("logo.png", {}), ("logo.webp", {"lossless": True})])
def test_what_is_transparent_is_white(tmp_path: Path, name: str, options: dict[str, bool]) -> None:
    """Black letters on nothing would be a black picture; what is stored below nothing is not shown."""
    stored = np.zeros((60, 80, 4), np.uint8)
    stored[..., 0] = 200  # a colour that nobody sees
    stored[20:40, 20:60] = (0, 0, 0, 255)
    stored[20:40, 40:60, 3] = 102
    Image.fromarray(stored).save(tmp_path / name, **options)
    with Video(tmp_path / name) as video:
        frame = next(video.sample_evenly())
    pixels = frame.pixels().astype(np.float64)
    for place, value in (((5, 5), 255), ((30, 30), 0), ((30, 50), 153)):
        np.testing.assert_allclose(pixels[place], value, atol=2)
    assert np.abs(frame.glance() - clips.area_average(pixels.mean(axis=2))).mean() < 1
    stored[..., 3] = 0
    Image.fromarray(stored).save(tmp_path / name, exact=True, **options)
    with Video(tmp_path / name) as video:
        assert next(video.sample_evenly()).pixels().mean() < 100  # its alpha says nothing


@pytest.mark.parametrize("curve", [16, 18], ids=["PQ", "HLG"])
def test_the_colours_of_hdr_are_those_of_ordinary_video(curve: int) -> None:
    """Up to white, 203 cd/m², stored by the curves of SMPTE ST 2084 and ARIB STD-B67."""
    shown = np.array([(30, 30, 30), (128, 128, 128), (200, 40, 40), (40, 180, 60), (50, 60, 200)], np.float64)
    light = (shown / 255) ** 2.2
    to_bt2020 = [[0.6274, 0.3293, 0.0433], [0.0691, 0.9195, 0.0114], [0.0164, 0.0880, 0.8956]]  # ITU-R BT.2087
    light = light @ np.transpose(to_bt2020)
    if curve == 16:
        power = (light * 203 / 10000) ** 0.1593017578125
        stored = ((0.8359375 + 18.8515625 * power) / (1 + 18.6875 * power)) ** 78.84375
    else:
        scene = 0.265 * light * (light @ (0.2627, 0.678, 0.0593))[:, None] ** (0.2 / -1.2)
        bright = 0.17883277 * np.log(np.maximum(12 * scene, 1) - 0.28466892) + 0.55991073
        stored = np.where(scene <= 1 / 12, np.sqrt(3 * scene), bright)
    patches = np.repeat(np.rint(255 * stored)[:, None], 64, axis=1).repeat(20, axis=0).astype(np.uint8)
    picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(patches), format="rgb24")
    picture.color_trc, picture.color_primaries = curve, 9
    frame = Frame(picture, index=0, seconds=0.0)
    np.testing.assert_allclose(frame.pixels()[10::20, 30], shown, atol=6)
    assert abs(int(frame.glance()[4, 28]) - 30) < 6
    picture.color_trc = 1
    assert np.array_equal(Frame(picture, index=0, seconds=0.0).pixels(), patches)
