"""The example programs: the support desk, the batch, and the agent in the terminal."""

import builtins
import json
import os
import re
import sqlite3
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import batch_extraction
import mcp_servers
import pytest
import support_desk
import terminal_agent

from chatclient import ChatModel, Prompt, ToolResponseMessage
from chatclient.errors import OverloadedError
from chatclient.testing import Answer, ScriptedModel, call
from tests.support.paths import ROOT
from tests.support.waiting import settled

PROGRAMS = sorted((ROOT / "examples").glob("*.py"))
PACKAGE = re.compile(r"^\s*(?:from|import) (chatclient[\w.]*)", re.MULTILINE)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_size(program: Path) -> None:
    """Each program is shorter than 150 lines, and needs at most six public packages."""
    text = program.read_text(encoding="utf-8")

    assert len(text.splitlines()) < 150
    assert len(set(PACKAGE.findall(text))) <= 6


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.name)
def test_listed(program: Path) -> None:
    """Each program is in the list of examples."""
    page = (ROOT / "docs" / "examples.md").read_text(encoding="utf-8")

    assert f"`examples/{program.name}`" in page


# --- the support desk -----------------------------------------------------------------------

Run = Callable[..., str]


@pytest.fixture
def desk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """Return a function that runs a command with a model, and returns its output."""
    monkeypatch.setenv("SUPPORT_DB", str(tmp_path / "support.db"))

    def run(*arguments: str, model: ChatModel | None = None) -> str:
        support_desk.main(list(arguments), model or ScriptedModel())
        return capsys.readouterr().out.strip()

    return run


def last_result(prompt: Prompt) -> Answer:
    """Return an answer with the tool's result."""
    last = prompt.messages[-1]
    assert isinstance(last, ToolResponseMessage)
    return f"Well: {last.responses[0].data}"


def refund(number: int) -> ScriptedModel:
    return ScriptedModel(call("refund_order", {"number": number}), last_result)


def test_refund_after_approval(desk: Run) -> None:
    """A turn is stored, resumed by another start of the program, recorded and remembered."""
    looked_up = ScriptedModel(
        call("look_up_order", {"number": 1002}),
        call("refund_order", {"number": 1002}),
    )
    assert "number 1" in desk("ask", "ada", "My kettle is broken.", model=looked_up)
    assert desk("pending") == """(1, 'ada', 'refund_order({"number":1002})')"""

    resumed = ScriptedModel(last_result)
    assert desk("approve", "1", model=resumed) == "Well: Order 1002 is refunded."
    assert resumed.prompts[0].messages[-3].text == ""  # after the model has looked it up
    assert desk("pending") == ""
    assert desk("approve", "1") == "Nothing waits under number 1."

    remembering = ScriptedModel("Bye.")
    desk("ask", "ada", "Thank you.", model=remembering)
    said = [m.text for m in remembering.prompts[0].messages if m.role in ("user", "assistant")]
    assert said == ["My kettle is broken.", "", "", "Well: Order 1002 is refunded.", "Thank you."]

    audit = desk("audit").splitlines()
    assert "look_up_order" in audit[0]
    assert "approves refund_order" in audit[1]
    assert "Order 1002 is refunded." in audit[2]
    assert len(audit) == 3


def test_denied_refund(desk: Run) -> None:
    """The model receives the reason, and nothing is refunded."""
    desk("ask", "ada", "Refund it.", model=refund(1002))

    told = ScriptedModel(last_result)
    assert desk("deny", "1", "Send a photo.", model=told) == "Well: Send a photo."
    assert "denies refund_order" in desk("audit")
    looking = ScriptedModel(call("look_up_order", {"number": 1002}), last_result)
    assert "delivered" in desk("ask", "ada", "And now?", model=looking)


@pytest.mark.parametrize("number", [1001, 1003], ids=["on its way", "of another customer"])
def test_refund_that_is_not_due(desk: Run, number: int) -> None:
    """The database decides what can be refunded, also after an approval."""
    desk("ask", "ada", "Refund it.", model=refund(number))

    assert desk("approve", "1", model=ScriptedModel(last_result)) == "Well: It cannot be refunded."


def test_orders_of_others(desk: Run) -> None:
    """No customer sees the orders of another one."""
    model = ScriptedModel(call("look_up_order", {"number": 1003}), last_result)

    assert desk("ask", "ada", "1003?", model=model) == "Well: The customer has no such order."


