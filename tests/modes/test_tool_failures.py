"""Failures of tool calls: what is sent to the model, what is raised, and how often."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatOptions,
    ChatResponse,
    Prompt,
    ToolContext,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.chat.messages import Media, ToolCall
from chatclient.chat.response import Generation
from chatclient.errors import (
    ToolArgumentError,
    ToolDeniedError,
    ToolError,
    ToolExecutionError,
    ToolResultError,
    ToolTimeoutError,
    ToolUsageError,
    UnknownToolError,
)
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import (
    NextTool,
    ToolCallingManager,
    ToolFailure,
    ToolFailurePolicy,
    ToolInvocation,
    ToolResult,
    tool_callbacks,
)
from chatclient.tools.execution.failure import FailureKind
from tests.modes.test_tool_calling import assert_paired, client_of, results

SECRET = "postgres://admin:hunter2@db"


class DatabaseError(RuntimeError):
    """An error of an application's tool."""


class ConnectionLostError(DatabaseError):
    """A subclass of it."""


@tool
def add(a: int, b: int) -> int:
    """Add two numbers."""
    return a + b


@tool
def query(sql: str = "") -> str:
    """Ask the database."""
    raise ConnectionLostError("no connection") from OSError(SECRET)


@tool(timeout=0.02)
async def slow() -> None:
    """Take longer than the timeout."""
    await asyncio.sleep(5)


@tool
def forbidden() -> None:
    """Fail, because the guard denies each call."""
    raise AssertionError("it was run")


