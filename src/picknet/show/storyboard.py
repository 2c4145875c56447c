"""A film on paper: a card for each segment, with its frames, time and caption, in a compact grid."""

import contextlib
import io
import math
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from PIL import Image, ImageDraw

from picknet.model.confidence import written
from picknet.show.page import (
    GREY,
    INK,
    INNER_WIDTH,
    MARGIN,
    PAPER,
    Picture,
    Thumbnail,
    coloured,
    confidence_colour,
    counted,
    fit,
    length,
    page,
    printable,
    rounded,
    save,
    shortened,
    typeface,
    wrapped,
)
from picknet.timecode import duration, short_clock
from picknet.video.frame import middles

if TYPE_CHECKING:
    from picknet.results import Segment

PAGE_HEIGHT = 2262
"""Pixels: a page has the proportions of A4."""
MAX_SIDE = 320
"""Pixels: the longer side of the frames that are kept until the pages are drawn."""
MAX_CARD_FRAMES = 6
"""Frames of a segment that are kept."""
MAX_FRAME_BYTES = 15_000
MEMORY_BYTES = 16_000_000
"""Frames beyond this go to a temporary file, so that a film of any length needs little memory."""

HEADER_HEIGHT = 158
GUTTER = 14
ROW_GAP = 22
BAR_HEIGHT = 6
BAR_GAP = 4
TEXT_GAP = 8
MIN_CARD_WIDTH = 200
MAX_LINES = 5
PLACEHOLDER = "#eef0f3"
NO_CONFIDENCE = ("#b4bac4", "#cfd4db")
"""Segments without a confidence, alternating, so that cuts can be seen."""
TICKS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
"""Seconds between the labels below the ribbon."""


class Storyboard:
    """The pages of a film, on which each segment is a card whose width grows with the segment's length.

    One page is written to `path`, several are written to NAME-p001.png, NAME-p002.png and so on. `end` writes them,
    since the layout and the number of pages depend on all segments. Call it even if reading the film was interrupted:
    the pages then show the segments so far.
    """

    def __init__(self, path: str | os.PathLike[str], *, title: str) -> None:
        self.pages: list[Path] = []
        """The files that were written."""
        self._path = Path(path)
        self._title = title
        self._scenes: list[_Scene] = []
        self._frames = tempfile.SpooledTemporaryFile(max_size=MEMORY_BYTES)  # noqa: SIM115, `end` closes it

    def add(self, segment: "Segment", frames: Sequence[Picture]) -> None:
        """Add the next segment. frames: its picked frames, or some of them."""
        stored = []
        for place in middles(len(frames), MAX_CARD_FRAMES):
            content, aspect = _jpeg(frames[place])
            offset = self._frames.seek(0, io.SEEK_END)
            self._frames.write(content)
            stored.append(_StoredFrame(frames[place].seconds, aspect, offset, len(content)))
        # Its confidence stands in the note above the text.
        text = "not sure" if segment.not_sure else segment.text
        self._scenes.append(_Scene(segment.start, segment.end, text, segment.confidence, stored))

    def end(self) -> None:
        """Write the pages: none where there is no segment. A second call does nothing."""
        scenes, self._scenes = self._scenes, []
        with contextlib.closing(self._frames):
            if not scenes:
                return
            grid, pages = _layout(scenes)
            for number, rows in enumerate(pages, start=1):
                path = self._path
                if len(pages) > 1:
                    path = path.with_name(f"{path.stem}-p{number:03d}{path.suffix}")
                save(self._drawn(grid, rows, scenes, f"page {number} of {len(pages)}" if len(pages) > 1 else ""), path)
                self.pages.append(path)

    def _drawn(self, grid: "_Grid", rows: "Sequence[_Row]", scenes: "Sequence[_Scene]", number: str) -> Image.Image:
        height = HEADER_HEIGHT + sum(row.height for row in rows) + ROW_GAP * (len(rows) - 1)
        content = Image.new("RGB", (INNER_WIDTH, height), PAPER)
        first, last = rows[0].cards[0].scene, rows[-1].cards[-1].scene
        _draw_header(content, self._title, number, scenes, start=first.start, end=last.end)
        y = HEADER_HEIGHT
        for row in rows:
            column = 0
            for card in row.cards:
                _draw_card(content, card, grid, round(column * (grid.column + GUTTER)), y, self._read)
                column += card.share.span
            y += row.height + ROW_GAP
        # Pages of a set are all as high as the sheet; a single one ends below its content.
        return page(content, height=PAGE_HEIGHT if number else None)

    def _read(self, frame: "_StoredFrame") -> Image.Image:
        self._frames.seek(frame.offset)
        return Image.open(io.BytesIO(self._frames.read(frame.num_bytes)))


