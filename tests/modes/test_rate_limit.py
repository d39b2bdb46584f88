"""Rate limits: waiting, refusals, and what counts."""

import asyncio
import threading
import time
from typing import Any

import pytest
from hypothesis import given, strategies as st

from chatclient import ChatClient, ChatResponse, Prompt, tool
from chatclient.advisors.rate_limit import RateLimitAdvisor, RateLimits, SlidingWindow
from chatclient.chat.response import Usage
from chatclient.errors import ConnectionFailedError, RateLimitExceededError, UsageError
from chatclient.testing import Ask, ScriptedModel, call


def client_of(advisor: RateLimitAdvisor, model: ScriptedModel | None = None) -> ChatClient:
    model = model or ScriptedModel(lambda prompt: "ok")
    return ChatClient.builder(model).default_advisors(advisor).build()


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def refusal(ask: Ask, client: ChatClient, **request: Any) -> RateLimitExceededError:
    with pytest.raises(RateLimitExceededError) as caught:
        ask(client.prompt("?").options(**request))
    return caught.value


@pytest.mark.feature("advisors-rate-limits")
def test_calls_beyond_the_limit_wait(ask: Ask) -> None:
    """If two calls are allowed in a period, the third one waits."""
    client = client_of(RateLimitAdvisor(requests=2, period=0.2))
    started = time.monotonic()
    texts = [ask(client.prompt("?")).text for _ in range(3)]

    assert texts == ["ok"] * 3
    assert time.monotonic() - started >= 0.2


@pytest.mark.feature("advisors-rate-limits")
def test_or_they_are_refused(ask: Ask) -> None:
    """The error has the seconds after which a call is accepted."""
    clock = Clock()
    client = client_of(RateLimitAdvisor(requests=1, period=60, on_exceeded="raise", clock=clock))
    ask(client.prompt("?"))
    clock.now += 15
    error = refusal(ask, client)
    clock.now += error.retry_after

    assert error.retry_after == 45
    assert "1 requests in 60 s" in str(error)
    assert ask(client.prompt("?")).text == "ok"


def test_a_window_slides(ask: Ask) -> None:
    """Each call counts for one period."""
    clock = Clock()
    client = client_of(RateLimitAdvisor(requests=2, period=60, on_exceeded="raise", clock=clock))
    ask(client.prompt("?"))
    clock.now += 30
    ask(client.prompt("?"))
    clock.now += 31
    ask(client.prompt("?"))

    assert refusal(ask, client).retry_after == pytest.approx(29)


def test_tokens_are_counted_as_they_were_spent(ask: Ask) -> None:
    """The estimate before a call is replaced by its usage."""
    clock = Clock()
    model = ScriptedModel(lambda prompt: "ok", usage=Usage(60, 30))
    advisor = RateLimitAdvisor(tokens=100, period=60, on_exceeded="raise", clock=clock)
    client = client_of(advisor, model)
    ask(client.prompt("?"))

    assert refusal(ask, client, max_tokens=20).retry_after == 60
    assert "100 tokens" in str(refusal(ask, client, max_tokens=20))


def test_spending_of_earlier_periods(ask: Ask) -> None:
    """It is not counted, although a call may take longer than a period."""
    clock = Clock()
    limiter = RateLimitAdvisor(tokens=100, period=60, on_exceeded="raise", clock=clock)
    quick = client_of(limiter)

    def slow(_prompt: Prompt) -> str:
        clock.now += 61
        return quick.prompt("?").call().content()

    ask(client_of(limiter, ScriptedModel(slow, usage=Usage(90, 90))).prompt("?"))

    assert ask(quick.prompt("?")).text == "ok"


def test_what_costs_nothing_keeps_its_estimate(ask: Ask) -> None:
    """Without a reported usage, the estimate counts."""
    model = ScriptedModel(ChatResponse.of("ok"), ChatResponse.of("ok"))
    advisor = RateLimitAdvisor(tokens=100, period=60, on_exceeded="raise", clock=Clock())
    client = client_of(advisor, model)
    ask(client.prompt("?").options(max_tokens=60))

    assert refusal(ask, client, max_tokens=60).retry_after == 60


def test_a_call_bigger_than_the_limit_runs_alone(ask: Ask) -> None:
    """It is accepted when no other call counts."""
    advisor = RateLimitAdvisor(tokens=10, requests=5, period=60, on_exceeded="raise", clock=Clock())

    assert ask(client_of(advisor).prompt("long " * 50)).text == "ok"


