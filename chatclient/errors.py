"""The errors of the library, ordered by what a caller does next; `docs/errors.md` has a tree."""

import sys
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import Any

__all__ = [
    "AuthenticationError",
    "BlockingCallError",
    "BudgetExceededError",
    "ChatClientError",
    "ChatMemoryError",
    "ChatMemoryUnavailableError",
    "ConnectionFailedError",
    "ContentFilterError",
    "ContextLengthExceededError",
    "ContextWindowError",
    "ConversationBusyError",
    "DeadlineExceededError",
    "DuplicateToolError",
    "DurableTurnError",
    "EntityError",
    "GuardrailError",
    "InvalidRequestError",
    "InvalidResponseError",
    "McpServerError",
    "MissingContextError",
    "MissingExtraError",
    "NotFoundError",
    "OverloadedError",
    "ProviderError",
    "RateLimitExceededError",
    "RateLimitedError",
    "RecordedError",
    "RequestTimeoutError",
    "ResponseLimitError",
    "StreamInterruptedError",
    "TemplateError",
    "ToolArgumentError",
    "ToolCallRefusedError",
    "ToolDefinitionError",
    "ToolDeniedError",
    "ToolError",
    "ToolExecutionError",
    "ToolInterruptedError",
    "ToolLoopError",
    "ToolResultError",
    "ToolTimeoutError",
    "ToolUsageError",
    "TurnCancelledError",
    "TurnVersionError",
    "UnknownPriceError",
    "UnknownToolError",
    "UnsupportedOptionError",
    "UnsupportedToolError",
    "UsageError",
    "UsageStoreError",
    "VectorStoreError",
    "VectorStoreUnavailableError",
    "VersionConflictError",
    "WrongTypeError",
]

# A module without submodules; Python then asks finders for a missing name, as in a package, and
# one of them raises an error that names the right one.
__path__: list[str] = []


class ChatClientError(Exception):
    """Base class of the errors that this library raises.

    Attributes:
        trail: The `Trail` of the client's request that raised the error, else None; not pickled.
    """

    trail: Any = None

    def __init__(self, *args: object) -> None:
        if "_pytest" in sys.modules:
            from chatclient._internal.exceptions import hide_from_pytest  # noqa: PLC0415

            hide_from_pytest()
        super().__init__(*args)

    def _render_traceback_(self) -> list[str]:  # called by IPython
        from chatclient._internal.exceptions import in_ipython  # noqa: PLC0415

        return in_ipython(self)

    def __reduce__(self) -> tuple[Any, ...]:
        # By default, exceptions are unpickled with their positional arguments only.
        state = {**self.__dict__, "args": self.args}
        state.pop("trail", None)
        return type(self).__new__, (type(self),), state


class UsageError(ChatClientError, ValueError):
    """An argument or a call is invalid; nothing was sent."""


class WrongTypeError(UsageError, TypeError):
    """An argument has the wrong type; the message names the expected one."""


class MissingExtraError(UsageError, ModuleNotFoundError):
    """A package is missing that an extra of this library installs; the message names it."""


class UnsupportedOptionError(UsageError):
    """A `model` of a `provider` does not take the `option` of a request; nothing was sent."""

    def __init__(self, message: str, *, option: str, provider: str, model: str) -> None:
        super().__init__(message)
        self.option = option
        self.provider = provider
        self.model = model


class UnsupportedToolError(UsageError):
    """A `provider` does not have the server tool `tool` for its `model`; nothing was sent."""

    def __init__(self, message: str, *, tool: str, provider: str, model: str) -> None:
        super().__init__(message)
        self.tool = tool
        self.provider = provider
        self.model = model


class TemplateError(UsageError):
    """A template cannot be rendered; `missing` has the names without a value, sorted."""

    def __init__(self, message: str, *, missing: Iterable[str] = ()) -> None:
        super().__init__(message)
        self.missing = tuple(missing)


class ToolDefinitionError(UsageError):
    """A tool cannot be built from the given function or data."""


class DuplicateToolError(UsageError):
    """Several tools of a request have the same name; `tool_names` has these names."""

    def __init__(self, message: str, *, tool_names: Iterable[str]) -> None:
        super().__init__(message)
        self.tool_names = tuple(tool_names)


class ToolUsageError(UsageError):
    """The application uses a tool wrongly, which was detected while the tool ran.

    The model cannot correct that, so the error is raised to the application under every policy.
    """


class ToolResultError(ToolUsageError, TypeError):
    """A function that must return a tool's result returned a value of another type."""


class MissingContextError(ToolUsageError, KeyError):
    """A tool needs a value of the tool context that the application has not passed."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError returns the repr of the message


class ProviderError(ChatClientError):
    """The provider of a model failed, or refused the request.

    Attributes:
        provider: The name of the provider, such as `openai`.
        status: The HTTP status, or None without a response.
        request_id: The provider's id of the request, to quote in a support ticket.
        body: The decoded body of the response (JSON or text), or None.
        retry_after: Seconds to wait, as requested by the provider, or None.
        retryable: Whether a retry may succeed. Models have already retried as often as their
            `RetryPolicy` allows, except after the first chunk of a stream.
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
    """There was no response: the server is unreachable or closed the connection."""

    retryable = True


