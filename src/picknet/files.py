"""Files among those of strangers, whose folders hold pipes, links and folders without number.

What is read is a regular file. What is written is written completely or not at all, and never through a link; a killed
process leaves nothing for ever.
"""

import contextlib
import errno
import fnmatch
import functools
import glob
import os
import platform
import re
import secrets
import shutil
import stat
import tempfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import BufferedReader
from pathlib import Path
from typing import IO

from picknet.errors import PicknetError


class UnwritableFile(PicknetError):
    """A file or folder could not be written."""


_TRIAL_BYTES = 1 << 16
"""What is written to find out whether a disk is full: as much as a small picture."""


_NO_WAIT = getattr(os, "O_NONBLOCK", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)


def open_regular(path: str | os.PathLike[str]) -> BufferedReader:
    """Open a file for reading; OSError for a pipe or a device, which could keep us waiting for ever."""
    file = open(path, "rb", opener=lambda name, flags: os.open(name, flags | _NO_WAIT))  # noqa: SIM115 - the caller's
    if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
        file.close()
        raise OSError(errno.EINVAL, "is not a regular file", os.fspath(path))
    return file


def open_lock(path: Path) -> IO[str]:
    """Open a file to lock it, and create it if it is missing. It is not changed, and a link is not followed."""
    flags = os.O_RDWR | os.O_CREAT | _NO_WAIT | _NO_LINK
    try:
        return os.fdopen(os.open(path, flags, 0o666), "r+", encoding="utf-8")
    except OSError as error:
        raise UnwritableFile(f"{path}: cannot be locked ({error.strerror}); delete it if nobody uses it") from error


def take_lock(file: IO[str] | IO[bytes]) -> bool:
    """Lock an open file until it is closed or this process ends; False if another process holds it.

    Always True where there are no locks: on Windows and on some file systems.
    """
    try:
        import fcntl
    except ImportError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        pass
    return True


def _raised(error: OSError) -> None:
    raise error


def files_below(folder: str, *, on_error: Callable[[OSError], object] = _raised) -> Iterator[str]:
    """The files in a folder and those below it, sorted, folder by folder; hidden files and folders are left out.

    Links to folders are not followed. A folder that disappears meanwhile is left out.

    on_error: called where a folder cannot be read.
    """
    return (path for path, is_folder in _below(Path(folder), on_error) if not is_folder)


def matching(pattern: str, *, on_error: Callable[[OSError], object] = _raised) -> list[str]:
    """The files and folders that fit a pattern, sorted; `**` stands for any number of folders.

    The library's own `**` follows links to folders, of which two make an endless number of paths.

    on_error: called where a folder cannot be read.
    """
    if "\0" in pattern:  # no path has it
        return []
    parts = Path(pattern).parts
    if "**" not in parts:
        _check_searched(parts, on_error)
        return sorted(glob.glob(pattern))
    place = parts.index("**")
    roots = glob.glob(str(Path(*parts[:place]))) if place else ["."]
    return sorted(
        path
        for root in filter(os.path.isdir, roots)
        for path, _ in _below(Path(root), on_error)
        if _fits(Path(path).relative_to(root).parts, parts[place:])
    )


def _check_searched(pattern: Sequence[str], on_error: Callable[[OSError], object]) -> None:
    """Call `on_error` for folders of a pattern that cannot be read: the library leaves them out."""
    for place, part in enumerate(pattern):
        if not glob.has_magic("".join(pattern[: place + 1])):
            continue
        for folder in filter(os.path.isdir, glob.glob(os.path.join(*pattern[:place])) if place else ["."]):
            try:
                if glob.has_magic(part):
                    os.scandir(folder).close()
                else:
                    os.lstat(os.path.join(folder, part))
            except FileNotFoundError:
                pass
            except OSError as error:
                error.filename = folder
                on_error(error)


def _fits(names: Sequence[str], pattern: Sequence[str]) -> bool:
    """Whether the parts of a path fit those of a pattern."""
    if not fnmatch.fnmatch(names[-1], pattern[-1]):  # what most do not pass
        return False

    def with_skipped(places: set[int]) -> set[int]:
        """`**` may stand for nothing."""
        for place, part in enumerate(pattern):
            if part == "**" and place in places:
                places.add(place + 1)
        return places

    places = with_skipped({0})  # of the parts that the next name may fit
    for name in names:
        fitting = {place for place in places if place < len(pattern) and fnmatch.fnmatch(name, pattern[place])}
        places = with_skipped({place if pattern[place] == "**" else place + 1 for place in fitting})
    return len(pattern) in places


