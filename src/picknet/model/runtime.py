"""The graphs of a model folder as functions on arrays, safe to call from several threads."""

import contextlib
import os
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.model.critic import Critic
from picknet.model.folder import GRAPHS, BadModel, ModelFolder
from picknet.model.graphs import CompiledGraph, Graph, PendingFeatures, Sizes, signatures
from picknet.model.match import Match
from picknet.model.rate_policy import RatePolicy
from picknet.model.tags import Forecast, Tags

__all__ = ["PRECISION", "EncoderState", "PendingFeatures", "Runtime"]

Array = NDArray[Any]

PRECISION = {"cnn": "f16", "policy": "f32", "encoder": "f16", "decoder": "f16"}
"""What each graph computes in. A processor without f16 uses f32, and for encoder and decoder weights in 8 bits.

On ARM, f16 makes EfficientNet-Lite2 1.7 times as fast, and encoder and decoder, most of whose time goes into reading
weights, 1.6 and 1.8 times. Features are then some 3 % off, and log-probabilities of words 0.03. That changes the words
of 8 % of captions, for better as often as for worse (benchmarks/agreement.py). The policy stays exact, since picks
depend on sums over many frames.
"""
MAX_QUEUED_FRAMES = 4
"""Frames of one call that are given to the CNN ahead of time: enough that it never waits for the next."""


class EncoderState(NamedTuple):
    """The encoder's state: all that is remembered of the frames picked so far."""

    h: Array
    """The video v: (n, state)."""
    c: Array
    """(n, state)."""
    keys: Array
    """(n, cells of the last picks, embedding); empty for a decoder without attention."""
    values: Array
    """As the keys."""
    seen: Array
    """The sum of the CNN's features of all picks, mean over cells: (n, feature), (n, 1) before the first."""

    def of(self, rows: Array) -> "EncoderState":
        """The states of some of the videos."""
        return EncoderState(*(part[rows] for part in self))


