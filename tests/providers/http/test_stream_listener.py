"""Observers of request and response bodies: every provider, in all four modes."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.observability.operations import ModelCall
from chatclient.providers.bedrock.decoding import MessageSplitter
from chatclient.providers.embeddings import OpenAIEmbeddingModel
from chatclient.providers.http.reader import ServerSentEventDecoder, with_listener
from chatclient.providers.http.retry import RetryPolicy
from chatclient.runtime.observation import Operation, Step, wire_listener
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import Ask, Mode
from tests.support.loopback import LoopbackServer
from tests.support.servers import Reply
from tests.support.services import SERVICES, TEXT, Service


class RecordedBodies:
    """The request and response bodies of one operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.requests: list[Any] = []
        self.answers: list[bytes] = []

    def sent(self, body: bytes) -> None:
        self.requests.append(json.loads(body))

    def received(self, data: bytes) -> None:
        self.answers.append(data)

    def end(self, ended: Step, error: BaseException | None) -> None:
        """Do nothing."""


class Wire:
    """Records the bodies of each operation."""

    def __init__(self) -> None:
        self.recorded: list[RecordedBodies] = []

    def begin(self, operation: Operation) -> RecordedBodies:
        self.recorded.append(RecordedBodies(operation))
        return self.recorded[-1]

    @property
    def calls(self) -> list[RecordedBodies]:
        return [each for each in self.recorded if isinstance(each.operation, ModelCall)]


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.param
    return found


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that send the replies in order and are closed after the test."""
    started: list[LoopbackServer] = []

    def start(*replies: bytes) -> str:
        left = list(replies)
        started.append(LoopbackServer(lambda path, headers, body: Reply(left.pop(0))))
        return started[-1].url

    yield start
    for server in started:
        server.close()


def events_in(stream: bytes) -> list[Any]:
    """Return the events of a stream, or its lines if it is no event stream."""
    if stream[:1] == b"\0":
        return [json.loads(data) for data, _ in MessageSplitter().feed(stream)]
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines()]
    return [json.loads(line) for line in lines if line.startswith(b"{")]


@pytest.mark.feature("observation-log-requests-responses-raw")
def test_listener_receives_request_and_response(ask: Ask, serve: Serve, service: Service) -> None:
    """A listener receives the request and the complete answer or each event, unchanged."""
    wire, answer = Wire(), service.answer(streaming=ask.streaming)
    builder = ChatClient.builder(service.model(serve(answer)))
    result = ask(builder.observers(wire).build().prompt("What is sent?"))

    (call,) = wire.calls
    assert result.text == TEXT
    assert "What is sent?" in json.dumps(call.requests)
    if ask.streaming:
        assert [json.loads(data) for data in call.answers] == events_in(answer)
        assert len(call.answers) > 2
    else:
        assert call.answers == [answer]
    others = [each for each in wire.recorded if each is not call]
    assert others
    assert not any(each.requests or each.answers for each in others)


def test_unterminated_last_event_is_received(ask: Ask, serve: Serve, service: Service) -> None:
    """A last event without its blank line is received too."""
    if service.name == "bedrock":
        pytest.skip("its events begin with their size")
    wire, answer = Wire(), service.answer(streaming=ask.streaming).rstrip()
    builder = ChatClient.builder(service.model(serve(answer)))
    assert ask(builder.observers(wire).build().prompt("x")).text == TEXT

    recorded = [json.loads(data) for data in wire.calls[0].answers]
    assert recorded == (events_in(answer) if ask.streaming else [json.loads(answer)])


@pytest.mark.feature("observation-log-requests-responses-raw")
def test_concurrent_requests_are_separate(serve: Serve, service: Service) -> None:
    """Each call's observation receives its own bodies only."""
    wire = Wire()
    streams = [service.stream(text) for text in ("one two", "three four", "five six")]
    client = ChatClient.builder(service.model(serve(*streams))).observers(wire).build()

    async def send() -> str:
        return "".join([piece async for piece in client.prompt("x").astream()])

    async def send_all() -> set[str]:
        async with client:
            return set(await asyncio.gather(*(send() for _ in streams)))

    assert asyncio.run(send_all()) == {"one two", "three four", "five six"}
    recorded = [[json.loads(data) for data in call.answers] for call in wire.calls]
    assert sorted(map(str, recorded)) == sorted(str(events_in(stream)) for stream in streams)


