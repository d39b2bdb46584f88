"""Evaluators and cases of this library for pydantic-evals; extra `evals`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_evals import Case, Dataset
from pydantic_evals.evaluators import (
    EvaluationReason,
    Evaluator as TheirEvaluator,
    EvaluatorContext,
)

from chatclient._internal.checks import check_type
from chatclient.chain.chain import ChatClientResponse
from chatclient.chat.document import Document, documents_among
from chatclient.errors import WrongTypeError
from chatclient.testing.evaluation import EvaluationRequest, Evaluator
from chatclient.testing.retrieval_evaluation import (
    DEFAULT_K,
    DocumentId,
    RetrievalCase,
    RetrievalScores,
    ids_of,
    own_id,
)

RELEVANT = "relevant"
"""The key of the ids of the relevant documents in the metadata of a case."""

Scores = dict[str, EvaluationReason]


def pydantic_evals_dataset(
    name: str,
    cases: Iterable[RetrievalCase],
    evaluators: Sequence[TheirEvaluator[str, Any, Any]] = (),
) -> Dataset[str, Any, dict[str, list[str]]]:
    """Return a data set of pydantic-evals.

    The input of a case is its question, the expected output its answer, and the metadata contain
    the ids of the relevant documents.

    Args:
        name: The name of the data set.
        cases: The cases.
        evaluators: Evaluators of pydantic-evals, such as `AnswerJudge` and `RetrievalMetrics`.
    """
    converted: list[Case[str, Any, dict[str, list[str]]]] = []
    for case in cases:
        check_type("a case", case, RetrievalCase)
        metadata = {RELEVANT: sorted(case.relevant)}
        converted.append(Case(inputs=case.question, expected_output=case.answer, metadata=metadata))
    return Dataset(name=name, cases=converted, evaluators=evaluators)


@dataclass(repr=False)
class AnswerJudge(TheirEvaluator[str, Any, Any]):
    """An evaluator of pydantic-evals that lets an `Evaluator` of this library judge.

    The input of a case is the question. The output is a `ChatClientResponse`, or a text. A case is
    left out if the evaluator needs documents or an expected answer, and there are none.

    Attributes:
        evaluator: The evaluator.
        evaluation_name: The name of the verdict in reports.
    """

    evaluator: Evaluator
    evaluation_name: str

    async def evaluate(self, ctx: EvaluatorContext[str, Any, Any]) -> Scores:
        """Return the verdict with the feedback of the judge."""
        expected = ctx.expected_output if isinstance(ctx.expected_output, str) else None
        if isinstance(ctx.output, ChatClientResponse):
            request = EvaluationRequest.of(ctx.inputs, ctx.output, expected)
        else:
            check_type("the output of a task", ctx.output, str)
            request = EvaluationRequest(ctx.inputs, ctx.output, expected=expected)
        if not self.evaluator.can_judge(request):
            return {}
        verdict = await self.evaluator.aevaluate(request)
        return {self.evaluation_name: EvaluationReason(verdict.passed, verdict.feedback or None)}

    def build_serialization_arguments(self) -> dict[str, Any]:
        """Return the arguments that are shown in reports; the evaluator contains a model."""
        kind = type(self.evaluator).__name__
        return {"evaluator": kind, "evaluation_name": self.evaluation_name}


@dataclass(repr=False)
class RetrievalMetrics(TheirEvaluator[str, Any, dict[str, list[str]]]):
    """An evaluator of pydantic-evals that computes the metrics of retrieved documents.

    The output of a case is a list of `Document`s, or a `ChatClientResponse` with documents. The
    metadata contain the ids of the relevant ones, as those of `pydantic_evals_dataset`.

    Attributes:
        k: The number of documents that count.
        document_id: Returns the id of a document; None for `Document.id`.
    """

    k: int = DEFAULT_K
    document_id: DocumentId | None = None

    def evaluate(self, ctx: EvaluatorContext[str, Any, dict[str, list[str]]]) -> dict[str, float]:
        """Return hit rate, recall, reciprocal rank and nDCG."""
        metadata = ctx.metadata or {}
        if not metadata.get(RELEVANT):
            msg = f"the metadata of a case need {RELEVANT!r}, the ids of the relevant documents"
            raise WrongTypeError(msg)
        found = ids_of(_documents(ctx.output), self.document_id or own_id)
        scores = RetrievalScores.of(found, metadata[RELEVANT], self.k)
        return {
            "hit_rate": scores.hit,
            "recall": scores.recall,
            "mrr": scores.reciprocal_rank,
            "ndcg": scores.ndcg,
        }

    def build_serialization_arguments(self) -> dict[str, Any]:
        """Return the arguments that are shown in reports."""
        return {"k": self.k}


def _documents(output: Any) -> Sequence[Document]:
    if isinstance(output, ChatClientResponse):
        return documents_among(output.turn.sources)
    hint = "return documents or a ChatClientResponse"
    check_type("the output of a task", output, (list, tuple), hint)
    for document in output:
        check_type("a document", document, Document, hint)
    documents: Sequence[Document] = output
    return documents
