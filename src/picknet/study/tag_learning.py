"""Learning a model's tags: which words people use for clips whose picks have such features."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner
from picknet.data import BadData
from picknet.data.split import Clip
from picknet.model.memory import SceneMemory
from picknet.model.sentences import content_words
from picknet.model.tags import Tags
from picknet.text import tokenise
from picknet.video.file import UnreadableVideo
from picknet.walk import evenly, open_source

Array = NDArray[Any]

NUM_WORDS = 500
"""The most frequent ones. With 1,280 features they take 1.3 MB."""
PENALTY = 0.3
"""Of squared weights, for features whose mean squared length is 1."""


def learn_tags(
    captioner: Captioner,
    clips: Sequence[Clip],
    *,
    like: Captioner,
    on_clip: Callable[[Clip], object] = lambda clip: None,
) -> Tags:
    """From clips that the captioner was trained on, or from others; unreadable ones are left out.

    like: the model whose picker is used, as in `calibration.describe`.
    """
    features, captions = [], []
    for clip in clips:
        memory = SceneMemory(captioner.runtime)
        try:
            with open_source(clip.path, evenly(like.config.video.num_frames), like.picker) as walk:
                for frame, _ in walk.picks():
                    memory.add(frame)
        except UnreadableVideo:
            pass
        else:
            features.append(memory.state().seen[0])
            captions.append(clip.captions)
        on_clip(clip)
    if not features:
        raise BadData("no clip to learn tags from: none of them can be read")
    return fit_tags(np.array(features), captions)


def fit_tags(features: Array, captions: Sequence[Sequence[str]]) -> Tags:
    """Ridge regression. features: (n, feature), of n clips; captions: those of each"""
    by_clip = [_shares(of_one) for of_one in captions]
    total: defaultdict[str, float] = defaultdict(float)
    for found in by_clip:
        for word, share in found.items():
            total[word] += share
    words = sorted(total, key=lambda word: (-total[word], word))[:NUM_WORDS]
    shares = np.array([[found.get(word, 0.0) for word in words] for found in by_clip])
    lengths = np.linalg.norm(features, axis=1, keepdims=True)
    inputs = features.astype(np.float64) / np.where(lengths > 0, lengths, 1.0)
    mean, usual = inputs.mean(axis=0), shares.mean(axis=0)
    centred = inputs - mean
    gram = centred.T @ centred
    penalty = PENALTY * (np.trace(gram) / len(inputs) or 1.0)
    weights = np.linalg.solve(gram + penalty * np.eye(len(gram)), centred.T @ (shares - usual))
    return Tags(words, usual.astype(np.float32), mean.astype(np.float32), weights.astype(np.float32))


def _shares(captions: Sequence[str]) -> dict[str, float]:
    """The share of a clip's captions that have each word."""
    counts = Counter(word for text in captions for word in content_words(" ".join(tokenise(text))))
    return {word: count / len(captions) for word, count in counts.items()}
