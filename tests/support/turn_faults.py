"""Faults of a database of durable turns, which begin and end."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.support.databases import SERVERS
from tests.support.turn_databases import run_sql, turn_database

FAULTS = ["read-only", "locked", "disk-full"]


class ReadOnly:
    """A read-only PostgreSQL database, as after a failover to a replica."""

    setting = "default_transaction_read_only = on"

    def __init__(self, url: str) -> None:
        self.url = url
        self._name = sa.make_url(url).database

    def begin(self) -> None:
        self._set(f"set {self.setting}")

    def end(self) -> None:
        self._set(f"reset {self.setting.partition(' ')[0]}")

    def _set(self, change: str) -> None:
        server = SERVERS["postgresql"]
        run_sql(server, f"alter database {self._name} {change}")
        # It is the default of new connections.
        stop = "select pg_terminate_backend(pid) from pg_stat_activity where datname = :name"
        run_sql(server, stop, name=self._name)


class Locked(ReadOnly):
    """A PostgreSQL table that is locked for longer than statements may take."""

    setting = "statement_timeout = 300"

    def begin(self) -> None:
        super().begin()
        self._holder = sa.create_engine(self.url, poolclass=sa.NullPool).connect()
        self._holder.execute(sa.text("set statement_timeout = 0"))
        self._holder.execute(sa.text("lock table dbos.workflow_status in exclusive mode"))

    def end(self) -> None:
        self._holder.close()
        super().end()


class DiskFull:
    """An SQLite file on a separate file system that another file fills."""

    def __init__(self, folder: Path) -> None:
        self.url = f"sqlite:///{folder / 'turns.db'}"
        self._other = folder / "other"

    def begin(self) -> None:
        with self._other.open("wb", buffering=0) as file:
            try:
                while True:
                    file.write(bytes(4096))
            except OSError:
                pass

    def end(self) -> None:
        self._other.unlink()


Fault = ReadOnly | DiskFull


@contextmanager
def faulty_database(kind: str, folder: Path) -> Iterator[Fault]:
    """Yield a new database whose fault can begin and end."""
    if kind != "disk-full":
        with turn_database("postgresql", folder) as url:
            yield ReadOnly(url) if kind == "read-only" else Locked(url)
        return
    disk = folder / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=4m", "tmpfs", str(disk)]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("needs a file system of its own, which only root may mount")
    try:
        yield DiskFull(disk)
    finally:
        subprocess.run(["umount", "--lazy", str(disk)], check=True)
