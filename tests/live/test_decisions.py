"""Decisions of the real local model, from its log probabilities."""

import asyncio

import pytest

from chatclient import ChatClient, ChatModel
from chatclient.advisors import InputGuardrailAdvisor
from chatclient.decisions import (
    ChatDecisionModel,
    ChoiceQuestion,
    DecisionQuestions,
    DecisionResponse,
    ScoreQuestion,
    decision_input_guardrail,
)
from chatclient.errors import GuardrailError
from chatclient.testing import Ask, ScriptedModel

pytestmark = pytest.mark.live

QUESTIONS: DecisionQuestions = {
    "complaint": "Does the customer complain?",
    "team": ChoiceQuestion(
        "Which team should handle this?",
        {
            "billing": "invoices and payments",
            "shipping": "parcels and delivery",
            "sales": "offers and prices",
        },
    ),
    "anger": ScoreQuestion("How angry is the customer?", ["calm", "annoyed", "furious"]),
}
ANGRY = "The parcel arrived broken and nobody answers my mails. This is outrageous!"
CALM = "Hello, I would like to buy three lamps. What do they cost?"


def test_log_probabilities(local_model: ChatModel) -> None:
    """A small model distinguishes clear cases; the two ways to ask give the same answers."""
    model = ChatDecisionModel(local_model)
    angry = model.decide(ANGRY, QUESTIONS)

    async def decide() -> DecisionResponse:
        return await model.adecide(CALM, QUESTIONS)

    calm = asyncio.run(decide())

    assert angry.yes_no("complaint").probability > 0.5 > calm.yes_no("complaint").probability
    assert angry.choice("team").value == "shipping"
    assert calm.choice("team").value == "sales"
    assert angry.score("anger").score > calm.score("anger").score
    assert sum(angry.choice("team").probabilities.values()) == pytest.approx(1.0)
    assert angry.metadata.native == {"probabilities": "logprobs"}
    assert angry.metadata.usage.output_tokens <= 16 * len(QUESTIONS)


def test_stated_probabilities(local_model: ChatModel) -> None:
    """One answer, whose schema the server enforces."""
    model = ChatDecisionModel(local_model, logprobs=False)
    response = model.decide(ANGRY, {"complaint": "Does the customer complain?"})

    assert response.yes_no("complaint").is_yes()
    assert response.metadata.native == {"probabilities": "stated"}


def test_a_guardrail(local_model: ChatModel, ask: Ask) -> None:
    """The judge is the local model."""
    judge = ChatDecisionModel(local_model)
    guard = decision_input_guardrail(judge, {"complaint": "Does the customer complain?"})
    builder = ChatClient.builder(ScriptedModel("Ten euros."))
    client = builder.default_advisors(InputGuardrailAdvisor(guard)).build()

    assert ask(client.prompt(CALM)).text == "Ten euros."
    with pytest.raises(GuardrailError, match="rejected by complaint"):
        ask(client.prompt(ANGRY))
