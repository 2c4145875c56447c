"""The `picknet` command: parse, call, print.

What a command needs is imported inside it, so that `picknet --help` answers at once. Results go to standard output,
everything else to standard error; whatever fails ends as one line and an exit code: 1, 2 for usage and settings, 130
for Ctrl-C, 143 for a stream that is told to end by SIGTERM.
"""

import contextlib
import csv
import dataclasses
import functools
import glob
import io
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn, cast

import typer

from picknet.errors import PicknetError

if TYPE_CHECKING:
    from rich.progress import Progress

    from picknet.captioner import Caption, Captioner, Update
    from picknet.config import Config
    from picknet.evaluation import Evaluation, Example
    from picknet.figures import Storyboard, Strip, Thumbnail
    from picknet.frames import PickedFrame
    from picknet.live import Live
    from picknet.picking import Pick, Picker
    from picknet.timeline import Segment
    from picknet.video import Frame

DEFAULT_K = 6
"""The paper's k: PickNet's average number of picks on MSVD."""
DEFAULT_CHANGE = 30.0
"""Grey values: about 6 picks of a clip of MSVD, too."""
MAX_BUDGET = 1000
"""That of `picking.py`, which is not imported to parse."""

# Click's own class, wherever this version of Typer keeps its Click.
UsageError = cast("type[typer.BadParameter]", typer.BadParameter.__bases__[0])


class BadUsage(PicknetError):
    """Options that do not go together."""


class MissingExtra(PicknetError):
    """A part of picknet that is installed on demand."""


class CaptionFormat(StrEnum):
    text = "text"
    json = "json"
    csv = "csv"


class ResultFormat(StrEnum):
    text = "text"
    json = "json"


class StreamFormat(StrEnum):
    text = "text"
    jsonl = "jsonl"


class TimelineFormat(StrEnum):
    text = "text"
    json = "json"
    srt = "srt"
    vtt = "vtt"
    csv = "csv"


class PickFormat(StrEnum):
    paths = "paths"
    base64 = "base64"
    openai = "openai"
    anthropic = "anthropic"


class ImageFormat(StrEnum):
    jpeg = "jpeg"
    png = "png"


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


class StageName(StrEnum):
    supervision = "supervision"
    reinforcement = "reinforcement"
    adaptation = "adaptation"
    refinement = "refinement"


class DeviceName(StrEnum):
    auto = "auto"
    cpu = "cpu"
    cuda = "cuda"
    mps = "mps"


app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,  # boxes around the help would take half of the time that it takes
    help="Describe a video from the few frames that matter.",
)

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


def main(arguments: Sequence[str] | None = None) -> NoReturn:
    """The console script. Every failure becomes one line and an exit code."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")  # a file name may hold what the terminal cannot show
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        code = _run(given or ["--help"])
        print(end="", flush=True)
    except KeyboardInterrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # a second one would end Python with a traceback
        code = _failed("interrupted", code=130)
    except UsageError as error:
        command = error.ctx.command_path if error.ctx else "picknet"
        message = " ".join(error.format_message().split()).rstrip(".")
        code = _failed(f"{message} (see {command} --help)", code=2)
    except PicknetError as error:
        code = _failed(str(error), code=_exit_code(error))
    except OSError as error:
        # Files are written by `files.written_whole`, which names them; what has no name is standard output.
        if not isinstance(error, BrokenPipeError):
            _say(f"{error.filename or 'standard output'}: {error.strerror or error}")
        with contextlib.suppress(OSError):  # or the interpreter would fail again when it flushes at its end
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 1
    sys.exit(code)


def _run(arguments: list[str]) -> int:
    """What `app(arguments)` does, but for Ctrl-C, on which Typer would end without a word."""
    command = typer.main.get_command(app)
    try:
        with command.make_context("picknet", arguments) as context:
            command.invoke(context)
    except typer.Exit as done:
        return done.exit_code
    return 0


def _exit_code(error: PicknetError) -> int:
    from picknet.config import BadConfig

    return 2 if isinstance(error, BadUsage | BadConfig) else 1


def _failed(message: str, *, code: int) -> int:
    _say(message)
    return code


def _say(message: str) -> None:
    """A line for people, whatever standard output is used for."""
    print(f"picknet: {_shown(message)}", file=sys.stderr, flush=True)


def _shown(text: str) -> str:
    """The text on one line, whatever line ends and commands to a terminal a file name in it may hold."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: ascii(found[0])[1:-1], text)


def _print_version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        print(f"picknet {version('picknet')}")
        raise typer.Exit


