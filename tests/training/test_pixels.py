"""The frames of a split as bytes in one file, decoded by several processes."""

import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import clips
import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from picknet.config import GlanceKind
from picknet.data import BadData
from picknet.data.split import Clip, Missing, Split
from picknet.files import UnwritableFile
from picknet.training import pixels
from picknet.training.pixels import PixelFile, store_pixels
from picknet.video.file import Video
from picknet.video.frame import Frame
from picknet.video.pictures import read_picture
from picknet.workers import LostProcess

SIZE = 64
ABSENT = Missing("absent", "no video named absent")


def split_of(*paths: Path) -> Split:
    return Split("folder", "train", tuple(Clip(path.stem, path, ("a caption",)) for path in paths), (ABSENT,))


def paint(path: Path, number: int) -> Path:
    """A picture that says its number."""
    Image.fromarray(clips.picture(number)).save(path)
    return path


def frames_of(stored: PixelFile, name: str) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """The frames and the glances of one clip."""
    i = [clip.name for clip in stored.clips].index(name)
    rows = slice(stored.firsts[i], stored.firsts[i] + stored.counts[i])
    return stored.frames[rows], stored.glances[rows]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Split:
    """Videos and pictures side by side: long, short, turned, damaged, no video at all."""
    folder = tmp_path_factory.mktemp("mixed")
    (folder / "text.png").write_text("not a picture")
    (folder / "empty.mp4").touch()
    cut = paint(folder / "cut.png", 9)
    cut.write_bytes(cut.read_bytes()[:80])
    return split_of(
        clips.write_clip(folder / "long.mp4", num_frames=60),
        folder / "text.png",
        paint(folder / "seven.jpg", 7),
        clips.write_clip(folder / "short.mp4", num_frames=3),
        folder / "empty.mp4",
        clips.write_clip(folder / "turned.mov", num_frames=5, rotation=90),
        cut,
        folder / "gone.jpg",
        *(paint(folder / f"picture{number}.png", number) for number in range(100, 180)),
    )


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cache") / "not" / "there" / "yet"


@pytest.fixture(scope="module")
def stored(mixed: Split, cache: Path) -> PixelFile:
    return store_pixels(mixed, num_frames=6, size=SIZE, cache=cache, jobs=2)


def test_a_video_gives_frames_at_even_distances_and_a_picture_gives_itself(stored: PixelFile) -> None:
    # 60 frames in 6 parts of ten: the middle of each. A video of 3 gives its 3.
    for name, numbers in {"long": [5, 15, 25, 35, 45, 55], "short": [0, 1, 2], "seven": [7]}.items():
        frames, glances = frames_of(stored, name)
        assert [clips.number_of(frame) for frame in frames] == numbers
        assert [clips.number_of(glance) for glance in glances] == numbers
    for number in range(100, 180):
        assert clips.number_of(frames_of(stored, f"picture{number}")[0][0]) == number


def test_the_bytes_are_those_of_frame_and_picture(stored: PixelFile, mixed: Split) -> None:
    paths = {clip.name: clip.path for clip in mixed.clips}
    for name in ("long", "turned"):
        with Video(paths[name]) as video:
            seen = [(frame.pixels(SIZE), frame.glance()) for frame in video.sample_evenly(count=6)]
        frames, glances = frames_of(stored, name)
        np.testing.assert_array_equal(frames, [frame for frame, _ in seen])
        np.testing.assert_array_equal(glances, [glance for _, glance in seen])
    picture = read_picture(paths["seven"], SIZE)
    frames, glances = frames_of(stored, "seven")
    np.testing.assert_array_equal(frames, [picture])
    np.testing.assert_array_equal(glances, [Frame.from_pixels(picture, index=0, seconds=0.0).glance()])


def test_the_file_has_no_unused_rows_and_is_read_only(stored: PixelFile) -> None:
    num_frames = 6 + 1 + 3 + 5 + 80
    assert (stored.frames.shape, stored.frames.dtype) == ((num_frames, SIZE, SIZE, 3), "uint8")
    assert (stored.glances.shape, stored.glances.dtype) == ((num_frames, 56, 56), "uint8")
    assert (stored.firsts.dtype, stored.counts.dtype) == ("int64", "int64")
    assert stored.firsts.shape == stored.counts.shape == (len(stored.clips),)
    rows = [np.arange(count) + first for first, count in zip(stored.firsts, stored.counts, strict=True)]
    assert sorted(np.concatenate(rows)) == list(range(num_frames))
    assert isinstance(stored.frames, np.memmap)
    with pytest.raises(ValueError):
        stored.frames[0] = 0


