"""A whole training: data folders in, the stages one after another, a model folder out."""

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import torch

from picknet.config import Config, load_config
from picknet.data import BadData, NoSplit
from picknet.data.split import DataFolder, Split, load_split, validated_on
from picknet.files import write_text
from picknet.text import BOS, Vocabulary, tokenise
from picknet.training.batches import Data, cider_of, prepare
from picknet.training.export import export, load_network
from picknet.training.features import BareSplit, SeenSplit, see
from picknet.training.network import Network
from picknet.training.pixels import store
from picknet.training.runs import STAGES, BadRun, Report, Run, Stage, card, claim, take_best
from picknet.training.stages import BY_STAGE, Bench, Judge, reinforcement

SHAPED_BY = (
    "cnn",
    "image_size",
    "grid",
    "embedding_size",
    "state_size",
    "attention_heads",
    "attention_hidden",
    "tied_words",
    "output_gate",
)
"""The settings that a captioner's weights only fit with."""


class Fold(NamedTuple):
    """One of several equal parts of the training clips, to validate on; the others are learned from."""

    number: int
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @staticmethod
    def parse(text: str) -> "Fold":
        """1/5 is the first of five."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) >= 2):
            raise BadRun(f"--fold {text}: expected as in 1/5, the first of five")
        return Fold(int(number), int(of))


def train(
    config: Config,
    *,
    data: Sequence[DataFolder],
    out: str | Path,
    stages: Sequence[Stage] = STAGES,
    start: str | Path | None = None,
    fold: Fold | None = None,
    judges: Sequence[str | Path] = (),
    resume: bool = False,
    device: str = "auto",
    cache: str | Path | None = None,
    report: Report = lambda stage, done, total, facts: None,
    seen: Callable[[str, int, int], None] = lambda split, done, total: None,
    note: Callable[[str], None] = lambda text: None,
    command: str | None = None,
) -> Path:
    """Run the stages on data folders and export the result to `out`/model; returns that model folder.

    `start` is a model folder to go on from (its words and weights), for fine-tuning. With a `fold`, training clips
    take the place of the validation split. `judges` are runs of folds, which reward PickNet on the clips they were
    validated on. `resume` continues a run that was stopped. Features, or pixels where the CNN learns, are kept in
    `cache`, by default beside the run folder. `command` is noted with the run.
    """
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is deterministic only with it
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.set_float32_matmul_precision("high")  # on a GPU: TF32
    target = _device(device)
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")
    folder = Path(out)
    styles = config.text.styles
    splits = fold_splits(data, fold, styles=styles) if fold else load_splits(data, note, styles=styles)
    origin = {
        "dataset": "+".join(part.dataset for part in data),
        "from": None if start is None else str(start),
        "fold": None if fold is None else str(fold),
        "judges": ", ".join(map(str, judges)) or None,
    }
    heard = [_heard_by(Path(judge)) for judge in judges]
    torch.manual_seed(config.seed)
    if start is None:
        named = ("train",) if fold else config.text.vocabulary_splits
        vocabulary = _vocabulary(config, named, splits[0], data)
        network = Network(config.model, len(vocabulary))
    else:
        network, vocabulary = _extended(start, config, splits[0])
    claim(folder, config, origin, resume=resume, command=command)
    network.to(target)
    if target.type == "cuda":
        network.cnn.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    vocabulary.save(folder / "words.txt")
    cache_folder = Path(cache) if cache else folder.parent / "feature-cache"
    sights: list[SeenSplit | BareSplit] = []
    pool: BareSplit | None = None
    if config.supervision.cnn_learning_rate:
        together = _together(splits)
        pool = _bare(together, config, cache_folder, target, _ticker(seen, together))
    for split in splits:
        if pool:
            sights.append(pool.of(split))
        else:
            sights.append(
                see(split, network.cnn, config, cache=cache_folder, tick=_ticker(seen, split)).to(target)
            )
        if missing := sights[-1].missing:
            told = f"{len(sights[-1].clips)} clips of the {split.name} split, {len(missing)} missing"
            note(f"{told} (clips.json lists them; first: {missing[0].name}: {missing[0].reason})")
    _write_clips(folder, splits, sights)
    if not judges:
        pool = None  # its frames are let go with the sights
    prepared: Data[Any] = prepare(sights[0], sights[1], vocabulary, config, target)
    del sights

    run = Run(folder, config, target, report, note)
    run.forget_unfinished_epochs()
    for name, stage in BY_STAGE.items():
        if name not in stages:
            take_best(folder, name, network)
        elif getattr(config, name).epochs:
            judged = name == "reinforcement" and judges
            if name != "supervision":
                # The CNN has learned all it will. Judges look at the training clips with their own.
                prepared = dataclasses.replace(prepared, val=_seen(prepared.val, network, config))
                if not judged:
                    prepared = dataclasses.replace(prepared, train=_seen(prepared.train, network, config))
            if judged:
                bench = _bench(dict(zip(judges, heard, strict=True)), splits[0], pool, config, cache_folder, target)
                reinforcement(network, prepared, config, run, bench)
            else:
                stage(network, prepared, config, run)
    export(network, vocabulary, config, folder / "model", card=card(folder))
    return folder / "model"


def load_splits(
    data: Sequence[DataFolder], note: Callable[[str], None], *, styles: bool = False
) -> tuple[Split, Split]:
    """The training and the validation clips of all data folders together; with styles, the first's validation clips."""
    train = [load_split(part.folder, dataset=part.dataset, split="train") for part in data]
    val, errors = [], []
    for part in data[:1] if styles else data:
        try:
            val.append(load_split(part.folder, dataset=part.dataset, split="val"))
        except NoSplit as error:
            errors.append(error)
    if not val:
        raise errors[0]
    for lacking in errors:
        note(f"not validated on: {lacking}")
    return _joined(train, styles=styles), _joined(val)


