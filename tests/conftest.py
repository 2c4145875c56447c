"""Fixtures that several test files share."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from filelock import FileLock


@pytest.fixture(scope="session", autouse=True)
def _own_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Tests keep nothing in the user's cache folder."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PICKNET_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


TINY_WORDS = ["a", "the", "man", "woman", "cat", "dog", "is", "are", "playing", "running", "eating", "sitting"]
TINY = """
beam = 2
[text]
max_words = 8
[model]
cnn = "efficientnet_lite0"
image_size = 64
embedding_size = 16
state_size = 24
picker_hidden = 12
"""
ATTENDING = [
    "video.num_frames=4", "reward.min_picks=1", "model.grid=2", "model.attention_heads=2", "model.attention_hidden=20",
    "model.tied_words=true", "model.picker=rate",
]  # fmt: skip


class TracedCNNs(dict[tuple[str, int, int], bytes]):
    """The exporter's traced CNNs as files, which all processes of a test run share."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        folder.mkdir(exist_ok=True)

    def __contains__(self, key: object) -> bool:
        return self._path(key).exists()

    def __getitem__(self, key: tuple[str, int, int]) -> bytes:
        return self._path(key).read_bytes()

    def __setitem__(self, key: tuple[str, int, int], model: bytes) -> None:
        temporary = self._path((*key, os.getpid()))
        temporary.write_bytes(model)
        temporary.replace(self._path(key))

    def _path(self, key: object) -> Path:
        return self._folder / f"{key}.onnx"


@pytest.fixture(scope="session")
def traced_cnns(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Of an export, tracing the CNN takes longest: it happens once in a test run for each that is asked for."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("picknet.training.export._cnns", TracedCNNs(shared(tmp_path_factory) / "cnns"))
        yield


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory, traced_cnns: None) -> Path:
    """A small untrained model, written by the exporter. Tests read it; one that changes it works on a copy."""
    return exported_once(tmp_path_factory, "tiny", ())


@pytest.fixture(scope="session")
def attending_folder(tmp_path_factory: pytest.TempPathFactory, traced_cnns: None) -> Path:
    """The same with all that is beyond the paper: cells, attention, tied words, a policy with a memory that has
    learned, and a second style of captions."""
    return exported_once(tmp_path_factory, "attending", ATTENDING)


def exported_once(tmp_path_factory: pytest.TempPathFactory, name: str, settings: Sequence[str]) -> Path:
    """Exporting takes half a minute, so all processes of a test run share the folder."""
    folder = shared(tmp_path_factory) / "models" / name
    folder.parent.mkdir(exist_ok=True)
    with FileLock(f"{folder}.lock"):
        return folder if folder.exists() else exported(folder, settings)


def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of all processes of a test run."""
    base = tmp_path_factory.getbasetemp()
    return base.parent if "PYTEST_XDIST_WORKER" in os.environ else base


def exported(folder: Path, settings: Sequence[str]) -> Path:
    import torch

    from picknet.config import parse_config
    from picknet.text import SPECIAL_WORDS, Vocabulary
    from picknet.training.export import export
    from picknet.training.network import Network

    torch.manual_seed(0)
    config = parse_config(TINY, settings)
    vocabulary = Vocabulary((*SPECIAL_WORDS, *TINY_WORDS)).with_styles(["msrvtt"] if settings else [])
    network = Network(config.model, len(vocabulary)).eval()
    with torch.no_grad():  # as they start, weights are so small that every video would get the same sentence
        for weight in network.encoder.parameters():
            weight *= 8
        if config.model.picker == "rate":
            torch.nn.init.normal_(network.picknet.decide.weight, std=2.0)
    export(network, vocabulary, config, folder, card={"trained_on": "nothing"})
    return folder
