"""The Messages API through the client, in all four ways, against a server as strict as theirs."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Ask, Mode
from messages_server import (
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
from replay import collect
from servers import Reply

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
)
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
from chatclient.events import ReasoningDelta, TextDelta, ToolCallDelta, ToolCallStarted
from chatclient.messages import Part, ProviderPart, Reasoning
from chatclient.providers.anthropic import AnthropicChatModel, AnthropicChatOptions
from chatclient.providers.anthropic_decoding import decode_response
from chatclient.providers.anthropic_encoding import ANTHROPIC, PROVIDER, encode_message
from chatclient.providers.anthropic_options import encode_options
from chatclient.providers.anthropic_schemas import enforceable
from chatclient.providers.anthropic_stream import StreamDecoder
from chatclient.providers.openai import OpenAIChatOptions
from chatclient.providers.sse import ServerSentEventDecoder
from chatclient.runtime import ON_LOOP
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools import tool, tool_callbacks


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start servers that speak the Messages API; all are gone after the test."""
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
    """Return what is sent for *messages*."""
    model = AnthropicChatModel(api_key="key", options=AnthropicChatOptions(**options))
    body: Json = json.loads(model._body(Prompt(messages, model.options), streaming=False))
    return body


def content_of(message: Message) -> list[Json]:
    """Return the blocks that *message* is sent as."""
    content: list[Json] = body_of(message)["messages"][0]["content"]
    return content


# --- asking ---------------------------------------------------------------------------------


def test_the_answer_comes_with_all_that_is_known_of_it(ask: Ask, serve: Serve) -> None:
    """Text, finish reason, usage with the cached input, ids."""
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


def test_system_messages_go_beside_the_conversation(ask: Ask, serve: Serve) -> None:
    """They become blocks of the system text, wherever they stand."""
    server = serve("ok")
    client = ChatClient.builder(server.model()).default_system("Be brief.").build()
    later = [UserMessage("a"), SystemMessage("Be kind."), AssistantMessage("b")]
    ask(client.prompt().messages(later).user("c"))

    assert server.requests[0]["system"] == [text("Be brief."), text("Be kind.")]
    assert [m["role"] for m in server.requests[0]["messages"]] == ["user", "assistant", "user"]


def test_a_tool_is_called_and_its_result_sent(ask: Ask, serve: Serve) -> None:
    """The call goes back with its result, in the form the API insists on."""
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


def test_parallel_calls_are_answered_in_one_message(ask: Ask, serve: Serve) -> None:
    """Two calls, one of them without arguments, have their results side by side."""
    calls = [tool_use("toolu_1", "add", {"a": 1, "b": 1}), tool_use("toolu_2", "now", {})]
    server = serve(message(*calls), "Two, at noon.")
    result = ask(ChatClient.create(server.model()).prompt("?").tools(add, now))
    last = server.requests[1]["messages"][-1]["content"]

    assert [execution.tool_call.name for execution in result.executions] == ["add", "now"]
    assert [block["tool_use_id"] for block in last] == ["toolu_1", "toolu_2"]
    assert result.response.chat_response.usage.output_tokens == 10


def test_a_failed_tool_says_so(ask: Ask, serve: Serve) -> None:
    """A result that is an error is marked as one."""
    server = serve(message(tool_use("toolu_1", "add", {"a": "x"})), "Sorry.")
    ask(ChatClient.create(server.model()).prompt("?").tools(add))

    assert server.requests[1]["messages"][-1]["content"][0]["is_error"] is True


def test_a_name_that_no_tool_can_have_does_not_spoil_the_conversation(
    ask: Ask, serve: Serve
) -> None:
    """The model is told that there is no such tool; the API refuses the name itself."""
    server = serve(message(tool_use("t1", "functions.add 2", {})), "Well.")

    assert ask(ChatClient.create(server.model()).prompt("?").tools(add)).text == "Well."
    assert server.requests[1]["messages"][1]["content"][0]["name"] == "functions_add_2"


def test_thoughts_go_back_unchanged(ask: Ask, serve: Serve) -> None:
    """The API refuses a round of tools without the signed thoughts that led to it."""
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


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_tells_what_comes_as_it_comes(mode: Mode, serve: Serve) -> None:
    """Thoughts, text and a call with its arguments, piece by piece."""
    call = tool_use("toolu_1", "add", {"a": 2, "b": 3})
    server = serve(message(thinking("Hm, well."), "Let me see.", call), "5")
    result = Ask(mode)(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))
    told = [e for e in result.events if isinstance(e, TextDelta | ReasoningDelta)]
    arguments = [e.arguments for e in result.events if isinstance(e, ToolCallDelta)]

    assert [event.text for event in told] == ["Hm, ", "well.", "Let ", "me ", "see.", "5"]
    assert [e.name for e in result.events if isinstance(e, ToolCallStarted)] == ["add"]
    assert len(arguments) == 2
    assert json.loads("".join(arguments)) == {"a": 2, "b": 3}


def test_what_only_the_provider_knows_goes_back_unchanged(ask: Ask, serve: Serve) -> None:
    """Tools that the provider ran, and cited passages, whose text is part of the answer."""
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


def test_ids_may_repeat_from_round_to_round(ask: Ask, serve: Serve) -> None:
    """As those of some servers do; the API takes each once, and the same one every time."""
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


