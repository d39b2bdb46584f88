"""How much of a large set a run tries: all of it, or a fifth in `make test` and in CI.

The fifth is another one each day, that of the last commit: what passed passes again.
"""

import subprocess
from collections.abc import Sequence
from datetime import date
from functools import cache
from typing import TypeVar

from hypothesis import settings

from tests.support.paths import ROOT

T = TypeVar("T")


@cache
def day() -> date:
    """Return the day of the last commit; without a repository, always the same one."""
    git = ["git", "-C", str(ROOT), "log", "-1", "--format=%cs"]
    found = subprocess.run(git, capture_output=True, text=True, check=False)
    return date.fromisoformat(found.stdout.strip() or "2026-01-01")


def step() -> int:
    """Return 1, or 5 in `make test`, which tries one of so many examples."""
    return max(100 // settings().max_examples, 1)


def examples(count: int) -> int:
    """Return how many of *count* random examples are tried."""
    return max(count // step(), 1)


def some(cases: Sequence[T]) -> Sequence[T]:
    """Return which of *cases* are tried."""
    return cases[day().toordinal() % step() :: step()]
