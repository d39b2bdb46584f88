"""Requests that run without an event loop, on the caller's thread."""

from collections.abc import Coroutine
from typing import Any, TypeVar, cast

from chatclient.context_variables import hold_variables, release_variables
from chatclient.errors import BlockingCallError

T = TypeVar("T")

_NEEDS_A_LOOP = (
    "a blocking call reached an `await` that needs an event loop; call user code through "
    "`await request.runtime.invoke(function, ...)`, or use `acall()` / `astream()`"
)


def drive(coroutine: Coroutine[Any, Any, T]) -> T:
    """Run *coroutine* to its end on this thread, without an event loop.

    Raises:
        BlockingCallError: It awaited something that only an event loop can provide.
    """
    held = hold_variables()
    try:
        coroutine.send(None)
        refusal = no_loop()
        coroutine.throw(refusal)
    except StopIteration as stop:
        return cast("T", stop.value)
    except RuntimeError as error:
        check_for_loop(error)
        raise
    finally:
        release_variables(held)
    close(coroutine)
    raise refusal


def close(coroutine: Coroutine[Any, Any, Any]) -> None:
    """Close *coroutine* where it stands; for cleaning up it has no event loop either.

    Raises:
        BlockingCallError: It awaited something then that only an event loop can provide.
    """
    try:
        coroutine.close()
    except RuntimeError as error:
        check_for_loop(error)
        if str(error) == "coroutine ignored GeneratorExit":  # it waits
            raise no_loop() from error
        raise


def check_for_loop(error: RuntimeError) -> None:
    """See whether *error* comes of code that asked for the event loop that runs here.

    Raises:
        BlockingCallError: It does; there is none.
    """
    if _wants_a_loop(error):
        raise no_loop() from error


def _wants_a_loop(error: RuntimeError) -> bool:
    """Return whether asyncio, anyio or sniffio complains that no loop runs on this thread."""
    kind, text = type(error).__name__, str(error)
    none_runs = text == "no running event loop" or text.startswith("There is no current event loop")
    return none_runs or kind in (
        "NoEventLoopError",
        "AsyncLibraryNotFoundError",
    )


def no_loop() -> BlockingCallError:
    """Return the error for a coroutine that waits for a loop; it may handle it and go on."""
    return BlockingCallError(_NEEDS_A_LOOP)
