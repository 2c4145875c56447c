"""`picknet caption`."""

import contextlib
import dataclasses
import json
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, BinaryIO

import typer

from picknet.cli.arguments import (
    MANY_VIDEOS,
    OUTPUT,
    BadUsage,
    Beam,
    Change,
    Doubts,
    Frames,
    K,
    MaxPixels,
    MinConfidence,
    Model,
    OnePicker,
    Out,
    OutputFormat,
    PickerName,
    Quiet,
    Rate,
    ResultFormat,
    Seed,
    Style,
    Timeout,
    Videos,
    WithPicker,
    check_numbers,
    display_name,
    find_videos,
    note_no_confidence,
    sheet_paths,
)
from picknet.cli.output import RESULT_SUFFIXES, check_out, check_spared, format_for, opened
from picknet.cli.terminal import many, note, progress, say, shown
from picknet.errors import PicknetError

if TYPE_CHECKING:
    from picknet.picking.picker import Pick, Picker
    from picknet.results import Caption
    from picknet.show.page import Thumbnail
    from picknet.video.frame import Frame

MANY_SCENES = 3
LONG_SECONDS = 30.0
"""A video with at least this many scenes and seconds is better described by `picknet timeline`."""

Source = str | BinaryIO
Problems = Sequence[tuple[str, PicknetError]]
"""What was named and is no video: its name, and why it is none."""


def caption(
    videos: Videos,
    format: OutputFormat = None,
    out: Out = None,
    candidates: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, max=50, help="Print N different sentences: the caption, then the likeliest others.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="PATH", help="Draw a contact sheet of the picks: an image for one video, a folder for several.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    min_confidence: MinConfidence = None,
    quiet: Quiet = False,
    model: Model = None,
    style: Style = None,
    beam: Beam = None,
    rate: Rate = None,
    picker: OnePicker = PickerName.picknet,
    k: K = None,
    change: Change = None,
    frames: Frames = None,
    seed: Seed = 0,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", metavar="N", min=1, help="Number of processes.", rich_help_panel=MANY_VIDEOS)
    ] = 1,
    timeout: Timeout = None,
    max_pixels: MaxPixels = None,
) -> None:  # fmt: skip
    """Describe each video in one sentence.

    \b
    Examples:
      picknet caption film.mp4
      picknet caption clips/ --jobs 4 --out captions.csv
      picknet caption film.mp4 --candidates 3 --sheet film.png

    --out collects the results in FILE.part, which becomes FILE at the end: after Ctrl-C or a failure, what was done is
    in FILE.part, and an older FILE is as it was. The same command again begins anew, and replaces FILE.part; picknet
    batch goes on where it was.
    """
    from picknet.files import check_folder

    check_numbers([picker], k, change, rate)
    if "-" in videos and timeout:
        raise BadUsage("--timeout: does not apply to standard input")
    if jobs > 1 and picker in (PickerName.random, PickerName.kmeans, PickerName.hecate, PickerName.coin):
        raise BadUsage(f"--jobs {jobs}: {picker.value} draws its picks one video after the other, in one process")
    format = format_for(out, format, RESULT_SUFFIXES, default=ResultFormat.text)
    with _sources(videos) as (sources, names, problems):
        sheets = sheet_paths(sheet, names) if sheet else [None] * len(names)
        for _, problem in problems:
            say(str(problem))
        if not sources and format is ResultFormat.text:
            raise typer.Exit(1)
        check_out(out)
        check_spared([out, *sheets], sources)
        for folder in {path.parent for path in sheets if path}:
            check_folder(folder)
        captioning = _Captioning(
            model, style, picker, rate, k, change, frames, seed, beam, candidates or 1, min_confidence
        )
        if sources and style and min_confidence is None and (candidates or sheet or format is not ResultFormat.text):
            note_no_confidence(captioning.captioner, style)
        num_failed = _caption_all(
            captioning,
            zip(sources, sheets, strict=True),
            names,
            problems,
            jobs=jobs,
            timeout=timeout,
            out=out,
            table=_Table(format, has_names=len(names) + len(problems) > 1, num_candidates=candidates or 0),
        )
    if num_failed:
        raise typer.Exit(1)


