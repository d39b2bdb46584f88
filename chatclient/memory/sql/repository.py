"""`SqlChatMemoryRepository`: conversations in an SQL database."""

from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING

from chatclient._internal.extras import needed_by
from chatclient.chat.messages import Message
from chatclient.memory.repository import ChatMemoryRepository, Conversation
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine


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
        database: "str | URL | Engine" = "sqlite:///chat_memory.db",
        *,
        table_prefix: str = "chatclient_",
        create_schema: bool = True,
    ) -> None:
        with needed_by("SqlChatMemoryRepository"):
            from chatclient.memory.sql.conversations import (  # noqa: PLC0415 - an extra
                SqlConversations,
            )
        self._conversations = SqlConversations(
            database, table_prefix=table_prefix, create_schema=create_schema
        )

    async def load(
        self, conversation_id: str, runtime: Runtime, *, last: int | None = None
    ) -> Conversation:
        """Return the newest messages of a conversation; others are not read.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached.
            ChatMemoryError: A stored message cannot be decoded.
        """
        return await runtime.finish(self._conversations.load, conversation_id, last)

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
        return await runtime.finish(self._conversations.append, conversation_id, messages, key)

    async def replace(
        self,
        conversation_id: str,
        messages: Sequence[Message],
        runtime: Runtime,
        *,
        expected: int | None = None,
    ) -> bool:
        """Replace all messages of a conversation, in one transaction."""
        return await runtime.finish(
            self._conversations.replace, conversation_id, messages, expected
        )

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Delete a conversation."""
        await runtime.finish(self._conversations.delete, conversation_id)

    async def conversation_ids(self, runtime: Runtime) -> list[str]:
        """Return the ids of all conversations."""
        return await runtime.finish(self._conversations.ids)

    async def ids_before(self, cutoff: datetime, runtime: Runtime) -> list[str]:
        """Return the ids of conversations with messages stored before *cutoff*."""
        return await runtime.finish(self._conversations.ids_before, cutoff)

    def close(self) -> None:
        """Close the connections if they were opened for a URL."""
        self._conversations.close()
