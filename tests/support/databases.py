"""Database servers for tests of memory; each test has its own tables or keys."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import pytest
import redis
import sqlalchemy as sa
from sqlalchemy.exc import SQLAlchemyError

SERVERS = {
    "postgresql": os.environ.get(
        "CHATCLIENT_TEST_POSTGRES", "postgresql+psycopg://postgres@127.0.0.1:5432/test"
    ),
    # Without TLS: PyMySQL reads the certificates of the system for each connection.
    "mariadb": os.environ.get(
        "CHATCLIENT_TEST_MARIADB", "mariadb+pymysql://root@127.0.0.1:3306/test?ssl_disabled=true"
    ),
}
REDIS = os.environ.get("CHATCLIENT_TEST_REDIS", "redis://127.0.0.1:6379/0")
SQL_KINDS = ["sqlite", *SERVERS]
KINDS = [*SQL_KINDS, "redis"]


@cache
def absence(kind: str) -> str | None:
    """Return why a server is unavailable, or None."""
    try:
        if kind == "redis":
            with redis.Redis.from_url(REDIS, socket_timeout=5) as client:
                client.ping()
        elif kind in SERVERS:
            engine = sa.create_engine(SERVERS[kind], poolclass=sa.NullPool)
            with engine.connect():
                pass
    except (OSError, redis.RedisError, SQLAlchemyError) as error:
        return f"no {kind} server for tests: {type(error).__name__}"
    return None


def need(kind: str) -> None:
    """Skip the test if the server is unavailable."""
    reason = absence(kind)
    if reason is not None:
        pytest.skip(reason)


@contextmanager
def sql_place(kind: str, folder: Path) -> Iterator[tuple[str, str]]:
    """Yield a database URL and a prefix of tables, which are dropped afterwards."""
    need(kind)
    prefix = f"t{uuid4().hex[:12]}_"
    url = SERVERS.get(kind, f"sqlite:///{folder / f'{prefix}.db'}")
    try:
        yield url, prefix
    finally:
        if kind in SERVERS:
            drop_tables(url, prefix)


def drop_tables(url: str, prefix: str) -> None:
    """Drop every table whose name starts with *prefix*."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        names = sa.inspect(connection).get_table_names()
        if ours := [name for name in names if name.startswith(prefix)]:
            if engine.dialect.name != "postgresql":  # MariaDB ignores CASCADE
                connection.execute(sa.text("SET SESSION foreign_key_checks = 0"))
            connection.execute(sa.text(f"DROP TABLE {', '.join(ours)} CASCADE"))


@contextmanager
def redis_place() -> Iterator[tuple[str, str]]:
    """Yield the URL of Redis and a prefix of keys, which are deleted afterwards."""
    need("redis")
    prefix = f"test-{uuid4().hex[:12]}:"
    try:
        yield REDIS, prefix
    finally:
        with redis.Redis.from_url(REDIS) as client:
            for key in list(client.scan_iter(match=f"{prefix}*", count=1000)):
                client.delete(key)
