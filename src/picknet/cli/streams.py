"""`picknet stream`."""

import contextlib
import json
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from picknet.cli.arguments import (
    OUTPUT,
    Beam,
    Doubts,
    MaxPixels,
    MinConfidence,
    Model,
    Out,
    OutputFormat,
    PickerName,
    Quiet,
    Rate,
    ResultFormat,
    Style,
    check_numbers,
    note_no_confidence,
    sheet_paths,
)
from picknet.cli.output import RESULT_SUFFIXES, check_out, check_spared, format_for, opened_live
from picknet.cli.terminal import many, note
from picknet.timecode import clock

if TYPE_CHECKING:
    from picknet.picking.picker import Pick, Picker
    from picknet.results import Update
    from picknet.show.page import Thumbnail
    from picknet.show.sheet import Moment
    from picknet.video.frame import Frame
    from picknet.video.live import Live

SOURCE = "Source"
CSV_COLUMNS = (
    "video", "seconds", "caption", "changed", "confidence", "total_picks", "frames_seen", "scene", "lag",
    "not_sure",
)  # fmt: skip
MAX_MEMORY = 4 << 30
"""Bytes that a stream may allocate beside the model. A hostile server sends playlists and packets without an end, which
FFmpeg would keep until the timeout is over."""
MAX_SHOWN = 60
"""Picks on a sheet, so that one of an endless stream stays a picture."""


def stream(
    source: Annotated[
        str,
        typer.Argument(
            metavar="SOURCE",
            help="A camera's number (0), an address (rtsp://, rtmp://, http(s)://, udp://), a file, or - for standard "
            "input.",
        ),
    ],
    format: OutputFormat = None,
    out: Out = None,
    only_changes: Annotated[
        bool,
        typer.Option("--only-changes", help="Print a caption only where it changes.", rich_help_panel=OUTPUT),
    ] = False,
    sheet: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help=f"Draw the first {MAX_SHOWN} picks, each with the caption at that time, when it ends.",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    min_confidence: MinConfidence = None,
    quiet: Quiet = False,
    fps: Annotated[
        float,
        typer.Option(
            metavar="X", min=0.001, max=1000, help="Frames to glance at per second.", rich_help_panel=SOURCE
        ),
    ] = 1.0,
    realtime: Annotated[
        bool,
        typer.Option(
            "--realtime", help="Play a file at its own speed; drop frames of a file or pipe when late.",
            rich_help_panel=SOURCE,
        ),
    ] = False,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, max=86400, help="Seconds without a frame after which the source is lost.",
            rich_help_panel=SOURCE,
        ),
    ] = 15.0,
    retries: Annotated[
        int,
        typer.Option(
            metavar="N", min=0, help="Attempts in a row to reconnect to a lost source.", rich_help_panel=SOURCE
        ),
    ] = 10,
    rate: Rate = None,
    model: Model = None,
    style: Style = None,
    beam: Beam = None,
    max_pixels: MaxPixels = None,
) -> None:  # fmt: skip
    """Describe a camera or another live source while it runs.

    A caption is printed after every pick, made from the picks of the current scene.

    \b
    Examples:
      picknet stream 0
      picknet stream rtsp://camera.local/1 --only-changes --out log.jsonl
      ffmpeg -i film.mp4 -c copy -f mpegts - | picknet stream -
      picknet stream film.mp4 --sheet captions.png

    With --out, each caption is in the file as soon as it is known.
    """
    check_numbers([PickerName.picknet], None, None, rate)
    format = format_for(out, format, RESULT_SUFFIXES, default=ResultFormat.text)
    check_out(out)
    sheet_path = sheet_paths(sheet, [source])[0] if sheet else None
    check_spared([out, sheet_path], [source])

    from picknet.captioner import load
    from picknet.files import check_folder
    from picknet.picking.picker import glance_kind
    from picknet.video.live import Live
    from picknet.video.source import UnreachableSource

    if not source:
        raise UnreachableSource("'': no such file, camera or address")
    if sheet_path:
        check_folder(sheet_path.parent)
    with opened_live(out) as write:
        printer = _Printer(format, write, rewrites=out is None and format is ResultFormat.text and sys.stdout.isatty())
        captioner = load(model, style=style)
        chosen = captioner.picker_at(1.0 if rate is None else rate, spread=False)
        live = Live(
            source,
            fps=fps,
            realtime=realtime,
            timeout=timeout,
            retries=retries,
            glance=glance_kind(chosen),
            note=printer.note,
        )
        if style and format is not ResultFormat.text:
            note_no_confidence(captioner, style)
        num_picks = num_captions = 0
        doubts = Doubts(min_confidence)
        shown: list[Moment] = []
        picker = _WithThumbnail(chosen) if sheet_path else None
        try:
            with _limited_memory(MAX_MEMORY):
                for update in captioner.stream(live, picker=picker or chosen, beam=beam, min_confidence=min_confidence):
                    if picker and len(shown) < MAX_SHOWN and (moment := picker.moment(update)):
                        shown.append(moment)
                    num_picks = update.total_picks
                    num_captions += update.changed and bool(update.text)
                    if update.changed or not only_changes:
                        if update.text:
                            doubts.add(clock(update.seconds), update.confidence)
                        printer.print(update)
        finally:
            printer.end()
            if sheet_path and shown:
                _write_sheet(sheet_path, shown)
            if format is ResultFormat.text:
                doubts.note()
            if live.num_frames:
                note(_summary(live, num_picks, num_captions))


