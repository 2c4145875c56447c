"""Following a live source over lost connections."""

import time
from collections.abc import Callable, Iterator

from picknet.config import GlanceKind
from picknet.errors import PicknetError
from picknet.video.access import check_pixels
from picknet.video.connection import BrokenConnection, Connection
from picknet.video.frame import Frame, PacketBytes, sampling_clock
from picknet.video.frame_queue import Arrival, FrameQueue
from picknet.video.motion import Motion
from picknet.video.source import Location, UnreachableSource, UnreadableVideo
from picknet.video.stream_clock import StreamClock

FIRST_DELAY, LONGEST_DELAY = 1.0, 30.0
"""Seconds before a lost source is tried again; they double from the first to the longest."""


class LostSource(PicknetError):
    """A live source that broke off and could not be reached again."""


class Follower:
    """The frames of a pipe, a camera or an address, `fps` of them a second; connects again when it is lost.

    queue: where the frames go; the source is followed until it is closed. The other arguments are those of `Live`.
    """

    def __init__(
        self,
        location: Location,
        queue: FrameQueue,
        *,
        fps: float,
        realtime: bool,
        timeout: float,
        retries: int,
        glance: GlanceKind,
        note: Callable[[str], object],
    ) -> None:
        self._location = location
        self._queue = queue
        self._realtime = realtime
        self._timeout = timeout
        self._retries = retries
        self._glance = glance
        self._note = note
        self._is_due = sampling_clock(fps)
        self._lost_at: float | None = None
        self.num_reconnects = 0
        self.damage: str | None = None
        """What could not be decoded so far, in one line."""

    def arrivals(self) -> Iterator[Arrival]:
        """The frames that are due, over all connections."""
        clock = StreamClock()
        attempt = 0
        while True:
            before = clock.now
            is_over = False
            try:
                connection = Connection(
                    self._location,
                    timeout=self._timeout,
                    realtime=self._realtime,
                    glance=self._glance,
                    note=self._note,
                    on_data=self._queue.keep_alive,
                )
                yield from self._due_frames(connection, clock)
                reason = "the source ended"
                is_over = connection.ends and (connection.is_complete or clock.now == before)
            except (BrokenConnection, UnreachableSource, UnreadableVideo) as error:
                if not clock.started and not isinstance(error, BrokenConnection):
                    raise
                reason = str(error).removeprefix(f"{self._location.name}: ")
            except MemoryError:
                reason = "it needs too much memory"
            if not clock.started:  # it is not lost: it was never there
                raise UnreachableSource(f"{self._location.name}: no frame received ({reason})")
            if is_over or self._queue.closed:
                return
            if self._location.kind == "pipe":  # it cannot be opened again
                self.damage = self.damage or f"it breaks off after {clock.now:.1f} s ({reason})"
                return
            if clock.now > before:
                attempt = 0
            if attempt >= self._retries:
                tried = f"; tried again {attempt} times" if attempt else ""
                raise LostSource(f"{self._location.name}: lost after {clock.now:.1f} s ({reason}){tried}")
            delay = min(FIRST_DELAY * 2**attempt, LONGEST_DELAY)
            attempt += 1
            self._lost_at = self._lost_at or time.monotonic()
            again = f"trying again in {delay:g} s ({attempt} of {self._retries})"
            self._note(f"{self._location.name}: lost ({reason}); {again}")
            self._queue.sleep(delay)

    def _due_frames(self, connection: Connection, clock: StreamClock) -> Iterator[Arrival]:
        """The frames that are due, of one connection."""
        self._queue.drops = not connection.waits
        clock.connect(step=connection.step, live=not connection.waits)
        start = time.monotonic()
        motion = Motion() if self._glance == "motion" else None
        before = PacketBytes()
        pictures = connection.pictures(is_wanted=lambda: not self._queue.closed, drop=self._queue.drop)
        for picture, timestamp, arrived in pictures:
            self._queue.keep_alive()
            if motion:
                motion.add(picture)
            seconds = clock.seconds(timestamp, arrived)
            if seconds is None:
                continue  # it came before the download broke off
            if self._lost_at is not None:
                self._note(f"{self._location.name}: back after {time.monotonic() - self._lost_at:.0f} s")
                self.num_reconnects, self._lost_at = self.num_reconnects + 1, None
            self._record_damage(connection, seconds)
            if not self._is_due(seconds):
                continue
            if not (connection.waits or connection.arrives):
                self._queue.sleep(start + seconds - time.monotonic())
                arrived = time.monotonic()
            check_pixels(picture.width, picture.height, self._location.name)  # which may change on the way
            sums = PacketBytes(keys=connection.key_bytes, others=connection.other_bytes)
            frame = Frame(
                picture,
                index=0,
                seconds=seconds,
                pixel_aspect=connection.pixel_aspect,
                motion=motion.take(picture) if motion else None,
                packets=PacketBytes(keys=sums.keys - before.keys, others=sums.others - before.others),
            )
            before = sums
            yield Arrival(frame, arrived)
        self._record_damage(connection, clock.now)

    def _record_damage(self, connection: Connection, seconds: float) -> None:
        if connection.undecodable and not self.damage:
            self.damage = f"some of its data cannot be decoded, the first after {seconds:.1f} s"
