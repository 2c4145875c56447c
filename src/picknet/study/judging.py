"""Captions of many choices of a clip's frames, from which pickers are compared.

A clip is decoded and sent through the CNN once. After that a choice of frames costs a few encoder steps and one
sentence, computed in batches, so hundreds of choices can be described; a choice that several pickers make is described
once.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner, NothingToCaption
from picknet.data.split import Clip
from picknet.model.runtime import EncoderState, Runtime
from picknet.picking.hecate import HecatePicker
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
from picknet.study import detectors
from picknet.study.feature_cache import FeatureCache
from picknet.video.file import Video
from picknet.video.frame import Frame

Array = NDArray[Any]
Choice = tuple[int, ...]
"""Some frames of a clip: their positions among the sampled frames, ascending."""

RATES = (0.25, 0.35, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8, 4.0)
"""PickNet's settings, from few picks to many; the model's own is 1."""
KS = range(1, 9)
DISTANCES = (4, 5, 6, 7, 9, 13, 20)
"""n of every n-th: 7, 6, … 1 picks of 30 frames. Most do not divide 30, since a stream may end anywhere."""
PROBABILITIES = (0.02, 0.05, 0.1, 0.15, 0.2, 0.25)
CHANGES = (10, 20, 30, 35, 40, 50, 60, 80)
"""Grey values: 17 to 1.2 picks of 30 frames on MSVD."""
NUM_DRAWS = 10
"""Draws of a random picker, which are averaged, by default."""
SUBSET_SIZES = range(1, 7)
MAX_TOGETHER = 64
"""Choices per batch. Larger batches are hardly faster and need more memory."""


@dataclass(frozen=True)
class Setting:
    """A picker at one setting."""

    picker: str
    """Its name: picknet, or a name from `rivals`."""
    setting: str
    pickers: tuple[Picker, ...]
    """One; for a random picker, one for each draw."""
    own: bool = False
    """Whether it is the model's own setting."""


def dial(captioner: Captioner, *, spread: bool = True) -> list[Setting]:
    """PickNet at settings from few picks to many, the model's own among them. spread: for clips, not for films."""
    pickers = {rate: captioner.picker_at(rate, spread=spread) for rate in RATES}
    return [Setting("picknet", f"rate={rate:g}", (picker,), own=rate == 1) for rate, picker in pickers.items()]


def counted(captioner: Captioner) -> list[Setting]:
    """What `--k` picks."""
    return [Setting("counted", f"k={k}", (captioner.counted_picker(k),)) for k in KS]


def budgets(captioner: Captioner, sizes: Sequence[int]) -> list[Setting]:
    """What `picknet pick --budget` keeps."""
    return [Setting("budget", f"N={size}", (captioner.budget_picker(size),)) for size in sizes]


def rivals(feature: Callable[[Frame], Array], *, seed: int, num_draws: int = NUM_DRAWS) -> list[Setting]:
    """The pickers PickNet is compared with. Like PickNet, every n-th, coin and scene change do not look ahead."""
    chance = np.random.default_rng(seed)  # one generator for all of them, over all clips
    draws = range(num_draws)
    return [
        *(Setting("uniform", f"k={k}", (UniformPicker(k),)) for k in KS),
        *(Setting("ends", f"k={k}", (UniformPicker(k, ends=True),)) for k in KS),
        *(Setting("random", f"k={k}", tuple(RandomPicker(k, seed=chance) for _ in draws)) for k in KS),
        *(Setting("kmeans", f"k={k}", (KMeansPicker(k, features=feature, seed=chance),)) for k in KS),
        *(Setting("hecate", f"k={k}", (HecatePicker(k, seed=chance),)) for k in KS),
        *(Setting("every", f"n={n}", (EveryNthPicker(n),)) for n in DISTANCES),
        *(Setting("coin", f"p={p}", tuple(CoinPicker(p, seed=chance) for _ in draws)) for p in PROBABILITIES),
        *(Setting("scene", f"change={change}", (SceneChangePicker(change),)) for change in CHANGES),
        Setting("all", "", (AllPicker(),)),
    ]


@dataclass(frozen=True)
class JudgedClip:
    """The choices of every picker for one clip, and the caption of each choice."""

    name: str
    choices: dict[tuple[str, str], list[Choice]]
    """By (picker, setting), one for each draw."""
    subsets: dict[int, list[Choice]]
    """Random ones, by their size."""
    captions: dict[Choice, str]


# --- Features and captions ---


