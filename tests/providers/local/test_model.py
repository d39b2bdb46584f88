"""The local model: requests to llama.cpp, its answers, and its server process."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from chatclient import AssistantMessage, ChatClient, ToolCall, ToolResponse, UserMessage, tool
from chatclient.chat.messages import ToolResponseMessage
from chatclient.errors import UsageError
from chatclient.providers.local import model as local
from chatclient.providers.local.hub import QWEN_CODER_0_5B, ModelFile
from chatclient.providers.local.model import LocalChatModel
from chatclient.testing import Ask
from chatclient.tools import ToolCallingManager, ToolLimits
from tests.support.servers import ChatServer, completion

Serve = Callable[..., "Engine"]


@tool
def get_time() -> str:
    """Get the current time."""
    return "12:00"


@tool
def get_weather(city: str) -> str:
    """Get the weather in a city."""
    return f"sunny in {city}"


@dataclass
class Engine:
    """A substitute for llama.cpp on a loopback server that counts starts and stops."""

    server: ChatServer
    alive: bool = True
    started: int = 0
    closed: int = 0
    path: str = ""
    settings: dict[str, Any] = field(default_factory=dict)
    api_key: str = "secret"

    @property
    def base_url(self) -> str:
        return self.server.url

    def __call__(self, path: Any, **settings: Any) -> "Engine":
        self.path, self.settings = str(path), settings
        return self

    def start(self) -> "Engine":
        self.started += 1
        return self

    def close(self) -> None:
        self.closed += 1


@pytest.fixture
def serve(chat_server: Callable[..., ChatServer], monkeypatch: pytest.MonkeyPatch) -> Serve:
    def start(*replies: Any) -> Engine:
        engine = Engine(chat_server(*replies))
        monkeypatch.setattr(local, "LlamaServer", engine)
        return engine

    return start


def model_of(**settings: Any) -> LocalChatModel:
    return LocalChatModel(model_path="any.gguf", **settings)


def test_tools_are_not_sent_with_choice_none(ask: Ask, serve: Serve) -> None:
    """llama.cpp ignores the tool choice, so no tools are sent."""
    engine = serve(completion(None, ("1", "get_weather", '{"city": "Rome"}')), completion("Fine."))
    limits = ToolLimits(max_rounds=1, on_exceeded="final_answer")
    with model_of() as model:
        client = (
            ChatClient.builder(model)
            .default_tools(get_weather)
            .tool_calling_manager(ToolCallingManager(limits=limits))
            .build()
        )
        result = ask(client.prompt("How is the weather in Rome?"))

    first, last = engine.server.requests
    assert result.text == "Fine."
    assert [offered["function"]["name"] for offered in first["tools"]] == ["get_weather"]
    assert "tools" not in last
    assert "tool_choice" not in last


def test_calls_beside_parameterless_tool_are_cut(ask: Ask, serve: Serve) -> None:
    """A tool without parameters runs first, as later arguments may need its result."""
    both = (("1", "get_time", "{}"), ("2", "get_weather", '{"city": "Rome"}'))
    engine = serve(completion(None, *both), completion("Fine."))
    with model_of() as model:
        client = ChatClient.builder(model).default_tools(get_time, get_weather).build()
        result = ask(client.prompt("How is the weather in Rome now?"))

    assert [execution.tool_call.name for execution in result.executions] == ["get_time"]
    assert engine.server.requests[0]["parallel_tool_calls"] is False
    assert [call["id"] for call in engine.server.requests[1]["messages"][1]["tool_calls"]] == ["1"]


def test_parallel_calls_option(ask: Ask, serve: Serve) -> None:
    """An explicit option for parallel calls applies with any tools."""
    both = (("1", "get_time", "{}"), ("2", "get_weather", '{"city": "Rome"}'))
    serve(completion(None, *both), completion("Fine."))
    with model_of() as model:
        client = ChatClient.builder(model).default_tools(get_time, get_weather).build()
        request = client.prompt("How is the weather?").options(parallel_tool_calls=True)
        result = ask(request)

    assert [execution.tool_call.name for execution in result.executions] == [
        "get_time",
        "get_weather",
    ]


def test_parallel_calls_with_parameters(ask: Ask, serve: Serve) -> None:
    """If all tools have required parameters, no call is cut."""
    both = [(city, "get_weather", json.dumps({"city": city})) for city in ("Rome", "Oslo")]
    engine = serve(completion("A moment.", *both), completion("Fine."))
    with model_of() as model:
        client = ChatClient.builder(model).default_tools(get_weather).build()
        result = ask(client.prompt("How is the weather in Rome and Oslo?"))

    assert len(result.executions) == 2
    assert "parallel_tool_calls" not in engine.server.requests[0]


def test_single_call_is_kept_with_text(ask: Ask, serve: Serve) -> None:
    """Only additional calls are cut, not the text or the first call."""
    serve(completion("A moment.", ("1", "get_time", "{}")), completion("Noon."))
    with model_of() as model:
        client = ChatClient.builder(model).default_tools(get_time).build()
        result = ask(client.prompt("What time is it?"))

    assert len(result.executions) == 1
    assert result.text == ("A moment.\n\nNoon." if ask.streaming else "Noon.")


def test_malformed_arguments(serve: Serve) -> None:
    """Malformed arguments are sent as a JSON value, for llama.cpp rejects them."""
    engine = serve("Fine.")
    calls = [ToolCall("1", "get_time", "{oops"), ToolCall("2", "get_time", "{}")]
    history = [
        UserMessage("What time is it?"),
        AssistantMessage(tool_calls=calls),
        ToolResponseMessage([ToolResponse(call.id, call.name, "error") for call in calls]),
    ]
    with model_of() as model:
        model.call(history)

    sent = engine.server.requests[0]["messages"][1]["tool_calls"]
    assert [json.loads(call["function"]["arguments"]) for call in sent] == [
        {"malformed_arguments": "{oops"},
        {},
    ]


@pytest.mark.parametrize(
    ("name", "arguments", "marked"),
    [
        ("get_weather", '{"town": "Rome"}', True),
        ("get_weather", '{"city": ', True),
        ("get_wether", '{"city": "Rome"}', True),
        ("get_weather", '{"city": "Atlantis"}', False),
    ],
    ids=["wrong arguments", "malformed arguments", "unknown tool", "failed tool"],
)
def test_failed_calls_are_marked_for_the_template(
    ask: Ask, serve: Serve, name: str, arguments: str, marked: bool
) -> None:
    """Failures that a better call can fix are marked for the chat template."""

    @tool(name="get_weather")
    def rainy_weather(city: str) -> str:
        """Get the weather in a city."""
        msg = "it sank"
        raise RuntimeError(msg)

    engine = serve(completion(None, ("1", name, arguments)), completion("Hm."))
    with model_of() as model:
        ask(ChatClient.create(model).prompt("Weather?").tools(rainy_weather))

    content = engine.server.requests[1]["messages"][-1]["content"]
    assert content.startswith("Error: ") is marked


def test_tool_search_is_marked_for_the_template(serve: Serve) -> None:
    """After a tool search the template asks for the next call."""
    engine = serve("Fine.")
    found = ToolResponse("1", "get_time", "found it", metadata={"step": True})
    history = [
        UserMessage("What time is it?"),
        AssistantMessage(tool_calls=[ToolCall("1", "get_time", "{}")]),
        ToolResponseMessage([found]),
    ]
    with model_of() as model:
        model.call(history)

    assert engine.server.requests[0]["messages"][-1]["content"] == "Step: found it"


def test_dead_server_is_restarted(serve: Serve) -> None:
    """A running server is reused; after its end the next request starts another."""
    engine = serve("one", "two", "three")
    with model_of() as model:
        model.call("a")
        model.call("b")
        assert engine.started == 1

        engine.alive = False
        assert model.call("c").text == "three"
        assert engine.started == 2

    assert engine.closed == 1


def test_restart_with_another_url(
    serve: Serve, chat_server: Callable[..., ChatServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that restarts with another URL is used there."""
    engine = serve("one")
    other = Engine(chat_server("two"))
    with model_of() as model:
        model.call("a")
        engine.alive = False
        monkeypatch.setattr(engine, "start", other.start)

        assert model.call("b").text == "two"


