"""A video in, a sentence out: the walk from glance to pick to feature to memory, and the beam search that writes.

Offline and streaming are one walk. `Captioner.caption` runs it to the end and speaks once, `Captioner.stream` speaks
after every pick; what is carried along is one glance and one state, however long the video.
"""

import contextlib
import dataclasses
import math
import os
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from picknet.config import VideoConfig
from picknet.errors import PicknetError
from picknet.picking import Pick, Picker, PickNetPicker
from picknet.runtime import BadModel, Runtime, State
from picknet.text import BOS, EOS, NEVER_WRITTEN
from picknet.video import GLANCE_SIZE, Frame, Video

if TYPE_CHECKING:
    from PIL.Image import Image

Array = NDArray[Any]
Source = str | os.PathLike[str] | Iterable[Frame]
"""A video by its path or address, or frames from anywhere."""

SHIPPED = Path(__file__).parent / "models"
DEFAULT_MODEL = "msvd"


class NothingToCaption(PicknetError):
    """No frame at all."""


class BadSetting(PicknetError):
    """A number of frames, a budget or a rate that cannot be."""


@dataclass(frozen=True)
class Sentence:
    text: str
    log_probability: float
    """Of the whole sentence with its <eos>, given the video."""


@dataclass(frozen=True)
class Caption:
    """What a video shows, and the frames that say so."""

    text: str
    picks: tuple[Pick, ...]
    frames_seen: int
    """Frames sampled from the video; `picks` are those among them that the CNN looked at."""
    video: str
    model: str
    damage: str | None
    """What was wrong with the video, when it could be read in part only."""
    log_probability: float


@dataclass(frozen=True)
class Update:
    """The caption of a stream so far, after one more pick."""

    seconds: float
    text: str
    changed: bool
    """Whether the text differs from the update before."""
    pick: Pick
    frames_seen: int
    num_picks: int


@dataclass(frozen=True)
class PickedFrame:
    image: "Image"
    pick: Pick


class Captioner:
    """A trained model, ready to describe videos. One thread at a time may use it."""

    def __init__(self, runtime: Runtime, *, name: str) -> None:
        self.runtime = runtime
        self.name = name
        self.config = runtime.config
        model = runtime.config.model
        self.picker: Picker = PickNetPicker(
            runtime.policy, threshold=model.pick_threshold, max_gap=model.max_gap or None
        )

    def caption(
        self,
        video: Source,
        *,
        picker: Picker | None = None,
        beam: int | None = None,
        num_frames: int | None = None,
    ) -> Caption:
        """One sentence about a whole video, from `num_frames` evenly sampled frames or from the frames given."""
        beam = self._checked_beam(beam)
        state, picks = self.runtime.start(), []
        with _opened(video, _evenly(num_frames, self.config.video)) as frames:
            for pick, following in self._walk(frames, picker):
                picks.append(pick)
                state = following
            damage = frames.damage
        if not picks:
            raise NothingToCaption(f"{frames.name}: there is no frame to caption")
        sentence = self.describe(state, beam=beam)
        return Caption(
            sentence.text, tuple(picks), frames.seen, frames.name, self.name, damage, sentence.log_probability
        )

    def stream(
        self, source: Source, *, fps: float = 1.0, picker: Picker | None = None, beam: int | None = None
    ) -> Iterator[Update]:
        """The caption so far after every pick, while frames come: `fps` of them a second of video, or those given."""
        beam = self._checked_beam(beam)
        if not fps > 0:
            raise BadSetting(f"fps is {fps}: more than 0 frames a second are needed")
        text = None
        with _opened(source, lambda video: video.sample_by_time(fps=fps)) as frames:
            for num_picks, (pick, state) in enumerate(self._walk(frames, picker), start=1):
                before, text = text, self.describe(state, beam=beam).text
                yield Update(pick.seconds, text, text != before, pick, frames.seen, num_picks)

    def feature(self, frame: Frame) -> Array:
        """What the CNN makes of a frame: (feature,)"""
        (feature,) = self.runtime.features(frame.pixels(self.config.model.image_size)[None])
        return np.asarray(feature)

    def describe(self, state: State, *, beam: int | None = None) -> Sentence:
        """The sentence for one video's memory (1, state)."""

        def step(words: Array, states: Array) -> tuple[Array, Array]:
            return self.runtime.decode(words, np.repeat(state.h, len(words), axis=0), states)

        words, log_probability = beam_search(
            step,
            np.zeros_like(state.h),
            beam=self._checked_beam(beam),
            max_words=self.config.text.max_words,
            length_exponent=self.config.length_exponent,
        )
        return Sentence(self.runtime.vocabulary.decode(words), log_probability)

    def _walk(self, frames: Iterable[Frame], picker: Picker | None) -> Iterator[tuple[Pick, State]]:
        """Each pick, and the memory once its frame is in it."""
        state = self.runtime.start()
        for frame, pick in (picker or self.picker).pick(frames):
            state = self.runtime.encode(self.feature(frame)[None], state)
            yield pick, state

    def _checked_beam(self, beam: int | None) -> int:
        # The config knows which beams are possible.
        return self.config.beam if beam is None else dataclasses.replace(self.config, beam=beam).beam


