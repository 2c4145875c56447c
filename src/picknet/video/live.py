"""Frames from sources that set their own pace: cameras, network streams, pipes, arrays.

A file waits for its reader. A live source does not, so two threads follow it: one receives packets as they arrive, one
decodes them and queues the newest frames. A reader that is slower than the source misses frames: the queue is short,
and no frame stays in it for longer than a second.
"""

import contextlib
import itertools
import logging
import math
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from types import TracebackType
from typing import Any, Self, cast

from picknet.config import GlanceKind
from picknet.errors import BadSetting
from picknet.video.file import Video
from picknet.video.follower import Follower, LostSource
from picknet.video.frame import Frame, checked_fps, frames_from
from picknet.video.frame_queue import Arrival, FrameQueue
from picknet.video.source import Location, Pixels, Source, UnreachableSource, is_binary_file, is_open_pipe, locate

__all__ = ["BadSetting", "Live", "LostSource", "checked_fps"]

_LOG = logging.getLogger("picknet")


class Live:
    """The frames of a source, `fps` of them a second, as they come. It can be iterated once.

    Files, downloads, pipes and arrays wait for the reader. Cameras and network streams do not, and with `realtime`
    nothing does: files are read at their own speed, arrays get the time at which they arrive. Then frames that are not
    read within a second are dropped.

    A source that sends no frame for `timeout` seconds is an error at first. Later it counts as lost, and is tried again
    `retries` times at increasing intervals, until frames arrive again; `note` receives a line about each of these. A
    pipe cannot be opened again, so that it is an error, too.

    source: an open `Video` has its own kind of glance, and belongs to the caller: it stays open, and is not read in a
        second thread, as `realtime` would need.
    glance: the kind of glance that frames shall have, as for `Video`.
    """

    def __init__(
        self,
        source: Source | Video,
        *,
        fps: float = 1.0,
        realtime: bool = False,
        timeout: float = 15.0,
        retries: int = 10,
        glance: GlanceKind = "grey",
        note: Callable[[str], object] = _LOG.warning,
    ) -> None:
        if not 0 < timeout < math.inf:
            raise BadSetting(f"timeout is {timeout}: more than 0 seconds are needed")
        if retries < 0:
            raise BadSetting(f"retries is {retries}: 0 (give up at once) or more are possible")
        if realtime and isinstance(source, Video):
            raise BadSetting(f"realtime is True, and {source.name} an open Video: give the path instead")
        self._fps = checked_fps(fps)
        self._realtime = realtime
        self._timeout = timeout
        self._glance = glance
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
        self._queue = FrameQueue()
        self._follower: Follower | None = None
        if self._location is not None:
            self._follower = Follower(
                self._location,
                self._queue,
                fps=fps,
                realtime=realtime,
                timeout=timeout,
                retries=retries,
                glance=glance,
                note=note,
            )
        self._arrived: float | None = None
        self.num_frames = 0
        """Frames read so far."""
        self.seconds = 0.0
        """Presentation time of the last of them, counted from the first."""
        self.max_lag: float | None = None
        """The longest lag measured so far."""

    def _classify(self, source: Source | Video) -> None:
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
        elif isinstance(source, Video):
            self.name, self._finite = source.name, source
        else:
            self._given = cast("Iterable[Frame | Pixels]", source)
            self._frames_given = frames_from(self._given, fps=self._fps)

    @property
    def damage(self) -> str | None:
        """What could not be decoded so far, in one line."""
        reader = self._video or self._follower
        return reader.damage if reader else None

    @property
    def num_reconnects(self) -> int:
        return self._follower.num_reconnects if self._follower else 0

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
        if self._follower is not None:
            return self._queued(self._follower.arrivals())
        if self._finite is not None:
            return self._queued(self._paced()) if self._realtime else self._sampled()
        return self._queued(self._timed_by_arrival()) if self._realtime else self._frames_given

    def _sampled(self) -> Iterator[Frame]:
        """The frames of a finite video."""
        is_open = isinstance(self._finite, Video)
        opened = contextlib.nullcontext(self._finite) if is_open else Video(self._finite, glance=self._glance)
        with opened as self._video:
            yield from self._video.sample_by_time(fps=self._fps)

    # --- In a second thread ---

    def _queued(self, arrivals: Iterator[Arrival]) -> Iterator[Frame]:
        """The frames that a thread reads from `arrivals` and puts into the queue."""
        queue = self._queue
        is_pipe = self._location is not None and self._location.kind == "pipe"

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
                # Pauses of a connection are noticed by the follower; those of files and arrays are theirs.
                arrival = queue.take(self._timeout if is_pipe or not index else math.inf)
                if arrival is None:
                    return
                arrival.frame.index = index
                self._arrived = arrival.arrived if queue.drops else None
                yield arrival.frame
        except TimeoutError:
            if self.num_frames:
                pause = f"no frame for {self._timeout:g} s"
                raise LostSource(f"{self.name}: lost after {self.seconds:.1f} s ({pause})") from None
            raise UnreachableSource(f"{self.name}: no frame received within {self._timeout:g} s") from None
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
