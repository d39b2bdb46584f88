"""Vectors as numpy arrays; the only module of the vector stores that imports numpy."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chatclient._internal.extras import needed_by
from chatclient.chat.embedding import Vector
from chatclient.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

_GROWTH = 1.5  # factor by which the capacity grows


def numpy() -> Any:
    """Return the module `numpy`.

    Raises:
        UsageError: It is not installed.
    """
    with needed_by("a vector store"):
        import numpy as np  # noqa: PLC0415 - optional
    return np


def unit_rows(vectors: Sequence[Vector], length: int | None) -> "Matrix":
    """Return *vectors* as rows normalized to length 1; zero vectors are unchanged.

    Raises:
        UsageError: The vectors do not have *length* dimensions (None: the same number), because
            they are from different embedding models.
    """
    np = numpy()
    lengths = {len(vector) for vector in vectors} | ({length} if length else set())
    if len(lengths) > 1:
        msg = f"vectors of lengths {sorted(lengths)} cannot be compared; use one embedding model"
        raise UsageError(msg)
    rows: Matrix = np.asarray(vectors, dtype=np.float32)
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms == 0, 1, norms)  # type: ignore[no-any-return]


class GrowingRows:
    """A matrix of vectors that can grow while other threads use previous versions of `rows`.

    Attributes:
        rows: The current rows.
    """

    rows: "Matrix"

    def __init__(self, rows: "Matrix | None" = None) -> None:
        np = numpy()
        self.rows = self._buffer = np.empty((0, 0), np.float32) if rows is None else rows

    def extend(self, rows: "Matrix") -> None:
        """Append *rows*; previous versions of `rows` do not change."""
        count = len(self.rows)
        end = count + len(rows)
        if end > len(self._buffer):
            buffer = numpy().empty((max(end, int(_GROWTH * count)), rows.shape[1]), rows.dtype)
            if count:
                buffer[:count] = self.rows
            self._buffer = buffer
        self._buffer[count:end] = rows
        self.rows = self._buffer[:end]


def best(scores: "NDArray[np.float32]", top_k: int, threshold: float | None) -> list[int]:
    """Return the indexes of the highest *scores*, the best first; ties keep their order."""
    np = numpy()
    indexes = np.arange(len(scores))
    if threshold is not None:
        indexes = indexes[scores >= threshold]
    if len(indexes) > top_k:
        lowest = np.partition(scores[indexes], -top_k)[-top_k]
        indexes = indexes[scores[indexes] >= lowest]
    order = np.argsort(-scores[indexes], kind="stable")[:top_k]
    return [int(index) for index in indexes[order]]
