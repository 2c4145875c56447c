"""Fixtures that several test files share."""

from pathlib import Path

import pytest

TINY_WORDS = ["a", "the", "man", "woman", "cat", "dog", "is", "are", "playing", "running", "eating", "sitting"]


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small untrained model, written by the exporter. Tests read it; one that changes it works on a copy."""
    import torch

    from picknet.config import Config, ModelConfig, TextConfig
    from picknet.export import export
    from picknet.model import Network
    from picknet.text import SPECIAL_WORDS, Vocabulary

    torch.manual_seed(0)
    config = Config(
        beam=2,
        text=TextConfig(max_words=8),
        model=ModelConfig(cnn="efficientnet_lite0", image_size=64, embedding_size=16, state_size=24, picker_hidden=12),
    )
    vocabulary = Vocabulary((*SPECIAL_WORDS, *TINY_WORDS))
    network = Network(config.model, len(vocabulary)).eval()
    with torch.no_grad():  # as they start, weights are so small that every video would get the same sentence
        for weight in network.encoder.parameters():
            weight *= 8
    folder = tmp_path_factory.mktemp("models") / "tiny"
    export(network, vocabulary, config, folder, card={"trained_on": "nothing"})
    return folder
