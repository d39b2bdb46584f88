"""The times of stored messages, and which of them are older than a given time."""

from collections.abc import Sequence
from datetime import UTC, datetime

from chatclient.chat.message_merging import begins_turn
from chatclient.chat.messages import Message, SystemMessage, system_messages


def stamped(messages: Sequence[Message], moment: datetime | None = None) -> tuple[Message, ...]:
    """Return *messages* with `stored_at`; those that have none get *moment*, by default now.

    For repositories, which store the result.
    """
    moment = moment or datetime.now(UTC)
    return tuple(
        [each if each.stored_at is not None else each.with_stored_at(moment) for each in messages]
    )


def without_older(messages: Sequence[Message], cutoff: datetime) -> tuple[Message, ...]:
    """Return *messages* without the turns that have messages stored before *cutoff*.

    Turns are left out as a whole, so that the rest is a valid conversation. Messages without a time
    count as stored before the next one with a time, or else as new. System messages stay as long as
    a turn does.
    """
    start = 0
    bounds = [at for at in range(1, len(messages)) if begins_turn(messages, at)]
    for begin, end in zip((0, *bounds), (*bounds, len(messages)), strict=True):
        if any(_is_older(m, cutoff) for m in messages[begin:end] if m.role != "system"):
            start = end
    kept = (*system_messages(messages[:start]), *messages[start:])
    if all(isinstance(message, SystemMessage) for message in kept):
        return tuple(message for message in kept if not _is_older(message, cutoff))
    return kept


def _is_older(message: Message, cutoff: datetime) -> bool:
    return message.stored_at is not None and message.stored_at < cutoff
