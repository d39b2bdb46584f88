"""Resumed turns that an advisor outside of the loop sends more than once."""

import asyncio
import pickle
from collections.abc import Callable
from typing import Any

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Next,
    ToolContext,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.chain.chain import MEMORY_ORDER, TOOL_CALLING_ORDER
from chatclient.chat.response import ChatResponse
from chatclient.errors import OverloadedError, ProviderError, ToolLoopError
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import Ask, Asked, ScriptedModel, call
from chatclient.tools import (
    PendingTurn,
    ToolApproval,
    ToolCallingManager,
    ToolInvocation,
    ToolLimits,
)
from tests.modes.test_tool_calling import assert_paired, results
from tests.support.waiting import asettled

done: list[str] = []


def refund(amount: int) -> None:
    done.append(f"refunded {amount}")


@tool
def pay(amount: int) -> str:
    """Pay an amount."""
    done.append(f"paid {amount}")
    return f"paid {amount}"


@tool(compensation=refund)
def book(amount: int) -> str:
    """Book for an amount."""
    done.append(f"booked {amount}")
    return f"booked {amount}"


@tool
async def hang(amount: int) -> str:
    """Take for ever."""
    done.append(f"began {amount}")
    await asyncio.sleep(60)
    return "never"


class Retry:
    """An advisor that retries once after a provider's error."""

    order = TOOL_CALLING_ORDER - 5

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        except ProviderError:
            return await call_next(request)


class Twice:
    """An advisor that calls twice, unless the turn is suspended."""

    order = MEMORY_ORDER - 1

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        return response if response.turn.pending else await call_next(request)


class Impatience:
    """An advisor that cancels a request whose tool hangs, and retries once."""

    order = TOOL_CALLING_ORDER - 5

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        first = asyncio.ensure_future(call_next(request))
        if await asettled(lambda: first.done() or done) and first.done():
            return await first
        first.cancel()
        await asyncio.wait([first])
        return await call_next(request)


@pytest.fixture(autouse=True)
def _nothing_done() -> None:
    done.clear()


BUSY = OverloadedError("busy", provider="x")


def polite(answer: ChatResponse) -> GuardrailResult | None:
    rude = "Pah" in answer.text
    return GuardrailResult.reprompt("rude", "Say it politely.") if rude else None


def waiting(ask: Ask, client: ChatClient) -> PendingTurn:
    return ask(client.prompt("Buy it!").conversation("c")).waiting


def client_of(
    model: ScriptedModel,
    *advisors: Any,
    needed: Callable[[ToolInvocation], bool] = lambda _: True,
    limits: ToolLimits | None = None,
) -> ChatClient:
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=needed)], limits=limits)
    builder = ChatClient.builder(model).default_tools(pay, book, hang)
    return builder.tool_calling_manager(manager).default_advisors(*advisors).build()


def resumed(ask: Ask, client: ChatClient) -> Asked:
    return ask(client.resume(waiting(ask, client), "approve"))


@pytest.mark.feature("manager-asking-again-outside-loop")
def test_a_retry_does_not_repeat_approved_calls(ask: Ask) -> None:
    """The call was made once, and the model gets the correction."""
    model = ScriptedModel(call("pay", '{"amount": 90}'), "Pah.", "Pah again.", "Very well.")
    result = resumed(ask, client_of(model, OutputGuardrailAdvisor(polite)))

    assert (result.text, done) == ("Very well.", ["paid 90"])
    said = [message.text for message in model.prompts[-1].messages if message.role != "tool"]
    assert said[-4:] == ["Pah.", "Say it politely.", "Pah again.", "Say it politely."]
    assert [each.tool_call.name for each in result.executions] == ["pay"]
    new = [(message.role, message.text) for message in result.answer.new_messages()]
    assert new == [("user", "Buy it!"), ("assistant", ""), ("tool", ""), ("assistant", result.text)]
    for prompt in model.prompts:
        assert_paired(prompt.messages)


