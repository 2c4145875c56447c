"""The captions that the captioner learns from: what people wrote, or only what is worth repeating.

Some captions are misspelled, written for another clip, or no descriptions at all, and a captioner learns to repeat
them. With `text.clean` they are mended or left out, by these rules:

- A word is English if a word list has it, or if captions of several clips agree on it, as they do on names.
- Another word is mended if it is one slip away from a far more frequent word of the captions, or from two words that
  often follow each other ("infront"). If it cannot be mended it becomes <unk>, which no caption contains.
- A caption is left out that is too short or too long, is not English or no description, was copied from clip to clip
  with its mistakes, or shares hardly any word with the clip's other captions.

References of metrics and rewards are never cleaned.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from statistics import median

from picknet.config import BadConfig, TextConfig
from picknet.data import BadData
from picknet.data.split import Clip
from picknet.model.sentences import content_words
from picknet.text import SPECIAL_WORDS, UNK, Vocabulary, tokenise

Captions = Mapping[str, Sequence[Sequence[str]]]
"""The captions of clips by name, as words."""

SPELLING = Path(__file__).with_name("spelling.txt")
"""More English words, and corrections."""
MENDED_LETTERS = 4
"""A word of fewer letters is not mended: it is close to too many others."""
SAFE_LETTERS = 5
"""A word of fewer letters is mended only to a word of the clip's other captions."""
FAR_MORE_FREQUENT = 10
"""How many times as often captions must use a word for it to be a correction of another."""
AGREED_CLIPS = 3
"""A word that is not in the word list is a name if two captions of each of this many clips use it."""
MANY_CAPTIONS = 10
"""A clip with fewer captions cannot outvote one of them."""
MIN_AGREEMENT = 0.014
"""Of a caption with the clip's others; see `_agreements`."""
COPIES = 10
"""A caption with mistakes under this many clips is one person's phrase for everything, not a description."""
MIN_WORDS = 3
REMARK = re.compile(
    r"(?<!\S)(?:i|my|me|please|thanks?|subscribe|lol|u|the something|no (?:image|video|picture))(?!\S)"
    r"|(?:video|image)\b.* (?:not|n't) (?:load|play|show|work|available)"
)
"""What annotators say about themselves, to us, or about a clip that they could not see."""


@dataclass(frozen=True)
class Teachers:
    """The captions of the training clips, as the captioner learns them."""

    captions: Captions
    counts: Counter[str]
    """Number of captions that were mended, and of those left out for each reason."""

    def __str__(self) -> str:
        left_out = ", ".join(f"{count:,} {why}" for why, count in self.counts.most_common() if why != "mended")
        kept = sum(map(len, self.captions.values()))
        return f"captions to learn from: {kept:,}, of which {self.counts['mended']:,} mended; left out: {left_out or 0}"


def teachers(clips: Sequence[Clip], config: TextConfig) -> Teachers:
    """The captions of clips as words, cleaned if the settings say so."""
    captions = {clip.name: [tokenise(caption) for caption in clip.captions] for clip in clips}
    if not config.clean:
        return Teachers(captions, Counter())
    cleaned = _clean(captions, max_words=config.max_words)
    if not any(cleaned.captions.values()):
        raise BadData(f"text.clean is true and leaves no captions ({cleaned}); set it to false to learn all of them")
    return cleaned


def english_words(vocabulary: Vocabulary, *, also: Vocabulary) -> list[int]:
    """The ids of a vocabulary's special words, style words, and words that the word list or another vocabulary has."""
    english, others = _WordList(), set(also.words)
    return vocabulary.ids_of(lambda word: word in others or word in english)


# --- Words ------------------------------------------------------------------------------------------------------------


