"""The data of a stage: captions as word ids, and batches of captions or clips."""

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
from picknet.data.split import Clip
from picknet.metrics import Cider
from picknet.text import EOS, PAD, UNK, Vocabulary, tokenise
from picknet.training.features import FeatureSource, FeatureSplit, PixelSplit
from picknet.training.learner import Figures, Step
from picknet.training.runs import TrainEpoch
from picknet.training.teachers import Captions

LENGTH_NOISE = 4.0
"""Captions are sorted into batches by length plus noise of up to this many words, so that batches vary."""

Numbers = NDArray[np.int64]
SourceT = TypeVar("SourceT", bound=FeatureSource)


@dataclass(frozen=True)
class Data(Generic[SourceT]):
    """The training and validation clips of a stage, on the training device."""

    train: SourceT
    val: SourceT
    vocabulary: Vocabulary
    words: Tensor
    """(captions, length): every caption of the training split, from its first word (`first_word`) to <eos>, padded."""
    lengths: Numbers
    """(captions,): number of words of each caption, with <eos>, which counts in the loss."""
    owners: Numbers
    """(captions,): the index of each caption's clip."""
    device: torch.device

    @cached_property
    def train_cider(self) -> Cider:
        """CIDEr with document frequencies of the whole training split; those of a batch would score everything 0."""
        return cider_of(self.train)

    @cached_property
    def val_cider(self) -> Cider:
        return cider_of(self.val)


def prepare(
    train: SourceT,
    val: SourceT,
    vocabulary: Vocabulary,
    config: Config,
    device: torch.device,
    *,
    captions: Captions,
) -> Data[SourceT]:
    """Encode the captions of the training clips as word ids. `train` and `val` must be on the device already."""
    ids, owners, first_words = [], [], []
    for owner, clip in enumerate(train.clips):
        for caption in captions[clip.name]:
            encoded = vocabulary.encode(caption, max_words=config.text.max_words)
            if any(word != UNK for word in encoded):  # nothing to learn from a caption without any known word
                ids.append(encoded)
                owners.append(owner)
                first_words.append(first_word(clip, vocabulary))
    if not ids:
        raise BadData("no caption of the training split has a word of the vocabulary")
    words = np.full((len(ids), max(map(len, ids)) + 2), PAD, np.int64)
    words[:, 0] = first_words
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


def cider_of(split: FeatureSource) -> Cider:
    """CIDEr with the captions of all clips as references."""
    return Cider({clip.name: [tokenise(caption) for caption in clip.captions] for clip in split.clips})


def first_word(clip: Clip, vocabulary: Vocabulary) -> int:
    """The word that a clip's captions begin with: its category or its style if the vocabulary has them, else <bos>."""
    return vocabulary.first_word(clip.category, clip.style)


def first_words(split: FeatureSource, clips: Tensor, vocabulary: Vocabulary) -> Tensor:
    """clips: (batch,) indices -> the words that their captions begin with: (batch,)"""
    words = [first_word(split.clips[i], vocabulary) for i in clips.tolist()]
    return torch.tensor(words, device=clips.device)


def teacher_forcing_probability(stage: CaptioningConfig, epoch: int) -> float:
    """Scheduled sampling: inverse sigmoid decay from nearly 1 to a floor."""
    k = stage.teacher_forcing_k
    return max(stage.teacher_forcing_floor, k / (k + math.exp(min(epoch / k, 700.0))))


@dataclass(frozen=True)
class ClipBatch:
    """Clips on which picks are sampled."""

    clips: Tensor
    """(batch,): their indices."""

    def __len__(self) -> int:
        return len(self.clips)

    def parts(self, count: int) -> "list[ClipBatch]":
        return [ClipBatch(part) for part in self.clips.chunk(count)]


def clip_batches(split: FeatureSplit, batch_size: int, order: np.random.Generator) -> Iterator[ClipBatch]:
    """Every clip once, in random order."""
    clips = order.permutation(len(split.clips))
    for part in torch.split(torch.from_numpy(clips).to(split.counts.device), batch_size):
        yield ClipBatch(part)


