"""Decision models of servers with the System One API."""

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.advisors import InputGuardrailAdvisor
from chatclient.decisions import (
    ChoiceQuestion,
    DecisionInput,
    DecisionQuestions,
    DecisionResponse,
    ScoreQuestion,
    SystemOneDecisionModel,
    YesNoQuestion,
    decision_input_guardrail,
)
from chatclient.errors import (
    AuthenticationError,
    DeadlineExceededError,
    InvalidRequestError,
    InvalidResponseError,
    RequestTimeoutError,
    UsageError,
)
from chatclient.providers import RetryPolicy
from chatclient.testing import Ask, ScriptedModel
from tests.support.loopback import LoopbackServer, Service, as_json, services
from tests.support.servers import Reply

Json = dict[str, Any]

QUESTIONS: DecisionQuestions = {
    "refund": YesNoQuestion("Does the customer want a refund?", yes_when="money back"),
    "rude": YesNoQuestion("Is it rude?"),
    "team": ChoiceQuestion("Which team?", {"billing": "invoices", "sales": ""}),
    "anger": ScoreQuestion("How angry?", ["calm", "annoyed", "furious"]),
}
ANSWERS: Json = {
    "id": "req_1",
    "model": "jev-1.13.0",
    "provider": "typesafe",
    "answers": {
        "refund": {"type": "noul", "noul": 0.98},
        "rude": {"type": "noul", "noul": 1.0000002},
        "team": {
            "type": "choice",
            "choice": "billing",
            "confidence": 0.7,
            "probabilities": {"billing": 0.85, "sales": 0.15},
        },
        "anger": {
            "type": "score",
            "score": 1.5,
            "confidence": 0.3,
            "legend": {"0": "calm", "1": "annoyed", "2": "furious"},
            "probabilities": {"0": 0.0, "1": 0.5, "2": 0.5},
        },
    },
    "usage": {"input_tokens": 86, "output_tokens": 4},
}


Start = Callable[..., Service[SystemOneDecisionModel]]


@pytest.fixture
def service() -> Iterator[Start]:
    """Start servers that send each reply in turn, and are closed after the test."""

    def create(url: str) -> SystemOneDecisionModel:
        return SystemOneDecisionModel(
            "jev-latest",
            base_url=f"{url}/v1",
            api_key="key-very-secret",
            max_retries=RetryPolicy(1, 0.0),
        )

    with services(create) as start:
        yield start


def decide(
    service: Service[SystemOneDecisionModel], input: DecisionInput, *, blocking: bool = True
) -> DecisionResponse:
    if blocking:
        return service.model.decide(input, QUESTIONS)

    async def decide() -> DecisionResponse:
        async with service.model as model:
            return await model.adecide(input, QUESTIONS)

    return asyncio.run(decide())


@pytest.mark.feature("decision-system-one")
@pytest.mark.parametrize("blocking", [True, False])
def test_all_questions_are_one_request(service: Start, blocking: bool) -> None:
    started = service(ANSWERS)
    response = decide(started, {"ticket": "I want my money!"}, blocking=blocking)

    assert started.requests == [
        (
            "/v1/systemone",
            "Bearer key-very-secret",
            {
                "model": "jev-latest",
                "state": {"ticket": "I want my money!"},
                "questions": {
                    "refund": {
                        "type": "noul",
                        "instructions": "Does the customer want a refund?",
                        "criteria": {"true": "money back"},
                    },
                    "rude": {"type": "noul", "instructions": "Is it rude?"},
                    "team": {
                        "type": "choice",
                        "instructions": "Which team?",
                        "criteria": {"billing": "invoices", "sales": None},
                    },
                    "anger": {
                        "type": "score",
                        "instructions": "How angry?",
                        "criteria": ["calm", "annoyed", "furious"],
                    },
                },
            },
        )
    ]
    assert response.yes_no("refund").probability == 0.98
    assert response.yes_no("rude").probability == 1.0
    assert response.choice("team").value == "billing"
    assert response.choice("team").margin() == pytest.approx(0.7)
    assert response.score("anger").probabilities["furious"] == 0.5
    assert response.score("anger").confidence == 0.3


