# pyright: reportPossiblyUnboundVariable=false
# A loop over `longer_and_longer` runs at least once.
"""Limits of a turn: rounds, calls, seconds, repetition, and a deadline."""

import asyncio
import itertools
import sys
import threading
from datetime import timedelta
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatOptions,
    ChatResponse,
    Prompt,
    ToolContext,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.chat.messages import Media, ToolCall
from chatclient.chat.response import Generation
from chatclient.errors import DeadlineExceededError, ToolError, ToolLoopError, UsageError
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import Answer, Ask, ScriptedModel, call
from chatclient.tools import (
    NextTool,
    ToolCallingManager,
    ToolInvocation,
    ToolLimits,
    ToolResult,
    tool_callbacks,
)
from chatclient.tools.execution.state import ToolState
from tests.modes.test_tool_calling import assert_paired, client_of, results
from tests.support.clock import Clock
from tests.support.waiting import longer_and_longer

UNBOUND = ToolLimits(
    max_rounds=None, max_calls_per_tool=None, max_total_calls=None, max_repeats=None
)


@tool
def step(n: int = 0) -> int:
    """Take a step."""
    return n


@tool
def look(n: int = 0) -> str:
    """Look around."""
    return f"saw {n}"


def stepping(*, batch: int = 1, names: tuple[str, ...] = ("step",)) -> ScriptedModel:
    """Return a model that calls tools with different arguments until it is offered none."""
    numbers = itertools.count()

    def answer(prompt: Prompt) -> Any:
        if prompt.options.tool_choice == "none":
            return "So far so good."
        made = (next(numbers) for _ in range(batch))
        return [call(names[n % len(names)], f'{{"n": {n}}}', id=f"c{n}") for n in made]

    return ScriptedModel(answer)


def limited(model: ScriptedModel, **limits: Any) -> Any:
    return client_of(model, step, look, limits=ToolLimits(**limits)).prompt("x")


LIMITS: list[tuple[dict[str, Any], int, str]] = [
    ({"max_rounds": 3}, 3, "Round limit (3) reached for this turn."),
    ({"max_calls_per_tool": 2}, 3, "Tool call limit (2) exceeded for tool 'step'."),
    ({"per_tool": {"step": 2}}, 3, "Tool call limit (2) exceeded for tool 'step'."),
    ({"max_total_calls": 2}, 3, "Total tool call limit (2) exceeded for this turn."),
]

each_limit = pytest.mark.parametrize(("limits", "rounds", "words"), LIMITS)


@pytest.mark.feature(
    "client-template-builder-tool-advisor",
    "loop-tool-calling-manager",
    "loop-no-cap-rounds",
    "stream-limit-stream",
    "usage-kept-return-direct",
    "manager-max-calls-per-tool",
    "manager-max-total-tool-calls",
    "manager-limit-exceeded-partial-result",
    "manager-finish-reason-tool-call",
    "lc4j-tool-round-trip-limit-100",
    "lc4j-tool-limits-per-tool-turn",
    "wish-graceful-end-limit",
)
@each_limit
def test_a_limit_ends_the_turn_with_what_there_is(
    ask: Ask, limits: dict[str, Any], rounds: int, words: str
) -> None:
    """By default the answer names the limit, and has a finish reason for it."""
    model = stepping()
    result = ask(limited(model, **limits))
    answer = result.response.chat_response

    assert result.text.startswith(words)
    assert answer.finish_reason == "tool_call_limit_exceeded"
    assert len(answer.generations) == 1
    assert len(model.prompts) == rounds
    assert answer.usage.total_tokens == 15 * rounds


@pytest.mark.feature("manager-raising-limit", "lc4j-tool-round-trip-limit-100")
@each_limit
def test_a_limit_can_be_raised(ask: Ask, limits: dict[str, Any], rounds: int, words: str) -> None:
    """The error carries the last round's result, whose history can be sent again."""
    model = stepping()
    with pytest.raises(ToolLoopError) as caught:
        ask(limited(model, on_exceeded="raise", **limits))

    assert str(caught.value).startswith(words)
    assert len(model.prompts) == rounds
    history = caught.value.result.conversation_history
    assert len(history) == 1 + 2 * rounds
    assert_paired(history)


