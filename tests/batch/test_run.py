"""A run: nothing lost, nothing twice, bounded memory, and an output folder that refuses what does not belong to it."""

import errno
import fcntl
import json
import multiprocessing
import os
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow.dataset
import pytest
from command import on_linux
from stubs import StubWork, run_stub

from picknet.batch import BadSource, Clip, Kind, Shard, Summary, Work, folder, run
from picknet.batch.engines import locally
from picknet.batch.folder import Keys, OtherRun, key_array
from picknet.batch.table import BadTable, Format
from picknet.batch.work import fingerprint
from picknet.files import UnwritableFile, take_lock
from picknet.model.folder import PARTS

IN_PROCESS = partial(locally, jobs=1, timeout=None)
CAPTIONS = Work()


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write_list(names: Sequence[str], path: str = "list.txt") -> str:
    Path(path).write_text("".join(f"{name}\n" for name in names))
    return path


def described(
    *sources: str,
    out: str = "out",
    work: Work = CAPTIONS,
    do_clip: Any = None,
    engine: Any = IN_PROCESS,
    **options: Any,
) -> Summary:
    return run(sources, Path(out), work, engine=engine, do_clip=do_clip or StubWork(kind=work.kind), **options)


def videos(out: str = "out") -> Counter[str]:
    """Rows of each video in the table."""
    return Counter(pyarrow.dataset.dataset(out).to_table(["video"])["video"].to_pylist())


def files(out: str = "out") -> dict[str, float]:
    """The visible files, and when they were written."""
    return {path.name: path.stat().st_mtime_ns for path in Path(out).iterdir() if path.name[0] not in "._"}


def counts(summary: Summary) -> tuple[int, int, int, int]:
    return summary.num_clips, summary.num_before, summary.num_done, summary.num_errors


@pytest.mark.usefixtures("place")
def test_what_strangers_put_into_the_output_folder_does_no_harm() -> None:
    Path("precious").write_text("mine")
    Path("out").mkdir()
    Path("out/.lock-1-of-1").symlink_to("../precious")
    with pytest.raises(UnwritableFile, match=r"^out/\.lock-1-of-1: cannot be locked \("):
        described(write_list(["a.mp4"]))
    assert Path("precious").read_text() == "mine"
    Path("out/.lock-1-of-1").unlink()
    for plant, problem in (
        (os.mkfifo, r"cannot be read \(is not a regular file\)"),
        (lambda path: path.write_text("[" * 100_000), "is not the manifest of a run "),
    ):
        plant(manifest := Path("out/_run.json"))
        with pytest.raises(OtherRun, match=rf"^out/_run\.json: {problem}"):
            described("list.txt")
        manifest.unlink()


def test_a_pipe_in_a_model_folder_is_not_waited_for(place: Path) -> None:
    os.mkfifo(place / "cnn.onnx")
    for part in PARTS:
        if part != "cnn.onnx":
            (place / part).touch()
    with pytest.raises(OSError, match=r"is not a regular file: .*cnn\.onnx"):
        fingerprint(place)


@pytest.mark.usefixtures("place")
def test_a_second_run_does_only_what_is_new_and_never_rewrites_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(folder, "MAX_FILE_CLIPS", 10)
    names = [f"{number}.mp4" for number in range(25)]
    assert counts(described(write_list(names[:20]))) == (20, 0, 20, 0)
    before = files()
    assert sorted(before) == ["captions-000000.parquet", "captions-000001.parquet"]
    assert counts(described(write_list(names))) == (25, 20, 5, 0)
    assert counts(described("list.txt")) == (25, 25, 0, 0)
    after = files()
    assert {name: after[name] for name in before} == before
    assert videos() == Counter(names)


@pytest.mark.usefixtures("place")
def test_a_path_twice_is_one_clip_and_one_name_in_two_folders_is_two() -> None:
    write_list(["x/cat.mp4", "y/cat.mp4", "x/cat.mp4"])
    summary = described("list.txt", write_list(["y/cat.mp4"], "more.txt"))
    assert (summary.num_clips, summary.num_twice) == (2, 2)
    assert videos() == {"x/cat.mp4": 1, "y/cat.mp4": 1}


