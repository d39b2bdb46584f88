"""How much of a large set a run tries: all of it, or a fifth in `make test`."""

from collections.abc import Sequence
from typing import TypeVar

from hypothesis import settings

T = TypeVar("T")


def step() -> int:
    """Return 1, or 5 in `make test`, which tries one of so many examples."""
    return max(100 // settings().max_examples, 1)


def examples(count: int) -> int:
    """Return how many of *count* random examples are tried."""
    return max(count // step(), 1)


def some(cases: Sequence[T]) -> Sequence[T]:
    """Return which of *cases* are tried."""
    return cases[:: step()]
