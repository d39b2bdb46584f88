"""Converters: how a model is to answer, and what its answer says; one for each kind of wish."""

import functools
from collections.abc import Mapping
from dataclasses import is_dataclass
from types import FunctionType
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast, overload, runtime_checkable

from chatclient.errors import UsageError
from chatclient.json import dumps, loads
from chatclient.structured.cleaning import cleaned
from chatclient.structured.json_schema import type_of_schema
from chatclient.structured.partial import NOTHING
from chatclient.structured.type_converter import TypeOutputConverter
from chatclient.thoughts import answer_so_far, without_thoughts
from chatclient.values import deep_frozen

if TYPE_CHECKING:
    # `type[T]` takes classes only: no unions, no literals, nothing annotated.
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
    """Says how a model is to answer, and reads what it answered.

    A converter may also have a method `partial(text)`, which returns what an unfinished answer
    amounts to so far, or `NOTHING`; without it, a stream has no partial values.
    """

    @property
    def format(self) -> str:
        """What to tell the model about the form of its answer; empty for nothing."""
        ...

    @property
    def json_schema(self) -> Mapping[str, Any] | None:
        """The schema, of an object, that a provider can hold its model to; None for none."""
        ...

    def convert(self, text: str) -> T_co:
        """Return what *text* says.

        Raises:
            EntityError: It is not what was asked for; its `errors` are for the model.
        """
        ...


class JsonSchemaOutputConverter:
    """Reads JSON by a JSON Schema that is known at run time only, as plain data.

    Types, required and unknown properties, enumerations, bounds, lengths, patterns, unions and
    references are checked; `not`, `if` and formats are only told to the model.

    Args:
        schema: The JSON Schema, of an object or of anything else.

    Raises:
        UsageError: It is none.
    """

    def __init__(self, schema: Mapping[str, Any]) -> None:
        told = {"type": "object", **schema} if "properties" in schema else dict(schema)
        self._values: TypeOutputConverter[Any] = TypeOutputConverter(
            type_of_schema(told), schema=told
        )
        self.format = self._values.format
        self.json_schema = self._values.json_schema

    def convert(self, text: str) -> Any:
        """Return the data in *text*.

        Raises:
            EntityError: There is none, or it does not fit the schema.
        """
        return self._values.convert(text)

    def partial(self, text: str) -> Any:
        """Return the data so far, or `NOTHING`."""
        return self._values.partial(text)


class TextOutputConverter:
    """Takes the answer as it is, without what the model thought aloud."""

    format = ""
    json_schema = None

    def convert(self, text: str) -> str:
        """Return *text* without thoughts."""
        return cleaned(text, (without_thoughts,))

    def partial(self, text: str) -> str:
        """Return the answer so far, or `NOTHING`."""
        return answer_so_far(text) or cast("str", NOTHING)


class MapOutputConverter:
    """Reads a JSON object whose fields are not known beforehand."""

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
    """Reads values between commas, without the space around them.

    Quotes mean nothing, and an empty text is an empty list. For anything but short words,
    `entity(list[str])` asks for JSON and is the safer way.
    """

    format = _FORMAT_OF_LIST
    json_schema = None

    def convert(self, text: str) -> list[str]:
        """Return the values in *text*."""
        if not text:
            return []
        return [value.strip() for value in cleaned(text).split(",")]

    def partial(self, text: str) -> list[str]:
        """Return the values that a comma ends."""
        return self.convert(answer_so_far(text))[:-1] or cast("list[str]", NOTHING)


@overload
def converter_of(kind: StructuredOutputConverter[T] | type[T]) -> StructuredOutputConverter[T]: ...


@overload
def converter_of(kind: Mapping[str, Any]) -> StructuredOutputConverter[Any]: ...


@overload
def converter_of(kind: "TypeForm[T]") -> StructuredOutputConverter[T]: ...


def converter_of(kind: Any) -> StructuredOutputConverter[Any]:
    """Return the converter of a type or schema, made once for each; a converter stays what it is.

    Raises:
        UsageError: The type has no JSON Schema, or the schema is none.
    """
    if not isinstance(kind, type) and isinstance(kind, StructuredOutputConverter):
        return kind
    if kind is str:
        return _TEXT
    if isinstance(kind, Mapping):
        return _converter_of_schema(_as_json(kind))
    if isinstance(kind, FunctionType):
        msg = f"{kind.__name__} is a function; an answer is read as a type, or by a converter"
        raise UsageError(msg)
    if is_dataclass(type(kind)):
        name = type(kind).__name__
        msg = f"an answer is read as a type, and not as an object of one: pass {name}"
        raise UsageError(msg)
    try:
        return _converter_of(kind)
    except TypeError:  # what is said about the type cannot be hashed
        return TypeOutputConverter(kind)
    except UsageError as error:
        if callable(getattr(kind, "convert", None)):
            raise _no_converter(kind) from error
        raise


def _no_converter(kind: Any) -> UsageError:
    """Return the error for what was meant as a converter, it seems."""
    if isinstance(kind, type):
        return UsageError(f"{kind.__name__} is a class; pass a converter: {kind.__name__}(...)")
    lacking = [name for name in ("format", "json_schema") if not hasattr(kind, name)]
    return UsageError(
        f"{type(kind).__name__} has no {' and no '.join(lacking)}; a converter has format,"
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


@functools.lru_cache(maxsize=512)
def _converter_of(kind: Any) -> StructuredOutputConverter[Any]:
    return TypeOutputConverter(kind)
