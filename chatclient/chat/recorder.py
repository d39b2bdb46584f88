"""The contract of a recorder, which executes the steps of a turn and can repeat their results."""

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Generic, Literal, Protocol, Self, TypeVar

from chatclient.chat.parts import ToolCall
from chatclient.runtime.runtime import Runtime

T = TypeVar("T")

StepKind = Literal[
    "model", "question", "decision", "lookup", "memory", "tool", "agent", "background", "undo"
]
"""What a step is: a round of the turn; a model call or a decision that an advisor or a tool asks
for; a look-up in a cache; reading a memory, which a recorder may repeat; a tool call; a tool call
that consists of steps itself; whether a call runs in the background, or which of these calls have
ended; undoing a tool call."""

Work = Callable[[Runtime], Awaitable[object]]


@dataclass(frozen=True, slots=True, eq=False)
class TurnStep(Generic[T]):
    """A part of a turn that has an effect or costs something, and is executed once.

    Attributes:
        kind: What it is.
        name: Names it within the turn. Each execution of the turn gives the same step the same
            name, and steps that run concurrently have different names.
        run: Executes it.
        dump: Returns its result, or the error that it raised, as JSON values.
        load: Returns the result that was dumped, or raises the error, in place of `run`.
        before: Returns the events that precede it, if another process follows the turn.
        after: Returns the events that follow it, from its result or error.
        writes: Whether it must not be executed again if it is unknown whether it has ended.
        tool_call: The tool call that it executes, or None.
    """

    kind: StepKind
    name: str
    run: Callable[[Runtime], Awaitable[T]]
    dump: Callable[[T | Exception], dict[str, Any]]
    load: Callable[[dict[str, Any]], Awaitable[T]]
    before: Callable[[], list[Any]] | None = None
    after: Callable[[T | Exception, float], list[Any]] | None = None
    writes: bool = False
    tool_call: ToolCall | None = None


class Recorder(Protocol):
    """Executes the steps of one turn, or returns what an earlier execution has recorded.

    A turn without a recorder executes its steps directly. `chatclient.durable.Recording` is one.
    """

    @property
    def name(self) -> str:
        """The name of the turn among the steps of the outermost one; empty for that one."""
        ...

    def clock(self) -> float:
        """Return the time in seconds, which measures how long the turn takes."""
        ...

    async def step(self, step: TurnStep[T], runtime: Runtime) -> T:
        """Return the recorded result of *step*, or execute and record it.

        Raises:
            Exception: What the step raises, or has raised.
        """
        ...

    async def store(self, work: Work, runtime: Runtime) -> object:
        """Let a memory store the turn: await *work*, perhaps several times."""
        ...

    async def confirm(self) -> None:
        """Check that the turn, which has failed or was cancelled, ends in this process.

        Raises:
            BaseException: Another process continues it.
        """
        ...

    def inside(self, name: str, tool_call: ToolCall | None = None) -> Self:
        """Return the recorder of a turn inside of this one, whose steps have names of their own.

        Args:
            name: Names the turn among the steps of this one.
            tool_call: The call of an agent, if the turn is that of one.
        """
        ...
