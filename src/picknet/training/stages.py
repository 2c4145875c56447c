"""The paper's three stages, supervision, reinforcement and adaptation, and their losses."""

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from picknet.config import Config
from picknet.text import PAD
from picknet.training.batches import CaptionBatch, ClipBatch, Data, caption_epochs, clip_batches, first_words
from picknet.training.features import Crop, FeatureSource, FeatureSplit, PixelSplit
from picknet.training.films import FilmBatch, make_clips, make_films
from picknet.training.judges import Environment
from picknet.training.learner import Figures, Step
from picknet.training.network import Network
from picknet.training.policies import PickNet, RatePickNet
from picknet.training.rewards import language_reward, max_picks, total_reward, visual_diversity
from picknet.training.runs import Run

OUT_OF_LIMITS = 1000.0
"""Subtracted from the score of an epoch whose number of picks is outside the limits; more than any CIDEr."""


def supervision(network: Network, data: Data[FeatureSplit] | Data[PixelSplit], config: Config, run: Run) -> None:
    """Stage 1: train the Encoder-Decoder by cross entropy with scheduled sampling.

    With a `FeatureSplit` the CNN is fixed, as in the paper; with a `PixelSplit` it is trained, too.
    """
    stage = config.supervision
    trained = (network.encoder, network.decoder, *((network.cnn,) if isinstance(data.train, PixelSplit) else ()))
    compiled = data.device.type == "cuda"
    cnn: Callable[[Tensor], Tensor] = torch.compile(network.cnn) if compiled else network.cnn

    def batch_loss(batch: CaptionBatch, generator: torch.Generator) -> tuple[Tensor, Figures]:
        counts = data.train.counts[batch.clips]
        picked = random_subsets(counts, config.video.num_frames, batch.num_frames, generator)
        source: FeatureSource = data.train
        if isinstance(source, PixelSplit):
            size = round(stage.crop * config.model.image_size)
            source = dataclasses.replace(source, crop=Crop(size, generator, batch.frame_capacity if compiled else 0))
        features = source.picked_features(cnn, batch.clips, picked)
        return cross_entropy(network, data, batch, *features, label_smoothing=stage.label_smoothing), {}

    def validate(candidate: Network) -> dict[str, float]:
        num_picks = round((stage.min_frames + stage.max_frames) / 2) if stage.min_frames else config.video.num_frames
        picked = evenly(data.val.counts, config.video.num_frames, num_picks)
        return validation(candidate, data, config, picked, limited=False)

    run.stage("supervision", network, trained, caption_epochs(data, stage, batch_loss), validate)


def reinforcement(
    network: Network, data: Data[Any], config: Config, run: Run, environment: Environment | None = None
) -> None:
    """Stage 2: train PickNet by REINFORCE. The Encoder-Decoder is fixed and part of the environment.

    environment: by default that of the paper, in which the network's own Encoder-Decoder rewards PickNet.
    """
    stage = config.reinforcement
    environment = environment or Environment.of(network, data)

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        network.eval()
        most = max_picks(config.reward, num_frames=config.video.num_frames, progress=epoch / stage.epochs)

        def batch_loss(batch: ClipBatch) -> tuple[Tensor, Figures]:
            loss, _, figures = policy_loss(
                network.picknet, environment, config, batch.clips, most, generator, samples=stage.samples
            )
            return loss, figures

        for batch in clip_batches(environment.train, stage.batch_size, order):
            step(batch, batch_loss)

    def film_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        network.eval()
        clips = environment.train
        for batch in clip_batches(clips, 2 * stage.films, order):
            films = make_films(
                clips.glances, clips.counts, num_films=stage.films, num_frames=stage.film_frames, chance=order
            )
            plain = make_clips(clips.glances, clips.counts, batch.clips.tolist(), chance=order)
            for some in (films, plain):
                step(some, lambda part: film_loss(network.picknet, environment, config, part, generator))

    validate = validation_by_own_picks(data, config)
    if stage.films:
        validate = with_films(validate, data.val, config)
    run.stage("reinforcement", network, (network.picknet,), film_epoch if stage.films else train_epoch, validate)


def adaptation(network: Network, data: Data[FeatureSplit], config: Config, run: Run) -> None:
    """Stage 3: train PickNet and the Encoder-Decoder together on L_X + L_R.

    L_X has no gradient with respect to PickNet: the sampled picks are constants in it.
    """
    stage = config.adaptation

    def batch_loss(batch: CaptionBatch, generator: torch.Generator) -> tuple[Tensor, Figures]:
        network.eval()  # rewards are those of inference, without dropout
        picking_loss, picked, figures = policy_loss(
            network.picknet, environment, config, batch.clips, most, generator, samples=1
        )
        network.train()
        features = data.train.picked_features(network.cnn, batch.clips, picked)
        captioning_loss = cross_entropy(network, data, batch, *features, label_smoothing=stage.label_smoothing)
        return captioning_loss + picking_loss, figures | {"loss": captioning_loss.detach()}

    environment = Environment.of(network, data)
    # N_max has shrunk in stage 2 and stays at its floor.
    most = max_picks(config.reward, num_frames=config.video.num_frames, progress=1.0)

    trained = (network.picknet, network.encoder, network.decoder)
    train_epoch = caption_epochs(data, stage, batch_loss)
    run.stage("adaptation", network, trained, train_epoch, validation_by_own_picks(data, config))


