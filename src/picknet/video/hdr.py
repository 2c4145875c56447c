"""Video of a high dynamic range (HDR: PQ, HLG), as phones record it, in the colours of ordinary video.

Shown as they are stored, its colours are grey and dim, and neither the policy nor the CNN has learned such pictures.
"""

import functools
from typing import Any

import numpy as np
from numpy.typing import NDArray

CURVES = frozenset({16, 18})
"""PQ and HLG, in the numbers of ITU-T H.273, as are the primaries of BT.2020."""
_PQ = 16
_BT2020 = 9
_WHITE = 203.0
"""Candelas per square metre of white paper, by ITU-R BT.2408. What is brighter shines."""
_WHITE_SCENE = 0.265
"""The light of white in a scene stored as HLG, by the same."""
_LUMINANCE = np.array((0.2627, 0.678, 0.0593), np.float32)
_KNEE = 0.75
"""Of white: up to here brightness is kept, beyond it is compressed, so that what shines still has shades."""
_GAMMA = 2.2
_TO_BT709 = np.array(
    [[1.6605, -0.5876, -0.0728], [-0.1246, 1.1329, -0.0083], [-0.0182, -0.1006, 1.1187]], np.float32
)
"""From linear BT.2020 to BT.709, by ITU-R BT.2087."""


def as_ordinary(pixels: NDArray[Any], *, curve: int, primaries: int) -> NDArray[np.uint8]:
    """RGB uint8 (h, w, 3) by one of the `CURVES` -> the same as ordinary video"""
    light = _light(curve)[pixels]
    if curve != _PQ:  # the display makes the scene's contrast stronger
        light *= (light @ _LUMINANCE)[..., None] ** 0.2
    if primaries == _BT2020:
        light = np.maximum(light @ _TO_BT709.T, 0)
    beyond = np.maximum(light - _KNEE, 0)
    light = np.minimum(light, _KNEE) + (1 - _KNEE) * (1 - np.exp(-beyond / (1 - _KNEE)))
    return np.asarray(np.rint(255 * light ** (1 / _GAMMA)), np.uint8)


@functools.cache
def _light(curve: int) -> NDArray[np.float32]:
    """(256,): the light of each stored value, 1 for white"""
    stored = np.linspace(0, 1, 256)
    if curve == _PQ:  # SMPTE ST 2084
        root = stored ** (1 / 78.84375)
        light = (np.maximum(root - 0.8359375, 0) / (18.8515625 - 18.6875 * root)) ** (1 / 0.1593017578125)
        return (light * 10000 / _WHITE).astype(np.float32)
    # ARIB STD-B67: the light of the scene, of which white is three quarters of the way.
    scene = np.where(stored <= 0.5, stored**2 / 3, (np.exp((stored - 0.55991073) / 0.17883277) + 0.28466892) / 12)
    return (scene / _WHITE_SCENE).astype(np.float32)
