"""Moderation of texts, and guardrails that use it."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from chatclient import AssistantMessage, ChatClient, ChatResponse, UserMessage
from chatclient.advisors.guardrails.advisors import (
    InputGuardrailAdvisor,
    OutputGuardrailAdvisor,
    moderated_input,
    moderated_output,
)
from chatclient.chat.moderation import Moderation, ModerationModel
from chatclient.chat.response import Generation
from chatclient.errors import (
    AuthenticationError,
    GuardrailError,
    InvalidResponseError,
    RateLimitedError,
    UsageError,
)
from chatclient.providers.http.retry import RetryPolicy
from chatclient.providers.openai.moderation import OpenAIModerationModel
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, ScriptedModel
from tests.support.loopback import Service, services
from tests.support.servers import Reply

Json = dict[str, Any]

CALM = {"flagged": False, "categories": {"violence": False}, "category_scores": {"violence": 0.1}}
ANGRY = {"flagged": True, "categories": {"violence": True}, "category_scores": {"violence": 0.9}}


Start = Callable[..., Service[OpenAIModerationModel]]


@pytest.fixture
def service() -> Iterator[Start]:
    """Start servers that send each reply in turn, and are closed after the test."""

    def create(url: str) -> OpenAIModerationModel:
        return OpenAIModerationModel(
            api_key="sk-very-secret", base_url=url, max_retries=RetryPolicy(1, 0.0)
        )

    with services(create) as start:
        yield start


def moderated(model: ModerationModel, text: str, *, blocking: bool) -> Moderation:
    if blocking:
        return model.moderate(text)

    async def moderate() -> Moderation:
        async with model:
            return await model.amoderate(text)

    return asyncio.run(moderate())


@pytest.mark.feature("guardrail-moderate-message-moderator-input")
@pytest.mark.parametrize("blocking", [True, False])
def test_a_text_is_judged(service: Start, blocking: bool) -> None:
    """The result has the categories and their scores."""
    started = service({"results": [ANGRY]})
    verdict = moderated(started.model, "I hit you", blocking=blocking)

    assert verdict == Moderation(True, ("violence",), {"violence": 0.9})
    assert started.requests == [
        (
            "/moderations",
            "Bearer sk-very-secret",
            {"model": "omni-moderation-latest", "input": ["I hit you"]},
        )
    ]


def test_a_server_that_only_names_categories(service: Start) -> None:
    """A text is flagged when one of them applies."""
    started = service(
        {"results": [{"categories": {"pii": True, "law": False}}]},
        {"results": [{"categories": {"pii": False}}]},
    )

    assert started.model.moderate("x") == Moderation(True, ("pii",))
    assert not started.model.moderate("x").flagged


def test_a_busy_service_is_called_again(service: Start) -> None:
    """A request that the service refuses as busy is retried."""
    started = service(Reply(b"busy", 503), {"results": [CALM]})

    assert not started.model.moderate("x").flagged


@pytest.mark.parametrize(
    "answer", [{}, {"results": None}, {"results": [{}]}, {"results": [7]}, {"results": []}]
)
def test_an_answer_without_a_judgement(service: Start, answer: Json) -> None:
    """It is an error, and no text passes for it."""
    with pytest.raises(InvalidResponseError):
        service(answer).model.moderate("x")


def test_errors_are_those_of_the_provider(service: Start) -> None:
    """Typed, and without the key."""
    with pytest.raises(AuthenticationError, match="openai-compatible answered") as caught:
        service(Reply(b"wrong key sk-very-secret", 401)).model.moderate("x")
    assert "very-secret" not in str(caught.value)


def test_an_error_with_status_200(service: Start) -> None:
    """It is retried, or raised, as the error that it reports."""
    busy = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}

    assert not service(busy, {"results": [CALM]}).model.moderate("x").flagged
    with pytest.raises(RateLimitedError, match="slow down"):
        service(busy, busy).model.moderate("x")


def test_a_key_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's own server needs a key."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        OpenAIModerationModel()


def test_a_model_needs_a_name() -> None:
    """An environment variable may be blank."""
    with pytest.raises(UsageError, match="must not be blank"):
        OpenAIModerationModel(" ", api_key="k")


# --- guardrails ---


class Wordlist(ModerationModel):
    """Flags one word, and notes what it was asked."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def moderate_all(self, texts: Sequence[str], runtime: Runtime) -> list[Moderation]:
        self.asked += texts
        return [Moderation("hit" in text, ("violence", "harassment")) for text in texts]


@pytest.mark.feature("guardrail-moderate-message-moderator-input")
def test_flagged_questions_are_not_sent(ask: Ask) -> None:
    """The error has the categories, and nothing is sent."""
    model = ScriptedModel("ok")
    guard = InputGuardrailAdvisor(moderated_input(Wordlist()))
    client = ChatClient.builder(model).default_advisors(guard).build()

    with pytest.raises(GuardrailError, match="flagged for violence, harassment"):
        ask(client.prompt("I hit you"))
    with pytest.raises(GuardrailError, match="flagged for violence, harassment"):
        ask(client.prompt([UserMessage("I hit you."), UserMessage("Do you mind?")]))
    assert model.prompts == []
    assert ask(client.prompt("I like you")).text == "ok"


@pytest.mark.feature("guardrail-moderate-message-moderator-input")
def test_flagged_answers_are_not_streamed(ask: Ask) -> None:
    """The error is raised, and nothing is streamed."""
    words = Wordlist()
    guard = OutputGuardrailAdvisor(moderated_output(words))
    builder = ChatClient.builder(ScriptedModel("I hit you", "I like you", " "))
    client = builder.default_advisors(guard).build()

    with pytest.raises(GuardrailError, match="flagged for violence"):
        ask(client.prompt("x"))
    assert ask(client.prompt("x")).text == "I like you"
    assert ask(client.prompt("x")).text == " "
    assert words.asked == ["I hit you", "I like you"]
    said = [AssistantMessage("I like you"), AssistantMessage("I hit you")]
    both = ChatResponse(tuple(Generation(each, index=at) for at, each in enumerate(said)))
    with pytest.raises(GuardrailError, match="flagged for violence"):
        ask(ChatClient.create(ScriptedModel(both)).prompt("x").advisors(guard))


def test_a_request_without_text_is_not_moderated(ask: Ask) -> None:
    """The model is not called without a text."""
    words = Wordlist()
    guard = InputGuardrailAdvisor(moderated_input(words))
    client = ChatClient.builder(ScriptedModel("ok")).default_advisors(guard).build()

    assert ask(client.prompt().system("Go on.")).text == "ok"
    assert words.asked == []