class _WordList:
    """English words, and corrections of frequent mistakes."""

    def __init__(self) -> None:
        try:
            from spellchecker import SpellChecker
        except ImportError as error:
            raise BadConfig(
                'text.clean is true, which needs pyspellchecker: pip install "picknet[train]" (or set text.clean=false)'
            ) from error
        checker = SpellChecker(language="en", distance=1)
        lines = [line.partition(" = ") for line in SPELLING.read_text(encoding="utf-8").splitlines() if line[:1] != "#"]
        self.corrections = {word: right.split() for word, equals, right in lines if equals}
        added = {word for word, equals, _ in lines if not equals}
        self._words = (checker.word_frequency.dictionary.keys() | added) - self.corrections.keys()
        self.edits = cache(lambda word: frozenset(checker.edit_distance_1(word)) | {word})
        """Everything that is one slip away from a word: a letter too many, missing, wrong, or swapped with the next."""

    def add(self, names: Iterable[str]) -> None:
        self._words.update(names)

    def __contains__(self, word: str) -> bool:
        if word in self._words:
            return True
        if word.isalpha():
            return False
        if re.fullmatch(r"'(?:s|re|ve|ll|d|m|em|n'?)|n't|o'clock|[a-z]?\d+(?:[.,:]\d+)*(?:st|nd|rd|th|[a-z])?", word):
            return True
        if re.fullmatch(r"(?:[^\W\d_]+\.)+", word):  # an abbreviation
            return word.replace(".", "") in self
        parts = word.split("-")
        return len(parts) > 1 and all(part.isdecimal() or (part.isalpha() and part in self) for part in parts)


class _Mender:
    """Finds what a misspelled word was meant to be, from what the captions of all clips say."""

    def __init__(self, english: _WordList, captions: Iterable[Sequence[str]]) -> None:
        self._english = english
        self._counts: Counter[str] = Counter()
        self._pairs: Counter[tuple[str, str]] = Counter()
        for caption in captions:
            self._counts.update(caption)
            self._pairs.update(pairwise(caption))
        self._meant = cache(self._meant_anywhere)

    def mend(self, word: str, used: Mapping[str, int]) -> list[str] | None:
        """The word, or words, that were meant; None if that is unknown. `used`: words of the clip's captions."""
        if word in self._english.corrections:
            return [part.replace("?", SPECIAL_WORDS[UNK]) for part in self._english.corrections[word]]
        if word.isalpha():
            if len(word) < MENDED_LETTERS:
                return None
            return self._used_here(word, used, slips=1) or self._meant(word) or self._used_here(word, used, slips=2)
        parts = [part for part in re.split(r"[^\w']+|_", word) if part]
        return parts if all(part in self._english for part in parts) else None

    def has_neighbour(self, word: str, used: Mapping[str, int]) -> bool:
        """Whether the clip's captions also use a likelier word that is one slip away."""
        return self._used_here(word, used, slips=1) is not None

    def _used_here(self, word: str, used: Mapping[str, int], *, slips: int) -> list[str] | None:
        """The most used word of the clip's captions that is this many slips away."""
        edits = self._english.edits(word)
        if slips == 1:
            near = [other for other in edits & used.keys() if self._is_likelier(other, word)]
        else:
            alike = (other for other, count in used.items() if count > 1 and other[0] == word[0])
            long = (other for other in alike if len(other) >= SAFE_LETTERS <= len(word) and other in self._english)
            near = [other for other in long if not edits.isdisjoint(self._english.edits(other))]
        return [max(near, key=lambda other: (used[other], other))] if near else None

    def _meant_anywhere(self, word: str) -> list[str] | None:
        """What was meant wherever the word occurs: a word that is one slip away, or two words without their space."""
        enough = FAR_MORE_FREQUENT * self._counts[word]
        near = [other for other in self._english.edits(word) & self._counts.keys() if self._counts[other] >= enough]
        near = [other for other in near if other[0] == word[0] and self._is_likelier(other, word)]
        near.sort(key=lambda other: (-self._counts[other], other))
        best, second = (self._counts[near[i]] if i < len(near) else 0 for i in (0, 1))
        pair = max(((word[:i], word[i:]) for i in range(1, len(word))), key=lambda pair: self._pairs[pair])
        if self._pairs[pair] > max(best, 3 * self._counts[word]) and all(part in self._english for part in pair):
            return list(pair)
        return near[:1] if len(word) >= SAFE_LETTERS and best and best >= FAR_MORE_FREQUENT * second else None

    def _is_likelier(self, other: str, word: str) -> bool:
        return other != word and self._counts[other] > self._counts[word] and other in self._english


# --- Captions ---------------------------------------------------------------------------------------------------------


