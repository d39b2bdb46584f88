"""The tool loop in all four modes: rounds, results, errors and hooks."""

import asyncio
import contextvars
import gc
import threading
import time
import weakref
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatOptions,
    ChatResponse,
    Media,
    Message,
    Next,
    Prompt,
    SystemMessage,
    ToolCall,
    ToolContext,
    ToolResponseMessage,
    Usage,
    UserMessage,
    tool,
)
from chatclient.advisors import HIGHEST_PRECEDENCE, TOOL_CALLING_ORDER, ToolCallingAdvisor
from chatclient.chat.events import (
    Done,
    RoundEnded,
    TextDelta,
    ToolCallDelta,
    ToolCallFinished,
    ToolCallStarted,
    ToolRunStarted,
)
from chatclient.chat.response import Generation
from chatclient.errors import (
    ToolDefinitionError,
    ToolError,
    ToolResultError,
    ToolUsageError,
    UsageError,
)
from chatclient.testing import Answer, Ask, Mode, ScriptedModel, call
from chatclient.tools import (
    DataToolCallback,
    NextTool,
    StaticToolCallbackResolver,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolDefinition,
    ToolExecutionResult,
    ToolFailure,
    ToolFailurePolicy,
    ToolInvocation,
    ToolLimits,
    ToolMetadata,
    ToolResult,
    tool_callbacks,
)
from tests.support.waiting import LONG, asettled, longer_and_longer

VAR: contextvars.ContextVar[str] = contextvars.ContextVar("VAR", default="nobody")


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
async def double(n: int) -> int:
    """Double a number."""
    await asyncio.sleep(0)
    return 2 * n


@tool(return_direct=True)
def direct() -> str:
    """Answer directly."""
    return "straight from the tool"


def client_of(model: ScriptedModel, *tools: Any, **manager: Any) -> ChatClient:
    builder = ChatClient.builder(model).default_tools(*tools)
    return builder.tool_calling_manager(ToolCallingManager(**manager)).build()


def offered(model: ScriptedModel) -> Sequence[ToolCallback]:
    """Return the tools that the first prompt offered."""
    callbacks = model.prompts[0].options.tool_callbacks
    assert callbacks is not None
    return callbacks


def results(prompt: Prompt) -> list[str]:
    """Return the tool results in the last message of *prompt*."""
    message = prompt.messages[-1]
    assert isinstance(message, ToolResponseMessage)
    return [response.data for response in message.responses]


def assert_paired(messages: Sequence[Message]) -> None:
    """Check that each call is followed by its result, in order, as providers require."""
    for message, following in zip(messages, [*messages[1:], None], strict=True):
        if isinstance(message, AssistantMessage) and message.tool_calls:
            assert isinstance(following, ToolResponseMessage)
            assert [r.id for r in following.responses] == [c.id for c in message.tool_calls]


# --- the loop ---


@pytest.mark.feature(
    "loop-registered-automatically-always",
    "loop-call-model-run-tools",
    "loop-history-whole-turn-sent",
    "lc4j-tool-return-behavior-llm",
    "wish-one-loop-call-stream",
)
def test_the_model_gets_the_result_and_answers(ask: Ask) -> None:
    """A tool is called, its result is sent with the conversation, and the model answers."""
    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'), "It is 3.")
    result = ask(client_of(model, add).prompt("1 + 2?"))

    assert result.text == "It is 3."
    assert model.prompts[1].messages == (
        UserMessage("1 + 2?"),
        AssistantMessage(tool_calls=[call("add", '{"a": 1, "b": 2}')]),
        ToolResponseMessage([result.executions[0].response]),
    )
    assert results(model.prompts[1]) == ["3"]


@pytest.mark.feature(
    "source-functions", "function-asynchronous-tools-rejected", "wish-asynchronous-tools"
)
def test_plain_and_async_tools_work_in_every_mode(ask: Ask) -> None:
    """Both kinds of functions serve both kinds of calls."""
    calls = [call("add", '{"a": 1, "b": 2}'), call("double", '{"n": 21}')]
    model = ScriptedModel(calls, "done")
    ask(client_of(model, add, double).prompt("x"))

    assert results(model.prompts[1]) == ["3", "42"]


@pytest.mark.feature(
    "answer-run",
    "lc4j-tool-error-log",
    "lc4j-tool-execution-request-result",
    "lc4j-tool-result-tool-executions",
)
def test_executions_have_every_call(ask: Ask) -> None:
    """Each execution has the arguments, the result, the error and the duration."""
    model = ScriptedModel([call("add", '{"a": 1, "b": 2}'), call("nobody")], "done")
    ok, failed = ask(client_of(model, add).prompt("x")).executions

    assert (ok.tool_call.name, ok.response.data, ok.is_error, ok.error) == ("add", "3", False, None)
    assert failed.is_error
    assert type(failed.error).__name__ == "UnknownToolError"
    assert ok.seconds > 0


@pytest.mark.feature(
    "stream-usage-bearing-chunks",
    "usage-prompt-completion-total-tokens",
    "usage-cache-tokens-summed-unknown",
    "lc4j-tool-result-content-summed-usage",
)
def test_usage_is_summed_over_the_rounds(ask: Ask) -> None:
    """The usage of a turn is the sum of all rounds; other metadata is that of the last one."""

    def answer(text: str | None, usage: Usage, *calls: ToolCall) -> ChatResponse:
        from chatclient.chat.response import ChatResponseMetadata

        metadata = ChatResponseMetadata("id", "m", usage)
        reason: Any = "tool_call" if calls else "stop"
        return ChatResponse((Generation(AssistantMessage(text, calls), reason),), metadata)

    first = answer(None, Usage(10, 20, 100, 5), call("add", '{"a": 1, "b": 2}'))
    model = ScriptedModel(first, answer("done", Usage(1, 2, 200, 0)))
    usage = ask(client_of(model, add).prompt("x")).response.chat_response.usage

    assert (usage.input_tokens, usage.output_tokens, usage.total_tokens) == (11, 22, 33)
    assert (usage.cache_read_tokens, usage.cache_write_tokens) == (300, 5)


