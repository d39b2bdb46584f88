"""Decoding of Chat Completions answers, complete and streamed, by data."""

import base64
import json
from typing import Any

import pytest

from chatclient._internal.frozen import EMPTY
from chatclient.chat.messages import AssistantMessage, Media, ProviderPart, Reasoning, ToolCall
from chatclient.chat.response import ChatResponse, RateLimit, Usage
from chatclient.errors import (
    ContentFilterError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    StreamInterruptedError,
)
from chatclient.providers.openai.chat_decoding import decode_response, rate_limit
from chatclient.providers.openai.chat_stream import StreamDecoder
from chatclient.providers.openai.dialect import COMPATIBLE, OPENAI, REASONING_FIELD
from tests.support.replay import collect


def complete(message: dict[str, Any], finish_reason: str | None = "stop", **more: Any) -> Any:
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    return {"id": "r1", "model": "m", "choices": [choice], **more}


def decode(data: Any, **headers: str) -> ChatResponse:
    return decode_response(data, OPENAI, {k.replace("_", "-"): v for k, v in headers.items()})


def message_in(response: ChatResponse) -> AssistantMessage:
    assert response.output is not None
    return response.output


def chunk(delta: dict[str, Any], finish_reason: str | None = None, **more: Any) -> Any:
    choice = {"index": 0, "delta": delta, "finish_reason": finish_reason}
    return {"id": "r1", "model": "m", "choices": [choice], **more}


def streamed(*events: Any, done: bool = True) -> ChatResponse:
    """Return the response of a stream of *events*."""
    return collect(chunks_of(*events, done=done))


def chunks_of(*events: Any, done: bool = True, rest: bytes = b"") -> list[ChatResponse | str]:
    decoder = StreamDecoder(OPENAI)
    data = [event if isinstance(event, bytes) else json.dumps(event).encode() for event in events]
    fed = [decoder.feed(one) for one in [*data, *([b"[DONE]"] if done else [])]]
    return [*(one for one in fed if one is not None), *decoder.finish(rest)]


# --- finish reasons -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("stop", "stop"),
        ("eos", "stop"),
        ("", "stop"),
        ("unheard_of", "stop"),
        ("length", "length"),
        ("model_length", "length"),
        ("tool_calls", "tool_call"),
        ("content_filter", "content_filter"),
        ("error", "error"),
        ("insufficient_system_resource", "error"),
        ("abort", "error"),
        ("network_error", "error"),
        ("sensitive", "content_filter"),
        ("max_tokens", "length"),
        ("model_context_window_exceeded", "length"),
        (None, None),
    ],
)
def test_finish_reasons_are_normalised(native: str | None, reason: str | None) -> None:
    """The finish reason is normalised, and the provider's own is kept."""
    generation = decode(complete({"content": "x"}, native)).generations[0]

    assert (generation.finish_reason, generation.native_finish_reason) == (reason, native)


@pytest.mark.parametrize(
    ("native", "reason"),
    [
        ("stop", "tool_call"),
        (None, "tool_call"),
        ("whatever", "tool_call"),
        ("length", "length"),
        ("model_length", "length"),
        ("sensitive", "content_filter"),
        ("network_error", "error"),
    ],
)
def test_finish_reason_with_calls(native: str | None, reason: str) -> None:
    """Calls with "stop" give `tool_calls`; a truncated call gives `length`."""
    call = {"id": "c1", "function": {"name": "add", "arguments": "{}"}}

    assert decode(complete({"tool_calls": [call]}, native)).finish_reason == reason


def test_refusal() -> None:
    """A refusal is marked text with its finish reason, complete or streamed."""
    part = ProviderPart("openai", {"refusal": "no"}, "no")
    response = decode(complete({"content": None, "refusal": "no"}))

    assert message_in(response) == AssistantMessage([part])
    assert (response.text, response.finish_reason) == ("no", "content_filter")

    response = streamed(chunk({"refusal": "n"}), chunk({"refusal": "o"}), chunk({}, "stop"))
    assert (response.text, response.finish_reason) == ("no", "content_filter")


