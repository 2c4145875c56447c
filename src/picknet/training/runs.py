"""A run folder: settings, versions, metrics and checkpoints of a training that can be stopped at any time."""

import contextlib
import copy
import csv
import dataclasses
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from picknet.config import STAGES, Config, Stage, SupervisionConfig, load_config, to_toml
from picknet.errors import PicknetError
from picknet.files import UnwritableFile, open_lock, remove_abandoned, take_lock, write_text, written_whole
from picknet.training.learner import BatchParts, Learner, StageConfig, Step, Weights, rate_factor
from picknet.training.network import Network
from picknet.training.progress import TrainingProgress

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Checkpoint = Literal["last", "best"]
"""The two checkpoints of a stage: everything needed to resume it, and the weights with the best validation score."""

SAVE_SECONDS = 20.0
"""Minimum time between two checkpoints of a stage. An epoch that is repeated gives the same result, so an older
checkpoint only costs time."""

SAVING_SHARE = 0.03
"""Where writing is slow, checkpoints are written less often, so that they take about this share of the time."""

LONGEST_PAUSE = 6
"""But at least every so many `SAVE_SECONDS`."""

LOCK = ".lock"
"""In a run folder: held by the process that trains in it."""
CLIPS = "clips"
"""In origin.json: the digest of the clips and captions that are trained and validated on."""
TRAIN_AGAIN = "delete the stage's checkpoints to train it from its start, with --resume"

METRICS = (
    "stage", "epoch", "loss", "reward", "language", "diversity", "picks", "val_cider", "val_picks", "val_found",
    "val_event_picks", "seconds",
)  # fmt: skip

TrainEpoch = Callable[[int, Step, np.random.Generator, torch.Generator], None]
"""One pass over the data: (epoch, step, generator for the order of the data, generator on the device)."""


class BadRun(PicknetError):
    """A run folder that cannot be started or resumed, or a training that diverged."""


@dataclass(frozen=True)
class StageProgress:
    """How far a stage has come."""

    epochs: int = 0
    steps: int = 0
    best_epoch: int = 0
    """0: the weights that the stage started from."""
    best_figures: dict[str, float] = field(default_factory=dict)
    """Its figures on the validation clips; the best epoch is the one with the highest `score`."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The weights of the best epoch."""

    def with_best(self, epoch: int, figures: dict[str, float], weights: Weights) -> "StageProgress":
        best = {key: parameter.detach().clone() for key, parameter in weights.averaged.items()}
        return dataclasses.replace(self, best_epoch=epoch, best_figures=figures, best=best)


