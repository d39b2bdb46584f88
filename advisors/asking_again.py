"""What is new where an advisor outside of a memory asks again in the same turn."""

from collections.abc import Sequence

from chatclient.advisors.recognition import end_of, without_end
from chatclient.messages import AssistantMessage, Message, ToolResponseMessage, UserMessage


def asked_again(
    own: tuple[Message, ...],
    asked: tuple[Message, ...],
    history: tuple[Message, ...],
    said: tuple[Message, ...],
    known: Sequence[Message],
    earlier: Sequence[tuple[Message, ...]],
) -> tuple[tuple[Message, ...], tuple[Message, ...]]:
    """Return what the request adds to the *earlier* turns, and the history to show before it.

    It asks with words to the last answer, from what tools have said already, or just once more.

    Args:
        own: What the request would add, had nothing been asked before.
        asked: What of it the present turn began with.
        history: What the memory shows, the earlier turns included.
        said: The messages of the request.
        known: Those of them that tools have said, and the calls.
        earlier: What the request has already led to, as it was remembered.
    """
    end = end_of(earlier[-1], said)
    if end is not None:
        own = said[end:]
    heard = _end_of_messages(known, said)
    if heard:
        answered = [at for at, m in enumerate(said, 1) if isinstance(m, AssistantMessage)]
        # Behind what the tools have said stand answers, and what is wrong with the last of them.
        heard = max(_before_unkept(said[:heard], earlier[-1]), *answered)
        own = said[heard:] or asked
    if end is not None or heard:
        # The request itself shows what the model has said, or its tools have done.
        history = without_end(history, [message for each in earlier for message in each])
    return own, history


def _before_unkept(said: Sequence[Message], kept: Sequence[Message]) -> int:
    """Return where in *said* begins what users said last, if the turn was *kept* without it.

    It was, if no answer could be kept: the turn then ends with the results before these words.
    """
    end = len(said)
    if isinstance(kept[-1], ToolResponseMessage):
        while isinstance(said[end - 1], UserMessage):
            end -= 1
    return end


def not_among(messages: Sequence[Message], known: Sequence[Message]) -> tuple[Message, ...]:
    """Return those of *messages* that are not among those *known*."""
    present = {id(message) for message in known}
    return tuple(message for message in messages if id(message) not in present)


def _end_of_messages(part: Sequence[Message], whole: Sequence[Message]) -> int:
    """Return the index behind the last of *part* in *whole*; 0 if there is none of it."""
    present = {id(message) for message in part}
    return max((at for at, m in enumerate(whole, 1) if id(m) in present), default=0)
