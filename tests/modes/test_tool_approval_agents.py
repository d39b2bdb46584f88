"""Agents whose calls need approval, and what a pending turn stores."""

import json
from collections import Counter
from typing import Any

import pytest

from chatclient import ChatClient, ToolContext, tool
from chatclient.chat.messages import ToolCall
from chatclient.errors import ToolExecutionError, ToolUsageError, UsageError
from chatclient.testing import Answer, Ask, Asked, ScriptedModel, call
from chatclient.tools import (
    ApprovalRequired,
    Decision,
    PendingTurn,
    ToolApproval,
    ToolCallingManager,
    ToolFailurePolicy,
    ToolInvocation,
    ToolLimits,
    ToolMetadata,
    ToolRequest,
)
from chatclient.tools.execution.approval import AGENT_TURNS
from tests.modes.test_tool_calling import assert_paired, results

paid: list[Any] = []


@tool
def pay(amount: int, context: ToolContext) -> str:
    """Pay an amount."""
    paid.append((amount, context.get("tenant")))
    return f"paid {amount}"


@tool(effect="read")
def look() -> str:
    """Look something up."""
    return "balance: 100"


@pytest.fixture(autouse=True)
def _nothing_paid() -> None:
    paid.clear()


def pay_call(amount: int, id: str = "p1") -> ToolCall:
    return call("pay", f'{{"amount": {amount}}}', id=id)


def ask_agent(name: str = "agent", id: str = "a1") -> ToolCall:
    return call(name, '{"request": "Pay!"}', id=id)


READ = ToolMetadata(effect="read")


def client_of(*answers: Answer, tools: Any, approve_agents: bool = False) -> Any:
    """Return a client whose writes need approval, and agents on request."""

    def needed(invocation: ToolInvocation) -> bool:
        return invocation.definition.name == "pay" or approve_agents

    manager = ToolCallingManager(interceptors=[ToolApproval(needed=needed)])
    model = ScriptedModel(*answers, chunks=50)
    builder = ChatClient.builder(model).default_tools(*tools).tool_calling_manager(manager)
    return model, builder.build()


def agent(*answers: Answer, name: str = "agent", tools: Any = (pay, look)) -> Any:
    model, client = client_of(*answers, tools=tools)
    return model, client.as_tool(name, "Pays.")


def pending(asked: Asked) -> PendingTurn:
    turn = asked.waiting
    assert isinstance(turn, PendingTurn)
    return turn


@pytest.mark.feature("manager-agent-whose-own-call")
@pytest.mark.parametrize("decision", ["approve", "deny"])
@pytest.mark.parametrize("stored", [False, True])
def test_an_agents_turn_waits_in_that_of_its_asker(ask: Ask, decision: Any, stored: bool) -> None:
    """The agent continues with its history, and its answer is the result."""
    _, inner = agent([call("look"), pay_call(5)])
    _, outer = client_of(ask_agent(), tools=[inner])
    turn = pending(ask(outer.prompt("x").tool_context(tenant="acme")))

    assert turn.pending == (ask_agent(),)
    assert turn.to_decide() == {"a1/p1": pay_call(5)}
    assert paid == []

    inner_model, inner = agent("I did what I could.")
    model, outer = client_of("done", tools=[inner])
    given = turn.to_json() if stored else turn
    result = ask(outer.resume(given, decision).tool_context(tenant="acme"))

    answered = "paid 5" if decision == "approve" else "The user did not allow this call."
    assert results(inner_model.prompts[0]) == ["balance: 100", answered]
    assert_paired(inner_model.prompts[0].messages)
    assert results(model.prompts[0]) == ["I did what I could."]
    assert_paired(model.prompts[0].messages)
    assert result.text == "done"
    assert paid == ([(5, "acme")] if decision == "approve" else [])
    assert result.response.turn.pending is None


def test_each_call_is_decided_by_a_separate_id(ask: Ask) -> None:
    """Also if one call's id looks like the path to another one."""
    _, first = agent(pay_call(1, "p/1"), name="first")
    _, second = agent(pay_call(2, "1"), name="second")
    calls = [ask_agent("first", "a"), ask_agent("second", "a/p"), pay_call(3, "a/p/1")]
    _, outer = client_of(calls, tools=[first, second, pay])
    turn = pending(ask(outer.prompt("x")))
    waiting = turn.to_decide()
    assert waiting == {
        "a/p/1'": pay_call(1, "p/1"),
        "a/p/1''": pay_call(2, "1"),
        "a/p/1": pay_call(3, "a/p/1"),
    }

    _, first = agent("done", name="first")
    _, second = agent("done", name="second")
    _, outer = client_of("done", tools=[first, second, pay])
    ask(outer.resume(turn.to_json(), {id: id == "a/p/1''" for id in waiting}))
    assert paid == [(2, None)]


