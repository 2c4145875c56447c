"""One graph of a model folder: read and checked at once, compiled when it is first used. Imports OpenVINO.

Graphs are thread-safe. Each is compiled once, with one stream: OpenVINO runs one inference of a graph at a time, on all
cores for the large graphs, and different graphs in parallel.
"""

import functools
import hashlib
import io
import math
import sys
import threading
from collections import deque
from collections.abc import Mapping, MutableMapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet import cache
from picknet.config import GlanceKind
from picknet.model.eight_bits import in_eight_bits
from picknet.model.folder import EXPORT_AGAIN, BadModel, ModelFolder, last_line
from picknet.video.frame import GLANCE_CHANNELS
from picknet.workers import num_cores

Array = NDArray[Any]
Signature = tuple[dict[str, str], dict[str, str]]
"""A graph's inputs and outputs: type and shape. n is any number; a name means the same size in all graphs.

The first sizes of a graph's inputs are the same n, or 1 for all: the encoder takes one frame for many videos, the
decoder one video (with its keys and values) for many sentences.
"""
Sizes = MutableMapping[str, tuple[int, str]]
"""A symbol in a signature -> its size, and the file that states it."""

_DTYPES = {"f32": np.float32, "u8": np.uint8, "i64": np.int64}

SINGLE_THREADED = frozenset({"policy"})
"""Graphs so small that sharing an inference between two threads takes longer than the inference."""
ONE_BY_ONE = frozenset({"cnn", "policy"})
"""Graphs that are compiled for a single frame: with a fixed shape an inference of the CNN takes a tenth less, one of a
policy half as long. The numbers are the same."""
MOSTLY_WEIGHTS = frozenset({"encoder", "decoder"})
"""Graphs whose weights are read in 8 bits by a processor without 16-bit arithmetic: a step takes a third less time."""
_CONVERTER = "openvino.tools.ovc"
MAX_ROWS = 100
"""The widest beam: so many sentences may have the same step. Of more, sizes are not checked."""
MAX_NUMBERS = {1: (2**26, 2**28), MAX_ROWS: (2**29, 2**31)}
"""Numbers in one tensor of a graph, and in all that it computes, for one frame or sentence and for many. The shipped
CNN has 1.6 and 72 million; the keys of 30 frames of 14 × 14 cells, 512 numbers each, for 100 videos 0.3 billion."""
MAX_PRODUCTS = 2**38
"""Multiplications of a graph for one frame or sentence, a few seconds: 2.7e11. The shipped CNN takes 0.9e9, ResNet-152
1.2e10, and ConvNeXt-XXLarge, among the largest that timm has, 2e11."""
MAX_IDLE_REQUESTS = 16
"""Infer requests of a graph that are kept for the next inferences, each with its buffers (0.3 MB for the CNN)."""


def signatures(*, attention: bool, picker: str, glance: GlanceKind) -> dict[str, Signature]:
    """The graphs of a model folder, with or without attention over the cells of the picked frames, by its picker and
    its kind of glance."""
    cells_of_frame = {"keys": "f32 n attended embedding", "values": "f32 n attended embedding"} if attention else {}
    cells_of_video = {"keys": "f32 n n embedding", "values": "f32 n n embedding"} if attention else {}
    return {
        "cnn": (
            {"pixels": "u8 n image image 3"},
            {"features": "f32 n cells feature"},
        ),
        "policy": _policy(picker, glance),
        "encoder": (
            {"features": "f32 n cells feature", "h": "f32 n state", "c": "f32 n state"},
            {"next_h": "f32 n state", "next_c": "f32 n state", **cells_of_frame},
        ),
        "decoder": (
            {"words": "i64 n", "video": "f32 n state", **cells_of_video, "state": "f32 n written"},
            {"log_probabilities": "f32 n words", "next_state": "f32 n written"},
        ),
    }


