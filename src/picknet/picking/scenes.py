"""Where a new scene begins, decided from glances."""

from collections import deque
from typing import Any

from numpy.typing import NDArray

from picknet.picking.glances import differences, outline, tones
from picknet.picking.picker import BadPicker
from picknet.video.frame import Frame

Array = NDArray[Any]

SCENE_MEMORY = 4
"""Number of recent frames that a new one is compared with."""
SCENE_CHANGED = 0.3
"""The difference of outlines from which a frame may belong to a new scene. Switching a light on stays below it."""
SCENE_TONES = 0.2
"""The difference of tones that weighs as much as that of two uncorrelated outlines."""


class SceneWatch:
    """Detects new scenes from glances, without looking ahead: `watch(frame)` is True where one begins.

    A frame is unfamiliar if it differs from each of the last few in its outline (what is where) and in its tones (how
    much there is of each grey value), which motion does not change. A new scene begins with the second unfamiliar frame
    in a row, so a flash does not start one. Neither do gradual changes of light and slow fades: each frame is similar
    to those before it.
    """

    def __init__(self, *, patience: int = 2) -> None:
        """patience: the number of unfamiliar frames in a row that make a new scene."""
        if patience < 1:
            raise BadPicker(f"patience is {patience}: 1 (a flash is a scene, too) or more is possible")
        self._patience = patience
        self._recent: deque[_Appearance] = deque(maxlen=SCENE_MEMORY)
        self._unfamiliar: list[_Appearance] = []

    @property
    def is_unfamiliar(self) -> bool:
        """Whether the last frame was unfamiliar, but too few before it to begin a scene."""
        return bool(self._unfamiliar)

    def begin(self) -> None:
        """Begin a scene with the unfamiliar frames."""
        self._recent.clear()
        self._recent.extend(self._unfamiliar)
        self._unfamiliar.clear()

    def __call__(self, frame: Frame) -> bool:
        appearance = outline(frame.glance()), tones(frame.glance())
        if not self._recent or any(_is_similar(appearance, other) for other in self._recent):
            self._recent.append(appearance)
            self._unfamiliar.clear()
            return False
        self._unfamiliar.append(appearance)
        if len(self._unfamiliar) < self._patience:
            return False
        self.begin()
        return True


_Appearance = tuple[Array, Array]
"""The outline and the tones of a glance."""


def _is_similar(one: _Appearance, other: _Appearance) -> bool:
    outlines, tones = (float(differences(a[None], b)[0]) for a, b in zip(one, other, strict=True))
    return outlines < SCENE_CHANGED or outlines + tones / SCENE_TONES < 1
