# pyright: reportPossiblyUnboundVariable=false
# A loop over `longer_and_longer` runs at least once.
"""The shared HTTP client of all providers, over real sockets and both libraries."""

import asyncio
import gzip
import json
import logging
import re
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from email.utils import formatdate
from typing import Any

import pytest

from chatclient import ChatClient, ChatOptions, Prompt, __version__
from chatclient.chat.events import TextDelta
from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidResponseError,
    NotFoundError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RequestTimeoutError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.providers.gemini.model import GeminiChatModel
from chatclient.providers.http.client import HttpClient
from chatclient.providers.http.reader import EventReader, SurrogateJoiner
from chatclient.providers.http.request import Timeouts, as_timeouts
from chatclient.providers.http.retry import RetryPolicy
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.providers.openai.chat_stream import StreamDecoder
from chatclient.providers.openai.dialect import COMPATIBLE
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import Ask, Mode
from tests.support.clock import Clock
from tests.support.loopback import LoopbackServer
from tests.support.servers import ChatServer, Reply, as_stream, completion
from tests.support.services import SERVICES, Service
from tests.support.waiting import LONG, asettled, longer_and_longer, settled

Start = Callable[..., ChatServer]
pytestmark = pytest.mark.usefixtures("http_library")

KEY = "sk-very-secret"


def client_of(server: ChatServer | str, **settings: Any) -> ChatClient:
    url = server if isinstance(server, str) else server.url
    # Time-outs are far away, because hundreds of connections take seconds on a busy machine.
    far_away = Timeouts(connect=60)
    settings = {"max_retries": 0, "api_key": KEY, "timeout": far_away, **settings}
    return ChatClient.create(OpenAIChatModel("stub", base_url=url, **settings))


def error_reply(status: int, message: str = "no", **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message, "type": "t", "code": None}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(body, status, named)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.feature("response-chat-response-metadata-id")
def test_request_and_response_over_http(ask: Ask, chat_server: Start) -> None:
    """The server receives key and conversation; the caller gets text, usage and ids."""
    server = chat_server("Hello there")
    with client_of(server, headers={"x-team": "a"}) as client:
        result = ask(client.prompt("Hi"))

    assert result.text == "Hello there"
    assert result.response.chat_response.usage.total_tokens == 15
    assert server.requests[0]["messages"] == [{"role": "user", "content": "Hi"}]
    assert server.requests[0].get("stream", False) is ask.streaming
    assert server.headers[0]["authorization"] == f"Bearer {KEY}"
    assert server.headers[0]["x-team"] == "a"
    assert server.headers[0]["content-type"] == "application/json"
    assert server.headers[0]["user-agent"] == f"chatclient/{__version__}"


def test_tool_round_over_http(ask: Ask, chat_server: Start) -> None:
    """Two parallel calls, streamed or not, are run and sent back with their results."""

    def add(a: int, b: int) -> int:
        """Add."""
        return a + b

    calls = [("c1", "add", '{"a": 1, "b": 2}'), ("c2", "add", '{"a": 3, "b": 4}')]
    server = chat_server(completion(None, *calls), "3 and 7")
    with client_of(server) as client:
        result = ask(client.prompt("x").tools(add))

    assert result.text == "3 and 7"
    assert [(m["role"], m.get("content")) for m in server.requests[1]["messages"]] == [
        ("user", "x"),
        ("assistant", None),
        ("tool", "3"),
        ("tool", "7"),
    ]


# --- error responses and retries ---


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, AuthenticationError), (429, RateLimitedError), (500, OverloadedError)],
)
def test_error_response_is_typed(
    ask: Ask, chat_server: Start, status: int, kind: type[ProviderError]
) -> None:
    """The error has provider, status, message and request id, but not the key."""
    server = chat_server(error_reply(status, "because", x_request_id="req-1"))
    with client_of(server) as client, pytest.raises(kind, match="because") as caught:
        ask(client.prompt("Hi"))

    error = caught.value
    assert (error.status, error.request_id) == (status, "req-1")
    assert error.provider in str(error)
    assert KEY not in f"{error} {error!r} {error.__dict__}"


@pytest.mark.feature("model-retry-passing-failures", "lc4j-retries-back-off-not")
def test_transient_status_is_retried(ask: Ask, chat_server: Start) -> None:
    """After 500 and 429 the request is repeated within the allowed number of retries."""
    server = chat_server(error_reply(500), error_reply(429, retry_after_ms="1"), "made it")
    with client_of(server, max_retries=2) as client:
        client.model._http.retry = RetryPolicy(2, 0.01, 0.02)  # type: ignore[attr-defined]
        assert ask(client.prompt("Hi")).text == "made it"

    assert len(server.requests) == 3


