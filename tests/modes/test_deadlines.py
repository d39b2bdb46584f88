# pyright: reportPossiblyUnboundVariable=false
# A loop over `longer_and_longer` runs at least once.
"""The deadline of a call."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Protocol

import pytest

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    ChatModel,
    ChatOptions,
    ChatResponse,
    Next,
    Prompt,
    tool,
)
from chatclient.advisors.guardrails.advisors import (
    InputGuardrailAdvisor,
    OutputGuardrailAdvisor,
    moderated_input,
)
from chatclient.chat.embedding import EmbeddingModel, Vector
from chatclient.chat.moderation import Moderation, ModerationModel
from chatclient.errors import DeadlineExceededError, UsageError
from chatclient.providers import FallbackChatModel, Timeouts
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.services import ai_service
from chatclient.testing import Ask, Mode, ScriptedModel, call
from chatclient.testing.evaluation import EvaluationRequest, RelevancyEvaluator
from chatclient.tools import ToolCallback, ToolCallingManager, tool_callbacks
from tests.support.chaos_server import STALL, ChaosServer, chunked
from tests.support.clock import Clock
from tests.support.services import SERVICES
from tests.support.waiting import longer_and_longer

Wait = Callable[[Runtime], Awaitable[None]]


class Said(Protocol):
    def say(self, text: str) -> str: ...


class Patient(ChatModel):
    """A model that waits before it answers."""

    def __init__(self, wait: Wait) -> None:
        self.wait = wait

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        await self.wait(runtime)
        return ChatResponse.of("x")


def test_no_pause_exceeds_the_deadline(ask: Ask) -> None:
    """A longer pause is not started, in a model or in an advisor."""

    async def patient(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        await request.runtime.sleep(60)
        return await call_next(request)

    model = Patient(lambda runtime: runtime.sleep(60))
    with pytest.raises(DeadlineExceededError, match="60 s would go beyond"):
        ask(ChatClient.create(model).prompt("x").deadline(50))
    scripted = ScriptedModel("never")
    with pytest.raises(DeadlineExceededError, match="60 s would go beyond"):
        ask(ChatClient.create(scripted).prompt("x").advisors(patient).deadline(50))
    assert scripted.prompts == []


@pytest.mark.feature("request-no-wall-clock-limit")
def test_default_deadline(ask: Ask) -> None:
    """It applies to requests of a service and of derived clients as well."""
    left: list[float] = []

    async def watch(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        left.append(request.runtime.remaining())
        return await call_next(request)

    model = ScriptedModel(lambda prompt: "x")
    builder = ChatClient.builder(model).default_advisors(watch)
    client = builder.default_deadline(timedelta(seconds=5000)).build()
    ask(client.prompt("x"))
    ask(client.prompt("x").deadline(50_000))
    ask(client.mutate().default_system("s").build().prompt("x"))
    ask(builder.build().prompt("x"))
    ai_service(Said, client).say("x")

    assert [round(each, -3) for each in left] == [5000, 50_000, 5000, math.inf, 5000]
    with pytest.raises(UsageError, match="a deadline must be a positive number of seconds"):
        builder.default_deadline(0)


def test_no_model_is_asked_after_the_deadline(ask: Ask) -> None:
    """No request is sent after the deadline."""

    async def late(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        return await call_next(request.mutate(runtime=request.runtime.with_deadline(0)))

    model = ScriptedModel("never")
    with pytest.raises(DeadlineExceededError, match="before the model was called"):
        ask(ChatClient.create(model).prompt("x").advisors(late))
    assert model.prompts == []


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_on_a_loop_each_wait_is_cancelled(mode: Mode, clock: Clock) -> None:
    """A model that ignores deadlines is cancelled as well, and can clean up."""
    ended: list[str] = []

    async def hang(_runtime: Runtime) -> None:
        try:
            clock.advance(60)
            await asyncio.sleep(600)
        finally:
            ended.append("cleaned")

    with pytest.raises(DeadlineExceededError, match="and 'chat Patient' was cancelled"):
        Ask(mode)(ChatClient.create(Patient(hang)).prompt("x").deadline(50))

    assert ended == ["cleaned"]


@pytest.mark.parametrize("mode", ["acall", "astream"])
def test_the_preparation_is_cancelled(mode: Mode, clock: Clock) -> None:
    """Functions for the system text, and tool providers."""
    cancelled: list[str] = []

    async def forever(who: str) -> None:
        try:
            clock.advance(60)
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            cancelled.append(who)
            raise

    async def write() -> str:
        await forever("writer")
        return "never"

    class Provider:
        async def tool_callbacks(self) -> list[ToolCallback]:
            await forever("provider")
            return []

    model = ScriptedModel("never")
    request = ChatClient.create(model).prompt("x").deadline(50)
    for slow, what in (
        (request.system(write), "the system text function was cancelled"),
        (request.tools(Provider()), "the listing of tools was cancelled"),
    ):
        with pytest.raises(DeadlineExceededError, match=what):
            Ask(mode)(slow)
    assert cancelled == ["writer", "provider"]
    assert model.prompts == []


def test_another_timeout_is_no_deadline() -> None:
    """A `TimeoutError` of the model is raised unchanged."""

    async def fail(_runtime: Runtime) -> None:
        raise TimeoutError("its own")

    with pytest.raises(TimeoutError, match="its own") as caught:
        Ask("acall")(ChatClient.create(Patient(fail)).prompt("x").deadline(600))
    assert not isinstance(caught.value, DeadlineExceededError)


@pytest.mark.parametrize("runtime", [BLOCKING, ON_LOOP], ids=["blocking", "on a loop"])
def test_a_pause_within_the_deadline_is_made(runtime: Runtime) -> None:
    """A shorter pause, or one without a deadline, is not shortened."""
    for paused in (runtime, runtime.with_deadline(600)):
        began = time.monotonic()
        asyncio.run(paused.sleep(0.05))

        assert time.monotonic() - began > 0.04


def test_what_a_tool_begins_for_later_has_no_deadline(clock: Clock) -> None:
    """Requests of a task that outlives its turn have no deadline.

    Only requests within the turn end by it.
    """
    answers: list[str] = []
    helper = ChatClient.create(ScriptedModel("summary"))
    turn_is_over = asyncio.Event()
    tasks: list[asyncio.Task[None]] = []

    async def later() -> None:
        await turn_is_over.wait()
        answers.append(await helper.prompt("Summarise.").acall().content())

    @tool
    async def note() -> str:
        """Note it."""
        tasks.append(asyncio.create_task(later()))
        return "noted"

    async def main() -> None:
        client = ChatClient.builder(ScriptedModel(call("note"), "ok")).default_tools(note).build()
        await client.prompt("x").deadline(50).acall().content()
        clock.advance(60)
        turn_is_over.set()
        await tasks[0]

    asyncio.run(main())
    assert answers == ["summary"]


@dataclass(eq=False)
class Hurried(ChatModel):
    """A model that records the remaining time of each call."""

    left: list[float] = field(default_factory=list)

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        self.left.append(runtime.remaining())
        return ChatResponse.of("yes")


@dataclass(eq=False)
class HurriedModeration(ModerationModel):
    left: list[float]

    async def moderate_all(self, texts: Sequence[str], runtime: Runtime) -> list[Moderation]:
        self.left.append(runtime.remaining())
        return [Moderation(flagged=False)]


@dataclass(eq=False)
class HurriedEmbedding(EmbeddingModel):
    left: list[float]

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        self.left.append(runtime.remaining())
        return [[1.0]]


@pytest.mark.feature("request-no-wall-clock-limit")
def test_blocking_model_calls_have_the_deadline(ask: Ask) -> None:
    """It bounds calls of guardrails and advisors, also in plain functions."""
    helper = Hurried()
    client, judge = ChatClient.create(helper), RelevancyEvaluator(helper)
    embedding, moderation = HurriedEmbedding(helper.left), HurriedModeration(helper.left)

    def judged(answer: ChatResponse) -> None:
        helper.call("x")
        list(helper.stream("x"))
        embedding.embed(["x"])
        client.prompt("x").call().content()
        judge.evaluate(EvaluationRequest("?", answer.text))

    async def advise(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        if ask.blocking:
            client.prompt("x").deadline(500).call().content()
        else:
            await client.prompt("x").deadline(500).acall().content()
        return await call_next(request)

    guards = InputGuardrailAdvisor(moderated_input(moderation)), OutputGuardrailAdvisor(judged)
    asked = ChatClient.create(ScriptedModel("x")).prompt("x").advisors(*guards, advise)
    ask(asked.deadline(50))

    assert [each <= 50 for each in helper.left] == [True] * 7


def test_asynchronous_model_calls_have_the_deadline() -> None:
    """It bounds calls of guardrails and advisors with the asynchronous methods."""
    helper = Hurried()
    judge = RelevancyEvaluator(helper)
    embedding, moderation = HurriedEmbedding(helper.left), HurriedModeration(helper.left)

    async def judged(answer: ChatResponse) -> None:
        await helper.acall("x")
        assert [chunk.text async for chunk in helper.astream("x")] == ["yes"]
        await embedding.aembed(["x"])
        await moderation.amoderate("x")
        await judge.aevaluate(EvaluationRequest("?", answer.text))

    client = ChatClient.create(ScriptedModel("x"))
    Ask("acall")(client.prompt("x").advisors(OutputGuardrailAdvisor(judged)).deadline(50))

    assert [each <= 50 for each in helper.left] == [True] * 5


def test_what_undoes_a_call_is_not_bound_by_the_deadline(ask: Ask) -> None:
    """Compensations run after the deadline."""
    helper = Hurried()

    def cancel() -> None:
        helper.call("Cancel the table.")

    @tool(compensation=cancel)
    def book() -> str:
        """Book a table."""
        return "booked"

    @tool
    def pay() -> str:
        """Pay for it."""
        raise ValueError

    model = ScriptedModel([call("book"), call("pay")], "sorry")
    client = ChatClient.builder(model).default_tools(book, pay).build()

    assert ask(client.prompt("x").deadline(50)).text == "sorry"
    assert helper.left == [math.inf]


def test_the_deadline_in_an_advisors_own_loop() -> None:
    """Its tool calling manager gets the deadline from the request."""
    helper = Hurried()

    @tool
    def look_up() -> str:
        """Look it up."""
        return helper.call("x").text

    offered = Prompt("x", ChatOptions(tool_callbacks=tool_callbacks(look_up)))

    async def advise(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        asks = ScriptedModel([call("look_up")]).call("x")
        ToolCallingManager().execute_tool_calls(offered, asks)
        return await call_next(request)

    request = ChatClient.create(ScriptedModel("x")).prompt("x").advisors(advise)
    request.deadline(50).call().content()

    assert [each <= 50 for each in helper.left] == [True]


def test_a_silent_server_exceeds_the_deadline(ask: Ask) -> None:
    """The error is the same in all modes, and has the part of a stream that arrived."""
    head = SERVICES[0].answer(streaming=ask.streaming)[:300]
    for seconds in longer_and_longer():
        with (
            ChaosServer([[chunked(head), STALL]]) as server,
            SERVICES[0].model(server.url) as model,
            pytest.raises(DeadlineExceededError) as caught,
        ):
            ask(ChatClient.create(model).prompt("x").deadline(seconds))
        if caught.value.partial is not None or not ask.streaming:
            break

    assert isinstance(caught.value, TimeoutError)
    assert (caught.value.partial is not None) is ask.streaming


@pytest.mark.parametrize(("total", "deadline"), [(None, 0.2), (0.2, 600), (600, 0.2)])
def test_fallback_after_a_timeout(ask: Ask, total: float | None, deadline: float) -> None:
    """The total time-out of a model lets the next one answer, the request's deadline does not."""
    with ChaosServer([[STALL]]) as server:
        silent = SERVICES[0].model(server.url, timeout=Timeouts(total=total))
        client = ChatClient.create(FallbackChatModel(silent, ScriptedModel("other")))
        request = client.prompt("x").deadline(deadline)
        if total == 0.2:
            assert ask(request).text == "other"
        else:
            with pytest.raises(DeadlineExceededError):
                ask(request)
        silent.close()
