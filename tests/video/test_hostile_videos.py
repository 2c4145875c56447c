"""Videos made to hurt: each is read in little time and memory, or refused in one line."""

import struct
import time
import zlib
from pathlib import Path

import av
import clips
import numpy as np
import pytest
from clips import picture
from PIL import Image, ImageCms
from PIL.PngImagePlugin import PngInfo

from picknet.captioner import pick
from picknet.errors import BadSetting
from picknet.picking.learned import _in_groups
from picknet.picking.plain import UniformPicker
from picknet.video.access import MAX_PIXELS
from picknet.video.file import UnreadableVideo, Video, stored_seconds
from picknet.video.frame import BadPixels, Frame
from picknet.walk import evenly, open_source


@pytest.mark.parametrize("suffix", ["avi", "mkv", "mp4", "flv"])
def test_a_title_that_is_not_utf8_does_not_matter(tmp_path: Path, suffix: str) -> None:
    path = clips.write_clip(tmp_path / f"clip.{suffix}", num_frames=5)
    with av.open(str(path)) as given, av.open(str(tmp_path / f"titled.{suffix}"), "w") as output:
        output.metadata["title"] = "a cafeteria"
        stream = output.add_stream_from_template(given.streams.video[0])
        for packet in given.demux():
            if packet.size:
                packet.stream = stream
                output.mux(packet)
    titled = tmp_path / f"titled.{suffix}"
    content = titled.read_bytes()
    assert b"a cafeteria" in content
    titled.write_bytes(content.replace(b"a cafeteria", b"a caf\xe9\xff\xc3(ia"))
    for source in (titled, titled.read_bytes()):
        with Video(source) as video:
            assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly()] == [0, 1, 2, 3, 4]
    assert stored_seconds(titled)


def test_a_video_whose_index_has_no_keyframe_at_its_start_is_read_in_full(tmp_path: Path) -> None:
    """FFmpeg refuses to go back to where it began."""
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=60, options={"bf": "0"})
    content = bytearray(path.read_bytes())
    first = content.index(b"stss") + 12
    assert content[first : first + 4] == struct.pack(">I", 1)
    content[first : first + 4] = struct.pack(">I", 15)
    path.write_bytes(content)
    with Video(path) as video:
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly(count=6)] == [5, 15, 25, 35, 45, 55]


# --- Pixels ----------------------------------------------------------------------------------------------------------


def huge_gif(path: Path, width: int, height: int | None = None) -> Path:
    """A GIF of small pictures on a large canvas: some 700 bytes."""
    clips.write_gif(path, num_frames=2)
    content = bytearray(path.read_bytes())
    content[6:10] = struct.pack("<HH", width, height or width)
    path.write_bytes(content)
    return path


def huge_png(path: Path, side: int) -> Path:
    Image.fromarray(picture(1)).save(path)
    content = bytearray(path.read_bytes())
    content[16:24] = struct.pack(">II", side, side)
    path.write_bytes(content)
    return path


def huge_avi(path: Path, side: int) -> Path:
    """An AVI whose header says that its pictures are large."""
    content = bytearray(clips.write_clip(path, codec="rawvideo", pixel_format="bgr24", num_frames=2).read_bytes())
    format = content.index(b"strf") + 8
    content[format + 4 : format + 12] = struct.pack("<ii", side, side)
    path.write_bytes(content)
    return path


@pytest.mark.parametrize(("suffix", "write"), [("gif", huge_gif), ("png", huge_png)])
def test_too_large_pictures_are_refused_before_one_is_decoded(tmp_path: Path, suffix: str, write) -> None:
    path = write(tmp_path / f"huge.{suffix}", 16_000)
    for source, name in ((path, str(path)), (path.read_bytes(), "bytes")):
        with pytest.raises(UnreadableVideo) as caught:
            Video(source)
        assert str(caught.value) == (
            f"{name}: its pictures have 16,000 × 16,000 = 256,000,000 pixels: at most {MAX_PIXELS:,} are decoded; "
            "--max-pixels or PICKNET_MAX_PIXELS sets another limit"
        )


