"""The contract of a tool: `ToolCallback`, its context and result, and the record of a call.

`chatclient.tools` builds tools from Python code.
"""

from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar, overload, runtime_checkable

from chatclient._internal.checks import check_choice, seconds
from chatclient._internal.frozen import EMPTY, freeze_fields
from chatclient.chat.messages import (
    Media,
    Message,
    ToolCall,
    ToolResponse,
    UserMessage,
    last_user_message,
)
from chatclient.chat.tool_definition import ToolDefinition
from chatclient.errors import MissingContextError, ToolResultError, ToolUsageError, UsageError
from chatclient.runtime.runtime import BLOCKING, Runtime

if TYPE_CHECKING:
    # Type checkers do not accept abstract classes and Protocols for `type[T]`.
    from typing_extensions import TypeForm

__all__ = [
    "ACTIVATED_SKILL",
    "BACKGROUND",
    "CONVERSATION_ID",
    "DECIDED_BY",
    "DONE",
    "FAILURE",
    "GUARDRAIL",
    "HANDOFF",
    "OWN_METADATA",
    "RAN_WITH",
    "REMARK",
    "RESERVED_TOOL_NAMES",
    "RETURN_DIRECT",
    "STEP",
    "USER_ID",
    "Effect",
    "ReturnDirect",
    "ToolCallback",
    "ToolCallbackProvider",
    "ToolContext",
    "ToolDefinition",
    "ToolMetadata",
    "ToolRequest",
    "ToolResult",
]

T = TypeVar("T")

Effect = Literal["read", "idempotent", "write"]
"""Effect of repeated calls with the same arguments: none, the same as one call, or cumulative."""

# --- keys in a request's context ------------------------------------------------------------

CONVERSATION_ID = "chat_memory_conversation_id"
"""The id of the conversation; also a key of `ToolContext`."""

USER_ID = "chat_memory_user_id"
"""The user who must own the session of the conversation; also a key of `ToolContext`."""

# --- keys in the metadata of a tool's response ----------------------------------------------

STEP = "step"
"""True if the call only prepared another one."""

FAILURE = "failure"
"""Why the call failed, a `FailureKind`."""

DONE = "done"
"""True if the call failed after the tool had completed; such a call can be undone."""

RAN_WITH = "ran_with"
"""The arguments that the tool was run with, if they differ from the model's; None if something else
produced the result."""

REMARK = "remark"
"""A text for the model that precedes the result."""

DECIDED_BY = "decided_by"
"""Who or what has decided that the call may run, or may not."""

GUARDRAIL = "guardrail"
"""The names of the guardrails that rewrote the text."""

RETURN_DIRECT = "return_direct"
"""The `return_direct` of the `ToolResult`, stored with a suspended turn."""

ACTIVATED_SKILL = "activated_skill"
"""The skill whose instructions the response contains."""

BACKGROUND = "background"
"""True if the call was started in the background, and its result follows. In the metadata of the
message with the results: the id and the name of each call."""

HANDOFF = "handoff"
"""The name of the client that continues the conversation from this call on."""

OWN_METADATA = frozenset(
    {
        *(STEP, FAILURE, DONE, RAN_WITH, REMARK, DECIDED_BY, RETURN_DIRECT, ACTIVATED_SKILL),
        *(HANDOFF, GUARDRAIL, BACKGROUND),
        # Of messages, defined in modules above this one.
        *("ends_turn", "correction", "chat_memory_summary", "found_tools", "tool_search_roles"),
        *("name", "role", "cache_control", "reasoning_field", "anthropic_container"),
    }
)
"""The keys of this library, which are not accepted from MCP servers."""

RESERVED_TOOL_NAMES = frozenset(
    {
        *("toolSearchTool", "callTool", "activate_skill", "read_skill_resource"),
        *("final_answer", "read_tool_result"),
    }
)
"""The names of tools that the library adds to requests; tools of servers have others."""

ReturnDirect = bool | Literal["if_last"]
"""Whether a tool's result is the final answer: with True, if this holds for all tools of the round;
with `"if_last"`, if it is the last tool of the round."""


