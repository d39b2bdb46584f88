"""User and assistant take turns: what one of them says in a row is one message.

Not every model can be asked otherwise: chat templates of local ones refuse two messages of the
user, or of the assistant, behind each other.
"""

from collections.abc import Sequence
from itertools import pairwise

from chatclient.messages import (
    AssistantMessage,
    Message,
    Reasoning,
    UserMessage,
    begins_turn,
)

CORRECTION = "correction"
"""Marks, in its metadata, a message by which an advisor asks for a better answer."""


def says_something(message: AssistantMessage) -> bool:
    """Return whether *message* holds anything that can be sent back as an answer."""
    return any(
        bool(part.strip()) if isinstance(part, str) else not isinstance(part, Reasoning)
        for part in message.parts
    )


def present_turn(messages: Sequence[Message]) -> int:
    """Return where the present turn begins: with a question, and not with an advisor's word."""
    for at in reversed(range(len(messages))):
        if begins_turn(messages, at) and CORRECTION not in messages[at].metadata:
            return at
    return 0


def corrected(
    messages: tuple[Message, ...], answer: AssistantMessage | None, correction: str
) -> tuple[Message, ...]:
    """Return *messages* with an *answer* to them, if it says something, and what is wrong with it.

    Where it says nothing, the correction stands behind the user's own words until it is sent, so
    that advisors find what the user has asked.
    """
    said = () if answer is None or not says_something(answer) else (answer,)
    return (*continued(messages, said), UserMessage(correction, metadata={CORRECTION: True}))


def in_turns(messages: tuple[Message, ...], whose: type[Message] = Message) -> tuple[Message, ...]:
    """Return *messages*, those of the present turn joined where advisors or models have gone on.

    What an application says in several messages stays as it is.

    Args:
        messages: The conversation.
        whose: Whose messages are joined; default: everybody's.
    """
    begin = present_turn(messages)
    present = messages[begin:]
    if all(one.role != other.role for one, other in pairwise(present)):  # as nearly always
        return messages
    turn: list[Message] = []
    for message in present:
        whole = _joined(turn[-1], message) if turn and isinstance(message, whose) else None
        if whole is None:
            turn.append(message)
        else:
            turn[-1] = whole
    return messages if begin + len(turn) == len(messages) else (*messages[:begin], *turn)


def continued(said: tuple[Message, ...], more: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *said* and *more*; where the assistant goes on with its own words, as one message."""
    whole = _joined(said[-1], more[0]) if said and more else None
    return (*said, *more) if whole is None else (*said[:-1], whole, *more[1:])


def _joined(last: Message, next: Message) -> Message | None:
    """Return the message that *last* and *next* are, or None where they are two."""
    match last, next:
        case AssistantMessage(tool_calls=()), AssistantMessage():
            metadata = {**last.metadata, **next.metadata}
            return AssistantMessage((*last.parts, *next.parts), metadata=metadata)
        case UserMessage(), UserMessage() if CORRECTION in next.metadata:
            return UserMessage((*last.parts, "\n\n", *next.parts), metadata=last.metadata)
        case _:
            return None
