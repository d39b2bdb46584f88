"""Aggregation of stream chunks to a response and to events."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient.chat.aggregator import MessageAggregator
from chatclient.chat.events import (
    ReasoningDelta,
    ReasoningSigned,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    events_of,
)
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    Generation,
    RateLimit,
    Usage,
)

IMAGE = Media("image/png", b"\x89PNG")


def fragment(
    index: int | None = None, id: str = "", name: str = "", arguments: str = ""
) -> ToolCallChunk:
    return ToolCallChunk(index, id, name, arguments)


def chunk(*parts: Part, index: int = 0, **metadata: Any) -> ChatResponse:
    """Return a chunk with *parts* of one generation."""
    generation = Generation(AssistantMessage(parts), index=index)
    return ChatResponse((generation,), ChatResponseMetadata(**metadata))


def aggregated(chunks: Iterable[ChatResponse | str]) -> ChatResponse:
    aggregator = MessageAggregator()
    for each in chunks:
        aggregator.add(each)
    return aggregator.response()


def parts_of(*parts: Part) -> tuple[Part, ...]:
    """Return the parts of a message from *parts* streamed one by one."""
    output = aggregated(chunk(part) for part in parts).output
    return output.parts if output is not None else ()


def parts_together(*parts: Part) -> tuple[Part, ...]:
    """Return the parts of a message from *parts* in one chunk."""
    return aggregated([chunk(*parts)]).generations[0].output.parts


# --- any chunking ---------------------------------------------------------------------------

TEXT = st.text(min_size=1, max_size=6)
BLOCKS = st.lists(
    st.one_of(
        TEXT,
        st.builds(Reasoning, TEXT, TEXT, st.just("anthropic")),
        st.builds(ToolCall, st.just(""), TEXT, st.text(max_size=8)),
        st.just(IMAGE),
        st.builds(ProviderPart, TEXT, st.just({"type": "search"})),
    ),
    max_size=5,
)
STYLES = st.sampled_from(["index", "repeated", "bare", "one index"])


def complete_message(blocks: list[Any]) -> AssistantMessage:
    """Return the message of *blocks*: calls with distinct ids, no adjacent texts."""
    parts: list[Any] = []
    for number, block in enumerate(blocks):
        if isinstance(block, str) and parts and isinstance(parts[-1], str):
            continue
        parts.append(replace(block, id=f"id{number}") if isinstance(block, ToolCall) else block)
    return AssistantMessage(parts)


def fragments_of_text(data: st.DataObject, text: str) -> list[str]:
    """Split *text* at random places; empty fragments are possible."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def call_fragments(
    data: st.DataObject, call: ToolCall, number: int, style: str
) -> list[ToolCallChunk]:
    """Split *call* in one of the forms that servers use."""
    index = {"index": number, "one index": 0}.get(style)
    first, *rest = fragments_of_text(data, call.arguments)
    head = ToolCallChunk(index, call.id, call.name, first)
    repeated = (call.id, call.name) if style == "repeated" else ("", "")
    return [head, *(ToolCallChunk(index, *repeated, piece) for piece in rest)]


def fragments_of(data: st.DataObject, message: AssistantMessage) -> list[Part]:
    """Split all parts of *message* in the form of one server."""
    style = data.draw(STYLES)
    fragments: list[Part] = []
    for number, part in enumerate(message.parts):
        match part:
            case str():
                fragments += fragments_of_text(data, part)
            case Reasoning(text=text):
                pieces = [
                    Reasoning(piece, None, "anthropic") for piece in fragments_of_text(data, text)
                ]
                fragments += [*pieces, replace(part, text="")]
            case ToolCall():
                fragments += call_fragments(data, part, number, style)
            case _:
                fragments.append(part)
    return fragments


