"""Files of SQLite that threads and processes share."""

import sqlite3
import time
from typing import Any

BUSY_SECONDS = 30.0
"""How long a writer waits for another one."""

_PASSING = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_PROTOCOL)


def write_ahead(connection: Any) -> None:
    """Have the file of *connection* keep a write-ahead log, with which readers wait for nobody.

    Raises:
        sqlite3.Error: It cannot; somebody else may have the file for too long.
    """
    # Changing to it takes the file for a moment, and does not wait for others who do the same.
    ends = time.monotonic() + BUSY_SECONDS
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF not in _PASSING or time.monotonic() > ends:
                raise
            time.sleep(0.01)
        else:
            return
