"""How the operations of an ONNX file compute the sizes of tensors, checked before OpenVINO is given the file.

OpenVINO needs the values of some inputs, such as the shape that a tensor gets, to know the sizes of others. While it
reads a graph it therefore computes all that such an input is made of, if that is constants and the sizes of tensors,
with as much memory as that takes. Here such an input may be made of little only.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

from picknet.model.onnx_file import MAX_RANK, BadFile, Graph, Node, Tensor, constants_of, integers_of

MAX_NODES = 2**12
"""Operations of a graph. The shipped CNN has 329."""
MAX_INPUTS = 256
"""Of an operation. Those of the shipped model have at most 8."""
MAX_COMPUTED = 256
"""Operations of constants and sizes only. The shipped CNN has 68."""
MAX_SIZES = 256
"""Numbers of which a size may be computed, in each tensor. Those of a padding are twice as many as dimensions."""

_UNBOUNDED = [
    *("If", "Loop", "Scan", "GRU", "LSTM", "RNN", "DFT", "STFT"),
    *("DeformConv", "Einsum", "NonMaxSuppression", "RoiAlign"),
]
"""Operations whose work is not to be seen from the sizes of tensors. For one frame or word no loop is needed."""
_ELEMENTWISE = [
    *("Add", "And", "Div", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Max", "Min", "Mod", "Mul"),
    *("Or", "Pow", "Sub", "Sum", "Where"),
]
_KEEPING = [
    *("Abs", "Cast", "Ceil", "Floor", "Identity", "Neg", "Not", "Round", "Sign", "Sqrt"),
    *("Reshape", "Slice", "Squeeze", "Transpose", "Unsqueeze"),
]
"""With as many numbers as their first input, or fewer."""
_REDUCTIONS = ["ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd", "ReduceSum"]
_OF_DATA = [
    *_ELEMENTWISE,
    *("BatchNormalization", "Concat", "Conv", "ConvTranspose", "Gather", "Gemm", "GroupNormalization"),
    *("InstanceNormalization", "LayerNormalization", "MatMul", "PRelu", "ScatterElements", "ScatterND"),
]
"""Of which no input says how large the output is; of all others, the inputs after the first may say so."""
_OTHERS = [
    *("ArgMax", "ArgMin", "AveragePool", "Celu", "Clip", "Constant", "ConstantOfShape", "Cos", "CumSum"),
    *("DepthToSpace", "Dropout", "Elu", "Erf", "Exp", "Expand", "Flatten", "Gelu", "GlobalAveragePool"),
    *("GlobalMaxPool", "HardSigmoid", "HardSwish", "IsInf", "IsNaN", "LeakyRelu", "Log", "LogSoftmax"),
    *("LpNormalization", "MaxPool", "Mish", "Pad", "Range", "Reciprocal", "ReduceL1", "ReduceL2"),
    *("ReduceLogSumExp", "ReduceSumSquare", "Relu", "Resize", "Selu", "Shape", "Sigmoid", "Sin", "Size", "Softmax"),
    *("Softplus", "Softsign", "SpaceToDepth", "Split", "Tanh", "ThresholdedRelu", "Tile", "TopK", "Trilu"),
]
POSSIBLE = frozenset([*_OF_DATA, *_KEEPING, *_REDUCTIONS, *_OTHERS])
"""The operations that networks are made of and whose work the sizes of tensors tell. OpenVINO knows more: some of these
make large tensors of an attribute, others hide operations inside."""
_ONLY_SIZES = frozenset(["ConstantOfShape", "Range"])
"""Of which also the first input says how large the output is."""


_FOLLOWED = frozenset(
    [*_ELEMENTWISE, *_KEEPING, *_REDUCTIONS, "Concat", "ConstantOfShape", "Expand", "Gather", "Shape", "Size", "Tile"]
)
"""By which sizes are computed of others, or that give a tensor more dimensions than their inputs have."""


class _Value(NamedTuple):
    """What is known of a tensor without computing it."""

    rank: float
    numbers: float
    """At most; of what is computed of constants, also those of each tensor that it is computed of."""
    is_constant: bool
    """Whether it is made of constants and of the sizes of tensors only: OpenVINO may compute it."""


def check_sizes(content: bytes, graph: Graph) -> None:
    """Raise `BadFile` if OpenVINO would compute, or hold, much of little while it reads a graph.

    content: of the file that the graph was read from.
    """
    values = {name: _Value(rank, math.inf, False) for name, rank in graph.inputs.items()}
    values |= {tensor.name: _constant(tensor) for tensor in graph.tensors}
    num_computed = 0
    if len(graph.nodes) > MAX_NODES:
        raise BadFile(f"holds {len(graph.nodes):,} operations: at most {MAX_NODES:,} are possible")
    for node in graph.nodes:
        if len(node.inputs) > MAX_INPUTS:
            raise BadFile(f"gives {node.kind} {len(node.inputs):,} inputs: at most {MAX_INPUTS} are possible")
        if node.kind in _UNBOUNDED:
            raise BadFile(f"holds the operation {node.kind}, whose work has no bound")
        if node.kind not in POSSIBLE:
            raise BadFile(f"is not a graph that OpenVINO can read (picknet knows no operation {node.kind!r})")
        try:
            value = _output(content, node, [values[name] for name in node.inputs if name])
        except KeyError as error:
            raise BadFile(f"is damaged: {node.kind} reads what nothing before it computes") from error
        num_computed += value.is_constant and node.kind != "Constant"
        if num_computed > MAX_COMPUTED:
            raise BadFile(f"has more operations on constants and sizes than {MAX_COMPUTED}, the most that are possible")
        if value.rank > MAX_RANK:
            raise BadFile(f"makes {node.kind} return more dimensions than {MAX_RANK}, the most that are possible")
        for name in node.outputs:
            if name in values:
                raise BadFile(f"is damaged: the output of {node.kind} has the name of another tensor")
            if name:
                values[name] = value


def _output(content: bytes, node: Node, inputs: Sequence[_Value]) -> _Value:
    """What is known of the outputs of an operation."""
    kind = node.kind
    if kind == "Constant":
        constants = constants_of(content, node)
        if len(constants) > 1:
            raise BadFile("is damaged: Constant holds more than one constant")
        return _constant(constants[0]) if constants else _Value(0, 1, True)
    if not inputs:
        raise BadFile(f"is damaged: {kind} has no input")
    for value in inputs[kind not in _ONLY_SIZES :] if kind not in _OF_DATA else ():
        if value.is_constant and value.numbers > MAX_SIZES:
            raise BadFile(
                f"computes the size of the output of {kind} of many constants: at most {MAX_SIZES} in a tensor "
                "are possible"
            )
    rank = max([value.rank for value in inputs])
    is_constant = False not in [value.is_constant for value in inputs]
    _check_attributes(content, node)
    if kind not in _FOLLOWED:
        return _Value(max(rank, 2), math.inf, is_constant)
    if kind in ("Shape", "Size"):
        return _Value(1, rank, True)
    numbers = _num_numbers(content, node, inputs, rank)
    if is_constant:
        numbers = max(numbers, *[value.numbers for value in inputs])
    return _Value(_rank(kind, inputs, rank), numbers, is_constant)


def _num_numbers(content: bytes, node: Node, inputs: Sequence[_Value], rank: float) -> float:
    """How many numbers an operation returns, at most."""
    first, last, kind = inputs[0], inputs[-1], node.kind
    if kind in _KEEPING:
        return first.numbers
    if kind in _REDUCTIONS:
        keeps = any(content.find(b"noop_with_empty_axes", *place) >= 0 for place in node.attributes)
        return first.numbers if len(inputs) > 1 or keeps else 1
    if kind == "Concat":
        return sum(value.numbers for value in inputs)
    if kind == "Gather" and first.rank <= 1:
        return last.numbers
    if kind in _ELEMENTWISE:
        sizes = [max(value.numbers, 1) for value in inputs]
        return max(sizes) if rank <= 1 else math.prod(sizes)
    return math.inf


def _rank(kind: str, inputs: Sequence[_Value], rank: float) -> float:
    """How many dimensions the output of an operation has, at most. rank: of the inputs."""
    first, last = inputs[0], inputs[-1]
    if kind == "Gather":
        return max(first.rank + last.rank - 1, 0)
    if kind == "ConstantOfShape":
        return last.numbers
    if kind in ("Expand", "Reshape", "Tile", "Unsqueeze"):
        if len(inputs) < 2:
            raise BadFile(f"is of an old kind: {kind} has one input")
        least = {"Expand": rank, "Unsqueeze": first.rank + last.numbers, "Reshape": 0, "Tile": rank}
        return max(last.numbers, least[kind])
    return rank


def _check_attributes(content: bytes, node: Node) -> None:
    if node.kind == "Split":
        negative = 2**63
        if any(MAX_RANK + len(node.outputs) < number < negative for number in integers_of(content, node)):
            raise BadFile("makes Split return more tensors than it names")
    if node.kind == "ConstantOfShape" and any(_constant(one).numbers > 1 for one in constants_of(content, node)):
        raise BadFile("is damaged: ConstantOfShape repeats more than one number")


def _constant(tensor: Tensor) -> _Value:
    if (rank := len(tensor.shape)) > MAX_RANK:
        raise BadFile(f"holds a tensor of {rank:,} dimensions: at most {MAX_RANK} are possible")
    if (numbers := math.prod(tensor.shape)) > tensor.num_bytes:  # also where a side is below zero
        raise BadFile("is damaged: holds a tensor without all its numbers")
    return _Value(rank, numbers, True)
