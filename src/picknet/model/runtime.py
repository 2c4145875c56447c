"""A model folder's graphs as plain functions on arrays. The only file that imports OpenVINO.

A model folder holds `config.toml`, `words.txt`, `card.json` (facts for people), `weights.safetensors`, and four ONNX
graphs that refer to the weights by offset, so each weight is stored once. Nothing in it can run code.
"""

import functools
import hashlib
import io
import os
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.model import cache
from picknet.model.folder import (
    GRAPHS,
    MEND,
    WEIGHTS,
    BadModel,
    Signature,
    check_complete,
    check_graph_file,
    gist,
    read_bytes,
    read_card,
    read_config,
    read_tensor_spans,
    read_words,
    signatures,
)

Array = NDArray[Any]

_TYPES = {"f32": np.float32, "u8": np.uint8, "i64": np.int64}


PRECISION = {"cnn": "f16", "policy": "f32", "encoder": "f32", "decoder": "f32"}
"""What each graph computes in, where the processor can; a processor without f16 takes f32.

On ARM, f16 makes EfficientNet-Lite2 1.7 times as fast, and its features some 3 % other than those of f32. The other
graphs are cheap, and f32 keeps their sums exact over many steps.
"""
SMALL = frozenset({"policy", "encoder"})
"""Graphs that take less time than it takes two threads to meet."""
KEPT = frozenset({"cnn", "policy"})
"""Graphs that are compiled once for all runs. The others are mostly weights, and take as long to read as to compile."""


class State(NamedTuple):
    """The encoder's memory: all that is kept of the frames picked so far."""

    h: Array
    """The video v: (n, state)."""
    c: Array
    """(n, state)."""
    keys: Array
    """(n, cells of the last picks, embedding); nothing where the decoder does not look back at frames."""
    values: Array

    def of(self, rows: Array) -> "State":
        """The memories of some of the videos."""
        return State(*(part[rows] for part in self))


class Look:
    """A frame on its way through the CNN, beside whatever else is done in the meantime."""

    def __init__(self, request: Any, idle: list[Any]) -> None:
        self._request = request
        self._idle = idle

    @property
    def is_over(self) -> bool:
        return bool(self._request.wait_for(0))

    def features(self) -> Array:
        """Waits for them: (1, cells, feature). They can be had once."""
        self._request.wait()
        features = np.array(self._request.get_output_tensor().data)
        self._idle.append(self._request)
        return features


class _Compiled:
    """A compiled graph, used once after the other.

    Inputs are copied into arrays that it keeps: to hand over new ones takes longer than a small graph does.
    """

    def __init__(self, compiled: Any, signature: Signature) -> None:
        inputs, self._outputs = signature
        self.graph = compiled
        self._request = compiled.create_infer_request()
        self._types = {name: _TYPES[told.split()[0]] for name, told in inputs.items()}
        self._inputs: dict[str, Array] = {}

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        import openvino

        for name, given in inputs.items():
            if name in self._inputs and self._inputs[name].shape == given.shape:
                np.copyto(self._inputs[name], given)
            else:
                self._inputs[name] = np.array(given, self._types[name], order="C")
                self._request.set_tensor(name, openvino.Tensor(self._inputs[name], shared_memory=True))
        self._request.infer()
        return {name: np.array(self._request.get_tensor(name).data) for name in self._outputs}


