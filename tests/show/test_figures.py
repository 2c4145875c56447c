"""The figures, looked at pixel by pixel where a pixel can tell."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageColor

from picknet.errors import PicknetError
from picknet.picking.picker import Pick
from picknet.show import figures
from picknet.show.figures import Strip, Thumbnail, contact_sheet, example_sheet, online_strip, pick_histograms, save
from picknet.video.frame import Frame

GREEN = ImageColor.getrgb(figures.GREEN)
DARK_GREEN = ImageColor.getrgb(figures.DARK_GREEN)
ORANGE = (200, 100, 0)


def frames(count: int, *, width: int = 320, height: int = 240) -> list[Thumbnail]:
    """Plain orange frames, numbered 0, 7, 14, … as evenly sampled frames are."""
    image = np.full((height, width, 3), ORANGE, np.uint8)
    return [Thumbnail(7 * number, 0.5 * number, image) for number in range(count)]


def picks(frames: Sequence[Thumbnail], *places: int) -> list[Pick]:
    return [Pick(frames[place].index, frames[place].seconds, 0.5) for place in places]


def is_colour(image: Image.Image, colour: tuple[int, ...]) -> np.ndarray:
    """(height, width) of truth values"""
    matches: np.ndarray = (np.asarray(image) == colour).all(axis=2)
    return matches


def test_thirty_frames_stand_in_three_rows_of_ten_and_only_the_picked_ones_keep_their_colour() -> None:
    sampled = frames(30)
    sheet = contact_sheet(sampled, picks(sampled, 0, 13, 29), "a cat")
    # 1600 − 2·40 of margin; ten tiles and nine gaps of 4 leave 148 for a tile, 136 × 102 for the frame in its border.
    tile_width, tile_height = 136 + 12, 102 + 12
    left = (1600 - 10 * tile_width - 9 * 4) // 2
    for place in range(30):
        row, column = divmod(place, 10)
        x = left + column * (tile_width + 4)
        y = 40 + row * (tile_height + 4)
        centre = sheet.getpixel((x + tile_width // 2, y + tile_height // 2))
        edge = sheet.getpixel((x + tile_width // 2, y + 2))
        if place in (0, 13, 29):
            assert (centre, edge) == (ORANGE, GREEN)
        else:
            # 45 % of the way to white: 200 + 0.45·55, 100 + 0.45·155, 0 + 0.45·255
            assert np.allclose(centre, (224.75, 169.75, 114.75), atol=1.0)
            assert edge == (255, 255, 255)


@pytest.mark.parametrize(("width", "height"), [(90, 160), (160, 90), (1920, 1080), (300, 300)])
def test_a_frame_keeps_its_aspect_ratio(width: int, height: int) -> None:
    sampled = frames(1, width=width, height=height)
    orange = is_colour(contact_sheet(sampled, picks(sampled, 0), ""), ORANGE)
    drawn_height, drawn_width = (np.ptp(np.flatnonzero(orange.any(axis=axis))) + 1 for axis in (1, 0))
    assert drawn_height == 480
    assert drawn_width == pytest.approx(480 * width / height, abs=1.5)


@pytest.mark.parametrize("count", [1, 2, 3, 7, 29, 30, 31, 64, 200])
@pytest.mark.parametrize("size", [(320, 240), (90, 160)])
def test_any_number_of_frames_makes_a_sheet_that_fits_a_slide(count: int, size: tuple[int, int]) -> None:
    sampled = frames(count, width=size[0], height=size[1])
    sheet = contact_sheet(sampled, picks(sampled, 0), "a cat is playing", title="cat.mp4")
    assert sheet.width == 1600
    assert sheet.height <= 1600


def test_a_frame_that_was_sampled_twice_and_picked_once_is_framed_once() -> None:
    twice = frames(1) * 2
    once, both = (is_colour(contact_sheet(twice, picks(twice, *p), ""), ORANGE).sum() for p in ((0,), (0, 1)))
    assert both == pytest.approx(2 * once, rel=0.01)


def test_long_sentences_and_endless_words_wrap() -> None:
    sampled = frames(30)
    short = contact_sheet(sampled, [], "a cat")
    for text in ("a cat and " * 30, "c" + "a" * 300 + "t"):
        sheet = contact_sheet(sampled, [], text)
        assert sheet.height > short.height
        # Nothing is written into the margins.
        dark = np.asarray(sheet.convert("L")) < 100
        assert not dark[:, :38].any()
        assert not dark[:, -38:].any()


@pytest.mark.parametrize(("title", "shown"), [
    ("cat.mp4", "cat.mp4"),
    ("süßes Kätzchen – 2.mp4", "susses Katzchen - 2.mp4"),
    ("ha\u0308uschen.mp4", "hauschen.mp4"),
    ("猫 и кот.mp4", "? ? ???.mp4"),
    ("bad\udcff name\u200b.mp4", "bad? name?.mp4"),
    ("1 · 2 …", "1 · 2 …"),
])
def test_letters_the_font_lacks_become_plain_ones(title: str, shown: str) -> None:
    assert figures.printable(title) == shown
    contact_sheet(frames(1), [], "a cat", title=title)


def test_a_thumbnail_is_a_small_copy_of_its_frame() -> None:
    frame = Thumbnail(3, 1.5, np.full((1080, 1920, 3), ORANGE, np.uint8))
    small = Thumbnail.of(frame, max_side=480)
    assert (small.index, small.seconds, small.pixels().shape) == (3, 1.5, (270, 480, 3))


def test_bars_are_as_high_as_their_shares() -> None:
    # 4 of 8 clips have one pick, 2 have two, 2 have three: 50, 25, 25 %. All picks stand in the first frame.
    image = pick_histograms([1, 1, 1, 1, 2, 2, 3, 3], [0] * 14, num_frames=30)
    heights = is_colour(image, GREEN).sum(axis=0)
    left, right = heights[:800], heights[800:]
    bars = [int(bar.max()) for bar in np.split(left, np.flatnonzero(left == 0)) if bar.any()]
    assert bars == pytest.approx([310 / 5 * 5, 310 / 5 * 2.5, 310 / 5 * 2.5], abs=3)  # 310 pixels for 0…50 %
    assert int(right.max()) == pytest.approx(310, abs=3)
    assert np.count_nonzero(right) < (1600 - 800) / 30


def test_positions_may_be_places_or_fractions_of_the_clip() -> None:
    places = pick_histograms([3], [0, 15, 29], num_frames=30)
    fractions = pick_histograms([3], [0.0, 0.5, 1.0], num_frames=30)
    assert places.tobytes() == fractions.tobytes()


def test_the_online_strip_colours_only_words_that_are_new() -> None:
    first, second, third = frames(3)
    same = online_strip([(first, "a man is cooking"), (second, "a man is cooking")])
    changed = online_strip([(first, "a man is cooking"), (second, "a woman is cooking")])
    assert not is_colour(same, DARK_GREEN).any()
    new_words = is_colour(changed, DARK_GREEN)
    assert new_words.any()
    assert not new_words[:, :800].any()  # the first sentence, on the left, has nothing new
    shorter = online_strip([(first, "a man is cooking"), (second, "a man is"), (third, "a man")])
    assert not is_colour(shorter, DARK_GREEN).any()


def test_many_updates_go_on_in_a_new_row() -> None:
    updates = [(frame, "a man is cooking") for frame in frames(12)]
    one, three = online_strip(updates[:4]), online_strip(updates)
    # A row of four is as high in both; two gaps of 40 and two margins of 40 do not repeat.
    assert three.height == 3 * (one.height - 80) + 2 * 40 + 80


def test_the_examples_stand_below_each_other_each_pick_framed() -> None:
    one = Strip(frames(3), "a cat is playing", "a kitten plays", "vid1 · CIDEr 120")
    single, sheet = example_sheet([one]), example_sheet([one] * 12)
    # A strip repeats twelve times with eleven gaps of 56 between; the margins of 40 do not.
    assert sheet.height == 12 * (single.height - 80) + 11 * 56 + 80
    assert is_colour(single, ORANGE).sum() == pytest.approx(3 * is_colour(example_sheet(
        [Strip(frames(1), "a", "b", "c")]), ORANGE).sum(), rel=0.01)  # fmt: skip


def test_many_picks_of_an_example_go_on_in_a_new_row() -> None:
    ten, eleven = (example_sheet([Strip(frames(count), "a", "b", "c")]) for count in (10, 11))
    assert eleven.height > ten.height
    tall = example_sheet([Strip(frames(2, width=90, height=160), "a", "b", "c")])
    assert np.ptp(np.flatnonzero(is_colour(tall, ORANGE).any(axis=1))) <= 200


@pytest.mark.parametrize(
    ("suffix", "format"), [(".png", "PNG"), (".JPEG", "JPEG"), (".jpg", "JPEG"), (".webp", "WEBP")]
)
def test_the_suffix_names_the_format(tmp_path: Path, suffix: str, format: str) -> None:
    save(contact_sheet(frames(2), [], "a cat"), tmp_path / f"-süß 1{suffix}")
    with Image.open(tmp_path / f"-süß 1{suffix}") as written:
        assert (written.format, written.width) == (format, 1600)


@pytest.mark.parametrize(("name", "said"), [
    ("sheet.bmp", "no picture format .bmp (possible: .png, .jpg, .jpeg, .webp)"),
    ("sheet", "no picture format without a suffix (possible: .png, .jpg, .jpeg, .webp)"),
])
def test_an_unknown_suffix_is_answered_with_the_possible_ones(tmp_path: Path, name: str, said: str) -> None:
    with pytest.raises(PicknetError) as error:
        save(Image.new("RGB", (1, 1)), tmp_path / name)
    assert str(error.value) == f"{tmp_path / name}: {said}"
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_leaves_the_old_one(tmp_path: Path) -> None:
    save(Image.new("RGB", (3, 3)), tmp_path / "sheet.png")
    before = (tmp_path / "sheet.png").read_bytes()
    with pytest.raises(PicknetError, match=r"sheet\.png: cannot be written"):
        save(Image.new("HSV", (3, 3)), tmp_path / "sheet.png")  # PNG knows no HSV
    assert (tmp_path / "sheet.png").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["sheet.png"]


@pytest.mark.parametrize("name", ["sheet.png", "sheet.jpg", "sheet.webp"])
def test_half_a_picture_is_never_left_behind(tmp_path: Path, name: str) -> None:
    resource = pytest.importorskip("resource")
    noise = Image.fromarray(np.random.default_rng(0).integers(0, 256, (200, 200, 3), dtype=np.uint8))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))  # a disk with little room
    try:
        with pytest.raises(PicknetError, match=rf"{name}: cannot be written \(File too large\)"):
            save(noise, tmp_path / name)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert list(tmp_path.iterdir()) == []


def test_nothing_to_draw_is_said() -> None:
    for draw in (
        lambda: contact_sheet([], [], "a cat"),
        lambda: online_strip([]),
        lambda: example_sheet([]),
        lambda: pick_histograms([], [], num_frames=30),
    ):
        with pytest.raises(PicknetError, match="at least one"):
            draw()


@pytest.mark.parametrize(("seconds", "shown"), [(0, "0.0 s"), (3.25, "3.2 s"), (63.9, "1:03"), (3725, "1:02:05")])
def test_times_read_like_a_clock(seconds: float, shown: str) -> None:
    assert figures._clock(seconds) == shown


def test_frames_of_a_video_can_be_drawn_as_they_are() -> None:
    sampled = [Frame.from_pixels(thumbnail.pixels(), index=n, seconds=n) for n, thumbnail in enumerate(frames(2))]
    sheet = contact_sheet(sampled, [Pick(1, 1.0)], "a cat")
    green = is_colour(sheet, GREEN)
    assert green[:, 800:].any()
    assert not green[:, :800].any()
