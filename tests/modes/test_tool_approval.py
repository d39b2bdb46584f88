"""Calls that need approval, in the same process or in another one."""

import asyncio
import gc
import json
import subprocess
import sys
import weakref
from datetime import date
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
from pydantic import BaseModel

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    Prompt,
    ToolContext,
    UserMessage,
    tool,
)
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.chain.chain import TOOL_CALLING_ORDER
from chatclient.chat.events import (
    ApprovalNeeded,
    Done,
    RoundEnded,
    TextDelta,
    ToolCallFinished,
    ToolRunStarted,
)
from chatclient.chat.messages import ToolCall, ToolResponse
from chatclient.chat.response import Usage
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.client.options import SystemRequest
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import (
    ToolDeniedError,
    ToolError,
    ToolExecutionError,
    ToolLoopError,
    ToolUsageError,
    UsageError,
)
from chatclient.testing import Answer, Ask, Asked, ScriptedModel, call
from chatclient.tools import (
    ApprovalRequired,
    DataToolCallback,
    Decision,
    NextTool,
    PendingTurn,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolDefinition,
    ToolExecutionResult,
    ToolFailurePolicy,
    ToolInvocation,
    ToolLimits,
    ToolResult,
    augment,
    tool_callbacks,
)
from chatclient.tools.execution.approval import DECISIONS
from tests.modes.test_tool_calling import assert_paired, results

paid: list[int] = []
looked: list[str] = []
keys: list[str] = []


@tool
def pay(amount: int, context: ToolContext) -> str:
    """Pay an amount."""
    paid.append(amount)
    keys.append(context.idempotency_key)
    return f"paid {amount}"


@tool(effect="read")
def look(what: str = "balance") -> str:
    """Look something up."""
    looked.append(what)
    return f"{what}: 100"


@pytest.fixture(autouse=True)
def _nothing_happened() -> None:
    for each in (paid, looked, keys):
        each.clear()


def pay_call(amount: int, id: str = "p1") -> ToolCall:
    return call("pay", f'{{"amount": {amount}}}', id=id)


def client_of(model: ScriptedModel, *, approval: Any = None, **manager: Any) -> ChatClient:
    manager.setdefault("interceptors", [approval or ToolApproval()])
    builder = ChatClient.builder(model).default_tools(pay, look)
    return builder.tool_calling_manager(ToolCallingManager(**manager)).build()


def pending(asked: Asked) -> PendingTurn:
    turn = asked.waiting
    assert isinstance(turn, PendingTurn)
    return turn


def suspended(ask: Ask, *answers: Answer, **settings: Any) -> PendingTurn:
    """Return the pending turn of a suspended request."""
    return pending(ask(client_of(ScriptedModel(*answers), **settings).prompt("Pay!")))


async def content_of(request: ChatClientRequestSpec, mode: str, *, looks: bool) -> str:
    """Return the content of a request, before or after reading its pending turn."""
    if mode in ("stream", "astream"):
        stream: Any = getattr(request, mode)()
        items = stream.content()
        return "".join([piece async for piece in items] if mode == "astream" else items)
    answer = request.call() if mode == "call" else await request.acall()
    if looks:
        assert answer.pending_turn() is not None
    return answer.content() + answer.content()


