"""Streams of many calls, with split names, and with repeated text."""

import gc
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import pytest

from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.messages import ProviderPart, ToolCallChunk
from chatclient.chat.response import ChatResponse
from chatclient.providers.anthropic import decoding as anthropic_stream
from chatclient.providers.gemini import decoding as gemini_stream
from chatclient.providers.ollama import model as ollama_codec
from chatclient.providers.openai import (
    chat_stream as openai_stream,
    responses_stream as openai_responses_stream,
)
from chatclient.providers.openai.dialect import Dialect

Event = dict[str, Any]
OPENAI = Dialect("openai")


def response_of(decoder: Any, events: Sequence[Event]) -> ChatResponse:
    aggregator = MessageAggregator()
    for event in events:
        if (chunk := decoder.feed(json.dumps(event).encode())) is not None:
            aggregator.add(chunk)
    return aggregator.response()


def chat_delta(delta: Event, reason: str | None = None) -> Event:
    return {"id": "r", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]}


def fragment(name: str = "", arguments: str = "", index: int | None = 0, **more: Any) -> Event:
    function = {"name": name, "arguments": arguments}
    call = {"index": index, "function": {k: v for k, v in function.items() if v}, **more}
    return chat_delta({"tool_calls": [call]})


def chat(*events: Event) -> ChatResponse:
    end = chat_delta({}, "tool_calls")
    return response_of(openai_stream.StreamDecoder(OPENAI), [*events, end])


# --- many calls -----------------------------------------------------------------------------


def chat_calls(count: int) -> ChatResponse:
    calls = [
        {"index": at, "id": f"c{at}", "function": {"name": "f", "arguments": "{}"}}
        for at in range(count)
    ]
    return chat(chat_delta({"tool_calls": calls}))


def chat_calls_without_ids(count: int) -> ChatResponse:
    call = {"index": 0, "function": {"name": "f", "arguments": "{}"}}
    return chat(chat_delta({"tool_calls": [call] * count}))


def anthropic_calls(count: int) -> ChatResponse:
    events: list[Event] = [{"type": "message_start", "message": {"id": "m"}}]
    for at in range(count):
        block = {"type": "tool_use", "id": f"c{at}", "name": "f", "input": {}}
        events.append({"type": "content_block_start", "index": at, "content_block": block})
    events.append({"type": "message_delta", "delta": {"stop_reason": "tool_use"}})
    return response_of(anthropic_stream.StreamDecoder(), events)


def gemini_calls(count: int) -> ChatResponse:
    parts = [{"functionCall": {"name": "f", "args": {}}}] * count
    event = {"candidates": [{"content": {"parts": parts}, "finishReason": "STOP"}]}
    return response_of(gemini_stream.StreamDecoder(), [event])


def responses_calls(count: int) -> ChatResponse:
    events: list[Event] = []
    for at in range(count):
        item = {"type": "function_call", "id": f"i{at}", "call_id": f"c{at}", "name": "f"}
        for kind in ("added", "done"):
            complete = {**item, "arguments": "{}" if kind == "done" else ""}
            event = {"type": f"response.output_item.{kind}", "output_index": at, "item": complete}
            events.append(event)
    return response_of(openai_responses_stream.StreamDecoder("openai"), events)


def empty_fragments(count: int) -> ChatResponse:
    long = json.dumps({"text": "x" * 50 * count})
    return chat(fragment("f", long, id="c"), *[fragment("", "{}")] * count)


def open_call_then_empty_fragments(count: int) -> ChatResponse:
    return chat(
        fragment("f", '{"text": "' + "x" * 50 * count, id="c"), *[fragment("", "{}")] * count
    )


def repeated_messages(count: int) -> ChatResponse:
    deltas = [chat_delta({"content": "x"})] * 8 * count
    return response_of(
        openai_stream.StreamDecoder(OPENAI), [*deltas, *[complete(content="x")] * count]
    )


def interleaved_names(count: int) -> ChatResponse:
    chunks = [("a", ""), ("b", ""), ("", "{}")]
    calls = [
        fragment(name, arguments, at, id=f"c{at}")
        for name, arguments in chunks
        for at in range(count)
    ]
    return chat(*calls)


