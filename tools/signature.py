"""What a tool's function takes, as it is once known: reads what the model wrote, and binds it."""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, Self, TypeVar

from chatclient.errors import ToolUsageError
from chatclient.tool import ToolContext
from chatclient.tools.binding import ArgumentReader
from chatclient.tools.parameters import MISSING, Parameter
from chatclient.values import FrozenDict

T = TypeVar("T")


@dataclass(frozen=True, slots=True, eq=False)
class ToolSignature:
    """What a tool takes and whether it gives something back.

    Attributes:
        input_schema: The JSON Schema (2020-12) of the arguments, an object.
        description: What the docstring says the tool is for; empty without one.
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
        values[parameter.name] = conversation


@dataclass(frozen=True, slots=True)
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
