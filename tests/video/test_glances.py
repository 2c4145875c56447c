"""Other glances than the paper's: colour, motion vectors, packets."""

import math
import subprocess
import sys
from fractions import Fraction
from pathlib import Path

import av
import clips
import numpy as np
import pytest
from numpy.typing import NDArray

from picknet.config import GlanceKind
from picknet.video.file import Video, pixels_and_glances
from picknet.video.frame import GLANCE_CHANNELS, GLANCE_SIZE, Frame, NoSuchGlance, PacketBytes, glance_shape
from picknet.video.live import Live
from picknet.video.motion import NoMotionVectors
from picknet.video.packets import Timetable

WIDTH, HEIGHT = 160, 112


def write_moving(
    path: Path, *, right: int, down: int, codec: str = "libx264", rotation: int = 0, b_frames: int = 0
) -> Path:
    """A camera that moves over a smooth texture: its picture moves by so many pixels with every frame."""
    coarse = np.random.default_rng(0).uniform(20, 235, (40, 50))
    texture = np.kron(coarse, np.ones((8, 8)))
    for axis in (0, 1):  # smooth, so that encoders find the way
        texture = sum(np.roll(texture, shift, axis) for shift in range(-4, 5)) / 9
    with av.open(str(path), "w") as output:
        options = {"bf": str(b_frames), "g": "100", "b": "2000000"}
        if codec == "libx264":
            options = {"x264-params": f"keyint=100:scenecut=0:bframes={b_frames}:b-adapt=0:b-pyramid=0:ref=1:weightp=0"}
        fps = _fps(codec)
        stream = output.add_stream(codec, rate=fps, options=options)
        stream.width, stream.height, stream.pix_fmt = WIDTH, HEIGHT, "yuv420p"
        if rotation:
            stream.set_display_rotation(rotation)
        for number in range(21):
            top, left = 100 - down * number, 100 - right * number
            grey = texture[top : top + HEIGHT, left : left + WIDTH].round().astype(np.uint8)
            frame = av.VideoFrame.from_ndarray(np.stack([grey] * 3, 2), format="rgb24")
            frame.pts, frame.time_base = number, Fraction(1, fps)
            output.mux(stream.encode(frame))
        output.mux(stream.encode(None))
    return path


def _fps(codec: str) -> int:
    """MPEG-1 and MPEG-2 know few rates."""
    return 25 if codec in ("mpeg1video", "mpeg2video") else 5


def glances(path: Path, kind: GlanceKind, *, fps: float = 1.0) -> NDArray[np.uint8]:
    with Video(path, glance=kind) as video:
        return np.stack([frame.glance_as(kind) for frame in video.sample_by_time(fps=fps)])


def middle(channel: NDArray[np.uint8]) -> float:
    """Away from the edges, over which new content comes in."""
    return float(np.median(channel[..., 14:-14, 14:-14]))


@pytest.mark.parametrize("kind", GLANCE_CHANNELS)
def test_a_glance_has_its_channels_and_is_small(tmp_path: Path, kind: GlanceKind) -> None:
    found = glances(clips.write_clip(tmp_path / "clip.mp4"), kind)
    assert found.shape == (3, GLANCE_CHANNELS[kind], GLANCE_SIZE, GLANCE_SIZE)
    assert found.dtype == np.uint8


# --- Colour ---


@pytest.mark.parametrize(
    "pixel_format", ["yuv420p", "yuvj420p", "yuv420p10le", "nv12", "gbrp", "rgb24", "gray", "rgba", "yuva420p"]
)
def test_the_first_channel_of_colour_is_the_grey_glance(pixel_format: str) -> None:
    picture = av.VideoFrame(120, 90, pixel_format)
    for plane in picture.planes:
        values = np.random.default_rng(0).integers(0, 256, plane.buffer_size).astype(np.uint8)
        values[1::2] &= 3 if pixel_format.endswith("10le") else 255  # ten bits of sixteen
        plane.update(values.tobytes())
    grey, colour = (Frame(picture, index=0, seconds=0.0) for _ in range(2))
    assert np.array_equal(grey.glance_as("grey"), grey.glance()[None])
    assert np.array_equal(colour.glance_as("colour")[0], grey.glance())
    assert np.array_equal(colour.glance(), grey.glance())


