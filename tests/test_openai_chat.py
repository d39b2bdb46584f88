"""The model behind Chat Completions, asked in all four ways over the loopback."""

import gc
import json
import pickle
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from importlib.metadata import version
from typing import Any

import pytest
from conftest import Ask
from servers import ChatServer, Reply, as_stream, completion
from waiting import settled

from chatclient import ChatClient
from chatclient.errors import (
    InvalidRequestError,
    InvalidResponseError,
    RateLimitedError,
    StreamInterruptedError,
    ToolCallRefusedError,
    UsageError,
)
from chatclient.messages import AssistantMessage, Message, SystemMessage, UserMessage
from chatclient.options import ChatOptions
from chatclient.providers.http import RetryPolicy
from chatclient.providers.openai import OPENAI, OpenAIChatModel, OpenAIChatOptions, is_openai
from chatclient.providers.openai_responses import OpenAIResponsesChatModel
from chatclient.tools import tool

Start = Callable[..., ChatServer]
ClientOf = Callable[..., ChatClient]


@pytest.fixture
def client_of() -> Iterator[ClientOf]:
    """Make clients of models whose connections are closed after the test."""
    with ExitStack() as models:

        def make(server: ChatServer, **settings: Any) -> ChatClient:
            usual = {"api_key": "k", "base_url": server.url, "max_retries": 0}
            model = OpenAIChatModel("m", **{**usual, **settings})
            return ChatClient.create(models.enter_context(model))

        yield make


def event_stream(*events: str) -> Reply:
    return Reply("".join(events).encode(), content_type="text/event-stream")


