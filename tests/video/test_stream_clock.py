"""The time of a stream, from timestamps that cannot be trusted."""

import pytest

from picknet.video.stream_clock import StreamClock


def clock(*, live):
    clock = StreamClock()
    clock.connect(step=0.1, live=live)
    return clock


def test_seconds_count_from_the_first_timestamp():
    times = clock(live=False)
    assert [times.seconds(stamp, 0.0) for stamp in (100.0, 100.1, 100.5)] == pytest.approx([0.0, 0.1, 0.5])


def test_without_timestamps_frames_of_a_waiting_source_are_counted_and_live_ones_timed():
    counted, timed = clock(live=False), clock(live=True)
    assert [counted.seconds(None, arrived) for arrived in (5.0, 5.7, 9.0)] == pytest.approx([0.0, 0.1, 0.2])
    assert [timed.seconds(None, arrived) for arrived in (5.0, 5.7, 9.0)] == pytest.approx([0.0, 0.7, 4.0])


def test_timestamps_that_leap_are_ignored():
    times = clock(live=True)
    # Back by a minute, ahead by an hour, each a tenth of a second after the last; then regular again.
    stamps = (60.0, 60.1, 0.0, 0.1, 3600.0, 3600.1)
    seconds = [times.seconds(stamp, number / 10) for number, stamp in enumerate(stamps)]
    assert seconds == pytest.approx([0.0, 0.1, 0.2, 0.3, 0.4, 0.5])
    # Slightly back, as from a careless muxer: seconds still increase.
    assert [times.seconds(stamp, 0.7) for stamp in (3600.05, 3600.3)] == pytest.approx([0.6, 0.7])


def test_time_passes_while_a_live_source_is_lost():
    times = clock(live=True)
    assert [times.seconds(stamp, stamp) for stamp in (1.0, 2.0)] == [0.0, 1.0]
    times.connect(step=0.1, live=True)
    assert [times.seconds(stamp, arrived) for stamp, arrived in ((500.0, 12.0), (500.5, 12.5))] == [11.0, 11.5]
