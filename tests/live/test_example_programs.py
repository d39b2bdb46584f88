"""The example programs with the real local model."""

import builtins
import json
from decimal import Decimal
from pathlib import Path

import batch_extraction
import pytest
import support_desk
import terminal_agent

from chatclient import ChatModel
from tests.support.paths import ROOT

pytestmark = pytest.mark.live


def test_support_desk(
    local_model: ChatModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A refund waits, is approved, and is reported to the customer."""
    monkeypatch.setenv("SUPPORT_DB", str(tmp_path / "support.db"))

    support_desk.main(["ask", "ada", "My kettle, order 1002, broke. Refund it!"], local_model)
    support_desk.main(["pending"], local_model)
    assert "refund_order" in capsys.readouterr().out
    support_desk.main(["approve", "1"], local_model)
    assert "refund" in capsys.readouterr().out
    support_desk.main(["audit"], local_model)
    assert "Order 1002 is refunded." in capsys.readouterr().out


def test_batch_extraction(local_model: ChatModel, tmp_path: Path) -> None:
    """An invoice is read, and one with a wrong total is a failure."""
    lines = (ROOT / "examples" / "invoices.jsonl").read_text(encoding="utf-8").splitlines()
    mails = tmp_path / "mails.jsonl"
    mails.write_text(f"{lines[7]}\n{lines[4]}\n", encoding="utf-8")

    assert batch_extraction.main([str(mails), str(tmp_path)], local_model) == 1
    record = json.loads((tmp_path / "records.jsonl").read_text(encoding="utf-8"))
    assert Decimal(record["invoice"]["total"]) == 40
    assert "194.4" in (tmp_path / "failures.jsonl").read_text(encoding="utf-8")


def test_terminal_agent(
    local_model: ChatModel,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """It finds the tool for the question among 300."""
    monkeypatch.setenv("OFFICE_RECORDS", str(tmp_path))
    lines = iter(["How many feet are 3 miles?", ""])
    monkeypatch.setattr(builtins, "input", lambda question: next(lines))

    terminal_agent.main(local_model)

    shown = capsys.readouterr().out
    assert "[toolSearchTool(" in shown
    assert "-> 15840.0]" in shown
