"""From a source to frames and picks: opening it, sampling it, and dividing its frames into scenes."""

import contextlib
import itertools
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from picknet.config import ModelConfig, VideoConfig
from picknet.errors import BadSetting
from picknet.picking.budget import BudgetPicker
from picknet.picking.picker import Pick, Picker, Plan, glance_kind, likeliest, looks_ahead, planned
from picknet.results import Picked
from picknet.video.access import check_held
from picknet.video.file import Video
from picknet.video.frame import Frame, checked_fps, frames_from, middles
from picknet.video.live import Live
from picknet.video.source import Source, is_binary_file, is_http, is_live, locate
from picknet.video.sparse import LONG_SECONDS
from picknet.workers import num_cores, read_ahead

MAX_WAITING = 3
"""Frames that are decoded before a picker looks at them."""
SECONDS_A_PICK = 36.0
"""A long video is not decoded in full for a budget, unless that is larger: there would be little choice."""
SceneRule = Callable[[Frame], bool]
"""Called with every frame in turn: whether a new scene begins with it."""
OnFrame = Callable[[float], object]
"""Called with the seconds of every frame that is sampled."""
Sampling = Callable[[Video, Picker], tuple[Iterable[Frame], Picker]]
"""A video and a picker -> the frames to read, and the picker for these."""


class Walk:
    """The frames of a source on their way to a picker: counted, and scene by scene where scenes matter."""

    def __init__(
        self,
        name: str,
        frames: Iterable[Frame],
        picker: Picker,
        video: Video | Live | None = None,
        *,
        on_frame: OnFrame = lambda seconds: None,
    ) -> None:
        if not hasattr(picker, "pick"):
            example = "an object such as UniformPicker(k=4) of picknet.picking.plain is needed"
            raise BadSetting(f"picker is {picker!r}: {example}")
        self.name = name
        self.scene = 0
        """Number of the scene of the last frame read."""
        self._picker = picker
        self._frames = frames
        self._video = video
        self._on_frame = on_frame
        self._num_read = 0
        self._last = self._gap = 0.0

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._frames:
            self._on_frame(frame.seconds)
            self._gap = frame.seconds - self._last if self._num_read else 0.0
            self._last = frame.seconds
            self._num_read += 1
            yield frame

    def picks(self, frames: Iterable[Frame] | None = None) -> Iterator[tuple[Frame, Pick]]:
        """The picks among all frames, or among those of a scene."""
        return self._picker.pick(self if frames is None else frames)

    def shrunk(self, size: int) -> Iterator[Frame]:
        """The frames, for a picker that holds all of them before it picks: of large ones only a glance and
        `pixels(size)` are kept.
        """
        for frame in self:
            if frame.is_large:
                frame.shrink(size)
            yield frame

    def picks_read_again(self, count: int, size: int) -> list[tuple[Frame, Pick]]:
        """The picks of such a picker among the large frames of `evenly(count)`, at full size: they are read twice."""
        picks = {pick.index: pick for _, pick in self.picks(self.shrunk(size))}
        self.check_held(len(picks))
        assert isinstance(self._video, Video)
        frames = self._video.sample_evenly(count=count, only=picks)
        return [(frame, picks[frame.index]) for frame in frames if frame.index in picks]

    def watched(self, new_scene: SceneRule) -> Iterator[Frame]:
        """All frames; `scene` is counted as they pass."""
        for frame in self:
            self.scene += new_scene(frame)
            yield frame

    def scenes(self, new_scene: SceneRule, *, delay: int = 0) -> Iterator[Iterator[Frame]]:
        """The frames of one scene after the other, each as it is read; a scene is over when the next one has begun.

        delay: number of frames of a new scene before the one at which the rule fires. As many are held back.
        """

        def delayed() -> Iterator[Frame]:
            held: deque[Frame] = deque()
            for frame in self.watched(new_scene):
                held.append(frame)
                if len(held) > delay:
                    yield held.popleft()
            yield from held

        return (scene for _, scene in itertools.groupby(delayed(), key=lambda _: self.scene))

    @property
    def frames_seen(self) -> int:
        """Frames sampled so far, including those that a plan does not need to read."""
        return self._picker.count if isinstance(self._picker, Plan) else self._num_read

    def check_held(self, num_frames: int) -> None:
        """Raise `BadSetting` where so many of its frames would not fit into memory."""
        if isinstance(self._video, Video):
            check_held(num_frames, self._video.width, self._video.height, self.name)

    @property
    def holds_large_pictures(self) -> bool:
        """Whether its picker would hold all frames of a video, each of which takes much memory."""
        is_large = isinstance(self._video, Video) and self._video.has_large_pictures
        return is_large and looks_ahead(self._picker)

    @property
    def damage(self) -> str | None:
        return self._video.damage if self._video else None

    @property
    def seconds(self) -> float | None:
        """Length of the video; None where it is unknown."""
        return self._video.seconds if isinstance(self._video, Video) else None

    @property
    def width(self) -> int | None:
        """Pixels of an upright frame, as is `height`; None where the source is not a video file."""
        return self._video.width if isinstance(self._video, Video) else None

    @property
    def height(self) -> int | None:
        return self._video.height if isinstance(self._video, Video) else None

    def end(self, step: float) -> float:
        """When the last frame ends: the video's length, or for cut files and frames one more gap after the last frame.

        step: seconds that a single frame lasts.
        """
        length = self._video.length if isinstance(self._video, Video) and not self.damage else 0.0
        return length if length > self._last else self._last + (self._gap or step)


