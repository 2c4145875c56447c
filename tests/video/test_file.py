"""Finite videos: sampling, orientation, damage, refusals."""

import contextlib
import errno
import io
import itertools
import os
import re
import struct
import subprocess
import sys
import threading
from collections.abc import Callable
from fractions import Fraction
from pathlib import Path
from types import SimpleNamespace

import av
import clips
import numpy as np
import pytest
from av.stream import Disposition
from clips import area_average
from PIL import Image, ImageOps

from picknet.errors import BadSetting
from picknet.video.content import content_of
from picknet.video.file import VIDEO_SUFFIXES, UnreadableVideo, Video
from picknet.video.frame import Frame
from picknet.video.live import Live
from picknet.video.passes import Damage, Pass, video_stream

SAMPLE = Path(__file__).resolve().parents[2] / "samples" / "cockatoo.mp4"
MSVD = Path(__file__).resolve().parents[3] / "shared" / "msvd" / "videos"


def numbers(frames: list[Frame]) -> list[int]:
    return [clips.number_of(frame.pixels()) for frame in frames]


def decoded_plainly(path: Path) -> list[av.VideoFrame]:
    """The reference: one thread, first frame to last."""
    with av.open(f"file:{path}") as container:
        stream = container.streams.video[0]
        stream.thread_type = "NONE"
        return list(container.decode(stream))


# What people have ------------------------------------------------------------------------------------------------

WRITTEN_BY_FFMPEG = [
    ("h264.mp4", "libx264", "yuv420p"),
    ("h264.mov", "libx264", "yuv420p"),
    ("h264.mkv", "libx264", "yuv420p"),
    ("h264.avi", "libx264", "yuv420p"),
    ("h264.flv", "libx264", "yuv420p"),
    ("h264.m2ts", "libx264", "yuv420p"),
    ("h264.h264", "libx264", "yuv420p"),
    ("h264-10-bit.mp4", "libx264", "yuv420p10le"),
    ("h264-444.mp4", "libx264", "yuv444p"),
    ("h264-rgb.mkv", "libx264rgb", "rgb24"),
    ("hevc.mp4", "libx265", "yuv420p"),
    ("hevc-10-bit.mkv", "libx265", "yuv420p10le"),
    ("vp8.webm", "libvpx", "yuv420p"),
    ("vp9.webm", "libvpx-vp9", "yuv420p"),
    ("mpeg4.avi", "mpeg4", "yuv420p"),
    ("mpeg4.mp4", "mpeg4", "yuv420p"),
    ("mpeg2.mpg", "mpeg2video", "yuv420p"),
    ("wmv.wmv", "wmv2", "yuv420p"),
    ("mjpeg.avi", "mjpeg", "yuvj420p"),
    ("prores.mov", "prores_ks", "yuv422p10le"),
    ("ffv1-grey.mkv", "ffv1", "gray"),
    ("ffv1-grey-16-bit.mkv", "ffv1", "gray16le"),
    ("ffv1-bgr.mkv", "ffv1", "bgr0"),
    ("raw-bgr.avi", "rawvideo", "bgr24"),
    ("raw-packed-yuv.avi", "rawvideo", "yuyv422"),
    ("raw-black-and-white.avi", "rawvideo", "monow"),
    ("animation.mov", "qtrle", "rgb24"),
]

Writer = Callable[[Path], Path]
CLIPS: dict[str, Writer] = {
    name: lambda path, codec=codec, pixels=pixels: clips.write_clip(path, codec=codec, pixel_format=pixels)  # type: ignore[misc]
    for name, codec, pixels in WRITTEN_BY_FFMPEG
} | {
    "palette.gif": clips.write_gif,
    "av1.mp4": clips.write_av1,
    "av1.webm": clips.write_av1,
    "packed-b-frames.avi": clips.write_packed_avi,
    "to-a-pipe.mkv": lambda path: clips.write_clip(path, seekable=False),
    "with-sound.mp4": lambda path: clips.write_clip(path, with_audio=True),
}


@pytest.mark.parametrize("name", CLIPS)
def test_every_format_gives_the_frames_of_a_plain_decode(tmp_path: Path, name: str) -> None:
    path = CLIPS[name](tmp_path / name)
    plain = decoded_plainly(path)
    assert len(plain) == 60
    with Video(path) as video:
        frames = list(video.sample_evenly())
        assert (video.width, video.height, video.damage) == (clips.WIDTH, clips.HEIGHT, None)
    # 60 frames in 30 parts of two: the later one of each pair.
    assert numbers(frames) == list(range(1, 60, 2))
    for frame, number in zip(frames, range(1, 60, 2), strict=True):
        np.testing.assert_array_equal(frame.pixels(), plain[number].to_ndarray(format="rgb24"))
        assert clips.number_of(frame.glance()) == number
        assert frame.seconds == pytest.approx(number / 25, abs=0.001)
    assert [frame.index for frame in frames] == list(range(30))
    assert path.suffix in VIDEO_SUFFIXES


@pytest.mark.parametrize("name", CLIPS)
def test_a_glance_is_the_mean_luma_of_the_pixels(tmp_path: Path, name: str) -> None:
    path = CLIPS[name](tmp_path / name)
    with Video(path) as video:
        frame = next(video.sample_evenly())
    luma = frame.pixels().astype(np.float64) @ (0.299, 0.587, 0.114)
    difference = np.abs(frame.glance() - area_average(luma))
    # The conversion to RGB is off by one or two, and where chroma is coarser than luma, red and blue bleed into each
    # other; the exact value of a glance has its own test.
    assert difference.mean() < 2.0
    assert difference.max() < 20.0


def test_red_is_red_and_blue_is_blue(tmp_path: Path) -> None:
    for name in ("h264.mp4", "palette.gif", "av1.mp4", "ffv1-bgr.mkv", "h264-10-bit.mp4"):
        with Video(CLIPS[name](tmp_path / name)) as video:
            pixels = next(video.sample_evenly()).pixels()
        np.testing.assert_allclose(pixels[40:60, 5:40].mean(axis=(0, 1)), (200, 30, 30), atol=8, err_msg=name)
        np.testing.assert_allclose(pixels[40:60, 56:90].mean(axis=(0, 1)), (30, 30, 200), atol=8, err_msg=name)


