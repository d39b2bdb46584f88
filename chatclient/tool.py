"""What the rest of the library knows of a tool: its definition, its context, how to call it.

Everything that makes tools out of Python code lives in `chatclient.tools`.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import (
    TYPE_CHECKING,
    Any,
    Literal,
    Protocol,
    TypeVar,
    overload,
    runtime_checkable,
)

from chatclient.checks import check_word, seconds
from chatclient.errors import MissingContextError, ToolResultError, ToolUsageError
from chatclient.events import ToolProgress
from chatclient.messages import Media, Message, UserMessage, last_user_message
from chatclient.runtime import BLOCKING, Runtime
from chatclient.tool_definition import ToolDefinition
from chatclient.values import EMPTY, freeze_fields

if TYPE_CHECKING:
    # `type[T]` takes no class that cannot be instantiated, which is what interfaces are.
    from typing_extensions import TypeForm

__all__ = [
    "ACTIVATED_SKILL",
    "CONVERSATION_ID",
    "DONE",
    "FAILURE",
    "OWN_METADATA",
    "RAN_WITH",
    "REMARK",
    "RETURN_DIRECT",
    "STEP",
    "TURN_KEY",
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
"""What running a tool twice does: nothing, the same as once, or something more each time."""

CONVERSATION_ID = "chat_memory_conversation_id"
"""The key of the conversation's id in a request's context and in a `ToolContext`."""

USER_ID = "chat_memory_user_id"
"""The key in both of the user whose session the conversation has to be."""

TURN_KEY = "chat_memory_turn_key"
"""The key in a request's context of the turn's own key: a turn that is made twice with the same
one, because a queue delivered its job twice, say, is remembered once, and its tools find the same
`idempotency_key` both times."""

STEP = "step"
"""A key in the metadata of a tool's response: True if the call only prepared another one."""

FAILURE = "failure"
"""A key in the metadata of the response to a failed call: what went wrong, a `FailureKind`."""

DONE = "done"
"""A key in the metadata of the response to a failed call: True if the tool had done its work before
the call failed. Such a call can be undone."""

RAN_WITH = "ran_with"
"""A key in the metadata of a tool's response: the arguments that the tool was run with, if they are
not those that the model wrote; None if something else answered in the tool's place."""

REMARK = "remark"
"""A key in the metadata of a tool's response: what the model is told before the result."""

RETURN_DIRECT = "return_direct"
"""A key in the metadata of a tool's response: what the result itself says about being the final
answer (see `ToolResult`). A turn that waits is stored with it."""

ACTIVATED_SKILL = "activated_skill"
"""A key in the metadata of a tool's response: the skill whose instructions it holds."""

OWN_METADATA = frozenset((STEP, FAILURE, DONE, RAN_WITH, REMARK, RETURN_DIRECT, ACTIVATED_SKILL))
"""All of these keys: nobody outside of the application sets them."""

ReturnDirect = bool | Literal["if_last"]
"""Whether a tool's result is the final answer: if all of the round are, or if it is the last."""


@dataclass(frozen=True, slots=True)
class ToolMetadata:
    """How a tool is run.

    Attributes:
        return_direct: Whether its result is the final answer, which the model is not asked about
            again: if all tools of the round say so (True), or if the last of them does
            (`"if_last"`).
        timeout: How many seconds one run may take, or None for no limit of its own.
        sequential: Whether runs of this tool never overlap.
        concurrency_group: Runs of the tools of one group never overlap.
        exclusive: Whether it runs alone: calls before it end first, calls after it wait.
        effect: What it does to the world: `"write"`, `"idempotent"` (harmless to repeat) or
            `"read"`. Approval and the undoing of turns go by this, and clients of an
            `McpToolServer` are told.
        always_visible: Whether it is offered from the start under a tool search.
        compensation: Undoes a call that succeeded, if a later call or the turn fails: a plain or
            asynchronous function of some of the tool's parameters, or of one `ToolExecution`. For
            a method with `@tool`, it may be the name of another method.

    Raises:
        UsageError: *return_direct* or *effect* is not a known value, or *timeout* is not greater
            than 0.
    """

    return_direct: ReturnDirect = False
    timeout: float | None = None
    sequential: bool = False
    concurrency_group: str | None = None
    exclusive: bool = False
    effect: Effect = "write"
    always_visible: bool = False
    compensation: Callable[..., Any] | str | None = None

    def __post_init__(self) -> None:
        check_word("return_direct", self.return_direct, True, False, "if_last")  # noqa: FBT003
        check_word("effect", self.effect, Effect)
        if self.timeout is not None:
            object.__setattr__(self, "timeout", seconds("timeout", self.timeout))


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What a tool hands to the model.

    Attributes:
        text: The result as text, usually JSON.
        media: Images and other content for models that take them in tool results.
        is_error: Whether the tool failed and the text says why.
        metadata: For the application. It is stored with the tool's answer in the conversation, and
            not sent.
        value: For the application: what the tool returned, before it became a text; not stored.
        return_direct: Whether the result is the final answer; replaces what the tool's metadata
            says, by the same rule. None leaves it to that. An error is never the final answer.

    Raises:
        ToolResultError: *text* is not a text.
        ToolUsageError: *return_direct* is not a known value.
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
            check_word("return_direct", self.return_direct, *known, error=ToolUsageError)


