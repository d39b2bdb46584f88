"""Retries, verified by llmock: a mock of three services with faults that rates its clients.

The rating is based on the requests: whether the client respected Retry-After, backed off, gave up,
or retried permanent failures. For Ollama, which it lacks, see `ollama/test_aimock.py`.
"""

from collections.abc import Callable
from typing import Any

import pytest

from chatclient import ChatClient, ChatModel, tool
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
from chatclient.providers.anthropic.model import AnthropicChatModel
from chatclient.providers.gemini.model import GeminiChatModel
from chatclient.providers.http.request import Timeouts
from chatclient.providers.http.retry import RetryPolicy
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.responses import OpenAIResponsesChatModel
from chatclient.testing import Ask, Asked
from tests.support.pairwise import pairwise

pytest.importorskip("llmock", reason="llmock is not installed")

pytestmark = pytest.mark.exhaustive

LLMock = Any  # its fixture has no types

KINDS: dict[str, tuple[Callable[..., ChatModel], str, str]] = {
    "chat": (OpenAIChatModel, "openai", ""),
    "responses": (OpenAIResponsesChatModel, "openai", ""),
    "anthropic": (AnthropicChatModel, "anthropic", ""),
    "gemini": (GeminiChatModel, "gemini", "/v1beta"),
}
MODES = ["call", "acall", "stream", "astream"]
STREAMED = ["stream", "astream"]
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


def ask_twice(
    ask: Ask, client: ChatClient, llmock: LLMock
) -> tuple[Asked, InvalidResponseError | None]:
    """Send a request, and send it again if the stream is interrupted."""
    try:
        return ask(client.prompt("Hi")), None
    except InvalidResponseError as error:
        assert llmock.requests  # waits until the mock has noticed the closed connection
        return ask(client.prompt("Hi")), error


@pytest.mark.parametrize(
    ("status", "client_of", "ask"),
    pairwise([408, 409, 429, 500, 502, 503, 504, 529], [*KINDS], MODES),
    indirect=["client_of", "ask"],
)
def test_two_transient_failures_are_retried(
    status: int, ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """After two failures, the first with Retry-After, the third attempt succeeds."""
    llmock.fail(status, retry_after=0.3).fail(status).reply("made it")
    with client_of() as client:
        assert ask(client.prompt("Hi")).text == "made it"

    llmock.assert_resilient(strict=True)
    assert len(llmock.requests) == 3


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)
def test_exponential_backoff(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """Without Retry-After each wait is longer than the one before."""
    llmock.fail(500, times=3).reply("made it")
    with client_of(max_retries=RetryPolicy(3, 0.2, 5.0)) as client:
        assert ask(client.prompt("Hi")).text == "made it"

    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("ask", ["call", "astream"], indirect=True)
def test_retries_stop_in_an_outage(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """In an outage the error is raised after the allowed retries."""
    llmock.outage()
    with client_of() as client, pytest.raises(OverloadedError):
        ask(client.prompt("Hi"))

    llmock.assert_resilient()
    assert len(llmock.requests) == 3


PERMANENT: dict[int, type[ProviderError]] = {
    400: InvalidRequestError,
    401: AuthenticationError,
    403: AuthenticationError,
    404: NotFoundError,
    422: InvalidRequestError,
}


@pytest.mark.parametrize(
    ("status", "client_of", "ask"),
    pairwise([*PERMANENT], [*KINDS], MODES),
    indirect=["client_of", "ask"],
)
def test_permanent_status_is_not_retried(
    status: int, ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """A permanent failure is raised after one request."""
    llmock.fail(status, times=None)
    with client_of() as client, pytest.raises(PERMANENT[status]):
        ask(client.prompt("Hi"))

    llmock.assert_resilient(strict=True)
    assert len(llmock.requests) == 1


def test_context_overflow(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """The context overflow of every service raises the same error."""
    llmock.context_overflow()
    with client_of() as client, pytest.raises(ContextLengthExceededError):
        ask(client.prompt("Hi"))

    llmock.assert_resilient(strict=True)


def test_exhausted_quota_is_raised(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """A Retry-After above the maximum delay is raised with its value."""
    llmock.limits(rpm=1)
    with client_of() as client:
        ask(client.prompt("Hi"))
        with pytest.raises(RateLimitedError) as caught:
            ask(client.prompt("Hi again"))

    assert caught.value.retry_after is not None
    assert caught.value.retry_after > QUICK.longest_wait
    assert llmock.verdict().passed


@pytest.mark.parametrize(
    ("fault", "client_of", "ask"),
    pairwise(["disconnect", "truncate", "corrupt", "stall"], [*KINDS], STREAMED),
    indirect=["client_of", "ask"],
)
def test_faulty_stream_raises(fault: str, ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """A faulty stream raises; sending the request again returns the answer."""
    text = "one two three four five six seven eight"
    llmock.reply(text, times=None)
    getattr(llmock, fault)(after_chunks=6)
    with client_of(timeout=Timeouts(read=0.5)) as client:
        result, error = ask_twice(ask, client, llmock)

    assert error is not None
    assert result.text == text
    # With a corrupt event, the mock may notice the closed connection too late and rate the
    # second request as a new one, which gives a warning.
    llmock.assert_resilient(strict=fault != "corrupt")


@pytest.mark.parametrize(
    ("fault", "client_of", "ask"),
    pairwise(["disconnect", "stall"], [*KINDS], STREAMED),
    indirect=["client_of", "ask"],
)
def test_fault_before_first_content_is_retried(
    fault: str, ask: Ask, llmock: LLMock, client_of: ClientOf
) -> None:
    """A stream that fails before its first content is retried transparently."""
    llmock.reply("one two three four five", times=None)
    getattr(llmock, fault)(after_chunks=0)
    with client_of(timeout=Timeouts(read=0.5)) as client:
        assert ask(client.prompt("Hi")).text == "one two three four five"

    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize("ask", ["call", "acall"], indirect=True)
def test_slow_first_token(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """The first byte has its own time-out; llmock sends stream headers immediately."""
    llmock.slow_first_token(0.6).reply("made it", times=None)
    patient = Timeouts(read=0.3, first_byte=10.0)
    with client_of(timeout=patient, max_retries=0) as client:
        assert ask(client.prompt("Hi")).text == "made it"


def test_tool_loop_with_failures(ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """The tool loop completes with a failure before each round."""
    llmock.rate_limit(retry_after=0.2)
    with client_of() as client:
        result = ask(client.prompt("What is the weather?").tools(get_weather))

    assert result.executions[0].tool_call.name == "get_weather"
    assert result.text
    llmock.assert_resilient(strict=True)


@pytest.mark.parametrize(
    ("kind", "client_of", "ask"),
    pairwise(["malformed_arguments", "unknown_tool"], [*KINDS], MODES),
    indirect=["client_of", "ask"],
)
def test_malformed_tool_calls(kind: str, ask: Ask, llmock: LLMock, client_of: ClientOf) -> None:
    """A malformed call is repaired or reported to the model, and the loop continues."""
    llmock.break_tool_call(kind)
    with client_of() as client:
        result = ask(client.prompt("What is the weather?").tools(get_weather))

    assert len(result.executions) == 1
    if kind == "unknown_tool":
        assert result.executions[0].response.is_error
    assert result.text
    llmock.assert_resilient(strict=True)