@pytest.mark.parametrize("kind", ["transparent", "PQ", "HLG"])
def test_colours_are_those_shown(kind: str) -> None:
    """Not those stored below what is transparent, nor those of a curve for HDR."""
    stored = np.zeros((112, 112, 4), np.uint8)
    stored[:56, :56], stored[:56, 56:] = (140, 60, 60, 255), (60, 60, 140, 255)
    stored[56:, :56], stored[56:, 56:] = (90, 20, 90, 128), (60, 140, 60, 0)
    if kind == "transparent":
        picture = av.VideoFrame.from_ndarray(stored, format="rgba")
    else:
        picture = av.VideoFrame.from_ndarray(np.ascontiguousarray(stored[..., :3]), format="rgb24")
        picture.color_trc, picture.color_primaries = 16 if kind == "PQ" else 18, 9
    frame = Frame(picture, index=0, seconds=0.0)
    shown = Frame.from_pixels(frame.pixels(), index=0, seconds=0.0)
    found = frame.glance_as("colour")
    assert np.abs(found.astype(int) - shown.glance_as("colour")).max() <= 2
    assert np.array_equal(found[0], frame.glance())


def test_colour_is_full_range_cb_and_cr() -> None:
    pixels = np.empty((112, 112, 3), np.uint8)
    pixels[:] = (200, 30, 30)
    found = Frame.from_pixels(pixels, index=0, seconds=0.0).glance_as("colour")
    # BT.601 by hand: Y = 0.299 · 200 + 0.701 · 30, Cb = 128 + (30 − Y) / 1.772, Cr = 128 + (200 − Y) / 1.402
    assert np.abs(found.mean((1, 2)) - [80.8, 99.3, 213.0]).max() < 2


# --- Motion ---


@pytest.mark.parametrize(
    ("codec", "name", "b_frames"),
    [("libx264", "a.mp4", 0), ("libx264", "a.mp4", 2), ("mpeg4", "a.mp4", 0), ("mpeg4", "a.mp4", 2),
     ("mpeg4", "a.avi", 0), ("mpeg2video", "a.mpg", 0), ("flv", "a.flv", 0), ("msmpeg4", "a.avi", 0),
     ("wmv1", "a.asf", 0), ("wmv2", "a.asf", 0), ("mpeg1video", "a.mpg", 0)],
)  # fmt: skip
def test_motion_is_the_way_of_the_picture_since_the_sample_before(
    tmp_path: Path, codec: str, name: str, b_frames: int
) -> None:
    path = write_moving(tmp_path / name, right=1, down=-1, codec=codec, b_frames=b_frames)
    found = glances(path, "motion", fps=_fps(codec) / 5)[1:]  # five frames a sample
    # 5 pixels right are 5 · 56 / 160 = 1.75 of the glance's: 128 + 16 log₂(1 + 16 · 1.75) = 205.7
    # 5 pixels up are 5 · 56 / 112 = 2.5 of the glance's: 128 − 16 log₂(1 + 16 · 2.5) = 42.3
    # B-frames belong to the P-frame after them, so that the ways of single samples are 3 or 6 frames long.
    slack = 5 if b_frames == 0 else 12
    assert middle(found[:, 0]) == pytest.approx(205.7, abs=slack)
    assert middle(found[:, 1]) == pytest.approx(42.3, abs=slack)
    assert middle(found[:, 2]) < 40


def test_a_still_picture_does_not_move(tmp_path: Path) -> None:
    found = glances(write_moving(tmp_path / "still.mp4", right=0, down=0), "motion")
    assert (found[:, :2] == 128).all()
    assert np.isin(found[0, 2], (127, 128)).all()  # one keyframe: 255 (1 − 2⁻¹)
    assert (found[1:, 2] == 0).all()


def test_motion_turns_with_the_picture(tmp_path: Path) -> None:
    upright = glances(write_moving(tmp_path / "upright.mp4", right=1, down=0), "motion")[1:]
    turned = glances(write_moving(tmp_path / "turned.mp4", right=1, down=0, rotation=90), "motion")[1:]
    assert middle(upright[:, 0]) > 190
    assert middle(upright[:, 1]) == 128
    # Turned to the left by a quarter, what went right goes up.
    assert middle(turned[:, 0]) == 128
    assert middle(turned[:, 1]) == pytest.approx(256 - middle(upright[:, 0]), abs=1)


