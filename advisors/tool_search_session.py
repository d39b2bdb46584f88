"""What tool search knows of a conversation: which tools there are, and which of them were found."""

import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from chatclient.advisors.request_tools import RequestTools
from chatclient.advisors.tool_calling import RefreshTools
from chatclient.advisors.tool_search_tool import SEARCH_TOOL, found_in, names_in
from chatclient.errors import DuplicateToolError
from chatclient.forks import ForkSafeLock
from chatclient.messages import AssistantMessage, Message, ToolResponse, ToolResponseMessage
from chatclient.options import ChatOptions
from chatclient.tool import ToolCallback
from chatclient.tools.search import ToolReference

FOUND_TOOLS = "found_tools"
"""The key in an answer's metadata of the tools that its conversation has found so far."""


class IndexedTools:
    """What the index has for a session; compared by identity: each change makes another one."""

    __slots__ = ("references",)

    def __init__(self, references: tuple[ToolReference, ...] | None) -> None:
        self.references = references


class SearchMemories:
    """What sessions have found, and what the index has for them."""

    def __init__(self) -> None:
        self._indexed: dict[str, IndexedTools] = {}
        self._changing: dict[str, list[IndexedTools]] = {}
        self._found: dict[str, tuple[str, ...]] = {}
        self._lock = ForkSafeLock()

    def names_of(self, session_id: str) -> tuple[str, ...]:
        """Return what a session has found so far, in that order."""
        return self._found.get(session_id, ())

    def keep(self, session_id: str, names: Sequence[str], *, accumulate: bool) -> None:
        """Keep what a session has found; requests that run at the same time do not undo it."""
        with self._lock:
            earlier = self._found.get(session_id, ()) if accumulate else ()
            self._found[session_id] = tuple(dict.fromkeys((*earlier, *names)))

    def forget(self, session_id: str) -> None:
        """Forget what a session has found."""
        with self._lock:
            self._found.pop(session_id, None)

    @contextmanager
    def changing(
        self, session_id: str, references: tuple[ToolReference, ...] | None
    ) -> Iterator[IndexedTools]:
        """Note what the index has for a session once the body has run; None for nothing.

        Requests with other tools may change that at the same time, and so may whoever forgets the
        session. Then nobody knows whose change came last, and `has` says no.
        """
        with self._lock:
            mine = self._indexed.get(session_id)
            if mine is None or mine.references is not references:
                mine = self._indexed[session_id] = IndexedTools(references)
            self._changing.setdefault(session_id, []).append(mine)
        try:
            yield mine
        finally:
            with self._lock:
                changing = self._changing[session_id]
                changing.remove(mine)
                if not changing:
                    del self._changing[session_id]
                if references is None or self._indexed.get(session_id) is not mine:
                    self._indexed.pop(session_id, None)

    def has(self, session_id: str, tools: IndexedTools) -> bool:
        """Return whether the index has had *tools* for a session ever since they were put there."""
        with self._lock:
            at_work = self._changing.get(session_id, ())
            return self._indexed.get(session_id) is tools and all(c is tools for c in at_work)


