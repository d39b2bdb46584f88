"""Conversations in SQLite, PostgreSQL and MariaDB."""

import asyncio
import json
import socket
import sqlite3
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest
import sqlalchemy as sa
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import OperationalError

from chatclient.chat.messages import UserMessage
from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError
from chatclient.memory import ChatMemoryRepository, MessageWindowChatMemory
from chatclient.memory.redis import RedisChatMemoryRepository
from chatclient.memory.sql import (
    database as sql_database,
    engine as sql_engine,
)
from chatclient.memory.sql.database import Database, Schema
from chatclient.memory.sql.repository import SqlChatMemoryRepository
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING
from chatclient.testing.contract_parts import turn
from chatclient.testing.repository_contract import ChatMemoryRepositoryContract
from tests.support.databases import SQL_KINDS, sql_place

MARIADB_WAIT = "SET SESSION innodb_lock_wait_timeout = 1"


class TestSql(ChatMemoryRepositoryContract):
    """The repository contract on real databases."""

    @pytest.fixture(params=SQL_KINDS)
    def repository(
        self, request: pytest.FixtureRequest, tmp_path: Path
    ) -> Iterator[ChatMemoryRepository]:
        with (
            sql_place(request.param, tmp_path) as (url, prefix),
            SqlChatMemoryRepository(url, table_prefix=prefix) as repository,
        ):
            yield repository


# --- databases and engines ------------------------------------------------------------------


def add(repository: ChatMemoryRepository, *numbers: int, name: str = "c") -> None:
    for number in numbers:
        drive(repository.append(name, turn(number), BLOCKING))


@pytest.fixture(params=SQL_KINDS)
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, str]]:
    with sql_place(request.param, tmp_path) as (url, prefix):
        yield url, prefix


@pytest.mark.feature("memory-jdbc-chat-memory-repository")
def test_conversations_are_persistent(place: tuple[str, str]) -> None:
    """Another repository finds them."""
    url, prefix = place
    for number in range(2):
        with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
            add(repository, number)

    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        assert repository.find_by_conversation_id("c") == [*turn(0), *turn(1)]


@pytest.mark.feature("memory-jdbc-chat-memory-repository")
def test_custom_engine(place: tuple[str, str]) -> None:
    """A given engine is used and not disposed."""
    url, prefix = place
    engine = sa.create_engine(url)
    with SqlChatMemoryRepository(engine, table_prefix=prefix) as repository:
        add(repository, 1)
        pool = engine.pool
    assert engine.pool is pool
    with engine.connect() as connection:
        names = sa.inspect(connection).get_table_names()

    assert {f"{prefix}conversation", f"{prefix}message", f"{prefix}addition"} <= set(names)
    engine.dispose()


def test_close_and_reopen(place: tuple[str, str]) -> None:
    """A closed engine is opened again when needed."""
    url, prefix = place
    repository = SqlChatMemoryRepository(url, table_prefix=prefix)
    add(repository, 1)
    before = repository._database.engine.pool
    repository.close()

    assert repository._database.engine.pool is not before
    assert repository.find_by_conversation_id("c") == list(turn(1))
    repository.close()


