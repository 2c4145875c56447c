"""Pictures for a talk: the contact sheet with its picks, the paper's histograms and examples, the online strip; and
for an editor, the storyboard of a film.

Every figure is made of smaller pictures (tiles, paragraphs, charts) set below or beside each other on a white page.
"""

import difflib
import io
import math
import os
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

from picknet.files import written_whole
from picknet.picking.picker import Pick
from picknet.show.page import DARK_GREEN, FAINT, GREEN, GREY, INK, MARGIN, PAPER, WIDTH, BadFigure, printable, typeface
from picknet.timeline import Segment, clock

GAP = 4
BORDER = 6
DIMMING = 0.45
"""How far the frames that were not picked fade into the paper."""
MAX_TILE_HEIGHT = 480
MAX_STRIP_COLUMNS = 5
MAX_EXAMPLE_COLUMNS = 10
MAX_EXAMPLE_HEIGHT = 200
STORY_FRAMES = 4
"""At most so many frames in a row of a storyboard."""
STORY_BOX = (212, 159)
"""(width, height) that a frame there has to fit into."""
STORY_TIME_WIDTH = 196
STORY_PADDING = 18
PAGE_HEIGHT = 2262
"""Pixels: a page of a storyboard has the sides of a sheet of A4."""

FORMATS: dict[str, tuple[str, dict[str, Any]]] = {
    ".png": ("PNG", {"optimize": True}),
    ".jpg": ("JPEG", {"quality": 92, "subsampling": 0}),
    ".jpeg": ("JPEG", {"quality": 92, "subsampling": 0}),
    ".webp": ("WEBP", {"quality": 90}),
}


class Picture(Protocol):
    """What a figure needs of a frame; `picknet.video.Frame` and `Thumbnail` have it."""

    @property
    def index(self) -> int: ...
    @property
    def seconds(self) -> float: ...
    def pixels(self) -> NDArray[np.uint8]: ...


@dataclass(frozen=True)
class Thumbnail:
    """A small copy of a frame, to keep for a figure while the frame itself is let go."""

    index: int
    seconds: float
    image: NDArray[np.uint8]
    """(height, width, 3), RGB, upright."""

    @classmethod
    def of(cls, frame: Picture, *, max_side: int = 480) -> "Thumbnail":
        image = Image.fromarray(frame.pixels())
        image.thumbnail((max_side, max_side), Image.Resampling.LANCZOS)
        return cls(frame.index, frame.seconds, np.asarray(image))

    def pixels(self) -> NDArray[np.uint8]:
        return self.image


# --- The figures ---


def contact_sheet(frames: Sequence[Picture], picks: Sequence[Pick], text: str, *, title: str = "") -> Image.Image:
    """All sampled frames in reading order, the picked ones framed in green with their time, the sentence below."""
    if not frames:
        raise BadFigure("a contact sheet needs at least one frame")
    images = [Image.fromarray(frame.pixels()) for frame in frames]
    aspect = images[0].width / images[0].height
    columns = _num_columns(len(images), aspect)
    box = _tile_box(columns, aspect)
    # A short clip may give the same frame several times: each pick marks one of them.
    picked: defaultdict[int, int] = defaultdict(int, Counter(pick.index for pick in picks))
    tiles = []
    for frame, image in zip(frames, images, strict=True):
        is_picked = picked[frame.index] > 0
        picked[frame.index] -= 1
        tiles.append(_tile(image, box, label=_clock(frame.seconds) if is_picked else None))
    grid = _below([_beside(tiles[start : start + columns], GAP) for start in range(0, len(tiles), columns)], GAP)
    inner = WIDTH - 2 * MARGIN
    sentence = _paragraph([(word, INK) for word in text.split()], size=52 if len(text) <= 120 else 40, width=inner)
    counted = f"{len(picks)} of {len(frames)} frames picked" + (f" · {title}" if title else "")
    note = _paragraph([(word, GREY) for word in counted.split()], size=24, width=inner)
    return _page(_below([grid, _below([sentence, note], 10)], 24, centred=True))


