"""Which clips are trained on and which are validated on: the official splits, or folds of the training clips."""

import dataclasses
import hashlib
import json
from collections.abc import Callable, Sequence
from typing import NamedTuple

from picknet.config import BadConfig
from picknet.data import BadData, NoSplit
from picknet.data.split import DataFolder, Split, load_split


class Fold(NamedTuple):
    """One of `of` equal parts of the training clips. It is validated on, and the others are trained on."""

    number: int
    """From 1."""
    of: int

    def __str__(self) -> str:
        return f"{self.number}/{self.of}"

    @staticmethod
    def parse(text: str) -> "Fold":
        """Read "1/5", the first of five."""
        number, slash, of = text.partition("/")
        if not (slash and number.isdecimal() and of.isdecimal() and 1 <= int(number) <= int(of) >= 2):
            raise BadConfig(f"--fold {text}: expected K/N, such as 1/5 for the first of five")
        return Fold(int(number), int(of))


def official_splits(
    data: Sequence[DataFolder], *, styles: bool = False, on_note: Callable[[str], None] = lambda text: None
) -> tuple[Split, Split]:
    """The training and validation clips of all data folders; with styles, only the first is validated on.

    `on_note` is called for data folders without validation clips. It is an error if none has any.
    """
    train = [load_split(part.folder, dataset=part.dataset, split="train") for part in data]
    val, errors = [], []
    for part in data[:1] if styles else data:
        try:
            val.append(load_split(part.folder, dataset=part.dataset, split="val"))
        except NoSplit as error:
            errors.append(error)
    if not val:
        raise errors[0]
    for absent in errors:
        on_note(f"no validation clips: {absent}")
    return _joined(train, styles=styles), _joined(val)


def fold_splits(data: Sequence[DataFolder], fold: Fold, *, styles: bool = False) -> tuple[Split, Split]:
    """The training clips without a fold, and the fold; with styles, only the first data folder is divided into folds.

    A fold is a contiguous range of clips in the official order, where clips of one source video are neighbours.
    """
    trains = [load_split(part.folder, dataset=part.dataset, split="train") for part in data]
    divided, *undivided = trains if styles else [_joined(trains)]
    first, last = (len(divided.clips) * number // fold.of for number in (fold.number - 1, fold.number))
    others = divided.clips[:first] + divided.clips[last:]
    if not others or first == last:
        raise BadData(f"fold {fold} of {len(divided.clips)} clips leaves no clips to train on or to validate on")
    train = _joined([dataclasses.replace(divided, clips=others), *undivided], styles=styles)
    return train, Split(divided.dataset, "val", divided.clips[first:last], ())


def all_clips(splits: Sequence[Split]) -> Split:
    """The clips of all splits, each file once, named by its path and sorted: the same for every fold of a data set."""
    clips = {clip.path: dataclasses.replace(clip, name=str(clip.path)) for split in splits for clip in split.clips}
    names = " and ".join(split.name for split in splits)
    return Split(splits[0].dataset, names, tuple(clips[path] for path in sorted(clips)), ())


def digest(splits: Sequence[Split]) -> str:
    """What the clips of the splits are called and what people said of them, wherever their files are."""
    rows = [
        [split.name, clip.name, clip.captions, clip.style, clip.category] for split in splits for clip in split.clips
    ]
    return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _joined(splits: Sequence[Split], *, styles: bool = False) -> Split:
    """Several data sets as one; clip names then begin with the data set's name."""
    if len(splits) == 1:
        return splits[0]
    clips, missing = [], []
    names = [split.dataset for split in splits]
    for number, split in enumerate(splits, start=1):
        # Two folders of the same kind may contain clips of the same name, and scores are kept by name.
        prefix = split.dataset if names.count(split.dataset) == 1 else f"{split.dataset}{number}"
        style = split.dataset if styles and split.dataset != splits[0].dataset else None
        clips += [dataclasses.replace(clip, name=f"{prefix}/{clip.name}", style=style) for clip in split.clips]
        missing += [dataclasses.replace(clip, name=f"{prefix}/{clip.name}") for clip in split.missing]
    return Split(splits[0].dataset, splits[0].name, tuple(clips), tuple(missing))