def new_message_fields(count: int) -> ChatResponse:
    fields = [{f"field{at}-{part}": at for part in range(5)} for at in range(count)]
    return chat(*[chat_delta({"content": "x", **more}) for more in fields])


def anthropic_opaque_block(count: int) -> ChatResponse:
    block = {"type": "compaction", "content": ""}
    delta = {"type": "compaction_delta", "content": "x" * 1000}
    events: list[Event] = [{"type": "content_block_start", "index": 0, "content_block": block}]
    events += [{"type": "content_block_delta", "index": 0, "delta": delta}] * count
    events += [{"type": "content_block_stop", "index": 0}]
    events += [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]
    return response_of(anthropic_stream.StreamDecoder(), events)


def gemini_event(*parts: Event, **more: Any) -> Event:
    return {"candidates": [{"content": {"parts": list(parts)}, **more}]}


def gemini_pieces(*chunks: Event) -> ChatResponse:
    start: Event = {"functionCall": {"name": "f", "willContinue": True}}
    parts: list[Event] = [
        {"functionCall": {"partialArgs": [each], "willContinue": True}} for each in chunks
    ]
    events = [gemini_event(part) for part in [start, *parts, {"functionCall": {}}]]
    end = gemini_event({"text": ""}, finishReason="STOP")
    return response_of(gemini_stream.StreamDecoder(), [*events, end])


def gemini_string_in_pieces(count: int) -> ChatResponse:
    return gemini_pieces(*[{"jsonPath": "$.a", "stringValue": "x" * 4000}] * count)


def responses_items_without_index(count: int) -> ChatResponse:
    items = [{"type": "web_search_call", "id": f"i{at}"} for at in range(count)]
    events: list[Event] = [{"type": "response.output_item.added", "item": item} for item in items]
    events += [{"type": "response.completed", "response": {"status": "completed", "output": []}}]
    return response_of(openai_responses_stream.StreamDecoder("openai"), events)


def ollama_calls(count: int) -> ChatResponse:
    call = {"function": {"name": "f", "arguments": {}}}
    lines: list[Event] = [{"message": {"tool_calls": [call] * count}, "done": False}]
    lines += [{"message": {"content": ""}, "done": True, "done_reason": "stop"}]
    return response_of(ollama_codec.StreamDecoder(), lines)


def seconds(work: Callable[[int], object], count: int) -> float:
    gc.disable()  # collection takes longer after many tests
    try:
        started = time.process_time()
        work(count)
        return time.process_time() - started
    finally:
        gc.enable()


@pytest.mark.parametrize(
    "answer",
    [
        chat_calls,
        chat_calls_without_ids,
        anthropic_calls,
        gemini_calls,
        responses_calls,
        ollama_calls,
        empty_fragments,
        open_call_then_empty_fragments,
        interleaved_names,
        repeated_messages,
        new_message_fields,
        anthropic_opaque_block,
        gemini_string_in_pieces,
        responses_items_without_index,
    ],
)
def test_decoding_time_is_linear(
    answer: Callable[[int], ChatResponse],
) -> None:
    """An answer with 16 times as many chunks takes far less than 256 times as long."""
    answer(10)
    few = min(seconds(answer, 300) for _ in range(3))

    assert min(seconds(answer, 4800) for _ in range(2)) < 40 * max(few, 0.001)


@pytest.mark.parametrize(
    ("answer", "calls"),
    [
        (chat_calls, 30),
        (chat_calls_without_ids, 30),
        (anthropic_calls, 30),
        (gemini_calls, 30),
        (responses_calls, 30),
        (ollama_calls, 30),
        (interleaved_names, 30),
        (empty_fragments, 1),
        (gemini_string_in_pieces, 1),
    ],
)
def test_many_calls(answer: Callable[[int], ChatResponse], calls: int) -> None:
    """Every call of a large answer is decoded."""
    assert len(answer(30).message.tool_calls) == calls


