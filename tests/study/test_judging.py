"""Captions of choices of frames: equal to those of the captioner, and nothing computed twice."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from clips import write_clip

from picknet.captioner import Captioner, load
from picknet.data.split import Clip
from picknet.picking.picker import Pick
from picknet.picking.plain import AllPicker, UniformPicker
from picknet.study.judging import ClipFeatures, Setting, dial, judge, rivals
from picknet.video.frame import Frame


@pytest.fixture(scope="module")
def captioner(model_folder: Path) -> Captioner:
    return load(model_folder)


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Clip:
    path = write_clip(tmp_path_factory.mktemp("clips") / "cat.mp4", num_frames=12)
    return Clip("cat", path, ("a cat is sitting",))


class Chosen:
    """A picker of fixed places."""

    def __init__(self, *places: int) -> None:
        self.places = places

    def pick(self, frames):  # type: ignore[no-untyped-def]
        return [(frame, Pick(frame.index, frame.seconds)) for frame in frames if frame.index in self.places]


CHOICES = [(0,), (0, 3), (0, 3, 7), (0, 4), (2, 3), (3,), (0, 3, 7, 11), tuple(range(12))]


def test_every_choice_gets_the_caption_of_a_picker_of_these_frames(captioner: Captioner, clip: Clip) -> None:
    settings = [Setting("chosen", str(choice), (Chosen(*choice),)) for choice in CHOICES]
    judged = judge(
        ClipFeatures(captioner, None), clip, settings, beam=1, num_subsets=0, chance=np.random.default_rng(0)
    )
    assert judged.choices == {("chosen", str(choice)): [choice] for choice in CHOICES}
    for choice in CHOICES:
        assert judged.captions[choice] == captioner.caption(clip.path, picker=Chosen(*choice), beam=1).text


def test_every_frame_goes_through_the_cnn_once_and_every_choice_is_described_once(
    captioner: Captioner, clip: Clip, monkeypatch: pytest.MonkeyPatch
) -> None:
    features, encode, describe_all = captioner.runtime.features, captioner.runtime.encode, captioner.describe_all
    seen, encoded, described = [], [], []
    monkeypatch.setattr(captioner.runtime, "features", lambda pixels: seen.append(len(pixels)) or features(pixels))
    monkeypatch.setattr(
        captioner.runtime, "encode", lambda frame, state: encoded.append(len(state.h)) or encode(frame, state)
    )
    monkeypatch.setattr(
        captioner, "describe_all", lambda state, beam: described.append(len(state.h)) or describe_all(state, beam=beam)
    )
    settings = [
        Setting("some", "k=2", (UniformPicker(2), UniformPicker(2))),  # 3 and 9, twice
        Setting("one", "", (Chosen(3),)),
        Setting("more", "", (Chosen(3, 9, 10),)),
        Setting("all", "", (AllPicker(),)),
    ]
    clip_features = ClipFeatures(captioner, None)
    judged = judge(clip_features, clip, settings, beam=1, num_subsets=0, chance=np.random.default_rng(0))
    assert judged.choices["some", "k=2"] == [(3, 9), (3, 9)]
    assert len(judged.captions) == sum(described) == 4
    assert sum(seen) == 12
    # Frame by frame, all of them one after the other; 3 is also a beginning, and 9 and 10 are after it: what choices
    # begin with is shared.
    assert encoded == [1, 1, 1, 2, 1, 1, 1, 1, 1, 2, 2, 1]


def test_cached_features_are_the_same_numbers_and_need_no_cnn(
    captioner: Captioner, clip: Clip, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = ClipFeatures(captioner, tmp_path)
    first.read(clip)
    second = ClipFeatures(captioner, tmp_path)
    monkeypatch.setattr(captioner.runtime, "features", lambda pixels: pytest.fail("the CNN was asked"))
    assert len(second.read(clip)) == 12
    assert np.array_equal(second.features, first.features)


def test_a_damaged_or_outdated_cache_file_is_replaced(captioner: Captioner, clip: Clip, tmp_path: Path) -> None:
    first = ClipFeatures(captioner, tmp_path)
    first.read(clip)
    (kept,) = tmp_path.iterdir()
    kept.write_bytes(kept.read_bytes()[:100])
    again = ClipFeatures(captioner, tmp_path)
    again.read(clip)
    assert np.array_equal(again.features, first.features)
    clip.path.touch()  # a new time of change means a new file
    again.read(clip)
    assert len(list(tmp_path.iterdir())) == 2


def test_clips_of_equal_name_size_and_time_are_told_apart_by_their_path(
    captioner: Captioner, clip: Clip, tmp_path: Path
) -> None:
    other = shutil.copytree(clip.path.parent, tmp_path / "other", copy_function=shutil.copy2) / clip.path.name
    twin = Clip("cat", other, clip.captions)
    assert other.stat().st_mtime_ns == clip.path.stat().st_mtime_ns
    features = ClipFeatures(captioner, tmp_path / "cache")
    features.read(clip)
    features.read(twin)
    assert len(list((tmp_path / "cache").iterdir())) == 2
    # A link to the same file is the same clip.
    (tmp_path / "link.mp4").symlink_to(other)
    features.read(Clip("cat", tmp_path / "link.mp4", clip.captions))
    assert len(list((tmp_path / "cache").iterdir())) == 2


def test_a_frames_feature_is_that_of_the_captioner(captioner: Captioner, clip: Clip) -> None:
    features = ClipFeatures(captioner, None)
    frames = features.read(clip)
    assert np.allclose(features.of_frame(frames[5]), captioner.feature(frames[5]), atol=1e-6)


def test_rivals_have_all_their_settings_and_random_ones_ten_draws() -> None:
    settings = rivals(lambda frame: frame.glance().ravel(), seed=0)
    found: dict[str, list[str]] = {}
    for setting in settings:
        found.setdefault(setting.picker, []).append(setting.setting)
    ks = [f"k={k}" for k in range(1, 9)]
    assert found["uniform"] == found["ends"] == found["random"] == found["kmeans"] == found["hecate"] == ks
    assert found.keys() == {"uniform", "ends", "random", "kmeans", "hecate", "every", "coin", "scene", "all"}
    assert {setting.picker for setting in settings if len(setting.pickers) == 10} == {"random", "coin"}
    assert {len(setting.pickers) for setting in settings} == {1, 10}
    fewer = rivals(lambda frame: frame.glance().ravel(), seed=0, num_draws=3)
    assert {len(setting.pickers) for setting in fewer} == {1, 3}


def test_the_models_own_setting_is_compared_once(captioner: Captioner) -> None:
    settings = dial(captioner)
    assert [setting.own for setting in settings].count(True) == 1
    assert len({setting.setting for setting in settings}) == len(settings) > 5


def test_a_higher_rate_picks_more(captioner: Captioner) -> None:
    black = np.zeros((56, 56, 3), np.uint8)
    frames = [Frame.from_pixels(black, index=index, seconds=0.0) for index in range(30)]
    settings = dial(captioner)
    counts = [len(list(setting.pickers[0].pick(frames))) for setting in settings]
    assert counts == sorted(counts)
    assert [setting.setting for setting in settings if setting.own] == ["rate=1"]


def test_random_subsets_have_their_size_and_no_frame_twice(captioner: Captioner, clip: Clip) -> None:
    judged = judge(ClipFeatures(captioner, None), clip, [], beam=1, num_subsets=4, chance=np.random.default_rng(1))
    assert {size: [len(set(choice)) for choice in several] for size, several in judged.subsets.items()} == {
        size: [size] * 4 for size in range(1, 7)
    }
    assert all(choice == tuple(sorted(choice)) for several in judged.subsets.values() for choice in several)
