"""Hecate's rule: no poor frames, and of each cluster the stillest."""

import numpy as np
import pytest

from picknet.picking.hecate import SIDE, HecatePicker, are_good, change_around, describe
from picknet.video.frame import Frame

CHANCE = np.random.default_rng(0)


def scene(hue, *, noise=40):
    """A sharp picture of one colour."""
    picture = np.full((SIDE, SIDE, 3), hue, np.int16) + CHANCE.integers(-noise, noise + 1, (SIDE, SIDE, 1))
    return picture.clip(0, 255).astype(np.uint8)


def moved(picture, pixels):
    return np.roll(picture, pixels, axis=1)


def picks(picker, pictures):
    frames = [Frame.from_pixels(picture, index=i, seconds=i) for i, picture in enumerate(pictures)]
    return [frame.index for frame, _ in picker.pick(frames)]


RED, GREEN = scene((200, 60, 60)), scene((60, 200, 60))
BLACK = np.zeros((SIDE, SIDE, 3), np.uint8)


def test_of_each_cluster_the_stillest_frame_is_picked():
    # In each scene two frames are the same: the second of these has neighbours most like itself.
    red = [moved(RED, shift) for shift in (0, 3, 3, 3, 9)]
    green = [moved(GREEN, shift) for shift in (0, 7, 2, 2, 2)]
    assert picks(HecatePicker(2), red + green) == [2, 8]


@pytest.mark.parametrize(
    "poor",
    [
        BLACK,
        np.full((SIDE, SIDE, 3), 255, np.uint8),
        np.linspace(60, 200, SIDE).astype(np.uint8)[None, :, None].repeat(SIDE, 0).repeat(3, 2),  # soft: no edge
        np.where(np.arange(SIDE)[:, None, None] % 64, 120, scene((90, 90, 90))).astype(np.uint8),  # nearly one grey
    ],
)
def test_poor_frames_are_left_out_while_there_are_others(poor):
    pictures = [poor, poor, moved(RED, 1), moved(GREEN, 1), poor]
    assert picks(HecatePicker(2), pictures) == [2, 3]
    assert len(picks(HecatePicker(4), pictures)) == 4
    assert picks(HecatePicker(1), [poor, poor]) in ([0], [1])


@pytest.mark.parametrize("k", [1, 3, 9])
def test_as_many_frames_as_asked_for_however_alike_they_are(k):
    found = picks(HecatePicker(k), [RED] * 5)
    assert found == sorted(set(found))
    assert len(found) == min(k, 5)
    assert picks(HecatePicker(k), [RED]) == [0]
    assert picks(HecatePicker(k), []) == []


def test_what_is_measured():
    grey = np.stack([BLACK[..., 0], RED[..., 0]]).astype(float)
    assert are_good(grey, *np.gradient(grey, axis=(1, 2))).tolist() == [False, True]
    levels = np.array([0.0, 1.0, 4.0])[:, None, None] * np.ones((1, SIDE, SIDE))
    assert change_around(levels).tolist() == [1.0, 5.0, 9.0]  # of the squares 1 and 9, those beside each frame
    seen = describe(RED, *np.gradient(RED[..., 0].astype(float)))
    assert len(seen) == 5 * (16 + 8 + 8 + 8)
    assert seen.sum() == pytest.approx(20)  # five parts, four histograms each


def test_its_picks_depend_on_the_seed_alone():
    pictures = [moved(scene((hue, 90, 255 - hue)), hue) for hue in range(0, 250, 25)]
    assert picks(HecatePicker(3, seed=4), pictures) == picks(HecatePicker(3, seed=4), pictures)
