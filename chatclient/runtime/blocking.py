"""Blocking requests: coroutines without an event loop, their context variables and interruption."""

import asyncio
import threading
from collections.abc import Coroutine, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar, Token
from typing import Any, Protocol, TypeVar, cast

from chatclient.errors import BlockingCallError

T = TypeVar("T")

_known: list[ContextVar[Any]] = []


def context_variable(name: str, default: T) -> ContextVar[T]:
    """Create a variable that `snapshot` covers; called at module level."""
    variable: ContextVar[T] = ContextVar(name, default=default)
    _known.append(variable)
    return variable


def snapshot() -> list[tuple[ContextVar[Any], Token[Any]]]:
    """Return the present values of the variables, for `restore`."""
    return [(variable, variable.set(variable.get())) for variable in _known]


def restore(values: list[tuple[ContextVar[Any], Token[Any]]]) -> None:
    """Reset all variables to the *values* of a `snapshot`."""
    for variable, token in values:
        variable.reset(token)


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


_NEEDS_A_LOOP = (
    "a blocking call reached an `await` that needs an event loop; call user code through "
    "`await request.runtime.invoke(function, ...)`, or use `acall()` / `astream()`"
)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine* to its end on this thread, without an event loop.

    Raises:
        BlockingCallError: It awaited something that needs an event loop.
    """
    values = snapshot()
    try:
        coroutine.send(None)
        # The coroutine may handle the error once; another await ends it.
        thrown = no_loop_error()
        coroutine.throw(thrown)
    except StopIteration as stop:
        return cast("T", stop.value)
    except RuntimeError as error:
        check_for_loop(error)
        raise
    finally:
        restore(values)
    close(coroutine)
    raise thrown


def close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close *coroutine*, running its `finally` blocks without an event loop.

    Raises:
        BlockingCallError: A `finally` block awaited something that needs an event loop.
    """
    try:
        coroutine.close()
    except RuntimeError as error:
        check_for_loop(error)
        if str(error) == "coroutine ignored GeneratorExit":  # it awaited
            raise no_loop_error() from error
        raise


def check_for_loop(error: RuntimeError) -> None:
    """Convert the error of code that needs a running event loop.

    Raises:
        BlockingCallError: *error* reports that no event loop is running.
    """
    if _is_no_loop_error(error):
        raise no_loop_error() from error


def _is_no_loop_error(error: RuntimeError) -> bool:
    """Return whether asyncio, anyio or sniffio reports that no event loop is running."""
    kind, text = type(error).__name__, str(error)
    none_runs = text == "no running event loop" or text.startswith("There is no current event loop")
    return none_runs or kind in ("NoEventLoopError", "AsyncLibraryNotFoundError")


def no_loop_error() -> BlockingCallError:
    """Return the error for a coroutine that awaits an event loop; the coroutine may handle it."""
    return BlockingCallError(_NEEDS_A_LOOP)