@pytest.mark.feature("manager-answering", "wish-graceful-end-limit")
@each_limit
def test_a_limit_can_ask_for_a_final_answer(
    ask: Ask, limits: dict[str, Any], rounds: int, words: str
) -> None:
    """The model is called once more with the complete turn, without tools."""
    model = stepping()
    result = ask(limited(model, on_exceeded="final_answer", **limits))
    answer = result.response.chat_response

    assert result.text == "So far so good."
    assert answer.finish_reason == "tool_call_limit_exceeded"
    assert len(model.prompts) == rounds + 1
    assert answer.metadata.id == f"response-{rounds + 1}"
    assert answer.usage.total_tokens == 15 * (rounds + 1)
    assert model.prompts[-1].options.tool_choice == "none"
    assert_paired(model.prompts[-1].messages)


@pytest.mark.feature("manager-limit-exceeded")
@pytest.mark.parametrize(("limits", "words"), [(each[0], each[2]) for each in LIMITS[1:]])
def test_a_limit_can_be_an_error_result(ask: Ask, limits: dict[str, Any], words: str) -> None:
    """The call is refused, and the turn continues."""
    calls = [call("step", f'{{"n": {n}}}', id=f"c{n}") for n in range(3)]
    model = ScriptedModel(*calls, "I stop.")
    result = ask(limited(model, on_exceeded="tell_model", **limits))

    assert result.text == "I stop."
    assert result.response.chat_response.finish_reason == "stop"
    assert results(model.prompts[3])[0].startswith(words)
    assert [execution.is_error for execution in result.executions] == [False, False, True]
    assert_paired(model.prompts[3].messages)


def test_a_limit_of_rounds_asks_for_a_final_answer(ask: Ask) -> None:
    """With `tell_model`, the limit of rounds requests a final answer."""
    result = ask(limited(stepping(), max_rounds=3, on_exceeded="tell_model"))

    assert result.text == "So far so good."
    assert result.response.chat_response.finish_reason == "tool_call_limit_exceeded"


@pytest.mark.feature("manager-answering")
def test_tool_calls_in_the_final_answer(ask: Ask) -> None:
    """The turn ends as if no final answer had been requested."""
    model = ScriptedModel(*(call("step", f'{{"n": {n}}}') for n in range(4)))
    result = ask(limited(model, max_rounds=3, on_exceeded="final_answer"))

    assert result.text == "Round limit (3) reached for this turn."
    assert result.response.chat_response.finish_reason == "tool_call_limit_exceeded"
    assert [each.response.data for each in result.executions] == ["0", "1", "2"]


@pytest.mark.feature("manager-finish-reason-tool-call")
def test_results_before_a_limit(ask: Ask) -> None:
    """They are in the metadata, without refused calls."""
    model = stepping(batch=4)
    result = ask(limited(model, max_total_calls=2))
    generation = result.response.chat_response.generations[0]

    partial = generation.metadata["partial_tool_responses"]
    assert partial == (ToolResponse("c0", "step", "0"), ToolResponse("c1", "step", "1"))


@pytest.mark.feature("manager-limit-exceeded-partial-result", "wish-history-valid-whatever-happens")
@pytest.mark.parametrize("limits", [{"max_calls_per_tool": 2}, {"max_total_calls": 2}])
def test_every_call_of_a_batch_is_answered_at_a_limit(ask: Ask, limits: dict[str, Any]) -> None:
    """Calls before the limit run; it and the later ones get a result without a run."""
    ran: list[int] = []

    @tool
    def step(n: int) -> int:
        ran.append(n)
        return n

    model = stepping(batch=5)
    client = client_of(model, step, limits=ToolLimits(on_exceeded="raise", **limits))
    with pytest.raises(ToolLoopError) as caught:
        ask(client.prompt("x"))
    result = caught.value.result

    assert sorted(ran) == [0, 1]
    assert [execution.is_error for execution in result.executions] == [False] * 2 + [True] * 3
    assert "limit (2) exceeded" in result.responses[2].data
    assert result.responses[4].data.startswith("Not run.")
    assert_paired(result.conversation_history)
    again = ScriptedModel("fine")
    ChatClient.create(again).prompt(result.conversation_history).call().content()
    assert again.prompts[0].messages == result.conversation_history


