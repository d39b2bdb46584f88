"""The errors of the library, ordered by what a caller does next.

ChatClientError                          anything this library raises on purpose
├── UsageError (also a ValueError)       the call is wrong; nothing was sent      → fix the code
│   ├── TemplateError                    .missing
│   ├── ToolDefinitionError              a tool cannot be built
│   └── DuplicateToolError               .tool_names
├── ProviderError                        .provider .status .request_id .body .retry_after
│   ├── ConnectionFailedError            no answer: network, refused, reset       → retry
│   │   └── RequestTimeoutError          no answer in time                        → retry
│   ├── RateLimitedError                 429                                      → retry later
│   ├── OverloadedError                  5xx                                      → retry, fall back
│   ├── AuthenticationError              401, 403                                 → fix the key
│   ├── InvalidRequestError              the other 4xx                            → fix the request
│   │   ├── NotFoundError                404: model or address
│   │   ├── ContextLengthExceededError   the prompt is too long
│   │   └── ContentFilterError           refused by the provider's policy
│   └── InvalidResponseError             an answer that cannot be read            → report
│       └── StreamInterruptedError       .partial holds what had arrived          → ask again
├── ToolError                            raise it in a tool: its text goes to the model
├── ToolExecutionError                   a tool failed and policy says raise      .tool_name
│   ├── UnknownToolError
│   ├── ToolArgumentError                .details .malformed
│   ├── ToolDeniedError                  its text goes to the model
│   └── ToolTimeoutError
├── ToolLoopError                        a limit was reached, policy says raise   .result
├── DeadlineExceededError                the deadline of the whole call has passed
└── BlockingCallError                    a blocking call reached code that needs an event loop
"""

from collections.abc import Iterable
from typing import Any


class ChatClientError(Exception):
    """Anything this library raises on purpose."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are unpickled by calling the class with `args`; ours take keywords beside.
        return _bare, (type(self),), {**self.__dict__, "args": self.args}


def _bare(kind: type[ChatClientError]) -> ChatClientError:
    return kind.__new__(kind)


class UsageError(ChatClientError, ValueError):
    """The call is wrong in itself; nothing was sent."""


class TemplateError(UsageError):
    """A template cannot be rendered.

    Attributes:
        missing: The names the template needs and was not given, sorted.
    """

    def __init__(self, message: str, *, missing: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class ToolDefinitionError(UsageError):
    """A tool cannot be built from what was given."""


class DuplicateToolError(UsageError):
    """Two tools of one name would be offered to the model.

    Attributes:
        tool_names: The names that occur more than once.
    """

    def __init__(self, message: str, *, tool_names: Iterable[str]) -> None:
        super().__init__(message)
        self.tool_names = tuple(tool_names)


class ProviderError(ChatClientError):
    """The model's side failed.

    Attributes:
        provider: Which provider, such as `openai`.
        status: The HTTP status, or None when there was no answer.
        request_id: The provider's id of the request, to quote in a support ticket.
        body: The decoded answer (JSON or text), as far as there was one.
        retry_after: Seconds to wait as the provider says, or None.
    """

    retryable = False

    def __init__(
        self,
        message: str,
        *,
        provider: str = "",
        status: int | None = None,
        request_id: str | None = None,
        body: Any = None,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.provider = provider
        self.status = status
        self.request_id = request_id
        self.body = body
        self.retry_after = retry_after


class ConnectionFailedError(ProviderError):
    """No answer came: the server is unreachable or hung up."""

    retryable = True


class RequestTimeoutError(ConnectionFailedError, TimeoutError):
    """No answer came in time."""


class RateLimitedError(ProviderError):
    """The provider asks to slow down (429)."""

    retryable = True


class OverloadedError(ProviderError):
    """The provider fails on its side (5xx)."""

    retryable = True


class AuthenticationError(ProviderError):
    """The key is missing, wrong, or lacks a permission (401, 403)."""


class InvalidRequestError(ProviderError):
    """The provider refuses the request as it stands (4xx)."""


class NotFoundError(InvalidRequestError):
    """The model or the address does not exist (404)."""


class ContextLengthExceededError(InvalidRequestError):
    """The prompt does not fit the model's context window."""


class ContentFilterError(InvalidRequestError):
    """The provider's content policy refuses the prompt."""


class InvalidResponseError(ProviderError):
    """The provider's answer cannot be read."""


class StreamInterruptedError(InvalidResponseError):
    """The stream ended before its answer did.

    Attributes:
        partial: The response as far as it had arrived (a `ChatResponse`), or None.
    """

    def __init__(self, message: str, *, partial: Any = None, **context: Any) -> None:
        super().__init__(message, **context)
        self.partial = partial


class ToolError(ChatClientError):
    """Raised by a tool to speak to the model: its text is the tool's answer, marked as an error."""


class ToolExecutionError(ChatClientError):
    """A tool call failed and the policy in force says to raise.

    Attributes:
        tool_name: The tool that was called.
    """

    def __init__(self, message: str, *, tool_name: str) -> None:
        super().__init__(message)
        self.tool_name = tool_name


class UnknownToolError(ToolExecutionError):
    """The model called a tool that was not offered."""


class ToolArgumentError(ToolExecutionError):
    """The model's arguments do not fit the tool.

    Attributes:
        details: One line for each thing that is wrong, fit to be shown to the model.
        malformed: Whether they are not even JSON.
    """

    def __init__(
        self,
        message: str,
        *,
        tool_name: str,
        details: Iterable[str] = (),
        malformed: bool = False,
    ) -> None:
        super().__init__(message, tool_name=tool_name)
        self.details = tuple(details)
        self.malformed = malformed


class ToolDeniedError(ToolExecutionError):
    """Somebody did not allow the call; the message says why, and is told to the model."""


class ToolTimeoutError(ToolExecutionError, TimeoutError):
    """A tool did not answer within its timeout."""


class ToolLoopError(ChatClientError):
    """A limit of the tool loop was reached and the policy says to raise.

    Attributes:
        result: The last round's `ToolExecutionResult`: a history that can be sent as it is.
    """

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class DeadlineExceededError(ChatClientError, TimeoutError):
    """The deadline of the whole call has passed."""


class BlockingCallError(ChatClientError):
    """A blocking call reached code that can only run on an event loop."""
