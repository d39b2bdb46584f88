"""An engine on SQLite for all tests of a module, and names for their clients."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.durable import DurableClient, Engine, TurnQueue, durable, launch
from chatclient.testing import ScriptedModel
from chatclient.tools import ToolCallingManager

QUEUES = [
    TurnQueue("one", concurrency=1, poll_seconds=0.02),
    TurnQueue("keys", key_concurrency=1, poll_seconds=0.02),
    TurnQueue("paced", worker_concurrency=9, worker_rate=(2, 0.5), poll_seconds=0.02),
    TurnQueue("slow", rate=(2, 2.0), poll_seconds=0.02),
]

Make = Callable[..., DurableClient]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    path: Path = tmp_path_factory.mktemp("durable") / "turns.db"
    with launch(f"sqlite:///{path}", queues=QUEUES, takeover_seconds=60) as launched:
        yield launched


@pytest.fixture
def make(engine: Engine, request: pytest.FixtureRequest) -> Make:
    """Return a function that makes a durable client named after the test."""

    def make_client(
        model: ScriptedModel, *tools: Any, interceptors: Any = (), advisors: Any = (), **how: Any
    ) -> DurableClient:
        manager = ToolCallingManager(interceptors=interceptors)
        builder = ChatClient.builder(model).tool_calling_manager(manager)
        if tools:
            builder = builder.default_tools(*tools)
        client = builder.default_advisors(*advisors).build()
        return durable(client, name=request.node.name, **how)

    return make_client
