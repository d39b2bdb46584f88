"""The public names, and the cost of importing them."""

import ast
import importlib
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import pytest

import chatclient
from chatclient._internal.exports import PUBLIC_PACKAGES, exports_of
from chatclient._internal.foreign_names import REPLACEMENTS
from tests.support.environments import run_in_environment
from tests.support.paths import ROOT

REFERENCE = ROOT / "docs" / "reference"
ENTRY = re.compile(
    r"^::: (\S+)\n(?: {4}options:\n {6}members: \[(.*)\]\n)?( {6}inherited_members: true)?",
    re.MULTILINE,
)
ROOT = Path(chatclient.__file__).parent.parent
PACKAGES = [name for name in PUBLIC_PACKAGES if name != "chatclient.errors"]
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
    """The names that the package exports are the imports for type checkers."""
    assert static_imports(package) == exports_of(package)


@each_package
def test_every_exported_name_is_documented(package: str) -> None:
    """Each name can be imported, and each class and function has a docstring."""
    module = importlib.import_module(package)
    values = [getattr(module, name) for name in exports_of(package)]

    assert [v for v in values if isinstance(v, type | FunctionType) and not v.__doc__] == []


@each_package
def test_names_can_be_imported_with_a_star(package: str) -> None:
    """A star import and `dir()` yield every exported name, and no other one."""
    namespace: dict[str, Any] = {}

    exec(f"from {package} import *", namespace)

    names = {*exports_of(package)}
    assert namespace.keys() - {"__builtins__"} == names
    found = {*dir(importlib.import_module(package))}
    assert found - names == {
        name.rpartition(".")[2] for name in PUBLIC_PACKAGES if name.rpartition(".")[0] == package
    }
    assert names <= found


HINTS = {
    "from chatclient import ToolLimits": "use `from chatclient.tools import ToolLimits`",
    "from chatclient.tools import ToolError": "use `from chatclient.errors import ToolError`",
    "from chatclient import ToolCallbacks": "use `tool_callbacks(*objects)` from chatclient.tools",
    "from chatclient.tools import MethodToolCallback": "use `FunctionToolCallback(",
    "from chatclient import AdvisorParams": "`.advisor_params({...})`",
    "from chatclient import Tool": "use `tool`, a decorator",
    "from chatclient.providers import ChatOpenAI": "use `OpenAIChatModel`",
    "from chatclient.tools import McpServer": "use `from chatclient.mcp import McpServer`",
    "from chatclient.services import WebChat": "use `from chatclient.web import WebChat`",
    "import chatclient.tools.mcp": "use `chatclient.mcp`",
    "from chatclient.services.web import WebChat": "use `chatclient.web`",
    "from chatclient import Chatclient": "did you mean `from chatclient import ChatClient`?",
    "from chatclient.tools import ToolAproval": "`from chatclient.tools import ToolApproval`?",
    "from chatclient.advisor import Budget": "did you mean `chatclient.advisors`?",
    "import chatclient.tool": "it is no module; use `from chatclient import tool`",
    "from chatclient import TextReplaced": "use `from chatclient.chat import TextReplaced`",
    "from chatclient.tools import tool": "use `from chatclient import tool`",
    "from chatclient.tools import KeywordToolIndex": "use `from chatclient.tools.search import",
    "from chatclient import Unheard": "dir(chatclient) lists its names",
    "import chatclient.unheard": "No module named 'chatclient.unheard'",
}


@pytest.mark.parametrize("statement", HINTS)
def test_hint_for_a_missing_name(statement: str) -> None:
    """A failed import suggests the name of another module or library, or the correct spelling."""
    with pytest.raises(ImportError, match=re.escape(HINTS[statement])):
        exec(statement)


def test_missing_attribute() -> None:
    """A missing attribute is an `AttributeError` with the same hint, so that `hasattr` works."""
    assert not hasattr(chatclient, "ToolLimits")
    with pytest.raises(AttributeError, match=r"use `from chatclient\.tools import ToolLimits`"):
        chatclient.ToolLimits  # type: ignore[attr-defined]  # noqa: B018
    assert not hasattr(chatclient, "_unheard")


def test_replacements_exist() -> None:
    """The names in hints for those of other libraries are public."""
    public = {name for package in PUBLIC_PACKAGES for name in exports_of(package)}
    named = re.findall(r"`([A-Za-z_]\w*)", " ".join(REPLACEMENTS.values()))
    placed = re.findall(
        r"`([A-Za-z_]\w*)[^`]*`(?:, a decorator,)? (?:from|of|with) (chatclient[\w.]*)",
        " ".join(REPLACEMENTS.values()),
    )

    assert {*named} - public <= {"client", "stream", "max_retries", "timeout"}
    assert len(placed) > 40
    assert [each for each in placed if each[0] not in exports_of(each[1])] == []


