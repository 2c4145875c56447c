"""What takes long to make, kept in the user's cache folder. Without it all is the same, only slower.

An entry is a file of its own, written whole or not at all, with a checksum in front. What cannot be read, was cut short
or changed is as good as not there; what cannot be written (a full disk, a folder that is read-only) is not kept.
"""

import contextlib
import hashlib
import os
import sys
from pathlib import Path

from picknet.files import UnwritableFile, written_whole

MAX_ENTRIES = 12
"""Those not used for longest are deleted. A model takes two, of some 10 MB together."""
SUFFIX = ".picknet"
"""Of the entries' files. Whatever else lies in the folder is somebody else's."""
_DIGEST_SIZE = hashlib.sha256().digest_size


def folder() -> Path | None:
    """Where entries are kept: $PICKNET_CACHE, or the system's place for caches; None if the former is empty."""
    if (chosen := os.environ.get("PICKNET_CACHE")) is not None:
        return Path(chosen) if chosen else None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without a home, "~" stays as it is; a folder of that name is nothing anyone wants.
    return Path(base) / "picknet" if base and os.path.isabs(base) else None


def kept(name: str) -> bytes | None:
    """What was kept under this name, exactly as it was; None if there is nothing."""
    place = folder()
    if place is None:
        return None
    try:
        with (place / f"{name}{SUFFIX}").open("rb") as file:
            digest, content = file.read(_DIGEST_SIZE), file.read()
        with contextlib.suppress(OSError):
            os.utime(place / f"{name}{SUFFIX}")
    except OSError:
        return None
    return content if hashlib.sha256(content).digest() == digest else None


def keep(name: str, content: bytes | memoryview) -> None:
    """Keep this under that name, if possible."""
    place = folder()
    if place is None:
        return
    with (
        contextlib.suppress(UnwritableFile),
        written_whole(place / f"{name}{SUFFIX}") as temporary,
        temporary.open("wb") as file,
    ):
        file.write(hashlib.sha256(content).digest())
        file.write(content)
    _prune(place)


def _prune(place: Path) -> None:
    with contextlib.suppress(OSError):  # another process may be at the same
        for entry in sorted(place.glob(f"*{SUFFIX}"), key=lambda entry: entry.stat().st_mtime)[:-MAX_ENTRIES]:
            entry.unlink()
