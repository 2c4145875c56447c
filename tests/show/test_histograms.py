"""The histograms of picks."""

import numpy as np
import pytest
from PIL import ImageColor

from picknet.errors import PicknetError
from picknet.show.histograms import pick_histograms
from picknet.show.page import GREEN


def test_bars_are_as_high_as_their_shares() -> None:
    # 4 of 8 clips have one pick, 2 have two, 2 have three: 50, 25, 25 %. All picks stand in the first frame.
    image = pick_histograms([1, 1, 1, 1, 2, 2, 3, 3], [0] * 14, num_frames=30)
    heights = (np.asarray(image) == ImageColor.getrgb(GREEN)).all(axis=2).sum(axis=0)
    left, right = heights[:800], heights[800:]
    bars = [int(bar.max()) for bar in np.split(left, np.flatnonzero(left == 0)) if bar.any()]
    assert bars == pytest.approx([310 / 5 * 5, 310 / 5 * 2.5, 310 / 5 * 2.5], abs=3)  # 310 pixels for 0…50 %
    assert int(right.max()) == pytest.approx(310, abs=3)
    assert np.count_nonzero(right) < (1600 - 800) / 30


def test_positions_may_be_places_or_fractions_of_the_clip() -> None:
    places = pick_histograms([3], [0, 15, 29], num_frames=30)
    fractions = pick_histograms([3], [0.0, 0.5, 1.0], num_frames=30)
    assert places.tobytes() == fractions.tobytes()


def test_histograms_need_a_clip() -> None:
    with pytest.raises(PicknetError, match="at least one"):
        pick_histograms([], [], num_frames=30)
