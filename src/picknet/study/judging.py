"""Many choices of a clip's frames, each described by one captioner: what pickers are compared by.

A clip is decoded and sent through the CNN once. After that a choice of its frames costs a few steps of the encoder and
one sentence, taken and written together with those of other choices, so hundreds can be described; a choice that
several pickers make is described once.
"""

import hashlib
import itertools
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner, NothingToCaption
from picknet.data.datasets import Clip
from picknet.files import written_whole
from picknet.model.runtime import EncoderState, Runtime
from picknet.picking.learned import learned_picker
from picknet.picking.picker import Picker
from picknet.picking.plain import (
    AllPicker,
    CoinPicker,
    EveryNthPicker,
    KMeansPicker,
    RandomPicker,
    SceneChangePicker,
    UniformPicker,
)
from picknet.video.file import Video
from picknet.video.frame import Frame

Array = NDArray[Any]
Choice = tuple[int, ...]
"""Some frames of a clip: their places among the sampled ones, ascending."""

THRESHOLDS = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9)
"""PickNet's dial where it compares glances, as in the paper."""
STRIDES = (4, 5, 6, 7.5, 10, 15, 20, 30)
"""Its dial where it keeps a stride."""
KS = range(1, 9)
DISTANCES = (4, 5, 6, 7, 9, 13, 20)
"""The n of every n-th: 7, 6, … 1 picks of 30 frames. Most do not divide 30: a stream ends where it ends."""
PROBABILITIES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25)
CHANGES = (10, 20, 30, 35, 40, 50, 60, 80)
"""Grey values: 17 to 1.2 picks of 30 frames on MSVD."""
NUM_DRAWS = 10
"""Where chance plays, the mean of so many draws."""
SUBSET_SIZES = range(1, 7)
MAX_TOGETHER = 64
"""So many choices are described together. More are hardly faster, and need more room."""


@dataclass(frozen=True)
class Setting:
    """A picker at one setting of its dial."""

    picker: str
    """Its name: picknet, or what `rivals` calls it."""
    setting: str
    pickers: tuple[Picker, ...]
    """More than one where chance plays: one for each draw."""
    own: bool = False
    """The setting a model comes with."""


def dial(captioner: Captioner) -> list[Setting]:
    """PickNet from many picks to few, with the model's own setting among them."""
    model, policy = captioner.config.model, captioner.runtime.policy
    if model.picker == "stride":
        dialled = {f"stride={n:g}": replace(model, stride=n) for n in sorted({*STRIDES, model.stride})}
    else:
        thresholds = sorted({*THRESHOLDS, model.pick_threshold})
        dialled = {f"threshold={p:g}": replace(model, pick_threshold=p) for p in thresholds}
    return [
        Setting("picknet", setting, (learned_picker(policy, other),), own=other == model)
        for setting, other in dialled.items()
    ]


def rivals(feature: Callable[[Frame], Array], *, seed: int) -> list[Setting]:
    """What PickNet is compared with. Those that pick every n-th, by coin or by scene change never look ahead either."""
    chance = np.random.default_rng(seed)  # one for all of them, clip after clip
    draws = range(NUM_DRAWS)
    return [
        *(Setting("uniform", f"k={k}", (UniformPicker(k),)) for k in KS),
        *(Setting("ends", f"k={k}", (UniformPicker(k, ends=True),)) for k in KS),
        *(Setting("random", f"k={k}", tuple(RandomPicker(k, seed=chance) for _ in draws)) for k in KS),
        *(Setting("kmeans", f"k={k}", (KMeansPicker(k, features=feature, seed=chance),)) for k in KS),
        *(Setting("every", f"n={n}", (EveryNthPicker(n),)) for n in DISTANCES),
        *(Setting("coin", f"p={p}", tuple(CoinPicker(p, seed=chance) for _ in draws)) for p in PROBABILITIES),
        *(Setting("scene", f"change={change}", (SceneChangePicker(change),)) for change in CHANGES),
        Setting("all", "", (AllPicker(),)),
    ]


@dataclass(frozen=True)
class JudgedClip:
    """What every picker chose of one clip, and what was said of each choice."""

    name: str
    choices: dict[tuple[str, str], list[Choice]]
    """By (picker, setting), one for each draw."""
    subsets: dict[int, list[Choice]]
    """Random ones, by their size."""
    captions: dict[Choice, str]


# --- Looking and describing ---