def test_where_the_size_is_not_known_the_error_tells_the_limit(tmp_path: Path) -> None:
    path = huge_avi(tmp_path / "huge.avi", 16_000)
    with pytest.raises(UnreadableVideo) as caught:
        Video(path)
    assert str(caught.value) == (
        f"{path}: none of its 2 frames can be decoded: damaged, or of more than {MAX_PIXELS:,} pixels, the limit that "
        "--max-pixels sets"
    )


def test_the_limit_on_pixels_can_be_set(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=3)
    monkeypatch.setenv("PICKNET_MAX_PIXELS", str(clips.WIDTH * clips.HEIGHT))
    with Video(path) as video:
        assert len(list(video.sample_evenly())) == 3
    monkeypatch.setenv("PICKNET_MAX_PIXELS", str(clips.WIDTH * clips.HEIGHT - 1))
    with pytest.raises(UnreadableVideo, match=r"have 96 × 64 = 6,144 pixels: at most 6,143 are decoded; --max-pixels"):
        Video(path)
    for wrong in ("many", "-1", "0", "1e9", "99999999999"):
        monkeypatch.setenv("PICKNET_MAX_PIXELS", wrong)
        with pytest.raises(BadSetting, match=rf"PICKNET_MAX_PIXELS is '{wrong}': a number of pixels from 1 to "):
            Video(path)


def test_pictures_that_grow_in_the_middle_of_a_video_are_not_decoded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = clips.write_clip(tmp_path / "small.h264", num_frames=10).read_bytes()
    large = clips.write_clip(tmp_path / "large.h264", num_frames=10, width=384, height=256).read_bytes()
    monkeypatch.setenv("PICKNET_MAX_PIXELS", "20000")
    with Video(small + large) as video:
        assert {frame.pixels().shape for frame in video.sample_evenly()} == {(64, 96, 3)}
        assert video.damage


def test_only_so_many_frames_are_held_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=50)
    monkeypatch.setenv("PICKNET_MAX_PIXELS", str(clips.WIDTH * clips.HEIGHT))
    assert len(pick(path, picker=UniformPicker(3), num_frames=32)) == 3
    with pytest.raises(BadSetting, match=r": 33 frames of 96 × 64 pixels are too many to hold in memory: at most 32 "):
        pick(path, picker=UniformPicker(3), num_frames=33)


@pytest.mark.parametrize(("width", "height"), [(65_535, 1), (1, 65_535), (65_535, 255), (2_049, 8)])
def test_pictures_that_are_too_narrow_to_be_scaled_are_refused(tmp_path: Path, width: int, height: int) -> None:
    path = huge_gif(tmp_path / "narrow.gif", width, height)
    with pytest.raises(UnreadableVideo) as caught:
        Video(path)
    assert str(caught.value) == (
        f"{path}: its pictures have {width:,} × {height:,} pixels: with a side of more than 2,048, at most 256 times "
        "as long as the other is possible"
    )


@pytest.mark.parametrize(("width", "height"), [(2_048, 1), (3, 768), (65_535, 256), (257, 65_535)])
def test_narrow_pictures_that_can_be_scaled_are_read(tmp_path: Path, width: int, height: int) -> None:
    with Video(huge_gif(tmp_path / "narrow.gif", width, height)) as video:
        frame = next(video.sample_evenly())
    assert (frame.glance().shape, frame.pixels(64).shape) == ((56, 56), (64, 64, 3))


def test_a_frame_that_ffmpeg_cannot_scale_is_an_error_of_ours() -> None:
    frame = Frame(av.VideoFrame(65_534, 1, "rgb24"), index=0, seconds=3.0)
    with pytest.raises(BadPixels, match=r"^the frame at 3.0 s: 65,534 × 1 pixels of rgb24 cannot be scaled \(Invalid"):
        frame.pixels(256)
    with pytest.raises(BadPixels, match=r"^a frame has 9,000 × 1 pixels: with a side of more than 2,048, at most 256 "):
        Frame.from_pixels(np.zeros((1, 9_000, 3), np.uint8), index=0, seconds=0.0)


def test_large_pictures_are_neither_decoded_ahead_nor_held_in_groups(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=8)

    def most_held() -> int:
        """Frames that were read before the first of them was handed on by a picker that looks."""
        read: list[float] = []
        sampling = evenly(8)
        with open_source(path, sampling, UniformPicker(8), on_frame=read.append) as walk:
            next(_in_groups(iter(walk), lambda: 8.0))
        return len(read)

    assert most_held() == 4
    monkeypatch.setattr("picknet.video.frame.LARGE_PICTURE", 1000)
    monkeypatch.delattr("picknet.walk.read_ahead")  # not used
    assert most_held() == 1


