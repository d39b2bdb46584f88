"""Finds tools by name."""

from collections.abc import Iterable
from typing import Protocol

from chatclient.tool import ToolCallback
from chatclient.tools.sources import ToolSource, tool_callbacks


class ToolCallbackResolver(Protocol):
    """Knows tools by name."""

    def resolve(self, name: str, /) -> ToolCallback | None:
        """Return the tool called *name*, or None."""
        ...


class StaticToolCallbackResolver:
    """Knows the tools it was given.

    Raises:
        DuplicateToolError: Two of them have the same name.
    """

    def __init__(self, *sources: ToolSource) -> None:
        self._callbacks = {c.definition.name: c for c in tool_callbacks(*sources)}

    def resolve(self, name: str, /) -> ToolCallback | None:
        """Return the tool called *name*, or None."""
        return self._callbacks.get(name)

    def __repr__(self) -> str:
        return f"StaticToolCallbackResolver({', '.join(self._callbacks)})"


class DelegatingToolCallbackResolver:
    """Asks one resolver after another; the first that knows the name answers."""

    def __init__(self, resolvers: Iterable[ToolCallbackResolver]) -> None:
        self._resolvers = tuple(resolvers)

    def resolve(self, name: str, /) -> ToolCallback | None:
        """Return the tool called *name*, or None."""
        for resolver in self._resolvers:
            if (callback := resolver.resolve(name)) is not None:
                return callback
        return None
