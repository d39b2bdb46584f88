"""Evaluates retrievers, and answers that are based on retrieved documents: metrics and reports."""

from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log2
from operator import attrgetter
from statistics import fmean
from time import perf_counter
from typing import Any

from chatclient._internal.checks import check_callable, check_number, check_type, names
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.document import Document
from chatclient.errors import ChatClientError, UsageError
from chatclient.retrieval.query import (
    NOT_RETRIEVER_FAILURES,
    STEP,
    DocumentRetriever,
    Query,
    RetrievalError,
    retrieve_all,
    run_step,
)
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime, within_callers_deadline
from chatclient.testing.evaluation import EvaluationRequest, EvaluationResponse, Evaluator
from chatclient.testing.repetition import report_as_html

_SHOWN = 10  # cases in the text of a report

DEFAULT_K = 5

DocumentId = Callable[[Document], str]
"""Returns the id of a document, as it is in the cases."""

AnswerQuestion = Callable[[str], ChatClientResponse | Awaitable[ChatClientResponse]]
"""Answers a question, usually with a client that has a retrieval advisor."""

own_id: DocumentId = attrgetter("id")


@dataclass(frozen=True, slots=True)
class RetrievalCase:
    """A question whose relevant documents are known.

    Attributes:
        question: The question.
        relevant: The ids of the relevant documents, of which there is at least one; or one id.
        answer: The expected answer, or None if answers are not compared.

    Raises:
        UsageError: There are no ids, or the question is blank.
        WrongTypeError: The question or an id is not a text.
    """

    question: str
    relevant: Collection[str] | str
    answer: str | None = None

    def __post_init__(self) -> None:
        check_type("a question", self.question, str)
        object.__setattr__(self, "relevant", frozenset(names(self.relevant)))
        if not self.relevant or not self.question.strip():
            msg = "a case needs a question and the id of at least one relevant document"
            raise UsageError(msg)


@dataclass(frozen=True, slots=True)
class RetrievalScores:
    """The metrics of one ranking, each from 0 to 1; only its first k documents count.

    Attributes:
        hit: 1 if a relevant document was found.
        recall: The share of the relevant documents that was found.
        reciprocal_rank: 1 divided by the rank of the first relevant document; its mean is the MRR.
        ndcg: The normalised discounted cumulative gain with binary relevance.
    """

    hit: float = 0.0
    recall: float = 0.0
    reciprocal_rank: float = 0.0
    ndcg: float = 0.0

    @classmethod
    def of(cls, found: Sequence[str], relevant: Collection[str], k: int) -> "RetrievalScores":
        """Return the metrics of a ranking.

        Args:
            found: The ids of the documents, the best first; repeated ids count once.
            relevant: The ids of the relevant documents.
            k: The number of documents that count.
        """
        ranked = list(dict.fromkeys(found))[:k]
        ranks = [rank for rank, id in enumerate(ranked, 1) if id in relevant]
        if not ranks:
            return cls()
        ideal = range(1, min(len(relevant), k) + 1)
        return cls(1.0, len(ranks) / len(relevant), 1 / ranks[0], _gain(ranks) / _gain(ideal))


def _gain(ranks: Collection[int]) -> float:
    """Return the discounted cumulative gain of relevant documents at *ranks*."""
    return sum(1 / log2(rank + 1) for rank in ranks)


@dataclass(frozen=True, slots=True)
class RetrievalCaseResult:
    """The result of one case.

    Attributes:
        case: The case.
        found: The ids of the retrieved documents, the best first.
        scores: The metrics of retrieval; all 0 if it failed.
        seconds: The duration of retrieval, or of the answer.
        answer: The answer, or None if only documents were retrieved.
        verdicts: The verdict of each evaluator that could judge the answer, by its name.
        errors: The errors of retrieval, the answer (`"answer"`) and evaluators, by their name.
    """

    case: RetrievalCase
    found: tuple[str, ...]
    scores: RetrievalScores
    seconds: float
    answer: str | None = None
    verdicts: Mapping[str, EvaluationResponse] = EMPTY
    errors: Mapping[str, str] = EMPTY

    def __post_init__(self) -> None:
        freeze_fields(self, "verdicts", "errors")

    @property
    def passed(self) -> bool:
        """Whether a relevant document was found, and each verdict is positive."""
        positive = all(verdict.passed for verdict in self.verdicts.values())
        return bool(self.scores.hit) and positive and not self.errors

    def __str__(self) -> str:
        expected, found = ", ".join(sorted(self.case.relevant)), ", ".join(self.found) or "nothing"
        lines = [f"{self.case.question!r}: found {found}; relevant: {expected}"]
        lines += [
            f"  {name}: no; {verdict.feedback}"
            for name, verdict in self.verdicts.items()
            if not verdict.passed
        ]
        lines += [f"  {name}: {error}" for name, error in self.errors.items()]
        return "\n".join(lines)


