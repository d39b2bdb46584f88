"""Servers that ask back: something of the user, a word of the model, where to work; their logs."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from conftest import Ask
from mcp_setup import asked_for, peer
from servers import ChatServer, completion
from waiting import settled

pytest.importorskip("mcp")

from chatclient import ChatModel, ChatResponse, UserMessage
from chatclient.errors import OverloadedError
from chatclient.options import ChatOptions
from chatclient.prompt import Prompt
from chatclient.providers.openai import OpenAIChatModel
from chatclient.testing import ScriptedModel, call
from chatclient.tools.mcp import McpElicitation, McpServer, McpToolCallbackProvider

INQUIRER = Path(__file__).parent / "mcp_inquirer.py"
FORM = {
    "type": "object",
    "properties": {"guests": {"type": "integer"}},
    "required": ["guests"],
}


def inquirer(**settings: Any) -> McpServer:
    """Return a server of the SDK's, which asks as the newest protocol wants it."""
    return McpServer.stdio("inquirer", sys.executable, str(INQUIRER), **settings)


def asked_back(server: McpServer, ask: Ask, tool: str, arguments: Any = None) -> str:
    """Return what a tool of *server* answers, in one of the four ways."""
    with McpToolCallbackProvider(server) as provider:
        return told_by(provider, ask, tool, arguments)


def told_by(provider: McpToolCallbackProvider, ask: Ask, tool: str, arguments: Any = None) -> str:
    """Return what a tool of a server that is connected answers."""
    asked, _ = asked_for(ask, provider, call(tool, json.dumps(arguments or {})), "done")
    assert asked.text == "done"
    [execution] = asked.executions
    return execution.response.data


def question(method: str, **params: Any) -> dict[str, Any]:
    return {"method": method, "params": params}


def test_the_user_is_asked(ask: Ask) -> None:
    """The tool gets what the user says, whatever that is."""
    seen: list[McpElicitation] = []
    answers = iter([{"guests": 2, "outside": True}, False, None])

    def asked(elicitation: McpElicitation) -> Any:
        seen.append(elicitation)
        return next(answers)

    with McpToolCallbackProvider(inquirer(on_elicitation=asked)) as provider:
        told = [told_by(provider, ask, "book") for _ in range(3)]
    assert told == ["for 2 outside", "decline", "cancel"]
    assert (seen[0].server, seen[0].message) == ("inquirer", "How many are you?")
    assert list(seen[0].schema["properties"]) == ["guests", "outside"]  # type: ignore[index]
    assert seen[0].url is None


def test_the_user_is_asked_over_older_protocols(ask: Ask) -> None:
    """There the question is a request of the server's own; the handler may be asynchronous."""

    async def asked(elicitation: McpElicitation) -> dict[str, int]:
        return {"guests": len(elicitation.message)}

    server = peer(fault="asks", on_elicitation=asked)
    form = question("elicitation/create", message="How many?", requestedSchema=FORM)

    told = json.loads(asked_back(server, ask, "ask", form))
    assert told == {"action": "accept", "content": {"guests": 9}}


