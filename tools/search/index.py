"""The contract of an index of tools, which a model searches instead of being told all of them."""

import reprlib
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from hashlib import blake2b
from time import perf_counter
from typing import Any, Self

from chatclient import json
from chatclient.checks import names
from chatclient.driving import drive
from chatclient.errors import ToolUsageError
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.threads import is_awaitable
from chatclient.tool import ToolDefinition
from chatclient.values import EMPTY

DEFAULT_MAX_RESULTS = 10
"""How many tools a search gives when neither the request nor the index says."""

NO_NAMES: frozenset[str] = frozenset()


@dataclass(frozen=True)
class ToolReference:
    """What an index knows of a tool, and what a search finds.

    Attributes:
        tool_name: What the model calls it.
        summary: What it is for: the description that the model would be told.
        parameters: The JSON Schema of its arguments; the names and descriptions in it are
            searched. Not to be changed afterwards.
        categories: What a search may be narrowed to: the server it comes from, a department, a
            domain. Compared without regard to case.
        roles: Who may find it: a search has to come with one of these. Without any, everybody.
        relevance_score: How well it fits the query that found it. Comparable within one response
            only; None outside of a search.
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
        """Return the reference of the tool that *definition* describes; a text is one name."""
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
        """What tells one content from another: 16 bytes, the same for equal references."""
        content = (
            self.tool_name,
            self.summary,
            self.parameters,
            sorted(self.categories),
            sorted(self.roles),
        )
        return blake2b(json.dumps(content), digest_size=16).digest()

    def scored(self, score: float) -> "ToolReference":
        """Return this reference as the result of a search, which finds no more than the content.

        What a subclass adds may be another session's: an index keeps one of equal contents.
        """
        found = object.__new__(ToolReference)
        found.__dict__.update(  # all was looked at before
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
    """One search in the tools of one session.

    Attributes:
        session_id: Whose tools.
        query: What is wanted, in plain words; several wishes in one query are understood.
        max_results: At most how many tools to return. None, zero and less stand for the index's
            own number.
        category_filter: Only tools of one of these categories; a single name will do. None and
            nothing but blanks: all.
        roles: What the searcher is; tools kept for other roles are not found.
        exclude: Names of tools that are not wanted, such as those already visible.

    A text in place of several names is one of them.
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
        """Return how many tools are wanted, at least one."""
        if self.max_results is None or self.max_results < 1:
            return default
        return self.max_results

    def admits(self, reference: ToolReference) -> bool:
        """Return whether the filters of this request let *reference* through."""
        if reference.roles and reference.roles.isdisjoint(self.roles):
            return False
        if reference.tool_name in self.exclude:
            return False
        wanted = self.wanted_categories
        return not wanted or not wanted.isdisjoint(map(_folded, reference.categories))

    @property
    def wanted_categories(self) -> frozenset[str]:
        """The categories of the filter, folded for comparison; empty stands for all."""
        if self.category_filter is None:
            return NO_NAMES
        return frozenset(map(_folded, names(self.category_filter))) - {""}


def _folded(category: str) -> str:
    return category.strip().casefold()


@dataclass(frozen=True, slots=True)
class ToolSearchResponse:
    """What a search found.

    Attributes:
        tool_references: The tools, best first, each with its score.
        total_matches: How many tools fit, before the limit. A large catalog may have more: who has
            nothing but a word that most tools have is not looked at.
        search_type: Which kind of index has answered.
        query: What was asked.
        seconds: How long the search took.
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
    """Return the answer to *request*, which came in at *started* by `time.perf_counter`."""
    references = tuple(reference.scored(score) for score, reference in found)
    seconds = perf_counter() - started
    return ToolSearchResponse(references, total, search_type, request.query, seconds)


async def asked(
    index: "ToolIndex", request: ToolSearchRequest, runtime: Runtime
) -> ToolSearchResponse:
    """Return what *index* finds, whoever wrote it.

    Raises:
        ToolUsageError: It does not return what it has to; the model could do nothing about that.
    """
    found: object = index.find(request, runtime)
    response = await found if is_awaitable(found) else found
    if response is found or not isinstance(response, ToolSearchResponse):
        name = type(index).__name__
        msg = (
            f"find() of {name} must be `async def` and return a ToolSearchResponse,"
            f" not {reprlib.repr(response)}"
        )
        raise ToolUsageError(msg)
    return response


class ToolIndex(ABC):
    """Finds tools by what they are for, each session among its own.

    An implementor writes `put`, `find` and `drop`, which serve blocking and asynchronous callers
    alike and do all waiting through the runtime they are given. They are called from many threads
    and tasks at once. Advisors, which have a runtime, call these; applications call the others.

    A session that is not known has no tools: searching it finds nothing, clearing it does nothing.
    """

    @abstractmethod
    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Make *references* the tools of a session, in place of those it had.

        Calling it again with the same tools costs next to nothing, and with the same tuple nothing
        at all, so that nobody needs to keep track of what is indexed. Of two references with one
        name the first counts.
        """

    @abstractmethod
    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search the tools of one session."""

    @abstractmethod
    async def drop(self, session_id: str, runtime: Runtime) -> None:
        """Forget the tools of a session."""

    def index_tools(self, session_id: str, references: Sequence[ToolReference]) -> None:
        """Make *references* the tools of a session, in place of those it had; see `put`."""
        drive(self.put(session_id, references, BLOCKING))

    async def aindex_tools(self, session_id: str, references: Sequence[ToolReference]) -> None:
        """Make *references* the tools of a session, in place of those it had; see `put`."""
        await self.put(session_id, references, ON_LOOP)

    def search(self, request: ToolSearchRequest) -> ToolSearchResponse:
        """Search the tools of one session."""
        return drive(self.find(request, BLOCKING))

    async def asearch(self, request: ToolSearchRequest) -> ToolSearchResponse:
        """Search the tools of one session."""
        return await self.find(request, ON_LOOP)

    def clear_index(self, session_id: str) -> None:
        """Forget the tools of a session."""
        drive(self.drop(session_id, BLOCKING))

    async def aclear_index(self, session_id: str) -> None:
        """Forget the tools of a session."""
        await self.drop(session_id, ON_LOOP)
