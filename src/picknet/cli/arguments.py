"""What several commands are told in the same words: models, videos, pickers, data."""

import contextlib
import glob
import itertools
import os
import sys
from collections.abc import Callable, Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from picknet.errors import PicknetError

if TYPE_CHECKING:
    from picknet.captioner import Captioner
    from picknet.picking.picker import Picker

DEFAULT_K = 6
"""The paper's k: PickNet's average number of picks on MSVD."""
DEFAULT_CHANGE = 30.0
"""Grey values: about 6 picks of a clip of MSVD, too."""


class BadUsage(PicknetError):
    """Options that do not go together."""


class ResultFormat(StrEnum):
    text = "text"
    json = "json"


class PickerName(StrEnum):
    picknet = "picknet"
    uniform = "uniform"
    random = "random"
    kmeans = "kmeans"
    every = "every"
    coin = "coin"
    scene = "scene"
    all = "all"


class DatasetName(StrEnum):
    msvd = "msvd"
    msrvtt = "msrvtt"
    coco = "coco"
    flickr8k = "flickr8k"
    folder = "folder"


class SplitName(StrEnum):
    train = "train"
    val = "val"
    test = "test"
    all = "all"


Style = Annotated[
    str | None,
    typer.Option(metavar="DATASET", help="Write as captions of another data set that the model learned, as msrvtt."),
]
Model = Annotated[
    str | None, typer.Option(help="A shipped model's name, a model folder or a run folder; the default ships inside.")
]
Data = Annotated[Path, typer.Option(help="The data folder: videos/ and captions/.")]
Beam = Annotated[int | None, typer.Option(min=1, help="Beam width; 1 is greedy. By default what the model says.")]
Frames = Annotated[int | None, typer.Option(min=1, help="Frames sampled from a video, of which some are picked.")]
OnePicker = Annotated[
    PickerName, typer.Option(metavar="PICKER", help=f"How frames are picked: {', '.join(PickerName)}.")
]
K = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"Picks of uniform, kmeans ({DEFAULT_K}) and random (about half the frames); "
        f"on average, of every n-th and coin ({DEFAULT_K}).",
    ),
]
Change = Annotated[
    float | None,
    typer.Option(
        min=0, max=255, help=f"scene: the difference to the last pick above which one is made ({DEFAULT_CHANGE:g})."
    ),
]
Seed = Annotated[int, typer.Option(min=0, help="For random, kmeans and coin.")]


def chosen_picker(
    name: PickerName,
    *,
    k: int | None,
    change: float | None,
    frames: int | None,
    seed: int,
    captioner: "Callable[[], Captioner]",
) -> "Picker":
    """The picker of this name; picknet and kmeans are those of a captioner."""
    from picknet.picking import plain as picking

    def distance() -> float:
        """How far apart k frames are, of as many as are sampled."""
        return max((frames or captioner().config.video.num_frames) / (k or DEFAULT_K), 1.0)

    def coin() -> "Picker":
        # The first frame is one of the k; the others share what is left.
        rest = (frames or captioner().config.video.num_frames) - 1
        return picking.CoinPicker(min(((k or DEFAULT_K) - 1) / max(rest, 1), 1.0), seed=seed)

    pickers: dict[PickerName, Callable[[], Picker]] = {
        PickerName.picknet: lambda: captioner().picker,
        PickerName.uniform: lambda: picking.UniformPicker(k or DEFAULT_K),
        PickerName.random: lambda: picking.RandomPicker(k, seed=seed) if k else picking.CoinPicker(seed=seed),
        PickerName.kmeans: lambda: picking.KMeansPicker(k or DEFAULT_K, features=captioner().feature, seed=seed),
        PickerName.every: lambda: picking.EveryNthPicker(distance()),
        PickerName.coin: coin,
        PickerName.scene: lambda: picking.SceneChangePicker(change_of(change)),
        PickerName.all: picking.AllPicker,
    }
    return pickers[name]()


def k_of(name: PickerName, k: int | None) -> int | None:
    """How many frames this picker is told to pick; None where it decides."""
    if name in (PickerName.picknet, PickerName.scene, PickerName.all):
        return None
    return k if name is PickerName.random else k or DEFAULT_K


def change_of(change: float | None) -> float:
    return DEFAULT_CHANGE if change is None else change


def check_numbers(names: Sequence[PickerName], k: int | None, change: float | None) -> None:
    told = " and ".join(names)
    if k and all(k_of(name, k) is None for name in names):
        raise BadUsage(f"--k {k}: means nothing to {told}; uniform, random, kmeans, every and coin take a k")
    if change is not None and PickerName.scene not in names:
        raise BadUsage(f"--change {change:g}: means nothing to {told}; scene takes it")


def find_videos(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """The videos that files, folders and patterns stand for, and what is wrong with those that stand for none."""
    from picknet.video.file import VIDEO_SUFFIXES
    from picknet.video.source import without_password

    videos: list[str] = []
    problems: list[str] = []
    for argument in arguments:
        # A name that exists is no pattern, whatever brackets it holds.
        matches = [argument] if os.path.lexists(argument) else sorted(glob.glob(argument, recursive=True))
        if not matches and "://" in argument:
            problems.append(f"{without_password(argument)}: an address, not a file; picknet stream describes those")
        elif not matches:
            wrong = "no file matches this pattern" if glob.has_magic(argument) else "no such file or folder"
            problems.append(f"{argument or repr(argument)}: {wrong}")
        for match in matches:
            if not os.path.isdir(match):
                videos.append(match)
                continue
            found = sorted(
                str(path)
                for path in Path(match).rglob("*")
                if path.suffix.lower() in VIDEO_SUFFIXES and not path.name.startswith(".") and path.is_file()
            )
            videos += found
            if not found:
                problems.append(f"{match}: no video in this folder (looked for {', '.join(sorted(VIDEO_SUFFIXES))})")
    return videos, problems


def sheet_paths(sheet: Path, videos: Sequence[str]) -> list[Path]:
    """Where each video's contact sheet goes: the file itself, or NAME.png, NAME-2.png … in the folder."""
    from picknet.show.page import FORMATS

    if sheet.suffix and not sheet.is_dir():
        if sheet.suffix.lower() not in FORMATS:
            raise BadUsage(f"--sheet {sheet}: a sheet ends in {', '.join(FORMATS)}; a folder's name has no suffix")
        if len(videos) > 1:
            raise BadUsage(f"--sheet {sheet}: one file cannot hold the sheets of {len(videos)} videos; name a folder")
        return [sheet] * len(videos)
    return [sheet / f"{name}.png" for name in own_names(videos)]


def own_names(videos: Sequence[str]) -> list[str]:
    """What to call that which is written for each video: by its name without the suffix; NAME-2 where there are two.

    On some disks, names that differ in capitals alone are one.
    """
    taken: set[str] = set()
    own: list[str] = []
    for video in videos:
        stem = Path(video).stem
        names = itertools.chain([stem], (f"{stem}-{number}" for number in itertools.count(2)))
        own.append(next(name for name in names if name.casefold() not in taken))
        taken.add(own[-1].casefold())
    return own


def seconds_to_tell(videos: Sequence[str]) -> int:
    """How long the films are in all, where somebody sees the bar that it is for."""
    from picknet.video.file import UnreadableVideo, Video

    total = 0.0
    for video in videos if sys.stderr.isatty() else ():
        with contextlib.suppress(UnreadableVideo), Video(video) as opened:
            total += opened.seconds or 0.0
    return int(total)