# --- parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_fields(field: str) -> None:
    """The name of the reasoning field is kept for the next request."""
    expected = AssistantMessage(
        [Reasoning("so what", provider="openai"), "x"], metadata={REASONING_FIELD: field}
    )

    assert message_in(decode(complete({field: "so what", "content": "x"}))) == expected
    pieces = [chunk({field: "so "}), chunk({field: "what"}), chunk({"content": "x"}, "stop")]
    assert message_in(streamed(*pieces)) == expected


def test_content_list() -> None:
    """Content lists have reasoning, text and provider-specific parts."""
    thinking = {"type": "thinking", "thinking": [{"type": "text", "text": "so"}]}
    referring = {"type": "thinking", "thinking": [{"type": "reference", "reference_ids": [1]}]}
    content = [
        thinking,
        {"type": "thinking", "thinking": "plain"},
        referring,
        {"type": "text", "text": "x"},
        {"type": "text", "text": ""},
        {"type": "reference", "reference_ids": [1]},
    ]

    assert message_in(decode(complete({"content": content}))).parts == (
        Reasoning("so", provider="openai"),
        Reasoning("plain", provider="openai"),
        Reasoning("", provider="openai", data=referring),
        "x",
        ProviderPart("openai", {"type": "reference", "reference_ids": [1]}),
    )


def test_content_as_parsed_json() -> None:
    """Content that the server has parsed is serialised again without escapes."""
    assert decode(complete({"content": {"a": "Köln"}})).text == '{"a":"Köln"}'


def test_provider_specific_fields() -> None:
    """Citations and provider tools become parts, other fields metadata."""
    message = {"content": "x", "annotations": [{"a": 1}], "executed_tools": [{"b": 2}], "parsed": 3}
    found = message_in(decode(complete(message)))

    assert found.parts == (
        "x",
        ProviderPart("openai", {"annotations": [{"a": 1}]}),
        ProviderPart("openai", {"executed_tools": [{"b": 2}]}),
    )
    assert found.metadata == {"parsed": 3}


def test_empty_fields_are_ignored() -> None:
    """Empty fields are ignored."""
    message: dict[str, Any] = {
        "content": "x",
        "refusal": "",
        "annotations": [],
        "audio": {"data": "", "expires_at": 0, "id": "", "transcript": ""},
        "function_call": {"arguments": "", "name": ""},
        "tool_calls": None,
        "reasoning": None,
    }

    assert message_in(decode(complete(message))) == AssistantMessage("x")


def test_generated_images() -> None:
    """Images may be data URLs or URLs."""
    data = base64.b64encode(b"\x89PNG").decode()
    urls = [f"data:image/webp;base64,{data}", f"data:;base64,{data}", "https://x.org/a.png"]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]

    assert message_in(decode(complete({"content": "", "images": images}))).media == (
        Media("image/webp", b"\x89PNG"),
        Media("image/png", b"\x89PNG"),
        Media("image/png", "https://x.org/a.png"),
    )


@pytest.mark.parametrize(
    ("sound", "mime_type"),
    [
        (b"RIFF\x00", "audio/wav"),
        (b"OggS\x00", "audio/ogg"),
        (b"fLaC\x00", "audio/flac"),
        (b"ID3\x00", "audio/mpeg"),
        (b"\xff\xfb\x90", "audio/mpeg"),
        (b"\xff\xf1\x50", "audio/aac"),
        (b"\x01\x02", "audio/pcm"),
        (b"\xff", "audio/pcm"),
    ],
)
def test_audio_answer(sound: bytes, mime_type: str) -> None:
    """The transcript is the text; the id of the audio is sent back."""
    data = base64.b64encode(sound).decode()
    audio = {"id": "audio_1", "data": data, "transcript": "hi", "expires_at": 9}

    assert message_in(decode(complete({"content": None, "audio": audio}))).parts == (
        "hi",
        Media(mime_type, sound, "audio_1", metadata={"expires_at": 9}),
        ProviderPart("openai", {"audio": {"id": "audio_1"}}),
    )


