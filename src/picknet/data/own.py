"""Your own folder: videos and one captions.json, captions.jsonl or captions.csv."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from picknet.data import BadData, NoSplit
from picknet.data.reading import (
    SPLITS,
    ListedClip,
    csv_rows,
    find,
    no_captions,
    normal,
    parse_json,
    read_text,
    split_name,
)
from picknet.video.file import VIDEO_SUFFIXES

FILES = ("captions.json", "captions.jsonl", "captions.csv")
VAL_SHARE = 0.1
"""The share of the clips that become the val split when the captions do not name splits."""


def listed_clips(folder: Path, split: str) -> dict[str, ListedClip]:
    files = [path for name in FILES if (path := find(folder, name))]
    if not files:
        raise no_captions(folder, FILES)
    if len(files) > 1:
        raise BadData(f"{folder}: {' and '.join(path.name for path in files)} both exist; keep one")
    listed: dict[str, ListedClip] = {}
    splits: dict[str, str] = {}
    for where, clip, caption, part in _rows(files[0]):
        file = Path(clip)
        name = file.stem if file.suffix.lower() in VIDEO_SUFFIXES else clip
        entry = listed.setdefault(name, ListedClip((name,), []))
        if clip not in entry.stems:
            if len(entry.stems) > 1:
                raise BadData(f"{where}: {entry.stems[0]} and {clip} differ only in their suffix; rename one")
            entry.stems = (clip, name)
        if caption:
            entry.captions.append(caption)
        if part and splits.setdefault(name, split_name(part)) != split_name(part):
            raise BadData(f"{where}: clip {clip!r} is in two splits, {splits[name]} and {part}")
        if splits.get(name, "train") not in SPLITS:
            raise BadData(f"{where}: unknown split {part!r} (known: {', '.join(SPLITS)})")
    splits |= _hashed_splits([name for name in listed if name not in splits])
    if not listed:
        raise BadData(f"{files[0]}: lists no clip")
    if split not in ("all", *splits.values()):
        given = ", ".join(part for part in SPLITS if part in splits.values())
        raise NoSplit(f"{files[0]}: no clip of the {split} split (there are: {given}, all)")
    return {name: listed[name] for name in sorted(listed) if split in ("all", splits[name])}


def _rows(path: Path) -> Iterator[tuple[str, str, str, str]]:
    """(location, clip, caption, split or "") of each caption of captions.json, .jsonl or .csv."""
    text, named_once = read_text(path), partial(_named_once, path)
    if path.suffix == ".csv":
        for line, row in csv_rows(path, ("clip", "caption"), strict=True):
            yield f"{path}:{line}", *_row(f"{path}:{line}", row)
    elif path.suffix == ".jsonl":
        for line, content in enumerate(text.split("\n"), start=1):
            if content.strip():
                yield f"{path}:{line}", *_row(f"{path}:{line}", parse_json(path, content, line, to_object=named_once))
    else:
        content = parse_json(path, text, to_object=named_once)
        if isinstance(content, dict):
            # A clip with an empty list gets an empty caption, so that it is counted as missing.
            rows = [
                {"clip": clip, "caption": caption}
                for clip, captions in content.items()
                for caption in ((captions or [""]) if isinstance(captions, list) else [captions])
            ]
        elif isinstance(content, list):
            rows = content
        else:
            raise BadData(f'{path}: neither {{"clip": ["caption", …]}} nor a list of {{"clip", "caption"}}')
        for number, row in enumerate(rows, start=1):
            yield f"{path}: caption {number}", *_row(f"{path}: caption {number}", row)


def _named_once(path: Path, pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """A JSON object. Where it has a name twice, Python would keep the last of both and lose the other's captions."""
    content = dict(pairs)
    if len(content) < len(pairs):
        ((name, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise BadData(f"{path}: one object has {name!r} twice; possible: once, a clip with a list of its captions")
    return content


def _row(where: str, row: Any) -> tuple[str, str, str]:
    """(clip, caption, split or "") of one object or line."""
    if not isinstance(row, dict):
        raise BadData(f"{where}: not an object with clip and caption")
    clip, caption, part = row.get("clip"), row.get("caption"), row.get("split") or ""
    if not (isinstance(clip, str) and isinstance(caption, str) and isinstance(part, str) and clip.strip()):
        raise BadData(f"{where}: clip and caption (and split, where given) must be texts, the clip not empty")
    return normal(clip.strip()), caption.strip(), part.strip()


def _hashed_splits(names: list[str]) -> dict[str, str]:
    """A tenth of the names, chosen by hash, becomes val: the same on every machine, at least one of two."""
    share = {name: int.from_bytes(hashlib.sha256(name.encode()).digest()[:8], "big") / 2**64 for name in names}
    num_val = sum(value < VAL_SHARE for value in share.values())
    num_val = min(max(num_val, 1), len(names) - 1)
    ranked = sorted(names, key=lambda name: share[name])
    return {name: "val" if rank < num_val else "train" for rank, name in enumerate(ranked)}