@pytest.mark.feature(
    "answer-typed-stream-events",
    "stream-detection-aggregated-response",
    "stream-chunks-tool-calls-dropped",
    "lc4j-partial-tool-call-complete",
    "lc4j-tool-result-intermediate-responses",
    "lc4j-tool-partial-tool-calls",
    "lc4j-tool-before-tool-execution-executed",
)
def test_the_events_of_a_tool_round(ask: Ask) -> None:
    """A stream has events for the call, its result and the end of each round."""
    if not ask.streaming:
        pytest.skip("a call has no events")
    model = ScriptedModel(["Let me see.", call("add", '{"a": 1, "b": 2}')], "3", chunks=20)
    events = ask(client_of(model, add).prompt("x")).events

    assert [type(event) for event in events] == [
        TextDelta,
        ToolCallStarted,
        ToolCallDelta,
        RoundEnded,
        ToolRunStarted,
        ToolCallFinished,
        TextDelta,
        RoundEnded,
        Done,
    ]
    assert events[1] == ToolCallStarted("call_add", "add")
    assert events[4] == ToolRunStarted(events[5].tool_call)
    assert (events[5].response.data, events[5].value, events[5].error) == ("3", 3, None)
    assert events[5].attempt == 1
    assert events[6].text == "\n\n3"
    done = events[-1]
    assert [each.value for each in done.executions] == [3]
    assert (len(done.trail.rounds), done.documents) == (2, ())


@pytest.mark.feature("manager-order-responses", "lc4j-results-keyed-request-value")
def test_parallel_calls_are_answered_in_their_order(ask: Ask) -> None:
    """Results are in the order of the calls, however long each tool takes."""

    @tool
    async def wait(seconds: float) -> float:
        await asyncio.sleep(seconds)
        return seconds

    calls = [call("wait", f'{{"seconds": {s}}}', id=f"c{s}") for s in (0.03, 0.01, 0.02)]
    model = ScriptedModel(calls, "done")
    ask(client_of(model, wait).prompt("x"))

    assert results(model.prompts[1]) == ["0.03", "0.01", "0.02"]
    assert_paired(model.prompts[1].messages)


def overlap(manager: dict[str, Any], mode: Ask, *, goal: int = 1, **options: Any) -> int:
    """Return how many of ten calls of a tool ran in parallel; they wait for *goal* of them."""
    running = peak = 0
    lock = threading.Lock()

    @tool(**options)
    def busy() -> None:
        nonlocal running, peak
        with lock:
            running += 1
            peak = max(peak, running)
        end = time.monotonic() + 30
        while peak < goal and time.monotonic() < end:
            time.sleep(0.001)
        time.sleep(0.01)
        with lock:
            running -= 1

    model = ScriptedModel([call("busy", id=f"c{n}") for n in range(10)], "done")
    mode(client_of(model, busy, **manager).prompt("x"))
    assert results(model.prompts[1]) == ["Done"] * 10
    return peak


@pytest.mark.feature(
    "manager-calls-run-one-after", "lc4j-results-keyed-request-value", "lc4j-tool-concurrency-off"
)
def test_tools_run_side_by_side_up_to_the_limit(ask: Ask) -> None:
    """Tools run in parallel on a loop, and one by one in blocking requests, up to the limit."""
    assert overlap({}, ask, goal=1 if ask.blocking else 8) == (1 if ask.blocking else 8)
    assert overlap({"max_concurrency": 2, "blocking_concurrency": 2}, ask, goal=2) == 2


def test_sequential_tools_run_in_order(ask: Ask) -> None:
    """With a limit of one, calls run in order, with a concurrency group or without."""
    log: list[int] = []

    @tool
    def free(n: int) -> None:
        log.append(n)

    @tool(concurrency_group="db")
    def grouped(n: int) -> None:
        log.append(n)

    names = ["grouped", "free", "grouped", "free"]
    calls = [call(name, f'{{"n": {n}}}', id=f"c{n}") for n, name in enumerate(names)]
    model = ScriptedModel(calls, "done")
    ask(client_of(model, free, grouped, max_concurrency=1).prompt("x"))

    assert log == [0, 1, 2, 3]


@pytest.mark.feature(
    "tool-tool", "manager-keeping-tools-apart", "lc4j-tool-per-tool-sequential-flag"
)
@pytest.mark.parametrize(
    "option", [{"sequential": True}, {"concurrency_group": "db"}, {"exclusive": True}]
)
def test_a_tool_can_refuse_company(ask: Ask, option: dict[str, Any]) -> None:
    """Sequential, grouped and exclusive tools never run in parallel with themselves."""
    assert overlap({"blocking_concurrency": 6}, ask, **option) == 1


@pytest.mark.feature("manager-keeping-tools-apart", "lc4j-tool-per-tool-sequential-flag")
def test_an_exclusive_tool_runs_alone(ask: Ask) -> None:
    """Calls before an exclusive one end first, those after it wait."""
    log: list[str] = []

    @tool
    def normal(n: int) -> None:
        log.append(f"start {n}")
        time.sleep(0.01)
        log.append(f"end {n}")

    @tool(exclusive=True)
    def alone() -> None:
        log.append("alone")

    calls = [call("normal", f'{{"n": {n}}}', id=f"n{n}") for n in range(4)]
    model = ScriptedModel([*calls[:2], call("alone"), *calls[2:]], "done")
    ask(client_of(model, normal, alone, blocking_concurrency=4).prompt("x"))

    before, after = log[: log.index("alone")], log[log.index("alone") + 1 :]
    assert sorted(before) == ["end 0", "end 1", "start 0", "start 1"]
    assert sorted(after) == ["end 2", "end 3", "start 2", "start 3"]


# --- what goes wrong ---


def told(ask: Ask, model_call: ToolCall, *tools: Any) -> str:
    """Return the error result of a call, having checked that the turn continues."""
    model = ScriptedModel(model_call, "recovered")
    result = ask(client_of(model, *tools).prompt("x"))
    assert result.text == "recovered"
    assert result.executions[0].is_error
    assert_paired(model.prompts[1].messages)
    return results(model.prompts[1])[0]


