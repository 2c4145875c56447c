"""Whole trainings on a tiny data set: stages learn, runs resume and repeat exactly."""

import contextlib
import csv
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from PIL import Image
from policies import walked

from picknet.config import STAGES, BadConfig, Config, ModelConfig, load_config, parse_config, to_toml
from picknet.data import BadData
from picknet.data.split import Clip, DataFolder, Split
from picknet.files import open_lock, take_lock
from picknet.metrics import Cider
from picknet.model.folder import SHIPPED, BadModel, ModelFolder
from picknet.text import BOS, EOS, PAD, Vocabulary, tokenise
from picknet.training.batches import caption_batches, first_words, prepare, teacher_forcing_probability
from picknet.training.cnn import CNN
from picknet.training.export import load_network
from picknet.training.features import FeatureSplit, PixelSplit
from picknet.training.folds import Fold, fold_splits, official_splits
from picknet.training.judges import Environment, Judge, JudgeRun
from picknet.training.learner import BatchParts, Learner, OutOfMemory, Weights, rate_factor
from picknet.training.network import Network
from picknet.training.progress import TrainingProgress
from picknet.training.recipe import export_run, train
from picknet.training.runs import LOCK, BadRun, Run, checkpoint, claim, pause_after
from picknet.training.stages import (
    adaptation,
    all_frames,
    cross_entropy,
    evenly,
    leave_one_out,
    policy_loss,
    random_subsets,
    sample_picks,
    validation,
)
from picknet.training.teachers import teachers

CONFIG = parse_config(
    """
    [video]
    num_frames = 6
    [text]
    min_count = 1
    max_words = 8
    [model]
    cnn = "efficientnet_lite0"
    image_size = 32
    embedding_size = 8
    state_size = 12
    picker_hidden = 10
    dropout = 0.1
    [reward]
    min_picks = 1
    max_picks_floor = 4
    [supervision]
    epochs = 10
    learning_rate = 0.03
    batch_size = 6
    captions_per_video = 2
    average = 0.9
    [reinforcement]
    epochs = 4
    learning_rate = 0.01
    samples = 2
    [adaptation]
    epochs = 4
    learning_rate = 0.003
    batch_size = 6
    schedule = "cosine"
    """
)


FROM_PIXELS = parse_config(
    to_toml(CONFIG),
    [
        "model.image_size=68", "model.grid=2", "model.attention_heads=2", "model.attention_hidden=16",
        "model.tied_words=true", "model.picker=rate", "model.cell_dropout=0.3", "model.drop_path=0.2",
        "supervision.epochs=2",
        "supervision.cnn_learning_rate=0.003", "supervision.frames_per_batch=4", "supervision.warmup_steps=3",
        "supervision.min_frames=1", "supervision.max_frames=2", "supervision.captions_per_video=3",
        "reinforcement.epochs=2", "reinforcement.baseline=others", "adaptation.epochs=1",
    ],
)  # fmt: skip
"""Everything that is not in the paper. Crops of 64 of 68 pixels give a feature map of 2 × 2."""
SOME_CLIPS = ("clip0", "clip1", "clip2", "clip6")


@pytest.fixture(scope="module")
def clips(tmp_path_factory) -> Path:
    """Nine clips of blinking boxes, three captions each, two thirds for training."""
    from clips import write_clip

    folder = tmp_path_factory.mktemp("data")
    (folder / "videos").mkdir()
    rows = []
    for i in range(9):
        shape = ("square", "long", "wide")[i % 3]
        write_clip(folder / "videos" / f"clip{i}.mp4", num_frames=8, width=32 + 64 * (i % 3), height=48)
        for caption in (f"a {shape} box blinks", f"the box is {shape}", f"{shape} thing"):
            rows.append({"clip": f"clip{i}", "caption": caption, "split": "train" if i < 6 else "val"})
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(scope="module")
def data(clips) -> tuple[DataFolder, ...]:
    return (DataFolder("folder", clips),)


@pytest.fixture(scope="module")
def mixed(clips, tmp_path_factory) -> tuple[DataFolder, ...]:
    """Some of those clips, and two pictures in the form of Flickr8k, all for training."""
    from clips import picture

    some, pictures = tmp_path_factory.mktemp("some"), tmp_path_factory.mktemp("pictures")
    rows = [row for row in (clips / "captions.jsonl").read_text().splitlines() if json.loads(row)["clip"] in SOME_CLIPS]
    (some / "captions.jsonl").write_text("\n".join(rows))
    for name in SOME_CLIPS:
        shutil.copy(clips / "videos" / f"{name}.mp4", some)
    for i in range(2):
        Image.fromarray(picture(i)).save(pictures / f"{i}.png")
    (pictures / "captions.txt").write_text("image,caption\n0.png,a still box\n1.png,a box stands still\n")
    return DataFolder("folder", some), DataFolder("flickr8k", pictures)


