"""Parameter sets of H.264 and HEVC: what a decoder has to know of a recording; where two are joined, they change."""

from collections.abc import Iterator
from typing import Any

_LENGTH_AT = {"h264": 4, "hevc": 21}
"""Where the stream's header says how many bytes the length of a unit has; otherwise units begin with a start code."""
HAVE_PARAMETER_SETS = _LENGTH_AT.keys()
"""Codecs, by FFmpeg's names."""
_START_CODE = b"\0\0\1"
ENOUGH = 4096
"""Bytes of a keyframe: its parameter sets are at its start."""


def has_parameter_sets(packet: Any, codec: Any) -> bool:
    """Whether a packet brings parameter sets of its own. packet: its bytes, or the first of them. codec: one that has
    parameter sets, of the packet's stream."""
    data, header = memoryview(packet), codec.extradata or b""
    length_at = _LENGTH_AT[codec.name]
    units = _after_codes(bytes(data[:ENOUGH]))
    if len(header) > length_at and header[0] == 1:
        units = _after_lengths(data, 1 + (header[length_at] & 3))
    for unit in units:
        if unit >= len(data):
            break
        is_set, is_picture = _kind(data[unit], codec.name)
        if is_set or is_picture:
            return is_set
    return False


def _after_codes(data: bytes) -> Iterator[int]:
    """Where each unit begins."""
    place = data.find(_START_CODE)
    while place >= 0:
        yield place + len(_START_CODE)
        place = data.find(_START_CODE, place + 1)


def _after_lengths(data: memoryview, num_bytes: int) -> Iterator[int]:
    """The same. num_bytes: of the length before each."""
    place = num_bytes
    while place < len(data):
        yield place
        place += int.from_bytes(data[place - num_bytes : place], "big") + num_bytes


def _kind(first: int, codec: str) -> tuple[bool, bool]:
    """Of a unit, by its first byte: whether it is a parameter set, and whether it is a part of a picture."""
    if codec == "h264":
        return first & 31 in (7, 8), 1 <= first & 31 <= 5
    return first >> 1 & 63 in (32, 33, 34), first >> 1 & 63 < 32
