"""What has to happen in a forked child, which has copies of what the parent goes on using."""

import os
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet


class Forked(Protocol):
    """Something that a child cannot use as it is."""

    def after_fork(self) -> None:
        """Begin anew, in the child."""
        ...


_forked: "WeakSet[Forked]" = WeakSet()
_kept: list[Any] = []


def in_forked_children(function: Callable[[], None]) -> None:
    """Have *function* called in every child that is forked from now on; Windows forks none."""
    if hasattr(os, "register_at_fork"):  # pragma: no branch
        os.register_at_fork(after_in_child=function)


def tell_of_forks(thing: Forked) -> None:
    """Have *thing* told in every child, as long as it lives."""
    _forked.add(thing)


def keep(inherited: object) -> None:
    """Keep what is the parent's: collected, it would close what the parent uses, or wait for it."""
    _kept.append(inherited)


def _tell() -> None:
    for thing in list(_forked):
        thing.after_fork()


in_forked_children(_tell)
