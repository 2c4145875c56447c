"""A whole run: list the clips, leave out what is done, describe the rest, write the table."""

import itertools
import json
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

import numpy as np

from picknet.batch.engines import DoClip
from picknet.batch.folder import Keys, OutputFolder, key_array
from picknet.batch.sources import ALL, Clip, Shard, list_clips
from picknet.batch.table import Format, Row
from picknet.batch.work import Work
from picknet.files import UnwritableFile, written_whole

Engine = Callable[[DoClip, Iterator[Clip], int], Iterator[list[Row]]]
"""What to do with a clip, the clips, and their number -> the rows of one or several whole clips at a time."""
CLIPS_AT_ONCE = 8192
"""Clips that are compared with those seen before in one step."""


@dataclass
class Summary:
    """Counts of a run, which grow while it goes on."""

    num_clips: int = 0
    """All that the sources name, each once."""
    num_twice: int = 0
    """Names that came again."""
    num_before: int = 0
    """Clips that earlier runs had done."""
    num_done: int = 0
    """By this run."""
    num_errors: int = 0
    """Clips with an error, those of earlier runs included."""
    began: float = field(default_factory=time.monotonic)
    """When the first clip was begun."""

    @property
    def clips_per_second(self) -> float:
        return self.num_done / max(time.monotonic() - self.began, 1e-9)

    @property
    def seconds_left(self) -> float:
        left = self.num_clips - self.num_before - self.num_done
        return left / self.clips_per_second if self.num_done else float("inf")


def run(
    sources: Iterable[str],
    out: Path,
    work: Work,
    *,
    engine: Engine,
    format: Format = Format.parquet,
    shard: Shard = ALL,
    column: str | None = None,
    retry_errors: bool = False,
    do_clip: DoClip | None = None,
    on_progress: Callable[[Summary], object] = lambda summary: None,
) -> Summary:
    """Describe all clips of the sources that the output folder does not know yet.

    Stopped at any moment and called again, it goes on: no clip is lost, and none is there twice. Memory does not grow
    with the number of clips beyond 16 bytes for each; the list of what is to be done is in a temporary file.

    do_clip: used in place of `work`, by tests that need no model.
    """
    summary = Summary()
    work = work.fixed()
    clips = list_clips(sources, shard=shard, column=column)
    first = list(itertools.islice(clips, 1))  # if there is none, before the folder is made
    with (
        OutputFolder(out, work, format=format, shard=shard, retry_errors=retry_errors) as folder,
        tempfile.TemporaryFile("w+", dir=out) as todo,
    ):
        try:
            _write_todo(itertools.chain(first, clips), folder, todo, summary)
        except OSError as error:
            raise UnwritableFile(f"{out}: cannot be written ({error.strerror or error})") from error
        on_progress(summary)
        num_left = summary.num_clips - summary.num_before
        summary.began = time.monotonic()
        if not num_left:
            return summary
        for rows in engine(do_clip or work, _read_todo(todo), num_left):
            if work.frame_files:
                folder.claim()
                rows = _with_files(rows, out)
            folder.add(rows)
            summary.num_done += len({row["clip"] for row in rows})
            summary.num_errors += sum(row.get("error") is not None for row in rows)
            on_progress(summary)
    return summary


def _write_todo(clips: Iterator[Clip], folder: OutputFolder, todo: IO[str], summary: Summary) -> None:
    """Write the clips that are left to a file, and count the others."""
    seen = Keys()
    while some := list(itertools.islice(clips, CLIPS_AT_ONCE)):
        keys = key_array([clip.key for clip in some])
        is_new = ~seen.holds(keys)
        first = np.zeros(len(keys), bool)
        first[np.unique(keys, return_index=True)[1]] = True
        is_new &= first
        seen.add(keys[is_new])
        has_failed = is_new & folder.failed.holds(keys)
        is_done = has_failed | (is_new & folder.done.holds(keys))
        summary.num_clips += int(is_new.sum())
        summary.num_twice += int((~is_new).sum())
        summary.num_before += int(is_done.sum())
        summary.num_errors += int(has_failed.sum())
        todo.writelines(json.dumps(some[position]) + "\n" for position in np.flatnonzero(is_new & ~is_done))
    todo.seek(0)


def _read_todo(todo: IO[str]) -> Iterator[Clip]:
    return (Clip(*json.loads(line)) for line in todo)


def _with_files(rows: Sequence[Row], out: Path) -> list[Row]:
    """The same rows, with their pictures in files. A run that goes on writes the same files again."""
    moved = []
    for row in rows:
        if row.get("jpeg") is not None:
            # Thousands of folders, not a million in one.
            name = f"_frames/{row['clip'][:3]}/{row['clip']}-{row['index']:06d}.jpg"
            with written_whole(out / name) as temporary:
                temporary.write_bytes(row["jpeg"])
            row = {**row, "jpeg": None, "file": name}
        moved.append(row)
    return moved