@dataclass(frozen=True, slots=True)
class RetrievalReport:
    """The results of an evaluation; `print` shows the totals and the cases that did not pass.

    Attributes:
        results: The result of each case, in the order of the cases.
        k: The number of documents of each case that count.
    """

    results: tuple[RetrievalCaseResult, ...]
    k: int

    @property
    def totals(self) -> Mapping[str, float]:
        """The mean of each metric, and of the scores of each evaluator over what it judged."""
        scores = [result.scores for result in self.results]
        totals = {
            "hit_rate": fmean(each.hit for each in scores),
            "recall": fmean(each.recall for each in scores),
            "mrr": fmean(each.reciprocal_rank for each in scores),
            "ndcg": fmean(each.ndcg for each in scores),
        }
        judged: dict[str, list[float]] = {}
        for result in self.results:
            for name, verdict in result.verdicts.items():
                judged.setdefault(name, []).append(verdict.score)
        return {**totals, **{name: fmean(each) for name, each in judged.items()}}

    @property
    def failures(self) -> tuple[RetrievalCaseResult, ...]:
        """The cases that did not pass: no relevant document, a negative verdict, or an error."""
        return tuple(result for result in self.results if not result.passed)

    def __str__(self) -> str:
        failures = self.failures
        width = max(map(len, self.totals))
        count = len(self.results)
        lines = [f"{count} cases, k = {self.k}"]
        for name, mean in self.totals.items():
            judged = sum(name in result.verdicts for result in self.results)
            lines.append(f"{name:<{width}}  {mean:.3f}{f'  ({judged} judged)' if judged else ''}")
        if failures:
            lines.append(f"{len(failures)} of {count} cases did not pass:")
            lines += map(str, failures[:_SHOWN])
        if len(failures) > _SHOWN:
            lines.append(f"... and {len(failures) - _SHOWN} more in `failures`")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        """Return the same text, which notebooks show."""
        return report_as_html(str(self))


def evaluate_retriever(
    retriever: DocumentRetriever,
    cases: Iterable[RetrievalCase],
    *,
    k: int = DEFAULT_K,
    document_id: DocumentId = own_id,
) -> RetrievalReport:
    """Return how well a retriever finds the relevant documents of *cases*.

    An error of the retriever is recorded in the report, and the case counts as 0.

    Args:
        retriever: The retriever; it should return at least *k* documents.
        cases: The cases, of which there is at least one.
        k: The number of documents of each case that count.
        document_id: Returns the id of a document, such as `lambda document:
            document.metadata["source"]` if the cases name files of which parts are stored.

    Raises:
        UsageError: There are no cases, *k* is less than one, or *retriever* is not callable.
        WrongTypeError: *cases* contains other values, or *document_id* returns one.
    """
    evaluation = _Evaluation(cases, k, document_id)
    return drive(evaluation.retriever(retriever, within_callers_deadline(BLOCKING), 1))


async def aevaluate_retriever(
    retriever: DocumentRetriever,
    cases: Iterable[RetrievalCase],
    *,
    k: int = DEFAULT_K,
    document_id: DocumentId = own_id,
    max_concurrency: int = 8,
) -> RetrievalReport:
    """Return how well a retriever works, running *max_concurrency* cases at the same time.

    Otherwise like `evaluate_retriever`.
    """
    evaluation = _Evaluation(cases, k, document_id)
    runtime = within_callers_deadline(ON_LOOP)
    return await evaluation.retriever(retriever, runtime, max_concurrency)


def evaluate_answers(
    answer: AnswerQuestion,
    cases: Iterable[RetrievalCase],
    *,
    evaluators: Mapping[str, Evaluator] = EMPTY,
    k: int = DEFAULT_K,
    document_id: DocumentId = own_id,
) -> RetrievalReport:
    """Return how good answers and their documents are.

    ```python
    report = evaluate_answers(
        lambda question: client.prompt(question).call().chat_client_response(),
        cases,
        evaluators={"faithfulness": FactCheckingEvaluator(judge)},
    )
    ```

    An error of the model or of an evaluator is recorded in the report. An evaluator that lacks
    documents or an expected answer judges nothing.

    Args:
        answer: Returns the response to a question; its context contains the documents.
        cases: The cases, of which there is at least one.
        evaluators: The evaluators by the name of what they judge.
        k: The number of documents of each case that count.
        document_id: Returns the id of a document; see `evaluate_retriever`.

    Raises:
        UsageError: There are no cases, *k* is less than one, or *answer* is not callable.
        WrongTypeError: *cases* or *evaluators* contains other values.
    """
    evaluation = _Evaluation(cases, k, document_id, evaluators)
    return drive(evaluation.answers(answer, within_callers_deadline(BLOCKING), 1))


async def aevaluate_answers(
    answer: AnswerQuestion,
    cases: Iterable[RetrievalCase],
    *,
    evaluators: Mapping[str, Evaluator] = EMPTY,
    k: int = DEFAULT_K,
    document_id: DocumentId = own_id,
    max_concurrency: int = 8,
) -> RetrievalReport:
    """Return how good answers are, running *max_concurrency* cases at the same time.

    *answer* may be asynchronous: `lambda question:
    client.prompt(question).acall().chat_client_response()`. Otherwise like `evaluate_answers`.
    """
    evaluation = _Evaluation(cases, k, document_id, evaluators)
    return await evaluation.answers(answer, within_callers_deadline(ON_LOOP), max_concurrency)


