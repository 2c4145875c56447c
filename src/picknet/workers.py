"""Many files, several processes: results in the order of the files, and nothing lost with a process that dies."""

import multiprocessing
import os
import signal
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import SimpleQueue
from typing import Any

from picknet.errors import PicknetError

Work = Callable[[Any], Any]
"""A task -> its result. Tasks, results and the work itself are sent from one process to another."""

MAX_ATTEMPTS = 2
"""A task whose process dies is done again; if that dies, too, it is the task's fault."""


class LostProcess(PicknetError):
    """A task that no process survived."""


def in_order(work: Work, tasks: Iterable[Any], *, jobs: int, name: Callable[[Any], str] = str) -> Iterator[Any]:
    """work(task) for each task, in order, each as soon as those before it are known; or the `PicknetError` it raised.

    With one job it is done here, otherwise by so many processes. Each has cores of its own, where there are enough, so
    that no process starts more threads than it can run. name: what a task is called if no process survives it.
    """
    if jobs == 1:
        yield from (_tried(work, task) for task in tasks)
        return
    workers = [_Worker(work, place=place, jobs=jobs) for place in range(jobs)]
    idle: SimpleQueue[_Worker] = SimpleQueue()
    for worker in workers:
        idle.put(worker)

    def done(task: Any) -> Any:
        worker = idle.get()
        try:
            return worker.do(task, name(task))
        finally:
            idle.put(worker)

    # A thread for each process does nothing but wait for it.
    with ThreadPoolExecutor(jobs) as waiting:
        try:
            for result in waiting.map(done, tasks):
                if isinstance(result, Exception) and not isinstance(result, PicknetError):
                    raise result
                yield result
        finally:
            waiting.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.close()


class _Worker:
    """A process that does one task after the other, and another one should it die."""

    def __init__(self, work: Work, *, place: int, jobs: int) -> None:
        self._work = work
        self._place = place
        self._jobs = jobs
        self._is_closed = False
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def do(self, task: Any, name: str) -> Any:
        code = None
        for _ in range(MAX_ATTEMPTS):
            if self._is_closed:
                break
            try:
                connection = self._connected()
                connection.send(task)
                return connection.recv()
            except (EOFError, OSError):
                code = self._end()
        return LostProcess(f"{name}: the process at work on it died, twice (exit code {code})")

    def close(self) -> None:
        self._is_closed = True
        self._end()

    def _connected(self) -> Connection:
        if self._connection is None:
            # Not forked: a process with OpenVINO's threads cannot be.
            context = multiprocessing.get_context("spawn")
            self._connection, theirs = context.Pipe()
            arguments = (theirs, self._work, self._place, self._jobs)
            self._process = context.Process(target=_serve, args=arguments, daemon=True)
            self._process.start()
            theirs.close()
        return self._connection

    def _end(self) -> int | None:
        process, self._process, self._connection = self._process, None, None
        if process is None:
            return None
        process.terminate()
        process.join()
        return process.exitcode


def _serve(connection: Connection, work: Work, place: int, jobs: int) -> None:
    """What a process does, until nobody is there to send it a task."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the first process, which ends this one
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[place::jobs] or cores)  # both FFmpeg and OpenVINO count these
    while True:
        try:
            task = connection.recv()
        except (EOFError, OSError):
            return
        try:
            result = _tried(work, task)
        except Exception as error:  # noqa: BLE001
            result = error  # a bug; the first process raises it
        connection.send(result)


def _tried(work: Work, task: Any) -> Any:
    try:
        return work(task)
    except PicknetError as error:
        return error
