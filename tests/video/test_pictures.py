"""Still pictures."""

import contextlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from picknet.video.frame import GLANCE_SIZE, Frame
from picknet.video.pictures import PICTURE_SUFFIXES, UnreadablePicture, is_picture, read_picture
from picknet.video.source import VIDEO_SUFFIXES

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


def test_a_video_is_not_a_picture() -> None:
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


def test_transparent_parts_are_on_white(tmp_path: Path) -> None:
    # Black at half the opacity over white: 255 · (1 − 128/255) = 127. Red at 51/255 = 1/5: 4/5 of white and 1/5 of red.
    path = tmp_path / "alpha.png"
    quarters((0, 0, 0, 128), (255, 0, 0, 51), (0, 255, 0, 255), (9, 9, 9, 0), mode="RGBA").save(path)
    assert middles(path) == [(127, 127, 127), (255, 204, 204), GREEN, WHITE]
    quarters((0, 128), (0, 255), (200, 0), (200, 255), mode="LA").save(path)
    assert middles(path) == [(127, 127, 127), BLACK, WHITE, (200, 200, 200)]


def test_a_palette_is_applied_and_may_be_transparent(tmp_path: Path) -> None:
    picture = quarters(0, 1, 2, 3, mode="P")
    picture.putpalette([*RED, *GREEN, *BLUE, *BLACK])
    plain, one, each = (tmp_path / f"{name}.png" for name in ("plain", "one", "each"))
    picture.save(plain)
    picture.save(one, transparency=1)
    picture.save(each, transparency=bytes([255, 0, 51, 128]))
    assert middles(plain) == [RED, GREEN, BLUE, BLACK]
    assert middles(one) == [RED, WHITE, BLUE, BLACK]
    assert middles(each) == [RED, WHITE, (204, 204, 255), (127, 127, 127)]


def test_a_transparent_colour_is_white(tmp_path: Path) -> None:
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


def test_a_cmyk_picture_is_read(tmp_path: Path) -> None:
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


def test_a_large_jpeg_is_not_decoded_too_small(tmp_path: Path) -> None:
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


def test_what_is_not_a_picture_is_refused_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
