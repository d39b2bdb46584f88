"""`LangChainVectorStore`: any vector store of LangChain, and the differences between them."""

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import islice
from typing import Any, Protocol, TypeVar

from chatclient.bridges.chroma_filters import chroma_filter
from chatclient.bridges.lance_filters import lance_filter, lance_text
from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.errors import ChatClientError, UsageError, VectorStoreError
from chatclient.extend import ForkSafeLock, check_method
from chatclient.memory.encoding import digest
from chatclient.retrieval.vector_store.filters import Filter, predicate
from chatclient.retrieval.vector_store.store import SimilaritySearch, VectorStore
from chatclient.runtime.runtime import Runtime

ID = "chatclient_id"
"""The key of the id in the metadata of documents, for stores that do not return it."""

_MOST = 1_000_000  # ids of LanceDB that are read for a deletion


class Adapter(Protocol):
    """The differences between the stores of LangChain."""

    @property
    def returns_ids(self) -> bool:
        """Whether documents that were found have their ids."""
        ...

    def add(self, texts: list[str], metadata: list[dict[str, Any]], ids: list[str]) -> None:
        """Store documents, and replace those with the same ids.

        Raises:
            UsageError: The store cannot replace documents, or would change or lose data.
        """
        ...

    def search_arguments(self, where: Filter) -> Mapping[str, Any] | None:
        """Return the keyword arguments of a search; None if no document matches.

        Raises:
            UsageError: The filter cannot be translated.
        """
        ...

    def ids(self, ids: list[str] | None, where: Filter | None) -> list[str]:
        """Return the ids of the documents that have one of *ids* (None: any) and match *where*.

        Raises:
            UsageError: The store cannot find them.
        """
        ...

    def relevance(self) -> Callable[[float], float]:
        """Return the function that converts scores to similarities."""
        ...


def adapter_for(store: Any) -> Adapter:
    """Return the adapter for *store*, by the name of its class."""
    for each in type(store).__mro__:
        package = each.__module__.partition(".")[0]
        match f"{package}.{each.__name__}":
            case "langchain_chroma.Chroma":
                return _Chroma(store, returns_ids=True)
            case "langchain_community.Chroma":
                return _Chroma(store, returns_ids=False)
            case "langchain_community.FAISS":
                return _Faiss(store)
            case "langchain_community.LanceDB":
                return _LanceDB(store)
            case "langchain_core.InMemoryVectorStore":
                return _InMemory(store)
    return OtherStore(store, None)


def delete(store: Any, ids: list[str], *, present: bool = True) -> None:
    """Delete documents from *store*; *present* is True if it is known to have them.

    Raises:
        UsageError: It has no such method.
        VectorStoreError: It did not delete them.
    """
    name = type(store).__name__
    try:
        deleted = store.delete(ids=ids)
    except NotImplementedError as error:
        msg = f"{name} cannot delete documents, and so cannot replace any: fill it with its own"
        msg += " methods, and search it here"
        raise UsageError(msg) from error
    if deleted is False and present:
        msg = f"{name} has not deleted the documents, and does not say why"
        raise VectorStoreError(msg)


def _relevance_of(store: Any) -> Callable[[float], float]:
    """Return the function with which LangChain converts the scores of a store.

    Raises:
        UsageError: The store has none.
    """
    try:
        found: Callable[[float], float] = store._select_relevance_score_fn()  # noqa: SLF001 - the
        # method that stores override
    except (NotImplementedError, ValueError) as error:
        msg = f"{type(store).__name__} does not tell what its scores mean; set relevance="
        raise UsageError(msg) from error
    return found