def test_answers_of_all_attempts_are_received(serve: Serve) -> None:
    """The listener receives the answer of a failed attempt as well."""
    chat, wire = SERVICES[0], Wire()
    busy = b'{"error": {"message": "busy", "code": "server_error"}}'
    model = chat.model(serve(busy, chat.complete(TEXT)), max_retries=RetryPolicy(1, 0.0))
    client = ChatClient.builder(model).observers(wire).build()
    assert client.prompt("x").call().content() == TEXT

    (call,) = wire.calls
    assert call.answers == [busy, chat.complete(TEXT)]
    assert len(call.requests) == 1


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_events_of_all_attempts_are_received(serve: Serve, mode: Mode) -> None:
    """The listener receives the events of a failed attempt first."""
    chat, wire = SERVICES[0], Wire()
    busy = b'data: {"error": {"message": "busy", "code": "server_error"}}\n\n'
    model = chat.model(serve(busy, chat.stream(TEXT)), max_retries=RetryPolicy(1, 0.0))
    client = ChatClient.builder(model).observers(wire).build()
    assert Ask(mode)(client.prompt("x")).text == TEXT

    (call,) = wire.calls
    assert [json.loads(data) for data in call.answers] == events_in(busy + chat.stream(TEXT))
    assert len(call.requests) == 1


class NestedListener(Wire):
    """Requests a listener when an operation begins."""

    def begin(self, operation: Operation) -> RecordedBodies:
        self.recorded.append(RecordedBodies(operation))
        wire_listener("received")
        return self.recorded[-1]


def test_listener_requested_by_an_observer() -> None:
    """An observer may use a model before it is registered as a listener."""
    listener = NestedListener()
    with BLOCKING.for_request(None, (listener, listener)).observe(Operation()):
        listen = wire_listener("received")
    assert listen is not None
    listen(b"x")

    assert [each.answers for each in listener.recorded] == [[b"x"], [b"x"]]


class FailingListener:
    """Raises in its methods, and has an attribute `sent` that is not callable."""

    sent = "not callable"

    def begin(self, operation: Operation) -> "FailingListener":
        return self

    def received(self, data: bytes) -> None:
        raise RuntimeError(f"failed on {data!r}")

    def __repr__(self) -> str:
        return f"FailingListener of {TEXT}"

    def end(self, ended: Step, error: BaseException | None) -> None:
        raise RuntimeError("too late")


def test_failing_listener_is_isolated(
    ask: Ask, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """The request and other listeners continue, and the log contains no body."""
    chat, wire = SERVICES[0], Wire()
    builder = ChatClient.builder(chat.model(serve(chat.answer(streaming=ask.streaming))))

    assert ask(builder.observers(FailingListener(), wire).build().prompt("x")).text == TEXT
    assert wire.calls[0].answers
    assert "observer='FailingListener.received' error='RuntimeError'" in caplog.text
    assert "observer='FailingListener' error=\"RuntimeError('too late')\"" in caplog.text
    assert TEXT not in caplog.text


def test_embedding_bodies_are_received(serve: Serve) -> None:
    """Bodies of other models are recorded in the operation that uses them."""
    wire = Wire()
    answer = b'{"data": [{"index": 0, "embedding": [1.0]}]}'
    model = OpenAIEmbeddingModel(api_key="a-key", base_url=serve(answer, answer))
    model.embed(["unobserved"])
    with BLOCKING.for_request(None, (wire,)).observe(Operation()):
        model.embed(["a"])
    model.close()

    assert wire.recorded[0].answers == [answer]
    assert wire.recorded[0].requests[0]["input"] == ["a"]


def test_decoder_is_unwrapped_without_listener() -> None:
    """Without a listener the decoder is not wrapped."""
    reader = ServerSentEventDecoder()

    assert with_listener(reader) is reader
    with BLOCKING.observe(Operation()):
        assert with_listener(reader) is reader
