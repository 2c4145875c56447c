"""The caption metrics of the COCO evaluation code: BLEU, ROUGE-L, CIDEr-D and METEOR.

Candidates map a video to its tokenised caption, references map a video to several; only `measure` and `score` take raw
strings. Every candidate's video must have references. `Cider` is fitted to the references once and then scores batch
after batch, as rewards require.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet.errors import PicknetError
from picknet.meteor.corpus import Meteor, evaluate
from picknet.meteor.lexicon import MeteorFailed, installed_files, load_lexicon
from picknet.text import tokenise

MAX_ORDER = 4
"""n-grams of 1, ..., 4 words are counted."""
CIDER_SIGMA = 6.0
"""σ of CIDEr-D's Gaussian penalty on the difference in length."""
CIDER_SCALE = 10.0
"""The factor inside the COCO code's CIDEr."""
ROUGE_BETA = 1.2
"""β: the weight of recall relative to precision."""

Array = NDArray[Any]
Tokens = Sequence[str]
Candidates = Mapping[str, Tokens]
References = Mapping[str, Sequence[Tokens]]


class MissingReferences(PicknetError):
    """A caption cannot be scored because its video has no references."""


@dataclass(frozen=True)
class Scores:
    """A model's row in the tables: everything in the ×100 form."""

    bleu1: float
    bleu2: float
    bleu3: float
    bleu4: float
    rouge_l: float
    meteor: float | None
    """None if the `meteor` extra is missing."""
    cider: float


METRICS = tuple(Scores.__dataclass_fields__)


@dataclass(frozen=True)
class Measured:
    """The metrics video by video, from which the scores of any resample of the videos follow."""

    bleu_counts: Array
    """(videos, 10): what `bleu` sums up, the columns of `Marks.bleu_counts`."""
    rouge_l: Array
    """(videos,)"""
    meteor: Meteor | None
    cider: Array
    """(videos,): document frequencies come from all references."""

    def scores(self) -> Scores:
        num_videos = len(self.cider)
        (values,) = self.resampled(np.full((1, num_videos), 1 / num_videos)).T.tolist()
        return Scores(*(None if math.isnan(value) else value for value in values))  # type: ignore[arg-type]

    def resampled(self, weights: Array) -> Array:
        """weights: (resamples, videos), rows that sum to 1 -> (metrics, resamples), ×100, in the order of `METRICS`

        METEOR is not a mean over the videos, so a resample moves it by as much as the mean of the videos' METEORs;
        without METEOR its row is NaN.
        """
        meteor = np.full(len(weights), np.nan)
        if self.meteor is not None:
            meteor = self.meteor.corpus + weights @ self.meteor.by_video - self.meteor.by_video.mean()
        bleu = _bleu(weights @ self.bleu_counts * len(self.cider))
        return np.asarray(100 * np.vstack([bleu, weights @ self.rouge_l, meteor, weights @ self.cider]))


