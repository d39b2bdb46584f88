"""Evaluation of retrievers and of answers from documents."""

import asyncio
from collections.abc import Callable, Sequence
from math import log2
from typing import Any

import pytest

from chatclient import ChatClient, Runtime
from chatclient.advisors import RetrievalAugmentationAdvisor
from chatclient.errors import OverloadedError, UsageError, WrongTypeError
from chatclient.retrieval import Document, KeywordDocumentRetriever, Query
from chatclient.testing import (
    CorrectnessEvaluator,
    EvaluationRequest,
    FactCheckingEvaluator,
    RelevancyEvaluator,
    RetrievalCase,
    RetrievalReport,
    RetrievalScores,
    ScriptedModel,
    aevaluate_answers,
    aevaluate_retriever,
    evaluate_answers,
    evaluate_retriever,
)

DOCUMENTS = (
    Document("The zoo opens at nine.", {"source": "zoo.md"}, "zoo-1"),
    Document("A ticket for the zoo costs three coins.", {"source": "zoo.md"}, "zoo-2"),
    Document("Parking is free on Sundays.", {"source": "parking.md"}, "parking"),
)
CASES = (
    RetrievalCase("When does the zoo open?", {"zoo-1"}, "At nine."),
    RetrievalCase("Who feeds the lions?", "zoo-2"),
)

Kind = str
Evaluate = Callable[..., RetrievalReport]


@pytest.fixture(params=["blocking", "async"])
def retriever_report(request: pytest.FixtureRequest) -> Evaluate:
    """Evaluate a retriever, blocking and async."""
    if request.param == "blocking":
        return evaluate_retriever
    return lambda *args, **kwargs: asyncio.run(aevaluate_retriever(*args, **kwargs))


@pytest.fixture(params=["blocking", "async"])
def answers_report(request: pytest.FixtureRequest) -> Evaluate:
    """Evaluate the answers of a client, blocking and async."""

    def evaluate(client: ChatClient, *args: Any, **kwargs: Any) -> RetrievalReport:
        if request.param == "blocking":
            return evaluate_answers(
                lambda question: client.prompt(question).call().chat_client_response(),
                *args,
                **kwargs,
            )
        return asyncio.run(
            aevaluate_answers(
                lambda question: client.prompt(question).acall().chat_client_response(),
                *args,
                max_concurrency=1,
                **kwargs,
            )
        )

    return evaluate


@pytest.mark.parametrize(
    ("found", "relevant", "scores"),
    [
        (["a", "b", "c"], {"a"}, (1, 1, 1, 1)),
        (["x", "a", "y"], {"a", "b"}, (1, 0.5, 0.5, (1 / log2(3)) / (1 + 1 / log2(3)))),
        (["x", "y", "z", "a"], {"a"}, (0, 0, 0, 0)),  # after the first three
        (["x", "x", "x", "a"], {"a"}, (1, 1, 0.5, 1 / log2(3))),  # a repeated id counts once
        (["a", "b", "c"], {"a", "b", "c", "d"}, (1, 0.75, 1, 1)),  # no more than three can be found
        ([], {"a"}, (0, 0, 0, 0)),
    ],
)
def test_metrics(found: list[str], relevant: set[str], scores: tuple[float, ...]) -> None:
    """The metrics of the first three documents."""
    computed = RetrievalScores.of(found, relevant, 3)

    values = computed.hit, computed.recall, computed.reciprocal_rank, computed.ndcg
    assert values == pytest.approx(scores)


def test_report_on_a_retriever(retriever_report: Evaluate) -> None:
    """The report has the results of each case and the totals."""
    report = retriever_report(KeywordDocumentRetriever(DOCUMENTS), CASES, k=2)

    assert [result.found[:1] for result in report.results] == [("zoo-1",), ()]
    expected = {"hit_rate": 0.5, "recall": 0.5, "mrr": 0.5, "ndcg": 0.5}
    assert report.totals == expected
    assert [result.case for result in report.failures] == [CASES[1]]
    assert all(result.seconds >= 0 for result in report.results)
    assert str(report).splitlines() == [
        "2 cases, k = 2",
        "hit_rate  0.500",
        "recall    0.500",
        "mrr       0.500",
        "ndcg      0.500",
        "1 of 2 cases did not pass:",
        "'Who feeds the lions?': found nothing; relevant: zoo-2",
    ]


def test_documents_of_a_source(retriever_report: Evaluate) -> None:
    """Cases may name the sources of documents; each source counts once."""
    case = RetrievalCase("zoo ticket", ["zoo.md"])

    report = retriever_report(
        KeywordDocumentRetriever(DOCUMENTS), [case], document_id=lambda d: d.metadata["source"]
    )

    assert report.results[0].found == ("zoo.md",)
    assert report.totals["ndcg"] == 1


def test_failed_retriever(retriever_report: Evaluate) -> None:
    """An error of the retriever is recorded; programming errors are raised."""

    async def broken(query: Query, runtime: Runtime) -> Sequence[Document]:
        message = "no connection"
        raise OSError(message)

    report = retriever_report(broken, CASES)

    assert report.totals["hit_rate"] == 0
    assert "retrieval: RetrievalError: no documents could be retrieved" in str(report)
    with pytest.raises(NameError):
        retriever_report(lambda query, runtime: missing, CASES)  # type: ignore[name-defined]  # noqa: F821


