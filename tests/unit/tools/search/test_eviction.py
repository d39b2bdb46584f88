"""Eviction strategies for sessions of a tool index."""

import threading
from datetime import timedelta
from typing import Any

import pytest

from chatclient.errors import UsageError
from chatclient.tools.search.index import (
    AlwaysEvictStrategy,
    CompositeEvictionStrategy,
    LruEvictionStrategy,
    NeverEvictStrategy,
    TtlEvictionStrategy,
)


class Clock:
    """A clock that is set manually."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.mark.feature("search-never-evict-strategy-always")
def test_never() -> None:
    """No session is evicted."""
    never = NeverEvictStrategy()
    never.on_removed("x")

    assert [list(never.on_access(str(i))) for i in range(100)] == [[]] * 100


@pytest.mark.feature("search-never-evict-strategy-always")
def test_always() -> None:
    """The session itself is evicted, so that its tools are indexed again."""
    always = AlwaysEvictStrategy()
    always.on_removed("a")

    assert list(always.on_access("a")) == ["a"]


@pytest.mark.feature("search-lru-eviction-strategy-ttl")
def test_least_recently_used() -> None:
    """The least recently used session is evicted; using one keeps it."""
    lru = LruEvictionStrategy(2)

    assert [list(lru.on_access(s)) for s in "aba"] == [[], [], []]
    assert list(lru.on_access("c")) == ["b"]
    assert list(lru.on_access("b")) == ["a"]


def test_removed_session() -> None:
    """Removed sessions do not count."""
    lru = LruEvictionStrategy(1)
    lru.on_access("a")
    lru.on_removed("a")
    lru.on_removed("never seen")

    assert list(lru.on_access("b")) == []


@pytest.mark.feature("search-lru-eviction-strategy-ttl")
def test_time_to_live() -> None:
    """All sessions idle for the time are evicted, except the current one."""
    clock = Clock()
    ttl = TtlEvictionStrategy(10, clock=clock)
    ttl.on_access("a")
    clock.now += 4
    ttl.on_access("b")
    clock.now += 5.9
    assert list(ttl.on_access("c")) == []
    clock.now += 0.1

    assert list(ttl.on_access("c")) == ["a"]
    clock.now += 100
    assert list(ttl.on_access("b")) == ["c"]
    clock.now += 100
    assert list(ttl.on_access("b")) == []


def test_use_restarts_the_time() -> None:
    """Each use restarts the time."""
    clock = Clock()
    ttl = TtlEvictionStrategy(timedelta(seconds=10), clock=clock)
    for session in "aba":
        ttl.on_access(session)
        clock.now += 6

    assert list(ttl.on_access("c")) == ["b"]
    ttl.on_removed("a")
    clock.now += 50
    assert list(ttl.on_access("d")) == ["c"]


def test_default_clock() -> None:
    """The default clock is real time."""
    ttl = TtlEvictionStrategy(1e-9)
    ttl.on_access("a")

    assert list(ttl.on_access("b")) == ["a"]


@pytest.mark.feature("search-lru-eviction-strategy-ttl")
def test_composite() -> None:
    """Sessions of any strategy are evicted once, and all strategies are informed."""
    clock = Clock()
    lru, ttl = LruEvictionStrategy(2), TtlEvictionStrategy(10, clock=clock)
    both = CompositeEvictionStrategy(lru, ttl)
    both.on_access("a")
    clock.now += 10

    assert list(both.on_access("b")) == ["a"]
    both.on_removed("a")
    assert list(both.on_access("c")) == []
    assert list(both.on_access("d")) == ["b"]
    both.on_removed("b")
    clock.now += 20
    assert list(both.on_access("e")) == ["c", "d"]


def test_composite_with_always() -> None:
    """The current session is evicted as well."""
    both = CompositeEvictionStrategy(AlwaysEvictStrategy(), LruEvictionStrategy(1))
    both.on_access("a")

    assert list(both.on_access("b")) == ["b", "a"]


def test_invalid_strategies() -> None:
    """No session, no time and no strategy are rejected."""
    with pytest.raises(UsageError, match="max_sessions"):
        LruEvictionStrategy(0)
    for ttl in (0, -1.0, timedelta(0), float("nan")):
        with pytest.raises(UsageError, match="ttl"):
            TtlEvictionStrategy(ttl)
    with pytest.raises(UsageError, match="at least one"):
        CompositeEvictionStrategy()
    several: Any = [NeverEvictStrategy()]
    with pytest.raises(UsageError, match="pass several one by one"):
        CompositeEvictionStrategy(several)


def test_strategy_is_thread_safe() -> None:
    """Sessions are evicted once and their number stays limited."""
    lru = LruEvictionStrategy(10)
    evicted: list[str] = []

    def use(thread: int) -> None:
        for i in range(200):
            evicted.extend(lru.on_access(f"{thread}-{i}"))

    threads = [threading.Thread(target=use, args=(n,)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert len(evicted) == len(set(evicted)) == 8 * 200 - 10
