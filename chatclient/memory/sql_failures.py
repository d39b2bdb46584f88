"""What goes wrong with an SQL database, and what may be tried again; needs SQLAlchemy."""

from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeoutError

from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError
from chatclient.memory.sql_engine import name_of

_DEADLOCKS = ("40001", "40P01", 1213, 1020)  # SQLSTATEs of PostgreSQL, numbers of MySQL
_CUT_OFF = (2006, 2013, 1153)  # what MySQL's drivers say when a server takes no more of a packet
_LARGE = 250_000  # bytes; what is smaller fits into a packet of any server
_ESCAPED = "\\'\"\0\n\r\x1a"  # what these drivers write with another character before it


class LostRaceError(Exception):
    """Raised by work that lost a race: it is rolled back and begun anew."""


def passes(error: Exception) -> bool:
    """Return whether the same work may succeed when it is tried again at once."""
    if not isinstance(error, DBAPIError):
        return isinstance(error, LostRaceError)
    if error.connection_invalidated:
        return True
    return _code(error) in _DEADLOCKS


def failure_of(error: Exception, engine: sa.Engine) -> ChatMemoryError:
    """Return what to raise for *error*, which is tried again no more."""
    if isinstance(error, OperationalError | InterfaceError | LostRaceError | PoolTimeoutError):
        return ChatMemoryUnavailableError(
            f"{name_of(engine)} cannot be used right now; see the cause of this error"
        )
    return ChatMemoryError(f"{name_of(engine)} refused the work; see the cause of this error")


def check_size(error: Exception, engine: sa.Engine) -> None:
    """Make sure that a connection was not cut because of what was sent, which no retry would help.

    Raises:
        ChatMemoryError: A value is larger than a packet may be.
    """
    if not isinstance(error, DBAPIError) or _code(error) not in _CUT_OFF:
        return
    size = _size(error)
    if size < _LARGE or engine.dialect.name not in ("mysql", "mariadb"):
        return
    try:
        most = _largest_packet(engine)
    except SQLAlchemyError:  # it is gone for another reason
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
    """Return what the database calls an error: an SQLSTATE, or a number."""
    cause = error.orig
    return getattr(cause, "sqlstate", None) or next(iter(getattr(cause, "args", ())), None)


def _size(error: BaseException | None) -> int:
    """Return how many bytes the largest row of the statement that failed first comes to."""
    size = 0
    while error is not None:  # rolling back fails, too, when the connection is gone
        if isinstance(error, DBAPIError) and error.params:
            rows = error.params if isinstance(error.params, list) else [error.params]
            values = [row.values() if isinstance(row, dict) else row for row in rows]
            largest: int = max(sum(_escaped(each) for each in row) for row in values)
            size = len(error.statement or "") + largest
        error = error.__context__
    return size


def _escaped(value: Any) -> int:
    if not isinstance(value, str):
        return 0
    return len(value.encode()) + sum(value.count(character) for character in _ESCAPED)
