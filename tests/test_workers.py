"""Worker processes: the results of one process in the same order, bounded memory, and no process left behind."""

import itertools
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from picknet.errors import PicknetError
from picknet.workers import (
    AHEAD_PER_JOB,
    LostProcess,
    TaskTimeout,
    as_finished,
    in_order,
    items_in_order,
    read_ahead,
)

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "cockatoo.mp4"


def slow_at_first(number: int) -> tuple[int, int]:
    time.sleep(0.2 if number == 0 else 0.0)
    return number, os.getpid()


def refuses_two(number: int) -> int:
    if number == 2:
        raise PicknetError("2: is refused")
    return number


def dies_once(task: tuple[int, str]) -> int:
    number, mark = task
    if number == 3 and not os.path.exists(mark):
        Path(mark).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def always_dies(number: int) -> int:
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    return number


def waits_for_two(task: tuple[int, Path]) -> int:
    number, folder = task
    (folder / f"{number}").touch()
    while number == 2 and not (folder / "go on").exists():
        time.sleep(0.01)
    return number


def hangs_at_one(number: int) -> tuple[int, int]:
    while number == 1:
        time.sleep(1)
    return number, os.getpid()


def returns_a_function(number: int) -> Callable[[], int]:
    return lambda: number


def stdin(_: object) -> str:
    return os.readlink("/proc/self/fd/0")


def has_a_bug(number: int) -> int:
    return 1 // number


def cores(_: object) -> int:
    return len(os.sched_getaffinity(0))


@pytest.mark.parametrize("jobs", [1, 2])
def test_results_as_they_are_done_come_with_their_tasks_and_few_are_read_ahead(jobs: int) -> None:
    read: list[int] = []
    came: list[int] = []

    def tasks() -> Iterator[int]:
        for number in range(40):
            read.append(number)
            yield number

    for task, result in as_finished(refuses_two, tasks(), jobs=jobs):
        came.append(task)
        assert str(result) == ("2: is refused" if task == 2 else str(task))
        assert len(read) - len(came) < AHEAD_PER_JOB * jobs
    assert sorted(came) == list(range(40))


@pytest.mark.parametrize("jobs", [1, 3])
def test_results_come_in_order(jobs: int) -> None:
    results = list(in_order(slow_at_first, range(8), jobs=jobs))
    assert [number for number, _ in results] == list(range(8))
    others = {process for _, process in results}
    assert os.getpid() in others if jobs == 1 else os.getpid() not in others


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_takes_the_place_of_the_result(jobs: int) -> None:
    results = list(in_order(refuses_two, range(4), jobs=jobs))
    assert [str(result) for result in results] == ["0", "1", "2: is refused", "3"]
    assert isinstance(results[2], PicknetError)


def test_the_task_of_a_killed_worker_is_done_again(tmp_path: Path) -> None:
    tasks = [(number, str(tmp_path / "mark")) for number in range(8)]
    assert list(in_order(dies_once, tasks, jobs=2)) == list(range(8))
    assert (tmp_path / "mark").exists()


def test_a_task_that_kills_its_workers_is_given_up_and_named() -> None:
    first, second, third = in_order(always_dies, range(3), jobs=2, name=lambda number: f"clip {number}")
    assert (first, third) == (0, 2)
    assert isinstance(second, LostProcess)
    assert str(second) == "clip 1: two worker processes died (last exit code -9)"


def test_a_bug_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_order(has_a_bug, [1, 0, 1], jobs=2))
    with pytest.raises(TypeError, match="function: cannot be sent by a worker"):
        list(in_order(returns_a_function, [1], jobs=2))
    with pytest.raises((AttributeError, TypeError, pickle.PicklingError)):
        list(in_order(lambda number: number, [1], jobs=2))


class Counted:
    """A million tasks that count how many of them were read."""

    def __init__(self) -> None:
        self.num_read = 0

    def __iter__(self) -> Iterator[int]:
        for number in range(1_000_000):
            self.num_read += 1
            yield number


@pytest.mark.parametrize("jobs", [1, 2])
def test_tasks_are_read_as_they_are_needed(jobs: int) -> None:
    tasks = Counted()
    results = in_order(abs, tasks, jobs=jobs)
    for number in range(100):
        assert next(results) == number
        assert tasks.num_read <= number + 1 + AHEAD_PER_JOB * jobs
    results.close()
    assert tasks.num_read <= 100 + AHEAD_PER_JOB * jobs


