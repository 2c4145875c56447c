"""Policies that see something else than grey: trained, exported and used, from the clip to the caption."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from clips import write_clip
from folders import unsealed
from policies import random_inputs, walked

from picknet.captioner import Captioner, load
from picknet.cli import main
from picknet.config import GlanceKind, ModelConfig, parse_config
from picknet.data.split import Clip
from picknet.model.folder import BadModel
from picknet.model.runtime import Runtime
from picknet.picking.picker import glance_kind
from picknet.picking.plain import UniformPicker
from picknet.study.judging import ClipFeatures
from picknet.training.export import load_network
from picknet.training.policies import PickNet, RatePickNet
from picknet.training.recipe import train
from picknet.video.file import Video
from picknet.video.frame import GLANCE_CHANNELS, Frame, NoSuchGlance
from picknet.video.live import Live
from picknet.video.motion import NoMotionVectors

CONFIG = """
[video]
num_frames = 6
[text]
min_count = 1
max_words = 6
[model]
cnn = "efficientnet_lite0"
image_size = 64  # as other small models of the tests: they share a traced CNN
embedding_size = 8
state_size = 8
picker_hidden = 6
initial_pick_probability = 0.3
[reward]
min_picks = 1
[supervision]
epochs = 1
[reinforcement]
epochs = 1
samples = 2
learning_rate = 0.01
[adaptation]
epochs = 1
"""
POLICIES: list[tuple[GlanceKind, str]] = [("colour", "rate"), ("packets", "rate"), ("motion", "difference")]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips of blinking boxes."""
    folder = tmp_path_factory.mktemp("data")
    rows = []
    for i in range(6):
        write_clip(folder / f"clip{i}.mp4", num_frames=20 + 5 * i)
        rows.append({"clip": f"clip{i}", "caption": f"a box blinks {i % 2}", "split": "train" if i < 4 else "val"})
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module", params=POLICIES, ids=lambda policy: "-".join(policy))
def run(
    request: pytest.FixtureRequest, data: Path, tmp_path_factory: pytest.TempPathFactory, traced_cnns: None
) -> Path:
    """A run of all three stages."""
    kind, picker = request.param
    out = tmp_path_factory.mktemp("runs") / kind
    config = parse_config(CONFIG, [f"model.glance={kind}", f"model.picker={picker}"])
    train(config, data=data, out=out, device="cpu")
    return out


@pytest.fixture
def captioner(run: Path) -> Captioner:
    return load(run)


@pytest.fixture
def no_graphs() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("picknet.training.export._export_graphs", lambda *_: None)
        yield


def policy_weights(run: Path) -> dict[str, torch.Tensor]:
    return dict(load_network(run / "model")[0].picknet.named_parameters())


# --- From training to use ---


def test_an_exported_policy_picks_what_the_network_picks(run: Path, captioner: Captioner, data: Path) -> None:
    network, _, config = load_network(run / "model")
    kind = config.model.glance
    assert glance_kind(captioner.picker) == kind
    for clip in sorted(data.glob("*.mp4")):
        with Video(clip, glance=kind) as video:
            glances = np.stack([frame.glance_as(kind) for frame in video.sample_evenly(count=6)])
        assert glances.shape == (6, GLANCE_CHANNELS[kind], 56, 56)
        with torch.no_grad():
            picked = walked(network.picknet, torch.from_numpy(glances)[None], torch.tensor([6])).picked[0]
        caption = captioner.caption(clip)
        assert [pick.index for pick in caption.picks] == picked.nonzero()[:, 0].tolist()


def test_its_graph_computes_what_pytorch_computes(run: Path) -> None:
    network, _, config = load_network(run / "model")
    rng = np.random.default_rng(0)
    inputs = random_inputs(config.model, rng, 3)
    for name in ("glances", "templates", "previous"):
        if name in inputs:
            inputs[name] = rng.integers(0, 256, (3, GLANCE_CHANNELS[config.model.glance], 56, 56), dtype=np.uint8)
    with torch.no_grad():
        policy = network.picknet(*map(torch.from_numpy, inputs.values()))
    logits = policy if config.model.picker == "difference" else policy[0]
    np.testing.assert_allclose(Runtime(run / "model").policy(inputs)["logits"], logits.numpy(), atol=2e-3)


