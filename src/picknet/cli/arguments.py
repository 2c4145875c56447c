"""Arguments and options that several commands share: videos, results, models, pickers, data."""

import contextlib
import dataclasses
import functools
import glob
import itertools
import math
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from picknet.cli.terminal import many, note, set_quiet
from picknet.errors import PicknetError

if TYPE_CHECKING:
    from picknet.captioner import Captioner
    from picknet.picking.picker import Picker

DEFAULT_K = 6
"""The paper's k: PickNet's average number of picks on MSVD."""
DEFAULT_CHANGE = 30.0
"""Grey values; on MSVD this gives about 6 picks a clip, too."""

# Headings of the help pages.
OUTPUT = "Output"
MODEL = "Model"
PICKING = "Picking frames"


class BadUsage(PicknetError):
    """Options that contradict each other or the arguments."""


class MissingExtra(PicknetError):
    """A command needs an optional dependency that is not installed."""


@contextlib.contextmanager
def needing(extra: str, *, sentence: str) -> Iterator[None]:
    """Say which extra is missing if an import inside the block fails.

    sentence: what is said before the command that installs it, with {} for the missing package.
    """
    try:
        yield
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("picknet"):
            raise
        raise MissingExtra(f'{sentence.format(error.name)} pip install "picknet[{extra}]"') from error


class ResultFormat(StrEnum):
    text = "text"
    json = "json"
    jsonl = "jsonl"
    csv = "csv"


class PickerName(StrEnum):
    picknet = "picknet"
    uniform = "uniform"
    random = "random"
    kmeans = "kmeans"
    hecate = "hecate"
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


Videos = Annotated[
    list[str],
    typer.Argument(
        metavar="VIDEO", help="Files, folders, patterns such as 'clips/*.mp4', or http(s):// addresses of files."
    ),
]
FORMAT_HELP = "text, json or jsonl (one JSON object a line), or csv."
OutputFormat = Annotated[
    ResultFormat | None,
    typer.Option(
        "--format", "-f", metavar="FORMAT", show_default="text, or by the suffix of --out", help=FORMAT_HELP,
        rich_help_panel=OUTPUT,
    ),
]  # fmt: skip
Out = Annotated[
    Path | None,
    typer.Option("--out", "-o", metavar="FILE", help="Write to this file, not to the screen.", rich_help_panel=OUTPUT),
]
Quiet = Annotated[
    bool,
    typer.Option(
        "--quiet", "-q", callback=set_quiet, expose_value=False, help="No progress bar, no notes; errors are shown.",
        rich_help_panel=OUTPUT,
    ),
]  # fmt: skip
"""A command only declares this parameter; the callback applies it."""


def _set_max_pixels(number: int | None) -> None:
    if number is not None:
        from picknet.video.access import MAX_PIXELS_VARIABLE  # imports PyAV

        os.environ[MAX_PIXELS_VARIABLE] = str(number)  # for worker processes as well