async def guard(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    """Deny calls of the tool `forbidden`."""
    if invocation.definition.name == "forbidden":
        raise ToolDeniedError("Not on a Sunday.", tool_name="forbidden")
    return await call_next(invocation)


FAILURES: dict[FailureKind, tuple[ToolCall, type[ToolExecutionError], str]] = {
    "unknown_tool": (call("ad"), UnknownToolError, "did you mean 'add'"),
    "malformed_arguments": (call("add", "a is 1"), ToolArgumentError, "not valid JSON"),
    "invalid_arguments": (call("add", '{"a": 1}'), ToolArgumentError, "b: missing"),
    "exception": (call("query"), ToolExecutionError, "no connection"),
    "timeout": (call("slow"), ToolTimeoutError, "did not answer in time"),
    "denied": (call("forbidden"), ToolDeniedError, "Not on a Sunday."),
}

each_kind = pytest.mark.parametrize("kind", list(FAILURES))


def failing(model: ScriptedModel, policy: Callable[[ToolFailure], str | ToolResult]) -> Any:
    """Return a request in which every kind of failure is possible."""
    tools = (add, query, slow, forbidden)
    settings = {"exception_processor": policy, "interceptors": [guard]}
    return client_of(model, *tools, **settings).prompt("x")


@pytest.mark.feature("function-exceptions-method")
def test_what_a_tool_waits_for_may_be_cancelled(ask: Ask) -> None:
    """A cancelled task that a tool awaits is a failure of the tool, and the request continues."""

    @tool
    async def fetch() -> None:
        shared = asyncio.ensure_future(asyncio.sleep(5))
        await asyncio.sleep(0)
        shared.cancel()
        await shared

    async def look_on(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        try:
            return await call_next(invocation)
        except Exception as error:
            seen.append(error)
            raise

    seen: list[Exception] = []
    model = ScriptedModel(call("fetch"), "done")
    result = ask(client_of(model, fetch, interceptors=[look_on]).prompt("x"))

    assert results(model.prompts[1]) == ["something that the tool waited for was cancelled"]
    assert isinstance(seen[0].__cause__, asyncio.CancelledError)
    assert result.executions[0].response.metadata["failure"] == "exception"


@pytest.mark.feature("function-exceptions-method")
@pytest.mark.parametrize(
    ("error", "told"),
    [
        (ToolError("Closed on Mondays."), "Closed on Mondays."),
        (TimeoutError(), "The tool 'fetch' did not answer in time."),
        (ExceptionGroup("inner", [OSError("no route")]), "no route"),
    ],
    ids=["for the model", "timeout", "nested"],
)
def test_an_error_in_a_task_group_is_itself(ask: Ask, error: Exception, told: str) -> None:
    """An exception group of one error is reported as that error."""

    @tool
    async def fetch() -> None:
        async def part() -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    model = ScriptedModel(call("fetch"), "done")
    ask(client_of(model, fetch).prompt("x"))

    assert results(model.prompts[1]) == [told]


@pytest.mark.feature("function-exceptions-method")
def test_all_errors_in_a_task_group_are_reported(ask: Ask) -> None:
    """The result has the messages of all errors, not that of the group."""

    @tool
    async def fetch() -> None:
        async def part(error: Exception) -> None:
            raise error

        async with asyncio.TaskGroup() as group:
            group.create_task(part(OSError("no route")))
            group.create_task(part(KeyError("euro")))
            group.create_task(part(EOFError()))

    model = ScriptedModel(call("fetch"), "done")
    ask(client_of(model, fetch).prompt("x"))

    assert results(model.prompts[1]) == ["no route\nKeyError: 'euro'\nEOFError()"]


def test_usage_errors_in_a_task_group(ask: Ask) -> None:
    """They are raised to the application, such as a missing value of the tool context."""

    @tool
    async def fetch(context: ToolContext) -> None:
        async def part() -> None:
            context.require("tenant")

        async with asyncio.TaskGroup() as group:
            group.create_task(part())

    with pytest.raises(ToolUsageError, match="tenant"):
        ask(client_of(ScriptedModel(call("fetch")), fetch).prompt("x"))


@pytest.mark.feature(
    "function-exceptions-method",
    "function-malformed-input-functions-aborts",
    "failure-default-processor",
)
@each_kind
def test_every_failure_is_an_error_result_by_default(ask: Ask, kind: FailureKind) -> None:
    """The model receives an error result for each kind of failure, and the turn continues."""
    made, _, words = FAILURES[kind]
    model = ScriptedModel(made, "recovered")
    result = ask(failing(model, ToolFailurePolicy()))

    assert result.text == "recovered"
    assert words in results(model.prompts[1])[0]
    assert result.executions[0].is_error
    assert_paired(model.prompts[1].messages)


@pytest.mark.feature(
    "failure-per-kind-failure",
    "lc4j-tool-hallucinated-tool-name-strategy",
    "lc4j-tool-arguments-error-handler",
)
@each_kind
def test_a_kind_of_failure_can_be_raised(ask: Ask, kind: FailureKind) -> None:
    """A failure of that kind ends the turn with its error; no other kind does."""
    made, error, words = FAILURES[kind]
    model = ScriptedModel(made, "never")
    with pytest.raises(error, match=words) as caught:
        ask(failing(model, ToolFailurePolicy(reactions={kind: "raise"})))

    assert caught.value.tool_name == made.name
    others = {other: "raise" for other in FAILURES if other != kind}
    policy = ToolFailurePolicy(reactions=others)  # type: ignore[arg-type]
    assert ask(failing(ScriptedModel(made, "recovered"), policy)).text == "recovered"


@pytest.mark.feature("failure-per-tool")
@each_kind
def test_a_reaction_for_a_tool_has_precedence(ask: Ask, kind: FailureKind) -> None:
    """The reaction for a tool overrides the reaction for the kind of failure."""
    made, error, _ = FAILURES[kind]
    told = ToolFailurePolicy(reactions={kind: "raise"}, tools={made.name: "tell"})
    raised = ToolFailurePolicy(reactions={kind: "tell"}, tools={made.name: "raise"})

    assert ask(failing(ScriptedModel(made, "recovered"), told)).text == "recovered"
    with pytest.raises(error):
        ask(failing(ScriptedModel(made, "never"), raised))


@pytest.mark.feature("loop-other-exceptions-leave-loop", "failure-always-throw")
@each_kind
def test_every_failure_can_be_raised(ask: Ask, kind: FailureKind) -> None:
    """`always_raise` overrides all other reactions."""
    made, error, _ = FAILURES[kind]
    policy = ToolFailurePolicy(always_raise=True, tools={made.name: "tell"})

    with pytest.raises(error):
        ask(failing(ScriptedModel(made, "never"), policy))


@pytest.mark.feature("failure-tool-execution-exception")
def test_a_raised_failure_has_its_cause(ask: Ask) -> None:
    """The tool's own error, with its chain of causes."""
    policy = ToolFailurePolicy(reactions={"exception": "raise"})
    with pytest.raises(ToolExecutionError) as caught:
        ask(failing(ScriptedModel(call("query"), "never"), policy))

    cause = caught.value.__cause__
    assert isinstance(cause, ConnectionLostError)
    assert str(cause.__cause__) == SECRET


@pytest.mark.feature("failure-rethrow-exceptions-cause-itself", "wish-per-exception-visibility")
def test_named_exceptions_are_raised_as_they_are(ask: Ask) -> None:
    """`raise_on` raises these exceptions unchanged; others are error results."""
    with pytest.raises(ConnectionLostError, match="no connection"):
        ask(failing(ScriptedModel(call("query"), "never"), ToolFailurePolicy((DatabaseError,))))

    policy = ToolFailurePolicy(raise_on=(LookupError,))
    assert ask(failing(ScriptedModel(call("query"), "recovered"), policy)).text == "recovered"


@pytest.mark.feature(
    "failure-message-exception-result",
    "lc4j-tool-execution-error-handler",
    "lc4j-tool-error-log",
    "wish-per-exception-visibility",
)
@pytest.mark.parametrize(
    ("exception_text", "told"),
    [
        ("message", "no connection"),
        ("class", "Exception occurred in tool: query (ConnectionLostError)"),
        ("nothing", "The tool 'query' failed."),
    ],
)
def test_how_much_of_an_exception_the_model_sees(ask: Ask, exception_text: Any, told: str) -> None:
    """Its message, its class, or nothing; never the cause."""
    model = ScriptedModel(call("query"), "recovered")
    result = ask(failing(model, ToolFailurePolicy(exception_text=exception_text)))

    assert results(model.prompts[1]) == [told]
    assert SECRET not in str([p.messages for p in model.prompts]) + str(result.events)
    assert isinstance(result.executions[0].error, ConnectionLostError)


@pytest.mark.feature("function-tool-own-exception-type", "wish-per-exception-visibility")
@pytest.mark.parametrize("exception_text", ["message", "class", "nothing"])
def test_a_tool_error_is_always_sent_to_the_model(ask: Ask, exception_text: Any) -> None:
    """The text of a `ToolError` is sent with each value of `exception_text`."""

    @tool
    def shop() -> None:
        raise ToolError("Closed until Monday.")

    model = ScriptedModel(call("shop"), "recovered")
    policy = ToolFailurePolicy(exception_text=exception_text)
    ask(client_of(model, shop, exception_processor=policy).prompt("x"))

    assert results(model.prompts[1]) == ["Closed until Monday."]


def test_a_tool_error_may_show_more_than_a_text(ask: Ask) -> None:
    """Its media are sent to the model, and the rest is available to the application."""
    picture = Media("image/png", b"\x89PNG")

    @tool
    def press() -> None:
        raise ToolError("No such button.", media=[picture], metadata={"page": 3}, value=[3])

    model = ScriptedModel(call("press"), "recovered")
    [execution] = ask(client_of(model, press).prompt("x")).executions

    assert (execution.response.data, execution.is_error) == ("No such button.", True)
    assert execution.response.media == (picture,)
    assert execution.metadata == {"page": 3, "failure": "exception"}
    assert execution.value == [3]


def test_tool_errors_without_super_init(ask: Ask) -> None:
    """Their text is sent to the model as well."""

    class SoldOutError(ToolError):
        def __init__(self, item: str) -> None:
            self.item = item

        def __str__(self) -> str:
            return f"no {self.item} left"

    @tool
    def order() -> None:
        raise SoldOutError("tea")

    model = ScriptedModel(call("order"), "recovered")
    ask(client_of(model, order).prompt("x"))

    assert results(model.prompts[1]) == ["no tea left"]


@pytest.mark.feature("failure-endless-mistakes", "wish-retry-budget-mistakes")
def test_a_tool_has_a_budget_of_failures(ask: Ask) -> None:
    """After `max_failures` failures of one kind in a turn, a tool's error is raised."""
    policy = ToolFailurePolicy(max_failures=2)
    calls = [call("query", f'{{"sql": "{n}"}}') for n in range(3)]
    model = ScriptedModel(*calls, "never")
    with pytest.raises(ToolExecutionError, match="no connection"):
        ask(failing(model, policy))
    assert len(model.prompts) == 3

    other_ways = [calls[0], call("query", "?"), calls[1], call("query", '{"no": 1}'), call("ad")]
    assert ask(failing(ScriptedModel(*other_ways, "recovered"), policy)).text == "recovered"


@pytest.mark.feature("failure-endless-mistakes")
def test_calls_side_by_side_that_fail_are_one_failure(ask: Ask) -> None:
    """Failed calls of one message count once, because the model has not seen their results."""
    calls = [call("query", f'{{"sql": "{n}"}}', id=str(n)) for n in range(6)]
    policy = ToolFailurePolicy(max_failures=1)

    assert ask(failing(ScriptedModel(calls[:3], "recovered"), policy)).text == "recovered"
    model = ScriptedModel(calls[:3], calls[3:], "never")
    with pytest.raises(ToolExecutionError, match="no connection"):
        ask(failing(model, policy))
    assert len(model.prompts) == 2


@pytest.mark.feature("failure-endless-mistakes")
def test_the_budget_of_failures_is_that_of_one_turn(ask: Ask) -> None:
    """The count starts again with the next request."""
    model = ScriptedModel(call("query"), "one", call("query"), "two")
    request = failing(model, ToolFailurePolicy(max_failures=1))

    assert [ask(request).text, ask(request).text] == ["one", "two"]


def test_failure_limits_in_an_own_loop() -> None:
    """The history shows how often a tool has failed in the turn."""
    options = ChatOptions(tool_callbacks=tool_callbacks(query))
    manager = ToolCallingManager(exception_processor=ToolFailurePolicy(max_failures=1))
    asked = AssistantMessage(tool_calls=[call("query", id="1"), call("query", id="2")])
    response = ChatResponse((Generation(asked),))
    first = manager.execute_tool_calls(Prompt([UserMessage("x")], options), response)
    with pytest.raises(ToolExecutionError, match="no connection"):
        manager.execute_tool_calls(Prompt(first.conversation_history, options), response)

    again = (*first.conversation_history, AssistantMessage("sorry"), UserMessage("x"))
    assert manager.execute_tool_calls(Prompt(again, options), response).breach is None


@pytest.mark.feature("failure-checked-exceptions-error-thrown")
def test_running_out_of_memory_is_raised(ask: Ask) -> None:
    """`MemoryError` is raised with each policy."""

    @tool
    def hungry() -> None:
        raise MemoryError

    model = ScriptedModel(call("hungry"), "never")
    with pytest.raises(MemoryError):
        ask(client_of(model, hungry).prompt("x"))
    assert len(model.prompts) == 1


@pytest.mark.feature("failure-checked-exceptions-error-thrown")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit])
def test_an_interrupt_is_raised(error: type[BaseException]) -> None:
    """Ctrl-C in a tool ends the request, also in the middle of a batch and in a stream."""
    log: list[str] = []

    @tool
    def ends() -> None:
        raise error

    @tool
    def after() -> None:
        log.append("after")

    model = ScriptedModel([call("ends"), call("after")], "never")
    with pytest.raises(error):
        list(client_of(model, ends, after).prompt("x").stream().events())

    assert (len(model.prompts), log) == (1, [])


