"""The frames of a split in memory: as CNN features, extracted once if the CNN is fixed, or as pixels, from which
features are computed in every step while the CNN is trained."""

import hashlib
import json
import os
import warnings
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
from picknet.data.split import Clip, Missing, Split, file_facts
from picknet.files import remove_abandoned, written_whole
from picknet.training.cnn import CNN
from picknet.training.pixels import store_pixels
from picknet.video.file import UnreadableVideo, pixels_and_glances
from picknet.video.frame import glance_shape
from picknet.video.pictures import UnreadablePicture

CACHE_FORMAT = 2
"""Raised whenever sampling, glances or pixels change, so that new code never reads an old cache."""

CNN_BATCH = 256
"""Frames per batch of a CNN that is not being trained."""

ExtractFeatures = Callable[[Tensor], Tensor]
"""A CNN: pixels (frames, rows, columns, 3) uint8 -> features (frames, cells, feature_size)."""


class FeatureSource(Protocol):
    """Clips that give features of picked frames: `FeatureSplit` or `PixelSplit`."""

    @property
    def clips(self) -> tuple[Clip, ...]: ...

    @property
    def counts(self) -> Tensor:
        """(clips,): the number of frames of each clip."""

    def picked_features(self, cnn: ExtractFeatures, clips: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
        """clips: (batch,) indices of clips, picked: (batch, frames) bool
        -> features of the picked frames, padded: (batch, most picks, cells, feature_size), counts: (batch,)"""


@dataclass(frozen=True)
class FeatureSplit:
    """A split as features of a fixed CNN; clips shorter than num_frames are padded with zeros."""

    clips: tuple[Clip, ...]
    glances: Tensor
    """(clips, frames, 56, 56) uint8 if grey; other kinds (clips, frames, channels, 56, 56): `glance_shape`."""
    features: Tensor
    """(clips, frames, cells, feature_size) float16."""
    counts: Tensor
    """(clips,): the number of frames of each clip."""
    missing: tuple[Missing, ...]
    """Clips of the split that are missing or cannot be read, with the reason."""

    def to(self, device: torch.device) -> "FeatureSplit":
        tensors = (self.glances.to(device), self.features.to(device), self.counts.to(device))
        return FeatureSplit(self.clips, *tensors, self.missing)

    def picked_features(
        self, cnn: ExtractFeatures | None, clips: Tensor, picked: Tensor, *, most: int | None = None
    ) -> tuple[Tensor, Tensor]:
        """most: picks of a clip, if it is known; to find it waits for the device"""
        counts = picked.sum(1)
        # A stable sort moves the picked frames to the front in their order.
        order = (~picked).to(torch.int8).argsort(dim=1, stable=True)[:, : most or int(counts.max())]
        return self.features[clips[:, None], order].float(), counts


@dataclass(frozen=True)
class Crop:
    """Random crops and mirroring while the CNN is trained."""

    size: int
    generator: torch.Generator
    frames_per_batch: int
    """Smaller batches are filled up to this number of frames, since a compiled CNN is recompiled for new shapes."""


@dataclass(frozen=True)
class PixelSplit:
    """A split as pixels on the training device."""

    clips: tuple[Clip, ...]
    frames: Tensor
    """(frames of all clips, rows, columns, 3) uint8."""
    glances: Tensor
    """(frames of all clips, 56, 56) uint8, or with channels: `glance_shape`."""
    firsts: Tensor
    """(clips,): the index of each clip's first frame."""
    counts: Tensor
    """(clips,): the number of frames of each clip."""
    missing: tuple[Missing, ...]
    crop: Crop | None = None

    @staticmethod
    def load(
        split: Split, config: Config, *, cache: Path, device: torch.device, on_clip: Callable[[], None] = lambda: None
    ) -> "PixelSplit":
        """Decode a split, or read its frames from the cache, and move them to the device."""
        num_frames, size = config.video.num_frames, config.model.image_size
        stored = store_pixels(
            split, num_frames=num_frames, size=size, glance=config.model.glance, cache=cache, on_clip=on_clip
        )
        arrays = (stored.frames, stored.glances, stored.firsts, stored.counts)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to it
            frames, glances, firsts, counts = (torch.from_numpy(array).to(device) for array in arrays)
        return PixelSplit(stored.clips, frames, glances, firsts, counts, stored.missing)

    def subset(self, split: Split) -> "PixelSplit":
        """The clips of another split, found by their files; the frames are shared.

        Every file of that split must be a clip of this one, or be missing from it under the file's path as its name.
        """
        indices = {clip.path: index for index, clip in enumerate(self.clips)}
        reasons = {clip.name: clip.reason for clip in self.missing}
        clips = tuple(clip for clip in split.clips if clip.path in indices)
        missing = [Missing(clip.name, reasons[str(clip.path)]) for clip in split.clips if clip.path not in indices]
        if not clips:
            raise BadData(f"no clip of the {split.name} split can be read (first: {missing[0].reason})")
        rows = torch.tensor([indices[clip.path] for clip in clips], device=self.firsts.device)
        return replace(
            self, clips=clips, firsts=self.firsts[rows], counts=self.counts[rows], missing=(*split.missing, *missing)
        )

    def picked_features(self, cnn: ExtractFeatures, clips: Tensor, picked: Tensor) -> tuple[Tensor, Tensor]:
        rows, positions = picked.nonzero(as_tuple=True)
        numbers = self.firsts[clips][rows] + positions
        if self.crop is None:
            extracted = self._extract(cnn, numbers)
        else:
            extracted = self._extract_cropped(cnn, numbers, rows, self.crop)
        counts = picked.sum(1)
        place = torch.arange(len(rows), device=rows.device) - (counts.cumsum(0) - counts)[rows]
        features = extracted.new_zeros(len(clips), int(counts.max()), *extracted.shape[1:])
        return features.index_put((rows, place), extracted), counts

    def extract_features(self, cnn: CNN, num_frames: int) -> FeatureSplit:
        """The features of all frames by a CNN that is no longer trained."""
        glances = self.glances.new_zeros(len(self.clips), num_frames, *self.glances.shape[1:])
        features = torch.zeros(
            len(self.clips), num_frames, cnn.num_cells, cnn.feature_size, dtype=torch.float16, device=self.frames.device
        )
        for i, (first, count) in enumerate(zip(self.firsts.tolist(), self.counts.tolist(), strict=True)):
            numbers = torch.arange(first, first + count, device=self.frames.device)
            glances[i, :count] = self.glances[numbers]
            features[i, :count] = self._extract(cnn, numbers).half()
        return FeatureSplit(self.clips, glances, features, self.counts, self.missing)

    @torch.no_grad()
    def _extract(self, cnn: ExtractFeatures, numbers: Tensor) -> Tensor:
        return torch.cat([cnn(self.frames[part]) for part in torch.split(numbers, CNN_BATCH)])

    def _extract_cropped(self, cnn: ExtractFeatures, numbers: Tensor, rows: Tensor, crop: Crop) -> Tensor:
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
            features = cnn(pixels)
        return features[: len(numbers)].float()


def extract_features(
    split: Split, cnn: CNN, config: Config, *, cache: Path, on_clip: Callable[[], None] = lambda: None
) -> FeatureSplit:
    """Extract glances and features of every clip, or read them from the cache; `on_clip` is called after each clip."""
    fingerprint = _fingerprint(cnn, config)
    num_frames = config.video.num_frames
    glances = np.zeros((len(split.clips), num_frames, *glance_shape(config.model.glance)), np.uint8)
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
        on_clip()
    for place in {path.parent for _, _, path in todo}:
        remove_abandoned(place)
    device = next(cnn.parameters()).device
    for (i, clip, path), decoded in _decoded(todo, config):
        try:
            clip_glances, pixels = decoded.result()
        except (UnreadableVideo, UnreadablePicture) as error:
            missing.append(Missing(clip.name, str(error)))
            on_clip()
            continue
        with torch.inference_mode():
            # Rounded to the 16 bits of the cache, so that the first and later runs use the same numbers.
            clip_features = cnn(torch.from_numpy(pixels).to(device)).to("cpu", torch.float16).numpy()
        _write(path, clip_glances, clip_features)
        counts[i] = len(clip_glances)
        glances[i, : counts[i]], features[i, : counts[i]] = clip_glances, clip_features
        on_clip()
    kept = np.flatnonzero(counts)
    if not len(kept):
        raise BadData(f"no clip of the {split.name} split can be read (first: {missing[0].reason})")
    return FeatureSplit(
        clips=tuple(split.clips[i] for i in kept),
        glances=torch.from_numpy(glances[kept]),
        features=torch.from_numpy(features[kept]),
        counts=torch.from_numpy(counts[kept]),
        missing=tuple(missing),
    )


Job = tuple[int, Clip, Path]
Decoded = tuple[NDArray[np.uint8], NDArray[np.uint8]]
"""glances (frames, *glance_shape) and pixels (frames, size, size, 3) of one clip."""


def _decoded(jobs: list[Job], config: Config) -> Iterator[tuple[Job, "Future[Decoded]"]]:
    """Decode clips in several threads; results come in order, and decoding is at most a few clips ahead of the CNN."""

    def decode(clip: Clip) -> Decoded:
        frames = pixels_and_glances(
            clip.path, num_frames=config.video.num_frames, size=config.model.image_size, glance=config.model.glance
        )
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
    """Everything besides the clip that determines its glances and features."""
    weights = hashlib.sha256()
    for name, tensor in sorted(cnn.state_dict().items()):
        weights.update(name.encode())
        weights.update(tensor.detach().cpu().numpy().tobytes())
    model = config.model
    key = [CACHE_FORMAT, model.cnn, model.image_size, model.grid, config.video.num_frames, weights.hexdigest()]
    # Left out if grey, so that caches from before there were other kinds are still read.
    return json.dumps([*key, model.glance] if model.glance != "grey" else key)


def _cache_path(cache: Path, clip: Clip, fingerprint: str) -> Path:
    key = json.dumps([fingerprint, *file_facts(clip.path)])
    return cache / f"{hashlib.sha256(key.encode()).hexdigest()[:32]}.npz"


def _read(
    path: Path, *, num_frames: int, shape: tuple[int, ...]
) -> tuple[NDArray[np.uint8], NDArray[np.float16]] | None:
    """A clip's glances and features, or None if the file does not exist or is damaged."""
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
