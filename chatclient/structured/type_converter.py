"""Reads JSON as a value of a type: at once where it is right, else mended where that is certain."""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from chatclient.errors import EntityError, UsageError
from chatclient.json import loads
from chatclient.schemas import JsonSchema, strict_form
from chatclient.slips import repair_json
from chatclient.structured.cleaning import (
    Cleaner,
    brackets,
    cleaned,
    json_within,
    without_fence,
)
from chatclient.structured.partial import partial_value
from chatclient.texts import shortened
from chatclient.thoughts import without_thoughts
from chatclient.tools.arguments import PYDANTIC_ERRORS, reason, typed_dict
from chatclient.tools.binding import problems
from chatclient.tools.generation import schema_of
from chatclient.tools.repair import repair_value
from chatclient.values import deep_frozen

if TYPE_CHECKING:
    # `type[T]` takes classes only: no unions, no literals, nothing annotated.
    from typing_extensions import TypeForm

T = TypeVar("T")

_WRAPPED = "value"
_CLEANERS = (without_thoughts, without_fence)
_FORMAT = (
    "Answer with JSON only: no words around it, no Markdown. The JSON has to satisfy this JSON"
    " Schema:\n"
)
_MOST_SHOWN = 500


class TypeOutputConverter(Generic[T]):
    """Reads JSON as any type that pydantic knows.

    What is right is read at once. Only what is not gets a second look: thoughts, fences and words
    around the JSON are taken away, and slips that can only mean one thing are mended. What a JSON
    object holds beside the fields of the type is dropped, unless the type forbids it.

    Args:
        kind: A pydantic model, dataclass, `TypedDict`, `NamedTuple`, enum, primitive, `Literal`,
            union, or a collection of such.
        cleaners: What to take away from the text before it is read, one after another.
        schema: What the model is told, in place of the type's own JSON Schema.

    Raises:
        UsageError: The type has no JSON Schema.
    """

    def __init__(
        self,
        kind: "TypeForm[T]",
        *,
        cleaners: Iterable[Cleaner] = _CLEANERS,
        schema: JsonSchema | None = None,
    ) -> None:
        self.kind = kind
        self._cleaners = tuple(cleaners)
        try:
            adapter: TypeAdapter[T] = TypeAdapter(kind)
            self._schema = schema_of(adapter) if schema is None else schema
        except PYDANTIC_ERRORS as error:
            msg = (
                f"no model can be asked for {name_of_kind(kind)}: {reason(error)}; ask for a type"
                " such as a pydantic model, a dataclass, int or list[...]"
            )
            raise UsageError(msg) from error
        self._wrapped = None if _is_object(self._schema) else _WRAPPED
        self._read = _reader(adapter, kind, self._wrapped)
        self.format = _FORMAT + json.dumps(self._schema)
        self.json_schema: Mapping[str, Any] = _sendable(self._schema, name_of_kind(kind))

    def __reduce__(self) -> tuple[Any, ...]:
        # pydantic's readers cannot be pickled; they are made anew.
        make = functools.partial(
            type(self), self.kind, cleaners=self._cleaners, schema=self._schema
        )
        return make, ()

    def convert(self, text: str) -> T:
        """Return what *text* says.

        Raises:
            EntityError: It does not fit the type.
        """
        try:
            return self._read(text)
        except ValidationError:
            return self._read_again(text)

    def partial(self, text: str) -> T:
        """Return as much of the value as *text*, the beginning of an answer, spells.

        Returns:
            A value whose missing fields are their defaults or None, or `NOTHING`.
        """
        return cast("T", partial_value(self.kind, text, wrapped=self._wrapped))

    def _read_again(self, text: str) -> T:
        bare = cleaned(text, self._cleaners)
        if not bare:
            raise self._error(text, ["the answer is empty"])
        candidates = [bare, *json_within(bare)]
        if not bare.startswith(("{", "[")):
            candidates = [*candidates[1:], bare]
        errors: list[EntityError] = []
        for candidate in candidates:
            try:
                return self._read_mended(_parsed(candidate), text)
            except EntityError as error:
                errors.append(error)
            except ValueError as error:
                errors.append(self._error(text, [f"not valid JSON: {error}"]))
        # An error about JSON that does not fit says more than one about a text that is not JSON.
        raise next((error for error in errors if error.__cause__ is not None), errors[0])

    def _read_mended(self, value: Any, text: str) -> T:
        if self._wrapped is not None and isinstance(value, dict) and value.keys() == {_WRAPPED}:
            value = value[_WRAPPED]
        try:
            return self._read(json.dumps(repair_value(value, self._schema)))
        except ValidationError as error:
            known = self._schema.get("properties", {})
            raise self._error(text, problems(error, value, known, whole="answer")) from error

    def _error(self, text: str, errors: Iterable[str]) -> EntityError:
        return entity_error(name_of_kind(self.kind), text, errors)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({name_of_kind(self.kind)})"


