"""The local model remembers, across turns, tool calls and processes."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatModel, ToolResponseMessage
from chatclient.memory import conversation_problems
from chatclient.memory.sql.repository import SqlChatMemoryRepository
from tests.support.paths import ROOT, SUPPORT

pytestmark = pytest.mark.live

WORKER = SUPPORT / "live_memory_worker.py"


def run_turns(database: Path, place: str, mode: str, *turns: tuple[str, bool]) -> list[Any]:
    """Run some turns in a separate process and return their results."""
    ran = subprocess.run(
        [sys.executable, str(WORKER), str(database), place, mode, json.dumps(turns)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    return [json.loads(line) for line in ran.stdout.splitlines()]


@pytest.mark.parametrize(
    ("place", "mode"), [("outside", "call"), ("inside", "astream")], ids=["outside", "inside"]
)
def test_fact_survives_turns_and_restart(
    local_model: ChatModel, tmp_path: Path, place: str, mode: str
) -> None:
    """A name is known after tool calls and a restart of the process."""
    database = tmp_path / "memory.db"
    before = run_turns(
        database,
        place,
        mode,
        ("My name is Ada. What is the weather in Paris?", True),
        ("Name one colour.", False),
        ("What is the weather in Amsterdam?", True),
    )
    assert "Paris" in before[0]["executed"][0]
    assert "Amsterdam" in before[2]["executed"][0]
    assert "19" in before[2]["text"]

    after = run_turns(
        database, place, mode, ("How much is two plus two?", False), ("What is my name?", False)
    )
    assert "4" in after[0]["text"] or "four" in after[0]["text"].lower()
    assert "Ada" in after[1]["text"]

    with SqlChatMemoryRepository(f"sqlite:///{database}") as repository:
        messages = repository.find_by_conversation_id("c-1")
    assert conversation_problems(messages, ending="answer") == ()
    assert sum(message.role == "user" for message in messages) == 5
    assert sum(isinstance(message, ToolResponseMessage) for message in messages) == 2
