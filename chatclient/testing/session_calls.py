"""Calls a session repository blocking or on an event loop, with sample sessions and events."""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from chatclient.chat.messages import Message, SystemMessage, UserMessage
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
from chatclient.testing.sample_conversations import EVERY_KIND, turn

T = TypeVar("T")

START = datetime(2026, 1, 1, 12, 30, 15, 123456, tzinfo=UTC)


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

    def create(self, session: Session) -> bool:
        """Create a session, and return whether it is new."""
        return self._run(lambda runtime: self.repository.create(session, runtime))

    def save(self, session: Session) -> None:
        """Create or update a session."""
        self._run(lambda runtime: self.repository.save(session, runtime))

    def find(self, session_id: str) -> Session | None:
        """Return a session."""
        return self._run(lambda runtime: self.repository.find(session_id, runtime))

    def find_by_user(self, user_id: str) -> list[Session]:
        """Return the sessions of a user."""
        return self._run(lambda runtime: self.repository.find_by_user(user_id, runtime))

    def find_by_metadata(self, name: str, value: str) -> list[str]:
        """Return the ids of the sessions with this metadata."""
        found = self._run(lambda runtime: self.repository.find_by_metadata(name, value, runtime))
        return [session.id for session in found]

    def find_expired(self, moment: datetime) -> list[str]:
        """Return the ids of expired sessions."""
        return self._run(lambda runtime: self.repository.find_expired(moment, runtime))

    def delete(self, session_id: str, expired: datetime | None = None) -> bool:
        """Delete a session, and return whether it existed."""
        return self._run(
            lambda runtime: self.repository.delete(session_id, runtime, expired=expired)
        )

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

    def version(self, session_id: str) -> int:
        """Return the version of a log."""
        return self.read(session_id, EVERYTHING).version

    def search(self, user_id: str, **filter: Any) -> list[str]:
        """Return the ids of the selected events of a user."""
        wanted = EventFilter(**filter)
        found = self._run(lambda runtime: self.repository.search(user_id, runtime, wanted))
        return [event.id for event in found]

    def delete_older(self, cutoff: datetime) -> int:
        """Delete old turns, and return the number of events."""
        return self._run(lambda runtime: self.repository.delete_older(cutoff, runtime))

    def _run(self, start: Callable[[Runtime], Coroutine[Any, Any, T]]) -> T:
        return drive(start(BLOCKING)) if self.blocking else asyncio.run(start(ON_LOOP))
