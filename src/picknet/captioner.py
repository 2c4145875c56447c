"""A video in, a sentence out: frame → glance → picker → CNN → memory → sentence.

`Captioner.caption` writes one sentence at the end of a video, `stream` one after every pick, `timeline` one at the end
of every scene. The state is one glance and one memory, whatever the length of the video.
"""

import dataclasses
import math
import os
from collections.abc import Iterable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from picknet.config import VideoConfig
from picknet.describer import Describer
from picknet.errors import BadSetting, PicknetError
from picknet.model.folder import BadModel, find_model
from picknet.model.runtime import EncoderState, Runtime
from picknet.model.sentences import Sentence
from picknet.picking.budget import BudgetPicker
from picknet.picking.learned import CountedPicker, OnGlance, PickNetPicker, RatePicker, learned_picker
from picknet.picking.picker import Picker, glance_kind, is_random, looks_ahead
from picknet.results import Caption, Picked, Segment, Update
from picknet.timeline import segments
from picknet.video.file import Video
from picknet.video.frame import GLANCE_SIZE, BadPixels, Frame
from picknet.video.live import Live
from picknet.video.source import Source, UnreachableSource, UnreadableVideo, is_binary_file
from picknet.walk import (
    EndlessSource,
    OnFrame,
    SceneRule,
    by_time,
    check_finite,
    checked_num_frames,
    evenly,
    open_source,
    pick_frames,
    source_name,
)
from picknet.workers import CheckWanted, in_threads, num_cores

if TYPE_CHECKING:
    from picknet.show.frames import PickedFrame

Array = NDArray[Any]

MAX_CANDIDATES = 50


class NothingToCaption(PicknetError):
    """A source without a frame, or one of whose frames none was picked."""