@app.callback()
def _global(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None: ...


# --- Captions and frames ---


@app.command()
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
    picker: OnePicker = PickerName.picknet,
    k: K = None,
    change: Change = None,
    beam: Beam = None,
    frames: Frames = None,
    seed: Seed = 0,
    jobs: Annotated[int, typer.Option(min=1, help="Processes that work on several videos at a time.")] = 1,
) -> None:
    """Write a sentence about each video."""
    _check_numbers([picker], k, change)
    if jobs > 1 and picker in (PickerName.random, PickerName.kmeans, PickerName.coin):
        raise BadUsage(f"--jobs {jobs}: what {picker.value} picks depends on the videos before; it needs one process")
    videos, problems = _find_videos(files)
    sheets = _sheet_paths(sheet, videos) if sheet else [None] * len(videos)
    for problem in problems:
        _say(problem)
    if not videos:
        raise typer.Exit(1)

    from picknet.captioner import NothingToCaption
    from picknet.jobs import LostProcess, in_order
    from picknet.video import UnreadableVideo

    captioning = _Captioning(model, picker, k, change, frames, seed, beam, candidates or 1)
    jobs = min(jobs, len(videos))
    if jobs == 1:
        _ = captioning.picker  # what is wrong with the model is said before anything is written
    num_failed = len(problems)
    if format is CaptionFormat.csv:
        numbered = [f"{name}_{rank + 1}" for rank in range(candidates or 0) for name in ("candidate", "probability")]
        _print_csv(["video", "caption", "confidence", "picks", "seconds", "frames_seen", "model", *numbered])
    tasks = list(zip(videos, sheets, strict=True))
    with _progress("captioning", len(videos)) as tick:
        for result in in_order(captioning, tasks, jobs=jobs, name=lambda task: str(task[0])):
            if isinstance(result, UnreadableVideo | NothingToCaption | LostProcess):
                _say(str(result))
                num_failed += 1
            elif isinstance(result, PicknetError):
                raise result
            else:
                caption, thumbnails, sheet_path = result
                _print_caption(caption, format=format, named=len(videos) > 1, num_candidates=candidates or 0)
                if caption.damage:
                    _say(f"{caption.video}: {caption.damage}; captioned what could be read")
                if sheet_path:
                    _write_sheet(sheet_path, thumbnails, caption)
            tick()
    if num_failed:
        raise typer.Exit(1)


@dataclasses.dataclass(frozen=True)
class _Captioning:
    """What is done with each video; it can be sent to another process, where the model is loaded anew."""

    model: str | None
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

        return load(self.model)

    @functools.cached_property
    def picker(self) -> "Picker":
        return _picker(
            self.picker_name,
            k=self.k,
            change=self.change,
            frames=self.frames,
            seed=self.seed,
            captioner=lambda: self.captioner,
        )


@app.command()
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
    _check_numbers([picker], k, change)
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
    videos, problems = ([watch.live.name], []) if watch else _find_videos(files)
    for problem in problems:
        _say(problem)
    if not videos:
        raise typer.Exit(1)

    from picknet.captioner import load, picked
    from picknet.frames import check_folder, write_frames
    from picknet.live import BadSetting
    from picknet.video import UnreadableVideo

    if out:
        check_folder(out)  # or a long film would be watched in vain
    folders = [out / name for name in _own_names(videos)] if out and len(videos) > 1 else [out] * len(videos)
    chosen = None
    if not budget:
        captioner = functools.cache(lambda: load(model))
        chosen = _picker(picker, k=k, change=change, frames=frames, seed=seed, captioner=captioner)
        if picker is PickerName.picknet:
            frames = frames or captioner().config.video.num_frames
    num_failed = len(problems)
    with _progress("seconds seen", 0 if watch else _seconds_to_tell(videos)) as tick:
        for video, folder in zip(videos, folders, strict=True):
            try:
                found = picked(
                    watch or video,
                    budget=budget,
                    exact=exact,
                    picker=chosen,
                    num_frames=frames,
                    seen=_each_second(tick),
                )
            except (UnreadableVideo, BadSetting) as error:
                _say(str(error))
                num_failed += 1
                continue
            damage = watch.live.damage if watch else found.damage
            if damage:
                _say(f"{video}: {damage}; picked from what could be read")
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
        raise typer.Exit(watch.code if watch else 1)


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
        from picknet.connection import recognised
        from picknet.live import Live

        is_live = len(files) == 1 and recognised(files[0]).kind != "file"
        return cls(Live(files[0], note=_say)) if is_live else None

    def __iter__(self) -> Iterator["Frame"]:
        from picknet.live import LostSource

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
            _say(str(error))
            self.code = 1
        finally:
            for number, handler in zip(ends, before, strict=True):
                signal.signal(number, handler)

    def _end(self, number: int, _: object) -> None:
        self.code = 128 + number
        if self._waiting:  # whoever takes the frames is not disturbed
            self._waiting = False
            raise KeyboardInterrupt


def _each_second(tick: Callable[[], object]) -> Callable[[float], None]:
    """A function of ever more seconds that ticks for each that is over."""
    num_ticks = 0

    def see(seconds: float) -> None:
        nonlocal num_ticks
        while num_ticks < int(seconds):
            num_ticks += 1
            tick()

    return see


