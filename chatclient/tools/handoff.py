"""The contract of a handoff: a tool with which another client continues the conversation."""

from collections.abc import Callable, Iterable
from typing import Protocol, runtime_checkable

from chatclient.chain.chain import ChatClientRequest, ChatClientResponse
from chatclient.chat.tool import HANDOFF, ToolCallback
from chatclient.tools.tool_execution import ToolExecution

HANDOFFS = "handoffs"
"""The key in a response's context, and in the tool context, of the names of the clients that the
conversation was handed to in this turn, a tuple; the last of them has answered. Absent without a
handoff."""


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
            request: The conversation, the record of the turn, and `HANDOFFS`, which ends with the
                name of the client.
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
        if not execution.is_error and HANDOFF in execution.metadata:
            value, name = execution.value, execution.tool_call.name
            # A turn that was suspended in this round has no values any more.
            return value if isinstance(value, Handoff) else handoff_named(name, offered())
    return None


def handoff_named(name: str, offered: Iterable[ToolCallback]) -> Handoff | None:
    """Return the handoff with the tool name *name* among the *offered* tools, or None."""
    found = next((each for each in offered if each.definition.name == name), None)
    return found if isinstance(found, Handoff) else None
