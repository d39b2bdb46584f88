"""Chat Completions answers as responses, whole and streamed, by data."""

import base64
import json
from typing import Any

import pytest
from replay import collect

from chatclient.errors import (
    ContentFilterError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    StreamInterruptedError,
)
from chatclient.messages import AssistantMessage, Media, ProviderPart, Reasoning, ToolCall
from chatclient.providers.openai import (
    COMPATIBLE,
    OPENAI,
    StreamDecoder,
    decode_response,
    rate_limit,
)
from chatclient.providers.openai_dialect import REASONING_FIELD
from chatclient.response import ChatResponse, RateLimit, Usage
from chatclient.values import EMPTY


def whole(message: dict[str, Any], finish_reason: str | None = "stop", **more: Any) -> Any:
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
    """Return what a stream of *events* comes to."""
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
    """The common word for each provider's own, which is kept beside it."""
    generation = decode(whole({"content": "x"}, native)).generations[0]

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
def test_calls_tell_more_than_the_word(native: str | None, reason: str) -> None:
    """A forced call ends with "stop" at some servers; a call cut off stays cut off."""
    call = {"id": "c1", "function": {"name": "add", "arguments": "{}"}}

    assert decode(whole({"tool_calls": [call]}, native)).finish_reason == reason


def test_a_refusal_is_a_filtered_answer() -> None:
    """A refusal is text that is marked as one, whole or streamed."""
    part = ProviderPart("openai", {"refusal": "no"}, "no")
    response = decode(whole({"content": None, "refusal": "no"}))

    assert message_in(response) == AssistantMessage([part])
    assert (response.text, response.finish_reason) == ("no", "content_filter")

    response = streamed(chunk({"refusal": "n"}), chunk({"refusal": "o"}), chunk({}, "stop"))
    assert (response.text, response.finish_reason) == ("no", "content_filter")


# --- parts ----------------------------------------------------------------------------------


@pytest.mark.parametrize("field", ["reasoning_content", "reasoning"])
def test_reasoning_comes_in_two_fields(field: str) -> None:
    """Which one it was is remembered for the way back."""
    expected = AssistantMessage(
        [Reasoning("so what", provider="openai"), "x"], metadata={REASONING_FIELD: field}
    )

    assert message_in(decode(whole({field: "so what", "content": "x"}))) == expected
    pieces = [chunk({field: "so "}), chunk({field: "what"}), chunk({"content": "x"}, "stop")]
    assert message_in(streamed(*pieces)) == expected


def test_content_may_be_a_list() -> None:
    """Thoughts and text in parts, and parts that only the provider understands."""
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

    assert message_in(decode(whole({"content": content}))).parts == (
        Reasoning("so", provider="openai"),
        Reasoning("plain", provider="openai"),
        Reasoning("", provider="openai", data=referring),
        "x",
        ProviderPart("openai", {"type": "reference", "reference_ids": [1]}),
    )


def test_content_may_be_the_json_that_was_asked_for() -> None:
    """What a server has parsed for us is spelled again, letters as letters."""
    assert decode(whole({"content": {"a": "Köln"}})).text == '{"a":"Köln"}'


def test_what_only_the_provider_knows_is_kept() -> None:
    """Citations and the provider's own tools are parts, other fields metadata."""
    message = {"content": "x", "annotations": [{"a": 1}], "executed_tools": [{"b": 2}], "parsed": 3}
    found = message_in(decode(whole(message)))

    assert found.parts == (
        "x",
        ProviderPart("openai", {"annotations": [{"a": 1}]}),
        ProviderPart("openai", {"executed_tools": [{"b": 2}]}),
    )
    assert found.metadata == {"parsed": 3}


def test_empty_fields_are_nothing() -> None:
    """Some servers fill in fields that there is nothing for."""
    message: dict[str, Any] = {
        "content": "x",
        "refusal": "",
        "annotations": [],
        "audio": {"data": "", "expires_at": 0, "id": "", "transcript": ""},
        "function_call": {"arguments": "", "name": ""},
        "tool_calls": None,
        "reasoning": None,
    }

    assert message_in(decode(whole(message))) == AssistantMessage("x")


