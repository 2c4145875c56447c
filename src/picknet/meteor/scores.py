"""The score of an alignment."""

from typing import NamedTuple

ALPHA, BETA, GAMMA, DELTA = 0.85, 0.2, 0.6, 0.75
"""α: recall against precision; β, γ: the penalty on chunks; δ: content words against function words."""
MODULE_WEIGHTS = (1.0, 0.6, 0.8, 0.6)
"""What a word counts that is matched by each module: exact, stem, synonym, paraphrase."""


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
