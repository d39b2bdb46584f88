"""Replaces server tools by those of the provider, or by their fallbacks; no I/O."""

from collections.abc import Callable, Mapping
from typing import Any

from chatclient.chat.options import ChatOptions
from chatclient.chat.server_tools import ServerTool, ToolSearch
from chatclient.errors import UnsupportedToolError

EncodeServerTool = Callable[[Any, ChatOptions], Mapping[str, Any] | str]
"""Returns the provider's form of a server tool, or the reason why it cannot have it."""

ServerTools = Mapping[type[ServerTool], EncodeServerTool]
"""How a provider takes each kind of server tool that it has."""


_NONE: ServerTools = {}


def has_encoder(tool: ServerTool, options: ChatOptions, encoders: ServerTools) -> bool:
    """Return whether the provider has *tool* in a request with *options*."""
    encode = encoders.get(type(tool))
    return encode is not None and not isinstance(encode(tool, options), str)


def deferred_tools(options: ChatOptions, encoders: ServerTools) -> frozenset[str]:
    """Return the names of the tools that the model sees once the provider has found them."""
    searches = (
        s for s in server_tools_in(options, ToolSearch) if has_encoder(s, options, encoders)
    )
    return frozenset(name for search in searches for name in search.deferred)


def with_server_tools(
    options: ChatOptions, provider: str, encoders: ServerTools = _NONE
) -> ChatOptions:
    """Return *options* with the server tools that the provider has among its `server_tools`.

    Others stay among the callbacks, as their fallbacks.

    Raises:
        UnsupportedToolError: The provider does not have a tool, and there is no fallback.
    """
    callbacks = options.tool_callbacks or ()
    if not any(isinstance(each, ServerTool) for each in callbacks):
        return options
    kept: list[Any] = []
    native: list[Mapping[str, Any]] = []
    for each in callbacks:
        if not isinstance(each, ServerTool):
            kept.append(each)
            continue
        encode = encoders.get(type(each))
        found = "it has no such tool" if encode is None else encode(each, options)
        if not isinstance(found, str):
            native.append(found)
        elif each.callback is not None:
            kept.append(each)
        else:
            raise _unsupported(each, provider, options.model or "", found)
    if not native:
        return options
    own = getattr(options, "server_tools", None) or ()
    return options.mutate(tool_callbacks=tuple(kept), server_tools=(*own, *native))


def _unsupported(tool: ServerTool, provider: str, model: str, reason: str) -> UnsupportedToolError:
    kind = type(tool).__name__
    msg = (
        f"{provider}'s {model or 'model'} cannot use {kind}: {reason}. Give it a tool of yours for"
        f" such models: {kind}(..., fallback=a_function)"
    )
    return UnsupportedToolError(msg, tool=tool.name, provider=provider, model=model)


def server_tools_in(options: ChatOptions, kind: type[ServerTool] = ServerTool) -> list[Any]:
    """Return the server tools of *kind* among the callbacks of *options*."""
    return [each for each in options.tool_callbacks or () if isinstance(each, kind)]
