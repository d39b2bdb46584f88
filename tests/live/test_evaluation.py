"""The real local model as a judge of relevancy and facts."""

import pytest

from chatclient import ChatModel, ChatOptions
from chatclient.retrieval import Document
from chatclient.testing.evaluation import (
    EvaluationRequest,
    FactCheckingEvaluator,
    RelevancyEvaluator,
)

pytestmark = pytest.mark.live

ZOO = Document("The zoo of Rome opens at nine in the morning and closes at six.")
STEADY = ChatOptions(temperature=0.0, max_tokens=80)


@pytest.mark.parametrize(
    ("answer", "passed"), [("It opens at nine.", True), ("It opens at noon.", False)]
)
@pytest.mark.parametrize("kind", [RelevancyEvaluator, FactCheckingEvaluator])
def test_model_judges_answers(
    local_model: ChatModel,
    kind: type[RelevancyEvaluator | FactCheckingEvaluator],
    answer: str,
    passed: bool,
) -> None:
    """A small model distinguishes clearly right and wrong answers."""
    request = EvaluationRequest("When does the zoo open?", answer, [ZOO])

    assert kind(local_model, options=STEADY).evaluate(request).passed is passed
