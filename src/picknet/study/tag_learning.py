"""Learning a model's tags, forecasts and matches: which words people use for clips and pictures with such features."""

import contextlib
import functools
import itertools
import math
import os
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.captioner import Captioner
from picknet.data import BadData
from picknet.data.split import Clip
from picknet.model.match import Match
from picknet.model.sentences import content_words
from picknet.model.tags import Forecast, Tags
from picknet.study.feature_cache import FeatureCache
from picknet.text import tokenise
from picknet.video.file import UnreadableVideo, Video
from picknet.video.pictures import UnreadablePicture, is_picture, read_picture

Array = NDArray[Any]

TAG_WORDS, FORECAST_WORDS = 700, 1400
"""The most frequent ones. With 1,280 features each takes 1.8 MB: a forecast's weights are whole numbers, of a byte."""
MATCH_WORDS, MATCH_SIZE = 4000, 256
"""The most frequent words, of which those that captions can have are kept, and the dimensions of a match: 1.2 MB."""
NUM_FRAMES = 6
"""Of a clip that is learned from, evenly spaced: they tell more of what its captions are about than a few picks."""
PENALTY = 0.3
"""Of squared weights, for features whose mean squared length is 1."""
WORDS_PENALTY = 0.1
"""The same for the words of a match, in the mean variance of a word. It hardly matters: 0.001 and 1 do as well."""
WORTH_BESIDE = 0.5
"""What an example in another style counts in a forecast, in examples of its own style."""
NUM_PARTS = 10
"""Of the clips held back: the forecast for each part is learned from the other parts as well."""
ROWS = 4096
"""Examples that are added up at once, in 64 bits; all of a large data set together would take gigabytes."""

NONE_LEFT = "none of them can be read, or all are among those that the confidence is fitted on"
"""Why there is nothing to learn from, for messages."""


@dataclass(frozen=True)
class Example:
    """A clip or picture to learn from."""

    features: Array
    """(feature,), the mean over the cells of its frames, or any multiple."""
    captions: Sequence[str]

    @cached_property
    def counts(self) -> list[Counter[str]]:
        """Of each caption: how often it has each of its words. Many fits in turn need them."""
        return [Counter(tokenise(text)) for text in self.captions]


