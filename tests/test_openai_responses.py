"""OpenAI's Responses API through the client, in all four ways of asking."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
from conftest import Ask
from replay import RECORDINGS, collect, needs_recordings
from responses_server import (
    ResponsesServer,
    as_stream,
    call,
    events_of,
    item_events,
    message,
    output_text,
    reasoning,
    response,
)
from servers import Reply

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ChatResponse,
    Media,
    Message,
    Next,
    Prompt,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.errors import (
    AuthenticationError,
    ContentFilterError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.events import (
    ReasoningDelta,
    ReasoningSigned,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from chatclient.messages import Part, ProviderPart, Reasoning, ToolCallChunk
from chatclient.providers.fallback import FallbackChatModel
from chatclient.providers.openai import OpenAIChatOptions
from chatclient.providers.openai_responses import (
    OpenAIResponsesChatModel,
    OpenAIResponsesChatOptions,
)
from chatclient.providers.openai_responses_decoding import decode_response
from chatclient.providers.openai_responses_options import encode_options, form_for
from chatclient.providers.openai_responses_stream import StreamDecoder
from chatclient.runtime import ON_LOOP
from chatclient.serialization import message_from_dict, message_to_dict
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools import tool
from chatclient.values import FrozenDict

Json = dict[str, Any]
Serve = Callable[..., ResponsesServer]

PNG = bytes.fromhex("89504e470d0a1a0a")
SUM = '{"a": 2, "b": 3}'


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that speak the Responses API; all are gone after the test."""
    servers: list[ResponsesServer] = []

    def start(*replies: Any) -> ResponsesServer:
        servers.append(ResponsesServer(*replies))
        return servers[-1]

    yield start
    for server in servers:
        server.close()


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


def body_of(*messages: Message, **options: Any) -> Json:
    """Return what is sent for *messages*."""
    chosen = OpenAIResponsesChatOptions(**options)
    model = OpenAIResponsesChatModel("gpt-5-mini", api_key="key", options=chosen)
    body: Json = json.loads(model._body(Prompt(messages, model.options), streaming=False))
    return body


def input_of(*messages: Message, **options: Any) -> list[Json]:
    """Return the items that *messages* are sent as."""
    items: list[Json] = body_of(*messages, **options)["input"]
    return items


def options_of(**options: Any) -> Json:
    """Return what is sent for *options*, but for what is always sent."""
    body = encode_options(OpenAIResponsesChatOptions(**options), streaming=False)
    return {key: value for key, value in body.items() if key != "store"}


def decoded(whole: Json) -> ChatResponse:
    return decode_response(whole, "openai")


def streamed(*events: Json) -> ChatResponse:
    """Return the response that a stream of *events* spells."""
    decoder = StreamDecoder("openai")
    chunks = [decoder.feed(json.dumps(event).encode()) for event in events]
    chunks.extend(decoder.finish(b""))
    return collect(chunk for chunk in chunks if chunk is not None)


def failure_of(*events: Json) -> ProviderError:
    """Return the error that a stream of *events* ends in."""
    with pytest.raises(ProviderError) as caught:
        streamed(*events)
    return caught.value


def parts_of(result: ChatResponse) -> tuple[Part, ...]:
    assert result.output is not None
    return result.output.parts


# --- asking ---------------------------------------------------------------------------------


def test_the_answer_comes_with_all_that_is_known_of_it(ask: Ask, serve: Serve) -> None:
    """Text, finish reason, usage with cached and reasoning tokens, ids, limits."""
    server = serve(Reply(json.dumps(response("Hello there")).encode(), headers=LIMITS))
    if ask.streaming:
        server._replies = [
            Reply(as_stream(events_of(response("Hello there"))), 200, LIMITS, "text/event-stream")
        ]
    result = ask(ChatClient.create(server.model()).prompt("Hi"))
    answer = result.response.chat_response

    assert result.text == answer.text == "Hello there"
    assert (answer.finish_reason, answer.metadata.id) == ("stop", "resp_1")
    assert (answer.metadata.model, answer.metadata.request_id) == ("stub", "req_1")
    assert answer.metadata.rate_limit is not None
    assert answer.metadata.rate_limit.requests_remaining == 99
    usage = answer.usage
    assert (usage.input_tokens, usage.output_tokens, usage.reasoning_tokens) == (10, 5, 3)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (4, 2)
    assert server.headers[0]["authorization"] == "Bearer key"
    assert server.requests[0].get("stream", False) == ask.streaming


LIMITS = {"x-request-id": "req_1", "x-ratelimit-remaining-requests": "99"}


def test_nothing_is_stored_and_reasoning_comes_encrypted(ask: Ask, serve: Serve) -> None:
    """Unless the options say otherwise, the provider keeps nothing of the conversation."""
    server = serve("ok")
    ask(ChatClient.create(server.model()).prompt("Hi"))

    assert server.requests[0]["store"] is False
    assert server.requests[0]["include"] == ["reasoning.encrypted_content"]


def test_a_tool_is_called_and_its_result_sent(ask: Ask, serve: Serve) -> None:
    """Reasoning and call go back unchanged, followed by the call's output."""
    thought, asked = reasoning("rs_1", "Adding."), call("call_1", "add", '{"a":2,"b":3}')
    server = serve(response(thought, asked), "It is 5.")
    result = ask(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))

    assert result.response.chat_response.text == "It is 5."
    assert server.requests[1]["input"] == [
        {"role": "user", "content": "2 + 3?"},
        thought,
        asked,
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]
    assert server.requests[0]["tools"][0]["name"] == "add"


def test_reasoning_goes_back_to_where_it_came_from_only(ask: Ask, serve: Serve) -> None:
    """Each service encrypts its own: what another one thought, none can read."""
    asked = call("call_1", "add", SUM)
    begun = serve(response(reasoning("rs_1", "Adding."), asked), Reply(b"{}", 503))
    other = serve(response(reasoning("rs_2", "More."), call("call_2", "add", SUM)), "It is 5.")
    model = FallbackChatModel(begun.model(), other.model())
    ask(ChatClient.create(model).prompt("2 + 3?").tools(add))

    result = {"type": "function_call_output", "call_id": "call_1", "output": "5"}
    without_id = {key: value for key, value in asked.items() if key != "id"}
    assert other.requests[0]["input"][1:] == [without_id, result]
    assert [i["type"] for i in other.requests[1]["input"][3:]] == [
        *("reasoning", "function_call", "function_call_output"),
    ]


def test_a_server_that_cannot_read_the_reasoning_is_asked_without(ask: Ask, serve: Serve) -> None:
    """Each service encrypts its own, and another one may have to go on with the conversation."""
    foreign = reasoning("rs_1", "Adding.", encrypted_content="of another server")
    asked = call("call_1", "add", SUM)
    server = serve(response(foreign, asked), "It is 5.")
    answer = ask(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))
    refused, taken = (request["input"][1:] for request in server.requests[1:])

    assert answer.text == "It is 5."
    assert [item["type"] for item in refused] == [
        *("reasoning", "function_call", "function_call_output"),
    ]
    assert taken == [
        {key: value for key, value in asked.items() if key != "id"},
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]


def test_what_else_is_refused_is_not_asked_again(ask: Ask, serve: Serve) -> None:
    """Not with reasoning in the conversation, and not for a word about encrypted content."""
    refusal = Reply(b'{"error": {"message": "no", "code": "invalid_value"}}', 400)
    server = serve(response(reasoning("rs_1", "Adding."), call("call_1", "add", SUM)), refusal)
    with pytest.raises(InvalidRequestError, match="no"):
        ask(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))
    other = serve(Reply(b'{"error": {"message": "no encrypted content"}}', 400))
    with pytest.raises(InvalidRequestError, match="no encrypted content"):
        ask(ChatClient.create(other.model()).prompt("Hi"))

    assert (len(server.requests), len(other.requests)) == (2, 1)