def client_of(model: ScriptedModel) -> ChatClient:
    advisor = RetrievalAugmentationAdvisor(KeywordDocumentRetriever(DOCUMENTS))
    return ChatClient.builder(model).default_advisors(advisor).build()


def test_report_on_answers(answers_report: Evaluate) -> None:
    """Evaluators judge the answers for which they have documents or an expected answer."""
    client = client_of(ScriptedModel("At ten.", "I do not know."))
    evaluators = {
        "faithfulness": FactCheckingEvaluator(ScriptedModel("no, it opens at nine")),
        "correctness": CorrectnessEvaluator(ScriptedModel("No. Nine is not ten.")),
    }

    report = answers_report(client, CASES, evaluators=evaluators)

    assert [result.answer for result in report.results] == ["At ten.", "I do not know."]
    assert [list(result.verdicts) for result in report.results] == [list(evaluators), []]
    assert report.totals["faithfulness"] == 0
    text = str(report)
    assert "faithfulness  0.000  (1 judged)" in text
    assert "  correctness: no; Nine is not ten." in text


def test_good_answers_pass(answers_report: Evaluate) -> None:
    """A case passes if a relevant document was found and every verdict is positive."""
    client = client_of(ScriptedModel("At nine."))
    judge = ScriptedModel("Yes.", "Yes.")
    evaluators = {
        "correct": CorrectnessEvaluator(judge),
        "relevant": RelevancyEvaluator(judge),
    }

    report = answers_report(client, CASES[:1], evaluators=evaluators)

    assert report.failures == ()
    assert set(report.totals.values()) == {1.0}
    assert str(report).splitlines()[-1] == "relevant  1.000  (1 judged)"
    assert "<expected>At nine.</expected>" in judge.prompts[0].messages[0].text


def test_failed_answer_and_failed_judge(answers_report: Evaluate) -> None:
    """Errors of models are recorded for the case, and the others are evaluated."""
    client = client_of(ScriptedModel(OverloadedError("busy"), "At nine."))
    judge = FactCheckingEvaluator(ScriptedModel("perhaps"))

    report = answers_report(client, [CASES[0], CASES[0]], evaluators={"faithfulness": judge})

    first, second = report.results
    assert (list(first.errors), first.answer) == (["answer"], None)
    assert (list(second.errors), second.answer) == (["faithfulness"], "At nine.")
    assert "busy" in first.errors["answer"]
    assert "neither yes nor no" in str(second)
    assert "faithfulness" not in report.totals


def test_long_reports_are_cut() -> None:
    """The text shows the first failures and the number of the others."""
    cases = [RetrievalCase(f"question {n}", ["missing"]) for n in range(13)]

    report = evaluate_retriever(KeywordDocumentRetriever(DOCUMENTS), cases)

    assert str(report).endswith("... and 3 more in `failures`")
    assert len(report.failures) == 13


def test_programming_errors_are_raised(answers_report: Evaluate) -> None:
    """Mistakes in evaluators and in the function that answers are not results."""

    class Wrong(CorrectnessEvaluator):
        async def judge(self, request: EvaluationRequest, runtime: Runtime) -> Any:
            return request.unknown  # type: ignore[attr-defined]

    wrong = Wrong(ScriptedModel())
    with pytest.raises(AttributeError):
        answers_report(client_of(ScriptedModel("At nine.")), CASES[:1], evaluators={"x": wrong})
    with pytest.raises(WrongTypeError, match="return the chat_client_response"):
        evaluate_answers(lambda question: "At nine.", CASES)  # type: ignore[arg-type, return-value]
    with pytest.raises(UsageError):
        evaluate_answers(lambda question: RetrievalCase("", []), CASES)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ({"cases": []}, UsageError, "at least one case"),
        ({"cases": ["q"]}, WrongTypeError, "a case must be a RetrievalCase"),
        ({"cases": CASES[0]}, WrongTypeError, "put a single one into a list"),
        ({"k": 0}, UsageError, "k must be at least 1"),
        ({"document_id": "source"}, UsageError, "document_id"),
        ({"evaluators": [1]}, WrongTypeError, "name them"),
        ({"evaluators": {"x": "y"}}, WrongTypeError, "an evaluator must be"),
    ],
)
def test_invalid_evaluations(settings: Any, error: type[Exception], message: str) -> None:
    """Wrong arguments raise before anything is asked."""
    with pytest.raises(error, match=message):
        evaluate_answers(ChatClient.create, **{"cases": CASES, **settings})  # type: ignore[arg-type]


def test_ids_that_are_no_texts() -> None:
    """A number is never equal to an id in a case, so it is an error and not a score of 0."""
    retriever = KeywordDocumentRetriever(DOCUMENTS)
    with pytest.raises(WrongTypeError, match="ids in cases are texts"):
        evaluate_retriever(retriever, CASES, document_id=lambda document: 5)  # type: ignore[arg-type, return-value]


@pytest.mark.parametrize(
    ("question", "relevant", "message"),
    [(" ", ["a"], "needs a question"), ("q", [], "needs a question")],
)
def test_invalid_cases(question: str, relevant: Any, message: str) -> None:
    """A case has a question and the ids of relevant documents."""
    with pytest.raises(UsageError, match=message):
        RetrievalCase(question, relevant)


def test_correctness_needs_an_expected_answer() -> None:
    """Without an expected answer, the evaluator raises."""
    with pytest.raises(UsageError, match="expected answer"):
        CorrectnessEvaluator(ScriptedModel()).evaluate(EvaluationRequest("q", "a"))