def _clean(captions: dict[str, list[list[str]]], *, max_words: int) -> Teachers:
    english = _WordList()
    mender = _Mender(english, (caption for own in captions.values() for caption in own))
    english.add(_agreed_names(captions, english, mender))
    clips_of = Counter(copy for own in captions.values() for copy in {" ".join(caption) for caption in own})
    counts: Counter[str] = Counter()
    kept: dict[str, list[list[str]]] = {}
    for name, own in captions.items():
        used = Counter(word for caption in own for word in set(caption))
        kept[name] = []
        for caption in own:
            mended = _mended(caption, used, english, mender)
            problem = _problem(mended, max_words)
            if not problem and mended != caption and clips_of[" ".join(caption)] >= COPIES:
                problem = "copied with their mistakes"
            if problem:
                counts[problem] += 1
            else:
                counts["mended"] += mended != caption
                kept[name].append(mended)
    agreeing = _agreeing(kept, counts)
    return Teachers(agreeing, +counts)


def _agreed_names(captions: Captions, english: _WordList, mender: _Mender) -> list[str]:
    """Unlisted words that captions of several clips agree on, unless they are near a word that most others use."""
    clips: Counter[str] = Counter()
    agreed: Counter[str] = Counter()
    misspelled: Counter[str] = Counter()
    for own in captions.values():
        used = Counter(word for caption in {tuple(caption) for caption in own} for word in set(caption))
        for word, count in used.items():
            if word.isalpha() and len(word) > 2 and word not in english and word not in english.corrections:
                clips[word] += 1
                agreed[word] += count > 1
                misspelled[word] += mender.has_neighbour(word, used)
    enough = {word for word, count in agreed.items() if count >= max(AGREED_CLIPS, clips[word] / 3)}
    return [word for word in enough if 2 * misspelled[word] < clips[word]]


def _mended(caption: list[str], used: Mapping[str, int], english: _WordList, mender: _Mender) -> list[str]:
    """The caption in English words and <unk>; symbols are left out."""
    mended: list[str] = []
    for word in caption:
        if word == "t" and mended[-1:] == ["n't"]:
            continue  # MSVD's captions have lost their apostrophes: doesn t
        if word in english:
            mended.append(word)
        elif any(character.isalnum() for character in word) or word in english.corrections:
            mended += mender.mend(word, used) or [SPECIAL_WORDS[UNK]]
    return mended


def _problem(caption: Sequence[str], max_words: int) -> str | None:
    """Why nothing can be learned from a caption by itself."""
    unknown = caption.count(SPECIAL_WORDS[UNK])
    if unknown > 1 or 4 * unknown > len(caption):
        return "not in English"
    if len(caption) < MIN_WORDS or len(set(caption) - {"a", "an", "the"}) < 2:
        return "too short"
    if REMARK.search(" ".join(caption)):
        return "remarks"
    if len(caption) > max_words:
        return "too long"  # it would be learned without its end
    return None


def _agreeing(captions: Captions, counts: Counter[str]) -> Captions:
    """The captions without those that do not agree with the others of their clip, which are counted."""
    words = {name: [content_words(" ".join(caption)) for caption in own] for name, own in captions.items()}
    num_clips = Counter(word for own in words.values() for word in set().union(*own))
    scale = math.log(max(2, len(captions)))
    weights = {word: 1 - math.log(count) / scale for word, count in num_clips.items()}
    kept: dict[str, list[Sequence[str]]] = {}
    for name, own in captions.items():
        if len(own) < MANY_CAPTIONS:
            kept[name] = list(own)
            continue
        agreements = _agreements(words[name], weights)
        # Where all clips are alike, all words are frequent and all agreements are small.
        enough = min(MIN_AGREEMENT, median(agreements) / 10)
        kept[name] = [caption for caption, value in zip(own, agreements, strict=True) if value >= enough]
        counts["of another clip"] += len(own) - len(kept[name])
    return kept


def _agreements(words: Sequence[set[str]], weights: Mapping[str, float]) -> list[float]:
    """For each caption of a clip: for every content word the share of the other captions with it, times its weight,
    added up. The weight falls from 1 for a word of one clip to 0 for a word of all clips: "man" counts for little."""
    used = Counter(word for own in words for word in own)
    return [sum(weights[word] * (used[word] - 1) for word in own) / (len(words) - 1) for own in words]
