"""The Chat Completions model in all four modes, over a loopback server."""

import gc
import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.chat.events import ToolCallStarted
from chatclient.chat.messages import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.chat.options import ChatOptions
from chatclient.errors import (
    InvalidRequestError,
    InvalidResponseError,
    RateLimitedError,
    StreamInterruptedError,
    ToolCallRefusedError,
    UsageError,
)
from chatclient.providers.http.retry import RetryPolicy
from chatclient.providers.openai.chat import OpenAIChatModel, OpenAIChatOptions, is_openai
from chatclient.providers.openai.dialect import OPENAI
from chatclient.providers.openai.responses import OpenAIResponsesChatModel
from chatclient.testing import Ask
from chatclient.tools import ToolCallingManager
from tests.support.servers import ChatServer, Reply, as_stream, completion
from tests.support.waiting import settled

Start = Callable[..., ChatServer]
ClientOf = Callable[..., ChatClient]


@pytest.fixture
def client_of() -> Iterator[ClientOf]:
    """Make clients whose model connections are closed after the test."""
    with ExitStack() as models:

        def make(server: ChatServer, **settings: Any) -> ChatClient:
            usual = {"api_key": "k", "base_url": server.url, "max_retries": 0}
            model = OpenAIChatModel("m", **{**usual, **settings})
            return ChatClient.create(models.enter_context(model))

        yield make


def event_stream(*events: str) -> Reply:
    return Reply("".join(events).encode(), content_type="text/event-stream")


