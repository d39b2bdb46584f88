"""The tables and queries of `SqlChatMemoryRepository`; imports SQLAlchemy."""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from chatclient.chat.messages import Message, SystemMessage
from chatclient.memory.encoding import (
    digest,
    message_json,
    messages_of,
    restored,
    stamped,
    storable,
)
from chatclient.memory.repository import NO_CONVERSATION, Conversation
from chatclient.memory.sql.database import Database, VersionedRows
from chatclient.memory.sql.errors import LostRaceError
from chatclient.memory.sql.schema import BIG_KEY, LONG_TEXT, TABLE_OPTIONS, Schema, create_tables

_FIRST_VERSIONS = 2**62


@dataclass(frozen=True, slots=True)
class Tables:
    """The tables of conversations.

    The positions of a conversation's messages count from 0 without gaps. The primary key of
    messages separates system messages from others, so that the newest others form one range.
    """

    conversations: sa.Table
    messages: sa.Table
    additions: sa.Table

    @classmethod
    def named(cls, prefix: str) -> "Tables":
        """Return the tables with names that begin with *prefix*."""
        metadata = sa.MetaData()
        conversations = sa.Table(
            f"{prefix}conversation",
            metadata,
            sa.Column("id", BIG_KEY, primary_key=True, autoincrement=True),
            sa.Column("digest", sa.String(64), nullable=False, unique=True),
            sa.Column("conversation_id", LONG_TEXT, nullable=False),
            sa.Column("version", sa.BigInteger, nullable=False),
            sa.Column("length", sa.Integer, nullable=False),
            **TABLE_OPTIONS,
        )
        messages = sa.Table(
            f"{prefix}message",
            metadata,
            _conversation_key(conversations),
            sa.Column("is_system", sa.SmallInteger, primary_key=True, autoincrement=False),
            sa.Column("position", sa.Integer, primary_key=True, autoincrement=False),
            sa.Column("message", LONG_TEXT, nullable=False),
            **TABLE_OPTIONS,
        )
        additions = sa.Table(
            f"{prefix}addition",
            metadata,
            _conversation_key(conversations),
            sa.Column("digest", sa.String(64), primary_key=True),
            **TABLE_OPTIONS,
        )
        return cls(conversations, messages, additions)

    def create(self, connection: sa.Connection) -> None:
        """Create the tables that do not exist."""
        create_tables(connection, self.conversations, self.messages, self.additions)


def _conversation_key(conversations: sa.Table) -> "sa.Column[Any]":
    key = sa.ForeignKey(conversations.c.id, ondelete="CASCADE")
    return sa.Column("conversation", BIG_KEY, key, primary_key=True, autoincrement=False)


