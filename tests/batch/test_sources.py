"""Where clips come from: folders, patterns, lists, tar files and addresses; and what is said about bad ones."""

import csv
import errno
import io
import json
import os
import shutil
import subprocess
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import IO, Any, cast

import fsspec
import pyarrow as pa
import pyarrow.parquet
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from picknet.batch import BadSource, Clip, Shard, list_clips
from picknet.batch.sources import MAX_LINKS, opened
from picknet.video.file import UnreadableVideo, Video


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working directory with files whose names alone matter."""
    for name in ("clips/b.mp4", "clips/a.mov", "clips/deep/a.mov", "clips/.hidden.mp4", "clips/notes.md", "one.mkv"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"video")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def served(place: Path) -> Iterator[str]:
    """The address of that directory."""

    class Quiet(SimpleHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(place)))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


class Bucket(MemoryFileSystem):  # type: ignore[misc]
    """A file system without rights, as a bucket of somebody else."""

    protocol = "lockedbucket"

    def info(self, *_: Any, **__: Any) -> Any:
        raise PermissionError("Forbidden")


def names(*sources: str, **options: Any) -> list[str]:
    return [clip.name for clip in list_clips(sources, **options)]


def refused(*sources: str, **options: Any) -> str:
    with pytest.raises(BadSource) as error:
        names(*sources, **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def write_tar(path: Path, members: dict[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


@pytest.mark.usefixtures("place")
def test_folders_patterns_and_files_are_listed_as_they_were_named() -> None:
    everything = ["clips/a.mov", "clips/b.mp4", "clips/deep/a.mov"]
    assert names("clips/") == names("clips") == everything
    assert names("clips/**/*.mov") == ["clips/a.mov", "clips/deep/a.mov"]
    assert names("one.mkv", "clips") == ["one.mkv", *everything]
    assert len({clip.key for clip in list_clips(["clips"])}) == 3  # two of them have the same file name


def test_a_folder_may_be_called_as_a_compressed_tar_file_is_and_many_suffixes_are_videos(place: Path) -> None:
    (place / "clips.tgz").mkdir()
    videos = ["a.DV", "b.vob", "c.mxf", "d.asf", "e.3g2", "f.mpe", "g.m2v", "h.f4v", "i.divx", "j.qt"]
    for name in videos:
        (place / "clips.tgz" / name).touch()
    assert names("clips.tgz") == [f"clips.tgz/{name}" for name in videos]


def test_lists_hold_a_path_a_line_or_a_column_of_paths(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = ["clips/ä 1.mp4", "s3://bucket/2.mp4", "missing.mp4"]
    (place / "list.txt").write_text("\n".join(paths) + "\n\n", encoding="utf-8")
    with (place / "list.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["id", "path"], *enumerate(paths)])
    lines = [json.dumps(path) if path == paths[0] else json.dumps({"url": path}) for path in paths]
    (place / "list.jsonl").write_text("\n".join(lines))
    pa.parquet.write_table(pa.table({"id": [0, 1, 2], "video": paths}), place / "list.parquet")
    for kind in ("txt", "csv", "jsonl", "parquet"):
        assert names(f"list.{kind}") == paths, kind
    assert names("list.*") == 4 * paths
    pa.parquet.write_table(pa.table({"mine": paths}), place / "mine.parquet")
    assert names("mine.parquet", column="mine") == paths
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"a.mp4\nbad-\xff.mp4\r\n")))
    assert names("-") == ["a.mp4", "bad-\udcff.mp4"]
    assert Clip("bad-\udcff.mp4").shown_name == r"bad-\udcff.mp4"


def test_lists_of_other_encodings_and_types_are_read_or_refused(place: Path) -> None:
    (place / "mark.txt").write_text("a.mp4\n", encoding="utf-8-sig")
    assert names("mark.txt") == ["a.mp4"]
    for kind, text in (("txt", "a.mp4\n"), ("csv", "video\na.mp4\n"), ("jsonl", '"a.mp4"\n')):
        (place / f"wide.{kind}").write_text(text, encoding="utf-16")
        problem = "holds NUL bytes, as UTF-16 has them; save it as UTF-8"
        assert refused(f"wide.{kind}") == f"wide.{kind}: {problem}"

    def table(values: list[Any], type: Any = None) -> str:
        pa.parquet.write_table(pa.table({"video": pa.array(values, type)}), place / "list.parquet")
        return "list.parquet"

    assert names(table([b"a.mp4", b"bad-\xff.mp4"])) == ["a.mp4", "bad-\udcff.mp4"]
    assert names(table(["a.mp4", "b.mp4"], pa.dictionary(pa.int32(), pa.string()))) == ["a.mp4", "b.mp4"]
    expected = "list.parquet: the column video holds {} where paths were expected; name another one with --column"
    assert refused(table([1, 2])) == expected.format("int64")
    assert refused(table([{"path": "a.mp4"}])) == expected.format("struct<path: string>")
    assert refused(table(["a.mp4", None])) == "list.parquet: row 2 has null where a path was expected"
    assert refused(table([""])) == 'list.parquet: row 1 has "" where a path was expected'
    (place / "list.csv").write_text("id,video\n1,a.mp4\n2,\n")
    assert refused("list.csv") == 'list.csv: line 3 has "" where a path was expected'


def test_a_folder_that_cannot_be_read_is_not_left_out(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scandir(path: Any) -> Any:
        if os.fspath(path).endswith("deep"):
            raise PermissionError(errno.EACCES, "Permission denied", os.fspath(path))
        return scan(path)

    scan = os.scandir
    monkeypatch.setattr("os.scandir", scandir)
    for source in ("clips", "clips/**/*.mov", "clips/*/*.mov"):
        assert refused(source) == "clips/deep: cannot be read (Permission denied)"


def test_a_tar_file_gives_its_videos_by_position(place: Path) -> None:
    long_name = "x/" + "long" * 60 + ".mp4"
    write_tar(place / "000.tar", {"x/1.mp4": b"one", "x/1.json": b"{}", long_name: b"two", ".3.mp4": b""})
    one, two = list_clips(["000.tar"])
    assert one.name == "tar://x/1.mp4::000.tar"
    with opened(one) as first, opened(two) as second:
        assert (first, second) == (b"one", b"two")
    with fsspec.open(one.name) as file:  # the name is one that fsspec knows
        assert file.read() == b"one"
    assert one.name in names(".")  # tar files in a folder count


def test_a_pipe_in_the_place_of_a_tar_file_or_a_video_is_not_waited_for(place: Path) -> None:
    os.mkfifo(place / "clips" / "000.tar")
    os.mkfifo(place / "clips" / "live.ts")
    first, *others = list_clips(["clips"])
    assert first.problem == "cannot be read as a tar file (is not a regular file)"
    assert [clip.name for clip in others] == ["clips/a.mov", "clips/b.mp4", "clips/live.ts", "clips/deep/a.mov"]
    with pytest.raises(UnreadableVideo, match=r"clips/live\.ts: is not a regular file"), opened(others[2]) as name:
        Video(cast(str, name))


def test_hard_links_and_transport_streams_in_a_tar_file_count(place: Path) -> None:
    stream = (b"\x47" + b"x" * 187) * 5
    path = write_tar(place / "000.tar", {"1.mp4": b"one", "1.txt": b"text", "2.ts": stream, "code.ts": b"type T = 1;"})
    with tarfile.open(path, "a") as archive:
        for name, target in {"again.mp4": "1.mp4", "again.ts": "2.ts", "code2.ts": "code.ts", "0.mp4": "gone"}.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.LNKTYPE, target
            archive.addfile(link)
    clips = {clip.name: clip for clip in list_clips(["000.tar"])}
    assert list(clips) == [f"tar://{name}::000.tar" for name in ("1.mp4", "2.ts", "again.mp4", "again.ts", "0.mp4")]
    with opened(clips["tar://again.mp4::000.tar"]) as one, opened(clips["tar://again.ts::000.tar"]) as two:
        assert (one, two) == (b"one", stream)
    assert clips["tar://0.mp4::000.tar"].problem == "is a link to gone, which is no file in the tar file"
    write_tar(place / "texts.tar", {"1.txt": b"text"})
    assert refused("texts.tar").startswith("texts.tar: no video in this tar file (looked for .3g2, ")
    assert refused("text*.tar").startswith("text*.tar: no video in its tar files (looked for .3g2, ")
    for number in (1, 2):  # the shard that does not have it cannot tell
        part = Shard(number, 2)
        assert refused("texts.tar", shard=part) if part.owns("texts.tar") else names("texts.tar", shard=part) == []


def test_symbolic_links_in_a_tar_file_count_and_lead_nowhere_else(place: Path) -> None:
    (place / "secret.mp4").write_bytes(b"secret")
    path = write_tar(place / "000.tar", {"./blobs/5f3a": b"one", "notes.txt": b"text"})
    links = {
        "./clips/1.mp4": "../blobs/5f3a",
        "clips/again.mp4": "1.mp4",  # by way of the first
        "clips/.hidden.mp4": "1.mp4",
        "clips/notes": "../notes.txt",
        "up.mp4": "../secret.mp4",
        "root.mp4": str(place / "secret.mp4"),
        "gone.mp4": "clips/2.mp4",
        "a.mp4": "b.mp4",
        "b.mp4": "a.mp4",
    }
    with tarfile.open(path, "a") as archive:
        for name, target in links.items():
            link = tarfile.TarInfo(name)
            link.type, link.linkname = tarfile.SYMTYPE, target
            archive.addfile(link)
        link = tarfile.TarInfo("hard.mp4")  # to a symbolic link
        link.type, link.linkname = tarfile.LNKTYPE, "clips/again.mp4"
        archive.addfile(link)
    clips = {clip.name.removeprefix("tar://").removesuffix("::000.tar"): clip for clip in list_clips(["000.tar"])}
    for name in ("./clips/1.mp4", "clips/again.mp4", "hard.mp4"):
        with opened(clips.pop(name)) as content:
            assert content == b"one"
    assert {name: clip.problem for name, clip in clips.items()} == {
        name: f"is a link to {links[name]}, which is no file in the tar file"
        for name in ("up.mp4", "root.mp4", "gone.mp4", "a.mp4", "b.mp4")
    }


@pytest.mark.skipif(shutil.which("tar") is None, reason="needs tar")
@pytest.mark.parametrize("format", ["gnu", "posix"])
def test_a_member_of_a_tar_file_that_is_stored_without_its_zeros_is_told(place: Path, format: str) -> None:
    with (place / "holes.mp4").open("wb") as file:
        file.seek(1 << 20)
        file.write(b"end")
    (place / "whole.mp4").write_bytes(b"one")
    packed = ["tar", "--sparse", f"--format={format}", "-cf", "000.tar", "holes.mp4", "whole.mp4"]
    if subprocess.run(packed, capture_output=True, check=False).returncode:
        pytest.skip("this tar stores every zero")
    holes, whole = list_clips(["000.tar"])
    assert (holes.name, whole.name) == ("tar://holes.mp4::000.tar", "tar://whole.mp4::000.tar")
    assert holes.problem == "is stored without its zeros; pack it without --sparse"
    with opened(whole) as content:
        assert content == b"one"


def test_a_long_row_of_links_in_a_tar_file_is_not_followed_for_ever(place: Path) -> None:
    path = write_tar(place / "000.tar", {"0.mp4": b"one"})
    with tarfile.open(path, "a") as archive:
        for number in range(1, MAX_LINKS + 2):
            link = tarfile.TarInfo(f"{number}.mp4")
            link.type, link.linkname = tarfile.SYMTYPE, f"{number - 1}.mp4"
            archive.addfile(link)
    problems = [clip.name for clip in list_clips(["000.tar"]) if clip.problem]
    assert problems == [f"tar://{MAX_LINKS + 1}.mp4::000.tar"]


def test_members_of_archives_are_read_by_the_names_they_are_given(place: Path) -> None:
    write_tar(place / "000.tar", {"1.mp4": b"one"})
    with zipfile.ZipFile(place / "z.zip", "w") as archive:
        archive.writestr("1.mp4", b"zipped")
        archive.writestr("list.md", b"")
    (place / "list.txt").write_text("tar://1.mp4::000.tar\nzip://1.mp4::z.zip\n")
    contents = []
    for clip in list_clips(["list.txt", "zip://*.mp4::z.zip", "zip://::z.zip"]):
        with opened(clip) as file:
            contents.append((clip.name, cast(IO[bytes], file).read()))
    zipped = ("zip://1.mp4::z.zip", b"zipped")
    assert contents == [("tar://1.mp4::000.tar", b"one"), zipped, zipped, zipped]


def test_a_large_member_is_read_where_it_is(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_tar(place / "000.tar", {"1.mp4": b"x" * 600, "2.mp4": b"y" * 600 + b"z"})
    monkeypatch.setattr("picknet.batch.sources.HELD_BYTES", 600)
    small, large = list_clips(["000.tar"])
    with opened(small) as source:
        assert source == b"x" * 600
    with opened(large) as source:
        assert source.seekable()
        source.seek(598)
        assert source.read() == b"yyz"


def test_the_size_in_a_header_reserves_no_memory(place: Path) -> None:
    info = tarfile.TarInfo("1.mp4")
    for info.size in (2**60, 10**11):
        (place / "000.tar").write_bytes(info.tobuf(tarfile.GNU_FORMAT) + b"x" * 1000)
        clip = next(list_clips(["000.tar"]))
        with pytest.raises(UnreadableVideo, match=r"1\.mp4::000\.tar: the tar file is cut short"), opened(clip):
            pytest.fail("it was opened")


def test_a_damaged_tar_file_gives_what_is_before_the_damage_and_an_error(place: Path) -> None:
    whole = write_tar(place / "000.tar", {"1.mp4": b"x" * 600, "2.mp4": b"y" * 600}).read_bytes()
    # Headers are at 0 and 1536, the end mark at 3072.
    for size, found in ((1000, 1), (1536, 1), (1700, 1), (2500, 2), (3072, 2)):
        (place / "000.tar").write_bytes(whole[:size])
        *good, bad = list_clips(["000.tar"])
        assert [clip.name for clip in good] == ["tar://1.mp4::000.tar", "tar://2.mp4::000.tar"][:found], size
        assert (bad.name, bool(bad.problem)) == ("000.tar", True)
        with pytest.raises(UnreadableVideo, match=r"000\.tar: .*(end is missing|unexpected end)"), opened(bad):
            pass
    (place / "000.tar").write_bytes(whole[:2500])
    with pytest.raises(UnreadableVideo, match=r"2\.mp4::000\.tar: the tar file is cut short"), opened(good[1]):
        pass
    (place / "000.tar").write_bytes(whole[:1536] + b"?" * 512 + whole[2048:])
    assert [clip.name for clip in list_clips(["000.tar"])] == ["tar://1.mp4::000.tar", "000.tar"]
    (place / "text.tar").write_text("no tar at all" * 100)
    (clip,) = list_clips(["text.tar"])
    assert "cannot be read as a tar file" in clip.problem
    (place / "list.txt").write_text("gone.tar\n")
    (clip,) = list_clips(["list.txt"])
    assert clip.problem == "no such file"


def test_addresses_are_read_through_fsspec(place: Path) -> None:
    bucket = fsspec.filesystem("memory")
    bucket.pipe({"/videos/a.mp4": b"a", "/videos/deep/b.webm": b"b", "/videos/c.txt": b"a.mp4\n"})
    assert names("memory://videos") == ["memory:///videos/a.mp4", "memory:///videos/deep/b.webm"]
    assert names("memory://videos/*.mp4") == ["memory:///videos/a.mp4"]
    assert names("memory://videos/c.txt") == ["a.mp4"]
    with opened(Clip("memory://videos/deep/b.webm")) as file:
        assert not isinstance(file, str | bytes)
        assert file.read() == b"b"
    write_tar(place / "000.tar", {"1.mp4": b"one"})
    bucket.pipe("/videos/000.tar", (place / "000.tar").read_bytes())
    (member,) = list_clips(["memory://videos/000.tar"])
    with opened(member) as content:
        assert content == b"one"
    assert refused("memory://nothing/here") == "memory://nothing/here: no such file or folder"


def test_http_addresses(served: str, place: Path) -> None:
    (place / "list.csv").write_text("url\na.mp4\n")
    assert names(f"{served}/list.csv") == ["a.mp4"]
    assert names(f"{served}/one.mkv") == [f"{served}/one.mkv"]
    assert refused(f"{served}/gone.csv") == f"{served}/gone.csv: no such file or folder"


def test_shards_are_disjoint_and_complete_and_keep_tar_files_whole(place: Path) -> None:
    paths = [f"{number}.mp4" for number in range(200)]
    (place / "list.txt").write_text("\n".join(paths))
    parts = [names("list.txt", shard=Shard(number, 4)) for number in range(1, 5)]
    assert sorted(name for part in parts for name in part) == sorted(paths)
    assert min(map(len, parts)) > 25
    write_tar(place / "000.tar", {f"{number}.mp4": b"" for number in range(9)})
    assert sorted(len(names("000.tar", shard=Shard(number, 4))) for number in range(1, 5)) == [0, 0, 0, 9]
    assert Shard.parse("3/16") == Shard(3, 16)
    for wrong in ("0/4", "5/4", "3", "a/b", "1/"):
        with pytest.raises(BadSource, match="K/N is possible"):
            Shard.parse(wrong)


def test_each_bad_source_is_one_line(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.register_implementation("lockedbucket", Bucket, clobber=True)
    (place / "empty").mkdir()
    (place / "empty.txt").write_text("\n\n")
    (place / "empty.csv").write_text("")
    (place / "bad.jsonl").write_text('{"video": "a.mp4"}\n{"video": 3}\n')
    (place / "worse.jsonl").write_text('{"video": "a.mp4"}\n{"vid\n')
    (place / "bad.parquet").write_text("no table")
    assert refused("gone") == "gone: no such file or folder"
    assert refused("gone/*.mp4") == "gone/*.mp4: no file matches this pattern"
    assert refused("empty").startswith("empty: no video in this folder (looked for .3g2, ")
    assert refused("empty.txt") == "empty.txt: lists no path"
    assert refused("empty.csv") == (
        "empty.csv: no column video, path or url; its columns are (none): name one with --column"
    )
    assert refused("bad.jsonl") == "bad.jsonl: line 2 has 3 where a path was expected"
    assert refused("worse.jsonl").startswith("worse.jsonl: line 2 is not JSON (")
    assert "bad.parquet: " in refused("bad.parquet")
    assert refused("a.tar.gz").startswith("a.tar.gz: a compressed tar file cannot be read from its middle")
    assert refused("lockedbucket://theirs/x") == "lockedbucket://theirs/x: no permission to read it (Forbidden)"
    assert refused("nosuch://bucket/x").startswith("nosuch://bucket/x: cannot be read (Protocol not known")
    assert refused("") == "'': is not a name of a file or folder"
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"")))
    assert refused("-") == "-: lists no path"


def test_passwords_stay_out_of_tables_and_messages() -> None:
    clip = Clip("s3://me:secret@bucket/a.mp4?token=abc")
    assert clip.shown_name == "s3://me:***@bucket/a.mp4?token=***"
    assert clip.key != Clip("s3://me:secret@bucket/a.mp4?token=abd").key  # the whole name decides
