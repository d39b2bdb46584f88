"""Parts of durable turns: events, errors, steps that fail, and the command of workers."""

import asyncio
import json
from typing import Any

import pytest

from chatclient import ChatClient, ReasoningDelta, TextDelta, ToolCall, tool
from chatclient.__main__ import main
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.chat import ToolRunStarted
from chatclient.chat.events import StreamEvent
from chatclient.durable import (
    DurableClient,
    ExecutionLostError,
    Recording,
    RoundRestarted,
    TurnQueue,
    TurnRetries,
    durable,
    error_from_dict,
    error_to_dict,
    recorded,
    request_from_dict,
    request_to_dict,
)
from chatclient.durable.events import EventReader, event_to_dict
from chatclient.durable.worker import load
from chatclient.errors import (
    ChatMemoryUnavailableError,
    DeadlineExceededError,
    OverloadedError,
    RecordedError,
    ToolArgumentError,
    UsageError,
)
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.runtime.runtime import ON_LOOP
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools.execution.compensation import undo_step
from tests.durable.conftest import Make
from tests.support.journal import Journal


def test_events_as_json() -> None:
    """Events survive JSON; a step that begins again voids its earlier events."""
    ran = ToolRunStarted(ToolCall("c", "look", "{}"), 2)
    events: list[StreamEvent | str] = ["model 0", TextDelta("He"), "model 0", TextDelta("Hi"), ran]
    events.append(ReasoningDelta("hm"))

    values = json.loads(json.dumps([event_to_dict(event) for event in events]))

    assert list(EventReader().events([*values, {"type": "newer"}])) == [
        *(TextDelta("He"), RoundRestarted(), TextDelta("Hi"), ran, ReasoningDelta("hm"))
    ]


class CustomError(Exception):
    """An error of the application."""


@pytest.mark.parametrize(
    "error",
    [
        OverloadedError("busy", status=503, retry_after=2.0),
        ToolArgumentError("no", tool_name="look", details=["a", "b"]),
        CustomError("mine"),
        KeyError("key"),
    ],
)
def test_errors_as_json(error: Exception) -> None:
    """Errors keep their class, message and attributes."""
    restored = error_from_dict(json.loads(json.dumps(error_to_dict(error))))

    assert type(restored) is type(error)
    assert restored.args == error.args
    assert vars(restored) == vars(error)


def test_unknown_error() -> None:
    """An error whose class does not exist here becomes a `RecordedError` with its name."""
    data = error_to_dict(CustomError("mine")) | {"name": "Removed"}

    restored = error_from_dict(data)

    assert isinstance(restored, RecordedError)
    assert restored.kind.endswith(".Removed")
    assert "mine" in str(restored)


class BrokenRepository(InMemoryChatMemoryRepository):
    """A memory that cannot be reached a few times."""

    def __init__(self, failures: int) -> None:
        super().__init__()
        self.failures = failures

    def fail(self) -> None:
        if self.failures:
            self.failures -= 1
            msg = "the database restarts"
            raise ChatMemoryUnavailableError(msg)


class BrokenStore(BrokenRepository):
    async def append(self, *args: Any, **more: Any) -> bool:
        self.fail()
        return await super().append(*args, **more)


class BrokenLoad(BrokenRepository):
    async def load(self, *args: Any, **more: Any) -> Any:
        self.fail()
        return await super().load(*args, **more)


def test_stores_when_memory_is_back(ask: Ask) -> None:
    """A turn is stored in a memory that was not available for a moment."""
    repository = BrokenStore(2)
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(repository))
    request = ChatClient.create(ScriptedModel("Hi")).prompt("Hello").advisors(memory)

    ask(recorded(request.conversation("c"), Recording(Journal()), "t"))

    assert len(repository.find_by_conversation_id("c")) == 2


def test_begins_when_memory_is_back(make: Make) -> None:
    """A turn begins when the memory is available."""
    memory = MessageChatMemoryAdvisor(MessageWindowChatMemory(BrokenLoad(2)))
    client = make(ScriptedModel("Hi"), advisors=[memory])

    assert client.call(client.prompt("Hello").conversation("c")).content() == "Hi"


