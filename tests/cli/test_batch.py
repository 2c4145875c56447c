"""`picknet batch`: options, messages and exit codes."""

import os
import sys
from pathlib import Path

import pyarrow.dataset
import pytest
from command import Picknet


@pytest.fixture(autouse=True)
def _place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_the_same_command_goes_on(picknet: Picknet, clips: Path, model_folder: Path) -> None:
    Path("list.txt").write_text(f"{clips}/cat.mp4\n{clips}/notes.txt\n")
    command = ["batch", "list.txt", clips, "--out", "out", "--model", model_folder, "--jobs", 1]
    first = picknet(*command)
    assert (first.code, first.out) == (1, "")  # the note is no video
    assert first.err.startswith("picknet: out: 3 clips done, 1 error, ")
    assert first.err.endswith(" clips/s, 1 named more than once\n")
    again = picknet(*command)
    assert (again.code, again.err) == (
        1, "picknet: out: 3 clips done (3 before), 1 error, 1 named more than once\n",
    )  # fmt: skip
    assert picknet(*command, "--allow-errors", "--quiet") == (0, "", "")
    assert picknet(*command, "--quiet").err == "picknet: out: 1 clip with an error, in errors-*.parquet\n"
    rows = pyarrow.dataset.dataset("out").to_table(["video", "error"]).to_pylist()
    assert {row["video"]: row["error"] for row in rows} == {
        str(clips / "cat.mp4"): None,
        str(clips / "dog.mkv"): None,
        str(clips / "notes.txt"): f"{clips}/notes.txt: not a known video format",
    }


def test_frames_go_to_files(
    picknet: Picknet, clips: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = ["--frames", 2, "--frame-files", "--format", "jsonl", "--model", model_folder, "--jobs", 1]
    with monkeypatch.context() as patch:  # a run that is killed when it has written pictures, but no table
        patch.setattr("picknet.batch.folder.OutputFolder.write", lambda folder: None)
        picknet("batch", clips / "dog.mkv", "--out", "out", *options)
    assert sorted(os.listdir("out")) == ["_frames", "_run.json"]
    assert picknet("batch", clips / "dog.mkv", "--out", "out", *options).code == 0
    assert len(list(Path("out/_frames").rglob("*.jpg"))) == 2
    refused = picknet("batch", clips, "--out", "out", *options, "--max-side", 64)
    assert (refused.code, refused.err) == (
        1, "picknet: out: belongs to a run with other settings (max_side None, now 64); name a new folder\n",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--timeline", "--frames", "2"], "--timeline: a table holds timelines or frames"),
        (["--timeline", "--k", "2"], "--k: is for captions, not for timelines"),
        (["--fps", "2"], "--fps: is for timelines, not for captions"),
        (["--frames", "2", "--rate", "2"], "--rate: is for captions and timelines, not for frames"),
        (["--frames", "2", "--format", "jsonl"], "--format jsonl: cannot hold pictures; add --frame-files"),
        (["--address", "auto"], "--address: is for --engine ray"),
        (["--cores-per-actor", "inf"], "Invalid value for '--cores-per-actor': "),
        (["--shard", "4/3"], "--shard is '4/3': K/N is possible, with K from 1 to N, such as 3/16"),
        (["--out", "s3://bucket/table"], "--out s3:/bucket/table: is an address; a folder of this machine is needed"),
    ],
)
def test_options_that_do_not_fit_are_refused(picknet: Picknet, options: list[str], message: str) -> None:
    outcome = picknet("batch", "clips", "--out", "out", *options)
    assert outcome.code == 2
    assert outcome.err.startswith(f"picknet: {message}")


def test_each_failure_is_one_line(
    picknet: Picknet, clips: Path, model_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failure(*arguments: object) -> str:
        outcome = picknet("batch", *arguments)
        assert (outcome.code, outcome.err.count("\n")) == (1, 1)
        return outcome.err.strip()

    assert failure("gone", "--out", "out") == "picknet: gone: no such file or folder"
    assert not Path("out").exists()
    assert "no such model" in failure(clips, "--out", "out", "--model", "gone")
    assert "style" in failure(clips, "--out", "out", "--style", "baroque", "--jobs", 1)
    assert not Path("out").exists()
    assert failure(clips, "--out", "out", "--min-confidence", 0.5, "--model", model_folder) == (
        f"picknet: --min-confidence 0.5: the model {model_folder} has no confidence; fit one with `picknet calibrate`"
    )
    Path("file").touch()
    assert failure(clips, "--out", "file/out").startswith("picknet: file/out: cannot be written (")
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "ray", None)
        assert failure(clips, "--out", "out", "--engine", "ray").endswith('pip install "picknet[ray]"')
    with monkeypatch.context() as patch:
        for name in [name for name in sys.modules if name.startswith("picknet.batch")]:
            patch.delitem(sys.modules, name)
        patch.setitem(sys.modules, "pyarrow", None)
        assert failure(clips, "--out", "out") == 'picknet: picknet batch needs pyarrow: pip install "picknet[batch]"'