@pytest.mark.feature("manager-limit-exceeded")
def test_each_call_of_a_batch_is_checked(ask: Ask) -> None:
    """With `tell_model`, only the calls above the limit are refused."""
    model = ScriptedModel(
        [*(call("step", f'{{"n": {n}}}', id=f"s{n}") for n in range(3)), call("look")], "done"
    )
    ask(limited(model, per_tool={"step": 2}, on_exceeded="tell_model"))

    told = results(model.prompts[1])
    assert (told[:2], told[3]) == (["0", "1"], "saw 0")
    assert "limit (2) exceeded for tool 'step'" in told[2]


@pytest.mark.feature("manager-max-calls-per-tool-n")
def test_the_bound_of_a_tool_has_precedence(ask: Ask) -> None:
    """The bound of a tool overrides the general one, also with None."""
    model = stepping(names=("step", "look"))
    ask(limited(model, max_calls_per_tool=2, per_tool={"step": None}))
    assert len(model.prompts) == 6  # the third look

    model = stepping()
    ask(limited(model, max_calls_per_tool=1, per_tool={"step": 4}))
    assert len(model.prompts) == 5


@pytest.mark.feature("manager-exclude-tool-limit")
def test_an_excluded_tool_counts_towards_the_total_only(ask: Ask) -> None:
    """Excluded tools are bounded by the limit of all calls."""
    model = stepping()
    result = ask(limited(model, max_calls_per_tool=1, excluded="step", max_total_calls=5))

    assert len(model.prompts) == 6
    assert result.text.startswith("Total tool call limit (5)")


def test_reading_tools_count_towards_the_total_only(ask: Ask) -> None:
    """Many parallel reads of one tool are allowed."""

    @tool(effect="read")
    def read(n: int) -> int:
        """Read."""
        return n

    calls = [call("read", f'{{"n": {n}}}', id=f"c{n}") for n in range(200)]
    model = ScriptedModel(calls, "done", calls, "done")
    wide = ToolLimits(max_total_calls=200)
    assert ask(client_of(model, read, limits=wide).prompt("x")).text == "done"
    result = ask(client_of(model, read).prompt("x"))

    assert [each.is_error for each in result.executions] == [False] * 150 + [True] * 50
    assert result.text.startswith("Total tool call limit (150)")


def test_unknown_tools_count(ask: Ask) -> None:
    """Calls of unknown tools count towards the limit of all calls."""
    result = ask(limited(stepping(names=("this", "that")), max_total_calls=7))

    assert result.text.startswith("Total tool call limit (7)")
    assert len(result.executions) == 8


@pytest.mark.feature("manager-unlimited-calls-per-tool")
def test_without_limits_a_turn_continues(ask: Ask) -> None:
    """With None as the bounds, a turn may exceed the defaults."""
    calls = [call("step", id=f"c{n}") for n in range(160)]
    model = ScriptedModel(*calls, "done at last")

    assert ask(client_of(model, step, limits=UNBOUND).prompt("x")).text == "done at last"


@pytest.mark.feature(
    "loop-no-cap-rounds", "manager-max-calls-per-tool", "manager-max-total-tool-calls"
)
def test_the_defaults_end_an_endless_turn(ask: Ask) -> None:
    """By default, a tool may be called forty times."""
    model = stepping()
    result = ask(client_of(model, step).prompt("x"))

    assert len(model.prompts) == 41
    assert "limit (40)" in result.text
    assert (ToolLimits().max_rounds, ToolLimits().max_total_calls) == (100, 150)