# --- Small files that become large ---------------------------------------------------------------------------------


def test_an_edit_list_that_repeats_a_track_without_end_is_refused(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=60, options={"bf": "0"})
    data = path.read_bytes()
    place = data.index(b"edts") - 4
    (size,) = struct.unpack(">I", data[place : place + 4])
    num_edits = 2_000
    (seconds,) = struct.unpack(">I", data[place + 24 : place + 28])
    edits = struct.pack(">II", 0, num_edits) + struct.pack(">IiI", seconds, 0, 0x10000) * num_edits
    boxes = struct.pack(">I", len(edits) + 8) + b"elst" + edits
    grown = bytearray(data[:place] + struct.pack(">I", len(boxes) + 8) + b"edts" + boxes + data[place + size :])
    for name in (b"moov", b"trak"):  # which hold it; the index comes after the frames, so that no place of one changes
        start = grown.index(name) - 4
        (old,) = struct.unpack(">I", grown[start : start + 4])
        grown[start : start + 4] = struct.pack(">I", old + len(boxes) + 8 - size)
    path.write_bytes(grown)
    with pytest.raises(UnreadableVideo) as caught:
        Video(path)
    assert str(caught.value) == (
        f"{path}: damaged: its index lists {60 * num_edits:,} packets in {len(grown):,} bytes"
    )


@pytest.mark.parametrize("chunk", [b"zTXt", b"iCCP"])
@pytest.mark.parametrize("place", ["in the first picture", "in the second"])
def test_a_png_of_packed_texts_is_refused_before_they_are_unpacked(tmp_path: Path, chunk: bytes, place: str) -> None:
    path = tmp_path / "texts.png"
    Image.fromarray(picture(1)).save(path)
    plain = path.read_bytes()
    gigabyte = zlib.compressobj()
    first, again = (gigabyte.compress(bytes(2**20)) + gigabyte.flush(zlib.Z_FULL_FLUSH) for _ in range(2))
    packed = b"name\0\0" + first + again * 1023 + gigabyte.flush()
    text = struct.pack(">I", len(packed)) + chunk + packed + struct.pack(">I", zlib.crc32(chunk + packed))
    header_end = 33
    with_texts = plain[:header_end] + 2 * text + plain[header_end:]
    path.write_bytes(with_texts if place == "in the first picture" else plain + with_texts)
    for source, name in ((path, str(path)), (path.read_bytes(), "bytes")):
        with pytest.raises(UnreadableVideo) as caught:
            Video(source)
        assert str(caught.value) == (
            f"{name}: a PNG with more than 1,048,576 bytes of packed texts and colour profiles; save it without them"
        )


def with_number(path: Path, name: bytes, offset: int, number: int) -> Path:
    """A copy of an MP4 with this number in the first box of this name, so many bytes behind the name."""
    data = bytearray(path.read_bytes())
    place = data.index(name) + offset
    data[place : place + 4] = struct.pack(">I", number)
    changed = path.with_name(f"changed-{path.name}")
    changed.write_bytes(data)
    return changed


def test_an_index_of_millions_of_packets_in_a_few_bytes_is_refused_before_it_is_made(tmp_path: Path) -> None:
    clip = clips.write_clip(tmp_path / "clip.mp4", num_frames=60)
    sized = with_number(with_number(clip, b"stsz", 8, 1), b"stsz", 12, 85_000_000)
    fragments = with_number(clips.fragment(clip, tmp_path / "fragments.mp4"), b"trun", 8, 80_000_000)
    plain = fragments.with_name("plain.mp4")
    plain.write_bytes(fragments.read_bytes().replace(b"trun\0\0\x0a\x05", b"trun\0\0\0\x01"))
    edited = with_number(clip, b"elst", 8, 1_000_000)
    for path, count in ((sized, "85,000,000"), (plain, "80,000,040"), (edited, "60,000,000")):
        for source, name in ((path, str(path)), (path.read_bytes(), "bytes")):
            with pytest.raises(UnreadableVideo) as caught:
                Video(source)
            listed = f"{name}: damaged: its index lists {count} packets in {path.stat().st_size:,} bytes"
            assert str(caught.value) == listed