def test_a_response_in_the_form_of_the_api_belongs_to_the_last_call_of_its_id(serve: Serve) -> None:
    """Also where that id had been taken, and beside what is no response."""
    found: dict[str, Any] = {"type": "tool_reference", "tool_name": "add"}
    block = {"type": "tool_result", "tool_use_id": "call_0", "content": [found]}
    said: list[Message] = [UserMessage("?")]
    for _ in range(2):
        said.append(AssistantMessage(tool_calls=[ToolCall("call_0", "find", "{}")]))
        said.append(UserMessage([ProviderPart("anthropic", block), "Go on."]))
    server = serve("Done.")
    server.model().call(said)
    results = [turn["content"] for turn in server.requests[0]["messages"][2::2]]

    assert [result[0]["tool_use_id"] for result in results] == ["call_0", "call_0_2"]
    assert [result[1]["text"] for result in results] == ["Go on.", "Go on."]


def test_ids_that_are_alike_in_the_letters_of_the_api_stay_apart(serve: Serve) -> None:
    """Also those of calls in parallel, and an id that looks like a new one."""
    said: list[Message] = [UserMessage("?")]
    for ids in (("a.b", "a_b_2"), ("a:b", "c"), ("c",), ("d.e", "d:e", "d_e_2")):
        responses = [ToolResponse(id, "now", id) for id in ids]
        said.append(AssistantMessage(tool_calls=[ToolCall(id, "now", "{}") for id in ids]))
        said.append(ToolResponseMessage(responses))
    server = serve("Done.")
    server.model().call(said)
    results = [b for turn in server.requests[0]["messages"][2::2] for b in turn["content"]]

    called = [b["id"] for turn in server.requests[0]["messages"][1::2] for b in turn["content"]]

    assert called == [result["tool_use_id"] for result in results]
    assert called[:5] == ["a_b", "a_b_2", "a_b_3", "c", "c_2"]
    assert called[5:] == ["d_e", "d_e_2", "d_e_2_2"]
    told = [result["content"] for result in results]
    assert told == ["a.b", "a_b_2", "a:b", "c", "c", "d.e", "d:e", "d_e_2"]


def test_a_paused_turn_goes_on_where_it_stopped(ask: Ask, serve: Serve) -> None:
    """The message of a pause is sent back as it is, and has no finish reason of ours."""
    server = serve(message("Searching ", stop_reason="pause_turn"), "Found.")
    client = ChatClient.create(server.model())
    paused = ask(client.prompt("?")).response.chat_response
    assert paused.output is not None
    ask(client.prompt().messages(UserMessage("?"), paused.output))

    assert paused.finish_reason is None
    assert paused.has_finish_reasons(["pause_turn"])
    assert server.requests[1]["messages"][-1]["content"] == [text("Searching")]


def test_an_answer_can_be_held_to_a_schema(ask: Ask, serve: Serve) -> None:
    """The schema goes along in the form that the API can enforce."""
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


def test_a_refusal_is_told_apart(ask: Ask, serve: Serve) -> None:
    """An answer without content that ends in a refusal says so, with its details."""
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
def test_refusals_are_classified(
    ask: Ask, serve: Serve, reply: Reply, kind: type[ProviderError]
) -> None:
    """What the API refuses becomes the error that says what to do."""
    client = ChatClient.create(serve(reply).model(max_retries=0))
    with pytest.raises(kind) as caught:
        ask(client.prompt("Hi"))

    assert caught.value.provider == "anthropic"
    assert caught.value.status == reply.status
    assert caught.value.retry_after == (7 if kind is RateLimitedError else None)
    assert caught.value.request_id == reply.headers.get("request-id")


def test_a_passing_failure_is_asked_again(ask: Ask, serve: Serve) -> None:
    """An overloaded server is asked again after the time it names."""
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
def test_an_error_inside_a_stream_is_that_error(
    serve: Serve, kind: str, error: type[ProviderError], mode: Mode
) -> None:
    """A stream that reports a failure raises it, whatever came before."""
    told = as_stream(message("one two"))[:900].rpartition(b"event:")[0]
    event = {"type": "error", "error": {"type": kind, "message": "Oh no"}}
    reply = Reply(told + b"data: %b\n\n" % json.dumps(event).encode())
    with pytest.raises(error, match="Oh no"):
        Ask(mode)(ChatClient.create(serve(reply).model(max_retries=0)).prompt("Hi"))


@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_stream_without_its_end_is_an_error_with_what_came(serve: Serve, mode: Mode) -> None:
    """A stream that just stops raises, and carries what had arrived."""
    whole = as_stream(message("one two three"))
    server = serve(Reply(whole[: whole.index(b"event: content_block_stop")]))
    with pytest.raises(StreamInterruptedError) as caught:
        Ask(mode)(ChatClient.create(server.model(max_retries=0)).prompt("Hi"))

    assert caught.value.partial.text == "one two three"


@pytest.mark.parametrize("end", [b"\n", b""])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_the_last_event_may_lack_its_blank_line(serve: Serve, mode: Mode, end: bytes) -> None:
    """What some gateways leave out is no reason to throw the answer away."""
    whole = as_stream(message("one two three")).rstrip(b"\n") + end
    result = Ask(mode)(ChatClient.create(serve(Reply(whole)).model(max_retries=0)).prompt("Hi"))

    assert result.text == "one two three"
    assert result.response.chat_response.finish_reason == "stop"


