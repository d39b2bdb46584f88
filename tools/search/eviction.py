"""Decides which sessions a tool index forgets, and when.

All of it happens while somebody asks: there are no threads and no timers.
"""

import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from datetime import timedelta
from itertools import takewhile
from typing import Protocol

from chatclient.checks import check_method, check_number, seconds
from chatclient.errors import UsageError
from chatclient.forks import ForkSafeLock


class ToolIndexEvictionStrategy(Protocol):
    """Says which sessions are to be forgotten; asked from many threads at once."""

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Take note that a session is used, and return the sessions to forget now.

        One that returns the session itself has its tools indexed anew in every request.
        """
        ...

    def on_removed(self, session_id: str, /) -> None:
        """Take note that a session was forgotten."""
        ...


class NeverEvictStrategy:
    """Keeps every session: for a bounded number of them."""

    def on_access(self, _session_id: str, /) -> Sequence[str]:
        """Return nothing."""
        return ()

    def on_removed(self, _session_id: str, /) -> None:
        """Do nothing."""


class AlwaysEvictStrategy:
    """Forgets the session that is used, so that its tools are indexed anew in every request."""

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the session itself."""
        return (session_id,)

    def on_removed(self, _session_id: str, /) -> None:
        """Do nothing."""


class LruEvictionStrategy:
    """Keeps the sessions that were used last.

    Args:
        max_sessions: How many.

    Raises:
        UsageError: It is less than one.
    """

    def __init__(self, max_sessions: int = 1000) -> None:
        check_number("max_sessions", max_sessions, least=1)
        self._max_sessions = max_sessions
        self._lock = ForkSafeLock()
        self._sessions: OrderedDict[str, None] = OrderedDict()

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the session that was not used for the longest time, if there are too many."""
        with self._lock:
            self._sessions[session_id] = None
            self._sessions.move_to_end(session_id)
            if len(self._sessions) <= self._max_sessions:
                return ()
            return (self._sessions.popitem(last=False)[0],)

    def on_removed(self, session_id: str, /) -> None:
        """Forget when the session was used."""
        with self._lock:
            self._sessions.pop(session_id, None)


class TtlEvictionStrategy:
    """Keeps each session for a time after its last use.

    Args:
        ttl: The time, in seconds or as a `timedelta`.
        clock: Tells the time in seconds.

    Raises:
        UsageError: The time is not positive.
    """

    def __init__(
        self, ttl: float | timedelta, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ttl = seconds("ttl", ttl)
        self._clock = clock
        self._lock = ForkSafeLock()
        self._used: OrderedDict[str, float] = OrderedDict()  # the one idle longest comes first

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the other sessions whose time is over."""
        with self._lock:
            now = self._clock()
            self._used[session_id] = now
            self._used.move_to_end(session_id)
            over = list(
                takewhile(
                    lambda o: o != session_id and now - self._used[o] >= self._ttl, self._used
                )
            )
            for other in over:
                del self._used[other]
            return over

    def on_removed(self, session_id: str, /) -> None:
        """Forget when the session was used."""
        with self._lock:
            self._used.pop(session_id, None)


class CompositeEvictionStrategy:
    """Forgets what any of several strategies wants forgotten.

    Raises:
        UsageError: There are none, or one of them is none.
    """

    def __init__(self, *strategies: ToolIndexEvictionStrategy) -> None:
        if not strategies:
            msg = "a composite needs at least one strategy; NeverEvictStrategy() keeps everything"
            raise UsageError(msg)
        for each in strategies:
            check_method("a strategy", each, "on_access", "pass several one by one")
        self._strategies = strategies

    def on_access(self, session_id: str, /) -> Sequence[str]:
        """Return the sessions that any strategy names, each once."""
        named = [other for each in self._strategies for other in each.on_access(session_id)]
        return tuple(dict.fromkeys(named))

    def on_removed(self, session_id: str, /) -> None:
        """Tell all strategies."""
        for strategy in self._strategies:
            strategy.on_removed(session_id)
