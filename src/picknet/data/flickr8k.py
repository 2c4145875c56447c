"""Flickr8k: its token file and split lists, or the captions.txt of later copies. A picture is a clip of one frame."""

import csv
from collections.abc import Iterator
from pathlib import Path

from picknet.data import BadData, NoSplit
from picknet.data.reading import ListedClip, find, no_captions, picture_stem, read_text

LISTS = {
    "train": "Flickr_8k.trainImages.txt", "val": "Flickr_8k.devImages.txt", "test": "Flickr_8k.testImages.txt"
}


def listed_clips(folder: Path, split: str) -> dict[str, ListedClip]:
    if tokens := find(folder, "Flickr8k.token.txt"):
        pairs = _tokens(tokens)
    elif table := find(folder, "captions.txt"):
        pairs = _table(table)
    else:
        raise no_captions(folder, ["Flickr8k.token.txt", "captions.txt"])
    lists = {part: path for part, name in LISTS.items() if (path := find(folder, name))}
    splits = {
        picture_stem(name): part for part, path in lists.items() for name in read_text(path).split("\n") if name.strip()
    }
    # A few pictures are in no official list, and so in no split; without a train list, they are the train split.
    unlisted = "no split" if "train" in lists else "train"
    listed: dict[str, ListedClip] = {name: ListedClip((name,), []) for name in splits}
    for name, caption in pairs:
        listed.setdefault(name, ListedClip((name,), [])).captions.append(caption)
    if split not in ("train", "all", *lists):
        raise NoSplit(f"{folder}: there is no {LISTS[split]} for the {split} split of flickr8k")
    return {name: listed[name] for name in sorted(listed) if split in ("all", splits.get(name, unlisted))}


def _tokens(path: Path) -> Iterator[tuple[str, str]]:
    for line, content in enumerate(read_text(path).split("\n"), start=1):
        name, tab, caption = content.partition("\t")
        file, number_sign, _ = name.rpartition("#")
        if tab and number_sign and file.strip():
            if caption.strip():
                yield picture_stem(file), caption.strip()
        elif content.strip():
            raise BadData(f"{path}:{line}: not NAME.jpg#NUMBER, a tab and the caption")


def _table(path: Path) -> Iterator[tuple[str, str]]:
    header, *lines = read_text(path).split("\n")
    if header.strip() != "image,caption":
        raise BadData(f"{path}:1: the columns are not image,caption (columns: {header.strip()})")
    for line, content in enumerate(lines, start=2):
        # Line by line, so that an unclosed quotation mark does not swallow the rest of the file.
        name, *caption = next(csv.reader([content]), None) or [""]
        if caption and name.strip():
            if text := ",".join(caption).strip():
                yield picture_stem(name), text
        elif content.strip():
            raise BadData(f"{path}:{line}: not NAME.jpg, a comma and the caption")
