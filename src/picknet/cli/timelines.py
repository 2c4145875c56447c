"""`picknet timeline`."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from picknet.cli.arguments import BadUsage, Beam, Model, Style, find_videos, own_names, seconds_to_tell, sheet_paths
from picknet.cli.terminal import each_second, progress, say, shown

if TYPE_CHECKING:
    from picknet.captioner import Captioner
    from picknet.picking.picker import Pick, Picker
    from picknet.show.page import Thumbnail
    from picknet.show.storyboard import Storyboard
    from picknet.timeline import Segment
    from picknet.video.frame import Frame


class TimelineFormat(StrEnum):
    text = "text"
    json = "json"
    srt = "srt"
    vtt = "vtt"
    csv = "csv"


def timeline(
    files: Annotated[
        list[str], typer.Argument(metavar="FILM", help="Videos, folders of videos, or patterns such as 'clips/*.mp4'.")
    ],
    format: Annotated[
        TimelineFormat | None, typer.Option(help="srt, vtt: subtitles; json: one object a film.", show_default="text")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Write .txt, .json, .srt, .vtt, .csv: a file's name for one film, a folder for any number."),
    ] = None,
    sheet: Annotated[
        Path | None, typer.Option(help="Write the storyboard: a picture's name for one film, a folder for any number.")
    ] = None,
    fps: Annotated[float, typer.Option(min=0.001, max=1000, help="Frames a second that are glanced at.")] = 2.0,
    model: Model = None,
    style: Style = None,
    beam: Beam = None,
) -> None:
    """Tell what a long video shows, from when to when: as lines, as subtitles, as a storyboard."""
    videos, problems = find_videos(files)
    format, places = _timeline_places(out, format, videos)
    sheets = sheet_paths(sheet, videos) if sheet else [None] * len(videos)
    for problem in problems:
        say(problem)
    if not videos:
        raise typer.Exit(1)

    from picknet.captioner import load
    from picknet.files import check_folder, written_whole
    from picknet.show.storyboard import Storyboard
    from picknet.timeline import as_csv, as_json, as_srt, as_text, as_vtt
    from picknet.video.file import UnreadableVideo

    for path in filter(None, (*places, *sheets)):
        check_folder(path.parent)  # a long film would be watched in vain
    captioner = load(model, style=style)
    writers: dict[TimelineFormat, Callable[[Iterable[Segment], str], Iterator[str]]] = {
        TimelineFormat.text: lambda segments, _: as_text(segments),
        TimelineFormat.json: lambda segments, video: as_json(segments, video=video, model=captioner.name),
        TimelineFormat.srt: lambda segments, _: as_srt(segments),
        TimelineFormat.vtt: lambda segments, _: as_vtt(segments),
        TimelineFormat.csv: lambda segments, video: as_csv(segments, video=video),
    }
    num_failed = len(problems)
    with progress("seconds told", seconds_to_tell(videos)) as tick:
        for number, (video, place, path) in enumerate(zip(videos, places, sheets, strict=True)):
            board = Storyboard(path, title=Path(video).name) if path else None
            watched = _TimelineWatch(captioner.picker, tick, keep=board is not None)
            content = writers[format](_told(captioner, video, watched, board, fps=fps, beam=beam), video)
            try:
                if place:
                    with written_whole(place) as temporary, temporary.open("w", encoding="utf-8", newline="") as file:
                        file.writelines(content)
                    print(place, flush=True)
                    continue
                if number and format is TimelineFormat.csv:
                    next(content)  # the names of the columns stand above all films
                name = f"{shown(video)}: " if len(videos) > 1 and format is TimelineFormat.text else ""
                for piece in content:
                    print(name + piece, end="", flush=True)
            except UnreadableVideo as error:
                say(str(error))
                num_failed += 1
    if num_failed:
        raise typer.Exit(1)


def _timeline_places(
    out: Path | None, format: TimelineFormat | None, videos: Sequence[str]
) -> tuple[TimelineFormat, Sequence[Path | None]]:
    """The format, and the file that each film's timeline is written to; None for standard output."""
    suffixes = {f".{name}" if name is not TimelineFormat.text else ".txt": name for name in TimelineFormat}
    if out is None:
        if len(videos) > 1 and format in (TimelineFormat.srt, TimelineFormat.vtt):
            raise BadUsage(f"--format {format}: is for one film; for {len(videos)} of them name a folder, --out FOLDER")
        return format or TimelineFormat.text, [None] * len(videos)
    if not out.suffix or out.is_dir():
        format = format or TimelineFormat.text
        suffix = next(suffix for suffix, name in suffixes.items() if name is format)
        return format, [out / f"{name}{suffix}" for name in own_names(videos)]
    told = suffixes.get(out.suffix.lower())
    if told is None:
        raise BadUsage(f"--out {out}: a timeline ends in {', '.join(suffixes)}; a folder's name has no suffix")
    if format not in (None, told):
        raise BadUsage(f"--out {out}: is {told} by its name, but --format says {format}")
    if len(videos) > 1:
        raise BadUsage(f"--out {out}: one file cannot hold the timelines of {len(videos)} films; name a folder")
    return told, [out] * len(videos)


def _told(
    captioner: "Captioner",
    video: str,
    watched: "_TimelineWatch",
    board: "Storyboard | None",
    *,
    fps: float,
    beam: int | None,
) -> "Iterator[Segment]":
    """The segments of a film, which go into its storyboard as they pass."""
    damage = None
    try:
        for segment in captioner.timeline(video, fps=fps, picker=watched, beam=beam):
            damage = segment.damage
            if board:
                board.add(segment, watched.take(segment.picks))
            yield segment
    finally:
        if board:
            board.end()  # after Ctrl-C, too: the pages show what was read until then
    if damage:
        say(f"{video}: {damage}; told what could be read")


class _TimelineWatch:
    """A picker that ticks for every second of film that it hands to another, and keeps small copies of the picks."""

    def __init__(self, picker: "Picker", tick: Callable[[], object], *, keep: bool) -> None:
        self._picker = picker
        self._see_seconds = each_second(tick)
        self._keep = keep
        self._kept: dict[int, Thumbnail] = {}

    def pick(self, frames: Iterable["Frame"]) -> Iterator[tuple["Frame", "Pick"]]:
        from picknet.show.page import Thumbnail
        from picknet.show.storyboard import MAX_SIDE

        for frame, pick in self._picker.pick(map(self._see, frames)):
            if self._keep:
                self._kept[pick.index] = Thumbnail.of(frame, max_side=MAX_SIDE)
            if len(self._kept) > 64:  # of a sentence without an end, every second will do; the newest may be another's
                for index in list(self._kept)[1:-16:2]:
                    del self._kept[index]
            yield frame, pick

    def take(self, picks: Sequence["Pick"]) -> "list[Thumbnail]":
        """What is kept of these picks; it is let go, and all before it."""
        taken = [self._kept[pick.index] for pick in picks if pick.index in self._kept]
        self._kept = {index: copy for index, copy in self._kept.items() if index > picks[-1].index}
        return taken

    def _see(self, frame: "Frame") -> "Frame":
        self._see_seconds(frame.seconds)
        return frame
