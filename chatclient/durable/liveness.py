"""`Liveness`: which processes run turns, and which have ended without finishing theirs."""

import threading
import time
from collections.abc import Callable

import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

from chatclient._internal.logging import get_logger
from chatclient._internal.sqlite import write_ahead

log = get_logger(__name__)

_TABLE = sa.Table(
    "chatclient_executors",
    sa.MetaData(),
    sa.Column("id", sa.String(64), primary_key=True),
    sa.Column("version", sa.String(255), nullable=False),
    sa.Column("seen_at", sa.Double, nullable=False),  # seconds since 1970, on the database's clock
)
_NOW = {
    "postgresql": sa.text("extract(epoch from clock_timestamp())"),
    "sqlite": sa.text("(julianday('now') - 2440587.5) * 86400.0"),
}
_BEATS = 4  # beats that may be missed
_TAKE_OVER_AGAIN = 60.0  # seconds
_FORGET = 86_400.0  # seconds


class Liveness:
    """Tells other processes that this one is alive, and finds those that are not.

    DBOS continues the turns of a process when a process with the same id starts. This makes others
    continue them as well. A process that is only slow loses its turns, too, and finds out at its
    next step; nothing is executed twice because of that.

    Args:
        url: The database.
        executor: The id of this process.
        version: The version of the application.
        takeover_seconds: How long a process must have been silent.
        recover: Called with the id of a process that has ended.

    Attributes:
        each_beat: Called after each beat.
    """

    each_beat: Callable[[], None]

    def __init__(
        self,
        url: str,
        executor: str,
        version: str,
        takeover_seconds: float,
        recover: Callable[[str], None],
    ) -> None:
        waits = {"timeout": takeover_seconds} if url.startswith("sqlite") else {}  # for locks
        self._engine = sa.create_engine(
            url, pool_size=1, max_overflow=1, pool_pre_ping=True, connect_args=waits
        )
        self._executor, self._version = executor, version
        self._takeover = takeover_seconds
        self._recover = recover
        self.each_beat = lambda: None
        self._taken_over: dict[str, float] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="chatclient-liveness", daemon=True)

    def start(self) -> None:
        """Begin; the first beat is written before this returns."""
        if self._engine.dialect.name == "sqlite":  # readers and the writer then do not wait
            with self._engine.connect() as connection:
                write_ahead(connection.connection.dbapi_connection)
        try:
            _TABLE.create(self._engine, checkfirst=True)
        except SQLAlchemyError:  # another process has created it meanwhile, or this fails again
            _TABLE.create(self._engine, checkfirst=True)
        self._beat()
        self._thread.start()

    def stop(self) -> None:
        """End; other processes may continue the turns of this one immediately."""
        self._stopping.set()
        self._thread.join()
        with self._engine.begin() as connection:
            connection.execute(
                sa.update(_TABLE)
                .where(_TABLE.c.id == self._executor)
                .values(seen_at=_TABLE.c.seen_at - self._takeover)
            )
        self._engine.dispose()

    def _run(self) -> None:
        while not self._stopping.wait(self._takeover / _BEATS):
            try:
                self._beat()
                for executor in self._silent():
                    self._take_over(executor)
                self.each_beat()
            except SQLAlchemyError as error:  # the database restarts, for example
                log.warning("liveness not updated", error=repr(error))

    def _take_over(self, executor: str) -> None:
        # Again after some time: a process may run for a moment after it was silent.
        now = time.monotonic()
        if now > self._taken_over.get(executor, -_TAKE_OVER_AGAIN) + _TAKE_OVER_AGAIN:
            self._recover(executor)
            self._taken_over[executor] = now

    @property
    def _now(self) -> sa.TextClause:
        return _NOW[self._engine.dialect.name]

    def _beat(self) -> None:
        with self._engine.begin() as connection:
            now = connection.execute(sa.select(self._now)).scalar_one()
            mine = _TABLE.c.id == self._executor
            updated = connection.execute(sa.update(_TABLE).where(mine).values(seen_at=now))
            if not updated.rowcount:
                row = {"id": self._executor, "version": self._version, "seen_at": now}
                connection.execute(sa.insert(_TABLE).values(row))

    def _silent(self) -> list[str]:
        """Return the ids of silent processes of this version, and remove old ones."""
        with self._engine.begin() as connection:
            now = float(connection.execute(sa.select(self._now)).scalar_one())
            same, seen = _TABLE.c.version == self._version, _TABLE.c.seen_at
            forgotten = seen < now - _FORGET
            connection.execute(sa.delete(_TABLE).where(same, forgotten))
            query = sa.select(_TABLE.c.id).where(same, seen < now - self._takeover)
            return list(connection.execute(query).scalars())

    def live_versions(self) -> set[str]:
        """Return the versions of all processes that are alive."""
        with self._engine.begin() as connection:
            now = float(connection.execute(sa.select(self._now)).scalar_one())
            alive = _TABLE.c.seen_at >= now - self._takeover
            return set(connection.execute(sa.select(_TABLE.c.version).where(alive)).scalars())
