"""Two MCP servers with 300 tools in all, for `terminal_agent.py` and any other MCP client.

python examples/mcp_servers.py units                # 120 tools that convert units
python examples/mcp_servers.py office records/      # 180 tools for records in JSON files
"""

import json
import sys
from collections.abc import Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Literal

from chatclient.mcp import McpToolServer
from chatclient.tools import FunctionToolCallback, ToolMetadata

UNITS: dict[str, Mapping[str, float]] = {
    "length": {"metres": 1, "kilometres": 1e3, "centimetres": 0.01, "millimetres": 1e-3}
    | {"inches": 0.0254, "feet": 0.3048, "yards": 0.9144, "miles": 1609.344},
    "mass": {"kilograms": 1, "grams": 1e-3, "milligrams": 1e-6, "tonnes": 1e3}
    | {"pounds": 0.45359237, "ounces": 0.028349523125, "stones": 6.35029318},
    "volume": {"litres": 1, "millilitres": 1e-3, "centilitres": 0.01, "cubic_metres": 1e3}
    | {"gallons": 3.785411784, "pints": 0.473176473, "cups": 0.2365882365},
    "area": {"square_metres": 1, "square_kilometres": 1e6, "hectares": 1e4}
    | {"acres": 4046.8564224, "square_feet": 0.09290304, "square_miles": 2589988.110336},
    "speed": {"metres_per_second": 1, "kilometres_per_hour": 1 / 3.6}
    | {"miles_per_hour": 0.44704, "knots": 1852 / 3600, "feet_per_second": 0.3048},
    "energy": {"joules": 1, "kilojoules": 1e3, "calories": 4.184, "kilocalories": 4184}
    | {"kilowatt_hours": 3.6e6},
    "time": {"seconds": 1.0, "minutes": 60, "hours": 3600, "days": 86400, "weeks": 604800}
    | {"years": 31557600},
}

KINDS = ["booking", "bug", "candidate", "contact", "contract", "course", "customer", "device"]
KINDS += ["employee", "event", "expense", "invoice", "lead", "note", "order", "project"]
KINDS += ["recipe", "task", "ticket", "vehicle"]


def conversion(dimension: str, one: str, other: str) -> FunctionToolCallback:
    """Return a tool that converts between two units."""
    factor = UNITS[dimension][one] / UNITS[dimension][other]

    def convert(value: float, into: Literal[one, other]) -> float:  # type: ignore[valid-type]
        return float(f"{value * factor if into == other else value / factor:.10g}")

    return FunctionToolCallback(
        convert,
        name=f"convert_{one}_and_{other}",
        description=f"Convert a {dimension} in {one} into {other}, or the other way round.",
        metadata=ToolMetadata(effect="read"),
    )


class Records:
    """Records of one kind, which have a name and a text, in a JSON file."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.kind = kind
        self.file = folder / f"{kind}s.json"
        self.texts: dict[str, str] = json.loads(self.file.read_text()) if self.file.exists() else {}

    def add(self, name: str, text: str) -> str:
        """Add a record."""
        self.texts[name] = text
        return self.saved(f"Added {self.kind} {name}.")

    def rename(self, name: str, new_name: str) -> str:
        """Rename a record."""
        self.texts[new_name] = self.show(name)
        del self.texts[name]
        return self.saved(f"Renamed {self.kind} {name} to {new_name}.")

    def copy(self, name: str, new_name: str) -> str:
        """Copy a record."""
        self.texts[new_name] = self.show(name)
        return self.saved(f"Copied {self.kind} {name} to {new_name}.")

    def extend(self, name: str, text: str) -> str:
        """Write some more text into a record."""
        self.texts[name] = f"{self.show(name)}\n{text}"
        return self.saved(f"Wrote into {self.kind} {name}.")

    def delete(self, name: str) -> str:
        """Delete a record."""
        self.show(name)
        del self.texts[name]
        return self.saved(f"Deleted {self.kind} {name}.")

    def saved(self, done: str) -> str:
        """Save the records, and return what was done."""
        self.file.write_text(json.dumps(self.texts))
        return done

    def show(self, name: str) -> str:
        """Show the text of a record."""
        if name not in self.texts:
            raise ValueError(f"There is no {self.kind} {name}.")
        return self.texts[name]

    def find(self, word: str) -> list[str]:
        """Find each record that contains a word."""
        return [name for name, text in self.texts.items() if word in f"{name} {text}"]

    def list(self) -> tuple[str, ...]:
        """List every record."""
        return tuple(self.texts)

    def count(self) -> int:
        """Count how many of a record there are."""
        return len(self.texts)

    def tools(self) -> Iterator[FunctionToolCallback]:
        """Yield the tools of this kind of records."""
        writing = (self.add, self.rename, self.copy, self.extend, self.delete)
        for method in (*writing, self.show, self.find, self.list, self.count):
            yield FunctionToolCallback(
                method,
                name=f"{method.__name__}_{self.kind}",
                description=str(method.__doc__).replace("record", self.kind),
                metadata=ToolMetadata(effect="write" if method in writing else "read"),
            )


def units() -> McpToolServer:
    """Return the server that converts units."""
    pairs = [(name, *pair) for name in UNITS for pair in combinations(UNITS[name], 2)]
    return McpToolServer([conversion(*pair) for pair in pairs], name="units")


def office(folder: str) -> McpToolServer:
    """Return the server for records."""
    Path(folder).mkdir(exist_ok=True)
    tools = [tool for kind in KINDS for tool in Records(Path(folder), kind).tools()]
    return McpToolServer(tools, name="office")


if __name__ == "__main__":
    server = office(*sys.argv[2:]) if sys.argv[1] == "office" else units()
    server.serve_stdio()
