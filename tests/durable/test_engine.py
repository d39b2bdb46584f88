"""Engines of durable turns: what they refuse."""

import subprocess
import sys

import pytest

from chatclient import ChatClient
from chatclient.durable import connect, durable, launch
from chatclient.errors import UsageError
from chatclient.testing import ScriptedModel


def test_needs_engine_and_database() -> None:
    """Without an engine, or with another database, durable turns are refused."""
    client = durable(ChatClient.create(ScriptedModel()), name="no-engine")

    with pytest.raises(UsageError, match="launch"):
        client.start("Hi")
    for opening in (launch, connect):
        with pytest.raises(UsageError, match="PostgreSQL or SQLite"):
            opening("mysql://localhost/x")


def test_names_extra() -> None:
    """Without DBOS, recording works, and durable clients name the extra that they need."""
    code = (
        "import sys; sys.modules['dbos'] = None\n"
        "from chatclient.durable import Recording, durable\n"
        "from chatclient import ChatClient\n"
        "from chatclient.testing import ScriptedModel\n"
        "durable(ChatClient.create(ScriptedModel()), name='x')"
    )

    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)

    assert "pip install 'chatclient[dbos]'" in run.stderr
