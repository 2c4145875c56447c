"""Fault injection: `caption --jobs`, `timeline` and `train` are disturbed at random moments.

    python tests/faults.py --moments 100

Whatever happens, every error is one line, no process and no temporary file stays, an older result is as it was, and the
same command, run again, gives the result of an undisturbed run.
"""

import argparse
import contextlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import clips

Random = random.Random

LAUNCHER = """
import os, random, resource, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a job in the background of a shell ignores it
fault, seed, *arguments = sys.argv[1:]
rng = random.Random(seed)
if fault == "slow disk":
    write = os.fsync
    os.fsync = lambda file: (time.sleep(rng.random() / 4), write(file))[1]
elif fault == "clock jumps":
    now = time.time
    time.time = lambda: now() + rng.uniform(-1e7, 1e7)
elif fault == "full disk":
    resource.setrlimit(resource.RLIMIT_FSIZE, (int(seed), int(seed)))
if arguments[0] == "train":
    import torch
    from picknet.training import export, runs
    torch.set_num_threads(1)
    runs.SAVE_SECONDS = 0.0
    export._export_graphs = lambda *_: None  # takes longer than all the rest
sys.argv = ["picknet", *arguments]
from picknet.__main__ import main
if __name__ == "__main__":
    main()
"""
SETTINGS = """
[video]
num_frames = 6
[text]
min_count = 1
max_words = 8
[model]
cnn = "efficientnet_lite0"
image_size = 32
embedding_size = 8
state_size = 12
picker_hidden = 10
[reward]
min_picks = 1
max_picks_floor = 4
[supervision]
epochs = 8
batch_size = 6
[reinforcement]
epochs = 4
[adaptation]
epochs = 4
batch_size = 6
"""
PATIENCE = 10.0
"""Seconds in which the other processes must end after the first one."""
ENDED = {"killed": signal.SIGKILL, "ended": signal.SIGTERM, "interrupted": signal.SIGINT}
FAULTS = ("worker killed", *ENDED, "halted", "slow disk", "full disk", "clock jumps", "closed pipe")


@dataclass
class Job:
    """A command, and where it writes."""

    name: str
    arguments: Sequence[str]
    out: Path
    """A folder that holds all of its results."""
    environment: dict[str, str]
    faults: Sequence[str] = FAULTS
    expected: dict[str, bytes] = field(default_factory=dict)
    seconds: float = 0.0
    """How long an undisturbed run takes."""

    def start(self, fault: str = "", seed: int = 0, **options: object) -> "subprocess.Popen[str]":
        resume = ["--resume"] if self.name == "train" and (self.out / "run" / "config.toml").exists() else []
        command = [sys.executable, "-c", LAUNCHER, fault, str(seed), *self.arguments, *resume]
        given = {"stdout": subprocess.DEVNULL, "stderr": subprocess.PIPE, "text": True, "env": self.environment}
        return subprocess.Popen(command, start_new_session=True, **{**given, **options})  # type: ignore[call-overload]

    def results(self) -> dict[str, bytes]:
        """The content of each file that says the same after every run."""
        found = {str(path.relative_to(self.out)): path.read_bytes() for path in self.out.rglob("*") if path.is_file()}
        if self.name == "train":
            kept = ("run/model/weights.safetensors", "run/model/policy.safetensors", "run/model/words.txt")
            return {name: found.get(name, b"") for name in kept}
        return {name: content for name, content in found.items() if not name.endswith(".part")}

    def run(self) -> None:
        """Without disturbance, to the end."""
        start = time.monotonic()
        process = self.start()
        _, errors = process.communicate()
        assert process.returncode == 0, f"{self.name} exits with {process.returncode}: {errors}"
        if not self.expected:
            self.expected, self.seconds = self.results(), time.monotonic() - start

    def disturb(self, fault: str, rng: Random) -> str:
        """Run it with a fault, then again without; what came of the first run. Raises AssertionError."""
        shutil.rmtree(self.out, ignore_errors=True)
        moment = rng.uniform(0, self.seconds)
        largest = max(map(len, self.expected.values()), default=1)
        seed = rng.randrange(largest) if fault == "full disk" else rng.randrange(1000)
        pipe = fault == "closed pipe"
        process = self.start(fault, seed, **({"stdout": subprocess.PIPE} if pipe else {}))
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(0.01 if pipe else moment if fault in (*ENDED, "halted", "worker killed") else None)
        if pipe and process.stdout:
            process.stdout.read(rng.randrange(60))
            process.stdout.close()
            process.stdout = None
        elif fault == "halted":
            _send(process.pid, signal.SIGSTOP)
            time.sleep(0.5)
            _send(process.pid, signal.SIGCONT)
        elif fault == "worker killed":
            for worker in _workers(process.pid)[:1]:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(worker, signal.SIGKILL)
        elif fault in ENDED:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process.pid, ENDED[fault])
        _, errors = process.communicate(timeout=120)
        code = process.returncode
        _wait_for_end(process.pid)
        told = f"{self.name}, {fault} after {moment:.2f} s (seed {seed}): exit code {code}, {errors!r}"
        possible = {"killed": {0, -9}, "ended": {0, 143, -15}, "interrupted": {0, 130, -2}, "full disk": {0, 1}}
        possible["closed pipe"] = {0, 1}
        assert code in possible.get(fault, {0}), told
        # Python itself is interrupted where nothing of picknet has been imported yet, and a worker that is just being
        # started reads what is left of a killed parent's message.
        is_pythons = fault == "interrupted" and code in (1, -2, 130)
        is_pythons |= fault == "killed" and errors.endswith("EOFError: Ran out of input\n")
        assert "Traceback" not in errors or is_pythons, told
        if fault != "killed":
            assert not _hidden(self.out), f"{told} leaves {_hidden(self.out)}"
        if code == 0 and not pipe:
            assert self.results() == self.expected, f"{told} has another result"
        if code != 0 or pipe:
            for name, content in self.results().items():
                assert content in (self.expected.get(name), b"") or self.name == "train", f"{told}: {name} is cut"
        if code != 0:
            self.run()
            assert self.results() == self.expected, f"{told}; run again, it has another result"
            assert not _hidden(self.out), f"{told}; run again, it leaves {_hidden(self.out)}"
        left = os.listdir(self.environment["TMPDIR"])
        assert not left, f"{told} leaves {left} in the folder for temporary files"
        return f"exit code {code}"


