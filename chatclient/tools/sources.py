"""Finds the tools in the arguments of `.tools(...)`, and asks tool providers for theirs."""

import functools
import inspect
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import ModuleType
from typing import Any
from weakref import WeakKeyDictionary

from typing_extensions import TypeIs

from chatclient._internal.checks import names, signature_error, wants_argument
from chatclient._internal.roles import role_of
from chatclient.chat.tool import (
    ToolCallback,
    ToolCallbackProvider,
    ToolDefinition,
    ToolMetadata,
    ToolRequest,
)
from chatclient.chat.tool_definition import check_tool_name
from chatclient.errors import ToolDefinitionError, WrongTypeError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, Runtime
from chatclient.tools.duplicates import without_duplicates
from chatclient.tools.function.callback import FunctionToolCallback
from chatclient.tools.function.decorator import ToolMark, is_marked, mark_of

ToolSource = Callable[..., Any] | ToolCallback | ToolCallbackProvider | str | Iterable[Any] | object
"""Functions, decorated or not; objects and modules with decorated functions; tool callbacks and
their providers; names for the client's resolver; and collections of all these."""

Resolved = ToolCallback | ToolCallbackProvider | str

# Hints for objects that are no sources, by type name, because not all types are imported here.
_HINTS = {
    "ToolDefinition": (
        "; say what runs it: DataToolCallback(definition, executor), or that it is done elsewhere:"
        " ExternalTool(definition)"
    ),
    "dict": "; a tool made of data is a DataToolCallback(ToolDefinition(...), executor)",
}

# The attributes of a class that are tools, cached by class.
_tools_of_class: "WeakKeyDictionary[type, tuple[tuple[str, ToolMark], ...]]" = WeakKeyDictionary()


def tool_callbacks(*sources: ToolSource) -> list[ToolCallback]:
    """Return the tools in *sources*, in their order; those of one source as defined.

    Raises:
        ToolDefinitionError: A source contains no tool, or a tool cannot be built.
        DuplicateToolError: Two tools have the same name.
    """
    callbacks: list[ToolCallback] = []
    for source in resolve_sources(sources):
        if isinstance(source, str):
            msg = f"{source!r} is a name; only a client with a resolver can find a tool by name"
            raise ToolDefinitionError(msg)
        if isinstance(source, ToolCallback):
            callbacks.append(source)
        else:
            if error := signature_error(source.tool_callbacks, 0):
                msg = f"{source!r} offers tools for a request only; pass it to .tools(...)"
                raise ToolDefinitionError(msg) from error
            callbacks.extend(offered_by(source, drive(BLOCKING.invoke(source.tool_callbacks))))
    return list(without_duplicates(callbacks, "error"))


def offered_by(provider: ToolCallbackProvider, offered: Any) -> list[ToolCallback]:
    """Return the tools that *provider* has *offered* as callbacks; None means no tools.

    Raises:
        ToolDefinitionError: An item is no tool.
    """
    if offered is None:
        return []
    try:
        callbacks: list[Any] = list(offered)
        # `isinstance` with a protocol takes 12 microseconds, and there may be a thousand tools.
        if all(hasattr(each, "definition") for each in callbacks):
            return callbacks
        return [found for each in callbacks for found in tool_callbacks(each)]
    except (ToolDefinitionError, TypeError) as error:
        msg = f"{provider!r} must return an iterable of tools: {error}"
        raise ToolDefinitionError(msg) from error


def resolve_sources(sources: Iterable[ToolSource]) -> list[Resolved]:
    """Return *sources* as callbacks, providers (not called yet) and names."""
    resolved: list[Resolved] = []
    for source in sources:
        resolved.extend(_resolve(source))
    return resolved