@pytest.fixture(scope="module", autouse=True)
def _no_graphs():
    """Model folders are written without their graphs, which would take far longer than these small trainings."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("picknet.training.export._export_graphs", lambda *_: None)
        yield


class Notes(TrainingProgress):
    """Keeps the notes of a training."""

    def __init__(self) -> None:
        self.notes: list[str] = []

    def on_note(self, text: str) -> None:
        self.notes.append(text)


STARTS: dict[str, dict[str, torch.Tensor]] = {}
"""The weights at the start of each stage of the `finished` run."""


@pytest.fixture(scope="module")
def finished(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    run_stage = Run.stage

    def record_start(run, name, network, *rest):
        STARTS[name] = {key: tensor.clone() for key, tensor in network.state_dict().items()}
        run_stage(run, name, network, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Run, "stage", record_start)
        train(CONFIG, data=data, out=out, device="cpu", command="picknet train tiny.toml")
    return out


@pytest.fixture(scope="module")
def from_pixels(mixed, tmp_path_factory) -> Path:
    """A run in which the CNN learns too, from clips and pictures."""
    out = tmp_path_factory.mktemp("runs") / "pixels"
    progress = Notes()
    train(FROM_PIXELS, data=mixed, out=out, device="cpu", progress=progress)
    (out / "notes.txt").write_text("\n".join(progress.notes))
    return out


def rows_of(run: Path) -> list[dict[str, str]]:
    """What was measured, but for the time it took, which no run repeats."""
    with (run / "metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    return [{key: value for key, value in row.items() if key != "seconds"} for row in rows]


WEIGHTS = ("weights.safetensors", "policy.safetensors")


def weights_of(run: Path) -> bytes:
    return b"".join((run / "model" / part).read_bytes() for part in WEIGHTS)


def model_tensors(run: Path) -> dict[str, torch.Tensor]:
    return {name: tensor for part in WEIGHTS for name, tensor in tensors_of(run / "model" / part).items()}


def test_a_run_folder_contains_everything_to_use_and_repeat_it(finished):
    found = {path.name for path in finished.iterdir()}
    assert found == {
        "config.toml", "origin.json", "versions.json", "words.txt", "clips.json", "metrics.csv", "tensorboard",
        "checkpoints", "model", ".lock",
    }  # fmt: skip
    epochs = {"supervision": 10, "reinforcement": 4, "adaptation": 4}
    assert [row["stage"] for row in rows_of(finished)] == [stage for stage, n in epochs.items() for _ in range(n)]
    assert all(row["val_cider"] and row["val_picks"] for row in rows_of(finished))
    with (finished / "metrics.csv").open(newline="") as file:
        assert all(0 < float(row["seconds"]) < 60 for row in csv.DictReader(file))
    assert parse_config((finished / "config.toml").read_text()) == CONFIG
    versions = json.loads((finished / "versions.json").read_text())
    assert (versions["command"], versions["torch"]) == ("picknet train tiny.toml", version("torch"))
    card = json.loads((finished / "model" / "card.json").read_text())
    assert set(card["stages"]) == set(epochs)
    assert card["clips"] == {"train": {"used": 6, "missing": 0}, "val": {"used": 3, "missing": 0}}


def test_supervision_learns(finished):
    losses = [float(row["loss"]) for row in rows_of(finished) if row["stage"] == "supervision"]
    assert losses[-1] < 0.5 * losses[0]


def test_each_stage_starts_from_the_best_weights_of_the_one_before(finished):
    expected = dict(STARTS["supervision"])
    for stage in STAGES:
        for name, tensor in STARTS[stage].items():
            assert torch.equal(tensor, expected[name]), (stage, name)
        best = tensors_of(checkpoint(finished, stage, "best"))
        assert any(not torch.equal(tensor, expected[name]) for name, tensor in best.items()), stage
        expected |= best
    exported = model_tensors(finished)
    assert all(torch.equal(tensor, expected[name].to(tensor.dtype)) for name, tensor in exported.items())


def test_one_seed_gives_one_result(data, finished, tmp_path):
    train(CONFIG, data=data, out=tmp_path / "again", cache=finished.parent / "feature-cache", device="cpu")
    assert rows_of(tmp_path / "again") == rows_of(finished)
    assert weights_of(tmp_path / "again") == weights_of(finished)


KILLED = """
import sys
from pathlib import Path
import torch
from picknet.config import load_config
from picknet.data.split import DataFolder
from picknet.training import export, recipe, runs
torch.set_num_threads(1)
runs.SAVE_SECONDS = 0.0
export._export_graphs = lambda *_: None
config, clips, out, cache, resume = sys.argv[1:]
data = (DataFolder("folder", Path(clips)),)
recipe.train(load_config(config), data=data, out=out, cache=cache, resume=bool(resume), device="cpu")
"""


def test_a_run_killed_in_each_stage_ends_as_an_uninterrupted_one(clips, data, finished, tmp_path):
    out = tmp_path / "killed"
    (tmp_path / "config.toml").write_text(to_toml(CONFIG))
    arguments = [str(tmp_path / "config.toml"), str(clips), str(out), str(finished.parent / "feature-cache")]
    resume = ""
    for rows_at_death in (4, 12, 16):
        process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments, resume])
        deadline = time.monotonic() + 120
        while not (out / "metrics.csv").exists() or len(rows_of(out)) < rows_at_death:
            assert process.poll() is None, "it should have been killed long before its end"
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        resume = "resume"
    train(CONFIG, data=data, out=out, cache=finished.parent / "feature-cache", resume=True, device="cpu")
    assert rows_of(out) == rows_of(finished)
    assert weights_of(out) == weights_of(finished)


def tensors_of(path: Path) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


def test_from_pixels_the_cnn_is_trained_but_not_its_batch_statistics(from_pixels):
    before = CNN(FROM_PIXELS.model).state_dict()
    after = {
        name.removeprefix("cnn."): tensor
        for name, tensor in tensors_of(from_pixels / "model" / "weights.safetensors").items()
        if name.startswith("cnn.")
    }
    assert len(after) > 200
    changed = {name for name, tensor in after.items() if not torch.equal(tensor, before[name].to(tensor.dtype))}
    statistics = {name for name in after if name.endswith(("running_mean", "running_var"))}
    assert len(statistics) > 90
    assert not changed & statistics
    assert len(changed) > 0.9 * len(after.keys() - statistics)


def test_only_supervision_trains_the_cnn(from_pixels):
    trained = {
        stage: {name.partition(".")[0] for name in tensors_of(checkpoint(from_pixels, stage, "best"))}
        for stage in STAGES
    }
    captioner = {"encoder", "decoder"}
    assert trained == {
        "supervision": captioner | {"cnn"},
        "reinforcement": {"picknet"},
        "adaptation": captioner | {"picknet"},
    }


def test_clips_and_pictures_of_several_data_sets_are_trained_on_together(from_pixels):
    listed = json.loads((from_pixels / "clips.json").read_text())
    expected = ["folder/clip0", "folder/clip1", "folder/clip2", "flickr8k/0", "flickr8k/1"]
    assert listed["train"] == {"used": expected, "missing": []}
    assert listed["val"]["used"] == ["clip6"]
    assert "still" in (from_pixels / "words.txt").read_text().split()
    assert json.loads((from_pixels / "origin.json").read_text())["dataset"] == "folder+flickr8k"
    note, single = (from_pixels / "notes.txt").read_text().splitlines()
    assert single == "1 validation clip: CIDEr weighs words by how few clips have them: with a single clip it is 0"
    assert note.startswith("no validation clips: ")
    assert "Flickr_8k.devImages.txt" in note


def test_no_validation_split_at_all_is_an_error(mixed, tmp_path):
    with pytest.raises(BadData, match="for the val split of flickr8k"):
        train(FROM_PIXELS, data=mixed[1:], out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_clips_of_one_name_in_two_folders_are_two_clips(data):
    train_clips, val_clips = official_splits((*data, *data))
    names = [clip.name for clip in train_clips.clips]
    assert names == [f"folder1/clip{i}" for i in range(6)] + [f"folder2/clip{i}" for i in range(6)]
    assert len({clip.name for clip in val_clips.clips}) == 6


class Stopped(Exception):
    """Somebody pulled the plug."""


def test_a_training_from_pixels_that_is_stopped_ends_as_an_uninterrupted_one(mixed, from_pixels, tmp_path, monkeypatch):
    monkeypatch.setattr("picknet.training.runs.SAVE_SECONDS", 0.0)
    out, cache = tmp_path / "stopped", from_pixels.parent / "feature-cache"
    settings = {"data": mixed, "out": out, "cache": cache, "device": "cpu"}

    means = Learner.means
    # At the end of an epoch, before it counts: the second of supervision, then, two later, the second of a stage
    # that has the CNN's learning behind it.
    for resume, num_epochs in ((False, 1), (True, 2)):
        unstopped = iter(range(num_epochs))

        def stop(learner: Learner, unstopped: Iterator[int] = unstopped) -> dict[str, float]:
            if next(unstopped, None) is None:
                raise Stopped
            return means(learner)

        monkeypatch.setattr(Learner, "means", stop)
        with pytest.raises(Stopped):
            train(FROM_PIXELS, **settings, resume=resume)
    monkeypatch.setattr(Learner, "means", means)
    assert rows_of(out) == rows_of(from_pixels)[:3]
    train(FROM_PIXELS, **settings, resume=True)
    assert rows_of(out) == rows_of(from_pixels)
    assert weights_of(out) == weights_of(from_pixels)


def test_a_run_is_not_overwritten_and_not_mixed_with_another(data, finished, tmp_path):
    with pytest.raises(BadRun, match="contains a run already; resume it with --resume, or choose a new folder"):
        train(CONFIG, data=data, out=finished)
    other = replace(CONFIG, seed=5)
    with pytest.raises(BadRun, match=r"was started with other settings \('seed = 0', now 'seed = 5'\)"):
        train(other, data=data, out=finished, resume=True)
    with pytest.raises(BadRun, match=r"was started differently \(from: None, now .*model\); repeat the same command"):
        train(CONFIG, data=data, out=finished, resume=True, start=finished / "model")
    with pytest.raises(BadRun, match="no run to resume here"):
        train(CONFIG, data=data, out=tmp_path / "none", resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not touch")
    with pytest.raises(BadRun, match="exists and is not a run folder"):
        train(CONFIG, data=data, out=tmp_path / "full")


def with_other_words(clips: Path, folder: Path) -> tuple[DataFolder, ...]:
    """The same clips, whose captions have two new words instead of one of the old ones."""
    shutil.copytree(clips, folder)
    rows = (folder / "captions.jsonl").read_text().replace("blinks", "twinkles").replace("long thing", "long box")
    (folder / "captions.jsonl").write_text(rows.replace("wide thing", "wide strip"))
    return (DataFolder("folder", folder),)


def test_a_run_is_not_resumed_with_other_captions_but_from_another_place(clips, finished, tmp_path):
    run = tmp_path / "moved" / "run"
    shutil.copytree(finished, run)
    words = (run / "words.txt").read_bytes()
    other, settings = with_other_words(clips, tmp_path / "other"), {"cache": tmp_path / "cache", "device": "cpu"}
    with pytest.raises(BadRun, match="moved/run: was started with other clips or captions; resume it with the data"):
        train(data=other, out=run, resume=True, **settings)
    shutil.copytree(clips, tmp_path / "moved" / "data")
    train(data=tmp_path / "moved" / "data", out=run, resume=True, **settings)
    assert weights_of(run) == weights_of(finished)
    # An older version stored no digest of the clips.
    origin = json.loads((run / "origin.json").read_text())
    (run / "origin.json").write_text(json.dumps({key: origin[key] for key in origin if key != "clips"}))
    expected = r"was started with other words \(words\.txt:\d+: \w+, now \w+\); resume it with the data it was started"
    with pytest.raises(BadRun, match=expected):
        train(data=other, out=run, resume=True, **settings)
    assert (run / "words.txt").read_bytes() == words


def test_no_two_processes_train_in_one_run_folder(data, finished):
    with open_lock(finished / LOCK) as lock:
        assert take_lock(lock)
        with pytest.raises(BadRun, match="another process trains in this run folder; wait for its end"):
            train(CONFIG, data=data, out=finished, resume=True)


def test_a_start_that_failed_before_its_first_epoch_may_be_corrected(tmp_path):
    origin = {"data": "here"}
    for config in (CONFIG, replace(CONFIG, seed=5)):
        with claim(tmp_path / "run", config, origin, resume=False):
            pass
    assert load_config(tmp_path / "run" / "config.toml").seed == 5


@pytest.mark.parametrize(
    ("part", "exports", "resumes"),
    [
        ("origin.json", False, False),
        ("clips.json", False, True),
        ("versions.json", False, False),
        ("checkpoints/supervision-best.safetensors", False, True),
        ("checkpoints/supervision-last.safetensors", False, False),
    ],
)
@pytest.mark.parametrize("is_gone", [False, True])
def test_a_damaged_run_is_told_by_its_part(data, finished, tmp_path, part, exports, resumes, is_gone):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "model")
    if is_gone:
        (run / part).unlink()
        exports, resumes = part.endswith("-last.safetensors"), part != "origin.json"
    else:
        (run / part).write_bytes((run / part).read_bytes()[:40])
    for works, do in (
        (exports, lambda: export_run(run, tmp_path / "model")),
        (resumes, lambda: train(CONFIG, data=data, out=run, resume=True)),
    ):
        with contextlib.nullcontext() if works else pytest.raises(BadRun, match=re.escape(part)):
            do()


def test_a_run_without_weights_is_not_exported(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run, ignore=shutil.ignore_patterns("*.safetensors", "model"))
    with pytest.raises(BadRun, match="has no checkpoint of a stage's best weights; go on with --resume"):
        export_run(run, tmp_path / "model")
    with pytest.raises(BadModel, match="a training run that has not finished; finish it with --resume"):
        ModelFolder(run)
    shutil.rmtree(run / "checkpoints")
    with pytest.raises(BadRun, match="a run without a checkpoint yet; go on with --resume"):
        export_run(run, tmp_path / "model")


def test_an_unfinished_run_can_be_exported(clips, finished, tmp_path):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished, unfinished)
    shutil.rmtree(unfinished / "model")
    export_run(unfinished, tmp_path / "model")
    export_run(finished, tmp_path / "again")
    for part in (*WEIGHTS, "words.txt", "config.toml", "card.json"):
        assert (tmp_path / "model" / part).read_bytes() == (tmp_path / "again" / part).read_bytes()
    with pytest.raises(BadRun, match="not a run folder with a checkpoint"):
        export_run(clips, tmp_path / "none")


def test_an_export_of_an_unfinished_run_is_newer_than_the_model_of_its_stages_before(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    # As after --stage supervision, which wrote a model, and a --resume that ended before it wrote another.
    card = json.loads((run / "model" / "card.json").read_text())
    stages = card["stages"]
    card["stages"], card["confidence"] = {"supervision": stages["supervision"]}, {"msvd": {"weights": {"bias": 2.0}}}
    (run / "model" / "card.json").write_text(json.dumps(card))
    (run / "model" / "weights.safetensors").write_bytes(b"old")
    export_run(run, tmp_path / "model")
    for part in WEIGHTS:
        assert (tmp_path / "model" / part).read_bytes() == (finished / "model" / part).read_bytes()
    written = json.loads((tmp_path / "model" / "card.json").read_text())
    assert written["stages"] == stages
    assert "confidence" not in written  # that of the older weights
    origin = json.loads((run / "origin.json").read_text())
    (run / "origin.json").write_text(json.dumps(origin | {"from": "msvd"}))
    with pytest.raises(BadRun, match="was started from another model and has not finished; finish it with --resume"):
        export_run(run, tmp_path / "again")


def test_an_export_keeps_the_calibration_of_the_run(finished, tmp_path):
    run = tmp_path / "run"
    shutil.copytree(finished, run)
    card = json.loads((run / "model" / "card.json").read_text())
    card["confidence"] = {"msvd": {"weights": {"bias": 2.0}}}
    (run / "model" / "card.json").write_text(json.dumps(card))
    (run / "model" / "tags.safetensors").write_bytes(b"tags")
    export_run(run, tmp_path / "model")
    assert json.loads((tmp_path / "model" / "card.json").read_text()) == card
    assert (tmp_path / "model" / "tags.safetensors").read_bytes() == b"tags"


@pytest.mark.parametrize(("keep", "kept"), [("best", 2), ("last", 3)])
def test_a_stage_ends_with_its_best_epoch_or_with_its_last(keep, kept, tmp_path):
    stage = f"[adaptation]\nepochs = 3\nkeep = '{keep}'"
    config = parse_config(f"[model]\ncnn = 'efficientnet_lite0'\nstate_size = 4\npicker_hidden = 4\n{stage}")
    network = Network(config.model, 5, pretrained=False)
    weight = network.decoder.from_state.weight
    scores = iter([0.0, 10.0, 30.0, 20.0])  # before the first epoch, and after each

    def train_epoch(epoch, step, order, generator):
        step(Single(), lambda part: (weight.sum() * 0.0, {}))
        with torch.no_grad():
            weight.fill_(epoch + 1)

    def validate(candidate):
        return {"val_cider": 0.0, "val_picks": 1.0, "score": next(scores)}

    (tmp_path / "checkpoints").mkdir()
    run = Run(tmp_path, config, torch.device("cpu"), TrainingProgress())
    run.stage("adaptation", network, (network.decoder,), train_epoch, validate)
    assert weight.unique().tolist() == [kept]


class Single:
    """A batch of one."""

    def __len__(self):
        return 1

    def parts(self, count):
        return [self]


def test_a_run_of_an_older_version_can_be_resumed(data, finished, tmp_path):
    run = tmp_path / "older"
    shutil.copytree(finished, run)
    shutil.rmtree(run / "model")
    origin = json.loads((run / "origin.json").read_text())
    (run / "origin.json").write_text(json.dumps({"dataset": origin["dataset"], "from": origin["from"]}))
    settings = [line for line in (run / "config.toml").read_text().splitlines() if not line.startswith("warmup_steps")]
    (run / "config.toml").write_text("\n".join([*settings, "[refinement]", "epochs = 3"]) + "\n")
    lines = (run / "metrics.csv").read_text().splitlines()
    (run / "metrics.csv").write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines))  # without seconds
    train(CONFIG, data=data, out=run, resume=True, cache=finished.parent / "feature-cache", device="cpu")
    assert rows_of(run) == rows_of(finished)
    assert weights_of(run) == weights_of(finished)


def test_a_run_with_an_incomplete_last_row_in_its_log_can_be_resumed(finished, tmp_path):
    run = tmp_path / "cut"
    shutil.copytree(finished, run)
    with (run / "metrics.csv").open("a") as file:
        file.write("adaptation,99")
    Run(run, CONFIG, torch.device("cpu"), TrainingProgress()).forget_unfinished_epochs()
    assert rows_of(run) == rows_of(finished)


def test_an_unavailable_device_is_an_error_that_lists_the_available_ones(data, tmp_path):
    with pytest.raises(BadRun, match=r"--device tpu: not available on this machine \(possible: .*cpu\)"):
        train(CONFIG, data=data, out=tmp_path / "run", device="tpu")


def test_fine_tuning_keeps_the_words_and_adds_new_ones(clips, finished, tmp_path):
    own = tmp_path / "own"
    (own / "videos").mkdir(parents=True)
    for i in range(4):
        (own / "videos" / f"clip{i}.mp4").write_bytes((clips / "videos" / f"clip{i}.mp4").read_bytes())
    splits = ("train", "train", "train", "val")
    rows = [{"clip": f"clip{i}", "caption": "a crimson box jumps", "split": split} for i, split in enumerate(splits)]
    (own / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "tuned"
    train(CONFIG, data=(DataFolder("folder", own),), out=out, start=finished / "model", stages=("adaptation",))
    before, after = (Vocabulary.load(run / "model" / "words.txt").words for run in (finished, out))
    assert after[: len(before)] == before
    assert set(after[len(before) :]) == {"crimson", "jumps"}
    assert {row["stage"] for row in rows_of(out)} == {"adaptation"}


def test_clean_captions_are_learned_and_the_others_stay_references(data, finished, tmp_path, monkeypatch):
    messy = tmp_path / "messy"
    shutil.copytree(data[0].folder, messy)
    rows = [json.loads(row) for row in (messy / "captions.jsonl").read_text().splitlines()]
    rows += [{**row, "caption": caption} for row in rows[::3] for caption in ("a qzx box", "a box infront", "box")]
    (messy / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    folders = (DataFolder("folder", messy),)
    untidy, tidy = tmp_path / "untidy", tmp_path / "tidy"
    train(CONFIG, data=folders, out=untidy, start=finished / "model", stages=("adaptation",), device="cpu")
    seen = []
    monkeypatch.setattr("picknet.training.recipe.adaptation", lambda network, data, *_: seen.append((network, data)))
    progress = Notes()
    config = parse_config(to_toml(CONFIG), ["text.clean=true"])
    train(config, data=folders, out=tidy, start=untidy, stages=("adaptation",), progress=progress, device="cpu")

    before, after = (Vocabulary.load(run / "words.txt").words for run in (untidy, tidy))
    assert {*before} - {*after} == {"qzx", "infront"}
    assert {*after} - {*before} == {"in", "front"}
    assert progress.notes == ["captions to learn from: 18, of which 6 mended; left out: 12 too short, 6 not in English"]
    (network, learned), (old, _, _) = seen[0], load_network(untidy / "model")
    assert torch.equal(
        network.decoder.embed.weight[after.index("blinks")], old.decoder.embed.weight[before.index("blinks")]
    )
    assert len(learned.words) == 18
    assert learned.train.clips[0].captions[-3:] == ("a qzx box", "a box infront", "box")


def test_fine_tuning_may_start_with_another_picker(data, finished, tmp_path):
    stages = {name: replace(getattr(CONFIG, name), epochs=1 if name == "reinforcement" else 0) for name in STAGES}
    for changed in ({"picker": "rate"}, {"picker_hidden": 11}):
        config = replace(CONFIG, model=replace(CONFIG.model, **changed), **stages)
        out = tmp_path / "-".join(changed)
        train(config, data=data, out=out, start=finished / "model", cache=tmp_path / "cache")
        before, after = (model_tensors(run) for run in (finished, out))
        assert before["picknet.decide.weight"].shape != after["picknet.decide.weight"].shape
        for name in before.keys() | after.keys():  # the captioner stays as it was while a new PickNet learns
            assert name.startswith("picknet.") or torch.equal(before[name], after[name])


def test_a_stage_without_epochs_is_an_error(data, finished, tmp_path):
    """Nothing is trained in silence."""
    off = replace(CONFIG, adaptation=replace(CONFIG.adaptation, epochs=0))
    expected = (
        r"--stage adaptation: adaptation\.epochs is 0, so nothing would be trained; set it, as in "
        r"--set adaptation\.epochs=10 \(stages with epochs: supervision \(10\), reinforcement \(4\)\)"
    )
    with pytest.raises(BadConfig, match=expected):
        train(off, data=data, out=tmp_path / "run", start=finished, stages=["supervision", "adaptation"])
    none = replace(CONFIG, **{name: replace(getattr(CONFIG, name), epochs=0) for name in STAGES})
    with pytest.raises(BadConfig, match="no stage has epochs, so nothing would be trained"):
        train(none, data=data, out=tmp_path / "run", start=finished)
    picker_alone = ["supervision.epochs=0", "adaptation.epochs=0"]
    with pytest.raises(BadConfig, match="to train the picker alone, add --stage reinforcement"):
        train(None, data=data, out=tmp_path / "run", start=finished, settings=picker_alone)
    with pytest.raises(BadConfig, match=r"--stage refinement: no such stage \(possible: supervision, rein"):
        train(CONFIG, data=data, out=tmp_path / "run", start=finished, stages=["refinement"])
    assert not (tmp_path / "run").exists()


def test_reinforcement_needs_a_trained_captioner(data, finished, tmp_path):
    expected = r"reinforcement needs a trained captioner to reward picks: start from a model \(--from\), or run superv"
    with pytest.raises(BadConfig, match=expected):
        train(CONFIG, data=data, out=tmp_path / "run", stages=["reinforcement"])
    unsupervised = replace(CONFIG, supervision=replace(CONFIG.supervision, epochs=0))
    with pytest.raises(BadConfig, match=expected):
        train(unsupervised, data=data, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()
    cache = finished.parent / "feature-cache"
    for stage, resume in (("supervision", False), ("reinforcement", True)):
        train(CONFIG, data=data, out=tmp_path / "run", stages=[stage], resume=resume, cache=cache, device="cpu")
    assert rows_of(tmp_path / "run") == [row for row in rows_of(finished) if row["stage"] != "adaptation"]


def test_train_takes_paths_and_finds_the_settings_of_a_model_or_a_run(clips, finished, tmp_path, monkeypatch):
    asked = {}

    def stop(plan, progress):
        asked.update(vars(plan))
        raise Stopped

    monkeypatch.setattr("picknet.training.recipe._load_splits", stop)
    (tmp_path / "tiny.toml").write_text(to_toml(CONFIG))
    with pytest.raises(Stopped):
        train(tmp_path / "tiny.toml", data=clips, out=tmp_path / "run", settings=["seed=3"], fold="2/3")
    assert (asked["config"], asked["fold"]) == (replace(CONFIG, seed=3), Fold(2, 3))
    assert (asked["data"], asked["stages"]) == ((DataFolder("folder", clips),), STAGES)
    with pytest.raises(Stopped):
        train(data=[f"msvd={clips}", clips], out=tmp_path / "run", start=finished)
    assert asked["data"] == (DataFolder("msvd", clips), DataFolder("folder", clips))
    assert (asked["config"], asked["start"], asked["stages"]) == (CONFIG, finished / "model", ("adaptation",))
    with pytest.raises(Stopped):
        train(data=clips, out=finished, resume=True)
    assert (asked["config"], asked["stages"]) == (CONFIG, STAGES)
    with pytest.raises(BadConfig, match="no settings: name a config file"):
        train(data=clips, out=tmp_path / "run")


def test_fine_tuning_another_network_is_refused(data, finished, tmp_path):
    larger = replace(CONFIG, model=replace(CONFIG.model, state_size=13))
    with pytest.raises(BadRun, match=r"model: its model.state_size is 12 and cannot be changed to 13"):
        train(larger, data=data, out=tmp_path / "run", start=finished / "model")


def test_a_clip_that_cannot_be_read_is_reported_and_the_others_are_used(clips, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(clips, folder)
    (folder / "videos" / "clip2.mp4").write_bytes(b"this is no video")
    progress = Notes()
    out = tmp_path / "run"
    short = replace(
        CONFIG,
        supervision=replace(CONFIG.supervision, epochs=1),
        reinforcement=replace(CONFIG.reinforcement, epochs=0),
        adaptation=replace(CONFIG.adaptation, epochs=0),
    )
    train(short, data=(DataFolder("folder", folder),), out=out, progress=progress)
    assert "5 clips of the train split, 1 missing" in progress.notes[0]
    missing = json.loads((out / "clips.json").read_text())["train"]["missing"]
    assert [row["name"] for row in missing] == ["clip2"]


def prepared_data(train, val, vocabulary):
    learned = teachers(train.clips, CONFIG.text)
    return prepare(train, val, vocabulary, CONFIG, torch.device("cpu"), captions=learned.captions)


@pytest.fixture
def prepared():
    """Two clips of noise with four captions in all, and a network, without any video."""
    torch.manual_seed(0)
    clips = (
        Clip("one", Path("one.mp4"), ("a cat runs", "the cat", "a cat sits")),
        Clip("two", Path("two.mp4"), ("a dog barks",)),
    )
    split = FeatureSplit(
        clips=clips,
        glances=torch.randint(0, 256, (2, 6, 56, 56), dtype=torch.uint8),
        features=torch.randn(2, 6, 1, 1280),
        counts=torch.tensor([6, 4]),
        missing=(),
    )
    vocabulary = Vocabulary.from_captions([tokenise(c) for clip in clips for c in clip.captions], min_count=1)
    network = Network(ModelConfig(cnn="efficientnet_lite0", picker_hidden=4, state_size=5), len(vocabulary))
    return network, prepared_data(split, split, vocabulary)


def test_captions_are_framed_by_bos_and_eos_and_eos_counts(prepared):
    _, data = prepared
    the_cat = next(i for i, row in enumerate(data.words.tolist()) if len([w for w in row if w != PAD]) == 4)
    row = data.words[the_cat].tolist()
    assert row[0] == BOS
    assert row[3] == EOS
    assert data.lengths[the_cat] == 3


def test_an_epoch_visits_every_caption_once_with_its_own_clip(prepared):
    _, data = prepared
    stage = replace(CONFIG.supervision, batch_size=4, captions_per_video=2)
    batches = list(caption_batches(data, stage, epoch=0, order=np.random.default_rng(0)))
    assert sorted(int(i) for batch in batches for i in batch.captions) == [0, 1, 2, 3]
    for batch in batches:
        assert data.owners[batch.captions.numpy()].tolist() == batch.clips[batch.clip_of_caption].tolist()
        assert len(batch.captions) <= 4


def test_of_other_data_sets_a_share_is_drawn_anew_for_each_epoch(prepared):
    _, data = prepared
    styles = [None] * 20 + ["coco"] * 200
    clips = tuple(
        Clip(f"clip{i}", Path("x.mp4"), ("a cat runs", "the cat"), style, category="music")  # which is no style here
        for i, style in enumerate(styles)
    )
    counts, nothing = torch.ones(len(clips), dtype=torch.int64), torch.zeros(0, dtype=torch.uint8)
    split = PixelSplit(clips, nothing, nothing, counts.cumsum(0) - counts, counts, ())
    data = prepared_data(split, split, data.vocabulary)
    stage = replace(CONFIG.supervision, captions_per_video=2, others_share=0.25)
    visited = []
    for epoch in range(2):
        batches = caption_batches(data, stage, epoch=epoch, order=np.random.default_rng(epoch))
        visited.append({int(clip) for batch in batches for clip in batch.clips})
        assert visited[-1] >= set(range(20))  # all of the first data set
        assert 30 <= len(visited[-1]) - 20 <= 70  # 50 of 200, more or less
    assert visited[0] != visited[1]


def test_batches_are_bounded_by_their_frames_if_the_cnn_is_trained(prepared):
    _, data = prepared
    clips = tuple(Clip(f"clip{i}", Path("x.mp4"), ("a cat runs", "the cat")[: 1 + i % 2]) for i in range(9))
    counts = torch.tensor([1, 6, 2, 6, 3, 6, 1, 6, 4])
    nothing = torch.zeros(0, dtype=torch.uint8)
    split = PixelSplit(clips, nothing, nothing, counts.cumsum(0) - counts, counts, ())
    data = prepared_data(split, split, data.vocabulary)
    stage = replace(CONFIG.supervision, frames_per_batch=7, captions_per_video=1, min_frames=2, max_frames=5)
    sizes = []
    for epoch in range(20):
        batches = list(caption_batches(data, stage, epoch=epoch, order=np.random.default_rng(epoch)))
        assert sorted(int(i) for batch in batches for i in batch.captions) == list(range(13))
        for batch in batches:
            assert data.owners[batch.captions.numpy()].tolist() == batch.clips[batch.clip_of_caption].tolist()
            assert batch.num_frames.sum() <= 7
            assert (batch.num_frames <= counts[batch.clips]).all()
            sizes += batch.num_frames[counts[batch.clips] == 6].tolist()
    assert sorted(set(sizes)) == [2, 3, 4, 5]  # any number from min_frames to max_frames, if a clip has enough
    whole = replace(stage, min_frames=0, max_frames=0)
    for batch in caption_batches(data, whole, epoch=0, order=np.random.default_rng(0)):
        assert batch.num_frames.tolist() == counts[batch.clips].tolist()
        assert batch.num_frames.sum() <= 7


def test_the_parts_of_a_batch_are_clips_with_their_captions(prepared):
    _, data = prepared
    stage = replace(CONFIG.supervision, batch_size=9, captions_per_video=2, frames_per_batch=24)
    (batch,) = caption_batches(data, stage, epoch=0, order=np.random.default_rng(0))
    assert batch.parts(1) == [batch]
    parts = batch.parts(2)  # of the three groups of captions two and one
    assert [len(part.clips) for part in parts] == [2, 1]
    assert sum(len(part) for part in parts) == len(batch) == len(batch.captions)
    assert torch.equal(torch.cat([part.captions for part in parts]), batch.captions)
    assert torch.equal(torch.cat([part.num_frames for part in parts]), batch.num_frames)
    for part in parts:
        assert data.owners[part.captions.numpy()].tolist() == part.clips[part.clip_of_caption].tolist()
        assert (part.length, part.feed_back) == (batch.length, batch.feed_back)
        assert part.frame_capacity == 12


def test_cross_entropy_is_the_mean_of_minus_log_p_over_words_and_eos(prepared):
    network, data = prepared
    network.eval()
    stage = replace(CONFIG.supervision, batch_size=9, captions_per_video=3, teacher_forcing_floor=1.0)
    (batch,) = caption_batches(data, stage, epoch=0, order=np.random.default_rng(0))
    features = data.train.picked_features(network.cnn, batch.clips, all_frames(data.train.counts[batch.clips], 6))
    losses = []
    for caption in batch.captions.tolist():
        clip = data.owners[caption]
        count = int(data.train.counts[clip])
        memory = network.encoder(data.train.features[clip, :count][None], torch.tensor([count]))
        state = torch.zeros_like(memory.video)
        for t in range(data.lengths[caption]):
            log_probabilities, state = network.decoder.step(data.words[caption, t][None], *memory[:3], state)
            losses.append(-log_probabilities[0, data.words[caption, t + 1]].item())
    loss = cross_entropy(network, data, batch, *features, label_smoothing=0.0)
    assert loss.item() == pytest.approx(np.mean(losses), abs=1e-5)


class Recorded:
    """In place of a run: keeps what a stage would train with."""

    parts = BatchParts()

    def stage(self, name, network, trained, train_epoch, validate):
        self.trained, self.train_epoch = trained, train_epoch


def greedy_caption(network, data, clip, picked):
    """The caption of one clip, word by word, never <pad>, <bos> or <unk>."""
    memory = network.encoder(data.train.features[clip][picked][None], picked.sum()[None])
    state, word, words = torch.zeros_like(memory.video), torch.tensor([BOS]), []
    while len(words) < CONFIG.text.max_words:
        log_probabilities, state = network.decoder.step(word, *memory[:3], state)
        log_probabilities[:, [PAD, BOS, 3]] = -torch.inf
        word = log_probabilities.argmax(-1)
        if word.item() == EOS:
            break
        words.append(data.vocabulary.words[word.item()])
    return words


def test_adaptation_minimises_the_sum_of_both_losses(prepared):
    """L_X + L_R: the captioner learns from the first alone, PickNet from the second alone."""
    _, data = prepared
    torch.manual_seed(3)
    model = ModelConfig(cnn="efficientnet_lite0", picker_hidden=4, state_size=5, dropout=0.0)
    network = Network(model, len(data.vocabulary), pretrained=False)
    stage = replace(CONFIG.adaptation, batch_size=9, teacher_forcing_floor=1.0)
    reward = replace(CONFIG.reward, diversity_weight=0.0, price=0.25, min_picks=1, max_picks_floor=6)
    run, batches = Recorded(), []
    adaptation(network, data, replace(CONFIG, adaptation=stage, reward=reward), run)
    assert run.trained == (network.picknet, network.encoder, network.decoder)
    run.train_epoch(0, lambda *batch: batches.append(batch), np.random.default_rng(0), torch.Generator().manual_seed(1))
    ((batch, batch_loss),) = batches
    loss, figures = batch_loss(batch)
    learned = {name: p for name, p in network.named_parameters() if not name.startswith("cnn.")}
    gradients = torch.autograd.grad(loss, list(learned.values()))

    clips = batch.clips[batch.clip_of_caption]
    assert sorted(batch.captions.tolist()) == [0, 1, 2, 3]
    assert clips.tolist() == data.owners[batch.captions.numpy()].tolist()
    glances, counts = data.train.glances[clips], data.train.counts[clips]
    sampled = walked(network.picknet, glances, counts, generator=torch.Generator().manual_seed(1))
    greedy = walked(network.picknet, glances, counts).picked
    references = {clip.name: [tokenise(c) for c in clip.captions] for clip in data.train.clips}
    picking, words = torch.zeros(()), []
    for i, (clip, caption) in enumerate(zip(clips.tolist(), batch.captions.tolist(), strict=True)):
        rewards = [
            Cider(references).scores([data.train.clips[clip].name], [greedy_caption(network, data, clip, picked)])[0]
            - 0.25 * int(picked.sum())
            for picked in (sampled.picked[i], greedy[i])
        ]
        picking = picking - (rewards[0] - rewards[1]) * sampled.log_probabilities[i].sum() / 4
        memory = network.encoder(data.train.features[clip][sampled.picked[i]][None], sampled.picked[i].sum()[None])
        state = torch.zeros_like(memory.video)
        for t in range(data.lengths[caption]):
            log_probabilities, state = network.decoder.step(data.words[caption, t][None], *memory[:3], state)
            words.append(-log_probabilities[0, data.words[caption, t + 1]])
    captioning = torch.stack(words).mean()
    assert picking.abs() > 0.01
    assert loss.item() == pytest.approx((captioning + picking).item(), abs=1e-5)
    assert figures["loss"].item() == pytest.approx(captioning.item(), abs=1e-5)
    for (name, parameter), found in zip(learned.items(), gradients, strict=True):
        (expected,) = torch.autograd.grad(
            picking if name.startswith("picknet.") else captioning, [parameter], retain_graph=True
        )
        torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-3, msg=name)


def test_known_captions_are_not_scored_again(prepared, monkeypatch):
    network, data = prepared
    network.eval()
    environment, scored = Environment.of(network, data), []
    scores = Cider.scores

    def counted(self, names, captions):
        scored.append(names)
        return scores(self, names, captions)

    monkeypatch.setattr(Cider, "scores", counted)
    clips = torch.tensor([1, 0, 1])
    picked = all_frames(data.train.counts, 6)[clips]
    rewards = environment.language_rewards(clips, picked, max_words=8)
    assert [sorted(names) for names in scored] == [["one", "two"]]
    assert environment.language_rewards(clips, picked, max_words=8).tolist() == rewards.tolist()
    assert len(scored) == 1
    with torch.no_grad():
        network.decoder.output.weight.neg_()  # other captions
    environment.language_rewards(clips, picked, max_words=8)
    assert len(scored) == 2


def test_where_writing_is_slow_checkpoints_are_written_less_often():
    assert [pause_after(seconds) for seconds in (0.1, 1.5, 60.0)] == pytest.approx([20.0, 50.0, 120.0])


def sampled_loss(picknet, environment, config, clips, most_picks, generator, *, samples):
    """-> the loss, the sampled picks, and the figures"""
    sample = sample_picks(picknet, environment, config, clips, generator, samples=samples)
    loss, figures = policy_loss(picknet, environment, config, sample, most_picks)
    return loss, sample.picked[: sample.num_sampled], figures


def test_the_advantage_is_the_sampled_reward_minus_the_greedy_one(prepared):
    network, data = prepared
    config = replace(CONFIG, reward=replace(CONFIG.reward, min_picks=1, max_picks_floor=6))
    network.eval()
    clips = torch.tensor([0, 1])
    loss, picked, figures = sampled_loss(
        network.picknet, Environment.of(network, data), config, clips, 6, torch.Generator().manual_seed(1), samples=1
    )
    walk = walked(network.picknet, data.train.glances, data.train.counts, generator=torch.Generator().manual_seed(1))
    assert torch.equal(walk.picked, picked)
    rewards = []
    for mask in (picked, walked(network.picknet, data.train.glances, data.train.counts).picked):
        for i in range(2):
            memory = network.encoder(data.train.features[i][mask[i]][None], mask[i].sum()[None])
            words = network.decoder.write(memory, max_words=config.text.max_words)
            text = data.vocabulary.decode(words[0].tolist()).split()
            unit = torch.nn.functional.normalize(data.train.features[i][mask[i]][:, 0], dim=-1)
            n = len(unit)
            cosines = (unit @ unit.T).triu(1).sum()
            diversity = float(1 - 2 * cosines / (n * (n - 1))) if n > 1 else 0.0
            references = {clip.name: [tokenise(c) for c in clip.captions] for clip in data.train.clips}
            rewards.append(Cider(references).scores([data.train.clips[i].name], [text])[0] + diversity)
    advantage = torch.tensor(rewards[:2]) - torch.tensor(rewards[2:])
    expected = -(advantage * walk.log_probabilities.sum(1)).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    assert figures["reward"].item() == pytest.approx(np.mean(rewards[:2]), rel=1e-4)


def test_several_samples_of_a_clip_share_its_baseline(prepared):
    network, data = prepared
    network.eval()
    generator = torch.Generator().manual_seed(1)
    environment = Environment.of(network, data)
    _, picked, _ = sampled_loss(network.picknet, environment, CONFIG, torch.tensor([0, 1]), 6, generator, samples=3)
    assert picked.shape == (6, 6)
    assert not picked[3:, 4:].any()  # the second clip has four frames, in all three of its samples
    assert picked[:3, 4:].any()


def test_leave_one_out_subtracts_the_mean_of_the_clips_other_samples():
    rewards = torch.tensor([[1.0, 2.0, 6.0], [0.0, 0.0, 3.0]])
    # 1 − (2 + 6) / 2, 2 − (1 + 6) / 2, 6 − (1 + 2) / 2; 0 − (0 + 3) / 2 twice, 3 − 0
    assert leave_one_out(rewards).tolist() == [[-3.0, -1.5, 4.5], [-1.5, -1.5, 3.0]]


def test_the_baseline_may_be_the_other_samples(prepared):
    network, data = prepared
    network.eval()
    config = replace(
        CONFIG,
        reward=replace(CONFIG.reward, language_weight=0.0, diversity_weight=0.0, price=1.0, max_picks_floor=6),
        reinforcement=replace(CONFIG.reinforcement, baseline="others"),
    )
    clips, generator = torch.tensor([0, 1]), torch.Generator().manual_seed(1)
    loss, picked, figures = sampled_loss(
        network.picknet, Environment.of(network, data), config, clips, 6, generator, samples=3
    )
    # A pick costs 1 and nothing else counts, so the reward is minus the number of picks.
    num_picks = picked.sum(1).float().view(2, 3)
    assert figures["reward"].item() == pytest.approx(-num_picks.mean().item())
    advantage = (num_picks.sum(1, keepdim=True) - num_picks) / 2 - num_picks
    walk = walked(
        network.picknet, data.train.glances, data.train.counts, samples=3, generator=torch.Generator().manual_seed(1)
    )
    assert torch.equal(walk.picked, picked)
    expected = -(advantage.flatten() * walk.log_probabilities.sum(1)).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4)


@pytest.mark.parametrize("attention", [{}, {"attention_heads": 2, "attention_hidden": 8}])
def test_a_sample_without_a_pick_has_the_penalty_and_its_middle_frame_is_described(prepared, attention):
    _, data = prepared
    model = ModelConfig(cnn="efficientnet_lite0", picker="rate", picker_hidden=4, state_size=5, **attention)
    network = Network(replace(model, initial_pick_probability=0.001), len(data.vocabulary), pretrained=False).eval()
    config = replace(
        CONFIG,
        reward=replace(CONFIG.reward, penalty=-3.0, min_picks=1, max_picks_floor=6),
        reinforcement=replace(CONFIG.reinforcement, baseline="others"),
    )
    clips, generator = torch.tensor([0, 1]), torch.Generator().manual_seed(1)
    loss, picked, figures = sampled_loss(
        network.picknet, Environment.of(network, data), config, clips, 6, generator, samples=2
    )
    # The middles of six frames and of four.
    assert [row.nonzero().flatten().tolist() for row in picked] == [[3], [3], [2], [2]]
    assert (figures["reward"].item(), figures["picks"].item()) == (-3.0, 0.0)
    assert loss.item() == 0


def test_a_single_sample_has_the_greedy_baseline(prepared):
    network, data = prepared
    network.eval()
    losses = []
    for baseline in ("greedy", "others"):
        config = replace(CONFIG, reinforcement=replace(CONFIG.reinforcement, baseline=baseline, samples=2))
        generator = torch.Generator().manual_seed(1)
        environment = Environment.of(network, data)
        loss, _, _ = sampled_loss(network.picknet, environment, config, torch.tensor([0, 1]), 6, generator, samples=1)
        losses.append(loss.item())
    assert losses[0] == losses[1]


def test_every_clip_is_rewarded_by_its_own_judge(prepared):
    network, data = prepared
    torch.manual_seed(9)
    other = Network(ModelConfig(cnn="efficientnet_lite0", picker_hidden=4, state_size=5), len(data.vocabulary))
    judges = tuple(Judge(one.eval().encoder, one.decoder, data.vocabulary) for one in (network, other))
    environment = Environment(judges, torch.tensor([1, 0]), data.train, data.train_cider)
    clips = torch.tensor([1, 0, 1])
    picked = torch.tensor([[True, True, False, False, False, False]] * 2 + [[False, True, True, True, False, False]])
    expected = []
    for clip, mask in zip(clips.tolist(), picked, strict=True):
        judge = judges[1 - clip]
        memory = judge.encoder(data.train.features[clip][mask][None], mask.sum()[None])
        text = data.vocabulary.decode(judge.decoder.write(memory, max_words=8)[0].tolist())
        expected += data.train_cider.scores([data.train.clips[clip].name], [text.split()]).tolist()
    assert environment.language_rewards(clips, picked, max_words=8).tolist() == pytest.approx(expected, abs=1e-6)


def test_folds_are_contiguous_and_together_all_training_clips(data):
    parts = [fold_splits(data, Fold(number, 4)) for number in (1, 2, 3, 4)]
    # Six clips in four parts: their borders are at 1.5, 3 and 4.5, rounded down.
    names = [[clip.name for clip in val.clips] for _, val in parts]
    assert names == [["clip0"], ["clip1", "clip2"], ["clip3"], ["clip4", "clip5"]]
    for (train_part, val), fold in zip(parts, names, strict=True):
        assert (train_part.name, val.name) == ("train", "val")
        assert [clip.name for clip in train_part.clips] == [f"clip{i}" for i in range(6) if f"clip{i}" not in fold]
    with pytest.raises(BadData, match="fold 1/7 of 6 clips leaves no clips to train on or to validate on"):
        fold_splits(data, Fold(1, 7))


def test_with_styles_other_data_sets_have_their_own_style(mixed, from_pixels, tmp_path):
    config = parse_config(to_toml(FROM_PIXELS), ["text.styles=true", "supervision.epochs=1"])
    whole, val = official_splits(mixed, styles=True, on_note=pytest.fail)
    assert {clip.style for clip in whole.clips if clip.name.startswith("folder/")} == {None}
    assert {clip.style for clip in whole.clips if clip.name.startswith("flickr8k/")} == {"flickr8k"}
    assert [clip.name for clip in val.clips] == ["clip6"]

    # A fold is one of the data set to learn; the clips beside it are learned from whole.
    others, fold = fold_splits(mixed, Fold(2, 3), styles=True)
    assert [clip.name for clip in fold.clips] == ["clip1"]
    assert [clip.name for clip in others.clips] == ["folder/clip0", "folder/clip2", "flickr8k/0", "flickr8k/1"]

    run = tmp_path / "run"
    model = train(config, data=mixed, out=run, start=from_pixels / "model", stages=("supervision",), cache=tmp_path)
    network, vocabulary, _ = load_network(model)
    _, before, _ = load_network(from_pixels / "model")
    assert vocabulary.words == (*before.words, "[flickr8k]")
    assert vocabulary.styles == {"flickr8k": len(before)}
    assert len(network.decoder.embed.weight) == len(before) + 1


def test_captions_begin_with_their_style(prepared):
    _, data = prepared
    first, second = data.train.clips
    split = replace(data.train, clips=(replace(first, style="msrvtt"), second))
    vocabulary = data.vocabulary.with_styles(["msrvtt"])
    styled = prepared_data(split, data.val, vocabulary)
    beginnings = {int(owner): int(words[0]) for owner, words in zip(styled.owners, styled.words, strict=True)}
    assert beginnings == {0: len(data.vocabulary), 1: BOS}
    assert vocabulary.decode([len(data.vocabulary), *data.words[0].tolist()]) == "a cat runs"


@pytest.fixture
def styled(prepared):
    """The first clip in the style of another data set; the decoder writes "cat" after its style word, else "dog"."""
    _, data = prepared
    vocabulary = data.vocabulary.with_styles(["msrvtt"])
    style, cat, dog = vocabulary.styles["msrvtt"], *vocabulary.encode(["cat", "dog"])
    torch.manual_seed(0)
    config = ModelConfig(cnn="efficientnet_lite0", picker_hidden=4, state_size=5, dropout=0.0)
    network = Network(config, len(vocabulary), pretrained=False).eval()
    decoder = network.decoder
    with torch.no_grad():
        for weights in decoder.parameters():
            weights.zero_()
        decoder.embed.weight[style, 0] = decoder.embed.weight[cat, 1] = decoder.embed.weight[dog, 1] = 10.0
        # The candidate state of a word: (1, 0) after the style word, (0, 0) after <bos>, (0, 1) after a noun.
        decoder.from_word.weight[10, 0] = decoder.from_word.weight[11, 1] = 1.0
        decoder.from_word.bias[:5] = 10.0  # z = 1: the state is the candidate
        decoder.from_word.bias[12] = 10.0  # a constant 1 beside it
        decoder.output.weight[dog, 2] = 1.0
        decoder.output.weight[cat, 0] = 2.0
        decoder.output.weight[EOS, 1] = 9.0
        decoder.output.weight[style, 2] = 20.0  # likelier than any word, but never written
    first, second = data.train.clips
    split = replace(data.train, clips=(replace(first, style="msrvtt"), second))
    return network, prepared_data(split, split, vocabulary)


def test_a_clip_is_rewarded_for_a_caption_in_its_own_style(styled):
    network, data = styled
    picked = all_frames(data.train.counts, 6)
    rewards = Environment.of(network, data).language_rewards(torch.tensor([1, 0, 1]), picked[[1, 0, 1]], max_words=8)
    expected = data.train_cider.scores(["two", "one", "two"], [["dog"], ["cat"], ["dog"]])
    assert rewards.tolist() == pytest.approx(expected.tolist())
    assert all(expected)
    figures = validation(network, data, CONFIG, picked, limited=False)
    assert figures["val_cider"] == pytest.approx(100 * np.mean(expected[:2]))


def test_first_words_are_style_words_or_bos(styled):
    _, data = styled
    expected = [data.vocabulary.styles["msrvtt"], BOS, BOS]
    assert first_words(data.train, torch.tensor([0, 1, 1]), data.vocabulary).tolist() == expected
    # A category comes before a style, if it is a word.
    music = replace(data.train, clips=tuple(replace(clip, category="music") for clip in data.train.clips))
    assert first_words(music, torch.tensor([0, 1, 1]), data.vocabulary).tolist() == expected
    known = data.vocabulary.with_styles(["music"])
    assert first_words(music, torch.tensor([0, 1]), known).tolist() == [known.styles["music"]] * 2


def test_a_fold_is_written_as_a_fraction():
    assert Fold.parse("2/5") == Fold(2, 5)
    assert str(Fold(2, 5)) == "2/5"
    for text in ("0/5", "6/5", "1/1", "1", "a/b", "1/5/2", "-1/5", ""):
        with pytest.raises(BadConfig, match=rf"^--fold {text}: expected K/N, such as 1/5 for the first of five$"):
            Fold.parse(text)


def test_runs_of_folds_judge_the_clips_that_they_were_validated_on(data, finished, tmp_path):
    stages = {name: replace(getattr(CONFIG, name), epochs=0) for name in STAGES}
    cache, folds = finished.parent / "feature-cache", []
    for number in (1, 2):
        config = replace(CONFIG, **stages | {"supervision": replace(CONFIG.supervision, epochs=1)})
        folds.append(tmp_path / f"fold{number}")
        train(config, data=data, out=folds[-1], fold=Fold(number, 2), cache=cache)
        listed = json.loads((folds[-1] / "clips.json").read_text())
        halves = [f"clip{i}" for i in range(3)], [f"clip{i}" for i in range(3, 6)]
        assert (listed["val"]["used"], listed["train"]["used"]) == (halves if number == 1 else halves[::-1])
    config = replace(CONFIG, **stages | {"reinforcement": replace(CONFIG.reinforcement, epochs=1)})
    start = finished / "model"
    train(config, data=data, out=tmp_path / "judged", judges=folds, start=start, cache=cache)
    assert [row["stage"] for row in rows_of(tmp_path / "judged")] == ["reinforcement"]
    origin = json.loads((tmp_path / "judged" / "origin.json").read_text())
    assert origin["judges"] == ", ".join(map(str, folds))
    expected = "whole/model: is to judge none of the clips of this training split; leave it out"
    with pytest.raises(BadRun, match=expected):
        train(config, data=data, out=tmp_path / "refused", judges=[finished], start=start, cache=cache)


def test_judges_are_refused_until_reinforcement_and_named_when_it_begins(data, finished, tmp_path):
    expected = (
        r"^--judge msvd=folder: rewards PickNet in reinforcement, which is not among the stages to run "
        r"\(supervision\); leave it out, or add --stage reinforcement$"
    )
    with pytest.raises(BadConfig, match=expected):
        train(CONFIG, data=data, out=tmp_path / "run", stages=["supervision"], judges=["msvd=folder"])
    with claim(tmp_path / "run", CONFIG, {"judges": None}, resume=False):
        pass
    for judges in (None, "msvd=folder", "msvd=folder"):
        with claim(tmp_path / "run", CONFIG, {"judges": judges}, resume=True):
            assert json.loads((tmp_path / "run" / "origin.json").read_text()) == {"judges": judges}
    with (
        pytest.raises(BadRun, match=r"was started differently \(judges: msvd=folder, now None\)"),
        claim(tmp_path / "run", CONFIG, {"judges": None}, resume=True),
    ):
        pass
    with pytest.raises(BadRun, match=r"was started differently \(judges: None, now msvd=folder\)"):
        train(CONFIG, data=data, out=finished, judges=["msvd=folder"], resume=True)


def test_a_judge_is_a_run_of_a_fold_or_a_model_for_a_whole_data_set(finished, tmp_path):
    run = JudgeRun.read(str(finished))
    assert run == JudgeRun(finished / "model", frozenset({"clip6", "clip7", "clip8"}), None)
    named = JudgeRun.read(f"{finished}=msrvtt")
    assert named == JudgeRun(finished / "model", frozenset(), "msrvtt")
    assert JudgeRun.read("msvd=msrvtt").model == SHIPPED / "msvd"
    with pytest.raises(BadRun, match=r"nowhere: not a run folder with a model, so it cannot be a judge"):
        JudgeRun.read(str(tmp_path / "nowhere"))
    with pytest.raises(BadModel, match="nowhere"):
        JudgeRun.read(f"{tmp_path / 'nowhere'}=msrvtt")

    def judges(judge, name, dataset="msvd"):
        return judge.judges(Clip(name, Path("x.mp4"), ("a box",)), Split(dataset, "train", (), ()))

    # Names begin with their data set where there are several.
    assert judges(run, "clip6")
    assert judges(run, "msvd/clip7")
    assert not judges(run, "msrvtt/clip7")
    assert not judges(run, "clip1")
    assert judges(named, "msrvtt/clip1")
    assert not judges(named, "msvd/clip1")
    assert judges(named, "clip1", dataset="msrvtt")
    assert not judges(named, "clip1")


FILMS = parse_config(
    to_toml(CONFIG),
    [
        "model.picker=rate", "supervision.epochs=0", "adaptation.epochs=0", "reinforcement.epochs=2",
        "reinforcement.baseline=others", "reinforcement.films=2", "reinforcement.film_frames=16",
    ],
)  # fmt: skip


def test_a_policy_is_trained_on_films_with_a_model_as_its_judge(data, finished, tmp_path):
    cache, start = finished.parent / "feature-cache", finished / "model"
    for out in (tmp_path / "one", tmp_path / "two"):
        train(FILMS, data=data, out=out, judges=[f"{start}=folder"], start=start, cache=cache, device="cpu")
    rows = rows_of(tmp_path / "one")
    assert [row["stage"] for row in rows] == ["reinforcement"] * 2
    for row in rows:
        assert 0 <= float(row["val_found"]) <= 100
        assert float(row["val_event_picks"]) > 0
        assert row["val_cider"]
    assert rows == rows_of(tmp_path / "two")
    assert weights_of(tmp_path / "one") == weights_of(tmp_path / "two")
    before, after = model_tensors(finished), model_tensors(tmp_path / "one")
    assert all(torch.equal(after[name], tensor) for name, tensor in before.items() if not name.startswith("picknet."))
    assert all(not row["val_found"] for row in rows_of(finished))  # not measured without films


def test_a_policy_alone_is_trained_without_new_words(clips, finished, tmp_path):
    own = tmp_path / "own"
    shutil.copytree(clips / "videos", own / "videos")
    rows = (clips / "captions.jsonl").read_text().replace("blinks", "twinkles")
    (own / "captions.jsonl").write_text(rows)
    train(FILMS, data=(DataFolder("folder", own),), out=tmp_path / "run", start=finished / "model", device="cpu")
    before, after = (Vocabulary.load(run / "model" / "words.txt").words for run in (finished, tmp_path / "run"))
    assert after == before


def test_the_policy_learns_after_a_captioner_that_has_learned_new_words(clips, finished, tmp_path):
    other, out = with_other_words(clips, tmp_path / "other"), tmp_path / "steps"
    short = replace(CONFIG, **{name: replace(getattr(CONFIG, name), epochs=1) for name in STAGES})
    for stage, resume in (("supervision", False), ("reinforcement", True)):
        train(short, data=other, out=out, start=finished / "model", stages=[stage], resume=resume, device="cpu")
    words = Vocabulary.load(out / "model" / "words.txt").words
    assert set(words) - set(Vocabulary.load(finished / "words.txt").words) == {"twinkles", "strip"}
    assert words == Vocabulary.load(out / "words.txt").words
    assert len(model_tensors(out)["decoder.embed.weight"]) == len(words)
    assert [row["stage"] for row in rows_of(out)] == ["supervision", "reinforcement"]


def test_an_epoch_outside_the_limits_on_picks_scores_lower_than_any_inside(prepared):
    network, data = prepared
    config = replace(CONFIG, reward=replace(CONFIG.reward, min_picks=2, max_picks_floor=3))
    three, four = (validation(network, data, config, evenly(data.val.counts, 6, k)) for k in (3, 4))
    assert three["score"] == three["val_cider"]
    assert four["score"] < 0
    free = validation(network, data, config, evenly(data.val.counts, 6, 4), limited=False)
    assert free["score"] == free["val_cider"]


class Numbers(NamedTuple):
    """A batch of plain numbers."""

    values: torch.Tensor

    def __len__(self) -> int:
        return len(self.values)

    def parts(self, count: int) -> list["Numbers"]:
        return [Numbers(part) for part in self.values.chunk(count)]


def one_weight() -> Weights:
    """A weight at 0 and its average, moved by plain gradient descent."""
    trained, averaged = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimiser = torch.optim.SGD([{"params": [trained], "full_rate": 1.0}], lr=0.0)
    return Weights({"w": trained}, {"w": averaged}, optimiser)


def full_rate(steps: int) -> float:
    return 1.0


def test_the_moving_average_follows_closely_at_first_and_then_by_its_decay():
    weights = one_weight()
    trained, averaged = weights.trained["w"], weights.averaged["w"]
    one = Numbers(torch.ones(1))
    # w moves from 0 to 1, and (1 + 0) / (10 + 0) of the old is kept; then from 1 to 2.
    Learner(weights, decay=0.9, steps=0, rate_factor=full_rate).step(one, lambda batch: (-trained.sum(), {}))
    assert averaged.item() == pytest.approx(0.9)
    Learner(weights, decay=0.9, steps=1000, rate_factor=full_rate).step(one, lambda batch: (-trained.sum(), {}))
    assert averaged.item() == pytest.approx(0.9 * 0.9 + 0.1 * 2)


def test_a_batch_in_parts_has_the_gradients_of_the_whole_batch():
    for parts in (1, 2, 3, 8):
        weights, batch_parts = one_weight(), BatchParts()
        batch_parts.count = parts
        learner = Learner(weights, decay=0.0, steps=0, rate_factor=full_rate, parts=batch_parts)

        def loss_of(batch: Numbers, weights: Weights = weights) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
            return (weights.trained["w"] * batch.values).mean(), {"mean": batch.values.mean()}

        learner.step(Numbers(torch.tensor([1.0, 2.0, 6.0])), loss_of)
        assert weights.trained["w"].item() == pytest.approx(-3.0)
        assert learner.means() == pytest.approx({"loss": 0.0, "mean": 3.0})


def test_batches_are_split_when_the_gpu_runs_out_of_memory():
    weights, notes, most = one_weight(), [], 1
    batch_parts = BatchParts(notes.append)
    learner = Learner(weights, decay=0.0, steps=0, rate_factor=full_rate, parts=batch_parts)

    def loss_of(batch: Numbers) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
        if len(batch) > most:
            raise torch.OutOfMemoryError
        return (weights.trained["w"] * batch.values).mean(), {}

    learner.step(Numbers(torch.tensor([1.0, 2.0, 6.0])), loss_of)
    assert weights.trained["w"].item() == pytest.approx(-3.0)  # once, from the whole batch
    assert (batch_parts.count, learner.steps) == (4, 1)
    assert notes == [f"out of GPU memory: batches are split into {parts} parts from now on" for parts in (2, 4)]
    most = 0
    with pytest.raises(OutOfMemory, match=r"memory does not hold a batch of one clip; try a smaller model\.image_size"):
        learner.step(Numbers(torch.tensor([1.0, 2.0, 6.0])), loss_of)


def test_masks_of_frames():
    counts = torch.tensor([6, 4])
    assert all_frames(counts, 6).sum(1).tolist() == [6, 4]
    # Centres of 2 equal parts: of 6 frames 1.5 and 4.5, of 4 frames 1 and 3.
    assert [mask.nonzero().flatten().tolist() for mask in evenly(counts, 6, 2)] == [[1, 4], [1, 3]]
    # Of 6 frames 2, of 4 frames 3: each as often as any other, 333 and 750 times of 1000, give or take 15.
    generator = torch.Generator().manual_seed(0)
    subsets = random_subsets(counts.repeat(1000), 6, torch.tensor([2, 3]).repeat(1000), generator)
    assert subsets.sum(1).tolist() == [2, 3] * 1000
    assert (subsets[::2].sum(0) - 333).abs().max() < 60
    assert (subsets[1::2].sum(0)[:4] - 750).abs().max() < 60
    assert not subsets[1::2, 4:].any()


def test_scheduled_sampling_falls_to_its_floor():
    stage = Config().supervision
    # 24 / (24 + exp(0)) = 0.96; at epoch 100, exp(100/24) = 64.5 and 24/88.5 is below the floor.
    assert teacher_forcing_probability(stage, 0) == pytest.approx(0.96)
    assert teacher_forcing_probability(stage, 100) == 0.6
    assert teacher_forcing_probability(stage, 10**6) == 0.6


def test_the_cosine_schedule_decays_to_zero():
    stage = replace(CONFIG.adaptation, epochs=10)
    # (1 + cos(πe / 10)) / 2, however many steps there were
    assert [round(rate_factor(stage, epoch, steps=7), 4) for epoch in (0, 5, 9)] == [1.0, 0.5, 0.0245]


def test_warm_up_is_linear():
    stage = replace(CONFIG.supervision, warmup_steps=3)
    assert [rate_factor(stage, 0, steps) for steps in range(5)] == [1 / 4, 2 / 4, 3 / 4, 1, 1]
    cosine = replace(stage, epochs=10, schedule="cosine")
    assert rate_factor(cosine, 5, 1) == pytest.approx(0.5 * 2 / 4)
    assert rate_factor(CONFIG.supervision, 0, 0) == 1


def test_captions_without_any_known_word_are_an_error(prepared):
    _, data = prepared
    unknown = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "zebra"))
    with pytest.raises(BadData, match="no caption of the training split has a word of the vocabulary"):
        prepared_data(data.train, data.val, unknown)


def test_a_run_from_a_model_finds_the_features_of_the_run_before(finished, data, tmp_path):
    before = sorted((finished.parent / "feature-cache").iterdir())
    config = replace(CONFIG, adaptation=replace(CONFIG.adaptation, epochs=1))
    settings = {"start": finished / "model", "stages": ("adaptation",), "cache": finished.parent / "feature-cache"}
    train(config, data=data, out=tmp_path / "run", device="cpu", **settings)
    assert sorted((finished.parent / "feature-cache").iterdir()) == before