def test_corrections_are_no_part_of_a_resumed_turn(ask: Ask) -> None:
    """They are not stored, also if the retry leaves out the tool results."""

    async def insist(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        if response.turn.pending is not None:
            return response
        prompt = request.prompt.append(UserMessage("Are you sure?"))
        return await call_next(request.mutate(prompt=prompt))

    insist.order = TOOL_CALLING_ORDER - 5  # type: ignore[attr-defined]
    model = ScriptedModel(call("pay", '{"amount": 90}'), "Perhaps.", "Yes.")
    result = resumed(ask, client_of(model, insist))

    assert model.prompts[-1].messages[-1].text == "Are you sure?"
    new = [(message.role, message.text) for message in result.answer.new_messages()]
    assert new == [("user", "Buy it!"), ("assistant", ""), ("tool", ""), ("assistant", "Yes.")]


def test_keys_of_equal_calls_after_a_retry(ask: Ask) -> None:
    """The approved call counts, although its result is only reused."""
    keys: list[str] = []

    @tool
    def charge(amount: int, context: ToolContext) -> None:
        """Charge an amount."""
        keys.append(context.idempotency_key)

    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.id == "a")
    charges = [call("charge", '{"amount": 5}', id=id) for id in "ab"]
    model = ScriptedModel(charges[0], BUSY, charges[1], "Charged twice.")
    builder = ChatClient.builder(model).default_tools(charge).default_advisors(Retry())
    client = builder.tool_calling_manager(ToolCallingManager(interceptors=[approval])).build()
    result = resumed(ask, client)

    assert result.text == "Charged twice."
    assert len(set(keys)) == 2


@pytest.mark.feature("manager-asking-again-outside-loop")
def test_a_retry_does_not_run_an_approved_call_again(ask: Ask) -> None:
    """After a provider's error, the retry sends the result of the call again."""
    model = ScriptedModel(call("pay", '{"amount": 90}'), BUSY, "Paid.")
    result = resumed(ask, client_of(model, Retry()))

    assert (result.text, done) == ("Paid.", ["paid 90"])
    assert results(model.prompts[-1]) == ["paid 90"]
    assert [each.tool_call.name for each in result.executions] == ["pay"]


def test_a_retry_knows_what_was_undone_before_it(ask: Ask) -> None:
    """Calls that were undone with the failed turn are not run again, and the model is informed."""
    model = ScriptedModel(call("book", '{"amount": 7}'), BUSY, BUSY)
    client = client_of(model, Retry())
    turn = waiting(ask, client)
    with pytest.raises(OverloadedError):
        ask(client.resume(turn, "approve"))

    assert done == ["booked 7", "refunded 7"]
    assert results(model.prompts[-1]) == [
        "'book' was run, and then undone because the turn failed."
    ]


def test_memory_knows_what_was_undone_before_a_retry(ask: Ask) -> None:
    """Calls from before the suspension are stored as undone, too."""
    memory = MessageWindowChatMemory()
    calls = call("book", '{"amount": 7}'), call("pay", '{"amount": 9}')
    model = ScriptedModel(*calls, BUSY, "Sorry.")
    advisors = MessageChatMemoryAdvisor(memory), Retry()
    client = client_of(model, *advisors, needed=lambda each: each.tool_call.name == "pay")
    resumed(ask, client)

    assert done == ["booked 7", "paid 9", "refunded 7"]
    for messages in (model.prompts[-1].messages, memory.get("c")):
        told = [
            each.data
            for m in messages
            if isinstance(m, ToolResponseMessage)
            for each in m.responses
        ]
        assert told == ["'book' was run, and then undone because the turn failed.", "paid 9"]


@pytest.mark.parametrize(
    "limits",
    [ToolLimits(max_calls_per_tool=1, on_exceeded="tell_model"), ToolLimits(max_repeats=1)],
)
def test_approved_calls_count_in_a_retry(ask: Ask, limits: ToolLimits) -> None:
    """The limits of the turn hold for all attempts."""
    pays = [call("pay", '{"amount": 5}', id=id) for id in "ab"]
    model = ScriptedModel(pays[0], BUSY, pays[1], "Paid once.")
    client = client_of(model, Retry(), needed=lambda each: each.tool_call.id == "a", limits=limits)

    resumed(ask, client)

    assert done == ["paid 5"]


