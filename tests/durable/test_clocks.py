"""Durable turns of processes whose clocks differ: that of the database counts."""

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from chatclient.durable import connect
from chatclient.errors import DeadlineExceededError
from tests.support.paths import ROOT
from tests.support.turn_databases import KINDS, turn_database
from tests.support.turn_records import Shop, shop_client
from tests.support.waiting import settled

pytestmark = pytest.mark.process("durable worker")

HOUR = 3600.0

# The clock of the process is changed before anything else reads it.
_WORKER = """
import sys, time
from threading import Event
now, offset = time.time, float(sys.argv[2])
time.time = lambda: now() + offset
from chatclient.durable import launch
from tests.support.turn_records import Shop, shop_client
shop = Shop()
if sys.argv[3] == "answers":
    shop.go_on.set()
client = shop_client(shop)
with launch(sys.argv[1], takeover_seconds=2):
    print("runs", flush=True)
    sys.stdin.read()
"""


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with turn_database(request.param, tmp_path) as found:
        yield found


@contextmanager
def worker(url: str, offset: float, how: str = "answers") -> Iterator[subprocess.Popen[str]]:
    """Run turns in a process whose clock is *offset* seconds ahead."""
    command = [sys.executable, "-c", _WORKER, url, str(offset), how]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process: subprocess.Popen[str] = subprocess.Popen(command, cwd=ROOT, **pipes)  # type: ignore[call-overload]
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == "runs\n"
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("offset", [HOUR, -HOUR])
def test_clocks_that_differ(url: str, offset: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Deadlines and delays hold with processes that are two hours apart."""
    client, now = shop_client(Shop()), time.time
    monkeypatch.setattr(time, "time", lambda: now() - offset)
    with worker(url, offset), connect(url):
        began = time.monotonic()
        delayed = client.start("look tea", delay=3)
        in_time = client.start(client.prompt("look tea").deadline(600))
        late = client.start(client.prompt("look tea").deadline(0.001))
        assert in_time.result(60).content() == "Done."
        with pytest.raises(DeadlineExceededError):
            late.result(60)
        assert delayed.result(60).content() == "Done."
        assert 3 <= time.monotonic() - began < 30


def test_takeover(url: str) -> None:
    """The turn of a process is taken over when it has ended, and not before."""
    client = shop_client(Shop())
    with worker(url, HOUR, "waits") as first, connect(url):
        turn = client.start("look tea")
        assert settled(lambda: turn.status().state == "running")
        with worker(url, -HOUR):
            with pytest.raises(TimeoutError):
                turn.result(5)
            first.kill()

            assert turn.result(60).content() == "Done."