@pytest.mark.parametrize("end", [b"", b"data: [DONE]\n\n"])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_the_last_event_may_be_missing(serve: Serve, mode: Mode, end: bytes) -> None:
    """An answer that has said why it ends is whole, and its calls are made."""
    asking, saying = (
        as_stream(answer).partition(b"event: message_stop")[0] + end
        for answer in (message(tool_use("toolu_1", "add", {"a": 1, "b": 2})), message("It is 3."))
    )
    client = ChatClient.create(serve(Reply(asking), Reply(saying)).model(max_retries=0))
    result = Ask(mode)(client.prompt("1 + 2?").tools(add))

    assert result.text == "It is 3."
    assert [e.response.data for e in result.executions] == ["3"]
    assert result.response.chat_response.finish_reason == "stop"
    assert result.response.chat_response.usage.output_tokens == 10


@pytest.mark.parametrize("indent", [None, 2])
@pytest.mark.parametrize("mode", ["stream", "astream"])
def test_a_server_that_knows_no_streams_is_understood(
    serve: Serve, mode: Mode, indent: int | None
) -> None:
    """A whole answer in place of a stream is the answer, and asked for once."""
    asking, saying = (
        Reply(json.dumps(answer, indent=indent).encode())
        for answer in (
            message("Wait.", tool_use("toolu_1", "add", {"a": 1, "b": 2})),
            message(thinking("Easy."), "It is 3."),
        )
    )
    server = serve(asking, saying)
    result = Ask(mode)(ChatClient.create(server.model()).prompt("1 + 2?").tools(add))

    assert result.text == "Wait.It is 3."
    assert result.response.chat_response.message.reasoning == (
        Reasoning("Easy.", "c2lnbmVk", "anthropic"),
    )
    assert result.response.chat_response.usage.output_tokens == 10
    assert len(server.requests) == 2


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_a_gateway_that_always_streams_is_understood(serve: Serve, mode: Mode) -> None:
    """A stream where none was asked for is the answer that it spells."""
    asking = message("Wait.", tool_use("toolu_1", "add", {"a": 1, "b": 2}))
    server = serve(*(Reply(as_stream(answer)) for answer in (asking, message("It is 3."))))
    result = Ask(mode)(ChatClient.create(server.model()).prompt("1 + 2?").tools(add))

    assert result.text == "It is 3."
    assert [e.response.data for e in result.executions] == ["3"]
    assert result.response.chat_response.usage.output_tokens == 10
    assert len(server.requests) == 2


def test_half_a_stream_is_no_whole_answer(serve: Serve) -> None:
    """Where none was asked for, too."""
    half = as_stream(message("one two three")).partition(b"event: message_delta")[0]
    with pytest.raises(StreamInterruptedError):
        serve(Reply(half)).model(max_retries=0).call("Hi")


def test_a_message_that_was_streamed_is_not_told_again() -> None:
    """Where the whole of it follows its pieces, before its end or behind it."""
    whole = message("Hi")
    told = [line[6:] for line in as_stream(whole).splitlines() if line.startswith(b"data: ")]
    start, _, *pieces, end, stop = map(json.loads, told)

    for events in (
        [start, *pieces, whole, end, stop],
        [start, *pieces, end, whole, stop],
        [*pieces, whole, end, stop],
        [*pieces, end, whole],
    ):
        assert collect(chunks(*events)).text == "Hi"


def test_half_a_message_is_none() -> None:
    """What is cut off in place of a stream is not taken for an answer, nor one without content."""
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
def test_an_answer_of_no_known_form_is_an_error(serve: Serve, body: bytes) -> None:
    """What cannot be read is never taken for an empty answer."""
    with pytest.raises(InvalidResponseError):
        serve(Reply(body)).model().call("Hi")


def test_the_id_of_a_request_is_found_wherever_a_gateway_puts_it() -> None:
    """Other services of the same models have other headers; errors know them, too."""
    for name in ("request-id", "x-request-id", "x-amzn-requestid"):
        response = decode_response({"content": []}, {name: "req_1"})
        assert response.metadata.request_id == "req_1"


def test_content_of_null_is_an_empty_answer() -> None:
    """As gateways have it whose model said nothing; whole, and where a stream begins."""
    nothing = {**message(), "content": None}
    (begun,) = chunks({"type": "message_start", "message": nothing})

    for response in (decode_response(nothing), begun):
        assert response.output == AssistantMessage()
        assert response.finish_reason == "stop"


def test_what_is_zero_or_empty_may_be_left_out() -> None:
    """As gateways do that are written in Go."""
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


def test_an_error_in_an_answer_of_status_200_is_that_error() -> None:
    """Some servers report errors as if all were well."""
    data = {"type": "error", "error": {"type": "overloaded_error", "message": "Busy"}}
    with pytest.raises(OverloadedError, match="Busy"):
        decode_response(data)
    with pytest.raises(ProviderError, match="Busy"):
        decode_response({"error": "Busy"})


# --- events of streams ----------------------------------------------------------------------


def chunks(*events: Json) -> list[Any]:
    """Return what a decoder makes of *events*, without those that say nothing."""
    decoder = StreamDecoder()
    found = [decoder.feed(json.dumps(event).encode()) for event in events]
    return [chunk for chunk in found if chunk is not None]