def packed_header(header: bytes) -> bytes:
    """A movie header as QuickTime once packed it."""

    def box(name: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content) + 8) + name + content

    data = struct.pack(">I", len(header)) + zlib.compress(header)
    return box(b"moov", box(b"cmov", box(b"dcom", b"zlib") + box(b"cmvd", data)))


def test_a_packed_movie_header_is_read_unless_it_is_large_or_holds_another(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "clip.mov", num_frames=12)
    data = path.read_bytes()
    place = data.index(b"moov") - 4
    frames, header = data[:place], data[place:]
    path.write_bytes(frames + packed_header(header))
    with Video(path) as video:
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly()] == list(range(12))
    sized = bytearray(header)
    sizes = sized.index(b"stsz") + 8
    sized[sizes : sizes + 8] = struct.pack(">II", 1, 85_000_000)
    path.write_bytes(frames + packed_header(bytes(sized)))
    with pytest.raises(UnreadableVideo, match=r": damaged: its index lists 85,000,000 packets in [\d,]+ bytes$"):
        Video(path)
    large = header + struct.pack(">I", 2**25) + b"free" + bytes(2**25 - 8)
    for bad in (packed_header(large), packed_header(packed_header(header))):
        path.write_bytes(frames + bad)
        with pytest.raises(UnreadableVideo, match=r"its packed movie header has more than 16,777,216 bytes, or holds"):
            Video(path)


def test_a_png_with_a_text_and_a_colour_profile_is_read(tmp_path: Path) -> None:
    path = tmp_path / "picture.png"
    texts = PngInfo()
    texts.add_text("title", "a cockatoo " * 1000, zip=True)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    Image.fromarray(picture(1)).save(path, pnginfo=texts, icc_profile=profile)
    assert b"zTXt" in path.read_bytes()
    assert b"iCCP" in path.read_bytes()
    with Video(path) as video:
        assert [clips.number_of(frame.pixels()) for frame in video.sample_evenly()] == [1]


# --- Neighbours ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["x.Y", "x.y"])
def test_planes_in_files_beside_it_are_not_read(tmp_path: Path, name: str) -> None:
    """FFmpeg takes such a name for the luma of a picture, whose chroma are x.U and x.V."""
    (tmp_path / name).write_bytes(bytes(352 * 288))
    with pytest.raises(UnreadableVideo, match=r"x\.[Yy]: not a video container that is read: MP4, "):
        Video(tmp_path / name)


# --- Time ------------------------------------------------------------------------------------------------------------


def test_frames_that_are_decades_apart_take_no_time(tmp_path: Path) -> None:
    decades = 10**12  # milliseconds
    path = clips.write_clip(tmp_path / "clip.mkv", num_frames=4, milliseconds=[0, 1000, decades, decades + 1000])
    start = time.monotonic()
    with Video(path) as video:
        found = [(clips.number_of(frame.pixels()), frame.seconds) for frame in video.sample_by_time(fps=2)]
        assert found == [(0, 0), (1, 1), (2, 10**9), (3, 10**9 + 1)]
        assert len(video.packets_by_time(fps=2)) == 4
    assert time.monotonic() - start < 2


# --- Formats ---------------------------------------------------------------------------------------------------------

OTHER_FORMATS = {
    "subtitles.mp4": b"1\n00:00:00,000 --> 00:00:01,000\nhello\n\n" * 20,  # a format of FFmpeg, and no video
    "picture.mp4": b'<?xml version="1.0"?>\n<svg xmlns="http://www.w3.org/2000/svg"><image href="/etc/hosts"/></svg>',
    "session.mp4": b"v=0\r\no=- 0 0 IN IP4 127.0.0.1\r\ns=x\r\nt=0 0\r\nm=video 5004 RTP/AVP 96\r\n",
    "text.mp4": b"\x1b[31mred " * 100,  # a text video
}


@pytest.mark.parametrize("name", OTHER_FORMATS)
def test_formats_that_are_no_plain_containers_are_refused(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(OTHER_FORMATS[name])
    for source in (path, path.read_bytes()):
        with pytest.raises(UnreadableVideo, match=r": not a (known video format|video container that is read: MP4, )"):
            Video(source)