def test_a_slow_task_holds_back_a_bounded_number_of_others(tmp_path: Path) -> None:
    tasks = ((number, tmp_path) for number in range(1000))
    results = in_order(waits_for_two, tasks, jobs=2)
    assert [next(results), next(results)] == [0, 1]

    def go_on_when_the_others_have_come_to_a_halt() -> None:
        before = -1
        while (now := len(list(tmp_path.iterdir()))) != before:
            before = now
            time.sleep(0.5)
        (tmp_path / "go on").touch()

    watcher = threading.Thread(target=go_on_when_the_others_have_come_to_a_halt)
    watcher.start()
    assert next(results) == 2
    watcher.join()
    started = {int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()}
    assert 2 + AHEAD_PER_JOB <= max(started) < 3 + 2 * AHEAD_PER_JOB + 2
    assert [next(results) for _ in range(50)] == list(range(3, 53))
    results.close()


@pytest.mark.parametrize("jobs", [1, 2])
def test_a_task_beyond_its_time_limit_is_stopped_and_named_and_the_others_go_on(jobs: int) -> None:
    results = list(in_order(hangs_at_one, range(6), jobs=jobs, timeout=1.0, name=lambda number: f"clip {number}"))
    assert isinstance(results[1], TaskTimeout)
    assert str(results[1]) == "clip 1: took longer than 1 s and was stopped"
    others = results[:1] + results[2:]
    assert [number for number, _ in others] == [0, 2, 3, 4, 5]
    if jobs == 2:  # the other worker was not touched
        assert len({process for _, process in others}) <= 2
    for _, process in others:
        with pytest.raises(ProcessLookupError):
            os.kill(process, 0)


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
@pytest.mark.parametrize("sent", [signal.SIGTERM, signal.SIGKILL])
@pytest.mark.parametrize("task", ["time.sleep(60)", "None"])
def test_a_parent_that_is_ended_leaves_no_worker_and_no_traceback(tmp_path: Path, task: str, sent: int) -> None:
    (tmp_path / "works.py").write_text(
        "import os, time\n"
        f"def work(mark):\n    mark.with_name(f'{{os.getpid()}}').touch()\n    return {task}\n"
    )
    (tmp_path / "program.py").write_text(
        "import time; from pathlib import Path; from picknet.workers import in_order; from works import work\n"
        "if __name__ == '__main__':\n"
        f"    for _ in in_order(work, [Path({str(tmp_path)!r}) / 'mark'] * 2, jobs=2): time.sleep(60)\n"
    )
    parent = subprocess.Popen([sys.executable, str(tmp_path / "program.py")], stderr=subprocess.PIPE, text=True)

    def workers() -> set[int]:
        return {int(path.name) for path in tmp_path.iterdir() if path.name.isdigit()}

    assert eventually(lambda: len(workers()) >= (1 if task == "None" else 2))  # one worker may do both short tasks
    parent.send_signal(sent)
    assert parent.communicate(timeout=30)[1] == ""  # ends when the last worker has closed it
    assert parent.returncode == -sent
    assert eventually(lambda: not any(is_running(process) for process in workers()))


@pytest.mark.skipif(sys.platform == "win32", reason="sends a POSIX signal")
def test_ctrl_c_ends_the_workers_without_a_traceback_of_theirs(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(
        "import time; from picknet.workers import in_order\n"
        "if __name__ == '__main__':\n"
        "    print('begins', flush=True)\n"
        "    try:\n        list(in_order(time.sleep, [60, 60], jobs=2))\n"
        "    except KeyboardInterrupt:\n        print('interrupted')\n"
    )
    for seconds in (0.05, 1.0):  # while the workers start, and when they are at work
        parent = subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py")],
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
        )  # fmt: skip
        assert parent.stdout is not None
        assert parent.stdout.readline() == "begins\n"
        time.sleep(seconds)
        os.killpg(parent.pid, signal.SIGINT)  # as a terminal does: to all of them
        assert parent.communicate(timeout=30) == ("interrupted\n", "")


def eventually(condition: Callable[[], bool], seconds: float = 30.0) -> bool:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def is_running(process: int) -> bool:
    """Whether it is more than an entry that its parent has not read yet."""
    try:
        os.kill(process, 0)
        status = Path(f"/proc/{process}/stat")
        return not status.exists() or status.read_text().rpartition(")")[2].split()[0] != "Z"
    except (ProcessLookupError, FileNotFoundError):
        return False


@pytest.mark.skipif(not Path("/proc/self/fd/0").exists(), reason="open files are read from /proc")
def leaves_a_file(task: tuple[Path, bool]) -> None:
    path, is_stubborn = task
    if is_stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    try:
        path.touch()
        time.sleep(100)
    finally:
        path.rename(path.with_suffix(".done"))


