"""Copies of model folders for tests that change a part."""

import shutil
from pathlib import Path


def unsealed(folder: Path, place: Path) -> Path:
    """A copy without a manifest, which would tell that a part was changed, and not what is wrong with it."""
    copy = Path(shutil.copytree(folder, place))
    (copy / "manifest.json").unlink()
    return copy
