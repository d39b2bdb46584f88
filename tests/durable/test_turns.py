"""Durable turns in one process, on SQLite."""

import asyncio
import threading

import pytest

from chatclient import (
    ApprovalNeeded,
    ChatClient,
    Done,
    RoundEnded,
    TextDelta,
    ToolCallFinished,
    handoff,
    tool,
)
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.durable import TurnDecided, TurnHandle, TurnRetries, durable, launch
from chatclient.errors import (
    AuthenticationError,
    ConversationBusyError,
    DeadlineExceededError,
    OverloadedError,
    TurnCancelledError,
    UsageError,
)
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.testing import ScriptedModel, call
from chatclient.tools import Decision, ToolApproval, ToolCallingManager
from tests.durable.conftest import Make
from tests.support.clock import Clock
from tests.support.waiting import asettled


class Shop:
    """Tools that record their runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.begun, self.go_on = threading.Event(), threading.Event()

    @tool
    def refund(self, order: int) -> str:
        """Refund an order."""
        self.runs.append(f"refund {order}")
        return f"refunded {order}"

    @tool(effect="read")
    async def wait(self) -> str:
        """Wait until the test continues."""
        self.begun.set()
        assert await asettled(self.go_on.is_set)
        return "went on"


REFUND = call("refund", {"order": 7}, id="c1")


def test_returns_result(make: Make) -> None:
    """A durable turn has an answer, and the tool executions that led to it."""
    shop = Shop()
    client = make(ScriptedModel(REFUND, "Done."), shop)

    result = client.call("Refund order 7", key="a")

    assert result.content() == "Done."
    assert [each.response.data for each in result.tool_executions] == ["refunded 7"]
    assert client.turn(key="a").status().state == "done"


async def test_awaits_result(make: Make) -> None:
    """The asynchronous methods do the same."""
    shop = Shop()
    client = make(ScriptedModel(REFUND, "Done."), shop, interceptors=[ToolApproval()])

    turn = await client.astart("Refund", key="a", streaming=True)
    waiting = await turn.aresult()
    assert waiting.pending_turn is not None
    assert (await turn.astatus()).state == "waiting"
    await turn.adecide("approve")

    assert (await turn.aresult()).content() == "Done."
    assert isinstance([event async for event in turn.aevents()][-1], Done)
    assert (await client.acall("Refund", key="a")).content() == "Done."


async def test_blocking_methods_on_loop(make: Make) -> None:
    """Blocking methods work on the thread of an event loop, as in a notebook."""
    assert make(ScriptedModel("Hi")).call("Hello").content() == "Hi"


def test_starts_once_per_key(make: Make) -> None:
    """A turn that is started again with its key is the same turn."""
    model = ScriptedModel("one", "two", "three")
    client = make(model)

    first, again = client.call("Hi", key="a"), client.call("Hi", key="a")

    assert first.content() == again.content() == "one"
    others = {client.call("Hi", key=key).content() for key in ("a#2", "a/2")}
    assert others == {"two", "three"}


def test_answers_with_entity(make: Make) -> None:
    """The answer can be read as a value of a type."""
    assert make(ScriptedModel('{"value": 3}')).call("Three?").entity(int) == 3


def test_continues_after_decision(make: Make) -> None:
    """A turn waits for approval, and continues with the decision, which is applied once."""
    shop = Shop()
    client = make(ScriptedModel(REFUND, "Done."), shop, interceptors=[ToolApproval()])
    turn = client.start("Refund", key="a")
    pending = turn.result().pending_turn
    assert pending is not None
    assert turn.status().state == "waiting"
    assert shop.runs == []

    client.turn(turn.id).decide({"c1": Decision(approved=True, message="with care")})

    assert turn.result().content() == "Done."
    assert shop.runs == ["refund 7"]
    with pytest.raises(UsageError, match="does not wait"):
        turn.decide("approve")


@pytest.mark.parametrize("whose", ["own", "agent", "handoff"])
def test_refuses_invalid_decision(make: Make, whose: str) -> None:
    """A decision that cannot be applied is refused, and the turn still waits for a valid one."""
    shop, id = Shop(), "a/c1" if whose == "agent" else "c1"
    model = ScriptedModel(REFUND, "Done.")
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    clerk = ChatClient.builder(model).default_tools(shop).tool_calling_manager(manager).build()
    if whose == "own":
        client = make(model, shop, interceptors=[ToolApproval()])
    elif whose == "agent":
        asked = call("clerk", {"request": "Refund"}, id="a")
        client = make(ScriptedModel(asked, "Done."), clerk.as_tool("clerk", "Refunds."))
    else:
        client = make(ScriptedModel(call("handoff_to_clerk")), handoff(clerk, "clerk", "Refunds."))
    turn = client.start("Refund")
    turn.result()

    for invalid in ({"c2": True}, {id: Decision(approved=True, arguments='{"order": "x"}')}):
        with pytest.raises(UsageError):
            turn.decide(invalid)

    assert turn.status().state == "waiting"
    turn.decide({id: Decision.answered("refunded by hand")})
    assert turn.result().content() == "Done."
    assert shop.runs == []


def test_one_of_two_decisions(make: Make) -> None:
    """Of two decisions at the same time, one is applied, and the other one is refused."""
    shop = Shop()
    client = make(ScriptedModel(REFUND, "Done."), shop, interceptors=[ToolApproval()])
    turn = client.start("Refund")
    turn.result()
    refused: list[Exception] = []

    def decide() -> None:
        try:
            client.turn(turn.id).decide("approve")
        except UsageError as error:
            refused.append(error)

    threads = [threading.Thread(target=decide) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert turn.result().content() == "Done."
    assert len(refused) == 3
    assert shop.runs == ["refund 7"]


def test_cancels_running_turn(make: Make) -> None:
    """A running turn is cancelled: its tool is, and nothing else runs."""
    shop = Shop()
    client = make(ScriptedModel(call("wait"), "Done."), shop)
    turn = client.start("Wait")
    shop.begun.wait()

    turn.cancel()

    with pytest.raises(TurnCancelledError, match="was cancelled"):
        turn.result()
    assert turn.status().state == "cancelled"


def test_cancels_waiting_turn(make: Make) -> None:
    """A turn that waits for a decision is cancelled, and takes no decision any more."""
    client = make(ScriptedModel(REFUND), Shop(), interceptors=[ToolApproval()])
    turn = client.start("Refund")
    turn.result()

    turn.cancel()

    with pytest.raises(TurnCancelledError, match="was cancelled"):
        turn.result()
    assert turn.status().state == "cancelled"
    with pytest.raises(UsageError, match="does not wait"):
        turn.decide("approve")
    turn.cancel()  # has ended


def test_raises_error_of_turn(make: Make) -> None:
    """A turn that fails raises the error of its request, with its attributes."""
    turn = make(ScriptedModel(AuthenticationError("no key", status=401))).start("Hi")

    with pytest.raises(AuthenticationError, match="no key") as caught:
        turn.result()

    assert caught.value.status == 401
    assert turn.status().state == "failed"


def test_retries_turn(make: Make) -> None:
    """A turn continues after the provider was busy, and repeats only the call that failed."""
    shop = Shop()
    model = ScriptedModel(REFUND, OverloadedError("busy"), "Done.")
    client = make(model, shop, retries=TurnRetries(seconds=0.01))

    assert client.call("Refund").content() == "Done."
    assert shop.runs == ["refund 7"]


def test_publishes_events(make: Make) -> None:
    """The events of a turn can be read while it runs, and again later."""
    client = make(ScriptedModel(REFUND, "Done."), Shop(), interceptors=[ToolApproval()])
    turn = client.start("Refund", streaming=True)

    *_, waits, last = turn.events()
    assert isinstance(waits, ApprovalNeeded)
    assert isinstance(last, Done)
    turn.decide("approve")
    events = list(turn.events())
    (decided,) = [each for each in events if isinstance(each, TurnDecided)]
    assert [each.approved for each in decided.decisions.values()] == [True]
    assert list(turn.events(after_decisions=True)) == events[events.index(decided) + 1 :]

    assert "".join(e.text for e in events if isinstance(e, TextDelta)) == "Done."
    assert [e.response.data for e in events if isinstance(e, ToolCallFinished)] == ["refunded 7"]
    assert sum(isinstance(event, RoundEnded) for event in events) == 2
    assert isinstance(events[-1], Done)


def test_events_of_a_turn_that_publishes_none(make: Make) -> None:
    """They have its answer."""
    text, done = make(ScriptedModel("Hi.")).start("Hello").events()

    assert text == TextDelta("Hi.")
    assert isinstance(done, Done)


def test_text_is_published_in_pieces(make: Make) -> None:
    """Text is published several times a second, not for each token."""
    model = ScriptedModel(["word "] * 500)
    events = list(make(model).start("Write", streaming=True).events())

    texts = [event.text for event in events if isinstance(event, TextDelta)]
    assert "".join(texts) == "word " * 500
    assert len(texts) < 50


async def test_many_consumers_of_events(make: Make) -> None:
    """Events may be awaited by more consumers than there are threads."""
    shop = Shop()
    client = make(ScriptedModel(call("wait"), "Done."), shop)
    turn = await client.astart("Wait", streaming=True)
    consumers = 100
    first: list[object] = []

    async def consume() -> object:
        events = turn.aevents()
        first.append(await anext(events))
        if len(first) == consumers:  # all of them wait for further ones
            shop.go_on.set()
        return [event async for event in events][-1]

    ended = await asyncio.gather(*(consume() for _ in range(consumers)))

    assert all(isinstance(event, Done) for event in ended)


def test_times_out(make: Make) -> None:
    """A result that takes longer than a timeout is waited for again later."""
    shop = Shop()
    client = make(ScriptedModel(call("wait"), "Done."), shop)
    turn = client.start("Wait")

    with pytest.raises(TimeoutError):
        turn.result(timeout=0.01)

    shop.go_on.set()
    assert turn.result().content() == "Done."


def test_deadline_without_waiting_time(make: Make, clock: Clock) -> None:
    """The time in which a turn waits for decisions does not count in its deadline."""
    client = make(ScriptedModel(REFUND, "Done."), Shop(), interceptors=[ToolApproval()])
    turn = client.start(client.prompt("Refund").deadline(3000))
    turn.result()

    clock.set_forward(3000)
    turn.decide("approve")

    assert turn.result().content() == "Done."


def test_deadline_counts_from_start(make: Make) -> None:
    """The deadline of a turn counts from its start, also while it is delayed or queued."""
    client = make(ScriptedModel("Hi"))

    turn = client.start(client.prompt("Hi").deadline(0.2), delay=0.5)

    with pytest.raises(DeadlineExceededError):
        turn.result()


def test_stores_turn_in_memory(make: Make) -> None:
    """A durable turn is stored in its conversation once, when it has ended."""
    with SqlChatMemoryRepository("sqlite://") as repository:
        memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(repository))
        script = ScriptedModel(REFUND, "Done.")
        client = make(script, Shop(), interceptors=[ToolApproval()], advisors=[memory])
        turn = client.start(client.prompt("Refund").conversation("c"))
        turn.result()
        assert repository.find_by_conversation_id("c") == []
        turn.decide("deny")
        turn.result()

        roles = [message.role for message in repository.find_by_conversation_id("c")]
        assert roles == ["user", "assistant", "tool", "assistant"]


def test_request_in_full(make: Make) -> None:
    """System text, messages, options, tool context and params of a request reach the model."""
    model = ScriptedModel("Hi")
    client = make(model)
    request = (
        client.prompt()
        .system("You help {company}.", params={"company": "Acme"})
        .user("Hi, {name}", params={"name": "Ann"})
        .options(temperature=0.5)
        .tool_context(tenant="t1")
        .conversation("c")
    )

    client.call(request)

    (prompt,) = model.prompts
    assert [message.text for message in prompt.messages] == ["You help Acme.", "Hi, Ann"]
    assert prompt.options.temperature == 0.5
    assert prompt.options.tool_context["tenant"] == "t1"


@tool
def other() -> str:
    """Do something else."""
    return ""


def test_refuses_request_without_json_form(make: Make) -> None:
    """What another process could not have is refused before anything is stored."""
    client = make(ScriptedModel())
    prompt = client.prompt("Hi")
    requests = [
        prompt.tools(other),
        prompt.advisors(lambda request, call_next: call_next(request)),
        prompt.system(lambda: "You help."),
        prompt.tool_context(connection=object()),
        prompt.model(ScriptedModel()),
    ]

    for request in requests:
        with pytest.raises(UsageError):
            client.start(request)


def test_agent_waits_for_approval(make: Make) -> None:
    """If a tool of an agent needs approval, the durable turn that asked the agent waits."""
    shop = Shop()
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    builder = ChatClient.builder(ScriptedModel(REFUND, "It was refunded."))
    agent = builder.default_tools(shop).tool_calling_manager(manager).build()
    ask_agent = call("clerk", {"request": "Refund order 7"}, id="a1")
    client = make(ScriptedModel(ask_agent, "Done."), agent.as_tool("clerk", "Refunds orders."))
    turn = client.start("Refund")

    pending = turn.result().pending_turn
    assert pending is not None
    turn.decide(dict.fromkeys(pending.to_decide(), True))

    result = turn.result()
    assert result.content() == "Done."
    assert [each.response.data for each in result.tool_executions] == ["It was refunded."]
    assert shop.runs == ["refund 7"]


async def test_deletes_turn(make: Make) -> None:
    """A turn that has ended is deleted with all of its parts; a running one is not."""
    shop = Shop()
    script = ScriptedModel(REFUND, "Done.", call("wait"), "Done.")
    client = make(script, shop, interceptors=[ToolApproval()])
    turn = client.start("Refund", key="a")
    turn.result()
    turn.decide("approve")
    turn.result()
    running = client.start("Wait")

    await turn.adelete()

    with pytest.raises(UsageError, match="no durable turn"):
        turn.status()
    with pytest.raises(UsageError, match="cancel it"):
        running.delete()
    await running.acancel()


def test_unknown_turn(make: Make) -> None:
    """A turn that was never started is reported."""
    client = make(ScriptedModel())

    with pytest.raises(UsageError, match="no durable turn"):
        client.turn(key="x").status()
    with pytest.raises(UsageError, match="either"):
        client.turn()


def test_one_engine_per_process(make: Make) -> None:
    """A second engine and a second client of the same name are refused."""
    client = make(ScriptedModel())

    with pytest.raises(UsageError, match="engine"):
        launch("sqlite:///x.db")
    with pytest.raises(UsageError, match="already"):
        durable(client.client, name=client.name)
    with pytest.raises(UsageError, match="slash"):
        durable(client.client, name="a/b")


def test_one_turn_of_a_conversation_at_a_time(make: Make) -> None:
    """A turn of a conversation begins when the last one has ended; memory stores each once."""
    memory = MessageWindowChatMemory()
    advisor = MessageChatMemoryAdvisor(memory)
    model = ScriptedModel(REFUND, "Done.", "Hello.", "Again.")
    client = make(model, Shop(), interceptors=[ToolApproval()], advisors=[advisor])
    conversation = client.conversation("c1")
    assert conversation.last() is None

    first = conversation.start("Refund")
    first.result()
    with pytest.raises(ConversationBusyError) as busy:
        conversation.start("Hello?")
    assert (busy.value.turn_id, busy.value.state) == (first.id, "waiting")
    first.decide("approve")
    first.result()
    second = conversation.start("Hello?")
    assert second.result().content() == "Hello."
    last = client.conversation("c1").last()
    assert last is not None
    assert last.id == second.id
    assert client.conversation("c2").last() is None

    for turn in (first, second):
        turn.delete()
    assert conversation.last() is None
    assert conversation.start("Hello?").result().content() == "Again."
    assert [message.text for message in memory.get("c1")][-4:] == [
        *("Hello?", "Hello.", "Hello?", "Again.")
    ]


async def test_concurrent_turns_of_a_conversation(make: Make) -> None:
    """Of several turns that are started at the same time, one is."""
    conversation = make(ScriptedModel("Hi.")).conversation("c1")
    starts = [conversation.astart("Hello?") for _ in range(4)]

    outcomes = await asyncio.gather(*starts, return_exceptions=True)

    (started,) = [each for each in outcomes if isinstance(each, TurnHandle)]
    assert sum(isinstance(each, ConversationBusyError) for each in outcomes) == 3
    assert (await started.aresult()).content() == "Hi."
    last = await conversation.alast()
    assert last is not None
    assert last.id == started.id


def test_conversation_of_processes_whose_clocks_differ(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The last turn is found although its time is earlier than that of the first one."""
    conversation = make(ScriptedModel(lambda _: "Hi.")).conversation("c1")
    first = conversation.start("Hello?")
    first.result()
    monkeypatch.setattr(first.engine, "newest", lambda *_: first.id)

    for _ in range(6):
        started = conversation.start("Hello?")
        started.result()
        last = conversation.last()
        assert last is not None
        assert last.id == started.id