def test_motion_adds_up_over_keyframes_that_would_be_skipped_to(tmp_path: Path) -> None:
    # With a keyframe at each sample, nothing between them need be decoded, except for motion.
    path = clips.write_clip(tmp_path / "clip.mp4", options={"x264-params": "keyint=25:min-keyint=25:scenecut=0"})
    found = glances(path, "motion")
    assert (found[1:, 2] > 128).any()  # the numbers change, which is intra-coded beside the keyframe


def test_motion_is_the_same_whichever_way_a_file_is_read(tmp_path: Path) -> None:
    path = write_moving(tmp_path / "moving.mp4", right=1, down=1)
    with Video(path, glance="motion") as video:
        quick = [frame.glance_as("motion") for frame in video.sample_by_time()]
        full = [frame.glance_as("motion") for frame in video._at_ticks(1.0)]
        evenly = [frame.glance_as("motion") for frame in video.sample_evenly(count=4)]
        evenly_full = [frame.glance_as("motion") for frame in video._at_positions([2, 7, 13, 18])]
    assert np.array_equal(quick, full)
    assert np.array_equal(evenly, evenly_full)


@pytest.mark.parametrize(("codec", "decoder"), [("libvpx-vp9", "vp9"), ("libx265", "hevc")])
def test_a_codec_without_motion_vectors_is_an_error(tmp_path: Path, codec: str, decoder: str) -> None:
    path = clips.write_clip(tmp_path / "clip.mkv", codec=codec, num_frames=5)
    with pytest.raises(NoMotionVectors, match=rf"clip\.mkv: its decoder \((lib)?{decoder}.*\) gives no motion vectors"):
        Video(path, glance="motion")
    Video(path, glance="packets").close()


# --- Packets ---


def packet_bytes(path: Path, *, in_order_shown: bool) -> list[tuple[int, bool]]:
    """Bytes of each frame's packet, and whether it is a keyframe's; read by PyAV alone."""
    with av.open(str(path)) as container:
        packets = [packet for packet in container.demux(video=0) if packet.size]
        if in_order_shown:
            packets.sort(key=lambda packet: packet.pts or 0)
        return [(packet.size, packet.is_keyframe) for packet in packets]


@pytest.mark.parametrize(("name", "in_order_shown"), [("clip.mp4", True), ("clip.mkv", True), ("clip.avi", False)])
def test_packets_are_the_bits_per_pixel_since_the_sample_before(
    tmp_path: Path, name: str, in_order_shown: bool
) -> None:
    path = clips.write_clip(tmp_path / name, num_frames=60, codec="libx264" if in_order_shown else "mpeg4")
    sizes = packet_bytes(path, in_order_shown=in_order_shown)

    def expected(first: int, end: int, *, key: bool) -> int:
        num_bytes = sum(size for size, is_key in sizes[first:end] if is_key == key)
        return round(16 * (10 + math.log2(8 * num_bytes / (96 * 64)))) if num_bytes else 0

    found = glances(path, "packets")[:, :, 0, 0].tolist()
    parts = [(0, 1), (1, 26), (26, 51)]  # 25 frames a second
    assert found == [[expected(*part, key=False), expected(*part, key=True)] for part in parts]
    assert found[0][0] == 0  # only the first keyframe


