"""The time of a stream."""

import math

_TOLERATED_STEP_BACK = 0.3
"""Seconds by which a timestamp may be earlier than the last without having been set back."""
_TOLERATED_LEAP = 10.0
"""Seconds by which the timestamps of a live source may suddenly run ahead of the clock: it may send whole segments."""


class StreamClock:
    """Seconds since the first frame of a source, strictly increasing whatever its timestamps do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started = False
        self._start = math.inf
        """The timestamp of second 0; inf if the next timestamp, whatever it is, continues from the last."""
        self._last_timestamp = -math.inf
        self._arrived = math.inf
        self._step = 0.0
        self._live = self._resumes = False

    def connect(self, *, step: float, live: bool) -> None:
        """A new connection: to a live source, for which time has passed, or to one that starts from its beginning.

        step: seconds between frames, if nothing better is known.
        """
        self._step, self._live, self._resumes = step, live, self.started and not live
        if live:
            self._start = math.inf

    def seconds(self, timestamp: float | None, arrived: float) -> float | None:
        """When a frame is shown, by its timestamp if that is credible; None for one that was there before."""
        if self._resumes and timestamp is not None and timestamp <= self._last_timestamp:
            return None
        self._resumes = False
        passed = max(arrived - self._arrived, self._step) if self._live else self._step
        before = self.now if self.started else -passed
        seconds = math.nan if timestamp is None else timestamp - self._start
        latest = before + passed + _TOLERATED_LEAP if self._live else math.inf
        if not before - _TOLERATED_STEP_BACK <= seconds <= latest:  # also without a timestamp: nan is in no interval
            seconds = before + passed
            self._start = math.inf if timestamp is None else timestamp - seconds
        elif seconds <= before:
            seconds = before + self._step
        self.now, self.started, self._arrived = seconds, True, arrived
        self._last_timestamp = self._last_timestamp if timestamp is None else timestamp
        return seconds