def _print_frames(
    video: str, frames: Iterable["PickedFrame"], format: PickFormat, *, image_format: str, max_side: int | None
) -> None:
    """base64: an object a line for each frame; the others: a list a line for each video."""
    from picknet.frames import anthropic_parts, encode, openai_parts

    if format is PickFormat.base64:
        for frame in frames:
            encoded = encode(frame, image_format=image_format, max_side=max_side)
            size = {"width": encoded.width, "height": encoded.height}
            coded = {"media_type": encoded.media_type, "data": encoded.base64}
            print(json.dumps({"video": video, **_pick_json(frame.pick), **size, **coded}), flush=True)
        return
    parts = openai_parts if format is PickFormat.openai else anthropic_parts
    print(json.dumps(parts(frames, image_format=image_format, max_side=max_side)), flush=True)


@app.command()
def stream(
    source: Annotated[
        str, typer.Argument(help="A file, - (standard input), a camera (0), or rtsp://, rtmp://, http(s):// or udp://.")
    ],
    fps: Annotated[float, typer.Option(min=0.001, max=1000, help="Frames a second that are glanced at.")] = 1.0,
    format: Annotated[StreamFormat, typer.Option(help="jsonl: one object a line.")] = StreamFormat.text,
    only_changes: Annotated[
        bool, typer.Option("--only-changes", help="Say a sentence only when it differs from the one before.")
    ] = False,
    realtime: Annotated[
        bool, typer.Option("--realtime", help="Read a file at its own speed; drop from it, and from a pipe, when late.")
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600, help="Seconds without a frame after which a source is given up or lost.")
    ] = 15.0,
    retries: Annotated[int, typer.Option(min=0, help="How often in a row a lost source is tried again.")] = 10,
    model: Model = None,
    beam: Beam = None,
) -> None:
    """Describe a camera or another stream as it runs: a sentence after every pick."""
    from picknet.captioner import load
    from picknet.live import Live

    teller = _Teller(format)
    live = Live(source, fps=fps, realtime=realtime, timeout=timeout, retries=retries, note=teller.note)
    captioner = load(model)
    before = signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    num_picks = num_sentences = 0
    try:
        for update in captioner.stream(live, beam=beam):
            num_picks, num_sentences = update.num_picks, num_sentences + update.changed
            if update.changed or not only_changes:
                teller.tell(update)
    finally:
        teller.end()
        if live.num_frames:
            _say(_stream_summary(live, num_picks, num_sentences))
        signal.signal(signal.SIGTERM, before)


class _Teller:
    """Prints updates: on a terminal one line that is written over, elsewhere a line for each."""

    def __init__(self, format: StreamFormat) -> None:
        self._format = format
        self._rewrites = format is StreamFormat.text and sys.stdout.isatty()
        self._line = ""
        self._lock = threading.Lock()  # a lost connection is noted while an update is told

    def tell(self, update: "Update") -> None:
        from picknet.timeline import clock

        with self._lock:
            if self._format is StreamFormat.jsonl:
                print(json.dumps(_update_json(update)), flush=True)
            elif not self._rewrites:
                print(f"{clock(update.seconds)}  {update.text}", flush=True)
            else:
                picks = f"{_many(update.num_picks, 'pick')} of {_many(update.frames_seen, 'frame')}"
                line = f"{clock(update.seconds)}  {update.text}  ({picks})"
                self._line = line[: shutil.get_terminal_size().columns - 1]
                print(f"\r\x1b[2K{self._line}", end="", flush=True)

    def note(self, message: str) -> None:
        """A line for people, above the one that is written over."""
        with self._lock:
            if self._line:
                print("\r\x1b[2K", end="", flush=True)
            _say(message)
            print(self._line, end="", flush=True)

    def end(self) -> None:
        """Leave what is said on a line of its own."""
        with self._lock:
            if self._line:
                print(flush=True)
            self._line = ""


def _update_json(update: "Update") -> dict[str, Any]:
    content = {
        "seconds": update.seconds,
        "caption": update.text,
        "changed": update.changed,
        "probability": update.pick.probability,
        "confidence": update.confidence,
        "frames_seen": update.frames_seen,
        "picks": update.num_picks,
        "scene": update.scene,
        "lag": update.lag,
    }
    return content | ({"damage": update.damage} if update.damage else {})


def _stream_summary(live: "Live", num_picks: int, num_sentences: int) -> str:
    from picknet.timeline import clock

    parts = [
        f"{_many(live.num_frames, 'frame')} until {clock(live.seconds)}",
        _many(num_picks, "pick"),
        _many(num_sentences, "sentence"),
    ]
    if live.max_lag is not None:
        parts += [f"{live.num_dropped:,} dropped", f"lag at most {live.max_lag:.1f} s"]
    if live.num_reconnects:
        parts.append(f"lost {_many(live.num_reconnects, 'time')}")
    if live.damage:
        parts.append(live.damage)
    return f"{live.name}: {', '.join(parts)}"