def test_a_model_that_never_reasons_goes_on_without_reasoning(ask: Ask, serve: Serve) -> None:
    """It refuses what the model before it thought; nor are there ids that would need it."""
    said, asked = message("I add.", phase="commentary"), call("call_1", "add", '{"a":2,"b":3}')
    server = serve(response(reasoning("rs_1", "Adding."), said, asked), "It is 5.")
    client = ChatClient.create(server.model())
    begun = ask(client.prompt("2 + 3?").tools(add).tool_calling(False)).response.chat_response
    result = ToolResponseMessage([ToolResponse("call_1", "add", "5")])
    assert begun.output is not None
    history = client.prompt().messages(UserMessage("2 + 3?"), begun.output, result)
    ask(history.options(model="gpt-4.1"))

    assert server.requests[1]["input"][1:] == [
        {"type": "message", "role": "assistant", "content": "I add.", "phase": "commentary"},
        {key: value for key, value in asked.items() if key != "id"},
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]


def test_what_the_conversation_holds_is_not_sent_again(ask: Ask, serve: Serve) -> None:
    """The provider has added to it what it was sent and what it answered."""
    held = {"conversation": {"id": "conv_1"}}
    asked = call("call_1", "add", '{"a":2,"b":3}')
    server = serve(response(asked, **held), response("It is 5.", **held))
    client = ChatClient.create(server.model())
    request = client.prompt("2 + 3?").system("Be brief.").tools(add)
    ask(request.options(OpenAIResponsesChatOptions(conversation="conv_1")))

    assert server.requests[0]["input"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "2 + 3?"},
    ]
    assert server.requests[1]["input"] == [
        {"type": "function_call_output", "call_id": "call_1", "output": "5"}
    ]


@pytest.mark.parametrize("other", [None, "conv_2"])
def test_what_another_conversation_holds_is_sent(other: str | None) -> None:
    """Only the provider's word that this one holds an answer keeps it back."""
    said = decoded(response("Hello", conversation=other and {"id": other})).output
    assert said is not None
    messages = UserMessage("Hi"), said, UserMessage("And?")

    assert len(input_of(*messages, conversation="conv_1")) == 3


def test_two_parallel_calls_have_two_outputs(ask: Ask, serve: Serve) -> None:
    """Each call is answered under its own call id, in the order of the calls."""
    calls = call("call_1", "add", '{"a":1,"b":1}'), call("call_2", "add", '{"a":2,"b":2}')
    server = serve(response(*calls), "2 and 4")
    result = ask(ChatClient.create(server.model()).prompt("?").tools(add))

    assert [execution.tool_call.id for execution in result.executions] == ["call_1", "call_2"]
    assert [(i["call_id"], i["output"]) for i in server.requests[1]["input"][3:]] == [
        ("call_1", "2"),
        ("call_2", "4"),
    ]


def test_messages_with_their_phases_go_back_as_they_were(ask: Ask, serve: Serve) -> None:
    """Several messages of one response stay apart; id, phase and citations are kept."""
    citation = {"type": "url_citation", "url": "https://a.b", "title": "A"}
    place = {"start_index": 0, "end_index": 3}
    comment = message(output_text("One.", {**citation, **place}), id="msg_1", phase="commentary")
    asked = call("call_1", "add", '{"a":1,"b":1}')
    server = serve(response(comment, message("Two.", id="msg_2"), asked), "done")
    result = ask(ChatClient.create(server.model()).prompt("?").tools(add))

    assert server.requests[1]["input"][1:4] == [comment, message("Two.", id="msg_2"), asked]
    assert result.text == ("One.Two.done" if ask.streaming else "done")


def test_items_of_the_providers_own_tools_go_back_unchanged(ask: Ask, serve: Serve) -> None:
    """A search on the provider's side, and what nobody knows yet, keep their place."""
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"q": "a"}}
    items = reasoning("rs_1"), search, {"id": "x", "type": "some_future_call", "value": None}
    server = serve(response(*items, "Found."), "Bye.")
    client = ChatClient.create(server.model())
    found = ask(client.prompt("?")).response.chat_response.output
    assert found is not None
    ask(client.prompt().messages(UserMessage("?"), found).user("Thanks"))

    assert server.requests[1]["input"][1:5] == [*items, message("Found.")]


def test_a_refusal_is_told_and_is_no_normal_ending(ask: Ask, serve: Serve) -> None:
    """Its text is the answer's text; the finish reason says why."""
    server = serve(response(message({"type": "refusal", "refusal": "I will not."})))
    result = ask(ChatClient.create(server.model()).prompt("?"))

    assert result.text == result.response.chat_response.text == "I will not."
    assert result.response.chat_response.finish_reason == "content_filter"


def test_an_answer_cut_short_says_so(ask: Ask, serve: Serve) -> None:
    """An incomplete response ends for its own reason, and keeps what there is."""
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    server = serve(response("Once upon", **cut))
    answer = ask(ChatClient.create(server.model()).prompt("?")).response.chat_response

    assert (answer.text, answer.finish_reason) == ("Once upon", "length")
    assert answer.has_finish_reasons(["max_output_tokens"])


def test_a_schema_is_held_to(ask: Ask, serve: Serve) -> None:
    """The answer's schema goes as the text's format, under a name the API takes."""
    known = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    films = {**known, "uniqueItems": True}
    form = {"type": "object", "required": ["films"], "additionalProperties": False}
    schema = {"title": "list[Film]", **form, "properties": {"films": films}}
    server = serve('{"films": ["Alien"]}')
    options = ChatOptions(output_schema=schema)
    ask(ChatClient.create(server.model()).prompt("?").options(options))

    assert server.requests[0]["text"]["format"] == {
        "type": "json_schema",
        "name": "list_Film",
        "schema": {**form, "properties": {"films": known}},
        "strict": True,
    }


def test_a_refused_request_is_an_error(ask: Ask, serve: Serve) -> None:
    """The service's own words are in it."""
    server = serve("never")
    history = AssistantMessage("", [ToolCall("call_1", "add", "{}")])

    with pytest.raises(InvalidRequestError, match="No tool output found") as caught:
        ask(ChatClient.create(server.model()).prompt().messages(history).user("?"))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("rate_limit_exceeded", RateLimitedError),
        ("server_error", OverloadedError),
        ("invalid_prompt", InvalidRequestError),
        ("image_content_policy_violation", ContentFilterError),
        ("failed_to_download_image", InvalidRequestError),
    ],
)
def test_a_failed_response_is_an_error_of_its_kind(
    ask: Ask, serve: Serve, code: str, kind: type[Exception]
) -> None:
    """The HTTP status is 200 all the same; what is in the body, or the stream, counts."""
    error = {"code": code, "message": "it did not work"}
    server = serve(response(status="failed", error=error))

    with pytest.raises(kind, match="it did not work"):
        ask(ChatClient.create(server.model()).prompt("?"))


