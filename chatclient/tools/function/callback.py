"""`FunctionToolCallback`: a tool that calls a Python function."""

import functools
import inspect
import time
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias
from weakref import WeakKeyDictionary

from chatclient._internal.checks import check_type
from chatclient._internal.frozen import EMPTY, deep_frozen
from chatclient._internal.roles import role_of
from chatclient.chat.pending_turn import ApprovalRequired, refuse_to_suspend
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import ToolDefinitionError, ToolResultError
from chatclient.runtime.blocking import drive
from chatclient.runtime.threads import is_awaitable
from chatclient.tools.function.decorator import ToolMark, mark_of
from chatclient.tools.function.parameters import owner_of
from chatclient.tools.function.result import (
    ResultConverter,
    check_converter,
    collector,
    to_tool_result,
)
from chatclient.tools.function.schema import (
    ToolSignature,
    check_compensation,
    check_tool_name,
    describe_name,
    signature_of,
    signature_of_model,
    signature_of_schema,
    strict_form,
)

_NO_MARK = ToolMark()

# Cached signatures and schemas by function and by the class of a method (or the function again).
# Weak, so that temporary functions and classes can be collected.
_signatures: "WeakKeyDictionary[Callable[..., Any], _ByOwner]" = WeakKeyDictionary()
_ByOwner: TypeAlias = "WeakKeyDictionary[Any, tuple[str, ToolSignature]]"  # with the tool's name


class FunctionToolCallback:
    """A tool that calls a Python callable.

    Args:
        function: A function, bound method, static method, coroutine function or callable object.
        name: The name for models; default: that of `@tool`, else the name of the callable.
        description: The description for models; default: that of `@tool`, else the summary of the
            docstring, else the name in words.
        input_type: A pydantic model (or dataclass, or any other type) for the complete input; the
            callable gets the validated value as its only argument.
        input_schema: A JSON Schema for a callable that takes keyword arguments unvalidated.
        metadata: How the tool is run.
        result_converter: Converts the returned value to a text for the model.
        strict: Whether the provider enforces the schema.
        provider_options: More fields for single providers; default: those of `@tool`.

    Raises:
        ToolDefinitionError: The callable cannot be a tool; the error contains the reason.
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
        provider_options: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        if role := role_of(function):
            raise ToolDefinitionError(f"{function!r} is not a tool; {role}")
        mark = mark_of(function) or _NO_MARK
        self.name = name = name or mark.name or _own_name(function)
        check_tool_name(name)
        self._signature = signature = _signature(function, name, input_type, input_schema)
        self.function = function
        self.metadata = metadata or mark.metadata
        if self.metadata.compensation is not None:
            check_compensation(name, signature.parameters, self.metadata.compensation)
        if result_converter is not None and result_converter is not mark.result_converter:
            check_converter(result_converter)
        self.result_converter = converter = result_converter or mark.result_converter
        self._to_result = functools.partial(
            to_tool_result, returns_nothing=signature.returns_nothing, origin=f"tool {name!r}"
        )
        if converter is not None:
            self._to_result = functools.partial(_converted, converter, name)
        strict = mark.strict if strict is None else strict
        self.definition = ToolDefinition(
            name,
            description or mark.description or signature.description or describe_name(name),
            _strict(name, signature) if strict else signature.input_schema,
            strict,
            provider_options=mark.provider_options
            if provider_options is None
            else provider_options,
        )

    @property
    def own_schema(self) -> Mapping[str, Any]:
        """The JSON Schema of the arguments before its conversion for strict providers."""
        return self._signature.own_schema

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Run the tool; see `ToolCallback.invoke`."""
        call = self._signature.prepare(self.function, arguments, context)
        converts = self.result_converter is not None
        return await call_function(self.name, call, self._to_result, context, converts=converts)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return the arguments of the model by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._signature.read(arguments)

    def call(self, arguments: str = "{}", tool_context: Mapping[str, Any] = EMPTY) -> str:
        """Run the tool outside of a conversation and return the text for the model.

        Raises:
            WrongTypeError: *arguments* is not a text.
        """
        check_type("the arguments of a tool call", arguments, str, "write json.dumps(...)")
        return drive(self.invoke(arguments, ToolContext(tool_context))).text

    def is_same(self, other: object) -> bool:
        """Return whether *other* has the same callable and the same settings."""
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
    """Return the schema in the form that strict providers require."""
    schema = strict_form(signature.input_schema)
    if schema is None:
        msg = f"tool {name!r} has arguments that no provider can enforce; leave strict out"
        raise ToolDefinitionError(msg)
    frozen_schema: Mapping[str, Any] = deep_frozen(schema)
    return frozen_schema


def _converted(converter: ResultConverter, tool_name: str, value: Any) -> ToolResult:
    """Return the result that *converter* makes of the *value* that a tool returned."""
    converted: object = converter(value)
    if isinstance(converted, ToolResult):
        return converted
    if isinstance(converted, str):
        return ToolResult(converted, value=value)
    msg = f"the result converter of tool {tool_name!r} returned {converted!r}, not a text"
    raise ToolResultError(msg)


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
    # Shared by the methods of all objects of a class, because `self` is no parameter of the tool.
    plain = getattr(function, "__func__", function)
    if not inspect.isfunction(plain):
        return signature_of(function, name=name)
    by_owner = _signatures.get(plain)
    if by_owner is None:
        by_owner = _signatures[plain] = WeakKeyDictionary()
    owner = owner_of(function) or plain
    cached = by_owner.get(owner)
    if cached is None or cached[0] != name:
        cached = by_owner[owner] = (name, signature_of(function, name=name))
    return cached[1]


async def call_function(
    name: str,
    call: Callable[[], Any],
    to_result: Callable[[Any], ToolResult],
    context: ToolContext,
    *,
    converts: bool = False,
) -> ToolResult:
    """Run *call* and return its result for the model.

    If the function has finished but the tool fails all the same, `context.result` is set.

    Args:
        name: The name of the tool.
        call: Calls the application's function, plain or asynchronous.
        to_result: Converts what the function returned.
        context: The tool context.
        converts: Whether *to_result* calls a function of the application, which may block.
    """

    def keep_result(value: Any) -> None:
        if not is_awaitable(value):
            try:
                context.result = to_result(value)
            except Exception:  # noqa: BLE001 - no caller waits for the result any more
                context.result = ToolResult("", value=value)

    end = None if context.timeout is None else time.monotonic() + context.timeout
    invoke = context.runtime.invoke
    try:
        value = await invoke(call, timeout=context.timeout, on_late_result=keep_result)
        if (collect := collector(value)) is not None:
            timeout = None if end is None else max(0.0, end - time.monotonic())
            value = await invoke(collect, value, timeout=timeout, on_late_result=keep_result)
    except ApprovalRequired as suspension:
        refuse_to_suspend(name, suspension)
        raise
    try:
        return await invoke(to_result, value) if converts else to_result(value)
    except Exception:
        context.result = ToolResult("", value=value)  # the function has finished all the same
        raise
