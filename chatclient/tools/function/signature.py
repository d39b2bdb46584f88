"""The signature of a tool's function: reads and validates arguments, and binds them to it."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError

from chatclient._internal.frozen import FrozenDict
from chatclient.chat.tool import ToolContext
from chatclient.chat.tool_execution import ToolExecution
from chatclient.errors import ToolDefinitionError, ToolUsageError
from chatclient.tools.function.binding import ArgumentReader
from chatclient.tools.function.parameters import (
    MISSING,
    PYDANTIC_ERRORS,
    Parameter,
    describe_callable,
)

T = TypeVar("T")


@dataclass(slots=True, eq=False)
class ToolSignature:
    """What a tool takes and whether it gives something back.

    Attributes:
        input_schema: The JSON Schema (2020-12) of the arguments, an object.
        description: The description in the docstring; empty without one.
        returns_nothing: Whether it is declared `-> None`.
    """

    input_schema: FrozenDict[str, Any]
    description: str
    returns_nothing: bool
    _reader: ArgumentReader = field(repr=False)
    _injected: "Injected" = field(repr=False)
    _positional: tuple[Parameter, ...] = field(default=(), repr=False)

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of what the model may give, in order."""
        return tuple(self.input_schema.get("properties", ()))

    @property
    def own_schema(self) -> Mapping[str, Any]:
        """The input schema with the marks of what is read as a `Decimal`."""
        return self._reader.schema

    def read(self, arguments: str) -> dict[str, Any]:
        """Return what the model gives, by name, without what the library fills in.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._reader.read(arguments)

    def bind(self, arguments: str, context: ToolContext) -> dict[str, Any]:
        """Return what to call the function with, by name.

        Parameters that the model left out and that have a default are not among it.

        Args:
            arguments: A JSON object as the model wrote it; blank means `{}`.
            context: Goes to the parameters that ask for it.

        Raises:
            ToolArgumentError: The arguments do not fit; message and details are for the model.
            ToolUsageError: The function wants the conversation's id and there is no conversation.
        """
        values = self._reader.read(arguments)
        for name in self._injected.contexts:
            values[name] = context
        for conversation in self._injected.conversations:
            self._inject_conversation(conversation, values, context.conversation_id)
        return values

    def prepare(
        self, function: Callable[..., T], arguments: str, context: ToolContext
    ) -> Callable[[], T]:
        """Return the call of *function* with what `bind` returns, ready to be made.

        Unlike `bind` alone, it also serves functions that take parameters by position only.
        """
        values = self.bind(arguments, context)
        if not self._positional:
            return functools.partial(function, **values)
        given = [each.name in values for each in self._positional]
        last = len(given) - given[::-1].index(True) if True in given else 0
        places = [values.pop(each.name, each.default) for each in self._positional[:last]]
        return functools.partial(function, *places, **values)

    def _inject_conversation(
        self, target: "ConversationParameter", values: dict[str, Any], conversation: str | None
    ) -> None:
        parameter = target.parameter
        if conversation is None and parameter.default is not MISSING:
            return
        if conversation is None and not parameter.admits_none:
            msg = (
                f"tool {self._reader.tool_name!r} needs the conversation's id for"
                f" {parameter.name!r}, but the request belongs to no conversation;"
                " give the request an id, or the parameter a default"
            )
            raise ToolUsageError(msg)
        try:
            values[parameter.name] = None if conversation is None else target.convert(conversation)
        except ValidationError as error:
            msg = (
                f"tool {self._reader.tool_name!r} takes the conversation's id as"
                f" {parameter.annotation!r} in {parameter.name!r}, and {conversation!r} is none;"
                " change the type or the id"
            )
            raise ToolUsageError(msg) from error


@dataclass(slots=True, eq=False)
class ConversationParameter:
    """A parameter for the conversation's id.

    Attributes:
        parameter: The parameter.
        convert: Returns an id as the declared type, or raises pydantic's `ValidationError`.
    """

    parameter: Parameter
    convert: Callable[[str], Any]

    @classmethod
    def of(cls, parameter: Parameter, place: str) -> Self:
        """Return *parameter* with the conversion to its type.

        Raises:
            ToolDefinitionError: No text can become a value of its type.
        """
        try:
            convert = TypeAdapter(parameter.annotation).validate_python
        except PYDANTIC_ERRORS as error:
            raise _no_id(parameter, place) from error
        try:
            convert("x")
        except ValidationError as error:
            kinds = [each["type"] for each in error.errors(include_url=False)]
            if all(kind.endswith("_type") or kind in _REFUSES_TEXT for kind in kinds):
                raise _no_id(parameter, place) from error
        except Exception:  # noqa: BLE001, S110 - a validator of the application met no real id
            pass
        return cls(parameter, convert)


_REFUSES_TEXT = {"is_instance_of", "is_subclass_of", "none_required", "sequence_str"}
"""Errors of pydantic for any text; the others of the kind end with `_type`."""


def _no_id(parameter: Parameter, place: str) -> ToolDefinitionError:
    msg = (
        f"parameter {parameter.name!r} of {place} gets the conversation's id, a text, which cannot"
        f" become a {parameter.annotation!r}; use str, int, UUID or the like"
    )
    return ToolDefinitionError(msg)


@dataclass(slots=True, eq=False)
class Injected:
    """The parameters that the library fills in: by name with the context, or with its id."""

    contexts: tuple[str, ...]
    conversations: tuple[ConversationParameter, ...]

    @classmethod
    def of(cls, parameters: Iterable[Parameter], place: str) -> Self:
        """Return those of *parameters* that the model never sees.

        Args:
            parameters: The parameters of a function.
            place: The function, for messages.

        Raises:
            ToolDefinitionError: One of them has a type that the library has no value for.
        """
        parameters = tuple(parameters)
        return cls(
            tuple(each.name for each in parameters if each.role == "context"),
            tuple(
                ConversationParameter.of(each, place)
                for each in parameters
                if each.role == "memory_id"
            ),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them."""
        return (*self.contexts, *(each.parameter.name for each in self.conversations))


def compensation_name(tool: str) -> str:
    """Return the name of the compensation of *tool*, for errors and idempotency keys."""
    return f"the compensation of {tool}"


def wants_execution(compensation: Callable[..., Any]) -> bool:
    """Return whether a `ToolExecution` is the only parameter of *compensation*."""
    parameters = describe_callable(compensation).parameters
    return [each.annotation for each in parameters] == [ToolExecution]
