"""Limits of tool calls, and policies for calls that fail."""

from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass, field
from typing import Literal, NoReturn, Protocol, cast

from chatclient._internal.checks import (
    check_callable,
    check_choice,
    check_number,
    error_kinds,
    names,
    seconds,
)
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient._internal.logging import get_logger
from chatclient._internal.text import error_text
from chatclient.chat.messages import ToolCall
from chatclient.chat.tool import Effect, ToolContext, ToolResult
from chatclient.errors import (
    ChatClientError,
    McpServerError,
    ToolArgumentError,
    ToolDeniedError,
    ToolError,
    ToolExecutionError,
    ToolResultError,
    ToolTimeoutError,
    UnknownToolError,
)

OnLimit = Literal["partial", "raise", "tell_model", "final_answer"]
"""End the turn with the results so far; raise; refuse the call and continue; or call the model once
more, without tools."""


@dataclass(frozen=True, slots=True)
class ToolLimits:
    """Limits of one turn, from the user's message to the final answer; None is no limit.

    Attributes:
        max_rounds: The number of model calls.
        max_calls_per_tool: The number of calls of each tool whose effect is not `"read"`; calls of
            tools that only read count towards the total.
        max_total_calls: The number of calls of all tools together.
        max_seconds: Seconds since the turn started; checked between rounds.
        per_tool: The number of calls of single tools, by name, instead of `max_calls_per_tool`.
        excluded: Names of tools that count towards the total only, and may be repeated.
        max_repeats: The number of equal calls with equal results after which the model gets a
            reminder instead of a result. Twice as many reach a limit.
        on_exceeded: What happens when a limit is reached. `"tell_model"` is for limits of calls;
            with it, limits of rounds and time end the turn as with `"final_answer"`.

    Raises:
        UsageError: A bound is not a number or not greater than 0, or *on_exceeded* is not a known
            value.
    """

    max_rounds: int | None = 100
    max_calls_per_tool: int | None = 40
    max_total_calls: int | None = 150
    max_seconds: float | None = None
    per_tool: Mapping[str, int | None] = EMPTY
    excluded: str | Collection[str] = frozenset()
    max_repeats: int | None = 3
    on_exceeded: OnLimit = "partial"

    def __post_init__(self) -> None:
        freeze_fields(self, "per_tool")
        object.__setattr__(self, "excluded", names(self.excluded))
        check_choice("on_exceeded", self.on_exceeded, OnLimit)
        if self.max_seconds is not None:
            object.__setattr__(self, "max_seconds", seconds("max_seconds", self.max_seconds))
        counts = {
            "max_rounds": self.max_rounds,
            "max_calls_per_tool": self.max_calls_per_tool,
            "max_total_calls": self.max_total_calls,
            "max_repeats": self.max_repeats,
            **self.per_tool,
        }
        for name, bound in counts.items():
            if bound is not None:
                check_number(f"the limit {name} (None for no limit)", bound, least=1)

    def breach(self, tool_name: str, effect: Effect, calls: Counter[str]) -> str | None:
        """Return why a tool may not be run, given the numbers of calls including this one."""
        default = None if effect == "read" else self.max_calls_per_tool
        bound = self.per_tool.get(tool_name, default)
        if bound is not None and calls[tool_name] > bound and tool_name not in self.excluded:
            return (
                f"Tool call limit ({bound}) exceeded for tool '{tool_name}'. "
                "No further calls to this tool are allowed in this turn."
            )
        if self.max_total_calls is not None and calls.total() > self.max_total_calls:
            return (
                f"Total tool call limit ({self.max_total_calls}) exceeded for this turn. "
                "No further tool calls are allowed."
            )
        return None

    def breach_between_rounds(self, rounds: int, seconds: float) -> str | None:
        """Return why the model may not be called again, or None."""
        if self.max_rounds is not None and rounds >= self.max_rounds:
            return f"Round limit ({self.max_rounds}) reached for this turn."
        if self.max_seconds is not None and seconds >= self.max_seconds:
            return f"Time limit ({self.max_seconds:g} s) reached for this turn."
        return None


log = get_logger(__name__)

