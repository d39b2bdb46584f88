"""Requests of servers to the client: elicitation, sampling, roots and logs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from chatclient.testing import Ask
from tests.support.mcp_setup import ask_with_tools, peer
from tests.support.paths import SUPPORT
from tests.support.servers import ChatServer, completion
from tests.support.waiting import settled

pytest.importorskip("mcp")

from chatclient import ChatClient, ChatModel, ChatResponse, UserMessage
from chatclient.advisors import Budget
from chatclient.chat.options import ChatOptions
from chatclient.chat.prompt import Prompt
from chatclient.errors import OverloadedError
from chatclient.mcp import McpElicitation, McpLimits, McpServer, McpToolCallbackProvider
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.testing import ScriptedModel, call

INQUIRER = SUPPORT / "mcp_inquirer.py"
FORM = {
    "type": "object",
    "properties": {"guests": {"type": "integer"}},
    "required": ["guests"],
}


def inquirer(**settings: Any) -> McpServer:
    """Return a server of the SDK that uses the newest protocol."""
    return McpServer.stdio("inquirer", sys.executable, str(INQUIRER), **settings)


def call_tool(server: McpServer, ask: Ask, tool: str, arguments: Any = None) -> str:
    """Return the result of a tool of *server* in one of the modes."""
    with McpToolCallbackProvider(server) as provider:
        return call_tool_of(provider, ask, tool, arguments)


def call_tool_of(
    provider: McpToolCallbackProvider, ask: Ask, tool: str, arguments: Any = None
) -> str:
    """Return the result of a tool of a connected server."""
    result, _ = ask_with_tools(ask, provider, call(tool, json.dumps(arguments or {})), "done")
    assert result.text == "done"
    [execution] = result.executions
    return execution.response.data


def question(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


@pytest.mark.process("MCP server of the SDK with client features")
@pytest.mark.feature("mcp-elicitation-handler")
def test_elicitation(ask: Ask) -> None:
    """The tool gets the user's answer."""
    seen: list[McpElicitation] = []
    replies = iter([{"guests": 2, "outside": True}, False, None])

    def on_elicitation(elicitation: McpElicitation) -> Any:
        seen.append(elicitation)
        return next(replies)

    with McpToolCallbackProvider(inquirer(on_elicitation=on_elicitation)) as provider:
        answers = [call_tool_of(provider, ask, "book") for _ in range(3)]
    assert answers == ["for 2 outside", "decline", "cancel"]
    assert (seen[0].server, seen[0].message) == ("inquirer", "How many are you?")
    assert list(seen[0].schema["properties"]) == ["guests", "outside"]  # type: ignore[index]
    assert seen[0].url is None


@pytest.mark.feature("mcp-elicitation-handler")
def test_elicitation_in_older_protocols(ask: Ask) -> None:
    """The server sends a separate request; the handler may be async."""

    async def on_elicitation(elicitation: McpElicitation) -> dict[str, int]:
        return {"guests": len(elicitation.message)}

    server = peer(fault="asks", on_elicitation=on_elicitation)
    form = question("elicitation/create", message="How many?", requestedSchema=FORM)

    answer = json.loads(call_tool(server, ask, "ask", form))
    assert answer == {"action": "accept", "content": {"guests": 9}}


@pytest.mark.feature("mcp-elicitation-handler")
def test_defaults_of_an_elicitation() -> None:
    """Fields that the handler leaves out get the defaults of the form; the others stay."""
    fields = {
        "guests": {"type": "integer", "default": 2},
        "name": {"type": "string", "default": "Ada"},
        "inside": {"type": "boolean", "default": True},
        "seats": {"type": "string", "enum": ["bar", "table"], "default": "bar"},
        "note": {"type": "string"},
    }
    form = {"type": "object", "properties": fields, "required": ["guests"]}
    asked = question("elicitation/create", message="How many?", requestedSchema=form)
    server = peer(fault="asks", on_elicitation=lambda _: {"name": "Bo", "inside": False})

    answer = json.loads(call_tool(server, Ask("call"), "ask", asked))
    assert answer["content"] == {"guests": 2, "name": "Bo", "inside": False, "seats": "bar"}


@pytest.mark.feature("mcp-elicitation-handler")
def test_url_elicitation() -> None:
    """The handler gets the URL of a page for secret input."""
    seen: list[McpElicitation] = []

    def on_elicitation(elicitation: McpElicitation) -> bool:
        seen.append(elicitation)
        return True

    server = peer(fault="asks", on_elicitation=on_elicitation)
    page = {"mode": "url", "message": "Pay.", "url": "https://pay.test/1", "elicitationId": "1"}

    answer = call_tool(server, Ask("call"), "ask", question("elicitation/create", **page))
    assert json.loads(answer) == {"action": "accept"}
    assert seen == [McpElicitation("peer", "Pay.", url="https://pay.test/1")]