class RequestTimeoutError(ConnectionFailedError, TimeoutError):
    """There was no response in time."""


class RateLimitedError(ProviderError):
    """The provider's rate limit is reached (429)."""

    retryable = True


class OverloadedError(ProviderError):
    """The provider fails on its side (5xx)."""

    retryable = True


class AuthenticationError(ProviderError):
    """The API key is missing, invalid, or lacks a permission (401, 403)."""


class InvalidRequestError(ProviderError):
    """The provider refuses the request (4xx)."""


class NotFoundError(InvalidRequestError):
    """The model or the URL does not exist (404)."""


class ContextLengthExceededError(InvalidRequestError):
    """The prompt does not fit the model's context window."""


class ToolCallRefusedError(InvalidRequestError):
    """The provider refuses `tool_call`, a `ToolCall` that its own model wrote (Groq does this).

    The tool loop of a client catches it and sends the problem to the model.
    """

    def __init__(self, message: str, *, tool_call: Any = None, **context: Any) -> None:
        super().__init__(message, **context)
        self.tool_call = tool_call


class ContextWindowError(ContextLengthExceededError):
    """The smallest prompt has an estimated `tokens`, more than the `limit`; nothing was sent."""

    def __init__(self, message: str, *, tokens: int = 0, limit: int = 0, **context: Any) -> None:
        super().__init__(message, **context)
        self.tokens = tokens
        self.limit = limit


class ContentFilterError(InvalidRequestError):
    """The provider's content policy refuses the prompt."""


class InvalidResponseError(ProviderError):
    """The provider's response cannot be decoded."""


class ResponseLimitError(InvalidResponseError):
    """The response exceeds the `ResponseLimits`: the field `limit`, whose value is `maximum`."""

    def __init__(self, message: str, *, limit: str, maximum: int, **context: Any) -> None:
        super().__init__(message, **context)
        self.limit = limit
        self.maximum = maximum


class StreamInterruptedError(InvalidResponseError):
    """The stream ended early; `partial` is the response until then (a `ChatResponse`), or None."""

    def __init__(self, message: str, *, partial: Any = None, **context: Any) -> None:
        super().__init__(message, **context)
        self.partial = partial


class ToolError(ChatClientError):
    """Raised by a tool to report an error to the model: the message becomes the tool's result.

    Attributes:
        media: Media for the model, such as a screenshot of the failure.
        metadata: Values for the application, as in a `ToolResult`.
        value: A value for the application, as in a `ToolResult`.
    """

    # Defaults for subclasses whose `__init__` does not call this one.
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
    """The MCP server `server` is unreachable, disconnected, or violated the protocol.

    Raised while a tool runs, its message is sent to the model like that of any `ToolError`.

    `stderr` has the last lines that the server's process wrote to its standard error, if it could
    not be started, with secrets masked. The message has them too, unless it is for the model.
    """

    def __init__(self, message: str, *, server: str, stderr: str = "", **content: Any) -> None:
        super().__init__(message, **content)
        self.server = server
        self.stderr = stderr


class ToolExecutionError(ChatClientError):
    """A call of the tool `tool_name` failed, and the failure policy is to raise."""

    def __init__(self, message: str, *, tool_name: str) -> None:
        super().__init__(message)
        self.tool_name = tool_name


class UnknownToolError(ToolExecutionError):
    """The model called a tool that was not offered."""


class ToolArgumentError(ToolExecutionError):
    """The model's arguments do not match the tool's parameters.

    Attributes:
        details: One line for each problem, suitable for the model.
        malformed: Whether the arguments are not valid JSON.
    """

    def __init__(
        self, message: str, *, tool_name: str, details: Iterable[str] = (), malformed: bool = False
    ) -> None:
        super().__init__(message, tool_name=tool_name)
        self.details = tuple(details)
        self.malformed = malformed


class ToolDeniedError(ToolExecutionError):
    """The call was not allowed; the message with the reason is sent to the model."""


class ToolInterruptedError(ToolExecutionError):
    """The process ended while the tool ran; whether the call took effect is unknown."""


class ToolTimeoutError(ToolExecutionError, TimeoutError):
    """A tool did not return within its timeout."""


class ToolLoopError(ChatClientError):
    """The `ToolLimits` were reached; `result` is the last round's `ToolExecutionResult`, if any."""

    def __init__(self, message: str, *, result: Any = None) -> None:
        super().__init__(message)
        self.result = result


class ChatMemoryError(ChatClientError):
    """A conversation cannot be loaded or stored; `conversation_id` is None if several are meant."""

    def __init__(self, message: str, *, conversation_id: str | None = None) -> None:
        super().__init__(message)
        self.conversation_id = conversation_id


