"""The losses of the captioner: cross entropy with people's captions, as in the paper; with the words of teachers, which
are other captioners; and the reward of captions that it samples."""

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from picknet.metrics import Cider
from picknet.text import EOS, PAD, SPECIAL_WORDS, Vocabulary, tokenise
from picknet.training.batches import CaptionBatch, Data, first_words, padded
from picknet.training.features import ExtractFeatures, FeatureSource
from picknet.training.network import Memory, Network
from picknet.training.replay import ReplayedLoss
from picknet.training.rewards import leave_one_out

TEMPERATURE = 0.7
"""Of sampled captions: label smoothing leaves a tenth of the probability to words that fit nothing."""


def cross_entropy(
    network: Network,
    data: Data[Any],
    batch: CaptionBatch,
    memory: Memory,
    *,
    label_smoothing: float,
    taught: Tensor | None = None,
    taught_share: float = 0.0,
) -> Tensor:
    """L_X, the mean over words. memory: of each clip of the batch, for all of its captions

    taught: (captions, length, words) probabilities that take this share of the loss.
    """
    words = data.words[batch.captions, : batch.length + 1]
    memory = _of_captions(memory, batch)
    return _word_loss(network, data, memory, words, batch.feed_back, label_smoothing, taught, taught_share)


def _of_captions(memory: Memory, batch: CaptionBatch) -> Memory:
    if len(batch.captions) == len(batch.clips):  # one caption each, in the same order
        return memory
    return memory.of(batch.clip_of_caption)


def _word_loss(
    network: Network,
    data: Data[Any],
    memory: Memory,
    words: Tensor,
    feed_back: Sequence[bool] | Tensor,
    label_smoothing: float,
    taught: Tensor | None = None,
    taught_share: float = 0.0,
) -> Tensor:
    logits = network.decoder(memory, words[:, :-1], feed_back=feed_back, never_written=data.vocabulary.never_written)
    targets = words[:, 1:].flatten()
    loss = nn.functional.cross_entropy(
        logits.flatten(0, 1), targets, ignore_index=PAD, label_smoothing=label_smoothing
    )
    if taught is None:
        return loss
    of_teachers = nn.functional.cross_entropy(logits.flatten(0, 1), taught.flatten(0, 1), reduction="none")
    present = targets != PAD
    return torch.lerp(loss, (of_teachers * present).sum() / present.sum(), taught_share)


class Teachers:
    """Captioners whose words another one learns: the mean of the probabilities that they give to every next word.

    Each has its own CNN, which sees the same pixels as the pupil's.
    """

    def __init__(self, networks: Sequence[Network], *, compiled: bool) -> None:
        self.networks = tuple(network.eval().requires_grad_(False) for network in networks)
        self._cnns = [torch.compile(network.cnn) if compiled else network.cnn for network in self.networks]

    def beside(self, cnn: ExtractFeatures) -> ExtractFeatures:
        """A CNN whose cells are those of `cnn`, then those of each teacher."""

        def extract(pixels: Tensor) -> Tensor:
            own = cnn(pixels)
            with torch.no_grad():
                return torch.cat([own, *(teacher(pixels) for teacher in self._cnns)], dim=1)

        return extract if self.networks else cnn

    @torch.no_grad()
    def probabilities(
        self, features: Sequence[Tensor], counts: Tensor, batch: CaptionBatch, data: Data[Any]
    ) -> Tensor | None:
        """features: of each teacher (clips, picks, cells, feature_size)
        -> (captions, length, words), None without teachers"""
        if not self.networks:
            return None
        words = data.words[batch.captions, : batch.length]
        total: Tensor | None = None
        for network, seen in zip(self.networks, features, strict=True):
            memory = _of_captions(network.encoder(seen, counts), batch)
            probabilities = network.decoder(memory, words).softmax(-1)
            total = probabilities if total is None else total.add_(probabilities)
        return None if total is None else total.div_(len(self.networks))


