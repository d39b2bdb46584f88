"""`RetrievalAugmentationAdvisor`: retrieves documents and adds them to the user's question."""

from collections.abc import Callable, Coroutine, Iterable, Sequence
from inspect import isawaitable
from typing import Any, TypeVar

from chatclient._internal.checks import check_callable, check_number, check_type, seconds
from chatclient._internal.logging import get_logger
from chatclient.advisors.parameter_names import hints_parameter_names
from chatclient.advisors.retrieval.augmentation import Augmentation
from chatclient.chain.chain import (
    MEMORY_ORDER,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    name_of,
)
from chatclient.errors import (
    BlockingCallError,
    BudgetExceededError,
    DeadlineExceededError,
    UsageError,
    WrongTypeError,
)
from chatclient.retrieval.documents import ConcatenationJoiner
from chatclient.retrieval.prompt import ContextualQueryAugmenter
from chatclient.retrieval.query import (
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
from chatclient.retrieval.vector_store.store import Document
from chatclient.runtime.blocking import check_for_loop
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import is_async

RETRIEVAL_ORDER = MEMORY_ORDER + 70
"""The default order: inside memory, which stores the original question without documents; inside
guards, which check user input but not documents; and outside of the tool loop, so that documents
are retrieved once for all rounds."""

DOCUMENT_CONTEXT = "rag_document_context"
"""The key of the retrieved documents, a tuple: in the context of inner requests and the response,
and in the values of the response's metadata."""

log = get_logger(__name__)

T = TypeVar("T")


@hints_parameter_names
class RetrievalAugmentationAdvisor:
    """Retrieves documents for the user's question, and adds them to it.

    The steps: transformers rewrite the query one after another; an expander derives several
    queries from it; each retriever, or those that a router selects, runs each query; the joiner
    merges the results; post-processors filter them; and the augmenter renders question and
    documents to the text that the model gets. A request whose last user message has no text is
    not changed.

    Each step may be plain or asynchronous. If a retriever fails, a warning is logged and the other
    results are used; the request fails only if all retrievers do. Programming errors (`TypeError`,
    `AttributeError`, `NameError`, `UsageError` and `BlockingCallError`) and an exceeded deadline
    or budget are always raised. Inside the tool loop (with a higher order), documents are
    retrieved once as well.

    Args:
        *retrievers: The sources of documents.
        query_transformers: Rewrite the query, one after another.
        query_expander: Derives several queries from it.
        query_router: Selects the retrievers for each query; used instead of *retrievers*.
        joiner: Merges the results into one list; default: by score.
        post_processors: Sort, drop or shorten documents, one after another; they get the user's
            original question.
        augmenter: Renders the user's original question and the documents.
        order: The position in the chain.
        max_concurrency: The number of concurrent retrievals on an event loop.
        blocking_concurrency: The same for blocking calls. With 1 they run one after another on
            the caller's thread, so that thread-locals work; with more, in a pool of threads.
        timeout: The timeout of one retrieval on an event loop in seconds, or None.

    Raises:
        UsageError: There is no retriever, there are retrievers and a router, a step is not
            callable, or a number is too small.
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
        self._transformers = _check_steps("query_transformers", query_transformers, _STEP)
        self._expand = query_expander
        self._route = query_router
        self._join = joiner or ConcatenationJoiner()
        self._post_processors = _check_steps("post_processors", post_processors, _PROCESSOR)
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
        """Return the response to the question with documents.

        Raises:
            RetrievalError: All retrievers failed.
        """
        return await self._augmentation(request, call_next)

    async def find(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the documents for *query*, best first.

        Raises:
            RetrievalError: All retrievers failed.
        """
        transformed = query
        for transform in self._transformers:
            transformed = await _run_step(runtime, transform, transformed, runtime)
            check_type("what a query transformer returns", transformed, Query)
        queries = [transformed]
        if self._expand is not None:
            expanded = await _run_step(runtime, self._expand, transformed, runtime)
            queries = _list_of(Query, self._expand, expanded)
        found = await self._retrieve(queries, runtime)
        documents = _list_of(Document, self._join, await runtime.call(self._join, found))
        for process in self._post_processors:
            processed = await _run_step(runtime, process, query, documents, runtime)
            documents = _list_of(Document, process, processed)
        return documents

    async def _retrieve(
        self, queries: Sequence[Query], runtime: Runtime
    ) -> list[Sequence[Document]]:
        """Return the results of all retrievals that succeeded."""
        jobs: list[Callable[[Runtime], Coroutine[Any, Any, Sequence[Document] | Exception]]] = []
        for query in queries:
            chosen: Sequence[DocumentRetriever] = self._retrievers
            if self._route is not None:
                chosen = _check_steps(
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
            except _NOT_RETRIEVER_FAILURES:
                raise
            except Exception as error:  # noqa: BLE001 - the other retrievers may succeed
                if isinstance(error, RuntimeError):
                    check_for_loop(error)
                log.warning("retriever left out", retriever=repr(retriever), error=repr(error))
                return error

        return retrieve


_NOT_RETRIEVER_FAILURES = (
    *(TypeError, AttributeError, NameError, UsageError, BlockingCallError),
    *(DeadlineExceededError, BudgetExceededError),
)
"""Programming errors, and errors that end the request."""
_STEP = ("query", "runtime")  # the parameters of retrievers and most other steps
_PROCESSOR = ("query", "documents", "runtime")  # the parameters of post-processors


async def _run_step(
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


def _list_of(kind: type[T], step: Any, returned: Any) -> list[T]:
    items = list(returned) if isinstance(returned, Iterable) else [returned]
    if not all(isinstance(item, kind) for item in items):
        msg = f"{name_of(step)} returned {returned!r}; it must return a list[{kind.__name__}]"
        raise WrongTypeError(msg)
    return items


def _check_steps(what: str, steps: Iterable[Any], takes: tuple[str, ...]) -> tuple[Any, ...]:
    """Return *steps* as a tuple, after checking that each takes the given parameters."""
    check_type(what, steps, Iterable, "put a single one into a list")
    checked = tuple(steps)
    for step in checked:
        check_callable(f"one of {what}", step, takes=takes)
    return checked
