"""The page that figures are drawn on: size, colours, type, layout, and writing it to a file.

A figure is made of smaller images (tiles, paragraphs) placed below or beside each other on white paper.
"""

import functools
import io
import math
import os
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageColor, ImageDraw, ImageFont

from picknet.errors import PicknetError
from picknet.files import written_whole

WIDTH = 1600
"""Pixels: sharp at twice the 800 points that a README or half a slide gives an image."""
MARGIN = 40
INNER_WIDTH = WIDTH - 2 * MARGIN
GAP = 4
BORDER = 6

INK, GREY, FAINT, PAPER = "#16191d", "#6b7280", "#d6dae0", "#ffffff"
GREEN, DARK_GREEN = "#19b75b", "#0c8a41"
COLOURS = ("#2563eb", "#dc2626", "#0891b2", "#d97706", "#8b5cf6", "#db2777", "#65a30d", "#7c5b3b")
"""Colours that can be told apart from each other, and from green and grey."""
CONFIDENCE_COLOURS = ("#f7b538", "#9cc04b", "#0b7a43")
"""For confidences 0, ½ and 1. Lightness falls steadily, so the scale survives grey printers and colour blindness."""

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    # A low level is several times as fast, and the file little larger: photographs hardly compress.
    ".png": ("PNG", {"compress_level": 2}),
    ".jpg": ("JPEG", {"quality": 92, "subsampling": 0}),
    ".jpeg": ("JPEG", {"quality": 92, "subsampling": 0}),
    ".webp": ("WEBP", {"quality": 90}),
}
"""File suffix -> Pillow's name of the format and its options."""
MAX_SIDES = {"JPEG": 65_500, "WEBP": 16_383}
"""Pixels that a side may have in formats with a limit."""

Words = Sequence[tuple[str, str]]
"""Words with their colours."""


class BadFigure(PicknetError):
    """A figure that cannot be drawn or written as asked."""