def test_reinforcement_on_clips_changes_what_the_policy_sees_with(run: Path) -> None:
    model = parse_config((run / "config.toml").read_text()).model
    first = "hidden.weight" if model.picker == "difference" else "look.0.weight"
    size = GLANCE_CHANNELS[model.glance]
    weights = policy_weights(run)
    assert weights[first].shape == ((6, size * 56 * 56) if model.picker == "difference" else (16, 2 * size, 4, 4))
    assert weights["decide.weight"].abs().max() > 0
    stages = [row.split(",")[0] for row in (run / "metrics.csv").read_text().splitlines()[1:]]
    assert stages == ["supervision", "reinforcement", "adaptation"]


def test_every_way_of_use_opens_the_video_for_the_policy(captioner: Captioner, data: Path) -> None:
    clip = data / "clip5.mp4"
    kind = captioner.config.model.glance
    assert [caption.error for caption in captioner.caption_many([clip, clip])] == [None, None]
    assert len(list(captioner.timeline(clip, fps=5))) >= 1
    assert len(captioner.picked(clip).frames) >= 1
    assert len(captioner.picked(clip, budget=2).frames) == 2
    assert len(captioner.picked(clip, budget=1, picker=captioner.picker).frames) == 1
    assert list(captioner.stream(clip, fps=5))
    assert list(captioner.stream(clip, fps=5, realtime=True))  # every graph runs once before the first frame
    assert list(captioner.stream(Live(clip, fps=5, glance=kind)))
    assert captioner.caption(clip, picker=UniformPicker(2)).text
    [frame, *_] = ClipFeatures(captioner, None).read(Clip("clip5", clip, ("a box",)))
    assert frame.glance_as(kind).shape == (GLANCE_CHANNELS[kind], 56, 56)


@pytest.mark.parametrize("command", ["caption", "stream", "timeline", "pick"])
def test_commands_open_the_video_for_the_policy(run: Path, data: Path, tmp_path: Path, command: str) -> None:
    # A sheet of thumbnails comes from a picker around the model's own.
    options = ["--out", tmp_path / "picks"] if command == "pick" else ["--sheet", tmp_path / "sheet.png"]
    with pytest.raises(SystemExit) as exit:
        main([command, *map(str, [data / "clip5.mp4", "--model", run / "model", *options])])
    assert not exit.value.code


def test_frames_without_motion_or_packets_are_an_error(captioner: Captioner, data: Path) -> None:
    pixels = np.zeros((4, 32, 32, 3), np.uint8)
    kind = captioner.config.model.glance
    if kind == "colour":
        assert captioner.caption(pixels).picks
        return
    expected = f"the frame at 0.0 s has no {kind}: only frames of a video do, opened with glance='{kind}'"
    with pytest.raises(NoSuchGlance, match=expected):
        captioner.caption(pixels)
    with pytest.raises(NoSuchGlance, match=expected):
        list(captioner.stream(pixels))
    with pytest.raises(NoSuchGlance, match=expected):
        list(captioner.stream(Live(data / "clip0.mp4")))


def test_a_video_without_motion_vectors_is_an_error(captioner: Captioner, tmp_path: Path) -> None:
    clip = write_clip(tmp_path / "clip.mkv", codec="libvpx-vp9", num_frames=5)
    if captioner.config.model.glance != "motion":
        assert captioner.caption(clip).picks
        return
    with pytest.raises(NoMotionVectors, match=r"clip\.mkv: its decoder \(.*vp9\) gives no motion vectors"):
        captioner.caption(clip)
    [caption] = captioner.caption_many([clip])
    assert caption.error is not None
    assert "gives no motion vectors" in caption.error


# --- Training from another model, and with judges ---


@pytest.mark.usefixtures("no_graphs")
def test_fine_tuning_may_change_the_glance_and_then_has_a_new_policy(run: Path, data: Path, tmp_path: Path) -> None:
    before = load_network(run / "model")[0].state_dict()
    settings = ["model.glance=grey", "supervision.epochs=0", "adaptation.epochs=0"]
    config = parse_config((run / "config.toml").read_text(), settings)
    train(config, data=data, out=tmp_path / "tuned", start=run / "model", device="cpu")
    network, _, config = load_network(tmp_path / "tuned" / "model")
    after = network.state_dict()
    assert config.model.glance == "grey"
    first = "picknet.hidden.weight" if config.model.picker == "difference" else "picknet.look.0.weight"
    assert before[first].shape != after[first].shape
    assert all(torch.equal(before[name], after[name]) for name in before if not name.startswith("picknet."))


