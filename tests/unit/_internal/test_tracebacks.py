"""Tracebacks leave out the frames of the library, in pytest and in notebooks."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient._internal.exceptions import in_ipython
from chatclient.errors import ChatClientError, ProviderError, UsageError
from chatclient.testing import ScriptedModel
from tests.support.paths import ROOT

TEST = """
import asyncio

from chatclient import ChatClient
from chatclient.errors import ProviderError, UsageError
from chatclient.testing import ScriptedModel

async def my_advisor(request, call_next):
    return await call_next(request)

def client(error):
    return ChatClient.builder(ScriptedModel(error)).default_advisors(my_advisor).build()

def fail():
    error = ProviderError("busy")
    error.__cause__ = OSError("no route")
    return error

def test_call():
    client(fail()).prompt("x").call().content()

def test_acall():
    asyncio.run(client(fail()).prompt("x").acall().content())

def test_usage():
    ChatClient.create(ScriptedModel()).prompt(" ")

def test_other():
    client(LookupError("mine")).prompt("x").call().content()
"""


def run_pytest(folder: Path, *options: str, **environment: str) -> dict[str, str]:
    """Return the report of each failed test, by name."""
    (folder / "test_it.py").write_text(TEST)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", *options, "test_it.py"]
    finished = subprocess.run(
        command,
        capture_output=True,
        text=True,
        check=False,
        cwd=folder,
        env={"PYTHONPATH": str(ROOT), "PATH": "", **environment},
    )
    reports = finished.stdout.partition("= FAILURES =")[2].partition("= short test")[0]
    parts = reports.split("\n____")
    return {part.strip("_ ").partition(" ")[0]: part for part in parts[1:]}


@pytest.mark.process("pytest")
def test_pytest_leaves_out_the_library(tmp_path: Path) -> None:
    """What is left is the test, the code of the application, and the message."""
    reports = run_pytest(tmp_path)

    assert set(reports) == {"test_call", "test_acall", "test_usage", "test_other"}
    for name in ("test_call", "test_acall", "test_usage"):
        assert "chatclient/" not in reports[name].replace("chatclient/testing/scripted", "")
    assert "await call_next(request)" in reports["test_call"]
    assert "ProviderError: busy" in reports["test_call"]
    assert "OSError: no route" in reports["test_acall"]
    assert "chatclient/client/pipeline.py" in reports["test_other"]  # not an error of the library


@pytest.mark.process("pytest")
@pytest.mark.parametrize("switch", ["option", "environment"])
def test_pytest_shows_all_on_request(tmp_path: Path, switch: str) -> None:
    """With an option of pytest, or an environment variable."""
    if switch == "option":
        reports = run_pytest(tmp_path, "--full-trace")
    else:
        reports = run_pytest(tmp_path, CHATCLIENT_FULL_TRACEBACK="1")

    assert "chatclient/client/pipeline.py" in reports["test_call"]


CELL = """
from chatclient import ChatClient
from chatclient.testing import ScriptedModel
from chatclient.errors import ProviderError

def ask(model):
    return ChatClient.create(model).prompt("x").call().content()

def fail(prompt):
    try:
        {"a": 1}["b"]
    except KeyError as error:
        raise ProviderError("busy") from error

ask(ScriptedModel(fail))
"""


@pytest.fixture
def shell(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    interactive = pytest.importorskip("IPython.core.interactiveshell").InteractiveShell
    monkeypatch.delenv("CHATCLIENT_FULL_TRACEBACK")
    yield interactive.instance(colors="nocolor", history_manager=None)
    interactive.clear_instance()


def test_a_notebook_leaves_out_the_library(
    shell: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The cell, the functions of the application, the causes and the message are left."""
    error = shell.run_cell(CELL).error_in_exec
    shown = capsys.readouterr().out

    assert isinstance(error, ProviderError)
    assert "ask(ScriptedModel(fail))" in shown
    assert "ProviderError: busy" in shown
    assert "KeyError" in shown
    assert "pipeline.py" not in shown
    assert error.__traceback__ is not None
    assert error.__traceback__.tb_next is not None  # still complete, for a debugger

    monkeypatch.setenv("CHATCLIENT_FULL_TRACEBACK", "1")
    shell.run_cell(CELL)
    assert "pipeline.py" in capsys.readouterr().out


def test_an_error_of_the_library_only(shell: Any) -> None:
    """One frame is left at least; an error that was not raised has none."""

    def caught() -> ChatClientError:
        try:
            ChatClient.create(ScriptedModel()).prompt(" ")
        except UsageError as error:
            error.__traceback__ = error.__traceback__ and error.__traceback__.tb_next
            return error
        raise AssertionError

    assert "request_settings.py" in "".join(in_ipython(caught()))
    assert "never raised" in "".join(in_ipython(ChatClientError("never raised")))


def test_without_ipython() -> None:
    """The traceback has Python's own format."""
    error = UsageError("blank")
    error.__context__ = error  # a cycle, as of a mistake

    assert in_ipython(error)[-1] == "chatclient.errors.UsageError: blank\n"


def test_a_notebook_shows_the_chain(shell: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """It is shown as a picture with escaped names, or as text in a terminal."""
    client = ChatClient.builder(ScriptedModel()).name("<b>").build()
    html = shell.display_formatter.format(client)[0]["text/html"]

    assert html.startswith("<svg ")
    assert ">&lt;b&gt;</text>" in html
    assert ">ToolCallingAdvisor</text>" in html
    shell.push({"client": client})
    shell.run_cell("client")
    assert "→ ToolCallingAdvisor" in capsys.readouterr().out
