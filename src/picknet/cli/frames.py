"""`picknet pick`."""

import dataclasses
import json
import signal
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from picknet.cli.arguments import (
    OUTPUT,
    PICKING,
    BadUsage,
    Change,
    Frames,
    K,
    MaxPixels,
    Model,
    PickerName,
    Quiet,
    Rate,
    Seed,
    Timeout,
    WithPicker,
    check_numbers,
    display_name,
    find_videos,
    own_names,
)
from picknet.cli.terminal import note, printable, say, video_progress

if TYPE_CHECKING:
    from picknet.results import Picked
    from picknet.show.frames import PickedFrame
    from picknet.video.frame import Frame
    from picknet.video.live import Live

COLUMNS = ("video", "file", "index", "seconds", "probability", "frame_number", "width", "height")
"""Of a table of picks."""


class PickFormat(StrEnum):
    text = "text"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"
    base64 = "base64"
    openai = "openai"
    anthropic = "anthropic"
    paths = "paths"
    """The same as text, by its former name."""


class ImageFormat(StrEnum):
    jpeg = "jpeg"
    png = "png"


def pick(
    videos: Annotated[
        list[str],
        typer.Argument(
            metavar="VIDEO",
            help="Files, folders, patterns such as 'clips/*.mp4', or http(s):// addresses of files; with --budget also "
            "a single live source, as for picknet stream.",
        ),
    ],
    out: Annotated[
        Path | None,
        typer.Option(
            "--out", "-o", metavar="DIR", help="Write the frames and index.json to this new folder, or with several "
            "videos to a folder in it for each.", rich_help_panel=OUTPUT,
        ),
    ] = None,
    format: Annotated[
        PickFormat,
        typer.Option(
            "--format", "-f", metavar="FORMAT", help="text (the paths of the images), json (one object a video), jsonl "
            "or csv (one line a frame), base64 (JSON with the image), openai or anthropic (content of a chat message).",
            rich_help_panel=OUTPUT,
        ),
    ] = PickFormat.text,
    image_format: Annotated[
        ImageFormat | None,
        typer.Option(metavar="FORMAT", help="jpeg or png.", show_default="jpeg", rich_help_panel=OUTPUT),
    ] = None,
    max_side: Annotated[
        int | None,
        typer.Option(
            min=1, metavar="PIXELS", help="Shrink images with a longer side.", show_default="full size",
            rich_help_panel=OUTPUT,
        ),
    ] = None,
    quiet: Quiet = False,
    budget: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Pick at most N frames of a video of any length: the N most probable picks of "
            "--picker; without --picker, frames that show what happens.", rich_help_panel=PICKING,
        ),
    ] = None,
    exact: Annotated[
        bool, typer.Option("--exact", help="Pick exactly N, even if little happens.", rich_help_panel=PICKING)
    ] = False,
    picker: Annotated[
        PickerName | None,
        typer.Option(
            metavar="PICKER", help=f"One of {', '.join(PickerName)}.", show_default="picknet", rich_help_panel=PICKING
        ),
    ] = None,
    rate: Rate = None,
    k: K = None,
    change: Change = None,
    frames: Frames = None,
    seed: Seed = 0,
    model: Model = None,
    timeout: Timeout = None,
    max_pixels: MaxPixels = None,
) -> None:  # fmt: skip
    """Save the frames that matter, or print them for a chat model.

    \b
    Examples:
      picknet pick film.mp4 --budget 8 --out frames/
      picknet pick film.mp4 --budget 8 --format openai --max-side 768 > content.json
      picknet pick film.mp4 --format csv
    """
    from picknet.picking.budget import MAX_BUDGET

    check_numbers([picker or PickerName.picknet], k, change, rate)
    for option, number in (("--rate", rate), ("--k", k)):
        if number is not None and budget and not picker:
            how = "add --picker picknet, or leave one of them out"
            raise BadUsage(f"{option} {number:g}: --budget says how many; {how}")
    if budget is not None and not 1 <= budget <= MAX_BUDGET:
        raise BadUsage(f"--budget {budget}: 1 to {MAX_BUDGET:,} frames are possible")
    if exact and (not budget or picker):
        raise BadUsage("--exact needs a --budget, and no --picker beside it")
    if model and picker in (PickerName.uniform, PickerName.random, PickerName.scene, PickerName.all):
        raise BadUsage(f"--model {model}: the picker {picker} uses no model")
    if format is PickFormat.paths:
        format = PickFormat.text
    if not out and format is PickFormat.text:
        others = ", ".join(name for name in PickFormat if name not in (PickFormat.text, PickFormat.paths))
        raise BadUsage(f"no output: pass --out DIR for the images, or a --format that needs no folder: {others}")
    for option, given in (("--max-side", max_side), ("--image-format", image_format)):
        if not out and format in (PickFormat.json, PickFormat.jsonl, PickFormat.csv) and given:
            raise BadUsage(f"{option} {given}: {format.value} holds no images; pass --out DIR for them")
    if out and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadUsage(f"{out}: exists and is not an empty folder; name a new one")
    watch = _Watch.over(videos)
    if watch and (not budget or exact or picker):
        raise BadUsage(
            f"{watch.live.name}: a live source, which may have no end; pick from it with --budget N, "
            "without --exact and --picker"
        )
    if watch and timeout:
        raise BadUsage("--timeout: does not apply to a live source")
    found, problems = ([watch.live.name], []) if watch else find_videos(videos)
    for _, problem in problems:
        say(str(problem))
    if not found:
        raise typer.Exit(1)

    from picknet.errors import BadSetting, PicknetError
    from picknet.files import check_folder
    from picknet.show.frames import BadImage
    from picknet.timeline import csv_row
    from picknet.video.file import UnreadableVideo
    from picknet.video.frame import BadPixels
    from picknet.workers import LostProcess, TaskTimeout, in_order

    if out:
        check_folder(out)  # before a long video is read
    names = [display_name(video) for video in found]
    is_one = len(found) + len(problems) == 1
    folders = [out / name for name in own_names(names)] if out and not is_one else [out] * len(found)
    if not (picker or budget):
        picker = PickerName.picknet
    kind = (image_format or ImageFormat.jpeg).value
    picking = _Picking(
        model, None, picker, rate, k, change, frames, seed, budget, exact, format, kind, max_side
    )
    num_failed = len(problems)
    if timeout is None:
        _ = picking.picker  # an error in the model comes before the first result
    tasks = list(zip(found, names, folders, strict=True))
    results = in_order(picking, tasks, jobs=1, timeout=timeout, name=lambda task: task[1]) if timeout else None
    header = csv_row(*COLUMNS) if format is PickFormat.csv else ""

    def write(text: str) -> None:
        nonlocal header
        print(printable(header + text), end="", flush=True)
        header = ""

    with video_progress("picking", 0 if watch else len(found)) as progress:
        for video, name, folder in tasks:
            progress.begin(video)
            try:
                if results is None:
                    damage = picking.pick(watch or video, name, folder, write=write, on_frame=progress.at)
                else:
                    result = next(results)
                    if isinstance(result, PicknetError):
                        raise result
                    pieces, damage = result
                    for piece in pieces:
                        write(piece)
                if damage:
                    note(f"{name}: {damage}; picked from what could be read")
            except (UnreadableVideo, BadSetting, LostProcess, TaskTimeout) as error:
                say(str(error))
                num_failed += 1
            except (BadPixels, BadImage) as error:  # which know only the frame
                say(f"{name}: {error}")
                num_failed += 1
    if num_failed or (watch and watch.code):
        raise typer.Exit((watch.code if watch else 0) or 1)