TRANSIENT_ERRORS: dict[str, Any] = {
    "chat": {"error": {"code": 502, "message": "Provider returned error"}},
    "responses": {
        "status": "failed",
        "output": [],
        "error": {"code": "server_error", "message": "The server had an error"},
    },
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "gemini": {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Try again later"}},
    "ollama": {"error": "llama runner is busy"},
    "bedrock": {"error": {"message": "Model is getting throttled", "code": 503}},
}


@pytest.mark.feature("model-retry-passing-failures")
@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_transient_error_with_status_200_is_retried(service: Service, *, blocking: bool) -> None:
    """An error in the body of status 200 is retried and recorded in the trail."""
    replies = [json.dumps(TRANSIENT_ERRORS[service.name]).encode(), service.answer(streaming=False)]
    paths: list[str] = []

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        paths.append(path)
        return Reply(replies[min(len(paths), len(replies)) - 1])

    retry = RetryPolicy(2, 0.01, 0.02)
    with LoopbackServer(reply) as server, service.model(server.url, max_retries=retry) as model:
        response = Ask("call" if blocking else "acall")(ChatClient.create(model).prompt("Hi"))

    assert response.text == "one two three"
    assert len(paths) == 2
    trail = response.response.trail
    assert trail is not None
    assert trail.rounds[0].retries == ("OverloadedError",)


EMPTY: dict[str, Any] = {
    "chat": {"id": "r", "model": "m", "choices": [], "usage": {"prompt_tokens": 5}},
    "gemini": {"usageMetadata": {"promptTokenCount": 5}, "modelVersion": "m"},
}
EMPTY_SERVICES = [service for service in SERVICES if service.name in EMPTY]


@pytest.mark.parametrize("service", EMPTY_SERVICES, ids=str)
def test_response_without_choices_is_an_error(ask: Ask, service: Service) -> None:
    """An answer without choices or candidates is invalid, unlike one with empty text."""
    complete = json.dumps(EMPTY[service.name]).encode()
    end = b"data: [DONE]\n\n" if service.name == "chat" else b""
    events = Reply(b"data: %b\n\n%b" % (complete, end), content_type="text/event-stream")

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        return events if ask.streaming else Reply(complete)

    with (
        LoopbackServer(reply) as server,
        service.model(server.url) as model,
        pytest.raises(InvalidResponseError, match="answer"),
    ):
        ask(ChatClient.create(model).prompt("Hi"))


@pytest.mark.parametrize("service", EMPTY_SERVICES, ids=str)
def test_response_without_choices_is_retried(service: Service) -> None:
    """An answer without choices is treated as a transient failure."""
    replies = [json.dumps(EMPTY[service.name]).encode(), service.answer(streaming=False)]

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        return Reply(replies.pop(0))

    retry = RetryPolicy(1, 0.01)
    with LoopbackServer(reply) as server, service.model(server.url, max_retries=retry) as model:
        assert model.call("Hi").text == "one two three"


def test_permanent_error_with_status_200_not_retried(chat_server: Start) -> None:
    """A permanent error in the body of status 200 is raised without a retry."""
    wrong_key = {"error": {"code": 401, "message": "No such key"}}
    server = chat_server(Reply(json.dumps(wrong_key).encode()), "never")
    with client_of(server, max_retries=2) as client, pytest.raises(AuthenticationError):
        client.prompt("Hi").call().content()

    assert len(server.requests) == 1


TEAPOT = frozenset({418})


@pytest.mark.parametrize(
    ("status", "retryable", "policy", "again"),
    [
        (503, True, RetryPolicy(), True),
        (503, True, RetryPolicy(excluded_codes=frozenset({503})), False),
        (418, False, RetryPolicy(on_codes=TEAPOT, excluded_codes=TEAPOT), True),
        (418, False, RetryPolicy(on_client_errors=True), True),
        (418, False, RetryPolicy(on_client_errors=True, excluded_codes=TEAPOT), False),
        (500, False, RetryPolicy(on_client_errors=True), False),
        (None, False, RetryPolicy(on_codes=TEAPOT, on_client_errors=True), False),
        (None, True, RetryPolicy(excluded_codes=TEAPOT), True),
    ],
)
def test_retry_policy(
    status: int | None, retryable: bool, policy: RetryPolicy, again: bool
) -> None:
    """Transient errors and named statuses are retried; naming wins over excluding."""
    error = ProviderError("no", status=status)
    error.retryable = retryable

    assert policy.retries(error) is again
    assert not policy.retries(ValueError("no"))


@pytest.mark.feature("lc4j-retries-back-off-not")
def test_retries_are_exhausted(ask: Ask, chat_server: Start) -> None:
    """When every attempt fails, the last failure is raised."""
    server = chat_server(
        error_reply(503, "first"), error_reply(503, "second"), error_reply(503, "third")
    )
    with client_of(server) as client:
        client.model._http.retry = RetryPolicy(2, 0.01, 0.02)  # type: ignore[attr-defined]
        with pytest.raises(OverloadedError, match="third"):
            ask(client.prompt("Hi"))


@pytest.mark.feature("model-retry-passing-failures")
@pytest.mark.parametrize("status", [400, 401, 404])
def test_permanent_failure_is_not_retried(chat_server: Start, status: int) -> None:
    """A client error is raised after one request."""
    server = chat_server(error_reply(status))
    with client_of(server, max_retries=5) as client, pytest.raises(ProviderError):
        client.prompt("Hi").call().content()

    assert len(server.requests) == 1


def test_not_found_without_secrets(ask: Ask, chat_server: Start) -> None:
    """The error names the URL that was asked, without credentials and query."""
    server = chat_server(error_reply(404))
    url = server.url.replace("://", "://ada:hunter2@") + "?token=hunter3"
    with client_of(url) as client, pytest.raises(NotFoundError) as caught:
        ask(client.prompt("Hi"))

    assert f"answered 404 at {server.url}/chat/completions" in str(caught.value)
    assert "hunter" not in str(caught.value)


@pytest.mark.feature("model-retry-passing-failures")
@pytest.mark.parametrize("form", ["seconds", "milliseconds", "date"])
def test_retry_after(
    ask: Ask, chat_server: Start, form: str, clock: Clock, caplog: pytest.LogCaptureFixture
) -> None:
    """Every form of Retry-After is respected."""

    def reply(_request: Any) -> Reply:
        clock.advance(1 - time.time() % 1)  # dates have whole seconds
        header = {
            "seconds": {"retry-after": "0.2"},
            "milliseconds": {"retry-after-ms": "200", "retry-after": "99"},
            "date": {"retry-after": formatdate(time.time() + 2, usegmt=True)},
        }[form]
        clock.advance(1.8)
        return Reply(error_reply(429).body, 429, header)

    server = chat_server(reply, "made it")
    with client_of(server) as client, caplog.at_level(logging.INFO, "chatclient"):
        client.model._http.retry = RetryPolicy(1, 0.001, 3)  # type: ignore[attr-defined]
        started = time.monotonic()
        assert ask(client.prompt("Hi")).text == "made it"
        took = time.monotonic() - started

    [wait] = map(float, re.findall(r"\bwait=([\d.]+)", caplog.text))
    assert wait <= took
    assert 0 < wait <= 0.2 if form == "date" else wait == 0.2


@pytest.mark.feature("request-no-wall-clock-limit")
def test_retry_after_beyond_deadline_raises(ask: Ask, chat_server: Start) -> None:
    """A Retry-After beyond the deadline raises the error immediately."""
    server = chat_server(error_reply(429, "later", retry_after="900"), "never")
    with client_of(server, max_retries=3) as client, pytest.raises(RateLimitedError, match="later"):
        ask(client.prompt("Hi").deadline(600))


def test_expired_deadline_sends_no_request(chat_server: Start, clock: Clock) -> None:
    """A slow tool may use up the deadline; the next round is not started."""

    def slow() -> None:
        """Take a while."""
        clock.advance(600)

    server = chat_server(completion(None, ("c", "slow", "{}")), "never")
    with client_of(server) as client, pytest.raises((DeadlineExceededError, TimeoutError)):
        client.prompt("Hi").tools(slow).deadline(500).call().content()

    assert len(server.requests) == 1


# --- missing, incomplete and invalid answers ---


def test_slow_key_function_expires_deadline(ask: Ask, chat_server: Start, clock: Clock) -> None:
    """A key that arrives after the deadline raises the time-out and sends nothing."""
    server = chat_server("never")

    def slow_key() -> str:
        clock.advance(60)
        return KEY

    with client_of(server, api_key=slow_key) as client, pytest.raises(DeadlineExceededError):
        ask(client.prompt("Hi").deadline(50))
    with (
        client_of(server, api_key=slow_key, timeout=Timeouts(total=50)) as client,
        pytest.raises(DeadlineExceededError),
    ):
        ask(client.prompt("Hi"))

    assert server.requests == []


def test_unreachable_server(ask: Ask) -> None:
    """A refused connection names the address and asks whether the server is running."""
    url = f"http://127.0.0.1:{closed_port()}/v1"
    message = r"at http://127\.0\.0\.1:.*; is the server running\?$"
    with client_of(url) as client, pytest.raises(ConnectionFailedError, match=message) as caught:
        ask(client.prompt("Hi"))

    assert caught.value.provider == "openai-compatible"


def test_read_timeout(ask: Ask, chat_server: Start) -> None:
    """A server that exceeds the read time-out raises."""
    server = chat_server(Reply(b"{}", delay=LONG))
    with (
        client_of(server, timeout=Timeouts(read=0.05)) as client,
        pytest.raises(RequestTimeoutError, match="in time"),
    ):
        ask(client.prompt("Hi"))


@pytest.mark.feature("request-no-wall-clock-limit")
def test_deadline_bounds_the_read_timeout(ask: Ask, chat_server: Start) -> None:
    """The deadline limits the time-outs of the request."""
    server = chat_server(Reply(b"{}", delay=LONG))
    with client_of(server) as client, pytest.raises(TimeoutError):
        ask(client.prompt("Hi").deadline(0.05))


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b'{"half": ', b"", b"[1]", b"{}"])
def test_invalid_body(ask: Ask, chat_server: Start, body: bytes) -> None:
    """A body that is not an answer raises `InvalidResponseError`."""
    server = chat_server(Reply(body))
    with client_of(server) as client, pytest.raises(InvalidResponseError):
        ask(client.prompt("Hi"))


