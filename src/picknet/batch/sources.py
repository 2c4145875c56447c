"""Clips from folders, patterns, lists of paths and tar files, on this machine or behind an address.

Everything is listed lazily: a million paths are never in memory at once. Addresses other than http(s) videos are read
through fsspec, so that `s3://`, `gs://` and the like work where their package is installed.
"""

import codecs
import contextlib
import csv
import glob
import hashlib
import io
import itertools
import json
import os
import posixpath
import re
import shutil
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import IO, Any, NamedTuple, cast

from picknet.errors import PicknetError
from picknet.files import files_below, matching, open_regular
from picknet.video.source import (
    TRANSPORT_START_BYTES,
    TRANSPORT_SUFFIXES,
    VIDEO_SUFFIXES,
    UnreadableVideo,
    is_transport_stream,
    is_video_file,
    without_password,
)

LIST_SUFFIXES = (".txt", ".csv", ".jsonl", ".ndjson", ".parquet")
"""Files that list clips: a path a line, or tables with a column of paths."""
COLUMNS = ("video", "path", "url")
"""Names of that column, the first of them that a table has."""
TAR_SUFFIX = ".tar"
COMPRESSED_TARS = (".tgz", ".tar.gz", ".tar.bz2", ".tar.xz", ".tar.zst")
MAX_LINKS = 40
"""In a row that are followed in a tar file, as many as Linux follows."""
HELD_BYTES = 64 << 20
"""A clip behind an address is read in one request and kept in memory up to this size, beyond it in a temporary file."""


class BadSource(PicknetError):
    """A source that does not exist, cannot be read, or lists no clip."""


class Clip(NamedTuple):
    """One video to describe: its name, and for a member of a tar file where its bytes are."""

    name: str
    """The path or address as given; for a member of a tar file what fsspec calls it, `tar://clip.mp4::shard.tar`."""
    tar: str = ""
    offset: int = 0
    size: int = 0
    problem: str = ""
    """Why it cannot be read, where listing found out."""
    content: bytes | None = None
    """Its bytes, where somebody else has read them."""

    @property
    def key(self) -> bytes:
        """128 bits that stand for the name."""
        return _digest(self.name)

    @property
    def shown_name(self) -> str:
        """The name for tables and messages: valid Unicode, and without a password."""
        name = without_password(self.name) if is_remote(self.name) else self.name
        return name.encode("utf-8", "backslashreplace").decode()

    @property
    def is_relative(self) -> bool:
        """Whether it is read from a path that is relative to the working directory."""
        place = (self.tar or self.name).rpartition("::")[2]
        return self.content is None and not is_remote(place) and not os.path.isabs(place)


@dataclass(frozen=True)
class Shard:
    """A part of all clips, for people who start several runs side by side: `3/16` is the third of sixteen.

    A clip belongs to one shard by its name alone, so that parts stay disjoint when sources grow. All members of a tar
    file belong to the shard of the file, so that each tar file is read by one run.
    """

    number: int = 1
    count: int = 1

    @classmethod
    def parse(cls, text: str) -> "Shard":
        number, slash, count = text.partition("/")
        if not slash or not number.isdecimal() or not count.isdecimal() or not 1 <= int(number) <= int(count):
            raise BadSource(f"shard is {text!r}: K/N is possible, with K from 1 to N, such as 3/16")
        return cls(int(number), int(count))

    def owns(self, name: str) -> bool:
        return self.count == 1 or int.from_bytes(_digest(name)[:8]) % self.count == self.number - 1

    def __str__(self) -> str:
        return f"{self.number}/{self.count}"


ALL = Shard()


def list_clips(sources: Iterable[str], *, shard: Shard = ALL, column: str | None = None) -> Iterator[Clip]:
    """The clips of this shard that the sources stand for; a clip that two sources name comes twice.

    Raises `BadSource` for a source that cannot be read or lists nothing. column: the column of paths in tables.
    """
    for source in sources:
        has_names = has_clips = False
        for name in _names(source, column):
            has_names = True
            if not shard.owns(name):
                has_clips = True  # of another shard, or so it seems
                continue
            for clip in _members(name) if _is_tar(name) else [Clip(name)]:
                has_clips = True
                yield clip
        if not has_clips:
            raise BadSource(f"{_shown(source)}: {_why_empty(source, has_names=has_names)}")


