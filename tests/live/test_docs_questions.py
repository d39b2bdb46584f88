"""The example that answers questions about a folder, with real models."""

from pathlib import Path

import docs_questions
import pytest

from chatclient import ChatClient, ChatModel
from chatclient.advisors import QuestionAnswerAdvisor
from chatclient.providers import MiniLmEmbeddingModel
from chatclient.providers.local.hub import MINILM_WEIGHTS, find_installed
from chatclient.retrieval import SqliteVectorStore

pytestmark = pytest.mark.live
pytest.importorskip("markitdown")
pytest.importorskip("onnxruntime")
if find_installed(MINILM_WEIGHTS) is None:
    pytest.skip("the weights of MiniLM are not installed", allow_module_level=True)


def test_answer_with_its_source(
    tmp_path: Path, local_model: ChatModel, capsys: pytest.CaptureFixture[str]
) -> None:
    """The answer is in the files, and the cited file contains it."""
    folder = tmp_path / "handbook"
    folder.mkdir()
    (folder / "leave.md").write_text("# Leave\n\nEmployees have 37 days of leave a year.\n")
    (folder / "office.md").write_text("# Office\n\nThe office opens at nine.\n")
    database = tmp_path / "index.db"
    with SqliteVectorStore(database, MiniLmEmbeddingModel()) as store:
        docs_questions.update_index(folder, database, store)
        advisor = QuestionAnswerAdvisor(store, top_k=1)
        client = ChatClient.builder(local_model).default_advisors(advisor).build()

        docs_questions.ask(client, "How many days of leave do employees have?")

    shown = capsys.readouterr().out
    assert "37" in shown
    assert f"    - {folder}/leave.md, line 1 (Leave)" in shown
