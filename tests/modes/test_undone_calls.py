"""Undone and failed calls in events, trails and agents."""

from typing import Any

import pytest

from chatclient import ChatClient, ChatClientRequest, ChatClientResponse, ToolCallFinished, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.chain.chain import MEMORY_ORDER, Next
from chatclient.chat.events import ToolCallUndone
from chatclient.errors import ToolExecutionError
from chatclient.memory import MessageWindowChatMemory
from chatclient.observability import ToolUndo
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolCallingManager, ToolFailurePolicy

log: list[str] = []


def cancel(day: str) -> None:
    log.append(f"cancelled {day}")


@tool(compensation=cancel)
def book(day: str) -> str:
    """Book a day."""
    log.append(f"booked {day}")
    return "booked"


@tool
def pay() -> str:
    """Pay."""
    raise RuntimeError("no money")


@pytest.fixture(autouse=True)
def _empty_log() -> None:
    log.clear()


class Failing:
    """Advisor that fails after the turn."""

    order = MEMORY_ORDER - 100

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        """Raise an error when the rest of the chain is done."""
        await call_next(request)
        raise LookupError("outer failure")


def test_undone_call_is_visible(ask: Ask) -> None:
    """In the stream, in the trail and to observers."""
    model = ScriptedModel([call("book", {"day": "Monday"}), call("pay")], "Sorry.")
    result = ask(ChatClient.builder(model).default_tools(book, pay).build().prompt("x"))

    assert log == ["booked Monday", "cancelled Monday"]
    events = [event for event in result.events if isinstance(event, ToolCallUndone)]
    assert [event.tool_call.name for event in events] == (["book"] if ask.streaming else [])
    assert all("undone because 'pay' failed" in event.response.data for event in events)
    trail = result.response.trail
    assert trail is not None
    [undo] = [s.operation for s in trail.steps if isinstance(s.operation, ToolUndo)]
    assert undo.name == "undo_tool book"
    assert undo.attributes()["chatclient.undo.cause"] == "'pay' failed"
    assert "undone: book because 'pay' failed" in str(trail)


def test_failed_compensation_is_visible(ask: Ask) -> None:
    def fail(day: str) -> None:
        raise ConnectionError("no calendar")

    @tool(compensation=fail)
    def reserve(day: str) -> str:
        """Reserve a day."""
        return "reserved"

    model = ScriptedModel([call("reserve", {"day": "Monday"}), call("pay")], "Sorry.")
    result = ask(ChatClient.builder(model).default_tools(reserve, pay).build().prompt("x"))

    assert not any(isinstance(event, ToolCallUndone) for event in result.events)
    assert "undone: reserve because 'pay' failed failed: Conn" in str(result.response.trail)


def test_raised_failure_is_an_event(ask: Ask) -> None:
    """The consumer of a stream learns which call ended the turn."""
    manager = ToolCallingManager(exception_processor=ToolFailurePolicy(always_raise=True))
    model = ScriptedModel(call("pay"))
    client = ChatClient.builder(model).default_tools(pay).tool_calling_manager(manager).build()
    events: list[Any] = []
    with pytest.raises(ToolExecutionError):
        if ask.streaming:
            events.extend(client.prompt("x").stream().events())
        else:
            ask(client.prompt("x"))

    finished = [event for event in events if isinstance(event, ToolCallFinished)]
    assert [repr(event.error) for event in finished] == ["RuntimeError('no money')"] * ask.streaming
    assert all(event.response.is_error for event in finished)


@pytest.mark.parametrize("remembers", [False, True])
def test_work_of_an_agent_is_undone(ask: Ask, remembers: bool) -> None:
    """If the request fails that asked it, unless a memory of the agent has stored its turn."""
    builder = ChatClient.builder(ScriptedModel(call("book", {"day": "Monday"}), "Booked."))
    builder = builder.default_tools(book)
    if remembers:
        memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
        builder = builder.default_advisors(memory)
    agent = builder.build().as_tool("agent", "Ask.", conversation="agent")
    model = ScriptedModel(call("agent", {"request": "Book Monday."}), "Done.")
    outer = ChatClient.builder(model).default_tools(agent).default_advisors(Failing()).build()

    with pytest.raises(LookupError, match="outer failure"):
        ask(outer.prompt("x"))
    assert log == ["booked Monday"] + ["cancelled Monday"] * (not remembers)


def test_work_of_an_agent_stays(ask: Ask) -> None:
    builder = ChatClient.builder(ScriptedModel(call("book", {"day": "Monday"}), "Booked."))
    agent = builder.default_tools(book).build().as_tool("agent", "Ask.")
    model = ScriptedModel(call("agent", {"request": "Book Monday."}), "Done.")

    ask(ChatClient.builder(model).default_tools(agent).build().prompt("x"))
    assert log == ["booked Monday"]
