"""Streams: how chunks become the response they spell, and which events tell them."""

import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chatclient.aggregator import MessageAggregator
from chatclient.events import (
    ReasoningDelta,
    ReasoningSigned,
    StreamEvent,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
    events_of,
)
from chatclient.messages import (
    AssistantMessage,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.response import (
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
    """Return what *parts*, streamed one by one, become."""
    output = aggregated(chunk(part) for part in parts).output
    return output.parts if output is not None else ()


def parts_together(*parts: Part) -> tuple[Part, ...]:
    """Return what *parts*, all in one chunk, become."""
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


def whole_message(blocks: list[Any]) -> AssistantMessage:
    """Return the message of *blocks*: calls with an id each, texts never side by side."""
    parts: list[Any] = []
    for number, block in enumerate(blocks):
        if isinstance(block, str) and parts and isinstance(parts[-1], str):
            continue
        parts.append(replace(block, id=f"id{number}") if isinstance(block, ToolCall) else block)
    return AssistantMessage(parts)


def pieces_of(data: st.DataObject, text: str) -> list[str]:
    """Cut *text* anywhere; empty pieces are among them."""
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=3)))
    return [text[a:b] for a, b in zip([0, *cuts], [*cuts, len(text)], strict=True)]


def call_fragments(
    data: st.DataObject, call: ToolCall, number: int, style: str
) -> list[ToolCallChunk]:
    """Cut *call* as some server would."""
    index = {"index": number, "one index": 0}.get(style)
    first, *rest = pieces_of(data, call.arguments)
    head = ToolCallChunk(index, call.id, call.name, first)
    repeated = (call.id, call.name) if style == "repeated" else ("", "")
    return [head, *(ToolCallChunk(index, *repeated, piece) for piece in rest)]


def fragments_of(data: st.DataObject, message: AssistantMessage) -> list[Part]:
    """Cut all parts of *message*, as one server would."""
    style = data.draw(STYLES)
    fragments: list[Part] = []
    for number, part in enumerate(message.parts):
        match part:
            case str():
                fragments += pieces_of(data, part)
            case Reasoning(text=text):
                pieces = [Reasoning(piece, None, "anthropic") for piece in pieces_of(data, text)]
                fragments += [*pieces, replace(part, text="")]
            case ToolCall():
                fragments += call_fragments(data, part, number, style)
            case _:
                fragments.append(part)
    return fragments


@given(BLOCKS, st.data())
def test_any_chunking_spells_the_same_message(blocks: list[Any], data: st.DataObject) -> None:
    """However a server cuts what it says, the parts are those of the whole, in their order."""
    message = whole_message(blocks)
    fragments = fragments_of(data, message)

    chunks = [ChatResponse()]
    while fragments:
        taken = data.draw(st.integers(1, 3))
        chunks.append(chunk(*fragments[:taken]))
        del fragments[:taken]

    assert (aggregated(chunks).output or AssistantMessage()) == message
    assert calls_told(chunks) == [
        (each.id, each.name, each.arguments) for each in message.tool_calls
    ]


def told(chunks: Iterable[ChatResponse]) -> list[StreamEvent]:
    """Return the events that tell *chunks*."""
    aggregator = MessageAggregator()
    return [event for each in chunks for event in events_of(aggregator.take(each))]


def calls_told(chunks: Iterable[ChatResponse]) -> list[tuple[str, str, str]]:
    """Return id, name and arguments of each call, as a consumer of events would put it together."""
    calls: dict[Any, list[str]] = {}
    for event in told(chunks):
        if isinstance(event, ToolCallStarted):
            assert (event.id, event.index) not in calls
            calls[event.id, event.index] = [event.name]
        elif isinstance(event, ToolCallDelta):
            calls[event.id, event.index].append(event.arguments)
    return [(id, name, "".join(rest)) for (id, _), (name, *rest) in calls.items()]


