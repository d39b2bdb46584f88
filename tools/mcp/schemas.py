"""What the JSON Schemas of servers say about a value, without being at their mercy.

A schema is a program that somebody else wrote. The pattern `(a+)+$` would keep Python's regular
expressions busy for years, and so would definitions of which each names the next one twice. So
patterns are run in linear time, by pydantic's engine, and a check that takes long is given up.
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
from pydantic_core import SchemaError as PatternError
from pydantic_core import SchemaValidator, core_schema
from referencing import Registry
from referencing.exceptions import Unresolvable

from chatclient.tools.binding import MOST_LINES

_PATIENCE = 0.5  # seconds of the processor's time, for the check of one value
_LONGEST = 1_000  # characters that patterns are run on: each may take a millisecond
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")

_Keyword = Callable[[Any, Any, Any, Any], Iterator[ValidationError] | None]

_end: ContextVar[float] = ContextVar("end of the check of a value")


class _GivenUpError(Exception):
    """Only the server can tell, or not fast enough here."""


def validator_of(schema: Mapping[str, Any]) -> Validator | None:
    """Return what checks values against a server's *schema*; None when that is broken."""
    kind = validator_for(schema, default=Draft202012Validator)
    meta = _bounded(validator_for(kind.META_SCHEMA, default=kind))
    wrong = misfits(meta(kind.META_SCHEMA, registry=Registry()), schema)
    # Several keywords would run these patterns by themselves.
    if wrong or wrong is None or "patternProperties" in repr(schema):
        return None
    # An empty registry: no schema is fetched from anywhere.
    return _bounded(kind)(schema, registry=Registry())


def misfits(validator: Validator | None, value: Any) -> list[ValidationError] | None:
    """Return the first things that are wrong with *value*; None where only the server can tell."""
    if validator is None:
        return None
    end = _end.set(thread_time() + _PATIENCE)
    try:
        return list(islice(validator.iter_errors(value), MOST_LINES))
    except (_GivenUpError, PatternError, Unresolvable, RecursionError, ArithmeticError):
        return None
    finally:
        _end.reset(end)


@lru_cache
def _bounded(kind: Any) -> Any:
    references = {name: kind.VALIDATORS[name] for name in _REFERENCES if name in kind.VALIDATORS}
    followed = {name: _in_time(keyword) for name, keyword in references.items()}
    bounded = extend(kind, {**followed, "pattern": _in_time(_pattern), "uniqueItems": _unique})
    # Theirs goes on as the dialect that a part of a schema names, which is not bounded.
    bounded.evolve = attrs.evolve
    return bounded


def _in_time(keyword: _Keyword) -> _Keyword:
    def check(*arguments: Any) -> Iterator[ValidationError]:
        if thread_time() > _end.get():
            raise _GivenUpError
        yield from keyword(*arguments) or ()

    return check


def _pattern(
    _validator: Validator, pattern: str, value: Any, _schema: Any
) -> Iterator[ValidationError]:
    if not isinstance(value, str):
        return
    if len(value) > _LONGEST:
        raise _GivenUpError
    if not _matcher(pattern).isinstance_python(value):
        yield ValidationError(f"{value!r} does not match {pattern!r}")


def _unique(
    _validator: Validator, wanted: object, value: Any, _schema: Any
) -> Iterator[ValidationError]:
    # Theirs compares each with each where they cannot be sorted.
    if wanted and isinstance(value, list):
        different = {json.dumps(item, sort_keys=True) for item in value}
        if len(different) < len(value):
            yield ValidationError(f"{value!r} has the same item twice")


@lru_cache
def _matcher(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))
