"""Tools with a confirmation flag, and calls that wait together."""

import json
from collections.abc import Iterable
from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.chat.messages import ToolCall
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.errors import UsageError
from chatclient.testing import Answer, Ask, Asked, ScriptedModel, call
from chatclient.tools import (
    Decision,
    ExternalTool,
    NextTool,
    PendingTurn,
    ToolApproval,
    ToolCallingManager,
    ToolInvocation,
    ToolLimits,
    ToolResult,
)
from tests.modes.test_tool_calling import results

ran: list[str] = []


@tool(effect="read", confirm=True)
def diary(day: int = 0) -> str:
    """Read the diary."""
    ran.append(f"diary {day}")
    return f"Dear diary, {day}."


@tool(effect="read")
def look(what: str = "sky") -> str:
    """Look at something."""
    ran.append(f"look {what}")
    return f"{what}: blue"


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    ran.append(f"pay {amount}")
    return f"paid {amount}"


LOCATE = ExternalTool(ToolDefinition("locate", "Tell where the user is.", {"properties": {}}))


@pytest.fixture(autouse=True)
def _nothing_ran() -> None:
    ran.clear()


def client_of(*answers: Answer, **manager: Any) -> tuple[ScriptedModel, ChatClient]:
    model = ScriptedModel(*answers)
    builder = ChatClient.builder(model).default_tools(diary, look, pay, LOCATE)
    return model, builder.tool_calling_manager(ToolCallingManager(**manager)).build()


def pending(asked: Asked) -> PendingTurn:
    turn = asked.waiting
    assert isinstance(turn, PendingTurn)
    return turn


def names(calls: Iterable[ToolCall]) -> list[str]:
    return [call.name for call in calls]


# --- confirmation ---


@pytest.mark.feature("manager-requires-confirmation")
@pytest.mark.parametrize("interceptors", [(), [ToolApproval()], [ToolApproval(lambda _: False)]])
def test_a_flag_suspends(ask: Ask, interceptors: Any) -> None:
    """Each call is suspended, with a policy or without, and runs once it is approved."""
    model, client = client_of(call("diary", '{"day": 3}'), "done", interceptors=interceptors)
    turn = pending(ask(client.prompt("x")))

    assert names(turn.to_decide().values()) == ["diary"]
    assert ran == []
    stored = turn.to_json()
    assert ask(client.resume(stored, "approve")).text == "done"
    assert ran == ["diary 3"]
    assert results(model.prompts[-1]) == ["Dear diary, 3."]


@pytest.mark.feature("manager-requires-confirmation")
def test_a_flag_and_other_decisions(ask: Ask) -> None:
    """A denial and changed arguments apply; a policy with a function decides immediately."""
    _, client = client_of(call("diary"), "done")
    denied = ask(client.resume(pending(ask(client.prompt("x"))), "deny"))
    assert (ran, denied.text) == ([], "done")

    _, client = client_of(call("diary", id="d"), "done")
    edited = {"d": Decision(approved=True, arguments='{"day": 9}')}
    ask(client.resume(pending(ask(client.prompt("x"))), edited))
    assert ran == ["diary 9"]

    asking = [ToolApproval(needed=lambda _: False, ask=lambda _: True)]
    _, client = client_of(call("diary"), "done", interceptors=asking)
    assert ask(client.prompt("x")).text == "done"
    assert ran == ["diary 9", "diary 0"]


def test_a_flag_and_wrong_arguments(ask: Ask) -> None:
    """Invalid arguments are an error result, without an approval."""
    model, client = client_of(call("diary", '{"day": "soon"}'), "done")

    assert ask(client.prompt("x")).text == "done"
    assert "day" in results(model.prompts[1])[0]