MANY_VIDEOS = "Many videos"
Timeout = Annotated[
    float | None,
    typer.Option(
        metavar="SECONDS", min=0.1, max=86400, help="Give up on a video after this time.", show_default="never",
        rich_help_panel=MANY_VIDEOS,
    ),
]  # fmt: skip
MaxPixels = Annotated[
    int | None,
    typer.Option(
        "--max-pixels", metavar="N", min=1, max=2**31 - 1, callback=_set_max_pixels, expose_value=False,
        help="Refuse a video whose pictures have more than N pixels.", show_default="67108864: 8192 x 8192",
        rich_help_panel="Limits",
    ),
]  # fmt: skip
"""The same; a limit on what a hostile file can cost."""
Model = Annotated[
    str | None,
    typer.Option(
        metavar="MODEL", help="A shipped model's name, a model folder or a run folder.", show_default="msvd, shipped",
        rich_help_panel=MODEL,
    ),
]  # fmt: skip
Style = Annotated[
    str | None,
    typer.Option(
        metavar="STYLE", rich_help_panel=MODEL,
        help="How captions are worded: as those of another data set that the model was trained on, e.g. msrvtt; "
        "for a model trained with text.categories a category of MSR-VTT, e.g. music. picknet info lists them.",
    ),
]  # fmt: skip
Beam = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Beam width; 1 is greedy.", show_default="the model's", rich_help_panel=MODEL
    ),
]
MinConfidence = Annotated[
    float | None,
    typer.Option(
        metavar="P", min=0, max=1, help="Say `not sure` instead of a caption with a lower confidence than P.",
        show_default="print every caption", rich_help_panel=OUTPUT,
    ),
]  # fmt: skip
DATA_HELP = "The data folder, with videos/ and captions/. A name before it, as in msrvtt=DIR, stands for --dataset."
Data = Annotated[str, typer.Option(metavar="[DATASET=]DIR", help=DATA_HELP)]
OnePicker = Annotated[
    PickerName, typer.Option(metavar="PICKER", help=f"One of {', '.join(PickerName)}.", rich_help_panel=PICKING)
]
K = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=1,
        help="Exact number of picks of picknet, uniform, kmeans, hecate, random; the average number of every and coin.",
        show_default=f"picknet: its own number; random: half of the frames; others: {DEFAULT_K}",
        rich_help_panel=PICKING,
    ),
]
Change = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        min=0,
        max=255,
        help="For scene: pick a frame that differs from the last pick by more than X grey values.",
        show_default=f"{DEFAULT_CHANGE:g}",
        rich_help_panel=PICKING,
    ),
]
Rate = Annotated[
    float | None,
    typer.Option(
        metavar="X",
        help="For picknet: 2 picks more frames, 0.5 fewer.",
        show_default="1",
        rich_help_panel=PICKING,
    ),
]
Frames = Annotated[
    int | None,
    typer.Option(
        metavar="N", min=1, help="Number of frames sampled from a video, to pick from.", show_default="the model's",
        rich_help_panel=PICKING,
    ),
]  # fmt: skip
Seed = Annotated[
    int, typer.Option(metavar="N", min=0, help="Seed of random, kmeans, hecate and coin.", rich_help_panel=PICKING)
]


def chosen_picker(
    name: PickerName,
    *,
    k: int | None,
    change: float | None,
    frames: int | None,
    seed: int,
    rate: float | None = None,
    captioner: "Callable[[], Captioner]",
) -> "Picker":
    """The picker of this name; picknet and kmeans need a captioner."""
    from picknet.picking import plain as picking

    def learned() -> "Picker":
        if k:
            return captioner().counted_picker(k)
        return captioner().picker if rate is None else captioner().picker_at(rate)

    def distance() -> float:
        """The distance between k of the sampled frames."""
        return max((frames or captioner().config.video.num_frames) / (k or DEFAULT_K), 1.0)

    def coin() -> "Picker":
        # The first frame is always picked; the other k - 1 are drawn from the rest.
        rest = (frames or captioner().config.video.num_frames) - 1
        return picking.CoinPicker(min(((k or DEFAULT_K) - 1) / max(rest, 1), 1.0), seed=seed)

    def hecate() -> "Picker":
        from picknet.picking.hecate import HecatePicker  # which imports a library for pictures

        return HecatePicker(k or DEFAULT_K, seed=seed)

    pickers: dict[PickerName, Callable[[], Picker]] = {
        PickerName.picknet: learned,
        PickerName.uniform: lambda: picking.UniformPicker(k or DEFAULT_K),
        PickerName.random: lambda: picking.RandomPicker(k, seed=seed) if k else picking.CoinPicker(seed=seed),
        PickerName.kmeans: lambda: picking.KMeansPicker(k or DEFAULT_K, features=captioner().feature, seed=seed),
        PickerName.hecate: hecate,
        PickerName.every: lambda: picking.EveryNthPicker(distance()),
        PickerName.coin: coin,
        PickerName.scene: lambda: picking.SceneChangePicker(change_of(change)),
        PickerName.all: picking.AllPicker,
    }
    return pickers[name]()


