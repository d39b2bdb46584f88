"""Recognises what was said before, where an application, or another memory, brings it again.

It is known by its words and by who said them: what comes again has been through other hands.
"""

from collections.abc import Sequence

from chatclient.memory.summary import SUMMARY
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    UserMessage,
    begins_turn,
    system_messages,
    without_system,
)
from chatclient.turn_taking import says_something

_Words = tuple[str, str, list[Media]]


def end_of(part: tuple[Message, ...], whole: tuple[Message, ...]) -> int | None:
    """Return the index behind *part* where it stands in *whole*, or None if it does not.

    What was said is compared, and by whom: an application that sends a conversation again has the
    answers as texts, without the tool calls, reasoning and metadata that memory has.
    """
    known = [at for at, message in enumerate(part) if _is_said(message)]
    places = _places_of(whole)
    size = len(known)
    if not 0 < size <= len(places):
        return None
    wanted = [_ways(part, at) for at in known]
    present = [_words(whole[at]) for at in places]
    for end in range(len(places), size - 1, -1):
        if _same(wanted, present[end - size : end]):
            # Tools may have had the last word.
            rest = range(places[end - 1] + 1, len(whole))
            return next((at for at in rest if _is_said(whole[at])), len(whole))
    return None


def going_before(
    history: tuple[Message, ...], said: tuple[Message, ...], begin: int
) -> tuple[tuple[Message, ...], int]:
    """Return the part of *history* to show before *said*, and where in *said* the new words begin.

    From *begin* on, an application may send the conversation again, or another memory show it.
    If none of it is known, the new words begin at *begin*.
    """
    end = end_of(without_system(history), said)
    if end is None:
        return _without_overlap(history, said, begin)
    return system_messages(history), end


def _without_overlap(
    history: tuple[Message, ...], said: tuple[Message, ...], begin: int
) -> tuple[tuple[Message, ...], int]:
    """Return what `going_before` does if only the last turns of *history* come again.

    They have to stand at the beginning of *said*, from *begin* on.
    """
    places = [at for at in _places_of(said) if at >= begin]
    if len(places) < 2:  # noqa: PLR2004 - a question and its answer; most requests bring none
        return history, begin
    known = [at for at, message in enumerate(history) if _is_said(message)]
    before = [_ways(history, at) for at in known]
    present = [_words(said[at]) for at in places]
    for size in range(min(len(known), len(places)), 1, -1):
        first, end = known[-size], places[size - 1]
        same = _same(before[-size:], present[:size])
        if same and isinstance(said[end], AssistantMessage) and begins_turn(history, first):
            return (*history[:first], *system_messages(history[first:])), end + 1
    return history, begin


def _places_of(said: tuple[Message, ...]) -> list[int]:
    """Return where in *said* user and model speak, except for what the user asks now."""
    places = [at for at, message in enumerate(said) if _is_said(message)]
    if said and isinstance(said[-1], UserMessage):
        places.pop()  # it is asked now, even if in the same words as before
    return places


def without_end(history: tuple[Message, ...], end: Sequence[Message]) -> tuple[Message, ...]:
    """Return *history* without as much of *end* as it ends with."""
    shared = min(len(history), len(end))
    while shared and list(map(_words, history[-shared:])) != list(map(_words, end[-shared:])):
        shared -= 1
    return history[: len(history) - shared]


def _is_said(message: Message) -> bool:
    if SUMMARY in message.metadata:
        return False
    if isinstance(message, AssistantMessage):
        return not message.tool_calls and says_something(message)
    return isinstance(message, UserMessage)


def _same(wanted: Sequence[tuple[_Words, ...]], present: Sequence[_Words]) -> bool:
    """Return whether *present* are the messages *wanted*, each in one of the ways it may be put."""
    return all(words in ways for ways, words in zip(wanted, present, strict=True))


def _ways(messages: Sequence[Message], at: int) -> tuple[_Words, ...]:
    """Return what the message at index *at* may be recognised by.

    Who has read an answer from a stream has what was said between the tool calls before it.
    """
    role, _, media = words = _words(messages[at])
    if not isinstance(messages[at], AssistantMessage):
        return (words,)
    text = messages[at].text
    while at and not begins_turn(messages, at):
        at -= 1
        if isinstance(messages[at], AssistantMessage):
            text = messages[at].text + text
    return words, (role, text.strip(), media)


def _words(message: Message) -> _Words:
    """Return what *message* is recognised by."""
    media = [part for part in getattr(message, "parts", ()) if isinstance(part, Media)]
    return message.role, message.text.strip(), media
