"""What a source is, told by its name: a file, a pipe, a camera or a network address."""

import os
import re
import stat
import sys
from dataclasses import dataclass
from typing import Literal

from picknet.errors import PicknetError

_CAMERAS = {
    "linux": ("v4l2", "/dev/video{}", ()),
    "darwin": ("avfoundation", "{}", (("framerate", "30"),)),
}
"""How FFmpeg calls a camera by its number: format, name, options."""
_OPTIONS = {
    "rtsp": (("rtsp_flags", "prefer_tcp"),),  # over UDP, packets are lost
    "udp": (("overrun_nonfatal", "1"),),
}

_BRIEF = ("analyzeduration", "1000000")
"""A second of looking at what a source sends, not five: by so much the first frames are late."""


class UnreachableSource(PicknetError):
    """A source that no frame can be had from; the message starts with its name, without a password."""


@dataclass(frozen=True)
class Address:
    kind: Literal["file", "pipe", "camera", "network"]
    name: str
    """For people: without a password."""
    address: str
    """For FFmpeg."""
    format: str | None = None
    options: tuple[tuple[str, str], ...] = ()

    @property
    def scheme(self) -> str:
        return self.address.partition("://")[0].lower()


def recognised(source: str | os.PathLike[str] | int) -> Address:
    """What a source is: `-`, a camera's number or device, anything with ://, a file or a named pipe."""
    text = str(source) if isinstance(source, int) else os.fspath(source)
    if text == "-":
        return Address("pipe", "standard input", "-")
    if re.fullmatch(r"\d+", text):
        if sys.platform not in _CAMERAS:
            raise UnreachableSource(
                f"camera {text}: cameras have numbers on Linux and macOS; elsewhere give the frames of another library"
            )
        format, pattern, options = _CAMERAS[sys.platform]
        return Address("camera", f"camera {text}", pattern.format(text), format, options)
    if re.fullmatch(r"/dev/video\d+", text):
        return Address("camera", text, text, "v4l2")
    if "://" in text:
        scheme = text.partition(":")[0].lower()
        return Address("network", without_password(text), text, options=(_BRIEF, *_OPTIONS.get(scheme, ())))
    try:
        is_pipe = stat.S_ISFIFO(os.stat(text).st_mode)
    except (OSError, ValueError):  # whatever is wrong with the file, it is said when it is opened
        is_pipe = False
    return Address("pipe" if is_pipe else "file", text, text)


def without_password(address: str) -> str:
    """The address with stars for its password, and for what looks like one among its parameters."""
    scheme, colon, rest = address.partition("://")
    host = re.split(r"[/?#]", rest, maxsplit=1)[0]
    if "@" not in host and ":" in host and not host.startswith("["):
        # Maybe a password with a slash in it, not written as %2F; where it is a port before a path, little is lost.
        host = rest.partition("?")[0] if re.fullmatch(r"[^:]*:\d*", host) else rest
    credentials, at, _ = host.rpartition("@")
    user, has_password, _ = credentials.partition(":")
    hidden = f"{user}:***" if has_password else user
    shown = f"{scheme}{colon}{hidden}{at}{rest[len(credentials) + len(at):]}"
    return re.sub(r"(?i)([?&;][^=&;]*(?:pass|pwd|token|secret|key|auth|sig)[^=&;]*=)[^&;#]+", r"\1***", shown)
