"""Annotations with names defined for type checkers only."""

import __future__

import sys
from types import SimpleNamespace
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.advisors import ToolCallingAdvisor
from chatclient.errors import ToolDefinitionError, UsageError
from chatclient.services import ai_service
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import FunctionToolCallback, ToolMetadata
from chatclient.tools.function.schema import signature_of

# Required in every module before Python evaluated annotations lazily.
LATE = 0 if sys.version_info >= (3, 14) else __future__.annotations.compiler_flag


def module(source: str) -> Any:
    """Return the namespace of *source*, in which `Hidden` is undefined."""
    names: dict[str, Any] = {"__name__": "module_with_hidden_names"}
    exec(compile(source, "hidden.py", "exec", LATE, dont_inherit=True), names)
    return SimpleNamespace(**names)


def test_unresolvable_annotations_of_callbacks(ask: Ask) -> None:
    """Callbacks are inspected by parameter count only."""
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


def test_unresolvable_return_annotation(ask: Ask) -> None:
    """The return type of a tool or compensation need not be resolvable."""
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
def test_unresolvable_parameter_annotation(annotation: str) -> None:
    """The error names parameter, function and fix."""
    find = module(f"def find(place: {annotation}) -> str: ...").find

    problem = r"parameter 'place' of find\(\) \(hidden.py:1\) .*name 'Hidden' is not .* at run time"
    with pytest.raises(ToolDefinitionError, match=problem):
        signature_of(find)


def test_unresolvable_service_annotation() -> None:
    """The error names an unresolvable attribute or class."""
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