@pytest.mark.feature(
    "failure-tool-execution-exception-processor",
    "lc4j-tool-hallucinated-tool-name-strategy",
    "lc4j-tool-arguments-error-handler",
    "lc4j-tool-execution-error-handler",
)
def test_a_custom_processor_decides(ask: Ask) -> None:
    """A function receives the kind, call, error and count of a failure, and returns the text."""
    seen: list[tuple[str, str, str, int]] = []

    def process(failure: ToolFailure) -> str:
        seen.append(
            (failure.kind, failure.tool_call.name, type(failure.error).__name__, failure.count)
        )
        return f"Please apologise ({failure.count})."

    model = ScriptedModel(call("query"), [call("query", '{"sql": "x"}'), call("ad")], "done")
    result = ask(failing(model, process))

    assert results(model.prompts[1]) == ["Please apologise (1)."]
    assert results(model.prompts[2]) == ["Please apologise (2).", "Please apologise (1)."]
    assert all(execution.is_error for execution in result.executions)
    assert sorted(seen) == [
        ("exception", "query", "ConnectionLostError", 1),
        ("exception", "query", "ConnectionLostError", 2),
        ("unknown_tool", "ad", "UnknownToolError", 1),
    ]


@pytest.mark.feature("failure-tool-execution-exception-processor")
def test_a_processor_may_answer_in_the_tools_place(ask: Ask) -> None:
    """A `ToolResult` of the processor is used unchanged, also if it is no error."""
    model = ScriptedModel(call("query"), "done")
    result = ask(failing(model, lambda failure: ToolResult("from yesterday's cache")))

    assert results(model.prompts[1]) == ["from yesterday's cache"]
    assert not result.executions[0].is_error
    assert isinstance(result.executions[0].error, ConnectionLostError)


