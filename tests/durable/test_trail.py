"""The trails of durable turns, made again from their records."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient, tool
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.durable import TurnRetries
from chatclient.errors import OverloadedError, UsageError
from chatclient.memory import MessageWindowChatMemory
from chatclient.testing import (
    ExpectedToolCalls,
    ScriptedModel,
    TurnRecording,
    assert_passes,
    call,
    replay_turn,
)
from chatclient.tools import ToolApproval
from tests.durable.conftest import Make
from tests.support.paths import ROOT

RUNS: list[int] = []


@tool
def refund(order: int) -> str:
    """Refund an order."""
    RUNS.append(order)
    return f"refunded {order}"


REFUND = call("refund", {"order": 7}, id="c1")


@pytest.fixture(autouse=True)
def runs() -> list[int]:
    """The orders that were refunded."""
    RUNS.clear()
    return RUNS


def test_prompts_are_those_of_the_turn(make: Make, runs: list[int], tmp_path: Path) -> None:
    """The trail has the prompts that were sent, and becomes a test; nothing is called again."""
    model = ScriptedModel(REFUND, "Done.")
    client = make(model, refund)
    client.call("Refund 7!", key="k1")

    trail = asyncio.run(client.atrail(key="k1"))

    assert runs == [7]
    assert len(model.prompts) == 2
    operations: list[Any] = [step.operation for step in trail.steps]
    sent = [each.prompt.messages for each in operations if each.kind == "model"]
    assert sent == [prompt.messages for prompt in model.prompts]
    assert_passes(trail, ExpectedToolCalls(REFUND, order="exact"))
    TurnRecording.of(trail).save(tmp_path / "turn.json")
    assert replay_turn(TurnRecording.load(tmp_path / "turn.json"), client.client).difference is None


def test_history_is_that_before_the_turn(make: Make) -> None:
    """Later turns of the conversation are not part of the prompts, and nothing is stored."""
    memory = MessageWindowChatMemory()
    model = ScriptedModel("one", "two", "three")
    client = make(model, advisors=[MessageChatMemoryAdvisor(memory)])
    for key in ("k1", "k2", "k3"):
        client.call(client.prompt(f"Question {key}").conversation("c1"), key=f"h-{key}")
    before = memory.get("c1")

    prompts = [client.trail(key=f"h-{key}").rounds[0].messages for key in ("k1", "k2", "k3")]

    assert prompts == [1, 3, 5]
    assert memory.get("c1") == before


def test_agent(make: Make) -> None:
    """The steps of an agent are in its trail."""
    agent = ChatClient.builder(ScriptedModel(REFUND, "Done.")).default_tools(refund).build()
    model = ScriptedModel(call("desk", {"request": "Refund 7!"}), "Refunded.")
    client = make(model, agent.as_tool("desk", description="Refunds."))
    client.call("Refund 7!", key="k1")

    trail = client.trail(key="k1")

    assert_passes(trail.inner[0], ExpectedToolCalls("refund"))
    assert trail.usage.total_tokens == 60


def test_turn_that_waits(make: Make, runs: list[int]) -> None:
    """The trail ends with the call that waited, also after the decision."""
    client = make(ScriptedModel(REFUND, "Done."), refund, interceptors=[ToolApproval()])
    turn = client.start("Refund 7!", key="k1")
    turn.result()
    waiting = str(client.trail(turn.id))
    turn.decide("approve")
    turn.result()

    assert "refund" in waiting
    assert "waits for approval" in waiting
    assert "waits for approval" in str(client.trail(turn.id))
    assert runs == [7]


def test_failed_turn(make: Make) -> None:
    """The failed model calls are in the trail."""
    busy = OverloadedError("busy")
    model = ScriptedModel(busy, busy)
    client = make(model, retries=TurnRetries(attempts=2, seconds=0.01))
    with pytest.raises(OverloadedError):
        client.call("Hi!", key="k1")

    trail = client.trail(key="k1")

    assert [type(round_.error) for round_ in trail.rounds] == [OverloadedError] * 2
    assert len(model.prompts) == 2


def test_unknown_turn(make: Make) -> None:
    """There is no trail of a turn that does not exist, or has not ended."""
    client = make(ScriptedModel("Hello."))
    later = client.start("Hi!", key="k1", delay=60)

    with pytest.raises(UsageError):
        client.trail("none")
    with pytest.raises(UsageError, match="has not ended"):
        client.trail(later.id)
    later.cancel()


_APP = """
from chatclient import ChatClient
from chatclient.durable import durable, launch
from chatclient.testing import ScriptedModel

client = ChatClient.create(ScriptedModel("Hello."))
support = durable(client, name="support")

if __name__ == "__main__":
    with launch("sqlite:///turns.db"):
        print(support.call("Hi!", key="ticket 17").content())
"""


def test_command(tmp_path: Path) -> None:
    """One command makes a test of a turn in the database."""
    (tmp_path / "desk.py").write_text(_APP)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tmp_path), str(ROOT)])}

    def run(*arguments: str) -> str:
        command = [sys.executable, *arguments]
        done = subprocess.run(
            command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        return done.stdout + done.stderr

    database = ("--database", "sqlite:///turns.db")
    replay = ("-m", "chatclient", "replay", "ticket 17")

    assert "Hello." in run("desk.py")
    shown = run(*replay, "desk:support", *database, "--write-test", "test_desk.py")
    assert "in prompts: none\nfirst difference in answers: none" in shown
    assert "1 passed" in run("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_desk.py")
    assert (tmp_path / "ticket_17.json").exists()
    assert "must be a DurableClient" in run(*replay, "desk:client", *database)