def _resolve(source: Any) -> Sequence[Resolved]:
    if isinstance(source, str):
        return (source,)
    if isinstance(source, ToolCallback):
        return (_checked(_with_fallback(source)),)
    if isinstance(source, type):
        return _tools_of_attributes(source, _marked_attributes(source))
    if isinstance(source, ToolCallbackProvider) and callable(source.tool_callbacks):
        return (source,)
    if inspect.isroutine(source):
        return (FunctionToolCallback(source),)
    if isinstance(source, ModuleType):
        functions = {id(function): function for function in _defined_tools(source)}
        callbacks = [FunctionToolCallback(function) for function in functions.values()]
        if not callbacks:
            msg = f"module {source.__name__} has no function with @tool"
            raise ToolDefinitionError(msg)
        return callbacks
    if marked := _marked_attributes(type(source)):
        return _tools_of_attributes(source, marked)
    if callable(source):
        return (FunctionToolCallback(source),)
    if isinstance(source, Iterable) and not isinstance(source, Mapping):
        return resolve_sources(source)
    kind, role = type(source).__name__, role_of(source)
    hint = _HINTS.get(kind) or (f"; {role}" if role else _missing_hint(source))
    msg = (
        f"{source!r} is not a source of tools: it is neither a function nor a ToolCallback, and "
        f"{kind} has no method with @tool{hint}"
    )
    raise ToolDefinitionError(msg)


def _with_fallback(tool: ToolCallback) -> ToolCallback:
    """Return *tool*; a server tool with its fallback as a callback.

    Raises:
        ToolDefinitionError: The fallback is not one tool.
    """
    if getattr(tool, "fallback", None) is None:
        return tool
    from chatclient.chat.server_tools import ServerTool  # noqa: PLC0415 - seldom used

    if not isinstance(tool, ServerTool) or tool.callback is not None:
        return tool
    found = _resolve(tool.fallback)
    if len(found) != 1 or not isinstance(found[0], ToolCallback):
        msg = f"the fallback of {tool!r} must be one tool: a function or a ToolCallback"
        raise ToolDefinitionError(msg)
    return replace(tool, fallback=found[0])


def _checked(callback: ToolCallback) -> ToolCallback:
    """Return *callback*, which may be custom code, after checking its attributes."""
    for name, kind in (("definition", ToolDefinition), ("metadata", ToolMetadata)):
        value = getattr(callback, name)
        if not isinstance(value, kind):
            msg = f"{callback!r} must have a {kind.__name__} as its {name}, not {value!r}"
            raise ToolDefinitionError(msg)
    check_tool_name(callback.definition.name)
    return callback


def _missing_hint(source: object) -> str:
    """Return a hint on the missing attributes of an incomplete `ToolCallback`."""
    parts = ("definition", "metadata", "invoke")
    missing = [name for name in parts if not hasattr(source, name)]
    return f"; a ToolCallback has {' and '.join(missing)}, too" if len(missing) < len(parts) else ""


def _marked_attributes(kind: type) -> tuple[tuple[str, ToolMark], ...]:
    cached = _tools_of_class.get(kind)
    if cached is None:
        found: dict[str, ToolMark] = {}
        for cls in reversed(kind.__mro__):
            seen: set[int] = set()  # an alias of a function is no second tool
            for name, attribute in vars(cls).items():
                if (mark := mark_of(attribute)) and id(attribute) not in seen:
                    found[name] = mark
                    seen.add(id(attribute))
                elif attribute is None:
                    found.pop(name, None)
        cached = _tools_of_class[kind] = tuple(found.items())
    return cached


def _tools_of_attributes(
    source: Any, marked: Iterable[tuple[str, ToolMark]]
) -> list[FunctionToolCallback]:
    callbacks: list[FunctionToolCallback] = []
    for attribute, mark in marked:
        function = getattr(source, attribute)
        if isinstance(source, type) and inspect.isfunction(
            inspect.getattr_static(source, attribute)
        ):
            msg = f"{source.__name__}.{attribute} is a method; pass {source.__name__}() instead"
            raise ToolDefinitionError(msg)
        callbacks.append(
            FunctionToolCallback(
                function,
                name=mark.name or _own_name(source, attribute),
                description=mark.description,
                metadata=_bound(mark.metadata, source),
                result_converter=mark.result_converter,
                strict=mark.strict,
            )
        )
    if not callbacks:
        name = source.__name__
        call = f"FunctionToolCallback(function, input_type={name})"
        is_input = hasattr(
            source, "model_json_schema"
        )  # other libraries accept such a class as a tool
        hint = f"; as what a function takes it goes into {call}" if is_input else ""
        raise ToolDefinitionError(f"{name} has no method with @tool{hint}")
    return callbacks


