"""Ends a tool loop with a handoff: another client continues the turn, or resumes it."""

from dataclasses import replace

from chatclient.advisors.tool_loop.pending_notes import TURN_NOTE
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse
from chatclient.chat.events import HandedOver
from chatclient.chat.messages import Message, SystemMessage
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import Usage
from chatclient.chat.resumption import Resumption
from chatclient.chat.tool import HANDOFF
from chatclient.chat.turn import ClientPart, count_default_messages
from chatclient.memory.summary import SUMMARY
from chatclient.tools.handoff import Handoff


async def hand_over(
    handoff: Handoff, request: ChatClientRequest, resumption: Resumption | None, used: Usage
) -> ChatClientResponse:
    """Return the response of the client that *handoff* hands the conversation to.

    Args:
        handoff: The tool.
        request: The conversation so far, and how it runs.
        resumption: What the client continues, if it was handed the turn before that waited.
        used: The usage of the turn so far, which is added to that of the client.
    """
    turn, part = request.turn, request.turn.part
    await request.runtime.emit(HandedOver(handoff.agent))
    if resumption is None:
        prompt = Prompt.of(_passed_on(request), request.prompt.options)
        request = request.mutate(prompt=prompt)
    turn.handoffs = (*turn.handoffs, handoff.agent)
    turn.part = ClientPart(output=part.output, resumption=resumption)
    try:
        response = await handoff.take_over(request)
    finally:
        turn.part = part
    answer = response.chat_response
    if turn.pending is not None:
        turn.pending = _with_nested_notes(turn.pending, handoff, used)
    return response.mutate(
        chat_response=answer.with_usage(used + answer.usage),
        context={**request.context, **response.context},
    )


def _passed_on(request: ChatClientRequest) -> tuple[Message, ...]:
    """Return the conversation without system texts and default messages; summaries are kept."""
    messages = request.prompt.messages
    systems = [m for m in messages if isinstance(m, SystemMessage)]
    spoken = tuple(m for m in messages if not isinstance(m, SystemMessage))
    summaries = (m for m in systems if SUMMARY in m.metadata)
    return (*summaries, *spoken[count_default_messages(spoken, request.turn) :])


def _with_nested_notes(pending: PendingTurn, handoff: Handoff, used: Usage) -> PendingTurn:
    """Return *pending* with its notes inside one note, because each client has its own."""
    nested = {"tool": handoff.definition.name, "notes": dict(pending.notes)}
    own = {key: note for key, note in pending.notes.items() if key == TURN_NOTE}
    return replace(pending, usage=used + pending.usage, notes={**own, HANDOFF: nested})
