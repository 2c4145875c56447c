"""What the stages learn from: a data set's captions as word ids, in batches that a GPU likes."""

import dataclasses
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Generic, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from picknet.config import CaptioningConfig, Config, SupervisionConfig
from picknet.data import BadData
from picknet.metrics import Cider
from picknet.text import BOS, EOS, PAD, UNK, Vocabulary, tokenise
from picknet.training.features import BareSplit, SeenSplit, Sight
from picknet.training.runs import Step, TrainEpoch

LENGTH_BLUR = 4.0
"""Captions whose lengths differ by less than this many words are mixed freely in batches."""

Numbers = NDArray[np.int64]
SightT = TypeVar("SightT", bound=Sight)


@dataclass(frozen=True)
class Data(Generic[SightT]):
    """What a stage learns from, all of it on the training device."""

    train: SightT
    val: SightT
    vocabulary: Vocabulary
    words: Tensor
    """(captions, length): <bos> or a style … <eos>, padded: every caption of the training split."""
    lengths: Numbers
    """(captions,): words of each caption and <eos>, which counts in the loss."""
    owners: Numbers
    """(captions,): the clip each caption belongs to."""
    device: torch.device

    @cached_property
    def train_cider(self) -> Cider:
        """Document frequencies of the whole training split: a batch of its own would score everything 0."""
        return cider_of(self.train)

    @cached_property
    def val_cider(self) -> Cider:
        return cider_of(self.val)


def prepare(
    train: SightT, val: SightT, vocabulary: Vocabulary, config: Config, device: torch.device
) -> Data[SightT]:
    """Captions as word ids; `train` and `val` are on the device already."""
    ids, owners, beginnings = [], [], []
    for owner, clip in enumerate(train.clips):
        for caption in clip.captions:
            encoded = vocabulary.encode(tokenise(caption), max_words=config.text.max_words)
            if any(word != UNK for word in encoded):  # a caption with no known word teaches nothing
                ids.append(encoded)
                owners.append(owner)
                beginnings.append(vocabulary.styles[clip.style] if clip.style else BOS)
    if not ids:
        raise BadData("no caption of the training split has a word of the vocabulary")
    words = np.full((len(ids), max(map(len, ids)) + 2), PAD, np.int64)
    words[:, 0] = beginnings
    for row, encoded in zip(words, ids, strict=True):
        row[1 : len(encoded) + 2] = [*encoded, EOS]
    return Data(
        train=train,
        val=val,
        vocabulary=vocabulary,
        words=torch.from_numpy(words).to(device),
        lengths=np.array([len(encoded) + 1 for encoded in ids]),
        owners=np.array(owners),
        device=device,
    )


def cider_of(sight: Sight) -> Cider:
    """CIDEr against the captions of all clips."""
    return Cider({clip.name: [tokenise(caption) for caption in clip.captions] for clip in sight.clips})


def teacher_forcing_probability(stage: CaptioningConfig, epoch: int) -> float:
    """Scheduled sampling: an inverse sigmoid that falls from nearly 1 to its floor."""
    k = stage.teacher_forcing_k
    return max(stage.teacher_forcing_floor, k / (k + math.exp(min(epoch / k, 700.0))))


@dataclass(frozen=True)
class ClipBatch:
    """Clips to try something on."""

    clips: Tensor
    """(batch,): their numbers."""

    def __len__(self) -> int:
        return len(self.clips)

    def parts(self, count: int) -> "list[ClipBatch]":
        return [ClipBatch(part) for part in self.clips.chunk(count)]


def clip_batches(sight: SeenSplit, batch_size: int, order: np.random.Generator) -> Iterator[ClipBatch]:
    """Every clip once, in random order."""
    clips = order.permutation(len(sight.clips))
    for start in range(0, len(clips), batch_size):
        yield ClipBatch(torch.from_numpy(clips[start : start + batch_size]).to(sight.counts.device))


