"""Tools with additional arguments that go to the application instead of the tool."""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields, is_dataclass, replace
from itertools import count
from typing import Any, Generic, TypeVar, get_origin, overload

from pydantic import TypeAdapter

from chatclient._internal.checks import check_callable
from chatclient._internal.frozen import deep_frozen
from chatclient._internal.json import dumps_exact
from chatclient._internal.json_schema import strict_form
from chatclient._internal.logging import get_logger
from chatclient.chat.pending_turn import ApprovalRequired
from chatclient.chat.tool import (
    ToolCallback,
    ToolCallbackProvider,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolRequest,
    ToolResult,
)
from chatclient.errors import ChatClientError, ToolDefinitionError
from chatclient.runtime.threads import is_async
from chatclient.tools.function.adapters import reason, schema_of
from chatclient.tools.function.argument_repair import public_schema
from chatclient.tools.function.parameters import PYDANTIC_ERRORS
from chatclient.tools.function.signature import (
    ArgumentReader,
    object_in,
    own_schema,
    read_arguments,
)
from chatclient.tools.sources import (
    ToolSource,
    is_provider,
    offered_by,
    resolve_sources,
    tool_callbacks,
)

log = get_logger(__name__)

M = TypeVar("M")


@dataclass(frozen=True, slots=True)
class AugmentedArguments(Generic[M]):
    """The arguments of a call to an augmented tool.

    Attributes:
        definition: The definition with the additional arguments.
        arguments: All arguments that the model wrote, as JSON.
        extra: The additional arguments.
    """

    definition: ToolDefinition
    arguments: str
    extra: M


_EXTRA = "extra"

Consumer = Callable[[AugmentedArguments[M]], Any]
"""Takes the additional arguments before the tool runs; plain or asynchronous.

An error of this library that it raises, such as a `ToolError`, refuses the call. Any other error is
logged, and the tool runs."""


