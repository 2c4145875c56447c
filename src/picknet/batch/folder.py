"""The output folder: files of the table, each written whole, and what they say about the clips that are done.

A clip is done when one of its rows is in a finished file, and all rows of a clip are written in one file. There is no
other record of progress, so there is nothing that could contradict the files: a run that was stopped at any moment goes
on with the clips that no file knows. Clips that failed are in files of their own, `errors-…`; to try them again is to
delete these.
"""

import contextlib
import json
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from picknet.batch.sources import Shard
from picknet.batch.table import SCHEMA_VERSION, Format, Row, clip_keys, write_rows
from picknet.batch.work import Work
from picknet.errors import PicknetError
from picknet.files import UnwritableFile, check_folder, open_lock, open_regular, take_lock, write_text
from picknet.model.folder import find_model

MANIFEST = "_run.json"
"""Readers of a folder of Parquet files leave out names that start with an underscore or a dot."""
MAX_FILE_CLIPS = 1000
MAX_FILE_BYTES = 64 << 20
"""Of pictures; more would be in memory until the file is written."""
MAX_FILE_SECONDS = 300.0
"""A clip that is done after this time has the file written, however small it is: a power failure costs minutes."""


class OtherRun(PicknetError):
    """An output folder that belongs to another run."""


class Keys:
    """A set of 128-bit keys in 16 bytes each: sorted arrays, which are merged as they grow."""

    def __init__(self) -> None:
        self._runs: list[NDArray[np.bytes_]] = []

    def __len__(self) -> int:
        return sum(map(len, self._runs))

    def add(self, keys: NDArray[np.bytes_]) -> None:
        """keys: (n,) S16, none of which is in the set."""
        self._runs.append(np.sort(keys))
        while len(self._runs) > 1 and len(self._runs[-2]) <= 2 * len(self._runs[-1]):
            self._runs.append(np.sort(np.concatenate([self._runs.pop(), self._runs.pop()]), kind="stable"))

    def holds(self, keys: NDArray[np.bytes_]) -> NDArray[np.bool_]:
        """Which of the keys are in the set."""
        found = np.zeros(len(keys), bool)
        for run in self._runs:
            if len(run):
                found |= run[np.minimum(np.searchsorted(run, keys), len(run) - 1)] == keys
        return found


def key_array(keys: Sequence[bytes]) -> NDArray[np.bytes_]:
    return np.array(keys, "S16") if keys else np.empty(0, "S16")


class OutputFolder:
    """One run's hold on an output folder. Use it as a context manager: rows that were added are written at its end,
    also after Ctrl-C.

    work: with the fingerprint of its model. retry_errors: forget which clips have an error, of a shard those that it
    wrote itself. Their files are deleted just before the first new file is written.
    done, failed: keys of the clips in finished files, and of those that have an error.
    """

    def __init__(self, path: Path, work: Work, *, format: Format, shard: Shard, retry_errors: bool = False) -> None:
        self.path = path
        self._kind = work.kind
        self._format = format
        self._prefix = "" if shard.count == 1 else f"{shard.number:0{len(str(shard.count))}d}-of-{shard.count}-"
        self._rows: list[Row] = []
        self._failures: list[Row] = []
        self._num_clips = self._num_bytes = 0
        self._last_write = time.monotonic()
        self._manifest = _manifest(work, format)
        self._is_claimed = False
        check_folder(path)
        with contextlib.ExitStack() as stack:
            stack.enter_context(self._taken(shard))
            # The locks keep away whoever else could write to these.
            self._forgotten = set(self._files("errors", self._prefix or None)) if retry_errors else set()
            self.failed, self.done = self._keys("errors"), self._keys(self._kind)
            numbers = [int(file.stem[-6:]) for table in ("errors", self._kind) for file in self._files(table)]
            self._number = max(numbers, default=-1) + 1
            self._held = stack.pop_all()

    def __enter__(self) -> "OutputFolder":
        return self

    def __exit__(self, *_: object) -> None:
        with self._held:
            self.write()

    def add(self, rows: Sequence[Row]) -> None:
        """All rows of one or several clips."""
        for row in rows:
            (self._rows if row.get("error") is None else self._failures).append(row)
            self._num_bytes += len(row.get("jpeg") or b"")
        self._num_clips += len({row["clip"] for row in rows})
        is_late = time.monotonic() - self._last_write > MAX_FILE_SECONDS
        if is_late or self._num_clips >= MAX_FILE_CLIPS or self._num_bytes >= MAX_FILE_BYTES:
            self.write()

    def write(self) -> None:
        """Write what was added since the last time. If this fails, those clips are described again by the next run."""
        # Forget the rows first: whatever interrupts the writing, they cannot be written twice.
        parts = {str(self._kind): self._rows, "errors": self._failures}
        self._rows, self._failures = [], []
        self._num_clips = self._num_bytes = 0
        self._last_write = time.monotonic()
        for table, rows in parts.items():
            if rows:
                self.claim()
                for file in self._forgotten:  # first, so that no clip is there twice
                    file.unlink(missing_ok=True)
                self._forgotten.clear()
                path = self.path / f"{table}-{self._prefix}{self._number:06d}.{self._format}"
                self._number += 1
                write_rows(path, rows, self._kind)

    @contextlib.contextmanager
    def _taken(self, shard: Shard) -> Iterator[None]:
        """The folder within the block: checked, locked, and without what a killed run left."""
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(_made(self.path))
                strangers = [file.name for file in self.path.iterdir() if not file.name.startswith(".")]
            except OSError as error:
                raise UnwritableFile(f"{self.path}: cannot be written ({error.strerror})") from error
            if strangers and not (self.path / MANIFEST).exists():
                raise OtherRun(f"{self.path}: holds {min(strangers)}, but no {MANIFEST}: name an empty or a new folder")
            if (self.path / MANIFEST).exists():
                _check_manifest(self.path / MANIFEST, self._manifest)
            stack.enter_context(_locked(self.path, shard))
            for table in ("errors", self._kind):
                # Temporary files are named by `written_whole`.
                for leftover in self.path.glob(f".{table}-{self._prefix}{'[0-9]' * 6}-*.{self._format}"):
                    leftover.unlink(missing_ok=True)
            yield

    def claim(self) -> None:
        """Write the manifest, before the first file: a run that fails earlier leaves the folder to the next one."""
        if not self._is_claimed:
            if (self.path / MANIFEST).exists():
                _check_manifest(self.path / MANIFEST, self._manifest)
            else:
                write_text(self.path / MANIFEST, json.dumps(self._manifest, indent=1) + "\n")
            self._is_claimed = True

    def _files(self, table: str, prefix: str | None = None) -> list[Path]:
        """The finished files of a table, of all shards or of those with this prefix."""
        any_or_own = "*" if prefix is None else prefix
        found = self.path.glob(f"{table}-{any_or_own}{'[0-9]' * 6}.{self._format}")
        return sorted(file for file in found if file.is_file())

    def _keys(self, table: str) -> Keys:
        keys = Keys()
        for file in self._files(table):
            if file not in self._forgotten:
                keys.add(key_array(list(clip_keys(file))))
        return keys


