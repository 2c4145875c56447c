"""What is made of one clip: the rows of a table. Worker processes and Ray actors do this, and nothing else."""

import dataclasses
import functools
import hashlib
import json
import os
import random
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from picknet.batch.sources import COLUMNS, Clip, opened
from picknet.batch.table import Kind, Row, to_table
from picknet.errors import BadSetting, PicknetError
from picknet.files import open_regular
from picknet.model.folder import PARTS, TAGS, BadModel, find_model
from picknet.workers import LostProcess, TaskTimeout, Worker

if TYPE_CHECKING:
    import pyarrow as pa

    from picknet.captioner import Captioner
    from picknet.picking.picker import Picker


CLIP_COLUMN = "picknet.clip"
"""In batches of the Ray engine: whole clips as JSON."""


@dataclasses.dataclass(frozen=True)
class Work:
    """Settings, and what they make of a clip. A copy in another process loads the model by itself, once."""

    kind: Kind = Kind.captions
    model: str | None = None
    model_fingerprint: str | None = None
    """If given, a model with another one is refused: on a cluster every node has a copy of its own."""
    style: str | None = None
    beam: int | None = None
    rate: float | None = None
    k: int | None = None
    """Exact number of picks of a caption."""
    candidates: int = 1
    min_confidence: float | None = None
    fps: float = 2.0
    """Of timelines: frames a second to look at."""
    budget: int = 8
    """Of frames: at most this many a clip."""
    max_side: int | None = None
    """Of frames: larger ones are scaled down to this many pixels."""
    frame_files: bool = False
    """Of frames: they go to files beside the table."""

    def __call__(self, clip: Clip) -> list[Row]:
        """The rows of a clip; one with an error if it cannot be described."""
        _ = self.picker  # errors in the model or the settings are raised: they are not the clip's
        start = time.perf_counter()
        try:
            with opened(clip) as source:
                rows = list(self._described(source))
        except Exception as error:  # noqa: BLE001 - one of a million clips does not end the run; the row says what
            return [error_row(clip, _message(error, clip), took=time.perf_counter() - start)]
        took = round(time.perf_counter() - start, 4)
        about = {"video": clip.shown_name, "model": self.captioner.name, "took": took, "clip": clip.key.hex()}
        return [row | about for row in rows]

    def fixed(self) -> "Work":
        """The same with the fingerprint of its model, so that no worker uses another one."""
        return dataclasses.replace(self, model_fingerprint=fingerprint(find_model(self.model)[1]))

    def options(self) -> dict[str, Any]:
        """The settings that decide what a row holds."""
        rest = {"model", "model_fingerprint"}
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self) if field.name not in rest}

    def _described(self, source: Any) -> Iterator[Row]:
        if self.kind is Kind.frames:
            yield from self._frames(source)
        elif self.kind is Kind.timeline:
            segments = self.captioner.timeline(
                source, fps=self.fps, picker=self.picker, beam=self.beam, min_confidence=self.min_confidence
            )
            yield from (_without_empty_text(segment.to_dict()) for segment in segments)
        else:
            caption = self.captioner.caption(
                source,
                picker=self.picker,
                beam=self.beam,
                candidates=self.candidates,
                min_confidence=self.min_confidence,
            )
            yield _without_empty_text(caption.to_dict())

    def _frames(self, source: Any) -> Iterator[Row]:
        from picknet.show.frames import encode

        picked = self.captioner.picked(source, budget=self.budget)
        for image in picked.images():
            encoded = encode(image, max_side=self.max_side)
            size = {"width": encoded.width, "height": encoded.height}
            yield {**image.pick.to_dict(), **size, "jpeg": encoded.content, "damage": picked.damage}

    def __getstate__(self) -> dict[str, Any]:
        """The settings alone: a captioner cannot be sent to another process."""
        return {field.name: getattr(self, field.name) for field in dataclasses.fields(self)}

    @functools.cached_property
    def captioner(self) -> "Captioner":
        from picknet.captioner import load

        name, folder = find_model(self.model)
        if self.model_fingerprint and (found := fingerprint(folder)) != self.model_fingerprint:
            raise BadModel(
                f"{name}: is another model in this process than where the run was started "
                f"(fingerprint {found[:12]}, expected {self.model_fingerprint[:12]})"
            )
        captioner = load(self.model, style=self.style)
        # Of no source: this checks the settings, which would fail with every clip.
        captioner.caption_many(
            (), beam=self.beam, candidates=self.candidates, min_confidence=self.min_confidence
        )
        return captioner

    @functools.cached_property
    def picker(self) -> "Picker":
        if self.k is not None:
            return self.captioner.counted_picker(self.k)
        return self.captioner.picker if self.rate is None else self.captioner.picker_at(self.rate)


