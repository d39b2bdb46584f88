"""The collection and requests of `QdrantVectorStore`; imports qdrant-client."""

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from chatclient._internal import json
from chatclient._internal.checks import check_type
from chatclient.chat.embedding import Vector
from chatclient.errors import (
    ChatClientError,
    UsageError,
    VectorStoreError,
    VectorStoreUnavailableError,
)
from chatclient.memory.encoding import digest, restored, storable
from chatclient.retrieval.vector_store.filters import Filter, predicate
from chatclient.retrieval.vector_store.lengths import length_of, mismatch
from chatclient.retrieval.vector_store.qdrant_filters import (
    TOKENS,
    NoRangeError,
    condition,
    filterable,
)
from chatclient.retrieval.vector_store.store import (
    Document,
    SimilaritySearch,
    metadata_json,
    plain_json,
)
from chatclient.runtime.threads import ForkSafeLock

T = TypeVar("T")

_BATCH = 200  # points in one request; servers accept 32 MB
_PAGE = 1_000  # points whose metadata is read at once
_FIELDS = ["id", "text", "metadata", "exact"]
_UNFIT = (400, 404)  # vectors have another length, or the collection does not exist
_CONFLICT = 409
_TEMPORARY = (408, 429)


class QdrantPoints:
    """The operations of `QdrantVectorStore`."""

    def __init__(self, target: str | QdrantClient, collection: str, api_key: str | None) -> None:
        check_type("collection", collection, str)
        check_type("location", target, (str, QdrantClient), "give a blocking client")
        self._owned = isinstance(target, str)
        self._client = _client(target, api_key) if isinstance(target, str) else target
        self._collection = collection
        options = self._client.init_options
        self._local = options["location"] == ":memory:" or options["path"] is not None
        # Local mode is not thread-safe.
        self._lock: AbstractContextManager[Any] = ForkSafeLock() if self._local else nullcontext()
        self._known_length: int | None = None  # of a server, which saves two requests

    def store(self, documents: Sequence[Document], vectors: Sequence[Vector]) -> None:
        """Store *documents* with their vectors, replacing those with the same ids."""
        length = length_of(vectors)
        points = [_point(*pair) for pair in zip(documents, vectors, strict=True)]
        self._do(partial(self._store, points, length))

    def erase(self, ids: Collection[str] | None, where: Filter | None) -> int:
        """Delete documents, and return their number."""
        return self._do(partial(self._erase, ids, where))

    def nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        """Return the documents most similar to *vector*."""
        return self._do(partial(self._nearest, vector, search))

    def close(self) -> None:
        """Close the client if it was made for a location."""
        if self._owned:
            self._client.close()

    def _do(self, work: Callable[[], T]) -> T:
        name = f"the Qdrant collection {self._collection!r}"
        try:
            with self._lock:
                return self._again(work)
        except ChatClientError:
            raise
        except ResponseHandlingException as error:
            msg = f"{name} cannot be reached; see the cause of this error"
            raise VectorStoreUnavailableError(msg) from error.source
        except UnexpectedResponse as error:
            status = error.status_code or 0
            kind: type[VectorStoreError] = VectorStoreError
            if status >= 500 or status in _TEMPORARY:  # noqa: PLR2004 - errors of servers
                kind = VectorStoreUnavailableError
            msg = f"{name} refused a request with status {status}; see the cause of this error"
            raise kind(msg) from error
        except Exception as error:  # local mode and gRPC raise errors of many kinds
            msg = f"{name} failed; see the cause of this error"
            raise VectorStoreError(msg) from error

    def _again(self, work: Callable[[], T]) -> T:
        """Return the result of *work*, repeated if the collection is not as it was known."""
        try:
            return work()
        except UnexpectedResponse as error:
            if self._known_length is None or error.status_code not in _UNFIT:
                raise
        self._known_length = None
        return work()

    def _length(self) -> int | None:
        """Return the length of the vectors, or None if the collection does not exist."""
        if not self._client.collection_exists(self._collection):
            return None
        vectors = self._client.get_collection(self._collection).config.params.vectors
        if not isinstance(vectors, models.VectorParams):
            msg = f"the Qdrant collection {self._collection!r} has named vectors; use another one"
            raise VectorStoreError(msg)
        return vectors.size

    def _fits(self, length: int) -> bool:
        """Return whether the collection exists and has vectors of this length.

        Raises:
            UsageError: It contains documents with vectors of another length.
        """
        if self._known_length == length:
            return True
        present = self._length()
        if present not in (None, length) and self._client.count(self._collection).count:
            raise mismatch({present or 0, length})
        if present == length:
            self._known_length = None if self._local else length
        return present == length

    def _store(self, points: list[models.PointStruct], length: int) -> None:
        if not self._fits(length):
            self._create(length)
            self._known_length = None if self._local else length
        for start in range(0, len(points), _BATCH):
            self._client.upsert(self._collection, points[start : start + _BATCH], wait=True)

    def _create(self, length: int) -> None:
        """Create the collection, instead of an empty one for vectors of another length."""
        if self._length() is not None:
            self._client.delete_collection(self._collection)
        vectors = models.VectorParams(size=length, distance=models.Distance.COSINE)
        try:
            self._client.create_collection(self._collection, vectors_config=vectors)
        except UnexpectedResponse as error:
            if error.status_code != _CONFLICT:  # created by another process
                raise
        if not self._local:
            kind = models.PayloadSchemaType.KEYWORD
            self._client.create_payload_index(self._collection, TOKENS, kind)

    def _erase(self, ids: Collection[str] | None, where: Filter | None) -> int:
        if self._known_length is None and self._length() is None:
            return 0
        chosen = [self._condition(where)]
        if ids is not None:
            chosen.append(models.HasIdCondition(has_id=[_point_id(id) for id in ids]))
        matching = models.Filter(must=chosen)
        count = self._client.count(self._collection, count_filter=matching, exact=True).count
        selector = models.FilterSelector(filter=matching)
        self._client.delete(self._collection, points_selector=selector, wait=True)
        return count

    def _nearest(self, vector: Vector, search: SimilaritySearch) -> list[Document]:
        if not self._fits(len(vector)):
            return []
        found = self._client.query_points(
            self._collection,
            query=vector,
            # Without a filter, which local mode would apply to each document.
            query_filter=models.Filter(must=[self._condition(search.where)])
            if search.where
            else None,
            limit=search.top_k,
            with_payload=_FIELDS,
        )
        least = search.threshold
        return [
            _document(point.payload or {}, point.score)
            for point in found.points
            if least is None or point.score >= least
        ]

    def _condition(self, where: Filter | None) -> models.Condition:
        try:
            return condition(where)
        except NoRangeError:
            matches = predicate(where)
            ids = [id for id, metadata in self._all_metadata() if matches(metadata)]
            return models.HasIdCondition(has_id=ids)

    def _all_metadata(self) -> Iterator[tuple[Any, dict[str, Any]]]:
        page: Any = None
        while True:
            points, page = self._client.scroll(
                self._collection, limit=_PAGE, offset=page, with_payload=["metadata"]
            )
            for point in points:
                yield point.id, (point.payload or {}).get("metadata", {})
            if page is None:
                return


