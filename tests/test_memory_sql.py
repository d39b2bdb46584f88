"""Conversations in SQLite, PostgreSQL and MariaDB."""

import asyncio
import socket
import sqlite3
import sys
import time
import traceback
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from databases import SQL_KINDS, sql_place
from sqlalchemy import event as sqlalchemy_event
from sqlalchemy.exc import OperationalError

from chatclient.driving import drive
from chatclient.errors import ChatMemoryError, ChatMemoryUnavailableError, UsageError
from chatclient.memory import (
    ChatMemoryRepository,
    MessageWindowChatMemory,
    sql_database,
    sql_engine,
    sql_failures,
)
from chatclient.memory.redis import RedisChatMemoryRepository
from chatclient.memory.sql import SqlChatMemoryRepository
from chatclient.memory.sql_database import Database
from chatclient.memory.sql_schema import Schema
from chatclient.messages import UserMessage
from chatclient.runtime import BLOCKING
from chatclient.testing.memory import ChatMemoryRepositoryContract, turn

MARIADB_WAIT = "SET SESSION innodb_lock_wait_timeout = 1"


class TestSql(ChatMemoryRepositoryContract):
    """The contract, kept by real databases."""

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


def test_conversations_outlive_the_repository(place: tuple[str, str]) -> None:
    """Another one, in another process as well, finds them."""
    url, prefix = place
    for number in range(2):
        with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
            add(repository, number)

    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        assert repository.find_by_conversation_id("c") == [*turn(0), *turn(1)]


def test_an_engine_stays_its_owners(place: tuple[str, str]) -> None:
    """It is used as it is, and not closed."""
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


def test_what_was_opened_is_closed(place: tuple[str, str]) -> None:
    """And opened again when it is needed again."""
    url, prefix = place
    repository = SqlChatMemoryRepository(url, table_prefix=prefix)
    add(repository, 1)
    before = repository._conversations._database.engine.pool
    repository.close()

    assert repository._conversations._database.engine.pool is not before
    assert repository.find_by_conversation_id("c") == list(turn(1))
    repository.close()