@app.command()
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
    beam: Beam = None,
) -> None:
    """Tell what a long video shows, from when to when: as lines, as subtitles, as a storyboard."""
    videos, problems = _find_videos(files)
    format, places = _timeline_places(out, format, videos)
    sheets = _sheet_paths(sheet, videos) if sheet else [None] * len(videos)
    for problem in problems:
        _say(problem)
    if not videos:
        raise typer.Exit(1)

    from picknet.captioner import load
    from picknet.figures import Storyboard
    from picknet.files import written_whole
    from picknet.frames import check_folder
    from picknet.timeline import as_csv, as_json, as_srt, as_text, as_vtt
    from picknet.video import UnreadableVideo

    for path in filter(None, (*places, *sheets)):
        check_folder(path.parent)  # a long film would be watched in vain
    captioner = load(model)
    writers: dict[TimelineFormat, Callable[[Iterable[Segment], str], Iterator[str]]] = {
        TimelineFormat.text: lambda segments, _: as_text(segments),
        TimelineFormat.json: lambda segments, video: as_json(segments, video=video, model=captioner.name),
        TimelineFormat.srt: lambda segments, _: as_srt(segments),
        TimelineFormat.vtt: lambda segments, _: as_vtt(segments),
        TimelineFormat.csv: lambda segments, video: as_csv(segments, video=video),
    }
    num_failed = len(problems)
    with _progress("seconds told", _seconds_to_tell(videos)) as tick:
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
                name = f"{_shown(video)}: " if len(videos) > 1 and format is TimelineFormat.text else ""
                for piece in content:
                    print(name + piece, end="", flush=True)
            except UnreadableVideo as error:
                _say(str(error))
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
        return format, [out / f"{name}{suffix}" for name in _own_names(videos)]
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
    for segment in captioner.timeline(video, fps=fps, picker=watched, beam=beam):
        damage = segment.damage
        if board:
            board.add(segment, watched.take(segment.picks))
        yield segment
    if board:
        board.end()
    if damage:
        _say(f"{video}: {damage}; told what could be read")


class _TimelineWatch:
    """A picker that ticks for every second of film that it hands to another, and keeps small copies of the picks."""

    def __init__(self, picker: "Picker", tick: Callable[[], object], *, keep: bool) -> None:
        self._picker = picker
        self._tick = tick
        self._keep = keep
        self._num_ticks = 0
        self._kept: dict[int, Thumbnail] = {}

    def pick(self, frames: Iterable["Frame"]) -> Iterator[tuple["Frame", "Pick"]]:
        from picknet.figures import Thumbnail

        for frame, pick in self._picker.pick(map(self._see, frames)):
            if self._keep:
                self._kept[pick.index] = Thumbnail.of(frame, max_side=240)
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
        while self._num_ticks < int(frame.seconds):
            self._num_ticks += 1
            self._tick()
        return frame


def _seconds_to_tell(videos: Sequence[str]) -> int:
    """How long the films are in all, where somebody sees the bar that it is for."""
    from picknet.video import UnreadableVideo, Video

    total = 0.0
    for video in videos if sys.stderr.isatty() else ():
        with contextlib.suppress(UnreadableVideo), Video(video) as opened:
            total += opened.seconds or 0.0
    return int(total)


class _Watched:
    """A picker that keeps a small copy of every frame it hands to another."""

    def __init__(self, picker: "Picker") -> None:
        self.picker = picker
        self.seen: list[Thumbnail] = []

    def pick(self, frames: Iterable["Frame"]) -> Iterator[tuple["Frame", "Pick"]]:
        from picknet.figures import Thumbnail

        def see(frame: "Frame") -> "Frame":
            self.seen.append(Thumbnail.of(frame))
            return frame

        return self.picker.pick(map(see, frames))


def _find_videos(arguments: Iterable[str]) -> tuple[list[str], list[str]]:
    """The videos that files, folders and patterns stand for, and what is wrong with those that stand for none."""
    from picknet.connection import without_password
    from picknet.video import VIDEO_SUFFIXES

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


def _sheet_paths(sheet: Path, videos: Sequence[str]) -> list[Path]:
    """Where each video's contact sheet goes: the file itself, or NAME.png, NAME-2.png … in the folder."""
    from picknet.figures import FORMATS

    if sheet.suffix and not sheet.is_dir():
        if sheet.suffix.lower() not in FORMATS:
            raise BadUsage(f"--sheet {sheet}: a sheet ends in {', '.join(FORMATS)}; a folder's name has no suffix")
        if len(videos) > 1:
            raise BadUsage(f"--sheet {sheet}: one file cannot hold the sheets of {len(videos)} videos; name a folder")
        return [sheet] * len(videos)
    return [sheet / f"{name}.png" for name in _own_names(videos)]


def _own_names(videos: Sequence[str]) -> list[str]:
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


def _write_sheet(path: Path, frames: Sequence["Thumbnail"], result: "Caption") -> None:
    from picknet.figures import contact_sheet, save

    save(contact_sheet(frames, result.picks, result.text, title=Path(result.video).name), path)