def test_failure_after_approval(desk: Run) -> None:
    """The turn waits again, and the second approval refunds nothing twice."""
    desk("ask", "ada", "Refund it.", model=refund(1002))

    with pytest.raises(OverloadedError):
        desk("approve", "1", model=ScriptedModel(OverloadedError("busy")))
    assert desk("pending").startswith("(1, 'ada'")
    again = desk("approve", "1", model=ScriptedModel(last_result))

    assert again == "Well: Order 1002 is refunded."
    with sqlite3.connect(os.environ["SUPPORT_DB"]) as db:
        orders = db.execute("SELECT id FROM orders WHERE status = 'refunded'").fetchall()
    db.close()
    assert orders == [(1002,)]


def test_wrong_command(desk: Run) -> None:
    """It shows the commands."""
    with pytest.raises(SystemExit, match=r"support_desk\.py approve 1"):
        desk("refund")


# --- the batch ------------------------------------------------------------------------------

INVOICE = {
    "number": "1",
    "supplier": "Paper",
    "date": "2026-03-07",
    "items": [{"name": "box", "quantity": 5, "unit_price": 2.4}],
    "total": 12,
}
WRONG = {**INVOICE, "total": 13}
MAILS = str(ROOT / "examples" / "invoices.jsonl")


def rows(file: Path) -> dict[str, Any]:
    """Return the lines of a file by their ids."""
    lines = map(json.loads, file.read_text(encoding="utf-8").splitlines())
    return {line["id"]: line for line in lines}


def clerk(prompt: Prompt) -> Answer:
    """A scripted answer: an invoice, with a wrong total for the mail that has one."""
    return json.dumps(WRONG if "194.40" in prompt.contents else INVOICE)


def test_batch(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Records and failures are written separately, and only failures are retried."""
    folder = tmp_path / "new" / "folder"

    assert batch_extraction.main([MAILS, str(folder)], ScriptedModel(clerk)) == 1
    records, failures = rows(folder / "records.jsonl"), rows(folder / "failures.jsonl")
    assert len(records) == 7
    assert records["mail-01"]["tokens"] == 15
    assert records["mail-01"]["invoice"]["items"][0]["unit_price"] == "2.4"
    assert list(failures) == ["mail-05"]
    assert "the items add up to 12.0, and the total is 13" in failures["mail-05"]["error"]
    assert failures["mail-05"]["tokens"] == 15
    assert "1 failed. 120 tokens" in capsys.readouterr().out

    again = ScriptedModel(json.dumps(INVOICE))
    assert batch_extraction.main([MAILS, str(folder)], again) == 0
    assert "194.40" in again.prompts[0].contents
    assert rows(folder / "records.jsonl").keys() == {f"mail-0{n}" for n in range(1, 9)}
    assert rows(folder / "failures.jsonl") == {}


def test_texts_of_a_batch(tmp_path: Path) -> None:
    """Only line feeds separate the texts in a file, and blank lines do not count."""
    mail = {"id": "one", "text": "Invoice\u2028\u0085 1"}
    (tmp_path / "mails.jsonl").write_text(json.dumps(mail, ensure_ascii=False) + "\n\n", "utf-8")

    assert batch_extraction.read_texts(tmp_path / "mails.jsonl") == {"one": mail["text"]}


def test_batch_without_an_answer(tmp_path: Path) -> None:
    """A request that fails before there is an answer costs nothing."""
    mails = tmp_path / "mails"
    mails.mkdir()
    (mails / "one.txt").write_text("Invoice 1", encoding="utf-8")
    (mails / "picture.png").write_bytes(b"")

    assert (
        batch_extraction.main([str(mails), str(tmp_path)], ScriptedModel(OverloadedError("busy")))
        == 1
    )
    failure = rows(tmp_path / "failures.jsonl")["one.txt"]
    assert failure["tokens"] == 0


PROGRAM = """
import sys, threading, batch_extraction
from chatclient.testing import ScriptedModel
from tests.docs.test_example_programs import clerk

answers = threading.Semaphore(int(sys.argv.pop()))  # the others are never given

def answer(prompt):
    print("asked", flush=True)
    answers.acquire()
    return clerk(prompt)

batch_extraction.main(sys.argv[1:], ScriptedModel(answer))
"""


@pytest.mark.process("example program")
def test_killed_batch(tmp_path: Path) -> None:
    """Started again after it was killed, it asks only what it has no answer for."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'examples'}"}
    command = [sys.executable, "-c", PROGRAM, MAILS, str(tmp_path)]
    journal = tmp_path / "journal.jsonl"

    def answered() -> int:
        return journal.read_bytes().count(b'"result"') if journal.exists() else 0

    with subprocess.Popen([*command, "3"], env=environment, stdout=subprocess.PIPE) as process:
        assert settled(lambda: answered() == 3)
        process.kill()

    ran = subprocess.run(
        [*command, "8"], env=environment, capture_output=True, text=True, check=True
    )

    assert ran.stdout.count("asked") == 8 - 3
    assert len(rows(tmp_path / "records.jsonl")) == 7


