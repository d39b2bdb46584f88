"""Vectors as numpy arrays; the one place of the stores that imports it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from chatclient.embedding import Vector
from chatclient.errors import UsageError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Matrix = NDArray[np.float32]

_GROWTH = 1.5  # times the room there was, when there is none left


def numpy() -> Any:
    """Return numpy.

    Raises:
        UsageError: It is not installed.
    """
    try:
        import numpy as np  # noqa: PLC0415 - optional
    except ImportError as error:
        msg = "vector stores need numpy; pip install 'chatclient[vectors]'"
        raise UsageError(msg) from error
    return np


def unit_rows(vectors: Sequence[Vector], length: int | None) -> "Matrix":
    """Return *vectors* as rows of length 1; a vector of zeros stays, and is like nothing.

    Raises:
        UsageError: They are not all of *length* (None: of one length): another embedding model
            has made them.
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
    """Rows of vectors that can grow while others still read the rows they were given.

    Attributes:
        rows: All that are there.
    """

    rows: "Matrix"

    def __init__(self, rows: "Matrix | None" = None) -> None:
        np = numpy()
        self.rows = self._room = np.empty((0, 0), np.float32) if rows is None else rows

    def extend(self, rows: "Matrix") -> None:
        """Add *rows* at the end; what was read before stays as it is."""
        count = len(self.rows)
        end = count + len(rows)
        if end > len(self._room):
            room = numpy().empty((max(end, int(_GROWTH * count)), rows.shape[1]), rows.dtype)
            if count:
                room[:count] = self.rows
            self._room = room
        self._room[count:end] = rows
        self.rows = self._room[:end]


def best(scores: "NDArray[np.float32]", top_k: int, threshold: float | None) -> list[int]:
    """Return the places of the greatest *scores*, best first; of equal ones the earlier first."""
    np = numpy()
    places = np.arange(len(scores))
    if threshold is not None:
        places = places[scores >= threshold]
    if len(places) > top_k:
        least = np.partition(scores[places], -top_k)[-top_k]
        places = places[scores[places] >= least]
    order = np.argsort(-scores[places], kind="stable")[:top_k]
    return [int(place) for place in places[order]]
