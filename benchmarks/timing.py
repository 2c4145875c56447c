"""Timing: alternate the things to compare, repeat, and compare within a round.

Other load on a machine lasts longer than one measurement. So the things to compare are run alternately; a ratio is the
median over the rounds of the ratio within a round, with its quartiles. CPU time of all threads is reported beside wall
time: it stays comparable on a busy machine.
"""

import argparse
import json
import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from picknet.files import write_text

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
WORK = ROOT / "build" / "benchmarks"
"""Folder of the videos to measure with."""
PACKAGES = ("picknet", "numpy", "av", "openvino", "torch", "opencv-python-headless", "decord2", "scenedetect-headless")

Rounds = dict[str, list[tuple[float, float]]]
"""For each thing timed, (wall seconds, CPU seconds) of each round."""


def alternate(things: Mapping[str, Callable[[], object]], *, repeats: int) -> Rounds:
    """Run each thing once to warm up, then all of them in turn, `repeats` times."""
    for thing in things.values():
        thing()
    rounds: Rounds = {name: [] for name in things}
    for _ in range(repeats):
        for name, thing in things.items():
            start, cpu_start = time.perf_counter(), cpu_seconds()
            thing()
            rounds[name].append((time.perf_counter() - start, cpu_seconds() - cpu_start))
    return rounds


def cpu_seconds() -> float:
    """CPU seconds of all threads and of all child processes that have ended."""
    spent = os.times()
    return time.process_time() + spent.children_user + spent.children_system


def summary(values: list[float]) -> dict[str, float]:
    """The median and the quartiles."""
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
    return {"median": middle, "low": low, "high": high}


def times(rounds: Rounds) -> dict[str, Any]:
    """Milliseconds of each thing."""
    return {
        name: {
            "wall_ms": summary([1000 * wall for wall, _ in measured]),
            "cpu_ms": summary([1000 * cpu for _, cpu in measured]),
        }
        for name, measured in rounds.items()
    }


def ratio(rounds: Rounds, one: str, other: str) -> dict[str, Any]:
    """Time of one as a multiple of the other's, wall and CPU."""
    pairs = list(zip(rounds[one], rounds[other], strict=True))
    return {
        "wall": summary([first[0] / second[0] for first, second in pairs]),
        "cpu": summary([first[1] / second[1] for first, second in pairs]),
    }


def save(name: str, found: Mapping[str, Any], command: str) -> None:
    """Write the results with command, commit and machine, and print them."""
    content = {"command": command, "commit": _commit(), "machine": _machine(), **found}
    write_text(RESULTS / f"{name}.json", json.dumps(content, indent=1) + "\n")
    print(json.dumps(found, indent=1))


def parser(description: str | None, *, repeats: int) -> argparse.ArgumentParser:
    """A parser with the options of all benchmarks."""
    made = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    made.add_argument("--work", type=Path, default=WORK, help="folder of the videos to measure with")
    made.add_argument("--repeats", type=int, default=repeats)
    return made


def _machine() -> dict[str, Any]:
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    return {
        "processor": _processor(),
        "cores": cores,
        "load": load,
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
        **{package: version for package in PACKAGES if (version := _version(package))},
    }


def _processor() -> str:
    try:
        output = subprocess.run(["lscpu"], capture_output=True, text=True).stdout
    except OSError:
        return platform.processor() or platform.machine()
    facts = dict(line.split(":", 1) for line in output.splitlines() if ":" in line)
    return facts.get("Model name", platform.machine()).strip()


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _commit() -> str | None:
    try:
        done = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    except OSError:
        return None
    return done.stdout.strip() or None
