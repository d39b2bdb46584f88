"""What llmock makes of us: a mock of three services that breaks on demand and judges its clients.

Its verdict comes from what it saw: whether we waited for as long as it asked, backed off, gave up
or asked again where that is of no use. Ollama, which it does not know, is in `test_ollama_aimock`.
"""

from collections.abc import Callable
from typing import Any

import pytest
from conftest import Ask, Asked

from chatclient import ChatClient, ChatModel
from chatclient.errors import (
    AuthenticationError,
    ContextLengthExceededError,
    InvalidRequestError,
    InvalidResponseError,
    NotFoundError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
)
from chatclient.providers.anthropic import AnthropicChatModel
from chatclient.providers.gemini import GeminiChatModel
from chatclient.providers.http import RetryPolicy, Timeouts
from chatclient.providers.openai import OpenAIChatModel
from chatclient.providers.openai_responses import OpenAIResponsesChatModel
from chatclient.tools import tool

pytest.importorskip("llmock", reason="llmock is not installed")

pytestmark = pytest.mark.exhaustive

LLMock = Any  # its fixture, which has no types

KINDS: dict[str, tuple[Callable[..., ChatModel], str, str]] = {
    "chat": (OpenAIChatModel, "openai", ""),
    "responses": (OpenAIResponsesChatModel, "openai", ""),
    "anthropic": (AnthropicChatModel, "anthropic", ""),
    "gemini": (GeminiChatModel, "gemini", "/v1beta"),
}
QUICK = RetryPolicy(2, 0.1, 5.0)


@pytest.fixture(params=KINDS)
def client_of(request: pytest.FixtureRequest, llmock: LLMock) -> Callable[..., ChatClient]:
    kind, service, path = KINDS[request.param]

    def make(**settings: Any) -> ChatClient:
        url = llmock.base_url(service) + path
        named = {"api_key": "test", "base_url": url, "max_retries": QUICK, **settings}
        return ChatClient.create(kind("stub", **named))

    return make


ClientOf = Callable[..., ChatClient]


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


def ask_again(
    ask: Ask, client: ChatClient, llmock: LLMock
) -> tuple[Asked, InvalidResponseError | None]:
    """Ask as an application does that asks once more when an answer breaks off."""
    try:
        return ask(client.prompt("Hi")), None
    except InvalidResponseError as error:
        assert llmock.requests  # waits until the mock has noticed that we hung up
        return ask(client.prompt("Hi")), error


@pytest.mark.parametrize("status", [408, 409, 429, 500, 502, 503, 504, 529])
def test_passing_failures_are_outlived(
    status: int, ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """Two in a row, of which the first says how long to wait, and the third try has the answer."""
    llmock.fail(status, retry_after=0.3).fail(status).reply("made it")
    with client_of() as client:
        assert ask(client.prompt("Hi")).text == "made it"

    llmock.assert_resilient(strict=True)
    assert len(llmock.requests) == 3


def test_waits_grow(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """Where nothing is said of how long to wait, each wait is longer than the one before."""
    llmock.fail(500, times=3).reply("made it")
    with client_of(max_retries=RetryPolicy(3, 0.2, 5.0)) as client:
        assert ask(client.prompt("Hi")).text == "made it"

    llmock.assert_resilient(strict=True)


def test_an_outage_is_not_made_worse(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """After the retries there are, the failure is the application's."""
    llmock.outage()
    with client_of() as client, pytest.raises(OverloadedError):
        ask(client.prompt("Hi"))

    llmock.assert_resilient()
    assert len(llmock.requests) == 3


@pytest.mark.parametrize(
    ("status", "kind"),
    [
        (400, InvalidRequestError),
        (401, AuthenticationError),
        (403, AuthenticationError),
        (404, NotFoundError),
        (422, InvalidRequestError),
    ],
)
def test_what_cannot_pass_is_not_asked_again(
    status: int, kind: type[ProviderError], ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """The same request would fail in the same way."""
    llmock.fail(status, times=None)
    with client_of() as client, pytest.raises(kind):
        ask(client.prompt("Hi"))

    llmock.assert_resilient(strict=True)
    assert len(llmock.requests) == 1


def test_a_prompt_that_is_too_long_is_told(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """Each service says it in its own way; the error is the same."""
    llmock.context_overflow()
    with client_of() as client, pytest.raises(ContextLengthExceededError):
        ask(client.prompt("Hi"))

    llmock.assert_resilient(strict=True)


def test_a_quota_that_is_used_up_is_the_applications(
    ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """A wait of most of a minute is longer than we accept: the error says how long it is."""
    llmock.limits(rpm=1)
    with client_of() as client:
        ask(client.prompt("Hi"))
        with pytest.raises(RateLimitedError) as caught:
            ask(client.prompt("Hi again"))

    assert caught.value.retry_after is not None
    assert caught.value.retry_after > QUICK.longest_wait
    assert llmock.verdict().passed


@pytest.mark.parametrize("fault", ["disconnect", "truncate", "corrupt", "stall"])
def test_broken_streams_are_noticed(
    fault: str, ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """No stream that breaks passes for an answer: an application that asks again gets one."""
    if not ask.streaming:
        pytest.skip("a whole answer is no stream")
    text = "one two three four five six seven eight"
    llmock.reply(text, times=None)
    getattr(llmock, fault)(after_chunks=6)
    with client_of(timeout=Timeouts(read=0.5)) as client:
        result, error = ask_again(ask, client, llmock)

    assert error is not None
    assert result.text == text
    # Where it breaks an event itself, the mock may not notice in time that we hung up over it,
    # and then takes the second request for another one: no more than a warning.
    llmock.assert_resilient(strict=fault != "corrupt")


@pytest.mark.parametrize("fault", ["disconnect", "stall"])
def test_streams_that_break_before_their_first_word_are_asked_for_again(
    fault: str, ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """The application does not notice."""
    llmock.reply("one two three four five", times=None)
    getattr(llmock, fault)(after_chunks=0)
    with client_of(timeout=Timeouts(read=0.5)) as client:
        assert ask(client.prompt("Hi")).text == "one two three four five"

    llmock.assert_resilient(strict=True)


def test_a_slow_beginning_is_waited_for(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """The first byte has a time-out of its own."""
    llmock.slow_first_token(0.6).reply("made it", times=None)
    patient = Timeouts(read=0.3, first_byte=10.0)
    with client_of(timeout=patient, max_retries=0) as client:
        if ask.streaming:
            pytest.skip("llmock sends its headers before it is slow")
        assert ask(client.prompt("Hi")).text == "made it"


def test_tools_are_called(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """The tool loop goes through, with a failure before each round."""
    llmock.rate_limit(retry_after=0.2)
    with client_of() as client:
        result = ask(client.prompt("What is the weather?").tools(get_weather))

    assert result.executions[0].tool_call.name == "get_weather"
    assert result.text
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("kind", ["malformed_arguments", "unknown_tool"])
def test_broken_tool_calls_are_outlived(
    kind: str, ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """A call is mended, or the model told what is wrong with it; either way it goes on."""
    llmock.break_tool_call(kind)
    with client_of() as client:
        result = ask(client.prompt("What is the weather?").tools(get_weather))

    assert len(result.executions) == 1
    if kind == "unknown_tool":
        assert result.executions[0].response.is_error
    assert result.text
    llmock.assert_resilient(strict=True)