def test_unreadable_clips_are_missing_with_the_reason(stored: PixelFile, mixed: Split) -> None:
    assert [clip.name for clip in stored.clips[:4]] == ["long", "seven", "short", "turned"]
    folder = mixed.clips[0].path.parent
    absent, text, empty, cut, gone = stored.missing
    assert absent == ABSENT
    assert text == Missing("text", f"{folder}/text.png: not a known picture format (JPEG, PNG, WEBP, AVIF, BMP, GIF)")
    assert empty == Missing("empty", f"{folder}/empty.mp4: the file is empty")
    assert cut.reason.startswith(f"{folder}/cut.png: cannot be read (")
    assert gone == Missing("gone", f"{folder}/gone.jpg: cannot be read (No such file or directory)")


def test_a_second_call_reads_the_file_and_decodes_nothing(
    stored: PixelFile, mixed: Split, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert [path.suffix for path in cache.iterdir()] == [".pixels"]
    monkeypatch.delattr(pixels, "_decode")
    calls: list[int] = []
    again = store_pixels(mixed, num_frames=6, size=SIZE, cache=cache, on_clip=lambda: calls.append(1))
    assert len(calls) == len(mixed.clips)
    assert (again.clips, again.missing) == (stored.clips, stored.missing)
    for name in ("frames", "glances", "firsts", "counts"):
        np.testing.assert_array_equal(getattr(again, name), getattr(stored, name))


def test_everything_that_determines_the_content_is_in_the_file_name(tmp_path: Path) -> None:
    one, two = (paint(tmp_path / f"{name}.png", 3) for name in ("one", "two"))
    os.utime(one, ns=(0, 0))
    split = split_of(one, two)

    def path(
        split: Split = split, num_frames: int = 6, size: int = SIZE, glance: GlanceKind = "grey"
    ) -> Path:
        return pixels._store_path(split, num_frames=num_frames, size=size, glance=glance, cache=tmp_path)

    before = path()
    assert path() == before
    others = {path(num_frames=7), path(size=65), path(split_of(two, one)), path(split_of(one)), path(glance="colour")}
    os.utime(one, ns=(0, 1))
    others.add(path())
    one.write_bytes(one.read_bytes() + b" ")
    os.utime(one, ns=(0, 0))
    others.add(path())
    (tmp_path / "elsewhere").mkdir()
    os.utime(two, ns=(0, 0))
    here = path(split_of(two))
    shutil.copy2(two, tmp_path / "elsewhere")
    others |= {here, path(split_of(tmp_path / "elsewhere" / "two.png"))}
    assert len({before, *others}) == 10


def test_an_incomplete_file_is_replaced(tmp_path: Path) -> None:
    split = split_of(paint(tmp_path / "nine.png", 9))
    for keep in (0, 1000, -1):
        store_pixels(split, num_frames=6, size=16, cache=tmp_path / "cache", jobs=1)
        (file,) = (tmp_path / "cache").iterdir()
        file.write_bytes(file.read_bytes()[:keep])
        again = store_pixels(split, num_frames=6, size=16, cache=tmp_path / "cache", jobs=1)
        assert clips.number_of(again.frames[0]) == 9


def test_unreadable_clips_leave_no_gap_between_the_others(tmp_path: Path) -> None:
    pictures = [paint(tmp_path / f"picture{number}.png", number) for number in range(20)]
    split = split_of(*(path for picture in pictures for path in (tmp_path / f"no-{picture.name}", picture)))
    stored = store_pixels(split, num_frames=6, size=64, cache=tmp_path, jobs=1)
    assert len(stored.frames) == 20
    for number in range(20):
        frames, glances = frames_of(stored, f"picture{number}")
        assert (clips.number_of(frames[0]), clips.number_of(glances[0])) == (number, number)


def test_a_split_without_a_readable_clip_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "text.png").write_text("not a picture")
    split = split_of(tmp_path / "text.png", tmp_path / "gone.mp4")
    with pytest.raises(BadData, match=r"no clip of the train split can be read \(first: .*text\.png: not a known pict"):
        store_pixels(split, num_frames=6, size=16, cache=tmp_path / "cache", jobs=1)