def test_streamed_audio_answer() -> None:
    """Alternating fragments of transcript and audio give one text and one sound."""
    sound = [base64.b64encode(piece).decode() for piece in (b"\x01\x02", b"\x03\x04")]
    pieces = [
        chunk({"role": "assistant", "audio": {"id": "audio_1", "transcript": "h"}}),
        chunk({"audio": {"id": "audio_1", "data": sound[0]}}),
        chunk({"audio": {"id": "audio_1", "transcript": "i"}}),
        chunk({"audio": {"data": sound[1]}}),
        chunk({"audio": {"id": "audio_1", "expires_at": 9}}),
        chunk({}, "stop"),
    ]
    message = message_in(streamed(*pieces))

    assert message.parts == (
        "h",
        ProviderPart("openai", {"audio": {"id": "audio_1"}}),
        Media("audio/pcm", b"\x01\x02\x03\x04", "audio_1"),
        "i",
    )
    assert message.text == "hi"


# --- tool calls -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (
            {"id": "c1", "function": {"name": "add", "arguments": '{"a": 1}'}},
            ToolCall("c1", "add", '{"a": 1}'),
        ),
        (
            {"id": "c1", "function": {"name": "add", "arguments": {"a": 1}}},
            ToolCall("c1", "add", '{"a":1}'),
        ),
        ({"id": "c1", "function": {"name": "now"}}, ToolCall("c1", "now", "{}")),
        ({"id": "c1", "function": {"name": "now", "arguments": None}}, ToolCall("c1", "now", "{}")),
        (
            {"id": "c1", "type": "custom", "custom": {"name": "math", "input": "4 + 4"}},
            ToolCall("c1", "math", "4 + 4", {"type": "custom"}),
        ),
        (
            {"id": "c1", "type": "custom", "custom": {"name": "math", "input": ""}},
            ToolCall("c1", "math", "", {"type": "custom"}),
        ),
        (
            {
                "id": "c1",
                "function": {"name": "add", "arguments": "{}"},
                "custom": {"name": "", "input": ""},
                "extra_content": {"google": {}},
            },
            ToolCall("c1", "add", "{}", {"extra_content": {"google": {}}}),
        ),
    ],
)
def test_tool_call_forms(call: dict[str, Any], expected: ToolCall) -> None:
    """Arguments may be a string, an object or missing; custom tools have free text."""
    assert message_in(decode(complete({"tool_calls": [call]}))).tool_calls == (expected,)


def test_missing_call_id() -> None:
    """A call without an id gets one, which ties the result to it."""
    call = {"id": "", "function": {"name": "add", "arguments": "{}"}}
    first, second = message_in(decode(complete({"tool_calls": [call, call]}))).tool_calls

    assert first.id.startswith("call_")
    assert first.id != second.id


def test_legacy_function_call() -> None:
    """A legacy `function_call` is a tool call, complete or streamed."""
    call = {"name": "add", "arguments": '{"a":1}'}
    (found,) = message_in(decode(complete({"function_call": call}, "function_call"))).tool_calls
    pieces = [{"name": "add", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
    response = streamed(
        *(chunk({"function_call": piece}) for piece in pieces), chunk({}, "function_call")
    )
    (joined,) = message_in(response).tool_calls

    assert (found.name, found.arguments) == (joined.name, joined.arguments) == ("add", '{"a":1}')
    assert response.finish_reason == "tool_call"


def test_streamed_custom_tool_input() -> None:
    """Free text of a custom tool is streamed like arguments."""
    first = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "math", "input": ""}}
    rest = {"index": 0, "custom": {"input": "4 + 4"}}
    response = streamed(
        chunk({"tool_calls": [first]}), chunk({"tool_calls": [rest]}), chunk({}, "tool_calls")
    )

    assert message_in(response).tool_calls == (ToolCall("c1", "math", "4 + 4", {"type": "custom"}),)


