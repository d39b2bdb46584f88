"""Types of the public API, inferred without annotations of users.

The checks are made by mypy and pyright (`make types` covers this file, too); running the functions
makes sure that what is promised is what comes.
"""

import importlib.util
import json
import os
import re
import subprocess
import sys
from abc import ABC, abstractmethod
from collections.abc import Awaitable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Protocol, assert_type, runtime_checkable

import pytest
from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    ChatOptions,
    ChatResponse,
    Message,
    Next,
    ToolContext,
    Usage,
    UserMessage,
    tool,
)
from chatclient.advisors.guardrails.advisors import (
    GuardrailResult,
    InputGuardrailAdvisor,
    OutputGuardrailAdvisor,
    refuse_prompt_injection,
)
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.response_cache import ResponseCacheAdvisor
from chatclient.chat.events import Done, StreamEvent, TextDelta
from chatclient.client.builder import ChatClientBuilder
from chatclient.client.request import ChatClientRequestSpec
from chatclient.memory import MessageWindowChatMemory
from chatclient.observability.trail import Trail
from chatclient.providers.http.retry import RetryPolicy
from chatclient.providers.local.model import LocalChatModel
from chatclient.providers.openai.chat import OpenAIChatModel
from chatclient.retrieval import Document
from chatclient.runtime.runtime import ON_LOOP
from chatclient.structured import TypeOutputConverter
from chatclient.testing import ScriptedModel, call
from chatclient.tools import FunctionToolCallback, PendingTurn, ToolApproval, ToolExecution
from tests.docs.test_docs import PAGES, blocks, name_of
from tests.support.paths import ROOT


class Advice(BaseModel):
    """Advice for a traveller."""

    summary: str


@dataclass
class Point:
    x: int


class Pair(NamedTuple):
    a: int
    b: str


Positive = Annotated[int, Field(gt=0)]


class Movie(TypedDict):
    title: str


@tool
def find_trains(city: str, limit: int = 3) -> list[str]:
    """Find trains."""
    return [city] * limit


@tool(name="other", effect="read")
async def find_planes(city: str, context: ToolContext) -> list[str]:
    """Find planes."""
    return [city]


class Desk:
    @tool
    def book(self, number: str) -> bool:
        """Book."""
        return bool(number)


def client_of(*answers: Any) -> ChatClient:
    return ChatClient.builder(ScriptedModel(*answers)).build()


def test_builders() -> None:
    """Builder methods return builders, request methods return requests."""
    builder = ChatClient.builder("local")
    assert_type(builder, ChatClientBuilder)
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    more = builder.default_system("x").default_tools(find_trains, Desk()).default_advisors(memory)
    assert_type(more, ChatClientBuilder)
    client = assert_type(client_of("x"), ChatClient)
    assert_type(client.mutate(), ChatClientBuilder).build()
    assert_type(client.model, ChatModel)
    request = client.prompt("?").tools(find_planes).conversation("c").options(temperature=0.5)
    assert_type(request, ChatClientRequestSpec)


def test_decorated_tools_keep_their_type() -> None:
    """A decorated function keeps its signature."""
    assert assert_type(find_trains("Rome"), list[str]) == ["Rome"] * 3
    assert assert_type(Desk().book("IC 1"), bool)


def test_blocking_response() -> None:
    """Accessors have their documented types."""
    answer = client_of("hello").prompt("?").call()
    assert assert_type(answer.content(), str) == "hello"
    response = assert_type(answer.chat_response(), ChatResponse)
    assert_type(response.usage, Usage)
    assert_type(answer.chat_client_response(), ChatClientResponse)
    for execution in answer.tool_executions():
        assert_type(execution, ToolExecution)
        assert_type(execution.response.data, str)
    assert_type(answer.trail(), Trail)
    assert_type(answer.documents(), tuple[Document, ...])
    assert_type(answer.pending_turn(), PendingTurn | None)


async def test_async_response() -> None:
    """The awaited accessors have the same types."""
    answer = await client_of("hello").prompt("?").acall()
    assert_type(answer.content(), str)
    assert_type(await client_of("hello").prompt("?").acall().documents(), tuple[Document, ...])
    assert assert_type(await client_of("hi").prompt("?").acall().content(), str) == "hi"
    assert_type(await client_of('{"x": 1}').prompt("?").acall().entity(Point), Point)


async def test_streams() -> None:
    """Iterating a stream gives text."""
    for piece in client_of("hello").prompt("?").stream():
        assert_type(piece, str)
    for piece in client_of("hello").prompt("?").stream().content():
        assert_type(piece, str)
    for chunk in client_of("hello").prompt("?").stream().chat_response():
        assert_type(chunk, ChatResponse)
    async for piece in client_of("hello").prompt("?").astream():
        assert_type(piece, str)
    async with client_of("hello").prompt("?").astream().content() as pieces:
        async for piece in pieces:
            assert_type(piece, str)


