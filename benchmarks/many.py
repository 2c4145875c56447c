"""Time of many files, with one process and with two.

    python benchmarks/many.py [--files 1 10 100] [--seconds 10]

`picknet caption` is run with one process on one core, and with two processes; two should take half the time of one.
Start-up time, measured with two files, is subtracted. 1,000 files take about ten minutes; their result is
`many-1000.json`.
"""

import os
import shlex
import subprocess
import sys
import time

from footage import make
from timing import parser, save, summary


def seconds_for(files: list[str], jobs: int) -> float:
    cores = os.sched_getaffinity(0)
    start = time.perf_counter()
    try:
        if jobs == 1:
            os.sched_setaffinity(0, {min(cores)})
        command = [sys.executable, "-m", "picknet", "caption", *files, "--jobs", str(jobs)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    finally:
        os.sched_setaffinity(0, cores)
    return time.perf_counter() - start


def main() -> None:
    options = parser(__doc__, repeats=1)
    options.add_argument("--files", type=int, nargs="+", default=[1, 10, 100])
    options.add_argument("--seconds", type=float, default=10)
    arguments = options.parse_args()
    if not hasattr(os, "sched_setaffinity"):
        print("skipped: this system cannot pin a process to one core")
        return
    clip = str(make(arguments.work, width=320, height=240, seconds=arguments.seconds))
    counts = sorted(arguments.files)
    measured: dict[int, list[list[float]]] = {count: [] for count in counts}
    for _ in range(arguments.repeats):
        # Two files, so that both processes start.
        starting = [seconds_for([clip] * 2, jobs) for jobs in (1, 2)]
        for count in counts:
            whole = [seconds_for([clip] * count, jobs) for jobs in (1, 2)]
            each = [(all_ - two) / (count - 2) if count > 2 else 0.0 for all_, two in zip(whole, starting, strict=True)]
            measured[count].append(whole + each)
    rows = []
    for count, rounds in measured.items():
        row = {
            "files": count,
            "one process on one core, s": summary([values[0] for values in rounds]),
            "two processes, s": summary([values[1] for values in rounds]),
        }
        if count > 10:
            row["one process on one core, ms a file"] = summary([1000 * values[2] for values in rounds])
            row["two processes, ms a file"] = summary([1000 * values[3] for values in rounds])
            row["two processes against half of one"] = summary([2 * values[3] / values[2] for values in rounds])
        rows.append(row)
    name = "many-1000" if counts[-1] >= 1000 else "many"
    save(name, {"seconds": arguments.seconds, "rows": rows}, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
