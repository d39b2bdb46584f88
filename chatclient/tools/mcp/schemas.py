"""Validates values with the JSON Schemas of servers, in limited time.

A schema is untrusted input. The pattern `(a+)+$` would keep Python's regular expressions busy for
years, and so would definitions that each refer to the next one twice. Therefore patterns run in
linear time, with pydantic's engine, and a check that takes too long is abandoned.
"""

import json
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
from pydantic_core import SchemaError as PatternError, SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

from chatclient.tools.function.binding import MOST_LINES

_TIME_LIMIT = 0.5  # seconds of CPU time for the check of one value
_LONGEST = 1_000  # characters that patterns are applied to: each may take a millisecond
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

_end: ContextVar[float] = ContextVar("end of the check of a value")


class _UndecidedError(Exception):
    """The value cannot be checked here, or not in time."""


def validator_of(schema: Mapping[str, Any]) -> Validator | None:
    """Return a validator for a server's *schema*; None if the schema is invalid."""
    kind = validator_for(schema, default=Draft202012Validator)
    meta = _bounded(validator_for(kind.META_SCHEMA, default=kind))
    wrong = misfits(meta(kind.META_SCHEMA, registry=Registry()), schema)
    # Several keywords would apply these patterns with Python's engine.
    if wrong or wrong is None or "patternProperties" in repr(schema):
        return None
    # An empty registry, so that no schema is fetched.
    return _bounded(kind)(schema, registry=Registry())


def misfits(validator: Validator | None, value: Any) -> list[ValidationError] | None:
    """Return the first errors of *value*; None if it cannot be checked here."""
    if validator is None:
        return None
    end = _end.set(thread_time() + _TIME_LIMIT)
    try:
        return list(islice(validator.iter_errors(value), MOST_LINES))
    except (_UndecidedError, PatternError, Unresolvable, RecursionError, ArithmeticError):
        return None
    finally:
        _end.reset(end)


@lru_cache
def _bounded(kind: Any) -> Any:
    references = {name: kind.VALIDATORS[name] for name in _REFERENCES if name in kind.VALIDATORS}
    followed = {name: _limited(keyword) for name, keyword in references.items()}
    bounded = extend(kind, {**followed, "pattern": _limited(_pattern), "uniqueItems": _unique})
    # The original method switches to the dialect that a subschema names, without limits.
    bounded.evolve = attrs.evolve
    return bounded


def _limited(keyword: _Keyword) -> _Keyword:
    def check(*arguments: Any) -> Iterator[ValidationError]:
        if thread_time() > _end.get():
            raise _UndecidedError
        yield from keyword(*arguments) or ()

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
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
