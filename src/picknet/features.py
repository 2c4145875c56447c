"""A split as the network sees it: glances and CNN features of its frames, extracted once and kept."""

import hashlib
import json
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from zipfile import BadZipFile

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from picknet.config import Config
from picknet.datasets import BadData, Clip, Missing, Split
from picknet.files import written_whole
from picknet.model import CNN
from picknet.video import GLANCE_SIZE, UnreadableVideo, Video

CACHE_FORMAT = 1
"""Raised whenever sampling, glances or pixels change, so that no old cache is read for new code."""


@dataclass(frozen=True)
class SeenSplit:
    """Every clip of a split as tensors; clips shorter than num_frames are padded with zeros."""

    clips: tuple[Clip, ...]
    glances: Tensor
    """(clips, frames, 56, 56) uint8."""
    features: Tensor
    """(clips, frames, feature_size) float32."""
    counts: Tensor
    """(clips,): how many frames each clip has."""
    missing: tuple[Missing, ...]
    """Clips of the split that could not be had or read, with the reason."""

    def to(self, device: torch.device) -> "SeenSplit":
        tensors = (self.glances.to(device), self.features.to(device), self.counts.to(device))
        return SeenSplit(self.clips, *tensors, self.missing)


def see(
    split: Split, cnn: CNN, config: Config, *, cache: Path, tick: Callable[[], None] = lambda: None
) -> SeenSplit:
    """Glances and features of every clip of the split; `tick` is called after each clip."""
    fingerprint = _fingerprint(cnn, config)
    num_frames = config.video.num_frames
    glances = np.zeros((len(split.clips), num_frames, GLANCE_SIZE, GLANCE_SIZE), np.uint8)
    features = np.zeros((len(split.clips), num_frames, cnn.feature_size), np.float32)
    counts = np.zeros(len(split.clips), np.int64)
    missing = list(split.missing)
    todo = []
    for i, clip in enumerate(split.clips):
        path = _cache_path(cache, clip, fingerprint)
        cached = _read(path, num_frames=num_frames, feature_size=cnn.feature_size)
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
        except UnreadableVideo as error:
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
        with Video(clip.path) as video:
            frames = [(frame.glance(), frame.pixels(image_size)) for frame in video.sample_evenly(count=num_frames)]
        return np.stack([glance for glance, _ in frames]), np.stack([pixels for _, pixels in frames])

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
    facts = [CACHE_FORMAT, config.model.cnn, config.model.image_size, config.video.num_frames, weights.hexdigest()]
    return json.dumps(facts)


def _cache_path(cache: Path, clip: Clip, fingerprint: str) -> Path:
    status = clip.path.stat()
    facts = json.dumps([fingerprint, clip.path.name, status.st_size, status.st_mtime_ns])
    return cache / f"{hashlib.sha256(facts.encode()).hexdigest()[:32]}.npz"


def _read(path: Path, *, num_frames: int, feature_size: int) -> tuple[NDArray[np.uint8], NDArray[np.float16]] | None:
    """A clip's glances and features, or None when the file is not there or not whole."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            glances, features = arrays["glances"], arrays["features"]
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
    if not 0 < len(glances) == len(features) <= num_frames or features.shape[1:] != (feature_size,):
        return None
    return glances, features


def _write(path: Path, glances: NDArray[np.uint8], features: NDArray[np.float16]) -> None:
    with written_whole(path) as temporary, temporary.open("wb") as file:
        np.savez(file, glances=glances, features=features)