@given(st.text(max_size=9), st.data())
def test_texts_are_chunks_too(text: str, data: st.DataObject) -> None:
    """A plain text is the next piece of the first answer, between other chunks or alone."""
    chunks = [
        piece if data.draw(st.booleans()) else chunk(piece) for piece in pieces_of(data, text)
    ]

    assert aggregated(chunks) == ChatResponse((Generation(AssistantMessage(text)),))


@given(st.lists(st.text(max_size=6), min_size=1, max_size=4), st.data())
def test_parallel_calls_may_interleave(arguments: list[str], data: st.DataObject) -> None:
    """Numbered calls grow side by side in any order; each gets its own pieces."""
    calls = [ToolCall(f"id{i}", "f", text) for i, text in enumerate(arguments)]
    queues = [call_fragments(data, call, i, "index") for i, call in enumerate(calls)]

    order: list[ToolCallChunk] = [queue.pop(0) for queue in queues]
    while queues := [queue for queue in queues if queue]:
        order.append(data.draw(st.sampled_from(queues)).pop(0))

    assert parts_of(*order) == tuple(calls)


# --- tool calls -----------------------------------------------------------------------------

F, G = ToolCall("a", "f", '{"x":1}'), ToolCall("b", "g", "[]")


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
            id="a text for a custom tool that begins as it goes on",
        ),
        pytest.param(
            [fragment(0, "a", "", '{"x"'), fragment(0, "", "f", ":1}")], [F], id="late name"
        ),
        pytest.param([fragment(0), fragment(0, "a", "f", '{"x":1}')], [F], id="late id and name"),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(0, "a", "f", '{"x":1}')],
            [F],
            id="one call said twice",  # is not run twice
        ),
        pytest.param(
            [
                *(fragment(0, "a", "f", '{"x"'), fragment(0, arguments=":1}")),
                fragment(0, arguments='{"x": 1}'),
            ],
            [F],
            id="the whole once more",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(None, "a", "", '{"x": 1}')],
            [F],
            id="the whole once more, not counted",
        ),
        pytest.param(
            [fragment(None, "a", "f", '{"x":1}'), fragment(0, "a", "", '{"x": 1}')],
            [F],
            id="the whole once more, counted",
        ),
        pytest.param(
            [
                *(fragment(0, "a", "f", '{"x":1}'), fragment(1, "b", "g", "[]")),
                fragment(0, arguments='{"x": 1}'),
            ],
            [F, G],
            id="the whole of an earlier call once more",
        ),
        pytest.param(
            [fragment(0, "a", "f"), fragment(0, "b", "f")],
            [ToolCall("a", "f", ""), ToolCall("b", "f", "")],
            id="calls without arguments that have ids of their own",
        ),
        pytest.param(
            [fragment(0, "a", "f"), *(fragment(0, arguments='{"x":1}'[:to]) for to in (4, 6, 7))],
            [F],
            id="each fragment from the beginning",
        ),
        pytest.param(
            [fragment(0, "a", "f"), *(fragment(0, arguments='{"x":1}'[:to]) for to in (4, 0, 7))],
            [F],
            id="from the beginning, or nothing",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":'), fragment(0, arguments='{"x":1}}')],
            [ToolCall("a", "f", '{"x":{"x":1}}')],
            id="what only looks like the beginning",
        ),
        pytest.param(
            [
                fragment(None, "a", "f", '{"x":1}'),
                fragment(None, "b"),
                fragment(None, "b", "g", "[]"),
            ],
            [F, G],
            id="a late name, not counted",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(0, "a", "f", '{"x":2}')],
            [ToolCall("a", "f", '{"x":1}{"x":2}')],
            id="two calls that nothing tells apart",  # the model is told, none is lost
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":['), *(fragment(0, arguments=t) for t in ("{", "{}"))],
            [ToolCall("a", "f", '{"x":[{{}')],
            id="not even the model knows what",
        ),
        pytest.param(
            [fragment(0, "a", "f"), fragment(0), fragment(0, arguments='{"x":1}'), fragment(0)],
            [F],
            id="nothing in between",
        ),
        pytest.param(
            [fragment(1, "a", "f", '{"x":1}'), fragment(2, "b", "g", "[]")],
            [F, G],
            id="counted from one",
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
            id="one index for all",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(0, "b", "f", "{}")],
            [F, ToolCall("b", "f", "{}")],
            id="one index for two calls of a tool",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(1, "a", "g", "[]")],
            [F, ToolCall("a", "g", "[]")],
            id="one id for all",
        ),
        pytest.param(
            [
                fragment(None, "a", "f", '{"x":1}'),
                fragment(None, "b", "g"),
                fragment(arguments="[]"),
            ],
            [F, G],
            id="one after another",
        ),
        pytest.param(
            [fragment(0, "a", "f"), fragment(1, "a", "f", '{"x"'), fragment(2, "a", "", ":1}")],
            [F],
            id="one id under other indexes",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(1, "a", "f", "{}")],
            [F, ToolCall("a", "f", "{}")],
            id="one id for two calls of a tool",
        ),
        pytest.param(
            [
                fragment(0, "a", "f"),
                fragment(1, "a", "g"),
                fragment(0, "a", "", '{"x":1}'),
                fragment(1, "a", "", "[]"),
            ],
            [F, ToolCall("a", "g", "[]")],
            id="one id for all, interleaved",
        ),
        pytest.param(
            [fragment(0, "a", "f"), fragment(0, "b", "", '{"x"'), fragment(0, "c", "", ":1}")],
            [F],
            id="a new id for each fragment",
        ),
        pytest.param(
            [
                fragment(0, "a", "f"),
                fragment(0, "b", "g"),
                fragment(0, "a", "", '{"x":1}'),
                fragment(0, "b", "", "[]"),
            ],
            [F, G],
            id="one index for all, interleaved by id",
        ),
        pytest.param(
            [fragment(0, "a", "f", '{"x":1}'), fragment(0, "b", "g"), fragment(1, arguments="[]")],
            [F, G],
            id="an index that nobody has",
        ),
    ],
)
def test_fragments_of_tool_calls(fragments: list[ToolCallChunk], calls: list[ToolCall]) -> None:
    """Whatever servers leave out or repeat, each call gets its own pieces."""
    assert parts_of(*fragments) == tuple(calls)


