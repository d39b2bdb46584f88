"""Documents, filters and an embedding model for the contract of vector stores."""

import math
import re
import zlib
from collections import UserDict
from collections.abc import Callable, Sequence
from types import MappingProxyType
from typing import Any

from chatclient.chat.document import Document
from chatclient.chat.embedding import EmbeddingModel, EmbeddingOptions, Vector
from chatclient.errors import OverloadedError
from chatclient.retrieval.vector_store.filters import Filter
from chatclient.runtime.runtime import Runtime

ANIMALS = (
    Document("the cat sleeps on the sofa", {"kind": "cat", "age": 3, "tags": ["home"]}, "cat"),
    Document("a dog runs in the park", {"kind": "dog", "age": 7, "wild": False}, "dog"),
    Document("a wolf howls in the forest", {"kind": "wolf", "age": 5.5, "wild": True}, "wolf"),
    Document("a rose in the garden", {"age": "old", "kind": None, "a.key": 1}, "rose"),
)
"""Documents with metadata of every type."""

UNIFORM_ANIMALS = (
    Document("the cat sleeps on the sofa", {"kind": "cat", "age": 3.0, "wild": False}, "cat"),
    Document("a dog runs in the park", {"kind": "dog", "age": 7.0, "wild": False}, "dog"),
    Document("a wolf howls in the forest", {"kind": "wolf", "age": 5.5, "wild": True}, "wolf"),
    Document("a rose in the garden", {"kind": "rose", "age": 1.0, "wild": False}, "rose"),
)
"""Documents whose metadata has the same keys and types."""

FILTERS: tuple[tuple[dict[str, Any], list[str]], ...] = (
    ({}, ["cat", "dog", "rose", "wolf"]),
    ({"kind": "dog"}, ["dog"]),
    ({"kind": {"eq": "dog"}}, ["dog"]),
    ({"kind": {"ne": "dog"}}, ["cat", "rose", "wolf"]),
    ({"kind": None}, ["rose"]),
    ({"wild": True}, ["wolf"]),
    ({"wild": False}, ["dog"]),
    ({"wild": {"ne": True}}, ["cat", "dog", "rose"]),
    ({"age": {"gt": 3, "lte": 7}}, ["dog", "wolf"]),
    ({"age": {"gte": 3, "lt": 5.5}}, ["cat"]),
    ({"age": {"gt": "a"}}, ["rose"]),
    ({"age": {"gt": True}}, []),
    ({"age": 3.0}, ["cat"]),
    ({"wild": 1}, []),
    ({"kind": {"in": ["cat", "wolf", None]}}, ["cat", "rose", "wolf"]),
    ({"kind": {"in": []}}, []),
    ({"kind": {"not_in": ["cat", "wolf"]}}, ["dog", "rose"]),
    ({"tags": {"contains": "home"}}, ["cat"]),
    ({"tags": {"contains": "away"}}, []),
    ({"tags": "home"}, []),
    ({"kind": {"contains": "cat"}}, []),
    ({"wild": {"exists": True}}, ["dog", "wolf"]),
    ({"wild": {"exists": False}}, ["cat", "rose"]),
    ({"kind": {"exists": True}}, ["cat", "dog", "wolf"]),
    ({"$or": [{"kind": "cat"}, {"age": {"gt": 6}}]}, ["cat", "dog"]),
    ({"$and": [{"kind": "cat"}, {"age": {"gt": 6}}]}, []),
    ({"$not": {"kind": "cat"}}, ["dog", "rose", "wolf"]),
    ({"$not": {"age": {"gt": 4}}}, ["cat", "rose"]),
    ({"$or": []}, []),
    ({"$and": []}, ["cat", "dog", "rose", "wolf"]),
    ({"a.key": 1}, ["rose"]),
    ({"kind": "' OR 1 --"}, []),
)
"""Filters with the ids of the `ANIMALS` that match."""


def _nested(depth: int) -> dict[str, Any]:
    return {"$not": _nested(depth - 1)} if depth else {"kind": "cat"}


INVALID_FILTERS: Sequence[Any] = (
    {"age": {"larger": 1}},
    {"$xor": []},
    {"kind": {"in": "cat"}},
    {"$or": {"kind": "cat"}},
    {"$not": [{"kind": "cat"}]},
    {"$and": ["kind"]},
    {'a "key"': 1},
    {"kind": ["cat"]},
    {1: "cat"},
    {"a\nkey": 1},
    {"\ud83d": 1},
    {"kind": "\0"},
    {"age": {"lt": 2**70}},
    {"age": math.nan},
    {"age": {"in": [1, math.nan]}},
    {"kind": {"ne": "half \ud83d"}},
    _nested(30),
)
"""Filters that every store refuses."""

FILTER_FORMS: Sequence[Callable[[Any], Filter]] = (
    MappingProxyType,
    UserDict,
    lambda where: {"$and": [MappingProxyType(where)]},
    lambda where: {"kind": UserDict({"in": {where["kind"]}})},
)
"""Functions that return a filter by `kind` in another form."""


class WordCounts(EmbeddingModel):
    """Counts words in a few buckets; texts with equal words are similar.

    Args:
        length: The length of the vectors.
        failures: How many requests fail before the first succeeds.
    """

    def __init__(self, *, length: int = 256, failures: int = 0) -> None:
        self.length = length
        self.failures = failures

    @property
    def options(self) -> EmbeddingOptions:
        """The options of every request."""
        return EmbeddingOptions(model="word-counts", batch_size=50)

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*.

        Raises:
            OverloadedError: A failure was asked for.
        """
        await runtime.sleep(0)
        if self.failures:
            self.failures -= 1
            msg = "busy"
            raise OverloadedError(msg, provider="word-counts")
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> Vector:
        vector = [0.0] * self.length
        for word in re.findall(r"[a-z]+", text.lower()):
            vector[zlib.crc32(word.encode()) % self.length] += 1.0
        return vector
