"""The model that ships: small enough, and the same in PyTorch as in its graphs, on real clips."""

from pathlib import Path

import numpy as np
import pytest
import torch

import picknet
from picknet.model.folder import DEFAULT_MODEL, SHIPPED
from picknet.training.export import load_network
from picknet.video.file import Video

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
FOLDER = SHIPPED / DEFAULT_MODEL
SAMPLE = ROOT / "samples" / "cockatoo.mp4"


@pytest.fixture(scope="module")
def captioner():
    return picknet.load()


@pytest.fixture(scope="module")
def network():
    network, vocabulary, config = load_network(FOLDER)
    return network.eval(), vocabulary, config


def real_clips() -> list[Path]:
    clips = sorted((ROOT / "samples").glob("*.mp4"))
    if SHARED.is_dir():
        clips += sorted((SHARED / "msvd" / "videos").iterdir())[::160]
    return clips


def test_the_model_fits_into_the_wheel():
    assert sum(path.stat().st_size for path in FOLDER.iterdir()) <= 40_000_000


CAPTIONS = {
    "-4wsuPCjDBc_5_15.mp4": "a squirrel is eating",
    "2mUMTFnQWaw_1_9.mp4": "a woman is riding a horse",
    "7bcV-TL9mho_0_7.mp4": "puppies are playing",
    "D1tTBncIsm8_198_205.mp4": "a man is walking",
    "J4otiwOjQy8_98_112.mp4": "a man is slicing a potato",
    "OxL9z2BzBnk_0_19.mp4": "a puppy is playing",
    "UxhKb-zZoWE_0_15.mp4": "two men are wrestling",
    "_QJbjKkfdcs_52_57.mp4": "a man is playing a violin",
}
"""Of clips of MSVD. A new model has new sentences, which belong here once they have been read."""


def test_the_sample_has_its_caption_timeline_and_stream(captioner):
    caption = captioner.caption(SAMPLE)
    assert caption.text == "a man is looking at the camera"
    assert caption.confidence == pytest.approx(0.417, abs=0.02)
    assert [pick.index for pick in caption.picks] == [2, 9, 16, 23]
    assert [pick.seconds for pick in caption.picks] == pytest.approx([1.15, 4.4, 7.7, 10.95], abs=1e-3)
    assert (caption.frames_seen, caption.seconds) == (30, pytest.approx(14.0))
    assert [(segment.start, segment.end, segment.text) for segment in captioner.timeline(SAMPLE)] == [
        (0.0, 8.0, "a man is looking at the camera"),
        (8.0, 14.0, "a bird is eating"),
    ]
    assert [update.text for update in captioner.stream(SAMPLE)] == [
        "a polar bear is eating",
        "a man is working on a machine",
        "a man is talking",
    ]


def test_clips_of_msvd_have_their_captions(captioner):
    folder = SHARED / "msvd" / "videos"
    if not folder.is_dir():
        pytest.skip(f"needs MSVD's clips in {folder}")
    found = {name: captioner.caption(folder / name).text for name in CAPTIONS}
    assert found == CAPTIONS


@pytest.mark.parametrize("path", real_clips(), ids=lambda path: path.name)
def test_graphs_and_pytorch_pick_the_same_frames_and_write_the_same_words(path, captioner, network):
    torch_network, vocabulary, config = network
    with Video(path) as video:
        frames = list(video.sample_evenly(count=config.video.num_frames))
    glances = torch.from_numpy(np.stack([frame.glance() for frame in frames]))[None]
    with torch.inference_mode():
        picked = torch_network.picknet.walk(glances, torch.tensor([len(frames)])).picked
        chosen = [frame for frame, pick in zip(frames, picked[0].tolist(), strict=True) if pick]
        pixels = torch.from_numpy(np.stack([frame.pixels(config.model.image_size) for frame in chosen]))
        memory = torch_network.encoder(torch_network.cnn(pixels)[None], torch.tensor([len(chosen)]))
        words = torch_network.decoder.write(memory, max_words=config.text.max_words)
    caption = captioner.caption(path, beam=1)
    assert [pick.index for pick in caption.picks] == [frame.index for frame in chosen]
    assert caption.text == vocabulary.decode(words[0].tolist())


def test_its_policy_agrees_with_pytorch_although_a_blind_one_is_exported_without_convolutions(captioner, network):
    picknet = network[0].picknet
    rng = np.random.default_rng(0)
    glances, templates = rng.integers(0, 256, (2, 9, 56, 56), dtype=np.uint8)
    waits = np.linspace(0, 2, 9, dtype=np.float32)
    with torch.inference_mode():
        logits = picknet(torch.from_numpy(glances), torch.from_numpy(templates), torch.from_numpy(waits))
    expected = logits.softmax(1)[:, 1].numpy()
    assert captioner.runtime.policy(glances, templates, waits) == pytest.approx(expected, abs=1e-6)
    if picknet.is_blind:
        assert b"Conv" not in (FOLDER / "policy.onnx").read_bytes()


def test_the_stream_of_a_file_ends_where_the_offline_caption_of_its_frames_does(captioner):
    with Video(SAMPLE) as video:
        frames = list(video.sample_by_time(fps=1.0))
    one_scene = {"new_scene": lambda frame: False}
    updates = list(captioner.stream(SAMPLE, fps=1.0, **one_scene))
    caption = captioner.caption(frames)
    assert updates[-1].text == caption.text
    assert tuple(update.pick for update in updates) == caption.picks