@pytest.mark.feature("loop-no-wall-clock-limit", "lc4j-tool-limits-per-tool-turn")
def test_time_is_a_limit_between_rounds(ask: Ask, clock: Clock) -> None:
    """After `max_seconds` no round starts; running calls are not interrupted."""

    @tool
    def step(n: int) -> int:
        clock.advance(160)
        return n

    model = stepping()
    client = client_of(model, step, limits=ToolLimits(max_seconds=250))
    result = ask(client.prompt("x"))

    assert result.text == "Time limit (250 s) reached for this turn."
    assert len(model.prompts) == 2
    assert [each.response.data for each in result.executions] == ["0", "1"]


@pytest.mark.feature("manager-counted-history-since-user")
def test_each_turn_counts_for_itself(ask: Ask) -> None:
    """Calls of earlier requests and of turns in the history do not count."""
    earlier = [
        message
        for n in range(3)
        for message in (
            UserMessage("x"),
            AssistantMessage(tool_calls=[call("step", id=f"old{n}")]),
            ToolResponseMessage([ToolResponse(f"old{n}", "step", "0")]),
            AssistantMessage("done"),
        )
    ]
    script: list[Answer] = [call("step"), call("step"), "done"] * 2
    model = ScriptedModel(*script)
    client = client_of(model, step, limits=ToolLimits(max_calls_per_tool=2, max_rounds=3))

    for _ in range(2):
        assert ask(client.prompt(earlier).user("again")).text == "done"


@pytest.mark.feature("manager-bounds-greater-0")
@pytest.mark.parametrize("bound", [0, -1])
@pytest.mark.parametrize(
    "name",
    ["max_rounds", "max_calls_per_tool", "max_total_calls", "max_seconds", "max_repeats"],
)
def test_a_bound_is_greater_than_nothing(name: str, bound: int) -> None:
    """A bound below one is refused with its name."""
    with pytest.raises(UsageError, match=name):
        ToolLimits(**{name: bound})  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="step"):
        ToolLimits(per_tool={"step": bound})


def test_calls_in_threads_count_as_they_were_asked_for(ask: Ask) -> None:
    """The keys of equal calls are all different, and those of a repeated turn the same."""
    keys: dict[str, str] = {}

    @tool(effect="idempotent")
    def put(context: ToolContext) -> None:
        keys[context.tool_call_id] = context.idempotency_key

    def keys_of_a_turn(at_once: int) -> dict[str, str]:
        keys.clear()
        model = ScriptedModel([call("put", id=f"c{n}") for n in range(8)], "done")
        ask(client_of(model, put, blocking_concurrency=at_once).prompt("x").idempotency_key("1"))
        return dict(keys)

    one_by_one = keys_of_a_turn(1)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        assert all(keys_of_a_turn(8) == one_by_one for _ in range(60))
    finally:
        sys.setswitchinterval(interval)
    assert len(set(one_by_one.values())) == 8


WRITTEN = [
    '{"a": 1, "b": "ü"}',
    '{"b":"\\u00fc","a":1}',
    "{'a': 1, 'b': 'ü',}",
    ' {"a":1,"b":"ü"} ',
]


@pytest.mark.feature("loop-repetition-not-noticed", "tool-options-doing-thing-once")
def test_a_call_is_the_same_however_it_is_written(ask: Ask) -> None:
    """Parsed arguments are compared: white space, escapes and the order of fields do not count."""
    keys: list[str] = []

    @tool(effect="read")
    def find(a: int, b: str, context: ToolContext) -> str:
        """Find."""
        keys.append(context.idempotency_key)
        return "nothing"

    client = client_of(ScriptedModel(*(call("find", w) for w in WRITTEN), "done"), find)
    result = ask(client.prompt("x").idempotency_key("1"))
    assert "called 3 times with these very arguments" in result.executions[3].response.data
    assert len(set(keys)) == 3
    first = keys[0]
    for written in WRITTEN:
        keys.clear()
        client = client_of(ScriptedModel(call("find", written), "done"), find)
        ask(client.prompt("x").idempotency_key("1"))
        assert keys == [first]


