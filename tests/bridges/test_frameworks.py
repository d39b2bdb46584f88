"""Function tools of pydantic-ai and OpenAI Agents, with the real packages."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

pytest.importorskip("pydantic_ai", reason="the extra `pydantic-ai` is not installed")
pytest.importorskip("agents", reason="the extra `openai-agents` is not installed")

from agents import (
    FunctionTool,
    RunContextWrapper,
    ToolOutputFileContent,
    ToolOutputImage,
    ToolOutputText,
    function_tool,
    tool_input_guardrail,
)
from pydantic import BaseModel
from pydantic_ai import (
    ApprovalRequired,
    BinaryContent,
    CallDeferred,
    ImageUrl,
    ModelRetry,
    RunContext,
    Tool,
    ToolReturn,
)
from pydantic_ai.messages import CachePoint, TextContent, UploadedFile
from pydantic_ai.toolsets import FunctionToolset

from chatclient import Media, ToolContext
from chatclient.bridges import tools_from_openai_agents, tools_from_pydantic_ai
from chatclient.errors import ToolDefinitionError, WrongTypeError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import Decision, ToolMetadata
from tests.modes.test_tool_calling import client_of, results

PNG = b"\x89PNG"


@dataclass
class Deps:
    """What the tools depend on."""

    user: str


def deps_of(context: ToolContext) -> Deps:
    return Deps(context["user"])


# --- pydantic-ai ---


def add(a: int, b: int = 2) -> int:
    """Add two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a + b


async def greet(ctx: RunContext[Deps], greeting: str) -> dict[str, Any]:
    """Greet the user."""
    return {"text": f"{greeting} {ctx.deps.user}", "call": ctx.tool_call_id, "try": ctx.retry}


def test_functions_of_pydantic_ai(ask: Ask) -> None:
    """Plain and async ones, with dependencies of the request, alone and in toolsets."""
    tools = tools_from_pydantic_ai(add, [FunctionToolset([greet])], deps=deps_of)
    model = ScriptedModel([call("add", {"a": 1}), call("greet", {"greeting": "Hi"})], "done")
    ask(client_of(model, *tools).prompt("x").tool_context(user="Ada"))

    assert results(model.prompts[1]) == ["3", '{"text":"Hi Ada","call":"call_greet","try":0}']
    schema = tools[0].definition.input_schema
    assert schema["required"] == ["a"]
    assert schema["properties"]["a"]["description"] == "The first."


def test_errors_of_pydantic_ai(ask: Ask) -> None:
    """A retry, arguments that a validator refuses and other errors are error results."""

    def city(name: str) -> str:
        if name == "?":
            msg = "which city?"
            raise ModelRetry(msg)
        raise LookupError(name)

    def check(ctx: RunContext[None], name: str) -> None:
        if name == "":
            msg = "the name is empty"
            raise ModelRetry(msg)

    tool = Tool(city, args_validator=check)
    calls = [call("city", {"name": name}, id=name or "e") for name in ("?", "", "Oslo")]
    model = ScriptedModel([*calls, call("city", {"name": 5}, id="n")], "done")
    executions = ask(client_of(model, *tools_from_pydantic_ai(tool)).prompt("x")).executions

    told = [execution.response.data for execution in executions]
    assert told[:3] == ["which city?", "the name is empty", "Oslo"]
    assert all(execution.is_error for execution in executions)


def test_arguments_that_only_pydantic_refuses(ask: Ask) -> None:
    """The validator of the tool has the last word."""
    from typing import Annotated

    from pydantic import AfterValidator

    def even(value: int) -> int:
        assert value % 2 == 0, "must be even"
        return value

    def halve(n: Annotated[int, AfterValidator(even)]) -> int:
        return n // 2

    model = ScriptedModel(call("halve", {"n": 3}), "done")
    [execution] = ask(client_of(model, *tools_from_pydantic_ai(halve)).prompt("x")).executions

    assert "must be even" in execution.response.data


