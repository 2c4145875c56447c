"""Skipping packets while decoding changes no frame."""

from collections.abc import Iterator
from fractions import Fraction
from pathlib import Path

import av
import clips
import numpy as np
import pytest
from numpy.typing import NDArray

from picknet.video.fields import shown_field
from picknet.video.file import Video
from picknet.video.packets import MIN_SKIP, Timetable
from picknet.video.passes import Pass

NUM_FRAMES = 150
GOP = 40


def timetable(*packets: tuple[int, bool]) -> Timetable:
    """packets: in the order stored, when each is shown and whether it is a keyframe."""
    table = Timetable()
    for number, (shown, is_key) in enumerate(packets):
        table.add(shown=shown, decoded=number, is_key=is_key, is_hidden=False)
    return table


def test_a_frame_needs_the_packets_since_its_keyframe() -> None:
    table = timetable(*((number, number % 20 == 0) for number in range(100)))
    assert table.needed([5, 59, 90]) == [range(6), range(40, 60), range(80, 91)]


def test_frames_of_one_group_are_decoded_together() -> None:
    table = timetable(*((number, number % 20 == 0) for number in range(100)))
    assert table.needed([5, 15, 45, 58]) == [range(16), range(40, 59)]


def test_few_packets_are_not_skipped() -> None:
    table = timetable(*((number, number % 20 == 0) for number in range(100)))
    assert table.needed([20 - MIN_SKIP, 20]) == [range(21)]
    assert table.needed([19 - MIN_SKIP, 20]) == [range(20 - MIN_SKIP), range(20, 21)]


def test_a_frame_shown_before_the_keyframe_it_is_stored_after_needs_the_keyframe_before() -> None:
    # An open group: the keyframe 30 is stored before the frames 28 and 29, which refer to both sides of it.
    group = ((number, number == 0) for number in range(28))
    table = timetable(*group, (30, True), (28, False), (29, False), (31, False))
    assert table.needed([29]) == [range(31)]
    assert table.needed([31]) == [range(28, 32)]


def test_a_keyframe_that_is_stored_after_a_frame_is_not_the_one_that_frame_needs() -> None:
    # A file says that the packet of frame 10 is a keyframe, though frame 11 is stored before it.
    group = [(number, number == 0) for number in range(10)]
    table = timetable(*group, (11, False), (10, True), (12, False))
    assert table.needed([11]) == [range(11)]
    assert table.needed([10, 11, 12]) == [range(13)]
    assert table.needed([12]) == [range(11, 13)]


@pytest.mark.parametrize("packets", [[(0, 0), (None, 1)], [(0, 1), (1, 0)], [(1, 0), (2, -1)], [(3, 0), (3, 1)]])
def test_inconsistent_timestamps_are_not_trusted(packets: list[tuple[int | None, int]]) -> None:
    table = Timetable()
    for shown, decoded in packets:
        table.add(shown=shown, decoded=decoded, is_key=True, is_hidden=False)
    assert table.times() is None


def test_packets_without_a_decoding_time_keep_their_order() -> None:
    table = Timetable()
    for shown, decoded in ((3, 2), (5, None), (4, 3)):
        table.add(shown=shown, decoded=decoded, is_key=False, is_hidden=False)
    assert list(table.times() or ()) == [3, 4, 5]


def test_hidden_packets_are_not_shown_but_may_be_needed() -> None:
    table = Timetable()
    for shown in range(6):
        table.add(shown=shown, decoded=shown, is_key=shown == 0, is_hidden=shown < 3)
    assert list(table.times() or ()) == [3, 4, 5]
    assert table.needed([4]) == [range(5)]


def scenery() -> Iterator[NDArray[np.uint8]]:
    """Pictures that move, with noise and a cut, so that a frame decoded from the wrong references would show."""
    chance = np.random.default_rng(0)
    ground = np.kron(chance.integers(0, 255, (60, 120, 3)), np.ones((4, 4, 1), np.int64))
    for number in range(NUM_FRAMES):
        x, y = 3 * number % 200 + number // 97 * 50, 2 * number % 150
        noise = chance.integers(-6, 7, (clips.HEIGHT, clips.WIDTH, 1))
        yield np.clip(ground[y : y + clips.HEIGHT, x : x + clips.WIDTH] + noise, 0, 255).astype(np.uint8)


