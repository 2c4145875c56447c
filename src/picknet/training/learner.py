"""Optimiser steps: gradients in parts where the GPU's memory is short, clipping, and the average of the weights."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from picknet.config import CaptioningConfig, ReinforcementConfig, SupervisionConfig
from picknet.errors import PicknetError

MAX_GRADIENT_NORM = 5.0

StageConfig = CaptioningConfig | ReinforcementConfig
Figures = dict[str, Tensor]
"""Scalars measured on a batch, by name."""


class Batch(Protocol):
    """What a step learns from. It can be split into parts where memory is short."""

    def __len__(self) -> int: ...

    def parts(self, count: int) -> "Sequence[Batch]":
        """At most `count` parts that together are the batch."""


BatchLoss = Callable[[Any], tuple[Tensor, Figures]]
"""A batch -> its loss and other figures."""

Step = Callable[[Any, BatchLoss], None]
"""An optimiser step on a batch: `Learner.step`."""


class OutOfMemory(PicknetError):
    """A batch of a single clip does not fit into the GPU's memory."""


@dataclass(frozen=True)
class Weights:
    """The weights that a stage trains."""

    trained: dict[str, nn.Parameter]
    averaged: dict[str, nn.Parameter]
    """Their exponential moving average; the parameters themselves if there is none."""
    optimiser: torch.optim.Optimizer


class BatchParts:
    """The number of parts that batches are split into to fit the GPU's memory. It doubles when memory runs out."""

    def __init__(self, note: Callable[[str], None] = lambda text: None) -> None:
        self.count = 1
        self._note = note

    def double(self, batch_size: int) -> None:
        if self.count >= batch_size:
            raise OutOfMemory("the GPU's memory does not hold a batch of one clip; try a smaller model.image_size")
        self.count *= 2
        torch.cuda.empty_cache()
        self._note(f"out of GPU memory: batches are split into {self.count} parts from now on")


class Learner:
    """The optimiser steps of one epoch, and the means of what was measured in them."""

    def __init__(
        self,
        weights: Weights,
        *,
        decay: float,
        steps: int,
        rate_factor: Callable[[int], float],
        parts: BatchParts | None = None,
    ) -> None:
        """decay: of the moving average, 0 for none. steps: of the stage so far. rate_factor: steps so far -> factor on
        the learning rates."""
        self.weights, self.decay, self.steps, self.rate_factor = weights, decay, steps, rate_factor
        self.parts = parts or BatchParts()
        self._sums: Figures = {}
        self._first_step = steps

    def step(self, batch: Batch, batch_loss: BatchLoss) -> None:
        trained: list[Tensor] = list(self.weights.trained.values())
        averaged: list[Tensor] = list(self.weights.averaged.values())
        figures = self._backward(batch, batch_loss)
        while figures is None:
            self.parts.double(len(batch))
            figures = self._backward(batch, batch_loss)
        nn.utils.clip_grad_norm_(trained, MAX_GRADIENT_NORM)
        for group in self.weights.optimiser.param_groups:
            group["lr"] = group["full_rate"] * self.rate_factor(self.steps)
        self.weights.optimiser.step()
        if self.decay:
            # The average follows closely at first, so that the initial weights do not linger in it.
            decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
            with torch.no_grad():
                torch._foreach_lerp_(averaged, trained, 1 - decay)
        self.steps += 1
        for key, value in figures.items():
            self._sums[key] = self._sums[key] + value if key in self._sums else value

    def means(self) -> dict[str, float]:
        return {key: float(total) / (self.steps - self._first_step) for key, total in self._sums.items()}

    def _backward(self, batch: Batch, batch_loss: BatchLoss) -> Figures | None:
        """Accumulate the gradients of a batch part by part; returns its figures, or None if memory ran out."""
        self.weights.optimiser.zero_grad(set_to_none=True)
        figures: Figures = {}
        try:
            for part in batch.parts(self.parts.count):
                loss, part_figures = batch_loss(part)
                measured = {"loss": loss.detach()} | part_figures
                share = len(part) / len(batch)
                torch.autograd.backward(loss * share)
                for key, value in measured.items():
                    figures[key] = figures[key] + value * share if key in figures else value * share
        except torch.OutOfMemoryError:
            return None  # the tensors of this call are only freed once it has returned
        return figures


def rate_factor(stage: StageConfig, epoch: int, steps: int) -> float:
    """The factor on the learning rates in an epoch, after `steps` steps of the stage: schedule and warm-up."""
    factor = 1.0 if stage.schedule == "constant" else 0.5 * (1 + math.cos(math.pi * epoch / stage.epochs))
    warmup_steps = stage.warmup_steps if isinstance(stage, SupervisionConfig) else 0
    return factor * min(1.0, (steps + 1) / (warmup_steps + 1))
