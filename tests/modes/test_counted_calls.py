# pyright: reportPossiblyUnboundVariable=false
# A loop over `longer_and_longer` runs at least once.
"""Calls count from when they are sent, and their tokens when they end, however they end."""

import asyncio
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from decimal import Decimal
from threading import Barrier
from typing import Any

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
)
from chatclient.advisors.budget import Budget
from chatclient.advisors.usage_store import InMemoryUsageStore, SharedUsageStore, UsageStore
from chatclient.chat.response import ChatResponseMetadata, Cost, Usage
from chatclient.chat.turn import Spent
from chatclient.decisions import ChatDecisionModel, DecisionModel, DecisionRequest, ask_decision
from chatclient.durable import Recording, TurnRetries, recorded
from chatclient.errors import (
    BudgetExceededError,
    DeadlineExceededError,
    OverloadedError,
    StreamInterruptedError,
    UnknownPriceError,
    UsageError,
)
from chatclient.providers import FallbackChatModel
from chatclient.runtime.runtime import Runtime
from chatclient.testing import Ask, ScriptedModel
from tests.support.databases import redis_place
from tests.support.decisions import always
from tests.support.journal import Journal
from tests.support.messages_server import as_stream, message, messages_servers
from tests.support.servers import Reply
from tests.support.waiting import longer_and_longer


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[UsageStore]:
    """A store of each kind, empty."""
    if request.param == "memory":
        yield InMemoryUsageStore()
        return
    pytest.importorskip("limits")
    with redis_place() as (url, prefix):
        yield SharedUsageStore(url, prefix=prefix)


class Reporting(ChatModel):
    """Reports its input tokens before the text, as some providers do, and then fails or waits."""

    @property
    def provider(self) -> str:
        return "openai"

    @property
    def options(self) -> ChatOptions:
        return ChatOptions(model="gpt-4.1-mini")

    def __init__(self, error: Exception | None = None) -> None:
        self.error = error
        self.calls = 0
        self.waits = asyncio.Event()

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        self.calls += 1
        return await self._end(runtime)

    async def generate_stream(
        self, prompt: Prompt, runtime: Runtime
    ) -> AsyncGenerator[ChatResponse | str, None]:
        self.calls += 1
        yield ChatResponse((), ChatResponseMetadata(usage=Usage(7, 0)))
        yield "There "
        yield await self._end(runtime)

    async def _end(self, runtime: Runtime) -> ChatResponse:
        self.waits.set()
        if self.error is None:
            await runtime.sleep(3600)
        raise self.error or AssertionError


async def leave(client: ChatClient, *, blocking: bool) -> Usage:
    """Close the stream after the first piece, and return the usage of the trail."""
    if blocking:
        with client.prompt("?").stream() as stream:
            next(iter(stream))
        return stream.trail().usage
    async with client.prompt("?").astream() as pieces:
        await anext(aiter(pieces))
    return pieces.trail().usage


@pytest.mark.parametrize("blocking", [True, False])
async def test_stopped_answers(store: UsageStore, *, blocking: bool) -> None:
    """Who presses Stop has used a call of the quota, and the tokens that were reported."""
    model = Reporting()
    budgets = (
        Budget(calls=3, period="day", store=store),
        Budget(total_tokens=1000, period="day", store=store),
    )
    client = ChatClient.builder(model).default_advisors(*budgets).build()
    usages = [await leave(client, blocking=blocking) for _ in range(3)]
    with pytest.raises(BudgetExceededError, match="3 of 3"):
        await leave(client, blocking=blocking)

    assert model.calls == 3
    assert [usage.total_tokens for usage in usages] == [7, 7, 7]
    few = Budget(total_tokens=21, period="day", store=store)
    with pytest.raises(BudgetExceededError, match="21 of 21"):
        await leave(ChatClient.builder(model).default_advisors(few).build(), blocking=blocking)


