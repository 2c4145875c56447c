"""METEOR's table of phrases that paraphrase each other."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet import cache

MAX_PHRASE = 7
"""Words in the longest phrase of the table."""

Array = NDArray[Any]

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
