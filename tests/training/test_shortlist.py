"""`picknet export --min-share`: rare words are left out of a model, and the others keep their probabilities."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from clips import write_clip
from folders import unsealed

from picknet.config import Config, parse_config
from picknet.data import BadData
from picknet.data.split import Clip, DataFolder, Split, load_split
from picknet.model.confidence import Confidence
from picknet.model.runtime import Runtime
from picknet.model.sentences import SentenceWriter
from picknet.text import BOS, PAD, SPECIAL_WORDS, Vocabulary
from picknet.training.export import export, load_network
from picknet.training.network import Network
from picknet.training.recipe import export_run, train
from picknet.training.runs import BadRun
from picknet.training.shortlist import frequent_words, shortened

SMALL = """
[video]
num_frames = 4
[text]
min_count = 1
max_words = 8
[model]
cnn = "efficientnet_lite0"
image_size = 64
grid = 2
embedding_size = 12
state_size = 12
attention_heads = 2
attention_hidden = 16
picker = "rate"
dropout = 0.0
[supervision]
epochs = 1
[reinforcement]
epochs = 1
samples = 2
[adaptation]
epochs = 0
"""
COMMON = ("a", "box", "blinks", "is", "square", "wide")
RARE = tuple(f"rare{number}" for number in range(40))


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Six clips, whose captions have some common words and a rare one now and then."""
    folder = tmp_path_factory.mktemp("data")
    rows = []
    for number in range(6):
        write_clip(folder / f"clip{number}.mp4", num_frames=6, width=64 + 32 * (number % 2))
        captions = ["a square box blinks", "a wide box is square", f"a {RARE[number]} box", "is a box wide"]
        split = "train" if number < 5 else "val"
        rows += [{"clip": f"clip{number}", "caption": caption, "split": split} for caption in captions]
    (folder / "captions.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


def network_of(config: Config, vocabulary: Vocabulary) -> Network:
    """A random network to which common words are more or less probable, and rare words about equally so."""
    torch.manual_seed(5)
    network = Network(config.model, len(vocabulary), pretrained=False).eval()
    with torch.no_grad():
        rows = network.decoder.word_rows
        rows[:] = torch.randn_like(rows) * 0.03
        common = [vocabulary.words.index(word) for word in COMMON]
        rows[common] *= 15
    return network


def clip(name: str, *captions: str) -> Clip:
    return Clip(name, Path(f"{name}.mp4"), captions)


def log_probabilities(network: Network, words: Sequence[int], frames: int = 3) -> torch.Tensor:
    """After each of these words: (words, vocabulary)"""
    generator = torch.Generator().manual_seed(0)
    pixels = torch.randint(0, 256, (frames, 64, 64, 3), dtype=torch.uint8, generator=generator)
    with torch.no_grad():
        memory = network.encoder(network.cnn(pixels)[None], torch.tensor([frames]))
        state, found = torch.zeros(1, network.decoder.size), []
        for word in words:
            now, state = network.decoder.step(torch.tensor([word]), memory.video, memory.keys, memory.values, state)
            found.append(now[0])
    return torch.stack(found)


def test_words_stay_that_are_frequent_in_some_data_set() -> None:
    vocabulary = Vocabulary((*SPECIAL_WORDS, "a", "dog", "cat", "zebra", "[coco]"))
    one = Split("msvd", "train", (clip("1", "a dog", "a dog dog dog"), clip("2", "a", "a zebra")), ())
    other = Split("coco", "train", (clip("3", *["a", "A Cat!"]),), ())

    def words(min_share: float, *splits: Split) -> list[str]:
        kept = frequent_words(vocabulary, splits, min_share=min_share)
        return [vocabulary.words[number] for number in kept if number >= len(SPECIAL_WORDS)]

    assert words(0.5, one) == ["a", "dog", "[coco]"]  # a word counts once a caption
    assert words(0.5, one, other) == ["a", "dog", "cat", "[coco]"]
    assert words(0.25, one) == ["a", "dog", "zebra", "[coco]"]
    assert words(0.75, one) == ["a", "[coco]"]


@pytest.mark.parametrize("tied", [True, False])
def test_the_words_that_stay_keep_their_probabilities(data: Path, tied: bool) -> None:
    config = parse_config(SMALL, [f"model.tied_words={str(tied).lower()}"])
    vocabulary = Vocabulary((*SPECIAL_WORDS, *COMMON, *RARE, "[coco]"))
    network = network_of(config, vocabulary)
    split = load_split(data, dataset="folder", split="train")
    looked_at: list[None] = []
    short, words, settings = shortened(
        network, vocabulary, config, [split], min_share=0.1, on_clip=lambda: looked_at.append(None)
    )
    assert len(looked_at) == len(split.clips)
    assert words.words == (*SPECIAL_WORDS, *COMMON, "[coco]")
    assert settings == replace(config, model=replace(config.model, left_out=len(RARE)))

    # Of pictures that it was not fitted on. Without them the probabilities would be higher by what rare words had.
    said = ["<bos>", "a", "square", "box"]
    before = log_probabilities(network, [vocabulary.words.index(word) for word in said])
    after = log_probabilities(short, [words.words.index(word) for word in said])
    kept = [vocabulary.words.index(word) for word in words.words]
    gone = [PAD, *(vocabulary.words.index(word) for word in RARE)]
    of_gone = before[:, gone].logsumexp(1)
    assert of_gone.exp().min() > 0.05
    torch.testing.assert_close(after[:, 1:], before[:, kept[1:]], atol=0.02, rtol=0)
    torch.testing.assert_close(after[:, PAD], of_gone, atol=0.1, rtol=0)


class Folders(NamedTuple):
    full: Path
    short: Path
    card: dict[str, Any]


@pytest.fixture(scope="module")
def folders(data: Path, tmp_path_factory: pytest.TempPathFactory, traced_cnns: None) -> Folders:
    """A model folder, and the same without rare words."""
    folder = tmp_path_factory.mktemp("models")
    config, vocabulary = parse_config(SMALL, ["model.tied_words=true"]), Vocabulary((*SPECIAL_WORDS, *COMMON, *RARE))
    card = {"licence": "CC0-1.0", "confidence": {"folder": Confidence(0.1, {"likelihood": 1.0}).to_dict()}}
    export(network_of(config, vocabulary), vocabulary, config, folder / "full", card=card, tags=b"tags")
    export_run(folder / "full", folder / "short", data=[DataFolder("folder", data)], min_share=0.1)
    return Folders(folder / "full", folder / "short", card)


def test_a_model_without_rare_words_says_the_same_with_the_same_signals(folders: Folders, tmp_path: Path) -> None:
    pixels = np.random.default_rng(3).integers(0, 256, (2, 64, 64, 3), dtype=np.uint8)
    written = []
    for folder in (folders.full, folders.short):
        copy = unsealed(folder, tmp_path / folder.name)
        (copy / "tags.safetensors").unlink()  # it is none
        runtime = Runtime(copy)
        state = runtime.start()
        for frame in runtime.features(pixels):
            state = runtime.encode(frame[None], state)
        written.append(SentenceWriter(runtime, first_word=BOS).write(state, beam=3))
    full, short = written
    assert short.sentences[0].text == full.sentences[0].text != ""
    assert short.signals.likelihood == pytest.approx(full.signals.likelihood, abs=0.03)
    assert short.signals.entropy == pytest.approx(full.signals.entropy, abs=0.1)
    assert full.signals.entropy > 1  # rare words have a good part in it


def test_export_keeps_the_card_and_the_tags_of_a_model(data: Path, folders: Folders, tmp_path: Path) -> None:
    assert (folders.short / "words.txt").read_text().split() == [*SPECIAL_WORDS, *COMMON]
    assert (folders.short / "tags.safetensors").read_bytes() == b"tags"
    assert json.loads((folders.short / "card.json").read_text()) == folders.card
    with pytest.raises(BadRun, match=r"^40 words were left out of this model before; export one that has all$"):
        export_run(folders.short, tmp_path / "shorter", data=[DataFolder("folder", data)], min_share=0.3)
    assert not (tmp_path / "shorter").exists()


@pytest.mark.parametrize(("stage", "left_out"), [("supervision", 0), ("reinforcement", len(RARE))])
def test_training_the_captioner_forgets_what_was_left_out(
    stage: str, left_out: int, data: Path, folders: Folders, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trained: list[Any] = []
    monkeypatch.setattr("picknet.training.recipe.export", lambda *arguments, **rest: trained.extend(arguments))
    start = unsealed(folders.short, tmp_path / "start")
    train(data=DataFolder("folder", data), start=start, out=tmp_path / "run", stages=[stage])
    network, vocabulary, config, _ = trained
    new = RARE[:5] if stage == "supervision" else ()  # the captioner learns the words of its captions
    assert set(vocabulary.words) == {*SPECIAL_WORDS, *COMMON, *new}
    assert config.model.left_out == left_out
    before, _, _ = load_network(start)
    if left_out:
        torch.testing.assert_close(network.decoder.left_out.weight, before.decoder.left_out.weight)
    else:
        assert network.decoder.left_out is None


def test_nothing_is_left_of_a_model_whose_words_are_all_rare(data: Path) -> None:
    config, vocabulary = parse_config(SMALL), Vocabulary((*SPECIAL_WORDS, "dog", "cat"))
    split = load_split(data, dataset="folder", split="train")
    with pytest.raises(BadData, match=r"no word of the model is in as many as 0\.1 of the captions"):
        shortened(Network(config.model, 6, pretrained=False), vocabulary, config, [split], min_share=0.1)


def test_a_model_whose_words_are_all_frequent_stays_as_it_is(data: Path) -> None:
    config, vocabulary = parse_config(SMALL), Vocabulary((*SPECIAL_WORDS, *COMMON))
    network = Network(config.model, len(vocabulary), pretrained=False)
    split = load_split(data, dataset="folder", split="train")
    assert shortened(network, vocabulary, config, [split], min_share=0.1) == (network, vocabulary, config)


def test_clips_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "one.mp4").write_bytes(b"no video")
    config, vocabulary = parse_config(SMALL), Vocabulary((*SPECIAL_WORDS, *COMMON, *RARE))
    split = Split("folder", "train", (Clip("one", tmp_path / "one.mp4", ("a box blinks",)),), ())
    with pytest.raises(BadData, match="none of the clips that were tried can be read"):
        shortened(network_of(config, vocabulary), vocabulary, config, [split], min_share=0.1)


def test_another_system_cannot_be_shortened(data: Path) -> None:
    config = parse_config(SMALL.replace("[model]", '[model]\nsystem = "mean"'))
    network = Network(config.model, 6, pretrained=False)
    with pytest.raises(BadRun, match="words of a model of the system mean cannot be left out"):
        shortened(network, Vocabulary((*SPECIAL_WORDS, "a", "box")), config, [], min_share=0.1)

