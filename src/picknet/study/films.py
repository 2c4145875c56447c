"""Films with known events: short clips between long quiet stretches, and beside each film a JSON file with their times.

`benchmarks/films.py` makes such films. A picker finds an event if it picks one of its frames.
"""

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from picknet.data import BadData
from picknet.files import write_text


@dataclass(frozen=True)
class Part:
    """An event or a quiet stretch, in seconds: the first frame after it is shown at `end`."""

    start: float
    end: float
    kinds: tuple[str, ...]
    """What moves or changes in a quiet stretch while nothing happens; of an event, what the stretch before it shows."""
    clip: str = ""
    """The name of an event's clip."""


@dataclass(frozen=True)
class Film:
    path: Path
    dataset: str
    split: str
    seconds: float
    cut: str
    """Whose still the quiet stretches show: `camera` (that of another clip), `after` (the event before) or `before`."""
    codec: str
    events: tuple[Part, ...]
    quiet: tuple[Part, ...]

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(kind for part in (*self.quiet, *self.events) for kind in part.kinds))

    def write(self) -> None:
        """The JSON file beside the film."""
        content = dataclasses.asdict(self) | {"path": self.path.name, "kinds": self.kinds}
        write_text(self.path.with_suffix(".json"), json.dumps(content, indent=2) + "\n")


def within(parts: Sequence[Part], seconds: Sequence[float]) -> list[list[int]]:
    """For each part the indices of those of the seconds that lie in it."""
    return [[i for i, at in enumerate(seconds) if part.start <= at < part.end] for part in parts]


def read_films(folder: Path) -> list[Film]:
    """The films of a folder, by name."""
    films = [_read(path) for path in sorted(folder.glob("*.json")) if path.with_suffix(".mp4").exists()]
    if not films:
        raise BadData(f"{folder}: no film with its JSON file (benchmarks/films.py makes some)")
    return films


def _read(path: Path) -> Film:
    try:
        content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        events, quiet = (
            tuple(Part(**part | {"kinds": tuple(part["kinds"])}) for part in content[name])
            for name in ("events", "quiet")
        )
        facts = {name: content[name] for name in ("dataset", "split", "seconds", "cut", "codec")}
        return Film(path=path.with_suffix(".mp4"), events=events, quiet=quiet, **facts)
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(f"{path}: not the description of a film, which has events and quiet ({error!r})") from error
