"""`picknet batch`."""

import contextlib
import functools
import re
import time
from collections.abc import Callable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from picknet.cli.arguments import (
    OUTPUT,
    PICKING,
    BadUsage,
    Beam,
    MaxPixels,
    MinConfidence,
    Model,
    PickerName,
    Quiet,
    Rate,
    Style,
    check_numbers,
    needing,
)
from picknet.cli.terminal import is_quiet, many, note, progress_bars, say, shows_progress
from picknet.errors import PicknetError

if TYPE_CHECKING:
    from picknet.batch.run import Engine, Summary

SECONDS_BETWEEN_NOTES = 60.0
"""Where there is no terminal, progress is a line in the log once in this time."""
TABLE = "What to make"
WORKERS = "Who does the work"


class EngineName(StrEnum):
    local = "local"
    ray = "ray"


class TableFormat(StrEnum):
    parquet = "parquet"
    jsonl = "jsonl"


def batch(
    sources: Annotated[
        list[str],
        typer.Argument(
            metavar="SOURCE",
            help="Folders, patterns, videos, tar files, and lists of them (.txt, .csv, .jsonl, .parquet, or - for "
            "standard input), here or at s3://, gs://, http(s)://.",
        ),
    ],
    out: Annotated[
        Path, typer.Option("--out", "-o", metavar="DIR", help="The folder of the table.", rich_help_panel=OUTPUT)
    ],
    format: Annotated[
        TableFormat, typer.Option("--format", "-f", metavar="FORMAT", help="parquet or jsonl.", rich_help_panel=OUTPUT)
    ] = TableFormat.parquet,
    retry_errors: Annotated[
        bool, typer.Option("--retry-errors", help="Try clips again that failed before.", rich_help_panel=OUTPUT)
    ] = False,
    allow_errors: Annotated[
        bool, typer.Option("--allow-errors", help="Exit with 0 even if clips failed.", rich_help_panel=OUTPUT)
    ] = False,
    quiet: Quiet = False,
    timeline: Annotated[
        bool, typer.Option("--timeline", help="A row for each segment of a film.", rich_help_panel=TABLE)
    ] = False,
    fps: Annotated[
        float | None,
        typer.Option(
            metavar="X", min=0.001, max=1000, help="Of timelines: frames to glance at per second.", show_default="2",
            rich_help_panel=TABLE,
        ),
    ] = None,
    frames: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="At most N frames of each clip, as JPEG.", rich_help_panel=TABLE),
    ] = None,
    max_side: Annotated[
        int | None,
        typer.Option(metavar="PIXELS", min=16, help="Of frames: scale larger ones down.", rich_help_panel=TABLE),
    ] = None,
    frame_files: Annotated[
        bool,
        typer.Option("--frame-files", help="Of frames: files beside the table, not in it.", rich_help_panel=TABLE),
    ] = False,
    candidates: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, max=50, help="Keep N different captions.", rich_help_panel=TABLE),
    ] = None,
    min_confidence: MinConfidence = None,
    model: Model = None,
    style: Style = None,
    beam: Beam = None,
    rate: Rate = None,
    k: Annotated[
        int | None,
        typer.Option(
            metavar="N", min=1, help="Of captions: exact number of picks.", show_default="the model's own number",
            rich_help_panel=PICKING,
        ),
    ] = None,
    column: Annotated[
        str | None,
        typer.Option(
            metavar="NAME", help="The column of paths in lists that are tables.", show_default="video, path or url"
        ),
    ] = None,
    shard: Annotated[
        str, typer.Option(metavar="K/N", help="Only the K-th of N parts of the clips: N runs side by side do all.")
    ] = "1/1",
    engine: Annotated[
        EngineName, typer.Option(metavar="ENGINE", help="local or ray.", rich_help_panel=WORKERS)
    ] = EngineName.local,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", metavar="N", min=1, help="Number of processes, or the most actors of Ray.",
            show_default="one a core", rich_help_panel=WORKERS,
        ),
    ] = None,
    timeout: Annotated[
        float,
        typer.Option(
            metavar="SECONDS", min=0.1, max=86400, help="Give up on a clip after this time.", rich_help_panel=WORKERS
        ),
    ] = 600.0,
    address: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Of Ray: a running cluster; auto finds the one of this machine.",
            show_default="start Ray here", rich_help_panel=WORKERS,
        ),
    ] = None,
    cores_per_actor: Annotated[
        float | None,
        typer.Option(
            metavar="X", min=0.05, max=10_000, help="Of Ray: cores that it counts for an actor.", show_default="1",
            rich_help_panel=WORKERS,
        ),
    ] = None,
    max_pixels: MaxPixels = None,
) -> None:  # fmt: skip
    """Describe any number of clips: a table of captions, timelines or frames.

    \b
    Examples:
      picknet batch clips/ --out captions
      picknet batch 's3://bucket/videos/*.mp4' --out captions --jobs 16
      picknet batch paths.parquet --out captions --engine ray --address auto

    Stop it any way you like: the same command goes on where it was. A clip that fails is a row with an error, and
    makes the exit code 1.
    """
    check_numbers([PickerName.picknet], k, None, rate)
    _check_options(timeline=timeline, fps=fps, frames=frames, max_side=max_side, frame_files=frame_files,
                   candidates=candidates, min_confidence=min_confidence, rate=rate, k=k)  # fmt: skip
    if engine is EngineName.local and (address or cores_per_actor):
        raise BadUsage(f"{'--address' if address else '--cores-per-actor'}: is for --engine ray")
    if re.match(r"[a-z][a-z0-9+]+:/", str(out)):
        raise BadUsage(f"--out {out}: is an address; a folder of this machine is needed")
    if frames and format is TableFormat.jsonl and not frame_files:
        raise BadUsage("--format jsonl: cannot hold pictures; add --frame-files")
    with needing("batch", sentence="picknet batch needs {}:"):
        from picknet.batch import Kind, Shard, Work, run
        from picknet.batch.table import Format

    try:
        part = Shard.parse(shard)
    except PicknetError as error:
        raise BadUsage(f"--{error}") from error
    kind = Kind.timeline if timeline else Kind.frames if frames else Kind.captions
    work = Work(
        kind=kind,
        model=model,
        style=style,
        beam=beam,
        rate=rate,
        k=k,
        candidates=candidates or 1,
        min_confidence=min_confidence,
        fps=fps or Work.fps,
        budget=frames or Work.budget,
        max_side=max_side,
        frame_files=frame_files,
    )
    with _progress() as on_progress:
        summary = run(
            sources,
            out,
            work,
            engine=_engine(engine, jobs=jobs, timeout=timeout, address=address, cores_per_actor=cores_per_actor),
            format=Format(format),
            shard=part,
            column=column,
            retry_errors=retry_errors,
            on_progress=on_progress,
        )
    _note_summary(summary, out)
    if summary.num_errors and not allow_errors:
        if is_quiet():
            say(f"{out}: {many(summary.num_errors, 'clip')} with an error, in errors-*.{format.value}")
        raise typer.Exit(1)


