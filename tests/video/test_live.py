"""Live sources: files, pipes, arrays and servers on the loopback. Which frames arrive, are dropped, are reported."""

import contextlib
import io
import itertools
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import clips
import numpy as np
import pytest
import servers
from servers import Feed, transport_stream

from picknet.picking.learned import PickNetPicker
from picknet.picking.picker import Pick
from picknet.picking.plain import AllPicker, EveryNthPicker
from picknet.video.file import UnreadableVideo, Video
from picknet.video.frame import Frame
from picknet.video.live import BadSetting, Live, LostSource
from picknet.video.source import UnreachableSource
from picknet.video.stream_clock import StreamClock

LOOPBACK = "http://127.0.0.1"
HASTE = 40.0
"""Chunks a second where a test is not about time; by their timestamps there are ten."""


@pytest.fixture(autouse=True)
def _short_analysis(monkeypatch):
    """Analyse half a second of a stream before its first frame, not a second: the test streams are simple."""
    monkeypatch.setattr("picknet.video.source._SHORT_ANALYSIS", ("analyzeduration", "500000"))


@pytest.fixture(scope="module")
def chunks():
    """Twelve seconds of MPEG-TS, ten pictures a second."""
    return transport_stream(120)


@pytest.fixture
def notes(monkeypatch):
    """The notes of a source; a lost one is tried again at once."""
    monkeypatch.setattr("picknet.video.follower.FIRST_DELAY", 0.1)
    return []


def numbers(frames):
    """The numbers shown in the frames; see clips.py."""
    return [clips.number_of(frame.pixels()) for frame in frames]


def taken(live, count):
    with live:
        return list(itertools.islice(live, count))


# --- Sources that wait -----------------------------------------------------------------------------------------------


def test_a_file_waits_for_a_slow_reader(tmp_path):
    live = Live(clips.write_clip(tmp_path / "clip.mp4", num_frames=100), fps=5)
    frames = list(live)
    # 25 pictures a second: every fifth.
    assert numbers(frames) == list(range(0, 100, 5))
    assert [frame.seconds for frame in frames] == pytest.approx([number / 25 for number in range(0, 100, 5)])
    assert (live.num_frames, live.seconds, live.num_dropped, live.lag) == (20, pytest.approx(3.8), 0, None)


def test_arrays_are_consecutive_frames():
    pixels = (clips.picture(number) for number in range(4))
    frames = list(Live(pixels, fps=2))
    assert numbers(frames) == [0, 1, 2, 3]
    assert [(frame.index, frame.seconds) for frame in frames] == [(0, 0.0), (1, 0.5), (2, 1.0), (3, 1.5)]


def test_frames_are_passed_on_as_they_are():
    given = [Frame.from_pixels(clips.picture(0), index=7, seconds=3.5)]
    assert list(Live(given)) == given


def test_bytes_and_files_are_read_like_the_path(tmp_path):
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=100)
    expected = [(frame.index, frame.seconds, frame.pixels().tobytes()) for frame in Live(path, fps=5)]
    with path.open("rb") as file:
        for source, name in ((path.read_bytes(), "bytes"), (file, str(path)), (io.BytesIO(path.read_bytes()), "file")):
            live = Live(source, fps=5)
            assert [(frame.index, frame.seconds, frame.pixels().tobytes()) for frame in live] == expected
            assert (live.name, live.is_live, live.lag) == (name, False, None)


def test_an_open_video_is_read_like_its_path_and_stays_open(tmp_path):
    path = clips.write_clip(tmp_path / "clip.mp4", num_frames=100)
    expected = [(frame.index, frame.seconds, frame.pixels().tobytes()) for frame in Live(path, fps=5)]
    with Video(path) as video:
        for _ in range(2):
            live = Live(video, fps=5)
            assert [(frame.index, frame.seconds, frame.pixels().tobytes()) for frame in live] == expected
            live.close()
        assert (live.name, live.is_live, live.lag, live.damage) == (str(path), False, None, None)
        with pytest.raises(BadSetting, match=r"^realtime is True, and .* an open Video: give the path instead$"):
            Live(video, realtime=True)


