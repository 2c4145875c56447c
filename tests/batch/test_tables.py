"""What is made of a clip, and the tables that others read."""

import io
import json
import os
import socket
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet
import pytest
from clips import write_clip
from command import on_linux
from PIL import Image
from stubs import StubWork

import picknet
from picknet.batch import SCHEMA_VERSION, Clip, DescribeClips, Kind, Work, run, schema
from picknet.batch.engines import locally
from picknet.batch.table import Format, write_rows
from picknet.batch.work import fingerprint
from picknet.errors import BadSetting
from picknet.model.folder import BadModel

NAMES = ["a.mp4", "error.mp4", "b.mp4"]


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_clip(tmp_path_factory.mktemp("clips") / "cat.mp4", num_frames=40))


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same clips in Parquet and in JSON lines."""
    monkeypatch.chdir(tmp_path)
    Path("list.txt").write_text("\n".join(NAMES))
    for format in Format:
        engine = partial(locally, jobs=1, timeout=None)
        run(["list.txt"], Path(format), Work(), engine=engine, do_clip=StubWork(), format=format)


@pytest.mark.usefixtures("tables")
def test_duckdb_polars_and_pandas_read_the_folder() -> None:
    question = "select video, picks[1].seconds, error from 'parquet/*.parquet' order by video"
    expected = [("a.mp4", 1.5, None), ("b.mp4", 1.5, None), ("error.mp4", None, "error.mp4: refused")]
    assert duckdb.sql(question).fetchall() == expected
    polars = pl.read_parquet("parquet/*.parquet").sort("video")
    assert polars["candidates"][0].to_list() == [{"caption": "a cat", "probability": 0.25}]
    assert polars["error"].null_count() == 2
    pandas = pd.read_parquet("parquet").set_index("video")  # the folder: what is no table is hidden
    assert pandas.loc["b.mp4", "caption"] == "about b.mp4"
    assert list(polars.columns) == ["video", *pandas.columns] == schema(Kind.captions).names


@pytest.mark.usefixtures("tables")
def test_json_lines_hold_the_same_rows() -> None:
    lines = [json.loads(line) for path in Path("jsonl").glob("*.jsonl") for line in path.open()]
    rows = [row for path in Path("parquet").glob("*.parquet") for row in pa.parquet.read_table(path).to_pylist()]
    assert sorted(lines, key=lambda row: row["video"]) == sorted(rows, key=lambda row: row["video"])
    engine = partial(locally, jobs=1, timeout=None)
    again = run(["list.txt"], Path("jsonl"), Work(), engine=engine, do_clip=StubWork(), format=Format.jsonl)
    assert (again.num_before, again.num_done) == (3, 0)


def test_the_schema_is_pinned_and_says_its_version(tmp_path: Path) -> None:
    assert schema(Kind.captions).names == [
        "video", "caption", "confidence", "not_sure", "candidates", "picks", "frames_seen", "seconds", "width",
        "height", "model", "damage", "error", "took", "clip",
    ]  # fmt: skip
    assert schema(Kind.timeline).names == [
        "video", "start", "end", "caption", "confidence", "not_sure", "picks", "model", "damage", "error", "took",
        "clip",
    ]  # fmt: skip
    assert schema(Kind.frames).names == [
        "video", "index", "seconds", "probability", "frame_number", "width", "height", "jpeg", "file", "model",
        "damage", "error", "took", "clip",
    ]  # fmt: skip
    write_rows(tmp_path / "a.parquet", [{"video": "a"}], Kind.timeline)
    assert pa.parquet.read_schema(tmp_path / "a.parquet").metadata == {
        b"picknet.schema": str(SCHEMA_VERSION).encode(),
        b"picknet.kind": b"timeline",
    }


def test_a_row_is_what_a_captioner_says(model_folder: Path, clip: str) -> None:
    captioner = picknet.load(model_folder)
    (row,) = Work(model=str(model_folder), candidates=2)(Clip(clip))
    expected = captioner.caption(clip, candidates=2).to_dict()
    assert {key: row[key] for key in expected} == expected
    assert (row["width"], row["height"], len(row["candidates"])) == (96, 64, 2)
    assert row["took"] > 0
    segments = [segment.to_dict() for segment in captioner.timeline(clip)]
    rows = Work(Kind.timeline, model=str(model_folder))(Clip(clip))
    assert [{key: row[key] for key in segments[0]} for row in rows] == segments
    rows = Work(Kind.frames, model=str(model_folder), budget=2, max_side=48)(Clip(clip))
    assert [row["seconds"] for row in rows] == [frame.seconds for frame in captioner.pick(clip, budget=2)]
    with Image.open(io.BytesIO(rows[0]["jpeg"])) as image:
        assert image.size == (rows[0]["width"], rows[0]["height"]) == (48, 32)


def test_bytes_give_the_row_of_the_file_and_errors_name_the_clip(model_folder: Path, clip: str) -> None:
    work = Work(model=str(model_folder))
    (read,), (given,) = work(Clip(clip)), work(Clip(clip, content=Path(clip).read_bytes()))
    assert given | {"took": 0} == read | {"took": 0}
    (broken,) = work(Clip("s3://me:secret@bucket/x.mp4", content=b"no video"))
    assert broken["error"] == "s3://me:***@bucket/x.mp4: not a known video format"
    (missing,) = work(Clip("gone.mp4"))
    assert missing["error"].startswith("gone.mp4: no such file")
    (camera,) = work(Clip("rtsp://camera/1"))
    assert "rtsp://camera/1: " in camera["error"]


def test_settings_and_models_that_are_wrong_are_errors_of_the_run(model_folder: Path, clip: str) -> None:
    for settings in ({"style": "baroque"}, {"candidates": 99}, {"rate": -1.0}, {"k": 0}, {"min_confidence": 0.5}):
        with pytest.raises(picknet.PicknetError):
            Work(model=str(model_folder), **settings)(Clip(clip))  # type: ignore[arg-type]
    with pytest.raises(BadModel, match="is another model in this process than where the run was started"):
        Work(model=str(model_folder), model_fingerprint="0" * 64)(Clip(clip))
    work = Work(model=str(model_folder)).fixed()
    assert work.model_fingerprint == fingerprint(model_folder)


@on_linux
def test_each_actor_keeps_to_a_core_of_its_own() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        first = DescribeClips(StubWork(), own_cores=1)
        (core,) = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})
        second = DescribeClips(StubWork(), own_cores=1)  # none is left
        assert (len(first._cores), len(second._cores)) == (1, 0)
        os.sched_setaffinity(0, allowed)
        rest = DescribeClips(StubWork(), own_cores=max(len(allowed) - 1, 1))
        assert core not in os.sched_getaffinity(0) or not rest._cores
    finally:
        os.sched_setaffinity(0, allowed)


def test_relative_paths_are_relative_to_the_folder_of_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "driver").mkdir()
    DescribeClips(StubWork(), folder=str(tmp_path / "driver"))
    assert Path.cwd() == tmp_path / "driver"
    describe = DescribeClips(StubWork(), folder="/not/on/this/node")
    assert describe({"path": ["/a.mp4", "s3://bucket/a.mp4", "tar://a.mp4::/b.tar"]}).num_rows == 3
    for name in ("a.mp4", "tar://a.mp4::b.tar"):
        with pytest.raises(BadSetting) as error:
            describe({"path": [name]})
        assert str(error.value) == (
            f"{name}: is relative, and /not/on/this/node cannot be entered on {socket.gethostname()} "
            "(No such file or directory); list absolute paths"
        )


def test_describe_clips_takes_what_ray_data_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PICKNET_MAX_PIXELS", "")
    describe = DescribeClips(StubWork(), timeout=30, max_pixels=6144)
    assert os.environ["PICKNET_MAX_PIXELS"] == "6144"  # for the process that has the model
    named: dict[str, Any] = {"path": np.array(["a.mp4", "error.mp4"]), "bytes": np.array([b"1", b"2"], object)}
    rows = describe(named)
    assert rows.schema.equals(schema(Kind.captions), check_metadata=True)
    assert rows["video"].to_pylist() == ["a.mp4", "error.mp4"]
    assert describe(pa.table({"url": ["b.mp4"]}))["caption"].to_pylist() == ["about b.mp4"]
    with pytest.raises(BadSetting, match="batch has the columns x: one of video, path, url is needed"):
        describe({"x": [1]})
