"""The Messages API through the client, in all four modes, against a strict test server."""

import asyncio
import json
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatOptions,
    Media,
    Message,
    Prompt,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.chat.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStarted
from chatclient.chat.messages import Part, ProviderPart, Reasoning
from chatclient.chat.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.errors import (
    AuthenticationError,
    ContextLengthExceededError,
    InvalidRequestError,
    InvalidResponseError,
    OverloadedError,
    ProviderError,
    RateLimitedError,
    StreamInterruptedError,
    UsageError,
)
from chatclient.providers.anthropic.decoding import StreamDecoder, decode_response
from chatclient.providers.anthropic.encoding import ANTHROPIC, PROVIDER, encode_blocks
from chatclient.providers.anthropic.model import AnthropicChatModel, AnthropicChatOptions
from chatclient.providers.anthropic.options import encode_options, enforceable
from chatclient.providers.http.reader import ServerSentEventDecoder
from chatclient.providers.openai.chat import OpenAIChatOptions
from chatclient.runtime.runtime import ON_LOOP
from chatclient.testing import Ask, Mode
from chatclient.tools import tool_callbacks
from tests.support.messages_server import (
    Json,
    Serve,
    as_stream,
    failure,
    message,
    messages_servers,
    problems,
    text,
    thinking,
    tool_use,
)
from tests.support.replay import collect
from tests.support.servers import Reply


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start Messages API servers that are closed after the test."""
    with messages_servers() as start:
        yield start


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def now() -> str:
    """Tell the time."""
    return "noon"


def body_of(*messages: Message, **options: Any) -> Json:
    """Return the request body for *messages*; without `cache`, nothing is cached."""
    unset = () if options.get("cache") else ("cache",)
    model = AnthropicChatModel(api_key="key", options=AnthropicChatOptions(**options, unset=unset))
    body: Json = json.loads(model._body(Prompt(messages, model.options), streaming=False))
    return body


def content_of(message: Message) -> list[Json]:
    """Return the blocks for *message*."""
    content: list[Json] = body_of(message)["messages"][0]["content"]
    return content


# --- requests and responses -----------------------------------------------------------------


def test_response_fields(ask: Ask, serve: Serve) -> None:
    """The response has text, finish reason, usage with cached input, and ids."""
    server = serve("Hello there")
    result = ask(ChatClient.create(server.model()).prompt("Hi"))
    response = result.response.chat_response

    assert result.text == response.text == "Hello there"
    assert (response.finish_reason, response.metadata.id) == ("stop", "msg_1")
    assert response.metadata.request_id == "req_1"
    usage = response.usage
    assert (usage.input_tokens, usage.output_tokens) == (1110, 5)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (100, 1000)
    assert server.headers[0]["x-api-key"] == "key"
    assert server.headers[0]["anthropic-version"] == "2023-06-01"
    assert server.requests[0].get("stream", False) == ask.streaming


def test_system_messages(ask: Ask, serve: Serve) -> None:
    """System messages at any position become blocks of the system text."""
    server = serve("ok")
    client = ChatClient.builder(server.model()).default_system("Be brief.").build()
    later = [UserMessage("a"), SystemMessage("Be kind."), AssistantMessage("b")]
    ask(client.prompt().messages(later).user("c"))

    assert server.requests[0]["system"] == [text("Be brief."), text("Be kind.")]
    assert [m["role"] for m in server.requests[0]["messages"]] == ["user", "assistant", "user"]


def test_tool_call(ask: Ask, serve: Serve) -> None:
    """The call is sent back with its result in the required form."""
    call = tool_use("toolu_1", "add", {"a": 2, "b": 3})
    server = serve(message("Let me see.", call), "It is 5.")
    result = ask(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))

    assert result.response.chat_response.text == "It is 5."
    assert server.requests[1]["messages"][1:] == [
        {"role": "assistant", "content": [text("Let me see."), call]},
        {
            "role": "user",
            "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": "5"}],
        },
    ]


def test_parallel_calls(ask: Ask, serve: Serve) -> None:
    """The results of two calls are in one message."""
    calls = [tool_use("toolu_1", "add", {"a": 1, "b": 1}), tool_use("toolu_2", "now", {})]
    server = serve(message(*calls), "Two, at noon.")
    result = ask(ChatClient.create(server.model()).prompt("?").tools(add, now))
    last = server.requests[1]["messages"][-1]["content"]

    assert [execution.tool_call.name for execution in result.executions] == ["add", "now"]
    assert [block["tool_use_id"] for block in last] == ["toolu_1", "toolu_2"]
    assert result.response.chat_response.usage.output_tokens == 10


@pytest.mark.feature("lc4j-error-wire")
def test_failed_tool_result(ask: Ask, serve: Serve) -> None:
    """An error result is marked as one."""
    server = serve(message(tool_use("toolu_1", "add", {"a": "x"})), "Sorry.")
    ask(ChatClient.create(server.model()).prompt("?").tools(add))

    assert server.requests[1]["messages"][-1]["content"][0]["is_error"] is True


def test_invalid_tool_name_is_reported(ask: Ask, serve: Serve) -> None:
    """An invalid name is reported to the model and replaced in the next request."""
    server = serve(message(tool_use("t1", "functions.add 2", {})), "Well.")

    assert ask(ChatClient.create(server.model()).prompt("?").tools(add)).text == "Well."
    assert server.requests[1]["messages"][1]["content"][0]["name"] == "functions_add_2"


@pytest.mark.feature(
    "message-thoughts-message-metadata", "lc4j-aimessage-attributes-thought-signatures"
)
def test_signed_thinking_is_sent_back(ask: Ask, serve: Serve) -> None:
    """The API requires the signed thinking that precedes tool calls."""
    redacted = {"type": "redacted_thinking", "data": "b3BhcXVl"}
    silent = thinking("", "c2lsZW50")
    call = tool_use("toolu_1", "add", {"a": 2, "b": 3}, caller={"type": "direct"})
    content = [thinking("Two and three."), silent, redacted, text("So:"), call]
    server = serve(message(*content), message(thinking("Done.", "eg=="), "5"))
    options = AnthropicChatOptions(thinking=2048)
    result = ask(ChatClient.create(server.model()).prompt("2 + 3?").tools(add).options(options))
    output = result.response.chat_response.output

    assert server.requests[1]["messages"][1]["content"] == content
    assert server.requests[0]["thinking"] == {"type": "enabled", "budget_tokens": 2048}
    assert output is not None
    assert output.reasoning == (Reasoning("Done.", "eg==", "anthropic"),)


@pytest.mark.feature("lc4j-partial-tool-call-complete", "lc4j-tool-partial-tool-calls")
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_stream_events(mode: Mode, serve: Serve) -> None:
    """Thinking, text and call arguments are streamed in fragments."""
    call = tool_use("toolu_1", "add", {"a": 2, "b": 3})
    server = serve(message(thinking("Hm, well."), "Let me see.", call), "5")
    result = Ask(mode)(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))
    deltas = [e for e in result.events if isinstance(e, TextDelta | ReasoningDelta)]
    arguments = [e.arguments for e in result.events if isinstance(e, ToolCallDelta)]

    assert [event.text for event in deltas] == ["Hm, ", "well.", "Let me see.", "\n\n5"]
    assert [e.name for e in result.events if isinstance(e, ToolCallStarted)] == ["add"]
    assert len(arguments) == 2
    assert json.loads("".join(arguments)) == {"a": 2, "b": 3}


@pytest.mark.feature(
    "lc4j-aimessage-attributes-thought-signatures", "provider-server-tool-results-aimessage"
)
def test_provider_blocks_are_sent_back(ask: Ask, serve: Serve) -> None:
    """Provider tool blocks and citations are sent back; cited text is in the answer."""
    search = {"type": "server_tool_use", "id": "srvtoolu_1", "name": "web_search"}
    found = {"type": "web_search_tool_result", "tool_use_id": "srvtoolu_1", "content": []}
    cited = text("noon there.", citations=[{"type": "web_search_result_location", "url": "u"}])
    content = [text("Well: "), {**search, "input": {"query": "time"}}, found, cited]
    server = serve(message(*content), "Bye")
    client = ChatClient.create(server.model())
    answer = ask(client.prompt("What time is it?")).response.chat_response
    assert answer.output is not None
    ask(client.prompt().messages(UserMessage("?"), answer.output).user("Thanks"))

    assert answer.text == "Well: noon there."
    assert server.requests[1]["messages"][1]["content"] == content


def test_repeated_call_ids(ask: Ask, serve: Serve) -> None:
    """Repeated ids of some servers are made unique and stay the same in later requests."""
    calls = (message(tool_use("call:0", "add", {"a": at, "b": 1})) for at in range(3))
    server = serve(*calls, "Done.", "Bye.")
    client = ChatClient.create(server.model())
    answer = ask(client.prompt("?").tools(add)).answer
    ask(client.prompt(answer.messages()).user("Thanks"))
    sent = server.requests[-1]["messages"]
    pairs = [
        (turn["content"][0].get("id") or turn["content"][0]["tool_use_id"]) for turn in sent[1:7]
    ]

    assert pairs == [*["call_0"] * 2, *["call_0_2"] * 2, *["call_0_3"] * 2]
    assert sent[:7] == server.requests[3]["messages"]
    assert [turn["content"][0]["content"] for turn in sent[2:7:2]] == ["1", "2", "3"]


def test_raw_result_belongs_to_the_last_call(serve: Serve) -> None:
    """A raw result block refers to the last call with its id."""
    found: dict[str, Any] = {"type": "tool_reference", "tool_name": "add"}
    block = {"type": "tool_result", "tool_use_id": "call_0", "content": [found]}
    messages: list[Message] = [UserMessage("?")]
    for _ in range(2):
        messages.append(AssistantMessage(tool_calls=[ToolCall("call_0", "find", "{}")]))
        messages.append(UserMessage([ProviderPart("anthropic", block), "Go on."]))
    server = serve("Done.")
    server.model().call(messages)
    results = [turn["content"] for turn in server.requests[0]["messages"][2::2]]

    assert [result[0]["tool_use_id"] for result in results] == ["call_0", "call_0_2"]
    assert [result[1]["text"] for result in results] == ["Go on.", "Go on."]


def test_sanitised_ids_stay_unique(serve: Serve) -> None:
    """Ids that become equal after replacing characters are made unique."""
    messages: list[Message] = [UserMessage("?")]
    for ids in (("a.b", "a_b_2"), ("a:b", "c"), ("c",), ("d.e", "d:e", "d_e_2")):
        responses = [ToolResponse(id, "now", id) for id in ids]
        messages.append(AssistantMessage(tool_calls=[ToolCall(id, "now", "{}") for id in ids]))
        messages.append(ToolResponseMessage(responses))
    server = serve("Done.")
    server.model().call(messages)
    results = [b for turn in server.requests[0]["messages"][2::2] for b in turn["content"]]

    called = [b["id"] for turn in server.requests[0]["messages"][1::2] for b in turn["content"]]

    assert called == [result["tool_use_id"] for result in results]
    assert called[:5] == ["a_b", "a_b_2", "a_b_3", "c", "c_2"]
    assert called[5:] == ["d_e", "d_e_2", "d_e_2_2"]
    contents = [result["content"] for result in results]
    assert contents == ["a.b", "a_b_2", "a:b", "c", "c", "d.e", "d:e", "d_e_2"]


def test_paused_message_is_sent_back(ask: Ask, serve: Serve) -> None:
    """The message of a pause is sent back unchanged and has no finish reason."""
    server = serve(message("Searching ", stop_reason="pause_turn"), "Found.")
    client = ChatClient.create(server.model())
    paused = ask(client.prompt("?")).response.chat_response
    assert paused.output is not None
    ask(client.prompt().messages(UserMessage("?"), paused.output))

    assert paused.finish_reason is None
    assert paused.has_finish_reasons(["pause_turn"])
    assert server.requests[1]["messages"][-1]["content"] == [text("Searching")]


def test_output_schema(ask: Ask, serve: Serve) -> None:
    """The schema is sent in the form that the API enforces."""
    server = serve('{"age": 3}')
    schema = {"type": "object", "properties": {"age": {"type": "integer", "minimum": 0}}}
    ask(ChatClient.create(server.model()).prompt("?").options(output_schema=schema))

    sent = server.requests[0]["output_config"]["format"]
    assert sent["type"] == "json_schema"
    assert sent["schema"]["additionalProperties"] is False
    assert sent["schema"]["properties"]["age"] == {
        "type": "integer",
        "description": 'Constraints: {"minimum":0}',
    }


def test_refusal(ask: Ask, serve: Serve) -> None:
    """An empty answer with a refusal has its finish reason and details."""
    details = {"type": "refusal", "category": "cyber", "explanation": None}
    server = serve(message(stop_reason="refusal", stop_details=details))
    result = ask(ChatClient.create(server.model()).prompt("?")).response.chat_response.result

    assert result is not None
    assert (result.finish_reason, result.native_finish_reason) == ("content_filter", "refusal")
    assert result.output == AssistantMessage()


# --- failures -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (failure("invalid_request_error", "no", 400), InvalidRequestError),
        (failure("invalid_request_error", "prompt is too long", 400), ContextLengthExceededError),
        (failure("authentication_error", "invalid x-api-key", 401), AuthenticationError),
        (failure("permission_error", "not you", 403), AuthenticationError),
        (failure("rate_limit_error", "slow down", 429, **{"retry-after": "7"}), RateLimitedError),
        (failure("api_error", "Internal server error", 500), OverloadedError),
        (failure("overloaded_error", "Overloaded", 529), OverloadedError),
        (Reply(b"<html>Bad gateway</html>", 502), OverloadedError),
    ],
)
def test_error_classes(ask: Ask, serve: Serve, reply: Reply, kind: type[ProviderError]) -> None:
    """API errors become the matching error classes."""
    client = ChatClient.create(serve(reply).model(max_retries=0))
    with pytest.raises(kind) as caught:
        ask(client.prompt("Hi"))

    assert caught.value.provider == "anthropic"
    assert caught.value.status == reply.status
    assert caught.value.retry_after == (7 if kind is RateLimitedError else None)
    assert caught.value.request_id == reply.headers.get("request-id")


def test_transient_failure_is_retried(ask: Ask, serve: Serve) -> None:
    """An overloaded server is retried after the Retry-After."""
    server = serve(failure("overloaded_error", "Overloaded", 529, **{"retry-after": "0"}), "ok")

    assert ask(ChatClient.create(server.model()).prompt("Hi")).text == "ok"
    assert len(server.requests) == 2


@pytest.mark.parametrize(
    ("kind", "error"),
    [
        ("overloaded_error", OverloadedError),
        ("api_error", OverloadedError),
        ("rate_limit_error", RateLimitedError),
        ("authentication_error", AuthenticationError),
        ("invalid_request_error", InvalidRequestError),
        ("something_new", ProviderError),
    ],
)
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_error_event_in_stream(
    serve: Serve, kind: str, error: type[ProviderError], mode: Mode
) -> None:
    """An error event raises after content was delivered."""
    beginning = as_stream(message("one two"))[:900].rpartition(b"event:")[0]
    event = {"type": "error", "error": {"type": kind, "message": "Oh no"}}
    reply = Reply(beginning + b"data: %b\n\n" % json.dumps(event).encode())
    with pytest.raises(error, match="Oh no"):
        Ask(mode)(ChatClient.create(serve(reply).model(max_retries=0)).prompt("Hi"))


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_interrupted_stream(serve: Serve, mode: Mode) -> None:
    """The error contains the partial response."""
    complete = as_stream(message("one two three"))
    server = serve(Reply(complete[: complete.index(b"event: content_block_stop")]))
    with pytest.raises(StreamInterruptedError) as caught:
        Ask(mode)(ChatClient.create(server.model(max_retries=0)).prompt("Hi"))

    assert caught.value.partial.text == "one two three"


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_unterminated_last_event(serve: Serve, mode: Mode, end: bytes) -> None:
    """A last event without a blank line, as some gateways send it, is parsed."""
    complete = as_stream(message("one two three")).rstrip(b"\n") + end
    result = Ask(mode)(ChatClient.create(serve(Reply(complete)).model(max_retries=0)).prompt("Hi"))

    assert result.text == "one two three"
    assert result.response.chat_response.finish_reason == "stop"


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_missing_last_event(serve: Serve, mode: Mode, end: bytes) -> None:
    """A stop reason completes an answer, and its calls are run."""
    with_call, with_text = (
        as_stream(answer).partition(b"event: message_stop")[0] + end
        for answer in (message(tool_use("toolu_1", "add", {"a": 1, "b": 2})), message("It is 3."))
    )
    client = ChatClient.create(serve(Reply(with_call), Reply(with_text)).model(max_retries=0))
    result = Ask(mode)(client.prompt("1 + 2?").tools(add))

    assert result.text == "It is 3."
    assert [e.response.data for e in result.executions] == ["3"]
    assert result.response.chat_response.finish_reason == "stop"
    assert result.response.chat_response.usage.output_tokens == 10


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_complete_answer_instead_of_stream(serve: Serve, mode: Mode, indent: int | None) -> None:
    """A complete answer to a streaming request is accepted without a second request."""
    with_call, with_text = (
        Reply(json.dumps(answer, indent=indent).encode())
        for answer in (
            message("Wait.", tool_use("toolu_1", "add", {"a": 1, "b": 2})),
            message(thinking("Easy."), "It is 3."),
        )
    )
    server = serve(with_call, with_text)
    result = Ask(mode)(ChatClient.create(server.model()).prompt("1 + 2?").tools(add))

    assert result.text == "Wait.\n\nIt is 3."
    assert result.response.chat_response.message.reasoning == (
        Reasoning("Easy.", "c2lnbmVk", "anthropic"),
    )
    assert result.response.chat_response.usage.output_tokens == 10
    assert len(server.requests) == 2


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_stream_instead_of_complete_answer(serve: Serve, mode: Mode) -> None:
    """A stream in response to a blocking request is decoded."""
    with_call = message("Wait.", tool_use("toolu_1", "add", {"a": 1, "b": 2}))
    server = serve(*(Reply(as_stream(answer)) for answer in (with_call, message("It is 3."))))
    result = Ask(mode)(ChatClient.create(server.model()).prompt("1 + 2?").tools(add))

    assert result.text == "It is 3."
    assert [e.response.data for e in result.executions] == ["3"]
    assert result.response.chat_response.usage.output_tokens == 10
    assert len(server.requests) == 2


def test_truncated_stream_in_blocking_call(serve: Serve) -> None:
    """A truncated stream raises in blocking requests too."""
    half = as_stream(message("one two three")).partition(b"event: message_delta")[0]
    with pytest.raises(StreamInterruptedError):
        serve(Reply(half)).model(max_retries=0).call("Hi")


def test_complete_message_after_deltas_is_ignored() -> None:
    """A complete message before or after the end of a stream is not repeated."""
    complete = message("Hi")
    lines = [line[6:] for line in as_stream(complete).splitlines() if line.startswith(b"data: ")]
    start, _, *pieces, end, stop = map(json.loads, lines)

    for events in (
        [start, *pieces, complete, end, stop],
        [start, *pieces, end, complete, stop],
        [*pieces, complete, end, stop],
        [*pieces, end, complete],
    ):
        assert collect(chunks(*events)).text == "Hi"


def test_incomplete_message() -> None:
    """A truncated message or one without content raises."""
    for rest in (json.dumps(message("Hi")).encode()[:-9], b'{"type": "message"}'):
        with pytest.raises(StreamInterruptedError):
            StreamDecoder().finish(rest)


@pytest.mark.parametrize(
    "body",
    [
        b"not JSON",
        b'{"type": "message"}',
        b"[]",
        b'{"content": [{"type": "tool_use"}]}',
        b'{"content": ["text"]}',
        b'{"content": [{"type": "text", "text": 1}]}',
        b'{"content": [{"type": "thinking", "thinking": "a", "signature": ["b"]}]}',
        b'{"content": [{"type": "tool_use", "id": ["a"], "name": "b", "input": {}}]}',
        b'{"content": [], "usage": {"output_tokens": "many"}}',
    ],
)
def test_unknown_answer(serve: Serve, body: bytes) -> None:
    """An unreadable answer is never decoded as an empty one."""
    with pytest.raises(InvalidResponseError):
        serve(Reply(body)).model().call("Hi")


def test_request_id_headers() -> None:
    """The request id is read from the headers of other services, also for errors."""
    for name in ("request-id", "x-request-id", "x-amzn-requestid"):
        response = decode_response({"content": []}, {name: "req_1"})
        assert response.metadata.request_id == "req_1"


def test_null_content() -> None:
    """Content of null is empty, complete or at the start of a stream."""
    nothing = {**message(), "content": None}
    (start,) = chunks({"type": "message_start", "message": nothing})

    for response in (decode_response(nothing), start):
        assert response.output == AssistantMessage()
        assert response.finish_reason == "stop"


def test_omitted_empty_fields() -> None:
    """Zero and empty fields may be missing, as with gateways written in Go."""
    found = chunks(
        {"type": "content_block_start", "content_block": {"type": "thinking"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta"}},
        {"type": "content_block_delta", "delta": {"type": "thinking_delta", "thinking": "Hm"}},
        {"type": "content_block_delta", "delta": {"type": "signature_delta"}},
        {"type": "content_block_stop"},
        {"type": "content_block_start", "index": 1, "content_block": {"type": "text"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta"}},
        {"type": "content_block_delta", "index": 1, "delta": {"type": "text_delta", "text": "Hi"}},
        {"type": "content_block_stop", "index": 1},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}},
    )

    assert collect(found).output == AssistantMessage([Reasoning("Hm", provider=PROVIDER), "Hi"])


def test_error_with_status_200() -> None:
    """An error in a body with status 200 is raised."""
    data = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}
    with pytest.raises(OverloadedError, match="Busy"):
        decode_response(data)
    with pytest.raises(ProviderError, match="Busy"):
        decode_response({"error": "Busy"})


# --- events of streams ----------------------------------------------------------------------


def chunks(*events: Json) -> list[Any]:
    """Return the decoded chunks of *events*, without empty ones."""
    decoder = StreamDecoder()
    found = [decoder.feed(json.dumps(event).encode()) for event in events]
    return [chunk for chunk in found if chunk is not None]


def block(*events: Json, start: Json) -> list[Part]:
    """Return the decoded parts of a block."""
    deltas = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in events]
    first = {"type": "content_block_start", "index": 0, "content_block": start}
    stop = {"type": "content_block_stop", "index": 0}
    found = chunks(first, *deltas, stop, {"type": "message_stop"})
    return [p for c in found for p in ([c] if isinstance(c, str) else c.output.parts)]


def test_unknown_events_are_skipped() -> None:
    """Unknown events, and the end event of another API, are ignored."""
    assert (
        chunks({"type": "ping"}, {"type": "new"}, {"type": "content_block_stop", "index": 7}) == []
    )
    assert StreamDecoder().feed(b"[DONE]") is None


def test_events_after_the_end_are_ignored() -> None:
    """Events after the end of the message are ignored."""
    decoder = StreamDecoder()
    decoder.feed(b'{"type": "message_stop"}')

    assert decoder.feed(b"nonsense") is None
    decoder.finish(b"nonsense")


def test_repeated_message_start() -> None:
    """A repeated start is ignored; content of a start is decoded."""
    content = [tool_use("toolu_1", "add", {"a": 1})]
    start = {"type": "message_start", "message": message(*content)}
    (chunk,) = chunks(start, start)

    assert chunk.output.tool_calls == (ToolCall("toolu_1", "add", '{"a":1}'),)
    assert chunk.finish_reason == "tool_call"


def test_delta_without_block_start() -> None:
    """A block without its start event is text."""
    delta = {"type": "text_delta", "text": "Hi"}

    assert chunks({"type": "content_block_delta", "index": 3, "delta": delta}) == ["Hi"]


def test_content_in_block_start() -> None:
    """Text, thinking or a complete call in a start event is decoded."""
    assert block(start=text("Hi")) == ["Hi"]
    assert block(start=thinking("Hm", "eA==")) == [
        Reasoning("Hm", provider="anthropic"),
        Reasoning("", "eA==", "anthropic"),
    ]
    assert [p.arguments for p in block(start=tool_use("1", "f", {"a": 1}))][-1:] == ['{"a":1}']  # type: ignore[union-attr]


def server_tool(input: Json | None = None) -> Json:
    return {"type": "server_tool_use", "id": "s", "name": "web_search", "input": input or {}}


def begin(index: int, content: Json) -> Json:
    return {"type": "content_block_start", "index": index, "content_block": content}


def delta(index: int, **more: Any) -> Json:
    return {"type": "content_block_delta", "index": index, "delta": more}


def piece(index: int, text: str) -> Json:
    return delta(index, type="input_json_delta", partial_json=text)


def stop(index: int) -> Json:
    return {"type": "content_block_stop", "index": index}


CALL, THOUGHT = tool_use("toolu_1", "add", {}), thinking("", "")
MADE = ToolCall("toolu_1", "add", '{"a":1}')
SIGNED = Reasoning("Hm", "eA==", "anthropic")
HM = delta(0, type="thinking_delta", thinking="Hm")
SIGNATURE = delta(0, type="signature_delta", signature="eA==")
SEARCH = ProviderPart("anthropic", server_tool({"query": "q"}))
STRAY_ENDS: dict[str, tuple[list[Json], list[Part]]] = {
    "before the arguments": ([begin(0, CALL), stop(0), piece(0, '{"a"'), piece(0, ":1}")], [MADE]),
    "between them": ([begin(0, CALL), piece(0, '{"a"'), stop(0), piece(0, ":1}")], [MADE]),
    "never": ([begin(0, tool_use("toolu_1", "add", {"a": 1}))], [MADE]),
    "blocks without numbers": (
        [begin(0, tool_use("toolu_1", "add", {"a": 1})), begin(0, tool_use("toolu_2", "f", {}))],
        [MADE, ToolCall("toolu_2", "f", "{}")],
    ),
    "never, signed": (
        [begin(0, THOUGHT), HM, SIGNATURE, begin(1, CALL)],
        [SIGNED, ToolCall("toolu_1", "add", "{}")],
    ),
    "before the signature": ([begin(0, THOUGHT), HM, stop(0), SIGNATURE], [SIGNED]),
    "a signature that comes last": (
        [begin(0, THOUGHT), HM, begin(1, text("Hi")), SIGNATURE, stop(0), stop(1)],
        [SIGNED, "Hi"],
    ),
    "never, a search": ([begin(0, server_tool()), piece(0, '{"query":"q"}')], [SEARCH]),
}


@pytest.mark.parametrize(("events", "parts"), STRAY_ENDS.values(), ids=STRAY_ENDS)
def test_block_ends_of_gateways(events: list[Json], parts: list[Part]) -> None:
    """Deltas belong to their block until the message ends, whenever it is closed."""
    ends = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]

    assert collect(chunks(*events, *ends)).output == AssistantMessage(parts)


def test_arguments_after_the_block_end(serve: Serve) -> None:
    """The tool is called with arguments that follow the end of their block."""
    start = {"type": "message_start", "message": {**message(), "stop_reason": None}}
    late = [begin(0, CALL), stop(0), piece(0, '{"a":2,'), piece(0, '"b":3}')]
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    events = [start, *late, end, {"type": "message_stop"}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    for mode in ("stream", "astream"):
        server = serve(Reply(body, content_type="text/event-stream"), "5")
        result = Ask(mode)(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))

        assert [execution.response.data for execution in result.executions] == ["5"]


def test_keep_alive_events() -> None:
    """Empty events and `[DONE]` are ignored."""
    decoder = StreamDecoder()

    for data in (b"", b"[DONE] ", b' "[DONE]"', b"DONE"):
        assert decoder.feed(data) is None


def test_missing_call_id() -> None:
    """A call without an id gets one for its result, complete or streamed."""
    call = tool_use("", "add", {}) | {"id": None}
    streamed = collect(chunks(begin(0, call), {"type": "message_delta"}))

    for answer in (decode_response(message(call)), streamed):
        (made,) = answer.generations[0].output.tool_calls
        assert (made.name, made.arguments) == ("add", "{}")
        assert made.id


def test_fields_of_the_end_event() -> None:
    """Fields such as context management are kept, as in a complete answer."""
    cleared = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 3}]}
    (end,) = chunks({"type": "message_delta", "delta": {}, "context_management": cleared})

    assert end.metadata.values == {"context_management": cleared}


def test_late_citations() -> None:
    """Text after a citation stays in the cited block."""
    cite = {"type": "citations_delta", "citation": {"cited_text": "x"}}
    parts = block(
        {"type": "text_delta", "text": "told "},
        cite,
        {"type": "text_delta", "text": "held"},
        {"type": "new_delta"},
        start=text(""),
    )

    held = {"type": "text", "text": "held", "citations": [{"cited_text": "x"}]}
    assert parts == ["told ", ProviderPart("anthropic", held, "held")]


def test_citations_after_the_text() -> None:
    """Citations after streamed text are kept, and the text is sent back once."""
    cites = [{"type": "char_location", "cited_text": word} for word in ("grass", "green")]
    deltas = [{"type": "citations_delta", "citation": cite} for cite in cites]
    parts = block({"type": "text_delta", "text": "The grass is green."}, *deltas, start=text(""))

    cited = ProviderPart("anthropic", {"type": "text", "text": "", "citations": cites})
    assert parts == ["The grass is green.", cited]
    assert content_of(AssistantMessage(parts)) == [text("The grass is green.")]


def test_unknown_blocks_are_joined() -> None:
    """Strings are appended, other values replaced, null ignored; input is parsed last."""
    parts = block(
        {"type": "compaction_delta", "content": "So "},
        {"type": "compaction_delta", "content": "far"},
        {"type": "compaction_delta", "content": None, "level": 2},
        start={"type": "compaction", "content": "", "level": 1},
    )
    cut = block({"type": "input_json_delta", "partial_json": '{"q'}, start=server_tool())

    assert parts == [
        ProviderPart("anthropic", {"type": "compaction", "content": "So far", "level": 2})
    ]
    assert cut == [ProviderPart("anthropic", server_tool({"malformed_arguments": '{"q'}))]


def test_unknown_thinking_deltas() -> None:
    """Empty and unknown deltas of thinking are ignored."""
    parts = block(
        {"type": "thinking_delta", "thinking": ""},
        {"type": "new_delta"},
        start={"type": "thinking", "thinking": ""},
    )

    assert parts == []


@pytest.mark.parametrize(
    "data",
    [
        b"{",
        b"[]",
        b'{"type": "message_start"}',
        b'{"type": "content_block_delta"}',
        b'{"type":"content_block_start","index":0,"content_block":{"type":"thinking","thinking":1}}',
        b'{"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": 1}}',
    ],
)
def test_unreadable_event(data: bytes) -> None:
    """An unreadable event raises instead of being skipped."""
    with pytest.raises(InvalidResponseError):
        StreamDecoder().feed(data)


def test_plain_json_error_in_stream() -> None:
    """A plain JSON error instead of a stream, or at its end, is raised."""
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Busy"}}'
    for stream in (body, b"data: " + body):
        events = ServerSentEventDecoder()
        assert events.feed(stream) == []
        with pytest.raises(OverloadedError):
            StreamDecoder().finish(events.finish())


# --- messages -------------------------------------------------------------------------------


def test_adjacent_messages_are_merged() -> None:
    """User messages are merged, tool results come first, and blank text is omitted."""
    body = body_of(
        UserMessage("a"),
        UserMessage("b"),
        AssistantMessage("c", [ToolCall("1", "add", "{}")]),
        UserMessage("meanwhile"),
        ToolResponseMessage([ToolResponse("1", "add", "5")]),
        AssistantMessage(" \n"),
        UserMessage("d"),
    )

    result = {"type": "tool_result", "tool_use_id": "1", "content": "5"}
    assert [turn["content"] for turn in body["messages"]] == [
        [text("a"), text("b")],
        [text("c"), tool_use("1", "add", {})],
        [result, text("meanwhile"), text("d")],
    ]


def test_incremental_encoding() -> None:
    """Reusing encoded messages gives the same request, also after a new conversation."""
    model = AnthropicChatModel(api_key="key")
    call = ToolCall("1", "add", "{}")
    history: list[Message] = [
        SystemMessage("s"),
        UserMessage("a"),
        AssistantMessage("b", [call]),
        ToolResponseMessage([ToolResponse("1", "add", "5")]),
        UserMessage("c"),
        AssistantMessage("d"),
        SystemMessage("t"),
        UserMessage("e"),
    ]
    for end in (2, 4, 5, 6, 8, 4, 8):
        prompt = Prompt(history[:end], model.options)
        fresh = AnthropicChatModel(api_key="key")
        assert model._body(prompt, streaming=False) == fresh._body(prompt, streaming=False)


@pytest.mark.feature("wish-invalid-arguments-replayed-provider")
@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        (" ", {}),
        ('{"a": 1}', {"a": 1}),
        ("```json\n{'a': 1,\n```", {"a": 1}),  # the repaired arguments
        ('{"a": ', {"malformed_arguments": '{"a": '}),
        ("[1]", {"malformed_arguments": "[1]"}),
    ],
)
def test_arguments_are_an_object(arguments: str, input: Json) -> None:
    """Arguments that are not an object are wrapped in one, as the API requires."""
    sent = content_of(AssistantMessage(None, [ToolCall("1", "add", arguments)]))

    assert sent == [tool_use("1", "add", input)]


def test_foreign_parts() -> None:
    """Of other providers' messages text and valid ids are sent."""
    call = ToolCall("functions.add:0", "add", "{}", {"extra_content": 1, "caller": {"type": "x"}})
    sent = content_of(
        AssistantMessage(
            [
                Reasoning("hm", "sig", "gemini"),
                ProviderPart("openai", {"refusal": "No."}, "No."),
                ProviderPart("openai", {"annotations": []}),
                Media("image/png", b"drawn"),
                call,
            ]
        )
    )

    assert sent == [text("No."), tool_use("functions_add_0", "add", {}, caller={"type": "x"})]


