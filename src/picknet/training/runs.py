"""A run folder: config, versions, metrics and checkpoints of a training that survives being killed."""

import copy
import csv
import dataclasses
import json
import math
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor, nn

from picknet.config import CaptioningConfig, Config, SamplingConfig, SupervisionConfig, load_config, to_toml
from picknet.errors import PicknetError
from picknet.files import UnwritableFile, write_text, written_whole
from picknet.training.network import Network

if TYPE_CHECKING:
    from torch.utils.tensorboard import SummaryWriter

Stage = Literal["supervision", "reinforcement", "adaptation", "refinement"]
STAGES: tuple[Stage, ...] = ("supervision", "reinforcement", "adaptation", "refinement")

Checkpoint = Literal["last", "best"]
"""A stage's two checkpoints: all it takes to go on, and the weights that validated best."""

SAVE_SECONDS = 20.0
"""A checkpoint is written this often. Epochs replay exactly, so an older one loses time, never the result."""

MAX_GRADIENT_NORM = 5.0

METRICS = ("stage", "epoch", "loss", "reward", "language", "diversity", "picks", "val_cider", "val_picks", "seconds")

StageConfig = CaptioningConfig | SamplingConfig

class Batch(Protocol):
    """What a step learns from, which can be cut in parts where memory is short."""

    def __len__(self) -> int: ...

    def parts(self, count: int) -> "Sequence[Batch]":
        """At most `count` parts that together are the batch."""


Step = Callable[[Any, Callable[[Any], tuple[Tensor, dict[str, Tensor]]]], None]
"""Takes a batch and what gives its loss and other figures, and moves the weights."""

TrainEpoch = Callable[[int, Step, np.random.Generator, torch.Generator], None]
"""Goes through the data once: (epoch, step, order of the data, chance on the device)."""

Report = Callable[[str, int, int, dict[str, float]], None]
"""Told after each epoch: the stage, epochs done, epochs in all, and what was measured."""


class BadRun(PicknetError):
    """A run folder that cannot be started or continued, or a training that broke down."""


@dataclass(frozen=True)
class Weights:
    """What a stage trains: parameters, their moving average (the parameters themselves without one), the optimiser."""

    trained: dict[str, nn.Parameter]
    averaged: dict[str, nn.Parameter]
    optimiser: torch.optim.Optimizer


@dataclass(frozen=True)
class Progress:
    """Where a stage stands."""

    epochs: int = 0
    steps: int = 0
    best_epoch: int = 0
    """0: the weights the stage started from."""
    best_figures: dict[str, float] = field(default_factory=dict)
    """What was measured on the validation clips then; its score is what the best is chosen by."""
    best: dict[str, Tensor] = field(default_factory=dict)
    """The weights of the best epoch."""

    def with_best(self, epoch: int, figures: dict[str, float], weights: Weights) -> "Progress":
        best = {key: parameter.detach().clone() for key, parameter in weights.averaged.items()}
        return dataclasses.replace(self, best_epoch=epoch, best_figures=figures, best=best)