@dataclasses.dataclass(frozen=True)
class _Picking(WithPicker):
    budget: int | None
    exact: bool
    format: PickFormat
    image_format: str
    max_side: int | None

    def __call__(self, task: tuple[str, str, Path | None]) -> tuple[list[str], str | None]:
        """A video, its name and its folder -> what is printed, and what is damaged"""
        pieces: list[str] = []
        damage = self.pick(*task, write=pieces.append)
        return pieces, damage

    def pick(
        self,
        video: "str | _Watch",
        name: str,
        folder: Path | None,
        *,
        write: Callable[[str], object],
        on_frame: Callable[[float], object] = lambda seconds: None,
    ) -> str | None:
        """Write the picks of a video to its folder, print them, and return what is damaged."""
        from picknet.captioner import picked

        picker, frames = self.picker, self.frames
        if self.picker_name is PickerName.picknet:
            frames = frames or self.captioner.config.video.num_frames
        result = (picked if picker else self.captioner.picked)(
            video, budget=self.budget, exact=self.exact, picker=picker, num_frames=frames, on_frame=on_frame
        )
        damage = video.live.damage if isinstance(video, _Watch) else result.damage
        chosen_by = self.picker_name.value if self.picker_name else "budget"
        about = {**result.to_dict(), "video": name, "picker": chosen_by, "damage": damage}
        printer = _Printer(self.format, write, image_format=self.image_format, max_side=self.max_side)
        printer.print(result, about, folder)
        return damage


