"""How a job in a thread, which cannot be stopped, is told that nobody wants it any more."""

import asyncio
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Protocol

from chatclient.context_variables import context_variable


class Interruptible(Protocol):
    """Something that a job in a thread waits for."""

    def interrupt(self) -> None:
        """Cancel it, without waiting for it to clean up."""
        ...


class Interruption:
    """Cancels what a job in a thread waits for; the thread itself cannot be stopped.

    As with a task that is cancelled, a job that waits for nothing at that moment is told when it
    next does, or before it next calls a plain function, and only once.
    """

    def __init__(self, around: "Interruption | None") -> None:
        self._around = around
        self._lock = threading.Lock()
        self._work: set[Interruptible] = set()
        self._interrupted = False
        self._pending = False
        self._over = False

    @property
    def interrupted(self) -> bool:
        """Whether the job, or one around it, has been interrupted."""
        around = self._around
        return self._interrupted or (around is not None and around.interrupted)

    def interrupt(self) -> None:
        """Cancel what is waited for, now or next."""
        with self._lock:
            if self._over:
                return
            self._interrupted = True
            work, self._pending = tuple(self._work), not self._work
        for each in work:
            each.interrupt()

    def add(self, work: Interruptible) -> None:
        """Take note that *work* is waited for, in the jobs around this one, too."""
        with self._lock:
            self._work.add(work)
            pending, self._pending = self._pending, False
        if pending:
            work.interrupt()
        if self._around is not None:
            self._around.add(work)

    def remove(self, work: Interruptible) -> None:
        """Take note that nobody waits for *work* any more."""
        self._work.discard(work)
        if self._around is not None:
            self._around.remove(work)

    def take_pending(self) -> bool:
        """Return whether the job has still to be told, and take note that now it is."""
        with self._lock:
            pending, self._pending = self._pending, False
        around = self._around is not None and self._around.take_pending()
        return pending or around

    def end(self) -> None:
        """Interrupt nothing from now on, such as what the job has begun for later."""
        with self._lock:
            self._over, self._pending, self._interrupted = True, False, False


_interruption: ContextVar[Interruption | None] = context_variable("chatclient_job", None)


def interruptible(context: Context) -> Interruption:
    """Return what interrupts the job that is about to run in *context* on a thread."""
    interruption = Interruption(context.get(_interruption))
    context.run(_interruption.set, interruption)
    return interruption


def is_interrupted() -> bool:
    """Return whether the job that runs here on a thread, if any, was interrupted."""
    interruption = _interruption.get()
    return interruption is not None and interruption.interrupted


def check_interruption() -> None:
    """Tell the job that runs here that it was interrupted, unless it knows.

    Raises:
        CancelledError: It was; a task is told so where it next waits.
    """
    interruption = _interruption.get()
    if interruption is not None and interruption.take_pending():
        raise asyncio.CancelledError


@contextmanager
def uninterrupted() -> Generator[None, None, None]:
    """Let nothing that is waited for inside be interrupted with the job."""
    token = _interruption.set(None)
    try:
        yield
    finally:
        _interruption.reset(token)


@contextmanager
def waiting_for(work: Interruptible) -> Generator[None, None, None]:
    """Let *work* be interrupted with the job that waits for it inside."""
    interruption = _interruption.get()
    if interruption is None:
        yield
        return
    interruption.add(work)
    try:
        yield
    finally:
        interruption.remove(work)
