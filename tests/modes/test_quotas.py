"""Quotas and rate limits by user, in memory and shared between processes."""

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.advisors import (
    Budget,
    InMemoryUsageStore,
    RateLimitAdvisor,
    SharedUsageStore,
    UsageStore,
)
from chatclient.advisors.budget import Quota
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse, Next
from chatclient.chat.response import Usage
from chatclient.errors import (
    BudgetExceededError,
    RateLimitExceededError,
    UsageError,
    UsageStoreError,
)
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing import Ask, ScriptedModel
from tests.support.databases import redis_place


def user_of(request: ChatClientRequest) -> str:
    user: str = request.context["user"]
    return user


class Clock:
    """A clock that is set by hand."""

    def __init__(self, now: float = 1_000_000.0) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


@pytest.fixture(params=["memory", "redis"])
def store(request: pytest.FixtureRequest) -> Iterator[UsageStore]:
    """A store of each kind, empty."""
    if request.param == "memory":
        yield InMemoryUsageStore()
        return
    pytest.importorskip("limits")
    with redis_place() as (url, prefix):
        yield SharedUsageStore(url, prefix=prefix)


def client_of(*advisors: Any) -> ChatClient:
    model = ScriptedModel(lambda prompt: "ok", usage=Usage(10, 5))
    return ChatClient.builder(model).default_advisors(*advisors).build()


def ask_as(ask: Ask, client: ChatClient, user: str, **options: Any) -> str:
    request = client.prompt("?").advisor_params({"user": user}).options(**options)
    return ask(request.advisors(reads_user)).text


async def reads_user(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
    assert request.context["user"]
    return await call_next(request)


# --- quotas ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("limits", "turns", "spent"),
    [
        ({"calls": 2}, 2, 2),
        ({"total_tokens": 20}, 2, 30),
        ({"input_tokens": 10}, 1, 10),
        ({"cost": 0.3, "price": lambda response: 0.1}, 3, 0.3),
    ],
)
def test_quota_of_each_user(
    ask: Ask, store: UsageStore, limits: dict[str, Any], turns: int, spent: float
) -> None:
    """The turns of one user count together, and not those of others."""
    client = client_of(Budget(period="day", key=user_of, store=store, **limits))
    for _ in range(turns):
        assert ask_as(ask, client, "ada") == "ok"
    with pytest.raises(BudgetExceededError, match="until the period ends in") as caught:
        ask_as(ask, client, "ada")

    assert caught.value.spent == pytest.approx(spent)
    assert caught.value.retry_after is not None
    assert 0 < caught.value.retry_after <= 86_400
    assert ask_as(ask, client, "bob") == "ok"


def test_quota_is_shared_by_all_that_use_the_store(ask: Ask, store: UsageStore) -> None:
    """Several processes may share it; without a key, all requests do."""
    first, second = (client_of(Budget(calls=2, period="hour", store=store)) for _ in range(2))
    ask_as(ask, first, "ada")
    ask_as(ask, second, "bob")

    with pytest.raises(BudgetExceededError):
        ask_as(ask, first, "eve")


def test_quota_starts_again_with_the_next_period() -> None:
    """Days begin at midnight, for all processes."""
    clock = Clock(86_400 * 20_000 - 10.0)
    quota = Quota("day", None, InMemoryUsageStore(clock=clock), clock)
    drive(quota.add("ada", "calls", 3, quota.period(), BLOCKING))
    drive(quota.add("bob", "output_tokens", 0, quota.period(), BLOCKING))  # nothing to count

    assert drive(quota.spent("ada", "calls", BLOCKING)) == 3
    assert quota.seconds_left() == 10
    clock.now += 10
    assert drive(quota.spent("ada", "calls", BLOCKING)) == 0


