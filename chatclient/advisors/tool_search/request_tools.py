"""`RequestTools`: the tools of a request by name and as references for an index, cached."""

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b

from chatclient._internal.checks import names
from chatclient.chat.tool import ToolCallback
from chatclient.chat.withheld_tool import callable_tools
from chatclient.tools.search.index import ToolReference

_CACHE_SIZE = 4  # an application usually has one or a few sets of tools

Describe = Callable[[ToolCallback], ToolReference]
"""Returns the reference under which an index stores a tool."""


def describe(callback: ToolCallback) -> ToolReference:
    """Return the default reference of a tool, from its definition."""
    return ToolReference.of(callback.definition)


class RequestTools:
    """The tools of a request, by name and as references for an index; immutable.

    Attributes:
        callbacks: The tools, in the order in which the application passed them.
        by_name: The tools by name.
        references: The references of the tools for an index.
    """

    def __init__(
        self,
        callbacks: tuple[ToolCallback, ...],
        references: tuple[ToolReference, ...],
        always_visible: Collection[str],
    ) -> None:
        self.callbacks = callbacks
        self.by_name: Mapping[str, ToolCallback] = {c.definition.name: c for c in callbacks}
        self.references = references
        self._always_visible = always_visible
        self._restricted = any(reference.roles for reference in references)

    @cached_property
    def always_visible(self) -> tuple[str, ...]:
        """The names of the tools that are sent in every round."""
        return tuple(
            name
            for name, callback in self.by_name.items()
            if name in self._always_visible or callback.metadata.always_visible
        )

    @cached_property
    def _categories(self) -> tuple[str, ...]:
        return _categories_of(self.references)

    def categories_of(self, names: Collection[str]) -> tuple[str, ...]:
        """Return the categories of the permitted tools, given their *names*."""
        if not self._restricted:
            return self._categories
        return _categories_of(r for r in self.references if r.tool_name in names)

    @cached_property
    def key(self) -> str:
        """Digest of the references of all tools."""
        content = b"".join(reference.fingerprint for reference in self.references)
        return f"catalog-{blake2b(content, digest_size=16).hexdigest()}"

    def permitted(self, roles: Collection[str]) -> Mapping[str, ToolCallback]:
        """Return the tools that a user with *roles* may use, by name."""
        if not self._restricted:
            return self.by_name
        refused = {r.tool_name for r in self.references if r.roles and r.roles.isdisjoint(roles)}
        return {name: tool for name, tool in self.by_name.items() if name not in refused}


class RequestToolsCache:
    """Creates `RequestTools`, and caches the most recent ones.

    A request with the same tool objects as a cached one only costs the comparison. If an
    application creates equal tools for each request, their references are reused.
    """

    def __init__(self, describe: Describe, always_visible: str | Collection[str]) -> None:
        self._describe = describe
        self._always_visible = names(always_visible)
        # Never modified, only replaced, so that threads need no lock.
        self._recent: tuple[RequestTools, ...] = ()

    def of(self, callbacks: tuple[ToolCallback, ...]) -> RequestTools:
        """Return the `RequestTools` of *callbacks*."""
        callbacks = callable_tools(callbacks)
        for cached in self._recent:
            if _are_identical(cached.callbacks, callbacks):
                return cached
        references = self._with_cached([self._describe(callback) for callback in callbacks])
        tools = RequestTools(callbacks, references, self._always_visible)
        self._recent = (tools, *self._recent[: _CACHE_SIZE - 1])
        return tools

    def _with_cached(self, references: Sequence[ToolReference]) -> tuple[ToolReference, ...]:
        """Return *references*, with those that equal a cached one replaced by that object."""
        for tools in self._recent:
            if tuple(references) == tools.references:
                return tools.references
        cached = {r.tool_name: r for tools in self._recent for r in tools.references}
        return tuple(
            r if (c := cached.get(r.tool_name)) != r or c is None else c for r in references
        )


def _categories_of(references: Iterable[ToolReference]) -> tuple[str, ...]:
    return tuple(sorted({each for reference in references for each in reference.categories}))


def _are_identical(one: tuple[ToolCallback, ...], other: tuple[ToolCallback, ...]) -> bool:
    """Return whether both contain the same objects; `==` of tools may be user-defined."""
    return one is other or (len(one) == len(other) and all(map(operator.is_, one, other)))
