"""What the providers among the tools of a request offer, and what they take away."""

from collections.abc import Callable, Iterable
from dataclasses import replace
from itertools import chain
from typing import Any

from typing_extensions import TypeIs

from chatclient.checks import names, wants_argument
from chatclient.errors import ToolDefinitionError, WrongTypeError
from chatclient.runtime import Runtime
from chatclient.tool import ToolCallback, ToolCallbackProvider, ToolRequest
from chatclient.tools.sources import Resolved, offered_by

Offers = dict[int, tuple[list[ToolCallback], frozenset[str]]]
"""What the providers of a request offered, and took away, by their identity."""


def is_provider(source: Resolved) -> TypeIs[ToolCallbackProvider]:
    """Return whether *source* offers tools, rather than being one."""
    # Asking `isinstance` of a protocol takes 12 microseconds, and there may be a thousand tools.
    return hasattr(source, "tool_callbacks")


async def offered_tools(
    sources: Iterable[ToolCallback | ToolCallbackProvider],
    request: ToolRequest,
    runtime: Runtime,
    offers: Offers,
) -> list[ToolCallback]:
    """Return the tools of *sources*, in their order; providers are asked after all others.

    What providers offered is kept in *offers*; those in there are not asked again unless they are
    dynamic.

    Raises:
        ToolDefinitionError: What a provider offers is no tool.
    """
    found: list[list[ToolCallback]] = []
    providers: list[tuple[int, ToolCallbackProvider]] = []
    for at, source in enumerate(sources):
        if not is_provider(source):
            found.append([source])
        else:
            found.append([])
            providers.append((at, source))
    for at, provider in providers:
        offer = offers.get(id(provider))
        if offer is None or getattr(provider, "dynamic", False):
            request = replace(request, callbacks=tuple(chain.from_iterable(found)))
            offer = offers[id(provider)] = await _offer(provider, request, runtime)
        found[at], hidden = offer
        if hidden:  # of what comes before it
            found[: at + 1] = [
                [c for c in callbacks if c.definition.name not in hidden]
                for callbacks in found[: at + 1]
            ]
    return list(chain.from_iterable(found))


async def _offer(
    provider: ToolCallbackProvider, request: ToolRequest, runtime: Runtime
) -> tuple[list[ToolCallback], frozenset[str]]:
    """Return what *provider* offers, and the names of what it takes away; None is nothing.

    Raises:
        ToolDefinitionError: It offers or names something else.
    """
    offered = offered_by(provider, await _ask(provider.tool_callbacks, request, runtime))
    hidden_tools = getattr(provider, "hidden_tools", None)
    if hidden_tools is None:
        return offered, frozenset()
    hidden = await _ask(hidden_tools, request, runtime)
    try:
        return offered, names(hidden or ())
    except WrongTypeError as error:
        msg = f"hidden_tools of {provider!r} must return names of tools: {error}"
        raise ToolDefinitionError(msg) from error


async def _ask(method: Callable[..., Any], request: ToolRequest, runtime: Runtime) -> Any:
    """Ask a provider, with the request if it wants to know it."""
    return await runtime.invoke(method, *([request] if wants_argument(method) else []))
