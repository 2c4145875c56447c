"""`manifest.json` of a model folder: size and SHA-256 of each of its parts, so that damage and mix-ups are noticed.

It does not prove where a model comes from: whoever can change a part can change the manifest as well.

`python -m picknet.model.manifest FOLDER` writes it anew, for a folder whose parts were changed by hand.
"""

import contextlib
import hashlib
import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

from picknet.files import open_regular, write_text

MANIFEST = "manifest.json"


class Fingerprint(NamedTuple):
    """What is known of a part."""

    num_bytes: int
    sha256: str
    """In hexadecimal digits."""

    @classmethod
    def of(cls, path: Path) -> "Fingerprint":
        with open_regular(path) as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            return cls(os.fstat(file.fileno()).st_size, digest)


def read_manifest(folder: Path) -> dict[str, Fingerprint] | None:
    """The fingerprint of each listed part; None without a manifest. Raises ValueError for a malformed one."""
    try:
        stored = json.loads((folder / MANIFEST).read_bytes())
        return {part: Fingerprint(int(one["bytes"]), str(one["sha256"])) for part, one in stored["parts"].items()}
    except FileNotFoundError:
        return None
    except (ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError) as error:
        raise ValueError(f"{type(error).__name__}: {error}") from error


def write_manifest(folder: Path, parts: Iterable[str]) -> None:
    """Write the manifest of these parts, as far as they are there, as they are now."""
    _write(folder, {part: Fingerprint.of(folder / part) for part in parts if (folder / part).is_file()})


@contextlib.contextmanager
def renewed(folder: Path, part: str) -> Iterator[None]:
    """A block that replaces a part; the manifest, if there is one, follows.

    Until the block has succeeded, the part is not listed: wherever the process is killed, the folder can be used.
    """
    listed = read_manifest(folder)
    if listed is None:
        yield
        return
    _write(folder, {name: one for name, one in listed.items() if name != part})
    yield
    _write(folder, {**listed, part: Fingerprint.of(folder / part)})


def _write(folder: Path, listed: Mapping[str, Fingerprint]) -> None:
    parts = {part: {"bytes": one.num_bytes, "sha256": one.sha256} for part, one in sorted(listed.items())}
    write_text(folder / MANIFEST, json.dumps({"parts": parts}, indent=2) + "\n")


def _main() -> None:
    from picknet.errors import PicknetError
    from picknet.model.folder import PARTS, TAGS, ModelFolder

    if len(sys.argv) != 2:
        sys.exit("usage: python -m picknet.model.manifest FOLDER")
    folder = Path(sys.argv[1])
    try:
        ModelFolder(folder, is_sealed=False)
        write_manifest(folder, (*PARTS, TAGS))
    except PicknetError as error:
        sys.exit(str(error))
    print(folder / MANIFEST)


if __name__ == "__main__":
    _main()
