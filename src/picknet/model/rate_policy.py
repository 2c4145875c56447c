"""The policy with a memory, computed in NumPy from the weights of a model folder.

It is so small that a graph runtime spends most of the time on its hundred operations, not in them; here they are thirty
calls. `policy.onnx` is the same function for other runtimes; both are `RatePickNet` in training/policies.py.
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.model.folder import EXPORT_AGAIN, POLICY_WEIGHTS, BadModel, ModelFolder, tensor_spans
from picknet.video.frame import GLANCE_CHANNELS, GLANCE_SIZE

Array = NDArray[Any]

NUM_MEASURES = 5
"""Brightness, contrast, sharpness, change since the last frame, and the share of the glance that changed."""
FAINTEST_CONTRAST = 8 / 255
"""Outlines of glances with less contrast are not scaled up to norm 1, since that would amplify noise."""

_PATCH = 4
_SIDE = GLANCE_SIZE // _PATCH
_NUM_PATCHES = _SIDE * _SIDE
"""The patches that the first convolution sees, and the values of an outline."""
_AREA = GLANCE_SIZE * GLANCE_SIZE
_STATE, _CODE, _RECENT, _ABOUT = 64, 64, 4, 8
_FIRST, _SECOND = 16, 32
"""Channels of the two convolutions."""


class RatePolicy:
    """The policy as a function of one frame, with the inputs and outputs of its graph (`graphs.signatures`).

    Thread-safe: a call changes nothing.
    """

    def __init__(self, folder: ModelFolder) -> None:
        weights = _read(folder)
        channels = GLANCE_CHANNELS[folder.config.model.glance]

        # Both convolutions are matrix products on patches, which are gathered by their positions.
        self._patches = (
            np.arange(2 * channels * _AREA)
            .reshape(2 * channels, _SIDE, _PATCH, _SIDE, _PATCH)
            .transpose(1, 3, 0, 2, 4)
            .reshape(_NUM_PATCHES, -1)
        )
        # Grey values are used as they are: the network's are from −½ to ½, and changes four times as large.
        first = weights["look.0.weight"].reshape(_FIRST, 2, -1) / 255
        first[:, 1] *= 4
        self._first = first.reshape(_FIRST, -1).T.copy()
        self._first_bias = weights["look.0.bias"] - 127.5 * first[:, 0].sum(1)
        self._patch_mean = np.full(_PATCH * _PATCH, 1 / (255 * _PATCH * _PATCH), np.float32)
        # 3 × 3 with stride 2; position _NUM_PATCHES is the border, which is 0.
        numbers = np.pad(np.arange(_NUM_PATCHES).reshape(_SIDE, _SIDE), 1, constant_values=_NUM_PATCHES)
        self._windows = np.lib.stride_tricks.sliding_window_view(numbers, (3, 3))[::2, ::2].reshape(-1, 9)
        self._second = weights["look.1.weight"].transpose(2, 3, 1, 0).reshape(-1, _SECOND)
        self._window_mean = np.full(len(self._windows), 1 / len(self._windows), np.float32)

        # One matrix for each gate: BLAS would share the product with a larger one among threads, which takes longer.
        self._from_input = weights["remember.weight_ih_l0"].reshape(3, _STATE, -1)
        self._from_state = weights["remember.weight_hh_l0"].reshape(3, _STATE, -1)
        self._input_bias = weights["remember.bias_ih_l0"].reshape(3, _STATE)
        self._state_bias = weights["remember.bias_hh_l0"].reshape(3, _STATE)
        self._from_picks = np.hstack([weights["from_difference.weight"], weights["from_picks.weight"]])
        self._weights = weights

    def __call__(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """Named inputs of one frame, (1, …) -> named outputs, (1, …)"""
        weights, state, picked = self._weights, inputs["state"][0], inputs["picked"][0]
        outline, code, measures = self._look(inputs["glances"], inputs["previous"])

        changes = np.concatenate([inputs["recent"][0, :, :_NUM_PATCHES], picked[:, :_NUM_PATCHES]])
        changes -= outline
        differences = np.einsum("ij,ij->i", changes, changes) / 2
        familiar, novelty = differences[:_RECENT], differences[_RECENT:]

        by_input = self._from_input @ np.concatenate([code, familiar]) + self._input_bias
        by_state = self._from_state @ state + self._state_bias
        # The logistic function, written with tanh, which cannot overflow.
        reset, keep = 0.5 + 0.5 * np.tanh((by_input[:2] + by_state[:2]) / 2)
        state = (1 - keep) * np.tanh(by_input[2] + reset * by_state[2]) + keep * state

        last, nearest = float(novelty[0]), float(novelty.min())
        wait, any_pick = inputs["clock"][0].tolist()
        clocks = [wait / (wait + scale) for scale in (4.0, 16.0, 64.0)]
        about = [last, nearest, math.sqrt(last + 1e-4), math.sqrt(nearest + 1e-4), any_pick, *clocks]
        hidden = weights["from_frame.weight"] @ np.concatenate([code, state, familiar, measures])
        hidden += weights["from_frame.bias"]
        hidden += self._from_picks @ np.concatenate([code - picked[0, _NUM_PATCHES:], np.array(about, np.float32)])
        logits = weights["decide.weight"] @ np.maximum(hidden, 0) + weights["decide.bias"]
        return {"logits": logits, "embeddings": np.concatenate([outline, code])[None], "next_state": state[None]}

    def _look(self, glance: Array, previous: Array) -> tuple[Array, Array, Array]:
        """(1, …, 56, 56) uint8 -> outline: (196,), code: (64,), measures: (5,)"""
        seen = np.empty((2, glance.size), np.float32)
        seen[0] = glance.reshape(-1)
        np.subtract(seen[0], previous.reshape(-1), out=seen[1])
        patches = seen.take(self._patches)

        means = patches[:, : _PATCH * _PATCH] @ self._patch_mean
        brightness = float(means.sum()) / _NUM_PATCHES
        centred = means - np.float32(brightness)
        power = float(centred @ centred)
        now, change = seen[0, :_AREA], np.abs(seen[1, :_AREA])
        steps = np.abs(now[1:] - now[:-1])
        steps[GLANCE_SIZE - 1 :: GLANCE_SIZE] = 0  # from the end of a row to the start of the next
        measures = [
            brightness,
            4 * math.sqrt(power / _NUM_PATCHES + 1e-8),
            10 * float(steps.sum()) / (255 * (_AREA - GLANCE_SIZE)),
            math.log(float(change.sum()) / (255 * _AREA) + 1 / 255) + 3,
            np.count_nonzero(change > 12) / _AREA,
        ]

        maps = np.zeros((_NUM_PATCHES + 1, _FIRST), np.float32)
        np.add(patches @ self._first, self._first_bias, out=maps[:-1])
        np.maximum(maps, 0, out=maps)
        maps = maps.take(self._windows, axis=0).reshape(len(self._windows), -1) @ self._second
        maps += self._weights["look.1.bias"]
        np.maximum(maps, 0, out=maps)
        pooled = np.concatenate([self._window_mean @ maps, maps.max(0), np.array(measures, np.float32)])
        code = np.maximum(self._weights["code.weight"] @ pooled + self._weights["code.bias"], 0)
        outline = centred / np.float32(math.sqrt(power + _NUM_PATCHES * FAINTEST_CONTRAST**2))
        return outline, code, pooled[-NUM_MEASURES:]


def _read(folder: ModelFolder) -> dict[str, Array]:
    """The weights in 32 bits, by their names in the network."""
    from safetensors.numpy import load

    path, model = folder.path / POLICY_WEIGHTS, folder.config.model
    hidden, channels = model.picker_hidden, GLANCE_CHANNELS[model.glance]
    expected = {
        "look.0.weight": (_FIRST, 2 * channels, _PATCH, _PATCH),
        "look.0.bias": (_FIRST,),
        "look.1.weight": (_SECOND, _FIRST, 3, 3),
        "look.1.bias": (_SECOND,),
        "code.weight": (_CODE, 2 * _SECOND + NUM_MEASURES),
        "code.bias": (_CODE,),
        "remember.weight_ih_l0": (3 * _STATE, _CODE + _RECENT),
        "remember.weight_hh_l0": (3 * _STATE, _STATE),
        "remember.bias_ih_l0": (3 * _STATE,),
        "remember.bias_hh_l0": (3 * _STATE,),
        "from_frame.weight": (hidden, _CODE + _STATE + _RECENT + NUM_MEASURES),
        "from_frame.bias": (hidden,),
        "from_difference.weight": (hidden, _CODE),
        "from_picks.weight": (hidden, _ABOUT),
        "decide.weight": (1, hidden),
        "decide.bias": (1,),
    }
    expected = {f"picknet.{name}": shape for name, shape in expected.items()}
    found = {name: span.shape for name, span in tensor_spans(path).items()}
    if wrong := sorted(name for name in expected.keys() | found.keys() if expected.get(name) != found.get(name)):
        raise BadModel(f"{path}: does not fit config.toml beside it (first difference: {wrong[0]}); {EXPORT_AGAIN}")
    tensors = load(folder.read(POLICY_WEIGHTS))
    weights = {name.removeprefix("picknet."): tensor.astype(np.float32) for name, tensor in tensors.items()}
    # With weights that 16 bits hold, nothing that follows can overflow.
    if not all((np.abs(array) <= np.finfo(np.float16).max).all() for array in weights.values()):
        raise BadModel(f"{path}: holds what is not a number, or is too large: it is damaged; {EXPORT_AGAIN}")
    return weights
