"""METEOR 1.5 for English (Denkowski and Lavie, 2014), equal to the Java program that pycocoevalcap calls.

A candidate is aligned with each reference: words match if they are equal, have the same stem, are synonyms, or are part
of phrases that paraphrase each other. The score weighs precision, recall and the number of chunks that the matched
words form; the reference with the best score counts. Where only the program's beam search or one of its peculiarities
decides between alignments, this follows the program.

Word lists, synonyms and paraphrases are read from the files of the `meteor` extra; Java is not started.
"""

from __future__ import annotations

import gzip
import importlib.util
import io
import re
import time
import zipfile
import zlib
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from picknet import cache
from picknet.errors import PicknetError
from picknet.stemmer import stem

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
"""α: recall against precision; β, γ: the penalty on chunks; δ: content words against function words."""
EXACT, STEM, SYNONYM, PARAPHRASE = range(4)
MODULE_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""What a word counts that is matched by each module."""
BEAM_SIZE = 40
MAX_PHRASE = 7
"""Words in the longest phrase of the paraphrase table."""

Array = NDArray[Any]
Words = tuple[str, ...]


class MeteorFailed(PicknetError):
    """METEOR's files cannot be read, or its time is up."""


@dataclass(frozen=True)
class Meteor:
    """1.0 is what the tables print as 100."""

    corpus: float
    """The score of the corpus: computed from summed statistics, not the mean over the videos."""
    by_video: Array
    """(videos,)"""


def installed_files() -> Path | None:
    """The folder of METEOR's files inside pycocoevalcap; None if that is not installed."""
    package = importlib.util.find_spec("pycocoevalcap")
    folders = package.submodule_search_locations if package is not None else None
    places = [Path(folder) / "meteor" for folder in folders or ()]
    return next((place for place in places if (place / _JAR).is_file()), None)


def evaluate(captions: Iterable[tuple[str, Sequence[str]]], lexicon: Lexicon, *, seconds: float) -> Meteor:
    """METEOR of captions, each given with its references. Raises `MeteorFailed` after `seconds`."""
    end = time.monotonic() + seconds

    def check_time() -> None:
        if time.monotonic() > end:
            raise MeteorFailed(f"not finished after {seconds:g} s")

    statistics = []
    for candidate, references in captions:
        aligner = Aligner(lexicon, candidate, references, check_time)
        statistics.append(max(map(aligner.align, dict.fromkeys(references)), key=score))
    # A caption that is its reference word for word has no chunks as far as the corpus is concerned.
    chunks = sum(one.chunks for one in statistics if not one.is_perfect())
    counts = np.sum([one.counts for one in statistics], axis=0).tolist()
    return Meteor(score(Statistics(counts, chunks)), np.array([score(one) for one in statistics]))


# --- The score of an alignment ----------------------------------------------------------------------------------------


class Statistics(NamedTuple):
    """What the score of an alignment, or of several, follows from."""

    counts: list[list[list[int]]]
    """[candidate, reference][content words, function words][all of them, then those matched by each module]"""
    chunks: int
    """Runs of matches that are adjacent in both."""

    def num_matched(self, side: int) -> int:
        return sum(sum(kind[1:]) for kind in self.counts[side])

    def is_perfect(self) -> bool:
        num_words = [sum(kind[0] for kind in side) for side in self.counts]
        return self.chunks == 1 and num_words == [self.num_matched(0), self.num_matched(1)]


def score(statistics: Statistics) -> float:
    """F(1 - γ·(chunks / matches)^β), where F is the harmonic mean of precision and recall weighted by α."""
    num_matches = (statistics.num_matched(0) + statistics.num_matched(1)) / 2
    if num_matches == 0:
        return 0.0
    precision, recall = map(_matched_share, statistics.counts)
    mean = 1 / ((1 - ALPHA) / precision + ALPHA / recall)
    fragmentation = 0.0 if statistics.is_perfect() else statistics.chunks / num_matches
    return float(mean * (1 - GAMMA * fragmentation**BETA))


