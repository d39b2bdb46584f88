"""Handoffs: another client continues the conversation, in all four modes."""

import asyncio
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from pydantic import BaseModel

from chatclient import (
    HANDOFFS,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Done,
    Handoff,
    Next,
    Prompt,
    RoundEnded,
    SystemMessage,
    TextDelta,
    ToolCallFinished,
    ToolContext,
    UserMessage,
    handoff,
    tool,
)
from chatclient.advisors import MessageChatMemoryAdvisor, SessionMemoryAdvisor, Steering
from chatclient.chat import HandedOver
from chatclient.errors import DeadlineExceededError, ToolDefinitionError, UsageError
from chatclient.memory import (
    SUMMARY,
    InMemoryChatMemoryRepository,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    SessionService,
)
from chatclient.observability import Telemetry
from chatclient.testing import Answer, Ask, Mode, ScriptedModel, call
from chatclient.tools import (
    AugmentedToolCallback,
    Decision,
    ExternalTool,
    FunctionToolCallback,
    PendingTurn,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolDefinition,
    ToolMetadata,
)
from tests.modes.test_tool_calling import results

TO_BILLING = call("handoff_to_billing", '{"reason": "An invoice."}')


class Desk:
    """A triage client that can hand over to a billing client."""

    def __init__(self, *billing: Answer, first: Any = TO_BILLING, tools: Any = ()) -> None:
        self.billing_model = ScriptedModel(*(billing or ("Paid.",)), chunks=100)
        self.triage_model = ScriptedModel(*(first if isinstance(first, tuple) else (first,)))
        self.billing = ChatClient.builder(self.billing_model).name("billing")
        self.billing = self.billing.default_system("You do billing.").default_tools(*tools)
        self.triage = ChatClient.builder(self.triage_model).name("triage")
        self.triage = self.triage.default_system("You do triage.")

    def build(self, *tools: Any) -> ChatClient:
        """Return the triage client, with more *tools*."""
        to_billing = handoff(self.billing.build(), description="Knows invoices.")
        return self.triage.default_tools(to_billing, *tools).build()


def roles(prompt: Prompt) -> list[str]:
    return [message.role for message in prompt.messages]


def test_another_client_answers(ask: Ask) -> None:
    """It gets the conversation, with its own system text, and its answer is that of the turn."""
    desk = Desk()
    result = ask(desk.build().prompt("My invoice?"))

    assert result.text == "Paid."
    [prompt] = desk.billing_model.prompts
    assert roles(prompt) == ["system", "user", "assistant", "tool"]
    assert prompt.messages[0].text == "You do billing."
    assert prompt.messages[1].text == "My invoice?"
    assert results(prompt) == ["billing continues the conversation from here on."]
    assert result.response.turn.handoffs == ("billing",)
    assert [each.tool_call.name for each in result.executions] == ["handoff_to_billing"]


def test_events_of_both_clients_are_in_one_stream(ask: Ask) -> None:
    """The events of the second client follow a `HandedOver`, as they are."""
    result = ask(Desk("Pa", first=(["Let me see. ", TO_BILLING],)).build().prompt("My invoice?"))

    kinds = [type(event) for event in result.events]
    if not ask.streaming:
        assert kinds == []
        return
    assert HandedOver("billing") in result.events
    after = kinds[kinds.index(HandedOver) :]
    assert after == [HandedOver, TextDelta, RoundEnded, Done]
    assert kinds.index(ToolCallFinished) < kinds.index(HandedOver)


def test_trail_messages_and_usage_are_those_of_the_turn(ask: Ask) -> None:
    """The rounds of both clients are rounds of one turn."""

    @tool
    def look_up() -> str:
        return "found"

    desk = Desk(call("look_up"), "Paid.", tools=[look_up])
    result = ask(desk.build().prompt("My invoice?"))

    trail = result.response.trail
    assert trail is not None
    assert [round_.offered for round_ in trail.rounds] == [
        ("handoff_to_billing",),
        ("look_up",),
        ("look_up",),
    ]
    lines = str(trail).splitlines()
    assert lines[0].startswith("turn of triage")
    assert any(line.startswith("handed over to billing") for line in lines)
    assert trail.usage == result.response.chat_response.usage
    assert len(result.answer.round_responses()) == 3
    assert [m.role for m in result.answer.messages()] == [
        *("user", "assistant", "tool"),
        *("assistant", "tool", "assistant"),
    ]
    assert [e.tool_call.name for e in result.executions] == ["handoff_to_billing", "look_up"]


