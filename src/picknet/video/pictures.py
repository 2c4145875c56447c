"""Still pictures, decoded to the input of the CNN."""

import contextlib
import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
from numpy.typing import NDArray

from picknet.errors import PicknetError

if TYPE_CHECKING:
    from PIL.Image import Image


PICTURE_SUFFIXES = frozenset({".avif", ".bmp", ".jpeg", ".jpg", ".png", ".webp"})
"""Lower-case file name endings of pictures."""


class UnreadablePicture(PicknetError):
    """A file that is not a picture; the message starts with its path."""


def is_picture(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a picture by its name."""
    return Path(path).suffix.lower() in PICTURE_SUFFIXES


def read_picture(path: str | os.PathLike[str], size: int) -> NDArray[np.uint8]:
    """The picture upright, squashed to RGB uint8 (size, size, 3), transparent parts on white.

    Of an animated picture: the first frame.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        # Pillow warns of pictures so large that they may be an attack; its other warnings are about metadata.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_PICTURE_FORMATS) as picture:
                picture.draft(None, (size, size))  # decodes a large JPEG at the smallest sufficient scale
                turns, mirrored = _UPRIGHT.get(picture.getexif().get(_ORIENTATION, 1), (0, False))
                square = _opaque(picture).resize((size, size), Image.Resampling.BICUBIC, reducing_gap=2.0)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        limit = (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        raise UnreadablePicture(f"{path}: too big a picture (at most {limit:.0f} million pixels)") from None
    except UnidentifiedImageError:
        raise UnreadablePicture(f"{path}: not a known picture format ({', '.join(_PICTURE_FORMATS)})") from None
    except Exception as error:  # Pillow's readers raise errors of every kind on damage
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadablePicture(f"{path}: cannot be read ({what})") from error
    pixels = np.asarray(square)
    return np.array(np.rot90(pixels[:, ::-1] if mirrored else pixels, turns), order="C")


def mirrored_by_exif(file: BinaryIO) -> bool:
    """Whether a picture is mirrored by its EXIF data; False where there are none, or for another file."""
    from PIL import Image

    with contextlib.suppress(Exception), Image.open(file, formats=_PICTURE_FORMATS) as picture:  # as `read_picture`
        return _UPRIGHT.get(picture.getexif().get(_ORIENTATION, 1), (0, False))[1]
    return False


_PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "GIF")
"""Accepted formats, whatever the file's name says. Some other formats of Pillow start programs."""
_ORIENTATION = 0x0112

_UPRIGHT = {2: (0, True), 3: (2, False), 4: (2, True), 5: (1, True), 6: (3, False), 7: (3, True), 8: (1, False)}
"""EXIF orientation → number of 90° turns to the left that set the picture upright, and whether to mirror it first."""


def _opaque(picture: "Image") -> "Image":
    """The picture as RGB, transparent parts on white."""
    from PIL import Image

    if picture.mode.startswith("I"):
        # 16-bit grey, which Pillow would clip at 255. 65535 / 257 = 255.
        grey = np.rint(np.clip(np.asarray(picture, np.float64), 0, 65535) / 257)
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture.convert("RGB")
