"""Learning a model's tags and forecasts: which words people use for clips and pictures with such features."""

import contextlib
import functools
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner
from picknet.data import BadData
from picknet.data.split import Clip
from picknet.model.memory import SceneMemory
from picknet.model.sentences import content_words
from picknet.model.tags import Forecast, Tags
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


def learn(
    captioner: Captioner,
    *,
    tags: Sequence[Sequence[Clip]] = (),
    forecasts: Mapping[str, Sequence[Clip]] | None = None,
    unseen: Collection[Path] = (),
    like: Captioner,
    on_clip: Callable[[Clip], object] = lambda clip: None,
) -> Tags | None:
    """The captioner's tags and forecasts: new ones where there are clips to learn from, the others as they are.

    tags: the clips or pictures of each data set, which the captioner may have been trained on; unreadable ones are left
        out.
    forecasts: clips by the data set in whose style their captions are; a captioner without tags gets none.
    unseen: files to leave out, since the captioner has not seen them and its confidence is fitted on them.
    like: the model whose picker is used, as in `calibration.describe`.
    """

    @functools.cache
    def features_of(path: Path) -> Array | None:
        with contextlib.suppress(UnreadableVideo, UnreadablePicture):
            return _features(captioner, path, like)
        return None

    def examples(clips: Sequence[Clip]) -> list[Example]:
        found = []
        for clip in clips:
            if clip.path not in unseen and (features := features_of(clip.path)) is not None:
                found.append(Example(features, clip.captions))
            on_clip(clip)
        return found

    learned = captioner.runtime.tags
    if tags:
        kept = learned.forecasts if learned else {}
        learned = replace(fit_tags([examples(clips) for clips in tags]), forecasts=kept)
    if forecasts and learned:
        new = {name: fit_forecast(examples(clips)) for name, clips in forecasts.items()}
        learned = replace(learned, forecasts={**learned.forecasts, **new})
    return learned


def _features(captioner: Captioner, path: Path, like: Captioner) -> Array:
    if is_picture(path):
        pixels = read_picture(path, captioner.config.model.image_size)
        return np.asarray(captioner.runtime.features(pixels[None])[0].mean(axis=0))
    memory = SceneMemory(captioner.runtime)
    with open_source(path, evenly(like.config.video.num_frames), like.picker) as walk:
        for frame, _ in walk.picks():
            memory.add(frame)
    return np.asarray(memory.state().seen[0])


def fit_tags(data: Sequence[Sequence[Example]]) -> Tags:
    """Data sets count alike, however many examples each has."""
    data = [examples for examples in data if examples]
    shares_of = [[_shares(example.captions) for example in examples] for examples in data]
    return Tags(*_fit(data, shares_of, _most_frequent(shares_of)))


def fit_forecast(examples: Sequence[Example]) -> Forecast:
    """From clips with captions in one style."""
    sentences = [[Counter(tokenise(text)) for text in example.captions] for example in examples]
    having = Counter(word for of_one in sentences for word in set().union(*of_one))
    rarity = {word: math.log(len(examples) / count) for word, count in having.items()}
    words = _most_frequent([[Counter(word for counts in of_one for word in counts) for of_one in sentences]])
    made_up = [_made_up(of_one, rarity) for of_one in sentences]
    return Forecast(*_fit([examples], [made_up], words), np.array([rarity[word] for word in words], np.float32))


def _shares(captions: Sequence[str]) -> dict[str, float]:
    """The share of an example's captions that have each word."""
    counts = Counter(word for text in captions for word in content_words(" ".join(tokenise(text))))
    return {word: count / len(captions) for word, count in counts.items()}


def _made_up(sentences: Sequence[Counter[str]], rarity: Mapping[str, float]) -> dict[str, float]:
    """How much each word makes up of an example's captions; see `Forecast`."""
    total: defaultdict[str, float] = defaultdict(float)
    for counts in sentences:
        length = math.hypot(*(count * rarity[word] for word, count in counts.items()))
        for word, count in counts.items():
            total[word] += count * rarity[word] / (length or 1.0) / len(sentences)
    return total


def _most_frequent(shares_of: Sequence[Sequence[Mapping[str, float]]]) -> list[str]:
    """Words by the sum of their shares; data sets count alike."""
    total: defaultdict[str, float] = defaultdict(float)
    for of_data in shares_of:
        for shares in of_data:
            for word, share in shares.items():
                total[word] += share / len(of_data)
    return sorted(total, key=lambda word: (-total[word], word))[:NUM_WORDS]


def _fit(
    data: Sequence[Sequence[Example]], shares_of: Sequence[Sequence[Mapping[str, float]]], words: Sequence[str]
) -> tuple[Sequence[str], Array, Array, Array]:
    """Ridge regression from features to each example's shares of words -> words, mean shares, mean features, weights"""
    if not any(data):
        raise BadData("no clip to learn words from: none of them can be read")
    moments = [_moments(examples, of_data, words) for examples, of_data in zip(data, shares_of, strict=True)]
    mean, usual, squares, products = (sum(part) / len(data) for part in zip(*moments, strict=True))
    covariance = squares - np.outer(mean, mean)
    # The number of examples that would tell as much if all counted alike.
    num_examples = len(data) ** 2 / sum(1 / len(examples) for examples in data)
    penalty = PENALTY / num_examples * (np.trace(covariance) or 1.0)
    weights = np.linalg.solve(covariance + penalty * np.eye(len(mean)), products - np.outer(mean, usual))
    return words, usual.astype(np.float32), mean.astype(np.float32), weights.astype(np.float32)


def _moments(
    examples: Sequence[Example], shares_of: Sequence[Mapping[str, float]], words: Sequence[str]
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
