"""The parts of a model folder, and every check of them."""

import json
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from picknet.config import BadConfig, Config, load_config
from picknet.errors import PicknetError
from picknet.text import Vocabulary

WEIGHTS = "weights.safetensors"

Signature = tuple[dict[str, str], dict[str, str]]
"""A graph's inputs and outputs: type and shape. n is any number; a name means the same size in all graphs.

The first sizes of a graph's inputs are the same n, or 1 for all: the encoder takes one frame for many videos, the
decoder one video (with its keys and values) for many sentences.
"""


def signatures(*, attended: bool) -> dict[str, Signature]:
    """The graphs of a model folder, with or without attention over the cells of the picked frames."""
    laid_out = {"keys": "f32 n cells embedding", "values": "f32 n cells embedding"} if attended else {}
    looked_at = {"keys": "f32 n n embedding", "values": "f32 n n embedding"} if attended else {}
    return {
        "cnn": (
            {"pixels": "u8 n image image 3"},
            {"features": "f32 n cells feature"},
        ),
        "policy": (
            # templates: the last picked glances; waits: strides since they were picked
            {"glances": "u8 n glance glance", "templates": "u8 n glance glance", "waits": "f32 n"},
            {"logits": "f32 n 2"},  # drop, pick
        ),
        "encoder": (
            {"features": "f32 n cells feature", "h": "f32 n state", "c": "f32 n state"},
            {"next_h": "f32 n state", "next_c": "f32 n state", **laid_out},
        ),
        "decoder": (
            {"words": "i64 n", "video": "f32 n state", **looked_at, "state": "f32 n state"},
            {"log_probabilities": "f32 n words", "next_state": "f32 n state"},
        ),
    }


GRAPHS = tuple(signatures(attended=False))
PARTS = ("config.toml", "words.txt", "card.json", WEIGHTS, *(f"{graph}.onnx" for graph in GRAPHS))

MAX_HEADER_BYTES = 100_000_000
"""The safetensors format's own limit for its header."""
MEND = "export the model again"


class BadModel(PicknetError):
    """A model folder that cannot be used."""


def check_complete(folder: Path) -> None:
    if not folder.is_dir():
        raise BadModel(f"{folder}: {'is not a folder' if folder.exists() else 'no such folder'}; a model is a folder")
    missing = [part for part in PARTS if not (folder / part).is_file() or not (folder / part).stat().st_size]
    if missing:
        raise BadModel(f"{folder}: is not a whole model: {', '.join(missing)} missing or empty; {MEND}")


def read_card(path: Path) -> dict[str, Any]:
    try:
        card = json.loads(read_bytes(path))
    except ValueError as error:
        raise BadModel(f"{path}: is not JSON ({error}); {MEND}") from error
    if not isinstance(card, dict):
        raise BadModel(f"{path}: holds {type(card).__name__} where one JSON object was expected; {MEND}")
    return card


def read_config(path: Path) -> Config:
    _check_last_line(path)
    try:
        return load_config(path)
    except BadConfig as error:
        raise BadModel(f"{error}; {MEND}") from error


def read_words(path: Path) -> Vocabulary:
    _check_last_line(path)  # their number is held against the decoder's
    return Vocabulary.load(path)


def _check_last_line(path: Path) -> None:
    """A text cut inside its last line may still read well: another word, a number with a digit less."""
    if not read_bytes(path).endswith(b"\n"):
        raise BadModel(f"{path}: is cut short: its last line has no end; {MEND}")


def read_tensor_spans(path: Path) -> set[tuple[int, int]]:
    """(offset in the file, bytes) of each tensor in a safetensors file, whose header must account for every byte."""
    try:
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            header_size = int.from_bytes(file.read(8), "little")
            start = 8 + header_size
            if header_size > MAX_HEADER_BYTES:
                raise BadModel(f"{path}: is not a safetensors file; {MEND}")
            if size < start:
                raise BadModel(f"{path}: is cut short: {size} bytes, and its header alone needs {start}; {MEND}")
            header = json.loads(file.read(header_size))
        spans = [entry["data_offsets"] for name, entry in header.items() if name != "__metadata__"]
        tensors = {(start + int(first), int(last) - int(first)) for first, last in spans}
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror})") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise BadModel(f"{path}: is not a safetensors file ({gist(error)}); {MEND}") from error
    end = max((offset + length for offset, length in tensors), default=start)
    if size < end:
        raise BadModel(f"{path}: is cut short: {size} bytes of {end}; {MEND}")
    if size > end:
        raise BadModel(f"{path}: has {size - end} bytes too many after its last tensor; {MEND}")
    return tensors


# A reference to external data as ONNX writes it: three (key, value) messages, each field 13 of its tensor.
_EXTERNAL = re.compile(
    rb"j.\n\x08location\x12.%b"
    rb"j.\n\x06offset\x12.([0-9]{1,20})"
    rb"j.\n\x06length\x12.([0-9]{1,20})" % re.escape(WEIGHTS.encode()),
    re.DOTALL,
)

_GRAPH_FIELD = 7
_MODEL_FIELDS = {1, 2, 3, 4, 5, 6, _GRAPH_FIELD, 8, 14, 20, 25, 26}
"""The fields of an ONNX file (ModelProto)."""


def check_graph_file(path: Path, tensors: set[tuple[int, int]]) -> None:
    """What OpenVINO would let pass: bytes added at the end, and weights that lie elsewhere than their tensors."""
    content = read_bytes(path)
    fields = list(_top_level_fields(content))
    if fields.count(_GRAPH_FIELD) != 1 or not _MODEL_FIELDS.issuperset(fields):
        raise BadModel(f"{path}: is damaged or not an ONNX graph; {MEND}")
    references = _EXTERNAL.findall(content)
    # However a reference may be encoded, it spells "location".
    if content.count(b"location") != len(references):
        raise BadModel(f"{path}: refers to weights outside {WEIGHTS}, which is not allowed; {MEND}")
    for offset, length in references:
        if (int(offset), int(length)) not in tensors:
            raise BadModel(
                f"{path}: there is no tensor of {int(length)} bytes at byte {int(offset)} of {WEIGHTS}: "
                f"they are parts of different models; {MEND}"
            )


def _top_level_fields(message: bytes) -> Iterator[int]:
    """The field numbers of a protocol-buffer message of numbers and strings; a last -1 if it does not end well."""
    position = 0
    try:
        while position < len(message):
            tag, position = _varint(message, position)
            value, position = _varint(message, position)
            kind = tag & 7
            if kind == 2:  # a string or a message, and value is its length
                position += value
            yield tag >> 3 if kind in (0, 2) and position <= len(message) else -1
    except IndexError:
        yield -1


def _varint(message: bytes, position: int) -> tuple[int, int]:
    value = shift = 0
    while message[position] >= 0x80:
        value |= (message[position] & 0x7F) << shift
        position, shift = position + 1, shift + 7
    return value | message[position] << shift, position + 1


def read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise BadModel(f"{path}: cannot be read ({error.strerror})") from error


def gist(error: Exception) -> str:
    """OpenVINO's messages are many lines long; the last one says what happened."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return lines[-1][:200] if lines else type(error).__name__