@pytest.mark.parametrize("bound", ["3", True, float("nan")])
@pytest.mark.parametrize("name", ["max_rounds", "max_seconds", "step"])
def test_a_bound_is_a_number(name: str, bound: Any) -> None:
    """Any other type is refused with the bound's name."""
    bounds: dict[str, Any] = {"per_tool": {name: bound}} if name == "step" else {name: bound}
    with pytest.raises(UsageError, match=name):
        ToolLimits(**bounds)


def test_time_may_be_given_as_such() -> None:
    """A `timedelta` is accepted, as in other places."""
    assert ToolLimits(max_seconds=timedelta(minutes=1)).max_seconds == 60  # type: ignore[arg-type]


@pytest.mark.feature("lc4j-tool-execution-request-result")
def test_refused_calls_are_among_the_executions(ask: Ask) -> None:
    """A refused call has an execution with a duration of zero."""
    result = ask(limited(stepping(batch=2), max_total_calls=3))

    assert [(each.tool_call.id, each.is_error) for each in result.executions] == [
        ("c0", False),
        ("c1", False),
        ("c2", False),
        ("c3", True),
    ]
    assert result.executions[-1].seconds == 0.0
    assert [each.attempt for each in result.executions] == [1, 2, 3, 4]


# --- loops of an application's own ---


def in_a_turn(*calls: ToolCall, user: bool = True) -> tuple[Any, ...]:
    """Return a conversation whose turn has made *calls*, one in each round."""
    messages: list[Any] = [UserMessage("x")] if user else []
    for made in calls:
        messages.append(AssistantMessage(tool_calls=[made]))
        messages.append(ToolResponseMessage([ToolResponse(made.id, made.name, "0")]))
    return tuple(messages)


@pytest.mark.feature("manager-counted-history-since-user")
def test_an_own_loop_counts_from_the_history() -> None:
    """Calls are counted since the last user message."""
    before = in_a_turn(*[call("step")] * 5)
    now = in_a_turn(call("step"), call("look"), call("step"))
    turn = ToolState.of(Prompt((*before, *now), ChatOptions(tool_context={"tenant": "acme"})))

    assert (turn.rounds, turn.calls) == (3, {"step": 2, "look": 1})
    assert turn.context["tenant"] == "acme"
    assert ToolState.of(Prompt(in_a_turn(call("step"), user=False))).rounds == 1


@pytest.mark.feature("manager-counted-history-since-user")
def test_an_own_loop_reaches_its_limits() -> None:
    """The manager's result names the exceeded limit."""
    manager = ToolCallingManager(limits=ToolLimits(max_calls_per_tool=2))
    options = ChatOptions(tool_callbacks=tuple(tool_callbacks(step)))
    asks = ChatResponse((Generation(AssistantMessage(tool_calls=[call("step", id="c9")])),))

    fine = manager.execute_tool_calls(Prompt(in_a_turn(call("step")), options), asks)
    over = asyncio.run(
        manager.aexecute_tool_calls(Prompt(in_a_turn(*[call("step")] * 2), options), asks)
    )

    assert fine.breach is None
    assert over.breach is not None
    assert over.breach.startswith("Tool call limit (2) exceeded for tool 'step'.")
    assert_paired(over.conversation_history)


def test_an_own_loop_may_keep_its_turn() -> None:
    """A `Turn` that is kept between rounds also detects repetition."""
    manager, turn = ToolCallingManager(), ToolState()
    prompt = Prompt("x", ChatOptions(tool_callbacks=tuple(tool_callbacks(step))))
    asks = ChatResponse((Generation(AssistantMessage(tool_calls=[call("step")])),))
    told = ""
    for _ in range(4):
        coroutine = manager.execute(prompt, asks, BLOCKING, turn)
        with pytest.raises(StopIteration) as stopped:
            coroutine.send(None)
        told = stopped.value.value.responses[0].data

    assert "called 3 times" in told
    assert len(turn.executions) == 4


# --- no progress ---