@pytest.mark.parametrize("index", [None, 0])
def test_calls_without_ids_are_told_apart_by_name(index: int | None) -> None:
    """Two tools called with nothing but their names are two calls, with an id made for each."""
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


@pytest.mark.parametrize("index", [None, 0])
def test_whole_calls_of_a_tool_without_ids_are_told_apart(index: int | None) -> None:
    """One tool called twice is two calls, each with its own arguments, in one chunk or in two."""
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
    ids=["by index", "by the id that one has"],
)
def test_calls_of_a_tool_without_ids_are_told_apart(fragments: list[ToolCallChunk]) -> None:
    """As long as anything tells them apart."""
    made = AssistantMessage(parts_of(*fragments)).tool_calls

    assert [call.arguments for call in made] == ['{"x":1}', '{"x":2}']


def test_a_whole_call_without_an_id_ends_before_space_and_nothing() -> None:
    """Which servers send at the end of one; what follows is another call all the same."""
    texts = ['{"x":1}\n', "", " ", '{"x":2}']
    parts = parts_of(*(fragment(0, name="f", arguments=text) for text in texts))

    assert [call.arguments for call in AssistantMessage(parts).tool_calls] == [
        '{"x":1}\n ',
        '{"x":2}',
    ]


@pytest.mark.parametrize("how", [{"name": "f"}, {"index": 0, "id": ""}], ids=str)
def test_many_objects_in_the_arguments_of_a_call_take_no_longer(how: Any) -> None:
    """Those so far are not read anew at the beginning of each, whatever a server leaves out."""
    texts = ['{"x":[', *['{"y":1},'] * 4000, "{}]}"]
    chunks = [ToolCallChunk(**how, arguments=text) for text in texts]
    if "id" in how:  # some servers make a new id for each fragment
        chunks = [replace(each, id=str(number)) for number, each in enumerate(chunks)]
        chunks[0] = replace(chunks[0], name="f")
    begun = time.process_time()
    (call,) = AssistantMessage(parts_of(*chunks)).tool_calls

    assert call.arguments == "".join(texts)
    assert time.process_time() - begun < 2


