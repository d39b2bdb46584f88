"""The real local model as a judge: of what answers a question, and of what documents bear out."""

import pytest

from chatclient import ChatModel, ChatOptions
from chatclient.evaluation import EvaluationRequest, FactCheckingEvaluator, RelevancyEvaluator
from chatclient.vector_store import Document

pytestmark = pytest.mark.live

ZOO = Document("The zoo of Rome opens at nine in the morning and closes at six.")
STEADY = ChatOptions(temperature=0.0, max_tokens=80)


@pytest.mark.parametrize(
    ("answer", "passed"), [("It opens at nine.", True), ("It opens at noon.", False)]
)
@pytest.mark.parametrize("kind", [RelevancyEvaluator, FactCheckingEvaluator])
def test_the_model_judges_answers(
    local_model: ChatModel,
    kind: type[RelevancyEvaluator | FactCheckingEvaluator],
    answer: str,
    passed: bool,
) -> None:
    """A small one can tell what is plainly right from what is plainly wrong."""
    request = EvaluationRequest("When does the zoo open?", answer, [ZOO])

    assert kind(local_model, options=STEADY).evaluate(request).passed is passed