@pytest.mark.feature(
    "failure-tool-execution-exception-processor", "lc4j-tool-handler-throws-aborts"
)
def test_what_a_processor_raises_ends_the_turn(ask: Ask) -> None:
    """An error in the processor is raised to the caller."""

    def process(failure: ToolFailure) -> str:
        raise LookupError("escalated") from failure.error

    with pytest.raises(LookupError, match="escalated"):
        ask(failing(ScriptedModel(call("query"), "never"), process))


@pytest.mark.feature("failure-results-batch-lost-when", "wish-history-valid-whatever-happens")
def test_failures_and_successes_of_a_batch_stand_in_order(ask: Ask) -> None:
    """One failed call changes nothing for the others, and only it is marked."""
    calls = [call("add", '{"a": 1, "b": 2}', id="a"), *(made for made, *_ in FAILURES.values())]
    calls = [ToolCall(f"c{at}", made.name, made.arguments) for at, made in enumerate(calls)]
    model = ScriptedModel([*calls, call("add", '{"a": 3, "b": 4}')], "done")
    executions = ask(failing(model, ToolFailurePolicy())).executions

    assert [execution.is_error for execution in executions] == [False, *[True] * 6, False]
    assert (executions[0].response.data, executions[-1].response.data) == ("3", "7")
    assert_paired(model.prompts[1].messages)


