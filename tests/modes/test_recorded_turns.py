"""Recorded turns: repeated from their record, without calling the model or tools again."""

from collections.abc import Callable
from typing import Any

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatClientRequestSpec,
    ToolContext,
    UserMessage,
    tool,
)
from chatclient.advisors import Budget, MessageChatMemoryAdvisor, ToolCallingAdvisor
from chatclient.chat.turn import TurnSettings
from chatclient.durable import ExecutionLostError, OnInterrupted, Recording, TurnRetries, recorded
from chatclient.errors import BudgetExceededError, OverloadedError, ToolLoopError
from chatclient.memory import MessageWindowChatMemory, SqlChatMemoryRepository
from chatclient.testing import Ask, Asked, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolLimits
from tests.support.journal import Journal


class Shop:
    """Tools that count their runs."""

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.keys: set[str] = set()

    @tool(effect="read")
    def price(self, item: str) -> str:
        """Look up a price."""
        self.runs.append(f"price {item}")
        return "10"

    @tool(effect="idempotent")
    def reserve(self, item: str, context: ToolContext) -> str:
        """Reserve an item."""
        self.runs.append(f"reserve {item}")
        self.keys.add(context.idempotency_key)
        return "reserved"

    @tool
    def buy(self, item: str) -> str:
        """Buy an item."""
        self.runs.append(f"buy {item}")
        return "bought"

    @tool(effect="read")
    def broken(self) -> str:
        """Fail."""
        self.runs.append("broken")
        msg = "no stock"
        raise LookupError(msg)


SCRIPT = (
    [call("price", {"item": "tea"}, id="a"), call("reserve", {"item": "tea"}, id="b")],
    call("broken", id="c"),
    call("buy", {"item": "tea"}, id="d"),
    "Bought for 10.",
)

Run = Callable[..., tuple[Asked, ScriptedModel]]


def client(shop: Shop, model: ScriptedModel, **settings: Any) -> ChatClient:
    manager = ToolCallingManager(**settings)
    return ChatClient.builder(model).default_tools(shop).tool_calling_manager(manager).build()


def script_from(done: int) -> ScriptedModel:
    """Return a model without the answers of the first *done* calls."""
    return ScriptedModel(*SCRIPT[done:])


def run(
    ask: Ask,
    journal: Journal,
    shop: Shop,
    model: ScriptedModel,
    on_interrupted: OnInterrupted = "ask",
) -> Asked:
    request = client(shop, model).prompt("Buy tea")
    return ask(recorded(request, Recording(journal, on_interrupted=on_interrupted), "turn-1"))


STEPS = [
    *("model 0", "tool price", "tool reserve", "model 2"),
    *("tool broken", "model 4", "begin buy", "tool buy", "model 6"),
]


def test_records_each_step(ask: Ask) -> None:
    """A turn has one step for each call of the model and of a tool, and two for a tool that writes.

    A recorded turn calls neither the model nor tools, and has the same answer, executions and text.
    """
    journal, shop = Journal(), Shop()
    first = run(ask, journal, shop, script_from(0))
    assert [
        name.rsplit(" ", 1)[0] if "model" not in name else name for name in journal.ran
    ] == STEPS

    again = run(ask, journal.reopen(), shop, script_from(4))

    assert journal.ran == []
    assert len(shop.runs) == 4
    assert again.text == first.text
    assert again.response.chat_response == first.response.chat_response
    assert [e.response for e in again.executions] == [e.response for e in first.executions]
    assert [type(e.error) for e in again.executions] == [type(e.error) for e in first.executions]


@pytest.mark.parametrize("step", [step for step in STEPS if step != "tool buy"])
def test_continues_after_each_step(ask: Ask, step: str) -> None:
    """A turn that ended before any step continues there, and repeats nothing that has finished."""
    journal, shop = Journal(), Shop()
    journal.stop_before = step
    model = script_from(0)
    with pytest.raises(ExecutionLostError):
        run(ask, journal, shop, model)
    done = len(model.prompts)

    again = run(ask, journal.reopen(), shop, script_from(done))

    assert again.response.chat_response.text == "Bought for 10."
    assert sorted(shop.runs) == ["broken", "buy tea", "price tea", "reserve tea"]


@pytest.mark.parametrize(
    ("step", "ran"), [("tool price", "price tea"), ("tool reserve", "reserve tea")]
)
def test_repeats_interrupted_safe_tool(ask: Ask, step: str, ran: str) -> None:
    """An interrupted tool runs again if that is safe, with the same idempotency key."""
    journal, shop = Journal(), Shop()
    journal.stop_after = step
    with pytest.raises(ExecutionLostError):
        run(ask, journal, shop, script_from(0))

    run(ask, journal.reopen(), shop, script_from(1))

    assert shop.runs.count(ran) == 2
    assert len(shop.keys) == 1


