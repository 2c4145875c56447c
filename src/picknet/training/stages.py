"""The paper's three stages, supervision, reinforcement and adaptation, and their losses."""

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from picknet.config import CaptioningConfig, Config
from picknet.training.batches import CaptionBatch, ClipBatch, Data, caption_epochs, clip_batches, first_words
from picknet.training.features import Crop, FeatureSplit, PixelSplit
from picknet.training.films import FilmBatch, make_clips, make_films
from picknet.training.judges import Environment
from picknet.training.learner import Figures, Step
from picknet.training.network import Network
from picknet.training.policies import Policy, RatePickNet, draw_chances
from picknet.training.replay import Replayed, ReplayedLoss
from picknet.training.rewards import language_reward, max_picks, total_reward, visual_diversity
from picknet.training.runs import Run
from picknet.training.systems.parts import Memory

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
    fixed_cnn_loss = CaptioningLoss(network, data, stage)

    def batch_loss(batch: CaptionBatch, generator: torch.Generator) -> tuple[Tensor, Figures]:
        counts = data.train.counts[batch.clips]
        picked = random_subsets(counts, config.video.num_frames, batch.num_frames, generator)
        if isinstance(data.train, FeatureSplit):
            return fixed_cnn_loss(batch, picked), {}
        size = round(stage.crop * config.model.image_size)
        source = dataclasses.replace(data.train, crop=Crop(size, generator, batch.frame_capacity if compiled else 0))
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
    policy = ReplayedPolicy.of(network.picknet)

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        network.eval()
        most = max_picks(config.reward, num_frames=config.video.num_frames, progress=epoch / stage.epochs)

        def batch_loss(batch: ClipBatch) -> tuple[Tensor, Figures]:
            sample = sample_picks(policy, environment, config, batch.clips, generator, samples=stage.samples)
            return policy_loss(policy, environment, config, sample, most)

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
                step(some, lambda part: film_loss(policy, environment, config, part, generator))

    validate = validation_by_own_picks(data, config)
    if stage.films:
        validate = with_films(validate, data.val, config)
    run.stage("reinforcement", network, (network.picknet,), film_epoch if stage.films else train_epoch, validate)


def adaptation(network: Network, data: Data[FeatureSplit], config: Config, run: Run) -> None:
    """Stage 3: train PickNet and the Encoder-Decoder together on L_X + L_R.

    L_X has no gradient with respect to PickNet: the sampled picks are constants in it.
    """
    stage = config.adaptation

    environment, policy = Environment.of(network, data), ReplayedPolicy.of(network.picknet)
    captioning_loss = CaptioningLoss(network, data, stage)
    captioner = nn.ModuleList([network.encoder, network.decoder])  # without the CNN, whose many modules take time
    # N_max has shrunk in stage 2 and stays at its floor.
    most = max_picks(config.reward, num_frames=config.video.num_frames, progress=1.0)

    def batch_loss(batch: CaptionBatch, generator: torch.Generator) -> tuple[Tensor, Figures]:
        captioner.eval()  # rewards are those of inference, without dropout
        sample = sample_picks(policy, environment, config, batch.clips, generator, samples=1)
        captioner.train()
        of_captions = captioning_loss(batch, sample.picked[: sample.num_sampled], most=sample.most)
        # Captions are scored on the CPU, while a GPU still computes the gradients of L_X.
        of_picks, figures = policy_loss(policy, environment, config, sample, most)
        return of_captions + of_picks, figures | {"loss": of_captions.detach()}

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
    words = data.words[batch.captions, : batch.length + 1]
    memory = network.encoder(features, counts)
    if len(batch.captions) > len(batch.clips):  # otherwise each clip has one caption, in the same order
        memory = memory.of(batch.clip_of_caption)
    return _word_loss(network, data, memory, words, batch.feed_back, label_smoothing)


def _word_loss(
    network: Network,
    data: Data[Any],
    memory: Memory,
    words: Tensor,
    feed_back: Sequence[bool] | Tensor,
    label_smoothing: float,
) -> Tensor:
    return network.decoder.loss(
        memory,
        words,
        feed_back=feed_back,
        never_written=data.vocabulary.never_written,
        label_smoothing=label_smoothing,
    )


LENGTH_STEP, PICKS_STEP = 2, 4
"""On a GPU the captions of a batch are padded to a multiple of so many words, and picks to one of so many frames, so
that few shapes are recorded."""


class CaptioningLoss:
    """L_X with a fixed CNN: `cross_entropy` of captions from picked frames, replayed on a GPU."""

    def __init__(self, network: Network, data: Data[Any], stage: CaptioningConfig) -> None:
        self.network, self.data, self.label_smoothing = network, data, stage.label_smoothing
        self._feeds_back = stage.teacher_forcing_floor < 1
        self._replayed = ReplayedLoss(self._loss, (*network.encoder.parameters(), *network.decoder.parameters()))

    def __call__(self, batch: CaptionBatch, picked: Tensor, *, most: int | None = None) -> Tensor:
        """picked: (clips of the batch, frames) bool; most: picks of a clip, or more, by default all frames"""
        if not picked.is_cuda:
            features = self.data.train.picked_features(self.network.cnn, batch.clips, picked)
            return cross_entropy(self.network, self.data, batch, *features, label_smoothing=self.label_smoothing)
        length = min(_padded(batch.length, LENGTH_STEP), self.data.words.shape[1] - 1)
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
        # With a tensor the likeliest words are computed in every step, which takes time.
        own = feed_back.to(words.device) if self._feeds_back else ()
        return _word_loss(self.network, self.data, memory, words, own, self.label_smoothing)


