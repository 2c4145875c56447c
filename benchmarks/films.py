"""Films in which little happens, made of real clips, to test pickers on.

    python benchmarks/films.py --data MSVD --out FILMS [--films 20] [--seed 0] [--split train] [--kinds rain,snow]
    python benchmarks/films.py --data MSRVTT --dataset msrvtt --split all --out FILMS

A film has five events, clips of 5 to 10 seconds, in 5 to 12 minutes. Before, between and after them it shows stills in
which something moves or changes that nobody would call an event: one of `QUIET`, and in every second film another one
in each stretch. Kinds that belong to the camera or the place go on during the events. What the stills show changes from
film to film:

  camera   always a frame of a sixth clip: events start and end with a cut
  after    the last frame of the event before: events end without a cut
  before   the first frame of the next event: events start without a cut

Every fifth film is a quarter of an hour of plain frozen stills. Some stretches fade from black and to black, some are
missing ("back to back"), and in some films an event happens twice. A JSON file beside each film says what is where (see
`picknet/study/films.py`). The same arguments make the same films. They belong to the owners of the clips and stay out
of the repository. Needs the `bench` extra.
"""

import argparse
import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any

import av
import cv2
import numpy as np
from av.video.reformatter import VideoReformatter
from numpy.typing import NDArray

from picknet.data.split import Clip, load_split
from picknet.files import written_whole
from picknet.study.films import Film, Part, read_films
from picknet.video.file import Video

NUM_FILMS = 20
NUM_EVENTS = 5
EVENT_SECONDS = (5.0, 10.0)
FILM_SECONDS = (300.0, 720.0)
STILLS_SECONDS = 900.0
"""Length of a film of plain stills."""
MIN_STRETCH_SECONDS = 8.0
CUTS = ("camera", "after", "before")
FPS = 10
"""That of most clips."""
WIDTH, HEIGHT = 320, 240
CODECS = (
    ("libx264", {"preset": "veryfast", "crf": "28", "g": "250"}),
    ("mpeg4", {"qmin": "6", "qmax": "12", "g": "60"}),
    ("libx264", {"preset": "superfast", "crf": "23", "g": "20"}),
    ("mpeg4", {"qmin": "14", "qmax": "28", "g": "12"}),
    ("libx264", {"preset": "veryfast", "crf": "36", "g": "50"}),
    ("mpeg4", {"qmin": "3", "qmax": "6", "g": "300"}),
)

Array = NDArray[Any]
Planes = NDArray[np.uint8]
"""A picture as yuv420p: (HEIGHT * 3 / 2, WIDTH), the luma in the upper two thirds."""
Effect = Callable[[Planes, float], Planes]
"""A picture and the seconds since the effect began -> a new picture with the effect."""
Chance = np.random.Generator


# --- What a camera sees while nothing happens: each makes an `Effect` that lasts some seconds ---


def noise(chance: Chance, seconds: float, strength: tuple[float, float] = (2, 5)) -> Effect:
    """Sensor noise: windows of one large field, since drawing it all would take hours."""
    field = np.rint(chance.normal(0, chance.uniform(*strength), (4 * HEIGHT, 4 * WIDTH))).astype(np.int16)

    def apply(picture: Planes, at: float) -> Planes:
        top, left = chance.integers(2 * HEIGHT), chance.integers(3 * WIDTH)
        window = field[top : top + len(picture), left : left + WIDTH]
        return np.asarray(cv2.add(picture, window, dtype=cv2.CV_8U))

    return apply


def light(chance: Chance, seconds: float) -> Effect:
    """Light that drifts over minutes: one wave for the whole picture, one that varies across it."""
    periods, phases = chance.uniform(40, 300, size=2), chance.uniform(0, 2 * math.pi, size=2)
    strengths = chance.uniform(0.05, 0.2, size=2)
    across = np.linspace(-1, 1, WIDTH)

    def apply(picture: Planes, at: float) -> Planes:
        waves = strengths * np.sin(2 * math.pi * at / periods + phases)
        return _lit(picture, 1 + waves[0] + waves[1] * across)

    return apply