@pytest.mark.feature("manager-unknown-tool-aborts-turn", "lc4j-tool-unknown-tool-throws")
def test_an_unknown_tool_is_reported_with_the_nearest_names(ask: Ask) -> None:
    """The error result has the names of similar tools."""
    assert told(ask, call("ad"), add) == "There is no tool 'ad'; did you mean 'add'?"
    assert "available: add" in told(ask, call("zzz"), add)
    assert "no tools are available" in told(ask, call("zzz"))


@pytest.mark.feature("manager-unknown-tool-aborts-turn")
def test_a_namespace_before_a_name_is_no_part_of_it(ask: Ask) -> None:
    """Some models write `functions.` before the name, as they were trained."""
    model = ScriptedModel(["Hm.", call("functions.add", '{"a": 1, "b": 2}')], "3")
    result = ask(client_of(model, add, limits=ToolLimits(per_tool={"add": 1})).prompt("x"))

    assert [each.tool_call.name for each in result.executions] == ["add"]
    asked = model.prompts[1].messages[-2]
    assert isinstance(asked, AssistantMessage)
    assert (asked.text, [each.name for each in asked.tool_calls]) == ("Hm.", ["add"])
    assert results(model.prompts[1]) == ["3"]
    assert told(ask, call("functions.ad"), add).startswith("There is no tool 'functions.ad'")


@pytest.mark.parametrize(
    "name",
    [
        *("functions/add", "functions:add", "default_api:add", "default_api.add", "tool.add"),
        *("add()", "add<|channel|>commentary", "functions.add<|constrain|>json", " add\n"),
    ],
)
def test_decorated_name(ask: Ask, name: str) -> None:
    """Models and the parsers of servers add namespaces, tokens and parentheses."""
    model = ScriptedModel(call(name, {"a": 1, "b": 2}, id="1"), "3")

    [execution] = ask(client_of(model, add).prompt("x")).executions

    assert (execution.tool_call.name, execution.value) == ("add", 3)


@pytest.mark.parametrize("name", ["address", "my.add", "add(1)", "add/delete", "<|add|>"])
def test_other_name_is_not_guessed(ask: Ask, name: str) -> None:
    model = ScriptedModel(call(name, {"a": 1, "b": 2}, id="1"), "3")

    [execution] = ask(client_of(model, add).prompt("x")).executions

    assert execution.is_error


def test_approval_uses_the_name_of_the_tool(ask: Ask) -> None:
    """The approval function receives the tool's name without the namespace that the model wrote."""
    asked: list[str] = []

    def decide(invocation: ToolInvocation) -> bool:
        asked.append(invocation.tool_call.name)
        return False

    model = ScriptedModel(call("functions.add", '{"a": 1, "b": 2}'), "no")
    ask(client_of(model, add, interceptors=[ToolApproval(ask=decide)]).prompt("x"))
    assert asked == ["add"]


@pytest.mark.feature(
    "function-unknown-keys-ignored",
    "function-missing-argument-becomes-null",
    "lc4j-tool-parameter-required",
    "lc4j-tool-argument-error-rethrown",
)
def test_wrong_arguments_are_reported_in_full(ask: Ask) -> None:
    """The error result names each invalid argument and the reason."""
    text = told(ask, call("add", '{"a": "one", "c": 3}'), add)

    assert "a: should be a valid integer" in text
    assert "b: missing, but required" in text
    assert "c: unknown; known are a, b" in text


@pytest.mark.feature("function-unparsable-json-told-model", "lc4j-tool-argument-error-rethrown")
def test_malformed_arguments_are_reported(ask: Ask) -> None:
    """Text that cannot be repaired to JSON is an error result."""
    assert "not valid JSON" in told(ask, call("add", "a is one, b is two"), add)


@pytest.mark.feature(
    "failure-message-exception-result",
    "failure-blank-message-tool-exception",
    "lc4j-tool-exception-told",
    "lc4j-tool-blank-message-class-name",
)
def test_only_the_message_of_an_exception_is_sent(ask: Ask) -> None:
    """The model receives the message of an exception, not its cause, which may have secrets."""

    @tool
    def leaky() -> None:
        try:
            raise RuntimeError("password=hunter2")
        except RuntimeError as error:
            raise ValueError("the database is down") from error

    @tool
    def silent() -> None:
        raise KeyError

    @tool
    def outspoken() -> None:
        raise ToolError("Ask for another date.")

    assert told(ask, call("leaky"), leaky) == "the database is down"
    assert told(ask, call("silent"), silent) == "Exception occurred in tool: silent (KeyError)"

    @tool
    def wordless() -> None:
        raise ToolError

    assert told(ask, call("outspoken"), outspoken) == "Ask for another date."
    assert (
        told(ask, call("wordless"), wordless) == "Exception occurred in tool: wordless (ToolError)"
    )


@pytest.mark.feature("tool-timeouts-per-tool", "lc4j-tool-timeout")
def test_a_tool_that_takes_too_long_is_reported(ask: Ask) -> None:
    """After the timeout, the model receives an error result."""

    @tool(timeout=0.05)
    async def slow() -> None:
        await asyncio.sleep(600)

    assert told(ask, call("slow"), slow) == "The tool 'slow' did not answer in time."


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_timeout_of_a_custom_tool(mode: Mode) -> None:
    """On an event loop, what it waits for is cancelled."""

    class Slow:
        definition = ToolDefinition("slow", "", {"type": "object", "properties": {}})
        metadata = ToolMetadata(timeout=0.05)

        async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
            await asyncio.sleep(600)
            return ToolResult("too late")

    assert told(Ask(mode), call("slow"), Slow()) == "The tool 'slow' did not answer in time."


