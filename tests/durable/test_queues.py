"""Queues of durable turns: limits, priorities, delays, and many parallel turns."""

import asyncio
import threading
import time
from collections.abc import Callable

import pytest

from chatclient import (
    ChatClientRequest,
    ChatClientResponse,
    ChatResponse,
    Next,
    Prompt,
    Runtime,
    tool,
)
from chatclient.advisors import FILTER_EXPRESSION
from chatclient.durable import TurnQueue, TurnRetries
from chatclient.errors import (
    AuthenticationError,
    EntityError,
    OverloadedError,
    UsageError,
    WrongTypeError,
)
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolApproval
from tests.durable.conftest import Make
from tests.support.waiting import asettled, settled


class Meter(ScriptedModel):
    """A model that records its calls and how many overlap, and answers once *until* is true."""

    def __init__(self, until: Callable[[], bool] = lambda: True) -> None:
        super().__init__(lambda prompt: prompt.messages[-1].text.upper())
        self.order: list[str] = []
        self.times: list[float] = []
        self.until = until
        self.most = self.running = 0

    async def generate(self, prompt: Prompt, runtime: Runtime) -> ChatResponse:
        self.order.append(prompt.messages[-1].text)
        self.times.append(time.monotonic())
        self.running += 1
        self.most = max(self.most, self.running)
        await runtime.sleep(0.05)
        assert await asettled(self.until)
        self.running -= 1
        return await super().generate(prompt, runtime)


def test_concurrency(make: Make) -> None:
    """A queue runs no more turns in parallel than its concurrency."""
    meter = Meter()
    client = make(meter)

    turns = [client.start(f"t{number}", queue="one") for number in range(4)]

    assert sorted(turn.result().content() for turn in turns) == ["T0", "T1", "T2", "T3"]
    assert meter.most == 1


def test_priority(make: Make) -> None:
    """Turns of higher priority start before those that wait already."""
    started = threading.Event()
    meter = Meter(until=started.is_set)
    client = make(meter)
    first = client.start("first", queue="one")
    assert settled(lambda: meter.order)

    turns = [client.start(f"p{number}", queue="one", priority=number) for number in (3, 1, 2)]
    started.set()

    for turn in (first, *turns):
        turn.result()
    assert meter.order == ["first", "p1", "p2", "p3"]


def test_delay(make: Make) -> None:
    """A delayed turn starts later, and is queued until then."""
    client = make(ScriptedModel("Hi"))

    began = time.monotonic()
    turn = client.start("Hi", delay=2)

    with pytest.raises(TimeoutError):
        turn.result(timeout=0.1)
    assert turn.status().state == "queued"
    assert turn.result(60).content() == "Hi"
    assert time.monotonic() - began >= 2


def test_limits_per_key(make: Make) -> None:
    """Turns of one key run one after another, those of different keys in parallel."""
    meter = Meter()
    client = make(meter)

    def run(*keys: str) -> int:
        meter.most = 0
        meter.until = lambda: meter.most == len(set(keys))
        for turn in [client.start("x", queue="keys", limit_key=key) for key in keys]:
            turn.result()
        return meter.most

    assert run("ann", "ann") == 1
    assert run("bob", "cem") == 2
    with pytest.raises(UsageError, match="limit_key"):
        client.start("x", queue="keys")


def test_rate(make: Make) -> None:
    """No more turns start in a period than the rate of the queue."""
    meter = Meter()
    client, began = make(meter), time.monotonic()

    for turn in [client.start(f"t{number}", queue="slow") for number in range(4)]:
        turn.result()

    assert meter.times[-1] - began > 1.0


def test_rate_of_worker(make: Make) -> None:
    """In one process, no more turns start in a period than the rate of a worker."""
    client = make(Meter())
    began = time.monotonic()

    for turn in [client.start(f"t{number}", queue="paced") for number in range(5)]:
        turn.result()

    assert time.monotonic() - began > 1.0  # two turns in each half second
    with pytest.raises(UsageError, match="needs a worker_concurrency"):
        TurnQueue("q", worker_rate=(2, 1.0))


def test_turn_that_waits_takes_no_place(make: Make) -> None:
    """A turn that waits for a decision leaves its place in the queue to others."""
    model = ScriptedModel(call("refund", {"order": 7}, id="c1"), "Hi.", "Done.")
    client = make(model, refund, interceptors=[ToolApproval()])
    waiting = client.start("Refund", queue="one")
    assert waiting.result().pending_turn is not None

    assert client.start("Hello", queue="one").result().content() == "Hi."

    waiting.decide("approve")
    assert waiting.result().content() == "Done."


