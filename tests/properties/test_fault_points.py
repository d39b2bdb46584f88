"""A fault at every call of external code in a turn, and at every step of its event loop.

A turn calls a model with parallel tools and stores its messages, which may include a summary; its
answer may come from a cache and be requested again. With any fault, memory has complete turns only,
effects of tools are either remembered or undone once, and no work continues.
"""

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import pytest

from chatclient import (
    AssistantMessage,
    ChatClient,
    ChatResponse,
    Prompt,
    ToolContext,
    UserMessage,
    tool,
)
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.memory.session import SessionMemoryAdvisor
from chatclient.advisors.response_cache import InMemoryResponseStore, ResponseCacheAdvisor
from chatclient.chat.messages import ToolResponseMessage
from chatclient.client.request import ChatClientRequestSpec
from chatclient.memory import (
    ChatMemory,
    InMemoryChatMemoryRepository,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    RecursiveSummary,
    SessionChatMemory,
    SessionService,
    SummarizingChatMemory,
    TurnCountTrigger,
    Window,
    conversation_problems,
)
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, Ask, Mode, ScriptedModel, call
from chatclient.tools import ToolCallingManager
from tests.support.examples import some, step


class Boom(Exception):  # noqa: N818 - not an error class of the library
    """An ordinary error."""


@dataclass
class Fault:
    """Counts the points that are passed and raises at one of them."""

    kind: str
    at: int
    passed: int = 0
    armed: bool = False
    task: "asyncio.Task[None] | None" = None
    over: "asyncio.Future[None] | None" = None
    lock: threading.Lock = field(default_factory=threading.Lock)

    def strikes(self) -> bool:
        """Count a point and return whether the fault occurs there."""
        with self.lock:
            self.passed += self.armed
            return self.armed and self.passed == self.at

    def point(self) -> None:
        """Pass a point on any thread."""
        if self.strikes() and self.kind != "leave":
            self.strike()

    async def wait(self, runtime: Runtime) -> None:
        """Pass a point at which a cancellation arrives immediately."""
        self.point()
        if not runtime.blocking:
            struck = self.passed == self.at and self.kind == "interrupt"
            await asyncio.sleep(0.05 if struck else 0)

    def strike(self) -> None:
        """Raise the fault."""
        if self.kind == "error":
            raise Boom
        if self.task is None:
            raise KeyboardInterrupt
        self.task.get_loop().call_soon_threadsafe(self.task.cancel)


class Model(ScriptedModel):
    """Passes points before, during and after its answer."""

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
    """A client with a memory, and a turn with a fault."""

    kind: Mapping[str, Any] = {}

    def __init__(self, memory: str, fault: Fault) -> None:
        self.fault = fault
        self.done: Counter[str] = Counter()
        self.undone: Counter[str] = Counter()
        self.memory = MEMORIES[memory](fault)
        self.memory.add("c", [UserMessage("before"), AssistantMessage("yes")])
        self.model = Model(fault, self.answer)
        manager = ToolCallingManager(blocking_concurrency=2)
        builder = ChatClient.builder(self.model).default_tools(self).tool_calling_manager(manager)
        self.client = builder.default_advisors(*self.advisors()).build()

    def advisors(self) -> list[Any]:
        return [MessageChatMemoryAdvisor(self.memory)]

    @tool(compensation="unbook")
    def book(self, city: str) -> str:
        """Book."""
        self.fault.point()
        self.done[city] += 1
        return city

    async def unbook(self, city: str, context: ToolContext) -> None:
        if not context.runtime.blocking:
            await asyncio.sleep(0)
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
        """Send the request with the fault and its consequences."""
        request = self.request()
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

    def request(self) -> ChatClientRequestSpec:
        return self.client.prompt("now").conversation("c")

    def ask(self, mode: Mode, request: ChatClientRequestSpec) -> None:
        if mode == "call":
            self.get(request.call())
            return
        events = request.stream().events(**self.kind)
        try:
            for _ in events:
                if self.fault.strikes():
                    return
        finally:
            events.close()

    async def aask(self, mode: Mode, request: ChatClientRequestSpec) -> None:
        async def consume() -> None:
            if mode == "acall":
                await self.get(request.acall())
                return
            async with request.astream().events(**self.kind) as events:
                async for _ in events:
                    if self.fault.strikes():
                        return

        fault, over = self.fault, asyncio.get_running_loop().create_future()
        fault.task, fault.over = asyncio.ensure_future(consume()), over
        await asyncio.wait([fault.task, over], return_when=asyncio.FIRST_COMPLETED)
        if over.done():
            return
        assert asyncio.all_tasks() == {asyncio.current_task()}
        task, fault.task = fault.task, None
        task.result()

    def get(self, answer: Any) -> Any:
        """Return the requested result of an answer."""
        return answer.content()

    def check(self) -> None:
        """Check the state, and that the conversation can continue."""
        remembered = self.memory.get("c")
        assert conversation_problems(remembered, ending="answer") == ()
        results = [r for m in remembered if isinstance(m, ToolResponseMessage) for r in m.responses]
        kept = Counter(r.data for r in results if r.name in ("book", "pay") and not r.is_error)
        assert self.done - self.undone == kept
        assert not self.undone - self.done
        assert self.client.prompt("later").conversation("c").call().content() == "done"