@contextlib.contextmanager
def opened(clip: Clip) -> Iterator[str | bytes | IO[bytes]]:
    """What a captioner can read, within the block: a path, an http(s) address, bytes, or a temporary file."""
    if clip.problem:
        raise UnreadableVideo(f"{clip.shown_name}: {clip.problem}")
    if clip.content is not None:
        yield clip.content
    elif clip.tar:
        with _open(clip.tar) as file:
            # Before reading, which reserves as much memory as the header says.
            if file.seek(0, os.SEEK_END) < clip.offset + clip.size:
                raise UnreadableVideo(f"{clip.shown_name}: the tar file is cut short")
            if clip.size <= HELD_BYTES:
                file.seek(clip.offset)
                try:
                    content = file.read(clip.size)
                except ValueError as error:  # of fsspec
                    if "range requests" not in str(error):
                        raise
                    what = "the server of the tar file sends no parts of it; download it first"
                    raise UnreadableVideo(f"{clip.shown_name}: {what}") from error
                yield content
                return
            file.seek(0)
            with tarfile.open(fileobj=file, mode="r:") as archive:
                member = tarfile.TarInfo(clip.shown_name)
                member.size, member.offset_data = clip.size, clip.offset
                yield cast(IO[bytes], archive.extractfile(member))
    elif is_remote(clip.name) and not is_http(clip.name):
        with tempfile.SpooledTemporaryFile(HELD_BYTES) as held:
            with _open(clip.name) as file:
                shutil.copyfileobj(file, held, HELD_BYTES)
            held.seek(0)
            yield held
    else:
        yield clip.name


def is_remote(name: str) -> bool:
    return "://" in name and not os.path.lexists(name)


def is_http(name: str) -> bool:
    return name.lower().startswith(("http://", "https://"))


# --- Listing ---


def _names(source: str, column: str | None) -> Iterator[str]:
    """The paths and addresses that one source stands for."""
    if "\0" in source or not source:
        raise BadSource(f"{source!r}: is not a name of a file or folder")
    if source == "-":
        if sys.stdin.isatty():
            raise BadSource("-: standard input is a terminal; pipe a list of paths into it")
        with _readable("-"):
            yield from _lines(sys.stdin.buffer)
        return
    if source.lower().endswith(COMPRESSED_TARS) and not os.path.isdir(source):
        raise BadSource(f"{_shown(source)}: a compressed tar file cannot be read from its middle; unpack it to a .tar")
    if source.lower().startswith("file://"):
        raise BadSource(f"{source}: not supported; pass the plain path")
    if is_remote(source):
        yield from _remote_names(source, column)
    elif os.path.isdir(source):
        yield from _walked(source)
    elif os.path.lexists(source):
        yield from _listed(source, column) if _suffix(source) in LIST_SUFFIXES else [source]
    elif glob.has_magic(source):
        for match in matching(source, on_error=_refuse):
            yield from _names(match, column)
    else:
        raise BadSource(f"{source}: no such file or folder")


def _walked(folder: str) -> Iterator[str]:
    """Videos and tar files in the folder and those below it, folder by folder; hidden ones are left out."""
    return (path for path in files_below(folder, on_error=_refuse) if _is_tar(path) or is_video_file(path))


def _refuse(error: OSError) -> None:
    raise BadSource(f"{error.filename}: cannot be read ({error.strerror})") from error


def _remote_names(address: str, column: str | None) -> Iterator[str]:
    is_list = _suffix(address) in LIST_SUFFIXES
    if is_http(address) and not is_list and not address.endswith("/"):
        yield address  # a clip or a tar file, which is asked for when it is read
        return
    if is_list and (is_http(address) or not glob.has_magic(address)):
        yield from _listed(address, column)
        return
    _, archive_mark, archive = address.partition("://")[2].partition("::")
    with _explained(address):
        import fsspec

        system, path = fsspec.core.url_to_fs(address)
        if glob.has_magic(path):
            matches: list[str] | None = sorted(system.glob(path))
        else:  # isfile() and isdir() would say no where there is no permission
            matches = None if system.info(path)["type"] == "directory" else [path]
    if matches is not None:
        yield from (system.unstrip_protocol(match) + archive_mark + archive for match in matches)
        return
    with _explained(address):
        for place, folders, files in system.walk(path):
            folders[:] = sorted(name for name in folders if not name.startswith("."))
            for name in sorted(files):
                if not name.startswith(".") and (_is_tar(name) or _suffix(name) in VIDEO_SUFFIXES | TRANSPORT_SUFFIXES):
                    inner = f"{place.rstrip('/')}/{name}" if place else name
                    yield system.unstrip_protocol(inner) + archive_mark + archive


def _listed(source: str, column: str | None) -> Iterator[str]:
    """The paths in a list, as they stand there: relative ones are relative to the working directory."""
    readers: dict[str, Callable[[IO[bytes], str | None], Iterator[str]]] = {
        ".txt": _lines,
        ".csv": _csv_column,
        ".parquet": _parquet_column,
    }
    with _explained(source), _open(source) as file, _readable(source):
        yield from readers.get(_suffix(source), _json_column)(file, column)