@dataclasses.dataclass(frozen=True)
class WithModel:
    """What is done with each video. A worker process gets a copy of this object, and loads the model by itself."""

    model: str | None
    style: str | None

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: neither a captioner nor its picker can be sent to another process."""
        return {setting.name: getattr(self, setting.name) for setting in dataclasses.fields(self)}

    @functools.cached_property
    def captioner(self) -> "Captioner":
        from picknet.captioner import load

        return load(self.model, style=self.style)


@dataclasses.dataclass(frozen=True)
class WithPicker(WithModel):
    """The same, for commands with any picker."""

    picker_name: PickerName | None
    """None: whatever the captioner picks."""
    rate: float | None
    k: int | None
    change: float | None
    frames: int | None
    seed: int

    @functools.cached_property
    def picker(self) -> "Picker | None":
        if self.picker_name is None:
            return None
        return chosen_picker(
            self.picker_name,
            k=self.k,
            change=self.change,
            frames=self.frames,
            seed=self.seed,
            rate=self.rate,
            captioner=lambda: self.captioner,
        )


def change_of(change: float | None) -> float:
    return DEFAULT_CHANGE if change is None else change


def check_numbers(
    names: Sequence[PickerName], k: int | None, change: float | None, rate: float | None = None
) -> None:
    """Raise `BadUsage` for a --k, --change or --rate that none of the pickers takes."""
    listed = " and ".join(names)
    if k and {PickerName.scene, PickerName.all}.issuperset(names):
        counted = "picknet, uniform, random, kmeans, hecate, every and coin"
        raise BadUsage(f"--k {k}: does not apply to {listed}, only to {counted}")
    if change is not None and PickerName.scene not in names:
        raise BadUsage(f"--change {change:g}: does not apply to {listed}, only to scene")
    if rate is not None and PickerName.picknet not in names:
        raise BadUsage(f"--rate {rate:g}: does not apply to {listed}, only to picknet")
    if rate is not None and k:
        raise BadUsage(f"--rate {rate:g}: --k {k} says how many frames picknet picks; leave one of them out")
    if rate is not None and not 0 < rate < math.inf:
        raise BadUsage(f"--rate {rate:g}: more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer")


def find_videos(arguments: Iterable[str]) -> tuple[list[str], list[tuple[str, PicknetError]]]:
    """The videos that files, folders, patterns and addresses stand for; the names of those that stand for none, and
    the error of each.
    """
    from picknet.files import files_below, matching
    from picknet.video.source import (
        TRANSPORT_SUFFIXES,
        VIDEO_SUFFIXES,
        UnreadableVideo,
        is_address,
        is_http,
        is_video_file,
    )

    suffixes = ", ".join(sorted(VIDEO_SUFFIXES | TRANSPORT_SUFFIXES))

    videos: list[str] = []
    problems: list[tuple[str, str]] = []

    def add_unreadable(error: OSError) -> None:
        problems.append((error.filename, f"cannot be read ({error.strerror})"))

    for argument in arguments:
        if argument == "-":
            readers = "picknet caption, stream and pick --budget"
            problems.append(("-", f"standard input is read by {readers}, and has to be alone"))
            continue
        # A name that exists is not a pattern, whatever brackets are in it.
        num_before = len(problems)
        matches = [argument] if exists(argument) else matching(argument, on_error=add_unreadable)
        if not matches and len(problems) > num_before:
            continue
        if not matches and is_address(argument):
            if is_http(argument):
                videos.append(argument)
            elif argument.lower().startswith("file:"):
                problems.append((argument, "not supported; pass the plain path"))
            else:
                problems.append((display_name(argument), "a live source, which may have no end; use picknet stream"))
        elif not matches:
            wrong = "no file matches this pattern" if glob.has_magic(argument) else "no such file or folder"
            problems.append((argument or repr(argument), wrong))
        for match in matches:
            if not os.path.isdir(match):
                videos.append(match)
                continue
            num_before = len(videos) + len(problems)
            for path in sorted(filter(is_video_file, files_below(match, on_error=add_unreadable))):
                if os.path.isfile(path):
                    videos.append(path)
                else:
                    problems.append((path, _why_no_file(path)))
            if len(videos) + len(problems) == num_before:
                problems.append((match, f"no video in this folder (looked for {suffixes})"))
    return videos, [(name, UnreadableVideo(f"{name}: {wrong}")) for name, wrong in problems]


def _why_no_file(path: str) -> str:
    try:
        os.stat(path)
    except OSError as error:
        return f"cannot be read ({'broken link' if os.path.islink(path) else error.strerror})"
    return "is not a regular file"


def display_name(video: str) -> str:
    """What results and messages call a video: an address without its password."""
    from picknet.video.source import locate

    return locate(video).name


def exists(path: str) -> bool:
    return "\0" not in path and os.path.lexists(path)


def note_no_confidence(captioner: "Captioner", style: str) -> None:
    if captioner.confidence_note:
        note(f"--style {style}: {captioner.confidence_note}")


MAX_NAMED = 5
"""Doubtful captions that are named; the others are counted."""


class Doubts:
    """Which captions are doubtful, for a note where the output does not show it.

    min_confidence: captions below it are not in the output, and a note only counts them. leaves_out: whether nothing
    stands for such a caption, not even "not sure"; otherwise the output tells, without a note.
    """

    def __init__(self, min_confidence: float | None = None, *, leaves_out: bool = False) -> None:
        from picknet.model.confidence import DOUBTFUL

        self._is_applied = min_confidence is not None
        self._leaves_out = leaves_out
        self._limit = DOUBTFUL if min_confidence is None else min_confidence
        self._num_captions = self._num_doubtful = 0
        self._named: list[str] = []
        self._last = ""

    def add(self, name: str, confidence: float | None) -> None:
        """name: of the caption: its video, or when it is shown."""
        from picknet.model.confidence import written

        self._num_captions += 1
        if confidence is not None and confidence < self._limit:
            self._num_doubtful += 1
            self._last = written(confidence)
            if len(self._named) < MAX_NAMED:
                self._named.append(f"{name} ({self._last})")

    def note(self) -> None:
        if not self._num_doubtful or (self._is_applied and not self._leaves_out):
            return
        if self._is_applied:
            are, their = ("is", "its") if self._num_doubtful == 1 else ("are", "their")
            which = f"{self._num_doubtful:,} of {many(self._num_captions, 'caption')} {are} left out"
            note(f"{which}: {their} confidence is below {self._limit:g}")
            return
        if self._num_captions == 1:
            which = f"a doubtful caption, with a confidence of {self._last}"
        else:
            more = self._num_doubtful - len(self._named)
            named = ", ".join([*self._named, *([f"{more:,} more"] if more else [])])
            which = f"{self._num_doubtful:,} of {self._num_captions:,} captions are doubtful, with a confidence below "
            which += f"{self._limit}: {named}"
        them = "it" if self._num_captions == 1 else "them"
        instead = f"leaves {them} out" if self._leaves_out else 'says "not sure" instead'
        note(f"{which}; --min-confidence {self._limit} {instead}")


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


LONGEST_STEM = 230
"""Bytes of a file name that is numbered; file systems allow 255, suffix included."""


def own_names(videos: Sequence[str]) -> list[str]:
    """A file name for each video: its own without the suffix, and NAME-2 for a second one of that name.

    Names that differ in case only count as the same, as some file systems have it.
    """
    taken: set[str] = set()
    numbers: dict[str, Iterator[int]] = {}
    own: list[str] = []
    for video in videos:
        name = stem = Path(video).stem
        while name.casefold() in taken:
            if len(os.fsencode(stem)) > LONGEST_STEM:
                stem = os.fsencode(stem)[:LONGEST_STEM].decode(errors="ignore")
            name = f"{stem}-{next(numbers.setdefault(stem.casefold(), itertools.count(2)))}"
        own.append(name)
        taken.add(name.casefold())
    return own
