"""The collection and requests of `QdrantVectorStore`; imports qdrant-client."""

import math
import sys
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, TypeVar
from uuid import UUID

from qdrant_client import QdrantClient, models
from qdrant_client.http.exceptions import ResponseHandlingException, UnexpectedResponse

from chatclient._internal import json
from chatclient._internal.checks import check_type
from chatclient.chat.document import Document
from chatclient.chat.embedding import Vector
from chatclient.errors import (
    ChatClientError,
    UsageError,
    VectorStoreError,
    VectorStoreUnavailableError,
)
from chatclient.memory.encoding import digest, restored, storable
from chatclient.retrieval.vector_store.filters import (
    ORDERINGS,
    Filter,
    comparisons,
    filters_in,
    kind_of,
    predicate,
)
from chatclient.retrieval.vector_store.store import (
    SimilaritySearch,
    length_of,
    metadata_json,
    mismatch,
    plain_json,
)
from chatclient.runtime.threads import ForkSafeLock

TOKENS = "tokens"
"""The key of the payload that needs an index."""

_NUMBERS = "numbers"
_FLOATS = 2**53  # with which Qdrant compares numbers: from here on, they leave out integers
_MAX_TOKEN = 200  # characters
_EVERYTHING = models.Filter()
_NOTHING = models.HasIdCondition(has_id=[])


class NoRangeError(Exception):
    """The filter compares the order of texts, or of integers that floats do not tell apart."""


def filterable(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields of a payload for filters on *metadata*."""
    tokens = {token for key, value in metadata.items() for token in _tokens(key, value)}
    numbers = {
        _field(key): _limited(value)
        for key, value in metadata.items()
        if kind_of(value) == "number"
    }
    return {TOKENS: sorted(tokens), _NUMBERS: numbers}


def condition(where: Filter | None) -> models.Condition:
    """Return *where* as a condition on the fields of `filterable`.

    Raises:
        UsageError: *where* is not a filter.
        NoRangeError: Qdrant cannot compare the order.
    """
    return _all([_key(key, value) for key, value in (where or {}).items()])


def _tokens(key: str, value: Any) -> Iterator[str]:
    if value is not None:
        yield _token("exists", key)
    if isinstance(value, list):
        yield from (_token("contains", key, item) for item in value if _comparable(item))
    elif _comparable(value):
        yield _token("is", key, value)


def _comparable(value: Any) -> bool:
    return isinstance(value, str | int | float | None)


def _token(*parts: Any) -> str:
    """Return a text that is the same for equal values, and other for others."""
    token = json.dumps([_canonical(part) for part in parts]).decode()
    return token if len(token) <= _MAX_TOKEN else digest(token)


def _canonical(value: Any) -> Any:
    return int(value) if isinstance(value, float) and value.is_integer() else value


def _field(key: str) -> str:
    """Return a name for *key* without characters that have a meaning in paths."""
    return digest(key)[:32]


def _limited(number: float) -> float:
    """Return *number* within the range of JSON numbers."""
    return max(-sys.float_info.max, min(number, sys.float_info.max))


def _key(key: str, value: Any) -> models.Condition:
    match key:
        case "$and":
            return _all([condition(each) for each in filters_in(key, value)])
        case "$or":
            each = [condition(each) for each in filters_in(key, value)]
            return models.Filter(should=each) if each else _NOTHING
        case "$not":
            return models.Filter(must_not=[condition(filters_in(key, [value])[0])])
    return _all([_comparison(name, key, wanted) for name, wanted in comparisons(key, value)])


def _all(conditions: list[models.Condition]) -> models.Condition:
    # Local mode evaluates each level of a filter for each document.
    if len(conditions) == 1:
        return conditions[0]
    return models.Filter(must=conditions) if conditions else _EVERYTHING


def _comparison(name: str, key: str, wanted: Any) -> models.Condition:
    match name:
        case "eq" | "ne":
            found = _has("is", key, [wanted])
        case "in" | "not_in":
            found = _has("is", key, wanted)
        case "contains":
            return _has("contains", key, [wanted])
        case "exists":
            found = _has("exists", key, None)
            return found if wanted else models.Filter(must_not=[found])
        case _:
            return _ordered(name, key, wanted)
    return models.Filter(must_not=[found]) if name in ("ne", "not_in") else found


def _has(name: str, key: str, values: Collection[Any] | None) -> models.Condition:
    """Return the condition that one of *values* is that of *key*, or any one."""
    if values is None:
        tokens = [_token(name, key)]
    else:  # metadata has no infinite numbers
        finite = (each for each in values if not (isinstance(each, float) and math.isinf(each)))
        tokens = [_token(name, key, each) for each in finite]
    if not tokens:
        return _NOTHING
    match = models.MatchAny(any=tokens) if tokens[1:] else models.MatchValue(value=tokens[0])
    return models.FieldCondition(key=TOKENS, match=match)


def _ordered(name: str, key: str, wanted: Any) -> models.Condition:
    match kind_of(wanted):
        case "number":
            if abs(wanted) >= _FLOATS and math.isfinite(wanted):
                raise NoRangeError
            limits = dict.fromkeys(ORDERINGS) | {name: _limited(wanted)}
            field = f"{_NUMBERS}.{_field(key)}"
            return models.FieldCondition(key=field, range=models.Range(**limits))
        case "str":
            raise NoRangeError
        case _:
            return _NOTHING


T = TypeVar("T")

_BATCH = 200  # points in one request; servers accept 32 MB
_PAGE = 1_000  # points whose metadata is read in one request
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
                try:
                    return work()
                except UnexpectedResponse as error:
                    if self._known_length is None or error.status_code not in _UNFIT:
                        raise
                self._known_length = None
                return work()
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
            # Create the collection, instead of an empty one for vectors of another
            # length.
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
            self._known_length = None if self._local else length
        for start in range(0, len(points), _BATCH):
            self._client.upsert(self._collection, points[start : start + _BATCH], wait=True)

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