def broken(_elicitation: McpElicitation) -> Any:
    raise RuntimeError("the secret of the application")


@pytest.mark.parametrize(
    ("handler", "logged"),
    [
        (broken, "the secret of the application"),
        (lambda _: {"guests": "many"}, "$.guests is against its 'type'"),
        (lambda _: True, "must return the form's values, False or None, not a bool"),
        (lambda _: "two", "must return the form's values, False or None, not a str"),
    ],
)
def test_failing_handler(
    handler: Callable[[McpElicitation], Any], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server gets no details; the log has the error."""
    server = peer(fault="asks", on_elicitation=handler)
    form = question("elicitation/create", message="How many?", requestedSchema=FORM)

    answer = json.loads(call_tool(server, Ask("acall"), "ask", form))
    assert answer == {"code": -32603, "message": "the user could not be asked"}
    assert logged in caplog.text.replace("\\", "")
    assert "many" not in caplog.text


@pytest.mark.filterwarnings("ignore:Automatically retrieving remote:DeprecationWarning")
def test_remote_form_schema_is_not_loaded(tmp_path: Path) -> None:
    """References of a form schema to files and URLs are not resolved."""
    elsewhere = tmp_path / "form.json"
    elsewhere.write_text("{}")
    schema = {**FORM, "properties": {"guests": {"$ref": elsewhere.as_uri()}}}
    server = peer(fault="asks", on_elicitation=lambda _: {"guests": 2})
    form = question("elicitation/create", message="How many?", requestedSchema=schema)

    answer = json.loads(call_tool(server, Ask("call"), "ask", form))
    assert answer == {"code": -32603, "message": "the user could not be asked"}


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=b)"])
def test_uncheckable_form_schema(pattern: str) -> None:
    """Answers that cannot be validated are not sent."""
    values = {"guests": "a" * 40 + "!"}
    form = {"type": "object", "properties": {"guests": {"type": "string", "pattern": pattern}}}
    server = peer(fault="asks", on_elicitation=lambda _: values)
    params = question("elicitation/create", message="Who?", requestedSchema=form)

    answer = json.loads(call_tool(server, Ask("call"), "ask", params))
    assert answer == {"code": -32603, "message": "the user could not be asked"}


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
def test_requests_without_handlers(method: str) -> None:
    """Without a handler or a model the request is declined."""
    params = (
        {"message": "?", "requestedSchema": FORM}
        if method.startswith("elicit")
        else {"messages": [], "maxTokens": 1}
    )

    answer = json.loads(
        call_tool(peer(fault="asks"), Ask("call"), "ask", question(method, **params))
    )
    assert "not supported" in answer["message"]


@pytest.mark.process("MCP server of the SDK with client features")
@pytest.mark.feature("mcp-sampling-handler")
def test_sampling(ask: Ask) -> None:
    """The server's prompt is sent to the model, and the answer to the server only."""
    model = ScriptedModel("tea")

    assert call_tool(inquirer(sampling=model), ask, "say") == "scripted: tea (endTurn)"
    [prompt] = model.prompts
    assert [(m.role, m.text) for m in prompt.messages] == [
        ("system", "Be brief."),
        ("user", "Say a word."),
    ]
    assert (prompt.options.max_tokens, prompt.options.tool_callbacks) == (50, None)


class Capped(ScriptedModel):
    """A model with a token limit."""

    @property
    def options(self) -> ChatOptions:
        return ChatOptions(model="capped", max_tokens=20)


@pytest.mark.feature("mcp-sampling-handler")
@pytest.mark.parametrize(("wanted", "granted"), [(50, 20), (10, 10)])
def test_sampling_token_limit(wanted: int, granted: int) -> None:
    """A server cannot exceed the application's limit."""
    model = Capped(ChatResponse.of("te", "length"))
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    messages = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
        {"role": "assistant", "content": {"type": "text", "text": "b"}},
    ]
    params = {"messages": messages, "maxTokens": wanted, "temperature": 0.5, "stopSequences": ["."]}
    server = peer(fault="asks", sampling=model)

    answer = call_tool(server, Ask("call"), "ask", question("sampling/createMessage", **params))
    assert json.loads(answer) == {
        "role": "assistant",
        "content": {"type": "text", "text": "te"},
        "model": "capped",
        "stopReason": "maxTokens",
    }
    [prompt] = model.prompts
    options = prompt.options
    assert (options.max_tokens, options.temperature, options.stop) == (granted, 0.5, (".",))
    assert [m.text for m in prompt.messages] == ["a", "b"]
    [first, _] = prompt.messages
    assert isinstance(first, UserMessage)
    assert first.media[0].data == b"hi"