def block(*events: Json, start: Json) -> list[Part]:
    """Return the parts that a block is told in."""
    deltas = [{"type": "content_block_delta", "index": 0, "delta": delta} for delta in events]
    first = {"type": "content_block_start", "index": 0, "content_block": start}
    stop = {"type": "content_block_stop", "index": 0}
    found = chunks(first, *deltas, stop, {"type": "message_stop"})
    return [p for c in found for p in ([c] if isinstance(c, str) else c.output.parts)]


def test_unknown_events_are_skipped() -> None:
    """What a later version of the API adds does no harm, nor does another API's end."""
    assert (
        chunks({"type": "ping"}, {"type": "new"}, {"type": "content_block_stop", "index": 7}) == []
    )
    assert StreamDecoder().feed(b"[DONE]") is None


def test_what_follows_the_end_is_not_read() -> None:
    """The end of a message is the end, whatever a gateway sends after it."""
    decoder = StreamDecoder()
    decoder.feed(b'{"type": "message_stop"}')

    assert decoder.feed(b"nonsense") is None
    decoder.finish(b"nonsense")


def test_a_message_that_begins_twice_begins_once() -> None:
    """Gateways may repeat the beginning; one that comes with content is told."""
    content = [tool_use("toolu_1", "add", {"a": 1})]
    start = {"type": "message_start", "message": message(*content)}
    (chunk,) = chunks(start, start)

    assert chunk.output.tool_calls == (ToolCall("toolu_1", "add", '{"a":1}'),)
    assert chunk.finish_reason == "tool_call"


def test_text_without_a_beginning_is_text() -> None:
    """A block whose beginning got lost is taken for text."""
    delta = {"type": "text_delta", "text": "Hi"}

    assert chunks({"type": "content_block_delta", "index": 3, "delta": delta}) == ["Hi"]


def test_text_may_come_with_its_beginning() -> None:
    """What a beginning already says is told, be it text, thoughts or a whole call."""
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
def test_nothing_is_lost_where_gateways_end_blocks_too_early(
    events: list[Json], parts: list[Part]
) -> None:
    """Or too late, or not at all: what comes for a block is its own until the message ends."""
    ends = [{"type": "message_delta", "delta": {"stop_reason": "end_turn"}}]

    assert collect(chunks(*events, *ends)).output == AssistantMessage(parts)


def test_a_tool_gets_arguments_that_come_after_the_end_of_their_block(serve: Serve) -> None:
    """In streams of both kinds."""
    start = {"type": "message_start", "message": {**message(), "stop_reason": None}}
    late = [begin(0, CALL), stop(0), piece(0, '{"a":2,'), piece(0, '"b":3}')]
    end = {"type": "message_delta", "delta": {"stop_reason": "tool_use"}}
    events = [start, *late, end, {"type": "message_stop"}]
    body = "".join(f"data: {json.dumps(event)}\n\n" for event in events).encode()
    for mode in ("stream", "astream"):
        server = serve(Reply(body, content_type="text/event-stream"), "5")
        result = Ask(mode)(ChatClient.create(server.model()).prompt("2 + 3?").tools(add))

        assert [execution.response.data for execution in result.executions] == ["5"]


def test_empty_events_and_the_end_of_another_api_are_passed_over() -> None:
    """Gateways send such to keep a connection alive, and to say twice that all has been said."""
    decoder = StreamDecoder()

    for data in (b"", b"[DONE] ", b' "[DONE]"', b"DONE"):
        assert decoder.feed(data) is None


def test_a_call_without_an_id_gets_one() -> None:
    """Whole or streamed: its result has to name the call."""
    call = tool_use("", "add", {}) | {"id": None}
    streamed = collect(chunks(begin(0, call), {"type": "message_delta"}))

    for answer in (decode_response(message(call)), streamed):
        (made,) = answer.generations[0].output.tool_calls
        assert (made.name, made.arguments) == ("add", "{}")
        assert made.id


def test_what_stands_beside_the_end_is_kept() -> None:
    """What the provider cleared from the context, say, as in a whole answer."""
    cleared = {"applied_edits": [{"type": "clear_tool_uses_20250919", "cleared_tool_uses": 3}]}
    (end,) = chunks({"type": "message_delta", "delta": {}, "context_management": cleared})

    assert end.metadata.values == {"context_management": cleared}


def test_citations_that_come_late_keep_what_follows_them() -> None:
    """Text that was told is told; what comes after a citation stays with it."""
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


def test_citations_that_come_last_are_kept() -> None:
    """Behind text that was told: they are there to be shown, and the text is sent back once."""
    cites = [{"type": "char_location", "cited_text": word} for word in ("grass", "green")]
    deltas = [{"type": "citations_delta", "citation": cite} for cite in cites]
    parts = block({"type": "text_delta", "text": "The grass is green."}, *deltas, start=text(""))

    cited = ProviderPart("anthropic", {"type": "text", "text": "", "citations": cites})
    assert parts == ["The grass is green.", cited]
    assert content_of(AssistantMessage(parts)) == [text("The grass is green.")]


def test_blocks_of_other_kinds_are_put_together() -> None:
    """Fragments of text join, other values replace, null says nothing; input is parsed at last."""
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


