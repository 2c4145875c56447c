"""Learning a model's critic: how good sentences are that the model itself writes for its training clips.

It has seen those clips, and its sentences for them are better than for others. But which of its words, and which states
of its decoder, go with good sentences is much the same, and there are ten times as many training clips as others.
"""

import contextlib
import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner
from picknet.data import BadData
from picknet.data.split import Clip
from picknet.metrics import Cider
from picknet.model.critic import Critic
from picknet.model.sentences import Found
from picknet.study.tag_learning import NONE_LEFT, pixels_of, without
from picknet.text import tokenise
from picknet.video.file import UnreadableVideo
from picknet.video.pictures import UnreadablePicture

Array = NDArray[Any]

NUM_FRAMES = 4
"""Of a clip that is learned from, evenly spaced: about as many as are picked."""
MIN_WORD_COUNT = 5
"""Sentences that a word must be in to be known."""
BEST_CIDER = 1.5
"""What is better counts as this: a few sentences that people said word for word have several times as much."""
WORD_PENALTY, STATE_PENALTY = 3.0, 3000.0
"""Of squared weights, counted in sentences: for a word, and for a number of the state if its variance is 1. A third or
three times as much does as well."""
ROWS = 4096
"""Sentences that are added up at once."""


def learn_critic(
    captioner: Captioner,
    data: Sequence[Sequence[Clip]],
    *,
    held_back: Sequence[Clip] = (),
    on_clip: Callable[[Clip], object] = lambda clip: None,
) -> Critic:
    """A critic for the captioner's style.

    data: the clips or pictures of each data set, with captions in that style, which the captioner may have been trained
        on.
    held_back: clips whose captions will be judged, of which the critic knows nothing.
    on_clip: called for each clip that is learned from. Unreadable ones are left out.
    """
    found: list[tuple[str, Found]] = []
    known: dict[str, list[list[str]]] = {}
    for clip in without(itertools.chain(*data), held_back):
        with contextlib.suppress(UnreadableVideo, UnreadablePicture):
            state = captioner.runtime.start()
            pixels = pixels_of(clip.path, captioner.config.model.image_size, count=NUM_FRAMES)
            for features in captioner.runtime.features(pixels):
                state = captioner.runtime.encode(features[None], state)
            known[str(clip.path)] = [tokenise(text) for text in clip.captions]
            writer = captioner.describer.writer
            found += [(str(clip.path), one) for one in writer.found(state, beam=captioner.config.beam)]
        on_clip(clip)
    if not found:
        raise BadData(f"no clip to learn a critic from: {NONE_LEFT}")
    cider = Cider(known).scores([name for name, _ in found], [one.words for _, one in found])
    return fit_critic([one for _, one in found], np.minimum(cider, BEST_CIDER))


def fit_critic(found: Sequence[Found], cider: Array) -> Critic:
    """A ridge regression. cider: (n,), of each sentence."""
    counts = Counter(word for one in found for word in set(one.words))
    words = sorted(word for word, count in counts.items() if count >= MIN_WORD_COUNT)
    places = {word: place for place, word in enumerate(words)}
    num_states = len(found[0].state)
    size = len(words) + num_states + 2
    sums, products, squares = np.zeros(size), np.zeros(size), np.zeros((size, size))
    for first in range(0, len(found), ROWS):
        block = found[first : first + ROWS]
        inputs = np.zeros((len(block), size))
        for row, one in zip(inputs, block, strict=True):
            row[[places[word] for word in set(one.words) if word in places]] = 1.0
            row[len(words) :] = [*one.state, one.score, len(one.words)]
        sums += inputs.sum(axis=0)
        products += inputs.T @ cider[first : first + ROWS]
        squares += inputs.T @ inputs
    mean, level = sums / len(found), float(cider.mean())
    covariance = squares - len(found) * np.outer(mean, mean)
    of_states = slice(len(words), -2)
    penalties = np.full(size, WORD_PENALTY)
    penalties[of_states] = STATE_PENALTY * covariance.diagonal()[of_states].mean() / len(found)
    weights = np.linalg.solve(covariance + np.diag(penalties + 1e-9), products - len(found) * level * mean)
    others = [*weights[-2:], level - weights @ mean]
    return Critic(words, *(np.array(one, np.float32) for one in (weights[: len(words)], weights[of_states], others)))