# --- usage and metadata ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usage", "expected"),
    [
        ({"prompt_tokens": 3, "completion_tokens": 2}, Usage(3, 2)),
        ({"prompt_tokens": None, "completion_tokens": None, "total_tokens": None}, Usage()),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 5,
                "total_tokens": 14,
                "prompt_tokens_details": {"cached_tokens": 4, "cache_write_tokens": 2},
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(9, 5, 4, 2, 3),
        ),
        (
            {
                "prompt_tokens": 9,
                "completion_tokens": 2,
                "total_tokens": 14,
                "completion_tokens_details": {"reasoning_tokens": 3},
            },
            Usage(9, 5, None, None, 3),
        ),
        ({"prompt_tokens": 9, "prompt_cache_hit_tokens": 4}, Usage(9, 0, 4)),
        ({"prompt_tokens": 9, "cached_tokens": 4}, Usage(9, 0, 4)),
        ({"prompt_tokens": 9, "num_cached_tokens": 0}, Usage(9, 0, 0)),
        (
            {"prompt_tokens": 9, "cache_read_input_tokens": 4, "cache_creation_input_tokens": 1},
            Usage(9, 0, 4, 1),
        ),
        ({"prompt_tokens": 1, "prompt_tokens_details": None}, Usage(1, 0)),
        ({"prompt_tokens": 1, "prompt_token_details": {"cached_tokens": 1}}, Usage(1, 0, 1)),
        ({}, Usage()),
        (None, Usage()),
    ],
)
def test_usage_forms(usage: Any, expected: Usage) -> None:
    """Cached and reasoning tokens are found in all forms; reasoning counts as output."""
    found = decode(complete({"content": "x"}, usage=usage)).usage

    assert (found.input_tokens, found.output_tokens) == (
        expected.input_tokens,
        expected.output_tokens,
    )
    assert found.cache_read_tokens == expected.cache_read_tokens
    assert found.cache_write_tokens == expected.cache_write_tokens
    assert found.reasoning_tokens == expected.reasoning_tokens
    assert found.native == (usage or {})


def test_groq_stream_usage() -> None:
    """Streams of Groq have usage in `x_groq`."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    response = streamed(chunk({"content": "x"}), chunk({}, "stop", x_groq={"usage": usage}))

    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 2)
    assert decode(complete({"content": "x"}, x_groq=None)).usage == Usage()


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (
            {
                "x-ratelimit-limit-requests": "100",
                "x-ratelimit-remaining-requests": "99",
                "x-ratelimit-reset-requests": "6m0.5s",
                "x-ratelimit-limit-tokens": "30000",
                "x-ratelimit-remaining-tokens": "29986",
                "x-ratelimit-reset-tokens": "26ms",
            },
            RateLimit(100, 99, 360.5, 30000, 29986, 0.026),
        ),
        (
            {"x-ratelimit-reset-requests": "0s", "x-ratelimit-reset": "5"},
            RateLimit(requests_reset=0.0),
        ),
        (
            {"x-ratelimit-remaining-requests": "118", "x-ratelimit-reset-requests": "500"},
            RateLimit(requests_remaining=118),
        ),
        (
            {
                "x-ratelimit-limit-req-minute": "60",
                "x-ratelimit-remaining-req-minute": "59",
                "x-ratelimit-limit-tokens-minute": "5000",
                "x-ratelimit-remaining-tokens-minute": "4000",
            },
            RateLimit(60, 59, None, 5000, 4000),
        ),
        (
            {"ratelimit-limit": "400", "ratelimit-remaining": "399", "ratelimit-reset": "19"},
            RateLimit(400, 399, 19),
        ),
        ({"x-ratelimit-remaining-tokens": "many"}, None),
        ({"x-ratelimit-limit-requests": "9" * 5000, "x-ratelimit-limit-tokens": "²"}, None),
        ({"content-type": "application/json"}, None),
        ({}, None),
    ],
)
def test_rate_limit_headers(headers: dict[str, str], expected: RateLimit | None) -> None:
    """Rate limits are read in each service's form; a time without a unit is ignored."""
    assert rate_limit(headers) == expected