@contextlib.contextmanager
def _readable(source: str) -> Iterator[None]:
    """What is wrong in a list as one line about it."""
    try:
        yield
    except (ValueError, csv.Error) as error:  # JSON's and Arrow's are ValueErrors
        raise BadSource(f"{_shown(source)}: {str(error).splitlines()[0]}") from error


def _lines(file: IO[bytes], column: str | None = None) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        _check_utf8(line)
        if name := os.fsdecode((line.removeprefix(codecs.BOM_UTF8) if number == 1 else line).rstrip(b"\r\n")):
            yield name


def _csv_column(file: IO[bytes], column: str | None) -> Iterator[str]:
    rows = csv.DictReader(io.TextIOWrapper(file, "utf-8-sig", errors="surrogateescape", newline=""))
    _check_utf8("".join(rows.fieldnames or ()).encode(errors="surrogateescape"))
    name = _column(rows.fieldnames or (), column)
    return (_path(row[name], f"line {rows.line_num}") for row in rows)


def _check_utf8(line: bytes) -> None:
    if b"\0" in line:  # as every second byte of Latin text in UTF-16
        raise ValueError("holds NUL bytes, as UTF-16 has them; save it as UTF-8")


def _path(value: object, place: str) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"{place} has {json.dumps(value)} where a path was expected")
    return value


def _json_column(file: IO[bytes], column: str | None) -> Iterator[str]:
    for number, line in enumerate(file, start=1):
        _check_utf8(line)
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except ValueError as error:
            raise ValueError(f"line {number} is not JSON ({error})") from error
        yield _path(row.get(_column(row, column)) if isinstance(row, dict) else row, f"line {number}")


def _parquet_column(file: IO[bytes], column: str | None) -> Iterator[str]:
    import pyarrow as pa
    import pyarrow.parquet

    table = pa.parquet.ParquetFile(file)
    name = _column(table.schema_arrow.names, column)
    kind = table.schema_arrow.field(name).type
    plain = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not re.fullmatch(r"null|(large_)?(string|binary)(_view)?", str(plain)):
        raise ValueError(f"the column {name} holds {kind} where paths were expected; name another one with --column")
    values = (value for batch in table.iter_batches(columns=[name]) for value in batch.column(0).to_pylist())
    for number, value in enumerate(values, start=1):
        yield _path(os.fsdecode(value) if isinstance(value, bytes) else value, f"row {number}")


def _column(present: Iterable[str], wanted: str | None) -> str:
    present = list(present)
    for name in [wanted] if wanted else COLUMNS:
        if name in present:
            return name
    missing = f"no column {wanted!r}" if wanted else f"no column {', '.join(COLUMNS[:-1])} or {COLUMNS[-1]}"
    raise ValueError(f"{missing}; its columns are {', '.join(present) or '(none)'}: name one with --column")


# --- Tar files ---


def _members(tar: str) -> Iterator[Clip]:
    """The videos in a tar file, found by its headers. A damaged one gives the members before the damage, and itself as
    a clip with a problem.
    """
    links: dict[str, _Link] = {}
    try:
        with _open(tar, block_size=1 << 16) as file, tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # they are not asked for again
                if member.islnk() or member.issym():
                    links[posixpath.normpath(member.name)] = _Link(member)
                elif not _may_be_video(member.name):
                    continue
                elif member.isreg() and (_suffix(member.name) in VIDEO_SUFFIXES or _is_stream(archive, member)):
                    yield _stored(tar, member.name, member)
            # A damaged header is the end for `tarfile`, too, but only a block of zeros is the end of a whole file.
            file.seek(archive.offset)  # type: ignore[attr-defined]
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                yield Clip(tar, problem="the tar file is damaged or cut short: its end is missing")
            yield from _linked(tar, file, links)
    except FileNotFoundError:
        yield Clip(tar, problem="no such file")
    except Exception as error:  # noqa: BLE001 - cloud libraries have errors of their own; this one becomes a row
        yield Clip(tar, problem=f"cannot be read as a tar file ({_reason(error)})")


def _stored(tar: str, name: str, member: tarfile.TarInfo) -> Clip:
    """The clip whose bytes a member is. name: its own, or that of a link to it."""
    if member.issparse():
        return Clip(f"tar://{name}::{tar}", problem="is stored without its zeros; pack it without --sparse")
    return Clip(f"tar://{name}::{tar}", tar, member.offset_data, member.size)