def test_an_unfinished_call_is_not_started_again() -> None:
    """A cancelled call is not run again without another approval, because its effect is unknown."""
    model = ScriptedModel(call("hang", '{"amount": 1}'), "never")
    client = client_of(model, Impatience())
    turn = waiting(Ask("acall"), client)
    with pytest.raises(ToolLoopError, match="resumes the turn again"):
        Ask("acall")(client.resume(turn, "approve"))

    assert done == ["began 1"]


def test_memory_keeps_what_passed_of_a_resumed_turn(ask: Ask) -> None:
    """Refused answers and corrections are not stored."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel(call("pay", '{"amount": 90}'), "Pah.", "Very well.")
    guard = OutputGuardrailAdvisor(polite)
    client = client_of(model, MessageChatMemoryAdvisor(memory), guard)
    resumed(ask, client)

    kept = [message.text for message in memory.get("c") if message.role != "tool"]
    assert (kept, done) == (["Buy it!", "", "Very well."], ["paid 90"])


@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 100])
@pytest.mark.parametrize("correction", ["Say it politely.", None])
def test_a_resumed_turn_stores_the_accepted_answer(
    ask: Ask, correction: str | None, order: int
) -> None:
    """The turn is stored once, with the answer that the outer guard accepts."""

    def strict(answer: ChatResponse) -> GuardrailResult | None:
        result = GuardrailResult("reprompt" if correction else "retry", "rude", correction)
        return result if "Pah" in answer.text else None

    memory = MessageWindowChatMemory()
    model = ScriptedModel(call("pay", '{"amount": 90}'), "Pah.", "Very well.")
    guard = OutputGuardrailAdvisor(strict, order=MEMORY_ORDER - 1)
    resumed(ask, client_of(model, MessageChatMemoryAdvisor(memory, order=order), guard))

    kept = [message.text for message in memory.get("c") if message.role != "tool"]
    assert kept == ["Buy it!", "", "Very well."]
    assert_paired(model.prompts[-1].messages)
    assert (len(model.prompts[-1].messages), done) == (5 if correction else 3, ["paid 90"])


@pytest.mark.parametrize("order", [MEMORY_ORDER, TOOL_CALLING_ORDER + 100])
def test_a_resumed_turn_that_fails_in_a_retry(ask: Ask, order: int) -> None:
    """Nothing is stored if an outer advisor calls again and the second attempt fails."""
    memory = MessageWindowChatMemory()
    calls = call("book", '{"amount": 7}'), call("pay", '{"amount": 9}')
    client = client_of(
        ScriptedModel(*calls, "Done.", call("book", '{"amount": 8}'), BUSY),
        *(MessageChatMemoryAdvisor(memory, order=order), Twice()),
        needed=lambda each: each.tool_call.name == "pay",
    )
    with pytest.raises(OverloadedError):
        resumed(ask, client)

    assert memory.get("c") == []
    assert done == ["booked 7", "paid 9", "booked 8", "refunded 8", "refunded 7"]


def test_a_later_request_undoes_only_its_own_calls(ask: Ask) -> None:
    """A resumed turn that has ended keeps its effects if the request is sent again and fails."""
    book = [call("book", f'{{"amount": {amount}}}') for amount in (7, 8)]
    client = client_of(
        ScriptedModel(book[0], "Done.", book[1], BUSY),
        needed=lambda each: "7" in each.tool_call.arguments,
    )
    request = client.resume(waiting(ask, client), "approve")
    ask(request)
    with pytest.raises(OverloadedError):
        ask(request)

    assert done == ["booked 7", "booked 8", "refunded 8"]


def test_the_response_of_a_resumed_turn_can_be_pickled(ask: Ask) -> None:
    """The pickle has its executions."""
    model = ScriptedModel(call("pay", '{"amount": 90}'), "Paid.")
    response = resumed(ask, client_of(model)).response

    copy = pickle.loads(pickle.dumps(response))
    assert copy.turn.messages() == response.turn.messages()
    assert copy.turn.executions == response.turn.executions != []
