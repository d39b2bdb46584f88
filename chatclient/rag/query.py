"""What retrieval consists of: a query, and the shape of each step it passes.

Each step is one callable. Those that wait for something are coroutine functions and are given the
`Runtime` to wait through, so that they serve blocking and asynchronous callers alike; a plain
function becomes one with `runtime.invoke`.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from chatclient.errors import ChatClientError, UsageError
from chatclient.messages import Message
from chatclient.runtime import Runtime
from chatclient.values import EMPTY
from chatclient.vector_store import Document


class RetrievalError(ChatClientError):
    """No retriever could be reached; the cause is what the first of them said."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is to be found.

    Attributes:
        text: In words.
        history: What was said before in the conversation.
        context: The context of the request.

    Raises:
        UsageError: The text is blank.
    """

    text: str
    history: tuple[Message, ...] = ()
    context: Mapping[str, Any] = EMPTY

    def __post_init__(self) -> None:
        if not self.text.strip():
            msg = "a query needs words"
            raise UsageError(msg)


QueryTransformer = Callable[[Query, Runtime], Awaitable[Query]]
"""Makes a query one that finds more."""

QueryExpander = Callable[[Query, Runtime], Awaitable[Sequence[Query]]]
"""Makes several queries of one; their documents are joined."""

DocumentRetriever = Callable[[Query, Runtime], Awaitable[Sequence[Document]]]
"""Finds documents, best first."""

QueryRouter = Callable[[Query, Runtime], Awaitable[Sequence[DocumentRetriever]]]
"""Says which retrievers are asked a query."""

DocumentJoiner = Callable[[Sequence[Sequence[Document]]], Sequence[Document]]
"""Makes one list of those that retrievers gave to each query."""

DocumentPostProcessor = Callable[
    [Query, Sequence[Document], Runtime], Awaitable[Sequence[Document]]
]
"""Sorts, drops or shortens what was found; the query is the user's own."""

QueryAugmenter = Callable[[Query, Sequence[Document]], str]
"""Returns what the model is asked: the user's own query with what was found."""
