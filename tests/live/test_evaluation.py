"""The real local model as a judge of relevancy and facts."""

import pytest

from chatclient import ChatClient, ChatModel, ChatOptions
from chatclient.advisors import MessageChatMemoryAdvisor, RetrievalAugmentationAdvisor
from chatclient.memory import MessageWindowChatMemory
from chatclient.retrieval import Document, KeywordDocumentRetriever
from chatclient.testing import (
    CriterionEvaluator,
    RetrievalCase,
    SimulatedUser,
    SpendingLimit,
    TurnRecording,
    assert_passes,
    evaluate_answers,
    replay_turn,
)
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


@pytest.mark.parametrize(
    ("answer", "passed"), [("It opens at nine o'clock.", True), ("It opens in the morning.", False)]
)
def test_criterion(local_model: ChatModel, answer: str, passed: bool) -> None:
    """A small model judges whether an answer meets a simple criterion."""
    criterion = CriterionEvaluator(local_model, "The answer names an exact time.", options=STEADY)
    request = EvaluationRequest("When does the zoo open?", answer)

    assert criterion.evaluate(request).passed is passed


def test_simulated_user(local_model: ChatModel) -> None:
    """Two clients talk to each other, and the first turn is replayed with equal prompts."""
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    client = (
        ChatClient.builder(local_model)
        .default_system(f"You answer questions of visitors, in one sentence. {ZOO.text}")
        .default_options(temperature=0.0, max_tokens=60)
        .default_advisors(memory)
        .build()
    )
    player = ChatClient.builder(local_model).default_options(temperature=0.0, max_tokens=120)
    user = SimulatedUser(player.build(), "Learn when the zoo of Rome opens.", max_turns=2)

    conversation = user.talk_to(client)

    assert conversation.turns
    assert "nine" in conversation.text or "9" in conversation.text, conversation
    assert_passes(conversation.to_evaluate(), SpendingLimit(model_calls=2))
    trail = conversation.turns[0].response.trail
    assert trail is not None
    assert replay_turn(TurnRecording.of(trail), client).difference is None