class Run:
    """A run folder. It goes on from wherever it was stopped."""

    def __init__(
        self,
        folder: Path,
        config: Config,
        device: torch.device,
        report: Report,
        note: Callable[[str], None] = lambda text: None,
    ) -> None:
        self.folder, self.config, self.device, self.report = folder, config, device, report
        self.portions = Portions(note)
        self._board: SummaryWriter | None = None

    def stage(
        self,
        name: Stage,
        network: Network,
        trained: Sequence[nn.Module],
        train_epoch: TrainEpoch,
        validate: Callable[[Network], dict[str, float]],
    ) -> None:
        """Train modules of the network for a stage's epochs; leaves the weights of the best validation score in it."""
        stage: StageConfig = getattr(self.config, name)
        if stage.epochs == 0:
            return
        decay = stage.average
        validated = copy.deepcopy(network) if decay else network
        weights = self._weights(network, validated, trained, stage)
        progress = self._restore(name, weights)
        if not progress.best:
            # What the stage starts from is a candidate too: training may only make it worse.
            progress = progress.with_best(0, validate(validated), weights)
        saved_at = time.monotonic()
        for epoch in range(progress.epochs, stage.epochs):
            # All chance in an epoch hangs on (seed, stage, epoch) alone: a resumed run draws the same numbers.
            seed = np.random.SeedSequence([self.config.seed, STAGES.index(name), epoch])
            dropout_seed, device_seed = (int(draw) for draw in seed.generate_state(2, np.uint32))
            torch.manual_seed(dropout_seed)
            generator = torch.Generator(self.device).manual_seed(device_seed)
            begun_at = time.monotonic()
            learner = Learner(
                weights,
                decay=decay,
                steps=progress.steps,
                share=partial(rate_share, stage, epoch),
                portions=self.portions,
            )
            network.train()
            network.cnn.eval()
            train_epoch(epoch, learner.step, np.random.default_rng(seed), generator)
            facts = learner.means()
            if not all(math.isfinite(value) for value in facts.values()):
                told = ", ".join(f"{key} {value:.3g}" for key, value in facts.items())
                advice = f"try a smaller {name}.learning_rate"
                raise BadRun(f"{self.folder}: {name} broke down in epoch {epoch + 1} ({told}); {advice}")
            figures = validate(validated)
            progress = dataclasses.replace(progress, epochs=epoch + 1, steps=learner.steps)
            if stage.keep == "last" or figures["score"] >= progress.best_figures["score"]:
                progress = progress.with_best(epoch + 1, figures, weights)
            facts |= {key: figures[key] for key in ("val_cider", "val_picks")}
            facts["seconds"] = time.monotonic() - begun_at
            self._log(name, epoch + 1, facts)
            if epoch + 1 == stage.epochs or time.monotonic() - saved_at > SAVE_SECONDS:
                self._save(name, progress, weights)
                saved_at = time.monotonic()
            self.report(name, epoch + 1, stage.epochs, facts | {"best_epoch": progress.best_epoch})
        network.load_state_dict(progress.best, strict=False)
        network.eval()

    def forget_unfinished_epochs(self) -> None:
        """Drop the log's rows of epochs that come after the last checkpoint and will be run again."""
        path = self.folder / "metrics.csv"
        if not path.exists():
            return
        done = {str(name): _progress(checkpoint(self.folder, name, "last"))["epochs"] for name in STAGES}
        with path.open(newline="", encoding="utf-8") as file:
            whole = (row for row in csv.DictReader(file) if None not in row.values())  # a kill may cut the last row
            rows = [row for row in whole if int(row["epoch"]) <= done[row["stage"]]]
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

    def _save(self, name: Stage, progress: Progress, weights: Weights) -> None:
        from safetensors.torch import save

        tensors = {f"best.{key}": value for key, value in progress.best.items()}
        for key, parameter in weights.trained.items():
            tensors[f"trained.{key}"] = parameter.detach()
            tensors[f"averaged.{key}"] = weights.averaged[key].detach().clone()
            for moment, value in weights.optimiser.state[parameter].items():
                tensors[f"optimiser.{moment}.{key}"] = value
        metadata = {"progress": json.dumps(dataclasses.asdict(dataclasses.replace(progress, best={})))}
        # "last" comes last: a kill between the two must not leave a stage that is done with a best that is not.
        contents: dict[Checkpoint, dict[str, Tensor]] = {"best": progress.best, "last": tensors}
        for which, kept in contents.items():
            with written_whole(checkpoint(self.folder, name, which)) as temporary:
                temporary.write_bytes(save({key: value.contiguous() for key, value in kept.items()}, metadata))

    def _restore(self, name: Stage, weights: Weights) -> Progress:
        from safetensors import SafetensorError, safe_open

        path = checkpoint(self.folder, name, "last")
        if not path.exists():
            return Progress()
        try:
            with safe_open(path, framework="pt", device=str(self.device)) as file, torch.no_grad():
                facts = json.loads(file.metadata()["progress"])
                moments = {key.split(".")[1] for key in file.keys() if key.startswith("optimiser.")}  # noqa: SIM118
                for key, parameter in weights.trained.items():
                    parameter.copy_(file.get_tensor(f"trained.{key}"))
                    weights.averaged[key].copy_(file.get_tensor(f"averaged.{key}"))
                    weights.optimiser.state[parameter] = {
                        moment: file.get_tensor(f"optimiser.{moment}.{key}") for moment in moments
                    }
                best = {key: file.get_tensor(f"best.{key}") for key in weights.trained}
        except (SafetensorError, KeyError, TypeError, OSError, RuntimeError) as error:
            advice = "delete it to train the stage anew"
            raise BadRun(f"{path}: is no checkpoint of this run ({error}); {advice}") from error
        return Progress(**{**facts, "best": best})

    def _log(self, name: Stage, epoch: int, facts: dict[str, float]) -> None:
        path = self.folder / "metrics.csv"
        new = not path.exists()
        try:
            with path.open("a", newline="", encoding="utf-8") as file:
                rows = csv.DictWriter(file, METRICS, restval="")
                if new:
                    rows.writeheader()
                rows.writerow({"stage": name, "epoch": epoch, **{key: f"{value:.5f}" for key, value in facts.items()}})
        except OSError as error:
            raise UnwritableFile(f"{path}: cannot be written ({error.strerror})") from error
        step = epoch + sum(getattr(self.config, before).epochs for before in STAGES[: STAGES.index(name)])
        if self._board is None:
            from torch.utils.tensorboard import SummaryWriter

            # A resumed run tells some epochs again; purge_step hides what was told of them before.
            self._board = SummaryWriter(str(self.folder / "tensorboard"), purge_step=step)
        for key, value in facts.items():
            self._board.add_scalar(key, value, step)
        self._board.flush()


