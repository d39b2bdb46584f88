"""Cancelled turns: nothing of them runs, and everything is undone, before they are `cancelled`."""

import asyncio
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from dbos import DBOS

from chatclient import ChatClient, ChatClientRequest, ChatClientResponse, Next, tool
from chatclient.durable import DurableClient, connect, durable, launch
from chatclient.durable.dbos_steps import DbosSteps
from chatclient.errors import ConversationBusyError, TurnCancelledError, UsageError
from chatclient.testing import ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolInvocation
from tests.support.turn_databases import KINDS, turn_database
from tests.support.waiting import settled


@pytest.fixture(params=KINDS)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    with turn_database(request.param, tmp_path) as found:
        yield found


class Hotel:
    """Tools that stop where the test wants, and what has happened."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.paying, self.go_on = threading.Event(), threading.Event()
        self.undoing, self.undo = threading.Event(), threading.Event()

    def free(self) -> None:
        self.undoing.set()
        assert self.undo.wait(30)
        self.log.append("freed")

    @tool(compensation="free")
    def book(self) -> str:
        """Book a room."""
        self.log.append("booked")
        return "booked"

    @tool
    def pay(self) -> str:
        """Pay for the room."""
        self.paying.set()
        assert self.go_on.wait(30)
        self.log.append("paid")
        return "paid"

    @tool(effect="read")
    async def wait(self) -> str:
        """Wait for ever."""
        self.paying.set()
        try:
            await asyncio.sleep(3600)
        finally:
            self.log.append("stopped")
        return ""


def needs_approval(invocation: ToolInvocation) -> bool:
    return invocation.tool_call.name == "approved"


@tool
def approved() -> str:
    """Do something that needs approval."""
    return ""


def guest(hotel: Hotel, *answers: Any, advisors: Any = ()) -> DurableClient:
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=needs_approval)])
    builder = ChatClient.builder(ScriptedModel(*answers)).tool_calling_manager(manager)
    client = builder.default_tools(hotel, approved).default_advisors(*advisors).build()
    return durable(client, name=uuid4().hex)


def test_cancelled_when_undone(url: str) -> None:
    """Until a plain tool has ended and calls are undone, no other turn of the conversation runs."""
    hotel = Hotel()
    client = guest(hotel, call("book"), call("pay"), "Hello.")
    with launch(url):
        conversation = client.conversation("c")
        turn = conversation.start("Book a room")
        assert hotel.paying.wait(30)

        turn.cancel()

        for event, log in [(hotel.go_on, ["booked", "paid"]), (hotel.undo, ["freed"])]:
            assert turn.status().state == "cancelling"
            with pytest.raises(ConversationBusyError) as busy:
                conversation.start("Hello?")
            assert busy.value.state == "cancelling"
            event.set()
            assert settled(lambda log=log: hotel.log[-len(log) :] == log)  # type: ignore[misc]
        with pytest.raises(TurnCancelledError):
            turn.result(60)
        assert turn.status().state == "cancelled"
        assert hotel.log == ["booked", "paid", "freed"]
        assert conversation.start("Hello?").result(60).content() == "Hello."


def test_cancelled_by_another_process(url: str) -> None:
    """The process that runs a turn finds out; an asynchronous tool ends at its next `await`."""
    hotel = Hotel()
    hotel.undo.set()
    client = guest(hotel, call("book"), call("wait"))
    with launch(url) as engine:
        turn = client.start("Book a room")
        assert hotel.paying.wait(30)

        engine.set_attributes(turn.id, {"cancel": True})  # as the other process does

        with pytest.raises(TurnCancelledError):
            turn.result(60)
    assert hotel.log == ["booked", "stopped", "freed"]


def test_cancels_turn_that_waits(url: str) -> None:
    """What a turn has done before it waits for a decision is undone, too."""
    hotel = Hotel()
    client = guest(hotel, call("book"), call("approved"))
    with launch(url):
        turn = client.start("Book a room")
        assert turn.result(60).pending_turn is not None

        turn.cancel()

        assert turn.status().state == "cancelling"
        with pytest.raises(UsageError, match="is cancelling"):
            turn.decide("approve")
        hotel.undo.set()
        with pytest.raises(TurnCancelledError):
            turn.result(60)
        with pytest.raises(TurnCancelledError):
            list(turn.events())
    assert hotel.log == ["booked", "freed"]


def test_cancelled_when_it_begins_to_wait(url: str) -> None:
    """A turn that begins to wait at the same time as it is cancelled does not wait."""
    client = guest(Hotel(), call("approved"))
    with launch(url) as engine:
        turn = client.start("Go")
        turn.result(60)
        engine.set_attributes(turn.id, {"cancel": True})

        with pytest.raises(TurnCancelledError):
            client.turn(turn.id).result(60)
        assert turn.status().state == "cancelled"


def test_cancels_decided_turn(url: str) -> None:
    """A turn that continues after decisions is cancelled."""
    hotel = Hotel()
    hotel.go_on.set()
    client = guest(hotel, call("approved"), call("wait"))
    with launch(url):
        turn = client.start("Go")
        turn.result(60)
        turn.decide("approve")
        assert hotel.paying.wait(30)

        turn.cancel()

        with pytest.raises(TurnCancelledError):
            turn.result(60)
        turn.cancel()  # has ended
        turn.delete()


def test_cancels_queued_turn(url: str) -> None:
    """A queued turn is cancelled immediately, also without a worker."""
    client = guest(Hotel(), "Hello.")
    with launch(url):
        pass
    with connect(url):
        turn = client.start("Hello?")

        turn.cancel()

        assert turn.status().state == "cancelled"
    with launch(url), pytest.raises(TurnCancelledError):
        client.turn(turn.id).result()


def test_advisor_that_catches_cancellation(url: str) -> None:
    """A cancelled turn ends although an advisor catches the error."""

    async def stubborn(request: ChatClientRequest, call_next: Next) -> ChatClientResponse:
        try:
            return await call_next(request)
        except asyncio.CancelledError:
            return await call_next(request)

    hotel = Hotel()
    hotel.undo.set()
    client = guest(hotel, call("book"), call("wait"), "Never.", advisors=[stubborn])
    with launch(url):
        turn = client.start("Book a room")
        assert hotel.paying.wait(30)

        turn.cancel()

        with pytest.raises(TurnCancelledError):
            turn.result(60)
    assert hotel.log == ["booked", "stopped", "freed"]


def test_cancelled_in_dbos(url: str) -> None:
    """A turn that is cancelled through DBOS stops as well."""
    hotel = Hotel()
    hotel.undo.set()
    client = guest(hotel, call("book"), call("wait"))
    with launch(url):
        turn = client.start("Book a room")
        assert hotel.paying.wait(30)

        DBOS.cancel_workflow(turn.id)

        assert settled(lambda: hotel.log[-1] == "freed")
        assert turn.status().state == "cancelled"


async def test_cancelled_while_the_record_is_repeated() -> None:
    """A turn that is continued after a crash repeats its whole record before it ends.

    Otherwise, calls that it has not repeated yet would not be undone, and it would not be known
    which one was interrupted.
    """
    steps = DbosSteps("turn")
    steps.recorded = {"model 1": "call", "tool book": "booked", "begin pay": True}
    repeated = []

    async def never() -> None:
        raise AssertionError

    async def turn() -> None:
        steps.cancel()
        await asyncio.sleep(0.01)  # the cancellation arrives
        repeated.append(await steps.step("model 1", never))
        repeated.append(await steps.step("tool book", never))
        await steps.step("tool pay", never)

    with pytest.raises(asyncio.CancelledError):
        await steps.execute(turn(), cancelled=False)
    assert repeated == ["call", "booked"]
    assert steps.interrupted == ["pay"]
