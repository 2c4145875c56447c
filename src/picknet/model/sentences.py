"""From a memory to sentences: the search for the caption, and for other sentences beside it."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from picknet.model.critic import Critic
from picknet.model.match import Match
from picknet.model.runtime import EncoderState, Runtime
from picknet.model.search import Array, Ending, Step, all_endings, beam_search, greedy
from picknet.model.tags import Forecast

EMPTY_WORDS = frozenset(
    word
    for line in """
    a an the this that these those some something piece pieces it its his her their him them he she they there who which
    is are was were be been being am has have having do does did doing can not 's n't
    and or but as while so of in on at to with for from by into onto off up down out over under through across along
    around near behind before after between against inside outside about
    """.splitlines()
    for word in line.split()
)
"""Words without content: two sentences that differ only in these say the same."""


@dataclass(frozen=True)
class Sentence:
    text: str
    log_probability: float
    """Of exactly this sentence with its <eos>, given the picks."""

    @property
    def probability(self) -> float:
        return math.exp(self.log_probability)

    def to_dict(self) -> dict[str, Any]:
        return {"caption": self.text, "probability": self.probability}


@dataclass(frozen=True)
class Signals:
    """What the search for a caption tells about it at no cost, from which its confidence is made."""

    words: frozenset[str]
    """The words of the caption, without the empty ones."""
    likelihood: float
    """The mean log-probability of its words and <eos>."""
    entropy: float
    """The mean entropy of the decoder's probabilities before those words, in nats: how open they were."""
    agreement: float
    """How similar the sentences that the search found are to the caption, 0 to 1."""
    state: float
    """The length of the encoder's state, |h|. What is unlike all training clips leaves it short: a title, a screen."""
    tags: float | None = None
    """How much its words are those to expect by the CNN's features, -1 to 1; None for a model without tags."""
    expectation: float | None = None
    """How much there is to expect at all: the length of what the tags expect. Features like those of clips that people
    describe in many ways leave it short. None for a model without tags."""
    forecast: float | None = None
    """How similar it will be to captions by people, 0 to 1; None for a style without a forecast."""
    match: float | None = None
    """How well it fits what is seen, -1 to 1; None for a style without a match."""
    critic: float | None = None
    """The CIDEr to expect by its words and by the decoder's states; None for a style without a critic."""


class Written(NamedTuple):
    sentences: tuple[Sentence, ...]
    """The caption first."""
    signals: Signals
    """Of the caption."""


class Found(NamedTuple):
    """A sentence that a search found."""

    words: list[str]
    score: float
    """log P / length^exponent"""
    state: Array
    """(written,): the mean of the decoder's states."""


class _Expected(NamedTuple):
    """What is known about a caption from the CNN's features alone, before it is written."""

    words: Array | None
    """By the tags; None for a model without tags."""
    seen: Array | None
    """As the match sees it; None for a style without one."""


