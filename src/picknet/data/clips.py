"""Which clips of a split are meant: those a text file names, or those a run was validated on."""

import hashlib
import itertools
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile
import numpy as np
from numpy.typing import NDArray
from picknet.captioner import Captioner, NothingToCaption
from picknet.data.datasets import BadData, Clip, Split
from picknet.files import written_whole
from picknet.picking.learned import learned_picker
from picknet.picking.picker import Picker
from picknet.picking.plain import AllPicker, CoinPicker, EveryNthPicker, KMeansPicker, RandomPicker, SceneChangePicker, UniformPicker
from picknet.model.runtime import EncoderState, Runtime
from picknet.video.file import Video
from picknet.video.frame import Frame


def only(split: Split, path: str | os.PathLike[str]) -> Split:
    """The clips of a split that a text file names, one a line, or that a run folder was validated on."""
    try:
        folder = Path(path).is_dir()
        lines = validated_on(Path(path)) if folder else Path(path).read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise BadData(f"{path}: cannot be read ({error.strerror or error})") from error
    except UnicodeDecodeError as error:
        raise BadData(f"{path}: is not UTF-8 text (byte {error.start})") from error
    wanted = {line.strip(): number for number, line in enumerate(lines, start=1) if line.strip()}
    known = {clip.name for clip in split.clips} | {clip.name for clip in split.missing}
    for name, number in wanted.items():
        if name not in known:
            raise BadData(f"{path}:{number}: {name!r} is no clip of the {split.name} split of {split.dataset}")
    clips = tuple(clip for clip in split.clips if clip.name in wanted)
    if not clips:
        raise BadData(f"{path}: names no clip that can be used; a clip's name a line is expected")
    return Split(split.dataset, split.name, clips, tuple(one for one in split.missing if one.name in wanted))


def validated_on(run: Path) -> list[str]:
    """The names of the clips that a run was validated on, and so did not learn from."""
    try:
        return list(json.loads((run / "clips.json").read_text(encoding="utf-8"))["val"]["used"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise BadData(f"{run}: its clips.json does not tell which clips it was validated on") from error