def _policy(picker: str, glance: GlanceKind) -> Signature:
    # A grey glance, the paper's, has no axis for channels.
    glances = "u8 n glance glance" if glance == "grey" else f"u8 n {GLANCE_CHANNELS[glance]} glance glance"
    if picker == "difference":
        # templates: the last picked glances
        return {"glances": glances, "templates": glances}, {"logits": "f32 n 2"}  # drop, pick
    return (
        # previous: the last glances; recent, picked: embeddings of the last frames and of the last picks, newest first;
        # clock: frames since the last pick or the start, and whether there is a pick. Sizes: see picking/learned.py
        {
            "glances": glances,
            "previous": glances,
            "state": "f32 n 64",
            "recent": "f32 n 4 260",
            "picked": "f32 n 16 260",
            "clock": "f32 n 2",
        },
        {"logits": "f32 n", "embeddings": "f32 n 260", "next_state": "f32 n 64"},
    )


class Graph:
    """A graph read from an ONNX file and checked against its signature. Any number of threads may use it."""

    def __init__(
        self, folder: ModelFolder, name: str, signature: Signature, sizes: Sizes, *, side_by_side: bool = False
    ) -> None:
        """sizes: those known so far; those that this graph is the first to state are added.

        side_by_side: each inference has one thread, and as many run at once as there are cores.
        """
        self.name = name
        self._side_by_side = side_by_side
        self.model = _read(folder.path / f"{name}.onnx")
        """OpenVINO's model, not compiled."""
        self._folder = folder
        self._signature = signature
        self._check_signature(sizes)
        self._max_cells = folder.config.video.num_frames * sizes.get("attended", (1, ""))[0]
        self._compiled: dict[str, CompiledGraph] = {}
        self._lock = threading.Lock()

    def compiled(self, precision: str) -> "CompiledGraph":
        """The graph compiled for f16 or f32. The first caller compiles it, others wait."""
        with self._lock:
            if precision not in self._compiled:
                self._compiled[precision] = CompiledGraph(self._compile(precision), self._signature, self._path)
            return self._compiled[precision]

    @property
    def is_compiled(self) -> bool:
        return bool(self._compiled)

    def _compile(self, precision: str) -> Any:
        """Compile for this machine, or read the cached result of an earlier run."""
        settings = {"PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": precision}
        # Inference threads share the cores with those that decode the video, and must be free to move.
        settings["ENABLE_CPU_PINNING"] = "NO"
        if self.name in SINGLE_THREADED:
            settings["INFERENCE_NUM_THREADS"] = "1"
        elif self._side_by_side:
            del settings["PERFORMANCE_HINT"]
            settings["NUM_STREAMS"] = settings["INFERENCE_NUM_THREADS"] = str(num_cores())
        try:
            is_in_eight_bits = self.name in MOSTLY_WEIGHTS and precision == "f16" and not _has_f16()
            entry = f"{self.name}-{self._fingerprint(settings, is_in_eight_bits)}"
        except RuntimeError as error:
            raise _failure(self._path, "compiled", error) from error
        if (stored := cache.read(entry)) is not None:
            try:
                return _core().import_model(stored, "CPU", settings)
            except RuntimeError:
                pass  # an entry that OpenVINO's own checks refuse is written again
        model = self._checked(rows=1)
        if self.name not in ONE_BY_ONE:
            self._checked(rows=MAX_ROWS)
            model = self.model
        try:
            if is_in_eight_bits:
                model = in_eight_bits(model, _openvino().opset13)
            compiled = _core().compile_model(model, "CPU", settings)
        except RuntimeError as error:
            raise _failure(self._path, "compiled", error) from error
        exported = io.BytesIO()
        try:
            compiled.export_model(exported)
        except (RuntimeError, ValueError, MemoryError):  # without memory for it, it is compiled again the next time
            return compiled
        # Released at once: in Python 3.12, garbage collection of a BytesIO that still has a view may crash.
        with exported.getbuffer() as content:
            cache.write(entry, content)
        return compiled

    def _checked(self, *, rows: int) -> Any:
        """A copy of the model for at most so many frames or sentences, whose work is bounded."""
        model = self.model.clone()
        _bound_ranges(model)
        try:
            model.reshape({port: _bounded(port.partial_shape, rows, self._max_cells) for port in model.inputs})
        except RuntimeError as error:
            raise _failure(self._path, "compiled", error) from error
        _check_work(self._path, model, rows)
        return model

    def _fingerprint(self, settings: Mapping[str, str], is_in_eight_bits: bool) -> str:
        """Changes with everything a compiled graph depends on: model, machine, OpenVINO's version, settings."""
        machine = [str(_core().get_property("CPU", key)) for key in ("FULL_DEVICE_NAME", "OPTIMIZATION_CAPABILITIES")]
        facts = [_openvino().get_version(), *machine, *(f"{key}={value}" for key, value in settings.items())]
        facts += [self._folder.weights_digest, "one by one" if self.name in ONE_BY_ONE else "any number"]
        facts += ["8 bits"] * is_in_eight_bits
        return hashlib.sha256("\n".join(facts).encode() + self._folder.read(f"{self.name}.onnx")).hexdigest()[:32]

    @property
    def _path(self) -> Path:
        return self._folder.path / f"{self.name}.onnx"

    def _check_signature(self, sizes: Sizes) -> None:
        path = self._path
        for expected, ports in zip(self._signature, (self.model.inputs, self.model.outputs), strict=True):
            found = {next(iter(port.names), "?"): port for port in ports}
            if len(ports) != len(expected) or found.keys() != expected.keys():
                raise BadModel(
                    f"{path}: has {', '.join(found)} where {', '.join(expected)} was expected; {EXPORT_AGAIN}"
                )
            for port_name, type_and_shape in expected.items():
                port = found[port_name]
                shape = ["n" if size.is_dynamic else str(size.get_length()) for size in port.partial_shape]
                _check_port(path, port_name, [port.element_type.get_type_name(), *shape], type_and_shape, sizes)


