"""Faults of the database of durable turns: a read-only one, a full disk, a lock that is held."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar

from chatclient._internal.logging import get_logger
from chatclient.durable.extra import dbos_errors, sqlalchemy_errors

log = get_logger(__name__)

T = TypeVar("T")

_FAULTS = (
    sqlalchemy_errors.OperationalError,
    sqlalchemy_errors.InternalError,
    sqlalchemy_errors.InterfaceError,
    sqlalchemy_errors.TimeoutError,
    dbos_errors.DBOSQueryTimeoutError,
)
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 5.0  # seconds


async def until_stored(work: Callable[[], Awaitable[T]]) -> T:
    """Return the result of *work*, which is repeated while the database has a fault.

    A turn must not end, undo its calls or lose a paid answer because its own database failed. DBOS
    itself waits for lost connections only.
    """
    pause = 0.0
    while True:
        try:
            return await work()
        except _FAULTS as error:
            if not pause:
                log.warning("the turn waits for its database", error=repr(error))
        pause = min(max(pause * 2, _FIRST_PAUSE), _LONGEST_PAUSE)
        await asyncio.sleep(pause)
