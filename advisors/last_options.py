"""What an advisor makes of the options of a request, kept for the next request."""

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

from chatclient.options import ChatOptions

T = TypeVar("T")


class LastOptions(Generic[T]):
    """Remembers what the last options came to: as a rule, the next request has the very same ones.

    The options themselves are not held on to. With them, what a request tells its tools would live
    as long as the advisor.

    Args:
        make: Returns what options come to.
    """

    __slots__ = ("_last", "_make")

    def __init__(self, make: Callable[[ChatOptions], T]) -> None:
        self._make = make
        self._last: tuple[ref[ChatOptions], T] | None = None

    def get(self, options: ChatOptions) -> T:
        """Return what *options* come to."""
        last = self._last
        if last is None or last[0]() is not options:
            last = self._last = (ref(options), self._make(options))
        return last[1]
