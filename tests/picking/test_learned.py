"""RatePicker and CountedPicker: positions worked out by hand for policies that are written by hand."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from picknet.config import ModelConfig
from picknet.model.graphs import signatures
from picknet.picking.learned import (
    BRIGHT,
    CODE_SIZE,
    DARK,
    FIRST_CHARGE,
    GAIN,
    LEAK,
    LEAST_RATE,
    LEAST_WAIT,
    LONG_PATIENCE,
    MOST_RATE,
    NUM_PICKED,
    NUM_RECENT,
    OUTLINE_SIZE,
    PATIENCE,
    RULED_OUT,
    SPREAD,
    STATE_SIZE,
    CountedPicker,
    PickNetPicker,
    RatePicker,
    Watched,
    learned_picker,
)
from picknet.picking.picker import BadPicker, looks_ahead, planned
from picknet.picking.plain import UniformPicker
from picknet.video.frame import GLANCE_SIZE, Frame

RULED_OUT_LOGIT = -10.0


def frames_of(values):
    """Frames of a pattern that shows something; the first pixel has the value."""
    for index, value in enumerate(values):
        pixels = np.full((GLANCE_SIZE, GLANCE_SIZE, 3), 100, np.uint8)
        pixels[::2] = 140
        pixels[0, 0] = value
        yield Frame.from_pixels(pixels, index=index, seconds=index / 2)


def dim_frames(low, high, count):
    """Frames that show something, all dark or all bright."""
    pixels = np.full((GLANCE_SIZE, GLANCE_SIZE, 3), low, np.uint8)
    pixels[::2] = high
    pixels[0, 0] = 100  # the stub's rate
    return [Frame.from_pixels(pixels, index=index, seconds=index / 2) for index in range(count)]


def plain_frames(values):
    """Frames of one grey value each."""
    for index, value in enumerate(values):
        pixels = np.full((GLANCE_SIZE, GLANCE_SIZE, 3), value, np.uint8)
        yield Frame.from_pixels(pixels, index=index, seconds=index / 2)


class Stub:
    """A policy whose rate is a hundredth of the frame's value: 22 charges by 0.22. A frame of value 0 is ruled out,
    as are values below 8, whose logit is below −3.

    Every value of a frame's embedding is the frame's value, and the state counts the frames.
    """

    def __init__(self):
        self.asked = []

    def __call__(self, inputs):
        self.asked.append(dict(inputs))
        grey = float(inputs["glances"][0, 0, 0])
        # The logit of p = 1 − 2^−rate.
        logit = math.log(2 ** (grey / 100) - 1) if grey else RULED_OUT_LOGIT
        return {
            "logits": np.array([logit], np.float32),
            "embeddings": np.full((1, OUTLINE_SIZE + CODE_SIZE), grey, np.float32),
            "next_state": inputs["state"] + 1,
        }


def picks(values, **settings):
    return [pick.index for _, pick in RatePicker(Stub(), **settings).pick(frames_of(values))]


def charged(rate, num_frames, wait=3):
    """The picks of a constant rate, with a gain, and a leak after the first."""
    charge, found = 0.5, []
    for t in range(num_frames):
        if found:
            charge = 0.5 + 0.5 * (charge - 0.5)
        charge += 3 * rate
        if charge >= 1 and t - (found or [-1])[-1] >= wait:
            found.append(t)
            charge = min(charge - 1, 0.5)
    return found


def test_a_constant_probability_gives_a_stride():
    assert (FIRST_CHARGE, LEAST_WAIT, LEAK, GAIN) == (0.5, 3, 0.5, 3)
    # 0.5 + 0.3 n is above 1 with frame 1, but that is too soon; frame 2 leaves 0.4. From there on half of the distance
    # to 0.5 is lost with every frame: 0.75, 0.925, 1.0125 with frame 5, and 0.556, 0.828, 0.964, 1.032 with frame 9, …
    assert picks([10] * 24) == charged(0.1, 24)
    assert picks([10] * 10) == [2, 5, 9]
    # p = ½ is a rate of 1: always full, so every third frame is picked.
    assert picks([100] * 7) == [2, 5]


def test_the_dial_multiplies_the_rate_and_divides_the_least_wait():
    assert picks([20] * 24, rate=0.5) == charged(0.1, 24, wait=6)
    assert picks([10] * 24, rate=0.5) == charged(0.05, 24, wait=6) == [5]
    assert picks([50] * 24, rate=2) == charged(1, 24, wait=1.5) == [*range(1, 24, 2)]
    assert picks([50] * 24, rate=4) == [*range(24)]


def test_what_hardly_charges_is_looked_at_once_and_then_leaks_away():
    # Before the first pick nothing leaks: 0.5 + 3 · 0.24 is above 1. Then the charge tends to 0.5 + 0.24 / 0.5 = 0.98,
    # and is never full again.
    assert picks([8] * 500) == [2]
    # 0.5 + 0.27 / 0.5 = 1.04: just enough.
    assert len(picks([9] * 500)) > 20


def test_no_more_than_the_first_charge_is_left_after_a_pick():
    # Frames 0 and 1 charge by 7.5 each. With all that left, frame 5 would follow; with 0.5, the charge is 0.77, 0.905,
    # 0.9725 and 1.00625 with frames 3 to 6.
    assert picks([250, 250, 22, *[9] * 9])[:2] == [2, 6]


def test_a_frame_that_fills_the_charge_is_picked_at_once():
    assert picks([3, 3, 3, 3, 70, 3, 3]) == [4]


def test_spread_picks_follow_the_average_of_the_rate():
    # By hand for the first frames: the mean of a rate of 0.24 is 0.02 after one frame, 0.02 + 0.22 / 12 after two, …
    assert (SPREAD, LEAST_RATE, MOST_RATE) == (12, 0.03, 0.5)
    mean, charge, expected = 0.0, 0.5, []
    for t in range(30):
        mean += (0.24 - mean) / 12
        charge += mean + 0.03
        if charge >= 1:
            expected.append(t)
            charge -= 1
    assert mean > 0.22
    assert expected[0] == 5  # 0.5 + 6 · 0.03 + 0.02 + 0.0383 + 0.0551 + 0.0705 + 0.0847 + 0.0976 = 1.0462
    assert picks([24] * 30, spread=True) == expected


def test_a_single_frame_counts_little_among_spread_picks():
    # A rate of 2.5 counts as 0.5, and adds a twelfth of it to the mean.
    assert picks([250] * 30, spread=True) == picks([50] * 30, spread=True)
    assert picks([9, 250, *[9] * 28], spread=True) == picks([9, 50, *[9] * 28], spread=True)


def test_a_still_clip_is_picked_twice():
    # 0.5 + 0.03 a frame is above 1 with frame 16. Black frames are ruled out, but not for ever.
    assert picks([0] * 30, spread=True) == [16 + PATIENCE]
    assert len(picks([8] * 24 + [0] * 6, spread=True)) == 2


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([30, 30, 0, 30, 30, 30], [3]),  # full with frame 1, but too soon; frame 2 is black
        ([30, 30, 0, 0, 30, 30], [4]),
        ([30, 30, 0, 0, 0, 0, 0, 0], [6]),  # after PATIENCE frames the picker takes what there is
        ([0] * 30, [0]),  # a black video never charges: its likeliest frame, here the first of equals
    ],
)
def test_a_frame_that_is_ruled_out_is_passed_over_for_a_while(values, expected):
    assert PATIENCE == 4
    assert RULED_OUT_LOGIT < RULED_OUT
    assert picks(values) == expected


def test_a_frame_that_shows_nothing_is_never_picked_while_there_is_another():
    frames = [*plain_frames([128] * 40), *frames_of([22] * 3)]
    picked = [place for place, frame in enumerate(frames) for one, _ in RatePicker(Stub()).pick(frames) if one is frame]
    assert picked == [40]  # full long before, with frame 0
    ((_, pick),) = RatePicker(Stub()).pick(plain_frames([128, 30]))
    assert pick.index == 0


@pytest.mark.parametrize(("low", "high"), [(0, 30), (220, 255)])
def test_a_dark_or_bright_frame_is_passed_over_for_a_while(low, high):
    dim = dim_frames(low, high, 12)
    assert not DARK <= dim[0].glance().mean() <= BRIGHT
    assert [pick.index for _, pick in RatePicker(Stub()).pick(dim)] == [2 + LONG_PATIENCE]


def test_a_black_frame_hardly_charges():
    # 3 log₂(1 + e^−10) = 0.0002 for each of the black ones; after them 0.24 a frame: above 1 with frame 102.
    assert picks([0] * 100 + [8] * 6) == [102]


def test_a_video_that_ends_without_a_pick_gets_its_likeliest_frame():
    assert picks([5, 9, 2]) == [1]
    assert picks([2, 6, 6]) == [1]
    assert picks([100]) == [0]  # full, but too soon
    assert picks([9, 70, 30, 9, 9]) == [2]  # with a pick, no other
    assert picks([]) == []


def test_the_probability_is_the_policys_at_any_rate():
    for settings in ({"rate": 1}, {"rate": 0.5}, {"rate": 4, "spread": True}):
        (_, pick), *_ = RatePicker(Stub(), **settings).pick(frames_of([100] * 9))
        assert pick.probability == pytest.approx(0.5, abs=1e-6)
    ((_, pick),) = RatePicker(Stub(), rate=0.25).pick(frames_of([40, 10]))  # picked for want of a better one
    assert (pick.index, pick.probability) == (0, pytest.approx(1 - 2**-0.4, abs=1e-6))


@pytest.mark.parametrize("picker", ["rate", "difference"])
def test_every_glance_is_told_with_its_probability_and_before_the_pick(picker):
    def policy(inputs):
        shape = (1, 2) if picker == "difference" else (1,)
        return {**Stub()(inputs | {"state": 0}), "logits": np.zeros(shape, np.float32)}

    told = []
    found = learned_picker(
        policy, ModelConfig(picker=picker), rate=4, on_glance=lambda frame, p: told.append((frame.index, p))
    )
    for _, pick in found.pick(frames_of([100] * 9)):
        assert told[-1] == (pick.index, pick.probability)
    assert [index for index, _ in told] == list(range(9))
    assert {p for _, p in told[1:]} == {0.5}


def test_a_certain_frame_does_not_overflow():
    def policy(inputs):
        return Stub()(inputs) | {"logits": np.array([1e4], np.float32)}

    found = [pick for _, pick in RatePicker(policy).pick(frames_of([9] * 4))]
    assert [(pick.index, pick.probability) for pick in found] == [(2, 1.0)]


def test_the_policy_is_told_of_the_last_frames_and_the_last_picks_newest_first():
    policy = Stub()
    values = [100, 101, 102, 103, 104, 105]
    assert [pick.index for _, pick in RatePicker(policy).pick(frames_of(values))] == [2, 5]
    for t, inputs in enumerate(policy.asked):
        assert inputs["glances"][0, 0, 0] == values[t]
        assert inputs["previous"][0, 0, 0] == values[max(t - 1, 0)]
        assert (inputs["state"] == t).all()
        assert inputs["recent"][0, :, 0].tolist() == ([*values[:t][::-1], 0, 0, 0, 0])[:NUM_RECENT]
    # Frames since the last pick or the start, and whether there is a pick.
    assert [inputs["clock"][0].tolist() for inputs in policy.asked] == [[1, 0], [2, 0], [3, 0], [1, 1], [2, 1], [3, 1]]
    assert policy.asked[5]["picked"][0, :3, 7].tolist() == [102, 0, 0]
    assert not policy.asked[1]["picked"].any()


def test_the_memory_of_a_long_video_is_bounded():
    policy = Stub()
    assert len(list(RatePicker(policy).pick(frames_of([100] * 80)))) == 26 > NUM_PICKED
    size = OUTLINE_SIZE + CODE_SIZE
    sizes = {
        "glances": (1, GLANCE_SIZE, GLANCE_SIZE),
        "previous": (1, GLANCE_SIZE, GLANCE_SIZE),
        "state": (1, STATE_SIZE),
        "recent": (1, NUM_RECENT, size),
        "picked": (1, NUM_PICKED, size),
        "clock": (1, 2),
    }
    for inputs in policy.asked:
        assert {name: array.shape for name, array in inputs.items()} == sizes
        assert inputs["glances"].dtype == inputs["previous"].dtype == np.uint8


def test_a_picker_may_be_used_for_one_video_after_the_other():
    picker = RatePicker(Stub())
    first, second = ([pick.index for _, pick in picker.pick(frames_of([22] * 24))] for _ in range(2))
    assert first == second


def test_a_picker_that_looks_has_no_plan_and_does_not_look_ahead():
    assert planned(RatePicker(Stub()), 30) is None
    assert not looks_ahead(RatePicker(Stub()))


@pytest.mark.parametrize("rate", [0.0, -1.0, math.inf, math.nan])
@pytest.mark.parametrize("kind", [RatePicker, PickNetPicker])
def test_impossible_rates_are_refused(kind, rate):
    possible = "more than 0 is possible; 1 is the model's own, 2 picks more, 0.5 fewer"
    with pytest.raises(BadPicker, match=rf"^rate is {rate}: {possible}$"):
        kind(Stub(), rate=rate)


def test_a_model_has_the_picker_it_was_trained_with():
    assert isinstance(learned_picker(Stub(), ModelConfig(picker="rate")), RatePicker)
    assert isinstance(learned_picker(Stub(), ModelConfig()), PickNetPicker)
    turned = learned_picker(Stub(), ModelConfig(picker="rate"), rate=2)
    assert [pick.index for _, pick in turned.pick(frames_of([11] * 24))] == [4, 10, 15, 19, 23]


def test_the_sizes_of_the_graph_are_those_of_the_picker():
    inputs, outputs = signatures(attention=False, picker="rate", glance="grey")["policy"]
    size = OUTLINE_SIZE + CODE_SIZE
    assert inputs["state"] == f"f32 n {STATE_SIZE}" == outputs["next_state"]
    assert inputs["recent"] == f"f32 n {NUM_RECENT} {size}"
    assert inputs["picked"] == f"f32 n {NUM_PICKED} {size}"
    assert outputs["embeddings"] == f"f32 n {size}"


# --- Exactly k ---


class Charged(RatePicker):
    """A learned picker whose charges are given. The frames with a probability of 0 are ruled out."""

    def __init__(self, charges, ruled_out=()):
        super().__init__(lambda inputs: pytest.fail("no policy here"), spread=True)
        self.charges, self.ruled_out = charges, ruled_out

    def watch(self, frames):
        for place, (frame, charge) in enumerate(zip(frames, self.charges, strict=True)):
            yield Watched(frame, 0.0 if place in self.ruled_out else 0.5, charge, is_pick=False)


def counted(charges, k, ruled_out=(), frames=None):
    picker = CountedPicker(Charged(charges, ruled_out), k)
    return [pick.index for _, pick in picker.pick(frames or frames_of([100] * len(charges)))]


@pytest.mark.parametrize("k", [2, 4, 7, 9, 31])
def test_equal_charges_give_the_middles_of_equal_parts(k):
    assert counted([0.2] * 31, k) == [pick.index for _, pick in UniformPicker(k).pick(frames_of([100] * 31))]


def test_a_lively_stretch_gets_more_of_k_picks():
    # Ten frames of 1, ten of 4, ten of 1: a sum of 60. The middles of four parts are 7.5, which frame 7 passes,
    # 22.5 = 10 + 12.5 (frame 13), 37.5 = 10 + 27.5 (frame 16), and 52.5 = 50 + 2.5 (frame 22).
    assert counted([1] * 10 + [4] * 10 + [1] * 10, 4) == [7, 13, 16, 22]


def test_k_picks_follow_the_average_of_the_rate():
    values = [8] * 10 + [60] * 10 + [8] * 10
    mean, charges = 0.0, []
    for value in values:
        mean += (min(value / 100, 0.5) - mean) / 12
        charges.append(mean + 0.03)
    sums = np.cumsum(charges)
    expected = [int((sums <= part * sums[-1]).sum()) for part in (0.1, 0.3, 0.5, 0.7, 0.9)]
    picker = CountedPicker(RatePicker(Stub(), spread=True), 5)
    assert [pick.index for _, pick in picker.pick(frames_of(values))] == expected
    assert min(np.diff(expected)) < 4 < max(np.diff(expected))


@pytest.mark.parametrize(
    ("ruled_out", "expected"),
    [
        ([], [2, 8]),  # 2.75 and 8.25 of 11
        ([2], [1, 8]),  # frame 3 is as near as frame 1
        ([1, 2], [3, 8]),
        ([1, 2, 8], [3, 7]),
        (range(5), [5, 8]),
        (range(6), [2, 8]),  # frame 6 is too far: after PATIENCE frames such a frame is picked after all
        (range(11), [2, 8]),
        ([0, 1, 2, 3, 4, 6, 7, 8, 9, 10], [5, 8]),  # frame 5 is not picked twice
    ],
)
def test_of_k_picks_one_that_is_ruled_out_gives_way_to_the_nearest_other(ruled_out, expected):
    assert PATIENCE == 4
    assert counted([1] * 11, 2, ruled_out) == expected


@pytest.mark.parametrize(("low", "high"), [(0, 30), (220, 255)])
@pytest.mark.parametrize(("first", "expected"), [(4, 3), (2, 10)])
def test_of_k_picks_a_dark_or_bright_one_goes_farther(low, high, first, expected):
    assert LONG_PATIENCE == 8
    lit = list(frames_of([100] * 21))
    dim = dim_frames(low, high, 21)
    frames = lit[:first] + dim[first : 21 - first] + lit[21 - first :]
    assert counted([1] * 21, 1, frames=frames) == [expected]


def test_a_frame_that_shows_nothing_is_the_last_of_k_picks():
    flat = list(plain_frames([128] * 40))
    frames = [*flat[:38], dim_frames(0, 30, 40)[38], flat[39]]
    assert counted([1] * 40, 1, frames=frames) == [38]
    assert counted([1] * 40, 2, frames=frames) == [30, 38]  # the other middle, as nothing better is left
    assert counted([1] * 40, 1, frames=flat) == [20]


@given(st.lists(st.sampled_from([0, 8, 22, 100, 250]), max_size=40), st.integers(1, 45))
def test_k_picks_are_k_different_frames(values, k):
    picker = CountedPicker(RatePicker(Stub(), spread=True), k)
    found = [pick.index for _, pick in picker.pick(frames_of(values))]
    assert len(found) == min(k, len(values))
    assert found == sorted(set(found))


def test_a_spread_pick_waits_for_no_frame_after_it_where_it_is_expected():
    read = []
    frames = (read.append(frame.index) or frame for frame in frames_of([30] * 60))
    waited = {pick.index: len(read) - 1 - pick.index for _, pick in RatePicker(Stub(), spread=True).pick(frames)}
    assert len(waited) > 10
    # A rate that still rises brings the first ones sooner than expected.
    assert all(waited[index] <= 1 for index in waited)
    assert all(waited[index] == 0 for index in waited if index > 24)
    assert len(read) == 60


def test_the_policy_walks_as_usual_before_k_frames_are_picked():
    values = [24] * 30
    alone, asked = Stub(), Stub()
    list(RatePicker(alone, spread=True).pick(frames_of(values)))
    found = list(CountedPicker(RatePicker(asked, spread=True), 9).pick(frames_of(values)))
    assert [one["picked"].tolist() for one in asked.asked] == [one["picked"].tolist() for one in alone.asked]
    assert [pick.probability for _, pick in found] == pytest.approx([1 - 2**-0.24] * 9, abs=1e-6)


def test_k_picks_need_the_whole_clip():
    picker = CountedPicker(RatePicker(Stub(), spread=True, glance="motion"), 4)
    assert looks_ahead(picker)
    assert (picker.k, picker.glance) == (4, "motion")
    with pytest.raises(BadPicker, match=r"^k is 4: not for a stream, whose picks come at once; .* needs spread=True$"):
        CountedPicker(RatePicker(Stub()), 4)
