"""Tool indexes that search keywords, or leave the search to the provider of the model."""

from collections.abc import Sequence
from time import perf_counter

from chatclient._internal.checks import check_choice, check_type
from chatclient.chat.server_tools import SearchVariant, ToolSearch
from chatclient.retrieval.keywords.inverted_index import IndexView, InvertedIndex
from chatclient.retrieval.keywords.ranking import Ranking, Scored
from chatclient.retrieval.keywords.tokenizer import Words
from chatclient.runtime.runtime import Runtime
from chatclient.tools.search.index import (
    DEFAULT_MAX_RESULTS,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    as_response,
)
from chatclient.tools.search.segments import Catalog, Catalogs, Segment, index_of

_AT_ONCE = 200  # tools that are indexed without leaving the event loop: some 10 ms
_REMEMBERED = 20_000  # words of queries whose terms are cached
_SEARCHED_AT_ONCE = 20_000  # tools that are searched without leaving the event loop: some ms


class KeywordToolIndex(ToolIndex):
    """Finds tools by the words of their names, descriptions and parameters.

    Identifiers are split into words, words are reduced to stems, and rare words count more; see
    `chatclient.retrieval.keywords.ranking`. It works best for English. Sessions with the same tools
    share their index.

    Args:
        max_results: The number of results of a search without a limit.
    """

    def __init__(self, *, max_results: int = DEFAULT_MAX_RESULTS) -> None:
        self._max_results = max_results
        self._catalogs: Catalogs[InvertedIndex] = Catalogs()
        # Only for queries: words of tools are not needed after indexing.
        self._words = Words(_REMEMBERED)

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Set the tools of a session; only new ones are indexed."""
        catalog = self._catalogs.assign(session_id, references).catalog
        if catalog is not None:
            await self._build(catalog, runtime)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search the tools of one session."""
        started = perf_counter()
        catalog = self._catalogs.of(request.session_id)
        limit = request.limit(self._max_results)
        found: list[Scored] = []
        total = 0
        if catalog is not None:
            await self._build(catalog, runtime)  # another session may still be building it
            if catalog.size > _SEARCHED_AT_ONCE:
                found, total = await runtime.invoke(self._search, catalog, request, limit)
            else:
                found, total = self._search(catalog, request, limit)
        scored = [(score, catalog.reference(number)) for score, number in found] if catalog else []
        return as_response("keyword", request, scored, total, started)

    async def drop(self, session_id: str, runtime: Runtime) -> None:  # noqa: ARG002
        """Remove the tools of a session."""
        self._catalogs.remove(session_id)

    async def _build(self, catalog: Catalog[InvertedIndex], runtime: Runtime) -> None:
        for view in catalog.views:
            if view.segment.payload is None:
                if len(view) > _AT_ONCE:
                    await runtime.invoke(_built, view.segment)
                else:
                    view.segment.payload = index_of(view.segment.references, Words())

    def _search(
        self, catalog: Catalog[InvertedIndex], request: ToolSearchRequest, limit: int
    ) -> tuple[list[Scored], int]:
        admitted, excluded = catalog.admitted(request), request.exclude
        views = [
            IndexView(view.segment.payload, view.offset, view.removed)
            for view in catalog.views
            if view.segment.payload is not None
        ]
        ranking = Ranking(
            views,
            catalog.size,
            self._words,
            request.query,
            lambda number: catalog.reference(number).tool_name,
        )
        found, total = ranking.best(limit, admitted, excluded)
        if total < limit and ranking.correct():  # too few results: try corrected words
            found, total = ranking.best(limit, admitted, excluded)
        return found, total


def _built(segment: Segment[InvertedIndex]) -> InvertedIndex:
    return segment.built(lambda references: index_of(references, Words()))


class ProviderToolIndex(ToolIndex):
    """Lets the model's provider search.

    All tools are sent to the provider, marked so that the model sees those that it finds. With
    models without a tool search, and outside of `ToolSearchToolCallingAdvisor`, *fallback* searches
    in this process.

    Args:
        fallback: The index for other models; default: by keywords.
        variant: `bm25` or `regex`, for providers that have both; default: the provider's choice,
            for Anthropic `bm25`. Models without that variant use *fallback*.

    Raises:
        UsageError: *variant* is unknown, or *fallback* is not a `ToolIndex`.
    """

    def __init__(
        self, fallback: ToolIndex | None = None, *, variant: SearchVariant | None = None
    ) -> None:
        if fallback is not None:
            check_type("the fallback of a tool index", fallback, ToolIndex)
        check_choice("variant", variant, "bm25", "regex", None)
        self.fallback = KeywordToolIndex() if fallback is None else fallback
        self.server_tool = ToolSearch(variant=variant)

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Set the tools of a session in the fallback."""
        await self.fallback.put(session_id, references, runtime)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search with the fallback."""
        return await self.fallback.find(request, runtime)

    async def drop(self, session_id: str, runtime: Runtime) -> None:
        """Remove the tools of a session from the fallback."""
        await self.fallback.drop(session_id, runtime)
