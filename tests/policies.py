"""Inputs for policies of both kinds, and videos whose glances are given."""

from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.config import ModelConfig
from picknet.picking.learned import CODE_SIZE, NUM_PICKED, NUM_RECENT, OUTLINE_SIZE, STATE_SIZE
from picknet.video.frame import GLANCE_SIZE, Frame

if TYPE_CHECKING:
    import torch

    from picknet.training.policies import Policy


def random_inputs(model: ModelConfig, rng: np.random.Generator, count: int) -> dict[str, NDArray[np.generic]]:
    """Inputs of a model's policy graph for `count` frames, in the order of the network's arguments."""
    now, before = rng.integers(0, 256, (2, count, GLANCE_SIZE, GLANCE_SIZE), dtype=np.uint8)
    if model.picker == "difference":
        return {"glances": now, "templates": before}

    def random(*shape: int) -> NDArray[np.float32]:
        return rng.random((count, *shape), dtype=np.float32)

    size = OUTLINE_SIZE + CODE_SIZE
    return {
        "glances": now,
        "previous": before,
        "state": random(STATE_SIZE),
        "recent": random(NUM_RECENT, size) / size**0.5,
        "picked": random(NUM_PICKED, size) / size**0.5,
        "clock": random(2) * np.array([20, 1], np.float32),
    }


def lively_glances(rng: np.random.Generator, *shape: int) -> NDArray[np.uint8]:
    """Scenes of a few frames each, with noise, some lighter and some darker: (…, 56, 56)"""
    *clips, frames = shape
    scenes = rng.integers(0, 256, (*clips, frames // 4 + 1, 7, 7))
    scenes = scenes.repeat(8, axis=-1).repeat(8, axis=-2).repeat(4, axis=-3)[..., :frames, :, :]
    light = rng.uniform(0.4, 1, (*shape, 1, 1))
    return np.clip(scenes * light + rng.normal(0, 8, (*shape, GLANCE_SIZE, GLANCE_SIZE)), 0, 255).astype(np.uint8)


def frames_of(glances: NDArray[np.uint8]) -> list[Frame]:
    """glances: (frames, 56, 56)"""
    return [
        Frame.from_pixels(np.repeat(glance[:, :, None], 3, axis=2), index=index, seconds=index / 2)
        for index, glance in enumerate(glances)
    ]


class Walked(NamedTuple):
    """The actions of a policy, and their log-probabilities: (walks, frames)"""

    picked: "torch.Tensor"
    log_probabilities: "torch.Tensor"


def walked(
    picknet: "Policy",
    glances: "torch.Tensor",
    counts: "torch.Tensor",
    *,
    samples: int = 1,
    generator: "torch.Generator | None" = None,
    **settings: object,
) -> Walked:
    """A walk: sampled if a generator is given, otherwise as in inference."""
    from picknet.training.policies import draw_chances

    chances = None if generator is None else draw_chances(glances, samples, generator)
    picked = picknet.walk(glances, counts, chances, **settings)
    return Walked(picked, picknet.log_probabilities(glances, counts, picked[: len(counts) * samples]))
