"""`picknet caption` and `picknet info`."""

import dataclasses
import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from picknet.cli.arguments import (
    BadUsage,
    Beam,
    Change,
    Frames,
    K,
    Model,
    OnePicker,
    PickerName,
    ResultFormat,
    Seed,
    Style,
    check_numbers,
    chosen_picker,
    find_videos,
    sheet_paths,
)
from picknet.cli.terminal import print_csv, progress, say, shown
from picknet.errors import PicknetError

if TYPE_CHECKING:
    from picknet.captioner import Caption, Captioner
    from picknet.picking.picker import Pick, Picker
    from picknet.show.figures import Thumbnail
    from picknet.video.frame import Frame


class CaptionFormat(StrEnum):
    text = "text"
    json = "json"
    csv = "csv"


def caption(
    files: Annotated[
        list[str], typer.Argument(metavar="FILE", help="Videos, folders of videos, or patterns such as 'clips/*.mp4'.")
    ],
    format: Annotated[CaptionFormat, typer.Option(help="json: one object a line.")] = CaptionFormat.text,
    candidates: Annotated[
        int | None,
        typer.Option(min=1, max=50, help="So many different sentences, best first, with their probabilities."),
    ] = None,
    sheet: Annotated[
        Path | None,
        typer.Option(help="Write the contact sheet: a picture's name for one video, a folder for any number."),
    ] = None,
    model: Model = None,
    style: Style = None,
    picker: OnePicker = PickerName.picknet,
    k: K = None,
    change: Change = None,
    beam: Beam = None,
    frames: Frames = None,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that work on several videos at a time.")] = 1,
) -> None:
    """Write a sentence about each video."""
    check_numbers([picker], k, change)
    if jobs > 1 and picker in (PickerName.random, PickerName.kmeans, PickerName.coin):
        raise BadUsage(f"--jobs {jobs}: what {picker.value} picks depends on the videos before; it needs one process")
    videos, problems = find_videos(files)
    sheets = sheet_paths(sheet, videos) if sheet else [None] * len(videos)
    for problem in problems:
        say(problem)
    if not videos:
        raise typer.Exit(1)

    from picknet.captioner import NothingToCaption
    from picknet.video.file import UnreadableVideo
    from picknet.workers import LostProcess, in_order

    captioning = _Captioning(model, style, picker, k, change, frames, seed, beam, candidates or 1)
    jobs = min(jobs, len(videos))
    if jobs == 1:
        _ = captioning.picker  # what is wrong with the model is said before anything is written
    num_failed = len(problems)
    if format is CaptionFormat.csv:
        numbered = [f"{name}_{rank + 1}" for rank in range(candidates or 0) for name in ("candidate", "probability")]
        print_csv(["video", "caption", "confidence", "picks", "seconds", "frames_seen", "model", *numbered])
    tasks = list(zip(videos, sheets, strict=True))
    with progress("captioning", len(videos)) as tick:
        for result in in_order(captioning, tasks, jobs=jobs, name=lambda task: str(task[0])):
            if isinstance(result, UnreadableVideo | NothingToCaption | LostProcess):
                say(str(result))
                num_failed += 1
            elif isinstance(result, PicknetError):
                raise result
            else:
                caption, thumbnails, sheet_path = result
                _print_caption(caption, format=format, named=len(videos) > 1, num_candidates=candidates or 0)
                if caption.damage:
                    say(f"{caption.video}: {caption.damage}; captioned what could be read")
                if sheet_path:
                    _write_sheet(sheet_path, thumbnails, caption)
            tick()
    if num_failed:
        raise typer.Exit(1)


@dataclasses.dataclass(frozen=True)
class _Captioning:
    """What is done with each video; it can be sent to another process, where the model is loaded anew."""

    model: str | None
    style: str | None
    picker_name: PickerName
    k: int | None
    change: float | None
    frames: int | None
    seed: int
    beam: int | None
    candidates: int

    def __call__(self, task: tuple[str, Path | None]) -> "tuple[Caption, list[Thumbnail], Path | None]":
        """A video and where its sheet goes -> the caption, and what the sheet is made of"""
        video, sheet_path = task
        watched = _Watched(self.picker) if sheet_path else None
        caption = self.captioner.caption(
            video,
            picker=watched or self.picker,
            beam=self.beam,
            num_frames=self.frames,
            candidates=self.candidates,
        )
        return caption, watched.seen if watched else [], sheet_path

    @functools.cached_property
    def captioner(self) -> "Captioner":
        from picknet.captioner import load

        return load(self.model, style=self.style)

    @functools.cached_property
    def picker(self) -> "Picker":
        return chosen_picker(
            self.picker_name,
            k=self.k,
            change=self.change,
            frames=self.frames,
            seed=self.seed,
            captioner=lambda: self.captioner,
        )


