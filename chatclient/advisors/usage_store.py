"""Counters of usage by key, in this process or shared with others."""

import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager
from math import ceil
from typing import Any, Protocol

from chatclient._internal.checks import check_callable, check_method, check_number
from chatclient._internal.extras import needed_by
from chatclient._internal.logging import get_logger
from chatclient.chain.chain import ChatClientRequest
from chatclient.errors import UsageError, UsageStoreError
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

log = get_logger(__name__)

UsageKey = Callable[[ChatClientRequest], str]
"""Returns whose usage a request is, such as the id of its user."""


class UsageStore(Protocol):
    """Counters that expire. The methods block; they are called in a thread if a loop runs."""

    def add(self, key: str, amount: int, seconds: float) -> int:
        """Add *amount* to a counter, atomically, and return its new value.

        A counter that does not exist is 0, and expires *seconds* later.
        """
        ...

    def get(self, key: str) -> int:
        """Return the value of a counter; 0 if it does not exist."""
        ...


class InMemoryUsageStore:
    """Counters in the memory of this process.

    Args:
        max_keys: The maximum number of counters. If there are more, the one that was not used for
            the longest time is forgotten.
        clock: Returns the time in seconds.

    Raises:
        UsageError: *max_keys* is not a positive number.
    """

    def __init__(
        self, max_keys: int = 100_000, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        check_number("max_keys", max_keys, least=1)
        self._max_keys = max_keys
        self._clock = clock
        self._counters: OrderedDict[str, tuple[int, float]] = OrderedDict()
        self._lock = ForkSafeLock()

    def __len__(self) -> int:
        """Return the number of counters, including some that have expired."""
        return len(self._counters)

    def add(self, key: str, amount: int, seconds: float) -> int:
        """Add *amount* to a counter, and return its new value."""
        with self._lock:
            now = self._clock()
            # Removed and added again, so that the counters are in the order of their last use.
            value, expires = self._counters.pop(key, (0, now + seconds))
            if expires <= now:
                value, expires = 0, now + seconds
            self._counters[key] = (value + amount, expires)
            if len(self._counters) > self._max_keys:
                self._counters.popitem(last=False)
            return value + amount

    def get(self, key: str) -> int:
        """Return the value of a counter."""
        # A single look-up needs no lock.
        value, expires = self._counters.get(key, (0, 0.0))
        return value if expires > self._clock() else 0


class SharedUsageStore:
    """Counters that several processes share, in a store of the library `limits` (extra `limits`).

    Args:
        uri: The store, such as `redis://localhost:6379/0`; see the documentation of `limits`.
        prefix: The beginning of all keys. Applications that share a server need different ones.
        **options: Options of the store.

    Raises:
        UsageError: The extra is not installed, or *uri* does not name a store.
    """

    def __init__(self, uri: str, *, prefix: str = "chatclient", **options: Any) -> None:
        with needed_by("a shared store of usage"):
            from limits.errors import ConfigurationError  # noqa: PLC0415 - an extra
            from limits.storage import storage_from_string  # noqa: PLC0415 - as above
        try:
            self._storage: Any = storage_from_string(uri, **options)
        except ConfigurationError as error:
            # Without the URI, which may contain a password.
            msg = f"this is not the URI of a store of usage: {type(error).__name__}"
            raise UsageError(msg) from None
        self._prefix = prefix

    def add(self, key: str, amount: int, seconds: float) -> int:
        """Add *amount* to a counter, and return its new value."""
        value: int = self._storage.incr(f"{self._prefix}:{key}", ceil(seconds), amount=amount)
        return value

    def get(self, key: str) -> int:
        """Return the value of a counter."""
        value: int = self._storage.get(f"{self._prefix}:{key}")
        return value


class Counters:
    """Calls a store, in a thread if it may block an event loop.

    Args:
        store: The store.
    """

    __slots__ = ("_in_memory", "_store")

    def __init__(self, store: UsageStore) -> None:
        for method in ("add", "get"):
            check_method("a store of usage", store, method)
        self._store = store
        self._in_memory = isinstance(store, InMemoryUsageStore)

    async def get(self, key: str, runtime: Runtime) -> int:
        """Return the value of a counter.

        Raises:
            UsageStoreError: The store failed.
        """
        if self._in_memory:
            return self._store.get(key)
        with _failures():
            return await runtime.invoke(self._store.get, key)

    async def add(self, key: str, amount: int, seconds: float, runtime: Runtime) -> int:
        """Add *amount* to a counter, and return its new value.

        Raises:
            UsageStoreError: The store failed.
        """
        if self._in_memory:
            return self._store.add(key, amount, seconds)
        with _failures():
            return await runtime.invoke(self._store.add, key, amount, seconds)

    async def record(self, key: str, amount: int, seconds: float, runtime: Runtime) -> None:
        """Add *amount*; a failure is logged, because an answer that has arrived is kept."""
        try:
            await self.add(key, amount, seconds, runtime)
        except UsageStoreError as error:
            log.warning("usage not counted", error=type(error.__cause__).__name__)


@contextmanager
def _failures() -> Generator[None, None, None]:
    """Raise the errors of a store as `UsageStoreError`."""
    try:
        yield
    except Exception as error:
        msg = f"the store of usage failed ({type(error).__name__}); nothing more was sent"
        raise UsageStoreError(msg) from error


def checked_key(key: UsageKey | None) -> UsageKey | None:
    """Return *key* after a check that it is a function of a request, or None."""
    if key is not None:
        check_callable("a key", key, takes=("request",))
    return key


def key_of(key: UsageKey | None, request: ChatClientRequest) -> str:
    """Return the key of *request*; empty without a function.

    Raises:
        UsageError: The function returned no text: all such requests would share one limit.
    """
    if key is None:
        return ""
    usage_key: object = key(request)
    if not isinstance(usage_key, str) or not usage_key:
        msg = (
            "the key of a limit must be a text that is not empty, such as the id of a user, not"
            f" {usage_key!r}; it is computed from the request's context or tool context"
        )
        raise UsageError(msg)
    return usage_key
