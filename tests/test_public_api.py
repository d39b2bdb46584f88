"""The names that are promised, and what importing them costs."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import chatclient

REFERENCE = Path(__file__).parent.parent / "docs" / "reference"
ENTRY = re.compile(
    r"^::: (\S+)\n(?: {4}options:\n {6}members: \[(.*)\]\n)?( {6}inherited_members: true)?",
    re.MULTILINE,
)
FOLDERS = ["chatclient", "chatclient.advisors", "chatclient.tools"]
PACKAGES = [
    "chatclient",
    *(
        found.name
        for found in pkgutil.walk_packages(chatclient.__path__, "chatclient.")
        if found.ispkg and hasattr(importlib.import_module(found.name), "__all__")
    ),
]
each_package = pytest.mark.parametrize(
    "package", [importlib.import_module(name) for name in PACKAGES], ids=PACKAGES
)


def place(name: str) -> tuple[int, str]:
    """Return where *name* belongs: constants, then classes, then functions, as linters sort."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2), name


@each_package
def test_names_are_sorted(package: Any) -> None:
    """A name is found at a glance, and added in one place only."""
    assert list(package.__all__) == sorted(set(package.__all__), key=place)


@each_package
def test_every_name_is_promised(package: Any) -> None:
    """What a package imports by a public name it also promises, and the other way round."""
    public = {
        name
        for name, value in vars(package).items()
        if not name.startswith("_") and not isinstance(value, ModuleType)
    }

    assert public == set(package.__all__)


@each_package
def test_every_name_is_documented(package: Any) -> None:
    """Whatever is promised says what it is for; aliases and constants say so where they stand."""
    defined = [
        value
        for name in package.__all__
        if isinstance(value := getattr(package, name), type | FunctionType)
    ]

    assert [value for value in defined if not value.__doc__] == []


@each_package
def test_names_can_be_imported_with_a_star(package: Any) -> None:
    """Every promise is kept."""
    namespace: dict[str, Any] = {}

    exec(f"from {package.__name__} import *", namespace)

    assert set(package.__all__) <= namespace.keys()


def imported_by(statement: str) -> set[str]:
    """Return the names of all modules in a fresh process after *statement*."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return set(ran.stdout.split())


def defined_in(module: ModuleType) -> Iterator[str]:
    """Yield the names that *module* defines, and those that it promises as a package."""
    yield from getattr(module, "__all__", ())
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def entries() -> Iterator[tuple[ModuleType, list[str], bool]]:
    """Yield what the reference describes: names of a module, and whether with all they inherit."""
    text = "\n".join(page.read_text(encoding="utf-8") for page in REFERENCE.glob("*.md"))
    for entry in ENTRY.finditer(text):
        place, members, inherited = entry.groups()
        try:
            module = importlib.import_module(place)
        except ModuleNotFoundError:
            parent, _, name = place.rpartition(".")
            yield importlib.import_module(parent), [name], bool(inherited)
        else:
            names = list(defined_in(module)) if members is None else members.split(", ")
            yield module, [name for name in names if name], bool(inherited)


def described() -> Iterator[str]:
    """Yield the names that the reference describes."""
    for _, names, _ in entries():
        yield from names


@each_package
def test_every_name_is_in_the_reference(package: Any) -> None:
    """Whoever looks one up finds it."""
    assert set(package.__all__) - set(described()) == set()


def test_what_the_reference_names_is_there() -> None:
    """A name that has gone leaves no gap on its page, which nobody would see."""
    missing = [
        f"{module.__name__}.{name}"
        for module, names, _ in entries()
        for name in names
        if not hasattr(module, name)
    ]

    assert missing == []


def test_what_a_class_inherits_is_in_the_reference() -> None:
    """Methods are on the page of a class of their own, or on that of the class that has them."""
    kinds = {
        kind: inherited
        for module, names, inherited in entries()
        for name in names
        if isinstance(kind := getattr(module, name), type) and not name.startswith("_")
    }
    lost = {
        f"{kind.__name__}.{name}"
        for kind, inherited in kinds.items()
        for base in kind.__mro__[1:]
        if not inherited and base not in kinds and base.__module__.startswith("chatclient.")
        for name in vars(base).keys() - vars(kind).keys()
        if not name.startswith("_")
    }

    assert lost == set()


@pytest.mark.parametrize("package", FOLDERS)
def test_importing_is_cheap(package: str) -> None:
    """No HTTP library, no provider, no MCP and no database driver until it is used."""
    modules = imported_by(f"import {package}")

    roots = {name.partition(".")[0] for name in modules}
    assert roots.isdisjoint({"httpx", "httpx2", "httpcore", "mcp", "structlog", "sqlite3", "redis"})
    assert {name for name in modules if name.startswith("chatclient.providers.")} <= {
        "chatclient.providers.registry"
    }


def test_the_folders_are_one_package() -> None:
    """The top-level folders of the repository are no packages of their own."""
    modules = imported_by(f"import {', '.join(FOLDERS)}")

    assert modules.isdisjoint({"advisors", "tools", "providers"})
