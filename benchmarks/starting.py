"""Start-up time, and peak memory.

    python benchmarks/starting.py [--repeats 5]

Every run is a new process. The first caption is timed with a filled cache of compiled graphs and with none. Memory is
the peak resident size above that after the imports, for a 4K clip of ten seconds and a file of an hour.
"""

import os
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

from footage import make
from timing import alternate, parser, save, summary, times

MEMORY = """
import sys
import numpy, av, openvino, picknet.captioner, picknet.model.runtime, picknet.video.file

def peak():
    # Not from getrusage, which starts at the peak of the parent process.
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))

before = peak()
picknet.load().caption(sys.argv[1])
print(before, peak())
"""


def run(*arguments: str, cache: Path | None = None) -> str:
    environment = {**os.environ, "PICKNET_CACHE": str(cache or "")}
    command = [sys.executable, *arguments]
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout


def peak(path: Path, cache: Path, repeats: int) -> dict[str, float]:
    """Megabytes above import."""
    found = [tuple(map(int, run("-c", MEMORY, str(path), cache=cache).split())) for _ in range(repeats)]
    return summary([(after - before) / 1e6 for before, after in found])


def main() -> None:
    arguments = parser(__doc__, repeats=5).parse_args()
    clip = make(arguments.work, width=320, height=240, seconds=10)
    with tempfile.TemporaryDirectory() as folder:
        cache = Path(folder)
        things = {
            "python -c pass": lambda: run("-c", "pass"),
            "import picknet": lambda: run("-c", "import picknet"),
            "picknet --help": lambda: run("-m", "picknet", "--help"),
            "first caption": lambda: run("-m", "picknet", "caption", str(clip), cache=cache),
            "first caption, nothing kept": lambda: run("-m", "picknet", "caption", str(clip)),
        }
        rounds = alternate(things, repeats=arguments.repeats)
        memory = {
            "4K clip": peak(make(arguments.work, width=3840, height=2160, seconds=10), cache, 2),
            "one-hour file": peak(make(arguments.work, width=1280, height=720, seconds=3600), cache, 2),
        }
    save("starting", {"times": times(rounds), "memory_mb": memory}, f"python {shlex.join(sys.argv)}")


if __name__ == "__main__":
    main()
