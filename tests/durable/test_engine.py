"""Engines of durable turns: what they refuse."""

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
