"""The core works without any edge: the contracts of `pyproject.toml`, and copies without one."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

import pytest

from chatclient._internal.exports import PUBLIC_PACKAGES
from tests.support.paths import ROOT
from tests.support.rings import CORE, EDGES, modules_of

PROGRAM = """
import importlib, sys
from dataclasses import dataclass

import chatclient

assert chatclient.__file__.startswith(sys.argv[1])
for module in sys.argv[2:]:
    importlib.import_module(module)

from chatclient import ChatClient
from chatclient.advisors import MessageChatMemoryAdvisor
from chatclient.memory import InMemoryChatMemoryRepository, MessageWindowChatMemory
from chatclient.providers import OpenAIChatModel
from chatclient.testing import ScriptedModel, call


@dataclass
class Weather:
    degrees: int


def temperature(city: str) -> int:
    '''Return the temperature in a city.'''
    return 21


memory = MessageWindowChatMemory(InMemoryChatMemoryRepository())
model = ScriptedModel(call("temperature", '{"city": "Oslo"}'), '{"degrees": 21}')
client = (
    ChatClient.builder(model)
    .default_tools(temperature)
    .default_advisors(MessageChatMemoryAdvisor(memory))
    .build()
)
answer = client.prompt("How warm is it?").conversation("c").call()
assert answer.entity(Weather) == Weather(21)
assert len(memory.get("c")) == 4
OpenAIChatModel(model="m", api_key="k").close()
"""
TESTS = ("tests/unit/chat/test_messages.py", "tests/modes/test_tool_calling.py")


def test_edges_are_those_of_the_contracts() -> None:
    """Both contracts name the modules of all edges."""
    edges = {f"chatclient.{module}" for modules in EDGES.values() for module in modules}

    assert modules_of("The core imports no edge", "forbidden_modules") == edges
    assert modules_of("No edge imports another edge", "modules") == edges


def test_every_module_is_in_one_ring() -> None:
    """A module belongs to the core or to one edge; a package that only exports names to none."""
    rings = CORE | modules_of("No edge imports another edge", "modules")
    files = [file.relative_to(ROOT) for file in (ROOT / "chatclient").rglob("*.py")]
    names = {".".join(file.with_suffix("").parts).removesuffix(".__init__") for file in files}

    found = {name: [each for each in rings if f"{name}.".startswith(f"{each}.")] for name in names}
    outside = {name for name, several in found.items() if len(several) != 1}
    assert outside == {
        *("chatclient", "chatclient.advisors", "chatclient.memory", "chatclient.providers"),
        *("chatclient.testing", "chatclient.tools", "chatclient.advisors.memory"),
        "chatclient.extend",
    }
    assert outside - {*PUBLIC_PACKAGES} == {"chatclient.advisors.memory"}


def copy_without(edges: Iterable[str], folder: Path, *others: str) -> None:
    """Copy the package and *others* to *folder*, without the modules of *edges*."""
    for name in ("chatclient", *others):
        source = ROOT / name
        skip = shutil.ignore_patterns("__pycache__", "node_modules")
        if source.is_dir():
            shutil.copytree(source, folder / name, ignore=skip)
        else:
            shutil.copy(source, folder / name)
    for module in (module for edge in edges for module in EDGES[edge]):
        path = folder.joinpath("chatclient", *module.split("."))
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.with_suffix(".py").unlink()


def run_in(folder: Path, *arguments: str) -> str:
    """Run Python with the package in *folder*, and return its errors and output."""
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    ran = subprocess.run(
        [sys.executable, *arguments],
        check=False,
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
    )
    return "" if ran.returncode == 0 else ran.stdout[-3000:] + ran.stderr


@pytest.mark.process("core")
def test_core_without_edges(tmp_path: Path) -> None:
    """Without any edge, the core can be imported, and answers a request with tools and memory."""
    copy_without(EDGES, tmp_path)

    assert run_in(tmp_path, "-W", "error", "-c", PROGRAM, str(tmp_path), *sorted(CORE)) == ""


@pytest.mark.exhaustive
@pytest.mark.process("edge")
@pytest.mark.parametrize("edge", EDGES)
def test_without_an_edge(edge: str, tmp_path: Path) -> None:
    """Without an edge, tests of the core pass."""
    copy_without([edge], tmp_path, "tests", "pyproject.toml")

    assert run_in(tmp_path, "-W", "error", "-c", PROGRAM, str(tmp_path), *sorted(CORE)) == ""
    assert run_in(tmp_path, "-m", "pytest", "-q", "-p", "no:cacheprovider", *TESTS) == ""
