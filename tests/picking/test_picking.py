"""Pickers: exact indices worked out by hand, no look-ahead where none is allowed, the same seed the same picks."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from picknet.picking.budget import BudgetPicker
from picknet.picking.learned import CountedPicker, PickNetPicker, RatePicker
from picknet.picking.picker import BadPicker, Pick, Plan, is_random, looks_ahead, planned
from picknet.picking.plain import (
    AllPicker,
    CoinPicker,
    EveryNthPicker,
    KMeansPicker,
    RandomPicker,
    SceneChangePicker,
    UniformPicker,
)
from picknet.video.frame import GLANCE_SIZE, Frame

CAUSAL = [
    lambda: PickNetPicker(brightness_policy),
    lambda: RatePicker(lively_policy),
    lambda: AllPicker(),
    lambda: CoinPicker(0.5, seed=3),
    lambda: EveryNthPicker(1.75),
    lambda: SceneChangePicker(10),
]


def grey_frames(values):
    """Frames of one mean grey value each, with a pattern where there is room for it, half a second apart."""
    for index, value in enumerate(values):
        pixels = np.full((GLANCE_SIZE, GLANCE_SIZE, 3), value, dtype=np.uint8)
        size = np.uint8(min(value, 255 - value, 10))
        pixels[::2] += size
        pixels[1::2] -= size
        yield Frame.from_pixels(pixels, index=index, seconds=index / 2)


def brightness_policy(inputs):
    """Probability 1/20 for each grey value of difference: above 0.5 when a frame differs by more than 10."""
    glances, templates = (inputs[name].astype(float).mean(axis=(1, 2)) for name in ("glances", "templates"))
    probability = np.minimum(np.abs(glances - templates) / 20, 1.0)
    with np.errstate(divide="ignore"):
        return {"logits": np.log(np.stack([1 - probability, probability], axis=1))}


def lively_policy(inputs):
    """For a RatePicker: at least half a pick a frame, more for light frames."""
    rate = 0.5 + inputs["glances"].astype(float).mean(axis=(1, 2)) / 255
    return {
        "logits": np.log(2**rate - 1),
        "embeddings": np.zeros((1, 260), np.float32),
        "next_state": np.zeros((1, 64), np.float32),
    }


def picked(picker, values):
    return [pick.index for _, pick in picker.pick(grey_frames(values))]


def test_the_first_frame_is_picked_by_force_and_has_no_probability():
    picks = [pick for _, pick in PickNetPicker(brightness_policy).pick(grey_frames([50, 50]))]
    assert picks == [Pick(index=0, seconds=0.0, probability=None)]


def test_a_frame_is_compared_with_the_last_picked_frame_not_with_the_last_seen():
    # Each differs by 6 from the one before, but the third differs by 12 from the first.
    assert picked(PickNetPicker(brightness_policy), [0, 6, 12, 18, 24, 30]) == [0, 2, 4]


def test_a_pick_carries_the_frame_its_time_and_its_probability():
    (_, (frame, pick)) = PickNetPicker(brightness_policy).pick(grey_frames([100, 90, 115, 115]))
    assert frame.index == 2
    assert pick == Pick(index=2, seconds=1.0, probability=pytest.approx(0.75))


@pytest.mark.parametrize(
    ("k", "expected"), [(1, [0]), (2, [0, 3]), (3, [0, 3, 5]), (4, [0, 2, 3, 5]), (6, [*range(6)]), (9, [*range(6)])]
)
def test_exactly_k_are_the_first_frame_and_the_likeliest(k, expected):
    # Frames 3 and 5 differ from the last pick by 19 and 12; of the others, frame 2 by 8, frame 1 by 3, frame 4 by 1.
    found = list(CountedPicker(PickNetPicker(brightness_policy), k).pick(grey_frames([50, 53, 58, 69, 70, 81])))
    assert [pick.index for _, pick in found] == expected
    assert [pick.probability for _, pick in found][:1] == [None]
    assert all(pick.probability for _, pick in found[1:])


def test_a_still_video_is_picked_from_at_least_every_max_gap_frames():
    assert picked(PickNetPicker(brightness_policy, max_gap=3), [50] * 8) == [0, 3, 6]
    # A pick by the policy restarts the gap.
    assert picked(PickNetPicker(brightness_policy, max_gap=3), [50, 50, 80, 80, 80, 80]) == [0, 2, 5]
    with pytest.raises(BadPicker, match=r"^max_gap is 0: 1 \(pick all\) or more is possible"):
        PickNetPicker(brightness_policy, max_gap=0)


def test_a_probability_equal_to_the_threshold_is_not_a_pick():
    assert picked(PickNetPicker(brightness_policy), [0, 10]) == [0]
    assert picked(PickNetPicker(brightness_policy, threshold=0.49), [0, 10]) == [0, 1]


def test_the_rate_of_the_papers_picker_divides_its_threshold():
    # A difference of 6 has probability 0.3, one of 4 has 0.2.
    assert picked(PickNetPicker(brightness_policy), [0, 6, 2]) == [0]
    assert picked(PickNetPicker(brightness_policy, rate=2), [0, 6, 2]) == [0, 1]
    # A threshold above 1 is never reached.
    assert picked(PickNetPicker(brightness_policy, rate=0.25), [0, 255, 0]) == [0]


def test_the_policy_sees_one_glance_and_one_template_as_bytes():
    shapes = []

    def policy(inputs):
        shapes.append({name: (array.shape, array.dtype) for name, array in inputs.items()})
        return {"logits": np.zeros((1, 2))}

    glance = ((1, 56, 56), np.uint8)
    list(PickNetPicker(policy).pick(grey_frames([1, 2])))
    assert shapes == [{"glances": glance, "templates": glance}]


@settings(max_examples=30, deadline=None)
@given(
    past=st.lists(st.integers(0, 255), min_size=1, max_size=8),
    # Four well-lit frames at least: a RatePicker that has picked none before the end picks the likeliest.
    one_future=st.lists(st.integers(60, 200), min_size=4, max_size=6),
    another_future=st.lists(st.integers(60, 200), min_size=4, max_size=6),
    make=st.sampled_from(CAUSAL),
)
def test_frames_to_come_do_not_change_what_was_picked(past, one_future, another_future, make):
    one, another = (
        [index for index in picked(make(), past + future) if index < len(past)]
        for future in (one_future, another_future)
    )
    assert one == another


@pytest.mark.parametrize("make", CAUSAL)
def test_causal_pickers_follow_an_endless_stream_without_reading_ahead(make):
    read = []

    def endless():
        for frame in grey_frames(itertools.cycle([0, 200])):
            read.append(frame.index)
            yield frame

    picks = make().pick(endless())
    for _ in range(5):
        _, pick = next(picks)
        assert pick.index == read[-1]


def test_all_picks_every_frame():
    assert picked(AllPicker(), [7] * 4) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("num_frames", "k", "ends", "indices"),
    [
        (30, 6, False, [2, 7, 12, 17, 22, 27]),  # centres of 5 frames each
        (30, 6, True, [0, 6, 12, 17, 23, 29]),  # steps of 5.8: 0, 5.8, 11.6, 17.4, 23.2, 29
        (7, 3, False, [1, 3, 5]),  # parts of 7/3: centres at 1.17, 3.5, 5.83
        (7, 3, True, [0, 3, 6]),
        (7, 1, False, [3]),
        (7, 1, True, [3]),
        (2, 1, False, [1]),
        (4, 4, False, [0, 1, 2, 3]),
        (4, 10, False, [0, 1, 2, 3]),
        (4, 10, True, [0, 1, 2, 3]),
        (6, 4, True, [0, 2, 3, 5]),  # 0, 1.67, 3.33, 5
        (1, 3, True, [0]),
    ],
)
def test_uniform_picks_these_frames(num_frames, k, ends, indices):
    assert picked(UniformPicker(k, ends=ends), [0] * num_frames) == indices


@pytest.mark.parametrize(
    ("num_frames", "n", "indices"),
    [
        (30, 5, [2, 7, 12, 17, 22, 27]),
        (30, 7.5, [3, 11, 18, 26]),  # 3.75, 11.25, 18.75, 26.25
        (30, 12, [6, 18]),  # the next would be 30
        (30, 1, list(range(30))),
        (30, 59, [29]),
        (30, 100, [29]),  # it ends before frame 50: its last frame
        (3, 7.5, [2]),
        (4, 7.5, [3]),
    ],
)
def test_every_nth_picks_these_frames(num_frames, n, indices):
    assert picked(EveryNthPicker(n), [0] * num_frames) == indices


@pytest.mark.parametrize("num_frames", [5, 30, 47])
def test_every_nth_of_a_video_of_k_stretches_is_uniform(num_frames):
    for k in range(1, num_frames + 1):
        expected = picked(UniformPicker(k), [0] * num_frames)
        assert picked(EveryNthPicker(num_frames / k), [0] * num_frames) == expected


def test_a_scene_change_is_a_mean_difference_above_the_limit_to_the_last_pick():
    # 10 is not above 10; 21 differs by 21 from the first, 12 then by 9 from 21, and 0 by 21.
    assert picked(SceneChangePicker(10), [0, 10, 21, 12, 0]) == [0, 2, 4]
    # Bytes must not wrap around: 250 and 5 are 245 apart, not 11.
    assert picked(SceneChangePicker(244), [250, 5]) == [0, 1]
    assert picked(SceneChangePicker(245), [250, 5]) == [0]


def test_random_picks_k_frames_in_order_and_each_as_often():
    picker = RandomPicker(3, seed=1)
    draws = [picked(picker, [0] * 6) for _ in range(600)]
    assert all(len(set(draw)) == 3 and draw == sorted(draw) for draw in draws)
    # Each frame is in half of the draws: 300, with a standard deviation of 12.
    counts = np.bincount(np.concatenate(draws), minlength=6)
    assert counts.sum() == 1800
    assert np.abs(counts - 300).max() < 50


def test_a_coin_picks_the_first_frame_and_about_half_of_the_rest():
    picks = picked(CoinPicker(seed=0), [0] * 1001)
    assert picks[0] == 0
    assert abs(len(picks) - 501) < 65  # four standard deviations
    assert picked(CoinPicker(0.0), [0] * 5) == [0]
    assert picked(CoinPicker(1.0), [0] * 5) == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    "make",
    [
        lambda seed: RandomPicker(5, seed=seed),
        lambda seed: CoinPicker(seed=seed),
        lambda seed: KMeansPicker(5, features=brightness, seed=seed),
    ],
)
def test_the_same_seed_gives_the_same_picks(make):
    videos = [np.random.default_rng(n).integers(0, 256, 20) for n in range(4)]

    def run(seed):
        picker = make(seed)
        return [picked(picker, video) for video in videos]

    assert run(11) == run(11)
    assert run(11) == run(np.random.default_rng(11))
    assert run(11) != run(12)


def test_a_random_picker_draws_new_positions_for_every_video():
    picker = RandomPicker(5, seed=0)
    assert len({tuple(picked(picker, [0] * 30)) for _ in range(10)}) > 1


def brightness(frame):
    return frame.glance().astype(float).mean(keepdims=True).ravel()


@pytest.mark.parametrize("seed", range(5))
def test_k_means_takes_the_frame_nearest_to_each_centre(seed):
    # Centres 11, 101 and 203 (the mean of 200, 204, 205).
    values = [10, 11, 12, 100, 101, 102, 200, 204, 205]
    assert picked(KMeansPicker(3, features=brightness, seed=seed), values) == [1, 4, 7]


def test_one_mean_is_the_frame_nearest_to_the_average():
    assert picked(KMeansPicker(1, features=brightness), [0, 10, 26, 60]) == [2]  # average 24


@settings(max_examples=40, deadline=None)
@given(values=st.lists(st.integers(0, 3), min_size=1, max_size=12), k=st.integers(1, 14), seed=st.integers(0, 9))
def test_k_means_gives_k_different_frames_however_alike_they_are(values, k, seed):
    picks = picked(KMeansPicker(k, features=brightness, seed=seed), values)
    assert picks == sorted(set(picks))
    assert len(picks) == min(k, len(values))


def test_k_means_does_not_modify_the_features():
    features = {0: np.array([1.0, 2.0]), 1: np.array([5.0, 6.0])}
    list(KMeansPicker(1, features=lambda frame: features[frame.index]).pick(grey_frames([0, 0])))
    assert features[0].tolist() == [1.0, 2.0]
    assert features[1].tolist() == [5.0, 6.0]


@pytest.mark.parametrize(
    "picker",
    [UniformPicker(2), RandomPicker(2), KMeansPicker(2, features=brightness), AllPicker(), CoinPicker(),
     PickNetPicker(brightness_policy), RatePicker(lively_policy), EveryNthPicker(2), SceneChangePicker(5),
     CountedPicker(PickNetPicker(brightness_policy), 2), CountedPicker(RatePicker(lively_policy, spread=True), 2)],
)  # fmt: skip
def test_no_frames_no_picks(picker):
    assert list(picker.pick([])) == []


@pytest.mark.parametrize(
    "make",
    [
        UniformPicker,
        RandomPicker,
        lambda k: KMeansPicker(k, features=brightness),
        lambda k: CountedPicker(PickNetPicker(brightness_policy), k),
    ],
)
def test_less_than_one_frame_is_refused(make):
    with pytest.raises(BadPicker, match=r"^k is 0: at least 1 frame has to be picked$"):
        make(0)


def test_impossible_probabilities_are_refused():
    with pytest.raises(BadPicker, match=r"^threshold is 1\.5: from 0 \(pick all\) to 1 \(only the first\) is poss"):
        PickNetPicker(brightness_policy, threshold=1.5)
    with pytest.raises(BadPicker, match=r"^probability is -1: from 0 to 1 is possible$"):
        CoinPicker(-1)


def test_impossible_distances_and_changes_are_refused():
    for n in (0.5, float("nan"), float("inf")):
        with pytest.raises(BadPicker, match=rf"^n is {n}: 1 \(pick all\) or more is possible$"):
            EveryNthPicker(n)
    with pytest.raises(BadPicker, match=r"^change is 256: from 0 to 255 grey values are possible$"):
        SceneChangePicker(256)


@pytest.mark.parametrize(
    "make",
    [
        lambda: EveryNthPicker(2.6),
        lambda: EveryNthPicker(100),
        lambda: UniformPicker(4),
        lambda: UniformPicker(5, ends=True),
        lambda: RandomPicker(4, seed=2),
    ],
)
def test_a_plan_equals_the_picks_made_from_the_frames(make):
    for count in (1, 2, 3, 7, 30):
        looking, planning = make(), make()
        plan = planned(planning, count)
        assert plan is not None
        assert plan.count == count
        seen = [pick for _, pick in looking.pick(grey_frames(range(count)))]
        assert [pick for _, pick in plan.pick(grey_frames(range(count)))] == seen
        # The planned frames alone are enough.
        asked_for = (frame for frame in grey_frames(range(count)) if frame.index in plan.probabilities)
        assert [pick for _, pick in plan.pick(asked_for)] == seen


@pytest.mark.parametrize(
    "picker",
    [
        PickNetPicker(brightness_policy),
        RatePicker(lively_policy),
        AllPicker(),
        CoinPicker(),
        SceneChangePicker(10),
        KMeansPicker(2, features=lambda frame: frame.glance().ravel()),
    ],
)
def test_pickers_that_look_at_frames_have_no_plan(picker):
    assert planned(picker, 30) is None


def test_there_is_no_plan_for_no_frames():
    assert planned(UniformPicker(3), 0) is None


def test_a_plan_picks_the_last_readable_frame_if_none_of_its_own_can_be_read():
    plan = Plan(30, {20: None, 25: None})
    assert [pick.index for _, pick in plan.pick(grey_frames(range(12)))] == [11]
    assert [pick.index for _, pick in plan.pick(grey_frames(range(22)))] == [20]
    assert list(plan.pick([])) == []


def reads_all_frames_first(picker):
    read = []

    def frames():
        for frame in grey_frames([0, 200] * 5):
            read.append(frame.index)
            yield frame

    next(picker.pick(frames()))
    return len(read) == 10


ALL_PICKERS = [
    *(make() for make in CAUSAL),
    UniformPicker(2),
    RandomPicker(2),
    KMeansPicker(2, features=lambda frame: frame.glance().ravel()),
    BudgetPicker(2),
    CountedPicker(PickNetPicker(brightness_policy), 2),
    CountedPicker(RatePicker(lively_policy, spread=True), 2),
]


@pytest.mark.parametrize("picker", ALL_PICKERS, ids=lambda picker: type(picker).__name__)
def test_pickers_that_read_all_frames_before_the_first_pick_say_so(picker):
    assert looks_ahead(picker) == reads_all_frames_first(picker)


def test_pickers_that_draw_say_so():
    random = {type(picker) for picker in ALL_PICKERS if is_random(picker)}
    assert random == {CoinPicker, RandomPicker, KMeansPicker}


def test_a_picker_of_any_class_is_neither_random_nor_looking_ahead_by_default():
    plan = Plan(3, {1: None})
    assert not looks_ahead(plan)
    assert not is_random(plan)


def test_a_pick_as_a_dictionary_has_all_its_fields_and_no_rounding_noise():
    pick = Pick(3, 0.1 + 0.2, 0.75, 9)
    assert pick.to_dict() == {"index": 3, "seconds": 0.3, "probability": 0.75, "frame_number": 9}