@pytest.mark.parametrize("looks", [False, True])
@pytest.mark.parametrize("mode", ["call", "acall", "stream", "astream"])
async def test_content_of_a_turn_that_waits(
    mode: str, looks: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """One warning names `pending_turn` for an empty text, unless that was read before."""
    request = client_of(ScriptedModel(pay_call(5))).prompt("Pay!")

    assert await content_of(request, mode, looks=looks) == ""

    warnings = [record.getMessage() for record in caplog.records]
    silent = looks and "call" in mode
    assert len(warnings) == (0 if silent else 1)
    assert all("see pending_turn()" in each and "of=['pay']" in each for each in warnings)


# --- at once ---


@pytest.mark.feature("manager-no-approval", "wish-human-approval-suspend-resume")
@pytest.mark.parametrize("kind", ["plain", "async"])
@pytest.mark.parametrize("form", ["bool", "Decision"])
def test_a_function_can_approve_a_call(ask: Ask, kind: str, form: str) -> None:
    """A plain or asynchronous function decides with a bool or a `Decision` with a reason."""
    asked: list[Any] = []

    def decide(invocation: ToolInvocation) -> Decision | bool:
        asked.append(json.loads(invocation.tool_call.arguments)["amount"])
        approved = asked[-1] < 100
        return approved if form == "bool" else Decision(approved, "" if approved else "Too much.")

    async def decide_later(invocation: ToolInvocation) -> Decision | bool:
        await asyncio.sleep(0.001)
        return decide(invocation)

    model = ScriptedModel([pay_call(5, "a"), pay_call(500, "b"), call("look")], "done")
    approval = ToolApproval(ask=decide if kind == "plain" else decide_later)
    result = ask(client_of(model, approval=approval).prompt("x"))

    refusal = "The user did not allow this call." if form == "bool" else "Too much."
    assert results(model.prompts[1]) == ["paid 5", refusal, "balance: 100"]
    assert (paid, sorted(asked)) == ([5], [5, 500])
    assert isinstance(result.executions[1].error, ToolDeniedError)
    assert result.text == "done"


@pytest.mark.feature("manager-approval-other-arguments-denial")
def test_a_call_can_be_approved_with_other_arguments(ask: Ask) -> None:
    """The tool runs with the approved arguments; the history keeps those of the model."""
    approval = ToolApproval(ask=lambda _: Decision(approved=True, arguments='{"amount": 3}'))
    model = ScriptedModel(pay_call(900), "done")
    result = ask(client_of(model, approval=approval).prompt("x"))

    assert paid == [3]
    assert result.executions[0].tool_call == pay_call(900)


@pytest.mark.feature("manager-no-approval")
def test_only_what_needs_approval_is_asked_about(ask: Ask) -> None:
    """A function of the call decides which calls need approval."""

    def large(invocation: ToolInvocation) -> bool:
        amount: int = json.loads(invocation.tool_call.arguments).get("amount", 0)
        return amount > 100

    approval = ToolApproval(needed=large, ask=lambda _: False)
    model = ScriptedModel([pay_call(5), call("look"), pay_call(500, "p2")], "done")
    ask(client_of(model, approval=approval).prompt("x"))

    assert (paid, looked) == ([5], ["balance"])
    assert ToolApproval().ask is None


def test_a_denied_call_can_end_the_turn(ask: Ask) -> None:
    """It is a failure of the kind "denied", and the policy may raise it."""
    policy = ToolFailurePolicy(reactions={"denied": "raise"})
    approval = ToolApproval(ask=lambda _: Decision(approved=False, message="Never."))
    client = client_of(
        ScriptedModel(pay_call(5), "no"), interceptors=[approval], exception_processor=policy
    )
    with pytest.raises(ToolDeniedError, match=r"Never\."):
        ask(client.prompt("x"))


@pytest.mark.feature("manager-undecided-call")
def test_an_answer_that_is_no_decision_does_not_approve(ask: Ask) -> None:
    """A truthy value is no approval; it raises an error to the application."""
    answer: Any = "yes"
    model = ScriptedModel(pay_call(5), "done")
    with pytest.raises(ToolUsageError, match="a bool or a Decision, not 'yes'"):
        ask(client_of(model, approval=ToolApproval(ask=lambda _: answer)).prompt("x"))

    assert paid == []


def test_the_need_for_approval_may_be_asynchronous(ask: Ask) -> None:
    """The function that selects the calls to approve may be asynchronous."""

    async def needed(invocation: ToolInvocation) -> bool:
        await asyncio.sleep(0)
        return "500" in invocation.tool_call.arguments

    model = ScriptedModel([pay_call(5), pay_call(500, "p2")], "never")
    result = ask(client_of(model, approval=ToolApproval(needed)).prompt("x"))

    assert (paid, list(pending(result).to_decide())) == ([5], ["p2"])


def test_no_decision_suspends_the_turn(ask: Ask) -> None:
    """A function that returns None suspends the turn."""
    turn = suspended(ask, pay_call(5), approval=ToolApproval(ask=lambda _: None))

    assert turn.pending == (pay_call(5),)


# --- later ---


@pytest.mark.feature("manager-suspending-turn")
def test_a_turn_waits_for_approval(ask: Ask) -> None:
    """The response has the pending calls; calls without approval have run already."""
    model = ScriptedModel([call("look"), pay_call(5)], "never")
    result = ask(client_of(model).prompt("Pay!"))
    turn = pending(result)

    assert (paid, looked) == ([], ["balance"])
    assert turn.messages == (UserMessage("Pay!"),)
    assert turn.message == AssistantMessage(tool_calls=[call("look"), pay_call(5)])
    assert turn.responses == (ToolResponse("call_look", "look", "balance: 100"),)
    assert (turn.pending, turn.rounds) == ((pay_call(5),), 1)
    assert result.response.chat_response.has_tool_calls()
    assert [each.tool_call.name for each in result.executions] == ["look"]
    assert len(model.prompts) == 1
    if ask.streaming:
        assert result.events[-2:] == [ApprovalNeeded(turn), Done(result.response.chat_response)]


@pytest.mark.feature("manager-suspending-turn")
def test_the_accessors_have_the_pending_turn() -> None:
    """Each kind of answer has the pending turn, or None."""

    def client() -> ChatClient:
        return client_of(ScriptedModel(pay_call(5), "never"))

    async def later() -> list[PendingTurn | None]:
        stream = client().prompt("x").idempotency_key("1").astream()
        assert [piece async for piece in stream.content()] == []
        return [
            (await client().prompt("x").idempotency_key("1").acall()).pending_turn(),
            stream.pending_turn(),
        ]

    stream = client().prompt("x").idempotency_key("1").stream()
    assert list(stream) == []
    turns = [client().prompt("x").idempotency_key("1").call().pending_turn(), stream.pending_turn()]

    assert turns == asyncio.run(later()) == [turns[0]] * 2
    assert turns[0] is not None
    nothing = ChatClient.create(ScriptedModel("hi")).prompt("x").call().pending_turn()
    assert nothing is None


@pytest.mark.feature("wish-human-approval-suspend-resume")
@pytest.mark.parametrize("way", ["object", "json"])
@pytest.mark.parametrize("decision", ["approve", "deny", Decision(approved=False)], ids=str)
def test_a_turn_is_resumed_in_another_client(ask: Ask, way: str, decision: Any) -> None:
    """After a decision, another client runs or refuses the pending call, and the model answers."""
    turn = suspended(ask, [call("look"), pay_call(5)])
    model = ScriptedModel("It is done.")
    given = turn if way == "object" else turn.to_json()
    result = ask(client_of(model).resume(given, decision))

    assert result.text == "It is done."
    answered = "paid 5" if decision == "approve" else "The user did not allow this call."
    assert results(model.prompts[0]) == ["balance: 100", answered]
    assert (paid, looked) == ([5] if decision == "approve" else [], ["balance"])
    assert model.prompts[0].messages[:2] == (*turn.messages, turn.message)
    assert_paired(model.prompts[0].messages)
    assert result.response.turn.pending is None


@pytest.mark.feature("manager-approval-other-arguments-denial")
def test_each_call_can_be_decided_differently(ask: Ask) -> None:
    """One is approved, one denied with a reason, one approved with other arguments."""
    calls = [pay_call(1, "a"), call("look"), pay_call(2, "b"), pay_call(3, "c")]
    turn = suspended(ask, calls)
    model = ScriptedModel("done")
    decisions: dict[str, Decision | bool] = {
        "c": Decision(approved=True, arguments='{"amount": 30}'),
        "a": True,
        "b": Decision(approved=False, message="Not that one."),
    }
    result = ask(client_of(model).resume(turn.to_json(), decisions))

    changed = 'The user changed the arguments to {"amount": 30}.\npaid 30'
    assert results(model.prompts[0]) == ["paid 1", "balance: 100", "Not that one.", changed]
    assert sorted(paid) == [1, 30]
    assert looked == ["balance"]
    assert [each.tool_call.id for each in result.executions] == ["call_look", "a", "b", "c"]
    assert [each.is_error for each in result.executions] == [False, False, True, False]


@pytest.mark.feature("manager-undecided-call")
@pytest.mark.parametrize(
    ("decisions", "words"),
    [
        ({}, "not decided"),
        ({"p1": True}, r"not decided \['p2'\]"),
        ({"p1": True, "p2": True, "p3": True}, r"unknown \['p3'\]"),
        ({"p1": True, "p2": True, 3: True, "p3": True}, r"unknown \['p3', 3\]"),
        ({"p1": True, "p2": None}, "a bool or a Decision"),
        ({"p1": True, "p2": "approve"}, "a bool or a Decision"),
    ],
)
def test_every_waiting_call_has_to_be_decided(decisions: Any, words: str) -> None:
    """No tool runs while a decision is missing, invalid or for an unknown call."""
    turn = suspended(Ask("call"), [pay_call(1), pay_call(2, "p2"), call("look")])
    with pytest.raises(UsageError, match=words):
        client_of(ScriptedModel("never")).resume(turn, decisions)
    assert paid == []


@pytest.mark.parametrize("decisions", [None, True, ["p1"], 7])
def test_what_decides_nothing_is_refused(decisions: Any) -> None:
    """An invalid decision raises an error that lists the valid ones."""
    turn = suspended(Ask("call"), [pay_call(1)])
    client = client_of(ScriptedModel("never"))

    with pytest.raises(UsageError, match=r"mapping from the ids \['p1'\].*'approve' or 'deny'"):
        client.resume(turn, decisions)
    not_a_turn: Any = decisions
    with pytest.raises(UsageError, match="resume takes a PendingTurn or its JSON, not"):
        client.resume(not_a_turn, "approve")


@pytest.mark.feature("manager-resumed-request-without-tools")
def test_a_turn_needs_the_approved_tools(ask: Ask) -> None:
    """Without an approved tool nothing is run or undone, and the turn stays pending."""
    undone: list[int] = []

    @tool(effect="read", compensation=lambda: undone.append(1))
    def book() -> None: ...

    manager = ToolCallingManager(interceptors=[ToolApproval()])
    model = ScriptedModel(call("book"), [pay_call(1), pay_call(2, "p2")])
    client = ChatClient.builder(model).tool_calling_manager(manager).build()
    turn = pending(ask(client.prompt("x").tools(pay, book)))
    request = client.resume(turn, {"p1": True, "p2": False})
    with pytest.raises(UsageError, match="to run the tool 'pay', which is not offered; give the"):
        ask(request.tools(book))

    assert (paid, undone) == ([], [])
    last = ScriptedModel("done")
    denied = ChatClient.create(last).resume(turn, "deny")
    assert ask(denied.tools(book)).text == "done"


@pytest.mark.parametrize("again", ["by somebody", "by an advisor"])
def test_resuming_fails_if_tools_cannot_be_resolved(ask: Ask, again: str) -> None:
    """Nothing is run or undone, and the turn can be resumed again."""
    undone: list[int] = []

    @tool(effect="read", compensation=lambda: undone.append(1))
    def book() -> None: ...

    class Registry:
        down = False

        def resolve(self, name: str, /) -> ToolCallback | None:
            if self.down:
                raise ConnectionError("the registry is down")
            return tool_callbacks(pay)[0] if name == "pay" else None

    registry = Registry()

    async def once_more(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        except ConnectionError:
            registry.down = False
            return await call_next(request)

    once_more.order = TOOL_CALLING_ORDER - 1  # type: ignore[attr-defined]
    model = ScriptedModel(call("book"), pay_call(1), "done")
    manager = ToolCallingManager(resolver=registry, interceptors=[ToolApproval()])
    builder = ChatClient.builder(model).tool_calling_manager(manager).default_tools(book)
    client = builder.build()
    turn = pending(ask(client.prompt("x")))
    registry.down = True
    request = client.resume(turn, "approve")
    if again == "by an advisor":
        request = request.advisors(once_more)
    else:
        with pytest.raises(ConnectionError):
            ask(request)
        assert (paid, undone) == ([], [])
        registry.down = False

    assert ask(request).text == "done"
    assert (paid, undone) == ([1], [])


def test_a_resumed_turn_may_come_to_wait_again(ask: Ask) -> None:
    """The next write suspends the turn again, with its complete history."""
    turn = suspended(ask, pay_call(1))
    again = pending(ask(client_of(ScriptedModel(pay_call(2, "p2"))).resume(turn, "approve")))
    model = ScriptedModel("done")
    ask(client_of(model).resume(again.to_json(), "approve"))

    assert paid == [1, 2]
    assert (again.rounds, again.calls) == (2, {"pay": 2})
    assert len(model.prompts[0].messages) == 5
    assert_paired(model.prompts[0].messages)


@pytest.mark.parametrize("later", [[], [pay_call(-3, "p3")]])
def test_a_round_that_fails_and_waits_fails_once(ask: Ask, later: list[ToolCall]) -> None:
    """Failures before and after a suspension count as one failed round.

    A retry of the answer does not count that round again.
    """

    @tool(name="pay")
    def refuse(amount: int) -> str:
        msg = f"cannot pay {amount}"
        raise ToolError(msg)

    approval = ToolApproval(needed=lambda invocation: "2" in invocation.tool_call.arguments)
    policy = ToolFailurePolicy(max_failures=1)
    manager = ToolCallingManager(interceptors=[approval], exception_processor=policy)
    model = ScriptedModel([pay_call(-1, "p1"), pay_call(-2, "p2")], "bad", later or "good")
    client = ChatClient.builder(model).default_tools(refuse).tool_calling_manager(manager).build()
    turn = ask(client.prompt("x")).answer.pending_turn()
    again = OutputGuardrailAdvisor(
        lambda answer: GuardrailResult.retry("bad") if answer.text == "bad" else None
    )
    request = client.resume(turn.to_json(), "approve").advisors(again)
    if later:
        with pytest.raises(ToolExecutionError, match="cannot pay -3"):
            ask(request)
    else:
        assert ask(request).text == "good"

    assert results(model.prompts[1]) == ["cannot pay -1", "cannot pay -2"]


def test_a_decision_is_about_one_call_only(ask: Ask) -> None:
    """A later call that happens to have the same id has to be approved for itself."""
    turn = suspended(ask, pay_call(1, "call_0"))
    client = client_of(ScriptedModel(pay_call(1000, "call_0"), "never"))
    again = pending(ask(client.resume(turn, {"call_0": True})))

    assert paid == [1]
    assert again.pending == (pay_call(1000, "call_0"),)


def test_a_decision_does_not_reach_an_agents_own_calls(ask: Ask) -> None:
    """Calls of an approved agent need separate approvals, also with equal ids."""
    inner = client_of(ScriptedModel(pay_call(1000, "p1"), "inner"))
    agent = inner.as_tool("agent", "An agent.")
    waiting = call("agent", '{"request": "pay"}', id="p1")

    def outer(*answers: Answer) -> ChatClient:
        builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(agent)
        manager = ToolCallingManager(interceptors=[ToolApproval()])
        return builder.tool_calling_manager(manager).build()

    turn = pending(ask(outer(waiting).prompt("x")))
    ask(outer("done").resume(turn, "approve"))

    assert paid == []


@pytest.mark.feature("manager-resuming-elsewhere")
def test_limits_count_on_in_a_resumed_turn(ask: Ask) -> None:
    """What was called before the turn waited counts, and the waiting call counts once."""
    limits = ToolLimits(per_tool={"pay": 2}, max_rounds=9, on_exceeded="tell_model")
    turn = suspended(ask, call("look"), [pay_call(1), call("look", id="l2")], limits=limits)
    assert (turn.calls, turn.rounds) == ({"look": 2, "pay": 1}, 2)

    approval = ToolApproval(ask=lambda _: True)
    calls = [pay_call(n, f"q{n}") for n in (2, 3)]
    model = ScriptedModel(calls, "done")
    client = client_of(model, interceptors=[approval], limits=limits)
    result = ask(client.resume(turn.to_json(), "approve"))

    assert paid == [1, 2]
    assert "limit (2) exceeded for tool 'pay'" in results(model.prompts[1])[1]
    assert [each.attempt for each in result.executions] == [1, 2, 1, 2, 3]


@pytest.mark.feature("manager-limit-reached-round-waits")
@pytest.mark.parametrize("on_exceeded", ["partial", "raise", "final_answer", "tell_model"])
def test_a_limit_in_a_suspended_round(ask: Ask, on_exceeded: Any) -> None:
    """It ends the turn when it is resumed; approved calls are run."""
    limits = ToolLimits(per_tool={"look": 1}, on_exceeded=on_exceeded)
    calls = [pay_call(1), call("look", id="l1"), call("look", id="l2")]
    turn = suspended(ask, calls, limits=limits)
    model = ScriptedModel("done")
    request = client_of(model, limits=limits).resume(turn.to_json(), "approve")
    if on_exceeded == "raise":
        with pytest.raises(ToolLoopError, match=r"limit \(1\) exceeded for tool 'look'"):
            ask(request)
    else:
        text = ask(request).text
        assert ("limit (1)" in text) == (on_exceeded == "partial")

    assert paid == [1]
    assert len(model.prompts) == (on_exceeded in ("final_answer", "tell_model"))


@pytest.mark.feature("manager-suspended-turn-remembers")
def test_rounds_count_on_in_a_resumed_turn(ask: Ask) -> None:
    """The limit of rounds includes the rounds before the suspension."""
    turn = suspended(ask, call("look"), pay_call(1))
    client = client_of(ScriptedModel("never"), limits=ToolLimits(max_rounds=2))
    result = ask(client.resume(turn, "approve"))

    assert result.text == "Round limit (2) reached for this turn."
    assert paid == [1]


@pytest.mark.feature("manager-resuming-elsewhere")
def test_keys_of_resumed_calls(ask: Ask) -> None:
    """A second identical call has another key, also if another process makes it."""

    def turn() -> PendingTurn:
        first = client_of(ScriptedModel(pay_call(5, "a"), pay_call(5, "b")))
        waits_twice = pending(ask(first.prompt("Pay!").idempotency_key("1")))
        second = client_of(ScriptedModel(pay_call(5, "b")))
        return pending(ask(second.resume(waits_twice.to_json(), "approve")))

    ask(client_of(ScriptedModel("done")).resume(turn().to_json(), "approve"))
    once = list(keys)
    keys.clear()
    ask(client_of(ScriptedModel("done")).resume(turn().to_json(), "approve"))

    assert len(set(once)) == 2
    assert keys == once


def test_keys_of_equal_calls_with_one_suspended(ask: Ask) -> None:
    """The second call ran while the first one waited; their keys differ."""
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.id == "a")
    turn = suspended(ask, [pay_call(5, "a"), pay_call(5, "b")], approval=approval)
    client = client_of(ScriptedModel(pay_call(5, "c"), "done"), approval=approval)
    ask(client.resume(turn, "approve"))

    assert paid == [5, 5, 5]
    assert len(set(keys)) == 3


def test_a_suspended_turn_is_released_with_its_response(ask: Ask) -> None:
    """Its tool context is released by reference counting, without a garbage collection."""

    class Secret:
        pass

    secret = Secret()
    gone = weakref.ref(secret)
    model = ScriptedModel(pay_call(5))
    gc.disable()
    try:
        ask(client_of(model).prompt("x").tool_context(secret=secret))
        model.prompts.clear()
        del secret
        assert gone() is None
    finally:
        gc.enable()


def test_the_conversation_is_carried_on(ask: Ask) -> None:
    """A resumed request keeps the conversation id, also in the tool context."""
    seen: list[Any] = []

    @tool
    def book(context: ToolContext) -> None:
        seen.append((context.conversation_id, context.get("tenant")))

    def client(*answers: Answer) -> ChatClient:
        manager = ToolCallingManager(interceptors=[ToolApproval()])
        builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(book)
        return builder.tool_calling_manager(manager).build()

    turn = pending(ask(client(call("book")).prompt("x").conversation("c-7")))
    request = client("done").resume(turn.to_json(), "approve").tool_context(tenant="acme")
    result = ask(request)

    assert turn.conversation_id == "c-7"
    assert seen == [("c-7", "acme")]
    assert result.response.context["chat_memory_conversation_id"] == "c-7"


def test_a_turn_is_resumed_in_its_conversation(ask: Ask) -> None:
    """Resuming with another conversation id is refused, and nothing runs."""
    client = client_of(ScriptedModel(pay_call(5), "done"))
    turn = pending(ask(client.prompt("Pay!").conversation("ada")))
    with pytest.raises(UsageError, match="the turn belongs to conversation 'ada'"):
        ask(client.resume(turn, "approve").conversation("bob"))

    assert paid == []
    assert ask(client.resume(turn, "approve").conversation("ada")).text == "done"


def test_the_id_of_a_conversation_is_a_text(ask: Ask) -> None:
    """The id is converted to text for functions, advisors and the pending turn."""
    given = UUID(int=5)
    seen: list[object] = []

    def instructions(request: SystemRequest) -> str:
        seen.append(request.conversation_id)
        return "Be brief."

    async def named(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        seen.append(request.context[CONVERSATION_ID])
        return await call_next(request.mutate(context={CONVERSATION_ID: given}))

    advisor = partial(named)
    advisor.order = TOOL_CALLING_ORDER - 1  # type: ignore[attr-defined]
    client = client_of(ScriptedModel(pay_call(5), "done"))
    client = client.mutate().default_system(instructions).default_advisors(advisor).build()
    turn = pending(ask(client.prompt("Pay!").advisor_params({CONVERSATION_ID: given})))

    assert seen == [str(given)] * 2
    assert turn.conversation_id == str(given)
    assert ask(client.resume(turn.to_json(), "approve")).text == "done"


def test_a_resumed_request_repeats_no_text(ask: Ask) -> None:
    """The client's default texts are not added again, because the turn has them."""

    def client(model: ScriptedModel) -> ChatClient:
        builder = client_of(model).mutate().default_system("Be {x}.", params={"x": "brief"})
        return builder.default_user("Hi").build()

    turn = pending(ask(client(ScriptedModel(pay_call(1))).prompt()))
    model = ScriptedModel("done")
    ask(client(model).resume(turn, "approve"))

    assert [m.text for m in model.prompts[0].messages[:2]] == ["Be brief.", "Hi"]
    assert len(model.prompts[0].messages) == 4


def test_a_resumed_stream_has_the_approved_calls() -> None:
    """Its events begin with the approved calls; earlier ones are not repeated."""
    turn = suspended(Ask("stream"), [call("look"), pay_call(5)])
    model = ScriptedModel("It is done.", chunks=50)
    events = Ask("stream")(client_of(model).resume(turn, "approve")).events

    kinds = [ToolRunStarted, ToolCallFinished, TextDelta, RoundEnded]
    assert [type(event) for event in events[:4]] == kinds
    assert events[1].response.data == "paid 5"


def test_a_direct_result_may_have_waited(ask: Ask) -> None:
    """An approved call that returns directly ends the turn without another model call.

    The response has the context of the resumed request.
    """

    @tool(return_direct=True)
    def wire() -> str:
        return "wired"

    def client(*answers: Answer) -> ChatClient:
        manager = ToolCallingManager(interceptors=[ToolApproval()])
        builder = ChatClient.builder(ScriptedModel(*answers)).default_tools(wire)
        return builder.tool_calling_manager(manager).build()

    turn = pending(ask(client(call("wire")).prompt("x")))

    async def reads(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        assert request.context["mine"] == 1
        return await call_next(request)

    resumed = client().resume(turn, "approve").advisors(reads)
    result = ask(resumed.advisor_params({"mine": 1}))

    assert result.text == "wired"
    assert result.response.context["mine"] == 1


@pytest.mark.feature("manager-result-says-so")
@pytest.mark.parametrize("stored", [True, False])
def test_a_suspended_turn_keeps_the_metadata_of_its_results(ask: Ask, stored: bool) -> None:
    """`return_direct` of a result is kept, from before and after the suspension."""

    @tool(effect="read")
    def total() -> ToolResult:
        return ToolResult("12 euros", return_direct=True)

    @tool
    def wire() -> ToolResult:
        return ToolResult("wired", return_direct=True)

    model = ScriptedModel([call("total"), call("wire")], "never")
    client = client_of(model).mutate().default_tools(total, wire).build()
    turn = pending(ask(client.prompt("x")))
    result = ask(client.resume(turn.to_json() if stored else turn, "approve"))

    assert (result.text, len(model.prompts)) == ("12 euros\n\nwired", 1)


@pytest.mark.parametrize("decision", ["approve", "deny"])
def test_decisions_hold_if_the_rule_has_changed(ask: Ask, decision: Any) -> None:
    """A decision applies although the rule no longer asks for approval."""
    asked_about: list[str] = []

    def first_time(invocation: ToolInvocation) -> bool:
        asked_about.append(invocation.tool_call.name)
        return asked_about.count(invocation.tool_call.name) == 1

    model = ScriptedModel(pay_call(5), "done")
    client = client_of(model, approval=ToolApproval(first_time))
    ask(client.resume(pending(ask(client.prompt("x"))), decision))

    told = "paid 5" if decision == "approve" else "The user did not allow this call."
    assert results(model.prompts[1]) == [told]
    assert (asked_about, paid) == (["pay"], [5] if decision == "approve" else [])


def test_a_resumed_turn_forces_no_call(ask: Ask) -> None:
    """A tool choice applies to the first round of the turn."""

    def obedient(prompt: Prompt) -> Answer:
        return pay_call(5) if prompt.options.tool_choice == "required" else "done"

    client = client_of(ScriptedModel(obedient))
    client = client.mutate().default_options(tool_choice="required").build()
    turn = pending(ask(client.prompt("x")))

    assert ask(client.resume(turn, "approve")).text == "done"
    assert paid == [5]


def test_approved_calls_run_despite_tool_choice_none(ask: Ask) -> None:
    """The tool choice applies to new calls of the model."""
    client = client_of(ScriptedModel(pay_call(5), "done"))
    turn = pending(ask(client.prompt("x")))

    assert ask(client.resume(turn, "approve").options(tool_choice="none")).text == "done"
    assert paid == [5]


def test_an_approved_call_may_still_fail(ask: Ask) -> None:
    """The model receives an error result, and the turn continues."""

    @tool
    def wire(amount: int) -> str:
        msg = f"no funds for {amount}"
        raise ToolError(msg)

    turn = pending(
        ask(client_of(ScriptedModel(call("wire", {"amount": 5}))).prompt("x").tools(wire))
    )
    model = ScriptedModel("done")
    ask(client_of(model).resume(turn.to_json(), "approve").tools(wire))

    assert results(model.prompts[0]) == ["no funds for 5"]


def test_calls_that_run_side_by_side_may_wait(ask: Ask) -> None:
    """Of parallel calls some are suspended, and the others finish."""
    calls = [pay_call(n, f"p{n}") if n % 2 else call("look", id=f"l{n}") for n in range(6)]
    turn = suspended(ask, calls, blocking_concurrency=4)

    assert [each.id for each in turn.pending] == ["p1", "p3", "p5"]
    assert [each.id for each in turn.responses] == ["l0", "l2", "l4"]
    model = ScriptedModel("done")
    ask(client_of(model, blocking_concurrency=4).resume(turn.to_json(), "approve"))
    assert_paired(model.prompts[0].messages)


@pytest.mark.feature("manager-approval-loop-your-own")
@pytest.mark.parametrize("blocking", [True, False])
def test_an_own_loop_resumes(blocking: bool) -> None:
    """A loop of the application resumes with the pending turn or its JSON, any number of times."""
    manager = ToolCallingManager(
        interceptors=[ToolApproval()], limits=ToolLimits(per_tool={"look": 1})
    )
    calls = [pay_call(5), pay_call(6, "p2"), call("look", id="l1"), call("look", id="l2")]
    model = ScriptedModel(calls)
    response = client_of(model).prompt("x").tool_calling(False).call().chat_response()
    prompt = model.prompts[0]

    async def goes_on() -> ToolExecutionResult:
        result = await manager.aexecute_tool_calls(prompt, response)
        assert result.pending_turn is not None
        return await manager.aresume_tool_calls(result.pending_turn, "approve", prompt.options)

    if blocking:
        waiting = manager.execute_tool_calls(prompt, response).pending_turn
        assert waiting is not None
        stored = PendingTurn.from_json(waiting.to_json())
        result = manager.resume_tool_calls(stored, "approve", prompt.options)
    else:
        result = asyncio.run(goes_on())

    told = [each.response.data for each in result.executions]
    assert told[:3] == ["paid 5", "paid 6", "balance: 100"]
    assert [each.attempt for each in result.executions] == [1, 2, 1, 2]
    assert all(each.started is not None for each in result.executions[:3])
    assert result.pending_turn is None
    assert "limit (1) exceeded for tool 'look'" in (result.breach or "")
    assert_paired(result.conversation_history)


def test_an_own_loop_has_the_pending_calls() -> None:
    """The manager's result has the pending calls; its history lacks them."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    model = ScriptedModel([call("look"), pay_call(5)])
    client = client_of(model)
    response = client.prompt("x").tool_calling(False).call().chat_response()
    result = manager.execute_tool_calls(model.prompts[0], response)

    assert result.pending == (pay_call(5),)
    assert result.conversation_history == (UserMessage("x"),)
    assert [each.response.data for each in result.executions] == ["balance: 100"]


# --- JSON ---


@pytest.mark.feature("manager-resuming-elsewhere")
def test_a_pending_turn_is_json_both_ways() -> None:
    """A turn that is read from its JSON equals the original."""
    arguments = '{"amount": 5, "note": "für \\ud800 \\"Ann\\""}'
    history = [UserMessage("Hi"), AssistantMessage("Hello"), UserMessage("Pay 5 € — now")]
    wire = DataToolCallback(ToolDefinition("wire", "Wire.", {"type": "object"}), print)
    client = client_of(ScriptedModel(call("look"), [call("look"), call("wire", arguments)]))
    request = client.prompt(history).tools(look, wire).conversation("c")
    turn = pending(Ask("call")(request))

    text = turn.to_json()
    assert PendingTurn.from_json(text) == turn
    assert json.loads(text)["version"] == 1
    with pytest.raises(UsageError, match="not a pending turn"):
        PendingTurn.from_json(json.dumps({**json.loads(text), "version": 2}))


def test_metadata_of_pending_turns(caplog: pytest.LogCaptureFixture) -> None:
    """Metadata is kept; a value without a JSON form is dropped, listed and logged."""

    @tool(effect="read")
    def clock() -> ToolResult:
        return ToolResult("noon", metadata={"at": date(2026, 11, 25)})

    client = client_of(ScriptedModel([call("clock"), pay_call(5)]))
    turn = pending(Ask("call")(client.prompt("x").tools(clock, pay)))

    [response] = PendingTurn.from_json(turn.to_json()).responses
    assert response.metadata == {"at": date(2026, 11, 25)}

    @tool(effect="read")
    def connect() -> ToolResult:
        return ToolResult("ok", metadata={"connection": object()})

    client = client_of(ScriptedModel([call("connect"), pay_call(5)]))
    turn = pending(Ask("call")(client.prompt("x").tools(connect, pay)))
    text = turn.to_json()
    [response] = PendingTurn.from_json(text).responses
    assert response.metadata == {}
    assert json.loads(text)["left_out"] == {"responses[0].metadata.connection": "builtins.object"}
    assert "responses[0].metadata.connection" in caplog.text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nothing",
        "[]",
        "null",
        "{}",
        '{"version": 1}',
        '{"version": 2, "messages": []}',
        '{"version": 1, "messages": [], "message": {"role": "user", "content": "x"}}',
    ],
)
def test_what_is_no_pending_turn_is_refused(text: str) -> None:
    """Invalid JSON, other JSON or an unknown version is a usage error."""
    with pytest.raises(UsageError, match="not a pending turn"):
        client_of(ScriptedModel("never")).resume(text, "approve")


OTHER_PROCESS = """
import sys
from chatclient import ChatClient
from chatclient.testing import ScriptedModel
from chatclient import tool
from chatclient.tools import ToolApproval, ToolCallingManager

@tool
def pay(amount: int) -> str:
    print("paying", amount)
    return f"paid {amount}"

manager = ToolCallingManager(interceptors=[ToolApproval()])
model = ScriptedModel("Paid, thank you.")
client = ChatClient.builder(model).default_tools(pay).tool_calling_manager(manager).build()
print(client.resume(sys.stdin.read(), "approve").call().content())
print([response.data for response in model.prompts[0].messages[-1].responses])
"""


@pytest.mark.feature("manager-resuming-elsewhere")
@pytest.mark.parametrize(
    ("decision", "ran", "told"),
    [
        (False, [], "The user did not allow this call."),
        (Decision(approved=True, arguments='{"amount": 1}'), [1], "paid 1"),
        (Decision(True, "Be quick."), [5], "The user says: Be quick.\npaid 5"),
        (Decision.answered("paid in cash"), [], "paid in cash"),
    ],
)
@pytest.mark.parametrize("interceptors", [0, 1, 2])
def test_a_decision_applies_in_any_client(
    ask: Ask, decision: Any, ran: list[int], told: str, interceptors: int
) -> None:
    """The resuming client may have no approval interceptor, or several."""
    turn = suspended(ask, pay_call(5))
    model = ScriptedModel("done")
    approvals = [ToolApproval() for _ in range(interceptors)]
    ask(client_of(model, interceptors=approvals).resume(turn, {"p1": decision}))

    assert paid == ran
    assert results(model.prompts[0])[0].endswith(told)


@pytest.mark.parametrize(("decision", "ran"), [("approve", [5]), ("deny", [])])
def test_a_custom_interceptor_may_suspend_a_turn(ask: Ask, decision: Any, ran: list[int]) -> None:
    """It calls the next one for decided calls, and need not implement the decisions."""

    async def careful(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        if DECISIONS not in invocation.context:
            raise ApprovalRequired
        return await call_next(invocation)

    turn = suspended(ask, pay_call(5), approval=careful)
    client = client_of(ScriptedModel("done"), approval=careful)
    result = ask(client.resume(turn.to_json(), decision))

    assert (result.text, paid) == ("done", ran)


@pytest.mark.process("pending turn")
@pytest.mark.feature("manager-resuming-elsewhere", "wish-human-approval-suspend-resume")
def test_a_turn_is_resumed_in_another_process(tmp_path: Path) -> None:
    """Another process needs only the JSON and the tools."""
    turn = suspended(Ask("call"), [call("look"), pay_call(5)])
    script = tmp_path / "resume.py"
    script.write_text(OTHER_PROCESS)
    done = subprocess.run(
        [sys.executable, str(script)],
        input=turn.to_json(),
        capture_output=True,
        text=True,
        check=True,
    )

    assert done.stdout.splitlines() == [
        "paying 5",
        "Paid, thank you.",
        "['balance: 100', 'paid 5']",
    ]
    assert (paid, done.stderr) == ([], "")


def test_interceptors_inside_the_approval(ask: Ask) -> None:
    """They see the approved arguments; the order of interceptors decides."""
    seen: list[str] = []

    async def watch(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        seen.append(invocation.tool_call.arguments)
        return await call_next(invocation)

    approval = ToolApproval(ask=lambda _: Decision(approved=True, arguments='{"amount": 1}'))
    model = ScriptedModel(pay_call(5), "done")
    ask(client_of(model, interceptors=[watch, approval, watch]).prompt("x"))

    assert seen == ['{"amount": 5}', '{"amount": 1}']


# --- what is decided about, and what the model is told ---


@pytest.mark.feature("manager-changed-model")
@pytest.mark.parametrize("stored", [False, True])
def test_the_result_begins_with_the_changed_arguments(ask: Ask, stored: bool) -> None:
    """The result names the arguments that the user changed, and the reason."""
    decision = Decision(approved=True, arguments='{"amount": 3}', message="Only 3.")
    model = ScriptedModel(pay_call(900), "done")
    approval = ToolApproval() if stored else ToolApproval(ask=lambda _: decision)
    client = client_of(model, approval=approval)
    result = ask(client.prompt("x"))
    if stored:
        result = ask(client.resume(pending(result).to_json(), {"p1": decision}))

    told = 'The user changed the arguments to {"amount": 3}: Only 3.\npaid 3'
    assert results(model.prompts[1]) == [told]
    assert (result.executions[0].arguments, result.executions[0].value) == (
        '{"amount": 3}',
        "paid 3",
    )
    assert result.executions[0].metadata["remark"] == told.partition("\n")[0]


@pytest.mark.feature("manager-changed-model")
@pytest.mark.parametrize(
    ("decision", "told"),
    [
        (Decision(approved=True, message="Hurry."), "The user says: Hurry.\npaid 5"),
        (Decision(approved=True, arguments='{"amount":5}'), "paid 5"),
        (Decision(approved=True, arguments='{"amount":5}', message="Go."), "The user says: Go."),
        (Decision(True, "By hand.", result=ToolResult("ok")), "The user says: By hand.\nok"),
    ],
)
def test_a_reason_of_the_user_precedes_the_result(ask: Ask, decision: Decision, told: str) -> None:
    """The user's reason precedes the result; reformatted arguments are no change."""
    model = ScriptedModel(pay_call(5), "done")
    ask(client_of(model, approval=ToolApproval(ask=lambda _: decision)).prompt("x"))

    assert results(model.prompts[1])[0].startswith(told)


def test_the_result_has_the_changes_of_each_approver(ask: Ask) -> None:
    """An approver without a change keeps those of earlier ones."""
    changed = Decision(approved=True, arguments='{"amount": 3}')
    approvals = [
        ToolApproval(ask=lambda _: changed),
        ToolApproval(ask=lambda _: True),
        ToolApproval(ask=lambda _: Decision(approved=True, message="Be quick.")),
    ]
    model = ScriptedModel(pay_call(900), "done")
    ask(client_of(model, interceptors=approvals).prompt("x"))

    told = 'The user changed the arguments to {"amount": 3}.\nThe user says: Be quick.\npaid 3'
    assert results(model.prompts[1]) == [told]


@pytest.mark.parametrize(
    ("arguments", "message", "told"),
    [
        ('{"amount": 3}', "", 'The user changed the arguments to {"amount": 3}.'),
        (None, "Be quick.", "The user says: Be quick."),
        (
            '{"amount": 3}',
            "Be quick.",
            'The user changed the arguments to {"amount": 3}: Be quick.',
        ),
    ],
)
def test_one_decision_for_several_approvals(
    arguments: str | None, message: str, told: str, ask: Ask
) -> None:
    """One decision applies to all interceptors that need approval of the call."""
    model = ScriptedModel(pay_call(9 if arguments else 3), "done")
    client = client_of(model, interceptors=[ToolApproval(), ToolApproval()])
    turn = pending(ask(client.prompt("x")))
    decision = Decision(approved=True, message=message, arguments=arguments)
    ask(client.resume(turn, {"p1": decision}))

    assert results(model.prompts[1]) == [f"{told}\npaid 3"]


def test_the_result_has_the_reason_of_each_approver(ask: Ask) -> None:
    """All reasons are kept, also where one ends with the text of another."""
    approvals = [
        ToolApproval(ask=lambda _, said=said: Decision(True, said))  # type: ignore[misc]
        for said in ("Not urgent, but fine.", "but fine.")
    ]
    model = ScriptedModel(pay_call(3), "done")
    ask(client_of(model, interceptors=approvals).prompt("x"))

    told = "The user says: Not urgent, but fine.\nThe user says: but fine.\npaid 3"
    assert results(model.prompts[1]) == [told]


@pytest.mark.feature("manager-changed-model")
def test_a_failure_of_a_changed_call(ask: Ask) -> None:
    """The error result has the arguments that the user changed."""

    @tool
    def wire(amount: int) -> str:
        msg = f"no funds for {amount}"
        raise ToolError(msg)

    decision = Decision(approved=True, arguments='{"amount": 3}')
    model = ScriptedModel(call("wire", {"amount": 9}), "done")
    client = client_of(model, approval=ToolApproval(ask=lambda _: decision))
    ask(client.prompt("x").tools(wire))

    told = 'The user changed the arguments to {"amount": 3}.\nno funds for 3'
    assert results(model.prompts[1]) == [told]


@pytest.mark.feature("manager-changed-model")
def test_an_answer_has_no_remark_in_it(ask: Ask) -> None:
    """A result that is returned directly has no note about changed arguments."""

    @tool(return_direct=True)
    def wire(amount: int) -> str:
        return f"wired {amount}"

    decision = Decision(approved=True, arguments='{"amount": 3}')
    model = ScriptedModel(call("wire", {"amount": 9}))
    client = client_of(model, approval=ToolApproval(ask=lambda _: decision))

    assert ask(client.prompt("x").tools(wire)).text == "wired 3"


@pytest.mark.feature("manager-arguments-do-not-fit")
def test_invalid_arguments_need_no_approval(ask: Ask) -> None:
    """The model receives an error result before the approval is asked for."""
    seen: list[Any] = []

    def large(invocation: ToolInvocation) -> bool:
        seen.append(invocation.arguments())
        return bool(seen[-1]["amount"] > 100)

    calls = [call("pay", '{"amount": "abc"}', id="a"), call("pay", '{"amount": 5,}', id="b")]
    model = ScriptedModel(calls, pay_call(500, "c"))
    result = ask(client_of(model, approval=ToolApproval(large)).prompt("x"))

    assert "amount: should be a valid integer" in results(model.prompts[1])[0]
    assert seen == [{"amount": 5}, {"amount": 500}]
    assert (paid, list(pending(result).to_decide())) == ([5], ["c"])


@pytest.mark.feature("manager-arguments-do-not-fit")
@pytest.mark.parametrize("arguments", ['{"amount": "x"}', "{}", "no JSON"])
def test_a_change_that_cannot_be_run_is_refused(ask: Ask, arguments: str) -> None:
    """Invalid approved arguments raise before anything runs; the turn can be resumed again."""
    turn = suspended(ask, [pay_call(1), pay_call(2, "p2")])
    model = ScriptedModel("done")
    client = client_of(model)
    changed = Decision(approved=True, arguments=arguments)
    with pytest.raises(UsageError, match="about 'p2': The arguments for pay"):
        ask(client.resume(turn, {"p1": True, "p2": changed}))

    assert (paid, model.prompts) == ([], [])
    ask(client.resume(turn, {"p1": True, "p2": False}))
    assert paid == [1]


@pytest.mark.parametrize("arguments", ['{"amount": "x"}', "no JSON"])
def test_arguments_of_an_approval_function_are_checked(ask: Ask, arguments: str) -> None:
    """Invalid arguments from an approval function raise an error to the application."""
    decision = Decision(approved=True, arguments=arguments)
    client = client_of(
        ScriptedModel(pay_call(5), "no"), approval=ToolApproval(ask=lambda _: decision)
    )
    with pytest.raises(ToolUsageError, match="about 'p1'"):
        ask(client.prompt("x"))

    assert paid == []


@pytest.mark.parametrize("kind", ["function", "data"])
def test_a_function_does_not_suspend_the_turn(ask: Ask, kind: str) -> None:
    """A tool cannot suspend its turn, because it would at each run.

    The error names alternatives.
    """

    def wire(amount: int) -> str:
        raise ApprovalRequired

    def execute(call: ToolCall, context: ToolContext) -> str:
        raise ApprovalRequired

    definition = ToolDefinition("wire", "Wire.", {"type": "object"})
    given = wire if kind == "function" else DataToolCallback(definition, execute)
    client = ChatClient.create(ScriptedModel(call("wire", {"amount": 5}), "no"))
    with pytest.raises(ToolUsageError, match=r"'wire' raised .*ToolApproval\(needed=\.\.\.\)"):
        ask(client.prompt("x").tools(given))


def test_the_arguments_of_any_tool_can_be_had(ask: Ask) -> None:
    """Arguments are read by name, from the JSON where the tool does not parse them."""

    class Reason(BaseModel):
        reason: str

    seen: list[Any] = []

    async def watch(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        seen.append(invocation.arguments())
        return await call_next(invocation)

    raw = DataToolCallback(ToolDefinition("raw", "Raw.", {"type": "object"}), lambda *_: "ok")
    tools = [*augment(look, arguments=Reason), raw]
    calls = [
        call("look", {"what": "x", "reason": "y"}),
        call("raw", '{"a": 1,}'),
        call("raw", "[]"),
    ]
    model = ScriptedModel(calls, "done")
    manager = ToolCallingManager(interceptors=[watch])
    builder = ChatClient.builder(model).default_tools(*tools).tool_calling_manager(manager)
    ask(builder.build().prompt("x"))

    assert seen == [{"what": "x", "reason": "y"}, {"a": 1}]
    assert "- should be a JSON object; got []" in results(model.prompts[1])[2]


# --- what a turn that waits has come to ---


@pytest.mark.feature("manager-suspended-turn-remembers")
@pytest.mark.parametrize("stored", [False, True])
def test_usage_and_executions_are_those_of_the_complete_turn(ask: Ask, stored: bool) -> None:
    """After several suspensions and retries, each model call counts once."""

    async def twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        first = await call_next(request)
        if first.turn.pending is not None:
            return first
        again = await call_next(request)
        usage = first.chat_response.usage + again.chat_response.usage
        return again.mutate(chat_response=again.chat_response.with_usage(usage))

    twice.order = TOOL_CALLING_ORDER - 5  # type: ignore[attr-defined]
    model = ScriptedModel([call("look"), pay_call(1, "a")], pay_call(2, "b"), "done", "again")
    client = client_of(model).mutate().default_advisors(twice).build()
    first = pending(ask(client.prompt("x")))
    waits = ask(client.resume(first.to_json() if stored else first, "approve"))
    turn = pending(waits)
    result = ask(client.resume(turn.to_json() if stored else turn, "approve"))

    assert turn.usage == waits.response.chat_response.usage == Usage(20, 10)
    assert result.response.chat_response.usage == Usage(40, 20)
    told = [each.response.data for each in result.executions]
    assert told == ["balance: 100", "paid 1", "paid 2"]
    assert [each.attempt for each in result.executions] == [1, 1, 2]
    assert all(each.started_at is not None for each in result.executions)
    assert [each.value for each in result.executions] == [None, None, "paid 2"]


def test_a_turn_that_an_earlier_version_stored_is_resumed(ask: Ask) -> None:
    """The JSON of an earlier version is read without the fields that it lacks."""
    data = json.loads(suspended(ask, [call("look"), pay_call(5)]).to_json())
    for key in ("usage", "executions", "breach"):
        del data[key]
    result = ask(client_of(ScriptedModel("done")).resume(json.dumps(data), "approve"))

    assert (result.text, paid) == ("done", [5])
    assert [each.tool_call.name for each in result.executions] == ["pay"]
