"""`Query`, and the contracts of the steps of retrieval.

Each step is a callable, plain or asynchronous. Asynchronous ones must wait with the methods of the
given `Runtime`, and then serve blocking and asynchronous callers. Plain ones are called on the
caller's thread, or in a worker thread if there is an event loop; joiners and augmenters, which do
no I/O, are always called directly.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar

from chatclient._internal.checks import check_type
from chatclient._internal.frozen import EMPTY
from chatclient.chat.document import Document
from chatclient.chat.messages import Message
from chatclient.errors import ChatClientError, UsageError
from chatclient.runtime.runtime import Runtime


class RetrievalError(ChatClientError):
    """All retrievers failed; the cause is the error of the first one."""


@dataclass(frozen=True, slots=True)
class Query:
    """The query of a retrieval.

    Attributes:
        text: The text of the query.
        history: The previous messages of the conversation.
        context: The context of the request.

    Raises:
        UsageError: The text is blank or not a text.
    """

    text: str
    history: tuple[Message, ...] = ()
    context: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        check_type("a query", self.text, str)
        if not self.text.strip():
            msg = "the text of a query must not be blank"
            raise UsageError(msg)


T = TypeVar("T")

Given: TypeAlias = T | Awaitable[T]
"""The result of a step, plain or awaitable."""

QueryTransformer = Callable[[Query, Runtime], Given[Query]]
"""Rewrites a query to improve the search."""

QueryExpander = Callable[[Query, Runtime], Given[Sequence[Query]]]
"""Returns several queries for one; their documents are joined."""

DocumentRetriever = Callable[[Query, Runtime], Given[Sequence[Document]]]
"""Returns documents for a query, the best first."""

QueryRouter = Callable[[Query, Runtime], Given[Sequence[DocumentRetriever]]]
"""Chooses the retrievers for a query."""

DocumentJoiner = Callable[[Sequence[Sequence[Document]]], Given[Sequence[Document]]]
"""Joins the results of all retrievers and queries."""

DocumentPostProcessor = Callable[[Query, Sequence[Document], Runtime], Given[Sequence[Document]]]
"""Sorts, filters or shortens the documents; the query is that of the user."""

QueryAugmenter = Callable[[Query, Sequence[Document]], Given[str]]
"""Returns the prompt for the user's query with the documents."""
