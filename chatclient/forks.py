"""What has to happen at a fork: the child has copies of what the parent goes on using."""

import os
import threading
from collections.abc import Callable
from typing import Any, Protocol
from weakref import WeakSet

_PATIENCE = 5.0  # seconds that a fork waits for what must not be copied half done


class Forked(Protocol):
    """Something that a child cannot use as it is."""

    def after_fork(self) -> None:
        """Begin anew, in the child."""
        ...


class Forking(Protocol):
    """Something that a parent must not have in hand while it forks."""

    def before_fork(self) -> None:
        """Let go of it, in the parent; nothing that is `undisturbed` is under way, as a rule."""
        ...


class Undisturbed:
    """What is done inside, and a fork of the process, wait for each other.

    A fork waits for five seconds at most: then it copies what is under way.
    """

    def __init__(self) -> None:
        self.begin_anew()

    def begin_anew(self) -> None:
        """Forget who is inside: a child has none of the parent's other threads."""
        self._changed = threading.Condition()
        self._inside = 0
        self._forks = 0

    def __enter__(self) -> None:
        with self._changed:
            while self._forks:
                self._changed.wait()
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._changed:
            self._inside -= 1
            if self._forks:
                self._changed.notify_all()

    def begin_fork(self) -> None:
        """Wait until nothing is inside, and let nothing in."""
        with self._changed:
            self._forks += 1
            self._changed.wait_for(lambda: not self._inside, _PATIENCE)

    def end_fork(self) -> None:
        """Let in what waits."""
        with self._changed:
            self._forks -= 1
            self._changed.notify_all()


undisturbed = Undisturbed()
"""What is done inside of it is not under way when the process forks."""

_forked: "WeakSet[Forked]" = WeakSet()
_forking: "WeakSet[Forking]" = WeakSet()
_kept: list[Any] = []


def in_forked_children(function: Callable[[], None]) -> None:
    """Have *function* called in every child that is forked from now on; Windows forks none."""
    if hasattr(os, "register_at_fork"):  # pragma: no branch
        os.register_at_fork(after_in_child=function)


def tell_of_forks(thing: Forked) -> None:
    """Have *thing* told in every child, as long as it lives."""
    _forked.add(thing)


def tell_before_forks(thing: Forking) -> None:
    """Have *thing* told in the parent before each fork, as long as it lives."""
    _forking.add(thing)


class ForkSafeLock:
    """A lock that is free in every forked child, whichever thread of the parent had it.

    For what each change leaves in order: a child goes on from what it finds, or makes it anew.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        tell_of_forks(self)

    def after_fork(self) -> None:
        """Take a lock of one's own: no thread of the parent's goes on to release the other."""
        self._lock = threading.Lock()

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def keep(inherited: object) -> None:
    """Keep what is the parent's: collected, it would close what the parent uses, or wait for it."""
    _kept.append(inherited)


def _prepare() -> None:
    undisturbed.begin_fork()
    for thing in list(_forking):
        thing.before_fork()


def _tell() -> None:
    undisturbed.begin_anew()
    for thing in list(_forked):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows forks none
    os.register_at_fork(before=_prepare, after_in_parent=undisturbed.end_fork)
in_forked_children(_tell)
