"""Row locks and versions of conversations and sessions; imports SQLAlchemy."""

from typing import Any

import sqlalchemy as sa

from chatclient.memory.encoding import digest


class VersionedRows:
    """Rows with a version and a length, found by the digest of an id.

    Each change of a conversation or session begins with an update of its row. It locks the row
    (with SQLite, the file) until the commit, which serialises concurrent changes.

    Args:
        table: A table with the columns `id`, `digest`, `version` and `length`.
        *more: Further columns to return.
    """

    def __init__(self, table: sa.Table, *more: "sa.Column[Any]") -> None:
        columns = table.c
        mine = columns.digest == sa.bindparam("which")
        wanted = (columns.id, columns.version, columns.length, *more)
        changed = {
            "version": columns.version + 1,
            "length": columns.length + sa.bindparam("more"),
        }
        self._change = sa.update(table).where(mine).values(changed)
        self._change_returning = self._change.returning(*wanted)
        self._find = sa.select(*wanted).where(mine)

    def advance(self, connection: sa.Connection, id: str, more: int) -> Any:
        """Lock the row of *id*, increment its version, and return it; None if there is no row.

        Args:
            connection: The connection of the transaction.
            id: The id of the conversation or session.
            more: The number to add to the length.
        """
        values = {"which": digest(id), "more": more}
        if connection.dialect.update_returning:
            return connection.execute(self._change_returning, values).one_or_none()
        if not connection.execute(self._change, values).rowcount:
            return None
        return connection.execute(self._find, {"which": values["which"]}).one()