def test_hundred_users_of_one_client() -> None:
    """Concurrent requests of a hundred users each have the quota and rate limit of their user."""
    client = client_of(
        Budget(calls=3, period="day", key=user_of),
        RateLimitAdvisor(requests=3, on_exceeded="raise", key=user_of),
    )

    async def run(user: int) -> int:
        count = 0
        for _ in range(5):
            request = client.prompt("?").advisor_params({"user": f"u{user}"})
            try:
                await request.acall().content()
            except (BudgetExceededError, RateLimitExceededError):
                continue
            count += 1
        return count

    async def run_all() -> list[int]:
        return await asyncio.gather(*(run(user) for user in range(100)))

    assert asyncio.run(run_all()) == [3] * 100


@pytest.mark.parametrize("key", [None, "", 7])
def test_key_has_to_be_a_text(ask: Ask, key: Any) -> None:
    """Requests without a user would share a limit unnoticed."""
    for advisor in (
        Budget(calls=1, period="day", key=lambda request: key),
        RateLimitAdvisor(requests=1, key=lambda request: key),
    ):
        with pytest.raises(UsageError, match="the key of a limit must be a text"):
            ask_as(ask, client_of(advisor), "ada")


# --- rate limits -----------------------------------------------------------------------------


def test_rate_limit_of_each_user(ask: Ask) -> None:
    """The calls of one user do not keep another waiting."""
    client = client_of(RateLimitAdvisor(requests=1, on_exceeded="raise", key=user_of))
    ask_as(ask, client, "ada")

    with pytest.raises(RateLimitExceededError):
        ask_as(ask, client, "ada")
    assert ask_as(ask, client, "bob") == "ok"


