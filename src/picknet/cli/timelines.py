"""`picknet timeline`."""

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from picknet.cli.arguments import (
    OUTPUT,
    BadUsage,
    Beam,
    Doubts,
    MaxPixels,
    MinConfidence,
    Model,
    PickerName,
    Quiet,
    Rate,
    Style,
    Timeout,
    Videos,
    WithModel,
    check_numbers,
    display_name,
    find_videos,
    note_no_confidence,
    own_names,
    sheet_paths,
)
from picknet.cli.output import check_spared, format_for, is_special, opened
from picknet.cli.terminal import note, say, shown, video_progress
from picknet.timecode import clock

if TYPE_CHECKING:
    from picknet.picking.picker import Pick, Picker
    from picknet.results import Segment
    from picknet.show.page import Thumbnail
    from picknet.video.frame import Frame

MAX_THUMBNAILS = 64


class TimelineFormat(StrEnum):
    text = "text"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    srt = "srt"
    vtt = "vtt"
    scenes = "scenes"
    edl = "edl"
    chapters = "chapters"


SUFFIXES: dict[str, tuple[TimelineFormat, ...]] = {
    ".txt": (TimelineFormat.text,),
    ".json": (TimelineFormat.json,),
    ".jsonl": (TimelineFormat.jsonl,),
    ".csv": (TimelineFormat.csv, TimelineFormat.scenes),
    ".srt": (TimelineFormat.srt,),
    ".vtt": (TimelineFormat.vtt,),
    ".edl": (TimelineFormat.edl,),
    ".ffmeta": (TimelineFormat.chapters,),
}
FOR_MANY = (TimelineFormat.text, TimelineFormat.json, TimelineFormat.jsonl, TimelineFormat.csv)
"""Formats in which the timelines of several films can follow each other."""
SHOW_CONFIDENCE = (TimelineFormat.json, TimelineFormat.jsonl, TimelineFormat.csv)
LEAVE_OUT = (TimelineFormat.srt, TimelineFormat.vtt, TimelineFormat.edl, TimelineFormat.chapters)
"""Formats in which nothing stands for a caption that is not sure."""


