"""What a newcomer gets wrong in the first hour is answered with what to write instead."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.errors import ToolDefinitionError, UsageError, WrongTypeError
from chatclient.memory import MessageWindowChatMemory
from chatclient.providers.openai import OpenAIChatModel
from chatclient.structured import TypeOutputConverter
from chatclient.testing import ScriptedModel
from chatclient.tools import (
    DelegatingToolCallbackResolver,
    ToolApproval,
    ToolRegistry,
    tool_callbacks,
)
from chatclient.tools.mcp import McpToolCallbackProvider

MODEL = ScriptedModel(lambda prompt: "Hello!")


def answered(client: ChatClient) -> Any:
    answer = client.prompt("x").call()
    answer.content()
    return answer


@pytest.mark.parametrize(
    ("slip", "told"),
    [
        (lambda it: it.builder(MODEL).prompt, "has no 'prompt'; call .build() first"),
        (lambda it: it.builder(MODEL).system, "here it is .default_system(...)"),
        (lambda it: it.builder(MODEL).memory, "a ChatClientBuilder has no 'memory'"),
        (lambda it: it.create(MODEL).stream, "a request has: client.prompt(...).stream(...)"),
        (lambda it: it.create(MODEL).default_tools, "client.mutate().default_tools(...).build()"),
        (lambda it: it.create(MODEL).run, "a ChatClient has no 'run'"),
        (lambda it: it.create(MODEL).prompt("x").content, "send it first: .call().content()"),
        (lambda it: it.create(MODEL).prompt("x").default_tools, "of one request it is .tools(...)"),
        (lambda it: it.create(MODEL).prompt("x").sytem, "a ChatClientRequestSpec has no 'sytem'"),
        (lambda it: answered(it.create(MODEL)).text, "no 'text'; the text is .content()"),
        (
            lambda it: answered(it.create(MODEL)).usage,
            "a CallResponse has no 'usage'; what .chat_response() returns has it",
        ),
        (lambda it: answered(it.create(MODEL)).price, "a CallResponse has no 'price'"),
    ],
)
def test_a_method_of_another_object_is_named(slip: Callable[[Any], Any], told: str) -> None:
    """The builder, the client, the request and its answer have methods of much the same names."""
    with pytest.raises(AttributeError, match=r".") as caught:
        slip(ChatClient)
    assert told in str(caught.value)


def test_an_answer_to_await_names_it_as_well() -> None:
    """It has the same accessors, to be awaited."""

    async def slip() -> None:
        answer: Any = ChatClient.create(MODEL).prompt("x").acall()
        await answer
        answer.usage  # noqa: B018 - the mistake

    with pytest.raises(AttributeError, match=r"an AsyncCallResponse has no 'usage'; what \.chat_r"):
        asyncio.run(slip())


def test_an_answer_shows_whether_it_was_asked_for() -> None:
    """In a notebook, or printed without its `content()`."""
    request = ChatClient.create(MODEL).prompt("Hi")
    answer, stream = request.call(), request.stream()
    assert repr(answer) == "<CallResponse: nothing was sent yet>"
    for _ in stream:
        assert repr(stream) == "<StreamResponse: no answer yet>"
    assert (answer.content(), repr(answer)) == ("Hello!", "CallResponse('Hello!')")
    assert repr(stream) == "StreamResponse('Hello!')"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (MessageWindowChatMemory(), "put it into one: MessageChatMemoryAdvisor(memory)"),
        (ToolApproval(), "ToolCallingManager(interceptors=[approval])"),
        (ToolRegistry(), "it provides tools: .default_tools(...)"),
    ],
)
def test_what_is_no_advisor_goes_elsewhere(given: Any, told: str) -> None:
    """The message says where, and a client is not built with it."""
    with pytest.raises(WrongTypeError) as caught:
        ChatClient.builder(MODEL).default_advisors(given)
    assert told in str(caught.value)


def found() -> str:
    """Find it."""
    return ""


@dataclass
class Film:
    title: str


def takes_session(session: ScriptedModel) -> None:
    """Take what only the application has."""


@pytest.mark.parametrize(
    ("slip", "error", "told"),
    [
        (
            lambda: McpToolCallbackProvider("uvx mcp-server-time"),  # type: ignore[arg-type]
            WrongTypeError,
            "make one: McpServer.stdio(",
        ),
        (
            lambda: OpenAIChatModel(api_key="x", options={"temperature": 1}),  # type: ignore[arg-type]
            WrongTypeError,
            "write ChatOptions(temperature=0.2)",
        ),
        (
            lambda: (
                ChatClient.builder(MODEL)
                .tool_callback_resolver(DelegatingToolCallbackResolver(ToolRegistry(found)))
                .default_tools("find")
                .build()
            ),
            ToolDefinitionError,
            "resolver (DelegatingToolCallbackResolver(ToolRegistry(found)))",
        ),
        (lambda: tool_callbacks(takes_session), ToolDefinitionError, "goes through a ToolContext"),
        (
            lambda: TypeOutputConverter([int]),  # type: ignore[arg-type]
            UsageError,
            "ask for a type such as",
        ),
        (
            lambda: ChatClient.create(MODEL).prompt("x").call().entity(Film("Alien")),  # type: ignore[call-overload]
            UsageError,
            "not as an object of one: pass Film",
        ),
    ],
)
def test_a_slip_says_what_to_write(
    slip: Callable[[], object], error: type[Exception], told: str
) -> None:
    """Where it is made, before anything is sent, and without advice that is for others."""
    with pytest.raises(error) as caught:
        slip()
    assert told in str(caught.value)
    assert "arbitrary_types_allowed" not in str(caught.value)
