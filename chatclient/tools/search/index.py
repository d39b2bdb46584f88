"""The contract of a tool index, and the strategies that evict sessions from it."""

import reprlib
import time
from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence, Set as AbstractSet
from dataclasses import dataclass, field
from datetime import timedelta
from functools import cached_property
from hashlib import blake2b
from itertools import takewhile
from time import perf_counter
from typing import Any, Protocol, Self

from chatclient._internal import json
from chatclient._internal.checks import check_method, check_number, check_type, names, seconds
from chatclient._internal.frozen import EMPTY
from chatclient.chat.tool import ToolDefinition
from chatclient.errors import ToolUsageError, UsageError
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.runtime.threads import ForkSafeLock, is_awaitable

DEFAULT_MAX_RESULTS = 10
"""The number of results of a search if neither the request nor the index has a limit."""

NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ToolReference:
    """A tool in an index, and in the results of a search.

    Attributes:
        tool_name: The name of the tool.
        summary: The description of the tool.
        parameters: The JSON Schema of its arguments; the names and descriptions in it are
            searched. It must not be changed afterwards.
        categories: Filters for searches, such as a server, a department or a domain. Compared
            case-insensitively.
        roles: A search finds the tool only with one of these roles. Without any, every search does.
        relevance_score: The score for the query. Comparable within one response only; None outside
            of a search.
    """

    tool_name: str
    summary: str = ""
    parameters: Mapping[str, Any] = EMPTY
    categories: AbstractSet[str] = NO_NAMES
    roles: AbstractSet[str] = NO_NAMES
    relevance_score: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        for name in ("categories", "roles"):
            object.__setattr__(self, name, names(getattr(self, name)))

    @classmethod
    def of(
        cls,
        definition: ToolDefinition,
        *,
        categories: str | Iterable[str] = (),
        roles: str | Iterable[str] = (),
    ) -> Self:
        """Return the reference of the tool with *definition*; a text is a single name."""
        return cls(
            definition.name,
            definition.description,
            definition.input_schema,
            names(categories),
            names(roles),
        )

    def __hash__(self) -> int:
        return hash((self.tool_name, self.summary))

    @cached_property
    def fingerprint(self) -> bytes:
        """A digest of the content: 16 bytes, the same for equal references."""
        content = (
            self.tool_name,
            self.summary,
            self.parameters,
            sorted(self.categories),
            sorted(self.roles),
        )
        return blake2b(json.dumps(content), digest_size=16).digest()

    def scored(self, score: float) -> "ToolReference":
        """Return this reference as the result of a search, without attributes of a subclass.

        Those may belong to another session, because an index stores equal references once.
        """
        found = object.__new__(ToolReference)
        found.__dict__.update(  # validated before
            tool_name=self.tool_name,
            summary=self.summary,
            parameters=self.parameters,
            categories=self.categories,
            roles=self.roles,
            relevance_score=score,
        )
        return found


@dataclass(frozen=True, slots=True)
class ToolSearchRequest:
    """A search in the tools of one session.

    Attributes:
        session_id: The session.
        query: The query in natural language; it may contain several requests.
        max_results: The maximum number of tools. None, zero and less mean the index's default.
        category_filter: One or several categories of which a tool must have one. None or blank: no
            filter.
        roles: The roles of the searcher; tools for other roles are not found.
        exclude: Names of tools to leave out, such as those already visible.

    A text instead of several names is a single name.
    """

    session_id: str
    query: str
    max_results: int | None = None
    category_filter: str | Collection[str] | None = None
    roles: str | Collection[str] = NO_NAMES
    exclude: str | Collection[str] = NO_NAMES

    def __post_init__(self) -> None:
        for name in ("roles", "exclude"):
            object.__setattr__(self, name, names(getattr(self, name)))

    def limit(self, default: int = DEFAULT_MAX_RESULTS) -> int:
        """Return the maximum number of results, at least one."""
        if self.max_results is None or self.max_results < 1:
            return default
        return self.max_results

    def admits(self, reference: ToolReference) -> bool:
        """Return whether *reference* passes the filters of this request."""
        if reference.roles and reference.roles.isdisjoint(self.roles):
            return False
        if reference.tool_name in self.exclude:
            return False
        categories = self.wanted_categories
        return not categories or not categories.isdisjoint(map(_folded, reference.categories))

    @property
    def wanted_categories(self) -> frozenset[str]:
        """The categories of the filter, casefolded; empty for no filter."""
        if self.category_filter is None:
            return NO_NAMES
        return frozenset(map(_folded, names(self.category_filter))) - {""}


