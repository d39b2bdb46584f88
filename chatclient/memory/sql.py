"""Conversations in an SQL database."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from chatclient.errors import UsageError
from chatclient.memory.repository import ChatMemoryRepository, Conversation
from chatclient.messages import Message
from chatclient.runtime import Runtime

if TYPE_CHECKING:
    from sqlalchemy import URL, Engine


class SqlChatMemoryRepository(ChatMemoryRepository):
    """Keeps conversations in the tables of an SQL database, through SQLAlchemy.

    Verified with SQLite (the embedded default), PostgreSQL (through psycopg) and MariaDB (through
    pymysql); nothing in it is particular to them. Everything about a message is stored. Threads,
    event loops, processes and machines may share one database: each change is one transaction that
    begins with the conversation's row, so that changes of one conversation come one after another
    and those of different conversations do not wait for each other (with SQLite, all writers do).

    The driver is a plain one. A request on an event loop reaches it in a worker thread.

    Args:
        database: A URL such as `sqlite:///memory.db`, `postgresql://user:password@host/name` or
            `mysql://user:password@host/name`, or an SQLAlchemy engine. What is opened for a URL
            is closed by `close`; an engine stays its owner's.
            One for SQLite in memory has to have one database for all threads.
        table_prefix: What the names of the tables begin with.
        create_schema: Whether missing tables are created, and older ones brought up to date, with
            the first operation. Several processes may do so at once.

    Raises:
        UsageError: The URL cannot be used, or SQLAlchemy or its driver is not installed.
    """

    def __init__(
        self,
        database: "str | URL | Engine" = "sqlite:///chat_memory.db",
        *,
        table_prefix: str = "chatclient_",
        create_schema: bool = True,
    ) -> None:
        try:
            from chatclient.memory.sql_conversations import (  # noqa: PLC0415 - an extra
                SqlConversations,
            )
        except ModuleNotFoundError as error:
            msg = "SQL needs SQLAlchemy; pip install 'chatclient[sql]' (or [postgres], [mysql])"
            raise UsageError(msg) from error
        self._conversations = SqlConversations(
            database, table_prefix=table_prefix, create_schema=create_schema
        )

    async def load(
        self, conversation_id: str, runtime: Runtime, *, last: int | None = None
    ) -> Conversation:
        """Return the newest messages of a conversation; nothing else of it is read.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached.
            ChatMemoryError: What is stored cannot be read.
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
        """Add *messages* at the end of a conversation, in one transaction.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached. When it went away during
                the commit, the addition may have been made; with a key, it can be repeated.
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
        """Put *messages* in the place of all messages of a conversation, in one transaction.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached.
        """
        return await runtime.finish(
            self._conversations.replace, conversation_id, messages, expected
        )

    async def delete(self, conversation_id: str, runtime: Runtime) -> None:
        """Forget a conversation.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached.
        """
        await runtime.finish(self._conversations.delete, conversation_id)

    async def conversation_ids(self, runtime: Runtime) -> list[str]:
        """Return the ids of all conversations.

        Raises:
            ChatMemoryUnavailableError: The database cannot be reached.
        """
        return await runtime.finish(self._conversations.ids)

    def close(self) -> None:
        """Close the connections, if a URL was given."""
        self._conversations.close()