@pytest.mark.usefixtures("no_graphs")
def test_a_judge_may_see_other_glances_than_the_policy_it_rewards(run: Path, data: Path, tmp_path: Path) -> None:
    settings = ["model.glance=packets", "supervision.epochs=0", "adaptation.epochs=0", "reinforcement.baseline=others"]
    config = parse_config((run / "config.toml").read_text(), settings)
    start = run / "model"
    out = train(config, data=data, out=tmp_path / "run", start=start, judges=[f"{start}=folder"], device="cpu")
    assert load_network(out)[2].model.glance == "packets"


# --- Against the grey policy ---


def test_colours_that_have_no_weight_change_nothing() -> None:
    """With weights for Y alone, a policy that sees colour is the grey one."""
    torch.manual_seed(0)
    grey_config = ModelConfig(picker="rate", picker_hidden=7, initial_pick_probability=0.3)
    colours = torch.randint(0, 256, (2, 12, 3, 56, 56), dtype=torch.uint8)
    counts = torch.tensor([12, 9])
    for kind, first in ((RatePickNet, "look.0.weight"), (PickNet, "hidden.weight")):
        grey, colour = kind(grey_config), kind(replace(grey_config, glance="colour"))
        torch.nn.init.normal_(grey.decide.weight, std=4.0)
        weights = grey.state_dict()
        wide = torch.zeros_like(colour.state_dict()[first])
        if kind is RatePickNet:
            wide[:, [0, 3]] = weights[first]  # Y, and the change of Y
        else:
            wide[:, : 56 * 56] = weights[first]
        colour.load_state_dict(weights | {first: wide})
        expected = walked(grey, colours[:, :, 0], counts, samples=2, generator=torch.Generator().manual_seed(1))
        found = walked(colour, colours, counts, samples=2, generator=torch.Generator().manual_seed(1))
        assert torch.equal(found.picked, expected.picked)
        torch.testing.assert_close(found.log_probabilities, expected.log_probabilities)


@pytest.mark.parametrize("kind", ["colour", "motion", "packets"])
@pytest.mark.parametrize("policy", [PickNet, RatePickNet])
def test_every_channel_is_seen(policy: type[PickNet] | type[RatePickNet], kind: GlanceKind) -> None:
    torch.manual_seed(0)
    picknet = policy(ModelConfig(picker_hidden=7, glance=kind))
    torch.nn.init.normal_(picknet.decide.weight)
    glances = torch.randint(0, 256, (1, 4, GLANCE_CHANNELS[kind], 56, 56), dtype=torch.uint8)
    counts = torch.tensor([4])

    def decided(seen: torch.Tensor) -> torch.Tensor:
        return walked(picknet, seen, counts, generator=torch.Generator().manual_seed(0)).log_probabilities

    for channel in range(GLANCE_CHANNELS[kind]):
        changed = glances.clone()
        changed[:, 2, channel] = 255 - changed[:, 2, channel]
        assert not torch.equal(decided(changed), decided(glances))


def test_a_policy_of_another_glance_than_its_config_says_is_refused(model_folder: Path, tmp_path: Path) -> None:
    broken = unsealed(model_folder, tmp_path / "broken")
    text = (broken / "config.toml").read_text()
    (broken / "config.toml").write_text(text.replace('glance = "grey"', 'glance = "colour"'))
    with pytest.raises(BadModel, match=r"policy\.onnx: glances is u8 n 56 56 where u8 n 3 glance glance was expected"):
        Runtime(broken)
    with pytest.raises(BadModel, match=r"policy\.safetensors: does not fit config\.toml"):
        load_network(broken)


def test_a_blank_frame_has_every_glance() -> None:
    blank = Frame.blank(40)
    assert not blank.pixels().any()
    for kind, channels in GLANCE_CHANNELS.items():
        assert blank.glance_as(kind).shape == (channels, 56, 56)
