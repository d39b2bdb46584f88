"""System texts that a function computes for each request."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chatclient._internal.checks import wants_argument
from chatclient._internal.frozen import EMPTY
from chatclient.chat.messages import Message, UserMessage, last_user_message
from chatclient.errors import UsageError
from chatclient.runtime.runtime import Runtime


@dataclass(frozen=True, slots=True)
class SystemRequest:
    """The argument of a function that computes a system text.

    Attributes:
        messages: The other messages of the request, before a memory adds its messages.
        conversation_id: The conversation id, or None.
        tool_context: The tool context.
        params: The advisor params.
    """

    messages: tuple[Message, ...] = ()
    conversation_id: str | None = None
    tool_context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    params: Mapping[str, Any] = EMPTY

    @property
    def user_message(self) -> UserMessage | None:
        """The last user message, or None."""
        return last_user_message(self.messages)


SystemFunction = (
    Callable[[], str | Awaitable[str]] | Callable[[SystemRequest], str | Awaitable[str]]
)
"""A plain or async function that returns a system text.

It is called with a `SystemRequest` if it has a parameter without a default value other than None.
"""


@dataclass(slots=True, eq=False)
class SystemTextFunction:
    """A `SystemFunction`, and whether it takes a `SystemRequest`."""

    function: Callable[..., Any]
    wants_request: bool

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "SystemTextFunction":
        """Return the wrapper of *function*."""
        return cls(function, wants_argument(function))

    async def text_for(self, request: SystemRequest, runtime: Runtime) -> str:
        """Return the system text for *request*.

        Raises:
            UsageError: The function did not return a string.
        """
        text = await runtime.invoke(self.function, *([request] if self.wants_request else []))
        if not isinstance(text, str):
            name = getattr(self.function, "__name__", repr(self.function))
            msg = f"{name} must return the system text, but returned {text!r}"
            raise UsageError(msg)
        return text
