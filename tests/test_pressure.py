"""Little memory, one core, one thread, a hundred videos: slower, but with the same results."""

import contextlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import clips
import pytest
from command import on_linux

SAMPLE = Path(__file__).resolve().parents[1] / "samples" / "cockatoo.mp4"
GIGABYTE = 1_000_000_000
CGROUPS = Path("/sys/fs/cgroup")

SHIPPED = """
import sys
import picknet
caption = picknet.load().caption(sys.argv[1])
print(caption.text, [pick.index for pick in caption.picks])
with open("/proc/self/status") as file:
    print(next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM")))
"""
ONE_CORE = "import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})\n"

HUNDRED = """
import os, sys
import picknet
captioner = picknet.load(sys.argv[1])

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

for number in range(100):
    try:
        captioner.caption(sys.argv[2 + number % (len(sys.argv) - 2)])
    except picknet.PicknetError:
        pass
    if number == 29:  # by then the allocator has grown as far as it will
        files, memory = len(os.listdir("/proc/self/fd")), resident()
print(len(os.listdir("/proc/self/fd")) - files, resident() - memory, len(os.listdir("/proc/self/task")))
"""


def printed(program: str, *arguments: str, **environment: str) -> list[str]:
    finished = subprocess.run(
        [sys.executable, "-c", program, *arguments],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=600,
        check=True,
    )
    return finished.stdout.splitlines()


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="memory is read from /proc")
def test_one_core_and_one_thread_give_the_same_caption_in_little_memory() -> None:
    plain, peak = printed(SHIPPED, str(SAMPLE))
    assert int(peak) < 0.8 * GIGABYTE  # so that it fits into a container of one gigabyte
    assert printed(ONE_CORE + SHIPPED, str(SAMPLE))[0] == plain
    assert printed(SHIPPED, str(SAMPLE), OMP_NUM_THREADS="1")[0] == plain


@pytest.fixture
def a_gigabyte() -> Iterator[Path]:
    """A new control group limited to one gigabyte: the file to which a process writes its number to join."""
    name, limit = f"picknet-{os.getpid()}", str(GIGABYTE)
    for parent, setting in ((Path("/sys/fs/cgroup/memory"), "memory.limit_in_bytes"), (CGROUPS, "memory.max")):
        group = parent / name
        try:
            group.mkdir()
            (group / setting).write_text(limit)
        except OSError:
            with contextlib.suppress(OSError):
                group.rmdir()
            continue
        yield group / "cgroup.procs"
        group.rmdir()
        return
    pytest.skip("needs permission to create a control group")


def test_a_container_of_one_gigabyte_is_enough(a_gigabyte: Path) -> None:
    join = f"import os; open({str(a_gigabyte)!r}, 'w').write(str(os.getpid()))\n"
    assert printed(join + SHIPPED, str(SAMPLE))[0] == printed(SHIPPED, str(SAMPLE))[0]


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="open files and memory are read from /proc")
def test_a_hundred_videos_leak_no_file_and_no_memory(tmp_path: Path, model_folder: Path) -> None:
    whole = clips.write_clip(tmp_path / "whole.mp4")
    cut = tmp_path / "cut.mkv"
    cut.write_bytes(clips.write_clip(tmp_path / "long.mkv").read_bytes()[:3000])
    (tmp_path / "text.mp4").write_text("no video")
    counted = clips.write_packed_avi(tmp_path / "counted.avi")
    damaged = clips.remux(whole, tmp_path / "damaged.mp4", ruined={20, 21, 40})
    videos = [whole, cut, tmp_path / "text.mp4", counted, damaged]
    (line,) = printed(HUNDRED, str(model_folder), *map(str, videos))
    files, memory, threads = map(int, line.split())
    assert files == 0
    assert memory < 20_000_000
    assert threads < 4 * (os.cpu_count() or 1) + 8


@on_linux
@pytest.mark.parametrize("kilobytes", [250_000, 350_000])
def test_too_little_memory_is_one_line(kilobytes: int, model_folder: Path) -> None:
    # Not enough for a library, or for the graphs.
    command = [sys.executable, "-m", "picknet", "caption", str(SAMPLE), "--model", str(model_folder)]
    limited = ["sh", "-c", f'ulimit -v {kilobytes} && exec "$@"', "sh", *command]
    finished = subprocess.run(limited, capture_output=True, text=True, timeout=120)
    assert finished.returncode == 1, finished.stderr
    (line,) = finished.stderr.splitlines()
    assert re.match(r"picknet: (.+: )?(not enough memory|its pictures need more memory|.*Cannot allocate memory)", line)