@dataclass(frozen=True)
class CaptionBatch:
    """Captions to learn, and the clips they describe, each of which is encoded once."""

    captions: Tensor
    clips: Tensor
    num_frames: Tensor
    """(clips,): how many frames of each are looked at in supervision."""
    clip_of_caption: Tensor
    length: int
    feed_back: tuple[bool, ...]
    room: int
    """For how many frames there is room: the CNN is given so many, whatever the batch has."""

    def __len__(self) -> int:
        return len(self.captions)

    def parts(self, count: int) -> "list[CaptionBatch]":
        """Some of the clips each, with their captions."""
        if count == 1:
            return [self]
        parts = []
        for rows in torch.arange(len(self.clips), device=self.clips.device).chunk(count):
            first, last = int(rows[0]), int(rows[-1])
            own = (first <= self.clip_of_caption) & (self.clip_of_caption <= last)
            parts.append(
                dataclasses.replace(
                    self,
                    captions=self.captions[own],
                    clips=self.clips[rows],
                    num_frames=self.num_frames[rows],
                    clip_of_caption=self.clip_of_caption[own] - first,
                    room=max(-(-self.room // count), int(self.num_frames[rows].sum())),
                )
            )
        return parts


def caption_batches(
    data: Data[Any], stage: CaptioningConfig, *, epoch: int, order: np.random.Generator
) -> Iterator[CaptionBatch]:
    """Every caption once, in groups of `captions_per_video` of one clip; groups of like length make a batch."""
    teacher = teacher_forcing_probability(stage, epoch)
    # Roughly by length: a batch takes as many steps as its longest caption has words.
    about = data.lengths + order.uniform(0, LENGTH_BLUR, len(data.lengths))
    sorted_captions = np.lexsort((about, data.owners))
    owners = data.owners[sorted_captions]
    place = np.arange(len(owners)) - np.searchsorted(owners, owners)
    starts = np.flatnonzero(place % stage.captions_per_video == 0)
    groups = np.split(sorted_captions, starts[1:])
    groups = [groups[i] for i in np.argsort(np.maximum.reduceat(about[sorted_captions], starts), kind="stable")]
    clips = data.owners[[group[0] for group in groups]]
    num_frames = _frames_looked_at(data, stage, clips, order)
    for start, end in order.permutation(_cuts(data, stage, num_frames)):
        captions = np.concatenate(groups[start:end])
        length = int(data.lengths[captions].max())
        clip_of_caption = np.repeat(np.arange(end - start), [len(group) for group in groups[start:end]])
        yield CaptionBatch(
            captions=torch.from_numpy(captions).to(data.device),
            clips=torch.from_numpy(clips[start:end]).to(data.device),
            num_frames=torch.from_numpy(num_frames[start:end]).to(data.device),
            clip_of_caption=torch.from_numpy(clip_of_caption).to(data.device),
            length=length,
            feed_back=tuple((order.random(length) >= teacher).tolist()),  # one draw for each time step
            room=stage.frames_per_batch if isinstance(stage, SupervisionConfig) else 0,
        )


def _frames_looked_at(data: Data[Any], stage: CaptioningConfig, clips: Numbers, order: np.random.Generator) -> Numbers:
    """clips: (groups,) -> (groups,): all frames a clip has, or a number drawn for each group"""
    counts: Numbers = data.train.counts.cpu().numpy()[clips]
    if not isinstance(stage, SupervisionConfig) or not stage.min_frames:
        return counts
    return np.minimum(order.integers(stage.min_frames, stage.max_frames + 1, len(clips)), counts)


def _cuts(data: Data[Any], stage: CaptioningConfig, num_frames: Numbers) -> Numbers:
    """Where batches begin and end among the groups, by the frames of each: (batches, 2)"""
    if isinstance(stage, SupervisionConfig) and isinstance(data.train, BareSplit):
        starts, filled = [0], 0
        for i, frames in enumerate(num_frames.tolist()):
            if filled + frames > stage.frames_per_batch:
                starts.append(i)
                filled = 0
            filled += frames
    else:
        starts = list(range(0, len(num_frames), max(1, stage.batch_size // stage.captions_per_video)))
    return np.stack([starts, [*starts[1:], len(num_frames)]], axis=1)


def caption_epochs(
    data: Data[Any],
    stage: CaptioningConfig,
    batch_loss: Callable[[CaptionBatch, torch.Generator], tuple[Tensor, dict[str, Tensor]]],
) -> TrainEpoch:
    """An epoch over all captions, given the loss of a batch of them."""

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        for batch in caption_batches(data, stage, epoch=epoch, order=order):
            step(batch, lambda part: batch_loss(part, generator))

    return train_epoch