class Portions:
    """In how many parts batches are learned from, so that they fit the GPU: more whenever its memory runs out."""

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self.count = 1
        self._note = note

    def halve(self, size: int) -> None:
        if self.count >= size:
            raise BadRun("the GPU's memory does not hold even one clip of a batch; try a smaller model.image_size")
        self.count *= 2
        torch.cuda.empty_cache()
        self._note(f"the GPU's memory ran out: batches are learned from in {self.count} parts from now on")


class Learner:
    """One epoch's steps: the optimiser, the moving average, and the means of what was measured."""

    def __init__(
        self,
        weights: Weights,
        *,
        decay: float,
        steps: int,
        share: Callable[[int], float],
        portions: "Portions | None" = None,
    ) -> None:
        self.weights, self.decay, self.steps, self.share = weights, decay, steps, share
        self.portions = portions or Portions()
        self._sums: dict[str, Tensor] = {}
        self._first = steps

    def step(self, batch: Batch, loss_of: Callable[[Any], tuple[Tensor, dict[str, Tensor]]]) -> None:
        trained: list[Tensor] = list(self.weights.trained.values())
        averaged: list[Tensor] = list(self.weights.averaged.values())
        facts = self._gradients(batch, loss_of)
        while facts is None:
            self.portions.halve(len(batch))
            facts = self._gradients(batch, loss_of)
        nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM)
        for group in self.weights.optimiser.param_groups:
            group["lr"] = group["full_rate"] * self.share(self.steps)
        self.weights.optimiser.step()
        if self.decay:
            # Early on the average follows closely, so that it is not held back by the first weights.
            keep = min(self.decay, (1 + self.steps) / (10 + self.steps))
            with torch.no_grad():
                torch._foreach_lerp_(averaged, trained, 1 - keep)
        self.steps += 1
        for key, value in facts.items():
            self._sums[key] = self._sums.get(key, torch.zeros_like(value)) + value

    def _gradients(
        self, batch: Batch, loss_of: Callable[[Any], tuple[Tensor, dict[str, Tensor]]]
    ) -> dict[str, Tensor] | None:
        """The gradients of a batch, part by part, and what was measured; None where memory ran out."""
        self.weights.optimiser.zero_grad(set_to_none=True)
        facts: dict[str, Tensor] = {}
        try:
            for part in batch.parts(self.portions.count):
                loss, figures = loss_of(part)
                measured = {"loss": loss.detach()} | figures
                share = len(part) / len(batch)
                torch.autograd.backward(loss * share)
                for key, value in measured.items():
                    facts[key] = facts.get(key, torch.zeros_like(value)) + value * share
        except torch.OutOfMemoryError:
            return None  # only once this frame is left, with all its tensors, is there memory again
        return facts

    def means(self) -> dict[str, float]:
        return {key: float(total) / (self.steps - self._first) for key, total in self._sums.items()}


def rate_share(stage: StageConfig, epoch: int, steps: int) -> float:
    """The share of the full learning rate in an epoch, after so many steps of the stage."""
    share = 1.0 if stage.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * epoch / stage.epochs))
    warmup_steps = stage.warmup_steps if isinstance(stage, SupervisionConfig) else 0
    return share * min(1.0, (steps + 1) / (warmup_steps + 1))