def _own_name(source: Any, attribute: str) -> str | None:
    """Return *attribute* if the name of its function differs from it."""
    defined = inspect.getattr_static(source, attribute)
    return attribute if isinstance(defined, functools.partialmethod) else None


def _bound(metadata: ToolMetadata, source: Any) -> ToolMetadata:
    """Return *metadata* with the named compensation replaced by the method of *source*."""
    name = metadata.compensation
    if not isinstance(name, str):
        return metadata
    return replace(metadata, compensation=getattr(source, name, name))


def has_tools(module: ModuleType) -> bool:
    """Return whether *module* itself defines functions with `@tool`."""
    return next(_defined_tools(module), None) is not None


def _defined_tools(module: ModuleType) -> Iterator[Callable[..., Any]]:
    """Yield the tools of *module*, also those that another decorator made an object."""
    for value in vars(module).values():
        if callable(value) and is_marked(value) and not inspect.ismethod(value):
            function = inspect.unwrap(value)
            # Other objects have no module.
            if not inspect.isfunction(function) or function.__module__ == module.__name__:
                yield value


Offers = dict[int, tuple[list[ToolCallback], frozenset[str]]]
"""The tools and the hidden names that providers returned, by the identity of the provider."""


def is_provider(source: Resolved) -> TypeIs[ToolCallbackProvider]:
    """Return whether *source* is a provider of tools and not a tool."""
    # `isinstance` with a protocol takes 12 microseconds, and there may be a thousand tools.
    return hasattr(source, "tool_callbacks")


async def offered_tools(
    sources: Iterable[ToolCallback | ToolCallbackProvider],
    request: ToolRequest,
    runtime: Runtime,
    offers: Offers,
) -> list[ToolCallback]:
    """Return the tools of *sources*, in their order; providers are called last.

    The results of providers are stored in *offers*. A provider with a stored result is not called
    again unless it is dynamic.

    Raises:
        ToolDefinitionError: A provider returned something that is no tool.
    """
    groups: list[list[ToolCallback]] = []
    providers: list[tuple[int, ToolCallbackProvider]] = []
    for index, source in enumerate(sources):
        if not is_provider(source):
            groups.append([source])
        else:
            groups.append([])
            providers.append((index, source))
    for index, provider in providers:
        offer = offers.get(id(provider))
        if offer is None or getattr(provider, "dynamic", False):
            request = replace(request, callbacks=tuple(chain.from_iterable(groups)))
            offer = offers[id(provider)] = await _offer(provider, request, runtime)
        groups[index], hidden = offer
        if hidden:  # applies to this provider and the sources before it
            groups[: index + 1] = [
                [c for c in callbacks if c.definition.name not in hidden]
                for callbacks in groups[: index + 1]
            ]
    return list(chain.from_iterable(groups))


async def _offer(
    provider: ToolCallbackProvider, request: ToolRequest, runtime: Runtime
) -> tuple[list[ToolCallback], frozenset[str]]:
    """Return the tools of *provider* and the names of the tools it hides; None means none.

    Raises:
        ToolDefinitionError: It returned something else.
    """
    # Of the class: a provider that wraps another one may forward unknown attributes to it.
    tools_for: Callable[..., Awaitable[Any]] | None = getattr(type(provider), "tools_for", None)
    if tools_for is None:
        tools = await _call(provider.tool_callbacks, request, runtime)
    else:
        tools = await tools_for(provider, request, runtime)
    offered = offered_by(provider, tools)
    hidden_tools = getattr(provider, "hidden_tools", None)
    if hidden_tools is None:
        return offered, frozenset()
    hidden = await _call(hidden_tools, request, runtime)
    try:
        return offered, names(hidden or ())
    except WrongTypeError as error:
        msg = f"hidden_tools of {provider!r} must return names of tools: {error}"
        raise ToolDefinitionError(msg) from error


async def _call(method: Callable[..., Any], request: ToolRequest, runtime: Runtime) -> Any:
    """Call a method of a provider, with the request if it has a parameter for it."""
    return await runtime.invoke(method, *([request] if wants_argument(method) else []))
