"""What the index of a container saves, and that nothing is believed of it that the packets do not confirm."""

import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import av
import clips
import numpy as np
import pytest

from picknet.video.content import Content
from picknet.video.file import Video
from picknet.video.frame import due_positions, middles, sampling_clock
from picknet.video.index import Index
from picknet.video.passes import Pass
from picknet.video.source import UnreadableVideo

ORIGINALS = Path(__file__).resolve().parents[3] / "shared" / "originals"
NUM_FRAMES = 240
GOP = 20


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Frames that show their number, with B-frames and a keyframe every GOP frames."""
    params = f"keyint={GOP}:min-keyint={GOP}:scenecut=0:bframes=2:b-adapt=0"
    path = tmp_path_factory.mktemp("index") / "clip.mp4"
    return clips.write_clip(path, num_frames=NUM_FRAMES, fps=10, options={"x264-params": params})


@pytest.fixture
def packets_read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Timestamps of all packets that are read."""
    found: list[int] = []

    def recorded(packets: Callable[[Pass], Iterator[Any]]) -> Callable[[Pass], Iterator[Any]]:
        def read(self: Pass) -> Iterator[Any]:
            for packet in packets(self):
                found.append(packet.pts or 0)
                yield packet

        return read

    monkeypatch.setattr(Pass, "packets", recorded(Pass.packets))
    monkeypatch.setattr(Pass, "_video_packets", recorded(Pass._video_packets))
    return found


def shown(path: Path, **sampling: object) -> list[tuple[int, int | None, float]]:
    """Of each frame: the number it shows, the number it has, its seconds."""
    with Video(path) as video:
        frames = video.sample_by_time(**sampling) if "fps" in sampling else video.sample_evenly(**sampling)  # type: ignore[arg-type]
        return [(clips.number_of(frame.pixels()), frame.number, round(frame.seconds, 6)) for frame in frames]


def test_packets_are_read_only_where_the_frames_need_them(clip: Path, packets_read: list[int]) -> None:
    with Video(clip) as video:
        assert video.num_samples(30) == 30
        opened = len(packets_read)
        assert opened < 20
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly(count=6, only={1, 4})] == [60, 180]
    assert len(packets_read) - opened < 4 * 5  # 60 and 180 are keyframes