# --- the agent in the terminal --------------------------------------------------------------


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that simulates typed lines, and returns the prompts until then."""
    monkeypatch.setenv("OFFICE_RECORDS", str(tmp_path / "records"))

    def type_(*lines: Any) -> list[str]:
        asked: list[str] = []
        waiting = iter(lines)

        def read(question: str) -> str:
            asked.append(question)
            line = next(waiting)
            if isinstance(line, BaseException):
                raise line
            return str(line)

        monkeypatch.setattr(builtins, "input", read)
        return asked

    return type_


def offered(prompt: Prompt) -> list[str]:
    return [callback.definition.name for callback in prompt.options.tool_callbacks or ()]


@pytest.mark.process("example program")
def test_agent(
    typed: Callable[..., list[str]], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The model sees the tools that it finds; a person is asked before one writes."""
    asked = typed("How many feet are 3 miles?", "Note milk.", "no", "Note tea.", "Y", " ")
    model = ScriptedModel(
        call("toolSearchTool", {"query": "miles into feet", "maxResults": 1}),
        call("convert_feet_and_miles", {"value": 3, "into": "feet"}),
        "15840 feet.",
        call("toolSearchTool", {"query": "add a note", "maxResults": 1}),
        call("add_note", {"name": "milk", "text": "two litres"}),
        last_result,
        call("add_note", {"name": "tea", "text": "green"}),
        last_result,
    )

    terminal_agent.main(model)

    found = ["toolSearchTool", "convert_feet_and_miles"]
    assert [offered(prompt) for prompt in model.prompts] == [
        found[:1],
        *[found] * 3,
        *[[*found, "add_note"]] * 4,
    ]
    assert [question for question in asked if question != "> "] == [
        """\nRun add_note with '{"name":"milk","text":"two litres"}'? [y/N] """,
        """\nRun add_note with '{"name":"tea","text":"green"}'? [y/N] """,
    ]
    shown = capsys.readouterr().out
    assert '[convert_feet_and_miles({"value":3,"into":"feet"}) -> 15840.0]' in shown
    assert "15840 feet.\n" in shown
    assert "Well: The user did not allow this call.\n" in shown
    assert "Well: Added note tea.\n" in shown
    saved = (tmp_path / "records" / "notes.json").read_text(encoding="utf-8")
    assert json.loads(saved) == {"tea": "green"}


@pytest.mark.process("example program")
def test_agent_continues_after_errors(
    typed: Callable[..., list[str]], capsys: pytest.CaptureFixture[str]
) -> None:
    """Errors and Ctrl-C end an answer, and not the program; Ctrl-D ends the program."""

    def interrupted(prompt: Prompt) -> Answer:
        raise KeyboardInterrupt

    typed("One", "Two", "Three", EOFError())
    model = ScriptedModel(OverloadedError("busy"), interrupted, "Three.")

    terminal_agent.main(model)

    shown = capsys.readouterr().out
    assert "busy" in shown
    assert "(stopped)" in shown
    assert "Three.\n" in shown


@pytest.mark.process("example program")
async def test_servers(tmp_path: Path) -> None:
    """There are 300 tools; those of the office keep records, and report what is missing."""
    units = await mcp_servers.units().callbacks()
    office = await mcp_servers.office(str(tmp_path)).callbacks()
    assert len({callback.definition.name for callback in (*units, *office)}) == 300
    notes = {each.definition.name: each for each in office if "note" in each.definition.name}

    def run(name: str, *values: str) -> str:
        tool: Any = notes[f"{name}_note"]
        names = tool.definition.input_schema["properties"]
        return str(tool.call(json.dumps(dict(zip(names, values, strict=True)))))

    run("add", "milk", "two litres")
    run("copy", "milk", "tea")
    run("rename", "milk", "soup")
    run("extend", "tea", "green")
    assert run("show", "tea") == "two litres\ngreen"
    assert run("list") == '["tea","soup"]'
    run("delete", "tea")
    assert run("find", "litres") == '["soup"]'
    notes = {
        each.definition.name: each for each in await mcp_servers.office(str(tmp_path)).callbacks()
    }
    assert run("count") == "1"
    with pytest.raises(ValueError, match="There is no note tea"):
        run("delete", "tea")
