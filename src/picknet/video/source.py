"""What a source is, by its type and name: a file, a pipe, a camera, a network address, or frames."""

import os
import re
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import BinaryIO, Literal, TypeGuard

import numpy as np
from numpy.typing import NDArray

from picknet.errors import PicknetError
from picknet.files import open_regular
from picknet.video.frame import Frame

Pixels = NDArray[np.uint8]
Source = str | os.PathLike[str] | int | bytes | bytearray | BinaryIO | Pixels | Iterable[Frame | Pixels]
"""Everything that frames can be read from.

A path or `-` (standard input), an address, a camera number; the bytes of a video file or a binary file opened for
reading; one array (n, H, W, 3) or any iterable of frames and RGB arrays (H, W, 3), uint8.
"""

VIDEO_SUFFIXES = frozenset(
    {".3g2", ".3gp", ".asf", ".avi", ".divx", ".dv", ".f4v", ".flv", ".gif", ".h264", ".h265", ".hevc", ".m2ts"}
    | {".m2v", ".m4v", ".mkv", ".mov", ".mp4", ".mpe", ".mpeg", ".mpg", ".mxf", ".ogv", ".qt", ".vob", ".webm", ".wmv"}
)
"""Lower-case file name endings of videos, except for `TRANSPORT_SUFFIXES`."""
TRANSPORT_SUFFIXES = frozenset({".ts", ".mts"})
"""Endings of MPEG transport streams and of TypeScript: only the content tells which."""

TRANSPORT_START_BYTES = 5 * 192
"""What tells which: five packets."""
_TRANSPORT_PACKETS = ((0, 188), (4, 192))
"""Offset of the sync byte 0x47 and packet size: MPEG-TS as broadcast, and as cameras write it (M2TS)."""

_CAMERAS = {
    "linux": ("v4l2", "/dev/video{}", ()),
    "darwin": ("avfoundation", "{}", (("framerate", "30"),)),
}
"""How FFmpeg addresses a camera by its number: format, name, options."""
_OPTIONS = {
    "rtsp": (("rtsp_flags", "prefer_tcp"),),  # over UDP, packets get lost
    "udp": (("overrun_nonfatal", "1"),),
}
_SHORT_ANALYSIS = ("analyzeduration", "1000000")
"""Analyse one second of a stream, not five: the first frames are delayed by this time."""


class UnreadableVideo(PicknetError):
    """A video that yields no frame; the message starts with its name, without a password."""


class UnreachableSource(PicknetError):
    """A live source that yields no frame; the message starts with its name, without a password."""


@dataclass(frozen=True)
class Location:
    kind: Literal["file", "pipe", "camera", "network"]
    name: str
    """For messages: without a password."""
    url: str
    """For FFmpeg."""
    format: str | None = None
    options: tuple[tuple[str, str], ...] = ()
    file: BinaryIO | None = None
    """The open pipe, where one was passed in."""

    @property
    def scheme(self) -> str:
        return self.url.partition("://")[0].lower()


def locate(source: str | os.PathLike[str] | int) -> Location:
    """Classify a source by its name. An existing path is a file or a pipe, whatever it is called."""
    if isinstance(source, int):
        return _camera(source)
    text = os.fspath(source)
    if text == "-":
        return Location("pipe", "standard input", "-")
    if re.fullmatch(r"/dev/video\d+", text):
        return Location("camera", text, text, "v4l2")
    if os.path.lexists(text):
        return Location("pipe" if _is_pipe(text) else "file", text, text)
    if re.fullmatch(r"\d+", text):
        return _camera(int(text))
    if re.match(r"[A-Za-z][A-Za-z0-9+.-]*://", text):
        scheme = text.partition(":")[0].lower()
        options = (_SHORT_ANALYSIS, *_OPTIONS.get(scheme, ()))
        return Location("network", without_password(text), text, options=options)
    return Location("file", text, text)


def is_address(source: object) -> bool:
    """Whether the source is a network address (rtsp://, http:// …) and not an existing file."""
    return isinstance(source, str | os.PathLike) and locate(source).kind == "network"


def is_live(source: object) -> bool:
    """Whether the source may have no end: a camera, a pipe, a stream. No connection is made to find out.

    An http(s) address is taken for a finite file where its path ends like a video file (`VIDEO_SUFFIXES`).
    """
    if is_binary_file(source):
        return is_open_pipe(source)
    if not isinstance(source, str | os.PathLike | int):
        return False
    location = locate(source)
    if is_http(source):
        path = re.split("[?#]", location.url, maxsplit=1)[0]
        return PurePosixPath(path).suffix.lower() not in VIDEO_SUFFIXES
    return location.kind != "file"


def is_http(source: object) -> bool:
    """Whether the source is an http(s) address: only its server knows whether it has an end."""
    if not isinstance(source, str | os.PathLike):
        return False
    location = locate(source)
    return location.kind == "network" and location.scheme in ("http", "https")


def is_binary_file(source: object) -> TypeGuard[BinaryIO]:
    """Whether the source is an open file (text files included: they are refused with a message of their own)."""
    return all(hasattr(source, method) for method in ("read", "seek", "tell", "seekable"))


def is_open_pipe(file: BinaryIO) -> bool:
    """Whether an open file can only be read front to back."""
    try:
        return not file.seekable()
    except ValueError:  # it is closed, which is reported when it is read
        return False


def is_video_file(path: str | os.PathLike[str]) -> bool:
    """Whether the file is a video by its name; .ts and .mts by the sync bytes of MPEG-TS, since TypeScript is not."""
    suffix = Path(path).suffix.lower()
    return suffix in VIDEO_SUFFIXES or (suffix in TRANSPORT_SUFFIXES and _holds_transport_stream(path))


def is_transport_stream(start: bytes) -> bool:
    """Whether a file that starts so is an MPEG transport stream: by its sync bytes."""
    return any(len(start) > 2 * size and set(start[first::size]) == {0x47} for first, size in _TRANSPORT_PACKETS)


def without_password(address: str) -> str:
    """The address with *** for its password, and for query parameters that look like one."""
    scheme, colon, rest = address.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" not in host and ":" in host and not host.startswith("["):
        # Possibly a password with an unescaped slash. If it is a port before a path, little is hidden needlessly.
        host = rest.partition("?")[0] if re.fullmatch(r"[^:]*:\d*", host) else rest
    credentials, at, _ = host.rpartition("@")
    user, has_password, _ = credentials.partition(":")
    hidden = f"{user}:***" if has_password else user
    shown = f"{scheme}{colon}{hidden}{at}{rest[len(credentials) + len(at):]}"
    return re.sub(r"(?i)([?&;][^=&;]*(?:pass|pwd|token|secret|key|auth|sig)[^=&;]*=)[^&;#]+", r"\1***", shown)


def _camera(number: int) -> Location:
    format, pattern, options = _CAMERAS.get(sys.platform, (None, "{}", ()))
    return Location("camera", f"camera {number}", pattern.format(number), format, options)


def _is_pipe(path: str) -> bool:
    try:
        return stat.S_ISFIFO(os.stat(path).st_mode)
    except OSError:  # reported when the file is opened
        return False


def _holds_transport_stream(path: str | os.PathLike[str]) -> bool:
    try:
        with open_regular(path) as file:
            return is_transport_stream(file.read(TRANSPORT_START_BYTES))
    except ValueError:
        return False
    except OSError:  # one that cannot be read counts as a video: reading it says what is wrong
        return os.path.lexists(path) and not os.path.isdir(path)
