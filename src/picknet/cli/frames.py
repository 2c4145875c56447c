"""`picknet pick`."""

import functools
import json
import signal
from collections.abc import Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from picknet.cli.arguments import (
    BadUsage,
    Change,
    Frames,
    K,
    Model,
    OnePicker,
    PickerName,
    Seed,
    check_numbers,
    chosen_picker,
    find_videos,
    own_names,
    seconds_to_tell,
)
from picknet.cli.terminal import each_second, progress, say

if TYPE_CHECKING:
    from picknet.show.frames import PickedFrame
    from picknet.video.frame import Frame
    from picknet.video.live import Live


class PickFormat(StrEnum):
    paths = "paths"
    base64 = "base64"
    openai = "openai"
    anthropic = "anthropic"


class ImageFormat(StrEnum):
    jpeg = "jpeg"
    png = "png"


def pick(
    files: Annotated[
        list[str],
        typer.Argument(metavar="VIDEO", help="Videos, folders, patterns; or, with --budget, one source as stream has."),
    ],
    out: Annotated[
        Path | None,
        typer.Option(metavar="DIR", help="A new folder for the frames and index.json, or for one such for each video."),
    ] = None,
    budget: Annotated[
        int | None, typer.Option(metavar="N", help="At most so many picks, of a video of any length.")
    ] = None,
    exact: Annotated[bool, typer.Option("--exact", help="Exactly so many, even if little happens.")] = False,
    format: Annotated[
        PickFormat, typer.Option(help="What is printed: the files' names, or the frames as JSON for chat models.")
    ] = PickFormat.paths,
    image_format: Annotated[ImageFormat, typer.Option(help="What a frame is kept as.")] = ImageFormat.jpeg,
    max_side: Annotated[
        int | None, typer.Option(min=1, metavar="PIXELS", help="Shrink frames that are wider or higher.")
    ] = None,
    picker: OnePicker = PickerName.picknet,
    k: K = None,
    change: Change = None,
    model: Model = None,
    frames: Frames = None,
    seed: Seed = 0,
) -> None:
    """Pick the frames that matter: as full-size pictures, or ready for a vision-language model."""
    from picknet.picking.budget import MAX_BUDGET

    check_numbers([picker], k, change)
    if budget is not None and not 1 <= budget <= MAX_BUDGET:
        raise BadUsage(f"--budget {budget}: 1 to {MAX_BUDGET:,} frames are possible")
    if budget and picker is not PickerName.picknet:
        raise BadUsage(f"--budget is for --picker picknet; {picker.value} takes --k")
    if exact and not budget:
        raise BadUsage("--exact needs a --budget to keep to")
    if not out and format is PickFormat.paths:
        others = ", ".join(name for name in PickFormat if name is not PickFormat.paths)
        raise BadUsage(f"--format paths needs a folder: --out DIR; possible without one are {others}")
    if out and out.exists() and (not out.is_dir() or any(out.iterdir())):
        raise BadUsage(f"{out}: is there already and is not an empty folder; name a new one")
    watch = _Watch.over(files)
    if watch and (exact or not budget):
        raise BadUsage(f"{watch.live.name}: may have no end; --budget N, without --exact, says how much to keep")
    videos, problems = ([watch.live.name], []) if watch else find_videos(files)
    for problem in problems:
        say(problem)
    if not videos:
        raise typer.Exit(1)

    from picknet.captioner import load, picked
    from picknet.files import check_folder
    from picknet.show.frames import write_frames
    from picknet.video.file import UnreadableVideo
    from picknet.video.live import BadSetting

    if out:
        check_folder(out)  # or a long film would be watched in vain
    folders = [out / name for name in own_names(videos)] if out and len(videos) > 1 else [out] * len(videos)
    chosen = None
    if not budget:
        captioner = functools.cache(lambda: load(model))
        chosen = chosen_picker(picker, k=k, change=change, frames=frames, seed=seed, captioner=captioner)
        if picker is PickerName.picknet:
            frames = frames or captioner().config.video.num_frames
    num_failed = len(problems)
    with progress("seconds seen", 0 if watch else seconds_to_tell(videos)) as tick:
        for video, folder in zip(videos, folders, strict=True):
            try:
                found = picked(
                    watch or video,
                    budget=budget,
                    exact=exact,
                    picker=chosen,
                    num_frames=frames,
                    seen=each_second(tick),
                )
            except (UnreadableVideo, BadSetting) as error:
                say(str(error))
                num_failed += 1
                continue
            damage = watch.live.damage if watch else found.damage
            if damage:
                say(f"{video}: {damage}; picked from what could be read")
            if folder and found.frames:
                about: dict[str, Any] = {"video": video, "picker": "budget" if budget else picker.value}
                about |= {"frames_seen": found.frames_seen} | ({"damage": damage} if damage else {})
                write_frames(
                    found.images(),
                    folder,
                    about=about,
                    image_format=image_format.value,
                    max_side=max_side,
                    written=functools.partial(print, flush=True) if format is PickFormat.paths else lambda _: None,
                )
            if format is not PickFormat.paths:
                _print_frames(video, found.images(), format, image_format=image_format.value, max_side=max_side)
    if num_failed or (watch and watch.code):
        raise typer.Exit((watch.code if watch else 0) or 1)


class _Watch:
    """The frames of a live source until it ends, is lost, or Ctrl-C or SIGTERM tells that it is enough.

    What was picked until then is kept: to whoever takes the frames, each of these is an end like any other.
    """

    def __init__(self, live: "Live") -> None:
        self.live = live
        self.code = 0
        """What to exit with."""
        self._waiting = False

    @classmethod
    def over(cls, files: Sequence[str]) -> "_Watch | None":
        """One over the live source that is named, if it is one and nothing else is named."""
        from picknet.video.live import Live
        from picknet.video.source import recognised

        is_live = len(files) == 1 and recognised(files[0]).kind != "file"
        return cls(Live(files[0], note=say)) if is_live else None

    def __iter__(self) -> Iterator["Frame"]:
        from picknet.video.live import LostSource

        ends = (signal.SIGINT, signal.SIGTERM)
        before = [signal.signal(number, self._end) for number in ends]
        frames = iter(self.live)
        try:
            while not self.code:
                self._waiting = True
                frame = next(frames, None)
                self._waiting = False
                if frame is None:
                    return
                yield frame
        except KeyboardInterrupt:
            pass  # the code says so
        except LostSource as error:
            say(str(error))
            self.code = 1
        finally:
            for number, handler in zip(ends, before, strict=True):
                signal.signal(number, handler)

    def _end(self, number: int, _: object) -> None:
        self.code = 128 + number
        if self._waiting:  # whoever takes the frames is not disturbed
            self._waiting = False
            raise KeyboardInterrupt


def _print_frames(
    video: str, frames: Iterable["PickedFrame"], format: PickFormat, *, image_format: str, max_side: int | None
) -> None:
    """base64: an object a line for each frame; the others: a list a line for each video."""
    from picknet.show.frames import anthropic_parts, encode, openai_parts

    if format is PickFormat.base64:
        for frame in frames:
            encoded = encode(frame, image_format=image_format, max_side=max_side)
            size = {"width": encoded.width, "height": encoded.height}
            coded = {"media_type": encoded.media_type, "data": encoded.base64}
            print(json.dumps({"video": video, **frame.pick.to_dict(), **size, **coded}), flush=True)
        return
    parts = openai_parts if format is PickFormat.openai else anthropic_parts
    print(json.dumps(parts(frames, image_format=image_format, max_side=max_side)), flush=True)
