"""Sessions in memory, SQLite, PostgreSQL and MariaDB."""

from collections.abc import Iterator
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import pytest
import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from chatclient.chat.messages import UserMessage
from chatclient.errors import ChatMemoryError
from chatclient.memory import (
    InMemorySessionRepository,
    SessionRepository,
    SessionService,
    SqlSessionRepository,
)
from chatclient.memory.sessions import in_memory
from chatclient.memory.sessions.sql import _event_row, _session_row, _Tables
from chatclient.memory.sql.database import Schema
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing.session_contract import (
    SessionRepositoryContract,
    SessionStore,
    a_session,
    an_event,
)
from tests.support.databases import SQL_KINDS, sql_place
from tests.support.interrupts import interrupt_at


@pytest.mark.feature("session-repository-contract")
class TestInMemory(SessionRepositoryContract):
    """The contract, in memory."""

    @pytest.fixture
    def repository(self) -> Iterator[SessionRepository]:
        with InMemorySessionRepository() as repository:
            yield repository


@pytest.mark.feature("session-repository-contract")
@pytest.mark.feature("session-jdbc-tables")
@pytest.mark.feature("memory-ids-36-characters")
class TestSql(SessionRepositoryContract):
    """The contract, on each database."""

    @pytest.fixture(params=SQL_KINDS)
    def repository(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> Iterator[SessionRepository]:
        with (
            sql_place(request.param, tmp_path) as (url, prefix),
            SqlSessionRepository(url, table_prefix=prefix) as repository,
        ):
            yield repository


def test_save_without_change(tmp_path: Path) -> None:
    """Saving equal data succeeds with every driver."""
    session = a_session("s", metadata={"agent": "a"})
    with sql_place("mariadb", tmp_path) as (url, prefix):
        engine = sa.create_engine(url, connect_args={"client_flag": 0})
        with SqlSessionRepository(engine, table_prefix=prefix) as repository:
            for _ in range(2):
                drive(repository.save(session, BLOCKING))

            assert drive(repository.find("s", BLOCKING)) == session
        engine.dispose()


def create_old_tables(connection: sa.Connection, prefix: str) -> None:
    """Create the tables of version 1, with a session of two turns, the first archived."""
    tables = _Tables.named(prefix)
    Schema("sessions", [lambda _: None], prefix=prefix).prepare(connection.engine)
    for table in (tables.sessions, tables.events):
        connection.execute(CreateTable(table))
    connection.exec_driver_sql(f"ALTER TABLE {prefix}session_event DROP COLUMN type")
    session = a_session("old", metadata={"agent": "support", "n": 1})
    row = {**_session_row(session), "version": 3, "length": 5}
    connection.execute(sa.insert(tables.sessions), row)
    number = connection.scalar(sa.select(tables.sessions.c.id))
    other = {**_session_row(a_session("other")), "version": 0, "length": 0}
    connection.execute(sa.insert(tables.sessions), other)
    for place, id in enumerate("abcds"):
        event = an_event("old", id, id, synthetic=id == "s", archived=id in "ab")
        stored = {**_event_row(event), "session": number, "number": place}
        del stored["type"]
        connection.execute(sa.insert(tables.events), stored)


@pytest.mark.feature("session-jdbc-tables")
@pytest.mark.parametrize("kind", SQL_KINDS)
def test_upgrade(kind: str, tmp_path: Path) -> None:
    """Tables of the first version get types, indexed metadata and a compaction; repeatably."""
    with sql_place(kind, tmp_path) as (url, prefix):
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            create_old_tables(connection, prefix)
        for _ in range(2):  # again, as after a crash before the version was stored
            with engine.begin() as connection:
                connection.exec_driver_sql(f"UPDATE {prefix}schema SET version = 1")
            with SqlSessionRepository(engine, table_prefix=prefix) as repository:
                store = SessionStore(repository, blocking=True)
                service = SessionService(repository, time_to_live=None)

                assert store.find_by_metadata("agent", "support") == ["old"]
                assert store.ids("old") == [*"abcds"]
                assert store.read("other").version == 0
                assert store.read("old").version == len(store.ids("old", types="*")) == 6
                assert [m.text for m in service.messages("old")] == [*"scd"]
                assert [m.text for m in service.messages("old", version=5)] == [*"sabcd"]
        engine.dispose()


@pytest.mark.parametrize("kind", SQL_KINDS)
@pytest.mark.parametrize("there", ["one table", "both tables", "one table with an index"])
def test_partially_created_tables(kind: str, there: str, tmp_path: Path) -> None:
    """Missing tables are created, as MariaDB commits each separately."""
    with sql_place(kind, tmp_path) as (url, prefix):
        tables = _Tables.named(prefix)
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.execute(CreateTable(tables.sessions))
            if there == "both tables":
                connection.execute(CreateTable(tables.events))
            elif there == "one table with an index":
                next(iter(tables.sessions.indexes)).create(connection)
        with SqlSessionRepository(engine, table_prefix=prefix) as repository:
            assert drive(repository.create(a_session("s"), BLOCKING)) is True
        indexes = {each["name"] for each in sa.inspect(engine).get_indexes(tables.sessions.name)}
        engine.dispose()

        assert {index.name for index in tables.sessions.indexes} <= indexes


@pytest.mark.parametrize("operation", ["append", "compact"])
def test_interrupt_is_atomic(operation: str) -> None:
    """An interrupt at any line leaves the state before or after; repeating gives the same."""

    def change(store: SessionStore) -> bool:
        if operation == "append":
            return store.append("s", an_event("s", "2"), an_event("s", "3"))
        return store.compact("s", "1", an_event("s", "summary", synthetic=True))

    def store_with_event() -> SessionStore:
        store = SessionStore(InMemorySessionRepository(), blocking=True)
        store.create(a_session("s"))
        store.append("s", an_event("s", "1"))
        return store

    completed = store_with_event()
    before = completed.read("s")
    change(completed)
    after, seen = completed.read("s"), []
    line, interrupted = 0, True
    while interrupted:
        line += 1
        store = store_with_event()
        interrupted = interrupt_at(line, partial(change, store), in_memory)
        found = store.read("s")
        assert found in (before, after)
        seen.append(found)
        assert change(store) is (found == before)
        assert store.read("s") == after

    assert before in seen
    assert seen[-1] == after


@pytest.mark.feature("memory-no-json-form-type")
def test_unserialisable_value() -> None:
    """The error names session, event or message and the path."""
    odd = {"user": object()}
    with SqlSessionRepository("sqlite://") as repository:
        with pytest.raises(ChatMemoryError, match="a session cannot be stored: user is of type"):
            drive(repository.create(a_session("s", metadata=odd), BLOCKING))
        drive(repository.create(a_session("s"), BLOCKING))
        with pytest.raises(ChatMemoryError, match="of an event cannot be stored: user") as caught:
            drive(repository.append("s", [an_event("s", "1", metadata=odd)], BLOCKING))
        assert caught.value.conversation_id == "s"
        moment = datetime(2026, 1, 2, tzinfo=UTC)
        event = an_event("s", "1", UserMessage("hi", metadata={**odd, "at": moment}))
        drive(repository.append("s", [event], BLOCKING))
        log = drive(repository.read("s", BLOCKING))
        assert log is not None
        [stored] = log.events
        assert isinstance(stored.content, UserMessage)
        assert stored.content.metadata == {"at": moment}
