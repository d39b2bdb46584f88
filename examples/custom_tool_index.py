"""A custom tool index: full-text search in an SQLite file.

python examples/custom_tool_index.py
"""

import json
import re
import sqlite3
import time
from collections.abc import Sequence
from contextlib import closing
from typing import Any

from chatclient import ChatClient, Runtime, ToolCall, ToolContext
from chatclient.advisors import ToolSearchToolCallingAdvisor
from chatclient.tools import DataToolCallback, ToolDefinition
from chatclient.tools.search import ToolIndex, ToolReference, ToolSearchRequest, ToolSearchResponse


class SqliteToolIndex(ToolIndex):
    """Finds tools by the words of their names and descriptions.

    Args:
        path: The path of the file.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._known: dict[str, dict[str, ToolReference]] = {}
        with closing(sqlite3.connect(path)) as database, database:
            database.execute(
                "create virtual table if not exists tool using "
                "fts5(session unindexed, name, words, tokenize = 'porter')"
            )

    async def put(
        self, session_id: str, references: Sequence[ToolReference], runtime: Runtime
    ) -> None:
        """Replace the tools of a session; does nothing if they are unchanged."""
        known: dict[str, ToolReference] = {}
        for reference in references:
            known.setdefault(reference.tool_name, reference)
        if self._known.get(session_id) == known:
            return
        rows = [(session_id, name, _words(r)) for name, r in known.items()]
        await runtime.finish(self._replace, session_id, rows)
        self._known[session_id] = known

    async def find(self, request: ToolSearchRequest, runtime: Runtime) -> ToolSearchResponse:
        """Search the tools of one session."""
        started = time.perf_counter()
        known = self._known.get(request.session_id, {})
        rows = await runtime.finish(self._matching, request.session_id, request.query)
        found = [
            known[name].scored(score)
            for name, score in rows
            if name in known and request.admits(known[name])
        ]
        best = tuple(found[: request.limit()])
        seconds = time.perf_counter() - started
        return ToolSearchResponse(best, len(found), "sqlite", request.query, seconds)

    async def drop(self, session_id: str, runtime: Runtime) -> None:
        """Delete the tools of a session."""
        self._known.pop(session_id, None)
        await runtime.finish(self._replace, session_id, [])

    def _replace(self, session_id: str, rows: list[tuple[str, str, str]]) -> None:
        with closing(sqlite3.connect(self._path)) as database, database:
            database.execute("delete from tool where session = ?", (session_id,))
            database.executemany("insert into tool values (?, ?, ?)", rows)

    def _matching(self, session_id: str, query: str) -> list[tuple[str, float]]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        if not words:
            return []
        with closing(sqlite3.connect(self._path)) as database, database:
            return database.execute(
                "select name, -bm25(tool, 0, 2, 1) as score from tool "
                "where tool match ? and session = ? order by score desc",
                (words, session_id),
            ).fetchall()


def _words(reference: ToolReference) -> str:
    spelled = re.sub(r"[_\W]+|(?<=[a-z])(?=[A-Z])", " ", reference.tool_name)
    return f"{spelled} {reference.summary} {json.dumps(dict(reference.parameters))}"


if __name__ == "__main__":

    async def run(call: ToolCall, context: ToolContext) -> str:
        """Stand for what all these tools would do."""
        return f"{call.name} finds nothing for {context.get('user', 'nobody')}"

    nothing: dict[str, Any] = {"type": "object", "properties": {}}

    verbs, things = ("list", "create", "delete"), ("invoice", "ticket", "holiday", "server")
    tools = [
        DataToolCallback(
            ToolDefinition(f"{verb}_{thing}s", f"{verb.title()} the company's {thing}s.", nothing),
            run,
        )
        for verb in verbs
        for thing in things
    ]
    advisor = ToolSearchToolCallingAdvisor(SqliteToolIndex("tools.db"))
    client = ChatClient.builder("local").default_tools(tools).default_advisors(advisor).build()
    print(client.prompt("Which tickets are there?").call().content())