@pytest.mark.parametrize("signature", [None, ""])
def test_unsigned_thinking(
    signature: str | None,
) -> None:
    """Unsigned thinking is sent to local servers, not to Anthropic's models."""
    thoughts = Reasoning("hm", signature, "anthropic")
    messages = [UserMessage("?"), AssistantMessage([thoughts, "x"])]
    local = AnthropicChatModel("qwen3", base_url="http://127.0.0.1:11434/v1/")

    def sent(model: str) -> Any:
        options = local.options.mutate(model=model)
        body = json.loads(local._body(Prompt(messages, options), streaming=False))
        return body["messages"][1]["content"]

    assert body_of(*messages)["messages"][1]["content"] == [text("x")]
    assert sent("qwen3") == [{"type": "thinking", "thinking": "hm"}, text("x")]
    # A gateway to Anthropic's models, with thinking truncated before its signature.
    assert sent("anthropic/claude-opus-4-5") == [text("x")]
    assert sent("qwen3") == [{"type": "thinking", "thinking": "hm"}, text("x")]


PNG = {"type": "base64", "media_type": "image/png", "data": "AAEC"}
PDF = {"type": "base64", "media_type": "application/pdf", "data": "AAEC"}


@pytest.mark.parametrize(
    ("media", "sent"),
    [
        (Media("image/png", b"\0\1\2"), {"type": "image", "source": PNG}),
        (Media("image/png", "data:image/png;base64,AAEC"), {"type": "image", "source": PNG}),
        (
            Media("image/jpg", b"\0\1\2"),
            {"type": "image", "source": {**PNG, "media_type": "image/jpeg"}},
        ),
        (
            Media("image/png", "https://x/y.png", metadata={"seen": 1}),
            {"type": "image", "source": {"type": "url", "url": "https://x/y.png"}},
        ),
        (
            Media("application/pdf", b"\0\1\2", name="a.pdf", metadata={"context": "old"}),
            {"type": "document", "source": PDF, "title": "a.pdf", "context": "old"},
        ),
        (
            Media("application/pdf", "", id="file_1"),
            {"type": "document", "source": {"type": "file", "file_id": "file_1"}},
        ),
        (
            Media("text/markdown", b"# \xc3\xa4"),
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "# ä"},
            },
        ),
        (
            Media("text/plain", "data:text/plain;base64,IyDDpA=="),
            {
                "type": "document",
                "source": {"type": "text", "media_type": "text/plain", "data": "# ä"},
            },
        ),
        (
            Media("text/csv", "", id="file_2"),
            {"type": "container_upload", "file_id": "file_2"},
        ),
    ],
)
def test_media_blocks(media: Media, sent: Json) -> None:
    """Images, documents and text are sent by content, URL or id."""
    assert content_of(UserMessage(["See:", media])) == [text("See:"), sent]


