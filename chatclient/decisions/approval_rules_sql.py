"""`SqlApprovalRules`: approval rules in a table of a database."""

import hashlib
import json
from collections.abc import Awaitable, Callable

import sqlalchemy as sa

from chatclient.decisions.approval_rules import ApprovalRule, ApprovalRules, user_of
from chatclient.tools.execution.approval import ToolInvocation


class SqlApprovalRules(ApprovalRules):
    """Keeps approval rules in a database, so that they hold in all processes.

    Args:
        engine: An engine of SQLAlchemy, which the application disposes of.
        table: The name of the table, which is created if it is missing.
        owner: See `ApprovalRules`.
    """

    def __init__(
        self,
        engine: sa.Engine,
        table: str = "approval_rule",
        *,
        owner: Callable[[ToolInvocation], str | Awaitable[str | None] | None] = user_of,
    ) -> None:
        super().__init__(owner=owner)
        self._engine = engine
        metadata = sa.MetaData()
        self._table = sa.Table(
            table,
            metadata,
            # A digest: names may be long, and MySQL's keys are not case-sensitive.
            sa.Column("owner", sa.String(64), primary_key=True),
            sa.Column("id", sa.String(64), primary_key=True),
            sa.Column("rule", sa.Text, nullable=False),
        )
        metadata.create_all(engine)

    def add(self, owner: str, rule: ApprovalRule) -> None:
        """Store *rule* of *owner*; it replaces the one with its id."""
        row = {"owner": _digest(owner), "id": rule.id, "rule": json.dumps(rule.to_dict())}
        with self._engine.begin() as connection:
            connection.execute(self._delete(owner, rule.id))
            connection.execute(sa.insert(self._table).values(row))

    def remove(self, owner: str, id: str) -> None:
        """Delete the rule with *id* of *owner*, if there is one."""
        with self._engine.begin() as connection:
            connection.execute(self._delete(owner, id))

    def of(self, owner: str) -> list[ApprovalRule]:
        """Return the rules of *owner*; they may have expired."""
        columns = self._table.c
        query = sa.select(columns.rule).where(columns.owner == _digest(owner))
        with self._engine.connect() as connection:
            return [ApprovalRule.from_dict(json.loads(rule)) for rule in connection.scalars(query)]

    def _delete(self, owner: str, id: str) -> sa.Delete:
        columns = self._table.c
        return sa.delete(self._table).where(columns.owner == _digest(owner), columns.id == id)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
