"""Evaluators: a model judges whether answers are relevant, supported by documents, or as wanted.

For tests of prompts, agents and retrieval, and for guardrails. The judging model should be better
than the one that wrote the answer. The data to judge is escaped and put into tags, so that the
judge does not follow instructions in it.
"""

import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Protocol, Self

from chatclient._internal.checks import check_type
from chatclient._internal.text import on_one_line, printable
from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.document import Document, documents_among
from chatclient.chat.messages import last_user_message
from chatclient.chat.model import ChatModel
from chatclient.chat.options import ChatOptions
from chatclient.errors import InvalidResponseError, UsageError
from chatclient.observability.operations import WAITS, ClientCall, ToolRun
from chatclient.observability.trail import Trail
from chatclient.retrieval.prompt import framed
from chatclient.retrieval.transformers import DATA, TemplateCall
from chatclient.runtime.blocking import drive
from chatclient.runtime.observation import Step
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
CRITERION_TEMPLATE = (
    "Judge whether the answer, and what the assistant did before it, meets the criterion. "
    f"{DATA} {_VERDICT}\n\n"
    "<criterion>{criterion}</criterion>\n<question>{query}</question>\n"
    "<calls>\n{calls}\n</calls>\n<answer>{response}</answer>"
)

_RESULT_LENGTH = 2000  # maximum number of characters of a tool's result that the judge is shown

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
        trails: The trails of the turns that led to the answer; several for a conversation.
    """

    question: str
    answer: str
    documents: Sequence[Document] = ()
    expected: str | None = None
    trails: Sequence[Trail] = ()

    @classmethod
    def of(cls, question: str, response: ChatClientResponse, expected: str | None = None) -> Self:
        """Return a request to judge *response*, with its retrieved documents and its trail."""
        documents = documents_among(response.turn.sources)
        trails = () if response.trail is None else (response.trail,)
        return cls(question, response.chat_response.text, documents, expected, trails)

    @classmethod
    def of_trail(cls, trail: Trail, expected: str | None = None) -> Self:
        """Return a request to judge the answer of a turn; that of a failed turn is empty."""
        question = last_user_message(trail.request_messages)
        call = trail.steps[0].operation if trail.steps else None
        found = call.turn.sources if isinstance(call, ClientCall) else ()
        answer = trail.steps[0].result if trail.steps else None
        return cls(
            "" if question is None else question.text,
            "" if answer is None else answer.text,
            documents_among(found),
            expected,
            (trail,),
        )

    @property
    def tool_calls(self) -> tuple[Step, ...]:
        """The steps of the tool calls, in order; without those of agents that are tools."""
        steps = [step for trail in self.trails for step in trail.steps]
        return tuple(step for step in steps if isinstance(step.operation, ToolRun))


def call_line(step: Step, length: int) -> str:
    """Return a tool call with its result, in one line.

    Args:
        step: The step of the call.
        length: The maximum number of characters of the result.
    """
    run = step.operation
    assert isinstance(run, ToolRun)  # noqa: S101 - for type checkers
    call = f"{run.call.name}({run.call.arguments})"
    if WAITS in step.found:
        return f"{call} waits for {step.found[WAITS]}"
    result = "no result" if step.result is None else step.result.response.data
    return f"{call} {'->' if step.error is None else 'failed:'} {on_one_line(result, length)}"


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

    @classmethod
    def of(cls, problem: str) -> Self:
        """Return the verdict of a check that has found a *problem*, or none if that is empty."""
        return cls(not problem, float(not problem), problem)


def _check(request: object) -> None:
    check_type(
        "what is judged", request, EvaluationRequest, "write EvaluationRequest(question, answer)"
    )


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
        _check(request)
        return drive(self.judge(request, within_callers_deadline(BLOCKING)))

    async def aevaluate(self, request: EvaluationRequest) -> EvaluationResponse:
        """Return the verdict on an answer; see `evaluate`."""
        _check(request)
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


class CriterionEvaluator(Evaluator):
    """Judges whether an answer, and the tool calls before it, meet a criterion of your own.

    Args:
        model: The judge; a low temperature is recommended.
        criterion: The criterion as a statement, such as `"The answer names the price."`
        template: The prompt, with `{criterion}`, `{query}`, `{calls}` and `{response}`.
        options: Options of the request to the judge.

    Raises:
        UsageError: The criterion is blank.
        TemplateError: The template lacks a placeholder.
    """

    def __init__(
        self,
        model: ChatModel,
        criterion: str,
        *,
        template: str = CRITERION_TEMPLATE,
        options: ChatOptions | None = None,
    ) -> None:
        check_type("the criterion", criterion, str)
        if not criterion.strip():
            msg = "the criterion must not be blank"
            raise UsageError(msg)
        self.criterion = criterion
        placeholders = ("criterion", "query", "calls", "response")
        self._judge = _Judge(model, template, {}, placeholders, options)

    def __repr__(self) -> str:
        return f"CriterionEvaluator({self.criterion!r})"

    async def judge(self, request: EvaluationRequest, runtime: Runtime) -> EvaluationResponse:
        """Return whether the answer meets the criterion."""
        calls = [call_line(step, _RESULT_LENGTH) for step in request.tool_calls]
        return await self._judge(
            runtime,
            criterion=escape(self.criterion, quote=False),
            query=escape(request.question, quote=False),
            calls=escape("\n".join(calls), quote=False),
            response=escape(request.answer, quote=False),
        )


class HasTrail(Protocol):
    """A response of a client, which has a trail."""

    def trail(self) -> Trail:
        """Return the trail of the turn."""
        ...


Judged = Trail | HasTrail | ChatClientResponse | EvaluationRequest
"""What is judged: a trail or what has one, or a request to judge."""


def request_of(judged: Judged) -> EvaluationRequest:
    """Return the request to judge *judged*.

    Raises:
        WrongTypeError: It is something else.
    """
    if isinstance(judged, EvaluationRequest):
        return judged
    found: object = judged if isinstance(judged, Trail) else getattr(judged, "trail", None)
    found = found() if callable(found) else found
    check_type("the trail of what is judged", found, Trail, "of an awaited answer: await trail()")
    assert isinstance(found, Trail)  # noqa: S101 - for type checkers
    return EvaluationRequest.of_trail(found)


def assert_passes(judged: Judged, *evaluators: Evaluator) -> None:
    """Assert that an answer and the way to it pass all *evaluators*.

    ```python
    assert_passes(answer, ExpectedToolCalls("search", "book"), SpendingLimit(model_calls=4))
    ```

    Args:
        judged: A response of a client, its trail (that of a failed turn is `error.trail`), or an
            `EvaluationRequest`.
        evaluators: The evaluators and checks.

    Raises:
        AssertionError: One does not pass; the message has the feedback of each that does not, and
            the trails.
        UsageError: There is no evaluator, or one lacks documents or an expected answer.
        ProviderError: A judge failed, or answered neither yes nor no.
    """
    if not evaluators:
        msg = "assert_passes needs at least one evaluator"
        raise UsageError(msg)
    request = request_of(judged)
    failed: list[str] = []
    for evaluator in evaluators:
        check_type("an evaluator", evaluator, Evaluator)
        verdict = evaluator.evaluate(request)
        if not verdict.passed:
            failed.append(f"{evaluator!r}: {verdict.feedback}")
    if failed:
        raise AssertionError(printable("\n".join([*failed, *map(str, request.trails)])))