class Picture(Protocol):
    """What a figure needs of a frame; `picknet.video.frame.Frame` and `Thumbnail` have it."""

    @property
    def index(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    def pixels(self) -> NDArray[np.uint8]:
        """(height, width, 3), RGB, upright."""
        ...


@dataclass(frozen=True)
class Thumbnail:
    """A small copy of a frame, kept for a figure so that the frame itself can be released."""

    index: int
    seconds: float
    image: NDArray[np.uint8]
    """(height, width, 3), RGB, upright."""

    @classmethod
    def of(cls, frame: Picture, *, max_side: int = 480) -> "Thumbnail":
        """max_side: the longer side in pixels; smaller frames keep their size."""
        return cls(frame.index, frame.seconds, _small(frame, max_side))

    def pixels(self) -> NDArray[np.uint8]:
        return self.image


def _small(frame: Picture, max_side: int) -> NDArray[np.uint8]:
    scaled = getattr(frame, "thumbnail", None)  # the decoder's frames scale and convert in one step
    if scaled is not None:
        small: NDArray[np.uint8] = scaled(max_side)
        return small
    image = Image.fromarray(frame.pixels())
    image.thumbnail((max_side, max_side), Image.Resampling.BICUBIC)
    return np.asarray(image)


def save(image: Image.Image, path: str | os.PathLike[str]) -> None:
    """Write the image in the format its suffix names, completely or not at all."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise BadFigure(f"{path}: no picture format {suffix or 'without a suffix'} (possible: {', '.join(FORMATS)})")
    name, options = FORMATS[suffix]
    if max(image.size) > MAX_SIDES.get(name, max(image.size)):
        size, limit = f"{image.width} x {image.height}", f"{MAX_SIDES[name]:,}"
        raise BadFigure(f"{path}: {size} pixels are too many for {name}, whose sides have at most {limit}; use .png")
    with written_whole(path) as temporary:
        content = io.BytesIO()  # writing to a file, Pillow's JPEG encoder would ignore a full disk
        image.save(content, format=name, **options)
        temporary.write_bytes(content.getvalue())


# --- Layout ---


def page(content: Image.Image, *, height: int | None = None) -> Image.Image:
    """The content on paper, centred between the margins. height: of the page; by default as high as the content."""
    paper = Image.new("RGB", (WIDTH, height or content.height + 2 * MARGIN), PAPER)
    paper.paste(content, ((WIDTH - content.width) // 2, MARGIN))
    return paper


def below(images: Sequence[Image.Image], gap: int, *, centred: bool = False) -> Image.Image:
    width = max(image.width for image in images)
    column = Image.new("RGB", (width, sum(image.height for image in images) + gap * (len(images) - 1)), PAPER)
    y = 0
    for image in images:
        column.paste(image, ((width - image.width) // 2 if centred else 0, y))
        y += image.height + gap
    return column


def beside(images: Sequence[Image.Image], gap: int) -> Image.Image:
    size = (sum(image.width for image in images) + gap * (len(images) - 1), max(image.height for image in images))
    row = Image.new("RGB", size, PAPER)
    x = 0
    for image in images:
        row.paste(image, (x, 0))
        x += image.width + gap
    return row


def fit(image: Image.Image, box: tuple[int, int]) -> Image.Image:
    """The image scaled to the largest size that fits into `box` (width, height)."""
    scale = min(box[0] / image.width, box[1] / image.height)
    size = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    return image if size == image.size else image.resize(size, Image.Resampling.BICUBIC)


def tile(image: Image.Image, box: tuple[int, int], *, label: str | None, dimming: float = 0.0) -> Image.Image:
    """The image, fitted into `box`: framed in green with its label, or without one faded into the paper."""
    image = fit(image, box)
    framed = Image.new("RGB", (box[0] + 2 * BORDER, box[1] + 2 * BORDER), PAPER)
    left, top = (framed.width - image.width) // 2, (framed.height - image.height) // 2
    if label is None:
        image = Image.blend(image, Image.new("RGB", image.size, PAPER), dimming)
        framed.paste(image, (left, top), rounded(image.size, BORDER))
        return framed
    outer = image.width + 2 * BORDER, image.height + 2 * BORDER
    framed.paste(GREEN, (left - BORDER, top - BORDER), rounded(outer, 2 * BORDER))
    framed.paste(image, (left, top), rounded(image.size, BORDER))
    font = typeface(min(max(max(box) // 9, 11), 24))
    tag = (math.ceil(font.getlength(label)) + 14, sum(font.getmetrics()) + 2)
    bottom = top + image.height
    framed.paste(GREEN, (left, bottom - tag[1]), rounded(tag, BORDER))
    ImageDraw.Draw(framed).text((left + 6, bottom - tag[1] / 2), label, fill=PAPER, font=font, anchor="lm")
    return framed


@functools.lru_cache(maxsize=64)
def rounded(size: tuple[int, int], radius: int) -> Image.Image:
    """A mask with smooth round corners: drawn at four times the size and scaled down."""
    mask = Image.new("L", (size[0] * 4, size[1] * 4))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, mask.width - 1, mask.height - 1), radius * 4, fill=255)
    return mask.resize(size, Image.Resampling.BOX)


def confidence_colour(confidence: float | None) -> tuple[int, int, int]:
    """RGB on the scale CONFIDENCE_COLOURS; light grey where there is no confidence."""
    if confidence is None:
        red, green, blue = ImageColor.getrgb(FAINT)[:3]
        return red, green, blue
    stops = np.array([ImageColor.getrgb(colour) for colour in CONFIDENCE_COLOURS])
    at = np.linspace(0, 1, len(stops))
    red, green, blue = (round(float(np.interp(confidence, at, channel))) for channel in stops.T)
    return red, green, blue


# --- Type ---


@functools.cache
def typeface(size: int) -> ImageFont.FreeTypeFont:
    found = ImageFont.load_default(size)
    if not isinstance(found, ImageFont.FreeTypeFont):
        raise BadFigure("figures need a Pillow with FreeType (`pip install pillow` brings one)")
    return found


def paragraph(words: Words, *, size: int, width: int) -> Image.Image:
    """Coloured words, centred, in lines of similar length, none wider than `width`."""
    font = typeface(size)
    lines = wrapped(words, size=size, width=width)
    # As narrow as the same number of lines allows, so that no last word stands alone.
    for narrower in range(width - size, size, -size) if len(lines) > 1 else ():
        closer = wrapped(words, size=size, width=narrower)
        if len(closer) > len(lines):
            break
        lines = closer
    line_height = round(size * 1.3)
    image = Image.new("RGB", (width, line_height * len(lines)), PAPER)
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        x = (width - _line_length(line, size)) / 2
        for piece, colour in line:
            draw.text((x, line_height * (number + 0.5)), piece, fill=colour, font=font, anchor="lm")
            x += length(piece, size) + length(" ", size)
    return image


def coloured(text: str, colour: str) -> Words:
    return [(word, colour) for word in text.split()]


def wrapped(words: Words, *, size: int, width: float) -> list[list[tuple[str, str]]]:
    """The words in lines no wider than `width`; a word that is wider itself is cut."""
    lines: list[list[tuple[str, str]]] = [[]]
    used = 0.0
    for word, colour in words:
        for piece in pieces(printable(word), size=size, width=width):
            added = length(piece, size) + (length(" ", size) if lines[-1] else 0.0)
            if lines[-1] and used + added > width:
                lines.append([])
                used, added = 0.0, length(piece, size)
            lines[-1].append((piece, colour))
            used += added
    return lines


def pieces(word: str, *, size: int, width: float) -> list[str]:
    """The word, cut where it is wider than a line."""
    if length(word, size) <= width:
        return [word]
    parts = [""]
    for character in word:
        if parts[-1] and length(parts[-1] + character, size) > width:
            parts.append("")
        parts[-1] += character
    return parts


def shortened(text: str, *, size: int, width: float) -> str:
    """The text, cut with an ellipsis where it is wider than `width`."""
    if length(text, size) <= width:
        return text
    return pieces(text, size=size, width=width - length("…", size))[0].rstrip() + "…"


@functools.lru_cache(maxsize=4096)
def length(text: str, size: int) -> float:
    """Pixels from the start of the text to its end."""
    return typeface(size).getlength(text)


def _line_length(line: Words, size: int) -> float:
    return sum(length(piece, size) for piece, _ in line) + length(" ", size) * (len(line) - 1)


@functools.cache
def _glyph(character: str) -> str:
    """The character if the built-in font can draw it, else its nearest plain letters, else a question mark."""
    no_glyph = bytes(typeface(24).getmask("\uffff"))
    plain = {"ß": "ss", "ø": "o", "ł": "l", "æ": "ae", "–": "-", "—": "-", "−": "-", "×": "x"}.get(character)
    letters = plain or "".join(c for c in unicodedata.normalize("NFKD", character) if not unicodedata.combining(c))
    for text in (character, letters):
        if text.isprintable() and text and all(bytes(typeface(24).getmask(c)) != no_glyph for c in text):
            return text
    return "" if unicodedata.combining(character) else "?"


def printable(text: str) -> str:
    """The text in letters that the built-in font has."""
    return "".join(map(_glyph, unicodedata.normalize("NFC", text)))


def counted(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)
