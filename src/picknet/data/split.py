"""A split of a data set: its clips with their captions, and the clips that are missing.

A data folder of videos holds `videos/` (any container, matched by stem) and `captions/` (any known caption file); both
may also lie directly in the folder. A data folder of pictures is what the data set's archives unpack to: pictures are
found at any depth and matched by stem, too. A picture is a clip of one frame.
"""

import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast, get_args

from picknet.data import BadData, NoSplit, coco, flickr8k, msrvtt, msvd, own
from picknet.data.reading import SPLITS, find, media_files, number_after, read_bytes
from picknet.text import without_control
from picknet.video.file import VIDEO_SUFFIXES
from picknet.video.pictures import PICTURE_SUFFIXES

Dataset = Literal["msvd", "msrvtt", "coco", "flickr8k", "folder"]
PICTURE_SETS = ("coco", "flickr8k")


@dataclass(frozen=True)
class DataFolder:
    dataset: Dataset
    folder: Path


@dataclass(frozen=True)
class Clip:
    name: str
    """Its name in the data set: vid1201, video12, or the stem of the file."""
    path: Path
    captions: tuple[str, ...]
    """As people wrote them, at least one, without control characters."""
    style: str | None = None
    """The data set whose caption style they have; None for the style that is trained for."""
    category: str | None = None
    """What kind of video it is, by MSR-VTT's annotations; None in other data sets."""


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
    """In the data set's official order, at least one."""
    missing: tuple[Missing, ...]
    """The clips of the split that cannot be used, each with its reason."""


def data_folders(texts: Sequence[str], dataset: Dataset | None) -> tuple[DataFolder, ...]:
    """The data folders named by arguments such as "coco=DIR"; a bare "DIR" belongs to `dataset`."""
    known = get_args(Dataset)
    folders: list[DataFolder] = []
    for text in texts:
        name, equals, place = text.partition("=")
        if not equals or name not in known:
            if equals and not Path(text).exists() and re.fullmatch(r"[\w-]*", name):
                raise BadData(f"{text}: unknown data set {name!r} (known: {', '.join(known)})")
            if dataset is None:
                raise BadData(f"{text}: which data set? Name it, as in {known[0]}=DIR (known: {', '.join(known)})")
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

    Raises `NoSplit` if the data folder does not have the split at all.
    """
    readers = {"msvd": msvd, "msrvtt": msrvtt, "coco": coco, "flickr8k": flickr8k, "folder": own}
    if dataset not in readers:
        raise BadData(f"unknown data set {dataset!r} (known: {', '.join(get_args(Dataset))})")
    if split not in (*SPLITS, "all"):
        raise BadData(f"unknown split {split!r} (known: {', '.join(SPLITS)}, all)")
    folder = Path(folder)
    if not folder.is_dir():
        raise BadData(f"{folder}: no such folder")

    listed = readers[dataset].listed_clips(folder, split)
    if dataset in PICTURE_SETS:
        kind, files = "picture", media_files(folder, PICTURE_SUFFIXES)
    else:
        videos = folder / "videos"
        kind, files = "video", media_files(videos if videos.is_dir() else folder, VIDEO_SUFFIXES)
    clips: list[Clip] = []
    missing: list[Missing] = []
    for name, entry in listed.items():
        texts = [without_control(caption).strip() for caption in entry.captions]
        path = next((files[stem] for stem in entry.stems if stem in files), None)
        if path is None:
            missing.append(Missing(name, f"no {kind} named {' or '.join(entry.stems)}"))
        elif not (captions := tuple(text for text in texts if any(map(str.isalnum, text)))):
            missing.append(Missing(name, "no caption with a word" if entry.captions else "no caption"))
        else:
            clips.append(Clip(name, Path(path), captions, category=entry.category))
    if not clips:
        found = f"{len(missing):,} listed; {missing[0].name}: {missing[0].reason}" if missing else "none is listed"
        if missing and number_after(missing[0].name, "vid") and not find(folder, "youtube_mapping.txt"):
            found += "; there is no youtube_mapping.txt with its file name"
        error = BadData if missing else NoSplit
        raise error(f"{folder}: no clip of the {split} split of {dataset} can be used ({found})")
    return Split(dataset, split, tuple(clips), tuple(missing))


def file_facts(path: Path) -> list[str | int]:
    """What identifies a file in a cache: its path, size, time of change and mode; zeros if it is gone."""
    try:
        status = path.stat()
    except OSError:
        return [str(path.resolve()), 0, 0, 0]
    return [str(path.resolve()), status.st_size, status.st_mtime_ns, status.st_mode]  # the mode may forbid reading


def only(split: Split, path: str | os.PathLike[str]) -> Split:
    """The clips of a split named in a text file, one per line, or in a run folder: those it was validated on."""
    try:
        if folder := Path(path).is_dir():
            lines = validated_on(Path(path))
        else:
            with open(path, "rb") as file:
                lines = read_bytes(file, path).decode().removeprefix("\ufeff").splitlines()
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: is not UTF-8 text (byte {error.start})") from error
    wanted = {line.strip(): number for number, line in enumerate(lines, start=1) if line.strip()}
    known = {clip.name for clip in split.clips} | {clip.name for clip in split.missing}
    for name, number in wanted.items():
        if name not in known:
            where = path if folder else f"{path}:{number}"
            raise BadData(f"{where}: {name!r} is not a clip of the {split.name} split of {split.dataset}")
    clips = tuple(clip for clip in split.clips if clip.name in wanted)
    if not clips:
        raise BadData(f"{path}: names no clip that can be used; expected one clip name per line")
    return Split(split.dataset, split.name, clips, tuple(clip for clip in split.missing if clip.name in wanted))


def by_name(splits: Iterable[Split]) -> dict[str, Clip]:
    """The clips of splits that are given to one model each, so that each clip counts once."""
    clips: dict[str, Clip] = {}
    for split in splits:
        for clip in split.clips:
            if clip.name in clips:
                raise BadData(f"{clip.name}: is given to two models; a clip belongs to one")
            clips[clip.name] = clip
    return clips


def validated_on(run: Path) -> list[str]:
    """The names of the clips that a run was validated on, and so not trained on."""
    try:
        return list(json.loads((run / "clips.json").read_text(encoding="utf-8"))["val"]["used"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise BadData(f"{run}: its clips.json does not name the clips it was validated on") from error