# --- What is kept of a segment ---


@dataclass(frozen=True)
class _StoredFrame:
    """Where the JPEG of a frame is in the temporary file."""

    seconds: float
    aspect: float
    """Width by height."""
    offset: int
    num_bytes: int


@dataclass(frozen=True)
class _Scene:
    """A segment without its picks, which a long film has many of."""

    start: float
    end: float
    text: str
    confidence: float | None
    frames: list[_StoredFrame]

    @property
    def seconds(self) -> float:
        return self.end - self.start


def _jpeg(frame: Picture) -> tuple[bytes, float]:
    """A small copy as JPEG, and its aspect ratio."""
    image = Image.fromarray(Thumbnail.of(frame, max_side=MAX_SIDE).pixels())
    content = io.BytesIO()
    for quality in (85, 65, 40):
        content = io.BytesIO()
        image.save(content, "JPEG", quality=quality)
        if content.tell() <= MAX_FRAME_BYTES:
            break
    return content.getvalue(), image.width / image.height


# --- Layout ---


@dataclass(frozen=True)
class _Grid:
    """Columns as wide as a frame. A card spans one or more of them."""

    num_columns: int
    aspect: float
    stretch: float
    """Frames that a segment of typical length shows."""

    @property
    def column(self) -> float:
        """Pixels."""
        return (INNER_WIDTH - GUTTER * (self.num_columns - 1)) / self.num_columns

    @property
    def frame_size(self) -> tuple[int, int]:
        """(width, height) in pixels."""
        return int(self.column), round(self.column / self.aspect)

    @property
    def text_columns(self) -> int:
        """Columns for the text beside the frames; 0 where a frame is wide enough to have it below."""
        return math.ceil(MIN_CARD_WIDTH / self.column) if self.column < MIN_CARD_WIDTH else 0

    @property
    def text_size(self) -> int:
        return 26 if self.column > 280 else 22

    @property
    def note_size(self) -> int:
        return self.text_size - 4

    @property
    def line_height(self) -> int:
        return round(1.25 * self.text_size)

    def width(self, span: int) -> float:
        """Width in pixels of `span` columns and the gutters between them."""
        return span * self.column + (span - 1) * GUTTER


@dataclass(frozen=True)
class _Share:
    """The columns of a card: one for each frame, and some for the text, or none where it is below the frames."""

    num_frames: int
    text_columns: int

    @property
    def span(self) -> int:
        return self.num_frames + self.text_columns


@dataclass(frozen=True)
class _Card:
    """A segment on the page."""

    scene: _Scene
    share: _Share
    frames: list[_StoredFrame]
    text_width: float
    notes: list[str]
    """Length and confidence, beside the start time if there is room, else below it."""
    lines: list[str]
    """The caption."""
    height: int


@dataclass(frozen=True)
class _Row:
    cards: list[_Card]

    @property
    def height(self) -> int:
        return max(card.height for card in self.cards)


def _layout(scenes: Sequence[_Scene]) -> tuple[_Grid, list[list[_Row]]]:
    """The roomiest grid that needs no more pages than the most compact one, and the rows of each page."""
    aspects = [scene.frames[0].aspect for scene in scenes if scene.frames]
    aspect = min(max(statistics.median(aspects), 0.5), 2.4) if aspects else 16 / 9
    narrower = min(max(1.2 / aspect, 1.0), 13 / 7)  # portrait frames get more columns
    grids = [
        _Grid(round(columns * narrower), aspect, stretch) for columns in (4, 5, 6, 7) for stretch in (2.0, 1.5, 1.0)
    ]
    fewest = len(_pages(scenes, grids[-1]))
    return next((grid, pages) for grid in grids if len(pages := _pages(scenes, grid)) <= fewest)


def _pages(scenes: Sequence[_Scene], grid: _Grid) -> list[list[_Row]]:
    pages: list[list[_Row]] = [[]]
    room = PAGE_HEIGHT - 2 * MARGIN - HEADER_HEIGHT
    used = 0
    for row in _rows(scenes, grid):
        if pages[-1] and used + row.height > room:
            pages.append([])
            used = 0
        pages[-1].append(row)
        used += row.height + ROW_GAP
    return pages


def _rows(scenes: Sequence[_Scene], grid: _Grid) -> Iterator[_Row]:
    typical = max(statistics.median(scene.seconds for scene in scenes), 1e-3)
    row: list[tuple[_Scene, _Share]] = []
    for scene in scenes:
        share = _share(scene, grid, scene.seconds / typical)
        free = grid.num_columns - sum(share.span for _, share in row)
        if share.span > free and max(share.num_frames / 2, 1) <= free - share.text_columns:
            share = _Share(free - share.text_columns, share.text_columns)  # a few frames less, and the row is full
        if share.span > free:
            yield _filled_row(row, grid, is_last=False)
            row = []
        row.append((scene, share))
    yield _filled_row(row, grid, is_last=True)


