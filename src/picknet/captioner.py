"""A video in, a sentence out: the walk from glance to pick to feature to memory, and what is said of it.

Offline and streaming are one walk. `Captioner.caption` runs it to the end and speaks once, `Captioner.stream` speaks
after every pick, `Captioner.timeline` at the end of every scene; with a scene the walk begins anew. What is carried
along is one glance and one state, however long the video.
"""

import contextlib
import dataclasses
import itertools
import math
import os
import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from picknet.config import VideoConfig
from picknet.errors import PicknetError
from picknet.model.confidence import Confidence
from picknet.model.folder import BadModel
from picknet.model.runtime import EncoderState, PendingFeatures, Runtime
from picknet.model.search import Ending, Step, all_endings, beam_search, greedy
from picknet.picking.budget import BudgetPicker
from picknet.picking.learned import learned_picker
from picknet.picking.picker import Pick, Picker, Plan, planned
from picknet.picking.scenes import SceneWatch
from picknet.text import BOS
from picknet.timeline import PATIENCE, Segment, parts, readable
from picknet.video.file import Video
from picknet.video.frame import GLANCE_SIZE, Frame
from picknet.video.live import BadSetting, Live, LiveSource, checked_fps
from picknet.video.source import without_password

if TYPE_CHECKING:
    from picknet.show.frames import PickedFrame

Array = NDArray[Any]
Source = str | os.PathLike[str] | Iterable[Frame]
"""A video by its path or address, or frames from anywhere."""
SceneRule = Callable[[Frame], bool]
"""Asked about every frame of a stream in turn: whether a new scene begins with it."""

SHIPPED = Path(__file__).parent / "models"
DEFAULT_MODEL = "msvd"

MAX_CANDIDATES = 50
CLOSE_CALL = 0.02
"""Two sentences whose scores differ by less are told apart in 32 bits. For nineteen of twenty captions of MSVD, that is
more than 16 bits in the CNN move the difference."""
MAX_LOOKS = 8
"""Frames on their way through the CNN at once. With more, nothing is faster, and each takes its room."""
EMPTY_WORDS = frozenset(
    word
    for line in """
    a an the this that these those some something piece pieces it its his her their him them he she they there who which
    is are was were be been being am has have having do does did doing can not 's n't
    and or but as while so of in on at to with for from by into onto off up down out over under through across along
    around near behind before after between against inside outside about
    """.splitlines()
    for word in line.split()
)
"""Words that tell nothing of what a video shows, or nothing by themselves."""


class NothingToCaption(PicknetError):
    """No frame at all."""


@dataclass(frozen=True)
class Sentence:
    text: str
    log_probability: float
    """Of exactly this sentence with its <eos>, given the picks."""

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)


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
    confidence: float | None = None
    """The probability that the text is good, as `confidence.py` has it; None where the model is not calibrated."""
    candidates: tuple[Sentence, ...] = ()
    """Different sentences, best first; the first is the text."""


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
    confidence: float | None = None
    """As in a caption."""
    scene: int = 0
    """Which scene the text is about; with each new one the memory starts anew."""
    lag: float | None = None
    """Seconds from the frame's arrival to this update; None for a source that waits for us."""
    damage: str | None = None
    """What could not be read so far."""


@dataclass(frozen=True)
class Picked:
    """What was picked from a video: the frames as the decoder left them, which is half the size of an image."""

    frames: tuple[tuple[Frame, Pick], ...]
    frames_seen: int
    damage: str | None
    """As in a caption."""

    def images(self) -> "Iterator[PickedFrame]":
        """One after the other, full size and upright."""
        from picknet.show.frames import PickedFrame

        for frame, pick in self.frames:
            yield PickedFrame(frame.pixels(), pick)