def pick_histograms(counts: Sequence[int], positions: Sequence[float], *, num_frames: int) -> Image.Image:
    """The paper's two figures: how many frames are picked of a clip, and where in the clip they stand.

    counts: picks of each clip. positions: of all picks, whole numbers 0…num_frames − 1 or fractions of the clip 0…1.
    """
    if not len(counts) or not len(positions):
        raise BadFigure("the histograms of picks need at least one clip with a pick")
    where = np.asarray(positions)
    if where.dtype.kind == "f":
        where = (where * num_frames).astype(int)
    where = where.clip(0, num_frames - 1)
    size = ((WIDTH - 2 * MARGIN - 60) // 2, 520)
    per_count = np.bincount(np.asarray(counts), minlength=min(num_frames, 10) + 1)[1:] / len(counts)
    per_position = np.bincount(where, minlength=num_frames) / len(where)
    of_clips = f"share of the clips in % · {_many(len(counts), 'clip')}, {np.mean(counts):.1f} picks on average"
    of_picks = f"share of the picks in % · {_many(len(where), 'pick')}"
    charts = [
        _bar_chart(per_count, "Number of picks", of_clips, "picks in a clip", size=size),
        _bar_chart(per_position, "Position of the picks", of_picks, f"place among {num_frames} frames", size=size),
    ]
    return _page(_beside(charts, 60))


def online_strip(updates: Sequence[tuple[Picture, str]]) -> Image.Image:
    """Online captioning: each picked frame in order with the sentence at that time, its new words in green."""
    if not updates:
        raise BadFigure("an online strip needs at least one update")
    images = [Image.fromarray(frame.pixels()) for frame, _ in updates]
    columns = math.ceil(len(images) / math.ceil(len(images) / MAX_STRIP_COLUMNS))
    box = _tile_box(max(columns, 3), images[0].width / images[0].height, gap=24)
    cards = []
    for number, (image, (frame, text)) in enumerate(zip(images, updates, strict=True)):
        words = _coloured_changes(updates[number - 1][1] if number else text, text)
        tile = _tile(image, box, label=_clock(frame.seconds))
        sentence = _paragraph(words, size=26, width=tile.width - 2 * BORDER)
        cards.append(_below([tile, sentence], 12, centred=True))
    return _page(_below([_beside(cards[start : start + columns], 24) for start in range(0, len(cards), columns)], 40))


@dataclass(frozen=True)
class Strip:
    """A clip in the example figure: its picked frames, the caption, and what people said."""

    frames: Sequence[Picture]
    text: str
    reference: str
    note: str


def example_sheet(strips: Sequence[Strip]) -> Image.Image:
    """One clip below the other: its picks beside each other, the caption, and a human caption beneath."""
    if not strips:
        raise BadFigure("an example sheet needs at least one clip")
    return _page(_below([_strip(strip) for strip in strips], 56, centred=True))


class Storyboard:
    """A film on paper: a row for each segment, with its time, its picked frames and its sentence.

    What one page holds is written to `path`; of more, a page is written as soon as it is full, to NAME-p001.png,
    NAME-p002.png and so on. So no more than a page is in memory, and Ctrl-C leaves whole pages.
    """

    def __init__(self, path: str | os.PathLike[str], *, title: str) -> None:
        self.pages: list[Path] = []
        """Those written so far."""
        self._path = Path(path)
        self._title = title
        self._segments: list[Segment] = []
        self._rows: list[Image.Image] = []

    def add(self, segment: Segment, frames: Sequence[Picture]) -> None:
        """The next row. frames: the picked ones, or some of them."""
        row = _story_row(segment, frames)
        if self._rows and sum(row.height for row in self._rows) + row.height > PAGE_HEIGHT - 2 * MARGIN - 150:
            self._write(self._page_path())
        self._rows.append(row)
        self._segments.append(segment)

    def end(self) -> None:
        """Write what is not yet written."""
        if self._rows:
            self._write(self._page_path() if self.pages else self._path)

    def _page_path(self) -> Path:
        return self._path.with_name(f"{self._path.stem}-p{len(self.pages) + 1:03d}{self._path.suffix}")

    def _write(self, path: Path) -> None:
        page = f"page {len(self.pages) + 1}" if path != self._path else ""
        header = _story_header(self._title, page, self._segments)
        save(_page(_below([header, _below(self._rows, 0)], 10)), path)
        self.pages.append(path)
        self._rows.clear()
        self._segments.clear()


def save(image: Image.Image, path: str | os.PathLike[str]) -> None:
    """Write the picture, in the format its suffix names, whole or not at all."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise BadFigure(f"{path}: no picture format {suffix or 'without a suffix'} (possible: {', '.join(FORMATS)})")
    name, options = FORMATS[suffix]
    with written_whole(path) as temporary:
        content = io.BytesIO()  # given a file, Pillow's JPEG writer would not notice that the disk is full
        image.save(content, format=name, **options)
        temporary.write_bytes(content.getvalue())


# --- Their parts ---


def _strip(strip: Strip) -> Image.Image:
    inner = WIDTH - 2 * MARGIN
    rows = []
    # At least six places in a row, so that a single pick is no larger than one of several.
    columns = min(max(len(strip.frames), 6), MAX_EXAMPLE_COLUMNS)
    for start in range(0, len(strip.frames), columns):
        images = [(frame, Image.fromarray(frame.pixels())) for frame in strip.frames[start : start + columns]]
        box = _tile_box(columns, images[0][1].width / images[0][1].height)
        box = (min(box[0], round(box[0] * MAX_EXAMPLE_HEIGHT / box[1])), min(box[1], MAX_EXAMPLE_HEIGHT))
        rows.append(_beside([_tile(image, box, label=_clock(frame.seconds)) for frame, image in images], GAP))
    words = [
        _paragraph([(word, INK) for word in strip.text.split()], size=36, width=inner),
        _paragraph([(word, GREY) for word in strip.reference.split()], size=28, width=inner),
        _paragraph([(word, GREY) for word in strip.note.split()], size=20, width=inner),
    ]
    return _below([*rows, _below(words, 4)], 10, centred=True)


def _story_header(title: str, page: str, segments: Sequence[Segment]) -> Image.Image:
    """The film's name, what time the page is about, and a ribbon with its segments as long as they last."""
    width, start, end = WIDTH - 2 * MARGIN, segments[0].start, segments[-1].end
    counted = f"{clock(start)} to {clock(end)} · {_many(len(segments), 'segment')}" + (f" · {page}" if page else "")
    image = Image.new("RGB", (width, 104), PAPER)
    draw = ImageDraw.Draw(image)
    draw.text((width, 50), counted, fill=GREY, font=typeface(24), anchor="rs")
    room = width - typeface(24).getlength(counted) - 40
    draw.text((0, 50), _pieces(printable(title), typeface(40), int(room))[0], fill=INK, font=typeface(40), anchor="ls")
    ribbon = Image.new("RGB", (width, 16), PAPER)
    for number, segment in enumerate(segments):
        left, right = (width * (at - start) / max(end - start, 1e-3) for at in (segment.start, segment.end))
        # A gap of two pixels, but never without the segment itself.
        ImageDraw.Draw(ribbon).rectangle((left, 0, max(right - 3, left), 16), fill=DARK_GREEN if number % 2 else GREEN)
    image.paste(ribbon, (0, 76), _rounded(ribbon.size, 6))
    return image


def _story_row(segment: Segment, frames: Sequence[Picture]) -> Image.Image:
    """From left to right: when, what was picked, what is said about it; a thin line above."""
    count = min(len(frames), STORY_FRAMES)
    shown = [frames[(2 * i + 1) * len(frames) // (2 * count)] for i in range(count)]
    images = [(frame, Image.fromarray(frame.pixels())) for frame in shown]
    tiles = [_tile(image, _fitted(image, STORY_BOX), label=clock(frame.seconds)) for frame, image in images]
    strip = (STORY_BOX[0] + 2 * BORDER + GAP) * STORY_FRAMES
    words_left = STORY_TIME_WIDTH + strip + 28
    words_width = WIDTH - 2 * MARGIN - words_left
    sentence = _paragraph([(word, INK) for word in segment.text.split()], size=32, width=words_width, centred=False)
    facts = _many(len(segment.picks), "pick")
    facts = facts if segment.confidence is None else f"confidence {segment.confidence:.2f} · {facts}"
    note = _paragraph([(word, GREY) for word in facts.split()], size=20, width=words_width, centred=False)
    words = _below([sentence, note], 4)

    height = max([words.height, 120, *(tile.height for tile in tiles)]) + 2 * STORY_PADDING
    row = Image.new("RGB", (WIDTH - 2 * MARGIN, height), PAPER)
    draw = ImageDraw.Draw(row)
    draw.line((0, 0, row.width, 0), fill=FAINT, width=2)
    draw.text((0, height / 2 - 4), clock(segment.start), fill=INK, font=typeface(36), anchor="ls")
    draw.text((0, height / 2 + 10), f"to {clock(segment.end)}", fill=GREY, font=typeface(24), anchor="lt")
    draw.text((0, height / 2 + 44), f"{segment.seconds:.1f} s", fill=GREY, font=typeface(20), anchor="lt")
    x = STORY_TIME_WIDTH
    for tile in tiles:
        row.paste(tile, (x, (height - tile.height) // 2))
        x += tile.width + GAP
    row.paste(words, (words_left, (height - words.height) // 2))
    return row


def _fitted(image: Image.Image, box: tuple[int, int]) -> tuple[int, int]:
    """(width, height) of the image, as large as fits into `box`."""
    scale = min(box[0] / image.width, box[1] / image.height)
    return max(round(image.width * scale), 1), max(round(image.height * scale), 1)


def _num_columns(num_tiles: int, aspect: float) -> int:
    """A grid about a quarter as high as wide, with as few empty places at its end as possible: 30 frames in 3 × 10."""

    def oddness(columns: int) -> float:
        rows = math.ceil(num_tiles / columns)
        return abs(rows / (columns * aspect) - 0.26) + 2 * (rows * columns - num_tiles) / num_tiles

    return min(range(1, min(num_tiles, 20) + 1), key=oddness)


def _tile_box(columns: int, aspect: float, *, gap: int = GAP) -> tuple[int, int]:
    """(width, height) of the pictures when so many stand beside each other."""
    width = (WIDTH - 2 * MARGIN - (columns - 1) * gap) / columns - 2 * BORDER
    width = min(width, MAX_TILE_HEIGHT * aspect)
    return max(int(width), 1), max(round(width / aspect), 1)


def _tile(image: Image.Image, box: tuple[int, int], *, label: str | None) -> Image.Image:
    """The frame, fitted into `box`: framed in green with its label, or dimmed where it has none."""
    scale = min(box[0] / image.width, box[1] / image.height)
    width, height = max(round(image.width * scale), 1), max(round(image.height * scale), 1)
    image = image.resize((width, height), Image.Resampling.LANCZOS)
    tile = Image.new("RGB", (box[0] + 2 * BORDER, box[1] + 2 * BORDER), PAPER)
    left, top = (tile.width - width) // 2, (tile.height - height) // 2
    if label is None:
        image = Image.blend(image, Image.new("RGB", image.size, PAPER), DIMMING)
        tile.paste(image, (left, top), _rounded(image.size, BORDER))
        return tile
    tile.paste(GREEN, (left - BORDER, top - BORDER), _rounded((width + 2 * BORDER, height + 2 * BORDER), 2 * BORDER))
    tile.paste(image, (left, top), _rounded(image.size, BORDER))
    font = typeface(min(max(max(box) // 9, 11), 24))
    tag = (math.ceil(font.getlength(label)) + 14, sum(font.getmetrics()) + 2)
    tile.paste(GREEN, (left, top + height - tag[1]), _rounded(tag, BORDER))
    ImageDraw.Draw(tile).text((left + 6, top + height - tag[1] / 2), label, fill=PAPER, font=font, anchor="lm")
    return tile


def _paragraph(
    words: Sequence[tuple[str, str]], *, size: int, width: int, centred: bool = True
) -> Image.Image:
    """Coloured words as lines of about one length, none wider than `width`."""
    font = typeface(size)
    lines = _wrapped(words, font, width)
    narrower = width
    # As narrow as the same number of lines allows, so that no last word stands alone.
    while len(lines) > 1 and len(closer := _wrapped(words, font, narrower := narrower - size)) == len(lines):
        lines = closer
    space, line_height = font.getlength(" "), round(size * 1.3)
    image = Image.new("RGB", (width, line_height * len(lines)), PAPER)
    draw = ImageDraw.Draw(image)
    for number, line in enumerate(lines):
        x = (width - _line_length(line, font)) / 2 if centred else 0.0
        for piece, colour in line:
            draw.text((x, line_height * (number + 0.5)), piece, fill=colour, font=font, anchor="lm")
            x += font.getlength(piece) + space
    return image


def _bar_chart(shares: NDArray[Any], title: str, note: str, axis: str, *, size: tuple[int, int]) -> Image.Image:
    """shares: (n,), of the places 1…n -> bars over two axes, with lines at round percents"""
    image = Image.new("RGB", size, PAPER)
    draw = ImageDraw.Draw(image)
    left, right, top, bottom = 56, size[0] - 8, 130, size[1] - 80
    draw.text((0, 0), title, fill=INK, font=typeface(36))
    draw.text((0, 50), note, fill=GREY, font=typeface(22))
    draw.text(((left + right) / 2, size[1]), axis, fill=GREY, font=typeface(22), anchor="mb")
    highest = max(float(shares.max()) * 100, 1)
    step = next(step for step in (0.2, 0.5, 1, 2, 5, 10, 20) if highest / step <= 5)
    num_steps = math.ceil(highest / step)
    for number in range(num_steps + 1):
        y = bottom - (bottom - top) * number / num_steps
        draw.line((left, y, right, y), fill=FAINT if number else GREY, width=2)
        draw.text((left - 14, y), f"{number * step:g}", fill=GREY, font=typeface(22), anchor="rm")
    pitch = (right - left) / len(shares)
    every = next(every for every in (1, 5, 20, 100, len(shares)) if len(shares) <= 15 * every)
    for place, share in enumerate(shares, start=1):
        x, half = left + (place - 0.5) * pitch, 0.38 * pitch
        y = min(bottom - (bottom - top) * float(share) * 100 / (num_steps * step), bottom - 3)
        if share > 0:
            draw.rectangle((round(x - half), round(y), round(x + half), bottom), fill=GREEN)
        if share > 0 and every == 1:
            percent = f"{share * 100:.0f}" if share >= 0.005 else "<1"
            draw.text((x, y - 6), percent, fill=INK, font=typeface(20), anchor="mb")
        if place == 1 or place % every == 0:
            draw.text((x, bottom + 12), str(place), fill=GREY, font=typeface(22), anchor="mt")
    return image


def _coloured_changes(before: str, now: str) -> list[tuple[str, str]]:
    """The words of `now`: those that `before` did not have there in green."""
    words = now.split()
    kept: set[int] = set()
    for block in difflib.SequenceMatcher(None, before.split(), words, autojunk=False).get_matching_blocks():
        kept.update(range(block.b, block.b + block.size))
    return [(word, INK if number in kept else DARK_GREEN) for number, word in enumerate(words)]


def _below(images: Sequence[Image.Image], gap: int, *, centred: bool = False) -> Image.Image:
    width = max(image.width for image in images)
    page = Image.new("RGB", (width, sum(image.height for image in images) + gap * (len(images) - 1)), PAPER)
    y = 0
    for image in images:
        page.paste(image, ((width - image.width) // 2 if centred else 0, y))
        y += image.height + gap
    return page


def _beside(images: Sequence[Image.Image], gap: int) -> Image.Image:
    size = (sum(image.width for image in images) + gap * (len(images) - 1), max(image.height for image in images))
    page = Image.new("RGB", size, PAPER)
    x = 0
    for image in images:
        page.paste(image, (x, 0))
        x += image.width + gap
    return page


def _page(content: Image.Image) -> Image.Image:
    page = Image.new("RGB", (WIDTH, content.height + 2 * MARGIN), PAPER)
    page.paste(content, ((WIDTH - content.width) // 2, MARGIN))
    return page


def _rounded(size: tuple[int, int], radius: int) -> Image.Image:
    """A mask with smooth round corners, drawn four times as large and shrunk."""
    mask = Image.new("L", (size[0] * 4, size[1] * 4))
    ImageDraw.Draw(mask).rounded_rectangle((0, 0, mask.width - 1, mask.height - 1), radius * 4, fill=255)
    return mask.resize(size, Image.Resampling.BOX)


# --- Letters ---


def _wrapped(
    words: Sequence[tuple[str, str]], font: ImageFont.FreeTypeFont, width: int
) -> list[list[tuple[str, str]]]:
    """(word, colour) pairs as lines no wider than `width`."""
    lines: list[list[tuple[str, str]]] = [[]]
    for word, colour in words:
        for piece in _pieces(printable(word), font, width):
            if lines[-1] and _line_length([*lines[-1], (piece, colour)], font) > width:
                lines.append([])
            lines[-1].append((piece, colour))
    return lines


def _line_length(line: Sequence[tuple[str, str]], font: ImageFont.FreeTypeFont) -> float:
    return sum(font.getlength(piece) for piece, _ in line) + font.getlength(" ") * (len(line) - 1)


def _pieces(word: str, font: ImageFont.FreeTypeFont, width: int) -> list[str]:
    """The word, cut where it alone is wider than a line."""
    pieces = [""]
    for character in word:
        if pieces[-1] and font.getlength(pieces[-1] + character) > width:
            pieces.append("")
        pieces[-1] += character
    return pieces


def _many(number: int, noun: str) -> str:
    return f"{number:,} {noun}" + "s" * (number != 1)


def _clock(seconds: float) -> str:
    """3.2 s, and from a minute on 1:03."""
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}:{rest:02}" if minutes < 60 else f"{minutes // 60}:{minutes % 60:02}:{rest:02}"