@pytest.mark.feature("manager-agent-whose-own-call")
def test_several_agents_wait_side_by_side(ask: Ask) -> None:
    """Each call is decided by its own path, although the ids inside are the same."""
    _, first = agent(pay_call(1), name="first")
    _, second = agent(pay_call(2), name="second")
    calls = [ask_agent("first", "a"), call("look"), ask_agent("second", "b"), pay_call(3)]
    _, outer = client_of(calls, tools=[first, second, pay, look])
    turn = pending(ask(outer.prompt("x")))
    waiting = turn.to_decide()

    assert {id: json.loads(each.arguments)["amount"] for id, each in waiting.items()} == {
        "a/p1": 1,
        "b/p1": 2,
        "p1": 3,
    }
    _, first = agent("first is done", name="first")
    _, second = agent("second is done", name="second")
    model, outer = client_of("done", tools=[first, second, pay, look])
    decisions = {
        "a/p1": True,
        "b/p1": Decision(approved=False, message="No."),
        "p1": Decision(approved=True, arguments='{"amount": 30}'),
    }
    ask(outer.resume(turn.to_json(), decisions))

    assert results(model.prompts[0]) == [
        "first is done",
        "balance: 100",
        "second is done",
        'The user changed the arguments to {"amount": 30}.\npaid 30',
    ]
    assert Counter(amount for amount, _ in paid) == Counter([1, 30])


@pytest.mark.feature("manager-agent-whose-own-call")
def test_an_agent_may_wait_again_and_inside_another(ask: Ask) -> None:
    """At any depth, decisions are made by the path of ids."""

    def outermost(inner: list[Answer], middle: list[Answer], outer: list[Answer]) -> Any:
        _, innermost = agent(*inner, name="inner")
        _, between = agent(*middle, name="middle", tools=[innermost])
        return client_of(*outer, tools=[between])

    calls: list[Answer] = [ask_agent("inner", "i1")]
    _, client = outermost([pay_call(1)], calls, [ask_agent("middle", "m1")])
    turn = pending(ask(client.prompt("x")))
    assert list(turn.to_decide()) == ["m1/i1/p1"]

    _, client = outermost([pay_call(2, "p2")], [], [])
    turn = pending(ask(client.resume(turn.to_json(), "approve")))
    assert turn.to_decide() == {"m1/i1/p2": pay_call(2, "p2")}

    model, client = outermost(["inner done"], ["middle done"], ["done"])
    ask(client.resume(turn.to_json(), {"m1/i1/p2": True}))

    assert [amount for amount, _ in paid] == [1, 2]
    assert results(model.prompts[0]) == ["middle done"]


def test_a_limit_with_an_agent_suspended_again(ask: Ask) -> None:
    """The turn ends at its limit, however often the agent of that round is suspended."""

    def outer_of(answer: Answer, inner: Answer) -> ChatClient:
        manager = ToolCallingManager(limits=ToolLimits(per_tool={"look": 1}))
        builder = ChatClient.builder(ScriptedModel(answer)).default_tools(look, agent(inner)[1])
        return builder.tool_calling_manager(manager).build()

    calls = [ask_agent(), call("look"), call("look", id="l2")]
    turn = pending(ask(outer_of(calls, pay_call(1)).prompt("x")))
    turn = pending(ask(outer_of("never", pay_call(2, "p2")).resume(turn.to_json(), "approve")))
    result = ask(outer_of("never", "done").resume(turn.to_json(), "approve"))

    assert [amount for amount, _ in paid] == [1, 2]
    assert "limit (1) exceeded for tool 'look'" in result.text


def test_an_approved_agent_is_approved_once(ask: Ask) -> None:
    """After its own call, only the calls that it makes wait for approval."""
    _, inner = agent("never")
    _, outer = client_of(ask_agent(), tools=[inner], approve_agents=True)
    turn = pending(ask(outer.prompt("x")))
    assert turn.to_decide() == {"a1": ask_agent()}

    _, inner = agent(pay_call(5))
    _, outer = client_of(tools=[inner], approve_agents=True)
    turn = pending(ask(outer.resume(turn.to_json(), "approve")))
    assert turn.to_decide() == {"a1/p1": pay_call(5)}

    _, inner = agent("inner done")
    model, outer = client_of("done", tools=[inner], approve_agents=True)
    ask(outer.resume(turn.to_json(), "approve"))

    assert results(model.prompts[0]) == ["inner done"]
    assert [amount for amount, _ in paid] == [5]