class Captioner:
    """A trained model, ready to describe videos. One thread at a time may use it."""

    def __init__(self, runtime: Runtime, *, name: str, style: str | None = None) -> None:
        self.runtime = runtime
        self.name = name
        self.config = runtime.config
        self.confidence = None if style else Confidence.from_card(runtime.card, runtime.folder / "card.json")
        """Of captions in the model's own style, which it was calibrated for."""
        if style and style not in runtime.vocabulary.styles:
            possible = ", ".join(runtime.vocabulary.styles) or "none but its own"
            raise BadSetting(f"style is {style!r}, which the model {name} does not know; it knows: {possible}")
        self._begin = runtime.vocabulary.styles[style] if style else BOS
        self.picker = learned_picker(runtime.policy, runtime.config.model, looks=runtime.policy_looks)

    def caption(
        self,
        video: Source,
        *,
        picker: Picker | None = None,
        beam: int | None = None,
        num_frames: int | None = None,
        candidates: int = 1,
    ) -> Caption:
        """One sentence about a whole video, from `num_frames` evenly sampled frames or from the frames given.

        With more `candidates`, other sentences beside it; it stays the same.
        """
        beam = self._checked_beam(beam)
        if not 1 <= candidates <= MAX_CANDIDATES:
            raise BadSetting(f"candidates is {candidates}: 1 to {MAX_CANDIDATES} are possible")
        with _opened(video, _evenly(num_frames, self.config.video), picker or self.picker) as frames:
            self.runtime.compile_ahead()
            picks, memory = self._remembered(frames)
            damage = frames.damage
        if not picks:
            raise NothingToCaption(f"{frames.name}: there is no frame to caption")
        sentences = self._said(memory, count=candidates, beam=beam)
        best = sentences[0]
        return Caption(
            best.text,
            picks,
            frames.seen,
            frames.name,
            self.name,
            damage,
            best.log_probability,
            self._confidence(best),
            sentences,
        )

    def stream(
        self,
        source: LiveSource | Live,
        *,
        fps: float = 1.0,
        picker: Picker | None = None,
        beam: int | None = None,
        new_scene: SceneRule | None = None,
        realtime: bool = False,
        timeout: float = 15.0,
        retries: int = 10,
    ) -> Iterator[Update]:
        """The caption so far after every pick, while frames come: `fps` of them a second, or the frames given.

        source: a file, `-`, a camera, an address, frames, arrays RGB (H, W, 3), or a `Live` with settings of its own.
        new_scene: by default a `SceneWatch`, and a scene ends after as many picks as a clip has samples in training.
        realtime, timeout, retries: as in `Live`.
        """
        beam = self._checked_beam(beam)
        live = source
        if not isinstance(live, Live):
            live = Live(live, fps=fps, realtime=realtime, timeout=timeout, retries=retries)
        if live.is_live:
            self._warm_up(beam)
        max_picks = math.inf if new_scene else self.config.video.num_frames
        text, num_picks = None, 0
        with live:
            frames = _Frames(live.name, live, picker or self.picker, live)
            for scene, shown in enumerate(frames.scenes(new_scene or SceneWatch())):
                memory = _Memory(self.runtime)
                for place, (frame, pick) in enumerate(frames.picker.pick(shown), start=1):
                    memory.look_at(frame)
                    if place == max_picks:
                        frames.scene += 1  # begins with the next frame
                    before, sentence = text, self._said(memory, count=1, beam=beam)[0]
                    text = sentence.text
                    num_picks += 1
                    yield Update(
                        pick.seconds,
                        text,
                        text != before,
                        pick,
                        frames.seen,
                        num_picks,
                        self._confidence(sentence),
                        scene,
                        live.lag,
                        live.damage,
                    )

    def timeline(
        self, video: Source, *, fps: float = 2.0, picker: Picker | None = None, beam: int | None = None
    ) -> Iterator[Segment]:
        """What is shown from when to when, in order and without gaps: `fps` frames a second are glanced at.

        Scenes are told apart as in a stream, but since a film can wait, a scene begins with its very first frame. It is
        described once, when all of its picks are known, and if it is long in several parts, as `timeline.py` has it.
        """
        beam = self._checked_beam(beam)
        with _opened(video, _by_time(fps), picker or self.picker) as frames:
            self.runtime.compile_ahead()
            yield from readable(self._parts(frames, beam=beam, step=1 / fps))

    def _parts(self, frames: "_Frames", *, beam: int, step: float) -> Iterator[Segment]:
        """Every scene, or part of one, however short. step: how long the last frame is shown, if nothing else tells."""
        before: Segment | None = None
        for scene in frames.scenes(SceneWatch(patience=PATIENCE), hindsight=PATIENCE - 1):
            for part in parts(scene):
                first = next(part)
                picks, memory = self._remembered(frames, itertools.chain([first], part))
                if not picks:  # by a picker that may find nothing: what came before goes on
                    continue
                if before:
                    yield dataclasses.replace(before, end=first.seconds)
                sentence = self._said(memory, count=1, beam=beam)[0]
                sure = self._confidence(sentence)
                before = Segment(first.seconds, first.seconds, sentence.text, sure, picks, frames.damage)
        if before:
            yield dataclasses.replace(before, end=frames.end(step), damage=frames.damage)

    def feature(self, frame: Frame) -> Array:
        """What the CNN makes of a frame: the mean over its cells, (feature,)"""
        return np.asarray(self.features(frame)[0].mean(axis=0))

    def features(self, frame: Frame) -> Array:
        """What the CNN makes of a frame, cell by cell: (1, cells, feature)"""
        return self.runtime.features(frame.pixels(self.config.model.image_size)[None])

    def describe(self, state: EncoderState, *, beam: int | None = None) -> Sentence:
        """The sentence for one video's memory (1, state)."""
        return self.candidates(state, count=1, beam=beam)[0]

    def describe_all(self, state: EncoderState, *, beam: int | None = None) -> list[Sentence]:
        """The sentence for each of n videos' memories (n, state).

        A beam of 1 writes them together, several times as fast as one by one.
        """
        if (beam := self._checked_beam(beam)) > 1:
            return [self.describe(state.of(np.array([row])), beam=beam) for row in range(len(state.h))]
        endings = greedy(
            lambda rows: self._step(state.of(rows)),
            np.zeros_like(state.h),
            max_words=self.config.text.max_words,
            begin=self._begin,
        )
        return [Sentence(self.runtime.vocabulary.decode(ending.words), ending.log_probability) for ending in endings]

    def candidates(self, state: EncoderState, *, count: int, beam: int | None = None) -> tuple[Sentence, ...]:
        """At most `count` sentences for one video's memory, best first, each with a word that no better one has.

        The first is the beam search's. The others come from the ends of all sentences of a second search, whose beam
        is twice as wide as they are many: half of what it finds says the same in other words. Empty words, and other
        endings of a word, do not count as another word.
        """
        return self._candidates(state, self._endings(state, beam=beam), count=count, beam=beam)

    def _endings(self, state: EncoderState, *, beam: int | None) -> list[Ending]:
        """What a beam search finds for one video's memory."""
        return beam_search(
            self._step(state),
            np.zeros_like(state.h),
            beam=self._checked_beam(beam),
            max_words=self.config.text.max_words,
            length_exponent=self.config.length_exponent,
            begin=self._begin,
        )

    def _candidates(
        self, state: EncoderState, endings: list[Ending], *, count: int, beam: int | None
    ) -> tuple[Sentence, ...]:
        found = endings[:1]
        if count > 1:
            wide, max_words = max(self._checked_beam(beam), 2 * count), self.config.text.max_words
            others = all_endings(
                self._step(state), np.zeros_like(state.h), beam=wide, max_words=max_words, begin=self._begin
            )
            found += sorted(others, key=lambda other: -other.score(self.config.length_exponent))
        sentences: list[Sentence] = []
        said: set[str] = set()
        for words, log_probability in found:
            text = self.runtime.vocabulary.decode(words)
            new = _content(text) - said
            if len(sentences) < count and (new or not sentences):
                sentences.append(Sentence(text, log_probability))
                said |= new
        return tuple(sentences)

    def _step(self, memory: EncoderState) -> Step:
        return lambda words, states: self.runtime.decode(words, memory, states)

    def _remembered(
        self, frames: "_Frames", scene: Iterable[Frame] | None = None
    ) -> tuple[tuple[Pick, ...], "_Memory"]:
        """The picks among the frames, or among those of a scene, and what is remembered of them."""
        memory = _Memory(self.runtime)
        picks = []
        for frame, pick in frames.picker.pick(frames if scene is None else scene):
            memory.look_at(frame)
            picks.append(pick)
        return tuple(picks), memory

    def _said(self, memory: "_Memory", *, count: int, beam: int) -> tuple[Sentence, ...]:
        """`candidates` for what is remembered; where it is a close call, after another look at it."""
        state = memory.state()
        endings = self._endings(state, beam=beam)
        if self.runtime.computes_in_f16 and len(endings) > 1:
            scores = [ending.score(self.config.length_exponent) for ending in endings[:2]]
            if scores[0] - scores[1] < CLOSE_CALL and (exact := memory.exact_state()):
                state, endings = exact, self._endings(exact, beam=beam)
        return self._candidates(state, endings, count=count, beam=beam)

    def _confidence(self, sentence: Sentence) -> float | None:
        return self.confidence.of(sentence.text, sentence.log_probability) if self.confidence else None

    def _warm_up(self, beam: int) -> None:
        """Use every graph once. It is compiled then, which takes a second that a live source would not wait."""
        size = self.config.model.image_size
        blank = Frame.from_pixels(np.zeros((size, size, 3), np.uint8), index=0, seconds=0.0)
        self.runtime.policy(blank.glance()[None], blank.glance()[None], np.zeros(1, np.float32))
        memory = _Memory(self.runtime)
        memory.look_at(blank)
        self.describe(memory.state(), beam=beam)
        if self.runtime.computes_in_f16:
            memory.exact_state()

    def _checked_beam(self, beam: int | None) -> int:
        # The config knows which beams are possible.
        return self.config.beam if beam is None else dataclasses.replace(self.config, beam=beam).beam


