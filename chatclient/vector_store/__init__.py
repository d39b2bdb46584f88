"""Stores of documents that find those that are about the same as a text."""

from chatclient.vector_store.filters import Filter
from chatclient.vector_store.in_memory import InMemoryVectorStore
from chatclient.vector_store.sqlite import SqliteVectorStore
from chatclient.vector_store.store import (
    DEFAULT_TOP_K,
    Document,
    SimilaritySearch,
    VectorStore,
)

__all__ = [
    "DEFAULT_TOP_K",
    "Document",
    "Filter",
    "InMemoryVectorStore",
    "SimilaritySearch",
    "SqliteVectorStore",
    "VectorStore",
]