def _share(scene: _Scene, grid: _Grid, relative_length: float) -> _Share:
    """relative_length: 1 for a segment of typical length."""
    wanted = max(round(grid.stretch * relative_length), 1)
    # A long segment with few frames has a wide card nevertheless, with its text beside them.
    is_sparse = len(scene.frames) < min(max(round(relative_length), 1), grid.num_columns)
    text_columns = max(grid.text_columns, int(is_sparse))
    return _Share(min(wanted, len(scene.frames), grid.num_columns - text_columns), text_columns)


def _filled_row(row: Sequence[tuple[_Scene, _Share]], grid: _Grid, *, is_last: bool) -> _Row:
    """The cards. Free columns go to frames that are not shown yet, of the longest segments first, then to text."""
    shares = [share for _, share in row]
    while free := grid.num_columns - sum(share.span for share in shares):
        hiding = [place for place, (scene, _) in enumerate(row) if len(scene.frames) > shares[place].num_frames]
        if not hiding:
            if shares[-1].text_columns and not is_last:
                shares[-1] = replace(shares[-1], text_columns=shares[-1].text_columns + free)
            break
        place = max(hiding, key=lambda place: row[place][0].seconds / shares[place].span)
        shares[place] = replace(shares[place], num_frames=shares[place].num_frames + 1)
    return _Row([_card(scene, share, grid) for (scene, _), share in zip(row, shares, strict=True)])


