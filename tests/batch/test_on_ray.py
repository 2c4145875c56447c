"""A real Ray of several nodes on this machine: one node is killed half-way, then the head, and every clip is there once.

One scenario, because starting Ray takes seconds.
"""

import contextlib
import multiprocessing
import os
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow.dataset
import pytest
from stubs import StubWork

from picknet.batch import Summary, Work, folder, run
from picknet.batch.engines import locally
from picknet.batch.on_ray import RayFailure, on_ray

ray: Any = pytest.importorskip("ray", reason="Ray is not installed")

NAMES = [f"{number}.mp4" for number in range(400)]
NAMES[7], NAMES[23], NAMES[41] = "error.mp4", "hang.mp4", "die.mp4"


def rows(out: str) -> list[dict[str, Any]]:
    return sorted(pyarrow.dataset.dataset(out).to_table().to_pylist(), key=lambda row: row["video"])


def describe(address: str | None) -> Summary:
    folder.MAX_FILE_CLIPS = 10
    engine = partial(on_ray, jobs=2, timeout=1.5, address=address)
    return run(["list.txt"], Path("ray"), Work(), engine=engine, do_clip=StubWork(seconds=0.02))


@contextlib.contextmanager
def waiting(seconds: float = 60) -> Iterator[Any]:
    """A function that waits until something is true."""
    end = time.monotonic() + seconds

    def until(is_true: Any) -> None:
        while not is_true():
            assert time.monotonic() < end
            time.sleep(0.05)

    yield until


def num_files() -> int:
    return len(list(Path("ray").glob("*.parquet")))


def test_rows_are_those_of_the_local_engine_though_a_node_and_the_head_are_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from ray.cluster_utils import Cluster

    monkeypatch.chdir(tmp_path)
    here = Path(__file__).parents[1]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(here), str(here.parent / "src")]))  # for the actors
    Path("list.txt").write_text("\n".join(NAMES))
    t0=time.time()
    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
    nodes = [cluster.add_node(num_cpus=1) for _ in range(2)]
    print("cluster", time.time()-t0)
    driver = multiprocessing.get_context("spawn").Process(target=describe, args=(cluster.address,))
    driver.start()
    with waiting() as until:
        until(lambda: num_files() >= 6)
        print("first", time.time()-t0)
        cluster.remove_node(nodes[0], allow_graceful=False)
        print("removed", time.time()-t0)
        before = num_files()
        until(lambda: num_files() >= before + 6)
        print("goes on", time.time()-t0)
    assert driver.is_alive()
    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    driver.join(1)
    driver.kill()  # it is on the head
    driver.join()
    print("head killed", time.time()-t0)
    cluster.shutdown()
    print("shutdown", time.time()-t0)
    known = len(rows("ray"))
    assert 0 < known < len(NAMES)
    summary = describe(None)
    print("done", time.time()-t0)
    ray.shutdown()
    assert (summary.num_before, summary.num_done) == (known, len(NAMES) - known)
    run(["list.txt"], Path("local"), Work(), engine=partial(locally, jobs=2, timeout=1.5), do_clip=StubWork())
    print("end", time.time()-t0)
    assert [row["video"] for row in rows("ray")] == sorted(NAMES)
    assert rows("ray") == rows("local")


def test_a_cluster_that_is_not_there_and_an_old_ray_are_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(RayFailure, match="Ray at 127.0.0.1:1: "):
        list(on_ray(StubWork(), iter(()), 0, jobs=1, timeout=None, address="127.0.0.1:1"))
    monkeypatch.setattr(ray, "__version__", "2.9.1")
    with pytest.raises(RayFailure, match="Ray 2.9.1 is installed: 2.50 or later is needed"):
        list(on_ray(StubWork(), iter(()), 0, jobs=1, timeout=None))
