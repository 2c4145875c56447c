"""Data sets in their official formats: videos (MSVD, MSR-VTT, a folder of one's own) and pictures (COCO, Flickr8k).

A data folder of videos holds `videos/` (any container, matched by stem) and `captions/` (any of the known caption
files); videos and caption files that lie directly in the folder are found as well. A data folder of pictures is what
the data set's archives unpack to: pictures are found at any depth, and matched by stem too. A picture is a clip of one
frame.
"""

import csv
import gzip
import hashlib
import io
import json
import os
import re
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast, get_args

from picknet.errors import PicknetError
from picknet.video.file import VIDEO_SUFFIXES
from picknet.video.pictures import PICTURE_SUFFIXES

Dataset = Literal["msvd", "msrvtt", "coco", "flickr8k", "folder"]
PICTURE_SETS = ("coco", "flickr8k")
SPLITS = ("train", "val", "test")
CAPTION_FOLDERS = ("captions", "annotations", "Flickr8k_text", "")
"""Where caption files are looked for: the names the data sets' own archives unpack to, and the folder itself."""


class BadData(PicknetError):
    """A data folder or a caption file that cannot be used."""


class NoSplit(BadData):
    """A data folder that is in order, but has no clips of the split asked for."""


@dataclass(frozen=True)
class DataFolder:
    dataset: Dataset
    folder: Path


@dataclass(frozen=True)
class Clip:
    name: str
    """The data set's own name of it: vid1201, video12, or the stem of the file."""
    path: Path
    captions: tuple[str, ...]
    """As they were written, at least one."""
    style: str | None = None
    """The data set they are in the style of, where that is not the one to learn."""


@dataclass(frozen=True)
class Missing:
    name: str
    reason: str


@dataclass(frozen=True)
class Split:
    dataset: Dataset
    name: str
    """train, val, test or all."""
    clips: tuple[Clip, ...]
    """In the order of the official numbers, at least one."""
    missing: tuple[Missing, ...]
    """The clips of the split that cannot be used: listed and counted, never silently dropped."""


@dataclass
class _Listed:
    """A clip as the caption files list it."""

    stems: tuple[str, ...]
    """The names its file may have, the likeliest first."""
    captions: list[str]


def data_folders(texts: Sequence[str], dataset: Dataset | None) -> tuple[DataFolder, ...]:
    """The data folders that texts such as "coco=DIR" name; a bare "DIR" is one of `dataset`."""
    known = get_args(Dataset)
    folders: list[DataFolder] = []
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or name not in known:
            if equals and not Path(text).exists() and re.fullmatch(r"[\w-]*", name):
                raise BadData(f"{text}: unknown data set {name!r} (known: {', '.join(known)})")
            if dataset is None:
                raise BadData(f"{text}: of which data set? Name it, as in {known[0]}=DIR (known: {', '.join(known)})")
            name, place = dataset, text
        if not place or not Path(place).is_dir():
            raise BadData(f"{place or text}: no such folder")
        found = DataFolder(cast(Dataset, name), Path(place))
        if found in folders:
            raise BadData(f"{text}: named twice")
        folders.append(found)
    return tuple(folders)


