"""Reciprocal rank fusion: one ranking from several whose scores are not comparable."""

from collections import defaultdict
from collections.abc import Hashable, Iterable
from typing import TypeVar

K = 60
"""The default constant that is added to ranks, of Cormack, Clarke and Büttcher (SIGIR 2009)."""

T = TypeVar("T", bound=Hashable)


def fused_ranks(rankings: Iterable[Iterable[T]], k: float = K) -> dict[T, float]:
    """Return the fused score of each item: the sum of `1 / (k + rank)` over all rankings.

    Items keep the order in which they first occur. One that occurs several times in a ranking
    counts at its best rank.
    """
    scores: defaultdict[T, float] = defaultdict(float)
    for ranking in rankings:
        for rank, item in enumerate(dict.fromkeys(ranking), 1):
            scores[item] += 1 / (k + rank)
    return dict(scores)