@pytest.mark.feature(
    "stream-merge-message-aggregator", "stream-merge-text-concatenated-metadata-merged"
)
@given(BLOCKS, st.data())
def test_any_chunking_gives_the_same_message(blocks: list[Any], data: st.DataObject) -> None:
    """Any chunking gives the parts of the complete message in order."""
    message = complete_message(blocks)
    fragments = fragments_of(data, message)

    chunks = [ChatResponse()]
    while fragments:
        taken = data.draw(st.integers(1, 3))
        chunks.append(chunk(*fragments[:taken]))
        del fragments[:taken]

    assert (aggregated(chunks).output or AssistantMessage()) == with_empty_objects(message)
    assert calls_from_events(chunks) == [
        (each.id, each.name, each.arguments) for each in message.tool_calls
    ]


def with_empty_objects(message: AssistantMessage) -> AssistantMessage:
    """Return *message* with an empty object for calls without arguments."""
    parts = (
        replace(part, arguments=part.arguments or "{}") if isinstance(part, ToolCall) else part
        for part in message.parts
    )
    return AssistantMessage(list(parts), metadata=message.metadata)


def streamed_events(chunks: Iterable[ChatResponse]) -> list[StreamEvent]:
    """Return the events of *chunks*."""
    aggregator = MessageAggregator()
    return [event for each in chunks for event in events_of(aggregator.add_and_normalize(each))]


def calls_from_events(chunks: Iterable[ChatResponse]) -> list[tuple[str, str, str]]:
    """Return id, name and arguments of each call, joined from events."""
    calls: dict[Any, list[str]] = {}
    for event in streamed_events(chunks):
        if isinstance(event, ToolCallStarted):
            assert (event.id, event.index) not in calls
            calls[event.id, event.index] = [event.name]
        elif isinstance(event, ToolCallDelta):
            calls[event.id, event.index].append(event.arguments)
    return [(id, name, "".join(rest)) for (id, _), (name, *rest) in calls.items()]


@given(st.text(max_size=9), st.data())
def test_string_chunks(text: str, data: st.DataObject) -> None:
    """A string is the next text of the first generation."""
    chunks = [
        piece if data.draw(st.booleans()) else chunk(piece)
        for piece in fragments_of_text(data, text)
    ]

    assert aggregated(chunks) == ChatResponse((Generation(AssistantMessage(text)),))


@pytest.mark.feature("stream-tool-call-fragments-not")
@given(st.lists(st.text(max_size=6), min_size=1, max_size=4), st.data())
def test_interleaved_parallel_calls(arguments: list[str], data: st.DataObject) -> None:
    """Fragments with an index join their call in any order."""
    calls = [ToolCall(f"id{i}", "f", text) for i, text in enumerate(arguments)]
    expected = tuple(replace(call, arguments=call.arguments or "{}") for call in calls)
    queues = [call_fragments(data, call, i, "index") for i, call in enumerate(calls)]

    order: list[ToolCallChunk] = [queue.pop(0) for queue in queues]
    while queues := [queue for queue in queues if queue]:
        order.append(data.draw(st.sampled_from(queues)).pop(0))

    assert parts_of(*order) == expected


# --- tool calls -----------------------------------------------------------------------------

F, G = ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "[]")


