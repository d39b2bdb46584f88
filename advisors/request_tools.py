"""What tool search knows of the tools of a request, computed once for as long as they stay."""

import operator
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from hashlib import blake2b

from chatclient.checks import names
from chatclient.tool import ToolCallback
from chatclient.tools.search import ToolReference

_KEPT = 4  # how many are remembered; an application has one or a few, used in turn

Describe = Callable[[ToolCallback], ToolReference]
"""Says what an index is told about a tool."""


def describe(callback: ToolCallback) -> ToolReference:
    """Return what an index is told about a tool unless the application knows better."""
    return ToolReference.of(callback.definition)


class RequestTools:
    """The tools of a request, by name and as an index knows them; never changed.

    Attributes:
        callbacks: The tools, in the order in which the application gave them.
        by_name: The same by name.
        references: The same for an index.
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
        """The names of the tools that a model is always told about."""
        return tuple(
            name
            for name, callback in self.by_name.items()
            if name in self._always_visible or callback.metadata.always_visible
        )

    @cached_property
    def _categories(self) -> tuple[str, ...]:
        return _categories_of(self.references)

    def categories_among(self, names: Collection[str]) -> tuple[str, ...]:
        """Return all categories of the tools that somebody may use, given their *names*."""
        if not self._restricted:
            return self._categories
        return _categories_of(r for r in self.references if r.tool_name in names)

    @cached_property
    def key(self) -> str:
        """What equal tools have in common and different ones have not."""
        content = b"".join(reference.fingerprint for reference in self.references)
        return f"catalog-{blake2b(content, digest_size=16).hexdigest()}"

    def admitted(self, roles: Collection[str]) -> Mapping[str, ToolCallback]:
        """Return the tools that somebody with *roles* may use, by name."""
        if not self._restricted:
            return self.by_name
        refused = {r.tool_name for r in self.references if r.roles and r.roles.isdisjoint(roles)}
        return {name: tool for name, tool in self.by_name.items() if name not in refused}


class RequestToolsCache:
    """Makes `RequestTools`, and knows those that it made last.

    A request over the very tools of an earlier one costs no more than finding that out. Of tools
    that are made anew for each request, the references stay the same where their content does.
    """

    def __init__(self, describe: Describe, always_visible: str | Collection[str]) -> None:
        self._describe = describe
        self._always_visible = names(always_visible)
        # Replaced as a whole, so that threads need no lock.
        self._recent: tuple[RequestTools, ...] = ()

    def of(self, callbacks: tuple[ToolCallback, ...]) -> RequestTools:
        """Return what is known of *callbacks*."""
        for known in self._recent:
            if _same(known.callbacks, callbacks):
                return known
        references = self._unchanged([self._describe(callback) for callback in callbacks])
        tools = RequestTools(callbacks, references, self._always_visible)
        self._recent = (tools, *self._recent[: _KEPT - 1])
        return tools

    def _unchanged(self, references: Sequence[ToolReference]) -> tuple[ToolReference, ...]:
        """Return *references*, with the very objects of an earlier request where they are equal."""
        for tools in self._recent:
            if tuple(references) == tools.references:
                return tools.references
        known = {r.tool_name: r for tools in self._recent for r in tools.references}
        return tuple(
            r if (k := known.get(r.tool_name)) != r or k is None else k for r in references
        )


def _categories_of(references: Iterable[ToolReference]) -> tuple[str, ...]:
    return tuple(sorted({each for reference in references for each in reference.categories}))


def _same(one: tuple[ToolCallback, ...], other: tuple[ToolCallback, ...]) -> bool:
    """Return whether both are the very same tools; how those compare is their own business."""
    return one is other or (len(one) == len(other) and all(map(operator.is_, one, other)))
