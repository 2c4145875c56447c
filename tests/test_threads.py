"""Many tasks by several threads: order, laziness, and an early end."""

import itertools
import threading
import time

import pytest

from picknet.workers import AHEAD_PER_THREAD, in_threads


@pytest.mark.parametrize("jobs", [1, 2, 8])
def test_results_come_in_the_order_of_the_tasks(jobs):
    def work(task, check):
        time.sleep(0.002 * (task % 3))
        return task * task

    assert list(in_threads(work, range(40), jobs=jobs)) == [task * task for task in range(40)]
    assert list(in_threads(work, [], jobs=jobs)) == []


@pytest.mark.parametrize("jobs", [1, 3])
def test_an_endless_iterable_of_tasks_is_read_only_as_far_as_needed(jobs):
    num_read = 0

    def tasks():
        nonlocal num_read
        for number in itertools.count():
            num_read += 1
            yield number

    results = in_threads(lambda task, check: task, tasks(), jobs=jobs)
    for number in range(50):
        assert next(results) == number
        assert num_read <= number + 1 + (AHEAD_PER_THREAD * jobs if jobs > 1 else 0)
    results.close()


def test_a_slow_task_holds_back_few_results():
    first_may_end, started = threading.Event(), []

    def work(task, check):
        started.append(task)
        if task == 0:
            assert first_may_end.wait(10)
        return task

    def tasks():
        for number in range(1000):
            if number == 20:
                first_may_end.set()  # too late: it must not be read before the first result is there
            yield number

    results = in_threads(work, tasks(), jobs=2)
    threading.Timer(0.2, first_may_end.set).start()
    assert next(results) == 0
    assert len(started) <= 1 + 2 * AHEAD_PER_THREAD
    results.close()


def test_closing_cancels_what_is_queued_and_ends_what_runs():
    started, ended, before = [], [], set(threading.enumerate())

    def work(task, check):
        started.append(task)
        if task == 0:
            return task
        try:
            while True:
                check()
                time.sleep(0.001)
        finally:
            ended.append(task)

    results = in_threads(work, range(100), jobs=2)
    assert next(results) == 0
    results.close()
    assert sorted(ended) == sorted(started)[1:]
    assert len(started) <= 3
    assert set(threading.enumerate()) <= before


def test_an_exception_is_raised_in_its_place_after_the_results_before_it():
    def work(task, check):
        if task == 3:
            raise ZeroDivisionError
        return task

    results = in_threads(work, range(10), jobs=2)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(ZeroDivisionError):
        next(results)


@pytest.mark.parametrize("jobs", [1, 2])
def test_an_error_in_the_tasks_comes_after_the_results_before_it(jobs):
    def tasks():
        yield from range(3)
        raise OSError("the list cannot be read")

    results = in_threads(lambda task, check: task, tasks(), jobs=jobs)
    assert [next(results) for _ in range(3)] == [0, 1, 2]
    with pytest.raises(OSError, match="the list cannot be read"):
        next(results)
