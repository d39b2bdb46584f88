"""Answers from documents: what is found for the user's question goes into the prompt."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from inspect import isawaitable
from typing import Any, TypeVar

from chatclient.advisors.augmentation import Augmentation
from chatclient.chain import (
    MEMORY_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    name_of,
)
from chatclient.checks import check_callable, check_kind, check_number, seconds
from chatclient.driving import check_for_loop
from chatclient.errors import (
    BlockingCallError,
    BudgetExceededError,
    DeadlineExceededError,
    UsageError,
    WrongTypeError,
)
from chatclient.logs import get_logger
from chatclient.rag import (
    ConcatenationJoiner,
    ContextualQueryAugmenter,
    DocumentJoiner,
    DocumentPostProcessor,
    DocumentRetriever,
    Query,
    QueryAugmenter,
    QueryExpander,
    QueryRouter,
    QueryTransformer,
    RetrievalError,
)
from chatclient.runtime import Runtime
from chatclient.threads import is_async
from chatclient.tools.awaiting import awaited
from chatclient.vector_store import Document

RETRIEVAL_ORDER = MEMORY_ORDER + 70
"""Where retrieval stands by default: inside memory, which remembers what the user said and not what
retrieval made of it, and inside guards, which judge the user and not the documents; outside of the
tool loop, so that it is done once for all rounds."""

DOCUMENT_CONTEXT = "rag_document_context"
"""The key of the documents found, a tuple: in the context of requests further in and of the
response, and in the values of the response's metadata."""

log = get_logger(__name__)

T = TypeVar("T")


class RetrievalAugmentationAdvisor:
    """Looks for documents that help with the user's question, and asks the question with them.

    The question passes the transformers one after another and is expanded to several, each
    retriever (or those that a router chooses) is asked each of them, what they found is joined and
    passes the post-processors, and the augmenter makes of it what the model is asked. A request
    whose last user message has no text goes on as it is.

    Each step may be plain or asynchronous. A retriever that fails is left out, and a warning
    logged; only when all fail, so does the request. What is wrong in the program itself (a
    `TypeError`, `AttributeError`, `NameError`, `UsageError` or `BlockingCallError`) is no such
    failure, and is raised; and so is the end of the request's time or budget.
    Inside the tool loop (with a higher order) documents are looked for once all the same.

    Args:
        *retrievers: Where documents come from.
        query_transformers: Make the question one that finds more, one after another.
        query_expander: Makes several questions of it.
        query_router: Says for each question which retrievers to ask; it has them, in place of
            *retrievers*.
        joiner: Makes one list of all that was found; default: by score.
        post_processors: Sort, drop or shorten what was found, one after another; they are given
            the user's own question.
        augmenter: Makes what the model is asked of the user's own question and the documents.
        order: Where the advisor stands in the chain.
        max_concurrency: How many retrievals run at once on an event loop.
        blocking_concurrency: The same for blocking calls. With 1 they run one after another on
            the caller's thread, so that thread-locals work; with more, in a pool of threads.
        timeout: Seconds one retrieval may take on an event loop, or None.

    Raises:
        UsageError: There is no retriever, or there are some beside a router, a step cannot be
            called, or a number is too small.
    """

    def __init__(
        self,
        *retrievers: DocumentRetriever,
        query_transformers: Iterable[QueryTransformer] = (),
        query_expander: QueryExpander | None = None,
        query_router: QueryRouter | None = None,
        joiner: DocumentJoiner | None = None,
        post_processors: Iterable[DocumentPostProcessor] = (),
        augmenter: QueryAugmenter | None = None,
        order: int = RETRIEVAL_ORDER,
        max_concurrency: int = 8,
        blocking_concurrency: int = 1,
        timeout: float | None = None,
    ) -> None:
        if bool(retrievers) == (query_router is not None):
            msg = "retrieval needs at least one retriever, or a router that has some, not both"
            raise UsageError(msg)
        self.order = order
        self._retrievers = retrievers
        self._transformers = _several("query_transformers", query_transformers, _STEP)
        self._expand = query_expander
        self._route = query_router
        self._join = joiner or ConcatenationJoiner()
        self._post_processors = _several("post_processors", post_processors, _PROCESSOR)
        check_number("max_concurrency", max_concurrency, least=1)
        check_number("blocking_concurrency", blocking_concurrency, least=1)
        timeout = None if timeout is None else seconds("timeout", timeout)
        self._concurrency = {False: max_concurrency, True: blocking_concurrency}
        self._timeout = {False: timeout, True: None}
        augmenter = augmenter or ContextualQueryAugmenter()
        for retriever in retrievers:
            hint = "pass several one by one, and a store in a VectorStoreDocumentRetriever"
            check_callable("a retriever", retriever, hint, takes=_STEP)
        for step in (query_expander, query_router):
            if step is not None:
                check_callable("a step of retrieval", step, takes=_STEP)
        check_callable("a joiner", self._join, takes=("results",))
        check_callable("an augmenter", augmenter, takes=("query", "documents"))
        self._augmentation = Augmentation(self.find, augmenter, DOCUMENT_CONTEXT)

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Return the response to the question, asked with documents.

        Raises:
            RetrievalError: All retrievers failed.
        """
        return await self._augmentation(request, call_next)

    async def find(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the documents for *query*, best first.

        Raises:
            RetrievalError: All retrievers failed.
        """
        wanted = query
        for transform in self._transformers:
            wanted = await _run_step(runtime, transform, wanted, runtime)
            check_kind("what a query transformer returns", wanted, Query)
        queries = [wanted]
        if self._expand is not None:
            expanded = await _run_step(runtime, self._expand, wanted, runtime)
            queries = _list_of(Query, self._expand, expanded)
        found = await self._retrieve(queries, runtime)
        documents = _list_of(Document, self._join, await awaited(runtime, self._join(found)))
        for process in self._post_processors:
            left = await _run_step(runtime, process, query, documents, runtime)
            documents = _list_of(Document, process, left)
        return documents

    async def _retrieve(
        self, queries: Sequence[Query], runtime: Runtime
    ) -> list[Sequence[Document]]:
        """Return what each retriever that works found for each query."""
        jobs: list[Callable[[Runtime], Coroutine[Any, Any, Sequence[Document] | Exception]]] = []
        for query in queries:
            chosen: Sequence[DocumentRetriever] = self._retrievers
            if self._route is not None:
                chosen = _several(
                    "the chosen retrievers",
                    await _run_step(runtime, self._route, query, runtime),
                    _STEP,
                )
            jobs += [self._job(retriever, query) for retriever in chosen]
        results = await runtime.gather(jobs, limit=self._concurrency[runtime.blocking])
        errors = [result for result in results if isinstance(result, Exception)]
        if errors and len(errors) == len(results):
            msg = f"no documents could be retrieved; the first of {len(errors)} errors: {errors[0]}"
            raise RetrievalError(msg) from errors[0]
        return [result for result in results if not isinstance(result, Exception)]

    def _job(
        self, retriever: DocumentRetriever, query: Query
    ) -> Callable[[Runtime], Coroutine[Any, Any, Sequence[Document] | Exception]]:
        async def retrieve(runtime: Runtime) -> Sequence[Document] | Exception:
            try:
                timeout = self._timeout[runtime.blocking]
                found = await _run_step(runtime, retriever, query, runtime, timeout=timeout)
                return _list_of(Document, retriever, found)
            except _NO_OUTAGES:
                raise
            except Exception as error:  # noqa: BLE001 - the others may do without it
                if isinstance(error, RuntimeError):
                    check_for_loop(error)
                log.warning("retriever left out", retriever=repr(retriever), error=repr(error))
                return error

        return retrieve