@dataclass(frozen=True)
class CaptionBatch:
    """Captions to learn from, and their clips. Each clip is encoded once."""

    captions: Tensor
    """(captions,): their indices."""
    clips: Tensor
    """(clips,): their indices."""
    num_frames: Tensor
    """(clips,): the number of frames of each that supervision uses."""
    clip_of_caption: Tensor
    """(captions,): indices into `clips`."""
    length: int
    """Words of the longest caption, with <eos>."""
    feed_back: tuple[bool, ...]
    """(length,): scheduled sampling, whether the decoder's own word is the input of a step."""
    frame_capacity: int
    """The number of frames that a batch of the CNN is filled up to."""

    def __len__(self) -> int:
        return len(self.captions)

    def parts(self, count: int) -> "list[CaptionBatch]":
        """Parts of the clips, with their captions."""
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
                    frame_capacity=max(-(-self.frame_capacity // count), int(self.num_frames[rows].sum())),
                )
            )
        return parts


def caption_batches(
    data: Data[Any], stage: CaptioningConfig, *, epoch: int, order: np.random.Generator
) -> Iterator[CaptionBatch]:
    """Every caption once, of other data sets those that are drawn for the epoch. Captions of one clip come in groups of
    `captions_per_video`; a batch consists of groups of similar length."""
    teacher = teacher_forcing_probability(stage, epoch)
    # Roughly by length, since a batch takes as many steps as its longest caption has words.
    noisy_lengths = data.lengths + order.uniform(0, LENGTH_NOISE, len(data.lengths))
    sorted_captions = np.lexsort((noisy_lengths, data.owners))
    owners = data.owners[sorted_captions]
    place = np.arange(len(owners)) - np.searchsorted(owners, owners)
    starts = np.flatnonzero(place % stage.captions_per_video == 0)
    groups = np.split(sorted_captions, starts[1:])
    groups = [groups[i] for i in np.argsort(np.maximum.reduceat(noisy_lengths[sorted_captions], starts), kind="stable")]
    if stage.others_share < 1:
        drawn = order.random(len(groups)) < stage.others_share
        clips_of_groups = (data.train.clips[data.owners[group[0]]] for group in groups)
        groups = [group for group, clip, is_drawn in zip(groups, clips_of_groups, drawn, strict=True)
                  if is_drawn or clip.style is None]  # fmt: skip
    captions, sizes = np.concatenate(groups), [len(group) for group in groups]
    firsts = np.cumsum([0, *sizes])
    clips, group_of_caption = data.owners[captions[firsts[:-1]]], np.repeat(np.arange(len(groups)), sizes)
    num_frames = _num_frames(data, stage, clips, order)
    # All at once, since a copy to the device waits for it.
    on_device = [torch.from_numpy(part).to(data.device) for part in (captions, clips, num_frames, group_of_caption)]
    for start, end in order.permutation(_batch_bounds(data, stage, num_frames)).tolist():
        own = slice(firsts[start], firsts[end])
        length = int(data.lengths[captions[own]].max())
        yield CaptionBatch(
            captions=on_device[0][own],
            clips=on_device[1][start:end],
            num_frames=on_device[2][start:end],
            clip_of_caption=on_device[3][own] - start,
            length=length,
            feed_back=tuple((order.random(length) >= teacher).tolist()),  # one draw per time step
            frame_capacity=stage.frames_per_batch if isinstance(stage, SupervisionConfig) else 0,
        )


def _num_frames(data: Data[Any], stage: CaptioningConfig, clips: Numbers, order: np.random.Generator) -> Numbers:
    """clips: (groups,) -> frames to use: (groups,), all of each clip, or a random number for each group"""
    counts: Numbers = data.train.counts.cpu().numpy()[clips]
    if not isinstance(stage, SupervisionConfig) or not stage.min_frames:
        return counts
    return np.minimum(order.integers(stage.min_frames, stage.max_frames + 1, len(clips)), counts)


def _batch_bounds(data: Data[Any], stage: CaptioningConfig, num_frames: Numbers) -> Numbers:
    """num_frames: (groups,) -> the first group of each batch and the one after its last: (batches, 2)"""
    if isinstance(stage, SupervisionConfig) and isinstance(data.train, PixelSplit):
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
    batch_loss: Callable[[CaptionBatch, torch.Generator], tuple[Tensor, Figures]],
) -> TrainEpoch:
    """A function that trains for one epoch over all captions with the given loss."""

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        for batch in caption_batches(data, stage, epoch=epoch, order=order):
            step(batch, lambda part: batch_loss(part, generator))

    return train_epoch
