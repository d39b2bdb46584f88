"""Two MCP servers with 300 tools in all, for `terminal_agent.py` and any other MCP client.

python examples/mcp_servers.py units                # 160 tools that convert units
python examples/mcp_servers.py office office.db     # 140 tools for records in an SQLite file
"""

import sqlite3
import sys
from collections.abc import Callable
from itertools import permutations
from typing import Any

from chatclient.tools import Effect, FunctionToolCallback, McpToolServer, ToolMetadata

UNITS: dict[str, dict[str, float]] = {
    "length": {"metres": 1, "kilometres": 1e3, "centimetres": 0.01, "millimetres": 1e-3}
    | {"inches": 0.0254, "feet": 0.3048, "yards": 0.9144, "miles": 1609.344},
    "mass": {"kilograms": 1, "grams": 1e-3, "milligrams": 1e-6, "tonnes": 1e3}
    | {"pounds": 0.45359237, "ounces": 0.028349523125, "stones": 6.35029318},
    "volume": {"litres": 1, "millilitres": 1e-3, "centilitres": 0.01, "cubic_metres": 1e3}
    | {"gallons": 3.785411784, "pints": 0.473176473, "cups": 0.2365882365},
    "time": {"seconds": 1, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 604800},
}

KINDS = ["booking", "bug", "candidate", "contact", "contract", "course", "customer", "device"]
KINDS += ["employee", "event", "expense", "invoice", "lead", "note", "order", "project"]
KINDS += ["recipe", "task", "ticket", "vehicle"]


def conversion(dimension: str, one: str, other: str) -> FunctionToolCallback:
    """Return a tool that converts a unit to another one."""
    factor = UNITS[dimension][one] / UNITS[dimension][other]

    def convert(value: float) -> float:
        return float(f"{value * factor:.10g}")

    name = f"convert_{one}_to_{other}"
    metadata = ToolMetadata(effect="read")
    return FunctionToolCallback(
        convert, name=name, description=f"Convert a {dimension}.", metadata=metadata
    )


def record_tools(db: sqlite3.Connection, kind: str) -> list[FunctionToolCallback]:
    """Return the tools for one kind of records, which have a name and a text."""

    def add(name: str, text: str) -> str:
        db.execute("INSERT INTO records VALUES (?, ?, ?)", (kind, name, text))
        return f"Added {kind} {name}."

    def change(name: str, text: str) -> str:
        update = "UPDATE records SET text = ? WHERE kind = ? AND name = ?"
        return f"Changed {db.execute(update, (text, kind, name)).rowcount}."

    def delete(name: str) -> str:
        query = "DELETE FROM records WHERE kind = ? AND name = ?"
        return f"Deleted {db.execute(query, (kind, name)).rowcount}."

    def show(name: str) -> list[str]:
        query = "SELECT text FROM records WHERE kind = ? AND name = ?"
        return [text for (text,) in db.execute(query, (kind, name))]

    def find(word: str) -> list[str]:
        query = "SELECT name FROM records WHERE kind = ? AND instr(name || text, ?)"
        return [name for (name,) in db.execute(query, (kind, word))]

    def list_all() -> list[str]:
        return [name for (name,) in db.execute("SELECT name FROM records WHERE kind = ?", [kind])]

    def count() -> int:
        return len(list_all())

    def named(verb: str, function: Callable[..., Any], effect: Effect) -> FunctionToolCallback:
        return FunctionToolCallback(
            function,
            name=f"{verb}_{kind}",
            description=f"{verb.capitalize()} {kind}s in the office.",
            metadata=ToolMetadata(effect=effect),
        )

    return [
        named("add", add, "write"),
        named("change", change, "write"),
        named("delete", delete, "write"),
        named("show", show, "read"),
        named("find", find, "read"),
        named("list", list_all, "read"),
        named("count", count, "read"),
    ]


def units() -> McpToolServer:
    """Return the server that converts units."""
    tools = [
        conversion(dimension, one, other)
        for dimension, factors in UNITS.items()
        for one, other in permutations(factors, 2)
    ]
    return McpToolServer(tools, name="units")


def office(path: str) -> McpToolServer:
    """Return the server for records."""
    # Each statement is a transaction, and tools may run in other threads.
    db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    db.execute("CREATE TABLE IF NOT EXISTS records (kind TEXT, name TEXT, text TEXT)")
    tools = [tool for kind in KINDS for tool in record_tools(db, kind)]
    return McpToolServer(tools, name="office")


if __name__ == "__main__":
    server = office(*sys.argv[2:]) if sys.argv[1] == "office" else units()
    server.serve_stdio()