def _matched_share(side: list[list[int]]) -> float:
    # Sums in the program's order: rounding decides between references with equal scores.
    matched = total = 0.0
    for kind, importance in zip(side, (DELTA, 1 - DELTA), strict=True):
        total += importance * kind[0]
        for count, weight in zip(kind[1:], MODULE_WEIGHTS, strict=True):
            matched += count * weight * importance
    return matched / total


# --- Matches and the search for the best alignment --------------------------------------------------------------------


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
        for order, (start, length, phrase) in enumerate(self._sentence.phrases):
            for paraphrase in table.paraphrases_of(phrase, is_there):
                self._paraphrased[paraphrase].append((order, start, length))

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


# --- Words, and what is known about them ------------------------------------------------------------------------------

_JAR = "meteor-1.5.jar"
_PARAPHRASES = Path("data") / "paraphrase-en.gz"


class Word(NamedTuple):
    text: str
    code: int
    stem_code: int
    synsets: frozenset[str]
    is_function: bool


class Sentence(NamedTuple):
    words: list[Word]
    phrases: list[tuple[int, int, int]]
    """Start, length and number of each phrase that is in the paraphrase table."""


class Lexicon:
    """METEOR's word lists, WordNet's synonyms and the paraphrase table."""

    def __init__(self, folder: Path) -> None:
        """Read the files of a folder. Raises `MeteorFailed` if they cannot be read."""
        try:
            with zipfile.ZipFile(folder / _JAR) as jar:
                lines = {
                    name: jar.read(name).decode().splitlines()
                    for name in (
                        "function/english.words",
                        "nonbreaking/english.prefixes",
                        "synonym/english.exceptions",
                        "synonym/english.synsets",
                    )
                }
            self.paraphrases = ParaphraseTable.load(folder / _PARAPHRASES)
        except (OSError, EOFError, KeyError, ValueError, zlib.error, zipfile.BadZipFile) as error:
            raise MeteorFailed(f"{folder}: METEOR's files cannot be read ({error})") from error
        self._function_words = frozenset(lines["function/english.words"])
        self._abbreviations = {
            fields[0]: "#NUMERIC_ONLY#" in fields[1:2]
            for line in lines["nonbreaking/english.prefixes"]
            if (fields := line.split()) and not line.startswith("#")
        }
        # In both files, the line after a word is about it: the numbers of its synsets; its irregular forms.
        synsets, exceptions = lines["synonym/english.synsets"], lines["synonym/english.exceptions"]
        self._synsets = dict(zip(synsets[::2], synsets[1::2], strict=True))
        self._bases: dict[str, list[str]] = defaultdict(list)
        for base, forms in zip(exceptions[::2], exceptions[1::2], strict=True):
            for form in forms.split():
                self._bases[form].append(base)
        self.word = lru_cache(maxsize=1 << 16)(self._word)
        self.sentence = lru_cache(maxsize=1 << 13)(self._sentence)

    def _sentence(self, text: str) -> Sentence:
        words = self.words_of(text)
        return Sentence([self.word(word) for word in words], self.paraphrases.phrases_in(words))

    def _word(self, text: str) -> Word:
        bases = [text, *(self._bases.get(text) or [self._base_of(text)])]
        synsets = frozenset(number for base in bases for number in self._synsets.get(base, "").split())
        return Word(text, _code(text), _code(stem(text)), synsets, text in self._function_words)

    def _base_of(self, form: str) -> str:
        """The dictionary form of a regular inflection."""
        if form.endswith("ss") or len(form) <= 2:
            return form
        bases = (form.removesuffix(suffix) + ending for suffix, ending in _INFLECTIONS if form.endswith(suffix))
        return next((base for base in bases if base in self._synsets), "")

    def words_of(self, text: str) -> list[str]:
        """The words of a line, as the program's English normaliser separates them."""
        if _PLAIN.fullmatch(text):
            return text.split()
        text = f" {text.strip(_TRIMMED)} "
        for pattern, replacement in _SEPARATIONS:
            text = pattern.sub(replacement, text)
        words = text.split()
        following = [*words[1:], ""]
        text = " ".join(map(self._without_full_stop, words, following))
        return text.strip(_TRIMMED).lower().split()

    def _without_full_stop(self, word: str, following: str) -> str:
        """Separate the full stop at the end of a word, unless it belongs to an abbreviation."""
        before = word.removesuffix(".")
        if before in (word, "") or before.endswith("."):
            return word
        if "." in before and _LETTER.search(before):  # U.S.
            return word.replace(".", "")
        only_before_numbers = self._abbreviations.get(before)
        if only_before_numbers is False or "a" <= following[:1] <= "z":
            return word
        if only_before_numbers and "0" <= following[:1] <= "9":
            return word
        return f"{before} ."