@dataclass(frozen=True, slots=True)
class ToolMetadata:
    """How a tool is run.

    Attributes:
        return_direct: Whether the result is the final answer, without another call of the model:
            if this is True for all tools of the round, or `"if_last"` for the last one.
        timeout: The maximum time of a run in seconds, or None.
        sequential: Whether runs of this tool never overlap.
        concurrency_group: Runs of tools in the same group never overlap.
        exclusive: Whether the tool runs alone: after the calls before it, and before those after.
        background: Whether the model goes on while the tool runs, and gets the result in a later
            message; see `chatclient.tools.execution.background`.
        effect: `"write"`, `"idempotent"` (safe to repeat) or `"read"`. Used by approval and
            compensation, and published by an `McpToolServer`.
        confirm: Whether each call needs approval, with any `effect`, and with a `ToolApproval` or
            without.
        always_visible: Whether the tool is offered from the start with a tool search.
        compensation: Undoes a successful call if a later call or the turn fails: a plain or
            asynchronous function of some of the tool's parameters, or of one `ToolExecution`. For
            a method with `@tool`, it may be the name of another method.

    Raises:
        UsageError: *return_direct* or *effect* has an unknown value, *timeout* is not greater than
            0, or *background* contradicts another value.
    """

    return_direct: ReturnDirect = False
    timeout: float | None = None
    sequential: bool = False
    concurrency_group: str | None = None
    exclusive: bool = False
    effect: Effect = "write"
    confirm: bool = False
    background: bool = False
    always_visible: bool = False
    compensation: Callable[..., Any] | str | None = None

    def __post_init__(self) -> None:
        check_choice("return_direct", self.return_direct, True, False, "if_last")  # noqa: FBT003
        check_choice("effect", self.effect, Effect)
        if self.timeout is not None:
            object.__setattr__(self, "timeout", seconds("timeout", self.timeout))
        if self.background:
            for name in ("return_direct", "sequential", "concurrency_group", "exclusive"):
                if getattr(self, name):
                    msg = f"a background tool overlaps with others; leave out background or {name}"
                    if name == "return_direct":
                        msg = "the result of a background tool is never the answer; leave out one"
                    raise UsageError(msg)


@dataclass(frozen=True, slots=True)
class ToolResult:
    """The result of a tool, for the model and the application.

    Attributes:
        text: The result as text, usually JSON.
        media: Images and other content, for models that accept them in tool results.
        is_error: Whether the tool failed; the text is the error message then.
        metadata: Values for the application, stored in the conversation and not sent.
        value: The value that the tool returned, for the application; not stored.
        return_direct: Replaces the `return_direct` of the tool's metadata, unless None. An error is
            never the final answer.

    Raises:
        ToolResultError: *text* is not a text.
        ToolUsageError: *return_direct* has an unknown value.
    """

    text: str
    media: tuple[Media, ...] = ()
    is_error: bool = False
    metadata: Mapping[str, Any] = EMPTY
    value: object = field(default=None, compare=False, repr=False)
    return_direct: ReturnDirect | None = None

    def __post_init__(self) -> None:
        given: object = self.text
        if not isinstance(given, str):
            msg = (
                f"the text of a ToolResult must be a str, not {given!r}; make it one, such as"
                " json.dumps(...), or return the value itself, without a ToolResult"
            )
            raise ToolResultError(msg)
        if self.metadata is not EMPTY:
            freeze_fields(self, "metadata")
        if self.return_direct is not None:
            known = (True, False, "if_last", None)
            check_choice("return_direct", self.return_direct, *known, error=ToolUsageError)


@dataclass(frozen=True, slots=True)
class ToolProgress:
    """Progress of a running tool: an event of the tool, or of the agent that it calls."""

    tool_call_id: str
    tool_name: str
    event: object


