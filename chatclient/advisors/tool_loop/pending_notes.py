"""Notes that advisors store in a suspended turn and read when it is resumed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from chatclient._internal.checks import check_type
from chatclient.chain.chain import ChatClientRequest, ChatClientResponse
from chatclient.chat.message_merging import last_turn_start
from chatclient.chat.messages import Message, UserMessage, without_system
from chatclient.chat.prompt import count_default_messages
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.turn import Turn
from chatclient.errors import UsageError
from chatclient.tools.pending_turn import PENDING_TURN, RESUMED_TURN, PendingTurn

TURN_NOTE = "turn"
"""The note of a pending turn with the record of the turn, which each client reads."""


def save_note(
    key: str,
    note: Callable[[], Any],
    request: ChatClientRequest,
    response: ChatClientResponse,
) -> ChatClientResponse | None:
    """Return *response* with a *note* in its suspended turn, or None if no turn is suspended.

    `load_note` returns the note when the turn is resumed.
    """
    pending: PendingTurn | None = new_in_context(PENDING_TURN, request, response)
    if pending is None:
        return None
    pending = replace(pending, notes={**pending.notes, key: note()})
    return response.mutate(context={PENDING_TURN: pending})


def load_note(key: str, request: ChatClientRequest) -> Any:
    """Return what `save_note` stored in the turn that *request* resumes, or None."""
    if RESUMED_TURN not in request.context:
        return None
    pending: PendingTurn = request.context[RESUMED_TURN].pending
    return pending.notes.get(key)


def new_in_context(key: str, request: ChatClientRequest, response: ChatClientResponse) -> Any:
    """Return the value of *key* in the context of *response*, unless *request* brought it."""
    value = response.context.get(key)
    return None if value is request.context.get(key) else value


def dump_messages(messages: Iterable[Message], pending: PendingTurn) -> list[Any]:
    """Return *messages* for a note in *pending*: as indices of its messages, or else as dicts.

    The suspended turn contains the messages as advisors rewrote them.
    """
    places = {id(message): at for at, message in enumerate(pending.messages)}
    return [places[id(m)] if id(m) in places else message_to_dict(m) for m in messages]


def load_messages(note: Sequence[Any], pending: PendingTurn) -> tuple[Message, ...]:
    """Return the messages that `dump_messages` wrote."""
    waiting = pending.messages
    return tuple(waiting[m] if isinstance(m, int) else message_from_dict(m) for m in note)


def save_turn(pending: PendingTurn, turn: Turn, context: Mapping[str, Any]) -> PendingTurn:
    """Return *pending* with the record of its turn.

    Args:
        pending: The suspended turn.
        turn: Its record.
        context: The context of its request.
    """
    spoken = without_system(pending.messages)
    history_sent = _request_begin(turn, spoken) > count_default_messages(spoken, context)
    note = {
        "id": turn.id,
        "key": turn.id if turn.key is None else turn.key,
        "request": dump_messages(turn.request_messages, pending),
        "rounds": dump_messages(turn.rounds, pending),
        "history_sent": turn.history_sent or history_sent,
    }
    return replace(pending, notes={**pending.notes, TURN_NOTE: note})


def load_turn(pending: PendingTurn, context: Mapping[str, Any]) -> Turn:
    """Return the record of the turn that *pending* suspended.

    A suspended turn without a record, such as one of a loop of the application's own, is its last
    turn of messages.

    Args:
        pending: The suspended turn.
        context: The context of the request that resumes it.
    """
    note: object = pending.notes.get(TURN_NOTE)
    if note is not None:
        turn = _turn_from(note, pending)
    else:
        spoken = without_system(pending.messages)
        begin = last_turn_start(spoken) or 0
        request = tuple(takewhile(lambda m: isinstance(m, UserMessage), spoken[begin:]))
        turn = Turn.of(context)
        turn.request_messages, turn.rounds = request, spoken[begin + len(request) :]
        turn.history_sent = begin > count_default_messages(spoken, context)
    turn.resumed = True
    return turn


def _turn_from(note: Any, pending: PendingTurn) -> Turn:
    """Return the turn that `save_turn` wrote.

    Raises:
        UsageError: It has not written *note*.
    """
    try:
        request = load_messages(note["request"], pending)
        turn = Turn(note["id"], note["key"], request, load_messages(note["rounds"], pending))
        turn.history_sent = note["history_sent"]
    except (KeyError, IndexError, TypeError, AttributeError) as error:
        msg = f"not a pending turn: notes.{TURN_NOTE}: {error!r}"
        raise UsageError(msg) from error
    check_type("the id of a pending turn", turn.id, str)
    check_type("the key of a pending turn", turn.key, str)
    return turn


def _request_begin(turn: Turn, spoken: Sequence[Message]) -> int:
    """Return the index in *spoken* at which the messages of the request begin.

    Advisors may have replaced some of them, and added others.
    """
    request = turn.request_messages
    for offset, recorded in enumerate(request):
        for at, message in enumerate(spoken):
            if message is recorded or (message.id is not None and message.id == recorded.id):
                return max(0, at - offset)
    return max(0, len(spoken) - len(request) - len(turn.rounds))
