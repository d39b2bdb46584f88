"""`OptionsCache`: caches a value that is computed from the options of a request."""

from collections.abc import Callable
from typing import Generic, TypeVar
from weakref import ref

from chatclient.chat.options import ChatOptions

T = TypeVar("T")


class OptionsCache(Generic[T]):
    """Caches the value for the last options, because successive requests usually share them.

    The options are referenced weakly; otherwise the tool context of a request would live as long
    as the advisor.

    Args:
        compute: Returns the value for given options.
    """

    __slots__ = ("_compute", "_last")

    def __init__(self, compute: Callable[[ChatOptions], T]) -> None:
        self._compute = compute
        self._last: tuple[ref[ChatOptions], T] | None = None

    def get(self, options: ChatOptions) -> T:
        """Return the value for *options*."""
        last = self._last
        if last is None or last[0]() is not options:
            last = self._last = (ref(options), self._compute(options))
        return last[1]
