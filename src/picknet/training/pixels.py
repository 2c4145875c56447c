"""The frames of a split as bytes, for training the CNN itself: decoded once by all cores, and kept in one file."""

import contextlib
import hashlib
import json
import math
import multiprocessing
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.sharedctypes import Synchronized
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import AvifImagePlugin

from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split
from picknet.errors import PicknetError
from picknet.files import written_whole
from picknet.video.file import UnreadableVideo, pixels_and_glances
from picknet.video.frame import GLANCE_SIZE
from picknet.video.pictures import UnreadablePicture, is_picture

STORE_FORMAT = 1
"""Raised whenever sampling, glances, pixels or the file change, so that no old file is read for new code."""

CHUNK_FRAMES = 64
"""About so many frames are one piece of work: enough to keep a worker busy, little enough to share out evenly."""


class FailedWorker(PicknetError):
    """A process that decoded frames ended before its work was done."""


@dataclass(frozen=True)
class PixelSplit:
    """Every frame of a split; those of clip i are the rows firsts[i] to firsts[i] + counts[i] - 1."""

    clips: tuple[Clip, ...]
    frames: NDArray[np.uint8]
    """(frames in all, size, size, 3): RGB, on disk, read-only."""
    glances: NDArray[np.uint8]
    """(frames in all, 56, 56)."""
    firsts: NDArray[np.int64]
    """(clips,)"""
    counts: NDArray[np.int64]
    """(clips,): how many frames each clip has, 1 for a picture."""
    missing: tuple[Missing, ...]
    """Clips of the split that could not be had or read, with the reason."""


@dataclass(frozen=True)
class _Index:
    """What is known of the rows of the file and of the clips of the split, in its order."""

    glances: NDArray[np.uint8]
    firsts: NDArray[np.int64]
    counts: NDArray[np.int64]
    """0 for a clip that cannot be read."""
    reasons: NDArray[np.str_]
    """Why not: one for each of those, in order."""


def store(
    split: Split,
    *,
    num_frames: int,
    size: int,
    cache: Path,
    tick: Callable[[], None] = lambda: None,
    workers: int | None = None,
) -> PixelSplit:
    """The frames of every clip: `num_frames` at even distances of a video, one of a picture, squashed to (size, size).

    They are decoded by `workers` processes (by default one for each core) and kept in a file of the folder `cache`;
    `tick` is called after each clip.
    """
    path = _store_path(split, num_frames=num_frames, size=size, cache=cache)
    stored = _read(path, size)
    if stored:
        for _ in split.clips:
            tick()
    else:
        with written_whole(path) as temporary:
            _append(_decode(split, num_frames, size, temporary, tick, workers or os.cpu_count() or 1), temporary)
        stored = _read(path, size)
    if not stored:
        raise BadData(f"{path}: cannot be read back")
    frames, index = stored
    kept, unread = np.flatnonzero(index.counts), np.flatnonzero(index.counts == 0)
    if not len(kept):
        raise BadData(f"no clip of the {split.name} split can be read (first: {index.reasons[0]})")
    missing = [Missing(split.clips[i].name, str(reason)) for i, reason in zip(unread, index.reasons, strict=True)]
    return PixelSplit(
        clips=tuple(split.clips[i] for i in kept),
        frames=frames,
        glances=index.glances,
        firsts=index.firsts[kept],
        counts=index.counts[kept],
        missing=(*split.missing, *missing),
    )


# --- The file: all frames, then the index, then the number of frames in 8 bytes ---


def _store_path(split: Split, *, num_frames: int, size: int, cache: Path) -> Path:
    """Named by everything that decides the content."""
    facts = hashlib.sha256(json.dumps([STORE_FORMAT, num_frames, size]).encode())
    for clip in split.clips:
        try:
            status = clip.path.stat()
            file = (status.st_size, status.st_mtime_ns, status.st_mode)  # the mode, as it may forbid reading
        except OSError:
            file = (0, 0, 0)
        facts.update(json.dumps([clip.path.name, *file]).encode())
    return cache / f"{facts.hexdigest()[:32]}.pixels"


def _append(index: _Index, path: Path) -> None:
    with path.open("ab") as file:
        for array in (index.glances, index.firsts, index.counts, index.reasons):
            np.save(file, array, allow_pickle=False)
        file.write(len(index.glances).to_bytes(8, "little"))


def _read(path: Path, size: int) -> tuple[NDArray[np.uint8], _Index] | None:
    """The frames and the index, or None when the file is not there or not whole."""
    try:
        with path.open("rb") as file:
            file.seek(-8, os.SEEK_END)
            shape = (int.from_bytes(file.read(8), "little"), size, size, 3)
            file.seek(math.prod(shape))
            index = _Index(*(np.load(file, allow_pickle=False) for _ in range(4)))
            whole = len(index.glances) == shape[0]
            return (np.memmap(file, np.uint8, "r", shape=shape), index) if whole else None
    except (OSError, ValueError, EOFError, OverflowError):
        return None


