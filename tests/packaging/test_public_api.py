"""The public names, and the cost of importing them."""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import chatclient
from chatclient._internal.public_names import PUBLIC_NAMES
from tests.support.paths import ROOT

REFERENCE = ROOT / "docs" / "reference"
ENTRY = re.compile(
    r"^::: (\S+)\n(?: {4}options:\n {6}members: \[(.*)\]\n)?( {6}inherited_members: true)?",
    re.MULTILINE,
)
ROOT = Path(chatclient.__file__).parent.parent
PACKAGES = [name for name in PUBLIC_NAMES if name != "chatclient.errors"]
each_package = pytest.mark.parametrize("package", PACKAGES)


def static_imports(package: str) -> dict[str, str]:
    """Return what type checkers see in the `__init__` of *package*: modules by name."""
    tree = ast.parse(Path(str(importlib.import_module(package).__file__)).read_text("utf-8"))
    return {
        alias.name: str(node.module)
        for block in tree.body
        if isinstance(block, ast.If)
        for node in block.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@each_package
def test_type_checkers_see_the_exported_names(package: str) -> None:
    """The imports for type checkers and the lazy exports name the same objects."""
    assert static_imports(package) == PUBLIC_NAMES[package]


@each_package
def test_every_exported_name_is_documented(package: str) -> None:
    """Each name can be imported, and each class and function has a docstring."""
    module = importlib.import_module(package)
    values = [getattr(module, name) for name in PUBLIC_NAMES[package]]

    assert [v for v in values if isinstance(v, type | FunctionType) and not v.__doc__] == []


@each_package
def test_names_can_be_imported_with_a_star(package: str) -> None:
    """A star import and `dir()` yield every exported name."""
    namespace: dict[str, Any] = {}

    exec(f"from {package} import *", namespace)

    assert PUBLIC_NAMES[package].keys() <= namespace.keys()
    assert PUBLIC_NAMES[package].keys() <= set(dir(importlib.import_module(package)))


def test_a_name_of_another_package_is_pointed_out() -> None:
    """Importing from the wrong public package names the right one."""
    with pytest.raises(ImportError, match=r"from chatclient\.tools import ToolLimits"):
        exec("from chatclient import ToolLimits")
    with pytest.raises(ImportError, match=r"from chatclient\.errors import ToolError"):
        exec("from chatclient.tools import ToolError")
    with pytest.raises(ImportError, match="cannot import name 'Nothing'"):
        exec("from chatclient import Nothing")


def test_public_packages_are_attributes() -> None:
    """`chatclient.memory` works after `import chatclient`."""
    assert imported_by("import chatclient; chatclient.memory.ChatMemory")


IMPORT = re.compile(
    r"^\s*(?:>>> )?(?:from (chatclient[\w.]*) import|import (chatclient[\w.]*))", re.MULTILINE
)
SHOWN = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").rglob("*.py")]


def test_docs_and_examples_import_from_public_packages() -> None:
    """README, docs and examples import nothing from private modules."""
    private = {
        f"{page.name}: {name}"
        for page in SHOWN
        for match in IMPORT.finditer(page.read_text(encoding="utf-8"))
        for name in match.groups()
        if name and name not in PUBLIC_NAMES
    }

    assert private == set()


def test_messages_name_public_packages() -> None:
    """Error messages tell users to import from public packages only."""
    hint = re.compile(r"from (chatclient[\w.]+) import")
    hints = {
        name
        for file in (ROOT / "chatclient").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for name in hint.findall(node.value)
    }

    assert hints <= set(PUBLIC_NAMES)


def imported_by(statement: str) -> set[str]:
    """Return the modules that a fresh process has imported after *statement*."""
    code = f"{statement}\nimport sys\nprint(*sys.modules)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stderr == ""
    return set(ran.stdout.split())


def defined_in(module: ModuleType) -> Iterator[str]:
    """Yield the names that *module* defines and exports."""
    yield from getattr(module, "__all__", ())
    for node in ast.parse(Path(str(module.__file__)).read_text(encoding="utf-8")).body:
        match node:
            case ast.ClassDef(name=name) | ast.FunctionDef(name=name):
                yield name
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                yield name


def entries() -> Iterator[tuple[ModuleType, list[str], bool]]:
    """Yield the entries of the reference: names, and whether inherited members are included."""
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
    """Yield the names described in the reference."""
    for _, names, _ in entries():
        yield from names


@each_package
def test_every_name_is_in_the_reference(package: str) -> None:
    """Every public name is described."""
    assert PUBLIC_NAMES[package].keys() - set(described()) == set()


def test_names_in_the_reference_exist() -> None:
    """The reference names no missing object."""
    missing = [
        f"{module.__name__}.{name}"
        for module, names, _ in entries()
        for name in names
        if not hasattr(module, name)
    ]

    assert missing == []


def test_inherited_members_are_in_the_reference() -> None:
    """Methods are described with a class or with its base class."""
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


@each_package
def test_importing_is_cheap(package: str) -> None:
    """Importing a public package loads no other module of the library but its helpers."""
    modules = imported_by(f"import {package}")

    loaded = {name for name in modules if name.startswith("chatclient")}
    assert loaded <= {"chatclient", package, "chatclient.errors"} | {
        name for name in loaded if name.startswith("chatclient._internal")
    }


def test_the_client_loads_no_provider() -> None:
    """No HTTP library, MCP or database driver is imported before it is used."""
    modules = imported_by("from chatclient import ChatClient, tool")

    roots = {name.partition(".")[0] for name in modules}
    assert roots.isdisjoint({"httpx", "httpx2", "httpcore", "mcp", "structlog", "sqlite3", "redis"})
    assert {name for name in modules if name.startswith("chatclient.providers.")} <= {
        "chatclient.providers.registry"
    }


def test_the_top_level_links_are_not_packages() -> None:
    """`advisors`, `tools` and `providers` are not imported under their own names."""
    modules = imported_by("import chatclient.advisors, chatclient.tools, chatclient.providers")

    assert modules.isdisjoint({"advisors", "tools", "providers"})
