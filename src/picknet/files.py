"""Files that are written whole or not at all."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from picknet.errors import PicknetError


class UnwritableFile(PicknetError):
    """A file or folder could not be written."""


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was written there replaces `path` when the block ends well.

    A crash, a full disk or Ctrl-C inside the block leaves `path` as it was.
    """
    target = Path(path)
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # The suffix is kept: libraries choose a format by it.
        handle, name = tempfile.mkstemp(prefix=f".{target.stem[:40]}-", suffix=target.suffix, dir=target.parent)
        os.close(handle)
        temporary = Path(name)
        yield temporary
        temporary.chmod(0o666 & ~_umask())
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        # Only failures to write are ours to explain; an error of the block about another file is passed on as it is.
        named = target if error.filename is None else Path(os.fsdecode(error.filename))
        if temporary is not None and named not in {target, temporary, *target.parents}:
            raise
        raise UnwritableFile(f"{target}: cannot be written ({error.strerror or error})") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, whole or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise `UnwritableFile` where nothing could be written into the folder, before there is something to write.

    The folder need not be there, and is not made.
    """
    place = Path(folder).absolute()
    while not os.path.lexists(place):
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise UnwritableFile(f"{folder}: cannot be written ({error.strerror or error})") from error


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