def test_spans_are_nested(ask: Ask) -> None:
    """The second client is an agent that the first one invokes."""
    exporter, tracers = InMemorySpanExporter(), TracerProvider()
    tracers.add_span_processor(SimpleSpanProcessor(exporter))
    desk, telemetry = Desk(), Telemetry(tracers)
    desk.billing = desk.billing.observers(telemetry)
    desk.triage = desk.triage.observers(telemetry)
    ask(desk.build().prompt("My invoice?"))

    spans = {span.name: span for span in exporter.get_finished_spans()}
    inner, outer = spans["invoke_agent billing"], spans["invoke_agent triage"]
    assert inner.parent is not None
    assert inner.parent.span_id in {s.context.span_id for s in spans.values() if s.context}
    assert outer.context is not None
    assert inner.parent.trace_id == outer.context.trace_id
    assert "execute_tool handoff_to_billing" in spans
    assert inner.attributes is not None
    assert inner.attributes["gen_ai.agent.name"] == "billing"


@pytest.mark.parametrize("second", ["none", "shared", "shared storage", "own"])
def test_the_memory_stores_the_turn_once(ask: Ask, second: str) -> None:
    """It holds the handoff and the answer; the next turn is about all of it."""
    repository = InMemoryChatMemoryRepository()
    own = MessageWindowChatMemory()
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(repository))
    memories = {
        "shared": memory,
        "shared storage": MessageChatMemoryAdvisor(MessageWindowChatMemory(repository)),
        "own": MessageChatMemoryAdvisor(own),
    }
    desk = Desk("Paid.", "Again.", first=(TO_BILLING, TO_BILLING))
    desk.triage = desk.triage.default_advisors(memory)
    if second != "none":
        desk.billing = desk.billing.default_advisors(memories[second])
    client = desk.build()
    ask(client.prompt("My invoice?").conversation("c"))
    ask(client.prompt("And now?").conversation("c"))

    turn = ["user", "assistant", "tool", "assistant"]
    stored = [message.role for message in repository.find_by_conversation_id("c")]
    assert stored == turn * 2
    assert roles(desk.billing_model.prompts[1]) == ["system", *turn, *turn[:-1]]
    if second == "own":
        assert [message.role for message in own.get("c")] == turn * 2


def test_sessions_store_the_turn_once(ask: Ask) -> None:
    """Two session advisors with one memory are one memory."""
    service = SessionService(InMemorySessionRepository())
    memory = SessionMemoryAdvisor(service)
    desk = Desk()
    desk.triage = desk.triage.default_advisors(memory)
    desk.billing = desk.billing.default_advisors(SessionMemoryAdvisor(memory.memory))
    ask(desk.build().prompt("My invoice?").conversation("c"))

    assert len(service.events("c")) == 4


def test_a_memory_of_the_second_client_only(ask: Ask) -> None:
    """It stores the complete turn."""
    memory = MessageWindowChatMemory()
    desk = Desk()
    desk.billing = desk.billing.default_advisors(MessageChatMemoryAdvisor(memory))
    ask(desk.build().prompt("My invoice?").conversation("c"))

    assert [message.role for message in memory.get("c")] == [
        "user",
        "assistant",
        "tool",
        "assistant",
    ]


def test_default_messages_and_system_texts_stay_with_their_client(ask: Ask) -> None:
    """Of the first client's, only a summary of the conversation is passed on."""
    desk = Desk()
    desk.triage = desk.triage.default_messages(UserMessage("For example?"))
    desk.billing = desk.billing.default_messages(UserMessage("An example.")).default_user("Never.")
    summary = SystemMessage("Earlier: tea.", metadata={SUMMARY: True})
    ask(desk.build().prompt("My invoice?").messages(summary, SystemMessage("Note.")))

    texts = [message.text for message in desk.billing_model.prompts[0].messages[:4]]
    assert texts == ["You do billing.", "An example.", "Earlier: tea.", "My invoice?"]


