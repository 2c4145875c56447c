"""Many tasks at once, in processes or in threads, few of them read ahead: results in order, or as they are done."""

import contextlib
import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from queue import Empty, LifoQueue, SimpleQueue
from typing import Any, NamedTuple, NoReturn, TypeVar

from picknet.errors import PicknetError

Task = TypeVar("Task")
Result = TypeVar("Result")
Work = Callable[[Any], Any]
"""A task -> its result. Tasks, results and the work itself are pickled; what is large is better written to a file."""

CheckWanted = Callable[[], None]
"""Raises `NotWanted` once nobody waits for the result any more."""

MAX_ATTEMPTS = 2
"""A task whose worker dies is tried again by another; if that dies as well, the task is given up."""
AHEAD_PER_JOB = 8
"""Tasks per worker that are read before the results of earlier ones are taken: queued, at work, or done."""
AHEAD_PER_THREAD = 2
"""The same per thread: fewer, since tasks and results of threads may be large."""
GRACE_SECONDS = 1.0
"""A worker that is ended has so long to leave its files in order: pictures get an index, temporary files go."""
WAKE_SECONDS = 1.0
"""A thread that waits for results wakes up after so many seconds, so that it notices Ctrl-C in any case."""


class NotWanted(Exception):
    """Ends a task in a thread whose result nobody waits for."""


class LostProcess(PicknetError):
    """A task whose workers died."""


class TaskTimeout(PicknetError):
    """A task that took too long; its worker was ended."""


def in_order(
    work: Work,
    tasks: Iterable[Any],
    *,
    jobs: int,
    name: Callable[[Any], str] = str,
    timeout: float | None = None,
) -> Iterator[Any]:
    """work(task) for each task, in the order of the tasks; or the `PicknetError` it raised. Other errors are raised.

    Tasks are read lazily, by the caller's thread: at most `AHEAD_PER_JOB * jobs` tasks and results are in memory, even
    behind a slow task. With one job and no timeout the work is done in this process, otherwise by `jobs` worker
    processes. Each worker is given its share of the cores, so that its libraries do not start more threads than that.

    name: what a task is called in an error. timeout: seconds that a task may take, including what the work loads for
    its first task; then its worker is ended, and its result is a `TaskTimeout`.
    """
    if jobs == 1 and timeout is None:
        yield from (_result_or_error(work, task) for task in tasks)
        return
    with _processes(work, jobs=jobs, name=name, timeout=timeout) as (threads, do):
        for result in _in_turn(threads, do, tasks, max_ahead=AHEAD_PER_JOB * jobs):
            yield _checked(result)


def as_finished(
    work: Work,
    tasks: Iterable[Task],
    *,
    jobs: int,
    name: Callable[[Any], str] = str,
    timeout: float | None = None,
) -> Iterator[tuple[Task, Any]]:
    """As `in_order`, but in any order, each result with its task: no task waits for a slow one."""
    if jobs == 1 and timeout is None:
        yield from ((task, _result_or_error(work, task)) for task in tasks)
        return
    with _processes(work, jobs=jobs, name=name, timeout=timeout) as (threads, do):
        ahead: dict[Future[Any], Task] = {}
        finished: SimpleQueue[Future[Any]] = SimpleQueue()
        remaining = iter(tasks)
        while True:
            for task in itertools.islice(remaining, AHEAD_PER_JOB * jobs - len(ahead)):
                future = threads.submit(do, task)
                ahead[future] = task
                future.add_done_callback(finished.put)
            if not ahead:
                return
            future = _next(finished)
            yield ahead.pop(future), _checked(future.result())


def items_in_order(
    work: Work, tasks: Iterable[Any], *, timeout: float, name: Callable[[Any], str] = str
) -> Iterator[Iterator[Any]]:
    """For each task the items of work(task), which is an iterator, as they come from a worker process.

    What the work raises is raised, and `TaskTimeout` and `LostProcess` as well. The items of one task are taken before
    those of the next; closing an iterator early ends its task.
    """
    worker = Worker(work, timeout=timeout)
    with ThreadPoolExecutor(1, initializer=_block_ctrl_c) as thread:
        try:
            for task in tasks:
                yield worker.items(task, name(task), thread)
        finally:
            worker.close()


@contextlib.contextmanager
def _processes(
    work: Work, *, jobs: int, name: Callable[[Any], str], timeout: float | None
) -> Iterator[tuple[ThreadPoolExecutor, Callable[[Any], Any]]]:
    """`jobs` worker processes: a thread for each, and what a thread calls with a task."""
    workers = [Worker(work, number=number, jobs=jobs, timeout=timeout) for number in range(jobs)]
    idle: LifoQueue[Worker] = LifoQueue()  # one that has started is used before another is started
    for worker in reversed(workers):
        idle.put(worker)

    def do(task: Any) -> Any:
        worker = idle.get()
        try:
            return worker.do(task, name(task))
        finally:
            idle.put(worker)

    # Each thread only waits for a worker process.
    with ThreadPoolExecutor(jobs, initializer=_block_ctrl_c) as threads:
        try:
            yield threads, do
        finally:
            threads.shutdown(wait=False, cancel_futures=True)
            for worker in workers:
                worker.interrupt()
            for worker in workers:
                worker.close()