@pytest.mark.parametrize("decisions", [{}, {"a1": True}, {"p1": True}, {"a1/p1": True, "x": True}])
def test_the_calls_inside_have_to_be_decided(decisions: Any) -> None:
    """A decision about the agent's own call, or by the bare id, decides nothing."""
    _, inner = agent(pay_call(5))
    _, outer = client_of(ask_agent(), tools=[inner])
    turn = outer.prompt("x").call().pending_turn()

    with pytest.raises(UsageError, match="decide about the calls"):
        outer.resume(turn, decisions)


def test_an_own_loop_has_the_agents_turn() -> None:
    """The manager's result has it under the id of the call."""
    _, inner = agent(pay_call(5))
    model, outer = client_of(ask_agent(), tools=[inner])
    response = outer.prompt("x").tool_calling(False).call().chat_response()
    result = ToolCallingManager().execute_tool_calls(model.prompts[0], response)

    assert result.pending == (ask_agent(),)
    assert result.agents["a1"].to_decide() == {"p1": pay_call(5)}


# --- what is remembered ---


@pytest.mark.feature("manager-suspended-turn-remembers")
def test_repeats_count_on_in_a_resumed_turn(ask: Ask) -> None:
    """Repetition is counted over suspensions."""
    limits = ToolLimits(max_repeats=2)

    def client(*answers: Answer) -> Any:
        manager = ToolCallingManager(limits=limits, interceptors=[ToolApproval()])
        model = ScriptedModel(*answers)
        builder = ChatClient.builder(model).default_tools(pay, look)
        return model, builder.tool_calling_manager(manager).build()

    looks = [call("look", id=f"l{n}") for n in range(4)]
    _, first = client(looks[0], looks[1], looks[2], pay_call(1))
    turn = pending(ask(first.prompt("x")))
    model, second = client(looks[3], "never")
    result = ask(second.resume(turn.to_json(), "approve"))

    assert len(model.prompts) == 1
    assert result.text.startswith("No progress: 'look'")


@pytest.mark.feature("manager-suspended-turn-remembers")
def test_failures_count_on_in_a_resumed_turn(ask: Ask) -> None:
    """Failures are counted over suspensions."""

    @tool(effect="read")
    def broken() -> None:
        raise LookupError("broken")

    def client(*answers: Answer) -> ChatClient:
        manager = ToolCallingManager(
            exception_processor=ToolFailurePolicy(max_failures=2), interceptors=[ToolApproval()]
        )
        builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(pay, broken)
        return builder.tool_calling_manager(manager).build()

    mistakes = [call("broken", id=f"b{n}") for n in range(3)]
    turn = pending(ask(client(*mistakes[:2], pay_call(1)).prompt("x")))

    assert turn.failures == (("broken", "exception", 2),)
    with pytest.raises(ToolExecutionError, match="broken"):
        ask(client(mistakes[2], "never").resume(turn.to_json(), "approve"))


@pytest.mark.feature("manager-suspended-turn-remembers")
def test_time_counts_on_in_a_resumed_turn(ask: Ask) -> None:
    """The time a turn took before it waited counts; the time it waited does not."""

    def client(*answers: Answer) -> ChatClient:
        limits = ToolLimits(max_seconds=60)
        manager = ToolCallingManager(limits=limits, interceptors=[ToolApproval()])
        builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(pay)
        return builder.tool_calling_manager(manager).build()

    stored = json.loads(pending(ask(client(pay_call(1)).prompt("x"))).to_json())
    assert 0 < stored["seconds"] < 30
    stored["seconds"] = 61.0
    result = ask(client("never").resume(json.dumps(stored), "approve"))

    assert result.text == "Time limit (60 s) reached for this turn."


def test_everything_a_turn_remembers_is_json_both_ways() -> None:
    """An agent's turn, failures and repetitions are kept in JSON."""
    _, inner = agent(call("look"), pay_call(5))
    _, outer = client_of([call("nothing"), call("look")], ask_agent(), tools=[inner, look])
    turn = outer.prompt("x").call().pending_turn()
    assert turn is not None
    again = PendingTurn.from_json(turn.to_json())

    assert again == turn
    assert again.failures == (("nothing", "unknown_tool", 1),)
    assert ("look", "{}", "balance: 100", 1) in again.repeats
    assert again.agents["a1"].calls == {"look": 1, "pay": 1}
    assert again.seconds == turn.seconds


