"""What takes long to compute, cached in the user's cache folder: compiled graphs, METEOR's paraphrase table.

Results are the same without the cache, but later. Each entry is a file, written whole or not at all, with a checksum in
front. An entry that cannot be read, was cut short or changed counts as missing; one that cannot be written (a full
disk, a read-only folder) is skipped.
"""

import contextlib
import os
import sys
import zlib
from pathlib import Path

from picknet.files import UnwritableFile, remove_abandoned, written_whole

MAX_ENTRIES = 12
"""Beyond these, the least recently used are deleted. A model has three or four, of 10 to 20 MB; METEOR one of 52 MB."""
SUFFIX = ".picknet"
"""Of an entry's file name. Other files in the folder are never touched."""
_CHECKSUM_BYTES = 4


def folder() -> Path | None:
    """The cache folder: $PICKNET_CACHE, or the system's folder for caches; None if the variable is set and empty."""
    if (chosen := os.environ.get("PICKNET_CACHE")) is not None:
        return Path(chosen) if chosen else None
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA")
    elif sys.platform == "darwin":
        base = os.path.expanduser("~/Library/Caches")
    else:
        base = os.environ.get("XDG_CACHE_HOME") or os.path.expanduser("~/.cache")
    # Without a home folder, "~" is not expanded; nobody wants a folder of that name.
    return Path(base) / "picknet" if base and os.path.isabs(base) else None


def read(name: str) -> bytes | None:
    """The content of an entry, exactly as it was written; None if it is missing or damaged."""
    if (place := folder()) is None:
        return None
    path = place / f"{name}{SUFFIX}"
    try:
        with path.open("rb") as file:
            checksum, content = file.read(_CHECKSUM_BYTES), file.read()
        with contextlib.suppress(OSError):
            os.utime(path)  # it was used just now
    except OSError:
        return None
    return content if _checksum(name, content) == checksum else None


def write(name: str, content: bytes | memoryview) -> None:
    """Write an entry, if possible."""
    if (place := folder()) is None:
        return
    with (
        contextlib.suppress(UnwritableFile),
        written_whole(place / f"{name}{SUFFIX}") as temporary,
        temporary.open("wb") as file,
    ):
        file.write(_checksum(name, content))
        file.write(content)
    _prune(place)


def _checksum(name: str, content: bytes | memoryview) -> bytes:
    """CRC-32, against damage and mix-ups: much faster than a cryptographic digest without help of the processor."""
    return zlib.crc32(content, zlib.crc32(name.encode())).to_bytes(_CHECKSUM_BYTES)


def _prune(place: Path) -> None:
    remove_abandoned(place)
    with contextlib.suppress(OSError):  # another process may delete them at the same time
        for entry in sorted(place.glob(f"*{SUFFIX}"), key=lambda entry: entry.stat().st_mtime)[:-MAX_ENTRIES]:
            entry.unlink()
