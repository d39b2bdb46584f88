"""Observers that hear what goes over the wire: every provider, in all four ways."""

import asyncio
import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from conftest import Ask, Mode
from loopback import LoopbackServer
from servers import Reply
from services import SERVICES, TEXT, Service

from chatclient import ChatClient
from chatclient.observation import Operation, Step, present_listener
from chatclient.operations import ModelCall
from chatclient.providers.embeddings import OpenAIEmbeddingModel
from chatclient.providers.http import RetryPolicy
from chatclient.providers.listening import overheard
from chatclient.providers.sse import ServerSentEventDecoder
from chatclient.runtime import BLOCKING


class Heard:
    """What was sent and received within one operation."""

    def __init__(self, operation: Operation) -> None:
        self.operation = operation
        self.requests: list[Any] = []
        self.answers: list[bytes] = []

    def sent(self, body: bytes) -> None:
        self.requests.append(json.loads(body))

    def received(self, data: bytes) -> None:
        self.answers.append(data)

    def end(self, ended: Step, error: BaseException | None) -> None:
        """Nothing more is to be heard."""


class Wire:
    """Remembers what was heard, operation by operation."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []

    def begin(self, operation: Operation) -> Heard:
        self.heard.append(Heard(operation))
        return self.heard[-1]

    @property
    def calls(self) -> list[Heard]:
        return [each for each in self.heard if isinstance(each.operation, ModelCall)]


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.param
    return found


Serve = Callable[..., str]


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that give each reply in turn; all are gone after the test."""
    started: list[LoopbackServer] = []

    def start(*replies: bytes) -> str:
        left = list(replies)
        started.append(LoopbackServer(lambda path, headers, body: Reply(left.pop(0))))
        return started[-1].url

    yield start
    for server in started:
        server.close()


def events_in(stream: bytes) -> list[Any]:
    """Return the events of a recorded stream, or the lines of one that has no events."""
    lines = [line.removeprefix(b"data: ") for line in stream.splitlines()]
    return [json.loads(line) for line in lines if line.startswith(b"{")]


def test_what_is_sent_and_received_is_heard(ask: Ask, serve: Serve, service: Service) -> None:
    """The request, and the whole answer or each event of the stream, as they were."""
    wire, answer = Wire(), service.answer(streaming=ask.streaming)
    builder = ChatClient.builder(service.model(serve(answer)))
    result = ask(builder.observers(wire).build().prompt("Is it heard?"))

    (call,) = wire.calls
    assert result.text == TEXT
    assert "Is it heard?" in json.dumps(call.requests)
    if ask.streaming:
        assert [json.loads(data) for data in call.answers] == events_in(answer)
        assert len(call.answers) > 2
    else:
        assert call.answers == [answer]
    others = [each for each in wire.heard if each is not call]
    assert others
    assert not any(each.requests or each.answers for each in others)


def test_the_last_event_is_heard_without_its_end(ask: Ask, serve: Serve, service: Service) -> None:
    """Whatever makes an answer was heard before."""
    wire, answer = Wire(), service.answer(streaming=ask.streaming).rstrip()
    builder = ChatClient.builder(service.model(serve(answer)))
    assert ask(builder.observers(wire).build().prompt("x")).text == TEXT

    heard = [json.loads(data) for data in wire.calls[0].answers]
    assert heard == (events_in(answer) if ask.streaming else [json.loads(answer)])


def test_requests_at_once_are_heard_apart(serve: Serve, service: Service) -> None:
    """Each by the observation of its own call."""
    wire = Wire()
    streams = [service.stream(text) for text in ("one two", "three four", "five six")]
    client = ChatClient.builder(service.model(serve(*streams))).observers(wire).build()

    async def say() -> str:
        return "".join([piece async for piece in client.prompt("x").astream()])

    async def say_all() -> set[str]:
        async with client:
            return set(await asyncio.gather(*(say() for _ in streams)))

    assert asyncio.run(say_all()) == {"one two", "three four", "five six"}
    heard = [[json.loads(data) for data in call.answers] for call in wire.calls]
    assert sorted(map(str, heard)) == sorted(str(events_in(stream)) for stream in streams)


