"""A tool made of a Python callable."""

import functools
import inspect
from collections.abc import Callable, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from chatclient.driving import drive
from chatclient.errors import ToolDefinitionError, ToolResultError
from chatclient.threads import is_async
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools.compensation import check_compensation
from chatclient.tools.conversion import ResultConverter, check_converter, to_tool_result
from chatclient.tools.decorator import ToolMark, mark_of
from chatclient.tools.running import run_code
from chatclient.tools.schema import (
    ToolSignature,
    check_tool_name,
    describe_name,
    signature_of,
    signature_of_model,
    signature_of_schema,
    strict_form,
)
from chatclient.values import EMPTY, deep_frozen

_NO_MARK = ToolMark()

# Signature and schema of a function, computed once however often it is offered. Weak, so that
# functions made on the fly can go.
_signatures: "WeakKeyDictionary[Callable[..., Any], tuple[_Key, ToolSignature]]" = (
    WeakKeyDictionary()
)
_Key = tuple[str, bool]  # the tool's name, and whether the function is a method of something


class FunctionToolCallback:
    """A tool that calls a Python callable.

    Args:
        function: What to call: a function, a bound method, a static method, a coroutine function,
            a callable object.
        name: What the model calls it; default: what `@tool` says, else the callable's name.
        description: What it is for; default: what `@tool` says, else the docstring's summary, else
            the name in words.
        input_type: A pydantic model (or dataclass, or any other type) that the whole input is
            validated as; the callable gets it as its one argument.
        input_schema: A JSON Schema for a callable that takes keyword arguments as they come.
        metadata: How the tool is to be run.
        result_converter: Makes the result a text for the model.
        strict: Whether the provider enforces the schema.

    Raises:
        ToolDefinitionError: The callable cannot be a tool; the error names it and says why.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        *,
        name: str | None = None,
        description: str | None = None,
        input_type: Any = None,
        input_schema: Mapping[str, Any] | None = None,
        metadata: ToolMetadata | None = None,
        result_converter: ResultConverter | None = None,
        strict: bool | None = None,
    ) -> None:
        mark = mark_of(function) or _NO_MARK
        self.name = name = name or mark.name or _own_name(function)
        check_tool_name(name)
        self._signature = signature = _signature(function, name, input_type, input_schema)
        self.function = function
        self._is_async = is_async(function)
        self._origin = f"tool {name!r}"
        self.metadata = metadata or mark.metadata
        if self.metadata.compensation is not None:
            check_compensation(name, signature.parameters, self.metadata.compensation)
        if result_converter is not None and result_converter is not mark.result_converter:
            check_converter(result_converter)
        self.result_converter = result_converter or mark.result_converter
        strict = mark.strict if strict is None else strict
        self.definition = ToolDefinition(
            name,
            description or mark.description or signature.description or describe_name(name),
            _strict(name, signature) if strict else signature.input_schema,
            strict,
        )

    @property
    def own_schema(self) -> Mapping[str, Any]:
        """The JSON Schema of its arguments before it took the form that providers can enforce."""
        return self._signature.input_schema

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Run the tool; see `ToolCallback.invoke`."""
        call = self._signature.prepare(self.function, arguments, context)
        return await run_code(self.name, call, self._told, context, is_async=self._is_async)

    def _told(self, value: Any) -> ToolResult:
        """Return what the model is told when the tool has returned *value*."""
        if self.result_converter is not None:
            return self._converted(self.result_converter(value), value)
        return to_tool_result(
            value, returns_nothing=self._signature.returns_nothing, origin=self._origin
        )

    def _converted(self, converted: object, value: Any) -> ToolResult:
        if isinstance(converted, ToolResult):
            return converted
        if isinstance(converted, str):
            return ToolResult(converted, value=value)
        msg = f"the result converter of tool {self.name!r} returned {converted!r}, not a text"
        raise ToolResultError(msg)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return what the model gives, by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._signature.read(arguments)

    def call(self, arguments: str = "{}", tool_context: Mapping[str, Any] = EMPTY) -> str:
        """Run the tool outside of any conversation and return what the model would see."""
        return drive(self.invoke(arguments, ToolContext(tool_context))).text

    def is_same(self, other: object) -> bool:
        """Return whether *other* is the same tool: made of the same callable, in the same way."""
        if not isinstance(other, FunctionToolCallback):
            return False
        method = inspect.ismethod(self.function) and self.function == other.function
        return (
            (method or self.function is other.function)
            and self.definition == other.definition
            and self.metadata == other.metadata
            and self.result_converter is other.result_converter
        )

    def __repr__(self) -> str:
        return f"FunctionToolCallback({self.definition.name!r})"


def _strict(name: str, signature: ToolSignature) -> Mapping[str, Any]:
    """Return the form of a schema that providers can enforce."""
    form = strict_form(signature.input_schema)
    if form is None:
        msg = f"tool {name!r} has arguments that no provider can enforce; leave strict out"
        raise ToolDefinitionError(msg)
    frozen_form: Mapping[str, Any] = deep_frozen(form)
    return frozen_form


def _own_name(function: Callable[..., Any]) -> str:
    while isinstance(function, functools.partial):
        function = function.func
    name: str = getattr(function, "__name__", type(function).__name__)
    if name == "<lambda>":
        msg = "a lambda has no name a model could call; pass name= to FunctionToolCallback"
        raise ToolDefinitionError(msg)
    return name


def _signature(
    function: Callable[..., Any],
    name: str,
    input_type: Any,
    input_schema: Mapping[str, Any] | None,
) -> ToolSignature:
    if input_schema is not None:
        return signature_of_schema(input_schema, function, name=name)
    if input_type is not None:
        return signature_of_model(input_type, function, name=name)
    # All methods of one function share its signature: `self` is no parameter of the tool.
    owner = getattr(function, "__func__", function)
    if not inspect.isfunction(owner):
        return signature_of(function, name=name)
    key = (name, owner is not function)
    known = _signatures.get(owner)
    if known is None or known[0] != key:
        known = _signatures[owner] = (key, signature_of(function, name=name))
    return known[1]