def _manifest(work: Work, format: Format) -> dict[str, Any]:
    """What decides the content of the table."""
    name, _ = find_model(work.model)
    return {
        "schema": SCHEMA_VERSION,
        "format": str(format),
        "model": name,
        "fingerprint": work.model_fingerprint,
        "options": work.options(),
    }


def _check_manifest(path: Path, manifest: dict[str, Any]) -> None:
    try:
        with open_regular(path) as file:
            before = json.load(file)
        facts = {**before, **before["options"]}
        if not (isinstance(facts["model"], str) and isinstance(facts["fingerprint"], str)):
            raise TypeError("its model or fingerprint is no text")
    except OSError as error:
        raise OtherRun(f"{path}: cannot be read ({error.strerror or error})") from error
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise OtherRun(f"{path}: is not the manifest of a run ({error}); name an empty or a new folder") from error
    now = {**manifest, **manifest["options"]}
    if facts.get("schema") != now["schema"]:
        raise OtherRun(
            f"{path.parent}: was written with schema {facts.get('schema')}, this version writes {now['schema']}; "
            "name a new folder"
        )
    if facts["fingerprint"] != now["fingerprint"]:
        name, other = now["model"], facts["model"]
        how = f"before the model {name} was changed" if name == other else f"by the model {other}, not {name}"
        prints = f"fingerprint {facts['fingerprint'][:12]}, now {now['fingerprint'][:12]}"
        raise OtherRun(f"{path.parent}: was written {how} ({prints}); name a new folder")
    # The same model may be somewhere else now.
    names = [name for name in now if name not in ("model", "options") and facts.get(name) != now[name]]
    if names:
        changes = ", ".join(f"{name} {facts.get(name)}, now {now[name]}" for name in names)
        raise OtherRun(f"{path.parent}: belongs to a run with other settings ({changes}); name a new folder")


@contextlib.contextmanager
def _made(folder: Path) -> Iterator[None]:
    """Make a folder for the block. A run that fails before it writes leaves none behind."""
    new = [place for place in (folder, *folder.parents) if not place.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    finally:
        with contextlib.suppress(OSError):  # it holds something, or was never made
            for place in new:
                place.rmdir()


@contextlib.contextmanager
def _locked(folder: Path, shard: Shard) -> Iterator[None]:
    """Refuse a second run that might describe the same clips at the same time. Locks end with their process, and their
    files with their run.

    Different shards of the same number of shards run side by side; for everything else there is one run at a time.
    """
    own = folder / f".lock-{shard.number}-of-{shard.count}"
    with open_lock(own) as file:
        # The file may have been deleted since it was opened, by a run that has just ended.
        if not take_lock(file) or not _is_at(file, own):
            raise _at_work(folder, f"shard {shard}" if shard.count > 1 else "another run")
        try:
            # Whoever starts second sees the first one's lock, so at least one of two that overlap is refused.
            for other in folder.glob(".lock-*-of-*"):
                if not other.name.endswith(f"-of-{shard.count}"):
                    with open_lock(other) as probe:
                        if not take_lock(probe):
                            name = other.name.removeprefix(".lock-").replace("-of-", "/")
                            raise _at_work(folder, f"a run of {name}")
            yield
        finally:
            with contextlib.suppress(OSError):  # Windows deletes no open file
                own.unlink()


def _is_at(file: IO[str], path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _at_work(folder: Path, who: str) -> OtherRun:
    return OtherRun(f"{folder}: {who} is writing to it; wait for its end")