def test_every_answer_is_heard_of_a_request_that_is_sent_again(serve: Serve) -> None:
    """Also one that only says it failed."""
    chat, wire = SERVICES[0], Wire()
    busy = b'{"error": {"message": "busy", "code": "server_error"}}'
    model = chat.model(serve(busy, chat.whole(TEXT)), max_retries=RetryPolicy(1, 0.0))
    client = ChatClient.builder(model).observers(wire).build()
    assert client.prompt("x").call().content() == TEXT

    (call,) = wire.calls
    assert call.answers == [busy, chat.whole(TEXT)]
    assert len(call.requests) == 1


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_every_event_is_heard_of_a_stream_that_is_begun_again(serve: Serve, mode: Mode) -> None:
    """Those of the attempt that failed before its first word come first."""
    chat, wire = SERVICES[0], Wire()
    busy = b'data: {"error": {"message": "busy", "code": "server_error"}}\n\n'
    model = chat.model(serve(busy, chat.stream(TEXT)), max_retries=RetryPolicy(1, 0.0))
    client = ChatClient.builder(model).observers(wire).build()
    assert Ask(mode)(client.prompt("x")).text == TEXT

    (call,) = wire.calls
    assert [json.loads(data) for data in call.answers] == events_in(busy + chat.stream(TEXT))
    assert len(call.requests) == 1


class Curious(Wire):
    """Asks a model itself, when anything begins."""

    def begin(self, operation: Operation) -> Heard:
        self.heard.append(Heard(operation))
        present_listener("received")
        return self.heard[-1]


def test_an_observer_may_ask_a_model_itself() -> None:
    """Before it has said whether it listens."""
    curious = Curious()
    with BLOCKING.watched_by(None, (curious, curious)).observe(Operation()):
        tell = present_listener("received")
    assert tell is not None
    tell(b"x")

    assert [each.answers for each in curious.heard] == [[b"x"], [b"x"]]


class Deaf:
    """Fails when it hears anything, and has something else of that name."""

    sent = "a letter"

    def begin(self, operation: Operation) -> "Deaf":
        return self

    def received(self, data: bytes) -> None:
        raise RuntimeError(f"too loud: {data!r}")

    def __repr__(self) -> str:
        return f"Deaf, but has seen {TEXT}"

    def end(self, ended: Step, error: BaseException | None) -> None:
        raise RuntimeError("too late")


def test_a_listener_that_fails_disturbs_nobody(
    ask: Ask, serve: Serve, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither the request nor who listens beside it; what it was told is not in the log."""
    chat, wire = SERVICES[0], Wire()
    builder = ChatClient.builder(chat.model(serve(chat.answer(streaming=ask.streaming))))

    assert ask(builder.observers(Deaf(), wire).build().prompt("x")).text == TEXT
    assert wire.calls[0].answers
    assert "observer='Deaf.received' error='RuntimeError'" in caplog.text
    assert "observer='Deaf' error=\"RuntimeError('too late')\"" in caplog.text
    assert TEXT not in caplog.text


def test_other_models_are_heard_where_they_are_asked(serve: Serve) -> None:
    """Within whichever operation that is."""
    wire = Wire()
    answer = b'{"data": [{"index": 0, "embedding": [1.0]}]}'
    model = OpenAIEmbeddingModel(api_key="a-key", base_url=serve(answer, answer))
    model.embed(["nobody listens"])
    with BLOCKING.watched_by(None, (wire,)).observe(Operation()):
        model.embed(["a"])
    model.close()

    assert wire.heard[0].answers == [answer]
    assert wire.heard[0].requests[0]["input"] == ["a"]


def test_nothing_is_between_when_nobody_listens() -> None:
    """So that it costs nothing."""
    reader = ServerSentEventDecoder()

    assert overheard(reader) is reader
    with BLOCKING.observe(Operation()):
        assert overheard(reader) is reader