def shake(chance: Chance, seconds: float) -> Effect:
    """A hand-held camera, or one in the wind."""
    sizes, speeds = chance.uniform(1, 7, size=(3, 2)), chance.uniform(0.1, 2.5, size=(3, 2))
    turn = chance.uniform(0, 1.2)

    def apply(picture: Planes, at: float) -> Planes:
        waves = np.sin(2 * math.pi * speeds * at + np.arange(6).reshape(3, 2))
        x, y = (sizes * waves).sum(axis=0) / 2
        return _moved(picture, x + chance.normal(0, 0.5), y, turn=turn * waves[0, 0], zoom=1.04)

    return apply


def flicker(chance: Chance, seconds: float) -> Effect:
    """A lamp against the shutter; some lamps also fail for moments."""
    speed, depth, failing = chance.uniform(0.6, 4.9), chance.uniform(0.05, 0.2), chance.choice([0, 0.02])

    def apply(picture: Planes, at: float) -> Planes:
        gain = 1 + depth * math.sin(2 * math.pi * speed * at) * chance.uniform(0.5, 1)
        return _lit(picture, gain * (0.55 if chance.random() < failing else 1))

    return apply


def rain(chance: Chance, seconds: float) -> Effect:
    field, slant = np.zeros((2 * HEIGHT, 2 * WIDTH), np.uint8), chance.uniform(-6, 6)
    for _ in range(int(chance.uniform(200, 1000))):
        x, y, long = chance.uniform(0, 2 * WIDTH), chance.uniform(0, 2 * HEIGHT), chance.uniform(8, 26)
        end = int(x + slant * long / 20), int(y + long)
        cv2.line(field, (int(x), int(y)), end, int(chance.uniform(25, 90)), 1)

    def apply(picture: Planes, at: float) -> Planes:
        top, left = chance.integers(HEIGHT), chance.integers(WIDTH)
        return _with_luma(picture, cv2.add(picture[:HEIGHT], field[top : top + HEIGHT, left : left + WIDTH]))

    return apply


def snow(chance: Chance, seconds: float) -> Effect:
    layers = []
    for radius in (1, 2, 3):
        field = np.zeros((HEIGHT, WIDTH), np.uint8)
        for x, y in chance.integers((WIDTH, HEIGHT), size=(int(chance.uniform(15, 160) / radius), 2)).tolist():
            cv2.circle(field, (x, y), radius, int(chance.uniform(80, 200)), -1)
        layers.append((np.tile(field, (2, 2)), 25 * radius * chance.uniform(0.7, 2), chance.uniform(-20, 20)))

    def apply(picture: Planes, at: float) -> Planes:
        luma = picture[:HEIGHT]
        for field, fall, drift in layers:
            luma = cv2.add(luma, _window(field, -fall * at, drift * at + 6 * math.sin(at + fall)))
        return _with_luma(picture, luma)

    return apply


def sway(chance: Chance, seconds: float) -> Effect:
    """Leaves, curtains or water: a part of the picture is warped by waves."""
    where = _blob(chance.uniform(0, WIDTH), chance.uniform(0, HEIGHT), chance.uniform(40, 140)).astype(np.float32)
    y, x = np.mgrid[0:HEIGHT, 0:WIDTH].astype(np.float32)
    waves = [(chance.uniform(0.2, 1.2), *chance.uniform(-0.08, 0.08, size=2), chance.uniform(1, 4)) for _ in range(3)]
    sines = [(speed, size, np.float32(2 * math.pi) * (a * x + b * y)[::4, ::4]) for speed, a, b, size in waves]

    def apply(picture: Planes, at: float) -> Planes:
        shift = [size * np.sin(phase + 2 * math.pi * speed * at) for speed, size, phase in sines]
        along, across = (
            cv2.resize(one.astype(np.float32), (WIDTH, HEIGHT)) * where for one in (shift[0] + shift[1], shift[2])
        )
        return _with_luma(picture, cv2.remap(picture[:HEIGHT], x + along, y + across, cv2.INTER_LINEAR))

    return apply


