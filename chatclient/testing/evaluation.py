"""Evaluators: a model judges whether answers are relevant and supported by documents.

For tests of prompts and retrieval, and for guardrails. The judging model should be better than the
one that wrote the answer. The data to judge is escaped and put into tags, so that the judge does
not follow instructions in it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Self

from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.document import Document, documents_among
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.errors import InvalidResponseError, UsageError
from chatclient.retrieval.prompt import framed
from chatclient.retrieval.transformers import DATA, TemplateCall
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime, within_callers_deadline

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
CORRECTNESS_TEMPLATE = (
    "Judge whether the answer to the question says the same as the expected answer. It may say it "
    f"in other words and say more, but must not contradict it. {DATA} {_VERDICT}\n\n"
    "<question>{query}</question>\n<expected>{expected}</expected>\n<answer>{response}</answer>"
)

_YES_OR_NO = re.compile(
    # Unless it is "yes and no".
    r"[\W_]*(yes|no)\b(?!\W{0,3}(?:and|or|/|&)\W{0,3}(?!\1\b)(?:yes|no)\b\W*(?:[^\w\s]|$))[\W_]*",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True)
class EvaluationRequest:
    """An answer to judge, with its question and documents.

    Attributes:
        question: The user's question.
        answer: The answer.
        documents: The documents that the answer should be based on.
        expected: The expected answer, or None if it is not known.
    """

    question: str
    answer: str
    documents: Sequence[Document] = ()
    expected: str | None = None

    @classmethod
    def of(cls, question: str, response: ChatClientResponse, expected: str | None = None) -> Self:
        """Return a request to judge *response*, with its retrieved documents."""
        documents = documents_among(response.turn.sources)
        return cls(question, response.chat_response.text, documents, expected)


@dataclass(frozen=True, slots=True)
class EvaluationResponse:
    """The verdict of an evaluator.

    Attributes:
        passed: Whether the answer passed.
        score: The quality from 0 to 1; either 0 or 1 for evaluators that answer yes or no.
        feedback: The reason.
    """

    passed: bool
    score: float
    feedback: str = ""


class Evaluator(ABC):
    """Judges answers; a subclass implements `judge` for blocking and asynchronous callers."""

    @abstractmethod
    async def judge(self, request: EvaluationRequest, runtime: Runtime) -> EvaluationResponse:
        """Return the verdict on an answer; for advisors."""

    def can_judge(self, request: EvaluationRequest) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether *request* has all that the evaluator needs, such as documents."""
        return True

    def evaluate(self, request: EvaluationRequest) -> EvaluationResponse:
        """Return the verdict on an answer.

        Raises:
            UsageError: The request lacks documents that the evaluator needs.
            ProviderError: The judge failed, or answered neither yes nor no.
        """
        return drive(self.judge(request, within_callers_deadline(BLOCKING)))

    async def aevaluate(self, request: EvaluationRequest) -> EvaluationResponse:
        """Return the verdict on an answer; see `evaluate`."""
        return await self.judge(request, within_callers_deadline(ON_LOOP))


class _Judge(TemplateCall):
    """Requests a verdict from a model."""

    async def __call__(self, runtime: Runtime, **values: str) -> EvaluationResponse:
        text = await self.answer(runtime, **values)
        verdict = _YES_OR_NO.match(text)
        if verdict is None:
            msg = f"the judge {self.model.name} answered neither yes nor no"
            raise InvalidResponseError(msg, body=text)
        passed = verdict[1].lower() == "yes"
        return EvaluationResponse(passed, float(passed), text[verdict.end() :])


class RelevancyEvaluator(Evaluator):
    """Judges whether an answer is relevant to the question and consistent with the documents.

    Args:
        model: The judge; a low temperature is recommended.
        template: The prompt, with `{query}`, `{context}` and `{response}`.
        options: Options of the request to the judge.

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
        """Return whether the answer is relevant."""
        return await self._judge(
            runtime,
            query=escape(request.question, quote=False),
            context=framed(request.documents),
            response=escape(request.answer, quote=False),
        )


class FactCheckingEvaluator(Evaluator):
    """Judges whether the documents support all claims of an answer.

    Args:
        model: The judge; a low temperature is recommended.
        template: The prompt, with `{document}` and `{claim}`.
        options: Options of the request to the judge.

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

    def can_judge(self, request: EvaluationRequest) -> bool:
        """Return whether there are documents."""
        return bool(request.documents)

    async def judge(self, request: EvaluationRequest, runtime: Runtime) -> EvaluationResponse:
        """Return whether the documents support the answer.

        Raises:
            UsageError: There are no documents.
        """
        if not request.documents:
            msg = "fact checking needs documents, and the request has none"
            raise UsageError(msg)
        return await self._judge(
            runtime,
            document=framed(request.documents),
            claim=escape(request.answer, quote=False),
        )


class CorrectnessEvaluator(Evaluator):
    """Judges whether an answer has the same content as the expected answer.

    Args:
        model: The judge; a low temperature is recommended.
        template: The prompt, with `{query}`, `{expected}` and `{response}`.
        options: Options of the request to the judge.

    Raises:
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        *,
        template: str = CORRECTNESS_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        self._judge = _Judge(model, template, {}, ("query", "expected", "response"), options)

    def can_judge(self, request: EvaluationRequest) -> bool:
        """Return whether there is an expected answer."""
        return request.expected is not None

    async def judge(self, request: EvaluationRequest, runtime: Runtime) -> EvaluationResponse:
        """Return whether the answer is the expected one.

        Raises:
            UsageError: There is no expected answer.
        """
        if request.expected is None:
            msg = "judging correctness needs an expected answer, and the request has none"
            raise UsageError(msg)
        return await self._judge(
            runtime,
            query=escape(request.question, quote=False),
            expected=escape(request.expected, quote=False),
            response=escape(request.answer, quote=False),
        )
