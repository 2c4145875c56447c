"""How good a sentence will be, judged by its words and by the decoder's states while it was written.

A critic, the word of reinforcement learning for what predicts a reward from states. It is a linear function, learned
for one style by `study/critic_learning.py` from sentences that the model writes for its own training clips, and stored
with the tags.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from picknet.model.match import as_bytes, from_bytes

Array = NDArray[Any]


@dataclass(frozen=True)
class Critic:
    """A linear function to the CIDEr of a sentence; 1.0 is printed as 100 in the tables."""

    words: Sequence[str]
    worths: Array
    """(words,): what each word adds, however often it is said."""
    states: Array
    """(state,): what the decoder's mean state adds."""
    others: Array
    """(3,): what log P / length^exponent and each word of the sentence add, and what is added to every sentence."""

    def of(self, sentence: Sequence[str], score: float, state: Array) -> float:
        """sentence: its words; score: its log P / length^exponent; state: (state,), the decoder's mean state."""
        known = [self._places[word] for word in dict.fromkeys(sentence) if word in self._places]
        # Not as a product of vectors: BLAS would share it among threads, which then spin on the cores that decode.
        told = np.array([score, len(sentence), 1.0])
        return float(self.worths[known].sum() + (self.states * state).sum() + (self.others * told).sum())

    def tensors(self) -> dict[str, Array]:
        """By the names of the fields, to be stored."""
        return {"words": as_bytes(self.words)} | {name: getattr(self, name) for name in _REAL}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Array]) -> "Critic":
        """Raises an ordinary error where they are no such thing."""
        critic = cls(from_bytes(tensors["words"]), **{name: tensors[name].astype(np.float32) for name in _REAL})
        if critic.worths.shape != (len(critic.words),) or critic.states.ndim != 1 or critic.others.shape != (3,):
            raise ValueError("the sizes of a critic's tensors do not fit each other")
        if not all((np.abs(getattr(critic, name)) <= np.finfo(np.float16).max).all() for name in _REAL):
            raise ValueError("a critic holds what is not a number, or is out of range")
        return critic

    @cached_property
    def _places(self) -> dict[str, int]:
        return {word: place for place, word in enumerate(self.words)}


_REAL = ("worths", "states", "others")
