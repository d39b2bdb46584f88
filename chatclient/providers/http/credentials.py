"""Tokens and other credentials that expire."""

import time
from collections.abc import Callable
from typing import Generic, TypeVar

from chatclient._internal.logging import get_logger
from chatclient.runtime.fork_safety import ForkSafeLock
from chatclient.runtime.runtime import Runtime

log = get_logger(__name__)

T = TypeVar("T")

_MARGIN = 180.0  # seconds; less than that of google-auth, azure-identity and botocore
_RETRY = 15.0  # seconds between attempts to replace credentials that are still valid


class ExpiringCredentials(Generic[T]):
    """Credentials that are fetched when they are first needed, and again before they expire.

    Safe to share between threads and event loops: one request fetches for all that need it at the
    same time, and fails for all. While the present credentials are valid, others do not wait for
    it, and an error of *fetch* is only logged.

    Args:
        fetch: Returns the credentials and when they expire, in seconds as of `time.time` (None for
            never). It may block: on an event loop, it runs in a worker thread.
    """

    def __init__(self, fetch: Callable[[], tuple[T, float | None]]) -> None:
        self._fetch = fetch
        self._lock = ForkSafeLock()
        self._value: T | None = None
        self._expires = 0.0
        self._renewal = 0.0  # from when on to fetch again
        self._error: Exception | None = None  # of the last fetch
        self._fetches = 0  # completed ones

    def __repr__(self) -> str:
        return f"{type(self).__name__}()"

    async def current(self, runtime: Runtime) -> T:
        """Return credentials that have not expired.

        Raises:
            Exception: An error of *fetch*, if there are no valid credentials.
        """
        # No local variable holds the value, because tracebacks may show it.
        if self._value is not None and time.time() < self._renewal:
            return self._value
        return await runtime.invoke(self._renewed)

    def _renewed(self) -> T:
        fetches = self._fetches
        with self._lock:
            now = time.time()
            if self._value is not None and now < self._renewal:
                return self._value  # another request has renewed them
            if self._error is not None and fetches != self._fetches:
                raise self._error  # another request has tried
            # Until then, other requests use the present credentials, unless these have expired.
            self._renewal = min(now + _RETRY, self._expires)
            try:
                self._value, self._expires, self._renewal = self._fetched()
                self._error = None
            except Exception as error:
                if self._value is None or now >= self._expires:
                    self._error = error
                    raise
                log.warning("credentials could not be renewed", error=type(error).__name__)
            finally:
                self._fetches += 1
            return self._value

    def _fetched(self) -> tuple[T, float, float]:
        value, expires = self._fetch()
        if expires is None:
            return value, float("inf"), float("inf")
        left = max(expires - time.time(), 0.0)
        return value, expires, expires - min(_MARGIN, left / 2)
