"""A long video as segments, each with a caption, and the files they are written to.

A scene is one segment, with three exceptions. A long one is described in parts, each with its own memory: the model was
trained on clips of seconds, and a minute of video seldom shows a single action. Neighbours with the same caption
become one. A segment that is too short to be read joins the next. A caption that the model is not sure of counts as
well, and is left out only then, so that every cut stays.
"""

import csv
import html
import io
import itertools
import json
import re
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path

from picknet.picking.picker import Pick
from picknet.picking.scenes import SceneWatch
from picknet.results import Description, Segment
from picknet.timecode import clock, timecode, timestamp
from picknet.video.frame import Frame
from picknet.walk import Walk

CUT_PATIENCE = 2
"""Frames in a row, unlike all before, after which a new scene is certain: as in a stream."""
LONGEST_PART = 30.0
"""Seconds of a scene that one caption is written from."""
SHORTEST = 1.5
"""Seconds that a caption needs to be read: about 25 letters, at the usual 17 a second of subtitles."""
LINE_LENGTH = 42
"""Letters in a line of subtitles, the broadcasters' limit."""
EDL_RATE = 25
"""Frames a second of time codes, where the video's own rate has none."""

Describe = Callable[[Iterator[tuple[Frame, Pick]]], Description | None]
"""Picked frames -> what they show together; None where nothing is picked."""


def segments(walk: Walk, describe: Describe, *, step: float, model: str) -> Iterator[Segment]:
    """The segments of a video, in order and without gaps. step: seconds between two frames."""
    for segment in readable(_every_part(walk, describe, step=step, model=model)):
        yield replace(segment, text="") if segment.not_sure else segment


def _every_part(walk: Walk, describe: Describe, *, step: float, model: str) -> Iterator[Segment]:
    """A segment for every scene or part of one, however short, with its caption even where that is not sure."""
    previous: Segment | None = None
    for scene in walk.scenes(SceneWatch(patience=CUT_PATIENCE), delay=CUT_PATIENCE - 1):
        continues = False
        for part in parts(scene):
            first = next(part)
            described = describe(walk.picks(itertools.chain([first], part)))
            if described is None:  # a picker may find nothing here: the segment before goes on
                continue
            start = first.seconds
            if previous:
                yield replace(previous, end=start)
            about = (described.confidence, described.picks, walk.damage, walk.name, model, described.not_sure)
            previous = Segment(start, start, described.sentences[0].text, *about, continues=continues)
            continues = True
    if previous:
        yield replace(previous, end=walk.end(step), damage=walk.damage)


def parts(scene: Iterator[Frame]) -> Iterator[Iterator[Frame]]:
    """The frames of a scene in parts of LONGEST_PART seconds, each frame as it is read."""
    first = next(scene)
    part_of = itertools.groupby(
        itertools.chain([first], scene), key=lambda frame: (frame.seconds - first.seconds) // LONGEST_PART
    )
    return (part for _, part in part_of)


