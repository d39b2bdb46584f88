"""Records of durable turns, as a release of chatclient stores them: writes and restores them.

    python -m tests.support.turn_records tests/durable/data/FORMAT.json

writes a file with the rows of turns of each kind. It is written once for each stored format, and
kept: later releases must read it.
"""

import asyncio
import contextlib
import json
import sys
import threading
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import sqlalchemy as sa

from chatclient import AssistantMessage, ChatClient, Prompt, UserMessage, tool
from chatclient.durable import DurableClient, durable, launch
from chatclient.durable.workflow import runners
from chatclient.errors import AuthenticationError, TurnCancelledError
from chatclient.testing import Answer, ScriptedModel, call
from chatclient.tools import ToolApproval, ToolCallingManager, ToolInvocation

TABLES = (
    *("workflow_status", "workflow_input", "workflow_output"),
    *("operation_outputs", "streams"),
)


class Shop:
    """Tools that record their runs."""

    def __init__(self) -> None:
        self.log: list[str] = []
        self.stopped, self.go_on = threading.Event(), threading.Event()

    def release(self) -> None:
        self.log.append("released")

    @tool(compensation="release")
    def reserve(self, item: str) -> str:
        """Reserve an item."""
        self.log.append(f"reserved {item}")
        return f"{item} reserved"

    @tool(effect="read")
    async def look(self, item: str) -> str:
        """Look an item up."""
        self.stopped.set()
        while not self.go_on.is_set():  # noqa: ASYNC110 - set by another thread
            await asyncio.sleep(0.01)
        self.log.append(f"looked {item}")
        return f"{item} costs 10"

    @tool
    def refund(self, item: str) -> str:
        """Refund an item."""
        self.log.append(f"refunded {item}")
        return f"{item} refunded"


def needs_approval(invocation: ToolInvocation) -> bool:
    return invocation.tool_call.name == "refund"


def answer(prompt: Prompt) -> Answer:
    """Call the tool that the user names with an item, as "look tea, refund tea", then answer."""
    begin = max(at for at, each in enumerate(prompt.messages) if isinstance(each, UserMessage))
    round = sum(isinstance(each, AssistantMessage) for each in prompt.messages[begin:])
    wanted = prompt.messages[begin].text.split(", ")
    if round >= len(wanted):
        return "Done."
    name, item = wanted[round].split()
    if name == "fail":
        raise AuthenticationError(item)
    return call(name, {"item": item}, id=f"c{round}")


def shop_client(shop: Shop) -> DurableClient:
    """Return the client of the turns, instead of that of an earlier test."""
    runners.pop("shop", None)
    manager = ToolCallingManager(interceptors=[ToolApproval(needed=needs_approval)])
    builder = ChatClient.builder(ScriptedModel(answer)).tool_calling_manager(manager)
    return durable(builder.default_tools(shop).build(), name="shop")


def run_turns(url: str) -> None:
    """Run a turn of each kind; the key says what kind it is."""
    shop = Shop()
    client = shop_client(shop)
    with launch(url):
        shop.go_on.set()
        client.call("look tea", key="answered", streaming=True)
        client.call("reserve tea, refund tea", key="waiting", streaming=True)
        decided = client.start("refund tea", key="decided", streaming=True)
        decided.result()
        decided.decide("approve")
        decided.result()
        with contextlib.suppress(AuthenticationError):
            client.call("fail key", key="failed")
        shop.go_on.clear()
        for key in ("cancelled", "interrupted"):
            shop.stopped.clear()
            turn = client.start("reserve tea, look tea", key=key)
            shop.stopped.wait()
            if key == "cancelled":
                turn.cancel()
                with contextlib.suppress(TurnCancelledError):
                    turn.result()


def read_rows(url: str) -> dict[str, list[dict[str, Any]]]:
    """Return the rows of all tables with records, without columns that are null."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.connect() as connection:
        return {
            table: [
                {name: value for name, value in row._mapping.items() if value is not None}
                for row in connection.execute(sa.text(f"select * from {table}"))
            ]
            for table in TABLES
        }


def restore(url: str, file: Path) -> None:
    """Add the rows in *file* to an SQLite database that has the tables."""
    engine = sa.create_engine(url, poolclass=sa.NullPool)
    with engine.begin() as connection:
        for table, rows in json.loads(file.read_text()).items():
            for row in rows:
                names = ", ".join(f'"{name}"' for name in row)
                values = ", ".join(f":{name}" for name in row)
                insert = f"insert into {table} ({names}) values ({values})"
                connection.execute(sa.text(insert), row)


def main(file: str) -> None:
    with TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/turns.db"
        run_turns(url)
        rows = read_rows(url)
    Path(file).write_text(json.dumps(rows, indent=1, sort_keys=True) + "\n")


if __name__ == "__main__":
    main(sys.argv[1])