FailureKind = Literal[
    "unknown_tool", "malformed_arguments", "invalid_arguments", "exception", "timeout", "denied"
]
"""The kinds of failure of a tool call. A limit that was reached is not a failure: see
`ToolLimits`."""

NamedReaction = Literal["tell", "raise", "raise_unexpected"]
Reaction = NamedReaction | Callable[["ToolFailure"], str | ToolResult | Awaitable[str | ToolResult]]
"""`"tell"` sends the error to the model, so that it can correct the call. `"raise"` raises it to
the caller. `"raise_unexpected"` does so unless the error is meant for the model: a `ToolError`, as
a tool raises it and as the result of an MCP tool with `isError` becomes one, or a wrong call. A
function returns the text for the model."""

ExceptionText = Literal["message", "class", "nothing"]
"""The part of an exception that goes to the model."""


@dataclass(frozen=True, slots=True)
class ToolFailure:
    """A failed tool call.

    Attributes:
        kind: The kind of failure.
        tool_call: The call.
        error: The error, with its cause. It may contain secrets: it is for logs and spans, not for
            the model.
        count: The number of rounds of this turn in which the tool failed in this way, including
            this one.
        context: The tool context.
    """

    kind: FailureKind
    tool_call: ToolCall
    error: Exception
    count: int = 1
    context: ToolContext = field(default_factory=ToolContext, compare=False, repr=False)


class ToolExecutionExceptionProcessor(Protocol):
    """Decides what happens after a failed tool call; any function with this signature is one.

    It may be asynchronous. On an event loop, a plain function runs in a worker thread.
    """

    def __call__(self, failure: ToolFailure, /) -> str | ToolResult | Awaitable[str | ToolResult]:
        """Return the result for the model, or raise to end the turn."""
        ...