def test_truncated_body(chat_server: Start) -> None:
    """A connection closed within the body is a connection failure."""
    server = chat_server(Reply(json.dumps(completion("x")).encode(), truncate=True))
    with client_of(server) as client, pytest.raises(ConnectionFailedError) as caught:
        client.prompt("Hi").call().content()

    assert "is the server running" not in str(caught.value)


STREAM = as_stream(completion("one two three"))
BEGIN = STREAM[: STREAM.index(b"two")].rpartition(b"\n\n")[0] + b"\n\n"


@pytest.mark.parametrize("how", ["clean", "reset"])
def test_truncated_stream(ask: Ask, chat_server: Start, how: str) -> None:
    """A truncated stream raises an error that carries the partial response."""
    if not ask.streaming:
        pytest.skip("applies to streams only")
    half = STREAM[: STREAM.index(b"three")]
    reply = Reply(half, content_type="text/event-stream", truncate=how == "reset")
    server = chat_server(reply)
    with client_of(server) as client, pytest.raises(StreamInterruptedError) as caught:
        ask(client.prompt("Hi"))

    assert caught.value.partial.text == "one two"


DONE = b"data: [DONE]\n\n"
UNFINISHED = STREAM.replace(b'"stop"', b"null")


@pytest.mark.parametrize("stream", [STREAM, STREAM.removesuffix(DONE), UNFINISHED])
def test_stream_truncated_after_the_answer(ask: Ask, chat_server: Start, stream: bytes) -> None:
    """A truncated stream is complete with a finish reason or the end event."""
    if not ask.streaming:
        pytest.skip("applies to streams only")
    server = chat_server(Reply(stream, content_type="text/event-stream", truncate=True))
    with client_of(server) as client:
        result = ask(client.prompt("Hi"))

    assert result.text == "one two three"
    assert result.response.chat_response.finish_reason == "stop"