@pytest.mark.feature("function-no-generators")
def test_generators_are_tools(ask: Ask) -> None:
    """The result of a generator is the list of its items."""

    @tool
    def pages(context: ToolContext) -> Iterator[dict[str, int]]:
        yield {"page": 1}
        yield {"page": context["last"]}

    class Book:
        @tool
        async def lines(self) -> AsyncIterator[str]:
            for line in ("one", "two"):
                await asyncio.sleep(0)
                yield line

    model = ScriptedModel([call("pages"), call("lines")], "done")
    request = client_of(model, pages, Book()).prompt("x").tool_context(last=2)
    result = ask(request)

    assert results(model.prompts[1]) == ['[{"page":1},{"page":2}]', '["one","two"]']
    assert result.executions[0].value == [{"page": 1}, {"page": 2}]


@pytest.mark.feature("function-no-generators")
def test_the_body_of_a_generator_runs_as_any_tool_does(ask: Ask) -> None:
    """It runs in another thread, and within the timeout of the tool."""
    threads: list[int] = []
    slept = threading.Event()

    for seconds in longer_and_longer():

        @tool(timeout=seconds)
        def report() -> Iterator[int]:
            threads.append(threading.get_ident())
            yield 1
            slept.wait(600)

        assert told(ask, call("report"), report) == "The tool 'report' did not answer in time."
        if threads:
            break
    slept.set()
    assert threads[0] != threading.get_ident()


def test_errors_of_a_generators_body_are_the_tools(ask: Ask) -> None:
    """Errors after the first item are failures of the tool, too."""

    @tool
    def report() -> Iterator[int]:
        yield 1
        raise ToolError("the index is down")

    assert told(ask, call("report"), report) == "the index is down"


@pytest.mark.feature(
    "result-converter-called-outside-error",
    "lc4j-tool-result-serialised-outside-error",
    "lc4j-tool-lazy-result-text",
)
def test_an_unserialisable_result_is_raised(ask: Ask) -> None:
    """The error is raised to the application, because the model cannot correct it."""

    @tool
    def odd() -> object:
        return object()

    definition = ToolDefinition("odd", "Return something.", {"type": "object", "properties": {}})
    for each in (odd, DataToolCallback(definition, lambda call, context: object())):
        with pytest.raises(
            ToolResultError, match="tool 'odd' returned a value of type object, which"
        ):
            told(ask, call("odd"), each)


@pytest.mark.feature("failure-checked-exceptions-error-thrown")
@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError, SystemExit])
def test_base_exceptions_are_raised(error: type[BaseException]) -> None:
    """`BaseException` such as an interrupt is raised, and not sent to the model."""

    @tool
    def ends() -> None:
        raise error

    if error is MemoryError:
        pytest.skip("an Exception in Python; see the failure policies")
    model = ScriptedModel(call("ends"), "never")
    with pytest.raises(error):
        client_of(model, ends).prompt("x").call().content()

    assert len(model.prompts) == 1


@pytest.mark.feature(
    "loop-no-cancellation", "lc4j-streaming-handle-cancel", "wish-cancelling-must-stop-tool"
)
def test_cancelling_the_turn_cancels_its_tools() -> None:
    """After a cancellation within a round, no tool and no task is left."""
    begun: list[str] = []
    ended: list[str] = []

    @tool
    async def long(name: str) -> None:
        begun.append(name)
        try:
            await asyncio.sleep(600)
        finally:
            ended.append(name)

    calls = [call("long", f'{{"name": "{n}"}}', id=n) for n in "ab"]
    client = client_of(ScriptedModel(calls, "never"), long)

    async def main() -> int:
        async def ask() -> None:
            await client.prompt("x").acall()

        task = asyncio.create_task(ask())
        assert await asettled(lambda: len(begun) == 2)
        task.cancel()
        await asyncio.wait([task])
        return len(asyncio.all_tasks())

    assert asyncio.run(main()) == 1
    assert sorted(ended) == ["a", "b"]


