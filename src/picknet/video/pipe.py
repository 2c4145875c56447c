"""Pipes as FFmpeg can read them: front to back, or from a temporary file where that is not possible."""

import contextlib
import os
import tempfile
from collections.abc import Callable
from typing import IO, Any

from picknet.video.source import Location, UnreachableSource

_BOXES_BEFORE_DATA = frozenset({b"ftyp", b"free", b"pnot", b"skip", b"uuid", b"wide"})
"""What an MP4 or QuickTime file may hold before its frames (mdat) and its index (moov)."""
_MAX_START = 1 << 20
"""Bytes within which the frames or the index of an MP4 have to start."""
_CHUNK = 1 << 18


class Pipe:
    """Standard input, a named pipe, or an open file that cannot be sought in.

    An MP4 whose index is at its end cannot be read front to back: it is copied into a temporary file first, with a
    note, and deleted by `close`.

    on_data: called for each piece that is copied; False ends the copy.
    """

    def __init__(self, location: Location, *, note: Callable[[str], object], on_data: Callable[[], bool]) -> None:
        with contextlib.ExitStack() as opened:
            pipe = location.file or opened.enter_context(_open(location.url))
            read = getattr(pipe, "read1", pipe.read)  # returns what is there, without waiting for more
            self.file: Any = pipe
            """For FFmpeg."""
            self.is_copy = False
            if not pipe.seekable():
                start = _Start(read)
                self.file = _Reader(bytes(start.data), read)
                if start.has_index_at_end:
                    note(f"{location.name}: the index of this MP4 is at its end: copying it to a temporary file first")
                    self.file, self.is_copy = opened.enter_context(_copied(self.file, location.name, on_data)), True
            self._opened = opened.pop_all()

    def close(self) -> None:
        self._opened.close()


class _Reader:
    """A pipe whose first bytes have been read already."""

    def __init__(self, start: bytes, read: Callable[[int], bytes]) -> None:
        self._start = start
        self._read = read

    def read(self, size: int) -> bytes:
        if not self._start:
            return bytes(self._read(size) or b"")[:size]
        data, self._start = self._start[:size], self._start[size:]
        return data


class _Start:
    """The first bytes of a pipe: as many as it takes to see whether an MP4 has its index at the end."""

    def __init__(self, read: Callable[[int], bytes]) -> None:
        self._read = read
        self.data = bytearray()
        self.has_index_at_end = self._walk() == b"mdat"

    def _walk(self) -> bytes:
        """The kind of the first box that is not in `_BOXES_BEFORE_DATA`."""
        position, kind = 0, b""
        while position < _MAX_START and self._fill(position + 16):
            header = bytes(self.data[position : position + 16])
            size, kind = int.from_bytes(header[:4]), header[4:8]
            if size == 1:
                size = int.from_bytes(header[8:])
            if kind not in _BOXES_BEFORE_DATA or size < 8:
                break
            position += size
        return kind

    def _fill(self, size: int) -> bool:
        while len(self.data) < size:
            piece = self._read(size - len(self.data))
            if not piece:
                return False
            self.data += piece
        return True


def _open(url: str) -> IO[bytes]:
    # Unbuffered: returns at once what there is, and no lock is held when Python ends.
    if url == "-":
        return open(0, "rb", buffering=0, closefd=False)
    return open(os.path.abspath(url), "rb", buffering=0)


def _copied(pipe: _Reader, name: str, on_data: Callable[[], bool]) -> IO[bytes]:
    file = tempfile.TemporaryFile()  # noqa: SIM115 - closed by the caller; it has no name, so it never stays behind
    try:
        while (piece := pipe.read(_CHUNK)) and on_data():
            file.write(piece)
        file.seek(0)
    except OSError as error:
        file.close()
        raise UnreachableSource(f"{name}: cannot be copied to a temporary file ({error.strerror or error})") from None
    return file