class ReplayedPolicy(NamedTuple):
    """`Policy.walk` and `Policy.reinforce`, replayed on a GPU."""

    walk: Replayed
    reinforce: ReplayedLoss

    @staticmethod
    def of(picknet: Policy) -> "ReplayedPolicy":
        return ReplayedPolicy(Replayed(picknet.walk), ReplayedLoss(picknet.reinforce, picknet.parameters()))


class Sample(NamedTuple):
    """Sampled picks of clips, and captions from them."""

    clips: Tensor
    """(clips,)"""
    actions: Tensor
    """(clips × samples, frames) bool: the sampled picks; then, if their reward is the baseline, those of inference."""
    described: Tensor
    """The clip of each row of `actions`."""
    picked: Tensor
    """`actions`, but the middle frame where there is no pick."""
    captions: list[tuple[int, str]]
    """From `picked`: `Environment.captions`."""
    samples: int
    """Of each clip."""
    most: int | None
    """On a GPU: as many picks as any row has, or more."""

    @property
    def num_sampled(self) -> int:
        return len(self.clips) * self.samples


@torch.no_grad()
def sample_picks(
    policy: Policy | ReplayedPolicy,
    environment: Environment,
    config: Config,
    clips: Tensor,
    generator: torch.Generator,
    *,
    samples: int,
) -> Sample:
    """clips: (batch,). A captioner gets the middle frame of a sample without a pick."""
    glances, counts = environment.train.glances[clips], environment.train.counts[clips]
    with_greedy = config.reinforcement.baseline == "greedy" or samples == 1  # a single sample has no others
    actions = policy.walk(glances, counts, draw_chances(glances, samples, generator), and_greedy=with_greedy)
    described = clips.repeat_interleave(samples)
    if with_greedy:
        described = torch.cat([described, clips])
    middles = evenly(environment.train.counts[described], actions.shape[1], 1)
    picked = torch.where(actions.any(1, keepdim=True), actions, middles)
    most = _padded(int(picked.sum(1).max()), PICKS_STEP) if clips.is_cuda else None
    captions = environment.captions(described, picked, max_words=config.text.max_words, most=most)
    return Sample(clips, actions, described, picked, captions, samples, most)


def policy_loss(
    policy: Policy | ReplayedPolicy, environment: Environment, config: Config, sample: Sample, most_picks: float
) -> tuple[Tensor, Figures]:
    """L_R by REINFORCE, −(r(aˢ) − b) log p(aˢ), and figures to log.

    The baseline b is the reward of the greedy picks (self-critical, as in the paper), or the mean reward of the clip's
    other samples. A sample without a pick has the reward of too few picks, R⁻.
    """
    rows, train = slice(sample.num_sampled), environment.train
    with torch.no_grad():
        language, num_picks = environment.scores(sample.captions), sample.actions.sum(1)
        diversity = visual_diversity(config.reward)(environment.pooled[sample.described].float(), sample.picked)
        reward = total_reward(
            config.reward, language=language, diversity=diversity, num_picks=num_picks, most_picks=most_picks
        )
        if len(reward) > sample.num_sampled:
            advantage = reward[rows] - reward[sample.num_sampled :].repeat_interleave(sample.samples)
        else:
            advantage = leave_one_out(reward.view(-1, sample.samples)).flatten()
    loss = policy.reinforce(
        train.glances[sample.clips], train.counts[sample.clips], sample.actions[rows], advantage[:, None]
    )
    return loss, {
        "reward": reward[rows].mean(),
        "language": language[rows].mean(),
        "diversity": diversity[rows].mean(),
        "picks": num_picks[rows].float().mean(),
    }


def film_loss(
    policy: Policy | ReplayedPolicy,
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
    with torch.no_grad():
        actions = policy.walk(films.glances, films.counts, draw_chances(films.glances, samples, generator))
        picked, num_picks = films.picked_of_clips(actions, config.video.num_frames)
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
    loss = policy.reinforce(films.glances, films.counts, actions, advantage)
    num_events = (clips >= 0).sum().clamp(min=1)
    return loss, {
        "reward": reward.sum() / num_events,
        "language": language.sum() / num_events,
        "diversity": diversity.sum() / num_events,
        "picks": num_picks.sum() / num_events,
    }


def _padded(count: int, step: int) -> int:
    return -(-count // step) * step


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
        picked = network.picknet.walk(films.glances, films.counts, spread=False)
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
    return network.picknet.walk(split.glances, split.counts)


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