class OtherStore:
    """A store of an unknown kind.

    Args:
        store: The store.
        arguments: Returns the keyword arguments of a search for a filter, or None.
    """

    returns_ids = False

    def __init__(self, store: Any, arguments: Callable[[Filter], Mapping[str, Any]] | None) -> None:
        self._store = store
        self._arguments = arguments

    def add(self, texts: list[str], metadata: list[dict[str, Any]], ids: list[str]) -> None:
        """Store documents, after deleting those with the same ids: many stores would keep both."""
        known = self._known(ids)
        if known is None:
            delete(self._store, ids, present=False)
        elif known:
            delete(self._store, known)
        self._store.add_texts(texts, metadata, ids=ids)

    def search_arguments(self, where: Filter) -> Mapping[str, Any] | None:
        """Return what the application's function returns.

        Raises:
            UsageError: There is none.
        """
        if not where:
            return {}
        if self._arguments is None:
            msg = f"filters are not translated for {type(self._store).__name__}; set"
            msg += " search_arguments= to a function that does"
            raise UsageError(msg)
        return self._arguments(where)

    def ids(self, ids: list[str] | None, where: Filter | None) -> list[str]:
        """Return the known ones of *ids*, or all if the store does not tell.

        Raises:
            UsageError: There is a filter, or there are no ids.
        """
        if ids is None or where:
            msg = f"{type(self._store).__name__} deletes by ids only"
            raise UsageError(msg)
        known = self._known(ids)
        return ids if known is None else known

    def _known(self, ids: list[str]) -> list[str] | None:
        """Return those of *ids* that the store has, or None if it does not tell."""
        try:
            found = self._store.get_by_ids(ids)
        except NotImplementedError:
            return None
        # Qdrant's documents have no id of their own here.
        return [str(each.metadata.get(ID) or each.id) for each in found]

    def relevance(self) -> Callable[[float], float]:
        """Return the store's function."""
        return _relevance_of(self._store)


class _InMemory:
    """`langchain_core.vectorstores.InMemoryVectorStore`."""

    returns_ids = True

    def __init__(self, store: Any) -> None:
        self._store = store

    def add(self, texts: list[str], metadata: list[dict[str, Any]], ids: list[str]) -> None:
        self._store.add_texts(texts, metadata, ids=ids)

    def search_arguments(self, where: Filter) -> Mapping[str, Any]:
        matches = predicate(where)
        return {"filter": lambda document: matches(document.metadata)}

    def ids(self, ids: list[str] | None, where: Filter | None) -> list[str]:
        matches = predicate(where)
        found = [id for id, each in [*self._store.store.items()] if matches(each["metadata"])]
        return found if ids is None else [id for id in found if id in set(ids)]

    def relevance(self) -> Callable[[float], float]:
        return float  # its scores are similarities


class _Chroma:
    """`langchain_chroma.Chroma`, and its predecessor in `langchain_community`."""

    def __init__(self, store: Any, *, returns_ids: bool) -> None:
        self._store = store
        self.returns_ids = returns_ids

    def add(self, texts: list[str], metadata: list[dict[str, Any]], ids: list[str]) -> None:
        self._store.add_texts(texts, metadata, ids=ids)

    def search_arguments(self, where: Filter) -> Mapping[str, Any] | None:
        found = chroma_filter(where)
        if isinstance(found, bool):
            return {} if found else None
        return {"filter": found}

    def ids(self, ids: list[str] | None, where: Filter | None) -> list[str]:
        arguments = self.search_arguments(where or {})
        if arguments is None or ids == []:
            return []
        known = self._store.get(ids=ids, where=arguments.get("filter"), include=[])
        found: list[str] = known["ids"]
        return found

    def relevance(self) -> Callable[[float], float]:
        return _relevance_of(self._store)


class _Faiss:
    """`langchain_community.vectorstores.FAISS`.

    Adding an existing id would leave the vector without a document, and fail all later searches.
    """

    returns_ids = True

    def __init__(self, store: Any) -> None:
        self._store = store

    def add(self, texts: list[str], metadata: list[dict[str, Any]], ids: list[str]) -> None:
        store = self._store
        vectors = (
            [store.embedding_function(text) for text in texts]
            if store.embeddings is None
            else store.embeddings.embed_documents(texts)
        )
        if any(len(vector) != store.index.d for vector in vectors):
            msg = f"the index of FAISS is for vectors of length {store.index.d}, and those of the"
            msg += f" documents have {len(vectors[0])}"
            raise UsageError(msg)
        if known := self.ids(ids, None):
            delete(store, known)
        store.add_embeddings(zip(texts, vectors, strict=True), metadata, ids)

    def search_arguments(self, where: Filter) -> Mapping[str, Any] | None:
        if not where:
            return {}
        # It filters the documents that it has found.
        return {"filter": predicate(where), "fetch_k": max(1, self._store.index.ntotal)}

    def ids(self, ids: list[str] | None, where: Filter | None) -> list[str]:
        present = {*self._store.index_to_docstore_id.values()}
        found = [*present] if ids is None else [id for id in dict.fromkeys(ids) if id in present]
        if not where:
            return found
        matches = predicate(where)
        documents = zip(found, self._store.get_by_ids(found), strict=True)
        return [id for id, document in documents if matches(document.metadata)]

    def relevance(self) -> Callable[[float], float]:
        store = self._store
        if store.override_relevance_score_fn is not None:
            return _relevance_of(store)
        # For vectors of length 1; the functions of LangChain turn inner products round.
        is_product = store.index.metric_type == 0
        return float if is_product else lambda distance: 1 - distance / 2


