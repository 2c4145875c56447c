"""Small files that would become large: refused before FFmpeg opens them, since it unpacks and lists while it does."""

import os
import struct
import zlib
from typing import Any

from picknet.video.source import UnreadableVideo

MAX_PACKED_TEXT = 2**20
"""Bytes of all packed texts and colour profiles in a PNG. Unpacked they may have a thousand times as many."""
MAX_MOVIE_HEADER = 2**24
"""Bytes of the movie header of a MOV, packed, as QuickTime once wrote it, and unpacked."""
MAX_SEARCHED = 2**28
"""Bytes of an MP4 outside its frames that are searched. A file with more is not small."""
FEW_PACKETS, MANY_PACKETS = 10**6, 5 * 10**7
"""That an MP4 may list in any case, and at most where the file has fewer bytes: FFmpeg takes some 36 bytes for each."""
MAX_EXCESS = 100
"""An MP4 that was cut may list so many times as many bytes as it still has."""
USUAL_EDITS = 4
"""Of a track: what is shown and when. Many more may show the same packets again."""

_PNG_START = b"\x89PNG\r\n\x1a\n"
_UNPACKED_CHUNKS = (b"zTXt", b"iCCP")
"""Of a PNG, texts and colour profiles, which FFmpeg unpacks whole."""
_BLOCK = 2**20
"""Bytes that are read at a time."""
_LOOKED_AT = 24
"""Bytes of a box, from its name on, that tell how much it lists."""


def check(reader: Any, name: str) -> None:
    """Raise an `UnreadableVideo` for a PNG or MP4 that would become large. name: of the video, for messages."""
    start = reader.read(8)
    if start == _PNG_START:
        _check_png(reader, name)
    elif len(start) == 8 and _is_box_name(start[4:]):
        what = _Mp4(reader).excess()
        if what:
            raise UnreadableVideo(f"{name}: damaged: {what}")


def _check_png(reader: Any, name: str) -> None:
    place = num_bytes = 0
    while num_bytes <= MAX_PACKED_TEXT:
        reader.seek(place)
        start = reader.read(8)
        if start == _PNG_START:  # one picture may follow another
            place += 8
            continue
        if len(start) < 8:
            return
        (size,) = struct.unpack(">I", start[:4])
        place += size + 12
        if start[4:] in _UNPACKED_CHUNKS:
            num_bytes += size
    what = f"a PNG with more than {MAX_PACKED_TEXT:,} bytes of packed texts and colour profiles"
    raise UnreadableVideo(f"{name}: {what}; save it without them")


def _is_box_name(name: bytes) -> bool:
    return all(0x20 <= byte < 0x7F or byte == 0xA9 for byte in name)


class _Mp4:
    """How many packets an MP4 says it has.

    A few bytes can say that a track has millions of them: all of one size, which is stored once, or repeated by edits.
    FFmpeg takes a box that says so for what it is wherever it lies, so it is not looked for in one place only.
    """

    def __init__(self, reader: Any) -> None:
        self._num_packets = self._num_listed = self._num_edits = 0
        self._is_packed_too_much = False
        self._num_bytes = reader.seek(0, os.SEEK_END)
        place = num_searched = 0
        while place < self._num_bytes and num_searched < MAX_SEARCHED:
            reader.seek(place)
            header = reader.read(16)
            if len(header) < 8 or not _is_box_name(header[4:8]):
                break
            size = int.from_bytes(header[:4], "big")
            if size == 1:
                size = int.from_bytes(header[8:], "big")
            elif size == 0:
                size = self._num_bytes - place
            if size < 8:
                break
            size = min(size, self._num_bytes - place)
            if header[4:8] != b"mdat":
                num_searched += size
                for packed_place, packed_size in self._search(reader, place, size):
                    self._unpack(reader, packed_place, packed_size)
            place += size

    def excess(self) -> str:
        """What is too much; empty if nothing is."""
        if self._is_packed_too_much:
            return f"its packed movie header has more than {MAX_MOVIE_HEADER:,} bytes, or holds another"
        repeated = self._num_packets * self._num_edits if self._num_edits > USUAL_EDITS else 0
        for num_packets, listed in ((self._num_packets, self._num_listed), (repeated, repeated)):
            most = FEW_PACKETS if listed > MAX_EXCESS * self._num_bytes else MANY_PACKETS
            if listed > self._num_bytes and num_packets > most:
                return f"its index lists {num_packets:,} packets in {self._num_bytes:,} bytes"
        return ""

    def _search(self, reader: Any, place: int, size: int) -> list[tuple[int, int]]:
        """Count what a box and those inside it list -> places and sizes of packed movie headers."""
        reader.seek(place)
        packed, content = [], b""
        for left in range(size, 0, -_BLOCK):
            content = content[-_LOOKED_AT - 4 :] + reader.read(min(left, _BLOCK))
            begin = place + size - max(left - _BLOCK, 0) - len(content)
            end = len(content) - (_LOOKED_AT if left > _BLOCK else 0)
            packed += [(begin + at, length) for at, length in self._count(content, end, size)]
        return packed

    def _count(self, content: bytes, end: int, most: int) -> list[tuple[int, int]]:
        """Count what boxes list whose names begin before `end`. most: bytes that one of them may have."""
        packed = []
        for name in (b"stsz", b"trun", b"elst", b"cmvd"):
            at = content.find(name, 4, end)
            while at >= 0:
                size = int.from_bytes(content[at - 4 : at], "big")
                fields = content[at + 8 : at + 16]
                if 16 <= size <= most and len(fields) >= 4:
                    first, second = struct.unpack(">II", fields.ljust(8, b"\0"))
                    if name == b"stsz":  # the size of all packets, or 0, and their number
                        self._num_packets += second
                        self._num_listed += first * second
                    elif name == b"trun" and not content[at + 6] & 0x0F:  # their number, and nothing about each
                        self._num_packets += first
                        self._num_listed += first
                    elif name == b"elst":
                        self._num_edits = max(self._num_edits, first)
                    elif name == b"cmvd":
                        packed.append((at + 8, size - 12))
                at = content.find(name, at + 1, end)
        return packed

    def _unpack(self, reader: Any, place: int, size: int) -> None:
        """Count what a packed movie header lists."""
        reader.seek(place)
        unpacker = zlib.decompressobj()
        try:
            header = unpacker.decompress(reader.read(min(size, MAX_MOVIE_HEADER)), MAX_MOVIE_HEADER)
        except zlib.error:
            return  # FFmpeg cannot unpack it either
        self._is_packed_too_much |= size > MAX_MOVIE_HEADER or len(header) == MAX_MOVIE_HEADER
        self._is_packed_too_much |= bool(self._count(header, len(header), len(header)))
