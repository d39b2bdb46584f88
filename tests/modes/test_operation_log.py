"""The log of what a turn does: a line for every operation, in all four ways of calling."""

import logging
from typing import Any

import pytest

from chatclient import ChatClient, Prompt, tool
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chat.options import ChatOptions
from chatclient.errors import ProviderError
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import FunctionToolCallback, ToolCallingManager

LOGGER = "chatclient.observability.observers"


@tool
def get_weather(city: str) -> str:
    """Get the weather."""
    if city == "Atlantis":
        msg = "it sank"
        raise LookupError(msg)
    return f"secret weather in {city}"


def lines(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    """Return the fields of the lines that were written, without what is None."""
    return [
        {k: v for k, v in record.__dict__["chatclient"].items() if v is not None}
        for record in caplog.records
        if record.name == LOGGER
    ]


@pytest.mark.feature("observation-line-debug-every-operation")
def test_every_operation_has_a_line(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Each has the conversation, the round and the tool, and no content."""
    caplog.set_level(logging.DEBUG, "chatclient")
    model = ScriptedModel(
        call("get_weather", '{"city": "Rome"}'), call("get_weather", '{"city": "Atlantis"}'), "ok"
    )
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    client = ChatClient.builder(model).default_tools(get_weather).default_advisors(memory).build()

    ask(client.prompt("a secret question").conversation("c-1"))

    found = lines(caplog)
    assert all(line["conversation_id"] == "c-1" for line in found)
    assert all(line["seconds"] >= 0 for line in found)
    assert [(x["event"], x["operation"], x.get("round"), x.get("tool")) for x in found] == [
        ("memory access", "load memory", None, None),
        ("model call", "chat ScriptedModel", 1, None),
        ("tool call", "execute_tool get_weather", 1, "get_weather"),
        ("model call", "chat ScriptedModel", 2, None),
        ("tool call", "execute_tool get_weather", 2, "get_weather"),
        ("model call", "chat ScriptedModel", 3, None),
        ("advisor", "advisor ToolCallingAdvisor", None, None),
        ("advisor", "advisor MessageChatMemoryAdvisor", None, None),
        ("memory access", "store memory", 3, None),
        ("turn", "invoke_agent", None, None),
    ]
    assert [line.get("error") for line in found if line["event"] == "tool call"] == [
        None,
        "LookupError",
    ]
    assert "secret" not in caplog.text


def test_a_failure_is_in_the_log(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Each operation that it ended has the error's type, because its text may quote content."""
    caplog.set_level(logging.DEBUG, LOGGER)
    client = ChatClient.create(ScriptedModel(ProviderError("gone", provider="x")))
    with pytest.raises(ProviderError):
        ask(client.prompt("?"))

    assert [line["event"] for line in lines(caplog)] == ["model call", "advisor", "turn"]
    assert {line["error"] for line in lines(caplog)} == {"ProviderError"}


def test_a_disabled_logger_writes_nothing(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Whether it is enabled is checked once per turn."""
    caplog.set_level(logging.INFO, "chatclient")
    ask(ChatClient.create(ScriptedModel("x")).prompt("?"))
    assert caplog.records == []


async def test_tools_that_an_application_runs_itself(caplog: pytest.LogCaptureFixture) -> None:
    """They have their lines, too."""
    caplog.set_level(logging.DEBUG, LOGGER)
    callback = FunctionToolCallback(get_weather)
    options = ChatOptions(
        tool_callbacks=(callback,), tool_context={"chat_memory_conversation_id": "c"}
    )
    prompt = Prompt("?", options)
    model = ScriptedModel(*[call("get_weather", '{"city": "Rome"}')] * 2)
    ToolCallingManager().execute_tool_calls(prompt, model.call(prompt))
    await ToolCallingManager().aexecute_tool_calls(prompt, await model.acall(prompt))

    assert [(x["event"], x["tool"], x["conversation_id"]) for x in lines(caplog)] == [
        ("tool call", "get_weather", "c")
    ] * 2