def test_stream_truncated_between_choices(chat_server: Start) -> None:
    """The finish reason of one choice does not complete the others."""
    chunk = '{"id":"c","choices":[{"index":%d,"delta":{"content":"a"},"finish_reason":%s}]}'
    events = (chunk % each for each in ((0, "null"), (1, "null"), (0, '"stop"')))
    stream = "".join(f"data: {event}\n\n" for event in events).encode()
    server = chat_server(Reply(stream, content_type="text/event-stream", truncate=True))
    with client_of(server) as client, pytest.raises(StreamInterruptedError):
        list(client.prompt("Hi").stream())


def stream_of(*deltas: dict[str, Any]) -> Reply:
    """Return the stream of an answer with *deltas*."""
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return Reply(events.encode(), content_type="text/event-stream")


SPLIT_PAIRS = pytest.mark.parametrize(
    ("pieces", "expected"),
    [
        (["A \ud83d", "\ude00 is", " fine"], ["A ", "\U0001f600 is", " fine"]),
        (["\ud83d", "", "\ude00"], ["\U0001f600"]),
        (["\ud83d", "\ude00\ud83d", "\ude80"], ["\U0001f600", "\U0001f680"]),
        (["half \ud83d", "of it"], ["half ", "\ud83dof it"]),
        (["half \ud83d"], ["half ", "\ud83d"]),
        (["\ude00 whole"], ["\ude00 whole"]),
    ],
)


@SPLIT_PAIRS
@pytest.mark.parametrize("more", [{}, {"role": "assistant"}])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_split_surrogate_pair_is_joined(
    chat_server: Start, mode: Mode, more: dict[str, str], pieces: list[str], expected: list[str]
) -> None:
    """Halves of a surrogate pair are joined; a lone surrogate is kept."""
    deltas = [{"content": piece, **more} for piece in pieces]
    with client_of(chat_server(stream_of({"content": ""}, *deltas))) as client:
        result = Ask(mode)(client.prompt("Hi"))

    assert result.response.chat_response.text == "".join(expected)
    texts = [event.text for event in result.events if isinstance(event, TextDelta)]
    if more:
        assert texts == expected
    else:  # plain texts that arrive together are one chunk
        assert "".join(texts) == "".join(expected)


@SPLIT_PAIRS
def test_surrogate_pair_split_between_reads(pieces: list[str], expected: list[str]) -> None:
    """A half is withheld until the other one is read."""
    reader = SurrogateJoiner(EventReader(StreamDecoder(COMPATIBLE)))
    body = stream_of({"content": ""}, *({"content": piece} for piece in pieces)).body
    chunks = [c for event in body.split(b"\n\n") for c in reader.feed(event + b"\n\n")]
    chunks += reader.finish()

    texts = [chunk if isinstance(chunk, str) else chunk.text for chunk in chunks]
    assert [text for text in texts if text] == expected


