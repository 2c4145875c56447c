"""Figures of one clip: the contact sheet with its picks, the strip of online captioning, the paper's examples."""

import difflib
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from PIL import Image, ImageDraw

from picknet.model.confidence import written
from picknet.picking.picker import Pick
from picknet.show.page import (
    BORDER,
    DARK_GREEN,
    GAP,
    GREY,
    INK,
    INNER_WIDTH,
    PAPER,
    BadFigure,
    Picture,
    Thumbnail,
    below,
    beside,
    coloured,
    confidence_colour,
    length,
    page,
    paragraph,
    printable,
    rounded,
    shortened,
    tile,
    typeface,
)
from picknet.timecode import duration, short_clock

DIMMING = 0.15
"""How far the frames that were not picked fade into the paper: they must stay recognisable."""
MAX_TILE_HEIGHT = 480
MAX_COLUMNS = 20
MAX_STRIP_COLUMNS = 5
MAX_EXAMPLE_COLUMNS = 10
MAX_EXAMPLE_HEIGHT = 200


# --- The contact sheet ---


def contact_sheet(
    frames: Sequence[Picture],
    picks: Sequence[Pick],
    text: str,
    *,
    title: str = "",
    confidence: float | None = None,
    seconds: float | None = None,
) -> Image.Image:
    """All sampled frames in reading order, the picked ones framed in green with their times, and the caption below.

    confidence: of the caption. seconds: the video's length. Both are left out where they are None.
    """
    if not frames:
        raise BadFigure("a contact sheet needs at least one frame")
    first = frames[0].pixels()
    aspect = first.shape[1] / first.shape[0]
    columns = _num_columns(len(frames), aspect)
    box = _tile_box(columns, aspect)
    tenths = max(frame.seconds for frame in frames) < 60
    # A short clip may give the same frame several times: each pick marks one of them.
    remaining = Counter(pick.index for pick in picks)
    tiles = []
    for frame in frames:
        is_picked = remaining[frame.index] > 0
        remaining[frame.index] -= 1
        label = short_clock(frame.seconds, tenths=tenths) if is_picked else None
        tiles.append(tile(_image(frame, box), box, label=label, dimming=DIMMING))
    grid = below([beside(tiles[start : start + columns], GAP) for start in range(0, len(tiles), columns)], GAP)
    caption = paragraph(coloured(text, INK), size=52 if len(text) <= 120 else 40, width=INNER_WIDTH)
    facts = [f"{len(picks)} of {len(frames)} frames picked"]
    if seconds is not None:
        facts.insert(0, duration(seconds))
    return page(below([grid, below([caption, _facts(title, facts, confidence)], 10)], 24, centred=True))


def tile_side(num_frames: int) -> int:
    """The longer side of the frames on a contact sheet of `num_frames`, in pixels: larger thumbnails are a waste."""
    aspects = (9 / 16, 3 / 4, 1.0, 4 / 3, 16 / 9)
    return max(max(_tile_box(_num_columns(num_frames, aspect), aspect)) for aspect in aspects)


def _facts(title: str, facts: Sequence[str], confidence: float | None) -> Image.Image:
    """One grey line: the title, shortened where necessary, the facts, and the confidence after a dot in its colour."""
    size, dot, gap = 24, 20, 8
    sure = "" if confidence is None else f"confidence {written(confidence)}"
    sure_width = 2 * gap + dot + gap + length(sure, size) if sure else 0.0
    line = " · ".join(facts)
    if title:
        room = INNER_WIDTH - sure_width - length(f" · {line}", size)
        line = f"{shortened(printable(title), size=size, width=room)} · {line}"
    image = Image.new("RGB", (INNER_WIDTH, round(size * 1.3)), PAPER)
    draw = ImageDraw.Draw(image)
    x, y = (INNER_WIDTH - length(line, size) - sure_width) / 2, image.height / 2
    draw.text((x, y), line, fill=GREY, font=typeface(size), anchor="lm")
    if sure:
        x += length(line, size) + 2 * gap
        _draw_confidence(image, (x, y), confidence, sure, size=size, dot=dot, gap=gap)
    return image


def _certainty(confidence: float) -> Image.Image:
    """A dot in the colour of the confidence, and its number."""
    size, dot, gap = 20, 16, 6
    number = written(confidence)
    image = Image.new("RGB", (math.ceil(dot + gap + length(number, size)), round(size * 1.3)), PAPER)
    _draw_confidence(image, (0, image.height / 2), confidence, number, size=size, dot=dot, gap=gap)
    return image


