"""Tests that every `SessionRepository` must pass. They need pytest.

Use them in a test module:

    class TestMySessions(SessionRepositoryContract):
        @pytest.fixture
        def repository(self):
            with MySessions(...) as repository:
                yield repository

For detailed assertion messages, call
`pytest.register_assert_rewrite("chatclient.testing.session_contract")` in the conftest before the
import.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone
from typing import Any, TypeVar
from uuid import uuid4

import pytest

from chatclient.chat.messages import Message, SystemMessage, UserMessage
from chatclient.errors import ChatMemoryError, UsageError, VersionConflictError
from chatclient.memory.sessions.event import (
    COMPACTION,
    Content,
    EventPayload,
    Session,
    SessionEvent,
)
from chatclient.memory.sessions.log import (
    EVERYTHING,
    MESSAGES,
    EventFilter,
    SessionLog,
    SessionRepository,
)
from chatclient.runtime.blocking import drive
from chatclient.runtime.runtime import BLOCKING, ON_LOOP, Runtime
from chatclient.testing.contract_parts import (
    AWKWARD_IDS,
    EVERY_KIND,
    check_loop_is_free,
    turn,
)

T = TypeVar("T")

START = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)

_DATA: dict[str, Any] = {
    "order": "ünï \0 \ud800",
    "items": [1, 2.5, True, None, {"a": {}}],
    "empty": [],
}


def a_session(id: str, user_id: str = "ann", **rest: Any) -> Session:
    """Return a session that was created at `START`."""
    return Session(id, user_id, START, **rest)


def an_event(
    session_id: str, id: str, content: str | Content = "hello", **rest: Any
) -> SessionEvent:
    """Return an event at `START`, with a user message if *content* is a text."""
    given = UserMessage(content) if isinstance(content, str) else content
    return SessionEvent.of(session_id, given, id=id, **{"timestamp": START, **rest})


EVENTS: list[tuple[str, Message | EventPayload, dict[str, Any]]] = [
    ("1", SystemMessage("Rules about CATS"), {}),
    ("2", UserMessage("Tell me of cats", id="ü\0"), {"at": 2}),
    ("3", UserMessage("Tell the writer"), {"branch": "lead"}),
    ("4", UserMessage("A dog's STRASSE \U0001f415"), {"branch": "lead.writer"}),
    ("5", UserMessage("Cats and dogs, 100% _fun_"), {"branch": "leader"}),
    ("6", turn("6")[1], {"at": 6}),
    ("7", EVERY_KIND[3], {"at": 7}),
    ("p", EventPayload("test.CATS", {"text": "cats"}), {"at": 7}),
    ("8", UserMessage("Straße", id="m8"), {"at": 8}),
]

"""Ids, contents and other fields of the events of a log."""

SELECTIONS: list[tuple[dict[str, Any], str]] = [
    ({}, "12345678s"),
    ({"types": "*"}, "1234567p8cs"),
    ({"types": "*", "exclude_archived": True}, "s4567p8c"),
    ({"types": {"test.CATS", "compaction"}}, "pc"),
    ({"types": {"test.CATS"}, "keyword": "cats"}, ""),
    ({"types": "*", "roles": "user"}, "23458s"),
    ({"types": {"message", "test.CATS"}, "last": 3}, "p8s"),
    ({"types": "test.cats"}, ""),
    ({"exclude_archived": True}, "s45678"),
    ({"exclude_synthetic": True}, "12345678"),
    ({"exclude_synthetic": True, "exclude_archived": True}, "45678"),
    ({"roles": frozenset({"system", "tool"})}, "17"),
    ({"since": START + timedelta(minutes=6)}, "678"),
    ({"until": START + timedelta(minutes=2), "exclude_synthetic": True}, "12345"),
    ({"since": START + timedelta(minutes=2), "until": START + timedelta(minutes=7)}, "267"),
    ({"last": 3}, "78s"),
    ({"last": 3, "exclude_archived": True}, "678"),
    ({"last": 100}, "12345678s"),
    ({"last": 1, "branch": "lead", "exclude_synthetic": True}, "8"),
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
    ({"pattern": r".", "page": 1, "page_size": 3}, "456"),
    ({"page": 0, "page_size": 4}, "1234"),
    ({"page": 0, "page_size": 4, "exclude_archived": True}, "s456"),
    ({"page": 2, "page_size": 4}, "s"),
    ({"page": 3, "page_size": 4}, ""),
    ({"page": 10**30, "page_size": 4}, ""),
    ({"page_size": 10**30}, "12345678s"),
    ({"last": 10**30}, "12345678s"),
    ({"keyword": "cats", "page": 1, "page_size": 2}, "5"),
    ({"message_id": "ü\0"}, "2"),
    ({"message_id": "ü\0", "exclude_archived": True}, ""),
    ({"message_id": "m8", "types": "*", "last": 1}, "8"),
    ({"message_id": "m8", "keyword": "cats"}, ""),
    ({"message_id": "m"}, ""),
    ({"branch": ""}, "12678s"),
    ({"branch": "lead"}, "123678s"),
    ({"branch": "lead.writer"}, "1234678s"),
    ({"branch": "lead.writer.pen"}, "1234678s"),
    ({"branch": "other"}, "12678s"),
]
"""Filters, and the ids of `EVENTS` that they select after a compaction `c` of the first three with
the summary `s`."""


@dataclass(frozen=True)
class SessionStore:
    """A session repository that is called blocking, or each time on a new event loop."""

    repository: SessionRepository
    blocking: bool

    def call(self, method: str, *arguments: object, **options: Any) -> Any:
        """Call a method of the repository."""
        return self._run(
            lambda runtime: getattr(self.repository, method)(*arguments, runtime, **options)
        )

    def create(self, session: Session) -> bool:
        """Create a session, and return whether it is new."""
        return self._run(lambda runtime: self.repository.create(session, runtime))

    def find_by_metadata(self, name: str, value: str) -> list[str]:
        """Return the ids of the sessions with this metadata."""
        return [session.id for session in self.call("find_by_metadata", name, value)]

    def append(self, session_id: str, *events: SessionEvent, expected: int | None = None) -> bool:
        """Append *events*, and return whether they are new."""
        return self._run(
            lambda runtime: self.repository.append(session_id, events, runtime, expected=expected)
        )

    def compact(
        self,
        session_id: str,
        archived: str,
        *summary: SessionEvent,
        restored: str = "",
        id: str | None = None,
    ) -> bool:
        """Append a compaction; the letters of *archived* and *restored* are the ids of events."""
        data = {"archived": list(archived)} | ({"restored": list(restored)} if restored else {})
        payload = EventPayload(COMPACTION, data)
        return self.append(
            session_id, an_event(session_id, id or f"c{archived}", payload), *summary
        )

    def read(
        self, session_id: str, filter: EventFilter = MESSAGES, *, until: int | None = None
    ) -> SessionLog:
        """Return the selected events, by default all messages."""
        return self._run(
            lambda runtime: self.repository.read(session_id, runtime, filter, until=until)
        )

    def ids(self, session_id: str, **filter: Any) -> list[str]:
        """Return the ids of the selected events."""
        return [event.id for event in self.read(session_id, EventFilter(**filter)).events]

    def search(self, user_id: str, **filter: Any) -> list[str]:
        """Return the ids of the selected events of a user."""
        wanted = EventFilter(**filter)
        found = self._run(lambda runtime: self.repository.search(user_id, runtime, wanted))
        return [event.id for event in found]

    def _run(self, start: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        return drive(start(BLOCKING)) if self.blocking else asyncio.run(start(ON_LOOP))


class SessionRepositoryContract:
    """The tests; a subclass defines the fixture `repository`, which need not be empty."""

    @pytest.fixture
    def repository(self) -> SessionRepository:
        """Return the repository to test."""
        raise NotImplementedError

    @pytest.fixture(params=["blocking", "on a loop"])
    def store(self, request: pytest.FixtureRequest, repository: SessionRepository) -> SessionStore:
        """Return the repository in both modes."""
        return SessionStore(repository, blocking=request.param == "blocking")

    @pytest.fixture
    def name(self) -> str:
        """Return the id of a session that does not exist."""
        return f"contract-{uuid4()}"

    # --- sessions ---------------------------------------------------------------------------

    def test_sessions_are_found_unchanged(self, store: SessionStore, name: str) -> None:
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
            assert store.call("find", session.id) == session
            assert store.call("find_by_user", session.user_id) == [session]

    def test_an_existing_session_is_not_replaced(self, store: SessionStore, name: str) -> None:
        """Creating it again reports a duplicate and changes nothing."""
        first = a_session(name)

        assert store.create(first) is True
        assert store.create(first) is False
        assert store.create(a_session(name, "bob", metadata={"a": name})) is False
        assert store.call("find", name) == first
        assert store.find_by_metadata("a", name) == []

    def test_saving_keeps_the_log(self, store: SessionStore, name: str) -> None:
        """Saving a session changes neither events nor version; it may change the owner."""
        changed = a_session(name, f"bob {name}", metadata={"a": 1})
        store.call("save", a_session(name, f"ann {name}"))
        store.append(name, an_event(name, "1"))
        before = store.read(name)
        store.call("save", changed)
        store.call("save", changed)

        assert store.call("find", name) == changed
        assert store.read(name) == before
        assert store.call("find_by_user", f"ann {name}") == []
        assert store.call("find_by_user", f"bob {name}") == [changed]

    def test_sessions_of_a_user(self, store: SessionStore, name: str) -> None:
        """Only the user's sessions are listed, oldest first."""
        sessions = [
            replace(a_session(f"{name}{at}", name), created_at=START + timedelta(days=-at))
            for at in range(3)
        ]
        for session in (*sessions, a_session(f"{name}x", name.upper())):
            store.create(session)

        assert store.call("find_by_user", name) == sessions[::-1]

    def test_sessions_with_metadata(self, store: SessionStore, name: str) -> None:
        """Texts are found exactly, oldest first, and follow changes of the session."""
        agent, other = f"{name} á", f"{name} A"
        for at in range(3):
            metadata = {"agent": agent, "number": at, "nested": {"agent": other}}
            session = a_session(f"{name}{at}", metadata=metadata)
            store.create(replace(session, created_at=START + timedelta(days=-at)))

        assert store.find_by_metadata("agent", agent) == [f"{name}2", f"{name}1", f"{name}0"]
        for strange in (("agent", other), ("agent", f"{name} Á"), ("nested", other), (agent, "")):
            assert store.find_by_metadata(*strange) == []
        store.call("save", a_session(f"{name}1", metadata={"agent": other}))
        store.call("save", a_session(f"{name}3", metadata={"agent": other, "a": agent}))
        store.call("delete", f"{name}2")
        assert store.find_by_metadata("agent", agent) == [f"{name}0"]
        assert store.find_by_metadata("agent", other) == [f"{name}1", f"{name}3"]

    def test_a_missing_session(self, store: SessionStore, name: str) -> None:
        """Nothing is found or deleted; appending raises."""
        assert store.call("find", name) is None
        assert store.read(name) == SessionLog()
        assert store.call("delete", name) is False
        for expected in (None, 0):
            with pytest.raises(ChatMemoryError, match="create it first"):
                store.append(name, an_event(name, "1"), expected=expected)

    def test_deleting_a_session_deletes_its_log(self, store: SessionStore, name: str) -> None:
        """A new session with the id starts empty."""
        store.create(a_session(name, name))
        store.append(name, an_event(name, "1"))
        store.compact(name, "1")

        assert store.call("delete", name) is True
        assert store.read(name) == SessionLog()
        assert store.call("find_by_user", name) == []
        store.create(a_session(name))
        assert store.read(name, EVERYTHING) == SessionLog()
        assert store.append(name, an_event(name, "1"), expected=0) is True
        assert store.ids(name, exclude_archived=True) == ["1"]

    def test_expired_sessions_are_found_and_deleted(self, store: SessionStore, name: str) -> None:
        """Sessions without expiry and renewed ones are kept."""
        expired, lasting, later = f"{name}1", f"{name}2", f"{name}3"
        store.create(a_session(expired, expires_at=START))
        store.create(a_session(lasting, expires_at=START))
        store.call("save", a_session(lasting))
        store.create(a_session(later, expires_at=START + timedelta(microseconds=1)))
        found = store.call("find_expired", START)
        deleted = [store.call("delete", id, expired=START) for id in (expired, lasting, later)]

        assert [id for id in found if name in id] == [expired]
        assert deleted == [True, False, False]
        assert expired not in store.call("find_expired", START)

    # --- events -----------------------------------------------------------------------------

    def test_events_are_read_unchanged(self, store: SessionStore, name: str) -> None:
        """Events with messages and payloads of all kinds are kept in order."""
        store.create(a_session(name))
        payloads = EventPayload("test.ORDER", _DATA), EventPayload("test.EMPTY")
        contents: tuple[Content, ...] = (*EVERY_KIND, *payloads)
        events = tuple(
            an_event(name, f"{at} \0", each, branch="lead.writer" if at % 2 else None)
            for at, each in enumerate(contents)
        )
        moment = START + timedelta(microseconds=1)
        events = (replace(events[0], timestamp=moment, metadata={"at": [1]}), *events[1:])
        for event in events[:2]:
            assert store.append(name, event)
        assert store.append(name, *events[2:])

        found = store.read(name, EVERYTHING).events
        assert found == events
        assert [event.type for event in found[-2:]] == ["test.ORDER", "test.EMPTY"]
        assert found[-2].payload.data == _DATA

    def test_versions(self, store: SessionStore, name: str) -> None:
        """The version counts the events of the log, 0 at first, and is read with any filter."""
        store.create(a_session(name))
        versions = [store.read(name).version]
        for id in "abc":
            store.append(name, an_event(name, id))
            versions.append(store.read(name, EventFilter(last=1)).version)
        store.append(name, an_event(name, "a"))
        store.compact(name, "a", an_event(name, "s", synthetic=True))
        versions += [
            store.read(name).version,
            store.read(name, EventFilter(keyword="none")).version,
        ]

        assert versions == [0, 1, 2, 3, 5, 5]

    def test_a_known_id_is_a_repetition(self, store: SessionStore, name: str) -> None:
        """A unit with a known id, archived or not, is a duplicate within its session."""
        for id in (name, f"{name}2"):
            store.create(a_session(id))
            assert store.append(id, an_event(id, "1", "first"), an_event(id, "2")) is True
        store.compact(name, "1")
        before = store.read(name, EVERYTHING)

        assert store.append(name, an_event(name, "1", "again")) is False
        assert store.append(name, an_event(name, "0"), an_event(name, "2")) is False
        assert store.compact(name, "2", id="c1") is False
        assert store.append(name) is True
        assert store.read(name, EVERYTHING) == before

    def test_invalid_units(self, store: SessionStore, name: str) -> None:
        """Events of other sessions and duplicate ids raise."""
        store.create(a_session(name))

        with pytest.raises(UsageError, match="do not belong"):
            store.append(name, an_event("other", "1"))
        with pytest.raises(UsageError, match="same id"):
            store.append(name, an_event(name, "1"), an_event(name, "1"))
        assert store.read(name) == SessionLog()

    def test_appending_depends_on_the_version(self, store: SessionStore, name: str) -> None:
        """A log that has changed is left as it is; a repetition is not a conflict."""
        store.create(a_session(name))
        assert store.append(name, an_event(name, "a"), an_event(name, "b"), expected=0) is True
        before = store.read(name)

        with pytest.raises(VersionConflictError) as caught:
            store.append(name, an_event(name, "c"), expected=1)
        assert (caught.value.expected, caught.value.actual) == (1, 2)
        assert caught.value.conversation_id == name
        assert store.read(name) == before
        assert store.append(name, an_event(name, "a"), an_event(name, "b"), expected=0) is False
        assert store.append(name, an_event(name, "c"), expected=2) is True
        assert store.ids(name) == ["a", "b", "c"]

    # --- views ------------------------------------------------------------------------------

    def test_a_compaction_archives_messages(self, store: SessionStore, name: str) -> None:
        """The log keeps all events in order; the view begins with the newest summary."""
        store.create(a_session(name))
        store.append(name, *(an_event(name, id) for id in "abcdef"))
        store.append(name, an_event(name, "p", EventPayload("test.NOTE")))
        store.compact(name, "abp", an_event(name, "s", synthetic=True))
        store.compact(name, "scd?", an_event(name, "t", synthetic=True), id="c2")
        store.append(name, an_event(name, "g"))

        log = store.read(name, EVERYTHING).events
        assert [event.id for event in log] == [*"abcdef", "p", "cabp", "s", "c2", "t", "g"]
        assert "".join(event.id for event in log if event.archived) == "abcds"
        assert store.ids(name, exclude_archived=True) == [*"tefg"]
        assert store.ids(name, exclude_archived=True, exclude_synthetic=True) == [*"efg"]
        assert log[9].payload.data == {"archived": [*"scd?"]}

    def test_a_compaction_restores_messages(self, store: SessionStore, name: str) -> None:
        """Archived messages and summaries are active again, in their places; later ones are not."""
        store.create(a_session(name))
        store.append(name, *(an_event(name, id) for id in "abcd"))
        store.compact(name, "a", an_event(name, "s", synthetic=True))
        store.compact(name, "sbc", an_event(name, "t", synthetic=True))
        store.compact(name, "tcd", restored="sb?", id="back")
        store.append(name, an_event(name, "e"))

        assert store.ids(name, exclude_archived=True) == [*"sbe"]
        assert [e.id for e in store.read(name).events if e.archived] == [*"acdt"]
        store.compact(name, "sb", id="again")
        assert store.ids(name, exclude_archived=True) == ["e"]
        assert store.ids(name) == [*"abcdste"]

    def test_a_log_is_read_until_a_version(self, store: SessionStore, name: str) -> None:
        """The first events of a log are those of an earlier version."""
        store.create(a_session(name))
        store.append(name, *(an_event(name, id) for id in "abc"))
        store.compact(name, "ab")

        logs = [store.read(name, until=version) for version in (0, 2, 3, 4, 10**30)]
        assert ["".join(e.id for e in log.events) for log in logs] == ["", "ab", *["abc"] * 3]
        assert {log.version for log in logs} == {4}

    @pytest.mark.parametrize("place", ["a session", "all sessions of a user"])
    def test_filters(self, store: SessionStore, name: str, place: str) -> None:
        """Each repository selects the same events."""
        store.create(a_session(name, name))
        for id, content, rest in EVENTS:
            moment = START + timedelta(minutes=rest.get("at", 0))
            branch = rest.get("branch")
            store.append(name, an_event(name, id, content, timestamp=moment, branch=branch))
        store.compact(name, "123", an_event(name, "s", "…", synthetic=True), id="c")

        if place == "a session":
            found = ["".join(store.ids(name, **filter)) for filter, _ in SELECTIONS]
            assert found == [expected for _, expected in SELECTIONS]
        else:  # in the order of time, which decides about pages
            cases = [(f, e) for f, e in SELECTIONS if not {"last", "page", "page_size"} & {*f}]
            sets = [sorted(store.search(name, **filter)) for filter, _ in cases]
            assert sets == [sorted(expected) for _, expected in cases]

    def test_search_in_the_sessions_of_a_user(self, store: SessionStore, name: str) -> None:
        """All sessions of the user are searched in time order, by page."""
        for at in range(3):
            id = f"{name}{at}"
            store.create(a_session(id, f"other {name}" if at == 2 else name))
            moments = [START + timedelta(hours=2 * n + at) for n in range(4)]
            events = [
                an_event(id, f"{at}{n}", f"word {n}", timestamp=m) for n, m in enumerate(moments)
            ]
            store.append(id, *events)

        every = ["00", "10", "01", "11", "02", "12", "03", "13"]
        assert store.search(name, keyword="word") == every
        assert store.search(name, keyword="word", page=1, page_size=3) == ["11", "02", "12"]
        assert store.search(name, last=3) == ["12", "03", "13"]
        assert store.search(name, pattern="[03]$", last=3) == ["10", "03", "13"]
        assert store.search(name, keyword="word", page=10**6, page_size=100) == []
        assert store.search(f"nobody {name}") == []

    def test_events_with_equal_times_keep_their_order(self, store: SessionStore, name: str) -> None:
        """Also if the summary has the time of what it summarises."""
        store.create(a_session(name, name))
        store.append(name, *(an_event(name, id) for id in "abc"))
        store.compact(name, "ab", an_event(name, "s", synthetic=True))

        assert store.search(name, last=3) == ["b", "c", "s"]

    # --- retention --------------------------------------------------------------------------

    def test_old_turns_are_deleted(self, store: SessionStore, name: str) -> None:
        """Turns are deleted completely, archived or not, then summaries and other old events."""
        days = [datetime(2000, 1, day, tzinfo=UTC) for day in range(1, 6)]
        store.create(a_session(name))
        units = [turn(number, 2) for number in range(4)]
        for number, unit in enumerate(units):
            times = [days[number]] * 2 + [days[number + 1]] * 2  # a turn that waited for a day
            own = [
                an_event(name, f"{number}{at}", message, timestamp=times[at])
                for at, message in enumerate(unit)
            ]
            note = EventPayload("test.NOTE")
            store.append(name, an_event(name, f"b{number}", branch="a", timestamp=times[0]), *own)
            store.append(name, an_event(name, f"n{number}", note, timestamp=times[0]))
        version = store.read(name).version
        summary = an_event(name, "s", "so far", synthetic=True, timestamp=days[0])
        payload = EventPayload("compaction", {"archived": ["b0", *(f"0{at}" for at in range(4))]})
        store.append(name, an_event(name, "c", payload, timestamp=days[0]), summary)

        assert store.call("delete_older", days[0]) == 0
        assert store.call("delete_older", days[2]) == 2 * 6 + 2
        log = store.read(name, EVERYTHING)
        assert [event.id[:1] for event in log.events] == [*"b2222nb3333n"]
        assert log.version > version + 2
        store.append(name, an_event(name, "next"))
        assert store.ids(name)[-1] == "next"
        assert store.call("delete_older", days[4]) == 2 * 6
        assert store.ids(name, types="*") == ["next"]

    # --- concurrency ------------------------------------------------------------------------

    def test_threads_can_append_concurrently(
        self, repository: SessionRepository, name: str
    ) -> None:
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

        log = drive(repository.read(name, BLOCKING))
        units = [event.id for event in log.events if "." in event.id]
        assert sum(added) == 8
        assert log.version == len(log.events) == 8 + 6 * 8 * 3
        for at in range(0, len(units), 3):
            start = units[at].rsplit(".", 1)[0]
            assert units[at : at + 3] == [f"{start}.{part}" for part in range(3)]
        for worker in range(6):
            own = [id for id in units if id.startswith(f"{worker}.")]
            assert own == sorted(own)

    def test_one_of_several_threads_appends_to_a_version(
        self, repository: SessionRepository, name: str
    ) -> None:
        """The others get the error."""
        drive(repository.create(a_session(name), BLOCKING))

        def append(worker: int) -> bool:
            events = [an_event(name, f"{worker}{part}") for part in range(2)]
            try:
                return drive(repository.append(name, events, BLOCKING, expected=0))
            except VersionConflictError as error:
                return error.actual == 0

        with ThreadPoolExecutor(6) as pool:
            done = list(pool.map(append, range(6)))

        log = drive(repository.read(name, BLOCKING))
        assert done.count(True) == 1
        assert [event.id for event in log.events] == [f"{done.index(True)}{n}" for n in range(2)]

    def test_the_event_loop_is_not_blocked(self, repository: SessionRepository, name: str) -> None:
        """All operations wait through the runtime."""

        async def use() -> None:
            session = a_session(name, name)
            await repository.create(session, ON_LOOP)
            await repository.save(session, ON_LOOP)
            await repository.find(name, ON_LOOP)
            await repository.find_by_user(name, ON_LOOP)
            await repository.find_by_metadata("kind", "x", ON_LOOP)
            await repository.find_expired(START, ON_LOOP)
            await repository.append(name, [an_event(name, "1")], ON_LOOP)
            await repository.read(name, ON_LOOP)
            await repository.search(name, ON_LOOP)
            await repository.delete(name, ON_LOOP)

        check_loop_is_free(use)
