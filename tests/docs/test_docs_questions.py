"""The example that answers questions about a folder."""

import sys
from pathlib import Path

import docs_questions
import pytest

from chatclient.providers.local.hub import MINILM_WEIGHTS, find_installed
from chatclient.testing import ScriptedModel

pytest.importorskip("markitdown")
pytest.importorskip("onnxruntime")
if find_installed(MINILM_WEIGHTS) is None:
    pytest.skip("the weights of MiniLM are not installed", allow_module_level=True)

LEAVE = "# Handbook\n\n## Leave\n\nEmployees have 30 days of leave a year.\n"
HTML = "<body><h1>Office</h1><p>The office opens at nine.</p></body>"


def test_example(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Answers cite file, line and heading; the second run embeds only what has changed."""
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "leave.md").write_text(LEAVE)
    (folder / "office.html").write_text(HTML)
    (folder / "scan.pdf").write_bytes(b"damaged")
    model = ScriptedModel(
        '{"text": "30 days.", "documents": [1, 1, 7]}', '{"text": "At eight.", "documents": []}'
    )

    def run(question: str) -> str:
        arguments = [str(folder), question, "--database", str(tmp_path / "index.db")]
        monkeypatch.setattr(sys, "argv", ["docs_questions.py", *arguments])
        docs_questions.main(model)
        return capsys.readouterr().out

    first = run("How many days of leave are there?")
    (folder / "office.html").write_text(HTML.replace("nine", "eight"))
    second = run("When does the office open?")

    assert "2 files added, 0 changed, 0 removed, 0 unchanged; 2 chunks embedded" in first
    assert f"Left out: {folder / 'scan.pdf'} cannot be read as pdf" in first
    assert "    30 days.\n" in first
    cited = [line for line in first.splitlines() if line.startswith("    - ")]
    assert cited == [f"    - {folder}/leave.md, line 1 (Handbook > Leave)"]
    assert "0 files added, 1 changed, 0 removed, 1 unchanged; 1 chunks embedded" in second
    assert "No document was cited" in second
    assert "eight" in model.prompts[1].contents
    assert "nine" not in model.prompts[1].contents
    assert 'heading="Handbook &gt; Leave"' in model.prompts[0].contents