def test_the_history_of_other_providers_becomes_text(ask: Ask, serve: Serve) -> None:
    """Calls and text are sent on; foreign reasoning and JSON are not."""
    server = serve("ok")
    foreign = AssistantMessage(
        [
            Reasoning("hm", signature="s", provider="anthropic"),
            "See ",
            ProviderPart("anthropic", FrozenDict({"type": "text"}), "there"),
            ProviderPart("openai", FrozenDict({"refusal": "No."}), "No."),
            Media("image/png", PNG),
            ToolCall("toolu_1", "add", " ", FrozenDict({"extra_content": 1})),
        ]
    )
    answer = ToolResponseMessage([ToolResponse("toolu_1", "add", "2")])
    ask(ChatClient.create(server.model()).prompt().messages(foreign, answer).user("?"))

    assert server.requests[0]["input"][:2] == [
        {"type": "message", "role": "assistant", "content": "See thereNo."},
        {"type": "function_call", "arguments": "{}", "call_id": "toolu_1", "name": "add"},
    ]


def test_text_that_an_advisor_changed_is_what_goes_back(ask: Ask, serve: Serve) -> None:
    """The message keeps its id and phase; what was said about the old text is dropped."""
    citation = {"type": "file_citation", "file_id": "f", "filename": "n", "index": 0}
    first = message(output_text("My key is 123.", citation), phase="commentary")
    server = serve(response(reasoning("rs_1"), first, call("call_1", "add", "{}")), "ok")

    async def mask(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        messages = [
            m.mutate(text="My key is secret.") if isinstance(m, AssistantMessage) else m
            for m in request.prompt.messages
        ]
        return await call_next(request.mutate(prompt=request.prompt.with_messages(messages)))

    ask(ChatClient.create(server.model()).prompt("?").tools(add).advisors(mask))

    assert server.requests[1]["input"][2] == message("My key is secret.", phase="commentary")


class Shell:
    """A tool that takes a line of text, no JSON."""

    definition = ToolDefinition("shell", "Run a line.", FrozenDict({"type": "object"}))
    metadata = ToolMetadata()

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        return ToolResult(f"ran {arguments}")


def test_a_custom_tool_is_called_with_free_text(ask: Ask, serve: Serve) -> None:
    """The callback of its name gets the text; call and output keep the kind they are of."""
    item = {"id": "ctc_1", "type": "custom_tool_call", "call_id": "call_1", "name": "shell"}
    server = serve(response({**item, "input": "ls -l"}), "ok")
    custom = {"type": "custom", "name": "shell"}
    options = OpenAIResponsesChatOptions(server_tools=(custom,))
    result = ask(ChatClient.create(server.model(options=options)).prompt("?").tools(Shell()))

    assert [e.response.data for e in result.executions] == ["ran ls -l"]
    assert server.requests[0]["tools"] == [custom]
    assert server.requests[1]["input"][1:] == [
        {**item, "input": "ls -l"},
        {"type": "custom_tool_call_output", "call_id": "call_1", "output": "ran ls -l"},
    ]


# --- streams --------------------------------------------------------------------------------


def test_a_stream_tells_everything_as_it_comes(serve: Serve) -> None:
    """Thoughts, text and arguments arrive piece by piece; each call is announced once."""
    whole = response(reasoning("rs_1", "Two words"), "So be it", call("call_1", "add", '{"a":1}'))
    server = serve(whole)
    stream = ChatClient.create(server.model()).prompt("?").tool_calling(enabled=False).stream()
    origin = urlsplit(server.url).netloc
    told = [e for e in stream.events() if not hasattr(e, "response")]

    assert told == [
        ReasoningDelta("Two"),
        ReasoningDelta(" words"),
        ReasoningSigned(Reasoning("", None, origin, reasoning("rs_1", "Two words"))),
        *(TextDelta(word) for word in ("So", " be", " it")),
        ToolCallStarted("call_1", "add", 2),
        ToolCallDelta("call_1", '{"a', 2),
        ToolCallDelta("call_1", '":1}', 2),
    ]


@pytest.mark.parametrize(
    "items",
    [
        (reasoning("rs_1", "One. ", "Two."), "text", call("call_1", "add", "{}")),
        (reasoning("rs_1"), reasoning("rs_2", "One."), reasoning("rs_3", "Two."), "text"),
        (message("a", "b", id="m"), message({"type": "refusal", "refusal": "no"}, "c", id="n")),
        (message(id="empty"), {"type": "unknown", "id": "u"}),
        (call("call_1", "add", ""), call("call_2", "add", '{"a":1}'), call("call_3", "add", "{}")),
    ],
)
def test_a_stream_comes_to_the_same_response(items: tuple[Any, ...]) -> None:
    """The joined chunks are, part by part, what the same answer is when it is not streamed."""
    whole = response(*items)

    assert streamed(*events_of(whole)) == decoded(whole)


def interleaved(whole: Json) -> list[Json]:
    """Return the events of *whole*, one of each item in turn."""
    told = [
        [{**event, "output_index": index} for event in item_events(item)]
        for index, item in enumerate(whole["output"])
    ]
    longest = max(map(len, told))
    mixed = [events[at] for at in range(longest) for events in reversed(told) if at < len(events)]
    first, _, *_, last = events_of(whole)
    return [first, *mixed, last]


def test_interleaved_items_keep_the_order_in_which_they_began() -> None:
    """What belongs to a later item is held back until those before it are complete."""
    whole = response(
        message("one two three", id="m"), call("call_1", "add", '{"a":1}'), reasoning("rs_1", "hm")
    )
    again = {**whole, "output": whole["output"][::-1]}

    assert parts_of(streamed(*interleaved(whole))) == parts_of(decoded(again))


def test_ids_may_change_between_the_events_of_an_item() -> None:
    """The place in the output says which item an event is about."""
    events = list(events_of(response(message("a b"), call("call_1", "add", "{}"))))
    renamed = [
        {**event, "item_id": f"i{at}", **({"item": item} if "item" in event else {})}
        for at, event in enumerate(events)
        for item in [{**event.get("item", {}), "id": f"i{at}"}]
    ]
    result = streamed(*renamed)

    assert (result.text, len(parts_of(result))) == ("a b", 3)


@pytest.mark.parametrize("left_out", ["output_index", "item_id"])
def test_either_the_place_or_the_id_tells_items_apart(left_out: str) -> None:
    """Servers that leave out one of the two are understood."""
    whole = response(reasoning("rs_1", "hm"), "a b", call("call_1", "add", '{"a":1}'))
    events = [{k: v for k, v in e.items() if k != left_out} for e in events_of(whole)]

    assert streamed(*events) == decoded(whole)


def test_items_without_place_are_told_as_they_come() -> None:
    """Servers that number nothing, and end all items together, keep nobody waiting."""
    whole = response(
        reasoning("rs_1", "hm"),
        reasoning("rs_2", content=[{"type": "reasoning_text", "text": "so"}]),
        message("a b"),
        call("call_1", "add", "{}"),
        call("call_2", "add", '{"a":1}'),
    )
    thought = {"type": "response.reasoning_text.delta", "item_id": "rs_2", "delta": "so"}
    events = [{k: v for k, v in e.items() if k != "output_index"} for e in events_of(whole)]
    at = next(i for i, e in enumerate(events) if e.get("item", {}).get("id") == "rs_2")
    events.insert(at + 1, thought)
    ends = [e for e in events if e["type"] == "response.output_item.done"]
    events = [e for e in events if e not in ends]
    decoder = StreamDecoder("openai")
    chunks = [decoder.feed(json.dumps(event).encode()) for event in events[:-1]]
    early = collect(chunk for chunk in chunks if chunk is not None)

    assert early.text == "a b"
    assert [c.arguments for c in parts_of(early) if isinstance(c, ToolCall)] == ["{}", '{"a":1}']
    for item in whole["output"][:2]:
        item["status"] = "completed"
    assert streamed(*events[:-1], *ends, events[-1]) == decoded(whole)


def test_what_only_its_end_tells_is_waited_for() -> None:
    """A search on the provider's side has to be complete before what follows it is told."""
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
    whole = response(search, "a b")
    events = [{k: v for k, v in e.items() if k != "output_index"} for e in events_of(whole)]
    done = [e for e in events if e["type"] == "response.output_item.done"]
    others = [e for e in events if e not in done]

    assert streamed(*others[:-1], *done, others[-1]) == decoded(whole)


def test_events_without_place_and_id_belong_to_the_item_that_is_open() -> None:
    """Items that come strictly one after another need neither."""
    items = {**reasoning("rs_1", "hm"), "id": None}, {**message("a b"), "id": None}
    keys = ("output_index", "item_id")
    told = [{k: v for k, v in e.items() if k not in keys} for e in events_of(response(*items))]

    assert streamed(*told) == decoded(response(*items))


def test_a_stream_may_leave_out_whatever_the_last_event_repeats() -> None:
    """Items of which nothing was told are taken from the whole response at the end."""
    whole = response(reasoning("rs_1", "hm"), "a b", call("call_1", "add", '{"a":1}'))
    first, *_, last = events_of(whole)
    delta = {"type": "response.output_text.delta", "output_index": 1, "delta": "a"}

    assert streamed(last) == decoded(whole)
    assert streamed(first, delta, last).text == "a b"


def test_what_the_last_event_leaves_out_was_still_said() -> None:
    """Text without an item's end, and without a place in the whole response, is kept."""
    delta = {"type": "response.output_text.delta", "item_id": "m", "delta": "a"}
    end = {"type": "response.completed"}
    result = streamed(delta, {**delta, "delta": ""}, end)

    assert (result.text, result.finish_reason) == ("a", "stop")


def test_events_that_come_twice_count_once() -> None:
    """An item that was told is not told again, neither by late events nor by other places."""
    events = list(events_of(response("a b")))
    done = next(e for e in events if e["type"] == "response.output_item.done")
    late = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "x"}

    assert streamed(*events[:-1], done, late, events[-1]).text == "a b"


