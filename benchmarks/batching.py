"""Many clips as a table: both engines on real clips, their overhead, the driver's memory, and kills.

    python benchmarks/batching.py [--clips 1000] [--seconds 2] [--parts real overhead memory kills]
    python benchmarks/batching.py --parts archive --archive FOLDER     # what 100 clips of a folder cost

Times of a clip are those of the middle 80 % of a run, so that neither start-up nor the last clips count. The three ways
to describe real clips take turns, in slices: other load on the machine meets all of them.
"""

import os
import random
import resource
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from footage import make
from timing import ROOT, cpu_seconds, parser, save, summary

sys.path.insert(0, str(ROOT / "tests"))
os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])  # for Ray's actors

PARTS = ("real", "overhead", "memory", "kills", "archive")
TIMEOUT = 600.0


def local(jobs: int) -> Any:
    from picknet.batch.engines import locally

    return partial(locally, jobs=jobs, timeout=TIMEOUT)


def ray(jobs: int) -> Any:
    from picknet.batch.on_ray import on_ray

    return partial(on_ray, jobs=jobs, timeout=TIMEOUT)


def ms_a_clip(
    names: list[str], engine: Any, place: Path, *, stub: bool, cores: int | None = None
) -> tuple[float, float]:
    """Milliseconds between clips in the middle 80 % of a run, and CPU time a clip of this process and its children."""
    from stubs import StubWork

    from picknet.batch import Summary, Work, run

    times: list[tuple[int, float]] = []

    def note(progress: Summary) -> None:
        if progress.num_done:
            times.append((progress.num_done, time.perf_counter()))

    (place / "list.txt").write_text("".join(f"{name}\n" for name in names))
    shutil.rmtree(place / "out", ignore_errors=True)
    allowed, cpu_start = os.sched_getaffinity(0), cpu_seconds()
    try:
        os.sched_setaffinity(0, sorted(allowed)[:cores])
        run([str(place / "list.txt")], place / "out", Work(), engine=engine, on_progress=note,
            do_clip=StubWork() if stub else None)  # fmt: skip
    finally:
        os.sched_setaffinity(0, allowed)
    first, last = (min(times, key=lambda at: abs(at[0] - part * len(names))) for part in (0.1, 0.9))
    return 1000 * (last[1] - first[1]) / (last[0] - first[0]), 1000 * (cpu_seconds() - cpu_start) / len(names)


def real(clip: Path, count: int, rounds: int, place: Path) -> dict[str, Any]:
    """The same clip under many names, in `rounds` slices for each way."""
    (place / "clips").mkdir()
    names = []
    for number in range(count // rounds):
        os.link(clip, place / "clips" / f"{number:05d}.mp4")
        names.append(str(place / "clips" / f"{number:05d}.mp4"))
    measured: dict[str, list[tuple[float, float]]] = {"one process": [], "two processes": [], "ray": []}
    for _ in range(rounds):
        measured["one process"].append(ms_a_clip(names, local(1), place, stub=False, cores=1))
        measured["two processes"].append(ms_a_clip(names, local(2), place, stub=False))
        measured["ray"].append(ms_a_clip(names, ray(2), place, stub=False))
    one, two, actors = measured.values()
    return {
        "clips": len(names) * rounds,
        "one process, ms a clip": summary([wall for wall, _ in one]),
        "one process, CPU ms a clip": summary([cpu for _, cpu in one]),
        "two processes, ms a clip": summary([wall for wall, _ in two]),
        "two processes, CPU ms a clip": summary([cpu for _, cpu in two]),
        "ray with two actors, ms a clip": summary([wall for wall, _ in actors]),
        "two processes against half of one": summary([2 * b / a for (a, _), (b, _) in zip(one, two, strict=True)]),
        "CPU of two processes against one": summary([b / a for (_, a), (_, b) in zip(one, two, strict=True)]),
        "ray against two processes": summary([b / a for (a, _), (b, _) in zip(two, actors, strict=True)]),
    }


def overhead(place: Path, rounds: int) -> dict[str, Any]:
    names = [f"/archive/clip-{number}.mp4" for number in range(5000)]
    return {
        "local, ms a clip": summary([ms_a_clip(names, local(2), place, stub=True)[0] for _ in range(rounds)]),
        "ray, ms a clip": summary([ms_a_clip(names, ray(2), place, stub=True)[0] for _ in range(rounds)]),
    }


def memory(place: Path, count: int = 10**6) -> dict[str, Any]:
    """Peak of a process that does a million clips, and goes on when all but a hundred of them are done."""
    code = f"""if True:
        import re, time
        from functools import partial
        from pathlib import Path
        from stubs import StubWork
        from picknet.batch import Work, run
        from picknet.batch.engines import locally
        start = time.time()
        place = Path({str(place)!r})
        with (place / "million.txt").open("w") as file:
            for number in range({count}):
                file.write(f"/archive/2026/camera-{{number % 1000:04d}}/clip-{{number:08d}}.mp4\\n")
        with (place / "most.txt").open("w") as file:
            for number in range({count} - 100):
                file.write(f"/archive/2026/camera-{{number % 1000:04d}}/clip-{{number:08d}}.mp4\\n")
        engine = partial(locally, jobs=1, timeout=None)
        for name in ("most", "million"):
            run([str(place / f"{{name}}.txt")], place / "out", Work(), engine=engine, do_clip=StubWork())
            # Not getrusage(), which counts the memory of the process that started this one, too.
            peak = re.search(r"VmHWM:\\s+(\\d+)", Path("/proc/self/status").read_text())[1]
            print(int(peak) / 1024, time.time() - start)
    """
    shutil.rmtree(place / "out", ignore_errors=True)
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)
    (first, _), (second, seconds) = (map(float, line.split()) for line in done.stdout.splitlines())
    return {"paths": count, "peak of a first run, MB": first, "peak of a run that goes on, MB": second, "s": seconds}