def test_tool_context_and_ids_go_along(ask: Ask) -> None:
    """Tools of the second client know the user, the conversation and the handoffs."""
    seen: list[Any] = []

    @tool
    def who(context: ToolContext) -> None:
        seen.append((context["tenant"], context.conversation_id, context[HANDOFFS]))

    desk = Desk(call("who"), "ok", tools=[who])
    ask(desk.build().prompt("x").tool_context(tenant="acme").conversation("c"))

    assert seen == [("acme", "c", ("billing",))]


class Invoice(BaseModel):
    """A typed answer."""

    amount: int


@pytest.mark.parametrize("mode", ["call", "acall"])
def test_a_typed_answer_comes_from_the_second_client(mode: Mode) -> None:
    """The second model receives the schema and the correction."""
    desk = Desk("no number", '{"amount": 5}')
    request = desk.build().prompt("My invoice?")
    if mode == "call":
        invoice = request.call().entity(Invoice, validate=True)
    else:
        invoice = asyncio.run(request.acall().entity(Invoice, validate=True))

    assert invoice == Invoice(amount=5)
    assert "amount" in desk.billing_model.prompts[0].contents
    assert len(desk.triage_model.prompts) == 1


# --- limits ---


def ping_pong(*, max_handoffs: int, stubborn: bool) -> tuple[ChatClient, list[str]]:
    """Return one of two clients that hand over to each other, and the order of their calls."""
    asked: list[str] = []
    clients: dict[str, ChatClient] = {}

    def answers(name: str, other: str) -> Any:
        def answer(prompt: Prompt) -> Any:
            asked.append(name)
            refused = prompt.messages[-1].role == "tool" and "already" in results(prompt)[-1]
            return "Fine." if refused and not stubborn else call(f"handoff_to_{other}")

        return answer

    for name, other in (("a", "b"), ("b", "a")):
        to_other = handoff(
            partial(clients.__getitem__, other), other, "The other.", max_handoffs=max_handoffs
        )
        model = ScriptedModel(answers(name, other))
        clients[name] = ChatClient.builder(model).name(name).default_tools(to_other).build()
    return clients["a"], asked


def test_handoffs_are_limited(ask: Ask) -> None:
    """A refused handoff is an error result, and the model answers."""
    client, asked = ping_pong(max_handoffs=3, stubborn=False)
    result = ask(client.prompt("x"))

    assert result.text == "Fine."
    assert asked == ["a", "b", "a", "b", "b"]
    assert result.response.turn.handoffs == ("b", "a", "b")
    assert result.executions[-1].is_error


def test_a_model_that_insists_reaches_the_limits_of_tools(ask: Ask) -> None:
    """Refused handoffs count as calls without progress."""
    client, asked = ping_pong(max_handoffs=2, stubborn=True)
    result = ask(client.prompt("x"))

    assert result.response.chat_response.finish_reason == "tool_call_limit_exceeded"
    assert len(asked) < 12


def test_one_handoff_in_a_round(ask: Ask) -> None:
    """The first one counts; other tools of the round run before it."""
    ran: list[str] = []

    @tool
    def note() -> None:
        ran.append("note")

    calls = [TO_BILLING, call("handoff_to_sales"), call("note")]
    desk, sales_model = Desk(first=(calls,)), ScriptedModel("never")
    sales = ChatClient.create(sales_model)
    result = ask(desk.build(handoff(sales, "sales", "Sells."), note).prompt("x"))

    assert (result.text, ran, sales_model.prompts) == ("Paid.", ["note"], [])
    assert [execution.is_error for execution in result.executions] == [False, True, False]