def test_longer_waits_than_wanted_are_refused(ask: Ask) -> None:
    """As are waits beyond the deadline of the call."""
    client = client_of(RateLimitAdvisor(requests=1, period=60, max_wait=1))
    ask(client.prompt("?"))
    refusal(ask, client)
    patient = client_of(RateLimitAdvisor(requests=1, period=60))
    ask(patient.prompt("?"))

    with pytest.raises(RateLimitExceededError):
        ask(patient.prompt("?").deadline(30))


@tool
def look_up() -> str:
    """Look something up."""
    return "found"


def test_every_round_counts(ask: Ask) -> None:
    """Model calls are limited, not turns."""
    model = ScriptedModel(call("look_up"), "done")
    client = client_of(RateLimitAdvisor(requests=1, on_exceeded="raise"), model)
    with pytest.raises(RateLimitExceededError):
        ask(client.mutate().default_tools(look_up).build().prompt("?"))


def test_a_failed_call_counts(ask: Ask) -> None:
    """Providers count it, too."""
    model = ScriptedModel(ConnectionFailedError("no"), "ok")
    client = client_of(RateLimitAdvisor(requests=1, on_exceeded="raise"), model)
    with pytest.raises(ConnectionFailedError):
        ask(client.prompt("?"))

    refusal(ask, client)


def test_threads_share_one_limit() -> None:
    """Threads never exceed it together, and all calls are made."""
    client = client_of(RateLimitAdvisor(requests=4, period=0.2))
    done: list[float] = []

    def work() -> None:
        client.prompt("?").call().content()
        done.append(time.monotonic())

    started = time.monotonic()
    threads = [threading.Thread(target=work) for _ in range(10)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(done) == 10
    assert sorted(done)[8] - started >= 0.4


def test_a_cancelled_wait_gives_its_place_back() -> None:
    """A cancelled wait does not count."""
    clock = Clock()

    async def run() -> str:
        client = client_of(RateLimitAdvisor(requests=1, period=60, clock=clock))
        await client.prompt("?").acall()
        waiting = [asyncio.create_task(client.prompt("?").acall().content()) for _ in range(2)]
        await asyncio.sleep(0.05)
        for task in waiting:
            task.cancel()
        await asyncio.gather(*waiting, return_exceptions=True)
        clock.now += 60
        return await asyncio.wait_for(client.prompt("?").acall().content(), 30)

    assert asyncio.run(run()) == "ok"


@pytest.mark.parametrize(
    "wrong", [{}, {"requests": 0}, {"tokens": -1}, {"requests": 1, "period": 0}]
)
def test_limits_have_to_make_sense(wrong: Any) -> None:
    """An advisor without a limit is refused."""
    with pytest.raises(UsageError):
        RateLimitAdvisor(**wrong)


def test_a_used_up_limit_takes_no_time_to_look_at() -> None:
    """The sum over thousands of calls is kept, not computed for each call."""
    clock = Clock()
    window = SlidingWindow(RateLimits(None, 5000 * 100, 60, float("inf")), clock)
    started = time.thread_time()
    for _ in range(5000):
        window._reserve(100, float("inf"))
        clock.now += 0.01
    _, wait = window._reserve(4900 * 100, float("inf"))

    assert wait == pytest.approx(58.99)
    assert time.thread_time() - started < 1


@given(st.lists(st.tuples(st.sampled_from(["ask", "wait", "cancel"]), st.integers(0, 40))))
def test_places_are_the_first_with_room(steps: list[tuple[str, int]]) -> None:
    """The same times as by trying one after another, also after cancelled waits."""
    clock = Clock()
    window = SlidingWindow(RateLimits(3, 50, 10, float("inf")), clock)
    made: list[tuple[float, int, Any]] = []  # when, how many tokens, and the call itself
    for step, number in steps:
        if step == "wait":
            clock.now += number % 7
        elif step == "ask":
            at = first_room(made, clock.now, number)
            call, wait = window._reserve(number, float("inf"))
            assert clock.now + wait == at
            made.append((at, number, call))
        elif made and made[number % len(made)][0] > clock.now:
            window._remove(made.pop(number % len(made))[2])


def first_room(made: list[tuple[float, int, Any]], now: float, tokens: int) -> float:
    """Return when a call of so many tokens may begin after those *made*."""
    at = max([now, *(when for when, _, _ in made)])
    while True:
        counted = [spent for when, spent, _ in made if when > at - 10]
        if not counted or (len(counted) < 3 and sum(counted) + tokens <= 50):
            return at
        at += 1
