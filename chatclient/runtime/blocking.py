"""Runs coroutines without an event loop, on the caller's thread."""

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from chatclient.errors import BlockingCallError
from chatclient.runtime.context_vars import restore, snapshot

T = TypeVar("T")

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
