"""Streams of the Converse API: blocks, errors, damage and limits; no I/O."""

import base64
from collections.abc import Iterable
from typing import Any

import pytest

from chatclient import ChatResponse, Media
from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import ProviderPart, Reasoning
from chatclient.errors import (
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    RequestTimeoutError,
    ResponseLimitError,
    StreamInterruptedError,
)
from chatclient.providers.bedrock.decoding import MessageSplitter, StreamDecoder, decode_response
from chatclient.providers.bedrock.encoding import encode_blocks
from chatclient.providers.http.limits import ResponseLimits
from chatclient.providers.http.reader import EventReader
from tests.support.converse_server import (
    as_stream,
    event,
    events_of,
    exception,
    message,
    message_with,
    response,
)

pytest.importorskip("botocore")

CITATION = {"title": "Rome", "location": {"web": {"url": "https://example.org"}}}
PIXEL = base64.b64encode(b"pixel").decode()
END = event("messageStop", {"stopReason": "end_turn"})


def decoded(*pieces: bytes, limits: ResponseLimits | None = None) -> ChatResponse:
    reader = EventReader(StreamDecoder(), None, MessageSplitter())
    if limits is not None:
        reader.set_limits(limits)
    answer = MessageAggregator()
    for piece in pieces:
        for chunk in reader.feed(piece):
            answer.add(chunk)
    for chunk in reader.finish():
        answer.add(chunk)
    return answer.response()


def delta(**content: Any) -> bytes:
    return event("contentBlockDelta", {"contentBlockIndex": 0, "delta": content})


def start(**content: Any) -> bytes:
    return event("contentBlockStart", {"contentBlockIndex": 0, "start": content})


def bytes_of(body: bytes) -> Iterable[bytes]:
    return (body[at : at + 1] for at in range(len(body)))


EVERYTHING = response(
    {"reasoningContent": {"reasoningText": {"text": "Rome, then.", "signature": "sig"}}},
    {"reasoningContent": {"redactedContent": "c2VjcmV0"}},
    "Let me — see.",
    {"toolUse": {"toolUseId": "s", "name": "ground", "type": "server_tool_use", "input": {"q": 1}}},
    {"toolResult": {"toolUseId": "s", "status": "success", "content": [{"json": {"a": 1}}]}},
    {"citationsContent": {"content": [{"text": "It is said."}], "citations": [CITATION]}},
    {"citationsContent": {"citations": [CITATION]}},
    {"image": {"format": "png", "source": {"bytes": PIXEL}}},
    {"toolUse": {"toolUseId": "c1", "name": "weather", "input": {"city": "Rome", "at": 1.50}}},
    {"toolUse": {"toolUseId": "c2", "name": "weather", "input": {}}},
    stop="tool_use",
)


def test_all_blocks() -> None:
    """A stream in pieces of single bytes decodes like the complete answer, and is sent back."""
    body, whole = as_stream(EVERYTHING), decode_response(EVERYTHING)
    for found in (decoded(body), decoded(*bytes_of(body)), whole):
        assert (found.output, found.usage, found.finish_reason) == (
            whole.output,
            whole.usage,
            "tool_call",
        )
        assert found.text == "Let me — see.It is said."
        assert found.output is not None
        assert found.output.media == (Media("image/png", b"pixel"),)
        blocks = [b for b in EVERYTHING["output"]["message"]["content"] if "image" not in b]
        assert encode_blocks(found.output) == blocks


def test_unusual_events() -> None:
    """Unknown events, missing stops, empty starts and arguments as an object are accepted."""
    found = decoded(
        event("messageStart", {"role": "assistant"}),
        event("eventOfTomorrow", {"p": "abc"}),
        start(),
        delta(text="Hi"),
        event("contentBlockStop", {"contentBlockIndex": 0}),
        delta(unknown={"x": 1}),
        start(toolUse={"toolUseId": "c", "name": "f"}),
        END,
        event("metadata", {"p": "abc", "metrics": {"latencyMs": 1}}),
    )

    unknown = ProviderPart("bedrock", {"unknown": {"x": 1}})
    assert found.output is not None
    assert found.output.parts[0] == "Hi"
    assert unknown in found.output.parts
    assert found.finish_reason == "tool_call"
    assert found.metadata.values == {"metrics": {"latencyMs": 1}}


def test_citations_after_text() -> None:
    """Citations that arrive after their text are kept without text."""
    found = decoded(delta(text="It is said."), delta(citation=CITATION), END)

    cited = ProviderPart("bedrock", {"citationsContent": {"citations": [CITATION]}})
    assert found.output is not None
    assert found.output.parts == ("It is said.", cited)


