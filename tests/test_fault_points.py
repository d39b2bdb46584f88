"""A fault at every point where a turn enters code from outside, and at every step of its loop.

A turn calls a model, which calls tools side by side, and is remembered, which may have a model
write a summary. Wherever it is cut short, what is remembered is whole turns; what the tools have
done is either remembered or undone, once; and nothing goes on.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from conftest import Ask, Mode

from chatclient import AssistantMessage, ChatClient, ChatResponse, Prompt, UserMessage
from chatclient.advisors.memory import MessageChatMemoryAdvisor
from chatclient.client import ChatClientRequestSpec
from chatclient.memory import (
    ChatMemory,
    InMemoryChatMemoryRepository,
    MessageWindowChatMemory,
    SummarizingChatMemory,
    Window,
    conversation_problems,
)
from chatclient.memory.sessions import (
    InMemorySessionRepository,
    RecursiveSummary,
    SessionChatMemory,
    SessionService,
    TurnCountTrigger,
)
from chatclient.messages import ToolResponseMessage
from chatclient.runtime import Runtime
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import ToolCallingManager, tool


class Boom(Exception):  # noqa: N818 - a fault of nobody's
    """An ordinary error."""


@dataclass
class Fault:
    """Counts the points that are passed, and strikes at one of them."""

    kind: str
    at: int
    passed: int = 0
    armed: bool = False
    task: "asyncio.Task[None] | None" = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self) -> bool:
        """Take note of a point."""
        with self.lock:
            self.passed += self.armed
            return self.armed and self.passed == self.at

    def point(self) -> None:
        """Pass a point on whichever thread."""
        if self.strikes() and self.kind != "leave":
            self.strike()

    async def wait(self, runtime: Runtime) -> None:
        """Pass a point where a cancellation arrives at once."""
        self.point()
        if not runtime.blocking and self.passed == self.at and self.kind == "interrupt":
            await asyncio.sleep(0.05)  # a store would finish what it has begun

    def strike(self) -> None:
        """Let it happen."""
        if self.kind == "error":
            raise Boom
        if self.task is None:
            raise KeyboardInterrupt
        self.task.get_loop().call_soon_threadsafe(self.task.cancel)


class Model(ScriptedModel):
    """Passes points before, while and after it answers."""

    def __init__(self, fault: Fault, answer: Callable[[Prompt], Answer]) -> None:
        super().__init__(answer)
        self.fault = fault

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        await self.fault.wait(runtime)
        response = await super().generate(prompt, runtime)
        await self.fault.wait(runtime)
        return response

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        async for chunk in super().generate_stream(prompt, runtime):
            await self.fault.wait(runtime)
            yield chunk


class Turn:
    """A client with a memory, and a turn of it that a fault strikes."""

    def __init__(self, memory: str, fault: Fault) -> None:
        self.fault = fault
        self.done: Counter[str] = Counter()
        self.undone: Counter[str] = Counter()
        self.memory = MEMORIES[memory](fault)
        self.memory.add("c", [UserMessage("before"), AssistantMessage("yes")])
        self.model = Model(fault, self.answer)
        manager = ToolCallingManager(blocking_concurrency=2)
        builder = ChatClient.builder(self.model).default_tools(self).tool_calling_manager(manager)
        advisor = MessageChatMemoryAdvisor(self.memory)
        self.client = builder.default_advisors(advisor).build()

    @tool(compensation="unbook")
    def book(self, city: str) -> str:
        """Book."""
        self.fault.point()
        self.done[city] += 1
        return city

    async def unbook(self, city: str) -> None:
        self.undone[city] += 1

    @tool
    async def look(self) -> str:
        """Look."""
        self.fault.point()
        await asyncio.sleep(0)
        self.fault.point()
        return "seen"

    def answer(self, prompt: Prompt) -> Answer:
        assert conversation_problems(prompt.messages, ending="question") == ()
        match prompt.messages[-1]:
            case UserMessage(text="now"):
                return ["hm", call("book", '{"city": "Rome"}'), call("look")]
            case ToolResponseMessage(responses=[_, _]):
                return [call("book", '{"city": "Oslo"}')]
        return "done"

    def run(self, mode: Mode) -> None:
        """Put the request, with whatever the fault makes of it."""
        request = self.client.prompt("now").conversation("c")
        self.fault.armed = True
        try:
            if Ask(mode).blocking:
                self.ask(mode, request)
            else:
                asyncio.run(self.aask(mode, request))
        except (Boom, KeyboardInterrupt, asyncio.CancelledError):
            pass
        finally:
            self.fault.armed = False

    def ask(self, mode: Mode, request: ChatClientRequestSpec) -> None:
        if mode == "call":
            request.call().content()
            return
        events = request.stream().events()
        try:
            for _ in events:
                if self.fault.strikes():
                    return
        finally:
            events.close()

    async def aask(self, mode: Mode, request: ChatClientRequestSpec) -> None:
        async def consume() -> None:
            if mode == "acall":
                await request.acall().content()
                return
            async with request.astream().events() as events:
                async for _ in events:
                    if self.fault.strikes():
                        return

        self.fault.task = asyncio.ensure_future(consume())
        await asyncio.wait([self.fault.task])
        assert asyncio.all_tasks() == {asyncio.current_task()}
        task, self.fault.task = self.fault.task, None
        task.result()

    def check(self) -> None:
        """See that all is in order, and that the conversation can go on."""
        remembered = self.memory.get("c")
        assert conversation_problems(remembered, ending="answer") == ()
        told = [r for m in remembered if isinstance(m, ToolResponseMessage) for r in m.responses]
        kept = Counter(r.data for r in told if r.name == "book" and not r.is_error)
        assert self.done - self.undone == kept
        assert not self.undone - self.done
        assert self.client.prompt("later").conversation("c").call().content() == "done"


class Repository(InMemoryChatMemoryRepository):
    """Passes a point before each operation; what has returned has happened."""

    fault: Fault

    async def load(self, *given: Any, **more: Any) -> Any:
        self.fault.point()
        return await super().load(*given, **more)

    async def replace(self, *given: Any, **more: Any) -> bool:
        self.fault.point()
        return await super().replace(*given, **more)


class Sessions(InMemorySessionRepository):
    """The same for sessions."""

    fault: Fault

    async def find(self, *given: Any, **more: Any) -> Any:
        await self.fault.wait(given[-1])
        return await super().find(*given, **more)

    async def compact(self, *given: Any, **more: Any) -> bool:
        self.fault.point()
        return await super().compact(*given, **more)


def kept_by(repository: Any, fault: Fault) -> Any:
    repository.fault = fault
    return repository


MEMORIES: dict[str, Callable[[Fault], ChatMemory]] = {
    "window": lambda fault: MessageWindowChatMemory(
        kept_by(Repository(), fault), max_messages=2, prune=True
    ),
    "summary": lambda fault: SummarizingChatMemory(
        Model(fault, lambda _: "notes"),
        kept_by(Repository(), fault),
        trigger=Window.messages(3),
        window=Window.messages(2),
    ),
    "session": lambda fault: SessionChatMemory(
        SessionService(kept_by(Sessions(), fault)),
        trigger=TurnCountTrigger(1),
        strategy=RecursiveSummary(Model(fault, lambda _: "notes"), most=6, overlap=1),
    ),
}


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("kind", ["error", "interrupt", "leave"])
@pytest.mark.parametrize("mode", ["call", "acall", "stream", "astream"])
def test_wherever_a_turn_is_cut_short_all_is_in_order(mode: Mode, kind: str, memory: str) -> None:
    """An error, Ctrl-C or a cancellation, a consumer that leaves: at each point there is."""
    whole = Turn(memory, Fault("none", 0))
    whole.run(mode)
    assert whole.done == {"Rome": 1, "Oslo": 1}
    for at in range(1, whole.fault.passed + 1):
        turn = Turn(memory, Fault(kind, at))
        turn.run(mode)
        turn.check()


@pytest.mark.parametrize("memory", MEMORIES)
@pytest.mark.parametrize("times", [1, 3])
@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_whenever_a_turn_is_cancelled_all_is_in_order(
    mode: Mode, times: int, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """At each step of the event loop, by who is patient and by who is not."""
    steps = at = 0
    turn = Turn(memory, Fault("none", 0))
    once = asyncio.base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def step(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal steps
        task = turn.fault.task
        if task is not None and task.get_loop() is loop:
            steps += 1
            if at <= steps < at + times:
                task.cancel()
        once(loop)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "_run_once", step)
    while steps >= at:
        steps, at = 0, at + 1
        turn = Turn(memory, Fault("none", 0))
        turn.run(mode)
        turn.check()
    assert at > 5
