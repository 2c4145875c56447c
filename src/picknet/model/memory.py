"""The memory of a scene: what the encoder keeps of its picks."""

from collections import deque

from picknet.model.graphs import PendingFeatures
from picknet.model.runtime import EncoderState, Runtime
from picknet.video.frame import Frame

MAX_QUEUED_PICKS = 8
"""Frames in the CNN's queue at once. More are not faster, and each takes memory."""


class SceneMemory:
    """The encoder's state after the picks of a scene. For one thread: each caption has its own.

    The CNN works asynchronously while the next frames are decoded.
    """

    def __init__(self, runtime: Runtime) -> None:
        self._runtime = runtime
        self._state = runtime.start()
        self._pending: deque[PendingFeatures] = deque()
        """Not yet in the state."""
        self.is_blank = True
        """Whether no frame so far shows anything."""

    def add(self, frame: Frame) -> None:
        """Queue a picked frame for the CNN; does not wait for it."""
        self.is_blank = self.is_blank and frame.is_blank
        pixels = frame.pixels(self._runtime.config.model.image_size)
        self._pending.append(self._runtime.start_features(pixels))
        while self._pending and (self._pending[0].is_ready or len(self._pending) > MAX_QUEUED_PICKS):
            self._encode_oldest()

    def state(self) -> EncoderState:
        """The state after all frames so far."""
        while self._pending:
            self._encode_oldest()
        return self._state

    def _encode_oldest(self) -> None:
        self._state = self._runtime.encode(self._pending.popleft().result(), self._state)