def test_the_frames_are_all_those_asked_for(clip: Path) -> None:
    for count in (1, 7, 30, NUM_FRAMES):
        expected = [(2 * place + 1) * NUM_FRAMES // (2 * count) for place in range(count)]
        assert shown(clip, count=count) == [(number, number, number / 10) for number in expected]
    assert shown(clip, fps=1.0) == [(number, number, number / 10) for number in range(0, NUM_FRAMES, 10)]


@pytest.mark.skipif(not ORIGINALS.is_dir(), reason="the original files of MSVD and MSR-VTT are not here")
@pytest.mark.parametrize("kind", ["msvd/*.avi", "msrvtt/*.mp4"])
def test_files_as_people_have_them_give_the_frames_of_a_plain_decode(kind: str) -> None:
    path = sorted(ORIGINALS.glob(kind))[-1]
    with av.open(str(path)) as container:
        every = list(container.decode(video=0))
    with Video(path) as video:
        frames = list(video.sample_evenly(count=5))
        assert video.damage is None
    wanted = middles(len(every), 5)
    assert [frame.number for frame in frames] == wanted
    for frame, place in zip(frames, wanted, strict=True):
        np.testing.assert_array_equal(frame._picture.to_ndarray(), every[place].to_ndarray())


def box(data: bytes, name: bytes) -> int:
    """Where the content of a box begins, after its version and flags."""
    return data.index(name) + 8


def with_keyframes(numbers: Callable[[int], int]) -> Callable[[bytearray], None]:
    """A lie about which packets are keyframes. numbers: number of a keyframe from 1 -> that to be written."""

    def change(data: bytearray) -> None:
        start = box(data, b"stss")
        (count,) = struct.unpack_from(">I", data, start)
        for place in range(start + 4, start + 4 + 4 * count, 4):
            struct.pack_into(">I", data, place, numbers(struct.unpack_from(">I", data, place)[0]))

    return change


def with_value(name: bytes, offset: int, value: int) -> Callable[[bytearray], None]:
    """A number in a box, from the end of its flags on."""
    return lambda data: struct.pack_into(">I", data, box(data, name) + offset, value)


LIES: dict[str, Callable[[bytearray], None]] = {
    "keyframes one later": with_keyframes(lambda number: number + 1),
    "keyframes two earlier": with_keyframes(lambda number: max(number - 2, 1)),
    "no keyframe but the first": with_value(b"stss", 0, 1),
    "a size": with_value(b"stsz", 8 + 4 * 100, 70),
    "sizes that reach beyond the file": with_value(b"stsz", 8 + 4 * (NUM_FRAMES - 1), 10**9),
    "more frames than there are": with_value(b"stsz", 4, 4 * 10**8),
    "fewer frames than there are": with_value(b"stsz", 4, 100),
    "a position": with_value(b"stco", 4, 40),
    "a position beyond the file": with_value(b"stco", 4, 2**31 - 1),
    "a time when a frame is shown": with_value(b"ctts", 4 + 8 * 50 + 4, 5000),
    "the rhythm": with_value(b"stts", 4, NUM_FRAMES // 2),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies_gives_what_reading_every_packet_gives(
    clip: Path, tmp_path: Path, lie: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = bytearray(clip.read_bytes())
    LIES[lie](data)
    path = tmp_path / "lie.mp4"
    path.write_bytes(data)

    def found(**sampling: object) -> object:
        try:
            return shown(path, **sampling)
        except UnreadableVideo as error:
            return str(error)

    by_index = [found(count=9), found(fps=0.5)]
    monkeypatch.setattr(Pass, "index", lambda self, start: None)
    assert by_index == [found(count=9), found(fps=0.5)]


def test_a_packet_that_nobody_needs_may_lie(clip: Path, tmp_path: Path) -> None:
    data = bytearray(clip.read_bytes())
    with_value(b"ctts", 4 + 8 * 50 + 4, 10**9)(data)  # one of frames 40 to 59 is shown long after all others
    path = tmp_path / "lie.mp4"
    path.write_bytes(data)
    assert [number for number, _, _ in shown(path, count=6)] == [20, 60, 100, 140, 180, 220]


def test_frames_at_an_uneven_rate_are_told_by_their_packets(tmp_path: Path, packets_read: list[int]) -> None:
    milliseconds = np.random.default_rng(0).integers(20, 200, 120).cumsum().tolist()
    path = clips.write_clip(tmp_path / "uneven.mp4", num_frames=120, milliseconds=milliseconds)
    assert [number for number, _, _ in shown(path, count=5)] == [12, 36, 60, 84, 108]
    assert len(packets_read) > 120


def test_a_file_that_breaks_off_is_damaged_though_its_index_is_whole(tmp_path: Path) -> None:
    whole = clips.write_clip(tmp_path / "whole.mp4", index_first=True)
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 3 // 4])
    with Video(path) as video:
        assert len(list(video.sample_evenly(count=10, only={0, 1}))) == 2
        assert "the file breaks off after" in (video.damage or "")


def test_reading_from_a_closed_video_is_an_error_and_no_crash(clip: Path) -> None:
    with Video(clip) as video:
        index = video._first_pass and video._first_pass.index(video._start)
    assert isinstance(index, Index)
    with pytest.raises(IndexError):
        index[5]


@pytest.mark.parametrize("fps", [0.3, 1.0, 7.0, 30.0, 1000.0])
def test_the_positions_that_are_due_are_those_of_the_clock(fps: float) -> None:
    times = np.random.default_rng(1).choice([1, 40, 41, 3000], 500, p=[0.1, 0.5, 0.39, 0.01]).cumsum().tolist()
    is_due = sampling_clock(fps)
    expected = [position for position, time in enumerate(times) if is_due((time - times[0]) * 0.001)]
    assert due_positions(times, fps=fps, unit=0.001) == expected


@pytest.mark.parametrize("num_times", [1, 2])
def test_packets_are_read_again_only_where_they_would_take_much_memory(
    clip: Path, packets_read: list[int], monkeypatch: pytest.MonkeyPatch, num_times: int
) -> None:
    if num_times == 2:
        monkeypatch.setattr("picknet.video.passes._MOST_KEPT", clip.stat().st_size // 100)
    with Video(clip) as video:
        packets_read.clear()
        numbers = [clips.number_of(frame.pixels()) for frame in video.sample_evenly(count=30)]
    assert numbers == list(range(4, 240, 8))
    assert len(packets_read) / len(set(packets_read)) == pytest.approx(num_times, abs=0.02)


# AVI -------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def avi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """H.264 with B-frames, which AVI stores without timestamps."""
    path = tmp_path_factory.mktemp("index") / "clip.avi"
    return clips.write_clip(path, num_frames=90, options={"x264-params": "keyint=30:bframes=3:b-adapt=0"})


def test_avi_without_timestamps_is_decoded_once(avi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    passes: list[Pass] = []
    pictures = Pass.timed_pictures
    monkeypatch.setattr(Pass, "timed_pictures", lambda self, *given: passes.append(self) or pictures(self, *given))
    with Video(avi) as video:
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly(count=9)] == list(range(5, 90, 10))
        assert video.damage is None
    # The first pass, for the first frame, then the same one from the start.
    assert len(passes) == 2
    assert passes[0] is passes[1]


@pytest.fixture(scope="module")
def plain_avi(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """H.264 without B-frames in AVI."""
    path = tmp_path_factory.mktemp("index") / "plain.avi"
    return clips.write_clip(path, num_frames=90, options={"x264-params": "keyint=30:bframes=0"})


@pytest.mark.parametrize("only", [None, {0, 2, 8}])
def test_a_small_avi_in_the_order_decoded_is_read_once(
    plain_avi: Path, packets_read: list[int], monkeypatch: pytest.MonkeyPatch, only: set[int] | None
) -> None:
    passes: list[bool] = []
    opened = Content.open

    def recorded(self: Content, *, probes: bool = True) -> object:
        passes.append(probes)
        return opened(self, probes=probes)

    monkeypatch.setattr(Content, "open", recorded)
    expected = [number for index, number in enumerate(range(5, 90, 10)) if only is None or index in only]
    with Video(plain_avi) as video:
        assert video.num_samples(9) == 9
        samples = video.sample_evenly(count=9, only=only)
        assert [clips.number_of(frame.pixels()) for frame in samples] == expected
        assert len(packets_read) == 90
        assert passes == [False]
        # A second sampling is a pass of its own.
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly(count=9)] == list(range(5, 90, 10))
        assert passes == [False, True]
        assert video.damage is None


@pytest.mark.parametrize("threads", [1, 2])
def test_frames_of_avi_are_in_order_even_if_the_file_does_not_tell_it(tmp_path: Path, threads: int) -> None:
    options = {"profile": "main", "x264-params": "keyint=30:bframes=3:b-adapt=0"}
    path = clips.write_clip(tmp_path / "clip.avi", num_frames=40, options=options)
    path.write_bytes(clips.without_order(path.read_bytes()))
    with av.open(path, options={"fpsprobesize": "0"}) as container:
        numbers = [clips.number_of(picture.to_ndarray(format="rgb24")) for picture in container.decode(video=0)]
    assert numbers != list(range(40)), "a decoder that has not seen some frames knows the order"
    with Video(path, threads=threads) as video:
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly(count=40)] == list(range(40))


def test_a_large_avi_is_not_kept_in_memory(plain_avi: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("picknet.video.passes._MOST_KEPT", plain_avi.stat().st_size - 1)
    with Video(plain_avi) as video:
        assert video._all_of_first is None
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly(count=9)] == list(range(5, 90, 10))


def test_of_avi_without_timestamps_nothing_is_decoded_after_the_last_sample(avi: Path) -> None:
    with Video(avi) as video:
        current = video._first_pass
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly(count=9, only={0, 2})] == [5, 25]
    assert current is not None
    assert current.num_decoded < 25 + 32
