"""Videos decoded in a child process are the same videos, and a hostile one costs its own request only."""

import io
import os
import signal
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from clips import write_clip
from command import on_linux
from PIL import Image
from services import until

from picknet.captioner import load
from picknet.model.folder import DEFAULT_MODEL, SHIPPED
from picknet.serve.child import Pieces, _Child
from picknet.serve.decoding import FRAMES_AT_ONCE, Decoders, LostDecoder, TooSlow
from picknet.video.file import Video
from picknet.video.frame import Frame, NoSuchGlance
from picknet.video.pictures import UnreadablePicture
from picknet.video.source import UnreadableVideo

MIB = 1 << 20


@pytest.fixture(scope="module")
def decoders() -> Iterator[Decoders]:
    children = Decoders(1, memory=512 * MIB)
    yield children
    children.close()


def pid(decoders: Decoders) -> int:
    process = decoders._all[0]._process
    assert process is not None
    assert process.pid is not None
    return process.pid


@pytest.mark.parametrize("glance", ["grey", "colour"])
def test_a_remote_video_has_the_frames_of_the_file(decoders: Decoders, clip: Path, glance: str) -> None:
    with Video(clip, glance=glance) as near, decoders.video(
        clip, name="clip", seconds=30, glance=glance, threads=1
    ) as far:
        assert (far.name, far.seconds, far.begin, far.fps) == ("clip", near.seconds, near.begin, near.fps)
        assert (far.width, far.height, far.num_samples(7)) == (near.width, near.height, 7)
        for one, other in zip(near.sample_evenly(count=7), far.sample_evenly(count=7), strict=True):
            assert (one.index, one.seconds, one.number) == (other.index, other.seconds, other.number)
            np.testing.assert_array_equal(one.glance(), other.glance())
            np.testing.assert_array_equal(one.glance_as(glance), other.glance_as(glance))
            np.testing.assert_array_equal(one.pixels(), other.pixels())
            np.testing.assert_array_equal(one.pixels(33), other.pixels(33))
            np.testing.assert_array_equal(one.thumbnail(20), other.thumbnail(20))
            with pytest.raises(NoSuchGlance):
                other.glance_as("motion")
        times = [frame.seconds for frame in near.sample_by_time(fps=2, only={1, 3})]
        assert [frame.seconds for frame in far.sample_by_time(fps=2, only={1, 3})] == times
        times = [frame.seconds for frame in near.sample_sparsely(fps=2)]
        assert [frame.seconds for frame in far.sample_sparsely(fps=2)] == times


def test_a_frame_stays_in_the_child_only_as_long_as_it_is_used(decoders: Decoders, clip: Path) -> None:
    with decoders.video(clip, name="clip", seconds=30) as video:
        frames = video.sample_evenly(count=10)
        first = next(frames)
        for frame in frames:
            released = len(video._released)
            assert released <= FRAMES_AT_ONCE  # told with the next question
            del frame
        first.pixels(8)
    with pytest.raises(RuntimeError, match="after it was closed"):
        first.pixels(8)


def test_errors_name_the_video_and_not_its_path(decoders: Decoders, tmp_path: Path) -> None:
    bad = tmp_path / "x"
    bad.write_bytes(bytes(1000))
    with pytest.raises(UnreadableVideo, match=r"^holiday\.mp4: ") as raised, decoders.video(
        bad, name="holiday.mp4", seconds=30
    ):
        pass
    assert str(tmp_path) not in str(raised.value)
    with pytest.raises(UnreadablePicture, match="JPEG, PNG and WebP"):
        decoders.picture(b"GIF89a", seconds=30)


def test_an_error_after_some_frames_comes_after_these_frames() -> None:
    def samples() -> Generator[Any, None, None]:
        yield from (Frame.from_pixels(np.zeros((8, 8, 3), np.uint8), index=index, seconds=index) for index in range(6))
        raise UnreadableVideo("clip: it breaks off")

    child = _Child()
    child._video, child._samples = SimpleNamespace(damage=None), samples()  # type: ignore[assignment]
    answers = [child.answer("next", b"", released=[], count=4)[0] for _ in range(2)]
    assert [len(answer["frames"]) for answer in answers] == [4, 2]
    assert not answers[-1]["is_over"]
    with pytest.raises(UnreadableVideo, match="it breaks off"):
        child.answer("next", b"", released=[], count=4)


@on_linux
def test_a_child_that_hangs_is_ended_and_replaced(decoders: Decoders, clip: Path) -> None:
    start = time.monotonic()
    with pytest.raises(TooSlow, match=r"^slow: took longer than 1 s, which is the limit$"), decoders.video(
        clip, name="slow", seconds=1
    ) as video:
        os.kill(pid(decoders), signal.SIGSTOP)
        list(video.sample_evenly(count=3))
    assert time.monotonic() - start < 5
    with decoders.video(clip, name="next", seconds=30) as video:
        assert len(list(video.sample_evenly(count=3))) == 3


@on_linux
def test_a_child_that_dies_costs_its_own_request(decoders: Decoders, clip: Path) -> None:
    with pytest.raises(LostDecoder, match=r"^bad: its decoder failed or needed too much memory$"), decoders.video(
        clip, name="bad", seconds=30
    ) as video:
        os.kill(pid(decoders), signal.SIGSEGV)
        list(video.sample_evenly(count=3))
    with decoders.video(clip, name="next", seconds=30) as video:
        assert len(list(video.sample_evenly(count=3))) == 3


