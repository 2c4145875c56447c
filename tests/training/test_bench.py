"""Systems are trained by the same recipe as PickNet's captioner, and judged on one bench."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from picknet import metrics
from picknet.cli import main
from picknet.config import load_config, parse_config, to_toml
from picknet.data import BadData
from picknet.data.split import DataFolder
from picknet.training import export
from picknet.training.bench import Bench, evenly_as_many, load_run
from picknet.training.progress import TrainingProgress
from picknet.training.recipe import train
from picknet.training.runs import BadRun

CONFIG = parse_config(
    """
    [video]
    num_frames = 6
    [text]
    min_count = 1
    max_words = 6
    [model]
    system = "s2vt"
    cnn = "efficientnet_lite0"
    image_size = 32
    embedding_size = 8
    state_size = 12
    picker_hidden = 10
    [reward]
    min_picks = 1
    max_picks_floor = 4
    [supervision]
    epochs = 3
    learning_rate = 0.03
    batch_size = 6
    average = 0.9
    keep = "last"
    [reinforcement]
    epochs = 0
    [adaptation]
    epochs = 0
    """
)


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """Five clips, three of them to train on."""
    from clips import write_clip

    folder = tmp_path_factory.mktemp("data")
    rows = []
    for i in range(5):
        shape = ("square", "long", "wide")[i % 3]
        write_clip(folder / f"clip{i}.mp4", num_frames=8, width=32 + 64 * (i % 3), height=48)
        for caption in (f"a {shape} box blinks", f"the box is {shape}"):
            rows.append({"clip": f"clip{i}", "caption": caption, "split": "train" if i < 3 else "val"})
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def runs(clips, tmp_path_factory) -> Path:
    """A folder of two runs, of systems with and without graphs; these are not written, which takes long."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_export_graphs", lambda *_: None)
        for system in ("s2vt", "aalto"):
            settings = parse_config(to_toml(CONFIG).replace("s2vt", system))
            train(settings, data=DataFolder("folder", clips), out=folder / system, device="cpu")
    return folder





