"""Several processes do what one does, in the same order, whatever becomes of them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from picknet.errors import PicknetError
from picknet.workers import LostProcess, in_order

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


def has_a_bug(number: int) -> int:
    return 1 // number


def cores(_: object) -> int:
    return len(os.sched_getaffinity(0))


@pytest.mark.parametrize("jobs", [1, 3])
def test_results_come_in_order(jobs: int) -> None:
    results = list(in_order(slow_at_first, range(8), jobs=jobs))
    assert [number for number, _ in results] == list(range(8))
    others = {process for _, process in results}
    assert os.getpid() in others if jobs == 1 else os.getpid() not in others


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_stands_where_the_result_would(jobs: int) -> None:
    results = list(in_order(refuses_two, range(4), jobs=jobs))
    assert [str(result) for result in results] == ["0", "1", "2: is refused", "3"]
    assert isinstance(results[2], PicknetError)


def test_what_a_killed_process_had_in_hand_is_done_again(tmp_path: Path) -> None:
    tasks = [(number, str(tmp_path / "mark")) for number in range(8)]
    assert list(in_order(dies_once, tasks, jobs=2)) == list(range(8))
    assert (tmp_path / "mark").exists()


def test_a_task_that_kills_every_process_is_given_up_and_named() -> None:
    first, second, third = in_order(always_dies, range(3), jobs=2, name=lambda number: f"clip {number}")
    assert (first, third) == (0, 2)
    assert isinstance(second, LostProcess)
    assert str(second) == "clip 1: the process at work on it died, twice (exit code -9)"


def test_a_bug_is_raised() -> None:
    with pytest.raises(ZeroDivisionError):
        list(in_order(has_a_bug, [1, 0, 1], jobs=2))


def test_who_stops_listening_leaves_no_process_behind() -> None:
    results = in_order(slow_at_first, range(100), jobs=2)
    _, process = next(results)
    results.close()
    with pytest.raises(ProcessLookupError):
        os.kill(process, 0)


@pytest.mark.skipif(not hasattr(os, "sched_getaffinity"), reason="this system does not tell which cores are ours")
def test_processes_share_the_cores() -> None:
    mine = len(os.sched_getaffinity(0))
    assert max(in_order(cores, range(4), jobs=2)) <= max(1, (mine + 1) // 2)


def test_captions_of_several_processes_are_those_of_one(tmp_path: Path, model_folder: Path) -> None:
    (tmp_path / "text.mp4").write_text("no video")
    videos = [str(SAMPLE), str(tmp_path / "text.mp4"), str(SAMPLE)]
    options = ["--model", str(model_folder), "--format", "json"]
    commands = [
        [sys.executable, "-m", "picknet", "caption", *videos, *options, "--jobs", jobs] for jobs in ("1", "2")
    ]
    printed = [subprocess.run(command, capture_output=True, text=True, timeout=300) for command in commands]
    assert printed[0].stdout == printed[1].stdout
    assert printed[0].stderr == printed[1].stderr == f"picknet: {tmp_path / 'text.mp4'}: not a known video format\n"
    assert (printed[0].stdout.count("\n"), printed[0].returncode, printed[1].returncode) == (2, 1, 1)