def test_response_metadata() -> None:
    """Metadata has ids, model and unknown fields, but no padding."""
    data = complete({"content": "x"}, service_tier="flex", obfuscation="xyz", p="abc", created=None)
    metadata = decode(data, x_request_id="req_1").metadata

    assert (metadata.id, metadata.model, metadata.request_id) == ("r1", "m", "req_1")
    assert metadata.values == {"service_tier": "flex"}
    assert decode({"choices": [{"message": {"content": "x"}}]}).metadata.id == ""


def test_several_choices() -> None:
    """With n > 1 there is a generation per choice, also without an index."""
    choices = [{"message": {"content": text}} for text in "ab"]

    assert [g.index for g in decode({"choices": choices}).generations] == [0, 1]
    assert [g.output.text for g in decode({"choices": choices}).generations] == ["a", "b"]


# --- errors with status 200 -----------------------------------------------------------------


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        ({"error": {"message": "x", "code": "content_filter"}}, ContentFilterError),
        ({"error": {"message": "x", "code": 502}, "choices": []}, OverloadedError),
        ({"choices": [{"error": {"code": 502, "message": "x"}}]}, OverloadedError),
        ({"object": "error", "message": "x", "code": 400}, InvalidRequestError),
        ({"message": "x"}, OverloadedError),
        ({"detail": "x"}, OverloadedError),
    ],
)
def test_error_with_status_200(data: Any, kind: type[ProviderError]) -> None:
    """An error in the body is raised, complete or streamed."""
    with pytest.raises(kind):
        decode(data)
    with pytest.raises(kind):
        StreamDecoder(OPENAI).feed(json.dumps(data).encode())


@pytest.mark.parametrize(
    "data",
    [
        *({}, [], None, 5, "x", {"choices": [5]}, {"choices": 5}),
        {"choices": [{"message": "x"}]},
        {"choices": [{"message": {"tool_calls": [5]}}]},
        {"choices": [{"message": {"content": [5]}}]},
        {"choices": [{"message": {"content": "x"}}], "usage": 5},
        {"choices": [{"message": {"content": "x"}, "index": [0]}]},
        {"choices": [{"message": {"tool_calls": [{"function": {"name": 5}}]}}]},
        {"choices": [{"message": {"refusal": ["x"]}}]},
    ],
)
def test_unknown_json_is_invalid(data: Any) -> None:
    """Unknown JSON raises `InvalidResponseError`, not a Python error."""
    with pytest.raises(InvalidResponseError, match=r"openai answered .* not a response"):
        decode(data)


@pytest.mark.parametrize("choices", [[], None])
def test_missing_choices_are_retryable(choices: Any) -> None:
    """An empty or null list of choices gives a retryable error."""
    with pytest.raises(InvalidResponseError, match="has no answer in it") as caught:
        decode({"id": "r1", "object": "chat.completion", "choices": choices})

    assert caught.value.retryable


@pytest.mark.parametrize(
    "event",
    [
        *(b"{", b"5", b"[1]", b'"x"', b'{"choices":[5]}', b"\xff\xfe"),
        b'{"choices":[{"index":[0],"delta":{"content":"x"}}]}',
        b'{"choices":[{"delta":{"tool_calls":[{"index":{},"id":"a"}]}}]}',
    ],
)
def test_unknown_event_is_invalid(event: bytes) -> None:
    """An unknown event raises `InvalidResponseError`, not a Python error."""
    with pytest.raises(InvalidResponseError, match=r"openai answered .* not a response"):
        StreamDecoder(OPENAI).feed(event)


def test_event_type_error() -> None:
    """An event of type `error` raises, with any data."""
    with pytest.raises(OverloadedError, match="x"):
        StreamDecoder(OPENAI).feed(b'{"reason": "x"}', "error")


# --- streams --------------------------------------------------------------------------------


def test_text_chunks_are_strings() -> None:
    """A chunk with text only is decoded as a string."""
    first, *rest = chunks_of(chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop"))

    assert isinstance(first, ChatResponse)
    assert rest[0] == "b"
    assert first.metadata.id == "r1"


def test_text_chunks_without_id() -> None:
    """The first chunk has the metadata, with or without an id."""
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in "ab"]
    _, second, _ = chunks_of(*pieces)

    assert second == "b"