def test_one_array_of_frames_is_read_like_a_list():
    live = Live(np.stack([clips.picture(number) for number in range(3)]), fps=2)
    assert [(clips.number_of(frame.pixels()), frame.seconds) for frame in live] == [(0, 0.0), (1, 0.5), (2, 1.0)]
    with pytest.raises(TypeError, match=r"^frames are an iterable of frames or RGB arrays, not float$"):
        Live(3.5)


def test_arrays_that_are_not_pictures_are_refused():
    with pytest.raises(ValueError, match=r"a frame is RGB \(H, W, 3\) of uint8, not \(4, 4\) of float64"):
        list(Live([np.zeros((4, 4))]))


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_a_pipe_is_read_to_its_end(tmp_path, chunks):
    os.mkfifo(tmp_path / "pipe")
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(b"".join(chunks),), daemon=True).start()
    live = Live(tmp_path / "pipe", fps=2)
    assert numbers(live) == list(range(0, 120, 5))
    assert (live.lag, live.num_dropped, live.damage) == (None, 0, None)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="this system has no named pipes")
def test_damaged_data_in_a_pipe_are_skipped(tmp_path, chunks):
    os.mkfifo(tmp_path / "pipe")
    content = b"".join([*chunks[:40], b"\x00garbage" * 500, *chunks[45:60], *transport_stream(30, codec="libx264")])
    threading.Thread(target=(tmp_path / "pipe").write_bytes, args=(content,), daemon=True).start()
    live = Live(tmp_path / "pipe", fps=2)
    shown = numbers(live)
    assert shown[:8] == list(range(0, 40, 5))
    assert set(range(50, 60)) & set(shown)
    assert re.fullmatch(r"some of its data cannot be decoded, the first after [34]\.\d s", live.damage)


def test_a_download_is_read_to_its_end(tmp_path):
    content = clips.write_clip(tmp_path / "clip.mp4", num_frames=100, index_first=True).read_bytes()
    with servers.download(content) as server:
        live = Live(f"{LOOPBACK}:{server.port}/clip.mp4", fps=5)
        assert numbers(live) == list(range(0, 100, 5))
        assert (live.lag, live.num_dropped, live.damage) == (None, 0, None)


def test_an_mp4_with_its_index_at_the_end_needs_a_server_that_goes_back_to_its_frames(tmp_path):
    path = clips.write_clip(tmp_path / "clip.mp4", codec="mjpeg", pixel_format="yuvj420p", width=320, height=240)
    content = path.read_bytes()
    assert len(content) > 100_000  # more than FFmpeg keeps
    with servers.download(content) as server, pytest.raises(UnreachableSource) as refused:
        list(Live(f"{LOOPBACK}:{server.port}/clip.mp4"))
    assert str(refused.value).endswith(
        "no frame received (the index of this MP4 is at its end, and the server did not go back to its frames; "
        "`picknet caption` and `timeline` download it first, or pipe it: curl ADDRESS | picknet stream -)"
    )