def test_a_resumed_system_ends_like_one_that_was_not_stopped(clips, runs, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_export_graphs", lambda *_: None)
    settings = {"data": DataFolder("folder", clips), "out": tmp_path / "s2vt", "device": "cpu"}

    class Stopped(Exception):
        pass

    class Stopping(TrainingProgress):
        def on_epoch(self, stage, done, total, figures):
            if done == 2:
                raise Stopped

    monkeypatch.setattr("picknet.training.runs.SAVE_SECONDS", 0.0)
    with pytest.raises(Stopped):
        train(CONFIG, **settings, cache=runs / "feature-cache", progress=Stopping())
    train(CONFIG, **settings, cache=runs / "feature-cache", resume=True)
    one, other = (load_run(folder / "s2vt", torch.device("cpu"))[0] for folder in (runs, tmp_path))
    for name, weight in one.state_dict().items():
        if not name.startswith("picknet."):  # which no stage has trained
            assert torch.equal(weight, other.state_dict()[name]), name


def test_what_two_modules_share_is_stored_once(runs):
    from safetensors import safe_open

    with safe_open(runs / "s2vt" / "model" / "weights.safetensors", "np") as file:
        names = [name for name in file.offset_keys() if "stack" in name]
    assert names
    assert all(name.startswith("encoder.") for name in names)
    network, _, _ = export.load_network(runs / "s2vt" / "model")
    assert network.decoder.stack is network.encoder.stack


def test_a_bench_describes_the_validation_clips_from_each_choice_of_frames(clips, runs):
    bench = Bench((DataFolder("folder", clips),), runs / "feature-cache", torch.device("cpu"))
    described, references = bench.describe([runs / "aalto", runs / "s2vt"])
    assert [(one.system, one.frames) for one in described] == [
        (system, frames) for system in ("aalto", "s2vt") for frames in ("own", "uniform", "picknet")
    ]
    own, uniform, picknet = described[3:]
    assert own.mean_frames == 6
    assert uniform.mean_frames == picknet.mean_frames < 6
    assert set(references) == {"clip3", "clip4"} == set(own.captions)
    assert (own.epochs, own.trained_on, own.seed) == (3, "all frames", 0)
    with pytest.raises(BadRun, match="not a run folder with a checkpoint"):
        bench.describe([runs / "nothing"])


def changed_run(run: Path, out: Path, *, used: dict[str, list[str]], missing: tuple[str, ...] = (), fold=None, more=()):
    """A copy of a run that names other clips, and has other settings."""
    shutil.copytree(run, out)
    listed = {split: {"used": names, "missing": []} for split, names in used.items()}
    listed["val"]["missing"] = [{"name": name, "reason": "empty"} for name in missing]
    (out / "clips.json").write_text(json.dumps(listed))
    (out / "origin.json").write_text(json.dumps({"fold": fold}))
    (out / "config.toml").write_text(to_toml(load_config(out / "config.toml", more)))
    return out


def test_a_run_describes_the_clips_that_it_was_validated_on(clips, runs, tmp_path):
    data, cache = DataFolder("folder", clips), runs / "feature-cache"
    used = {"train": ["folder1/clip1", "folder1/clip2", "folder2/clip0"], "val": ["clip0"]}
    styled = changed_run(runs / "s2vt", tmp_path / "styled", used=used, fold="1/3", more=["text.styles=true"])
    _, references = Bench((data, data), cache, torch.device("cpu")).describe([styled])
    assert set(references) == {"clip0"}  # of the first data folder alone, as in training with styles
    used = {"train": ["clip0"], "val": ["clip3"]}
    unreadable = changed_run(runs / "s2vt", tmp_path / "unreadable", used=used, missing=("clip4",))
    _, references = Bench((data,), cache, torch.device("cpu")).describe([unreadable])
    assert set(references) == {"clip3"}


def test_a_run_whose_own_policy_sees_other_glances_is_described_from_the_same_picks(clips, runs, tmp_path):
    used = {"train": ["clip0", "clip1", "clip2"], "val": ["clip3", "clip4"]}
    coloured = changed_run(runs / "s2vt", tmp_path / "coloured", used=used, more=["model.glance=colour"])
    bench = Bench((DataFolder("folder", clips),), runs / "feature-cache", torch.device("cpu"))
    described, _ = bench.describe([coloured, runs / "s2vt"])
    first, second = ([one.captions for one in described if one.run == str(run)] for run in (coloured, runs / "s2vt"))
    assert first == second


@pytest.mark.parametrize(
    ("train_clips", "val_clips", "example"),
    [
        (["clip0", "clip3"], ["clip2", "clip4"], "clip3, which it was trained on"),
        (["clip0"], ["clip3"], "clip4"),
        (["clip0"], ["clip3", "clip4", "other"], "other"),
    ],
)
def test_a_run_of_other_validation_clips_is_refused(clips, runs, tmp_path, train_clips, val_clips, example):
    run = changed_run(runs / "s2vt", tmp_path / "run", used={"train": train_clips, "val": val_clips})
    bench = Bench((DataFolder("folder", clips),), runs / "feature-cache", torch.device("cpu"))
    with pytest.raises(BadData) as error:
        bench.describe([run])
    assert str(error.value) == (
        f"{run}: the data folders have other validation clips than its clips.json, such as {example}; name the folders "
        "that it was trained on, as they were and in the same order"
    )


def test_a_validation_clip_that_was_lost_since_is_named(clips, runs, tmp_path):
    folder = shutil.copytree(clips, tmp_path / "clips")
    (folder / "clip4.mp4").write_bytes(b"")
    bench = Bench((DataFolder("folder", folder),), runs / "feature-cache", torch.device("cpu"))
    with pytest.raises(BadData, match=r"^clip4: can no longer be read \(.*\), and a run was validated on this clip$"):
        bench.describe([runs / "s2vt"])


def test_a_run_that_does_not_list_its_clips_is_refused(clips, runs, tmp_path):
    run = shutil.copytree(runs / "s2vt", tmp_path / "run")
    (run / "clips.json").write_text("{}")
    bench = Bench((DataFolder("folder", clips),), runs / "feature-cache", torch.device("cpu"))
    with pytest.raises(BadRun, match=f"^{run}: its clips.json does not list its clips; train it again$"):
        bench.describe([run])


def test_as_many_frames_evenly():
    picked = torch.tensor([[True, True, False, False, False, False], [False, False, True, False, False, False]])
    even = evenly_as_many(picked, torch.tensor([6, 4]))
    # Two parts of six frames have their centres at 1.5 and 4.5; one part of four at 2.
    assert [row.nonzero().flatten().tolist() for row in even] == [[1, 4], [2]]


def test_picknet_learns_from_the_captions_of_another_system(clips, runs, tmp_path, monkeypatch):
    monkeypatch.setattr(export, "_export_graphs", lambda *_: None)
    reinforced = parse_config(to_toml(CONFIG), ["reinforcement.epochs=2", "reinforcement.learning_rate=0.01"])
    train(
        reinforced,
        data=DataFolder("folder", clips),
        out=tmp_path / "picked",
        start=runs / "s2vt",
        stages=["reinforcement"],
        cache=runs / "feature-cache",
        device="cpu",
    )
    before, after = (export.load_network(folder / "model")[0] for folder in (runs / "s2vt", tmp_path / "picked"))
    same = {name: torch.equal(weight, after.state_dict()[name]) for name, weight in before.state_dict().items()}
    assert all(equal for name, equal in same.items() if not name.startswith("picknet."))


def test_the_command_writes_tables_and_a_picture(clips, runs, tmp_path, capsys, monkeypatch):
    pytest.importorskip("matplotlib")
    monkeypatch.setattr(metrics, "meteor", lambda *_: None)  # its word lists take seconds to read
    words = ["bench", str(runs / "s2vt"), "--data", f"folder={clips}", "--out", str(tmp_path), "--device", "cpu"]
    with pytest.raises(SystemExit) as ended:
        main(words)
    output = capsys.readouterr().out
    assert ended.value.code == 0
    assert "| S2VT" in output
    assert (tmp_path / "field.png").stat().st_size > 10_000
    page = (tmp_path / "field.md").read_text()
    assert "# The field on folder" in page
    assert "Epochs: S2VT 3." in page
    rows = json.loads((tmp_path / "field.json").read_text())["rows"]
    assert [row["frames"] for row in rows] == ["own", "uniform", "picknet"]


def test_a_system_starts_with_the_shipped_policy_where_its_settings_are_the_same(runs):
    from picknet.model.folder import SHIPPED
    from picknet.training.network import Network
    from picknet.training.recipe import _take_shipped_policy

    shipped, _, settings = export.load_network(SHIPPED / "msvd")
    picker = f"model.picker={settings.model.picker}", f"model.picker_hidden={settings.model.picker_hidden}"
    same = parse_config(to_toml(CONFIG), picker)
    network = Network(same.model, 9, pretrained=False)
    _take_shipped_policy(network, same)
    for name, weight in shipped.picknet.state_dict().items():
        assert torch.equal(weight, network.picknet.state_dict()[name])
    _take_shipped_policy(Network(CONFIG.model, 9, pretrained=False), CONFIG)  # another policy is left as it is