def write(path: Path, codec: str, options: dict[str, str], *, uneven: bool = False) -> Path:
    """A video of the scenery. uneven: frames are shown for 5 to 200 ms each."""
    unit = Fraction(1, 1000) if uneven else Fraction(1, 25)
    times = np.random.default_rng(1).integers(5, 200, NUM_FRAMES).cumsum() if uneven else np.arange(NUM_FRAMES)
    fragmented = {"movflags": "frag_keyframe+empty_moov"} if path.stem == "fragmented" else {}
    with av.open(str(path), "w", options=fragmented) as output:
        stream = output.add_stream(codec, rate=25, options=options)
        pixel_format = {"prores_ks": "yuv422p10le", "mjpeg": "yuvj420p"}.get(codec, "yuv420p")
        stream.width, stream.height, stream.pix_fmt = clips.WIDTH, clips.HEIGHT, pixel_format
        stream.codec_context.time_base = unit
        for pixels, time in zip(scenery(), times.tolist(), strict=True):
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            frame.pts, frame.time_base = time, unit
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def x264(more: str = "") -> tuple[str, dict[str, str]]:
    return "libx264", {"preset": "fast", "x264-params": f"keyint={GOP}{more}"}


def x265(more: str = "") -> tuple[str, dict[str, str]]:
    return "libx265", {"preset": "fast", "x265-params": f"log-level=none:pools=1:keyint={GOP}{more}"}


KINDS: dict[str, tuple[str, dict[str, str]]] = {
    "h264.mp4": x264(),
    "one-group.mp4": x264("0"),
    "pyramid.mkv": x264(":bframes=8:b-pyramid=strict:b-adapt=0:ref=8"),
    "open-groups.mp4": x264(":open-gop=1:bframes=4:b-pyramid=normal:b-adapt=0"),
    "open-groups.mkv": x264(":open-gop=1:bframes=4:b-pyramid=normal:b-adapt=0"),
    "no-key-frames.mp4": x264(":intra-refresh=1"),
    "interlaced.mp4": x264(":tff=1"),
    "interlaced.m2ts": x264(":tff=1"),
    "fragmented.mp4": x264(),
    "hevc.mp4": x265(":bframes=4:open-gop=1"),
    "layers.mkv": x265(":bframes=7:b-adapt=0:temporal-layers=3"),
    "hidden-frames.webm": ("libvpx-vp9", {"cpu-used": "5", "auto-alt-ref": "1", "lag-in-frames": "16", "g": str(GOP)}),
    "hidden-packets.webm": ("libvpx", {"cpu-used": "5", "auto-alt-ref": "1", "lag-in-frames": "16", "g": str(GOP)}),
    "mpeg4.mp4": ("mpeg4", {"bf": "2", "g": "24"}),
    "mpeg4.avi": ("mpeg4", {"g": "24"}),
    "mpeg2.m2ts": ("mpeg2video", {"bf": "2", "g": "15"}),
    "mpeg1.mpg": ("mpeg1video", {"bf": "2", "g": "15"}),
    "flv1.flv": ("flv1", {"g": "30"}),
    "mjpeg.mkv": ("mjpeg", {}),
    "prores.mov": ("prores_ks", {}),
    "ffv1.mkv": ("ffv1", {"g": "30"}),
}
UNEVEN = [name for name in KINDS if name.endswith((".mp4", ".mkv", ".webm"))]