# --- Sampling ---


def checked_num_frames(num_frames: int | None, settings: VideoConfig) -> int:
    count = settings.num_frames if num_frames is None else num_frames
    if count < 1:
        raise BadSetting(f"num_frames is {count}: at least 1 frame is needed")
    return count


def evenly(count: int) -> Sampling:
    """`count` evenly spaced frames; for a picker that plans ahead, only those it will pick."""

    def sample(video: Video, picker: Picker) -> tuple[Iterable[Frame], Picker]:
        plan = planned(picker, video.num_samples(count))
        return video.sample_evenly(count=count, only=plan.probabilities if plan else None), plan or picker

    return sample


def by_time(fps: float) -> Sampling:
    fps = checked_fps(fps)
    return lambda video, picker: (video.sample_by_time(fps=fps), picker)


def _for_budget(budget: int) -> Sampling:
    """A frame a second, so that nothing is missed. Of a short video more, so that there is a choice; of a long one
    fewer where little seems to happen.
    """
    least = max(VideoConfig().num_frames, 2 * budget)

    def sample(video: Video, picker: Picker) -> tuple[Iterable[Frame], Picker]:
        if video.length > max(LONG_SECONDS, SECONDS_A_PICK * budget):
            return video.sample_sparsely(), picker
        return video.sample_by_time(fps=max(1.0, least / video.length) if video.length else 1.0), picker

    return sample


def _sampled_array(frames: NDArray[Any], count: int, *, fps: float = 1.0) -> Iterator[Frame]:
    """frames: (n, H, W, 3) uint8 -> at most `count` evenly spaced ones, as `Video.sample_evenly` takes them"""
    for index, position in enumerate(middles(len(frames), count)):
        yield Frame.from_pixels(frames[position], index=index, seconds=position / fps)


# --- Opening ---


class EndlessSource(BadSetting):
    """A live source where a finite one is needed."""


def check_finite(source: Source | Live | Video) -> None:
    """Refuse cameras, pipes and network streams."""
    if _is_endless(source):
        raise EndlessSource(f"{source_name(source)}: a live source, which may have no end; `stream` describes those")


def _is_endless(source: Source | Live | Video) -> bool:
    # Of an http(s) address, `Video` finds out whether it is finite.
    return source.is_live if isinstance(source, Live) else is_live(source) and not is_http(source)


def source_name(source: Source | Live | Video) -> str:
    """What results and messages call a source; the password of an address is hidden."""
    if isinstance(source, Live | Video):
        return source.name
    if isinstance(source, str | os.PathLike | int):
        return locate(source).name
    if isinstance(source, bytes | bytearray):
        return "bytes"
    if is_binary_file(source):
        name = getattr(source, "name", None)
        return name if isinstance(name, str) else "file"
    return "frames"


