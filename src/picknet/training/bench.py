"""Trained systems on one bench: what each says of the same clips from its own frames, and from the picks of others."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from picknet.config import Config, load_config
from picknet.data import BadData
from picknet.data.split import DataFolder, Split
from picknet.model.folder import find_model
from picknet.text import Vocabulary
from picknet.training.batches import first_words
from picknet.training.export import load_network, round_to_half
from picknet.training.features import FeatureSplit, extract_features
from picknet.training.folds import Fold, fold_splits, official_splits
from picknet.training.network import Network
from picknet.training.runs import BadRun, checkpoint, load_best, read_part, trained_epochs
from picknet.training.stages import all_frames, evenly, greedy_picks


@dataclass(frozen=True)
class Described:
    """The captions of a trained system from one choice of frames."""

    system: str
    run: str
    """Its run folder, as named."""
    seed: int
    epochs: int
    """That it was trained for."""
    frames: str
    """Whose choice: own, uniform, picknet or all."""
    mean_frames: float
    """Frames of a clip, and so passes of the CNN."""
    num_parameters: int
    """Of its encoder and decoder, without the CNN."""
    trained_on: str
    """Which frames of a clip it was trained on."""
    captions: dict[str, str]
    """By the clip's name."""


@dataclass(frozen=True)
class Bench:
    """The clips that systems describe: the validation clips of their runs, by official splits or by folds."""

    data: tuple[DataFolder, ...]
    cache: Path
    """Of features, as in training."""
    device: torch.device
    picker: str | None = None
    """The model whose PickNet picks; None: the shipped one."""

    def describe(
        self, runs: Sequence[Path], *, on_run: Callable[[Path], None] = lambda run: None
    ) -> tuple[list[Described], dict[str, tuple[str, ...]]]:
        """What each run says of its clips from each choice of frames, and what people say of them, by the clip's name.

        `on_run` is called before each run.
        """
        picknet, _, of_picker = load_network(find_model(self.picker)[1])
        picknet.to(self.device).eval()
        splits: dict[tuple[object, ...], FeatureSplit] = {}
        described: list[Described] = []
        for run in runs:
            on_run(run)
            network, vocabulary, config = load_run(run, self.device)
            clips, model = self._clips(run, config), config.model
            key = (model.cnn, model.image_size, model.grid, config.video.num_frames, clips.clips)
            if key not in splits:
                # The picking PickNet alone sees glances, and the run's own may see others.
                model = replace(model, glance=of_picker.model.glance)
                splits[key] = self._features(network, replace(config, model=model), clips)
            described += self._of_run(run, network, vocabulary, config, splits[key], picks_of(picknet, splits[key]))
        return described, {clip.name: clip.captions for split in splits.values() for clip in split.clips}

    def _clips(self, run: Path, config: Config) -> Split:
        """The clips that a run was validated on. It is an error if the data folders now give others."""
        fold, styles = _fold_of(run), config.text.styles
        both = fold_splits(self.data, fold, styles=styles) if fold else official_splits(self.data, styles=styles)
        split, names = both[1], {clip.name for clip in both[1].clips}
        trained, used, unreadable = _listed_clips(run)
        if others := sorted((names - used - unreadable) | (used - names)):
            leaked = sorted(names & trained)
            example = f"{leaked[0]}, which it was trained on" if leaked else others[0]
            raise BadData(
                f"{run}: the data folders have other validation clips than its clips.json, such as {example}; name the "
                "folders that it was trained on, as they were and in the same order"
            )
        return replace(split, clips=tuple(clip for clip in split.clips if clip.name in used))

    def _features(self, network: Network, config: Config, clips: Split) -> FeatureSplit:
        found = extract_features(clips, network.cnn, config, cache=self.cache)
        if len(found.clips) < len(clips.clips):
            lost = found.missing[-1]
            raise BadData(f"{lost.name}: can no longer be read ({lost.reason}), and a run was validated on this clip")
        return found.to(self.device)

    def _of_run(
        self,
        run: Path,
        network: Network,
        vocabulary: Vocabulary,
        config: Config,
        split: FeatureSplit,
        picks: Tensor,
    ) -> Iterator[Described]:
        num_frames, stage = config.video.num_frames, config.supervision
        every = all_frames(split.counts, num_frames)
        own = evenly(split.counts, num_frames, round((stage.min_frames + stage.max_frames) / 2))
        choices = {
            "own": own if stage.min_frames else every,
            "uniform": evenly_as_many(picks, split.counts),
            "picknet": picks,
        }
        trained_on = "all frames"
        if stage.min_frames:
            choices["all"] = every
            few = sorted({stage.min_frames, stage.max_frames})
            trained_on = f"{' to '.join(map(str, few))} frames"
        parameters = {id(p): p for part in (network.encoder, network.decoder) for p in part.parameters()}
        for frames, picked in choices.items():
            yield Described(
                system=config.model.system,
                run=str(run),
                seed=config.seed,
                epochs=trained_epochs(run, "supervision"),
                frames=frames,
                mean_frames=float(picked.sum(1).float().mean()),
                num_parameters=sum(p.numel() for p in parameters.values()),
                trained_on=trained_on,
                captions=captions(network, vocabulary, config, split, picked),
            )