def test_an_index_may_be_used_again() -> None:
    """Servers that give every item the same place are understood, one item after another."""
    items = message("a ", id="m1"), message("b", id="m2"), call("call_1", "add", "{}")
    events = [{**e, "output_index": 0} for item in items for e in item_events(item)]
    result = streamed(*events, {"type": "response.completed", "response": {"output": []}})

    assert result.text == "a b"
    assert result.finish_reason == "tool_call"


def test_calls_without_name_or_id_at_first_are_told_when_they_are_known() -> None:
    """The end of the item holds what its beginning did not."""
    item = call("call_1", "add", '{"a":1}')
    bare = {"type": "response.output_item.added", "output_index": 0, "item": {"type": item["type"]}}
    kind = "response.function_call_arguments.delta"
    delta = {"type": kind, "output_index": 0, "delta": '{"a"'}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    result = streamed(bare, delta, done, {"type": "response.completed"})

    assert parts_of(result) == parts_of(decoded(response(item)))


def spare_events(item: Json) -> list[Json]:
    """Return the events of a call of which only some are sent, as some servers do."""
    field, kind = ("arguments", "function_call_arguments")
    if item["type"] == "custom_tool_call":
        field, kind = ("input", "custom_tool_call_input")
    place = {"output_index": 0, "item_id": item["id"]}
    half = len(item[field]) // 2
    return [
        {"type": "response.output_item.added", "item": {**item, field: ""}, **place},
        {"type": f"response.{kind}.delta", "delta": item[field][:half], **place},
        {"type": f"response.{kind}.done", field: item[field], **place},
        {"type": "response.completed", "response": response(item)},
    ]


CUSTOM = {"type": "custom_tool_call", "id": "ct_1", "call_id": "c", "name": "run", "input": "ls -l"}


@pytest.mark.parametrize("item", [call("call_1", "add", '{"a":1,"b":2}'), CUSTOM])
@pytest.mark.parametrize("told", [(0, 2, 3), (0, 1, 2, 3), (0, 3), (0, 1, 3), (1, 2, 3), (2, 3)])
def test_arguments_are_complete_whichever_event_has_them(item: Json, told: list[int]) -> None:
    """A fragment, the end of the arguments, or nothing but the end of the response."""
    result = streamed(*(spare_events(item)[at] for at in told))

    assert parts_of(result) == parts_of(decoded(response(item)))


@pytest.mark.parametrize("item", [call("call_1", "add", '{"a":1,"b":2}'), CUSTOM])
def test_the_end_of_the_arguments_is_enough(item: Json) -> None:
    """The end of the response may repeat nothing."""
    added, _, done, _ = spare_events(item)
    (made,) = streamed(added, done, {"type": "response.completed"}).generations[0].output.tool_calls

    assert (made.name, made.arguments) == (item["name"], item.get("arguments") or item["input"])


def test_a_tool_gets_arguments_that_come_at_the_end_only(ask: Ask, serve: Serve) -> None:
    """In streams, just as in whole answers."""
    item = call("call_1", "add", '{"a":1,"b":2}')
    added, _, done, last = spare_events(item)
    server = serve(
        lambda asked: [added, done, last] if asked.get("stream") else response(item), "3"
    )
    result = ask(ChatClient.create(server.model()).prompt("1 + 2?").tools(add))

    assert [execution.tool_call.arguments for execution in result.executions] == ['{"a":1,"b":2}']


def test_text_may_come_at_its_end_only() -> None:
    """Some servers tell it once, whole, and nowhere else."""
    place = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    added = {"type": "response.output_item.added", "item": {"type": "message"}, **place}
    delta = {"type": "response.output_text.delta", "delta": "Hel", **place}
    done = {"type": "response.output_text.done", "text": "Hello", **place}
    end = {"type": "response.completed"}

    assert streamed(added, done, end).text == "Hello"
    assert streamed(added, delta, {**delta, "delta": "lo"}, done, end).text == "Hello"


def test_either_the_summary_or_the_thoughts_are_told() -> None:
    """Of the two, whichever comes first; the item holds both."""
    item = reasoning("rs_1", "short", content=[{"type": "reasoning_text", "text": "long"}])
    kind = "response.reasoning_{}.delta"
    place = {"output_index": 0}
    result = streamed(
        {"type": "response.output_item.added", "item": {"type": "reasoning"}, **place},
        {"type": kind.format("text"), "delta": "long", **place},
        {"type": kind.format("summary_text"), "delta": "short", **place},
        {"type": "response.output_item.done", "item": item, **place},
        {"type": "response.completed", "response": {"output": [item]}},
    )

    assert parts_of(result) == (
        Reasoning("long", provider="openai"),
        Reasoning(provider="openai", data=FrozenDict(item)),
    )


def test_events_of_no_interest_are_passed_over() -> None:
    """Keep-alives, events that nobody knows yet, and the sentinel of other APIs."""
    events = list(events_of(response("a")))
    kinds = ("keepalive", "response.web_search_call.searching", "response.not.yet.invented", None)
    noise = [{"type": kind} for kind in kinds]
    decoder = StreamDecoder("openai")
    chunks = [decoder.feed(json.dumps(event).encode()) for event in (*noise, *events, *noise)]
    chunks += [decoder.feed(data) for data in (b"[DONE] ", b"")]
    chunks.extend(decoder.finish(b""))

    assert collect(c for c in chunks if c is not None) == decoded(response("a"))


