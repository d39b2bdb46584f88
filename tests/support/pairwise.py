"""Combinations of several parameters in which each pair of values occurs, but not each triple."""

from collections.abc import Sequence
from itertools import combinations, product
from typing import Any


def pairwise(*axes: Sequence[Any]) -> list[tuple[Any, ...]]:
    """Return a few combinations with every pair of values of any two *axes*.

    A fault that shows only for one value, or for two together, is found as surely as by the
    product of all axes. The result depends on the order of the values only.
    """
    sizes = [range(len(axis)) for axis in axes]
    missing = {pair for row in product(*sizes) for pair in _pairs(row)}
    rows = []
    for row in sorted(product(*sizes), key=_spread):
        if len(missing & _pairs(row)) == len(_pairs(row)):
            missing -= _pairs(row)
            rows.append(row)
    while missing:
        row = max(product(*sizes), key=lambda row: len(missing & _pairs(row)))
        missing -= _pairs(row)
        rows.append(row)
    return [tuple(axis[index] for axis, index in zip(axes, row, strict=True)) for row in rows]


def _pairs(row: tuple[int, ...]) -> set[tuple[tuple[int, int], ...]]:
    return set(combinations(enumerate(row), 2))


def _spread(row: tuple[int, ...]) -> int:
    """Order rows so that the first ones share few values with each other."""
    return sum(row[1:]) - row[0]
