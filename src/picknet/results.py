"""What a captioner returns: frozen dataclasses with JSON, a readable repr, and HTML for notebooks."""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from picknet.model.confidence import written
from picknet.model.sentences import Sentence, Signals
from picknet.picking.picker import Pick
from picknet.timecode import clock
from picknet.video.file import Video
from picknet.video.frame import Frame, middles

if TYPE_CHECKING:
    from picknet.show.frames import PickedFrame
    from picknet.show.page import Picture, Thumbnail

MAX_TIMES = 8
"""Times of picks that a `repr` lists; the rest is counted."""


@dataclass(frozen=True)
class Description:
    """What is written about picked frames."""

    picks: tuple[Pick, ...]
    sentences: tuple[Sentence, ...]
    """The caption first."""
    signals: Signals
    confidence: float | None
    not_sure: str | None
    """As in `Caption`."""
    num_scenes: int

    @property
    def text(self) -> str:
        return "" if self.not_sure else self.sentences[0].text


class _MayBeUnsure:
    """What all results with a sentence can say for people. Their fields:"""

    text: str
    confidence: float | None
    not_sure: str | None

    @property
    def display_text(self) -> str:
        """The text, or `not sure (0.31)`."""
        if not self.not_sure:
            return self.text
        return "not sure" if self.confidence is None else f"not sure ({written(self.confidence)})"

    def _quoted(self) -> str:
        return "not sure" if self.not_sure else repr(self.text)


@dataclass(frozen=True, repr=False)
class Caption(_MayBeUnsure):
    """What a video shows, and the frames that the sentence was written from."""

    text: str
    """Empty where there is an error, or where the model is not sure."""
    picks: tuple[Pick, ...]
    frames_seen: int
    """Frames sampled from the video; `picks` are those among them that went through the CNN."""
    video: str
    """The path, the address without its password, "bytes", or "frames"."""
    model: str
    damage: str | None
    """What was wrong with the video, when only a part of it could be read."""
    log_probability: float
    confidence: float | None = None
    """Probability that the text is good, 0 to 1; None where the model is not calibrated for the style."""
    candidates: tuple[Sentence, ...] = ()
    """Different sentences, the caption first, then in order of falling probability."""
    seconds: float | None = None
    """Length of the video; None where it is unknown."""
    num_scenes: int = 1
    """Scenes that the picks show, told by their glances alone: cuts between neighbouring picks, plus one."""
    error: str | None = None
    """From `caption_many`: why this video has no caption."""
    not_sure: str | None = None
    """Why there is no text and no candidate: a confidence below `min_confidence`, or nothing but blank frames."""
    width: int | None = None
    height: int | None = None
    """Pixels of an upright frame; None where the source is not a video file."""

    @property
    def num_picks(self) -> int:
        return len(self.picks)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON types. All keys are always present."""
        return {
            "video": self.video,
            "caption": self.text,
            "confidence": self.confidence,
            "not_sure": self.not_sure,
            **_picks_dict(self.picks),
            "frames_seen": self.frames_seen,
            "seconds": _rounded(self.seconds),
            "width": self.width,
            "height": self.height,
            "model": self.model,
            "candidates": [sentence.to_dict() for sentence in self.candidates],
            "damage": self.damage,
            "error": self.error,
        }

    def __repr__(self) -> str:
        if self.error is not None:
            return f"Caption(video={self.video!r}, error={self.error!r})"
        return f"Caption({self._quoted()}, {_facts(self.confidence, self.picks)})"

    def _repr_html_(self) -> str:
        return _html(self.display_text, self.confidence, self.picks, self.video, self.error)


@dataclass(frozen=True, repr=False)
class Update(_MayBeUnsure):
    """The caption of a stream so far, after one more pick."""

    seconds: float
    """Time of the newest pick."""
    text: str
    changed: bool
    """Whether the text differs from the update before."""
    picks: tuple[Pick, ...]
    """Picks of the scene that are still in memory, the newest last."""
    frames_seen: int
    total_picks: int
    """Picks of the whole stream so far, of which `picks` are the last."""
    confidence: float | None = None
    """As in `Caption`."""
    scene: int = 0
    """Number of the scene that the text is about, from 0; each scene starts with an empty memory."""
    lag: float | None = None
    """Seconds from the frame's arrival to this update; None for a source that waits for the reader."""
    damage: str | None = None
    """What could not be read so far."""
    video: str = ""
    model: str = ""
    not_sure: str | None = None
    """As in `Caption`."""

    @property
    def num_picks(self) -> int:
        return len(self.picks)

    @property
    def pick(self) -> Pick:
        """The newest pick."""
        return self.picks[-1]

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON types. All keys are always present."""
        return {
            "video": self.video,
            "seconds": _rounded(self.seconds),
            "caption": self.text,
            "changed": self.changed,
            "confidence": self.confidence,
            "not_sure": self.not_sure,
            **_picks_dict(self.picks),
            "total_picks": self.total_picks,
            "frames_seen": self.frames_seen,
            "scene": self.scene,
            "lag": _rounded(self.lag),
            "model": self.model,
            "damage": self.damage,
        }

    def __repr__(self) -> str:
        facts = _facts(self.confidence, self.picks)
        return f"Update({self.seconds:.1f} s, {self._quoted()}, {facts}, scene={self.scene}, changed={self.changed})"

    def _repr_html_(self) -> str:
        return _html(f"{clock(self.seconds)}  {self.display_text}", self.confidence, self.picks, self.video)


@dataclass(frozen=True, repr=False)
class Segment(_MayBeUnsure):
    """A part of a video and its caption."""

    start: float
    end: float
    """Seconds; the next segment starts where this one ends."""
    text: str
    confidence: float | None
    """As in `Caption`."""
    picks: tuple[Pick, ...]
    """The frames that the text was written from."""
    damage: str | None = None
    """What of the video could not be read so far."""
    video: str = ""
    model: str = ""
    not_sure: str | None = None
    """As in `Caption`."""
    cuts: tuple[float, ...] = ()
    """Seconds at which another scene begins within it: one that is described alike, or too short to be read."""
    continues: bool = False
    """Whether it begins in the scene of the segment before: a later part of a long one."""

    @property
    def seconds(self) -> float:
        return self.end - self.start

    @property
    def num_picks(self) -> int:
        return len(self.picks)

    def to_dict(self) -> dict[str, Any]:
        """The result as JSON types. All keys are always present."""
        return {
            "video": self.video,
            "start": _rounded(self.start),
            "end": _rounded(self.end),
            "caption": self.text,
            "confidence": self.confidence,
            "not_sure": self.not_sure,
            **_picks_dict(self.picks),
            "model": self.model,
            "damage": self.damage,
        }

    def __repr__(self) -> str:
        return f"Segment({self.start:.1f}-{self.end:.1f} s, {self._quoted()}, {_facts(self.confidence, self.picks)})"

    def _repr_html_(self) -> str:
        times = f"{clock(self.start)}-{clock(self.end)}"
        return _html(f"{times}  {self.display_text}", self.confidence, self.picks, self.video)


@dataclass(frozen=True, repr=False)
class Picked:
    """The picked frames of a video in the decoder's pixel format, which takes half the memory of an image."""

    frames: tuple[tuple[Frame, Pick], ...]
    frames_seen: int
    damage: str | None
    """As in `Caption`."""
    video: str = ""

    @property
    def picks(self) -> tuple[Pick, ...]:
        return tuple(pick for _, pick in self.frames)

    @property
    def num_picks(self) -> int:
        return len(self.frames)

    def images(self) -> "Iterator[PickedFrame]":
        """The frames one by one as PIL images, full size and upright."""
        from picknet.show.frames import PickedFrame

        for frame, pick in self.frames:
            yield PickedFrame(frame.pixels(), pick)

    def to_dict(self) -> dict[str, Any]:
        """What was picked, without the pixels, as JSON types. All keys are always present."""
        return {
            "video": self.video,
            **_picks_dict(self.picks),
            "frames_seen": self.frames_seen,
            "damage": self.damage,
        }

    def __repr__(self) -> str:
        return f"Picked({_facts(None, self.picks)}, frames_seen={self.frames_seen})"

    def _repr_html_(self) -> str:
        title = f"{self.num_picks} picks of {self.frames_seen} frames"
        return _page(title, [self.video], [frame for frame, _ in self.frames])