class SentenceWriter:
    """Writes sentences for memories in one style. Thread-safe."""

    def __init__(
        self,
        runtime: Runtime,
        *,
        first_word: int,
        tags_weight: float = 0.0,
        match_weight: float = 0.0,
        forecast: Forecast | None = None,
        match: Match | None = None,
        critic: Critic | None = None,
    ) -> None:
        """first_word: <bos>, or the word that stands for a style. tags_weight, match_weight: see `Confidence`.
        forecast, match, critic: for the style."""
        self.tags_weight, self.match_weight = tags_weight, match_weight
        self.forecast, self.match, self.critic = forecast, match, critic
        self._runtime = runtime
        self._config = runtime.config
        self._first_word = first_word
        self._never_written = runtime.vocabulary.never_written

    def write(self, state: EncoderState, *, beam: int, count: int = 1) -> Written:
        """`candidates`, and what the search tells about the caption."""
        expected = self._expected(state)
        endings = self._search(state, expected, beam=beam)
        sentences = self._with_others(state, endings, beam=beam, count=count)
        return Written(sentences, self._signals(endings, state, expected))

    def candidates(self, state: EncoderState, *, beam: int, count: int = 1) -> tuple[Sentence, ...]:
        """At most `count` sentences for one video's memory (1, state): the caption, then others.

        The caption is the best that a beam search of this width finds: by log P / length^exponent and, with weights
        for them, by the agreement with tags and by the match. The others come from a second search, twice as wide as
        `count`, since about half of what it finds says the same in other words. They are in order of falling
        probability, and each has a word that none before it has; empty words and endings of words do not count.
        Sentences that are likelier than the best by log P / length^exponent are left out: they are shorter.
        """
        endings = self._search(state, self._expected(state), beam=beam)
        return self._with_others(state, endings, beam=beam, count=count)

    def found(self, state: EncoderState, *, beam: int) -> list[Found]:
        """All sentences that a beam search finds for one video's memory."""
        endings = self._search(state, self._expected(state), beam=beam)
        return [found for ending in endings if (found := self._found(ending))]

    def greedy(self, state: EncoderState) -> list[Sentence]:
        """The greedy sentence for each of n videos' memories (n, state), several times as fast as one by one."""
        endings = greedy(
            lambda rows: self._step(state.of(rows)),
            self._runtime.start_sentence(len(state.h)),
            max_words=self._config.text.max_words,
            begin=self._first_word,
            never_written=self._never_written,
        )
        return [self._sentence(ending) for ending in endings]

    def _expected(self, state: EncoderState) -> _Expected:
        tags = self._runtime.tags
        return _Expected(
            tags.expected(state.seen[0]) if tags else None, self.match.seen(state.seen[0]) if self.match else None
        )

    def _search(self, state: EncoderState, expected: _Expected, *, beam: int) -> list[Ending]:
        """What a beam search finds for one video's memory, the best first."""
        endings = beam_search(
            self._step(state),
            self._runtime.start_sentence(len(state.h)),
            beam=beam,
            max_words=self._config.text.max_words,
            length_exponent=self._config.length_exponent,
            begin=self._first_word,
            never_written=self._never_written,
        )
        if not (self.tags_weight or self.match_weight) or len(endings) == 1:
            return endings

        def score(ending: Ending) -> float:
            text = self._sentence(ending).text
            return (
                ending.score(self._config.length_exponent)
                + self.tags_weight * (self._agreement(expected, text) or 0.0)
                + self.match_weight * (self._matching(expected, text) or 0.0)
            )

        return sorted(endings, key=score, reverse=True)

    def _agreement(self, expected: _Expected, text: str) -> float | None:
        tags = self._runtime.tags
        return tags.agreement(expected.words, content_words(text)) if tags and expected.words is not None else None

    def _matching(self, expected: _Expected, text: str) -> float | None:
        return self.match.of(expected.seen, text.split()) if self.match and expected.seen is not None else None

    def _with_others(
        self, state: EncoderState, endings: Sequence[Ending], *, beam: int, count: int
    ) -> tuple[Sentence, ...]:
        caption = self._sentence(endings[0])
        if count == 1:
            return (caption,)
        found = all_endings(
            self._step(state),
            self._runtime.start_sentence(len(state.h)),
            beam=max(beam, 2 * count),
            max_words=self._config.text.max_words,
            begin=self._first_word,
            never_written=self._never_written,
        )
        likeliest = max(endings, key=lambda ending: ending.score(self._config.length_exponent)).log_probability
        sentences, used = [caption], content_words(caption.text)
        for ending in sorted(found, key=lambda ending: -ending.log_probability):
            sentence = self._sentence(ending)
            new = content_words(sentence.text) - used
            if new and ending.log_probability <= likeliest and len(sentences) < count:
                sentences.append(sentence)
                used |= new
        return tuple(sentences)

    def _signals(self, endings: Sequence[Ending], state: EncoderState, expected: _Expected) -> Signals:
        texts = [self._runtime.vocabulary.decode(ending.words) for ending in endings]
        words, caption = texts[0].split(), content_words(texts[0])
        entropies = zip(words, endings[0].entropies(left_out=self._config.model.left_out), strict=False)
        told = [entropy for word, entropy in entropies if word not in EMPTY_WORDS]
        similar = [_overlap(caption, content_words(text)) for text in texts[1:]]
        return Signals(
            words=frozenset(words) - EMPTY_WORDS,
            likelihood=endings[0].log_probability / (len(words) + 1),
            entropy=sum(told) / max(len(told), 1),
            agreement=(1 + sum(similar)) / len(endings),
            state=float(np.linalg.norm(state.h)),
            tags=self._agreement(expected, texts[0]),
            expectation=None if expected.words is None else float(np.linalg.norm(expected.words)),
            forecast=self.forecast.of(state.seen[0], words) if self.forecast else None,
            match=self._matching(expected, texts[0]),
            critic=self._judged(endings[0]),
        )

    def _judged(self, ending: Ending) -> float | None:
        if self.critic is None:
            return None
        found = self._found(ending)
        return self.critic.of(*found) if found else 0.0

    def _found(self, ending: Ending) -> Found | None:
        """None where there is no sentence: the search found none."""
        if ending.state is None:
            return None
        words = self._runtime.vocabulary.decode(ending.words).split()
        return Found(words, ending.score(self._config.length_exponent), ending.state)

    def _step(self, state: EncoderState) -> Step:
        return lambda words, states: self._runtime.decode(words, state, states)

    def _sentence(self, ending: Ending) -> Sentence:
        return Sentence(self._runtime.vocabulary.decode(ending.words), ending.log_probability)


def content_words(text: str) -> set[str]:
    """The words of a sentence without the empty ones and without their endings, as in rid(es), rid(ing)."""
    return {re.sub(r"(?<=\w{3})(?:ing|es|ed|s|e)$", "", word) for word in text.split() if word not in EMPTY_WORDS}


def _overlap(one: set[str], other: set[str]) -> float:
    """The share of common elements."""
    return len(one & other) / max(len(one | other), 1)
