"""The contract of a store of documents that finds those that are about the same as a text."""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from typing import Any, Self
from uuid import uuid4

from chatclient.checks import check_kind, check_number, names
from chatclient.closing import Closeable
from chatclient.driving import drive
from chatclient.embedding import EmbeddingModel, Vector
from chatclient.errors import UsageError
from chatclient.operations import Retrieval
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.values import EMPTY, frozen
from chatclient.vector_store.filters import Filter, copy_of, predicate

DEFAULT_TOP_K = 4


@dataclass(frozen=True, slots=True)
class Document:
    """A text, with what is known about it.

    Attributes:
        text: What it says; this is embedded.
        metadata: What to filter by: texts, numbers, truth values, None, and lists of these.
        id: What it is called; one is made up where there is none. Adding a document again
            replaces it.
        score: How near it is to what was searched for, 1.0 for the same; None outside of a search.
    """

    text: str
    metadata: Mapping[str, Any] = EMPTY
    id: str = field(default_factory=lambda: uuid4().hex)
    score: float | None = field(default=None, compare=False)

    def __post_init__(self) -> None:
        check_kind("a document's text", self.text, str)
        check_kind("a document's metadata", self.metadata, Mapping)
        check_kind("a document's id", self.id, str)
        object.__setattr__(self, "metadata", frozen(self.metadata))

    def scored(self, score: float) -> Self:
        """Return this document as the result of a search."""
        return replace(self, score=score)


def documents_among(sources: Iterable[object]) -> tuple[Document, ...]:
    """Return the documents among what an answer rests on; an application may have other sources."""
    return tuple(source for source in sources if isinstance(source, Document))


@dataclass(frozen=True, slots=True)
class SimilaritySearch:
    """What is searched for.

    Attributes:
        query: A text; documents that are about the same are found.
        top_k: At most how many.
        threshold: The least score of a result, between -1.0 and 1.0; None takes all.
        where: Which documents count; see `chatclient.vector_store.filters`.

    Raises:
        UsageError: The query is not a text, *top_k* is less than one, *threshold* is not a score,
            or *where* is not a filter.
    """

    query: str
    top_k: int = DEFAULT_TOP_K
    threshold: float | None = None
    where: Filter | None = None

    def __post_init__(self) -> None:
        check_kind("a query", self.query, str, "search for a document by its text")
        check_number("top_k", self.top_k, least=-inf)
        if self.top_k < 1:
            msg = f"top_k is {self.top_k}; ask for at least one document"
            raise UsageError(msg)
        if self.threshold is not None:
            check_number("a threshold", self.threshold, least=-1)
            if self.threshold > 1:
                msg = f"a threshold must be a score of at most 1.0, not {self.threshold!r}"
                raise UsageError(msg)
        predicate(self.where)
        object.__setattr__(self, "where", copy_of(self.where))


class VectorStore(Closeable, ABC):
    """Holds documents with their vectors, and finds the nearest ones by cosine similarity.

    An implementor writes `store`, `erase` and `nearest`, which serve blocking and asynchronous
    callers alike and do all waiting through the runtime they are given. Advisors and tools, which
    have a runtime, call `put`, `find_all` and `remove`; applications the others.

    Args:
        embedding_model: Makes the vectors, of documents and of queries.
    """

    def __init__(self, embedding_model: EmbeddingModel) -> None:
        check_kind("embedding_model", embedding_model, EmbeddingModel)
        self.embedding_model = embedding_model

    @abstractmethod
    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Keep *documents* with their vectors, in place of those with the same ids."""

    @abstractmethod
    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Forget the documents with these ids (None: whatever ids) that fit *where*."""

    @abstractmethod
    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the documents nearest to *vector* as *search* asks, best first."""

    async def put(self, documents: Document | Iterable[Document], runtime: Runtime) -> list[str]:
        """Embed and keep *documents*; see `add`."""
        kept = list({document.id: document for document in _several(documents)}.values())
        if kept:
            texts = [document.text for document in kept]
            vectors = await self.embedding_model.embed_all(texts, runtime)
            await self.store(kept, vectors, runtime)
        return [document.id for document in kept]

    async def find_all(
        self, searches: Sequence[SimilaritySearch], runtime: Runtime
    ) -> list[list[Document]]:
        """Return what each search finds; their queries are embedded together."""
        if not searches:
            return []
        queries = [search.query for search in searches]
        vectors = await self.embedding_model.embed_all(queries, runtime)
        found: list[list[Document]] = []
        for vector, search in zip(vectors, searches, strict=True):
            with runtime.observe(Retrieval(search.query, type(self).__name__)) as observed:
                observed.result = await self.nearest(vector, search, runtime)
            found.append(observed.result)
        return found

    async def remove(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Forget documents; see `delete`."""
        if ids is None and where is None:
            msg = "delete takes ids, or `where` a filter; `where={}` stands for all documents"
            raise UsageError(msg)
        predicate(where)
        return await self.erase(None if ids is None else names(ids), copy_of(where), runtime)

    def add(self, documents: Document | Iterable[Document]) -> list[str]:
        """Embed and keep *documents*, and return their ids. The same id replaces a document.

        Raises:
            WrongTypeError: One of them is something else, such as a text.
            ProviderError: The embedding model's side failed; nothing was kept.
        """
        return drive(self.put(documents, BLOCKING))

    async def aadd(self, documents: Document | Iterable[Document]) -> list[str]:
        """Embed and keep *documents*, and return their ids; see `add`."""
        return await self.put(documents, ON_LOOP)

    def similarity_search(
        self,
        query: str,
        *,
        top_k: int = DEFAULT_TOP_K,
        threshold: float | None = None,
        where: Filter | None = None,
    ) -> list[Document]:
        """Return the documents that are nearest to *query*, best first; see `SimilaritySearch`.

        Raises:
            UsageError: *top_k* is less than one, or *where* is not a filter.
            ProviderError: The embedding model's side failed.
        """
        search = SimilaritySearch(query, top_k, threshold, where)
        return drive(self.find_all([search], BLOCKING))[0]

    async def asimilarity_search(
        self,
        query: str,
        *,
        top_k: int = DEFAULT_TOP_K,
        threshold: float | None = None,
        where: Filter | None = None,
    ) -> list[Document]:
        """Return the documents that are nearest to *query*; see `similarity_search`."""
        search = SimilaritySearch(query, top_k, threshold, where)
        return (await self.find_all([search], ON_LOOP))[0]

    def delete(self, ids: Collection[str] | None = None, *, where: Filter | None = None) -> int:
        """Forget the documents with these ids that fit *where*; return how many there were.

        Raises:
            UsageError: There are neither ids nor a filter (`where={}` stands for all documents),
                or *where* is not a filter.
        """
        return drive(self.remove(ids, where, BLOCKING))

    async def adelete(
        self, ids: Collection[str] | None = None, *, where: Filter | None = None
    ) -> int:
        """Forget documents; see `delete`."""
        return await self.remove(ids, where, ON_LOOP)


def _several(documents: object) -> list[Document]:
    """Return one document or several as a list."""
    several: Any = documents
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        several = (documents,)
    checked: list[Document] = []
    for each in several:
        check_kind("a document", each, Document, "wrap a text: Document(text)")
        checked.append(each)
    return checked
