"""Annotations with names that only type checkers know: fine wherever nobody has to resolve them."""

import __future__

import sys
from types import SimpleNamespace
from typing import Any

import pytest
from conftest import Ask

from chatclient import ChatClient
from chatclient.advisors import ToolCallingAdvisor
from chatclient.errors import ToolDefinitionError, UsageError
from chatclient.services import ai_service
from chatclient.testing import ScriptedModel, call
from chatclient.tools import FunctionToolCallback, ToolMetadata
from chatclient.tools.schema import signature_of

# What every module had to say until Python evaluated annotations late, all by itself.
LATE = 0 if sys.version_info >= (3, 14) else __future__.annotations.compiler_flag


def module(source: str) -> Any:
    """Return what *source* defines; nowhere is there anything that is called `Hidden`."""
    names: dict[str, Any] = {"__name__": "module_with_hidden_names"}
    exec(compile(source, "hidden.py", "exec", LATE, dont_inherit=True), names)
    return SimpleNamespace(**names)


def test_functions_are_taken_whatever_their_annotations_name(ask: Ask) -> None:
    """Nobody asks what they are annotated with, only how many arguments they take."""
    user = module("""
def system(request: Hidden) -> Hidden:
    return f"You are asked: {request.user_message.text}"

def eligible(options: Hidden, response: Hidden) -> Hidden:
    return response.has_tool_calls()

class Tools:
    asked = ()

    def tool_callbacks(self, request: Hidden) -> Hidden:
        self.asked += (request,)
        return []

async def passed_on(request: Hidden, call_next: list[Hidden]) -> Hidden.inner | None:
    return await call_next(request)
""")
    tools = user.Tools()
    model = ScriptedModel("Hello.")
    client = (
        ChatClient.builder(model)
        .default_system(user.system)
        .default_tools(tools)
        .default_advisors(user.passed_on, ToolCallingAdvisor(eligibility=user.eligible))
        .build()
    )

    assert ask(client.prompt("Hi")).text == "Hello."
    assert model.prompts[0].messages[0].text == "You are asked: Hi"
    assert len(tools.asked) == 1


def test_what_a_tool_promises_may_be_for_type_checkers_only(ask: Ask) -> None:
    """So may what a tool's compensation does; what it takes is resolved all the same."""
    user = module("""
from chatclient.tools import ToolExecution

undone = []

def book(city: str) -> Hidden | None:
    return f"To {city}."

def undo(execution: ToolExecution) -> Hidden:
    undone.append(execution.tool_call.name)

def fail() -> list[Hidden]:
    raise ValueError
""")
    booking = FunctionToolCallback(user.book, metadata=ToolMetadata(compensation=user.undo))
    model = ScriptedModel(call("book", {"city": "Rome"}), call("fail"), "Sorry.")
    client = ChatClient.builder(model).default_tools(booking, user.fail).build()

    assert ask(client.prompt("Rome, please")).text == "Sorry."
    assert user.undone == ["book"]


@pytest.mark.parametrize("annotation", ["Hidden", "list[Hidden]", "Hidden.inner | None"])
def test_what_a_tool_takes_must_be_known(annotation: str) -> None:
    """The error says which parameter of which function, and what to do."""
    find = module(f"def find(place: {annotation}) -> str: ...").find

    problem = r"parameter 'place' of find\(\) \(hidden.py:1\) .*name 'Hidden' is not .* at run time"
    with pytest.raises(ToolDefinitionError, match=problem):
        signature_of(find)


def test_what_a_service_declares_must_be_known() -> None:
    """An attribute is missed, or found, by its name; which class it is of has to be known, too."""
    user = module("""
from typing import Protocol

class Talker(Protocol):
    memory: Hidden
    def chat(self, text: str) -> str: ...

class Mute(Protocol):
    def chat(self, text: Hidden) -> str: ...
""")
    client = ChatClient.create(ScriptedModel())

    with pytest.raises(UsageError, match=r"^Talker.memory .* resolved \(name 'Hidden'"):
        ai_service(user.Talker, client)
    with pytest.raises(UsageError, match=r"^Mute.chat .* resolved \(name 'Hidden'"):
        ai_service(user.Mute, client)