@pytest.mark.feature("loop-repetition-not-noticed")
def test_repetition_is_first_reported_and_then_ended(ask: Ask) -> None:
    """After three equal calls and results, further ones are refused; the sixth ends the turn."""
    ran: list[int] = []

    @tool
    def poll() -> str:
        ran.append(1)
        return "nothing new"

    model = ScriptedModel(lambda prompt: call("poll"))
    result = ask(client_of(model, poll).prompt("x"))

    assert len(ran) == 3
    assert "has been called 3 times with these very arguments" in results(model.prompts[4])[0]
    assert result.text == "No progress: 'poll' was called again and again."
    assert result.response.chat_response.finish_reason == "tool_call_limit_exceeded"
    assert len(model.prompts) == 6
    assert_paired(model.prompts[5].messages)


def test_a_nudge_that_is_heeded_ends_well(ask: Ask) -> None:
    """A different call after the note continues the turn."""
    model = ScriptedModel(*[call("step")] * 4, call("look"), "done")

    assert ask(client_of(model, step, look).prompt("x")).text == "done"
    assert results(model.prompts[5]) == ["saw 0"]


@pytest.mark.feature("wish-retry-budget-mistakes")
@pytest.mark.parametrize("arguments", ["?", '{"n": "many"}', '{"m": 1}'])
def test_a_mistake_repeated_is_no_progress_either(ask: Ask, arguments: str) -> None:
    """Identical calls that fail count as a repetition."""
    model = ScriptedModel(lambda prompt: call("step", arguments))
    result = ask(client_of(model, step).prompt("x"))

    assert result.text.startswith("No progress")
    assert len(model.prompts) == 6


@pytest.mark.feature("loop-repetition-not-noticed")
def test_results_that_change_are_progress(ask: Ask) -> None:
    """Identical calls with different results do not count as a repetition."""
    ticks = itertools.count()

    @tool
    def poll() -> str:
        return f"{next(ticks)} %"

    model = ScriptedModel(*[call("poll")] * 12, "done")

    assert ask(client_of(model, poll).prompt("x")).text == "done"
    assert next(ticks) == 12


@pytest.mark.parametrize("seen", [b"\x89PNG%d", "https://example.org/%d.png"])
def test_pictures_that_change_are_progress(ask: Ask, seen: bytes | str) -> None:
    """Media are compared as part of the results."""
    taken = itertools.count()

    @tool(effect="read")
    def screenshot() -> Media:
        """Take a screenshot."""
        return Media("image/png", seen % next(taken))

    model = ScriptedModel(*[call("screenshot") for _ in range(7)], "done")

    assert ask(client_of(model, screenshot).prompt("x")).text == "done"
    assert next(taken) == 7


def test_the_same_picture_is_no_progress(ask: Ask) -> None:
    """Equal media count as equal results."""

    @tool(effect="read")
    def screenshot() -> Media:
        """Take a screenshot."""
        return Media("image/png", b"\x89PNG")

    model = ScriptedModel(lambda prompt: call("screenshot"))

    assert ask(client_of(model, screenshot).prompt("x")).text.startswith("No progress")


def test_other_arguments_are_progress(ask: Ask) -> None:
    """Equal results for different arguments do not count."""

    @tool
    def search(text: str) -> str:
        return "nothing"

    calls = [call("search", f'{{"text": "{n}"}}') for n in range(12)]

    assert ask(client_of(ScriptedModel(*calls, "done"), search).prompt("x")).text == "done"


@pytest.mark.parametrize("limits", [{"excluded": frozenset({"step"})}, {"max_repeats": None}])
def test_repetition_can_be_allowed(ask: Ask, limits: dict[str, Any]) -> None:
    """For single tools, or altogether."""
    model = ScriptedModel(*[call("step")] * 12, "done")

    assert ask(limited(model, **limits)).text == "done"


