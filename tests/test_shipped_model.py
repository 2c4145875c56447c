"""The model that ships: small enough, and the same in PyTorch as in its graphs, on real clips."""

from pathlib import Path

import numpy as np
import pytest
import torch

import picknet
from picknet.captioner import DEFAULT_MODEL, SHIPPED
from picknet.training.export import load_network
from picknet.video.file import Video

ROOT = Path(__file__).resolve().parents[1]
SHARED = ROOT.parent / "shared"
FOLDER = SHIPPED / DEFAULT_MODEL


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


def test_the_sample_has_its_sentence(captioner):
    caption = captioner.caption(ROOT / "samples" / "cockatoo.mp4")
    assert caption.text.startswith("a ")
    assert 1 <= len(caption.picks) <= 30
    assert caption.frames_seen == 30


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


def test_its_policy_is_pytorchs_though_it_leaves_out_what_has_no_say(captioner, network):
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
    with Video(ROOT / "samples" / "cockatoo.mp4") as video:
        frames = list(video.sample_by_time(fps=1.0))
    one_scene = {"new_scene": lambda frame: False}
    updates = list(captioner.stream(ROOT / "samples" / "cockatoo.mp4", fps=1.0, **one_scene))
    caption = captioner.caption(frames)
    assert updates[-1].text == caption.text
    assert tuple(update.pick for update in updates) == caption.picks