def test_thoughts_ignore_what_they_do_not_know() -> None:
    """An empty or unknown fragment of thought adds nothing."""
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
def test_an_event_that_cannot_be_read_is_an_error(data: bytes) -> None:
    """A broken event is never skipped: something of the answer would be missing."""
    with pytest.raises(InvalidResponseError):
        StreamDecoder().feed(data)


def test_a_failure_without_the_form_of_a_stream_is_reported() -> None:
    """A plain JSON error where a stream should be, or at its end, is that error."""
    body = b'{"type":"error","error":{"type":"overloaded_error","message":"Busy"}}'
    for stream in (body, b"data: " + body):
        events = ServerSentEventDecoder()
        assert events.feed(stream) == []
        with pytest.raises(OverloadedError):
            StreamDecoder().finish(events.finish())


# --- messages -------------------------------------------------------------------------------


def test_neighbours_become_one_turn_with_results_first() -> None:
    """Users' messages merge, tool results go before what was said, blank text goes nowhere."""
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


def test_a_growing_conversation_is_the_same_as_a_fresh_one() -> None:
    """What was encoded for one round is used for the next, also after a change of subject."""
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


@pytest.mark.parametrize(
    ("arguments", "input"),
    [
        (" ", {}),
        ('{"a": 1}', {"a": 1}),
        ("```json\n{'a': 1,\n```", {"a": 1}),  # what the tool ran with
        ('{"a": ', {"malformed_arguments": '{"a": '}),
        ("[1]", {"malformed_arguments": "[1]"}),
    ],
)
def test_arguments_are_always_an_object(arguments: str, input: Json) -> None:
    """The API takes nothing else, not even back from a model that had written it."""
    sent = content_of(AssistantMessage(None, [ToolCall("1", "add", arguments)]))

    assert sent == [tool_use("1", "add", input)]


def test_other_providers_parts_are_sent_as_far_as_they_are_understood() -> None:
    """Of another provider's message there remains what was said, and ids the API takes."""
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
def test_thoughts_without_a_signature_go_only_to_servers_that_never_sign(
    signature: str | None,
) -> None:
    """Anthropic's models refuse them, wherever; a local server's model continues from them."""
    thoughts = Reasoning("hm", signature, "anthropic")
    messages = [UserMessage("?"), AssistantMessage([thoughts, "x"])]
    local = AnthropicChatModel("qwen3", base_url="http://127.0.0.1:11434/v1/")

    def sent(model: str) -> Any:
        options = local.options.mutate(model=model)
        body = json.loads(local._body(Prompt(messages, options), streaming=False))
        return body["messages"][1]["content"]

    assert body_of(*messages)["messages"][1]["content"] == [text("x")]
    assert sent("qwen3") == [{"type": "thinking", "thinking": "hm"}, text("x")]
    # A gateway to Anthropic's models, whose thoughts were cut off before their signature.
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
def test_media_are_sent_as_the_api_takes_them(media: Media, sent: Json) -> None:
    """Images, documents, text, by content, URL or the provider's own id."""
    assert content_of(UserMessage(["See:", media])) == [text("See:"), sent]


def test_media_that_the_api_does_not_take_are_an_error() -> None:
    """Sound is refused before anything is sent, with what to do."""
    with pytest.raises(UsageError, match="audio/wav"):
        body_of(UserMessage([Media("audio/wav", b"")]))


def test_a_tools_media_are_part_of_its_result_unless_it_failed() -> None:
    """The API takes only text as the result of a tool that failed; the rest follows."""
    picture = Media("image/png", b"\0\1\2")
    body = body_of(
        UserMessage("?"),
        AssistantMessage(None, [ToolCall(id, "f", "") for id in "1234"]),
        ToolResponseMessage(
            [
                ToolResponse("1", "f", "seen", media=(picture,)),
                ToolResponse("2", "f", "", is_error=True, media=(picture,)),
                ToolResponse("3", "f", ""),
                ToolResponse("4", "f", " \n"),
            ]
        ),
    )
    seen, failed, silent, blank, shown = body["messages"][-1]["content"]

    assert seen["content"] == [text("seen"), {"type": "image", "source": PNG}]
    assert (failed["content"], failed["is_error"]) == ("error", True)
    assert silent == {"type": "tool_result", "tool_use_id": "3"}
    assert blank == {"type": "tool_result", "tool_use_id": "4"}
    assert shown == {"type": "image", "source": PNG}


def test_the_apis_own_blocks_and_messages_can_be_sent() -> None:
    """What our messages do not model goes along as a provider part, even a whole message."""
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


def test_a_message_may_end_what_is_cached() -> None:
    """Its last block has the mark; thoughts, which take none, stay as they are."""
    mark = {"type": "ephemeral", "ttl": "1h"}
    noted = {"cache_control": mark}
    thought = Reasoning("hm", "c2ln", PROVIDER)

    def last(message: Message) -> Any:
        return encode_message(message, ANTHROPIC)[-1].get("cache_control")

    assert last(SystemMessage("x", noted)) == mark
    assert last(UserMessage(["x", Media("image/png", b"1")], metadata=noted)) == mark
    assert last(AssistantMessage(None, [ToolCall("c", "f", "{}")], metadata=noted)) == mark
    assert last(ToolResponseMessage([ToolResponse("c", "f", "x")], noted)) == mark
    assert last(AssistantMessage("x", reasoning=[thought], metadata=noted)) == mark
    assert last(AssistantMessage(None, reasoning=[thought], metadata=noted)) is None
    assert encode_message(UserMessage(" ", metadata=noted), ANTHROPIC) == []


