"""`Query`, and the contracts of the steps of retrieval.

Each step is a callable, plain or asynchronous. Asynchronous ones must wait with the methods of the
given `Runtime`, and then serve blocking and asynchronous callers. Plain ones are called on the
caller's thread, or in a worker thread if there is an event loop; joiners and augmenters, which do
no I/O, are always called directly.
"""

from collections.abc import Awaitable, Callable, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any, TypeAlias, TypeVar

from chatclient._internal.checks import check_callable, check_type
from chatclient._internal.frozen import EMPTY
from chatclient._internal.logging import get_logger
from chatclient.chain.chain import name_of
from chatclient.chat.document import Document
from chatclient.chat.messages import Message
from chatclient.errors import (
    BlockingCallError,
    BudgetExceededError,
    ChatClientError,
    DeadlineExceededError,
    UsageError,
    WrongTypeError,
)
from chatclient.runtime.blocking import check_for_loop
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import is_async

log = get_logger(__name__)

T = TypeVar("T")

STEP = ("query", "runtime")
"""The parameters of retrievers and most other steps."""

NOT_RETRIEVER_FAILURES = (
    *(TypeError, AttributeError, NameError, UsageError, BlockingCallError),
    *(DeadlineExceededError, BudgetExceededError),
)
"""Programming errors, and errors that end the request."""


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


async def run_step(
    runtime: Runtime,
    step: Callable[..., Any],
    *args: Any,
    timeout: float | None = None,  # noqa: ASYNC109 - plain steps need it as a number
) -> Any:
    """Return the result of a step, plain or asynchronous, for *args*.

    An asynchronous step gets the runtime and waits through it, so it is awaited directly.
    """
    if is_async(step):
        return await runtime.within(timeout, step(*args))
    # In a list, `invoke` does not await the result if *step* is a lambda around an async function.
    (result,) = await runtime.invoke(lambda: [step(*args)], timeout=timeout)
    return await runtime.within(timeout, result) if isawaitable(result) else result


async def retrieve_all(
    searches: Iterable[tuple[DocumentRetriever, Query]],
    runtime: Runtime,
    *,
    limit: int,
    timeout: float | None = None,  # noqa: ASYNC109 - plain steps need it as a number
) -> list[Sequence[Document]]:
    """Return the results of all searches that succeed, in their order.

    The failure of a retriever is logged, because the others may succeed.

    Args:
        searches: The retrievers with their queries.
        runtime: How the request runs.
        limit: The number of concurrent searches.
        timeout: The timeout of one search in seconds, or None.

    Raises:
        RetrievalError: All searches failed.
        Exception: Programming errors, and an exceeded deadline or budget, are not retriever
            failures.
    """
    jobs = [_job(retriever, query, timeout) for retriever, query in searches]
    results = await runtime.gather(jobs, limit=limit)
    errors = [result for result in results if isinstance(result, Exception)]
    if errors and len(errors) == len(results):
        msg = f"no documents could be retrieved; the first of {len(errors)} errors: {errors[0]}"
        raise RetrievalError(msg) from errors[0]
    return [result for result in results if not isinstance(result, Exception)]


def _job(
    retriever: DocumentRetriever, query: Query, timeout: float | None
) -> Callable[[Runtime], Coroutine[Any, Any, Sequence[Document] | Exception]]:
    async def retrieve(runtime: Runtime) -> Sequence[Document] | Exception:
        try:
            found = await run_step(runtime, retriever, query, runtime, timeout=timeout)
            return list_of(Document, retriever, found)
        except NOT_RETRIEVER_FAILURES:
            raise
        except Exception as error:  # noqa: BLE001 - the other retrievers may succeed
            if isinstance(error, RuntimeError):
                check_for_loop(error)
            log.warning("retriever left out", retriever=repr(retriever), error=repr(error))
            return error

    return retrieve


def list_of(kind: type[T], step: Any, returned: Any) -> list[T]:
    """Return the result of *step* as a list.

    Raises:
        WrongTypeError: It contains other values than those of *kind*.
    """
    items = list(returned) if isinstance(returned, Iterable) else [returned]
    if not all(isinstance(item, kind) for item in items):
        msg = f"{name_of(step)} returned {returned!r}; it must return a list[{kind.__name__}]"
        raise WrongTypeError(msg)
    return items


def check_steps(what: str, steps: Iterable[Any], takes: tuple[str, ...]) -> tuple[Any, ...]:
    """Return *steps* as a tuple, after checking that each takes the given parameters."""
    check_type(what, steps, Iterable, "put a single one into a list")
    checked = tuple(steps)
    for step in checked:
        check_callable(f"one of {what}", step, takes=takes)
    return checked
