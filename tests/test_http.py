"""HTTP as all providers share it: over both libraries, blocking and not, against real sockets."""

import asyncio
import gzip
import json
import re
import socket
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from email.utils import formatdate
from typing import Any

import pytest
from conftest import Ask, Mode
from loopback import LoopbackServer
from servers import ChatServer, Reply, as_stream, completion
from services import SERVICES, Service
from waiting import settled

from chatclient import ChatClient, __version__
from chatclient.driving import drive
from chatclient.errors import (
    AuthenticationError,
    ConnectionFailedError,
    DeadlineExceededError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RequestTimeoutError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.events import TextDelta
from chatclient.providers.characters import WholeCharacters
from chatclient.providers.http import HttpClient, RetryPolicy, Timeouts, as_timeouts
from chatclient.providers.openai import COMPATIBLE, OpenAIChatModel, StreamDecoder
from chatclient.providers.reading import EventReader
from chatclient.runtime import BLOCKING

Start = Callable[..., ChatServer]
pytestmark = pytest.mark.usefixtures("http_library")

KEY = "sk-very-secret"


def client_of(server: ChatServer | str, **settings: Any) -> ChatClient:
    url = server if isinstance(server, str) else server.url
    settings = {"max_retries": 0, "api_key": KEY, **settings}
    return ChatClient.create(OpenAIChatModel("stub", base_url=url, **settings))


def refusal(status: int, message: str = "no", **headers: str) -> Reply:
    body = json.dumps({"error": {"message": message, "type": "t", "code": None}}).encode()
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    return Reply(body, status, named)


def closed_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def test_an_answer_comes_over_real_http(ask: Ask, chat_server: Start) -> None:
    """The server gets key and conversation; the caller gets text, usage and ids."""
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


def test_a_tool_round_over_real_http(ask: Ask, chat_server: Start) -> None:
    """Two parallel calls, streamed in fragments or not, are run and sent back as pairs."""

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


# --- refusals and retries ---


@pytest.mark.parametrize(
    ("status", "kind"),
    [(401, AuthenticationError), (429, RateLimitedError), (500, OverloadedError)],
)
def test_a_refusal_is_a_typed_error(
    ask: Ask, chat_server: Start, status: int, kind: type[ProviderError]
) -> None:
    """The error says who refused, with which status, why, and what to quote to support."""
    server = chat_server(refusal(status, "because", x_request_id="req-1"))
    with client_of(server) as client, pytest.raises(kind, match="because") as caught:
        ask(client.prompt("Hi"))

    error = caught.value
    assert (error.status, error.request_id) == (status, "req-1")
    assert error.provider in str(error)
    assert KEY not in f"{error} {error!r} {error.__dict__}"


def test_a_passing_failure_is_retried(ask: Ask, chat_server: Start) -> None:
    """After 500 and 429 the request is repeated, at most as often as allowed."""
    server = chat_server(refusal(500), refusal(429, retry_after_ms="1"), "made it")
    with client_of(server, max_retries=2) as client:
        client.model._http.retry = RetryPolicy(2, 0.01, 0.02)  # type: ignore[attr-defined]
        assert ask(client.prompt("Hi")).text == "made it"

    assert len(server.requests) == 3


NOT_NOW: dict[str, Any] = {
    "chat": {"error": {"code": 502, "message": "Provider returned error"}},
    "responses": {
        "status": "failed",
        "output": [],
        "error": {"code": "server_error", "message": "The server had an error"},
    },
    "anthropic": {"type": "error", "error": {"type": "overloaded_error", "message": "Overloaded"}},
    "gemini": {"error": {"code": 503, "status": "UNAVAILABLE", "message": "Try again later"}},
    "ollama": {"error": "llama runner is busy"},
}


@pytest.mark.parametrize("blocking", [True, False])
@pytest.mark.parametrize("service", SERVICES, ids=str)
def test_a_passing_failure_in_an_answer_that_succeeds_is_retried(
    service: Service, *, blocking: bool
) -> None:
    """Status 200 and an error inside: it is the error that counts, and the trail knows of it."""
    replies = [json.dumps(NOT_NOW[service.name]).encode(), service.answer(streaming=False)]
    asked: list[str] = []

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        asked.append(path)
        return Reply(replies[min(len(asked), len(replies)) - 1])

    retry = RetryPolicy(2, 0.01, 0.02)
    with LoopbackServer(reply) as server, service.model(server.url, max_retries=retry) as model:
        response = Ask("call" if blocking else "acall")(ChatClient.create(model).prompt("Hi"))

    assert response.text == "one two three"
    assert len(asked) == 2
    trail = response.response.trail
    assert trail is not None
    assert trail.rounds[0].retries == ("OverloadedError",)


NOTHING: dict[str, Any] = {
    "chat": {"id": "r", "model": "m", "choices": [], "usage": {"prompt_tokens": 5}},
    "gemini": {"usageMetadata": {"promptTokenCount": 5}, "modelVersion": "m"},
}
WITHOUT_ANSWER = [service for service in SERVICES if service.name in NOTHING]


@pytest.mark.parametrize("service", WITHOUT_ANSWER, ids=str)
def test_an_answer_with_nothing_in_it_is_an_error(ask: Ask, service: Service) -> None:
    """No choice, no candidate: that is not the same as an answer without words."""
    whole = json.dumps(NOTHING[service.name]).encode()
    end = b"data: [DONE]\n\n" if service.name == "chat" else b""
    events = Reply(b"data: %b\n\n%b" % (whole, end), content_type="text/event-stream")

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        return events if ask.streaming else Reply(whole)

    with (
        LoopbackServer(reply) as server,
        service.model(server.url) as model,
        pytest.raises(InvalidResponseError, match="answer"),
    ):
        ask(ChatClient.create(model).prompt("Hi"))


@pytest.mark.parametrize("service", WITHOUT_ANSWER, ids=str)
def test_an_answer_with_nothing_in_it_is_asked_for_again(service: Service) -> None:
    """It is a passing fault as a rule."""
    replies = [json.dumps(NOTHING[service.name]).encode(), service.answer(streaming=False)]

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        return Reply(replies.pop(0))

    retry = RetryPolicy(1, 0.01)
    with LoopbackServer(reply) as server, service.model(server.url, max_retries=retry) as model:
        assert model.call("Hi").text == "one two three"


def test_a_lasting_failure_in_an_answer_that_succeeds_is_not_retried(chat_server: Start) -> None:
    """As little as one that the status tells."""
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
def test_what_is_asked_again(
    status: int | None, retryable: bool, policy: RetryPolicy, again: bool
) -> None:
    """What passes, and what the policy names; a status that it names twice is asked again."""
    error = ProviderError("no", status=status)
    error.retryable = retryable

    assert policy.retries(error) is again
    assert not policy.retries(ValueError("no"))


def test_retries_end(ask: Ask, chat_server: Start) -> None:
    """When every try fails, the last failure is raised."""
    server = chat_server(refusal(503, "first"), refusal(503, "second"), refusal(503, "third"))
    with client_of(server) as client:
        client.model._http.retry = RetryPolicy(2, 0.01, 0.02)  # type: ignore[attr-defined]
        with pytest.raises(OverloadedError, match="third"):
            ask(client.prompt("Hi"))


@pytest.mark.parametrize("status", [400, 401, 404])
def test_a_lasting_failure_is_not_retried(chat_server: Start, status: int) -> None:
    """What asking again cannot mend is raised at once."""
    server = chat_server(refusal(status))
    with client_of(server, max_retries=5) as client, pytest.raises(ProviderError):
        client.prompt("Hi").call().content()

    assert len(server.requests) == 1


@pytest.mark.parametrize("form", ["seconds", "milliseconds", "date"])
def test_the_provider_says_how_long_to_wait(ask: Ask, chat_server: Start, form: str) -> None:
    """Every form of Retry-After is kept."""
    header = {
        "seconds": {"retry-after": "0.2"},
        "milliseconds": {"retry-after-ms": "200", "retry-after": "99"},
        "date": {"retry-after": formatdate(time.time() + 2, usegmt=True)},
    }[form]
    server = chat_server(Reply(refusal(429).body, 429, header), "made it")
    with client_of(server) as client:
        client.model._http.retry = RetryPolicy(1, 0.001, 3)  # type: ignore[attr-defined]
        started = time.monotonic()
        assert ask(client.prompt("Hi")).text == "made it"

    assert 0.19 < time.monotonic() - started < 3


def test_a_wait_beyond_the_deadline_is_not_begun(ask: Ask, chat_server: Start) -> None:
    """When the provider asks for more patience than there is time, the refusal is raised."""
    server = chat_server(refusal(429, "later", retry_after="30"), "never")
    started = time.monotonic()
    with client_of(server, max_retries=3) as client, pytest.raises(RateLimitedError, match="later"):
        ask(client.prompt("Hi").deadline(5))

    assert time.monotonic() - started < 2


def test_a_deadline_that_has_passed_sends_nothing(chat_server: Start) -> None:
    """A slow tool may use up the time; the next round is not begun."""

    def slow() -> None:
        """Take a while."""
        time.sleep(0.5)

    server = chat_server(completion(None, ("c", "slow", "{}")), "never")
    with client_of(server) as client, pytest.raises((DeadlineExceededError, TimeoutError)):
        client.prompt("Hi").tools(slow).deadline(0.45).call().content()

    assert len(server.requests) == 1


# --- no answer, half an answer, a wrong answer ---


def test_a_key_that_comes_too_late_sends_nothing(ask: Ask, chat_server: Start) -> None:
    """The time for the request is over, and that is what is told."""
    server = chat_server("never")

    def late() -> str:
        time.sleep(0.05)
        return KEY

    with client_of(server, api_key=late) as client, pytest.raises(DeadlineExceededError):
        ask(client.prompt("Hi").deadline(0.04))
    with (
        client_of(server, api_key=late, timeout=Timeouts(total=0.04)) as client,
        pytest.raises(RequestTimeoutError),
    ):
        ask(client.prompt("Hi"))

    assert server.requests == []


def test_an_unreachable_server(ask: Ask) -> None:
    """A refused connection says where nobody answered, and what may be the matter."""
    url = f"http://127.0.0.1:{closed_port()}/v1"
    told = r"at http://127\.0\.0\.1:.*; is the server running\?$"
    with client_of(url) as client, pytest.raises(ConnectionFailedError, match=told) as caught:
        ask(client.prompt("Hi"))

    assert caught.value.provider == "openai-compatible"


def test_a_silent_server(ask: Ask, chat_server: Start) -> None:
    """A server that takes too long is given up on."""
    server = chat_server(Reply(b"{}", delay=0.5))
    with (
        client_of(server, timeout=Timeouts(read=0.05)) as client,
        pytest.raises(RequestTimeoutError, match="in time"),
    ):
        ask(client.prompt("Hi"))


def test_the_deadline_bounds_the_wait_for_the_server(ask: Ask, chat_server: Start) -> None:
    """A deadline flows into the time-outs of the request."""
    server = chat_server(Reply(b"{}", delay=0.5))
    with client_of(server) as client, pytest.raises(TimeoutError):
        ask(client.prompt("Hi").deadline(0.05))


@pytest.mark.parametrize("body", [b"<html>Bad gateway</html>", b'{"half": ', b"", b"[1]", b"{}"])
def test_an_answer_that_is_none(ask: Ask, chat_server: Start, body: bytes) -> None:
    """Whatever comes in place of an answer is told as such, with its beginning."""
    server = chat_server(Reply(body))
    with client_of(server) as client, pytest.raises(InvalidResponseError):
        ask(client.prompt("Hi"))


def test_half_a_body(chat_server: Start) -> None:
    """A connection that breaks within the body is a connection failure."""
    server = chat_server(Reply(json.dumps(completion("x")).encode(), truncate=True))
    with client_of(server) as client, pytest.raises(ConnectionFailedError) as caught:
        client.prompt("Hi").call().content()

    assert "is the server running" not in str(caught.value)


STREAM = as_stream(completion("one two three"))
BEGIN = STREAM[: STREAM.index(b"two")].rpartition(b"\n\n")[0] + b"\n\n"


@pytest.mark.parametrize("how", ["clean", "reset"])
def test_a_stream_that_breaks_off(ask: Ask, chat_server: Start, how: str) -> None:
    """A stream cut before its end is an error that carries what arrived."""
    if not ask.streaming:
        pytest.skip("a whole answer is no stream")
    half = STREAM[: STREAM.index(b"three")]
    reply = Reply(half, content_type="text/event-stream", truncate=how == "reset")
    server = chat_server(reply)
    with client_of(server) as client, pytest.raises(StreamInterruptedError) as caught:
        ask(client.prompt("Hi"))

    assert caught.value.partial.text == "one two"


DONE = b"data: [DONE]\n\n"
UNFINISHED = STREAM.replace(b'"stop"', b"null")


@pytest.mark.parametrize("stream", [STREAM, STREAM.removesuffix(DONE), UNFINISHED])
def test_a_stream_that_breaks_off_behind_its_answer(
    ask: Ask, chat_server: Start, stream: bytes
) -> None:
    """The answer was whole: there is a reason why it ended, or the word for the end."""
    if not ask.streaming:
        pytest.skip("a whole answer is no stream")
    server = chat_server(Reply(stream, content_type="text/event-stream", truncate=True))
    with client_of(server) as client:
        asked = ask(client.prompt("Hi"))

    assert asked.text == "one two three"
    assert asked.response.chat_response.finish_reason == "stop"


def test_a_stream_that_breaks_off_between_two_answers(chat_server: Start) -> None:
    """The end of one of several answers is not the end of all."""
    chunk = '{"id":"c","choices":[{"index":%d,"delta":{"content":"a"},"finish_reason":%s}]}'
    events = (chunk % each for each in ((0, "null"), (1, "null"), (0, '"stop"')))
    stream = "".join(f"data: {event}\n\n" for event in events).encode()
    server = chat_server(Reply(stream, content_type="text/event-stream", truncate=True))
    with client_of(server) as client, pytest.raises(StreamInterruptedError):
        list(client.prompt("Hi").stream())


def saying(*deltas: dict[str, Any]) -> Reply:
    """Return the stream of an answer whose pieces are *deltas*."""
    chunks = [{"id": "c", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    chunks.append({"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
    events = "".join(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks)
    return Reply(events.encode(), content_type="text/event-stream")


@pytest.mark.parametrize(
    ("pieces", "told"),
    [
        (["A \ud83d", "\ude00 is", " fine"], ["A ", "\U0001f600 is", " fine"]),
        (["\ud83d", "", "\ude00"], ["\U0001f600"]),
        (["\ud83d", "\ude00\ud83d", "\ude80"], ["\U0001f600", "\U0001f680"]),
        (["half \ud83d", "of it"], ["half ", "\ud83dof it"]),
        (["half \ud83d"], ["half ", "\ud83d"]),
        (["\ude00 whole"], ["\ude00 whole"]),
    ],
)
@pytest.mark.parametrize("more", [{}, {"role": "assistant"}])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_character_that_was_cut_in_two_is_whole_again(
    chat_server: Start, mode: Mode, more: dict[str, str], pieces: list[str], told: list[str]
) -> None:
    """Half an emoji can be neither printed nor stored; one that stays half is not lost."""
    deltas = [{"content": piece, **more} for piece in pieces]
    with client_of(chat_server(saying({"content": ""}, *deltas))) as client:
        result = Ask(mode)(client.prompt("Hi"))

    assert [event.text for event in result.events if isinstance(event, TextDelta)] == told
    assert result.response.chat_response.text == "".join(told)


@pytest.mark.parametrize("size", [1, 2, 3, 7, 40, 1000])
def test_halves_of_characters_are_found_wherever_the_bytes_are_cut(size: int) -> None:
    """Be it within the escape that a half is written as."""
    body = saying({"content": "A \ud83d"}, {"content": "\ude00 is"}, {"content": " fine"}).body
    reader = WholeCharacters(EventReader(StreamDecoder(COMPATIBLE)))
    pieces = [body[at : at + size] for at in range(0, len(body), size)]
    chunks = [chunk for piece in pieces for chunk in reader.feed(piece)]

    texts = [chunk if isinstance(chunk, str) else chunk.text for chunk in chunks]
    assert "".join(texts) == "A \U0001f600 is fine"


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_halves_of_thoughts_and_of_text_are_told_apart(chat_server: Start, mode: Mode) -> None:
    """Whatever comes between them; what is no text stays where it is."""
    call = {"index": 0, "id": "c1", "function": {"name": "none", "arguments": '{"a": "\ud83d'}}
    deltas: list[dict[str, Any]] = [
        {"reasoning_content": "Hm \ud83e"},
        {"content": "A \ud83d", "tool_calls": [call]},
        {"reasoning_content": "\udd14!"},
        {"tool_calls": [{"index": 0, "function": {"arguments": '\ude00"}'}}]},
        {"content": "\ude00"},
        {"reasoning_content": "\ud83e"},
    ]
    with client_of(chat_server(saying(*deltas))) as client:
        result = Ask(mode)(client.prompt("Hi").tool_calling(False))

    message = result.response.chat_response.message
    assert "".join(thought.text for thought in message.reasoning) == "Hm \U0001f914!\ud83e"
    assert message.text == "A \U0001f600"
    assert message.tool_calls[0].arguments == '{"a": "\ud83d\ude00"}'


def test_a_stream_that_goes_silent(ask: Ask, chat_server: Start) -> None:
    """A stream that stalls is given up on after the read time-out."""
    if not ask.streaming:
        pytest.skip("a whole answer is no stream")
    cut = STREAM.index(b"three")
    chunks = [STREAM[:cut], STREAM[cut:]]
    server = chat_server(Reply(b"", content_type="text/event-stream", chunks=chunks, delay=0.5))
    with (
        client_of(server, timeout=Timeouts(read=0.1)) as client,
        pytest.raises(StreamInterruptedError) as caught,
    ):
        ask(client.prompt("Hi"))

    assert caught.value.partial.text == "one two"


def test_an_answer_may_pause_for_longer_than_a_refusal(
    ask: Ask, chat_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Models think between two words; whoever says no has nothing to think about."""
    monkeypatch.setattr("chatclient.providers.outgoing._REFUSAL_SECONDS", 0.05)
    whole = STREAM if ask.streaming else json.dumps(completion("one two three")).encode()
    kind = "text/event-stream" if ask.streaming else "application/json"
    cut = whole.index(b"three")
    server = chat_server(
        Reply(b"", content_type=kind, chunks=[whole[:cut], whole[cut:]], delay=0.5)
    )
    with client_of(server) as client:
        assert ask(client.prompt("Hi")).text == "one two three"


def test_a_failed_stream_is_not_retried(chat_server: Start) -> None:
    """Once a word has arrived, nothing is asked again."""
    half = Reply(BEGIN, content_type="text/event-stream")
    server = chat_server(half, "never")
    with client_of(server, max_retries=3) as client, pytest.raises(StreamInterruptedError):
        list(client.prompt("Hi").stream())

    assert len(server.requests) == 1


def test_compressed_answers_are_read(ask: Ask, chat_server: Start) -> None:
    """A server may compress what it sends, streamed or not."""

    def compress(request: dict[str, Any]) -> Reply:
        whole = completion("squeezed")
        body = as_stream(whole) if request.get("stream") else json.dumps(whole).encode()
        kind = "text/event-stream" if request.get("stream") else "application/json"
        return Reply(gzip.compress(body), headers={"content-encoding": "gzip"}, content_type=kind)

    with client_of(chat_server(compress)) as client:
        assert ask(client.prompt("Hi")).text == "squeezed"


def test_a_body_that_cannot_be_decompressed(ask: Ask, chat_server: Start) -> None:
    """Broken compression is an answer that cannot be read."""
    server = chat_server(Reply(b"not gzip", headers={"content-encoding": "gzip"}))
    with client_of(server) as client, pytest.raises(ProviderError):
        ask(client.prompt("Hi"))


# --- connections ---


def test_connections_are_kept_and_closed(chat_server: Start) -> None:
    """Requests in a row share a connection; closing the client closes it."""
    server = chat_server("ok")
    with client_of(server) as client:
        for _ in range(5):
            client.prompt("Hi").call().content()
        assert server.open_connections == 1
    assert settled(lambda: server.open_connections == 0)


def test_leaving_a_stream_closes_its_connection(chat_server: Start) -> None:
    """Breaking out of the loop hangs up at once."""
    chunks = [BEGIN, *[b": wait\n\n"] * 200]
    server = chat_server(Reply(b"", content_type="text/event-stream", chunks=chunks, delay=0.02))
    with client_of(server) as client:
        for _piece in client.prompt("Hi").stream():
            break
        assert settled(lambda: server.open_connections == 0)


def test_leaving_an_async_stream_closes_its_connection(chat_server: Start) -> None:
    """Closing the iterator hangs up at once."""
    chunks = [BEGIN, *[b": wait\n\n"] * 200]
    server = chat_server(Reply(b"", content_type="text/event-stream", chunks=chunks, delay=0.02))

    async def main() -> None:
        async with client_of(server) as client:
            async with client.prompt("Hi").astream().content() as pieces:
                await anext(pieces)
            assert await asyncio.to_thread(settled, lambda: server.open_connections == 0)

    asyncio.run(main())


def test_a_cancelled_request_closes_its_connection(chat_server: Start) -> None:
    """Cancelling the task that waits for an answer hangs up."""
    server = chat_server(Reply(b"{}", delay=0.5))

    async def main() -> None:
        async with client_of(server) as client:
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.05):
                    await client.prompt("Hi").acall()

    asyncio.run(main())
    assert settled(lambda: server.open_connections == 0)


def test_one_client_serves_many_threads(chat_server: Start) -> None:
    """Blocking requests of many threads go over one pool."""
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


def test_one_client_serves_many_loops(chat_server: Start) -> None:
    """Each event loop gets connections of its own; a closed loop is no harm to the next."""
    server = chat_server("ok")
    client = client_of(server)

    async def main() -> list[str]:
        async with client:
            requests = [client.prompt("Hi").acall().content() for _ in range(300)]
            return list(await asyncio.gather(*requests))

    for _ in range(2):
        assert asyncio.run(main()) == ["ok"] * 300
    assert settled(lambda: server.open_connections == 0)


def test_a_client_of_ones_own_is_used_as_it_is(chat_server: Start, http_library: str) -> None:
    """A given HTTP client brings its own headers, and stays open."""
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
def test_headers_may_have_any_letters(chat_server: Start, http_library: str, *, own: bool) -> None:
    """Also those that a client of one's own would refuse, quoting a key that has one by mistake."""
    import importlib

    library = importlib.import_module(http_library)
    server = chat_server("ok")
    with library.Client() as mine:
        named = {"headers": {"x-title": "Café"}, "http_client": mine if own else None}
        assert client_of(server, **named).prompt("Hi").call().content() == "ok"

    assert server.headers[0]["x-title"].encode("latin-1") == "Café".encode()


def test_redirects_are_not_followed(chat_server: Start, http_library: str) -> None:
    """Not even by a client of one's own that follows them: a key would go along."""
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


def test_an_async_client_of_ones_own(chat_server: Start, http_library: str) -> None:
    """An asynchronous client serves asynchronous calls, and only those."""
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


def test_what_is_no_http_client_is_refused(chat_server: Start) -> None:
    """Something else in place of an HTTP client is named."""
    with pytest.raises(UsageError, match="httpx"):
        client_of(chat_server("ok"), http_client=object()).prompt("Hi").call().content()


def test_a_proxy_of_the_environment_is_used(
    ask: Ask, chat_server: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Requests go through the proxy that the environment names, but not where it says no."""
    proxy = chat_server("through the proxy")
    monkeypatch.setenv("http_proxy", proxy.url.removesuffix("/v1"))
    monkeypatch.delenv("no_proxy", raising=False)
    with client_of("http://model.invalid/v1") as client:
        assert ask(client.prompt("Hi")).text == "through the proxy"
    server = chat_server("directly")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with client_of(server) as client:
        assert ask(client.prompt("Hi")).text == "directly"


def test_a_rotating_key_is_asked_for_each_request(chat_server: Start) -> None:
    """A function gives the key anew for every request."""
    keys = iter(["one", "two"])
    server = chat_server("ok")
    model = OpenAIChatModel("stub", api_key=lambda: next(keys), base_url=server.url)
    with ChatClient.create(model) as client:
        client.prompt("Hi").call().content()
        client.prompt("Hi").call().content()

    assert [h["authorization"] for h in server.headers] == ["Bearer one", "Bearer two"]


def test_a_key_may_be_asked_for_asynchronously(ask: Ask, chat_server: Start) -> None:
    """As a token of the cloud, which comes over the network; in blocking requests, too."""
    server = chat_server("ok")

    async def token() -> str:
        await asyncio.sleep(0)
        return "fetched"

    with client_of(server, api_key=token) as client:
        assert ask(client.prompt("Hi")).text == "ok"

    assert server.headers[0]["authorization"] == "Bearer fetched"


def test_a_key_that_takes_its_time_holds_up_no_loop(chat_server: Start) -> None:
    """Who else runs on the loop goes on, while a plain function waits for the token."""
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


def test_timeouts_in_every_form() -> None:
    """A number bounds the answer, None bounds nothing, a deadline bounds everything."""
    assert as_timeouts(3).within(float("inf")) == dict.fromkeys(
        ("connect", "read", "write", "pool"), 3
    )
    assert as_timeouts(600).within(float("inf"))["connect"] == 5.0
    assert as_timeouts(None).within(float("inf"))["read"] is None
    assert as_timeouts(None).within(2)["read"] == 2
    assert as_timeouts(Timeouts(read=9)).within(2)["read"] == 2
    # A socket that may wait for 0 seconds does not time out, but says that it would block.
    assert all(0 < (wait or 0) < 0.1 for wait in as_timeouts(None).within(0).values())


def test_a_time_out_may_be_a_timedelta() -> None:
    """One of several as well as the one for all."""
    second: Any = timedelta(seconds=1)

    assert as_timeouts(second) == Timeouts(1, 1, 1)
    assert Timeouts(second, read=second).within(0.5)["read"] == 0.5


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"max_retries": -1}, "max_retries must be at least 0, not -1"),
        ({"first_wait": "1"}, "first_wait must be a number, not '1'"),
        ({"longest_wait": None}, "longest_wait must be a number, not None"),
        ({"multiplier": float("nan")}, "multiplier must be at least 0, not nan"),
        ({"on_codes": 529}, "on_codes must be a Collection, not 529; put statuses into a set"),
        ({"excluded_codes": "429"}, "a status in excluded_codes must be an int, not '4'"),
    ],
)
def test_a_policy_that_makes_no_sense_is_refused_where_it_is_made(
    wrong: dict[str, Any], said: str
) -> None:
    """Later, its error would take the place of the failure that it is about."""
    with pytest.raises(UsageError, match=re.escape(said)):
        RetryPolicy(**wrong)


def test_a_base_url_has_a_scheme() -> None:
    """An address without http is refused when the client is made."""
    with pytest.raises(UsageError, match="http://"):
        HttpClient("p", "localhost:8000", {})


def test_a_user_in_the_base_url_is_named_to_the_server(ask: Ask, chat_server: Start) -> None:
    """User and password go as Basic authorization, as with every client of HTTP."""
    server = chat_server("hi")
    url = server.url.replace("://", "://ada:pass%20word@")
    with client_of(url, api_key="") as client:
        assert ask(client.prompt("Hi")).text == "hi"

    assert server.headers[0]["authorization"] == "Basic YWRhOnBhc3Mgd29yZA=="
    assert "@" not in server.headers[0]["host"]


def test_a_key_goes_before_the_user_in_the_base_url(ask: Ask, chat_server: Start) -> None:
    """There is one header for both, and who sets it means it."""
    server = chat_server("hi")
    with client_of(server.url.replace("://", "://ada:password@")) as client:
        ask(client.prompt("Hi"))

    assert server.headers[0]["authorization"] == f"Bearer {KEY}"


def test_a_client_of_ones_own_names_the_user_of_the_base_url(
    chat_server: Start, http_library: str
) -> None:
    """Unless it names another one itself."""
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
def test_a_query_of_the_base_url_goes_with_every_path(
    path: str, sent: str, http_library: str, *, own: bool
) -> None:
    """Whoever asks, and whatever else the path says."""
    library: Any = pytest.importorskip(http_library)
    asked: list[str] = []

    def reply(path: str, headers: dict[str, str], request: dict[str, Any]) -> Reply:
        asked.append(path)
        return Reply(b"{}")

    with LoopbackServer(reply) as server, library.Client() as client:
        base_url = f"{server.url}/v1/?version=1&x=2"
        http = HttpClient("p", base_url, {}, http_client=client if own else None)
        drive(http.post(BLOCKING, path, b"{}", lambda answer: answer))
        http.close()

    assert asked == [sent]
    assert http.base_url == f"{server.url}/v1"


def test_a_password_in_the_base_url_is_not_shown() -> None:
    """Neither by the model nor by its errors."""
    url = f"http://ada:password@127.0.0.1:{closed_port()}/v1"
    model = OpenAIChatModel("stub", api_key="", base_url=url, max_retries=0)
    with model, pytest.raises(ConnectionFailedError) as failed:
        model.call("Hi")
    with pytest.raises(UsageError) as refused:
        HttpClient("p", "ada:password@localhost", {})

    assert "password" not in f"{model!r} {model._http!r} {failed.value} {refused.value}"


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("localhost:1/v1?key=password", r"begin with http.* not 'localhost:1/v1'"),
        ("http://ada:password/1@localhost/v1", "names no server"),
        ("http://localhost:password/v1", "names no server"),
        ("http://localhost:99999", "names no server"),
        ("http:///v1", "names no server"),
        ("http://[::1/v1", "names no server"),
        ("http://a..b/v1", "names no server"),
        ("http://localhost/v1\n", "names no server"),
    ],
)
def test_a_base_url_that_is_none_is_refused_at_once(url: str, said: str) -> None:
    """With an error of ours, which repeats nothing that may be a password."""
    with pytest.raises(UsageError, match=said) as refused:
        OpenAIChatModel("stub", api_key="", base_url=url)

    assert "password" not in str(refused.value).removesuffix("/ in a password is %2F")
    assert refused.value.__cause__ is None


def test_a_server_may_quote_the_password(ask: Ask, chat_server: Start) -> None:
    """It is taken out of what the error says."""
    secret = "YWRhOnBhc3N3b3Jk"
    url = chat_server(refusal(401, f"no such user: {secret}")).url
    with (
        client_of(url.replace("://", "://ada:password@"), api_key="") as client,
        pytest.raises(AuthenticationError, match=r"no such user: \*\*\*"),
    ):
        ask(client.prompt("Hi"))


def test_an_unknown_library_is_refused(chat_server: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """A wrong choice of the HTTP library is told with the possible ones."""
    monkeypatch.setenv("CHATCLIENT_HTTP", "requests")
    with pytest.raises(UsageError, match="httpx2"):
        client_of(chat_server("ok")).prompt("Hi").call().content()


def test_secrets_stay_out_of_sight() -> None:
    """No key in the text of a model or its HTTP part."""
    model = OpenAIChatModel("stub", api_key=KEY, base_url="http://127.0.0.1/v1")

    assert KEY not in f"{model!r} {model._http!r} {model.options!r}"
