"""System texts that a function writes for each request."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from chatclient.checks import wants_argument
from chatclient.messages import Message, UserMessage, last_user_message
from chatclient.values import EMPTY


@dataclass(frozen=True, slots=True)
class SystemRequest:
    """What is known of a request when its system text is written.

    Attributes:
        messages: What is sent beside the system text; a memory has not added to it yet.
        conversation_id: Which conversation the request continues, or None.
        tool_context: What its tools are told.
        params: What its advisors are told, the advisor params.
    """

    messages: tuple[Message, ...] = ()
    conversation_id: str | None = None
    tool_context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    params: Mapping[str, Any] = EMPTY

    @property
    def user_message(self) -> UserMessage | None:
        """What the user says, or None."""
        return last_user_message(self.messages)


SystemFunction = (
    Callable[[], str | Awaitable[str]] | Callable[[SystemRequest], str | Awaitable[str]]
)
"""Writes the system text of a request; plain or async, and told of the request if it takes it.

A parameter with a value of its own keeps that.
"""


@dataclass(frozen=True, slots=True)
class WrittenSystem:
    """A function that writes system texts, and whether it takes the request."""

    function: Callable[..., Any]
    wants_request: bool

    @classmethod
    def by(cls, function: Callable[..., Any]) -> "WrittenSystem":
        """Return what writes by *function*."""
        return cls(function, wants_argument(function))