class CompiledGraph:
    """A compiled graph and its infer requests. The CNN is started in the background, the other graphs are called."""

    def __init__(self, compiled: Any, signature: Signature, path: Path) -> None:
        """path: of its file, for messages."""
        inputs, outputs = signature
        self._compiled = compiled
        self._path = path
        self._dtypes = {name: _DTYPES[type_and_shape.split()[0]] for name, type_and_shape in inputs.items()}
        self._outputs = [name for port in compiled.outputs for name in outputs if name in port.names]
        self._lock = threading.Lock()
        self._request: Any = None
        self._inputs: dict[str, Array] = {}
        self._idle: deque[Any] = deque(maxlen=MAX_IDLE_REQUESTS)

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Inputs by name -> outputs by name, copies both.

        Calls are made one at a time, by one request: with one stream, a request for each thread would be no faster.
        Its input arrays are kept, since handing over new ones takes longer than the inference of a small graph.
        """
        with self._lock:
            if self._request is None:
                self._request = self._compiled.create_infer_request()
            for name, given in inputs.items():
                if name in self._inputs and self._inputs[name].shape == given.shape:
                    np.copyto(self._inputs[name], given)
                else:
                    # Forgotten first: after Ctrl-C in between, the array and the request's tensor must not differ.
                    self._inputs.pop(name, None)
                    array = np.array(given, self._dtypes[name], order="C")
                    self._request.set_tensor(name, _openvino().Tensor(array, shared_memory=True))
                    self._inputs[name] = array
            # Faster than `infer`, which makes a dictionary of ports.
            self._request.start_async(share_inputs=True)
            _wait(self._request, self._path)
            found = [np.array(self._request.get_output_tensor(index).data) for index in range(len(self._outputs))]
        if any(np.isnan(output).any() for output in found):
            raise BadModel(f"{self._path}: computes what is not a number: its weights are damaged; {EXPORT_AGAIN}")
        rows = [len(given) for given in inputs.values()]
        for name, output in zip(self._outputs, found, strict=True):
            if len(output) not in (rows[0], max(rows)):  # videos may share the first input
                raise BadModel(f"{self._path}: {name} has {len(output)} rows for {max(rows)}: damaged; {EXPORT_AGAIN}")
        return dict(zip(self._outputs, found, strict=True))

    def start(self, pixels: Array) -> "PendingFeatures":
        """Start an inference of the CNN in the background, for one frame. pixels: (image, image, 3) uint8 RGB"""
        try:
            request = self._idle.pop()
        except IndexError:
            request = self._compiled.create_infer_request()
        # No request shares its input: OpenVINO would write the next frame, which is copied, into an array it shares.
        request.start_async({"pixels": pixels[None]}, share_inputs=False)
        return PendingFeatures(request, self._idle, self._path)


class PendingFeatures:
    """The features of a frame, which the CNN computes in the background."""

    def __init__(self, request: Any, idle: deque[Any], path: Path) -> None:
        """path: of the graph's file, for messages."""
        self._request = request
        self._idle = idle
        self._path = path
        self._lock = threading.Lock()
        self._result: Array | None = None

    @property
    def is_ready(self) -> bool:
        return self._result is not None or bool(self._request.wait_for(0))

    def result(self) -> Array:
        """Wait for them: (1, cells, feature)"""
        with self._lock:
            if self._result is None:
                _wait(self._request, self._path)
                self._result = np.array(self._request.get_output_tensor().data)
                self._idle.append(self._request)
            return self._result