@pytest.mark.parametrize(
    ("name", "uneven"), [*((name, False) for name in KINDS), *((name, True) for name in UNEVEN)]
)
def test_the_frames_are_those_that_decoding_everything_gives(tmp_path: Path, name: str, uneven: bool) -> None:
    path = write(tmp_path / name, *KINDS[name], uneven=uneven)
    with av.open(str(path)) as container:
        container.streams.video[0].thread_type = "NONE"
        size = {"width": clips.WIDTH, "height": clips.HEIGHT}
        plain = [
            (shown_field(frame).to_ndarray(format="rgb24", **size), frame.time) for frame in container.decode(video=0)
        ]
    assert len(plain) == NUM_FRAMES
    for count in (3, 30):
        with Video(path) as video:
            frames = list(video.sample_evenly(count=count))
            assert video.damage is None
        assert len(frames) == count
        for place, frame in enumerate(frames):
            pixels, seconds = plain[(2 * place + 1) * NUM_FRAMES // (2 * count)]
            np.testing.assert_array_equal(frame.pixels(), pixels)
            if not name.endswith(".avi"):
                assert frame.seconds == pytest.approx(seconds - plain[0][1], abs=1e-9)


@pytest.mark.parametrize("name", KINDS)
def test_selected_samples_are_the_same_as_among_all_samples(tmp_path: Path, name: str) -> None:
    path = write(tmp_path / name, *KINDS[name])
    with Video(path) as video:
        every = list(video.sample_evenly(count=20))
    with Video(path) as video:
        assert video.num_samples(20) == 20
        some = list(video.sample_evenly(count=20, only={3, 4, 17}))
        assert video.damage is None
    assert [frame.index for frame in some] == [3, 4, 17]
    for frame in some:
        assert (frame.seconds, frame.number) == (every[frame.index].seconds, every[frame.index].number)
        np.testing.assert_array_equal(frame.pixels(), every[frame.index].pixels())


def test_nothing_is_decoded_after_the_last_selected_sample(tmp_path: Path) -> None:
    """The damaged second half of the file goes unnoticed."""
    path = write(tmp_path / "clip.mp4", *KINDS["h264.mp4"])
    damaged = clips.remux(path, tmp_path / "damaged.mp4", ruined=set(range(80, NUM_FRAMES)))
    with Video(damaged) as video:
        assert [frame.index for frame in video.sample_evenly(count=10, only={1, 2})] == [1, 2]
        assert video.damage is None
        list(video.sample_evenly(count=10))
        assert video.damage is not None


def test_if_no_selected_sample_decodes_the_last_frame_that_does_is_yielded(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mp4", *KINDS["h264.mp4"])
    damaged = clips.remux(path, tmp_path / "damaged.mp4", ruined=set(range(80, NUM_FRAMES)))
    with Video(damaged) as video:
        (frame,) = video.sample_evenly(count=10, only={9})
        assert 0 < frame.seconds < 4
        assert video.damage is not None


@pytest.mark.parametrize("name", ["h264.mp4", "open-groups.mkv", "mpeg2.m2ts", "no-key-frames.mp4", "mpeg4.avi"])
@pytest.mark.parametrize("fps", [0.7, 2.0, 50.0])
def test_the_frames_by_time_are_those_that_decoding_everything_gives(tmp_path: Path, name: str, fps: float) -> None:
    with Video(write(tmp_path / name, *KINDS[name], uneven=name.endswith("mkv"))) as video:
        plain, frames = list(video._at_ticks(fps)), list(video.sample_by_time(fps=fps))
    assert len(frames) == len(plain) > 3
    for place, (frame, other) in enumerate(zip(frames, plain, strict=True)):
        assert frame.index == other.index == place
        assert frame.number == other.number
        assert frame.seconds == pytest.approx(other.seconds, abs=1e-9)
        np.testing.assert_array_equal(frame.pixels(), other.pixels())


@pytest.mark.parametrize("name", ["h264.mp4", "mpeg4.mp4", "mpeg2.m2ts", "hevc.mp4", "mjpeg.mkv"])
def test_common_files_are_not_decoded_in_full(tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def everything(self: Pass, *_: object) -> Iterator[object]:
        raise AssertionError("all of it is decoded")

    path = write(tmp_path / name, *KINDS[name])
    with Video(path) as video:
        monkeypatch.setattr(Pass, "timed_pictures", everything)
        assert len(list(video.sample_evenly(count=30))) == 30


def test_a_file_that_changed_since_the_first_pass_is_decoded_in_full(tmp_path: Path) -> None:
    path = write(tmp_path / "clip.mkv", *KINDS["h264.mp4"])
    with Video(path) as video:
        right = [frame.pixels() for frame in video.sample_evenly(count=5)]
    with Video(path) as video:
        # As if a packet had been shown at another time: the frames wanted stay the same, being other packets.
        assert video._times is not None
        video._packets._shown[70] += 1
        again = [frame.pixels() for frame in video.sample_evenly(count=5)]
    np.testing.assert_array_equal(again, right)


@pytest.mark.parametrize(
    ("shown", "in_order"),
    [
        ([0], True),
        ([512], False),  # it waits, perhaps for frames that are stored after it
        ([512, 1024, 1536], True),
        ([0, 1536, 2048, 2560], True),  # the first waits less than the others
        ([0, 2048, 512, 1024], False),
    ],
)
def test_packets_in_the_order_shown_are_known_by_their_times(shown: list[int], in_order: bool) -> None:
    table = Timetable()
    for number, time in enumerate(shown):
        table.add(shown=time, decoded=512 * number, is_key=number == 0, is_hidden=False)
    assert table.is_in_order == in_order