class _Memory:
    """What is kept of a scene's picks: the encoder's state, with all that has come through the CNN so far.

    For a close call the frames are kept as well, up to as many as a clip has samples.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._state = self._exact_state = runtime.start()
        self._looks: deque[PendingFeatures] = deque()
        """Not yet in the state."""
        self._pixels: deque[Array] = deque(maxlen=runtime.config.video.num_frames)
        """Not yet in the exact state."""
        self._is_too_long = False

    def look_at(self, frame: Frame) -> None:
        """Have the CNN begin with a frame; whoever waits for the next one need not wait for this."""
        pixels = frame.pixels(self._runtime.config.model.image_size)
        self._looks.append(self._runtime.start_features(pixels))
        self._is_too_long |= len(self._pixels) == self._pixels.maxlen
        self._pixels.append(pixels)
        while self._looks and (self._looks[0].is_ready or len(self._looks) > MAX_LOOKS):
            self._take_in()

    def state(self) -> EncoderState:
        while self._looks:
            self._take_in()
        return self._state

    def exact_state(self) -> EncoderState | None:
        """The state after the same frames, all in 32 bits; None if they are too many."""
        if self._is_too_long:
            return None
        while self._pixels:
            features = self._runtime.exact_features(self._pixels.popleft()[None])
            self._exact_state = self._runtime.encode(features, self._exact_state)
        return self._exact_state

    def _take_in(self) -> None:
        self._state = self._runtime.encode(self._looks.popleft().result(), self._state)


def _content(text: str) -> set[str]:
    """What a sentence tells: its words without the empty ones and without their endings, as in rid(es), rid(ing)."""
    return {re.sub(r"(?<=\w{3})(?:ing|es|ed|s|e)$", "", word) for word in text.split() if word not in EMPTY_WORDS}


def load(model: str | os.PathLike[str] | None = None, *, style: str | None = None) -> Captioner:
    """A captioner: the default model, a shipped one by its name, a model folder, or a run folder with a model in it.

    style: a data set that the model learned beside its own, whose style captions are to have.
    """
    name, folder = find_model(model)
    runtime = Runtime(folder)
    if runtime.glance_size != GLANCE_SIZE:
        raise BadModel(
            f"{folder / 'policy.onnx'}: takes glances of {runtime.glance_size} pixels where {GLANCE_SIZE} were expected"
        )
    return Captioner(runtime, name=name, style=style)


def find_model(model: str | os.PathLike[str] | None) -> tuple[str, Path]:
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
    exact: bool = False,
    picker: Picker | None = None,
    model: str | os.PathLike[str] | None = None,
    num_frames: int | None = None,
) -> "list[PickedFrame]":
    """The picked frames of a video as full-size PIL images: by `picker`, by a `budget`, or by the PickNet of a model.

    With a budget at most so many, with `exact` neither more nor less: the first, and those that show what happens. They
    are taken from a frame a second, of a short video from more, and no model is needed. Of the picks of a `picker` a
    budget keeps those that it was surest of.
    """
    found = picked(video, budget=budget, exact=exact, picker=picker, model=model, num_frames=num_frames)
    return list(found.images())


def picked(
    video: Source,
    *,
    budget: int | None = None,
    exact: bool = False,
    picker: Picker | None = None,
    model: str | os.PathLike[str] | None = None,
    num_frames: int | None = None,
    seen: Callable[[float], object] = lambda seconds: None,
) -> Picked:
    """What `pick` makes images of. seen: is told the seconds of each frame that is looked at."""
    if budget is not None and budget < 1:
        raise BadSetting(f"budget is {budget}: 1 frame or more is possible")
    if exact and (budget is None or picker is not None):
        raise BadSetting("exact is True: it needs a budget, and no picker that has a say in it")
    sample = _evenly(num_frames, VideoConfig())
    chosen = picker
    if chosen is None and budget is not None:
        chosen = BudgetPicker(budget, exact=exact)
        sample = sample if num_frames else _every_second(budget)
    elif chosen is None:
        captioner = load(model)
        chosen, sample = captioner.picker, _evenly(num_frames, captioner.config.video)
    with _opened(video, sample, chosen) as frames:
        kept = list(frames.picker.pick(_told(frames, seen)))
        if exact and len(kept) != budget:
            raise BadSetting(f"{frames.name}: exactly {budget} frames were asked for, and it has {frames.seen}")
        if budget is not None and picker is not None:
            # The first frame has no probability, since the policy was not asked; it comes before all others.
            surest = sorted(kept, key=lambda one: -math.inf if one[1].probability is None else -one[1].probability)
            kept = sorted(surest[:budget], key=lambda one: one[1].index)
        return Picked(tuple(kept), frames.seen, frames.damage)


def _told(frames: Iterable[Frame], seen: Callable[[float], object]) -> Iterator[Frame]:
    for frame in frames:
        seen(frame.seconds)
        yield frame


class _Frames:
    """Frames on their way to a picker, counted as they pass, scene by scene where scenes are told apart."""

    def __init__(
        self, name: str, frames: Iterable[Frame], picker: Picker, video: Video | Live | None = None
    ) -> None:
        self.name = name
        self.picker = picker
        self.scene = 0
        """Which scene the next frame belongs to. Whoever raises it begins a new one."""
        self._frames = frames
        self._passed = 0
        self._video = video
        self._last = self._gap = 0.0

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._frames:
            self._passed += 1
            self._last, self._gap = frame.seconds, frame.seconds - self._last
            yield frame

    def scenes(self, new_scene: SceneRule, *, hindsight: int = 0) -> Iterator[Iterator[Frame]]:
        """The frames of one scene after the other, each as it comes; a scene is over when the next one has begun.

        hindsight: how many frames of a new scene have passed before the rule can tell. So many are held back.
        """

        def passing() -> Iterator[Frame]:
            held: deque[Frame] = deque()
            for frame in self:
                held.append(frame)
                if new_scene(frame):
                    self.scene += 1
                if len(held) > hindsight:
                    yield held.popleft()
            yield from held

        return (scene for _, scene in itertools.groupby(passing(), key=lambda _: self.scene))

    @property
    def seen(self) -> int:
        """How many were sampled so far, among them those that a plan can do without."""
        return self.picker.count if isinstance(self.picker, Plan) else self._passed

    @property
    def damage(self) -> str | None:
        return self._video.damage if self._video else None

    def end(self, step: float) -> float:
        """When it is all over: as a file says itself, unless it breaks off; else the last frame stays like the others.

        step: how long it stays if it is alone.
        """
        stored = self._video.seconds if isinstance(self._video, Video) and not self.damage else None
        return stored if stored and stored > self._last else self._last + (self._gap or step)


Sample = Callable[[Video, Picker], tuple[Iterable[Frame], Picker]]
"""A video and who is to pick from it -> the frames to be seen, and who picks from these."""


def _evenly(num_frames: int | None, settings: VideoConfig) -> Sample:
    count = settings.num_frames if num_frames is None else num_frames
    if count < 1:
        raise BadSetting(f"num_frames is {count}: at least 1 frame is needed")

    def sample(video: Video, picker: Picker) -> tuple[Iterable[Frame], Picker]:
        plan = planned(picker, video.num_samples(count))
        return video.sample_evenly(count=count, only=plan.probabilities if plan else None), plan or picker

    return sample


def _by_time(fps: float) -> Sample:
    fps = checked_fps(fps)
    return lambda video, picker: (video.sample_by_time(fps=fps), picker)


def _every_second(budget: int) -> Sample:
    """A frame a second, so that nothing goes unseen; of a short video more, so that there is a choice."""
    least = max(VideoConfig().num_frames, 2 * budget)

    def sample(video: Video, picker: Picker) -> tuple[Iterable[Frame], Picker]:
        return video.sample_by_time(fps=max(1.0, least / video.seconds) if video.seconds else 1.0), picker

    return sample


@contextlib.contextmanager
def _opened(source: Source, sample: Sample, picker: Picker) -> Iterator[_Frames]:
    """The frames sampled from a video that is open for as long as the block lasts, or the frames given as they are."""
    if isinstance(source, str | os.PathLike):
        if "://" in os.fspath(source) and not os.path.lexists(source):
            name = without_password(os.fspath(source))
            raise BadSetting(f"{name}: an address, which may have no end; `stream` describes those")
        with Video(source) as video:
            yield _Frames(os.fspath(source), *sample(video, picker), video)
    else:
        yield _Frames("frames", source, picker)