def test_unsupported_media() -> None:
    """Audio and unusual images raise before a request is sent, with an alternative."""
    for kind in ("audio/wav", "image/svg+xml"):
        with pytest.raises(UsageError, match=f"not {re.escape(kind)}; convert it"):
            body_of(UserMessage([Media(kind, b"")]))


@pytest.mark.feature("lc4j-tool-execution-result-message", "lc4j-tool-image-result")
def test_tool_media() -> None:
    """Media are part of a result; of a failed tool, and if they are uploaded, they follow it."""
    picture = Media("image/png", b"\0\1\2")
    body = body_of(
        UserMessage("?"),
        AssistantMessage(None, [ToolCall(id, "f", "") for id in "1234"]),
        ToolResponseMessage(
            [
                ToolResponse("1", "f", "seen", media=(picture, Media("text/csv", "", id="file_1"))),
                ToolResponse("2", "f", "", is_error=True, media=(picture,)),
                ToolResponse("3", "f", ""),
                ToolResponse("4", "f", " \n"),
            ]
        ),
    )
    seen, failed, silent, blank, file, shown = body["messages"][-1]["content"]

    assert seen["content"] == [text("seen"), {"type": "image", "source": PNG}]
    assert (failed["content"], failed["is_error"]) == ("error", True)
    assert silent == {"type": "tool_result", "tool_use_id": "3"}
    assert blank == {"type": "tool_result", "tool_use_id": "4"}
    assert file == {"type": "container_upload", "file_id": "file_1"}
    assert shown == {"type": "image", "source": PNG}


