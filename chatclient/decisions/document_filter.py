"""`DecisionDocumentFilter`: drops the documents that do not help, by a decision model."""

from collections.abc import Callable, Collection, Coroutine, Sequence
from typing import Any

from chatclient._internal.logging import described
from chatclient.chat.document import Document
from chatclient.decisions.call import ask_decision
from chatclient.decisions.model import DecisionModel, DecisionRequest
from chatclient.decisions.questions import YesNoQuestion, check_probability
from chatclient.errors import ProviderError
from chatclient.extend import check_number, check_type, get_logger
from chatclient.retrieval.query import Query
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)

HELPFUL = YesNoQuestion("Does the document contain the answer to the query?")
"""The default question about a document."""


class DecisionDocumentFilter:
    """Keeps the documents that probably help to answer the query, in their order.

    A post-processor of `RetrievalAugmentationAdvisor`. Each document is a request to the decision
    model. If one fails, all documents are kept, with a warning in the log.

    Args:
        model: The decision model.
        question: The question about `query` and `document`; a text is a `YesNoQuestion`.
        min_probability: The probability of yes from which a document is kept.
        max_concurrency: The number of concurrent requests on an event loop.
        blocking_concurrency: The same for blocking calls. With 1, they run one after another on the
            caller's thread.

    Raises:
        UsageError: A number is out of its range, or the question is blank.
        WrongTypeError: *model* is no decision model, or *question* no yes/no question.
    """

    params: Collection[str] = ()

    def __init__(
        self,
        model: DecisionModel,
        *,
        question: YesNoQuestion | str = HELPFUL,
        min_probability: float = 0.5,
        max_concurrency: int = 4,
        blocking_concurrency: int = 1,
    ) -> None:
        check_type("a decision model", model, DecisionModel, "of a chat model: ChatDecisionModel")
        check_type("the question", question, (YesNoQuestion, str))
        check_probability("min_probability", min_probability)
        check_number("max_concurrency", max_concurrency, least=1)
        check_number("blocking_concurrency", blocking_concurrency, least=1)
        self._model = model
        self._question = YesNoQuestion(question) if isinstance(question, str) else question
        self._min_probability = min_probability
        self._concurrency = {False: max_concurrency, True: blocking_concurrency}

    async def __call__(
        self, query: Query, documents: Sequence[Document], runtime: Runtime
    ) -> list[Document]:
        """Return the *documents* that help to answer *query*."""
        jobs = [self._job(query, document) for document in documents]
        try:
            helps = await runtime.gather(jobs, limit=self._concurrency[runtime.blocking])
        except ProviderError as error:
            log.warning("documents not filtered", model=self._model.name, error=described(error))
            return list(documents)
        return [document for document, keep in zip(documents, helps, strict=True) if keep]

    def _job(
        self, query: Query, document: Document
    ) -> Callable[[Runtime], Coroutine[Any, Any, bool]]:
        request = DecisionRequest(
            {"query": query.text, "document": document.text}, {"helps": self._question}
        )

        async def helps(runtime: Runtime) -> bool:
            response = await ask_decision(self._model, request, runtime)
            return response.yes_no("helps").is_yes(self._min_probability)

        return helps
