"""Greedy search and beam search for a sentence. The decoder is any function from words and states to the next ones."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.text import BOS, EOS, NEVER_WRITTEN, PAD

Array = NDArray[Any]
Step = Callable[[Array, Array], tuple[Array, Array]]
"""Words (n,) and states (n, S) -> log-probabilities of the next words (n, V), next states (n, S)."""

MORE_WORDS = 5
"""How many words an unfinished sentence may add to score above the best finished one before the search stops."""
LOWEST = -80.0
"""A log-probability whose probability adds nothing to a sum, and is no subnormal number, which is slow."""
BLOCK = 64
"""Block size in the search for the highest log-probabilities."""


@dataclass(frozen=True)
class Ending:
    """A finished sentence."""

    words: list[int]
    """Without <eos>."""
    log_probability: float
    choices: Sequence[Array] = field(default=(), compare=False, repr=False)
    """The log-probabilities of all words before each word and <eos>; a beam search keeps them."""
    state: Array | None = field(default=None, compare=False, repr=False)
    """(S,): the mean of the decoder's states before each word and <eos>; a beam search keeps it."""

    def score(self, length_exponent: float) -> float:
        """Log-probability over length ** exponent, by which sentences are ranked; <eos> counts as a word."""
        return float(self.log_probability / (len(self.words) + 1) ** length_exponent)

    def entropies(self, *, left_out: int = 0) -> list[float]:
        """How open each word and <eos> were: the entropy of the decoder's probabilities there, in nats.

        left_out: number of words that share the probability of <pad>.
        """
        # Computed for the sentence that is asked for: the exponentials of a whole beam take a fifth of the search.
        return [_entropy(choice, left_out) for choice in self.choices]


def beam_search(
    step: Step,
    state: Array,
    *,
    beam: int,
    max_words: int,
    length_exponent: float,
    begin: int = BOS,
    never_written: Sequence[int] = NEVER_WRITTEN,
) -> list[Ending]:
    """Sentences of at most `max_words` words, best first; a beam of 1 finds one, as `greedy`. state: (1, S)

    never_written: ids of words that no sentence contains.
    """
    found: list[Ending] = []
    best_score = -math.inf
    steps = _beam_steps(step, state, beam=beam, max_words=max_words, begin=begin, never_written=never_written)
    for length, (endings, open_log_probability) in enumerate(steps, start=1):
        found += endings
        best_score = max([best_score, *(ending.score(length_exponent) for ending in endings)])
        # More words only lower log P, so an open sentence scores at most its log P now over its greatest length.
        if open_log_probability / min(length + MORE_WORDS, max_words + 1) ** length_exponent <= best_score:
            break
    return sorted(found, key=lambda ending: -ending.score(length_exponent)) or [Ending([], -math.inf)]


def greedy(
    step_of: Callable[[Array], Step],
    states: Array,
    *,
    max_words: int,
    begin: int = BOS,
    never_written: Sequence[int] = NEVER_WRITTEN,
) -> list[Ending]:
    """For each of n videos the sentence of always the likeliest word, of at most `max_words` words. states: (n, S)

    step_of: rows of the videos whose sentences are unfinished -> the step for these.
    """
    found = [Ending([], -math.inf)] * len(states)
    rows = np.arange(len(states))
    step = step_of(rows)
    sentences = np.full((len(states), 1), begin, dtype=np.int64)
    totals = np.zeros(len(states))  # log P of each sentence so far
    for length in range(1, max_words + 2):
        log_probabilities, states = step(sentences[:, -1], states)
        longer = _longer(totals, log_probabilities, never_written, must_end=length > max_words)
        words = longer.argmax(axis=1)
        totals = longer.max(axis=1)
        sentences = np.column_stack([sentences, words])

        ended = words == EOS
        for place in np.flatnonzero(ended):
            found[rows[place]] = _ending(sentences[place], totals[place])
        still_open = ~ended & (totals > -math.inf)
        if not still_open.any():
            break
        if not still_open.all():
            rows, states = rows[still_open], states[still_open]
            sentences, totals = sentences[still_open], totals[still_open]
            step = step_of(rows)
    return found


