"""Sagas: completed calls are undone when a later call or the turn fails."""

import asyncio
import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import replace
from datetime import date
from typing import Any

import anyio
import pytest
from pydantic import BaseModel

from chatclient import (
    Advisor,
    AssistantMessage,
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Next,
    Prompt,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    tool,
)
from chatclient.advisors import MEMORY_ORDER
from chatclient.advisors.guardrails.advisors import GuardrailResult, OutputGuardrailAdvisor
from chatclient.advisors.memory.advisors import MessageChatMemoryAdvisor
from chatclient.advisors.memory.session import SessionMemoryAdvisor
from chatclient.advisors.memory.vector_store import VectorStoreChatMemoryAdvisor
from chatclient.advisors.response_cache import ResponseCacheAdvisor
from chatclient.advisors.tool_loop.advisor import Steering
from chatclient.chat.embedding import Vector
from chatclient.chat.events import ToolCallFinished
from chatclient.chat.tool import ToolContext, ToolMetadata, ToolProgress
from chatclient.errors import (
    ChatMemoryError,
    GuardrailError,
    OverloadedError,
    ProviderError,
    ToolDefinitionError,
    ToolExecutionError,
    ToolLoopError,
    ToolResultError,
)
from chatclient.memory import (
    ChatMemory,
    InMemoryChatMemoryRepository,
    InMemorySessionRepository,
    MessageWindowChatMemory,
    RecursiveSummary,
    Session,
    SessionChatMemory,
    SessionService,
    SummarizingChatMemory,
    TurnCountTrigger,
    Window,
)
from chatclient.retrieval import InMemoryVectorStore
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Answer, Ask, Mode, ScriptedModel, call
from chatclient.tools import (
    DataToolCallback,
    Decision,
    FunctionToolCallback,
    NextTool,
    ToolApproval,
    ToolCallback,
    ToolCallingManager,
    ToolExecution,
    ToolFailure,
    ToolFailurePolicy,
    ToolInvocation,
    ToolLimits,
    ToolRequest,
    ToolResult,
    augment,
    tool_callbacks,
)
from chatclient.tools.skills import Skill, Skills
from tests.modes.test_retrieval import WordEmbedding
from tests.modes.test_tool_calling import assert_paired, results
from tests.support.waiting import LONG, asettled


class Trip:
    """Tools that book and cancel, and record both."""

    def __init__(self) -> None:
        self.log: list[str] = []

    @tool(compensation="cancel_flight")
    def book_flight(self, city: str, seats: int = 1) -> str:
        """Book a flight."""
        self.log.append(f"flight to {city}")
        return "booked"

    def cancel_flight(self, city: str) -> None:
        self.log.append(f"no flight to {city}")

    @tool(compensation="cancel_hotel")
    async def book_hotel(self, city: str) -> str:
        """Book a hotel."""
        self.log.append(f"hotel in {city}")
        return "booked"

    async def cancel_hotel(self, execution: ToolExecution) -> None:
        await asyncio.sleep(0)
        self.log.append(f"no hotel: {execution.tool_call.arguments}, {execution.response.data}")

    @tool
    def pay(self, euro: int) -> str:
        """Pay."""
        if euro > 100:
            msg = "too dear"
            raise ValueError(msg)
        self.log.append("paid")
        return "paid"

    @tool(effect="read")
    def look_up(self, city: str) -> str:
        """Look a city up."""
        raise LookupError(city)


FLIGHT = call("book_flight", '{"city": "Rome", "seats": 2}', id="f")
HOTEL = call("book_hotel", '{"city": "Rome"}', id="h")
DEAR = call("pay", '{"euro": 900}', id="d")
CHEAP = call("pay", '{"euro": 9}', id="c")
BOOKED = ["flight to Rome", "hotel in Rome"]
HOTEL_UNDONE = ["hotel in Rome", 'no hotel: {"city": "Rome"}, booked']
UNDONE = ['no hotel: {"city": "Rome"}, booked', "no flight to Rome"]


def client_of(model: ScriptedModel, *tools: Any, **manager: Any) -> ChatClient:
    builder = ChatClient.builder(model).default_tools(*tools)
    return builder.tool_calling_manager(ToolCallingManager(**manager)).build()


@pytest.mark.feature("compensation-compensate-tool-errors")
def test_a_failure_undoes_what_was_done(ask: Ask) -> None:
    """Calls of all rounds are undone in reverse order, and their results report it to the model."""
    trip = Trip()
    model = ScriptedModel(FLIGHT, [HOTEL, DEAR], "sorry")
    result = ask(client_of(model, trip).prompt("x"))

    assert trip.log == [*BOOKED, *UNDONE]
    last = model.prompts[2].messages
    told = "'{}' was run, and then undone because 'pay' failed."
    assert results(model.prompts[2]) == [told.format("book_hotel"), "too dear"]
    assert isinstance(last[2], ToolResponseMessage)
    assert (last[2].responses[0].data, last[2].responses[0].is_error) == (
        told.format("book_flight"),
        True,
    )
    assert_paired(last)
    assert [execution.is_error for execution in result.executions] == [True, True, True]
    assert result.text == "sorry"