def test_provider_parts_and_messages() -> None:
    """Provider parts are sent unchanged, also as a complete message."""
    marked = text("long", cache_control={"type": "ephemeral"})
    later = {"role": "system", "content": "From now on, be kind."}
    body = body_of(
        UserMessage([ProviderPart("anthropic", marked, "long")]),
        AssistantMessage([ProviderPart("anthropic", text(" "), " "), "a"]),
        UserMessage([ProviderPart("anthropic", later)]),
        UserMessage("b"),
    )

    assert body["messages"] == [
        {"role": "user", "content": [marked]},
        {"role": "assistant", "content": [text("a")]},
        later,
        {"role": "user", "content": [text("b")]},
    ]


def test_cache_mark_of_a_message() -> None:
    """The last block that can be marked gets the cache mark."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    metadata = {"cache_control": mark}
    thought = Reasoning("hm", "c2ln", PROVIDER)

    def last(message: Message) -> Any:
        return encode_blocks(message, ANTHROPIC)[-1].get("cache_control")

    assert last(SystemMessage("x", metadata)) == mark
    assert last(UserMessage(["x", Media("image/png", b"1")], metadata=metadata)) == mark
    assert last(AssistantMessage(None, [ToolCall("c", "f", "{}")], metadata=metadata)) == mark
    assert last(ToolResponseMessage([ToolResponse("c", "f", "x")], metadata)) == mark
    assert last(AssistantMessage("x", reasoning=[thought], metadata=metadata)) == mark
    assert last(AssistantMessage(None, reasoning=[thought], metadata=metadata)) is None
    assert encode_blocks(UserMessage(" ", metadata=metadata), ANTHROPIC) == []


def test_cache_mark_of_a_prefill() -> None:
    """Only the trailing space, which the API rejects, is removed from a prefill."""
    prefill = AssistantMessage("It is ", metadata={"cache_control": {"type": "ephemeral"}})
    sent = body_of(UserMessage("What?"), prefill)["messages"][-1]["content"]

    assert sent == [text("It is", cache_control={"type": "ephemeral"})]


def test_unknown_message_type() -> None:
    """A message of another type raises."""

    class Shout(Message):
        pass

    with pytest.raises(UsageError, match="Shout"):
        body_of(Shout())


# --- options --------------------------------------------------------------------------------


def fields_for(**options: Any) -> Json:
    """Return what *options* put into a request."""
    return encode_options(AnthropicChatOptions(model="m", **options), streaming=False)


@pytest.mark.feature("options-model-temperature-top-p")
def test_option_fields() -> None:
    """Every supported option is sent in its field."""
    assert fields_for(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        max_tokens=100,
        stop=("END",),
        thinking="adaptive",
        effort="low",
        user_id="u",
        service_tier="auto",
    ) == {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "max_tokens": 100,
        "stop_sequences": ("END",),
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low"},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
    }


def test_max_tokens_with_thinking_budget() -> None:
    """The default limit leaves room for output after the thinking budget."""
    own = {"type": "enabled", "budget_tokens": 5000, "display": "omitted"}

    assert fields_for() == {"model": "m", "max_tokens": 16_384}
    assert fields_for(thinking=2000)["max_tokens"] == 18_384
    assert fields_for(thinking=own)["thinking"] == own


@pytest.mark.feature(
    "tool-options-tool-choice-provider-specific",
    "tool-options-parallel-calls-off",
    "lc4j-tool-choice-auto-required",
    "provider-parallel-tool-calls-disable",
    "provider-tool-choice-name",
)
@pytest.mark.parametrize(
    ("choice", "parallel", "sent"),
    [
        (None, None, None),
        (None, False, {"type": "auto", "disable_parallel_tool_use": True}),
        ("auto", True, {"type": "auto"}),
        ("none", False, {"type": "none"}),
        ("required", None, {"type": "any"}),
        ("add", False, {"type": "tool", "name": "add", "disable_parallel_tool_use": True}),
    ],
)
def test_tool_choice(choice: str | None, sent: Json | None, *, parallel: bool | None) -> None:
    """Tool choice and parallel calls are combined in the API's form."""
    tools = {
        "tool_callbacks": tool_callbacks(add),
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
    }

    assert fields_for(**tools).get("tool_choice") == sent
    assert "tool_choice" not in fields_for(tool_choice=choice, parallel_tool_calls=parallel)