def name_of_kind(kind: Any) -> str:
    """Return what a type is called, without its modules and what is only said about it."""
    return re.sub(r"(?:[\w<>]+\.)+", "", _written(kind))


def _written(kind: Any) -> str:
    if get_origin(kind) is Annotated:
        return _written(get_args(kind)[0])
    text = kind.__name__ if isinstance(kind, type) and not get_args(kind) else str(kind)
    for part in get_args(kind):
        if "Annotated[" in repr(part):
            text = text.replace(repr(part), _written(part))
    return text


def entity_error(wanted: str, text: str, errors: Iterable[str]) -> EntityError:
    """Return the error of an answer that is not what was *wanted*."""
    errors = tuple(errors)
    told = "".join(f"\n- {line}" for line in errors)
    shown = shortened(text, _MOST_SHOWN)
    msg = f"the answer does not fit {wanted}:{told}\nThe model answered: {shown}"
    return EntityError(msg, text=text, errors=errors)


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def _sendable(schema: JsonSchema, name: str) -> Mapping[str, Any]:
    """Return the schema of an object in the form that providers can enforce, if it has one."""
    if not _is_object(schema):
        inner = {key: value for key, value in schema.items() if key != "$defs"}
        schema = {
            "type": "object",
            "properties": {_WRAPPED: inner},
            "required": [_WRAPPED],
            "additionalProperties": False,
            **({"$defs": schema["$defs"]} if "$defs" in schema else {}),
        }
    frozen_form: Mapping[str, Any] = deep_frozen({"title": name, **(strict_form(schema) or schema)})
    return frozen_form


def _reader(adapter: TypeAdapter[T], kind: Any, wrapped: str | None) -> Callable[[str], T]:
    """Return what reads JSON of a type, and that of its wrapper if it has one."""
    read: Callable[[str], T] = adapter.validator.validate_json
    if wrapped is None:
        return read
    unwrap = typed_dict({wrapped: kind}, extra="forbid").validator.validate_json

    def read_wrapped(text: str) -> T:
        if text.lstrip().startswith("{"):
            try:
                return cast("T", unwrap(text)[wrapped])
            except ValidationError:
                pass  # a union may admit an object of its own
        return read(text)

    return read_wrapped


def _parsed(candidate: str) -> Any:
    """Return the value that *candidate* spells, mended if need be; bare words are a string.

    Raises:
        ValueError: It was meant to be JSON but is not valid.
    """
    try:
        return loads(candidate)
    except ValueError:
        if not candidate.startswith(("{", "[", '"')):
            return candidate
        # An answer that was cut off must not pass for a whole one.
        mended = repair_json(candidate) if _is_ended(candidate) else None
        if mended is None:
            raise
        return loads(mended)


def _is_ended(candidate: str) -> bool:
    """Return whether what was opened is closed, as far as strings with double quotes go."""
    counted = Counter(bracket[0] for bracket in brackets(candidate))
    return counted["{"] == counted["}"] and counted["["] == counted["]"]