class _Printer:
    """Writes the picks of a video to its folder, and prints them."""

    def __init__(
        self, format: PickFormat, write: Callable[[str], object], *, image_format: str, max_side: int | None
    ) -> None:
        self._format = format
        self._write = write
        self._options: dict[str, Any] = {"image_format": image_format, "max_side": max_side}

    def print(self, picked: "Picked", about: dict[str, Any], folder: Path | None) -> None:
        """about: the content of index.json, but for the files of the picks."""
        from picknet.show.frames import write_frames

        if folder and picked.frames:
            write_frames(picked.images(), folder, about=about, written=self._print_path, **self._options)
        if self._format in (PickFormat.json, PickFormat.jsonl, PickFormat.csv):
            if folder and picked.frames:
                about = json.loads((folder / "index.json").read_text(encoding="utf-8"))
            self._print_index(about)
        elif self._format is not PickFormat.text:
            self._print_images(about["video"], picked.images())

    def _print_path(self, path: Path) -> None:
        if self._format is PickFormat.text:
            self._write(f"{path}\n")

    def _print_index(self, index: dict[str, Any]) -> None:
        from picknet.timeline import csv_row

        rows = [{"video": index["video"], **row} for row in index["picks"]]
        if self._format is PickFormat.json:
            self._write(json.dumps(index) + "\n")
        elif self._format is PickFormat.jsonl:
            self._write("".join(json.dumps(row) + "\n" for row in rows))
        else:
            self._write("".join(csv_row(*(row.get(name) for name in COLUMNS)) for row in rows))

    def _print_images(self, video: str, frames: Iterable["PickedFrame"]) -> None:
        """base64: a line for each frame; the others: a line for each video."""
        from picknet.show.frames import anthropic_parts, encode, openai_parts

        if self._format is not PickFormat.base64:
            parts = openai_parts if self._format is PickFormat.openai else anthropic_parts
            self._write(json.dumps(parts(frames, **self._options)) + "\n")
            return
        for frame in frames:
            encoded = encode(frame, **self._options)
            size = {"width": encoded.width, "height": encoded.height}
            image = {"media_type": encoded.media_type, "data": encoded.base64}
            self._write(json.dumps({"video": video, **frame.pick.to_dict(), **size, **image}) + "\n")


class _Watch:
    """The frames of a live source until it ends, is lost, or Ctrl-C or SIGTERM stops it.

    For the reader of the frames each of these is an ordinary end, so that the picks so far are kept.
    """

    def __init__(self, live: "Live") -> None:
        self.live = live
        self.code = 0
        """The exit code."""
        self._is_waiting = False

    @classmethod
    def over(cls, sources: Sequence[str]) -> "_Watch | None":
        """One over the live source, where it is the only source."""
        from picknet.video.live import Live
        from picknet.video.source import is_live

        return cls(Live(sources[0], note=note)) if len(sources) == 1 and sources[0] and is_live(sources[0]) else None

    def __iter__(self) -> Iterator["Frame"]:
        from picknet.video.live import LostSource

        signals = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._stop) for number in signals]
        frames = iter(self.live)
        try:
            while not self.code:
                self._is_waiting = True
                frame = next(frames, None)
                self._is_waiting = False
                if frame is None:
                    return
                yield frame
        except KeyboardInterrupt:
            pass  # `code` is set
        except LostSource as error:
            say(str(error))
            self.code = 1
        finally:
            for number, handler in zip(signals, before, strict=True):
                signal.signal(number, handler)

    def _stop(self, number: int, _: object) -> None:
        self.code = 128 + number
        if self._is_waiting:  # the reader is never interrupted
            self._is_waiting = False
            raise KeyboardInterrupt
