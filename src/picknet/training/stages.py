"""The paper's three stages, supervision, reinforcement and adaptation, and one beyond it."""

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from picknet.config import Config
from picknet.metrics import Cider
from picknet.text import BOS, NEVER_WRITTEN, PAD, Vocabulary
from picknet.training.batches import CaptionBatch, ClipBatch, Data, caption_epochs, clip_batches
from picknet.training.features import BareSplit, Crop, SeenSplit, Sight
from picknet.training.network import Decoder, Encoder, Network, PickNet, gather_picked
from picknet.training.rewards import language_reward, max_picks, total_reward, visual_diversity
from picknet.training.runs import Run, Stage, Step

OUT_OF_LIMITS = 1000.0
"""More than any CIDEr: what an epoch's score loses when its picks leave the limits."""


def supervision(network: Network, data: Data[SeenSplit] | Data[BareSplit], config: Config, run: Run) -> None:
    """Stage 1: the Encoder-Decoder learns to write captions, by cross entropy with scheduled sampling.

    From features, as in the paper, or from pixels, and then the CNN learns too.
    """
    stage = config.supervision
    trained = (network.encoder, network.decoder, *((network.cnn,) if isinstance(data.train, BareSplit) else ()))
    compiled = data.device.type == "cuda"
    cnn: Callable[[Tensor], Tensor] = torch.compile(network.cnn) if compiled else network.cnn

    def batch_loss(batch: CaptionBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        counts = data.train.counts[batch.clips]
        kept = random_subsets(counts, config.video.num_frames, batch.num_frames, generator)
        sight: Sight = data.train
        if isinstance(sight, BareSplit):
            size = round(stage.crop * config.model.image_size)
            sight = dataclasses.replace(sight, crop=Crop(size, generator, batch.room if compiled else 0))
        features = sight.picked(cnn, batch.clips, kept)
        return cross_entropy(network, data, batch, *features, label_smoothing=stage.label_smoothing), {}

    def validate(candidate: Network) -> dict[str, float]:
        num_picks = round((stage.min_frames + stage.max_frames) / 2) if stage.min_frames else config.video.num_frames
        picked = evenly(data.val.counts, config.video.num_frames, num_picks)
        return validation(candidate, data, config, picked, limited=False)

    run.stage("supervision", network, trained, caption_epochs(data, stage, batch_loss), validate)


def reinforcement(
    network: Network, data: Data[SeenSplit], config: Config, run: Run, bench: "Bench | None" = None
) -> None:
    """Stage 2: the Encoder-Decoder is the environment, held fixed; PickNet learns from its rewards by REINFORCE.

    With a bench, other captioners reward it, each on clips it was not taught.
    """
    stage = config.reinforcement
    environment = bench or Bench.of(network, data)

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        network.eval()
        most = max_picks(config.reward, num_frames=config.video.num_frames, progress=epoch / stage.epochs)

        def batch_loss(batch: ClipBatch) -> tuple[Tensor, dict[str, Tensor]]:
            loss, _, facts = policy_loss(
                network.picknet, environment, config, batch.clips, most, generator, samples=stage.samples
            )
            return loss, facts

        for batch in clip_batches(environment.train, stage.batch_size, order):
            step(batch, batch_loss)

    run.stage("reinforcement", network, (network.picknet,), train_epoch, validation_by_own_picks(data, config))


def adaptation(network: Network, data: Data[SeenSplit], config: Config, run: Run) -> None:
    """Stage 3: both learn together, L_X + L_R; PickNet's picks are taken as given when the captioner learns."""
    stage = config.adaptation

    def batch_loss(batch: CaptionBatch, generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        network.eval()  # rewards are measured as captions are used: without dropout
        reinforced, picked, facts = policy_loss(
            network.picknet, environment, config, batch.clips, most, generator, samples=1
        )
        network.train()
        features = data.train.picked(network.cnn, batch.clips, picked)
        captioned = cross_entropy(network, data, batch, *features, label_smoothing=stage.label_smoothing)
        return captioned + reinforced, facts | {"loss": captioned.detach()}

    environment = Bench.of(network, data)
    # The limits have shrunk in stage 2 and stay there.
    most = max_picks(config.reward, num_frames=config.video.num_frames, progress=1.0)

    trained = (network.picknet, network.encoder, network.decoder)
    train_epoch = caption_epochs(data, stage, batch_loss)
    run.stage("adaptation", network, trained, train_epoch, validation_by_own_picks(data, config))


def refinement(network: Network, data: Data[SeenSplit], config: Config, run: Run) -> None:
    """Beyond the paper: the captioner learns from the CIDEr of sentences it samples itself; PickNet is held fixed."""
    stage = config.refinement

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        network.eval()

        def batch_loss(batch: ClipBatch) -> tuple[Tensor, dict[str, Tensor]]:
            return sentence_loss(network, data, config, batch.clips, generator, samples=stage.samples)

        for batch in clip_batches(data.train, stage.batch_size, order):
            step(batch, batch_loss)

    trained = (network.encoder, network.decoder)
    run.stage("refinement", network, trained, train_epoch, validation_by_own_picks(data, config))


BY_STAGE: dict[Stage, Callable[[Network, Data[Any], Config, Run], None]] = {
    "supervision": supervision,
    "reinforcement": reinforcement,
    "adaptation": adaptation,
    "refinement": refinement,
}


def cross_entropy(
    network: Network,
    data: Data[Any],
    batch: CaptionBatch,
    features: Tensor,
    counts: Tensor,
    *,
    label_smoothing: float,
) -> Tensor:
    """L_X, a word: the picked frames of a batch's clips are encoded once and captioned several times."""
    memory = network.encoder(features, counts).of(batch.clip_of_caption)
    words = data.words[batch.captions, : batch.length + 1]
    logits = network.decoder(memory, words[:, :-1], feed_back=batch.feed_back)
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=PAD, label_smoothing=label_smoothing
    )


class Judge(NamedTuple):
    """A captioner whose captions reward PickNet."""

    encoder: Encoder
    decoder: Decoder
    vocabulary: Vocabulary


@dataclass(frozen=True)
class Bench:
    """Who rewards PickNet on which clips: the captioner in training on all, as in the paper, or several judges.

    A captioner's reward on clips that it was taught tells little of a choice of frames: it knows the captions by heart.
    """

    judges: tuple[Judge, ...]
    judge_of: Tensor
    """(clips,): the number of each clip's judge."""
    train: SeenSplit
    """The clips, with features as their judge's CNN sees them."""
    cider: Cider

    @staticmethod
    def of(network: Network, data: Data[SeenSplit]) -> "Bench":
        """The captioner in training judges all clips."""
        judge = Judge(network.encoder, network.decoder, data.vocabulary)
        return Bench((judge,), torch.zeros_like(data.train.counts), data.train, data.train_cider)

    @torch.no_grad()
    def language(self, clips: Tensor, picked: Tensor, *, max_words: int) -> Tensor:
        """r_l of greedy captions. clips: (batch,), picked: (batch, frames) -> (batch,)"""
        rewards = torch.zeros(len(clips), device=clips.device)
        for number, judge in enumerate(self.judges):
            rows = (self.judge_of[clips] == number).nonzero()[:, 0]
            if not len(rows):
                continue
            features, counts = gather_picked(self.train.features[clips[rows]], picked[rows])
            words = judge.decoder.write(judge.encoder(features.float(), counts), max_words=max_words)
            names = [self.train.clips[i].name for i in clips[rows].tolist()]
            rewards[rows] = language_reward(self.cider, judge.vocabulary, names, words)
        return rewards


def policy_loss(
    picknet: PickNet,
    bench: Bench,
    config: Config,
    clips: Tensor,
    most_picks: float,
    generator: torch.Generator,
    *,
    samples: int,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """L_R by REINFORCE, −(r(aˢ) − b) log p(aˢ).

    The baseline b is the greedy picks' reward (self-critical, as in the paper), or that of the clip's other samples.
    clips: (batch,) -> the loss, the sampled picks: (batch × samples, frames), and what was measured
    """
    glances, counts = bench.train.glances[clips], bench.train.counts[clips]
    sampled = picknet.walk(glances, counts, samples=samples, generator=generator)
    by_greedy = config.reinforcement.baseline == "greedy" or samples == 1  # a single sample has no others
    with torch.no_grad():
        of, picked = clips.repeat_interleave(samples), sampled.picked
        if by_greedy:
            of, picked = torch.cat([of, clips]), torch.cat([picked, picknet.walk(glances, counts).picked])
        language = bench.language(of, picked, max_words=config.text.max_words)
        diversity = visual_diversity(config.reward)(bench.train.features[of].mean(2, dtype=torch.float32), picked)
        num_picks = picked.sum(1)
        reward = total_reward(
            config.reward, language=language, diversity=diversity, num_picks=num_picks, most_picks=most_picks
        )
        sample_reward = reward[: len(clips) * samples]
        if by_greedy:
            advantage = sample_reward - reward[len(sample_reward) :].repeat_interleave(samples)
        else:
            advantage = above_the_others(sample_reward.view(-1, samples)).flatten()
    loss = -(advantage * sampled.log_probability).mean()
    return loss, sampled.picked, {
        "reward": sample_reward.mean(),
        "language": language[: len(sample_reward)].mean(),
        "diversity": diversity[: len(sample_reward)].mean(),
        "picks": num_picks[: len(sample_reward)].float().mean(),
    }


def above_the_others(rewards: Tensor) -> Tensor:
    """rewards: (clips, samples) -> how far each is above the mean of the clip's other samples"""
    samples = rewards.shape[1]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / (samples - 1)


def sentence_loss(
    network: Network, data: Data[SeenSplit], config: Config, clips: Tensor, generator: torch.Generator, *, samples: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """−(r − b) log p of sampled sentences, a word; b is the mean reward of the same clip's other sentences."""
    with torch.no_grad():
        picked = network.picknet.walk(data.train.glances[clips], data.train.counts[clips], generator=generator).picked
    many = torch.arange(len(clips), device=data.device).repeat_interleave(samples)
    memory = network.encoder(*data.train.picked(network.cnn, clips, picked)).of(many)
    words = network.decoder.write(memory, max_words=config.text.max_words, generator=generator)
    names = [data.train.clips[i].name for i in clips.tolist() for _ in range(samples)]
    reward = language_reward(data.train_cider, data.vocabulary, names, words)
    advantage = above_the_others(reward.view(-1, samples)).flatten()
    given = nn.functional.pad(words[:, :-1], (1, 0), value=BOS)
    logits = network.decoder(memory, given)
    logits[:, :, NEVER_WRITTEN] = -torch.inf  # as they were sampled
    log_probability = -nn.functional.cross_entropy(
        logits.flatten(0, 1), words.flatten(), ignore_index=PAD, reduction="none"
    ).view_as(words)
    loss = -(advantage[:, None] * log_probability).sum() / (words != PAD).sum()
    return loss, {"language": reward.mean(), "picks": picked.sum(1).float().mean()}


@torch.no_grad()
def validation(
    network: Network, data: Data[Any], config: Config, picked: Tensor, *, limited: bool = True
) -> dict[str, float]:
    """CIDEr (×100) of greedy captions of the validation clips from their picked frames.

    `score` is what the best epoch is chosen by: CIDEr, but any epoch that keeps to the limits on picks goes first.
    """
    network.eval()
    every = torch.arange(len(data.val.clips), device=data.device)
    memory = network.encoder(*data.val.picked(network.cnn, every, picked))
    words = network.decoder.write(memory, max_words=config.text.max_words)
    names = [clip.name for clip in data.val.clips]
    scores = language_reward(data.val_cider, data.vocabulary, names, words)
    cider, num_picks = 100 * float(scores.mean()), float(picked.sum(1).float().mean())
    within = not limited or config.reward.min_picks <= num_picks <= config.reward.max_picks_floor
    return {"val_cider": cider, "val_picks": num_picks, "score": cider if within else cider - OUT_OF_LIMITS}


def validation_by_own_picks(data: Data[SeenSplit], config: Config) -> Callable[[Network], dict[str, float]]:
    """Validates a network on the frames that its own PickNet picks."""
    return lambda network: validation(network, data, config, greedy_picks(network, data.val))


@torch.no_grad()
def greedy_picks(network: Network, seen: SeenSplit) -> Tensor:
    """The picks of use, nothing sampled. -> (clips, frames) bool"""
    return network.picknet.walk(seen.glances, seen.counts).picked


def all_frames(counts: Tensor, num_frames: int) -> Tensor:
    """counts: (clips,) -> (clips, frames) bool: every frame a clip has"""
    return torch.arange(num_frames, device=counts.device) < counts[:, None]


def evenly(counts: Tensor, num_frames: int, num_picks: int) -> Tensor:
    """The centres of `num_picks` equal parts of every clip. -> (clips, frames) bool"""
    centres = torch.arange(num_picks, device=counts.device) + 0.5
    positions = (centres * counts[:, None] / num_picks).long()
    return torch.zeros(len(counts), num_frames, dtype=torch.bool, device=counts.device).scatter_(1, positions, True)


def random_subsets(counts: Tensor, num_frames: int, sizes: Tensor, generator: torch.Generator) -> Tensor:
    """A random set of `sizes` frames of every clip. counts, sizes: (clips,) -> (clips, frames) bool"""
    lots = torch.rand(len(counts), num_frames, generator=generator, device=counts.device)
    lots = lots.masked_fill(~all_frames(counts, num_frames), 2.0)  # frames a clip does not have come last
    ranks = lots.argsort(1).argsort(1)
    return ranks < sizes[:, None]