def test_late_id() -> None:
    """An id that changes after the first chunk is used, as with Azure."""
    first = {"id": "", "model": "", "choices": [], "prompt_filter_results": [1]}
    response = streamed(first, chunk({"content": "a"}), chunk({}, "stop"))

    assert (response.metadata.id, response.metadata.model) == ("r1", "m")
    assert response.metadata.values["prompt_filter_results"] == [1]


def test_late_fields() -> None:
    """Unusual fields in a later chunk are kept."""
    late = {"id": "r1", "choices": [], "moderation": {"flagged": False}}
    response = streamed(chunk({"content": "a"}), chunk({}, "stop"), late)

    assert response.metadata.values["moderation"] == {"flagged": False}


def test_empty_chunks_are_skipped() -> None:
    """Keep-alives and empty deltas give no chunks."""
    empty = {"id": "r1", "choices": [{"index": 0, "delta": {}, "finish_reason": None}]}

    assert len(chunks_of(chunk({"content": "a"}), empty, b"", chunk({}, "stop"))) == 2


def test_streamed_choices() -> None:
    """With n > 1 each chunk is part of a choice, and each choice has its end."""

    def piece(index: int, delta: dict[str, Any], end: str | None = None) -> Any:
        return {"id": "r", "choices": [{"index": index, "delta": delta, "finish_reason": end}]}

    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": "{}"}}
    response = streamed(
        *(piece(0, {"content": "a"}), piece(1, {"content": "b"}), piece(0, {"content": "A"})),
        *(piece(1, {"tool_calls": [call]}), piece(1, {}, "stop"), piece(0, {}, "stop")),
        done=False,
    )

    assert [g.output.text for g in response.generations] == ["aA", "b"]
    assert [g.finish_reason for g in response.generations] == ["stop", "tool_call"]
    with pytest.raises(StreamInterruptedError):
        streamed(piece(0, {"content": "a"}), piece(1, {}), piece(0, {}, "stop"), done=False)


def test_log_probabilities_are_joined() -> None:
    """Each chunk has the values of its tokens; the joined response has all."""

    def piece(text: str, end: str | None = None) -> Any:
        logprobs = {"content": [{"token": text}], "refusal": None} if text else None
        delta = {"content": text} if text else {}
        choice = {"index": 0, "delta": delta, "finish_reason": end, "logprobs": logprobs}
        return {"id": "r1", "choices": [choice]}

    chunks = chunks_of(piece("a"), piece("b"), piece("", "stop"))
    assert isinstance(chunks[1], ChatResponse)
    assert chunks[1].generations[0].metadata["logprobs"]["content"] == [{"token": "b"}]
    assert collect(chunks).generations[0].metadata["logprobs"] == {
        "content": [{"token": "a"}, {"token": "b"}]
    }


def test_signed_reasoning_is_joined() -> None:
    """Fragments of a reasoning detail are joined; different details stay separate."""

    def piece(**detail: Any) -> Any:
        return chunk({"reasoning": detail.get("text"), "reasoning_details": [detail]})

    response = streamed(
        piece(type="reasoning.text", text="so ", index=0, format=None),
        piece(type="reasoning.text", text="what", index=0),
        piece(type="reasoning.text", signature="s", index=0, format="f"),
        piece(type="reasoning.encrypted", data="e1", index=1),
        piece(type="reasoning.encrypted", data="e2", index=1),
        piece(type="reasoning.summary", summary="in ", index=2),
        piece(type="reasoning.summary", summary="short", index=2),
        chunk({"content": "x"}, "stop"),
        chunk({}, "stop"),
    )

    assert message_in(response).reasoning == (Reasoning("so what", provider="openai"),)
    (part,) = (p for p in message_in(response).parts if isinstance(p, ProviderPart))
    assert part.data == {
        "reasoning_details": [
            {
                "type": "reasoning.text",
                "text": "so what",
                "index": 0,
                "format": "f",
                "signature": "s",
            },
            {"type": "reasoning.encrypted", "data": "e1", "index": 1},
            {"type": "reasoning.encrypted", "data": "e2", "index": 1},
            {"type": "reasoning.summary", "summary": "in short", "index": 2},
        ]
    }