def test_what_the_model_is_to_go_on_from_may_end_what_is_cached() -> None:
    """The space at its end, which the API refuses, is all that it loses."""
    begun = AssistantMessage("It is ", metadata={"cache_control": {"type": "ephemeral"}})
    sent = body_of(UserMessage("What?"), begun)["messages"][-1]["content"]

    assert sent == [text("It is", cache_control={"type": "ephemeral"})]


def test_a_message_of_a_kind_of_its_own_is_refused() -> None:
    """Only the four kinds of message can be sent."""

    class Shout(Message):
        pass

    with pytest.raises(UsageError, match="Shout"):
        body_of(Shout())


# --- options --------------------------------------------------------------------------------


def asked_for(**options: Any) -> Json:
    """Return what *options* put into a request."""
    return encode_options(AnthropicChatOptions(model="m", **options), streaming=False)


def test_options_have_their_place_in_a_request() -> None:
    """Every option of ours that the API knows is sent by the API's name."""
    assert asked_for(
        temperature=0.5,
        top_p=0.9,
        top_k=5,
        max_tokens=100,
        stop=("END",),
        seed=1,
        thinking="adaptive",
        effort="low",
        user_id="u",
        service_tier="auto",
        extra={"container": "c", "output_config": {"task_budget": 1}},
    ) == {
        "model": "m",
        "temperature": 0.5,
        "top_p": 0.9,
        "top_k": 5,
        "max_tokens": 100,
        "stop_sequences": ("END",),
        "thinking": {"type": "adaptive"},
        "output_config": {"effort": "low", "task_budget": 1},
        "metadata": {"user_id": "u"},
        "service_tier": "auto",
        "container": "c",
    }


def test_output_has_room_beside_a_thinking_budget() -> None:
    """Where no bound is set there is one, and thoughts do not use it up."""
    own = {"type": "enabled", "budget_tokens": 5000, "display": "omitted"}

    assert asked_for() == {"model": "m", "max_tokens": 16_384}
    assert asked_for(thinking=2000)["max_tokens"] == 18_384
    assert asked_for(thinking=own)["thinking"] == own


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
def test_the_choice_of_tools_is_said_in_the_apis_words(
    choice: str | None, sent: Json | None, *, parallel: bool | None
) -> None:
    """Also whether several may be called at once, which the API keeps there."""
    tools = {
        "tool_callbacks": tool_callbacks(add),
        "tool_choice": choice,
        "parallel_tool_calls": parallel,
    }

    assert asked_for(**tools).get("tool_choice") == sent
    assert "tool_choice" not in asked_for(tool_choice=choice, parallel_tool_calls=parallel)


def test_tools_of_the_provider_stand_beside_ours() -> None:
    """A tool that the provider runs is sent as it is."""
    search = {"type": "web_search_20250305", "name": "web_search"}
    ours, theirs = asked_for(tool_callbacks=tool_callbacks(add), server_tools=[search])["tools"]

    assert (ours["name"], ours["description"]) == ("add", "Add two numbers.")
    assert ours["input_schema"]["required"] == ["a", "b"]
    assert theirs == search


@pytest.mark.parametrize(
    ("cache", "kept"), [(None, 3), ("tools", 2), ("system", 2), ("conversation", 1)]
)
def test_of_many_marks_the_last_are_kept(cache: Any, kept: int) -> None:
    """The API takes four; beside those of the options, and that of the system text."""
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


def test_what_a_tool_is_called_with_is_no_mark() -> None:
    """A model that writes requests has such arguments; the marks beside them stay."""
    mark = {"cache_control": {"type": "ephemeral"}}
    calls = [ToolCall(id, "f", json.dumps(mark)) for id in "cd"]
    shown = ToolResponseMessage([ToolResponse(id, "f", "") for id in "cd"], mark)
    first, last = (UserMessage(text, metadata=mark) for text in "ab")
    turns = body_of(first, AssistantMessage(None, calls), shown, AssistantMessage("x"), last)
    blocks = [turn["content"][-1] for turn in turns["messages"]]

    assert ["cache_control" in block for block in blocks] == [True, False, True, False, True]
    assert blocks[1]["input"] == mark


def test_a_parameter_of_that_name_is_no_mark() -> None:
    """All four are left to what is marked."""

    @tool
    def send(cache_control: dict[str, str]) -> None:
        """Send a request."""

    mark = {"cache_control": {"ttl": "1h", "type": "ephemeral"}}
    asked = [UserMessage("a", metadata=mark), AssistantMessage("b", metadata=mark)]
    turns = body_of(*asked, *asked, asked[0], tool_callbacks=tool_callbacks(send))["messages"]

    marked = ["cache_control" in turn["content"][0] for turn in turns]
    assert marked == [False, True, True, True, True]


