"""The state of tool search: the tools of a request and of a session, and which were found."""

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import cached_property
from hashlib import blake2b
from typing import Any

from chatclient._internal.checks import names
from chatclient.advisors.tool_search.tool import SEARCH_TOOL, found_names, string_items
from chatclient.chain.calls_by_name import CALL_TOOL, CallTool
from chatclient.chat.messages import AssistantMessage, Message, ToolResponse, ToolResponseMessage
from chatclient.chat.options import ChatOptions
from chatclient.chat.server_tools import ToolSearch
from chatclient.chat.tool import ToolCallback
from chatclient.chat.turn import RefreshTools
from chatclient.chat.withheld_tool import callable_tools
from chatclient.errors import DuplicateToolError
from chatclient.runtime.threads import ForkSafeLock
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


FOUND_TOOLS = "found_tools"
"""The key in an answer's metadata of the names of the tools found so far in its conversation."""


class IndexedTools:
    """The content of the index for a session; compared by identity, replaced on each change."""

    __slots__ = ("references",)

    def __init__(self, references: tuple[ToolReference, ...] | None) -> None:
        self.references = references


class SessionRegistry:
    """The tools that sessions have found, and those that are indexed for them."""

    def __init__(self) -> None:
        self._indexed: dict[str, IndexedTools] = {}
        self._updates: dict[str, list[IndexedTools]] = {}  # in progress
        self._found: dict[str, tuple[str, ...]] = {}
        self._lock = ForkSafeLock()

    def found_names(self, session_id: str) -> tuple[str, ...]:
        """Return the names that a session has found so far, in that order."""
        return self._found.get(session_id, ())

    def add_found(self, session_id: str, names: Sequence[str], *, accumulate: bool) -> None:
        """Add the names that a session has found; concurrent requests do not overwrite them."""
        with self._lock:
            earlier = self._found.get(session_id, ()) if accumulate else ()
            self._found[session_id] = tuple(dict.fromkeys((*earlier, *names)))

    def remove_found(self, session_id: str) -> None:
        """Remove the names that a session has found."""
        with self._lock:
            self._found.pop(session_id, None)

    @contextmanager
    def updating(
        self, session_id: str, references: tuple[ToolReference, ...] | None
    ) -> Iterator[IndexedTools]:
        """Record what the body puts into the index for a session; None if it drops the session.

        A request with other tools, or an eviction, may change the index at the same time. The order
        of the changes is then unknown, and `is_indexed` returns False.
        """
        with self._lock:
            tools = self._indexed.get(session_id)
            if tools is None or tools.references is not references:
                tools = self._indexed[session_id] = IndexedTools(references)
            self._updates.setdefault(session_id, []).append(tools)
        try:
            yield tools
        finally:
            with self._lock:
                updates = self._updates[session_id]
                updates.remove(tools)
                if not updates:
                    del self._updates[session_id]
                if references is None or self._indexed.get(session_id) is not tools:
                    self._indexed.pop(session_id, None)

    def is_indexed(self, session_id: str, tools: IndexedTools) -> bool:
        """Return whether *tools* are indexed for a session, without a change since `updating`."""
        with self._lock:
            updates = self._updates.get(session_id, ())
            return self._indexed.get(session_id) is tools and all(u is tools for u in updates)


