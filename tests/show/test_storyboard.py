"""The storyboard: pages, cards and the ribbon."""

import types
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from picknet.show import storyboard
from picknet.show.page import MARGIN, WIDTH, Thumbnail, confidence_colour
from picknet.show.storyboard import MAX_FRAME_BYTES, PAGE_HEIGHT, Storyboard

BLUE = (30, 60, 200)


def segment(start: float, end: float, text: str = "a cat", confidence: float | None = None) -> types.SimpleNamespace:
    not_sure = None if text else "confidence 0.10 is below 0.5"
    return types.SimpleNamespace(start=start, end=end, text=text, confidence=confidence, picks=(), not_sure=not_sure)


def blue(count: int, *, width: int = 160, height: int = 90) -> list[Thumbnail]:
    image = np.full((height, width, 3), BLUE, np.uint8)
    return [Thumbnail(number, float(number), image) for number in range(count)]


def board_of(
    path: Path, segments: Sequence[types.SimpleNamespace], num_frames: int = 1, **shape: int
) -> list[Image.Image]:
    """The pages of a film whose segments have `num_frames` frames each."""
    board = Storyboard(path, title="film.mp4")
    for one in segments:
        board.add(one, blue(num_frames, **shape))
    board.end()
    return [Image.open(page) for page in board.pages]


def blue_pixels(image: Image.Image) -> np.ndarray:
    """(height, width) of truth values; JPEG leaves colours nearly as they were."""
    is_blue: np.ndarray = (np.abs(np.asarray(image.convert("RGB"), int) - BLUE) < 12).all(axis=2)
    return is_blue


def test_a_segment_that_is_not_sure_says_so(tmp_path: Path) -> None:
    (unsure,) = board_of(tmp_path / "unsure.png", [segment(0, 10, "", 0.1)])
    (said,) = board_of(tmp_path / "said.png", [segment(0, 10, "not sure", 0.1)])
    assert (np.asarray(unsure) == np.asarray(said)).all()


def in_a_row(*seconds: float) -> list[types.SimpleNamespace]:
    ends = np.cumsum(seconds).tolist()
    return [segment(start, end) for start, end in zip([0.0, *ends], ends, strict=False)]


def test_one_page_has_the_name_it_was_given_and_ends_below_its_content(tmp_path: Path) -> None:
    (page,) = board_of(tmp_path / "board.png", in_a_row(5, 5, 5))
    assert [path.name for path in tmp_path.iterdir()] == ["board.png"]
    assert page.width == WIDTH
    assert page.height < PAGE_HEIGHT / 2


@pytest.mark.parametrize(("num_frames", "shape"), [(1, {}), (4, {}), (3, {"width": 90, "height": 160})])
def test_forty_segments_fit_on_two_sheets_of_a4(tmp_path: Path, num_frames: int, shape: dict[str, int]) -> None:
    lengths = np.random.default_rng(0).lognormal(2, 0.8, 40).clip(1.5, 90)
    pages = board_of(tmp_path / "board.png", in_a_row(*lengths), num_frames, **shape)
    assert len(pages) <= 2
    assert all(page.height <= PAGE_HEIGHT for page in pages)


def test_many_segments_are_several_numbered_pages_of_one_size(tmp_path: Path) -> None:
    pages = board_of(tmp_path / "board.jpg", [segment(5 * i, 5 * i + 5, "a man " * (1 + i % 9)) for i in range(150)])
    names = [f"board-p{number:03d}.jpg" for number in range(1, len(pages) + 1)]
    assert sorted(path.name for path in tmp_path.iterdir()) == names
    assert len(names) > 2
    assert {page.size for page in pages} == {(WIDTH, PAGE_HEIGHT)}


def card_widths(page: Image.Image) -> list[int]:
    """Columns of pixels with frames in the first row of cards, one number for each frame or group without a gap."""
    rows = np.flatnonzero(blue_pixels(page).any(axis=1))
    columns = blue_pixels(page)[rows[0] + 5]
    starts = np.flatnonzero(np.diff(columns.astype(int)) == 1)
    ends = np.flatnonzero(np.diff(columns.astype(int)) == -1)
    return (ends - starts).tolist()


def columns(length: float, *, num_frames: int, num_columns: int = 6, aspect: float = 16 / 9) -> tuple[int, int]:
    """Columns for frames and for text of a segment's card."""
    scene = storyboard._Scene(0, 1, "", None, [storyboard._StoredFrame(0, aspect, 0, 0)] * num_frames)
    share = storyboard._share(scene, storyboard._Grid(num_columns, aspect, 1.0), length)
    return share.num_frames, share.text_columns


def test_the_longer_a_segment_the_more_of_its_frames_are_shown() -> None:
    lengths = (0.1, 1.0, 2.0, 4.0, 100.0)
    assert [columns(length, num_frames=6)[0] for length in lengths] == [1, 1, 2, 4, 6]