class SqlConversations:
    """The operations of `SqlChatMemoryRepository`, each in one transaction."""

    def __init__(
        self, database: "str | sa.URL | sa.Engine", *, table_prefix: str, create_schema: bool
    ) -> None:
        self._tables = tables = Tables.named(table_prefix)
        schema = Schema("chat memory", [tables.create], prefix=table_prefix, create=create_schema)
        self._database = Database(database, schema)
        self._everything, self._newest = _queries(tables)
        self._rows = VersionedRows(tables.conversations)

    def load(self, conversation_id: str, last: int | None) -> Conversation:
        """Return the newest messages of a conversation."""
        values: dict[str, Any] = {"digest": digest(conversation_id)}
        query = self._everything
        if last is not None:
            query = self._newest
            values["last"] = max(last, 1)  # one row shows that the conversation exists
        rows = self._database.read(query, values)
        if not rows:
            return NO_CONVERSATION
        version, length = rows[0].version, rows[0].length
        if last == 0:
            rows = [row for row in rows if row.is_system]
        messages = messages_of([row.message for row in rows], conversation_id)
        older = length - len(messages)
        return Conversation(messages, version, complete=not older, older=older)

    def append(self, conversation_id: str, messages: Sequence[Message], key: str | None) -> bool:
        """Append *messages* to a conversation."""
        rows = _rows(messages)
        if not rows:
            return True
        return self._database.write(partial(self._append, conversation_id, rows, key))

    def replace(
        self, conversation_id: str, messages: Sequence[Message], expected: int | None
    ) -> bool:
        """Replace all messages of a conversation."""
        rows = _rows(messages)
        return self._database.write(partial(self._replace, conversation_id, rows, expected))

    def delete(self, conversation_id: str) -> None:
        """Delete a conversation."""
        self._database.write(partial(self._replace, conversation_id, [], None))

    def ids(self) -> list[str]:
        """Return the ids of all conversations."""
        column = self._tables.conversations.c.conversation_id
        return [restored(row[0]) for row in self._database.read(sa.select(column), {})]

    def ids_before(self, cutoff: datetime) -> list[str]:
        """Return the ids of conversations whose oldest message has an earlier or no time."""
        ids = []
        for row in self._database.read(_oldest(self._tables), {}):
            id = restored(row.conversation_id)
            [message] = messages_of([row.message], id)
            if message.stored_at is None or message.stored_at < cutoff:
                ids.append(id)
        return ids

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._database.close()

    def _append(
        self,
        conversation_id: str,
        rows: list[dict[str, Any]],
        key: str | None,
        connection: sa.Connection,
    ) -> bool:
        found = self._rows.advance(connection, conversation_id, len(rows))
        if found is None:
            conversation = self._create(connection, conversation_id, len(rows))
            length = 0
        else:
            conversation, length = found.id, found.length - len(rows)
        if key is not None and not self._insert_key(connection, conversation, key):
            return False
        self._insert(connection, conversation, rows, length)
        return True

    def _replace(
        self,
        conversation_id: str,
        rows: list[dict[str, Any]],
        expected: int | None,
        connection: sa.Connection,
    ) -> bool:
        found = self._rows.advance(connection, conversation_id, 0)
        if expected is not None and expected != (0 if found is None else found.version - 1):
            connection.rollback()
            return False
        tables = self._tables
        if found is not None:
            mine = tables.messages.c.conversation == found.id
            connection.execute(sa.delete(tables.messages).where(mine))
        if not rows:
            if found is not None:
                self._delete_conversation(connection, found.id)
            return True
        if found is None:
            conversation = self._create(connection, conversation_id, len(rows))
        else:
            conversation = found.id
            row = tables.conversations.c.id == conversation
            connection.execute(sa.update(tables.conversations).where(row).values(length=len(rows)))
        self._insert(connection, conversation, rows, 0)
        return True

    def _create(self, connection: sa.Connection, conversation_id: str, length: int) -> int:
        """Insert a row for a conversation and return its primary key."""
        values = {
            "digest": digest(conversation_id),
            "conversation_id": storable(conversation_id),
            # Random, so that a deleted and recreated conversation reuses no version.
            "version": random.randrange(1, _FIRST_VERSIONS),  # noqa: S311 - not a secret
            "length": length,
        }
        try:
            added = connection.execute(sa.insert(self._tables.conversations), values)
        except IntegrityError as error:  # created concurrently
            raise LostRaceError from error
        key: Any = added.inserted_primary_key
        number: int = key[0]
        return number

    def _insert_key(self, connection: sa.Connection, conversation: int, key: str) -> bool:
        """Insert an idempotency key; if it exists, roll back and return False."""
        values = {"conversation": conversation, "digest": digest(key)}
        try:
            connection.execute(sa.insert(self._tables.additions), values)
        except IntegrityError:
            connection.rollback()
            return False
        return True

    def _insert(
        self, connection: sa.Connection, conversation: int, rows: list[dict[str, Any]], start: int
    ) -> None:
        numbered = [
            {**row, "conversation": conversation, "position": position}
            for position, row in enumerate(rows, start)
        ]
        connection.execute(sa.insert(self._tables.messages), numbered)

    def _delete_conversation(self, connection: sa.Connection, conversation: int) -> None:
        tables = self._tables
        mine = tables.additions.c.conversation == conversation
        connection.execute(sa.delete(tables.additions).where(mine))
        row = tables.conversations.c.id == conversation
        connection.execute(sa.delete(tables.conversations).where(row))


def _rows(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [
        {
            "is_system": int(isinstance(m, SystemMessage)),
            "message": message_json(m),
        }
        for m in stamped(messages)
    ]


def _oldest(tables: Tables) -> sa.Executable:
    """Return the query for the oldest message of each conversation that is no system message."""
    conversations, messages = tables.conversations.c, tables.messages.c
    first = (
        sa.select(messages.conversation, sa.func.min(messages.position).label("position"))
        .where(messages.is_system == 0)
        .group_by(messages.conversation)
        .subquery()
    )
    return (
        sa.select(conversations.conversation_id, messages.message)
        .join_from(tables.messages, first, messages.conversation == first.c.conversation)
        .join(tables.conversations, messages.conversation == conversations.id)
        .where(messages.is_system == 0, messages.position == first.c.position)
    )


def _queries(tables: Tables) -> "tuple[sa.Executable, sa.Executable]":
    """Return the query for all messages of a conversation, and the one for the newest.

    Each is a single statement, so that it reads a consistent state.
    """
    conversations, messages = tables.conversations, tables.messages
    joined = messages.join(conversations, messages.c.conversation == conversations.c.id)
    statement = (
        sa.select(
            conversations.c.version,
            conversations.c.length,
            messages.c.is_system,
            messages.c.position,
            messages.c.message,
        )
        .select_from(joined)
        .where(conversations.c.digest == sa.bindparam("digest"))
    )
    # A scalar subquery instead of the join: with it, PostgreSQL scans the index backwards and
    # stops early; with the join, it reads and sorts all messages of the conversation.
    this = sa.select(conversations.c.id).where(conversations.c.digest == sa.bindparam("digest"))
    newest = (
        statement.where(
            messages.c.conversation == this.scalar_subquery(), messages.c.is_system == 0
        )
        .order_by(messages.c.position.desc())
        .limit(sa.bindparam("last"))
        .subquery()
    )
    system = statement.where(messages.c.is_system == 1).subquery()
    both = sa.union_all(sa.select(newest), sa.select(system)).order_by("position")
    return statement.order_by(messages.c.position), both
