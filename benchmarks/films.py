"""Films in which little happens, made of real clips, to test budgets on.

    python benchmarks/films.py --data MSVD --out FILMS [--seed 0]

Each of 20 films has five events, validation clips of 5 to 10 seconds, with one to three minutes of near-still footage
before, between and after them: a frozen frame with sensor noise and slowly changing light, encoded like the rest. Three
kinds of films alternate:

  camera   the frozen frame is always that of a sixth clip: events start and end with a cut
  after    the frozen frame is the last one of the event before: events end without a cut
  before   the frozen frame is the first one of the next event: events start without a cut

A JSON file beside each film lists when its events are shown. The films belong to the owners of the clips and stay out
of the repository.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import av
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from picknet.data.split import Clip, load_split
from picknet.files import write_text, written_whole
from picknet.video.file import Video

KINDS = ("camera", "after", "before")
NUM_FILMS = 20
NUM_EVENTS = 5
EVENT_SECONDS = (5.0, 10.0)
STILL_SECONDS = (60.0, 180.0)
FPS = 10
"""That of most clips."""
WIDTH, HEIGHT = 320, 240
CODECS = (("libx264", {"preset": "veryfast", "crf": "28"}), ("mpeg4", {"qmin": "6", "qmax": "12", "g": "60"}))
NOISE = (2.0, 5.0)
"""Standard deviation of the sensor noise of a film, in grey values."""
LIGHT = 0.2
"""Maximum relative change of the light in still footage."""

Planes = NDArray[np.uint8]
"""A picture as yuv420p: (HEIGHT * 3 / 2, WIDTH), the luma in the upper two thirds."""


@dataclass(frozen=True)
class Event:
    clip: str
    start: float
    end: float
    """Seconds; the first frame after the event is shown at `end`."""


@dataclass(frozen=True)
class Film:
    path: Path
    kind: str
    seconds: float
    events: tuple[Event, ...]

    def found(self, seconds: Sequence[float]) -> list[list[int]]:
        """For each event the indices of the frames, at these seconds, that show it."""
        return [[i for i, at in enumerate(seconds) if event.start <= at < event.end] for event in self.events]


@dataclass(frozen=True)
class Recipe:
    """How films are made."""

    still_seconds: tuple[float, float] = STILL_SECONDS
    codecs: tuple[tuple[str, dict[str, str]], ...] = CODECS
    shake: float = 0.0
    """Standard deviation in pixels of how far the camera moves while it shakes, a third of the time; 0: never."""


def make_films(
    data: Path,
    out: Path,
    *,
    num_films: int = NUM_FILMS,
    seed: int = 0,
    split: str = "val",
    recipe: Recipe = Recipe(),  # noqa: B008 (frozen)
) -> list[Film]:
    """The films from the clips of an MSVD folder; those already in `out` are not made again."""
    clips = load_split(data, dataset="msvd", split=split).clips
    suited = [clip for clip in clips if EVENT_SECONDS[0] <= _seconds(clip) <= EVENT_SECONDS[1]]
    out.mkdir(parents=True, exist_ok=True)
    films = []
    for number in range(num_films):
        path = out / f"{split}-{seed}-{number:02d}.mp4"
        index = path.with_suffix(".json")
        if not index.exists():
            film = _make(path, suited, KINDS[number % len(KINDS)], recipe, np.random.default_rng([seed, number]))
            write_text(index, json.dumps(asdict(film) | {"path": path.name}, indent=2) + "\n")
        content = json.loads(index.read_text(encoding="utf-8"))
        events = tuple(Event(**event) for event in content["events"])
        films.append(Film(path, content["kind"], content["seconds"], events))
    return films


def _seconds(clip: Clip) -> float:
    with Video(clip.path) as video:
        return video.seconds or 0.0


def _make(path: Path, clips: Sequence[Clip], kind: str, recipe: Recipe, chance: np.random.Generator) -> Film:
    *chosen, sixth = (clips[i] for i in chance.choice(len(clips), size=NUM_EVENTS + 1, replace=False))
    acts = [planes(clip) for clip in chosen]
    if kind == "camera":
        stills = [planes(sixth)[0]] * (NUM_EVENTS + 1)
    elif kind == "after":
        stills = [planes(sixth)[0], *(act[-1] for act in acts)]
    else:
        stills = [*(act[0] for act in acts), planes(sixth)[0]]

    sensor, lamp = _Sensor(chance), _Light(chance)
    hand = _Hand(recipe.shake, chance) if recipe.shake else None
    events: list[Event] = []

    def shown() -> Iterator[Planes]:
        num_frames = 0
        for place, still in enumerate(stills):
            quiet = [still] * int(chance.uniform(*recipe.still_seconds) * FPS)
            act = acts[place] if place < len(acts) else []
            if act:
                start = (num_frames + len(quiet)) / FPS
                events.append(Event(chosen[place].name, start, start + len(act) / FPS))
            for picture in (*quiet, *act):
                # Events and stills get the same noise, light and shaking.
                if hand:
                    picture = hand.moved(picture)
                yield sensor.noisy(lamp.on(picture, num_frames / FPS))
                num_frames += 1

    codec, options = recipe.codecs[int(chance.integers(len(recipe.codecs)))]
    seconds = write_video(path, shown(), codec=codec, options=options)
    return Film(path, kind, seconds, tuple(events))


def write_video(path: Path, pictures: Iterable[Planes], *, codec: str, options: dict[str, str]) -> float:
    """Encode the pictures, FPS of them a second. -> the video's seconds"""
    num_frames = 0
    with written_whole(path) as temporary, av.open(str(temporary), "w", format="mp4") as output:
        stream = output.add_stream(codec, rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        for picture in pictures:
            frame = av.VideoFrame.from_ndarray(picture, format="yuv420p")
            frame.pts, frame.time_base = num_frames, Fraction(1, FPS)
            output.mux(stream.encode(frame))
            num_frames += 1
        output.mux(stream.encode(None))
    return num_frames / FPS


def planes(clip: Clip) -> list[Planes]:
    """The clip resampled to FPS frames a second."""
    scaler = VideoReformatter()
    pictures: list[Planes] = []
    with av.open(str(clip.path)) as container:
        for frame in container.decode(video=0):
            while len(pictures) <= (frame.time or 0.0) * FPS:  # a clip of another rate loses or repeats frames
                pictures.append(scaler.reformat(frame, WIDTH, HEIGHT, format="yuv420p").to_ndarray())
    return pictures


class _Sensor:
    """Fresh noise for every frame: windows of one large field, since drawing it all would take hours."""

    def __init__(self, chance: np.random.Generator) -> None:
        self._chance = chance
        self._field = np.rint(chance.normal(0, chance.uniform(*NOISE), (4 * HEIGHT, 4 * WIDTH))).astype(np.int16)

    def noisy(self, picture: NDArray[Any]) -> Planes:
        height, width = picture.shape
        top, left = self._chance.integers(self._field.shape[0] - height), self._chance.integers(3 * WIDTH)
        noisy = picture + self._field[top : top + height, left : left + width]
        return np.clip(noisy, 0, 255).astype(np.uint8)


class _Light:
    """Light that changes over minutes: one wave for the whole picture, one that varies across it."""

    def __init__(self, chance: np.random.Generator) -> None:
        self._periods = chance.uniform(60, 300, size=2)
        self._phases = chance.uniform(0, 2 * math.pi, size=2)
        self._strengths = chance.uniform(0.2, 1.0, size=2) * LIGHT / 2
        self._across = np.linspace(-1, 1, WIDTH)

    def on(self, picture: Planes, seconds: float) -> NDArray[np.int16]:
        waves = self._strengths * np.sin(2 * math.pi * seconds / self._periods + self._phases)
        gain = 1 + waves[0] + waves[1] * self._across
        lit = picture.astype(np.int16)
        lit[:HEIGHT] = np.rint(16 + (lit[:HEIGHT] - 16) * gain.astype(np.float32))
        return lit


class _Hand:
    """A camera that shakes now and then: for 2 to 10 seconds, then not for 4 to 20."""

    def __init__(self, shake: float, chance: np.random.Generator) -> None:
        self._chance = chance
        self._shake = shake
        self._away = np.zeros(2)
        self._frames_left, self._is_shaking = 0, True

    def moved(self, picture: Planes) -> Planes:
        if self._frames_left == 0:
            self._is_shaking = not self._is_shaking
            seconds = self._chance.uniform(2, 10) if self._is_shaking else self._chance.uniform(4, 20)
            self._frames_left = int(seconds * FPS)
        self._frames_left -= 1
        push = self._chance.normal(0, 0.6 * self._shake, 2) if self._is_shaking else 0.0
        self._away = 0.8 * self._away + push
        down, right = (2 * int(step) for step in np.rint(self._away / 2))  # even, since chroma has half the size
        luma, chroma = picture[:HEIGHT], picture[HEIGHT:].reshape(2, HEIGHT // 2, WIDTH // 2)
        moved = _shifted(luma, down, right)
        colours = [_shifted(plane, down // 2, right // 2) for plane in chroma]
        return np.concatenate([moved, np.stack(colours).reshape(HEIGHT // 2, WIDTH)])


def _shifted(plane: Planes, down: int, right: int) -> Planes:
    """The plane moved; its edge is repeated where it leaves a gap."""
    rows = np.clip(np.arange(plane.shape[0]) - down, 0, plane.shape[0] - 1)
    columns = np.clip(np.arange(plane.shape[1]) - right, 0, plane.shape[1] - 1)
    return plane[rows[:, None], columns]


def sampled(film: Film, *, fps: float = 1.0) -> Iterator[Any]:
    """The film's frames as a stream samples them."""
    with Video(film.path) as video:
        yield from video.sample_by_time(fps=fps)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with MSVD's videos and captions")
    parser.add_argument("--out", type=Path, required=True, help="folder for the films, outside of the repository")
    parser.add_argument("--films", type=int, default=NUM_FILMS)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--split", default="val", help="train: films to develop on")
    arguments = parser.parse_args()
    for film in make_films(
        arguments.data, arguments.out, num_films=arguments.films, seed=arguments.seed, split=arguments.split
    ):
        print(f"{film.path}: {film.kind}, {film.seconds / 60:.1f} min, {[event.clip for event in film.events]}")


if __name__ == "__main__":
    main()
