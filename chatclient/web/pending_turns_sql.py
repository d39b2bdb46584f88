"""`SqlPendingTurns`: turns that wait for a frontend, in a table of a database."""

import hashlib

import sqlalchemy as sa
from sqlalchemy.exc import IntegrityError

from chatclient.chat.pending_turn import PendingTurn


class SqlPendingTurns:
    """Keeps pending turns in a database, so that they survive a restart.

    Args:
        engine: An engine of SQLAlchemy, which the application disposes of.
        table: The name of the table, which is created if it is missing.
    """

    def __init__(self, engine: sa.Engine, table: str = "chat_pending_turn") -> None:
        self._engine = engine
        metadata = sa.MetaData()
        # MySQL's TEXT ends at 64 KiB.
        long_text = sa.Text().with_variant(sa.Text(2**32 - 1), "mysql", "mariadb")
        self._table = sa.Table(
            table,
            metadata,
            # A digest: ids may be long, and MySQL's keys are not case-sensitive.
            sa.Column("conversation", sa.String(64), primary_key=True),
            sa.Column("turn_id", sa.String(64), nullable=False),
            sa.Column("turn", long_text, nullable=False),
        )
        metadata.create_all(engine)

    def put(self, conversation_id: str, turn: PendingTurn) -> bool:
        """Store *turn*; return False if the conversation has one."""
        text = turn.to_json()
        row = {"conversation": _digest(conversation_id), "turn_id": _digest(text), "turn": text}
        try:
            with self._engine.begin() as connection:
                connection.execute(sa.insert(self._table).values(row))
        except IntegrityError:
            return False
        return True

    def get(self, conversation_id: str) -> PendingTurn | None:
        """Return the turn of the conversation, or None."""
        columns = self._table.c
        query = sa.select(columns.turn).where(columns.conversation == _digest(conversation_id))
        with self._engine.connect() as connection:
            text = connection.scalar(query)
        return None if text is None else PendingTurn.from_json(text)

    def take(self, conversation_id: str, turn: PendingTurn) -> bool:
        """Delete *turn*; return True for one caller only."""
        columns = self._table.c
        same = columns.turn_id == _digest(turn.to_json())
        mine = columns.conversation == _digest(conversation_id)
        with self._engine.begin() as connection:
            deleted = connection.execute(sa.delete(self._table).where(mine, same))
        return deleted.rowcount == 1


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