@pytest.mark.feature("failure-results-batch-lost-when")
def test_a_raised_failure_leaves_no_partial_round(ask: Ask) -> None:
    """If one of several calls raises, the model gets no results of the others."""
    calls = [
        call("add", '{"a": 1, "b": 2}'),
        call("query"),
        call("add", '{"a": 1, "b": 1}', id="z"),
    ]
    model = ScriptedModel(calls, "never")
    with pytest.raises(ToolExecutionError):
        ask(failing(model, ToolFailurePolicy(always_raise=True)))

    assert len(model.prompts) == 1


@pytest.mark.feature("message-tool-call", "lc4j-tool-json-repair")
@pytest.mark.parametrize(
    "arguments",
    [
        '{"a": 1, "b": 2,}',
        '{"a": 1, "b": "2"',
        '```json\n{"a": 1, "b": 2}\n```',
        '{"a": "1", "b": "2"}',
        '"{\\"a\\": 1, \\"b\\": 2}"',
    ],
)
def test_unambiguous_json_is_repaired(ask: Ask, arguments: str) -> None:
    """Trailing commas, missing braces, code fences and numbers as strings are repaired."""
    model = ScriptedModel(call("add", arguments), "It is 3.")
    result = ask(failing(model, ToolFailurePolicy(always_raise=True)))

    assert results(model.prompts[1]) == ["3"]
    assert result.executions[0].tool_call.arguments == arguments


