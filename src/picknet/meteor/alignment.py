"""Matches between a candidate and a reference, and the search for the best alignment."""

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterable
from operator import itemgetter
from typing import Any, NamedTuple

from picknet.meteor.lexicon import Lexicon, Sentence, Word
from picknet.meteor.scores import MODULE_WEIGHTS, Statistics

EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
BEAM_SIZE = 40


class Match(NamedTuple):
    """Words of the candidate and of the reference that mean the same."""

    module: int
    start: int
    """In the candidate."""
    length: int
    reference_start: int
    reference_length: int


class Aligner:
    """Aligns a candidate with each of its references."""

    def __init__(
        self, lexicon: Lexicon, candidate: str, references: Iterable[str], check_time: Callable[[], None] = lambda: None
    ) -> None:
        self._lexicon = lexicon
        self._check_time = check_time
        self._sentence = lexicon.sentence(candidate)
        table = lexicon.paraphrases
        self._matches_of_word: dict[str, list[tuple[int, int]]] = {}
        self._matches_of_phrase: dict[int, list[tuple[int, int]]] = {}
        self._places: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for start, length, phrase in self._sentence.phrases:
            self._places[phrase].append((start, length))
        self._is_here = table.marked(self._places)
        # By phrase of a reference: the candidate's phrases that it paraphrases, with the order in which they are tried.
        self._paraphrased: dict[int, list[tuple[int, int, int]]] = defaultdict(list)
        is_there = table.marked(phrase for text in references for _, _, phrase in lexicon.sentence(text).phrases)
        order = itertools.count()
        for start, length, phrase in self._sentence.phrases:
            for paraphrase in table.paraphrases_of(phrase, is_there):
                self._paraphrased[paraphrase].append((next(order), start, length))

    def align(self, reference: str) -> Statistics:
        """The statistics of the best alignment with one of the references."""
        sentence = self._lexicon.sentence(reference)
        matches = self._matches(sentence)
        chosen = _best_alignment(matches, len(self._sentence.words), self._check_time)
        sides = (self._sentence, sentence)
        counts = [[[0] * (1 + len(MODULE_WEIGHTS)) for _ in ("content", "function")] for _ in sides]
        for side, of_side in zip(counts, sides, strict=True):
            for word in of_side.words:
                side[word.is_function][0] += 1
        chunks, end, reference_end = 0, -1, -1
        for match in chosen:
            chunks += (match.start, match.reference_start) != (end, reference_end)
            end, reference_end = match.start + match.length, match.reference_start + match.reference_length
            for word in self._sentence.words[match.start : end]:
                counts[0][word.is_function][1 + match.module] += 1
            for word in sentence.words[match.reference_start : reference_end]:
                counts[1][word.is_function][1 + match.module] += 1
        return Statistics(counts, chunks)

    def _matches(self, reference: Sentence) -> list[list[Match]]:
        """For each word of the reference, the matches that begin there, in the order in which they are tried."""
        if [word.code for word in reference.words] == [word.code for word in self._sentence.words]:
            # The other modules could only lead the search astray.
            return [
                [Match(module, start, 1, place, 1) for module, start in self._of_word(word) if module == EXACT]
                for place, word in enumerate(reference.words)
            ]
        matches = []
        for place, word in enumerate(reference.words):
            self._check_time()
            matches.append([Match(module, start, 1, place, 1) for module, start in self._of_word(word)])
        for place, num_words, phrase in reference.phrases:
            for start, length in self._of_phrase(phrase):
                matches[place].append(Match(PARAPHRASE, start, length, place, num_words))
        reverse: dict[int, list[tuple[int, Match]]] = defaultdict(list)
        for place, num_words, phrase in reference.phrases:
            for order, start, length in self._paraphrased.get(phrase, ()):
                reverse[place].append((order, Match(PARAPHRASE, start, length, place, num_words)))
        for place, found in reverse.items():
            matches[place] += [match for _, match in sorted(found, key=itemgetter(0))]
        return matches

    def _of_word(self, word: Word) -> list[tuple[int, int]]:
        """The modules by which a word of a reference matches words of the candidate, and where those are."""
        if (found := self._matches_of_word.get(word.text)) is None:
            others = [(place, other) for place, other in enumerate(self._sentence.words) if other.code != word.code]
            found = [(EXACT, place) for place, other in enumerate(self._sentence.words) if other.code == word.code]
            found += [(STEM, place) for place, other in others if other.stem_code == word.stem_code]
            found += [(SYNONYM, place) for place, other in others if not word.synsets.isdisjoint(other.synsets)]
            self._matches_of_word[word.text] = found
        return found

    def _of_phrase(self, phrase: int) -> list[tuple[int, int]]:
        """Where paraphrases of a phrase of a reference are in the candidate, and their lengths."""
        if (found := self._matches_of_phrase.get(phrase)) is None:
            paraphrases = self._lexicon.paraphrases.paraphrases_of(phrase, self._is_here)
            found = [place for paraphrase in paraphrases for place in self._places[paraphrase]]
            self._matches_of_phrase[phrase] = found
        return found