def test_a_pending_turn_copies_its_values() -> None:
    """Later changes of the counts do not change it."""
    _, outer = client_of(pay_call(1), tools=[pay])
    turn = outer.prompt("x").call().pending_turn()
    assert turn is not None
    counts = {"pay": 1}
    copy = PendingTurn(turn.messages, turn.message, turn.responses, turn.pending, counts)
    counts["pay"] = 40

    assert copy.calls == {"pay": 1}


def test_providers_are_called_for_a_resumed_turn(ask: Ask) -> None:
    """They receive the messages of the resumed turn."""
    seen: list[int] = []

    class Payments:
        def tool_callbacks(self, request: ToolRequest) -> list[Any]:
            from chatclient.tools import tool_callbacks

            seen.append(len(request.messages))
            return tool_callbacks(pay)

    _, first = client_of(pay_call(1), tools=[Payments()])
    turn = pending(ask(first.prompt("x")))
    _, second = client_of("done", tools=[Payments()])
    ask(second.resume(turn.to_json(), "approve"))

    assert seen == [1, 1]
    assert [amount for amount, _ in paid] == [1]


@pytest.mark.feature("manager-arguments-do-not-fit")
def test_a_change_that_an_agent_cannot_run_is_refused(ask: Ask) -> None:
    """Invalid approved arguments raise an error to the caller, not to the outer model."""
    _, inner = agent([pay_call(5)])
    model, outer = client_of(ask_agent(), "never", tools=[inner])
    turn = pending(ask(outer.prompt("x")))
    decision = Decision(approved=True, arguments='{"amount": "x"}')
    with pytest.raises(UsageError, match="about 'p1': The arguments for pay do not fit"):
        ask(outer.resume(turn, {"a1/p1": decision}))

    assert (paid, len(model.prompts)) == ([], 1)


@pytest.mark.feature("manager-sees-turn-waits")
@pytest.mark.parametrize("way", ["content", "entity", "stream", "async"])
def test_a_client_that_waits_in_a_tool_is_not_forgotten(ask: Ask, way: str) -> None:
    """A suspended client in a tool raises an error, because its turn would be lost."""
    _, inner = client_of(*[[pay_call(5)]] * 2, tools=[pay])

    @tool(effect="read")
    def expert() -> str:
        """Ask the expert."""
        request = inner.prompt("Pay!")
        if way == "entity":
            return str(request.call().entity(int))
        return request.call().content() if way == "content" else "".join(request.stream())

    @tool(effect="read", name="expert")
    async def aexpert() -> str:
        return str(await inner.prompt("Pay!").acall().content())

    model = ScriptedModel(call("expert"), "done")
    client = ChatClient.create(model)
    with pytest.raises(ToolUsageError, match=r"as client.as_tool\(\.\.\.\)"):
        ask(client.prompt("x").tools(aexpert if way == "async" else expert))

    assert len(model.prompts) == 1
    assert inner.prompt("Pay!").call().content() == ""


def test_a_tool_may_decide_about_a_client_that_waits(ask: Ask) -> None:
    """The tool may read the pending turn and resume it."""
    _, inner = client_of([pay_call(5)], "Paid.", tools=[pay])

    @tool(effect="read")
    def expert() -> str:
        """Ask the expert."""
        turn = inner.prompt("Pay!").call().pending_turn()
        return str(inner.resume(turn, "approve").call().content())

    result = ask(ChatClient.create(ScriptedModel(call("expert"), "done")).prompt("x").tools(expert))

    assert [each.response.data for each in result.executions] == ["Paid."]


def test_a_function_may_have_the_turn_wait_for_an_agents(ask: Ask) -> None:
    """It raises the agent's pending turn, and finds the decisions in its context."""
    _, inner = client_of([pay_call(5)], "Paid.", tools=[pay])

    @tool(effect="read")
    def expert(context: ToolContext) -> str:
        """Ask the expert."""
        waited = context.get(AGENT_TURNS, {}).get(context.tool_call_id)
        request = inner.resume(*waited) if waited else inner.prompt("Pay!")
        turn = request.call().pending_turn()
        if turn is not None:
            raise ApprovalRequired(turn)
        return "The expert has paid."

    client = ChatClient.builder(ScriptedModel(call("expert"), "done")).default_tools(expert).build()
    turn = pending(ask(client.prompt("x")))
    result = ask(client.resume(turn.to_json(), {"call_expert/p1": True}))

    assert [each.response.data for each in result.executions] == ["The expert has paid."]
    assert len(paid) == 1