@pytest.mark.parametrize("texts", [["a", "b"], ["a"]])
def test_texts_read_together_are_one_chunk(texts: list[str]) -> None:
    """Texts before an error in the same read are not lost."""
    reader = EventReader(StreamDecoder(COMPATIBLE))
    body = stream_of({"content": ""}, *({"content": text} for text in texts)).body
    body = body.replace(b'"finish_reason": "stop"', b'"finish_reason": []')
    list(reader.feed(body[: body.index(b"\n\n") + 2]))
    chunks = reader.feed(body[body.index(b"\n\n") + 2 :] + b"data: {\n\n")

    assert next(iter(chunks)) == "".join(texts)
    with pytest.raises(InvalidResponseError):
        list(chunks)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 1000])
def test_surrogate_escape_split_between_chunks(size: int) -> None:
    """Surrogate pairs are joined although their JSON escapes are split."""
    body = stream_of({"content": "A \ud83d"}, {"content": "\ude00 is"}, {"content": " fine"}).body
    reader = SurrogateJoiner(EventReader(StreamDecoder(COMPATIBLE)))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = [chunk for piece in pieces for chunk in reader.feed(piece)]

    texts = [chunk if isinstance(chunk, str) else chunk.text for chunk in chunks]
    assert "".join(texts) == "A \U0001f600 is fine"


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_surrogates_of_reasoning_and_text(chat_server: Start, mode: Mode) -> None:
    """Reasoning and text are joined separately; tool arguments are left unchanged."""
    call = {"index": 0, "id": "c1", "function": {"name": "none", "arguments": '{"a": "\ud83d'}}
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "Hm \ud83e"},
        {"content": "A \ud83d", "tool_calls": [call]},
        {"reasoning_content": "\udd14!"},
        {"tool_calls": [{"index": 0, "function": {"arguments": '\ude00"}'}}]},
        {"content": "\ude00"},
        {"reasoning_content": "\ud83e"},
    ]
    with client_of(chat_server(stream_of(*deltas))) as client:
        result = Ask(mode)(client.prompt("Hi").tool_calling(False))

    message = result.response.chat_response.message
    assert "".join(thought.text for thought in message.reasoning) == "Hm \U0001f914!\ud83e"
    assert message.text == "A \U0001f600"
    assert message.tool_calls[0].arguments == '{"a": "\ud83d\ude00"}'


def test_stalled_stream(ask: Ask, chat_server: Start) -> None:
    """A stream that exceeds the read time-out raises with the partial response."""
    if not ask.streaming:
        pytest.skip("applies to streams only")
    cut = STREAM.index(b"three")
    chunks = [STREAM[:cut], STREAM[cut:]]
    server = chat_server(Reply(b"", content_type="text/event-stream", chunks=chunks, delay=LONG))
    for seconds in longer_and_longer():
        with (
            client_of(server, timeout=Timeouts(read=seconds)) as client,
            pytest.raises((RequestTimeoutError, StreamInterruptedError)) as caught,
        ):
            ask(client.prompt("Hi"))
        if isinstance(caught.value, StreamInterruptedError) and caught.value.partial.text:
            break

    assert isinstance(caught.value, StreamInterruptedError)
    assert caught.value.partial.text == "one two"


