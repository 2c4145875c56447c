"""The paper's three stages, supervision, reinforcement and adaptation, one beyond it, and what runs them."""

import dataclasses
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from picknet.config import CaptioningConfig, Config, load_config
from picknet.datasets import BadData, Dataset, Split, load_split
from picknet.export import export, load_network
from picknet.features import SeenSplit, see
from picknet.files import write_text
from picknet.metrics import Cider
from picknet.model import Network, gather_picked
from picknet.rewards import language_reward, max_picks, total_reward, visual_diversity
from picknet.runs import STAGES, BadRun, Report, Run, Stage, Step, TrainEpoch, card, claim, take_best
from picknet.text import BOS, EOS, NEVER_WRITTEN, PAD, UNK, Vocabulary, tokenise

OUT_OF_LIMITS = 1000.0
"""More than any CIDEr: what an epoch's score loses when its picks leave the limits."""

LENGTH_BLUR = 4.0
"""Captions whose lengths differ by less than this many words are mixed freely in batches."""


@dataclass(frozen=True)
class Data:
    """What a stage learns from, all of it on the training device."""

    train: SeenSplit
    val: SeenSplit
    vocabulary: Vocabulary
    words: Tensor
    """(captions, length): <bos> … <eos>, padded: every caption of the training split."""
    lengths: np.ndarray[Any, np.dtype[np.int64]]
    """(captions,): words of each caption and <eos>, which counts in the loss."""
    owners: np.ndarray[Any, np.dtype[np.int64]]
    """(captions,): the clip each caption belongs to."""
    train_cider: Cider
    """Document frequencies of the whole training split: a batch of its own would score everything 0."""
    val_cider: Cider
    device: torch.device


