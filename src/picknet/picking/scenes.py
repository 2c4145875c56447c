"""Where a new scene begins, told from glances."""

from collections import deque
from typing import Any

from numpy.typing import NDArray

from picknet.picking.glances import differences, outline, tones
from picknet.picking.picker import BadPicker
from picknet.video.frame import Frame

Array = NDArray[Any]


SCENE_MEMORY = 4
"""Frames that a new one is compared with."""
SCENE_CHANGED = 0.3
"""The difference of outlines from which on a scene can be another. Light that is switched on stays below."""
SCENE_TONES = 0.2
"""The difference of tones that weighs as much as that of two pictures that have nothing in common."""


class SceneWatch:
    """Where a new scene begins, told from glances: `watch(frame)` is True when it does. It never looks ahead.

    A frame is strange when it is unlike each of the last few in what is where (outlines) and in how much there is of
    each grey value (tones), which motion leaves alone. A new scene begins with the second strange frame in a row, so
    that a flash is none. Slow changes of light and slow fades are none either: each frame is like those before it.
    """

    def __init__(self, *, patience: int = 2) -> None:
        """patience: with which strange frame in a row a new scene begins."""
        if patience < 1:
            raise BadPicker(f"patience is {patience}: 1 (a flash is a scene, too) or more is possible")
        self._patience = patience
        self._seen: deque[tuple[Array, Array]] = deque(maxlen=SCENE_MEMORY)
        self._strange: list[tuple[Array, Array]] = []

    def __call__(self, frame: Frame) -> bool:
        look = outline(frame.glance()), tones(frame.glance())
        if not self._seen or any(_is_alike(look, other) for other in self._seen):
            self._seen.append(look)
            self._strange.clear()
            return False
        self._strange.append(look)
        if len(self._strange) < self._patience:
            return False
        self._seen.clear()
        self._seen.extend(self._strange)
        self._strange.clear()
        return True


def _is_alike(one: tuple[Array, Array], other: tuple[Array, Array]) -> bool:
    outlines, tones = (float(differences(mine[None], its)[0]) for mine, its in zip(one, other, strict=True))
    return outlines < SCENE_CHANGED or outlines + tones / SCENE_TONES < 1