class _Watched:
    """A picker that keeps a small copy of every frame it hands to another."""

    def __init__(self, picker: "Picker") -> None:
        self.picker = picker
        self.seen: list[Thumbnail] = []

    def pick(self, frames: Iterable["Frame"]) -> Iterator[tuple["Frame", "Pick"]]:
        from picknet.show.figures import Thumbnail

        def see(frame: "Frame") -> "Frame":
            self.seen.append(Thumbnail.of(frame))
            return frame

        return self.picker.pick(map(see, frames))


def _write_sheet(path: Path, frames: Sequence["Thumbnail"], result: "Caption") -> None:
    from picknet.show.figures import contact_sheet, save

    save(contact_sheet(frames, result.picks, result.text, title=Path(result.video).name), path)


def _print_caption(result: "Caption", *, format: CaptionFormat, named: bool, num_candidates: int) -> None:
    """Where candidates were asked for they are all shown, the caption among them."""
    candidates = result.candidates if num_candidates else ()
    if format is CaptionFormat.json:
        content = {
            "video": result.video,
            "caption": result.text,
            "confidence": result.confidence,
            "picks": [pick.to_dict() for pick in result.picks],
            "frames_seen": result.frames_seen,
            "model": result.model,
        }
        if candidates:
            content["candidates"] = [{"caption": one.text, "probability": one.probability} for one in candidates]
        print(json.dumps(content | ({"damage": result.damage} if result.damage else {})), flush=True)
    elif format is CaptionFormat.csv:
        indices = " ".join(str(pick.index) for pick in result.picks)
        seconds = " ".join(f"{pick.seconds:.3f}" for pick in result.picks)
        sure = "" if result.confidence is None else f"{result.confidence:.4f}"
        numbered = [cell for one in candidates for cell in (one.text, f"{one.probability:.4g}")]
        numbered += [""] * (2 * num_candidates - len(numbered))
        print_csv(
            [result.video, result.text, sure, indices, seconds, result.frames_seen, result.model, *numbered]
        )
    else:
        name = f"{shown(result.video)}: " if named else ""
        lines = [f"{one.probability:.4f}  {one.text}" for one in candidates] or [result.text]
        if candidates and result.confidence is not None:
            lines[0] += f" (confidence {result.confidence:.2f})"
        print("\n".join(name + line for line in lines), flush=True)


def info(
    model: Annotated[str | None, typer.Argument(help="A shipped model's name, a model folder or a run folder.")] = None,
    format: Annotated[ResultFormat, typer.Option(help="json: one object.")] = ResultFormat.text,
) -> None:
    """Tell what a model is: its size, words, training and scores."""
    from picknet.captioner import load
    from picknet.config import flat

    captioner = load(model)
    runtime, settings = captioner.runtime, captioner.config
    facts: dict[str, Any] = {
        "model": captioner.name,
        "folder": str(runtime.folder),
        "bytes": sum(path.stat().st_size for path in runtime.folder.iterdir() if path.is_file()),
        "vocabulary": len(runtime.vocabulary),
        "styles": list(runtime.vocabulary.styles),
        "num_frames": settings.video.num_frames,
        "cnn": settings.model.cnn,
        "image_size": settings.model.image_size,
        "beam": settings.beam,
        "card": runtime.card,
    }
    if format is ResultFormat.json:
        print(json.dumps(facts))
        return
    facts |= {"bytes": f"{facts['bytes']:,} ({facts['bytes'] / 1e6:.1f} MB)", **facts.pop("card")}
    rows = list(flat(facts).items())
    width = max(len(name) for name, _ in rows)
    print("\n".join(f"{name:{width}}  {value}" for name, value in rows))
