"""How soon does picknet answer when nothing is loaded yet, and how much memory does it take?

    python benchmarks/starting.py [--repeats 5]

Every run is a process of its own. The first caption is timed with what was compiled kept from an earlier run, and
without. Memory is the peak resident size above that after importing what a caption needs, for a 4K clip of ten seconds
and a file of an hour.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from footage import make
from timing import in_turns, parser, save, summary, times

MEMORY = """
import sys
import numpy, av, openvino, picknet.captioner, picknet.model.runtime, picknet.video.file

def peak():
    # Not that of getrusage, which begins with the peak of the process that started this one.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

before = peak()
picknet.load().caption(sys.argv[1])
print(before, peak())
"""


def run(*arguments: str, kept: Path | None = None) -> str:
    environment = {**os.environ, "PICKNET_CACHE": str(kept or "")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def peak(path: Path, kept: Path, repeats: int) -> dict[str, float]:
    """Megabytes above import."""
    found = [tuple(map(int, run("-c", MEMORY, str(path), kept=kept).split())) for _ in range(repeats)]
    return summary([(after - before) / 1e6 for before, after in found])


def main() -> None:
    arguments = parser(__doc__, repeats=5).parse_args()
    clip = make(arguments.work, width=320, height=240, seconds=10)
    with tempfile.TemporaryDirectory() as folder:
        kept = Path(folder)
        things = {
            "python -c pass": lambda: run("-c", "pass"),
            "import picknet": lambda: run("-c", "import picknet"),
            "picknet --help": lambda: run("-m", "picknet", "--help"),
            "first caption": lambda: run("-m", "picknet", "caption", str(clip), kept=kept),
            "first caption, nothing kept": lambda: run("-m", "picknet", "caption", str(clip)),
        }
        rounds = in_turns(things, repeats=arguments.repeats)
        memory = {
            "4K clip": peak(make(arguments.work, width=3840, height=2160, seconds=10), kept, 2),
            "one-hour file": peak(make(arguments.work, width=1280, height=720, seconds=3600), kept, 2),
        }
    save("starting", {"times": times(rounds), "memory_mb": memory}, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
