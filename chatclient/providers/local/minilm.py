"""Embedding model that runs in this process: MiniLM with onnxruntime.

The weights are those of all-MiniLM-L6-v2 (Apache-2.0), quantized to 8-bit integers (23 MB).
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from chatclient._internal.extras import needed_by
from chatclient.chat.embedding import EmbeddingModel, EmbeddingOptions, Vector
from chatclient.providers.local.hub import (
    MINILM_TOKENIZER,
    MINILM_WEIGHTS,
    ModelFile,
    fetch_model_file,
)
from chatclient.runtime.runtime import Runtime
from chatclient.runtime.threads import ForkSafeLock

_DIMENSIONS = 384
_MAX_TOKENS = 256  # per text; the model was not trained on longer ones
_BATCH = 32
_RUN_SIZE = 8  # texts per run of the model; more are not faster on a CPU


class MiniLmEmbeddingModel(EmbeddingModel):
    """A local embedding model with 384 dimensions, mainly for English; a few ms of CPU per text.

    The first text downloads the weights (23 MB), as `fetch_model_file` does, and loads them.
    Vectors are normalized to length 1. Texts are
    truncated to 256 tokens. Thread-safe. Needs the extra `embeddings`.

    Args:
        threads: Number of threads per batch; None for onnxruntime's default.
        weights: Another ONNX file with the same inputs, or the path of one.
        tokenizer: The `tokenizer.json` of *weights*, or its path.
    """

    def __init__(
        self,
        *,
        threads: int | None = 1,
        weights: ModelFile | str | Path = MINILM_WEIGHTS,
        tokenizer: ModelFile | str | Path = MINILM_TOKENIZER,
    ) -> None:
        self._threads = threads
        self._weights = weights
        self._tokenizer = tokenizer
        self._loading = ForkSafeLock()
        self._loaded: tuple[Any, Any] | None = None
        self._options = EmbeddingOptions(model="all-MiniLM-L6-v2-int8", batch_size=_BATCH)

    @property
    def options(self) -> EmbeddingOptions:
        """The options: batches of 32."""
        return self._options

    @property
    def dimensions(self) -> int:
        """The length of the vectors: 384."""
        return _DIMENSIONS

    @property
    def max_tokens(self) -> int:
        """The number of tokens of a text that count: 256."""
        return _MAX_TOKENS

    def count_tokens(self, text: str) -> int:
        """Return the number of tokens of *text*, including the two that the model adds.

        Raises:
            UsageError: The extra is not installed.
            ModelFileError: A file cannot be downloaded or stored, or has another hash.
        """
        tokenizer, _ = self._parts()
        encoding = tokenizer.encode(text)
        added: int = tokenizer.num_special_tokens_to_add(is_pair=False)
        return len(encoding) + sum(len(rest) - added for rest in encoding.overflowing)

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*; on an event loop, a worker thread computes them.

        Raises:
            UsageError: The extra is not installed.
            ModelFileError: A file cannot be downloaded or stored, or has another hash.
        """
        return await runtime.invoke(self._embed, texts)

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        tokenizer, session = self._parts()
        tokens = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        # Each run is padded to its longest text, so texts of similar length are run together.
        by_length = sorted(range(len(tokens)), key=lambda at: len(tokens[at]))
        vectors: dict[int, Vector] = {}
        for start in range(0, len(tokens), _RUN_SIZE):
            indexes = by_length[start : start + _RUN_SIZE]
            found = _run(session, [tokens[at] for at in indexes])
            vectors.update(zip(indexes, found, strict=True))
        return [vectors[at] for at in range(len(tokens))]

    def _parts(self) -> tuple[Any, Any]:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[Any, Any]:
        with needed_by("the local embedding model", extra="embeddings"):
            import numpy as np  # noqa: F401, PLC0415 - optional
            import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415
            import tokenizers  # noqa: PLC0415
        tokenizer = tokenizers.Tokenizer.from_file(_path_of(self._tokenizer))
        tokenizer.enable_truncation(_MAX_TOKENS)
        tokenizer.no_padding()  # `_run` pads
        options = onnxruntime.SessionOptions()
        if self._threads is not None:
            options.intra_op_num_threads = self._threads
        return tokenizer, onnxruntime.InferenceSession(_path_of(self._weights), options)


def _path_of(source: ModelFile | str | Path) -> str:
    return str(fetch_model_file(source) if isinstance(source, ModelFile) else source)


def _run(session: Any, tokens: Sequence[Sequence[int]]) -> list[Vector]:
    """Return the mean of the model's hidden states for each text, normalized to length 1."""
    import numpy as np  # noqa: PLC0415 - optional, loaded by `_load`

    ids = np.zeros((len(tokens), max(map(len, tokens))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, each in enumerate(tokens):
        ids[row, : len(each)] = each
        mask[row, : len(each)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    # The first output, as its name differs between conversions of the model.
    states = session.run(None, inputs)[0]
    means = (states * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    vectors: list[Vector] = (means / np.linalg.norm(means, axis=1, keepdims=True)).tolist()
    return vectors