@pytest.mark.feature(
    "stream-detection-aggregated-response",
    "stream-tool-call-fragments-not",
    "stream-merge-tool-calls-appended-not",
)
@pytest.mark.parametrize(
    ("fragments", "calls"),
    [
        pytest.param([fragment(0, "a", "f", '{"x":1}')], [F], id="in one piece"),
        pytest.param(
            [fragment(0, "a", "f"), fragment(0, arguments='{"x"'), fragment(0, arguments=":1}")],
            [F],
            id="by index",
        ),
        pytest.param(
            [fragment(None, "a", "f"), fragment(arguments='{"x"'), fragment(arguments=":1}")],
            [F],
            id="without index",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x"'), fragment(0, "a", "f", ":1}")],
            [F],
            id="id and name repeated",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x"'), fragment(arguments=":1}")],
            [F],
            id="index in the first only",
        ),
        pytest.param(
            [fragment(None, "a", "f", '{"x"'), fragment(0, arguments=":1}")],
            [F],
            id="index in the last only",
        ),
        pytest.param(
            [fragment(0, "a", "f", "ha"), fragment(arguments="ha"), fragment(arguments="haha")],
            [ToolCall("a", "f", "hahahaha")],
            id="custom tool text with a repeated beginning",
        ),
        pytest.param(
            [fragment(0, "a", "", '{"x"'), fragment(0, "", "f", ":1}")], [F], id="late name"
        ),
        pytest.param([fragment(0), fragment(0, "a", "f", '{"x":1}')], [F], id="late id and name"),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(0, "a", "f", '{"x":1}')],
            [F],
            id="repeated complete call",  # must not run twice
        ),
        pytest.param(
            [
                *(fragment(0, "a", "f", '{"x"'), fragment(0, arguments=":1}")),
                fragment(0, arguments='{"x": 1}'),
            ],
            [F],
            id="repeated arguments",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(None, "a", "", '{"x": 1}')],
            [F],
            id="repeated arguments without index",
        ),
        pytest.param(
            [fragment(None, "a", "f", '{"x":1}'), fragment(0, "a", "", '{"x": 1}')],
            [F],
            id="repeated arguments with index",
        ),
        pytest.param(
            [
                *(fragment(0, "a", "f", '{"x":1}'), fragment(1, "b", "g", "[]")),
                fragment(0, arguments='{"x": 1}'),
            ],
            [F, G],
            id="repeated arguments of an earlier call",
        ),
        pytest.param(
            [fragment(0, "a", "f"), fragment(0, "b", "f")],
            [ToolCall("a", "f", "{}"), ToolCall("b", "f", "{}")],
            id="distinct ids without arguments",
        ),
        pytest.param(
            [fragment(0, "a", "f"), *(fragment(0, arguments='{"x":1}'[:to]) for to in (4, 6, 7))],
            [F],
            id="cumulative fragments",
        ),
        pytest.param(
            [fragment(0, "a", "f"), *(fragment(0, arguments='{"x":1}'[:to]) for to in (4, 0, 7))],
            [F],
            id="cumulative or empty fragments",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":'), fragment(0, arguments='{"x":1}}')],
            [ToolCall("a", "f", '{"x":{"x":1}}')],
            id="fragment that looks cumulative",
        ),
        pytest.param(
            [
                fragment(None, "a", "f", '{"x":1}'),
                fragment(None, "b"),
                fragment(None, "b", "g", "[]"),
            ],
            [F, G],
            id="late name without index",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(0, "a", "f", '{"x":2}')],
            [ToolCall("a", "f", '{"x":1}{"x":2}')],
            id="indistinguishable calls",  # the model gets an error, but no call is lost
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":['), *(fragment(0, arguments=t) for t in ("{", "{}"))],
            [ToolCall("a", "f", '{"x":[{{}')],
            id="call without a name",
        ),
        pytest.param(
            [fragment(0, "a", "f"), fragment(0), fragment(0, arguments='{"x":1}'), fragment(0)],
            [F],
            id="no empty fragment",
        ),
        pytest.param(
            [fragment(1, "a", "f", '{"x":1}'), fragment(2, "b", "g", "[]")],
            [F, G],
            id="index from one",
        ),
        pytest.param(
            [
                fragment(0, "a", "f", '{"x"'),
                fragment(1, "b", "g", "["),
                fragment(0, arguments=":1}"),
                fragment(1, arguments="]"),
            ],
            [F, G],
            id="interleaved by index",
        ),
        pytest.param(
            [
                fragment(None, "a", "f", '{"x"'),
                fragment(None, "b", "g", "["),
                fragment(None, "a", "", ":1}"),
                fragment(None, "b", "", "]"),
            ],
            [F, G],
            id="interleaved by id",
        ),
        pytest.param(
            [
                fragment(0, "a", "f", '{"x":1}'),
                fragment(0, "b", "g", "["),
                fragment(0, arguments="]"),
            ],
            [F, G],
            id="same index",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(0, "b", "f", "{}")],
            [F, ToolCall("b", "f", "{}")],
            id="same index and tool",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(1, "a", "g", "[]")],
            [F, ToolCall("a", "g", "[]")],
            id="same id",
        ),
        pytest.param(
            [
                fragment(None, "a", "f", '{"x":1}'),
                fragment(None, "b", "g"),
                fragment(arguments="[]"),
            ],
            [F, G],
            id="consecutive",
        ),
        pytest.param(
            [fragment(0, "a", "f"), fragment(1, "a", "f", '{"x"'), fragment(2, "a", "", ":1}")],
            [F],
            id="same id with different indexes",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(1, "a", "f", "{}")],
            [F, ToolCall("a", "f", "{}")],
            id="same id and tool",
        ),
        pytest.param(
            [
                fragment(0, "a", "f"),
                fragment(1, "a", "g"),
                fragment(0, "a", "", '{"x":1}'),
                fragment(1, "a", "", "[]"),
            ],
            [F, ToolCall("a", "g", "[]")],
            id="same id, interleaved",
        ),
        pytest.param(
            [fragment(0, "a", "f"), fragment(0, "b", "", '{"x"'), fragment(0, "c", "", ":1}")],
            [F],
            id="new id per fragment",
        ),
        pytest.param(
            [
                fragment(0, "a", "f"),
                fragment(0, "b", "g"),
                fragment(0, "a", "", '{"x":1}'),
                fragment(0, "b", "", "[]"),
            ],
            [F, G],
            id="same index, interleaved by id",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(0, "b", "g"), fragment(1, arguments="[]")],
            [F, G],
            id="unknown index",
        ),
    ],
)
def test_tool_call_fragments(fragments: list[ToolCallChunk], calls: list[ToolCall]) -> None:
    """Each call gets its fragments, also if servers omit or repeat ids and names."""
    assert parts_of(*fragments) == tuple(calls)


