"""Which sessions a tool index forgets."""

import threading
from datetime import timedelta
from typing import Any

import pytest

from chatclient.errors import UsageError
from chatclient.tools.search.eviction import (
    AlwaysEvictStrategy,
    CompositeEvictionStrategy,
    LruEvictionStrategy,
    NeverEvictStrategy,
    TtlEvictionStrategy,
)


class Clock:
    """Stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def test_never_keeps_everything() -> None:
    """However many sessions there are."""
    never = NeverEvictStrategy()
    never.on_removed("x")

    assert [list(never.on_access(str(i))) for i in range(100)] == [[]] * 100


def test_always_names_the_session_itself() -> None:
    """So its tools are indexed anew."""
    always = AlwaysEvictStrategy()
    always.on_removed("a")

    assert list(always.on_access("a")) == ["a"]


def test_the_session_used_longest_ago_goes_first() -> None:
    """Using one again keeps it, and evicts nobody."""
    lru = LruEvictionStrategy(2)

    assert [list(lru.on_access(s)) for s in "aba"] == [[], [], []]
    assert list(lru.on_access("c")) == ["b"]
    assert list(lru.on_access("b")) == ["a"]


def test_a_removed_session_makes_room() -> None:
    """It does not count any more."""
    lru = LruEvictionStrategy(1)
    lru.on_access("a")
    lru.on_removed("a")
    lru.on_removed("never seen")

    assert list(lru.on_access("b")) == []


def test_sessions_go_once_their_time_is_over() -> None:
    """All that were idle that long, when anybody asks; never the one that does."""
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


def test_use_prolongs_a_sessions_time() -> None:
    """It begins anew with each use."""
    clock = Clock()
    ttl = TtlEvictionStrategy(timedelta(seconds=10), clock=clock)
    for session in "aba":
        ttl.on_access(session)
        clock.now += 6

    assert list(ttl.on_access("c")) == ["b"]
    ttl.on_removed("a")
    clock.now += 50
    assert list(ttl.on_access("d")) == ["c"]


def test_the_time_is_real_time_by_default() -> None:
    """Without a clock of one's own."""
    ttl = TtlEvictionStrategy(1e-9)
    ttl.on_access("a")

    assert list(ttl.on_access("b")) == ["a"]


def test_a_composite_evicts_what_any_wants() -> None:
    """Each once; and all are told of what has gone."""
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


def test_a_composite_with_always_evicts_the_present_session() -> None:
    """Beside what the others want."""
    both = CompositeEvictionStrategy(AlwaysEvictStrategy(), LruEvictionStrategy(1))
    both.on_access("a")

    assert list(both.on_access("b")) == ["b", "a"]


def test_what_makes_no_sense_is_refused() -> None:
    """No session, no time, no strategy."""
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


def test_many_threads_share_a_strategy() -> None:
    """None is named twice without having come back, and no more are kept than may be."""
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
