"""The queue between the thread that decodes a live source and the one that reads its frames."""

import collections
import threading
import time
from typing import NamedTuple

from picknet.video.frame import Frame

MAX_FRAMES = 8
"""Frames in the queue: enough for a segment of a few seconds that arrives all at once."""
MAX_FRAME_AGE = 1.0
"""Seconds that a frame of a live source may wait for the reader before a newer one replaces it."""


class Arrival(NamedTuple):
    frame: Frame
    arrived: float
    """When its data arrived, by the monotonic clock."""


class FrameQueue:
    """A bounded queue that either drops old frames or applies back-pressure."""

    def __init__(self) -> None:
        self.drops = True
        """Whether old frames make room for newer ones; otherwise the writer waits."""
        self.num_dropped = 0
        self.closed = False
        """Set by the reader."""
        self._changed = threading.Condition()
        self._arrivals: collections.deque[Arrival] = collections.deque()
        self._ended = False
        self._error: Exception | None = None
        self._alive_at = 0.0

    def put(self, arrival: Arrival) -> bool:
        """Append a frame; False if the reader has closed the queue."""
        with self._changed:
            if not self.drops:
                self._changed.wait_for(lambda: len(self._arrivals) < MAX_FRAMES or self.closed)
            self._arrivals.append(arrival)
            if self.drops:
                self._drop_old()
            self._changed.notify_all()
            return not self.closed

    def keep_alive(self) -> bool:
        """Restart the reader's timeout: data arrives, though no frame to read. False if the reader has closed it."""
        self._alive_at = time.monotonic()
        return not self.closed

    def _drop_old(self) -> None:
        oldest = time.monotonic() - MAX_FRAME_AGE
        while len(self._arrivals) > MAX_FRAMES or (len(self._arrivals) > 1 and self._arrivals[0].arrived < oldest):
            self._arrivals.popleft()
            self.drop()

    def drop(self) -> None:
        """Count a dropped frame."""
        self.num_dropped += 1

    def end(self, error: Exception | None) -> None:
        """No more frames will come; an error is raised after those still in the queue."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def take(self, timeout: float) -> Arrival | None:
        """Wait for the next frame; None at the end. TimeoutError: none came for `timeout` seconds."""
        began = time.monotonic()
        with self._changed:
            while not self._arrivals and not self._ended:
                if time.monotonic() > max(began, self._alive_at) + timeout:
                    raise TimeoutError
                self._changed.wait(0.2)  # short, so that Ctrl-C is handled on every system
            if self.drops:
                self._drop_old()
            arrival = self._arrivals.popleft() if self._arrivals else None
            self._changed.notify_all()
        if arrival is None and self._error is not None:
            raise self._error
        return arrival

    def sleep(self, seconds: float) -> None:
        """Let the writer sleep, unless the reader closes the queue."""
        seconds = max(seconds, 0.0)
        self._alive_at = time.monotonic() + seconds
        with self._changed:
            self._changed.wait_for(lambda: self.closed, seconds)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()