@pytest.mark.feature("stream-tool-call-fragments-not", "lc4j-tool-execution-request-id")
@pytest.mark.parametrize("index", [None, 0])
def test_calls_without_ids_and_different_names(index: int | None) -> None:
    """Two names are two calls, each with a generated id."""
    parts = parts_of(
        fragment(index, name="f", arguments="{"),
        fragment(index, arguments="}"),
        fragment(index, name="g", arguments="[]"),
    )

    first, second = AssistantMessage(parts).tool_calls
    assert (first.name, first.arguments) == ("f", "{}")
    assert (second.name, second.arguments) == ("g", "[]")
    assert first.id
    assert second.id
    assert first.id != second.id


@pytest.mark.feature("lc4j-tool-execution-request-id")
@pytest.mark.parametrize("index", [None, 0])
def test_complete_calls_without_ids(index: int | None) -> None:
    """Two complete calls of a tool stay separate, in one chunk or in two."""
    calls = [fragment(index, name="f", arguments=text) for text in ('{"x":1}', '{"x":2}')]

    for parts in (parts_of(*calls), parts_together(*calls)):
        arguments = [call.arguments for call in AssistantMessage(parts).tool_calls]
        assert arguments == ['{"x":1}', '{"x":2}']


@pytest.mark.parametrize(
    "fragments",
    [
        [
            *(fragment(0, "", "f", '{"x"'), fragment(1, "", "f", '{"x"')),
            *(fragment(0, arguments=":1}"), fragment(1, arguments=":2}")),
        ],
        [fragment(None, "", "f", '{"x":1}'), fragment(None, "b", "f", '{"x":2}')],
    ],
    ids=["by index", "by the id of one"],
)
def test_split_calls_of_one_tool(fragments: list[ToolCallChunk]) -> None:
    """Calls of one tool stay separate if index or id distinguishes them."""
    made = AssistantMessage(parts_of(*fragments)).tool_calls

    assert [call.arguments for call in made] == ['{"x":1}', '{"x":2}']


def test_empty_fragments_after_a_complete_call() -> None:
    """Blank fragments end a complete call, so the next fragment starts another."""
    texts = ['{"x":1}\n', "", " ", '{"x":2}']
    parts = parts_of(*(fragment(0, name="f", arguments=text) for text in texts))

    assert [call.arguments for call in AssistantMessage(parts).tool_calls] == [
        '{"x":1}\n ',
        '{"x":2}',
    ]


