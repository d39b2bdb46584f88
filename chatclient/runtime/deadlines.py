"""Deadlines: their error, and nested requests, which inherit the deadline of their caller."""

from contextvars import ContextVar, Token
from dataclasses import replace

from chatclient.errors import DeadlineExceededError, ProviderError, StreamInterruptedError
from chatclient.runtime.context_vars import context_variable
from chatclient.runtime.runtime import Runtime


class CallerDeadline:
    """A context, such as a running tool, whose *deadline* applies to the requests made inside.

    None removes the deadline of an outer caller.
    """

    __slots__ = ("_token", "deadline", "finished")

    _token: Token["CallerDeadline | None"]

    def __init__(self, deadline: float | None) -> None:
        self.deadline = deadline
        self.finished = False  # background tasks that it started are not limited by the deadline

    def __enter__(self) -> None:
        """Set the deadline for requests in this context."""
        self._token = _caller.set(self)

    def __exit__(self, *_error: object) -> None:
        """End the effect of the deadline, in background tasks as well."""
        self.finished = True
        _caller.reset(self._token)
        del self._token  # references the caller's context


_caller: ContextVar[CallerDeadline | None] = context_variable("chatclient_caller", None)


def within_callers_deadline(runtime: Runtime) -> Runtime:
    """Return *runtime* with the deadline of the surrounding request, if that is earlier."""
    caller = _caller.get()
    if caller is None or caller.finished or caller.deadline is None:
        return runtime
    if runtime.deadline is not None and runtime.deadline <= caller.deadline:
        return runtime
    return replace(runtime, deadline=caller.deadline)


_CLOCK_TOLERANCE = 0.02  # seconds that a timeout of a socket may end before the deadline


def is_expired(runtime: Runtime) -> bool:
    """Return whether the deadline of *runtime* has passed, or is about to."""
    return runtime.remaining() <= _CLOCK_TOLERANCE


def deadline_error(error: ProviderError) -> DeadlineExceededError:
    """Return the error for a provider's time-out that is due to a deadline of the application."""
    expired = DeadlineExceededError("the deadline passed before the model's response was complete")
    if isinstance(error, StreamInterruptedError):
        expired.partial = error.partial
    return expired