@contextlib.contextmanager
def _sources(arguments: Sequence[str]) -> Iterator[tuple[Sequence[Source], list[str], Problems]]:
    """The videos, their names, and the names and errors of arguments that stand for none."""
    if "-" not in arguments:
        videos, problems = find_videos(arguments)
        yield videos, [display_name(video) for video in videos], problems
        return
    if len(arguments) > 1:
        raise BadUsage("-: standard input is one video, so it has to be the only one")
    if sys.stdin.isatty():
        raise BadUsage("-: standard input is a terminal; pipe a video into it")
    with _copy_of_input() as file:
        yield [file], ["standard input"], []


def _copy_of_input() -> BinaryIO:
    """Standard input in a temporary file. Reading a video needs seeking, which a pipe does not allow."""
    import shutil
    import tempfile

    from picknet.video.file import UnreadableVideo

    try:
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(sys.stdin.buffer, file)
            file.seek(0)
            file.raw.name = "standard input"  # type: ignore[attr-defined]
            stack.pop_all()
            return file
    except OSError as error:
        reason = error.strerror or error
        raise UnreadableVideo(f"standard input: cannot be copied to a temporary file ({reason})") from error


def _caption_all(
    captioning: "_Captioning",
    tasks: Iterable[tuple[Source, Path | None]],
    names: Sequence[str],
    problems: Problems,
    *,
    jobs: int,
    timeout: float | None,
    out: Path | None,
    table: "_Table",
) -> int:
    """Caption the videos and write the results, problems with arguments first; how many failed."""
    from picknet.captioner import NothingToCaption
    from picknet.model.folder import find_model
    from picknet.video.file import UnreadableVideo
    from picknet.video.frame import BadPixels
    from picknet.workers import LostProcess, TaskTimeout, in_order

    model, _ = find_model(captioning.model)
    jobs = min(jobs, max(1, len(names)))
    if names and jobs == 1 and timeout is None:
        _ = captioning.picker  # an error in the model comes before the first result
    num_failed, num_films = len(problems), 0
    doubts = Doubts(captioning.min_confidence)
    results = in_order(captioning, tasks, jobs=jobs, timeout=timeout, name=lambda task: display_name(str(task[0])))
    with opened(out) as write, progress("captioning", len(names)) as on_video:
        header = table.header()  # written with the first row: a header alone is no result
        for name, problem in problems:
            write(header + table.failure(name, problem, model=model))
            header = ""
        for name, result in zip(names, results, strict=True):
            if isinstance(result, BadPixels):  # which knows only the frame
                result = UnreadableVideo(f"{name}: {result}")
            if isinstance(result, UnreadableVideo | NothingToCaption | LostProcess | TaskTimeout):
                say(str(result))
                num_failed += 1
                write(header + table.failure(name, result, model=model))
            elif isinstance(result, PicknetError):
                raise result
            else:
                caption, thumbnails, sheet_path = result
                write(header + table.row(caption))
                if caption.damage:
                    note(f"{caption.video}: {caption.damage}; captioned what could be read")
                if sheet_path:
                    _write_sheet(sheet_path, thumbnails, caption)
                if caption.text:
                    doubts.add(caption.video, caption.confidence)
                if caption.num_scenes >= MANY_SCENES and (caption.seconds or 0) >= LONG_SECONDS:
                    num_films += 1
            header = ""
            on_video()
    if not table.shows_confidence:
        doubts.note()
    if num_films:
        which = f"{num_films:,} of {many(len(names), 'video')} show" if len(names) > 1 else "this video shows"
        note(f"{which} several scenes; picknet timeline describes them one by one")
    return num_failed


