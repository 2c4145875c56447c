"""The three stages on a tiny data set: they learn, they resume, they repeat."""

import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from picknet.config import Config, ModelConfig, parse_config, to_toml
from picknet.datasets import BadData, Clip
from picknet.features import SeenSplit, see
from picknet.metrics import Cider
from picknet.model import CNN, Network, gather_picked
from picknet.runs import BadRun, Learner, Run, Weights, learning_rate
from picknet.text import BOS, EOS, PAD, UNK, Vocabulary, tokenise
from picknet.training import (
    all_frames,
    caption_batches,
    cross_entropy,
    evenly,
    export_run,
    policy_loss,
    prepare,
    random_subsets,
    sentence_loss,
    teacher_forcing_probability,
    train,
    validation,
)

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
    [refinement]
    epochs = 3
    learning_rate = 0.003
    """
)


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
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
def finished(data, tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "whole"
    train(CONFIG, data=data, dataset="folder", out=out, device="cpu")
    return out


def rows_of(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_run_folder_holds_what_it_takes_to_repeat_and_to_use_it(finished):
    found = {path.name for path in finished.iterdir()}
    assert found == {
        "config.toml", "origin.json", "versions.json", "words.txt", "clips.json", "metrics.csv", "tensorboard",
        "checkpoints", "model",
    }  # fmt: skip
    epochs = {"supervision": 10, "reinforcement": 4, "adaptation": 4, "refinement": 3}
    assert [row["stage"] for row in rows_of(finished)] == [stage for stage, n in epochs.items() for _ in range(n)]
    assert all(row["val_cider"] and row["val_picks"] for row in rows_of(finished))
    assert parse_config((finished / "config.toml").read_text()) == CONFIG
    card = json.loads((finished / "model" / "card.json").read_text())
    assert set(card["stages"]) == set(epochs)
    assert card["clips"] == {"train": {"used": 6, "missing": 0}, "val": {"used": 3, "missing": 0}}


def test_supervision_learns(finished):
    losses = [float(row["loss"]) for row in rows_of(finished) if row["stage"] == "supervision"]
    assert losses[-1] < 0.5 * losses[0]


def test_each_stage_starts_from_the_best_of_the_one_before(finished):
    from safetensors.torch import load_file

    best = load_file(finished / "checkpoints" / "supervision-best.safetensors")
    assert any(name.startswith("decoder.") for name in best)
    picker = load_file(finished / "checkpoints" / "reinforcement-best.safetensors")
    assert all(name.startswith("picknet.") for name in picker)


def test_one_seed_gives_one_result(data, finished, tmp_path):
    train(CONFIG, data=data, dataset="folder", out=tmp_path / "again", cache=finished.parent / "feature-cache")
    assert rows_of(tmp_path / "again") == rows_of(finished)
    weights = [(run / "model" / "weights.safetensors").read_bytes() for run in (finished, tmp_path / "again")]
    assert weights[0] == weights[1]


KILLED = """
import sys
from pathlib import Path
from picknet import runs, training
from picknet.config import load_config
runs.SAVE_SECONDS = 0.0
config, data, out, cache, resume = sys.argv[1:]
settings = dict(data=data, dataset="folder", out=out, cache=cache, resume=bool(resume), device="cpu")
training.train(load_config(config), **settings)
"""


def test_a_run_killed_in_each_stage_ends_as_an_uninterrupted_one(data, finished, tmp_path):
    out = tmp_path / "killed"
    (tmp_path / "config.toml").write_text(to_toml(CONFIG))
    arguments = [str(tmp_path / "config.toml"), str(data), str(out), str(finished.parent / "feature-cache")]
    resume = ""
    for rows_at_death in (4, 12, 16, 20):
        process = subprocess.Popen([sys.executable, "-c", KILLED, *arguments, resume])
        deadline = time.monotonic() + 120
        while not (out / "metrics.csv").exists() or len(rows_of(out)) < rows_at_death:
            assert process.poll() is None, "it should have been killed long before its end"
            assert time.monotonic() < deadline
            time.sleep(0.002)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        resume = "resume"
    subprocess.run([sys.executable, "-c", KILLED, *arguments, resume], check=True)
    assert rows_of(out) == rows_of(finished)
    assert (out / "model" / "weights.safetensors").read_bytes() == (
        finished / "model" / "weights.safetensors"
    ).read_bytes()


def test_a_run_is_not_written_over_and_not_mixed_with_another(data, finished, tmp_path):
    with pytest.raises(BadRun, match="holds a run already; --resume goes on with it, or name a new folder"):
        train(CONFIG, data=data, dataset="folder", out=finished)
    other = replace(CONFIG, seed=5)
    with pytest.raises(BadRun, match=r"was begun with other settings \('seed = 0', now 'seed = 5'\)"):
        train(other, data=data, dataset="folder", out=finished, resume=True)
    with pytest.raises(BadRun, match=r"was begun otherwise \(from: None, now .*model\); give the same command again"):
        train(CONFIG, data=data, dataset="folder", out=finished, resume=True, start=finished / "model")
    with pytest.raises(BadRun, match="no run to resume here"):
        train(CONFIG, data=data, dataset="folder", out=tmp_path / "none", resume=True)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.txt").write_text("do not touch")
    with pytest.raises(BadRun, match="is there already and is no run folder"):
        train(CONFIG, data=data, dataset="folder", out=tmp_path / "full")


def test_a_run_that_has_not_ended_can_be_exported(data, finished, tmp_path):
    unfinished = tmp_path / "unfinished"
    shutil.copytree(finished, unfinished)
    shutil.rmtree(unfinished / "model")
    export_run(unfinished, tmp_path / "model")
    export_run(finished, tmp_path / "again")
    for part in ("weights.safetensors", "words.txt", "config.toml", "card.json"):
        assert (tmp_path / "model" / part).read_bytes() == (tmp_path / "again" / part).read_bytes()
    with pytest.raises(BadRun, match="holds no run that has come as far as a checkpoint"):
        export_run(data, tmp_path / "none")


def test_a_log_cut_in_its_last_row_does_not_stop_a_resumed_run(finished, tmp_path):
    run = tmp_path / "cut"
    shutil.copytree(finished, run)
    with (run / "metrics.csv").open("a") as file:
        file.write("refinement,99")
    Run(run, CONFIG, torch.device("cpu"), lambda *_: None).forget_unfinished_epochs()
    assert rows_of(run) == rows_of(finished)


def test_an_impossible_device_is_named_with_the_possible_ones(data, tmp_path):
    with pytest.raises(BadRun, match=r"--device tpu: not on this machine \(possible: .*cpu\)"):
        train(CONFIG, data=data, dataset="folder", out=tmp_path / "run", device="tpu")


def test_fine_tuning_keeps_the_words_and_adds_new_ones(data, finished, tmp_path):
    own = tmp_path / "own"
    (own / "videos").mkdir(parents=True)
    for i in range(4):
        (own / "videos" / f"clip{i}.mp4").write_bytes((data / "videos" / f"clip{i}.mp4").read_bytes())
    splits = ("train", "train", "train", "val")
    rows = [{"clip": f"clip{i}", "caption": "a crimson box jumps", "split": split} for i, split in enumerate(splits)]
    (own / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    out = tmp_path / "tuned"
    train(CONFIG, data=own, dataset="folder", out=out, start=finished / "model", stages=("adaptation",))
    before, after = (Vocabulary.load(run / "model" / "words.txt").words for run in (finished, out))
    assert after[: len(before)] == before
    assert set(after[len(before) :]) == {"crimson", "jumps"}
    assert {row["stage"] for row in rows_of(out)} == {"adaptation"}


def test_fine_tuning_another_network_is_refused(data, finished, tmp_path):
    larger = replace(CONFIG, model=replace(CONFIG.model, state_size=13))
    with pytest.raises(BadRun, match=r"model: its model.state_size is 12, the config's is 13"):
        train(larger, data=data, dataset="folder", out=tmp_path / "run", start=finished / "model")


def test_a_clip_that_cannot_be_read_is_reported_and_the_others_are_used(data, tmp_path):
    folder = tmp_path / "data"
    shutil.copytree(data, folder)
    (folder / "videos" / "clip2.mp4").write_bytes(b"this is no video")
    notes: list[str] = []
    out = tmp_path / "run"
    short = replace(
        CONFIG,
        supervision=replace(CONFIG.supervision, epochs=1),
        reinforcement=replace(CONFIG.reinforcement, epochs=0),
        adaptation=replace(CONFIG.adaptation, epochs=0),
        refinement=replace(CONFIG.refinement, epochs=0),
    )
    train(short, data=folder, dataset="folder", out=out, note=notes.append)
    assert "5 clips of the train split, 1 missing" in notes[0]
    missing = json.loads((out / "clips.json").read_text())["train"]["missing"]
    assert [row["name"] for row in missing] == ["clip2"]


def test_features_are_extracted_once_and_anew_when_a_setting_changes(data, tmp_path):
    from picknet.datasets import load_split

    split = load_split(data, dataset="folder", split="val")
    cnn = CNN(CONFIG.model).eval()
    first = see(split, cnn, CONFIG, cache=tmp_path)
    written = {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()}
    assert len(written) == 3
    again = see(split, cnn, CONFIG, cache=tmp_path)
    assert torch.equal(first.features, again.features)
    assert {path: path.stat().st_mtime_ns for path in tmp_path.iterdir()} == written
    larger = replace(CONFIG, model=replace(CONFIG.model, image_size=40))
    other = see(split, cnn, larger, cache=tmp_path)
    assert len(list(tmp_path.iterdir())) == 6
    assert not torch.equal(first.features, other.features)


def test_a_damaged_cache_file_is_made_anew(data, tmp_path):
    from picknet.datasets import load_split

    split = load_split(data, dataset="folder", split="val")
    cnn = CNN(CONFIG.model).eval()
    first = see(split, cnn, CONFIG, cache=tmp_path)
    for path in tmp_path.iterdir():
        path.write_bytes(path.read_bytes()[:100])
    assert torch.equal(see(split, cnn, CONFIG, cache=tmp_path).features, first.features)


@pytest.fixture
def prepared():
    """Two clips of noise with four captions in all, and a network, without any video."""
    torch.manual_seed(0)
    clips = (
        Clip("one", Path("one.mp4"), ("a cat runs", "the cat", "a cat sits")),
        Clip("two", Path("two.mp4"), ("a dog barks",)),
    )
    seen = SeenSplit(
        clips=clips,
        glances=torch.randint(0, 256, (2, 6, 56, 56), dtype=torch.uint8),
        features=torch.randn(2, 6, 1280),
        counts=torch.tensor([6, 4]),
        missing=(),
    )
    vocabulary = Vocabulary.from_captions([tokenise(c) for clip in clips for c in clip.captions], min_count=1)
    network = Network(ModelConfig(cnn="efficientnet_lite0", picker_hidden=4, state_size=5), len(vocabulary))
    return network, prepare(seen, seen, vocabulary, CONFIG, torch.device("cpu"))


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


def test_cross_entropy_is_the_mean_of_minus_log_p_over_words_and_eos(prepared):
    network, data = prepared
    network.eval()
    stage = replace(CONFIG.supervision, batch_size=9, captions_per_video=3, teacher_forcing_floor=1.0)
    (batch,) = caption_batches(data, stage, epoch=0, order=np.random.default_rng(0))
    picked = all_frames(data.train.counts[batch.clips], 6)
    losses = []
    for caption in batch.captions.tolist():
        clip = data.owners[caption]
        count = int(data.train.counts[clip])
        video = network.encoder(data.train.features[clip, :count][None], torch.tensor([count]))
        state = torch.zeros_like(video)
        for t in range(data.lengths[caption]):
            log_probabilities, state = network.decoder.step(data.words[caption, t][None], video, state)
            losses.append(-log_probabilities[0, data.words[caption, t + 1]].item())
    loss = cross_entropy(network, data, batch, picked, label_smoothing=0.0)
    assert loss.item() == pytest.approx(np.mean(losses), abs=1e-5)


def test_the_advantage_is_the_sampled_reward_minus_the_greedy_one(prepared):
    network, data = prepared
    config = replace(CONFIG, reward=replace(CONFIG.reward, min_picks=1, max_picks_floor=6))
    network.eval()
    clips = torch.tensor([0, 1])
    loss, picked, facts = policy_loss(
        network, data, config, clips, 6, torch.Generator().manual_seed(1), samples=1
    )
    walk = network.picknet.walk(data.train.glances, data.train.counts, generator=torch.Generator().manual_seed(1))
    assert torch.equal(walk.picked, picked)
    rewards = []
    for mask in (picked, network.picknet.walk(data.train.glances, data.train.counts).picked):
        for i in range(2):
            video = network.encoder(data.train.features[i][mask[i]][None], mask[i].sum()[None])
            words = network.decoder.write(video, max_words=config.text.max_words)
            text = data.vocabulary.decode(words[0].tolist()).split()
            unit = torch.nn.functional.normalize(data.train.features[i][mask[i]], dim=-1)
            n = len(unit)
            cosines = (unit @ unit.T).triu(1).sum()
            diversity = float(1 - 2 * cosines / (n * (n - 1))) if n > 1 else 0.0
            references = {clip.name: [tokenise(c) for c in clip.captions] for clip in data.train.clips}
            rewards.append(Cider(references).scores([data.train.clips[i].name], [text])[0] + diversity)
    advantage = torch.tensor(rewards[:2]) - torch.tensor(rewards[2:])
    expected = -(advantage * walk.log_probability).mean()
    assert loss.item() == pytest.approx(expected.item(), rel=1e-4, abs=1e-5)
    assert facts["reward"].item() == pytest.approx(np.mean(rewards[:2]), rel=1e-4)


def test_several_samples_of_a_clip_share_its_baseline(prepared):
    network, data = prepared
    network.eval()
    generator = torch.Generator().manual_seed(1)
    _, picked, _ = policy_loss(network, data, CONFIG, torch.tensor([0, 1]), 6, generator, samples=3)
    assert picked.shape == (6, 6)
    assert not picked[3:, 4:].any()  # the second clip has four frames, in all three of its samples
    assert picked[:3, 4:].any()


def test_sampled_sentences_are_weighed_against_the_other_sentences_of_their_clip(prepared):
    network, data = prepared
    network.eval()
    clips = torch.tensor([0, 1])
    loss, facts = sentence_loss(network, data, CONFIG, clips, torch.Generator().manual_seed(3), samples=2)
    generator = torch.Generator().manual_seed(3)
    picked = network.picknet.walk(data.train.glances, data.train.counts, generator=generator).picked
    video = network.encoder(*gather_picked(data.train.features, picked)).repeat_interleave(2, dim=0)
    words = network.decoder.write(video, max_words=CONFIG.text.max_words, generator=generator)
    names = ["one", "one", "two", "two"]
    rewards = data.train_cider.scores(names, [data.vocabulary.decode(row).split() for row in words.tolist()])
    advantages = [rewards[0] - rewards[1], rewards[1] - rewards[0], rewards[2] - rewards[3], rewards[3] - rewards[2]]
    total, num_words = 0.0, 0
    for i, advantage in enumerate(advantages):
        state, word = torch.zeros(1, 5), torch.tensor([BOS])
        for following in words[i][words[i] != PAD]:
            log_probabilities, state = network.decoder.step(word, video[i : i + 1], state)
            log_probabilities[:, [PAD, BOS, UNK]] = -torch.inf
            total -= advantage * log_probabilities.log_softmax(-1)[0, following].item()
            word = following[None]
            num_words += 1
    assert any(advantages)
    assert loss.item() == pytest.approx(total / num_words, rel=1e-4)
    assert facts["language"].item() == pytest.approx(np.mean(rewards), rel=1e-5)


def test_an_epoch_outside_the_limits_on_picks_scores_below_every_other(prepared):
    network, data = prepared
    config = replace(CONFIG, reward=replace(CONFIG.reward, min_picks=2, max_picks_floor=3))
    three, four = (validation(network, data, config, evenly(data.val.counts, 6, k)) for k in (3, 4))
    assert three["score"] == three["val_cider"]
    assert four["score"] < 0
    free = validation(network, data, config, evenly(data.val.counts, 6, 4), limited=False)
    assert free["score"] == free["val_cider"]


def test_the_moving_average_follows_closely_at_first_and_then_by_its_decay():
    trained, averaged = (torch.nn.Parameter(torch.zeros(1)) for _ in range(2))
    optimiser = torch.optim.SGD([trained], lr=1.0)
    weights = Weights({"w": trained}, {"w": averaged}, optimiser)
    Learner(weights, decay=0.9, steps=0).step(-trained.sum(), {})  # w moves from 0 to 1
    assert averaged.item() == pytest.approx(0.9)  # (1 + 0) / (10 + 0) of the old is kept
    Learner(weights, decay=0.9, steps=1000).step(-trained.sum(), {})  # w moves from 1 to 2
    assert averaged.item() == pytest.approx(0.9 * 0.9 + 0.1 * 2)


def test_masks_of_frames():
    counts = torch.tensor([6, 4])
    assert all_frames(counts, 6).sum(1).tolist() == [6, 4]
    # Centres of 2 equal parts: of 6 frames 1.5 and 4.5, of 4 frames 1 and 3.
    assert [mask.nonzero().flatten().tolist() for mask in evenly(counts, 6, 2)] == [[1, 4], [1, 3]]
    subsets = random_subsets(counts.repeat(500), 6, 2, 5, torch.Generator().manual_seed(0))
    sizes = subsets.sum(1)
    assert (int(sizes.min()), int(sizes.max())) == (2, 5)
    assert not subsets[1::2, 4:].any()
    assert sizes[1::2].max() == 4


def test_scheduled_sampling_falls_to_its_floor():
    stage = Config().supervision
    # 24 / (24 + exp(0)) = 0.96; at epoch 100, exp(100/24) = 64.5 and 24/88.5 is below the floor.
    assert teacher_forcing_probability(stage, 0) == pytest.approx(0.96)
    assert teacher_forcing_probability(stage, 100) == 0.6
    assert teacher_forcing_probability(stage, 10**6) == 0.6


def test_the_cosine_schedule_ends_near_zero():
    stage = replace(CONFIG.adaptation, epochs=10, learning_rate=1.0)
    assert [round(learning_rate(stage, epoch), 4) for epoch in (0, 5, 9)] == [1.0, 0.5, 0.0245]


def test_captions_without_a_known_word_are_no_training_data(prepared):
    _, data = prepared
    unknown = Vocabulary(("<pad>", "<bos>", "<eos>", "<unk>", "zebra"))
    with pytest.raises(BadData, match="no caption of the training split has a word of the vocabulary"):
        prepare(data.train, data.val, unknown, CONFIG, torch.device("cpu"))