def test_content_in_pieces() -> None:
    """Bytes are those of all pieces, each of which has its own padding; signatures are texts."""
    first, second = (base64.b64encode(each).decode() for each in (b"0", b"1234"))
    whole = base64.b64encode(b"01234").decode()
    stop = event("contentBlockStop", {"contentBlockIndex": 0})
    pictures = (delta(image={"source": {"bytes": each}}) for each in (first, second))
    hidden = (delta(reasoningContent={"redactedContent": each}) for each in (first, second))
    signed = (delta(reasoningContent={"signature": each}) for each in ("ab=", "cd="))

    thought = delta(reasoningContent={"text": "Hm."})
    found = decoded(
        *(start(image={"format": "png"}), *pictures, stop, *hidden, stop, thought, *signed, END)
    )

    assert found.output is not None
    assert found.output.parts == (
        Media("image/png", b"01234"),
        Reasoning(provider="bedrock", data={"reasoningContent": {"redactedContent": whole}}),
        Reasoning("Hm.", "ab=cd=", "bedrock"),
    )


def test_image_elsewhere() -> None:
    """An image that is not in the answer is kept as the API describes it."""
    source = {"s3Location": {"uri": "s3://bucket/cat.png"}}
    found = decoded(start(image={"format": "png"}), delta(image={"source": source}), END)

    assert found.output is not None
    part = ProviderPart("bedrock", {"image": {"format": "png", "source": source}})
    assert found.output.parts == (part,)


def test_signature_without_text() -> None:
    """Reasoning that is not shown keeps its signature."""
    found = decoded(delta(reasoningContent={"signature": "sig"}), END)

    assert found.output is not None
    assert found.output.reasoning == (Reasoning("", "sig", "bedrock"),)


@pytest.mark.parametrize(
    ("kind", "error", "status"),
    [
        ("throttlingException", RateLimitedError, 429),
        ("ThrottlingException", RateLimitedError, 429),
        ("validationException", InvalidRequestError, 400),
        ("modelTimeoutException", RequestTimeoutError, 408),
        ("serviceUnavailableException", OverloadedError, 503),
        ("modelStreamErrorException", OverloadedError, None),
    ],
)
def test_exceptions(kind: str, error: type[ProviderError], status: int | None) -> None:
    """An exception in the stream has the type of its kind, and the service's message."""
    with pytest.raises(error, match="in a stream") as raised:
        decoded(delta(text="Hi"), exception(kind, "it happened in a stream"))

    assert type(raised.value) is error
    assert raised.value.status == status


def test_errors_without_json() -> None:
    """Details of errors are read from headers and plain text, too."""
    headers = {"error_code": "InternalError", "error_message": "something broke"}
    with pytest.raises(OverloadedError, match="something broke"):
        decoded(message(b"", message_type="error", **headers))
    with pytest.raises(OverloadedError, match="plain text"):
        decoded(message(b"plain text", message_type="exception", exception_type="x"))


def test_incomplete_streams() -> None:
    """Without its end a stream is interrupted, wherever it breaks off; usage is optional."""
    events = [event(*each) for each in events_of(response("Hi"))]
    without_end = b"".join(events[:-2])
    for size in range(0, len(without_end), 7):
        with pytest.raises(StreamInterruptedError):
            decoded(without_end[:size])

    assert decoded(*events[:-1]).text == "Hi"


def test_damaged_streams() -> None:
    """Wrong checksums and lengths are an `InvalidResponseError`, and so is something else."""
    body = bytearray(as_stream(response("Hi")))
    for at in (2, 6, 9, 14, 60, 90):
        damaged = body.copy()
        damaged[at] ^= 1
        with pytest.raises(InvalidResponseError):
            decoded(bytes(damaged))
    short = b"\0\0\0\x05" + bytes(20)
    for other in (b'{"message": "no stream"}', b"<html>", short, delta(text=[1])):
        with pytest.raises(InvalidResponseError):
            decoded(other)


@pytest.mark.parametrize("headers", [b"\1", b"\1a\x63", b"\1\xff\0", b"\2a\7\0\1"])
def test_damaged_headers(headers: bytes) -> None:
    """Headers that cannot be read are an `InvalidResponseError`, although checksums are valid."""
    with pytest.raises(InvalidResponseError, match="damaged stream"):
        decoded(message_with(headers, b"{}"))


def test_limits() -> None:
    """Large messages and many events without content are refused."""
    with pytest.raises(ResponseLimitError, match="larger than 100 bytes"):
        decoded(delta(text="x" * 200), limits=ResponseLimits(event_bytes=100))
    stops = [event("contentBlockStop", {"contentBlockIndex": 0})] * 4
    with pytest.raises(ResponseLimitError, match="without content"):
        decoded(*stops, limits=ResponseLimits(empty_events=3))
