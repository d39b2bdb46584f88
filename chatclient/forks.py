"""What has to happen at a fork: the child has copies of what the parent goes on using."""

import os
import threading
from collections.abc import Callable
from operator import attrgetter
from typing import Any, Protocol
from weakref import WeakSet

_PATIENCE = 5.0  # seconds that a fork waits for what must not be copied half done


class AfterFork(Protocol):
    """Something that a child cannot use as it is."""

    def after_fork(self) -> None:
        """Begin again, in the child."""
        ...


class BeforeFork(Protocol):
    """Something that a parent must not have in hand while it forks."""

    def before_fork(self) -> None:
        """Let go of it, in the parent; as a rule nothing is inside the `fork_barrier` then."""
        ...


class ForkBarrier:
    """Makes what is done inside, and a fork of the process, wait for each other.

    A fork waits for five seconds at most: then it copies what is under way.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Forget who is inside: a child has none of the parent's other threads."""
        self._lock = (
            threading.Lock()
        )  # taken itself: a condition's `with` is Python, see `ForkSafeLock`
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
        """Wait until nothing is inside, and let nothing in."""
        here = {threading.get_ident()}  # who forks is not inside; Ctrl-C may have kept it there
        with self._lock:
            self._forks += 1
            self._changed.wait_for(lambda: self._inside <= here, _PATIENCE)

    def end_fork(self) -> None:
        """Let in what waits."""
        with self._lock:
            self._forks = max(0, self._forks - 1)  # Ctrl-C may have kept it from beginning
            self._changed.notify_all()


fork_barrier = ForkBarrier()
"""The barrier of this process: what is done inside is not under way when it forks."""

_after_fork: "WeakSet[AfterFork]" = WeakSet()
_before_fork: "WeakSet[BeforeFork]" = WeakSet()
_kept: list[Any] = []


def in_forked_children(function: Callable[[], None]) -> None:
    """Have *function* called in every child that is forked from now on; Windows forks none."""
    if hasattr(os, "register_at_fork"):  # pragma: no branch
        os.register_at_fork(after_in_child=function)


def register_after_fork(thing: AfterFork) -> None:
    """Have `after_fork` of *thing* called in every child, as long as it lives."""
    _after_fork.add(thing)


def register_before_fork(thing: BeforeFork) -> None:
    """Have `before_fork` of *thing* called in the parent before each fork, as long as it lives."""
    _before_fork.add(thing)


class _OfLock(property):
    """A method of another object's, found without a line of Python."""

    def __call__(self, holder: object, *args: object) -> Any:
        """Call it as what a class has under its name: so does `contextlib.ExitStack`."""
        return self.__get__(holder)(*args)


class ForkSafeLock:
    """A lock that is free in every forked child, whichever thread of the parent had it.

    For what each change leaves in order: a child goes on from what it finds, or makes it anew.
    """

    # Methods in Python would let Ctrl-C come between the lock that is taken and the `with` block
    # that gives it back, and it would stay taken for ever.
    __enter__: Any = _OfLock(attrgetter("_lock.__enter__"))
    __exit__: Any = _OfLock(attrgetter("_lock.__exit__"))

    def __init__(self) -> None:
        self._lock = threading.Lock()
        register_after_fork(self)

    def after_fork(self) -> None:
        """Take a lock of one's own: no thread of the parent's goes on to release the other."""
        self._lock = threading.Lock()


def keep(inherited: object) -> None:
    """Keep what is the parent's: collected, it would close what the parent uses, or wait for it."""
    _kept.append(inherited)


def _run_before_fork() -> None:
    fork_barrier.begin_fork()
    for thing in list(_before_fork):
        thing.before_fork()


def _run_after_fork() -> None:
    fork_barrier.reset()
    for thing in list(_after_fork):
        thing.after_fork()


if hasattr(os, "register_at_fork"):  # pragma: no branch - Windows forks none
    os.register_at_fork(before=_run_before_fork, after_in_parent=fork_barrier.end_fork)
in_forked_children(_run_after_fork)
