"""The page that figures are drawn on: its size, colours and letters."""

import functools
import unicodedata

from PIL import ImageFont

from picknet.errors import PicknetError

WIDTH = 1600
"""Pixels: sharp at twice the 800 points that a README or half a slide gives a picture."""
MARGIN = 40

INK, GREY, FAINT, PAPER = "#16191d", "#6b7280", "#d6dae0", "#ffffff"

GREEN, DARK_GREEN = "#19b75b", "#0c8a41"

COLOURS = ("#2563eb", "#dc2626", "#0891b2", "#d97706", "#8b5cf6", "#db2777", "#65a30d", "#7c5b3b")
"""Colours that can be told from each other, and from green and grey."""


class BadFigure(PicknetError):
    """A picture that cannot be drawn or written as asked."""


@functools.cache
def typeface(size: int) -> ImageFont.FreeTypeFont:
    found = ImageFont.load_default(size)
    if not isinstance(found, ImageFont.FreeTypeFont):
        raise BadFigure("figures need a Pillow with FreeType (`pip install pillow` brings one)")
    return found


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