@contextlib.contextmanager
def open_source(
    source: Source | Live | Video,
    sampling: Sampling,
    picker: Picker,
    *,
    fps: float = 1.0,
    array_samples: int | None = None,
    shares_cores: bool = False,
    on_frame: OnFrame = lambda seconds: None,
) -> Iterator[Walk]:
    """A finite source, open within the block: a video sampled by `sampling`, or all frames that are given.

    A `Video` stays open: it belongs to the caller, who opened it with the picker's kind of glance.

    fps: rate of frames that are given as arrays. array_samples: evenly spaced frames to take of one array.
    shares_cores: whether the CNN works on picks while the next frames are decoded.
    """
    check_finite(source)
    if isinstance(source, Live):
        with source:
            yield Walk(source.name, source, picker, source, on_frame=on_frame)
        return
    if isinstance(source, Video):
        yield Walk(source.name, *sampling(source, picker), source, on_frame=on_frame)
        return
    if isinstance(source, str | os.PathLike | bytes | bytearray) or is_binary_file(source):
        with Video(source, glance=glance_kind(picker), shares_cores=shares_cores) as video:
            frames, chosen = sampling(video, picker)
            if num_cores() == 1 or video.has_large_pictures:
                yield Walk(video.name, frames, chosen, video, on_frame=on_frame)
                return
            # Frames are decoded while others are looked at.
            with contextlib.closing(read_ahead(frames, count=MAX_WAITING)) as decoded:
                yield Walk(video.name, decoded, chosen, video, on_frame=on_frame)
        return
    if isinstance(source, np.ndarray) and source.ndim == 4 and array_samples:
        frames = _sampled_array(source, array_samples, fps=fps)
    else:
        frames = frames_from(cast("Iterable[Frame | NDArray[np.uint8]]", source), fps=fps)
    yield Walk("frames", frames, picker, on_frame=on_frame)


# --- Picking ---


def pick_frames(
    source: Source | Live | Video,
    *,
    picker: Picker | None,
    budget: int | None,
    exact: bool,
    num_frames: int | None,
    settings: VideoConfig,
    on_frame: OnFrame,
    budget_picker: Callable[..., BudgetPicker] = BudgetPicker,
    image_size: int = ModelConfig().image_size,
) -> Picked:
    """The frames that a picker picks, within a budget if there is one; without a picker, those of a `BudgetPicker`.

    image_size: of the pictures that a picker may look at beside glances.
    """
    if budget is not None and budget < 1:
        raise BadSetting(f"budget is {budget}: 1 frame or more is possible")
    if exact and (budget is None or picker is not None):
        raise BadSetting("exact is True: it needs a budget, and no picker beside it")
    count = checked_num_frames(num_frames, settings)
    sampling = evenly(count)
    array_samples: int | None = count
    if picker is not None:
        chosen = picker
    elif budget is not None:
        chosen = budget_picker(budget, exact=exact)
        if num_frames is None:
            sampling, array_samples = _for_budget(budget), None
    else:
        raise BadSetting("neither a picker nor a budget is given: one of them is needed")
    if not isinstance(source, Video) and picker is None and not exact and (isinstance(source, Live) or is_live(source)):
        opened = _follow(source, chosen, on_frame=on_frame)
    elif _is_endless(source):
        refused = "a picker" if picker is not None else "exact"
        name = source_name(source)
        raise EndlessSource(f"{name}: a live source, which may have no end; pick with a budget, not with {refused}")
    else:
        opened = open_source(source, sampling, chosen, array_samples=array_samples, on_frame=on_frame)
    with opened as walk:
        if picker is not None and walk.holds_large_pictures:
            kept = walk.picks_read_again(count, image_size)
        else:
            walk.check_held(count if budget is None or picker is not None else budget + 1)
            kept = list(walk.picks())
        if exact and len(kept) != budget:
            raise BadSetting(f"{walk.name}: exactly {budget} frames were asked for, but it has {walk.frames_seen}")
        if budget is not None and picker is not None:
            kept = _within(budget, kept)
        return Picked(tuple(kept), walk.frames_seen, walk.damage, walk.name)


def _within(budget: int, picks: list[tuple[Frame, Pick]]) -> list[tuple[Frame, Pick]]:
    """At most `budget` of the picks, in order: those with the highest probabilities; if none has one, those that a
    `BudgetPicker` keeps.
    """
    if len(picks) <= budget:
        return picks
    if any(pick.probability is not None for _, pick in picks):
        return likeliest(picks, budget)
    chosen = {pick.index for _, pick in BudgetPicker(budget, exact=True).pick(frame for frame, _ in picks)}
    return [item for item in picks if item[1].index in chosen]


@contextlib.contextmanager
def _follow(source: Source | Live, picker: Picker, *, on_frame: OnFrame) -> Iterator[Walk]:
    """The frames of a live source, one a second, until it ends."""
    with source if isinstance(source, Live) else Live(source, glance=glance_kind(picker)) as live:
        yield Walk(live.name, live, picker, live, on_frame=on_frame)