def _print_caption(result: "Caption", *, format: CaptionFormat, named: bool, num_candidates: int) -> None:
    """Where candidates were asked for they are all shown, the caption among them."""
    candidates = result.candidates if num_candidates else ()
    if format is CaptionFormat.json:
        content = {
            "video": result.video,
            "caption": result.text,
            "confidence": result.confidence,
            "picks": [_pick_json(pick) for pick in result.picks],
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
        _print_csv(
            [result.video, result.text, sure, indices, seconds, result.frames_seen, result.model, *numbered]
        )
    else:
        name = f"{_shown(result.video)}: " if named else ""
        lines = [f"{one.probability:.4f}  {one.text}" for one in candidates] or [result.text]
        if candidates and result.confidence is not None:
            lines[0] += f" (confidence {result.confidence:.2f})"
        print("\n".join(name + line for line in lines), flush=True)


def _pick_json(pick: "Pick") -> dict[str, Any]:
    return {"index": pick.index, "seconds": pick.seconds, "probability": pick.probability}


def _print_csv(values: Sequence[object]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    print(line.getvalue(), end="", flush=True)


# --- Training and evaluation ---


@app.command()
def evaluate(
    data: Data,
    dataset: Annotated[DatasetName, typer.Option(help="How the captions are stored.")] = DatasetName.msvd,
    split: Annotated[SplitName, typer.Option(help="Which clips.")] = SplitName.val,
    model: Model = None,
    picker: Annotated[
        list[PickerName] | None,
        typer.Option(
            metavar="PICKER",
            help=f"How frames are picked: {', '.join(PickerName)}; given several times, the paper's table.",
        ),
    ] = None,
    k: K = None,
    change: Change = None,
    beam: Beam = None,
    frames: Frames = None,
    seed: Seed = 0,
    format: Annotated[ResultFormat, typer.Option(help="json: one object a line.")] = ResultFormat.text,
    captions: Annotated[Path | None, typer.Option(help="Write the captions to this JSON file.")] = None,
    histograms: Annotated[Path | None, typer.Option(help="Draw how many frames were picked and where.")] = None,
    examples: Annotated[
        Path | None, typer.Option(help="Draw 12 clips, evenly spread over the split, with picks and captions.")
    ] = None,
) -> None:
    """Score a model on a data set."""
    names = list(dict.fromkeys(picker or [PickerName.picknet]))
    _check_numbers(names, k, change)
    pictures = {"--histograms": histograms, "--examples": examples}
    for option, path in pictures.items():
        if path and len(names) > 1:
            raise BadUsage(f"{option} {path}: one picture shows one picker, not {len(names)}")

    import warnings

    from picknet import evaluation
    from picknet.captioner import load
    from picknet.datasets import load_split
    from picknet.evaluation import examples as chosen
    from picknet.figures import FORMATS, example_sheet, pick_histograms, save
    from picknet.files import write_text

    for option, path in pictures.items():
        if path and path.suffix.lower() not in FORMATS:
            raise BadUsage(f"{option} {path}: a picture ends in {', '.join(FORMATS)}")
    clips = load_split(data, dataset=dataset.value, split=split.value)
    captioner = load(model)
    rows = []
    with _progress("evaluating", len(clips.clips) * len(names)) as tick:
        for name in names:
            with warnings.catch_warnings(record=True) as warned:
                row = evaluation.evaluate(
                    captioner,
                    clips,
                    picker=_picker(
                        name, k=k, change=change, frames=frames, seed=seed, captioner=lambda: captioner
                    ),
                    picker_name=name.value,
                    k=_k(name, k),
                    change=_change(change) if name is PickerName.scene else None,
                    beam=beam,
                    num_frames=frames,
                    tick=tick,
                )
            for warning in warned:
                _say(str(warning.message))
            rows.append(row)
            if format is ResultFormat.json:
                print(json.dumps(row.as_json()), flush=True)
    if format is ResultFormat.text:
        print(evaluation.comparison_table(rows) if len(rows) > 1 else _result_text(rows[0]))
        # Every picker is given the same clips, and reads the same ones.
        if missing := rows[0].missing:
            print(f"\nmissing {_many(len(missing), 'clip')}:")
            print("\n".join(f"  {clip.name}: {clip.reason}" for clip in missing), flush=True)
    if captions:
        written = [
            {"clip": clip, "picker": row.picker, "caption": said.text, "picks": [_pick_json(p) for p in said.picks]}
            for row in rows
            for clip, said in row.captions.items()
        ]
        write_text(captions, json.dumps(written, indent=1, ensure_ascii=False) + "\n")
    if histograms:
        counted = pick_histograms(rows[0].pick_counts, rows[0].pick_positions, num_frames=rows[0].num_frames)
        save(counted, histograms)
    if examples:
        strips = [_strip(example, frames=rows[0].num_frames) for example in chosen(rows[0], clips)]
        save(example_sheet(strips), examples)


def _strip(example: "Example", *, frames: int) -> "Strip":
    """The picked frames of an example, read from its video again."""
    from picknet.figures import Strip, Thumbnail
    from picknet.video import Video

    picked = {pick.index for pick in example.caption.picks}
    with Video(example.clip.path) as video:
        seen = [Thumbnail.of(frame) for frame in video.sample_evenly(count=frames) if frame.index in picked]
    note = f"{example.clip.name} · CIDEr {example.cider:.0f}"
    return Strip(seen, example.caption.text, example.reference, note)


def _result_text(row: "Evaluation") -> str:
    scores = row.scores
    lines = [
        f"{row.label} on {row.dataset} {row.split}: {_many(row.num_videos, 'clip')}, "
        f"{row.mean_picks:.1f} picks a clip, {row.seconds:.1f} s"
    ]
    for name, value in (
        ("BLEU@1", scores.bleu1),
        ("BLEU@2", scores.bleu2),
        ("BLEU@3", scores.bleu3),
        ("BLEU@4", scores.bleu4),
        ("ROUGE-L", scores.rouge_l),
        ("METEOR", scores.meteor),
        ("CIDEr", scores.cider),
    ):
        shown = '    – (needs Java and pip install "picknet[meteor]")' if value is None else f"{value:5.1f}"
        lines.append(f"{name:7} {shown}")
    return "\n".join(lines)


@app.command()
def calibrate(
    model: Annotated[str, typer.Option(help="A model folder or a run folder; its card.json is written.")],
    data: Data,
    dataset: Annotated[DatasetName, typer.Option(help="How the captions are stored.")] = DatasetName.msvd,
    split: Annotated[SplitName, typer.Option(help="Which clips: some the model was not trained on.")] = SplitName.val,
    format: Annotated[ResultFormat, typer.Option(help="json: one object.")] = ResultFormat.text,
) -> None:
    """Fit a model's confidence in its captions."""
    from picknet import confidence
    from picknet.captioner import NothingToCaption, load
    from picknet.datasets import Missing, load_split
    from picknet.files import write_text, written_whole
    from picknet.video import UnreadableVideo

    clips = load_split(data, dataset=dataset.value, split=split.value)
    captioner = load(model)
    card = captioner.runtime.folder / "card.json"
    with written_whole(card) as same:  # minutes before the new card is there to be written, tell whether one can be
        same.write_bytes(card.read_bytes())
    said, missing = {}, list(clips.missing)
    with _progress("captioning", len(clips.clips)) as tick:
        for clip in clips.clips:
            try:
                result = captioner.caption(clip.path)
            except (UnreadableVideo, NothingToCaption) as error:
                missing.append(Missing(clip.name, str(error)))
            else:
                said[clip.name] = (result.text, result.log_probability)
            tick()
    fitted = confidence.calibrate(said, {clip.name: clip.captions for clip in clips.clips if clip.name in said})
    kept = {**fitted.as_json(), "split": f"{dataset.value} {split.value}"}
    write_text(card, json.dumps(captioner.runtime.card | {"confidence": kept}, indent=2, ensure_ascii=False) + "\n")
    if format is ResultFormat.json:
        bins = [dataclasses.asdict(one) for one in fitted.bins]
        told = [{"clip": clip.name, "reason": clip.reason} for clip in missing]
        print(json.dumps({"model": captioner.name, **kept, "bins": bins, "missing": told}))
        return
    print(
        f"{captioner.name} on {kept['split']}: {_many(fitted.num_clips, 'clip')}, "
        f"{fitted.num_good} of them with a good caption (CIDEr above {confidence.GOOD_CIDER})\n"
        f"AUC                         {fitted.auc:.3f}\n"
        f"expected calibration error  {fitted.ece:.3f}  ({confidence.NUM_FOLDS}-fold cross-validation, "
        f"{confidence.NUM_BINS} bins of equal width)"
    )
    for one in fitted.bins:
        print(f"  confidence {one.confidence:.2f}: {one.good:.2f} good of {_many(one.num_clips, 'clip')}")
    if missing:
        print(f"missing {_many(len(missing), 'clip')}:")
        print("\n".join(f"  {clip.name}: {clip.reason}" for clip in missing))
    print(f"written to {card}")


@app.command()
def compare(
    data: Data,
    dataset: Annotated[DatasetName, typer.Option(help="How the captions are stored.")] = DatasetName.msvd,
    split: Annotated[SplitName, typer.Option(help="Which clips.")] = SplitName.val,
    model: Annotated[
        list[str] | None,
        typer.Option(help="As for evaluate; given several times, each judges the clips of the --clips beside it."),
    ] = None,
    clips: Annotated[
        list[Path] | None,
        typer.Option(help="For each model, its clips: a text file with a name a line, or the run folder of a fold."),
    ] = None,
    out: Annotated[Path | None, typer.Option(help="A folder for the tables and pictures.")] = None,
    beam: Annotated[int, typer.Option(min=1, help="Beam width; greedy, as many captions are written.")] = 1,
    subsets: Annotated[
        int, typer.Option(min=0, help="Random subsets of each size that tell how much the choice matters; 0: none.")
    ] = 100,
    meteor: Annotated[bool, typer.Option("--meteor", help="METEOR too: 10 seconds for 100 captions.")] = False,
    cache: Annotated[Path | None, typer.Option(help="A folder that keeps features for the next time.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="For pickers that draw, and the bootstrap.")] = 0,
) -> None:
    """Draw CIDEr against mean picks, for PickNet and its rivals."""
    models: list[str | None] = [*model] if model else [None]
    lists = clips or []
    if len(lists) != len(models) and (lists or len(models) > 1):
        told = f"{_many(len(models), 'model')} and {_many(len(lists), 'list')} of clips"
        raise BadUsage(f"{told}: each --model judges the clips of one --clips")

    import warnings

    from picknet import comparison
    from picknet.captioner import load
    from picknet.datasets import load_split
    from picknet.judging import only

    whole = load_split(data, dataset=dataset.value, split=split.value)
    parts = [only(whole, path) for path in lists] or [whole]
    judges = [(load(name), part) for name, part in zip(models, parts, strict=True)]
    num_clips = sum(len(part.clips) for part in parts)
    with _progress("comparing", num_clips) as tick, warnings.catch_warnings(record=True) as warned:
        result = comparison.compare(
            judges, beam=beam, seed=seed, num_subsets=subsets, with_meteor=meteor, cache=cache, tick=tick
        )
    for warning in warned:
        _say(str(warning.message))
    print(comparison.markdown(result))
    if out:
        words = ["--data", str(data), "--dataset", dataset, "--split", split]
        for number, name in enumerate(model or [""]):
            words += ["--model", name] if name else []
            words += ["--clips", str(lists[number])] if lists else []
        words += ["--beam", str(beam), "--subsets", str(subsets), "--seed", str(seed)]
        comparison.write(result, out, command=shlex.join(["picknet", "compare", *words]))


@app.command()
def report(
    runs: Annotated[
        list[Path], typer.Argument(metavar="RUN", help="Run folders; those that differ by the seed alone are averaged.")
    ],
    out: Annotated[Path, typer.Option(help="A folder for report.md and the training curves.")],
) -> None:
    """Tell what training runs did: what each stage added, curves, cost."""
    from picknet import report

    report.write([report.read_run(run) for run in runs], out)
    print(out / "report.md")


@app.command()
def train(
    data: Annotated[
        list[str],
        typer.Option(metavar="[NAME=]DIR", help="A data folder; of several, each after its data set's name: coco=DIR."),
    ],
    out: Annotated[Path, typer.Option(help="The run folder; the trained model will be its model/.")],
    config: Annotated[
        Path | None, typer.Argument(metavar="CONFIG.toml", help="The settings, as in configs/msvd.toml.")
    ] = None,
    dataset: Annotated[
        DatasetName | None,
        typer.Option(help="The data set of a DIR without a name: msvd; with --from and no config: folder."),
    ] = None,
    stage: Annotated[
        list[StageName] | None,
        typer.Option(
            "--stage",
            metavar="STAGE",
            help=f"Only some of {', '.join(StageName)}; with --from and no config: one of them.",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Another setting, as in reward.penalty=-2.")
    ] = None,
    start: Annotated[str | None, typer.Option("--from", help="Go on from this model, with its words.")] = None,
    fold: Annotated[
        str | None, typer.Option(metavar="K/N", help="Validate on the K-th of N parts of the training clips.")
    ] = None,
    judge: Annotated[
        list[Path] | None,
        typer.Option(metavar="RUN", help="Runs of folds, which reward PickNet on the clips they were validated on."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that was stopped.")] = False,
    device: Annotated[DeviceName, typer.Option(help="Where to train.")] = DeviceName.auto,
    cache: Annotated[Path | None, typer.Option(help="Where features are kept; by default beside the run.")] = None,
) -> None:
    """Train the paper's three stages, and refinement where the config asks for it."""
    from picknet.captioner import find_model
    from picknet.datasets import data_folders

    start_folder = find_model(start)[1] if start else None
    read = _read_config(config, settings or [], start=start_folder, run=out if resume else None)
    default = DatasetName.folder if start and not config else DatasetName.msvd
    folders = data_folders(data, (dataset or default).value)
    with _train_extra(), _TrainingWatch() as watch:
        from picknet import training

        model = training.train(
            read,
            data=folders,
            out=out,
            stages=tuple(name.value for name in stage or (_fine_tuning(read) if start and not config else StageName)),
            start=start_folder,
            fold=training.Fold.parse(fold) if fold else None,
            judges=judge or (),
            resume=resume,
            device=device.value,
            cache=cache,
            report=watch.report,
            seen=watch.seen,
            note=_say,
            command=shlex.join(["picknet", *sys.argv[1:]]),
        )
    print(f"{model}: trained; try picknet caption VIDEO --model {out}")


def _read_config(path: Path | None, settings: Sequence[str], *, start: Path | None, run: Path | None) -> "Config":
    """The config named, or else the one of the run to resume or of the model to go on from."""
    from picknet.config import load_config

    if run and not path:
        path = run / "config.toml"
    elif start and not path:
        path = start / "config.toml"
    if path is None:
        raise BadUsage("which settings? Name a config file, as in configs/msvd.toml, or a model to go on from: --from")
    return load_config(path, settings)


def _fine_tuning(config: "Config") -> tuple[StageName]:
    """The stage in which a trained model goes on: adaptation, or supervision where the model knew no adaptation."""
    return (StageName.adaptation if config.adaptation.epochs else StageName.supervision,)


class _TrainingWatch:
    """What a training reports: a bar for each stage where somebody watches, a line for each epoch in a file."""

    def __init__(self) -> None:
        self._progress: Progress | None = _progress_bars("{task.fields[facts]}") if sys.stderr.isatty() else None
        self._tasks: dict[str, Any] = {}

    def __enter__(self) -> "_TrainingWatch":
        if self._progress:
            self._progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._progress:
            self._progress.stop()

    def report(self, stage: str, done: int, total: int, facts: dict[str, float]) -> None:
        told = {name: f"{name.replace('_', ' ')} {value:.4g}" for name, value in facts.items()}
        chief = [told[name] for name in ("loss", "reward", "picks", "val_cider", "best_epoch") if name in told]
        self._move(stage, done, total, ", ".join(chief))
        if not sys.stdout.isatty():
            print(f"{stage} {done}/{total}: {', '.join(told.values())}", flush=True)

    def seen(self, split: str, done: int, total: int) -> None:
        self._move(f"looking at {split}", done, total, "")
        if done == total and not sys.stdout.isatty():
            print(f"{split}: {_many(total, 'clip')} looked at", flush=True)

    def _move(self, name: str, done: int, total: int, told: str) -> None:
        if self._progress is None:
            return
        if name not in self._tasks:  # a resumed stage begins in its middle
            self._tasks[name] = self._progress.add_task(name, total=total, completed=done - 1, facts=told)
        self._progress.update(self._tasks[name], completed=done, facts=told)


@app.command()
def export(
    run: Annotated[Path, typer.Argument(help="A run folder.")],
    out: Annotated[Path, typer.Argument(help="The model folder to write.")],
    card: Annotated[
        Path | None, typer.Option(help="A JSON file of more facts for people (licence, scores), laid over card.json.")
    ] = None,
) -> None:
    """Write a run's best model as a model folder."""
    from picknet.files import write_text

    more = _read_card(card) if card else {}
    with _train_extra():
        from picknet import training

        training.export_run(run, out)
    if more:
        written = json.loads((out / "card.json").read_text(encoding="utf-8"))
        write_text(out / "card.json", json.dumps(written | more, indent=2, ensure_ascii=False) + "\n")
    print(out)


def _read_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise BadUsage(f"{path}: is not JSON ({error})") from error
    if not isinstance(card, dict):
        raise BadUsage(f"{path}: holds no JSON object, as {{\"licence\": \"Apache-2.0\"}} is one")
    return card


@contextlib.contextmanager
def _train_extra() -> Iterator[None]:
    """Around what needs the `train` extra."""
    try:
        yield
    except ModuleNotFoundError as error:
        if str(error.name).startswith("picknet"):
            raise
        missing = f"training needs {error.name}, which is not installed"
        raise MissingExtra(f'{missing}; pip install "picknet[train]"') from error


@app.command()
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


# --- Pickers and progress ---


def _picker(
    name: PickerName,
    *,
    k: int | None,
    change: float | None,
    frames: int | None,
    seed: int,
    captioner: "Callable[[], Captioner]",
) -> "Picker":
    """The picker of this name; picknet and kmeans are those of a captioner."""
    from picknet import picking

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
        PickerName.scene: lambda: picking.SceneChangePicker(_change(change)),
        PickerName.all: picking.AllPicker,
    }
    return pickers[name]()


def _k(name: PickerName, k: int | None) -> int | None:
    """How many frames this picker is told to pick; None where it decides."""
    if name in (PickerName.picknet, PickerName.scene, PickerName.all):
        return None
    return k if name is PickerName.random else k or DEFAULT_K


def _change(change: float | None) -> float:
    return DEFAULT_CHANGE if change is None else change


def _check_numbers(names: Sequence[PickerName], k: int | None, change: float | None) -> None:
    told = " and ".join(names)
    if k and all(_k(name, k) is None for name in names):
        raise BadUsage(f"--k {k}: means nothing to {told}; uniform, random, kmeans, every and coin take a k")
    if change is not None and PickerName.scene not in names:
        raise BadUsage(f"--change {change:g}: means nothing to {told}; scene takes it")


@contextlib.contextmanager
def _progress(what: str, total: int) -> Iterator[Callable[[], object]]:
    """A bar with the time left on standard error, where there is somebody to see it and something to wait for."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    with _progress_bars() as progress:
        task = progress.add_task(what, total=total)
        yield lambda: progress.advance(task)


def _progress_bars(*more: str) -> "Progress":
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    kept = Column(no_wrap=True)  # in a narrow terminal, what comes after the time left is folded first
    return Progress(
        TextColumn("{task.description}", table_column=kept),
        BarColumn(20, table_column=kept),
        MofNCompleteColumn(table_column=kept),
        TimeRemainingColumn(table_column=kept),
        *(TextColumn(text, markup=False, table_column=Column()) for text in more),
        console=Console(stderr=True),
        transient=not more,
        # Results go above the bar where both share a terminal, and to where they were sent otherwise.
        redirect_stdout=sys.stdout.isatty(),
    )


def _many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
