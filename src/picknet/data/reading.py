"""Reading caption files and finding media files, shared by the modules of the data sets."""

import csv
import gzip
import io
import json
import lzma
import os
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from picknet.data import BadData
from picknet.video.pictures import PICTURE_SUFFIXES

ToObject = Callable[[list[tuple[str, Any]]], dict[str, Any]]
"""Makes a JSON object of its names and values, in order."""
SPLITS = ("train", "val", "test")
CAPTION_FOLDERS = ("captions", "annotations", "Flickr8k_text", "")
"""Where caption files are searched: the folder names of the data sets' own archives, and the data folder itself."""


MAX_BYTES = 2**30
"""Of a caption file, unpacked. COCO's, the largest of the data sets, have 91 million."""


@dataclass
class ListedClip:
    """A clip as the caption files list it."""

    stems: tuple[str, ...]
    """The names its file may have, the most likely first."""
    captions: list[str]
    category: str | None = None


def split_name(text: str) -> str:
    """MSR-VTT's "validate" and other common names mean val."""
    text = text.strip().lower()
    return "val" if text in ("valid", "validate", "validation", "dev") else text


def number_after(name: str, prefix: str) -> int | None:
    match = re.fullmatch(rf"{prefix}([0-9]{{1,9}})", name)
    return int(match[1]) if match else None


def by_number(name: str) -> tuple[int, str]:
    """Sorts video2 before video10, and names without a number by ASCII."""
    return (number_after(name, "vid") or number_after(name, "video") or 0, name)


def normal(name: str) -> str:
    # A file system may store "é" as one character or as two.
    return unicodedata.normalize("NFC", name)


def picture_stem(name: str) -> str:
    stem, suffix = os.path.splitext(name.strip())
    return normal(stem if suffix.lower() in PICTURE_SUFFIXES else name.strip())


def find(folder: Path, name: str) -> Path | None:
    return next((path for place in CAPTION_FOLDERS if (path := folder / place / name).is_file()), None)


JSON_ENDINGS = ("", ".gz", ".zip")


def find_json(folder: Path, name: str) -> Path | None:
    """The file, or its compressed form: captions.json, captions.json.gz, captions.json.zip."""
    return next((path for ending in JSON_ENDINGS if (path := find(folder, f"{name}{ending}"))), None)


def media_files(root: Path, suffixes: frozenset[str]) -> dict[str, str]:
    """Paths by their path under the root, by file name and by stem; of files with the same name, the first in order."""
    start = len(os.path.join(root, ""))
    files = []
    for file in _files(str(root)):
        stem, suffix = os.path.splitext(file.name)
        if suffix.lower() in suffixes:
            inner = normal(file.path[start:].replace(os.sep, "/"))
            files.append((inner.split("/"), inner, normal(file.name), normal(stem), file.path))
    files.sort()
    found = {inner: path for _, inner, _, _, path in files}
    for _, _, name, _, path in files:
        found.setdefault(name, path)
    for _, _, _, stem, path in files:
        found.setdefault(stem, path)
    return found


def _files(folder: str, above: tuple[str, ...] = ()) -> "Iterator[os.DirEntry[str]]":
    """Every file below the folder, from directory listings only: no stat call for each of a hundred thousand files."""
    real = os.path.realpath(folder)
    if real in above:
        return  # a link to a parent folder
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from _files(entry.path, (*above, real))
                elif entry.is_file():
                    yield entry
    except PermissionError:
        return  # clips in an unreadable folder are listed as missing


def no_captions(folder: Path, names: Sequence[str], *, or_packed: bool = False) -> BadData:
    places = ", ".join(f"{place}/" for place in CAPTION_FOLDERS if place)
    sought = ", ".join(names) + (" (or the same with .gz or .zip)" if or_packed else "")
    return BadData(f"{folder}: no caption file found in {places} or the folder itself; looked for {sought}")


def read_bytes(file: IO[bytes] | gzip.GzipFile, path: str | os.PathLike[str]) -> bytes:
    """All of an open file. path: its name, for the error that it has no end."""
    content = file.read(MAX_BYTES + 1)
    if len(content) > MAX_BYTES:
        raise BadData(f"{path}: is too large or has no end; possible: at most {MAX_BYTES:,} bytes of text")
    return content


def read_text(path: Path) -> str:
    """The text of the file, or of the file inside a zip or gz: UTF-8, with or without a byte-order mark."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                member = next((name for name in archive.namelist() if Path(name).name == path.stem), None)
                if member is None:
                    raise BadData(f"{path}: does not contain {path.stem} (files: {', '.join(archive.namelist())})")
                with archive.open(member) as file:
                    data = read_bytes(file, path)
        else:
            with gzip.open(path) if path.suffix == ".gz" else path.open("rb") as file:
                data = read_bytes(file, path)
    except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, lzma.LZMAError, EOFError, RuntimeError) as error:
        raise BadData(f"{path}: not a readable {path.suffix[1:]} file ({error})") from error
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror or error})") from error
    try:
        return data.decode("utf-8").removeprefix("\ufeff")
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise BadData(
            f"{path}:{line}: byte {error.start} (0x{data[error.start]:02x}) is not UTF-8; save the file as UTF-8"
        ) from error


def word_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line number, first word, the rest) of each line that has both; blank lines and # comments are skipped."""
    for line, content in enumerate(read_text(path).split("\n"), start=1):
        words = content.split(None, 1)
        if len(words) == 2 and not words[0].startswith("#"):
            yield line, words[0], words[1].strip()


def csv_rows(path: Path, columns: tuple[str, ...], *, strict: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, row) of each line of a CSV file with these columns; if `strict`, every line must have them all."""
    reader = csv.DictReader(io.StringIO(read_text(path), newline=""), skipinitialspace=True, strict=strict)
    try:
        if absent := [column for column in columns if column not in (reader.fieldnames or ())]:
            found = ", ".join(reader.fieldnames or ()) or "none"
            raise BadData(f"{path}:1: no column {', '.join(absent)} (columns: {found})")
        for row in reader:
            # DictReader marks a line too long by the key None, a line too short by the value None.
            if None in row or (strict and None in row.values()):
                raise BadData(f"{path}:{reader.line_num}: not as many columns as in the first line")
            yield reader.line_num, {column: (value or "").strip() for column, value in row.items()}
    except csv.Error as error:
        # line_num is still that of the last good line.
        raise BadData(f"{path}:{reader.line_num + 1}: not CSV ({error})") from error


def parse_json(path: Path, text: str, line: int = 1, *, to_object: ToObject | None = None) -> Any:
    """The JSON value of a text that starts at this line of the file. to_object: see `object_pairs_hook` of `json`."""
    try:
        return json.loads(text, object_pairs_hook=to_object)
    except json.JSONDecodeError as error:
        raise BadData(f"{path}:{line + error.lineno - 1}: not JSON ({error.msg}, column {error.colno})") from error
    except ValueError as error:  # a number of thousands of digits
        raise BadData(f"{path}:{line}: not a caption file ({error})") from error
    except RecursionError as error:
        raise BadData(f"{path}:{line}: not a caption file (nested too deeply)") from error