class SearchSession:
    """A conversation during one request: its tools, and which of them the model knows.

    Args:
        id: The session's id; empty for a request that is a session of its own.
        all_tools: All tools of the request.
        roles: What the user is.
        accumulates: Whether tools stay visible once found.
        refresh: Gets the tools again, where there are providers that want to be asked each round.

    Attributes:
        tools: All tools that may be found, by name; the same mapping as long as the request runs.
        names: What was found, in that order; not all of it need be among the tools any more.

    Raises:
        DuplicateToolError: A tool is called like the search.
    """

    def __init__(
        self,
        id: str,
        all_tools: RequestTools,
        roles: Collection[str],
        *,
        accumulates: bool,
        refresh: RefreshTools | None,
    ) -> None:
        self.id = id
        self.roles = frozenset(roles)
        self.refresh = refresh
        self.names: list[str] = []
        self._changing: dict[str, ToolCallback] = {}
        self.search: ToolCallback | None = None
        self.change(all_tools)
        self._accumulates = accumulates
        self._must_use = False
        self._found = False
        self._recalled: ToolResponseMessage | None = None

    def change(self, all_tools: RequestTools) -> None:
        """Go on with other tools."""
        tools = all_tools.admitted(self.roles)
        if SEARCH_TOOL in tools:
            msg = f"a tool of the request is called {SEARCH_TOOL!r} like the search; rename it"
            raise DuplicateToolError(msg, tool_names=[SEARCH_TOOL])
        self.all_tools = all_tools
        if self.refresh is None:
            self.tools = tools
        else:  # the loop and the search hold on to the mapping
            self._changing.clear()
            self._changing.update(tools)
            self.tools = self._changing
        self._always = [name for name in all_tools.always_visible if name in tools]
        self._visible: tuple[ToolCallback, ...] | None = None

    @property
    def hidden_count(self) -> int:
        """How many tools are not always visible."""
        return len(self.tools) - len(self._always)

    @property
    def visible(self) -> tuple[ToolCallback, ...]:
        """The tools to send: the search, those always visible, and those found, in order."""
        if self._visible is None:
            found = (n for n in self.names if n in self.tools and n not in self._always)
            names = (*self._always, *found)
            search = () if self.search is None else (self.search,)
            self._visible = (*search, *(self.tools[name] for name in names))
        return self._visible

    def begin(
        self, names: Iterable[str], messages: Iterable[Message], tool_choice: str | None
    ) -> None:
        """Take note of what was found before this request.

        Args:
            names: The tools that this process knows to have been found.
            messages: The conversation so far, which tells what was found in other processes.
            tool_choice: What the request demands to be called.
        """
        self.names = [*names]
        recalled: list[str] = []
        message: Message | None = None
        for message in messages:
            if isinstance(message, AssistantMessage):
                self._add(recalled, names_in(message.metadata.get(FOUND_TOOLS)), anew=True)
            elif isinstance(message, ToolResponseMessage):
                self._learn(recalled, message.responses)
                self._recalled = message
        if message is self._recalled:  # what the first round goes on from
            self._recalled = None
        if self._accumulates or not self.names:
            self._add(self.names, recalled)
        if tool_choice is not None and tool_choice in self.tools:
            # The model cannot call what it is not told about.
            self._add(self.names, [tool_choice])
        self._must_use = tool_choice == "required"

    def learn(self, messages: Sequence[Message]) -> bool:
        """Take note of what the round before has found or called; return whether it has.

        Args:
            messages: What the model is to go on from.
        """
        message = _last_answers(messages)
        if message is None or message is self._recalled:
            return False
        if any(response.name != SEARCH_TOOL for response in message.responses):
            self._must_use = False
        before = list(self.names)
        self._learn(self.names, message.responses)
        self._found = self._found or bool(self.names)
        if self.names == before:
            return False
        self._visible = None
        return True

    def offered(self, options: ChatOptions) -> ChatOptions:
        """Return *options* with the tools that are visible now."""
        changes: dict[str, Any] = {}
        if options.tool_callbacks is not self.visible:
            changes["tool_callbacks"] = self.visible
        if self._must_use and self._found and options.tool_choice == "auto":
            # A search is not the tool call that the application demands.
            changes["tool_choice"] = "required"
        return options.mutate(**changes) if changes else options

    def _learn(self, names: list[str], responses: Iterable[ToolResponse]) -> None:
        found = (found_in(r) for r in responses if r.name == SEARCH_TOOL)
        self._add(names, itertools.chain.from_iterable(found), anew=True)
        self._add(names, (r.name for r in responses if r.name in self.tools))

    def _add(self, names: list[str], more: Iterable[str], *, anew: bool = False) -> None:
        """Add *more* to *names*, or replace them, if what is found *anew* does not accumulate."""
        more = list(dict.fromkeys(more))
        if more and anew and not self._accumulates:
            names.clear()
        names.extend(name for name in more if name not in names)


def _last_answers(messages: Sequence[Message]) -> ToolResponseMessage | None:
    """Return what tools have answered last, if a model is to go on from it.

    The user may have said something since, while the turn was running.
    """
    for message in reversed(messages):
        if isinstance(message, ToolResponseMessage):
            return message
        if isinstance(message, AssistantMessage):
            break
    return None
