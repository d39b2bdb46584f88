"""The contract of session repositories: in memory, SQLite, PostgreSQL, MariaDB."""

import asyncio
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from uuid import uuid4

import pytest
import sqlalchemy as sa
from sqlalchemy.schema import CreateTable

from chatclient.chat.messages import Message, SystemMessage, UserMessage
from chatclient.errors import ChatMemoryError, UsageError
from chatclient.memory import (
    EventFilter,
    InMemorySessionRepository,
    Session,
    SessionEvent,
    SessionLog,
    SessionRepository,
    SqlSessionRepository,
)
from chatclient.memory.sessions import in_memory
from chatclient.memory.sessions.sql_tables import SessionTables
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.testing.sample_conversations import AWKWARD_IDS, EVERY_KIND, turn
from tests.support.databases import SQL_KINDS, sql_place
from tests.support.interrupts import interrupt_at

T = TypeVar("T")
START = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


@dataclass(frozen=True)
class Store:
    """A repository, called blocking or each time on a new event loop."""

    repository: SessionRepository
    blocking: bool

    def do(self, start: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        return drive(start(BLOCKING)) if self.blocking else asyncio.run(start(ON_LOOP))

    def create(self, session: Session) -> bool:
        return self.do(lambda runtime: self.repository.create(session, runtime))

    def find(self, session_id: str) -> Session | None:
        return self.do(lambda runtime: self.repository.find(session_id, runtime))

    def find_by_user(self, user_id: str) -> list[Session]:
        return self.do(lambda runtime: self.repository.find_by_user(user_id, runtime))

    def delete_older(self, cutoff: datetime) -> int:
        return self.do(lambda runtime: self.repository.delete_older(cutoff, runtime))

    def delete(self, session_id: str, expired: datetime | None = None) -> bool:
        return self.do(lambda runtime: self.repository.delete(session_id, runtime, expired=expired))

    def append(self, session_id: str, *events: SessionEvent) -> bool:
        return self.do(lambda runtime: self.repository.append(session_id, events, runtime))

    def read(self, session_id: str, **filter: Any) -> SessionLog:
        wanted = EventFilter(**filter)
        return self.do(lambda runtime: self.repository.read(session_id, runtime, wanted))

    def ids(self, session_id: str, **filter: Any) -> list[str]:
        return [event.id for event in self.read(session_id, **filter).events]

    def compact(self, session_id: str, *archived: str, **rest: Any) -> bool:
        rest = {"summary": None, "expected": self.read(session_id).version, **rest}
        return self.do(
            lambda runtime: self.repository.compact(session_id, archived, runtime=runtime, **rest)
        )


@pytest.fixture(params=["memory", *SQL_KINDS])
def repository(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[SessionRepository]:
    if request.param == "memory":
        with InMemorySessionRepository() as repository:
            yield repository
        return
    with (
        sql_place(request.param, tmp_path) as (url, prefix),
        SqlSessionRepository(url, table_prefix=prefix) as repository,
    ):
        yield repository


@pytest.fixture(params=["blocking", "on a loop"])
def store(request: pytest.FixtureRequest, repository: SessionRepository) -> Store:
    return Store(repository, request.param == "blocking")


@pytest.fixture
def name() -> str:
    return f"session {uuid4()}"


def a_session(id: str, user_id: str = "ann", **rest: Any) -> Session:
    return Session(id, user_id, START, **rest)


def an_event(session_id: str, id: str, text: str | Message = "hello", **rest: Any) -> SessionEvent:
    message = UserMessage(text) if isinstance(text, str) else text
    return SessionEvent.of(session_id, message, id=id, **{"timestamp": START, **rest})


@pytest.mark.feature("memory-ids-36-characters")
def test_session_round_trip(store: Store, name: str) -> None:
    """Ids, times to the microsecond and metadata are kept."""
    sessions = [
        a_session(
            f"{id}{name}{id}",
            f"user {id} \0 of {name}",
            expires_at=START.astimezone(timezone(timedelta(hours=5))) + timedelta(days=400),
            metadata={"tags": ["é", 1, None]},
        )
        for id in AWKWARD_IDS
    ]
    for session in sessions:
        assert store.create(session) is True

    for session in sessions:
        assert store.find(session.id) == session
        assert store.find_by_user(session.user_id) == [session]


def test_create_existing_session(store: Store, name: str) -> None:
    """Creating it again reports a duplicate and changes nothing."""
    first = a_session(name)

    assert store.create(first) is True
    assert store.create(first) is False
    assert store.create(a_session(name, "bob")) is False
    assert store.find(name) == first


def test_save_keeps_the_log(store: Store, name: str) -> None:
    """Saving a session changes neither events nor version."""
    changed = a_session(name, "bob", metadata={"a": 1})
    store.do(lambda runtime: store.repository.save(a_session(name), runtime))
    store.append(name, an_event(name, "1"))
    before = store.read(name)
    store.do(lambda runtime: store.repository.save(changed, runtime))

    assert store.find(name) == changed
    assert store.read(name) == before


def test_save_without_change(tmp_path: Path, name: str) -> None:
    """Saving equal data succeeds with every driver."""
    session = a_session(name)
    with sql_place("mariadb", tmp_path) as (url, prefix):
        engine = sa.create_engine(url, connect_args={"client_flag": 0})
        with SqlSessionRepository(engine, table_prefix=prefix) as repository:
            for _ in range(2):
                drive(repository.save(session, BLOCKING))

            assert drive(repository.find(name, BLOCKING)) == session
        engine.dispose()


def test_sessions_of_a_user(store: Store, name: str) -> None:
    """Only the user's sessions are listed, oldest first."""
    sessions = [
        replace(a_session(f"{name}{at}", name), created_at=START + timedelta(days=-at))
        for at in range(3)
    ]
    for session in (*sessions, a_session(f"{name}x", name.upper())):
        store.create(session)

    found = store.find_by_user(name)
    assert found == sessions[::-1]


def test_missing_session(store: Store, name: str) -> None:
    """Nothing is found, deleted or compacted; appending raises."""
    assert store.find(name) is None
    assert store.read(name) == SessionLog()
    assert store.delete(name) is False
    assert store.compact(name, expected=0) is False
    with pytest.raises(ChatMemoryError, match="create it first"):
        store.append(name, an_event(name, "1"))


@pytest.mark.feature("session-jdbc-tables")
def test_event_round_trip(store: Store, name: str) -> None:
    """Events of all message types are kept in order."""
    store.create(a_session(name))
    events = tuple(
        an_event(
            name,
            f"{at} \0",
            message,
            branch=None if at % 2 else "lead.writer",
            metadata={"at": at},
            timestamp=START + timedelta(microseconds=at),
        )
        for at, message in enumerate(EVERY_KIND)
    )
    for event in events[:2]:
        assert store.append(name, event)
    assert store.append(name, *events[2:])

    assert store.read(name).events == events


def test_versions(store: Store, name: str) -> None:
    """The version is 0 at first and changes with each append or compaction."""
    store.create(a_session(name))
    versions = [store.read(name).version]
    for id in "abc":
        store.append(name, an_event(name, id))
        versions.append(store.read(name, last=1).version)
    store.compact(name, "a")
    versions += [store.read(name).version, store.read(name, keyword="nothing").version]

    assert versions[0] == 0
    assert len(set(versions)) == 5
    assert versions[-1] == versions[-2]


@pytest.mark.feature("session-event-idempotent-ids")
def test_repeated_event_id(store: Store, name: str) -> None:
    """A unit with a known event id is a duplicate within its session."""
    for id in (name, f"{name}2"):
        store.create(a_session(id))
        assert store.append(id, an_event(id, "1", "first")) is True
    version = store.read(name).version

    assert store.append(name, an_event(name, "1", "again")) is False
    assert store.append(name, an_event(name, "0"), an_event(name, "1")) is False
    assert store.append(name) is True
    assert [e.message.text for e in store.read(name).events] == ["first"]
    assert store.read(name).version == version


def test_repeated_id_of_an_archived_event(store: Store, name: str) -> None:
    """Ids of archived events are known."""
    store.create(a_session(name))
    store.append(name, an_event(name, "1"), an_event(name, "2"))
    store.compact(name, "1")

    assert store.append(name, an_event(name, "1")) is False


def test_invalid_units(store: Store, name: str) -> None:
    """Events of other sessions and duplicate ids raise."""
    store.create(a_session(name))

    with pytest.raises(UsageError, match="do not belong"):
        store.append(name, an_event("other", "1"))
    with pytest.raises(UsageError, match="same id"):
        store.append(name, an_event(name, "1"), an_event(name, "1"))
    assert store.read(name) == SessionLog()


def test_compaction(store: Store, name: str) -> None:
    """A new summary replaces the previous one; archived events stay archived."""
    store.create(a_session(name))
    store.append(name, *(an_event(name, id) for id in "abcdef"))
    for archived, mark in (("ab", "s"), ("cd", "t")):
        summary = [an_event(name, f"{mark}{at}", synthetic=True) for at in range(2)]
        assert store.compact(name, *archived, summary=summary) is True
    store.append(name, an_event(name, "g"))

    assert store.ids(name, exclude_archived=True) == ["t0", "t1", "e", "f", "g"]
    assert store.ids(name) == ["t0", "t1", *"abcdefg"]
    assert [e.archived for e in store.read(name).events] == [False] * 2 + [True] * 4 + [False] * 3
    assert store.compact(name, "e") is True
    assert store.ids(name, exclude_archived=True) == ["t0", "t1", "f", "g"]
    assert store.compact(name, "f", summary=[]) is True
    assert store.ids(name, exclude_archived=True) == ["g"]


@pytest.mark.feature("session-compact-events-compare-swap")
def test_stale_compaction(store: Store, name: str) -> None:
    """A changed version or missing events reject a compaction."""
    store.create(a_session(name))
    store.append(name, an_event(name, "a"), an_event(name, "b"))
    version = store.read(name).version
    summary = [an_event(name, "s", synthetic=True)]
    store.append(name, an_event(name, "c"))
    before = store.read(name)

    assert store.compact(name, "a", summary=summary, expected=version) is False
    assert store.compact(name, "a", "nothing", summary=summary) is False
    assert store.read(name) == before
    assert store.compact(name, "a") is True
    assert store.compact(name, "a") is False


def test_delete_removes_the_log(store: Store, name: str) -> None:
    """A new session with the id starts empty."""
    store.create(a_session(name))
    store.append(name, an_event(name, "1"))

    assert store.delete(name) is True
    assert store.read(name) == SessionLog()
    store.create(a_session(name))
    assert store.read(name) == SessionLog()
    assert store.append(name, an_event(name, "1")) is True


def test_delete_older_events(store: Store, name: str) -> None:
    """Turns are deleted as a whole, archived or not, and summaries of old events."""
    days = [datetime(2000, 1, day, tzinfo=UTC) for day in range(1, 6)]
    store.create(a_session(name))
    units = [(*(m for m in turn(n, 2)),) for n in range(4)]
    for number, unit in enumerate(units):
        branch = an_event(name, f"branch {number}", branch="lead", timestamp=days[number])
        times = [days[number]] * 2 + [days[number + 1]] * 2  # a turn that waited for a day
        store.append(
            name,
            branch,
            *(
                an_event(name, f"{number}.{at}", message, timestamp=times[at])
                for at, message in enumerate(unit)
            ),
        )
    version = store.read(name).version
    summary = [an_event(name, "s", "so far", synthetic=True, timestamp=days[0])]
    store.compact(name, "branch 0", *(f"0.{at}" for at in range(4)), summary=summary)

    assert store.delete_older(days[0]) == 0
    assert store.delete_older(days[2]) == 1 + 2 * 5
    assert [m for m in store.read(name).events if m.branch is None] == [
        event for event in store.read(name).events if event.id[0] in "23"
    ]
    assert [event.message for event in store.read(name, branch="").events] == [*units[2], *units[3]]
    assert store.read(name).version > version
    store.append(name, an_event(name, "next"))
    assert store.ids(name)[-1] == "next"
    assert store.delete_older(days[4]) == 2 * 5
    assert store.ids(name) == ["next"]


def test_delete_expired(store: Store, name: str) -> None:
    """Sessions without expiry and renewed ones are kept."""
    expired, lasting, later = f"{name}1", f"{name}2", f"{name}3"
    store.create(a_session(expired, expires_at=START))
    store.create(a_session(lasting))
    store.create(a_session(later, expires_at=START + timedelta(microseconds=1)))
    found = store.do(lambda runtime: store.repository.find_expired(START, runtime))
    deleted = [store.delete(id, START) for id in (expired, lasting, later)]

    assert [id for id in found if name in id] == [expired]
    assert deleted == [True, False, False]


LOG: list[tuple[str, Message, dict[str, Any]]] = [
    ("1", SystemMessage("Rules about CATS"), {}),
    ("2", UserMessage("Tell me of cats"), {"at": 2}),
    ("3", UserMessage("Tell the writer"), {"branch": "lead"}),
    ("4", UserMessage("A dog's STRASSE \U0001f415"), {"branch": "lead.writer"}),
    ("5", UserMessage("Cats and dogs, 100% _fun_"), {"branch": "leader"}),
    ("6", turn("6")[1], {"at": 6}),
    ("7", EVERY_KIND[3], {"at": 7}),
    ("8", UserMessage("Straße"), {"at": 8}),
]

CASES: list[tuple[dict[str, Any], str]] = [
    ({}, "s12345678"),
    ({"exclude_archived": True}, "s45678"),
    ({"exclude_synthetic": True}, "12345678"),
    ({"exclude_synthetic": True, "exclude_archived": True}, "45678"),
    ({"roles": frozenset({"system", "tool"})}, "17"),
    ({"since": START + timedelta(minutes=6)}, "678"),
    ({"until": START + timedelta(minutes=2), "exclude_synthetic": True}, "12345"),
    ({"since": START + timedelta(minutes=2), "until": START + timedelta(minutes=7)}, "267"),
    ({"last": 3}, "678"),
    ({"last": 100}, "s12345678"),
    ({"last": 1, "branch": "lead"}, "8"),
    ({"keyword": "cats"}, "125"),
    ({"keyword": " STRASSE "}, "48"),
    ({"keyword": "100%"}, "5"),
    ({"keyword": "_fun"}, "5"),
    ({"keyword": "\U0001f415"}, "4"),
    ({"keywords": ("dog", "tell")}, "2345"),
    ({"keywords": ("dog", "cats"), "match": "all"}, "5"),
    ({"keyword": "cats", "keywords": ("dog", "tell")}, "25"),
    ({"pattern": r"[Cc]ats?\b"}, "25"),
    ({"pattern": r"^Tell", "last": 1}, "3"),
    ({"pattern": r".", "page": 1, "page_size": 3}, "345"),
    ({"page": 0, "page_size": 4}, "s123"),
    ({"page": 2, "page_size": 4}, "8"),
    ({"page": 3, "page_size": 4}, ""),
    ({"page": 10**30, "page_size": 4}, ""),
    ({"page_size": 10**30}, "s12345678"),
    ({"last": 10**30}, "s12345678"),
    ({"keyword": "cats", "page": 1, "page_size": 2}, "5"),
    ({"branch": ""}, "s12678"),
    ({"branch": "lead"}, "s123678"),
    ({"branch": "lead.writer"}, "s1234678"),
    ({"branch": "lead.writer.pen"}, "s1234678"),
    ({"branch": "other"}, "s12678"),
]


@pytest.fixture
def logged(store: Store, name: str) -> Store:
    store.create(a_session(name, name))
    store.append(
        name,
        *(
            an_event(
                name,
                id,
                message,
                timestamp=START + timedelta(minutes=rest.get("at", 0)),
                branch=rest.get("branch"),
            )
            for id, message, rest in LOG
        ),
    )
    store.compact(name, "1", "2", "3", summary=[an_event(name, "s", "…", synthetic=True)])
    return store


@pytest.mark.feature("session-event-filter-merge")
def test_filters(logged: Store, name: str) -> None:
    """Each repository returns the same events."""
    found = ["".join(logged.ids(name, **filter)) for filter, _ in CASES]

    assert found == [expected for _, expected in CASES]


def test_search_sessions_of_a_user(store: Store, name: str) -> None:
    """All sessions of the user are searched in time order, by page."""
    for at in range(3):
        id = f"{name}{at}"
        store.create(a_session(id, f"other {name}" if at == 2 else name))
        store.append(
            id,
            *(
                an_event(id, f"{at}{n}", f"word {n}", timestamp=START + timedelta(hours=2 * n + at))
                for n in range(4)
            ),
        )
    store.compact(f"{name}0", "00")

    def search(**filter: Any) -> list[str]:
        wanted = EventFilter(**filter)
        found = store.do(lambda runtime: store.repository.search(name, runtime, wanted))
        return [event.id for event in found]

    assert search(keyword="word") == ["00", "10", "01", "11", "02", "12", "03", "13"]
    assert search(keyword="word", page=1, page_size=3) == ["11", "02", "12"]
    assert search(last=3) == ["12", "03", "13"]
    assert search(pattern="[03]$", exclude_archived=True) == ["10", "03", "13"]
    assert search(keyword="word", page=10**6, page_size=100) == []


def test_search_order_of_equal_times(store: Store, name: str) -> None:
    """Events with equal times have their append order."""
    store.create(a_session(name, name))
    store.append(name, *(an_event(name, id) for id in "abc"))
    store.compact(name, "a", "b", summary=[an_event(name, "s", synthetic=True)])
    found = store.do(lambda runtime: store.repository.search(name, runtime, EventFilter(last=3)))

    assert [event.id for event in found] == ["b", "c", "s"]
    assert store.ids(name) == ["s", "a", "b", "c"]


@pytest.mark.feature("session-jdbc-tables")
def test_concurrent_appends(repository: SessionRepository, name: str) -> None:
    """Units of threads are complete and in order; equal ones are added once."""
    drive(repository.create(a_session(name), BLOCKING))

    def work(worker: int) -> int:
        added = 0
        for number in range(8):
            own = [an_event(name, f"{worker}.{number}.{at}") for at in range(3)]
            drive(repository.append(name, own, BLOCKING))
            added += drive(repository.append(name, [an_event(name, f"{number}")], BLOCKING))
        return added

    with ThreadPoolExecutor(6) as pool:
        added = list(pool.map(work, range(6)))

    ids = [event.id for event in drive(repository.read(name, BLOCKING)).events]
    units = [id for id in ids if "." in id]
    assert sum(added) == 8
    assert len(units) == len(set(units)) == 6 * 8 * 3
    for at in range(0, len(units), 3):
        assert [id.rsplit(".", 1) for id in units[at : at + 3]] == [
            [units[at].rsplit(".", 1)[0], str(part)] for part in range(3)
        ]
    for worker in range(6):
        own = [id for id in units if id.startswith(f"{worker}.")]
        assert own == sorted(own)


@pytest.mark.feature("session-compact-events-compare-swap")
def test_concurrent_compactions(repository: SessionRepository, name: str) -> None:
    """Only the first compaction of a version applies."""
    drive(repository.create(a_session(name), BLOCKING))
    drive(repository.append(name, [an_event(name, id) for id in "abc"], BLOCKING))
    version = drive(repository.read(name, BLOCKING)).version

    def compact(worker: int) -> bool:
        summary = [an_event(name, f"s{worker}", synthetic=True)]
        return drive(repository.compact(name, ["a"], summary, version, BLOCKING))

    with ThreadPoolExecutor(6) as pool:
        done = list(pool.map(compact, range(6)))

    assert done.count(True) == 1
    ids = [event.id for event in drive(repository.read(name, BLOCKING)).events]
    assert ids == [f"s{done.index(True)}", *"abc"]


@pytest.mark.parametrize("kind", SQL_KINDS)
@pytest.mark.parametrize("there", ["one table", "both tables", "one table with an index"])
def test_partially_created_tables(kind: str, there: str, tmp_path: Path) -> None:
    """Missing tables are created, as MariaDB commits each separately."""
    with sql_place(kind, tmp_path) as (url, prefix):
        tables = SessionTables.named(prefix)
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
    summary = [an_event("s", "summary", synthetic=True)]

    def change(store: Store) -> bool:
        if operation == "append":
            return store.append("s", an_event("s", "2"), an_event("s", "3"))
        return store.compact("s", "1", summary=summary)

    def store_with_event() -> Store:
        store = Store(InMemorySessionRepository(), blocking=True)
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
        for event, message in (
            (an_event("s", "1", metadata=odd), "of an event cannot be stored: user is"),
            (an_event("s", "1", UserMessage("hi", metadata=odd)), r"stored: metadata\['user'\] is"),
        ):
            with pytest.raises(ChatMemoryError, match=message) as caught:
                drive(repository.append("s", [event], BLOCKING))
            assert caught.value.conversation_id == "s"
