"""Ollama's chat API against all recorded traffic, responses and requests.

The four recordings of `/api/generate` are excluded: it completes a single text without roles and
tools, and the chat API covers its functions.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatResponse,
    Message,
    SystemMessage,
    UserMessage,
)
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.model import ChatModel
from chatclient.errors import StreamInterruptedError
from chatclient.providers.ollama.model import (
    Lines,
    OllamaChatModel,
    StreamDecoder,
    decode_response,
    encode_message,
)
from tests.support.replay import (
    PATIENT,
    Chunking,
    Exchange,
    ask_all,
    by_api,
    compare,
    exchanges,
    expected,
    needs_recordings,
    pieces,
)

pytestmark = needs_recordings

Json = dict[str, Any]


def recorded() -> list[Exchange]:
    return exchanges("ollama.chat")


def streams() -> list[Exchange]:
    return [e for e in recorded() if e.streaming and e.status == 200]


# --- responses ------------------------------------------------------------------------------


@pytest.mark.parametrize("chunking", ["whole", "random"])
@pytest.mark.parametrize("blocking", [True, False])
def test_recorded_exchanges(*, blocking: bool, chunking: Chunking) -> None:
    """Every answer and error is decoded as recorded, over sockets."""

    def create(url: str) -> ChatModel:
        return OllamaChatModel("m", base_url=url, max_retries=0, timeout=PATIENT)

    outcomes, paths = ask_all(recorded(), create, chunking, blocking=blocking)

    wrong = {str(e): found for e, o in outcomes.items() if (found := compare(o, expected(e)))}
    print(f"understood, blocking {blocking}, {chunking}:", by_api(outcomes))  # noqa: T201
    assert wrong == {}
    assert paths == {"/api/chat"}
    assert by_api(outcomes) == by_api(recorded())


def decoded(chunks: Iterable[bytes]) -> ChatResponse:
    lines, decoder, aggregator = Lines(), StreamDecoder(), MessageAggregator()
    for chunk in chunks:
        for line in lines.feed(chunk):
            aggregator.add(decoder.feed(line))
    if (last := decoder.finish(lines.finish())) is not None:
        aggregator.add(last)
    return aggregator.response()


@pytest.mark.parametrize("line_end", [b"\n", b"\r\n"])
@pytest.mark.parametrize("chunking", ["whole", "line", "byte", "utf8", "crlf", "random"])
def test_chunking(chunking: Chunking, line_end: bytes) -> None:
    """Chunking and the end of the last line do not affect the response."""
    for seed, exchange in enumerate(streams()):
        body = exchange.body.replace(b"\n", line_end)
        for variant in (body, body.strip()):
            response = decoded(pieces(variant, chunking, seed))

            assert compare(response, expected(exchange)) == []


def test_truncated_recorded_streams() -> None:
    """Without its last line a stream is interrupted."""
    for exchange in streams():
        last = exchange.body.strip().rfind(b"\n")
        for cut in (0, last // 2, last, last + 20):
            with pytest.raises(StreamInterruptedError):
                decoded([exchange.body[:cut]])


# --- requests -------------------------------------------------------------------------------


def messages_of(request: Json) -> Iterator[Message]:
    """Yield the messages of a recorded request, which have no media."""
    kinds = {"user": UserMessage, "system": SystemMessage, "assistant": AssistantMessage}
    for message in request["messages"]:
        assert message.keys() == {"role", "content"}
        yield kinds[message["role"]](message["content"])


def test_recorded_request_round_trip() -> None:
    """A recorded conversation survives the round trip and is valid."""
    types = pytest.importorskip("ollama._types")
    requests = [e.request for e in recorded() if e.request]
    for request in requests:
        ours = [element for m in messages_of(request) for element in encode_message(m)]

        assert ours == request["messages"]
        types.ChatRequest.model_validate({"model": "m", "messages": ours})

    print("requests:", len(requests))  # noqa: T201


def test_recorded_answers_are_sent_back() -> None:
    """Text, thinking and calls are sent back unchanged, calls with an id."""
    for exchange in recorded():
        if exchange.streaming or exchange.status != 200:
            continue
        message = json.loads(exchange.body)["message"]
        output = decode_response(exchange.body).output

        assert output is not None
        [ours] = encode_message(output)
        for call, theirs in zip(
            ours.get("tool_calls", []), message.get("tool_calls", []), strict=True
        ):
            assert call["id"] == theirs.get("id", call["id"])
            assert call["function"] == {k: theirs["function"][k] for k in ("name", "arguments")}
        assert {**ours, "tool_calls": message.get("tool_calls")} == {"tool_calls": None, **message}
