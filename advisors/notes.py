"""What advisors outside the tool loop note in a turn that waits, to find it when it goes on."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

from chatclient.advisors.tool_calling import PENDING_TURN, RESUME
from chatclient.chain import ChatClientRequest, ChatClientResponse
from chatclient.messages import Message
from chatclient.serialization import message_from_dict, message_to_dict
from chatclient.tools import PendingTurn


def noted(
    key: str,
    note: Callable[[], Any],
    request: ChatClientRequest,
    response: ChatClientResponse,
) -> ChatClientResponse | None:
    """Return *response* with a *note* in the turn that waits for approval, or None if none does.

    When the turn goes on, `note_of` returns it.
    """
    pending: PendingTurn | None = news(PENDING_TURN, request, response)
    if pending is None:
        return None
    pending = replace(pending, notes={**pending.notes, key: note()})
    return response.mutate(context={PENDING_TURN: pending})


def note_of(key: str, request: ChatClientRequest) -> Any:
    """Return what `noted` has left in the turn that *request* goes on with, or None."""
    if RESUME not in request.context:
        return None
    pending: PendingTurn = request.context[RESUME].pending
    return pending.notes.get(key)


def news(key: str, request: ChatClientRequest, response: ChatClientResponse) -> Any:
    """Return what the context of *response* has under *key*, if *request* did not bring it."""
    value = response.context.get(key)
    return None if value is request.context.get(key) else value


def note_messages(messages: Iterable[Message], pending: PendingTurn) -> list[Any]:
    """Return *messages* for a note in *pending*: as places in its messages, or else as dicts.

    The messages that go on when it does may be what advisors have made of them.
    """
    places = {id(message): at for at, message in enumerate(pending.messages)}
    return [places[id(m)] if id(m) in places else message_to_dict(m) for m in messages]


def noted_messages(note: Sequence[Any], pending: PendingTurn) -> tuple[Message, ...]:
    """Return the messages that `note_messages` has made *note* of."""
    waiting = pending.messages
    return tuple(waiting[m] if isinstance(m, int) else message_from_dict(m) for m in note)