def test_no_mark_is_left_where_the_options_have_taken_all_four() -> None:
    """A fifth would be refused."""
    mark = {"cache_control": {"type": "ephemeral"}}
    search = {"type": "web_search_20250305", "name": "web_search", **mark}
    fetch = {"type": "web_fetch_20250910", "name": "web_fetch", **mark}
    messages = [SystemMessage("s", mark), UserMessage("a", metadata=mark)]
    body = body_of(*messages, cache="conversation", server_tools=[search, fetch])

    assert json.dumps(body).count('"cache_control"') == 4
    assert "cache_control" not in body["messages"][0]["content"][0]


@pytest.mark.parametrize(
    ("cache", "marked"),
    [
        (None, []),
        ("tools", ["tools"]),
        ("system", ["tools", "system"]),
        ("conversation", ["tools", "system", "conversation"]),
    ],
)
def test_a_prompt_is_cached_up_to_where_it_is_wanted(cache: Any, marked: list[str]) -> None:
    """Marks stand at the end of the tools, of the system text, of the conversation."""
    messages = (SystemMessage("a"), SystemMessage("b"), UserMessage("c"))
    body = body_of(*messages, cache=cache, cache_ttl="1h", tool_callbacks=tool_callbacks(add))
    marks = {
        "tools": body["tools"][-1].get("cache_control"),
        "system": body["system"][-1].get("cache_control"),
        "conversation": body.get("cache_control"),
    }

    assert [place for place, mark in marks.items() if mark] == marked
    assert all(mark in (None, {"type": "ephemeral", "ttl": "1h"}) for mark in marks.values())


def test_beta_features_are_named_in_a_header(ask: Ask, serve: Serve) -> None:
    """Those of the model, those of the request, and those of the application's own headers."""
    server = serve("ok")
    model = server.model(headers={"Anthropic-Beta": "a"}, options=AnthropicChatOptions(betas="b"))
    client = ChatClient.create(model)
    for options in (None, AnthropicChatOptions(betas=["c", "d"]), None):
        request = client.prompt("Hi")
        ask(request if options is None else request.options(options))

    assert [h["anthropic-beta"] for h in server.headers] == ["a,b", "a,c,d", "a,b"]


def test_another_providers_options_are_taken_as_far_as_they_are_common(serve: Serve) -> None:
    """A request meant for another model can be sent to this one."""
    server = serve("ok")
    model = server.model()
    options = OpenAIChatOptions(model="stub", temperature=0.1, reasoning_effort="high")
    asyncio.run(model.generate(Prompt("Hi", options), ON_LOOP))
    plain = Prompt("Hi", ChatOptions(model="stub", max_tokens=5))
    asyncio.run(model.generate(plain, ON_LOOP))

    assert [r["max_tokens"] for r in server.requests] == [16_384, 5]
    assert server.requests[0]["temperature"] == 0.1


# --- schemas --------------------------------------------------------------------------------


def test_a_schema_is_enforced_as_far_as_it_can_be() -> None:
    """Objects are closed; what the API cannot enforce is told to the model in words."""
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


def test_a_schema_may_begin_with_a_reference() -> None:
    """Its definitions stay with it."""
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
def test_schemas_that_the_api_refuses_are_those_of_a_tool(schema: Json, mode: str) -> None:
    """Objects with any keys and schemas that contain themselves it takes in no other place."""
    model = AnthropicChatModel(api_key="k")

    assert model.output_mode(AnthropicChatOptions(output_schema=schema)) == mode


@pytest.mark.parametrize("schema", [OPEN, ENDLESS, {"type": "object"}])
def test_an_output_schema_that_the_api_refuses_is_not_sent(ask: Ask, schema: Json) -> None:
    """Who sets it in the options chooses the field; the error says what to ask for instead."""
    client = ChatClient.create(AnthropicChatModel(api_key="k"))
    with pytest.raises(UsageError, match="native=True"):
        ask(client.prompt("Hi").options(output_schema=schema))


def test_other_servers_judge_output_schemas_themselves(serve: Serve) -> None:
    """They may enforce more than Anthropic does."""
    server = serve("ok")
    options = AnthropicChatOptions(model="stub", output_schema=OPEN)
    server.model().call(Prompt("Hi", options))

    assert server.requests[0]["output_config"]["format"]["schema"] == OPEN


def test_a_model_that_thinks_is_told_in_words() -> None:
    """It cannot be made to call a tool; and where its schema can be enforced, it need not be."""
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
def test_a_model_that_can_be_forced_to_no_call_is_told_in_words(name: str, mode: str) -> None:
    """Newer ones refuse a choice of tool, whatever is said of their thoughts."""
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
    """A tool of which only the declaration matters."""

    definition: ToolDefinition
    metadata: ToolMetadata = field(default_factory=ToolMetadata)

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        raise NotImplementedError


@pytest.mark.parametrize("schema", [OPEN, ENDLESS])
def test_strict_tools_with_schemas_that_the_api_refuses_are_not_strict(schema: Json) -> None:
    """The model is told all the same what the tool takes."""
    declared = Declared(ToolDefinition("f", "d", schema, strict=True))
    body = encode_options(AnthropicChatOptions(tool_callbacks=(declared,)), streaming=False)

    complete = {"properties": {}, **schema}
    assert body["tools"] == [{"name": "f", "description": "d", "input_schema": complete}]


