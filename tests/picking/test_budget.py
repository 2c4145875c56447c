"""Frame budgets and scene changes, worked out by hand on uncorrelated pictures."""

import json
import weakref
from pathlib import Path

import numpy as np
import pytest
from clips import number_of, write_clip

from picknet import cli
from picknet.captioner import BadSetting, pick
from picknet.picking.budget import MAX_BUDGET, BudgetPicker
from picknet.picking.learned import RatePicker, Watched
from picknet.picking.picker import BadPicker
from picknet.picking.scenes import SceneWatch
from picknet.video.frame import GLANCE_SIZE, Frame

STRIPES = np.where(np.arange(GLANCE_SIZE) // 14 % 2, 60.0, 180.0)
UPRIGHT = np.tile(STRIPES, (GLANCE_SIZE, 1))
LYING = UPRIGHT.T
"""The same tones as UPRIGHT, and uncorrelated with it."""


def scene(seed):
    """A picture of random blocks, unlike that of any other seed."""
    return np.kron(np.random.default_rng(seed).uniform(20, 230, (7, 7)), np.ones((8, 8)))


def shown(pictures, *, step=1.0, kind=Frame):
    """The grey pictures as frames, `step` seconds apart."""
    for index, picture in enumerate(pictures):
        grey = np.clip(np.rint(picture), 0, 255).astype(np.uint8)
        yield kind.from_pixels(np.repeat(grey[:, :, None], 3, axis=2), index=index, seconds=index * step)


def picked(pictures, budget, **settings):
    return [pick.index for _, pick in BudgetPicker(budget, **settings).pick(shown(pictures))]


# --- The budget -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("num_frames", [0, 1, 5, 40])
@pytest.mark.parametrize("budget", [1, 2, 5, 12])
def test_picks_within_a_budget_are_in_order_and_begin_with_the_first_frame(num_frames, budget):
    pictures = [scene(number) for number in range(num_frames)]
    for exact in (False, True):
        picks = picked(pictures, budget, exact=exact)
        assert picks == sorted(set(picks))
        assert picks[:1] == [0][:num_frames]
        assert len(picks) == min(budget, num_frames)  # every picture is new, so none is left out


def test_a_still_video_gives_one_frame_and_with_exact_a_steady_stride():
    assert picked([scene(0)] * 120, 5) == [0]
    picks = picked([scene(0)] * 120, 5, exact=True)
    assert len(picks) == 5
    # Even distances would be 30; a picker that does not know the end halves some of them at the most.
    assert np.diff(picks).min() >= 15


def test_short_events_in_a_long_still_video_are_found_despite_noise_and_changing_light():
    noise = np.random.default_rng(0)
    pictures = [scene(0)] * 1200
    starts = (130, 500, 530, 900, 1100)
    for start in starts:
        for second in range(6):  # something crosses the scene, a seventh of its height and two of its width
            pictures[start + second] = crossed = pictures[start + second].copy()
            crossed[16:24, 8 * second : 8 * second + 16] = 255 if start % 500 else 0
    lit = [
        picture * (1 + 0.2 * np.sin(second / 200)) + noise.normal(0, 2, picture.shape)
        for second, picture in enumerate(pictures)
    ]
    picks = picked(lit, 7)
    for start in starts:
        assert any(start <= index < start + 6 for index in picks)


def test_a_changing_frame_is_worth_more_than_a_still_scene():
    pictures = [scene(0)] * 10 + [scene(1)] * 20 + [scene(0)] * 10 + [scene(2), scene(3), scene(4)] + [scene(0)] * 10
    (_, second) = picked(pictures, 2)
    assert second in (40, 41, 42)
    assert 10 <= picked(pictures, 3)[1] < 30  # with one frame more, the still scene beats a second changing one


def test_the_frame_that_is_missed_least_is_dropped():
    """Worked by hand. UPRIGHT and LYING have correlation 0: with a contrast of 60, norms of 60² / (60² + 8²) = 0.983
    and so a difference of 0.983 and a change of 0.983 / 1.013 = 0.970.

    Frames A at 0 s, B at 30, B at 60, A at 90, of which three may stay. Weights: the first B changes from what was
    before and not to what comes after, so 0.1 + 0; the second B not from what was before, 0.1 + 0; the last A 0.1 +
    0.970. Distances: B to B 0.3 · 30/60 = 0.15, the least of both; A to A 0.3 · 90/120 = 0.225. Losses: 0.015 for
    either B, the first of which goes; 1.07 · 0.225 = 0.24 for the last A.
    """
    pictures = shown([UPRIGHT, LYING, LYING, UPRIGHT], step=30.0)
    assert [pick.index for _, pick in BudgetPicker(3, exact=True).pick(pictures)] == [0, 2, 3]
    # Without the last A, the B that has nothing new is left out.
    assert [pick.index for _, pick in BudgetPicker(3).pick(shown([UPRIGHT, LYING, LYING], step=30.0))] == [0, 1]


def test_a_change_of_light_is_not_a_change():
    assert picked([scene(0) * strength for strength in np.linspace(0.5, 1.0, 60)], 8) == [0]
    assert picked([scene(0), scene(0) * 0.5, scene(0) * 0.5 + 60], 8) == [0]


class WatchedFrame(Frame):
    """Without slots, so that weak references to it are possible."""


def test_at_most_two_frames_more_than_the_budget_are_in_memory():
    alive = weakref.WeakSet()
    most = 0

    def frames():
        nonlocal most
        for frame in shown((scene(number) for number in range(200)), kind=WatchedFrame):
            alive.add(frame)
            most = max(most, len(alive))
            yield frame

    assert len(list(BudgetPicker(6).pick(frames()))) == 6
    assert most <= 6 + 2  # the newest kept, and the one being read


@pytest.mark.parametrize("budget", [0, -1, MAX_BUDGET + 1])
def test_an_impossible_budget_is_refused(budget):
    with pytest.raises(BadPicker, match=f"budget is {budget}: 1 to 1000 frames are possible"):
        BudgetPicker(budget)


class Likely(RatePicker):
    """A learned picker whose probabilities are given."""

    def __init__(self, probabilities):
        super().__init__(lambda inputs: pytest.fail("no policy here"), glance="motion")
        self.probabilities = probabilities

    def watch(self, frames):
        for frame, probability in zip(frames, self.probabilities, strict=True):
            yield Watched(frame, probability, charge=0.0, is_pick=False)


def test_a_learned_picker_says_what_is_worth_a_look():
    # Every picture is about as new as any other, and a frame with p = 1 counts three times as much as one with p = 0.
    pictures, sure = [scene(number) for number in range(60)], {7, 30, 31, 52}
    found = picked(pictures, 5, learned=Likely([float(number in sure) for number in range(60)]))
    assert {7, 52} <= {*found}
    assert {30, 31} & {*found}
    assert not {7, 30, 31, 52} & {*picked(pictures, 5)}
    assert picked(pictures, 5, learned=Likely([0.5] * 60)) == picked(pictures, 5)
    assert BudgetPicker(5, learned=Likely([])).glance == "motion"


# --- Pictures from a budget -------------------------------------------------------------------------------------------


def test_a_budget_starts_with_the_very_first_frame(tmp_path):
    video = write_clip(tmp_path / "clip.mp4", num_frames=50)
    frames = pick(video, budget=4, exact=True)
    assert len(frames) == 4
    assert (number_of(np.asarray(frames[0])), frames[0].seconds) == (0, 0.0)


def test_the_rule_alone_needs_no_model(tmp_path, monkeypatch):
    monkeypatch.setattr("picknet.captioner.load", lambda *_: pytest.fail("a model was loaded"))
    assert len(pick(write_clip(tmp_path / "clip.mp4", num_frames=50), picker=BudgetPicker(4, exact=True))) == 4


def test_exact_budgets_up_to_the_number_of_frames_are_possible(tmp_path):
    video = write_clip(tmp_path / "clip.mp4", num_frames=50)
    assert [number_of(np.asarray(frame)) for frame in pick(video, budget=50, exact=True)] == list(range(50))
    with pytest.raises(BadSetting, match=r"clip\.mp4: exactly 51 frames were asked for, but it has 50"):
        pick(video, budget=51, exact=True)
    with pytest.raises(BadSetting, match="exact is True: it needs a budget"):
        pick(video, exact=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--budget", "0"], "--budget 0: 1 to 1,000 frames are possible"),
        (["--budget", "-1"], "--budget -1: 1 to 1,000 frames are possible"),
        (["--budget", "10000"], "--budget 10000: 1 to 1,000 frames are possible"),
        (["--exact"], "--exact needs a --budget, and no --picker beside it"),
    ],
)
def test_an_impossible_budget_is_a_usage_error(options, message, tmp_path, capsys):
    with pytest.raises(SystemExit) as exit:
        cli.main(["pick", "cat.mp4", "--out", str(tmp_path / "frames"), *options])
    assert exit.value.code == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "frames").exists()