def interrupted(ask: Ask) -> tuple[Journal, Shop]:
    journal, shop = Journal(), Shop()
    journal.stop_after = "tool buy"
    with pytest.raises(ExecutionLostError):
        run(ask, journal, shop, script_from(0))
    return journal.reopen(), shop


def test_interrupted_write_waits(ask: Ask) -> None:
    """A turn whose tool may have written waits for a decision; approved, the tool runs again."""
    journal, shop = interrupted(ask)
    recording = Recording(journal)
    request = client(shop, script_from(3)).prompt("Buy tea")

    waiting = ask(recorded(request, recording, "turn-1"))

    pending = waiting.answer.pending_turn()
    assert pending is not None
    assert list(pending.to_decide()) == ["d"] == recording.interrupted
    assert shop.runs.count("buy tea") == 1
    resumed = client(shop, script_from(3)).resume(pending, "approve")
    assert ask(recorded(resumed, Recording(Journal()), "turn-1")).text == "Bought for 10."
    assert shop.runs.count("buy tea") == 2


def test_interrupted_write_is_repeated(ask: Ask) -> None:
    """With `repeat`, an interrupted tool that writes runs again."""
    journal, shop = Journal(), Shop()
    journal.stop_after = "tool buy"
    with pytest.raises(ExecutionLostError):
        run(ask, journal, shop, script_from(0), "repeat")

    run(ask, journal.reopen(), shop, script_from(3), "repeat")

    assert shop.runs.count("buy tea") == 2


def test_interrupted_write_is_reported(ask: Ask) -> None:
    """With `tell_model`, the model learns that the outcome is unknown."""
    journal, shop = interrupted(ask)

    again = run(ask, journal, shop, script_from(3), "tell_model")

    assert "unknown whether the call took effect" in again.executions[-1].response.data
    assert shop.runs.count("buy tea") == 1


def test_replays_suspension(ask: Ask) -> None:
    """A turn that waits for approval waits again when it is repeated, for the same call."""
    journal, shop = Journal(), Shop()
    script = [call("buy", {"item": "tea"}, id="d")]

    def waiting(model: ScriptedModel) -> Any:
        asking = client(shop, model, interceptors=[ToolApproval()])
        return ask(recorded(asking.prompt("Buy"), Recording(journal), "t")).answer.pending_turn()

    first, again = waiting(ScriptedModel(script)), waiting(ScriptedModel())

    assert first == again
    assert shop.runs == []


def test_stores_turn_once(ask: Ask) -> None:
    """A turn that is repeated after memory has stored it is not stored again."""
    repository = SqlChatMemoryRepository("sqlite://")
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(repository))
    journal, shop = Journal(), Shop()
    for model in (script_from(0), script_from(4)):
        request = client(shop, model).prompt("Buy tea").advisors(memory).conversation("c")
        ask(recorded(request, Recording(journal), "turn-1"))

    stored = repository.find_by_conversation_id("c")
    assert [message.role for message in stored] == [
        *("user", "assistant", "tool", "assistant", "tool", "assistant", "tool", "assistant")
    ]
    repository.close()


def test_counts_recorded_usage(ask: Ask) -> None:
    """Recorded calls count in the budget of the turn."""
    journal, shop = Journal(), Shop()
    journal.stop_before = "model 6"
    with pytest.raises(ExecutionLostError):
        run(ask, journal, shop, script_from(0))

    request = client(shop, script_from(3)).prompt("Buy tea").advisors(Budget(calls=3))
    with pytest.raises(BudgetExceededError):
        ask(recorded(request, Recording(journal.reopen()), "turn-1"))


def test_limits_include_recorded_time(ask: Ask) -> None:
    """The time limit of the tool loop counts from the start of the turn, not from its last run."""
    journal, shop = Journal(), Shop()
    limits = ToolLimits(max_seconds=60, on_exceeded="raise")
    request = client(shop, script_from(0), limits=limits).prompt("Buy tea")

    with pytest.raises(ToolLoopError):
        ask(recorded(request, Recording(journal, started=0.0), "turn-1"))


def test_retries_with_recorded_pause(ask: Ask) -> None:
    """A model call that the provider refused is repeated after a pause; nothing else is."""
    journal = Journal()
    model = ScriptedModel(OverloadedError("busy"), OverloadedError("busy"), "Hello")
    request = ChatClient.create(model).prompt("Hi")
    retries = TurnRetries(attempts=3, seconds=0.001)

    assert ask(recorded(request, Recording(journal), "t", retries=retries)).text == "Hello"
    assert list(journal.steps) == [
        *("model 0", "retry model 0", "model 0 #2", "retry model 0 #2", "model 0 #3")
    ]