@pytest.mark.parametrize(
    ("returned", "text", "media"),
    [
        (BinaryContent(PNG, media_type="image/png"), "", [Media("image/png", PNG)]),
        (
            ["two", ImageUrl("https://a.example/b.png")],
            '["two"]',
            [Media("image/png", "https://a.example/b.png")],
        ),
        (
            ToolReturn("ok", content=["look", BinaryContent(PNG, media_type="image/png")]),
            "ok\nlook",
            [Media("image/png", PNG)],
        ),
        (ToolReturn("ok", content="more", metadata={"a": 1}), "ok\nmore", []),
        (
            ToolReturn(
                "ok", content=[TextContent("more"), CachePoint(), UploadedFile("f-1", "openai")]
            ),
            "ok\nmore",
            [Media("application/octet-stream", "f-1", id="f-1")],
        ),
        (ImageUrl("https://a.example/b"), "", [Media("image/png", "https://a.example/b")]),
        ({"kind": "binary", "data": ""}, '{"kind":"binary","data":""}', []),
        ([], "[]", []),
        (ToolReturn("ok"), "ok", []),
    ],
)
def test_results_of_pydantic_ai(ask: Ask, returned: Any, text: str, media: list[Media]) -> None:
    """Media and more content for the model; the value is for the application."""

    def look() -> Any:
        return returned

    model = ScriptedModel(call("look"), "done")
    [execution] = ask(client_of(model, *tools_from_pydantic_ai(look)).prompt("x")).executions

    assert execution.response.data == text
    assert list(execution.response.media) == media
    if isinstance(returned, ToolReturn):
        assert execution.value == "ok"
        assert dict(execution.metadata) == (returned.metadata or {})


@pytest.mark.parametrize("kind", ["declared", "raised"])
def test_approval_of_pydantic_ai(ask: Ask, kind: str) -> None:
    """The turn waits, and the approved call runs."""

    def pay(ctx: RunContext[None], amount: int) -> str:
        if kind == "raised" and not ctx.tool_call_approved:
            raise ApprovalRequired
        return f"paid {amount}"

    tools = tools_from_pydantic_ai(Tool(pay, requires_approval=kind == "declared"))
    model = ScriptedModel(call("pay", {"amount": 5}), "Paid.")
    client = client_of(model, *tools).mutate().default_tools(*tools).build()
    turn = ask(client.prompt("x")).answer.pending_turn()

    assert ask(client.resume(turn, "approve")).text == "Paid."
    assert results(model.prompts[1]) == ["paid 5"]


def test_deferred_call_of_pydantic_ai(ask: Ask) -> None:
    """The turn waits for the result of a call that the tool defers."""

    def build(commit: str) -> str:
        raise CallDeferred

    model = ScriptedModel(call("build", {"commit": "a1"}, id="c"), "It is built.")
    client = client_of(model, *tools_from_pydantic_ai(build))
    turn = ask(client.prompt("x")).answer.pending_turn()

    assert ask(client.resume(turn, {"c": Decision.answered("built")})).text == "It is built."
    assert results(model.prompts[1]) == ["built"]


def test_toolsets_that_need_a_run() -> None:
    """What pydantic-ai decides in each run is refused by name."""
    with pytest.raises(ToolDefinitionError, match="PrefixedToolset are known in a run"):
        tools_from_pydantic_ai(FunctionToolset([add]).prefixed("my"))  # type: ignore[arg-type]


class Caller:
    """Dependencies that can be called as well."""

    def __call__(self, context: ToolContext) -> None:
        raise AssertionError


@pytest.mark.parametrize("framework", ["pydantic-ai", "openai-agents"])
def test_values_that_can_be_called(ask: Ask, framework: str) -> None:
    """Only a function is called with the tool context."""
    caller = Caller()

    def look(ctx: RunContext[Any]) -> bool:
        return ctx.deps is caller

    async def theirs(ctx: RunContextWrapper[Any]) -> bool:
        return ctx.context is caller

    tools = (
        tools_from_pydantic_ai(look, deps=caller)
        if framework == "pydantic-ai"
        else tools_from_openai_agents(function_tool(theirs, name_override="look"), context=caller)
    )
    model = ScriptedModel(call("look"), "done")
    ask(client_of(model, *tools).prompt("x"))

    assert results(model.prompts[1])[0].casefold() == "true"


