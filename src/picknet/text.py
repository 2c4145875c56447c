"""The tokeniser that training and evaluation share, and the vocabulary that maps words to ids.

The COCO evaluation code tokenises with Stanford's Java PTBTokenizer, lower-cases and drops punctuation. `tokenise` does
the same without Java, so that a captioner is trained on the same tokens it is scored on.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

from picknet import files
from picknet.errors import PicknetError

PAD, BOS, EOS, UNK = 0, 1, 2, 3
SPECIAL_WORDS = ("<pad>", "<bos>", "<eos>", "<unk>")
NEVER_WRITTEN = [PAD, BOS, UNK]
"""Special words that are never part of a generated caption. See also `Vocabulary.never_written`."""
MAX_WORDS_BYTES = 2**22
"""Of a file of words: 100,000 of them have one MB."""


class BadVocabulary(PicknetError):
    """A words file is missing or malformed."""


_CONTROL = re.compile(r"[\x00-\x08\x0e-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
"""What a terminal would obey, spaces and line ends apart, and halves of characters, which no file can hold."""


# --- Tokens -----------------------------------------------------------------------------------------------------------

# Abbreviations that keep their full stop, found by running the Java code on every word of up to four letters, all words
# in the captions of MSVD, MSR-VTT, COCO and Flickr8k, and a few dozen longer abbreviations.
_ABBREVIATIONS = """
    adj adm adv al ala alex apr ariz assn assoc asst attys? aug ave bancorp bhd bldg blvd brig bros calif capt cf
    cie cmdr col? colo comdr conn corp cos cpl ct dak dec dept det drs? elec ens esq est etc ext feb fla fri ft ga
    gen govs? hon inc ind insp intl invt jan jos jr jul jun kans? ky lieut lt ltd maj mar md messrs mfg mich minn
    mlle mme mon? mont mr mrs ms msgr mt mtg natl neb nev nov oct okla penn pfc ph(?:\\.d)? plc ppte ppty pres
    profs? ptes? ptys? pvt rd reps? rev rt sens? sept? seq sfc sgt spc sq sr ste? supts? sys tel tenn thu thurs
    tues? univ va vs vt wed wisc? wm wyo
"""
# These are also ordinary words; they abbreviate the name of a state only if capitalised.
_STATES = "Ark Az Del Ill La Mass Miss Ore Pa Tex Wash"
# Abbreviations only before a number: "no. 5".
_NUMBERED = "art ca figs? nos? op pp prop"
# A single letter keeps its full stop ("J. Smith") unless one of these words follows ("vitamin C. The") or the caption
# ends: there the Java code reads on into the next caption, which usually begins with one of them.
_SENTENCE_STARTS = """
    A About According After An As At But Earlier He Her Here However If In It Last Many More Now Once One Other Our She
    Since So Some Such That The Their Then There These They This We What When While Yet You
