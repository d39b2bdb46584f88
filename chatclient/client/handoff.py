"""`handoff`: a tool with which another client continues the conversation."""

from collections.abc import Callable, Mapping
from typing import Any

from chatclient._internal.checks import check_callable, check_number
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse
from chatclient.chat.pending_turn import Resumption
from chatclient.chat.tool import HANDOFF, ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.client.client import ChatClient
from chatclient.errors import ToolDeniedError, UsageError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.function.schema import check_tool_name, signature_of_schema
from chatclient.tools.handoff import HANDOFFS, Handoff


def handoff(
    client: ChatClient | Callable[[], ChatClient],
    name: str | None = None,
    description: str | None = None,
    *,
    max_handoffs: int = 5,
) -> Handoff:
    """Return a tool with which the model hands the conversation to *client*.

    The client continues the turn: it gets the conversation so far, without system messages, and
    answers the user with its own system text, tools, advisors and model. Its events follow a
    `HandedOver`, its rounds are part of the trail and of the messages of the turn, and the memory
    of the first client stores them. The tool needs the tool loop of a client.

    Args:
        client: The client, or a function that returns it, for clients that hand over to each
            other.
        name: The name of the client in events and in `HANDOFFS`, and of the tool, after
            `handoff_to_`; default: the client's own.
        description: When the model should call the tool; required.
        max_handoffs: The number of handoffs in a turn, between any clients, after which this tool
            refuses.

    Raises:
        UsageError: The name or the description is missing, or *max_handoffs* is less than 1.
        ToolDefinitionError: Providers do not accept the name.
    """
    if not isinstance(client, ChatClient):
        check_callable("the client of a handoff", client)
    get = (lambda: client) if isinstance(client, ChatClient) else client
    if name is None and isinstance(client, ChatClient):
        name = client.name
    if name is None:
        msg = "the handoff needs a name: handoff(client, name, ...), or builder.name(...)"
        raise UsageError(msg)
    if description is None:
        msg = f"the handoff to {name!r} needs a description that tells the model when to call it"
        raise UsageError(msg)
    check_number("max_handoffs", max_handoffs, least=1)
    return _HandoffTool(get, name, description, max_handoffs)


class _HandoffTool:
    """The tool; calling it has no effect itself, the tool loop hands over after the round."""

    metadata = ToolMetadata(effect="read", always_visible=True)

    def __init__(
        self, client: Callable[[], ChatClient], agent: str, description: str, max_handoffs: int
    ) -> None:
        tool_name = f"handoff_to_{agent}"
        check_tool_name(tool_name)
        self.agent = agent
        self._takes = signature_of_schema(
            {
                "properties": {
                    "reason": {
                        "type": "string",
                        "description": "Why, and what is known so far, for the one who takes over.",
                    }
                },
                "additionalProperties": False,
            }
        )
        self.definition = ToolDefinition(tool_name, description, self._takes.input_schema)
        self._client = client
        self._max_handoffs = max_handoffs

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Return the confirmation.

        Raises:
            ToolArgumentError: The arguments do not match the schema.
            ToolDeniedError: There were too many handoffs in this turn.
        """
        self._takes.bind(arguments, context)
        count = len(context.get(HANDOFFS, ()))
        if count >= self._max_handoffs:
            msg = f"The conversation was handed over {count} times already; answer it yourself"
            raise ToolDeniedError(msg, tool_name=self.definition.name)
        text = f"{self.agent} continues the conversation from here on."
        return ToolResult(text, metadata={HANDOFF: self.agent}, value=self)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return the arguments by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not match the schema.
        """
        return self._takes.read(arguments)

    async def take_over(self, request: ChatClientRequest) -> ChatClientResponse:
        """Return the response of the client."""
        return await self._client().take_over(request)

    async def check_decisions(
        self, resumption: Resumption, context: Mapping[str, Any], runtime: Runtime
    ) -> None:
        """Check that the client can apply decisions; see `Handoff.check_decisions`."""
        await self._client().prompt().pipeline.check_decisions(resumption, context, runtime)

    def __repr__(self) -> str:
        return f"handoff({self.agent!r})"