def test_metadata_of_pydantic_ai() -> None:
    """Time limit, strictness and order are those of the tool."""
    [tool] = tools_from_pydantic_ai(Tool(add, timeout=3, strict=True, sequential=True))
    assert (tool.metadata.timeout, tool.metadata.sequential) == (3, True)
    assert tool.definition.strict is True
    [reading] = tools_from_pydantic_ai(add, metadata=ToolMetadata(effect="read"))
    assert reading.metadata.effect == "read"

    async def prepare(ctx: Any, definition: Any) -> Any:
        return definition

    with pytest.raises(ToolDefinitionError, match="prepare"):
        tools_from_pydantic_ai(Tool(add, prepare=prepare))


# --- OpenAI Agents ---


@function_tool
def multiply(a: int, b: int) -> int:
    """Multiply two numbers.

    Args:
        a: The first.
        b: The second.
    """
    return a * b


@function_tool
async def welcome(ctx: RunContextWrapper[Deps], greeting: str) -> str:
    """Welcome the user."""
    return f"{greeting} {ctx.context.user}"


def test_function_tools_of_openai_agents(ask: Ask) -> None:
    """Plain and async ones, with the context of the request."""
    tools = tools_from_openai_agents(multiply, [welcome], context=deps_of)
    calls = [call("multiply", {"a": 2, "b": 3}), call("welcome", {"greeting": "Hi"})]
    model = ScriptedModel(calls, "done")
    ask(client_of(model, *tools).prompt("x").tool_context(user="Ada"))

    assert results(model.prompts[1]) == ["6", "Hi Ada"]
    assert tools[0].definition.strict is True
    assert tools[0].definition.input_schema["properties"]["a"]["description"] == "The first."


def test_errors_of_openai_agents(ask: Ask) -> None:
    """They are errors, unless the tool turns them into results itself."""

    def fails() -> str:
        """Fail."""
        msg = "down"
        raise LookupError(msg)

    default = function_tool(fails)
    own = function_tool(
        fails, name_override="own", failure_error_function=lambda context, error: f"sorry: {error}"
    )
    model = ScriptedModel([call("fails"), call("own")], "done")
    tools = tools_from_openai_agents(default, own)
    first, second = ask(client_of(model, *tools).prompt("x")).executions

    assert (first.is_error, first.response.data) == (True, "down")
    assert (second.is_error, second.response.data) == (False, "sorry: down")


DATA = "data:image/png;base64,iVBORw=="


class Row(BaseModel):
    """Data of an application that looks like an output."""

    type: str = "text"
    text: None = None