def thinking(text: str, signature: str = "") -> Any:
    """Return a thinking block of LiteLLM."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def test_litellm_thinking_blocks_are_joined() -> None:
    """Fragments are joined; a signature ends a block."""

    def piece(block: Any) -> Any:
        return chunk({"reasoning_content": block["thinking"], "thinking_blocks": [block]})

    redacted = {"type": "redacted_thinking", "data": "e"}
    pieces = [thinking("so "), thinking("what"), thinking("", "s"), thinking("then", "t")]
    response = streamed(*map(piece, pieces), chunk({"thinking_blocks": [redacted]}, "stop"))
    blocks = [thinking("so what", "s"), thinking("then", "t"), redacted]
    message = {"reasoning_content": "so whatthen", "thinking_blocks": blocks}

    assert message_in(response) == message_in(decode(complete(message)))
    assert message_in(response).parts[-1] == ProviderPart("openai", {"thinking_blocks": blocks})


def summary(text: str, signature: str = "") -> Any:
    """Return content in the form of Databricks for Claude's reasoning."""
    piece = {"type": "summary_text", "text": text, "signature": signature}
    return {"content": [{"type": "reasoning", "summary": [piece]}]}


def test_reasoning_in_content() -> None:
    """Reasoning parts of the content are joined and kept for sending back."""
    content = [*summary("so what", "s")["content"], {"type": "text", "text": "x"}]
    response = streamed(
        chunk(summary("so ")),
        chunk(summary("what")),
        chunk(summary("", "s")),
        chunk({"content": "x"}),
    )
    part = Reasoning(provider="openai", data=content[0])

    assert message_in(response) == message_in(decode(complete({"content": content})))
    assert message_in(response).parts == (Reasoning("so what", provider="openai"), part, "x")


def test_unsigned_reasoning_in_content() -> None:
    """Unsigned reasoning ends with the next content or the stream."""
    kept = Reasoning(provider="openai", data=summary("so what")["content"][0])
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": "{}"}}
    pieces = [chunk(summary("so ")), chunk(summary("what"))]

    for last in (chunk({}, "stop"), chunk({"tool_calls": [call]}, "stop")):
        assert message_in(streamed(*pieces, last)).parts[1] == kept


def test_content_in_the_last_chunk() -> None:
    """A single chunk may have the content and the finish reason."""
    response = streamed(chunk({"reasoning_content": "so what"}, "stop"))

    assert message_in(response).metadata == {REASONING_FIELD: "reasoning_content"}


def test_content_filter_results() -> None:
    """Content filter results of Azure's chunks are kept."""
    safe = {"hate": {"filtered": False}}
    choice = {"index": 0, "delta": {"content": "b"}, "content_filter_results": safe}
    response = streamed(chunk({"content": "a"}), {"id": "r1", "choices": [choice]})

    assert response.text == "ab"
    assert response.generations[0].metadata["content_filter_results"] == safe


def test_delta_fields() -> None:
    """Other fields of a delta become metadata, as in a complete message."""
    response = streamed(chunk({"content": "a", "channel": "final"}), chunk({}, "stop"))

    assert message_in(response).metadata == {"channel": "final"}


def test_delta_with_metadata_only() -> None:
    """A delta with metadata only is kept."""
    found = {"sources": ["a"]}
    response = streamed(chunk({"content": "a"}), chunk({"graph_data": found}), chunk({}, "stop"))

    assert message_in(response).metadata == {"graph_data": found}
    assert message_in(decode(complete({"content": "a", "graph_data": found}))) == message_in(
        response
    )


def test_message_beside_delta_is_ignored() -> None:
    """Perplexity repeats the complete text in each chunk, which is ignored."""
    repeated = {"message": {"content": "ab"}, "index": 0, "finish_reason": "stop", "delta": {}}

    assert streamed(chunk({"content": "ab"}), {"id": "r1", "choices": [repeated]}).text == "ab"


# --- the end of a stream --------------------------------------------------------------------


