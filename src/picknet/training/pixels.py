"""The frames of a split as bytes in one file, for training the CNN: decoded once by several processes.

This module does not import PyTorch, since every worker process imports it.
"""

import hashlib
import json
import math
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.config import GlanceKind
from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split, file_facts
from picknet.errors import PicknetError
from picknet.files import remove_abandoned, written_whole
from picknet.video.file import UnreadableVideo, pixels_and_glances
from picknet.video.frame import glance_shape
from picknet.video.pictures import UnreadablePicture, is_picture
from picknet.workers import in_order

STORE_FORMAT = 2
"""Raised whenever sampling, glances, pixels or the file format change, so that new code never reads an old file."""

FRAMES_PER_WORKER = 64
"""Below this many frames, starting another process takes longer than decoding."""

CLIP_SECONDS = 600.0
"""Time limit for decoding one clip."""


@dataclass(frozen=True)
class PixelFile:
    """All frames of a split; those of clip i are the rows firsts[i] to firsts[i] + counts[i] - 1."""

    clips: tuple[Clip, ...]
    frames: NDArray[np.uint8]
    """(frames of all clips, size, size, 3): RGB, a read-only memory map."""
    glances: NDArray[np.uint8]
    """(frames of all clips, 56, 56) if grey; other kinds (…, channels, 56, 56): `glance_shape`."""
    firsts: NDArray[np.int64]
    """(clips,)"""
    counts: NDArray[np.int64]
    """(clips,): the number of frames of each clip, 1 for a picture."""
    missing: tuple[Missing, ...]
    """Clips of the split that are missing or cannot be read, with the reason."""


@dataclass(frozen=True)
class _Index:
    """The end of the file: what is known about its rows and about all clips of the split, in order."""

    glances: NDArray[np.uint8]
    counts: NDArray[np.int64]
    """0 for a clip that cannot be read."""
    reasons: NDArray[np.str_]
    """Why not: one for each clip that cannot be read, in order."""


def store_pixels(
    split: Split,
    *,
    num_frames: int,
    size: int,
    glance: GlanceKind = "grey",
    cache: Path,
    on_clip: Callable[[], None] = lambda: None,
    jobs: int | None = None,
) -> PixelFile:
    """Decode every clip, or read the file of an earlier call from the folder `cache`.

    A video gives `num_frames` evenly spaced frames, a picture one, each resized to (size, size). jobs: number of worker
    processes, by default one per core. `on_clip` is called after each clip.
    """
    path = _store_path(split, num_frames=num_frames, size=size, glance=glance, cache=cache)
    stored = _read(path, size)
    if stored:
        for _ in split.clips:
            on_clip()
    else:
        remove_abandoned(path.parent)
        with written_whole(path) as temporary:
            index = _decode(split, num_frames, size, glance, temporary, on_clip, jobs or os.cpu_count() or 1)
            _append(index, temporary)
        stored = _read(path, size)
    if not stored:
        raise BadData(f"{path}: cannot be read back after writing")
    frames, index = stored
    readable, unreadable = np.flatnonzero(index.counts), np.flatnonzero(index.counts == 0)
    if not len(readable):
        raise BadData(f"no clip of the {split.name} split can be read (first: {index.reasons[0]})")
    missing = [Missing(split.clips[i].name, str(reason)) for i, reason in zip(unreadable, index.reasons, strict=True)]
    return PixelFile(
        clips=tuple(split.clips[i] for i in readable),
        frames=frames,
        glances=index.glances,
        firsts=(index.counts.cumsum() - index.counts)[readable],
        counts=index.counts[readable],
        missing=(*split.missing, *missing),
    )


# --- The file: all frames, then the index, then the number of frames in 8 bytes ---


def _store_path(split: Split, *, num_frames: int, size: int, glance: GlanceKind, cache: Path) -> Path:
    """The file name is a hash of everything that determines the content."""
    # Grey is left out, so that files from before there were other kinds are still read.
    key = hashlib.sha256(json.dumps([STORE_FORMAT, num_frames, size, *([glance] if glance != "grey" else [])]).encode())
    for clip in split.clips:
        key.update(json.dumps(file_facts(clip.path)).encode())
    return cache / f"{key.hexdigest()[:32]}.pixels"


