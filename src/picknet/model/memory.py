"""The memory of a scene: what the encoder keeps of its picks."""

from collections import deque
from typing import Any

from numpy.typing import NDArray

from picknet.model.graphs import PendingFeatures
from picknet.model.runtime import EncoderState, Runtime
from picknet.video.frame import Frame

Array = NDArray[Any]

MAX_QUEUED_PICKS = 8
"""Frames in the CNN's queue at once. More are not faster, and each takes memory."""


class SceneMemory:
    """The encoder's state after the picks of a scene. For one thread: each caption has its own.

    The CNN works asynchronously while the next frames are decoded. The pixels of the picks are kept as well, up to the
    number of samples of a clip, so that a close decision can be computed again in 32 bits.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._state = self._exact_state = runtime.start()
        self._pending: deque[PendingFeatures] = deque()
        """Not yet in the state."""
        self._pixels: deque[Array] = deque(maxlen=runtime.config.video.num_frames)
        """Not yet in the exact state."""
        self._has_lost_pixels = False

    def add(self, frame: Frame) -> None:
        """Queue a picked frame for the CNN; does not wait for it."""
        pixels = frame.pixels(self._runtime.config.model.image_size)
        self._pending.append(self._runtime.start_features(pixels))
        self._has_lost_pixels |= len(self._pixels) == self._pixels.maxlen
        self._pixels.append(pixels)
        while self._pending and (self._pending[0].is_ready or len(self._pending) > MAX_QUEUED_PICKS):
            self._encode_oldest()

    def state(self) -> EncoderState:
        """The state after all frames so far."""
        while self._pending:
            self._encode_oldest()
        return self._state

    def exact_state(self) -> EncoderState | None:
        """The state after the same frames, computed in 32 bits; None if there were too many to keep."""
        if self._has_lost_pixels:
            return None
        while self._pixels:
            features = self._runtime.exact_features(self._pixels.popleft()[None])
            self._exact_state = self._runtime.encode(features, self._exact_state)
        return self._exact_state

    def _encode_oldest(self) -> None:
        self._state = self._runtime.encode(self._pending.popleft().result(), self._state)
