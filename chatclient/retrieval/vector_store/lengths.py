"""Checks that vectors have the same length."""

from collections.abc import Collection, Sequence

from chatclient.chat.embedding import Vector
from chatclient.errors import UsageError


def length_of(vectors: Sequence[Vector]) -> int:
    """Return the length of *vectors*.

    Raises:
        UsageError: They have several.
    """
    lengths = {len(vector) for vector in vectors}
    if len(lengths) > 1:
        raise mismatch(lengths)
    return lengths.pop()


def mismatch(lengths: Collection[int]) -> UsageError:
    """Return the error for vectors of several lengths."""
    listed = sorted(lengths)
    return UsageError(f"vectors of lengths {listed} cannot be compared; use one embedding model")