@pytest.mark.feature("manager-requires-confirmation")
def test_a_flag_is_not_swallowed(ask: Ask) -> None:
    """An interceptor that catches exceptions cannot run the tool without approval."""

    async def stubborn(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        try:
            return await call_next(invocation)
        except Exception:  # noqa: BLE001 - what careless code does
            return ToolResult("It is all right.")

    async def twice(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        await call_next(invocation)
        return await call_next(invocation)

    _, client = client_of(call("diary"), "done", interceptors=[stubborn])
    assert names(pending(ask(client.prompt("x"))).pending) == ["diary"]
    _, client = client_of(call("diary", id="d"), "done", interceptors=[twice])
    edited = {"d": Decision(approved=True, arguments='{"day": 9}')}
    ask(client.resume(pending(ask(client.prompt("x"))), edited))
    assert ran == ["diary 9", "diary 9"]


@pytest.mark.feature("manager-confirmation-policy")
def test_a_policy_by_name(ask: Ask) -> None:
    """A function of the call decides, for example for tools of others."""
    by_name = ToolApproval(lambda invocation: invocation.tool_call.name == "look")
    _, client = client_of([call("look"), call("pay", '{"amount": 1}')], interceptors=[by_name])

    assert names(pending(ask(client.prompt("x"))).pending) == ["look"]
    assert ran == ["pay 1"]


# --- calls that wait together ---


@pytest.mark.feature("manager-all-calls-wait")
@pytest.mark.parametrize("waiting", ["diary", "pay", "locate"])
@pytest.mark.parametrize("together", [True, False])
def test_calls_wait_together(ask: Ask, waiting: str, together: bool) -> None:
    """No call runs while one is pending; afterwards each runs once, in order."""
    arguments = {"pay": '{"amount": 1}'}
    calls = [
        call("look", '{"what": "a"}', id="1"),
        call(waiting, arguments.get(waiting, "{}"), id="2"),
        call("look", '{"what": "b"}', id="3"),
    ]
    model, client = client_of(
        calls,
        "done",
        interceptors=[ToolApproval()],
        wait_together=together,
        limits=ToolLimits(max_total_calls=3),
    )
    turn = pending(ask(client.prompt("x")))

    assert list(turn.to_decide()) == ["2"]
    assert [each.id for each in turn.held] == (["1", "3"] if together else [])
    assert sorted(ran) == ([] if together else ["look a", "look b"])
    stored = PendingTurn.from_json(turn.to_json())
    assert stored.held == turn.held
    decisions = {"2": Decision.answered("here")}
    asked = ask(client.resume(stored, decisions))
    assert sorted(ran) == ["look a", "look b"]
    assert results(model.prompts[-1]) == ["a: blue", "here", "b: blue"]
    assert asked.text == "done"
    assert sorted(each.tool_call.id for each in asked.executions) == ["1", "2", "3"]


@pytest.mark.feature("manager-all-calls-wait")
def test_calls_that_do_not_wait(ask: Ask) -> None:
    """Calls run if none is pending, if one is invalid, or if a function decides immediately."""
    bad = call("pay", '{"amount": "much"}')
    _, client = client_of([call("look"), bad], "done", interceptors=[ToolApproval()])
    held = [ToolApproval(ask=lambda _: True)]
    for calls, interceptors in (
        ([call("look"), bad], [ToolApproval()]),
        ([call("look"), call("nothing")], [ToolApproval()]),
        ([call("look"), call("diary"), call("pay", '{"amount": 1}')], held),
    ):
        _, client = client_of(calls, "done", interceptors=interceptors, wait_together=True)
        assert ask(client.prompt("x")).text == "done"
    assert ran.count("look sky") == 3
    assert {"diary 0", "pay 1"} <= {*ran}


@pytest.mark.feature("manager-all-calls-wait")
def test_a_policy_that_changes_its_mind(ask: Ask) -> None:
    """If the call is not suspended after all, the others run as well."""
    answers = iter([True, False])
    policy = ToolApproval(lambda _: next(answers, False))
    _, client = client_of(
        [call("pay", '{"amount": 1}'), call("look")],
        "done",
        interceptors=[policy],
        wait_together=True,
    )

    assert ask(client.prompt("x")).text == "done"
    assert sorted(ran) == ["look sky", "pay 1"]


def test_a_held_call_whose_tool_is_missing(ask: Ask) -> None:
    """Nothing is run, as with a call that was approved."""
    _, client = client_of([call("look"), call("diary")], "done", wait_together=True)
    turn = pending(ask(client.prompt("x")))
    other = ChatClient.builder(ScriptedModel("done")).default_tools(diary).build()

    with pytest.raises(UsageError, match="waits to run the tool 'look'"):
        ask(other.resume(turn, "approve"))
    assert ran == []


def test_eager_reads_exclude_waiting_together() -> None:
    """The combination is refused, because early reads would run before a call is pending."""
    with pytest.raises(UsageError, match="eager_reads=True"):
        ToolCallingManager(eager_reads=True, wait_together=True)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"held": ["9"]}, "held: the message has no call '9'"),
        ({"held": []}, "each call of the message has to wait"),
        ({"held": ["1", "2"]}, "each call of the message has to wait"),
    ],
)
def test_stored_turns_are_checked(changes: dict[str, Any], problem: str) -> None:
    """Each call must be pending, held or have a response."""
    _, client = client_of([call("look", id="1"), call("diary", id="2")], wait_together=True)
    turn = client.prompt("x").call().pending_turn()
    assert turn is not None
    changed = json.dumps(json.loads(turn.to_json()) | changes)

    with pytest.raises(UsageError, match=problem):
        PendingTurn.from_json(changed)