def test_the_user_is_sent_to_a_page() -> None:
    """What the application is not to see is entered elsewhere; it is told the place."""
    seen: list[McpElicitation] = []

    def asked(elicitation: McpElicitation) -> bool:
        seen.append(elicitation)
        return True

    server = peer(fault="asks", on_elicitation=asked)
    page = {"mode": "url", "message": "Pay.", "url": "https://pay.test/1", "elicitationId": "1"}

    told = asked_back(server, Ask("call"), "ask", question("elicitation/create", **page))
    assert json.loads(told) == {"action": "accept"}
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
def test_a_handler_that_fails_is_the_applications_business(
    handler: Callable[[McpElicitation], Any], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """The server hears no more than that there is no answer; the log says why."""
    server = peer(fault="asks", on_elicitation=handler)
    form = question("elicitation/create", message="How many?", requestedSchema=FORM)

    told = json.loads(asked_back(server, Ask("acall"), "ask", form))
    assert told == {"code": -32603, "message": "the user could not be asked"}
    assert logged in caplog.text.replace("\\", "")
    assert "many" not in caplog.text


@pytest.mark.filterwarnings("ignore:Automatically retrieving remote:DeprecationWarning")
def test_a_form_is_not_fetched_from_elsewhere(tmp_path: Path) -> None:
    """A server cannot have files and addresses read that only the application can reach."""
    elsewhere = tmp_path / "form.json"
    elsewhere.write_text("{}")
    schema = {**FORM, "properties": {"guests": {"$ref": elsewhere.as_uri()}}}
    server = peer(fault="asks", on_elicitation=lambda _: {"guests": 2})
    form = question("elicitation/create", message="How many?", requestedSchema=schema)

    told = json.loads(asked_back(server, Ask("call"), "ask", form))
    assert told == {"code": -32603, "message": "the user could not be asked"}


@pytest.mark.parametrize("pattern", ["^(a+)+$", "^(?=b)"])
def test_a_form_whose_check_would_not_end_or_cannot_be_made(pattern: str) -> None:
    """Nothing that may not fit it reaches the server."""
    values = {"guests": "a" * 40 + "!"}
    form = {"type": "object", "properties": {"guests": {"type": "string", "pattern": pattern}}}
    server = peer(fault="asks", on_elicitation=lambda _: values)
    params = question("elicitation/create", message="Who?", requestedSchema=form)

    told = json.loads(asked_back(server, Ask("call"), "ask", params))
    assert told == {"code": -32603, "message": "the user could not be asked"}


@pytest.mark.parametrize("method", ["elicitation/create", "sampling/createMessage"])
def test_a_server_may_ask_nothing_unless_told_otherwise(method: str) -> None:
    """Without a handler or a model, the question is refused."""
    params = (
        {"message": "?", "requestedSchema": FORM}
        if method.startswith("elicit")
        else {"messages": [], "maxTokens": 1}
    )

    told = json.loads(
        asked_back(peer(fault="asks"), Ask("call"), "ask", question(method, **params))
    )
    assert "not supported" in told["message"]


def test_a_server_borrows_the_model(ask: Ask) -> None:
    """Its prompt is its own; the answer goes to the tool only."""
    model = ScriptedModel("tea")

    assert asked_back(inquirer(sampling=model), ask, "say") == "scripted: tea (endTurn)"
    [prompt] = model.prompts
    assert [(m.role, m.text) for m in prompt.messages] == [
        ("system", "Be brief."),
        ("user", "Say a word."),
    ]
    assert (prompt.options.max_tokens, prompt.options.tool_callbacks) == (50, None)


class Capped(ScriptedModel):
    """A model with a limit."""

    @property
    def options(self) -> ChatOptions:
        return ChatOptions(model="capped", max_tokens=20)


@pytest.mark.parametrize(("wanted", "granted"), [(50, 20), (10, 10)])
def test_the_models_own_limit_holds(wanted: int, granted: int) -> None:
    """A server cannot spend more than the application has set."""
    model = Capped(ChatResponse.of("te", "length"))
    image = {"type": "image", "data": "aGk=", "mimeType": "image/png"}
    said = [
        {"role": "user", "content": [{"type": "text", "text": "a"}, image]},
        {"role": "assistant", "content": {"type": "text", "text": "b"}},
    ]
    params = {"messages": said, "maxTokens": wanted, "temperature": 0.5, "stopSequences": ["."]}
    server = peer(fault="asks", sampling=model)

    told = asked_back(server, Ask("call"), "ask", question("sampling/createMessage", **params))
    assert json.loads(told) == {
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


def test_a_model_over_http_leaves_no_connection_behind(
    ask: Ask, chat_server: Callable[..., ChatServer]
) -> None:
    """It is asked on the loop of the connections, and ends with that."""
    server = chat_server(completion("tea"))
    with OpenAIChatModel("m", api_key="k", base_url=server.url) as model:
        assert asked_back(inquirer(sampling=model), ask, "say") == "stub: tea (endTurn)"
        assert settled(lambda: server.open_connections == 0)


class Down(ScriptedModel):
    """A model that cannot be reached."""

    async def generate(self, prompt: Prompt, runtime: Any) -> ChatResponse:
        raise OverloadedError("busy, key sk-123")


TOOL = {"name": "t", "inputSchema": {"type": "object"}}
USED = {"type": "tool_use", "id": "1", "name": "t", "input": {}}


@pytest.mark.parametrize(
    ("model", "params", "told"),
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
def test_what_cannot_be_sampled_is_refused(
    model: ChatModel, params: dict[str, Any], told: str
) -> None:
    """In words that give nothing away."""
    given = {"messages": [], "maxTokens": 5, **params}
    server = peer(fault="asks", sampling=model)

    answer = asked_back(server, Ask("call"), "ask", question("sampling/createMessage", **given))
    assert json.loads(answer)["message"] == told


def test_a_server_is_told_where_to_work(ask: Ask, tmp_path: Path) -> None:
    """Whether it asks as the newest protocol wants it or with a request of its own."""
    roots = [tmp_path / "a b", "/srv/files"]
    listed = [(tmp_path / "a b").as_uri(), "file:///srv/files"]

    told = asked_back(inquirer(roots=roots), ask, "places")
    assert told == f"a b={listed[0]} files={listed[1]}"

    told = asked_back(peer(fault="asks", roots=roots), ask, "ask", question("roots/list"))
    assert [root["uri"] for root in json.loads(told)["roots"]] == listed


@pytest.mark.filterwarnings("ignore:The logging capability")
def test_a_server_writes_to_the_log(caplog: pytest.LogCaptureFixture) -> None:
    """From the level on that the application wants, whatever the server keeps to."""
    caplog.set_level("DEBUG", "chatclient")
    assert asked_back(inquirer(log_level="info"), Ask("call"), "grumble") == "done"
    assert asked_back(inquirer(log_level="error"), Ask("call"), "grumble") == "done"
    assert asked_back(inquirer(), Ask("call"), "grumble") == "done"

    written = [r for r in caplog.records if r.message.startswith("mcp server log")]
    assert [r.levelname for r in written] == ["INFO", "WARNING", "WARNING"]
    assert "server='inquirer' level='info' logger='mood' text='as always'" in written[0].message
    assert """level='error' text='{"broken": "stove"}'""" in written[1].message


def test_a_server_of_an_older_protocol_is_told_how_much_to_log(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """It may write more than that, which is left out."""
    caplog.set_level("DEBUG", "chatclient")
    with McpToolCallbackProvider(peer(fault="logs", log_level="info")) as provider:
        asked_for(Ask("call"), provider, "done")
        assert settled(lambda: "level='info'" in caplog.text)
    written = [r.message for r in caplog.records if r.message.startswith("mcp server log")]
    assert ["level='notice'" in written[0], "level='info'" in written[1]] == [True, True]
    assert len(written) == 2