@pytest.mark.parametrize("is_stubborn", [False, True])
def test_a_worker_that_is_ended_may_leave_its_files_in_order(tmp_path: Path, is_stubborn: bool) -> None:
    start = time.perf_counter()
    (result,) = in_order(leaves_a_file, [(tmp_path / "file", is_stubborn)], jobs=1, timeout=3)
    assert isinstance(result, TaskTimeout)
    assert [path.name for path in tmp_path.iterdir()] == ["file" if is_stubborn else "file.done"]
    assert time.perf_counter() - start < 20


def counts(task: tuple[int, str]) -> Iterator[int]:
    """Some numbers; then there are no more, or something happens."""
    number, ending = task
    yield from range(number)
    if ending == "refuses":
        raise PicknetError("is refused")
    if ending == "dies":
        os.kill(os.getpid(), signal.SIGKILL)
    if ending == "hangs":
        time.sleep(100)


def test_items_of_a_task_come_one_by_one_from_a_worker() -> None:
    tasks = [(3, "ends"), (2, "refuses"), (0, "ends"), (1, "dies"), (2, "hangs"), (1, "ends")]
    found: list[object] = []
    for items in items_in_order(counts, tasks, timeout=5, name=str):
        found.append([])
        try:
            for item in items:
                found[-1].append(item)
        except PicknetError as error:
            found.append(str(error))
    assert found == [
        [0, 1, 2],
        *([0, 1], "is refused"),
        [],
        *([0], "(1, 'dies'): its worker process died (exit code -9)"),
        *([0, 1], "(2, 'hangs'): took longer than 5 s and was stopped"),
        [0],
    ]


def test_a_task_whose_items_are_not_all_taken_does_not_mix_with_the_next() -> None:
    found = [next(items) for items in items_in_order(counts, [(3, "hangs"), (2, "ends")], timeout=60)]
    assert found == [0, 0]


def test_workers_do_not_read_what_is_typed() -> None:
    assert list(in_order(stdin, [None], jobs=2)) == [os.devnull]


def test_results_that_are_given_up_leave_no_process_behind() -> None:
    results = in_order(slow_at_first, range(100), jobs=2)
    _, process = next(results)
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell which cores are ours")
def test_workers_share_the_cores() -> None:
    mine = len(os.sched_getaffinity(0))
    assert max(in_order(cores, range(4), jobs=2)) <= max(1, (mine + 1) // 2)


def test_captions_by_several_workers_are_those_of_one_process(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    videos = [str(SAMPLE), str(tmp_path / "text.mp4"), str(SAMPLE)]
    options = ["--model", str(model_folder), "--format", "json"]
    commands = [
        [sys.executable, "-m", "picknet", "caption", *videos, *options, "--jobs", jobs] for jobs in ("1", "2")
    ]
    printed = [subprocess.run(command, capture_output=True, text=True, timeout=300) for command in commands]
    assert printed[0].stdout == printed[1].stdout
    assert printed[0].stderr == printed[1].stderr == f"picknet: {tmp_path / 'text.mp4'}: not a known video format\n"
    assert (printed[0].stdout.count("\n"), printed[0].returncode, printed[1].returncode) == (3, 1, 1)


# Read ahead ------------------------------------------------------------------------------------------------------


def test_items_are_read_ahead_and_come_in_order() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for item in range(10):
            read.append(item)
            yield item

    ahead = read_ahead(items(), count=3)
    assert next(ahead) == 0
    deadline = time.monotonic() + 10
    while len(read) < 5 and time.monotonic() < deadline:
        time.sleep(0.001)
    time.sleep(0.02)
    assert read == [0, 1, 2, 3, 4]  # three wait, and the next has been read
    assert list(ahead) == list(range(1, 10))


def test_an_error_while_reading_ahead_comes_after_the_items_before_it() -> None:
    def items() -> Iterator[int]:
        yield 1
        raise ValueError("cut short")

    ahead = read_ahead(items(), count=3)
    assert next(ahead) == 1
    with pytest.raises(ValueError, match="cut short"):
        next(ahead)


def test_nothing_is_read_any_more_once_it_is_closed() -> None:
    read: list[int] = []

    def items() -> Iterator[int]:
        for item in itertools.count():
            read.append(item)
            yield item

    ahead = read_ahead(items(), count=2)
    next(ahead)
    ahead.close()
    num_read = len(read)
    time.sleep(0.02)
    assert len(read) == num_read <= 5
    assert not any(thread.name == "picknet-ahead" for thread in threading.enumerate())


def test_a_signal_while_the_reading_thread_starts_leaves_no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    start = threading.Thread.start

    def interrupted(thread: threading.Thread) -> None:
        start(thread)
        raise KeyboardInterrupt

    monkeypatch.setattr(threading.Thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(read_ahead(itertools.count(), count=2))
    assert not [thread for thread in threading.enumerate() if thread.name == "picknet-ahead"]