def test_a_conversation_that_appears_meanwhile(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever loses the race to begin it adds to it."""
    url, prefix = place
    with (
        SqlChatMemoryRepository(url, table_prefix=prefix) as first,
        SqlChatMemoryRepository(url, table_prefix=prefix) as second,
    ):
        add(first, 0, name="other")
        store: Any = second._conversations._rows
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
def test_a_server_that_says_nothing_is_not_waited_for(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The request fails in its time, as with a server that is not there."""
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


def test_the_url_says_how_long_is_waited() -> None:
    """What it says of time limits and sessions counts; the rest is ours."""
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


def test_a_lock_of_somebody_elses_is_not_waited_for_in_vain(
    place: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who holds a conversation for too long makes others fail, not wait for ever."""
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


def test_an_engine_that_commits_by_itself_gets_transactions(place: tuple[str, str]) -> None:
    """An addition that is repeated changes nothing, and a conversation knows its length."""
    url, prefix = place
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
    repository = SqlChatMemoryRepository(engine, table_prefix=prefix)
    for _ in range(2):
        drive(repository.append("c", turn(1), BLOCKING, key="k"))
    found = drive(repository.load("c", BLOCKING))

    assert (found.messages, found.complete) == (turn(1), True)
    engine.dispose()


def test_a_window_ends_where_messages_were_deleted_by_hand(tmp_path: Path) -> None:
    """What is there is shown, and nobody looks for more of it for ever to prune it."""
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
    """Return what the server calls *connection*."""
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


def test_a_connection_that_was_cut_is_replaced(place: tuple[str, str]) -> None:
    """A server that was restarted costs no turn."""
    url, prefix = place
    if url.startswith("sqlite"):
        pytest.skip("nobody cuts a connection to a file")
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        add(repository, 0)
        with repository._conversations._database.engine.connect() as connection:
            number = number_of(connection)
        cut(url, number)
        add(repository, 1)

        assert repository.find_by_conversation_id("c") == [*turn(0), *turn(1)]


def test_a_connection_may_be_cut_while_tables_are_created(place: tuple[str, str]) -> None:
    """The next one goes on."""
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
    """Give a database, a message that is more than its server takes, and the repository."""
    with (
        sql_place("mariadb", tmp_path) as (url, prefix),
        SqlChatMemoryRepository(url, table_prefix=prefix) as repository,
    ):
        add(repository, 1)
        database = repository._conversations._database
        with database.engine.connect() as connection:
            most: int = connection.exec_driver_sql("SELECT @@max_allowed_packet").scalar_one()
        # Each quote takes two bytes in JSON, and one or two more in the statement.
        yield database, UserMessage('"' * (most // 3)), repository


def test_a_message_that_is_too_large_says_so_at_once(
    huge: tuple[Database, UserMessage, ChatMemoryRepository], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server cuts the connection, which looks like an outage; trying again does not help."""
    database, message, repository = huge
    tried: list[object] = []
    transaction: Any = database._transaction

    def count(work: object) -> Any:
        tried.append(work)
        return transaction(work)

    monkeypatch.setattr(database, "_transaction", count)
    # Whether the driver notices while it writes or later depends on how much is left to write.
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


@pytest.mark.parametrize("answer", [None, 2**40])
def test_a_large_message_may_meet_an_outage(
    huge: tuple[Database, UserMessage, ChatMemoryRepository],
    monkeypatch: pytest.MonkeyPatch,
    answer: int | None,
) -> None:
    """It is not to blame when the server does not answer at all, or would have taken it."""
    _database, message, repository = huge

    def ask(_engine: object) -> int:
        if answer is None:
            raise OperationalError("SELECT", {}, OSError("down"))
        return answer

    monkeypatch.setattr(sql_database, "_ATTEMPTS", 1)
    monkeypatch.setattr(sql_failures, "_largest_packet", ask)
    with pytest.raises(ChatMemoryUnavailableError):
        repository.save_all("c", [message])


# --- the schema -----------------------------------------------------------------------------


def test_a_schema_of_a_newer_release_is_left_alone(place: tuple[str, str]) -> None:
    """It may hold what this release does not know."""
    url, prefix = place
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        add(repository, 1)
    set_version(url, prefix, 99)

    with (
        SqlChatMemoryRepository(url, table_prefix=prefix) as repository,
        pytest.raises(ChatMemoryError, match="use the newer release"),
    ):
        repository.find_by_conversation_id("c")


def test_a_missing_schema_may_be_an_error(place: tuple[str, str]) -> None:
    """Where the application may create no tables."""
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


def test_an_older_schema_is_brought_up_to_date(place: tuple[str, str]) -> None:
    """By the steps that it lacks, in their order, once."""
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


def test_a_transaction_that_is_interrupted_holds_no_lock(tmp_path: Path) -> None:
    """Others can write at once, though the traceback still refers to what ran."""
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


def set_version(url: str, prefix: str, version: int) -> None:
    engine = sa.create_engine(url)
    with engine.begin() as connection:
        connection.exec_driver_sql(f"UPDATE {prefix}schema SET version = {version}")
    engine.dispose()


# --- errors ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "url", ["postgresql://ann:hush@127.0.0.1:9/db", "mysql://ann:hush@127.0.0.1:9/db"]
)
def test_a_database_that_is_down(url: str) -> None:
    """The error says which, keeps its cause, and no secret."""
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
def test_urls_that_cannot_be_used(url: str) -> None:
    """What they hold may be secret."""
    with pytest.raises(UsageError) as caught:
        SqlChatMemoryRepository(url)

    assert "hush" not in "".join(traceback.format_exception(caught.value)[-1:])


def test_an_asynchronous_driver() -> None:
    """The error asks for another URL, and not for a driver to be installed that would not do."""
    with pytest.raises(UsageError, match=r"sqlite\+aiosqlite is an asynchronous driver"):
        SqlChatMemoryRepository("sqlite+aiosqlite:///chat.db")


def test_a_target_that_is_no_database() -> None:
    """Neither URL nor engine."""
    target: Any = 7
    with pytest.raises(UsageError, match="not the URL of a database"):
        SqlChatMemoryRepository(target)


@pytest.mark.parametrize(
    ("module", "url", "extra"),
    [
        ("psycopg", "postgres://host/db", "postgres"),
        ("pymysql", "mariadb://host/db", "mysql"),
        ("chatclient.memory.sql_conversations", "sqlite://", "sql"),
    ],
)
def test_an_extra_that_is_not_installed(
    module: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The error names it."""
    monkeypatch.setitem(sys.modules, module, None)

    with pytest.raises(UsageError, match=rf"chatclient\[{extra}\]"):
        SqlChatMemoryRepository(url)


def test_a_database_that_refuses(tmp_path: Path) -> None:
    """What it says is the cause; what was to be stored is not shown."""
    url = f"sqlite:///{tmp_path / 'memory.db'}"
    with SqlChatMemoryRepository(url) as repository:
        add(repository, 1)
        engine = repository._conversations._database.engine
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


def test_a_file_that_may_not_be_written(tmp_path: Path) -> None:
    """Waiting would not help."""
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


def test_a_database_that_stays_locked(tmp_path: Path) -> None:
    """Waiting has an end."""
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


def test_what_cannot_be_read_says_so(tmp_path: Path) -> None:
    """Somebody has changed the table by hand."""
    with SqlChatMemoryRepository(f"sqlite:///{tmp_path / 'memory.db'}") as repository:
        add(repository, 1)
        with repository._conversations._database.engine.begin() as connection:
            connection.exec_driver_sql("UPDATE chatclient_message SET message = '{'")
        with pytest.raises(ChatMemoryError, match="cannot be read") as caught:
            repository.find_by_conversation_id("c")

    assert caught.value.conversation_id == "c"


@pytest.mark.parametrize(
    ("metadata", "told"),
    [
        ({"ok": 1, "user": object()}, "metadata['user'] is of type object"),
        ({"a": [{"b": b"\xff"}]}, "metadata['a'][0]['b'] is of type bytes"),
        ({"a": [object(), b"\xff"], "b": object()}, "metadata['a'][0] is of type object"),
    ],
)
def test_what_has_no_json_form_is_named(
    place: tuple[str, str], metadata: dict[str, Any], told: str
) -> None:
    """An error of the memory says where it stands and what it is, and nothing is kept."""
    url, prefix = place
    message = UserMessage("hi", metadata=metadata)
    with SqlChatMemoryRepository(url, table_prefix=prefix) as repository:
        for keep in (MessageWindowChatMemory(repository).add, repository.save_all):
            with pytest.raises(ChatMemoryError) as caught:
                keep("c", [message])
            assert f"the user's message cannot be stored: {told}," in str(caught.value)
            assert caught.value.conversation_id == "c"
        assert repository.find_conversation_ids() == []


def test_what_contains_itself_has_no_json_form() -> None:
    """Nobody looks for what is wrong with it for ever."""
    round_about: dict[str, Any] = {}
    round_about["again"] = round_about
    with (
        SqlChatMemoryRepository("sqlite://") as repository,
        pytest.raises(ChatMemoryError, match="of type dict"),
    ):
        repository.save_all("c", [UserMessage("hi", metadata=round_about)])


# --- SQLite in memory -----------------------------------------------------------------------


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:"])
def test_a_database_in_memory_is_one_for_all_threads(url: str) -> None:
    """Whoever asks, it is the same database."""
    with SqlChatMemoryRepository(url) as repository:
        with ThreadPoolExecutor(4) as pool:
            list(pool.map(lambda number: add(repository, number), range(8)))

        assert len(asyncio.run(repository.afind_by_conversation_id("c"))) == 16


@pytest.mark.parametrize("pool", [None, sa.NullPool])
def test_an_engine_with_a_database_for_each_thread_is_refused(pool: Any) -> None:
    """Other threads would not find the conversations; the error says what to do instead."""
    engine = sa.create_engine("sqlite://", poolclass=pool)
    with (
        SqlChatMemoryRepository(engine) as repository,
        pytest.raises(UsageError, match="StaticPool"),
    ):
        add(repository, 1)
    engine.dispose()


def test_an_engine_may_open_its_file_by_itself(tmp_path: Path) -> None:
    """Its URL does not name the file, then, and says nothing."""
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
                "connect_args": {"check_same_thread": False},  # another thread closes them
            },
        ),
    ],
)
def test_an_engine_in_memory_may_be_one_for_all_threads(url: str, options: dict[str, Any]) -> None:
    """What the error says works, and so does a cache that the connections share, also at once."""
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


def test_repositories_with_one_connection_take_turns_also_when_it_was_replaced(
    tmp_path: Path,
) -> None:
    """As it is before a fork: whoever came later waits for whoever came before, all the same."""
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


def test_a_window_costs_the_same_however_long_the_conversation(tmp_path: Path) -> None:
    """The database looks at the rows of the window, not at those before it."""
    with SqlChatMemoryRepository(f"sqlite:///{tmp_path / 'memory.db'}") as repository:
        engine = repository._conversations._database.engine
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
