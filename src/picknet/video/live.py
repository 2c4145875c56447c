"""Frames from sources that set their own pace: cameras, network streams, pipes, arrays.

A file waits for its reader. A live source does not, so two threads follow it: one receives packets as they arrive, one
decodes them and queues the newest frames. A reader that is slower than the source misses frames: the queue is short,
and no frame stays in it for longer than a second.
"""

import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, cast

from picknet.errors import BadSetting, PicknetError
from picknet.video.connection import BrokenConnection, Connection
from picknet.video.file import UnreadableVideo, Video
from picknet.video.frame import Frame, checked_fps, frames_from, sampling_clock
from picknet.video.frame_queue import Arrival, FrameQueue
from picknet.video.source import Location, Pixels, Source, UnreachableSource, is_binary_file, is_open_pipe, locate
from picknet.video.stream_clock import StreamClock

__all__ = ["BadSetting", "Live", "LostSource", "checked_fps"]

FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds before a lost source is tried again; they double from the first to the longest."""

_LOG = logging.getLogger("picknet")


class LostSource(PicknetError):
    """A live source that broke off and could not be reached again."""


class Live:
    """The frames of a source, `fps` of them a second, as they come. It can be iterated once.

    Files, downloads, pipes and arrays wait for the reader. Cameras and network streams do not, and with `realtime`
    nothing does: files are read at their own speed, arrays get the time at which they arrive. Then frames that are not
    read within a second are dropped.

    A source that sends no frame for `timeout` seconds is an error at first. Later it counts as lost, and is tried again
    `retries` times at increasing intervals, until frames arrive again; `note` receives a line about each of these.
    """

    def __init__(
        self,
        source: Source,
        *,
        fps: float = 1.0,
        realtime: bool = False,
        timeout: float = 15.0,
        retries: int = 10,
        note: Callable[[str], object] = _LOG.warning,
    ) -> None:
        if not 0 < timeout < math.inf:
            raise BadSetting(f"timeout is {timeout}: more than 0 seconds are needed")
        if retries < 0:
            raise BadSetting(f"retries is {retries}: 0 (give up at once) or more are possible")
        self._fps = checked_fps(fps)
        self._realtime = realtime
        self._timeout = timeout
        self._retries = retries
        self._note = note
        self._location: Location | None = None
        """Of a pipe, a camera or a stream."""
        self._finite: Any = None
        """What `Video` reads."""
        self._given: Iterable[Frame | Pixels] = ()
        self._frames_given: Iterator[Frame] = iter(())
        self.name = "frames"
        """What the source is called, without a password."""
        self._classify(source)
        self._video: Video | None = None
        self._damage: str | None = None
        self._queue = FrameQueue()
        self._arrived: float | None = None
        self._lost_at: float | None = None
        self._is_due = sampling_clock(fps)
        self.num_frames = 0
        """Frames read so far."""
        self.seconds = 0.0
        """Presentation time of the last of them, counted from the first."""
        self.num_reconnects = 0
        self.max_lag: float | None = None
        """The longest lag measured so far."""

    def _classify(self, source: Source) -> None:
        if isinstance(source, str | os.PathLike | int):
            location = locate(source)
            self.name = location.name
            if location.kind == "file":
                self._finite = location.url
            else:
                self._location = location
        elif isinstance(source, bytes | bytearray):
            self.name, self._finite = "bytes", source
        elif is_binary_file(source):
            self.name = source.name if isinstance(getattr(source, "name", None), str) else "file"
            if is_open_pipe(source):
                self._location = Location("pipe", self.name, "", file=source)
            else:
                self._finite = source
        else:
            self._given = cast("Iterable[Frame | Pixels]", source)
            self._frames_given = frames_from(self._given, fps=self._fps)

    @property
    def damage(self) -> str | None:
        """What could not be decoded so far, in one line."""
        return self._video.damage if self._video else self._damage

    @property
    def num_dropped(self) -> int:
        """Frames that came too fast: sampled ones that newer ones replaced, and packets that were skipped."""
        return self._queue.num_dropped

    @property
    def lag(self) -> float | None:
        """Seconds since the last frame that was read arrived; None for a source that waits."""
        if self._arrived is None:
            return None
        lag = time.monotonic() - self._arrived
        self.max_lag = max(lag, self.max_lag or 0.0)
        return lag

    @property
    def is_live(self) -> bool:
        """Whether frames may come faster than they are read. For an address this is known once it is open."""
        return self._realtime or self._location is not None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """End it. A connection on which nothing arrives is released within `timeout` seconds."""
        self._queue.close()

    def __iter__(self) -> Iterator[Frame]:
        for frame in self._frames():
            self.num_frames += 1
            self.seconds = frame.seconds
            yield frame

    def _frames(self) -> Iterator[Frame]:
        if self._location is not None:
            return self._queued(self._followed(self._location))
        if self._finite is not None:
            return self._queued(self._paced()) if self._realtime else self._sampled()
        return self._queued(self._timed_by_arrival()) if self._realtime else self._frames_given

    def _sampled(self) -> Iterator[Frame]:
        """The frames of a finite video."""
        with Video(self._finite) as self._video:
            yield from self._video.sample_by_time(fps=self._fps)

    # --- In a second thread ---

    def _queued(self, arrivals: Iterator[Arrival]) -> Iterator[Frame]:
        """The frames that a thread reads from `arrivals` and puts into the queue."""
        queue = self._queue

        def read() -> None:
            try:
                for arrival in arrivals:
                    if not queue.put(arrival):
                        break
                queue.end(None)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is raised in the reader's thread
                queue.end(error)

        threading.Thread(target=read, name="picknet live", daemon=True).start()
        try:
            for index in itertools.count():
                arrival = queue.take(math.inf if index else self._timeout)
                if arrival is None:
                    return
                arrival.frame.index = index
                self._arrived = arrival.arrived if queue.drops else None
                yield arrival.frame
        except TimeoutError:
            raise UnreachableSource(f"{self.name}: no frame came within {self._timeout:g} s") from None
        finally:
            self.close()

    def _paced(self) -> Iterator[Arrival]:
        """The frames of a file, none before its time."""
        start = time.monotonic()
        for frame in self._sampled():
            self._queue.sleep(start + frame.seconds - time.monotonic())
            yield Arrival(frame, time.monotonic())

    def _timed_by_arrival(self) -> Iterator[Arrival]:
        """The arrays that arrive when a frame is due, with the time of their arrival."""
        start, next_tick = None, 0
        for item in self._given:
            now = time.monotonic()
            start = now if start is None else start
            ticks = (now - start) * self._fps
            if ticks >= next_tick:
                next_tick = math.floor(ticks) + 1
                frame = item if isinstance(item, Frame) else Frame.from_pixels(item, index=0, seconds=now - start)
                yield Arrival(frame, now)

    def _followed(self, location: Location) -> Iterator[Arrival]:
        """The frames that are due, over all connections to a source."""
        clock = StreamClock()
        attempt = 0
        while True:
            before = clock.now
            is_over = False
            try:
                connection = Connection(
                    location,
                    timeout=self._timeout,
                    realtime=self._realtime,
                    note=self._note,
                    on_data=self._queue.keep_alive,
                )
                yield from self._due_frames(connection, clock)
                reason = "the source ended"
                is_over = connection.ends and (connection.is_complete or clock.now == before)
            except (BrokenConnection, UnreachableSource, UnreadableVideo) as error:
                if not clock.started and not isinstance(error, BrokenConnection):
                    raise
                reason = str(error).removeprefix(f"{self.name}: ")
            if not clock.started:  # it is not lost: it was never there
                raise UnreachableSource(f"{self.name}: no frame came ({reason})")
            if is_over or self._queue.closed:
                return
            if location.kind == "pipe":  # it cannot be opened again
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
            self._queue.sleep(delay)

    def _due_frames(self, connection: Connection, clock: StreamClock) -> Iterator[Arrival]:
        """The frames that are due, of one connection."""
        self._queue.drops = not connection.waits
        clock.connect(step=connection.step, live=not connection.waits)
        start = time.monotonic()
        pictures = connection.pictures(is_wanted=lambda: not self._queue.closed, drop=self._queue.drop)
        for picture, timestamp, arrived in pictures:
            seconds = clock.seconds(timestamp, arrived)
            if seconds is None:
                continue  # it came before the download broke off
            if self._lost_at is not None:
                self._note(f"{self.name}: back after {time.monotonic() - self._lost_at:.0f} s")
                self.num_reconnects, self._lost_at = self.num_reconnects + 1, None
            self._record_damage(connection, seconds)
            if not self._is_due(seconds):
                continue
            if not (connection.waits or connection.arrives):
                self._queue.sleep(start + seconds - time.monotonic())
                arrived = time.monotonic()
            yield Arrival(Frame(picture, index=0, seconds=seconds, pixel_aspect=connection.pixel_aspect), arrived)
        self._record_damage(connection, clock.now)

    def _record_damage(self, connection: Connection, seconds: float) -> None:
        if connection.undecodable and not self._damage:
            self._damage = f"some of its data cannot be decoded, the first after {seconds:.1f} s"
