"""Notes that advisors store in a suspended turn and read when it is resumed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import takewhile
from typing import Any

from chatclient._internal.checks import check_type
from chatclient.chat.message_merging import last_turn_start
from chatclient.chat.messages import Message, UserMessage, without_system
from chatclient.chat.pending_turn import PendingTurn
from chatclient.chat.serialization import message_from_dict, message_to_dict
from chatclient.chat.turn import Turn, TurnSettings, count_default_messages
from chatclient.errors import UsageError

TURN_NOTE = "turn"
"""The note of a pending turn with the record of the turn, which each client reads."""


def save_note(key: str, note: Callable[[], Any], turn: Turn) -> None:
    """Add a *note* to *turn*, if it waits now; `load_note` returns it when the turn is resumed."""
    pending = turn.pending
    if pending is not None:
        turn.pending = replace(pending, notes={**pending.notes, key: note()})


def load_note(key: str, turn: Turn) -> Any:
    """Return what `save_note` added to the turn that *turn* resumes, or None."""
    resumption = turn.part.resumption
    return None if resumption is None else resumption.pending.notes.get(key)


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


def begin_turn(
    settings: TurnSettings, context: Mapping[str, Any], default_messages: tuple[Message, ...]
) -> Turn:
    """Return the turn that a request begins or resumes.

    Args:
        settings: How the request gets its turn.
        context: The context of the request.
        default_messages: The default messages of the client.
    """
    if settings.resumption is None:
        turn = Turn.of(context, settings.id)
    else:
        turn = load_turn(settings.resumption.pending, context, default_messages)
        turn.part.resumption = settings.resumption
    turn.recorder = settings.recorder
    turn.replaces, turn.is_displayed = settings.replaces, settings.is_displayed
    if settings.began is not None:
        settings.began(turn)
    return turn


def save_turn(pending: PendingTurn, turn: Turn) -> PendingTurn:
    """Return *pending* with the record of its *turn*."""
    spoken = without_system(pending.messages)
    history_sent = _request_begin(turn, spoken) > count_default_messages(spoken, turn)
    note = {
        "id": turn.id,
        "key": turn.id if turn.key is None else turn.key,
        "request": dump_messages(turn.request_messages, pending),
        "rounds": dump_messages(turn.rounds, pending),
        "history_sent": turn.history_sent or history_sent,
        "models": turn.model_state,
        "sources": turn.sources,
    }
    return replace(pending, notes={**pending.notes, TURN_NOTE: note})


def load_turn(
    pending: PendingTurn, context: Mapping[str, Any], default_messages: tuple[Message, ...] = ()
) -> Turn:
    """Return the record of the turn that *pending* suspended.

    A suspended turn without a record, such as one of a loop of the application's own, is its last
    turn of messages.

    Args:
        pending: The suspended turn.
        context: The context of the request that resumes it.
        default_messages: The default messages of the client.
    """
    note: Any = pending.notes.get(TURN_NOTE)
    if note is not None:
        try:
            request = load_messages(note["request"], pending)
            rounds = load_messages(note["rounds"], pending)
            turn = Turn(note["id"], note["key"], request, rounds)
            turn.history_sent = note["history_sent"]
            turn.model_state.update(note.get("models", {}))
            # One that could not be stored is None.
            turn.record_sources(
                None, (each for each in note.get("sources", ()) if each is not None)
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as error:
            msg = f"not a pending turn: notes.{TURN_NOTE}: {error!r}"
            raise UsageError(msg) from error
        check_type("the id of a pending turn", turn.id, str)
        check_type("the key of a pending turn", turn.key, str)
    else:
        spoken = without_system(pending.messages)
        begin = last_turn_start(spoken) or 0
        request = tuple(takewhile(lambda m: isinstance(m, UserMessage), spoken[begin:]))
        turn = Turn.of(context)
        turn.request_messages, turn.rounds = request, spoken[begin + len(request) :]
        turn.part.default_messages = default_messages
        turn.history_sent = begin > count_default_messages(spoken, turn)
    turn.conversation = pending.messages
    turn.resumed = True
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