class Captioner:
    """A trained model, ready to describe videos. Thread-safe: any number of threads may share one."""

    def __init__(self, runtime: Runtime, *, name: str, style: str | None = None) -> None:
        self.runtime = runtime
        self.name = name
        self.style = style
        self.config = runtime.config
        self.picker = self.picker_at()
        """The model's own; for streams `picker_at(spread=False)`."""
        self.describer = Describer(runtime, model=name, style=style)

    def picker_at(
        self, rate: float = 1.0, *, spread: bool = True, on_glance: OnGlance = lambda frame, probability: None
    ) -> PickNetPicker | RatePicker:
        """The model's picker with its dial turned: at a rate of 2 it picks more frames, at 0.5 fewer.

        spread: for a clip that is described as a whole; False for a stream, in which a pick comes at once.
        on_glance: called with every frame that it has looked at, and its probability of picking it.
        """
        return learned_picker(
            self.runtime.policy, self.config.model, rate=rate, spread=spread, on_glance=on_glance
        )

    def counted_picker(self, k: int, *, on_glance: OnGlance = lambda frame, probability: None) -> CountedPicker:
        """The model's picker for exactly k frames of a clip. It needs the whole clip, so it cannot follow a stream."""
        return CountedPicker(self.picker_at(on_glance=on_glance), k)

    def in_category(self, category: str | None) -> "Captioner":
        """For a clip of this category: itself, unless the model learned the category and no style was asked for."""
        if self.style or category not in self.runtime.vocabulary.styles:
            return self
        return Captioner(self.runtime, name=self.name, style=category)

    @property
    def confidence_note(self) -> str | None:
        """Why captions have no confidence, for people; None where they have one."""
        return self.describer.confidence_note

    def caption(
        self,
        source: Source | Video,
        *,
        picker: Picker | None = None,
        beam: int | None = None,
        num_frames: int | None = None,
        candidates: int = 1,
        min_confidence: float | None = None,
    ) -> Caption:
        """One sentence about a whole video.

        source: a path, bytes, an open binary file, an http(s) address of a file, an open `Video`, an array of frames
            (n, H, W, 3) uint8 RGB, or an iterable of `Frame`s or of arrays (H, W, 3).
        num_frames: evenly spaced frames to sample from a video or an array, by default as in training. Frames from an
            iterable are all used.
        candidates: number of sentences in `Caption.candidates`; the caption is the same with any number.
        min_confidence: a caption with a lower confidence is left out: `text` is empty, and `not_sure` says why.
        """
        return self._caption(source, self._settings(picker, beam, num_frames, candidates, min_confidence))

    def caption_many(
        self,
        sources: Iterable[Source],
        *,
        jobs: int | None = None,
        picker: Picker | None = None,
        beam: int | None = None,
        num_frames: int | None = None,
        candidates: int = 1,
        min_confidence: float | None = None,
    ) -> Iterator[Caption]:
        """A caption for each source, in order, by `jobs` threads; by default one for each core.

        A video that cannot be read is a `Caption` whose `error` says why. Sources are read as they are needed, at most
        two for each thread beyond the result that is waited for. Closing the generator stops the work.

        The threads share the picker. A random one depends on the videos before, so it runs in one thread.
        """
        if jobs is not None and jobs < 1:
            raise BadSetting(f"jobs is {jobs}: 1 thread or more is possible")
        is_one = isinstance(sources, str | bytes | bytearray | os.PathLike | Live) or is_binary_file(sources)
        if is_one or isinstance(sources, np.ndarray) or not isinstance(sources, Iterable):
            raise BadSetting("sources is one source: a list or another iterable of them is needed")
        settings = self._settings(picker, beam, num_frames, candidates, min_confidence)

        def caption_or_error(source: Source, check_wanted: CheckWanted) -> Caption:
            try:
                return self._caption(source, settings, on_frame=lambda seconds: check_wanted())
            except (UnreadableVideo, UnreachableSource, EndlessSource, NothingToCaption, BadPixels) as error:
                name = source_name(source)
                return Caption("", (), 0, name, self.name, None, -math.inf, num_scenes=0, error=str(error))

        if picker is not None and is_random(picker):
            jobs = 1
        return in_threads(caption_or_error, sources, jobs=jobs or num_cores())

    def stream(
        self,
        source: Source | Live | Video,
        *,
        fps: float = 1.0,
        picker: Picker | None = None,
        beam: int | None = None,
        new_scene: SceneRule | None = None,
        min_confidence: float | None = None,
        realtime: bool = False,
        timeout: float = 15.0,
        retries: int = 10,
    ) -> Iterator[Update]:
        """The caption so far after every pick, as frames arrive, in constant memory.

        source: as in `caption`; or `-` for standard input, a camera by its number, an address such as rtsp://…, or a
            `Live` with its own settings; its `glance` must be what the picker sees, by default grey.
        fps: frames a second to look at.
        new_scene: by default a `SceneWatch`, and a scene ends after as many picks as a clip has samples in training.
        min_confidence: as in `caption`.
        realtime, timeout, retries: as in `Live`; an open `Video` is not read in real time.
        """
        beam, least = self._checked_beam(beam), self.describer.checked_min_confidence(min_confidence)
        if picker is not None and looks_ahead(picker):
            raise BadSetting(
                f"picker is a {type(picker).__name__}, which has to see the last frame before it can pick the first: "
                "a stream needs one that decides frame by frame"
            )
        picker = picker or self.picker_at(spread=False)
        if not isinstance(source, Live):
            source = Live(
                source, fps=fps, realtime=realtime, timeout=timeout, retries=retries, glance=glance_kind(picker)
            )
        return self.describer.updates(source, picker, beam=beam, new_scene=new_scene, min_confidence=least)

    def timeline(
        self,
        source: Source | Video,
        *,
        fps: float = 2.0,
        picker: Picker | None = None,
        beam: int | None = None,
        min_confidence: float | None = None,
    ) -> Iterator[Segment]:
        """A caption for every segment of a video, in order and without gaps.

        source, min_confidence: as in `caption`. fps: frames a second to look at; of arrays, their rate.

        Scenes are found as in a stream, but with one frame of look-ahead, so a scene begins with its very first frame.
        It is described once, when all of its picks are known; a long one in several parts, see `timeline.py`.
        """
        beam, least = self._checked_beam(beam), self.describer.checked_min_confidence(min_confidence)
        describe = partial(self.describer.describe, beam=beam, min_confidence=least)
        sampling = by_time(fps)
        check_finite(source)

        def read() -> Iterator[Segment]:
            with open_source(source, sampling, picker or self.picker, fps=fps) as walk:
                self.runtime.compile_ahead()
                yield from segments(walk, describe, step=1 / fps, model=self.name)

        return read()

    def pick(
        self,
        source: Source | Live | Video,
        *,
        budget: int | None = None,
        exact: bool = False,
        picker: Picker | None = None,
        num_frames: int | None = None,
    ) -> "list[PickedFrame]":
        """The picked frames as full-size PIL images: chosen by the model's picker, within a `budget`, or by `picker`.

        source: as in `caption`; with a budget also a live source, which is followed until it ends.
        budget: at most this many frames: the first, and those that show what happens. They are chosen among one frame
            a second, of a short video more, by their glances and the model's policy.
        exact: with a budget, exactly this many frames, even if little happens.
        picker: with a budget, it keeps the picks with the highest probabilities; where the picker has none, those that
            show most.
        """
        return list(
            self.picked(source, budget=budget, exact=exact, picker=picker, num_frames=num_frames).images()
        )

    def picked(
        self,
        source: Source | Live | Video,
        *,
        budget: int | None = None,
        exact: bool = False,
        picker: Picker | None = None,
        num_frames: int | None = None,
        on_frame: OnFrame = lambda seconds: None,
    ) -> Picked:
        """As `pick`, but the frames stay in the decoder's format. on_frame: called with the seconds of each sample."""
        if picker is None and budget is None:
            picker = self.picker
        return pick_frames(
            source,
            picker=picker,
            budget=budget,
            exact=exact,
            num_frames=num_frames,
            settings=self.config.video,
            on_frame=on_frame,
            budget_picker=self.budget_picker,
            image_size=self.config.model.image_size,
        )

    def budget_picker(self, budget: int, *, exact: bool = False) -> BudgetPicker:
        """What `pick` with a budget uses: a rule, and the model's policy if it has one with a memory."""
        learned = self.picker_at(spread=False)
        return BudgetPicker(budget, exact=exact, learned=learned if isinstance(learned, RatePicker) else None)

    def feature(self, frame: Frame) -> Array:
        """The CNN's feature of a frame, the mean over its cells: (feature,)"""
        return np.asarray(self.features(frame)[0].mean(axis=0))

    def features(self, frame: Frame) -> Array:
        """The CNN's features of a frame, cell by cell: (1, cells, feature)"""
        return self.runtime.features(frame.pixels(self.config.model.image_size)[None])

    def describe(self, state: EncoderState, *, beam: int | None = None) -> Sentence:
        """The sentence for one video's memory (1, state)."""
        return self.describer.writer.candidates(state, beam=self._checked_beam(beam))[0]

    def describe_all(self, state: EncoderState, *, beam: int | None = None) -> list[Sentence]:
        """The sentence for each of n videos' memories (n, state); with a beam of 1 all at once, which is faster."""
        if (beam := self._checked_beam(beam)) > 1:
            return [self.describe(state.of(np.array([row])), beam=beam) for row in range(len(state.h))]
        return self.describer.writer.greedy(state)

    def _caption(
        self, source: Source | Video, settings: "_Settings", on_frame: OnFrame = lambda seconds: None
    ) -> Caption:
        count = settings.num_frames
        self.runtime.compile_ahead()
        with open_source(
            source, evenly(count), settings.picker, array_samples=count, shares_cores=True, on_frame=on_frame
        ) as walk:
            frames = walk.shrunk(self.config.model.image_size) if looks_ahead(settings.picker) else walk
            described = self.describer.describe(
                walk.picks(frames),
                beam=settings.beam,
                count=settings.candidates,
                min_confidence=settings.min_confidence,
            )
            damage = walk.damage
        if described is None:
            seen = walk.frames_seen
            reason = f"the picker picked none of {seen} frames" if seen else "there is no frame to caption"
            raise NothingToCaption(f"{walk.name}: {reason}")
        return Caption(
            described.text,
            described.picks,
            walk.frames_seen,
            walk.name,
            self.name,
            damage,
            described.sentences[0].log_probability,
            described.confidence,
            () if described.not_sure else described.sentences,
            walk.seconds,
            described.num_scenes,
            not_sure=described.not_sure,
            width=walk.width,
            height=walk.height,
        )

    def _settings(
        self,
        picker: Picker | None,
        beam: int | None,
        num_frames: int | None,
        candidates: int,
        min_confidence: float | None,
    ) -> "_Settings":
        if not 1 <= candidates <= MAX_CANDIDATES:
            raise BadSetting(f"candidates is {candidates}: 1 to {MAX_CANDIDATES} are possible")
        num_frames = checked_num_frames(num_frames, self.config.video)
        least = self.describer.checked_min_confidence(min_confidence)
        return _Settings(picker or self.picker, self._checked_beam(beam), num_frames, candidates, least)

    def _checked_beam(self, beam: int | None) -> int:
        # The config knows which beams are possible.
        return self.config.beam if beam is None else dataclasses.replace(self.config, beam=beam).beam