def load_split(folder: str | os.PathLike[str], *, dataset: Dataset, split: str) -> Split:
    """The clips of one split ("all": of every split) with their captions, and those that are missing.

    A data folder that does not have the split at all is a `NoSplit`.
    """
    readers = {"msvd": _msvd, "msrvtt": _msrvtt, "coco": _coco, "flickr8k": _flickr8k, "folder": _own}
    if dataset not in readers:
        raise BadData(f"unknown data set {dataset!r} (known: {', '.join(get_args(Dataset))})")
    if split not in (*SPLITS, "all"):
        raise BadData(f"unknown split {split!r} (known: {', '.join(SPLITS)}, all)")
    folder = Path(folder)
    if not folder.is_dir():
        raise BadData(f"{folder}: no such folder")

    listed = readers[dataset](folder, split)
    if dataset in PICTURE_SETS:
        kind, files = "picture", _media(folder, PICTURE_SUFFIXES)
    else:
        videos = folder / "videos"
        kind, files = "video", _media(videos if videos.is_dir() else folder, VIDEO_SUFFIXES)
    clips: list[Clip] = []
    missing: list[Missing] = []
    for name, entry in listed.items():
        path = next((files[stem] for stem in entry.stems if stem in files), None)
        if path is None:
            missing.append(Missing(name, f"no {kind} named {' or '.join(entry.stems)}"))
        elif not entry.captions:
            missing.append(Missing(name, "no caption"))
        else:
            clips.append(Clip(name, Path(path), tuple(entry.captions)))
    if not clips:
        found = f"{len(missing):,} listed; {missing[0].name}: {missing[0].reason}" if missing else "none is listed"
        if missing and _number(missing[0].name, "vid") and not _find(folder, "youtube_mapping.txt"):
            found += "; there is no youtube_mapping.txt to tell its file name"
        kind_of_error = BadData if missing else NoSplit
        raise kind_of_error(f"{folder}: no clip of the {split} split of {dataset} can be used ({found})")
    return Split(dataset, split, tuple(clips), tuple(missing))


# --- MSVD ---

MSVD_LAST = {"train": 1200, "val": 1300, "test": 1970}
"""The official split is by number: the last vidN of each part."""

# The official numbers are the ASCII order of the clips' names, so where no youtube_mapping.txt gives the numbers,
# the names of vid1201 and vid1301 are all it takes to tell the splits apart, whichever part of the set is there.
MSVD_FIRST_VAL = "bQJQGoJF7_k_162_169"
MSVD_FIRST_TEST = "eyhzdC936uk_15_27"


def _msvd(folder: Path, split: str) -> dict[str, _Listed]:
    mapping = _msvd_mapping(folder)
    wanted = [part for part in SPLITS if split in (part, "all")]
    sents = [path for part in wanted if (path := _find(folder, f"sents_{part}_lc_nopunc.txt"))]
    descriptions = _find(folder, "AllVideoDescriptions.txt")
    corpus = _find(folder, "video_corpus.csv")
    if sents and (len(sents) == len(wanted) or not (descriptions or corpus)):
        pairs = [pair for path in sents for pair in _msvd_sents(path)]
    elif descriptions:
        pairs = [(name, caption) for _, name, caption in _word_lines(descriptions)]
    elif corpus:
        pairs = _msvd_corpus(corpus)
    else:
        sought = [*(f"sents_{part}_lc_nopunc.txt" for part in wanted), "AllVideoDescriptions.txt", "video_corpus.csv"]
        raise _no_captions(folder, sought)

    listed = {vid: _Listed((name, vid), []) for name, vid in mapping.items()}
    for name, caption in pairs:
        key = mapping.get(name, name)
        # The corpus also describes clips that never became part of the official 1,970.
        if not mapping or key in listed:
            listed.setdefault(key, _Listed((key,), [])).captions.append(caption)
    in_split = {name: entry for name, entry in listed.items() if split in ("all", _msvd_split(name))}
    return {name: in_split[name] for name in sorted(in_split, key=_by_number)}


def _msvd_split(name: str) -> str:
    if number := _number(name, "vid"):
        return next(part for part, last in MSVD_LAST.items() if number <= last or part == "test")
    return "train" if name < MSVD_FIRST_VAL else "val" if name < MSVD_FIRST_TEST else "test"


def _msvd_mapping(folder: Path) -> dict[str, str]:
    """Clip name → vidN, as youtube_mapping.txt has it; empty where there is none."""
    path = _find(folder, "youtube_mapping.txt")
    return {name: _vid(path, line, vid) for line, name, vid in _word_lines(path)} if path else {}


