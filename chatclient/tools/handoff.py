"""The contract of a handoff: a tool with which another client continues the conversation."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol, runtime_checkable

from chatclient.chain.chain import ChatClientRequest, ChatClientResponse
from chatclient.chat.pending_turn import PendingTurn, Resumption
from chatclient.chat.tool import HANDOFF, ToolCallback, ToolExecution, tool_inside
from chatclient.errors import ToolUsageError
from chatclient.runtime.runtime import Runtime

HANDOFFS = "handoffs"
"""The key in the tool context of the names of the clients that the conversation was handed to in
this turn, a tuple, as in `Turn.handoffs`. Absent without a handoff."""


@runtime_checkable
class Handoff(ToolCallback, Protocol):
    """A tool whose call ends the tool loop: another client continues the turn.

    The result of its `invoke` must have the name of the client in its metadata, as `HANDOFF`.
    """

    @property
    def agent(self) -> str:
        """The name of the client."""
        ...

    async def take_over(self, request: ChatClientRequest) -> ChatClientResponse:
        """Return the response of the client to the conversation of *request*.

        Args:
            request: The conversation, and the turn, whose `handoffs` end with the name of the
                client.
        """
        ...

    async def check_decisions(
        self, resumption: Resumption, context: Mapping[str, Any], runtime: Runtime
    ) -> None:
        """Check that decisions about calls of the client can be applied, without running anything.

        Args:
            resumption: The turn that waits, as the client sees it, and the decisions.
            context: The values of the tool context.
            runtime: How the request runs.

        Raises:
            ToolUsageError: A tool is missing, or cannot be run with the arguments of a decision.
        """
        ...


def handoff_in(
    executions: Iterable[ToolExecution], offered: Callable[[], Iterable[ToolCallback]]
) -> Handoff | None:
    """Return the handoff that was made in a round, or None.

    Args:
        executions: The executions of the round.
        offered: Returns the tools of the round.
    """
    for execution in executions:
        if HANDOFF in execution.response.metadata and not execution.is_error:
            value, name = execution.value, execution.tool_call.name
            # A turn that was suspended in this round has no values any more.
            return value if isinstance(value, Handoff) else handoff_named(name, offered())
    return None


def handoff_named(name: str, offered: Iterable[ToolCallback]) -> Handoff | None:
    """Return the handoff with the tool name *name* among the *offered* tools, or None."""
    found = tool_inside(next((each for each in offered if each.definition.name == name), None))
    return found if isinstance(found, Handoff) else None


def handoff_before(
    pending: PendingTurn, offered: Callable[[], Iterable[ToolCallback]]
) -> Handoff | None:
    """Return the handoff that was made before *pending* was suspended, or None.

    Raises:
        ToolUsageError: Its tool is not offered any more.
    """
    note = pending.notes.get(HANDOFF)
    if note is None:
        return None
    handoff = handoff_named(note["tool"], offered())
    if handoff is None:
        msg = (
            f"the turn was handed over with the tool {note['tool']!r}, which is not offered; give"
            " the resumed request the tools that the first one had"
        )
        raise ToolUsageError(msg)
    return handoff
