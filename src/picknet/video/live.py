"""Frames from sources that come as they please: cameras, network streams, pipes, arrays of pixels.

A file waits for whoever reads it. A live source does not, so it is followed by two threads: one takes the packets as
they arrive, one decodes them and holds the newest frames ready. Whoever is slower than the source misses frames; few
are held, and none for longer than a second.
"""

import collections
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import NamedTuple, Self

import numpy as np
from numpy.typing import NDArray

from picknet.errors import PicknetError
from picknet.video.connection import PATIENCE, Broken, Connection
from picknet.video.file import UnreadableVideo, Video
from picknet.video.frame import Frame, metronome
from picknet.video.source import Address, UnreachableSource, recognised

Pixels = NDArray[np.uint8]
LiveSource = str | os.PathLike[str] | int | Iterable[Frame | Pixels]
"""A file, `-`, a camera's number, an address; or frames from anywhere, ready-made or as RGB (H, W, 3)."""

MAX_HELD = 8
"""Frames that are held for whoever captions: enough for a segment of a few seconds that arrives all at once."""

FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds before a lost source is tried again; they double from the first to the longest."""

_LOG = logging.getLogger("picknet")

_TOLERATED_STEP_BACK = 0.3
"""Seconds by which a time stamp may be late without having been set back."""
_TOLERATED_LEAP = 10.0
"""Seconds by which a live source's stamps may run ahead of the clock at once: it may send whole segments."""


class BadSetting(PicknetError):
    """A number of frames, a budget, a rate or a style that cannot be."""


class LostSource(PicknetError):
    """A source that was there, broke off and did not come back."""


def checked_fps(fps: float) -> float:
    if not 0 < fps < math.inf:
        raise BadSetting(f"fps is {fps}: more than 0 frames a second are needed")
    return fps