def test_rounding_errors(service: Start) -> None:
    """Probabilities and scores may be a little outside of their ranges."""
    changes = {"refund": {"noul": -1e-7}, "anger": {"score": 2.0000002}}
    response = decide(service({"answers": {**ANSWERS["answers"], **changes}}), "text")

    assert response.yes_no("refund").probability == 0.0
    assert response.score("anger").score == 2.0


def test_metadata(service: Start) -> None:
    """Id, model, usage and the other fields of the response."""
    metadata = decide(service(ANSWERS), "text").metadata

    assert (metadata.id, metadata.model) == ("req_1", "jev-1.13.0")
    assert (metadata.usage.input_tokens, metadata.usage.output_tokens) == (86, 4)
    assert metadata.native == {"provider": "typesafe"}


def test_a_server_with_little_information(service: Start) -> None:
    answers = {
        **{name: {"noul": 0.1} for name in ("refund", "rude")},
        "team": {"choice": "sales"},
        "anger": {"score": 0},
    }
    response = decide(service({"answers": answers}), "text")

    assert response.choice("team").probabilities == {}
    assert response.metadata.usage.total_tokens == 0


@pytest.mark.parametrize(
    "changes",
    [
        {"answers": None},
        {"answers": {"refund": {"noul": 0.5}}},
        {"answers": {**ANSWERS["answers"], "rude": {"noul": 1.5}}},
        {"answers": {**ANSWERS["answers"], "rude": {"noul": "yes"}}},
        {"answers": {**ANSWERS["answers"], "team": {"choice": "support"}}},
        {"answers": {**ANSWERS["answers"], "anger": {"score": 2.1}}},
        {"answers": {**ANSWERS["answers"], "anger": {"score": 1, "probabilities": {"7": 1.0}}}},
    ],
)
def test_answers_are_checked(service: Start, changes: Json) -> None:
    with pytest.raises(InvalidResponseError):
        decide(service({**ANSWERS, **changes}), "text")


def test_errors_are_those_of_the_server(service: Start) -> None:
    """They are typed and do not have the key; a busy server is called again."""
    with pytest.raises(AuthenticationError) as caught:
        decide(service(Reply(b"wrong key key-very-secret", 401)), "text")
    assert "very-secret" not in str(caught.value)
    with pytest.raises(InvalidRequestError, match="too many options"):
        decide(service(as_json({"error": {"message": "too many options"}}, 422)), "text")
    assert decide(service(Reply(b"busy", 503), ANSWERS), "text").is_answered("team")


def late(_path: str, _headers: dict[str, str], _body: Any) -> Reply:
    time.sleep(1.0)
    return as_json(ANSWERS)


@pytest.mark.parametrize(
    ("deadline", "timeout", "error"),
    [(0.2, 60.0, DeadlineExceededError), (60.0, 0.2, RequestTimeoutError)],
)
def test_a_late_server(ask: Ask, deadline: float, timeout: float, error: type[Exception]) -> None:
    """It holds a request up to the deadline, or up to the time-out of the model."""
    with (
        LoopbackServer(late) as server,
        SystemOneDecisionModel("m", base_url=server.url, timeout=timeout, max_retries=0) as model,
    ):
        guard = InputGuardrailAdvisor(decision_input_guardrail(model, {"rude": "Is it rude?"}))
        client = ChatClient.builder(ScriptedModel("ok")).default_advisors(guard).build()

        with pytest.raises(error):
            ask(client.prompt("Hi").deadline(deadline))


def test_wrong_settings() -> None:
    with pytest.raises(UsageError, match="must not be blank"):
        SystemOneDecisionModel(" ", base_url="http://localhost/v1")
    with pytest.raises(UsageError):
        SystemOneDecisionModel("m", base_url="localhost")
    model = SystemOneDecisionModel("m", base_url="http://localhost/v1")
    assert (model.name, model.provider) == ("m", "systemone")