def test_error_body_timeout_excludes_answers(
    ask: Ask, chat_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The short time-out for error bodies does not apply to answers."""
    monkeypatch.setattr("chatclient.providers.http.request._ERROR_BODY_SECONDS", 0.05)
    complete = STREAM if ask.streaming else json.dumps(completion("one two three")).encode()
    kind = "text/event-stream" if ask.streaming else "application/json"
    cut = complete.index(b"three")
    server = chat_server(
        Reply(b"", content_type=kind, chunks=[complete[:cut], complete[cut:]], delay=0.5)
    )
    with client_of(server) as client:
        assert ask(client.prompt("Hi")).text == "one two three"


@pytest.mark.feature("model-retry-passing-failures", "lc4j-retries-back-off-not")
def test_a_failed_stream_is_not_retried(chat_server: Start) -> None:
    """A stream that has delivered content is not retried."""
    half = Reply(BEGIN, content_type="text/event-stream")
    server = chat_server(half, "never")
    with client_of(server, max_retries=3) as client, pytest.raises(StreamInterruptedError):
        list(client.prompt("Hi").stream())

    assert len(server.requests) == 1


def test_compressed_answer(ask: Ask, chat_server: Start) -> None:
    """A compressed answer is read, streamed or not."""

    def compress(request: dict[str, Any]) -> Reply:
        complete = completion("squeezed")
        body = as_stream(complete) if request.get("stream") else json.dumps(complete).encode()
        kind = "text/event-stream" if request.get("stream") else "application/json"
        return Reply(gzip.compress(body), headers={"content-encoding": "gzip"}, content_type=kind)

    with client_of(chat_server(compress)) as client:
        assert ask(client.prompt("Hi")).text == "squeezed"


def test_invalid_compression(ask: Ask, chat_server: Start) -> None:
    """A body that cannot be decompressed raises a provider error."""
    server = chat_server(Reply(b"not gzip", headers={"content-encoding": "gzip"}))
    with client_of(server) as client, pytest.raises(ProviderError):
        ask(client.prompt("Hi"))


# --- connections ---


def test_connections_are_reused_and_closed(chat_server: Start) -> None:
    """Consecutive requests share a connection; closing the client closes it."""
    server = chat_server("ok")
    with client_of(server) as client:
        for _ in range(5):
            client.prompt("Hi").call().content()
        assert server.open_connections == 1
    assert settled(lambda: server.open_connections == 0)


def test_few_paths_are_remembered(chat_server: Start) -> None:
    """What is cached for a path does not grow with the ids and names that are in paths."""
    model = GeminiChatModel("m", api_key="k", base_url=chat_server("ok").url, max_retries=0)
    with model:
        for number in range(70):
            with pytest.raises(ProviderError):
                model.call(Prompt("Hi", ChatOptions(model=f"m{number}")))
    assert len(model._http._requests._cache) < 65


@pytest.mark.feature("answer-cancelling-subscription")
def test_abandoned_stream_closes_its_connection(chat_server: Start) -> None:
    """Leaving the loop over a stream closes its connection."""
    chunks = [BEGIN, *[b": wait\n\n"] * 200]
    server = chat_server(Reply(b"", content_type="text/event-stream", chunks=chunks, delay=0.02))
    with client_of(server) as client:
        for _piece in client.prompt("Hi").stream():
            break
        assert settled(lambda: server.open_connections == 0)


@pytest.mark.feature("lc4j-streaming-handle-cancel")
def test_closed_async_stream_closes_its_connection(chat_server: Start) -> None:
    """Closing the async iterator closes its connection."""
    chunks = [BEGIN, *[b": wait\n\n"] * 200]
    server = chat_server(Reply(b"", content_type="text/event-stream", chunks=chunks, delay=0.02))

    async def main() -> None:
        async with client_of(server) as client:
            async with client.prompt("Hi").astream().content() as pieces:
                await anext(pieces)
            assert await asyncio.to_thread(settled, lambda: server.open_connections == 0)

    asyncio.run(main())


def test_cancelled_request_closes_its_connection(chat_server: Start) -> None:
    """Cancelling the task of a request closes its connection."""
    server = chat_server(Reply(b"{}", delay=LONG))

    async def main() -> None:
        async with client_of(server) as client:
            task = asyncio.ensure_future(client.prompt("Hi").acall().content())
            assert await asettled(lambda: server.requests)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task

    asyncio.run(main())
    assert settled(lambda: server.open_connections == 0)


def test_client_in_many_threads(chat_server: Start) -> None:
    """Blocking requests of many threads share one pool."""
    server = chat_server("ok")
    answers: list[str] = []
    with client_of(server) as client:
        threads = [
            threading.Thread(target=lambda: answers.append(client.prompt("Hi").call().content()))
            for _ in range(20)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    assert answers == ["ok"] * 20


def test_client_on_many_loops(chat_server: Start) -> None:
    """Each event loop has its own connections; closed loops do not affect later ones."""
    server = chat_server("ok")
    client = client_of(server)

    async def main() -> list[str]:
        async with client:
            requests = [client.prompt("Hi").acall().content() for _ in range(300)]
            return list(await asyncio.gather(*requests))

    for _ in range(2):
        assert asyncio.run(main()) == ["ok"] * 300
    assert settled(lambda: server.open_connections == 0)


def test_custom_client_is_used(chat_server: Start, http_library: str) -> None:
    """A given HTTP client sends its own headers and is not closed."""
    import importlib

    library = importlib.import_module(http_library)
    server = chat_server("ok")
    with library.Client(headers={"x-mine": "yes"}) as mine:
        client = client_of(server, http_client=mine)
        with client:
            assert client.prompt("Hi").call().content() == "ok"
        assert not mine.is_closed
        with pytest.raises(UsageError, match="AsyncClient"):
            asyncio.run(_acall(client))

    assert server.headers[0]["x-mine"] == "yes"


@pytest.mark.parametrize("own", [True, False])
def test_non_ascii_headers(chat_server: Start, http_library: str, *, own: bool) -> None:
    """Non-ASCII headers are sent, also where a given client would reject them."""
    import importlib

    library = importlib.import_module(http_library)
    server = chat_server("ok")
    with library.Client() as mine:
        named = {"headers": {"x-title": "Café"}, "http_client": mine if own else None}
        assert client_of(server, **named).prompt("Hi").call().content() == "ok"

    assert server.headers[0]["x-title"].encode("latin-1") == "Café".encode()


def test_redirects_are_not_followed(chat_server: Start, http_library: str) -> None:
    """A redirect would send the key to another server; a given client does not follow it either."""
    import importlib

    library = importlib.import_module(http_library)
    elsewhere = chat_server("ok")
    server = chat_server(Reply(b"", status=307, headers={"location": elsewhere.url}))

    async def main() -> None:
        async with library.AsyncClient(follow_redirects=True) as mine:
            await _acall(client_of(server, http_client=mine))

    with (
        library.Client(follow_redirects=True) as mine,
        pytest.raises(ProviderError, match="307"),
    ):
        client_of(server, http_client=mine).prompt("Hi").call().content()
    with pytest.raises(ProviderError, match="307"):
        asyncio.run(main())

    assert not elsewhere.requests


def test_custom_async_client(chat_server: Start, http_library: str) -> None:
    """A given asynchronous client serves asynchronous calls only."""
    import importlib

    library = importlib.import_module(http_library)
    server = chat_server("ok")

    async def main() -> str:
        async with library.AsyncClient() as mine:
            client = client_of(server, http_client=mine)
            with pytest.raises(UsageError, match="Client"):
                client.prompt("Hi").call().content()
            return await _acall(client)

    assert asyncio.run(main()) == "ok"


async def _acall(client: ChatClient) -> str:
    return await client.prompt("Hi").acall().content()


def test_wrong_type_of_http_client(chat_server: Start) -> None:
    """An object that is no HTTP client raises an error that names its type."""
    with pytest.raises(UsageError, match="httpx"):
        client_of(chat_server("ok"), http_client=object()).prompt("Hi").call().content()


def test_proxy_and_no_proxy_variables(
    ask: Ask, chat_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The proxy of the environment is used except for hosts in `NO_PROXY`."""
    proxy = chat_server("through the proxy")
    monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    with client_of("http://model.invalid/v1") as client:
        assert ask(client.prompt("Hi")).text == "through the proxy"
    server = chat_server("directly")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with client_of(server) as client:
        assert ask(client.prompt("Hi")).text == "directly"


def test_key_function_is_called_per_request(chat_server: Start) -> None:
    """A key function supplies the key of every request."""
    keys = iter(["one", "two"])
    server = chat_server("ok")
    model = OpenAIChatModel("stub", api_key=lambda: next(keys), base_url=server.url)
    with ChatClient.create(model) as client:
        client.prompt("Hi").call().content()
        client.prompt("Hi").call().content()

    assert [h["authorization"] for h in server.headers] == ["Bearer one", "Bearer two"]


def test_async_key_function(ask: Ask, chat_server: Start) -> None:
    """An async key function works in async and in blocking requests."""
    server = chat_server("ok")

    async def token() -> str:
        await asyncio.sleep(0)
        return "fetched"

    with client_of(server, api_key=token) as client:
        assert ask(client.prompt("Hi")).text == "ok"

    assert server.headers[0]["authorization"] == "Bearer fetched"


def test_slow_key_function_does_not_block_the_loop(chat_server: Start) -> None:
    """Other tasks of the loop run while a plain key function waits."""
    server = chat_server("ok")
    loop_ran = threading.Event()

    def token() -> str:
        return "fetched" if loop_ran.wait(5) else "nobody ran meanwhile"

    async def run() -> None:
        async with OpenAIChatModel("stub", api_key=token, base_url=server.url) as model:
            answer = asyncio.create_task(model.acall("Hi"))
            while not server.headers:
                await asyncio.sleep(0)
                loop_ran.set()
            assert (await answer).text == "ok"

    asyncio.run(run())
    assert server.headers[0]["authorization"] == "Bearer fetched"


# --- settings ---


def test_timeout_forms() -> None:
    """A number bounds the answer, None disables the limit, a deadline bounds everything."""
    assert as_timeouts(3).within(float("inf")) == dict.fromkeys(
        ("connect", "read", "write", "pool"), 3
    )
    assert as_timeouts(600).within(float("inf"))["connect"] == 5.0
    assert as_timeouts(None).within(float("inf"))["read"] is None
    assert as_timeouts(None).within(2)["read"] == 2
    assert as_timeouts(Timeouts(read=9)).within(2)["read"] == 2
    # A socket with a time-out of 0 seconds raises BlockingIOError instead of a time-out.
    assert all(0 < (wait or 0) < 0.1 for wait in as_timeouts(None).within(0).values())


def test_timedelta_timeouts() -> None:
    """A timedelta is accepted for all time-outs or for one of them."""
    second: Any = timedelta(seconds=1)

    assert as_timeouts(second) == Timeouts(1, 1, 1)
    assert Timeouts(second, read=second).within(0.5)["read"] == 0.5


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"max_retries": -1}, "max_retries must be at least 0, not -1"),
        ({"first_wait": "1"}, "first_wait must be a number, not '1'"),
        ({"longest_wait": None}, "longest_wait must be a number, not None"),
        ({"multiplier": float("nan")}, "multiplier must be at least 0, not nan"),
        ({"on_codes": 529}, "on_codes must be a Collection, not 529; put statuses into a set"),
        ({"excluded_codes": "429"}, "a status in excluded_codes must be an int, not '4'"),
    ],
)
def test_invalid_retry_policy(wrong: dict[str, Any], message: str) -> None:
    """An invalid policy raises when it is made; later it would hide the real failure."""
    with pytest.raises(UsageError, match=re.escape(message)):
        RetryPolicy(**wrong)