def test_end_without_done_event() -> None:
    """A finish reason ends a stream without `[DONE]`."""
    assert streamed(chunk({"content": "a"}), chunk({}, "stop"), done=False).text == "a"


def test_end_without_finish_reason() -> None:
    """`[DONE]` ends a stream without a finish reason."""
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": "{}"}}

    assert streamed(chunk({"content": "a"})).finish_reason == "stop"
    assert streamed(chunk({"tool_calls": [call]})).finish_reason == "tool_call"
    head = {"id": "r1", "model": "m", "choices": []}
    assert streamed(head, chunk({"content": "a"})).finish_reason == "stop"


@pytest.mark.parametrize("end", [b"[DONE] ", b" [DONE]", b"[DONE]\r", b'"[DONE]"'])
def test_done_event_variants(end: bytes) -> None:
    """White space, quotes and later events do not affect the end."""
    late = json.dumps({"error": {"message": "late"}}).encode()

    assert streamed(chunk({"content": "a"}), end, b"bye", late, done=False).text == "a"


def test_empty_finish_reason() -> None:
    """An empty finish reason does not complete a stream."""
    with pytest.raises(StreamInterruptedError):
        streamed(chunk({"content": "The answer is"}, ""), done=False)
    assert streamed(chunk({"content": "a"}, ""), chunk({}, "")).finish_reason == "stop"


@pytest.mark.parametrize("rest", [b"", b'{"id":"r1","choi', b"<html>"])
def test_interrupted_stream(rest: bytes) -> None:
    """A stream that ends without its end marker raises."""
    with pytest.raises(StreamInterruptedError, match="ended before its answer did"):
        chunks_of(chunk({"content": "a"}), done=False, rest=rest)


def test_stream_without_content() -> None:
    """`[DONE]` without any chunk raises."""
    with pytest.raises(StreamInterruptedError):
        streamed()


def test_unterminated_last_event() -> None:
    """A complete last event without a blank line is parsed."""
    rest = json.dumps(chunk({"content": "b"}, "stop")).encode()

    assert collect(chunks_of(chunk({"content": "a"}), done=False, rest=rest)).text == "ab"
    ended = chunks_of(chunk({"content": "a"}), chunk({}, "stop"), done=False, rest=b"[DONE]")
    assert collect(ended).text == "a"


def test_groq_interrupted_stream() -> None:
    """An error of Groq next to the choices raises, although `[DONE]` follows."""
    stopped = chunk({}, x_groq={"id": "req_1", "error": "over capacity"})

    with pytest.raises(OverloadedError, match="over capacity") as caught:
        streamed(chunk({"content": "The answer is"}), stopped)
    assert caught.value.retryable


def test_plain_json_error_in_stream() -> None:
    """An error as plain JSON in the stream is raised."""
    rest = json.dumps({"error": {"message": "x", "code": 503}}).encode()

    with pytest.raises(OverloadedError):
        chunks_of(chunk({"content": "a"}), done=False, rest=rest)


def test_complete_answer_in_place_of_stream() -> None:
    """A complete answer instead of a stream is decoded."""
    call = {"id": "c1", "function": {"name": "add", "arguments": "{}"}}
    answer = complete({"content": "x", "tool_calls": [call]}, usage={"prompt_tokens": 3})
    response = collect(chunks_of(done=False, rest=json.dumps(answer, indent=2).encode()))

    assert response.text == "x"
    assert message_in(response).tool_calls == (ToolCall("c1", "add", "{}"),)
    assert (response.finish_reason, response.usage.input_tokens) == ("tool_call", 3)


def test_stream_headers() -> None:
    """Rate limits and request id from the headers are in the first chunk."""
    decoder = StreamDecoder(COMPATIBLE, {"x-request-id": "r", "x-ratelimit-remaining-tokens": "5"})
    first = decoder.feed(json.dumps(chunk({"content": "a"})).encode())

    assert isinstance(first, ChatResponse)
    assert first.metadata.request_id == "r"
    assert first.metadata.rate_limit == RateLimit(tokens_remaining=5)
    assert first.metadata.values is EMPTY
