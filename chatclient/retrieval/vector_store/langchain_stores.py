"""The differences between the stores of LangChain, for `LangChainVectorStore`."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from chatclient.errors import UsageError
from chatclient.retrieval.vector_store.chroma_filters import chroma_filter
from chatclient.retrieval.vector_store.filters import Filter, predicate
from chatclient.retrieval.vector_store.lance_filters import lance_filter, lance_text

_MOST = 1_000_000  # ids of LanceDB that are read for a deletion


class Adapter(Protocol):
    """The differences between the stores of LangChain."""

    @property
    def returns_ids(self) -> bool:
        """Whether documents that were found have their ids."""
        ...

    def prepared(self, ids: Sequence[str], metadata: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Prepare the store for documents with these ids, and return their metadata for it.

        Raises:
            UsageError: The store would change or lose data.
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
            case "langchain_chroma.Chroma" | "langchain_community.Chroma":
                return _Chroma(store)
            case "langchain_community.LanceDB":
                return _LanceDB(store)
            case "langchain_core.InMemoryVectorStore":
                return _InMemory(store)
    return OtherStore(store, None)


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

    def prepared(
        self,
        ids: Sequence[str],  # noqa: ARG002
        metadata: list[dict[str, Any]],
    ) -> list[dict[str, Any]]:
        """Return *metadata*."""
        return metadata

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
        try:
            return [each.id for each in self._store.get_by_ids(ids)]
        except NotImplementedError:
            return ids

    def relevance(self) -> Callable[[float], float]:
        """Return the store's function."""
        return _relevance_of(self._store)


class _InMemory:
    """`langchain_core.vectorstores.InMemoryVectorStore`."""

    returns_ids = True

    def __init__(self, store: Any) -> None:
        self._store = store

    def prepared(
        self,
        ids: Sequence[str],  # noqa: ARG002
        metadata: list[dict[str, Any]],
    ) -> list[dict[str, Any]]:
        return metadata

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
    """`langchain_chroma.Chroma`."""

    returns_ids = True

    def __init__(self, store: Any) -> None:
        self._store = store

    def prepared(
        self,
        ids: Sequence[str],  # noqa: ARG002
        metadata: list[dict[str, Any]],
    ) -> list[dict[str, Any]]:
        return metadata

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


class _LanceDB:
    """`langchain_community.vectorstores.LanceDB`, whose table has the columns of the first rows."""

    returns_ids = False

    def __init__(self, store: Any) -> None:
        self._store = store

    def prepared(self, ids: Sequence[str], metadata: list[dict[str, Any]]) -> list[dict[str, Any]]:
        if self._store.mode == "overwrite":
            msg = "LanceDB(mode='overwrite') replaces all documents; use mode='append'"
            raise UsageError(msg)
        table = self._store.get_table()
        if table is None:
            return metadata
        self._store.delete(ids=[*ids])  # it would keep both
        return [_row(each, _fields(table)) for each in metadata]

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
