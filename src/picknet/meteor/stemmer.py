"""The stem of an English word by Porter's second algorithm, "English" in Snowball, as METEOR 1.5 uses it.

Later versions of Snowball changed the algorithm, and METEOR's scores with it, so this is the one of 2015.

R1 is what follows the first consonant after a vowel, R2 the same within R1. A suffix is in R1 or R2 if all of it is.
A `y` at the beginning or after a vowel is a consonant, written Y until the end.
"""

import re
from collections.abc import Collection
from functools import lru_cache

# Whole words: these are not what the rules would make of them.
_IRREGULAR = {"skis": "ski", "skies": "sky", "dying": "die", "lying": "lie", "tying": "tie", "idly": "idl"}
_IRREGULAR |= {"gently": "gentl", "ugly": "ugli", "early": "earli", "only": "onli", "singly": "singl"}
_IRREGULAR |= {word: word for word in ("sky", "news", "howe", "atlas", "cosmos", "bias", "andes")}
# These keep their last letters, once a plural's s is gone.
_INVARIANT = {"inning", "outing", "canning", "herring", "earring", "proceed", "exceed", "succeed"}

_TO_R1 = re.compile(r"gener|commun|arsen|[^aeiouy]*[aeiouy]+[^aeiouy]")
_TO_R2 = re.compile(r"[^aeiouy]*[aeiouy]+[^aeiouy]")
_VOWEL = re.compile("[aeiouy]")
_SHORT_SYLLABLE = re.compile(r"(?:[^aeiouy][aeiouy][^aeiouywxY]|^[aeiouy][^aeiouy])$")
_DOUBLED = ("bb", "dd", "ff", "gg", "mm", "nn", "pp", "rr", "tt")

_POSSESSIVES = ("'", "'s", "'s'")
_PLURALS = ("sses", "ied", "ies", "s", "us", "ss")
_VERB_ENDINGS = ("eed", "eedly", "ed", "edly", "ing", "ingly")
# Derivational suffixes in R1, and what takes their place: first those of `_LONG`, then those of `_MIDDLE`.
_LONG = {
    "tional": "tion", "enci": "ence", "anci": "ance", "abli": "able", "entli": "ent", "izer": "ize", "ization": "ize",
    "ational": "ate", "ation": "ate", "ator": "ate", "alism": "al", "aliti": "al", "alli": "al", "fulness": "ful",
    "ousli": "ous", "ousness": "ous", "iveness": "ive", "iviti": "ive", "biliti": "ble", "bli": "ble", "ogi": "og",
    "fulli": "ful", "lessli": "less", "li": "",
}  # fmt: skip
_LONG_ONLY_AFTER = {"ogi": ("l",), "li": tuple("cdeghkmnrt")}
_MIDDLE = {
    "tional": "tion", "ational": "ate", "alize": "al", "icate": "ic", "iciti": "ic", "ical": "ic", "ful": "",
    "ness": "", "ative": "",
}  # fmt: skip
# Suffixes that go if they are in R2.
_LAST = (
    "al", "ance", "ence", "er", "ic", "able", "ible", "ant", "ement", "ment", "ent", "ism", "ate", "iti", "ous", "ive",
    "ize", "ion",
)  # fmt: skip


@lru_cache(maxsize=1 << 16)
def stem(word: str) -> str:
    """The stem of a lower-case word.

    >>> [stem(word) for word in ("rides", "riding", "skies", "generously", "happily")]
    ['ride', 'ride', 'sky', 'generous', 'happili']
    """
    if word in _IRREGULAR:
        return _IRREGULAR[word]
    if len(word) < 3:
        return word
    word = _with_consonant_y(word.removeprefix("'"))
    found = _TO_R1.match(word)
    r1 = found.end() if found else len(word)
    found = _TO_R2.match(word, r1)
    r2 = found.end() if found else len(word)

    word = _without_plural(word.removesuffix(_longest(word, _POSSESSIVES)))
    if word in _INVARIANT:
        return word
    word = _without_verb_ending(word, r1)
    if word[-1:] in ("y", "Y") and len(word) > 2 and not _VOWEL.match(word[-2]):
        word = f"{word[:-1]}i"

    suffix = _longest(word, _LONG)
    base = word.removesuffix(suffix)
    if suffix and len(base) >= r1 and base.endswith(_LONG_ONLY_AFTER.get(suffix, ("",))):
        word = base + _LONG[suffix]
    suffix = _longest(word, _MIDDLE)
    base = word.removesuffix(suffix)
    if suffix and len(base) >= (r2 if suffix == "ative" else r1):
        word = base + _MIDDLE[suffix]
    suffix = _longest(word, _LAST)
    base = word.removesuffix(suffix)
    if len(base) >= r2 and (suffix != "ion" or base.endswith(("s", "t"))):
        word = base

    base = word[:-1]
    in_r1, in_r2 = len(base) >= r1, len(base) >= r2
    if (word.endswith("e") and (in_r2 or (in_r1 and not _SHORT_SYLLABLE.search(base)))) or (
        word.endswith("ll") and in_r2
    ):
        word = base
    return word.replace("Y", "y")


def _longest(word: str, suffixes: Collection[str]) -> str:
    """The longest of `suffixes` that the word ends with; only that one is tried. Empty if there is none."""
    return max((suffix for suffix in suffixes if word.endswith(suffix)), key=len, default="")


def _with_consonant_y(word: str) -> str:
    letters = list(word)
    for place, letter in enumerate(word):
        if letter == "y" and (place == 0 or letters[place - 1] in "aeiouy"):
            letters[place] = "Y"
    return "".join(letters)


def _without_plural(word: str) -> str:
    match _longest(word, _PLURALS):
        case "sses":
            return word[:-2]
        case "ied" | "ies":
            return word[:-2] if len(word) > 4 else word[:-1]
        case "s" if _VOWEL.search(word[:-2]):
            return word[:-1]
    return word


def _without_verb_ending(word: str, r1: int) -> str:
    suffix = _longest(word, _VERB_ENDINGS)
    base = word.removesuffix(suffix)
    if suffix in ("eed", "eedly"):
        return f"{base}ee" if len(base) >= r1 else word
    if not suffix or not _VOWEL.search(base):
        return word
    if base.endswith(("at", "bl", "iz")):
        return f"{base}e"
    if base.endswith(_DOUBLED):
        return base[:-1]
    return f"{base}e" if len(base) == r1 and _SHORT_SYLLABLE.search(base) else base
