"""An embedding model for tests: texts with equal words or synonyms are similar."""

import re
import zlib
from collections.abc import Sequence

from chatclient.chat.embedding import EmbeddingModel, EmbeddingOptions, Vector
from chatclient.errors import OverloadedError
from chatclient.runtime.runtime import Runtime

SAME = {"mail": "letter", "letters": "letter", "climate": "weather", "cats": "cat"}


class BagOfWords(EmbeddingModel):
    """Counts words in a few buckets, with some synonyms."""

    def __init__(self, *, length: int = 256, failures: int = 0) -> None:
        self.length = length
        self.failures = failures
        self.texts: list[str] = []

    @property
    def options(self) -> EmbeddingOptions:
        return EmbeddingOptions(model="bag", batch_size=50)

    async def embed_batch(self, texts: Sequence[str], runtime: Runtime) -> list[Vector]:
        await runtime.sleep(0)
        if self.failures:
            self.failures -= 1
            raise OverloadedError("busy", provider="bag")
        self.texts += texts
        return [self._vector(text) for text in texts]

    def _vector(self, text: str) -> Vector:
        vector = [0.0] * self.length
        for word in re.findall(r"[a-z]+", text.lower()):
            vector[zlib.crc32(str(SAME.get(word, word)).encode()) % self.length] += 1.0
        return vector
