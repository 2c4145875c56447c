"""A whole training: plan → splits → network → frames → batches → stages → model folder."""

import dataclasses
import json
import os
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import count, zip_longest
from pathlib import Path
from typing import Any

import torch

from picknet.config import STAGES, BadConfig, Config, load_config
from picknet.data.split import DataFolder, Split, load_split
from picknet.files import write_text
from picknet.metrics import ONE_CLIP
from picknet.model.card import CARD
from picknet.model.folder import DEFAULT_MODEL, SHIPPED, TAGS, ModelFolder
from picknet.text import BOS, Vocabulary
from picknet.training.batches import Data, prepare
from picknet.training.export import export, load_network, round_to_half
from picknet.training.features import FeatureSplit, PixelSplit, extract_features
from picknet.training.folds import Fold, all_clips, digest, fold_splits, official_splits
from picknet.training.judges import JudgeRun, environment_of_judges
from picknet.training.network import Network, word_matrices
from picknet.training.plan import DataSource, TrainingPlan, make_plan
from picknet.training.progress import TrainingProgress
from picknet.training.runs import CLIPS, BadRun, Run, card, checkpoint, claim, load_best, read_part, trains_captioner
from picknet.training.shortlist import shortened
from picknet.training.stages import adaptation, reinforcement, supervision
from picknet.training.teachers import Captions, english_words, teachers