async def test_aclose(serve: Serve) -> None:
    """`aclose` closes connections and server, and may be repeated."""
    engine = serve("one")
    model = model_of()
    assert (await model.acall("a")).text == "one"

    await model.aclose()
    await model.aclose()

    assert engine.closed == 1


def test_unused_model_starts_no_server(serve: Serve) -> None:
    """Making and closing a model starts no server."""
    engine = serve("one")
    model_of().close()

    assert (engine.started, engine.closed) == (0, 0)


@pytest.mark.parametrize("given", ["my.gguf", Path("my.gguf")], ids=["text", "path"])
def test_gguf_path(given: Any, serve: Serve) -> None:
    """A path is accepted by position or keyword; settings are passed to the server."""
    for how in ({"model": given}, {"model_path": given}):
        engine = serve("yes")
        with LocalChatModel(**how, n_ctx=64) as model:
            model.call("you?")
            assert model.name == "my.gguf"
        assert engine.path == "my.gguf"
        assert engine.settings["n_ctx"] == 64


def test_model_names(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """Known files are named by size and fetched before the server starts."""
    fetched: list[ModelFile] = []

    def fetch(file: ModelFile) -> Path:
        fetched.append(file)
        return Path("w")

    monkeypatch.setattr(local, "fetch_model_file", fetch)
    monkeypatch.setattr(local, "require_llama", lambda: None)
    engine = serve("yes")
    with LocalChatModel("0.5b") as model:
        model.call("you?")

    assert fetched == [QWEN_CODER_0_5B]
    assert engine.path == "w"


def test_unknown_model() -> None:
    """The error lists the known models."""
    with pytest.raises(
        UsageError, match=r"'7b' is not a local model; name one of 1\.5b, 0\.5b or a"
    ):
        LocalChatModel("7b")


def test_repr() -> None:
    """The repr names the weights."""
    assert repr(LocalChatModel(model_path="my.gguf")) == "LocalChatModel('my.gguf')"