@pytest.mark.usefixtures("place")
def test_errors_are_rows_and_are_tried_again_only_when_asked() -> None:
    write_list(["a.mp4", "error.mp4", "b.mp4"])
    assert counts(described("list.txt")) == (3, 0, 3, 1)
    assert counts(described("list.txt")) == (3, 3, 0, 1)  # the error counts, though it is an old one
    table = pyarrow.dataset.dataset("out").to_table(["video", "caption", "error"]).sort_by("video").to_pylist()
    assert table[2] == {"video": "error.mp4", "caption": None, "error": "error.mp4: refused"}
    assert counts(described("list.txt", retry_errors=True)) == (3, 2, 1, 1)
    assert counts(described("list.txt", retry_errors=True, do_clip=Mended())) == (3, 2, 1, 0)
    assert videos() == {"a.mp4": 1, "b.mp4": 1, "error.mp4": 1}


@pytest.mark.usefixtures("place")
def test_errors_of_all_shards_are_tried_again_and_a_shard_tries_its_own() -> None:
    write_list([f"{number}-error.mp4" for number in range(12)])
    parts = [described("list.txt", shard=Shard(number, 2)).num_clips for number in (1, 2)]
    again = described("list.txt", shard=Shard(1, 2), retry_errors=True, do_clip=Mended())
    assert counts(again) == (parts[0], 0, parts[0], 0)
    assert counts(described("list.txt", retry_errors=True, do_clip=Mended())) == (12, parts[0], parts[1], 0)
    assert set(videos().values()) == {1}
    assert [name for name in files() if name.startswith("errors")] == []


@pytest.mark.usefixtures("place")
def test_a_retry_that_comes_to_nothing_leaves_the_errors() -> None:
    def unreachable(*_: object) -> Iterator[Any]:
        raise OSError("no cluster is there")
        yield

    write_list(["a.mp4", "error.mp4"])
    described("list.txt")
    before = files()
    with pytest.raises(BadSource):
        described("list.txt", "gone", retry_errors=True)
    with pytest.raises(OSError, match="no cluster"):
        described("list.txt", retry_errors=True, engine=unreachable)
    assert files() == before
    assert counts(described("list.txt", retry_errors=True, do_clip=Mended())) == (2, 1, 1, 0)


class Mended(StubWork):
    def __call__(self, clip: Clip) -> list[dict[str, Any]]:
        return [{"video": clip.shown_name, "clip": clip.key.hex(), "caption": "now it works"}]


@pytest.mark.usefixtures("place")
def test_a_clip_that_hangs_or_kills_its_process_is_a_row_with_an_error() -> None:
    write_list(["a.mp4", "hang.mp4", "b.mp4", "die.mp4", "c.mp4"])
    summary = described("list.txt", engine=partial(locally, jobs=2, timeout=1.5))
    assert counts(summary) == (5, 0, 5, 2)
    rows = pyarrow.dataset.dataset("out").to_table(["video", "error"]).to_pylist()
    assert {row["video"]: row["error"] for row in rows if row["error"]} == {
        "hang.mp4": "hang.mp4: took longer than 1.5 s and was stopped",
        "die.mp4": "die.mp4: two worker processes died (last exit code -9)",
    }
    assert len(rows) == 5


@pytest.mark.usefixtures("place")
def test_twenty_kills_at_random_moments_lose_and_double_nothing() -> None:
    names = [f"{'error' if number % 50 == 0 else 'clip'}-{number}.mp4" for number in range(1500)]
    write_list(names)
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["picknet.batch", "stubs"])
    moments = random.Random(7)
    num_kills = 0
    for _ in range(100):
        process = context.Process(target=run_stub, args=(["list.txt"], "out", 20, 0.002))
        process.start()
        process.join(0.03 + moments.random() * 0.15 if num_kills < 20 else 60)
        if process.exitcode is not None:
            break
        process.kill()
        process.join()
        num_kills += 1
    assert (num_kills, process.exitcode) == (20, 0)
    assert videos() == Counter(names)
    assert [name for name in os.listdir("out") if name.startswith(".captions")] == []


@pytest.mark.usefixtures("place")
def test_what_was_done_before_ctrl_c_is_written() -> None:
    def interrupted(work: Any, clips: Iterator[Clip], _: int) -> Iterator[Any]:
        for number, clip in enumerate(clips):
            if number == 7:
                raise KeyboardInterrupt
            yield work(clip)

    write_list([f"{number}.mp4" for number in range(20)])
    with pytest.raises(KeyboardInterrupt):
        described("list.txt", engine=interrupted)
    assert len(videos()) == 7
    assert counts(described("list.txt")) == (20, 7, 13, 0)