def timeline(
    videos: Videos,
    format: Annotated[
        TimelineFormat | None,
        typer.Option(
            "--format", "-f", metavar="FORMAT", show_default="text, or by the suffix of --out",
            help="text, json (one object a film), jsonl or csv (one line a segment), srt or vtt (subtitles), scenes "
            "(CSV as PySceneDetect writes it), edl (CMX 3600) or chapters (FFmpeg metadata).", rich_help_panel=OUTPUT,
        ),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="PATH", help="Write to this file, or for several films to files in this folder.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Draw a storyboard: an image for one film, a folder for several.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    min_confidence: MinConfidence = None,
    quiet: Quiet = False,
    model: Model = None,
    style: Style = None,
    beam: Beam = None,
    fps: Annotated[
        float,
        typer.Option(metavar="X", min=0.001, max=1000, help="Frames to glance at per second."),
    ] = 2.0,
    rate: Rate = None,
    timeout: Timeout = None,
    max_pixels: MaxPixels = None,
) -> None:  # fmt: skip
    """Describe a long video scene by scene, with start and end times.

    \b
    Examples:
      picknet timeline film.mp4
      picknet timeline film.mp4 --out film.srt --sheet storyboard.png
      picknet timeline films/ --format edl --out lists/

    --out collects the segments in FILE.part, which becomes FILE at the end of the film.
    """
    check_numbers([PickerName.picknet], None, None, rate)
    out = None if str(out) == "-" else out
    found, problems = find_videos(videos)
    names = [display_name(video) for video in found]
    format, places = _places(out, format, names)
    sheets = sheet_paths(sheet, names) if sheet else [None] * len(found)
    check_spared([*places, *sheets], found)
    for _, problem in problems:
        say(str(problem))
    if not found:
        raise typer.Exit(1)

    from picknet.files import check_folder
    from picknet.model.folder import find_model
    from picknet.video.file import UnreadableVideo
    from picknet.video.frame import BadPixels
    from picknet.workers import LostProcess, TaskTimeout, items_in_order

    for path in (path for path in (*places, *sheets) if path and not is_special(path)):
        check_folder(path.parent)  # before a long film is read
    describing = _Describing(model, style, rate, fps, beam, min_confidence)
    if style and (sheet or format in SHOW_CONFIDENCE):
        note_no_confidence(describing.captioner, style)
    model_name, _ = find_model(model)
    tasks = list(zip(found, sheets, strict=True))
    if timeout is None:
        _ = describing.captioner  # an error in the model comes before the first film
    num_failed = len(problems)
    has_names = format is TimelineFormat.text and len(found) + len(problems) > 1
    has_header = False
    doubts = Doubts(min_confidence, leaves_out=format in LEAVE_OUT)
    with video_progress("describing", len(found)) as progress:
        if timeout is None:
            films: Iterator[Any] = (describing.segments(*task, on_frame=progress.at) for task in tasks)
        else:
            films = items_in_order(describing, tasks, timeout=timeout, name=lambda task: display_name(task[0]))
        for video, name, place in zip(found, names, places, strict=True):
            progress.begin(video)
            segments = next(films)
            prefix = f"{shown(name)}: " if has_names and not place else ""
            try:
                # An unreadable film fails here, before the header of its file is written.
                film = next(segments)
                first = list(itertools.islice(segments, 1))
                every = _noting_damage(itertools.chain(first, segments), name)
                every = _adding(doubts, every, f"{name} at " if len(found) > 1 else "")
                pieces = _pieces(format, every, film, name=name, model=model_name)
                with opened(place) as write:
                    if format is TimelineFormat.csv and has_header and not place:
                        next(pieces)  # the header stands once above all films
                    for piece in pieces:
                        write(prefix + piece)
                        has_header = True
                if place and not is_special(place):
                    print(place, flush=True)
            except (UnreadableVideo, LostProcess, TaskTimeout) as error:
                say(str(error))
                num_failed += 1
            except BadPixels as error:  # which knows only the frame
                say(f"{name}: {error}")
                num_failed += 1
    if format not in (*SHOW_CONFIDENCE, TimelineFormat.scenes):
        doubts.note()
    if num_failed:
        raise typer.Exit(1)


def _pieces(
    format: TimelineFormat, segments: "Iterable[Segment]", film: "_Film", *, name: str, model: str
) -> Iterator[str]:
    """The content of a timeline's file, piece by piece. name: what it calls the video."""
    from picknet import timeline

    def played() -> "Iterator[Segment]":
        return timeline.as_played(segments, begin=film.begin)

    writers: dict[TimelineFormat, Callable[[], Iterator[str]]] = {
        TimelineFormat.text: lambda: timeline.as_text(segments),
        TimelineFormat.json: lambda: timeline.as_json(segments, video=name, model=model),
        TimelineFormat.jsonl: lambda: timeline.as_jsonl(segments),
        TimelineFormat.csv: lambda: timeline.as_csv(segments, video=name),
        TimelineFormat.srt: lambda: timeline.as_srt(played()),
        TimelineFormat.vtt: lambda: timeline.as_vtt(played()),
        TimelineFormat.scenes: lambda: timeline.as_scenes(segments, fps=film.fps),
        TimelineFormat.edl: lambda: timeline.as_edl(segments, fps=film.fps, video=name),
        TimelineFormat.chapters: lambda: timeline.as_chapters(played(), title=Path(name).stem),
    }
    return writers[format]()


def _places(
    out: Path | None, format: TimelineFormat | None, videos: Sequence[str]
) -> tuple[TimelineFormat, Sequence[Path | None]]:
    """The format, and the file for each film's timeline; None for standard output."""
    if out is None or is_special(out):
        if len(videos) > 1 and format and format not in FOR_MANY:
            raise BadUsage(f"--format {format}: is for one film; for {len(videos)} of them name a folder, --out FOLDER")
        return format or TimelineFormat.text, [out] * len(videos)
    if not out.suffix or out.is_dir():
        format = format or TimelineFormat.text
        suffix = next(suffix for suffix, formats in SUFFIXES.items() if format in formats)
        return format, [out / f"{name}{suffix}" for name in own_names(videos)]
    format = format_for(out, format, SUFFIXES, default=TimelineFormat.text)
    if len(videos) > 1:
        raise BadUsage(f"--out {out}: one file cannot hold the timelines of {len(videos)} films; name a folder")
    return format, [out] * len(videos)


class _Film(NamedTuple):
    begin: float
    """Seconds before the first frame."""
    fps: float
    """Frames a second, which time codes count by."""


@dataclasses.dataclass(frozen=True)
class _Describing(WithModel):
    rate: float | None
    fps: float
    beam: int | None
    min_confidence: float | None

    def __call__(self, task: "tuple[str, Path | None]") -> "Iterator[_Film | Segment]":
        """A film and where its storyboard goes -> what is known of it, and its segments"""
        return self.segments(*task)

    def segments(
        self, video: str, sheet: Path | None, on_frame: Callable[[float], object] = lambda seconds: None
    ) -> "Iterator[_Film | Segment]":
        """What is known of a film, and its segments, each of which is drawn into the storyboard as it passes."""
        from picknet.show.storyboard import Storyboard
        from picknet.video.file import Video
        from picknet.walk import check_finite

        board = Storyboard(sheet, title=Path(display_name(video)).name) if sheet else None
        picker = self.captioner.picker if self.rate is None else self.captioner.picker_at(self.rate)
        watcher = _Watcher(picker, on_frame, keep=board is not None)
        check_finite(video)
        try:
            with Video(video, glance=watcher.glance) as opened:  # once: an address is downloaded
                yield _Film(opened.begin, opened.fps)
                for segment in self.captioner.timeline(
                    opened, fps=self.fps, picker=watcher, beam=self.beam, min_confidence=self.min_confidence
                ):
                    if board:
                        board.add(segment, watcher.take(segment.picks))
                    yield segment
        finally:
            if board:
                board.end()  # after Ctrl-C with the segments so far


def _noting_damage(segments: "Iterable[Segment]", name: str) -> "Iterator[Segment]":
    """The same segments; afterwards what is damaged in the film is noted."""
    damage = None
    for segment in segments:
        damage = segment.damage
        yield segment
    if damage:
        note(f"{name}: {damage}; described what could be read")


def _adding(doubts: Doubts, segments: "Iterable[Segment]", prefix: str) -> "Iterator[Segment]":
    """The same segments, whose captions are added to the doubts; blank frames leave none."""
    from picknet.describer import NOTHING_TO_SEE

    for segment in segments:
        if segment.not_sure != NOTHING_TO_SEE:
            doubts.add(f"{prefix}{clock(segment.start)}", segment.confidence)
        yield segment


class _Watcher:
    """A picker that reports the time of every frame on its way to another picker, and keeps thumbnails of the picks."""

    def __init__(self, picker: "Picker", on_frame: Callable[[float], object], *, keep: bool) -> None:
        from picknet.picking.picker import glance_kind

        self._picker = picker
        self.glance = glance_kind(picker)
        self._on_frame = on_frame
        self._keep = keep
        self._thumbnails: dict[int, Thumbnail] = {}

    def pick(self, frames: Iterable["Frame"]) -> Iterator[tuple["Frame", "Pick"]]:
        from picknet.show.page import Thumbnail

        for frame, pick in self._picker.pick(map(self._see, frames)):
            if self._keep:
                self._thumbnails[pick.index] = Thumbnail.of(frame, max_side=240)
            if len(self._thumbnails) > MAX_THUMBNAILS:
                # Of a very long segment, every second one is enough. The newest may belong to the next segment.
                for index in list(self._thumbnails)[1:-16:2]:
                    del self._thumbnails[index]
            yield frame, pick

    def take(self, picks: Sequence["Pick"]) -> "list[Thumbnail]":
        """The thumbnails of these picks. They and all earlier ones are forgotten."""
        taken = [self._thumbnails[pick.index] for pick in picks if pick.index in self._thumbnails]
        self._thumbnails = {index: copy for index, copy in self._thumbnails.items() if index > picks[-1].index}
        return taken

    def _see(self, frame: "Frame") -> "Frame":
        self._on_frame(frame.seconds)
        return frame