def _wait(request: Any, path: Path) -> None:
    """Wait for an inference. Sizes that fit one frame or sentence need not fit several."""
    try:
        request.wait()
    except RuntimeError as error:
        raise _failure(path, "computed", error) from error


def _failure(path: Path, what: str, error: RuntimeError) -> Exception:
    """What an error of OpenVINO means: without memory for data, threads or its library, the graph is not to blame."""
    reason = last_line(error)
    if "alloc" in reason or "Resource temporarily unavailable" in reason or "failed to map segment" in str(error):
        return MemoryError(f"{path}: cannot be {what}")
    return BadModel(f"{path}: cannot be {what} ({reason}); {EXPORT_AGAIN}")


_core_lock = threading.Lock()


def _core() -> Any:
    """OpenVINO's core: one for the whole process, never deleted.

    A core sets up a stack for signal handlers, and restores the previous one when it is deleted. Where several are
    created and deleted, the restored stack may be gone as well, and the next Ctrl-C would crash Python.
    """
    with _core_lock:  # a cache alone would let two threads create one each
        return _only_core()


@functools.cache
def _only_core() -> Any:
    return _openvino().Core()


def _has_f16() -> bool:
    """Whether the processor computes in 16 bits."""
    return "FP16" in _core().get_property("CPU", "OPTIMIZATION_CAPABILITIES")


def _openvino() -> Any:
    """OpenVINO without its converter of models, which takes as long to import as all the rest.

    A module that is None cannot be imported, which OpenVINO is prepared for. Later the converter can be.
    """
    modules: dict[str, Any] = sys.modules
    if "openvino" not in modules:
        modules.setdefault(_CONVERTER, None)
    import openvino

    if modules.get(_CONVERTER, openvino) is None:
        modules.pop(_CONVERTER, None)
    return openvino


def _read(path: Path) -> Any:
    # Core.read_model would offer a damaged file to every other format it knows, and they write to stderr.
    frontend = _openvino().frontend.FrontEndManager().load_by_framework("onnx")
    try:
        return frontend.convert(frontend.load(str(path)))
    except Exception as error:  # OpenVINO's own errors share no base class
        if "Cannot allocate memory" in str(error):
            raise MemoryError(f"{path}: cannot be read") from error
        raise BadModel(f"{path}: is not a graph that OpenVINO can read ({last_line(error)}); {EXPORT_AGAIN}") from error


def _bounded(shape: Any, rows: int, cells: int) -> Any:
    """The shape of an input with bounds for the first two sides, where they may have any size."""
    ov = _openvino()
    bounds = [ov.Dimension(1, rows), ov.Dimension(1, cells)]
    return ov.PartialShape([size if size.is_static else bounds[place] for place, size in enumerate(shape)])


