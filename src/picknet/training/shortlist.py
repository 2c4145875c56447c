"""A shortlist: a trained captioner without the words that are too rare to get into its captions.

In every step of the search for a sentence the decoder computes a logit for each word it knows, and few of them ever
win. Without the others the search is faster and the model smaller. What stays of them is one logit for all together,
in the place of <pad>, which no caption contains either: so the words that stay keep their probabilities, and captions
their likelihood and their confidence.
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor, nn

from picknet.config import Config
from picknet.data import BadData
from picknet.data.split import Split
from picknet.text import PAD, SPECIAL_WORDS, Vocabulary, tokenise
from picknet.training.network import Decoder, Network, word_matrices
from picknet.training.runs import BadRun
from picknet.video.file import UnreadableVideo, pixels_and_glances
from picknet.video.pictures import UnreadablePicture

NUM_CLIPS, NUM_CAPTIONS, NUM_FRAMES = 128, 5, 4
"""What the common logit is fitted on: captions of some clips of each split, and some frames of each clip."""
PENALTY = 1e-6
"""Of its squared weights, beside the mean squared error of log-probabilities."""


def shortened(
    network: Network,
    vocabulary: Vocabulary,
    config: Config,
    splits: Sequence[Split],
    *,
    min_share: float,
    on_clip: Callable[[], object] = lambda: None,
) -> tuple[Network, Vocabulary, Config]:
    """The network with only the words that at least this share of some split's captions have.

    on_clip: called after each of the clips that are looked at, at most `NUM_CLIPS` of each split.
    """
    decoder = network.cpu().eval().decoder
    if not isinstance(decoder, Decoder):
        raise BadRun(f"words of a model of the system {config.model.system} cannot be left out; possible: picknet")
    if config.model.left_out:
        raise BadRun(f"{config.model.left_out:,} words were left out of this model before; export one that has all")
    kept = frequent_words(vocabulary, splits, min_share=min_share)
    gone = sorted(set(range(len(vocabulary))) - set(kept))
    if not gone:
        return network, vocabulary, config
    if len(kept) == len(SPECIAL_WORDS) + len(vocabulary.styles):
        raise BadData(f"no word of the model is in as many as {min_share:g} of the captions")
    config = replace(config, model=replace(config.model, left_out=len(gone)))
    shorter = Network(config.model, len(kept), pretrained=False)
    weights = network.state_dict()
    for name in word_matrices(config.model):
        weights[name] = weights[name][kept]
    said = torch.cat(list(_said(network, decoder, vocabulary, config, splits, on_clip)))
    common = _common_logit(decoder.word_rows.detach(), [PAD, *gone], said)
    weights |= {f"decoder.left_out.{name}": tensor for name, tensor in common.state_dict().items()}
    shorter.load_state_dict(weights)
    return shorter, Vocabulary(tuple(vocabulary.words[number] for number in kept)), config


def frequent_words(vocabulary: Vocabulary, splits: Sequence[Split], *, min_share: float) -> list[int]:
    """The ids of special words, style words, and words that at least this share of some split's captions have."""
    frequent: set[str] = set()
    for split in splits:
        captions = [set(tokenise(caption)) for clip in split.clips for caption in clip.captions]
        counts = Counter(word for caption in captions for word in caption)
        frequent |= {word for word, count in counts.items() if count >= min_share * len(captions)}
    return vocabulary.ids_of(lambda word: word in frequent)


@torch.no_grad()
def _said(
    network: Network,
    decoder: Decoder,
    vocabulary: Vocabulary,
    config: Config,
    splits: Sequence[Split],
    on_clip: Callable[[], object],
) -> Iterator[Tensor]:
    """`Decoder.said` of some clips, before each word of some of their captions: (words, row) of each caption"""
    found = False
    for split in splits:
        first = vocabulary.first_word(split.dataset)
        for clip in random.Random(config.seed).sample(split.clips, min(NUM_CLIPS, len(split.clips))):
            try:
                frames = pixels_and_glances(clip.path, num_frames=NUM_FRAMES, size=config.model.image_size)
            except (UnreadableVideo, UnreadablePicture):
                continue
            found = True
            features = network.cnn(torch.from_numpy(np.stack([pixels for pixels, _ in frames])))
            memory = network.encoder(features[None], torch.tensor([len(frames)]))
            for caption in clip.captions[:NUM_CAPTIONS]:
                ids = vocabulary.encode(tokenise(caption), max_words=config.text.max_words)
                yield decoder.said(memory, torch.tensor([[first, *ids]]))[0]
            on_clip()
    if not found:
        raise BadData("none of the clips that were tried can be read, and without clips no words can be left out")


def _common_logit(rows: Tensor, gone: Sequence[int], said: Tensor) -> nn.Linear:
    """One logit whose probability is about the sum of those of the words that are gone.

    rows: (words, row), gone: ids of words, said: (n, row)
    """
    every = torch.cat([(part @ rows.T).logsumexp(1) for part in torch.split(said, 1024)])
    stays = torch.ones(len(rows), dtype=torch.bool)
    stays[gone] = False
    known = torch.cat([(part @ rows[stays].T).logsumexp(1) for part in torch.split(said, 1024)])
    common = nn.Linear(rows.shape[1], 1)
    with torch.no_grad():
        common.weight.copy_(rows[gone].mean(0, keepdim=True))
        common.bias.fill_(math.log(len(gone)))
    optimiser = torch.optim.LBFGS(common.parameters(), max_iter=300, history_size=20, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        wrong = (torch.logaddexp(known, common(said)[:, 0]) - every).square().mean()
        total: Tensor = wrong + PENALTY * common.weight.square().sum()
        total.backward()  # type: ignore[no-untyped-call]
        return total

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return common