def fan(chance: Chance, seconds: float) -> Effect:
    """Blades that turn in a corner."""
    radius, turns, blades = int(chance.uniform(18, 45)), chance.uniform(0.1, 2), int(chance.integers(2, 5))
    x, y = _corner(chance, radius, radius)
    tone, ground = chance.uniform(120, 220), chance.uniform(30, 90)

    def apply(picture: Planes, at: float) -> Planes:
        luma = picture[:HEIGHT].copy()
        cv2.circle(luma, (x, y), radius, ground, -1)
        for blade in range(blades):
            angle = 360 * (turns * at + blade / blades)
            cv2.ellipse(luma, (x, y), (radius - 3, radius - 3), angle, 0, 180 / blades, tone, -1)
        return _with_luma(picture, luma)

    return apply


def screen(chance: Chance, seconds: float) -> Effect:
    """A display, a sign or a blinking light in a corner."""
    width, height = int(chance.uniform(16, 80)), int(chance.uniform(12, 60))
    x, y = _corner(chance, width / 2, height / 2)
    shown = chance.uniform(0, 255, size=(7, 4, 5)).astype(np.uint8)
    contents = [cv2.resize(one, (width, height), interpolation=cv2.INTER_NEAREST) for one in shown]
    every = chance.uniform(0.3, 4)

    def apply(picture: Planes, at: float) -> Planes:
        luma = picture[:HEIGHT].copy()
        top, left = max(y - height // 2, 0), max(x - width // 2, 0)
        luma[top : top + height, left : left + width] = contents[int(at / every) % len(contents)]
        return _with_luma(picture, luma)

    return apply


def clock(chance: Chance, seconds: float) -> Effect:
    """Running digits, as recorders write them into the picture."""
    start, size = chance.uniform(0, 86400), chance.uniform(0.4, 0.9)
    corner = int(chance.uniform(4, 60)), int(chance.choice([24, HEIGHT - 8]))
    boxed = chance.random() < 0.5

    def apply(picture: Planes, at: float) -> Planes:
        luma, now = picture[:HEIGHT].copy(), start + at
        text = f"{int(now // 3600) % 24:02d}:{int(now // 60) % 60:02d}:{int(now) % 60:02d}.{int(10 * now) % 10}"
        (width, height), _ = cv2.getTextSize(text, cv2.FONT_HERSHEY_SIMPLEX, size, 1)
        if boxed:
            cv2.rectangle(luma, (corner[0] - 3, corner[1] + 4), (corner[0] + width, corner[1] - height - 3), 16, -1)
        cv2.putText(luma, text, corner, cv2.FONT_HERSHEY_SIMPLEX, size, 230, 1, cv2.LINE_AA)
        return _with_luma(picture, luma)

    return apply


def ticker(chance: Chance, seconds: float) -> Effect:
    """Text that scrolls along an edge."""
    strip = np.full((22, 1600), int(chance.uniform(16, 110)), np.uint8)
    words = " ".join("".join(chr(97 + one) for one in chance.integers(26, size=6)) for _ in range(18))
    cv2.putText(strip, words, (2, 16), cv2.FONT_HERSHEY_SIMPLEX, 0.55, 235, 1, cv2.LINE_AA)
    top, speed = int(chance.choice([4, HEIGHT - 26])), chance.uniform(20, 90)

    def apply(picture: Planes, at: float) -> Planes:
        luma, left = picture[:HEIGHT].copy(), int(speed * at) % (strip.shape[1] - WIDTH)
        luma[top : top + len(strip)] = strip[:, left : left + WIDTH]
        return _with_luma(picture, luma)

    return apply


def exposure(chance: Chance, seconds: float) -> Effect:
    """A camera that hunts for the right exposure now and then."""
    bursts, period = _moments(chance, seconds, (12, 45)), chance.uniform(1.5, 6)
    size, calm = chance.uniform(0.25, 0.6), chance.uniform(2, 6)

    def apply(picture: Planes, at: float) -> Planes:
        since = _since(bursts, at)
        return _lit(picture, math.exp(size * math.sin(2 * math.pi * since / period) * math.exp(-since / calm)))

    return apply


def focus(chance: Chance, seconds: float) -> Effect:
    """A camera that hunts for focus now and then."""
    bursts, long, size = _moments(chance, seconds, (12, 45)), chance.uniform(1.5, 6), chance.uniform(1.5, 5)

    def apply(picture: Planes, at: float) -> Planes:
        blur = size * math.sin(math.pi * min(_since(bursts, at) / long, 1)) ** 2
        return picture if blur < 0.3 else _with_luma(picture, cv2.GaussianBlur(picture[:HEIGHT], (0, 0), blur))

    return apply


def shadow(chance: Chance, seconds: float) -> Effect:
    """A shadow passes."""
    bursts, long = _moments(chance, seconds, (15, 60)), chance.uniform(1.5, 9)
    depth, width, x = chance.uniform(0.3, 0.7), chance.uniform(30, 120), np.arange(WIDTH)

    def apply(picture: Planes, at: float) -> Planes:
        since = _since(bursts, at) / long
        if since > 1:
            return picture
        place = -2 * width + since * (WIDTH + 4 * width)
        return _lit(picture, 1 - depth * np.exp(-(((x - place) / width) ** 2)))

    return apply


def headlights(chance: Chance, seconds: float) -> Effect:
    """A bright spot sweeps over the picture."""
    bursts, long = _moments(chance, seconds, (15, 60)), chance.uniform(1, 5)
    bright, size, height = chance.uniform(60, 150), chance.uniform(25, 70), chance.uniform(0.2, 0.8) * HEIGHT
    way = chance.choice([-1, 1])

    def apply(picture: Planes, at: float) -> Planes:
        since = _since(bursts, at) / long
        if since > 1:
            return picture
        place = WIDTH * (0.5 + way * (since - 0.5) * 1.8)
        spot = (bright * math.sin(math.pi * since) * _blob(place, height, size)).astype(np.int16)
        return _with_luma(picture, cv2.add(picture[:HEIGHT], spot, dtype=cv2.CV_8U))

    return apply


def clouds(chance: Chance, seconds: float) -> Effect:
    """Patches of sun and shade that move slowly."""
    patches = np.tile(chance.normal(0, 1, size=(3, 4)).astype(np.float32), (3, 3))
    gains = cv2.resize(patches, (3 * WIDTH, 3 * HEIGHT), interpolation=cv2.INTER_CUBIC)[HEIGHT:, WIDTH:]
    depth, speed = chance.uniform(0.08, 0.25), chance.uniform(1, 12)

    def apply(picture: Planes, at: float) -> Planes:
        return _lit(picture, np.clip(1 + depth * _window(gains, 0.3 * speed * at, speed * at), 0.3, 1.6))

    return apply


def fire(chance: Chance, seconds: float) -> Effect:
    """A candle or a fire lights a part of the picture."""
    spot = _blob(chance.uniform(0, WIDTH), chance.uniform(0, HEIGHT), chance.uniform(30, 110))
    bright, heat = chance.uniform(20, 70), 0.5

    def apply(picture: Planes, at: float) -> Planes:
        nonlocal heat
        heat = min(max(0.5 + 0.8 * (heat - 0.5) + chance.normal(0, 0.2), 0), 1)
        return _with_luma(picture, cv2.add(picture[:HEIGHT], (bright * heat * spot).astype(np.int16), dtype=cv2.CV_8U))

    return apply


def bars(chance: Chance, seconds: float) -> Effect:
    """Bars that roll through the picture: a screen or a lamp against a rolling shutter."""
    count, speed, depth = chance.uniform(0.5, 4), chance.uniform(0.05, 2.5), chance.uniform(0.05, 0.2)
    y = np.linspace(0, 1, HEIGHT)[:, None]

    def apply(picture: Planes, at: float) -> Planes:
        return _lit(picture, 1 + depth * np.sin(2 * math.pi * (count * y + speed * at)))

    return apply


def pulses(chance: Chance, seconds: float) -> Effect:
    """Strong compression: blocks that become finer until the next keyframe, which starts over."""
    every, levels, cells = chance.uniform(1, 6), int(chance.uniform(6, 20)), int(chance.choice([8, 16]))

    def apply(picture: Planes, at: float) -> Planes:
        luma, weight = picture[:HEIGHT], 1 - (at / every) % 1
        small = cv2.resize(luma, (WIDTH // cells, HEIGHT // cells), interpolation=cv2.INTER_AREA)
        blocks = cv2.resize(small // levels * levels, (WIDTH, HEIGHT), interpolation=cv2.INTER_NEAREST)
        return _with_luma(picture, cv2.addWeighted(luma, 1 - weight, blocks, weight, 0))

    return apply


def pan(chance: Chance, seconds: float) -> Effect:
    """A slow pan and zoom over the still."""
    zoom, period = chance.uniform(1.15, 1.6), chance.uniform(25, 120)
    reach = (zoom - 1) / 2 * chance.uniform(-1, 1, size=2) * (WIDTH, HEIGHT)

    def apply(picture: Planes, at: float) -> Planes:
        way = math.sin(2 * math.pi * at / period)
        return _moved(picture, *(reach * way), zoom=zoom + 0.08 * way)

    return apply


def dropouts(chance: Chance, seconds: float) -> Effect:
    """Moments without a proper picture: black, grey, static, torn, or rows of another place."""
    bursts, faults = _moments(chance, seconds, (6, 40)), chance.integers(5, size=1000)
    longs = chance.uniform(0.1, 2.5, size=1000)
    static = noise(chance, seconds, (70, 70))

    def apply(picture: Planes, at: float) -> Planes:
        number = int(np.searchsorted(bursts, at, side="right")) - 1
        if number < 0 or at - bursts[number] > longs[number % 1000]:
            return picture
        fault = faults[number % 1000]
        if fault < 2:
            return _blank(16 if fault == 0 else 128)
        if fault == 2:
            return static(_blank(128), at)
        luma, row = picture[:HEIGHT].copy(), int(chance.uniform(20, HEIGHT - 20))
        if fault == 3:
            luma[row:] = np.roll(luma[row:], int(chance.uniform(20, WIDTH)), axis=1)
        else:
            luma[row:] = luma[row]
        return _with_luma(picture, luma)

    return apply


def night(chance: Chance, seconds: float) -> Effect:
    """Dark, grey and full of noise."""
    gain, grain = chance.uniform(0.15, 0.4), noise(chance, seconds, (6, 12))

    def apply(picture: Planes, at: float) -> Planes:
        dark = _lit(picture, gain)
        dark[HEIGHT:] = 128
        return grain(dark, at)

    return apply


def insects(chance: Chance, seconds: float) -> Effect:
    """Insects or dust, small ones all the time, sometimes a large one just before the lens."""
    count = int(chance.integers(1, 6))
    speeds, phases = chance.uniform(0.05, 0.6, size=(count, 2)), chance.uniform(0, 7, size=(count, 2))
    radii, tone = chance.integers(1, 5, size=count).tolist(), int(chance.choice([30, 225]))
    bursts = _moments(chance, seconds, (15, 60))

    def apply(picture: Planes, at: float) -> Planes:
        luma = picture[:HEIGHT].copy()
        places = (0.5 + 0.55 * np.sin(2 * math.pi * speeds * at + phases)) * (WIDTH, HEIGHT)
        for (x, y), radius in zip(places.astype(int).tolist(), radii, strict=True):
            cv2.circle(luma, (x, y), radius, tone, -1)
        if (since := _since(bursts, at)) < 0.8:
            large = (90 * _blob(since / 0.8 * WIDTH, 0.6 * HEIGHT, 35)).astype(np.int16)
            luma = cv2.add(luma, large if tone > 128 else -large, dtype=cv2.CV_8U)
        return _with_luma(picture, luma)

    return apply


def stills(chance: Chance, seconds: float) -> Effect:
    """Nothing at all."""
    return lambda picture, at: picture


QUIET: dict[str, Callable[[Chance, float], Effect]] = {
    make.__name__: make
    for make in (
        noise, light, shake, flicker, rain, snow, sway, fan, screen, clock, ticker, exposure, focus, shadow, headlights,
        clouds, fire, bars, pulses, pan, dropouts, night, insects, stills,
    )
}  # fmt: skip
DURING_EVENTS = frozenset(
    ("noise", "light", "shake", "flicker", "rain", "snow", "screen", "fan", "clock", "ticker", "clouds", "fire", "bars")
)
"""What goes on during the events as well."""


# --- Parts of effects ---


def _with_luma(picture: Planes, luma: Array) -> Planes:
    return np.concatenate([luma, picture[HEIGHT:]])


def _lit(picture: Planes, gain: float | Array) -> Planes:
    """gain: one, or an array that broadcasts to (HEIGHT, WIDTH)"""
    if isinstance(gain, float | int):
        table = np.clip(np.rint(16 + (np.arange(256) - 16) * gain), 0, 255).astype(np.uint8)
        return _with_luma(picture, cv2.LUT(picture[:HEIGHT], table))
    lit = 16 + (picture[:HEIGHT].astype(np.float32) - 16) * gain.astype(np.float32)
    return _with_luma(picture, np.clip(lit + 0.5, 0, 255).astype(np.uint8))


def _moved(picture: Planes, x: float, y: float, *, turn: float = 0.0, zoom: float = 1.0) -> Planes:
    """Shifted by pixels, turned by degrees about the middle, and enlarged."""

    def move(plane: Planes, scale: float) -> Planes:
        height, width = plane.shape
        matrix = cv2.getRotationMatrix2D((width / 2, height / 2), turn, zoom)
        matrix[:, 2] += scale * x, scale * y
        return np.asarray(cv2.warpAffine(plane, matrix, (width, height), borderMode=cv2.BORDER_REFLECT))

    colours = picture[HEIGHT:].reshape(2, HEIGHT // 2, WIDTH // 2)
    moved = [move(plane, 0.5).reshape(-1, WIDTH) for plane in colours]
    return np.concatenate([move(picture[:HEIGHT], 1.0), *moved])


def _blank(luma: int) -> Planes:
    return np.concatenate([np.full((HEIGHT, WIDTH), luma, np.uint8), np.full((HEIGHT // 2, WIDTH), 128, np.uint8)])


def _window(tiled: Array, top: float, left: float) -> Array:
    """A part of a field that repeats after HEIGHT rows and WIDTH columns, at any place."""
    row, column = int(top) % HEIGHT, int(left) % WIDTH
    return tiled[row : row + HEIGHT, column : column + WIDTH]


def _blob(x: float, y: float, size: float) -> Array:
    """A soft spot: (HEIGHT, WIDTH), 1 in its middle"""
    across, down = ((np.arange(n) - at) / size for n, at in ((WIDTH, x), (HEIGHT, y)))
    return np.exp(-(down[:, None] ** 2)) * np.exp(-(across**2))


def _corner(chance: Chance, width: float, height: float) -> tuple[int, int]:
    x, y = chance.choice([width, WIDTH - width]), chance.choice([height, HEIGHT - height])
    return int(x), int(y)


def _moments(chance: Chance, seconds: float, gaps: tuple[float, float]) -> Array:
    """When something happens that happens now and then, in seconds."""
    return np.cumsum(chance.uniform(*gaps, size=int(seconds / gaps[0]) + 1))


def _since(moments: Array, at: float) -> float:
    """Seconds since the last of the moments; an hour before the first one."""
    number = int(np.searchsorted(moments, at, side="right"))
    return at - float(moments[number - 1]) if number else 3600.0


# --- Films ---


@dataclass(frozen=True)
class _Stretch:
    """A quiet stretch as planned."""

    num_frames: int
    kinds: tuple[str, ...]
    fades: bool = False


def make_films(
    data: Path,
    out: Path,
    *,
    dataset: str = "msvd",
    split: str = "val",
    num_films: int = NUM_FILMS,
    seed: int = 0,
    kinds: Sequence[str] = tuple(QUIET),
    jobs: int = 1,
) -> list[Film]:
    """The films; those already in `out` are not made again."""
    clips = load_split(data, dataset=dataset, split=split).clips  # type: ignore[arg-type]
    suited = [clip for clip in clips if EVENT_SECONDS[0] <= _seconds(clip) <= EVENT_SECONDS[1]]
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / f"{dataset}-{split}-{seed}-{number:02d}.mp4" for number in range(num_films)]
    missing = [number for number, path in enumerate(paths) if not path.with_suffix(".json").exists()]
    make = partial(_make, paths, suited, dataset=dataset, split=split, seed=seed, kinds=tuple(kinds))
    if jobs > 1:
        with ProcessPoolExecutor(jobs) as pool:
            list(pool.map(make, missing))
    else:
        list(map(make, missing))
    return read_films(out)


def _seconds(clip: Clip) -> float:
    with Video(clip.path) as video:
        return video.seconds or 0.0


def _make(
    paths: Sequence[Path],
    clips: Sequence[Clip],
    number: int,
    *,
    dataset: str,
    split: str,
    seed: int,
    kinds: Sequence[str],
) -> None:
    cv2.setNumThreads(1)
    chance, cut = np.random.default_rng([seed, number]), CUTS[number % len(CUTS)]
    *chosen, sixth = (clips[i] for i in chance.choice(len(clips), size=NUM_EVENTS + 1, replace=False))
    repeated = number % 4 == 3
    if repeated:
        chosen[3] = chosen[1]
    acts = [planes(clip) for clip in chosen]
    other = planes(sixth)[0]
    pictures = {
        "camera": [other] * (NUM_EVENTS + 1),
        "after": [other, *(act[-1] for act in acts)],
        "before": [*(act[0] for act in acts), other],
    }[cut]
    stretches = _plan(number, kinds, sum(map(len, acts)), seed=seed, chance=chance)

    lengths = zip((stretch.num_frames for stretch in stretches), [*map(len, acts), 0], strict=True)
    ends = list(itertools.accumulate(itertools.chain(*lengths)))
    quiet = [
        Part(start / FPS, end / FPS, (*stretch.kinds, *(["fades"] if stretch.fades else [])))
        for start, end, stretch in zip([0, *ends[1::2]], ends[::2], stretches, strict=False)
    ]
    events = []
    for place, (start, end) in enumerate(zip(ends[::2], ends[1::2], strict=False)):
        if place < NUM_EVENTS:
            again = ["repeated"] if repeated and place == 3 else []
            before = quiet[place].kinds if stretches[place].num_frames else ("back to back",)
            events.append(Part(start / FPS, end / FPS, (*before, *again), chosen[place].name))
    codec, options = CODECS[chance.integers(len(CODECS))]
    write_video(paths[number], _shown(pictures, stretches, acts, chance), codec=codec, options=options)
    text = " ".join([codec, *(f"{name}={value}" for name, value in options.items())])
    shown = tuple(part for part in quiet if part.end > part.start)
    Film(paths[number], dataset, split, ends[-1] / FPS, cut, text, tuple(events), shown).write()


def _plan(number: int, kinds: Sequence[str], num_event_frames: int, *, seed: int, chance: Chance) -> list[_Stretch]:
    """The stretches before, between and after the events. All kinds get their turn over a number of films."""
    of_stills = number % 5 == 4 and "stills" in kinds
    seconds = STILLS_SECONDS if of_stills else chance.uniform(*FILM_SECONDS)
    num_stretches = NUM_EVENTS + 1
    shares = chance.dirichlet(np.full(num_stretches, 2.0))
    if not of_stills and chance.random() < 0.4:
        shares[chance.integers(1, NUM_EVENTS)] = 0
    least = np.where(shares > 0, MIN_STRETCH_SECONDS, 0.0)
    free = seconds - num_event_frames / FPS - least.sum()
    lengths = (FPS * (least + free * shares / shares.sum())).astype(int)
    deck = itertools.cycle(np.random.default_rng([seed, 10**6]).permutation(list(kinds)).tolist())
    turn = itertools.islice(deck, (num_stretches + 1) * number, None)
    if of_stills:
        of_each = [("stills",)] * num_stretches
    elif number % 2:
        of_each = [(next(turn),) for _ in range(num_stretches)]
    else:
        second = next(turn) if chance.random() < 0.5 else None
        of_each = [tuple(dict.fromkeys(filter(None, (next(turn), second))))] * num_stretches
    fades = chance.random(num_stretches) < (0 if of_stills else 0.15)
    return [_Stretch(*each) for each in zip(lengths.tolist(), of_each, fades.tolist(), strict=True)]


def _shown(
    pictures: Sequence[Planes], stretches: Sequence[_Stretch], acts: Sequence[Sequence[Planes]], chance: Chance
) -> Iterator[Planes]:
    """All pictures of a film in turn."""
    effects: dict[str, Effect] = {}
    lasting = stretches[0].kinds if len({stretch.kinds for stretch in stretches}) == 1 else None
    num_shown = 0
    for place, (still, stretch) in enumerate(zip(pictures, stretches, strict=True)):
        if lasting is None or not effects:
            seconds = STILLS_SECONDS if lasting else stretch.num_frames / FPS + EVENT_SECONDS[1]
            effects, begun = {kind: QUIET[kind](chance, seconds) for kind in stretch.kinds}, num_shown
        fade = FPS * chance.uniform(0.5, 2.0)
        black = int(FPS * chance.uniform(0, 3))
        for frame in range(stretch.num_frames):
            picture = still
            for effect in effects.values():
                picture = effect(picture, (num_shown - begun) / FPS)
            if stretch.fades:
                near = min(frame, stretch.num_frames - black - frame) / fade
                picture = _faded(picture, near) if near < 1 else picture
            yield picture
            num_shown += 1
        for picture in acts[place] if place < len(acts) else ():
            for kind, effect in effects.items():
                picture = effect(picture, (num_shown - begun) / FPS) if kind in DURING_EVENTS else picture
            yield picture
            num_shown += 1


def _faded(picture: Planes, strength: float) -> Planes:
    """strength: 0 is black, 1 the picture as it is"""
    black = _blank(16)
    return np.asarray(cv2.addWeighted(picture, max(strength, 0), black, 1 - max(strength, 0), 0))


def write_video(path: Path, pictures: Iterable[Planes], *, codec: str, options: dict[str, str]) -> float:
    """Encode the pictures, FPS of them a second. -> the video's seconds"""
    num_frames = 0
    with written_whole(path) as temporary, av.open(str(temporary), "w", format="mp4") as output:
        stream = output.add_stream(codec, rate=FPS, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        stream.codec_context.thread_count = 1
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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, help="folder with videos and captions")
    parser.add_argument("--dataset", choices=("msvd", "msrvtt"), default="msvd")
    parser.add_argument("--split", choices=("val", "train", "all"), default="val", help="train: films to develop on")
    parser.add_argument("--out", type=Path, required=True, help="folder for the films, outside of the repository")
    parser.add_argument("--films", type=int, default=NUM_FILMS)
    parser.add_argument("--kinds", default=",".join(QUIET), help="kinds of quiet, with commas; by default all")
    parser.add_argument("--jobs", type=int, default=2, help="films made at the same time")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    kinds = arguments.kinds.split(",")
    if unknown := set(kinds) - set(QUIET):
        parser.error(f"--kinds: {', '.join(sorted(unknown))} (known: {', '.join(QUIET)})")
    films = make_films(
        arguments.data,
        arguments.out,
        dataset=arguments.dataset,
        split=arguments.split,
        num_films=arguments.films,
        seed=arguments.seed,
        kinds=kinds,
        jobs=arguments.jobs,
    )
    for film in films:
        print(f"{film.path}: {film.cut}, {film.seconds / 60:.1f} min, {film.codec}, {', '.join(film.kinds)}")


if __name__ == "__main__":
    main()