class Runtime:
    """The four graphs of a model folder; a policy with a memory is computed in NumPy instead.

    All parts are checked at once; a graph is compiled when it is first used.

    Thread-safe: any number of threads may call any method.
    """

    def __init__(self, folder: str | os.PathLike[str], *, side_by_side: bool = False) -> None:
        """side_by_side: for captions of several videos at once, each inference has one thread."""
        self.parts = parts = ModelFolder(folder, hashes_ahead=True)
        self.folder = parts.path
        self.card = parts.card
        self.config = parts.config
        self.vocabulary = parts.vocabulary
        model = self.config.model
        sizes: Sizes = {
            "image": (model.image_size, "config.toml"),
            "words": (len(self.vocabulary), "words.txt"),
            "cells": (model.grid**2, "config.toml"),
            "embedding": (model.embedding_size, "config.toml"),
        }
        if model.system == "picknet":  # other systems keep several states, or more than states
            sizes["state"] = sizes["written"] = (model.state_size, "config.toml")
            sizes["attended"] = sizes["cells"]
        expected = signatures(attention=model.attends, picker=model.picker, glance=model.glance)
        self.graphs = {name: Graph(parts, name, expected[name], sizes, side_by_side=side_by_side) for name in GRAPHS}
        self.glance_size = sizes["glance"][0]
        self._rate_policy = RatePolicy(parts) if model.picker == "rate" else None
        self.tags = Tags.of(parts, feature_size=sizes["feature"][0], state_size=sizes["written"][0])
        """None where the model has none."""
        self._state_size, self._written_size = sizes["state"][0], sizes["written"][0]
        self._precision = dict(PRECISION)
        self._compiling_ahead = threading.Lock()

    def compile_ahead(self) -> None:
        """Compile the graphs in the background, those that are needed last in a thread of their own."""
        if self._compiling_ahead.acquire(blocking=False):  # never released: only the first call starts threads
            first = ("cnn",) if self._rate_policy else ("policy", "cnn")
            for names in (first, ("encoder", "decoder")):
                threading.Thread(target=self._compile, args=names, name="picknet-compile").start()

    def start_features(self, pixels: Array) -> PendingFeatures:
        """Start to compute the features of a frame in the background. pixels: (image, image, 3) uint8 RGB"""
        return self._compiled("cnn").start(pixels)

    def features(self, pixels: Array) -> Array:
        """pixels: (n, image, image, 3) uint8 RGB -> features: (n, cells, feature)"""
        # Frame by frame, as `start_features` computes them: the same numbers to the last bit.
        features: list[Array] = []
        pending: deque[PendingFeatures] = deque()
        for one in pixels:
            pending.append(self.start_features(one))
            if len(pending) > MAX_QUEUED_FRAMES:
                features.append(pending.popleft().result())
        return np.concatenate([*features, *(one.result() for one in pending)])

    def policy(self, inputs: Mapping[str, Array]) -> Mapping[str, Array]:
        """The policy: named inputs -> named outputs, each (n, …), as those of its graph; see `graphs.py`."""
        policy = self._rate_policy or self._compiled("policy")
        count = len(inputs["glances"])
        if count == 1:
            return policy(inputs)
        rows = [policy({name: array[i : i + 1] for name, array in inputs.items()}) for i in range(count)]
        return {name: np.concatenate([row[name] for row in rows]) for name in rows[0]} if rows else {}

    def start(self, count: int = 1) -> EncoderState:
        """The state of `count` videos before their first frame."""
        zeros = np.zeros((count, self._state_size), dtype=np.float32)
        no_cells = np.zeros((count, 0, self.config.model.embedding_size), dtype=np.float32)
        return EncoderState(zeros, zeros, no_cells, no_cells, zeros[:, :1])

    def encode(self, features: Array, state: EncoderState) -> EncoderState:
        """features: (n, cells, feature), or (1, cells, feature) where n videos have the same frame; the state so far
        -> the state after this frame"""
        results = self._run("encoder", features=features, h=state.h, c=state.c)
        h, c, seen = results["next_h"], results["next_c"], state.seen + features.mean(axis=1)
        if not self.config.model.attends:
            return EncoderState(h, c, state.keys, state.values, seen)
        # Memory stays bounded in an endless stream: the cells of the oldest picks are dropped.
        max_cells = self.config.video.num_frames * results["keys"].shape[1]
        keys, values = (
            np.concatenate([before, np.broadcast_to(now, (len(h), *now.shape[1:]))], axis=1)[:, -max_cells:]
            for before, now in ((state.keys, results["keys"]), (state.values, results["values"]))
        )
        return EncoderState(h, c, keys, values, seen)

    def start_sentence(self, count: int = 1) -> Array:
        """The decoder's states before the first words of `count` sentences: (count, written)"""
        return np.zeros((count, self._written_size), dtype=np.float32)

    def decode(self, words: Array, memory: EncoderState, states: Array) -> tuple[Array, Array]:
        """words: (n,) int64, the encoder's state of one video or of n, the decoder's states: (n, written)
        -> log-probabilities of the next words: (n, words), next states"""
        attended = {"keys": memory.keys, "values": memory.values} if self.config.model.attends else {}
        results = self._run("decoder", words=words, video=memory.h, **attended, state=states)
        return results["log_probabilities"], results["next_state"]

    def forecast(self, dataset: str | None) -> Forecast | None:
        """That for captions in the style of a data set; None where the model has none."""
        return self.tags.forecasts.get(dataset) if self.tags and dataset else None

    def match(self, dataset: str | None) -> Match | None:
        """The same."""
        return self.tags.matches.get(dataset) if self.tags and dataset else None

    def critic(self, dataset: str | None) -> Critic | None:
        """The same."""
        return self.tags.critics.get(dataset) if self.tags and dataset else None

    def _run(self, name: str, /, **inputs: Array) -> dict[str, Array]:
        return self._compiled(name)(inputs)

    def _compiled(self, name: str) -> CompiledGraph:
        return self.graphs[name].compiled(self._precision[name])

    def _compile(self, *names: str) -> None:
        with contextlib.suppress(BadModel, MemoryError, RuntimeError):  # raised again when the graph is used
            for name in names:
                self._compiled(name)
