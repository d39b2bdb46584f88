"""Resolvers, which find tools by name."""

import inspect
from collections.abc import Awaitable
from importlib import import_module
from itertools import chain
from types import ModuleType

from chatclient._internal.checks import check_method
from chatclient.chat.tool import ToolCallback
from chatclient.runtime.threads import ForkSafeLock
from chatclient.tools.duplicates import check_unique
from chatclient.tools.execution.toolset import Answer, ToolCallbackResolver
from chatclient.tools.sources import ToolSource, has_tools, tool_callbacks


class StaticToolCallbackResolver:
    """Finds tools in a fixed set.

    Raises:
        ToolDefinitionError: A source contains no tool.
        DuplicateToolError: Two of them have the same name.
    """

    def __init__(self, *sources: ToolSource) -> None:
        self._callbacks = {c.definition.name: c for c in tool_callbacks(*sources)}

    def resolve(self, name: str, /) -> ToolCallback | None:
        """Return the tool *name*, or None."""
        return self._callbacks.get(name)

    def __repr__(self) -> str:
        return f"StaticToolCallbackResolver({', '.join(self._callbacks)})"


class DelegatingToolCallbackResolver:
    """Calls several resolvers in order until one finds the tool.

    Raises:
        UsageError: One of them is no resolver.
    """

    def __init__(self, *resolvers: ToolCallbackResolver) -> None:
        for resolver in resolvers:
            check_method("a resolver", resolver, "resolve", "pass several one by one")
        self._resolvers = resolvers

    def resolve(self, name: str, /) -> Answer:
        """Return the tool *name*, or None; an awaitable if one of the resolvers returns one."""
        for at, resolver in enumerate(self._resolvers):
            answer = resolver.resolve(name)
            if inspect.isawaitable(answer):
                return self._resolve_from(at + 1, name, answer)
            if answer is not None:
                return answer
        return None

    def __repr__(self) -> str:
        return f"DelegatingToolCallbackResolver({', '.join(map(repr, self._resolvers))})"

    async def _resolve_from(
        self, index: int, name: str, answer: Awaitable[ToolCallback | None]
    ) -> ToolCallback | None:
        rest = DelegatingToolCallbackResolver(*self._resolvers[index:])
        callback = await answer
        later = rest.resolve(name) if callback is None else callback
        return await later if inspect.isawaitable(later) else later


class ToolRegistry:
    """Finds tools that were registered, also from modules and packages.

    It is thread-safe; tools may be added and removed while requests run.

    Raises:
        ToolDefinitionError: A source contains no tool.
        DuplicateToolError: Two of them have the same name.
    """

    def __init__(self, *sources: ToolSource) -> None:
        self._lock = ForkSafeLock()
        self._callbacks: dict[str, ToolCallback] = {}
        self.register(*sources)

    def register(self, *sources: ToolSource) -> None:
        """Add the tools of *sources*; a package means all of its modules with tools.

        Raises:
            ToolDefinitionError: A source contains no tool.
            DuplicateToolError: A tool of that name is registered already.
        """
        # Without the lock, because imported modules may register tools themselves.
        found = tool_callbacks(*chain.from_iterable(map(_modules_of, sources)))
        with self._lock:
            check_unique([*self._callbacks.values(), *found])
            self._callbacks.update({c.definition.name: c for c in found})

    def unregister(self, name: str) -> None:
        """Remove the tool *name*, if there is one."""
        with self._lock:
            self._callbacks.pop(name, None)

    def resolve(self, name: str, /) -> ToolCallback | None:
        """Return the tool *name*, or None."""
        return self._callbacks.get(name)

    def tool_callbacks(self) -> list[ToolCallback]:
        """Return all tools: a registry is also a provider."""
        with self._lock:
            return list(self._callbacks.values())

    def __repr__(self) -> str:
        return f"ToolRegistry({', '.join(list(self._callbacks))})"


def _modules_of(source: ToolSource) -> list[ToolSource]:
    """Return the modules of a package that define tools; other sources unchanged."""
    if not isinstance(source, ModuleType) or not hasattr(source, "__path__"):
        return [source]
    from pkgutil import walk_packages  # noqa: PLC0415 - only packages need it

    found = walk_packages(source.__path__, f"{source.__name__}.")
    # Importing `__main__` would run the program.
    names = [info.name for info in found if not info.name.endswith(".__main__")]
    modules = [source, *map(import_module, names)]
    return [module for module in modules if has_tools(module)] or [source]
