"""Interceptors of tool calls, in all four modes."""

import asyncio
import json
from collections.abc import Sequence
from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.chat.events import ToolCallFinished
from chatclient.errors import ToolDeniedError, ToolExecutionError, ToolUsageError
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    NextTool,
    ToolFailurePolicy,
    ToolInterceptor,
    ToolInvocation,
    ToolLimits,
    ToolResult,
)
from tests.modes.test_tool_calling import assert_paired, client_of, results

ran: list[str] = []


@tool
def greet(name: str) -> str:
    """Greet by name."""
    ran.append(name)
    return f"Hello {name}"


@tool(effect="read")
async def wave(name: str) -> str:
    """Wave at a person."""
    await asyncio.sleep(0)
    ran.append(name)
    return f"*waves at {name}*"


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


ANN = '{"name": "Ann"}'


def intercepted(model: ScriptedModel, *interceptors: ToolInterceptor, **manager: Any) -> Any:
    client = client_of(model, greet, wave, interceptors=interceptors, **manager)
    return client.prompt("x").tool_context({"tenant": "acme"})


def both(reply: str = "done") -> ScriptedModel:
    """Return a model that calls a plain and an asynchronous tool, and then answers."""
    return ScriptedModel([call("greet", ANN), call("wave", ANN)], reply)