def cross_entropy(
    network: Network,
    data: Data[Any],
    batch: CaptionBatch,
    features: Tensor,
    counts: Tensor,
    *,
    label_smoothing: float,
) -> Tensor:
    """L_X, the mean over words. Each clip of the batch is encoded once for all of its captions."""
    memory = network.encoder(features, counts)
    if len(batch.captions) > len(batch.clips):  # otherwise each clip has one caption, in the same order
        memory = memory.of(batch.clip_of_caption)
    words = data.words[batch.captions, : batch.length + 1]
    logits = network.decoder(
        memory, words[:, :-1], feed_back=batch.feed_back, never_written=data.vocabulary.never_written
    )
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=PAD, label_smoothing=label_smoothing
    )


def policy_loss(
    picknet: PickNet | RatePickNet,
    environment: Environment,
    config: Config,
    clips: Tensor,
    most_picks: float,
    generator: torch.Generator,
    *,
    samples: int,
) -> tuple[Tensor, Tensor, Figures]:
    """L_R by REINFORCE, −(r(aˢ) − b) log p(aˢ).

    The baseline b is the reward of the greedy picks (self-critical, as in the paper), or the mean reward of the clip's
    other samples. clips: (batch,) -> the loss, the sampled picks: (batch × samples, frames), and figures to log

    A sample without a pick has the reward of too few picks, R⁻; a captioner gets the middle frame for it.
    """
    glances, counts = environment.train.glances[clips], environment.train.counts[clips]
    greedy_baseline = config.reinforcement.baseline == "greedy" or samples == 1  # a single sample has no others
    picked, log_probabilities = picknet.walk(
        glances, counts, samples=samples, generator=generator, and_greedy=greedy_baseline
    )
    with torch.no_grad():
        rewarded, num_picks = clips.repeat_interleave(samples), picked.sum(1)
        middles = evenly(counts, glances.shape[1], 1).repeat_interleave(samples, dim=0)
        if greedy_baseline:  # the greedy walks have picks, and come last
            rewarded, middles = torch.cat([rewarded, clips]), torch.cat([middles, picked[len(middles) :]])
        picked = torch.where(num_picks[:, None] > 0, picked, middles)
        language = environment.language_rewards(rewarded, picked, max_words=config.text.max_words)
        diversity = visual_diversity(config.reward)(environment.pooled[rewarded].float(), picked)
        reward = total_reward(
            config.reward, language=language, diversity=diversity, num_picks=num_picks, most_picks=most_picks
        )
        sample_reward = reward[: len(clips) * samples]
        if greedy_baseline:
            advantage = sample_reward - reward[len(sample_reward) :].repeat_interleave(samples)
        else:
            advantage = leave_one_out(sample_reward.view(-1, samples)).flatten()
    loss = -(advantage * log_probabilities.sum(1)).mean()
    return loss, picked[: len(sample_reward)], {
        "reward": sample_reward.mean(),
        "language": language[: len(sample_reward)].mean(),
        "diversity": diversity[: len(sample_reward)].mean(),
        "picks": num_picks[: len(sample_reward)].float().mean(),
    }


def film_loss(
    picknet: PickNet | RatePickNet,
    environment: Environment,
    config: Config,
    films: FilmBatch,
    generator: torch.Generator,
) -> tuple[Tensor, Figures]:
    """L_R by REINFORCE on films, where every segment has its own reward.

    The reward of an event is that of its picks as picks of its clip, 0 without any; in a quiet stretch a pick only has
    its price. The actions in a segment are credited with its reward minus the mean of the film's other samples.
    """
    samples = config.reinforcement.samples
    sampled = picknet.walk(films.glances, films.counts, samples=samples, generator=generator)
    with torch.no_grad():
        picked, num_picks = films.picked_of_clips(sampled.picked, config.video.num_frames)
        clips = films.clips.repeat_interleave(samples, dim=0)
        shown = (clips >= 0) & picked.any(2)
        language, diversity = torch.zeros_like(num_picks), torch.zeros_like(num_picks)
        language[shown] = environment.language_rewards(clips[shown], picked[shown], max_words=config.text.max_words)
        pooled = environment.pooled[clips[shown]].float()
        diversity[shown] = visual_diversity(config.reward)(pooled, picked[shown])
        reward = config.reward.language_weight * language + config.reward.diversity_weight * diversity
        reward = reward - config.reward.price * num_picks
        advantage = leave_one_out(reward.view(len(films), samples, -1)).flatten(0, 1)
        advantage = advantage.gather(1, films.segments.repeat_interleave(samples, dim=0))
    loss = -(advantage * sampled.log_probabilities).sum(1).mean()
    num_events = (clips >= 0).sum().clamp(min=1)
    return loss, {
        "reward": reward.sum() / num_events,
        "language": language.sum() / num_events,
        "diversity": diversity.sum() / num_events,
        "picks": num_picks.sum() / num_events,
    }