def _may_be_video(member: str) -> bool:
    """By its name."""
    return _suffix(member) in VIDEO_SUFFIXES | TRANSPORT_SUFFIXES and not PurePosixPath(member).name.startswith(".")


def _is_stream(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bool:
    """Whether a member that is called .ts or .mts is a video."""
    content = archive.extractfile(member)
    return content is not None and is_transport_stream(content.read(TRANSPORT_START_BYTES))


def _linked(tar: str, file: IO[bytes], links: dict[str, "_Link"]) -> Iterator[Clip]:
    """The clips that are links to other members. These are searched for in a second pass: there may be many.

    Targets are names of members, never of files of this machine, so that no link leads out of the tar file.
    """
    wanted: dict[str, list[_Link]] = {}
    for link in links.values():
        if _may_be_video(link.name):
            wanted.setdefault(_end_of(link, links), []).append(link)
    file.seek(0)
    with tarfile.open(fileobj=file, mode="r:") as archive:
        while wanted and (member := archive.next()) is not None:
            archive.members.clear()  # type: ignore[attr-defined]
            if not member.isreg():
                continue
            for link in wanted.pop(posixpath.normpath(member.name), ()):
                if _suffix(link.name) in VIDEO_SUFFIXES or _is_stream(archive, member):
                    yield _stored(tar, link.name, member)
    for link in itertools.chain.from_iterable(wanted.values()):
        yield Clip(f"tar://{link.name}::{tar}", problem=f"is a link to {link.shown}, which is no file in the tar file")


class _Link:
    """A member of a tar file that stands for another: the second of two hard links, or a symbolic link."""

    __slots__ = ("name", "shown", "target")

    def __init__(self, member: tarfile.TarInfo) -> None:
        self.name, self.shown = member.name, member.linkname
        folder = posixpath.dirname(member.name) if member.issym() else ""
        self.target = posixpath.normpath(posixpath.join(folder, member.linkname))


def _end_of(link: _Link, links: dict[str, _Link]) -> str:
    """The name of the first member that is no link, on the way from link to link; a circle has none."""
    for _ in range(MAX_LINKS - 1):
        if link.target not in links:
            break
        link = links[link.target]
    return link.target


def _is_tar(name: str) -> bool:
    return _suffix(name) == TAR_SUFFIX and "::" not in name  # one with "::" is a member


# --- Opening ---


@contextlib.contextmanager
def _open(name: str, **options: Any) -> Iterator[IO[bytes]]:
    """A file on this machine or behind an address, which can be read from any position."""
    if not is_remote(name):
        with open_regular(name) as file:
            yield file
        return
    import fsspec

    # The system has to stay as long as the file: one of an archive closes it when it is freed.
    system, path = fsspec.core.url_to_fs(name)
    with system.open(path, "rb", **options) as file:
        yield file


@contextlib.contextmanager
def _explained(source: str) -> Iterator[None]:
    """Errors of file systems as one line about the source."""
    try:
        yield
    except PicknetError:
        raise
    except FileNotFoundError as error:
        raise BadSource(f"{_shown(source)}: no such file or folder") from error
    except PermissionError as error:
        raise BadSource(f"{_shown(source)}: no permission to read it ({_reason(error)})") from error
    except ImportError as error:
        raise BadSource(f"{_shown(source)}: needs another package ({_reason(error)})") from error
    except Exception as error:
        raise BadSource(f"{_shown(source)}: cannot be read ({_reason(error)})") from error


def _reason(error: Exception) -> str:
    """The first line of a message; some exceptions have none."""
    lines = (getattr(error, "strerror", None) or str(error)).strip().splitlines()
    return lines[0] if lines else type(error).__name__


def _why_empty(source: str, *, has_names: bool) -> str:
    """has_names: whether it stands for tar files, in which there is nothing."""
    suffixes = ", ".join(sorted(VIDEO_SUFFIXES | TRANSPORT_SUFFIXES))
    if has_names:
        which = "this tar file" if _is_tar(source) and not glob.has_magic(source) else "its tar files"
        return f"no video in {which} (looked for {suffixes})"
    if source == "-" or _suffix(source) in LIST_SUFFIXES:
        return "lists no path"
    if glob.has_magic(source) and not os.path.lexists(source):
        return "no file matches this pattern"
    return f"no video in this folder (looked for {suffixes} and .tar)"


def _suffix(name: str) -> str:
    return os.path.splitext(name.partition("?")[0] if "://" in name else name)[1].lower()


def _shown(source: str) -> str:
    return Clip(source).shown_name


def _digest(name: str) -> bytes:
    return hashlib.blake2b(name.encode("utf-8", "surrogatepass"), digest_size=16).digest()
