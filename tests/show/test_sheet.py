"""Contact sheets, online strips and examples, checked where a pixel can tell."""

from collections.abc import Sequence

import numpy as np
import pytest
from PIL import Image, ImageColor

from picknet.errors import PicknetError
from picknet.picking.picker import Pick
from picknet.show import page
from picknet.show.page import Thumbnail, confidence_colour
from picknet.show.sheet import Moment, Strip, contact_sheet, example_sheet, online_strip, tile_side
from picknet.video.frame import Frame

GREEN = ImageColor.getrgb(page.GREEN)
DARK_GREEN = ImageColor.getrgb(page.DARK_GREEN)
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


def test_thirty_frames_are_in_three_rows_of_ten_and_only_the_picked_ones_keep_their_colour() -> None:
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
            # 15 % of the way to white: 200 + 0.15·55, 100 + 0.15·155, 0 + 0.15·255
            assert np.allclose(centre, (208.25, 123.25, 38.25), atol=1.0)
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


def test_long_captions_and_long_words_wrap() -> None:
    sampled = frames(30)
    short = contact_sheet(sampled, [], "a cat")
    for text in ("a cat and " * 30, "c" + "a" * 300 + "t"):
        sheet = contact_sheet(sampled, [], text)
        assert sheet.height > short.height
        # Nothing is written into the margins.
        dark = np.asarray(sheet.convert("L")) < 100
        assert not dark[:, :38].any()
        assert not dark[:, -38:].any()


def test_the_online_strip_colours_only_words_that_are_new() -> None:
    first, second, third = frames(3)
    same = online_strip([Moment(first, "a man is cooking"), Moment(second, "a man is cooking")])
    changed = online_strip([Moment(first, "a man is cooking"), Moment(second, "a woman is cooking")])
    assert not is_colour(same, DARK_GREEN).any()
    new_words = is_colour(changed, DARK_GREEN)
    assert new_words.any()
    assert not new_words[:, :800].any()  # the first sentence, on the left, has nothing new
    shorter = online_strip([Moment(first, "a man is cooking"), Moment(second, "a man is"), Moment(third, "a man")])
    assert not is_colour(shorter, DARK_GREEN).any()


def test_the_online_strip_shows_how_sure_each_caption_is() -> None:
    first, second = frames(2)
    strip = online_strip([Moment(first, "a man is cooking", 0.05), Moment(second, "a man is cooking", 0.95)])
    doubtful, sure = (is_colour(strip, confidence_colour(confidence)) for confidence in (0.05, 0.95))
    assert doubtful[:, :800].any()
    assert sure[:, 800:].any()
    assert not (doubtful[:, 800:] | sure[:, :800]).any()
    assert strip.height > online_strip([Moment(first, "a man is cooking"), Moment(second, "a man is cooking")]).height


def test_many_updates_continue_in_a_new_row() -> None:
    updates = [Moment(frame, "a man is cooking") for frame in frames(12)]
    one, three = online_strip(updates[:4]), online_strip(updates)
    # A row of four is as high in both; two gaps of 40 and two margins of 40 do not repeat.
    assert three.height == 3 * (one.height - 80) + 2 * 40 + 80


def test_examples_are_below_each_other_with_each_pick_framed() -> None:
    one = Strip(frames(3), "a cat is playing", ["a kitten plays"], "vid1 · CIDEr 120")
    single, sheet = example_sheet([one]), example_sheet([one] * 12)
    # A strip repeats twelve times with eleven gaps of 56 between; the margins of 40 do not.
    assert sheet.height == 12 * (single.height - 80) + 11 * 56 + 80
    assert is_colour(single, ORANGE).sum() == pytest.approx(3 * is_colour(example_sheet(
        [Strip(frames(1), "a", ["b"], "c")]), ORANGE).sum(), rel=0.01)  # fmt: skip


def test_an_example_has_a_line_for_each_human_caption_and_the_sheet_its_title() -> None:
    one, three = (example_sheet([Strip(frames(2), "a", ["b"] * count, "c")]) for count in (1, 3))
    assert three.height == one.height + 2 * (round(28 * 1.3) + 4)
    titled = example_sheet([Strip(frames(2), "a", ["b"], "c")], title="2 of 9 clips")
    assert titled.height == one.height + round(28 * 1.3) + 56


def test_many_picks_of_an_example_continue_in_a_new_row() -> None:
    ten, eleven = (example_sheet([Strip(frames(count), "a", ["b"], "c")]) for count in (10, 11))
    assert eleven.height > ten.height
    tall = example_sheet([Strip(frames(2, width=90, height=160), "a", ["b"], "c")])
    assert np.ptp(np.flatnonzero(is_colour(tall, ORANGE).any(axis=1))) <= 200


def test_a_figure_needs_something_to_draw() -> None:
    for draw in (
        lambda: contact_sheet([], [], "a cat"),
        lambda: online_strip([]),
        lambda: example_sheet([]),
    ):
        with pytest.raises(PicknetError, match="at least one"):
            draw()


def test_frames_of_a_video_need_no_thumbnails() -> None:
    sampled = [Frame.from_pixels(thumbnail.pixels(), index=n, seconds=n) for n, thumbnail in enumerate(frames(2))]
    sheet = contact_sheet(sampled, [Pick(1, 1.0)], "a cat")
    green = is_colour(sheet, GREEN)
    assert green[:, 800:].any()
    assert not green[:, :800].any()


def drawn_words(sheet: Image.Image, of: Image.Image) -> bool:
    """Whether there is more on a sheet than on another of the same frames and caption."""
    return (np.asarray(sheet) != np.asarray(of)).any()


def test_length_and_confidence_are_shown_where_they_are_known() -> None:
    sampled = frames(3)
    plain = contact_sheet(sampled, [], "a cat", title="cat.mp4")
    assert drawn_words(contact_sheet(sampled, [], "a cat", title="cat.mp4", seconds=14.2), plain)
    sure, unsure = (contact_sheet(sampled, [], "a cat", title="cat.mp4", confidence=value) for value in (1.0, 0.0))
    for sheet, confidence in ((sure, 1.0), (unsure, 0.0)):
        assert is_colour(sheet, page.confidence_colour(confidence)).sum() > 200  # a dot of 20 pixels
    assert not is_colour(plain, page.confidence_colour(1.0)).any()


def test_a_long_title_leaves_room_for_the_facts() -> None:
    sampled = frames(3)
    sheet = contact_sheet(sampled, [], "a cat", title="a very long name " * 30, confidence=0.0, seconds=3725)
    dot = np.flatnonzero(is_colour(sheet, page.confidence_colour(0.0)).any(axis=0))
    assert 800 < dot.min() < dot.max() < 1600 - 40
    dark = np.asarray(sheet.convert("L")) < 200
    assert not dark[:, :38].any()
    assert not dark[:, -38:].any()


@pytest.mark.parametrize("count", [1, 2, 7, 30, 100])
def test_thumbnails_of_tile_side_are_not_enlarged(count: int) -> None:
    for width, height in ((1920, 1080), (1080, 1920), (640, 480)):
        full = frames(count, width=width, height=height)
        small = [Thumbnail.of(frame, max_side=tile_side(count)) for frame in full]
        drawn = is_colour(contact_sheet(small, picks(small, 0), ""), ORANGE)
        assert drawn.sum() <= 1.05 * small[0].pixels().size / 3