@dataclasses.dataclass(frozen=True)
class _Settings:
    """The arguments of a caption, checked."""

    picker: Picker
    beam: int
    num_frames: int
    candidates: int
    min_confidence: float


def load(
    model: str | os.PathLike[str] | None = None, *, style: str | None = None, side_by_side: bool = False
) -> Captioner:
    """A captioner: the default model, a shipped one by name, a model folder, or a run folder with a model in it.

    style: a second data set that the model was trained on, whose style of captions is wanted, or the category of the
    videos. side_by_side: for threads that caption several videos at once, which it makes faster, while the caption of a
    single video takes longer.
    """
    name, folder = find_model(model)
    runtime = Runtime(folder, side_by_side=side_by_side)
    if runtime.glance_size != GLANCE_SIZE:
        raise BadModel(
            f"{folder / 'policy.onnx'}: takes glances of {runtime.glance_size} pixels where {GLANCE_SIZE} were expected"
        )
    return Captioner(runtime, name=name, style=style)


def pick(
    source: Source | Live,
    *,
    budget: int | None = None,
    exact: bool = False,
    picker: Picker | None = None,
    model: str | os.PathLike[str] | None = None,
    num_frames: int | None = None,
) -> "list[PickedFrame]":
    """As `Captioner.pick`, without a captioner: a model is loaded only where no picker is given."""
    found = picked(source, budget=budget, exact=exact, picker=picker, model=model, num_frames=num_frames)
    return list(found.images())


def picked(
    source: Source | Live,
    *,
    budget: int | None = None,
    exact: bool = False,
    picker: Picker | None = None,
    model: str | os.PathLike[str] | None = None,
    num_frames: int | None = None,
    on_frame: OnFrame = lambda seconds: None,
) -> Picked:
    """As `pick`, but the frames stay in the decoder's format. on_frame: called with the seconds of each sample."""
    if picker is None:
        captioner = load(model)
        return captioner.picked(source, budget=budget, exact=exact, num_frames=num_frames, on_frame=on_frame)
    if model is not None:
        raise BadSetting(f"model is {str(model)!r}: with a picker no model picks; leave one of the two out")
    return pick_frames(
        source,
        picker=picker,
        budget=budget,
        exact=exact,
        num_frames=num_frames,
        settings=VideoConfig(),
        on_frame=on_frame,
    )
