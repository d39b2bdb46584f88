"""Evaluators and cases in the experiments of the real pydantic-evals."""

import asyncio
import sys
from collections.abc import Sequence
from typing import Any

import pytest

import chatclient.testing
from chatclient import ChatClient, ChatClientResponse
from chatclient.advisors import RetrievalAugmentationAdvisor
from chatclient.errors import MissingExtraError
from chatclient.retrieval import Document, KeywordDocumentRetriever, Query
from chatclient.runtime.runtime import ON_LOOP
from chatclient.testing import (
    CorrectnessEvaluator,
    FactCheckingEvaluator,
    RetrievalCase,
    ScriptedModel,
    SpendingLimit,
)

pytest.importorskip("pydantic_evals", reason="the extra `evals` is not installed")

from chatclient.testing import AnswerJudge, RetrievalMetrics, pydantic_evals_dataset

DOCUMENTS = (
    Document("The zoo opens at nine.", {"source": "zoo.md"}, "zoo-1"),
    Document("Parking is free on Sundays.", {"source": "parking.md"}, "parking"),
)
CASES = (
    RetrievalCase("When does the zoo open?", {"zoo-1"}, "At nine."),
    RetrievalCase("Who feeds the lions?", {"zoo-2"}),
)
RETRIEVER = KeywordDocumentRetriever(DOCUMENTS)


def judged(dataset: Any, task: Any) -> list[Any]:
    """Return the results of all cases, sorted by their question."""
    report = asyncio.run(dataset.evaluate(task, progress=False))
    assert report.failures == []
    assert [failure for case in report.cases for failure in case.evaluator_failures] == []
    return sorted(report.cases, key=lambda case: CASES[0].question != case.inputs)


def test_answers_of_a_client() -> None:
    """Verdicts are assertions with a reason; metrics are scores."""
    client = (
        ChatClient.builder(ScriptedModel(lambda prompt: "At nine."))
        .default_advisors(RetrievalAugmentationAdvisor(RETRIEVER))
        .build()
    )

    async def answer(question: str) -> ChatClientResponse:
        return await client.prompt(question).acall().chat_client_response()

    judge = ScriptedModel("Yes. It says nine.")
    evaluators = (
        AnswerJudge(FactCheckingEvaluator(judge), "faithfulness"),
        AnswerJudge(CorrectnessEvaluator(ScriptedModel("no")), "correctness"),
        AnswerJudge(SpendingLimit(model_calls=0), "spending"),
        RetrievalMetrics(k=1),
    )
    dataset = pydantic_evals_dataset("zoo", CASES, evaluators)

    first, second = judged(dataset, answer)

    verdict = first.assertions["faithfulness"]
    assert (verdict.value, verdict.reason) == (True, "It says nine.")
    assert (first.assertions["correctness"].value, first.assertions["correctness"].reason) == (
        False,
        None,
    )
    assert first.assertions["spending"].reason == "model_calls: 1, not 0 at most"
    assert {name: score.value for name, score in first.scores.items()} == dict.fromkeys(
        ("hit_rate", "recall", "mrr", "ndcg"), 1.0
    )
    assert [*second.assertions] == ["spending"]  # no documents and no expected answer
    assert second.scores["hit_rate"].value == 0
    assert verdict.source.arguments["evaluator"] == "FactCheckingEvaluator"


def test_documents_of_a_retriever() -> None:
    """A task may return documents, which are identified by their source."""

    async def retrieve(question: str) -> Sequence[Document]:
        return await RETRIEVER(Query(question), ON_LOOP)

    metrics = RetrievalMetrics(document_id=lambda document: document.metadata["source"])
    cases = [RetrievalCase("When does the zoo open?", {"zoo.md"})]

    [case] = judged(pydantic_evals_dataset("zoo", cases, [metrics]), retrieve)

    assert case.scores["hit_rate"].value == 1


def test_text_answers() -> None:
    """A task may return a text, which is judged without documents."""
    judge = AnswerJudge(CorrectnessEvaluator(ScriptedModel("yes")), "correct")

    [case] = judged(
        pydantic_evals_dataset("zoo", CASES[:1], [judge]), lambda question: "Nine o'clock."
    )

    assert case.assertions["correct"].value is True


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "pydantic_evals", None)
    monkeypatch.delitem(sys.modules, "chatclient.testing.pydantic_evals")
    monkeypatch.delitem(vars(chatclient.testing), "pydantic_evals_dataset", raising=False)

    with pytest.raises(MissingExtraError, match=r"chatclient\[evals\]"):
        from chatclient.testing import pydantic_evals_dataset  # noqa: F401


def test_outputs_of_other_types_are_failures() -> None:
    """Wrong outputs and metadata are reported by pydantic-evals as failures."""
    evaluators = [RetrievalMetrics(), AnswerJudge(CorrectnessEvaluator(ScriptedModel()), "x")]
    dataset = pydantic_evals_dataset("zoo", CASES[:1], evaluators)
    dataset.add_case(name="bare", inputs="q", metadata={})

    report = asyncio.run(dataset.evaluate(lambda question: 5, progress=False))

    messages = {
        failure.error_message for case in report.cases for failure in case.evaluator_failures
    }
    assert any("relevant" in message for message in messages)
    assert any("the output of a task must be a" in message for message in messages)


@pytest.mark.parametrize("output", ["It opens at nine.", ["zoo-1"]])
def test_metrics_of_an_output_without_documents(output: object) -> None:
    """Texts instead of documents are a failure and not a score of 0."""
    dataset = pydantic_evals_dataset("zoo", CASES[:1], [RetrievalMetrics()])

    report = asyncio.run(dataset.evaluate(lambda question: output, progress=False))

    [case] = report.cases
    assert case.scores == {}
    assert "return documents or a ChatClientResponse" in case.evaluator_failures[0].error_message