class ToolContext(Mapping[str, Any]):
    """The values that the application passes to its tools, and data of the call.

    A mapping of the `tool_context` values, which cannot be changed. Nothing in it is sent to a
    model. The attributes are read only for tools; through them, interceptors and what runs the call
    tell each other what has become of it.

    Attributes:
        tool_call_id: The id of the call.
        tool_name: The tool's name in the call.
        attempt: The number of calls of this tool in the turn, including this one.
        timeout: The maximum time of the call in seconds, or None.
        arguments: The arguments of the run as JSON: those of the model, or those of an interceptor.
            None before the run.
        remark: A text for the model that precedes the result, or None; set by approval, for example
            if the user has changed the arguments.
        decided: Whether the call has been approved or denied; set by approval.
        decided_by: Who or what has decided, or None; set by approval.
        result: The result of the tool; None before it has run.
        begin: Called when a tool that runs in the background is about to begin; else None.
        suspended: The `ApprovalRequired` that suspends the call, even if an interceptor catches
            it; None unless the call waits for a decision.
        runtime: How the request runs; see `Runtime.invoke`.
    """

    __slots__ = (
        *("_idempotency", "_values", "arguments", "attempt", "begin", "decided", "decided_by"),
        *("remark", "result", "runtime", "suspended", "timeout", "tool_call_id", "tool_name"),
    )

    def __init__(
        self,
        values: Mapping[str, Any] = EMPTY,
        *,
        runtime: Runtime | None = None,
        tool_call_id: str = "",
        tool_name: str = "",
        timeout: float | None = None,
        attempt: int = 1,
        idempotency: Callable[[], str] | None = None,
    ) -> None:
        self._values = values
        self.arguments: str | None = None
        self.remark: str | None = None
        self.decided = False
        self.decided_by: str | None = None
        self.attempt = attempt
        self._idempotency = idempotency
        self.result: ToolResult | None = None
        self.suspended: Exception | None = None
        self.begin: Callable[[], Awaitable[None]] | None = None
        self.runtime = runtime or BLOCKING
        self.timeout = timeout
        self.tool_call_id = tool_call_id
        self.tool_name = tool_name

    def __getitem__(self, key: str) -> Any:
        try:
            return self._values[key]
        except KeyError:
            msg = f"the tool context has no {key!r}; pass it with .tool_context({{{key!r}: ...}})"
            raise MissingContextError(msg) from None

    # `Mapping` would create an error for each missing key.
    def __contains__(self, key: object) -> bool:
        return key in self._values

    def get(self, key: str, default: Any = None, /) -> Any:
        """Return the value of *key*, or *default*."""
        return self._values.get(key, default)

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ToolContext({sorted(self._values, key=str)}, tool_call_id={self.tool_call_id!r})"

    @property
    def conversation_id(self) -> str | None:
        """The id of the conversation, or None."""
        return self._values.get(CONVERSATION_ID)

    @property
    def idempotency_key(self) -> str:
        """A key for services that ignore repeated calls; the same in repetitions of a turn.

        Outside of a turn it is the id of the call. Two requests are the same turn only if they have
        the same `TURN_KEY` (`.idempotency_key("order-1")`). Retries and resumption are part of
        their turn.
        """
        return self._idempotency() if self._idempotency is not None else self.tool_call_id

    @property
    def remaining_seconds(self) -> float:
        """The seconds until the request's deadline; infinity without one."""
        return self.runtime.remaining()

    @overload
    def require(self, key: str) -> Any: ...

    @overload
    def require(self, key: str, kind: type[T]) -> T: ...

    @overload
    def require(self, key: str, kind: "TypeForm[T]") -> T: ...

    def require(self, key: str, kind: Any = object) -> Any:
        """Return the value of *key* after a check of its type.

        Args:
            key: The key.
            kind: A class, abstract or not, a `runtime_checkable` Protocol, or a union of these.

        Raises:
            ToolUsageError: The value is missing or has another type, or *kind* cannot be checked.
                The error ends the turn: the application must pass the value.
        """
        value = self[key]
        name = kind.__name__ if isinstance(kind, type) else kind
        try:
            matches = isinstance(value, kind)
        except TypeError as error:
            msg = f"tool context {key!r} cannot be checked to be a {name}: {error}"
            raise ToolUsageError(msg) from error
        if not matches:
            msg = f"tool context {key!r} must be of type {name}, not {type(value).__name__}"
            raise ToolUsageError(msg)
        return value

    async def emit(self, event: Any) -> None:
        """Pass *event* unchanged to the consumer of the request's stream."""
        await self.runtime.emit(event)

    async def progress(self, event: Any) -> None:
        """Report progress to the consumer of the stream, as a `ToolProgress`."""
        await self.runtime.emit(ToolProgress(self.tool_call_id, self.tool_name, event))