@pytest.mark.parametrize("how", [{"name": "f"}, {"index": 0, "id": ""}], ids=str)
def test_many_objects_in_arguments(how: Any) -> None:
    """Nested objects are not parsed again for each fragment."""
    texts = ['{"x":[', *['{"y":1},'] * 4000, "{}]}"]
    chunks = [ToolCallChunk(**how, arguments=text) for text in texts]
    if "id" in how:  # some servers generate a new id for each fragment
        chunks = [replace(each, id=str(number)) for number, each in enumerate(chunks)]
        chunks[0] = replace(chunks[0], name="f")
    started = time.process_time()
    (call,) = AssistantMessage(parts_of(*chunks)).tool_calls

    assert call.arguments == "".join(texts)
    assert time.process_time() - started < 2


def test_calls_named_in_one_chunk() -> None:
    """Calls named in one chunk are separate, also without arguments."""
    parts = parts_together(fragment(0, name="f"), fragment(0, name="f"))

    assert len(AssistantMessage(parts).tool_calls) == 2


def test_calls_with_one_id_in_one_chunk() -> None:
    """Calls with the same id are distinguished by index."""
    parts = parts_together(fragment(0, "a", "f"), fragment(1, "a", "f"))

    assert len(AssistantMessage(parts).tool_calls) == 2


@pytest.mark.parametrize(
    "arguments", [["", '{"x":', "{}}"], ['{"x":', '{"y":1}', "}"], ['{"x":1}', "", " "]]
)
def test_repeated_name_continues_a_call(arguments: list[str]) -> None:
    """A repeated name continues the call until its arguments are complete."""
    parts = parts_of(*(fragment(0, name="f", arguments=text) for text in arguments))

    (call,) = AssistantMessage(parts).tool_calls
    assert call.arguments == "".join(arguments)


@pytest.mark.feature("lc4j-tool-execution-request-id")
def test_generated_id_is_stable() -> None:
    """Repeated responses contain the same generated ids."""
    aggregator = MessageAggregator()
    aggregator.add(chunk(fragment(0, name="f")))

    assert aggregator.response() == aggregator.response()


@pytest.mark.parametrize("late", ["", "a"])
def test_events_have_the_final_id(late: str) -> None:
    """Events and response have the same id, also if the server's id is late."""
    aggregator = MessageAggregator()
    pieces = [fragment(0, name="f", arguments="{"), fragment(0, late, arguments="}")]
    events = [list(events_of(aggregator.add_and_normalize(chunk(piece)))) for piece in pieces]

    (call,) = aggregator.response().generations[0].output.tool_calls
    assert call == ToolCall(call.id, "f", "{}")
    assert events == [
        [ToolCallStarted(call.id, "f", 0), ToolCallDelta(call.id, "{", 0)],
        [ToolCallDelta(call.id, "}", 0)],
    ]
    assert call.id


def test_fragment_metadata_is_merged() -> None:
    """Metadata of all fragments is in the call."""
    parts = parts_of(
        ToolCallChunk(0, "a", "f", "", {"signature": "x"}),
        ToolCallChunk(0, arguments="{}", metadata={"kind": "function"}),
    )

    assert parts == (ToolCall("a", "f", "{}", {"signature": "x", "kind": "function"}),)


def test_call_position() -> None:
    """A call is placed at its first fragment; text in between does not split it."""
    parts = parts_of("a", fragment(0, "a", "f", '{"x"'), "b", fragment(0, arguments=":1}"), "c")

    assert parts == ("a", F, "bc")


@pytest.mark.feature("stream-merge-media-free-metadata-lost")
def test_complete_parts_are_kept() -> None:
    """Complete parts are kept unchanged, in order."""
    cited = ProviderPart("anthropic", {"type": "citation"}, "quoted")

    assert parts_of("a", F, IMAGE, "b", cited, "c") == ("a", F, IMAGE, "b", cited, "c")


# --- reasoning ------------------------------------------------------------------------------