class AugmentedToolCallback(Generic[M]):
    """A tool with additional arguments, which go to a consumer and not to the tool.

    Useful for a model's reasons, its confidence, or a status line for the user. The metadata of the
    tool does not change.

    Args:
        delegate: The tool.
        arguments: A pydantic model, dataclass or `TypedDict` of the additional arguments.
        consumer: Called with them before the tool runs.
        keep: Whether the tool gets them, too.

    Raises:
        ToolDefinitionError: *arguments* is no such class or has no fields, or the tool has an
            argument of that name, or is strict and no provider can enforce the fields.
        WrongTypeError: The consumer is not callable.
    """

    def __init__(
        self,
        delegate: ToolCallback,
        arguments: type[M],
        consumer: Consumer[M] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        if consumer is not None:
            check_callable("the consumer of additional arguments", consumer, takes=("event",))
        self.delegate = delegate
        self._consumer = consumer
        self._keep = keep
        adapter, schema = _described(arguments)
        self.definition = _augmented(delegate.definition, arguments, public_schema(schema))
        own = delegate.definition.input_schema.get("properties", {})
        self._names = frozenset(self.definition.input_schema["properties"]) - frozenset(own)
        validate = adapter.validator.validate_json
        self._reader = ArgumentReader(
            self.definition.name, lambda text: {_EXTRA: validate(text)}, schema
        )

    @property
    def metadata(self) -> ToolMetadata:
        """How the tool is run."""
        return self.delegate.metadata

    @property
    def own_schema(self) -> Mapping[str, Any]:
        """The schema of the tool's own arguments; see `FunctionToolCallback.own_schema`."""
        return own_schema(self.delegate)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Call the consumer with the additional arguments, then run the tool."""
        given = object_in(arguments, self.definition.name)
        extra = self._extra(given)
        if self._consumer is not None:
            event = AugmentedArguments(self.definition, arguments, extra)
            try:
                await context.runtime.invoke(self._consumer, event)
            except (ChatClientError, ApprovalRequired):
                raise  # the consumer refuses the call
            except Exception:
                log.warning(
                    "consumer of additional arguments failed",
                    tool=self.definition.name,
                    exc_info=True,
                )
        return await self.delegate.invoke(self._tool_arguments(given), context)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return the arguments of the tool by name, and the additional arguments.

        Raises:
            ToolArgumentError: They do not fit.
        """
        given = object_in(arguments, self.definition.name)
        extra = self._extra(given)
        return {**_by_name(extra), **read_arguments(self.delegate, self._tool_arguments(given))}

    def _tool_arguments(self, given: Mapping[str, Any]) -> str:
        """Return the arguments for the tool itself."""
        if not self._keep:
            given = {key: value for key, value in given.items() if key not in self._names}
        return dumps_exact(given)

    def _extra(self, given: Mapping[str, Any]) -> M:
        values = {key: value for key, value in given.items() if key in self._names}
        extra: M = self._reader.read(dumps_exact(values))[_EXTRA]
        return extra


def _described(arguments: type[M]) -> tuple[TypeAdapter[M], dict[str, Any]]:
    """Return the type adapter of the additional arguments, and their schema."""
    requirement = "additional arguments must be a pydantic model, a dataclass or a TypedDict"
    if not isinstance(
        get_origin(arguments) or arguments, type
    ):  # such as an instance of such a class
        msg = f"{requirement}, not {arguments!r}"
        raise ToolDefinitionError(msg)
    try:
        adapter = TypeAdapter(arguments)
        return adapter, schema_of(adapter)
    except PYDANTIC_ERRORS as error:
        msg = f"{requirement}, not {arguments!r}: {reason(error)}"
        raise ToolDefinitionError(msg) from error


def _by_name(extra: Any) -> dict[str, Any]:
    if is_dataclass(extra):
        return {each.name: getattr(extra, each.name) for each in fields(extra)}
    return dict(extra)  # pydantic models and mappings


def _augmented(
    definition: ToolDefinition, arguments: type[Any], added: dict[str, Any]
) -> ToolDefinition:
    schema = dict(definition.input_schema)
    renamed = _renamed(added, schema.get("$defs", {}))
    extra: dict[str, Any] = renamed.get("properties", {})
    properties: Mapping[str, Any] = schema.get("properties", {})
    if not extra:
        msg = f"{arguments.__name__} has no fields to add to tool {definition.name!r}"
        raise ToolDefinitionError(msg)
    if clash := sorted(set(properties) & set(extra)):
        msg = f"tool {definition.name!r} has arguments {clash} of its own; rename the added ones"
        raise ToolDefinitionError(msg)
    schema["properties"] = {**properties, **extra}
    schema["required"] = [*schema.get("required", ()), *renamed.get("required", ())]
    if definitions := {**schema.get("$defs", {}), **renamed.get("$defs", {})}:
        schema["$defs"] = definitions
    complete = strict_form(schema) if definition.strict else schema
    if complete is None:
        msg = f"{arguments.__name__} has fields that no provider can enforce for a strict tool"
        raise ToolDefinitionError(msg)
    return replace(definition, input_schema=deep_frozen(complete))


def _renamed(schema: dict[str, Any], taken: Mapping[str, Any]) -> dict[str, Any]:
    """Return *schema* with definitions renamed whose names are *taken* by different ones."""
    definitions: dict[str, Any] = schema.get("$defs", {})
    names: dict[str, str] = {}
    for name, meaning in definitions.items():
        if name in taken and taken[name] != meaning:
            free = (f"{name}_{n}" for n in count(2))
            names[name] = next(new for new in free if new not in taken and new not in definitions)
    if not names:
        return schema
    renamed: dict[str, Any] = _with_refs(schema, {_REF + a: _REF + b for a, b in names.items()})
    renamed["$defs"] = {names.get(key, key): item for key, item in renamed["$defs"].items()}
    return renamed


_REF = "#/$defs/"


def _with_refs(schema: Any, refs: Mapping[str, str]) -> Any:
    if isinstance(schema, list):
        return [_with_refs(item, refs) for item in schema]
    if not isinstance(schema, dict):
        return schema
    changed = {key: _with_refs(item, refs) for key, item in schema.items()}
    if isinstance(ref := changed.get("$ref"), str):
        changed["$ref"] = refs.get(ref, ref)
    return changed


class AugmentedToolProvider(Generic[M]):
    """A provider whose tools get additional arguments; see `AugmentedToolCallback`.

    It asks the other provider for its tools in each request.

    Args:
        provider: The provider of the tools.
        arguments: A pydantic model, dataclass or `TypedDict` of the additional arguments.
        consumer: Called with them before a tool runs.
        keep: Whether the tools get them, too.

    Raises:
        ToolDefinitionError: *arguments* is no such class.
    """

    def __init__(
        self,
        provider: ToolCallbackProvider,
        arguments: type[M],
        consumer: Consumer[M] | None = None,
        *,
        keep: bool = False,
    ) -> None:
        _described(arguments)
        self.provider = provider
        self._augment = functools.partial(
            AugmentedToolCallback, arguments=arguments, consumer=consumer, keep=keep
        )
        self._last: list[AugmentedToolCallback[M]] = []

    def __getattr__(self, name: str) -> Any:
        """Return an optional attribute of the provider, such as `hidden_tools`."""
        if name == "provider":  # not set yet, while an object is copied
            raise AttributeError(name)
        return getattr(self.provider, name)

    @property
    def tools_to_come(self) -> tuple[AugmentedToolCallback[M], ...]:
        """The tools that the provider offers later."""
        return tuple(map(self._augment, getattr(self.provider, "tools_to_come", ())))

    @property
    def tool_callbacks(self) -> Callable[..., Any]:
        """Return the tools to offer, with the additional arguments."""
        offer = self.provider.tool_callbacks

        @functools.wraps(offer)
        def offer_augmented(*request: ToolRequest) -> list[AugmentedToolCallback[M]]:
            return self._augmented_tools(offer(*request))

        @functools.wraps(offer)
        async def offer_augmented_later(*request: ToolRequest) -> list[AugmentedToolCallback[M]]:
            return self._augmented_tools(await offer(*request))

        return offer_augmented_later if is_async(offer) else offer_augmented

    def _augmented_tools(self, offered: Any) -> list[AugmentedToolCallback[M]]:
        known = {id(each.delegate): each for each in self._last}  # most providers keep their tools
        callbacks = offered_by(self.provider, offered)
        self._last = [known.get(id(each)) or self._augment(each) for each in callbacks]
        return self._last


@overload
def augment(  # type: ignore[overload-overlap]  # a provider is also an object
    *sources: ToolCallbackProvider,
    arguments: type[M],
    consumer: Consumer[M] | None = None,
    keep: bool = False,
) -> list[AugmentedToolProvider[M]]: ...


@overload
def augment(
    *sources: ToolSource,
    arguments: type[M],
    consumer: Consumer[M] | None = None,
    keep: bool = False,
) -> list[AugmentedToolCallback[M]]: ...


def augment(
    *sources: ToolSource,
    arguments: type[M],
    consumer: Consumer[M] | None = None,
    keep: bool = False,
) -> list[Any]:
    """Return the tools in *sources* with additional arguments; see `AugmentedToolCallback`.

    For a provider among them, the list contains an `AugmentedToolProvider`.

    Raises:
        ToolDefinitionError: A source contains no tool, or *arguments* cannot be added to one.
        DuplicateToolError: Two tools have the same name.
        WrongTypeError: The consumer is not callable.
    """
    if consumer is not None:
        check_callable("the consumer of additional arguments", consumer, takes=("event",))
    found = resolve_sources(sources)
    tool_callbacks(*(each for each in found if not is_provider(each)))  # checks the tools
    return [
        AugmentedToolProvider(each, arguments, consumer, keep=keep)
        if is_provider(each)
        else AugmentedToolCallback(each, arguments, consumer, keep=keep)
        for each in found
        if not isinstance(each, str)
    ]