def test_pictures_are_media() -> None:
    """Image models answer with data URLs or addresses."""
    data = base64.b64encode(b"\x89PNG").decode()
    urls = [f"data:image/webp;base64,{data}", f"data:;base64,{data}", "https://x.org/a.png"]
    images = [{"type": "image_url", "image_url": {"url": url}} for url in urls]

    assert message_in(decode(whole({"content": "", "images": images}))).media == (
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
def test_a_spoken_answer_is_a_sound_and_its_words(sound: bytes, mime_type: str) -> None:
    """The transcript is the text; the provider's id goes back in the next request."""
    data = base64.b64encode(sound).decode()
    audio = {"id": "audio_1", "data": data, "transcript": "hi", "expires_at": 9}

    assert message_in(decode(whole({"content": None, "audio": audio}))).parts == (
        "hi",
        Media(mime_type, sound, "audio_1", metadata={"expires_at": 9}),
        ProviderPart("openai", {"audio": {"id": "audio_1"}}),
    )


def test_a_spoken_answer_is_streamed() -> None:
    """Words and sound come piece by piece, in turns; they are one text and one sound."""
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
def test_calls_are_read_in_every_form(call: dict[str, Any], expected: ToolCall) -> None:
    """Arguments as text, as an object or missing; custom tools with free text."""
    assert message_in(decode(whole({"tool_calls": [call]}))).tool_calls == (expected,)


def test_calls_without_an_id_get_one() -> None:
    """No result could be tied to them otherwise."""
    call = {"id": "", "function": {"name": "add", "arguments": "{}"}}
    first, second = message_in(decode(whole({"tool_calls": [call, call]}))).tool_calls

    assert first.id.startswith("call_")
    assert first.id != second.id


def test_function_calls_of_old_are_tool_calls() -> None:
    """What was called a function call before there were tools, whole or streamed."""
    call = {"name": "add", "arguments": '{"a":1}'}
    (found,) = message_in(decode(whole({"function_call": call}, "function_call"))).tool_calls
    pieces = [{"name": "add", "arguments": ""}, {"arguments": '{"a"'}, {"arguments": ":1}"}]
    response = streamed(
        *(chunk({"function_call": piece}) for piece in pieces), chunk({}, "function_call")
    )
    (joined,) = message_in(response).tool_calls

    assert (found.name, found.arguments) == (joined.name, joined.arguments) == ("add", '{"a":1}')
    assert response.finish_reason == "tool_call"


def test_the_input_of_a_custom_tool_is_streamed() -> None:
    """Free text comes in pieces as arguments do."""
    first = {"index": 0, "id": "c1", "type": "custom", "custom": {"name": "math", "input": ""}}
    rest = {"index": 0, "custom": {"input": "4 + 4"}}
    response = streamed(
        chunk({"tool_calls": [first]}), chunk({"tool_calls": [rest]}), chunk({}, "tool_calls")
    )

    assert message_in(response).tool_calls == (ToolCall("c1", "math", "4 + 4", {"type": "custom"}),)


# --- beside the content ---------------------------------------------------------------------


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
def test_usage_is_read_in_every_form(usage: Any, expected: Usage) -> None:
    """Cached and reasoning tokens stand in many places; reasoning counts as output."""
    found = decode(whole({"content": "x"}, usage=usage)).usage

    assert (found.input_tokens, found.output_tokens) == (
        expected.input_tokens,
        expected.output_tokens,
    )
    assert found.cache_read_tokens == expected.cache_read_tokens
    assert found.cache_write_tokens == expected.cache_write_tokens
    assert found.reasoning_tokens == expected.reasoning_tokens
    assert found.native == (usage or {})


def test_groq_has_usage_in_a_place_of_its_own() -> None:
    """In streams of Groq, usage stands in `x_groq`."""
    usage = {"prompt_tokens": 3, "completion_tokens": 2}
    response = streamed(chunk({"content": "x"}), chunk({}, "stop", x_groq={"usage": usage}))

    assert (response.usage.input_tokens, response.usage.output_tokens) == (3, 2)
    assert decode(whole({"content": "x"}, x_groq=None)).usage == Usage()


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
def test_limits_are_read_from_headers(headers: dict[str, str], expected: RateLimit | None) -> None:
    """Each service counts in its own way; a time without a unit is not guessed at."""
    assert rate_limit(headers) == expected


def test_metadata_tells_the_rest() -> None:
    """Id, model, request id, and whatever else came; not the padding."""
    data = whole({"content": "x"}, service_tier="flex", obfuscation="xyz", p="abc", created=None)
    metadata = decode(data, x_request_id="req_1").metadata

    assert (metadata.id, metadata.model, metadata.request_id) == ("r1", "m", "req_1")
    assert metadata.values == {"service_tier": "flex"}
    assert decode({"choices": [{"message": {"content": "x"}}]}).metadata.id == ""


def test_several_answers_are_told_apart() -> None:
    """With n > 1 there is a generation for each, also where the index is missing."""
    choices = [{"message": {"content": text}} for text in "ab"]

    assert [g.index for g in decode({"choices": choices}).generations] == [0, 1]
    assert [g.output.text for g in decode({"choices": choices}).generations] == ["a", "b"]


# --- errors in disguise ---------------------------------------------------------------------


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
def test_an_error_may_come_with_status_200(data: Any, kind: type[ProviderError]) -> None:
    """The body counts, whole or in a stream."""
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
def test_json_that_is_no_completion_is_an_error_that_says_so(data: Any) -> None:
    """An answer of no known form never leaks an error of Python's."""
    with pytest.raises(InvalidResponseError, match=r"openai answered .* not a response"):
        decode(data)


@pytest.mark.parametrize("choices", [[], None])
def test_a_completion_without_a_choice_is_asked_for_again(choices: Any) -> None:
    """Gateways whose model failed have an empty list, or null."""
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
def test_an_event_that_is_no_chunk_is_an_error_that_says_so(event: bytes) -> None:
    """An event of no known form never leaks an error of Python's."""
    with pytest.raises(InvalidResponseError, match=r"openai answered .* not a response"):
        StreamDecoder(OPENAI).feed(event)


def test_an_event_called_error_is_one() -> None:
    """Whatever its data look like."""
    with pytest.raises(OverloadedError, match="x"):
        StreamDecoder(OPENAI).feed(b'{"reason": "x"}', "error")


# --- streams --------------------------------------------------------------------------------


def test_plain_text_comes_as_plain_text() -> None:
    """Nearly every chunk is nothing but text, and is handed on as such."""
    first, *rest = chunks_of(chunk({"content": "a"}), chunk({"content": "b"}), chunk({}, "stop"))

    assert isinstance(first, ChatResponse)
    assert rest[0] == "b"
    assert first.metadata.id == "r1"


def test_a_server_without_ids_streams_plain_text_all_the_same() -> None:
    """The first chunk tells the metadata, whether or not there is an id."""
    pieces = [{"choices": [{"delta": {"content": text}}]} for text in "ab"]
    _, second, _ = chunks_of(*pieces)

    assert second == "b"


def test_an_id_that_changes_is_taken() -> None:
    """Azure's first chunk has none yet."""
    first = {"id": "", "model": "", "choices": [], "prompt_filter_results": [1]}
    response = streamed(first, chunk({"content": "a"}), chunk({}, "stop"))

    assert (response.metadata.id, response.metadata.model) == ("r1", "m")
    assert response.metadata.values["prompt_filter_results"] == [1]


def test_what_comes_late_is_taken() -> None:
    """A chunk with something that chunks have not as a rule tells it."""
    late = {"id": "r1", "choices": [], "moderation": {"flagged": False}}
    response = streamed(chunk({"content": "a"}), chunk({}, "stop"), late)

    assert response.metadata.values["moderation"] == {"flagged": False}


def test_chunks_that_say_nothing_are_passed_over() -> None:
    """Keep-alives and empty deltas are no chunks."""
    empty = {"id": "r1", "choices": [{"index": 0, "delta": {}, "finish_reason": None}]}

    assert len(chunks_of(chunk({"content": "a"}), empty, b"", chunk({}, "stop"))) == 2


def test_several_answers_are_streamed_at_once() -> None:
    """With n > 1 each chunk says to which answer it belongs, and each answer has its end."""

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


def test_log_probabilities_add_up() -> None:
    """Each chunk has those of its tokens, the last one those of all."""

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
    """The pieces of a detail become one, as it has to go back; others stay apart."""

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
    """Return one of LiteLLM's blocks of thought."""
    return {"type": "thinking", "thinking": text, "signature": signature}


def test_signed_blocks_of_thought_are_joined() -> None:
    """LiteLLM streams them in pieces, too; a signature ends each."""

    def piece(block: Any) -> Any:
        return chunk({"reasoning_content": block["thinking"], "thinking_blocks": [block]})

    redacted = {"type": "redacted_thinking", "data": "e"}
    pieces = [thinking("so "), thinking("what"), thinking("", "s"), thinking("then", "t")]
    response = streamed(*map(piece, pieces), chunk({"thinking_blocks": [redacted]}, "stop"))
    blocks = [thinking("so what", "s"), thinking("then", "t"), redacted]
    message = {"reasoning_content": "so whatthen", "thinking_blocks": blocks}

    assert message_in(response) == message_in(decode(whole(message)))
    assert message_in(response).parts[-1] == ProviderPart("openai", {"thinking_blocks": blocks})


def summary(text: str, signature: str = "") -> Any:
    """Return content as Databricks has it where Claude thinks."""
    piece = {"type": "summary_text", "text": text, "signature": signature}
    return {"content": [{"type": "reasoning", "summary": [piece]}]}


def test_thoughts_in_the_content_are_shown_and_kept() -> None:
    """A stream sends them in pieces, of which one whole goes back."""
    content = [*summary("so what", "s")["content"], {"type": "text", "text": "x"}]
    response = streamed(
        chunk(summary("so ")),
        chunk(summary("what")),
        chunk(summary("", "s")),
        chunk({"content": "x"}),
    )
    part = Reasoning(provider="openai", data=content[0])

    assert message_in(response) == message_in(decode(whole({"content": content})))
    assert message_in(response).parts == (Reasoning("so what", provider="openai"), part, "x")


def test_thoughts_in_the_content_may_be_unsigned() -> None:
    """Then they last until something else is said, or until the end."""
    kept = Reasoning(provider="openai", data=summary("so what")["content"][0])
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": "{}"}}
    pieces = [chunk(summary("so ")), chunk(summary("what"))]

    for last in (chunk({}, "stop"), chunk({"tool_calls": [call]}, "stop")):
        assert message_in(streamed(*pieces, last)).parts[1] == kept


def test_what_came_in_the_last_chunk_is_kept() -> None:
    """Some servers stream an answer in one chunk, its end included."""
    response = streamed(chunk({"reasoning_content": "so what"}, "stop"))

    assert message_in(response).metadata == {REASONING_FIELD: "reasoning_content"}


def test_what_a_filter_found_is_kept() -> None:
    """Azure tells with each chunk how harmless it is."""
    safe = {"hate": {"filtered": False}}
    choice = {"index": 0, "delta": {"content": "b"}, "content_filter_results": safe}
    response = streamed(chunk({"content": "a"}), {"id": "r1", "choices": [choice]})

    assert response.text == "ab"
    assert response.generations[0].metadata["content_filter_results"] == safe


def test_fields_of_a_delta_are_kept() -> None:
    """What a streamed message has beside its parts is metadata, as in a whole one."""
    response = streamed(chunk({"content": "a", "channel": "final"}), chunk({}, "stop"))

    assert message_in(response).metadata == {"channel": "final"}


def test_fields_of_a_delta_that_says_nothing_else_are_kept() -> None:
    """Some servers have what they found, or parsed, in a chunk of its own."""
    found = {"sources": ["a"]}
    response = streamed(chunk({"content": "a"}), chunk({"graph_data": found}), chunk({}, "stop"))

    assert message_in(response).metadata == {"graph_data": found}
    assert message_in(decode(whole({"content": "a", "graph_data": found}))) == message_in(response)


def test_a_message_beside_the_delta_is_not_said_twice() -> None:
    """Perplexity repeats in each chunk everything said so far."""
    repeated = {"message": {"content": "ab"}, "index": 0, "finish_reason": "stop", "delta": {}}

    assert streamed(chunk({"content": "ab"}), {"id": "r1", "choices": [repeated]}).text == "ab"


# --- the end of a stream --------------------------------------------------------------------


def test_a_stream_may_end_without_a_word() -> None:
    """A finish reason is enough; not every server says that it is done."""
    assert streamed(chunk({"content": "a"}), chunk({}, "stop"), done=False).text == "a"


def test_a_stream_may_end_without_a_reason() -> None:
    """A server that says it is done has ended, though it never says why."""
    call = {"index": 0, "id": "c1", "function": {"name": "add", "arguments": "{}"}}

    assert streamed(chunk({"content": "a"})).finish_reason == "stop"
    assert streamed(chunk({"tool_calls": [call]})).finish_reason == "tool_call"
    head = {"id": "r1", "model": "m", "choices": []}
    assert streamed(head, chunk({"content": "a"})).finish_reason == "stop"


@pytest.mark.parametrize("end", [b"[DONE] ", b" [DONE]", b"[DONE]\r", b'"[DONE]"'])
def test_the_end_is_the_end_whatever_is_around_it(end: bytes) -> None:
    """White space, quotes, and events that follow change nothing about the answer."""
    late = json.dumps({"error": {"message": "late"}}).encode()

    assert streamed(chunk({"content": "a"}), end, b"bye", late, done=False).text == "a"


def test_an_empty_finish_reason_finishes_nothing() -> None:
    """Some servers send one with every chunk: a stream cut off is still an error."""
    with pytest.raises(StreamInterruptedError):
        streamed(chunk({"content": "The answer is"}, ""), done=False)
    assert streamed(chunk({"content": "a"}, ""), chunk({}, "")).finish_reason == "stop"


@pytest.mark.parametrize("rest", [b"", b'{"id":"r1","choi', b"<html>"])
def test_a_stream_that_just_ends_is_an_error(rest: bytes) -> None:
    """Silence is no answer, and neither is half an event."""
    with pytest.raises(StreamInterruptedError, match="ended before its answer did"):
        chunks_of(chunk({"content": "a"}), done=False, rest=rest)


def test_a_stream_without_an_answer_is_an_error() -> None:
    """Being done without having begun is no answer either."""
    with pytest.raises(StreamInterruptedError):
        streamed()


def test_the_last_event_needs_no_blank_line() -> None:
    """What the end of the stream leaves over is read, if it is whole."""
    rest = json.dumps(chunk({"content": "b"}, "stop")).encode()

    assert collect(chunks_of(chunk({"content": "a"}), done=False, rest=rest)).text == "ab"
    ended = chunks_of(chunk({"content": "a"}), chunk({}, "stop"), done=False, rest=b"[DONE]")
    assert collect(ended).text == "a"


def test_a_stream_that_was_stopped_early_is_no_whole_answer() -> None:
    """Groq says so beside the choices, and that it is done."""
    stopped = chunk({}, x_groq={"id": "req_1", "error": "over capacity"})

    with pytest.raises(OverloadedError, match="over capacity") as caught:
        streamed(chunk({"content": "The answer is"}), stopped)
    assert caught.value.retryable


def test_an_error_at_the_end_needs_no_event() -> None:
    """Some servers write an error as plain JSON into the stream."""
    rest = json.dumps({"error": {"message": "x", "code": 503}}).encode()

    with pytest.raises(OverloadedError):
        chunks_of(chunk({"content": "a"}), done=False, rest=rest)


def test_a_whole_answer_may_come_in_place_of_a_stream() -> None:
    """A server that knows no streams is understood all the same."""
    call = {"id": "c1", "function": {"name": "add", "arguments": "{}"}}
    answer = whole({"content": "x", "tool_calls": [call]}, usage={"prompt_tokens": 3})
    response = collect(chunks_of(done=False, rest=json.dumps(answer, indent=2).encode()))

    assert response.text == "x"
    assert message_in(response).tool_calls == (ToolCall("c1", "add", "{}"),)
    assert (response.finish_reason, response.usage.input_tokens) == ("tool_call", 3)


def test_headers_tell_a_stream_s_limits_and_id() -> None:
    """They belong to the first chunk."""
    decoder = StreamDecoder(COMPATIBLE, {"x-request-id": "r", "x-ratelimit-remaining-tokens": "5"})
    first = decoder.feed(json.dumps(chunk({"content": "a"})).encode())

    assert isinstance(first, ChatResponse)
    assert first.metadata.request_id == "r"
    assert first.metadata.rate_limit == RateLimit(tokens_remaining=5)
    assert first.metadata.values is EMPTY
