"""The bytes of a finite video (a file, memory, an open binary file, a download), opened anew for each pass."""

import contextlib
import functools
import io
import os
import stat
import struct
import threading
from collections.abc import Callable
from pathlib import Path
from typing import IO, Any, BinaryIO

import av
from av.container import InputContainer

from picknet.video import bombs, mirrored
from picknet.video.access import check_pixels, file_options, opened, reader_options
from picknet.video.source import UnreadableVideo, is_address, is_binary_file, locate

UNFINISHED_MP4 = "an unfinished or damaged MP4 (its index, 'moov', is missing or cut)"
_PLAYLIST_STARTS = (b"#EXTM3U", b"ffconcat")


class Content:
    """The bytes of one video. Each pass opens them for itself, so that passes do not disturb each other.

    name: for messages. reader: returns a new reader at the start of the bytes. path: the file, if they are one.
    """

    def __init__(self, name: str, reader: Callable[[], Any], *, path: Path | None = None) -> None:
        self.name = name
        self._reader = reader
        self._path = path
        self._is_checked = False

    def open(self, *, probes: bool = True) -> InputContainer:
        """Open the container for one pass.

        probes: whether FFmpeg decodes as many frames as it takes to see how often they come, and in which order. One
        is decoded in any case.
        """
        if not self._is_checked:
            with contextlib.suppress(OSError), self._reader() as reader:
                bombs.check(reader, self.name)
            self._is_checked = True
        options = {} if probes else {"fpsprobesize": "0"}
        try:
            if self._path is None:
                return opened(self._reader(), reader_options() | options)
            # With its protocol in front, a name such as "a:b.mp4" is not taken for an address.
            return opened(f"file:{self._path.absolute()}", file_options(self._path) | options)
        except (av.FFmpegError, OSError) as error:
            reason = self._reason(error)
        raise UnreadableVideo(f"{self.name}: {reason}")

    def end(self, size: int) -> bytes:
        """The last `size` bytes, or all of them where there are fewer."""
        with self._reader() as reader:
            reader.seek(max(reader.seek(0, os.SEEK_END) - size, 0))
            return bytes(reader.read(size))

    def part(self, place: int, size: int, *, most: int) -> bytes:
        """So many bytes from this place on, `most` at most."""
        with self._reader() as reader:
            reader.seek(max(place, 0))  # an index may lie
            return bytes(reader.read(max(min(size, most), 0)))

    def is_avi(self) -> bool:
        start = self._start(12)
        return start[:4] == b"RIFF" and start[8:] == b"AVI "

    def is_animated_webp(self) -> bool:
        start = self._start(64)
        return start[:4] == b"RIFF" and start[8:12] == b"WEBP" and b"ANIM" in start

    def is_mirrored(self, track: int) -> bool:
        """Whether this track of it is stored mirrored, or the picture that it is."""
        with contextlib.suppress(OSError), self._reader() as reader:
            return mirrored.is_mirrored(reader, track)
        return False

    def check_pixels(self) -> None:
        """Refuse a GIF or PNG of too large pictures: FFmpeg does not know their size before it has decoded one."""
        start = self._start(24)
        if start[:4] == b"GIF8" and len(start) >= 10:
            width, height = struct.unpack("<HH", start[6:10])
            check_pixels(width, height, self.name)
        elif start[:4] == b"\x89PNG" and start[12:16] == b"IHDR" and len(start) == 24:
            width, height = struct.unpack(">II", start[16:])
            check_pixels(width, height, self.name)

    def close(self) -> None:
        """Passes that are still open are closed by their owner."""

    def _start(self, size: int) -> bytes:
        """The first `size` bytes; none where they cannot be read, of which `open` tells the reason."""
        with contextlib.suppress(OSError), self._reader() as reader:
            return bytes(reader.read(size))
        return b""

    def _reason(self, error: Exception) -> str:
        """Why FFmpeg could not open it."""
        start = self._start(1024)
        if start.startswith(_PLAYLIST_STARTS) or b"<MPD" in start:
            return "a playlist, which refers to other files; `stream` follows the playlist at an address"
        if start[4:8] == b"ftyp" and isinstance(error, av.InvalidDataError | av.EOFError):
            return UNFINISHED_MP4
        if isinstance(error, av.InvalidDataError):
            return "not a known video format"
        if isinstance(error, av.ArgumentError):  # a format that FFmpeg knows, and may not open
            return "not a video container that is read: MP4, MOV, MKV, WebM, AVI, GIF, MPEG, FLV, WMV and the like"
        if isinstance(error, av.EOFError):
            return "the file ends before its first frame"
        return f"cannot be read ({getattr(error, 'strerror', None) or error})"