def _append(index: _Index, path: Path) -> None:
    with path.open("ab") as file:
        for array in (index.glances, index.counts, index.reasons):
            np.save(file, array, allow_pickle=False)
        file.write(len(index.glances).to_bytes(8, "little"))


def _read(path: Path, size: int) -> tuple[NDArray[np.uint8], _Index] | None:
    """The frames and the index, or None if the file does not exist or is incomplete."""
    try:
        with path.open("rb") as file:
            file.seek(-8, os.SEEK_END)
            shape = (int.from_bytes(file.read(8), "little"), size, size, 3)
            file.seek(math.prod(shape))
            index = _Index(*(np.load(file, allow_pickle=False) for _ in range(3)))
            complete = len(index.glances) == index.counts.sum() == shape[0]
            return (np.memmap(file, np.uint8, "r", shape=shape), index) if complete else None
    except (OSError, ValueError, EOFError, OverflowError):
        return None


# --- Decoding ---


class _Task(NamedTuple):
    """A clip to decode, and the row of the file where its frames begin."""

    clip: str
    first: int


class _Decoded(NamedTuple):
    """A clip whose frames have been written."""

    glances: NDArray[np.uint8]
    """(frames, 56, 56), or with channels."""
    reason: str | None
    """Why there are none."""


def _decode(
    split: Split,
    num_frames: int,
    size: int,
    glance: GlanceKind,
    path: Path,
    on_clip: Callable[[], None],
    jobs: int,
) -> _Index:
    """Decode every clip into the file at `path`."""
    # Every clip has its rows beforehand, so that workers write independently of each other.
    most = np.array([1 if is_picture(clip.path) else num_frames for clip in split.clips], np.int64)
    firsts = most.cumsum() - most
    tasks = [_Task(str(clip.path), int(first)) for clip, first in zip(split.clips, firsts, strict=True)]
    work = partial(_decode_clip, num_frames=num_frames, size=size, glance=glance, path=str(path))
    few = most.sum() < FRAMES_PER_WORKER  # decoded in this process
    jobs = 1 if few else min(jobs, int(most.sum()) // FRAMES_PER_WORKER)
    timeout = None if few else CLIP_SECONDS
    decoded: list[_Decoded] = []
    for result in in_order(work, tasks, jobs=jobs, name=lambda task: task.clip, timeout=timeout):
        if isinstance(result, PicknetError):
            # A worker died or took too long. It may go well next time, so the clip is not stored as unreadable.
            raise result
        decoded.append(result)
        on_clip()
    counts = np.array([len(clip.glances) for clip in decoded], np.int64)
    _close_gaps(path, firsts, counts, size)
    return _Index(
        glances=np.concatenate([clip.glances for clip in decoded]),
        counts=counts,
        reasons=np.array([clip.reason for clip in decoded if clip.reason is not None], np.str_),
    )


def _close_gaps(path: Path, firsts: NDArray[np.int64], counts: NDArray[np.int64], size: int) -> None:
    """Move frames to the front of the file where short or unreadable clips left rows unused."""
    total, row_size = int(counts.sum()), size * size * 3
    with path.open("r+b") as file:
        for first, target, count in zip(firsts, counts.cumsum() - counts, counts, strict=True):
            if first != target and count:
                file.seek(first * row_size)
                rows = file.read(count * row_size)
                file.seek(target * row_size)
                file.write(rows)
        file.truncate(total * row_size)


def _decode_clip(task: _Task, *, num_frames: int, size: int, glance: GlanceKind, path: str) -> _Decoded:
    """Decode one clip and write its frames; runs in a worker process."""
    nothing = np.empty((0, *glance_shape(glance)), np.uint8)
    try:
        frames = pixels_and_glances(task.clip, num_frames=num_frames, size=size, glance=glance)
    except (UnreadableVideo, UnreadablePicture) as error:
        return _Decoded(nothing, str(error))
    except (OSError, ValueError, RuntimeError) as error:  # decoder errors on malformed input
        return _Decoded(nothing, f"{task.clip}: cannot be read ({error})")
    with open(path, "r+b") as file:
        file.seek(task.first * size * size * 3)
        for pixels, _ in frames:
            file.write(pixels.tobytes())
    return _Decoded(np.stack([seen for _, seen in frames]), None)