@pytest.mark.usefixtures("place")
def test_a_full_disk_is_one_line_and_loses_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    names = [f"{number}.mp4" for number in range(5)]
    write_list(names)
    with monkeypatch.context() as patch, pytest.raises(UnwritableFile) as error:
        patch.setattr("pyarrow.parquet.write_table", full)
        described("list.txt")
    assert str(error.value) == "out/captions-000000.parquet: cannot be written (No space left on device)"
    described("list.txt")
    assert videos() == Counter(names)


@on_linux
@pytest.mark.usefixtures("place")
def test_memory_is_flat_over_a_hundred_thousand_clips() -> None:
    write_list([f"/archive/2026/camera-{number % 100}/clip-{number}.mp4" for number in range(100_000)])
    page, sizes = os.sysconf("SC_PAGE_SIZE"), []

    def measure(summary: Summary) -> None:
        if summary.num_done % 10_000 == 0:
            sizes.append(int(Path("/proc/self/statm").read_text().split()[1]) * page / 1e6)

    assert counts(described("list.txt", on_progress=measure)) == (100_000, 0, 100_000, 0)
    assert len(sizes) == 11
    assert max(sizes[3:]) - sizes[2] < 16  # MB; 80,000 rows would be 50 or more
    assert len(files()) == 100


def test_a_set_of_keys_is_like_any_set() -> None:
    generator = np.random.default_rng(0)
    known: set[bytes] = set()
    keys = Keys()
    for _ in range(40):
        some = list({bytes(key) for key in generator.integers(0, 4, (50, 16), np.uint8)} | {bytes(16)} - known)
        new = key_array([key for key in some if key not in known])
        assert keys.holds(key_array(some)).tolist() == [key in known for key in some]
        keys.add(new)
        known |= set(some)
    assert len(keys) == len(known)


@pytest.mark.usefixtures("place")
def test_shards_side_by_side_make_one_table() -> None:
    names = [f"{number}{'-error' if number == 3 else ''}.mp4" for number in range(60)]
    write_list(names)
    errors = [described("list.txt", shard=Shard(number, 3)).num_errors for number in (1, 2, 3)]
    assert sorted(errors) == [0, 0, 1]  # only the shard of a failed clip reports it
    assert videos() == Counter(names)
    assert counts(described("list.txt")) == (60, 60, 0, 1)
    assert all("-of-3-" in name for name in files())


