"""Words, and what METEOR knows about them: how a line is split into words, function words, stems, synonyms."""

import importlib.util
import re
import zipfile
import zlib
from collections import defaultdict
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

from picknet.errors import PicknetError
from picknet.meteor.paraphrases import ParaphraseTable
from picknet.meteor.stemmer import stem

_JAR = "meteor-1.5.jar"
_PARAPHRASES = Path("data") / "paraphrase-en.gz"


class MeteorFailed(PicknetError):
    """METEOR's files cannot be read, or its time is up."""


def installed_files() -> Path | None:
    """The folder of METEOR's files inside pycocoevalcap; None if that is not installed."""
    package = importlib.util.find_spec("pycocoevalcap")
    folders = package.submodule_search_locations if package is not None else None
    places = [Path(folder) / "meteor" for folder in folders or ()]
    return next((place for place in places if (place / _JAR).is_file()), None)


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