_CHUNK, _MATCH = 1 << 48, 1 << 96
"""The cost of a path through the search is -_MATCH · (weight of its matches) + _CHUNK · chunks + distance."""


def _best_alignment(
    matches: list[list[Match]], num_words: int, check_time: Callable[[], None] = lambda: None
) -> list[Match]:
    """The matches of the best path of a beam search from the reference's first word to its last."""
    certain = _certain(matches, num_words)
    # A path: its cost, where its last match ends in the candidate (-1: not adjacent to what comes) and in the
    # reference, the set of the candidate's words that are taken, and its matches as a linked list.
    paths: list[tuple[int, int, int, int, Any]] = [(0, -1, 0, 0, None)]
    for place, options in enumerate(matches):
        check_time()
        if len(paths) > 1:
            paths.sort(key=itemgetter(0))
        following = []
        is_certain = certain[place]
        tried = [
            (
                match,
                ((1 << match.length) - 1) << match.start,
                _MATCH * _search_weight(match),
                match.start,
                match.start + match.length,
                place + match.reference_length,
                abs(place - match.start),
            )
            for match in options
        ]
        for path in paths[:BEAM_SIZE]:
            cost, end, reference_end, taken, chosen = path
            if reference_end > place:  # inside a match of several words
                following.append(path)
                continue
            for match, words, weight, start, next_end, next_reference_end, distance in tried:
                if taken & words:
                    continue
                next_cost = cost - weight if end in (-1, start) else cost - weight + _CHUNK
                if is_certain:
                    next_cost += distance
                following.append((next_cost, next_end, next_reference_end, taken | words, (match, chosen)))
                # The program adds the distance of an uncertain match to the paths that are made after it.
                cost += distance
            if not is_certain:
                following.append((cost if end == -1 else cost + _CHUNK, -1, place + 1, taken, chosen))
        paths = following
    paths.sort(key=itemgetter(0))
    closed = [(cost + (end != -1) * _CHUNK, chosen) for cost, end, _, _, chosen in paths[:BEAM_SIZE]]
    chain = min(closed, key=itemgetter(0))[1]
    chosen_matches = []
    while chain is not None:
        match, chain = chain
        chosen_matches.append(match)
    return chosen_matches[::-1]


def _search_weight(match: Match) -> int:
    """What the search takes a match to be worth: half of an exact one, rounded down on each side."""
    if match.module == EXACT:
        return match.length + match.reference_length
    return match.length // 2 + match.reference_length // 2


def _certain(matches: list[list[Match]], num_words: int) -> list[bool]:
    """Where the only match shares no word with any other: it is part of every path."""
    times_covered, times_covered_there = [0] * num_words, [0] * len(matches)
    for options in matches:
        for _, start, length, place, reference_length in options:
            for word in range(start, start + length):
                times_covered[word] += 1
            for word in range(place, place + reference_length):
                times_covered_there[word] += 1

    def is_certain(options: list[Match]) -> bool:
        if len(options) != 1:
            return False
        _, start, length, place, reference_length = options[0]
        covered = times_covered[start : start + length] + times_covered_there[place : place + reference_length]
        return set(covered) == {1}

    return [is_certain(options) for options in matches]
