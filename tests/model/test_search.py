"""Greedy and beam search: against an exhaustive search, and against small decoders written by hand."""

import itertools
import math

import numpy as np
import pytest
from decoders import table_decoder

from picknet.model.search import _highest, all_endings, beam_search, greedy
from picknet.text import BOS, EOS, PAD, UNK

WORDS = (4, 5, 6)


class RandomDecoder:
    """A decoder whose next-word probabilities depend on the whole sentence so far, at random.

    Its state is the sentence so far, written as the digits of a number: (n, 1).
    """

    def __init__(self, seed):
        self.seed = seed

    def __call__(self, words, states):
        histories = states[:, 0] * 10 + words
        return np.stack([self.log_probabilities(int(history)) for history in histories]), histories[:, None]

    def log_probabilities(self, history):
        logits = 2 * np.random.default_rng([self.seed, history]).standard_normal(7)
        return logits - np.log(np.exp(logits).sum())

    def log_probability(self, sentence):
        history, total = 0, 0.0
        for word, following in itertools.pairwise([BOS, *sentence, EOS]):
            history = history * 10 + word
            total += self.log_probabilities(history)[following]
        return total


START = np.zeros((1, 1))


@pytest.mark.parametrize("exponent", [0.0, 0.7, 1.0])
@pytest.mark.parametrize("seed", range(8))
def test_a_wide_beam_finds_the_sentence_that_an_exhaustive_search_finds(seed, exponent):
    decoder = RandomDecoder(seed)
    every = [list(words) for length in range(4) for words in itertools.product(WORDS, repeat=length)]
    best = max(every, key=lambda words: decoder.log_probability(words) / (len(words) + 1) ** exponent)
    found, *_ = beam_search(decoder, START, beam=100, max_words=3, length_exponent=exponent)
    assert found.words == best
    assert found.log_probability == pytest.approx(decoder.log_probability(best), abs=1e-12)


@pytest.mark.parametrize("beam", [1, 3])
def test_a_sentence_keeps_the_mean_of_the_states_that_led_to_it(beam):
    for found in beam_search(RandomDecoder(0), START, beam=beam, max_words=4, length_exponent=0.7):
        histories = [int("".join(map(str, [BOS, *found.words][: count + 1]))) for count in range(len(found.words) + 1)]
        assert found.state == pytest.approx([np.mean(histories)])


@pytest.mark.parametrize("seed", range(8))
def test_a_beam_of_one_takes_the_likeliest_word_at_every_step(seed):
    decoder = RandomDecoder(seed)
    greedy, history = [], BOS
    while len(greedy) < 6:
        log_probabilities = decoder.log_probabilities(history)
        log_probabilities[[PAD, BOS, UNK]] = -math.inf
        word = int(log_probabilities.argmax())
        if word == EOS:
            break
        greedy.append(word)
        history = history * 10 + word
    assert beam_search(decoder, START, beam=1, max_words=6, length_exponent=0.7)[0].words == greedy


def test_greedy_search_gives_many_videos_the_sentences_of_each_alone():
    starts = np.arange(1.0, 13.0)[:, None]  # a different history for each
    asked = []

    def step_of(rows):
        asked.append(rows.tolist())
        return RandomDecoder(0)

    found = greedy(step_of, starts, max_words=6)
    assert [[ending] for ending in found] == [
        all_endings(RandomDecoder(0), start[None], beam=1, max_words=6) for start in starts
    ]
    lengths = [len(ending.words) for ending in found]
    assert len(set(lengths)) > 2
    ends = sorted(set(lengths))[:-1]  # where some sentences end and others do not, those that do are left out
    assert asked == [list(range(12)), *([row for row in range(12) if lengths[row] > end] for end in ends)]


def test_a_beam_of_two_escapes_the_greedy_trap():
    # Greedy: 4 (0.6), then <eos> (0.5): 0.3 in all. Better: 5 (0.4), then <eos> (0.9): 0.36.
    step = table_decoder({BOS: {4: 0.6, 5: 0.4}, 4: {EOS: 0.5, 6: 0.5}, 5: {EOS: 0.9, 6: 0.1}, 6: {EOS: 1.0}})
    (greedy,) = beam_search(step, START, beam=1, max_words=5, length_exponent=0.7)
    assert (greedy.words, greedy.log_probability) == ([4], pytest.approx(math.log(0.3)))
    best, *_ = beam_search(step, START, beam=2, max_words=5, length_exponent=0)
    assert (best.words, best.log_probability) == ([5], pytest.approx(math.log(0.36)))


def test_the_length_exponent_lets_a_longer_sentence_win():
    # "4 <eos>" has log 0.5 = -0.69 over 2 words, "4 5 6 <eos>" log 0.4 = -0.92 over 4: -0.35 a word against -0.23.
    step = table_decoder({BOS: {4: 1.0}, 4: {EOS: 0.5, 5: 0.4, 6: 0.1}, 5: {6: 1.0}, 6: {EOS: 1.0}})
    assert beam_search(step, START, beam=2, max_words=5, length_exponent=0)[0].words == [4]
    assert beam_search(step, START, beam=2, max_words=5, length_exponent=1)[0].words == [4, 5, 6]


