"""Interrupts jobs in threads: cancels what they wait for, and their next call."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Protocol

from chatclient.runtime.context_vars import context_variable


class Interruptible(Protocol):
    """Work that a job in a thread waits for."""

    def interrupt(self) -> None:
        """Cancel the work without waiting for its cleanup."""
        ...


class Interruption:
    """Cancels what a job in a thread waits for; the thread itself cannot be stopped.

    Like the cancellation of a task, it takes effect once: immediately if the job is waiting, else
    at its next wait or before its next call of a plain function.
    """

    def __init__(self, outer: "Interruption | None") -> None:
        self._outer = outer
        self._lock = threading.Lock()
        self._work: set[Interruptible] = set()
        self._interrupted = False
        self._pending = False
        self._finished = False

    @property
    def interrupted(self) -> bool:
        """Whether the job, or an outer one, has been interrupted."""
        outer = self._outer
        return self._interrupted or (outer is not None and outer.interrupted)

    def interrupt(self) -> None:
        """Cancel what the job waits for, now or next."""
        with self._lock:
            if self._finished:
                return
            self._interrupted = True
            work, self._pending = tuple(self._work), not self._work
        for each in work:
            each.interrupt()

    def add(self, work: Interruptible) -> None:
        """Register *work* that the job, and with it its outer jobs, begin to wait for."""
        with self._lock:
            self._work.add(work)
            pending, self._pending = self._pending, False
        if pending:
            work.interrupt()
        if self._outer is not None:
            self._outer.add(work)

    def remove(self, work: Interruptible) -> None:
        """Unregister *work*."""
        self._work.discard(work)
        if self._outer is not None:
            self._outer.remove(work)

    def take_pending(self) -> bool:
        """Return whether an interruption is pending, and clear it."""
        with self._lock:
            pending, self._pending = self._pending, False
        outer = self._outer is not None and self._outer.take_pending()
        return pending or outer

    def end(self) -> None:
        """Ignore later interruptions: background work that the job has started continues."""
        with self._lock:
            self._finished, self._pending, self._interrupted = True, False, False


_interruption: ContextVar[Interruption | None] = context_variable("chatclient_job", None)


def interruptible(context: Context) -> Interruption:
    """Return the interruption of the job that will run in *context* on a thread."""
    interruption = Interruption(context.get(_interruption))
    context.run(_interruption.set, interruption)
    return interruption


def is_interrupted() -> bool:
    """Return whether the present code runs in a job that was interrupted."""
    interruption = _interruption.get()
    return interruption is not None and interruption.interrupted


def check_interruption() -> None:
    """Raise a pending interruption of the job that runs here.

    Raises:
        CancelledError: The job was interrupted, which is now no longer pending.
    """
    interruption = _interruption.get()
    if interruption is not None and interruption.take_pending():
        raise asyncio.CancelledError


@contextmanager
def uninterrupted() -> Generator[None, None, None]:
    """Shield the code inside from the interruption of its job."""
    token = _interruption.set(None)
    try:
        yield
    finally:
        _interruption.reset(token)


@contextmanager
def waiting_for(work: Interruptible) -> Generator[None, None, None]:
    """Interrupt *work* together with the job that waits for it inside."""
    interruption = _interruption.get()
    if interruption is None:
        yield
        return
    interruption.add(work)
    try:
        yield
    finally:
        interruption.remove(work)