@pytest.mark.feature("provider-server-tools")
def test_provider_tools() -> None:
    """Provider tools are sent unchanged after the application's tools."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    ours, theirs = fields_for(tool_callbacks=tool_callbacks(add), server_tools=[search])["tools"]

    assert (ours["name"], ours["description"]) == ("add", "Add two numbers.")
    assert ours["input_schema"]["required"] == ["a", "b"]
    assert theirs == search


@pytest.mark.parametrize(
    ("cache", "kept"), [(None, 3), ("tools", 2), ("system", 2), ("conversation", 2)]
)
def test_cache_marks_are_limited_to_four(cache: Any, kept: int) -> None:
    """The last four marks are kept, including those of options and system text."""
    mark = {"cache_control": {"type": "ephemeral"}}
    shown = ToolResponse("c", "f", "", media=(Media("image/png", b"1", metadata=mark),))
    messages = [
        SystemMessage("s", mark),
        *(UserMessage("a", metadata=mark), AssistantMessage(None, [ToolCall("c", "f", "{}")])),
        *(ToolResponseMessage([shown], mark), AssistantMessage("b", metadata=mark)),
        *(
            UserMessage('say "cache_control":{'),
            AssistantMessage("c"),
            UserMessage("d", metadata=mark),
        ),
    ]
    body = body_of(*messages, cache=cache, tool_callbacks=tool_callbacks(add))
    turns = body.pop("messages")
    (result,) = turns[2]["content"]
    all_of = [turns[0]["content"][0], *result["content"], result]
    all_of += [turns[3]["content"][0], turns[6]["content"][0]]

    assert ["cache_control" in block for block in all_of] == [False] * (5 - kept) + [True] * kept
    assert json.dumps(body).count('"cache_control"') == 4 - kept
    assert turns[4]["content"] == [text('say "cache_control":{')]


def test_arguments_named_cache_control() -> None:
    """Arguments named like a mark are no marks and are kept."""
    mark = {"cache_control": {"type": "ephemeral"}}
    calls = [ToolCall(id, "f", json.dumps(mark)) for id in "cd"]
    shown = ToolResponseMessage([ToolResponse(id, "f", "") for id in "cd"], mark)
    first, last = (UserMessage(text, metadata=mark) for text in "ab")
    turns = body_of(first, AssistantMessage(None, calls), shown, AssistantMessage("x"), last)
    blocks = [turn["content"][-1] for turn in turns["messages"]]

    assert ["cache_control" in block for block in blocks] == [True, False, True, False, True]
    assert blocks[1]["input"] == mark


def test_parameter_named_cache_control() -> None:
    """A parameter named like a mark does not count."""

    @tool
    def send(cache_control: dict[str, str]) -> None:
        """Send a request."""

    mark = {"cache_control": {"ttl": "1h", "type": "ephemeral"}}
    messages = [UserMessage("a", metadata=mark), AssistantMessage("b", metadata=mark)]
    turns = body_of(*messages, *messages, messages[0], tool_callbacks=tool_callbacks(send))[
        "messages"
    ]

    marked = ["cache_control" in turn["content"][0] for turn in turns]
    assert marked == [False, True, True, True, True]


def test_marks_of_options_take_precedence() -> None:
    """Four marks of options remove those of messages."""
    mark = {"cache_control": {"type": "ephemeral"}}
    search = {"type": "web_search_20250305", "name": "web_search", **mark}
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch", **mark}
    messages = [SystemMessage("s", mark), UserMessage("a", metadata=mark)]
    messages += [AssistantMessage("b"), UserMessage("c")]
    body = body_of(*messages, cache="conversation", server_tools=[search, fetch])

    assert json.dumps(body).count('"cache_control"') == 4
    marked = ["cache_control" in turn["content"][0] for turn in body["messages"]]
    assert marked == [False, False, True]


@pytest.mark.feature("provider-cache-tools")
@pytest.mark.parametrize(
    ("cache", "marked"),
    [
        (None, []),
        ("tools", ["tools"]),
        ("system", ["tools", "system"]),
        ("conversation", ["tools", "system", "conversation"]),
        ("auto", ["tools", "system", "conversation"]),
    ],
)
def test_prompt_caching_option(cache: Any, marked: list[str]) -> None:
    """Marks are set at the end of tools, system text or conversation."""
    messages = (SystemMessage("a"), SystemMessage("b"), UserMessage("c"))
    body = body_of(*messages, cache=cache, cache_ttl="1h", tool_callbacks=tool_callbacks(add))
    marks = {
        "tools": body["tools"][-1].get("cache_control"),
        "system": body["system"][-1].get("cache_control"),
        "conversation": body["messages"][-1]["content"][-1].get("cache_control"),
    }

    assert [place for place, mark in marks.items() if mark] == marked
    assert all(mark in (None, {"type": "ephemeral", "ttl": "1h"}) for mark in marks.values())


@pytest.mark.feature("provider-cache-tools")
def test_automatic_prompt_caching() -> None:
    """The end of the conversation is marked if another request will probably continue it."""
    mark = {"cache_control": {"type": "ephemeral"}}
    question, answer = UserMessage("a"), AssistantMessage("b")
    tools = tool_callbacks(add)
    marked = [UserMessage("a", metadata=mark), AssistantMessage("b", metadata=mark), question]

    def marks(*messages: Message, **options: Any) -> list[bool]:
        turns = body_of(*messages, **options)["messages"]
        return ["cache_control" in turn["content"][-1] for turn in turns]

    assert marks(question, cache="auto") == [False]
    assert marks(question, answer, question, cache="auto") == [False, False, True]
    assert marks(question, answer, cache="auto") == [False, False]
    assert marks(question, cache="auto", tool_callbacks=tools) == [True]
    assert marks(question, cache="auto", tool_callbacks=tools, tool_choice="none") == [False]
    assert marks(marked[0], cache="auto", tool_callbacks=tools) == [True]
    for cache, kept in [("auto", [True, True, False]), ("conversation", [False, True, True])]:
        assert marks(SystemMessage("s"), *marked, cache=cache, tool_callbacks=tools) == kept


@pytest.mark.feature("provider-cache-tools")
def test_prompt_caching_is_automatic_by_default() -> None:
    """It is with Anthropic's own API, but not with compatible servers, which may refuse it."""
    ours, theirs = (
        AnthropicChatModel(api_key="k", base_url=url) for url in (None, "http://localhost:1")
    )

    assert ours.options.cache == "auto"
    assert theirs.options.cache is None
    assert ours.options.merge(ChatOptions(unset="cache")).cache is None


