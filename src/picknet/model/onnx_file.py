"""What an ONNX file refers to and is made of, read from its bytes before any library is given the file.

ONNX files are protocol buffers. Constants, operations and inputs are taken apart, field by field; of all else it is
enough that it refers to nothing.
"""

import re
from collections.abc import Mapping
from typing import NamedTuple

_GRAPH = 7
_MODEL_FIELDS = {1, 2, 3, 4, 5, 6, _GRAPH, 8, 14, 20, 26}
"""The fields of an ONNX file (ModelProto), without functions: operations made of others."""
_NODE, _INITIALIZER, _INPUT = 1, 5, 11
"""The fields of a graph (GraphProto) that hold one of its operations, tensors and inputs."""
_NODE_INPUT, _NODE_OUTPUT, _KIND, _ATTRIBUTE, _DOMAIN = 1, 2, 4, 5, 7
"""Fields of an operation (NodeProto)."""
_DIMS, _TENSOR_NAME, _EXTERNAL_DATA = 1, 8, 13
"""Fields of a tensor (TensorProto). The last holds one fact about where its data are, a key and a value."""
_INT, _TENSOR, _FLOATS, _INTS = 3, 5, 7, 8
"""Values of an attribute (AttributeProto)."""
_SIMPLE_FIELDS = {1, 2, _INT, _TENSOR, _FLOATS, _INTS, 13, 20}
"""Of an attribute: its name, type and text, and numbers that are all there."""
_Kinds = Mapping[int, tuple[int, ...]]
"""Fields that hold numbers -> how they are encoded: 0 with a variable length, 1 and 5 in eight and four bytes, 2 many
after their length."""
_NO_NUMBERS: _Kinds = {}
_OF_LENGTH = (2,)
_NUMBERS_OF_MODEL: _Kinds = {1: (0,), 5: (0,)}
_NUMBERS_OF_ATTRIBUTE: _Kinds = {2: (5,), _INT: (0,), _FLOATS: (2, 5), _INTS: (0, 2), 20: (0,)}
_NUMBERS_OF_TENSOR: _Kinds = {
    _DIMS: (0, 2), 2: (0,), 4: (2, 5), 5: (0, 2), 7: (0, 2), 10: (1, 2), 11: (0, 2), 14: (0,)
}  # fmt: skip
_NUMBERS_OF_TYPE: _Kinds = {1: (0,)}
"""Of a tensor's type: that of its numbers."""
_WORD = b"location"
"""A reference to another file has this key, however it is encoded."""
_FACT = re.compile(rb"\x0a(.)(location|offset|length)\x12([\x00-\x7f])(.*)", re.DOTALL)
"""One fact about where data are: a key after its length, and a value after its length."""
_MAX_TAG = 2**32
_MAX_VARINT = 10
"""Bytes of a variable-length integer of 64 bits."""
_CONTINUED = bytes(range(128, 256))
"""Bytes of a variable-length integer that another follows."""
MAX_FIELDS = 2**16
"""Of a message: a graph has one for each operation and each tensor, that of the shipped CNN 1,200."""
MAX_RANK = 32
"""Dimensions of a tensor. Networks have tensors of up to 6."""
_DAMAGED = "is damaged or not an ONNX graph"
_UNUSUAL = "refers to weights in an unusual way, which is not allowed"


class BadFile(Exception):
    """Bytes that are no ONNX file that picknet writes; the message is the reason."""


class Reference(NamedTuple):
    """Where the data of a tensor are."""

    file: bytes
    offset: int
    num_bytes: int


class Tensor(NamedTuple):
    """A tensor that a graph holds or refers to."""

    name: bytes
    shape: list[int]
    num_bytes: int
    """Of its data, at most."""
    reference: Reference | None


class Node(NamedTuple):
    """An operation of a graph."""

    kind: str
    inputs: list[bytes]
    """Names; an empty one is an input that is left out."""
    outputs: list[bytes]
    attributes: list[tuple[int, int]]
    """Where each starts and stops in the file."""


class Graph(NamedTuple):
    """What the graph of an ONNX file is made of."""

    inputs: dict[bytes, int]
    """Name -> number of dimensions."""
    tensors: list[Tensor]
    nodes: list[Node]

    @property
    def references(self) -> list[Reference]:
        return [tensor.reference for tensor in self.tensors if tensor.reference]


def read_graph(content: bytes) -> Graph:
    """The graph of an ONNX file. Raises `BadFile` for anything unusual."""
    model = _fields(content, 0, len(content), _NUMBERS_OF_MODEL)
    if sum(number == _GRAPH for number, _, _ in model) != 1 or not _MODEL_FIELDS.issuperset(part[0] for part in model):
        raise BadFile(_DAMAGED)
    inputs, tensors, nodes = {}, [], []
    for number, start, stop in model:
        if number != _GRAPH:
            continue
        for part, first, last in _fields(content, start, stop):
            if part == _NODE:
                nodes.append(_node(content, first, last))
            elif part == _INITIALIZER:
                tensors.append(_tensor(content, first, last))
            elif part == _INPUT:
                name, rank = _input(content, first, last)
                inputs[name] = rank
    if content.count(_WORD) != sum(one.reference is not None for one in tensors):
        raise BadFile(_UNUSUAL)
    return Graph(inputs, tensors, nodes)