class Look:
    """The frames of a clip, and what the CNN makes of each: computed once."""

    def __init__(self, captioner: Captioner, cache: Path | None) -> None:
        self.captioner = captioner
        self.cache = cache
        self.features: Array = np.empty(0)
        """Of the clip looked at last: (frames, cells, feature)."""
        self._cnn = _cnn_fingerprint(captioner) if cache else ""

    def frames(self, clip: Clip) -> list[Frame]:
        with Video(clip.path) as video:
            frames = list(video.sample_evenly(count=self.captioner.config.video.num_frames))
        if not frames:
            raise NothingToCaption(f"{clip.path}: there is no frame to caption")
        path = self._cache_path(clip)
        cached = _read(path) if path else None
        if cached is not None and len(cached) == len(frames):
            self.features = cached
            return frames
        # One by one, as in use, so that the numbers are the same to the last bit.
        self.features = np.concatenate([self.captioner.features(frame) for frame in frames])
        if path:
            with written_whole(path) as temporary, temporary.open("wb") as file:
                np.savez(file, features=self.features)
        return frames

    def feature(self, frame: Frame) -> Array:
        """What k-means clusters: the mean over the frame's cells, (feature,)"""
        return np.asarray(self.features[frame.index].mean(axis=0))

    def _cache_path(self, clip: Clip) -> Path | None:
        if self.cache is None:
            return None
        status = clip.path.stat()
        facts = [self._cnn, self.captioner.config.video.num_frames, clip.path.name, status.st_size, status.st_mtime_ns]
        return self.cache / f"{hashlib.sha256(json.dumps(facts).encode()).hexdigest()[:32]}.npz"


def _cnn_fingerprint(captioner: Captioner) -> str:
    """A CNN is known by what it makes of one picture: noise, in which every weight has its say."""
    size = captioner.config.model.image_size
    noise = np.random.default_rng(0).integers(0, 256, (1, size, size, 3), dtype=np.uint8)
    features = captioner.runtime.features(noise)
    return hashlib.sha256(features.tobytes() + str(features.shape).encode()).hexdigest()


def _read(path: Path) -> Array | None:
    """A clip's features, or None when the file is not there or not whole."""
    try:
        with np.load(path, allow_pickle=False) as arrays:
            return np.asarray(arrays["features"])
    except (OSError, ValueError, KeyError, EOFError, BadZipFile):
        return None


def judge(
    look: Look,
    clip: Clip,
    settings: Sequence[Setting],
    *,
    beam: int,
    num_subsets: int,
    chance: np.random.Generator,
) -> JudgedClip:
    frames = look.frames(clip)
    choices = {
        (setting.picker, setting.setting): [
            tuple(pick.index for _, pick in picker.pick(frames)) for picker in setting.pickers
        ]
        for setting in settings
    }
    subsets = {
        size: [
            tuple(sorted(chance.choice(len(frames), size=min(size, len(frames)), replace=False).tolist()))
            for _ in range(num_subsets)
        ]
        for size in SUBSET_SIZES
    }
    wanted = {choice for several in (*choices.values(), *subsets.values()) for choice in several}
    return JudgedClip(clip.name, choices, subsets, described(look.captioner, look.features, wanted, beam=beam))


def described(
    captioner: Captioner, features: Array | Mapping[int, Array], choices: set[Choice], *, beam: int
) -> dict[Choice, str]:
    """features: (frames, cells, feature), or those of the frames that are chosen -> the caption of each choice"""
    captions: dict[Choice, str] = {}
    for some, memory in _memories(captioner.runtime, features, choices):
        sentences = captioner.describe_all(memory, beam=beam)
        captions.update(zip(some, (sentence.text for sentence in sentences), strict=True))
    return captions


def _memories(
    runtime: Runtime, features: Array | Mapping[int, Array], choices: set[Choice]
) -> Iterator[tuple[list[Choice], EncoderState]]:
    """Choices of equally many frames, and what is remembered of each."""
    by_last: dict[int, list[Choice]] = {}
    for beginning in sorted({choice[:length] for choice in choices for length in range(1, len(choice) + 1)}):
        by_last.setdefault(beginning[-1], []).append(beginning)
    start = runtime.start()
    h: dict[Choice, Array] = {(): start.h[0]}  # after each beginning
    c: dict[Choice, Array] = {(): start.c[0]}
    keys, values = {}, {}  # of each frame
    # Frame after frame, each for all that go on with it: what the encoder makes of the frame itself is computed once.
    for place, beginnings in sorted(by_last.items()):
        before = [beginning[:-1] for beginning in beginnings]
        states = runtime.start(len(before))._replace(h=_rows(h, before), c=_rows(c, before))
        after = runtime.encode(features[place][None], states)
        h.update(zip(beginnings, after.h, strict=True))
        c.update(zip(beginnings, after.c, strict=True))
        keys[place], values[place] = after.keys[0].copy(), after.values[0].copy()
    for _, alike in itertools.groupby(sorted(choices, key=lambda choice: (len(choice), choice)), key=len):
        every = list(alike)
        for first in range(0, len(every), MAX_TOGETHER):
            some = every[first : first + MAX_TOGETHER]
            cells = ([np.concatenate([of[place] for place in choice]) for choice in some] for of in (keys, values))
            yield some, EncoderState(_rows(h, some), _rows(c, some), *map(np.stack, cells))


def _rows(parts: dict[Choice, Array], choices: Sequence[Choice]) -> Array:
    return np.stack([parts[choice] for choice in choices])
