"""What memory stores of a turn whose stream was closed, and what the next turn sends."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientRequestSpec,
    ChatClientResponse,
    tool,
)
from chatclient.advisors import (
    GuardrailResult,
    MessageChatMemoryAdvisor,
    OutputGuardrailAdvisor,
    PromptChatMemoryAdvisor,
    SessionMemoryAdvisor,
)
from chatclient.chain.chain import MEMORY_ORDER, Next
from chatclient.chat.events import ReasoningDelta, TextDelta, ToolCallFinished
from chatclient.chat.message_merging import INTERRUPTED
from chatclient.chat.messages import Reasoning
from chatclient.chat.tool import ToolProgress
from chatclient.chat.turn import TurnSettings
from chatclient.errors import ChatMemoryError, OverloadedError, UsageError
from chatclient.memory import (
    ENDED_EARLY,
    ChatMemory,
    InMemoryChatMemoryRepository,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    SessionChatMemory,
    SessionService,
    SummarizingChatMemory,
    Window,
)
from chatclient.testing import Ask, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager
from tests.modes.test_memory_advisor import INSIDE, Talk, short

Way = Literal["stream", "astream", "task"]
every_way = pytest.mark.parametrize("way", ["stream", "astream", "task"])
orders = pytest.mark.parametrize("order", [MEMORY_ORDER, INSIDE], ids=["outside", "inside"])


@tool
def pay() -> str:
    """Pay."""
    return "paid"


UNDONE = "'book' was run, and then undone because the turn failed."


def stop(request: ChatClientRequestSpec, way: Way, last: Callable[[Any], bool]) -> None:
    """Consume the events of *request* up to the one for which *last* is true, and stop.

    In the way `task`, the task that consumes them is cancelled, as web servers do.
    """
    if way == "stream":
        events = request.stream().events()
        while not last(next(events)):
            pass
        events.close()
        return

    async def consume() -> None:
        async with request.astream() as stream:
            async for event in stream.events():
                if last(event):
                    if way == "astream":
                        return
                    reached.set()
                    await asyncio.sleep(3600)

    async def run() -> None:
        task = asyncio.create_task(consume())
        if way == "task":
            await reached.wait()
            task.cancel()
        with suppress(asyncio.CancelledError):
            await task

    reached = asyncio.Event()
    asyncio.run(run())


def says(text: str) -> Callable[[Any], bool]:
    return lambda event: isinstance(event, TextDelta) and text in event.text


@pytest.mark.feature("memory-failed-cancelled-turn-leaves")
@every_way
@orders
def test_question_of_a_stopped_answer(way: Way, order: int) -> None:
    """The question and the streamed part of the answer are stored."""
    talk = Talk(["Nice", 60, " to meet you."], "You are Ada.", order=order)
    stop(talk.say("My name is Ada."), way, says("Nice"))
    talk.say("What is my name?").call().content()

    assert talk.shown[-1] == [
        "s:Be brief.",
        "u:My name is Ada.",
        "a:Nice",
        "u:What is my name?",
    ]
    assert [ENDED_EARLY in message.metadata for message in talk.stored] == [
        *(False, True),
        *(False, False),
    ]


@every_way
@orders
def test_stopped_in_the_second_round(way: Way, order: int) -> None:
    """Tool results are stored as well, so that the calls are not repeated."""
    talk = Talk(["hm", call("look")], ["Well", 60, "."], "fine", order=order)
    stop(talk.say("one"), way, says("Well"))
    talk.say("two").call().content()

    turn = ["u:one", "a:hm(call_look)", "t:(seen it)", "a:Well"]
    assert short(talk.stored) == [*turn, "u:two", "a:fine"]
    assert talk.shown[-1] == ["s:Be brief.", *turn, "u:two"]


@orders
def test_stopped_while_tools_run(order: int) -> None:
    """The results distinguish finished, undone and interrupted calls."""
    undone: list[str] = []

    def cancel(city: str) -> None:
        undone.append(city)

    @tool(compensation=cancel)
    def book(city: str) -> str:
        """Book."""
        return f"booked {city}"

    @tool
    async def wait() -> str:
        """Wait."""
        await asyncio.sleep(3600)
        return "never"

    calls = [call("look"), call("book", {"city": "Rome"}), call("wait")]
    talk = Talk(calls, "fine", order=order)
    request = talk.say("one").tools(book, wait, keep_defaults=True)
    finished = set()

    def both(event: Any) -> bool:
        if isinstance(event, ToolCallFinished):
            finished.add(event.tool_call.name)
        return finished == {"look", "book"}

    stop(request, "astream", both)

    assert undone == ["Rome"]
    assert short(talk.stored) == [
        "u:one",
        "a:(call_look,call_book,call_wait)",
        f"t:(seen it,{UNDONE},{INTERRUPTED})",
    ]
    talk.say("two").call().content()
    assert short(talk.stored)[3:] == ["u:two", "a:fine"]


@every_way
@orders
def test_stopped_after_an_approval(way: Way, order: int) -> None:
    """Approved calls are stored with their results."""
    manager = ToolCallingManager(interceptors=[ToolApproval()])
    answers: Any = [call("look"), call("pay")]
    talk = Talk(answers, ["Paid", 60, "."], order=order, manager=manager)
    client = talk.client.mutate().default_tools(pay).build()
    turn = client.prompt("one").conversation("c").call().pending_turn()
    assert turn is not None
    stop(client.resume(turn, "approve"), way, says("Paid"))

    assert short(talk.stored) == [
        *("u:one", "a:(call_look,call_pay)"),
        *("t:(seen it,paid)", "a:Paid"),
    ]


@every_way
def test_stopped_while_the_model_reasons(way: Way) -> None:
    """A question without a text gets an answer that explains it, because roles alternate."""
    answer: Any = [Reasoning("Hm."), 60, "Four."]
    talk = Talk(answer, "fine")
    stop(talk.say("one"), way, lambda event: isinstance(event, ReasoningDelta))

    assert short(talk.stored) == ["u:one", "a:(There is no answer: it was interrupted.)"]


@every_way
def test_without_tool_messages(way: Way) -> None:
    """Only the question and the answer are stored."""
    talk = Talk(["hm", call("look")], ["Well", 60, "."], tool_messages=False)
    stop(talk.say("one"), way, says("Well"))

    assert short(talk.stored) == ["u:one", "a:Well"]


async def test_stopped_before_anything_was_shown() -> None:
    """Nothing is stored before the first piece, so that the request can be retried."""
    talk = Talk([60, "late"])

    async def consume() -> None:
        async for _ in talk.say("one").astream():
            pass

    task = asyncio.create_task(consume())
    while not talk.model.prompts:  # noqa: ASYNC110 - the model says nothing
        await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert talk.repository.find_by_conversation_id("c") == []


@every_way
def test_text_that_was_withheld(way: Way) -> None:
    """Text that a guardrail withheld is not stored."""

    def accept(answer: object) -> GuardrailResult:
        return GuardrailResult.success()

    talk = Talk([call("look")], ["secret", 60, "."])
    request = talk.say("one").advisors(OutputGuardrailAdvisor(accept))
    stop(request, way, lambda event: isinstance(event, ToolCallFinished))

    assert "secret" not in str(talk.stored)
    assert short(talk.stored) == ["u:one", "a:(call_look)", "t:(seen it)"]


@every_way
def test_second_attempt_of_an_advisor(way: Way) -> None:
    """Of an answer that an advisor has rejected, nothing is stored."""

    async def again(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        return await call_next(request)

    talk = Talk("bad", ["Good", 60, "."])
    stop(talk.say("one").advisors(again), way, says("Good"))

    assert short(talk.stored) == ["u:one", "a:Good"]


@pytest.mark.parametrize("kind", ["window", "summary", "sessions", "prompt"])
@every_way
def test_other_memories(kind: str, way: Way) -> None:
    """All memories of conversations store what was shown."""
    memory: ChatMemory = MessageWindowChatMemory()
    advisor: Any = MessageChatMemoryAdvisor(memory)
    if kind == "summary":
        few = Window.messages(2)
        memory = SummarizingChatMemory(ScriptedModel(), trigger=few, window=few)
        advisor = MessageChatMemoryAdvisor(memory)
    elif kind == "sessions":
        memory = SessionChatMemory(SessionService(InMemorySessionRepository()))
        advisor = SessionMemoryAdvisor(memory)
    elif kind == "prompt":
        advisor = PromptChatMemoryAdvisor(memory)
    model = ScriptedModel(["Nice", 60, "."], "You are Ada.")
    client = ChatClient.builder(model).default_advisors(advisor).build()
    stop(client.prompt("I am Ada.").conversation("c"), way, says("Nice"))

    assert [message.text for message in memory.get("c")] == ["I am Ada.", "Nice"]
    client.prompt("Who am I?").conversation("c").call().content()
    assert "I am Ada." in str(model.prompts[-1].messages)
    assert "Nice" in str(model.prompts[-1].messages)


class Full(InMemoryChatMemoryRepository):
    """A repository that stores nothing."""

    async def append(self, *_args: Any, **_more: Any) -> bool:
        msg = "the disk is full"
        raise ChatMemoryError(msg, conversation_id="c")


@every_way
def test_memory_that_cannot_be_written(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    """The failure is logged, and closing the stream raises no error."""
    talk = Talk(["Well", 60, "."], repository=Full())
    stop(talk.say("one"), way, says("Well"))

    assert "the disk is full" in caplog.text


@every_way
@orders
def test_turn_that_is_repeated_with_its_key(way: Way, order: int) -> None:
    """The repetition takes the place of the attempt that was stopped, and is stored once."""
    talk = Talk("hi", ["Well", 60, "."], "first", "again", order=order)
    talk.say("zero").call().content()
    request = talk.say("one").idempotency_key("job 1")
    stop(request, way, says("Well"))
    request.call().content()
    request.call().content()

    assert talk.shown[2] == ["s:Be brief.", "u:zero", "a:hi", "u:one"]
    assert short(talk.stored) == ["u:zero", "a:hi", "u:one", "a:first"]


@every_way
def test_memory_of_an_agent(way: Way) -> None:
    """The agent's turn is not stored if the turn of the user is stopped."""
    repository = InMemoryChatMemoryRepository()
    expert = (
        ChatClient.builder(ScriptedModel(["Well", 60, "."]))
        .default_advisors(MessageChatMemoryAdvisor(MessageWindowChatMemory(repository)))
        .build()
        .as_tool("expert", "Knows.")
    )
    talk = Talk([call("expert", {"request": "?"})])
    stop(talk.say("one").tools(expert), way, lambda event: isinstance(event, ToolProgress))

    assert repository.find_conversation_ids() == []
    assert short(talk.stored)[0] == "u:one"