def _folded(category: str) -> str:
    return category.strip().casefold()


@dataclass(frozen=True, slots=True)
class ToolSearchResponse:
    """The result of a search.

    Attributes:
        tool_references: The tools, best first, each with its score.
        total_matches: The number of matching tools before the limit. A large catalog may have more:
            tools that match only a very frequent word are not examined.
        search_type: The kind of index.
        query: The query.
        seconds: The duration of the search.
    """

    tool_references: tuple[ToolReference, ...] = ()
    total_matches: int = 0
    search_type: str = ""
    query: str = ""
    seconds: float = 0.0

    @property
    def tool_names(self) -> tuple[str, ...]:
        """The names of the tools found, best first."""
        return tuple(reference.tool_name for reference in self.tool_references)


def as_response(
    search_type: str,
    request: ToolSearchRequest,
    found: Iterable[tuple[float, ToolReference]],
    total: int,
    started: float,
) -> ToolSearchResponse:
    """Return the response to *request*, which started at *started* by `time.perf_counter`."""
    references = tuple(reference.scored(score) for score, reference in found)
    seconds = perf_counter() - started
    return ToolSearchResponse(references, total, search_type, request.query, seconds)


def _check(request: object) -> None:
    check_type("a search", request, ToolSearchRequest, "write ToolSearchRequest(session_id, query)")


async def find_checked(
    index: "ToolIndex", request: ToolSearchRequest, runtime: Runtime
) -> ToolSearchResponse:
    """Return the response of an *index* that may be custom code.

    Raises:
        ToolUsageError: It did not return a `ToolSearchResponse`.
    """
    result: object = index.find(request, runtime)
    response = await result if is_awaitable(result) else result
    if response is result or not isinstance(response, ToolSearchResponse):
        name = type(index).__name__
        msg = (
            f"find() of {name} must be `async def` and return a ToolSearchResponse,"
            f" not {reprlib.repr(response)}"
        )
        raise ToolUsageError(msg)
    return response


class ToolIndex(ABC):
    """Finds tools by their purpose, separately for each session.

    A subclass implements `put`, `find` and `drop`, which serve blocking and asynchronous callers
    and wait only through the given runtime. They are called from many threads and tasks
    concurrently. Advisors, which have a runtime, call these methods; applications call the others.

    An unknown session has no tools: searching it finds nothing, clearing it does nothing.
    """

    @abstractmethod
    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Replace the tools of a session by *references*.

        Calling it again with equal tools is cheap, and with the same tuple free, so callers need
        not track what is indexed. Of two references with the same name the first is used.
        """

    @abstractmethod
    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search the tools of one session."""

    @abstractmethod
    async def drop(self, session_id: str, runtime: Runtime) -> None:
        """Remove the tools of a session."""

    def index_tools(self, session_id: str, references: Sequence[ToolReference]) -> None:
        """Replace all tools of a session by *references*; see `put`.

        To add a tool, pass it together with the others: unchanged ones cost nothing.
        """
        drive(self.put(session_id, references, BLOCKING))

    async def aindex_tools(self, session_id: str, references: Sequence[ToolReference]) -> None:
        """Replace all tools of a session by *references*; see `put`.

        To add a tool, pass it together with the others: unchanged ones cost nothing.
        """
        await self.put(session_id, references, ON_LOOP)

    def search(self, request: ToolSearchRequest) -> ToolSearchResponse:
        """Search the tools of one session."""
        _check(request)
        return drive(self.find(request, BLOCKING))

    async def asearch(self, request: ToolSearchRequest) -> ToolSearchResponse:
        """Search the tools of one session."""
        _check(request)
        return await self.find(request, ON_LOOP)

    def clear_index(self, session_id: str) -> None:
        """Remove the tools of a session."""
        drive(self.drop(session_id, BLOCKING))

    async def aclear_index(self, session_id: str) -> None:
        """Remove the tools of a session."""
        await self.drop(session_id, ON_LOOP)