@pytest.mark.parametrize(
    ("chunks", "arguments"),
    [
        ([("$.a", "x"), ("$.a", "y"), ("$.b[0]", "z"), ("$.a", "!")], {"a": "xy!", "b": ["z"]}),
        ([("$.a", "x"), ("$.a", "y"), ("$.a.b", "z")], {"a": {"b": "z"}}),
        ([("$.a", "x"), ("$.a", "y"), ("$.a", 1)], {"a": 1}),
        (
            [("$.a[0].b", "x"), ("$.a[0].b", "y"), ("$.a[1].b", "z")],
            {"a": [{"b": "xy"}, {"b": "z"}]},
        ),
    ],
)
def test_argument_fragments_with_paths(chunks: list[tuple[str, object]], arguments: Event) -> None:
    """String fragments are appended at their path; other values replace it."""
    named = [
        {"jsonPath": path, "stringValue" if isinstance(value, str) else "numberValue": value}
        for path, value in chunks
    ]
    [call] = gemini_pieces(*named).message.tool_calls

    assert json.loads(call.arguments) == arguments


# --- names in fragments ---------------------------------------------------------------------


@pytest.mark.parametrize(
    "events",
    [
        [fragment("delete", id="c"), fragment("_draft"), fragment("", '{"id": 1}')],
        [fragment("delete", id="c"), fragment("_draft", '{"id": 1}')],
        [fragment("delete", id="c"), fragment("_dr", id="c"), fragment("aft", '{"id": 1}')],
        [fragment("delete", id="c"), fragment("delete_draft", id="c"), fragment("", '{"id": 1}')],
        [fragment("delete_draft", id="c"), fragment("delete_draft", '{"id": 1}', id="c")],
        [fragment("delete"), fragment("_draft"), fragment("", '{"id": 1}')],
        [fragment("delete", index=None, id="c"), fragment("_draft", '{"id": 1}', index=None)],
    ],
)
def test_split_tool_name(events: list[Event]) -> None:
    """Fragments of `delete_draft` never give a call of `delete`."""
    [call] = chat(*events).message.tool_calls

    assert (call.name, json.loads(call.arguments)) == ("delete_draft", {"id": 1})


PARALLEL = [
    {"index": at, "id": f"c{at}", "function": {"name": name}}
    for at, name in enumerate(["de", "re"])
]


@pytest.mark.parametrize(
    "events",
    [
        [
            *(fragment("de", index=0, id="c0"), fragment("re", index=1, id="c1")),
            *(fragment("lete", index=0), fragment("ad", index=1)),
            *(fragment("", '{"id": 0}', 0), fragment("", '{"id": 1}', 1)),
        ],
        [
            *(fragment("de", index=0, id="c0"), fragment("read", '{"id": 1}', 1, id="c1")),
            fragment("lete", '{"id": 0}', 0),
        ],
        [
            chat_delta({"tool_calls": PARALLEL}),
            *(fragment("ad", '{"id": 1}', 1), fragment("lete", '{"id": 0}', 0)),
        ],
        [
            *(fragment("de", index=None, id="c0"), fragment("re", index=None, id="c1")),
            fragment("lete", '{"id": 0}', None, id="c0"),
            fragment("ad", '{"id": 1}', None, id="c1"),
        ],
    ],
)
def test_interleaved_tool_names(events: list[Event]) -> None:
    """Each fragment joins the name of its call, and calls keep their order."""
    calls = chat(*events).message.tool_calls

    assert [call.name for call in calls] == ["delete", "read"]
    assert [json.loads(call.arguments) for call in calls] == [{"id": 0}, {"id": 1}]


@pytest.mark.parametrize(
    "between",
    [
        {},
        {"content": "Wait."},
        {"role": "assistant", "content": "Wait."},
        {"reasoning_content": "Hm."},
        {"tool_calls": []},
        {"tool_calls": [{"index": 0, "id": None, "function": {"name": None, "arguments": None}}]},
    ],
)
def test_chunks_between_name_fragments(between: Event) -> None:
    """Text, reasoning and empty chunks may occur between the fragments of a name."""
    events = [fragment("delete", id="c"), chat_delta(between), fragment("_draft")]
    [call] = chat(*events, fragment("", '{"id": 1}')).message.tool_calls

    assert (call.name, call.arguments) == ("delete_draft", '{"id": 1}')


def test_name_fragments_in_one_chunk() -> None:
    """A second fragment has the index of the first and no id."""
    first = {"index": 0, "id": "c", "function": {"name": "delete"}}
    second = {"index": 0, "function": {"name": "_draft"}}
    [call] = chat(chat_delta({"tool_calls": [first, second]})).message.tool_calls

    assert call.name == "delete_draft"


