"""Films made of clips, for policies that learn where to look: events, and between them stretches in which nothing
happens.

A film is made of glances, frame by frame: an event shows some frames of a clip in order; a quiet stretch shows one
frame again and again, the way a camera sees it: with noise, changing light, wind, rain, a screen in a corner. All
effects are computed for a whole batch of films at once, on the training device.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from picknet.video.frame import GLANCE_SIZE

EVENT_FRAMES = (4, 16)
"""Fewest and most frames of an event: clips of five to ten seconds at one or two frames a second."""
QUIET_FRAMES = (3, 150)
"""Fewest and most frames of a quiet stretch; short ones are as frequent as long ones."""

BLACK, WHITE, GREY, STATIC, TORN = range(1, 6)
"""Damage to a frame."""


@dataclass(frozen=True)
class FilmBatch:
    """Films, or clips as films of one event."""

    glances: Tensor
    """(films, frames, 56, 56) uint8."""
    counts: Tensor
    """(films,): frames of each film; the rest is padding."""
    segments: Tensor
    """(films, frames): the number of the event or quiet stretch that a frame belongs to."""
    clips: Tensor
    """(films, segments): the index of the clip of each event; -1 for a quiet stretch."""
    places: Tensor
    """(films, frames): which frame of its clip a frame shows; -1 for a quiet one, or one too damaged to tell."""

    def __len__(self) -> int:
        return len(self.glances)

    def parts(self, count: int) -> "list[FilmBatch]":
        tensors = (self.glances, self.counts, self.segments, self.clips, self.places)
        return [FilmBatch(*parts) for parts in zip(*(tensor.chunk(count) for tensor in tensors), strict=True)]

    def picked_of_clips(self, picked: Tensor, num_frames: int) -> tuple[Tensor, Tensor]:
        """picked: (rows, frames) bool, one or more rows for each film
        -> the picks of every event as those of its clip: (rows, segments, num_frames) bool, number of picks in every
        segment, damaged frames included: (rows, segments)"""
        samples = len(picked) // len(self)
        segments, places = (part.repeat_interleave(samples, dim=0) for part in (self.segments, self.places))
        num_segments = self.clips.shape[1]
        num_picks = torch.zeros(len(picked), num_segments, device=picked.device)
        num_picks.scatter_add_(1, segments, picked.float())
        flat = torch.zeros(len(picked), num_segments * num_frames, device=picked.device)
        flat.scatter_add_(1, segments * num_frames + places.clamp(min=0), (picked & (places >= 0)).float())
        return flat.view(-1, num_segments, num_frames) > 0, num_picks


def make_films(
    glances: Tensor, counts: Tensor, *, num_films: int, num_frames: int, chance: np.random.Generator
) -> FilmBatch:
    """Films of the given clips. glances: (clips, frames, 56, 56) uint8, counts: (clips,)"""
    lengths = counts.tolist()
    scripts = [_film(lengths, num_frames, chance) for _ in range(num_films)]
    return _batch(glances, scripts, [num_frames] * num_films, chance)


def make_clips(glances: Tensor, counts: Tensor, clips: Sequence[int], *, chance: np.random.Generator) -> FilmBatch:
    """The given clips, each as a film of one event."""
    lengths = counts.tolist()
    num_frames = max(lengths[clip] for clip in clips)
    scripts = [_clip(clip, lengths[clip], num_frames, chance) for clip in clips]
    return _batch(glances, scripts, [lengths[clip] for clip in clips], chance)


# --- Scripts: what a film shows, as numbers for each frame ---

PARAMETERS = (
    "shift_x", "shift_y", "zoom", "turn", "warp", "warp_phase", "blur", "gain", "slope", "noise", "rain", "blocks",
    "spot", "spot_x", "spot_y", "spot_size", "patch", "fade",
)  # fmt: skip
"""Strengths of the effects; 0 leaves a frame as it is, except for the sizes and places of a spot."""


class _Script(NamedTuple):
    clips: list[int]
    """By segment; -1 for quiet ones."""
    segments: NDArray[np.int64]
    shown: NDArray[np.int64]
    """(frames, 2): clip and frame that each frame of the film shows."""
    places: NDArray[np.int64]
    damage: NDArray[np.int64]
    parameters: dict[str, NDArray[np.float32]]
    patch: tuple[float, float, float, float]
    """The place of a screen or a clock: left, top, width and height, in parts of the glance."""


def _empty(num_frames: int, chance: np.random.Generator) -> _Script:
    zeros = {name: np.zeros(num_frames, np.float32) for name in PARAMETERS}
    width, height = chance.uniform(0.08, 0.4, 2)
    patch = (chance.uniform(0, 1 - width), chance.uniform(0, 1 - height), width, height)
    places = [np.zeros(num_frames, np.int64) for _ in range(3)]
    return _Script([], places[0], np.zeros((num_frames, 2), np.int64), places[1], places[2], zeros, patch)


def _film(lengths: Sequence[int], num_frames: int, chance: np.random.Generator) -> _Script:
    script = _empty(num_frames, chance)
    everywhere = [kind for kind in KINDS if chance.random() < 1.5 / len(KINDS)]
    for kind in everywhere:
        kind(script.parameters, slice(0, num_frames), chance)
    cut = str(chance.choice(["camera", "after", "before", "any"]))
    room = _any_frame(lengths, chance)
    quiet_share = chance.choice([0.3, 0.6, 0.9])
    t, last, quiet_next = 0, room, chance.random() < 0.7
    clip = int(chance.integers(len(lengths)))
    while t < num_frames:
        left = num_frames - t
        if chance.random() > 0.1 or last is room:  # now and then an event is seen again
            clip = int(chance.integers(len(lengths)))
        event_frames = min(int(chance.integers(EVENT_FRAMES[0], EVENT_FRAMES[1] + 1)), lengths[clip])
        if quiet_next or left < EVENT_FRAMES[0]:
            low, high = np.log(QUIET_FRAMES)
            frames = min(int(math.exp(chance.uniform(low, high))), left)
            still = {"camera": room, "after": last, "before": (clip, 0), "any": _any_frame(lengths, chance)}[cut]
            _add(script, slice(t, t + frames), -1, [still] * frames)
            _quieten(script, slice(t, t + frames), chance)
            t += frames
            quiet_next = False
            continue
        frames = min(event_frames, left)
        start = chance.uniform(0, lengths[clip] / event_frames)
        shown = [(clip, min(int(start + i * lengths[clip] / event_frames), lengths[clip] - 1)) for i in range(frames)]
        _add(script, slice(t, t + frames), clip, shown)
        _spoil(script, slice(t, t + frames), chance, share=0.2)
        last = shown[-1]
        t += frames
        quiet_next = chance.random() < quiet_share
    return script


def _clip(clip: int, count: int, num_frames: int, chance: np.random.Generator) -> _Script:
    script = _empty(num_frames, chance)
    shown = [(clip, min(i, count - 1)) for i in range(num_frames)]
    _add(script, slice(0, num_frames), clip, shown)
    if chance.random() < 0.3:
        for kind in chance.choice(len(KINDS), 1):
            KINDS[kind](script.parameters, slice(0, num_frames), chance)
    _spoil(script, slice(0, count), chance, share=0.3)
    return script


def _any_frame(lengths: Sequence[int], chance: np.random.Generator) -> tuple[int, int]:
    clip = int(chance.integers(len(lengths)))
    return clip, int(chance.integers(lengths[clip]))


def _add(script: _Script, where: slice, clip: int, shown: Sequence[tuple[int, int]]) -> None:
    script.segments[where] = len(script.clips)
    script.clips.append(clip)
    script.shown[where] = shown
    script.places[where] = [place for _, place in shown] if clip >= 0 else -1


def _quieten(script: _Script, where: slice, chance: np.random.Generator) -> None:
    """What a camera sees while nothing happens: none to three effects, and now and then a frame that is lost."""
    for kind in chance.choice(len(KINDS), size=int(chance.choice([0, 0, 1, 2, 3])), replace=False):
        KINDS[kind](script.parameters, where, chance)
    frames = where.stop - where.start
    draw = chance.random()
    if draw < 0.12:  # single frames are lost
        lost = np.flatnonzero(chance.random(frames) < chance.uniform(0.02, 0.2)) + where.start
        script.damage[lost] = chance.choice([BLACK, WHITE, GREY, STATIC, TORN])
    elif draw < 0.2:  # no picture at all
        script.damage[where] = chance.choice([BLACK, BLACK, WHITE, GREY, STATIC])
    elif draw < 0.24:  # the picture jumps to and fro
        script.parameters["zoom"][where] += chance.choice([0, 0.2], frames)


def _spoil(script: _Script, where: slice, chance: np.random.Generator, *, share: float) -> None:
    """A share of the events fade in or out, or have frames that are black, blank, blurred or torn."""
    frames = where.stop - where.start
    if chance.random() >= share:
        return
    draw, some = chance.random(), int(chance.integers(1, max(frames // 3, 1) + 1))
    if draw < 0.3:
        script.parameters["fade"][where.start : where.start + some] = np.linspace(1, 0.2, some)
    elif draw < 0.5:
        script.parameters["fade"][where.stop - some : where.stop] = np.linspace(0.2, 1, some)
    elif draw < 0.75:
        first = where.start + int(chance.choice([0, 0, chance.integers(0, frames - some + 1)]))
        script.damage[first : first + some] = chance.choice([BLACK, BLACK, WHITE, GREY, STATIC, TORN])
    else:
        first = where.start + int(chance.integers(0, frames - some + 1))
        script.parameters["blur"][first : first + some] = chance.uniform(0.7, 1)
    fade, blur = script.parameters["fade"][where], script.parameters["blur"][where]
    lost = (script.damage[where] > 0) | (fade > 0.6) | (blur >= 0.7)
    script.places[where] = np.where(lost, -1, script.places[where])


# --- Kinds of quiet ---

Parameters = dict[str, NDArray[np.float32]]


def _noise(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    p["noise"][where] += chance.choice([1, 2, 4, 8, 16]) * chance.uniform(0.5, 1) / 255


def _drifting_light(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    for name, size in (("gain", 0.4), ("slope", 0.3)):
        p[name][where] += _wave(where, chance, period=(30, 400), size=chance.uniform(0, size))


def _flicker(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    size, frames = chance.uniform(0.03, 0.35), where.stop - where.start
    flashes = chance.random(frames) < chance.choice([0.1, 0.5, 1.0])
    p["gain"][where] += size * flashes * chance.uniform(-1, 1, frames)


def _shake(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    size, frames = chance.choice([0.3, 1.0, 2.5]) * chance.uniform(0.5, 1.5), where.stop - where.start
    steady = chance.uniform(0, 0.95)
    for name in ("shift_x", "shift_y"):
        p[name][where] += _wandering(frames, chance, steady) * size
    p["turn"][where] += _wandering(frames, chance, steady) * size * 0.006


def _wind(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    """Leaves, water, curtains: parts of the picture move to and fro."""
    p["warp"][where] = chance.uniform(0.5, 3.0)
    p["warp_phase"][where] = np.cumsum(chance.uniform(0.2, 3.0, where.stop - where.start))


def _rain(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    p["rain"][where] = chance.uniform(0.05, 0.5)


def _screen(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    """A screen, a fan, a clock: one patch changes with every frame."""
    p["patch"][where] = chance.uniform(0.1, 0.8)


def _exposure(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    p["gain"][where] += _wave(where, chance, period=(3, 30), size=chance.uniform(0.1, 0.5))


def _focus(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    p["blur"][where] += np.abs(_wave(where, chance, period=(4, 60), size=chance.uniform(0.3, 0.65)))


def _passing(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    """A shadow or headlights that pass, an insect, a bird: a spot that moves."""
    frames = where.stop - where.start
    big = chance.random() < 0.5
    p["spot_size"][where] = chance.uniform(0.15, 0.5) if big else chance.uniform(0.02, 0.06)
    p["spot"][where] = chance.choice([-1, 1]) * (chance.uniform(0.1, 0.5) if big else chance.uniform(0.4, 1))
    if big:
        speed, start = chance.uniform(0.01, 0.4), chance.uniform(-1.5, 0.5)
        p["spot_x"][where], p["spot_y"][where] = start + speed * np.arange(frames), chance.uniform(0, 1)
    else:
        for name in ("spot_x", "spot_y"):
            p[name][where] = 0.5 + 0.4 * _wandering(frames, chance, chance.uniform(0, 0.9))


def _compression(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    """Blocks that are coded anew with every key frame."""
    frames, period = where.stop - where.start, int(chance.integers(1, 13))
    p["blocks"][where] = chance.uniform(1, 8) / 255 * ((np.arange(frames) + chance.integers(period)) % period == 0)


def _slow_pan(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    frames = where.stop - where.start
    p["zoom"][where] += 0.15
    for name in ("shift_x", "shift_y"):
        p[name][where] += np.clip(chance.uniform(-0.1, 0.1) * (np.arange(frames) - frames / 2), -4, 4)
    p["zoom"][where] += np.clip(chance.uniform(-0.002, 0.002) * np.arange(frames), -0.1, 0.15)


def _night(p: Parameters, where: slice, chance: np.random.Generator) -> None:
    p["gain"][where] -= chance.uniform(0.3, 0.75)
    p["noise"][where] += chance.uniform(1, 10) / 255


KINDS = (
    _noise, _drifting_light, _flicker, _shake, _wind, _rain, _screen, _exposure, _focus, _passing, _compression,
    _slow_pan, _night,
)  # fmt: skip


def _wave(
    where: slice, chance: np.random.Generator, *, period: tuple[float, float], size: float
) -> NDArray[np.float64]:
    phase = 2 * math.pi * np.arange(where.stop - where.start) / chance.uniform(*period)
    return np.asarray(size * np.sin(phase + chance.uniform(0, 2 * math.pi)))


def _wandering(frames: int, chance: np.random.Generator, steady: float) -> NDArray[np.float64]:
    """A random walk that returns to 0, with standard deviation 1: from fresh noise (0) to slow motion (1)."""
    steps = chance.normal(0, math.sqrt(1 - steady**2), frames)
    walk, value = np.zeros(frames), chance.normal()
    for i, step in enumerate(steps):
        value = steady * value + step
        walk[i] = value
    return walk


# --- Pictures ---


def _batch(
    glances: Tensor, scripts: Sequence[_Script], counts: Sequence[int], chance: np.random.Generator
) -> FilmBatch:
    device = glances.device
    num_segments = max(len(script.clips) for script in scripts)
    clips = torch.full((len(scripts), num_segments), -1)
    for row, script in zip(clips, scripts, strict=True):
        row[: len(script.clips)] = torch.tensor(script.clips)

    def stacked(arrays: Sequence[NDArray[np.generic]]) -> Tensor:
        return torch.from_numpy(np.stack(arrays)).to(device)

    shown = stacked([script.shown for script in scripts])
    parameters = {name: stacked([script.parameters[name] for script in scripts]) for name in PARAMETERS}
    patches = torch.tensor([script.patch for script in scripts], device=device)
    generator = torch.Generator(device).manual_seed(int(chance.integers(2**62)))
    pictures = _pictures(
        glances[shown[..., 0], shown[..., 1]],
        parameters,
        patches,
        stacked([script.damage for script in scripts]),
        generator,
    )
    return FilmBatch(
        pictures,
        torch.tensor(counts, device=device),
        stacked([script.segments for script in scripts]),
        clips.to(device),
        stacked([script.places for script in scripts]),
    )


def _pictures(
    glances: Tensor, p: dict[str, Tensor], patches: Tensor, damage: Tensor, generator: torch.Generator
) -> Tensor:
    """glances: (films, frames, 56, 56) uint8, parameters and damage: (films, frames), patches: (films, 4)
    -> the glances with all effects"""
    films, frames = glances.shape[:2]
    device, side = glances.device, GLANCE_SIZE
    p = {name: value.flatten() for name, value in p.items()}
    pictures = glances.flatten(0, 1).float()[:, None] / 255

    def random(*sizes: int) -> Tensor:
        return torch.rand(len(pictures), *sizes, generator=generator, device=device)

    line = torch.linspace(-1, 1, side, device=device)
    across, down = line.view(1, 1, side), line.view(1, side, 1)

    def wide(name: str) -> Tensor:
        return p[name][:, None, None]

    moved = (p["shift_x"] != 0) | (p["shift_y"] != 0) | (p["zoom"] != 0) | (p["turn"] != 0) | (p["warp"] != 0)
    if bool(moved.any()):
        cell = torch.linspace(0, 2 * math.pi, 5, device=device)
        waves = torch.sin(p["warp_phase"][:, None, None] + 2 * cell.view(1, 5, 1) + 3 * cell.view(1, 1, 5))
        waves = functional.interpolate((waves * p["warp"][:, None, None])[:, None], side, mode="bilinear")[:, 0]
        scale = 1 - wide("zoom")
        x = scale * across - wide("turn") * down + (wide("shift_x") + waves) * 2 / side
        y = scale * down + wide("turn") * across + (wide("shift_y") + 0.5 * waves) * 2 / side
        grid = torch.stack([x.expand(-1, side, side), y.expand(-1, side, side)], dim=-1)
        pictures = functional.grid_sample(pictures, grid, padding_mode="reflection", align_corners=True)
    blurred = functional.avg_pool2d(functional.pad(pictures, (4, 4, 4, 4), mode="reflect"), 9, stride=1)
    pictures = (pictures + p["blur"].clamp(0, 1)[:, None, None, None] * (blurred - pictures))[:, 0]

    left, top, width, height = (2 * part.repeat_interleave(frames)[:, None, None] for part in patches.unbind(1))
    inside = (across + 1 >= left) & (across + 1 <= left + width) & (down + 1 >= top) & (down + 1 <= top + height)
    texture = functional.interpolate(random(1, 14, 14), side, mode="nearest")[:, 0]
    pictures = pictures + inside * wide("patch") * (texture - pictures)
    distance = (across / 2 + 0.5 - wide("spot_x")) ** 2 + (down / 2 + 0.5 - wide("spot_y")) ** 2
    pictures = pictures + wide("spot") * torch.exp(-distance / (2 * wide("spot_size").clamp(min=0.01) ** 2))
    drops = (random(side, side) < 0.06).float()
    streaks = functional.avg_pool2d(functional.pad(drops, (0, 0, 2, 2))[:, None], (5, 1), stride=1)[:, 0]
    pictures = pictures + wide("rain") * streaks * 2
    pictures = pictures * (1 + wide("gain") + wide("slope") * across) * (1 - wide("fade").clamp(0, 1))
    blocks = functional.interpolate(random(1, 14, 14) - 0.5, side, mode="nearest")[:, 0]
    noise = torch.randn(pictures.shape, generator=generator, device=device)
    pictures = pictures + 2 * wide("blocks") * blocks + wide("noise") * noise

    damage = damage.flatten()[:, None, None]
    for kind, value in ((BLACK, 0.0), (WHITE, 1.0), (GREY, 0.5)):
        pictures = torch.where(damage == kind, value + 0.01 * noise, pictures)
    pictures = torch.where(damage == STATIC, random(side, side), pictures)
    torn = torch.where(down > 0.2, pictures.roll(side // 2, dims=2).flip(1), pictures)
    pictures = torch.where(damage == TORN, torn, pictures)
    return (255 * pictures.clamp(0, 1)).round().to(torch.uint8).view(films, frames, side, side)