def all_endings(
    step: Step,
    state: Array,
    *,
    beam: int,
    max_words: int,
    begin: int = BOS,
    never_written: Sequence[int] = NEVER_WRITTEN,
) -> list[Ending]:
    """Every sentence of at most `max_words` words that ends within the beam, the shortest first. state: (1, S)"""
    steps = _beam_steps(step, state, beam=beam, max_words=max_words, begin=begin, never_written=never_written)
    return [ending for endings, _ in steps for ending in endings]


def _beam_steps(
    step: Step, state: Array, *, beam: int, max_words: int, begin: int, never_written: Sequence[int]
) -> Iterator[tuple[list[Ending], float]]:
    """After each word: the sentences that end there, likeliest first, and log P of the likeliest unfinished one."""
    # Always `beam` rows, since a new shape makes a graph slow; log P = -inf marks a row without a sentence.
    sentences = np.full((beam, 1), begin, dtype=np.int64)
    totals = np.full(beam, -math.inf)  # log P of each sentence so far
    totals[0] = 0.0
    choices: list[list[Array]] = [[]] * beam
    states = np.repeat(state, beam, axis=0)
    summed = np.zeros_like(states)
    for length in range(1, max_words + 2):
        log_probabilities, states = step(sentences[:, -1], states)
        longer = _longer(totals, log_probabilities, never_written, must_end=length > max_words)
        parents, words = _highest(longer, beam)
        totals = longer[parents, words]
        sentences = np.column_stack([sentences[parents], words])
        choices = [[*choices[parent], log_probabilities[parent]] for parent in parents]
        states = states[parents]
        summed = summed[parents] + states

        ended = (words == EOS) & (totals > -math.inf)
        endings = [
            _ending(sentences[row], totals[row], choices[row], summed[row] / length) for row in np.flatnonzero(ended)
        ]
        totals[ended] = -math.inf
        yield endings, float(totals.max())
        if totals.max() == -math.inf:
            return


def _ending(sentence: Array, total: float, choices: Sequence[Array] = (), state: Array | None = None) -> Ending:
    """sentence: from <bos> to <eos>, (n,)"""
    return Ending(sentence[1:-1].tolist(), float(total), choices, state)


def _entropy(log_probabilities: Array, left_out: int) -> float:
    """log_probabilities: (V,) -> nats"""
    finite = np.maximum(log_probabilities, LOWEST)  # 0 · log 0 is 0
    probabilities = np.exp(finite)
    # Words that are left out are about equally improbable.
    within = probabilities[PAD] * math.log(left_out) if left_out else 0.0
    # Not as a product of vectors: BLAS would share it among threads, which then spin on the cores that decode.
    return float(within - (probabilities * finite).sum())


def _longer(totals: Array, log_probabilities: Array, never_written: Sequence[int], *, must_end: bool) -> Array:
    """log P of sentences (n,) and of each next word (n, V) -> log P of the sentences with that word: (n, V)"""
    longer: Array = totals[:, None] + log_probabilities
    longer[:, never_written] = -math.inf
    if must_end:  # only <eos> may follow the last word
        longer[:, EOS + 1 :] = -math.inf
    return longer


def _highest(candidates: Array, count: int) -> tuple[Array, Array]:
    """candidates: (n, V) -> rows and columns of the `count` highest, highest first; of equal ones the earlier first"""
    flat = candidates.ravel()
    # At least `count` blocks have a value this high, so nothing lower need be sorted.
    highest_of_blocks = np.maximum.reduceat(flat, np.arange(0, len(flat), BLOCK))
    enough = np.partition(highest_of_blocks, -count)[-count] if count <= len(highest_of_blocks) else -math.inf
    chosen = np.flatnonzero(flat >= enough)
    chosen = chosen[np.lexsort((chosen, -flat[chosen]))][:count]
    return np.divmod(chosen, candidates.shape[1])