def ids_of(documents: Iterable[Document], document_id: DocumentId) -> list[str]:
    """Return the ids of *documents*.

    Raises:
        WrongTypeError: One of them is not a text.
    """
    ids = [document_id(document) for document in documents]
    for id in ids:
        check_type("the id of a document", id, str, "ids in cases are texts, too")
    return ids


_RunCase = Callable[[RetrievalCase, Runtime], Coroutine[Any, Any, RetrievalCaseResult]]


class _Evaluation:
    """The cases and settings of an evaluation."""

    def __init__(
        self,
        cases: Iterable[RetrievalCase],
        k: int,
        document_id: DocumentId,
        evaluators: Mapping[str, Evaluator] = EMPTY,
    ) -> None:
        check_type("cases", cases, Iterable, "put a single one into a list")
        self._cases = tuple(cases)
        for case in self._cases:
            check_type("a case", case, RetrievalCase)
        if not self._cases:
            msg = "an evaluation needs at least one case"
            raise UsageError(msg)
        check_number("k", k, least=1)
        check_callable("document_id", document_id, takes=("document",))
        check_type("evaluators", evaluators, Mapping, 'name them: {"faithfulness": evaluator}')
        for evaluator in evaluators.values():
            check_type("an evaluator", evaluator, Evaluator)
        self._k = k
        self._document_id = document_id
        self._evaluators = evaluators

    async def retriever(
        self, retriever: DocumentRetriever, runtime: Runtime, limit: int
    ) -> RetrievalReport:
        """Return the report on a retriever."""
        check_callable("a retriever", retriever, takes=STEP)

        async def run(case: RetrievalCase, runtime: Runtime) -> RetrievalCaseResult:
            started = perf_counter()
            try:
                [found] = await retrieve_all([(retriever, Query(case.question))], runtime, limit=1)
            except RetrievalError as error:
                return _failed(case, "retrieval", error, started)
            return self._result(case, found, started)

        return await self._report(run, runtime, limit)

    async def answers(
        self, answer: AnswerQuestion, runtime: Runtime, limit: int
    ) -> RetrievalReport:
        """Return the report on answers."""
        check_callable("answer", answer, takes=("question",))

        async def run(case: RetrievalCase, runtime: Runtime) -> RetrievalCaseResult:
            started = perf_counter()
            try:
                response = await run_step(runtime, answer, case.question)
            except NOT_RETRIEVER_FAILURES:
                raise
            except ChatClientError as error:
                return _failed(case, "answer", error, started)
            hint = "return the chat_client_response() of a request"
            check_type("an answer", response, ChatClientResponse, hint)
            request = EvaluationRequest.of(case.question, response, case.answer)
            verdicts: dict[str, EvaluationResponse] = {}
            errors: dict[str, str] = {}
            result = self._result(case, request.documents, started, request.answer)
            await self._judge(request, runtime, verdicts, errors)
            return replace(result, verdicts=verdicts, errors=errors)

        return await self._report(run, runtime, limit)

    async def _judge(
        self,
        request: EvaluationRequest,
        runtime: Runtime,
        verdicts: dict[str, EvaluationResponse],
        errors: dict[str, str],
    ) -> None:
        for name, evaluator in self._evaluators.items():
            if evaluator.can_judge(request):
                try:
                    verdicts[name] = await evaluator.judge(request, runtime)
                except NOT_RETRIEVER_FAILURES:
                    raise
                except ChatClientError as error:
                    errors[name] = _error_text(error)

    def _result(
        self,
        case: RetrievalCase,
        documents: Sequence[Document],
        started: float,
        answer: str | None = None,
    ) -> RetrievalCaseResult:
        seconds = perf_counter() - started
        found = tuple(dict.fromkeys(ids_of(documents, self._document_id)))
        scores = RetrievalScores.of(found, case.relevant, self._k)
        return RetrievalCaseResult(case, found, scores, seconds, answer)

    async def _report(self, run: _RunCase, runtime: Runtime, limit: int) -> RetrievalReport:
        check_number("max_concurrency", limit, least=1)
        results = await runtime.gather([_job(run, case) for case in self._cases], limit=limit)
        return RetrievalReport(tuple(results), self._k)


def _job(
    run: _RunCase, case: RetrievalCase
) -> Callable[[Runtime], Coroutine[Any, Any, RetrievalCaseResult]]:
    return lambda runtime: run(case, runtime)


def _failed(
    case: RetrievalCase, name: str, error: Exception, started: float
) -> RetrievalCaseResult:
    errors = {name: _error_text(error)}
    seconds = perf_counter() - started
    return RetrievalCaseResult(case, (), RetrievalScores(), seconds, errors=errors)


def _error_text(error: Exception) -> str:
    return f"{type(error).__name__}: {error}"