@pytest.mark.parametrize("arguments", ['{"a": 1, "b": 2', '{"a": 1, "b": "2'])
def test_truncated_values_are_not_repaired(ask: Ask, arguments: str) -> None:
    """Some servers report a truncated call as complete; it is an error result."""
    model = ScriptedModel(call("add", arguments), "It is 3.")
    ask(client_of(model, add).prompt("x"))

    assert "not valid JSON" in results(model.prompts[1])[0]


def test_a_timeout_of_the_tools_own_is_one_too(ask: Ask) -> None:
    """A TimeoutError that a tool raises itself is the same kind of failure."""

    @tool
    def remote() -> None:
        raise TimeoutError("the upstream at 10.0.0.7 is slow")

    model = ScriptedModel(call("remote"), "done")
    ask(client_of(model, remote).prompt("x"))

    assert results(model.prompts[1]) == ["The tool 'remote' did not answer in time."]


@pytest.mark.feature("manager-failed-tools-return-direct", "lc4j-tool-error-round-continues")
def test_a_failure_never_ends_the_turn_as_a_direct_answer(ask: Ask) -> None:
    """If another call failed, a direct result is sent to the model as well."""

    @tool(return_direct=True)
    def direct() -> str:
        return "for the user"

    model = ScriptedModel([call("query"), call("direct")], "done")
    tools = (query, direct)

    assert ask(client_of(model, *tools).prompt("x")).text == "done"
    assert results(model.prompts[1]) == ["no connection", "for the user"]


def test_the_message_of_a_key_error_has_its_class(ask: Ask) -> None:
    """The message has the name of the class, because the key alone is unclear."""

    @tool
    def look_up() -> None:
        raise KeyError("city")

    model = ScriptedModel(call("look_up"), "done")
    ask(client_of(model, look_up).prompt("x"))

    assert results(model.prompts[1]) == ["KeyError: 'city'"]


def test_a_processor_may_be_asynchronous(ask: Ask) -> None:
    """It receives the tool context of the call."""

    async def process(failure: ToolFailure) -> str:
        await asyncio.sleep(0)
        return f"{failure.kind} of {failure.context['tenant']}"

    model = ScriptedModel(call("query"), "done")
    request = client_of(model, query, exception_processor=process).prompt("x")
    ask(request.tool_context(tenant="acme"))

    assert results(model.prompts[1]) == ["exception of acme"]


@pytest.mark.parametrize("nonsense", [None, {"a": 1}])
def test_a_processor_that_returns_nothing_is_named(ask: Ask, nonsense: Any) -> None:
    """An invalid return value is an error with the processor's name."""

    def process(failure: ToolFailure) -> Any:
        return nonsense

    model = ScriptedModel(call("query"), "never")
    with pytest.raises(ToolResultError, match=r"processor .*process returned .*, not a text or a"):
        ask(client_of(model, query, exception_processor=process).prompt("x"))


class Unspeakable(Exception):  # noqa: N818
    """An error whose message fails."""

    def __str__(self) -> str:
        raise LookupError

    __repr__ = __str__


@pytest.mark.parametrize("wrapped", [False, True])
@pytest.mark.parametrize("policy", [{}, {"always_raise": True}])
def test_an_error_whose_message_fails_is_answered(
    ask: Ask, policy: dict[str, Any], *, wrapped: bool
) -> None:
    """The model gets an answer, or the policy raises its own error."""

    @tool
    def fail() -> str:
        """Fail."""
        raise ExceptionGroup("several", [Unspeakable(), Unspeakable()]) if wrapped else Unspeakable

    model = ScriptedModel(call("fail", {}), "done")
    manager = ToolCallingManager(exception_processor=ToolFailurePolicy(**policy))
    client = ChatClient.builder(model).default_tools(fail).tool_calling_manager(manager).build()

    if policy:
        with pytest.raises(ToolExecutionError):
            ask(client.prompt("x"))
    else:
        assert ask(client.prompt("x")).text == "done"
        message = model.prompts[1].messages[-1]
        assert isinstance(message, ToolResponseMessage)
        assert message.responses[0].data.count("Unspeakable") == 1 + wrapped