class Run:
    """A run folder in use. A stage continues from its last checkpoint."""

    def __init__(self, folder: Path, config: Config, device: torch.device, progress: TrainingProgress) -> None:
        self.folder, self.config, self.device, self.progress = folder, config, device, progress
        self.parts = BatchParts(progress.on_note)
        self._tensorboard: SummaryWriter | None = None

    def stage(
        self,
        name: Stage,
        network: Network,
        trained: Sequence[nn.Module],
        train_epoch: TrainEpoch,
        validate: Callable[[Network], dict[str, float]],
    ) -> None:
        """Train modules of the network for a stage's epochs; the network ends with the weights that are kept."""
        stage: StageConfig = getattr(self.config, name)
        if stage.epochs == 0:
            return
        decay = stage.average
        validated = copy.deepcopy(network) if decay else network
        weights = self._weights(network, validated, trained, stage)
        progress = self._restore(name, weights)
        if not progress.best:
            # The initial weights are a candidate as well: training may make them worse.
            progress = progress.with_best(0, validate(validated), weights)
        saved_at, pause = time.monotonic(), SAVE_SECONDS
        for epoch in range(progress.epochs, stage.epochs):
            # All randomness of an epoch depends on (seed, stage, epoch) only, so a resumed run draws the same numbers.
            seed = np.random.SeedSequence([self.config.seed, STAGES.index(name), epoch])
            dropout_seed, device_seed = (int(draw) for draw in seed.generate_state(2, np.uint32))
            torch.manual_seed(dropout_seed)
            generator = torch.Generator(self.device).manual_seed(device_seed)
            started_at = time.monotonic()
            learner = Learner(
                weights,
                decay=decay,
                steps=progress.steps,
                rate_factor=partial(rate_factor, stage, epoch),
                parts=self.parts,
            )
            network.train()
            train_epoch(epoch, learner.step, np.random.default_rng(seed), generator)
            figures = learner.means()
            if not all(math.isfinite(value) for value in figures.values()):
                listed = ", ".join(f"{key} {value:.3g}" for key, value in figures.items())
                advice = f"try a smaller {name}.learning_rate"
                raise BadRun(f"{self.folder}: {name} diverged in epoch {epoch + 1} ({listed}); {advice}")
            validated_figures = validate(validated)
            progress = dataclasses.replace(progress, epochs=epoch + 1, steps=learner.steps)
            if stage.keep == "last" or validated_figures["score"] >= progress.best_figures["score"]:
                progress = progress.with_best(epoch + 1, validated_figures, weights)
            figures |= {key: value for key, value in validated_figures.items() if key in METRICS}
            figures["seconds"] = time.monotonic() - started_at
            self._log(name, epoch + 1, figures)
            if epoch + 1 == stage.epochs or time.monotonic() - saved_at > pause:
                saving_since = time.monotonic()
                self._save(name, progress, weights)
                saved_at = time.monotonic()
                pause = pause_after(saved_at - saving_since)
            self.progress.on_epoch(name, epoch + 1, stage.epochs, figures | {"best_epoch": progress.best_epoch})
        network.load_state_dict(progress.best, strict=False)
        network.eval()

    def forget_unfinished_epochs(self) -> None:
        """Drop the rows of metrics.csv after the last checkpoint, since their epochs are repeated."""
        path = self.folder / "metrics.csv"
        if not path.exists():
            return
        done = {str(name): _read_progress(checkpoint(self.folder, name, "last"))["epochs"] for name in STAGES}
        with path.open(newline="", encoding="utf-8") as file:
            complete = (row for row in csv.DictReader(file) if None not in row.values())  # a kill may cut the last row
            # An older version may have run a stage that no longer exists; its rows are kept.
            rows = [row for row in complete if row["stage"] not in done or int(row["epoch"]) <= done[row["stage"]]]
        with written_whole(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, METRICS)
            writer.writeheader()
            writer.writerows(rows)

    def _weights(
        self, network: Network, validated: Network, trained: Sequence[nn.Module], stage: StageConfig
    ) -> Weights:
        network.requires_grad_(False)
        for module in trained:
            module.requires_grad_(True)
        parameters = {name: p for name, p in network.named_parameters() if p.requires_grad}
        by_rate: dict[float, list[nn.Parameter]] = {}
        for key, parameter in parameters.items():
            rate = stage.learning_rate
            if isinstance(stage, SupervisionConfig) and key.startswith("cnn."):
                rate = stage.cnn_learning_rate
            by_rate.setdefault(rate, []).append(parameter)
        optimiser = torch.optim.AdamW(
            [{"params": group, "full_rate": rate} for rate, group in by_rate.items()],
            weight_decay=stage.weight_decay,
            fused=self.device.type == "cuda",
        )
        averaged = {name: p for name, p in validated.named_parameters() if name in parameters}
        return Weights(parameters, averaged, optimiser)

    def _save(self, name: Stage, progress: StageProgress, weights: Weights) -> None:
        from safetensors.torch import save

        tensors = {f"best.{key}": value for key, value in progress.best.items()}
        for key, parameter in weights.trained.items():
            tensors[f"trained.{key}"] = parameter.detach()
            tensors[f"averaged.{key}"] = weights.averaged[key].detach().clone()
            for moment, value in weights.optimiser.state[parameter].items():
                tensors[f"optimiser.{moment}.{key}"] = value
        metadata = {"progress": json.dumps(dataclasses.asdict(dataclasses.replace(progress, best={})))}
        # "last" is written last: after a kill between the two, its epochs are repeated and "best" is written again.
        contents: dict[Checkpoint, dict[str, Tensor]] = {"best": progress.best, "last": tensors}
        for which, kept in contents.items():
            with written_whole(checkpoint(self.folder, name, which)) as temporary:
                temporary.write_bytes(save({key: value.contiguous() for key, value in kept.items()}, metadata))

    def _restore(self, name: Stage, weights: Weights) -> StageProgress:
        from safetensors import SafetensorError, safe_open

        path = checkpoint(self.folder, name, "last")
        if not path.exists():
            return StageProgress()
        try:
            with safe_open(path, framework="pt", device=str(self.device)) as file, torch.no_grad():
                stored = json.loads(file.metadata()["progress"])
                moments = {key.split(".")[1] for key in file.keys() if key.startswith("optimiser.")}  # noqa: SIM118
                for key, parameter in weights.trained.items():
                    parameter.copy_(file.get_tensor(f"trained.{key}"))
                    weights.averaged[key].copy_(file.get_tensor(f"averaged.{key}"))
                    weights.optimiser.state[parameter] = {
                        moment: file.get_tensor(f"optimiser.{moment}.{key}") for moment in moments
                    }
                best = {key: file.get_tensor(f"best.{key}") for key in weights.trained}
        except (SafetensorError, KeyError, TypeError, OSError, RuntimeError) as error:
            raise BadRun(f"{path}: not a checkpoint of this run ({error}); {TRAIN_AGAIN}") from error
        return StageProgress(**{**stored, "best": best})

    def _log(self, name: Stage, epoch: int, figures: dict[str, float]) -> None:
        path = self.folder / "metrics.csv"
        new = not path.exists()
        try:
            with path.open("a", newline="", encoding="utf-8") as file:
                rows = csv.DictWriter(file, METRICS, restval="")
                if new:
                    rows.writeheader()
                texts = {key: f"{value:.5f}" for key, value in figures.items()}
                rows.writerow({"stage": name, "epoch": epoch, **texts})
        except OSError as error:
            raise UnwritableFile(f"{path}: cannot be written ({error.strerror})") from error
        step = epoch + sum(getattr(self.config, before).epochs for before in STAGES[: STAGES.index(name)])
        if self._tensorboard is None:
            from torch.utils.tensorboard import SummaryWriter

            # A resumed run logs some epochs again; purge_step hides their older values.
            self._tensorboard = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step)
        for key, value in figures.items():
            self._tensorboard.add_scalar(key, value, step)
        self._tensorboard.flush()


