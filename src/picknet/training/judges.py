"""The captioners that reward PickNet: the one in training, as in the paper, or ones trained on other folds."""

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from picknet.config import Config
from picknet.data.split import Clip, Split, validated_on
from picknet.metrics import Cider
from picknet.model.folder import find_model
from picknet.text import Vocabulary
from picknet.training.batches import Data, cider_of, first_words
from picknet.training.export import load_network
from picknet.training.features import FeatureSplit, PixelSplit, extract_features
from picknet.training.network import Decoder, Encoder, Network
from picknet.training.replay import Replayed
from picknet.training.runs import BadRun
from picknet.training.systems.parts import FrameEncoder, Memory, WordDecoder

MAX_SCORES = 200_000
"""Scores of captions that an environment keeps."""


class Judge(NamedTuple):
    """A captioner whose captions reward PickNet."""

    encoder: Encoder | FrameEncoder
    decoder: Decoder | WordDecoder
    vocabulary: Vocabulary


@dataclass(frozen=True)
class Environment:
    """PickNet's environment: training clips, and the captioner that rewards the picks of each clip.

    In the paper the captioner in training rewards all picks. But it has memorised the captions of its training clips,
    so its reward says little about the picks. A judge rewards only clips that it was not trained on.
    """

    judges: tuple[Judge, ...]
    judge_of: Tensor
    """(clips,): the index of each clip's judge."""
    train: FeatureSplit
    """The clips, with features of their judge's CNN."""
    cider: Cider

    @cached_property
    def pooled(self) -> Tensor:
        """(clips, frames, feature_size) float16: the mean over the cells of every frame, for the diversity reward."""
        return self.train.features.mean(2)

    @staticmethod
    def of(network: Network, data: Data[FeatureSplit]) -> "Environment":
        """The paper's: the captioner in training rewards all clips."""
        judge = Judge(network.encoder, network.decoder, data.vocabulary)
        return Environment((judge,), torch.zeros_like(data.train.counts), data.train, data.train_cider)

    def language_rewards(self, clips: Tensor, picked: Tensor, *, max_words: int) -> Tensor:
        """r_l of greedy captions. clips: (batch,), picked: (batch, frames) -> (batch,)"""
        return self.scores(self.captions(clips, picked, max_words=max_words))

    @torch.no_grad()
    def captions(
        self, clips: Tensor, picked: Tensor, *, max_words: int, most: int | None = None
    ) -> list[tuple[int, str]]:
        """Greedy captions from picked frames, each in its clip's style. -> (clip, caption) for each row

        most: picks of a clip, or more. Batches with the same number are replayed on a GPU.
        """
        found: list[tuple[int, str]] = [(0, "")] * len(clips)
        for number, judge in enumerate(self.judges):
            rows = torch.arange(len(clips), device=clips.device)
            if len(self.judges) > 1:
                rows = rows[self.judge_of[clips] == number]
            if len(rows):
                words = self._written(number, clips[rows], picked[rows], max_words, most)
                for row, clip, *ids in torch.cat([rows[:, None], clips[rows][:, None], words], dim=1).tolist():
                    found[row] = clip, judge.vocabulary.decode(ids)
        return found

    def scores(self, captions: list[tuple[int, str]]) -> Tensor:
        """captions: (clip, caption) each -> their CIDEr: (batch,)"""
        if len(self._scores) > MAX_SCORES:
            self._scores.clear()
        new = [caption for caption in dict.fromkeys(captions) if caption not in self._scores]
        if new:
            names, sentences = [self.train.clips[clip].name for clip, _ in new], [text.split() for _, text in new]
            self._scores.update(zip(new, self.cider.scores(names, sentences).tolist(), strict=True))
        scores = torch.tensor([self._scores[caption] for caption in captions])
        return scores.to(self.judge_of.device, non_blocking=True)  # a GPU may still be busy with something else

    def _written(self, number: int, clips: Tensor, picked: Tensor, max_words: int, most: int | None) -> Tensor:
        judge = self.judges[number]
        # Several judges have other numbers of clips in every batch, so that there is little to replay.
        encode, some_words = self._replayed if most and len(self.judges) == 1 else (self._encode, None)
        return judge.decoder.write(
            encode(clips, picked, number=number, most=most),
            max_words=max_words,
            first_words=self._first_words[number][clips],
            never_written=judge.vocabulary.never_written,
            some_words=some_words,
        )

    def _encode(self, clips: Tensor, picked: Tensor, *, number: int, most: int | None) -> Memory:
        memory: Memory = self.judges[number].encoder(*self.train.picked_features(None, clips, picked, most=most))
        return memory

    @cached_property
    def _replayed(self) -> tuple[Replayed, Replayed]:
        return Replayed(self._encode), Replayed(self.judges[0].decoder.some_words)

    @cached_property
    def _scores(self) -> dict[tuple[int, str], float]:
        """CIDEr of captions so far, by clip and caption: most come again and again."""
        return {}

    @cached_property
    def _first_words(self) -> list[Tensor]:
        """For each judge, the word that captions of each clip begin with: (clips,)"""
        every = torch.arange(len(self.train.clips), device=self.train.counts.device)
        return [first_words(self.train, every, judge.vocabulary) for judge in self.judges]