def _draw_confidence(
    image: Image.Image,
    place: tuple[float, float],
    confidence: float | None,
    text: str,
    *,
    size: int,
    dot: int,
    gap: int,
) -> None:
    """A dot in the colour of the confidence, and a text behind it. place: the middle of the dot's left edge."""
    x, y = place
    image.paste(confidence_colour(confidence), (round(x), round(y - dot / 2)), rounded((dot, dot), dot // 2))
    ImageDraw.Draw(image).text((x + dot + gap, y), text, fill=GREY, font=typeface(size), anchor="lm")


def _num_columns(num_tiles: int, aspect: float) -> int:
    """A grid about a quarter as high as wide, with as few empty places at its end as possible: 30 frames in 3 × 10."""

    def badness(columns: int) -> float:
        rows = math.ceil(num_tiles / columns)
        return abs(rows / (columns * aspect) - 0.26) + 2 * (rows * columns - num_tiles) / num_tiles

    return min(range(1, min(num_tiles, MAX_COLUMNS) + 1), key=badness)


def _tile_box(columns: int, aspect: float, *, gap: int = GAP) -> tuple[int, int]:
    """(width, height) of a frame where `columns` of them fill the page's width."""
    width = (INNER_WIDTH - (columns - 1) * gap) / columns - 2 * BORDER
    width = min(width, MAX_TILE_HEIGHT * aspect)
    return max(int(width), 1), max(round(width / aspect), 1)


def _image(frame: Picture, box: tuple[int, int]) -> Image.Image:
    small = frame if isinstance(frame, Thumbnail) else Thumbnail.of(frame, max_side=max(box))
    return Image.fromarray(small.pixels())


# --- Online captioning ---


class Moment(NamedTuple):
    """A picked frame of a stream, and the caption at that time."""

    frame: Picture
    text: str
    confidence: float | None = None
    """Of the caption; left out where it is None."""


def online_strip(moments: Sequence[Moment]) -> Image.Image:
    """Online captioning: each picked frame in order with the caption at that time, its new words in green."""
    if not moments:
        raise BadFigure("an online strip needs at least one pick")
    images = [Image.fromarray(moment.frame.pixels()) for moment in moments]
    columns = math.ceil(len(images) / math.ceil(len(images) / MAX_STRIP_COLUMNS))
    box = _tile_box(max(columns, 3), images[0].width / images[0].height, gap=24)
    tenths = max(moment.frame.seconds for moment in moments) < 60
    cards = []
    for number, (image, moment) in enumerate(zip(images, moments, strict=True)):
        words = _coloured_changes(moments[number - 1].text if number else moment.text, moment.text)
        framed = tile(image, box, label=short_clock(moment.frame.seconds, tenths=tenths))
        caption = paragraph(words, size=26, width=framed.width - 2 * BORDER)
        sure = [] if moment.confidence is None else [_certainty(moment.confidence)]
        cards.append(below([framed, caption, *sure], 12, centred=True))
    return page(below([beside(cards[start : start + columns], 24) for start in range(0, len(cards), columns)], 40))


def _coloured_changes(before: str, now: str) -> list[tuple[str, str]]:
    """The words of `now`; those that are not in `before` at that place in green."""
    words = now.split()
    kept: set[int] = set()
    for block in difflib.SequenceMatcher(None, before.split(), words, autojunk=False).get_matching_blocks():
        kept.update(range(block.b, block.b + block.size))
    return [(word, INK if number in kept else DARK_GREEN) for number, word in enumerate(words)]


# --- Examples ---


@dataclass(frozen=True)
class Strip:
    """A clip on the example sheet: its picked frames, the caption, human captions and a note."""

    frames: Sequence[Picture]
    text: str
    references: Sequence[str]
    note: str


def example_sheet(strips: Sequence[Strip], *, title: str = "") -> Image.Image:
    """One clip below the other: its picks beside each other, the caption, and human captions beneath."""
    if not strips:
        raise BadFigure("an example sheet needs at least one clip")
    heading = [paragraph(coloured(title, GREY), size=28, width=INNER_WIDTH)] if title else []
    return page(below([*heading, *map(_strip, strips)], 56, centred=True))


def _strip(strip: Strip) -> Image.Image:
    rows = []
    # At least six places in a row, so that a single pick is no larger than one of several.
    columns = min(max(len(strip.frames), 6), MAX_EXAMPLE_COLUMNS)
    for start in range(0, len(strip.frames), columns):
        images = [(frame, Image.fromarray(frame.pixels())) for frame in strip.frames[start : start + columns]]
        box = _tile_box(columns, images[0][1].width / images[0][1].height)
        box = (min(box[0], round(box[0] * MAX_EXAMPLE_HEIGHT / box[1])), min(box[1], MAX_EXAMPLE_HEIGHT))
        labels = [short_clock(frame.seconds, tenths=frame.seconds < 60) for frame, _ in images]
        tiles = [tile(image, box, label=label) for (_, image), label in zip(images, labels, strict=True)]
        rows.append(beside(tiles, GAP))
    words = [
        paragraph(coloured(strip.text, INK), size=36, width=INNER_WIDTH),
        *(paragraph(coloured(reference, GREY), size=28, width=INNER_WIDTH) for reference in strip.references),
        paragraph(coloured(strip.note, GREY), size=20, width=INNER_WIDTH),
    ]
    return below([*rows, below(words, 4)], 10, centred=True)