@contextlib.contextmanager
def claim(
    folder: Path, config: Config, origin: dict[str, str | None], *, resume: bool, command: str | None = None
) -> Iterator[None]:
    """Create the run folder or, to resume, check that it belongs to the same config and `origin`. Within the block no
    other process trains in it.

    origin: what the run depends on besides its config: data sets and their clips, model to start from, fold, judges.
    """
    written = folder / "config.toml"
    if not written.exists():
        if resume:
            raise BadRun(f"{folder}: no run to resume here; to start one, leave out --resume")
        # A run that was killed before its config was written may start again.
        first_files = {"versions.json", "origin.json", LOCK}
        if folder.exists() and (not folder.is_dir() or {path.name for path in folder.iterdir()} - first_files):
            raise BadRun(f"{folder}: exists and is not a run folder; choose a new folder")
    # So may one that failed before its first epoch, with other settings, too.
    elif not resume and any((folder / name).exists() for name in ("metrics.csv", "checkpoints", "model")):
        raise BadRun(f"{folder}: contains a run already; resume it with --resume, or choose a new folder")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UnwritableFile(f"{folder}: cannot be written ({error.strerror})") from error
    with open_lock(folder / LOCK) as lock:
        if not take_lock(lock):
            raise BadRun(f"{folder}: another process trains in this run folder; wait for its end")
        for place in (folder, folder / "checkpoints"):
            remove_abandoned(place)
        if resume:
            _check_same(folder, config, origin)
            _add_judges(folder, origin)
        if resume and (folder / "versions.json").exists():
            read_part(folder, "versions.json")  # an error of it comes now, not after hours, with the card
        else:
            write_text(folder / "versions.json", json.dumps(_versions(command), indent=2) + "\n")
        if not resume:
            write_text(folder / "origin.json", json.dumps(origin, indent=2) + "\n")
            write_text(written, to_toml(config))
        yield


def _check_same(folder: Path, config: Config, origin: dict[str, str | None]) -> None:
    before = load_config(folder / "config.toml")
    if before != config:
        lines = zip(to_toml(before).splitlines(), to_toml(config).splitlines(), strict=True)
        old, new = next((old, new) for old, new in lines if old != new)
        raise BadRun(f"{folder}: was started with other settings ('{old}', now '{new}'); choose a new folder")
    stored = read_part(folder, "origin.json")
    if stored.get(CLIPS, origin.get(CLIPS)) != origin.get(CLIPS):
        raise BadRun(
            f"{folder}: was started with other clips or captions; resume it with the data it was started with, or "
            "choose a new folder"
        )
    if _may_add_judges(folder, stored):
        stored["judges"] = origin.get("judges")
    # Older versions wrote fewer keys.
    changed = [key for key in origin if key != CLIPS and stored.get(key) != origin[key]]
    if changed:
        listed = ", ".join(f"{key}: {stored.get(key)}, now {origin[key]}" for key in changed)
        raise BadRun(f"{folder}: was started differently ({listed}); repeat the same command with --resume")


