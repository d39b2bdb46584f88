"""`SqlChatMemoryRepository`: conversations in an SQL database; imports SQLAlchemy."""

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
from chatclient.memory.repository import NO_CONVERSATION, ChatMemoryRepository, Conversation
from chatclient.memory.sql.database import (
    BIG_KEY,
    LONG_TEXT,
    TABLE_OPTIONS,
    Database,
    Schema,
    VersionedRows,
    create_tables,
)
from chatclient.memory.sql.engine import LostRaceError
from chatclient.runtime.runtime import Runtime

_FIRST_VERSIONS = 2**62


@dataclass(frozen=True, slots=True)
class _Tables:
    """The tables of conversations.

    The positions of a conversation's messages count from 0 without gaps. The primary key of
    messages separates system messages from others, so that the newest others form one range.
    """

    conversations: sa.Table
    messages: sa.Table
    additions: sa.Table

    @classmethod
    def named(cls, prefix: str) -> "_Tables":
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


class SqlChatMemoryRepository(ChatMemoryRepository):
    """Stores conversations in the tables of an SQL database, through SQLAlchemy.

    Tested with SQLite (the default), PostgreSQL (psycopg) and MariaDB (pymysql). Messages are
    stored completely. Threads, event loops, processes and machines may share one database: each
    change is a transaction that first locks the row of its conversation, so that changes of one
    conversation are serialised and different conversations do not block each other. With SQLite,
    all writers block each other.

    The driver is blocking; a request on an event loop calls it in a worker thread. All operations
    raise `ChatMemoryUnavailableError` if the database cannot be reached.

    Args:
        database: A URL such as `sqlite:///memory.db`, `postgresql://user:password@host/name` or
            `mysql://user:password@host/name`, or an SQLAlchemy engine. `close` closes the
            connections for a URL, but not a given engine. An engine for an in-memory SQLite
            database must share it between threads.
        table_prefix: The prefix of the table names.
        create_schema: Whether the first operation creates missing tables and upgrades old ones.
            Several processes may do so concurrently.

    Raises:
        UsageError: The URL is invalid, or SQLAlchemy or the driver is not installed.
    """

    def __init__(
        self,
        database: "str | sa.URL | sa.Engine" = "sqlite:///chat_memory.db",
        *,
        table_prefix: str = "chatclient_",
        create_schema: bool = True,
    ) -> None:
        self._tables = tables = _Tables.named(table_prefix)
        schema = Schema("chat memory", [tables.create], prefix=table_prefix, create=create_schema)
        self._database = Database(database, schema)
        self._everything, self._newest = _queries(tables)
        self._rows = VersionedRows(tables.conversations)

    # Messages are encoded and decoded where the database is called: not on an event loop.

    async def load(
        self, conversation_id: str, runtime: Runtime, *, last: int | None = None
    ) -> Conversation:
        """Return the newest messages of a conversation; others are not read.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached.
            ChatMemoryError: A stored message cannot be decoded.
        """

        def load() -> Conversation:
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

        return await runtime.finish(load)

    async def append(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        key: str | None = None,
    ) -> bool:
        """Append *messages* to a conversation, in one transaction.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached. If the connection was
                lost during the commit, the messages may be stored; with a key, it can be repeated.
        """
        if not messages:
            return True

        def append() -> bool:
            work = partial(self._append, conversation_id, _rows(messages), key)
            return self._database.write(work)

        return await runtime.finish(append)

    async def replace(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Replace all messages of a conversation, in one transaction."""

        def replace() -> bool:
            work = partial(self._replace, conversation_id, _rows(messages), expected)
            return self._database.write(work)

        return await runtime.finish(replace)

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a conversation."""
        await self.replace(conversation_id, (), runtime)

    async def conversation_ids(self, runtime: Runtime) -> list[str]:
        """Return the ids of all conversations."""
        query = sa.select(self._tables.conversations.c.conversation_id)
        return [restored(row[0]) for row in await runtime.finish(self._database.read, query, {})]

    async def ids_before(self, cutoff: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of conversations with messages stored before *cutoff*."""

        def find() -> list[str]:
            ids = []
            conversations, messages = self._tables.conversations.c, self._tables.messages.c
            first = (
                sa.select(messages.conversation, sa.func.min(messages.position).label("position"))
                .where(messages.is_system == 0)
                .group_by(messages.conversation)
                .subquery()
            )
            for row in self._database.read(
                sa.select(conversations.conversation_id, messages.message)
                .join_from(
                    self._tables.messages, first, messages.conversation == first.c.conversation
                )
                .join(self._tables.conversations, messages.conversation == conversations.id)
                .where(messages.is_system == 0, messages.position == first.c.position),
                {},
            ):
                id = restored(row.conversation_id)
                [message] = messages_of([row.message], id)
                if message.stored_at is None or message.stored_at < cutoff:
                    ids.append(id)
            return ids

        return await runtime.finish(find)

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
        if key is not None:
            addition = {"conversation": conversation, "digest": digest(key)}
            try:
                connection.execute(sa.insert(self._tables.additions), addition)
            except IntegrityError:  # the conversation has seen the key
                connection.rollback()
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
        if found is None:
            if not rows:
                return True
            conversation = self._create(connection, conversation_id, len(rows))
        else:
            conversation = found.id
            row = tables.conversations.c.id == conversation
            mine = tables.messages.c.conversation == conversation
            connection.execute(sa.delete(tables.messages).where(mine))
            if not rows:
                additions = tables.additions.c.conversation == conversation
                connection.execute(sa.delete(tables.additions).where(additions))
                connection.execute(sa.delete(tables.conversations).where(row))
                return True
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

    def _insert(
        self, connection: sa.Connection, conversation: int, rows: list[dict[str, Any]], start: int
    ) -> None:
        numbered = [
            {**row, "conversation": conversation, "position": position}
            for position, row in enumerate(rows, start)
        ]
        connection.execute(sa.insert(self._tables.messages), numbered)


def _rows(messages: Sequence[Message]) -> list[dict[str, Any]]:
    return [
        {
            "is_system": int(isinstance(m, SystemMessage)),
            "message": message_json(m),
        }
        for m in stamped(messages)
    ]


def _queries(tables: _Tables) -> "tuple[sa.Executable, sa.Executable]":
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
