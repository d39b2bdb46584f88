"""Ends a tool loop with a handoff: another client continues the turn, or resumes it."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

from chatclient._internal.frozen import merged
from chatclient.advisors.tool_loop.pending_notes import TURN_NOTE
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse
from chatclient.chat.events import HandedOver
from chatclient.chat.response import Usage
from chatclient.chat.tool import HANDOFF, ToolCallback
from chatclient.errors import ToolUsageError
from chatclient.tools.handoff import HANDOFFS, Handoff, handoff_named
from chatclient.tools.pending_turn import PENDING_TURN, PendingTurn


async def hand_over(
    handoff: Handoff, request: ChatClientRequest, context: Mapping[str, Any], used: Usage
) -> ChatClientResponse:
    """Return the response of the client that *handoff* hands the conversation to.

    Args:
        handoff: The tool.
        request: The conversation so far, and how it runs.
        context: More values for the context of the client.
        used: The usage of the turn so far, which is added to that of the client.
    """
    agents = (*request.context.get(HANDOFFS, ()), handoff.agent)
    await request.runtime.emit(HandedOver(handoff.agent))
    response = await handoff.take_over(request.mutate(context={**context, HANDOFFS: agents}))
    answer = response.chat_response
    added = dict(response.context)
    pending: PendingTurn | None = added.get(PENDING_TURN)
    if pending is not None:
        added[PENDING_TURN] = _with_nested_notes(pending, handoff, used)
    return ChatClientResponse(
        answer.with_usage(used + answer.usage), merged(request.context, added)
    )


def resumed_handoff(
    pending: PendingTurn, offered: Callable[[], Iterable[ToolCallback]]
) -> Handoff | None:
    """Return the handoff that was made before the turn was suspended, or None.

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


def _with_nested_notes(pending: PendingTurn, handoff: Handoff, used: Usage) -> PendingTurn:
    """Return *pending* with its notes inside one note, because each client has its own."""
    nested = {"tool": handoff.definition.name, "notes": dict(pending.notes)}
    own = {key: note for key, note in pending.notes.items() if key == TURN_NOTE}
    return replace(pending, usage=used + pending.usage, notes={**own, HANDOFF: nested})
