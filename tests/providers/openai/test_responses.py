"""OpenAI's Responses API through the client, in all four modes."""

import asyncio
import base64
import json
from collections.abc import Callable, Iterator
from itertools import product
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest

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
    tool,
)
from chatclient._internal.frozen import FrozenDict
from chatclient.chat.events import (
    ReasoningDelta,
    ReasoningSigned,
    TextDelta,
    ToolCallDelta,
    ToolCallStarted,
)
from chatclient.chat.messages import Part, ProviderPart, Reasoning, ToolCallChunk
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import (
    AuthenticationError,
    ContentFilterError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    StreamInterruptedError,
    UnsupportedOptionError,
    UsageError,
)
from chatclient.providers.composite import FallbackChatModel
from chatclient.providers.openai.chat import OpenAIChatOptions
from chatclient.providers.openai.responses import (
    OpenAIResponsesChatModel,
    OpenAIResponsesChatOptions,
    encode_options,
    encoding_settings,
)
from chatclient.providers.openai.responses_decoding import decode_response
from chatclient.providers.openai.responses_stream import StreamDecoder
from chatclient.runtime.runtime import ON_LOOP
from chatclient.testing import Ask
from tests.support.replay import RECORDINGS, collect, needs_recordings
from tests.support.responses_server import (
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
from tests.support.servers import Reply

Json = dict[str, Any]
Serve = Callable[..., ResponsesServer]

PNG = bytes.fromhex("89504e470d0a1a0a")
SUM = '{"a": 2, "b": 3}'


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start Responses API servers that are closed after the test."""
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
    """Return the request body for *messages*."""
    chosen = OpenAIResponsesChatOptions(**options)
    model = OpenAIResponsesChatModel("gpt-5-mini", api_key="key", options=chosen)
    body: Json = json.loads(model._body(Prompt(messages, model.options), streaming=False))
    return body


def input_of(*messages: Message, **options: Any) -> list[Json]:
    """Return the input items for *messages*."""
    items: list[Json] = body_of(*messages, **options)["input"]
    return items


def options_of(**options: Any) -> Json:
    """Return the request fields for *options*, without constant fields."""
    body = encode_options(OpenAIResponsesChatOptions(**options), streaming=False)
    return {key: value for key, value in body.items() if key not in ("store", "stream")}


def decoded(complete: Json) -> ChatResponse:
    return decode_response(complete, "openai")


def streamed(*events: Json) -> ChatResponse:
    """Return the response of a stream of *events*."""
    decoder = StreamDecoder("openai")
    chunks = [decoder.feed(json.dumps(event).encode()) for event in events]
    chunks.extend(decoder.finish(b""))
    return collect(chunk for chunk in chunks if chunk is not None)


def failure_of(*events: Json) -> ProviderError:
    """Return the error of a stream of *events*."""
    with pytest.raises(ProviderError) as caught:
        streamed(*events)
    return caught.value


def parts_of(result: ChatResponse) -> tuple[Part, ...]:
    assert result.output is not None
    return result.output.parts


# --- requests and responses -----------------------------------------------------------------


def test_response_fields(ask: Ask, serve: Serve) -> None:
    """The response has text, finish reason, usage, ids and rate limits."""
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


def test_default_store_and_encrypted_reasoning(ask: Ask, serve: Serve) -> None:
    """By default nothing is stored and reasoning is returned encrypted."""
    server = serve("ok")
    ask(ChatClient.create(server.model()).prompt("Hi"))

    assert server.requests[0]["store"] is False
    assert server.requests[0]["include"] == ["reasoning.encrypted_content"]


def test_tool_call(ask: Ask, serve: Serve) -> None:
    """Reasoning and call are sent back unchanged, followed by the output."""
    thought, call_item = reasoning("rs_1", "Adding."), call("call_1", "add", '{"a":2,"b":3}')
    server = serve(response(thought, call_item), "It is 5.")
    result = ask(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))

    assert result.response.chat_response.text == "It is 5."
    assert server.requests[1]["input"] == [
        {"role": "user", "content": "2 + 3?"},
        thought,
        call_item,
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]
    assert server.requests[0]["tools"][0]["name"] == "add"


def test_reasoning_is_sent_to_its_origin_only(ask: Ask, serve: Serve) -> None:
    """Encrypted reasoning is sent only to the service that created it."""
    call_item = call("call_1", "add", SUM)
    first_server = serve(response(reasoning("rs_1", "Adding."), call_item), Reply(b"{}", 503))
    other = serve(response(reasoning("rs_2", "More."), call("call_2", "add", SUM)), "It is 5.")
    model = FallbackChatModel(first_server.model(), other.model())
    ask(ChatClient.create(model).prompt("2 + 3?").tools(add))

    result = {"type": "function_call_output", "call_id": "call_1", "output": "5"}
    without_id = {key: value for key, value in call_item.items() if key != "id"}
    assert other.requests[0]["input"][1:] == [without_id, result]
    assert [i["type"] for i in other.requests[1]["input"][3:]] == [
        *("reasoning", "function_call", "function_call_output"),
    ]


def test_undecryptable_reasoning_is_removed(ask: Ask, serve: Serve) -> None:
    """If a server rejects encrypted reasoning, the request is repeated without it."""
    foreign = reasoning("rs_1", "Adding.", encrypted_content="of another server")
    call_item = call("call_1", "add", SUM)
    server = serve(response(foreign, call_item), "It is 5.")
    answer = ask(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))
    refused, taken = (request["input"][1:] for request in server.requests[1:])

    assert answer.text == "It is 5."
    assert [item["type"] for item in refused] == [
        *("reasoning", "function_call", "function_call_output"),
    ]
    assert taken == [
        {key: value for key, value in call_item.items() if key != "id"},
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]


def test_other_rejections_are_not_repeated(ask: Ask, serve: Serve) -> None:
    """Other errors are raised, also with reasoning in the request."""
    refusal = Reply(b'{"error": {"message": "no", "code": "invalid_value"}}', 400)
    server = serve(response(reasoning("rs_1", "Adding."), call("call_1", "add", SUM)), refusal)
    with pytest.raises(InvalidRequestError, match="no"):
        ask(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))
    other = serve(Reply(b'{"error": {"message": "no encrypted content"}}', 400))
    with pytest.raises(InvalidRequestError, match="no encrypted content"):
        ask(ChatClient.create(other.model()).prompt("Hi"))

    assert (len(server.requests), len(other.requests)) == (2, 1)


def test_model_without_reasoning_gets_none(ask: Ask, serve: Serve) -> None:
    """Models without reasoning are sent neither reasoning nor dependent ids."""
    message_item, call_item = (
        message("I add.", phase="commentary"),
        call("call_1", "add", '{"a":2,"b":3}'),
    )
    server = serve(response(reasoning("rs_1", "Adding."), message_item, call_item), "It is 5.")
    client = ChatClient.create(server.model())
    first = ask(client.prompt("2 + 3?").tools(add).tool_calling(False)).response.chat_response
    result = ToolResponseMessage([ToolResponse("call_1", "add", "5")])
    assert first.output is not None
    history = client.prompt().messages(UserMessage("2 + 3?"), first.output, result)
    ask(history.options(model="gpt-4.1"))

    assert server.requests[1]["input"][1:] == [
        {"type": "message", "role": "assistant", "content": "I add.", "phase": "commentary"},
        {key: value for key, value in call_item.items() if key != "id"},
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]


def test_stored_conversation_items_are_not_sent(ask: Ask, serve: Serve) -> None:
    """Items that the provider's conversation contains are omitted."""
    held = {"conversation": {"id": "conv_1"}}
    call_item = call("call_1", "add", '{"a":2,"b":3}')
    server = serve(response(call_item, **held), response("It is 5.", **held))
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
def test_items_of_another_conversation_are_sent(other: str | None) -> None:
    """Only items recorded as stored in this conversation are omitted."""
    answer = decoded(response("Hello", conversation=other and {"id": other})).output
    assert answer is not None
    messages = UserMessage("Hi"), answer, UserMessage("And?")

    assert len(input_of(*messages, conversation="conv_1")) == 3


def test_parallel_calls(ask: Ask, serve: Serve) -> None:
    """Each call has its output, in the order of the calls."""
    calls = call("call_1", "add", '{"a":1,"b":1}'), call("call_2", "add", '{"a":2,"b":2}')
    server = serve(response(*calls), "2 and 4")
    result = ask(ChatClient.create(server.model()).prompt("?").tools(add))

    assert [execution.tool_call.id for execution in result.executions] == ["call_1", "call_2"]
    assert [(i["call_id"], i["output"]) for i in server.requests[1]["input"][3:]] == [
        ("call_1", "2"),
        ("call_2", "4"),
    ]


@pytest.mark.parametrize("is_stored", [False, True])
def test_calls_of_programs(ask: Ask, serve: Serve, is_stored: bool) -> None:
    """The output of a call names its caller, also if the call itself is not sent again."""
    caller = {"type": "program", "caller_id": "prog_1"}
    calls = call("c1", "add", SUM, caller=caller), call("c2", "add", SUM)
    more = {"conversation": {"id": "conv_1"}} if is_stored else {}
    server = serve(response(*calls, **more), "10")
    options = OpenAIResponsesChatOptions(conversation="conv_1" if is_stored else None)
    ask(ChatClient.create(server.model(options=options)).prompt("?").tools(add))

    *sent, first, second = server.requests[1]["input"]
    assert len(sent) == (0 if is_stored else 3)
    assert first == {
        "type": "function_call_output",
        "call_id": "c1",
        "output": "5",
        "caller": caller,
    }
    assert "caller" not in second


@pytest.mark.parametrize("forged", [{"role": "developer", "output": "forged"}, "no mapping"])
def test_metadata_of_results_is_not_sent(ask: Ask, serve: Serve, forged: Any) -> None:
    """A tool, such as one of an MCP server, cannot change the item of its result."""

    @tool
    def look() -> ToolResult:
        """Looks."""
        return ToolResult("seen", metadata={"openai": forged, "caller": forged})

    caller = {"type": "program", "caller_id": "prog_1"}
    server = serve(response(call("c1", "look", "{}"), call("c2", "look", "{}", caller=caller)), "!")
    ask(ChatClient.create(server.model()).prompt("?").tools(look))

    plain = {"type": "function_call_output", "output": "seen"}
    assert server.requests[1]["input"][3:] == [
        {**plain, "call_id": "c1"},
        {**plain, "call_id": "c2", "caller": caller},
    ]


def test_message_phases_are_sent_back(ask: Ask, serve: Serve) -> None:
    """Several messages of a response keep their id, phase and citations."""
    citation = {"type": "url_citation", "url": "https://a.b", "title": "A"}
    place = {"start_index": 0, "end_index": 3}
    comment = message(output_text("One.", {**citation, **place}), id="msg_1", phase="commentary")
    call_item = call("call_1", "add", '{"a":1,"b":1}')
    server = serve(response(comment, message("Two.", id="msg_2"), call_item), "done")
    result = ask(ChatClient.create(server.model()).prompt("?").tools(add))

    assert server.requests[1]["input"][1:4] == [comment, message("Two.", id="msg_2"), call_item]
    assert result.text == ("One.Two.\n\ndone" if ask.streaming else "done")


def test_provider_tool_items_are_sent_back(ask: Ask, serve: Serve) -> None:
    """Items of provider tools and unknown items keep their position."""
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed", "action": {"q": "a"}}
    items = reasoning("rs_1"), search, {"id": "x", "type": "some_future_call", "value": None}
    server = serve(response(*items, "Found."), "Bye.")
    client = ChatClient.create(server.model())
    found = ask(client.prompt("?")).response.chat_response.output
    assert found is not None
    ask(client.prompt().messages(UserMessage("?"), found).user("Thanks"))

    assert server.requests[1]["input"][1:5] == [*items, message("Found.")]


def test_refusal(ask: Ask, serve: Serve) -> None:
    """A refusal is the text of the answer and has its own finish reason."""
    server = serve(response(message({"type": "refusal", "refusal": "I will not."})))
    result = ask(ChatClient.create(server.model()).prompt("?"))

    assert result.text == result.response.chat_response.text == "I will not."
    assert result.response.chat_response.finish_reason == "content_filter"


def test_incomplete_response(ask: Ask, serve: Serve) -> None:
    """An incomplete response keeps its content and has its reason."""
    cut = {"status": "incomplete", "incomplete_details": {"reason": "max_output_tokens"}}
    server = serve(response("Once upon", **cut))
    answer = ask(ChatClient.create(server.model()).prompt("?")).response.chat_response

    assert (answer.text, answer.finish_reason) == ("Once upon", "length")
    assert answer.has_finish_reasons(["max_output_tokens"])


def test_output_schema(ask: Ask, serve: Serve) -> None:
    """The output schema is sent as text format under a valid name."""
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


def test_error_response(ask: Ask, serve: Serve) -> None:
    """The error contains the service's message."""
    server = serve("never")

    async def add_open_call(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        call = AssistantMessage("", [ToolCall("call_1", "add", "{}")])
        return await call_next(request.mutate(prompt=request.prompt.append(call)))

    with pytest.raises(InvalidRequestError, match="No tool output found") as caught:
        ask(ChatClient.create(server.model()).prompt("?").advisors(add_open_call))
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
def test_failed_response_with_status_200(
    ask: Ask, serve: Serve, code: str, kind: type[Exception]
) -> None:
    """A failed response with status 200, or in a stream, raises its error class."""
    error = {"code": code, "message": "it did not work"}
    server = serve(response(status="failed", error=error))

    with pytest.raises(kind, match="it did not work"):
        ask(ChatClient.create(server.model()).prompt("?"))


def test_foreign_history(ask: Ask, serve: Serve) -> None:
    """Calls and text of other providers are sent; reasoning and JSON parts are not."""
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


def test_changed_text_is_sent_back(ask: Ask, serve: Serve) -> None:
    """A changed text keeps id and phase but loses annotations."""
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
    """A custom tool with free text input."""

    definition = ToolDefinition("shell", "Run a line.", FrozenDict({"type": "object"}))
    metadata = ToolMetadata()

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        return ToolResult(f"ran {arguments}")


def test_custom_tool(ask: Ask, serve: Serve) -> None:
    """The callback gets the text; call and output keep their item types."""
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


def test_stream_events(serve: Serve) -> None:
    """Reasoning, text and arguments are streamed; each call starts once."""
    complete = response(
        reasoning("rs_1", "Two words"), "So be it", call("call_1", "add", '{"a":1}')
    )
    server = serve(complete)
    stream = ChatClient.create(server.model()).prompt("?").tool_calling(enabled=False).stream()
    origin = urlsplit(server.url).netloc
    events = [e for e in stream.events() if not hasattr(e, "response")]

    assert events == [
        ReasoningDelta("Two"),
        ReasoningDelta(" words"),
        ReasoningSigned(Reasoning("", None, origin, reasoning("rs_1", "Two words"))),
        TextDelta("So be it"),
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
def test_stream_equals_complete_response(items: tuple[Any, ...]) -> None:
    """The joined chunks equal the complete response."""
    complete = response(*items)

    assert streamed(*events_of(complete)) == decoded(complete)


def interleaved(complete: Json) -> list[Json]:
    """Return the events of *complete*, one of each item in turn."""
    streams = [
        [{**event, "output_index": index} for event in item_events(item)]
        for index, item in enumerate(complete["output"])
    ]
    longest = max(map(len, streams))
    mixed = [
        events[at] for at in range(longest) for events in reversed(streams) if at < len(events)
    ]
    first, _, *_, last = events_of(complete)
    return [first, *mixed, last]


def test_interleaved_items_keep_their_order() -> None:
    """Events of a later item are held until the earlier items are complete."""
    complete = response(
        message("one two three", id="m"), call("call_1", "add", '{"a":1}'), reasoning("rs_1", "hm")
    )
    again = {**complete, "output": complete["output"][::-1]}

    assert parts_of(streamed(*interleaved(complete))) == parts_of(decoded(again))


def test_changing_item_ids() -> None:
    """The output index identifies an item."""
    events = list(events_of(response(message("a b"), call("call_1", "add", "{}"))))
    renamed = [
        {**event, "item_id": f"i{at}", **({"item": item} if "item" in event else {})}
        for at, event in enumerate(events)
        for item in [{**event.get("item", {}), "id": f"i{at}"}]
    ]
    result = streamed(*renamed)

    assert (result.text, len(parts_of(result))) == ("a b", 3)


def as_gateways_send(complete: Json) -> Iterator[list[Json]]:
    """Yield the events of *complete* in the forms that gateways give them.

    They leave out events, ids and indexes, or number them in another way than the response.
    """
    ids: dict[str, Callable[[str, int], str | None]] = {
        "given": lambda it, _: it,
        "none": lambda _, __: None,
        "others": lambda it, _: f"x_{it}",
        "changing": lambda _, at: f"x_{at}",
    }
    indexes: tuple[Callable[[int], int | None], ...] = (
        *(lambda it: it, lambda _: None),
        *(lambda _: 0, lambda it: it + 1),
    )
    kept: tuple[list[str], ...] = ([], [".added"], [".done"], [".added", ".done"])
    for of_events, of_items, index, left_out in product(ids, ids, indexes, kept):
        events = [json.loads(json.dumps(each)) for each in events_of(complete)]
        for at, event in enumerate(events):
            for owner, key, kind in (
                (event, "item_id", of_events),
                (event.get("item"), "id", of_items),
            ):
                if owner and key in owner:
                    owner[key] = ids[kind](owner[key], at)
            if "output_index" in event:
                event["output_index"] = index(event["output_index"])
        shown = [{k: v for k, v in each.items() if v is not None} for each in events]
        yield [each for each in shown if not each["type"].endswith(tuple(left_out))]


@pytest.mark.parametrize(
    "items",
    [
        ["a b c"],
        [reasoning("rs_1", "so it is"), "a b c"],
        ["a b c", call("c1", "add", SUM)],
        [reasoning("rs_1", "so it is"), "a b", call("c1", "add", SUM), call("c2", "add", "{}")],
    ],
    ids=len,
)
def test_items_of_gateways(items: list[Any]) -> None:
    """Nothing is doubled or lost: items are found by their place if ids and indexes differ."""
    complete = response(*items)

    def content(answer: ChatResponse) -> tuple[str, list[tuple[str, str]], str]:
        assert answer.output is not None
        calls = [(each.name, each.arguments) for each in answer.output.tool_calls]
        return answer.text, calls, "".join(each.text for each in answer.output.reasoning)

    expected = content(decoded(complete))
    for number, events in enumerate(as_gateways_send(complete)):
        assert (number, content(streamed(*events))) == (number, expected)


@pytest.mark.parametrize("left_out", ["output_index", "item_id"])
def test_items_with_index_or_id_only(left_out: str) -> None:
    """Either index or id suffices to identify an item."""
    complete = response(reasoning("rs_1", "hm"), "a b", call("call_1", "add", '{"a":1}'))
    events = [{k: v for k, v in e.items() if k != left_out} for e in events_of(complete)]

    assert streamed(*events) == decoded(complete)


def test_items_without_index_are_not_held() -> None:
    """Items without an index are streamed immediately."""
    complete = response(
        reasoning("rs_1", "hm"),
        reasoning("rs_2", content=[{"type": "reasoning_text", "text": "so"}]),
        message("a b"),
        call("call_1", "add", "{}"),
        call("call_2", "add", '{"a":1}'),
    )
    thought = {"type": "response.reasoning_text.delta", "item_id": "rs_2", "delta": "so"}
    events = [{k: v for k, v in e.items() if k != "output_index"} for e in events_of(complete)]
    at = next(i for i, e in enumerate(events) if e.get("item", {}).get("id") == "rs_2")
    events.insert(at + 1, thought)
    ends = [e for e in events if e["type"] == "response.output_item.done"]
    events = [e for e in events if e not in ends]
    decoder = StreamDecoder("openai")
    chunks = [decoder.feed(json.dumps(event).encode()) for event in events[:-1]]
    early = collect(chunk for chunk in chunks if chunk is not None)

    assert early.text == "a b"
    assert [c.arguments for c in parts_of(early) if isinstance(c, ToolCall)] == [
        "{}",
        '{"a":1}',
    ]
    for item in complete["output"][:2]:
        item["status"] = "completed"
    assert streamed(*events[:-1], *ends, events[-1]) == decoded(complete)


def test_provider_item_is_awaited() -> None:
    """A provider tool item must be complete before later items are streamed."""
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
    complete = response(search, "a b")
    events = [{k: v for k, v in e.items() if k != "output_index"} for e in events_of(complete)]
    done = [e for e in events if e["type"] == "response.output_item.done"]
    others = [e for e in events if e not in done]

    assert streamed(*others[:-1], *done, others[-1]) == decoded(complete)


def test_events_without_index_and_id() -> None:
    """Events without index and id belong to the open item."""
    items = {**reasoning("rs_1", "hm"), "id": None}, {**message("a b"), "id": None}
    keys = ("output_index", "item_id")
    events = [{k: v for k, v in e.items() if k not in keys} for e in events_of(response(*items))]

    assert streamed(*events) == decoded(response(*items))


def test_items_in_the_last_event_only() -> None:
    """Items without events are taken from the complete response at the end."""
    complete = response(reasoning("rs_1", "hm"), "a b", call("call_1", "add", '{"a":1}'))
    first, *_, last = events_of(complete)
    delta = {"type": "response.output_text.delta", "output_index": 1, "delta": "a"}

    assert streamed(last) == decoded(complete)
    assert streamed(first, delta, last).text == "a b"


def test_items_missing_in_the_last_event() -> None:
    """Streamed text is kept if the complete response lacks it."""
    delta = {"type": "response.output_text.delta", "item_id": "m", "delta": "a"}
    end = {"type": "response.completed"}
    result = streamed(delta, {**delta, "delta": ""}, end)

    assert (result.text, result.finish_reason) == ("a", "stop")


def test_duplicate_events() -> None:
    """A streamed item is not repeated by late events or under another index."""
    events = list(events_of(response("a b")))
    done = next(e for e in events if e["type"] == "response.output_item.done")
    late = {"type": "response.output_text.delta", "item_id": "msg_1", "delta": "x"}

    assert streamed(*events[:-1], done, late, events[-1]).text == "a b"


def test_reused_index() -> None:
    """Consecutive items may have the same index."""
    items = message("a ", id="m1"), message("b", id="m2"), call("call_1", "add", "{}")
    events = [{**e, "output_index": 0} for item in items for e in item_events(item)]
    result = streamed(*events, {"type": "response.completed", "response": {"output": []}})

    assert result.text == "a b"
    assert result.finish_reason == "tool_call"


def test_call_with_late_name_or_id() -> None:
    """A call starts when its name and id are known."""
    item = call("call_1", "add", '{"a":1}')
    bare = {"type": "response.output_item.added", "output_index": 0, "item": {"type": item["type"]}}
    kind = "response.function_call_arguments.delta"
    delta = {"type": kind, "output_index": 0, "delta": '{"a"'}
    done = {"type": "response.output_item.done", "output_index": 0, "item": item}
    result = streamed(bare, delta, done, {"type": "response.completed"})

    assert parts_of(result) == parts_of(decoded(response(item)))


def partial_events(item: Json) -> list[Json]:
    """Return the events of a call with some left out."""
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
@pytest.mark.parametrize("sent", [(0, 2, 3), (0, 1, 2, 3), (0, 3), (0, 1, 3), (1, 2, 3), (2, 3)])
def test_arguments_in_any_event(item: Json, sent: list[int]) -> None:
    """Arguments may be in a delta, in their end event or in the final response."""
    result = streamed(*(partial_events(item)[at] for at in sent))

    assert parts_of(result) == parts_of(decoded(response(item)))


@pytest.mark.parametrize("item", [call("call_1", "add", '{"a":1,"b":2}'), CUSTOM])
def test_arguments_in_their_end_event_only(item: Json) -> None:
    """The final response need not repeat the arguments."""
    added, _, done, _ = partial_events(item)
    (made,) = streamed(added, done, {"type": "response.completed"}).generations[0].output.tool_calls

    assert (made.name, made.arguments) == (item["name"], item.get("arguments") or item["input"])


def test_tool_with_late_arguments(ask: Ask, serve: Serve) -> None:
    """A tool is called with arguments that arrive at the end."""
    item = call("call_1", "add", '{"a":1,"b":2}')
    added, _, done, last = partial_events(item)
    server = serve(
        lambda request: [added, done, last] if request.get("stream") else response(item), "3"
    )
    result = ask(ChatClient.create(server.model()).prompt("1 + 2?").tools(add))

    assert [execution.tool_call.arguments for execution in result.executions] == ['{"a":1,"b":2}']


def test_text_in_its_end_event_only() -> None:
    """Text may be in its end event only."""
    place = {"output_index": 0, "item_id": "msg_1", "content_index": 0}
    added = {"type": "response.output_item.added", "item": {"type": "message"}, **place}
    delta = {"type": "response.output_text.delta", "delta": "Hel", **place}
    done = {"type": "response.output_text.done", "text": "Hello", **place}
    end = {"type": "response.completed"}

    assert streamed(added, done, end).text == "Hello"
    assert streamed(added, delta, {**delta, "delta": "lo"}, done, end).text == "Hello"


def test_reasoning_summary_or_text() -> None:
    """Of summary and reasoning text the first is streamed; the item has both."""
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


@pytest.mark.parametrize("has_done", [True, False])
def test_parts_of_a_reasoning_summary(has_done: bool) -> None:
    """Parts are separated by a blank line, complete and streamed."""
    parts = [{"type": "summary_text", "text": text} for text in ("**One**", "**Two**", "")]
    item = {"id": "rs_1", "type": "reasoning", "summary": parts}
    place = {"output_index": 0, "item_id": "rs_1"}
    delta = {"type": "response.reasoning_summary_text.delta", **place}
    done = {"type": "response.output_item.done", "item": item, **place}
    end = {"type": "response.completed", "response": {"id": "r", "output": [item]}}
    result = streamed(
        {"type": "response.output_item.added", "item": {**item, "summary": []}, **place},
        {**delta, "summary_index": 0, "delta": "**On"},
        {**delta, "summary_index": 0, "delta": "e**"},
        {**delta, "summary_index": 1, "delta": "**Two**"},
        *([done] if has_done else []),
        end,
    )
    whole = decode_response({"output": [item], "status": "completed"}, "openai")

    texts = [
        [part.text for part in parts_of(each) if isinstance(part, Reasoning) and part.text]
        for each in (result, whole)
    ]
    assert texts == [["**One**\n\n**Two**"]] * 2


def test_ignored_events() -> None:
    """Keep-alives, unknown events and `[DONE]` are ignored."""
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
def test_interrupted_stream(ask: Ask, serve: Serve, cut: str) -> None:
    """The error contains the partial response."""
    events = list(events_of(response(reasoning("rs_1", "hm"), "Once upon a time")))
    body = as_stream(events[:-1]) + cut.encode()
    server = serve(Reply(body, content_type="text/event-stream"))

    with pytest.raises(StreamInterruptedError, match="ended before its answer") as caught:
        ask(ChatClient.create(server.model()).prompt("?"))
    assert caught.value.partial.text == "Once upon a time"


@pytest.mark.parametrize("ask", ["stream", "astream"], indirect=True)
def test_unterminated_last_event(ask: Ask, serve: Serve) -> None:
    """A last event without a blank line is parsed if it is complete JSON."""
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
def test_error_event_forms(event: Json, kind: type[Exception]) -> None:
    """Every form of error event is raised."""
    start = {"type": "response.created", "response": response()}

    error = failure_of(start, event)
    assert isinstance(error, kind)
    assert "sorry" in str(error)


def test_plain_json_error_after_stream() -> None:
    """A plain JSON error after the events is raised."""
    with pytest.raises(RateLimitedError, match="slow"):
        StreamDecoder("openai").finish(b'{"error":{"code":"rate_limit_exceeded","message":"slow"}}')


def test_stream_without_json_objects() -> None:
    """The error shows data that is not a JSON object."""
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
def test_event_with_wrong_types(event: Json) -> None:
    """An event with wrong types raises a provider error, which a fallback handles."""
    with pytest.raises(InvalidResponseError, match="not a response"):
        StreamDecoder("openai").feed(json.dumps(event).encode())


# --- answers --------------------------------------------------------------------------------


def test_background_response() -> None:
    """A queued response has an id but no finish reason."""
    result = decoded(response(status="queued", usage=None))

    assert (result.metadata.id, result.text, result.finish_reason) == ("resp_1", "", None)
    assert result.result is not None
    assert result.result.native_finish_reason == "queued"
    assert not result.usage


def test_cancelled_response() -> None:
    """A cancelled response keeps its content, with the finish reason `error`."""
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
def test_unknown_json(data: Any) -> None:
    """The error shows the beginning of unknown JSON."""
    with pytest.raises(InvalidResponseError, match="not a response"):
        decode_response(data, "openai")


def test_null_output() -> None:
    """An output of null is empty, as some gateways send it."""
    empty: tuple[list[Json] | None, ...] = ([], None)
    for output in empty:
        answer = decode_response({**response(), "output": output}, "openai")
        assert (answer.text, answer.finish_reason) == ("", "stop")


def test_error_with_status_200() -> None:
    """An error with status 200 gets its class from the message."""
    data = {"error": {"type": "authentication_error", "message": "wrong API key"}}
    with pytest.raises(AuthenticationError, match="check the API key"):
        decode_response(data, "openai")


def test_answer_without_json(ask: Ask, serve: Serve) -> None:
    """The error shows the beginning of the body."""
    server = serve(Reply(b"<html>", content_type="text/html"))

    with pytest.raises(InvalidResponseError):
        ask(ChatClient.create(server.model()).prompt("?"))


def test_generated_image() -> None:
    """A generated image is media of the message and is sent back unchanged."""
    encoded = base64.b64encode(PNG).decode()
    item = {"type": "image_generation_call", "id": "ig_1", "status": "completed"}
    image = {**item, "result": encoded, "output_format": "webp"}
    output = decoded(response(image, "There.")).output
    assert output is not None

    assert [(m.mime_type, m.data) for m in output.media] == [("image/webp", PNG)]
    assert input_of(output)[0] == image


@pytest.mark.parametrize("result", [None, "no base 64", "QQ==\n"])
def test_invalid_generated_image(result: str | None) -> None:
    """An image item that cannot be restored from its bytes stays JSON."""
    item = {"type": "image_generation_call", "id": "ig_1", "status": "failed", "result": result}
    output = decoded(response(item)).output
    assert output is not None

    assert not output.media
    assert input_of(output) == [item]


def test_arguments_as_object() -> None:
    """Arguments as an object are serialised to JSON text."""
    item = {**call("call_1", "add", ""), "arguments": {"a": 1}}

    assert decoded(response(item)).output == AssistantMessage(
        [ToolCall("call_1", "add", '{"a":1}', FrozenDict({"openai": {"id": "fc_call_1", **DONE}}))]
    )


DONE = {"status": "completed"}


def test_minimal_call_item() -> None:
    """A minimal call has no metadata; the item id replaces a missing call id."""
    item = {"type": "function_call", "name": "add", "arguments": "{}"}
    (known,) = parts_of(decoded(response({**item, "call_id": "call_1"})))
    (other,) = parts_of(decoded(response({**item, "id": "fc_1"})))

    assert known == ToolCall("call_1", "add", "{}")
    assert isinstance(other, ToolCall)
    assert other.id == "fc_1"


def test_stored_answer_round_trip() -> None:
    """A message restored from JSON is sent as the same items."""
    items = (reasoning("rs_1", "hm"), message("a", "b", phase="final_answer"))
    output = decoded(response(*items, call("call_1", "add", "{}"))).output
    assert output is not None
    stored = message_from_dict(json.loads(json.dumps(message_to_dict(output))))

    assert stored == output
    assert input_of(stored) == [*items, call("call_1", "add", "{}")]


# --- messages -------------------------------------------------------------------------------


def test_system_role() -> None:
    """System messages have the role `system` or, by option, `developer`."""
    instruction = SystemMessage("Be brief.")

    assert input_of(instruction) == [{"role": "system", "content": "Be brief."}]
    assert input_of(instruction, system_role="developer")[0]["role"] == "developer"


def test_user_images() -> None:
    """Images are sent in the API's forms, in order."""
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


def test_media_that_is_rejected() -> None:
    """An error names the media, and for audio an API that accepts it."""
    for content in (b"\1", "data:audio/mpeg;base64,AQ=="):
        with pytest.raises(UsageError, match=r"not take audio/mpeg; .* OpenAIChatModel"):
            input_of(UserMessage([Media("audio/mpeg", content)]))
    with pytest.raises(UsageError, match="OpenAI takes no image/svg"):
        input_of(UserMessage([Media("image/svg+xml", b"<svg/>")]))


@pytest.mark.parametrize("written", ['{"a": 2, "b":', "[2, 3]", "two and three"])
def test_malformed_arguments(written: str, ask: Ask, serve: Serve) -> None:
    """Malformed arguments are sent inside a JSON object, which servers can parse."""
    server = serve(response(call("call_1", "add", written)), "What?")
    client = ChatClient.create(server.model())
    ask(client.prompt("2 + 3?").tools(add))
    sent = server.requests[1]["input"][1]

    assert json.loads(sent["arguments"]) == {"malformed_arguments": written}


def test_valid_arguments_are_unchanged() -> None:
    """Valid arguments are sent byte for byte, so that prompt caches stay valid."""
    output = decoded(response(call("call_1", "add", '{ "a":2,"b" : 3.0 }'))).output
    assert output is not None

    assert input_of(output)[0]["arguments"] == '{ "a":2,"b" : 3.0 }'


def test_invalid_tool_name() -> None:
    """An invalid generated tool name is replaced by a valid one."""
    (call,) = input_of(AssistantMessage("", [ToolCall("c", "functions.add", "{}")]))

    assert call["name"] == "functions_add"


def test_long_call_ids_are_shortened() -> None:
    """Ids of other servers are shortened, equally for a call and its result."""
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
def test_user_files(media: Media, sent: Json) -> None:
    """Files are sent by URL, id or content; the name gives their type."""
    (item,) = input_of(UserMessage([media]))

    assert item["content"] == [{"type": "input_file", **sent}]


def test_user_provider_parts() -> None:
    """Content parts join the message, other items follow it, foreign parts become text."""
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


def test_empty_messages() -> None:
    """An empty user message is sent, an empty assistant message is not."""
    messages = UserMessage(""), AssistantMessage(""), AssistantMessage([ToolCallChunk(0)])

    assert input_of(*messages) == [{"role": "user", "content": ""}]


def test_tool_images() -> None:
    """Images are part of the call's output."""
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


def test_unknown_message_type() -> None:
    """The error names the type of message."""

    class Other(Message):
        pass

    with pytest.raises(UsageError, match="Other is not a kind of message"):
        body_of(Other())


def test_unstored_reasoning_is_not_sent() -> None:
    """Without storage a reasoning id is unknown; plain reasoning text is sent."""
    bare = {"id": "rs_1", "type": "reasoning", "summary": []}
    clear = {**bare, "content": [{"type": "reasoning_text", "text": "hm"}], "status": None}
    output = decoded(response(bare, "a", clear, "b")).output
    assert output is not None
    sent = {key: value for key, value in clear.items() if value is not None}

    assert [i for i in input_of(output) if i["type"] == "reasoning"] == [sent]
    assert [i for i in input_of(output, store=True) if i["type"] == "reasoning"] == [bare, sent]


def test_ids_are_dropped_without_reasoning(ask: Ask, serve: Serve) -> None:
    """A call id that requires missing reasoning is dropped."""
    bare, call_item = {"id": "rs_1", "type": "reasoning", "summary": []}, call("call_1", "add", SUM)
    server = serve(response(bare, call_item), "It is 5.")
    client = ChatClient.create(server.model())
    ask(client.prompt("2 + 3?").tools(add).options(model="my-deployment"))

    assert server.requests[1]["input"][1:] == [
        {key: value for key, value in call_item.items() if key != "id"},
        {"type": "function_call_output", "call_id": "call_1", "output": "5"},
    ]


def test_independent_items_keep_their_id() -> None:
    """Only the items that follow missing reasoning lose their id."""
    bare = {"id": "rs_1", "type": "reasoning", "summary": []}
    known = reasoning("rs_2", "hm")
    before, between, after = (message(text, id=f"msg_{text}") for text in "abc")
    output = decoded(response(before, bare, between, known, after)).output
    assert output is not None

    plain = {"type": "message", "role": "assistant", "content": "b"}
    assert input_of(output) == [before, plain, known, after]


def test_trailing_reasoning_is_not_sent() -> None:
    """Reasoning without a following item is omitted, as the service rejects it."""
    cut = decoded(response(reasoning("rs_1", "hm"), status="incomplete")).output
    assert cut is not None

    assert input_of(cut, store=True) == []


def test_refusal_is_sent_back() -> None:
    """A refusal is sent back unchanged, also if it was streamed with empty fragments."""
    item = message("a", {"type": "refusal", "refusal": "no"}, phase="final_answer")
    empty = {"type": "response.refusal.done", "output_index": 0, "refusal": ""}
    first, added, *rest = events_of(response(item))
    for result in (decoded(response(item)), streamed(first, added, empty, *rest)):
        assert result.output is not None
        assert result.text == "ano"
        assert input_of(result.output) == [item]


def test_removed_text() -> None:
    """A message without text is not sent; changed text goes into the first message."""
    two = decoded(response(message("a", id="m1"), message("b", id="m2"))).output
    assert two is not None

    assert input_of(two.mutate(text="")) == []
    assert input_of(two.mutate(text="new")) == [message("new", id="m1")]


def test_messages_without_id() -> None:
    """Messages without an id have the simple form, with their phase."""
    item = message("a", phase="commentary")
    del item["id"]
    output = decoded(response(item)).output
    assert output is not None

    plain = {"type": "message", "role": "assistant", "content": "a", "phase": "commentary"}
    assert input_of(output) == [plain]


def test_custom_call_without_its_tool() -> None:
    """Call and output become a function call if the tool is not offered."""
    item = {"type": "custom_tool_call", "id": "c", "call_id": "call_1", "name": "x", "input": "hi"}
    output = decoded(response(item)).output
    assert output is not None
    answer = ToolResponseMessage([ToolResponse("call_1", "x", "ho")])

    assert [i["type"] for i in input_of(output, answer)] == [
        "function_call",
        "function_call_output",
    ]


def test_a_message_is_encoded_once() -> None:
    """The JSON is cached with the message for a dialect."""
    model = OpenAIResponsesChatModel(api_key="key")
    message = UserMessage("Hi")
    prompt = Prompt([message], model.options)
    first = model._body(prompt, streaming=False)

    assert message.wire(encoding_settings(model.options)) == b'{"role":"user","content":"Hi"}'
    assert model._body(prompt, streaming=False) == first
    stored = prompt.with_options(model.options.mutate(store=True))
    assert b'"store":true' in model._body(stored, streaming=False)


def test_growing_conversation_is_reused() -> None:
    """Later rounds extend the encoded input; another conversation starts a new one."""
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


def test_option_fields() -> None:
    """Options map to their fields; some share a field."""
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
    }


@pytest.mark.parametrize(
    ("url", "has_them"), [("https://api.openai.com/v1", False), ("http://vllm.test/v1", True)]
)
def test_unsupported_options_are_not_sent(url: str, *, has_them: bool) -> None:
    """Default options that OpenAI rejects are not sent."""
    sent: list[Json] = []

    def answer(request: httpx.Request) -> httpx.Response:
        sent.append(json.loads(request.content))
        return httpx.Response(200, json=response("ok"))

    options = ChatOptions(
        top_k=5, stop="x", seed=7, presence_penalty=0.1, frequency_penalty=0.2, top_p=0.5
    )
    with httpx.Client(transport=httpx.MockTransport(answer)) as client:
        model = OpenAIResponsesChatModel(
            "gpt-4.1", api_key="k", base_url=url, http_client=client, options=options
        )
        assert model.call("x").text == "ok"

    lacked = {"top_k", "stop", "seed", "presence_penalty", "frequency_penalty"}
    assert sent[0].keys() & lacked == (lacked if has_them else set())
    assert sent[0]["top_p"] == 0.5


@pytest.mark.parametrize(
    ("model", "requested"),
    [
        *(
            (name, True)
            for name in ("gpt-5", "o3-mini", "openai/gpt-5.4", "ft:o4-mini:x", "grok-4")
        ),
        *((name, False) for name in ("gpt-4o", "gpt-5-chat-latest", "gpt-oss-20b", "deepseek-v4")),
    ],
)
def test_reasoning_request_by_model(model: str, *, requested: bool) -> None:
    """Encrypted reasoning is requested from reasoning models only."""
    assert ("include" in options_of(model=model)) is requested


@pytest.mark.parametrize(
    ("model", "taken"),
    [
        *((name, True) for name in ("gpt-5", "o3-mini", "gpt-6-sol", "gpt-oss-20b", "mine")),
        *((name, False) for name in ("gpt-4o", "ft:gpt-4.1:x", "chatgpt-4o-latest")),
        ("openai/gpt-5-chat-latest", False),
    ],
)
def test_unknown_model_names_get_reasoning(model: str, *, taken: bool) -> None:
    """A deployment may have any name, so unknown models are sent reasoning."""
    output = decoded(response(reasoning("rs_1", "hm"), "a")).output
    assert output is not None

    assert ("reasoning" in {item["type"] for item in input_of(output, model=model)}) is taken


def test_provider_calls_require_their_reasoning() -> None:
    """A provider tool item without its reasoning is omitted."""
    search = {"id": "ws_1", "type": "web_search_call", "status": "completed"}
    encoded = base64.b64encode(PNG).decode()
    image = {"id": "ig_1", "type": "image_generation_call", "result": encoded}
    odd = {"id": "x", "type": 7}
    items = reasoning("rs_1", "hm"), search, image, odd, message("Found.")
    output = decoded(response(*items)).output
    assert output is not None

    answer = {"type": "message", "role": "assistant", "content": "Found."}
    assert input_of(output, model="gpt-4.1") == [odd, answer]
    own = input_of(AssistantMessage(output.parts[2:]), model="gpt-4.1")
    assert own[:1] == [search]


def test_include_option() -> None:
    """`include` adds to encrypted reasoning; an empty one disables it."""
    both = ["web_search_call.action.sources", "reasoning.encrypted_content"]

    assert options_of(model="gpt-5", include=both[:1])["include"] == both
    assert options_of(model="gpt-5", include=tuple(both))["include"] == both
    assert "include" not in options_of(model="gpt-5", include=())
    assert "include" not in options_of(model="gpt-5", store=True)


def test_background_is_stored() -> None:
    """A background response is stored, others only by option."""
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


def test_strict_field_of_tools() -> None:
    """The tool's setting wins over the option; the field is always sent."""
    tools = tuple(tool_of(strict=strict) for strict in (None, True, False))
    opened = Shell()

    assert [t["strict"] for t in options_of(tool_callbacks=tools)["tools"]] == [False, True, False]
    strict = options_of(tool_callbacks=(*tools, opened), strict_tools=True)["tools"]
    assert [t["strict"] for t in strict] == [True, True, False, False]


def test_strict_tool_schema() -> None:
    """Keywords unknown to strict mode are removed."""
    shell = tool_of()
    known = {**shell.definition.input_schema, "properties": {"a": {"type": "string"}}}
    known["required"] = ["a"]
    linked = {**known, "properties": {"a": {"type": "string", "format": "uri"}}}
    shell.definition = ToolDefinition("open", "d", linked)
    (sent,) = options_of(tool_callbacks=(shell,), strict_tools=True)["tools"]

    assert (sent["strict"], sent["parameters"]) == (True, known)


def test_application_and_provider_tools() -> None:
    """Application tools come first; without tools there is no tool choice."""
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
def test_tool_choice_by_name(choice: str, sent: Any) -> None:
    """Application and provider tools can be chosen by name."""
    builtin = (
        {"type": "mcp", "server_label": "wiki"},
        {"type": "custom", "name": "shell"},
        {"type": "web_search"},
    )

    assert options_of(server_tools=builtin, tool_choice=choice)["tool_choice"] == sent


def test_chat_options_are_converted() -> None:
    """Options that both APIs have are taken; others raise, or are not encoded."""
    given = OpenAIChatOptions(verbosity="low", n=2)
    with pytest.raises(UnsupportedOptionError, match="'n'"):
        OpenAIResponsesChatModel(api_key="key", options=given)
    model = OpenAIResponsesChatModel(api_key="key", options=given.mutate(n=None))

    assert isinstance(model.options, OpenAIResponsesChatOptions)
    assert model.options.verbosity == "low"
    assert encode_options(given, streaming=False) == {
        "store": False,
        "stream": False,
        "text": {"verbosity": "low"},
    }


# --- the model ------------------------------------------------------------------------------


def test_openai_requires_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the variable; a key is never shown."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)
    with pytest.raises(UsageError, match="OPENAI_API_KEY"):
        OpenAIResponsesChatModel("gpt-5")
    monkeypatch.setenv("OPENAI_API_KEY", "sk-secret")

    model = OpenAIResponsesChatModel("gpt-5")
    assert repr(model) == (
        "OpenAIResponsesChatModel('gpt-5', base_url='https://api.openai.com/v1')"
    )


def test_base_url_from_environment(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    """Another server needs no key, and errors do not name OpenAI."""
    server = serve(Reply(b"{}", 500))
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    with OpenAIResponsesChatModel(max_retries=0) as model, pytest.raises(OverloadedError) as error:
        model.call("Hi")

    assert error.value.provider == "openai-compatible"
    assert "authorization" not in server.headers[0]


def test_model_without_client(serve: Serve) -> None:
    """A model can be used directly, blocking and async, and closed."""
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


# --- test server ----------------------------------------------------------------------------

EVERYTHING = response(
    reasoning("rs_1", "hm", "well"),
    message(output_text("a b c"), phase="commentary"),
    call("call_1", "add", '{"a":1,"b":2}'),
    message({"type": "refusal", "refusal": "no more"}, id="msg_2"),
)


def test_official_client_accepts_test_server(serve: Serve) -> None:
    """The official client parses complete and streamed answers of the test server."""
    import openai

    server = serve(EVERYTHING)
    with openai.OpenAI(base_url=server.url, api_key="key", max_retries=0) as client:
        complete = client.responses.create(model="m", input=[], store=False)
        with client.responses.stream(model="m", input=[], store=False) as stream:
            final = stream.get_final_response()

    for answer in (complete, final):
        assert answer.output_text == "a b c"
        found = [json.loads(item.to_json(exclude_unset=True)) for item in answer.output]
        assert [item["type"] for item in found] == [i["type"] for i in EVERYTHING["output"]]
        assert found[2]["arguments"] == '{"a":1,"b":2}'


@needs_recordings
def test_traffic_matches_the_official_schema(serve: Serve) -> None:
    """Requests and answers of a tool loop match the official schemas."""
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