@pytest.mark.feature("stream-merge-thoughts-buffer-their-own")
@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([Reasoning("a"), Reasoning("b")], [Reasoning("ab")], id="continues"),
        pytest.param(
            [Reasoning("a"), Reasoning("", "proof")], [Reasoning("a", "proof")], id="signed"
        ),
        pytest.param(
            [Reasoning("a", "one"), Reasoning("b"), Reasoning("c", "two")],
            [Reasoning("a", "one"), Reasoning("bc", "two")],
            id="signature ends a block",
        ),
        pytest.param(
            [Reasoning("a"), Reasoning("", "proof", "anthropic")],
            [Reasoning("a", "proof", "anthropic")],
            id="provider in the signature",
        ),
        pytest.param(
            [Reasoning("a", None, "anthropic"), Reasoning("", "proof")],
            [Reasoning("a", "proof", "anthropic")],
            id="provider in the text",
        ),
        pytest.param(
            [Reasoning("a"), Reasoning(data={"id": 1}), Reasoning("b")],
            [Reasoning("a"), Reasoning(data={"id": 1}), Reasoning("b")],
            id="provider forms stay separate",
        ),
        pytest.param(
            [Reasoning("a"), "text", Reasoning("b")],
            [Reasoning("a"), "text", Reasoning("b")],
            id="text separates blocks",
        ),
        pytest.param(
            [Reasoning("a", None, "gemini"), "text", Reasoning("", "proof", "gemini")],
            [Reasoning("a", "proof", "gemini"), "text"],
            id="late signature",
        ),
        pytest.param(
            [Reasoning("a", None, "gemini"), "text", Reasoning("b", "proof", "gemini")],
            [Reasoning("a", None, "gemini"), "text", Reasoning("b", "proof", "gemini")],
            id="signature before its text",
        ),
        pytest.param(
            ["text", Reasoning("", "proof", "gemini")],
            ["text", Reasoning("", "proof", "gemini")],
            id="signature without text",
        ),
        pytest.param(
            [Reasoning("a", None, "gemini"), "text", Reasoning("", "proof", "anthropic")],
            [Reasoning("a", None, "gemini"), "text", Reasoning("", "proof", "anthropic")],
            id="signature of another provider",
        ),
    ],
)
def test_reasoning_blocks(parts: list[Part], expected: list[Part]) -> None:
    """A reasoning block ends with its signature or with other content."""
    assert parts_of(*parts) == tuple(expected)


# --- usage and metadata ---------------------------------------------------------------------


@pytest.mark.feature("stream-merge-usage-last-positive-value")
@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        pytest.param([Usage(5, 1), Usage(5, 2), Usage(5, 9)], Usage(5, 9), id="running totals"),
        pytest.param([Usage(5, 0), Usage(0, 7)], Usage(5, 7), id="input first, output last"),
        pytest.param([Usage(5, 7), Usage()], Usage(5, 7), id="missing at the end"),
        pytest.param([Usage(), Usage(5, 7)], Usage(5, 7), id="missing at the start"),
        pytest.param([Usage(5, 1, 3, 2, 1), Usage(5, 7)], Usage(5, 7, 3, 2, 1), id="known once"),
        pytest.param(
            [Usage(5, 1, 3, 2, 1), Usage(5, 7, 0, 0, 0)], Usage(5, 7, 0, 0, 0), id="zeros"
        ),
        pytest.param([Usage(0, 0, 3), Usage(5, 7)], Usage(5, 7, 3), id="cache before tokens"),
        pytest.param(
            [Usage(5, 0, native={"in": 5}), Usage(0, 7, native={"out": 7})],
            Usage(5, 7, native={"in": 5, "out": 7}),
            id="native figures",
        ),
    ],
)
def test_last_usage_is_used(usages: list[Usage], expected: Usage) -> None:
    """Each usage value is the last reported one, not a sum."""
    assert aggregated(chunk(usage=usage) for usage in usages).usage == expected


@pytest.mark.feature(
    "response-chat-response-metadata-id",
    "stream-merge-id-model-last-set",
    "stream-merge-media-free-metadata-lost",
)
def test_last_metadata_is_used() -> None:
    """Later values replace earlier ones; empty values do not."""
    limit = RateLimit(tokens_remaining=5)

    response = aggregated(
        [
            chunk(id="1", model="m-1", rate_limit=limit, values={"tier": "a", "region": "eu"}),
            chunk(id="2", request_id="r", values={"tier": "b"}),
            chunk("Hi"),
        ]
    )

    assert response.metadata == ChatResponseMetadata(
        "2", "m-1", rate_limit=limit, request_id="r", values={"tier": "b", "region": "eu"}
    )


