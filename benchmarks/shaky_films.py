"""The films of glances.py: five events in five minutes of noise, changing light and a camera that shakes now and then.

They are simpler than those of films.py, so that what a kind of glance tells does not depend on many things at once. Of
the first, second and third film by turns the stills show another clip, the event before, or the event after.
"""

import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from films import CUTS, EVENT_SECONDS, FPS, HEIGHT, NUM_EVENTS, WIDTH, Planes, planes, write_video
from numpy.typing import NDArray

from picknet.data.split import Clip, load_split
from picknet.study.films import Film, Part, read_films
from picknet.video.file import Video

STILL_SECONDS = (25.0, 65.0)
CONSTANT_QUALITY = {"preset": "veryfast", "crf": "28"}
NOISE = (2.0, 5.0)
"""Standard deviation of the sensor noise of a film, in grey values."""
LIGHT = 0.2
"""Maximum relative change of the light."""
SHAKE = 2.0
"""Standard deviation, in pixels, of how far the camera moves while it shakes."""


def make_shaky_films(data: Path, out: Path, *, num_films: int, seed: int, options: dict[str, str]) -> list[Film]:
    """H.264 films of MSVD's training clips; those already in `out` are not made again. options: of the encoder."""
    clips = load_split(data, dataset="msvd", split="train").clips
    suited = [clip for clip in clips if EVENT_SECONDS[0] <= _seconds(clip) <= EVENT_SECONDS[1]]
    out.mkdir(parents=True, exist_ok=True)
    for number in range(num_films):
        path = out / f"train-{seed}-{number:02d}.mp4"
        if not path.with_suffix(".json").exists():
            cut, chance = CUTS[number % len(CUTS)], np.random.default_rng([seed, number])
            _make(path, suited, cut, options, chance).write()
    return read_films(out)[:num_films]


def _seconds(clip: Clip) -> float:
    with Video(clip.path) as video:
        return video.seconds or 0.0


def _make(path: Path, clips: Sequence[Clip], cut: str, options: dict[str, str], chance: np.random.Generator) -> Film:
    *chosen, sixth = (clips[i] for i in chance.choice(len(clips), size=NUM_EVENTS + 1, replace=False))
    acts = [planes(clip) for clip in chosen]
    other = planes(sixth)[0]
    stills = {
        "camera": [other] * (NUM_EVENTS + 1),
        "after": [other, *(act[-1] for act in acts)],
        "before": [*(act[0] for act in acts), other],
    }[cut]
    sensor, lamp, hand = _Sensor(chance), _Light(chance), _Hand(chance)
    events: list[Part] = []
    quiet: list[Part] = []

    def shown() -> Iterator[Planes]:
        num_frames = 0
        for place, still in enumerate(stills):
            num_still = int(chance.uniform(*STILL_SECONDS) * FPS)
            act = acts[place] if place < len(acts) else []
            start, end = (num_frames + num_still) / FPS, (num_frames + num_still + len(act)) / FPS
            quiet.append(Part(num_frames / FPS, start, ("shaky",)))
            if act:
                events.append(Part(start, end, ("shaky",), chosen[place].name))
            for picture in (*[still] * num_still, *act):
                # Events and stills get the same noise, light and shaking.
                yield sensor.noisy(lamp.on(hand.moved(picture), num_frames / FPS))
                num_frames += 1

    seconds = write_video(path, shown(), codec="libx264", options=options)
    codec = " ".join(["libx264", *(f"{name}={value}" for name, value in options.items())])
    return Film(path, "msvd", "train", seconds, cut, codec, tuple(events), tuple(quiet))


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

    def __init__(self, chance: np.random.Generator) -> None:
        self._chance = chance
        self._away = np.zeros(2)
        self._frames_left, self._is_shaking = 0, True

    def moved(self, picture: Planes) -> Planes:
        if self._frames_left == 0:
            self._is_shaking = not self._is_shaking
            seconds = self._chance.uniform(2, 10) if self._is_shaking else self._chance.uniform(4, 20)
            self._frames_left = int(seconds * FPS)
        self._frames_left -= 1
        push = self._chance.normal(0, 0.6 * SHAKE, 2) if self._is_shaking else 0.0
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