# --- Decoding ---

Job = tuple[int, str]
"""The number of a clip in its split, and its file."""


@dataclass(frozen=True)
class _Decoded:
    """A chunk whose frames a worker has written, from row `first` on, clip after clip."""

    first: int
    glances: NDArray[np.uint8]
    counts: list[int]
    """0 for a clip that cannot be read …"""
    reasons: dict[int, str]
    """… and by its number why not."""


def _decode(
    split: Split, num_frames: int, size: int, path: Path, tick: Callable[[], None], workers: int
) -> _Index:
    """Have every clip decoded into the file at `path`; what is known of them afterwards."""
    chunks = list(_chunks(split, num_frames))
    firsts = np.zeros(len(split.clips), np.int64)
    counts = np.zeros(len(split.clips), np.int64)
    reasons: dict[int, str] = {}
    glances: list[tuple[int, NDArray[np.uint8]]] = []
    # Processes that start afresh: a fork of one that uses a GPU, or threads, may hang.
    context = multiprocessing.get_context("spawn")
    next_row = context.Value("q", 0)
    pool = ProcessPoolExecutor(
        min(workers, max(len(chunks), 1)), context, initializer=_start, initargs=(next_row, str(path))
    )
    try:
        with _ctrl_c_put_off():
            todo = {pool.submit(_decode_chunk, chunk, num_frames, size): chunk for chunk in chunks}
        for future in as_completed(todo):
            done = future.result()
            glances.append((done.first, done.glances))
            row = done.first
            for (number, _), count in zip(todo.pop(future), done.counts, strict=True):
                firsts[number], counts[number] = row, count
                row += count
                tick()
            reasons |= done.reasons
    except BrokenProcessPool as error:
        raise FailedWorker(
            f"{split.name}: a process that decodes frames was ended from outside, most often because memory ran out"
        ) from error
    finally:
        pool.shutdown(cancel_futures=True)
    return _Index(
        glances=np.concatenate([rows for _, rows in sorted(glances, key=lambda part: part[0])]),
        firsts=firsts,
        counts=counts,
        reasons=np.array([reasons[number] for number in sorted(reasons)], np.str_),
    )


def _chunks(split: Split, num_frames: int) -> Iterator[list[Job]]:
    chunk: list[Job] = []
    num_chunk_frames = 0
    for number, clip in enumerate(split.clips):
        chunk.append((number, str(clip.path)))
        num_chunk_frames += 1 if is_picture(clip.path) else num_frames
        if num_chunk_frames >= CHUNK_FRAMES:
            yield chunk
            chunk, num_chunk_frames = [], 0
    if chunk:
        yield chunk


@contextlib.contextmanager
def _ctrl_c_put_off() -> Iterator[None]:
    """Answer Ctrl-C at the end of the block, and keep it from processes started inside, which would each complain."""
    if sys.platform == "win32" or threading.current_thread() is not threading.main_thread():
        yield
        return
    pressed: list[int] = []
    # A process inherits what is blocked; the handler is for Ctrl-C that reaches another thread of ours.
    handler = signal.signal(signal.SIGINT, lambda number, _: pressed.append(number))
    blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
        signal.signal(signal.SIGINT, handler)
        if pressed:
            signal.raise_signal(signal.SIGINT)


# --- In a worker ---

_next_row: "Synchronized[int]"
"""The first row of the file that nobody has taken, shared by all workers."""
_path: str


def _start(next_row: "Synchronized[int]", path: str) -> None:
    """Make a worker of this process: deaf to Ctrl-C, which is its parent's to answer, and ended with its parent."""
    global _next_row, _path
    _next_row, _path = next_row, path
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    AvifImagePlugin.DEFAULT_MAX_THREADS = 1  # the workers share out the cores already
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _decode_chunk(jobs: list[Job], num_frames: int, size: int) -> _Decoded:
    frames: list[NDArray[np.uint8]] = []
    glances: list[NDArray[np.uint8]] = []
    counts: list[int] = []
    reasons: dict[int, str] = {}
    for number, path in jobs:
        try:
            seen = pixels_and_glances(path, num_frames=num_frames, size=size)
        except (UnreadableVideo, UnreadablePicture) as error:
            seen = []
            reasons[number] = str(error)
        except (OSError, ValueError, RuntimeError) as error:  # what a decoder says that knows not what it met
            seen = []
            reasons[number] = f"{path}: cannot be read ({error})"
        frames += [pixels for pixels, _ in seen]
        glances += [glance for _, glance in seen]
        counts.append(len(seen))
    with _next_row.get_lock():
        first = _next_row.value
        _next_row.value += len(frames)
    with open(_path, "r+b") as file:
        file.seek(first * size * size * 3)
        for pixels in frames:
            file.write(pixels.tobytes())
    return _Decoded(first, np.array(glances, np.uint8).reshape(-1, GLANCE_SIZE, GLANCE_SIZE), counts, reasons)
