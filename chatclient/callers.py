"""The deadline of the caller, such as a tool: a request made in it has to keep it, too."""

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from weakref import ref

from chatclient.runtime import Runtime


class _Caller:
    """Somebody who makes requests, and has a deadline for it."""

    __slots__ = ("__weakref__", "deadline")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline


# Known for as long as it runs: what it has begun for later goes on without the deadline, and so
# does what comes after a Ctrl-C just where it begins or ends.
_caller: ContextVar[ref[_Caller] | None] = ContextVar("chatclient_caller", default=None)


@contextmanager
def caller_deadline(deadline: float) -> Generator[None, None, None]:
    """Let requests made inside (by a tool, as a rule) end by *deadline* as well."""
    caller = _Caller(deadline)
    token = _caller.set(ref(caller))
    try:
        yield
    finally:
        del caller  # an error that is kept would keep it otherwise
        _caller.reset(token)


def within_callers_deadline(runtime: Runtime) -> Runtime:
    """Return *runtime*, ending by the deadline of the request that it is made in, if any."""
    known = _caller.get()
    caller = None if known is None else known()
    if caller is None:
        return runtime
    if runtime.deadline is not None and runtime.deadline <= caller.deadline:
        return runtime
    return replace(runtime, deadline=caller.deadline)
