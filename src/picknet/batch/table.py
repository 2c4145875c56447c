"""The tables: a documented, versioned schema for each kind, written as Parquet or JSON lines."""

import json
import os
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.json
import pyarrow.parquet

from picknet.errors import PicknetError
from picknet.files import written_whole

SCHEMA_VERSION = 1
"""Counts changes of the columns; a run goes on in a folder of its own version only."""

Row = dict[str, Any]
"""A value for some of the columns; the others are null."""


class Kind(StrEnum):
    """What a table holds."""

    captions = "captions"
    """A row for each clip."""
    timeline = "timeline"
    """A row for each segment."""
    frames = "frames"
    """A row for each picked frame."""


class Format(StrEnum):
    parquet = "parquet"
    jsonl = "jsonl"


class BadTable(PicknetError):
    """A file of a table that cannot be read."""


_PICKS = pa.list_(
    pa.struct(
        {"index": pa.int32(), "seconds": pa.float64(), "probability": pa.float64(), "frame_number": pa.int64()}.items()
    )
)
_CANDIDATES = pa.list_(pa.struct([("caption", pa.string()), ("probability", pa.float64())]))
_TEXT = {"caption": pa.string(), "confidence": pa.float64(), "not_sure": pa.string()}
_FRAME = {"index": pa.int32(), "seconds": pa.float64(), "probability": pa.float64(), "frame_number": pa.int64()}
_OWN_COLUMNS: dict[Kind, dict[str, pa.DataType]] = {
    Kind.captions: {
        **_TEXT, "candidates": _CANDIDATES, "picks": _PICKS, "frames_seen": pa.int32(), "seconds": pa.float64(),
        "width": pa.int32(), "height": pa.int32(),
    },
    Kind.timeline: {"start": pa.float64(), "end": pa.float64(), **_TEXT, "picks": _PICKS},
    Kind.frames: {**_FRAME, "width": pa.int32(), "height": pa.int32(), "jpeg": pa.binary(), "file": pa.string()},
}  # fmt: skip


def schema(kind: Kind) -> pa.Schema:
    """The columns of a table. Those that all kinds have stand around those of their own."""
    columns = {
        "video": pa.string(),
        **_OWN_COLUMNS[kind],
        "model": pa.string(),
        "damage": pa.string(),
        "error": pa.string(),
        "took": pa.float64(),
        "clip": pa.string(),
    }
    return pa.schema(columns.items(), {"picknet.schema": str(SCHEMA_VERSION), "picknet.kind": str(kind)})


def to_table(rows: Sequence[Row], kind: Kind) -> pa.Table:
    return pa.Table.from_pylist(rows, schema(kind))


def write_rows(path: Path, rows: Sequence[Row], kind: Kind) -> None:
    """Write a file of the table, completely or not at all. The suffix is the format."""
    with written_whole(path) as temporary:
        if path.suffix == ".parquet":
            pyarrow.parquet.write_table(to_table(rows, kind), temporary, compression="zstd")
            return
        names = [name for name in schema(kind).names if name != "jpeg"]
        with temporary.open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(json.dumps({name: row.get(name) for name in names}) + "\n" for row in rows)


def clip_keys(path: Path) -> set[bytes]:
    """Which clips a file of the table is about: what `Clip.key` gives."""
    try:
        if path.suffix == ".parquet":
            keys: Iterable[str] = pyarrow.parquet.read_table(path, columns=["clip"])["clip"].to_pylist()
        else:
            with path.open(encoding="utf-8") as file:
                keys = [json.loads(line)["clip"] for line in file]
        return set(map(bytes.fromhex, keys))
    except (OSError, ValueError, KeyError, TypeError) as error:  # Arrow's errors are among them
        if isinstance(error, OSError) and error.errno:
            raise BadTable(f"{path}: cannot be read ({os.strerror(error.errno)})") from error
        reason = str(error).splitlines()[0]
        raise BadTable(
            f"{path}: is damaged ({reason}); delete it, and its clips are described again"
        ) from error