def kills(place: Path, number: int = 20) -> dict[str, Any]:
    """The command's processes, two workers among them, are killed at random moments, then left to finish."""
    import pyarrow.dataset

    names = [f"{'error' if number % 97 == 0 else 'clip'}-{number}.mp4" for number in range(4000)]
    (place / "list.txt").write_text("".join(f"{name}\n" for name in names))
    shutil.rmtree(place / "out", ignore_errors=True)
    arguments = f"[{str(place / 'list.txt')!r}], {str(place / 'out')!r}, 20, 0.005, 2"
    code = f"import stubs\nif __name__ == '__main__': stubs.run_stub({arguments})"
    (place / "main.py").write_text(code)
    moments, num_kills = random.Random(0), 0
    while True:
        process = subprocess.Popen([sys.executable, str(place / "main.py")], start_new_session=True)
        try:
            process.wait(1.0 + 2 * moments.random() if num_kills < number else TIMEOUT)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            num_kills += 1
    counts = Counter(pyarrow.dataset.dataset(place / "out").to_table(["video"])["video"].to_pylist())
    return {
        "kills": num_kills,
        "clips": len(names),
        "lost": len(set(names) - counts.keys()),
        "doubled": sum(count > 1 for count in counts.values()),
    }


def archive(folder: Path, place: Path, count: int = 100) -> dict[str, Any]:
    """What clips of a folder cost: every n-th of them, by two processes."""
    import pyarrow.dataset

    from picknet.batch import Work, list_clips, run

    names = sorted(clip.name for clip in list_clips([str(folder)]))
    names = names[:: max(len(names) // count, 1)][:count]
    (place / "list.txt").write_text("".join(f"{name}\n" for name in names))
    cpu_start = cpu_seconds()
    run([str(place / "list.txt")], place / "out", Work(), engine=local(2))
    rows = pyarrow.dataset.dataset(place / "out").to_table(["seconds", "error"])
    files = list((place / "out").glob("*.parquet"))
    return {
        "clips": len(names),
        "errors": len(names) - rows["error"].null_count,
        "CPU s a clip": (cpu_seconds() - cpu_start) / len(names),
        "peak of a worker, MB": resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024,
        "s of video a clip": sum(rows["seconds"].drop_null().to_pylist()) / len(names),
        "MB read a clip": sum(Path(name).stat().st_size for name in names) / 1e6 / len(names),
        "bytes of table a clip": sum(file.stat().st_size for file in files) / len(names),
    }


def main() -> None:
    options = parser(__doc__, repeats=3)
    options.add_argument("--clips", type=int, default=1000)
    options.add_argument("--seconds", type=float, default=2)
    options.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS[:-1])
    options.add_argument("--archive", type=Path, help="folder of clips, for the part of that name")
    arguments = options.parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    clip = make(arguments.work, width=320, height=240, seconds=arguments.seconds)
    parts: dict[str, Callable[[Path], dict[str, Any]]] = {
        "real": lambda place: real(clip, arguments.clips, arguments.repeats, place),
        "overhead": lambda place: overhead(place, arguments.repeats),
        "memory": memory,
        "kills": kills,
        "archive": lambda place: archive(arguments.archive, place),
    }
    for part in arguments.parts:
        with tempfile.TemporaryDirectory(dir=arguments.work) as folder:
            save(f"batching-{part}", parts[part](Path(folder)), f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