def test_calls_that_one_chunk_names_are_calls_of_their_own() -> None:
    """Also those that have no arguments, or only the first of them."""
    parts = parts_together(fragment(0, name="f"), fragment(0, name="f"))

    assert len(AssistantMessage(parts).tool_calls) == 2


def test_calls_of_one_id_that_one_chunk_names_are_told_apart_by_index() -> None:
    """A server that gives all calls one id still numbers them."""
    parts = parts_together(fragment(0, "a", "f"), fragment(1, "a", "f"))

    assert len(AssistantMessage(parts).tool_calls) == 2


@pytest.mark.parametrize(
    "arguments", [["", '{"x":', "{}}"], ['{"x":', '{"y":1}', "}"], ['{"x":1}', "", " "]]
)
def test_a_call_whose_name_is_repeated_is_one(arguments: list[str]) -> None:
    """Fragments go on with it for as long as its arguments are not complete."""
    parts = parts_of(*(fragment(0, name="f", arguments=text) for text in arguments))

    (call,) = AssistantMessage(parts).tool_calls
    assert call.arguments == "".join(arguments)


def test_a_made_id_stays() -> None:
    """The response can be asked for again; its calls keep the ids they were given."""
    aggregator = MessageAggregator()
    aggregator.add(chunk(fragment(0, name="f")))

    assert aggregator.response() == aggregator.response()


@pytest.mark.parametrize("late", ["", "a"])
def test_a_call_without_an_id_is_told_by_the_id_that_it_keeps(late: str) -> None:
    """Whoever listens finds it again in the response, also if an id comes too late."""
    aggregator = MessageAggregator()
    pieces = [fragment(0, name="f", arguments="{"), fragment(0, late, arguments="}")]
    events = [list(events_of(aggregator.take(chunk(piece)))) for piece in pieces]

    (call,) = aggregator.response().generations[0].output.tool_calls
    assert call == ToolCall(call.id, "f", "{}")
    assert events == [
        [ToolCallStarted(call.id, "f", 0), ToolCallDelta(call.id, "{", 0)],
        [ToolCallDelta(call.id, "}", 0)],
    ]
    assert call.id


def test_the_metadata_of_fragments_is_joined() -> None:
    """What the provider said with any fragment goes back with the call."""
    parts = parts_of(
        ToolCallChunk(0, "a", "f", "", {"signature": "x"}),
        ToolCallChunk(0, arguments="{}", metadata={"kind": "function"}),
    )

    assert parts == (ToolCall("a", "f", "{}", {"signature": "x", "kind": "function"}),)


def test_calls_stand_where_they_began() -> None:
    """Text between the fragments of a call does not split it, and keeps its own place."""
    parts = parts_of("a", fragment(0, "a", "f", '{"x"'), "b", fragment(0, arguments=":1}"), "c")

    assert parts == ("a", F, "bc")


def test_whole_parts_pass_through() -> None:
    """What comes in one piece is kept as it is, in its place."""
    cited = ProviderPart("anthropic", {"type": "citation"}, "quoted")

    assert parts_of("a", F, IMAGE, "b", cited, "c") == ("a", F, IMAGE, "b", cited, "c")