class _LanceDB:
    """`langchain_community.vectorstores.LanceDB`, whose table has the columns of the first rows."""

    returns_ids = False

    def __init__(self, store: Any) -> None:
        self._store = store

    def add(self, texts: list[str], metadata: list[dict[str, Any]], ids: list[str]) -> None:
        if self._store.mode == "overwrite":
            msg = "LanceDB(mode='overwrite') replaces all documents; use mode='append'"
            raise UsageError(msg)
        if (table := self._store.get_table()) is not None:
            fields = _fields(table)
            metadata = [_row(each, fields) for each in metadata]
            delete(self._store, ids)  # it would keep both
        self._store.add_texts(texts, metadata, ids=ids)

    def search_arguments(self, where: Filter) -> Mapping[str, Any] | None:
        table = self._store.get_table()
        if table is None:
            return None
        text = lance_filter(where, _fields(table))
        metric = self._store.distance
        return {"filter": text, "prefilter": True, "metrics": {"ip": "dot"}.get(metric, metric)}

    def ids(self, ids: list[str] | None, where: Filter | None) -> list[str]:
        table = self._store.get_table()
        if table is None or ids == []:
            return []
        key = self._store._id_key  # noqa: SLF001 - has no public name
        text = lance_filter(where or {}, _fields(table))
        if ids is not None:
            text = f"({text}) AND {key} IN ({', '.join(map(lance_text, ids))})"
        return [row[key] for row in table.search().where(text).select([key]).limit(_MOST).to_list()]

    def relevance(self) -> Callable[[float], float]:
        return _relevance_of(self._store)


def _fields(table: Any) -> dict[str, Any]:
    """Return the types of the metadata in a table of LanceDB, by key."""
    fields = table.schema.field("metadata").type
    return {field.name: field.type for field in fields}