@pytest.mark.usefixtures("place")
def test_two_runs_that_might_do_the_same_clips_do_not_write_to_one_folder() -> None:
    write_list(["a.mp4"])
    described("list.txt")
    with open("out/.lock-1-of-1", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        with pytest.raises(OtherRun, match="out: another run is writing to it; wait for its end"):
            described("list.txt")
        with pytest.raises(OtherRun, match="out: a run of 1/1 is writing to it"):
            described("list.txt", shard=Shard(1, 3))
    with open("out/.lock-2-of-3", "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        described("list.txt", shard=Shard(1, 3))
        with pytest.raises(OtherRun, match="out: shard 2/3 is writing to it"):
            described("list.txt", shard=Shard(2, 3))


@pytest.mark.usefixtures("place")
def test_a_folder_of_another_run_is_refused() -> None:
    write_list(["a.mp4"])
    described("list.txt")
    with pytest.raises(OtherRun) as error:
        described("list.txt", work=Work(rate=2.0))
    assert str(error.value) == "out: belongs to a run with other settings (rate None, now 2.0); name a new folder"
    with pytest.raises(OtherRun, match="format parquet, now jsonl"):
        described("list.txt", format=Format.jsonl)
    with pytest.raises(OtherRun, match="kind captions, now timeline"):
        described("list.txt", work=Work(kind=Kind.timeline))
    manifest = json.loads(Path("out/_run.json").read_text())
    Path("out/_run.json").write_text(json.dumps(manifest | {"schema": 0}))
    with pytest.raises(OtherRun, match="out: was written with schema 0, this version writes 1; name a new folder"):
        described("list.txt")
    for odd in ({}, manifest | {"fingerprint": 5}, {"schema": 1, "fingerprint": "5", "options": {}}):
        Path("out/_run.json").write_text(json.dumps(odd))
        with pytest.raises(OtherRun, match=r"out/_run.json: is not the manifest of a run"):
            described("list.txt")
    with pytest.raises(OtherRun, match=r"\.: holds list.txt, but no _run.json"):
        described("list.txt", out=".")


@pytest.mark.usefixtures("place")
def test_a_model_that_has_changed_is_refused_and_one_that_has_moved_is_not() -> None:
    from picknet.model.folder import SHIPPED

    write_list(["a.mp4"])
    shutil.copytree(SHIPPED / "msvd", "mine")
    described("list.txt", work=Work(model="mine"))
    Path("mine").rename("elsewhere")
    described("list.txt", work=Work(model="elsewhere"))
    with open("elsewhere/card.json", "a") as file:
        file.write(" ")
    with pytest.raises(OtherRun, match=r"out: was written by the model mine, not elsewhere \(fingerprint \w{12}, now"):
        described("list.txt", work=Work(model="elsewhere"))
    Path("elsewhere").rename("mine")
    with pytest.raises(OtherRun, match=r"out: was written before the model mine was changed \(fingerprint"):
        described("list.txt", work=Work(model="mine"))


@pytest.mark.usefixtures("place")
def test_a_run_that_fails_before_its_first_row_leaves_the_folder_free() -> None:
    write_list(["a.mp4"])
    with pytest.raises(Exception, match="no such file"):
        described("gone", work=Work(rate=2.0))
    described("list.txt")


@pytest.mark.usefixtures("place")
def test_a_run_that_never_began_leaves_nothing_behind() -> None:
    def failing(*_: object) -> Iterator[Any]:
        raise RuntimeError("no engine")

    write_list(["a.mp4"])
    Path("mine").mkdir()
    for out in ("deep/inside/out", "mine"):
        with pytest.raises(RuntimeError, match="no engine"):
            described("list.txt", out=out, engine=failing)
    assert sorted(os.listdir()) == ["list.txt", "mine"]  # that one was there
    assert os.listdir("mine") == []
    described("list.txt")
    assert sorted(os.listdir("out")) == ["_run.json", "captions-000000.parquet"]


@pytest.mark.usefixtures("place")
def test_the_lock_of_a_run_that_has_just_ended_locks_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def late(file: IO[str]) -> bool:
        Path("out/.lock-1-of-1").unlink()  # between opening it and locking it
        return take_lock(file)

    write_list(["a.mp4"])
    monkeypatch.setattr(folder, "take_lock", late)
    with pytest.raises(OtherRun, match="out: another run is writing to it; wait for its end"):
        described("list.txt")


@pytest.mark.usefixtures("place")
def test_a_damaged_file_is_named() -> None:
    write_list(["a.mp4"])
    described("list.txt")
    Path("out/captions-000000.parquet").write_bytes(b"PAR1")
    with pytest.raises(BadTable, match=r"out/captions-000000.parquet: is damaged .* delete it, and its clips are"):
        described("list.txt")
    Path("out/captions-000000.parquet").unlink()
    assert counts(described("list.txt")) == (1, 0, 1, 0)


@pytest.mark.usefixtures("place")
def test_a_file_that_must_not_be_read_is_not_called_damaged(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*_: object, **__: object) -> None:
        raise PermissionError(errno.EACCES, "Failed to open local file")

    write_list(["a.mp4"])
    described("list.txt")
    with monkeypatch.context() as patch, pytest.raises(BadTable) as error:
        patch.setattr("pyarrow.parquet.read_table", forbidden)
        described("list.txt")
    assert str(error.value) == "out/captions-000000.parquet: cannot be read (Permission denied)"


@pytest.mark.usefixtures("place")
def test_rows_are_written_in_time_and_pictures_before_they_fill_the_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    def slowly(work: Any, clips: Iterator[Clip], _: int) -> Iterator[Any]:
        for clip in clips:
            yield [row | {"jpeg": b"x" * 600} for row in work(clip)]

    write_list([f"{number}.mp4" for number in range(4)])
    monkeypatch.setattr(folder, "MAX_FILE_BYTES", 1000)
    described("list.txt", engine=slowly, work=Work(kind=Kind.frames), out="frames")
    assert len(files("frames")) == 2
    monkeypatch.setattr(folder, "MAX_FILE_SECONDS", 0.0)
    described("list.txt")
    assert len(files()) == 4


def test_no_clip_waits_for_a_slow_one(place: Path) -> None:
    clips = [Clip("slow.mp4"), *(Clip(f"{number}.mp4") for number in range(40))]
    came: list[str] = []
    for rows in locally(SlowStub(), clips, len(clips), jobs=2, timeout=20):
        came.append(rows[0]["video"])
        if len(came) == 40:
            (place / "go on").touch()
    assert (came[-1], rows[0].get("error")) == ("slow.mp4", None)


class SlowStub(StubWork):
    def __call__(self, clip: Clip) -> list[dict[str, Any]]:
        while clip.name == "slow.mp4" and not os.path.exists("go on"):
            time.sleep(0.01)
        return super().__call__(clip)