FIXED_SETTINGS = (
    "system",
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
"""Settings of a model that cannot change in fine-tuning, since its weights depend on them."""

POLICY_SETTINGS = ("picker", "picker_hidden", "glance")
"""Settings that the weights of a policy depend on."""


def train(
    config: Config | str | os.PathLike[str] | None = None,
    *,
    data: DataSource | Sequence[DataSource],
    out: str | os.PathLike[str],
    settings: Sequence[str] = (),
    stages: Sequence[str] | None = None,
    start: str | os.PathLike[str] | None = None,
    fold: Fold | str | None = None,
    judges: Sequence[str | os.PathLike[str]] = (),
    resume: bool = False,
    device: str = "auto",
    cache: str | os.PathLike[str] | None = None,
    progress: TrainingProgress | None = None,
    command: str | None = None,
) -> Path:
    """Train a model on data folders; returns the model folder, `out`/model.

    config: settings, or a TOML file of them; by default those of the run to resume, or of the model to start from.
    data: one or several data folders. "msvd=DIR" names the data set; a path alone is a folder of your own clips.
    out: the run folder.
    settings: overrides of a config file, such as "supervision.epochs=5".
    stages: the stages to run, by default all that have epochs; fine-tuning with a model's own settings runs one.
    start: a model to start from, with its words and weights: a shipped model's name, a model folder or a run folder.
    fold: validate on this part of the training clips ("1/5" is the first of five), not on the validation split.
    judges: runs of folds, which reward PickNet on the clips that they were validated on; or "MODEL=DATASET", a model
        that was not trained on this data set and rewards PickNet on all of its clips.
    resume: continue a run that was stopped.
    device: "cpu", "cuda", "mps", or "auto" for the best that is available.
    cache: where features, or pixels if the CNN is trained, are kept; by default feature-cache beside the run folder.
    progress: reports clips, epochs and notes.
    command: the command line to store with the run.
    """
    folder = Path(out)
    plan = make_plan(
        config,
        data=data,
        out=folder,
        settings=settings,
        stages=stages,
        start=start,
        fold=fold,
        judges=judges,
        resume=resume,
    )
    target = find_device(device)
    progress = progress or TrainingProgress()
    cache_folder = Path(cache) if cache else folder.parent / "feature-cache"
    _configure_torch()

    splits = _load_splits(plan, progress)
    judge_runs = [JudgeRun.read(judge) for judge in plan.judges]
    torch.manual_seed(plan.config.seed)
    learned = teachers(splits[0].clips, plan.config.text)
    if plan.config.text.clean:
        progress.on_note(str(learned))
    network, vocabulary = _start_network(plan, splits[0], learned.captions)
    if not plan.config.supervision.cnn_learning_rate:
        # As in a model folder, so that a later run from this one's model finds its features in the cache.
        round_to_half(network.cnn)
    origin = plan.origin | {CLIPS: digest(splits)}
    with claim(folder, plan.config, origin, resume=resume, command=command):
        if trains_captioner(folder):
            _check_words(folder, vocabulary)
        else:
            vocabulary.save(folder / "words.txt")
        _move(network, target)

        frames = _load_frames(splits, network, plan.config, cache_folder, target, progress)
        _write_clips(folder, splits, frames)
        batches = prepare(frames[0], frames[1], vocabulary, plan.config, target, captions=learned.captions)
        del frames  # so that pixels are freed once the stages have replaced them by features

        run = Run(folder, plan.config, target, progress)
        run.forget_unfinished_epochs()
        _run_stages(plan, network, batches, run, judge_runs, splits[0], cache_folder)
        if not plan.start:
            _begin_without_category(network, batches)
        export(network, vocabulary, plan.config, folder / "model", card=card(folder))
        return folder / "model"


def export_run(
    run: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    facts: Mapping[str, Any] | None = None,
    data: Sequence[DataFolder] = (),
    min_share: float = 0.0,
    on_clip: Callable[[], object] = lambda: None,
) -> None:
    """Write the best model of a run as a model folder, also if the run has not finished; or a model once more.

    facts: added to the model's card.
    data, min_share: leave out words that are rarer than this in the captions of each of the data folders; see
        `shortlist.py`. `on_clip` is called after each clip that is looked at for that.
    """
    folder = Path(run)
    network, vocabulary, config, known, tags = _exported(folder)
    if min_share:
        splits = [load_split(part.folder, dataset=part.dataset, split="train") for part in data]
        network, vocabulary, config = shortened(
            network, vocabulary, config, splits, min_share=min_share, on_clip=on_clip
        )
    export(network, vocabulary, config, Path(out), card=known | dict(facts or {}), tags=tags)


def _exported(folder: Path) -> tuple[Network, Vocabulary, Config, dict[str, Any], bytes | None]:
    """The model of a run folder or a model folder, its card, and its tags if it has any."""
    if not (folder / "checkpoints").is_dir():
        if (folder / "origin.json").exists():
            raise BadRun(f"{folder}: a run without a checkpoint yet; go on with --resume, and export it then")
        if not (folder / "words.txt").is_file():
            raise BadRun(f"{folder}: not a run folder with a checkpoint, and not a model folder")
        parts = ModelFolder(folder)
        tags = parts.read(TAGS) if (folder / TAGS).is_file() else None
        return *load_network(folder), parts.card, tags
    known = card(folder)
    if _is_up_to_date(folder / "model", known):
        calibration, tags = _calibration(folder / "model")
        network, vocabulary, config = load_network(folder / "model")
        return network, vocabulary, config, known | calibration, tags
    if read_part(folder, "origin.json").get("from"):
        raise BadRun(f"{folder}: was started from another model and has not finished; finish it with --resume first")
    if not any(checkpoint(folder, stage, "best").exists() for stage in STAGES):
        raise BadRun(f"{folder}: has no checkpoint of a stage's best weights; go on with --resume")
    config = load_config(folder / "config.toml")
    vocabulary = Vocabulary.load(folder / "words.txt")
    network = Network(config.model, len(vocabulary))
    for stage in STAGES:
        load_best(folder, stage, network)
    return network, vocabulary, config, known, None


def _is_up_to_date(model: Path, known: Mapping[str, Any]) -> bool:
    """Whether a run has trained no stage further since it wrote its model. known: what its card would be now."""
    if not model.is_dir():
        return False
    then = read_part(model, CARD).get("stages", {})
    return all(then.get(stage) == figures for stage, figures in known["stages"].items())


def _calibration(folder: Path) -> tuple[dict[str, Any], bytes | None]:
    """What `picknet calibrate` has added to a model folder: facts of its card, and tags."""
    facts = {name: fact for name, fact in read_part(folder, CARD).items() if name == "confidence"}
    return facts, (folder / TAGS).read_bytes() if (folder / TAGS).is_file() else None


# --- The steps of `train` ---


def find_device(name: str) -> torch.device:
    possible = ["cpu"]
    if torch.backends.mps.is_available():
        possible.insert(0, "mps")
    if torch.cuda.is_available():
        possible.insert(0, "cuda")
    if name == "auto":
        return torch.device(possible[0])
    if name not in possible:
        raise BadRun(f"--device {name}: not available on this machine (possible: {', '.join(possible)})")
    return torch.device(name)


def _configure_torch() -> None:
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # without it, cuBLAS is not deterministic
    torch.use_deterministic_algorithms(True, warn_only=True)
    # By default deterministic algorithms also fill every new tensor with NaN, to find bugs: an operation for each.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.set_float32_matmul_precision("high")  # TF32 on a GPU
    warnings.filterwarnings("ignore", message="RNN module weights are not part of single contiguous chunk")


def _load_splits(plan: TrainingPlan, progress: TrainingProgress) -> tuple[Split, Split]:
    """The training and the validation clips."""
    styles = plan.config.text.styles
    if plan.fold:
        splits = fold_splits(plan.data, plan.fold, styles=styles)
    else:
        splits = official_splits(plan.data, styles=styles, on_note=progress.on_note)
    if plan.config.text.categories and not any(clip.category for clip in splits[0].clips):
        names = " and ".join(dict.fromkeys(part.dataset for part in plan.data))
        raise BadConfig(
            f"text.categories is true, but no training clip of {names} has a category; MSR-VTT's official annotations "
            "have one for each video (--data msrvtt=DIR)"
        )
    return splits


def _start_network(plan: TrainingPlan, train: Split, captions: Captions) -> tuple[Network, Vocabulary]:
    """A new network, or that of the model to start from, and its vocabulary."""
    if plan.start:
        if plan.policy_alone:
            train, captions = dataclasses.replace(train, clips=()), {}  # the policy alone needs no new words
        return _extended_network(plan.start, plan.config, train, captions)
    splits = ("train",) if plan.fold else plan.config.text.vocabulary_splits
    vocabulary = _new_vocabulary(plan.config, splits, captions, plan.data).with_styles(_styles(train, plan.config))
    network = Network(plan.config.model, len(vocabulary))
    if plan.config.model.system != "picknet":
        _take_shipped_policy(network, plan.config)
    return network, vocabulary


def _take_shipped_policy(network: Network, config: Config) -> None:
    """Another system's captions come from the picks of the shipped PickNet, unless it is trained with the system."""
    shipped, _, settings = load_network(SHIPPED / DEFAULT_MODEL)
    if all(getattr(settings.model, name) == getattr(config.model, name) for name in POLICY_SETTINGS):
        network.picknet.load_state_dict(shipped.picknet.state_dict())


def _new_vocabulary(
    config: Config, split_names: Sequence[str], captions: Captions, data: Sequence[DataFolder]
) -> Vocabulary:
    """The frequent words of the named splits, of which `captions` is train."""
    splits: list[Captions] = []
    for name in split_names:
        if name == "train":
            splits.append(captions)
        else:
            others = [load_split(part.folder, dataset=part.dataset, split=name) for part in data]
            splits += [teachers(split.clips, config.text).captions for split in others]
    return Vocabulary.from_captions(_all_captions(splits), min_count=config.text.min_count)


def _all_captions(splits: Iterable[Captions]) -> Iterator[Sequence[str]]:
    return (caption for captions in splits for own in captions.values() for caption in own)


def _extended_network(start: Path, config: Config, train: Split, captions: Captions) -> tuple[Network, Vocabulary]:
    """The network of a model folder, extended by the frequent words and styles of the training clips that are new.

    If captions are cleaned now and were not before, words that are not English are removed.
    """
    old, vocabulary, old_config = load_network(start)
    for name in FIXED_SETTINGS:
        before, now = getattr(old_config.model, name), getattr(config.model, name)
        if before != now:
            raise BadRun(f"{start}: its model.{name} is {before} and cannot be changed to {now}; leave it as it is")
    frequent = Vocabulary.from_captions(_all_captions([captions]), min_count=config.text.min_count)
    kept = list(range(len(vocabulary)))
    if config.text.clean and not old_config.text.clean:
        kept = english_words(vocabulary, also=frequent)
        vocabulary = Vocabulary(tuple(vocabulary.words[word] for word in kept))
    known = set(vocabulary.words)
    extended = Vocabulary(vocabulary.words + tuple(word for word in frequent.words if word not in known))
    extended = extended.with_styles(_styles(train, config))
    if config.model.system != "picknet" and extended != vocabulary:
        new = len(extended.words) - len(vocabulary.words)
        raise BadRun(
            f"{start}: its system, {config.model.system}, cannot learn other words than it knows, and these captions "
            f"have {new} more; train it on them from the start"
        )
    network = Network(config.model, len(extended), pretrained=False)
    weights = old.state_dict()
    for name in word_matrices(config.model):
        rows = network.state_dict()[name].clone()
        rows[: len(vocabulary)] = weights[name][kept]
        for style, word in extended.styles.items():
            if style not in vocabulary.styles:
                rows[word] = weights[name][BOS]  # a new style starts as a copy of <bos>
        weights[name] = rows
    if not config.model.left_out:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("decoder.left_out.")}
    same_picker = all(getattr(old_config.model, key) == getattr(config.model, key) for key in POLICY_SETTINGS)
    if not same_picker:
        weights = {name: tensor for name, tensor in weights.items() if not name.startswith("picknet.")}
    network.load_state_dict(weights, strict=same_picker)
    return network, extended