async def test_events() -> None:
    """Events of library and application are distinguished by type."""
    for event in client_of("hello").prompt("?").stream().events():
        assert_type(event, StreamEvent | object)
        match event:
            case TextDelta(text=text):
                assert_type(text, str)
            case Done(response=response):
                assert_type(response, ChatResponse)
    async for event in client_of("hello").prompt("?").astream().events():
        assert_type(event, StreamEvent | object)
    for event in client_of('{"x": 1}').prompt("?").stream().events(entity=Point):
        match event:
            case Done(entity=Point() as point):
                assert_type(point, Point)
                assert point == Point(x=1)


async def test_model_chunks() -> None:
    """Chunks are responses, blocking and async."""
    for chunk in ScriptedModel("hello").stream("?"):
        assert_type(chunk, ChatResponse)
    async for chunk in ScriptedModel("hello").astream("?"):
        assert_type(chunk, ChatResponse)


async def test_runtime_invoke() -> None:
    """Arguments are checked, and the result is that of the function, awaited if needed."""

    async def half(number: int) -> float:
        return number / 2

    def half_or_later(number: int) -> float | Awaitable[float]:
        return half(number)

    assert assert_type(await ON_LOOP.invoke(half, 3), float) == 1.5
    assert assert_type(await ON_LOOP.invoke(half_or_later, 3, timeout=5.0), float) == 1.5
    assert assert_type(await ON_LOOP.invoke(str.upper, "a"), str) == "A"
    assert assert_type(await ON_LOOP.finish(str.upper, "a"), str) == "A"
    with pytest.raises(TypeError):
        await ON_LOOP.invoke(half, "3")  # type: ignore[arg-type]


def test_guardrail_and_approval_results() -> None:
    """A bool is no guardrail verdict, and a string no decision."""

    async def later(request: ChatClientRequest) -> GuardrailResult | None:
        return None

    InputGuardrailAdvisor(refuse_prompt_injection, later, lambda request: None)
    InputGuardrailAdvisor(lambda request: True)  # type: ignore[arg-type,return-value]
    OutputGuardrailAdvisor(lambda answer: GuardrailResult.failure("no"), lambda answer, sent: None)
    OutputGuardrailAdvisor(lambda answer: "no")  # type: ignore[arg-type]
    ToolApproval(ask=lambda invocation: invocation.tool_call.name == "find")
    ToolApproval(ask=lambda invocation: "yes")  # type: ignore[arg-type,return-value]


def test_async_response_stores() -> None:
    """Async stores have responses as values."""

    class Kept:
        async def get(self, key: str) -> ChatResponse | None:
            return None

        async def put(self, key: str, response: ChatResponse) -> None: ...

    class Texts:
        def get(self, key: str) -> str:
            return key

        def put(self, key: str, response: ChatResponse) -> None: ...

    ResponseCacheAdvisor(Kept())
    ResponseCacheAdvisor(Texts())  # type: ignore[arg-type]


def test_retry_policy_of_models(tmp_path: Path) -> None:
    """Every model accepts a retry policy, the local one too."""
    patient = RetryPolicy(5)
    for model in (
        OpenAIChatModel("m", api_key="k", max_retries=patient),
        LocalChatModel(model_path=tmp_path / "m.gguf", max_retries=patient),
    ):
        assert_type(model, OpenAIChatModel | LocalChatModel)
        model.close()


def test_entities() -> None:
    """The result has the requested type."""
    text = '{"summary": "go"}'
    assert assert_type(client_of(text).prompt("?").call().entity(Advice), Advice).summary == "go"
    assert assert_type(client_of('{"x": 1}').prompt("?").call().entity(Point), Point).x == 1
    point = client_of('{"a": 1, "b": "c"}').prompt("?").call().entity(Pair)
    assert assert_type(point, Pair).b == "c"
    movie = client_of('{"title": "Ran"}').prompt("?").call().entity(Movie)
    assert assert_type(movie, Movie)["title"] == "Ran"
    points = client_of('[{"x": 1}]').prompt("?").call().entity(list[Point])
    assert assert_type(points, list[Point]) == [Point(1)]
    assert assert_type(client_of("3").prompt("?").call().entity(int), int) == 3


def test_entities_of_other_types() -> None:
    """Unions, literals and annotated types, and their converters."""
    point = client_of('{"x": 1}').prompt("?").call()
    assert assert_type(point.entity(Point | Advice), Point | Advice) == Point(1)
    assert assert_type(point.response_entity(Point | None).entity, Point | None) == Point(1)
    assert_type(point.entity(TypeOutputConverter(Point | None)), Point | None)
    assert_type(TypeOutputConverter(Point), TypeOutputConverter[Point])
    assert_type(point.entity({"type": "object"}), Any)
    letter = client_of('"a"').prompt("?").call().entity(Literal["a", "b"])
    assert assert_type(letter, Literal["a", "b"]) == "a"
    assert assert_type(client_of("3").prompt("?").call().entity(Positive), int) == 3
    for each in client_of('{"x": 1}').prompt("?").stream().entity(Point | None):
        assert_type(each, Point | None)