def test_the_deadline_holds_for_both(ask: Ask) -> None:
    """The request's deadline also bounds the second client."""

    @tool
    async def slow() -> None:
        await asyncio.sleep(60)

    desk = Desk(call("slow"), "never", tools=[slow])
    with pytest.raises(DeadlineExceededError):
        ask(desk.build().prompt("x").deadline(0.5))


# --- approval, failures ---


def test_a_handoff_can_be_denied(ask: Ask) -> None:
    """After a denied handoff, the first client answers."""
    desk = Desk(first=(TO_BILLING, "I answer myself."))
    approval = ToolApproval(ask=lambda invocation: False, needed=lambda invocation: True)
    manager = ToolCallingManager(interceptors=[approval])
    desk.triage = desk.triage.tool_calling_manager(manager)

    assert ask(desk.build().prompt("x")).text == "I answer myself."
    assert desk.billing_model.prompts == []


@tool
def refund(amount: int) -> str:
    """Refund an amount."""
    return f"refunded {amount}"


REFUND = call("refund", '{"amount": 5}')


@pytest.mark.parametrize("as_json", [False, True])
def test_a_turn_waits_and_resumes_in_the_second_client(ask: Ask, as_json: bool) -> None:
    """The first client resumes it, also in another process."""
    memory = MessageWindowChatMemory()
    desk = Desk(REFUND, REFUND, "Refunded.", tools=[refund])
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    desk.billing = desk.billing.tool_calling_manager(manager)
    desk.triage = desk.triage.default_advisors(MessageChatMemoryAdvisor(memory))
    client = desk.build()
    asked = ask(client.prompt("Money back!").conversation("c"))
    assert asked.events == [] or HandedOver("billing") in asked.events
    for _ in range(2):
        assert memory.get("c") == []
        turn: Any = asked.answer.pending_turn()
        assert [each.name for each in turn.to_decide().values()] == ["refund"]
        turn = PendingTurn.from_json(turn.to_json()) if as_json else turn
        asked = ask(client.resume(turn, "approve"))

    assert asked.text == "Refunded."
    assert len(desk.triage_model.prompts) == 1
    assert results(desk.billing_model.prompts[2])[-1] == "refunded 5"
    names = [each.tool_call.name for each in asked.executions]
    assert names == ["handoff_to_billing", "refund", "refund"]
    assert asked.response.chat_response.usage.input_tokens == 40
    assert [m.role for m in memory.get("c")] == ["user", *["assistant", "tool"] * 3, "assistant"]


def test_external_calls_of_the_second_client(ask: Ask) -> None:
    """They wait for a result, not for an approval; also those of an agent of it."""
    locate = ExternalTool(ToolDefinition("locate", "Tell where the user is."))
    agent = ChatClient.create(ScriptedModel(call("locate", id="2"), "In Rome.")).mutate()
    expert = agent.default_tools(locate).build().as_tool("expert", "Knows.")
    calls = [call("locate", id="1"), call("expert", {"request": "?"}, id="a")]
    desk = Desk(calls, "Both.", tools=[locate, expert])
    client = desk.build()
    turn = PendingTurn.from_json(ask(client.prompt("Where?")).waiting.to_json())

    assert turn.external_calls == ("1", "a/2")
    answers = {id: Decision.answered(f"result {id}") for id in turn.to_decide()}
    assert ask(client.resume(turn, answers)).text == "Both."
    assert results(desk.billing_model.prompts[1]) == ["result 1", "In Rome."]


def test_a_handoff_with_a_call_that_waits(ask: Ask) -> None:
    """The conversation is handed over when the round is complete, also in another process."""
    desk = Desk(first=([TO_BILLING, REFUND],))
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    desk.triage = desk.triage.tool_calling_manager(manager)
    client = desk.build(refund)
    turn: Any = ask(client.prompt("Money back!")).answer.pending_turn()
    assert desk.billing_model.prompts == []

    resumed = ask(client.resume(turn.to_json(), "approve"))
    assert resumed.text == "Paid."
    assert results(desk.billing_model.prompts[0])[-1] == "refunded 5"


