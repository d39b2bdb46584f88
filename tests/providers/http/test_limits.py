"""Answers beyond the limits: one typed error for each provider, in all four modes."""

import json
from collections.abc import Callable, Iterator, Sequence

import pytest

from chatclient.chat.messages import AssistantMessage, Part, ToolCall, ToolCallChunk
from chatclient.chat.response import ChatResponse, Generation
from chatclient.errors import ProviderError, ResponseLimitError, UsageError
from chatclient.providers.gemini import decoding as gemini_stream
from chatclient.providers.http import reader as sse
from chatclient.providers.http.limits import CallCounter, ResponseLimits
from chatclient.providers.http.reader import EventReader
from chatclient.providers.ollama import model as ollama_codec
from chatclient.providers.openai.chat_stream import StreamDecoder
from chatclient.providers.openai.dialect import COMPATIBLE
from tests.support import converse_server
from tests.support.chaos_server import END, ChaosServer, Step, chunked, http
from tests.support.services import SERVICES, TEXT, Outcome, Service, outcome_of

Play = Callable[[Sequence[Step]], ChaosServer]


@pytest.fixture(params=["call", "acall", "stream", "astream"])
def mode(request: pytest.FixtureRequest) -> str:
    name: str = request.param
    return name


@pytest.fixture(params=SERVICES, ids=str)
def service(request: pytest.FixtureRequest) -> Service:
    found: Service = request.param
    return found


@pytest.fixture
def play() -> Iterator[Play]:
    """Start a server that plays one script and is closed after the test."""
    started: list[ChaosServer] = []

    def start(script: Sequence[Step]) -> ChaosServer:
        started.append(ChaosServer([script]))
        return started[-1]

    yield start
    for server in started:
        server.close()


def ok(play: Play, service: Service, mode: str, body: bytes, *, status: int = 200) -> Outcome:
    return outcome_of(service.model(play([http(body, status=status)]).url), mode)


def with_nesting(service: Service, mode: str, levels: int) -> bytes:
    """Return an answer whose first object has a field with nested arrays of that depth."""
    answer = service.answer(streaming="stream" in mode)
    nested = b'{"more":' + b"[" * levels + b"]" * levels
    if service.name == "bedrock" and "stream" in mode:  # whose events have a checksum
        kinds = {"message_type": "event", "event_type": "messageStart"}
        return converse_server.message(nested + b"}", **kinds) + answer
    return answer.replace(b"{", nested + b",", 1)


@pytest.mark.parametrize("levels", [250, 500, 950, 5000])
def test_json_nesting_limit(play: Play, service: Service, mode: str, levels: int) -> None:
    """JSON nested beyond the limit raises `ResponseLimitError` with the limit."""
    outcome = ok(play, service, mode, with_nesting(service, mode, levels))

    assert isinstance(outcome.error, ResponseLimitError)
    assert (outcome.error.limit, outcome.error.maximum) == ("nesting", 200)
    assert outcome.in_use == 0


def test_json_nesting_below_the_limit(play: Play, service: Service, mode: str) -> None:
    """JSON nested below the limit is accepted."""
    outcome = ok(play, service, mode, with_nesting(service, mode, 180))

    assert (outcome.error, outcome.text) == (None, TEXT)


@pytest.mark.parametrize("levels", [180, 950, 5000])
def test_nested_error_body(play: Play, service: Service, mode: str, levels: int) -> None:
    """A deeply nested error body gives the error of its status."""
    body = b'{"error":' + b"[" * levels + b"]" * levels + b"}"
    outcome = ok(play, service, mode, body, status=400)

    assert isinstance(outcome.error, ProviderError)
    assert outcome.error.status == 400


def test_total_size_limit(play: Play, service: Service, mode: str) -> None:
    """The total size is limited, also for small events and without content."""
    small = ResponseLimits(stream_bytes=10_000, answer_bytes=10_000)
    body = b"\n" * 20_000 if "stream" in mode else service.complete("x" * 20_000)
    outcome = outcome_of(service.model(play([chunked(body), END]).url, limits=small), mode)

    assert isinstance(outcome.error, ResponseLimitError)
    name = "stream_bytes" if "stream" in mode else "answer_bytes"
    assert (outcome.error.limit, outcome.error.maximum) == (name, 10_000)
    assert outcome.in_use == 0