def test_the_sample_video_is_undamaged() -> None:
    with Video(SAMPLE) as video:
        frames = list(video.sample_evenly())
        assert (video.width, video.height, video.seconds, video.damage) == (640, 360, 14.0, None)
    # 280 frames at 20 a second: the parts are 28/3 frames long, their middles at 14/3, 42/3, 70/3 …
    assert [round(frame.seconds * 20) for frame in frames[:4]] == [4, 14, 23, 32]
    assert len(frames) == 30


@pytest.mark.skipif(not MSVD.is_dir(), reason="the MSVD clips are not here")
def test_msvd_clips_give_the_frames_of_a_plain_decode() -> None:
    for path in sorted(MSVD.iterdir())[:3]:
        plain = decoded_plainly(path)
        with Video(path) as video:
            frames = list(video.sample_evenly())
        wanted = range(len(plain))
        if len(plain) > 30:
            wanted = [int((i + 0.5) * len(plain) / 30) for i in range(30)]  # type: ignore[assignment]
        assert video.damage is None
        for frame, number in zip(frames, wanted, strict=True):
            np.testing.assert_array_equal(frame.pixels(), plain[number].to_ndarray(format="rgb24"))


# Sampling --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("num_frames", "count", "expected"),
    [
        (1, 30, [0]),
        (2, 30, [0, 1]),
        (29, 30, list(range(29))),
        (30, 30, list(range(30))),
        (3, 10**12, [0, 1, 2]),
        (7, 3, [1, 3, 5]),  # 7/6 = 1.17, 3.5, 5.83
        (10, 4, [1, 3, 6, 8]),  # 1.25, 3.75, 6.25, 8.75
        (31, 1, [15]),
        # 31 frames for 30 places: 0.52, 1.55 … 14.98, then 16.02: only frame 15 is left out.
        (31, 30, [*range(15), *range(16, 31)]),
    ],
)
def test_even_samples_are_the_middles_of_equal_parts(
    tmp_path: Path, num_frames: int, count: int, expected: list[int]
) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=num_frames)
    with Video(path) as video:
        assert numbers(list(video.sample_evenly(count=count))) == expected


def test_samples_by_time_are_the_first_frames_at_or_after_each_tick(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=60)
    with Video(path) as video:
        assert numbers(list(video.sample_by_time())) == [0, 25, 50]
        # Ticks 0, 0.1, 0.2 … fall on frames 0, 2.5, 5 …, and a half is rounded up.
        assert numbers(list(video.sample_by_time(fps=10)))[:8] == [0, 3, 5, 8, 10, 13, 15, 18]
        frames = list(video.sample_by_time(fps=2))
    assert [(frame.index, frame.seconds) for frame in frames] == [
        (0, 0.0),
        (1, pytest.approx(0.52)),
        (2, pytest.approx(1.0)),
        (3, pytest.approx(1.52)),
        (4, pytest.approx(2.0)),
    ]


def test_a_frame_that_is_shown_for_long_is_sampled_once(tmp_path: Path) -> None:
    # Frame 2 comes at 0.9 s and stands for five seconds, until frame 3.
    times = [0, 500, 900, 5900, 6000, 7100]
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=6, milliseconds=times)
    with Video(path) as video:
        frames = list(video.sample_by_time(fps=1))
        assert numbers(list(video.sample_evenly())) == [0, 1, 2, 3, 4, 5]
    # Ticks 1 to 5 find frame 3 first, tick 6 frame 4, tick 7 frame 5.
    assert [(clips.number_of(frame.pixels()), round(frame.seconds, 3)) for frame in frames] == [
        (0, 0.0),
        (3, 5.9),
        (4, 6.0),
        (5, 7.1),
    ]


def test_timestamps_rounded_by_the_container_are_still_sampled_on_time(tmp_path: Path) -> None:
    # At 30 frames a second Matroska stores frame 10 at 333 ms, before the third of a second it stands for.
    path = clips.write_clip(tmp_path / "clip.mkv", fps=30, num_frames=60)
    with Video(path) as video:
        assert numbers(list(video.sample_by_time(fps=3))) == [0, 10, 20, 30, 40, 50]


def test_time_starts_with_the_first_frame(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=3, milliseconds=[7000, 7500, 8200])
    with Video(path) as video:
        assert [round(frame.seconds, 3) for frame in video.sample_evenly()] == [0.0, 0.5, 1.2]


def test_a_video_of_unknown_length_is_sampled_like_any_other(tmp_path: Path) -> None:
    for name in ("piped.mkv", "raw.h264"):
        path = clips.write_clip(tmp_path / name, seekable=name != "piped.mkv")
        with Video(path) as video:
            assert video.seconds is None
            assert numbers(list(video.sample_evenly(count=6))) == [5, 15, 25, 35, 45, 55]
            assert numbers(list(video.sample_by_time(fps=1))) == [0, 25, 50]