def test_beta_header(ask: Ask, serve: Serve) -> None:
    """Beta features of model, request and headers are joined in one header."""
    server = serve("ok")
    model = server.model(headers={"Anthropic-Beta": "a"}, options=AnthropicChatOptions(betas="b"))
    client = ChatClient.create(model)
    for options in (None, AnthropicChatOptions(betas=["c", "d"]), None):
        request = client.prompt("Hi")
        ask(request if options is None else request.options(options))

    assert [h["anthropic-beta"] for h in server.headers] == ["a,b", "a,c,d", "a,b"]


def test_foreign_options(serve: Serve) -> None:
    """Common options of another provider's class apply."""
    server = serve("ok")
    model = server.model()
    options = OpenAIChatOptions(model="stub", temperature=0.1, reasoning_effort="high")
    asyncio.run(model.generate(Prompt("Hi", options), ON_LOOP))
    plain = Prompt("Hi", ChatOptions(model="stub", max_tokens=5))
    asyncio.run(model.generate(plain, ON_LOOP))

    assert [r["max_tokens"] for r in server.requests] == [16_384, 5]
    assert server.requests[0]["temperature"] == 0.1


# --- schemas --------------------------------------------------------------------------------


def test_schema_restrictions() -> None:
    """Objects are closed; keywords that the API cannot enforce are described."""
    name = {"type": "string", "minLength": 2, "description": "Full.", "format": "x"}
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": {"Name": name},
        "properties": {
            "name": {"$ref": "#/$defs/Name", "description": "Whose."},
            "any": {"oneOf": [{"type": "null"}, {"properties": {}}]},
            "tags": {"type": "array", "items": {"enum": ["a"]}, "minItems": 1},
            "open": {"type": "object", "additionalProperties": {"type": "string"}},
            "anything": True,
        },
    }

    words = 'Full.\n\nConstraints: {"minLength":2,"format":"x"}'
    assert enforceable(schema) == {
        "$defs": {"Name": {"type": "string", "description": words}},
        "properties": {
            "name": {"$ref": "#/$defs/Name"},
            "any": {"anyOf": [{"type": "null"}, {"properties": {}, "additionalProperties": False}]},
            "tags": {"type": "array", "items": {"enum": ["a"]}, "minItems": 1},
            "open": {"type": "object", "additionalProperties": {"type": "string"}},
            "anything": True,
        },
        "additionalProperties": False,
    }
    assert enforceable(enforceable(schema)) == enforceable(schema)


