"""Looking at a long video here and there."""

from pathlib import Path

import clips
import pytest

from picknet.video.file import Video
from picknet.video.frame import middles
from picknet.video.packets import Timetable
from picknet.video.passes import Pass
from picknet.video.sparse import MOST_CLOSELY, cheap_middles, sparse_positions

FPS = 10


def looks(*, seconds: int, group: int, busy: range = range(0), busy_bytes: int = 500) -> list[int]:
    """Seconds that are looked at of a video with a keyframe every `group` seconds, larger packets in some of them."""
    table = Timetable()
    for number in range(seconds * FPS):
        num_bytes = busy_bytes if number // FPS in busy else 100
        is_key = number % (group * FPS) == 0
        table.add(shown=number, decoded=number, is_key=is_key, is_hidden=False, num_bytes=num_bytes)
    times = table.times()
    assert times is not None
    return [position // FPS for position in sparse_positions(table, times, fps=1.0, unit=1 / FPS)]


def test_of_a_long_video_keyframes_near_the_middles_are_enough() -> None:
    times, keys = range(2 * 1200 * FPS), list(range(0, 2 * 1200 * FPS, 70))
    exact = middles(len(times), 10)
    found = cheap_middles(times, keys, count=10, unit=1 / FPS)
    assert found == [position - position % 70 for position in exact]
    few = [0, exact[3] - 300, exact[3] - 299, exact[4] - 301]  # an eighth of a part are 300 frames
    assert cheap_middles(times, few, count=10, unit=1 / FPS) == [*exact[:3], exact[3] - 299, *exact[4:]]


def test_of_a_short_video_the_middles_are_taken() -> None:
    times = range(1200 * FPS)
    assert cheap_middles(times, list(times), count=7, unit=1 / FPS) == middles(len(times), 7)
    assert cheap_middles(times, list(range(0, len(times), 3)), count=7, unit=1 / FPS) == middles(len(times), 7)
    assert cheap_middles(range(0), [], count=7, unit=1 / FPS) == []


def test_of_a_quiet_video_keyframes_are_enough() -> None:
    assert looks(seconds=600, group=10) == list(range(0, 600, 10))


def test_keyframes_closer_than_the_rate_are_not_all_looked_at() -> None:
    table = Timetable()
    for number in range(100):
        table.add(shown=number, decoded=number, is_key=number % 5 == 0, is_hidden=False, num_bytes=9)
    times = table.times()
    assert times is not None
    assert sparse_positions(table, times, fps=1.0, unit=1 / FPS) == list(range(0, 100, 10))


def test_a_group_with_large_packets_is_looked_at_second_by_second() -> None:
    found = looks(seconds=600, group=10, busy=range(313, 317))
    assert set(range(310, 317)) <= set(found)
    assert len(found) < 60 + 10


def test_a_lively_video_has_nothing_unusual() -> None:
    assert looks(seconds=600, group=10, busy=range(600)) == list(range(0, 600, 10))


def test_only_the_busiest_groups_are_looked_at_closely() -> None:
    found = looks(seconds=600, group=10, busy=range(0, 600, 10))
    assert 60 < len(found) < 60 + MOST_CLOSELY * 600 + 10


def test_long_groups_are_looked_at_second_by_second() -> None:
    assert looks(seconds=120, group=30) == list(range(120))


@pytest.mark.parametrize("name", ["clip.mp4", "clip.mkv"])
def test_the_frames_are_right_and_few_are_decoded(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = "keyint=30:min-keyint=30:scenecut=0:bframes=2"
    path = clips.write_clip(tmp_path / name, num_frames=240, fps=10, options={"x264-params": params})
    with Video(path) as video:
        monkeypatch.setattr(Pass, "timed_pictures", lambda *_: pytest.fail("all of it is decoded"))
        frames = list(video.sample_sparsely())
    shown = [clips.number_of(frame.pixels()) for frame in frames]
    assert set(range(0, 240, 30)) <= set(shown)
    assert shown == [frame.number for frame in frames]
    assert [frame.index for frame in frames] == list(range(len(frames)))
    assert len(frames) <= 8 + 3


def test_a_video_without_timestamps_is_sampled_by_time(tmp_path: Path) -> None:
    path = clips.write_clip(tmp_path / "raw.h264", num_frames=60)
    with Video(path) as video:
        assert [clips.number_of(frame.pixels()) for frame in video.sample_sparsely()] == [0, 25, 50]
