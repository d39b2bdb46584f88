"""How much of a large set a run tries: all, or a part in `make test`."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import settings


def examples(count: int) -> int:
    """Return how many of *count* random examples are tried: a quarter in `make test`."""
    return max(count * settings().max_examples // 100, 1)


def one_in(size: int, cases: Sequence[Any]) -> list[Any]:
    """Return *cases* for `parametrize`; each but one in *size* is exhaustive."""
    exhaustive = pytest.mark.exhaustive
    return [
        case if number % size == 0 else pytest.param(case, marks=exhaustive)
        for number, case in enumerate(cases)
    ]