def supervision(network: Network, data: Data, config: Config, run: Run) -> None:
    """Stage 1: the Encoder-Decoder learns to write captions, by cross entropy with scheduled sampling."""
    stage = config.supervision
    trained = (network.encoder, network.decoder)

    def batch_loss(batch: "CaptionBatch", generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        counts = data.train.counts[batch.clips]
        if stage.min_frames:
            kept = random_subsets(counts, config.video.num_frames, stage.min_frames, stage.max_frames, generator)
        else:
            kept = all_frames(counts, config.video.num_frames)
        loss = cross_entropy(network, data, batch, kept, label_smoothing=stage.label_smoothing)
        return loss, {"loss": loss.detach()}

    def validate(candidate: Network) -> dict[str, float]:
        num_picks = round((stage.min_frames + stage.max_frames) / 2) if stage.min_frames else config.video.num_frames
        picked = evenly(data.val.counts, config.video.num_frames, num_picks)
        return validation(candidate, data, config, picked, limited=False)

    run.stage("supervision", network, trained, caption_epochs(data, stage, batch_loss), validate)


def reinforcement(network: Network, data: Data, config: Config, run: Run) -> None:
    """Stage 2: the Encoder-Decoder is the environment, held fixed; PickNet learns from its rewards by REINFORCE."""
    stage = config.reinforcement

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        network.eval()
        most = max_picks(config.reward, num_frames=config.video.num_frames, progress=epoch / stage.epochs)
        for clips in clip_batches(data, stage.batch_size, order):
            loss, _, facts = policy_loss(network, data, config, clips, most, generator, samples=stage.samples)
            step(loss, facts)

    run.stage("reinforcement", network, (network.picknet,), train_epoch, validation_by_own_picks(data, config))


def adaptation(network: Network, data: Data, config: Config, run: Run) -> None:
    """Stage 3: both learn together, L_X + L_R; PickNet's picks are taken as given when the captioner learns."""
    stage = config.adaptation

    def batch_loss(batch: "CaptionBatch", generator: torch.Generator) -> tuple[Tensor, dict[str, Tensor]]:
        network.eval()  # rewards are measured as captions are used: without dropout
        reinforced, picked, facts = policy_loss(network, data, config, batch.clips, most, generator, samples=1)
        network.train()
        captioned = cross_entropy(network, data, batch, picked, label_smoothing=stage.label_smoothing)
        return captioned + reinforced, facts | {"loss": captioned.detach()}

    # The limits have shrunk in stage 2 and stay there.
    most = max_picks(config.reward, num_frames=config.video.num_frames, progress=1.0)

    trained = (network.picknet, network.encoder, network.decoder)
    train_epoch = caption_epochs(data, stage, batch_loss)
    run.stage("adaptation", network, trained, train_epoch, validation_by_own_picks(data, config))


def refinement(network: Network, data: Data, config: Config, run: Run) -> None:
    """Beyond the paper: the captioner learns from the CIDEr of sentences it samples itself; PickNet is held fixed."""
    stage = config.refinement

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        network.eval()
        for clips in clip_batches(data, stage.batch_size, order):
            step(*sentence_loss(network, data, config, clips, generator, samples=stage.samples))

    trained = (network.encoder, network.decoder)
    run.stage("refinement", network, trained, train_epoch, validation_by_own_picks(data, config))


def cross_entropy(
    network: Network, data: Data, batch: "CaptionBatch", picked: Tensor, *, label_smoothing: float
) -> Tensor:
    """L_X, a word: the picked frames of a batch's clips are encoded once and captioned several times."""
    features, counts = gather_picked(data.train.features[batch.clips], picked)
    video = network.encoder(features, counts)[batch.clip_of_caption]
    words = data.words[batch.captions, : batch.length + 1]
    logits = network.decoder(video, words[:, :-1], feed_back=batch.feed_back)
    return nn.functional.cross_entropy(
        logits.flatten(0, 1), words[:, 1:].flatten(), ignore_index=PAD, label_smoothing=label_smoothing
    )


def policy_loss(
    network: Network,
    data: Data,
    config: Config,
    clips: Tensor,
    most_picks: float,
    generator: torch.Generator,
    *,
    samples: int,
) -> tuple[Tensor, Tensor, dict[str, Tensor]]:
    """L_R by REINFORCE, −(r(aˢ) − r(â)) log p(aˢ): the greedy picks' reward is the self-critical baseline.

    clips: (batch,) -> the loss, the sampled picks: (batch × samples, frames), and what was measured
    """
    glances, counts = data.train.glances[clips], data.train.counts[clips]
    many = torch.arange(len(clips), device=data.device).repeat_interleave(samples)
    sampled = network.picknet.walk(glances, counts, samples=samples, generator=generator)
    with torch.no_grad():
        greedy = network.picknet.walk(glances, counts).picked
        picked = torch.cat([sampled.picked, greedy])
        of = torch.cat([clips[many], clips])
        features = data.train.features[of]
        words = network.decoder.write(
            network.encoder(*gather_picked(features, picked)), max_words=config.text.max_words
        )
        names = [data.train.clips[i].name for i in of.tolist()]
        language = language_reward(data.train_cider, data.vocabulary, names, words)
        diversity = visual_diversity(config.reward)(features, picked)
        num_picks = picked.sum(1)
        reward = total_reward(
            config.reward, language=language, diversity=diversity, num_picks=num_picks, most_picks=most_picks
        )
        sample_reward, greedy_reward = reward[: len(many)], reward[len(many) :]
        advantage = sample_reward - greedy_reward[many]
    loss = -(advantage * sampled.log_probability).mean()
    return loss, sampled.picked, {
        "reward": sample_reward.mean(),
        "language": language[: len(many)].mean(),
        "diversity": diversity[: len(many)].mean(),
        "picks": num_picks[: len(many)].float().mean(),
    }


def sentence_loss(
    network: Network, data: Data, config: Config, clips: Tensor, generator: torch.Generator, *, samples: int
) -> tuple[Tensor, dict[str, Tensor]]:
    """−(r − b) log p of sampled sentences, a word; b is the mean reward of the same clip's other sentences."""
    with torch.no_grad():
        picked = network.picknet.walk(data.train.glances[clips], data.train.counts[clips], generator=generator).picked
    video = network.encoder(*gather_picked(data.train.features[clips], picked)).repeat_interleave(samples, dim=0)
    words = network.decoder.write(video.detach(), max_words=config.text.max_words, generator=generator)
    names = [data.train.clips[i].name for i in clips.tolist() for _ in range(samples)]
    reward = language_reward(data.train_cider, data.vocabulary, names, words)
    by_clip = reward.view(-1, samples)
    advantage = (by_clip - (by_clip.sum(1, keepdim=True) - by_clip) / (samples - 1)).flatten()
    given = nn.functional.pad(words[:, :-1], (1, 0), value=BOS)
    logits = network.decoder(video, given)
    logits[:, :, NEVER_WRITTEN] = -torch.inf  # as they were sampled
    log_probability = -nn.functional.cross_entropy(
        logits.flatten(0, 1), words.flatten(), ignore_index=PAD, reduction="none"
    ).view_as(words)
    loss = -(advantage[:, None] * log_probability).sum() / (words != PAD).sum()
    return loss, {"loss": loss.detach(), "language": reward.mean(), "picks": picked.sum(1).float().mean()}


@torch.no_grad()
def validation(
    network: Network, data: Data, config: Config, picked: Tensor, *, limited: bool = True
) -> dict[str, float]:
    """CIDEr (×100) of greedy captions of the validation clips from their picked frames.

    `score` is what the best epoch is chosen by: CIDEr, but any epoch that keeps to the limits on picks goes first.
    """
    network.eval()
    video = network.encoder(*gather_picked(data.val.features, picked))
    words = network.decoder.write(video, max_words=config.text.max_words)
    names = [clip.name for clip in data.val.clips]
    scores = language_reward(data.val_cider, data.vocabulary, names, words)
    cider, num_picks = 100 * float(scores.mean()), float(picked.sum(1).float().mean())
    within = not limited or config.reward.min_picks <= num_picks <= config.reward.max_picks_floor
    return {"val_cider": cider, "val_picks": num_picks, "score": cider if within else cider - OUT_OF_LIMITS}


def validation_by_own_picks(data: Data, config: Config) -> Callable[[Network], dict[str, float]]:
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


def random_subsets(counts: Tensor, num_frames: int, least: int, most: int, generator: torch.Generator) -> Tensor:
    """A random set of `least` to `most` frames of every clip. -> (clips, frames) bool"""
    sizes = torch.randint(least, most + 1, counts.shape, generator=generator, device=counts.device)
    lots = torch.rand(len(counts), num_frames, generator=generator, device=counts.device)
    lots = lots.masked_fill(~all_frames(counts, num_frames), 2.0)  # frames a clip does not have come last
    ranks = lots.argsort(1).argsort(1)
    return ranks < torch.minimum(sizes, counts)[:, None]


def teacher_forcing_probability(stage: CaptioningConfig, epoch: int) -> float:
    """Scheduled sampling: an inverse sigmoid that falls from nearly 1 to its floor."""
    k = stage.teacher_forcing_k
    return max(stage.teacher_forcing_floor, k / (k + math.exp(min(epoch / k, 700.0))))


def clip_batches(data: Data, batch_size: int, order: np.random.Generator) -> Iterator[Tensor]:
    """Every training clip once, in random order: (batch,) numbers of clips"""
    clips = order.permutation(len(data.train.clips))
    for start in range(0, len(clips), batch_size):
        yield torch.from_numpy(clips[start : start + batch_size]).to(data.device)


@dataclass(frozen=True)
class CaptionBatch:
    """Captions to learn, and the clips they describe, each of which is encoded once."""

    captions: Tensor
    clips: Tensor
    clip_of_caption: Tensor
    length: int
    feed_back: tuple[bool, ...]


def caption_batches(
    data: Data, stage: CaptioningConfig, *, epoch: int, order: np.random.Generator
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
    groups = [groups[i] for i in np.argsort([about[group].max() for group in groups])]
    per_batch = max(1, stage.batch_size // stage.captions_per_video)
    for start in order.permutation(np.arange(0, len(groups), per_batch)):
        chosen = groups[start : start + per_batch]
        captions = np.concatenate(chosen)
        length = int(data.lengths[captions].max())
        clip_of_caption = np.repeat(np.arange(len(chosen)), [len(group) for group in chosen])
        yield CaptionBatch(
            captions=torch.from_numpy(captions).to(data.device),
            clips=torch.tensor([data.owners[group[0]] for group in chosen], device=data.device),
            clip_of_caption=torch.from_numpy(clip_of_caption).to(data.device),
            length=length,
            feed_back=tuple((order.random(length) >= teacher).tolist()),  # one draw for each time step
        )


def caption_epochs(
    data: Data,
    stage: CaptioningConfig,
    batch_loss: Callable[[CaptionBatch, torch.Generator], tuple[Tensor, dict[str, Tensor]]],
) -> TrainEpoch:
    """An epoch over all captions, given the loss of a batch of them."""

    def train_epoch(epoch: int, step: Step, order: np.random.Generator, generator: torch.Generator) -> None:
        for batch in caption_batches(data, stage, epoch=epoch, order=order):
            step(*batch_loss(batch, generator))

    return train_epoch


def train(
    config: Config,
    *,
    data: str | Path,
    out: str | Path,
    dataset: Dataset = "msvd",
    stages: Sequence[Stage] = STAGES,
    start: str | Path | None = None,
    resume: bool = False,
    device: str = "auto",
    cache: str | Path | None = None,
    report: Report = lambda stage, done, total, facts: None,
    seen: Callable[[str, int, int], None] = lambda split, done, total: None,
    note: Callable[[str], None] = lambda text: None,
) -> Path:
    """Run the stages on a data folder and export the result to `out`/model; returns that model folder.

    `start` is a model folder to go on from (its words and weights), for fine-tuning; `resume` continues a run
    that was stopped. Features are kept in `cache`, by default beside the run folder.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    torch.use_deterministic_algorithms(True, warn_only=True)
    target = _device(device)
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    folder = Path(out)
    train_split, val_split = (load_split(data, dataset=dataset, split=name) for name in ("train", "val"))
    origin = {"dataset": dataset, "from": None if start is None else str(start)}
    claim(folder, config, origin, resume=resume)
    torch.manual_seed(config.seed)
    if start is None:
        vocabulary = _vocabulary(config, data, dataset)
        network = Network(config.model, len(vocabulary))
    else:
        network, vocabulary = _extended(start, config, [c for clip in train_split.clips for c in clip.captions])
    network.to(target)
    vocabulary.save(folder / "words.txt")
    cache_folder = Path(cache) if cache else folder.parent / "feature-cache"
    parts = []
    for split in (train_split, val_split):
        part = see(split, network.cnn, config, cache=cache_folder, tick=_ticker(seen, split))
        if part.missing:
            told = f"{len(part.clips)} clips of the {split.name} split, {len(part.missing)} missing"
            note(f"{told} (clips.json lists them; first: {part.missing[0].name}: {part.missing[0].reason})")
        parts.append(part)
    _write_clips(folder, (train_split, val_split), parts)
    prepared = prepare(parts[0], parts[1], vocabulary, config, target)

    run = Run(folder, config, target, report)
    run.forget_unfinished_epochs()
    for name, stage in zip(STAGES, (supervision, reinforcement, adaptation, refinement), strict=True):
        if name in stages:
            stage(network, prepared, config, run)
        else:
            take_best(folder, name, network)
    export(network, vocabulary, config, folder / "model", card=card(folder))
    return folder / "model"


def export_run(run: str | Path, out: str | Path) -> None:
    """Write the best model so far of a run as a model folder; the run need not have ended."""
    folder = Path(run)
    if not (folder / "checkpoints").is_dir():
        raise BadRun(f"{folder}: holds no run that has come as far as a checkpoint")
    config = load_config(folder / "config.toml")
    vocabulary = Vocabulary.load(folder / "words.txt")
    if (folder / "model").is_dir():
        network, _, _ = load_network(folder / "model")
    elif json.loads((folder / "origin.json").read_text(encoding="utf-8"))["from"]:
        raise BadRun(f"{folder}: was begun from another model and has not ended; go on with --resume first")
    else:
        network = Network(config.model, len(vocabulary))
        for name in STAGES:
            take_best(folder, name, network)
    export(network, vocabulary, config, out, card=card(folder))


def prepare(train: SeenSplit, val: SeenSplit, vocabulary: Vocabulary, config: Config, device: torch.device) -> Data:
    """Captions as word ids, references as CIDEr wants them, everything on the device."""
    references = [[tokenise(caption) for caption in clip.captions] for clip in train.clips]
    ids, owners = [], []
    for owner, captions in enumerate(references):
        for tokens in captions:
            encoded = vocabulary.encode(tokens, max_words=config.text.max_words)
            if any(word != UNK for word in encoded):  # a caption with no known word teaches nothing
                ids.append(encoded)
                owners.append(owner)
    if not ids:
        raise BadData("no caption of the training split has a word of the vocabulary")
    words = np.full((len(ids), max(map(len, ids)) + 2), PAD, np.int64)
    words[:, 0] = BOS
    for row, encoded in zip(words, ids, strict=True):
        row[1 : len(encoded) + 2] = [*encoded, EOS]
    val_references = {clip.name: [tokenise(caption) for caption in clip.captions] for clip in val.clips}
    return Data(
        train=train.to(device),
        val=val.to(device),
        vocabulary=vocabulary,
        words=torch.from_numpy(words).to(device),
        lengths=np.array([len(encoded) + 1 for encoded in ids]),
        owners=np.array(owners),
        train_cider=Cider({clip.name: refs for clip, refs in zip(train.clips, references, strict=True)}),
        val_cider=Cider(val_references),
        device=device,
    )


def _device(name: str) -> torch.device:
    possible = ["cpu"]
    if torch.backends.mps.is_available():
        possible.insert(0, "mps")
    if torch.cuda.is_available():
        possible.insert(0, "cuda")
    if name == "auto":
        return torch.device(possible[0])
    if name not in possible:
        raise BadRun(f"--device {name}: not on this machine (possible: {', '.join(possible)})")
    return torch.device(name)


def _vocabulary(config: Config, data: str | Path, dataset: Dataset) -> Vocabulary:
    captions = (
        tokenise(caption)
        for name in config.text.vocabulary_splits
        for clip in load_split(data, dataset=dataset, split=name).clips
        for caption in clip.captions
    )
    return Vocabulary.from_captions(captions, min_count=config.text.min_count)


def _extended(start: str | Path, config: Config, captions: Sequence[str]) -> tuple[Network, Vocabulary]:
    """The network of a model folder, with rows added for frequent words it does not know yet."""
    old, vocabulary, before = load_network(start)
    for name in ("cnn", "image_size", "embedding_size", "state_size", "picker_hidden", "output_gate"):
        has, wanted = getattr(before.model, name), getattr(config.model, name)
        if has != wanted:
            raise BadRun(f"{start}: its model.{name} is {has}, the config's is {wanted}; leave it as the model has it")
    known = set(vocabulary.words)
    frequent = Vocabulary.from_captions((tokenise(caption) for caption in captions), min_count=config.text.min_count)
    grown = Vocabulary(vocabulary.words + tuple(word for word in frequent.words if word not in known))
    network = Network(config.model, len(grown), pretrained=False)
    weights = old.state_dict()
    for name in ("decoder.embed.weight", "decoder.output.weight"):
        fresh = network.state_dict()[name].clone()
        fresh[: len(vocabulary)] = weights[name]
        weights[name] = fresh
    network.load_state_dict(weights)
    return network, grown


def _ticker(seen: Callable[[str, int, int], None], split: Split) -> Callable[[], None]:
    done = count(1)
    return lambda: seen(split.name, next(done), len(split.clips))


def _write_clips(folder: Path, splits: Sequence[Split], parts: Sequence[SeenSplit]) -> None:
    """Which clips the run learned from, and which were missing and why."""
    clips = {
        split.name: {
            "used": [clip.name for clip in part.clips],
            "missing": [dataclasses.asdict(missing) for missing in part.missing],
        }
        for split, part in zip(splits, parts, strict=True)
    }
    write_text(folder / "clips.json", json.dumps(clips, indent=2) + "\n")