def _styles(split: Split, config: Config) -> list[str]:
    """What captions begin with, other than <bos>."""
    styles = {(clip.category if config.text.categories else None) or clip.style for clip in split.clips}
    return sorted(style for style in styles if style)


def _check_words(folder: Path, vocabulary: Vocabulary) -> None:
    """A captioner that has been trained knows its words by their place in words.txt."""
    before = Vocabulary.load(folder / "words.txt").words
    if before != vocabulary.words:
        pairs = zip_longest(before, vocabulary.words, fillvalue="none")
        line, (old, new) = next((line, pair) for line, pair in enumerate(pairs, start=1) if pair[0] != pair[1])
        raise BadRun(
            f"{folder}: was started with other words (words.txt:{line}: {old}, now {new}); resume it with the data it "
            "was started with, or choose a new folder"
        )


def _move(network: Network, device: torch.device) -> None:
    network.to(device)
    if device.type == "cuda":
        network.cnn.to(memory_format=torch.channels_last)  # type: ignore[call-overload]


def _load_frames(
    splits: tuple[Split, Split],
    network: Network,
    config: Config,
    cache: Path,
    device: torch.device,
    progress: TrainingProgress,
) -> list[FeatureSplit | PixelSplit]:
    """The frames of both splits on the device: as features, or as pixels if the CNN is trained."""
    if config.supervision.cnn_learning_rate:
        # All clips are stored in one file, so that all folds of a data set share it.
        both = all_clips(splits)
        pixels = PixelSplit.load(both, config, cache=cache, device=device, on_clip=_counter(progress, both))
        frames: list[FeatureSplit | PixelSplit] = [pixels.subset(split) for split in splits]
    else:
        frames = [
            extract_features(split, network.cnn, config, cache=cache, on_clip=_counter(progress, split)).to(device)
            for split in splits
        ]
    for split, part in zip(splits, frames, strict=True):
        if part.missing:
            first = part.missing[0]
            counts = f"{len(part.clips)} clips of the {split.name} split, {len(part.missing)} missing"
            progress.on_note(f"{counts} (see clips.json; first: {first.name}: {first.reason})")
    if len(frames[1].clips) == 1:
        progress.on_note(f"1 validation clip: {ONE_CLIP}")
    return frames


