"""`StructuredOutputConverter` and its implementations."""

import functools
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload, runtime_checkable

from chatclient._internal.annotations import cached_by_type
from chatclient._internal.frozen import deep_frozen
from chatclient._internal.json import dumps, loads
from chatclient._internal.text import answer_so_far, without_thoughts
from chatclient.errors import UsageError
from chatclient.structured.answer_cleaning import NOTHING, cleaned
from chatclient.structured.json_schema import type_of_schema
from chatclient.structured.type_converter import TypeOutputConverter

if TYPE_CHECKING:
    # `type[T]` does not accept unions, literals and annotated types.
    from typing_extensions import TypeForm

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

_FORMAT_OF_MAP = "Answer with one JSON object only: no words around it, no Markdown."
_FORMAT_OF_LIST = (
    "Answer with values separated by commas only, on one line: no words around them, no"
    " numbering. Like this: first, second, third"
)


@runtime_checkable
class StructuredOutputConverter(Protocol[T_co]):
    """Defines the format of an answer, and converts the answer to a value.

    A converter may also have a method `partial(text)`, which returns the value of an unfinished
    answer, or `NOTHING`; without it, a stream has no partial values.
    """

    @property
    def format(self) -> str:
        """Instructions for the model about the format; may be empty."""
        ...

    @property
    def json_schema(self) -> Mapping[str, Any] | None:
        """The JSON Schema of an object, for providers that enforce it, or None."""
        ...

    def convert(self, text: str) -> T_co:
        """Return the value in *text*.

        Raises:
            EntityError: *text* cannot be converted; `errors` are lines for the model.
        """
        ...


class JsonSchemaOutputConverter:
    """Converts JSON to plain data that a JSON Schema describes.

    Types, required and unknown properties, enumerations, bounds, lengths, patterns, unions and
    references are checked; `not`, `if` and formats are sent to the model, but not checked.

    Args:
        schema: The JSON Schema of any type.

    Raises:
        UsageError: It is not a JSON Schema.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        schema = {"type": "object", **schema} if "properties" in schema else dict(schema)
        self._values: TypeOutputConverter[Any] = TypeOutputConverter(
            type_of_schema(schema), schema=schema
        )
        self.format = self._values.format
        self.json_schema = self._values.json_schema

    def convert(self, text: str) -> Any:
        """Return the data in *text*.

        Raises:
            EntityError: There is none, or it does not satisfy the schema.
        """
        return self._values.convert(text)

    def partial(self, text: str) -> Any:
        """Return the data so far, or `NOTHING`."""
        return self._values.partial(text)


class TextOutputConverter:
    """Returns the text of the answer without reasoning."""

    format = ""
    json_schema = None

    def convert(self, text: str) -> str:
        """Return *text* without reasoning."""
        return cleaned(text, (without_thoughts,))

    def partial(self, text: str) -> str:
        """Return the answer so far, or `NOTHING`."""
        return answer_so_far(text) or cast("str", NOTHING)


class MapOutputConverter:
    """Converts a JSON object with any fields to a dict."""

    format = _FORMAT_OF_MAP
    json_schema: Mapping[str, Any] = deep_frozen({"type": "object", "title": "answer"})

    def __init__(self) -> None:
        self._objects: TypeOutputConverter[dict[str, Any]] = TypeOutputConverter(dict[str, Any])

    def convert(self, text: str) -> dict[str, Any]:
        """Return the object in *text*.

        Raises:
            EntityError: There is none.
        """
        return self._objects.convert(text)

    def partial(self, text: str) -> dict[str, Any]:
        """Return the object so far, or `NOTHING`."""
        return self._objects.partial(text)


class ListOutputConverter:
    """Converts comma-separated values to a list.

    Quotes are not interpreted, and an empty text is an empty list. For values that may contain
    commas, use `entity(list[str])`, which requests JSON.
    """

    format = _FORMAT_OF_LIST
    json_schema = None

    def convert(self, text: str) -> list[str]:
        """Return the values in *text*."""
        if not text:
            return []
        return [value.strip() for value in cleaned(text).split(",")]

    def partial(self, text: str) -> list[str]:
        """Return the values that are followed by a comma."""
        return self.convert(answer_so_far(text))[:-1] or cast("list[str]", NOTHING)


@overload
def converter_of(kind: StructuredOutputConverter[T] | type[T]) -> StructuredOutputConverter[T]: ...


@overload
def converter_of(kind: Mapping[str, Any]) -> StructuredOutputConverter[Any]: ...


@overload
def converter_of(kind: "TypeForm[T]") -> StructuredOutputConverter[T]: ...


def converter_of(kind: Any) -> StructuredOutputConverter[Any]:
    """Return the cached converter of a type or JSON Schema; a converter is returned unchanged.

    Raises:
        UsageError: The type has no JSON Schema, or the schema is invalid.
    """
    if not isinstance(kind, type) and isinstance(kind, StructuredOutputConverter):
        return kind
    if kind is str:
        return _TEXT
    if isinstance(kind, Mapping):
        return _converter_of_schema(_as_json(kind))
    if isinstance(kind, FunctionType):
        msg = f"{kind.__name__} is a function; pass a type or a converter"
        raise UsageError(msg)
    if is_dataclass(type(kind)) or hasattr(type(kind), "model_json_schema"):
        name = type(kind).__name__
        msg = f"the type of an answer must be a type, not an object of it: pass {name}"
        raise UsageError(msg)
    if isinstance(kind, str):
        msg = f"the type of an answer must be a type, not the text {kind!r}: pass the class itself"
        raise UsageError(msg)
    try:
        return _converter_of(kind)
    except UsageError as error:
        if callable(getattr(kind, "convert", None)):
            raise _incomplete_converter(kind) from error
        raise


def _incomplete_converter(kind: Any) -> UsageError:
    """Return the error for an object that has `convert`, but is not a converter."""
    if isinstance(kind, type):
        return UsageError(f"{kind.__name__} is a class; pass a converter: {kind.__name__}(...)")
    missing = [name for name in ("format", "json_schema") if not hasattr(kind, name)]
    return UsageError(
        f"{type(kind).__name__} has no {' and no '.join(missing)}; a converter has format,"
        " json_schema (which may be None) and convert(text)"
    )


_TEXT = TextOutputConverter()


def _as_json(schema: Mapping[str, Any]) -> bytes:
    try:
        return dumps(schema if isinstance(schema, dict) else deep_frozen(schema))
    except TypeError as error:
        msg = f"{schema!r} is not a JSON Schema: {error}"
        raise UsageError(msg) from error


@functools.lru_cache(maxsize=512)
def _converter_of_schema(schema: bytes) -> StructuredOutputConverter[Any]:
    return JsonSchemaOutputConverter(loads(schema))


@cached_by_type
def _converter_of(kind: Any) -> StructuredOutputConverter[Any]:
    return TypeOutputConverter(kind)