@pytest.mark.feature("stream-merge-text-concatenated-metadata-merged")
def test_message_metadata_is_merged() -> None:
    """Message metadata of all chunks is merged."""
    chunks = [
        ChatResponse((Generation(AssistantMessage(metadata=metadata)),))
        for metadata in ({"a": 1, "b": 1}, {}, {"b": 2})
    ]

    output = aggregated(chunks).output
    assert output is not None
    assert output.metadata == {"a": 1, "b": 2}


def test_generation_metadata_is_merged() -> None:
    """Finish reason and metadata may be in different chunks."""
    chunks = [
        Generation(AssistantMessage("Hi"), metadata={"logprobs": [1]}),
        Generation(AssistantMessage(), "stop", "end_turn"),
        Generation(AssistantMessage(), metadata={"safety": "ok"}),
    ]

    response = aggregated(ChatResponse((generation,)) for generation in chunks)
    assert response.result == Generation(
        AssistantMessage("Hi"), "stop", "end_turn", metadata={"logprobs": [1], "safety": "ok"}
    )


def test_last_finish_reason_is_used() -> None:
    """A later finish reason wins; a native reason alone is kept."""
    first = Generation(AssistantMessage(), "stop", "stop")
    second = Generation(AssistantMessage(), "tool_call")
    third = Generation(AssistantMessage(), None, "function_call")

    response = aggregated(ChatResponse((generation,)) for generation in (first, second, third))
    assert response.result == Generation(AssistantMessage(), "tool_call", "function_call")


@pytest.mark.feature("response-several-generations", "stream-merge-first-generation-each-chunk")
def test_several_generations() -> None:
    """Each generation has its own text, calls and end, ordered by index."""
    ended = Generation(AssistantMessage("!"), "length", index=1)

    response = aggregated(
        [
            chunk("b", fragment(0, "a", "f"), index=1),
            chunk("a", fragment(0, "b", "g", "[]"), index=0),
            chunk(fragment(0, arguments='{"x":1}'), index=1),
            ChatResponse((Generation(AssistantMessage("a")), ended)),
        ]
    )

    assert response.generations == (
        Generation(AssistantMessage(["a", G, "a"]), index=0),
        Generation(AssistantMessage(["b", F, "!"]), "length", index=1),
    )


@pytest.mark.feature("stream-merge-empty-stream-gives-message")
def test_no_chunks() -> None:
    """A stream without chunks has no generation; one without content an empty one."""
    assert aggregated([]) == ChatResponse()
    assert aggregated(["", chunk("")]).output == AssistantMessage()


def test_intermediate_response() -> None:
    """Reading the response during the stream does not affect it."""
    aggregator = MessageAggregator()
    aggregator.add("Hel")

    half = aggregator.response()
    aggregator.add("lo")

    assert half.text == "Hel"
    assert aggregator.response().text == "Hello"


# --- events ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("part", "events"),
    [
        ("Hi", [TextDelta("Hi")]),
        ("", []),
        (Reasoning("hm"), [ReasoningDelta("hm")]),
        (Reasoning("", "proof"), [ReasoningSigned(Reasoning("", "proof"))]),
        (Reasoning("hm", "p"), [ReasoningDelta("hm"), ReasoningSigned(Reasoning("", "p"))]),
        (ProviderPart("anthropic", {}, "quoted"), [TextDelta("quoted")]),
        (ProviderPart("anthropic", {}), []),
        (IMAGE, []),
        (ToolCall("a", "f", "{}"), [ToolCallStarted("a", "f"), ToolCallDelta("a", "{}")]),
        (ToolCall("a", "f", ""), [ToolCallStarted("a", "f")]),
        (fragment(2, "a", "f"), [ToolCallStarted("a", "f", 2)]),
        (fragment(2, arguments="{"), [ToolCallDelta("", "{", 2)]),
        (fragment(2), []),
    ],
)
def test_part_events(part: Part, events: list[StreamEvent]) -> None:
    """Every part gives its events, but no empty ones."""
    assert list(events_of([part])) == events


