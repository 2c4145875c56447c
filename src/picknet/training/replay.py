"""CUDA graphs. A recurrent network launches hundreds of small operations a step, which takes the CPU longer than they
take the GPU. What a function launches is recorded once for each shape of its arguments, and then replayed at once.
"""

from collections import Counter
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

UNRECORDED_CALLS = 2
"""Calls with arguments of some shapes before these are recorded: rare shapes are not worth it, and libraries prepare
themselves when first called."""


class Recording(NamedTuple):
    """A CUDA graph with the memory that it reads and writes."""

    graph: torch.cuda.CUDAGraph
    arguments: tuple[Tensor, ...]
    results: tuple[Tensor, ...]

    def replay(self, arguments: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        """-> the results, valid until the next replay"""
        for own, given in zip(self.arguments, arguments, strict=True):
            own.copy_(given, non_blocking=True)
        self.graph.replay()
        return self.results


class Replayed:
    """A function of tensors, computed without gradients. On a CPU it is just called.

    It may not wait for the GPU, draw from a generator of its own, or do anything that depends on values of tensors.
    """

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function
        self._calls: Counter[Any] = Counter()
        self._recordings: dict[Any, Recording] = {}
        self._make: Callable[[Any], Any] = tuple

    def __call__(self, *arguments: Tensor, **settings: Any) -> Any:
        """settings: keywords of the function. A replay also takes arguments on the CPU, except for the first."""
        recording = self._recording(arguments, settings)
        if recording is None:
            with torch.no_grad():
                return self.function(*arguments, **settings)
        return self._make([result.clone() for result in recording.replay(arguments)])

    def _recording(self, arguments: tuple[Tensor, ...], settings: dict[str, Any]) -> Recording | None:
        if not arguments[0].is_cuda:
            return None
        key = (*((tuple(given.shape), given.dtype) for given in arguments), *settings.items())
        if key not in self._recordings:
            self._calls[key] += 1
            if self._calls[key] <= UNRECORDED_CALLS:
                return None
            self._recordings[key] = self._record(arguments, settings)
        return self._recordings[key]

    def _record(self, arguments: tuple[Tensor, ...], settings: dict[str, Any]) -> Recording:
        own = tuple(torch.empty_like(given, device=arguments[0].device).copy_(given) for given in arguments)
        graph = torch.cuda.CUDAGraph()
        # The graphs of a function are replayed one after the other, so that they can share memory.
        pool = next((recording.graph.pool() for recording in self._recordings.values()), None)
        with torch.cuda.graph(graph, pool=pool):
            results = self._run(own, settings)
        return Recording(graph, own, results)

    def _run(self, arguments: tuple[Tensor, ...], settings: dict[str, Any]) -> tuple[Tensor, ...]:
        with torch.no_grad():
            results = self.function(*arguments, **settings)
        if isinstance(results, Tensor):
            self._make = itemgetter(0)
            return (results,)
        self._make = getattr(results, "_make", tuple)
        return tuple(results)


class ReplayedLoss(Replayed):
    """A loss as a function of tensors, with its gradients with respect to those of the parameters that are trained."""

    def __init__(self, function: Callable[..., Tensor], parameters: Iterable[nn.Parameter]) -> None:
        super().__init__(function)
        self.parameters = tuple(dict.fromkeys(parameters))  # what two modules share has one gradient

    def __call__(self, *arguments: Tensor, **settings: Any) -> Tensor:
        if not arguments[0].is_cuda:
            loss: Tensor = self.function(*arguments, **settings)
        else:
            recording = self._recording(arguments, settings)
            # Always computed here and now: nothing can be recorded while gradients of an earlier call are to come.
            results = self._run(arguments, settings) if recording is None else recording.replay(arguments)
            loss = _WithGradients.apply(results[0], results[1:], *self._trained())  # type: ignore[no-untyped-call]
        return loss

    def _run(self, arguments: tuple[Tensor, ...], settings: dict[str, Any]) -> tuple[Tensor, ...]:
        loss = self.function(*arguments, **settings)
        gradients = torch.autograd.grad(loss, self._trained(), materialize_grads=True)
        return loss.detach(), *gradients

    def _trained(self) -> tuple[nn.Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.requires_grad)


class _WithGradients(torch.autograd.Function):
    """A loss whose gradients are known already."""

    @staticmethod
    def forward(context: Any, loss: Tensor, gradients: tuple[Tensor, ...], *parameters: nn.Parameter) -> Tensor:
        context.gradients = gradients
        return loss.clone()

    @staticmethod
    def backward(context: Any, *scales: Tensor) -> Any:
        return None, None, *torch._foreach_mul(list(context.gradients), scales[0])
