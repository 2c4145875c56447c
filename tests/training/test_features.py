"""The frames of a split: features that are extracted once, or pixels with random crops."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from clips import write_clip
from PIL import Image

from picknet.config import parse_config
from picknet.data.split import Clip, Split
from picknet.training.cnn import CNN
from picknet.training.features import Crop, FeatureSplit, PixelSplit, extract_features
from picknet.video.frame import glance_shape

CONFIG = parse_config(
    """
    [video]
    num_frames = 4
    [reward]
    min_picks = 1
    [model]
    cnn = "efficientnet_lite0"
    image_size = 64
    grid = 2
    """
)


@pytest.fixture(scope="module")
def split(tmp_path_factory) -> Split:
    """Clips of 8, 3 and 1 frames."""
    folder = tmp_path_factory.mktemp("videos")
    paths = [write_clip(folder / f"clip{n}.mp4", num_frames=n) for n in (8, 3, 1)]
    return Split("folder", "val", tuple(Clip(path.stem, path, ("a box",)) for path in paths), ())


@pytest.fixture(scope="module")
def cnn() -> CNN:
    return CNN(CONFIG.model).eval()


# --- Features ---


def test_picked_features_are_gathered_in_order():
    features = torch.arange(48.0).view(2, 4, 3, 2)  # two clips of four frames, each of three cells
    split = FeatureSplit((), torch.zeros(2, 4, 56, 56, dtype=torch.uint8), features.half(), torch.tensor([4, 4]), ())
    picked = torch.tensor([[False, True, False, False], [True, False, True, True]])
    gathered, counts = split.picked_features(None, torch.tensor([1, 0]), picked)
    assert counts.tolist() == [1, 3]
    assert gathered.shape == (2, 3, 3, 2)
    assert gathered[0, 0].tolist() == [[30, 31], [32, 33], [34, 35]]
    assert gathered[1, :, 0, 0].tolist() == [0, 12, 18]


def test_every_frame_of_a_clip_has_a_feature_for_each_cell(split, cnn, tmp_path):
    found = extract_features(split, cnn, CONFIG, cache=tmp_path)
    assert found.features.shape == (3, 4, 4, 1280)
    assert found.counts.tolist() == [4, 3, 1]
    assert not found.features[1, 3:].any()
    assert not found.features[2, 1:].any()


def test_features_are_extracted_once_and_again_if_a_setting_changes(split, cnn, tmp_path):
    first = extract_features(split, cnn, CONFIG, cache=tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(written) == 3
    again = extract_features(split, cnn, CONFIG, cache=tmp_path)
    assert torch.equal(first.features, again.features)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written
    larger = replace(CONFIG, model=replace(CONFIG.model, image_size=128))
    other = extract_features(split, cnn, larger, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    assert not torch.equal(first.features, other.features)
    coarse = replace(CONFIG, model=replace(CONFIG.model, grid=1))
    whole = extract_features(split, CNN(coarse.model).eval(), coarse, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 9
    torch.testing.assert_close(whole.features[:, :, 0].float(), first.features.float().mean(2), atol=5e-3, rtol=5e-3)


@pytest.mark.parametrize("kind", ["colour", "motion", "packets"])
def test_other_glances_have_channels_and_a_cache_of_their_own(split, cnn, tmp_path, kind):
    grey = extract_features(split, cnn, CONFIG, cache=tmp_path / "features")
    assert grey.glances.shape == (3, 4, 56, 56)
    config = replace(CONFIG, model=replace(CONFIG.model, glance=kind))
    for _ in range(2):  # extracted, then read from the cache
        found = extract_features(split, cnn, config, cache=tmp_path / "features")
        assert found.glances.shape == (3, 4, *glance_shape(kind))
        assert torch.equal(found.features, grey.features)
    pixels = PixelSplit.load(split, config, cache=tmp_path / "pixels", device=torch.device("cpu"))
    assert torch.equal(pixels.extract_features(cnn, 4).glances, found.glances)


def test_a_damaged_cache_file_is_replaced(split, cnn, tmp_path):
    first = extract_features(split, cnn, CONFIG, cache=tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(extract_features(split, cnn, CONFIG, cache=tmp_path).features, first.features)


def test_clips_are_cached_by_their_path(cnn, tmp_path):
    """Two files of one name, size and time in two folders are two clips."""
    from shutil import copystat

    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    one, two = (Clip("clip", tmp_path / folder / "clip.bmp", ("a box",)) for folder in ("one", "two"))
    for clip, grey in ((one, 0), (two, 255)):
        Image.new("RGB", (64, 64), (grey,) * 3).save(clip.path)
    copystat(one.path, two.path)
    splits = [Split("folder", "val", (clip,), ()) for clip in (one, two)]
    first, second = (extract_features(each, cnn, CONFIG, cache=tmp_path / "cache") for each in splits)
    assert not torch.equal(first.glances, second.glances)


def test_picked_features_are_gathered_from_extracted_features():
    features = torch.arange(24.0).view(2, 3, 2, 2).half()
    split = FeatureSplit((), torch.zeros(2, 3, 56, 56, dtype=torch.uint8), features, torch.tensor([3, 2]), ())
    picked = torch.tensor([[True, False, True], [False, True, False]])
    found, counts = split.picked_features(None, torch.tensor([0, 1]), picked)
    assert found.dtype == torch.float32
    assert found[0].tolist() == [[[0, 1], [2, 3]], [[8, 9], [10, 11]]]
    assert found[1, 0].tolist() == [[16, 17], [18, 19]]
    assert counts.tolist() == [2, 1]


# --- Pixels ---


def pixel_split(counts: list[int], *, size: int = 64, firsts: list[int] | None = None) -> PixelSplit:
    """Clips of noise, whose frames stand one after the other unless `firsts` says otherwise."""
    generator = torch.Generator().manual_seed(0)
    firsts = firsts or [sum(counts[:i]) for i in range(len(counts))]
    return PixelSplit(
        clips=tuple(Clip(f"clip{i}", Path(f"clip{i}.mp4"), ("noise",)) for i in range(len(counts))),
        frames=torch.randint(0, 256, (sum(counts), size, size, 3), dtype=torch.uint8, generator=generator),
        glances=torch.randint(0, 256, (sum(counts), 56, 56), dtype=torch.uint8, generator=generator),
        firsts=torch.tensor(firsts),
        counts=torch.tensor(counts),
        missing=(),
    )


def itself(pixels: torch.Tensor) -> torch.Tensor:
    """A stand-in for the CNN: one cell, and the pixels are its feature."""
    return pixels.flatten(1)[:, None].float()


def test_picked_features_are_the_cnns_output_for_the_picked_frames(cnn):
    split = pixel_split([3, 2], firsts=[2, 0])  # the second clip's frames come first
    picked = torch.tensor([[False, True, False], [True, False, True], [True, True, False]])
    features, counts = split.picked_features(cnn, torch.tensor([1, 0, 0]), picked)
    assert counts.tolist() == [1, 2, 2]
    with torch.inference_mode():
        one, two, three, four = cnn(split.frames[[1, 2, 4, 3]])
    nothing = torch.zeros_like(one)
    expected = torch.stack([torch.stack(row) for row in ((one, nothing), (two, three), (two, four))])
    torch.testing.assert_close(features, expected, atol=1e-4, rtol=1e-4)
    assert not features.requires_grad


def test_features_of_pixels_are_those_of_videos(split, cnn, tmp_path):
    pixels = PixelSplit.load(split, CONFIG, cache=tmp_path / "pixels", device=torch.device("cpu"))
    found = pixels.extract_features(cnn, 4)
    expected = extract_features(split, cnn, CONFIG, cache=tmp_path / "features")
    assert found.clips == expected.clips
    assert torch.equal(found.counts, expected.counts)
    assert torch.equal(found.glances, expected.glances)
    assert found.features.dtype == torch.float16
    torch.testing.assert_close(found.features, expected.features, atol=5e-3, rtol=5e-3)


def window_of(crop: np.ndarray, frame: np.ndarray) -> tuple[int, int, bool]:
    """Where in the frame a crop was cut, (top, left), and whether it was mirrored."""
    size = len(crop)
    places = range(len(frame) - size + 1)
    found = [
        (top, left, mirrored)
        for top in places
        for left in places
        for mirrored in (False, True)
        if np.array_equal(crop[:, ::-1] if mirrored else crop, frame[top : top + size, left : left + size])
    ]
    assert len(found) == 1
    return found[0]


def test_all_frames_of_a_clip_have_the_same_crop_mirrored_or_not():
    split = pixel_split([3] * 40, size=10)
    split = replace(split, crop=Crop(8, torch.Generator().manual_seed(1), frames_per_batch=1))
    picked = torch.tensor([True, False, True]).expand(40, 3)
    features, _ = split.picked_features(itself, torch.arange(40), picked)
    frames = split.frames.view(40, 3, 10, 10, 3).numpy()
    windows = []
    for clip in range(40):
        crops = features[clip, :, 0].view(2, 8, 8, 3).numpy()
        first, second = (window_of(crop, frames[clip, t]) for crop, t in zip(crops, (0, 2), strict=True))
        assert first == second
        windows.append(first)
    # 3 × 3 places, mirrored or not: each comes about 13 or 20 times in 40 clips.
    tops, lefts, mirrored = (np.bincount(column) for column in zip(*windows, strict=True))
    assert (len(tops), len(lefts), len(mirrored)) == (3, 3, 2)
    assert min(*tops, *lefts, *mirrored) >= 5


def test_small_batches_are_filled_up_to_frames_per_batch():
    split, sizes = pixel_split([2, 3, 1], size=10), []

    def counted(pixels: torch.Tensor) -> torch.Tensor:
        sizes.append(len(pixels))
        return itself(pixels)

    everything = torch.arange(3) < split.counts[:, None]
    found = {}
    for frames_per_batch in (4, 6, 16):
        crop = Crop(9, torch.Generator().manual_seed(2), frames_per_batch)
        found[frames_per_batch] = replace(split, crop=crop).picked_features(counted, torch.arange(3), everything)[0]
    assert sizes == [6, 6, 16]
    assert found[16].shape == (3, 3, 1, 9 * 9 * 3)
    # What is added to fill up the batch is not to be seen.
    assert torch.equal(found[6], found[16])
    assert not found[16][0, 2:].any()
    assert not found[16][2, 1:].any()


def test_crops_have_gradients(cnn):
    split = pixel_split([2, 1], size=68)
    everything = torch.arange(2) < split.counts[:, None]
    cropped = replace(split, crop=Crop(64, torch.Generator(), frames_per_batch=3))
    features, _ = cropped.picked_features(cnn, torch.arange(2), everything)
    assert features.shape == (2, 2, 4, 1280)
    weight = cnn.body.network._conv_stem.weight
    (gradient,) = torch.autograd.grad(features.sum(), weight)
    assert gradient.abs().max() > 0
