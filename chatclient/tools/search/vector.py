"""A tool index that searches embeddings in any vector store."""

from collections.abc import Iterator, Sequence
from time import perf_counter
from uuid import uuid4

from chatclient._internal.checks import check_type
from chatclient.chat.document import Document
from chatclient.retrieval.keywords.tokenizer import Words, tidied
from chatclient.retrieval.vector_store.store import SimilaritySearch, VectorStore
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.tools.search.index import (
    DEFAULT_MAX_RESULTS,
    ToolIndex,
    ToolReference,
    ToolSearchRequest,
    ToolSearchResponse,
    as_response,
)
from chatclient.tools.search.segments import Catalog, Catalogs, Segment, parameter_texts

_DEPTH = 50  # minimum number of documents for each text
_MOST_CLAUSES = 8  # of a query that are embedded separately
_BEST_CLAUSE = 0.7  # weight of the best clause of a tool; the rest is for the complete query
_POLL = 0.02  # seconds between checks whether another request has built a segment


class VectorToolIndex(ToolIndex):
    """Finds tools with a meaning similar to the query.

    A query of several clauses is embedded completely and clause by clause. Tools are embedded when
    a session first has them; sessions with the same tools share the documents. Only this index can
    find them: if the store outlives it, call `clear_all` at the end.

    Args:
        store: Stores the tools' documents. Several indexes may share it, because every document
            has unique metadata `segment`.
        max_results: The number of results of a search without a limit.
        threshold: The minimum similarity of a result, between -1.0 and 1.0.

    Raises:
        WrongTypeError: *store* is not a `VectorStore`.
    """

    def __init__(
        self,
        store: VectorStore,
        *,
        max_results: int = DEFAULT_MAX_RESULTS,
        threshold: float | None = 0.1,
    ) -> None:
        check_type("the store of an index", store, VectorStore)
        self._store = store
        self._max_results = max_results
        self._threshold = threshold
        self._catalogs: Catalogs[str] = Catalogs()
        self._words = Words()

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Set the tools of a session; only new ones are embedded.

        Raises:
            ProviderError: The embedding model failed. Embedding is repeated on the next use of the
                session.
        """
        change = self._catalogs.assign(session_id, references)
        await self._erase(change.dropped, runtime)
        if change.catalog is not None:
            await self._build(change.catalog, runtime)

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search the tools of one session.

        Raises:
            ProviderError: The embedding model failed.
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
        """Remove the tools of a session."""
        await self._erase(self._catalogs.remove(session_id).dropped, runtime)

    def clear_all(self) -> None:
        """Remove the tools of all sessions and delete their documents from the store."""
        drive(self._erase(self._catalogs.clear(), BLOCKING))

    async def aclear_all(self) -> None:
        """Remove the tools of all sessions and delete their documents from the store."""
        await self._erase(self._catalogs.clear(), ON_LOOP)

    async def _scores(
        self, catalog: Catalog[str], request: ToolSearchRequest, limit: int, runtime: Runtime
    ) -> dict[int, float]:
        """Return the scores of tools for the complete query and their best clause."""
        offsets = {view.segment.payload: view for view in catalog.views}
        admitted = catalog.admitted(request)
        depth = max(_DEPTH, 2 * limit + len(request.exclude))
        # The store does not know the filters: all documents are needed to miss no admitted tool.
        depth = catalog.size if admitted is not None else min(depth, catalog.size)
        depth += sum(len(view.removed) for view in catalog.views)
        where = {"segment": {"in": list(offsets)}}
        searches = [
            SimilaritySearch(text, depth, self._threshold, where)
            for text in self._texts(request.query)
        ]
        answers = []
        for documents in await self._store.find_all(searches, runtime):
            answer: dict[int, float] = {}
            for document in documents:
                view = offsets[document.metadata["segment"]]
                within = document.metadata["number"]
                number = view.offset + within
                if within not in view.removed and (admitted is None or number in admitted):
                    answer[number] = document.score or 0.0
            top = max(answer.values(), default=0.0)
            answers.append(
                {number: score / top for number, score in answer.items()} if top > 0 else {}
            )
        query = answers[0]
        clauses = answers[1:]
        if not clauses:
            return query
        least = min(query.values(), default=0.0)
        numbers = set(query).union(*clauses)
        return {
            number: (1 - _BEST_CLAUSE) * query.get(number, least)
            + _BEST_CLAUSE * max(clause.get(number, 0.0) for clause in clauses)
            for number in numbers
        }

    def _texts(self, query: str) -> list[str]:
        clauses = self._words.clause_texts(tidied(query))
        return [query, *(clauses[:_MOST_CLAUSES] if len(clauses) > 1 else ())]

    async def _build(self, catalog: Catalog[str], runtime: Runtime) -> None:
        for view in catalog.views:
            segment = view.segment
            while segment.payload is None:
                # Threads and tasks cannot wait for each other's locks.
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
            if (
                not segment.catalogs
            ):  # no catalog contains it any more, so nothing else would erase it
                await self._erase((segment,), runtime)

    def _documents(self, key: str, references: Sequence[ToolReference]) -> Iterator[Document]:
        for number, reference in enumerate(references):
            metadata = {"segment": key, "number": number, "tool": reference.tool_name}
            yield Document(self.text(reference), metadata, f"{key}/{number}")

    def text(self, reference: ToolReference) -> str:
        """Return the text to embed for a tool: its name in words, description and parameters."""
        names, _, _ = parameter_texts(reference.parameters)
        text = f"{self._words.spaced(reference.tool_name)}: {reference.summary}"
        if names:
            text += f" Parameters: {', '.join(map(self._words.spaced, names))}"
        return text

    async def _erase(self, segments: Sequence[Segment[str]], runtime: Runtime) -> None:
        keys = [segment.payload for segment in segments if segment.payload is not None]
        if keys:
            await self._store.remove(None, {"segment": {"in": keys}}, runtime)