@pytest.mark.parametrize("error", [OverloadedError("busy", provider="x"), ValueError("wrong")])
def test_failed_calls(ask: Ask, error: Exception) -> None:
    """A call that fails counts."""
    budget = Budget(calls=2, period="day")
    model = Reporting(error)
    client = ChatClient.builder(model).default_advisors(budget).build()
    for _ in range(2):
        with pytest.raises(type(error)):
            ask(client.prompt("?"))
    with pytest.raises(BudgetExceededError):
        ask(client.prompt("?"))


def test_calls_that_take_too_long(ask: Ask) -> None:
    """A call that is cut off at the deadline counts."""
    model = Reporting()
    client = ChatClient.builder(model).default_advisors(Budget(calls=1, period="day"))
    for seconds in longer_and_longer():
        with pytest.raises(DeadlineExceededError):
            ask(client.build().prompt("?").deadline(seconds))
        if model.calls:
            break
    with pytest.raises(BudgetExceededError):
        ask(client.build().prompt("?"))


async def test_cancelled_calls(store: UsageStore) -> None:
    """A call whose task is cancelled counts."""
    model = Reporting()
    budget = Budget(calls=1, period="day", store=store)
    client = ChatClient.builder(model).default_advisors(budget).build()
    task = asyncio.create_task(client.prompt("?").acall().content())
    await model.waits.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task

    with pytest.raises(BudgetExceededError):
        await client.prompt("?").acall().content()


def test_calls_that_were_not_sent(ask: Ask) -> None:
    """A request that is refused before it is sent does not count, in any of the budgets."""
    user, site = Budget(calls=1, period="day"), Budget(calls=9)
    wrong = UsageError("the image cannot be sent")
    model = ScriptedModel(wrong, "Hello.", "never")
    client = ChatClient.builder(model).default_advisors(site, user).build()
    with pytest.raises(UsageError):
        ask(client.prompt("?"))

    assert ask(client.prompt("?")).response.turn.spent.calls == 1
    with pytest.raises(BudgetExceededError):
        ask(client.prompt("?"))


def test_outer_budget_that_refuses(ask: Ask) -> None:
    """A call that one of several budgets refuses counts in none of them."""
    site, user = Budget(calls=1, period="day"), Budget(calls=2, period="day")
    model = ScriptedModel(lambda prompt: "ok")
    first = ChatClient.builder(model).default_advisors(site, user).build()
    second = ChatClient.builder(model).default_advisors(user).build()
    ask(first.prompt("?"))
    for _ in range(2):
        with pytest.raises(BudgetExceededError, match="1 of 1"):
            ask(first.prompt("?"))

    assert ask(second.prompt("?")).text == "ok"


def test_calls_at_the_same_time(store: UsageStore) -> None:
    """Parallel calls do not exceed the limit together."""
    barrier = Barrier(8)
    sent: list[Prompt] = []

    def answer(prompt: Prompt) -> str:
        sent.append(prompt)
        return "ok"

    budget = Budget(calls=3, period="day", store=store)
    client = ChatClient.builder(ScriptedModel(answer)).default_advisors(budget).build()

    def ask_once(_: int) -> None:
        barrier.wait(30)
        with suppress(BudgetExceededError):
            client.prompt("?").call().content()

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask_once, range(8)))

    assert len(sent) == 3


class Late(InMemoryUsageStore):
    """A store that is read before the calls of other processes are counted."""

    def get(self, key: str) -> int:
        return 0


def test_calls_of_other_processes(ask: Ask) -> None:
    """A call that is refused when it is counted does not count, in any of the budgets."""
    site, user = InMemoryUsageStore(), Late()
    budgets = Budget(calls=9, period="day", store=site), Budget(calls=2, period="day", store=user)
    client = deciding(always(0.9), *budgets)
    ask(client.prompt("?"))
    for _ in range(9):
        with pytest.raises(BudgetExceededError, match="2 of 2"):
            ask(client.prompt("?"))