def test_the_command_writes_exactly_the_budget(tmp_path, capsys):
    video = write_clip(tmp_path / "clip.mp4", num_frames=50)
    with pytest.raises(SystemExit) as exit:
        cli.main(["pick", str(video), "--out", str(tmp_path / "frames"), "--budget", "3", "--exact"])
    assert not exit.value.code
    index = json.loads((tmp_path / "frames" / "index.json").read_text())
    files = [Path(line).name for line in capsys.readouterr().out.splitlines()]
    assert index["picker"] == "budget"
    assert [row["file"] for row in index["picks"]] == files
    assert len(files) == 3
    assert index["picks"][0]["seconds"] == 0


# --- Scenes -----------------------------------------------------------------------------------------------------------


def begins(pictures, **settings):
    watch = SceneWatch(**settings)
    return [frame.index for frame in shown(pictures) if watch(frame)]


def test_a_new_scene_begins_with_its_second_frame():
    assert begins([scene(1)] * 5 + [scene(2)] * 5 + [scene(3)] * 5) == [6, 11]
    assert begins([scene(1)] * 5 + [scene(2)] * 5, patience=1) == [5]
    assert begins([scene(1)] * 5 + [scene(2)] * 5, patience=3) == [7]


FLASHES = {"white": np.full((56, 56), 255.0), "black": np.zeros((56, 56)), "other": scene(9)}