class Live:
    """The frames of a source, `fps` of them a second, as they come. It can be iterated once.

    Files, downloads, pipes and arrays wait for whoever reads. Cameras and network streams do not, and with `realtime`
    nothing does: files are read at their own speed, arrays are stamped by the clock. Then frames that nobody took
    within a second are dropped.

    A source that sends no frame for `timeout` seconds is an error at first; later it counts as lost, and is tried again
    `retries` times, less and less often, until frames come again. `note` is told about it in a line.
    """

    def __init__(
        self,
        source: LiveSource,
        *,
        fps: float = 1.0,
        realtime: bool = False,
        timeout: float = 15.0,
        retries: int = 10,
        note: Callable[[str], object] = _LOG.warning,
    ) -> None:
        if not 0 < timeout < math.inf:
            raise BadSetting(f"timeout is {timeout}: more than 0 seconds are possible")
        if retries < 0:
            raise BadSetting(f"retries is {retries}: 0 (give up at once) or more is possible")
        self._source = recognised(source) if isinstance(source, str | os.PathLike | int) else source
        self._fps = checked_fps(fps)
        self._realtime = realtime
        self._timeout = timeout
        self._retries = retries
        self._note = note
        self._video: Video | None = None
        self._damage: str | None = None
        self._handover = _Handover()
        self._arrived: float | None = None
        self._lost_at: float | None = None
        self._is_due = metronome(fps)
        self.num_frames = 0
        """Handed over so far."""
        self.seconds = 0.0
        """When the last of them is shown, counted from the first."""
        self.num_reconnects = 0
        self.max_lag: float | None = None
        """The longest lag that was told so far."""

    @property
    def name(self) -> str:
        """What the source is called; a password in its address is hidden."""
        return self._source.name if isinstance(self._source, Address) else "frames"

    @property
    def damage(self) -> str | None:
        """What could not be decoded so far, in one line."""
        return self._video.damage if self._video else self._damage

    @property
    def num_dropped(self) -> int:
        """Frames that came too fast: wanted ones that gave way to newer ones, and coded ones that were too late."""
        return self._handover.num_dropped

    @property
    def lag(self) -> float | None:
        """Seconds since the frame last handed over came in; None for a source that waits."""
        if self._arrived is None:
            return None
        lag = time.monotonic() - self._arrived
        self.max_lag = max(lag, self.max_lag or 0.0)
        return lag

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it. A connection on which nothing arrives is left within `timeout` seconds."""
        self._handover.close()

    @property
    def is_live(self) -> bool:
        """Whether frames may come faster than they are taken; of an address that is known once it is open."""
        is_file = not isinstance(self._source, Address) or self._source.kind == "file"
        return self._realtime or not is_file

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._frames():
            self.num_frames += 1
            self.seconds = frame.seconds
            yield frame

    def _frames(self) -> Iterator[Frame]:
        source = self._source
        if not isinstance(source, Address):
            return self._handed_over(self._stamped(source)) if self._realtime else self._given(source)
        if source.kind != "file":
            return self._handed_over(self._follow(source))
        return self._handed_over(self._paced(source)) if self._realtime else self._file(source)

    # --- Without a thread ---

    def _given(self, items: Iterable[Frame | Pixels]) -> Iterator[Frame]:
        """Ready-made frames as they are, arrays 1 / fps seconds apart."""
        for index, item in enumerate(items):
            yield item if isinstance(item, Frame) else Frame.from_pixels(item, index=index, seconds=index / self._fps)

    def _file(self, source: Address) -> Iterator[Frame]:
        with Video(source.address) as self._video:
            yield from self._video.sample_by_time(fps=self._fps)

    # --- In a thread of its own ---

    def _handed_over(self, moments: Iterator["_Moment"]) -> Iterator[Frame]:
        """The frames that a thread gets from `moments`, as far as they are wanted and taken in time."""
        handover = self._handover

        def read() -> None:
            try:
                for moment in moments:
                    if not handover.put(moment):
                        break
                handover.end(None)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised where the frames are wanted
                handover.end(error)

        threading.Thread(target=read, name="picknet live", daemon=True).start()
        try:
            for index in itertools.count():
                moment = handover.take(math.inf if index else self._timeout)
                if moment is None:
                    return
                moment.frame.index = index
                self._arrived = moment.arrived if handover.drops else None
                yield moment.frame
        except TimeoutError:
            raise UnreachableSource(f"{self.name}: no frame came within {self._timeout:g} s") from None
        finally:
            self.close()

    def _paced(self, source: Address) -> "Iterator[_Moment]":
        """The frames of a file, none before its time."""
        start = time.monotonic()
        for frame in self._file(source):
            self._handover.sleep(start + frame.seconds - time.monotonic())
            yield _Moment(frame, time.monotonic())

    def _stamped(self, items: Iterable[Frame | Pixels]) -> "Iterator[_Moment]":
        """Frames from anywhere with the time at which they came, where one is wanted."""
        start, next_tick = None, 0
        for item in items:
            now = time.monotonic()
            start = now if start is None else start
            ticks = (now - start) * self._fps
            if ticks >= next_tick:
                next_tick = math.floor(ticks) + 1
                frame = item if isinstance(item, Frame) else Frame.from_pixels(item, index=0, seconds=now - start)
                yield _Moment(frame, now)

    def _follow(self, source: Address) -> "Iterator[_Moment]":
        """The frames wanted of an address, over all its connections."""
        clock = _Clock()
        attempt = 0
        while True:
            before = clock.now
            is_over = False
            try:
                connection = Connection(source, timeout=self._timeout, realtime=self._realtime)
                yield from self._wanted(connection, clock)
                reason = "the source ended"
                is_over = connection.ends and (connection.is_complete or clock.now == before)
            except (Broken, UnreachableSource, UnreadableVideo) as error:
                if not clock.started and not isinstance(error, Broken):
                    raise
                reason = str(error).removeprefix(f"{self.name}: ")
            if not clock.started:  # nothing was lost: it never came
                raise UnreachableSource(f"{self.name}: no frame came ({reason})")
            if is_over or self._handover.closed:
                return
            if source.kind == "pipe":  # it cannot be opened again
                self._damage = self._damage or f"it breaks off after {clock.now:.1f} s ({reason})"
                return
            if clock.now > before:
                attempt = 0
            if attempt >= self._retries:
                tried = f"; tried again {attempt} times" if attempt else ""
                raise LostSource(f"{self.name}: lost after {clock.now:.1f} s ({reason}){tried}")
            delay = min(FIRST_DELAY * 2**attempt, LONGEST_DELAY)
            attempt += 1
            self._lost_at = self._lost_at or time.monotonic()
            self._note(f"{self.name}: lost ({reason}); trying again in {delay:g} s ({attempt} of {self._retries})")
            self._handover.sleep(delay)

    def _wanted(self, connection: Connection, clock: "_Clock") -> "Iterator[_Moment]":
        """The frames wanted of one connection."""
        self._handover.drops = not connection.waits
        clock.connect(step=connection.step, live=not connection.waits)
        start = time.monotonic()
        pictures = connection.pictures(is_wanted=lambda: not self._handover.closed, drop=self._handover.drop)
        for picture, stamp, arrived in pictures:
            seconds = clock.seconds(stamp, arrived)
            if seconds is None:
                continue  # it was there before a download broke off
            if self._lost_at is not None:
                self._note(f"{self.name}: is back after {time.monotonic() - self._lost_at:.0f} s")
                self.num_reconnects, self._lost_at = self.num_reconnects + 1, None
            if connection.undecodable and not self._damage:
                self._damage = f"some of its data cannot be decoded, the first after {seconds:.1f} s"
            if not self._is_due(seconds):
                continue
            if not (connection.waits or connection.arrives):
                self._handover.sleep(start + seconds - time.monotonic())
                arrived = time.monotonic()
            frame = Frame(picture, index=0, seconds=seconds, pixel_aspect=connection.pixel_aspect)
            yield _Moment(frame, arrived)
        if connection.undecodable and not self._damage:
            self._damage = f"some of its data cannot be decoded, the first after {clock.now:.1f} s"


class _Moment(NamedTuple):
    frame: Frame
    arrived: float
    """When it came in, by the monotonic clock."""


class _Handover:
    """The newest frames, on their way from the thread that decodes to the one that captions."""

    def __init__(self) -> None:
        self.drops = True
        """Whether frames that are not taken in time give way to newer ones; otherwise the newer ones wait."""
        self.num_dropped = 0
        self.closed = False
        """By the one who takes."""
        self._changed = threading.Condition()
        self._moments: collections.deque[_Moment] = collections.deque()
        self._ended = False
        self._error: Exception | None = None

    def put(self, moment: _Moment) -> bool:
        """Hand a frame over; False where nobody wants more."""
        with self._changed:
            if not self.drops:
                self._changed.wait_for(lambda: len(self._moments) < MAX_HELD or self.closed)
            self._moments.append(moment)
            if self.drops:
                self._drop_old()
            self._changed.notify_all()
            return not self.closed

    def _drop_old(self) -> None:
        now = time.monotonic()
        while len(self._moments) > MAX_HELD or (len(self._moments) > 1 and now - self._moments[0].arrived > PATIENCE):
            self._moments.popleft()
            self.drop()

    def drop(self) -> None:
        self.num_dropped += 1

    def end(self, error: Exception | None) -> None:
        """Nothing more will come; an error is raised after what is still to be taken."""
        with self._changed:
            self._ended, self._error = True, error
            self._changed.notify_all()

    def take(self, timeout: float) -> _Moment | None:
        """The next frame, once there is one; None at the end. TimeoutError: none came for so many seconds."""
        deadline = time.monotonic() + timeout
        with self._changed:
            while not self._moments and not self._ended:
                if time.monotonic() > deadline:
                    raise TimeoutError
                self._changed.wait(0.2)  # in short waits, so that Ctrl-C is heard on every system
            if self.drops:
                self._drop_old()
            moment = self._moments.popleft() if self._moments else None
            self._changed.notify_all()
        if moment is None and self._error is not None:
            raise self._error
        return moment

    def sleep(self, seconds: float) -> None:
        """Let time pass in the thread that puts, unless nobody takes any more."""
        with self._changed:
            self._changed.wait_for(lambda: self.closed, max(seconds, 0.0))

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()


class _Clock:
    """Seconds since the first frame of a source, ever increasing, whatever its time stamps do."""

    def __init__(self) -> None:
        self.now = 0.0
        self.started = False
        self._start = math.inf
        """The stamp of second 0; inf where the next stamp, whatever it is, follows on the last."""
        self._last_stamp = -math.inf
        self._arrived = math.inf
        self._step = 0.0
        self._live = self._resumes = False

    def connect(self, *, step: float, live: bool) -> None:
        """A new connection: to a live source, for which time has passed, or to one that starts from its beginning.

        step: seconds from frame to frame, where nothing tells better.
        """
        self._step, self._live, self._resumes = step, live, self.started and not live
        if live:
            self._start = math.inf

    def seconds(self, stamp: float | None, arrived: float) -> float | None:
        """When a frame is shown, by its stamp where that can be believed; None for one that was there already."""
        if self._resumes and stamp is not None and stamp <= self._last_stamp:
            return None
        self._resumes = False
        passed = max(arrived - self._arrived, self._step) if self._live else self._step
        before = self.now if self.started else -passed
        seconds = math.nan if stamp is None else stamp - self._start
        latest = before + passed + _TOLERATED_LEAP if self._live else math.inf
        if not before - _TOLERATED_STEP_BACK <= seconds <= latest:  # also where there is no stamp: nan is nowhere
            seconds = before + passed
            self._start = math.inf if stamp is None else stamp - seconds
        elif seconds <= before:
            seconds = before + self._step
        self.now, self.started, self._arrived = seconds, True, arrived
        self._last_stamp = self._last_stamp if stamp is None else stamp
        return seconds