def test_base_url_without_scheme() -> None:
    """A base URL without a scheme is rejected when the client is made."""
    with pytest.raises(UsageError, match="http://"):
        HttpClient("p", "localhost:8000", {})


def test_userinfo_in_base_url(ask: Ask, chat_server: Start) -> None:
    """User and password of the base URL are sent as Basic authorization."""
    server = chat_server("hi")
    url = server.url.replace("://", "://ada:pass%20word@")
    with client_of(url, api_key="") as client:
        assert ask(client.prompt("Hi")).text == "hi"

    assert server.headers[0]["authorization"] == "Basic YWRhOnBhc3Mgd29yZA=="
    assert "@" not in server.headers[0]["host"]


def test_key_takes_precedence_over_userinfo(ask: Ask, chat_server: Start) -> None:
    """An API key replaces the Basic authorization of the base URL."""
    server = chat_server("hi")
    with client_of(server.url.replace("://", "://ada:password@")) as client:
        ask(client.prompt("Hi"))

    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_custom_client_and_userinfo(chat_server: Start, http_library: str) -> None:
    """A given client sends the user of the base URL unless it has its own authorization."""
    library: Any = pytest.importorskip(http_library)
    server = chat_server("hi")
    url = server.url.replace("://", "://ada:password@")
    for headers in ({}, {"Authorization": "Basic other"}):
        with library.Client(headers=headers) as own:
            client_of(url, api_key="", http_client=own).prompt("Hi").call().content()

    sent = [headers["authorization"] for headers in server.headers]
    assert sent == ["Basic YWRhOnBhc3N3b3Jk", "Basic other"]


