"""Still pictures, read as a CNN is given them."""

import os
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from picknet.errors import PicknetError

if TYPE_CHECKING:
    from PIL.Image import Image


PICTURE_SUFFIXES = frozenset({".avif", ".bmp", ".jpeg", ".jpg", ".png", ".webp"})
"""The same for pictures."""


class UnreadablePicture(PicknetError):
    """A file that is no picture; the message starts with its path."""


def is_picture(path: str | os.PathLike[str]) -> bool:
    """Whether the file's name is a picture's."""
    return Path(path).suffix.lower() in PICTURE_SUFFIXES


def read_picture(path: str | os.PathLike[str], size: int) -> NDArray[np.uint8]:
    """The picture in colour and upright, squashed to (size, size, 3): RGB, over white where it is see-through.

    Of an animated one it is the first frame.
    """
    from PIL import Image, UnidentifiedImageError

    try:
        # Pillow warns of a picture so big that it may be a trap; its other warnings are about metadata.
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(path, formats=_PICTURE_FORMATS) as picture:
                picture.draft(None, (size, size))  # a big JPEG is decoded at the smallest scale that suffices
                turns, mirrored = _UPRIGHT.get(picture.getexif().get(_ORIENTATION, 1), (0, False))
                square = _opaque(picture).resize((size, size), Image.Resampling.BICUBIC, reducing_gap=2.0)
    except (Image.DecompressionBombWarning, Image.DecompressionBombError):
        limit = (Image.MAX_IMAGE_PIXELS or 0) / 1e6
        raise UnreadablePicture(f"{path}: too big a picture (at most {limit:.0f} million pixels)") from None
    except UnidentifiedImageError:
        raise UnreadablePicture(f"{path}: not a known picture format ({', '.join(_PICTURE_FORMATS)})") from None
    except Exception as error:  # Pillow's readers meet damage with errors of every kind
        what = getattr(error, "strerror", None) or str(error) or type(error).__name__
        raise UnreadablePicture(f"{path}: cannot be read ({what})") from error
    pixels = np.asarray(square)
    return np.array(np.rot90(pixels[:, ::-1] if mirrored else pixels, turns), order="C")


_PICTURE_FORMATS = ("JPEG", "PNG", "WEBP", "AVIF", "BMP", "GIF")
"""What a picture may be, whatever its name says. Some of the other formats that Pillow knows start programs."""
_ORIENTATION = 0x0112

_UPRIGHT = {2: (0, True), 3: (2, False), 4: (2, True), 5: (1, True), 6: (3, False), 7: (3, True), 8: (1, False)}
"""EXIF orientation → how often to turn the picture left by 90° to set it upright, and whether to mirror it before."""


def _opaque(picture: "Image") -> "Image":
    """The picture as RGB, over white where it is see-through."""
    from PIL import Image

    if picture.mode.startswith("I"):
        # Grey in 16 bits, of which Pillow would keep only what is darker than 256. 65535 / 257 = 255.
        grey = np.rint(np.clip(np.asarray(picture, np.float64), 0, 65535) / 257)
        return Image.fromarray(grey.astype(np.uint8)).convert("RGB")
    if picture.has_transparency_data:
        picture = picture.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, "white"), picture).convert("RGB")
    return picture.convert("RGB")