def test_no_tool_begins_once_another_has_ended_the_turn(ask: Ask) -> None:
    """Waiting calls do not start, and cancelled ones are not handled as failures."""
    log: list[str] = []

    looking = threading.Event()

    @tool(concurrency_group="bank")
    async def look() -> None:
        log.append("looked")
        looking.set()
        await asyncio.sleep(600)

    @tool(concurrency_group="bank")
    def pay() -> None:
        log.append("paid")

    @tool
    def fails() -> None:
        assert looking.wait(LONG)
        raise LookupError

    async def again(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        with suppress(RuntimeError):
            return await call_next(invocation)
        return await call_next(invocation)

    model = ScriptedModel([call("look"), call("pay"), call("fails")])
    policy = ToolFailurePolicy(raise_on=(LookupError,))
    settings = {"interceptors": [again], "exception_processor": policy, "blocking_concurrency": 4}
    with pytest.raises(LookupError):
        ask(client_of(model, look, pay, fails, **settings).prompt("x"))

    assert log == ["looked"]


def test_no_agent_is_called_after_a_tool_has_ended_the_turn(ask: Ask) -> None:
    """Neither an agent nor another tool without a function starts."""
    looking, watching, heard = threading.Event(), threading.Event(), threading.Event()

    @tool(concurrency_group="bank")
    def look() -> None:
        looking.set()
        assert heard.wait(LONG)

    @tool
    async def watch() -> None:
        watching.set()
        try:
            await asyncio.sleep(600)
        finally:
            heard.set()

    @tool
    def fails() -> None:
        assert looking.wait(LONG)
        assert watching.wait(LONG)
        raise LookupError

    inner = ScriptedModel("never")
    metadata = ToolMetadata(concurrency_group="bank")
    agent = ChatClient.create(inner).as_tool("agent", "Pays.", metadata=metadata)
    calls = [call("look"), call("watch"), call("agent", '{"request": "x"}'), call("fails")]
    model = ScriptedModel(calls)
    policy = ToolFailurePolicy(raise_on=(LookupError,))
    settings = {"exception_processor": policy, "blocking_concurrency": 4}
    with pytest.raises(LookupError):
        ask(client_of(model, look, watch, agent, fails, **settings).prompt("x"))

    assert inner.prompts == []


def test_a_turn_is_released_with_its_response(ask: Ask) -> None:
    """The tool context is released by reference counting, without a garbage collection."""

    class Secret:
        pass

    secret = Secret()
    gone = weakref.ref(secret)
    model = ScriptedModel(call("double", '{"n": 1}'), "2")
    gc.disable()
    try:
        ask(client_of(model, double).prompt("x").tool_context(secret=secret))
        model.prompts.clear()
        del secret
        assert gone() is None
    finally:
        gc.enable()


# --- results that need no answer ---


@pytest.mark.feature(
    "stream-return-direct-stream",
    "usage-kept-return-direct",
    "tool-metadata-return-direct",
    "tool-return-direct",
    "manager-tool-execution-result-return",
    "manager-build-generations-finish-reason",
    "lc4j-tool-return-behavior-immediate",
)
def test_return_direct_ends_the_turn(ask: Ask) -> None:
    """The result is the answer, also in a stream, with its metadata and usage."""
    model = ScriptedModel(call("direct"), "never")
    result = ask(client_of(model, direct).prompt("x"))
    generation = result.response.chat_response.generations[0]

    assert result.text == "straight from the tool"
    assert generation.finish_reason == "return_direct"
    assert generation.metadata == {"tool_id": "call_direct", "tool_name": "direct"}
    assert result.response.chat_response.usage.total_tokens == 15
    assert len(model.prompts) == 1


@pytest.mark.feature("manager-return-direct-all-tools", "lc4j-tool-return-behavior-immediate")
def test_return_direct_is_all_or_nothing(ask: Ask) -> None:
    """If another result must be sent to the model, all of them are sent."""
    model = ScriptedModel([call("direct"), call("add", '{"a": 1, "b": 2}')], "done")

    assert ask(client_of(model, direct, add).prompt("x")).text == "done"
    assert results(model.prompts[1]) == ["straight from the tool", "3"]


@pytest.mark.feature("manager-failed-tools-return-direct", "lc4j-tool-error-round-continues")
def test_a_failed_direct_tool_is_shown_to_the_model(ask: Ask) -> None:
    """An error result is sent to the model, not returned to the user."""

    @tool(return_direct=True)
    def broken() -> str:
        raise ValueError("try later")

    assert told(ask, call("broken"), broken) == "try later"


class Till:
    """Tools whose results may end the turn."""

    def __init__(self, *, return_direct: Any = None, **result: Any) -> None:
        self.result = ToolResult("12 euros", return_direct=return_direct, **result)

    @tool
    def total(self) -> ToolResult:
        return self.result

    @tool(return_direct=True)
    def bill(self) -> ToolResult:
        return self.result

    @tool
    def fails(self) -> str:
        raise ToolError("the till is locked")


@pytest.mark.feature("manager-result-says-so")
def test_a_result_may_end_the_turn(ask: Ask) -> None:
    """A tool may return a result that is the answer."""
    model = ScriptedModel(call("total"), "never")
    result = ask(client_of(model, Till(return_direct=True)).prompt("x"))

    assert (result.text, len(model.prompts)) == ("12 euros", 1)
    assert result.response.chat_response.finish_reason == "return_direct"


@pytest.mark.feature("manager-result-says-so")
def test_a_result_may_be_shown_to_the_model_after_all(ask: Ask) -> None:
    """A tool with `return_direct` may return a result for the model."""
    model = ScriptedModel(call("bill"), "done")
    result = ask(client_of(model, Till(return_direct=False)).prompt("x"))

    assert (result.text, results(model.prompts[1])) == ("done", ["12 euros"])


@pytest.mark.parametrize("name", ["total", "bill"])
def test_an_error_result_is_never_the_answer(ask: Ask, name: str) -> None:
    """An error result is sent to the model, although it sets `return_direct`."""
    model = ScriptedModel(call(name), "done")
    result = ask(client_of(model, Till(is_error=True, return_direct=True)).prompt("x"))

    assert (result.text, results(model.prompts[1])) == ("done", ["12 euros"])


def test_an_interceptor_may_end_the_turn(ask: Ask) -> None:
    """An interceptor may set `return_direct` in the result."""

    async def answer(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        return replace(await call_next(invocation), return_direct="if_last")

    model = ScriptedModel([call("bill"), call("add", '{"a": 1, "b": 2}')], "never")
    client = client_of(model, Till(), add, interceptors=[answer])

    assert ask(client.prompt("x")).text == "12 euros\n\n3"


def test_the_result_of_a_failure_may_end_the_turn(ask: Ask) -> None:
    """An exception processor may return a direct result."""

    def apologise(failure: ToolFailure) -> ToolResult:
        return ToolResult(f"Sorry: {failure.error}.", return_direct=True)

    model = ScriptedModel(call("fails"), "never")
    client = client_of(model, Till(), exception_processor=apologise)

    assert ask(client.prompt("x")).text == "Sorry: the till is locked."


@pytest.mark.parametrize("wrong", ["last", 1])
def test_return_direct_of_a_result_is_checked(ask: Ask, wrong: Any) -> None:
    """An invalid `return_direct` raises an error to the application."""

    @tool
    def slip() -> ToolResult:
        return ToolResult("12 euros", return_direct=wrong)

    with pytest.raises(
        ToolUsageError, match="return_direct must be True, False, 'if_last' or None"
    ):
        ask(client_of(ScriptedModel(call("slip"), "never"), slip).prompt("x"))


def test_return_direct_in_an_own_loop() -> None:
    """The result of the round reports it, as for a tool that always returns directly."""
    options = ChatOptions(tool_callbacks=tool_callbacks(Till(return_direct=True)))
    prompt = Prompt([UserMessage("x")], options)
    response = ChatResponse((Generation(AssistantMessage(tool_calls=[call("total")])),))
    result = ToolCallingManager().execute_tool_calls(prompt, response)

    assert result.return_direct
    assert [each.data for each in result.direct] == ["12 euros"]


# --- context ---


@pytest.mark.feature(
    "request-conversation-id-advisor-param",
    "tool-callback-call",
    "tool-options-never-sent-model",
    "lc4j-tool-invocation-parameters-mutable",
)
def test_the_tool_context_reaches_tools_and_not_the_model(ask: Ask) -> None:
    """The tool context is passed to tools, and is not part of the prompt or of the schema."""
    seen: list[Any] = []

    @tool
    def who(question: str, context: ToolContext) -> str:
        seen.append((context["tenant_id"], context.conversation_id, context.tool_call_id))
        return question

    model = ScriptedModel(call("who", '{"question": "?"}'), "done")
    request = client_of(model, who).prompt("x").tool_context({"tenant_id": "acme"})
    ask(request.conversation("c-1"))

    definition = offered(model)[0].definition
    assert seen == [("acme", "c-1", "call_who")]
    assert list(definition.input_schema["properties"]) == ["question"]


@pytest.mark.feature("stream-tools-run-another-thread", "lc4j-tool-single-call-caller-thread")
def test_blocking_tools_run_on_the_callers_thread(ask: Ask) -> None:
    """Thread-locals work there; on a loop, a tool does not block the loop."""
    threads: list[int] = []

    @tool
    def where() -> None:
        threads.append(threading.get_ident())

    ask(client_of(ScriptedModel(call("where"), [call("where")] * 2, "done"), where).prompt("x"))

    assert len(threads) == 3
    assert (set(threads) == {threading.get_ident()}) == ask.blocking
    assert (threading.get_ident() in threads) == ask.blocking


@pytest.mark.feature("result-made-hand", "message-tool-call", "message-tool-response")
def test_a_call_and_its_response_go_back_as_they_are(ask: Ask) -> None:
    """The call is sent back unchanged, and the response with error flag, media and metadata."""
    made = ToolCall("c1", "draw", ' {"n":\n1.0, }', {"signature": "s"})
    picture = Media("image/png", b"png")

    @tool
    def draw(n: int) -> ToolResult:
        return ToolResult("drawn", (picture,), is_error=n == 1, metadata={"cost": 3})

    model = ScriptedModel(AssistantMessage([made]), "done")
    ask(client_of(model, draw).prompt("x"))

    _, asking, told = model.prompts[1].messages
    assert isinstance(asking, AssistantMessage)
    assert isinstance(told, ToolResponseMessage)
    assert asking.tool_calls == (made,)
    (response,) = told.responses
    assert (response.id, response.name, response.data) == ("c1", "draw", "drawn")
    assert (response.is_error, response.media) == (True, (picture,))
    assert response.metadata["cost"] == 3


@pytest.mark.feature(
    "advisor-thread-locals-reactive-context", "lc4j-tool-context-propagation-tool-threads"
)
def test_tools_see_the_callers_context_variables(ask: Ask) -> None:
    """Context variables of the caller are visible in tools, plain and async."""

    @tool
    def plain() -> str:
        return VAR.get()

    @tool
    async def waits() -> str:
        return VAR.get()

    token = VAR.set("the caller")
    try:
        model = ScriptedModel([call("plain"), call("waits")], "done")
        ask(client_of(model, plain, waits, blocking_concurrency=2).prompt("x"))
    finally:
        VAR.reset(token)

    assert results(model.prompts[1]) == ["the caller", "the caller"]


@pytest.mark.feature("pattern-client-inside-tool")
def test_a_tool_may_ask_another_client(ask: Ask) -> None:
    """A request inside a tool works in every mode, plain or async."""

    @tool
    def ask_expert(question: str) -> str:
        inner = ScriptedModel(call("double", '{"n": 2}'), f"expert on {question}")
        return client_of(inner, double).prompt(question).call().content()

    @tool
    async def ask_other(question: str) -> str:
        inner = ScriptedModel(call("double", '{"n": 2}'), f"other on {question}")
        return await client_of(inner, double).prompt(question).acall().content()

    arguments = '{"question": "tea"}'
    model = ScriptedModel([call("ask_expert", arguments), call("ask_other", arguments)], "done")
    ask(client_of(model, ask_expert, ask_other).prompt("x"))

    assert results(model.prompts[1]) == ["expert on tea", "other on tea"]


# --- switching it off, and doing it oneself ---


@pytest.mark.feature(
    "request-auto-register-off-one",
    "loop-parameter-auto-register-false",
    "loop-internal-tool-execution-enabled",
    "loop-pass-through-when-nothing",
)
@pytest.mark.parametrize("own", [(), (ToolCallingAdvisor(stream_tool_call_responses=False),)])
@pytest.mark.parametrize("way", ["tool_calling", "option"])
def test_tool_calls_can_be_handed_back(
    ask: Ask, way: str, own: tuple[ToolCallingAdvisor, ...]
) -> None:
    """Without execution tools are offered and their calls come back, also with a loop of ours."""
    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'))
    request = client_of(model, add).mutate().default_advisors(*own).build().prompt("x")
    if way == "tool_calling":
        request = request.tool_calling(False)
    else:
        request = request.options(internal_tool_execution_enabled=False)
    response = ask(request).response.chat_response

    assert response.has_tool_calls()
    assert offered(model)[0].definition.name == "add"


def test_a_request_can_enable_tool_calling(ask: Ask) -> None:
    """It can if nothing else differs from the defaults of the client."""
    adds = call("add", '{"a": 1, "b": 2}')
    model = ScriptedModel(adds, "3", adds)
    client = ChatClient.builder(model).default_tools(add).tool_calling(False).build()

    assert ask(client.prompt("x").tool_calling(True)).text == "3"
    assert ask(client.prompt("x")).response.chat_response.has_tool_calls()


@pytest.mark.feature(
    "manager-execute-tool-calls",
    "manager-tool-execution-result-conversation",
    "pattern-loop-driven-hand-client",
)
def test_an_own_loop_with_the_client() -> None:
    """Tool calls handed back are run by the manager, and the history sent with the next call."""
    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'), "3")
    client, manager = client_of(model, add), ToolCallingManager()
    messages: Sequence[Message] = [UserMessage("1 + 2?")]
    while True:
        request = client.prompt().messages(messages).tool_calling(False)
        response = request.call().chat_response()
        if not response.has_tool_calls():
            break
        messages = manager.execute_tool_calls(model.prompts[-1], response).conversation_history

    assert response.text == "3"
    assert_paired(messages)


@pytest.mark.feature(
    "tool-callbacks",
    "manager-execute-tool-calls",
    "pattern-loop-driven-hand-model",
    "lc4j-manual-loop",
)
def test_an_own_loop_with_the_model() -> None:
    """The same with a model alone, asynchronously."""
    model = ScriptedModel(call("double", '{"n": 2}'), "4")
    manager = ToolCallingManager()

    async def main() -> str:
        from chatclient.tools import tool_callbacks

        prompt = Prompt("2 * 2?", ChatOptions(tool_callbacks=tuple(tool_callbacks(double))))
        response = await model.acall(prompt)
        while response.has_tool_calls():
            result = await manager.aexecute_tool_calls(prompt, response)
            prompt = Prompt(result.conversation_history, prompt.options)
            response = await model.acall(prompt)
        return response.text

    assert asyncio.run(main()) == "4"


@pytest.mark.feature("manager-no-tool-call-response")
def test_executing_a_response_without_calls_is_refused() -> None:
    """The error names the method to check for calls."""
    with pytest.raises(UsageError, match="has_tool_calls"):
        ToolCallingManager().execute_tool_calls(Prompt("x"), ChatResponse.of("no calls"))


def test_executing_something_else_is_refused() -> None:
    """Messages in place of a prompt, a client's response in place of the model's."""
    response = ChatResponse.of("no calls")
    messages: Any = [UserMessage("x")]
    with pytest.raises(TypeError, match=r"must be a Prompt, .*Prompt\(messages, options\)"):
        ToolCallingManager().execute_tool_calls(messages, response)
    answer: Any = ChatClientResponse(response)
    with pytest.raises(TypeError, match=r"must be a ChatResponse, .* has it as chat_response"):
        ToolCallingManager().execute_tool_calls(Prompt("x"), answer)


@pytest.mark.feature(
    "tool-callbacks",
    "tool-names-default-method",
    "tool-options-tool-calling-chat-options",
    "manager-resolve-tool-definitions",
    "lc4j-tool-specifications-object-class",
)
def test_the_manager_returns_definitions() -> None:
    """It returns the definitions of the tools in options, as they are sent to the model."""
    options = ChatOptions(tool_callbacks=tuple(tool_callbacks(add)))

    names = [d.name for d in ToolCallingManager().resolve_tool_definitions(options)]
    assert names == ["add"]
    assert ToolCallingManager().resolve_tool_definitions(ChatOptions()) == []


@pytest.mark.feature("manager-resolve-tool-definitions")
def test_the_manager_returns_definitions_of_tools_by_name() -> None:
    """Names are resolved, and each tool is returned once."""
    options = ChatOptions(tool_callbacks=tool_callbacks(add), tool_names=["double", "add"])
    manager = ToolCallingManager(resolver=StaticToolCallbackResolver(double))

    assert [d.name for d in manager.resolve_tool_definitions(options)] == ["add", "double"]
    for other in (ToolCallingManager(), ToolCallingManager(resolver=StaticToolCallbackResolver())):
        with pytest.raises(ToolDefinitionError, match="no tool 'double' is known to the manager"):
            other.resolve_tool_definitions(options)


@pytest.mark.feature("manager-resolution-fallback-enabled-off", "resolver-tool-callback-resolver")
def test_tools_that_were_not_offered(ask: Ask) -> None:
    """They run only if the manager has a resolver that knows them."""
    assert "There is no tool 'add'" in told(ask, call("add", '{"a": 1, "b": 2}'), double)

    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'), "done")
    ask(client_of(model, double, resolver=StaticToolCallbackResolver(add)).prompt("x"))
    assert results(model.prompts[1]) == ["3"]


@pytest.mark.feature(
    "client-template-builder-tool-advisor",
    "loop-tool-execution-eligibility-checker",
    "lc4j-tool-execution-requests-criterion",
)
def test_another_eligibility_checker_decides() -> None:
    """Tool calls that the checker does not accept are returned to the caller."""
    advisor = ToolCallingAdvisor(eligibility=lambda response: False)
    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'))
    client = ChatClient.builder(model).default_tools(add).default_advisors(advisor).build()

    assert client.prompt("x").call().chat_response().has_tool_calls()


# --- hooks and history ---


@pytest.mark.feature(
    "loop-builder-copy-new-subclasses",
    "loop-do-initialize-loop-stream",
    "loop-do-before-call-stream",
    "loop-do-after-call-stream",
    "loop-do-finalize-loop-stream",
    "loop-options-changed-do-initialize",
    "pattern-replacing-loop",
    "wish-one-loop-call-stream",
)
def test_the_hooks_of_the_loop(ask: Ask) -> None:
    """A subclass has hooks for the start, before and after each round, and for the end."""
    log: list[str] = []

    class Watching(ToolCallingAdvisor):
        async def initialize_loop(self, request: ChatClientRequest) -> ChatClientRequest:
            log.append("initialize")
            options = request.prompt.options.mutate(temperature=0.5)
            return request.mutate(prompt=request.prompt.with_options(options))

        async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
            log.append("before")
            return request

        async def after_call(self, response: ChatClientResponse) -> ChatClientResponse:
            log.append("after")
            return response

        async def finalize_loop(self, response: ChatClientResponse) -> ChatClientResponse:
            log.append("finalize")
            return response

    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'), "3")
    client = ChatClient.builder(model).default_tools(add).default_advisors(Watching()).build()
    ask(client.prompt("x"))

    assert log == ["initialize", "before", "after", "before", "after", "finalize"]
    assert [prompt.options.temperature for prompt in model.prompts] == [0.5, 0.5]


@pytest.mark.feature(
    "loop-tools-appear-later",
    "loop-do-before-call-stream",
    "loop-options-changed-round-used",
    "tool-options-tool-calling-chat-options",
    "lc4j-tool-dynamic-provider-asked-before",
)
def test_options_changed_in_a_round_stay(ask: Ask) -> None:
    """Tools added by a hook can be called, and are offered in the rounds after it."""

    class Adding(ToolCallingAdvisor):
        async def before_call(self, request: ChatClientRequest) -> ChatClientRequest:
            from chatclient.tools import tool_callbacks

            if request.prompt.options.tool_callbacks:
                return request
            options = request.prompt.options.mutate(tool_callbacks=tool_callbacks(add))
            return request.mutate(prompt=request.prompt.with_options(options))

    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'), "3")
    client = ChatClient.builder(model).default_advisors(Adding()).build()

    assert ask(client.prompt("x")).text == "3"
    assert results(model.prompts[1]) == ["3"]


@pytest.mark.feature("loop-tools-appear-later")
@pytest.mark.parametrize("order", [TOOL_CALLING_ORDER - 10, 0])
def test_tools_added_by_an_advisor(ask: Ask, order: int) -> None:
    """Outside of the loop for the turn, inside for a round."""

    async def adding(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        prompt = request.prompt.mutate_options(tool_callbacks=tool_callbacks(add))
        return await call_next(request.mutate(prompt=prompt))

    adding.order = order  # type: ignore[attr-defined]
    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'), "done")
    ask(ChatClient.builder(model).default_advisors(adding).build().prompt("x"))

    assert results(model.prompts[1]) == ["3"]


@pytest.mark.feature(
    "loop-tool-calling-manager",
    "loop-conversation-history-enabled",
    "loop-do-get-next-instructions",
    "loop-manager-always-gets-whole",
)
def test_a_loop_without_history(ask: Ask) -> None:
    """It sends system messages and results; a memory inside the loop adds the rest."""
    seen: list[int] = []

    class Manager(ToolCallingManager):
        async def execute(self, prompt: Prompt, *args: Any, **kwargs: Any) -> ToolExecutionResult:
            seen.append(len(prompt.messages))
            return await super().execute(prompt, *args, **kwargs)

    advisor = ToolCallingAdvisor(Manager(), conversation_history=False)
    calls = [call("double", '{"n": 1}', id=f"c{n}") for n in range(2)]
    model = ScriptedModel(*calls, "done")
    builder = ChatClient.builder(model).default_advisors(advisor).default_tools(double)
    ask(builder.build().prompt("x").system("S"))

    assert [len(prompt.messages) for prompt in model.prompts] == [2, 2, 2]
    assert model.prompts[1].messages[0] == SystemMessage("S")
    assert seen == [2, 4]


@pytest.mark.feature("advisor-memory-advisor-marker", "loop-history-off-automatically-memory")
@pytest.mark.parametrize(("order", "own_history"), [(0, False), (HIGHEST_PRECEDENCE + 200, True)])
def test_memory_inside_the_loop_switches_its_history_off(order: int, own_history: bool) -> None:
    """With a memory advisor inside, the loop sends no history."""

    class Memory:
        is_memory = True

        async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
            return await call_next(request)

    memory = Memory()
    memory.order = order  # type: ignore[attr-defined]
    model = ScriptedModel(call("add", '{"a": 1, "b": 2}'), "3")
    client = ChatClient.builder(model).default_tools(add).default_advisors(memory).build()
    client.prompt("x").call().content()

    assert (len(model.prompts[1].messages) == 3) is own_history


@pytest.mark.feature("loop-advisor-order-strictly-between")
def test_the_order_of_the_loop_lies_in_the_chain() -> None:
    """The outermost order is refused for a tool loop."""
    with pytest.raises(UsageError, match="order"):
        ToolCallingAdvisor(order=HIGHEST_PRECEDENCE)


@pytest.mark.feature("answer-content", "loop-null-response", "stream-without-chunks")
def test_a_response_may_have_no_generations(ask: Ask) -> None:
    """A response without generations passes through the loop."""
    answers: list[Answer] = [ChatResponse()]
    result = ask(client_of(ScriptedModel(*answers), add).prompt("x"))

    assert (result.text, result.response.chat_response.result) == ("", None)


@pytest.mark.parametrize("reason", ["length", "content_filter", "error"])
def test_a_call_that_was_cut_off_is_never_completed(ask: Ask, reason: Any) -> None:
    """Arguments truncated by a limit or filter are not repaired; the model gets an error result."""
    cut = AssistantMessage(tool_calls=[call("add", '{"a": 1, "b": 2')])
    model = ScriptedModel(ChatResponse((Generation(cut, reason),)), "recovered")
    ask(client_of(model, add).prompt("x"))

    assert "cut off" in results(model.prompts[1])[0]


@pytest.mark.parametrize("arguments", ["", " ", "{}", "null"])
def test_truncated_calls_are_not_run(ask: Ask, arguments: str) -> None:
    """A call without arguments would run with defaults; tools without parameters run."""
    swept: list[str] = []

    @tool
    def sweep(folder: str = "/") -> None:
        swept.append(folder)

    @tool
    def ring() -> None:
        swept.append("rung")

    def cut(name: str) -> ChatResponse:
        message = AssistantMessage(tool_calls=[call(name, arguments)])
        return ChatResponse((Generation(message, "length"),))

    model = ScriptedModel(cut("sweep"), cut("ring"), "recovered")
    ask(client_of(model, sweep, ring).prompt("x"))

    assert "cut off" in results(model.prompts[1])[0]
    assert swept == ["rung"]


def test_the_strict_form_of_a_schema_is_made_on_request(ask: Ask) -> None:
    """A strict tool shows every argument as required, and binds what that form allows."""

    @tool(strict=True)
    def greet(name: str, greeting: str = "Hello") -> str:
        return f"{greeting} {name}"

    model = ScriptedModel(call("greet", '{"name": "Jo", "greeting": null}'), "done")
    ask(client_of(model, greet).prompt("x"))

    schema = offered(model)[0].definition.input_schema
    assert list(schema["required"]) == ["name", "greeting"]
    assert results(model.prompts[1]) == ["Hello Jo"]