def _msvd_sents(path: Path) -> list[tuple[str, str]]:
    return [(_vid(path, line, vid), caption) for line, vid, caption in _word_lines(path)]


def _msvd_corpus(path: Path) -> list[tuple[str, str]]:
    rows = _csv_rows(path, ("VideoID", "Start", "End", "Language", "Description"))
    return [
        (f"{row['VideoID']}_{row['Start']}_{row['End']}", row["Description"])
        for _, row in rows
        if row["Language"] == "English" and row["Description"]
    ]


def _vid(path: Path, line: int, text: str) -> str:
    number = _number(text, "vid")
    if number is None or not 1 <= number <= MSVD_LAST["test"]:
        raise BadData(f"{path}:{line}: {text!r} is no clip of MSVD (vid1 to vid{MSVD_LAST['test']})")
    return f"vid{number}"


# --- MSR-VTT ---

MSRVTT_FILES = ("train_val_videodatainfo.json", "test_videodatainfo.json")


def _msrvtt(folder: Path, split: str) -> dict[str, _Listed]:
    files = [path for name in MSRVTT_FILES if (path := _find_json(folder, name))]
    if not files:
        raise _no_captions(folder, MSRVTT_FILES, or_packed=True)
    listed: dict[str, _Listed] = {}
    for path in files:
        content = _json(path, _text(path))
        try:
            for video in content["videos"]:
                if split in ("all", _split_name(str(video["split"]))):
                    listed[str(video["video_id"])] = _Listed((str(video["video_id"]),), [])
            for sentence in content["sentences"]:
                if (entry := listed.get(sentence["video_id"])) and (caption := sentence["caption"].strip()):
                    entry.captions.append(caption)
        except (KeyError, TypeError, AttributeError) as error:
            form = "videos[video_id, split] and sentences[video_id, caption]"
            raise BadData(f"{path}: not an MSR-VTT annotation, which has {form} ({error!r})") from error
    return {name: listed[name] for name in sorted(listed, key=_by_number)}


# --- COCO ---

COCO_YEARS = (2017, 2014)
"""The two ways COCO was split. They overlap, so captions of one year are never read beside those of the other."""


def _coco(folder: Path, split: str) -> dict[str, _Listed]:
    names = {(year, part): f"captions_{part}{year}.json" for year in COCO_YEARS for part in ("train", "val")}
    found = {key: path for key, name in names.items() if (path := _find_json(folder, name))}
    if not found:
        raise _no_captions(folder, [*names.values()], or_packed=True)
    newest = max(year for year, _ in found)
    files = [path for (year, part), path in found.items() if year == newest and split in ("all", part)]
    if not files:
        there = ", ".join(part for year, part in found if year == newest)
        raise NoSplit(f"{folder}: there are no captions of the {split} split of coco (there are: {there}, all)")
    listed: dict[int, _Listed] = {}
    for path in files:
        content = _json(path, _text(path))
        try:
            for image in content["images"]:
                listed[image["id"]] = _coco_listed(image["id"], image.get("file_name"))
            for annotation in content["annotations"]:
                number = annotation["image_id"]
                if (entry := listed.get(number)) is None:
                    entry = listed[number] = _coco_listed(number, None)
                if caption := annotation["caption"].strip():
                    entry.captions.append(caption)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            form = "images[id, file_name] and annotations[image_id, caption]"
            raise BadData(f"{path}: not a COCO caption annotation, which has {form} ({error!r})") from error
    return {listed[number].stems[0]: listed[number] for number in sorted(listed)}


def _coco_listed(number: int, file_name: str | None) -> _Listed:
    """A picture goes by its file's name, or by its number, as 2017 writes it or plainly."""
    by_number = (f"{number:012d}", str(number))
    stem = _picture_stem(file_name) if file_name else by_number[0]
    return _Listed((stem, *(name for name in by_number if name != stem)), [])


# --- Flickr8k ---

FLICKR8K_LISTS = {
    "train": "Flickr_8k.trainImages.txt", "val": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"
}