def _picks_dict(picks: Sequence[Pick]) -> dict[str, Any]:
    return {"num_picks": len(picks), "picks": [pick.to_dict() for pick in picks]}


def _rounded(seconds: float | None) -> float | None:
    # Beyond a microsecond there is only the noise of binary fractions.
    return None if seconds is None else round(seconds, 6)


def _facts(confidence: float | None, picks: Sequence[Pick]) -> str:
    """confidence=0.73, picks at 0.2, 1.4, 3.0 s"""
    sure = [] if confidence is None else [f"confidence={written(confidence)}"]
    times = ", ".join(f"{pick.seconds:.1f}" for pick in picks[:MAX_TIMES])
    more = f" and {len(picks) - MAX_TIMES} more" if len(picks) > MAX_TIMES else ""
    return ", ".join([*sure, f"picks at {times} s{more}" if picks else "no picks"])


# --- Notebooks ---


def _html(
    title: str, confidence: float | None, picks: Sequence[Pick], video: str, error: str | None = None
) -> str:
    """A result with small copies of its picks, which are read again from the file: a result itself holds no pixels."""
    lines = [video]
    if error is not None:
        return _page("no caption", [error], [])
    if confidence is not None:
        lines.append(f"confidence {written(confidence)}")
    frames: list[Thumbnail] = []
    try:
        frames = _read_again(video, picks)
    except Exception as problem:  # noqa: BLE001 - the HTML must not fail because the file is gone or damaged
        lines.append(f"The picked frames cannot be shown: {problem}")
    if not frames:
        lines.append(_facts(None, picks))
    return _page(title, lines, frames)


def _page(title: str, lines: Sequence[str], frames: "Sequence[Picture]") -> str:
    from picknet.show.notebook import html

    return html(title, [line for line in lines if line], frames)


def _read_again(video: str, picks: Sequence[Pick]) -> "list[Thumbnail]":
    """The picked frames of a file, or some of many, by their numbers; none if the source was not a file, or is gone."""
    from picknet.show.notebook import MAX_IMAGES, MAX_SIDE
    from picknet.show.page import Thumbnail

    numbers = sorted({pick.frame_number for pick in picks if pick.frame_number is not None})
    if not numbers or not Path(video).is_file():
        return []
    shown = {numbers[position] for position in middles(len(numbers), MAX_IMAGES)}
    with Video(video) as opened:
        # With more samples than there are frames, the index of each is its number.
        found = opened.sample_evenly(count=sys.maxsize, only=shown)
        return [Thumbnail.of(frame, max_side=MAX_SIDE) for frame in found if frame.number in shown]