def readable(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Join segments until each differs from its neighbours and is long enough to be read.

    Of two that become one, the longer keeps its caption and its confidence.
    """
    previous: Segment | None = None
    short: Segment | None = None
    for segment in segments:
        segment = _joined(short, segment) if short else segment
        short = None
        if segment.seconds < SHORTEST:
            short = segment
        elif previous and (previous.text, bool(previous.not_sure)) == (segment.text, bool(segment.not_sure)):
            previous = _joined(previous, segment)
        else:
            if previous:
                yield previous
            previous = segment
    if short:  # nothing comes after it
        previous = _joined(previous, short) if previous else short
    if previous:
        yield previous


def _joined(one: Segment, other: Segment) -> Segment:
    longer = one if one.seconds >= other.seconds else other
    picks = one.picks + other.picks if one.text == other.text else longer.picks
    cuts = (*one.cuts, *(() if other.continues else (other.start,)), *other.cuts)
    whole = replace(longer, start=one.start, end=other.end, picks=picks, damage=other.damage)
    return replace(whole, cuts=cuts, continues=one.continues)


def from_cut_to_cut(segments: Iterable[Segment]) -> Iterator[Segment]:
    """A segment for every scene, with the caption of the longest segment in it: for editors, who want every cut."""
    longest: Segment | None = None
    scene_start = end = 0.0
    for segment in segments:
        for start, end in itertools.pairwise((segment.start, *segment.cuts, segment.end)):
            part = replace(segment, start=start, end=end, cuts=(), continues=False)
            if longest and segment.continues and start == segment.start:
                longest = max(longest, part, key=lambda one: one.seconds)
                continue
            if longest:
                yield replace(longest, start=scene_start, end=start)
            longest, scene_start = part, start
    if longest:
        yield replace(longest, start=scene_start, end=end)


# --- Files ---
# Each function yields the content of a file piece by piece, as the segments come.


def as_text(segments: Iterable[Segment]) -> Iterator[str]:
    """0:00:00-0:00:12  a man is playing a guitar"""
    for segment in segments:
        yield f"{clock(segment.start)}-{clock(segment.end)}  {segment.display_text}\n"


def as_json(segments: Iterable[Segment], *, video: str, model: str) -> Iterator[str]:
    """One object on one line, with all segments as `Segment.to_dict` has them."""
    rows = [segment.to_dict() for segment in segments]
    damage = rows[-1]["damage"] if rows else None
    yield json.dumps({"video": video, "model": model, "segments": rows, "damage": damage}) + "\n"


def as_jsonl(segments: Iterable[Segment]) -> Iterator[str]:
    """A line for each segment: `Segment.to_dict`."""
    for segment in segments:
        yield json.dumps(segment.to_dict()) + "\n"


def as_csv(segments: Iterable[Segment], *, video: str) -> Iterator[str]:
    """A row for each segment under a header; `picks` (indexes) and `seconds` are lists separated by spaces."""
    yield csv_row("video", "start", "end", "caption", "confidence", "picks", "seconds", "not_sure")
    for segment in segments:
        sure = "" if segment.confidence is None else f"{segment.confidence:.4f}"
        indices = " ".join(str(pick.index) for pick in segment.picks)
        seconds = " ".join(f"{pick.seconds:.3f}" for pick in segment.picks)
        start, end = f"{segment.start:.3f}", f"{segment.end:.3f}"
        yield csv_row(video, start, end, segment.text, sure, indices, seconds, segment.not_sure)


def as_played(segments: Iterable[Segment], *, begin: float) -> Iterator[Segment]:
    """The segments by the clock of players, for subtitles and chapters: it starts with the file, not with its first
    frame. begin: of the video, `Video.begin`.
    """
    return (replace(segment, start=segment.start + begin, end=segment.end + begin) for segment in segments)


def as_srt(segments: Iterable[Segment]) -> Iterator[str]:
    """SubRip subtitles. The format cannot escape the brackets of tags, so they are left out."""
    for number, segment in enumerate(_with_words(segments), start=1):
        text = _lines(segment.text.replace("<", "").replace(">", ""))
        times = f"{timestamp(segment.start, point=',')} --> {timestamp(segment.end, point=',')}"
        yield f"{number}\n{times}\n{text}\n\n"


def as_vtt(segments: Iterable[Segment]) -> Iterator[str]:
    """WebVTT subtitles."""
    yield "WEBVTT\n\n"
    for segment in _with_words(segments):
        text = html.escape(_lines(segment.text), quote=False)
        yield f"{timestamp(segment.start)} --> {timestamp(segment.end)}\n{text}\n\n"


def as_scenes(segments: Iterable[Segment], *, fps: float) -> Iterator[str]:
    """A scene list as PySceneDetect's `list-scenes` writes it, for tools that read those: every scene, no captions.

    fps: the video's frame rate, `Video.fps`. Frames count from 1; the end frame is the last of its scene. Where frames
    do not come at a steady rate, as in a recording of a screen, their numbers are those at the average rate; the times
    are exact.
    """
    yield csv_row(*SCENE_COLUMNS)
    for number, segment in enumerate(from_cut_to_cut(segments), start=1):
        start, end = round(segment.start * fps), round(segment.end * fps)
        cells = [str(number)]
        for frame, seconds in ((start + 1, segment.start), (end, segment.end), (end - start, segment.seconds)):
            cells += [str(frame), timestamp(seconds), f"{seconds:.3f}"]
        yield csv_row(*cells)


def as_edl(segments: Iterable[Segment], *, fps: float, video: str) -> Iterator[str]:
    """A CMX 3600 edit decision list: an event for each scene, its caption as a comment. fps: the video's frame rate.

    Time codes count frames without dropped numbers: at 29.97 frames a second they run at 30, 3.6 s an hour slower than
    the clock. A rate that is not close to a whole number of two digits, such as the average of a screen recording, has
    no time codes of its own: then they count 25 frames a second.
    """
    name = Path(video).name
    yield f"TITLE: {_one_line(Path(video).stem)[:70]}\nFCM: NON-DROP FRAME\n\n"
    rate = round(fps)
    if abs(rate - fps) > 0.002 * fps or rate > 99:
        fps = rate = EDL_RATE
    for number, segment in enumerate(from_cut_to_cut(segments), start=1):
        start, end = (timecode(round(seconds * fps), rate=rate) for seconds in (segment.start, segment.end))
        yield f"{number:03d}  AX       V     C        {start} {end} {start} {end}\n"
        comment = f"* COMMENT: {_one_line(segment.text)}\n" if segment.text else ""
        yield f"* FROM CLIP NAME: {_one_line(name)}\n{comment}\n"


def as_chapters(segments: Iterable[Segment], *, title: str | None = None) -> Iterator[str]:
    """Chapters as FFmpeg's metadata: `ffmpeg -i film.mp4 -i chapters.txt -map_chapters 1 -c copy out.mp4`."""
    yield ";FFMETADATA1\n"
    if title is not None:
        yield f"title={_escaped(title)}\n"
    for segment in segments:
        start, end = round(segment.start * 1000), round(segment.end * 1000)
        yield f"\n[CHAPTER]\nTIMEBASE=1/1000\nSTART={start}\nEND={end}\n"
        if segment.text:
            yield f"title={_escaped(segment.text)}\n"


SCENE_COLUMNS = (
    "Scene Number",
    "Start Frame",
    "Start Timecode",
    "Start Time (seconds)",
    "End Frame",
    "End Timecode",
    "End Time (seconds)",
    "Length (frames)",
    "Length (timecode)",
    "Length (seconds)",
)


def _with_words(segments: Iterable[Segment]) -> Iterator[Segment]:
    """Without empty captions: an empty subtitle would look like the end of the file."""
    return (segment for segment in segments if segment.text)


def _lines(text: str) -> str:
    """As few lines as possible, of similar length."""
    lines = textwrap.wrap(text, LINE_LENGTH)
    width = LINE_LENGTH
    while len(closer := textwrap.wrap(text, width := width - 1)) == len(lines) and width > LINE_LENGTH // 2:
        lines = closer
    return "\n".join(lines)


def _one_line(text: str) -> str:
    return " ".join(text.split())


def _escaped(text: str) -> str:
    """FFmpeg's metadata escapes its own special characters, line ends among them, with a backslash."""
    return re.sub(r"([=;#\\\n])", r"\\\1", text)


def csv_row(*cells: object) -> str:
    """A line of a CSV file."""
    line = io.StringIO()
    csv.writer(line).writerow(cells)  # that of Python 3.11 quotes a return in a cell only where lines end in one, too
    return line.getvalue().removesuffix("\r\n") + "\n"