def _card(scene: _Scene, share: _Share, grid: _Grid) -> _Card:
    frames = [scene.frames[place] for place in middles(len(scene.frames), share.num_frames)]
    width = grid.width(share.text_columns or share.span)
    frame_height = grid.frame_size[1] if frames else 0
    notes = [duration(scene.seconds)]
    if scene.confidence is not None:
        notes.append(written(scene.confidence))
    time_width = length(short_clock(scene.start), grid.text_size)
    one_line = time_width + length(" · ".join(["", *notes]), grid.note_size) <= width
    num_heads = 1 if one_line else 2
    max_lines = max(frame_height // grid.line_height - num_heads if share.text_columns else 0, MAX_LINES)
    lines = _lines(scene.text, size=grid.text_size, width=width, max_lines=max_lines)
    text_height = grid.line_height * (num_heads + len(lines))
    height = max(frame_height, text_height) if share.text_columns else frame_height + TEXT_GAP + text_height
    return _Card(scene, share, frames, width, notes, lines, BAR_HEIGHT + BAR_GAP + height)


def _lines(text: str, *, size: int, width: float, max_lines: int) -> list[str]:
    if not text.strip():
        return []
    lines = [" ".join(word for word, _ in line) for line in wrapped(coloured(text, INK), size=size, width=width)]
    if len(lines) > max_lines:
        lines = [*lines[: max_lines - 1], shortened(" ".join(lines[max_lines - 1 :]), size=size, width=width)]
    return lines


# --- Drawing ---


def _draw_card(
    content: Image.Image,
    card: _Card,
    grid: _Grid,
    left: int,
    top: int,
    read: Callable[[_StoredFrame], Image.Image],
) -> None:
    bar = rounded((round(grid.width(card.share.span)), BAR_HEIGHT), BAR_HEIGHT // 2)
    content.paste(confidence_colour(card.scene.confidence), (left, top), bar)
    top += BAR_HEIGHT + BAR_GAP
    width, height = grid.frame_size
    for place, frame in enumerate(card.frames):
        x = left + round(place * (grid.column + GUTTER))
        with read(frame) as image:
            image = fit(image, (width, height))
        if width - image.width > 4 or height - image.height > 4:
            content.paste(PLACEHOLDER, (x, top), rounded((width, height), 4))
        corner = x + (width - image.width) // 2, top + (height - image.height) // 2
        content.paste(image, corner, rounded(image.size, 4))
        if len(card.frames) > 1:
            _draw_label(content, short_clock(frame.seconds), corner[0], corner[1] + image.height)
    if card.share.text_columns:
        left += round(len(card.frames) * (grid.column + GUTTER))
    else:
        top += height + TEXT_GAP
    _draw_text(ImageDraw.Draw(content), card, grid, left, top)


def _draw_text(draw: ImageDraw.ImageDraw, card: _Card, grid: _Grid, left: int, top: int) -> None:
    time, note = short_clock(card.scene.start), " · ".join(card.notes)
    baseline = top + round(0.8 * grid.text_size)
    draw.text((left, baseline), time, fill=INK, font=typeface(grid.text_size), anchor="ls")
    x = left + length(time, grid.text_size)
    if x + length(f" · {note}", grid.note_size) <= left + card.text_width:
        draw.text((x, baseline), f" · {note}", fill=GREY, font=typeface(grid.note_size), anchor="ls")
    else:
        baseline += grid.line_height
        draw.text((left, baseline), note, fill=GREY, font=typeface(grid.note_size), anchor="ls")
    for line in card.lines:
        baseline += grid.line_height
        draw.text((left, baseline), line, fill=INK, font=typeface(grid.text_size), anchor="ls")


def _draw_label(content: Image.Image, label: str, left: int, bottom: int) -> None:
    """A time in the lower left corner of a frame, white on translucent black."""
    size = math.ceil(length(label, 16)) + 12, 22
    mask = rounded(size, 4).point(lambda value: value * 0.7)
    content.paste(INK, (left, bottom - size[1]), mask)
    ImageDraw.Draw(content).text((left + 6, bottom - 11), label, fill=PAPER, font=typeface(16), anchor="lm")


def _draw_header(
    content: Image.Image, title: str, number: str, scenes: Sequence[_Scene], *, start: float, end: float
) -> None:
    """The title, what the page shows, and a ribbon over the whole film. start, end: seconds that the page covers."""
    draw = ImageDraw.Draw(content)
    facts = " · ".join(filter(None, [counted(len(scenes), "segment"), short_clock(scenes[-1].end), number]))
    draw.text((INNER_WIDTH, 34), facts, fill=GREY, font=typeface(22), anchor="rs")
    name = shortened(printable(title), size=36, width=INNER_WIDTH - length(facts, 22) - 40)
    draw.text((0, 34), name, fill=INK, font=typeface(36), anchor="ls")
    span = f"{short_clock(start)} to {short_clock(end)}" if number else ""
    draw.text((0, 68), span, fill=GREY, font=typeface(18), anchor="ls")
    if any(scene.confidence is not None for scene in scenes):
        _draw_legend(draw, INNER_WIDTH, 68)
    ribbon = _ribbon(scenes, start=start, end=end)
    content.paste(ribbon, (0, 80), rounded(ribbon.size, 6))
    _draw_ticks(draw, scenes[0].start, scenes[-1].end, top=80 + ribbon.height)


def _draw_legend(draw: ImageDraw.ImageDraw, right: int, baseline: int) -> None:
    num_steps, step = 11, 12
    left = right - round(length("1", 18)) - 8 - num_steps * step
    draw.text((right, baseline), "1", fill=GREY, font=typeface(18), anchor="rs")
    for place in range(num_steps):
        x = left + place * step
        colour = confidence_colour(place / (num_steps - 1))
        draw.rectangle((x, baseline - 13, x + step - 1, baseline - 1), fill=colour)
    draw.text((left - 8, baseline), "confidence 0", fill=GREY, font=typeface(18), anchor="rs")


def _ribbon(scenes: Sequence[_Scene], *, start: float, end: float) -> Image.Image:
    """The whole film from left to right, coloured by confidence; segments on other pages are drawn thinner."""
    ribbon = Image.new("RGB", (INNER_WIDTH, 26), PAPER)
    draw = ImageDraw.Draw(ribbon)
    scale = INNER_WIDTH / max(scenes[-1].end - scenes[0].start, 1e-3)
    for place, scene in enumerate(scenes):
        left, right = (scale * (at - scenes[0].start) for at in (scene.start, scene.end))
        colour = confidence_colour(scene.confidence) if scene.confidence is not None else NO_CONFIDENCE[place % 2]
        gap = 2 if right - left >= 8 else 0
        bottom = 26 if start <= scene.start < end else 8
        draw.rectangle((round(left), 0, max(round(right) - gap - 1, round(left)), bottom - 1), fill=colour)
    return ribbon


def _draw_ticks(draw: ImageDraw.ImageDraw, start: float, end: float, *, top: int) -> None:
    seconds = max(end - start, 1e-3)
    step = next((step for step in TICKS if seconds / step <= 12), 86400 * math.ceil(seconds / 86400 / 12))
    for at in range(math.ceil(start / step) * step, math.floor(end) + 1, step):
        x = INNER_WIDTH * (at - start) / seconds
        draw.line((x, top + 2, x, top + 7), fill=GREY, width=1)
        anchor = "lt" if x < 30 else "rt" if x > INNER_WIDTH - 30 else "mt"
        draw.text((x, top + 12), short_clock(at), fill=GREY, font=typeface(16), anchor=anchor)