@dataclass(frozen=True)
class ToolFailurePolicy:
    """Decides what happens when a tool call fails; by default, the model gets the error.

    The model gets complete errors about names and arguments, because it wrote them. Of an exception
    of the tool, it gets the message only, never the cause or the traceback. A tool can raise a
    `ToolError` with a message for the model.

    Attributes:
        raise_on: Exceptions of tools that are raised unchanged, including subclasses.
        always_raise: Whether every failure is raised.
        reactions: The `Reaction` to each kind of failure; default: `"tell"`.
        tools: The same for single tools, by name.
        exception_text: The part of a tool's exception that goes to the model.
        max_failures: The number of rounds of a turn in which a tool may fail in the same way before
            the failure is raised; None for any number.

    Raises:
        UsageError: A value in *reactions*, *tools* or *exception_text* is unknown, *raise_on* is
            not an exception type, or *max_failures* is not a number.
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
            check_choice("a kind of failure", kind, FailureKind)
            _check_reaction(f"the reaction to {kind!r}", reaction)
        for name, reaction in self.tools.items():
            _check_reaction(f"the reaction to failures of {name!r}", reaction)
        check_choice("exception_text", self.exception_text, ExceptionText)
        if self.max_failures is not None:
            check_number("max_failures", self.max_failures)

    @property
    def has_functions(self) -> bool:
        """Whether some reactions are functions."""
        return any(map(callable, (*self.reactions.values(), *self.tools.values())))

    def __call__(self, failure: ToolFailure, /) -> str | ToolResult:
        """Return the result for the model, or raise.

        It is an awaitable if the reaction is an asynchronous function.

        Raises:
            ToolExecutionError: The policy decided to raise; its cause is the tool's error.
            Exception: The tool's error, if it is one of `raise_on`.
        """
        if isinstance(failure.error, error_kinds("raise_on", self.raise_on)):
            raise failure.error
        reaction = self.tools.get(failure.tool_call.name) or self.reactions.get(failure.kind)
        spent = self.max_failures is not None and failure.count > self.max_failures
        unexpected = reaction == "raise_unexpected" and not is_meant_for_model(failure)
        if self.always_raise or reaction == "raise" or unexpected or spent:
            _raise(failure)
        if callable(reaction):
            return cast("str | ToolResult", reaction(failure))
        text, error = self.text_for(failure), failure.error
        if isinstance(error, ToolError):  # which may have media and metadata, too
            return ToolResult(text, error.media, True, error.metadata, error.value)  # noqa: FBT003
        return text

    def text_for(self, failure: ToolFailure) -> str:
        """Return the text about *failure* for the model."""
        name, error = failure.tool_call.name, failure.error
        if failure.kind == "timeout":
            return f"The tool {name!r} did not answer in time."
        text = error_text(error).strip()
        if text and is_meant_for_model(failure):
            return error_text(error)
        if self.exception_text == "message" and text:
            return _message(error)
        if self.exception_text == "nothing":
            return f"The tool {name!r} failed."
        return f"Exception occurred in tool: {name} ({type(error).__name__})"


def is_meant_for_model(failure: ToolFailure) -> bool:
    """Return whether the error of *failure* is about the model's call, or was written for it.

    The message of a `McpServerError` is not: it may contain paths and addresses.
    """
    if failure.kind in ("exception", "timeout"):
        return isinstance(failure.error, ToolError) and not isinstance(
            failure.error, McpServerError
        )
    return True


def _check_reaction(what: str, reaction: object) -> None:
    if callable(reaction):
        check_callable(what, reaction, takes=("failure",))
    else:
        check_choice(what, reaction, NamedReaction)


def _message(error: Exception) -> str:
    if isinstance(error, ExceptionGroup):  # its own message contains only their number
        return "\n".join(_message(each) for each in error.exceptions)
    text = error_text(error).strip()
    # The message of a KeyError is only the key.
    return f"{type(error).__name__}: {text}" if isinstance(error, KeyError) else text or repr(error)


def _raise(failure: ToolFailure) -> NoReturn:
    error = failure.error
    if isinstance(error, ToolExecutionError):
        raise error
    name = failure.tool_call.name
    if failure.kind == "timeout":
        raise ToolTimeoutError(f"tool {name!r} did not answer in time", tool_name=name) from error
    raise ToolExecutionError(
        f"tool {name!r} failed: {error_text(error)}", tool_name=name
    ) from error


async def process_failure(
    processor: ToolExecutionExceptionProcessor, failure: ToolFailure
) -> ToolResult:
    """Return the result for the model that *processor* returns for *failure*.

    Raises:
        ToolResultError: It returned neither a text nor a `ToolResult`.
        Exception: What the processor raises to end the turn.
    """
    runtime = failure.context.runtime
    has_functions = isinstance(processor, ToolFailurePolicy) and processor.has_functions
    result = await (runtime.invoke if has_functions else runtime.call)(processor, failure)
    if isinstance(result, ToolResult):
        return result
    if isinstance(result, str):
        return ToolResult(result, is_error=True)
    name = getattr(processor, "__qualname__", type(processor).__qualname__)
    msg = f"exception processor {name} returned {result!r}, not a text or a ToolResult"
    raise ToolResultError(msg) from failure.error


def kind_of(error: Exception) -> FailureKind:
    """Return the kind of failure of *error*."""
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


_PROGRAMMING_ERRORS = (AttributeError, ImportError, NameError, NotImplementedError, TypeError)
_MAX_LOCATIONS = 1000
_logged: dict[tuple[str, str, int], Exception | None] = {}  # the oldest first


def log_programming_error(tool_name: str, error: Exception) -> None:
    """Log an error that only a code change can fix, once for each tool and line.

    It goes to the model like any other failure, so without the log no developer would see it.
    """
    if isinstance(error, ToolArgumentError) and error.__cause__ is not None:
        cause = error.__cause__  # raised by a validator
    else:
        cause = error
    if not isinstance(cause, _PROGRAMMING_ERRORS) or isinstance(cause, ChatClientError):
        return
    traceback = cause.__traceback__
    while traceback is not None and traceback.tb_next is not None:
        traceback = traceback.tb_next
    if traceback is None:
        return
    location = tool_name, traceback.tb_frame.f_code.co_filename, traceback.tb_lineno
    if _logged.setdefault(location, error) is not error:  # atomic, for several threads
        return
    _logged[location] = None  # must not keep the error alive
    if len(_logged) > _MAX_LOCATIONS:
        _logged.pop(next(iter(_logged)), None)
    log.warning("tool has a bug", tool=tool_name, exc_info=cause)