def test_raises_recorded_error(ask: Ask) -> None:
    """A recorded error of the model is raised again, with its class and attributes."""
    journal = Journal()
    for model in (ScriptedModel(OverloadedError("busy", status=503)), ScriptedModel()):
        request = ChatClient.create(model).prompt("Hi")
        with pytest.raises(OverloadedError, match="busy") as caught:
            ask(recorded(request, Recording(journal), "t"))
        assert caught.value.status == 503


def test_records_tools_of_own_manager(ask: Ask) -> None:
    """Tools are recorded as well if the tool loop has another manager."""
    journal, shop = Journal(), Shop()
    loop = ToolCallingAdvisor(ToolCallingManager())
    request = client(shop, script_from(0)).prompt("Buy tea").advisors(loop)

    ask(recorded(request, Recording(journal), "turn-1"))

    assert sum(name.startswith("tool ") for name in journal.steps) == 4


def test_lost_execution_undoes_nothing(ask: Ask) -> None:
    """If another process executes the turn now, nothing is undone here."""
    journal, undone = Journal(), list[str]()

    @tool(compensation=lambda item: undone.append(item))  # noqa: PLW0108 - it has a parameter
    def book(item: str) -> str:
        """Book."""
        return "booked"

    journal.stop_before = "model 2"
    request = (
        ChatClient.create(ScriptedModel(call("book", {"item": "x"}))).prompt("Book").tools(book)
    )

    with pytest.raises(ExecutionLostError):
        ask(recorded(request, Recording(journal), "t"))

    assert undone == []


def test_undoes_once(ask: Ask) -> None:
    """A call that was undone when the turn failed is not undone again when the turn is repeated."""
    journal, undone = Journal(), list[str]()

    def cancel(item: str) -> None:
        undone.append(item)

    @tool(compensation=cancel)
    def book(item: str) -> str:
        """Book."""
        return "booked"

    for model in (
        ScriptedModel([call("book", {"item": "x"})], OverloadedError("busy")),
        ScriptedModel(),
    ):
        request = ChatClient.create(model).prompt("Book").tools(book)
        with pytest.raises(OverloadedError):
            ask(recorded(request, Recording(journal), "t"))

    assert undone == ["x"]


def displayed(
    memory: MessageWindowChatMemory, journal: Journal, *answers: Any
) -> ChatClientRequestSpec:
    """Return a recorded request of a frontend, which has edited the message "2"."""
    found = (
        ChatClient.builder(ScriptedModel(*answers))
        .default_tools(Shop().price)
        .default_advisors(MessageChatMemoryAdvisor(memory))
        .build()
    )
    request = found.prompt().messages(UserMessage("B", id="2")).conversation("c")
    request = request.in_turn(TurnSettings(replaces=True, is_displayed=True))
    return recorded(request, Recording(journal.reopen()), "turn 1")


def edited() -> MessageWindowChatMemory:
    memory = MessageWindowChatMemory()
    memory.add("c", [UserMessage("a", id="0"), AssistantMessage("A", id="1")])
    memory.add("c", [UserMessage("b", id="2"), AssistantMessage("wrong", id="3")])
    return memory


def texts(memory: MessageWindowChatMemory) -> list[str]:
    return [message.text for message in memory.get("c")]


def test_edited_message_of_a_repeated_turn(ask: Ask) -> None:
    """A turn that is stored, and executed again after a crash, does not remove itself."""
    memory, journal = edited(), Journal()
    ask(displayed(memory, journal, "right"))
    assert texts(memory) == ["a", "A", "B", "right"]

    ask(displayed(memory, journal))
    assert texts(memory) == ["a", "A", "B", "right"]


def test_turn_that_another_process_continues(ask: Ask) -> None:
    """A process that loses the turn stores nothing of it; the other one stores it once."""
    memory, journal = edited(), Journal()
    begin: Any = ["Let me see.", call("price", {"item": "tea"})]
    first = displayed(memory, journal, begin, "10")
    journal.stop_before = "model 2"
    with pytest.raises(ExecutionLostError):
        ask(first)
    assert texts(memory) == ["a", "A"]

    ask(displayed(memory, journal, "10"))
    assert texts(memory) == ["a", "A", "B", "Let me see.", "", "10"]


def test_failed_turn_that_is_repeated(ask: Ask) -> None:
    """What was shown of a turn that fails is stored once, also if it is executed again."""
    memory, journal = edited(), Journal()
    for answers in ([["Half", OverloadedError("busy", provider="x")]], []):
        with pytest.raises(OverloadedError):
            ask(displayed(memory, journal, *answers))
        if not ask.streaming:  # nothing is shown
            assert texts(memory) == ["a", "A"]
        elif answers:
            assert texts(memory) == ["a", "A", "B", "Half"]
        else:
            assert texts(memory)[:3] == ["a", "A", "B"]
            assert len(texts(memory)) == 4