def _flickr8k(folder: Path, split: str) -> dict[str, _Listed]:
    if tokens := _find(folder, "Flickr8k.token.txt"):
        pairs = _flickr8k_tokens(tokens)
    elif table := _find(folder, "captions.txt"):
        pairs = _flickr8k_table(table)
    else:
        raise _no_captions(folder, ["Flickr8k.token.txt", "captions.txt"])
    lists = {part: path for part, name in FLICKR8K_LISTS.items() if (path := _find(folder, name))}
    splits = {
        _picture_stem(name): part for part, path in lists.items() for name in _text(path).split("\n") if name.strip()
    }
    # A few pictures are in no official list and so in no split; where there is no list of train, they are train.
    unlisted = "no split" if "train" in lists else "train"
    listed: dict[str, _Listed] = {name: _Listed((name,), []) for name in splits}
    for name, caption in pairs:
        listed.setdefault(name, _Listed((name,), [])).captions.append(caption)
    if split not in ("train", "all", *lists):
        raise NoSplit(f"{folder}: there is no {FLICKR8K_LISTS[split]} to tell the {split} split of flickr8k")
    return {name: listed[name] for name in sorted(listed) if split in ("all", splits.get(name, unlisted))}


def _flickr8k_tokens(path: Path) -> Iterator[tuple[str, str]]:
    for line, content in enumerate(_text(path).split("\n"), start=1):
        name, tab, caption = content.partition("\t")
        file, number_sign, _ = name.rpartition("#")
        if tab and number_sign and file.strip():
            if caption.strip():
                yield _picture_stem(file), caption.strip()
        elif content.strip():
            raise BadData(f"{path}:{line}: not NAME.jpg#NUMBER, a tab and the caption")


def _flickr8k_table(path: Path) -> Iterator[tuple[str, str]]:
    header, *lines = _text(path).split("\n")
    if header.strip() != "image,caption":
        raise BadData(f"{path}:1: the columns are not image,caption (columns: {header.strip()})")
    for line, content in enumerate(lines, start=2):
        # Line by line, so that a quotation mark nobody closed does not swallow the rest of the file.
        name, *caption = next(csv.reader([content]), None) or [""]
        if caption and name.strip():
            if text := ",".join(caption).strip():
                yield _picture_stem(name), text
        elif content.strip():
            raise BadData(f"{path}:{line}: not NAME.jpg, a comma and the caption")


# --- A folder of one's own ---

OWN_FILES = ("captions.json", "captions.jsonl", "captions.csv")
OWN_VAL_SHARE = 0.1
"""The share of the clips that become the val split where the captions name none."""


def _own(folder: Path, split: str) -> dict[str, _Listed]:
    files = [path for name in OWN_FILES if (path := _find(folder, name))]
    if not files:
        raise _no_captions(folder, OWN_FILES)
    if len(files) > 1:
        raise BadData(f"{folder}: {' and '.join(path.name for path in files)} are both there; keep one")
    listed: dict[str, _Listed] = {}
    splits: dict[str, str] = {}
    for where, clip, caption, part in _own_rows(files[0]):
        file = Path(clip)
        name = file.stem if file.suffix.lower() in VIDEO_SUFFIXES else clip
        entry = listed.setdefault(name, _Listed((name,), []))
        if clip not in entry.stems:
            if len(entry.stems) > 1:
                raise BadData(f"{where}: {entry.stems[0]} and {clip} are told apart by their suffix alone; rename one")
            entry.stems = (clip, name)
        if caption:
            entry.captions.append(caption)
        if part and splits.setdefault(name, _split_name(part)) != _split_name(part):
            raise BadData(f"{where}: clip {clip!r} is in two splits, {splits[name]} and {part}")
        if splits.get(name, "train") not in SPLITS:
            raise BadData(f"{where}: unknown split {part!r} (known: {', '.join(SPLITS)})")
    splits |= _hashed_splits([name for name in listed if name not in splits])
    if split not in ("all", *splits.values()):
        given = ", ".join(part for part in SPLITS if part in splits.values())
        raise NoSplit(f"{files[0]}: no clip of the {split} split (there are: {given or 'none'}, all)")
    return {name: listed[name] for name in sorted(listed) if split in ("all", splits[name])}


