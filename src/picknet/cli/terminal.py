"""Messages on standard error, progress bars and counts."""

import contextlib
import re
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.progress import Progress

_is_quiet = False


def set_quiet(quiet: bool) -> None:
    """Called for every command with its --quiet: whether notes and progress bars are left out."""
    global _is_quiet
    _is_quiet = quiet


def is_quiet() -> bool:
    return _is_quiet


def say(message: str) -> None:
    """Print an error on standard error, on one line."""
    print(f"picknet: {shown(message)}", file=sys.stderr, flush=True)


def note(message: str) -> None:
    """The same for what --quiet leaves out: nothing that makes the command fail."""
    if not _is_quiet:
        say(message)


def shown(text: str) -> str:
    """The text on one line, with what a file name may hold and people cannot read as escapes: line ends, control
    characters, bytes that are no text.
    """
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029\ud800-\udfff]", lambda found: ascii(found[0])[1:-1], text)


def printable(lines: str) -> str:
    """Lines for standard output: on a terminal control characters are escapes; a program gets them as they are."""
    return "\n".join(map(shown, lines.split("\n"))) if sys.stdout.isatty() else lines


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def shows_progress() -> bool:
    return sys.stderr.isatty() and not _is_quiet


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], object]]:
    """A bar with the time left, on a terminal and for more than one item; call what it yields after each."""
    if total < 2 or not shows_progress():
        yield lambda: None
        return
    with progress_bars() as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


class VideoProgress:
    """A bar over long videos: the seconds of a single one, or how many of several are done.

    A video's length is asked for when its turn comes; a part of a video moves the bar by the same part of one.
    """

    def __init__(self, bars: "Progress | None", task: Any, num_videos: int) -> None:
        self._bars = bars
        self._task = task
        self._num_videos = num_videos
        self._num_begun = 0
        self._seconds: float | None = None

    def begin(self, video: str) -> None:
        """Call before each video."""
        self._num_begun += 1
        if self._bars is None:
            return
        from picknet.video.file import stored_seconds

        self._seconds = stored_seconds(video)
        if self._num_videos == 1:
            self._bars.update(self._task, total=self._seconds and int(self._seconds))
        else:
            self._bars.update(self._task, completed=self._num_begun - 1)

    def at(self, seconds: float) -> None:
        """Call with the timestamp of each frame."""
        if self._bars is None:
            return
        if self._num_videos == 1:
            self._bars.update(self._task, completed=int(seconds))
        elif self._seconds:
            self._bars.update(self._task, completed=self._num_begun - 1 + min(seconds / self._seconds, 1.0))


@contextlib.contextmanager
def video_progress(what: str, num_videos: int) -> Iterator[VideoProgress]:
    """what: a verb, as in "picking"."""
    if not num_videos or not shows_progress():
        yield VideoProgress(None, None, num_videos)
        return
    with progress_bars() as bars:
        unit, total = ("seconds", None) if num_videos == 1 else ("videos", num_videos)
        yield VideoProgress(bars, bars.add_task(f"{what} ({unit})", total=total), num_videos)


def progress_bars(*more: str) -> "Progress":
    """more: templates of columns after the time left."""
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
    from rich.table import Column

    fixed = Column(no_wrap=True)  # in a narrow terminal, only the columns after the time left are wrapped
    return Progress(
        TextColumn("{task.description}", table_column=fixed),
        BarColumn(20, table_column=fixed),
        MofNCompleteColumn(table_column=fixed),
        TimeRemainingColumn(table_column=fixed),
        *(TextColumn(text, markup=False, table_column=Column()) for text in more),
        console=Console(stderr=True),
        transient=not more,
        # Results go above the bar where both share a terminal, and to where they were sent otherwise.
        redirect_stdout=sys.stdout.isatty(),
    )