@pytest.mark.parametrize(
    ("returned", "text", "media"),
    [
        (ToolOutputText(text="ok"), "ok", []),
        (ToolOutputImage(image_url=DATA), "", [Media("image/png", PNG)]),
        ({"type": "image", "file_id": "f-1"}, "", [Media("image/png", "f-1", id="f-1")]),
        (
            [
                ToolOutputText(text="a"),
                ToolOutputFileContent(file_url="https://a.example/b.pdf", filename="b.pdf"),
            ],
            "a",
            [Media("application/octet-stream", "https://a.example/b.pdf", name="b.pdf")],
        ),
        (
            ToolOutputFileContent(file_data="iVBORw=="),
            "",
            [Media("application/octet-stream", PNG)],
        ),
        (ToolOutputFileContent(file_data=DATA), "", [Media("image/png", PNG)]),
        (
            (ToolOutputText(text="a"), {"type": "file", "file_url": "data:text/plain,b%20c"}),
            "a",
            [Media("text/plain", b"b c")],
        ),
        ([1, 2], "[1,2]", []),
        # These only look like outputs.
        ([], "[]", []),
        ({"type": "text", "value": 1}, '{"type":"text","value":1}', []),
        ({"type": "text", "text": "a", "id": 7}, '{"type":"text","text":"a","id":7}', []),
        ([{"type": "file", "name": "a"}], '[{"type":"file","name":"a"}]', []),
        ({"type": ["text"]}, '{"type":["text"]}', []),
        ([{"type": "image", "image_url": ""}], '[{"type":"image","image_url":""}]', []),
        ({"type": "image", "image_url": "a b"}, '{"type":"image","image_url":"a b"}', []),
        ({"type": "file", "file_data": "x!"}, '{"type":"file","file_data":"x!"}', []),
        ({"type": "file", "file_id": ""}, '{"type":"file","file_id":""}', []),
        (["a", ToolOutputText(text="b")], '["a",{"type":"text","text":"b"}]', []),
        (Row(), '{"type":"text","text":null}', []),
        (object, "<class 'object'>", []),
    ],
)
def test_results_of_openai_agents(ask: Ask, returned: Any, text: str, media: list[Media]) -> None:
    """Texts, images and files that the SDK accepts; all else is data, of which nothing is lost."""

    async def invoke(context: Any, arguments: str) -> Any:
        return returned

    look = FunctionTool("look", "Look.", {"type": "object", "properties": {}}, invoke)
    look.strict_json_schema = False
    model = ScriptedModel(call("look"), "done")
    [execution] = ask(client_of(model, *tools_from_openai_agents(look)).prompt("x")).executions

    assert (execution.response.data, list(execution.response.media)) == (text, media)


@pytest.mark.parametrize("needs", [True, "large", "plain"])
def test_approval_of_openai_agents(ask: Ask, needs: Any) -> None:
    """The turn waits, if the call needs it, and the approved call runs."""

    async def large(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(arguments["amount"] > 3)

    def plain(context: Any, arguments: dict[str, Any], call_id: str) -> bool:
        return bool(arguments["amount"] > 3)

    needed: Any = {"large": large, "plain": plain}.get(needs, needs)

    @function_tool(needs_approval=needed)
    def pay(amount: int) -> str:
        """Pay."""
        return f"paid {amount}"

    tools = tools_from_openai_agents(pay)
    model = ScriptedModel(call("pay", {"amount": 5}), call("pay", {"amount": 1}), "Paid.")
    client = client_of(model, *tools)
    turn = ask(client.prompt("x")).answer.pending_turn()
    result = ask(client.resume(turn, "approve"))

    waits_again = result.answer.pending_turn()
    assert (waits_again is not None) is (needs is True)
    assert results(model.prompts[1])[0] == "paid 5"


def test_cancellation_reaches_the_tools() -> None:
    """A cancelled request ends asynchronous tools of both."""
    ended: list[str] = []

    async def long() -> str:
        """Take long."""
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("long")
        return ""

    async def main(tools: Any) -> None:
        request = client_of(ScriptedModel(call("long"), "never"), *tools).prompt("x")
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(request.acall().content(), 0.2)

    asyncio.run(main(tools_from_pydantic_ai(long)))
    asyncio.run(main(tools_from_openai_agents(function_tool(long))))
    assert ended == ["long", "long"]


def test_what_openai_agents_would_decide() -> None:
    """Tools that are off are left out; what needs a run of the SDK is refused."""
    off = function_tool(add, is_enabled=False)
    assert tools_from_openai_agents(off) == []
    with pytest.raises(ToolDefinitionError, match="is_enabled"):
        tools_from_openai_agents(function_tool(add, is_enabled=lambda context, agent: True))

    @tool_input_guardrail
    def guard(data: Any) -> Any:
        raise AssertionError

    with pytest.raises(ToolDefinitionError, match="guardrails"):
        tools_from_openai_agents(function_tool(add, tool_input_guardrails=[guard]))
    function: Any = len
    with pytest.raises(WrongTypeError, match="a tool of OpenAI Agents"):
        tools_from_openai_agents(function)
    limited = function_tool(welcome_twice, timeout=3)
    assert tools_from_openai_agents(limited)[0].metadata.timeout == 3


async def welcome_twice() -> str:
    """Welcome twice."""
    return "hi hi"