@pytest.mark.feature("lc4j-tool-partial-tool-calls")
@pytest.mark.parametrize(
    ("fragments", "events"),
    [
        (
            [fragment(0, "a", "f", "{"), fragment(0, "a", "f", "}")],
            [ToolCallStarted("a", "f", 0), ToolCallDelta("a", "{", 0), ToolCallDelta("a", "}", 0)],
        ),
        (
            [fragment(0, "a"), fragment(0, arguments="{"), fragment(0, name="f", arguments="}")],
            [ToolCallStarted("a", "f", 0), ToolCallDelta("a", "{}", 0)],
        ),
        (
            [fragment(0, "a", "f", "{"), fragment(1, arguments="}")],
            [ToolCallStarted("a", "f", 0), ToolCallDelta("a", "{", 0), ToolCallDelta("a", "}", 0)],
        ),
        (
            [fragment(None, "a", "f"), fragment(arguments="{}")],
            [ToolCallStarted("a", "f"), ToolCallDelta("a", "{}")],
        ),
        (
            [fragment(0, "a", "f", '{"b": 1}'), fragment(0, "a", "f", '{"b": 1}')],
            [ToolCallStarted("a", "f", 0), ToolCallDelta("a", '{"b": 1}', 0)],
        ),
        ([fragment(0, "a", arguments="{}")], []),
    ],
    ids=["repeated", "late name", "with index", "bare", "repeated call", "no name"],
)
def test_call_events(fragments: list[ToolCallChunk], events: list[StreamEvent]) -> None:
    """Each call starts once, and its argument events have its id."""
    assert streamed_events(map(chunk, fragments)) == events


def test_events_of_first_generation_only() -> None:
    """Only the first of several generations gives events."""
    second = Generation(AssistantMessage("two"), index=1)
    both = ChatResponse((second, Generation(AssistantMessage("one"))))

    assert streamed_events([both, ChatResponse((second,))]) == [TextDelta("one")]


def test_events_keep_the_order_of_parts() -> None:
    """Events have the order of the parts."""
    assert list(events_of([Reasoning("hm"), "Hi", fragment(0, "a", "f")])) == [
        ReasoningDelta("hm"),
        TextDelta("Hi"),
        ToolCallStarted("a", "f", 0),
    ]


def audio(*pieces: Media | str) -> tuple[Any, ...]:
    aggregator = MessageAggregator()
    for piece in pieces:
        aggregator.add(ChatResponse((Generation(AssistantMessage([piece])),)))
    result = aggregator.response().result
    assert result is not None
    return result.output.parts


def test_audio_fragments_are_joined() -> None:
    """Audio fragments are joined by id or as raw samples, with their metadata."""
    first = Media("audio/mpeg", b"ID3", "a")
    last = Media("audio/mpeg", b"end", "a", metadata={"expires_at": 9})

    assert audio(first, "said ", Media("audio/pcm", b"-"), "so", last) == (
        Media("audio/mpeg", b"ID3-end", "a", metadata={"expires_at": 9}),
        "said so",
    )
    raw = [Media("audio/pcm;rate=24000", sample) for sample in (b"1", b"2", b"3")]
    assert audio(*raw) == (Media("audio/pcm;rate=24000", b"123"),)
    late = Media("audio/pcm;rate=24000", b"4", "late")
    assert audio(*raw, late) == (Media("audio/pcm;rate=24000", b"1234"),)


def test_separate_media_are_not_joined() -> None:
    """Other ids, files, URLs and images are not joined."""
    sounds = (
        Media("audio/mpeg", b"ID3", "a"),
        Media("audio/mpeg", b"ID3", "b"),
        Media("audio/wav", b"RIFF"),
        Media("audio/wav", "https://example.org/a.wav"),
        Media("image/png", b"1"),
        Media("image/png", b"2"),
    )

    assert audio(*sounds) == sounds
