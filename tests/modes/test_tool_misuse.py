"""Mistakes of the application with its tools, which are raised to it."""

import json
from typing import Annotated, Any

import pytest

from chatclient import ChatClient, ChatOptions, ChatResponse, Prompt, ToolCall, ToolContext, tool
from chatclient.advisors import ToolCallingAdvisor
from chatclient.errors import ToolDefinitionError, ToolResultError, ToolUsageError, UsageError
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    DataToolCallback,
    FunctionToolCallback,
    NextTool,
    ToolCallingManager,
    ToolDefinition,
    ToolExecutionResult,
    ToolFailurePolicy,
    ToolInvocation,
    ToolMemoryId,
    ToolMetadata,
    ToolResult,
)
from chatclient.tools.execution.state import ToolState
from tests.modes.test_tool_calling import client_of


@tool
def tenant(context: ToolContext) -> str:
    """Return the tenant."""
    return context.require("tenant", str)


@tool
async def later(context: ToolContext) -> str:
    """Return the tenant, asynchronously."""
    return context.require("tenant", str)


@tool
def remembers(memory: Annotated[str, ToolMemoryId]) -> str:
    """Return the conversation's id."""
    return memory


TELL = ToolFailurePolicy(reactions={"exception": "tell"})


@pytest.mark.feature("tool-options-typed-access")
@pytest.mark.parametrize("name", ["tenant", "later"])
@pytest.mark.parametrize(
    ("context", "words"),
    [
        ({}, r"pass it with \.tool_context\(\{'tenant'"),
        ({"tenant": 7}, "must be of type str, not int"),
    ],
)
def test_what_a_tool_requires_of_the_application(
    ask: Ask, name: str, context: dict[str, Any], words: str
) -> None:
    """A missing context value raises an error with each policy."""
    model = ScriptedModel(call(name), "never")
    client = client_of(model, tenant, later, exception_processor=TELL)

    with pytest.raises(ToolUsageError, match=words):
        ask(client.prompt("x").tool_context(context))
    assert len(model.prompts) == 1


def test_a_tool_that_needs_a_conversation(ask: Ask) -> None:
    """Without one, the error names the missing id."""
    with pytest.raises(ToolUsageError, match="belongs to no conversation"):
        ask(client_of(ScriptedModel(call("remembers"), "never"), remembers).prompt("x"))


def test_what_an_agents_tools_require_of_the_application(ask: Ask) -> None:
    """The error is raised through the agent and its caller."""
    inner = ChatClient.builder(ScriptedModel(call("tenant"), "never")).default_tools(tenant).build()
    model = ScriptedModel(call("agent", '{"request": "?"}'), "never")

    with pytest.raises(ToolUsageError, match="tenant"):
        ask(client_of(model, inner.as_tool("agent", "An agent.")).prompt("x"))


def test_other_usage_errors_in_a_tool_are_error_results(ask: Ask) -> None:
    """The model may have caused them, such as a blank prompt for another client."""
    other = ChatClient.create(ScriptedModel("never"))

    @tool
    def research(question: str) -> str:
        return other.prompt(question).call().content()

    model = ScriptedModel(call("research", '{"question": " "}'), "done")
    result = ask(client_of(model, research).prompt("x"))

    assert isinstance(result.executions[0].error, UsageError)
    assert result.text == "done"


# --- what is not a ToolResult ---


async def forgetful(invocation: ToolInvocation, call_next: NextTool) -> Any:
    await call_next(invocation)


def plain(invocation: ToolInvocation, call_next: NextTool) -> Any:
    return "a text"


class Watchdog:
    async def __call__(self, invocation: ToolInvocation, call_next: NextTool) -> Any:
        return (await call_next(invocation)).text


