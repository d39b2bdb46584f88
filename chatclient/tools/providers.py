"""Calls the tool providers of a request."""

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from typing_extensions import TypeIs

from chatclient._internal.checks import names, wants_argument
from chatclient.chat.tool import ToolCallback, ToolCallbackProvider, ToolRequest
from chatclient.errors import ToolDefinitionError, WrongTypeError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.sources import Resolved, offered_by

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