def _counter(progress: TrainingProgress, split: Split) -> Callable[[], None]:
    done = count(1)
    return lambda: progress.on_clip(split.name, next(done), len(split.clips))


def _write_clips(folder: Path, splits: Sequence[Split], frames: Sequence[FeatureSplit | PixelSplit]) -> None:
    """List the clips that are used, and those that are missing with the reason."""
    clips = {
        split.name: {
            "used": [clip.name for clip in part.clips],
            "missing": [dataclasses.asdict(missing) for missing in part.missing],
        }
        for split, part in zip(splits, frames, strict=True)
    }
    write_text(folder / "clips.json", json.dumps(clips, indent=2) + "\n")


def _run_stages(
    plan: TrainingPlan,
    network: Network,
    data: Data[Any],
    run: Run,
    judge_runs: Sequence[JudgeRun],
    train: Split,
    cache: Path,
) -> None:
    """Run the stages of the plan; of the others, load what this run has trained before."""
    for stage in STAGES:
        if stage not in plan.stages:
            load_best(run.folder, stage, network)
        elif stage == "supervision":
            supervision(network, data, plan.config, run)
        elif stage == "reinforcement" and judge_runs:
            data = dataclasses.replace(data, val=_as_features(data.val, network, plan.config))
            judges = environment_of_judges(judge_runs, train, data, plan.config, cache=cache, device=run.device)
            reinforcement(network, data, plan.config, run, judges)
        else:
            # Only supervision trains the CNN, so from here on its features are fixed.
            val, training = (_as_features(split, network, plan.config) for split in (data.val, data.train))
            data = dataclasses.replace(data, train=training, val=val)
            (reinforcement if stage == "reinforcement" else adaptation)(network, data, plan.config, run)


@torch.no_grad()
def _begin_without_category(network: Network, data: Data[Any]) -> None:
    """Where every caption began with a category, <bos> was not learned. It becomes the categories' mean, so that a
    video without one can be captioned."""
    learned = sorted(set(data.words[:, 0].tolist()))
    if BOS not in learned:
        for part in network.decoder.modules():
            if isinstance(part, torch.nn.Embedding):
                part.weight[BOS] = part.weight[learned].mean(0)


def _as_features(split: FeatureSplit | PixelSplit, network: Network, config: Config) -> FeatureSplit:
    if isinstance(split, PixelSplit):
        return split.extract_features(network.cnn, config.video.num_frames)
    return split
