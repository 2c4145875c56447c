"""From a memory to sentences: the search for the caption, and for other sentences beside it."""

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from picknet.model.memory import SceneMemory
from picknet.model.runtime import EncoderState, Runtime
from picknet.model.search import Ending, Step, all_endings, beam_search, greedy

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


class Written(NamedTuple):
    sentences: tuple[Sentence, ...]
    """The caption first."""
    signals: Signals
    """Of the caption."""


class SentenceWriter:
    """Writes sentences for memories in one style. Thread-safe."""

    def __init__(self, runtime: Runtime, *, first_word: int) -> None:
        """first_word: <bos>, or the word that stands for a style."""
        self._runtime = runtime
        self._config = runtime.config
        self._first_word = first_word
        self._never_written = runtime.vocabulary.never_written

    def write(self, memory: SceneMemory, *, beam: int, count: int = 1) -> Written:
        """`candidates` for the memory of a scene, and what the search tells about the caption."""
        state = memory.state()
        endings = self._search(state, beam=beam)
        signals = self._signals(endings, state)
        sentences = self._with_others(state, endings[0], beam=beam, count=count)
        if tags := self._runtime.tags:
            agreement = tags.agreement(memory.mean_features(), content_words(sentences[0].text))
            signals = replace(signals, tags=agreement)
        return Written(sentences, signals)

    def candidates(self, state: EncoderState, *, beam: int, count: int = 1) -> tuple[Sentence, ...]:
        """At most `count` sentences for one video's memory (1, state): the caption, then others as likely or less.

        The caption is what a beam search of this width finds. The others come from a second search, twice as wide as
        `count`, since about half of what it finds says the same in other words. They are in order of falling
        probability, and each has a word that none before it has; empty words and endings of words do not count.
        Sentences that are likelier than the caption are left out: they are shorter, and by log P / length^exponent,
        by which the search ranks sentences, the caption is better.
        """
        return self._with_others(state, self._search(state, beam=beam)[0], beam=beam, count=count)

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

    def _search(self, state: EncoderState, *, beam: int) -> list[Ending]:
        """What a beam search finds for one video's memory, the best first."""
        return beam_search(
            self._step(state),
            self._runtime.start_sentence(len(state.h)),
            beam=beam,
            max_words=self._config.text.max_words,
            length_exponent=self._config.length_exponent,
            begin=self._first_word,
            never_written=self._never_written,
        )

    def _with_others(self, state: EncoderState, best: Ending, *, beam: int, count: int) -> tuple[Sentence, ...]:
        caption = self._sentence(best)
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
        sentences, used = [caption], content_words(caption.text)
        for ending in sorted(found, key=lambda ending: -ending.log_probability):
            sentence = self._sentence(ending)
            new = content_words(sentence.text) - used
            if new and ending.log_probability <= best.log_probability and len(sentences) < count:
                sentences.append(sentence)
                used |= new
        return tuple(sentences)

    def _signals(self, endings: Sequence[Ending], state: EncoderState) -> Signals:
        texts = [self._runtime.vocabulary.decode(ending.words) for ending in endings]
        words, caption = texts[0].split(), content_words(texts[0])
        entropies = zip(words, endings[0].entropies(), strict=False)
        told = [entropy for word, entropy in entropies if word not in EMPTY_WORDS]
        similar = [_overlap(caption, content_words(text)) for text in texts[1:]]
        return Signals(
            words=frozenset(words) - EMPTY_WORDS,
            likelihood=endings[0].log_probability / (len(words) + 1),
            entropy=sum(told) / max(len(told), 1),
            agreement=(1 + sum(similar)) / len(endings),
            state=float(np.linalg.norm(state.h)),
        )

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