def test_stream_that_fails(ask: Ask) -> None:
    """After an error nothing is stored, so that the request can be retried."""
    talk = Talk(["Well", OverloadedError("busy", provider="x")])
    with pytest.raises(OverloadedError):
        ask(talk.say("one"))

    assert talk.stored == []


@orders
@pytest.mark.parametrize("advisor", [MessageChatMemoryAdvisor, PromptChatMemoryAdvisor])
@pytest.mark.parametrize("ending", ["stop", "fail", "refuse"])
async def test_ended_before_the_chain_begins(ending: str, advisor: Any, order: int) -> None:
    """A frontend displays the question of a turn that ended while its system text was awaited."""
    begun = asyncio.Event()

    async def system() -> str:
        begun.set()
        if ending == "stop":
            await asyncio.sleep(3600)
        raise OSError("down") if ending == "fail" else UsageError("no text")

    memory = MessageWindowChatMemory()
    model = ScriptedModel("never")
    builder = ChatClient.builder(model).default_system(system)
    client = builder.default_advisors(advisor(memory, order=order)).build()
    request = client.prompt("My name is Ada.").conversation("c")

    async def consume() -> None:
        async for _ in request.in_turn(TurnSettings(is_displayed=True)).astream().events():
            pass

    task = asyncio.create_task(consume())
    await begun.wait()
    if ending == "stop":
        task.cancel()
    with pytest.raises((asyncio.CancelledError, OSError, UsageError)):
        await task

    stored = await memory.aget("c")
    assert [message.text for message in stored[:1]] == (
        [] if ending == "refuse" else ["My name is Ada."]
    )
    assert all(ENDED_EARLY in message.metadata for message in stored[1:])
    assert model.prompts == []