# --- reasoning ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "expected"),
    [
        pytest.param([Reasoning("a"), Reasoning("b")], [Reasoning("ab")], id="runs on"),
        pytest.param(
            [Reasoning("a"), Reasoning("", "proof")], [Reasoning("a", "proof")], id="is signed"
        ),
        pytest.param(
            [Reasoning("a", "one"), Reasoning("b"), Reasoning("c", "two")],
            [Reasoning("a", "one"), Reasoning("bc", "two")],
            id="a signature closes",
        ),
        pytest.param(
            [Reasoning("a"), Reasoning("", "proof", "anthropic")],
            [Reasoning("a", "proof", "anthropic")],
            id="the signature says whose",
        ),
        pytest.param(
            [Reasoning("a", None, "anthropic"), Reasoning("", "proof")],
            [Reasoning("a", "proof", "anthropic")],
            id="the text says whose",
        ),
        pytest.param(
            [Reasoning("a"), Reasoning(data={"id": 1}), Reasoning("b")],
            [Reasoning("a"), Reasoning(data={"id": 1}), Reasoning("b")],
            id="own forms stay apart",
        ),
        pytest.param(
            [Reasoning("a"), "text", Reasoning("b")],
            [Reasoning("a"), "text", Reasoning("b")],
            id="text parts blocks",
        ),
        pytest.param(
            [Reasoning("a", None, "gemini"), "text", Reasoning("", "proof", "gemini")],
            [Reasoning("a", "proof", "gemini"), "text"],
            id="a signature comes late",
        ),
        pytest.param(
            [Reasoning("a", None, "gemini"), "text", Reasoning("b", "proof", "gemini")],
            [Reasoning("a", None, "gemini"), "text", Reasoning("b", "proof", "gemini")],
            id="a signature of what comes late",
        ),
        pytest.param(
            ["text", Reasoning("", "proof", "gemini")],
            ["text", Reasoning("", "proof", "gemini")],
            id="a signature of nothing",
        ),
        pytest.param(
            [Reasoning("a", None, "gemini"), "text", Reasoning("", "proof", "anthropic")],
            [Reasoning("a", None, "gemini"), "text", Reasoning("", "proof", "anthropic")],
            id="whose signature it is not",
        ),
    ],
)
def test_reasoning_joins_block_by_block(parts: list[Part], expected: list[Part]) -> None:
    """A block of thought lasts until it is signed or something else is said."""
    assert parts_of(*parts) == tuple(expected)


# --- figures and metadata -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("usages", "expected"),
    [
        pytest.param([Usage(5, 1), Usage(5, 2), Usage(5, 9)], Usage(5, 9), id="running totals"),
        pytest.param([Usage(5, 0), Usage(0, 7)], Usage(5, 7), id="input first, output last"),
        pytest.param([Usage(5, 7), Usage()], Usage(5, 7), id="nothing at the end"),
        pytest.param([Usage(), Usage(5, 7)], Usage(5, 7), id="nothing at the start"),
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
def test_the_last_usage_holds(usages: list[Usage], expected: Usage) -> None:
    """Providers repeat running totals; every figure is the last one reported, never a sum."""
    assert aggregated(chunk(usage=usage) for usage in usages).usage == expected


def test_metadata_is_the_last_that_says_something() -> None:
    """Later chunks complete and correct what earlier ones said, and empty ones erase nothing."""
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


def test_the_metadata_of_messages_is_joined() -> None:
    """What any chunk remembers of the message, the message remembers."""
    chunks = [
        ChatResponse((Generation(AssistantMessage(metadata=metadata)),))
        for metadata in ({"a": 1, "b": 1}, {}, {"b": 2})
    ]

    output = aggregated(chunks).output
    assert output is not None
    assert output.metadata == {"a": 1, "b": 2}


def test_what_is_known_of_a_generation_is_joined() -> None:
    """Reason and provider's values may come in different chunks, and not only in the last."""
    chunks = [
        Generation(AssistantMessage("Hi"), metadata={"logprobs": [1]}),
        Generation(AssistantMessage(), "stop", "end_turn"),
        Generation(AssistantMessage(), metadata={"safety": "ok"}),
    ]

    response = aggregated(ChatResponse((generation,)) for generation in chunks)
    assert response.result == Generation(
        AssistantMessage("Hi"), "stop", "end_turn", metadata={"logprobs": [1], "safety": "ok"}
    )


def test_the_last_finish_reason_holds() -> None:
    """Where a server corrects itself, the correction counts; a native reason alone is kept."""
    first = Generation(AssistantMessage(), "stop", "stop")
    second = Generation(AssistantMessage(), "tool_call")
    third = Generation(AssistantMessage(), None, "function_call")

    response = aggregated(ChatResponse((generation,)) for generation in (first, second, third))
    assert response.result == Generation(AssistantMessage(), "tool_call", "function_call")


def test_several_answers_grow_side_by_side() -> None:
    """Each has its own text, calls and end; they come out in the order of their numbers."""
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


def test_nothing_aggregates_to_nothing() -> None:
    """A stream without chunks has no answer; one that says nothing has an empty one."""
    assert aggregated([]) == ChatResponse()
    assert aggregated(["", chunk("")]).output == AssistantMessage()


def test_the_response_can_be_had_at_any_time() -> None:
    """Asking half way gives what there is and disturbs nothing."""
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
def test_parts_are_told_as_events(part: Part, events: list[StreamEvent]) -> None:
    """A consumer of events sees all there is to show, and nothing empty."""
    assert list(events_of([part])) == events


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
    ids=["repeated", "late name", "counted", "bare", "said again", "no name"],
)
def test_each_call_is_told_once_and_its_pieces_are_its_own(
    fragments: list[ToolCallChunk], events: list[StreamEvent]
) -> None:
    """Whatever the server names in which fragment, consumers need not know about it."""
    assert told(map(chunk, fragments)) == events


