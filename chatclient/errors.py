"""The errors of the library, ordered by what a caller does next.

```text
ChatClientError
├── UsageError (also a ValueError)        fix your code; nothing was sent
│   ├── WrongTypeError (also a TypeError)
│   ├── TemplateError                     .missing
│   ├── ToolDefinitionError               a tool cannot be made of this
│   ├── DuplicateToolError                .tool_names
│   └── ToolUsageError                    raised while a tool was running
│       ├── ToolResultError (also a TypeError)
│       └── MissingContextError (also a KeyError)
├── ProviderError                         .provider .status .request_id .body
│   │                                     .retry_after .retryable
│   ├── ConnectionFailedError             unreachable, refused, reset
│   │   └── RequestTimeoutError (also a TimeoutError)
│   ├── RateLimitedError                  429
│   ├── OverloadedError                   5xx
│   ├── AuthenticationError               401, 403
│   ├── InvalidRequestError               any other 4xx
│   │   ├── NotFoundError                 404: no such model or address
│   │   ├── ContextLengthExceededError    the prompt is too long
│   │   │   └── ContextWindowError        known before sending; .tokens .limit
│   │   ├── ToolCallRefusedError          the model wrote a wrong tool call; .tool_call
│   │   └── ContentFilterError            refused by the provider's policy
│   └── InvalidResponseError              the answer cannot be read
│       └── StreamInterruptedError        .partial
├── ToolError                             raise it in a tool: the model reads it;
│   │                                     .media .metadata .value
│   └── McpServerError                    .server
├── ToolExecutionError                    a tool failed and your policy says to
│   │                                     raise; .tool_name
│   ├── UnknownToolError
│   ├── ToolArgumentError                 .details .malformed
│   ├── ToolDeniedError                   its text goes to the model
│   └── ToolTimeoutError (also a TimeoutError)
├── ToolLoopError                         a limit, and on_exceeded="raise"; .result
├── ChatMemoryError                       .conversation_id
│   └── ChatMemoryUnavailableError        the database cannot be reached
├── EntityError                           .text .errors .response .pending_turn
├── GuardrailError                        .guardrail .messages .response
├── RateLimitExceededError                your own RateLimitAdvisor; .retry_after
├── BudgetExceededError                   .spent .limit .unit
├── DeadlineExceededError (also a TimeoutError)
└── BlockingCallError                     a blocking call needs an event loop
```
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any


class ChatClientError(Exception):
    """Anything this library raises on purpose.

    Attributes:
        trail: What had happened until then, if a client's request raised it: a `Trail`, whose text
            tells the story. It is not pickled.
    """

    trail: Any = None

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions are unpickled by calling the class with `args`; ours take keywords beside.
        state = {**self.__dict__, "args": self.args}
        state.pop("trail", None)
        return _bare, (type(self),), state


def _bare(kind: type[ChatClientError]) -> ChatClientError:
    return kind.__new__(kind)


class UsageError(ChatClientError, ValueError):
    """The call is wrong in itself; nothing was sent."""


class WrongTypeError(UsageError, TypeError):
    """An argument is of the wrong kind; the message says what would be right."""


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


class ToolUsageError(UsageError):
    """The application uses a tool wrongly, which shows when the tool runs.

    The model cannot mend that, so the application gets the error, whatever the policy says.
    """


class ToolResultError(ToolUsageError, TypeError):
    """Something that must return a tool's result returned something else; the message names it."""


class MissingContextError(ToolUsageError, KeyError):
    """A tool needs a value from the tool context that the application has not passed."""

    def __str__(self) -> str:
        return str(self.args[0])  # a KeyError quotes it


