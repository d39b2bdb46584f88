"""Validates values with the JSON Schemas of servers, in limited time.

A schema is untrusted input. The pattern `(a+)+$` would keep Python's regular expressions busy for
years, and so would definitions that each refer to the next one twice, or a list of alternatives for
each item of a list. Therefore patterns run in linear time, with pydantic's engine, each keyword
looks at the clock, and a check that takes too long is abandoned. What cannot be interrupted (a
pattern, a message that shows the value) is kept small.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import lru_cache
from itertools import islice
from time import thread_time
from typing import Any

import attrs
from jsonschema import ValidationError
from jsonschema.protocols import Validator
from jsonschema.validators import Draft202012Validator, extend, validator_for
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry

from chatclient._internal.json_schema import subschemas
from chatclient.tools.function.signature import MOST_LINES

CHECK_SECONDS = 0.5
"""Seconds of CPU time for the check of one value, in a worker thread."""

CHECK_SECONDS_ON_LOOP = 0.02
"""Seconds of CPU time for the check of one value on an event loop."""

_LARGEST = 300_000  # size of a value, see `_is_large`: most messages contain all of it
_LONGEST = 500  # characters that patterns are applied to
_MOST_STATES = 1_000  # of a pattern

_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

_end: ContextVar[float] = ContextVar("end of the check of a value")


class _UndecidedError(Exception):
    """The value cannot be checked here, or not in time."""


def validator_of(schema: Mapping[str, Any]) -> Validator | None:
    """Return a validator for a server's *schema*; None if values cannot be checked with it."""
    # The keywords about patterns of names would apply them with Python's engine; the other one
    # compares each item with all others.
    text = repr(schema)
    if "patternProperties" in text or "unevaluatedItems" in text or not _is_sound(schema):
        return None
    kind = validator_for(schema, default=Draft202012Validator)
    # An empty registry, so that no schema is fetched.
    return _bounded(kind)(schema, registry=Registry())


def misfits(
    validator: Validator | None, value: Any, seconds: float
) -> list[ValidationError] | None:
    """Return the first errors of *value*; None if it cannot be checked here, or not in time."""
    if validator is None:
        return None
    end = _end.set(thread_time() + seconds)
    try:
        if _is_large(value):
            return None
        return list(islice(validator.iter_errors(value), MOST_LINES))
    except Exception:  # noqa: BLE001 - also what jsonschema raises for an invalid schema
        return None
    finally:
        _end.reset(end)


# Keywords whose values, if they are of another kind, would be misunderstood instead of refused.
_KINDS: Mapping[str, type | tuple[type, ...]] = {
    "enum": list,
    "dependentRequired": dict,
    "additionalProperties": (bool, dict),
    "unevaluatedProperties": (bool, dict),
    "uniqueItems": bool,
}
_BOUNDS = ("exclusiveMinimum", "exclusiveMaximum")  # truth values in draft 4


def _is_sound(schema: Mapping[str, Any]) -> bool:
    """Return whether no keyword in *schema* has a value that would be misunderstood.

    A check against the schema of schemas would take a hundred times as long.
    """
    left = [schema]
    try:
        while left:
            each = left.pop()
            for keyword in _KINDS.keys() & each.keys():
                if not isinstance(each[keyword], _KINDS[keyword]):
                    return False
            for names in (each.get("required", []), *each.get("dependentRequired", {}).values()):
                if not isinstance(names, list) or not all(isinstance(it, str) for it in names):
                    return False
            if any(isinstance(each.get(bound), bool) for bound in _BOUNDS):
                return False
            left += subschemas(each)
    except (AttributeError, TypeError):  # of a keyword that has schemas
        return False
    return True


def _is_large(value: Any) -> bool:
    """Return whether a JSON *value* has many characters, where an item counts as ten."""
    left, room = [value], _LARGEST
    while left and room >= 0:
        value = left.pop()
        room -= 10
        match value:
            case str():
                room -= len(value)
            case list():
                left += value[:_LARGEST]
            case dict():
                room -= sum(map(len, islice(value, _LARGEST)))
                left += islice(value.values(), _LARGEST)
            case _:
                pass
    return room < 0


@lru_cache
def _bounded(kind: Any) -> Any:
    keywords = {**kind.VALIDATORS, "pattern": _pattern, "uniqueItems": _unique}
    bounded = extend(kind, {name: _limited(keyword) for name, keyword in keywords.items()})
    # The original method switches to the dialect that a subschema names, without limits.
    bounded.evolve = _evolve
    original = bounded.iter_errors

    def iter_errors(self: Any, instance: Any) -> Iterator[ValidationError]:
        _check_time()  # keywords that call this for each item of a value
        yield from original(self, instance)

    bounded.iter_errors = iter_errors
    return bounded


def _check_time() -> None:
    if thread_time() > _end.get():
        raise _UndecidedError


def _evolve(validator: Any, **changes: Any) -> Any:
    _check_time()
    return attrs.evolve(validator, **changes)


def _limited(keyword: _Keyword) -> _Keyword:
    def check(*arguments: Any) -> Iterator[ValidationError]:
        _check_time()
        for error in keyword(*arguments) or ():
            _check_time()  # keywords such as `required` have many errors
            yield error

    return check


def _pattern(
    _validator: Validator, pattern: str, value: Any, _schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(value, str):
        return
    if len(value) > _LONGEST:
        raise _UndecidedError
    if not _matcher(pattern).isinstance_python(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _unique(
    _validator: Validator, wanted: object, value: Any, _schema: Any
) -> Iterator[ValidationError]:
    # The original compares all pairs if the items cannot be sorted.
    if wanted and isinstance(value, list):
        different = {json.dumps(item, sort_keys=True) for item in value}
        if len(different) < len(value):
            yield ValidationError(f"{value!r} has the same item twice")


@lru_cache
def _matcher(pattern: str) -> SchemaValidator:
    groups: list[list[int]] = [[]]  # the sizes of the parts of each open group
    for atom in _ATOM.finditer(pattern[: _MOST_STATES + 1]):
        match atom.lastgroup:
            case "times" if groups[-1]:
                groups[-1][-1] *= int(atom["most"] or atom["least"])
            case "class" if "[" in atom[0][1:]:
                raise _UndecidedError  # a class within a class
            case None if atom[0] == "(":
                groups.append([])
            case None if atom[0] == ")" and len(groups) > 1:
                inner = sum(groups.pop())
                groups[-1].append(inner)
            case kind:
                is_large = kind == "large" or re.search(r"\\[pPwW]", atom[0])
                groups[-1].append(10 if is_large else 1)
    if sum(map(sum, groups)) > _MOST_STATES:
        raise _UndecidedError
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


_ATOM = re.compile(
    r"""(?P<times>\{(?P<least>\d{1,6})(?:,(?P<most>\d{1,6})?)?\})
    | (?P<large>\\[wW] | \\[pP](?:\{[^}]*+\}|.))
    | (?P<class>\[(?:\\.|[^]\\])*+\]?)
    | \\? .""",
    re.VERBOSE | re.DOTALL,
)