def load_run(run: Path, device: torch.device) -> tuple[Network, Vocabulary, Config]:
    """The network of a run as far as it has come."""
    if not checkpoint(run, "supervision", "best").exists():
        raise BadRun(f"{run}: not a run folder with a checkpoint of supervision")
    config, vocabulary = load_config(run / "config.toml"), Vocabulary.load(run / "words.txt")
    if config.supervision.cnn_learning_rate:
        raise BadRun(f"{run}: its CNN was trained; the systems of a bench share one with fixed weights")
    network = Network(config.model, len(vocabulary))
    round_to_half(network.cnn)  # as in training, so that its features are found in the cache
    load_best(run, "supervision", network)
    return network.to(device).eval(), vocabulary, config


@torch.no_grad()
def captions(
    network: Network, vocabulary: Vocabulary, config: Config, split: FeatureSplit, picked: Tensor
) -> dict[str, str]:
    """The captions that a system writes in validation, from picked frames. picked: (clips, frames) bool"""
    clips = torch.arange(len(split.clips), device=picked.device)
    words = network.decoder.write(
        network.encoder(*split.picked_features(None, clips, picked)),
        max_words=config.text.max_words,
        first_words=first_words(split, clips, vocabulary),
        never_written=vocabulary.never_written,
    )
    return {clip.name: vocabulary.decode(ids) for clip, ids in zip(split.clips, words.tolist(), strict=True)}


def picks_of(picknet: Network, split: FeatureSplit) -> Tensor:
    """PickNet's picks, and the middle frame of a clip in which it picks nothing. -> (clips, frames) bool"""
    picked = greedy_picks(picknet, split)
    return torch.where(picked.any(1, keepdim=True), picked, evenly(split.counts, picked.shape[1], 1))


def _fold_of(run: Path) -> Fold | None:
    fold = read_part(run, "origin.json").get("fold")
    return Fold.parse(fold) if fold else None


def _listed_clips(run: Path) -> tuple[set[str], set[str], set[str]]:
    """The names of the clips that a run was trained on, validated on, and could not read of those to validate on."""
    parts = read_part(run, "clips.json")
    try:
        train, val = parts["train"], parts["val"]
        return set(train["used"]), set(val["used"]), {clip["name"] for clip in val["missing"]}
    except (KeyError, TypeError) as error:
        raise BadRun(f"{run}: its clips.json does not list its clips; train it again") from error


def evenly_as_many(picked: Tensor, counts: Tensor) -> Tensor:
    """As many frames of each clip as are picked, evenly spaced: the centres of equal parts. -> (clips, frames) bool"""
    sizes = picked.sum(1, keepdim=True)
    numbers = torch.arange(picked.shape[1], device=picked.device)
    positions = ((numbers + 0.5) * counts[:, None] / sizes).long()
    rows, columns = (numbers < sizes).nonzero(as_tuple=True)
    even = torch.zeros_like(picked)
    even[rows, positions[rows, columns]] = True
    return even