def test_resuming_needs_the_handoff(ask: Ask) -> None:
    """The handoff tool is required, because it has the second client."""
    desk = Desk(REFUND, tools=[refund])
    desk.billing = desk.billing.tool_calling_manager(
        ToolCallingManager(interceptors=[ToolApproval()])
    )
    turn: Any = ask(desk.build().prompt("Money back!")).answer.pending_turn()

    with pytest.raises(UsageError, match="handoff_to_billing"):
        ask(desk.triage.build().resume(turn, "approve"))


def test_a_failure_undoes_the_calls_of_both_once(ask: Ask) -> None:
    """A turn that fails after the handoff has no effect."""
    undone: list[str] = []

    def booking(name: str) -> ToolCallback:
        metadata = ToolMetadata(compensation=lambda: undone.append(name))
        return FunctionToolCallback(lambda: name, name=name, metadata=metadata)

    desk = Desk(call("second"), LookupError("down"), tools=[booking("second"), booking("first")])
    desk.triage_model = ScriptedModel([call("first"), TO_BILLING])
    desk.triage = desk.triage.model(desk.triage_model)
    with pytest.raises(LookupError):
        ask(desk.build(booking("first")).prompt("x"))

    assert sorted(undone) == ["first", "second"]


def test_an_advisor_that_asks_again_hands_over_again(ask: Ask) -> None:
    """The turn has the rounds of both attempts, and both clients receive them."""

    async def twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        again = request.prompt.append(UserMessage("Better, please."))
        return await call_next(request.mutate(prompt=again, context=response.context))

    twice.order = -(2**31) + 250  # type: ignore[attr-defined]
    desk = Desk("Paid.", "Paid twice.", first=(TO_BILLING, TO_BILLING))
    desk.triage = desk.triage.default_advisors(twice)
    result = ask(desk.build().prompt("x"))

    assert len(desk.billing_model.prompts) == 2
    assert result.response.chat_response.text == "Paid twice."


def test_a_resumed_turn_is_retried_in_the_second_client(ask: Ask) -> None:
    """Approved calls run once, even if an advisor of the first client asks twice."""
    ran: list[int] = []

    @tool(name="refund")
    def counted(amount: int) -> None:
        ran.append(amount)

    async def twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        if not response.chat_response.text:
            return response  # it waits
        again = request.prompt.append(UserMessage("Better, please."))
        return await call_next(request.mutate(prompt=again, context=response.context))

    twice.order = -(2**31) + 250  # type: ignore[attr-defined]
    desk = Desk(REFUND, "Done.", "Better.", tools=[counted])
    desk.billing = desk.billing.tool_calling_manager(
        ToolCallingManager(interceptors=[ToolApproval()])
    )
    client = desk.triage.default_advisors(twice).default_tools(
        handoff(desk.billing.build(), description="Knows invoices.")
    )
    turn: Any = ask(client.build().prompt("Money back!")).answer.pending_turn()
    result = ask(client.build().resume(turn, "approve"))

    assert ran == [5]
    assert result.response.chat_response.text == "Better."
    assert desk.billing_model.prompts[-1].contents.endswith("Better, please.")


def test_triage_with_three_agents(ask: Ask) -> None:
    """Each hands over to who is responsible; the last one answers the next message."""
    agents: dict[str, ChatClient] = {}
    to = {name: handoff(partial(agents.__getitem__, name), name, name) for name in ("b", "c")}
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory())
    scripts: dict[str, list[Answer]] = {
        "a": [call("handoff_to_b")],
        "b": [call("handoff_to_c")],
        "c": ["One.", "Two."],
    }
    models = {name: ScriptedModel(*script, chunks=100) for name, script in scripts.items()}
    for name, model in models.items():
        builder = ChatClient.builder(model).name(name).default_system(f"You are {name}.")
        others = [each for at, each in to.items() if at != name]
        agents[name] = builder.default_advisors(memory).default_tools(*others).build()
    first = ask(agents["a"].prompt("x").conversation("1"))
    second = ask(agents[first.response.turn.handoffs[-1]].prompt("y").conversation("1"))

    assert (first.text, second.text) == ("One.", "Two.")
    assert first.response.turn.handoffs == ("b", "c")
    assert [e.agent for e in first.events if isinstance(e, HandedOver)] == (
        ["b", "c"] if ask.streaming else []
    )
    history = ["user", "assistant", "tool", "assistant", "tool", "assistant", "user"]
    assert roles(models["c"].prompts[1]) == ["system", *history]


