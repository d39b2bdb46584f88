"""`VectorStore`: the contract of a store that searches documents by similarity."""

import re
from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite
from typing import Any

from chatclient._internal import json
from chatclient._internal.checks import check_number, check_type, names
from chatclient._internal.closeable import Closeable
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.errors import UsageError, WrongTypeError
from chatclient.observability.operations import Retrieval
from chatclient.retrieval.vector_store.filters import Filter, copy_of, predicate
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime

DEFAULT_TOP_K = 4


def metadata_json(document: Document) -> str:
    """Return the metadata of *document* as JSON.

    Raises:
        UsageError: A value has no JSON form.
    """
    try:
        return json.dumps(document.metadata).decode()
    except TypeError as error:
        msg = f"the metadata of document {document.id!r} cannot be encoded as JSON: {error}"
        raise UsageError(msg) from error


# NUL and lone surrogates are escaped in JSON. Exponents: databases may return integers for them.
# Numbers of many digits: some databases return the nearest one that has 64 bits.
_ALTERED = re.compile(r"\\u|\de\+|\d{16}")
_ODD = re.compile("[\0\ud800-\udfff]")


def plain_json(exact: str) -> tuple[Any, str | None]:
    """Return metadata that any database stores, and its JSON if the former lacks something.

    Filters cannot name NUL and lone surrogates, so that other characters may replace them for
    comparisons. These are the nearest in the order of texts.

    Args:
        exact: The result of `metadata_json`.
    """
    metadata = json.loads(exact)
    if not _ALTERED.search(exact):
        return metadata, None
    return _plain(metadata), exact


def _plain(value: Any) -> Any:
    match value:
        case str():
            return _ODD.sub(lambda found: "\1" if found[0] == "\0" else "\ue000", value)
        case list():
            return [_plain(item) for item in value]
        case dict():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case _:
            return value


