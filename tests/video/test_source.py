"""What a source is, by its name and type, and what its name shows."""

import io
import os
from pathlib import Path

import clips
import numpy as np
import pytest

from picknet.video.file import UnreadableVideo
from picknet.video.live import Live
from picknet.video.source import UnreachableSource, is_address, is_http, is_live, locate, without_password


@pytest.mark.parametrize(
    ("source", "kind"),
    [
        ("-", "pipe"),
        ("clip.mp4", "file"),
        (Path("clip.mp4"), "file"),
        ("./0", "file"),
        ("C:\\clips\\a.mp4", "file"),
        ("/dev/video2", "camera"),
        ("rtsp://cam/1", "network"),
        ("HTTPS://host/live.m3u8", "network"),
        ("udp://@:5000", "network"),
        ("file,tcp://host/a.mp4", "file"),
        ("://host/a.mp4", "file"),
        ("clips/http://host/a.mp4", "file"),
    ],
)
def test_a_source_is_classified_by_its_name(source, kind):
    assert locate(source).kind == kind


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_is_a_pipe(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert locate(tmp_path / "pipe").kind == "pipe"


@pytest.mark.parametrize("source", [0, "0"])
def test_a_number_is_a_camera(source, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    camera = locate(source)
    assert (camera.kind, camera.name, camera.url, camera.format) == ("camera", "camera 0", "/dev/video0", "v4l2")
    monkeypatch.setattr("sys.platform", "darwin")
    assert locate(source).format == "avfoundation"


@pytest.mark.parametrize("source", ["2024", Path("2024")])
def test_an_existing_path_wins_over_a_camera_number(tmp_path, monkeypatch, source):
    monkeypatch.chdir(tmp_path)
    clips.write_clip(tmp_path / "clip.mp4").rename("2024")
    assert locate(source).kind == "file"
    assert not is_live(source)
    assert clips.number_of(next(iter(Live(source))).pixels()) == 0
    assert locate(2024).kind == "camera"


def test_a_folder_named_like_a_camera_is_refused_as_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "2024").mkdir()
    with pytest.raises(UnreadableVideo, match=r"^2024: is a folder, not a video$"):
        list(Live("2024"))


def test_on_other_systems_a_camera_number_is_refused_with_a_reason(monkeypatch):
    monkeypatch.setattr("sys.platform", "win32")
    with pytest.raises(UnreachableSource, match=r"^camera 0: cameras have numbers on Linux and macOS; elsewhere pass"):
        list(Live(0))


def test_an_existing_file_is_no_address(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "http:" / "host").mkdir(parents=True)
    (tmp_path / "http:" / "host" / "clip.mp4").touch()
    assert not is_address("http://host/clip.mp4")
    assert is_address("http://host/other.mp4")


def test_a_file_named_like_a_scheme_is_no_address():
    assert not is_http("http")
    assert not is_live("https")
    assert is_http("HTTP://host/a.mp4")


@pytest.mark.parametrize(
    ("source", "address", "live"),
    [
        ("clip.mp4", False, False),
        (Path("clip.mp4"), False, False),
        ("-", False, True),
        (0, False, True),
        ("0", False, True),
        ("/dev/video1", False, True),
        ("rtsp://cam/1.mp4", True, True),
        ("udp://@:5000", True, True),
        ("http://host/clip.MP4?token=1#t=3", True, False),
        ("https://host/live.m3u8", True, True),
        ("http://camera:8080", True, True),
        (b"bytes", False, False),
        (bytearray(b"bytes"), False, False),
        (io.BytesIO(b"file"), False, False),
        (np.zeros((2, 4, 4, 3), np.uint8), False, False),
        ([], False, False),
    ],
)
def test_addresses_and_live_sources_are_recognised_without_a_connection(source, address, live):
    assert (is_address(source), is_live(source)) == (address, live)


def test_a_closed_file_is_left_to_the_reader():
    file = io.BytesIO(b"x")
    file.close()
    assert not is_live(file)
    with pytest.raises(UnreadableVideo, match="cannot be read"):
        list(Live(file))


def test_an_open_pipe_is_live():
    reader, writer = os.pipe()
    os.close(writer)
    with open(reader, "rb") as pipe:
        assert is_live(pipe)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("rtsp://cam:554/1", "rtsp://cam:554/1"),
        ("rtsp://admin@cam/1", "rtsp://admin@cam/1"),
        ("rtsp://admin:geheim@cam:554/1?x=1", "rtsp://admin:***@cam:554/1?x=1"),
        ("rtsp://admin:ge@heim@cam/1", "rtsp://admin:***@cam/1"),
        ("rtsp://admin:ge:heim@cam/1", "rtsp://admin:***@cam/1"),
        ("rtsp://admin:ge/heim@cam/1", "rtsp://admin:***@cam/1"),
        ("rtsp://admin:ge?heim@cam/1", "rtsp://admin:***@cam/1"),
        ("rtsp://admin:@cam/1", "rtsp://admin:***@cam/1"),
        ("http://[::1]:8080/a@2x.m3u8", "http://[::1]:8080/a@2x.m3u8"),
        ("http://host/a@2x.m3u8", "http://host/a@2x.m3u8"),
        ("http://host:8080/a?to=me@host", "http://host:8080/a?to=me@host"),
        ("rtsp://admin:123/4@cam/1", "rtsp://admin:***@cam/1"),
        ("http://host/a?user=me&password=geheim&x=1", "http://host/a?user=me&password=***&x=1"),
        ("http://host/a?pwd=geheim#t", "http://host/a?pwd=***#t"),
        ("https://host/a.m3u8?Token=geheim", "https://host/a.m3u8?Token=***"),
    ],
)
def test_a_password_is_never_shown(address, shown):
    assert without_password(address) == shown
    assert locate(address).name == shown
    assert locate(address).url == address