@pytest.mark.parametrize("ask", ["stream", "astream"], indirect=True)
@pytest.mark.parametrize("cut", ["data: [DONE]\n\n", 'data: {"type":"resp', "\n"])
def test_a_stream_without_its_last_event_is_an_error(ask: Ask, serve: Serve, cut: str) -> None:
    """Whatever it ends in, the error holds what had arrived."""
    events = list(events_of(response(reasoning("rs_1", "hm"), "Once upon a time")))
    body = as_stream(events[:-1]) + cut.encode()
    server = serve(Reply(body, content_type="text/event-stream"))

    with pytest.raises(StreamInterruptedError, match="ended before its answer") as caught:
        ask(ChatClient.create(server.model()).prompt("?"))
    assert caught.value.partial.text == "Once upon a time"


@pytest.mark.parametrize("ask", ["stream", "astream"], indirect=True)
def test_the_last_event_may_lack_its_blank_line(ask: Ask, serve: Serve) -> None:
    """What is complete as JSON is not thrown away for a missing line feed."""
    body = as_stream(events_of(response("a"))).rstrip()
    server = serve(Reply(body, content_type="text/event-stream"))
    result = ask(ChatClient.create(server.model()).prompt("?"))

    assert (result.text, result.response.chat_response.finish_reason) == ("a", "stop")


@pytest.mark.parametrize(
    ("event", "kind"),
    [
        ({"type": "error", "code": "server_error", "message": "sorry"}, OverloadedError),
        (
            {"type": "error", "error": {"code": "insufficient_quota", "message": "sorry"}},
            RateLimitedError,
        ),
        ({"error": {"code": 400, "message": "sorry"}}, InvalidRequestError),
        ({"error": "sorry"}, ProviderError),
    ],
)
def test_an_error_inside_a_stream_is_raised(event: Json, kind: type[Exception]) -> None:
    """In each of the forms in which servers put it."""
    start = {"type": "response.created", "response": response()}

    error = failure_of(start, event)
    assert isinstance(error, kind)
    assert "sorry" in str(error)


def test_a_bare_error_after_a_stream_is_raised() -> None:
    """Even when it is not an event at all."""
    with pytest.raises(RateLimitedError, match="slow"):
        StreamDecoder("openai").finish(b'{"error":{"code":"rate_limit_exceeded","message":"slow"}}')


def test_a_stream_of_something_else_is_an_error() -> None:
    """What is no JSON object is shown."""
    for data in (b"<html>", b"[1]", b'"text"'):
        with pytest.raises(InvalidResponseError, match="not a response"):
            StreamDecoder("openai").feed(data)


@pytest.mark.parametrize(
    "event",
    [
        {"type": "response.output_item.added", "item": "text"},
        {"type": "response.output_text.delta", "delta": {"text": "a"}},
        {"type": "response.function_call_arguments.delta", "delta": {"a": 1}},
        {"type": "response.output_item.done", "item": {"type": "message", "content": "text"}},
        {"type": "response.output_text.delta", "delta": "a", "output_index": [0]},
    ],
)
def test_an_event_of_another_shape_is_an_error(event: Json) -> None:
    """So that a fallback knows it, and steps in."""
    with pytest.raises(InvalidResponseError, match="not a response"):
        StreamDecoder("openai").feed(json.dumps(event).encode())


# --- answers --------------------------------------------------------------------------------


def test_an_answer_that_comes_later_has_no_finish_reason_yet() -> None:
    """In background, the response is queued at first; its id is there."""
    result = decoded(response(status="queued", usage=None))

    assert (result.metadata.id, result.text, result.finish_reason) == ("resp_1", "", None)
    assert result.result is not None
    assert result.result.native_finish_reason == "queued"
    assert not result.usage


def test_a_cancelled_response_keeps_what_it_has() -> None:
    """It ends in error, for which there is no other word."""
    result = decoded(response("Once", status="cancelled"))

    assert (result.text, result.finish_reason) == ("Once", "error")


@pytest.mark.parametrize(
    "data",
    [
        [],
        {"id": "x"},
        {"output": "text"},
        "text",
        {"output": [{"type": "message", "content": "text"}]},
        {"output": [{"type": "message", "content": [None]}]},
        {"output": [{"type": "reasoning", "summary": "text"}]},
        {"output": [{"type": "function_call", "call_id": 1, "name": "add", "arguments": "{}"}]},
        {"output": [], "usage": [1]},
        {"output": [], "usage": {"input_tokens": {}}},
        {"output": [], "incomplete_details": "max_output_tokens"},
    ],
)
def test_json_of_another_form_is_an_error(data: Any) -> None:
    """It is shown as far as it goes."""
    with pytest.raises(InvalidResponseError, match="not a response"):
        decode_response(data, "openai")


def test_an_output_of_null_is_an_empty_one() -> None:
    """As gateways have it whose model said nothing."""
    empty: tuple[list[Json] | None, ...] = ([], None)
    for output in empty:
        answer = decode_response({**response(), "output": output}, "openai")
        assert (answer.text, answer.finish_reason) == ("", "stop")


def test_an_error_with_status_200_is_an_error() -> None:
    """Some servers answer so; its words tell its kind."""
    data = {"error": {"type": "authentication_error", "message": "wrong API key"}}
    with pytest.raises(AuthenticationError, match="check the API key"):
        decode_response(data, "openai")


def test_an_answer_that_is_no_json_is_an_error(ask: Ask, serve: Serve) -> None:
    """It is shown as far as it goes."""
    server = serve(Reply(b"<html>", content_type="text/html"))

    with pytest.raises(InvalidResponseError):
        ask(ChatClient.create(server.model()).prompt("?"))


def test_an_image_can_be_seen_and_goes_back_unchanged() -> None:
    """A generated image is a medium of the message, and the same item when it is sent."""
    encoded = base64.b64encode(PNG).decode()
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
    image = {**item, "result": encoded, "output_format": "webp"}
    output = decoded(response(image, "There.")).output
    assert output is not None

    assert [(m.mime_type, m.data) for m in output.media] == [("image/webp", PNG)]
    assert input_of(output)[0] == image


@pytest.mark.parametrize("result", [None, "no base 64", "QQ==\n"])
def test_an_image_that_cannot_be_read_is_kept_as_it_is(result: str | None) -> None:
    """What cannot be made again from its bytes stays JSON."""
    item = {"type": "image_generation_call", "id": "ig_1", "status": "failed", "result": result}
    output = decoded(response(item)).output
    assert output is not None

    assert not output.media
    assert input_of(output) == [item]


def test_arguments_may_come_as_an_object() -> None:
    """Then they are the text that it is in JSON."""
    item = {**call("call_1", "add", ""), "arguments": {"a": 1}}

    assert decoded(response(item)).output == AssistantMessage(
        [ToolCall("call_1", "add", '{"a":1}', FrozenDict({"openai": {"id": "fc_call_1", **DONE}}))]
    )


DONE = {"status": "completed"}


def test_a_call_that_says_nothing_more_has_no_metadata() -> None:
    """Some servers send only what is needed; without a call id, the item's own will do."""
    item = {"type": "function_call", "name": "add", "arguments": "{}"}
    (known,) = parts_of(decoded(response({**item, "call_id": "call_1"})))
    (other,) = parts_of(decoded(response({**item, "id": "fc_1"})))

    assert known == ToolCall("call_1", "add", "{}")
    assert isinstance(other, ToolCall)
    assert other.id == "fc_1"


