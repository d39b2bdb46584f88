"""What happens when a tool call fails: the model is told, or the caller."""

from collections.abc import Awaitable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, Protocol

from chatclient.checks import check_number, check_word, error_kinds
from chatclient.errors import (
    ToolArgumentError,
    ToolDeniedError,
    ToolError,
    ToolExecutionError,
    ToolTimeoutError,
    UnknownToolError,
)
from chatclient.messages import ToolCall
from chatclient.tool import ToolContext, ToolResult
from chatclient.values import EMPTY, freeze_fields

FailureKind = Literal[
    "unknown_tool", "malformed_arguments", "invalid_arguments", "exception", "timeout", "denied"
]
"""All that can go wrong with a tool call. A limit that was reached is no failure of a call: see
`ToolLimits`."""

Reaction = Literal["tell", "raise"]
"""Tell the model, so that it can mend what it did; or raise to whoever made the call."""

ExceptionText = Literal["message", "class", "nothing"]
"""How much of an exception is told."""


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A tool call that went wrong.

    Attributes:
        kind: What went wrong.
        tool_call: The call.
        error: The error itself, with its cause. Secrets may be in it: it is for logs and spans,
            never for the model.
        count: In how many rounds of this turn calls of this tool have failed in this way, this one
            included.
        context: The tool context.
    """

    kind: FailureKind
    tool_call: ToolCall
    error: Exception
    count: int = 1
    context: ToolContext = field(default_factory=ToolContext, compare=False, repr=False)


class ToolExecutionExceptionProcessor(Protocol):
    """Decides what comes of a failed tool call; any function of this shape is one.

    It may be asynchronous.
    """

    def __call__(self, failure: ToolFailure, /) -> str | ToolResult | Awaitable[str | ToolResult]:
        """Return what the model is told, or raise to end the turn."""
        ...


@dataclass(frozen=True)
class ToolFailurePolicy:
    """Decides what happens when a tool call fails; by default, the model is told.

    The model is told everything that is wrong with a name or with arguments, because it wrote
    them. Of an exception of the tool, it is told the message only, never the cause or traceback.
    To tell the model something on purpose, a tool raises a `ToolError`.

    Attributes:
        raise_on: Exceptions of tools that are raised as they are, subclasses included.
        always_raise: Whether every failure is raised.
        reactions: What to do with each kind of failure, `"tell"` or `"raise"`; default: `"tell"`.
        tools: The same for single tools, by name.
        exception_text: How much of a tool's exception the model sees.
        max_failures: In how many rounds of a turn a tool may fail in the same way before the
            failure is raised after all; None for any number.

    Raises:
        UsageError: A word in *reactions*, *tools* or *exception_text* is not a known one,
            *raise_on* is not a type of errors, or *max_failures* no number.
    """

    raise_on: type[Exception] | Collection[type[Exception]] = ()
    always_raise: bool = False
    reactions: Mapping[FailureKind, Reaction] = EMPTY  # type: ignore[assignment]
    tools: Mapping[str, Reaction] = EMPTY
    exception_text: ExceptionText = "message"
    max_failures: int | None = None

    def __post_init__(self) -> None:
        freeze_fields(self, "reactions", "tools")
        object.__setattr__(self, "raise_on", error_kinds("raise_on", self.raise_on))
        for kind, reaction in self.reactions.items():
            check_word("a kind of failure", kind, FailureKind)
            check_word(f"the reaction to {kind!r}", reaction, Reaction)
        for name, reaction in self.tools.items():
            check_word(f"the reaction to failures of {name!r}", reaction, Reaction)
        check_word("exception_text", self.exception_text, ExceptionText)
        if self.max_failures is not None:
            check_number("max_failures", self.max_failures)

    def __call__(self, failure: ToolFailure, /) -> str | ToolResult:
        """Return what the model is told, or raise.

        Raises:
            ToolExecutionError: The policy says so; its cause is the tool's own error.
            Exception: The tool's own error, when it is one of `raise_on`.
        """
        if isinstance(failure.error, error_kinds("raise_on", self.raise_on)):
            raise failure.error
        reaction = self.tools.get(failure.tool_call.name) or self.reactions.get(failure.kind)
        spent = self.max_failures is not None and failure.count > self.max_failures
        if self.always_raise or reaction == "raise" or spent:
            _raise(failure)
        text, error = self.text_for(failure), failure.error
        if isinstance(error, ToolError):  # which may have more to show than its text
            return ToolResult(text, error.media, True, error.metadata, error.value)  # noqa: FBT003
        return text

    def text_for(self, failure: ToolFailure) -> str:
        """Return what the model is told about *failure*."""
        name, error = failure.tool_call.name, failure.error
        if failure.kind == "timeout":
            return f"The tool {name!r} did not answer in time."
        text = str(error).strip()
        if text and (failure.kind != "exception" or isinstance(error, ToolError)):
            return str(error)
        if self.exception_text == "message" and text:
            return _message(error)
        if self.exception_text == "nothing":
            return f"The tool {name!r} failed."
        return f"Exception occurred in tool: {name} ({type(error).__name__})"


def _message(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):  # whose own message only counts them
        return "\n".join(_message(each) for each in error.exceptions)
    text = str(error).strip()
    # Of a KeyError the message is only the key.
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) else text or repr(error)


def _raise(failure: ToolFailure) -> NoReturn:
    error = failure.error
    if isinstance(error, ToolExecutionError):
        raise error
    name = failure.tool_call.name
    if failure.kind == "timeout":
        raise ToolTimeoutError(f"tool {name!r} did not answer in time", tool_name=name) from error
    raise ToolExecutionError(f"tool {name!r} failed: {error}", tool_name=name) from error


def kind_of(error: Exception) -> FailureKind:
    """Return what kind of failure *error* is."""
    match error:
        case ToolArgumentError():
            return "malformed_arguments" if error.malformed else "invalid_arguments"
        case UnknownToolError():
            return "unknown_tool"
        case ToolDeniedError():
            return "denied"
        case TimeoutError() if not isinstance(error, ToolError):
            return "timeout"
        case _:
            return "exception"