def _code(word: str) -> int:
    """Java's hash code. The program compares words by it, so that "an" and "c0" are the same word."""
    code = 0
    units = word.encode("utf-16-be", "surrogatepass")
    for high, low in zip(units[::2], units[1::2], strict=True):
        code = (31 * code + (high << 8) + low) & 0xFFFFFFFF
    return code


_INFLECTIONS = (
    ("s", ""), ("ses", "s"), ("xes", "x"), ("zes", "z"), ("ches", "ch"), ("shes", "sh"), ("men", "man"), ("ies", "y"),
    ("es", "e"), ("es", ""), ("ed", "e"), ("ed", ""), ("ing", "e"), ("ing", ""), ("er", ""), ("est", ""), ("er", "e"),
    ("est", "e"),
)  # fmt: skip

_PLAIN = re.compile(r"[A-Za-z0-9 ]*")
_TRIMMED = "".join(map(chr, range(33)))
"""What Java's `trim` removes."""
_LETTERS = "A-Za-zÀ-ÖØ-öø-ž\u0400-\u0527\ua640-\ua66e\ua67e-\ua697\u1d00-\u1d7f"
_LETTER = re.compile(f"[{_LETTERS}]")
_SEPARATIONS = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (rf"([^0-9{_LETTERS}\s.'`,\-‘’])", r" \1 "),  # symbols
        (r"(\.\.+)", r" \1 "),
        (r"([^0-9]),([^0-9])", r"\1 , \2"),  # commas, but for those inside numbers
        (r"([0-9]),([^0-9])", r"\1 , \2"),
        (r"([^0-9]),([0-9])", r"\1 , \2"),
        (r"[`‘’]", "'"),
        (r"[“”]|''", ' " '),
        (r"–", "-"),
        (r"--", "-"),
        (rf"([0-9{_LETTERS}.])-([0-9{_LETTERS}])", r"\1 \2"),
        (rf"([^{_LETTERS}])'([^{_LETTERS}])", r"\1 ' \2"),
        (rf"([^0-9{_LETTERS}])'([{_LETTERS}])", r"\1 ' \2"),
        (rf"([{_LETTERS}])'([^{_LETTERS}])", r"\1 ' \2"),
        (rf"([{_LETTERS}])'([{_LETTERS}])", r"\1 '\2"),  # it|'s
        (r"([0-9])'s", r"\1 's"),
    )
]


@lru_cache(maxsize=1)
def load_lexicon(folder: Path) -> Lexicon:
    """The lexicon of a folder, kept for the next call."""
    return Lexicon(folder)


# --- The paraphrase table ---------------------------------------------------------------------------------------------

_HASH_BASE = 0x9E3779B97F4A7C15
_BYTES_AT_ONCE = 1 << 18