async def test_async_entities_of_other_types() -> None:
    """The same types when awaited."""
    letter = await client_of('"a"').prompt("?").acall().entity(Literal["a", "b"])
    assert assert_type(letter, Literal["a", "b"]) == "a"
    point = await client_of('{"x": 1}').prompt("?").acall().response_entity(Point | None)
    assert assert_type(point.entity, Point | None) == Point(1)
    async for each in client_of('{"x": 1}').prompt("?").astream().entity(Point | None):
        assert_type(each, Point | None)


def test_advisors_need_no_base_class() -> None:
    """A coroutine function and an object are advisors for a type checker, too."""

    async def plain(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        messages = assert_type(request.prompt.messages, tuple[Message, ...])
        assert isinstance(messages[0], UserMessage)
        return await call_next(request)

    class Object:
        order = 5

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            return await call_next(request)

    client = client_of("x").mutate().default_advisors(plain, Object()).build()
    assert client.prompt("?").call().content() == "x"


class Repo(ABC):
    @abstractmethod
    def find(self) -> str: ...


@runtime_checkable
class Finds(Protocol):
    def find(self) -> str: ...


@pytest.mark.feature("tool-options-typed-access")
def test_tool_context_types() -> None:
    """Required context values have their type, interfaces included."""

    class Table(Repo):
        def find(self) -> str:
            return "row"

    context = ToolContext({"repo": Table(), "limit": 3})
    assert assert_type(context.require("repo", Repo), Repo).find() == "row"
    assert assert_type(context.require("repo", Finds), Finds).find() == "row"
    assert assert_type(context.require("limit", int), int) == 3
    assert assert_type(context.require("limit", int | str), int | str) == 3


def test_values() -> None:
    """Parts of messages, options and responses have types."""
    message = assert_type(AssistantMessage([call("a")]), AssistantMessage)
    assert_type(message.tool_calls[0].name, str)
    assert_type(ChatOptions(temperature=0.5).temperature, float | None)
    assert ChatOptions(stop="x") == ChatOptions(stop=["x"])
    echo = FunctionToolCallback(lambda: "x", name="echo")
    assert ChatOptions(tool_callbacks=[echo]).tool_callbacks == (echo,)
    assert_type(ChatResponse.of("x").text, str)


# --- code of the docs -----------------------------------------------------------------------

# mypy with the settings of `make types`, or neither would find of use what the other has kept.
CHECKERS = {
    "mypy": ["-m", "mypy", "--no-error-summary"],
    "pyright": ["-m", "pyright", "--pythonpath", sys.executable],
}


@pytest.mark.exhaustive
@pytest.mark.parametrize("checker", CHECKERS)
def test_code_of_the_docs_is_typed(checker: str, tmp_path_factory: pytest.TempPathFactory) -> None:
    """No page needs an annotation, a cast or Any."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    folder = tmp_path_factory.mktemp("pages")
    for page in PAGES:
        code = "\n".join(code for _, code in blocks(page))
        name = re.sub(r"\W", "_", name_of(page).lower().removesuffix(".md"))
        (folder / f"page_{name}.py").write_text(f"# mypy: disable-error-code=no-redef\n{code}")
    root = ROOT
    settings = {"reportRedeclaration": False, "extraPaths": [str(root)]}
    (folder / "pyrightconfig.json").write_text(json.dumps(settings))
    checked = subprocess.run(
        [sys.executable, *CHECKERS[checker], str(folder)],
        capture_output=True,
        text=True,
        check=False,
        cwd=folder if checker == "pyright" else root,
        env={**os.environ, "MYPYPATH": str(root)},
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


@pytest.mark.exhaustive
@pytest.mark.parametrize("checker", CHECKERS)
def test_unknown_names_of_public_packages_are_type_errors(checker: str, tmp_path: Path) -> None:
    """Type checkers refuse a name that a public package does not export."""
    if importlib.util.find_spec(checker) is None:
        pytest.skip(f"{checker} is not installed")
    (tmp_path / "program.py").write_text("from chatclient.services import TURN_KEY, ai_service\n")
    root = ROOT
    (tmp_path / "pyrightconfig.json").write_text(json.dumps({"extraPaths": [str(root)]}))

    checked = subprocess.run(
        [sys.executable, *CHECKERS[checker], str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        cwd=tmp_path if checker == "pyright" else root,
        env={**os.environ, "MYPYPATH": str(root)},
    )

    assert checked.returncode == 1
    assert "TURN_KEY" in checked.stdout
    assert "ai_service" not in checked.stdout