def _checked(result: Any) -> Any:
    if isinstance(result, Exception) and not isinstance(result, PicknetError):
        raise result
    return result


def in_threads(
    work: Callable[[Task, CheckWanted], Result], tasks: Iterable[Task], *, jobs: int
) -> Iterator[Result]:
    """work(task, check) for each task, in order, by `jobs` threads of this process.

    Tasks are read lazily, by the caller's thread, as in `in_order`. Closing the generator cancels the tasks that are
    queued, and ends those that run at their next `check()`.
    """
    is_closed = threading.Event()

    def check() -> None:
        if is_closed.is_set():
            raise NotWanted

    if jobs == 1:
        yield from (work(task, check) for task in tasks)
        return
    pool = ThreadPoolExecutor(jobs, thread_name_prefix="picknet")
    try:
        yield from _in_turn(pool, lambda task: work(task, check), tasks, max_ahead=AHEAD_PER_THREAD * jobs)
    finally:
        is_closed.set()
        pool.shutdown(cancel_futures=True)


def num_cores() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _in_turn(
    pool: ThreadPoolExecutor, do: Callable[[Task], Result], tasks: Iterable[Task], *, max_ahead: int
) -> Iterator[Result]:
    """The results of the tasks in order; at most `max_ahead` tasks are queued, at work, or done and not yet taken."""
    ahead: deque[Future[Result]] = deque()
    failure: Exception | None = None
    remaining = iter(tasks)
    while True:
        try:
            task = next(remaining)
        except StopIteration:
            break
        except Exception as error:  # noqa: BLE001 - raised below, after the results of the tasks before it
            failure = error
            break
        ahead.append(pool.submit(do, task))
        while ahead and (ahead[0].done() or len(ahead) >= max_ahead):
            _wait_for(ahead[0])
            yield ahead.popleft().result()
    while ahead:
        _wait_for(ahead[0])
        yield ahead.popleft().result()
    if failure is not None:
        raise failure


def _wait_for(future: Future[Any]) -> None:
    finished: SimpleQueue[Future[Any]] = SimpleQueue()
    future.add_done_callback(finished.put)
    _next(finished)


def _next(finished: SimpleQueue[Future[Any]]) -> Future[Any]:
    """The next finished task. Waiting without an end, the main thread could miss Ctrl-C: where the signal arrives just
    before it falls asleep, Python only notices when it wakes up. `concurrent.futures.wait` would leave a lock taken
    where it arrives as it wakes up, and the thread that reports a result would wait for that lock for ever.
    """
    while True:
        with contextlib.suppress(Empty):
            return finished.get(timeout=WAKE_SECONDS)


class Worker:
    """A process that does one task at a time, and is started again if it dies. It starts with its first task.

    number, jobs: this is worker `number` of `jobs`, each of which gets its share of the cores. timeout: as in
    `in_order`.
    """

    def __init__(self, work: Work, *, number: int = 0, jobs: int = 1, timeout: float | None = None) -> None:
        self._work = work
        self._number = number
        self._jobs = jobs
        self._timeout = timeout
        self._lock = threading.Lock()  # `close` is called by another thread than `do`
        self._is_closed = False
        self._process: SpawnProcess | None = None
        self._connection: Connection | None = None

    def do(self, task: Any, name: str) -> Any:
        """work(task), or the exception it raised; `LostProcess` and `TaskTimeout` are returned as well."""
        exit_code = None
        for _ in range(MAX_ATTEMPTS):
            try:
                connection = self._start()
                if connection is None:
                    break
                connection.send(task)
                if connection.poll(self._timeout):
                    return connection.recv()
                return self._stopped(name)
            except (EOFError, OSError):
                exit_code = self._end()
        return LostProcess(f"{name}: two worker processes died (last exit code {exit_code})")

    def items(self, task: Any, name: str, thread: ThreadPoolExecutor) -> Iterator[Any]:
        """See `items_in_order`. thread: starts the process."""
        assert self._timeout is not None
        ends = time.monotonic() + self._timeout
        is_done = False
        try:
            connection = thread.submit(self._start).result()
            if connection is None:
                return
            connection.send(task)
            while connection.poll(max(ends - time.monotonic(), 0.0)):
                found = connection.recv()
                if isinstance(found, _Item):
                    yield found.value
                    continue
                is_done = True
                if found is not None:
                    raise found
                return
            raise self._stopped(name)
        except (EOFError, ConnectionError) as error:
            raise LostProcess(f"{name}: its worker process died (exit code {self._end()})") from error
        finally:
            if not is_done:
                self._end()

    def interrupt(self) -> None:
        """Begin to close it, without waiting."""
        with self._lock:
            self._is_closed = True
            if self._process is not None:
                self._process.terminate()

    def close(self) -> None:
        self.interrupt()
        self._end()

    def _start(self) -> Connection | None:
        """The connection to the process, which is started if there is none; None if the worker was closed."""
        with self._lock:
            if self._is_closed or self._connection is not None:
                return None if self._is_closed else self._connection
            # Not forked: OpenVINO's threads do not survive a fork.
            context = multiprocessing.get_context("spawn")
            connection, theirs = context.Pipe()
            arguments = (theirs, self._work, self._number, self._jobs)
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            theirs.close()
            self._process, self._connection = process, connection
        connection.recv()  # it has started; the timeout is for tasks
        return connection

    def _stopped(self, name: str) -> TaskTimeout:
        self._end()
        return TaskTimeout(f"{name}: took longer than {self._timeout:g} s and was stopped")

    def _end(self) -> int | None:
        with self._lock:
            process, self._process, self._connection = self._process, None, None
            if process is None:
                return None
            process.terminate()
            process.join(GRACE_SECONDS)
            process.kill()
            process.join()
            return process.exitcode


