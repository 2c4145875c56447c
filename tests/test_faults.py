"""A short run of the fault injection. `make faults` is the long run."""

from pathlib import Path
from random import Random

import faults
import pytest
from command import on_linux


@on_linux
def test_a_command_that_is_killed_loses_nothing_and_leaves_nothing(attending_folder: Path, tmp_path: Path) -> None:
    captions, *_ = faults.jobs(tmp_path / "work", attending_folder, num_clips=3, with_training=False)
    captions.run()
    assert set(captions.expected) == {"captions.jsonl", "sheets/0.png", "sheets/1.png", "sheets/2.png"}
    assert captions.disturb("killed", Random(1)) == "exit code -9"


@on_linux
def test_what_a_command_leaves_behind_is_a_failure(tmp_path: Path) -> None:
    for name in ("out", "tmp"):
        (tmp_path / name).mkdir()
    job = faults.Job("info", ["info", str(tmp_path)], tmp_path / "out", {"TMPDIR": str(tmp_path / "tmp")})
    with pytest.raises(AssertionError, match=r"info, slow disk after .* exit code "):
        job.disturb("slow disk", Random(0))
