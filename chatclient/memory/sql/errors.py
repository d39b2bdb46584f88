"""Converts errors of SQLAlchemy, and decides which transactions are retried."""

from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import (
    DBAPIError,
    InterfaceError,
    OperationalError,
    SQLAlchemyError,
    TimeoutError as PoolTimeoutError,
)

from chatclient.errors import ChatClientError, ChatMemoryError, ChatMemoryUnavailableError
from chatclient.memory.sql.engine import name_of

_DEADLOCKS = ("40001", "40P01", 1213, 1020)  # SQLSTATEs of PostgreSQL, numbers of MySQL
_CONNECTION_LOST = (2006, 2013, 1153)  # MySQL's errors after too large a packet, among others
_LARGE = 250_000  # bytes; smaller values fit into a packet of any server
_ESCAPED = "\\'\"\0\n\r\x1a"  # characters that these drivers escape


@dataclass(frozen=True, slots=True)
class StoreErrors:
    """The errors that a component raises when its database fails.

    Attributes:
        refused: The database rejected a statement, or has an unknown schema.
        unavailable: The database cannot be reached, or is locked for too long.
    """

    refused: type[ChatClientError]
    unavailable: type[ChatClientError]


MEMORY_ERRORS = StoreErrors(ChatMemoryError, ChatMemoryUnavailableError)


class LostRaceError(Exception):
    """A concurrent transaction won; roll back and retry."""


def is_transient(error: Exception) -> bool:
    """Return whether the transaction may succeed if it is retried immediately."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, LostRaceError)
    if error.connection_invalidated:
        return True
    return _code(error) in _DEADLOCKS


def store_error(error: Exception, engine: sa.Engine, kinds: StoreErrors) -> ChatClientError:
    """Return the error to raise for *error* after the last attempt."""
    if isinstance(error, OperationalError | InterfaceError | LostRaceError | PoolTimeoutError):
        return kinds.unavailable(
            f"{name_of(engine)} cannot be used right now; see the cause of this error"
        )
    return kinds.refused(f"{name_of(engine)} refused a statement; see the cause of this error")


def check_packet_size(error: Exception, engine: sa.Engine) -> None:
    """Check whether the server closed the connection because a packet was too large.

    Raises:
        ChatMemoryError: A row exceeds `max_allowed_packet`; a retry would fail too.
    """
    if not isinstance(error, DBAPIError) or _code(error) not in _CONNECTION_LOST:
        return
    size = _largest_row(error)
    if size < _LARGE or engine.dialect.name not in ("mysql", "mariadb"):
        return
    try:
        most = _largest_packet(engine)
    except SQLAlchemyError:  # the connection was lost for another reason
        return
    if size > most:
        msg = (
            f"{name_of(engine)} cannot take a message of about {size} bytes: its "
            f"max_allowed_packet is {most}; set that higher, or send media by their URLs"
        )
        raise ChatMemoryError(msg) from error.orig


def _largest_packet(engine: sa.Engine) -> int:
    with engine.connect() as connection:
        size: int = connection.execute(sa.text("SELECT @@max_allowed_packet")).scalar_one()
        return size


def _code(error: DBAPIError) -> Any:
    """Return the SQLSTATE or the number of an error."""
    cause = error.orig
    return getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)


def _largest_row(error: BaseException | None) -> int:
    """Return the size in bytes of the largest row in the statement that failed first."""
    size = 0
    while error is not None:  # the rollback on a lost connection fails as well
        if isinstance(error, DBAPIError) and error.params:
            rows = error.params if isinstance(error.params, list) else [error.params]
            values = [row.values() if isinstance(row, dict) else row for row in rows]
            largest: int = max(sum(_escaped_size(each) for each in row) for row in values)
            size = len(error.statement or "") + largest
        error = error.__context__
    return size


def _escaped_size(value: Any) -> int:
    if not isinstance(value, str):
        return 0
    return len(value.encode()) + sum(value.count(character) for character in _ESCAPED)
