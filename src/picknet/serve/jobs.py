"""Work for long films: queued, run by a few threads, asked about while it runs, cancelled, and forgotten in time."""

import secrets
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from picknet.errors import PicknetError
from picknet.results import Segment

KEPT_SECONDS = 3600.0
"""For which a finished job can be asked for its result."""
MAX_KEPT = 256
"""Finished jobs that are kept; the oldest goes first."""


class Busy(PicknetError):
    """More work than the queue holds."""


class Cancelled(PicknetError):
    """A job that was cancelled, or that the service did not finish before it stopped."""


class State(StrEnum):
    queued = "queued"
    running = "running"
    done = "done"
    failed = "failed"
    cancelled = "cancelled"


@dataclass
class Job:
    """The timeline of one film, as far as it is known. A worker writes it, others read it."""

    video: str
    id: str = field(default_factory=lambda: secrets.token_urlsafe(16))
    state: State = State.queued
    seconds: float = 0.0
    """How far the film has been watched."""
    begin: float = 0.0
    """As `Video.begin`."""
    total_seconds: float | None = None
    """Length of the film; None while it is unknown."""
    segments: list[Segment] = field(default_factory=list)
    error: PicknetError | None = None
    ended: float | None = None
    reason: str = "cancelled"
    wants_end: threading.Event = field(default_factory=threading.Event)
    is_over: threading.Event = field(default_factory=threading.Event)
    release: Callable[[], object] = lambda: None
    """Called when it is over."""
    turn: Future[None] | None = None
    """What waits in the queue."""

    def check(self) -> None:
        """Raise `Cancelled` once nobody wants the job any more."""
        if self.wants_end.is_set():
            raise Cancelled(f"{self.video}: {self.reason}")

    def cancel(self, reason: str = "cancelled") -> None:
        """One that is queued is over at once, one that runs at its next frame."""
        if self.is_over.is_set():
            return  # it keeps the reason that it was ended for
        self.reason = reason
        self.wants_end.set()
        if self.turn is not None and self.turn.cancel():
            self.end(State.cancelled, Cancelled(f"{self.video}: {reason}"))

    def end(self, state: State, error: PicknetError | None = None) -> None:
        self.release()
        self.error, self.ended, self.state = error, time.monotonic(), state
        self.is_over.set()

    def to_dict(self) -> dict[str, Any]:
        """The job as JSON types. All keys are always present."""
        return {
            "id": self.id,
            "video": self.video,
            "state": self.state.value,
            "seconds": round(self.seconds, 3),
            "total_seconds": None if self.total_seconds is None else round(self.total_seconds, 3),
            "num_segments": len(self.segments),
            "error": None if self.error is None else str(self.error),
        }


class Jobs:
    """All jobs of a service. Thread-safe."""

    def __init__(self, *, threads: int, queue: int) -> None:
        """queue: jobs that may wait beyond those that run."""
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="picknet job")
        self._max_open = threads + queue
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}

    def submit(self, video: str, work: Callable[[Job], Iterator[Segment]], release: Callable[[], object]) -> Job:
        """Queue a job. work: writes the progress into the job, and yields segments. release: called when it is over."""
        job = Job(video, release=release)
        with self._lock:
            self._forget_old()
            if self.num_open >= self._max_open:
                raise Busy(f"{self._max_open} timelines are queued or running, which is the limit")
            self._jobs[job.id] = job
        job.turn = self._pool.submit(self._run, job, work)
        return job

    def get(self, id: str) -> Job | None:
        with self._lock:
            self._forget_old()
            return self._jobs.get(id)

    @property
    def num_open(self) -> int:
        return sum(job.ended is None for job in list(self._jobs.values()))

    def stop(self, reason: str) -> None:
        """Cancel all jobs: each ends at its next frame."""
        with self._lock:
            jobs = list(self._jobs.values())
        for job in jobs:
            job.cancel(reason)

    def close(self) -> None:
        """Wait for the threads."""
        self._pool.shutdown(wait=True)

    def _run(self, job: Job, work: Callable[[Job], Iterator[Segment]]) -> None:
        try:
            job.check()
            job.state = State.running
            for segment in work(job):
                job.segments.append(segment)
        except Cancelled as error:
            job.end(State.cancelled, error)
        except PicknetError as error:
            job.end(State.failed, error)
        except BaseException:
            job.end(State.failed, PicknetError(f"{job.video}: internal error"))
            raise
        else:
            job.end(State.done)

    def _forget_old(self) -> None:
        ended = sorted((job.ended, job.id) for job in self._jobs.values() if job.ended is not None)
        oldest = time.monotonic() - KEPT_SECONDS
        for position, (when, id) in enumerate(ended):
            if when < oldest or len(ended) - position > MAX_KEPT:
                del self._jobs[id]
