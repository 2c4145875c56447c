"""Many tasks, several threads: results in the order of the tasks, few tasks read ahead."""

import os
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

Task = TypeVar("Task")
Result = TypeVar("Result")
CheckWanted = Callable[[], None]
"""Raises `NotWanted` once nobody waits for the result any more."""

TASKS_AHEAD = 2
"""Tasks read ahead for each thread: enough to keep it busy behind a slow task, few enough for tasks that are large."""


class NotWanted(Exception):
    """Ends a task whose result nobody waits for."""


def in_order(
    work: Callable[[Task, CheckWanted], Result], tasks: Iterable[Task], *, jobs: int
) -> Iterator[Result]:
    """work(task, check) for each task, in order. Tasks are read in the caller's thread, as they are needed.

    Closing the generator cancels the tasks that are queued, and ends those that run at their next `check()`.
    """
    closed = threading.Event()

    def check() -> None:
        if closed.is_set():
            raise NotWanted

    if jobs == 1:
        for task in tasks:
            yield work(task, check)
        return
    running: deque[Future[Result]] = deque()
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="picknet")
    try:
        for task in tasks:
            running.append(pool.submit(work, task, check))
            while running and (running[0].done() or len(running) > TASKS_AHEAD * jobs):
                yield running.popleft().result()
        while running:
            yield running.popleft().result()
    finally:
        closed.set()
        pool.shutdown(cancel_futures=True)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
