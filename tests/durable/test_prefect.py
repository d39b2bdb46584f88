"""Recorded turns in flows of Prefect, with a server of Prefect on loopback."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

pytest.importorskip("prefect")

APP = Path(__file__).with_name("prefect_app.py")
ROOT = APP.parents[2]

Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Start a server, and yield the environment of its clients."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    home = tmp_path_factory.mktemp("prefect")
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")},
        "DO_NOT_TRACK": "1",
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_HOME": str(home),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "prefect", "server", "start", "--host", "127.0.0.1"]
    with (
        (home / "server.log").open("w+") as log,
        subprocess.Popen(
            [*command, "--port", str(port)], env=environment, stdout=log, stderr=log
        ) as server,
    ):
        try:
            wait_for(server, environment["PREFECT_API_URL"], home / "server.log")
            yield environment
        finally:
            server.terminate()


def wait_for(server: "subprocess.Popen[bytes]", url: str, log: Path) -> None:
    """Wait until the server answers."""
    end = time.monotonic() + 120
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{url}/health").is_success:
                return
        except httpx.TransportError:
            time.sleep(0.2)
    pytest.fail(f"the server of Prefect does not answer: {log.read_text()[-2000:]}")


@pytest.fixture
def run(settings: dict[str, str], tmp_path: Path) -> Run:
    """Return a function that runs the flow in a new process."""
    environment = {**settings, "PREFECT_LOCAL_STORAGE_PATH": str(tmp_path / "results")}

    def run_app(**arguments: str) -> "subprocess.CompletedProcess[str]":
        given = [f"{name}={value}" for name, value in arguments.items()]
        return subprocess.run(
            [sys.executable, str(APP), str(tmp_path), *given],
            env=environment,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return run_app


def outcome_of(ran: "subprocess.CompletedProcess[str]") -> dict[str, Any]:
    assert ran.returncode == 0, ran.stderr
    found: dict[str, Any] = json.loads(ran.stdout.splitlines()[-1])
    return found


def test_continues_after_kill(run: Run, tmp_path: Path) -> None:
    """After SIGKILL in a model call and in tools, no finished step is repeated.

    The interrupted ones are, except for the tool that writes: it waits for a decision.
    """
    for where in ("model 1", "hold IC 1", "book IC 1"):
        assert run(crash=where).returncode == -signal.SIGKILL

    waiting = outcome_of(run())
    assert waiting["interrupted"] == ["d"]
    assert waiting["stored"] == []
    resume = json.dumps({"pending": waiting["pending"], "decisions": {"d": "booked"}})
    outcomes = [outcome_of(run(resume=resume)) for _ in range(2)]

    ran = (tmp_path / "log").read_text().splitlines()
    held = [each for each in ran if each.startswith("hold")]
    assert len(held) == 2
    assert len(set(held)) == 1, "another idempotency key"
    assert sorted(each for each in ran if each not in held) == [
        *("book IC 1", "model 0", "model 1", "model 1", "model 2", "model 3"),
        *("price IC 1", "price {IC} 2"),
    ]
    for outcome in outcomes:
        assert outcome["text"] == "Booked."
        assert outcome["stored"] == ["user", *["assistant", "tool"] * 3, "assistant"]


def test_deadline_counts_from_first_execution(run: Run) -> None:
    """A turn whose deadline passed while no process ran it fails, without new steps."""
    assert run(crash="model 1", deadline="600").returncode == -signal.SIGKILL

    late = run(deadline="0.01")

    assert "the deadline of the turn has passed; finished steps were not repeated" in late.stderr


def test_result_not_stored(run: Run, tmp_path: Path) -> None:
    """The turn stops, with nothing but a first step, if Prefect cannot store results."""
    (tmp_path / "file").touch()

    failed = run(storage=str(tmp_path / "file"))

    assert "Prefect has not stored the result of the step 'started'" in failed.stderr
    assert failed.returncode == 1
    assert not (tmp_path / "log").exists()