def _block_ctrl_c() -> None:
    """Keep Ctrl-C from processes that this thread starts, which would each print a traceback while they import."""
    if hasattr(signal, "pthread_sigmask"):
        resource_tracker.ensure_running()  # starting the first worker would start it, and unblock the signal
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})


# --- In a worker process ---

_ENDED = 143
"""Its exit code after SIGTERM."""


def _serve(connection: Connection, work: Work, number: int, jobs: int) -> None:
    """Do tasks until the connection is closed, or the parent ends this process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    signal.signal(signal.SIGTERM, _unwind)
    threading.Thread(target=_end_with_parent, daemon=True).start()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)  # what is typed is for the parent
    if hasattr(os, "sched_setaffinity"):
        cores = sorted(os.sched_getaffinity(0))
        os.sched_setaffinity(0, cores[number::jobs] or cores)  # FFmpeg and OpenVINO start a thread for each of these
    try:
        with contextlib.suppress(EOFError, OSError):  # the parent is gone
            connection.send(None)
            while True:
                task = connection.recv()
                try:
                    result = _result_or_error(work, task)
                except Exception as error:  # noqa: BLE001
                    result = error  # a bug; the parent raises it
                if isinstance(result, Iterator):
                    result = _send_items(connection, result)
                try:
                    connection.send(result)
                except OSError:
                    raise
                except Exception as error:  # noqa: BLE001
                    connection.send(TypeError(f"{type(result).__name__}: cannot be sent by a worker ({error})"))
    except SystemExit:
        os._exit(_ENDED)  # at once, whatever its libraries still do


class _Item(NamedTuple):
    """One of many results of a task."""

    value: Any


def _send_items(connection: Connection, items: Iterator[Any]) -> Exception | None:
    """Send each item; what came of the task: None, or the exception that ended it."""
    try:
        for item in items:
            connection.send(_Item(item))
    except ConnectionError:  # the parent is gone
        raise
    except Exception as error:  # noqa: BLE001
        return error
    return None


def _unwind(*_: object) -> NoReturn:
    """Let what the process is doing leave its files in order."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise SystemExit(_ENDED)


def _end_with_parent() -> None:
    """Without this a worker would finish its task before it notices that nobody waits for the result."""
    if parent := multiprocessing.parent_process():
        parent.join()
        os._exit(1)


def _result_or_error(work: Work, task: Any) -> Any:
    try:
        return work(task)
    except PicknetError as error:
        return error


def read_ahead(items: Iterable[Task], *, count: int) -> Generator[Task, None, None]:
    """The items in their order, of which a thread reads `count` before they are asked for, and one more.

    Closing it ends the thread: what it reads may be closed afterwards.
    """
    ready: SimpleQueue[tuple[Task | None, BaseException | None]] = SimpleQueue()
    wanted = threading.Semaphore(count)
    is_closed = threading.Event()

    def read() -> None:
        error: BaseException = StopIteration()
        try:
            for item in items:
                ready.put((item, None))
                wanted.acquire()
                if is_closed.is_set():
                    return
        except BaseException as raised:  # noqa: BLE001 - whatever it is, it is raised where the items are used
            error = raised
        ready.put((None, error))

    thread = threading.Thread(target=read, name="picknet-ahead", daemon=True)
    try:
        thread.start()  # which waits for it, so that a signal may end this right here
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            wanted.release()
            yield item  # type: ignore[misc]  # not None where there is no error
    finally:
        is_closed.set()
        wanted.release()
        for _ in range(1000):  # a thread that has only begun to start cannot be joined yet
            if thread.is_alive() or thread not in threading.enumerate():
                break
            time.sleep(0.001)
        if thread.is_alive():
            thread.join()