@pytest.mark.parametrize("flash", FLASHES.values(), ids=FLASHES)
def test_a_flash_does_not_start_a_scene(flash):
    assert begins([scene(1)] * 5 + [flash] + [scene(1)] * 5 + [flash] + [scene(1)]) == []


def test_noise_changes_of_light_and_slow_fades_do_not_start_a_scene():
    noise = np.random.default_rng(0)
    assert begins([scene(1) + noise.normal(0, 10, (56, 56)) for _ in range(60)]) == []
    assert begins([scene(1) * strength for strength in np.linspace(0.2, 1.1, 60)]) == []
    assert begins([scene(1)] * 10 + [scene(1) * 0.4] * 10 + [scene(1)] * 10) == []
    assert begins([scene(1) * (1 - share) + scene(2) * share for share in np.linspace(0, 1, 40)]) == []


def test_motion_does_not_start_a_scene_while_the_tones_stay():
    # One half of the picture moves, the other stays: the correlation is at least 1/2.
    pictures = [np.hstack([scene(1)[:, :28], np.roll(scene(2), 8 * second, axis=0)[:, :28]]) for second in range(30)]
    assert begins(pictures) == []


def test_an_impossible_patience_is_refused():
    with pytest.raises(BadPicker, match="patience is 0"):
        SceneWatch(patience=0)
