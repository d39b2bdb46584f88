"""The deadline of the caller, such as a tool: what it asks of models has to keep it, too."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace

from chatclient.context_variables import context_variable
from chatclient.runtime import Runtime


class _Caller:
    """Somebody who makes requests, and may have a deadline for it."""

    __slots__ = ("deadline", "gone")

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.gone = False  # what it has begun for later goes on without the deadline


_caller: ContextVar[_Caller | None] = context_variable("chatclient_caller", None)


@contextmanager
def caller_deadline(deadline: float | None) -> Generator[None, None, None]:
    """Let what is asked inside, by a tool or an advisor, end by *deadline* as well.

    None frees it from that of whoever is further out.
    """
    caller = _Caller(deadline)
    token = _caller.set(caller)
    try:
        yield
    finally:
        caller.gone = True
        _caller.reset(token)


def within_callers_deadline(runtime: Runtime) -> Runtime:
    """Return *runtime*, ending by the deadline of the request that it is made in, if any."""
    caller = _caller.get()
    if caller is None or caller.gone or caller.deadline is None:
        return runtime
    if runtime.deadline is not None and runtime.deadline <= caller.deadline:
        return runtime
    return replace(runtime, deadline=caller.deadline)