class CheckedTurn(Turn):
    """The same in a new session, with a cache and repeated answers."""

    kind: Mapping[str, Any] = {"entity": list[int], "validate": True}

    def advisors(self) -> list[Any]:
        assert isinstance(self.memory, SessionChatMemory)
        self.memory.clear("c")
        guard = OutputGuardrailAdvisor(self.more)
        return [SessionMemoryAdvisor(self.memory), ResponseCacheAdvisor(Store(self.fault)), guard]

    def more(self, answer: ChatResponse) -> GuardrailResult | None:
        self.fault.point()
        return GuardrailResult.reprompt("too few", "More!") if answer.text == "[1]" else None

    def answer(self, prompt: Prompt) -> Answer:
        match prompt.messages[-1]:
            case UserMessage(text="later"):
                return "done"
            case UserMessage(text=text) if text.startswith("More!"):
                return "[1, 2]"
            case UserMessage(metadata={"correction": True}):
                return "[1]"
            case UserMessage(text=text) if text.startswith("now"):
                return ["hm", call("book", '{"city": "Rome"}'), call("look")]
        answer = super().answer(prompt)
        return "none" if answer == "done" else answer

    def get(self, answer: Any) -> Any:
        return answer.entity(self.kind["entity"], validate=True)


class Store(InMemoryResponseStore):
    """Passes a point before each operation; its errors do not fail the turn."""

    def __init__(self, fault: Fault) -> None:
        super().__init__()
        self.fault = fault

    async def get(self, key: str) -> ChatResponse | None:  # type: ignore[override]
        self.fault.point()
        return super().get(key)

    async def put(self, key: str, response: ChatResponse) -> None:  # type: ignore[override]
        self.fault.point()
        super().put(key, response)


class Repository(InMemoryChatMemoryRepository):
    """Passes a point before each operation, which is atomic."""

    fault: Fault

    async def load(self, *given: Any, **more: Any) -> Any:
        await self.fault.wait(given[-1])
        return await super().load(*given, **more)

    async def append(self, *given: Any, **more: Any) -> bool:
        await self.fault.wait(given[-1])
        return await super().append(*given, **more)

    async def replace(self, *given: Any, **more: Any) -> bool:
        await self.fault.wait(given[-1])
        return await super().replace(*given, **more)


class Sessions(InMemorySessionRepository):
    """The same for sessions."""

    fault: Fault

    async def find(self, *given: Any, **more: Any) -> Any:
        await self.fault.wait(given[-1])
        return await super().find(*given, **more)

    async def create(self, *given: Any, **more: Any) -> bool:
        await self.fault.wait(given[-1])
        return await super().create(*given, **more)

    async def append(self, *given: Any, **more: Any) -> bool:
        await self.fault.wait(given[-1])
        return await super().append(*given, **more)


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


def turn_of(memory: str, fault: Fault) -> Turn:
    return CheckedTurn("session", fault) if memory == "asked again" else Turn(memory, fault)


def test_repeated_answer_is_remembered_once() -> None:
    """A turn with retries and most of the advisors stores its answer once."""
    turn = turn_of("asked again", Fault("none", 0))
    turn.run("call")

    assert [m.text for m in turn.memory.get("c")] == ["now", "hm", "", "", "", "[1, 2]"]
    assert turn.fault.passed > 25


@pytest.mark.feature("compensation-not-undone-memory-stored")
@pytest.mark.parametrize("memory", [*MEMORIES, "asked again"])
@pytest.mark.parametrize("kind", ["error", "interrupt", "leave"])
@pytest.mark.parametrize("mode", ["call", "acall", "stream", "astream"])
def test_fault_at_every_point(mode: Mode, kind: str, memory: str) -> None:
    """An error, an interrupt, a cancellation or a closed stream at each point."""
    complete = turn_of(memory, Fault("none", 0))
    complete.run(mode)
    assert complete.done == {"Rome": 1, "Oslo": 1}
    for at in some(range(1, complete.fault.passed + 1)):
        turn = turn_of(memory, Fault(kind, at))
        turn.run(mode)
        turn.check()


Cut = Literal["cancelled", "cancelled impatiently", "the loop ends"]
CUTS: tuple[Cut, ...] = ("cancelled", "cancelled impatiently", "the loop ends")


def interrupt_each_step(
    start: Callable[[Fault], Turn], mode: Mode, cut: Cut, monkeypatch: pytest.MonkeyPatch
) -> int:
    """Interrupt a turn at each step of the event loop and return the number of steps."""
    steps = at = 0
    stride = step()
    fault = Fault("none", 0)
    once = asyncio.base_events.BaseEventLoop._run_once  # type: ignore[attr-defined]

    def counted(loop: asyncio.AbstractEventLoop) -> None:
        nonlocal steps
        task, over = fault.task, fault.over
        if task is not None and over is not None and task.get_loop() is loop:
            steps += 1
            if cut == "the loop ends":
                if at == steps:
                    over.set_result(None)
            elif at <= steps < at + (1 if cut == "cancelled" else 3):
                task.cancel()
        once(loop)

    monkeypatch.setattr(asyncio.base_events.BaseEventLoop, "_run_once", counted)
    while steps >= at:
        steps, at = 0, at + stride
        fault = Fault("none", 0)
        turn = start(fault)
        turn.run(mode)
        turn.check()
    return at


@pytest.mark.feature("compensation-not-undone-memory-stored")
@pytest.mark.parametrize("memory", [*MEMORIES, "asked again"])
@pytest.mark.parametrize("cut", CUTS)
@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_cancellation_at_every_step(
    mode: Mode, cut: Cut, memory: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Cancelled once, repeatedly, or by the end of the loop."""
    steps = interrupt_each_step(lambda fault: turn_of(memory, fault), mode, cut, monkeypatch)

    assert steps > 5