@dataclass(frozen=True, slots=True)
class SimilaritySearch:
    """A search by similarity.

    Attributes:
        query: The text to which results are similar.
        top_k: The maximum number of results.
        threshold: The minimum score of a result, between -1.0 and 1.0; None: no minimum.
        where: A metadata filter; see `chatclient.retrieval.vector_store.filters`.

    Raises:
        UsageError: The query is not a text, *top_k* is less than one, *threshold* is not a score,
            or *where* is not a filter.
    """

    query: str
    top_k: int = DEFAULT_TOP_K
    threshold: float | None = None
    where: Filter | None = None

    def __post_init__(self) -> None:
        check_type("a query", self.query, str, "search for a document by its text")
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
    """Stores documents with their vectors, and searches them by cosine similarity.

    A subclass implements `store`, `erase` and `nearest`, which serve blocking and asynchronous
    callers and must wait with the methods of the given runtime. Advisors and tools, which have a
    runtime, call `put`, `find_all` and `remove`; applications call the other methods.

    Args:
        embedding_model: Computes the vectors of documents and queries.
    """

    def __init__(self, embedding_model: EmbeddingModel) -> None:
        check_type("embedding_model", embedding_model, EmbeddingModel)
        self.embedding_model = embedding_model

    @abstractmethod
    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Store *documents* with their vectors, replacing those with the same ids."""

    @abstractmethod
    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Delete the documents that have one of *ids* (None: any id) and match *where*."""

    @abstractmethod
    async def nearest(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the results of *search*, whose query has *vector*, the best first."""

    async def vectors_of(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*, which are passed to `store` and `nearest`.

        A store that embeds texts itself overrides it and returns empty vectors.
        """
        return await self.embedding_model.embed_all(texts, runtime)

    async def put(
        self,
        documents: Document | Iterable[Document],
        runtime: Runtime,
        *,
        vectors: Iterable[Vector] | None = None,
    ) -> list[str]:
        """Store *documents*, and embed them unless *vectors* are given; see `add`."""
        several = [_with_plain_metadata(each) for each in _several(documents)]
        if vectors is None:
            unique = list({document.id: document for document in several}.values())
            found = await self.vectors_of([each.text for each in unique], runtime) if unique else []
        else:
            try:
                checked = [[float(number) for number in vector] for vector in vectors]
            except (TypeError, ValueError) as error:
                msg = "vectors must be lists of numbers, one for each document"
                raise WrongTypeError(msg) from error
            if len(checked) != len(several):
                msg = f"there are {len(checked)} vectors for {len(several)} documents"
                raise UsageError(msg)
            if not all(vector and all(map(isfinite, vector)) for vector in checked):
                msg = "a vector is empty, or contains NaN or an infinite number"
                raise UsageError(msg)
            pairs = zip(several, checked, strict=True)
            by_id = {document.id: (document, vector) for document, vector in pairs}
            unique = [document for document, _ in by_id.values()]
            found = [vector for _, vector in by_id.values()]
        if unique:
            await self.store(unique, found, runtime)
        return [document.id for document in unique]

    async def find_all(
        self, searches: Sequence[SimilaritySearch], runtime: Runtime
    ) -> list[list[Document]]:
        """Return the results of each search; the queries are embedded together."""
        if not searches:
            return []
        queries = [search.query for search in searches]
        vectors = await self.vectors_of(queries, runtime)
        found: list[list[Document]] = []
        for vector, search in zip(vectors, searches, strict=True):
            with runtime.observe(Retrieval(search.query, type(self).__name__)) as observed:
                observed.result = await self.nearest(vector, search, runtime)
            found.append(observed.result)
        return found

    async def remove(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Delete documents; see `delete`."""
        if ids is None and where is None:
            msg = "delete needs ids or a filter `where`; `where={}` deletes all documents"
            raise UsageError(msg)
        predicate(where)
        return await self.erase(None if ids is None else names(ids), copy_of(where), runtime)

    def add(
        self,
        documents: Document | Iterable[Document],
        *,
        vectors: Iterable[Vector] | None = None,
    ) -> list[str]:
        """Embed and store *documents*, and return their ids; existing ids are replaced.

        Args:
            documents: The documents.
            vectors: Their vectors, if they were computed before, in the order of *documents*.

        Raises:
            WrongTypeError: One of them is not a `Document`, but a text for example.
            UsageError: Metadata has no JSON form, or the vectors are not one list of finite numbers
                for each document, or have another length than those in the store.
            ProviderError: The embedding failed; nothing was stored.
        """
        return drive(self.put(documents, BLOCKING, vectors=vectors))

    async def aadd(
        self,
        documents: Document | Iterable[Document],
        *,
        vectors: Iterable[Vector] | None = None,
    ) -> list[str]:
        """Store *documents*, and return their ids; see `add`."""
        return await self.put(documents, ON_LOOP, vectors=vectors)

    def similarity_search(
        self,
        query: str,
        *,
        top_k: int = DEFAULT_TOP_K,
        threshold: float | None = None,
        where: Filter | None = None,
    ) -> list[Document]:
        """Return the documents most similar to *query*, the best first; see `SimilaritySearch`.

        Raises:
            UsageError: *top_k* is less than one, or *where* is not a filter.
            ProviderError: The embedding failed.
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
        """Return the documents most similar to *query*; see `similarity_search`."""
        search = SimilaritySearch(query, top_k, threshold, where)
        return (await self.find_all([search], ON_LOOP))[0]

    def delete(self, ids: Collection[str] | None = None, *, where: Filter | None = None) -> int:
        """Delete the documents that have one of *ids* and match *where*; return their number.

        Raises:
            UsageError: There are neither ids nor a filter (`where={}` deletes all documents), or
                *where* is not a filter.
        """
        return drive(self.remove(ids, where, BLOCKING))

    async def adelete(
        self, ids: Collection[str] | None = None, *, where: Filter | None = None
    ) -> int:
        """Delete documents; see `delete`."""
        return await self.remove(ids, where, ON_LOOP)


def _several(documents: object) -> list[Document]:
    """Return one document or several as a list."""
    several: Any = documents
    if isinstance(documents, str) or not isinstance(documents, Iterable):
        several = (documents,)
    checked: list[Document] = []
    for each in several:
        check_type("a document", each, Document, "wrap a text: Document(text)")
        checked.append(each)
    return checked


_PLAIN = frozenset({str, int, bool, type(None)})


def _with_plain_metadata(document: Document) -> Document:
    """Return *document* with the values that JSON has for those of its metadata."""
    values = document.metadata.values()
    if all(type(v) in _PLAIN or (type(v) is float and isfinite(v)) for v in values):
        return document
    return replace(document, metadata=json.loads(metadata_json(document)))


class HybridVectorStore(VectorStore):
    """A vector store that combines similarity with full-text search.

    Names, numbers and rare words, which embedding models know little about, are found by the text,
    other documents by their meaning. A subclass implements `nearest_or_matching`.
    """

    @abstractmethod
    async def nearest_or_matching(
        self, vector: Vector, search: SimilaritySearch, runtime: Runtime
    ) -> list[Document]:
        """Return the results of *search* by vector and by words, the best first.

        The score of each is its similarity. A threshold applies to documents that were found by
        similarity only.
        """

    async def find_hybrid(self, search: SimilaritySearch, runtime: Runtime) -> list[Document]:
        """Return the results of *search* by vector and by words; for advisors and tools."""
        [vector] = await self.vectors_of([search.query], runtime)
        with runtime.observe(Retrieval(search.query, type(self).__name__)) as observed:
            found = await self.nearest_or_matching(vector, search, runtime)
            observed.result = found
        return found

    def hybrid_search(
        self, query: str, *, top_k: int = DEFAULT_TOP_K, where: Filter | None = None
    ) -> list[Document]:
        """Return the documents that are similar to *query* or contain its words, the best first.

        The rank of a document depends on its ranks in both searches. Its score is the similarity.

        Raises:
            UsageError: *top_k* is less than one, or *where* is not a filter.
            ProviderError: The embedding failed.
            VectorStoreError: The store failed.
        """
        return drive(self.find_hybrid(SimilaritySearch(query, top_k, where=where), BLOCKING))

    async def ahybrid_search(
        self, query: str, *, top_k: int = DEFAULT_TOP_K, where: Filter | None = None
    ) -> list[Document]:
        """Return documents by similarity and words; see `hybrid_search`."""
        return await self.find_hybrid(SimilaritySearch(query, top_k, where=where), ON_LOOP)


def length_of(vectors: Sequence[Vector]) -> int:
    """Return the length of *vectors*.

    Raises:
        UsageError: They have several.
    """
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        raise mismatch(lengths)
    return lengths.pop()


def mismatch(lengths: Collection[int]) -> UsageError:
    """Return the error for vectors of several lengths."""
    listed = sorted(lengths)
    return UsageError(f"vectors of lengths {listed} cannot be compared; use one embedding model")