_NO_OUTAGES = (
    *(TypeError, AttributeError, NameError, UsageError, BlockingCallError),
    *(DeadlineExceededError, BudgetExceededError),
)
"""What is wrong in the program itself, and with every query; and what ends the request."""
_STEP = ("query", "runtime")  # what retrievers and most other steps are called with ...
_PROCESSOR = ("query", "documents", "runtime")  # ... and those that process what was found


async def _run_step(
    runtime: Runtime,
    step: Callable[..., Any],
    *args: Any,
    timeout: float | None = None,  # noqa: ASYNC109 - plain steps need it as a number
) -> Any:
    """Return what a step, plain or asynchronous, makes of *args*.

    An asynchronous one waits through the runtime that is among them, so it is awaited right here.
    """
    if is_async(step):
        return await runtime.within(timeout, step(*args))
    # In a list, in which `invoke` does not look for something to await: a lambda around an
    # asynchronous step is one, too.
    (given,) = await runtime.invoke(lambda: [step(*args)], timeout=timeout)
    return await runtime.within(timeout, given) if isawaitable(given) else given


def _list_of(kind: type[T], step: Any, returned: Any) -> list[T]:
    several = list(returned) if isinstance(returned, Iterable) else [returned]
    if not all(isinstance(each, kind) for each in several):
        msg = f"{name_of(step)} returned {returned!r}; it must return a list[{kind.__name__}]"
        raise WrongTypeError(msg)
    return several


def _several(what: str, steps: Iterable[Any], takes: tuple[str, ...]) -> tuple[Any, ...]:
    """Return *steps* once it is known that each can be called, and with what."""
    check_kind(what, steps, Iterable, "put a single one into a list")
    several = tuple(steps)
    for step in several:
        check_callable(f"one of {what}", step, takes=takes)
    return several
