"""Edges use what others could use: public names and `chatclient.extend`."""

import ast
from collections.abc import Iterator
from pathlib import Path

from chatclient._internal.exports import PUBLIC_PACKAGES, exports_of
from tests.packaging.test_edges import EDGES
from tests.support.paths import ROOT

NOT_PUBLIC = 241
"""The number of names that edges import from the core and that are not public; it only falls."""


def files_of(edge: str) -> Iterator[Path]:
    """Yield the files of an edge."""
    for module in EDGES[edge]:
        path = ROOT.joinpath("chatclient", *module.split("."))
        yield from path.rglob("*.py") if path.is_dir() else (path.with_suffix(".py"),)


def names_from_the_core(edge: str) -> Iterator[tuple[str, str]]:
    """Yield the modules and names that an edge imports and that are not its own."""
    everywhere = [f"chatclient.{module}" for modules in EDGES.values() for module in modules]
    for file in files_of(edge):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            if module is None or not module.startswith("chatclient."):
                continue
            if not any(f"{module}.".startswith(f"{each}.") for each in everywhere):
                yield from ((module, alias.name) for alias in node.names)


def test_edges_import_public_names() -> None:
    """An edge takes few names of the core that an author outside could not import."""
    public = {name for package in PUBLIC_PACKAGES for name in exports_of(package)}
    taken = {
        (module, name)
        for edge in EDGES
        for module, name in names_from_the_core(edge)
        if name not in public and module != "chatclient._internal.exports"
    }

    assert len(taken) <= NOT_PUBLIC
    assert len(taken) > NOT_PUBLIC - 20, "lower the number"