def fold_splits(data: Sequence[DataFolder], fold: Fold, *, styles: bool = False) -> tuple[Split, Split]:
    """The training clips without a fold of them, and that fold; with styles, a fold of the first data folder.

    A fold is a run of clips in the official order, since clips of one source video follow each other there.
    """
    trains = [load_split(part.folder, dataset=part.dataset, split="train") for part in data]
    whole, *beside = trains if styles else [_joined(trains)]
    first, last = (len(whole.clips) * number // fold.of for number in (fold.number - 1, fold.number))
    others = whole.clips[:first] + whole.clips[last:]
    if not others or first == last:
        raise BadData(f"fold {fold} of {len(whole.clips)} clips leaves nothing to learn from or to validate on")
    train = _joined([dataclasses.replace(whole, clips=others), *beside], styles=styles)
    return train, Split(whole.dataset, "val", whole.clips[first:last], ())


def _joined(splits: Sequence[Split], *, styles: bool = False) -> Split:
    """Several data sets as one; the clips' names then begin with their data set's."""
    if len(splits) == 1:
        return splits[0]
    clips, missing = [], []
    names = [split.dataset for split in splits]
    for number, split in enumerate(splits, start=1):
        # Two folders of one kind may have clips of one name, and scores are kept by name.
        prefix = split.dataset if names.count(split.dataset) == 1 else f"{split.dataset}{number}"
        style = split.dataset if styles and split.dataset != splits[0].dataset else None
        clips += [dataclasses.replace(clip, name=f"{prefix}/{clip.name}", style=style) for clip in split.clips]
        missing += [dataclasses.replace(clip, name=f"{prefix}/{clip.name}") for clip in split.missing]
    return Split(splits[0].dataset, splits[0].name, tuple(clips), tuple(missing))


def _together(splits: Sequence[Split]) -> Split:
    """All clips in the order of their files, each once and named by its file: the same for every fold of a split."""
    clips = {clip.path: dataclasses.replace(clip, name=str(clip.path)) for split in splits for clip in split.clips}
    names = " and ".join(split.name for split in splits)
    return Split(splits[0].dataset, names, tuple(clips[path] for path in sorted(clips)), ())


def _bare(
    split: Split, config: Config, cache: Path, device: torch.device, tick: Callable[[], None]
) -> BareSplit:
    """The frames of a split as bytes on the device."""
    stored = store(split, num_frames=config.video.num_frames, size=config.model.image_size, cache=cache, tick=tick)
    arrays = (stored.frames, stored.glances, stored.firsts, stored.counts)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")  # nothing writes to it
        frames, glances, firsts, counts = (torch.from_numpy(array).to(device) for array in arrays)
    return BareSplit(stored.clips, frames, glances, firsts, counts, stored.missing)


def _seen(sight: SeenSplit | BareSplit, network: Network, config: Config) -> SeenSplit:
    return sight.seen(network.cnn, config.video.num_frames) if isinstance(sight, BareSplit) else sight


def _bench(
    judges: Mapping[str | Path, set[str]],
    split: Split,
    pool: BareSplit | None,
    config: Config,
    cache: Path,
    device: torch.device,
) -> Bench:
    """The judges, and the clips of the split that each of them was validated on, by name.

    pool: the frames of these clips, where they are at hand.
    """
    seats, parts, judge_of = [], [], []
    for number, (folder, heard) in enumerate(judges.items()):
        network, vocabulary, settings = load_network(Path(folder) / "model")
        network.to(device).eval()
        clips = tuple(clip for clip in split.clips if clip.name in heard)
        if not clips:
            raise BadRun(f"{folder}: was validated on no clip of this training split, so it has nothing to judge")
        settings = dataclasses.replace(settings, video=config.video)
        judged = dataclasses.replace(split, clips=clips, missing=())
        if settings.supervision.cnn_learning_rate:
            if pool and settings.model.image_size == config.model.image_size:
                bare = pool.of(judged)
            else:
                bare = _bare(judged, settings, cache, device, lambda: None)
            part = bare.seen(network.cnn, config.video.num_frames)
        else:
            part = see(judged, network.cnn, settings, cache=cache).to(device)
        parts.append(part)
        judge_of += [number] * len(part.clips)
        seats.append(Judge(network.encoder, network.decoder, vocabulary))
    train = SeenSplit(
        clips=tuple(clip for part in parts for clip in part.clips),
        glances=torch.cat([part.glances for part in parts]),
        features=torch.cat([part.features for part in parts]),
        counts=torch.cat([part.counts for part in parts]),
        missing=(),
    )
    return Bench(tuple(seats), torch.tensor(judge_of, device=device), train, cider_of(train))


def _heard_by(judge: Path) -> set[str]:
    """The clips that a judge may judge."""
    if not (judge / "model").is_dir():
        raise BadRun(f"{judge}: is no run folder with a model in it, so it cannot judge")
    return set(validated_on(judge))


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


def _vocabulary(config: Config, named: Sequence[str], train: Split, data: Sequence[DataFolder]) -> Vocabulary:
    """The frequent words of the named splits, of which the training split is at hand."""
    splits: list[Split] = []
    for name in named:
        if name == "train":
            splits.append(train)
        else:
            splits += [load_split(part.folder, dataset=part.dataset, split=name) for part in data]
    captions = (tokenise(caption) for split in splits for clip in split.clips for caption in clip.captions)
    return Vocabulary.from_captions(captions, min_count=config.text.min_count).with_styles(_styles(train))


def _styles(split: Split) -> list[str]:
    return sorted({clip.style for clip in split.clips if clip.style})


def _extended(start: str | Path, config: Config, train: Split) -> tuple[Network, Vocabulary]:
    """The network of a model folder, with rows added for frequent words, and styles, that it does not know yet."""
    old, vocabulary, before = load_network(start)
    for name in SHAPED_BY:
        has, wanted = getattr(before.model, name), getattr(config.model, name)
        if has != wanted:
            raise BadRun(f"{start}: its model.{name} is {has}, the config's is {wanted}; leave it as the model has it")
    known = set(vocabulary.words)
    captions = (tokenise(caption) for clip in train.clips for caption in clip.captions)
    frequent = Vocabulary.from_captions(captions, min_count=config.text.min_count)
    grown = Vocabulary(vocabulary.words + tuple(word for word in frequent.words if word not in known))
    grown = grown.with_styles(_styles(train))
    network = Network(config.model, len(grown), pretrained=False)
    weights = old.state_dict()
    for name in ("decoder.embed.weight", *(() if config.model.tied_words else ("decoder.output.weight",))):
        fresh = network.state_dict()[name].clone()
        fresh[: len(vocabulary)] = weights[name]
        for style, word in grown.styles.items():
            if style not in vocabulary.styles:
                fresh[word] = weights[name][BOS]  # a style begins as what all sentences have begun with
        weights[name] = fresh
    same_picker = all(getattr(before.model, key) == getattr(config.model, key) for key in ("picker", "picker_hidden"))
    if not same_picker:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("picknet.")}
    network.load_state_dict(weights, strict=same_picker)
    return network, grown


def _ticker(seen: Callable[[str, int, int], None], split: Split) -> Callable[[], None]:
    done = count(1)
    return lambda: seen(split.name, next(done), len(split.clips))


def _write_clips(folder: Path, splits: Sequence[Split], parts: Sequence[SeenSplit | BareSplit]) -> None:
    """Which clips the run learned from, and which were missing and why."""
    clips = {
        split.name: {
            "used": [clip.name for clip in part.clips],
            "missing": [dataclasses.asdict(missing) for missing in part.missing],
        }
        for split, part in zip(splits, parts, strict=True)
    }
    write_text(folder / "clips.json", json.dumps(clips, indent=2) + "\n")