@dataclasses.dataclass(frozen=True)
class _Captioning(WithPicker):
    beam: int | None
    candidates: int
    min_confidence: float | None

    def __call__(self, task: tuple[Source, Path | None]) -> "tuple[Caption, list[Thumbnail], Path | None]":
        """A video and where its sheet goes -> the caption, and what the sheet is made of"""
        video, sheet_path = task
        kept = None
        if sheet_path:
            num_frames = self.frames or self.captioner.config.video.num_frames
            kept = _WithThumbnails(self.picker or self.captioner.picker, num_frames)
        caption = self.captioner.caption(
            video,
            picker=kept or self.picker,
            beam=self.beam,
            num_frames=self.frames,
            candidates=self.candidates,
            min_confidence=self.min_confidence,
        )
        return caption, kept.thumbnails if kept else [], sheet_path


class _WithThumbnails:
    """A picker that keeps a small copy of every frame on its way to another picker."""

    def __init__(self, picker: "Picker", num_frames: int) -> None:
        from picknet.picking.picker import glance_kind

        self.picker = picker
        self.glance = glance_kind(picker)
        self._num_frames = num_frames
        self.thumbnails: list[Thumbnail] = []

    def pick(self, frames: Iterable["Frame"]) -> Iterator[tuple["Frame", "Pick"]]:
        from picknet.show.page import Thumbnail
        from picknet.show.sheet import tile_side

        def keep(frame: "Frame") -> "Frame":
            self.thumbnails.append(Thumbnail.of(frame, max_side=max_side))
            return frame

        max_side = tile_side(self._num_frames)

        return self.picker.pick(map(keep, frames))


def _write_sheet(path: Path, frames: Sequence["Thumbnail"], result: "Caption") -> None:
    from picknet.show.page import save
    from picknet.show.sheet import contact_sheet

    title = Path(result.video).name
    sheet = contact_sheet(
        frames, result.picks, result.display_text, title=title, confidence=result.confidence, seconds=result.seconds
    )
    save(sheet, path)


@dataclasses.dataclass(frozen=True)
class _Table:
    """How results are written, one after the other."""

    format: ResultFormat
    has_names: bool
    """Whether lines of text start with the video's name."""
    num_candidates: int
    """0: candidates are not shown."""

    @property
    def shows_confidence(self) -> bool:
        return self.format is not ResultFormat.text or self.num_candidates > 0

    def header(self) -> str:
        from picknet.timeline import csv_row

        if self.format is not ResultFormat.csv:
            return ""
        numbers = range(1, self.num_candidates + 1)
        numbered = [f"{name}_{number}" for number in numbers for name in ("candidate", "probability")]
        names = ["video", "caption", "confidence", "picks", "seconds", "frames_seen", "model", "damage", "error"]
        return csv_row(*names, "not_sure", *numbered)

    def row(self, result: "Caption") -> str:
        from picknet.model.confidence import written

        if self.format in (ResultFormat.json, ResultFormat.jsonl):
            return json.dumps(result.to_dict()) + "\n"
        if self.format is ResultFormat.csv:
            return self._csv(result)
        name = f"{shown(result.video)}: " if self.has_names else ""
        candidates = result.candidates if self.num_candidates else ()
        lines = [f"{one.probability:.4f}  {one.text}" for one in candidates] or [result.display_text]
        if candidates and result.confidence is not None:
            lines[0] += f" (confidence {written(result.confidence)})"
        return "".join(f"{name}{line}\n" for line in lines)

    def failure(self, video: str, error: PicknetError, *, model: str) -> str:
        """In files for programs, a video without a caption has a row, too."""
        from picknet.results import Caption

        if self.format is ResultFormat.text:
            return ""
        return self.row(Caption("", (), 0, video, model, None, -math.inf, num_scenes=0, error=str(error)))

    def _csv(self, result: "Caption") -> str:
        from picknet.timeline import csv_row

        candidates = [cell for one in result.candidates for cell in (one.text, f"{one.probability:.4g}")]
        return csv_row(
            result.video,
            result.text,
            "" if result.confidence is None else f"{result.confidence:.4f}",
            " ".join(str(pick.index) for pick in result.picks),
            " ".join(f"{pick.seconds:.3f}" for pick in result.picks),
            result.frames_seen,
            result.model,
            result.damage,
            result.error,
            result.not_sure,
            *(candidates + [""] * 2 * self.num_candidates)[: 2 * self.num_candidates],
        )