def test_each_name_has_one_package() -> None:
    """A name is exported once; two classes that share a name are in different packages."""
    places: dict[tuple[str, str], list[str]] = {}
    for package in PACKAGES:
        for name, module in exports_of(package).items():
            places.setdefault((name, module), []).append(package)

    assert [each for each in places.values() if len(each) > 1] == []


def test_number_of_names() -> None:
    """The top level has what small applications need; no package grows by accident."""
    assert len(exports_of("chatclient")) <= 60
    assert len(exports_of("chatclient.tools")) <= 45


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
        if name and name not in PUBLIC_PACKAGES
    }

    assert private == set()


def test_messages_name_public_packages() -> None:
    """Error messages tell users to import from public packages only."""
    hint = re.compile(r"from (chatclient[\w.]*) import (\w+)")
    hints = {
        found
        for file in (ROOT / "chatclient").rglob("*.py")
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
        for found in hint.findall(node.value)
    }

    assert [each for each in hints if each[1] not in exports_of(each[0])] == []


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
    assert exports_of(package).keys() - set(described()) == set()


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
    assert loaded <= {"chatclient", package.rpartition(".")[0], package, "chatclient.errors"} | {
        name for name in loaded if name.startswith("chatclient._internal")
    }


def test_the_client_loads_no_provider() -> None:
    """HTTP libraries, MCP, drivers and pydantic's types are imported when they are used."""
    modules = imported_by("from chatclient import ChatClient, tool")

    roots = {name.partition(".")[0] for name in modules}
    assert roots.isdisjoint({"httpx", "httpx2", "httpcore", "mcp", "structlog", "sqlite3", "redis"})
    assert "pydantic.main" not in modules
    assert {name for name in modules if name.startswith("chatclient.providers.")} <= {
        "chatclient.providers.registry"
    }


def test_the_top_level_links_are_not_packages() -> None:
    """`advisors`, `tools` and `providers` are not imported under their own names."""
    modules = imported_by("import chatclient.advisors, chatclient.tools, chatclient.providers")

    assert modules.isdisjoint({"advisors", "tools", "providers"})


PLAIN = """
import importlib, inspect, json, pydoc
from chatclient._internal.exports import PUBLIC_PACKAGES, exports_of

packages = [importlib.import_module(name) for name in PUBLIC_PACKAGES]
for package in packages:
    exec(f"from {package.__name__} import *", {})
    pydoc.render_doc(package)
    inspect.getmembers(package)
absent, errors = [], []
for package in packages:
    for name in exports_of(package.__name__):
        if not hasattr(package, name):
            absent.append(name)
            try:
                exec(f"from {package.__name__} import {name}")
            except Exception as error:
                errors.append((type(error).__name__, str(error)))
print(json.dumps([absent, errors]))
"""

EXTRAS = {
    *("to_langchain", "WebChat", "web_app"),
    *("SqlPendingTurns", "SqlIndexRecord", "SqlChatMemoryRepository", "SqlSessionRepository"),
}


def test_plain_installation() -> None:
    """Without extras, packages can be listed, and the errors of names have their extra."""
    ran = run_in_environment("-W", "error", "-c", PLAIN)
    assert ran.stderr == ""
    absent, errors = json.loads(ran.stdout)

    assert {*absent} >= EXTRAS
    assert {kind for kind, _ in errors} == {"MissingExtraError"}
    assert [text for _, text in errors if "pip install" not in text] == []


USES = """
from chatclient import mcp, memory, providers, retrieval

for use in (
    lambda: providers.BedrockChatModel("m"),
    lambda: providers.MiniLmEmbeddingModel().embed(["a"]),
    lambda: memory.RedisSessionRepository("redis://localhost"),
    lambda: mcp.McpToolServer(),
    lambda: retrieval.SqliteVectorStore("", providers.MiniLmEmbeddingModel()),
    lambda: providers.vertex_model("gemini", project="p", location="us-east1"),
):
    try:
        use()
    except Exception as error:
        print(type(error).__name__, error)
"""


def test_use_in_a_plain_installation() -> None:
    """Objects that need an extra raise the same error, at the latest when they are used."""
    ran = run_in_environment("-W", "error", "-c", USES)
    assert ran.stderr == ""

    pattern = r"MissingExtraError .* needs .*; pip install 'chatclient\[[\w-]+\]'"
    assert len(ran.stdout.splitlines()) == 6
    assert [line for line in ran.stdout.splitlines() if not re.fullmatch(pattern, line)] == []


def test_commands_in_a_plain_installation() -> None:
    """Each command has a help text, and names the extra that it needs."""
    for command in ([], ["web"], ["worker"]):
        assert run_in_environment("-m", "chatclient", *command, "--help").returncode == 0
    for command in (["web"], ["worker", "app:clients"]):
        ran = run_in_environment("-m", "chatclient", *command)
        assert ran.returncode == 2
        assert re.fullmatch(r"chatclient.*: .* needs .*; pip install '.*'\n", ran.stderr)