def test_call_after_the_finish_reason() -> None:
    """A name after the finish reason is complete at the end of the stream."""
    decoder = openai_stream.StreamDecoder(OPENAI)
    early = [chat_delta({"content": "Hi"}), chat_delta({}, "stop"), fragment("f", id="c")]
    chunks = [decoder.feed(json.dumps(event).encode()) for event in early]
    aggregator = MessageAggregator()
    for chunk in [*chunks, *decoder.finish(b"")]:
        if chunk is not None:
            aggregator.add(chunk)

    assert [call.name for call in aggregator.response().message.tool_calls] == ["f"]


def test_chunks_contain_complete_names() -> None:
    """No chunk contains part of a name; a call without arguments ends with the stream."""
    decoder = openai_stream.StreamDecoder(OPENAI)
    first = decoder.feed(json.dumps(fragment("delete", id="c")).encode())
    second = decoder.feed(json.dumps(fragment("_draft")).encode())
    end = decoder.feed(json.dumps(chat_delta({}, "tool_calls")).encode())

    assert isinstance(first, ChatResponse)  # with the id of the response
    assert (first.generations, second) == ((), None)
    assert isinstance(end, ChatResponse)
    [part] = end.generations[0].output.parts
    assert isinstance(part, ToolCallChunk)
    assert part.name == "delete_draft"


@pytest.mark.parametrize(
    "events",
    [
        [fragment("a", id="1"), fragment("b", id="2")],
        [fragment("a", id="1", index=0), fragment("b", id="2", index=1)],
        [fragment("a", "{}", id="1"), fragment("b", "{}")],
        [chat_delta({"tool_calls": [{"function": {"name": name}} for name in "ab"]})],
        [fragment("a", id="1"), chat_delta({"content": "and"}), fragment("b", id="2")],
    ],
)
def test_new_call_boundaries(events: list[Event]) -> None:
    """A new id, a new index, or complete arguments start another call."""
    assert [call.name for call in chat(*events).message.tool_calls] == ["a", "b"]


# --- repeated text --------------------------------------------------------------------------


def complete(**message: Any) -> Event:
    choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", **message}}
    return {"id": "r", "object": "chat.completion", "choices": [choice]}


CALL = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}


@pytest.mark.parametrize(
    ("events", "text", "reasoning", "calls"),
    [
        ([chat_delta({"content": "Hel"}), chat_delta({"content": "lo"})], "Hello", "", 0),
        ([chat_delta({"role": "assistant"})], "Hello", "", 0),
        ([chat_delta({"content": "Hel"})], "Hello", "", 0),
        (
            [chat_delta({"reasoning_content": "Hm"}), chat_delta({"content": "Hello"})],
            *("Hello",),
            "Hm",
            0,
        ),
        ([chat_delta({"content": "Hello"}), chat_delta({"tool_calls": [CALL]})], "Hello", "", 1),
    ],
)
def test_final_message_is_not_repeated(
    events: list[Event], text: str, reasoning: str, calls: int
) -> None:
    """MiniMax ends a stream with the complete message; no content is duplicated."""
    message: Event = {"content": "Hello"}
    if reasoning:
        message["reasoning_content"] = reasoning
    if calls:
        message["tool_calls"] = [CALL]

    answer = response_of(
        openai_stream.StreamDecoder(OPENAI), [*events, complete(**message)]
    ).message

    thoughts = "".join(each.text for each in answer.reasoning)
    assert (answer.text, thoughts, len(answer.tool_calls)) == (text, reasoning, calls)


DETAILS = [{"type": "reasoning.text", "text": "Hm", "index": 0}]
PARTS = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]


@pytest.mark.parametrize(
    ("deltas", "message", "text"),
    [
        (["\n\nHel", "lo"], {"content": "Hello"}, "\n\nHello"),
        (["Hello "], {"content": "Hello"}, "Hello "),
        (["Hel", "lo"], {"content": PARTS}, "Hello"),
        (["Hel"], {"content": PARTS}, "Hello"),
        (["Hello"], {"content": "Hello, world"}, "Hello, world"),
    ],
)
def test_final_message_in_another_form(deltas: list[str], message: Event, text: str) -> None:
    """Streamed text is kept; the final message adds only a missing end."""
    events = [chat_delta({"content": delta}) for delta in deltas]
    for first in ([], [chat_delta({"role": "assistant"})]):
        decoder = openai_stream.StreamDecoder(OPENAI)
        answer = response_of(decoder, [*first, *events, complete(**message)])
        assert answer.message.text == text