@pytest.mark.feature(
    "manager-subclassing-hook-around-tools", "lc4j-tool-before-tool-execution-after"
)
def test_an_interceptor_sees_everything_about_a_call(ask: Ask) -> None:
    """It receives the call, the definition, the metadata and the context, and then the result."""
    seen: dict[str, Any] = {}

    async def watch(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        result = await call_next(invocation)
        seen[invocation.tool_call.name] = (
            json.loads(invocation.tool_call.arguments),
            invocation.definition.description,
            invocation.metadata.effect,
            invocation.context["tenant"],
            result.text,
        )
        return result

    model = both()
    ask(intercepted(model, watch))

    assert seen == {
        "greet": ({"name": "Ann"}, "Greet by name.", "write", "acme", "Hello Ann"),
        "wave": ({"name": "Ann"}, "Wave at a person.", "read", "acme", "*waves at Ann*"),
    }
    assert results(model.prompts[1]) == ["Hello Ann", "*waves at Ann*"]


@pytest.mark.feature("manager-subclassing-hook-around-tools", "wish-veto-rewriting-retry-around")
def test_a_veto_is_sent_to_the_model(ask: Ask) -> None:
    """A denied call does not run, the model receives the reason, and other calls run."""

    async def no_greeting(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        if invocation.definition.name == "greet":
            raise ToolDeniedError("Nobody is to be greeted.", tool_name="greet")
        return await call_next(invocation)

    model = both()
    result = ask(intercepted(model, no_greeting))

    assert ran == ["Ann"]
    assert results(model.prompts[1]) == ["Nobody is to be greeted.", "*waves at Ann*"]
    assert [execution.is_error for execution in result.executions] == [True, False]
    assert isinstance(result.executions[0].error, ToolDeniedError)
    assert_paired(model.prompts[1].messages)


def test_a_veto_can_end_the_turn(ask: Ask) -> None:
    """Where denied calls are raised, the caller gets the very error."""

    async def never(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        raise ToolDeniedError("No.", tool_name=invocation.tool_call.name)

    policy = ToolFailurePolicy(reactions={"denied": "raise"})
    with pytest.raises(ToolDeniedError, match=r"No\."):
        ask(intercepted(both(), never, exception_processor=policy))
    assert ran == []


@pytest.mark.feature("manager-subclassing-hook-around-tools")
def test_arguments_can_be_rewritten(ask: Ask) -> None:
    """The tool gets other arguments; the history keeps what the model wrote."""

    async def anonymise(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        return await call_next(invocation.with_arguments('{"name": "N.N."}'))

    model = both()
    result = ask(intercepted(model, anonymise))

    assert ran == ["N.N.", "N.N."]
    assert results(model.prompts[1])[0] == "Hello N.N."
    assert [execution.tool_call.arguments for execution in result.executions] == [ANN, ANN]
    assert "N.N." not in str(model.prompts[1].messages[-2])


@pytest.mark.feature("wish-veto-rewriting-retry-around")
def test_rewritten_arguments_have_to_fit_too(ask: Ask) -> None:
    """What an interceptor writes is validated like what a model writes."""

    async def break_it(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        return await call_next(invocation.with_arguments('{"nome": "Ann"}'))

    model = both()
    ask(intercepted(model, break_it))

    assert "name: missing, but required" in results(model.prompts[1])[0]
    assert ran == []


@pytest.mark.feature("manager-subclassing-hook-around-tools", "mcp-tool-wrapper")
def test_results_can_be_rewritten(ask: Ask) -> None:
    """What the model, the events and the executions show is the rewritten result."""

    async def redact(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        result = await call_next(invocation)
        return ToolResult(result.text.replace("Ann", "***"))

    model = both()
    result = ask(intercepted(model, redact))

    assert results(model.prompts[1]) == ["Hello ***", "*waves at ****"]
    assert result.executions[0].response.data == "Hello ***"
    finished = [event for event in result.events if isinstance(event, ToolCallFinished)]
    assert "Ann" not in str([event.response for event in finished])


def test_an_interceptor_may_answer_in_the_tools_place(ask: Ask) -> None:
    """A cached result spares the tool."""

    async def cached(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        return ToolResult("from the cache")

    model = both()
    ask(intercepted(model, cached))

    assert results(model.prompts[1]) == ["from the cache"] * 2
    assert ran == []


@pytest.mark.feature("manager-subclassing-hook-around-tools", "wish-veto-rewriting-retry-around")
def test_an_interceptor_may_try_again(ask: Ask) -> None:
    """The rest of the chain can be awaited as often as needed."""
    attempts: list[int] = []

    @tool
    def flaky() -> str:
        attempts.append(1)
        if len(attempts) < 3:
            raise ConnectionError("reset")
        return "third time lucky"

    async def retry(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        for _ in range(2):
            try:
                return await call_next(invocation)
            except ConnectionError:
                await invocation.context.runtime.sleep(0.001)
        return await call_next(invocation)

    model = ScriptedModel(call("flaky"), "done")
    result = ask(client_of(model, flaky, interceptors=[retry]).prompt("x"))

    assert results(model.prompts[1]) == ["third time lucky"]
    assert (len(attempts), len(result.executions)) == (3, 1)


def logging(name: str, log: list[str]) -> ToolInterceptor:
    async def interceptor(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        log.append(f"{name} before {invocation.tool_call.arguments}")
        result = await call_next(invocation.with_arguments(f'{{"name": "{name}"}}'))
        log.append(f"{name} after {result.text}")
        return ToolResult(f"{result.text}, {name}")

    return interceptor


def test_the_first_interceptor_is_the_outermost(ask: Ask) -> None:
    """Arguments pass the interceptors in order, results in reverse."""
    log: list[str] = []
    model = ScriptedModel(call("greet", ANN), "done")
    ask(intercepted(model, logging("one", log), logging("two", log)))

    assert log == [
        f"one before {ANN}",
        'two before {"name": "one"}',
        "two after Hello two",
        "one after Hello two, two",
    ]
    assert results(model.prompts[1]) == ["Hello two, two, one"]


def test_an_outer_interceptor_can_catch_an_inner_veto(ask: Ask) -> None:
    """What is raised inside passes through those outside, who may answer instead."""

    async def forgiving(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        try:
            return await call_next(invocation)
        except ToolDeniedError as error:
            return ToolResult(f"Sorry: {error}")

    async def strict(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        raise ToolDeniedError("closed", tool_name=invocation.tool_call.name)

    model = both()
    result = ask(intercepted(model, forgiving, strict))

    assert results(model.prompts[1]) == ["Sorry: closed"] * 2
    assert not any(execution.is_error for execution in result.executions)


@pytest.mark.feature("lc4j-tool-before-tool-execution-after")
def test_an_error_of_an_interceptor(ask: Ask) -> None:
    """The failure policy handles it like an error of the tool."""

    async def broken(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        raise LookupError("no such rule")

    model = both()
    ask(intercepted(model, broken))
    assert results(model.prompts[1]) == ["no such rule"] * 2

    with pytest.raises(ToolExecutionError, match="no such rule"):
        ask(intercepted(both(), broken, exception_processor=ToolFailurePolicy(always_raise=True)))


def test_unknown_and_refused_calls_pass_no_interceptor(ask: Ask) -> None:
    """Only what is about to be run is intercepted."""
    seen: list[str] = []

    async def watch(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        seen.append(invocation.tool_call.id)
        return await call_next(invocation)

    calls = [call("nobody"), call("greet", ANN, id="a"), call("greet", '{"name": "B"}', id="b")]
    limits = ToolLimits(per_tool={"greet": 1}, on_exceeded="tell_model")
    ask(intercepted(ScriptedModel(calls, "done"), watch, limits=limits))

    assert seen == ["a"]


class Counting:
    """An interceptor that is an object."""

    def __init__(self) -> None:
        self.names: list[str] = []

    async def __call__(self, invocation: ToolInvocation, call_next: NextTool, /) -> ToolResult:
        self.names.append(invocation.definition.name)
        return await call_next(invocation)


def test_what_call_next_takes_is_told_to_the_author(ask: Ask) -> None:
    """It is no failure of the tool, about which the model could do something."""

    async def passes_arguments(invocation: ToolInvocation, call_next: Any) -> ToolResult:
        result: ToolResult = await call_next(invocation.tool_call.arguments)
        return result

    said = r"passes_arguments called call_next with .*; it takes the invocation, .*with_arguments"
    with pytest.raises(ToolUsageError, match=said):
        ask(intercepted(both(), passes_arguments))
    assert ran == []


def test_an_object_can_be_an_interceptor_of_many_requests(ask: Ask) -> None:
    """It is called for each call of each request of the client."""
    counting = Counting()
    model = ScriptedModel(call("greet", ANN), "done", call("wave", ANN), "done")
    request = intercepted(model, counting)
    ask(request)
    ask(request)

    assert counting.names == ["greet", "wave"]


@pytest.mark.parametrize("limit", [1, 4])
def test_interceptors_of_parallel_calls(ask: Ask, limit: int) -> None:
    """Each call has its own invocation and its own result."""

    async def tag(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        result = await call_next(invocation)
        return ToolResult(f"{invocation.tool_call.id}: {result.text}")

    names: Sequence[str] = ["A", "B", "C", "D"]
    calls = [call("greet", f'{{"name": "{name}"}}', id=name.lower()) for name in names]
    model = ScriptedModel(calls, "done")
    ask(intercepted(model, tag, max_concurrency=limit, blocking_concurrency=limit))

    assert results(model.prompts[1]) == ["a: Hello A", "b: Hello B", "c: Hello C", "d: Hello D"]


def test_an_interceptor_may_emit_events_and_ask_a_client(ask: Ask) -> None:
    """It can tell the stream about a call, and have another model judge it."""
    judge = ChatClient.create(ScriptedModel("harmless"))

    async def judged(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        runtime = invocation.context.runtime
        verdict = await runtime.invoke(lambda: judge.prompt("is it?").call().content())
        await invocation.context.progress(verdict)
        return await call_next(invocation)

    result = ask(intercepted(ScriptedModel(call("greet", ANN), "done"), judged))

    told = [event.event for event in result.events if type(event).__name__ == "ToolProgress"]
    assert told == (["harmless"] if ask.streaming else [])
    assert ran == ["Ann"]