class SearchSession:
    """A session during one request: its tools, and which of them are visible to the model.

    Args:
        id: The session's id; empty for a request without a session.
        all_tools: All tools of the request.
        roles: The roles of the user.
        accumulates: Whether tools stay visible once found.
        refresh: Returns the current tools, if there are tool providers that are asked each round.
        provider_search: The search of the model's provider, in place of that in this process.
        call_tool: The tool with which the model calls found tools by name, if they are not sent.

    Attributes:
        tools: All tools that may be found, by name; the same mapping during the request.
        names: The names found, in that order; some may no longer be among the tools.

    Raises:
        DuplicateToolError: A tool has the name of the search tool, or of *call_tool*.
    """

    def __init__(
        self,
        id: str,
        all_tools: RequestTools,
        roles: Collection[str],
        *,
        accumulates: bool,
        refresh: RefreshTools | None,
        provider_search: ToolSearch | None = None,
        call_tool: CallTool | None = None,
    ) -> None:
        self.id = id
        self.roles = frozenset(roles)
        self.refresh = refresh
        self.names: list[str] = []
        self._shared_tools: dict[str, ToolCallback] = {}
        self.search: ToolCallback | None = None
        self.provider_search = provider_search
        self.call_tool = call_tool
        self._chosen: tuple[str, ...] = ()
        self.set_tools(all_tools)
        self._accumulates = accumulates
        self._call_required = False
        self._found = False
        self._loaded: ToolResponseMessage | None = None

    def set_tools(self, all_tools: RequestTools) -> None:
        """Replace the tools of the request."""
        tools = all_tools.permitted(self.roles)
        for name in (SEARCH_TOOL,) if self.call_tool is None else (SEARCH_TOOL, CALL_TOOL):
            if name in tools:
                msg = f"a tool of the request is called {name!r} like one of the search; rename it"
                raise DuplicateToolError(msg, tool_names=[name])
        self.all_tools = all_tools
        if self.refresh is None:
            self.tools = tools
        else:  # the loop and the search keep a reference to the mapping
            self._shared_tools.clear()
            self._shared_tools.update(tools)
            self.tools = self._shared_tools
        self._always = [name for name in all_tools.always_visible if name in tools]
        self._visible: tuple[ToolCallback, ...] | None = None

    @property
    def hidden_count(self) -> int:
        """The number of tools that are not always visible."""
        return len(self.tools) - len(self._always)

    @property
    def visible(self) -> tuple[ToolCallback, ...]:
        """The tools to send: the search tool, those always visible, and those found, in order.

        If found tools are called by name, the tool for that is sent instead of them. A search of
        the provider is sent with all tools; it knows from the messages which of them were found.
        """
        if self._visible is None:
            shown = self.names if self.call_tool is None else self._chosen
            found = (n for n in shown if n in self.tools and n not in self._always)
            names = (*self._always, *found)
            search = tuple(tool for tool in (self.search, self.call_tool) if tool is not None)
            if self.provider_search is not None:
                hidden = tuple(name for name in self.tools if name not in names)
                search = (replace(self.provider_search, deferred=hidden, fallback=self.search),)
                names = (*names, *hidden)
            self._visible = (*search, *(self.tools[name] for name in names))
        return self._visible

    def load(
        self, names: Iterable[str], messages: Iterable[Message], tool_choice: str | None
    ) -> None:
        """Load the names that were found before this request.

        Args:
            names: The names found in this process.
            messages: The conversation so far, which contains names found in other processes.
            tool_choice: The tool choice of the request.
        """
        self._call_required = tool_choice == "required"
        if self.provider_search is None:
            self.names = [*names]
            loaded: list[str] = []
            message: Message | None = None
            for message in messages:
                if isinstance(message, AssistantMessage):
                    self._add(
                        loaded, string_items(message.metadata.get(FOUND_TOOLS)), searched=True
                    )
                elif isinstance(message, ToolResponseMessage):
                    self._add_responses(loaded, message.responses)
                    self._loaded = message
            if message is self._loaded:  # the first round continues from it, and calls `update`
                self._loaded = None
            if self._accumulates or not self.names:
                self._add(self.names, loaded)
        if tool_choice is not None and tool_choice in self.tools:
            # The model can only be forced to call a tool that is sent.
            self._chosen = (tool_choice,)
            self._add(self.names, [tool_choice])

    def update(self, messages: Sequence[Message]) -> bool:
        """Add the names that the previous round found or called; return whether there are new ones.

        Args:
            messages: The messages of this round.
        """
        message = _last_tool_responses(messages) if self.provider_search is None else None
        if message is None or message is self._loaded:
            return False
        if any(response.name != SEARCH_TOOL for response in message.responses):
            self._call_required = False
        before = list(self.names)
        self._add_responses(self.names, message.responses)
        self._found = self._found or bool(self.names)
        if self.names == before:
            return False
        self._visible = None
        return True

    def with_visible_tools(self, options: ChatOptions) -> ChatOptions:
        """Return *options* with the visible tools."""
        changes: dict[str, Any] = {}
        if options.tool_callbacks is not self.visible:
            changes["tool_callbacks"] = self.visible
        if self._call_required and self._found and options.tool_choice == "auto":
            # A search does not count as the tool call that the application requires.
            changes["tool_choice"] = "required"
        return options.mutate(**changes) if changes else options

    def _add_responses(self, names: list[str], responses: Iterable[ToolResponse]) -> None:
        results = (found_names(r) for r in responses if r.name == SEARCH_TOOL)
        self._add(names, itertools.chain.from_iterable(results), searched=True)
        self._add(names, (r.name for r in responses if r.name in self.tools))

    def _add(self, names: list[str], new_names: Iterable[str], *, searched: bool = False) -> None:
        """Add *new_names* to *names*; results of a search replace them unless they accumulate."""
        new_names = list(dict.fromkeys(new_names))
        if new_names and searched and not self._accumulates:
            names.clear()
        names.extend(name for name in new_names if name not in names)


class FoundTools(Mapping[str, ToolCallback]):
    """The tools that a session has found so far, by name."""

    def __init__(self, session: SearchSession) -> None:
        self._session = session

    def __getitem__(self, name: str) -> ToolCallback:
        if name not in self._session.names:
            raise KeyError(name)
        return self._session.tools[name]

    def __iter__(self) -> Iterator[str]:
        return (name for name in self._session.names if name in self._session.tools)

    def __len__(self) -> int:
        return sum(1 for _ in self)


def _last_tool_responses(messages: Sequence[Message]) -> ToolResponseMessage | None:
    """Return the last tool responses, unless an assistant message follows them.

    User messages may follow: input that arrived while the turn ran.
    """
    for message in reversed(messages):
        if isinstance(message, ToolResponseMessage):
            return message
        if isinstance(message, AssistantMessage):
            break
    return None