@pytest.mark.parametrize(
    ("path", "sent"), [("/a", "/v1/a?version=1&x=2"), ("/a?b=c", "/v1/a?b=c&version=1&x=2")]
)
@pytest.mark.parametrize("own", [True, False])
def test_query_of_the_base_url(path: str, sent: str, http_library: str, *, own: bool) -> None:
    """The query of the base URL is added to the path of every request."""
    library: Any = pytest.importorskip(http_library)
    paths: list[str] = []

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        paths.append(path)
        return Reply(b"{}")

    with LoopbackServer(reply) as server, library.Client() as client:
        base_url = f"{server.url}/v1/?version=1&x=2"
        http = HttpClient("p", base_url, {}, http_client=client if own else None)
        drive(http.post(BLOCKING, path, b"{}", lambda answer: answer))
        http.close()

    assert paths == [sent]
    assert http.base_url == f"{server.url}/v1"


def test_password_in_base_url_is_masked() -> None:
    """Neither the model nor its errors show the password of the base URL."""
    url = f"http://ada:password@127.0.0.1:{closed_port()}/v1"
    model = OpenAIChatModel("stub", api_key="", base_url=url, max_retries=0)
    with model, pytest.raises(ConnectionFailedError) as failed:
        model.call("Hi")
    with pytest.raises(UsageError) as refused:
        HttpClient("p", "ada:password@localhost", {})

    assert "password" not in f"{model!r} {model._http!r} {failed.value} {refused.value}"


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("localhost:1/v1?key=password", r"begin with http.* not 'localhost:1/v1'"),
        ("http://ada:password/1@localhost/v1", "names no server"),
        ("http://localhost:password/v1", "names no server"),
        ("http://localhost:99999", "names no server"),
        ("http:///v1", "names no server"),
        ("http://[::1/v1", "names no server"),
        ("http://a..b/v1", "names no server"),
        ("http://localhost/v1#", "names no server"),
        ("http://attacker.example#.example.org/v1", "names no server"),
        ("http://localhost/v1\n", "names no server"),
    ],
)
def test_invalid_base_url(url: str, message: str) -> None:
    """An invalid base URL raises an error that does not repeat it."""
    with pytest.raises(UsageError, match=message) as refused:
        OpenAIChatModel("stub", api_key="", base_url=url)

    assert "password" not in str(refused.value).removesuffix("/ in a password is %2F")
    assert refused.value.__cause__ is None


def test_echoed_password_is_masked(ask: Ask, chat_server: Start) -> None:
    """A password echoed by the server is masked in the error."""
    secret = "YWRhOnBhc3N3b3Jk"
    url = chat_server(error_reply(401, f"no such user: {secret}")).url
    with (
        client_of(url.replace("://", "://ada:password@"), api_key="") as client,
        pytest.raises(AuthenticationError, match=r"no such user: \*\*\*"),
    ):
        ask(client.prompt("Hi"))


def test_unknown_http_library(chat_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error for an unknown HTTP library lists the supported ones."""
    monkeypatch.setenv("CHATCLIENT_HTTP", "requests")
    with pytest.raises(UsageError, match="httpx2"):
        client_of(chat_server("ok")).prompt("Hi").call().content()


def test_repr_contains_no_key() -> None:
    """The repr of a model and of its HTTP client contains no key."""
    model = OpenAIChatModel("stub", api_key=KEY, base_url="http://127.0.0.1/v1")

    assert KEY not in f"{model!r} {model._http!r} {model.options!r}"