@pytest.mark.process("MCP server of the SDK with client features")
def test_sampling_counts_in_the_budget(ask: Ask) -> None:
    """What a server asks the model during a call is spent by the turn of the call."""
    with McpToolCallbackProvider(inquirer(sampling=ScriptedModel("tea"))) as provider:
        client = ChatClient.builder(ScriptedModel(call("say"), "done")).default_tools(provider)
        request = client.default_advisors(Budget(total_tokens=1000)).build().prompt("x")
        spent = ask(request).response.turn.spent

    assert spent.calls == 3


@pytest.mark.process("MCP server of the SDK with client features")
def test_sampling_limit(ask: Ask) -> None:
    """A server asks the model so often, and no more."""
    model = ScriptedModel(lambda _: "tea")
    server = inquirer(sampling=model, limits=McpLimits(samplings=2))
    with McpToolCallbackProvider(server) as provider:
        result, _ = ask_with_tools(ask, provider, [call("say", id=id) for id in "abc"], "done")

    assert len(model.prompts) == 2
    refused = [each.response.data for each in result.executions if each.response.is_error]
    assert len(refused) == 1
    assert "asked too often" in refused[0]


@pytest.mark.process("MCP server of the SDK with client features")
def test_sampling_closes_http_connections(ask: Ask, chat_server: Callable[..., ChatServer]) -> None:
    """The model is called on the connection loop, whose HTTP connections are closed."""
    server = chat_server(completion("tea"))
    with OpenAIChatModel("m", api_key="k", base_url=server.url) as model:
        assert call_tool(inquirer(sampling=model), ask, "say") == "stub: tea (endTurn)"
        assert settled(lambda: server.open_connections == 0)


class Down(ScriptedModel):
    """A model that raises a connection failure."""

    async def generate(self, prompt: Prompt, runtime: Any) -> ChatResponse:
        raise OverloadedError("busy, key sk-123")


TOOL = {"name": "t", "inputSchema": {"type": "object"}}
USED = {"type": "tool_use", "id": "1", "name": "t", "input": {}}


@pytest.mark.parametrize(
    ("model", "params", "expected"),
    [
        (Down(), {}, "the model could not be asked"),
        (ScriptedModel(), {"tools": [TOOL]}, "the model is lent without tools"),
        (
            ScriptedModel(),
            {"messages": [{"role": "assistant", "content": USED}]},
            "the model is lent without tools",
        ),
    ],
)
def test_rejected_sampling(model: ChatModel, params: dict[str, Any], expected: str) -> None:
    """The error discloses no details."""
    given = {"messages": [], "maxTokens": 5, **params}
    server = peer(fault="asks", sampling=model)

    answer = call_tool(server, Ask("call"), "ask", question("sampling/createMessage", **given))
    assert json.loads(answer)["message"] == expected


@pytest.mark.process("MCP server of the SDK with client features")
@pytest.mark.feature("mcp-roots")
def test_roots(ask: Ask, tmp_path: Path) -> None:
    """Roots are returned in the newest protocol and by request."""
    roots = [tmp_path / "a b", "/srv/files"]
    listed = [(tmp_path / "a b").as_uri(), "file:///srv/files"]

    answer = call_tool(inquirer(roots=roots), ask, "places")
    assert answer == f"a b={listed[0]} files={listed[1]}"

    answer = call_tool(peer(fault="asks", roots=roots), ask, "ask", question("roots/list"))
    assert [root["uri"] for root in json.loads(answer)["roots"]] == listed


@pytest.mark.process("MCP server of the SDK with client features")
@pytest.mark.feature("mcp-log-handler")
@pytest.mark.filterwarnings("ignore:The logging capability")
def test_server_logs(caplog: pytest.LogCaptureFixture) -> None:
    """Messages from the chosen level on are logged."""
    caplog.set_level("DEBUG", "chatclient")
    assert call_tool(inquirer(log_level="info"), Ask("call"), "grumble") == "done"
    assert call_tool(inquirer(log_level="error"), Ask("call"), "grumble") == "done"
    assert call_tool(inquirer(), Ask("call"), "grumble") == "done"

    written = [r for r in caplog.records if r.message.startswith("mcp server log")]
    assert [r.levelname for r in written] == ["INFO", "WARNING", "WARNING"]
    assert "server='inquirer' level='info' logger='mood' text='as always'" in written[0].message
    assert """level='error' text='{"broken": "stove"}'""" in written[1].message


@pytest.mark.feature("mcp-log-handler")
def test_server_logs_in_older_protocols(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The level is sent to the server, and lower messages are dropped."""
    caplog.set_level("DEBUG", "chatclient")
    with McpToolCallbackProvider(peer(fault="logs", log_level="info")) as provider:
        ask_with_tools(Ask("call"), provider, "done")
        assert settled(lambda: "level='info'" in caplog.text)
    written = [r.message for r in caplog.records if r.message.startswith("mcp server log")]
    assert ["level='notice'" in written[0], "level='info'" in written[1]] == [True, True]
    assert len(written) == 2
