"""Cases, metrics and reports of evaluations of retrieval."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from math import log2
from statistics import fmean

from chatclient._internal.checks import check_type, names
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.errors import UsageError
from chatclient.testing.evaluation import EvaluationResponse

_SHOWN = 10  # cases in the text of a report


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
        return f"<pre>{escape(str(self))}</pre>"