def _check_options(*, timeline: bool, frames: int | None, **options: object) -> None:
    """Refuse options that do not apply to what is made."""
    if timeline and frames:
        raise BadUsage("--timeline: a table holds timelines or frames; leave out --frames or make two tables")
    made = "timelines" if timeline else "frames" if frames else "captions"
    for_what = {
        "fps": "timelines", "max_side": "frames", "frame_files": "frames", "candidates": "captions", "k": "captions",
        "rate": "captions timelines", "min_confidence": "captions timelines",
    }  # fmt: skip
    for name, value in options.items():
        if value not in (None, False) and made not in for_what[name]:
            kinds = for_what[name].replace(" ", " and ")
            raise BadUsage(f"--{name.replace('_', '-')}: is for {kinds}, not for {made}")


def _engine(
    name: EngineName, *, jobs: int | None, timeout: float, address: str | None, cores_per_actor: float | None
) -> "Engine":
    if name is EngineName.ray:
        from picknet.batch.on_ray import on_ray

        return functools.partial(
            on_ray, jobs=jobs, timeout=timeout, address=address, cores_per_actor=cores_per_actor or 1.0, on_note=note
        )
    from picknet.batch.engines import locally
    from picknet.workers import num_cores

    return functools.partial(locally, jobs=jobs or num_cores(), timeout=timeout)


@contextlib.contextmanager
def _progress() -> "Iterator[Callable[[Summary], None]]":
    """A bar with rate, time left and errors; without a terminal, a line once a minute."""
    if not shows_progress():
        last_note = time.monotonic()

        def log(summary: "Summary") -> None:
            nonlocal last_note
            if time.monotonic() - last_note >= SECONDS_BETWEEN_NOTES and summary.num_done:
                last_note = time.monotonic()
                done = summary.num_before + summary.num_done
                note(
                    f"{done:,} of {many(summary.num_clips, 'clip')}, {_rate(summary)}, "
                    f"{_duration(summary.seconds_left)} left, {many(summary.num_errors, 'error')}"
                )

        yield log
        return
    with progress_bars("{task.fields[rate]}", "{task.fields[errors]}") as bars:
        task = bars.add_task("listing", total=None, rate="", errors="")

        def update(summary: "Summary") -> None:
            bars.update(
                task,
                description="describing",
                total=summary.num_clips,
                completed=summary.num_before + summary.num_done,
                rate=_rate(summary) if summary.num_done else "",
                errors=many(summary.num_errors, "error"),
            )

        yield update


def _note_summary(summary: "Summary", out: Path) -> None:
    twice = f", {summary.num_twice:,} named more than once" if summary.num_twice else ""
    before = f" ({summary.num_before:,} before)" if summary.num_before else ""
    rate = f", {_rate(summary)}" if summary.num_done else ""
    done = summary.num_before + summary.num_done
    note(f"{out}: {many(done, 'clip')} done{before}, {many(summary.num_errors, 'error')}{rate}{twice}")


def _rate(summary: "Summary") -> str:
    return f"{summary.clips_per_second:.3g} clips/s"


def _duration(seconds: float) -> str:
    """5 s, 12 min, 3.5 h"""
    if seconds < 100:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"
