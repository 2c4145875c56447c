"""Whether a video or picture is stored mirrored, which the number of quarter turns that FFmpeg tells does not say.

It is read from the file: PyAV has the matrix among the side data of a frame, but crashes if a colour profile is there.
"""

import os
import struct
from collections.abc import Iterator
from typing import Any

from picknet.video.pictures import mirrored_by_exif

_MAX_BOXES = 1000
"""Of an MP4, in one box: what comes later is not looked at."""
_PICTURES = (b"\xff\xd8", b"\x89PNG", b"RIFF")
"""How JPEG, PNG and WebP begin."""
_EXIF_WITHIN = 2**16
"""Bytes at the start of a picture in which its EXIF data are."""
_MOVIE_MATRIX, _TRACK_MATRIX, _TRACK = (36, 48), (40, 52), (12, 20)
"""Where the matrices are in the headers of movie and track, and the number of the track, in versions 0 and 1."""
_LONGEST_HEADER = 96


def is_mirrored(reader: Any, track: int) -> bool:
    """Whether the matrices of an MP4's movie and track, or the EXIF data of a picture, mirror what is shown."""
    if reader.read(4).startswith(_PICTURES):
        if b"exif" not in reader.read(_EXIF_WITHIN).lower():
            return False
        reader.seek(0)
        return mirrored_by_exif(reader)
    flips = [
        flip
        for name, place, end in _boxes(reader, 0, reader.seek(0, os.SEEK_END))
        if name == b"moov"
        for flip in _flips(reader, place, end, track)
    ]
    return sum(flips) % 2 == 1


def _flips(reader: Any, place: int, end: int, track: int) -> Iterator[bool]:
    """Whether the matrices of the movie and of the track mirror."""
    for name, inside, inside_end in _boxes(reader, place, end):
        if name == b"mvhd":
            yield _mirrors(_header(reader, inside, inside_end), _MOVIE_MATRIX)
        elif name == b"trak":
            for part, begin, part_end in _boxes(reader, inside, inside_end):
                if part == b"tkhd":
                    header = _header(reader, begin, part_end)
                    (number,) = struct.unpack_from(">I", header, _TRACK[header[0] == 1])
                    yield number == track and _mirrors(header, _TRACK_MATRIX)


def _header(reader: Any, place: int, end: int) -> bytes:
    reader.seek(place)
    return bytes(reader.read(min(end - place, _LONGEST_HEADER))).ljust(_LONGEST_HEADER, b"\0")


def _mirrors(header: bytes, places: tuple[int, int]) -> bool:
    a, b, _, c, d = struct.unpack_from(">5i", header, places[header[0] == 1])
    return bool(a * d < b * c)


def _boxes(reader: Any, place: int, end: int) -> Iterator[tuple[bytes, int, int]]:
    """Name, begin and end of the content of each box between two places of the file."""
    for _ in range(_MAX_BOXES):
        if place >= end:
            return
        reader.seek(place)
        header = reader.read(16)
        if len(header) < 8:
            return
        size, length = int.from_bytes(header[:4], "big"), 8
        if size == 1:
            size, length = int.from_bytes(header[8:], "big"), 16
        elif size == 0:
            size = end - place
        if size < length:
            return
        yield header[4:8], place + length, min(place + size, end)
        place += size