def test_message_after_the_finish_reason() -> None:
    """The final message may follow the finish reason, also repeatedly."""
    events = [chat_delta({"content": "Hello"}), chat_delta({}, "stop")]
    events += [complete(content="Hello", reasoning_details=DETAILS)] * 2
    message = response_of(openai_stream.StreamDecoder(OPENAI), events).message

    assert message.text == "Hello"
    [part] = [part for part in message.parts if isinstance(part, ProviderPart)]
    assert part.data["reasoning_details"] == DETAILS


@pytest.mark.parametrize("chunks", [["Hel", "lo"], ["Hel", "Hello"], ["Hello", "Hello"]])
def test_messages_instead_of_deltas(chunks: list[str]) -> None:
    """Without deltas a message is the next fragment, or the complete text so far."""
    events = [{"id": "r", "choices": [{"index": 0, "message": {"content": p}}]} for p in chunks]

    assert chat(*events).message.text == "Hello"


def test_reasoning_details_are_not_duplicated() -> None:
    """Reasoning details to send back unchanged occur once."""
    events = [chat_delta({"reasoning_details": DETAILS}), chat_delta({"content": "Hello"})]
    message = response_of(
        openai_stream.StreamDecoder(OPENAI),
        [*events, complete(content="Hello", reasoning_details=DETAILS)],
    ).message

    [part] = [part for part in message.parts if isinstance(part, ProviderPart)]
    assert part.data["reasoning_details"] == DETAILS


@pytest.mark.parametrize(
    ("events", "id"),
    [
        ([fragment("f", id="c")], "c"),
        ([fragment("f", id="c"), chat_delta({}, "tool_calls")], "c"),
        ([fragment("f", '{"id": 1}', id="c")], "c"),
        ([fragment("f", '{"id": 1}', id="c")], "another"),
    ],
)
def test_final_message_completes_calls(events: list[Event], id: str) -> None:
    """The final message adds the arguments of a call whose name was streamed."""
    call = {"id": id, "function": {"name": "f", "arguments": '{"id": 1}'}}
    decoder = openai_stream.StreamDecoder(OPENAI)
    [made] = response_of(
        decoder, [*events, complete(content="", tool_calls=[call])]
    ).message.tool_calls

    assert (made.id, made.name, made.arguments) == ("c", "f", '{"id": 1}')


@pytest.mark.parametrize(
    ("first", "deltas", "expected"),
    [
        ("Hello", ["Hello", " world"], "Hello world"),
        ("Hello", ["Hel", "lo world"], "Hello world"),
        ("Hello", [" world"], "Hello world"),
        ("Hello", ["Help"], "HelloHelp"),
        ("Hello", ["Hel", "p"], "HelloHelp"),
        ("ha", ["h"], "hah"),
        ("Hello", [], "Hello"),
        ("", ["Hello"], "Hello"),
    ],
)
@pytest.mark.parametrize(("kind", "key"), [("text", "text"), ("thinking", "thinking")])
def test_block_start_with_text(
    kind: str, key: str, first: str, deltas: list[str], expected: str
) -> None:
    """Deltas that repeat the initial text add nothing; others are appended."""
    events: list[Event] = [{"type": "message_start", "message": {"id": "m"}}]
    events.append(
        {"type": "content_block_start", "index": 0, "content_block": {"type": kind, key: first}}
    )
    events += [
        {"type": "content_block_delta", "index": 0, "delta": {"type": f"{kind}_delta", key: text}}
        for text in deltas
    ]
    events.append({"type": "content_block_stop", "index": 0})
    events.append({"type": "message_delta", "delta": {"stop_reason": "end_turn"}})

    message = response_of(anthropic_stream.StreamDecoder(), events).message

    assert (message.text or "".join(each.text for each in message.reasoning)) == expected