def _row(metadata: dict[str, Any], fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return *metadata* with a value for each field.

    Raises:
        UsageError: LanceDB would refuse or change a value.
    """
    for key, value in metadata.items():
        if key not in fields or not _keeps(fields[key], value):
            msg = f"the metadata {key!r} does not fit into the table of LanceDB, whose columns are"
            msg += f" those of the first documents: {value!r}"
            raise UsageError(msg)
    return {key: metadata.get(key) for key in fields}


def _keeps(kind: Any, value: Any) -> bool:
    """Return whether an Arrow type represents *value*; Arrow truncates some numbers."""
    import pyarrow as pa  # noqa: PLC0415 - comes with LanceDB

    try:
        return bool(pa.scalar(value, kind).as_py() == value)
    except (pa.ArrowException, TypeError, OverflowError):
        return False


T = TypeVar("T")

_BATCH = 1_000  # documents in one call of the store; some have a limit


class LangChainVectorStore(VectorStore):
    """Makes a vector store of LangChain available, with the documents that it contains.

    The store computes all vectors, and decides which metadata it keeps: most take texts, numbers
    and booleans, and leave out None. Scores are the store's relevance scores: the similarity if it
    is configured for cosine distance. Filters are translated for `Chroma`, `FAISS`, `LanceDB` and
    `InMemoryVectorStore`; what one of them cannot express is a `UsageError`. A store that cannot
    delete is only searched. All errors of the store are `VectorStoreError`s.

    The store's plain methods are called, by requests on an event loop in a worker thread. Changes
    are made one at a time.

    Args:
        store: The vector store.
        search_arguments: Returns, for a filter, the keyword arguments of the store's
            `similarity_search_with_score`, such as `{"filter": ...}`; for other stores.
        relevance: Converts a score of the store to a similarity; default: the store's own function.

    Raises:
        WrongTypeError: *store* is not a vector store.
    """

    def __init__(
        self,
        store: Any,
        *,
        search_arguments: Callable[[Filter], Mapping[str, Any]] | None = None,
        relevance: Callable[[float], float] | None = None,
    ) -> None:
        check_method("a LangChain store", store, "similarity_search_with_score")
        super().__init__(_StoreEmbeddings(store))
        self._store = store
        self._adapter: Adapter = adapter_for(store)
        if search_arguments is not None:
            self._adapter = OtherStore(store, search_arguments)
        self._relevance = relevance
        self._lock = ForkSafeLock()

    def __repr__(self) -> str:
        return f"LangChainVectorStore({type(self._store).__name__})"

    async def vectors_of(
        self,
        texts: Sequence[str],
        runtime: Runtime,  # noqa: ARG002 - the store embeds texts
    ) -> list[Vector]:
        """Return empty vectors."""
        return [[] for _ in texts]

    async def store(
        self, documents: Sequence[Document], vectors: Sequence[Vector], runtime: Runtime
    ) -> None:
        """Store *documents*.

        Raises:
            UsageError: There are precomputed vectors, or the store cannot replace documents.
            VectorStoreError: The store failed.
        """
        if any(vectors):
            msg = "a LangChain store computes vectors itself; it takes no precomputed vectors"
            raise UsageError(msg)
        await runtime.finish(self._do, partial(self._add, documents))

    async def erase(
        self, ids: Collection[str] | None, where: Filter | None, runtime: Runtime
    ) -> int:
        """Delete documents.

        Raises:
            UsageError: The store cannot find documents by this filter.
            VectorStoreError: The store failed.
        """
        return await runtime.finish(self._do, partial(self._erase, ids, where))

    async def nearest(
        self,
        vector: Vector,  # noqa: ARG002 - the store embeds the query
        search: SimilaritySearch,
        runtime: Runtime,
    ) -> list[Document]:
        """Return the documents most similar to the query.

        Raises:
            UsageError: The filter cannot be translated.
            VectorStoreError: The store failed.
        """
        return await runtime.invoke(self._do, partial(self._nearest, search))

    def _do(self, work: Callable[[], T]) -> T:
        try:
            return work()
        except ChatClientError:
            raise
        except Exception as error:  # each store has errors of its own
            msg = f"{type(self._store).__name__} failed; see the cause of this error"
            raise VectorStoreError(msg) from error

    def _add(self, documents: Sequence[Document]) -> None:
        rest = iter(documents)
        with self._lock:
            while batch := list(islice(rest, _BATCH)):
                ids = [document.id for document in batch]
                metadata = [self._metadata(document) for document in batch]
                texts = [document.text for document in batch]
                self._adapter.add(texts, metadata, ids)

    def _metadata(self, document: Document) -> dict[str, Any]:
        plain = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in document.metadata.items()
        }
        return plain if self._adapter.returns_ids else plain | {ID: document.id}

    def _erase(self, ids: Collection[str] | None, where: Filter | None) -> int:
        with self._lock:
            found = self._adapter.ids(None if ids is None else list(ids), where)
            for start in range(0, len(found), _BATCH):
                delete(self._store, found[start : start + _BATCH])
        return len(found)

    def _nearest(self, search: SimilaritySearch) -> list[Document]:
        arguments = self._adapter.search_arguments(search.where or {})
        if arguments is None:
            return []
        found = self._store.similarity_search_with_score(search.query, k=search.top_k, **arguments)
        relevance = self._relevance or self._adapter.relevance()
        scored = [_document(each).scored(relevance(float(score))) for each, score in found]
        least = search.threshold
        return [each for each in scored if least is None or (each.score or 0) >= least]


def _document(found: Any) -> Document:
    metadata = {key: value for key, value in found.metadata.items() if value is not None}
    id = metadata.pop(ID, None) or getattr(found, "id", None) or digest(found.page_content)
    return Document(found.page_content, metadata, str(id))


class _StoreEmbeddings(EmbeddingModel):
    """The embeddings of a LangChain store."""

    def __init__(self, store: Any) -> None:
        self._store = store

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        embeddings = self._store.embeddings
        if embeddings is None:
            msg = f"{type(self._store).__name__} does not tell its embeddings"
            raise UsageError(msg)
        vectors: list[Vector] = await runtime.invoke(embeddings.embed_documents, [*texts])
        return vectors