def test_rate_limits_of_many_users_are_bounded(ask: Ask, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limits of users who were not here for the longest time are forgotten."""
    monkeypatch.setattr("chatclient.advisors.rate_limit._MAX_KEYS", 2)
    advisor = RateLimitAdvisor(requests=1, on_exceeded="raise", key=user_of)
    client = client_of(advisor)
    for user in ("ada", "bob", "eve"):
        ask_as(ask, client, user)

    assert list(advisor._windows) == ["bob", "eve"]
    with pytest.raises(RateLimitExceededError):
        ask_as(ask, client, "eve")
    assert ask_as(ask, client, "ada") == "ok"


@pytest.mark.parametrize("limits", [{"requests": 2}, {"tokens": 30}])
def test_shared_rate_limit(ask: Ask, store: UsageStore, limits: dict[str, int]) -> None:
    """All that use the store share a limit of each user; tokens are counted as they were spent."""
    clock = Clock()
    first, second = (
        client_of(
            RateLimitAdvisor(
                on_exceeded="raise", key=user_of, store=store, clock=clock, period=100, **limits
            )
        )
        for _ in range(2)
    )
    ask_as(ask, first, "ada")
    ask_as(ask, second, "ada")
    with pytest.raises(RateLimitExceededError):
        ask_as(ask, first, "ada", max_tokens=5)
    with pytest.raises(RateLimitExceededError) as caught:  # the refused call did not count
        ask_as(ask, second, "ada", max_tokens=5)

    assert 100 < caught.value.retry_after < 200
    assert ask_as(ask, second, "bob") == "ok"
    clock.now += caught.value.retry_after
    assert ask_as(ask, first, "ada", max_tokens=5) == "ok"


def test_shared_rate_limit_slides(ask: Ask) -> None:
    """What was counted in the previous period counts by the part of it that is not yet over."""
    clock = Clock()
    limit = RateLimitAdvisor(
        requests=4, period=100, on_exceeded="raise", store=InMemoryUsageStore(), clock=clock
    )
    client = client_of(limit)
    for _ in range(4):
        ask_as(ask, client, "ada")
    clock.now += 125  # three of the four are within the last 100 seconds

    assert ask_as(ask, client, "ada") == "ok"
    with pytest.raises(RateLimitExceededError) as caught:
        ask_as(ask, client, "ada")
    assert caught.value.retry_after == pytest.approx(25)


def test_call_larger_than_the_shared_limit_runs_alone(ask: Ask) -> None:
    """Otherwise, it would never run."""
    clock = Clock()
    limit = RateLimitAdvisor(
        tokens=12, period=100, on_exceeded="raise", store=InMemoryUsageStore(), clock=clock
    )
    client = client_of(limit)

    assert ask_as(ask, client, "ada", max_tokens=500) == "ok"
    with pytest.raises(RateLimitExceededError):
        ask_as(ask, client, "ada")
    clock.now += 200
    assert ask_as(ask, client, "ada", max_tokens=500) == "ok"


def test_waiting_for_a_shared_limit(ask: Ask) -> None:
    """A call waits until there is room, up to *max_wait*."""
    store = InMemoryUsageStore()
    client = client_of(RateLimitAdvisor(requests=2, period=0.2, store=store))

    assert [ask_as(ask, client, "ada") for _ in range(4)] == ["ok"] * 4
    impatient = client_of(RateLimitAdvisor(requests=1, period=600, max_wait=1, store=store))
    ask_as(ask, impatient, "ada")
    with pytest.raises(RateLimitExceededError):
        ask_as(ask, impatient, "ada")


# --- stores ----------------------------------------------------------------------------------


def test_counters(store: UsageStore) -> None:
    """Counters add up, also negative amounts, and are separate."""
    assert store.add("a", 5, 60) == 5
    assert store.add("a", -2, 60) == 3
    assert (store.get("a"), store.get("b")) == (3, 0)


def test_counters_in_memory_expire_and_are_bounded() -> None:
    """A counter ends; of too many, those used last are kept."""
    clock = Clock()
    store = InMemoryUsageStore(2, clock=clock)
    store.add("a", 1, 10)
    clock.now += 10
    assert store.get("a") == 0
    assert store.add("a", 1, 10) == 1
    store.add("b", 1, 10)
    store.add("a", 1, 10)
    store.add("c", 1, 10)

    assert len(store) == 2
    assert [store.get(name) for name in "abc"] == [2, 0, 1]


class BrokenStore:
    """A store whose server is away."""

    def __init__(self, *, reads: bool = False) -> None:
        self.reads = reads

    def add(self, key: str, amount: int, seconds: float) -> int:
        raise ConnectionError("away")

    def get(self, key: str) -> int:
        if self.reads:
            return 0
        raise ConnectionError("away")


def test_store_that_fails(ask: Ask, caplog: pytest.LogCaptureFixture) -> None:
    """Nothing is sent without a limit; an answer that has arrived is kept."""
    limits = (
        Budget(total_tokens=1, period="day", store=BrokenStore()),
        Budget(calls=1, period="day", store=BrokenStore(reads=True)),
        RateLimitAdvisor(requests=1, store=BrokenStore(reads=True)),
    )
    for limit in limits:
        with pytest.raises(UsageStoreError, match=r"failed \(ConnectionError\)"):
            ask_as(ask, client_of(limit), "ada")
    broken = client_of(Budget(total_tokens=1, period="day", store=BrokenStore(reads=True)))
    with caplog.at_level(logging.WARNING):
        assert ask_as(ask, broken, "ada") == "ok"

    assert "usage not counted error='ConnectionError'" in caplog.text


@pytest.mark.parametrize("uri", ["no uri", "unknown://:secret@host"])
def test_uri_of_a_shared_store(uri: str) -> None:
    """An unknown kind of store is an error that does not tell the password."""
    pytest.importorskip("limits")
    with pytest.raises(UsageError, match="not the URI of a store") as caught:
        SharedUsageStore(uri)

    assert "secret" not in str(caught.value)


def test_shared_store_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(__import__("sys").modules, "limits.storage", None)
    with pytest.raises(UsageError, match=r"pip install 'chatclient\[limits\]'"):
        SharedUsageStore("memory://")