async def test_undo_of_cancelled_turn() -> None:
    """A turn that was cancelled undoes its calls, although nothing is recorded any more."""

    class Cancelled(Journal):
        async def step(self, name: str, function: Any) -> Any:
            raise asyncio.CancelledError

    undone: list[str] = []

    async def undo() -> None:
        undone.append("x")

    await Recording(Cancelled()).step(undo_step("k", undo), ON_LOOP)

    assert undone == ["x"]


async def test_undo_that_failed() -> None:
    """An error of undoing is recorded, and raised again."""
    journal = Journal()

    async def undo() -> None:
        raise CustomError("cannot")

    for _ in range(2):
        with pytest.raises(CustomError, match="cannot"):
            await Recording(journal).step(undo_step("k", undo), ON_LOOP)
    assert journal.ran == ["undo k"]


async def test_pause_ends_at_recorded_time() -> None:
    """A pause that began before a crash is not repeated."""
    journal = Journal()
    journal.steps["retry model 0"] = json.dumps({"value": 1.0, "at": 0.0})
    recording = Recording(journal, retries=TurnRetries(seconds=1000))
    model = ScriptedModel(OverloadedError("busy"), "Hello")

    request = recorded(ChatClient.create(model).prompt("Hi"), recording, "t")
    assert await request.acall().content() == "Hello"


def test_no_new_step_after_deadline(ask: Ask) -> None:
    """After its deadline, a turn repeats what is recorded, and nothing new begins."""

    @tool(effect="read")
    def look() -> str:
        """Look."""
        return "seen"

    journal = Journal()
    model = ScriptedModel(call("look"), "Done.")
    client = ChatClient.builder(model).default_tools(look).build()
    journal.stop_before = "model 2"
    with pytest.raises(ExecutionLostError):
        ask(recorded(client.prompt("Look"), Recording(journal), "t"))

    late = Recording(journal.reopen(), deadline=1.0)
    with pytest.raises(DeadlineExceededError, match="not repeated"):
        ask(recorded(client.prompt("Look"), late, "t"))
    assert len(model.prompts) == 1


def test_request_as_json() -> None:
    """A request of names of tools, options and media survives JSON."""
    client = ChatClient.builder(ScriptedModel()).default_user("Hi").default_messages().build()
    request = client.prompt("Look").tools("look").options(temperature=0.1, seed=None)
    request = request.tool_calling(False)

    data = json.loads(json.dumps(request_to_dict(request)))
    restored = request_from_dict(client.prompt().pipeline, data)

    assert restored.settings.tools == ("look",)
    assert restored.settings.options == request.settings.options
    assert restored.settings.tool_calling is False
    assert [message.text for message in restored.settings.messages] == ["Look"]


def test_pauses_of_retries() -> None:
    """Pauses double up to the longest one, and are as long as the provider asks at least."""
    retries = TurnRetries(attempts=4, seconds=10, longest=15)

    busy = OverloadedError("busy")
    assert [retries.pause_after(n, busy) for n in (1, 2, 3, 4)] == [10, 15, 15, None]
    assert retries.pause_after(1, OverloadedError("busy", retry_after=60)) == 60
    assert retries.pause_after(1, CustomError()) is None


queue = TurnQueue("q")
support: DurableClient
clients: object


def test_loads_clients_of_worker(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker finds durable clients and queues in an object of a module."""
    here = __name__
    client = durable(ChatClient.create(ScriptedModel()), name="loaded")
    for found in (client, [client, queue], {"a": client, "b": queue}):
        monkeypatch.setitem(globals(), "clients", found)
        assert load(f"{here}:clients")[0] == [client]

    monkeypatch.setitem(globals(), "clients", [queue])
    for wrong in (here, f"{here}:clients"):
        with pytest.raises(UsageError):
            load(wrong)


def test_wrong_usage_of_worker(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker that cannot start prints the reason, with status 2."""
    monkeypatch.delenv("CHATCLIENT_DURABLE_DATABASE", raising=False)
    made = durable(ChatClient.create(ScriptedModel()), name="worker-test")
    monkeypatch.setitem(globals(), "clients", made)

    assert main(["worker", f"{__name__}:clients"]) == 2
    assert "--database" in capsys.readouterr().err
    assert main(["worker", "nothing.here:x"]) == 2