def _own_rows(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """(where it stands, clip, caption, split or "") of each caption of captions.json, .jsonl or .csv."""
    text = _text(path)
    if path.suffix == ".csv":
        for line, row in _csv_rows(path, ("clip", "caption"), strict=True):
            yield f"{path}:{line}", *_own_row(f"{path}:{line}", row)
    elif path.suffix == ".jsonl":
        for line, content in enumerate(text.split("\n"), start=1):
            if content.strip():
                yield f"{path}:{line}", *_own_row(f"{path}:{line}", _json(path, content, line))
    else:
        content = _json(path, text)
        if isinstance(content, dict):
            rows = [
                {"clip": clip, "caption": caption}
                for clip, captions in content.items()
                for caption in (captions if isinstance(captions, list) else [captions])
            ]
        elif isinstance(content, list):
            rows = content
        else:
            raise BadData(f'{path}: neither {{"clip": ["caption", …]}} nor a list of {{"clip", "caption"}}')
        for number, row in enumerate(rows, start=1):
            yield f"{path}: caption {number}", *_own_row(f"{path}: caption {number}", row)


def _own_row(where: str, row: Any) -> tuple[str, str, str]:
    """(clip, caption, split or "") of one object or line."""
    if not isinstance(row, dict):
        raise BadData(f"{where}: not an object with clip and caption")
    clip, caption, part = row.get("clip"), row.get("caption"), row.get("split") or ""
    if not (isinstance(clip, str) and isinstance(caption, str) and isinstance(part, str) and clip.strip()):
        raise BadData(f"{where}: clip and caption (and split, where given) must be texts, the clip not empty")
    return _normal(clip.strip()), caption.strip(), part.strip()


def _hashed_splits(names: list[str]) -> dict[str, str]:
    """A tenth of the names, chosen by their hash, becomes val: the same on every machine, at least one of several."""
    share = {name: int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64 for name in names}
    num_val = sum(value < OWN_VAL_SHARE for value in share.values())
    num_val = min(max(num_val, 1), len(names) - 1)
    ranked = sorted(names, key=lambda name: share[name])
    return {name: "val" if rank < num_val else "train" for rank, name in enumerate(ranked)}


# --- Names and files ---


def _split_name(text: str) -> str:
    """MSR-VTT's "validate", and what else people call it, is val."""
    text = text.strip().lower()
    return "val" if text in ("valid", "validate", "validation", "dev") else text


def _number(name: str, prefix: str) -> int | None:
    match = re.fullmatch(rf"{prefix}([0-9]{{1,9}})", name)
    return int(match[1]) if match else None


def _by_number(name: str) -> tuple[int, str]:
    """Sorts video2 before video10, and names without a number by ASCII."""
    return (_number(name, "vid") or _number(name, "video") or 0, name)


def _normal(name: str) -> str:
    # A file system may store "é" as one character or as two.
    return unicodedata.normalize("NFC", name)


def _picture_stem(name: str) -> str:
    stem, suffix = os.path.splitext(name.strip())
    return _normal(stem if suffix.lower() in PICTURE_SUFFIXES else name.strip())


def _find(folder: Path, name: str) -> Path | None:
    return next((path for place in CAPTION_FOLDERS if (path := folder / place / name).is_file()), None)


JSON_ENDINGS = ("", ".gz", ".zip")


def _find_json(folder: Path, name: str) -> Path | None:
    """The file, or its compressed form: captions.json, captions.json.gz, captions.json.zip."""
    return next((path for ending in JSON_ENDINGS if (path := _find(folder, f"{name}{ending}"))), None)


def _media(root: Path, suffixes: frozenset[str]) -> dict[str, str]:
    """Files by their path under the root, file name and stem; of several with one name the first in order."""
    start = len(os.path.join(root, ""))
    files = []
    for file in _files(str(root)):
        stem, suffix = os.path.splitext(file.name)
        if suffix.lower() in suffixes:
            inner = _normal(file.path[start:].replace(os.sep, "/"))
            files.append((inner.split("/"), inner, _normal(file.name), _normal(stem), file.path))
    files.sort()
    found = {inner: path for _, inner, _, _, path in files}
    for _, _, name, _, path in files:
        found.setdefault(name, path)
    for _, _, _, stem, path in files:
        found.setdefault(stem, path)
    return found


def _files(folder: str, above: tuple[str, ...] = ()) -> "Iterator[os.DirEntry[str]]":
    """Every file below the folder, known from the folders' own lists: a hundred thousand files cost no look at each."""
    real = os.path.realpath(folder)
    if real in above:
        return  # a link back to where we came from
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir():
                    yield from _files(entry.path, (*above, real))
                elif entry.is_file():
                    yield entry
    except PermissionError:
        return  # a folder kept from us; a clip in it will be listed as missing


def _no_captions(folder: Path, names: Sequence[str], *, or_packed: bool = False) -> BadData:
    places = ", ".join(f"{place}/" for place in CAPTION_FOLDERS if place)
    sought = ", ".join(names) + (" (or the same with .gz or .zip)" if or_packed else "")
    return BadData(f"{folder}: no caption file found in {places} or the folder itself; looked for {sought}")


def _text(path: Path) -> str:
    """The text of the file, or of the file inside a zip or gz: UTF-8, with or without a byte-order mark."""
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as archive:
                member = next((name for name in archive.namelist() if Path(name).name == path.stem), None)
                if member is None:
                    raise BadData(f"{path}: holds no {path.stem} (files: {', '.join(archive.namelist())})")
                data = archive.read(member)
        elif path.suffix == ".gz":
            data = gzip.decompress(path.read_bytes())
        else:
            data = path.read_bytes()
    except (zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError) as error:
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


def _word_lines(path: Path) -> Iterator[tuple[int, str, str]]:
    """(line number, first word, the rest) of each line that has both; blank lines and # comments are passed over."""
    for line, content in enumerate(_text(path).split("\n"), start=1):
        words = content.split(None, 1)
        if len(words) == 2 and not words[0].startswith("#"):
            yield line, words[0], words[1].strip()


def _csv_rows(path: Path, columns: tuple[str, ...], *, strict: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """(line number, row) of each line of a CSV file that must have these columns; only a strict one must fill them."""
    reader = csv.DictReader(io.StringIO(_text(path), newline=""), skipinitialspace=True, strict=strict)
    try:
        if absent := [column for column in columns if column not in (reader.fieldnames or ())]:
            found = ", ".join(reader.fieldnames or ()) or "none"
            raise BadData(f"{path}:1: no column {', '.join(absent)} (columns: {found})")
        for row in reader:
            # A line too long has the key None, a line too short the value None.
            if None in row or (strict and None in row.values()):
                raise BadData(f"{path}:{reader.line_num}: not as many columns as in the first line")
            yield reader.line_num, {column: (value or "").strip() for column, value in row.items()}
    except csv.Error as error:
        # The reader still stands at the last good line.
        raise BadData(f"{path}:{reader.line_num + 1}: not CSV ({error})") from error


def _json(path: Path, text: str, line: int = 1) -> Any:
    """The JSON value of a text that starts at this line of the file."""
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise BadData(f"{path}:{line + error.lineno - 1}: not JSON ({error.msg}, column {error.colno})") from error
    except RecursionError as error:
        raise BadData(f"{path}:{line}: not a caption file (nested too deeply)") from error