def test_concurrent_creation(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The loser of the race appends to the conversation."""
    url, prefix = place
    with (
        SqlChatMemoryRepository(url, table_prefix=prefix) as first,
        SqlChatMemoryRepository(url, table_prefix=prefix) as second,
    ):
        add(first, 0, name="other")
        store: Any = second._rows
        advance = store.advance

        def late(connection: Any, conversation_id: str, more: int) -> Any:
            monkeypatch.undo()
            found = advance(connection, conversation_id, more)
            connection.rollback()
            add(first, 1)
            return found

        monkeypatch.setattr(store, "advance", late)
        add(second, 2)

        assert first.find_by_conversation_id("c") == [*turn(1), *turn(2)]


@pytest.mark.parametrize("kind", ["postgresql", "mariadb", "redis"])
def test_silent_server(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not answer fails within the time-out."""
    monkeypatch.setitem(sql_engine._TIMEOUTS, "psycopg", {"connect_timeout": 2})
    monkeypatch.setitem(sql_engine._TIMEOUTS, "pymysql", {"read_timeout": 1})
    monkeypatch.setattr(sql_database, "_PATIENCE", 0.1)
    monkeypatch.setattr("chatclient.memory.redis._TIMEOUTS", {"socket_timeout": 0.1})
    with socket.create_server(("127.0.0.1", 0)) as silent:
        place = f"{kind}://127.0.0.1:{silent.getsockname()[1]}"
        repository: ChatMemoryRepository
        if kind == "redis":
            repository = RedisChatMemoryRepository(f"{place}/0")
        else:
            repository = SqlChatMemoryRepository(f"{place}/test")
        with repository, pytest.raises(ChatMemoryUnavailableError):
            repository.find_conversation_ids()


def test_timeouts_in_the_url() -> None:
    """Time-outs and session options of the URL override the defaults."""
    given: list[dict[str, Any]] = []

    def connect(dialect: Any, record: Any, args: Any, parameters: dict[str, Any]) -> None:
        given.append(parameters)
        raise OSError

    for query in ("?connect_timeout=3", "?init_command=SELECT%201"):
        engine = sql_engine.open_engine(f"mysql://root@127.0.0.1/test{query}")
        sqlalchemy_event.listen(engine, "do_connect", connect)
        with pytest.raises(OSError):  # noqa: PT011
            engine.connect()

    assert [each.get("connect_timeout") for each in given] == [3, 10]
    assert [each["read_timeout"] for each in given] == [20, 20]


def test_lock_timeout(place: tuple[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for a locked conversation ends with an error."""
    url, prefix = place
    waits = {"postgresql": "SET lock_timeout = '1s'", "mariadb": MARIADB_WAIT}
    for name, statement in waits.items():
        monkeypatch.setitem(sql_engine._LOCK_WAITS, name, statement)
    monkeypatch.setattr(sql_engine, "BUSY_SECONDS", 0.1)
    engine = sa.create_engine(url)
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        add(repository, 1)
        with engine.begin() as other:
            other.exec_driver_sql(f"UPDATE {prefix}conversation SET length = length")
            with pytest.raises(ChatMemoryUnavailableError):
                add(repository, 2)
        add(repository, 2)
    engine.dispose()


def test_autocommit_engine(place: tuple[str, str]) -> None:
    """An autocommit engine is used with transactions."""
    url, prefix = place
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    repository = SqlChatMemoryRepository(engine, table_prefix=prefix)
    for _ in range(2):
        drive(repository.append("c", turn(1), BLOCKING, key="k"))
    found = drive(repository.load("c", BLOCKING))

    assert (found.messages, found.complete) == (turn(1), True)
    engine.dispose()


def test_deleted_rows(tmp_path: Path) -> None:
    """A window and pruning end where rows are missing."""
    path = tmp_path / "memory.db"
    with SqlChatMemoryRepository(f"sqlite:///{path}") as repository:
        memory = MessageWindowChatMemory(repository, prune=True)
        add(repository, 1, 2)
        with sqlite3.connect(path) as file:
            file.execute("DELETE FROM chatclient_message WHERE position < 2")
        file.close()

        assert memory.get("c")[-1] == turn(2)[-1]
        memory.add("c", turn(3))
        assert memory.get("c")[-1] == turn(3)[-1]


def number_of(connection: sa.Connection) -> int:
    """Return the server's id of *connection*."""
    function = "pg_backend_pid()" if connection.dialect.name == "postgresql" else "connection_id()"
    number: int = connection.exec_driver_sql(f"SELECT {function}").scalar_one()
    return number


def cut(url: str, number: int) -> None:
    """Have the server end a connection."""
    admin = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    kill = "SELECT pg_terminate_backend({})" if url.startswith("postgresql") else "KILL {}"
    with admin.connect() as connection:
        connection.exec_driver_sql(kill.format(number))
    admin.dispose()


def test_lost_connection_is_replaced(place: tuple[str, str]) -> None:
    """A restarted server fails no request."""
    url, prefix = place
    if url.startswith("sqlite"):
        pytest.skip("nobody cuts a connection to a file")
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        add(repository, 0)
        with repository._database.engine.connect() as connection:
            number = number_of(connection)
        cut(url, number)
        add(repository, 1)

        assert repository.find_by_conversation_id("c") == [*turn(0), *turn(1)]


def test_lost_connection_during_table_creation(place: tuple[str, str]) -> None:
    """The next connection continues."""
    url, prefix = place
    if url.startswith("sqlite"):
        pytest.skip("nobody cuts a connection to a file")
    connections: list[sa.Connection] = []

    def step(connection: sa.Connection) -> None:
        connections.append(connection)
        if len(connections) == 1:
            cut(url, number_of(connection))
        connection.exec_driver_sql("SELECT 1")

    database = Database(url, Schema("things", [step], prefix=prefix))
    rows = database.read(sa.select(sa.literal(1)), {})
    database.close()

    assert len(connections) == 2
    assert len(rows) == 1


@pytest.fixture
def huge(tmp_path: Path) -> Iterator[tuple[Database, UserMessage, ChatMemoryRepository]]:
    """Return a database, a message above its size limit, and the repository."""
    with (
        sql_place("mariadb", tmp_path) as (url, prefix),
        SqlChatMemoryRepository(url, table_prefix=prefix) as repository,
    ):
        add(repository, 1)
        database = repository._database
        with database.engine.connect() as connection:
            most: int = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
        # Each quote takes two bytes in JSON and one or two more in the statement.
        yield database, UserMessage('"' * (most // 3)), repository


@pytest.mark.feature("memory-message-too-large-server")
def test_too_large_message(
    huge: tuple[Database, UserMessage, ChatMemoryRepository], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The closed connection is reported as a too large message, without retries."""
    database, message, repository = huge
    tried: list[object] = []
    transaction: Any = database._transaction

    def count(work: object) -> Any:
        tried.append(work)
        return transaction(work)

    monkeypatch.setattr(database, "_transaction", count)
    # Whether the driver fails while writing or later depends on the remaining size.
    for large in (
        message,
        UserMessage(3 * message.text),
        UserMessage("x" * (3 * len(message.text) + 9)),
    ):
        with pytest.raises(ChatMemoryError, match="max_allowed_packet is") as caught:
            repository.save_all("c", [UserMessage("hi"), large])
        assert not isinstance(caught.value, ChatMemoryUnavailableError)

    assert len(tried) == 3
    assert repository.find_by_conversation_id("c") == list(turn(1))


@pytest.mark.feature("memory-message-too-large-server")
@pytest.mark.parametrize("answer", [None, 2**40])
def test_large_message_in_an_outage(
    huge: tuple[Database, UserMessage, ChatMemoryRepository],
    monkeypatch: pytest.MonkeyPatch,
    answer: int | None,
) -> None:
    """An outage is not blamed on the size of the message."""
    _database, message, repository = huge

    def ask(_engine: object) -> int:
        if answer is None:
            raise OperationalError("SELECT", {}, OSError("down"))
        return answer

    monkeypatch.setattr(sql_database, "_ATTEMPTS", 1)
    monkeypatch.setattr(sql_engine, "_largest_packet", ask)
    with pytest.raises(ChatMemoryUnavailableError):
        repository.save_all("c", [message])


# --- the schema -----------------------------------------------------------------------------


@pytest.mark.feature("memory-initialize-schema")
def test_newer_schema(place: tuple[str, str]) -> None:
    """A schema of a newer release raises."""
    url, prefix = place
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        add(repository, 1)
    set_version(url, prefix, 99)

    with (
        SqlChatMemoryRepository(url, table_prefix=prefix) as repository,
        pytest.raises(ChatMemoryError, match="use the newer release"),
    ):
        repository.find_by_conversation_id("c")


@pytest.mark.feature("memory-initialize-schema")
def test_missing_schema(place: tuple[str, str]) -> None:
    """With the setting no tables are created."""
    url, prefix = place
    with (
        SqlChatMemoryRepository(url, table_prefix=prefix, create_schema=False) as repository,
        pytest.raises(UsageError, match="create_schema=True"),
    ):
        repository.find_by_conversation_id("c")
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        add(repository, 1)
    with SqlChatMemoryRepository(url, table_prefix=prefix, create_schema=False) as repository:
        assert repository.find_by_conversation_id("c") == list(turn(1))


@pytest.mark.feature("memory-initialize-schema")
def test_schema_migration(place: tuple[str, str]) -> None:
    """Missing migrations are applied once in order."""
    url, prefix = place
    table = sa.Table(f"{prefix}thing", sa.MetaData(), sa.Column("a", sa.Integer))
    took: list[int] = []

    def first(connection: sa.Connection) -> None:
        took.append(1)
        table.create(connection)

    def second(connection: sa.Connection) -> None:
        took.append(2)
        connection.execute(sa.insert(table).values(a=2))

    for steps in ([first], [first, second], [first, second]):
        database = Database(url, Schema("things", steps, prefix=prefix))
        rows = database.read(sa.select(table.c.a), {})
        database.close()

    assert took == [1, 2]
    assert [row.a for row in rows] == [2]


def test_interrupted_transaction_releases_its_lock(tmp_path: Path) -> None:
    """Other connections can write although the traceback exists."""
    url = f"sqlite:///{tmp_path / 'things.db'}"
    database = Database(url, Schema("things", [lambda connection: None], prefix="my_"))

    def interrupt(*_: Any) -> None:
        raise KeyboardInterrupt

    def work(connection: sa.Connection) -> Any:
        connection.exec_driver_sql("CREATE TABLE thing (a INTEGER)")
        connection.connection.dbapi_connection.row_factory = interrupt  # type: ignore[union-attr]
        return connection.exec_driver_sql("SELECT 1 UNION SELECT 2").all()

    with pytest.raises(KeyboardInterrupt) as caught:
        database.write(work)
    other = sqlite3.connect(tmp_path / "things.db", timeout=0.05)
    other.execute("BEGIN IMMEDIATE")
    other.close()
    database.close()

    assert caught.value.__traceback__ is not None


def test_messages_of_earlier_versions(place: tuple[str, str]) -> None:
    """Messages without a time are read, and deleted with a later turn of their conversation."""
    url, prefix = place
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        for name in ("old", "mixed"):
            repository.save_all(name, turn(1))
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            rows = connection.exec_driver_sql(f"SELECT message FROM {prefix}message").scalars()
            for text in rows.all():
                message = json.loads(text)
                before = {"before": text, "after": json.dumps({**message, "stored_at": None})}
                change = f"UPDATE {prefix}message SET message = :after WHERE message = :before"
                connection.execute(sa.text(change), before)
        engine.dispose()

        assert repository.find_by_conversation_id("old")[0].stored_at is None
        assert repository.delete_older_than(datetime.now(UTC)) == 0
        drive(repository.append("mixed", turn(2), BLOCKING))
        assert repository.delete_older_than(datetime.now(UTC)) == 4
        assert repository.find_conversation_ids() == ["old"]


def set_version(url: str, prefix: str, version: int) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {prefix}schema SET version = {version}")
    engine.dispose()


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.feature("memory-store-down-chat-memory")
@pytest.mark.parametrize(
    "url", ["postgresql://ann:hush@127.0.0.1:9/db", "mysql://ann:hush@127.0.0.1:9/db"]
)
def test_unreachable_database(url: str) -> None:
    """The error names the database and keeps its cause, without secrets."""
    repository = SqlChatMemoryRepository(url)
    with pytest.raises(ChatMemoryUnavailableError, match=r"at 127\.0\.0\.1:9") as caught:
        add(repository, 1)

    shown = "".join(traceback.format_exception(caught.value))
    assert caught.value.__cause__ is not None
    assert "hush" not in shown
    assert "question 1" not in shown


@pytest.mark.parametrize(
    "url",
    ["hush", "mysql://ann:hu@sh:port/db", "nosuch://ann:hush@host/db", "sqlite+aiosqlite:///hush"],
)
def test_invalid_urls(url: str) -> None:
    """The error does not show the URL."""
    with pytest.raises(UsageError) as caught:
        SqlChatMemoryRepository(url)

    assert "hush" not in "".join(traceback.format_exception(caught.value)[-1:])


def test_async_driver() -> None:
    """The error asks for another URL, not for an installation."""
    with pytest.raises(UsageError, match=r"sqlite\+aiosqlite is an asynchronous driver"):
        SqlChatMemoryRepository("sqlite+aiosqlite:///chat.db")


def test_invalid_target() -> None:
    """A value that is neither URL nor engine raises."""
    target: Any = 7
    with pytest.raises(UsageError, match="not the URL of a database"):
        SqlChatMemoryRepository(target)


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("psycopg", "postgres://host/db", "postgres"),
        ("pymysql", "mariadb://host/db", "mysql"),
    ],
)
def test_missing_extra(module: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(UsageError, match=rf"chatclient\[{extra}\]"):
        SqlChatMemoryRepository(url)


def test_database_error(tmp_path: Path) -> None:
    """The database error is the cause; stored data is not shown."""
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    with SqlChatMemoryRepository(url) as repository:
        add(repository, 1)
        engine = repository._database.engine
        with engine.begin() as connection:
            connection.exec_driver_sql(
                "CREATE TRIGGER no BEFORE INSERT ON chatclient_message "
                "BEGIN SELECT RAISE(ABORT, 'never'); END"
            )
        with pytest.raises(ChatMemoryError, match="refused") as caught:
            add(repository, 2)

        assert str(caught.value.__cause__) == "never"
        assert "question 2" not in "".join(traceback.format_exception(caught.value))
        assert repository.find_by_conversation_id("c") == list(turn(1))


def test_read_only_file(tmp_path: Path) -> None:
    """A read-only file raises without waiting."""
    place = tmp_path / "memory.db"
    with closing(sqlite3.connect(place)) as connection:
        connection.execute("CREATE TABLE t (x)")
    started = time.monotonic()
    with (
        SqlChatMemoryRepository(f"sqlite:///file:{place}?mode=ro&uri=true") as repository,
        pytest.raises(ChatMemoryUnavailableError) as caught,
    ):
        add(repository, 1)

    assert "readonly" in str(caught.value.__cause__)
    assert time.monotonic() - started < 10


def test_locked_database(tmp_path: Path) -> None:
    """Waiting for a locked file ends."""
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    with SqlChatMemoryRepository(url) as repository:
        add(repository, 1)
    engine = sa.create_engine(url, connect_args={"timeout": 0.05})
    holder = sqlite3.connect(tmp_path / "memory.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    with SqlChatMemoryRepository(engine) as repository:
        with pytest.raises(ChatMemoryUnavailableError):
            add(repository, 2)
        assert repository.find_by_conversation_id("c") == list(turn(1))
    holder.close()
    engine.dispose()


def test_unreadable_data(tmp_path: Path) -> None:
    """Invalid stored data raises."""
    with SqlChatMemoryRepository(f"sqlite:///{tmp_path / 'memory.db'}") as repository:
        add(repository, 1)
        with repository._database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE chatclient_message SET message = '{'")
        with pytest.raises(ChatMemoryError, match="cannot be read") as caught:
            repository.find_by_conversation_id("c")

    assert caught.value.conversation_id == "c"


ROUND_ABOUT: dict[str, Any] = {"kept": 1}
ROUND_ABOUT["again"] = ROUND_ABOUT


@pytest.mark.feature("memory-no-json-form-type")
@pytest.mark.parametrize(
    ("metadata", "read"),
    [
        ({"ok": 1, "user": object()}, {"ok": 1}),
        ({"a": [object(), b"\xff"]}, {"a": [None, b"\xff"]}),
        ({"at": UUID(int=1), "$type": "x"}, {"at": UUID(int=1), "$type": "x"}),
        ({"$type": "uuid", "value": "x"}, {"$type": "uuid", "value": "x"}),
    ],
)
def test_values_of_other_types(
    place: tuple[str, str], metadata: dict[str, Any], read: dict[str, Any]
) -> None:
    """They are read as they were; what has no JSON form is left out."""
    url, prefix = place
    message = UserMessage("hi", metadata=metadata)
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        for keep in (MessageWindowChatMemory(repository).add, repository.save_all):
            keep("c", [message])
            [found] = repository.find_by_conversation_id("c")
            assert found.metadata == read


def test_circular_value() -> None:
    """A value that contains itself is stored down to some level."""
    with SqlChatMemoryRepository("sqlite://") as repository:
        repository.save_all("c", [UserMessage("hi", metadata=ROUND_ABOUT)])
        [found] = repository.find_by_conversation_id("c")

    assert found.metadata["again"]["again"]["kept"] == 1


# --- SQLite in memory -----------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_in_memory_database_is_shared(url: str) -> None:
    """All threads use the same in-memory database."""
    with SqlChatMemoryRepository(url) as repository:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: add(repository, number), range(8)))

        assert len(asyncio.run(repository.afind_by_conversation_id("c"))) == 16


@pytest.mark.feature("memory-jdbc-chat-memory-repository")
@pytest.mark.parametrize("pool", [None, sa.NullPool])
def test_engine_with_a_database_per_thread(pool: Any) -> None:
    """It is rejected with an alternative."""
    engine = sa.create_engine("sqlite://", poolclass=pool)
    with (
        SqlChatMemoryRepository(engine) as repository,
        pytest.raises(UsageError, match="StaticPool"),
    ):
        add(repository, 1)
    engine.dispose()


def test_engine_with_custom_creator(tmp_path: Path) -> None:
    """An engine whose URL does not name its file is accepted."""
    path = tmp_path / "c.db"
    engine = sa.create_engine(
        "sqlite://", creator=lambda: sqlite3.connect(path, check_same_thread=False)
    )
    with SqlChatMemoryRepository(engine) as repository:
        add(repository, 1)
        assert asyncio.run(repository.afind_by_conversation_id("c")) == list(turn(1))
    engine.dispose()


@pytest.mark.parametrize(
    ("url", "options"),
    [
        ("sqlite://", {"poolclass": sa.StaticPool, "connect_args": {"check_same_thread": False}}),
        (
            "sqlite:///file:shared?mode=memory&cache=shared&uri=true",
            {
                "poolclass": sa.SingletonThreadPool,
                "connect_args": {"check_same_thread": False},  # closed by another thread
            },
        ),
    ],
)
def test_shared_in_memory_engines(url: str, options: dict[str, Any]) -> None:
    """A static pool and a shared cache work, also concurrently."""
    engine = sa.create_engine(url, **options)
    with (
        SqlChatMemoryRepository(engine) as one,
        SqlChatMemoryRepository(engine) as other,
        ThreadPoolExecutor(8) as pool,
    ):
        list(pool.map(lambda number: add((one, other)[number % 2], number), range(80)))
        found = asyncio.run(one.afind_by_conversation_id("c"))

    numbers = [message.text.split()[1] for message in found[::2]]
    assert sorted(map(int, numbers)) == list(range(80))
    assert found == [message for number in numbers for message in turn(number)]
    engine.dispose()


def test_single_connection_after_replacement(
    tmp_path: Path,
) -> None:
    """Threads still use a replaced single connection in order, as around forks."""
    engine = sa.create_engine(
        f"sqlite:///{tmp_path / 'c.db'}",
        poolclass=sa.StaticPool,
        connect_args={"check_same_thread": False},
    )
    with SqlChatMemoryRepository(engine) as one:
        add(one, 0)
        engine.dispose()
        with SqlChatMemoryRepository(engine) as other, ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: add((one, other)[number % 2], number), range(1, 80)))

        assert len(one.find_by_conversation_id("c")) == 160
    engine.dispose()


@pytest.mark.feature("memory-jdbc-chat-memory-repository")
def test_window_reads_its_rows_only(tmp_path: Path) -> None:
    """The database reads only the rows of the window."""
    with SqlChatMemoryRepository(f"sqlite:///{tmp_path / 'memory.db'}") as repository:
        engine = repository._database.engine
        steps: list[int] = []
        for number in (5, 500):
            drive(repository.replace("c", [m for n in range(number) for m in turn(n)], BLOCKING))
            with engine.connect() as connection:
                driver: Any = connection.connection.driver_connection
                count = [0]

                def tick(count: list[int] = count) -> int:
                    count[0] += 1
                    return 0

                driver.set_progress_handler(tick, 1)
            drive(repository.load("c", BLOCKING, last=6))
            with engine.connect() as connection:
                driver = connection.connection.driver_connection
                driver.set_progress_handler(None, 0)
            steps.append(count[0])

        assert steps[0] > 0
        assert steps[1] <= steps[0] * 1.2
