"""Locks and hooks for `os.fork`, whose child has copies of the parent's objects."""

import os
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol
from weakref import WeakSet

_WAIT_SECONDS = 5.0  # maximum time that a fork waits for code inside the barrier


class AfterFork(Protocol):
    """An object that must be reset in a forked child."""

    def after_fork(self) -> None:
        """Reset the object, in the child."""
        ...


class BeforeFork(Protocol):
    """An object with resources that a parent must release before it forks."""

    def before_fork(self) -> None:
        """Release them, in the parent; normally no thread is inside the `fork_barrier` then."""
        ...


class ForkBarrier:
    """A context manager; code inside it and forks of the process wait for each other.

    A fork waits for five seconds at most.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget the threads inside: a child has none of the parent's other threads."""
        # Acquired directly: `Condition.__enter__` is written in Python, see `ForkSafeLock`.
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside: set[int] = set()  # threads
        self._forks = 0

    def __enter__(self) -> None:
        with self._lock:
            while self._forks:
                self._changed.wait()
            self._inside.add(threading.get_ident())

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside.discard(threading.get_ident())
            if self._forks:
                self._changed.notify_all()

    def begin_fork(self) -> None:
        """Wait until no other thread is inside, and let none in."""
        here = {threading.get_ident()}  # left in the set if Ctrl-C interrupted `__exit__`
        with self._lock:
            self._forks += 1
            self._changed.wait_for(lambda: self._inside <= here, _WAIT_SECONDS)

    def end_fork(self) -> None:
        """Let waiting threads in."""
        with self._lock:
            self._forks = max(0, self._forks - 1)  # Ctrl-C may have interrupted `begin_fork`
            self._changed.notify_all()


fork_barrier = ForkBarrier()
"""The barrier of this process."""

_after_fork: "WeakSet[AfterFork]" = WeakSet()
_before_fork: "WeakSet[BeforeFork]" = WeakSet()
_kept: list[Any] = []


def in_forked_children(function: Callable[[], None]) -> None:
    """Call *function* in every child that is forked later; does nothing on Windows."""
    if hasattr(os, "register_at_fork"):  # pragma: no branch
        os.register_at_fork(after_in_child=function)


def register_after_fork(target: AfterFork) -> None:
    """Call `after_fork` of *target*, which is referenced weakly, in every forked child."""
    _after_fork.add(target)


def register_before_fork(target: BeforeFork) -> None:
    """Call `before_fork` of *target*, which is referenced weakly, before each fork."""
    _before_fork.add(target)


class _LockMethod(property):
    """A method that delegates to the lock without executing Python code."""

    def __call__(self, holder: object, *args: object) -> Any:
        """Call the method as an attribute of the class, like `contextlib.ExitStack` does."""
        return self.__get__(holder)(*args)


class ForkSafeLock:
    """A lock that is free in every forked child, even if a thread of the parent held it.

    For data that is consistent after every single change: the child uses or recreates it.
    """

    # With methods in Python, Ctrl-C between acquiring the lock and entering the `with` block would
    # leave it locked.
    __enter__: Any = _LockMethod(attrgetter("_lock.__enter__"))
    __exit__: Any = _LockMethod(attrgetter("_lock.__exit__"))

    def __init__(self) -> None:
        self._lock = threading.Lock()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Replace the lock: the thread that holds it does not exist in the child."""
        self._lock = threading.Lock()


def keep(inherited: object) -> None:
    """Keep *inherited* alive in a child: its finalizer would close resources of the parent."""
    _kept.append(inherited)


def _run_before_fork() -> None:
    fork_barrier.begin_fork()
    for target in list(_before_fork):
        target.before_fork()


def _run_after_fork() -> None:
    fork_barrier.reset()
    for target in list(_after_fork):
        target.after_fork()


if hasattr(os, "register_at_fork"):  # pragma: no branch - missing on Windows
    os.register_at_fork(before=_run_before_fork, after_in_parent=fork_barrier.end_fork)
in_forked_children(_run_after_fork)