def test_packets_are_counted_without_decoding_unless_they_have_no_timestamps(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[str] = []
    count_frames = Video._count_frames
    monkeypatch.setattr(Video, "_count_frames", lambda self: counted.append(Path(self.name).name) or count_frames(self))
    for name in ("h264.mp4", "h264.mkv", "vp9.webm", "mjpeg.avi", "palette.gif", "h264.h264", "packed-b-frames.avi"):
        with Video(CLIPS[name](tmp_path / name)) as video:
            assert len(list(video.sample_evenly())) == 30
    assert counted == ["h264.h264"]


def test_a_packet_without_a_frame_does_not_shift_other_samples(tmp_path: Path) -> None:
    # Every frame a key frame, so that a ruined packet costs itself alone.
    whole = clips.write_clip(tmp_path / "whole.mp4", codec="libvpx-vp9", options={"g": "1"})
    path = clips.remux(whole, tmp_path / "ruined.mp4", ruined={5, 15, 16})
    with Video(path) as video:
        # Wanted are 5, 15, 25 … 55; the frames after the ruined ones stand in for the first two.
        assert numbers(list(video.sample_evenly(count=6))) == [6, 17, 25, 35, 45, 55]
        assert video.damage == "3 of 60 frames are lost or damaged, the first after 0.2 s"


def test_a_recording_that_begins_between_keyframes_begins_with_the_first(tmp_path: Path) -> None:
    options = {"g": "20", "keyint_min": "20", "sc_threshold": "0"}
    stream = clips.write_clip(tmp_path / "whole.ts", options=options).read_bytes()
    path = tmp_path / "cut.ts"
    path.write_bytes(stream[188 * (len(stream) // 188 * 45 // 100) :])
    shown = [clips.number_of(picture.to_ndarray(format="rgb24")) for picture in decoded_plainly(path)]
    assert 0 < len(shown) == 60 - shown[0] < 50
    with Video(path) as video:
        assert video.num_samples(1000) == len(shown)
        for sampled in (video.sample_evenly(count=5), video.sample_evenly(count=1000), video.sample_by_time(fps=5)):
            found = list(sampled)
            assert [clips.number_of(frame.pixels()) for frame in found] == [shown[frame.number or 0] for frame in found]
            assert [frame.seconds for frame in found] == [pytest.approx((frame.number or 0) / 25) for frame in found]
            assert len(found) >= 5 or len(shown) < 25


def test_frames_that_an_edit_list_hides_are_not_sampled(tmp_path: Path) -> None:
    # As a phone trims: the first ten frames stay in the file, for the others to refer to, but are not shown.
    whole = clips.write_clip(tmp_path / "whole.mp4")
    path = tmp_path / "trimmed.mp4"
    with av.open(str(whole)) as source, av.open(str(path), "w", options={"avoid_negative_ts": "disabled"}) as output:
        stream = output.add_stream_from_template(source.streams.video[0], opaque=True)
        ten_frames = int(10 / 25 / source.streams.video[0].time_base)
        for packet in source.demux(video=0):
            if packet.size:
                packet.pts, packet.dts = packet.pts - ten_frames, packet.dts - ten_frames
                packet.stream = stream
                output.mux(packet)
    with Video(path) as video:
        assert numbers(list(video.sample_evenly(count=5))) == [15, 25, 35, 45, 55]
        assert numbers(list(video.sample_by_time(fps=1))) == [10, 35]
        assert video.damage is None


@pytest.mark.parametrize("container", ["mp4", "mkv", "flv", "ts", "nut", "asf"])
def test_timestamps_of_decoding_are_not_taken_for_those_of_frames(tmp_path: Path, container: str) -> None:
    """Some programs write B-frames with the times of decoding only: frames come in another order."""
    options = {"bf": "3", "x264-params": "keyint=60:b-adapt=0:scenecut=0"}
    whole = clips.write_clip(tmp_path / "whole.mp4", options=options)
    path = tmp_path / f"clip.{container}"
    if container == "mp4":
        data = whole.read_bytes()
        assert data.count(b"ctts") == data.count(b"edts") == 1
        path.write_bytes(data.replace(b"ctts", b"free").replace(b"edts", b"free"))
    else:
        with av.open(str(whole)) as source, av.open(str(path), "w") as output:
            stream = output.add_stream_from_template(source.streams.video[0])
            for packet in source.demux(video=0):
                if packet.size:
                    packet.pts, packet.stream = packet.dts, stream
                    output.mux(packet)
    shown = [clips.number_of(picture.to_ndarray(format="rgb24")) for picture in decoded_plainly(path)]
    assert shown == list(range(60))
    with Video(path) as video:
        assert numbers(list(video.sample_evenly())) == list(range(1, 60, 2))
        assert numbers(list(video.sample_by_time(fps=5))) == list(range(0, 60, 5))
        assert video.damage is None


def differences(path: Path, video: Video, **sampling: object) -> list[float]:
    """How far sampled frames are from those of the same numbers in a plain decode."""
    plain = [picture.to_ndarray(format="rgb24").astype(int) for picture in decoded_plainly(path)]
    return [float(np.abs(frame.pixels() - plain[frame.number or 0]).max()) for frame in video.sample_evenly(**sampling)]


@pytest.mark.parametrize(
    ("codec", "container"),
    [("libx264", "mp4"), ("libx264", "mkv"), ("libx264", "flv"), ("libx265", "mp4"), ("libx265", "mkv")],
)
def test_frames_behind_a_join_are_decoded_with_the_parameters_of_their_own_recording(
    tmp_path: Path, codec: str, container: str
) -> None:
    raw = clips.write_joined(tmp_path / f"joined.{'h264' if codec == 'libx264' else 'hevc'}", codec=codec)
    path = tmp_path / f"joined.{container}"
    with av.open(str(raw)) as source, av.open(str(path), "w") as output:
        stream = output.add_stream_from_template(source.streams.video[0])
        number = itertools.count()
        for packet in source.demux(video=0):
            if packet.size:
                packet.time_base, packet.stream = Fraction(1, 25), stream
                packet.pts = packet.dts = next(number)
                packet.duration = 1
                output.mux(packet)
    with Video(path) as video:  # few, so that whole groups of frames lie between two of them
        assert differences(path, video, count=4, only={0, 3}) == [0, 0]
        assert video.damage is None


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
@pytest.mark.parametrize("num_frames", [20, 60])
def test_recordings_joined_in_a_transport_stream_are_whole(tmp_path: Path, codec: str, num_frames: int) -> None:
    """Where timestamps and the count of packets begin anew, nothing is lost, and the video is as long as both."""
    clips.write_clip(tmp_path / "one.ts", num_frames=num_frames, codec=codec)
    (tmp_path / "both.ts").write_bytes(2 * (tmp_path / "one.ts").read_bytes())
    both = [*range(num_frames), *range(num_frames)]
    with Video(tmp_path / "both.ts") as video:
        frames = list(video.sample_evenly(count=200))
        assert numbers(frames) == both
        assert (video.damage, video.seconds) == (None, pytest.approx(2 * num_frames / 25))
    with Video(tmp_path / "both.ts") as video:
        assert numbers(video.sample_by_time(fps=25)) == both
        assert (video.damage, video.seconds) == (None, pytest.approx(2 * num_frames / 25))
    assert [frame.seconds for frame in frames] == pytest.approx([number / 25 for number in range(2 * num_frames)])


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_a_frame_that_is_cut_where_recordings_are_joined_is_damaged(tmp_path: Path, codec: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (20, 240, 320, 3), dtype=np.uint8)
    with av.open(str(tmp_path / "one.ts"), "w") as output:
        stream = output.add_stream(codec, rate=25, options={"g": "10", "bf": "0"})
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for picture in noise:
            output.mux(stream.encode(av.VideoFrame.from_ndarray(picture, format="rgb24")))
        output.mux(stream.encode(None))
    one = (tmp_path / "one.ts").read_bytes()
    (tmp_path / "both.ts").write_bytes(one[: len(one) // 376 * 188] + one)  # within a frame of many packets
    with Video(tmp_path / "both.ts") as video:
        assert len(list(video.sample_evenly(count=200))) > 25
        assert re.fullmatch(r"1 of \d+ frames are lost or damaged, the first after 0\.\d s", video.damage or "")


@pytest.mark.parametrize("how", ["evenly", "by time"])
def test_a_hole_that_a_decoder_finds_is_told_and_takes_its_time(tmp_path: Path, how: str) -> None:
    """Of H.264, whose frames are numbered: pictures around the hole come in a wrong order."""
    clips.write_clip(tmp_path / "clip.mkv", num_frames=250)
    clusters = io.BytesIO()  # of a second each, wherever the keyframes are
    with av.open(str(tmp_path / "clip.mkv")) as given, av.open(
        clusters, "w", format="matroska", options={"cluster_time_limit": "1000"}
    ) as output:
        clips.copy_packets(given, output)
    before, *parts = clusters.getvalue().split(b"\x1f\x43\xb6\x75")
    with Video(b"\x1f\x43\xb6\x75".join([before, *parts[:3], *parts[5:]])) as video:
        frames = list(video.sample_evenly(count=200) if how == "evenly" else video.sample_by_time(fps=25))
        assert video.damage == "frames are missing, the first after 3.0 s"
        assert video.seconds == pytest.approx(10, abs=0.05)
    behind = [frame for frame in frames if frame.seconds > 7]
    assert 70 < len(behind) < 80
    assert [frame.seconds for frame in behind] == pytest.approx([one / 25 for one in numbers(behind)], abs=0.2)


@pytest.mark.parametrize("with_times", [True, False], ids=["by its packets", "by decoding"])
def test_a_length_that_is_stored_too_short_is_corrected(tmp_path: Path, with_times: bool) -> None:
    content = clips.write_clip(tmp_path / "clip.mkv", num_frames=50).read_bytes()
    place = content.index(b"\x44\x89\x88") + 3  # Matroska's duration, in milliseconds
    assert struct.unpack_from(">d", content, place) == (2000,)
    content = content[:place] + struct.pack(">d", 1000) + content[place + 8 :]
    with Video(content) as video:
        assert video.seconds == 1
        if with_times:
            list(video.sample_evenly(count=5))
        else:
            assert len(list(video._at_ticks(1000.0))) == 50
        assert video.seconds == pytest.approx(2, abs=0.01)


def test_a_header_in_the_middle_of_an_flv_is_not_skipped(tmp_path: Path) -> None:
    parts = []
    for number in (0, 12):
        options = {"bf": "0", "x264-params": f"keyint=12:scenecut=0:chroma-qp-offset={number}"}
        parts.append(clips.write_clip(tmp_path / f"{number}.flv", options=options))
    path = clips.joined_flv(*parts, path=tmp_path / "joined.flv")
    assert len(decoded_plainly(path)) == 120
    with Video(path) as video:
        assert differences(path, video, count=4, only={0, 3}) == [0, 0]


@pytest.mark.parametrize("name", ["palette.mov", "palette.avi"])
def test_a_palette_holds_for_every_sampling(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    colours = np.zeros((256, 4), np.uint8)
    colours[:, 0], colours[:, 2], colours[:, 3] = np.arange(256), 255 - np.arange(256), 255
    with av.open(str(path), "w") as output:
        stream = output.add_stream("rawvideo", rate=25)
        stream.width, stream.height, stream.pix_fmt = clips.WIDTH, clips.HEIGHT, "pal8"
        for number in range(20):
            grey = np.ascontiguousarray(clips.picture(number)[:, :, 0])
            output.mux(stream.encode(av.VideoFrame.from_ndarray((grey, colours), format="pal8")))
        output.mux(stream.encode(None))
    with Video(path) as video:
        for _ in range(2):
            assert differences(path, video, count=5) == [0, 0, 0, 0, 0]


@pytest.mark.parametrize("name", ["late.mkv", "late.nut", "late.webm", "late.mp4"])
def test_a_video_that_begins_late_is_not_taken_for_one_that_breaks_off(tmp_path: Path, name: str) -> None:
    codec = "libvpx" if name.endswith("webm") else "libx264"
    path = clips.write_clip(tmp_path / name, codec=codec, milliseconds=[7000 + 40 * number for number in range(60)])
    with Video(path) as video:
        assert numbers(list(video.sample_evenly())) == list(range(1, 60, 2))
        assert (video.damage, video.seconds) == (None, pytest.approx(2.4, abs=0.05))


@pytest.mark.parametrize(
    ("shares_cores", "cores", "few_pixels", "has_length", "threads"),
    [
        (True, 2, 60 * 96 * 64, True, 1),
        (True, 2, 60 * 96 * 64 - 1, True, 0),
        (True, 2, 60 * 96 * 64, False, 0),
        (True, 4, 60 * 96 * 64, True, 0),
        (False, 2, 60 * 96 * 64, True, 0),
    ],
)
def test_a_small_video_is_decoded_in_one_thread_where_two_cores_have_other_work(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    shares_cores: bool,
    cores: int,
    few_pixels: int,
    has_length: bool,
    threads: int,
) -> None:
    monkeypatch.setattr("picknet.video.passes.num_cores", lambda: cores)
    monkeypatch.setattr("picknet.video.passes._FEW_PIXELS", few_pixels)
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=60, seekable=has_length)
    with contextlib.closing(Pass(content_of(path, timeout=0), Damage(), shares_cores=shares_cores)) as opened:
        assert opened.stream.thread_count == threads  # 0: one on each core
        assert sum(1 for _ in opened.timed_pictures()) == 60


def test_two_passes_over_one_video_do_not_disturb_each_other(tmp_path: Path) -> None:
    with Video(clips.write_clip(tmp_path / "clip.mp4")) as video:
        pairs = list(zip(video.sample_evenly(count=6), video.sample_by_time(fps=2.5), strict=True))
    assert numbers([first for first, _ in pairs]) == [5, 15, 25, 35, 45, 55]
    assert numbers([second for _, second in pairs]) == [0, 10, 20, 30, 40, 50]


@pytest.mark.skipif(not Path("/proc/self/fd").is_dir(), reason="open files are counted under /proc")
def test_closing_the_video_ends_an_unfinished_pass(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4")
    open_before = len(os.listdir("/proc/self/fd"))
    with Video(path) as video:
        reading = video.sample_by_time()
        frame = next(reading)
        assert len(os.listdir("/proc/self/fd")) > open_before
    assert len(os.listdir("/proc/self/fd")) == open_before
    assert clips.number_of(frame.pixels()) == 0  # a frame outlives its video


@pytest.mark.parametrize("codec", ["libx264", "mpeg4", "mjpeg"])
def test_an_avi_tells_how_long_a_picture_stands_still(tmp_path: Path, codec: str) -> None:
    """By empty slots. H.264 in AVI seems to have frames in another order, so these times are not the packets'."""
    path, times = tmp_path / "camera.avi", [0, 1, 2, 27, 52, 53, 100]  # in frames, of 25 a second
    with av.open(str(path), "w") as output:
        stream = output.add_stream(codec, rate=25, options={"bf": "0"})
        stream.width, stream.height = clips.WIDTH, clips.HEIGHT
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        for number, time in enumerate(times):
            frame = av.VideoFrame.from_ndarray(clips.picture(number), format="rgb24")
            frame.pts, frame.time_base = time, Fraction(1, 25)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    with Video(path) as video:
        frames = list(video.sample_by_time(fps=25))
        assert numbers(frames) == list(range(len(times)))
        assert [frame.seconds for frame in frames] == pytest.approx([time / 25 for time in times])
        assert numbers(list(video.sample_evenly())) == list(range(len(times)))
        assert not video.damage


@pytest.mark.parametrize(("name", "seconds"), [("late.mkv", 4.0), ("late.mp4", 4.0), ("late.ts", 4.0)])
def test_a_video_that_begins_after_its_sound_is_timed_from_its_first_frame(
    tmp_path: Path, name: str, seconds: float
) -> None:
    with av.open(str(tmp_path / name), "w") as output:
        stream = output.add_stream("libx264", rate=25, options={"bf": "0"})
        stream.width, stream.height, stream.pix_fmt = clips.WIDTH, clips.HEIGHT, "yuv420p"
        sound = output.add_stream("aac", rate=16000)
        for number in range(100):
            frame = av.VideoFrame.from_ndarray(clips.picture(number), format="rgb24")
            frame.pts, frame.time_base = number + 75, Fraction(1, 25)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
        clips.write_silence(output, sound, seconds=7.0)
    with Video(tmp_path / name) as video:
        frames = list(video.sample_by_time())
        assert [frame.seconds for frame in frames] == pytest.approx([0, 1, 2, 3])
        assert video.begin == pytest.approx(3.0, abs=0.1)
        assert video.seconds == pytest.approx(seconds, abs=0.15)
        assert not video.damage


def test_raw_dv_has_a_frame_rate(tmp_path: Path) -> None:
    path = clips.write_clip(
        tmp_path / "tape.dv", codec="dvvideo", width=720, height=576, pixel_format="yuv420p", num_frames=5
    )
    with Video(path) as video:
        assert video.fps == 25
        assert [frame.seconds for frame in video.sample_evenly()] == pytest.approx([0, 0.04, 0.08, 0.12, 0.16])


def test_a_picture_in_tiles_is_refused_and_never_taken_for_its_first_tile() -> None:
    """As phones store large photos, which FFmpeg gives tile by tile."""
    tiles = [SimpleNamespace(disposition=Disposition.dependent, type="video") for _ in range(4)]
    container = SimpleNamespace(streams=SimpleNamespace(video=tiles))
    with pytest.raises(UnreadableVideo, match=r"photo\.heic: a picture in tiles .* save it as JPEG"):
        video_stream(container, "photo.heic")  # type: ignore[arg-type]


def test_an_animated_webp_is_called_what_it_is(tmp_path: Path) -> None:
    pictures = [Image.fromarray(clips.picture(number)) for number in range(3)]
    pictures[0].save(tmp_path / "fun.webp", save_all=True, append_images=pictures[1:], duration=100)
    with pytest.raises(UnreadableVideo, match=r"fun\.webp: an animated WebP, which is not read; save it as GIF or MP4"):
        Video(tmp_path / "fun.webp")


def test_too_little_memory_is_not_taken_for_damage(tmp_path: Path) -> None:
    class Starved:
        def __init__(self, stream: object) -> None:
            self._stream = stream

        def __getattr__(self, name: str) -> object:
            return getattr(self._stream, name)

        def decode(self, packet: object) -> list[object]:
            raise av.error.MemoryError(errno.ENOMEM, "Cannot allocate memory")

    content = content_of(clips.write_clip(tmp_path / "clip.mp4", num_frames=3), timeout=1.0)
    current = Pass(content, Damage())
    current.stream = Starved(current.stream)  # type: ignore[assignment]
    with pytest.raises(UnreadableVideo, match=r"clip\.mp4: its pictures need more memory than there is"):
        next(current.timed_pictures())
    current.close()


def test_no_name_is_no_file() -> None:
    with pytest.raises(UnreadableVideo, match=r"^'': no such file$"):
        Video("")


def test_impossible_numbers_of_samples_are_refused(tmp_path: Path) -> None:
    with Video(clips.write_clip(tmp_path / "clip.mp4", num_frames=3)) as video:
        for fps in (0, -1, float("nan")):
            for sample in (video.sample_by_time, video.sample_sparsely):
                with pytest.raises(BadSetting, match=f"fps is {fps}: more than 0"):
                    next(sample(fps=fps))
        with pytest.raises(BadSetting, match="count is 0: at least 1"):
            next(video.sample_evenly(count=0))


# Upright ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("angle", "turns_left"), [(90, 1), (180, 2), (270, 3), (-90, 3)])
def test_a_rotation_flag_is_applied(tmp_path: Path, angle: int, turns_left: int) -> None:
    path = clips.write_clip(tmp_path / "turned.mov", num_frames=3, rotation=angle)
    with Video(path) as video:
        frame = next(video.sample_evenly())
        size = (video.width, video.height)
    assert size == ((clips.WIDTH, clips.HEIGHT) if turns_left == 2 else (clips.HEIGHT, clips.WIDTH))
    assert frame.pixels().shape == (size[1], size[0], 3)
    lying = np.rot90(frame.pixels(), -turns_left)
    assert clips.number_of(lying) == 0
    np.testing.assert_allclose(lying[50, 20], (200, 30, 30), atol=8)
    np.testing.assert_allclose(np.rot90(frame.pixels(90), -turns_left)[70, 20], (200, 30, 30), atol=8)
    luma = frame.pixels().astype(np.float64) @ (0.299, 0.587, 0.114)
    assert np.abs(frame.glance() - area_average(luma)).mean() < 1.0


@pytest.mark.parametrize(
    ("aspect", "width"),
    [
        (Fraction(4, 3), 128),
        (Fraction(2, 3), 64),
        (Fraction(1), 96),
        (Fraction(9), 96),  # no camera has such pixels
    ],
)
def test_pixels_that_are_not_square_are_made_square(tmp_path: Path, aspect: Fraction, width: int) -> None:
    path = clips.write_clip(tmp_path / "wide.mp4", num_frames=3, pixel_aspect=aspect)
    with Video(path) as video:
        frames = list(video.sample_evenly())
        assert (video.width, video.height) == (width, clips.HEIGHT)
    assert frames[0].pixels().shape == (clips.HEIGHT, width, 3)
    assert numbers(frames) == [0, 1, 2]
    # A model sees a square, whatever the shape.
    assert frames[0].pixels(90).shape == (90, 90, 3)


@pytest.mark.parametrize("codec", ["libx264", "mpeg2video"])
def test_a_broadcast_may_change_the_shape_of_its_pixels(tmp_path: Path, codec: str) -> None:
    with Video(broadcast(tmp_path, codec=codec)) as video:
        assert (video.width, video.height) == (320, 240)
        widths = [frame.pixels().shape[1] for frame in video.sample_evenly(count=30)]
        assert widths == [frame.thumbnail(1000).shape[1] for frame in video.sample_by_time(fps=25 / 3)]
    assert widths == [320] * 15 + [427] * 15


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_broadcast_in_a_pipe_may_change_the_shape_of_its_pixels(tmp_path: Path) -> None:
    os.mkfifo(pipe := tmp_path / "pipe")
    content = broadcast(tmp_path, codec="mpeg2video").read_bytes()
    threading.Thread(target=pipe.write_bytes, args=(content,), daemon=True).start()
    widths = [frame.pixels().shape[1] for frame in Live(pipe, fps=25 / 3)]
    assert widths == [320] * 15 + [427] * 15


def broadcast(folder: Path, *, codec: str) -> Path:
    """Pictures of 4:3, then of 16:9, with as many pixels: as where a film follows the news."""
    parts = b""
    for aspect in (Fraction(1), Fraction(4, 3)):
        path = clips.write_clip(
            folder / "part.ts", num_frames=45, codec=codec, width=320, height=240, pixel_aspect=aspect,
            options={"bf": "0", "g": "15"},
        )  # fmt: skip
        parts += path.read_bytes()
    (folder / "both.ts").write_bytes(parts)
    return folder / "both.ts"


def test_pixels_are_made_square_before_a_video_is_rotated(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "both.mov", num_frames=1, pixel_aspect=Fraction(4, 3), rotation=90)
    with Video(path) as video:
        frame = next(video.sample_by_time())
        assert (video.width, video.height) == (clips.HEIGHT, 128)
    assert frame.pixels().shape == (128, clips.HEIGHT, 3)
    assert clips.number_of(np.rot90(frame.pixels(), -1)) == 0


def test_a_frame_knows_its_number_among_all_frames(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=100)
    with Video(path) as video:
        for frames in (list(video.sample_evenly(count=7)), list(video.sample_by_time(fps=3))):
            assert [frame.number for frame in frames] == numbers(frames)
            assert [frame.index for frame in frames] == list(range(len(frames)))


def test_a_phone_held_upright_is_rotated_right(tmp_path: Path) -> None:
    # Such a phone stores pictures on their side, and the matrix x' = −y, y' = x: what lay right comes to lie below.
    path = clips.write_clip(tmp_path / "phone.mp4", num_frames=1)
    one = 0x10000
    upright = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 0x40000000)
    turned = struct.pack(">9i", 0, one, 0, -one, 0, 0, 0, 0, 0x40000000)
    head, _, rest = path.read_bytes().partition(b"tkhd")
    path.write_bytes(head + b"tkhd" + rest.replace(upright, turned, 1))
    with Video(path) as video:
        pixels = next(video.sample_evenly()).pixels()
    stored = clips.picture(0)
    assert pixels.shape == (clips.WIDTH, clips.HEIGHT, 3)
    # The stored bottom right, blue, is at the upright picture's bottom left, the stored bottom left, red, above it.
    np.testing.assert_allclose(pixels[-10, 10], stored[-10, -10], atol=8)
    np.testing.assert_allclose(pixels[10, 10], stored[-10, 10], atol=8)


@pytest.mark.parametrize(
    ("matrix", "upright"),
    [
        ((-1, 0, 0, 1), lambda stored: stored[:, ::-1]),
        ((1, 0, 0, -1), lambda stored: stored[::-1]),
        ((0, 1, 1, 0), lambda stored: stored.transpose(1, 0, 2)),
        ((0, -1, -1, 0), lambda stored: stored[::-1, ::-1].transpose(1, 0, 2)),
    ],
)
def test_a_mirrored_video_is_shown_as_players_show_it(
    tmp_path: Path, matrix: tuple[int, ...], upright: Callable[[np.ndarray], np.ndarray]
) -> None:
    path = clips.write_clip(tmp_path / "mirrored.mp4", num_frames=1)
    one = 0x10000
    as_stored = struct.pack(">9i", one, 0, 0, 0, one, 0, 0, 0, 0x40000000)
    a, b, c, d = (one * value for value in matrix)
    head, _, rest = path.read_bytes().partition(b"tkhd")
    stored = struct.pack(">9i", a, b, 0, c, d, 0, 0, 0, 0x40000000)
    path.write_bytes(head + b"tkhd" + rest.replace(as_stored, stored, 1))
    with Video(path) as video:
        frame = next(video.sample_evenly())
        assert (video.height, video.width) == frame.pixels().shape[:2]
    expected = upright(clips.picture(0)).astype(np.float64)
    assert np.abs(frame.pixels() - expected).mean() < 4
    assert np.abs(frame.glance() - area_average(expected @ (0.299, 0.587, 0.114))).mean() < 2
    assert np.abs(frame.glance_as("colour")[0] - area_average(expected @ (0.299, 0.587, 0.114))).mean() < 2


@pytest.mark.parametrize("orientation", range(1, 9))
def test_a_photo_is_shown_upright_whatever_its_orientation(tmp_path: Path, orientation: int) -> None:
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / "photo.jpg"
    Image.fromarray(clips.picture(0)).save(path, exif=exif, quality=95)
    with Video(path) as video:
        pixels = next(video.sample_evenly()).pixels()
    with Image.open(path) as photo:
        expected = np.asarray(ImageOps.exif_transpose(photo), np.float64)
    assert pixels.shape == expected.shape
    assert np.abs(pixels - expected).mean() < 4


# Damage ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv", "clip.webm"])
@pytest.mark.parametrize("how", ["cut", "zeros"])
def test_a_video_with_a_damaged_end_yields_what_decodes_and_reports_the_rest(
    tmp_path: Path, name: str, how: str
) -> None:
    codec = "libvpx-vp9" if name.endswith("webm") else "libx264"
    path = clips.write_clip(tmp_path / name, codec=codec, num_frames=150, index_first=name.endswith("mp4"))
    data = path.read_bytes()
    half = len(data) * 6 // 10
    path.write_bytes(data[:half] + bytes(0 if how == "cut" else len(data) - half))
    with Video(path) as video:
        sampled = list(video.sample_evenly())
        by_time = numbers(list(video.sample_by_time(fps=25)))
    assert 40 < len(by_time) < 120
    assert by_time[:40] == list(range(40))
    steps = np.diff([frame.seconds for frame in sampled[:-1]])
    assert steps.max() - steps.min() < 0.041  # evenly spaced, but for the last frames before the damage
    assert len(sampled) >= 10
    assert video.damage is not None
    assert "\n" not in video.damage
    if how == "cut" or not name.endswith("mp4"):
        assert video.damage.startswith("the file breaks off after ")
        assert "of 6.0 s" in video.damage
    else:
        assert "of 150 frames are lost or damaged, the first after " in video.damage


def test_a_packet_that_is_cut_is_damage_though_no_sample_needs_it(tmp_path: Path) -> None:
    whole = clips.fragment(clips.write_clip(tmp_path / "whole.mp4", num_frames=150), tmp_path / "fragments.mp4")
    path = tmp_path / "cut.mp4"
    path.write_bytes(whole.read_bytes()[: whole.stat().st_size * 2 // 3])
    with Video(path) as video:
        assert list(video.sample_evenly(count=2))
        assert "some of its data cannot be decoded, the first after " in (video.damage or "")


def test_a_truncated_avi_is_compared_with_the_length_in_its_header(tmp_path: Path) -> None:
    # Every frame of one size, so that the share of the bytes that is left is the share of the frames.
    path = clips.write_clip(tmp_path / "clip.avi", codec="rawvideo", pixel_format="bgr24", num_frames=100)
    os.truncate(path, path.stat().st_size // 2)
    with Video(path) as video:
        list(video.sample_evenly())
        assert video.damage is not None
        assert re.match(r"the file breaks off after (1\.9|2\.0) of 4\.0 s", video.damage)


def test_a_truncated_gif_is_damaged(tmp_path: Path) -> None:
    whole = clips.write_gif(tmp_path / "whole.gif")
    cut, padded = tmp_path / "cut.gif", tmp_path / "padded.gif"
    cut.write_bytes(whole.read_bytes()[: whole.stat().st_size // 2])
    padded.write_bytes(whole.read_bytes() + bytes(100))
    damages = []
    for path in (whole, cut, padded):
        with Video(path) as video:
            list(video.sample_evenly())
            damages.append(video.damage)
    assert damages[1]
    assert re.fullmatch(r"the file breaks off after 1\.\d s", damages[1])  # about half of 60 frames, 25 a second
    assert (damages[0], damages[2]) == (None, None)


def test_a_long_sound_track_is_not_damage(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=25, with_audio=True, milliseconds=range(0, 250, 10))
    with Video(path) as video:
        assert len(list(video.sample_evenly())) == 25
        assert video.damage is None


def test_damage_is_reported_once_it_has_been_read(tmp_path: Path) -> None:
    whole = clips.write_clip(tmp_path / "whole.mp4", codec="libvpx-vp9", options={"g": "1"})
    path = clips.remux(whole, tmp_path / "ruined.mp4", ruined={30})
    with Video(path) as video:
        reading = video.sample_by_time(fps=25)
        for _ in range(10):
            next(reading)
        assert video.damage is None
        for _ in range(45):
            next(reading)
        assert video.damage == "some of its data cannot be decoded, the first after 1.2 s"


# Refusals --------------------------------------------------------------------------------------------------------


def write_no_frames(path: Path) -> Path:
    with av.open(str(path), "w") as output:
        stream = output.add_stream("mpeg4", rate=25)
        stream.width, stream.height, stream.pix_fmt = 96, 64, "yuv420p"
        output.start_encoding()
    return path


def write_half(path: Path) -> Path:
    data = clips.write_clip(path).read_bytes()
    path.write_bytes(data[: len(data) // 2])
    return path


def write_most(path: Path) -> Path:
    """An MP4 whose index, at its end, is cut."""
    data = clips.write_clip(path).read_bytes()
    path.write_bytes(data[: (data.index(b"moov") + len(data)) // 2])
    return path


def write_unknown_codec(path: Path) -> Path:
    path.write_bytes(clips.write_clip(path).read_bytes().replace(b"avc1", b"zzzz"))
    return path


def write_rubbish_frames(path: Path) -> Path:
    whole = clips.write_clip(path.with_name("whole.mp4"), codec="mpeg4", num_frames=5)
    return clips.remux(whole, path, ruined=range(5))


def written(data: bytes) -> Writer:
    def write(path: Path) -> Path:
        path.write_bytes(data)
        return path

    return write


def make_folder(path: Path) -> Path:
    path.mkdir()
    return path


REFUSED: list[tuple[str, Writer, str]] = [
    ("missing.mp4", lambda path: path, "no such file"),
    ("folder.mp4", make_folder, "is a folder, not a video"),
    ("empty.mp4", written(b""), "the file is empty"),
    ("text.mp4", written(b"Not a video at all.\n" * 50), "not a known video format"),
    ("zeros.mp4", written(bytes(50_000)), "not a known video format"),
    (
        "subtitles.mp4",
        written(b"1\n00:00:00,000 --> 00:00:02,000\nHi\n"),
        "not a video container that is read: MP4, MOV, MKV, WebM, AVI, GIF, MPEG, FLV, WMV and the like",
    ),
    ("sound.m4a", clips.write_audio, "no video stream found (streams: audio)"),
    (
        "song.m4a",
        lambda path: clips.write_audio(path, cover=True),
        "no video stream found (streams: audio, cover picture)",
    ),
    ("half.mp4", write_half, "an unfinished or damaged MP4 (its index, 'moov', is missing or cut)"),
    ("most.mp4", write_most, "an unfinished or damaged MP4 (its index, 'moov', is missing or cut)"),
    ("nothing.avi", write_no_frames, "its video stream is empty"),
    ("nothing.mkv", write_no_frames, "the file ends before its first frame"),
    ("codec.mp4", write_unknown_codec, "no decoder for its video codec"),
    (
        "rubbish.mp4",
        write_rubbish_frames,
        "none of its 5 frames can be decoded: damaged, or of more than 67,108,864 pixels, the limit that --max-pixels "
        "sets",
    ),
    ("name\0.mp4", lambda path: path, "a file name cannot contain a NUL byte"),
]


@pytest.mark.parametrize(("name", "write", "reason"), REFUSED, ids=[name for name, _, _ in REFUSED])
def test_what_is_not_a_video_is_refused_in_one_line(tmp_path: Path, name: str, write: Writer, reason: str) -> None:
    path = write(tmp_path / name)
    with pytest.raises(UnreadableVideo) as caught:
        Video(path)
    assert str(caught.value) == f"{path}: {reason}"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="named pipes are a thing of Unix")
def test_a_named_pipe_is_refused_without_waiting_for_it(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.mp4")
    with pytest.raises(UnreadableVideo, match="is not a regular file"):
        Video(tmp_path / "pipe.mp4")


@pytest.mark.parametrize(
    "name", ["-dash.mp4", "-", "with space.mp4", "çırpı – 動画.mp4", "a:b.mp4", "http:a.mp4", "100%03d.mp4"]
)
def test_any_file_name_is_accepted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    clip = clips.write_clip(tmp_path / "clip.mp4", num_frames=3)
    monkeypatch.chdir(tmp_path)
    clip.rename(name)
    for path in (name, Path(name), tmp_path / name):
        with Video(path) as video:
            assert numbers(list(video.sample_evenly())) == [0, 1, 2]
            assert video.name == str(path)


def test_nothing_is_printed_to_stderr(tmp_path: Path) -> None:
    damaged = clips.write_clip(tmp_path / "damaged.mp4", index_first=True)
    damaged.write_bytes(damaged.read_bytes()[:-800] + bytes(range(200)) * 3)
    write_half(tmp_path / "half.mp4")
    clips.write_packed_avi(tmp_path / "packed.avi")
    (tmp_path / "text.mp4").write_text("no video")
    program = """
import sys
from picknet.video.file import UnreadableVideo, Video
for path in sys.argv[1:]:
    try:
        with Video(path) as video:
            frames = list(video.sample_evenly())
            print(len(frames) > 0, video.damage is None)
    except UnreadableVideo:
        print("refused")
"""
    paths = [str(tmp_path / name) for name in ("damaged.mp4", "half.mp4", "packed.avi", "text.mp4")]
    finished = subprocess.run([sys.executable, "-c", program, *paths], capture_output=True, text=True, timeout=60)
    assert (finished.stdout.splitlines(), finished.stderr) == (["True False", "refused", "True True", "refused"], "")


def test_a_file_that_ends_before_the_first_sample_still_gives_a_frame(tmp_path):
    whole = clips.write_clip(tmp_path / "whole.mkv", num_frames=250, options={"g": "10", "bf": "0"})
    with Video(clips.remux(whole, tmp_path / "ruined.mkv", ruined=range(3, 250))) as video:
        frames = list(video.sample_evenly(count=5))  # the first of five would be frame 25
        assert [clips.number_of(frame.pixels()) <= 3 for frame in frames] == [True]
        assert video.damage