def _below(folder: Path, on_error: Callable[[OSError], object]) -> Iterator[tuple[str, bool]]:
    """Files and folders, and which they are. There is no recursion: they may be nested deeper than Python's stack."""
    places = [folder]
    while places:
        place = places.pop()
        try:
            with os.scandir(place) as entries:
                found = sorted((entry for entry in entries if not entry.name.startswith(".")), key=lambda one: one.name)
        except OSError as error:
            if not isinstance(error, FileNotFoundError) or place == folder:
                on_error(error)
            continue
        folders = [place / entry.name for entry in found if entry.is_dir(follow_symlinks=False)]
        places += reversed(folders)
        links = {entry.name for entry in found if entry.is_symlink() and os.path.isdir(entry.path)}
        files = [entry.name for entry in found if not entry.is_dir(follow_symlinks=False)]
        yield from ((str(place / name), False) for name in files if name not in links)
        yield from ((str(path), True) for path in folders)


@contextlib.contextmanager
def written_whole(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yield a temporary path beside `path`; what was written there replaces `path` when the block succeeds.

    A crash, a full disk or Ctrl-C inside the block leaves `path` as it was.
    """
    target = _checked(path)
    if not target.name:
        raise UnwritableFile(f"{path}: is a folder; a file name is needed")
    temporary: Path | None = None
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = _new_name(target)  # known before the file is there: SIGTERM may come at any time
        _create(temporary)
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(target)
    except OSError as error:
        # Only failures to write `path` are explained here; an error of the block about another file is passed on.
        named = target if error.filename is None else Path(os.fsdecode(error.filename))
        if temporary is not None and named not in {target, temporary, *target.parents}:
            raise
        reason = error.strerror or error
        if temporary is None and isinstance(error, FileExistsError | NotADirectoryError):
            reason = f"{next(place for place in target.parents if os.path.lexists(place))} is not a folder"
        raise UnwritableFile(f"{target}: cannot be written ({reason})") from error
    finally:
        if temporary is not None:
            temporary.unlink(missing_ok=True)


def write_text(path: str | os.PathLike[str], text: str) -> None:
    """Write `text` as UTF-8, completely or not at all."""
    with written_whole(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Raise `UnwritableFile` if nothing can be written into the folder, before there is something to write.

    The folder need not exist, and is not created. What killed processes left there is deleted.
    """
    place = _checked(folder).absolute()
    remove_abandoned(place)
    while not os.path.lexists(place):
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(_TRIAL_BYTES))  # on a full disk an empty file can be created
            file.flush()
    except OSError as error:
        raise UnwritableFile(f"{folder}: cannot be written ({error.strerror or error})") from error


def temporary_folder(target: Path) -> Path:
    """Create a folder beside `target`, for what is to be renamed to it."""
    return Path(tempfile.mkdtemp(prefix=f".{target.name[:40]}{_mark()}", dir=target.parent))


def remove_abandoned(folder: str | os.PathLike[str], *, is_fresh: bool = False) -> None:
    """Delete temporary files and folders that processes of this machine left in a folder when they were killed.

    is_fresh: whether this process has created none yet. Then those with its process number are left from an earlier
    one: in a container, every start may get the same number.
    """
    try:
        names = os.listdir(folder)
    except OSError:  # it may not exist yet
        return
    for name in names:
        marked = _MARKED.fullmatch(name)
        if not marked or marked["machine"] != _machine():
            continue
        process = int(marked["process"])
        if not _is_running(process) or (is_fresh and process == os.getpid()):
            path = Path(folder) / name
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path, ignore_errors=True)
            else:
                with contextlib.suppress(OSError):
                    path.unlink()


_MARKED = re.compile(r"\..*-picknet-(?P<machine>[0-9a-f]{8})-(?P<process>\d{1,10})-\w{8}(\..*)?", re.DOTALL)
"""Names of temporary files and folders."""


def _mark() -> str:
    """The part of a temporary name that tells who writes there."""
    return f"-picknet-{_machine()}-{os.getpid()}-"


@functools.cache
def _machine() -> str:
    """Of a folder that several machines share, each cleans up after itself."""
    return f"{zlib.crc32(platform.node().encode()):08x}"


def _is_running(process: int) -> bool:
    if os.name != "posix":
        return True  # elsewhere, asking would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):  # it is somebody else's
        return True
    return True


def _checked(path: str | os.PathLike[str]) -> Path:
    if "\0" in os.fspath(path):  # Python's own message differs between versions, and lexists() returns False
        raise UnwritableFile(f"{path}: a file name cannot contain a NUL byte")
    return Path(path)


def _new_name(target: Path) -> Path:
    """A name beside `target` that no file has. Its suffix is kept: libraries choose a format by it."""
    while True:
        path = target.with_name(f".{target.stem[:40]}{_mark()}{secrets.token_hex(4)}{target.suffix}")
        if not os.path.lexists(path):
            return path


def _create(path: Path) -> None:
    """Create an empty file with the permissions of any new file.

    The kernel applies the umask. `tempfile` would create a private file, and reading the umask to correct that means
    changing it for the whole process.
    """
    os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
