"""The two rings of the package: their modules, lines, and which edges need which.

`python -m tests.support.rings` writes the numbers of lines and the table of edges into the page on
the architecture.
"""

import ast
import re
import tomllib
from collections.abc import Iterator, Mapping
from pathlib import Path

from tests.support.paths import ROOT

PAGE = ROOT / "docs" / "architecture.md"
EDGES: Mapping[str, tuple[str, ...]] = {
    "command line": ("__main__",),
    "settings": ("settings",),
    "anthropic": ("providers.anthropic",),
    "azure": ("providers.azure",),
    "bedrock": ("providers.bedrock",),
    "compatible": ("providers.compatible",),
    "composite": ("providers.composite",),
    "embeddings": ("providers.embeddings",),
    "gemini": ("providers.gemini",),
    "local": ("providers.local",),
    "ollama": ("providers.ollama",),
    "rerank": ("providers.rerank",),
    "vertex": ("providers.vertex",),
    "retrieval": (
        *("retrieval", "advisors.retrieval", "advisors.memory.vector_store"),
        *(
            "testing.evaluation",
            "testing.evaluation_events",
            "testing.pydantic_evals",
            "testing.retrieval_evaluation",
        ),
        *("testing.repetition", "testing.simulated_user", "testing.trajectory"),
        *("testing.vector_store_contract",),
    ),
    "sql": ("memory.sql",),
    "redis": ("memory.redis",),
    "sessions": (
        *("memory.sessions", "advisors.memory.recall_tools", "advisors.memory.session"),
        "testing.session_contract",
    ),
    "tool search": (
        *("tools.search", "advisors.tool_search"),
        "testing.tool_index_contract",
    ),
    "bridges": ("bridges",),
    "decisions": ("decisions",),
    "durable": ("durable",),
    "mcp": ("mcp",),
    "services": ("services",),
    "web": ("web",),
}
"""The modules of each edge, without the name of the package."""

_TABLE = re.compile(r"(?<=<!-- edges -->\n).*?(?=<!-- end -->)", re.DOTALL)
_ROW = re.compile(r"^\| ((?:`\w+`(?:, )?)+) \| (.*?) \| [\d,]* \| [\d,]* \|$", re.MULTILINE)


def modules_of(contract: str, key: str) -> set[str]:
    """Return the modules that a contract of `lint-imports` lists."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    contracts = {each["name"]: each for each in project["tool"]["importlinter"]["contracts"]}
    return {*contracts[contract][key]}


CORE = modules_of("The core imports no edge", "source_modules")


def files_of(module: str) -> list[Path]:
    """Return the files of a module or package, named without `chatclient.`."""
    path = ROOT.joinpath("chatclient", *module.split("."))
    return sorted(path.rglob("*.py")) if path.is_dir() else [path.with_suffix(".py")]


def imports_of(edge: str) -> Iterator[tuple[str, str]]:
    """Yield the modules and names of this package that an edge imports."""
    for file in (file for module in EDGES[edge] for file in files_of(module)):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is not None and module.startswith("chatclient."):
                for alias in node.names if isinstance(node, ast.ImportFrom) else ():
                    yield module, alias.name


def edge_of(module: str) -> str | None:
    """Return the edge that a module belongs to, or None."""
    for edge, modules in EDGES.items():
        if any(f"{module}.".startswith(f"chatclient.{each}.") for each in modules):
            return edge
    return None


def page() -> str:
    """Return the page on the architecture, with numbers and table as they are now."""
    text = _ROW.sub(lambda row: _package_row(row[1], row[2]), PAGE.read_text(encoding="utf-8"))
    return _TABLE.sub(lambda _: "".join(f"{line}\n" for line in _edge_table()), text)


def _package_row(packages: str, holds: str) -> str:
    edges = {file for modules in EDGES.values() for each in modules for file in files_of(each)}
    files = {file for name in re.findall(r"\w+", packages) for file in files_of(name)}
    return f"| {packages} | {holds} | {_lines(files - edges)} | {_lines(files & edges)} |"


def _edge_table() -> Iterator[str]:
    yield "| edge | modules of `chatclient` | lines | edges that import it |"
    yield "|---|---|---|---|"
    needs = {edge: {edge_of(module) for module, _ in imports_of(edge)} for edge in EDGES}
    for edge, modules in EDGES.items():
        dependents = ", ".join(each for each in EDGES if each != edge and edge in needs[each])
        names = ", ".join(f"`{module}`" for module in modules)
        lines = _lines({file for module in modules for file in files_of(module)})
        yield f"| {edge} | {names} | {lines} | {dependents} |"


def _lines(files: set[Path]) -> str:
    count = sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)
    return f"{count:,}" if count else ""


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