def learn(
    captioner: Captioner,
    *,
    style: str,
    tags: Sequence[Sequence[Clip]] = (),
    forecast: Sequence[Sequence[Clip]] = (),
    held_back: Sequence[Clip] = (),
    cache: Path | None = None,
    on_clip: Callable[[Clip], object] = lambda clip: None,
) -> tuple[Tags | None, dict[Path, Forecast]]:
    """The captioner's tags, forecasts and matches: new ones where there are clips to learn from, the others as they
    are. And for each clip held back, by its path, a forecast that knows nothing of it, if there is a new one.

    style: the data set in whose style the forecast is; a captioner without tags gets none.
    tags: the clips or pictures of each data set, which the captioner may have been trained on.
    forecast: the same, first those in the style, then data sets in other styles. The match is learned from them, too.
    held_back: clips in the style whose captions will be judged, those of one film next to each other. Tags and match
        know nothing of them; the forecast is learned from them, too.
    cache: a folder where features are kept for the next time.
    on_clip: called for each clip that is learned from. Unreadable ones are left out.
    """
    kept = FeatureCache(captioner, cache)

    @functools.cache
    def features_of(path: Path) -> Array | None:
        with contextlib.suppress(UnreadableVideo, UnreadablePicture):
            return kept.get(path, f"mean of {NUM_FRAMES}", lambda: _features(captioner, path))
        return None

    def examples(clips: Iterable[Clip]) -> list[Example]:
        found = []
        for clip in clips:
            if (features := features_of(clip.path)) is not None:
                found.append(Example(features, clip.captions))
            on_clip(clip)
        return found

    learned = captioner.runtime.tags
    if tags:
        new = fit_tags([examples(without(clips, held_back)) for clips in tags])
        if learned:
            new = replace(new, forecasts=learned.forecasts, matches=learned.matches, critics=learned.critics)
        learned = new
    if not (forecast and learned):
        return learned, {}
    known, *beside = [examples(without(clips, held_back)) for clips in forecast]
    bounds = [len(held_back) * number // NUM_PARTS for number in range(NUM_PARTS + 1)]
    parts = [held_back[first:last] for first, last in itertools.pairwise(bounds) if first < last]
    of_parts = [examples(part) for part in parts]
    unaware: dict[Path, Forecast] = {}
    for number, part in enumerate(parts):
        rest = itertools.chain(*of_parts[:number], *of_parts[number + 1 :])
        unaware |= dict.fromkeys((clip.path for clip in part), fit_forecast([*known, *rest], beside=beside))
    whole = fit_forecast([*known, *itertools.chain(*of_parts)], beside=beside)
    matches = {name: match for name, match in learned.matches.items() if name != style}
    if known and (match := fit_match([known, *beside], written=captioner.runtime.vocabulary.words)).words:
        matches[style] = match
    return replace(learned, forecasts={**learned.forecasts, style: whole}, matches=matches), unaware


def without(clips: Iterable[Clip], held_back: Iterable[Clip]) -> list[Clip]:
    """The clips that are not among those held back, however their folder or file is called."""
    paths = {os.path.realpath(clip.path) for clip in held_back}
    return [clip for clip in clips if os.path.realpath(clip.path) not in paths]


def pixels_of(path: Path, size: int, *, count: int) -> Array:
    """A picture, or `count` evenly spaced frames of a video: (n, size, size, 3)"""
    if is_picture(path):
        return read_picture(path, size)[None]
    with Video(path) as video:
        return np.stack([frame.pixels(size) for frame in video.sample_evenly(count=count)])


def _features(captioner: Captioner, path: Path) -> Array:
    pixels = pixels_of(path, captioner.config.model.image_size, count=NUM_FRAMES)
    return np.asarray(captioner.runtime.features(pixels).mean(axis=(0, 1)))


def fit_tags(data: Sequence[Sequence[Example]]) -> Tags:
    """Data sets count alike, however many examples each has."""
    data = _some(data)
    shares_of = [[_shares(example.captions) for example in examples] for examples in data]
    words = _most_frequent(shares_of, TAG_WORDS)
    moments = [_Moments.of(*one, words) for one in zip(data, shares_of, strict=True)]
    pooled = _Moments(*(sum(part) / len(data) for part in zip(*moments, strict=True)))
    # The number of examples that would tell as much if all counted alike.
    num_examples = len(data) ** 2 / sum(1 / len(examples) for examples in data)
    weights = _ridge(*pooled.covariances(), num_examples)
    return Tags(words, pooled.shares.astype(np.float32), pooled.features.astype(np.float32), weights)


def fit_forecast(examples: Sequence[Example], *, beside: Sequence[Sequence[Example]] = ()) -> Forecast:
    """From clips with captions in one style. beside: examples of other data sets, in other styles.

    What is usual differs from data set to data set, features as well as words; so of the others counts only how the two
    go together within each.
    """
    data = [*_some([examples]), *(others for others in beside if others)]
    having = Counter(word for example in examples for word in set().union(*example.counts))
    rarity = {word: math.log(len(examples) / count) for word, count in having.items()}
    said = [Counter(word for counts in example.counts for word in counts) for example in examples]
    words = _most_frequent([said], FORECAST_WORDS)
    # A word that only other styles have is as rare as one that a single clip has.
    known = defaultdict(lambda: math.log(len(examples)), rarity)
    moments = [_Moments.of(part, [_made_up(example.counts, known) for example in part], words) for part in data]
    worths = [len(examples), *(WORTH_BESIDE * len(part) for part in data[1:])]
    covariance, products = _pooled([one.covariances() for one in moments], worths)
    weights, scales = _whole(_ridge(covariance, products, sum(worths)))
    return Forecast(
        words,
        moments[0].shares.astype(np.float32),
        moments[0].features.astype(np.float32),
        weights,
        scales,
        np.array([rarity[word] for word in words], np.float32),
    )


def fit_match(data: Sequence[Sequence[Example]], *, written: Collection[str]) -> Match:
    """From the examples of data sets, the first of them in the style. written: the words that captions can have.

    A canonical correlation analysis of features x and sentences y, each a vector of length 1 that is the same for all
    of its words. What is usual is taken off within each data set, as in `fit_forecast`. A direction of the space counts
    by the correlation of both in it.
    """
    data = _some(data)
    shares_of = [[_spread(example.counts) for example in examples] for examples in data]
    words = _most_frequent(shares_of, MATCH_WORDS)
    moments = [_Moments.of(*one, words) for one in zip(data, shares_of, strict=True)]
    covariances = [
        (*one.covariances(), _together(examples, words) - np.outer(one.shares, one.shares))
        for examples, one in zip(data, moments, strict=True)
    ]
    sizes = [len(examples) for examples in data]
    of_features, products, of_words = _pooled(covariances, sizes)
    left = np.linalg.cholesky(_penalised(of_features, PENALTY / sum(sizes)))
    right = np.linalg.cholesky(_penalised(of_words, WORDS_PENALTY / len(words)))
    between = np.linalg.solve(right, np.linalg.solve(left, products).T)
    to_words, correlations, to_features = np.linalg.svd(between, full_matrices=False)
    counting = correlations[:MATCH_SIZE]
    vectors = np.linalg.solve(right.T, to_words[:, :MATCH_SIZE] * counting)
    features, feature_scales = _whole(np.linalg.solve(left.T, to_features[:MATCH_SIZE].T * counting))
    can_be_written = frozenset(written)
    kept = [place for place, word in enumerate(words) if word in can_be_written]
    whole, scales = _whole(vectors[kept].T)
    return Match(
        [words[place] for place in kept],
        moments[0].features.astype(np.float32),
        features,
        feature_scales,
        np.ascontiguousarray(whole.T),
        scales,
        (moments[0].shares @ vectors).astype(np.float32),
    )


def _pooled(covariances: Sequence[Sequence[Array]], worths: Sequence[float]) -> list[Array]:
    """The weighted mean over data sets of each of their covariances."""
    return [
        sum(worth * one for worth, one in zip(worths, of_data, strict=True)) / sum(worths)
        for of_data in zip(*covariances, strict=True)
    ]


def _whole(weights: Array) -> tuple[Array, Array]:
    """(rows, columns) -> whole numbers int8 and the scale of each column."""
    scales = np.abs(weights).max(axis=0) / 127
    scales[scales == 0] = 1.0  # of a word that every clip has, which so tells nothing
    return np.round(weights / scales).astype(np.int8), scales.astype(np.float32)


def _spread(sentences: Sequence[Counter[str]]) -> dict[str, float]:
    """How much each word makes up of an example's captions where all words count once and alike."""
    return _made_up([Counter(dict.fromkeys(counts, 1)) for counts in sentences], defaultdict(lambda: 1.0))


def _together(examples: Sequence[Example], words: Sequence[str]) -> Array:
    """The mean of y yᵀ, (words, words), over sentences y as in `_spread`; examples count alike."""
    places = {word: place for place, word in enumerate(words)}
    by_length: defaultdict[int, list[tuple[list[int], float]]] = defaultdict(list)
    for example in examples:
        for counts in example.counts:
            if known := [places[word] for word in counts if word in places]:
                by_length[len(known)].append((known, 1 / len(counts) / len(example.counts)))
    total = np.zeros(len(words) ** 2)
    for length, sentences in by_length.items():
        rows = np.array([known for known, _ in sentences])
        pairs = rows[:, :, None] * len(words) + rows[:, None, :]
        worths = np.repeat([worth for _, worth in sentences], length**2)
        total += np.bincount(pairs.ravel(), worths, minlength=len(total))
    return total.reshape(len(words), -1) / len(examples)


def _some(data: Sequence[Sequence[Example]]) -> list[Sequence[Example]]:
    """The data sets that have examples."""
    if not any(data):
        raise BadData(f"no clip to learn words from: {NONE_LEFT}")
    return [examples for examples in data if examples]


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


def _most_frequent(shares_of: Sequence[Sequence[Mapping[str, float]]], count: int) -> list[str]:
    """Words by the sum of their shares; data sets count alike."""
    total: defaultdict[str, float] = defaultdict(float)
    for of_data in shares_of:
        for shares in of_data:
            for word, share in shares.items():
                total[word] += share / len(of_data)
    return sorted(total, key=lambda word: (-total[word], word))[:count]


class _Moments(NamedTuple):
    """Means over the examples of a data set, of their features x, of length 1, and their words' shares y."""

    features: Array
    """x"""
    shares: Array
    """y"""
    squares: Array
    """x xᵀ"""
    products: Array
    """x yᵀ"""

    @classmethod
    def of(
        cls, examples: Sequence[Example], shares_of: Sequence[Mapping[str, float]], words: Sequence[str]
    ) -> "_Moments":
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
        return cls(*(part / len(examples) for part in (sums, totals, squares, products)))

    def covariances(self) -> tuple[Array, Array]:
        """Of the features with each other, and with the shares."""
        return (
            self.squares - np.outer(self.features, self.features),
            self.products - np.outer(self.features, self.shares),
        )


def _ridge(covariance: Array, products: Array, num_examples: float) -> Array:
    """The weights of a ridge regression, (feature, words). The first two arguments: see `_Moments.covariances`."""
    return np.linalg.solve(_penalised(covariance, PENALTY / num_examples), products).astype(np.float32)


def _penalised(covariance: Array, penalty: float) -> Array:
    """penalty: in the sum of the variances, which is 0 but for rounding where all examples are alike."""
    total = np.trace(covariance)
    return np.asarray(covariance + penalty * (total if total > 1e-9 else 1.0) * np.eye(len(covariance)))
