"""A real Ray of two nodes on this machine: a node is killed half-way, then the head, and every clip is there once.

One scenario, because starting Ray takes seconds.
"""

import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import MagicMock

import pyarrow.dataset
import pytest
from stubs import StubWork

from picknet.batch import Clip, Summary, Work, folder, run
from picknet.batch import on_ray as on_ray_module
from picknet.batch.engines import locally
from picknet.batch.on_ray import RayFailure, on_ray, reason

ray: Any = pytest.importorskip("ray", reason="Ray is not installed")

QUICK = {"health_check_initial_delay_ms": 0, "health_check_period_ms": 200, "health_check_failure_threshold": 3}
"""A node that is gone is noticed within a second, not half a minute."""
NAMES = [f"{number}.mp4" for number in range(200)]
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
    wait_until(lambda: num_files() >= 4)
    cluster.remove_node(node, allow_graceful=False)
    num_before = num_files()
    wait_until(lambda: num_files() >= num_before + 4)
    assert driver.is_alive()  # it goes on without the node
    cluster.head_node.kill_all_processes(check_alive=False, allow_graceful=False)
    driver.kill()  # it is on the head
    driver.join()
    cluster.shutdown()

    num_known = len(rows("ray"))
    assert 0 < num_known < len(NAMES)
    try:
        summary = describe(None)
        with pytest.raises(RayFailure, match=r"^--cores-per-actor 4096: this machine has \d+ cores?$"):
            list(on_ray(StubWork(), iter(()), 1, jobs=1, timeout=None, cores_per_actor=4096))
    finally:
        ray.shutdown()
    assert (summary.num_before, summary.num_done) == (num_known, len(NAMES) - num_known)
    run(["list.txt"], Path("local"), Work(), engine=partial(locally, jobs=2, timeout=1.5), do_clip=StubWork())
    assert [row["video"] for row in rows("ray")] == sorted(Clip(name).shown_name for name in NAMES)
    assert rows("ray") == rows("local")


def test_the_start_of_ray_says_nothing_and_keeps_the_handler_of_sigterm(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    def init(**_: object) -> None:
        os.write(2, b"logging.cc: Set ray log level")
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(15))
        if is_ended:
            signal.raise_signal(signal.SIGTERM)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(ray, "init", init)
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    is_ended = False
    on_ray_module._connected(None)
    assert signal.getsignal(signal.SIGTERM) is before
    is_ended = True
    with pytest.raises(SystemExit) as end:
        on_ray_module._connected(None)
    assert (end.value.code, signal.getsignal(signal.SIGTERM)) == (143, before)
    assert capfd.readouterr().err == ""


def test_actors_get_the_working_directory_and_too_small_a_cluster_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = MagicMock()
    cluster.nodes.return_value = [
        {"Alive": True, "Resources": {"CPU": 4.0}}, {"Alive": True, "Resources": {}}, {"Alive": False, "Resources": {}},
    ]  # fmt: skip
    monkeypatch.setattr(on_ray_module, "_connected", lambda address: cluster)
    notes: list[str] = []
    options: dict[str, Any] = {"jobs": 1, "timeout": None, "address": "auto", "on_note": notes.append}
    for cores in (4.0, 8.0):
        assert list(on_ray(StubWork(), iter([Clip("a.mp4")]), 1, cores_per_actor=cores, **options)) == []
    assert notes == ["--cores-per-actor 8: no node has more than 4 cores now; actors wait for a larger one"]
    given = cluster.data.from_arrow_refs.return_value.map_batches.call_args.kwargs["fn_constructor_kwargs"]
    assert given["folder"] == str(Path.cwd())


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
