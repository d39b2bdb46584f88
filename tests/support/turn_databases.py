"""Databases of durable turns for tests, and changes by other writers."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from uuid import uuid4

import sqlalchemy as sa

from tests.support.databases import SERVERS, need

KINDS = ["sqlite", "postgresql"]


@contextmanager
def turn_database(kind: str, folder: Path) -> Iterator[str]:
    """Yield the URL of a new database, which is dropped afterwards."""
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'turns.db'}"
        return
    need("postgresql")
    name = f"durable_{uuid4().hex[:12]}"
    run_sql(SERVERS["postgresql"], f"create database {name}")
    try:
        yield sa.make_url(SERVERS["postgresql"]).set(database=name).render_as_string(False)
    finally:
        run_sql(SERVERS["postgresql"], f"drop database {name} with (force)")


def run_sql(url: str, statement: str, **values: object) -> None:
    """Execute *statement*, in which tables of DBOS are `{dbos}table`."""
    schema = "" if url.startswith("sqlite") else "dbos."
    engine = sa.create_engine(url, isolation_level="AUTOCOMMIT", poolclass=sa.NullPool)
    with engine.connect() as connection:
        connection.execute(sa.text(statement.replace("{dbos}", schema)), values)
