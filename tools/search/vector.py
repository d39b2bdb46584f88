"""Search by meaning: any embedding model, any vector store."""

from collections.abc import Iterator, Sequence
from time import perf_counter
from uuid import uuid4

from chatclient.driving import drive
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.tools.search.catalog import Catalog, Catalogs, Segment
from chatclient.tools.search.index import (
    DEFAULT_MAX_RESULTS,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    as_response,
)
from chatclient.tools.search.text import Words, parameter_texts, tidied
from chatclient.vector_store.store import Document, SimilaritySearch, VectorStore

_DEPTH = 50  # documents that each wish brings, at least
_MOST_WISHES = 8  # of a query that are embedded by themselves
_BEST_WISH = 0.7  # what the wish that a tool fits best counts; the rest, the query as a whole
_POLL = 0.02  # seconds between two looks at whether somebody else has built a segment


class VectorToolIndex(ToolIndex):
    """Finds tools that mean what the query means, whatever words either uses.

    A query with several wishes is embedded as a whole and wish by wish. Tools are embedded when a
    catalog that has them is first put in; sessions with the same tools share the documents. Only
    this index finds them again: where the store outlives it, call `clear_all` at the end.

    Args:
        store: Where the tools' documents go; one index beside others may use it, for every
            document has metadata `segment` of its own.
        max_results: How many tools a search gives that does not say.
        threshold: The least similarity of a tool that is found, between -1.0 and 1.0.
    """

    def __init__(
        self,
        store: VectorStore,
        *,
        max_results: int = DEFAULT_MAX_RESULTS,
        threshold: float | None = 0.1,
    ) -> None:
        self._store = store
        self._max_results = max_results
        self._threshold = threshold
        self._catalogs: Catalogs[str] = Catalogs()
        self._words = Words()

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Make *references* the tools of a session; only what is new is embedded.

        Raises:
            ProviderError: The embedding model's side failed. It is tried again when the session is
                put in or searched again.
        """
        change = self._catalogs.assign(session_id, references)
        await self._erase(change.dropped, runtime)
        if change.catalog is not None:
            await self._build(change.catalog, runtime)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search the tools of one session.

        Raises:
            ProviderError: The embedding model's side failed.
        """
        started = perf_counter()
        catalog = self._catalogs.of(request.session_id)
        if catalog is None or not catalog.size or not request.query.strip():
            return as_response("vector", request, (), 0, started)
        await self._build(catalog, runtime)
        limit = request.limit(self._max_results)
        scores = await self._scores(catalog, request, limit, runtime)
        ordered = sorted(scores.items(), key=lambda pair: (-pair[1], pair[0]))
        found = [
            (score, reference)
            for number, score in ordered
            if (reference := catalog.reference(number)).tool_name not in request.exclude
        ]
        return as_response("vector", request, found[:limit], len(found), started)

    async def drop(self, session_id: str, runtime: Runtime) -> None:
        """Forget the tools of a session."""
        await self._erase(self._catalogs.remove(session_id).dropped, runtime)

    def clear_all(self) -> None:
        """Forget the tools of all sessions, and delete their documents from the store."""
        drive(self._erase(self._catalogs.clear(), BLOCKING))

    async def aclear_all(self) -> None:
        """Forget the tools of all sessions, and delete their documents from the store."""
        await self._erase(self._catalogs.clear(), ON_LOOP)

    async def _scores(
        self, catalog: Catalog[str], request: ToolSearchRequest, limit: int, runtime: Runtime
    ) -> dict[int, float]:
        """Return how well tools fit the query as a whole and the wish that they fit best."""
        offsets = {part.segment.payload: part for part in catalog.parts}
        admitted = catalog.admitted(request)
        depth = max(_DEPTH, 2 * limit + len(request.exclude))
        # Whom the filters admit is not known to the store: among all, none of them is missed.
        depth = catalog.size if admitted is not None else min(depth, catalog.size)
        depth += sum(len(part.removed) for part in catalog.parts)
        where = {"segment": {"in": list(offsets)}}
        searches = [
            SimilaritySearch(text, depth, self._threshold, where)
            for text in self._texts(request.query)
        ]
        answers = []
        for documents in await self._store.find_all(searches, runtime):
            answer: dict[int, float] = {}
            for document in documents:
                part = offsets[document.metadata["segment"]]
                within = document.metadata["number"]
                number = part.offset + within
                if within not in part.removed and (admitted is None or number in admitted):
                    answer[number] = document.score or 0.0
            answers.append(_relative(answer))
        return _combined(answers[0], answers[1:])

    def _texts(self, query: str) -> list[str]:
        wishes = self._words.wishes(tidied(query))
        return [query, *(wishes[:_MOST_WISHES] if len(wishes) > 1 else ())]

    async def _build(self, catalog: Catalog[str], runtime: Runtime) -> None:
        for part in catalog.parts:
            segment = part.segment
            while segment.payload is None:
                # Neither a thread nor a task may wait here in the way of the other's.
                if segment.building.acquire(blocking=False):
                    try:
                        await self._embed(segment, runtime)
                    finally:
                        segment.building.release()
                else:
                    await runtime.sleep(_POLL)

    async def _embed(self, segment: Segment[str], runtime: Runtime) -> None:
        if segment.payload is None:
            key = uuid4().hex
            await self._store.put(self._documents(key, segment.references), runtime)
            segment.payload = key
            if not segment.users:  # all who wanted it are gone: nobody else would erase it
                await self._erase((segment,), runtime)

    def _documents(self, key: str, references: Sequence[ToolReference]) -> Iterator[Document]:
        for number, reference in enumerate(references):
            metadata = {"segment": key, "number": number, "tool": reference.tool_name}
            yield Document(self.text(reference), metadata, f"{key}/{number}")

    def text(self, reference: ToolReference) -> str:
        """Return what is embedded of a tool: its name in words, its description, its parameters."""
        names, _, _ = parameter_texts(reference.parameters)
        text = f"{self._words.spaced(reference.tool_name)}: {reference.summary}"
        if names:
            text += f" Parameters: {', '.join(map(self._words.spaced, names))}"
        return text

    async def _erase(self, segments: Sequence[Segment[str]], runtime: Runtime) -> None:
        keys = [segment.payload for segment in segments if segment.payload is not None]
        if keys:
            await self._store.remove(None, {"segment": {"in": keys}}, runtime)


def _relative(scores: dict[int, float]) -> dict[int, float]:
    top = max(scores.values(), default=0.0)
    return {number: score / top for number, score in scores.items()} if top > 0 else {}


def _combined(whole: dict[int, float], wishes: Sequence[dict[int, float]]) -> dict[int, float]:
    """Return the score for the whole query together with that for the best wish.

    What an answer does not reach to counts as the last that it has.
    """
    if not wishes:
        return whole
    least = min(whole.values(), default=0.0)
    numbers = set(whole).union(*wishes)
    return {
        number: (1 - _BEST_WISH) * whole.get(number, least)
        + _BEST_WISH * max(wish.get(number, 0.0) for wish in wishes)
        for number in numbers
    }