def test_only_the_first_answer_is_told() -> None:
    """Of several that are streamed beside each other."""
    second = Generation(AssistantMessage("two"), index=1)
    both = ChatResponse((second, Generation(AssistantMessage("one"))))

    assert told([both, ChatResponse((second,))]) == [TextDelta("one")]


def test_events_keep_the_order_of_parts() -> None:
    """What was thought first is told first."""
    assert list(events_of([Reasoning("hm"), "Hi", fragment(0, "a", "f")])) == [
        ReasoningDelta("hm"),
        TextDelta("Hi"),
        ToolCallStarted("a", "f", 0),
    ]


def spoken(*pieces: Media | str) -> tuple[Any, ...]:
    whole = MessageAggregator()
    for piece in pieces:
        whole.add(ChatResponse((Generation(AssistantMessage([piece])),)))
    result = whole.response().result
    assert result is not None
    return result.output.parts


def test_pieces_of_a_sound_are_one_sound() -> None:
    """By its id, or because raw samples go on; what is known of it joins as well."""
    first = Media("audio/mpeg", b"ID3", "a")
    last = Media("audio/mpeg", b"end", "a", metadata={"expires_at": 9})

    assert spoken(first, "said ", Media("audio/pcm", b"-"), "so", last) == (
        Media("audio/mpeg", b"ID3-end", "a", metadata={"expires_at": 9}),
        "said so",
    )
    raw = [Media("audio/pcm;rate=24000", sample) for sample in (b"1", b"2", b"3")]
    assert spoken(*raw) == (Media("audio/pcm;rate=24000", b"123"),)
    late = Media("audio/pcm;rate=24000", b"4", "late")
    assert spoken(*raw, late) == (Media("audio/pcm;rate=24000", b"1234"),)


def test_other_sounds_and_images_stay_what_they_are() -> None:
    """Another id, another file, a sound that is elsewhere, and pictures."""
    sounds = (
        Media("audio/mpeg", b"ID3", "a"),
        Media("audio/mpeg", b"ID3", "b"),
        Media("audio/wav", b"RIFF"),
        Media("audio/wav", "https://example.org/a.wav"),
        Media("image/png", b"1"),
        Media("image/png", b"2"),
    )

    assert spoken(*sounds) == sounds