def measure(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Measured:
    """All metrics of raw captions, video by video. A METEOR that fails becomes a warning."""
    captions = {video: tokenise(caption) for video, caption in candidates.items()}
    tokenised = {video: [tokenise(caption) for caption in several] for video, several in references.items()}
    _check_references(captions, tokenised)
    try:
        meteor_scores = meteor(captions, tokenised)
    except MeteorFailed as error:
        # The other metrics took long to compute: keep them.
        warnings.warn(f"no METEOR: {error}", stacklevel=2)
        meteor_scores = None
    marks = [marks_of([tokens], tokenised[video])[0] for video, tokens in captions.items()]
    return Measured(
        bleu_counts=np.array([one.bleu_counts for one in marks]),
        rouge_l=np.array([one.rouge_l for one in marks]),
        meteor=meteor_scores,
        cider=np.array(list(Cider(tokenised).score(captions).values())),
    )


def score(candidates: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> Scores:
    """All metrics of raw captions. CIDEr's document frequencies come from all `references`."""
    return measure(candidates, references).scores()


# --- BLEU and ROUGE-L -------------------------------------------------------------------------------------------------


class Marks(NamedTuple):
    """What BLEU and ROUGE-L of a corpus need to know about the caption of one video."""

    bleu_counts: tuple[int, ...]
    """Matched n-grams (n = 1, ..., 4), proposed n-grams, the length of the candidate and that of the reference."""
    rouge_l: float


def marks_of(candidates: Sequence[Tokens], references: Sequence[Tokens]) -> list[Marks]:
    """The marks of several captions of one video."""
    # An n-gram counts at most as often as in the reference that repeats it most.
    allowed: Counter[tuple[str, ...]] = Counter()
    for reference in references:
        allowed |= _ngrams(reference)
    return [Marks(_bleu_counts(tokens, references, allowed), _rouge_l(tokens, references)) for tokens in candidates]


def bleu(candidates: Candidates, references: References) -> tuple[float, float, float, float]:
    """BLEU-1, ..., BLEU-4 of the corpus; the brevity penalty takes the reference length closest to each candidate's."""
    _check_references(candidates, references)
    marks = [marks_of([tokens], references[video])[0] for video, tokens in candidates.items()]
    counts = np.array([one.bleu_counts for one in marks])
    bleu1, bleu2, bleu3, bleu4 = _bleu(counts.sum(axis=0, keepdims=True))[:, 0].tolist()
    return bleu1, bleu2, bleu3, bleu4


def _bleu_counts(
    candidate: Tokens, references: Sequence[Tokens], allowed: Counter[tuple[str, ...]]
) -> tuple[int, ...]:
    matched = [0] * MAX_ORDER
    for ngram, count in (_ngrams(candidate) & allowed).items():
        matched[len(ngram) - 1] += count
    proposed = [max(0, len(candidate) - order + 1) for order in range(1, MAX_ORDER + 1)]
    reference_length = min((abs(len(tokens) - len(candidate)), len(tokens)) for tokens in references)[1]
    return (*matched, *proposed, len(candidate), reference_length)


def _bleu(counts: Array) -> Array:
    """counts: (n, 10), sums of `Marks.bleu_counts` over the videos of n corpora -> BLEU-1, ..., BLEU-4: (4, n)"""
    matched, proposed = counts[:, :MAX_ORDER], counts[:, MAX_ORDER : 2 * MAX_ORDER]
    candidate_length, reference_length = counts[:, -2], counts[:, -1]
    # The COCO code's guards against division by zero are part of its result.
    tiny, small = 1e-15, 1e-9
    ratio = (candidate_length + tiny) / (reference_length + small)
    brevity_penalty = np.exp(np.minimum(0, 1 - 1 / ratio))
    precisions = (matched + tiny) / (proposed + small)
    orders = np.arange(1, MAX_ORDER + 1)
    return np.asarray(brevity_penalty * (np.cumprod(precisions, axis=1) ** (1 / orders)).T)


def _ngrams(tokens: Tokens) -> Counter[tuple[str, ...]]:
    """How often each n-gram (n = 1, ..., 4) occurs."""
    return Counter(
        tuple(tokens[start : start + order])
        for order in range(1, MAX_ORDER + 1)
        for start in range(len(tokens) - order + 1)
    )


def rouge_l(candidates: Candidates, references: References) -> float:
    """The mean over the videos of ROUGE-L, an F-measure of the longest common subsequence."""
    _check_references(candidates, references)
    return sum(_rouge_l(tokens, references[video]) for video, tokens in candidates.items()) / len(candidates)


def _rouge_l(candidate: Tokens, references: Sequence[Tokens]) -> float:
    # The COCO code treats an empty caption as one empty word.
    candidate, references = candidate or [""], [reference or [""] for reference in references]
    common = [_longest_common_subsequence(candidate, reference) for reference in references]
    if not any(common):
        return 0.0
    precision = max(common) / len(candidate)
    recall = max(length / len(reference) for length, reference in zip(common, references, strict=True))
    return (1 + ROUGE_BETA**2) * precision * recall / (recall + ROUGE_BETA**2 * precision)


def _longest_common_subsequence(left: Tokens, right: Tokens) -> int:
    """Its length, by bit-parallel dynamic programming.

    A row of the usual table grows by 0 or 1 from cell to cell, so it is kept as one integer: a bit for each word of
    `left`, 0 where the row grows. One addition, whose carries run along the row, then makes the next row.
    """
    places: dict[str, int] = {}
    for place, word in enumerate(left):
        places[word] = places.get(word, 0) | 1 << place
    everywhere = (1 << len(left)) - 1
    row = everywhere
    for word in right:
        matches = row & places.get(word, 0)
        row = ((row + matches) | (row - matches)) & everywhere
    return len(left) - row.bit_count()


# --- CIDEr-D ----------------------------------------------------------------------------------------------------------


def cider(candidates: Candidates, references: References) -> float:
    """The mean over the videos of CIDEr-D; document frequencies come from all `references` handed in."""
    _check_references(candidates, references)
    return float(np.mean(list(Cider(references).score(candidates).values())))


ONE_CLIP = "CIDEr weighs words by how few clips have them: with a single clip it is 0"
"""For people whose split has no other."""


class Cider:
    """CIDEr-D against fixed references: fitted once, it scores a batch of captions in a few milliseconds.

    Let h and r be the counts of an n-gram g in a candidate and in a reference, w = log(N / df) its weight among the
    N videos, |h_n| and |r_n| the norms of the weighted counts of the n-grams of order n, and δ the difference in
    length. A candidate's score is the mean over its video's references of

        10/4 · Σ_n Σ_g min(h·w, r·w) · r·w / (|h_n| · |r_n|) · exp(-δ² / 2σ²).

    The part that depends on references alone, r·w² / |r_n|, is precomputed in one array sorted by video and n-gram.
    Scoring looks up the ranges that belong to the n-grams of a candidate, and sums.
    """

    def __init__(self, references: References, *, document_frequencies_from: References | None = None) -> None:
        """Document frequencies come from `references` or from another set: for a reward, the whole training split."""
        documents = references if document_frequencies_from is None else document_frequencies_from
        _check_references(references, references)
        _check_references(documents, documents)
        self._videos = {video: index for index, video in enumerate(references)}
        self._num_references = np.array([len(several) for several in references.values()])
        sentences, video_of_sentence = _sentences(references)
        if documents is references:
            self._ngrams = _NgramIndex(sentences)
            grams = self._ngrams.count(sentences)
            self._weight = self._weights(len(documents), grams, video_of_sentence)
        else:
            document_sentences, document_of_sentence = _sentences(documents)
            self._ngrams = _NgramIndex(sentences + document_sentences)
            grams = self._ngrams.count(sentences)
            document_grams = self._ngrams.count(document_sentences)
            self._weight = self._weights(len(documents), document_grams, document_of_sentence)
        weighted, norm = self._weighted(grams)

        # The references of a video that contain an n-gram are adjacent: those of the video and n-gram _keys[i] are
        # _first[i]:_first[i + 1] of the three arrays below.
        key = _pair(video_of_sentence[grams.sentence], grams.ngram)
        by_key = np.argsort(key, kind="stable")
        keys, first = np.unique(key[by_key], return_index=True)
        self._keys = np.append(keys, _PAST_THE_END)
        self._first = np.append(first, len(key))
        self._count = grams.count[by_key]
        self._share = (weighted * self._weight[grams.ngram] / norm)[by_key]
        self._length = grams.length[grams.sentence[by_key]]

    def score(self, candidates: Candidates) -> dict[str, float]:
        """The score of each video's candidate; 1.0 is what the tables print as 100."""
        scores = self.scores(list(candidates), list(candidates.values()))
        return dict(zip(candidates, scores.tolist(), strict=True))

    def scores(self, videos: Sequence[str], candidates: Sequence[Tokens]) -> NDArray[np.float64]:
        """The score of each candidate for the video beside it; a video may come several times. -> (num_candidates,)"""
        for video in videos:
            if video not in self._videos:
                raise MissingReferences(f"{video}: no such video among the {len(self._videos)} that have references")
        video_of_candidate = np.array([self._videos[video] for video in videos], dtype=np.int64)
        grams = self._ngrams.count(candidates)
        _, norm = self._weighted(grams)

        key = _pair(video_of_candidate[grams.sentence], grams.ngram)
        place = np.searchsorted(self._keys, key)
        shared = np.flatnonzero(self._keys[place] == key)
        first, past = self._first[place[shared]], self._first[place[shared] + 1]

        # One term of the sum for each n-gram of a candidate and each reference that contains it: `gram` indexes the
        # candidates' n-grams, `row` the references'.
        num_terms = past - first
        gram = np.repeat(shared, num_terms)
        row = np.arange(len(gram)) + np.repeat(past - np.cumsum(num_terms), num_terms)
        candidate = grams.sentence[gram]
        difference = grams.length[candidate] - self._length[row]
        similarity = np.minimum(grams.count[gram], self._count[row]) * self._share[row] / norm[gram]
        similarity *= np.exp(difference**2 / (-2 * CIDER_SIGMA**2))
        total = np.bincount(candidate, weights=similarity, minlength=len(candidates))
        return np.asarray(CIDER_SCALE / MAX_ORDER * total / self._num_references[video_of_candidate])

    def _weights(
        self, num_videos: int, grams: _Grams, video_of_sentence: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """log(N / df) of each n-gram of the index, and at the end of any other: df counts videos, and is at least 1."""
        ngram = np.unique(_pair(video_of_sentence[grams.sentence], grams.ngram)) & _LOW_HALF
        document_frequency = np.bincount(ngram, minlength=len(self._ngrams) + 1)
        return np.asarray(np.log(num_videos) - np.log(np.maximum(1, document_frequency)))

    def _weighted(self, grams: _Grams) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """The weighted count of each n-gram, and the norm of its sentence's weighted counts of that order."""
        weighted = grams.count * self._weight[np.minimum(grams.ngram, len(self._ngrams))]
        group = grams.sentence * MAX_ORDER + grams.order - 1
        norm = np.sqrt(np.bincount(group, weights=weighted**2))[group]
        # With a norm of 0 all weights are 0, and so is the sum it divides.
        return weighted, np.where(norm == 0, 1.0, norm)


def _sentences(references: References) -> tuple[list[Tokens], NDArray[np.int64]]:
    """All references as one list, and the index of each one's video."""
    sentences = [tokens for several in references.values() for tokens in several]
    video_of_sentence = np.repeat(np.arange(len(references)), [len(several) for several in references.values()])
    return sentences, video_of_sentence


@dataclass(frozen=True)
class _Grams:
    """The distinct n-grams of each sentence as parallel (num_ngrams,) arrays, and the sentences' lengths."""

    sentence: NDArray[np.int64]
    ngram: NDArray[np.int64]
    """Its number in the index; n-grams that are not in the index have numbers past its end."""
    order: NDArray[np.int64]
    count: NDArray[np.int64]
    length: NDArray[np.int64]
    """(num_sentences,): what CIDEr-D calls the length of a sentence, its number of bigrams."""


class _NgramIndex:
    """Numbers the n-grams (n = 1, ..., 4) of some sentences: all of order 1 first, then all of order 2, ...

    An n-gram is an (n-1)-gram and one more word: their two numbers, packed into one integer, are looked up in the
    sorted array of that order. So a whole batch of sentences takes a handful of numpy calls, and no tuples.
    """

    def __init__(self, sentences: Sequence[Tokens]) -> None:
        self._words: dict[str, int] = {}
        for tokens in sentences:
            for word in tokens:
                self._words.setdefault(word, len(self._words))
        self._tables: list[NDArray[np.int64]] = []
        self._first = [0]
        """Order n is numbered from `_first[n - 1]` on."""
        for _ in self._walk(sentences, learn=True):
            pass

    def __len__(self) -> int:
        return self._first[-1]

    def count(self, sentences: Sequence[Tokens]) -> _Grams:
        """The distinct n-grams of each sentence with their counts."""
        parts = []
        for order, of_sentence, number in self._walk(sentences):
            pairs, counts = np.unique(_pair(of_sentence, number), return_counts=True)
            parts.append((pairs >> 32, pairs & _LOW_HALF, np.full(len(pairs), order), counts))
        num_bigrams = np.array([max(0, len(tokens) - 1) for tokens in sentences], dtype=np.int64)
        sentence, ngram, orders, count = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
        return _Grams(sentence, ngram, orders, count, num_bigrams)

    def _walk(
        self, sentences: Sequence[Tokens], *, learn: bool = False
    ) -> Iterator[tuple[int, NDArray[np.int64], NDArray[np.int64]]]:
        """For each order, the sentence and the number of every n-gram in reading order."""
        new: dict[str, int] = {}
        known = self._words
        words = np.array(
            [
                known[word] if word in known else new.setdefault(word, len(known) + len(new))
                for tokens in sentences
                for word in tokens
            ],
            dtype=np.int64,
        )
        num_words = np.array([len(tokens) for tokens in sentences], dtype=np.int64)
        sentence = np.repeat(np.arange(len(sentences)), num_words)
        words_to_go = np.repeat(np.cumsum(num_words), num_words) - np.arange(len(words))

        start = np.arange(len(words))
        ngram = np.zeros_like(start)
        for order in range(1, MAX_ORDER + 1):
            fits = words_to_go[start] >= order
            start = start[fits]
            code = _pair(ngram[fits], words[start + order - 1])
            if learn:
                self._tables.append(np.append(np.unique(code), _PAST_THE_END))
                self._first.append(self._first[-1] + len(self._tables[-1]) - 1)
            ngram = self._number(code, order)
            yield order, sentence[start], ngram

    def _number(self, code: NDArray[np.int64], order: int) -> NDArray[np.int64]:
        table = self._tables[order - 1]
        place = np.searchsorted(table, code)
        number = self._first[order - 1] + place
        is_new = table[place] != code
        if is_new.any():
            number[is_new] = len(self) + np.unique(code[is_new], return_inverse=True)[1]
        return number


_LOW_HALF = (1 << 32) - 1
_PAST_THE_END = np.iinfo(np.int64).max
"""Sentinel at the end of a sorted array, so that searchsorted always returns a valid index."""


def _pair(high: NDArray[np.int64], low: NDArray[np.int64]) -> NDArray[np.int64]:
    """Two numbers below 2³¹ as one that sorts by `high`, then by `low`."""
    return (high << 32) | low


# --- METEOR -----------------------------------------------------------------------------------------------------------


def meteor(candidates: Candidates, references: References, *, seconds: float = 600.0) -> Meteor | None:
    """METEOR 1.5 with the files inside pycocoevalcap; None if that is missing.

    Raises `MeteorFailed` if they cannot be read, or if it has not finished within `seconds`.
    """
    _check_references(candidates, references)
    if (folder := installed_files()) is None:
        return None
    captions = (
        (_meteor_line(tokens), [_meteor_line(reference) for reference in references[video]])
        for video, tokens in candidates.items()
    )
    return evaluate(captions, load_lexicon(folder), seconds=seconds)


def _meteor_line(tokens: Tokens) -> str:
    # ||| separates captions in the Java program's input, so that the COCO code drops it.
    return " ".join(" ".join(tokens).replace("|||", " ").split())


def _check_references(captioned: Mapping[str, object], references: References) -> None:
    if not captioned:
        raise MissingReferences("no captions to score (give at least one video)")
    for video in captioned:
        if not references.get(video):
            raise MissingReferences(f"{video}: has no references (a caption is scored against at least one)")