class ToolContext(Mapping[str, Any]):
    """Values that the application passes to its tools, and that the model does not see; read only.

    A mapping of the `tool_context` values, with attributes that tell about the call. Nothing in it
    is ever sent to a model.

    Attributes:
        tool_call_id: The id that the model gave the call.
        tool_name: What the model calls the tool.
        attempt: How many calls of this tool there were in the turn, this one included.
        timeout: How many seconds the call may take, or None.
        arguments: The arguments that the tool is run with, as JSON: as the model wrote them, or as
            an interceptor changed them. None before that.
        remark: What the model is told before the result, such as that the user changed the
            arguments, or None; set by whoever approves the call.
        decided: Whether somebody has decided about the call, and it goes on accordingly; set by
            whoever asked for approval.
        result: The result of the tool; None before it has run.
        runtime: How the request runs; see `Runtime.invoke`.
    """

    __slots__ = (
        "_idempotency",
        "_values",
        "arguments",
        "attempt",
        "decided",
        "remark",
        "result",
        "runtime",
        "timeout",
        "tool_call_id",
        "tool_name",
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
        self.attempt = attempt
        self._idempotency = idempotency
        self.result: ToolResult | None = None
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

    def __contains__(self, key: object) -> bool:
        return key in self._values  # without making an error for what is not there

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"ToolContext({sorted(self._values, key=str)}, tool_call_id={self.tool_call_id!r})"

    @property
    def conversation_id(self) -> str | None:
        """The conversation this call belongs to, or None outside of one."""
        return self._values.get(CONVERSATION_ID)

    @property
    def idempotency_key(self) -> str:
        """A key that is the same when a repeated turn makes the same call again.

        Hand it to services that must not do a thing twice. Outside of a turn it is the call's id.
        A turn is the same if its request brings the same `TURN_KEY`; without one, if the user says
        the same after the same conversation, so each turn of a conversation that nobody remembers
        needs a key.
        """
        return self._idempotency() if self._idempotency is not None else self.tool_call_id

    @property
    def remaining_seconds(self) -> float:
        """How many seconds are left until the request's deadline; infinite without one."""
        return self.runtime.remaining()

    @overload
    def require(self, key: str) -> Any: ...

    @overload
    def require(self, key: str, kind: type[T]) -> T: ...

    @overload
    def require(self, key: str, kind: "TypeForm[T]") -> T: ...

    def require(self, key: str, kind: Any = object) -> Any:
        """Return the value of *key*, checked to be a *kind*.

        Args:
            key: What the application calls it.
            kind: A class, abstract or not, a `runtime_checkable` Protocol, or a union of these.

        Raises:
            ToolUsageError: It is missing or of another type, or *kind* cannot be checked. The
                error ends the turn: the application has to pass the value.
        """
        value = self[key]
        name = kind.__name__ if isinstance(kind, type) else kind
        try:
            known = isinstance(value, kind)
        except TypeError as error:
            msg = f"tool context {key!r} cannot be known to be a {name}: {error}"
            raise ToolUsageError(msg) from error
        if not known:
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
    """A tool as the library runs it; `chatclient.tools` makes them from functions.

    It may also have a method `read_arguments(arguments)` that returns by name what the tool would
    be run with, or raises `ToolArgumentError`; so nobody is asked to approve what cannot be run.
    """

    @property
    def definition(self) -> ToolDefinition:
        """What the model is told."""
        ...

    @property
    def metadata(self) -> ToolMetadata:
        """How it is to be run."""
        ...

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Run the tool.

        Args:
            arguments: A JSON object, as the model wrote it.
            context: What the application tells its tools.

        Raises:
            ToolArgumentError: The arguments do not fit.
            Exception: Whatever the tool raises.
        """
        ...


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """What a provider of tools knows of the request that it is asked for.

    Attributes:
        messages: The conversation that will be sent.
        context: The tool context.
        conversation_id: The conversation, if there is one.
        callbacks: The tools found so far: all that come from no provider, and those of the
            providers before this one.
    """

    messages: tuple[Message, ...]
    context: Mapping[str, Any] = field(default=EMPTY, repr=False)
    conversation_id: str | None = None
    callbacks: tuple[ToolCallback, ...] = ()

    def __post_init__(self) -> None:
        if self.context is not EMPTY:
            freeze_fields(self, "context")

    @property
    def user_message(self) -> UserMessage | None:
        """What the user says in this request."""
        return last_user_message(self.messages)


@runtime_checkable
class ToolCallbackProvider(Protocol):
    """A source of tools that is asked in each request.

    `tool_callbacks` may be asynchronous, and may take a `ToolRequest`. A provider may also have a
    method `hidden_tools`, of the same shape, that returns the names of tools to take away. One with
    an attribute `dynamic` that is true is asked again before every round of a turn in which the
    conversation says more than when it was asked last; memory outside the loop counts. Tools that
    it only offers later may be in an attribute `tools_to_come`, so that clashes show at once.
    """

    @property
    def tool_callbacks(self) -> Callable[..., Any]:
        """Return the tools to offer."""
        ...