class ChatMemoryUnavailableError(ChatMemoryError):
    """The store of conversations is unreachable or overloaded; see the error's cause."""


class VersionConflictError(ChatMemoryError):
    """Nothing was appended: the log of the session `conversation_id` is not at `expected`.

    Attributes:
        expected: The version that the caller has read.
        actual: The present version.
    """

    def __init__(
        self, message: str, *, conversation_id: str | None = None, expected: int, actual: int
    ) -> None:
        super().__init__(message, conversation_id=conversation_id)
        self.expected = expected
        self.actual = actual


class VectorStoreError(ChatClientError):
    """A vector store failed or refused an operation; see the cause."""


class VectorStoreUnavailableError(VectorStoreError):
    """A vector store cannot be reached, or is locked for too long; try later."""


class EntityError(ChatClientError):
    """The model's answer cannot be converted to the requested type.

    Attributes:
        text: The answer as the model wrote it.
        errors: One line for each problem, suitable for the model.
        response: The `ChatResponse`, or None if only a text was converted.
        pending_turn: The `PendingTurn` for `client.resume`, if the turn waits for approval and
            there is no answer yet; else None.
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
    """A guardrail refused the input or the output of a request, or the result of a tool.

    Attributes:
        guardrail: The name of the guardrail that decided.
        messages: The message of each guardrail that failed.
        response: The refused `ChatResponse` or `ToolResult`; None if the input was refused.
    """

    def __init__(
        self, message: str, *, guardrail: str, messages: Iterable[str] = (), response: Any = None
    ) -> None:
        super().__init__(message)
        self.guardrail = guardrail
        self.messages = tuple(messages)
        self.response = response


class RateLimitExceededError(ChatClientError):
    """The limit of a `RateLimitAdvisor` is reached; `retry_after` are the seconds until reset."""

    def __init__(self, message: str, *, retry_after: float) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class BudgetExceededError(ChatClientError):
    """The `limit` of a `Budget` is reached, with `spent`; `unit` is `cost`, `calls` or tokens.

    For a quota, `retry_after` are the seconds until its period ends.
    """

    def __init__(
        self,
        message: str,
        *,
        spent: float,
        limit: float,
        unit: str,
        retry_after: float | None = None,
    ) -> None:
        super().__init__(message)
        self.spent = spent
        self.limit = limit
        self.unit = unit
        self.retry_after = retry_after


class UnknownPriceError(ChatClientError):
    """A `Budget` limits the cost, and the price of `models` is not known; nothing was sent."""

    def __init__(self, message: str, *, models: tuple[str, ...]) -> None:
        super().__init__(message)
        self.models = models


class UsageStoreError(ChatClientError):
    """The store of a quota or a rate limit failed; see the error's cause."""


class DeadlineExceededError(ChatClientError, TimeoutError):
    """The deadline has passed; `partial` is the response of an interrupted stream, or None."""

    partial: Any = None


class DurableTurnError(ChatClientError):
    """The durable turn `turn_id` did not end with a response."""

    def __init__(self, message: str, *, turn_id: str) -> None:
        super().__init__(message)
        self.turn_id = turn_id


class TurnCancelledError(DurableTurnError):
    """The durable turn was cancelled; nothing of it runs any more, and its calls were undone.

    Attributes:
        interrupted: The names of tools that write and that a crash interrupted before: it is
            unknown whether they took effect, so they were not undone.
    """

    def __init__(self, message: str, *, turn_id: str, interrupted: Iterable[str] = ()) -> None:
        super().__init__(message, turn_id=turn_id)
        self.interrupted = tuple(interrupted)


class TurnVersionError(DurableTurnError):
    """This version of the application cannot continue the durable turn.

    Attributes:
        version: The version that started the turn, or None if it is unknown.
        missing_tools: The tools of the turn that this version does not have.
    """

    def __init__(
        self,
        message: str,
        *,
        turn_id: str,
        version: str | None = None,
        missing_tools: Iterable[str] = (),
    ) -> None:
        super().__init__(message, turn_id=turn_id)
        self.version = version
        self.missing_tools = tuple(missing_tools)


class ConversationBusyError(DurableTurnError):
    """The last turn of the conversation has not ended; nothing was started.

    Attributes:
        state: Its state, a `TurnState`: `queued`, `running`, `waiting`, `stuck` or
            `cancelling`.
    """

    def __init__(self, message: str, *, turn_id: str, state: str) -> None:
        super().__init__(message, turn_id=turn_id)
        self.state = state


class RecordedError(ChatClientError):
    """A recorded error whose class, named `kind`, is not known in this process."""

    def __init__(self, message: str, *, kind: str) -> None:
        super().__init__(message)
        self.kind = kind


class BlockingCallError(ChatClientError):
    """A blocking call reached code that needs an event loop."""