class ProviderError(ChatClientError):
    """The model's side failed.

    Attributes:
        provider: Which provider, such as `openai`.
        status: The HTTP status, or None when there was no answer.
        request_id: The provider's id of the request, to quote in a support ticket.
        body: The decoded answer (JSON or text), as far as there was one.
        retry_after: Seconds to wait as the provider says, or None.
        retryable: Whether asking again may help. Models have already done so as often as their
            `RetryPolicy` allows, except after the first word of a stream: its reader has seen a
            part, which a new answer replaces.
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


class ToolCallRefusedError(InvalidRequestError):
    """The provider refuses a tool call that its own model has just written, as Groq does.

    Users of a client never see it: the turn goes on, and the model is told what is wrong.

    Attributes:
        tool_call: The call (a `ToolCall`).
    """

    def __init__(self, message: str, *, tool_call: Any = None, **context: Any) -> None:
        super().__init__(message, **context)
        self.tool_call = tool_call


class ContextWindowError(ContextLengthExceededError):
    """The prompt does not fit the context window, as estimated; nothing was sent.

    Attributes:
        tokens: How many tokens the smallest prompt that makes sense comes to.
        limit: How many tokens there is room for.
    """

    def __init__(self, message: str, *, tokens: int = 0, limit: int = 0, **provided: Any) -> None:
        super().__init__(message, **provided)
        self.tokens = tokens
        self.limit = limit


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
    """Raised by a tool to speak to the model: its text is the tool's answer, marked as an error.

    Attributes:
        media: What the model is shown beside the text, such as a picture of what went wrong.
        metadata: For the application, as in a `ToolResult`.
        value: For the application, as in a `ToolResult`.
    """

    # On the class too, for subclasses whose `__init__` does not call this one.
    media: tuple[Any, ...] = ()
    metadata: Mapping[str, Any] = MappingProxyType({})
    value: object = None

    def __init__(
        self,
        *args: object,
        media: Iterable[Any] = (),
        metadata: Mapping[str, Any] | None = None,
        value: object = None,
    ) -> None:
        super().__init__(*args)
        self.media = tuple(media)
        self.metadata = dict(metadata or {})
        self.value = value


class McpServerError(ToolError):
    """An MCP server cannot be reached, or went away, or does not follow the protocol.

    Raised while a tool runs, its text goes to the model like that of any `ToolError`.

    Attributes:
        server: The name the application gave the server.
    """

    def __init__(self, message: str, *, server: str, **shown: Any) -> None:
        super().__init__(message, **shown)
        self.server = server


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
    """The call was not allowed; the message says why, and is sent to the model."""


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


class ChatMemoryError(ChatClientError):
    """A conversation cannot be read, or cannot be kept.

    Attributes:
        conversation_id: Which conversation, or None when it is not about a single one.
    """

    def __init__(self, message: str, *, conversation_id: str | None = None) -> None:
        super().__init__(message)
        self.conversation_id = conversation_id


class ChatMemoryUnavailableError(ChatMemoryError):
    """The store of conversations cannot be reached, or is too busy; the cause says more."""


class EntityError(ChatClientError):
    """The model's answer is not the value that was asked for.

    Attributes:
        text: What the model answered, exactly.
        errors: One line for each thing that is wrong, fit to be shown to the model.
        response: The whole response (a `ChatResponse`), or None when only a text was converted.
        pending_turn: The turn, if it waits for approval and there is no answer yet: a `PendingTurn`
            for `client.resume`. Else None.
    """

    def __init__(
        self,
        message: str,
        *,
        text: str,
        errors: Iterable[str] = (),
        response: Any = None,
        pending_turn: Any = None,
    ) -> None:
        super().__init__(message)
        self.text = text
        self.errors = tuple(errors)
        self.response = response
        self.pending_turn = pending_turn


class GuardrailError(ChatClientError):
    """A guardrail did not let something pass.

    Attributes:
        guardrail: The name of the one that had the last word.
        messages: What each guardrail that failed has to say.
        response: The refused response (a `ChatResponse`), or None when it was the input.
    """

    def __init__(
        self, message: str, *, guardrail: str, messages: Iterable[str] = (), response: Any = None
    ) -> None:
        super().__init__(message)
        self.guardrail = guardrail
        self.messages = tuple(messages)
        self.response = response


class RateLimitExceededError(ChatClientError):
    """The application's own limit is reached, and its policy is not to wait.

    Attributes:
        retry_after: Seconds until there is room again.
    """

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BudgetExceededError(ChatClientError):
    """A turn has spent what it was allowed to.

    Attributes:
        spent: What it has spent, in the unit of the limit.
        limit: What it was allowed to spend.
        unit: Such as `total_tokens`, or a currency.
    """

    def __init__(self, message: str, *, spent: float, limit: float, unit: str) -> None:
        super().__init__(message)
        self.spent = spent
        self.limit = limit
        self.unit = unit


class DeadlineExceededError(ChatClientError, TimeoutError):
    """The deadline of the whole call has passed."""


class BlockingCallError(ChatClientError):
    """A blocking call reached code that can only run on an event loop."""
