"""`HybridDocumentRetriever`: combines the results of several retrievers."""

from collections.abc import Sequence

from chatclient._internal.checks import check_callable, check_number, seconds
from chatclient.chain.params import params_of_retrievers
from chatclient.chat.document import Document
from chatclient.errors import UsageError
from chatclient.retrieval.documents import ReciprocalRankJoiner
from chatclient.retrieval.query import DocumentJoiner, DocumentRetriever, Query
from chatclient.retrieval.steps import STEP, list_of, retrieve_all
from chatclient.retrieval.vector_store.store import DEFAULT_TOP_K
from chatclient.runtime.runtime import Runtime

_RANKS = ReciprocalRankJoiner()


class HybridDocumentRetriever:
    """Runs several retrievers, usually by vectors and by keywords, and joins their results.

    The results are joined by reciprocal rank fusion: a document that several retrievers find comes
    before one that a single retriever finds at the same rank. A retriever that fails is logged and
    left out. Let each retriever find more documents than are needed in the end.

    Args:
        *retrievers: The retrievers.
        top_k: The maximum number of documents.
        joiner: Joins the results instead of `ReciprocalRankJoiner()`.
        max_concurrency: The number of concurrent retrievers on an event loop. Blocking calls run
            them one after another on the caller's thread.
        timeout: The timeout of each retriever on an event loop in seconds, or None.

    Raises:
        UsageError: There is no retriever, one of them is not callable, or a number is too small.
    """

    def __init__(
        self,
        *retrievers: DocumentRetriever,
        top_k: int = DEFAULT_TOP_K,
        joiner: DocumentJoiner = _RANKS,
        max_concurrency: int = 8,
        timeout: float | None = None,
    ) -> None:
        if not retrievers:
            msg = "a hybrid retriever needs at least one retriever"
            raise UsageError(msg)
        for retriever in retrievers:
            check_callable("a retriever", retriever, takes=STEP)
        check_number("top_k", top_k, least=1)
        check_callable("a joiner", joiner, takes=("results",))
        check_number("max_concurrency", max_concurrency, least=1)
        self._retrievers = retrievers
        self.params = params_of_retrievers(*retrievers)
        self._top_k = top_k
        self._join = joiner
        self._limit = max_concurrency
        self._timeout = None if timeout is None else seconds("timeout", timeout)

    async def __call__(self, query: Query, runtime: Runtime) -> Sequence[Document]:
        """Return the documents for *query*, the best first.

        Raises:
            RetrievalError: All retrievers failed.
        """
        searches = [(retriever, query) for retriever in self._retrievers]
        limit = 1 if runtime.blocking else self._limit
        timeout = None if runtime.blocking else self._timeout
        found = await retrieve_all(searches, runtime, limit=limit, timeout=timeout)
        joined = list_of(Document, self._join, await runtime.call(self._join, found))
        return joined[: self._top_k]

    def __repr__(self) -> str:
        return f"HybridDocumentRetriever({', '.join(map(repr, self._retrievers))})"
