"""What retrieval consists of: a query, and the shape of each step it passes.

Each step is one callable, plain or asynchronous. Asynchronous ones that wait for something do so
through the `Runtime` that they are given, and so serve blocking and asynchronous callers alike. A
plain one is called on the caller's thread, or on a thread of its own beside an event loop; joiners
and augmenters, which have nothing to wait for, right where they are needed.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from chatclient.checks import check_kind
from chatclient.errors import ChatClientError, UsageError
from chatclient.messages import Message
from chatclient.runtime import Runtime
from chatclient.values import EMPTY
from chatclient.vector_store import Document


class RetrievalError(ChatClientError):
    """No retriever could be reached; the cause is what the first of them said."""


@dataclass(frozen=True, slots=True)
class Query:
    """What retrieval searches for.

    Attributes:
        text: In words.
        history: What was said before in the conversation.
        context: The context of the request.

    Raises:
        UsageError: The text is blank, or no text.
    """

    text: str
    history: tuple[Message, ...] = ()
    context: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_kind("a query", self.text, str)
        if not self.text.strip():
            msg = "a query needs words"
            raise UsageError(msg)


T = TypeVar("T")

Given: TypeAlias = T | Awaitable[T]
"""What a step returns, at once or when it is awaited."""

QueryTransformer = Callable[[Query, Runtime], Given[Query]]
"""Makes a query one that finds more."""

QueryExpander = Callable[[Query, Runtime], Given[Sequence[Query]]]
"""Makes several queries of one; their documents are joined."""

DocumentRetriever = Callable[[Query, Runtime], Given[Sequence[Document]]]
"""Finds documents, best first."""

QueryRouter = Callable[[Query, Runtime], Given[Sequence[DocumentRetriever]]]
"""Says which retrievers are asked a query."""

DocumentJoiner = Callable[[Sequence[Sequence[Document]]], Given[Sequence[Document]]]
"""Makes one list of those that retrievers gave to each query."""

DocumentPostProcessor = Callable[[Query, Sequence[Document], Runtime], Given[Sequence[Document]]]
"""Sorts, drops or shortens what was found; the query is the user's own."""

QueryAugmenter = Callable[[Query, Sequence[Document]], Given[str]]
"""Returns what the model is asked: the user's own query with what was found."""