def test_answers_survive_being_stored() -> None:
    """Out of memory's JSON, a message is sent as the same items."""
    items = (reasoning("rs_1", "hm"), message("a", "b", phase="final_answer"))
    output = decoded(response(*items, call("call_1", "add", "{}"))).output
    assert output is not None
    stored = message_from_dict(json.loads(json.dumps(message_to_dict(output))))

    assert stored == output
    assert input_of(stored) == [*items, call("call_1", "add", "{}")]


# --- messages -------------------------------------------------------------------------------


def test_system_messages_are_items_of_the_role_asked_for() -> None:
    """As `system` unless the options say `developer`."""
    said = SystemMessage("Be brief.")

    assert input_of(said) == [{"role": "system", "content": "Be brief."}]
    assert input_of(said, system_role="developer")[0]["role"] == "developer"


def test_a_user_shows_images() -> None:
    """Each in the form the API has for it, in the order given."""
    parts: list[str | Media] = [
        "Look:",
        Media("image/png", PNG),
        Media("image/png", "https://a.b/c.png", metadata={"detail": "low"}),
        Media("image/png", "", id="file_1"),
    ]
    (item,) = input_of(UserMessage(parts))

    assert item["content"] == [
        {"type": "input_text", "text": "Look:"},
        {
            "type": "input_image",
            "detail": "auto",
            "image_url": "data:image/png;base64,iVBORw0KGgo=",
        },
        {"type": "input_image", "detail": "low", "image_url": "https://a.b/c.png"},
        {"type": "input_image", "detail": "auto", "file_id": "file_1"},
    ]


def test_a_sound_is_refused_with_a_word_on_who_takes_it() -> None:
    """The API has no form for one."""
    for content in (b"\1", "data:audio/mpeg;base64,AQ=="):
        with pytest.raises(UsageError, match=r"not take audio/mpeg; .* OpenAIChatModel"):
            input_of(UserMessage([Media("audio/mpeg", content)]))


@pytest.mark.parametrize("written", ['{"a": 2, "b":', "[2, 3]", "two and three"])
def test_malformed_arguments_do_not_spoil_the_conversation(
    written: str, ask: Ask, serve: Serve
) -> None:
    """Servers that parse the history would refuse every later request."""
    server = serve(response(call("call_1", "add", written)), "What?")
    client = ChatClient.create(server.model())
    ask(client.prompt("2 + 3?").tools(add))
    sent = server.requests[1]["input"][1]

    assert json.loads(sent["arguments"]) == {"malformed_arguments": written}


def test_arguments_that_are_fine_go_back_as_they_were_written() -> None:
    """To the letter, so that what the provider caches stays the same."""
    output = decoded(response(call("call_1", "add", '{ "a":2,"b" : 3.0 }'))).output
    assert output is not None

    assert input_of(output)[0]["arguments"] == '{ "a":2,"b" : 3.0 }'


def test_a_name_that_no_tool_can_have_is_sent_as_one() -> None:
    """The model made it up, and the API would refuse the whole conversation for it."""
    (call,) = input_of(AssistantMessage("", [ToolCall("c", "functions.add", "{}")]))

    assert call["name"] == "functions_add"


def test_ids_are_as_short_as_the_api_wants_them() -> None:
    """A conversation that began with another server goes on; a call and its result stay a pair."""
    long, fits = "a" * 65, "b" * 64
    for id, kept in ((long, False), (fits, True)):
        made = AssistantMessage("", [ToolCall(id, "add", "{}")])
        call, output = input_of(made, ToolResponseMessage([ToolResponse(id, "add", "3")]))

        assert call["call_id"] == output["call_id"]
        assert len(call["call_id"]) == 64
        assert (call["call_id"] == id) is kept


@pytest.mark.parametrize(
    ("media", "sent"),
    [
        (Media("audio/mpeg", "https://a.b/c.mp3"), {"file_url": "https://a.b/c.mp3"}),
        (Media("application/pdf", b"", id="file_2"), {"file_id": "file_2"}),
        (
            Media("application/pdf", b"%PDF"),
            {"filename": "file.pdf", "file_data": "data:application/pdf;base64,JVBERg=="},
        ),
        (
            Media("text/plain", "data:text/plain,hi", name="a.txt"),
            {"filename": "a.txt", "file_data": "data:text/plain,hi"},
        ),
        (
            Media("application/x-own", b"x"),
            {"filename": "file", "file_data": "data:application/x-own;base64,eA=="},
        ),
    ],
)
def test_a_user_attaches_files(media: Media, sent: Json) -> None:
    """By address, by the provider's id, or as they are; then the name tells their kind."""
    (item,) = input_of(UserMessage([media]))

    assert item["content"] == [{"type": "input_file", **sent}]


def test_a_user_may_send_what_only_this_api_knows() -> None:
    """Content goes into the message, other items stand beside it, foreign parts become text."""
    marked = {"type": "input_text", "text": "a", "prompt_cache_breakpoint": {"ttl": "1h"}}
    approval = {"type": "mcp_approval_response", "approval_request_id": "mcpr_1", "approve": True}
    parts = [
        ProviderPart("openai", FrozenDict(marked)),
        ProviderPart("openai", FrozenDict(approval)),
        ProviderPart("openai", FrozenDict({"type": "text", "text": "b"}), "b"),
        ProviderPart("gemini", FrozenDict({}), "c"),
    ]

    assert input_of(UserMessage(parts[1:2])) == [approval]
    assert input_of(UserMessage(parts)) == [
        {"role": "user", "content": [marked]},
        approval,
        {
            "role": "user",
            "content": [{"type": "input_text", "text": "b"}, {"type": "input_text", "text": "c"}],
        },
    ]


def test_messages_without_content() -> None:
    """An empty user message is sent, an empty one of the assistant is not."""
    messages = UserMessage(""), AssistantMessage(""), AssistantMessage([ToolCallChunk(0)])

    assert input_of(*messages) == [{"role": "user", "content": ""}]


def test_a_tool_may_answer_with_images() -> None:
    """They are part of the call's output."""
    image = Media("image/png", PNG)
    shown = {"type": "input_image", "detail": "auto", "image_url": image.url()}
    responses = [
        ToolResponse("call_1", "look", "a cat", media=(image,)),
        ToolResponse("call_2", "look", "", media=(image,)),
    ]

    assert [item["output"] for item in input_of(ToolResponseMessage(responses))] == [
        [{"type": "input_text", "text": "a cat"}, shown],
        [shown],
    ]


def test_other_kinds_of_messages_cannot_be_sent() -> None:
    """The error names the kind."""
    with pytest.raises(UsageError, match="Message is not a kind of message"):
        body_of(Message())


def test_reasoning_that_the_provider_has_forgotten_is_left_out() -> None:
    """Where nothing is stored, an id alone is unknown; thoughts in clear text are not."""
    bare = {"id": "rs_1", "type": "reasoning", "summary": []}
    clear = {**bare, "content": [{"type": "reasoning_text", "text": "hm"}], "status": None}
    output = decoded(response(bare, "a", clear, "b")).output
    assert output is not None
    sent = {key: value for key, value in clear.items() if value is not None}

    assert [i for i in input_of(output) if i["type"] == "reasoning"] == [sent]
    assert [i for i in input_of(output, store=True) if i["type"] == "reasoning"] == [bare, sent]