def _client(location: str, api_key: str | None) -> QdrantClient:
    if location.startswith(("http://", "https://")):
        return QdrantClient(url=location, api_key=api_key, check_compatibility=False)
    if "://" in location:
        msg = "not the URL of a Qdrant server; it begins with http:// or https://"
        raise UsageError(msg)
    if location == ":memory:":
        return QdrantClient(location)
    try:
        return QdrantClient(path=location, force_disable_check_same_thread=True)
    except Exception as error:  # of files, locks and JSON
        msg = f"the folder {location!r} cannot be opened; see the cause of this error"
        raise VectorStoreError(msg) from error


def _point_id(id: str) -> str:
    return str(UUID(hex=digest(id)[:32]))


def _point(document: Document, vector: Vector) -> models.PointStruct:
    metadata, exact = plain_json(metadata_json(document))
    payload = {
        "id": storable(document.id),
        "text": storable(document.text),
        "metadata": metadata,
        **({} if exact is None else {"exact": exact}),
        **filterable(metadata),
    }
    return models.PointStruct(id=_point_id(document.id), vector=vector, payload=payload)


def _document(payload: dict[str, Any], score: float) -> Document:
    exact = payload.get("exact")
    metadata = payload["metadata"] if exact is None else json.loads(exact)
    return Document(restored(payload["text"]), metadata, restored(payload["id"]), score)
