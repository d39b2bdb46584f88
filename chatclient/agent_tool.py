"""A client as a tool of another one: an agent that a model can ask."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol, TypeAlias

from chatclient.accessors import pending_in
from chatclient.chain import ChatClientResponse
from chatclient.errors import ToolArgumentError, ToolUsageError, UsageError
from chatclient.events import ToolProgress
from chatclient.runtime import Runtime
from chatclient.tool import ToolContext, ToolDefinition, ToolMetadata, ToolResult
from chatclient.tools import Decision, PendingTurn
from chatclient.tools.approval import AGENT_TURNS, ApprovalRequired
from chatclient.tools.compensation import check_compensation
from chatclient.tools.conversion import to_tool_result
from chatclient.tools.schema import (
    ToolSignature,
    check_tool_name,
    signature_of_model,
    signature_of_schema,
)

ConversationOf = Callable[[ToolContext], str | Awaitable[str]]
"""Says which conversation an agent goes on with when it is asked as a tool."""

AgentTurn: TypeAlias = tuple[PendingTurn, Mapping[str, Decision]]
"""A turn of an agent that waited for approvals, and what has been decided about its calls."""


class AskAgent(Protocol):
    """Asks a client, within the request whose model calls it."""

    async def __call__(
        self,
        asked: str | AgentTurn,
        conversation: str | None,
        context: ToolContext,
        runtime: Runtime,
    ) -> ChatClientResponse:
        """Return the answer to a question, or to a turn that goes on."""
        ...


class ClientTool:
    """A client as a tool: what the model asks is the user's text, the answer is the result."""

    def __init__(
        self,
        ask: AskAgent,
        name: str,
        description: str,
        *,
        metadata: ToolMetadata | None,
        conversation: str | ConversationOf | None,
        input_type: Any,
    ) -> None:
        check_tool_name(name)
        takes = _a_request() if input_type is None else signature_of_model(input_type, name=name)
        self.definition = ToolDefinition(name, description, takes.input_schema)
        self.metadata = metadata or ToolMetadata()
        if self.metadata.compensation is not None:
            check_compensation(name, takes.parameters, self.metadata.compensation)
        self._ask = ask
        self._takes = takes
        self._conversation = conversation

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Ask the client, or let it go on with what it had to wait for.

        Raises:
            ApprovalRequired: Calls that the client's model made wait for approval.
            ToolArgumentError: The model asks nothing.
            ToolUsageError: The client cannot be asked like this, whatever the model says.
        """

        async def emit(event: Any) -> None:
            await context.emit(ToolProgress(context.tool_call_id, self.definition.name, event))

        runtime = context.runtime.watched_by(None, ()).with_emitter(emit)
        asked: AgentTurn | str | None = context.get(AGENT_TURNS, {}).get(context.tool_call_id)
        # A turn that goes on knows its conversation.
        conversation = self._conversation if asked is None else None
        if asked is None:
            asked = self._question(arguments, context)
        try:
            if callable(conversation):
                conversation = await context.runtime.invoke(conversation, context)
            response = await self._ask(asked, conversation, context, runtime)
        except ToolUsageError:
            raise
        except UsageError as error:
            msg = f"the agent {self.definition.name!r} cannot be asked: {error}"
            raise ToolUsageError(msg) from error
        turn = pending_in(response)
        if turn is not None:
            raise ApprovalRequired(turn)
        return ToolResult(response.chat_response.text)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return what the model gives, by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not fit.
        """
        return self._takes.read(arguments)

    def _question(self, arguments: str, context: ToolContext) -> str:
        """Return what the model asks, values as JSON."""
        [given] = self._takes.bind(arguments, context).values()
        text = to_tool_result(given).text
        if not text.strip():
            name = self.definition.name
            msg = f"{name} has to be told what is asked for; its request is blank"
            raise ToolArgumentError(msg, tool_name=name)
        return text


def conversation_below(name: str) -> ConversationOf:
    """Return what gives an agent one conversation of its own in each of its asker's."""
    return functools.partial(_conversation_below, name)


def _conversation_below(name: str, context: ToolContext) -> str:
    outside = context.conversation_id
    if outside is None:
        msg = (
            f"the agent {name!r} has a memory, and there is no conversation for it to continue:"
            ' give the request one with .conversation("..."), or as_tool(..., conversation=...)'
        )
        raise ToolUsageError(msg)
    return f"{outside}/{name}"


@functools.cache
def _a_request() -> ToolSignature:
    """Return what an agent takes; made on first use, since pydantic's first schema is slow."""
    return signature_of_schema(
        {
            "properties": {"request": {"type": "string", "description": "What is asked for."}},
            "required": ["request"],
            "additionalProperties": False,
        }
    )