def test_reasoning_that_nobody_kept_is_not_missed(ask: Ask, serve: Serve) -> None:
    """`'function_call' was provided without its required 'reasoning' item`: by its id."""
    bare, asked = {"id": "rs_1", "type": "reasoning", "summary": []}, call("call_1", "add", SUM)
    server = serve(response(bare, asked), "It is 5.")
    client = ChatClient.create(server.model())
    ask(client.prompt("2 + 3?").tools(add).options(model="my-deployment"))

    assert server.requests[1]["input"][1:] == [
        {key: value for key, value in asked.items() if key != "id"},
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]


def test_what_is_not_missed_keeps_its_id() -> None:
    """Only what followed the reasoning that is gone needed it."""
    bare = {"id": "rs_1", "type": "reasoning", "summary": []}
    known = reasoning("rs_2", "hm")
    before, between, after = (message(text, id=f"msg_{text}") for text in "abc")
    output = decoded(response(before, bare, between, known, after)).output
    assert output is not None

    plain = {"type": "message", "role": "assistant", "content": "b"}
    assert input_of(output) == [before, plain, known, after]


def test_reasoning_that_led_to_nothing_is_left_out() -> None:
    """The service refuses it without the item that follows it."""
    cut = decoded(response(reasoning("rs_1", "hm"), status="incomplete")).output
    assert cut is not None

    assert input_of(cut, store=True) == []


def test_a_refusal_goes_back_as_the_refusal_that_it_was() -> None:
    """In a streamed answer, too, where empty pieces say nothing."""
    item = message("a", {"type": "refusal", "refusal": "no"}, phase="final_answer")
    empty = {"type": "response.refusal.done", "output_index": 0, "refusal": ""}
    first, added, *rest = events_of(response(item))
    for result in (decoded(response(item)), streamed(first, added, empty, *rest)):
        assert result.output is not None
        assert result.text == "ano"
        assert input_of(result.output) == [item]


def test_text_that_was_taken_out_leaves_nothing_behind() -> None:
    """A message whose text is gone is not sent; of several, the first gets the new text."""
    two = decoded(response(message("a", id="m1"), message("b", id="m2"))).output
    assert two is not None

    assert input_of(two.mutate(text="")) == []
    assert input_of(two.mutate(text="new")) == [message("new", id="m1")]


def test_messages_without_id_go_back_in_the_plain_form() -> None:
    """It is the only valid one for them; the phase is kept."""
    item = message("a", phase="commentary")
    del item["id"]
    output = decoded(response(item)).output
    assert output is not None

    plain = {"type": "message", "role": "assistant", "content": "a", "phase": "commentary"}
    assert input_of(output) == [plain]


def test_a_custom_call_without_its_tool_is_sent_as_a_function_call() -> None:
    """Call and output stay a pair when the tool is no longer offered."""
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "x", "input": "hi"}
    output = decoded(response(item)).output
    assert output is not None
    answer = ToolResponseMessage([ToolResponse("call_1", "x", "ho")])

    assert [i["type"] for i in input_of(output, answer)] == [
        "function_call",
        "function_call_output",
    ]


def test_a_message_is_encoded_once() -> None:
    """Its wire form is kept for as long as it is sent in the same form."""
    model = OpenAIResponsesChatModel(api_key="key")
    said = UserMessage("Hi")
    prompt = Prompt([said], model.options)
    first = model._body(prompt, streaming=False)

    assert said.wire(form_for(model.options)) == b'{"role":"user","content":"Hi"}'
    assert model._body(prompt, streaming=False) == first
    stored = prompt.with_options(model.options.mutate(store=True))
    assert b'"store":true' in model._body(stored, streaming=False)


def test_a_conversation_that_goes_on_is_not_joined_anew() -> None:
    """Later rounds add to what was sent; another conversation begins afresh."""
    model = OpenAIResponsesChatModel(api_key="key")
    prompt = Prompt([UserMessage("a"), AssistantMessage("")], model.options)
    longer = prompt.append(AssistantMessage("b"), UserMessage("c"))
    sent = [
        json.loads(model._body(each, streaming=False))["input"]
        for each in (prompt, longer, longer, prompt, Prompt("d", model.options))
    ]

    assert [[item["content"] for item in items] for items in sent] == [
        ["a"],
        ["a", "b", "c"],
        ["a", "b", "c"],
        ["a"],
        ["d"],
    ]


# --- options --------------------------------------------------------------------------------


def test_every_option_has_its_field() -> None:
    """Names differ, and some options share a field."""
    assert options_of(
        temperature=0.5,
        max_tokens=100,
        stop=(),
        reasoning_effort="low",
        reasoning_summary="auto",
        verbosity="low",
        response_format={"type": "json_object"},
        request_metadata={"a": "b"},
        previous_response_id="resp_0",
        truncation="auto",
        prompt_cache_key="k",
        top_logprobs=2,
        extra={"moderation": {"model": "m"}},
    ) == {
        "temperature": 0.5,
        "max_output_tokens": 100,
        "reasoning": {"effort": "low", "summary": "auto"},
        "text": {"verbosity": "low", "format": {"type": "json_object"}},
        "metadata": {"a": "b"},
        "previous_response_id": "resp_0",
        "truncation": "auto",
        "prompt_cache_key": "k",
        "top_logprobs": 2,
        "moderation": {"model": "m"},
    }


@pytest.mark.parametrize(
    ("url", "has_them"), [("https://api.openai.com/v1", False), ("http://vllm.test/v1", True)]
)
def test_options_that_openai_lacks_are_not_sent_to_it(url: str, *, has_them: bool) -> None:
    """So options can be set once for several models, although it refuses unknown fields."""
    sent: list[Json] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=response("ok"))

    options = ChatOptions(
        top_k=5, stop="x", seed=7, presence_penalty=0.1, frequency_penalty=0.2, top_p=0.5
    )
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        model = OpenAIResponsesChatModel(
            api_key="k", base_url=url, http_client=client, options=options
        )
        assert model.call("x").text == "ok"

    lacked = {"top_k", "stop", "seed", "presence_penalty", "frequency_penalty"}
    assert sent[0].keys() & lacked == (lacked if has_them else set())
    assert sent[0]["top_p"] == 0.5


@pytest.mark.parametrize(
    ("model", "asked"),
    [
        *(
            (name, True)
            for name in ("gpt-5", "o3-mini", "openai/gpt-5.4", "ft:o4-mini:x", "grok-4")
        ),
        *((name, False) for name in ("gpt-4o", "gpt-5-chat-latest", "gpt-oss-20b", "deepseek-v4")),
    ],
)
def test_only_reasoning_models_are_asked_for_their_reasoning(model: str, *, asked: bool) -> None:
    """Others refuse the request."""
    assert ("include" in options_of(model=model)) is asked


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        *((name, True) for name in ("gpt-5", "o3-mini", "gpt-6-sol", "gpt-oss-20b", "mine")),
        *((name, False) for name in ("gpt-4o", "ft:gpt-4.1:x", "chatgpt-4o-latest")),
        ("openai/gpt-5-chat-latest", False),
    ],
)
def test_only_models_known_to_refuse_reasoning_are_sent_none(model: str, *, taken: bool) -> None:
    """A deployment may have any name."""
    output = decoded(response(reasoning("rs_1", "hm"), "a")).output
    assert output is not None

    assert ("reasoning" in {item["type"] for item in input_of(output, model=model)}) is taken


def test_the_providers_own_calls_go_with_the_reasoning_that_led_to_them() -> None:
    """They are refused without it: `'web_search_call' was provided without its ...`."""
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
    encoded = base64.b64encode(PNG).decode()
    image = {"id": "ig_1", "type": "image_generation_call", "result": encoded}
    odd = {"id": "x", "type": 7}
    items = reasoning("rs_1", "hm"), search, image, odd, message("Found.")
    output = decoded(response(*items)).output
    assert output is not None

    said = {"type": "message", "role": "assistant", "content": "Found."}
    assert input_of(output, model="gpt-4.1") == [odd, said]
    own = input_of(AssistantMessage(output.parts[2:]), model="gpt-4.1")
    assert own[:1] == [search]