@dataclass(frozen=True)
class ParaphraseTable:
    """2.7 million phrases, numbered in the order of their hashes, and the 5.3 million pairs of them."""

    hashes: Array
    """(phrases,): 64 bits; no two phrases of the table share one."""
    first: Array
    """(phrases + 1,): the paraphrases of phrase n are those from first[n] to first[n + 1]."""
    paraphrases: Array
    """(pairs,): numbers of phrases."""

    @classmethod
    def load(cls, path: Path) -> ParaphraseTable:
        """The table of a file. Parsing takes seconds, so the result is cached."""
        state = path.stat()
        entry = f"meteor-{zlib.crc32(f'{path.resolve()} {state.st_size} {state.st_mtime_ns}'.encode()):08x}"
        if (stored := cache.read(entry)) is not None:
            with np.load(io.BytesIO(stored), allow_pickle=False) as arrays:
                return cls(**arrays)
        table = cls.parse(path)
        content = io.BytesIO()
        np.savez(content, hashes=table.hashes, first=table.first, paraphrases=table.paraphrases)
        cache.write(entry, content.getbuffer())
        return table

    @classmethod
    def parse(cls, path: Path) -> ParaphraseTable:
        """Read the text: a probability, a phrase and its paraphrase, each in a line of its own."""
        parts = []
        with gzip.open(path) as file:
            rest = b""
            while block := file.read(_BYTES_AT_ONCE):
                text = rest + block
                ends = np.flatnonzero(np.frombuffer(text, dtype=np.uint8) == ord("\n"))
                ends = ends[: len(ends) // 3 * 3]
                starts = np.append(0, ends + 1)
                rest = text[starts[-1] :]
                parts.append(_hashes(text, starts[:-1], ends).reshape(-1, 3)[:, 1:].copy())
        if rest or not parts:
            raise ValueError(f"{path.name} ends early")
        pairs = np.concatenate(parts).ravel()
        del parts
        order = np.argsort(pairs)
        pairs = pairs[order]
        is_new = np.append(True, pairs[1:] != pairs[:-1])
        numbers = np.empty(len(pairs), dtype=np.int32)
        numbers[order] = np.cumsum(is_new, dtype=np.int32) - 1
        hashes = pairs[is_new]
        phrase, paraphrase = numbers.reshape(-1, 2).T
        order = np.argsort(phrase, kind="stable")
        first = np.searchsorted(phrase[order], np.arange(len(hashes) + 1, dtype=np.int32))
        return cls(hashes, first.astype(np.int32), paraphrase[order])

    def phrases_in(self, words: Sequence[str]) -> list[tuple[int, int, int]]:
        """Start, length and number of each phrase of the table, by start and length."""
        spans = [
            (start, length)
            for start in range(len(words))
            for length in range(1, min(MAX_PHRASE, len(words) - start) + 1)
        ]
        if not spans:
            return []
        encoded = [word.encode("utf-8", "surrogatepass") for word in words]
        ends = np.cumsum([len(word) + 1 for word in encoded]) - 1
        starts = np.append(0, ends[:-1] + 1)
        start, length = np.array(spans).T
        hashes = _hashes(b" ".join(encoded), starts[start], ends[start + length - 1])
        numbers = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        known = np.flatnonzero(self.hashes[numbers] == hashes).tolist()
        return [(*spans[index], number) for index, number in zip(known, numbers[known].tolist(), strict=True)]

    def marked(self, phrases: Iterable[int]) -> Array:
        """A set of phrases as a mask: (phrases,)"""
        mask = np.zeros(len(self.hashes), dtype=bool)
        mask[list(phrases)] = True
        return mask

    def paraphrases_of(self, phrase: int, marked: Array) -> list[int]:
        """Those paraphrases of a phrase that are marked, in the order of the file."""
        paraphrases = self.paraphrases[self.first[phrase] : self.first[phrase + 1]]
        return paraphrases[marked[paraphrases]].tolist()  # type: ignore[no-any-return]


def _hashes(text: bytes, starts: Array, ends: Array) -> Array:
    """The hash of each text[start:end], with bytes b: Σ (b_i + 1) · base^i modulo 2⁶⁴."""
    powers, inverse_powers = _powers(1 << len(text).bit_length())
    sums = np.zeros(len(text) + 1, dtype=np.uint64)
    np.cumsum((np.frombuffer(text, dtype=np.uint8) + np.uint64(1)) * powers[: len(text)], out=sums[1:])
    return np.asarray((sums[ends] - sums[starts]) * inverse_powers[starts])


@lru_cache(maxsize=32)
def _powers(count: int) -> tuple[Array, Array]:
    """base⁰, base¹, ... and base⁰, base⁻¹, ..., modulo 2⁶⁴"""
    factors = np.full((2, count), [[_HASH_BASE], [pow(_HASH_BASE, -1, 1 << 64)]], dtype=np.uint64)
    factors[:, 0] = 1
    powers, inverse_powers = np.cumprod(factors, axis=1)
    return powers, inverse_powers
