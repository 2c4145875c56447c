"""A long video as segments: what is shown from when to when, and the files that tell it.

A scene is one segment, with three exceptions. A long one is told in parts, each with a memory of its own: the model
knows clips of seconds, and what goes on for a minute is seldom one thing. Neighbours that say the same become one: a
segment ends where there is something else to say. And one that is too short to be read goes along with the next.
"""

import csv
import html
import io
import itertools
import json
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any

from picknet.picking.picker import Pick
from picknet.video.frame import Frame

PATIENCE = 2
"""With which strange frame in a row a new scene begins: that of a stream."""
LONGEST_PART = 30.0
"""Seconds of a scene that one sentence is made of."""
SHORTEST = 1.5
"""Seconds that a sentence has to stand to be read: about 25 letters, at the 17 a second that subtitles go by."""
LINE_LENGTH = 42
"""Letters in a line of subtitles, as broadcasters have it."""


@dataclass(frozen=True)
class Segment:
    """A stretch of a video, and what it shows."""

    start: float
    end: float
    """Seconds; the next segment starts where this one ends."""
    text: str
    confidence: float | None
    """As in a caption."""
    picks: tuple[Pick, ...]
    """The frames that the text was made from."""
    damage: str | None = None
    """What of the video could not be read so far."""

    @property
    def seconds(self) -> float:
        return self.end - self.start


def parts(scene: Iterator[Frame]) -> Iterator[Iterator[Frame]]:
    """The frames of a scene, in parts of LONGEST_PART seconds, each as it comes."""
    first = next(scene)
    part_of = itertools.groupby(
        itertools.chain([first], scene), key=lambda frame: (frame.seconds - first.seconds) // LONGEST_PART
    )
    return (part for _, part in part_of)


def readable(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Segments that say something new and stand long enough to be read, from ones in a row that may not.

    Of two that become one, the longer has its say.
    """
    before: Segment | None = None
    short: Segment | None = None
    for segment in segments:
        segment = _joined(short, segment) if short else segment
        short = None
        if segment.seconds < SHORTEST:
            short = segment
        elif before and before.text == segment.text:
            before = _joined(before, segment)
        else:
            if before:
                yield before
            before = segment
    if short:  # nothing comes after it
        before = _joined(before, short) if before else short
    if before:
        yield before


def _joined(one: Segment, other: Segment) -> Segment:
    longer = one if one.seconds >= other.seconds else other
    picks = one.picks + other.picks if one.text == other.text else longer.picks
    return replace(longer, start=one.start, end=other.end, picks=picks, damage=other.damage)


# --- Files ---
# Each function gives the content of a file piece by piece, as the segments come.


def as_text(segments: Iterable[Segment]) -> Iterator[str]:
    """0:00:00-0:00:12  a man is playing a guitar"""
    for segment in segments:
        yield f"{clock(segment.start)}-{clock(segment.end)}  {segment.text}\n"


def as_json(segments: Iterable[Segment], *, video: str, model: str) -> Iterator[str]:
    """One object, on one line."""
    told = list(segments)
    content = {"video": video, "segments": [_json(segment) for segment in told], "model": model}
    damage = told[-1].damage if told else None
    yield json.dumps(content | ({"damage": damage} if damage else {})) + "\n"


def _json(segment: Segment) -> dict[str, Any]:
    return {
        "start": round(segment.start, 3),
        "end": round(segment.end, 3),
        "caption": segment.text,
        "confidence": segment.confidence,
        "picks": [pick.to_dict() for pick in segment.picks],
    }


def as_csv(segments: Iterable[Segment], *, video: str) -> Iterator[str]:
    """A row for each, below the names of the columns; `picks` and `seconds` are lists with blanks between."""
    yield _row("video", "start", "end", "caption", "confidence", "picks", "seconds")
    for segment in segments:
        sure = "" if segment.confidence is None else f"{segment.confidence:.4f}"
        indices = " ".join(str(pick.index) for pick in segment.picks)
        seconds = " ".join(f"{pick.seconds:.3f}" for pick in segment.picks)
        yield _row(video, f"{segment.start:.3f}", f"{segment.end:.3f}", segment.text, sure, indices, seconds)


def as_srt(segments: Iterable[Segment]) -> Iterator[str]:
    """SubRip. It has no way to write a tag's bracket, so there is none."""
    for number, segment in enumerate(_sayable(segments), start=1):
        text = _lines(segment.text.replace("<", "").replace(">", ""))
        yield f"{number}\n{_stamp(segment.start, ',')} --> {_stamp(segment.end, ',')}\n{text}\n\n"


def as_vtt(segments: Iterable[Segment]) -> Iterator[str]:
    """WebVTT."""
    yield "WEBVTT\n\n"
    for segment in _sayable(segments):
        text = html.escape(_lines(segment.text), quote=False)
        yield f"{_stamp(segment.start, '.')} --> {_stamp(segment.end, '.')}\n{text}\n\n"


def _sayable(segments: Iterable[Segment]) -> Iterator[Segment]:
    """A subtitle without a word would be taken for the end of a file."""
    return (segment for segment in segments if segment.text)


def _lines(text: str) -> str:
    """As few lines as possible, of about one length."""
    lines = textwrap.wrap(text, LINE_LENGTH)
    width = LINE_LENGTH
    while len(closer := textwrap.wrap(text, width := width - 1)) == len(lines) and width > LINE_LENGTH // 2:
        lines = closer
    return "\n".join(lines)


def _stamp(seconds: float, point: str) -> str:
    """01:02:03,456"""
    whole, milliseconds = divmod(round(seconds * 1000), 1000)
    minutes, whole = divmod(whole, 60)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{whole:02d}{point}{milliseconds:03d}"


def clock(seconds: float) -> str:
    """Hours, minutes and seconds: 0:01:05."""
    minutes, whole = divmod(int(seconds), 60)
    return f"{minutes // 60}:{minutes % 60:02d}:{whole:02d}"


def _row(*cells: str) -> str:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(cells)
    return line.getvalue()