def test_the_packets_of_all_samples_are_known_before_any_is_decoded(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4")
    with Video(path, glance="packets") as video:
        frames = list(video.sample_by_time(fps=5))
        assert [frame._packets for frame in frames] == video.packets_by_time(fps=5)
        chosen = list(video.sample_by_time(fps=5, only={1, 7}))
    assert [frame.index for frame in chosen] == [1, 7]
    for frame in chosen:
        assert frame.seconds == frames[frame.index].seconds
        assert np.array_equal(frame.glance(), frames[frame.index].glance())


def test_none_of_the_samples_by_time_may_be_wanted(tmp_path: Path) -> None:
    for name in ("clip.mp4", "clip.avi"):
        path = clips.write_clip(tmp_path / name, codec="mpeg4")
        with Video(path) as video:
            assert list(video.sample_by_time(only=())) == []
            assert [clips.number_of(frame.glance()) for frame in video.sample_by_time(only={2})] == [50]


@pytest.mark.parametrize("kind", ["motion", "packets"])
def test_packed_and_damaged_files_have_glances(tmp_path: Path, kind: GlanceKind) -> None:
    packed = clips.write_packed_avi(tmp_path / "packed.avi")
    damaged = clips.remux(clips.write_clip(tmp_path / "clip.mp4"), tmp_path / "damaged.mkv", ruined=range(20, 40))
    for path in (packed, damaged):
        with Video(path, glance=kind) as video:
            for frames in (video.sample_by_time(fps=5), video.sample_evenly(count=7)):
                assert {frame.glance_as(kind).shape for frame in frames} == {(GLANCE_CHANNELS[kind], 56, 56)}


def test_sizes_are_added_up_in_the_order_shown() -> None:
    table = Timetable()
    for number, (shown, num_bytes) in enumerate([(0, 100), (3, 30), (1, 5), (2, 6)]):
        table.add(shown=shown, decoded=number, is_key=number == 0, is_hidden=False, num_bytes=num_bytes)
    assert table.sums().keys.tolist() == [0, 100, 100, 100, 100]
    assert table.sums().others.tolist() == [0, 0, 5, 11, 41]


@pytest.mark.parametrize(("num_bytes", "value"), [(0, 0), (1, 54), (392, 192), (784, 208), (10**9, 255)])
def test_bytes_are_told_on_a_logarithmic_scale(num_bytes: int, value: int) -> None:
    # 784 bytes for 28 × 28 pixels are 8 bits each: 16 (10 + 3)
    picture = av.VideoFrame(28, 28, "gray")
    frame = Frame(picture, index=0, seconds=0.0, packets=PacketBytes(keys=0, others=num_bytes))
    assert frame.glance_as("packets")[0, 0, 0] == value
    assert not frame.glance_as("packets")[1].any()


# --- Frames that have none ---


def test_an_array_has_no_motion_and_no_packets() -> None:
    frame = Frame.from_pixels(np.zeros((8, 8, 3), np.uint8), index=0, seconds=2.0)
    for kind in ("motion", "packets"):
        with pytest.raises(NoSuchGlance, match=f"the frame at 2.0 s has no {kind}: only frames of a video do, opened"):
            frame.glance_as(kind)
    with pytest.raises(NoSuchGlance, match="glance is 'gray'; possible: grey, colour, motion, packets"):
        frame.glance_as("gray")  # type: ignore[arg-type]


def test_a_plan_decodes_as_little_as_ever(tmp_path: Path) -> None:
    with Video(write_moving(tmp_path / "moving.mp4", right=1, down=1), glance="motion") as video:
        [frame] = video.sample_evenly(count=4, only={2})
    with pytest.raises(NoSuchGlance):
        frame.glance_as("motion")


# --- Live sources and training ---


@pytest.mark.parametrize("kind", ["motion", "packets"])
def test_a_pipe_has_the_glances_of_the_file(tmp_path: Path, kind: GlanceKind) -> None:
    path = write_moving(tmp_path / "moving.mkv", right=1, down=1)
    copy = f"import shutil, sys; shutil.copyfileobj(open({str(path)!r}, 'rb'), sys.stdout.buffer)"
    with subprocess.Popen([sys.executable, "-c", copy], stdout=subprocess.PIPE) as writer:
        assert writer.stdout
        with Live(writer.stdout, glance=kind) as live:
            found = np.stack([frame.glance_as(kind) for frame in live])
    expected = glances(path, kind)
    assert found.shape == expected.shape
    assert np.abs(found.astype(int) - expected).max() <= (0 if kind == "motion" else 1)


@pytest.mark.parametrize("kind", GLANCE_CHANNELS)
def test_clips_and_pictures_have_glances_for_training(tmp_path: Path, kind: GlanceKind) -> None:
    from PIL import Image

    Image.fromarray(clips.picture(3)).save(tmp_path / "picture.png")
    for path, count in ((clips.write_clip(tmp_path / "clip.mp4"), 4), (tmp_path / "picture.png", 1)):
        found = pixels_and_glances(path, num_frames=4, size=32, glance=kind)
        assert [glance.shape for _, glance in found] == [glance_shape(kind)] * count