"""
_SPLIT_WORDS = {
    "cannot": ["can", "not"],
    "gimme": ["gim", "me"],
    "gonna": ["gon", "na"],
    "gotta": ["got", "ta"],
    "lemme": ["lem", "me"],
    "wanna": ["wan", "na"],
}
# The COCO code intends to drop these names but compares them in capitals after lower-casing, so they stay.
_BRACKETS = str.maketrans({"(": "-lrb-", ")": "-rrb-", "[": "-lsb-", "]": "-rsb-", "{": "-lcb-", "}": "-rcb-"})
_ASCII_FOR = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": " -- ", "—": " -- ", "…": " ... ", "\N{SOFT HYPHEN}": None}
    | {"£": "#", "€": "$", "¢": " cents ", "¼": " 1/4 ", "½": " 1/2 ", "¾": " 3/4 "}
)


def _any_of(words: str) -> str:
    return "|".join(words.split())


# Matches are tokens; everything else (commas, quotes, dashes) is dropped. The first alternative that matches wins.
_TOKEN = re.compile(
    r"""
    \s*(
      [A-Za-z]+(?!\S)                                        # a word followed by white space: nearly all of them
    | (?:https?://|www\.)[^\s"<>]+[^\s"<>.,!?;:')]           # URLs,
    | ALNUM[^\s"<>|()@]*@ALNUM(?:[\w.-]*ALNUM)?              # e-mail addresses,
    | @LETTER\w* | \#LETTER+                                 # handles and tags
    | </?[A-Za-z][^\s<>]*>
    | ALNUM+(?:-LETTER+){0,2}(?:/ALNUM+(?:-LETTER+){0,2}){1,2}   # and/or, 1/2
    | ALNUM(?:ALNUM|[.,])*(?:-ALNUM+)+                       # tri-colored, 3,000-seat, 10-15
    | [A-Z]+(?:[&+][A-Z]+)+                                  # R&B, only in capitals
    | (?i:[a-z]\.(?:[a-z]\.)+)(?!ALNUM)                      # T.V.
    | [A-Za-z]\.(?!ALNUM)(?!\s+(?:SENTENCE_STARTS)\b|\s*\Z)   # J. Smith
    | (?i:ABBREVIATIONS)\.(?!LETTER)                         # etc.
    | (?:STATES)\.(?!LETTER)
    | (?i:NUMBERED)\.(?=\s*\d)
    | LETTERALNUM*(?:[.!?]LETTERALNUM*)*\.(?=[,;:])          # a full stop inside a sentence belongs to its word
    | LETTER*[^\W\d_nN](?=(?i:n't)(?!LETTER))                # do|n't
    | (?i:n't)(?!LETTER)
    | (?i:[a-hj-su-xz]'(?!(?:ll|re|ve)(?!LETTER))[a-z]{2,}|ma'am|dunkin'|somethin'|ol')   # o'clock
    | (?i:'(?:[dms]|ll|re|ve)(?!ALNUM)|'n'?(?!LETTER)|'em|'till?|'cause|'t(?=is|was)|y'(?=all))    # it|'s, 'n', 'em
    | '\d\ds?(?!ALNUM)                                       # '90s
    | [+-]?(?:\d+(?:[.,:/]\d+)+|\.\d+)                       # 10:30, 0.5
    | [+-]?\d+(?!ALNUM)
    | LETTERALNUM*(?:[.!?]LETTERALNUM*)+                     # sits.under, where a space was forgotten
    | ALNUM+(?:_ALNUM+)*
    | [:;=][-']?[()\[\]DPdp|](?!LETTER)                      # =D
    | [!?]{2,} | \*+ | _+                                    # a single ! or ? is punctuation, several are a token
    | [^\w\s.,:;!?'"`\u200b-\u200f\ufeff\U00010000-\U0010ffff-]   # any other symbol: %, &, $, /, ...
    )"""
    .replace("SENTENCE_STARTS", _any_of(_SENTENCE_STARTS))
    .replace("ABBREVIATIONS", _any_of(_ABBREVIATIONS))
    .replace("STATES", "|".join(f"{state[0]}(?i:{state[1:]})" for state in _STATES.split()))
    .replace("NUMBERED", _any_of(_NUMBERED))
    .replace("LETTER", r"[^\W\d_]")
    .replace("ALNUM", r"[^\W_]"),
    re.VERBOSE,
)
_PLAIN = re.compile(r"[A-Za-z ]*")


def without_control(caption: str) -> str:
    """The caption with spaces for control characters and halves of characters: they end a word, as all does that the
    tokeniser drops."""
    return _CONTROL.sub(" ", caption)


def tokenise(caption: str) -> list[str]:
    """Split a caption into lower-case words without punctuation, exactly as the COCO evaluation code does.

    >>> tokenise("A man doesn't like the dog's T-shirt.")
    ['a', 'man', 'does', "n't", 'like', 'the', 'dog', "'s", 't-shirt']
    """
    if _PLAIN.fullmatch(caption):  # most captions are only words and spaces
        tokens = caption.lower().split()
    else:
        if not caption.isascii():
            caption = caption.translate(_ASCII_FOR)
        tokens = " ".join(_TOKEN.findall(caption)).lower().translate(_BRACKETS).split()
    if _SPLIT_WORDS.keys().isdisjoint(tokens):
        return tokens
    return [part for token in tokens for part in _SPLIT_WORDS.get(token, [token])]


# --- Vocabulary -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Vocabulary:
    """The words of a captioner; a word's id is its index in `words`."""

    words: tuple[str, ...]
    """words[id]; the first four are `SPECIAL_WORDS`."""

    def __post_init__(self) -> None:
        if self.words[: len(SPECIAL_WORDS)] != SPECIAL_WORDS:
            raise BadVocabulary(
                f"a vocabulary must begin with the words {' '.join(SPECIAL_WORDS)} "
                f"(got: {' '.join(self.words[: len(SPECIAL_WORDS)]) or 'nothing'})"
            )
        lines: dict[str, int] = {}
        for line, word in enumerate(self.words, start=1):
            if _CONTROL.search(word):
                raise BadVocabulary(f"line {line}: {word!r} holds control characters, which would reach the terminal")
            if not word or word.split() != [word]:
                raise BadVocabulary(f"line {line}: {word!r} is not a word (expected one word per line, without spaces)")
            if lines.setdefault(word, line) != line:
                raise BadVocabulary(f"line {line}: {word!r} is already on line {lines[word]} (expected each word once)")

    @classmethod
    def from_captions(cls, captions: Iterable[Sequence[str]], *, min_count: int) -> Vocabulary:
        """The words that occur at least `min_count` times in tokenised captions, by count, then alphabetically."""
        counts = Counter(word for caption in captions for word in caption if word not in SPECIAL_WORDS)
        kept = [word for word, count in counts.items() if count >= min_count]
        return cls((*SPECIAL_WORDS, *sorted(kept, key=lambda word: (-counts[word], word))))

    def __len__(self) -> int:
        return len(self.words)

    def encode(self, tokens: Sequence[str], *, max_words: int | None = None) -> list[int]:
        """The ids of the first `max_words` tokens, `UNK` for unknown ones; `BOS` and `EOS` are not added."""
        return [self._ids.get(token, UNK) for token in tokens[:max_words]]

    def decode(self, ids: Iterable[int]) -> str:
        """The caption up to the first `EOS`; `PAD`, `BOS` and style words are skipped."""
        words, skipped = [], {PAD, BOS, *self.styles.values()}
        for word_id in ids:
            if word_id == EOS:
                break
            if word_id not in skipped:
                words.append(self.words[word_id])
        return " ".join(words)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write one word per line as UTF-8."""
        files.write_text(path, "".join(f"{word}\n" for word in self.words))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Vocabulary:
        """Read a file written by `save`."""
        try:
            with open(path, "rb") as file:
                content = file.read(MAX_WORDS_BYTES + 1)
            if len(content) > MAX_WORDS_BYTES:
                raise BadVocabulary(f"{path}: is too large; possible: at most {MAX_WORDS_BYTES:,} bytes")
            text = content.decode().replace("\r\n", "\n")
        except OSError as error:
            raise BadVocabulary(f"{path}: cannot be read ({error.strerror or error})") from error
        except UnicodeDecodeError as error:
            raise BadVocabulary(f"{path}: not UTF-8 text (byte {error.start}: {error.reason})") from error
        try:
            return cls(tuple(text.removesuffix("\n").split("\n")))
        except BadVocabulary as error:
            raise BadVocabulary(f"{path}: {error}") from None

    @cached_property
    def styles(self) -> dict[str, int]:
        """The ids of style words, by style: {"msrvtt": id of [msrvtt]}. A caption in a style begins with its style word
        instead of `BOS`.

        The tokeniser never produces such a token, since it splits off brackets.
        """
        known = enumerate(self.words[len(SPECIAL_WORDS) :], start=len(SPECIAL_WORDS))
        return {word[1:-1]: word_id for word_id, word in known if re.fullmatch(r"\[\w+]", word)}

    def first_word(self, *styles: str | None) -> int:
        """The id that a caption begins with: that of the first of these styles that is known, or else `BOS`."""
        return next((self.styles[style] for style in styles if style in self.styles), BOS)

    @cached_property
    def never_written(self) -> list[int]:
        """The ids that a generated caption never contains: `NEVER_WRITTEN` and all style words."""
        return [*NEVER_WRITTEN, *self.styles.values()]

    def ids_of(self, is_wanted: Callable[[str], bool]) -> list[int]:
        """The ids of all special words and style words, and of the other words that are wanted."""
        always = {*range(len(SPECIAL_WORDS)), *self.styles.values()}
        return [word_id for word_id, word in enumerate(self.words) if word_id in always or is_wanted(word)]

    def with_styles(self, names: Iterable[str]) -> Vocabulary:
        """A copy with the style words of `names` added at the end."""
        return Vocabulary((*self.words, *(f"[{name}]" for name in names if name not in self.styles)))

    @cached_property
    def _ids(self) -> dict[str, int]:
        # Without the special words: "<eos>" in a caption is an unknown word, not an end.
        known = self.words[len(SPECIAL_WORDS) :]
        return {word: word_id for word_id, word in enumerate(known, start=len(SPECIAL_WORDS))}
