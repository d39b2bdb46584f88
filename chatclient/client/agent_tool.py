"""`ClientTool`: a client offered as a tool to the model of another client."""

import functools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from chatclient.chat.parts import ToolCall
from chatclient.chat.pending_turn import ApprovalRequired, PendingTurn
from chatclient.chat.resumption import Decision, Resumption
from chatclient.chat.tool import (
    USER_ID,
    ToolContext,
    ToolDefinition,
    ToolMetadata,
    ToolProgress,
    ToolResult,
)
from chatclient.chat.turn import present_recorder
from chatclient.client.accessors import pending_in
from chatclient.client.request import ChatClientRequestSpec
from chatclient.errors import ToolArgumentError, ToolUsageError, UsageError
from chatclient.runtime.runtime import Runtime
from chatclient.tools.execution.approval import AGENT_TURNS
from chatclient.tools.function.result import to_tool_result
from chatclient.tools.function.schema import (
    ToolSignature,
    check_compensation,
    check_tool_name,
    signature_of_model,
    signature_of_schema,
)

ConversationOf = Callable[[ToolContext], str | Awaitable[str]]
"""A plain or async function that returns the conversation id for a call of the agent."""

AgentTurn: TypeAlias = tuple[PendingTurn, Mapping[str, Decision]]
"""A suspended turn of the agent, and the decisions about its tool calls."""

AgentRequest = Callable[[str | AgentTurn], ChatClientRequestSpec]
"""Returns the request for a question, or for a turn to resume."""


class ClientTool:
    """A client as a tool: the argument is the user message, and the answer is the result.

    Attributes:
        has_steps: Its calls consist of steps of the turn, those of the client; see `is_agent`.
    """

    has_steps = True

    def __init__(
        self,
        request_for: AgentRequest,
        name: str,
        description: str,
        *,
        metadata: ToolMetadata | None,
        conversation: str | ConversationOf | None,
        input_type: Any,
    ) -> None:
        check_tool_name(name)
        takes = (
            _text_signature() if input_type is None else signature_of_model(input_type, name=name)
        )
        self.definition = ToolDefinition(name, description, takes.input_schema)
        self.metadata = metadata or ToolMetadata()
        if self.metadata.compensation is not None:
            check_compensation(name, takes.parameters, self.metadata.compensation)
        self._request_for = request_for
        self._takes = takes
        self._conversation = conversation

    async def invoke(self, arguments: str, context: ToolContext) -> ToolResult:
        """Run a request of the client, or resume its suspended turn.

        Raises:
            ApprovalRequired: Tool calls of the client wait for approval.
            ToolArgumentError: The question is blank.
            ToolUsageError: The client rejects requests like this.
        """

        async def emit(event: Any) -> None:
            await context.emit(ToolProgress(context.tool_call_id, self.definition.name, event))

        # Its effects are undone if the request fails that this call is part of.
        runtime = replace(context.runtime, steps=None, observers=(), emitter=emit)
        question: AgentTurn | str | None = context.get(AGENT_TURNS, {}).get(context.tool_call_id)
        conversation = None  # a resumed turn has its conversation id
        if question is None:
            conversation = self._conversation
            question = self._question(arguments, context)
        try:
            if callable(conversation):
                conversation = await context.runtime.invoke(conversation, context)
            response = await self._request(question, conversation, context)._run(runtime)
        except ToolUsageError:
            raise
        except UsageError as error:
            msg = f"the agent {self.definition.name!r} cannot be asked: {error}"
            raise ToolUsageError(msg) from error
        turn = pending_in(response)
        if turn is not None:
            raise ApprovalRequired(turn)
        return ToolResult(response.chat_response.text)

    async def check_decisions(
        self, resumption: Resumption, context: Mapping[str, Any], runtime: Runtime
    ) -> None:
        """Check that decisions about the client's own calls can be applied.

        Raises:
            ToolUsageError: A tool is missing, or cannot be run with the arguments of a decision.
        """
        request = self._request_for((resumption.pending, resumption.decisions))
        await request.pipeline.check_decisions(resumption, context, runtime, request.settings)

    def read_arguments(self, arguments: str) -> Mapping[str, Any]:
        """Return the arguments by name; see `ToolInvocation.arguments`.

        Raises:
            ToolArgumentError: The arguments do not match the schema.
        """
        return self._takes.read(arguments)

    def _request(
        self, question: str | AgentTurn, conversation: str | None, context: ToolContext
    ) -> ChatClientRequestSpec:
        request = self._request_for(question)
        if conversation is not None:
            request = request.conversation(conversation)
        if USER_ID in context and USER_ID not in request.settings.advisor_params:
            request = request.advisor_params({USER_ID: context[USER_ID]})
        # If the turn is repeated, the call has the same key, and the agent repeats its turn.
        key, recorder = context.idempotency_key, present_recorder()
        if recorder is not None:
            call = ToolCall(context.tool_call_id, context.tool_name, context.arguments or "{}")
            recorder = recorder.inside(f"agent {call.name} {key}", call)
        turn = replace(request.settings.turn, id=key, recorder=recorder)
        return request.in_turn(turn).tool_context(context)

    def _question(self, arguments: str, context: ToolContext) -> str:
        """Return the question of the model; a value of `input_type` as JSON."""
        [given] = self._takes.bind(arguments, context).values()
        text = to_tool_result(given).text
        if not text.strip():
            name = self.definition.name
            msg = f"{name} needs a question; its request is blank"
            raise ToolArgumentError(msg, tool_name=name)
        return text


def conversation_below(name: str) -> ConversationOf:
    """Return a function that derives the conversation id of an agent from its caller's."""
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
def _text_signature() -> ToolSignature:
    """Return the signature with one text; created lazily because importing pydantic is slow."""
    return signature_of_schema(
        {
            "properties": {"request": {"type": "string", "description": "What is asked for."}},
            "required": ["request"],
            "additionalProperties": False,
        }
    )