def _may_add_judges(folder: Path, stored: Mapping[str, Any]) -> bool:
    """Stage by stage, judges are named when reinforcement begins."""
    return not stored.get("judges") and not trained_epochs(folder, "reinforcement")


def _add_judges(folder: Path, origin: Mapping[str, str | None]) -> None:
    stored = read_part(folder, "origin.json")
    if origin.get("judges") and _may_add_judges(folder, stored):
        write_text(folder / "origin.json", json.dumps(stored | {"judges": origin["judges"]}, indent=2) + "\n")


def read_part(folder: Path, name: str) -> dict[str, Any]:
    """The content of a JSON file of a run folder."""
    try:
        content = json.loads((folder / name).read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadRun(f"{folder / name}: cannot be read ({reason}); it is a part of the run and was damaged") from error
    if not isinstance(content, dict):
        raise BadRun(f"{folder / name}: holds {type(content).__name__} where one JSON object was expected")
    return content


def pause_after(saving_seconds: float) -> float:
    """Seconds until the next checkpoint, after one that took `saving_seconds` to write."""
    return min(max(SAVE_SECONDS, saving_seconds / SAVING_SHARE), LONGEST_PAUSE * SAVE_SECONDS)


def checkpoint(folder: Path, stage: str, which: Checkpoint) -> Path:
    """The path of a stage's checkpoint."""
    return folder / "checkpoints" / f"{stage}-{which}.safetensors"


def load_best(folder: Path, stage: Stage, network: Network) -> None:
    """Load a stage's best weights into the network, if the run has trained it."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    path = checkpoint(folder, stage, "best")
    if not path.exists() and not trained_epochs(folder, stage):
        return
    try:
        network.load_state_dict(load_file(path, device=str(next(network.parameters()).device)), strict=False)
    except (SafetensorError, OSError, RuntimeError) as error:
        reason = getattr(error, "strerror", None) or error
        raise BadRun(f"{path}: cannot be read ({reason}); {TRAIN_AGAIN}") from error


def trained_epochs(folder: Path, stage: Stage) -> int:
    """The epochs of a stage up to its last checkpoint."""
    return int(_read_progress(checkpoint(folder, stage, "last"))["epochs"])


def trains_captioner(folder: Path) -> bool:
    """Whether the run has trained its captioner, be it unfinished."""
    return any(checkpoint(folder, stage, "last").exists() for stage in ("supervision", "adaptation"))


def _read_progress(path: Path) -> dict[str, Any]:
    """The `StageProgress` stored in a checkpoint; that of a new stage if there is no checkpoint."""
    from safetensors import SafetensorError, safe_open

    if not path.exists():
        return dataclasses.asdict(StageProgress())
    try:
        with safe_open(path, framework="pt") as file:
            progress: dict[str, Any] = json.loads(file.metadata()["progress"])
    except (SafetensorError, KeyError, TypeError, ValueError, OSError) as error:
        raise BadRun(f"{path}: not a checkpoint of this run ({error}); {TRAIN_AGAIN}") from error
    return progress


def card(folder: Path) -> dict[str, Any]:
    """The model card of a run's model, shown by `picknet info`: its stages with scores, clips and versions."""
    stages: dict[str, dict[str, float]] = {}
    for stage in STAGES:
        progress = _read_progress(checkpoint(folder, stage, "last"))
        if progress["epochs"]:
            figures = {key: round(progress["best_figures"][key], 2) for key in ("val_cider", "val_picks")}
            stages[stage] = {"epoch": progress["best_epoch"], **figures}
    clips, versions = read_part(folder, "clips.json"), read_part(folder, "versions.json")
    counts = {split: {key: len(rows) for key, rows in parts.items()} for split, parts in clips.items()}
    return {"stages": stages, "clips": counts, "versions": versions}


def _versions(command: str | None) -> dict[str, str]:
    """The command, the git commit if the code is a checkout, and versions of Python and packages."""
    versions = {"command": command} if command else {}
    if found := commit():
        versions["commit"] = found
    versions |= {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("picknet", "torch", "numpy", "av", "safetensors", "onnx"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def commit() -> str | None:
    """The git commit of this file's checkout, with a + if there are uncommitted changes; None outside a checkout."""
    here = Path(__file__).parent
    try:
        git = partial(subprocess.run, cwd=here, capture_output=True, text=True, check=True, timeout=10)
        head = git(["git", "rev-parse", "--short", "HEAD"]).stdout.strip()
        changed = git(["git", "status", "--porcelain", "--untracked-files=no", "--", "."]).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{head}+" if changed else head
