"""What an ONNX file refers to, read from its bytes before any library is given the file.

ONNX files are protocol buffers. Only the weights are taken apart, field by field; of all else it is enough that it
refers to nothing.
"""

from collections.abc import Iterator
from typing import NamedTuple

_GRAPH = 7
_MODEL_FIELDS = {1, 2, 3, 4, 5, 6, _GRAPH, 8, 14, 20, 25, 26}
"""The fields of an ONNX file (ModelProto)."""
_INITIALIZER = 5
"""The field of a graph (GraphProto) that holds one of its tensors."""
_EXTERNAL_DATA = 13
"""The field of a tensor (TensorProto) that holds one fact about where its data are, a key and a value."""
_KEY, _VALUE = 1, 2
_WORD = b"location"
"""A reference to another file has this key, however it is encoded."""
_MAX_VARINT = 10
"""Bytes of a variable-length integer of 64 bits."""
MAX_FIELDS = 2**16
"""Of a message: a graph has one for each operation and each tensor, that of the shipped CNN 1,200."""
_DAMAGED = "is damaged or not an ONNX graph"
_UNUSUAL = "refers to weights in an unusual way, which is not allowed"


class BadFile(Exception):
    """Bytes that are no ONNX file that picknet writes; the message is the reason."""


class Reference(NamedTuple):
    """Where the data of a tensor are."""

    file: bytes
    offset: int
    num_bytes: int


def references(content: bytes) -> list[Reference]:
    """The files that the tensors of an ONNX file refer to. Raises `BadFile` for anything unusual."""
    model = list(_fields(content, 0, len(content)))
    if sum(number == _GRAPH for number, _, _ in model) != 1 or not _MODEL_FIELDS.issuperset(part[0] for part in model):
        raise BadFile(_DAMAGED)
    found = []
    num_words = 0
    for number, start, stop in model:
        if number != _GRAPH:
            continue
        for part, first, last in _fields(content, start, stop):
            if part == _INITIALIZER and content.find(_WORD, first, last) >= 0:
                found.append(_reference(content, first, last))
                num_words += content.count(_WORD, first, last)
    if num_words != len(found) or content.count(_WORD) != num_words:
        raise BadFile(_UNUSUAL)
    return found


def _reference(content: bytes, start: int, stop: int) -> Reference:
    facts: dict[bytes, bytes] = {}
    for number, first, last in _fields(content, start, stop):
        if number == _EXTERNAL_DATA:
            entry = list(_fields(content, first, last))
            if [part for part, _, _ in entry] != [_KEY, _VALUE]:
                raise BadFile(_UNUSUAL)
            key, value = (content[one:end] for _, one, end in entry)
            if key in facts:
                raise BadFile(_UNUSUAL)
            facts[key] = value
    offset, length = facts.get(b"offset", b""), facts.get(b"length", b"")
    if facts.keys() != {b"location", b"offset", b"length"} or not (_is_number(offset) and _is_number(length)):
        raise BadFile(_UNUSUAL)
    return Reference(facts[b"location"], int(offset), int(length))


def _is_number(text: bytes) -> bool:
    return text.isdigit() and len(text) <= 20


def _fields(content: bytes, position: int, stop: int) -> Iterator[tuple[int, int, int]]:
    """The number of each field of a message, and where its content starts and stops; numbers have no content."""
    for _ in range(MAX_FIELDS):
        if position >= stop:
            return
        tag, position = _varint(content, position, stop)
        kind = tag & 7
        if kind == 2:  # a string or a message, after its length
            length, position = _varint(content, position, stop)
            start, position = position, position + length
        elif kind == 0:
            start = position
            _, position = _varint(content, position, stop)
        elif kind in (1, 5):  # eight or four bytes
            start, position = position, position + (8 if kind == 1 else 4)
        else:
            raise BadFile(_DAMAGED)
        if position > stop:
            raise BadFile(_DAMAGED)
        yield tag >> 3, start, position
    if position < stop:
        raise BadFile(f"holds more than {MAX_FIELDS:,} fields in one message")


def _varint(content: bytes, position: int, stop: int) -> tuple[int, int]:
    """A variable-length integer and the position after it."""
    if position < stop and content[position] < 0x80:  # nearly all of them
        return content[position], position + 1
    value = shift = 0
    for place in range(position, min(position + _MAX_VARINT, stop)):
        byte = content[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, place + 1
        shift += 7
    raise BadFile(_DAMAGED)
