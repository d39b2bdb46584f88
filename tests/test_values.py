"""Frozen mappings: dicts that cannot change."""

import copy
import json
import pickle
from collections.abc import Callable, Mapping
from dataclasses import FrozenInstanceError, dataclass, replace
from inspect import signature
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient.values import EMPTY, FrozenDict, freeze_fields, frozen, merged, quickly_made

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
def test_nothing_changes_a_frozen_dict(change: Callable[[Any], Any]) -> None:
    """Every way to change a dict is refused, with the way out, and changes nothing."""
    mapping = FrozenDict(a=1)

    with pytest.raises(TypeError, match="build a changed copy"):
        change(mapping)

    assert mapping == {"a": 1}


@given(MAPPINGS)
def test_a_frozen_dict_is_the_dict_it_was_made_of(mapping: dict[str, Any]) -> None:
    """It compares with plain dicts and is written as JSON like one."""
    value = FrozenDict(mapping)

    assert value == mapping
    assert mapping == value
    assert json.loads(json.dumps(value)) == mapping


@given(MAPPINGS)
def test_equal_frozen_dicts_have_equal_hashes(mapping: dict[str, Any]) -> None:
    """Values that hold one can be keys, whatever order their entries came in."""
    turned = FrozenDict(reversed(mapping.items()))

    assert len({FrozenDict(mapping), turned}) == 1


def test_a_frozen_dict_with_unhashable_values_is_hashable() -> None:
    """JSON is full of lists; they do not keep a value from being a key."""
    assert hash(FrozenDict(a=[1])) == hash(FrozenDict(a=[1]))


@given(MAPPINGS, st.integers(0, pickle.HIGHEST_PROTOCOL))
def test_a_frozen_dict_pickles(mapping: dict[str, Any], protocol: int) -> None:
    """What comes back is equal and just as frozen."""
    again = pickle.loads(pickle.dumps(FrozenDict(mapping), protocol))

    assert again == mapping
    assert type(again) is FrozenDict


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy])
def test_copying_a_frozen_dict_costs_nothing(copied: Callable[[Any], Any]) -> None:
    """A copy of what cannot change is the thing itself."""
    mapping = FrozenDict(a=1)

    assert copied(mapping) is mapping


@pytest.mark.parametrize("nothing", [None, {}, FrozenDict()])
def test_freezing_nothing_gives_the_empty_mapping(nothing: dict[str, Any] | None) -> None:
    """Every value without entries shares one empty mapping."""
    assert frozen(nothing) is EMPTY


def test_freezing_copies_what_could_still_change() -> None:
    """The caller's dict may change afterwards; what is frozen already is not copied again."""
    mapping = {"a": 1}

    value = frozen(mapping)
    mapping["a"] = 2

    assert value == {"a": 1}
    assert frozen(value) is value


@given(MAPPINGS, MAPPINGS)
def test_merging_puts_one_mapping_over_the_other(
    base: dict[str, Any], over: dict[str, Any]
) -> None:
    """Entries of the second win; the result is frozen and neither of the two changes."""
    before = (dict(base), dict(over))

    result = merged(base, over)

    assert result == {**base, **over}
    assert type(result) is FrozenDict
    assert (base, over) == before


def test_merging_with_nothing_copies_nothing() -> None:
    """A frozen mapping with nothing over or under it is the result itself."""
    mapping = FrozenDict(a=1)

    assert merged(mapping, {}) is mapping
    assert merged({}, mapping) is mapping


# --- values that are made quickly ---


@dataclass(frozen=True, slots=True)
class _Usual:
    name: str
    count: int = 1
    more: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        freeze_fields(self, "more")


@quickly_made
@dataclass(frozen=True, slots=True)
class _Quick:
    name: str
    count: int = 1
    more: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        freeze_fields(self, "more")


def test_a_quickly_made_value_is_made_in_the_usual_way() -> None:
    """With the same parameters and defaults, by place or by name, and what comes after it."""
    assert _Quick("a") == _Quick(name="a", count=1, more={})
    assert repr(_Quick("a", more={"b": 2})) == "_Quick(name='a', count=1, more={'b': 2})"
    assert type(_Quick("a", 1, {"b": 2}).more) is FrozenDict
    assert str(signature(_Quick)) == str(signature(_Usual))
    with pytest.raises(TypeError, match=r"_Quick.__init__\(\) missing .* 'name'"):
        _Quick()  # type: ignore[call-arg]


def test_a_quickly_made_value_is_still_a_value() -> None:
    """It cannot be changed, and is copied, pickled and replaced like others."""
    value = _Quick("a", 2, {"b": 2})

    with pytest.raises(FrozenInstanceError):
        value.count = 3  # type: ignore[misc]

    assert pickle.loads(pickle.dumps(value)) == copy.copy(value) == value
    assert replace(value, count=3) == _Quick("a", 3, {"b": 2})