@contextlib.contextmanager
def _limited_memory(num_bytes: int) -> Iterator[None]:
    """Let this process allocate so many bytes more within the block, and no more than that; on Linux only."""
    if sys.platform != "linux":
        yield
        return
    import resource

    used = int(Path("/proc/self/statm").read_text().split()[5]) * resource.getpagesize()
    before, most = resource.getrlimit(resource.RLIMIT_DATA)
    limits = [limit for limit in (used + num_bytes, before, most) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min(limits), most))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (before, most))


class _WithThumbnail:
    """A picker that keeps a small copy of the newest pick of another picker."""

    def __init__(self, picker: "Picker") -> None:
        from picknet.picking.picker import glance_kind

        self.picker = picker
        self.glance = glance_kind(picker)
        self.newest: Thumbnail | None = None

    def pick(self, frames: Iterable["Frame"]) -> Iterator[tuple["Frame", "Pick"]]:
        from picknet.show.page import Thumbnail

        for frame, pick in self.picker.pick(frames):
            self.newest = Thumbnail.of(frame)
            yield frame, pick

    def moment(self, update: "Update") -> "Moment | None":
        """The newest pick with its caption, for a sheet."""
        from picknet.show.sheet import Moment

        if self.newest is None:
            return None
        # The text of a caption that is left out, "not sure (0.31)", says its confidence itself.
        return Moment(self.newest, update.display_text, update.confidence if update.text else None)


def _write_sheet(path: Path, shown: "list[Moment]") -> None:
    from picknet.show.page import save
    from picknet.show.sheet import online_strip

    save(online_strip(shown), path)


class _Printer:
    """Prints updates: a line each, or on a terminal one line that is overwritten."""

    def __init__(self, format: ResultFormat, write: Callable[[str], object], *, rewrites: bool) -> None:
        self._format = format
        self._write = write
        self._rewrites = rewrites
        self._has_header = False
        self._line = ""
        self._lock = threading.Lock()  # notes about the connection come from another thread

    def print(self, update: "Update") -> None:
        from picknet.timeline import csv_row

        with self._lock:
            if self._format in (ResultFormat.json, ResultFormat.jsonl):
                self._write(json.dumps(update.to_dict()) + "\n")
            elif self._format is ResultFormat.csv:
                content = update.to_dict()
                header = "" if self._has_header else csv_row(*CSV_COLUMNS)
                sure = None if update.confidence is None else f"{update.confidence:.4f}"
                content |= {"changed": "true" if update.changed else "false", "confidence": sure}
                self._write(header + csv_row(*(content[name] for name in CSV_COLUMNS)))
                self._has_header = True
            elif not self._rewrites:
                self._write(f"{clock(update.seconds)}  {update.display_text}\n")
            else:
                picks = f"{many(update.total_picks, 'pick')} of {many(update.frames_seen, 'frame')}"
                line = f"{clock(update.seconds)}  {update.display_text}  ({picks})"
                self._line = line[: shutil.get_terminal_size().columns - 1]
                self._overwrite(self._line)

    def _overwrite(self, line: str) -> None:
        # Past `write`, which keeps control characters from the terminal.
        print(f"\r\x1b[2K{line}", end="", flush=True)

    def note(self, message: str) -> None:
        """Print a note above the line that is overwritten."""
        with self._lock:
            if self._line:
                self._overwrite("")
            note(message)
            if self._line:
                self._write(self._line)

    def end(self) -> None:
        """Leave the last caption on a line of its own."""
        with self._lock:
            if self._line:
                self._write("\n")
            self._line = ""


def _summary(live: "Live", num_picks: int, num_captions: int) -> str:
    parts = [
        f"{many(live.num_frames, 'frame')} until {clock(live.seconds)}",
        many(num_picks, "pick"),
        many(num_captions, "caption"),
    ]
    if live.max_lag is not None:
        parts += [f"{live.num_dropped:,} dropped", f"lag at most {live.max_lag:.1f} s"]
    if live.num_reconnects:
        parts.append(f"lost {many(live.num_reconnects, 'time')}")
    if live.damage:
        parts.append(live.damage)
    return f"{live.name}: {', '.join(parts)}"