@pytest.mark.parametrize(
    "decoder",
    [sse.ServerSentEventDecoder(10), ollama_codec.Lines(10), gemini_stream.StreamReader(10)],
)
@pytest.mark.parametrize("piece", [b"data: 12345", b"[12345678901"])
def test_event_size_limit(
    decoder: sse.ServerSentEventDecoder | ollama_codec.Lines | gemini_stream.StreamReader,
    piece: bytes,
) -> None:
    """An event or line beyond the limit is rejected while it is read."""
    with pytest.raises(ResponseLimitError) as caught:
        decoder.feed(piece)

    assert (caught.value.limit, caught.value.maximum) == ("event_bytes", 10)


@pytest.mark.parametrize("levels", [201, 333, 500])
def test_argument_path_limit(levels: int) -> None:
    """Argument paths cannot nest deeper than JSON may be nested."""
    piece = '{"functionCall":{"name":"f","partialArgs":[{"jsonPath":"%s","stringValue":"x"}]}}'
    data = '{"candidates":[{"content":{"parts":[' + piece % (".a" * levels) + "]}}]}"

    with pytest.raises(ResponseLimitError, match="more than 200 levels"):
        gemini_stream.StreamDecoder().feed(data.encode())


def test_event_size_limit_of_a_model(play: Play, service: Service) -> None:
    """One event, line or array is limited separately."""
    server = play([chunked(service.stream("x" * 1_000_000)), END])
    model = service.model(server.url, limits=ResponseLimits(event_bytes=200_000))
    outcome = outcome_of(model, "stream")

    assert isinstance(outcome.error, ResponseLimitError)
    assert (outcome.error.limit, outcome.error.maximum) == ("event_bytes", 200_000)


def test_empty_events() -> None:
    """Keep-alive events are counted."""
    reader = EventReader(StreamDecoder(COMPATIBLE))
    reader.set_limits(ResponseLimits(empty_events=3))
    ping = b'data: {"choices": []}\n\n'

    assert len(list(reader.feed(ping * 4))) == 1  # the first one has metadata
    with pytest.raises(ResponseLimitError) as caught:
        list(reader.feed(ping))
    assert caught.value.limit == "empty_events"


def test_tool_calls() -> None:
    """Calls of one response are counted, those in fragments once."""
    counter = CallCounter(ResponseLimits(tool_calls=3), "p")
    fragments = [ToolCallChunk(0, "1", "look", "{"), ToolCallChunk(0, "1", "", "}")]
    chunks: list[ChatResponse | str] = ["text", chunk(*fragments)]
    chunks.append(chunk(ToolCall("2", "look", "{}")))

    assert list(counter.count(chunks)) == chunks
    counter.add(chunk(ToolCall("3", "look", "{}")))
    with pytest.raises(ResponseLimitError) as caught:
        counter.add(chunk(ToolCall("4", "look", "{}")))
    assert (caught.value.limit, caught.value.maximum) == ("tool_calls", 3)


def chunk(*parts: Part) -> ChatResponse:
    return ChatResponse((Generation(AssistantMessage(parts)),))


@pytest.mark.parametrize("streaming", [True, False])
def test_tool_calls_of_a_model(play: Play, streaming: bool) -> None:
    calls = [
        {"index": n, "id": f"c{n}", "function": {"name": "look", "arguments": "{}"}}
        for n in range(4)
    ]
    name = "delta" if streaming else "message"
    answer = {"choices": [{"index": 0, name: {"tool_calls": calls}, "finish_reason": "tool_calls"}]}
    body = json.dumps(answer).encode()
    body = b"data: %b\n\ndata: [DONE]\n\n" % body if streaming else body
    for most, fits in ((4, True), (3, False)):
        limits = ResponseLimits(tool_calls=most)
        service = next(each for each in SERVICES if each.name == "chat")
        model = service.model(play([chunked(body), END]).url, limits=limits)
        outcome = outcome_of(model, "stream" if streaming else "call")
        assert (outcome.error is None) is fits
        assert fits or getattr(outcome.error, "limit", None) == "tool_calls"


def test_invalid_limit() -> None:
    with pytest.raises(UsageError, match="event_bytes"):
        ResponseLimits(event_bytes=0)
