"""The page: files, thumbnails, colours and letters."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from picknet.errors import PicknetError
from picknet.show.page import Thumbnail, confidence_colour, printable, save, shortened, wrapped
from picknet.timecode import duration, short_clock
from picknet.video.frame import Frame

ORANGE = (200, 100, 0)


@pytest.mark.parametrize(("title", "shown"), [
    ("cat.mp4", "cat.mp4"),
    ("süßes Kätzchen – 2.mp4", "susses Katzchen - 2.mp4"),
    ("ha\u0308uschen.mp4", "hauschen.mp4"),
    ("猫 и кот.mp4", "? ? ???.mp4"),
    ("bad\udcff name\u200b.mp4", "bad? name?.mp4"),
    ("1 · 2 …", "1 · 2 …"),
])
def test_letters_the_font_lacks_become_plain_ones(title: str, shown: str) -> None:
    assert printable(title) == shown


def test_a_thumbnail_is_a_small_copy_of_its_frame() -> None:
    frame = Thumbnail(3, 1.5, np.full((1080, 1920, 3), ORANGE, np.uint8))
    small = Thumbnail.of(frame, max_side=480)
    assert (small.index, small.seconds, small.pixels().shape) == (3, 1.5, (270, 480, 3))


@pytest.mark.parametrize(
    ("suffix", "format"), [(".png", "PNG"), (".JPEG", "JPEG"), (".jpg", "JPEG"), (".webp", "WEBP")]
)
def test_the_suffix_names_the_format(tmp_path: Path, suffix: str, format: str) -> None:
    save(Image.new("RGB", (30, 20)), tmp_path / f"-süß 1{suffix}")
    with Image.open(tmp_path / f"-süß 1{suffix}") as written:
        assert (written.format, written.size) == (format, (30, 20))


@pytest.mark.parametrize(("name", "message"), [
    ("sheet.bmp", "no picture format .bmp (possible: .png, .jpg, .jpeg, .webp)"),
    ("sheet", "no picture format without a suffix (possible: .png, .jpg, .jpeg, .webp)"),
])
def test_an_unknown_suffix_is_answered_with_the_possible_ones(tmp_path: Path, name: str, message: str) -> None:
    with pytest.raises(PicknetError) as error:
        save(Image.new("RGB", (1, 1)), tmp_path / name)
    assert str(error.value) == f"{tmp_path / name}: {message}"
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_old_file(tmp_path: Path) -> None:
    save(Image.new("RGB", (3, 3)), tmp_path / "sheet.png")
    before = (tmp_path / "sheet.png").read_bytes()
    with pytest.raises(PicknetError, match=r"sheet\.png: cannot be written"):
        save(Image.new("HSV", (3, 3)), tmp_path / "sheet.png")  # PNG has no HSV
    assert (tmp_path / "sheet.png").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


@pytest.mark.parametrize("name", ["sheet.png", "sheet.jpg", "sheet.webp"])
def test_a_full_disk_leaves_no_partial_file(tmp_path: Path, name: str) -> None:
    resource = pytest.importorskip("resource")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # as if the disk were full
    try:
        with pytest.raises(PicknetError, match=rf"{name}: cannot be written \(File too large\)"):
            save(noise, tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_a_small_frame_is_not_enlarged() -> None:
    frame = Frame.from_pixels(np.full((90, 160, 3), ORANGE, np.uint8), index=3, seconds=1.5)
    small = Thumbnail.of(frame, max_side=480)
    assert (small.index, small.seconds) == (3, 1.5)
    assert small.pixels().shape == (90, 160, 3)
    assert np.abs(small.pixels().astype(int) - ORANGE).max() <= 2


def test_a_thumbnail_is_scaled_by_the_frame_itself_where_it_can() -> None:
    class ScalingFrame:
        index, seconds = 3, 1.5

        def pixels(self) -> np.ndarray:
            raise AssertionError("the full-size frame is not needed")

        def thumbnail(self, max_side: int) -> np.ndarray:
            return np.full((max_side // 2, max_side, 3), 7, np.uint8)

    assert Thumbnail.of(ScalingFrame(), max_side=100).pixels().shape == (50, 100, 3)


@pytest.mark.parametrize(
    ("seconds", "whole", "tenths"),
    [
        (0, "0:00", "0:00.0"),
        (3.2, "0:03", "0:03.2"),
        (59.96, "0:59", "1:00.0"),
        (600.04, "10:00", "10:00.0"),
        (3599.96, "59:59", "1:00:00.0"),
        (3725, "1:02:05", "1:02:05.0"),
    ],
)
def test_a_time_reads_as_on_a_player(seconds: float, whole: str, tenths: str) -> None:
    assert short_clock(seconds) == whole
    assert short_clock(seconds, tenths=True) == tenths


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0.0 s"), (14.25, "14.2 s"), (59.96, "1:00"), (3725, "1:02:05")])
def test_durations_under_a_minute_are_in_seconds(seconds: float, shown: str) -> None:
    assert duration(seconds) == shown


def test_the_more_confident_the_darker() -> None:
    lightness = [sum(confidence_colour(value / 20)) for value in range(21)]
    assert lightness == sorted(lightness, reverse=True)
    assert confidence_colour(None) not in {confidence_colour(value / 20) for value in range(21)}
    assert confidence_colour(1.5) == confidence_colour(1.0)


def test_text_that_is_too_long_for_a_line_is_wrapped_or_shortened() -> None:
    lines = wrapped([(word, "black") for word in ["a", "cat", "is", "playing"]], size=20, width=90)
    assert [word for line in lines for word, _ in line] == ["a", "cat", "is", "playing"]
    assert len(lines) > 1
    assert shortened("a cat", size=20, width=500) == "a cat"
    short = shortened("a cat is playing with a ball", size=20, width=100)
    assert short.endswith("…")
    assert "a cat is playing with a ball".startswith(short[:-1])


@pytest.mark.parametrize(("suffix", "limit"), [(".webp", "16,383"), (".jpg", "65,500")])
def test_a_picture_that_is_too_high_for_its_format_is_refused(tmp_path: Path, suffix: str, limit: str) -> None:
    path = tmp_path / f"sheet{suffix}"
    message = rf"2 x 70000 pixels are too many for \w+, whose sides have at most {limit}; use .png"
    with pytest.raises(PicknetError, match=message):
        save(Image.new("RGB", (2, 70_000)), path)
    assert not path.exists()
    save(Image.new("RGB", (2, 70_000)), path.with_suffix(".png"))