def test_compensations_get_the_original_result(ask: Ask) -> None:
    """They receive it although an advisor changed it for the model."""

    async def again(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        asked, answered = request.turn.rounds
        assert isinstance(answered, ToolResponseMessage)
        cleared = (replace(each, data="(cleared)") for each in answered.responses)
        shown = request.prompt.append(asked, answered.mutate(responses=cleared))
        return await call_next(request.mutate(prompt=shown))

    again.order = MEMORY_ORDER  # type: ignore[attr-defined]
    trip = Trip()
    model = ScriptedModel([FLIGHT, HOTEL], "booked", DEAR, "sorry")
    ask(client_of(model, trip).prompt("x").advisors(again))

    assert results(model.prompts[2]) == ["(cleared)", "(cleared)"]
    assert (sorted(trip.log[:2]), trip.log[2:]) == (BOOKED, UNDONE)


def test_what_is_undone_is_logged(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Compensations and their failures are logged; calls without a compensation are not."""
    caplog.set_level(logging.INFO, "chatclient.tools.execution.compensation")

    def lost() -> None:
        msg = "the line is dead"
        raise ConnectionError(msg)

    @tool(compensation=lost)
    def call_a_cab() -> str:
        """Call a cab."""
        return "called"

    model = ScriptedModel([FLIGHT, CHEAP, call("call_a_cab", id="t")], DEAR, "sorry")
    ask(client_of(model, Trip(), call_a_cab).prompt("x"))

    logged = [(r.levelname, r.getMessage()) for r in caplog.records if "compensation" in r.name]
    (lost_level, lost_text), (undone_level, undone_text) = logged
    assert (lost_level, undone_level) == ("WARNING", "INFO")
    assert all(each in lost_text for each in ("not undone", "call_a_cab", "the line is dead"))
    assert all(each in undone_text for each in ("undone", "book_flight"))


@pytest.mark.feature("compensation-not-twice")
def test_what_was_undone_is_not_undone_again(ask: Ask) -> None:
    """After a second failure, only the calls since the first one are undone."""
    trip = Trip()
    again = call("book_flight", '{"city": "Oslo"}', id="g")
    ask(client_of(ScriptedModel(FLIGHT, DEAR, again, DEAR, "sorry"), trip).prompt("x"))

    assert trip.log == [
        "flight to Rome", "no flight to Rome", "flight to Oslo", "no flight to Oslo",
    ]  # fmt: skip


@pytest.mark.parametrize("result", [GuardrailResult.retry("no"), GuardrailResult.reprompt("", "?")])
def test_what_was_done_for_another_answer_is_undone(ask: Ask, result: GuardrailResult) -> None:
    """Calls before a guard's retry or reprompt are undone with the turn."""
    guard = OutputGuardrailAdvisor(lambda answer: result if answer.text == "bad" else None)
    model = ScriptedModel(FLIGHT, "bad", [HOTEL, DEAR], "Sorry.")
    trip = Trip()
    answer = ask(client_of(model, trip).prompt("x").advisors(guard)).answer

    assert trip.log == [*BOOKED, *UNDONE]
    assert results(model.prompts[-1])[-1] == "too dear"
    undone = [
        r for m in answer.messages() if isinstance(m, ToolResponseMessage) for r in m.responses
    ]
    assert [r.data.split()[-2:] for r in undone[:2]] == [["'pay'", "failed."]] * 2


@pytest.mark.parametrize("cached", [True, False])
def test_what_is_done_once_more_is_undone_once_more(ask: Ask, cached: bool) -> None:
    """Equal calls are undone once for each run, also if a cache or the model repeats them."""

    def answer(prompt: Prompt) -> Answer:
        match prompt.messages[-1]:
            case UserMessage():
                return FLIGHT
            case ToolResponseMessage(responses=[ToolResponse(id="f")]):
                return DEAR
        return "Sorry."

    async def twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        return await call_next(request)

    trip = Trip()
    advisors = [at(MEMORY_ORDER)(twice), *([ResponseCacheAdvisor()] if cached else [])]
    ask(client_of(ScriptedModel(answer), trip).prompt("x").advisors(*advisors))

    assert trip.log == ["flight to Rome", "no flight to Rome"] * 2


@pytest.mark.parametrize("cached", [True, False])
def test_each_time_that_a_call_was_made_is_undone(ask: Ask, cached: bool) -> None:
    """If a cache repeats calls in a retried request, both executions are undone."""

    def answer(prompt: Prompt) -> Answer:
        return FLIGHT if isinstance(prompt.messages[-1], UserMessage) else "Booked."

    async def twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await call_next(request)
        await call_next(request)
        raise LookupError

    trip = Trip()
    advisors = [at(MEMORY_ORDER)(twice), *([ResponseCacheAdvisor()] if cached else [])]
    with pytest.raises(LookupError):
        ask(client_of(ScriptedModel(answer), trip).prompt("x").advisors(*advisors))

    assert trip.log == ["flight to Rome"] * 2 + ["no flight to Rome"] * 2


@pytest.mark.feature("compensation-all-rounds-invocation-reverse")
def test_earlier_turns_are_kept(ask: Ask) -> None:
    """Only calls of the failed turn are undone, not those in the memory."""
    trip = Trip()
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    model = ScriptedModel(FLIGHT, "booked", HOTEL, DEAR, "sorry", "hello")
    builder = client_of(model, trip).mutate()
    client = builder.default_advisors(MessageChatMemoryAdvisor(memory)).build()
    for text in ("fly", "stay", "hi"):
        ask(client.prompt(text).conversation("c"))

    assert trip.log == [*BOOKED, UNDONE[0]]
    said = model.prompts[-1].messages
    assert_paired(said)
    answers = [r for m in said if isinstance(m, ToolResponseMessage) for r in m.responses]
    assert [answer.is_error for answer in answers] == [False, True, True]


@pytest.mark.feature("compensation-any-error-undoes")
@pytest.mark.parametrize(
    "slip",
    [call("look_up", '{"city": "Rome"}'), call("pay", '{"euro": "much"}'), call("fly")],
)
def test_correctable_failures_undo_nothing(slip: Any, ask: Ask) -> None:
    """Failures that the model can correct: a failed read, invalid arguments and unknown names."""
    trip = Trip()
    result = ask(client_of(ScriptedModel(FLIGHT, slip, CHEAP, "done"), trip).prompt("x"))

    assert trip.log == ["flight to Rome", "paid"]
    assert [execution.is_error for execution in result.executions] == [False, True, False]


def test_a_compensation_knows_its_call_and_its_request(ask: Ask) -> None:
    """A compensation receives the call and the tool context."""
    seen: list[Any] = []

    def take_back(city: str, context: ToolContext) -> None:
        seen.extend([city, context["tenant"], context.tool_name, context.tool_call_id])
        seen.append(context.remaining_seconds)

    @tool(compensation=take_back)
    def ship(city: str) -> str:
        """Ship it."""
        return "shipped"

    model = ScriptedModel(call("ship", '{"city": "Rome"}', id="17"), DEAR, "sorry")
    request = client_of(model, ship, Trip()).prompt("x").tool_context(tenant="acme")
    ask(request.deadline(30))

    assert seen[:4] == ["Rome", "acme", "ship", "17"]
    assert 0 < seen[4] <= 30


def test_a_call_is_undone_if_its_interceptor_fails(ask: Ask) -> None:
    """The tool has run, although the result is an error."""
    log: list[str] = []

    def take_back(city: str) -> None:
        log.append(f"no flight to {city}")

    @tool(compensation=take_back)
    def fly(city: str) -> None:
        """Book a flight."""
        if log:
            msg = "fully booked"
            raise ValueError(msg)
        log.append(f"flight to {city}")

    async def twice(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        await call_next(invocation)
        return await call_next(invocation)

    model = ScriptedModel(call("fly", '{"city": "Rome"}'), "sorry")
    ask(client_of(model, fly, interceptors=[twice]).prompt("x"))

    assert log == ["flight to Rome", "no flight to Rome"]


def test_what_came_to_nothing_is_not_undone(ask: Ask) -> None:
    """A tool that returns an error result is not undone."""
    undone: list[str] = []

    def take_back(city: str) -> None:
        undone.append(city)

    @tool(compensation=take_back)
    def ship(city: str) -> ToolResult:
        """Ship it."""
        return ToolResult("There is no ship.", is_error=city == "Rome")

    ships = [call("ship", '{"city": "Rome"}', id="1"), call("ship", '{"city": "Oslo"}', id="2")]
    ask(client_of(ScriptedModel(ships, DEAR, "sorry"), ship, Trip()).prompt("x"))

    assert undone == ["Oslo"]


def test_a_compensation_that_fails_is_not_tried_again(ask: Ask) -> None:
    """A failed compensation is called once."""

    class Stubborn(Trip):
        async def cancel_hotel(self, execution: ToolExecution) -> None:
            self.log.append("tried")
            msg = "non-refundable"
            raise RuntimeError(msg)

    trip = Stubborn()
    policy = ToolFailurePolicy(always_raise=True)
    client = client_of(ScriptedModel(HOTEL, DEAR), trip, exception_processor=policy)
    with pytest.raises(ToolExecutionError):
        ask(client.prompt("x"))

    assert trip.log.count("tried") == 1


def test_a_handled_failure_undoes_nothing(ask: Ask) -> None:
    """The policy has returned a result instead of an error."""

    def process(_failure: ToolFailure) -> ToolResult:
        return ToolResult("paid by invoice")

    trip = Trip()
    model = ScriptedModel(FLIGHT, [HOTEL, DEAR], "done")
    result = ask(client_of(model, trip, exception_processor=process).prompt("x"))

    assert trip.log == BOOKED
    assert not any(execution.is_error for execution in result.executions)


@pytest.mark.feature("compensation-fails-logged-others")
@pytest.mark.parametrize("error", [RuntimeError("non-refundable"), asyncio.CancelledError()])
def test_the_others_are_undone_when_one_cannot_be(ask: Ask, error: BaseException) -> None:
    """A failed compensation is logged, and the result of its call is kept.

    A `CancelledError` from a compensation does not cancel the request.
    """

    class Stubborn(Trip):
        async def cancel_hotel(self, execution: ToolExecution) -> None:
            raise error

    trip = Stubborn()
    result = ask(client_of(ScriptedModel(FLIGHT, HOTEL, DEAR, "sorry"), trip).prompt("x"))

    assert trip.log == [*BOOKED, UNDONE[1]]
    assert [execution.is_error for execution in result.executions] == [True, False, True]


@pytest.mark.feature("compensation-nothing-when-error-aborts")
@pytest.mark.parametrize(
    ("script", "manager", "error"),
    [
        (
            (FLIGHT, [HOTEL, DEAR]),
            {"exception_processor": ToolFailurePolicy(always_raise=True)},
            ToolExecutionError,
        ),
        ((FLIGHT, HOTEL), {"limits": ToolLimits(max_rounds=2, on_exceeded="raise")}, ToolLoopError),
        ((FLIGHT, HOTEL, ProviderError("down")), {}, ProviderError),
    ],
)
def test_a_turn_that_fails_is_undone(
    script: tuple[Any, ...], manager: dict[str, Any], error: type[Exception], ask: Ask
) -> None:
    """Calls are undone after a raised tool failure, a limit or a provider's error."""
    trip = Trip()
    client = client_of(ScriptedModel(*script), trip, **manager, max_concurrency=1)
    with pytest.raises(error):
        ask(client.prompt("x"))

    assert trip.log == [*BOOKED, *UNDONE]


def test_undone_calls_are_in_the_history_of_a_limit(ask: Ask) -> None:
    """The history can be sent again and is correct."""
    trip = Trip()
    limits = ToolLimits(max_rounds=2, on_exceeded="raise")
    client = client_of(ScriptedModel(FLIGHT, HOTEL), trip, limits=limits)
    with pytest.raises(ToolLoopError) as caught:
        ask(client.prompt("x"))

    result = caught.value.result
    assert trip.log == [*BOOKED, *UNDONE]
    assert_paired(result.conversation_history)
    told = [m for m in result.conversation_history if isinstance(m, ToolResponseMessage)]
    assert all("undone because" in each.data for m in told for each in m.responses)
    assert [execution.is_error for execution in result.executions] == [True]
    assert caught.value.trail is not None
    assert caught.value.trail.messages == result.conversation_history


class Broken(InMemoryChatMemoryRepository):
    """A repository that can only be read."""

    async def append(self, *_: Any, **__: Any) -> bool:
        msg = "the disk is full"
        raise OSError(msg)


def at(order: int) -> Callable[[Advisor], Advisor]:
    def placed(advisor: Any) -> Advisor:
        advisor.order = order
        return advisor  # type: ignore[no-any-return]

    return placed


@at(MEMORY_ORDER - 10)
async def raises(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    await call_next(request)
    raise LookupError


@at(MEMORY_ORDER + 10)
async def asks_twice(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    await call_next(request)
    return await call_next(request)


def refuse(_: ChatResponse) -> GuardrailResult:
    return GuardrailResult.failure("rude")


@pytest.mark.feature("compensation-turn-undone-wherever-request")
@pytest.mark.parametrize(
    ("advisor", "error", "more"),
    [
        (raises, LookupError, ()),
        (OutputGuardrailAdvisor(refuse), GuardrailError, ()),
        (MessageChatMemoryAdvisor(MessageWindowChatMemory(Broken())), OSError, ()),
        (asks_twice, ProviderError, (ProviderError("down"),)),
    ],
)
def test_a_request_that_fails_around_its_turn_is_undone(
    advisor: Any, error: type[Exception], more: tuple[Any, ...], ask: Ask
) -> None:
    """Calls are undone if an outer advisor fails after the answer."""
    trip = Trip()
    client = client_of(ScriptedModel(FLIGHT, HOTEL, "you fool", *more), trip)
    with pytest.raises(error):
        ask(client.prompt("x").conversation("c").advisors(advisor))

    assert trip.log == [*BOOKED, *UNDONE]


@pytest.mark.feature("compensation-turn-undone-wherever-request")
async def test_a_cancelled_request_is_undone() -> None:
    """It is undone in an anyio scope as well, which cancels each await in it."""

    async def waits(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        await asyncio.sleep(60)
        return response

    trip = Trip()
    request = client_of(ScriptedModel(FLIGHT, HOTEL, "done"), trip).prompt("x")
    with anyio.move_on_after(0.1):
        await request.advisors(at(MEMORY_ORDER)(waits)).acall()

    assert trip.log == [*BOOKED, *UNDONE]


@pytest.mark.feature("compensation-not-undone-memory-stored")
def test_a_failure_outside_of_the_memory(ask: Ask) -> None:
    """The calls are undone, because no memory stores the turn."""
    trip = Trip()
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
    advisors = [raises, MessageChatMemoryAdvisor(memory)]
    with pytest.raises(LookupError):
        ask(
            client_of(ScriptedModel(FLIGHT, "done"), trip)
            .prompt("x")
            .conversation("c")
            .advisors(advisors)
        )

    assert trip.log == ["flight to Rome", "no flight to Rome"]
    assert memory.get("c") == []


@pytest.mark.parametrize(
    "then", [OverloadedError("busy"), [HOTEL, DEAR]], ids=["model fails", "tool fails"]
)
@pytest.mark.parametrize("result", [GuardrailResult.retry("no"), GuardrailResult.reprompt("", "?")])
def test_a_turn_whose_second_attempt_fails_is_undone(
    ask: Ask, result: GuardrailResult, then: Answer
) -> None:
    """A guard around the memory asks for it; both attempts are one turn."""
    memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())

    def judge(answer: ChatResponse) -> GuardrailResult | None:
        return result if answer.text == "bad" else None

    guard = OutputGuardrailAdvisor(judge, order=MEMORY_ORDER - 1)
    advisors: list[Advisor] = [guard, MessageChatMemoryAdvisor(memory)]
    trip = Trip()
    model = ScriptedModel(FLIGHT, "bad", then, OverloadedError("busy"))
    with pytest.raises(OverloadedError):
        ask(client_of(model, trip).prompt("x").conversation("c").advisors(*advisors))

    undone = "no flight to Rome"
    failed = isinstance(then, Exception)
    assert trip.log == ["flight to Rome", *([] if failed else HOTEL_UNDONE), undone]
    assert memory.get("c") == []


class Pause:
    """Blocks a request at a given place until it is cancelled there."""

    def __init__(self) -> None:
        self._begun, self._may_end = threading.Event(), threading.Event()

    async def here(self, runtime: Runtime) -> None:
        """Wait for the cancellation."""
        self._begun.set()
        await runtime.finish(self._may_end.wait, 30.0)

    async def cancel(self, task: "asyncio.Future[Any]") -> None:
        """Cancel *task* there."""
        await asyncio.to_thread(self._begun.wait)
        self.cut(task)

    def cut(self, task: "asyncio.Future[Any]") -> None:
        """Cancel *task*, which waits."""
        task.cancel()
        self._may_end.set()


class Slow(InMemoryChatMemoryRepository):
    """A memory that is still storing when the request is cancelled."""

    def __init__(self) -> None:
        super().__init__()
        self.pause = Pause()

    async def append(self, *given: Any, **more: Any) -> bool:
        new = await super().append(*given, **more)
        await self.pause.here(given[2])
        return new


@pytest.mark.feature("compensation-not-undone-memory-stored")
async def test_a_store_finishes_despite_cancellation() -> None:
    """A started store completes, and the calls are kept."""
    trip, slow = Trip(), Slow()
    memory = MessageWindowChatMemory(slow)
    request = client_of(ScriptedModel(FLIGHT, "done"), trip).prompt("x").conversation("c")
    request = request.advisors(MessageChatMemoryAdvisor(memory))
    task = asyncio.ensure_future(request.acall().content())
    await slow.pause.cancel(task)
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (trip.log, memory.get("c")[-1].text) == (["flight to Rome"], "done")


async def test_all_memories_store_despite_cancellation() -> None:
    """And nothing is undone."""
    trip, slow, other = Trip(), Slow(), MessageWindowChatMemory()
    inner = MessageChatMemoryAdvisor(MessageWindowChatMemory(slow))
    outer = MessageChatMemoryAdvisor(other, order=MEMORY_ORDER - 10)
    between = at(MEMORY_ORDER - 5)(asks_twice)
    model = ScriptedModel(FLIGHT, "done", "again")
    request = client_of(model, trip).prompt("x").conversation("c").advisors(outer, between, inner)
    task = asyncio.ensure_future(request.acall().content())
    await slow.pause.cancel(task)
    with pytest.raises(asyncio.CancelledError):
        await task

    assert (trip.log, len(model.prompts)) == (["flight to Rome"], 3)
    assert other.get("c")[-1].text == "again"
    assert slow.find_by_conversation_id("c") == other.get("c")


async def test_calls_are_undone_if_a_cancelled_store_fails() -> None:
    """The turn is not stored."""
    pause = Pause()

    class Failing(InMemoryChatMemoryRepository):
        async def append(self, *given: Any, **_: Any) -> bool:
            await pause.here(given[2])
            raise ChatMemoryError("no room", conversation_id="c")

    trip = Trip()
    memory = MessageWindowChatMemory(Failing())
    request = client_of(ScriptedModel(FLIGHT, "done"), trip).prompt("x").conversation("c")
    request = request.advisors(MessageChatMemoryAdvisor(memory))
    task = asyncio.ensure_future(request.acall().content())
    await pause.cancel(task)
    with pytest.raises(asyncio.CancelledError) as caught:
        await task

    assert isinstance(caught.value.__cause__, ChatMemoryError)
    assert (trip.log, memory.get("c")) == (["flight to Rome", "no flight to Rome"], [])


class CancelledAt(InMemorySessionRepository):
    """An in-memory session repository that cancels the request at one step of storing a turn."""

    def __init__(self, step: str) -> None:
        super().__init__()
        self.step = step
        self.task: asyncio.Task[str] | None = None

    async def _at(self, step: str, runtime: Runtime) -> None:
        if step == self.step and self.task is not None:
            pause, task, self.task = Pause(), self.task, None
            task.get_loop().call_soon(pause.cut, task)
            await pause.here(runtime)

    async def find(self, session_id: str, runtime: Runtime) -> Session | None:
        await self._at("find", runtime)
        return await super().find(session_id, runtime)

    async def create(self, session: Session, runtime: Runtime) -> bool:
        await self._at("create", runtime)
        return await super().create(session, runtime)

    async def append(self, *given: Any, **more: Any) -> bool:
        await self._at("append", given[2])
        return await super().append(*given, **more)


@pytest.mark.feature("compensation-not-undone-memory-stored")
@pytest.mark.parametrize("step", ["find", "create", "append"])
async def test_a_new_session_stores_despite_cancellation(
    step: str,
) -> None:
    """At each step of the creation, the calls are kept and the turn is stored."""
    trip, sessions = Trip(), CancelledAt(step)
    service = SessionService(sessions)

    def done(prompt: Prompt) -> Any:
        if not any(isinstance(m, ToolResponseMessage) for m in prompt.messages):
            return FLIGHT
        sessions.task = task
        return "done"

    request = client_of(ScriptedModel(done), trip).prompt("x").conversation("c")
    request = request.advisors(SessionMemoryAdvisor(service))
    task = asyncio.ensure_future(request.acall().content())
    with pytest.raises(asyncio.CancelledError):
        await task

    assert trip.log == ["flight to Rome"]
    assert [m.text for m in service.messages("c")][-1:] == ["done"]


def interrupted(_: Prompt) -> str:
    raise KeyboardInterrupt


class InterruptedRewrite(InMemoryChatMemoryRepository):
    async def rewrite(self, *_: Any, **__: Any) -> bool:
        raise KeyboardInterrupt


COMPACTED: dict[str, Callable[[], ChatMemory]] = {
    "summary": lambda: SummarizingChatMemory(
        ScriptedModel(interrupted), trigger=Window.messages(2), window=Window.messages(1)
    ),
    "session": lambda: SessionChatMemory(
        SessionService(InMemorySessionRepository()),
        trigger=TurnCountTrigger(1),
        strategy=RecursiveSummary(ScriptedModel(interrupted), most=1, overlap=0),
    ),
    "pruned": lambda: MessageWindowChatMemory(InterruptedRewrite(), max_messages=1, prune=True),
}


@pytest.mark.feature("compensation-not-undone-memory-stored")
@pytest.mark.parametrize("mode", ["call", "stream"])
@pytest.mark.parametrize("kind", COMPACTED)
def test_an_interrupted_compaction_keeps_the_turn(kind: str, mode: Mode) -> None:
    """The turn is stored, although `KeyboardInterrupt` stops the model that summarises."""
    trip, memory = Trip(), COMPACTED[kind]()
    for n in range(2 if kind == "pruned" else 1):
        memory.add("c", [UserMessage(f"before {n}"), AssistantMessage("ok")])
    advisor: Advisor = MessageChatMemoryAdvisor(memory)
    request = client_of(ScriptedModel(FLIGHT, "done"), trip).prompt("x").conversation("c")
    with pytest.raises(KeyboardInterrupt):
        Ask(mode)(request.advisors(advisor))

    assert (trip.log, memory.get("c")[-1].text) == (["flight to Rome"], "done")


@pytest.mark.feature("compensation-not-undone-memory-stored")
async def test_a_cancelled_preparation_of_a_store() -> None:
    """The calls are undone: nothing is stored before the embeddings are computed."""
    trip, scope = Trip(), anyio.CancelScope()

    class Slow(WordEmbedding):
        async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
            if trip.log:
                scope.cancel()
                await asyncio.sleep(60)
            return await super().embed_batch(texts, runtime)

    memory = VectorStoreChatMemoryAdvisor(InMemoryVectorStore(Slow()))
    request = client_of(ScriptedModel(FLIGHT, "done"), trip).prompt("x").conversation("c")
    with scope:
        await request.advisors(memory).acall()

    assert trip.log == ["flight to Rome", "no flight to Rome"]


@pytest.mark.feature("compensation-turn-undone-wherever-request")
def test_what_several_attempts_have_done_is_undone_once(ask: Ask) -> None:
    """A resumed turn has its earlier calls in each attempt; they are undone once."""
    trip = Trip()
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "book_hotel")
    model = ScriptedModel(FLIGHT, HOTEL, "rude", "fool")
    client = client_of(model, trip, interceptors=[approval])
    pending = ask(client.prompt("x")).waiting
    again = OutputGuardrailAdvisor(lambda _: GuardrailResult.retry("no"), max_retries=1)
    with pytest.raises(GuardrailError):
        ask(client.resume(pending, "approve").advisors(again))

    assert trip.log == [*BOOKED, *UNDONE]


@pytest.mark.feature("compensation-not-undone-memory-stored")
def test_a_turn_that_waits_is_not_undone(ask: Ask) -> None:
    """A suspended turn is kept when an advisor raises, because it may have stored it."""
    trip = Trip()
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
    client = client_of(ScriptedModel([FLIGHT, CHEAP]), trip, interceptors=[approval])
    with pytest.raises(LookupError):
        ask(client.prompt("x").advisors(raises))

    assert trip.log == ["flight to Rome"]


@pytest.mark.feature("compensation-not-undone-memory-stored")
@pytest.mark.parametrize("remembers", [False, True])
def test_work_of_an_agent_is_undone_with_its_caller(ask: Ask, remembers: bool) -> None:
    """What an agent did is undone if its caller fails, unless the agent's memory stored it."""
    trip = Trip()
    memory = [MessageChatMemoryAdvisor(MessageWindowChatMemory())] if remembers else []
    builder = ChatClient.builder(ScriptedModel(FLIGHT, "booked")).default_tools(trip)
    agent = builder.default_advisors(*memory).build().as_tool("travel", "Book travels.")
    client = client_of(ScriptedModel(call("travel", {"request": "Rome"}), "done"), agent)
    with pytest.raises(LookupError):
        ask(client.prompt("x").conversation("c").advisors(raises))

    assert trip.log == ["flight to Rome"] + ["no flight to Rome"] * (not remembers)


async def _ask(client: ChatClient) -> str:
    return (await client.prompt("x").acall()).content()


@pytest.mark.feature("compensation-nothing-when-error-aborts")
async def test_a_turn_that_is_cancelled_is_undone() -> None:
    """The cancelled request ends after its compensations."""
    trip, started = Trip(), asyncio.Event()

    @tool
    async def wait() -> str:
        """Wait."""
        started.set()
        await asyncio.sleep(60)
        return "done"

    client = client_of(ScriptedModel(FLIGHT, call("wait")), trip, wait)
    task = asyncio.ensure_future(_ask(client))
    await started.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert trip.log == ["flight to Rome", "no flight to Rome"]


async def test_a_turn_in_a_cancelled_scope_is_undone() -> None:
    """Also if a resolver has to find the compensation while the scope cancels each await."""
    trip = Trip()
    booked = {c.definition.name: c for c in tool_callbacks(trip)}

    class Registry:
        async def resolve(self, name: str, /) -> ToolCallback | None:
            await asyncio.sleep(0)
            return booked.get(name)

    @tool
    async def wait() -> None:
        """Wait."""
        await asyncio.sleep(60)

    said = [
        UserMessage("x"),
        AssistantMessage(tool_calls=[FLIGHT]),
        ToolResponseMessage([ToolResponse("f", "book_flight", "booked")]),
    ]
    client = client_of(ScriptedModel(call("wait")), wait, resolver=Registry())
    with anyio.move_on_after(0.05):
        await client.prompt().messages(said).acall().content()

    assert trip.log == ["no flight to Rome"]


@tool
async def pack(context: ToolContext) -> str:
    """Pack."""
    await context.progress("shirts")
    await asyncio.sleep(60)
    return "packed"


@pytest.mark.feature("compensation-nothing-when-error-aborts")
def test_a_blocking_stream_that_is_left_is_undone() -> None:
    """Closing a stream before the turn has ended undoes its calls."""
    trip = Trip()
    client = client_of(ScriptedModel(FLIGHT, call("pack")), trip, pack)
    for event in (events := client.prompt("x").stream().events()):
        if isinstance(event, ToolProgress):
            break
    events.close()

    assert trip.log == ["flight to Rome", "no flight to Rome"]


@pytest.mark.feature("compensation-plain-tool-runs-while")
@pytest.mark.parametrize("blocking_concurrency", [1, 4])
def test_what_has_just_been_done_is_undone(blocking_concurrency: int) -> None:
    """A call is undone if the stream is closed at the event of its result."""
    trip = Trip()
    model = ScriptedModel([FLIGHT, HOTEL])
    client = client_of(model, trip, blocking_concurrency=blocking_concurrency)
    events = client.prompt("x").stream().events()
    while not isinstance(next(events), ToolCallFinished):
        pass
    events.close()

    assert "flight to Rome" in trip.log
    assert sum("no" in line for line in trip.log) == len(trip.log) / 2


def test_an_agent_that_undoes_is_let_finish(ask: Ask) -> None:
    """Compensations of an agent finish, although its caller has failed and cancels its tools."""
    log: list[str] = []
    begun, failed = threading.Event(), threading.Event()

    async def cancel_flight(city: str) -> None:
        begun.set()
        log.append("begun")
        await asettled(failed.is_set)
        await asyncio.sleep(0.05)  # until the turn has cancelled its tools
        log.append("undone")

    @tool(compensation=cancel_flight)
    def book_flight(city: str) -> str:
        """Book."""
        return "booked"

    @tool
    def pay() -> None:
        """Pay."""
        raise ValueError

    @tool
    def fails() -> None:
        """Fail."""
        begun.wait(LONG)
        failed.set()
        raise LookupError

    booking = ScriptedModel(call("book_flight", '{"city": "Rome"}'), call("pay"), "sorry")
    agent = client_of(booking, [book_flight, pay]).as_tool("agent", "Books.")
    policy = ToolFailurePolicy(raise_on=(LookupError,))
    model = ScriptedModel([call("agent", '{"request": "Rome"}'), call("fails")])
    client = client_of(model, agent, fails, blocking_concurrency=2, exception_processor=policy)
    with pytest.raises(LookupError):
        ask(client.prompt("x"))

    assert log == ["begun", "undone"]


@pytest.mark.feature("compensation-nothing-when-error-aborts")
async def test_an_async_stream_that_is_left_is_undone() -> None:
    """The same on a loop, by the time the stream is closed."""
    trip = Trip()
    client = client_of(ScriptedModel(FLIGHT, call("pack")), trip, pack)
    async with client.prompt("x").astream().events() as events:
        async for event in events:
            if isinstance(event, ToolProgress):
                break

    assert trip.log == ["flight to Rome", "no flight to Rome"]


@pytest.mark.feature("compensation-plain-tool-runs-while")
@pytest.mark.parametrize("seconds", [None, 20])
@pytest.mark.parametrize("as_data", [False, True])
async def test_a_plain_tool_is_awaited_and_undone(seconds: float | None, as_data: bool) -> None:
    """It cannot be stopped when the turn is cancelled; what it was run with is taken back."""
    log: list[str] = []
    begun, may_end = threading.Event(), threading.Event()

    def take_back(execution: ToolExecution) -> None:
        log.append(f"{execution.response.data}, {execution.arguments}")

    @tool(timeout=seconds, compensation=take_back)
    def ship(city: str) -> str:
        """Ship it."""
        begun.set()
        may_end.wait(30)
        log.append(f"to {city}")
        return f"shipped to {city}"

    async def elsewhere(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        return await call_next(invocation.with_arguments('{"city": "Oslo"}'))

    [made] = tool_callbacks(ship)
    data = DataToolCallback(
        made.definition, lambda made, context: ship(**json.loads(made.arguments)), made.metadata
    )
    model = ScriptedModel(call("ship", '{"city": "Rome"}'))
    client = client_of(model, data if as_data else ship, interceptors=[elsewhere])
    task = asyncio.ensure_future(_ask(client))
    await asyncio.to_thread(begun.wait)
    for _ in range(2):  # whoever is impatient cancels again
        task.cancel()
        await asyncio.sleep(0)
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert log == ["to Oslo", 'shipped to Oslo, {"city": "Oslo"}']


async def test_a_cancelled_tool_with_an_invalid_result() -> None:
    """Its error does not hide that the request was cancelled, and the call is undone."""
    begun, may_end = threading.Event(), threading.Event()
    log, box = list[Any](), object()

    def take_back(execution: ToolExecution) -> None:
        log.append(execution.value)

    @tool(compensation=take_back)
    def ship() -> object:
        """Ship it."""
        begun.set()
        may_end.wait(30)
        return box

    task = asyncio.ensure_future(_ask(client_of(ScriptedModel(call("ship")), ship)))
    await asyncio.to_thread(begun.wait)
    task.cancel()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task

    assert log == [box]


@pytest.mark.feature("compensation-all-rounds-invocation-reverse")
def test_a_turn_that_waited_is_undone(ask: Ask) -> None:
    """Calls from before the suspension are undone, too."""
    trip = Trip()
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
    model = ScriptedModel(FLIGHT, [HOTEL, DEAR], "sorry")
    client = client_of(model, trip, interceptors=[approval])
    pending = ask(client.prompt("x")).waiting
    assert trip.log == BOOKED
    result = ask(client.resume(pending, "approve"))

    assert trip.log == [*BOOKED, *UNDONE]
    assert_paired(model.prompts[-1].messages)
    assert result.text == "sorry"


def test_undone_calls_of_resumed_turns(ask: Ask) -> None:
    """Neither memory nor the messages of the turn report them as done."""
    trip, memory = Trip(), MessageWindowChatMemory(InMemoryChatMemoryRepository())
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
    client = client_of(ScriptedModel(FLIGHT, DEAR, "sorry"), trip, interceptors=[approval])
    client = client.mutate().default_advisors(MessageChatMemoryAdvisor(memory)).build()
    pending = ask(client.prompt("x").conversation("c")).waiting
    result = ask(client.resume(pending, "approve"))

    assert trip.log == ["flight to Rome", "no flight to Rome"]
    kept = memory.get("c")
    told = [r.is_error for m in kept if isinstance(m, ToolResponseMessage) for r in m.responses]
    assert told == [True, True]
    assert result.answer.messages() == tuple(kept)


def test_a_resumed_turn_is_undone_once(ask: Ask) -> None:
    """Also if an outer advisor retries, which is refused because the call did not finish."""
    trip = Trip()
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
    policy = ToolFailurePolicy(always_raise=True)
    manager = {"interceptors": [approval], "exception_processor": policy}

    @at(MEMORY_ORDER - 10)
    async def again(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        except ToolExecutionError:
            return await call_next(request)

    client = client_of(ScriptedModel(FLIGHT, DEAR), trip, **manager)
    pending = ask(client.prompt("x")).waiting
    with pytest.raises(ToolLoopError, match="did not finish"):
        ask(client.resume(pending, "approve").advisors(again))

    assert trip.log == ["flight to Rome", "no flight to Rome"]


@pytest.mark.feature("compensation-services")
def test_an_own_loop_undoes_calls() -> None:
    """The manager undoes calls in a loop of the application."""
    trip, manager = Trip(), ToolCallingManager()
    model = ScriptedModel(FLIGHT, DEAR)
    options = model.options.mutate(tool_callbacks=tuple(tool_callbacks(trip)))
    prompt = Prompt([UserMessage("x")], options)
    for _ in range(2):
        result = manager.execute_tool_calls(prompt, model.call(prompt))
        prompt = Prompt(result.conversation_history, options)

    assert trip.log == ["flight to Rome", "no flight to Rome"]
    assert_paired(prompt.messages)


@pytest.mark.feature("compensation-same-parameters-tool-one")
def test_a_compensation_takes_what_it_wants(ask: Ask) -> None:
    """It may have some parameters of the tool, and the context; annotations may be texts.

    Or it takes the execution, with what the tool returned in an earlier round.
    """
    seen: list[Any] = []

    def take_back(context: ToolContext, item: "str") -> None:
        seen.append((context["shop"], context.tool_name, item))

    def note(execution: "ToolExecution") -> None:
        seen.append((execution.response.data, execution.value, execution.started_at is not None))

    @tool(compensation=take_back)
    def buy(item: str, count: int) -> str:
        """Buy it."""
        return f"{count} {item}"

    @tool(compensation=note)
    def sell(item: str) -> list[str]:
        """Sell it."""
        return [item]

    script = (call("buy", '{"item": "tea", "count": 2,}'), call("sell", '{"item": "cup"}'), DEAR)
    client = client_of(ScriptedModel(*script, "sorry"), buy, sell, Trip())
    result = ask(client.prompt("x").tool_context(shop="s"))

    assert seen == [('["cup"]', ["cup"], True), ("s", "buy", "tea")]
    assert [execution.value for execution in result.executions] == ["2 tea", ["cup"], None]


class Oslo:
    """Sends every flight to another city, as an approver or interceptor may."""

    @staticmethod
    async def at_once(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        if invocation.tool_call.name.startswith("book"):
            invocation = invocation.with_arguments('{"city": "Oslo"}')
        return await call_next(invocation)

    later = ToolApproval(needed=lambda invocation: invocation.tool_call.name.startswith("book"))
    decision = Decision(approved=True, arguments='{"city": "Oslo"}')


LEFT_OUT = [
    '{"hotel": "Ritz", "day": "2026-05-04"}',
    '{"hotel": "Ritz", "day": "2026-05-04", "room": null}',  # as the strict form has it
    '"{\\"hotel\\": \\"Ritz\\", \\"day\\": \\"2026-05-04\\"}"',
]


class Reason(BaseModel):
    reason: str = "none"


@pytest.mark.parametrize("arguments", LEFT_OUT)
@pytest.mark.parametrize("strict", [None, True])
@pytest.mark.parametrize("kind", ["plain", "augmented", "of a skill"])
def test_a_compensation_gets_what_the_model_left_out(
    arguments: str, strict: bool | None, kind: str, ask: Ask
) -> None:
    """The tool was run with its default, so that is what is undone."""
    log: list[Any] = []

    def cancel(room: int, day: date) -> None:
        log.append((room, day))

    @tool(compensation=cancel, strict=strict)
    def reserve(hotel: str, room: int = 7, day: date = date(2026, 1, 1)) -> None:
        """Reserve."""

    match kind:
        case "plain":
            [reservation] = tool_callbacks(reserve)
        case "augmented":
            [reservation] = augment(reserve, arguments=Reason)
        case _:
            skill = Skill("hotels", "For hotels.", "Reserve a room.", tools=(reserve,))
            [reservation] = Skills(skill).tools_to_come
    model = ScriptedModel(call("reserve", arguments), DEAR, "sorry")
    ask(client_of(model, Trip(), reservation).prompt("x"))

    assert log == [(7, date(2026, 5, 4))]


def test_compensations_have_separate_keys(ask: Ask) -> None:
    """It is another one for each call, turn and conversation, however models number their calls."""
    keys: list[str] = []

    def refund(euro: int, context: ToolContext) -> None:
        keys.append(context.idempotency_key)

    @tool(compensation=refund)
    def debit(euro: int, context: ToolContext) -> None:
        """Debit an account."""
        keys.append(context.idempotency_key)

    def keys_of(question: str, conversation: str) -> list[str]:
        keys.clear()
        calls = [call("debit", '{"euro": 5}', id=id) for id in ("call_0", "call_1")]
        client = client_of(ScriptedModel(calls, DEAR, "sorry"), Trip(), debit)
        ask(client.prompt(question).conversation(conversation).idempotency_key(question))
        return list(keys)

    several = keys_of("Buy!", "a") + keys_of("Buy!", "b") + keys_of("Buy more!", "a")

    assert len(set(several)) == 12
    assert sorted(keys_of("Buy!", "b")) == sorted(several[4:8])


def test_a_compensation_gets_default_arguments(ask: Ask) -> None:
    """Some models write null instead of arguments."""
    log: list[int] = []

    def cancel(room: int) -> None:
        log.append(room)

    @tool(compensation=cancel)
    def reserve(room: int = 7) -> None:
        """Reserve."""

    model = ScriptedModel(call("reserve", "null"), DEAR, "sorry")
    ask(client_of(model, Trip(), reserve).prompt("x"))

    assert log == [7]


async def fails_after(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
    result = await call_next(invocation)
    if invocation.tool_call.name == "book_hotel":
        msg = "the audit log is down"
        raise RuntimeError(msg)
    return result


@pytest.mark.parametrize("told", [True, False])
def test_a_call_that_failed_after_the_tool_is_undone(ask: Ask, told: bool) -> None:
    """An interceptor failed, but the tool has run; its result is passed to the compensation."""
    trip = Trip()
    model = ScriptedModel(FLIGHT, HOTEL, "sorry")
    policy = ToolFailurePolicy(always_raise=not told)
    manager = {"interceptors": [fails_after], "exception_processor": policy}
    client = client_of(model, trip, **manager)
    if told:
        result = ask(client.prompt("x"))
        undone = "'book_hotel' was run, and then undone because 'book_hotel' failed."
        assert results(model.prompts[2]) == [undone]
        assert isinstance(result.executions[1].error, RuntimeError)
    else:
        with pytest.raises(ToolExecutionError):
            ask(client.prompt("x"))

    assert trip.log == [*BOOKED, *UNDONE]


def test_what_an_interceptor_calls_a_failure_is_undone(ask: Ask) -> None:
    """The tool has done its work all the same, with the result that it had."""
    trip = Trip()

    async def check(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        result = await call_next(invocation)
        if invocation.tool_call.name == "book_flight":
            return ToolResult("that is no valid ticket", is_error=True)
        return result

    model = ScriptedModel(FLIGHT, DEAR, "sorry")
    ask(client_of(model, trip, interceptors=[check]).prompt("x"))

    assert results(model.prompts[1]) == ["that is no valid ticket"]
    assert trip.log == ["flight to Rome", "no flight to Rome"]


@pytest.mark.parametrize("told", [True, False])
def test_failed_calls_are_not_undone(ask: Ask, told: bool) -> None:
    """The tool has reported that nothing was done."""

    class Full(Trip):
        @tool(compensation="cancel_hotel")
        async def book_hotel(self, city: str) -> ToolResult:  # type: ignore[override]
            """Book a hotel."""
            return ToolResult(f"no room in {city}", is_error=True)

    trip = Full()
    policy = ToolFailurePolicy(always_raise=not told)
    manager = {"interceptors": [fails_after], "exception_processor": policy}
    client = client_of(ScriptedModel(FLIGHT, HOTEL, "sorry"), trip, **manager)
    with nullcontext() if told else pytest.raises(ToolExecutionError):
        ask(client.prompt("x"))

    assert trip.log == ["flight to Rome", "no flight to Rome"]


def test_a_failed_call_with_a_result_is_not_undone(ask: Ask) -> None:
    """An exception processor may return a result for the tool; nothing was done."""
    log: list[str] = []

    def cancel() -> None:
        log.append("cancelled")

    @tool(compensation=cancel)
    def order() -> None:
        """Order."""
        raise OSError

    def process(failure: ToolFailure) -> ToolResult:
        return ToolResult("Sold out.", is_error=failure.tool_call.name == "pay")

    model = ScriptedModel(call("order"), DEAR, "sorry")
    ask(client_of(model, Trip(), order, exception_processor=process).prompt("x"))

    assert log == []
    assert results(model.prompts[2])[0] == "Sold out."


@pytest.mark.parametrize("stored", [True, False])
def test_calls_that_failed_late_are_undone_after_a_wait(ask: Ask, stored: bool) -> None:
    """The resumed turn knows that the tool was run, although it failed."""
    trip = Trip()
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
    model = ScriptedModel([FLIGHT, HOTEL, CHEAP], "sorry")
    client = client_of(model, trip, interceptors=[approval, fails_after])
    pending = ask(client.prompt("x")).waiting
    ask(client.resume(pending.to_json() if stored else pending, "approve"))

    cancelled = 'no hotel: {"city": "Rome"}, the audit log is down'
    assert sorted(trip.log[:2]) == BOOKED  # side by side
    assert trip.log[2:] == ["paid", cancelled, "no flight to Rome"]


@pytest.mark.parametrize("converter", [True, False])
def test_a_call_whose_result_cannot_be_converted_is_undone(ask: Ask, converter: bool) -> None:
    """The tool has run; the compensation receives what it returned."""
    log: list[Any] = []
    ticket = object()

    def convert(value: object) -> str:
        raise ValueError(value)

    def cancel(execution: ToolExecution) -> None:
        log.append(execution.value)

    @tool(compensation=cancel, result_converter=convert if converter else None)
    def buy() -> object:
        """Buy."""
        return ticket

    client = client_of(ScriptedModel(call("buy"), "sorry"), buy)
    if converter:
        ask(client.prompt("x"))
    else:
        with pytest.raises(ToolResultError):
            ask(client.prompt("x"))

    assert log == [ticket]


async def test_calls_before_a_wait_are_undone() -> None:
    """Also if the request is cancelled before the first suspended call is run."""
    trip, asked = Trip(), asyncio.Event()

    class Registry:
        async def resolve(self, name: str, /) -> ToolCallback | None:
            if model.prompts and asked.is_set():
                await asyncio.sleep(60)
            return None

    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "pay")
    model = ScriptedModel([FLIGHT, call("nobody"), CHEAP])
    client = client_of(model, trip, interceptors=[approval], resolver=Registry())
    pending = (await client.prompt("x").acall()).pending_turn()
    assert pending is not None
    asked.set()
    with anyio.move_on_after(0.05):
        await client.resume(pending, "approve").acall()

    assert trip.log == ["flight to Rome", "no flight to Rome"]


@pytest.mark.feature("compensation-arguments-model-wrote-them")
def test_what_was_run_is_undone_not_what_was_asked_for(ask: Ask) -> None:
    """Arguments that were changed on the way to the tool are those that are taken back."""
    trip = Trip()
    model = ScriptedModel(FLIGHT, [HOTEL, DEAR], "sorry")
    result = ask(client_of(model, trip, interceptors=[Oslo.at_once]).prompt("x"))

    assert trip.log[2:] == ['no hotel: {"city": "Oslo"}, booked', "no flight to Oslo"]
    assert result.executions[0].arguments == '{"city": "Oslo"}'
    assert result.executions[0].tool_call == FLIGHT
    assert result.executions[2].arguments == DEAR.arguments


def test_what_failed_tells_what_it_was_run_with(ask: Ask) -> None:
    """The changed arguments may be the reason."""
    dearer = Decision(approved=True, arguments='{"euro": 901}')
    approval = ToolApproval(ask=lambda _invocation: dearer)
    model = ScriptedModel(CHEAP, "sorry")
    (failed,) = ask(client_of(model, Trip(), interceptors=[approval]).prompt("x")).executions

    assert (failed.is_error, failed.arguments) == (True, '{"euro": 901}')


@pytest.mark.feature("compensation-arguments-model-wrote-them")
def test_what_an_approver_changed_is_undone(ask: Ask) -> None:
    """Also when the turn waited in between, again for another call, and was stored each time."""
    trip = Trip()
    model = ScriptedModel(FLIGHT, HOTEL, DEAR, "sorry")
    client = client_of(model, trip, interceptors=[Oslo.later])
    first = client.prompt("x").call().pending_turn()
    assert first is not None
    second = client.resume(first.to_json(), {"f": Oslo.decision}).call().pending_turn()
    assert second is not None
    ask(client.resume(second.to_json(), {"h": Oslo.decision}))

    assert trip.log[2:] == ['no hotel: {"city": "Oslo"}, booked', "no flight to Oslo"]


@pytest.mark.feature("compensation-arguments-model-wrote-them")
def test_what_was_not_run_is_not_undone(ask: Ask) -> None:
    """An interceptor that answers in the tool's place has done nothing that a tool could undo."""

    async def answer(invocation: ToolInvocation, call_next: NextTool) -> ToolResult:
        if invocation.tool_call.name == "book_flight":
            return ToolResult("booked already")
        return await call_next(invocation)

    trip = Trip()
    model = ScriptedModel(FLIGHT, HOTEL, DEAR, "sorry")
    result = ask(client_of(model, trip, interceptors=[answer]).prompt("x"))

    assert trip.log == ["hotel in Rome", 'no hotel: {"city": "Rome"}, booked']
    assert result.executions[0].arguments is None


@pytest.mark.feature("compensation-looked-up-among-tools")
def test_a_tool_that_is_offered_no_longer_is_undone(ask: Ask) -> None:
    """A provider may have taken it back when a later call fails; what was done still counts."""

    class Steps:
        dynamic = True

        def __init__(self, trip: Trip) -> None:
            self.trip = trip

        def tool_callbacks(self, request: ToolRequest) -> list[ToolCallback]:
            booked = any(isinstance(m, ToolResponseMessage) for m in request.messages)
            return tool_callbacks(self.trip.pay if booked else self.trip)

    trip = Trip()
    ask(client_of(ScriptedModel(FLIGHT, DEAR, "sorry"), Steps(trip)).prompt("x"))

    assert trip.log == ["flight to Rome", "no flight to Rome"]


def return_it(item: "Unknown") -> None:  # type: ignore[name-defined]  # noqa: F821
    """Take back."""


@pytest.mark.feature("compensation-wrong-signature-refused")
@pytest.mark.parametrize(
    ("compensation", "problem"),
    [
        ("nothing", "is 'nothing', which cannot be called"),
        (lambda item, price: None, r"needs \['price'\], which the tool does not get.*\['item'\]"),
        (return_it, r"compensation of tool 'buy' cannot be read: .*name 'Unknown' is not defined"),
        (dict.update, r"compensation of tool 'buy' "),
    ],
)
@pytest.mark.parametrize("kind", ["function", "data", "agent"])
def test_what_cannot_undo_is_refused(compensation: Any, problem: str, kind: str) -> None:
    """A compensation is checked when the tool is made, not when it is needed."""

    def buy(item: str) -> str:
        return item

    class Order(BaseModel):
        item: str

    [made], agent = tool_callbacks(buy), ChatClient.create(ScriptedModel())
    metadata = ToolMetadata(compensation=compensation)
    with pytest.raises(ToolDefinitionError, match=problem):
        match kind:
            case "function":
                FunctionToolCallback(buy, metadata=metadata)
            case "data":
                DataToolCallback(made.definition, lambda made, context: "", metadata)
            case _:
                agent.as_tool("buy", "Buys.", metadata=metadata, input_type=Order)


def test_the_trail_has_undone_calls(ask: Ask) -> None:
    """Wherever the request failed, and however often the turn was suspended."""
    trip = Trip()
    approval = ToolApproval(needed=lambda invocation: invocation.tool_call.name == "book_hotel")
    model = ScriptedModel(FLIGHT, HOTEL, "you fool")
    client = client_of(model, trip, interceptors=[approval])
    pending = ask(client.prompt("x")).waiting
    with pytest.raises(GuardrailError) as caught:
        ask(client.resume(pending, "approve").advisors(OutputGuardrailAdvisor(refuse)))

    assert trip.log == [*BOOKED, *UNDONE]
    assert caught.value.trail is not None
    said = [m for m in caught.value.trail.messages if isinstance(m, ToolResponseMessage)]
    assert [response.is_error for m in said for response in m.responses] == [True, True]


def test_calls_before_user_input_are_undone(ask: Ask) -> None:
    """User input during a turn does not begin another one."""
    trip, steering = Trip(), Steering()

    @tool(effect="read")
    def listen() -> str:
        """Listen."""
        steering.send("Hurry!")
        return "heard"

    model = ScriptedModel(FLIGHT, call("listen"), DEAR, "sorry")
    ask(client_of(model, trip, listen).prompt("x").advisors(steering))

    assert "Hurry!" in [m.text for m in model.prompts[2].messages]
    assert trip.log == ["flight to Rome", "no flight to Rome"]