def constants_of(content: bytes, node: Node) -> list[Tensor]:
    """The tensors, numbers and lists of numbers in an operation's attributes."""
    found = []
    for start, stop in node.attributes:
        fields = _fields(content, start, stop, _NUMBERS_OF_ATTRIBUTE)
        numbers = [number for number, _, _ in fields]
        if not _SIMPLE_FIELDS.issuperset(numbers) or numbers.count(_TENSOR) > 1:
            raise BadFile(f"holds the operation {node.kind} with an unusual constant, which is not allowed")
        length = 0
        for number, first, last in fields:
            if number == _TENSOR:
                found.append(_tensor(content, first, last))
            elif number == _INTS:
                length += len(content[first:last].translate(None, _CONTINUED))
            elif number == _FLOATS:
                length += (last - first) // 4
        if length:
            found.append(Tensor(b"", [length], stop - start, None))
    return found


def integers_of(content: bytes, node: Node) -> list[int]:
    """The attributes of an operation that are one integer each; those below zero as if they were large."""
    fields = [
        field for start, stop in node.attributes for field in _fields(content, start, stop, _NUMBERS_OF_ATTRIBUTE)
    ]
    return [_varint(content, start, stop)[0] for number, start, stop in fields if number == _INT]


def _node(content: bytes, start: int, stop: int) -> Node:
    kind, inputs, outputs, attributes = b"", [], [], []
    for number, first, last in _fields(content, start, stop):
        if number == _NODE_INPUT:
            inputs.append(content[first:last])
        elif number == _ATTRIBUTE:
            attributes.append((first, last))
        elif number == _NODE_OUTPUT:
            outputs.append(content[first:last])
        elif number == _KIND:
            kind = content[first:last]
        elif number == _DOMAIN and last > first:
            raise BadFile("holds an operation that is not one of ONNX")
    return Node(kind.decode("utf-8", "backslashreplace"), inputs, outputs, attributes)


def _tensor(content: bytes, start: int, stop: int) -> Tensor:
    name, shape, facts = b"", [], []
    for number, first, last in _fields(content, start, stop, _NUMBERS_OF_TENSOR):
        if number == _DIMS:
            if last - first > MAX_RANK * _MAX_VARINT:
                raise BadFile(f"holds a tensor of more dimensions than {MAX_RANK}, the most that are possible")
            shape += _varints(content, first, last)
        elif number == _TENSOR_NAME:
            name = content[first:last]
        elif number == _EXTERNAL_DATA:
            facts.append((first, last))
    reference = _reference(content, facts) if facts else None
    num_bytes = reference.num_bytes if reference else stop - start
    return Tensor(name, shape, num_bytes, reference)


def _input(content: bytes, start: int, stop: int) -> tuple[bytes, int]:
    """The name of an input and its number of dimensions: ValueInfoProto, its type, that of a tensor, and the shape."""
    fields = _fields(content, start, stop)
    name = b"".join(content[first:last] for number, first, last in fields if number == 1)
    for field, numbers in ((2, _NO_NUMBERS), (1, _NUMBERS_OF_TYPE), (2, _NO_NUMBERS)):
        fields = [
            part
            for number, first, last in fields
            if number == field
            for part in _fields(content, first, last, numbers)
        ]
    return name, sum(number == 1 for number, _, _ in fields)


def _reference(content: bytes, spans: list[tuple[int, int]]) -> Reference:
    facts: dict[bytes, bytes] = {}
    for start, stop in spans:
        fact = _FACT.fullmatch(content, start, stop)
        if not fact or fact[1][0] != len(fact[2]) or fact[3][0] != len(fact[4]) or fact[2] in facts:
            raise BadFile(_UNUSUAL)
        facts[fact[2]] = fact[4]
    if len(facts) != 3 or not (_is_number(facts[b"offset"]) and _is_number(facts[b"length"])):
        raise BadFile(_UNUSUAL)
    return Reference(facts[b"location"], int(facts[b"offset"]), int(facts[b"length"]))


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 20


def _fields(content: bytes, position: int, stop: int, numbers: _Kinds = _NO_NUMBERS) -> list[tuple[int, int, int]]:
    """The number of each field of a message, and where its content starts and stops.

    numbers: the fields that hold numbers, and how; all others hold a string or a message. Readers of protocol buffers
    skip a field that is encoded otherwise, so it is refused: nothing may be read here that they do not read.
    """
    found: list[tuple[int, int, int]] = []
    while position < stop:
        if len(found) == MAX_FIELDS:
            raise BadFile(f"holds more than {MAX_FIELDS:,} fields in one message")
        # Nearly all tags and lengths have one byte.
        if (tag := content[position]) < 0x80:
            position += 1
        else:
            tag, position = _varint(content, position, stop)
        kind, number = tag & 7, tag >> 3
        if not 8 <= tag < _MAX_TAG or kind not in numbers.get(number, _OF_LENGTH):
            raise BadFile(_DAMAGED)
        if kind == 2:
            if position < stop and (length := content[position]) < 0x80:
                start = position + 1
            else:
                length, start = _varint(content, position, stop)
            position = start + length
        elif kind == 0:
            start = position
            _, position = _varint(content, position, stop)
        else:
            start, position = position, position + (8 if kind == 1 else 4)
        if position > stop:
            raise BadFile(_DAMAGED)
        found.append((number, start, position))
    return found


def _varint(content: bytes, position: int, stop: int) -> tuple[int, int]:
    """A variable-length integer and the position after it."""
    value = shift = 0
    for place in range(position, min(position + _MAX_VARINT, stop)):
        byte = content[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise BadFile(_DAMAGED)


def _varints(content: bytes, position: int, stop: int) -> list[int]:
    """One integer after the other."""
    found: list[int] = []
    while position < stop:
        value, position = _varint(content, position, stop)
        found.append(value)
    return found