def test_schema_with_top_level_reference() -> None:
    """The definitions of a top-level reference are kept."""
    schema = {"$ref": "#/$defs/A", "$defs": {"A": {"type": "integer", "maximum": 3}}}

    assert enforceable(schema) == {
        "$ref": "#/$defs/A",
        "$defs": {"A": {"type": "integer", "description": 'Constraints: {"maximum":3}'}},
    }


OPEN = {"type": "object", "additionalProperties": {"type": "string"}}
ENDLESS = {
    "type": "object",
    "properties": {"tree": {"$ref": "#/$defs/Tree"}},
    "$defs": {
        "Tree": {"properties": {"twigs": {"type": "array", "items": {"$ref": "#/$defs/Twig"}}}},
        "Twig": {"anyOf": [{"$ref": "#/$defs/Tree"}, {"$ref": "#/$defs/Leaf"}]},
        "Leaf": {"type": "string"},
    },
}


@pytest.mark.feature("entity-use-provider-structured-output")
@pytest.mark.parametrize(
    ("schema", "mode"),
    [
        ({"type": "object", "properties": {"a": {"type": "string"}}}, "schema"),
        ({"type": "object", "additionalProperties": False}, "schema"),
        ({"$defs": {"A": {"enum": [{"properties": 1}]}}, "$ref": "#/$defs/A"}, "schema"),
        ({"type": "object"}, "tool"),
        (OPEN, "tool"),
        ({"properties": {"a": {"anyOf": [{"type": "null"}, OPEN]}}}, "tool"),
        ({"properties": {"a": {}}, "additionalProperties": True}, "tool"),
        (
            {"properties": {}, "patternProperties": {"^x": {}}, "additionalProperties": False},
            "tool",
        ),
        (ENDLESS, "tool"),
        ({"properties": {"again": {"$ref": "#"}}}, "tool"),
    ],
)
def test_unenforceable_schema_becomes_a_tool(schema: Json, mode: str) -> None:
    """Recursive and free-form schemas are sent as tool parameters instead."""
    model = AnthropicChatModel(api_key="k")

    assert model.output_mode(AnthropicChatOptions(output_schema=schema)) == mode


@pytest.mark.feature("entity-output-schema-provider-refuses")
@pytest.mark.parametrize("schema", [OPEN, ENDLESS, {"type": "object"}])
def test_unenforceable_schema_in_options(ask: Ask, schema: Json) -> None:
    """An unenforceable schema in the options raises with an alternative."""
    client = ChatClient.create(AnthropicChatModel(api_key="k"))
    with pytest.raises(UsageError, match="native=True"):
        ask(client.prompt("Hi").options(output_schema=schema))


def test_schema_for_other_servers(serve: Serve) -> None:
    """Schemas are sent unchecked to other servers, which may enforce more."""
    server = serve("ok")
    options = AnthropicChatOptions(model="stub", output_schema=OPEN)
    server.model().call(Prompt("Hi", options))

    assert server.requests[0]["output_config"]["format"]["schema"] == OPEN


@pytest.mark.feature("entity-use-provider-structured-output")
def test_schema_with_thinking() -> None:
    """Thinking excludes a forced tool call, so an unenforceable schema is described."""
    old = AnthropicChatModel("claude-sonnet-4-20250514", api_key="k")
    new = AnthropicChatModel(api_key="k")
    thinking = AnthropicChatOptions(thinking=2000)

    assert old.output_mode(thinking) == "instructions"
    assert old.output_mode(AnthropicChatOptions(thinking="disabled")) == "tool"
    assert new.output_mode(thinking) == "schema"
    assert new.output_mode(thinking.mutate(output_schema=OPEN)) == "instructions"


@pytest.mark.parametrize(
    ("name", "mode"),
    [
        ("claude-opus-5", "tool"),
        ("claude-fable-5-20260601", "tool"),
        ("claude-haiku-5-5", "tool"),
        ("claude-opus-5-5", "instructions"),
        ("claude-sonnet-5-5", "instructions"),
        ("claude-fable-5-1", "instructions"),
        ("claude-mythos-5-2", "instructions"),
    ],
)
def test_schema_without_forced_calls(name: str, mode: str) -> None:
    """Models that reject a forced tool call get the schema as a description."""
    schema = {"type": "object"}
    model = AnthropicChatModel(name, api_key="k")

    assert model.output_mode(AnthropicChatOptions(output_schema=schema)) == mode
    assert (
        AnthropicChatModel(api_key="k").output_mode(
            AnthropicChatOptions(model=name, output_schema=schema)
        )
        == mode
    )


@dataclass(frozen=True)
class Declared:
    """A tool with a definition only."""

    definition: ToolDefinition
    metadata: ToolMetadata = field(default_factory=ToolMetadata)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        raise NotImplementedError


@pytest.mark.parametrize("schema", [OPEN, ENDLESS])
def test_strict_tool_with_unsupported_schema(schema: Json) -> None:
    """A tool with such a schema is sent without `strict`."""
    declared = Declared(ToolDefinition("f", "d", schema, strict=True))
    body = encode_options(AnthropicChatOptions(tool_callbacks=(declared,)), streaming=False)

    complete = {"properties": {}, **schema}
    assert body["tools"] == [{"name": "f", "description": "d", "input_schema": complete}]


