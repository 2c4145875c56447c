"""A split as the network sees it: CNN features of its frames, extracted once and kept while the CNN is fixed, or
pixels, which the CNN looks at anew every time while it learns."""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from picknet.config import Config
from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split
from picknet.files import written_whole
from picknet.training.network import CNN, gather_picked
from picknet.video.file import UnreadableVideo, pixels_and_glances
from picknet.video.frame import GLANCE_SIZE
from picknet.video.pictures import UnreadablePicture

CACHE_FORMAT = 2
"""Raised whenever sampling, glances or pixels change, so that no old cache is read for new code."""

CNN_BATCH = 256
"""Frames that a CNN which is not learning sees at a time."""


See = Callable[[Tensor], Tensor]
"""A CNN: pixels (frames, rows, columns, 3) uint8 -> features (frames, cells, feature_size)."""


class Sight(Protocol):
    """Clips whose picked frames can be seen as features."""

    @property
    def clips(self) -> tuple[Clip, ...]: ...

    @property
    def counts(self) -> Tensor:
        """(clips,): how many frames each clip has."""

    def picked(self, cnn: See, clips: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
        """clips: (batch,) numbers of clips, picked: (batch, frames) bool
        -> features of the picked frames, padded: (batch, most picks, cells, feature_size), counts: (batch,)"""


@dataclass(frozen=True)
class SeenSplit:
    """Every clip of a split as tensors; clips shorter than num_frames are padded with zeros."""

    clips: tuple[Clip, ...]
    glances: Tensor
    """(clips, frames, 56, 56) uint8."""
    features: Tensor
    """(clips, frames, cells, feature_size) float16."""
    counts: Tensor
    """(clips,): how many frames each clip has."""
    missing: tuple[Missing, ...]
    """Clips of the split that could not be had or read, with the reason."""

    def to(self, device: torch.device) -> "SeenSplit":
        tensors = (self.glances.to(device), self.features.to(device), self.counts.to(device))
        return SeenSplit(self.clips, *tensors, self.missing)

    def picked(self, cnn: See, clips: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
        features, counts = gather_picked(self.features[clips], picked)
        return features.float(), counts


@dataclass(frozen=True)
class Crop:
    """How frames are cut and mirrored while the CNN learns."""

    size: int
    generator: torch.Generator
    frames_per_batch: int
    """The CNN is given at least so many frames, since a compiled one is slow to take on a new shape."""


@dataclass(frozen=True)
class BareSplit:
    """Every clip of a split as bytes on the training device."""

    clips: tuple[Clip, ...]
    frames: Tensor
    """(frames of all clips, rows, columns, 3) uint8."""
    glances: Tensor
    """(frames of all clips, 56, 56) uint8."""
    firsts: Tensor
    """(clips,): where each clip begins among the frames."""
    counts: Tensor
    missing: tuple[Missing, ...]
    crop: Crop | None = None

    def of(self, split: Split) -> "BareSplit":
        """Another split of clips that all have their frames here, known by their files.

        Clips that are missing here have to be named by their files, too.
        """
        places = {clip.path: place for place, clip in enumerate(self.clips)}
        unread = {clip.name: clip.reason for clip in self.missing}
        clips = tuple(clip for clip in split.clips if clip.path in places)
        missing = [Missing(clip.name, unread[str(clip.path)]) for clip in split.clips if clip.path not in places]
        if not clips:
            raise BadData(f"no clip of the {split.name} split can be read (first: {missing[0].reason})")
        rows = torch.tensor([places[clip.path] for clip in clips], device=self.firsts.device)
        return replace(
            self, clips=clips, firsts=self.firsts[rows], counts=self.counts[rows], missing=(*split.missing, *missing)
        )

    def picked(self, cnn: See, clips: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
        rows, positions = picked.nonzero(as_tuple=True)
        numbers = self.firsts[clips][rows] + positions
        seen = self._whole(cnn, numbers) if self.crop is None else self._cropped(cnn, numbers, rows, self.crop)
        counts = picked.sum(1)
        place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
        features = seen.new_zeros(len(clips), int(counts.max()), *seen.shape[1:])
        return features.index_put((rows, place), seen), counts

    def seen(self, cnn: CNN, num_frames: int) -> SeenSplit:
        """The split as a CNN that has stopped learning sees it."""
        glances = self.glances.new_zeros(len(self.clips), num_frames, GLANCE_SIZE, GLANCE_SIZE)
        features = torch.zeros(
            len(self.clips), num_frames, cnn.num_cells, cnn.feature_size, dtype=torch.float16, device=self.frames.device
        )
        for i, (first, count) in enumerate(zip(self.firsts.tolist(), self.counts.tolist(), strict=True)):
            numbers = torch.arange(first, first + count, device=self.frames.device)
            glances[i, :count] = self.glances[numbers]
            features[i, :count] = self._whole(cnn, numbers).half()
        return SeenSplit(self.clips, glances, features, self.counts, self.missing)

    @torch.no_grad()
    def _whole(self, cnn: See, numbers: Tensor) -> Tensor:
        return torch.cat([cnn(self.frames[part]) for part in torch.split(numbers, CNN_BATCH)])

    def _cropped(self, cnn: See, numbers: Tensor, rows: Tensor, crop: Crop) -> Tensor:
        """One crop for all frames of a clip; half of the clips are mirrored."""
        num_clips, device = int(rows[-1]) + 1, numbers.device
        spare = self.frames.shape[1] - crop.size
        top, left = (
            torch.randint(spare + 1, (num_clips,), generator=crop.generator, device=device)[rows] for _ in range(2)
        )
        mirrored = torch.rand(num_clips, generator=crop.generator, device=device)[rows] < 0.5
        line = torch.arange(crop.size, device=device)
        lines = top[:, None] + line
        columns = left[:, None] + torch.where(mirrored[:, None], crop.size - 1 - line, line)
        filled = torch.arange(max(crop.frames_per_batch, len(numbers)), device=device) % len(numbers)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            pixels = self.frames[numbers[filled, None, None], lines[filled][:, :, None], columns[filled][:, None, :]]
            seen = cnn(pixels)
        return seen[: len(numbers)].float()


def see(
    split: Split, cnn: CNN, config: Config, *, cache: Path, tick: Callable[[], None] = lambda: None
) -> SeenSplit:
    """Glances and features of every clip of the split; `tick` is called after each clip."""
    fingerprint = _fingerprint(cnn, config)
    num_frames = config.video.num_frames
    glances = np.zeros((len(split.clips), num_frames, GLANCE_SIZE, GLANCE_SIZE), np.uint8)
    features = np.zeros((len(split.clips), num_frames, cnn.num_cells, cnn.feature_size), np.float16)
    counts = np.zeros(len(split.clips), np.int64)
    missing = list(split.missing)
    todo = []
    for i, clip in enumerate(split.clips):
        path = _cache_path(cache, clip, fingerprint)
        cached = _read(path, num_frames=num_frames, shape=features.shape[2:])
        if cached is None:
            todo.append((i, clip, path))
            continue
        counts[i] = len(cached[0])
        glances[i, : counts[i]], features[i, : counts[i]] = cached
        tick()
    device = next(cnn.parameters()).device
    for (i, clip, path), decoded in _decoded(todo, num_frames=num_frames, image_size=config.model.image_size):
        try:
            clip_glances, pixels = decoded.result()
        except (UnreadableVideo, UnreadablePicture) as error:
            missing.append(Missing(clip.name, str(error)))
            tick()
            continue
        with torch.inference_mode():
            # 16 bits are what is kept, so that a first and a later run see the same numbers.
            clip_features = cnn(torch.from_numpy(pixels).to(device)).to("cpu", torch.float16).numpy()
        _write(path, clip_glances, clip_features)
        counts[i] = len(clip_glances)
        glances[i, : counts[i]], features[i, : counts[i]] = clip_glances, clip_features
        tick()
    kept = np.flatnonzero(counts)
    if not len(kept):
        raise BadData(f"no clip of the {split.name} split can be read (first: {missing[0].reason})")
    return SeenSplit(
        clips=tuple(split.clips[i] for i in kept),
        glances=torch.from_numpy(glances[kept]),
        features=torch.from_numpy(features[kept]),
        counts=torch.from_numpy(counts[kept]),
        missing=tuple(missing),
    )


Job = tuple[int, Clip, Path]
Decoded = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""glances (frames, 56, 56) and pixels (frames, size, size, 3) of one clip."""


def _decoded(jobs: list[Job], *, num_frames: int, image_size: int) -> Iterator[tuple[Job, "Future[Decoded]"]]:
    """Decode clips side by side, in order, never more than a few ahead of the CNN."""

    def decode(clip: Clip) -> Decoded:
        frames = pixels_and_glances(clip.path, num_frames=num_frames, size=image_size)
        return np.stack([glance for _, glance in frames]), np.stack([pixels for pixels, _ in frames])

    workers = os.cpu_count() or 1
    with ThreadPoolExecutor(workers) as pool:
        waiting: deque[tuple[Job, Future[Decoded]]] = deque()
        try:
            for job in jobs:
                waiting.append((job, pool.submit(decode, job[1])))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft()
            while waiting:
                yield waiting.popleft()
        finally:
            for _, future in waiting:
                future.cancel()


def _fingerprint(cnn: CNN, config: Config) -> str:
    """Everything that decides what a clip's glances and features are, but the clip."""
    weights = hashlib.sha256()
    for name, tensor in sorted(cnn.state_dict().items()):
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().numpy().tobytes())
    model = config.model
    facts = [CACHE_FORMAT, model.cnn, model.image_size, model.grid, config.video.num_frames, weights.hexdigest()]
    return json.dumps(facts)


def _cache_path(cache: Path, clip: Clip, fingerprint: str) -> Path:
    status = clip.path.stat()
    facts = json.dumps([fingerprint, clip.path.name, status.st_size, status.st_mtime_ns])
    return cache / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}.npz"


def _read(
    path: Path, *, num_frames: int, shape: tuple[int, ...]
) -> tuple[NDArray[np.uint8], NDArray[np.float16]] | None:
    """A clip's glances and features, or None when the file is not there or not whole."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            glances, features = arrays["glances"], arrays["features"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    if not 0 < len(glances) == len(features) <= num_frames or features.shape[1:] != shape:
        return None
    return glances, features


def _write(path: Path, glances: NDArray[np.uint8], features: NDArray[np.float16]) -> None:
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, glances=glances, features=features)