class ClipFeatures:
    """The CNN features of a clip's sampled frames: computed once, and kept in a cache folder if there is one."""

    def __init__(self, captioner: Captioner, cache: Path | None) -> None:
        self.captioner = captioner
        self.features: Array = np.empty(0)
        """Of the clip that was read last: (frames, cells, feature)."""
        self._cache = FeatureCache(captioner, cache)

    def read(self, clip: Clip) -> list[Frame]:
        """The sampled frames of a clip; afterwards `features` are those of this clip."""
        count = self.captioner.config.video.num_frames
        with Video(clip.path, glance=self.captioner.config.model.glance) as video:
            frames = list(video.sample_evenly(count=count))
        if not frames:
            raise NothingToCaption(f"{clip.path}: there is no frame to caption")
        self.features = self._cache.get(
            clip.path,
            count,
            # Frame by frame, as in captioning: results of a batch may differ in the last bit.
            lambda: np.concatenate([self.captioner.features(frame) for frame in frames]),
            fits=lambda kept: len(kept) == len(frames),
        )
        return frames

    def of_frame(self, frame: Frame) -> Array:
        """The mean over the frame's cells, (feature,): the points that k-means clusters."""
        return np.asarray(self.features[frame.index].mean(axis=0))


def judge(
    features: ClipFeatures,
    clip: Clip,
    settings: Sequence[Setting],
    *,
    beam: int,
    num_subsets: int,
    chance: np.random.Generator,
    with_detectors: bool = False,
) -> JudgedClip:
    """Describe what every picker chooses of a clip, and `num_subsets` random subsets of each size.

    with_detectors: PySceneDetect's detectors are pickers, too.
    """
    frames = features.read(clip)
    choices = {
        (setting.picker, setting.setting): [
            tuple(pick.index for _, pick in picker.pick(frames)) for picker in setting.pickers
        ]
        for setting in settings
    }
    if with_detectors:
        choices |= {setting: [choice] for setting, choice in detectors.detected(clip.path, frames).items()}
    subsets = {
        size: [
            tuple(sorted(chance.choice(len(frames), size=min(size, len(frames)), replace=False).tolist()))
            for _ in range(num_subsets)
        ]
        for size in SUBSET_SIZES
    }
    wanted = {choice for several in (*choices.values(), *subsets.values()) for choice in several}
    captioner = features.captioner.in_category(clip.category)
    captions = described(captioner, features.features, wanted, beam=beam)
    return JudgedClip(clip.name, choices, subsets, captions)


def described(
    captioner: Captioner, features: Array | Mapping[int, Array], choices: set[Choice], *, beam: int
) -> dict[Choice, str]:
    """features: (frames, cells, feature), or a mapping of the chosen frames -> the caption of each choice"""
    captions: dict[Choice, str] = {}
    for some, memory in _memories(captioner.runtime, features, choices):
        sentences = captioner.describe_all(memory, beam=beam)
        captions.update(zip(some, (sentence.text for sentence in sentences), strict=True))
    return captions


def _memories(
    runtime: Runtime, features: Array | Mapping[int, Array], choices: set[Choice]
) -> Iterator[tuple[list[Choice], EncoderState]]:
    """Batches of choices with equally many frames, and the encoder's state after each choice."""
    by_last: dict[int, list[Choice]] = {}
    for beginning in sorted({choice[:length] for choice in choices for length in range(1, len(choice) + 1)}):
        by_last.setdefault(beginning[-1], []).append(beginning)
    start = runtime.start()
    h: dict[Choice, Array] = {(): start.h[0]}  # after each beginning
    c: dict[Choice, Array] = {(): start.c[0]}
    keys, values, seen = {}, {}, {}  # of each frame
    # Frame by frame, each for all choices that continue with it: its keys and values are computed once.
    for place, beginnings in sorted(by_last.items()):
        before = [beginning[:-1] for beginning in beginnings]
        states = runtime.start(len(before))._replace(h=_rows(h, before), c=_rows(c, before))
        after = runtime.encode(features[place][None], states)
        h.update(zip(beginnings, after.h, strict=True))
        c.update(zip(beginnings, after.c, strict=True))
        keys[place], values[place] = after.keys[0].copy(), after.values[0].copy()
        seen[place] = features[place].mean(axis=0)
    for _, alike in itertools.groupby(sorted(choices, key=lambda choice: (len(choice), choice)), key=len):
        every = list(alike)
        for first in range(0, len(every), MAX_TOGETHER):
            some = every[first : first + MAX_TOGETHER]
            attended, told = (
                np.stack([np.concatenate([of[place] for place in choice]) for choice in some]) for of in (keys, values)
            )
            summed = np.stack([sum(seen[place] for place in choice) for choice in some])
            yield some, EncoderState(_rows(h, some), _rows(c, some), attended, told, summed)


def _rows(parts: dict[Choice, Array], choices: Sequence[Choice]) -> Array:
    return np.stack([parts[choice] for choice in choices])
