"""Where results go: to standard output, or with --out to a file that is replaced only once it is complete."""

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import TextIO, TypeVar

from picknet.cli.arguments import BadUsage, ResultFormat
from picknet.cli.terminal import note, printable

Format = TypeVar("Format", bound=StrEnum)

RESULT_SUFFIXES: dict[str, tuple[ResultFormat, ...]] = {
    ".txt": (ResultFormat.text,),
    ".json": (ResultFormat.json, ResultFormat.jsonl),
    ".jsonl": (ResultFormat.jsonl, ResultFormat.json),
    ".csv": (ResultFormat.csv,),
}


def format_for(
    out: Path | None, format: Format | None, suffixes: Mapping[str, tuple[Format, ...]], *, default: Format
) -> Format:
    """The format asked for, or else the one of the file's suffix; it is an error if the two contradict each other.

    suffixes: for each suffix the formats it may stand for, the usual one first.
    """
    suffix = out.suffix.lower() if out else ""
    if not suffix or is_special(out):
        return format or default
    possible = suffixes.get(suffix, ())
    if format is None and not possible:
        raise BadUsage(f"--out {out}: unknown suffix; pass --format, or use one of {', '.join(suffixes)}")
    if format is None:
        return possible[0]
    if possible and format not in possible:
        raise BadUsage(f"--out {out}: the suffix means {possible[0]}, but --format is {format}")
    return format


def check_out(out: Path | None) -> None:
    """Raise an error where the file cannot be written, before there is anything to write."""
    if out is None or is_special(out):
        return
    if out.is_dir():
        raise BadUsage(f"--out {out}: is a folder; name a file")
    from picknet.files import check_folder

    check_folder(out.parent)


def check_spared(results: Iterable[Path | None], sources: Iterable[object]) -> None:
    """Raise an error where a result would take the place of a source. sources: those that are paths are looked at."""
    files = {_identity(path): path for path in results if path and path.is_file()}
    for source in sources if files else ():
        if isinstance(source, str) and (path := files.get(_identity(source))):
            raise BadUsage(f"{path}: is one of the videos, and a result would take its place; name another one")


def _identity(path: str | os.PathLike[str]) -> tuple[int, int] | None:
    """Of a file, the same under all its names; None where there is none."""
    try:
        status = os.stat(path)
    except (OSError, ValueError):
        return None
    return status.st_dev, status.st_ino


def is_special(out: Path | None) -> bool:
    """Standard output by the name of -, a device, a pipe: nothing that could be renamed."""
    return out is not None and (str(out) == "-" or (out.exists() and not out.is_file() and not out.is_dir()))


@contextlib.contextmanager
def opened(out: Path | None) -> Iterator[Callable[[str], object]]:
    """A function that writes a piece of the result at once, to standard output or to the file `out`.

    The pieces are collected in `out` + ".part", which becomes `out` at the end. If the block fails or is interrupted,
    `out` stays as it was, and the pieces so far stay in the ".part" file, for hours of work may be in them.
    """
    if out is None or is_special(out):
        with opened_live(out) as write_now:
            yield write_now
        return
    from picknet.files import UnwritableFile, open_regular, take_lock

    part = out.with_name(f"{out.name}.part")
    has_content = False

    def write(piece: str) -> None:
        nonlocal has_content
        with _explained(out):
            file.write(piece)
            file.flush()
        has_content = has_content or bool(piece)

    with _explained(out):
        part.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(OSError), open_regular(part) as other:
            if not take_lock(other):
                raise UnwritableFile(f"{out}: another process is writing it, to {part.name}; name another file")
        part.unlink(missing_ok=True)  # it may be a link or a pipe
        file = part.open("x", encoding="utf-8", errors="surrogateescape", newline="")
        take_lock(file)
    try:
        with _closed(file, out):
            yield write
            with _explained(out):
                os.fsync(file.fileno())
        with _explained(out):
            part.replace(out)
    except BaseException:
        if has_content:
            note(f"{part}: holds the results so far")
        else:
            part.unlink(missing_ok=True)
        raise


@contextlib.contextmanager
def opened_live(out: Path | None) -> Iterator[Callable[[str], object]]:
    """The same for results without an end: each piece is in `out` itself at once.

    An older file is emptied with the first piece, so that a source that cannot be read leaves it as it was.
    """
    if out is None or str(out) == "-":
        yield lambda piece: print(printable(piece), end="", flush=True)
        return

    is_first = not is_special(out)

    def write(piece: str) -> None:
        nonlocal is_first
        with _explained(out):
            if is_first:
                file.truncate(0)
            is_first = False
            file.write(piece)
            file.flush()

    with _explained(out):
        out.parent.mkdir(parents=True, exist_ok=True)
        file = out.open("a", encoding="utf-8", errors="surrogateescape", newline="")
    with _closed(file, out):
        yield write


@contextlib.contextmanager
def _closed(file: TextIO, out: Path) -> Iterator[None]:
    """Close the file at the end, which writes again what could not be written before."""
    try:
        yield
    finally:
        with _explained(out):
            file.close()


@contextlib.contextmanager
def _explained(out: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        from picknet.files import UnwritableFile

        raise UnwritableFile(f"{out}: cannot be written ({error.strerror or error})") from error
