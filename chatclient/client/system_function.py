"""System texts that a function computes for each request."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from chatclient._internal.checks import check_callable, wants_argument
from chatclient._internal.frozen import EMPTY
from chatclient.chat.messages import Message, UserMessage, last_user_message
from chatclient.chat.tool import CONVERSATION_ID
from chatclient.errors import UsageError
from chatclient.runtime.runtime import Runtime

if TYPE_CHECKING:
    from chatclient.client.request_settings import RequestSettings


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
        """Return the wrapper of *function*.

        Raises:
            WrongTypeError: It takes other arguments, or has another role.
        """
        wants_request = wants_argument(function)
        what = "a function for the system text"
        check_callable(what, function, takes=("system_request",) if wants_request else ())
        return cls(function, wants_request)

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


async def with_system_text(
    settings: "RequestSettings", messages: tuple[Message, ...], runtime: Runtime
) -> "RequestSettings":
    """Return *settings* with the system text that its system function computes.

    Args:
        settings: Settings with or without a system function.
        messages: The other messages of the request.
        runtime: The runtime of the request.

    Raises:
        UsageError: The function did not return a string.
    """
    function, params = settings.system_function, settings.advisor_params
    if function is None:
        return settings
    conversation_id = params.get(CONVERSATION_ID)
    request = SystemRequest(messages, conversation_id, settings.tool_context, params)
    text = await function.text_for(request, runtime)
    return replace(settings, system=replace(settings.system, text=text), system_function=None)
