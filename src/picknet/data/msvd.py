"""MSVD (the Microsoft Research Video Description Corpus): 1,970 clips, split 1,200 / 100 / 670."""

from pathlib import Path

from picknet.data import BadData
from picknet.data.reading import SPLITS, ListedClip, by_number, csv_rows, find, no_captions, number_after, word_lines

LAST_NUMBER = {"train": 1200, "val": 1300, "test": 1970}
"""The official splits are ranges of vidN: the last number of each."""

# The official numbers are the ASCII order of the clips' names, so where no youtube_mapping.txt gives the numbers,
# the names of vid1201 and vid1301 are enough to separate the splits, even in an incomplete copy of the data set.
FIRST_VAL = "bQJQGoJF7_k_162_169"
FIRST_TEST = "eyhzdC936uk_15_27"


def listed_clips(folder: Path, split: str) -> dict[str, ListedClip]:
    mapping = _mapping(folder)
    wanted = [part for part in SPLITS if split in (part, "all")]
    sents = [path for part in wanted if (path := find(folder, f"sents_{part}_lc_nopunc.txt"))]
    descriptions = find(folder, "AllVideoDescriptions.txt")
    corpus = find(folder, "video_corpus.csv")
    if sents and (len(sents) == len(wanted) or not (descriptions or corpus)):
        pairs = [pair for path in sents for pair in _sents(path)]
    elif descriptions:
        pairs = [(name, caption) for _, name, caption in word_lines(descriptions)]
    elif corpus:
        pairs = _corpus(corpus)
    else:
        sought = [*(f"sents_{part}_lc_nopunc.txt" for part in wanted), "AllVideoDescriptions.txt", "video_corpus.csv"]
        raise no_captions(folder, sought)

    listed = {vid: ListedClip((name, vid), []) for name, vid in mapping.items()}
    for name, caption in pairs:
        key = mapping.get(name, name)
        # The corpus also describes clips that never became part of the official 1,970.
        if not mapping or key in listed:
            listed.setdefault(key, ListedClip((key,), [])).captions.append(caption)
    in_split = {name: entry for name, entry in listed.items() if split in ("all", _split_of(name))}
    return {name: in_split[name] for name in sorted(in_split, key=by_number)}


def _split_of(name: str) -> str:
    if number := number_after(name, "vid"):
        return next(part for part, last in LAST_NUMBER.items() if number <= last or part == "test")
    return "train" if name < FIRST_VAL else "val" if name < FIRST_TEST else "test"


def _mapping(folder: Path) -> dict[str, str]:
    """Clip name → vidN, from youtube_mapping.txt; empty without that file."""
    path = find(folder, "youtube_mapping.txt")
    return {name: _vid(path, line, vid) for line, name, vid in word_lines(path)} if path else {}


def _sents(path: Path) -> list[tuple[str, str]]:
    return [(_vid(path, line, vid), caption) for line, vid, caption in word_lines(path)]


def _corpus(path: Path) -> list[tuple[str, str]]:
    rows = csv_rows(path, ("VideoID", "Start", "End", "Language", "Description"))
    return [
        (f"{row['VideoID']}_{row['Start']}_{row['End']}", row["Description"])
        for _, row in rows
        if row["Language"] == "English" and row["Description"]
    ]


def _vid(path: Path, line: int, text: str) -> str:
    number = number_after(text, "vid")
    if number is None or not 1 <= number <= LAST_NUMBER["test"]:
        raise BadData(f"{path}:{line}: {text!r} is no clip of MSVD (vid1 to vid{LAST_NUMBER['test']})")
    return f"vid{number}"