@runtime_checkable
class ToolCallback(Protocol):
    """A tool that the library can run; `chatclient.tools` builds them from functions.

    It may have a method `read_arguments(arguments)` that returns the decoded arguments by name, or
    raises `ToolArgumentError`; it is called before the user is asked for approval.
    """

    @property
    def definition(self) -> ToolDefinition:
        """The tool's description for the model."""
        ...

    @property
    def metadata(self) -> ToolMetadata:
        """How the tool is run."""
        ...

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Run the tool.

        Args:
            arguments: A JSON object, as the model wrote it.
            context: The values of the application.

        Raises:
            ToolArgumentError: The arguments do not match the parameters.
            Exception: The errors of the tool.
        """
        ...


def is_handoff(tool: ToolCallback | None) -> bool:
    """Return whether *tool* is a `Handoff`, after which another client continues the turn."""
    return hasattr(tool, "take_over")  # `isinstance` takes many times as long


def tool_inside(tool: ToolCallback | None) -> object:
    """Return the tool that *tool* delegates to, through all wrappers, or *tool* itself."""
    found: object = tool
    while (delegate := getattr(found, "delegate", None)) is not None:
        found = delegate
    return found


def is_agent(tool: ToolCallback) -> bool:
    """Return whether *tool* is a client, or delegates to one: its call consists of steps."""
    return getattr(tool_inside(tool), "has_steps", False) is True


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """The request for which a tool provider is called.

    Attributes:
        messages: The conversation that will be sent.
        context: The tool context.
        conversation_id: The id of the conversation, or None.
        callbacks: The tools of the request, and of the providers before this one.
        original_user_message: The user message before advisors changed it, or None.
    """

    messages: tuple[Message, ...]
    context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    conversation_id: str | None = None
    callbacks: tuple[ToolCallback, ...] = ()
    original_user_message: UserMessage | None = None

    def __post_init__(self) -> None:
        if self.original_user_message is None:
            object.__setattr__(self, "original_user_message", self.user_message)
        if self.context is not EMPTY:
            freeze_fields(self, "context")

    @property
    def user_message(self) -> UserMessage | None:
        """The last user message, or None."""
        return last_user_message(self.messages)


@runtime_checkable
class ToolCallbackProvider(Protocol):
    """A source of tools that is called for each request.

    `tool_callbacks` may be asynchronous, and may take a `ToolRequest`. Optional attributes:

    - `hidden_tools`, a method like `tool_callbacks`, returns the names of tools to remove.
    - `tools_for`, a coroutine method of the class that takes the `ToolRequest` and the `Runtime`,
      is called by clients instead of `tool_callbacks`. It must wait with the runtime's methods.
    - `dynamic`, if true: the provider is called again before each round of a turn that has new
      messages.
    - `tools_to_come`: tools that are offered later, to detect duplicate names early.
    """

    @property
    def tool_callbacks(self) -> Callable[..., Any]:
        """Return the tools to offer."""
        ...


@dataclass(frozen=True, slots=True)
class ToolExecution:
    """One tool call that was run or refused.

    Attributes:
        tool_call: The call of the model.
        response: The response to the model.
        seconds: How long the tool took, on a monotonic clock; 0.0 if it was not run.
        attempt: The number of calls of this tool in the turn, including this one.
        error: The complete error, or None. The model got only `response.data`.
        value: The value that the tool returned; None if it was not run.
        started: When the tool started, in seconds since 1970; None if it was not run.
    """

    tool_call: ToolCall
    response: ToolResponse
    seconds: float = field(default=0.0, compare=False)
    attempt: int = 1
    error: Exception | None = field(default=None, compare=False)
    value: object = field(default=None, compare=False, repr=False)
    started: float | None = field(default=None, compare=False)

    @property
    def is_error(self) -> bool:
        """Whether the tool failed or was refused."""
        return self.response.is_error

    @property
    def arguments(self) -> str | None:
        """The arguments of the tool, after changes by approvers and interceptors.

        None if the tool was not run, because an interceptor or a decision provided the result.
        """
        ran_with: str | None = self.response.metadata.get(RAN_WITH, self.tool_call.arguments)
        return ran_with

    @property
    def decided_by(self) -> str | None:
        """Who or what has decided about the call, as `Decision.by` says, or None."""
        return self.response.metadata.get(DECIDED_BY)

    @property
    def metadata(self) -> Mapping[str, Any]:
        """Metadata for the application, stored in the conversation and not sent to the model."""
        return self.response.metadata

    @property
    def started_at(self) -> datetime | None:
        """When the tool started, or None if it was not run."""
        return None if self.started is None else datetime.fromtimestamp(self.started, UTC)

    @property
    def finished_at(self) -> datetime | None:
        """When the tool ended, or None if it was not run."""
        began = self.started_at
        return None if began is None else began + timedelta(seconds=self.seconds)


def without_remark(response: ToolResponse) -> ToolResponse:
    """Return *response* without the remark before the tool's text."""
    remark = response.metadata.get(REMARK)
    if remark is None:
        return response
    return replace(response, data=response.data.removeprefix(f"{remark}\n"))
