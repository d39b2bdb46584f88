"""The real local model as a judge of relevancy and facts."""

import pytest

from chatclient import ChatClient, ChatModel, ChatOptions
from chatclient.advisors import RetrievalAugmentationAdvisor
from chatclient.retrieval import Document, KeywordDocumentRetriever
from chatclient.testing import RetrievalCase, evaluate_answers
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


def test_model_is_evaluated(local_model: ChatModel) -> None:
    """Answers from documents are relevant and supported, as the model itself judges."""
    parking = Document("Parking costs two coins an hour.", {}, "parking")
    zoo = Document(ZOO.text, {}, "zoo")
    advisor = RetrievalAugmentationAdvisor(KeywordDocumentRetriever([zoo, parking]))
    client = (
        ChatClient.builder(local_model)
        .default_advisors(advisor)
        .default_options(temperature=0.0, max_tokens=60)
        .build()
    )

    report = evaluate_answers(
        lambda question: client.prompt(question).call().chat_client_response(),
        [
            RetrievalCase("When does the zoo of Rome open?", "zoo"),
            RetrievalCase("What does parking cost?", "parking"),
        ],
        evaluators={"faithfulness": FactCheckingEvaluator(local_model, options=STEADY)},
    )

    assert report.totals["hit_rate"] == 1
    assert report.totals["faithfulness"] == 1, report