def test_a_download_that_breaks_off_is_resumed(chunks, notes):
    content = b"".join(chunks)
    with servers.download(content, cut=[len(content) // 2, len(content) // 4]) as server:
        live = Live(f"{LOOPBACK}:{server.port}/clip.ts", fps=2, note=notes.append)
        assert numbers(live) == list(range(0, 120, 5))
    assert live.num_reconnects == 1
    assert [re.sub(r":\d+", "", note) for note in notes] == [
        f"{LOOPBACK}/clip.ts: lost (the connection broke off); trying again in 0.1 s (1 of 10)",
        f"{LOOPBACK}/clip.ts: lost (the connection broke off); trying again in 0.2 s (2 of 10)",
        f"{LOOPBACK}/clip.ts: back after 0 s",
    ]


def test_hls_with_an_end_is_read_to_its_end(chunks):
    with servers.hls(chunks) as server:
        live = Live(f"{LOOPBACK}:{server.port}/clip.m3u8", fps=2)
        assert numbers(live) == list(range(0, 120, 5))


@pytest.mark.parametrize("scheme", ["http", "file"])
def test_a_playlist_of_a_stream_opens_no_local_files(tmp_path, chunks, scheme):
    (tmp_path / "clip.ts").write_bytes(b"".join(chunks))
    lines = ["#EXTM3U", "#EXT-X-TARGETDURATION:12", "#EXTINF:12,", f"file://{tmp_path}/clip.ts", "#EXT-X-ENDLIST", ""]
    (tmp_path / "list.m3u8").write_text("\n".join(lines))
    with servers.download((tmp_path / "list.m3u8").read_bytes()) as server:
        address = f"{LOOPBACK}:{server.port}" if scheme == "http" else f"file://{tmp_path}"
        with pytest.raises(UnreachableSource):
            list(Live(f"{address}/list.m3u8", timeout=5, retries=0))


# --- Sources that do not ---------------------------------------------------------------------------------------------


def test_a_slow_reader_gets_new_frames_and_misses_others(monkeypatch):
    monkeypatch.setattr("picknet.video.frame_queue.MAX_FRAME_AGE", 0.3)
    shown = []

    def camera():
        for number in range(100):
            time.sleep(0.01)
            shown.append(number)
            yield clips.picture(number)

    live = Live(camera(), fps=50, realtime=True)
    for frame in live:  # noqa: B007 - the last is used below
        time.sleep(0.1)
        assert live.lag < 0.3 + 0.1 + 0.5  # the age in the queue, the reader's sleep, and a busy machine
    assert live.num_dropped > 10
    assert live.num_frames < 30
    assert shown[-1] - clips.number_of(frame.pixels()) < 20  # the end is not missed
    assert live.max_lag >= 0.1


def test_arrays_in_real_time_are_sampled_by_the_clock():
    def camera():
        while True:
            time.sleep(0.02)
            yield clips.picture(0)

    frames = taken(Live(camera(), fps=10, realtime=True), 6)
    gaps = np.diff([frame.seconds for frame in frames])
    assert gaps.mean() == pytest.approx(0.1, abs=0.03)


def test_a_file_in_real_time_is_read_at_its_own_speed(tmp_path):
    live = Live(clips.write_clip(tmp_path / "clip.mp4", num_frames=11), fps=5, realtime=True)
    began = time.monotonic()
    assert numbers(live)[-1] == 10
    assert time.monotonic() - began >= 0.4
    assert live.lag is not None


def test_an_error_of_the_source_is_raised_in_the_reader():
    def camera():
        yield clips.picture(0)
        raise ZeroDivisionError("the camera fell")

    with pytest.raises(ZeroDivisionError, match="the camera fell"):
        list(Live(camera(), realtime=True))


def test_closing_the_reader_ends_the_thread_of_the_source():
    ended = threading.Event()

    def camera():
        try:
            while True:
                time.sleep(0.01)
                yield clips.picture(0)
        finally:
            ended.set()

    assert len(taken(Live(camera(), fps=100, realtime=True), 2)) == 2
    assert ended.wait(5)


def follows(live, *, fps=10.0):
    """The frames of a live server come in order, with their seconds."""
    frames = taken(live, 6)
    shown = numbers(frames)
    assert all(before < after for before, after in itertools.pairwise(shown))
    # Seconds count from the first frame, whatever the timestamps of the source start with.
    assert [frame.seconds for frame in frames] == pytest.approx([(n - shown[0]) / fps for n in shown], abs=0.05)
    assert [frame.index for frame in frames] == list(range(6))
    assert live.lag < 2


def test_http_without_an_end_is_followed(chunks):
    with servers.http(Feed(chunks, HASTE)) as server:
        follows(Live(f"{LOOPBACK}:{server.port}/live", fps=5))


def test_hls_without_an_end_is_followed(chunks):
    with servers.hls(chunks, num_live=4) as server:
        follows(Live(f"{LOOPBACK}:{server.port}/live.m3u8", fps=5))


def test_rtsp_is_followed_with_the_right_password_only():
    with servers.rtsp(Feed(servers.pictures_in_h264(120)), credentials="admin:geheim") as server:
        follows(Live(f"rtsp://admin:geheim@127.0.0.1:{server.port}/1", fps=5))
        for wrong in ("admin:falsch@", ""):
            with pytest.raises(UnreachableSource) as raised:
                taken(Live(f"rtsp://{wrong}127.0.0.1:{server.port}/1"), 1)
            shown = wrong.replace("falsch", "***")
            refused = "access denied: the user name or the password is missing or wrong"
            assert str(raised.value) == f"rtsp://{shown}127.0.0.1:{server.port}/1: {refused}"


def test_udp_is_followed(chunks):
    port = servers.free_port(servers.socket.SOCK_DGRAM)
    servers.udp(Feed(chunks, HASTE), port)
    follows(Live(f"udp://127.0.0.1:{port}", fps=5))


def test_rtmp_is_followed():
    with servers.rtmp(Feed(servers.pictures_in_flash(120), HASTE)) as server:
        follows(Live(f"rtmp://127.0.0.1:{server.port}/live/1", fps=5))


@pytest.mark.parametrize(
    ("serve", "coded"),
    [
        (servers.http, transport_stream),
        (servers.rtsp, servers.pictures_in_h264),
        (servers.rtsp_over_udp, servers.pictures_in_h264),
        (servers.rtmp, servers.pictures_in_flash),
    ],
)
def test_a_server_that_is_killed_and_restarted_is_followed_again(serve, coded, notes):
    feed = Feed(coded(120))
    alive = [serve(feed)]
    port = alive[0].port
    scheme = serve.__name__.partition("_")[0]

    def note(line):
        notes.append(line)
        if not alive:
            alive.append(serve(feed, port=port))

    live = Live(f"{scheme}://me:geheim@127.0.0.1:{port}/live/1", fps=5, timeout=5, note=note)
    frames = []
    with live:
        for frame in live:
            frames.append(frame)
            if len(frames) == 4:
                alive.pop().kill()
            if live.num_reconnects:
                break
    alive.pop().kill()
    assert numbers(frames) == sorted(set(numbers(frames)))
    assert live.num_reconnects == 1
    # Time passes while nothing arrives, as it does for the pictures, ten a second; but a new connection is analysed
    # before its first frame is decoded.
    passed = (numbers(frames)[-1] - numbers(frames)[3]) / 10
    assert frames[-1].seconds - frames[3].seconds == pytest.approx(passed, abs=2.5)
    name = rf"{scheme}://me:\*\*\*@127.0.0.1:{port}/live/1"
    assert re.fullmatch(rf"{name}: lost \(.+\); trying again in 0.1 s \(1 of 10\)", notes[0])
    assert re.fullmatch(rf"{name}: back after \d s", notes[-1])
    assert "geheim" not in "".join(notes)


def wait_for_publisher(address):
    """Until somebody publishes, the address is "not found"."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(UnreachableSource):
            taken(Live(address, timeout=3), 1)
            return
        time.sleep(0.05)
    pytest.fail("nobody publishes")


@pytest.mark.skipif(not servers.has_node_rtsp(), reason="needs Node.js and the npm package rtsp-streaming-server")
def test_a_third_party_rtsp_server_is_followed_after_a_restart(notes):
    publishing, playing = servers.free_port(), servers.free_port()
    process = servers.node_rtsp(publishing, playing)
    done = servers.publish(f"rtsp://127.0.0.1:{publishing}/1")
    frames = []
    try:
        wait_for_publisher(f"rtsp://me:geheim@127.0.0.1:{playing}/1")
        with pytest.raises(UnreachableSource, match="access denied"):
            taken(Live(f"rtsp://me:falsch@127.0.0.1:{playing}/1"), 1)
        with Live(f"rtsp://me:geheim@127.0.0.1:{playing}/1", fps=5, timeout=3, retries=20, note=notes.append) as live:
            for frame in live:
                frames.append(frame)
                if len(frames) == 5:
                    process.kill()
                    process.wait()
                    process = servers.node_rtsp(publishing, playing)
                if live.num_reconnects and frame.seconds > frames[4].seconds + 1:
                    break
    finally:
        done.set()
        process.kill()
        process.wait()
    assert numbers(frames) == sorted(set(numbers(frames)))
    assert live.num_reconnects == 1
    assert "geheim" not in "".join(notes)


def test_a_source_that_stays_lost_is_given_up(chunks, notes):
    with servers.http(Feed(chunks[:20], HASTE)) as server:
        live = Live(f"{LOOPBACK}:{server.port}/1", fps=5, timeout=2, retries=2, note=notes.append)
        frames = []
        with pytest.raises(LostSource, match=r"/1: lost after 1\.\d s \(.+\); tried again 2 times$"):
            frames.extend(live)
    assert len(notes) == 2


def test_a_slow_decoder_skips_to_newer_keyframes(chunks, monkeypatch):
    seconds = StreamClock.seconds

    def slow(*arguments):
        time.sleep(0.2)  # five of ten pictures a second can be decoded
        return seconds(*arguments)

    monkeypatch.setattr(StreamClock, "seconds", slow)
    monkeypatch.setattr("picknet.video.connection.MAX_PACKET_AGE", 0.3)
    with servers.http(Feed(chunks)) as server:
        live = Live(f"{LOOPBACK}:{server.port}/1", fps=10)
        frames = []
        for frame in live:
            frames.append(frame)
            assert live.lag < 2
            skipped = [after for before, after in itertools.pairwise(numbers(frames)) if after > before + 1]
            if len(skipped) > 1:
                break
    assert live.num_dropped
    assert all(number % 5 == 0 for number in skipped)  # every fifth is a keyframe


# --- Bad input -------------------------------------------------------------------------------------------------------


def test_a_source_that_never_sends_a_frame_times_out():
    with servers.silent() as server:
        for source in (f"{LOOPBACK}:{server.port}/1", f"rtsp://127.0.0.1:{server.port}/1"):
            began = time.monotonic()
            with pytest.raises(UnreachableSource, match=r"/1: no frame (received within|for) 0\.5 s$"):
                taken(Live(source, timeout=0.5), 1)
            assert time.monotonic() - began < 3
    port = servers.free_port(servers.socket.SOCK_DGRAM)
    with pytest.raises(UnreachableSource, match=rf"^udp://127.0.0.1:{port}: no frame (received within|for) 0\.5 s$"):
        taken(Live(f"udp://127.0.0.1:{port}", timeout=0.5), 1)


def test_a_source_that_cannot_be_opened_says_why(tmp_path, chunks):
    port = servers.free_port()
    sound = clips.write_audio(tmp_path / "sound.mp4").read_bytes()
    with (
        servers.http(Feed(chunks), credentials="me:geheim") as locked,
        servers.download(b"<html>not here</html>" * 500) as text,
        servers.download(sound) as music,
    ):
        for source, told in (
            (f"rtsp://me:geheim@127.0.0.1:{port}/1", "connection refused: nothing listens there"),
            (f"rtmp://127.0.0.1:{port}/live/1", "connection refused: nothing listens there"),
            (f"http://127.0.0.1:{port}/1", "connection refused: nothing listens there"),
            ("http://me:geheim@nowhere.invalid/1", "there is no host 'nowhere.invalid', or no network"),
            (f"http://me:falsch@127.0.0.1:{locked.port}/1", "access denied: the user name or the password is missing"),
            (f"http://127.0.0.1:{text.port}/1", "what it sends is not a known video format"),
            (f"http://127.0.0.1:{music.port}/1", "no video stream found (streams: audio)"),
            ("gopherr://host/1", "unknown kind of address; rtsp://, rtmp://, http://, https:// and udp:// are known"),
            ("/dev/video97", "there is no such camera"),
        ):
            with pytest.raises((UnreachableSource, UnreadableVideo)) as raised:
                taken(Live(source, timeout=5), 1)
            told_about = re.sub(r":(geheim|falsch)@", ":***@", source)
            assert str(raised.value).startswith(f"{told_about}: {told}")
            # Nor does the password stand in what a traceback would show.
            assert raised.value.__cause__ is None
            assert raised.value.__suppress_context__ or raised.value.__context__ is None


def test_impossible_settings_are_refused():
    for settings, told in (
        ({"fps": 0}, "fps is 0: more than 0 frames a second are needed"),
        ({"fps": float("nan")}, "fps is nan: more than 0 frames a second are needed"),
        ({"timeout": 0}, "timeout is 0: more than 0 seconds are needed"),
        ({"retries": -1}, "retries is -1: 0 (give up at once) or more are possible"),
    ):
        with pytest.raises(BadSetting, match=f"^{re.escape(told)}$"):
            Live("clip.mp4", **settings)


def test_a_stream_may_change_its_size(chunks):
    larger = transport_stream(60, first=20, width=128, height=96)
    with servers.http(Feed([*chunks[:20], *larger], HASTE)) as server:
        frames = taken(Live(f"{LOOPBACK}:{server.port}/1", fps=5), 16)
    sizes = [frame.pixels().shape[:2] for frame in frames]
    assert (sizes[0], sizes[-1]) == ((64, 96), (96, 128))
    assert numbers(frames) == sorted(numbers(frames))


def test_a_stream_that_changes_its_codec_is_reconnected(notes, monkeypatch):
    monkeypatch.setattr("picknet.video.connection.MAX_DAMAGED_PACKETS", 15)
    before, after = transport_stream(40, fps=30, codec="libx264"), transport_stream(200, fps=30, first=40)
    with servers.http(Feed([*before, *after], 2 * HASTE)) as server:
        live = Live(f"{LOOPBACK}:{server.port}/1", fps=5, note=notes.append)
        frames = []
        for frame in live:
            frames.append(frame)
            if live.num_reconnects:
                break
    assert numbers(frames)[-1] > 40
    assert [re.sub(r".*/1: | in .*| after .*", "", note) for note in notes] == [
        "lost (its data can no longer be decoded); trying again",
        "back",
    ]


def test_damaged_data_in_a_stream_are_skipped(chunks):
    with servers.http(Feed([*chunks[:22], bytes(range(256)) * 20, *chunks[25:]], HASTE)) as server:
        live = Live(f"{LOOPBACK}:{server.port}/1", fps=5)
        frames = taken(live, 20)
    assert numbers(frames)[-1] > 30
    assert re.fullmatch(r"some of its data cannot be decoded, the first after [12]\.\d s", live.damage)


def test_seconds_increase_when_timestamps_are_set_back(chunks):
    with servers.http(Feed([*chunks[:20], *chunks[:60]], HASTE)) as server:
        frames = taken(Live(f"{LOOPBACK}:{server.port}/1", fps=5), 15)
    seconds = [frame.seconds for frame in frames]
    assert 18 in numbers(frames)
    assert numbers(frames)[-1] < 18
    assert np.diff(seconds) == pytest.approx([0.2] * 14, abs=0.15)


# --- Captions of streams ---------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def captioner(model_folder):
    from picknet.captioner import load

    return load(model_folder)


def test_an_update_has_the_lag_and_the_damage(captioner, chunks):
    with servers.http(Feed([*chunks[:15], b"\x00garbage" * 500, *chunks[20:]], HASTE)) as server:
        source = f"{LOOPBACK}:{server.port}/1"
        updates = list(itertools.islice(captioner.stream(source, fps=5, picker=AllPicker()), 16))
    assert all(0 < update.lag < 2 for update in updates)
    assert updates[-1].damage.startswith("some of its data cannot be decoded")
    assert [update.frames_seen for update in updates] == list(range(1, 17))


def test_an_open_video_is_captioned_as_a_stream(captioner, tmp_path):
    path = clips.write_clip(tmp_path / "clip.mp4")
    with Video(path) as video:
        assert list(captioner.stream(video, fps=5)) == list(captioner.stream(path, fps=5))


def test_the_memory_is_reset_with_each_scene_and_the_picker_goes_on(captioner):
    tiles = np.random.default_rng(0).integers(0, 256, (8, 3, 4, 3), dtype=np.uint8)
    pictures = tiles.repeat(20, axis=1).repeat(20, axis=2)
    first, second = (
        [update.text for update in captioner.stream(part, picker=AllPicker(), new_scene=lambda frame: False)]
        for part in (pictures[:5], pictures[5:])
    )
    asked = []

    def rule(frame):
        asked.append(frame.index)
        return frame.index == 5

    updates = list(captioner.stream(pictures, picker=AllPicker(), new_scene=rule))
    assert [update.text for update in updates] == first + second
    assert [update.scene for update in updates] == [0, 0, 0, 0, 0, 1, 1, 1]
    assert asked == list(range(8))  # about every frame, picked or not

    # The picker goes on through all scenes: one that takes frames 2, 6 and so on, one that takes only the first frame.
    for picker, expected in ((EveryNthPicker(4), [2, 6]), (first_only(), [0])):
        picks = [update.pick.index for update in captioner.stream(pictures, picker=picker, new_scene=rule)]
        assert picks == expected


def first_only():
    return PickNetPicker(lambda inputs: {"logits": np.array([[0.0, -9.0]])})


def test_the_picker_walks_once_through_all_scenes(captioner):
    walks = []

    class Watched:
        def pick(self, frames):
            walks.append(0)
            for frame in frames:
                walks[-1] += 1
                yield frame, Pick(frame.index, frame.seconds)

    pictures = [clips.picture(number) for number in (1, 1, 200, 200, 3, 3)]
    updates = list(captioner.stream(pictures, picker=Watched(), new_scene=lambda frame: frame.index in (2, 4)))
    assert walks == [6]
    assert [update.scene for update in updates] == [0, 0, 1, 1, 2, 2]
    # The picks of an update are those of its scene.
    assert [len(update.picks) for update in updates] == [1, 2, 1, 2, 1, 2]


def test_the_policy_remembers_the_scenes_before(attending_folder):
    from picknet.captioner import load

    captioner, pictures = load(attending_folder), tiles(12)
    updates = list(captioner.stream(pictures, new_scene=lambda frame: frame.index % 4 == 0))
    found = [update.pick.index for update in updates]
    frames = [Frame.from_pixels(picture, index=i, seconds=i) for i, picture in enumerate(pictures)]
    assert found == [pick.index for _, pick in captioner.picker_at(spread=False).pick(frames)]
    assert updates[-1].scene > 0


def test_a_scene_without_a_pick_is_not_described(captioner):
    pictures = [clips.picture(number) for number in (1, 1, 1, 200, 200, 200, 200)]
    updates = captioner.stream(pictures, picker=EveryNthPicker(8), new_scene=lambda frame: frame.index == 3)
    # Frame 4 is the middle of eight; it is of the second scene, the first that is described.
    assert [(update.pick.index, update.scene, update.frames_seen) for update in updates] == [(4, 0, 5)]


def tiles(count):
    """Pictures that have nothing in common: (count, 48, 64, 3), below 200"""
    colours = np.random.default_rng(0).integers(0, 200, (count, 6, 8, 3), dtype=np.uint8)
    return colours.repeat(8, axis=1).repeat(8, axis=2)


def test_by_default_a_new_scene_is_detected_at_its_second_frame(captioner):
    first, second = tiles(2)
    pictures = [first] * 5 + [second] + [first] * 3 + [second] * 4
    updates = list(captioner.stream(pictures, picker=AllPicker()))
    assert [update.scene for update in updates] == [0] * 10 + [1] * 3  # a single strange frame is no scene
    (alone,) = captioner.stream([second], picker=AllPicker())
    assert updates[10].text == alone.text


def test_the_length_of_a_scene_is_limited(captioner):
    limit = captioner.config.video.num_frames
    pictures = (clips.picture(0) for _ in range(2 * limit + 1))
    scenes = [update.scene for update in captioner.stream(pictures, picker=AllPicker())]
    assert scenes == [0] * limit + [1] * limit + [2]


def resident_megabytes():
    return int(re.search(r"VmRSS:\s+(\d+) kB", Path("/proc/self/status").read_text())[1]) / 1024


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="reads the memory in use as Linux tells it")
def test_a_day_of_a_camera_takes_no_more_memory_than_its_first_hour(captioner):
    # A frame every ten seconds, a new view every 60 frames, noise in each frame.
    views = tiles(7)
    noise = np.random.default_rng(0).integers(0, 20, (16, 48, 64, 3), dtype=np.uint8)
    day = 24 * 360
    frames = (views[number // 60 % 7] + noise[number % 16] for number in range(day))
    picker = PickNetPicker(captioner.runtime.policy, threshold=1.0, max_gap=30)  # the policy decides on each frame
    hours = []
    for update in captioner.stream(frames, picker=picker, fps=0.1, beam=1):
        if update.seconds >= 3600 * (len(hours) + 1):
            hours.append(resident_megabytes())
    # Frames 0, 30, 60 and so on are picked, the last one 30 frames before the end; a scene begins a frame after its
    # view.
    num_views = day // 60
    assert (update.frames_seen, update.total_picks, update.scene) == (day - 29, 2 * num_views, num_views - 1)
    assert len(hours) == 23
    assert max(hours) - hours[0] < 10


# --- The command -----------------------------------------------------------------------------------------------------


def picknet_stream(*arguments, **options):
    command = [sys.executable, "-m", "picknet", "stream", *map(str, arguments)]
    return subprocess.Popen(command, **{"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True} | options)


def test_the_command_prints_an_object_for_each_pick(model_folder, chunks):
    arguments = ("--format", "jsonl", "--fps", 5, "--model", model_folder)
    process = picknet_stream("-", *arguments, stdin=subprocess.PIPE, text=False)
    out, err = process.communicate(b"".join(chunks), timeout=60)
    updates = [json.loads(line) for line in out.splitlines()]
    assert process.returncode == 0
    keys = ["video", "seconds", "caption", "changed", "confidence", "not_sure", "num_picks", "picks", "total_picks"]
    keys += ["frames_seen", "scene", "lag", "model", "damage"]
    assert [list(update) for update in updates] == [keys] * len(updates)
    assert [update["total_picks"] for update in updates] == list(range(1, len(updates) + 1))
    assert updates[0]["changed"]
    assert re.fullmatch(
        rf"picknet: standard input: 60 frames until 0:00:11, {len(updates)} picks?, \d+ captions?\n", err.decode()
    )


def test_the_command_does_not_print_a_password(model_folder, chunks):
    with servers.http(Feed(chunks[:20]), credentials="me:geheim") as server:
        source = f"http://me:geheim@127.0.0.1:{server.port}/1"
        arguments = ("--fps", 5, "--model", model_folder, "--retries", 0, "--timeout", 10)
        process = picknet_stream(source, *arguments)
        out, err = process.communicate(timeout=60)
    assert process.returncode == 1
    assert out.startswith("0:00:00  ")
    summary, error = err.splitlines()
    name = re.escape(f"picknet: http://me:***@127.0.0.1:{server.port}/1: ")
    assert re.fullmatch(
        rf"{name}\d+ frames until 0:00:01, \d+ picks?, \d+ captions?, \d+ dropped, lag at most \d\.\d s", summary
    )
    assert re.fullmatch(rf"{name}lost after 1\.\d s \(.*\)", error)


@pytest.mark.parametrize(
    ("ending", "code", "last"), [(signal.SIGINT, 130, ["picknet: interrupted"]), (signal.SIGTERM, 143, [])]
)
def test_a_stream_that_is_interrupted_prints_a_summary(ending, code, last, model_folder, chunks):
    with servers.http(Feed(chunks)) as server:
        process = picknet_stream(f"{LOOPBACK}:{server.port}/1", "--fps", 5, "--model", model_folder, "--only-changes")
        assert process.stdout.readline().startswith("0:00:0")
        process.send_signal(ending)
        _, err = process.communicate(timeout=30)
    assert process.returncode == code
    lines = err.splitlines()
    assert re.search(r"/1: \d+ frames? until 0:00:\d\d, \d+ picks?, \d+ captions?, \d+ dropped, lag at most", lines[0])
    assert lines[1:] == last


@pytest.mark.skipif(sys.platform == "win32", reason="needs a pseudo-terminal")
def test_on_a_terminal_one_line_is_overwritten(model_folder, tmp_path):
    import pty

    ours, theirs = pty.openpty()
    clip = clips.write_clip(tmp_path / "clip.mp4", num_frames=100)
    wide = os.environ | {"COLUMNS": "120"}
    process = picknet_stream(clip, "--fps", 5, "--model", model_folder, stdout=theirs, env=wide)
    os.close(theirs)
    shown = b""
    with contextlib.suppress(OSError):  # the end of a pseudo-terminal is an error
        while block := os.read(ours, 4096):
            shown += block
    process.communicate(timeout=30)
    os.close(ours)
    first, *rest = shown.decode().split("\r\x1b[2K")
    assert first == ""
    assert re.match(r"0:00:00  .*  \(1 pick of 1 frame\)", rest[0])
    assert shown.count(b"\n") == 1
    assert shown.endswith(b"\n")
