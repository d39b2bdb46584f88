"""`Quota`: what the requests of one user have used in the current period."""

import time
from collections.abc import Callable, Mapping
from datetime import timedelta
from typing import Literal

from chatclient._internal.checks import check_choice, seconds
from chatclient.advisors.usage_store import Counters, UsageKey, UsageStore
from chatclient.runtime.runtime import Runtime

Period = Literal["hour", "day"] | float | timedelta
"""The length of a period: a name, seconds, or a `timedelta`."""

_NAMED: Mapping[str, float] = {"hour": 3600.0, "day": 86_400.0}
# Stores count integers; costs are counted in billionths.
_BILLION = 1_000_000_000


class Quota:
    """Counts usage by key and period.

    Periods have fixed boundaries, the same for all processes: a day begins at midnight UTC.

    Args:
        period: The length of a period.
        key: Returns the key of a request, or None for one key.
        store: The counters.
        clock: Returns the time in seconds since 1970.

    Raises:
        UsageError: *period* is neither a known name nor a positive duration.
    """

    def __init__(
        self,
        period: Period,
        key: UsageKey | None,
        store: UsageStore,
        clock: Callable[[], float] = time.time,
    ) -> None:
        if isinstance(period, str):
            check_choice("a period", period, *_NAMED)
            period = _NAMED[period]
        self.seconds = seconds("a period", period)
        self.key = key
        self._counters = Counters(store)
        self._clock = clock

    def seconds_left(self) -> float:
        """Return the seconds until the current period ends."""
        return self.seconds - self._clock() % self.seconds

    async def spent(self, user: str, unit: str, runtime: Runtime) -> float:
        """Return what *user* has used of *unit* in the current period.

        Raises:
            UsageStoreError: The store failed.
        """
        counted = await self._counters.get(self._counter(user, unit), runtime)
        return counted / _BILLION if unit == "cost" else counted

    async def add(self, user: str, unit: str, amount: float, runtime: Runtime) -> None:
        """Count *amount* of *unit* for *user*; if the store fails, that is logged."""
        counted = round(amount * _BILLION) if unit == "cost" else int(amount)
        if counted:
            await self._counters.record(self._counter(user, unit), counted, self.seconds, runtime)

    def _counter(self, user: str, unit: str) -> str:
        return f"quota:{unit}:{self.seconds:g}:{int(self._clock() // self.seconds)}:{user}"