def test_fallback_is_one_call(ask: Ask) -> None:
    """A call that another model answers is one call: the user has asked once."""
    busy = ScriptedModel(OverloadedError("busy", provider="x"))
    model = FallbackChatModel(busy, ScriptedModel("ok"))
    client = ChatClient.builder(model).default_advisors(Budget()).build()

    assert ask(client.prompt("?")).response.turn.spent == Spent(Usage(10, 5), 1)


def test_stream_that_breaks_off() -> None:
    """Anthropic reports the input tokens first: they count although the answer never ends."""
    begin = as_stream(message("There are two trains."))[:-300]
    budget = Budget(input_tokens=1110, period="day")
    with messages_servers() as serve:
        model = serve(Reply(begin, content_type="text/event-stream")).model(max_retries=0)
        client = ChatClient.builder(model).default_advisors(budget).build()
        stream = client.prompt("?").stream()
        with pytest.raises(StreamInterruptedError):
            list(stream)
        with pytest.raises(BudgetExceededError, match="1110 of 1110"):
            list(client.prompt("?").stream())

    assert stream.trail().usage.input_tokens == 1110


def test_cost_of_a_stopped_answer() -> None:
    """The trail and the budget have the cost of the tokens that were reported."""
    pytest.importorskip("genai_prices")
    budget = Budget(cost=2.8e-6, period="day")
    client = ChatClient.builder(Reporting()).default_advisors(budget).build()
    usage = asyncio.run(leave(client, blocking=True))

    assert usage.cost == Cost(Decimal("0.0000028"))
    with pytest.raises(BudgetExceededError):
        client.prompt("?").call().content()


RUDE = '{"q1": {"Yes": 0.9, "No": 0.1}}'


def deciding(model: DecisionModel, *advisors: Any, answers: ChatModel | None = None) -> ChatClient:
    async def decide(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        asked = DecisionRequest(request.prompt.messages[-1].text, {"rude": "Is it rude?"})
        with suppress(OverloadedError):
            await ask_decision(model, asked, request.runtime)
        return await call_next(request)

    builder = ChatClient.builder(answers or ScriptedModel("Hi"))
    return builder.default_advisors(*advisors, decide).build()


@pytest.mark.parametrize(
    ("model", "tokens"),
    [
        (always(0.9), 9),
        (always(OverloadedError("busy", provider="x")), 0),
        (ChatDecisionModel(ScriptedModel(lambda prompt: RUDE)), 15),
    ],
    ids=["decision", "failed", "chat model"],
)
def test_decisions(ask: Ask, model: DecisionModel, tokens: int) -> None:
    """A decision is one call, with its tokens; one that asks a chat model is that call."""
    spent = ask(deciding(model, Budget()).prompt("Fool!")).response.turn.spent

    assert (spent.calls, spent.usage.total_tokens) == (2, 15 + tokens)


def test_cost_of_decisions(ask: Ask) -> None:
    """A limit of cost needs their price, too."""
    with pytest.raises(UnknownPriceError, match="the price of judge-1"):
        ask(deciding(always(0.9), Budget(cost=1.0)).prompt("Fool!"))
    budget = Budget(cost=1.0, price=lambda response: response.usage.input_tokens / 100)

    assert ask(deciding(always(0.9), budget).prompt("Fool!")).response.turn.spent.cost == 0.17


def test_repeated_record(ask: Ask) -> None:
    """A turn that is executed again counts the same, and nothing more in a quota."""
    store, journal = InMemoryUsageStore(), Journal()
    answers: list[Any] = [OverloadedError("busy", provider="x"), "Hi"]
    model, spent = ScriptedModel(*answers), list[Any]()
    for _ in range(2):
        budgets = Budget(), Budget(calls=3, period="day", store=store)
        client = deciding(always(0.9), *budgets, answers=model)
        recording = Recording(journal.reopen(), retries=TurnRetries(attempts=2, seconds=0.001))
        request = recorded(client.prompt("Fool!"), recording, "turn 1")
        spent.append(ask(request).response.turn.spent)

    assert spent == [Spent(Usage(17, 7), 3)] * 2
    with pytest.raises(BudgetExceededError, match="3 of 3"):
        ask(client.prompt("Fool!"))