@pytest.mark.parametrize("beam", [1, 2, 50])
def test_padding_bos_and_unk_are_never_in_a_sentence_and_it_is_never_too_long(beam):
    def step(words, states):
        probabilities = np.full((len(words), 7), 0.01)
        probabilities[:, [PAD, BOS, UNK]] = 0.3
        probabilities[:, 5] = 0.07
        return np.log(probabilities), states

    best, *_ = beam_search(step, START, beam=beam, max_words=4, length_exponent=1.0)
    assert set(best.words) <= {4, 5, 6}
    assert len(best.words) <= 4
    if beam == 1:
        assert best.words == [5, 5, 5, 5]
        assert best.log_probability == pytest.approx(4 * math.log(0.07) + math.log(0.01))


@pytest.mark.parametrize("seed", range(4))
def test_a_beam_wide_enough_finds_every_sentence(seed):
    decoder = RandomDecoder(seed)
    every = [list(words) for length in range(4) for words in itertools.product(WORDS, repeat=length)]
    endings = all_endings(decoder, START, beam=100, max_words=3)
    assert sorted(ending.words for ending in endings) == sorted(every)
    for ending in endings:
        assert ending.log_probability == pytest.approx(decoder.log_probability(ending.words), abs=1e-12)


@pytest.mark.parametrize("beam", [1, 2, 5])
def test_the_best_of_all_endings_is_the_first_of_the_beam_search(beam):
    for seed in range(8):
        endings = all_endings(RandomDecoder(seed), START, beam=beam, max_words=6)
        best = max(endings, key=lambda ending: ending.score(0.7))
        found = beam_search(RandomDecoder(seed), START, beam=beam, max_words=6, length_exponent=0.7)
        assert found[0] == best
        assert found == sorted(found, key=lambda ending: -ending.score(0.7))


def test_the_search_waits_for_an_unfinished_sentence_as_long_as_five_more_words_could_win():
    # "4 <eos>" against a sentence that is sure to go on, and pays once: the longer the better.
    going_on = {word: {word + 1: 1.0} for word in range(5, 20)}
    step = table_decoder({BOS: {4: 0.5, 5: 0.5}, 4: {EOS: 1.0}, **going_on, 20: {EOS: 1.0}}, num_words=21)
    for max_words in (20, 5):
        found = beam_search(step, START, beam=2, max_words=max_words, length_exponent=1)
        assert [4] in [ending.words for ending in found]
    # It costs log 0.5 as well, over 17 words instead of 2; it is waited for since five more words would do.
    assert beam_search(step, START, beam=2, max_words=20, length_exponent=1)[0].words == list(range(5, 21))
    # Where even five more would not, it is not.
    step = table_decoder({BOS: {4: 0.9, 5: 0.1}, 4: {EOS: 1.0}, **going_on, 20: {EOS: 1.0}}, num_words=21)
    asked = []

    def counted(words, states):
        asked.append(words)
        return step(words, states)

    assert [ending.words for ending in beam_search(counted, START, beam=2, max_words=20, length_exponent=1)] == [[4]]
    assert len(asked) == 2


@pytest.mark.parametrize("shape", [(1, 7), (5, 300), (3, 64), (40, 11)])
def test_the_highest_are_those_of_a_full_sort(shape):
    rng = np.random.default_rng(0)
    for values in (rng.standard_normal(shape), rng.integers(0, 4, shape).astype(float), np.full(shape, -math.inf)):
        values[0, 0] = -math.inf
        for count in (1, 5, min(40, values.size)):
            expected = sorted(range(values.size), key=lambda place: (-values.ravel()[place], place))[:count]
            rows, columns = _highest(values, min(count, values.size))
            assert (rows * shape[1] + columns).tolist() == expected[: values.size]


def test_sentences_of_probability_zero_are_not_found():
    # Two sentences have a probability above 0, however wide the beam.
    step = table_decoder({BOS: {4: 1.0}, 4: {EOS: 0.7, 5: 0.3}, 5: {EOS: 1.0}})
    endings = all_endings(step, START, beam=20, max_words=5)
    assert [(ending.words, math.exp(ending.log_probability)) for ending in endings] == [
        ([4], pytest.approx(0.7)),
        ([4, 5], pytest.approx(0.3)),
    ]


def test_an_ending_knows_how_open_each_of_its_words_was():
    # Before 4: a choice of ½, ¼ and ¼, 1.5 bits. After it: of ½ and ½, 1 bit. After 5 and 6 there is no choice.
    step = table_decoder({BOS: {4: 0.5, 5: 0.25, 6: 0.25}, 4: {EOS: 0.5, 5: 0.5}, 5: {EOS: 1.0}, 6: {EOS: 1.0}})
    bit = math.log(2)
    expected = {(4,): [1.5 * bit, bit], (4, 5): [1.5 * bit, bit, 0.0], (5,): [1.5 * bit, 0.0], (6,): [1.5 * bit, 0.0]}
    for ending in all_endings(step, START, beam=5, max_words=5):
        assert ending.entropies() == pytest.approx(expected[tuple(ending.words)])
    (only,) = beam_search(step, START, beam=1, max_words=5, length_exponent=1)
    first, second = greedy(lambda rows: step, np.zeros((2, 1)), max_words=5)
    assert first == second == only
    assert only.entropies() == pytest.approx(expected[tuple(only.words)])
