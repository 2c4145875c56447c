"""What a command says to people: lines on standard error, bars, counts."""

import contextlib
import csv
import io
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress


def say(message: str) -> None:
    """A line for people, whatever standard output is used for."""
    print(f"picknet: {shown(message)}", file=sys.stderr, flush=True)


def shown(text: str) -> str:
    """The text on one line, whatever line ends and commands to a terminal a file name in it may hold."""
    return re.sub(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]", lambda found: ascii(found[0])[1:-1], text)


def each_second(tick: Callable[[], object]) -> Callable[[float], None]:
    """A function of ever more seconds that ticks for each that is over."""
    num_ticks = 0

    def see(seconds: float) -> None:
        nonlocal num_ticks
        while num_ticks < int(seconds):
            num_ticks += 1
            tick()

    return see


def print_csv(values: Sequence[object]) -> None:
    line = io.StringIO()
    csv.writer(line, lineterminator="\n").writerow(values)
    print(line.getvalue(), end="", flush=True)


@contextlib.contextmanager
def progress(what: str, total: int) -> Iterator[Callable[[], object]]:
    """A bar with the time left on standard error, where there is somebody to see it and something to wait for."""
    if total < 2 or not sys.stderr.isatty():
        yield lambda: None
        return
    with progress_bars() as bars:
        task = bars.add_task(what, total=total)
        yield lambda: bars.advance(task)


def progress_bars(*more: str) -> "Progress":
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


def many(count: int, noun: str) -> str:
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
