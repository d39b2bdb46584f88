"""Has a model judge answers: whether they are what was asked for, whether documents support them.

For tests of prompts and retrieval, and for guardrails. The judge is a model as any other; one that
is better than the one that answered serves best. What it judges stands in tags, escaped, so that
nothing in an answer can pass for an instruction to the judge.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Self

from chatclient.callers import within_callers_deadline
from chatclient.chain import SOURCES, ChatClientResponse
from chatclient.driving import drive
from chatclient.errors import InvalidResponseError, UsageError
from chatclient.model import ChatModel
from chatclient.options import ChatOptions
from chatclient.rag import framed
from chatclient.rag.asking import DATA, TemplateQuestion
from chatclient.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.vector_store import Document
from chatclient.vector_store.store import documents_among

_VERDICT = "Say yes or no first, and then in one sentence why."

RELEVANCY_TEMPLATE = (
    "Judge whether the answer is an answer to the question, and in line with the documents, where "
    f"there are any. {DATA} {_VERDICT}\n\n"
    "<question>{query}</question>\n<documents>\n{context}\n</documents>\n"
    "<answer>{response}</answer>"
)
FACT_CHECKING_TEMPLATE = (
    f"Judge whether the documents bear out all that the claim says. {DATA} {_VERDICT}\n\n"
    "<documents>\n{document}\n</documents>\n<claim>{claim}</claim>"
)

_YES_OR_NO = re.compile(r"[\W_]*(yes|no)\b[\W_]*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """An answer to be judged, with its question and documents.

    Attributes:
        question: What the user said.
        answer: What came of it.
        documents: What it was to be answered from.
    """

    question: str
    answer: str
    documents: Sequence[Document] = ()

    @classmethod
    def of(cls, question: str, response: ChatClientResponse) -> Self:
        """Return the request to judge *response*, with the documents that retrieval found."""
        documents = documents_among(response.context.get(SOURCES, ()))
        return cls(question, response.chat_response.text, documents)


@dataclass(frozen=True, slots=True)
class EvaluationResponse:
    """What the judge says.

    Attributes:
        passed: Whether the answer is as it should be.
        score: How good it is, from 0 to 1; judges that say yes or no know nothing in between.
        feedback: Why.
    """

    passed: bool
    score: float
    feedback: str = ""


class Evaluator(ABC):
    """Judges answers; an implementor writes `judge`, which serves both ways of calling."""

    @abstractmethod
    async def judge(self, request: EvaluationRequest, runtime: Runtime) -> EvaluationResponse:
        """Return the verdict on an answer; for advisors, which have a runtime."""

    def evaluate(self, request: EvaluationRequest) -> EvaluationResponse:
        """Return the verdict on an answer.

        Raises:
            UsageError: There is nothing to judge by.
            ProviderError: The judge could not be asked, or said neither yes nor no.
        """
        return drive(self.judge(request, within_callers_deadline(BLOCKING)))

    async def aevaluate(self, request: EvaluationRequest) -> EvaluationResponse:
        """Return the verdict on an answer; see `evaluate`."""
        return await self.judge(request, within_callers_deadline(ON_LOOP))


class _Judge(TemplateQuestion):
    """Asks a model for a verdict."""

    async def __call__(self, runtime: Runtime, **values: str) -> EvaluationResponse:
        said = await self.answer(runtime, **values)
        verdict = _YES_OR_NO.match(said)
        if verdict is None:
            msg = f"the judge {self.model.name} said neither yes nor no"
            raise InvalidResponseError(msg, body=said)
        passed = verdict[1].lower() == "yes"
        return EvaluationResponse(passed, float(passed), said[verdict.end() :])


class RelevancyEvaluator(Evaluator):
    """Judges whether an answer is one to the question, and in line with the documents.

    Args:
        model: The judge; a low temperature serves best.
        template: What it is asked, with `{query}`, `{context}` and `{response}`.
        options: What is asked of it beside its own options.

    Raises:
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        template: str = RELEVANCY_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        self._judge = _Judge(model, template, {}, ("query", "context", "response"), options)

    async def judge(self, request: EvaluationRequest, runtime: Runtime) -> EvaluationResponse:
        """Return whether the answer answers the question."""
        return await self._judge(
            runtime,
            query=escape(request.question, quote=False),
            context=framed(request.documents),
            response=escape(request.answer, quote=False),
        )


class FactCheckingEvaluator(Evaluator):
    """Judges whether documents bear out what an answer says, which tells what was made up.

    Args:
        model: The judge; a low temperature serves best.
        template: What it is asked, with `{document}` and `{claim}`.
        options: What is asked of it beside its own options.

    Raises:
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        template: str = FACT_CHECKING_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        self._judge = _Judge(model, template, {}, ("document", "claim"), options)

    async def judge(self, request: EvaluationRequest, runtime: Runtime) -> EvaluationResponse:
        """Return whether the documents say what the answer says.

        Raises:
            UsageError: There are no documents.
        """
        if not request.documents:
            msg = "facts are checked against documents, and the request has none"
            raise UsageError(msg)
        return await self._judge(
            runtime,
            document=framed(request.documents),
            claim=escape(request.answer, quote=False),
        )