def test_the_key_is_asked_for_each_time(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
    """A key that is a function rotates."""
    server = chat_server("hi")
    keys = iter(["one", "two"])
    client = client_of(server, api_key=lambda: next(keys))
    ask(client.prompt("x"))
    ask(client.prompt("x"))

    assert [headers["authorization"] for headers in server.headers] == ["Bearer one", "Bearer two"]


def test_the_model_holds_on_to_no_request(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """What it told its tools goes with it, and does not wait for the next one."""
    if not ask.blocking and version("anyio").startswith("4.5."):
        pytest.skip("that anyio holds on to the first task of a loop that wants a thread")

    class Session:
        """A connection to a database, say."""

    client, session = client_of(chat_server("hi")), Session()
    here = weakref.ref(session)
    ask(client.prompt("x").tools(weather).tool_context({"session": session}))
    del session

    def forgotten() -> bool:
        gc.collect()
        return here() is None

    assert settled(forgotten)  # anyio's worker holds on to a loop's first task while it ends


@pytest.mark.parametrize(
    ("made_up", "sent"), [("functions.add", "functions_add"), ("", "unknown"), ("a" * 99, "a" * 64)]
)
def test_a_name_that_no_tool_can_have_does_not_spoil_the_conversation(
    ask: Ask, chat_server: Start, client_of: ClientOf, made_up: str, sent: str
) -> None:
    """The model is told that there is no such tool; the services refuse the name itself."""
    server = chat_server(completion(None, ("c1", made_up, "{}")), "hi")
    ask(client_of(server).prompt("x").tools(weather))

    _, asked, told = server.requests[1]["messages"]
    assert asked["tool_calls"][0]["function"]["name"] == sent
    assert "There is no tool" in told["content"]


def test_servers_other_than_openais_get_one_system_message(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Many chat templates refuse a second; one that is marked or later said stays by itself."""
    server = chat_server("hi")
    said = [SystemMessage("b"), UserMessage("?"), AssistantMessage("."), SystemMessage("c")]
    mark = {"cache_control": {"type": "ephemeral"}}
    ask(client_of(server).prompt("x").system("a").messages(*said))
    ask(client_of(server).prompt("x").system("a").messages(SystemMessage("b", mark)))
    ask(client_of(server, dialect=OPENAI).prompt("x").system("a").messages(*said))

    one, marked, openai = ([m["role"] for m in request["messages"]] for request in server.requests)
    assert server.requests[0]["messages"][0]["content"] == "a\n\nb"
    assert one == ["system", "user", "assistant", "system", "user"]
    assert marked == ["system", "system", "user"]
    assert openai == ["system", *one]


def test_of_many_cache_marks_the_last_are_kept(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Anthropic's models take four, behind whichever server; the system's goes before others."""
    mark = {"cache_control": {"type": "ephemeral"}}
    turns: list[Message] = [UserMessage(f"{at}", metadata=mark) for at in range(5)]
    server = chat_server("hi")
    ask(client_of(server).prompt().messages(SystemMessage("s", mark), *turns))
    (request,) = server.requests

    sent = [json.dumps(message).count('"cache_control"') for message in request["messages"]]
    assert sent == [1, 0, 0, 1, 1, 1]


def test_openai_wants_a_key(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its own address answers nobody without one, and the error says where to put it."""
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
def test_all_of_openais_regions_are_its_own(url: str, *, own: bool) -> None:
    """What they are sent is in its words, and none of them answers without a key."""
    assert is_openai(url) is own
    for kind in (OpenAIChatModel, OpenAIResponsesChatModel):
        assert (kind(api_key="k", base_url=url).provider == "openai") is own


def test_the_environment_says_where_and_with_which_key(
    ask: Ask, chat_server: Start, client_of: ClientOf, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The usual variables are read when the model is made."""
    server = chat_server("hi")
    monkeypatch.setenv("OPENAI_API_KEY", "from outside")
    monkeypatch.setenv("OPENAI_BASE_URL", server.url)
    client = client_of(server, api_key=None, base_url=None)

    assert ask(client.prompt("x")).text == "hi"
    assert server.headers[0]["authorization"] == "Bearer from outside"


def test_a_query_of_the_base_url_goes_with_every_request(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Azure's older addresses have the API's version there."""
    server = chat_server("hi")
    client = client_of(server, base_url=f"{server.url}?api-version=2024-10-21")

    assert ask(client.prompt("x")).text == "hi"


def test_the_key_is_not_shown() -> None:
    """A model can be printed and logged."""
    model = OpenAIChatModel("m", api_key="sk-secret", headers={"x-mine": "secret"})

    assert repr(model) == "OpenAIChatModel('m', base_url='https://api.openai.com/v1')"


def test_options_of_the_request_go_before_those_of_the_model(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """What is set nearer to the request wins; the provider's own options are kept."""
    server = chat_server("hi")
    defaults = OpenAIChatOptions(reasoning_effort="low", temperature=0.5)
    client = client_of(server, options=defaults)
    ask(client.prompt("x").options(ChatOptions(temperature=0.1)))

    request = server.requests[0]
    assert (request["reasoning_effort"], request["temperature"]) == ("low", 0.1)


def test_the_role_of_system_messages_is_an_option(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Changing it changes messages that were sent before, too."""
    server = chat_server("hi")
    client = client_of(server)
    messages: list[Message] = [SystemMessage("be brief"), UserMessage("x")]
    for role in (None, "developer", "user", None):
        ask(client.prompt().messages(*messages).options(OpenAIChatOptions(system_role=role)))

    roles = [request["messages"][0]["role"] for request in server.requests]
    assert roles == ["system", "developer", "user", "system"]


def test_several_answers_come_in_all_four_ways(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """With n > 1 the response has a generation for each, streamed or not."""

    def reply(request: dict[str, Any]) -> Reply:
        assert request["n"] == 2
        if not request.get("stream"):
            whole = completion("a")
            second = {**whole["choices"][0], "index": 1, "message": {"content": "b"}}
            return Reply(json.dumps({**whole, "choices": [*whole["choices"], second]}).encode())
        chunks = [
            {"id": "r", "choices": [{"index": at, "delta": {"content": t}, "finish_reason": end}]}
            for at, t, end in [(1, "b", None), (0, "a", None), (0, "", "stop"), (1, "", "stop")]
        ]
        return event_stream(*(f"data: {json.dumps(chunk)}\n\n" for chunk in chunks))

    server = chat_server(reply)
    asked = ask(client_of(server, options=OpenAIChatOptions(n=2)).prompt("x"))
    response = asked.response.chat_response

    assert [g.output.text for g in response.generations] == ["a", "b"]
    assert [g.finish_reason for g in response.generations] == ["stop", "stop"]
    assert asked.text == "a"


def test_a_server_that_knows_no_streams_is_understood(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """A whole answer in place of a stream is one."""
    server = chat_server(lambda _request: Reply(json.dumps(completion("hi")).encode()))

    asked = ask(client_of(server).prompt("x"))
    assert asked.text == "hi"
    assert asked.response.chat_response.usage.input_tokens == 10


def test_an_event_stream_may_be_called_something_else(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Some gateways label a stream as JSON."""

    def reply(request: dict[str, Any]) -> Any:
        whole = completion("hello there")
        return Reply(as_stream(whole)) if request.get("stream") else whole

    assert ask(client_of(chat_server(reply)).prompt("x")).text == "hello there"


@pytest.mark.parametrize("body", [b"", b"<html>gateway</html>", b'{"id": "r1", "cho'])
def test_what_is_no_answer_is_an_error(
    ask: Ask, chat_server: Start, client_of: ClientOf, body: bytes
) -> None:
    """Neither silence nor a page of HTML passes for an answer."""
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
def test_an_error_inside_a_stream_is_raised(
    chat_server: Start, client_of: ClientOf, written: str
) -> None:
    """In whichever of its shapes, after what was said before it has been handed out."""
    first = {"id": "r", "choices": [{"index": 0, "delta": {"content": "hel"}}]}
    server = chat_server(event_stream(f"data: {json.dumps(first)}\n\n", written))
    said: list[str] = []

    with pytest.raises(RateLimitedError, match="slow down"):
        said.extend(client_of(server).prompt("x").stream())

    assert said == ["hel"]


def test_a_stream_cut_short_holds_what_had_arrived(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """The error has the response so far."""
    if not ask.streaming:
        pytest.skip("a whole answer is no stream")
    whole = as_stream(completion("one two three"))
    half = whole[: whole.index(b" three")]
    server = chat_server(Reply(half, content_type="text/event-stream"))

    with pytest.raises(StreamInterruptedError) as caught:
        ask(client_of(server).prompt("x"))
    assert caught.value.partial.text == "one two"


def test_a_refused_request_tells_why(ask: Ask, chat_server: Start, client_of: ClientOf) -> None:
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
    """Return how Groq refuses what its model has written."""
    said = {"message": "Tool call validation failed", "type": "invalid_request_error"}
    return json.dumps({"error": {**said, "code": "tool_use_failed", "failed_generation": written}})


@pytest.mark.parametrize("begun", [False, True], ids=["at once", "after a thought"])
def test_a_call_that_the_server_refuses_is_told_to_the_model(
    ask: Ask, chat_server: Start, client_of: ClientOf, *, begun: bool
) -> None:
    """A server that checks calls itself does not end the turn with one that does not fit."""
    refusal = refusal_of('{"name": "weather", "arguments": {"city": 7}}')
    reply = Reply(refusal.encode(), status=400)
    if begun and ask.streaming:
        thought = {"index": 0, "delta": {"reasoning": "Hm."}, "finish_reason": None}
        first = json.dumps({"id": "c", "choices": [thought]})
        reply = event_stream(f"data: {first}\n\n", f"event: error\ndata: {refusal}\n\n")
    server = chat_server(reply, "Sorry.")
    result = ask(client_of(server).prompt("x").tools(weather))

    assert result.text == "Sorry."
    *_, call, told = server.requests[1]["messages"]
    assert call["tool_calls"][0]["function"] == {"name": "weather", "arguments": '{"city":7}'}
    assert "city" in told["content"]
    assert result.executions[0].metadata["failure"] == "invalid_arguments"


async def test_a_model_by_itself_says_that_its_call_was_refused(
    chat_server: Start, client_of: ClientOf
) -> None:
    """Whoever runs no tools learns what the model wrote."""
    refusal = refusal_of('{"name": "weather", "arguments": {"city": 7}}')
    model = client_of(chat_server(Reply(refusal.encode(), status=400))).model
    with pytest.raises(ToolCallRefusedError, match="validation failed") as caught:
        await model.acall("x")
    assert (caught.value.tool_call.name, caught.value.tool_call.arguments) == (
        "weather",
        '{"city":7}',
    )
    assert pickle.loads(pickle.dumps(caught.value)).tool_call == caught.value.tool_call


def test_a_refused_call_is_not_run_where_none_was_wanted(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """It may fit the tool, and the application has ruled it out: the model is told so."""
    refusal = refusal_of('{"name": "weather", "arguments": {"city": "Rome"}}')
    server = chat_server(Reply(refusal.encode(), status=400), "Sorry.")
    request = client_of(server).prompt("x").tools(weather).options(tool_choice="none")
    result = ask(request)

    assert result.text == "Sorry."
    assert result.executions[0].metadata["failure"] == "denied"


@pytest.mark.parametrize(
    "written", ["maybe", "[1]", "{}", '{"name": "", "arguments": {}}', "<function=look>"]
)
def test_what_the_server_refuses_may_be_no_call(
    ask: Ask, chat_server: Start, client_of: ClientOf, written: str
) -> None:
    """Then nothing can be told to the model, and it is asked again: it may do better."""
    refusal = Reply(refusal_of(written).encode(), status=400)
    server = chat_server(refusal, "Sunny.")
    retry = RetryPolicy(1, 0.001)
    assert ask(client_of(server, max_retries=retry).prompt("x").tools(weather)).text == "Sunny."

    server = chat_server(refusal)
    with pytest.raises(InvalidRequestError, match="Tool call validation failed") as caught:
        ask(client_of(server).prompt("x").tools(weather))
    assert type(caught.value) is InvalidRequestError


def test_signed_thoughts_go_back_and_one_call_runs_once(
    ask: Ask, chat_server: Start, client_of: ClientOf
) -> None:
    """Also where a server streams a call under two indexes, and thoughts in pieces (LiteLLM)."""
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