@pytest.mark.parametrize(
    ("texts", "ttl"),
    [(["marked"], "1h"), (['say "cache_control":'], "5m"), (["marked", "b"], "5m")],
)
def test_a_system_message_that_is_marked_is_marked_once(texts: list[str], ttl: str) -> None:
    """What the message says of the cache goes before the option; a name twice is no JSON."""
    mark = {"cache_control": {"type": "ephemeral", "ttl": "1h"}}
    messages = [SystemMessage(text, mark if text == "marked" else {}) for text in texts]
    model = AnthropicChatModel(api_key="k")
    options = model.options.merge(AnthropicChatOptions(cache="system", cache_ttl="5m"))
    body = model._body(Prompt([*messages, UserMessage("Hi")], options), streaming=False)
    last = json.loads(body)["system"][-1]

    assert last["cache_control"]["ttl"] == ttl
    assert body.count(b'"cache_control":{') == len(texts)


# --- the model ------------------------------------------------------------------------------


def test_keys_come_from_the_environment_or_a_function(
    monkeypatch: pytest.MonkeyPatch, serve: Serve
) -> None:
    """A function is asked for each request; a missing key is an error at once."""
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


def test_a_key_is_never_shown() -> None:
    """Neither the model nor an error tells it."""
    model = AnthropicChatModel("claude", api_key="secret")

    assert repr(model) == "AnthropicChatModel('claude', base_url='https://api.anthropic.com')"


def test_a_local_server_wants_no_key(serve: Serve) -> None:
    """Without one none is sent; the strict server says what it thinks of that."""
    with pytest.raises(AuthenticationError):
        serve("ok").model(api_key=None).call("Hi")


def test_connections_are_closed_with_the_model(serve: Serve) -> None:
    """Those of requests with beta features too, in both worlds."""
    server = serve("ok")

    async def ask() -> None:
        async with server.model() as model:
            await model.acall("Hi")
            await model.acall(Prompt("Hi", AnthropicChatOptions(betas=("b",))))

    asyncio.run(ask())
    with server.model() as model:
        model.call("Hi")

    assert len(server.requests) == 3


def test_what_is_left_of_the_rate_limit_is_told(serve: Serve) -> None:
    """With the times until it is full again, by the server's own clock."""
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


# --- the server of these tests --------------------------------------------------------------

USER = {"role": "user", "content": [text("?")]}
CALL = tool_use("1", "add", {})
CALLS = {"role": "assistant", "content": [CALL]}
RESULT = {"type": "tool_result", "tool_use_id": "1", "content": "5"}


def said(*content: Json) -> Json:
    return {"role": "assistant", "content": [*content]}


@pytest.mark.parametrize(
    ("request_", "problem"),
    [
        ({"seed": 1}, "seed: Extra inputs"),
        ({"max_tokens": None}, "max_tokens: Field required"),
        ({"tools": [{"name": "a b", "input_schema": {"type": "object"}}]}, "no proper tool"),
        ({"output_config": {"format": {"schema": {"minimum": 1}}}}, "'minimum'"),
        ({"messages": [said(text("a"))]}, "must alternate"),
        ({"messages": [USER, said()]}, "non-empty content"),
        ({"messages": [USER, said(text(" "))]}, "non-whitespace"),
        ({"messages": [USER, said(thinking("", ""))]}, "signature: Field required"),
        ({"messages": [USER, said(text("a "))]}, "trailing whitespace"),
        ({"messages": [USER, CALLS]}, "without tool_result"),
        ({"messages": [USER, CALLS, USER]}, "do not pair up"),
        ({"messages": [{"role": "user", "content": [text("?"), RESULT]}]}, "must come first"),
        ({"messages": [USER, said(CALL, CALL)]}, "must be unique"),
        ({"messages": [USER, said({**CALL, "input": "{}"})]}, "valid dictionary"),
        ({"thinking": {"type": "enabled"}, "messages": [USER, CALLS]}, "Expected `thinking`"),
    ],
)
def test_the_server_is_as_strict_as_the_real_one(request_: Json, problem: str) -> None:
    """Without that, a request that it takes would prove nothing."""
    whole = {"model": "m", "max_tokens": 1, "messages": [USER]}

    assert not [*problems(whole)]
    assert any(problem in found for found in problems({**whole, **request_}))


# --- the official client --------------------------------------------------------------------


def test_the_official_client_understands_our_server(serve: Serve) -> None:
    """The server of these tests is honest: the official package reads what it says."""
    anthropic = pytest.importorskip("anthropic")
    call = tool_use("toolu_1", "add", {"a": 2, "b": 3})
    cited = text("Cited.", citations=[char_location()])
    server = serve(message(thinking("Hm, well."), "Let me see.", cited, call))
    client = anthropic.Anthropic(api_key="key", base_url=server.url, max_retries=0)
    asked = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": [text("?")]}]}
    whole = client.messages.create(**asked)
    with client.messages.stream(**asked) as stream:
        streamed = stream.get_final_message()
    client.close()

    told = [block.model_dump(exclude={"parsed_output"}) for block in streamed.content]
    assert told == [block.model_dump() for block in whole.content]
    assert [block.type for block in whole.content] == ["thinking", "text", "text", "tool_use"]
    assert (whole.stop_reason, streamed.stop_reason) == ("tool_use", "tool_use")
    assert streamed.usage.output_tokens == whole.usage.output_tokens == 5
    assert whole.content[3].input == {"a": 2, "b": 3}


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