class _Download(Content):
    """A file at an http(s) address, kept in a temporary file until it is closed."""

    def __init__(self, name: str, file: IO[bytes]) -> None:
        super().__init__(name, functools.partial(_View, file, threading.Lock(), name))
        self._file = file

    def close(self) -> None:
        self._file.close()


def content_of(source: object, *, timeout: float) -> Content:
    """The content of a path, of bytes, of a seekable binary file or of a finite http(s) address, checked to exist.

    timeout: seconds to wait for the server of an address.
    """
    if isinstance(source, bytes | bytearray | memoryview):
        if not source:
            raise UnreadableVideo("bytes: empty")
        return Content("bytes", functools.partial(io.BytesIO, bytes(source)))
    if is_binary_file(source):
        return _content_of_file(source)
    if not isinstance(source, str | os.PathLike | int):
        raise UnreadableVideo(f"{type(source).__name__}: not a path, bytes, a binary file or an address")
    if isinstance(source, int) or is_address(source):
        location = locate(source)
        if location.scheme in ("http", "https"):
            from picknet.video.download import download  # Python's HTTP stack takes 30 ms to import

            return _Download(location.name, download(location.url, timeout=timeout))
        raise UnreadableVideo(f"{location.name}: not a finite file; `stream` describes cameras and streams")
    if not os.fspath(source):  # which `Path` would take for the working directory
        raise UnreadableVideo("'': no such file")
    path = Path(source)
    _check_file(path)
    return Content(os.fspath(source), functools.partial(path.open, "rb"), path=path)


def _content_of_file(file: BinaryIO) -> Content:
    name = file.name if isinstance(getattr(file, "name", None), str) else "file"
    try:
        if isinstance(file, io.TextIOBase):
            raise UnreadableVideo(f"{name}: opened as text; open it with 'rb'")
        if not file.seekable():
            raise UnreadableVideo(f"{name}: cannot be rewound; `stream` describes pipes")
        if file.seek(0, os.SEEK_END) == 0:
            raise UnreadableVideo(f"{name}: the file is empty")
    except (OSError, ValueError) as error:  # ValueError: it is closed
        raise UnreadableVideo(f"{name}: cannot be read ({error})") from None
    return Content(name, functools.partial(_View, file, threading.Lock(), name))


class _View:
    """A reader with its own position in a file that others read as well."""

    def __init__(self, file: IO[bytes], lock: threading.Lock, source_name: str) -> None:
        self._file = file
        self._lock = lock
        self._source_name = source_name
        self._position = 0

    def __enter__(self) -> "_View":
        return self

    def __exit__(self, *_: object) -> None:
        """The file belongs to others."""

    def read(self, size: int) -> bytes:
        try:
            with self._lock:
                self._file.seek(self._position)
                # PyAV copies whatever comes into a buffer of this size.
                data = bytes(self._file.read(size) or b"")[:size]
        except (OSError, ValueError) as error:
            raise UnreadableVideo(f"{self._source_name}: cannot be read ({error})") from None
        self._position += len(data)
        return data

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        if whence == os.SEEK_END:
            with self._lock:
                offset += self._file.seek(0, os.SEEK_END)
        elif whence == os.SEEK_CUR:
            offset += self._position
        if offset < 0:
            raise ValueError(f"negative position {offset}")
        self._position = offset
        return offset

    def tell(self) -> int:
        return self._position


def _check_file(path: Path) -> None:
    """Refuse what is not a file with content, in our own words."""
    if "\0" in str(path):  # Python's own message differs between versions
        raise UnreadableVideo(f"{path}: a file name cannot contain a NUL byte")
    try:
        found = path.stat()
    except FileNotFoundError:
        raise UnreadableVideo(f"{path}: no such file") from None
    except OSError as error:
        raise UnreadableVideo(f"{path}: cannot be read ({error.strerror or error})") from None
    if stat.S_ISDIR(found.st_mode):
        raise UnreadableVideo(f"{path}: is a folder, not a video")
    if not stat.S_ISREG(found.st_mode):
        raise UnreadableVideo(f"{path}: is not a regular file")
    if found.st_size == 0:
        raise UnreadableVideo(f"{path}: the file is empty")