def claim(
    folder: Path, config: Config, origin: dict[str, str | None], *, resume: bool, command: str | None = None
) -> None:
    """Make the run folder, or check that it is this run's; `origin` is what it starts from beside its config."""
    written = folder / "config.toml"
    if not written.exists():
        if resume:
            raise BadRun(f"{folder}: no run to resume here; leave --resume out to start one")
        if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
            raise BadRun(f"{folder}: is there already and is no run folder; name a new folder")
        write_text(folder / "versions.json", json.dumps(_versions(command), indent=2) + "\n")
        write_text(folder / "origin.json", json.dumps(origin, indent=2) + "\n")
        write_text(written, to_toml(config))
        return
    if not resume:
        raise BadRun(f"{folder}: holds a run already; --resume goes on with it, or name a new folder")
    before = load_config(written)
    if before != config:
        lines = zip(to_toml(before).splitlines(), to_toml(config).splitlines(), strict=True)
        old, new = next((old, new) for old, new in lines if old != new)
        raise BadRun(f"{folder}: was begun with other settings ('{old}', now '{new}'); name a new folder")
    begun = json.loads((folder / "origin.json").read_text(encoding="utf-8"))
    changed = [key for key in origin if begun.get(key) != origin[key]]  # an older version told less
    if changed:
        told = ", ".join(f"{key}: {begun.get(key)}, now {origin[key]}" for key in changed)
        raise BadRun(f"{folder}: was begun otherwise ({told}); give the same command again, with --resume added")


def checkpoint(folder: Path, stage: str, which: Checkpoint) -> Path:
    """Where a stage's checkpoint is."""
    return folder / "checkpoints" / f"{stage}-{which}.safetensors"


def take_best(folder: Path, stage: Stage, network: Network) -> None:
    """Put a stage's best weights into the network, where the run has come that far."""
    from safetensors.torch import load_file

    path = checkpoint(folder, stage, "best")
    if path.exists():
        network.load_state_dict(load_file(path, device=str(next(network.parameters()).device)), strict=False)


def _progress(path: Path) -> dict[str, Any]:
    """Where a stage stood when its checkpoint was written; at the start where there is none."""
    from safetensors import safe_open

    if not path.exists():
        return dataclasses.asdict(Progress())
    with safe_open(path, framework="pt") as file:
        facts: dict[str, Any] = json.loads(file.metadata()["progress"])
    return facts


def card(folder: Path) -> dict[str, Any]:
    """What `picknet info` tells of a run's model: how it came about and what it scored."""
    stages: dict[str, dict[str, float]] = {}
    for stage in STAGES:
        progress = _progress(checkpoint(folder, stage, "last"))
        if progress["epochs"]:
            figures = {key: round(progress["best_figures"][key], 2) for key in ("val_cider", "val_picks")}
            stages[stage] = {"epoch": progress["best_epoch"], **figures}
    clips = json.loads((folder / "clips.json").read_text(encoding="utf-8"))
    versions = json.loads((folder / "versions.json").read_text(encoding="utf-8"))
    counts = {split: {key: len(rows) for key, rows in parts.items()} for split, parts in clips.items()}
    return {"stages": stages, "clips": counts, "versions": versions}


def _versions(command: str | None) -> dict[str, str]:
    """What made the run: the command, the commit where the code is a checkout, and the packages."""
    versions = {"command": command} if command else {}
    if commit := _commit():
        versions["commit"] = commit
    versions |= {"python": platform.python_version(), "machine": platform.machine()}
    for package in ("picknet", "torch", "numpy", "av", "safetensors", "onnx"):
        try:
            versions[package] = version(package)
        except PackageNotFoundError:
            versions[package] = "unknown"
    return versions


def _commit() -> str | None:
    """The commit of the checkout that this file is in, with a + where it was changed since; None outside of one."""
    here = Path(__file__).parent
    try:
        git = partial(subprocess.run, cwd=here, capture_output=True, text=True, check=True, timeout=10)
        commit = git(["git", "rev-parse", "--short", "HEAD"]).stdout.strip()
        changed = git(["git", "status", "--porcelain", "--untracked-files=no", "--", "."]).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None
    return f"{commit}+" if changed else commit
