"""The rows of `SqlSessionRepository`; imports SQLAlchemy."""

from typing import Any

import sqlalchemy as sa

from chatclient._internal.json import loads
from chatclient.memory.encoding import (
    as_json,
    digest,
    entry_digest,
    message_json,
    message_of,
    microseconds,
    moment_of,
    restored,
    storable,
)
from chatclient.memory.sessions.event import MESSAGE, EventPayload, Session, SessionEvent

# The column `archived`: the place of an event in the view that a model gets. The compactions in the
# log define it; with the column, a view is read without them.
ACTIVE, ARCHIVED, OUTSIDE = 0, 1, 2  # OUTSIDE: not a message


def row_of_session(session: Session) -> dict[str, Any]:
    """Return the columns of *session*, without those of its log."""
    return {
        "digest": digest(session.id),
        "session_id": storable(session.id),
        "user_digest": digest(session.user_id),
        "user_id": storable(session.user_id),
        "created_at": microseconds(session.created_at),
        "expires_at": None if session.expires_at is None else microseconds(session.expires_at),
        "metadata": as_json(session.metadata, "the metadata of a session", session.id),
    }


def new_row(session: Session) -> dict[str, Any]:
    """Return the row of a new session."""
    return {**row_of_session(session), "version": 0, "length": 0}


def session_of(row: "sa.Row[Any]") -> Session:
    """Return the session of *row*."""
    return Session(
        restored(row.session_id),
        restored(row.user_id),
        moment_of(row.created_at),
        None if row.expires_at is None else moment_of(row.expires_at),
        loads(row.metadata),
    )


def row_of_event(event: SessionEvent) -> dict[str, Any]:
    """Return the columns of *event*, without those of its place in the log."""
    content = event.content
    if isinstance(content, EventPayload):
        role, state = "", OUTSIDE
        stored = as_json(content.data, "the data of an event", event.session_id)
    else:
        role, state = content.role, int(event.archived)
        stored = message_json(content)
    return {
        "digest": digest(event.id),
        "event_id": storable(event.id),
        "moment": microseconds(event.timestamp),
        "type": event.type,
        "role": role,
        "branch": None if event.branch is None else storable(event.branch),
        "synthetic": int(event.synthetic),
        "archived": state,
        "words": searchable(event.text.casefold()),
        "message": stored,
        "metadata": as_json(event.metadata, "the metadata of an event", event.session_id),
    }


def event_of(row: "sa.Row[Any]") -> SessionEvent:
    """Return the event of *row*, joined with its session."""
    is_message = row.type == MESSAGE
    return SessionEvent(
        restored(row.event_id),
        restored(row.session_id),
        moment_of(row.moment),
        message_of(row.message) if is_message else EventPayload(row.type, loads(row.message)),
        None if row.branch is None else restored(row.branch),
        loads(row.metadata),
        bool(row.synthetic),
        row.archived == ARCHIVED,
    )


def searchable(text: str) -> str:
    """Return *text* with characters replaced that some databases cannot store."""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def index_rows(session: Session) -> list[dict[str, Any]]:
    """Return the rows of *session* in the index of metadata, without the number of its row."""
    return [{"entry": entry_digest(name, value)} for name, value in sorted(session.indexed)]
