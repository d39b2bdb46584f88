"""SQLite files that several threads and processes share."""

import sqlite3
import time
from typing import Any

BUSY_SECONDS = 30.0
"""How long a writer waits for a lock."""

_TEMPORARY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def write_ahead(connection: Any) -> None:
    """Switch the file of *connection* to write-ahead logging, so that readers never wait.

    Raises:
        sqlite3.Error: SQLite refused, for example because the file was locked for too long.
    """
    # The switch needs an exclusive lock and does not obey SQLite's busy timeout.
    ends = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _TEMPORARY or time.monotonic() > ends:
                raise
            time.sleep(0.01)
        else:
            return