def test_no_progress_can_be_raised_or_answered(ask: Ask) -> None:
    """`on_exceeded` applies to repetition as well."""

    def stuck(prompt: Prompt) -> Any:
        return "I give up." if prompt.options.tool_choice == "none" else call("step")

    with pytest.raises(ToolLoopError, match="No progress") as caught:
        ask(limited(ScriptedModel(stuck), on_exceeded="raise"))
    assert_paired(caught.value.result.conversation_history)
    assert ask(limited(ScriptedModel(stuck), on_exceeded="final_answer")).text == "I give up."


# --- the deadline ---


@pytest.mark.feature("tool-options-time-left")
def test_tools_know_how_much_time_is_left(ask: Ask) -> None:
    """The tool context has the deadline, which bounds the tool's timeout."""
    seen: list[tuple[float, float | None]] = []

    @tool
    def plain(context: ToolContext) -> None:
        seen.append((context.remaining_seconds, context.timeout))

    @tool(timeout=200)
    def hasty(context: ToolContext) -> None:
        seen.append((context.remaining_seconds, context.timeout))

    model = ScriptedModel(call("plain"), call("hasty"), "done", call("plain"), "done")
    request = client_of(model, plain, hasty).prompt("x")
    ask(request.deadline(3000))
    ask(request)

    assert 2500 < seen[0][0] <= 3000
    assert seen[0][1] == pytest.approx(seen[0][0], abs=100)
    assert seen[1][1] == 200
    assert seen[2] == (float("inf"), None)


@pytest.mark.feature("request-no-wall-clock-limit", "loop-no-wall-clock-limit")
@pytest.mark.parametrize("kind", ["plain", "async"])
def test_the_deadline_ends_a_tool(ask: Ask, kind: str) -> None:
    """A deadline that passes while a tool runs ends the request; the error names the tool."""
    begun, release = threading.Event(), threading.Event()

    @tool
    def plain() -> None:
        begun.set()
        release.wait(600)

    @tool(name="async")
    async def waits() -> None:
        begun.set()
        await asyncio.sleep(600)

    for seconds in longer_and_longer():
        model = ScriptedModel(call(kind), "never")
        with pytest.raises(DeadlineExceededError) as caught:
            ask(client_of(model, plain, waits).prompt("x").deadline(seconds))
        if begun.is_set():
            break
    release.set()

    assert kind in str(caught.value)
    assert len(model.prompts) == 1


def test_a_timeout_before_the_deadline_is_only_a_timeout(ask: Ask) -> None:
    """The model receives an error result, and the turn continues."""

    @tool(timeout=0.02)
    async def slow() -> None:
        await asyncio.sleep(600)

    model = ScriptedModel(call("slow"), "done")

    assert ask(client_of(model, slow).prompt("x").deadline(500)).text == "done"