def _send(group: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(group, number)


def _workers(parent: int) -> list[int]:
    """Its worker processes, but not the one that tracks Python's shared memory."""
    found = subprocess.run(["ps", "-o", "pid=,args=", "--ppid", str(parent)], capture_output=True, text=True).stdout
    return [int(line.split()[0]) for line in found.splitlines() if "spawn_main" in line]


def _wait_for_end(group: int) -> None:
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return
        time.sleep(0.02)
    os.killpg(group, signal.SIGKILL)
    raise AssertionError(f"processes still run {PATIENCE:g} s after the command has ended")


def _hidden(folder: Path) -> list[str]:
    """Temporary files. The lock of a run folder is none: it stays, so that two trainings never hold different ones."""
    return [str(path) for path in folder.rglob(".*") if path.name != ".lock"]


def jobs(place: Path, model: Path, *, num_clips: int = 6, with_training: bool = True) -> list[Job]:
    """The commands that are disturbed, on made-up videos."""
    data, temporary = place / "data", place / "tmp"
    (data / "videos").mkdir(parents=True)
    temporary.mkdir()
    rows = []
    for number in range(num_clips):
        shape = ("square", "long", "wide")[number % 3]
        clips.write_clip(data / "videos" / f"{number}.mp4", num_frames=8, width=32 + 64 * (number % 3), height=48)
        for caption in (f"a {shape} box blinks", f"the box is {shape}"):
            rows.append({"clip": str(number), "caption": caption, "split": "val" if number % 3 == 0 else "train"})
    (data / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    clips.write_clip(place / "film.mp4", num_frames=200, fps=5)
    (place / "train.toml").write_text(SETTINGS)
    environment = dict(os.environ) | {"TMPDIR": str(temporary), "PICKNET_CACHE": str(place / "cache")}

    def job(name: str, *arguments: object, out: Path, faults: Sequence[str] = FAULTS) -> Job:
        return Job(name, [name, *map(str, arguments)], out, environment, faults)

    out = [place / f"out-{number}" for number in range(4)]
    captions = (data / "videos", "--model", model, "--jobs", 2)
    made = [
        job("caption", *captions, "--out", out[0] / "captions.jsonl", "--sheet", out[0] / "sheets", out=out[0],
            faults=[fault for fault in FAULTS if fault != "closed pipe"]),
        job("caption", *captions, out=out[1], faults=["closed pipe", "worker killed"]),
        job("timeline", place / "film.mp4", "--model", model, "--out", out[2] / "film.json", "--sheet",
            out[2] / "board.png", out=out[2],
            faults=[fault for fault in FAULTS if fault not in ("closed pipe", "worker killed")]),
    ]  # fmt: skip
    if with_training:
        made.append(
            job("train", place / "train.toml", "--data", f"folder={data}", "--out", out[3] / "run", "--device", "cpu",
                "--cache", out[3] / "features", out=out[3],
                faults=[*ENDED, "halted", "slow disk", "full disk", "clock jumps"])
        )  # fmt: skip
    return made


def main() -> None:
    parser = argparse.ArgumentParser(description="Disturb commands at random moments.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--moments", type=int, default=100)
    options = parser.parse_args()
    from conftest import ATTENDING, exported

    rng, failures = Random(options.seed), []
    with tempfile.TemporaryDirectory() as folder:
        made = jobs(Path(folder) / "work", exported(Path(folder) / "model", ATTENDING))
        for job in made:
            job.run()
        for number in range(options.moments):
            # Training takes longest: it comes every eighth time.
            job = made[-1] if number % 8 == 7 else made[number % 8 % 3]
            fault = rng.choice(job.faults)
            try:
                print(f"{number}: {job.name}, {fault}: {job.disturb(fault, rng)}", flush=True)
            except AssertionError as failure:
                failures.append(str(failure))
                print(f"{number}: FAILED: {failure}", flush=True)
    print(f"{options.moments} faults, {len(failures)} failures")
    sys.exit(bool(failures))


if __name__ == "__main__":
    main()
