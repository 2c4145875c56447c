"""How does the cost of a caption grow: with the length of a video, its size, the picks, the number of files?

    python benchmarks/growing.py [--repeats 3] [--files 100]

Long videos repeat the same packets, so decoding all of one takes as many times as long as decoding what is repeated;
that is what their captions are compared with. Many files are captioned by `picknet caption` with one process that has
one core, and with two processes; the second should take half the time of the first. The time that starting takes is
measured with two files, and taken away.
"""

import os
import shlex
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

from captioning import decode
from footage import LOOP_SECONDS, make
from timing import in_turns, parser, ratio, save, summary, times

import picknet
from picknet.picking import UniformPicker

LENGTHS = (5, 17, 60, 600, 3600)
SIZES = ((320, 240), (640, 360), (1280, 720), (1920, 1080), (3840, 2160))
PICKS = (1, 2, 4, 8, 15, 30)


def seconds_for(files: list[str], jobs: int, *, one_core: bool = False) -> float:
    cores = os.sched_getaffinity(0)
    start = time.perf_counter()
    try:
        if one_core:
            os.sched_setaffinity(0, {min(cores)})
        command = [sys.executable, "-m", "picknet", "caption", *files, "--jobs", str(jobs)]
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True)
    finally:
        os.sched_setaffinity(0, cores)
    return time.perf_counter() - start


def many_files(clip: Path, count: int, repeats: int) -> dict[str, object]:
    pairs = []
    for _ in range(repeats):
        alone, together = (
            seconds_for([str(clip)] * count, jobs, one_core=jobs == 1)
            - seconds_for([str(clip)] * 2, jobs, one_core=jobs == 1)
            for jobs in (1, 2)
        )
        pairs.append((alone / (count - 2), together / (count - 2)))
    return {
        "files": count,
        "one process on one core, ms a file": summary([1000 * alone for alone, _ in pairs]),
        "two processes, ms a file": summary([1000 * together for _, together in pairs]),
        "two processes against half of one": summary([2 * together / alone for alone, together in pairs]),
    }


def main() -> None:
    options = parser(__doc__, repeats=3)
    options.add_argument("--files", type=int, default=100)
    arguments = options.parse_args()
    captioner = picknet.load()

    def clip(width: int, height: int, seconds: float) -> Path:
        return make(arguments.work, width=width, height=height, seconds=seconds)

    lengths = []
    for seconds in LENGTHS:
        unit = min(seconds, LOOP_SECONDS)
        things = {
            "caption": partial(captioner.caption, clip(1280, 720, seconds)),
            "decode": partial(decode, clip(1280, 720, unit)),
        }
        rounds = in_turns(things, repeats=arguments.repeats)
        against = ratio(rounds, "caption", "decode")
        scaled = {kind: {key: value * unit / seconds for key, value in of.items()} for kind, of in against.items()}
        lengths.append({"seconds": seconds, "times": times(rounds), "caption against decoding it all": scaled})
    sizes = []
    for width, height in SIZES:
        path = clip(width, height, 10)
        things = {"caption": partial(captioner.caption, path), "decode": partial(decode, path)}
        rounds = in_turns(things, repeats=arguments.repeats)
        sizes.append({"size": f"{width}x{height}", "times": times(rounds), "ratio": ratio(rounds, "caption", "decode")})
    path = clip(640, 360, 10)
    things = {str(k): partial(captioner.caption, path, picker=UniformPicker(k)) for k in PICKS}
    picks = times(in_turns(things, repeats=arguments.repeats))
    found = {"lengths": lengths, "sizes": sizes, "picks": picks}
    if hasattr(os, "sched_setaffinity"):
        found["files"] = many_files(clip(320, 240, 10), arguments.files, max(1, arguments.repeats // 2))
    save("growing", found, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