class JudgeRun(NamedTuple):
    """A model that rewards PickNet, and the clips that it was not trained on."""

    model: Path
    clips: frozenset[str]
    """The clips that the run of a fold was validated on."""
    dataset: str | None = None
    """The data set of which it judges all clips instead."""

    @staticmethod
    def read(judge: str) -> "JudgeRun":
        """RUN: the run of a fold. MODEL=DATASET: a model that was not trained on this data set."""
        name, equals, dataset = judge.rpartition("=")
        if equals:
            return JudgeRun(find_model(name)[1], frozenset(), dataset)
        folder = Path(judge)
        if not (folder / "model").is_dir():
            raise BadRun(f"{folder}: not a run folder with a model, so it cannot be a judge")
        return JudgeRun(folder / "model", frozenset(validated_on(folder)))

    def judges(self, clip: Clip, split: Split) -> bool:
        # Names of clips begin with their data set where there are several.
        dataset, _, name = clip.name.rpartition("/")
        if self.dataset:
            return (dataset or split.dataset) == self.dataset
        # A fold with styles is of the first data set alone.
        return clip.name in self.clips or (dataset == split.dataset and name in self.clips)


def environment_of_judges(
    runs: Sequence[JudgeRun], split: Split, data: Data[Any], config: Config, *, cache: Path, device: torch.device
) -> Environment:
    """The training clips that the judges were validated on, each with features of its judge's CNN."""
    judges, parts, judge_of = [], [], []
    for number, run in enumerate(runs):
        network, vocabulary, settings = load_network(run.model)
        network.to(device).eval()
        # Frames and glances are those of the policy in training, pixels and features those of the judge.
        model = dataclasses.replace(settings.model, glance=config.model.glance)
        settings = dataclasses.replace(settings, video=config.video, model=model)
        clips = tuple(clip for clip in data.train.clips if run.judges(clip, split))
        if not clips:
            raise BadRun(f"{run.model}: is to judge none of the clips of this training split; leave it out")
        judged = dataclasses.replace(split, clips=clips, missing=())
        if settings.supervision.cnn_learning_rate:
            if isinstance(data.train, PixelSplit) and settings.model.image_size == config.model.image_size:
                pixels = data.train.subset(judged)
            else:
                pixels = PixelSplit.load(judged, settings, cache=cache, device=device)
            part = pixels.extract_features(network.cnn, config.video.num_frames)
        else:
            part = extract_features(judged, network.cnn, settings, cache=cache).to(device)
        parts.append(part)
        judge_of += [number] * len(part.clips)
        judges.append(Judge(network.encoder, network.decoder, vocabulary))
    train = FeatureSplit(
        clips=tuple(clip for part in parts for clip in part.clips),
        glances=torch.cat([part.glances for part in parts]),
        features=torch.cat([part.features for part in parts]),
        counts=torch.cat([part.counts for part in parts]),
        missing=(),
    )
    return Environment(tuple(judges), torch.tensor(judge_of, device=device), train, cider_of(train))