def test_turn_that_is_retried_keeps_its_place(make: Make) -> None:
    """While it waits for a provider that is busy, no other turn takes its place in the queue."""
    model = ScriptedModel(OverloadedError("busy"), "one", "two")
    client = make(model, retries=TurnRetries(seconds=0.3))

    turns = [client.start("Hello", queue="one") for _ in range(2)]

    assert [turn.result().content() for turn in turns] == ["one", "two"]


def test_map(make: Make) -> None:
    """A map yields a result for each prompt; repeated with its key, it starts nothing again."""

    def answer(prompt: Prompt) -> str | Exception:
        text = prompt.messages[-1].text
        return AuthenticationError("no key") if text == "bad" else text.upper()

    model = ScriptedModel(answer)
    client = make(model)
    prompts = {"a": "one", "b": "bad", "c": "three"}

    for _ in range(2):
        results = {each.key: each for each in client.map(prompts, key="m")}
        assert results["a"].unwrap().content() == "ONE"
        with pytest.raises(AuthenticationError):
            results["b"].unwrap()
    assert len(model.prompts) == 3
    assert client.map(prompts, key="m").progress() == {"done": 2, "failed": 1}


@tool
def refund(order: int) -> str:
    """Refund an order."""
    return f"refunded {order}"


def test_map_with_turn_that_waits(make: Make) -> None:
    """A turn that waits for a decision has no answer, unlike one that was decided."""
    model = ScriptedModel(call("refund", {"order": 7}, id="c1"), "Done.")
    client = make(model, refund, interceptors=[ToolApproval()])
    turns = client.map(["Refund"], key="m")
    [waiting] = turns
    assert waiting.outcome == "waiting"
    assert waiting.result is not None
    assert waiting.result.pending_turn is not None
    with pytest.raises(EntityError, match="waits for approval of refund"):
        waiting.unwrap()

    waiting.turn.decide("approve")

    [answered] = turns
    assert (answered.outcome, answered.unwrap().content()) == ("answered", "Done.")


def test_map_that_cannot_start(make: Make) -> None:
    """Nothing starts if one of the prompts is invalid, or two have the same key."""
    client = make(ScriptedModel())

    with pytest.raises(UsageError, match="two requests of a map have the key '1'"):
        client.map({1: "a", "1": "b"}, key="m")  # type: ignore[dict-item]
    with pytest.raises(WrongTypeError, match="into a list"):
        client.map("hello", key="m")
    with pytest.raises(UsageError, match="blank"):
        client.map(["a", " "], key="m")
    unread = client.prompt("b").advisor_params({FILTER_EXPRESSION: {"tenant": "acme"}})
    with pytest.raises(UsageError, match="no advisor of this request reads"):
        client.map(["a", unread], key="m")
    for key in "01":
        with pytest.raises(UsageError, match="no durable turn"):
            client.turn(key=f"m/{key}").status()


async def broken(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    """An advisor that raises an error of the application."""
    if request.prompt.messages[-1].text == "bad":
        raise LookupError("broken")
    return await call_next(request)


def test_map_with_other_errors(make: Make) -> None:
    """Errors of the application, and turns that were deleted, do not end the map."""
    client = make(ScriptedModel(lambda _: "Hi."), advisors=[broken])
    turns = client.map({"a": "one", "b": "bad", "c": "three"}, key="m")

    errors = {each.key: type(each.error) for each in turns}
    assert errors == {"a": type(None), "b": LookupError, "c": type(None)}
    turns.turns["a"].delete()
    errors = {each.key: type(each.error) for each in turns}
    assert errors == {"a": UsageError, "b": LookupError, "c": type(None)}


def test_map_without_database(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """An error of the database is raised: it is none of the turn."""
    turns = make(ScriptedModel("Hi.")).map(["one"], key="m")
    turn = turns.turns["0"]
    turn.result()

    def result() -> None:
        raise ConnectionError("no database")

    monkeypatch.setattr(turn, "result", result)
    with pytest.raises(ConnectionError):
        list(turns)


async def test_amap(make: Make) -> None:
    """Results of a map can be awaited; prompts without keys have their positions."""
    client = make(ScriptedModel(lambda prompt: prompt.messages[-1].text))

    turns = await client.amap([f"p{number}" for number in range(20)], key="m", queue="one")

    assert len(turns) == 20
    found = {each.key: each.unwrap().content() async for each in turns}
    assert found == {str(number): f"p{number}" for number in range(20)}
    await asyncio.sleep(0)


@pytest.mark.parametrize(
    "settings",
    [
        {"name": " "},
        {"concurrency": 0},
        {"rate": (0, 1.0)},
        {"key_rate": (1, 0.0)},
        {"poll_seconds": 0},
    ],
)
def test_invalid_queue(settings: dict[str, object]) -> None:
    """Invalid settings of a queue are refused."""
    with pytest.raises(UsageError):
        TurnQueue(**{"name": "q", **settings})  # type: ignore[arg-type]
