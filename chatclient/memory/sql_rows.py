"""Rows that stand for a conversation or a session in an SQL database; needs SQLAlchemy."""

from typing import Any

import sqlalchemy as sa

from chatclient.memory.stored import digest


class VersionedRows:
    """The rows of a table, each found by a digest, with a version and the length of what it has.

    Every change of a conversation or session begins with an update of its row. That locks the row
    until the commit (with SQLite, the file), so that such changes come one after another.

    Args:
        table: Has the columns `id`, `digest`, `version` and `length`.
        *more: What else is wanted of a row.
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
        """Lock the row of *id* and change its version; return what it then is, or None.

        Args:
            connection: Where to.
            id: What the digest is of.
            more: By how much its length grows.
        """
        values = {"which": digest(id), "more": more}
        if connection.dialect.update_returning:
            return connection.execute(self._change_returning, values).one_or_none()
        if not connection.execute(self._change, values).rowcount:
            return None
        return connection.execute(self._find, {"which": values["which"]}).one()