async def passes_on(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    return await call_next(invocation)


@pytest.mark.feature("result-hook-converter-callback-returns")
@pytest.mark.parametrize(
    ("interceptor", "words"),
    [
        (forgetful, "tool interceptor forgetful returned None; it must return a ToolResult"),
        (plain, "tool interceptor plain returned 'a text'"),
        (Watchdog(), "tool interceptor Watchdog returned 'pong'"),
    ],
)
def test_an_interceptor_that_returns_no_result_is_named(
    ask: Ask, interceptor: Any, words: str
) -> None:
    """A missing `return` or a text is a `TypeError` with the interceptor's name."""

    @tool
    def ping() -> str:
        return "pong"

    model = ScriptedModel(call("ping"), "never")
    client = client_of(model, ping, interceptors=[passes_on, interceptor])

    with pytest.raises(TypeError, match=words):
        ask(client.prompt("x"))


def test_a_plain_function_may_hand_on_what_comes(ask: Ask) -> None:
    """A plain interceptor may return the awaitable of the next one, or a result."""

    def chooses(invocation: ToolInvocation, call_next: NextTool) -> Any:
        instead = invocation.tool_call.id == "b"
        return ToolResult("instead") if instead else call_next(invocation)

    @tool
    def ping() -> str:
        return "pong"

    model = ScriptedModel([call("ping", id="a"), call("ping", id="b")], "done")
    result = ask(client_of(model, ping, interceptors=[chooses]).prompt("x"))

    assert [each.response.data for each in result.executions] == ["pong", "instead"]


@pytest.mark.feature("result-hook-converter-callback-returns")
def test_a_callback_that_returns_no_result_is_named(ask: Ask) -> None:
    """`invoke` has to return a `ToolResult`."""

    class Own:
        definition = ToolDefinition("own", "", {"type": "object", "properties": {}})
        metadata = ToolMetadata()

        async def invoke(self, arguments: str, context: ToolContext) -> Any:
            return 42

    client = client_of(ScriptedModel(call("own"), "never"), Own())

    with pytest.raises(ToolResultError, match=r"invoke\(\) of tool 'own' returned 42"):
        ask(client.prompt("x"))


def test_a_tool_that_is_no_coroutine_is_named(ask: Ask) -> None:
    """A callback whose `invoke` is not a coroutine function raises an error to the application."""

    class Own:
        definition = ToolDefinition("own", "A tool.", {"type": "object", "properties": {}})
        metadata = ToolMetadata()

        def invoke(self, arguments: str, context: ToolContext) -> Any:
            return ToolResult("ran")

    own: Any = Own()
    client = client_of(ScriptedModel(call("own"), "never"), own)

    with pytest.raises(ToolResultError, match="'own' is not a coroutine function; write it with"):
        ask(client.prompt("x"))


class Overrides(ToolCallingManager):
    def execute_tool_calls(self, prompt: Prompt, response: ChatResponse) -> ToolExecutionResult:
        raise NotImplementedError


class Redefines(ToolCallingManager):
    def resolve_tool_definitions(self, options: ChatOptions) -> list[ToolDefinition]:
        raise NotImplementedError


@pytest.mark.feature("manager-subclassing-hook-around-tools")
@pytest.mark.parametrize(
    ("manager", "name"),
    [(Overrides(), "execute_tool_calls"), (Redefines(), "resolve_tool_definitions")],
)
def test_a_manager_with_useless_overrides(manager: ToolCallingManager, name: str) -> None:
    """Methods that only own loops call; the error names the alternative."""
    words = rf"overrides {name}\(\), which only loops of your own call; .* an interceptor"
    with pytest.raises(UsageError, match=words):
        ChatClient.builder(ScriptedModel("never")).tool_calling_manager(manager)
    with pytest.raises(UsageError, match=words):
        ToolCallingAdvisor(manager)


def test_a_manager_may_override_what_every_round_calls(ask: Ask) -> None:
    """A manager that overrides `execute` may override other methods as well."""
    rounds: list[int] = []

    class Counting(Overrides):
        async def execute(
            self, prompt: Prompt, response: ChatResponse, runtime: Runtime, state: ToolState
        ) -> ToolExecutionResult:
            rounds.append(len(prompt.messages))
            return await super().execute(prompt, response, runtime, state)

    model = ScriptedModel(call("nothing"), "done")
    client = ChatClient.builder(model).tool_calling_manager(Counting()).build()

    assert ask(client.prompt("x")).text == "done"
    assert rounds == [1]


class Converter:
    def convert(self, value: Any, kind: type) -> str:
        raise NotImplementedError


async def convert_later(value: Any) -> str:
    raise NotImplementedError


@pytest.mark.feature("tool-result-converter")
@pytest.mark.parametrize(
    "converter",
    [Converter, Converter(), Converter().convert, convert_later, lambda: "four", "four"],
)
def test_what_is_no_converter_is_refused(converter: Any) -> None:
    """An invalid converter is refused when the tool is created."""
    words = "must be a plain function that takes what the tool returned"
    with pytest.raises(ToolDefinitionError, match=words):
        tool(result_converter=converter)
    with pytest.raises(ToolDefinitionError, match=words):
        FunctionToolCallback(tenant, result_converter=converter)


@pytest.mark.parametrize("converter", [str, repr, json.dumps, lambda value, indent=2: f"{value}"])
def test_what_takes_one_value_is_a_converter(ask: Ask, converter: Any) -> None:
    """Optional parameters and callables without a signature are accepted."""
    callback = FunctionToolCallback(lambda: 4, name="word", result_converter=converter)
    model = ScriptedModel(call("word"), "done")
    result = ask(ChatClient.create(model).prompt("x").tools(callback))

    assert result.executions[0].response.data == "4"


@pytest.mark.feature("result-hook-converter-callback-returns")
def test_a_converter_that_returns_no_text_is_named(ask: Ask) -> None:
    """A result converter has to return a text or a `ToolResult`."""
    wrong: Any = len
    callback = FunctionToolCallback(lambda: "four", name="word", result_converter=wrong)

    with pytest.raises(ToolResultError, match="converter of tool 'word' returned 4"):
        ask(client_of(ScriptedModel(call("word"), "never"), callback).prompt("x"))


@pytest.mark.parametrize("kind", ["data", "schema"])
def test_value_outside_of_the_schema(ask: Ask, kind: str) -> None:
    """With an explicit schema, a tool runs with valid arguments only."""
    ran: list[Any] = []
    schema = {"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}}

    def measure(unit: str) -> str:
        ran.append(unit)
        return "20"

    def execute(made: ToolCall, context: ToolContext) -> str:
        ran.append(json.loads(made.arguments)["unit"])
        return "20"

    made: Any = (
        DataToolCallback(ToolDefinition("measure", "Measure.", schema), execute)
        if kind == "data"
        else FunctionToolCallback(measure, input_schema=schema)
    )
    model = ScriptedModel(call("measure", {"unit": "K"}), call("measure", {"unit": " f"}), "done")
    first, second = ask(client_of(model, made).prompt("x")).executions

    assert "should be 'C', 'F'; got 'K'" in first.response.data
    assert (second.response.data, ran) == ("20", ["F"])
