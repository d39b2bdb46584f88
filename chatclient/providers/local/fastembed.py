"""Embedding and rerank models that run in this process with fastembed; extra `fastembed`."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

from chatclient._internal.checks import check_model_name, check_number
from chatclient._internal.extras import needed_by
from chatclient.chat.embedding import (
    NO_EMBEDDING_OPTIONS,
    EmbeddingModel,
    EmbeddingOptions,
    Vector,
)
from chatclient.chat.rerank import NO_RERANK_OPTIONS, RerankModel, RerankOptions
from chatclient.errors import UsageError
from chatclient.providers.local.hub import ModelFile, fetch_model_directory
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

_REQUIRED = ("tokenizer.json", "tokenizer_config.json")
_OPTIONAL = ("config.json", "special_tokens_map.json")
_BATCH = 64  # texts of one run of the model


class FastEmbedEmbeddingModel(EmbeddingModel):
    """An embedding model of fastembed, which runs on the CPU with onnxruntime.

    The first text downloads the model into the cache of `huggingface-hub` and loads it; see
    `fetch_model_file` for the environment variables that apply. Thread-safe. Needs the extra
    `fastembed`.

    Args:
        model: A name in `fastembed.TextEmbedding.list_supported_models()`.
        directory: A directory with the files of the model; nothing is downloaded.
        revision: The commit, branch or tag of the model's repository.
        threads: The number of threads; None for onnxruntime's default.
        options: Default options.

    Raises:
        UsageError: *model* is blank, or *threads* is less than 1.
    """

    def __init__(
        self,
        model: str = "BAAI/bge-small-en-v1.5",
        *,
        directory: str | Path | None = None,
        revision: str = "main",
        threads: int | None = None,
        options: EmbeddingOptions = NO_EMBEDDING_OPTIONS,
    ) -> None:
        check_model_name(model)
        self._options = replace(options, model=options.model or model)
        self._model = _LazyModel("TextEmbedding", self.name, directory, revision, threads)

    @property
    def options(self) -> EmbeddingOptions:
        """The default options."""
        return self._options

    @property
    def dimensions(self) -> int:
        """The length of the vectors.

        Raises:
            UsageError: The extra is not installed, or fastembed does not know the model.
        """
        dimensions: int = self._model.description()["dim"]
        return dimensions

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*; on an event loop, a worker thread computes them.

        Raises:
            UsageError: The extra is not installed, fastembed does not know the model, or it cannot
                be loaded.
            ModelFileError: A file cannot be downloaded or stored.
        """
        return await runtime.invoke(self._embed, list(texts))

    def _embed(self, texts: list[str]) -> list[Vector]:
        return [vector.tolist() for vector in self._model.loaded().embed(texts, batch_size=_BATCH)]


class FastEmbedRerankModel(RerankModel):
    """A cross-encoder of fastembed, which runs on the CPU with onnxruntime.

    Scores are those of the model, usually logits: positive for relevant texts. The first query
    downloads the model into the cache of `huggingface-hub` and loads it; see `fetch_model_file` for
    the environment variables that apply. Thread-safe. Needs the extra `fastembed`.

    Args:
        model: A name in `fastembed.rerank.cross_encoder.TextCrossEncoder.list_supported_models()`.
        directory: A directory with the files of the model; nothing is downloaded.
        revision: The commit, branch or tag of the model's repository.
        threads: The number of threads; None for onnxruntime's default.
        options: Default options.

    Raises:
        UsageError: *model* is blank, or *threads* is less than 1.
    """

    def __init__(
        self,
        model: str = "Xenova/ms-marco-MiniLM-L-6-v2",
        *,
        directory: str | Path | None = None,
        revision: str = "main",
        threads: int | None = None,
        options: RerankOptions = NO_RERANK_OPTIONS,
    ) -> None:
        check_model_name(model)
        self._options = replace(options, model=options.model or model)
        self._model = _LazyModel("TextCrossEncoder", self.name, directory, revision, threads)

    @property
    def options(self) -> RerankOptions:
        """The default options."""
        return self._options

    async def score_batch(self, query: str, texts: Sequence[str], runtime: Runtime) -> list[float]:
        """Return the relevance of *texts*; on an event loop, a worker thread computes it.

        Raises:
            UsageError: The extra is not installed, fastembed does not know the model, or it cannot
                be loaded.
            ModelFileError: A file cannot be downloaded or stored.
        """
        return await runtime.invoke(self._score, query, list(texts))

    def _score(self, query: str, texts: list[str]) -> list[float]:
        return list(self._model.loaded().rerank(query, texts, batch_size=_BATCH))


_MODULES = {"TextEmbedding": "fastembed", "TextCrossEncoder": "fastembed.rerank.cross_encoder"}


class _LazyModel:
    """A model of fastembed that is loaded when it is first used.

    Args:
        kind: The name of fastembed's class.
        name: The name of the model.
        directory: A directory with its files, or None to download them.
        revision: The revision of its repository.
        threads: The number of threads, or None.
    """

    def __init__(
        self,
        kind: str,
        name: str,
        directory: str | Path | None,
        revision: str,
        threads: int | None,
    ) -> None:
        if threads is not None:
            check_number("threads", threads, least=1)
        self._kind = kind
        self._name = name
        self._directory = directory
        self._revision = revision
        self._threads = threads
        self._loading = ForkSafeLock()
        self._loaded: Any = None

    def loaded(self) -> Any:
        """Return the model; the first thread loads it, the others wait."""
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def description(self) -> Mapping[str, Any]:
        """Return fastembed's description of the model."""
        name = self._name.lower()
        models: list[dict[str, Any]] = self._make().list_supported_models()
        for described in models:
            if described["model"].lower() == name:
                return described
        place = f"{_MODULES[self._kind]}.{self._kind}.list_supported_models()"
        msg = f"fastembed does not know the model {self._name!r}; see {place}"
        raise UsageError(msg)

    def _make(self) -> Any:
        with needed_by(type(self).__name__):
            return getattr(import_module(_MODULES[self._kind]), self._kind)

    def _load(self) -> Any:
        description = self.description()
        directory = self._directory or self._download(description)
        make: Callable[..., Any] = self._make()
        try:
            return make(self._name, specific_model_path=str(directory), threads=self._threads)
        except Exception as error:
            msg = f"the model {self._name!r} cannot be loaded from {directory}: {error}"
            raise UsageError(msg) from error

    def _download(self, description: Mapping[str, Any]) -> Path:
        repository = description["sources"]["hf"]
        if repository is None:
            msg = f"{self._name!r} is not on the Hugging Face Hub; pass its directory="
            raise UsageError(msg)
        file = ModelFile(
            name=self._name,
            repository=repository,
            filename=description["model_file"],
            sha256="",
            size=int(description["size_in_GB"] * 1e9),
            revision=self._revision,
        )
        required = (*_REQUIRED, *description["additional_files"])
        return fetch_model_directory(file, required, _OPTIONAL)
