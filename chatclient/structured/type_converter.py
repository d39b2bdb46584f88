"""`TypeOutputConverter`: converts JSON text to a value of a type, with repair of malformed JSON."""

import functools
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Generic, TypeVar, cast, get_args, get_origin

from pydantic import TypeAdapter, ValidationError

from chatclient._internal.frozen import deep_frozen
from chatclient._internal.json import loads_exact
from chatclient._internal.json_repair import repair_json
from chatclient._internal.json_schema import JsonSchema, strict_form
from chatclient._internal.text import shortened
from chatclient.chat.thinking_tags import without_thoughts
from chatclient.errors import EntityError, UsageError
from chatclient.structured.answer_cleaning import (
    Cleaner,
    brackets,
    cleaned,
    json_within,
    without_fence,
)
from chatclient.tools.function.argument_repair import NumberRewriter, public_schema, repair_value
from chatclient.tools.function.parameters import PYDANTIC_ERRORS
from chatclient.tools.function.schema_generator import reason, schema_of, typed_dict
from chatclient.tools.function.signature import problems

if TYPE_CHECKING:
    # `type[T]` does not accept unions, literals and annotated types.
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
    """Converts JSON to a value of any type that pydantic supports.

    If the text is not valid, reasoning, code fences and text around the JSON are removed, and
    malformed JSON is repaired if only one reading is possible. Unknown properties are dropped,
    unless the type forbids them.

    Args:
        kind: A pydantic model, dataclass, `TypedDict`, `NamedTuple`, enum, primitive, `Literal`,
            union, or a collection of such.
        cleaners: Functions that remove text around the JSON, applied in order.
        schema: A JSON Schema for the model that replaces that of the type.

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
        self._numbers = NumberRewriter(_with_wrapper(self._schema, self._wrapped))
        public = public_schema(self._schema)
        self.format = _FORMAT + json.dumps(public)
        self.json_schema: Mapping[str, Any] = _sendable(public, name_of_kind(kind))

    def __reduce__(self) -> tuple[Any, ...]:
        # pydantic's validators cannot be pickled.
        make = functools.partial(
            type(self), self.kind, cleaners=self._cleaners, schema=self._schema
        )
        return make, ()

    def convert(self, text: str) -> T:
        """Return the value in *text*.

        Raises:
            EntityError: *text* is not a value of the type.
        """
        try:
            return self._read(self._numbers.rewrite(text))
        except ValidationError:
            return self._convert_leniently(text)

    def partial(self, text: str) -> T:
        """Return the partial value in *text*, the beginning of an answer.

        Returns:
            A value whose missing fields have their defaults or None, or `NOTHING`.
        """
        from chatclient.structured.partial import partial_value  # noqa: PLC0415 - of streams

        return cast("T", partial_value(self.kind, text, self._numbers, wrapped=self._wrapped))

    def _convert_leniently(self, text: str) -> T:
        bare = cleaned(text, self._cleaners)
        if not bare:
            raise self._error(text, ["the answer is empty"])
        candidates = [bare, *json_within(bare)]
        if not bare.startswith(("{", "[")):
            candidates = [*candidates[1:], bare]
        errors: list[EntityError] = []
        for candidate in candidates:
            try:
                return self._read_repaired(_parsed(candidate), text)
            except EntityError as error:
                errors.append(error)
            except ValueError as error:
                errors.append(self._error(text, [f"not valid JSON: {error}"]))
        # Validation errors are more helpful than syntax errors.
        raise next((error for error in errors if error.__cause__ is not None), errors[0])

    def _read_repaired(self, value: Any, text: str) -> T:
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
    """Return the name of a type without modules and annotations."""
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
    """Return the error that the answer *text* is not a *wanted* value; *errors* are the reasons."""
    errors = tuple(errors)
    lines = "".join(f"\n- {line}" for line in errors)
    shown = shortened(text, _MOST_SHOWN)
    msg = f"the answer does not fit {wanted}:{lines}\nThe model answered: {shown}"
    return EntityError(msg, text=text, errors=errors)


def _is_object(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") == "object"


def _sendable(schema: JsonSchema, name: str) -> Mapping[str, Any]:
    """Return *schema* as that of an object, in the strict form if it has one."""
    if not _is_object(schema):
        schema = _wrapper(schema)
    frozen_form: Mapping[str, Any] = deep_frozen({"title": name, **(strict_form(schema) or schema)})
    return frozen_form


def _wrapper(schema: JsonSchema) -> JsonSchema:
    """Return the schema of an object that holds the value."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    return {
        "type": "object",
        "properties": {_WRAPPED: inner},
        "required": [_WRAPPED],
        "additionalProperties": False,
        **({"$defs": schema["$defs"]} if "$defs" in schema else {}),
    }


def _with_wrapper(schema: JsonSchema, wrapped: str | None) -> JsonSchema:
    """Return the schema of all texts that are read: the value, and the object that holds it."""
    if wrapped is None:
        return schema
    return {"anyOf": [_wrapper(schema), schema], "$defs": schema.get("$defs", {})}


def _reader(adapter: TypeAdapter[T], kind: Any, wrapped: str | None) -> Callable[[str], T]:
    """Return a function that converts JSON of *kind*, or of an object with it in *wrapped*."""
    read: Callable[[str], T] = adapter.validator.validate_json
    if wrapped is None:
        return read
    unwrap = typed_dict({wrapped: kind}, extra="forbid").validator.validate_json

    def read_wrapped(text: str) -> T:
        if text.lstrip().startswith("{"):
            try:
                return cast("T", unwrap(text)[wrapped])
            except ValidationError:
                pass  # the type may be a union with an object
        return read(text)

    return read_wrapped


def _parsed(candidate: str) -> Any:
    """Return the value of the JSON in *candidate*, repaired if necessary, else *candidate* itself.

    Raises:
        ValueError: It looks like JSON and cannot be repaired.
    """
    try:
        return loads_exact(candidate)
    except ValueError:
        if not candidate.startswith(("{", "[", '"')):
            return candidate
        # A truncated answer must not be completed.
        repaired = repair_json(candidate) if _is_balanced(candidate) else None
        if repaired is None:
            raise
        return loads_exact(repaired)


def _is_balanced(candidate: str) -> bool:
    """Return whether *candidate* has as many closing as opening brackets outside of strings."""
    counted = Counter(bracket[0] for bracket in brackets(candidate))
    return counted["{"] == counted["}"] and counted["["] == counted["]"]