def test_key_function_is_called_per_request(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """A key function supplies the key of every request."""
    server = chat_server("hi")
    keys = iter(["one", "two"])
    client = client_of(server, api_key=lambda: next(keys))
    ask(client.prompt("x"))
    ask(client.prompt("x"))

    assert [headers["authorization"] for headers in server.headers] == ["Bearer one", "Bearer two"]


def test_model_retains_no_request(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
    """A model does not keep the tool context alive after a request."""
    if not ask.blocking and version("anyio").startswith("4.5."):
        pytest.skip("that anyio holds on to the first task of a loop that wants a thread")

    class Session:
        """A resource such as a database connection."""

    client, session = client_of(chat_server("hi")), Session()
    here = weakref.ref(session)
    ask(client.prompt("x").tools(weather).tool_context({"session": session}))
    del session

    def forgotten() -> bool:
        gc.collect()
        return here() is None

    assert settled(
        forgotten
    )  # anyio's worker keeps a reference to a loop's first task while it ends


@pytest.mark.parametrize(
    ("made_up", "sent"), [("functions.add", "functions_add"), ("", "unknown"), ("a" * 99, "a" * 64)]
)
def test_invalid_tool_name_is_reported(
    ask: Ask, chat_server: Start, client_of: ClientOf, made_up: str, sent: str
) -> None:
    """An invalid name is reported to the model and replaced in the next request."""
    server = chat_server(completion(None, ("c1", made_up, "{}")), "hi")
    ask(client_of(server).prompt("x").tools(weather))

    _, call_message, result_message = server.requests[1]["messages"]
    assert call_message["tool_calls"][0]["function"]["name"] == sent
    assert "There is no tool" in result_message["content"]


def test_system_messages_are_merged_for_others(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Leading system messages are merged, except cache-marked or later ones."""
    server = chat_server("hi")
    messages = [SystemMessage("b"), UserMessage("?"), AssistantMessage("."), SystemMessage("c")]
    mark = {"cache_control": {"type": "ephemeral"}}
    ask(client_of(server).prompt("x").system("a").messages(*messages))
    ask(client_of(server).prompt("x").system("a").messages(SystemMessage("b", mark)))
    ask(client_of(server, dialect=OPENAI).prompt("x").system("a").messages(*messages))

    one, marked, openai = ([m["role"] for m in request["messages"]] for request in server.requests)
    assert server.requests[0]["messages"][0]["content"] == "a\n\nb"
    assert one == ["system", "user", "assistant", "system", "user"]
    assert marked == ["system", "system", "user"]
    assert openai == ["system", *one]


def test_cache_marks_are_limited_to_four(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
    """The system mark and the last marks are kept, four in total."""
    mark = {"cache_control": {"type": "ephemeral"}}
    turns: list[Message] = [UserMessage(f"{at}", metadata=mark) for at in range(5)]
    server = chat_server("hi")
    ask(client_of(server).prompt().messages(SystemMessage("s", mark), *turns))
    (request,) = server.requests

    sent = [json.dumps(message).count('"cache_control"') for message in request["messages"]]
    assert sent == [1, 0, 0, 1, 1, 1]


def test_openai_requires_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's own URL requires a key, and the error names the variable."""
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    monkeypatch.delenv("OPENAI_BASE_URL", raising=False)

    with pytest.raises(UsageError, match="set OPENAI_API_KEY or pass api_key="):
        OpenAIChatModel()


@pytest.mark.parametrize(
    ("url", "own"),
    [
        ("https://api.openai.com/v1", True),
        ("https://eu.api.openai.com/v1", True),
        ("https://ada:pw@us.api.openai.com:443/v1?a=b", True),
        ("https://api.openai.com.example.com/v1", False),
        ("https://api.openai.com@example.com/v1", False),
        ("https://example.com/api.openai.com/v1", False),
        ("https://notapi.openai.com/v1", False),
        ("https://acme.openai.azure.com/openai/v1", False),
    ],
)
def test_openai_regional_urls(url: str, *, own: bool) -> None:
    """Regional URLs use OpenAI's dialect and require a key."""
    assert is_openai(url) is own
    for kind in (OpenAIChatModel, OpenAIResponsesChatModel):
        assert (kind(api_key="k", base_url=url).provider == "openai") is own


def test_environment_variables(
    ask: Ask, chat_server: Start, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """URL and key are read from the environment when the model is made."""
    server = chat_server("hi")
    monkeypatch.setenv("OPENAI_API_KEY", "from outside")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    client = client_of(server, api_key=None, base_url=None)

    assert ask(client.prompt("x")).text == "hi"
    assert server.headers[0]["authorization"] == "Bearer from outside"


def test_query_of_the_base_url(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
    """The query of the base URL is sent with every request, as for Azure's API version."""
    server = chat_server("hi")
    client = client_of(server, base_url=f"{server.url}?api-version=2024-10-21")

    assert ask(client.prompt("x")).text == "hi"


def test_repr_contains_no_key() -> None:
    """The repr of a model contains no key."""
    model = OpenAIChatModel("m", api_key="sk-secret", headers={"x-mine": "secret"})

    assert repr(model) == "OpenAIChatModel('m', base_url='https://api.openai.com/v1')"


def test_request_options_override_model_options(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Request options win; provider-specific options of the model are kept."""
    server = chat_server("hi")
    defaults = OpenAIChatOptions(reasoning_effort="low", temperature=0.5)
    client = client_of(server, options=defaults)
    ask(client.prompt("x").options(ChatOptions(temperature=0.1)))

    request = server.requests[0]
    assert (request["reasoning_effort"], request["temperature"]) == ("low", 0.1)


def test_system_role_option(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
    """A changed role applies to messages that were sent before."""
    server = chat_server("hi")
    client = client_of(server)
    messages: list[Message] = [SystemMessage("be brief"), UserMessage("x")]
    for role in (None, "developer", "user", None):
        ask(client.prompt().messages(*messages).options(OpenAIChatOptions(system_role=role)))

    roles = [request["messages"][0]["role"] for request in server.requests]
    assert roles == ["system", "developer", "user", "system"]


def test_several_choices(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
    """With n > 1 the response has a generation for each choice, streamed or not."""

    def reply(request: dict[str, Any]) -> Reply:
        assert request["n"] == 2
        if not request.get("stream"):
            complete = completion("a")
            second = {**complete["choices"][0], "index": 1, "message": {"content": "b"}}
            return Reply(
                json.dumps({**complete, "choices": [*complete["choices"], second]}).encode()
            )
        chunks = [
            {"id": "r", "choices": [{"index": at, "delta": {"content": t}, "finish_reason": end}]}
            for at, t, end in [(1, "b", None), (0, "a", None), (0, "", "stop"), (1, "", "stop")]
        ]
        return event_stream(*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks))

    server = chat_server(reply)
    result = ask(client_of(server, options=OpenAIChatOptions(n=2)).prompt("x"))
    response = result.response.chat_response

    assert [g.output.text for g in response.generations] == ["a", "b"]
    assert [g.finish_reason for g in response.generations] == ["stop", "stop"]
    assert result.text == "a"


def test_complete_answer_instead_of_stream(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """A complete answer to a streaming request is accepted."""
    server = chat_server(lambda _request: Reply(json.dumps(completion("hi")).encode()))

    result = ask(client_of(server).prompt("x"))
    assert result.text == "hi"
    assert result.response.chat_response.usage.input_tokens == 10


def test_stream_with_json_content_type(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
    """An event stream labelled as JSON is parsed as a stream."""

    def reply(request: dict[str, Any]) -> Any:
        complete = completion("hello there")
        return Reply(as_stream(complete)) if request.get("stream") else complete

    assert ask(client_of(chat_server(reply)).prompt("x")).text == "hello there"


@pytest.mark.parametrize("body", [b"", b"<html>gateway</html>", b'{"id": "r1", "cho'])
def test_invalid_answer(ask: Ask, chat_server: Start, client_of: ClientOf, body: bytes) -> None:
    """An empty body or an HTML page raises."""
    server = chat_server(Reply(body))

    with pytest.raises(InvalidResponseError, match="openai-compatible"):
        ask(client_of(server).prompt("x"))


ERROR = {"error": {"message": "slow down", "code": "rate_limit_exceeded"}}


@pytest.mark.parametrize(
    "written",
    [
        f"data: {json.dumps(ERROR)}\n\n",
        f"event: error\ndata: {json.dumps(ERROR)}\n\n",
        f"event: error\ndata: {json.dumps(ERROR['error'])}\n\n",
        f"error: {json.dumps(ERROR['error'])}\n\n",
        json.dumps(ERROR, indent=2),
        json.dumps(ERROR, indent=2) + "\n",
        f"data: {json.dumps({**ERROR, 'choices': [{'index': 0, 'delta': {}}]})}\n\n",
        f"data: {json.dumps({'choices': [{'index': 0, 'delta': {}, **ERROR}]})}\n\n",
    ],
)
def test_error_event_in_stream(chat_server: Start, client_of: ClientOf, written: str) -> None:
    """Every form of error event is raised after the preceding content was delivered."""
    first = {"id": "r", "choices": [{"index": 0, "delta": {"content": "hel"}}]}
    server = chat_server(event_stream(f"data: {json.dumps(first)}\n\n", written))
    texts: list[str] = []

    with pytest.raises(RateLimitedError, match="slow down"):
        texts.extend(client_of(server).prompt("x").stream())

    assert texts == ["hel"]


def test_truncated_stream_keeps_partial_response(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """The error contains the partial response."""
    if not ask.streaming:
        pytest.skip("applies to streams only")
    complete = as_stream(completion("one two three"))
    half = complete[: complete.index(b" three")]
    server = chat_server(Reply(half, content_type="text/event-stream"))

    with pytest.raises(StreamInterruptedError) as caught:
        ask(client_of(server).prompt("x"))
    assert caught.value.partial.text == "one two"


def test_error_response_details(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
    """Status, request id and body are in the error."""
    body = {"error": {"message": "no such option", "type": "invalid_request_error"}}
    server = chat_server(Reply(json.dumps(body).encode(), 400, {"x-request-id": "req_1"}))

    with pytest.raises(InvalidRequestError, match="no such option") as caught:
        ask(client_of(server).prompt("x"))
    assert (caught.value.status, caught.value.request_id) == (400, "req_1")
    assert caught.value.body == body


@tool
def weather(city: str = "nowhere") -> str:
    """Tell the weather."""
    return f"sunny in {city}"


def refusal_of(written: str) -> str:
    """Return Groq's error response for an invalid generated call."""
    error = {"message": "Tool call validation failed", "type": "invalid_request_error"}
    return json.dumps({"error": {**error, "code": "tool_use_failed", "failed_generation": written}})


@pytest.mark.parametrize("beginning", [False, True], ids=["immediately", "after reasoning"])
def test_server_rejected_call_is_reported(
    ask: Ask, chat_server: Start, client_of: ClientOf, *, beginning: bool
) -> None:
    """A call that the server rejects is reported to the model, and the turn continues."""
    refusal = refusal_of('{"name": "weather", "arguments": {"city": [7]}}')
    reply = Reply(refusal.encode(), status=400)
    if beginning and ask.streaming:
        thought = {"index": 0, "delta": {"reasoning": "Hm."}, "finish_reason": None}
        first = json.dumps({"id": "c", "choices": [thought]})
        reply = event_stream(f"data: {first}\n\n", f"event: error\ndata: {refusal}\n\n")
    server = chat_server(reply, "Sorry.")
    result = ask(client_of(server).prompt("x").tools(weather))

    assert result.text == "Sorry."
    *_, call, result_message = server.requests[1]["messages"]
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":[7]}'}
    assert "city" in result_message["content"]
    assert result.executions[0].metadata["failure"] == "invalid_arguments"


async def test_server_rejected_call_without_tool_loop(
    chat_server: Start, client_of: ClientOf
) -> None:
    """Without the tool loop the error contains the generated call."""
    refusal = refusal_of('{"name": "weather", "arguments": {"city": [7]}}')
    model = client_of(chat_server(Reply(refusal.encode(), status=400))).model
    with pytest.raises(ToolCallRefusedError, match="validation failed") as caught:
        await model.acall("x")
    assert (caught.value.tool_call.name, caught.value.tool_call.arguments) == (
        "weather",
        '{"city":[7]}',
    )
    assert pickle.loads(pickle.dumps(caught.value)).tool_call == caught.value.tool_call


def test_rejected_call_with_tool_choice_none(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """With `tool_choice="none"` a rejected call is not run, also if it is valid."""
    refusal = refusal_of('{"name": "weather", "arguments": {"city": "Rome"}}')
    server = chat_server(Reply(refusal.encode(), status=400), "Sorry.")
    request = client_of(server).prompt("x").tools(weather).options(tool_choice="none")
    result = ask(request)

    assert result.text == "Sorry."
    assert result.executions[0].metadata["failure"] == "denied"


@pytest.mark.parametrize(
    "written", ["maybe", "[1]", "{}", '{"name": "", "arguments": {}}', "<function=look>"]
)
def test_rejected_output_without_call_is_retried(
    ask: Ask, chat_server: Start, client_of: ClientOf, written: str
) -> None:
    """A rejected generation without a call is retried."""
    refusal = Reply(refusal_of(written).encode(), status=400)
    server = chat_server(refusal, "Sunny.")
    retry = RetryPolicy(1, 0.001)
    assert ask(client_of(server, max_retries=retry).prompt("x").tools(weather)).text == "Sunny."

    server = chat_server(refusal)
    with pytest.raises(InvalidRequestError, match="Tool call validation failed") as caught:
        ask(client_of(server).prompt("x").tools(weather))
    assert type(caught.value) is InvalidRequestError


def test_litellm_signed_thinking_and_call_indexes(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Split thinking is sent back, and a call under two indexes runs once."""
    block = {"type": "thinking", "thinking": "Hm.", "signature": "s"}
    called = completion(None, ("c1", "weather", '{"city":"Rome"}'))
    called["choices"][0]["message"] |= {"reasoning_content": "Hm.", "thinking_blocks": [block]}
    calls = [
        {"index": 0, "id": "c1", "function": {"name": "weather", "arguments": ""}},
        {"index": 1, "id": "c1", "function": {"name": "weather", "arguments": '{"city":"Rome"}'}},
    ]
    deltas = [
        {"thinking_blocks": [{**block, "signature": ""}]},
        {"thinking_blocks": [{**block, "thinking": ""}]},
        *({"tool_calls": [call]} for call in calls),
    ]
    events = [{"id": "r", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    server = chat_server(
        event_stream(stream, "data: [DONE] \n\n") if ask.streaming else called, completion("Sunny.")
    )
    result = ask(client_of(server).prompt("x").tools(weather))
    sent = server.requests[1]["messages"][1]

    assert [execution.response.data for execution in result.executions] == ["sunny in Rome"]
    assert sent["thinking_blocks"] == [block]
    assert [call["id"] for call in sent["tool_calls"]] == ["c1"]


NAMED = [{"name": "delete"}, {"name": "_draft"}, {"arguments": '{"id": 1}'}]


@pytest.mark.parametrize("between", [{}, {"content": "Wait."}, {"reasoning_content": "Hm."}])
def test_split_name_runs_one_tool(
    ask: Ask, chat_server: Start, client_of: ClientOf, between: dict[str, Any]
) -> None:
    """The tool whose name is a fragment is neither run nor reported as started."""
    ran: list[str] = []

    @tool(effect="read")
    def delete(id: int = 0) -> str:
        """Delete everything."""
        ran.append(f"delete {id}")
        return "deleted"

    @tool(effect="read")
    def delete_draft(id: int) -> str:
        """Delete a draft."""
        ran.append(f"delete_draft {id}")
        return "deleted"

    deltas: list[dict[str, Any]] = [
        {"tool_calls": [{"index": 0, **({} if at else {"id": "c"}), "function": function}]}
        for at, function in enumerate(NAMED)
    ]
    deltas.insert(1, between)
    events = [{"id": "r", "choices": [{"index": 0, "delta": delta}]} for delta in deltas]
    stream = "".join(f"data: {json.dumps(event)}\n\n" for event in events)
    calls = completion(None, ("c", "delete_draft", '{"id": 1}'))
    server = chat_server(
        event_stream(stream, "data: [DONE]\n\n") if ask.streaming else calls, completion("Done.")
    )
    manager = ToolCallingManager(eager_reads=True)
    client = client_of(server).mutate().tool_calling_manager(manager).build()
    result = ask(client.prompt("x").tools(delete, delete_draft))

    assert ran == ["delete_draft 1"]
    started = [event.name for event in result.events if isinstance(event, ToolCallStarted)]
    assert started == (["delete_draft"] if ask.streaming else [])