class DescribeClips:
    """A callable for `ray.data.Dataset.map_batches`: a batch of clips in, rows of the table out.

    The batch needs a column `video`, `path` or `url` with names, and may have `bytes` with their content, which is what
    `ray.data.read_binary_files(…, include_paths=True)` gives. The result is a PyArrow table.

    The model is in a process of its own, which is ended when a clip takes longer than `timeout` seconds, and replaced
    when it dies. So no clip can take the actor with it.

    own_cores: keep to so many cores that no other actor of this machine keeps to; 0 for all. Ray counts cores and does
    not assign them: without this, FFmpeg and OpenVINO start threads for all cores in every actor.

    max_pixels: the most pixels of a picture; None for the actor's own limit, since it may be on another machine.

    folder: relative paths are relative to it; None for the actor's own working directory, which is another one than
    that of the program which started it.
    """

    def __init__(
        self,
        work: Callable[[Clip], list[Row]] | None = None,
        *,
        timeout: float | None = None,
        own_cores: int = 0,
        max_pixels: int | None = None,
        folder: str | None = None,
    ) -> None:
        if max_pixels is not None:
            from picknet.video.access import MAX_PIXELS_VARIABLE  # imports PyAV

            os.environ[MAX_PIXELS_VARIABLE] = str(max_pixels)  # its worker inherits it
        self._missing_folder = ""
        if folder is not None:
            try:
                os.chdir(folder)  # its worker inherits it
            except OSError as error:
                self._missing_folder = f"{folder} cannot be entered on {socket.gethostname()} ({error.strerror})"
        self._work = work or Work()
        self._cores = _take_cores(own_cores)
        self._worker = Worker(self._work, timeout=timeout)  # it inherits the cores

    def __call__(self, batch: "pa.Table | Mapping[str, Any]") -> "pa.Table":
        rows: list[Row] = []
        for clip in _clips_in(batch):
            if self._missing_folder and clip.is_relative:
                raise BadSetting(f"{clip.shown_name}: is relative, and {self._missing_folder}; list absolute paths")
            rows += checked_rows(clip, self._worker.do(clip, clip.shown_name))
        return to_table(rows, getattr(self._work, "kind", Kind.captions))


def checked_rows(clip: Clip, result: Any) -> list[Row]:
    """The rows that a worker made of a clip; one with an error where the clip cost the worker its life.

    Other errors are raised: a model or a setting is wrong, and would be for the next clip.
    """
    if isinstance(result, LostProcess | TaskTimeout):
        return [error_row(clip, str(result))]
    if isinstance(result, Exception):
        raise result
    rows: list[Row] = result
    return rows


def error_row(clip: Clip, message: str, *, took: float | None = None) -> Row:
    """The row of a clip that could not be described."""
    return {
        "video": clip.shown_name,
        "error": message.encode("utf-8", "backslashreplace").decode(),
        "took": took and round(took, 4),
        "clip": clip.key.hex(),
    }


def fingerprint(folder: Path) -> str:
    """SHA-256 of all parts of a model that decide what it says."""
    digests = hashlib.sha256()
    tags = [TAGS] if os.path.lexists(folder / TAGS) else []
    for part in (*PARTS, *tags):
        with open_regular(folder / part) as file:
            digests.update(hashlib.file_digest(file, "sha256").digest())
    return digests.hexdigest()


def _take_cores(count: int) -> list[socket.socket]:
    """Keep this process to `count` cores that are not taken, and take them, until it ends.

    A core is taken by an abstract socket of its name, which only one process of a machine can have, and which ends with
    it. Containers do not see each other's, so the order is random. Where fewer are free, nothing changes.
    """
    if not count or not hasattr(os, "sched_setaffinity"):
        return []
    taken: dict[int, socket.socket] = {}
    cores = sorted(os.sched_getaffinity(0))
    for core in random.sample(cores, len(cores)):
        name = socket.socket(socket.AF_UNIX)
        try:
            name.bind(f"\0picknet-core-{core}")
        except OSError:
            name.close()
            continue
        taken[core] = name
        if len(taken) == count:
            os.sched_setaffinity(0, taken)
            return list(taken.values())
    for name in taken.values():
        name.close()
    return []


def _message(error: Exception, clip: Clip) -> str:
    """One line that starts with the clip's name. Bytes, temporary files and members of tar files have another."""
    if not isinstance(error, PicknetError):
        return f"{clip.shown_name}: {type(error).__name__}: {' '.join(str(error).split())}"
    message = str(error)
    for anonymous in ("bytes: ", "file: ", f"{clip.tar}: "):
        if message.startswith(anonymous):
            return f"{clip.shown_name}: {message.removeprefix(anonymous)}"
    return message


def _without_empty_text(result: Row) -> Row:
    """In a table, no text is null."""
    return {**result, "caption": result["caption"] or None}


def _clips_in(batch: "pa.Table | Mapping[str, Any]") -> Iterator[Clip]:
    """A PyArrow table, or a dictionary of arrays as Ray's default format has it -> the clips"""
    columns: dict[str, list[Any]] = batch.to_pydict() if hasattr(batch, "to_pydict") else dict(batch)
    if CLIP_COLUMN in columns:
        yield from (Clip(*json.loads(text)) for text in columns[CLIP_COLUMN])
        return
    name = next((name for name in COLUMNS if name in columns), None)
    if name is None:
        raise BadSetting(f"batch has the columns {', '.join(columns)}: one of {', '.join(COLUMNS)} is needed")
    contents: Iterable[bytes | None] = columns.get("bytes", [None] * len(columns[name]))
    for video, content in zip(columns[name], contents, strict=True):
        yield Clip(str(video), content=content)
