"""Faults of the database, and processes that end: no turn fails, is lost or runs for ever."""

import asyncio
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from sqlalchemy.exc import DBAPIError

from chatclient import (
    ChatClient,
    ChatClientRequest,
    ChatClientResponse,
    Done,
    Next,
    ToolCallFinished,
    tool,
)
from chatclient.chain.chain import HIGHEST_PRECEDENCE
from chatclient.durable import DurableClient, TurnQueue, durable, launch
from chatclient.durable.dbos_steps import JsonSerializer
from chatclient.testing import ScriptedModel, call
from tests.support.turn_databases import KINDS, run_sql, turn_database
from tests.support.turn_faults import FAULTS, Fault, faulty_database
from tests.support.waiting import settled


@pytest.fixture(params=FAULTS)
def fault(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Fault]:
    with faulty_database(request.param, tmp_path) as found:
        yield found


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with turn_database(request.param, tmp_path) as found:
        yield found


class Gate:
    """A place where a turn stops until the test opens it."""

    def __init__(self) -> None:
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.times = 0

    async def stop(self) -> None:
        self.times += 1
        self.reached.set()
        while not self.go_on.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)


class StopBeforeEnd:
    """An advisor around the tool loop that stops when the turn has its answer."""

    order = HIGHEST_PRECEDENCE

    def __init__(self, gate: Gate) -> None:
        self.gate = gate

    async def __call__(self, request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        response = await call_next(request)
        await self.gate.stop()
        return response


class Booking:
    """A client whose turn stops in its tool, and before its end."""

    def __init__(self) -> None:
        self.tool, self.end, self.undone = Gate(), Gate(), 0

        def cancel() -> None:
            self.undone += 1

        @tool(compensation=cancel)
        async def book() -> str:
            """Book a room."""
            await self.tool.stop()
            return "booked"

        self.model = ScriptedModel(call("book"), "Done.")
        builder = ChatClient.builder(self.model).default_tools(book)
        client = builder.default_advisors(StopBeforeEnd(self.end)).build()
        self.durable: DurableClient = durable(client, name=uuid4().hex)


def waits(caplog: pytest.LogCaptureFixture, text: str) -> bool:
    """Return whether something is soon logged that contains *text*."""
    return settled(lambda: text in caplog.text)


def test_waits_for_its_database(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    """If a step cannot be stored, its value is kept and stored later; nothing is repeated."""
    booking = Booking()
    with launch(fault.url, takeover_seconds=20):
        turn = booking.durable.start("Book", streaming=True)
        assert booking.tool.reached.wait(30)
        fault.begin()
        booking.tool.go_on.set()
        assert waits(caplog, "the turn waits for its database")
        fault.end()
        booking.end.go_on.set()

        assert turn.result(60).content() == "Done."
        events = list(turn.events())
    assert [each.response.data for each in events if isinstance(each, ToolCallFinished)] == [
        "booked"
    ]
    assert isinstance(events[-1], Done)
    assert (len(booking.model.prompts), booking.tool.times, booking.undone) == (2, 1, 0)


@pytest.mark.parametrize("fault", ["read-only"], indirect=True)
def test_methods_without_database(fault: Fault) -> None:
    """Methods wait for a lost connection, and raise other errors of the database."""
    client = durable(ChatClient.create(ScriptedModel("Hi.")), name=uuid4().hex)
    with launch(fault.url, takeover_seconds=20):
        fault.begin()
        with pytest.raises(DBAPIError, match="read-only"):
            client.start("Hello")
        fault.end()  # which ends all connections

        assert client.call("Hello").content() == "Hi."


def test_end_that_cannot_be_stored(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    """A turn whose end could not be stored is continued from its record by the living process."""
    booking = Booking()
    booking.tool.go_on.set()
    logging.getLogger("dbos").addHandler(caplog.handler)  # it may not propagate
    with launch(fault.url, takeover_seconds=1):
        turn = booking.durable.start("Book")
        assert booking.end.reached.wait(30)
        fault.begin()
        booking.end.go_on.set()
        assert waits(
            caplog, "Exception encountered in asynchronous workflow"
        )  # in which the end is stored
        fault.end()

        assert turn.result(60).content() == "Done."
    logging.getLogger("dbos").removeHandler(caplog.handler)
    assert booking.end.times == 2
    assert (len(booking.model.prompts), booking.tool.times, booking.undone) == (2, 1, 0)


def without_delay(url: str) -> None:
    """Change the database as if turns had been started without a delay."""
    change = "update {dbos}workflow_input set inputs = replace(inputs, :name, :other)"
    run_sql(url, change, name='"not_before"', other='"nothing"')


def begun_elsewhere(url: str, turn_id: str) -> None:
    """Change the database as if a process named "ended" ran a turn."""
    without_delay(url)
    run_sql(
        url,
        "update {dbos}workflow_status set status = 'PENDING', executor_id = 'ended',"
        " application_version = (select version_name from {dbos}application_versions),"
        " updated_at = updated_at - 90000000 where workflow_uuid = :id",
        id=turn_id,
    )


def seen_elsewhere(url: str, hours_ago: int) -> None:
    """Change when the process named "ended" was last seen in the database."""
    now = "extract(epoch from now())" if "postgresql" in url else "strftime('%s', 'now')"
    insert = "insert into chatclient_executors (id, version, seen_at) select 'ended',"
    seen = f" version_name, {now} - {hours_ago * 3600} from {{dbos}}application_versions"
    run_sql(url, insert + seen)


@pytest.mark.parametrize("seen_hours_ago", [25, None])
def test_process_that_ended_long_ago(url: str, seen_hours_ago: int | None) -> None:
    """Turns of a process that ended days ago are continued, also if nothing is left of it."""
    client = durable(ChatClient.create(ScriptedModel("Hi.")), name=uuid4().hex)
    with launch(url, takeover_seconds=0.4):
        turn = client.start("Hello", delay=3600)
    begun_elsewhere(url, turn.id)
    if seen_hours_ago is not None:
        seen_elsewhere(url, seen_hours_ago)

    with launch(url, takeover_seconds=0.4):
        assert client.turn(turn.id).result(60).content() == "Hi."


@pytest.mark.parametrize("fault", ["read-only"], indirect=True)
def test_no_takeover_after_a_fault(fault: Fault, caplog: pytest.LogCaptureFixture) -> None:
    """Other processes could not give signs of life either: they first get the time to do so."""
    client, takeover_seconds = durable(ChatClient.create(ScriptedModel("Hi.")), name="later"), 4
    with launch(fault.url, takeover_seconds=takeover_seconds):
        turn = client.start("Hello", delay=3600)
        began = time.monotonic()
        fault.begin()
        assert waits(caplog, "liveness not updated")
        fault.end()
        seen_elsewhere(fault.url, hours_ago=1)
        begun_elsewhere(fault.url, turn.id)

        assert turn.result(60).content() == "Hi."
    assert time.monotonic() - began > takeover_seconds


_OLDER = """
import os, sys
import chatclient._internal.version
chatclient._internal.version.__version__ = "0.0.1"
from chatclient import ChatClient
from chatclient.durable import durable, launch
from chatclient.durable.dbos_steps import JsonSerializer
from chatclient.testing import ScriptedModel
client = durable(ChatClient.create(ScriptedModel(lambda _: os._exit(9))), name="upgraded")
engine = launch(sys.argv[1])
client.call("Hello", key="a")
"""


def test_upgrade_without_version(tmp_path: Path) -> None:
    """Without a version of the application, another release of the library continues its turns."""
    url = f"sqlite:///{tmp_path / 'turns.db'}"
    older = subprocess.run([sys.executable, "-c", _OLDER, url], check=False)
    assert older.returncode == 9

    client = durable(ChatClient.create(ScriptedModel("Hi.")), name="upgraded")
    with launch(url, takeover_seconds=0.4):
        turn = client.turn(key="a")
        assert turn.result(60).content() == "Hi."
        assert turn.status().version is None


def test_applications_without_version(tmp_path: Path) -> None:
    """Applications that name no version may share a database."""
    url = f"sqlite:///{tmp_path / 'turns.db'}"
    client = durable(ChatClient.create(ScriptedModel("Hi.", "Hi.")), name=uuid4().hex)

    for application in ("shop", "office"):
        with launch(url, application=application):
            assert client.call("Hello").content() == "Hi."


def test_taken_turn_that_was_not_begun(url: str) -> None:
    """A turn that a process has taken from a queue, but does not run, is continued by it."""
    client = durable(ChatClient.create(ScriptedModel("Hi.")), name=uuid4().hex)
    with launch(url, takeover_seconds=0.4):
        turn = client.start("Hello", delay=3600)
        without_delay(url)
        run_sql(
            url,
            "update {dbos}workflow_status set status = 'PENDING', owner_xid = 'lost',"
            " executor_id = (select id from chatclient_executors),"
            " application_version = (select version_name from {dbos}application_versions),"
            " updated_at = updated_at - 90000 where workflow_uuid = :id",
            id=turn.id,
        )
        assert turn.result(60).content() == "Hi."


def test_error_of_the_database_in_the_record(url: str) -> None:
    """What DBOS has recorded when a step could not be stored is not taken for its value."""
    client = durable(ChatClient.create(ScriptedModel("Hi.")), name=uuid4().hex)
    with launch(url, queues=[TurnQueue("any", poll_seconds=0.02)]):
        run_sql(
            url,
            "insert into {dbos}operation_outputs (workflow_uuid, function_id, function_name, error"
            ", serialization, retention_timestamp) values (:id, 1, 'model 0', :error"
            ", 'chatclient_json', 0)",
            id=client.turn(key="a").id,
            error=JsonSerializer().serialize(OSError("read-only")),
        )
        assert client.call("Hello", key="a", queue="any").content() == "Hi."