def test_a_clip_that_kills_its_workers_is_an_error_and_leaves_no_file(
    tmp_path: Path, mixed: Split, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pixels, "FRAMES_PER_WORKER", 1)
    others = set(multiprocessing.active_children())  # of a service that other tests share
    killed: list[int] = []

    def kill_workers() -> None:
        for child in () if killed else set(multiprocessing.active_children()) - others:
            killed.append(child.pid or 0)
            child.kill()

    # A worker that is killed once is replaced, and its clip is decoded again.
    split = split_of(*(clip.path for clip in mixed.clips[-8:]))
    store_pixels(split, num_frames=6, size=SIZE, cache=tmp_path / "cache", on_clip=kill_workers, jobs=2)
    assert killed
    shutil.rmtree(tmp_path / "cache")
    monkeypatch.setattr(pixels, "_decode_clip", _end_process)
    with pytest.raises(LostProcess, match=r"^.*picture172\.png: .*died"):
        store_pixels(split, num_frames=6, size=SIZE, cache=tmp_path / "cache", jobs=2)
    assert list((tmp_path / "cache").iterdir()) == []
    assert set(multiprocessing.active_children()) <= others


def _end_process(task: object, **_: object) -> None:
    os._exit(9)


@pytest.mark.skipif(sys.platform == "win32", reason="needs limits on files")
def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path, mixed: Split) -> None:
    # A process is asked to write no file longer than 100,000 bytes, and its children inherit that.
    code = f"""
import resource, signal, sys
from pathlib import Path
from picknet.data.split import Clip, Split
from picknet.training.pixels import store_pixels
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))
paths = [Path(name) for name in sys.argv[2:]]
split = Split("folder", "train", tuple(Clip(path.stem, path, ("a",)) for path in paths), ())
try:
    store_pixels(split, num_frames=6, size={SIZE}, cache=Path(sys.argv[1]), jobs=1)
except Exception as error:
    print(type(error).__name__, error)
"""
    files = [str(clip.path) for clip in mixed.clips[-80:]]
    done = subprocess.run([sys.executable, "-c", code, tmp_path, *files], capture_output=True, text=True, timeout=60)
    assert done.stdout.startswith(UnwritableFile.__name__)
    assert "cannot be written (File too large)" in done.stdout
    assert list(tmp_path.iterdir()) == []


INTERRUPTED = """
import signal, sys, time
from pathlib import Path
from picknet.data.split import Clip, Split
from picknet.training import pixels
from picknet.training.pixels import store_pixels

pixels.FRAMES_PER_WORKER = 1
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it

def on_clip():
    print("clip", flush=True)
    time.sleep(0.05)

if __name__ == "__main__":
    paths = [Path(name) for name in sys.argv[2:]]
    split = Split("folder", "train", tuple(Clip(path.stem, path, ("a",)) for path in paths), ())
    try:
        store_pixels(split, num_frames=6, size=64, cache=Path(sys.argv[1]), on_clip=on_clip, jobs=2)
    except KeyboardInterrupt:
        print("interrupted")
"""


@pytest.mark.skipif(sys.platform == "win32", reason="needs process groups")
def test_ctrl_c_ends_all_processes_quietly_and_leaves_no_file(tmp_path: Path, mixed: Split) -> None:
    script = tmp_path / "script.py"
    script.write_text(INTERRUPTED)
    files = [str(clip.path) for clip in mixed.clips[-80:]]
    running = subprocess.Popen(
        [sys.executable, script, tmp_path / "cache", *files],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    assert running.stdout
    assert running.stdout.readline() == "clip\n"
    os.killpg(running.pid, signal.SIGINT)
    out, err = running.communicate(timeout=30)
    assert (out.splitlines()[-1], err, running.returncode) == ("interrupted", "", 0)
    assert list((tmp_path / "cache").iterdir()) == []