def beam_search(
    step: Callable[[Array, Array], tuple[Array, Array]],
    state: Array,
    *,
    beam: int,
    max_words: int,
    length_exponent: float,
) -> tuple[list[int], float]:
    """The best sentence of at most `max_words` words, without <eos>, and its log-probability; a beam of 1 is greedy.

    step: words (n,), states (n, S) -> log-probabilities of the next words (n, V), next states (n, S); state: (1, S).
    """
    best, best_score, best_log_probability = np.empty(0, np.int64), -math.inf, -math.inf
    # Always `beam` rows, since a graph is slow to take on a new shape; log P = -inf marks a row without a sentence.
    sentences = np.full((beam, 1), BOS, dtype=np.int64)
    totals = np.full(beam, -math.inf)  # log P of each sentence so far
    totals[0] = 0.0
    states = np.repeat(state, beam, axis=0)
    for length in range(1, max_words + 2):
        log_probabilities, states = step(sentences[:, -1], states)
        candidates = totals[:, None] + log_probabilities
        candidates[:, NEVER_WRITTEN] = -math.inf
        if length > max_words:  # nothing but the end may follow the last word
            candidates[:, EOS + 1 :] = -math.inf
        parents, words = _highest(candidates, beam)
        totals = candidates[parents, words]
        sentences = np.column_stack([sentences[parents], words])
        states = states[parents]

        ended = words == EOS
        if ended.any():
            first = int(ended.argmax())  # rows are in order and of one length: the first to end is the best to end
            score = totals[first] / length**length_exponent
            if score > best_score:
                best, best_score, best_log_probability = sentences[first, 1:-1], score, totals[first]
            totals[ended] = -math.inf
        # More words only lower log P, so no open sentence can score above its log P now over the greatest length.
        if totals.max() / (max_words + 1) ** length_exponent <= best_score:
            break
    return best.tolist(), float(best_log_probability)


def _highest(candidates: Array, count: int) -> tuple[Array, Array]:
    """candidates: (n, V) -> rows and columns of the `count` highest, highest first; of equals the earlier"""
    flat = candidates.ravel()
    chosen = np.argpartition(-flat, count - 1)[:count]
    chosen = chosen[np.lexsort((chosen, -flat[chosen]))]
    return np.divmod(chosen, candidates.shape[1])


def load(model: str | os.PathLike[str] | None = None) -> Captioner:
    """A captioner: the default model, a shipped one by its name, a model folder, or a run folder with a model in it."""
    name, folder = _find(model)
    runtime = Runtime(folder)
    if runtime.glance_size != GLANCE_SIZE:
        raise BadModel(
            f"{folder / 'policy.onnx'}: takes glances of {runtime.glance_size} pixels where {GLANCE_SIZE} were expected"
        )
    return Captioner(runtime, name=name)


def _find(model: str | os.PathLike[str] | None) -> tuple[str, Path]:
    """The model's name, and its folder."""
    shipped = sorted(folder.name for folder in SHIPPED.iterdir() if folder.is_dir()) if SHIPPED.is_dir() else []
    if model is None:
        model = DEFAULT_MODEL
        if model not in shipped:
            raise BadModel(f"{SHIPPED / model}: the default model is not in this installation; name a model folder")
    if model in shipped:
        return str(model), SHIPPED / model
    folder = Path(model)
    if not folder.exists():
        raise BadModel(
            f"{folder}: no such model; possible are "
            f"{', '.join([*shipped, 'a model folder'])}, or a run folder with a model in it"
        )
    return str(folder), folder / "model" if (folder / "model").is_dir() else folder


def pick(
    video: Source,
    *,
    budget: int | None = None,
    picker: Picker | None = None,
    model: str | os.PathLike[str] | None = None,
    num_frames: int | None = None,
) -> list[PickedFrame]:
    """The picked frames of a video as full-size images: by `picker`, or by the PickNet of a model.

    With a budget at most so many: the first, then those the policy was surest of, in the order of the video.
    """
    from PIL.Image import fromarray

    if budget is not None and budget < 1:
        raise BadSetting(f"budget is {budget}: 1 frame or more is possible")
    settings = VideoConfig()
    if picker is None:
        captioner = load(model)
        picker, settings = captioner.picker, captioner.config.video
    with _opened(video, _evenly(num_frames, settings)) as frames:
        picked = list(picker.pick(frames))
        if budget is not None:
            # The first frame has no probability, since the policy was not asked; it comes before all others.
            surest = sorted(picked, key=lambda one: -math.inf if one[1].probability is None else -one[1].probability)
            picked = sorted(surest[:budget], key=lambda one: one[1].index)
        return [PickedFrame(fromarray(frame.pixels()), pick) for frame, pick in picked]


class _Frames:
    """Frames on their way to a picker, counted as they pass."""

    def __init__(self, name: str, frames: Iterable[Frame], video: Video | None = None) -> None:
        self.name = name
        self.seen = 0
        self._frames = frames
        self._video = video

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._frames:
            self.seen += 1
            yield frame

    @property
    def damage(self) -> str | None:
        return self._video.damage if self._video else None


def _evenly(num_frames: int | None, settings: VideoConfig) -> Callable[[Video], Iterator[Frame]]:
    count = settings.num_frames if num_frames is None else num_frames
    if count < 1:
        raise BadSetting(f"num_frames is {count}: at least 1 frame is needed")
    return lambda video: video.sample_evenly(count=count)


@contextlib.contextmanager
def _opened(source: Source, sample: Callable[[Video], Iterable[Frame]]) -> Iterator[_Frames]:
    """The frames sampled from a video that is open for as long as the block lasts, or the frames given as they are."""
    if isinstance(source, str | os.PathLike):
        with Video(source) as video:
            yield _Frames(os.fspath(source), sample(video), video)
    else:
        yield _Frames("frames", source)