def test_steering_reaches_the_first_client_only(ask: Ask) -> None:
    """Unread input stays unread."""
    steering = Steering()

    @tool
    def work() -> None:
        steering.send("Hurry!")

    desk = Desk(call("work"), "done", tools=[work])
    ask(desk.build().prompt("x").advisors(steering))

    assert [message.text for message in steering.unread] == ["Hurry!"]


def test_leaving_the_stream_ends_the_second_client() -> None:
    """Its finally blocks run."""
    ended: list[str] = []

    async def watched(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        finally:
            ended.append("billing")

    desk = Desk("A long answer. " * 20)
    desk.billing = desk.billing.default_advisors(watched)
    client = desk.build()

    async def leave() -> None:
        async with client.prompt("x").astream().events() as events:
            async for event in events:
                if isinstance(event, TextDelta):
                    break
        assert ended == ["billing"]

    def leave_blocking() -> Iterator[object]:
        for event in client.prompt("x").stream().events():
            if isinstance(event, TextDelta):
                break
            yield event

    asyncio.run(leave())
    desk.triage_model.prompts.clear()
    desk2 = Desk("A long answer. " * 20)
    desk2.billing = desk2.billing.default_advisors(watched)
    client = desk2.build()
    list(leave_blocking())
    assert ended == ["billing"] * 2


# --- the tool ---


def test_an_agent_may_hand_over(ask: Ask) -> None:
    """The answer of the client that took over is the result of the agent."""
    agent = Desk().build().as_tool("desk", "Answers.")
    model = ScriptedModel(call("desk", {"request": "My invoice?"}), "It is paid.")
    result = ask(ChatClient.create(model).prompt("x").tools(agent))

    assert results(model.prompts[1]) == ["Paid."]
    assert result.response.trail is not None
    [inner] = result.response.trail.inner
    assert len(inner.rounds) == 2
    assert result.response.turn.handoffs == ()


def test_a_wrapped_handoff_hands_over(ask: Ask) -> None:
    """Wrappers of tools need not know of it."""

    class Why(BaseModel):
        urgency: int

    desk = Desk(first=(call("handoff_to_billing", '{"urgency": 3}'),))
    inner = handoff(desk.billing.build(), description="Knows invoices.")
    wrapped = AugmentedToolCallback(inner, Why)
    client = desk.triage.default_tools(wrapped).build()

    assert ask(client.prompt("x")).text == "Paid."


def test_the_arguments_are_checked(ask: Ask) -> None:
    """Invalid arguments are an error result, and nothing is handed over."""
    desk = Desk(first=(call("handoff_to_billing", '{"reason": 5, "more": 1}'), "Sorry."))

    assert ask(desk.build().prompt("x")).text == "Sorry."
    assert desk.billing_model.prompts == []


def test_what_a_handoff_needs() -> None:
    """A name that providers accept, a description, and a limit."""
    client = ChatClient.create(ScriptedModel("x"))
    made = handoff(client, "sales", "Sells.")

    assert isinstance(made, Handoff)
    assert (made.agent, made.definition.name) == ("sales", "handoff_to_sales")
    assert repr(made) == "handoff('sales')"
    with pytest.raises(UsageError, match="needs a name"):
        handoff(client, description="x")
    with pytest.raises(UsageError, match="needs a name"):
        handoff(lambda: client, description="x")
    with pytest.raises(UsageError, match="needs a description"):
        handoff(client, "sales")
    with pytest.raises(UsageError, match="max_handoffs"):
        handoff(client, "sales", "Sells.", max_handoffs=0)
    with pytest.raises(ToolDefinitionError):
        handoff(client, "my sales", "Sells.")
