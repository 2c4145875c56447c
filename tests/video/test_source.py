"""What a source is by its name, and what its name may show."""

import os
from pathlib import Path

import pytest

from picknet.video.source import recognised, without_password


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
    ],
)
def test_a_source_is_known_by_its_name(source, kind):
    assert recognised(source).kind == kind


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_named_pipe_is_no_file(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    assert recognised(tmp_path / "pipe").kind == "pipe"


@pytest.mark.parametrize("source", [0, "0"])
def test_a_number_is_a_camera(source, monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    camera = recognised(source)
    assert (camera.kind, camera.name, camera.address, camera.format) == ("camera", "camera 0", "/dev/video0", "v4l2")
    monkeypatch.setattr("sys.platform", "darwin")
    assert recognised(source).format == "avfoundation"


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
    assert recognised(address).name == shown
    assert recognised(address).address == address
