"""A decision model of tests, whose answers a function computes."""

from collections.abc import Callable

from chatclient import Runtime, Usage
from chatclient.decisions import (
    DecisionAnswer,
    DecisionMetadata,
    DecisionModel,
    DecisionRefusal,
    DecisionRequest,
    DecisionResponse,
    YesNoAnswer,
)

Result = DecisionAnswer | DecisionRefusal | float | Exception


class ComputedDecisions(DecisionModel):
    """Answers each question by a function of the input's text and the question's name.

    A number is the probability of yes, and an error is raised.
    """

    def __init__(self, compute: Callable[[str, str], Result]) -> None:
        self._compute = compute
        self.requests: list[DecisionRequest] = []

    @property
    def name(self) -> str:
        return "judge-1"

    async def answer(self, request: DecisionRequest, runtime: Runtime) -> DecisionResponse:
        self.requests.append(request)
        results: dict[str, DecisionAnswer | DecisionRefusal] = {}
        for name in request.questions:
            result = self._compute(request.text, name)
            if isinstance(result, Exception):
                raise result
            results[name] = YesNoAnswer(result) if isinstance(result, int | float) else result
        return DecisionResponse(results, DecisionMetadata("id-1", "judge-1b", Usage(7, 2)))


def always(result: Result) -> ComputedDecisions:
    """Return a model that answers all questions with *result*."""
    return ComputedDecisions(lambda _text, _name: result)
