"""Learning a model's tags: which words people use for clips and pictures with such features."""

import contextlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

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
from picknet.video.pictures import UnreadablePicture, is_picture, read_picture
from picknet.walk import evenly, open_source

Array = NDArray[Any]

NUM_WORDS = 700
"""The most frequent ones. With 1,280 features they take 1.8 MB."""
PENALTY = 0.3
"""Of squared weights, for features whose mean squared length is 1."""
ROWS = 4096
"""Examples that are added up at once, in 64 bits; all of a large data set together would take gigabytes."""


class Example(NamedTuple):
    """A clip or picture to learn from."""

    features: Array
    """(feature,), the mean over the cells of its picks, or any multiple."""
    captions: Sequence[str]


def learn_tags(
    captioner: Captioner,
    data: Sequence[Sequence[Clip]],
    *,
    like: Captioner,
    on_clip: Callable[[Clip], object] = lambda clip: None,
) -> Tags:
    """From the clips or pictures of each data set, which the captioner may have been trained on; unreadable ones are
    left out.

    like: the model whose picker is used, as in `calibration.describe`.
    """
    found: list[list[Example]] = []
    for clips in data:
        found.append([])
        for clip in clips:
            with contextlib.suppress(UnreadableVideo, UnreadablePicture):
                found[-1].append(Example(_features(captioner, clip, like), clip.captions))
            on_clip(clip)
    if not any(found):
        raise BadData("no clip to learn tags from: none of them can be read")
    return fit_tags([examples for examples in found if examples])


def _features(captioner: Captioner, clip: Clip, like: Captioner) -> Array:
    if is_picture(clip.path):
        pixels = read_picture(clip.path, captioner.config.model.image_size)
        return np.asarray(captioner.runtime.features(pixels[None])[0].mean(axis=0))
    memory = SceneMemory(captioner.runtime)
    with open_source(clip.path, evenly(like.config.video.num_frames), like.picker) as walk:
        for frame, _ in walk.picks():
            memory.add(frame)
    return np.asarray(memory.state().seen[0])


def fit_tags(data: Sequence[Sequence[Example]]) -> Tags:
    """Ridge regression. Data sets count alike, however many examples each has."""
    by_data = [[_shares(example.captions) for example in examples] for examples in data]
    total: defaultdict[str, float] = defaultdict(float)
    for shares_of in by_data:
        for shares in shares_of:
            for word, share in shares.items():
                total[word] += share / len(shares_of)
    words = sorted(total, key=lambda word: (-total[word], word))[:NUM_WORDS]
    moments = [_moments(examples, shares_of, words) for examples, shares_of in zip(data, by_data, strict=True)]
    mean, usual, squares, products = (sum(part) / len(data) for part in zip(*moments, strict=True))
    covariance = squares - np.outer(mean, mean)
    # The number of examples that would tell as much if all counted alike.
    num_examples = len(data) ** 2 / sum(1 / len(examples) for examples in data)
    penalty = PENALTY / num_examples * (np.trace(covariance) or 1.0)
    weights = np.linalg.solve(covariance + penalty * np.eye(len(mean)), products - np.outer(mean, usual))
    return Tags(words, usual.astype(np.float32), mean.astype(np.float32), weights.astype(np.float32))


def _moments(
    examples: Sequence[Example], shares_of: Sequence[dict[str, float]], words: Sequence[str]
) -> tuple[Array, Array, Array, Array]:
    """Of the features x, of length 1, and the words' shares y of a data set: the means of x, y, x xᵀ and x yᵀ."""
    places = {word: place for place, word in enumerate(words)}
    size = len(examples[0].features)
    squares, products = np.zeros((size, size)), np.zeros((size, len(words)))
    sums, totals = np.zeros(size), np.zeros(len(words))
    for first in range(0, len(examples), ROWS):
        x = np.array([example.features for example in examples[first : first + ROWS]], np.float64)
        lengths = np.linalg.norm(x, axis=1, keepdims=True)
        x /= np.where(lengths > 0, lengths, 1.0)
        y = np.zeros((len(x), len(words)))
        for row, shares in enumerate(shares_of[first : first + ROWS]):
            for word in shares.keys() & places.keys():
                y[row, places[word]] = shares[word]
        sums, totals = sums + x.sum(axis=0), totals + y.sum(axis=0)
        squares, products = squares + x.T @ x, products + x.T @ y
    return sums / len(examples), totals / len(examples), squares / len(examples), products / len(examples)


def _shares(captions: Sequence[str]) -> dict[str, float]:
    """The share of an example's captions that have each word."""
    counts = Counter(word for text in captions for word in content_words(" ".join(tokenise(text))))
    return {word: count / len(captions) for word, count in counts.items()}
