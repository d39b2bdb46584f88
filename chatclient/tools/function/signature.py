"""The signature of a tool's function: reads and validates arguments, and binds them to it."""

import functools
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from pydantic import PydanticSchemaGenerationError, TypeAdapter, ValidationError

from chatclient._internal.frozen import FrozenDict
from chatclient.chat.tool import ToolContext
from chatclient.errors import ToolUsageError
from chatclient.tools.function.binding import ArgumentReader
from chatclient.tools.function.parameters import MISSING, Parameter, callee_of, unannotated
from chatclient.tools.tool_execution import ToolExecution

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
        for parameter in self._injected.conversations:
            self._inject_conversation(parameter, values, context.conversation_id)
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
        self, parameter: Parameter, values: dict[str, Any], conversation: str | None
    ) -> None:
        if conversation is None and parameter.default is not MISSING:
            return
        if conversation is None and not parameter.admits_none:
            msg = (
                f"tool {self._reader.tool_name!r} needs the conversation's id for"
                f" {parameter.name!r}, but the request belongs to no conversation;"
                " give the request an id, or the parameter a default"
            )
            raise ToolUsageError(msg)
        values[parameter.name] = (
            None if conversation is None else self._id_for(parameter, conversation)
        )

    def _id_for(self, parameter: Parameter, conversation: str) -> Any:
        """Return the id as the type that *parameter* declares.

        Raises:
            ToolUsageError: It is no such value.
        """
        kind, _ = unannotated(parameter.annotation)
        if kind in (str, Any, MISSING):
            return conversation
        try:
            return _adapter(kind).validate_python(conversation)
        except (ValidationError, PydanticSchemaGenerationError) as error:
            msg = (
                f"tool {self._reader.tool_name!r} takes the conversation's id as {kind!r} in"
                f" {parameter.name!r}, and {conversation!r} is none; change the type or the id"
            )
            raise ToolUsageError(msg) from error


@functools.lru_cache(maxsize=256)
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


@dataclass(slots=True, eq=False)
class Injected:
    """The parameters that the library fills in: by name with the context, or with its id."""

    contexts: tuple[str, ...]
    conversations: tuple[Parameter, ...]

    @classmethod
    def of(cls, parameters: Iterable[Parameter]) -> Self:
        """Return those of *parameters* that the model never sees."""
        parameters = tuple(parameters)
        return cls(
            tuple(each.name for each in parameters if each.role == "context"),
            tuple(each for each in parameters if each.role == "memory_id"),
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names of all of them."""
        return (*self.contexts, *(each.name for each in self.conversations))


def compensation_name(tool: str) -> str:
    """Return the name of the compensation of *tool*, for errors and idempotency keys."""
    return f"the compensation of {tool}"


def wants_execution(compensation: Callable[..., Any]) -> bool:
    """Return whether a `ToolExecution` is the only parameter of *compensation*."""
    parameters = callee_of(compensation).parameters
    return [each.annotation for each in parameters] == [ToolExecution]