@pytest.mark.parametrize(
    ("texts", "ttl"),
    [(["marked"], "1h"), (['say "cache_control":'], "5m"), (["marked", "b"], "5m")],
)
def test_marked_system_message(texts: list[str], ttl: str) -> None:
    """The mark of a message wins over the option and is not duplicated."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    messages = [SystemMessage(text, mark if text == "marked" else {}) for text in texts]
    model = AnthropicChatModel(api_key="k")
    options = model.options.merge(AnthropicChatOptions(cache="system", cache_ttl="5m"))
    body = model._body(Prompt([*messages, UserMessage("Hi")], options), streaming=False)
    last = json.loads(body)["system"][-1]

    assert last["cache_control"]["ttl"] == ttl
    assert body.count(b'"cache_control":{') == len(texts)


# --- the model ------------------------------------------------------------------------------


def test_key_sources(monkeypatch: pytest.MonkeyPatch, serve: Serve) -> None:
    """A key function is called per request; a missing key raises when the model is made."""
    server = serve("ok")
    keys = iter(["one", "two"])
    rotating = server.model(api_key=lambda: next(keys), base_url=server.url + "/v1")
    rotating.call("Hi")
    rotating.call("Hi")
    monkeypatch.setenv("ANTHROPIC_API_KEY", "three")
    monkeypatch.setenv("ANTHROPIC_BASE_URL", server.url)
    server.model(api_key=None, base_url=None).call("Hi")
    monkeypatch.delenv("ANTHROPIC_API_KEY")
    monkeypatch.delenv("ANTHROPIC_BASE_URL")

    assert [headers["x-api-key"] for headers in server.headers] == ["one", "two", "three"]
    with pytest.raises(UsageError, match="ANTHROPIC_API_KEY"):
        AnthropicChatModel()


def test_key_is_masked() -> None:
    """Neither the repr nor an error contains the key."""
    model = AnthropicChatModel("claude", api_key="secret")

    assert repr(model) == "AnthropicChatModel('claude', base_url='https://api.anthropic.com')"


def test_local_server_without_key(serve: Serve) -> None:
    """Without a key none is sent."""
    with pytest.raises(AuthenticationError):
        serve("ok").model(api_key=None).call("Hi")


def test_connections_are_closed_with_the_model(serve: Serve) -> None:
    """Connections of beta requests are closed too, blocking and async."""
    server = serve("ok")

    async def ask() -> None:
        async with server.model() as model:
            await model.acall("Hi")
            await model.acall(Prompt("Hi", AnthropicChatOptions(betas=("b",))))

    asyncio.run(ask())
    with server.model() as model:
        model.call("Hi")

    assert len(server.requests) == 3


@pytest.mark.feature("response-chat-response-metadata-id", "response-rate-limit")
def test_rate_limit_headers(serve: Serve) -> None:
    """Remaining limits and their reset times, by the server's clock, are in the metadata."""
    limits = {
        "anthropic-ratelimit-requests-limit": "50",
        "anthropic-ratelimit-requests-remaining": "49",
        "anthropic-ratelimit-requests-reset": "2026-11-21T10:00:30Z",
        "anthropic-ratelimit-tokens-limit": "²",
        "anthropic-ratelimit-tokens-remaining": "many",
        "anthropic-ratelimit-tokens-reset": "soon",
        "retry-after": "61",
    }
    date = {"date": "Sat, 21 Nov 2026 10:00:00 GMT"}
    timed = decode_response(message("ok"), {**limits, **date}).metadata.rate_limit
    untimed = decode_response(message("ok"), limits).metadata.rate_limit

    assert timed is not None
    assert (timed.requests_limit, timed.requests_remaining) == (50, 49)
    assert (timed.requests_reset, timed.tokens_remaining, timed.tokens_reset) == (30, None, None)
    assert untimed is not None
    assert decode_response(message("ok")).metadata.rate_limit is None


# --- test server ----------------------------------------------------------------------------

USER = {"role": "user", "content": [text("?")]}
CALL = tool_use("1", "add", {})
CALLS = {"role": "assistant", "content": [CALL]}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "5"}


def assistant(*content: Json) -> Json:
    return {"role": "assistant", "content": [*content]}


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"seed": 1}, "seed: Extra inputs"),
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "no proper tool"),
        ({"output_config": {"format": {"schema": {"minimum": 1}}}}, "'minimum'"),
        ({"messages": [assistant(text("a"))]}, "must alternate"),
        ({"messages": [USER, assistant()]}, "non-empty content"),
        ({"messages": [USER, assistant(text(" "))]}, "non-whitespace"),
        ({"messages": [USER, assistant(thinking("", ""))]}, "signature: Field required"),
        ({"messages": [USER, assistant(text("a "))]}, "trailing whitespace"),
        ({"messages": [USER, CALLS]}, "without tool_result"),
        ({"messages": [USER, CALLS, USER]}, "do not pair up"),
        ({"messages": [{"role": "user", "content": [text("?"), RESULT]}]}, "must come first"),
        ({"messages": [USER, assistant(CALL, CALL)]}, "must be unique"),
        ({"messages": [USER, assistant({**CALL, "input": "{}"})]}, "valid dictionary"),
        ({"thinking": {"type": "enabled"}, "messages": [USER, CALLS]}, "Expected `thinking`"),
    ],
)
def test_server_strictness(request_: Json, problem: str) -> None:
    """The test server rejects what the real API rejects."""
    complete = {"model": "m", "max_tokens": 1, "messages": [USER]}

    assert not [*problems(complete)]
    assert any(problem in found for found in problems({**complete, **request_}))


# --- official client ------------------------------------------------------------------------


def test_official_client_accepts_test_server(serve: Serve) -> None:
    """The official package parses the answers of the test server."""
    anthropic = pytest.importorskip("anthropic")
    call = tool_use("toolu_1", "add", {"a": 2, "b": 3})
    cited = text("Cited.", citations=[char_location()])
    server = serve(message(thinking("Hm, well."), "Let me see.", cited, call))
    client = anthropic.Anthropic(api_key="key", base_url=server.url, max_retries=0)
    request = {
        "model": "m",
        "max_tokens": 9,
        "messages": [{"role": "user", "content": [text("?")]}],
    }
    complete = client.messages.create(**request)
    with client.messages.stream(**request) as stream:
        streamed = stream.get_final_message()
    client.close()

    blocks = [block.model_dump(exclude={"parsed_output"}) for block in streamed.content]
    assert blocks == [block.model_dump() for block in complete.content]
    assert [block.type for block in complete.content] == ["thinking", "text", "text", "tool_use"]
    assert (complete.stop_reason, streamed.stop_reason) == ("tool_use", "tool_use")
    assert streamed.usage.output_tokens == complete.usage.output_tokens == 5
    assert complete.content[3].input == {"a": 2, "b": 3}


def char_location() -> Json:
    return {
        "type": "char_location",
        "cited_text": "Cited.",
        "document_index": 0,
        "document_title": None,
        "start_char_index": 0,
        "end_char_index": 6,
        "file_id": None,
    }


HOUR = {"type": "ephemeral", "ttl": "1h"}


@pytest.mark.parametrize(
    ("message", "options"),
    [
        (UserMessage("Hi", metadata={"cache_control": HOUR}), {}),
        (UserMessage("Hi"), {"extra": {"cache_control": HOUR}}),
        (UserMessage("Hi"), {"server_tools": [{"type": "x", "name": "x", "cache_control": HOUR}]}),
    ],
)
def test_auto_adds_no_marks_to_own(message: Message, options: Json) -> None:
    """A default mark could come before one that lives longer, which the API refuses."""
    tools = tool_callbacks(add)
    body = body_of(SystemMessage("s"), message, cache="auto", tool_callbacks=tools, **options)
    assert json.dumps(body).count('"cache_control"') == 1
    assert json.dumps(body).count('"1h"') == 1


def test_marks_of_tools() -> None:
    """The last tool that is not deferred is marked, unless it is; there are at most four marks."""
    search = {"type": "search", "name": "search"}
    deferred = {"type": "x", "name": "x", "defer_loading": True}
    tools = body_of(UserMessage("Hi"), cache="auto", server_tools=[search, deferred])["tools"]
    assert ["cache_control" in each for each in tools] == [True, False]

    own = [{"type": "x", "name": name, "cache_control": HOUR} for name in "abcd"]
    messages = [SystemMessage("s"), UserMessage("Hi")]
    body = body_of(*messages, cache="conversation", server_tools=own)
    assert body["tools"] == own
    assert json.dumps(body).count('"cache_control"') == 4


def test_own_mark_is_not_the_last_field() -> None:
    """A block in the API's format that has a mark anywhere gets no second."""
    block = {"type": "text", "cache_control": {"type": "ephemeral"}, "text": "z"}
    options = AnthropicChatOptions(cache="conversation")
    model = AnthropicChatModel(api_key="key", options=options)
    prompt = Prompt(UserMessage([ProviderPart("anthropic", block)]), model.options)
    assert model._body(prompt, streaming=False).count(b'"cache_control":') == 1