def test_text_is_below_the_frames_but_beside_those_of_a_long_segment_with_few() -> None:
    assert columns(1, num_frames=1) == (1, 0)
    assert columns(3, num_frames=3) == (3, 0)
    assert columns(3, num_frames=1) == (1, 1)
    assert columns(1, num_frames=0) == (0, 1)


def test_text_is_beside_portrait_frames() -> None:
    assert columns(1, num_frames=2, num_columns=13, aspect=9 / 16) == (1, 2)


def test_rows_are_filled_with_frames(tmp_path: Path) -> None:
    # One segment has the whole width; of 30 frames as many are shown as there are columns.
    for count, shown in ((1, 1), (3, 3), (30, 4)):
        (page,) = board_of(tmp_path / f"{count}.png", in_a_row(30), count)
        assert len(card_widths(page)) == shown


def test_few_segments_have_larger_frames_than_many(tmp_path: Path) -> None:
    (few,) = board_of(tmp_path / "few.png", in_a_row(*[5] * 4))
    many = board_of(tmp_path / "many.png", in_a_row(*[5] * 100))[0]
    assert card_widths(few)[0] > 1.5 * card_widths(many)[0]


def test_the_ribbon_shows_the_whole_film_in_the_colours_of_confidence(tmp_path: Path) -> None:
    film = [segment(0, 10, confidence=0.0), segment(10, 15, confidence=1.0), segment(15, 20)]
    (page,) = board_of(tmp_path / "board.png", film)
    ribbon = np.asarray(page)[MARGIN + 90]
    inner = WIDTH - 2 * MARGIN
    assert tuple(ribbon[MARGIN + inner // 4]) == confidence_colour(0.0)
    assert tuple(ribbon[MARGIN + inner * 5 // 8]) == confidence_colour(1.0)
    assert np.ptp(ribbon[MARGIN + inner * 7 // 8]) < 20  # grey


def test_on_the_ribbon_the_part_of_each_page_is_higher(tmp_path: Path) -> None:
    pages = board_of(tmp_path / "board.png", [segment(5 * i, 5 * i + 5, confidence=1.0) for i in range(150)])
    covered = []
    for page in pages:
        low = (np.asarray(page)[MARGIN + 100, MARGIN:-MARGIN] == confidence_colour(1.0)).all(axis=1)
        covered.append(np.flatnonzero(low))
    starts, ends = [one.min() for one in covered], [one.max() for one in covered]
    assert starts[0] < 10
    assert ends[-1] > WIDTH - 2 * MARGIN - 20
    assert all(0 <= start - end < 20 for end, start in zip(ends, starts[1:], strict=False))


@pytest.mark.parametrize("shape", [(90, 400), (1000, 20), (1, 1), (1080, 1920)])
def test_frames_of_any_shape_and_long_texts_fit(tmp_path: Path, shape: tuple[int, int]) -> None:
    board = Storyboard(tmp_path / "board.png", title="a very long name of a film " * 20 + "猫.mp4")
    board.add(segment(0, 30, "a cat " * 40, 0.5), blue(4, width=shape[0], height=shape[1]))
    board.add(segment(30, 31, ""), blue(4, width=160))
    board.add(segment(31, 99, "c" * 200, 1.0), [])
    board.add(segment(99, 99, "a cat", 0.0), blue(1))
    board.end()
    with Image.open(tmp_path / "board.png") as page:
        dark = np.asarray(page.convert("L")) < 100
        assert not dark[:, :38].any()
        assert not dark[:, -38:].any()


def test_a_board_that_is_ended_early_shows_what_was_added(tmp_path: Path) -> None:
    board = Storyboard(tmp_path / "board.png", title="film.mp4")
    with pytest.raises(KeyboardInterrupt):
        try:
            for number, one in enumerate(in_a_row(*[5] * 9)):
                if number == 3:
                    raise KeyboardInterrupt
                board.add(one, blue(1))
        finally:
            board.end()
    with Image.open(tmp_path / "board.png") as page:
        assert len(card_widths(page)) == 3


def test_no_segments_no_pages_and_ending_twice_is_harmless(tmp_path: Path) -> None:
    board = Storyboard(tmp_path / "board.png", title="film.mp4")
    board.end()
    board.end()
    assert board.pages == []
    assert list(tmp_path.iterdir()) == []


def test_frames_are_kept_small_and_beyond_a_limit_on_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (1080, 1920, 3), dtype=np.uint8)
    content, aspect = storyboard._jpeg(Thumbnail(0, 0.0, noise))
    assert len(content) <= 2 * MAX_FRAME_BYTES  # nothing compresses worse than noise
    assert aspect == pytest.approx(16 / 9)
    monkeypatch.setattr(storyboard, "MEMORY_BYTES", 5000)
    board = Storyboard(tmp_path / "board.png", title="film.mp4")
    for one in in_a_row(*[5] * 20):
        board.add(one, blue(30))
    assert board._frames._rolled
    assert all(len(scene.frames) <= storyboard.MAX_CARD_FRAMES for scene in board._scenes)
    board.end()
    assert len(board.pages) == 1
