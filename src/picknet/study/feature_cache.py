"""What the CNN makes of clips, kept in a folder for the next time."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner
from picknet.data.split import file_facts
from picknet.files import written_whole

Array = NDArray[Any]


class FeatureCache:
    """Arrays made of a captioner's features of files. Another CNN, or a file that has changed, has arrays of its own.

    folder: where they are kept; None computes them each time.
    """

    def __init__(self, captioner: Captioner, folder: Path | None) -> None:
        self._folder = folder
        self._cnn = _fingerprint(captioner) if folder else ""

    def get(
        self, path: Path, what: int | str, compute: Callable[[], Array], *, fits: Callable[[Array], bool] | None = None
    ) -> Array:
        """An array of the file at `path`, computed only if it has not been kept.

        what: which array of this file, such as the number of frames that it is made of.
        fits: whether one that was kept can be used.
        """
        if self._folder is None:
            return compute()
        name = hashlib.sha256(json.dumps([self._cnn, what, *file_facts(path)]).encode()).hexdigest()[:32]
        kept = _read(self._folder / f"{name}.npz")
        if kept is not None and (fits is None or fits(kept)):
            return kept
        computed = compute()
        with written_whole(self._folder / f"{name}.npz") as temporary, temporary.open("wb") as file:
            np.savez(file, features=computed)
        return computed


def _fingerprint(captioner: Captioner) -> str:
    """A hash of the CNN's features of a noise image, which depend on every weight."""
    size = captioner.config.model.image_size
    noise = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), dtype=np.uint8)
    features = captioner.runtime.features(noise)
    return hashlib.sha256(features.tobytes() + str(features.shape).encode()).hexdigest()


def _read(path: Path) -> Array | None:
    """None if the file is missing or damaged."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return np.asarray(arrays["features"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None