def test_a_file_that_stores_no_length_has_that_of_its_frames(decoders: Decoders, tmp_path: Path) -> None:
    path = write_clip(tmp_path / "film.mkv", num_frames=50, seekable=False)
    with Video(path) as near, decoders.video(path, name="film", seconds=30) as far:
        assert (near.seconds, far.seconds, near.length, far.length) == (None, None, 2.0, 2.0)


@on_linux
def test_a_child_that_dies_between_requests_costs_none(decoders: Decoders, clip: Path) -> None:
    for _ in range(2):
        with decoders.video(clip, name="clip", seconds=30) as video:
            assert len(list(video.sample_evenly(count=3))) == 3
        process = decoders._all[0]._process
        assert process is not None
        process.kill()
        process.join()


@on_linux
def test_a_video_that_needs_too_much_memory_is_refused(tmp_path: Path) -> None:
    # A frame takes 24 MiB in the decoder's format, and 48 in RGB.
    size = {"width": 4096, "height": 4096}
    bomb = write_clip(tmp_path / "bomb.mkv", num_frames=1, codec="mjpeg", pixel_format="yuvj420p", **size)
    children = Decoders(1, memory=48 * MIB)
    with pytest.raises((LostDecoder, UnreadableVideo)), children.video(bomb, name="bomb", seconds=60) as video:
        [frame.pixels() for frame in video.sample_evenly(count=1)]
    children.close()


def test_work_that_nobody_wants_ends_while_the_child_decodes(decoders: Decoders, clip: Path) -> None:
    class Unwanted(Exception):
        pass

    def check() -> None:
        if is_unwanted:
            raise Unwanted

    is_unwanted = False
    with pytest.raises(Unwanted), decoders.video(clip, name="clip", seconds=30, check=check) as video:
        frames = video.sample_evenly(count=10)
        next(frames)
        is_unwanted = True
        list(frames)
    is_unwanted = False
    with decoders.video(clip, name="next", seconds=30) as video:
        assert len(list(video.sample_evenly(count=3))) == 3


def test_a_video_in_pieces_has_the_frames_of_the_file(decoders: Decoders, tmp_path: Path) -> None:
    film = write_clip(tmp_path / "film.ts", num_frames=250)
    with decoders.live(name="film", seconds=30, fps=5) as live:
        live.send(film.read_bytes())
        live.end()
        frames = []
        while not live.is_over:
            frames.append(live.take(wait=1.0))
        found = [(frame.seconds, frame.pixels(33)) for frame in frames if frame]
    with Video(film) as video:
        for frame, (seconds, pixels) in zip(video.sample_by_time(fps=5), found, strict=True):
            assert frame.seconds == pytest.approx(seconds)
            np.testing.assert_array_equal(frame.pixels(33), pixels)


@on_linux
def test_a_video_in_pieces_costs_its_own_request_only(decoders: Decoders, clip: Path) -> None:
    with pytest.raises(LostDecoder, match=r"^bad: its decoder failed"), decoders.live(
        name="bad", seconds=30, fps=1
    ) as live:
        os.kill(pid(decoders), signal.SIGSEGV)
        live.send(b"x")
    with decoders.video(clip, name="next", seconds=30) as video:
        assert len(list(video.sample_evenly(count=3))) == 3


def test_a_video_in_pieces_without_a_frame_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picknet.serve.child.MAX_BYTES_BEFORE_A_FRAME", 1 << 20)
    pieces = Pieces("film", fps=1, glance="grey")
    pieces.put(bytes(1 << 20), is_last=False)
    with pytest.raises(UnreadableVideo, match=r"^film: its first 1 MiB have no frame that can be decoded$"):
        pieces.put(b"x", is_last=False)


@on_linux
def test_children_have_the_limit_on_pixels_and_do_not_outlive_the_pool(
    clip: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PICKNET_MAX_PIXELS", "6143")
    children = Decoders(1)
    limit = r"^clip: its pictures have 96 × 64 = 6,144 pixels: at most 6,143 "
    with pytest.raises(UnreadableVideo, match=limit), children.video(clip, name="clip", seconds=30):
        pass
    content = io.BytesIO()
    Image.new("RGB", (96, 64)).save(content, "png")
    with pytest.raises(UnreadablePicture, match=r"^picture: it has 96 × 64 = 6,144 pixels: at most 6,143 "):
        children.picture(content.getvalue(), seconds=30)
    number = pid(children)
    children.close()
    until(lambda: not Path(f"/proc/{number}").exists())


@pytest.mark.skipif(not (SHIPPED / DEFAULT_MODEL).is_dir(), reason="no model in the package yet")
def test_the_shipped_model_says_the_same_of_a_remote_video(decoders: Decoders, clip: Path) -> None:
    captioner = load()
    with decoders.video(clip, name=str(clip), seconds=60) as video:
        far = captioner.caption(video, candidates=2).to_dict()
    assert far == captioner.caption(clip, candidates=2).to_dict()
    with decoders.video(clip, name=str(clip), seconds=60) as video:
        segments = [segment.to_dict() for segment in captioner.timeline(video)]
    assert segments == [segment.to_dict() for segment in captioner.timeline(clip)]
    with decoders.video(clip, name=str(clip), seconds=60) as video:
        pixels = [image.tobytes() for image in captioner.pick(video, budget=2)]
    assert pixels == [image.tobytes() for image in captioner.pick(clip, budget=2)]
