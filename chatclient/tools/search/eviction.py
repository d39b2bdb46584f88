"""Strategies that decide which sessions a tool index evicts.

They run only when an index is accessed; there are no threads and no timers.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Protocol

from chatclient._internal.checks import check_method, check_number, seconds
from chatclient.errors import UsageError
from chatclient.runtime.threads import ForkSafeLock


class ToolIndexEvictionStrategy(Protocol):
    """Selects the sessions to evict; called from many threads concurrently."""

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Record that a session is used, and return the sessions to evict now.

        If it returns the session itself, the tools are indexed again in every request.
        """
        ...

    def on_removed(self, session_id: str, /) -> None:
        """Record that a session was evicted."""
        ...


class NeverEvictStrategy:
    """Keeps every session, for applications with a bounded number of them."""

    def on_access(self, _session_id: str, /) -> Sequence[str]:
        """Return nothing."""
        return ()

    def on_removed(self, _session_id: str, /) -> None:
        """Do nothing."""


class AlwaysEvictStrategy:
    """Evicts the used session, so that its tools are indexed again in every request."""

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the session itself."""
        return (session_id,)

    def on_removed(self, _session_id: str, /) -> None:
        """Do nothing."""


class LruEvictionStrategy:
    """Keeps the most recently used sessions.

    Args:
        max_sessions: The number of sessions.

    Raises:
        UsageError: It is less than one.
    """

    def __init__(self, max_sessions: int = 1000) -> None:
        check_number("max_sessions", max_sessions, least=1)
        self._max_sessions = max_sessions
        self._lock = ForkSafeLock()
        self._sessions: OrderedDict[str, None] = OrderedDict()

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the least recently used session, if there are too many."""
        with self._lock:
            self._sessions[session_id] = None
            self._sessions.move_to_end(session_id)
            if len(self._sessions) <= self._max_sessions:
                return ()
            return (self._sessions.popitem(last=False)[0],)

    def on_removed(self, session_id: str, /) -> None:
        """Remove the session."""
        with self._lock:
            self._sessions.pop(session_id, None)


class TtlEvictionStrategy:
    """Keeps each session for a limited time after its last use.

    Args:
        ttl: The time, in seconds or as a `timedelta`.
        clock: Returns the time in seconds.

    Raises:
        UsageError: The time is not positive.
    """

    def __init__(
        self, ttl: float | timedelta, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl = seconds("ttl", ttl)
        self._clock = clock
        self._lock = ForkSafeLock()
        self._used: OrderedDict[str, float] = OrderedDict()  # least recently used first

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the other sessions that have expired."""
        with self._lock:
            now = self._clock()
            self._used[session_id] = now
            self._used.move_to_end(session_id)
            expired = list(
                takewhile(
                    lambda o: o != session_id and now - self._used[o] >= self._ttl, self._used
                )
            )
            for other in expired:
                del self._used[other]
            return expired

    def on_removed(self, session_id: str, /) -> None:
        """Remove the session."""
        with self._lock:
            self._used.pop(session_id, None)


class CompositeEvictionStrategy:
    """Evicts the sessions that any of several strategies selects.

    Raises:
        UsageError: There is no strategy, or one of them is no strategy.
    """

    def __init__(self, *strategies: ToolIndexEvictionStrategy) -> None:
        if not strategies:
            msg = "a composite needs at least one strategy; NeverEvictStrategy() keeps everything"
            raise UsageError(msg)
        for each in strategies:
            check_method("a strategy", each, "on_access", "pass several one by one")
        self._strategies = strategies

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the sessions that any strategy selects, each once."""
        selected = [other for each in self._strategies for other in each.on_access(session_id)]
        return tuple(dict.fromkeys(selected))

    def on_removed(self, session_id: str, /) -> None:
        """Inform all strategies."""
        for strategy in self._strategies:
            strategy.on_removed(session_id)