def test_include_adds_to_the_reasoning_unless_it_is_empty() -> None:
    """Stored answers need no encrypted reasoning."""
    both = ["web_search_call.action.sources", "reasoning.encrypted_content"]

    assert options_of(model="gpt-5", include=both[:1])["include"] == both
    assert options_of(model="gpt-5", include=tuple(both))["include"] == both
    assert "include" not in options_of(model="gpt-5", include=())
    assert "include" not in options_of(model="gpt-5", store=True)


def test_an_answer_in_background_is_stored() -> None:
    """It has to be, to be fetched; anything else only when asked."""
    later = OpenAIResponsesChatOptions(background=True)
    stored = [
        encode_options(options, streaming=True)["store"]
        for options in (later, later.mutate(store=False), OpenAIResponsesChatOptions())
    ]

    assert stored == [True, False, False]


def tool_of(name: str = "add", *, strict: bool | None = None) -> Any:
    shell = Shell()
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    shell.definition = ToolDefinition(name, "d", schema, strict)
    return shell


def test_tools_say_whether_they_are_strict() -> None:
    """The tool's own word counts, then the option; left out, it would mean true."""
    tools = tuple(tool_of(strict=strict) for strict in (None, True, False))
    opened = Shell()

    assert [t["strict"] for t in options_of(tool_callbacks=tools)["tools"]] == [False, True, False]
    strict = options_of(tool_callbacks=(*tools, opened), strict_tools=True)["tools"]
    assert [t["strict"] for t in strict] == [True, True, False, False]


def test_a_strict_tool_has_the_form_that_strict_mode_takes() -> None:
    """What it does not know is left out, instead of refused."""
    shell = tool_of()
    known = {**shell.definition.input_schema, "properties": {"a": {"type": "string"}}}
    known["required"] = ["a"]
    linked = {**known, "properties": {"a": {"type": "string", "format": "uri"}}}
    shell.definition = ToolDefinition("open", "d", linked)
    (sent,) = options_of(tool_callbacks=(shell,), strict_tools=True)["tools"]

    assert (sent["strict"], sent["parameters"]) == (True, known)


def test_tools_of_both_sides_are_offered() -> None:
    """The application's first; without any, nothing is said about choosing."""
    search: Json = {"type": "web_search"}
    options: Json = {"tool_choice": "auto", "parallel_tool_calls": False}
    body = options_of(tool_callbacks=(tool_of(),), server_tools=(search,), **options)

    assert [t["type"] for t in body["tools"]] == ["function", "web_search"]
    assert (body["tool_choice"], body["parallel_tool_calls"]) == ("auto", False)
    assert options_of(**options) == {}


@pytest.mark.parametrize(
    ("choice", "sent"),
    [
        ("required", "required"),
        ("add", {"type": "function", "name": "add"}),
        ("web_search", {"type": "web_search"}),
        ("wiki", {"type": "mcp", "server_label": "wiki"}),
        ("shell", {"type": "custom", "name": "shell"}),
    ],
)
def test_a_tool_can_be_chosen_by_its_name(choice: str, sent: Any) -> None:
    """Whichever side it is on."""
    builtin = (
        {"type": "mcp", "server_label": "wiki"},
        {"type": "custom", "name": "shell"},
        {"type": "web_search"},
    )

    assert options_of(server_tools=builtin, tool_choice=choice)["tool_choice"] == sent


def test_options_of_the_other_api_are_understood_where_they_are_the_same() -> None:
    """What only Chat Completions has is dropped when the model takes its options."""
    given = OpenAIChatOptions(verbosity="low", n=2)
    model = OpenAIResponsesChatModel(api_key="key", options=given)

    assert isinstance(model.options, OpenAIResponsesChatOptions)
    assert model.options.verbosity == "low"
    assert encode_options(given, streaming=False) == {"store": False, "text": {"verbosity": "low"}}


# --- the model ------------------------------------------------------------------------------


def test_a_key_is_needed_for_openai_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error says where it can come from; it is never shown."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        OpenAIResponsesChatModel("gpt-5")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    model = OpenAIResponsesChatModel("gpt-5")
    assert repr(model) == (
        "OpenAIResponsesChatModel('gpt-5', base_url='https://api.openai.com/v1')"
    )


def test_the_address_can_come_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    """Another server may want no key; errors do not blame OpenAI for it."""
    server = serve(Reply(b"{}", 500))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    with OpenAIResponsesChatModel(max_retries=0) as model, pytest.raises(OverloadedError) as error:
        model.call("Hi")

    assert error.value.provider == "openai-compatible"
    assert "authorization" not in server.headers[0]


def test_a_model_can_be_asked_directly_and_closed(serve: Serve) -> None:
    """Blocking and on a loop; each stream chunk is a response of its own."""
    server = serve(response("a b"))

    async def ask() -> tuple[str, str]:
        async with server.model() as model:
            answer = await model.acall("Hi")
            chunks = [chunk async for chunk in model.astream("Hi")]
            direct = await model.generate(Prompt("Hi", ChatOptions(model="m")), ON_LOOP)
            return answer.text + direct.text, collect(chunks).text

    assert asyncio.run(ask()) == ("a ba b", "a b")
    with server.model() as model:
        assert collect(model.stream("Hi")) == model.call("Hi")


# --- the test server is honest --------------------------------------------------------------

EVERYTHING = response(
    reasoning("rs_1", "hm", "well"),
    message(output_text("a b c"), phase="commentary"),
    call("call_1", "add", '{"a":1,"b":2}'),
    message({"type": "refusal", "refusal": "no more"}, id="msg_2"),
)


def test_the_official_client_understands_the_test_server(serve: Serve) -> None:
    """It finds in the answer, whole or streamed, what was put there."""
    import openai

    server = serve(EVERYTHING)
    with openai.OpenAI(base_url=server.url, api_key="key", max_retries=0) as client:
        whole = client.responses.create(model="m", input=[], store=False)
        with client.responses.stream(model="m", input=[], store=False) as stream:
            final = stream.get_final_response()

    for answer in (whole, final):
        assert answer.output_text == "a b c"
        found = [json.loads(item.to_json(exclude_unset=True)) for item in answer.output]
        assert [item["type"] for item in found] == [i["type"] for i in EVERYTHING["output"]]
        assert found[2]["arguments"] == '{"a":1,"b":2}'


@needs_recordings
def test_what_goes_both_ways_is_valid(serve: Serve) -> None:
    """Requests of a tool loop, and the test server's answers, satisfy the official schemas."""
    jsonschema = pytest.importorskip("jsonschema")

    def validate(value: Any, name: str) -> None:
        schema = json.loads(RECORDINGS.joinpath("schemas", f"openai-{name}.json").read_text())
        jsonschema.Draft202012Validator(schema).validate(value)

    server = serve(response(*EVERYTHING["output"][:3]), "It is 3.")
    client = ChatClient.create(server.model())
    client.prompt("?").system("Be brief.").tools(add).call().content()
    for request in server.requests:
        validate(request, "responses-request")
    validate(EVERYTHING, "responses-response")
    for at, event in enumerate(events_of(EVERYTHING)):
        validate({**event, "sequence_number": at}, "responses-stream-event")