class CaptionReward:
    """The CIDEr of captions among clips of the same style. <eos> counts as a word: an unfinished sentence loses."""

    def __init__(self, split: FeatureSource, vocabulary: Vocabulary) -> None:
        self._split, self._vocabulary = split, vocabulary
        references: dict[str | None, dict[str, list[list[str]]]] = {}
        for clip in split.clips:
            ended = [[*tokenise(caption), SPECIAL_WORDS[EOS]] for caption in clip.captions]
            references.setdefault(clip.style, {})[clip.name] = ended
        self._cider = {style: Cider(captions) for style, captions in references.items()}

    def __call__(self, clips: Tensor, words: Tensor) -> Tensor:
        """clips: (captions,) indices, words: (captions, length) -> (captions,)"""
        found, rows = torch.empty(len(words)), words.tolist()
        of_style: dict[str | None, list[int]] = {}
        described = [self._split.clips[clip] for clip in clips.tolist()]
        for row, clip in enumerate(described):
            of_style.setdefault(clip.style, []).append(row)
        for style, members in of_style.items():
            sentences = [self._sentence(rows[row]) for row in members]
            scores = self._cider[style].scores([described[row].name for row in members], sentences)
            found[members] = torch.as_tensor(scores, dtype=torch.float32)
        return found.to(words.device)

    def _sentence(self, ids: list[int]) -> list[str]:
        end = [SPECIAL_WORDS[EOS]] if EOS in ids else []
        return [*self._vocabulary.decode(ids).split(), *end]


def caption_reward_loss(
    network: Network,
    data: Data[Any],
    reward: Callable[[Tensor, Tensor], Tensor],
    memory: Memory,
    clips: Tensor,
    *,
    samples: int,
    max_words: int,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor]:
    """L_C by REINFORCE, −(r − b) log p of captions that the captioner samples, a mean over words; and the mean reward.

    b is the mean reward of the clip's other samples. memory: of each clip; clips: (batch,) their indices
    """
    rows = torch.arange(len(clips), device=clips.device).repeat_interleave(samples)
    first, many = first_words(data.train, clips, data.vocabulary)[rows], memory.of(rows)
    network.decoder.eval()
    written = network.decoder.write(
        many,
        max_words=max_words,
        first_words=first,
        never_written=data.vocabulary.never_written,
        sampled=(TEMPERATURE, generator),
    )
    network.decoder.train()
    rewards = reward(clips[rows], written)
    advantage = leave_one_out(rewards.view(-1, samples)).flatten()
    logits = network.decoder(many, torch.cat([first[:, None], written[:, :-1]], dim=1))
    surprise = nn.functional.cross_entropy(logits.flatten(0, 1), written.flatten(), ignore_index=PAD, reduction="none")
    loss = (advantage[:, None] * surprise.view(written.shape)).sum() / (written != PAD).sum()
    return loss, rewards.mean()


LENGTH_STEP = 2
"""On a GPU the captions of a batch are padded to a multiple of so many words, so that few shapes are recorded."""


class CaptioningLoss:
    """L_X with a fixed CNN: `cross_entropy` of captions from picked frames, replayed on a GPU."""

    def __init__(self, network: Network, data: Data[Any], label_smoothing: float) -> None:
        self.network, self.data, self.label_smoothing = network, data, label_smoothing
        self._replayed = ReplayedLoss(self._loss, (*network.encoder.parameters(), *network.decoder.parameters()))

    def __call__(self, batch: CaptionBatch, picked: Tensor, *, most: int | None = None) -> Tensor:
        """picked: (clips of the batch, frames) bool; most: picks of a clip, or more, by default all frames"""
        if not picked.is_cuda:
            features = self.data.train.picked_features(self.network.cnn, batch.clips, picked)
            memory = self.network.encoder(*features)
            return cross_entropy(self.network, self.data, batch, memory, label_smoothing=self.label_smoothing)
        length = min(padded(batch.length, LENGTH_STEP), self.data.words.shape[1] - 1)
        words = self.data.words[batch.captions, : length + 1]
        feed_back = torch.zeros(length, dtype=torch.bool)
        feed_back[: batch.length] = torch.tensor(batch.feed_back)
        most = most or picked.shape[1]
        return self._replayed(batch.clips, picked, words, batch.clip_of_caption, feed_back, most=most)

    def _loss(
        self, clips: Tensor, picked: Tensor, words: Tensor, clip_of_caption: Tensor, feed_back: Tensor, *, most: int
    ) -> Tensor:
        features = self.data.train.picked_features(self.network.cnn, clips, picked, most=most)
        memory = self.network.encoder(*features).of(clip_of_caption)
        return _word_loss(self.network, self.data, memory, words, feed_back.to(words.device), self.label_smoothing)
