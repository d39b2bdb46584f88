"""The architecture page matches the code."""

import importlib
import re
import sys
import tomllib
from types import FrameType

import pytest

from chatclient import ChatClient, tool
from chatclient.testing import ScriptedModel, call
from tests.support import rings
from tests.support.paths import ROOT

PAGE = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
NAMES = sorted({*re.findall(r"`([\w./]+)`", PAGE.replace("<name>", "ollama"))})


def test_diagram_layers() -> None:
    """The layers and their order are those of `lint-imports`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    layers = project["tool"]["importlinter"]["contracts"][0]["layers"]
    diagram = PAGE.partition("```mermaid\n")[2].partition("```")[0]

    shown = re.findall(r'\["(.+?)"\]', diagram)
    arrows = re.findall(r"(\w+)(?:\[.+?\])? --> (\w+)\[", diagram)
    # Mermaid renders `__main__` as a bold "main".
    labels = [each.replace("__main__", "command line").replace(" | ", ", ") for each in layers]
    assert shown == [label.replace("chatclient.", "") for label in labels]
    assert [begin for begin, _ in arrows[1:]] == [end for _, end in arrows[:-1]]


def test_rings() -> None:
    """Edges, their modules and dependents are those of the code, and lines are about right."""
    number = re.compile(r"(?<=\| )[\d,]+(?= \|)")
    shown, current = number.findall(PAGE), number.findall(rings.page())

    assert number.sub("", PAGE) == number.sub("", rings.page())
    for page, code in zip(shown, current, strict=True):
        assert int(page.replace(",", "")) == pytest.approx(int(code.replace(",", "")), 0.3, 100)


@pytest.mark.parametrize("path", [name for name in NAMES if "/" in name])
def test_paths_exist(path: str) -> None:
    """The named files and directories exist."""
    assert (ROOT / path).exists()


@pytest.mark.parametrize("name", [name for name in NAMES if name.startswith("chatclient.")])
def test_dotted_names_exist(name: str) -> None:
    """The last part is a class of the module."""
    module, _, attribute = name.rpartition(".")

    assert hasattr(importlib.import_module(module), attribute)


def test_classes_and_methods_exist() -> None:
    """Names such as `Pipeline` or `Pipeline.run` are defined in some module."""
    sources = [file.read_text(encoding="utf-8") for file in (ROOT / "chatclient").rglob("*.py")]
    code = "\n".join(sources)
    classes = [name for name in NAMES if re.match(r"[A-Z][a-z]+[A-Z\w.]*$", name)]

    assert len(classes) > 20
    assert [name for name in classes if not _is_defined(name, code)] == []


def test_steps_of_a_request() -> None:
    """The functions that the ten steps name are entered in this order."""

    @tool
    def clock() -> str:
        """Tell the time."""
        return "noon"

    steps = PAGE.partition("\n1. ")[2].partition("## Where state is")[0]
    named = [name for name in re.findall(r"`([\w.]+)`", steps) if re.search(r"\.|^[a-z]", name)]
    named = [name.replace("ChatModel.generate", "ScriptedModel.generate") for name in named]
    client = ChatClient.create(ScriptedModel(call("clock"), "It is noon."))
    entered: list[str] = []

    def enter(frame: FrameType, event: str, _argument: object) -> None:
        if event == "call" and frame.f_code.co_qualname not in entered:
            entered.append(frame.f_code.co_qualname)

    sys.setprofile(enter)
    try:
        client.prompt("What time is it?").tools(clock).call().content()
    finally:
        sys.setprofile(None)

    assert len(named) > 15
    assert [name for name in entered if name in named] == list(dict.fromkeys(named))


def _is_defined(name: str, code: str) -> bool:
    kind, _, method = name.partition(".")
    classes = re.split(rf"^class {kind}\b", code, flags=re.MULTILINE)[1:]
    bodies = [re.split(r"\n(?=\S)", each, maxsplit=1)[0] for each in classes]
    return any(f"def {method}(" in body for body in bodies) if method else bool(classes)