def _bound_ranges(model: Any) -> None:
    """Replace each range 0, 1, … of unknown length by as many zeros: OpenVINO knows no bounds for sizes of ranges."""
    ops = _openvino().opset13
    for operation in model.get_ops():
        if operation.get_type_name() == "Range" and operation.output(0).partial_shape.is_dynamic:
            first, stop, step = operation.input_values()
            if [getattr(one.get_node(), "data", None) for one in (first, step)] == [0, 1]:
                zeros = ops.broadcast(first, ops.unsqueeze(stop, np.array([0])))
                operation.output(0).replace(zeros.output(0))


def _check_work(path: Path, model: Any, rows: int) -> None:
    """Refuse a graph that would make huge tensors of small ones, or would take long, before its constants are computed.

    rows: the most frames or sentences of its inputs.
    """
    largest, largest_sum = MAX_NUMBERS[rows]
    what = "a single frame or sentence" if rows == 1 else f"{rows} frames or sentences"
    total = products = 0
    operations = model.get_ops()
    for operation in operations:
        kind = operation.get_type_name()
        for output in operation.outputs():
            if output.partial_shape.rank.is_dynamic or min(sides := _sides(output), default=0) < 0:
                raise BadModel(f"{path}: the size of {kind}'s output has no bound for {what}; {EXPORT_AGAIN}")
            size = math.prod(sides)
            total += size * (kind != "Constant")
            if size > largest or total > largest_sum:
                raise BadModel(
                    f"{path}: computes {max(size, total):,} numbers for {what}: at most {largest:,} in a tensor "
                    f"and {largest_sum:,} in all are possible; {EXPORT_AGAIN}"
                )
    for operation in operations:
        products += _num_products(operation)
        if products > MAX_PRODUCTS * rows:
            raise BadModel(
                f"{path}: computes {products:,} products for {what}: at most {MAX_PRODUCTS * rows:,} are possible; "
                f"{EXPORT_AGAIN}"
            )


def _sides(port: Any) -> list[int]:
    """The sizes of a tensor, at most; -1 for any."""
    shape = port.partial_shape
    return [shape[place].get_max_length() for place in range(len(shape))]  # iterating takes five times as long


def _num_products(operation: Any) -> int:
    """The multiplications of an operation, or the numbers that a pooling reads, beyond a few for each number."""
    kind = operation.get_type_name()
    if kind == "MatMul":
        sides = _sides(operation.input_value(0))
        is_transposed = operation.get_attributes()["transpose_a"] and len(sides) > 1
        return math.prod(_sides(operation.output(0))) * sides[-2 if is_transposed else -1]
    if kind in ("AvgPool", "MaxPool"):
        kernel: list[int] = operation.get_attributes()["kernel"]
        return math.prod(_sides(operation.output(0))) * math.prod(kernel)
    if kind in ("Convolution", "GroupConvolution", "ConvolutionBackpropData", "GroupConvolutionBackpropData"):
        # weights: (groups,) to, from, … or transposed from, to, …
        weights = _sides(operation.input_value(1))[2 if kind.startswith("Group") else 1 :]
        each = operation.input_value(0) if kind.endswith("BackpropData") else operation.output(0)
        return math.prod(_sides(each)) * math.prod(weights)
    return 0


def _check_port(path: Path, port: str, found: list[str], type_and_shape: str, sizes: Sizes) -> None:
    """found: the type and the shape of the port, as in a signature, with "n" for a dimension of any size."""
    expected = type_and_shape.split()
    for symbol, size in zip(expected, found, strict=False):
        if symbol == "n" or not (symbol.isalpha() and size.isdigit()):
            continue
        known, source = sizes.setdefault(symbol, (int(size), path.name))
        if int(size) != known:
            raise BadModel(
                f"{path}: {port} has {symbol} size {size}, but it is {known} in {source}: "
                f"they are parts of different models; {EXPORT_AGAIN}"
            )
    resolved = [str(sizes[symbol][0]) if symbol in sizes else symbol for symbol in expected]
    if found != resolved:
        raise BadModel(f"{path}: {port} is {' '.join(found)} where {type_and_shape} was expected; {EXPORT_AGAIN}")