def leave_one_out(rewards: Tensor) -> Tensor:
    """rewards: (clips, samples, …) -> each minus the mean of the clip's other samples"""
    samples = rewards.shape[1]
    return rewards - (rewards.sum(1, keepdim=True) - rewards) / (samples - 1)


VAL_FILMS = 32
"""Films that a policy is validated on, made of the validation clips."""


def with_films(
    validate: Callable[[Network], dict[str, float]], split: FeatureSplit, config: Config
) -> Callable[[Network], dict[str, float]]:
    """Also measure, on films, the share of events with a pick (%), and picks an event, those in quiet ones included."""
    chance = np.random.default_rng([config.seed, VAL_FILMS])
    films = make_films(
        split.glances,
        split.counts,
        num_films=VAL_FILMS,
        num_frames=2 * config.reinforcement.film_frames,
        chance=chance,
    )

    @torch.no_grad()
    def validate_both(network: Network) -> dict[str, float]:
        assert isinstance(network.picknet, RatePickNet)
        picked = network.picknet.walk(films.glances, films.counts, spread=False).picked
        _, num_picks = films.picked_of_clips(picked, config.video.num_frames)
        events = films.clips >= 0
        found, picks = (num_picks[events] > 0).float().mean(), num_picks.sum() / events.sum().clamp(min=1)
        return validate(network) | {"val_found": 100 * float(found), "val_event_picks": float(picks)}

    return validate_both


@torch.no_grad()
def validation(
    network: Network, data: Data[Any], config: Config, picked: Tensor, *, limited: bool = True
) -> dict[str, float]:
    """CIDEr (×100) of greedy captions of the validation clips from their picked frames. picked: (clips, frames) bool

    The best epoch is the one with the highest `score`: CIDEr, but with `limited`, any epoch whose mean number of picks
    is within the limits is better than one outside.
    """
    network.eval()
    clips = torch.arange(len(data.val.clips), device=data.device)
    words = network.decoder.write(
        network.encoder(*data.val.picked_features(network.cnn, clips, picked)),
        max_words=config.text.max_words,
        first_words=first_words(data.val, clips, data.vocabulary),
        never_written=data.vocabulary.never_written,
    )
    names = [clip.name for clip in data.val.clips]
    scores = language_reward(data.val_cider, data.vocabulary, names, words)
    cider, num_picks = 100 * float(scores.mean()), float(picked.sum(1).float().mean())
    within = not limited or config.reward.min_picks <= num_picks <= config.reward.max_picks_floor
    return {"val_cider": cider, "val_picks": num_picks, "score": cider if within else cider - OUT_OF_LIMITS}


def validation_by_own_picks(data: Data[FeatureSplit], config: Config) -> Callable[[Network], dict[str, float]]:
    """A function that validates a network on the picks of its own PickNet."""
    return lambda network: validation(network, data, config, greedy_picks(network, data.val))


@torch.no_grad()
def greedy_picks(network: Network, split: FeatureSplit) -> Tensor:
    """The picks of inference, without sampling. -> (clips, frames) bool"""
    return network.picknet.walk(split.glances, split.counts).picked


def all_frames(counts: Tensor, num_frames: int) -> Tensor:
    """counts: (clips,) -> (clips, frames) bool: all frames of each clip, without padding"""
    return torch.arange(num_frames, device=counts.device) < counts[:, None]


def evenly(counts: Tensor, num_frames: int, num_picks: int) -> Tensor:
    """The centres of `num_picks` equal parts of each clip. -> (clips, frames) bool"""
    centres = torch.arange(num_picks, device=counts.device) + 0.5
    positions = (centres * counts[:, None] / num_picks).long()
    return torch.zeros(len(counts), num_frames, dtype=torch.bool, device=counts.device).scatter_(1, positions, True)


def random_subsets(counts: Tensor, num_frames: int, sizes: Tensor, generator: torch.Generator) -> Tensor:
    """A random subset of each clip's frames. counts, sizes: (clips,) -> (clips, frames) bool"""
    draws = torch.rand(len(counts), num_frames, generator=generator, device=counts.device)
    draws = draws.masked_fill(~all_frames(counts, num_frames), 2.0)  # padding is ranked last
    ranks = draws.argsort(1).argsort(1)
    return ranks < sizes[:, None]
