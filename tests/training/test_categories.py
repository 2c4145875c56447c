"""MSR-VTT with the category of a video as the decoder's first input: training, validation, the bench."""

import csv
import json
import shutil
from pathlib import Path

import pytest
import torch
from clips import write_clip

from picknet import metrics
from picknet.config import STAGES, BadConfig, parse_config, to_toml
from picknet.data.reading import SPLITS
from picknet.data.split import DataFolder
from picknet.text import BOS
from picknet.training import export
from picknet.training.bench import Bench
from picknet.training.export import load_network
from picknet.training.recipe import train

CONFIG = parse_config(
    """
    [video]
    num_frames = 4
    [text]
    min_count = 1
    max_words = 6
    categories = true
    [model]
    cnn = "efficientnet_lite0"
    image_size = 32
    embedding_size = 8
    state_size = 12
    picker_hidden = 8
    dropout = 0.0
    [reward]
    min_picks = 1
    max_picks_floor = 4
    [supervision]
    epochs = 40
    learning_rate = 0.03
    batch_size = 8
    teacher_forcing_floor = 1.0
    [reinforcement]
    epochs = 1
    [adaptation]
    epochs = 1
    """
)
SAID = {0: ("a band plays", "a band plays songs"), 3: ("two teams run", "two teams run fast")}
"""What people say of clips of music (0) and of sports (3), all of which look the same."""


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    """Six copies of one clip in the form of MSR-VTT, music and sports in turn, the last two to validate on."""
    folder = tmp_path_factory.mktemp("msrvtt")
    clip = write_clip(folder / "video0.mp4", num_frames=4, width=32, height=48)
    videos, sentences = [], []
    for number in range(6):
        name, category = f"video{number}", (0, 3)[number % 2]
        if number:
            shutil.copy(clip, folder / f"{name}.mp4")
        videos.append({"video_id": name, "split": "train" if number < 4 else "validate", "category": category})
        sentences += [{"video_id": name, "caption": caption} for caption in SAID[category]]
    content = json.dumps({"videos": videos, "sentences": sentences})
    (folder / "train_val_videodatainfo.json").write_text(content)
    return DataFolder("msrvtt", folder)


@pytest.fixture(scope="module")
def runs(data: DataFolder, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """PickNet's captioner and another system. Graphs are not written, which takes long."""
    folder = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(export, "_export_graphs", lambda *_: None)
        train(CONFIG, data=data, out=folder / "picknet", device="cpu")
        supervision = ["model.system=s2vt", "reinforcement.epochs=0", "adaptation.epochs=0"]
        train(parse_config(to_toml(CONFIG), supervision), data=data, out=folder / "s2vt", device="cpu")
    return {name: folder / name for name in ("picknet", "s2vt")}


def test_clips_that_look_the_same_learn_the_captions_of_their_categories(
    data: DataFolder, runs: dict[str, Path]
) -> None:
    cache = runs["picknet"].parent / "feature-cache"
    bench = Bench((data,), cache, torch.device("cpu"), picker=str(runs["picknet"]))
    described, references = bench.describe(list(runs.values()))
    assert references == {"video4": SAID[0], "video5": SAID[3]}
    for one in described:
        music, sports = one.captions.values()
        assert (music in SAID[0], sports in SAID[3]) == (True, True), (one.system, one.frames, one.captions)


def test_every_stage_is_validated_on_captions_that_begin_with_the_category(runs: dict[str, Path]) -> None:
    with (runs["picknet"] / "metrics.csv").open(newline="") as file:
        last = {row["stage"]: float(row["val_cider"]) for row in csv.DictReader(file)}
    # Without its category one sentence is said of both clips, and is right about one of them.
    references = {name: [caption.split() for caption in SAID[kind]] for name, kind in (("video4", 0), ("video5", 3))}
    same = [100 * metrics.cider(dict.fromkeys(references, text.split()), references) for text in (*SAID[0], *SAID[3])]
    assert list(last) == ["supervision", "reinforcement", "adaptation"]
    assert min(last.values()) > 1.5 * max(same)


def test_a_bos_that_no_caption_began_with_is_the_mean_of_the_categories(runs: dict[str, Path]) -> None:
    for run in runs.values():
        network, vocabulary, _ = load_network(run / "model")
        assert list(vocabulary.styles) == ["music", "sports"]
        embedded = network.decoder.embed.weight
        mean = embedded[list(vocabulary.styles.values())].mean(0)
        assert torch.allclose(embedded[BOS], mean, atol=2e-3)  # stored in 16 bits


@pytest.fixture(scope="module")
def without(tmp_path_factory: pytest.TempPathFactory) -> DataFolder:
    """A data set without categories."""
    folder = tmp_path_factory.mktemp("folder")
    rows = [{"clip": f"clip{number}", "caption": "a box", "split": split} for number, split in enumerate(SPLITS[:2])]
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    for row in rows:
        write_clip(folder / f"{row['clip']}.mp4", num_frames=2)
    return DataFolder("folder", folder)


def test_beside_another_data_set_a_category_takes_the_place_of_a_style(
    data: DataFolder, without: DataFolder, runs: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(export, "_export_graphs", lambda *_: None)
    settings = ["text.styles=true", *(f"{stage}.epochs={stage == 'supervision':d}" for stage in STAGES)]
    config, cache = parse_config(to_toml(CONFIG), settings), runs["picknet"].parent / "feature-cache"
    network, vocabulary, _ = load_network(
        train(config, data=[without, data], out=tmp_path / "run", cache=cache, device="cpu")
    )
    assert list(vocabulary.styles) == ["music", "sports"]
    # Captions of the first data set began with <bos>, which was learned.
    embedded = network.decoder.embed.weight
    assert not torch.allclose(embedded[BOS], embedded[list(vocabulary.styles.values())].mean(0), atol=2e-3)


def test_categories_of_a_data_set_that_has_none_are_an_error(without: DataFolder, tmp_path: Path) -> None:
    message = r"^text.categories is true, but no training clip of folder has a category; MSR-VTT's official annotations"
    with pytest.raises(BadConfig, match=message):
        train(CONFIG, data=without, out=tmp_path / "run", device="cpu")
    assert not (tmp_path / "run").exists()