class Runtime:
    """The four graphs of a model folder. All parts are checked at once; a graph is compiled when it is first used.

    One thread at a time may use it.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        check_complete(self.folder)
        self.card = read_card(self.folder / "card.json")
        self.config = read_config(self.folder / "config.toml")
        self.vocabulary = read_words(self.folder / "words.txt")
        self._sizes = {
            "image": (self.config.model.image_size, "config.toml"),
            "state": (self.config.model.state_size, "config.toml"),
            "words": (len(self.vocabulary), "words.txt"),
            "cells": (self.config.model.grid**2, "config.toml"),
            "embedding": (self.config.model.embedding_size, "config.toml"),
        }
        """What each size is, and which part says so."""
        tensors = read_tensor_spans(self.folder / WEIGHTS)
        self._precision = PRECISION
        self._graphs: dict[str, Any] = {}
        self._compiled: dict[tuple[str, str], _Compiled] = {}
        self._idle_requests: list[Any] = []
        """Of the CNN, which takes several frames at a time."""
        self._begun: dict[tuple[str, str], Future[Any]] = {}
        self._signatures = signatures(attended=self.config.model.attention_heads > 0)
        for name in GRAPHS:
            path = self.folder / f"{name}.onnx"
            check_graph_file(path, tensors)
            self._graphs[name] = _read_graph(path)
            self._check_signature(name)

    @property
    def glance_size(self) -> int:
        return self._sizes["glance"][0]

    def begin(self) -> None:
        """Have those graphs compiled that a caption needs last, beside whatever comes first."""
        wanted = [(name, self._precision[name]) for name in ("encoder", "decoder")]
        if self._begun or any(key in self._compiled for key in wanted):
            return
        compiling = ThreadPoolExecutor(1)
        self._begun = {key: compiling.submit(self._compile, *key) for key in wanted}
        compiling.shutdown(wait=False)

    @property
    def rounds(self) -> bool:
        """Whether the CNN computes in less than 32 bits here."""
        return self._precision["cnn"] == "f16" and "FP16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")

    @property
    def policy_looks(self) -> bool:
        """Whether the policy depends on glances. One that has learned nothing from them goes by its waits alone."""
        ports = self._graphs["policy"].inputs
        return any(port.get_target_inputs() for port in ports if not port.names.isdisjoint({"glances", "templates"}))

    def look(self, pixels: Array) -> Look:
        """Begin with the features of a frame. pixels: (image, image, 3) uint8 RGB"""
        cnn = self._graph("cnn").graph
        request = self._idle_requests.pop() if self._idle_requests else cnn.create_infer_request()
        # Not shared: OpenVINO would write the pixels of the next frame over those of this one.
        request.start_async({"pixels": pixels[None]}, share_inputs=False)
        return Look(request, self._idle_requests)

    def features(self, pixels: Array) -> Array:
        """pixels: (n, image, image, 3) uint8 RGB -> features: (n, cells, feature)"""
        return np.concatenate([look.features() for look in [self.look(one) for one in pixels]])

    def exact_features(self, pixels: Array) -> Array:
        """The same in 32 bits, whatever is faster."""
        return self._run("cnn", "f32", pixels=pixels)["features"]

    def policy(self, glances: Array, templates: Array, waits: Array) -> Array:
        """glances, templates (the last picked ones): (n, glance, glance) uint8, waits (strides since then): (n,)
        -> probabilities of picking: (n,)"""
        logits = self._run("policy", glances=glances, templates=templates, waits=waits)["logits"]
        # A softmax over two is the logistic function of their difference; written with tanh it cannot overflow.
        probabilities: Array = 0.5 + 0.5 * np.tanh((logits[:, 1] - logits[:, 0]) / 2)
        return probabilities

    def start(self, count: int = 1) -> State:
        """The memory of `count` videos before their first frame."""
        zeros = np.zeros((count, self.config.model.state_size), dtype=np.float32)
        nothing = np.zeros((count, 0, self.config.model.embedding_size), dtype=np.float32)
        return State(zeros, zeros, nothing, nothing)

    def encode(self, features: Array, state: State) -> State:
        """features: (n, cells, feature), or (1, cells, feature) where n videos have the same frame; the memory so far
        -> the memory with this frame in it"""
        results = self._run("encoder", features=features, h=state.h, c=state.c)
        h, c = results["next_h"], results["next_c"]
        if not self.config.model.attention_heads:
            return State(h, c, state.keys, state.values)
        # An endless stream must not fill the memory: the cells of the oldest picks are let go.
        kept = self.config.video.num_frames * self.config.model.grid**2
        keys, values = (
            np.concatenate([before, np.broadcast_to(now, (len(h), *now.shape[1:]))], axis=1)[:, -kept:]
            for before, now in ((state.keys, results["keys"]), (state.values, results["values"]))
        )
        return State(h, c, keys, values)

    def decode(self, words: Array, memory: State, states: Array) -> tuple[Array, Array]:
        """words: (n,) int64, the memory of one video or of n, the decoder's states: (n, state)
        -> log-probabilities of what follows: (n, words), next states"""
        looked_at = {"keys": memory.keys, "values": memory.values} if self.config.model.attention_heads else {}
        results = self._run("decoder", words=words, video=memory.h, **looked_at, state=states)
        return results["log_probabilities"], results["next_state"]

    def _run(self, name: str, precision: str | None = None, /, **inputs: Array) -> dict[str, Array]:
        return self._graph(name, precision)(inputs)

    def _graph(self, name: str, precision: str | None = None) -> _Compiled:
        key = name, precision or self._precision[name]
        if key not in self._compiled:
            compiled = self._begun[key].result() if key in self._begun else self._compile(*key)
            self._compiled[key] = _Compiled(compiled, self._signatures[name])
        return self._compiled[key]

    def _compile(self, name: str, precision: str) -> Any:
        """The graph, compiled for this machine now or by an earlier run."""
        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
        # Its threads share the cores with those that decode the video, and must be free to move.
        settings["ENABLE_CPU_PINNING"] = "NO"
        if name in SMALL:
            settings["INFERENCE_NUM_THREADS"] = "1"
        entry = f"{name}-{self._fingerprint(name, settings)}" if name in KEPT else None
        if entry and (kept := cache.kept(entry)) is not None:
            try:
                return _core().import_model(kept, "CPU", settings)
            except RuntimeError:
                pass  # OpenVINO has its own checks; what it refuses is made again
        try:
            compiled = _core().compile_model(self._graphs[name], "CPU", settings)
        except RuntimeError as error:
            raise BadModel(f"{self.folder / name}.onnx: cannot be compiled ({gist(error)}); {MEND}") from error
        if entry:
            exported = io.BytesIO()
            compiled.export_model(exported)
            cache.keep(entry, exported.getbuffer())
        return compiled

    def _fingerprint(self, name: str, settings: Mapping[str, str]) -> str:
        """Another for all that could make a compiled graph another: model, machine, version, settings."""
        import openvino

        machine = [str(_core().get_property("CPU", key)) for key in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")]
        told = [openvino.get_version(), *machine, *(f"{key}={value}" for key, value in settings.items())]
        graph = read_bytes(self.folder / f"{name}.onnx")
        return hashlib.sha256("\n".join([*told, self._weights_digest]).encode() + graph).hexdigest()[:32]

    @functools.cached_property
    def _weights_digest(self) -> str:
        with (self.folder / WEIGHTS).open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def _check_signature(self, name: str) -> None:
        path = self.folder / f"{name}.onnx"
        inputs, outputs = self._signatures[name]
        for expected, ports in ((inputs, self._graphs[name].inputs), (outputs, self._graphs[name].outputs)):
            found = {next(iter(port.names), "?"): port for port in ports}
            if len(ports) != len(expected) or found.keys() != expected.keys():
                raise BadModel(f"{path}: has {', '.join(found)} where {', '.join(expected)} was expected; {MEND}")
            for port_name, signature in expected.items():
                port = found[port_name]
                sizes = ["n" if size.is_dynamic else str(size.get_length()) for size in port.partial_shape]
                self._check_port(path, port_name, [port.element_type.get_type_name(), *sizes], signature)

    def _check_port(self, path: Path, port: str, found: list[str], signature: str) -> None:
        expected = signature.split()
        for symbol, size in zip(expected, found, strict=False):
            if symbol == "n" or not (symbol.isalpha() and size.isdigit()):
                continue
            known, source = self._sizes.setdefault(symbol, (int(size), path.name))
            if int(size) != known:
                raise BadModel(
                    f"{path}: {port} has {symbol} size {size}, but it is {known} in {source}: "
                    f"they are parts of different models; {MEND}"
                )
        resolved = [str(self._sizes[symbol][0]) if symbol in self._sizes else symbol for symbol in expected]
        if found != resolved:
            raise BadModel(f"{path}: {port} is {' '.join(found)} where {signature} was expected; {MEND}")


@functools.cache
def _core() -> Any:
    """OpenVINO's core: one for the whole process, never let go.

    A core sets up a stack for signal handlers, and puts back the one before it when it goes. Where several come and go,
    that one may be gone as well, and the next Ctrl-C would crash Python.
    """
    import openvino

    return openvino.Core()


def _read_graph(path: Path) -> Any:
    # Core.read_model would offer a damaged file to every other format it knows, and they complain on stderr.
    from openvino.frontend import FrontEndManager

    frontend = FrontEndManager().load_by_framework("onnx")
    try:
        return frontend.convert(frontend.load(str(path)))
    except Exception as error:  # OpenVINO's own errors share no base class
        raise BadModel(f"{path}: is not a graph that OpenVINO can read ({gist(error)}); {MEND}") from error


