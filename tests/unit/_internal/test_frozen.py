"""Frozen mappings: immutable dicts."""

import copy
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient._internal.frozen import EMPTY, FrozenDict, frozen, merged

MAPPINGS = st.dictionaries(st.text(max_size=3), st.integers() | st.text(max_size=3), max_size=4)


@pytest.mark.parametrize(
    "change",
    [
        lambda it: it.__setitem__("b", 2),
        lambda it: it.__delitem__("a"),
        lambda it: it.clear(),
        lambda it: it.pop("a"),
        lambda it: it.popitem(),
        lambda it: it.setdefault("b", 2),
        lambda it: it.update(b=2),
        lambda it: it.__ior__({"b": 2}),
    ],
)
def test_mutation_is_rejected(change: Callable[[Any], Any]) -> None:
    """Every mutating method raises with an alternative."""
    mapping = FrozenDict(a=1)

    with pytest.raises(TypeError, match="build a changed copy"):
        change(mapping)

    assert mapping == {"a": 1}


@given(MAPPINGS)
def test_frozen_dict_is_a_dict(mapping: dict[str, Any]) -> None:
    """It compares with dicts and is serialised to JSON."""
    value = FrozenDict(mapping)

    assert value == mapping
    assert mapping == value
    assert json.loads(json.dumps(value)) == mapping


@given(MAPPINGS)
def test_equal_frozen_dicts_have_equal_hashes(mapping: dict[str, Any]) -> None:
    """The hash is independent of the order of entries."""
    turned = FrozenDict(reversed(mapping.items()))

    assert len({FrozenDict(mapping), turned}) == 1


def test_hash_with_unhashable_values() -> None:
    """Values such as lists do not prevent hashing."""
    assert hash(FrozenDict(a=[1])) == hash(FrozenDict(a=[1]))


@given(MAPPINGS, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_pickle(mapping: dict[str, Any], protocol: int) -> None:
    """A pickled frozen dict is equal and frozen."""
    again = pickle.loads(pickle.dumps(FrozenDict(mapping), protocol))

    assert again == mapping
    assert type(again) is FrozenDict


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copy_returns_the_same_object(copied: Callable[[Any], Any]) -> None:
    """A copy is the same object."""
    mapping = FrozenDict(a=1)

    assert copied(mapping) is mapping


@pytest.mark.parametrize("nothing", [None, {}, FrozenDict()])
def test_freeze_nothing(nothing: dict[str, Any] | None) -> None:
    """All empty mappings are one object."""
    assert frozen(nothing) is EMPTY


def test_freeze_copies_mutable_dicts() -> None:
    """A dict is copied, a frozen one is not."""
    mapping = {"a": 1}

    value = frozen(mapping)
    mapping["a"] = 2

    assert value == {"a": 1}
    assert frozen(value) is value


@given(MAPPINGS, MAPPINGS)
def test_merge(base: dict[str, Any], over: dict[str, Any]) -> None:
    """Entries of the second win; the result is frozen."""
    before = (dict(base), dict(over))

    result = merged(base, over)

    assert result == {**base, **over}
    assert type(result) is FrozenDict
    assert (base, over) == before


def test_merge_with_nothing() -> None:
    """Merging with an empty mapping returns the same object."""
    mapping = FrozenDict(a=1)

    assert merged(mapping, {}) is mapping
    assert merged({}, mapping) is mapping