class ToolIndexEvictionStrategy(Protocol):
    """Selects the sessions to evict; called from many threads concurrently."""

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Record that a session is used, and return the sessions to evict now.

        If it returns the session itself, the tools are indexed again in every request.
        """
        ...

    def on_removed(self, session_id: str, /) -> None:
        """Record that a session was evicted."""
        ...


class NeverEvictStrategy:
    """Keeps every session, for applications with a bounded number of them."""

    def on_access(self, _session_id: str, /) -> Sequence[str]:
        """Return nothing."""
        return ()

    def on_removed(self, _session_id: str, /) -> None:
        """Do nothing."""


class AlwaysEvictStrategy:
    """Evicts the used session, so that its tools are indexed again in every request."""

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the session itself."""
        return (session_id,)

    def on_removed(self, _session_id: str, /) -> None:
        """Do nothing."""


class LruEvictionStrategy:
    """Keeps the most recently used sessions.

    Args:
        max_sessions: The number of sessions.

    Raises:
        UsageError: It is less than one.
    """

    def __init__(self, max_sessions: int = 1000) -> None:
        check_number("max_sessions", max_sessions, least=1)
        self._max_sessions = max_sessions
        self._lock = ForkSafeLock()
        self._sessions: OrderedDict[str, None] = OrderedDict()

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the least recently used session, if there are too many."""
        with self._lock:
            self._sessions[session_id] = None
            self._sessions.move_to_end(session_id)
            if len(self._sessions) <= self._max_sessions:
                return ()
            return (self._sessions.popitem(last=False)[0],)

    def on_removed(self, session_id: str, /) -> None:
        """Remove the session."""
        with self._lock:
            self._sessions.pop(session_id, None)


class TtlEvictionStrategy:
    """Keeps each session for a limited time after its last use.

    Args:
        ttl: The time, in seconds or as a `timedelta`.
        clock: Returns the time in seconds.

    Raises:
        UsageError: The time is not positive.
    """

    def __init__(
        self, ttl: float | timedelta, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl = seconds("ttl", ttl)
        self._clock = clock
        self._lock = ForkSafeLock()
        self._used: OrderedDict[str, float] = OrderedDict()  # least recently used first

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the other sessions that have expired."""
        with self._lock:
            now = self._clock()
            self._used[session_id] = now
            self._used.move_to_end(session_id)
            expired = list(
                takewhile(
                    lambda o: o != session_id and now - self._used[o] >= self._ttl, self._used
                )
            )
            for other in expired:
                del self._used[other]
            return expired

    def on_removed(self, session_id: str, /) -> None:
        """Remove the session."""
        with self._lock:
            self._used.pop(session_id, None)


class CompositeEvictionStrategy:
    """Evicts the sessions that any of several strategies selects.

    Raises:
        UsageError: There is no strategy, or one of them is no strategy.
    """

    def __init__(self, *strategies: ToolIndexEvictionStrategy) -> None:
        if not strategies:
            msg = "a composite needs at least one strategy; NeverEvictStrategy() keeps everything"
            raise UsageError(msg)
        for each in strategies:
            check_method("a strategy", each, "on_access", "pass several one by one")
        self._strategies = strategies

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the sessions that any strategy selects, each once."""
        selected = [other for each in self._strategies for other in each.on_access(session_id)]
        return tuple(dict.fromkeys(selected))

    def on_removed(self, session_id: str, /) -> None:
        """Inform all strategies."""
        for strategy in self._strategies:
            strategy.on_removed(session_id)