def test_no_tool_begins_after_the_deadline(ask: Ask, clock: Clock) -> None:
    """If interceptors use up the time, the tool does not run."""
    ran: list[float | None] = []

    async def wait(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        await invocation.context.runtime.invoke(clock.advance, 600)
        return await call_next(invocation)

    @tool
    def pay(context: ToolContext) -> None:
        ran.append(context.timeout)

    client = client_of(ScriptedModel(call("pay"), "done"), pay, interceptors=[wait])
    ask(client.prompt("x").deadline(5000))
    assert ran[0] is not None
    assert ran[0] < 4500

    client = client_of(ScriptedModel(call("pay"), "never"), pay, interceptors=[wait])
    with pytest.raises(DeadlineExceededError):
        ask(client.prompt("x").deadline(300))
    assert len(ran) == 1


@pytest.mark.feature("loop-no-wall-clock-limit")
def test_no_round_begins_after_the_deadline(ask: Ask, clock: Clock) -> None:
    """Results that arrive in time do not start another round after the deadline."""

    async def linger(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        result = await call_next(invocation)
        await invocation.context.runtime.invoke(clock.advance, 600)
        return result

    model = ScriptedModel(call("step"), "never")
    client = client_of(model, step, interceptors=[linger])
    with pytest.raises(DeadlineExceededError):
        ask(client.prompt("x").deadline(500))

    assert len(model.prompts) == 1


@pytest.mark.feature("wish-history-valid-whatever-happens")
def test_the_deadline_leaves_nothing_half_written(ask: Ask) -> None:
    """Completed tools of a batch are kept, and no partial results are sent to the model."""
    done: list[str] = []

    @tool
    def quick() -> None:
        done.append("quick")

    @tool
    async def slow() -> None:
        await asyncio.sleep(600)

    history = [UserMessage("x")]
    for seconds in longer_and_longer():
        model = ScriptedModel([call("quick"), call("slow")], "never")
        with pytest.raises(DeadlineExceededError):
            ask(client_of(model, quick, slow).prompt(history).deadline(seconds))
        if done:
            break

    assert done == ["quick"]
    assert [prompt.messages for prompt in model.prompts] == [(UserMessage("x"),)]
    again = ScriptedModel("fine")
    assert ask(client_of(again, quick).prompt(history)).text == "fine"


@pytest.mark.feature("request-no-wall-clock-limit", "lc4j-tool-services-tools")
def test_a_client_inside_a_tool_has_the_same_deadline(ask: Ask) -> None:
    """A request made in a tool ends by the deadline of the request outside, and no later."""
    seen: list[float] = []

    @tool
    def note(context: ToolContext) -> None:
        seen.append(context.remaining_seconds)

    def inner() -> Any:
        return client_of(ScriptedModel(call("note"), "inner"), note).prompt("x")

    @tool
    def plain() -> str:
        return str(inner().deadline(50_000).call().content())

    @tool
    async def waits() -> str:
        return str(await inner().acall().content())

    @tool
    def shorter() -> str:
        return str(inner().deadline(500).call().content())

    model = ScriptedModel([call("plain"), call("waits"), call("shorter")], "done")
    ask(client_of(model, plain, waits, shorter).prompt("x").deadline(3000))

    assert min(seen) <= 500
    assert all(2500 < each <= 3000 for each in sorted(seen)[1:])


@pytest.mark.feature("lc4j-tool-timeout")
def test_a_tools_timeout_bounds_the_clients_inside_it(ask: Ask) -> None:
    """The timeout of a tool bounds requests that are made in it."""
    seen: list[float] = []

    @tool
    def note(context: ToolContext) -> None:
        seen.append(context.remaining_seconds)

    def inner() -> str:
        return client_of(ScriptedModel(call("note"), "x"), note).prompt("x").call().content()

    @tool(timeout=700)
    def bound() -> str:
        return inner()

    @tool
    def free() -> str:
        return inner()

    ask(client_of(ScriptedModel(call("bound"), call("free"), "done"), bound, free).prompt("x"))

    assert seen[0] <= 700
    assert seen[1] == float("inf")


def test_an_error_before_the_deadline(ask: Ask) -> None:
    """It is reported; only failures after the deadline are deadline errors."""

    @tool
    def closed() -> None:
        raise ToolError("Closed.")

    model = ScriptedModel(call("closed"), "done")
    ask(client_of(model, closed).prompt("x").deadline(600))

    assert results(model.prompts[1]) == ["Closed."]


@pytest.mark.parametrize("seconds", [0, -1.5])
def test_a_deadline_lies_ahead(seconds: float) -> None:
    """A deadline that has passed already is refused where it is set."""
    with pytest.raises(UsageError, match="a deadline must be a positive number of seconds"):
        ChatClient.create(ScriptedModel("never")).prompt("x").deadline(seconds)


def test_tools_that_read_count_towards_the_total_only(ask: Ask) -> None:
    """Many reads in one turn are normal; writes are limited for each tool."""
    numbers: list[int] = []

    @tool(effect="read")
    def look(number: int) -> str:
        """Look."""
        numbers.append(number)
        return f"{number}"

    calls = [call("look", f'{{"number": {number}}}') for number in range(5)]
    limits = ToolLimits(max_calls_per_tool=2)
    ask(client_of(ScriptedModel(calls, "done"), look, limits=limits).prompt("x"))

    assert sorted(numbers) == [0, 1, 2, 3, 4]
