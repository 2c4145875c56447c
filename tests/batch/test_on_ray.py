"""A real Ray of two nodes on this machine: a node is killed half-way, then the head, and every clip is there once.

One scenario, because starting Ray takes seconds.
"""

import multiprocessing
import os
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from stubs import StubWork

from picknet.batch import Clip, Summary, Work, folder, run
from picknet.batch.engines import locally
from picknet.batch.on_ray import RayFailure, on_ray, reason

ray: Any = pytest.importorskip("ray", reason="Ray is not installed")

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 3}
"""A node that is gone is noticed within a second, not half a minute."""
NAMES = [f"{number}.mp4" for number in range(400)]
NAMES[7], NAMES[23], NAMES[41], NAMES[50] = "error.mp4", "hang.mp4", "die.mp4", "not-unicode-\udcff.mp4"


def describe(address: str | None) -> Summary:
    folder.MAX_FILE_CLIPS = 10
    engine = partial(on_ray, jobs=2, timeout=1.5, address=address)
    return run(["list.txt"], Path("ray"), Work(), engine=engine, do_clip=StubWork(seconds=0.02))


def rows(out: str) -> list[dict[str, Any]]:
    return sorted(pyarrow.dataset.dataset(out).to_table().to_pylist(), key=lambda row: row["video"])


def num_files() -> int:
    return len(list(Path("ray").glob("*.parquet")))


def wait_until(is_true: Callable[[], bool], *, seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not is_true():
        assert time.monotonic() < end, "nothing happens"
        time.sleep(0.05)


def test_rows_are_those_of_the_local_engine_though_a_node_and_the_head_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(folder, "MAX_FILE_CLIPS", folder.MAX_FILE_CLIPS)  # put back what `describe` sets
    tests = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(tests), str(tests.parent / "src")]))  # for the actors
    Path("list.txt").write_text("\n".join(NAMES), errors="surrogateescape")

    cluster = Cluster(True, head_node_args={"num_cpus": 1, "include_dashboard": False, "_system_config": QUICK})
    node = cluster.add_node(num_cpus=1, wait=False)
    driver = multiprocessing.get_context("spawn").Process(target=describe, args=(cluster.address,))
    driver.start()
    wait_until(lambda: num_files() >= 6)
    cluster.remove_node(node, allow_graceful=False)
    num_before = num_files()
    wait_until(lambda: num_files() >= num_before + 6)
    assert driver.is_alive()  # it goes on without the node
    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    driver.kill()  # it is on the head
    driver.join()
    cluster.shutdown()

    num_known = len(rows("ray"))
    assert 0 < num_known < len(NAMES)
    try:
        summary = describe(None)
    finally:
        ray.shutdown()
    assert (summary.num_before, summary.num_done) == (num_known, len(NAMES) - num_known)
    run(["list.txt"], Path("local"), Work(), engine=partial(locally, jobs=2, timeout=1.5), do_clip=StubWork())
    assert [row["video"] for row in rows("ray")] == sorted(Clip(name).shown_name for name in NAMES)
    assert rows("ray") == rows("local")


def test_a_failure_of_ray_is_one_line() -> None:
    ours = "\x1b[36mray::MapWorker\x1b[39m\n  File x\npicknet.errors.BadSetting: style is 'x'\n\nThe above\nUDF failed"
    assert reason(ours) == "style is 'x'"
    theirs = "\x1b[36mray::MapWorker\x1b[39m died\n unexpectedly"
    assert reason(theirs) == "Ray gave up (ray::MapWorker died unexpectedly); give the same command to go on"


def test_a_cluster_that_is_not_there_and_an_old_ray_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(address: str) -> str:
        with pytest.raises(RayFailure) as error:
            list(on_ray(StubWork(), iter(()), 0, jobs=1, timeout=None, address=address))
        return str(error.value)

    assert refused("nonsense").startswith("Ray at nonsense: ")
    assert "\n" not in refused("nonsense")
    assert refused("127.0.0.1:1") == "Ray at 127.0.0.1:1: [Errno 111] Connection refused"
    monkeypatch.setattr(ray, "__version__", "2.9.1")
    assert refused("auto") == "Ray 2.9.1 is installed: 2.50 or later is needed"
