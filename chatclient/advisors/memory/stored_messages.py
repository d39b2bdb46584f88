"""Selects the messages of a turn that a memory stores."""

from collections.abc import Sequence
from dataclasses import replace

from chatclient.chat.message_merging import (
    complete_answer,
    has_content,
    merge_consecutive,
    with_turn_ended,
)
from chatclient.chat.messages import (
    ENDED_EARLY,
    AssistantMessage,
    Message,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import HANDOFF
from chatclient.chat.turn import Turn

NO_ANSWER = "(There is no answer: it was interrupted.)"
"""Stands for the answer of a turn that ended before there was any."""


def messages_to_store(
    turn: Turn, stored: int, response: ChatResponse, *, tool_messages: bool
) -> tuple[Message, ...]:
    """Return the messages of *turn* to store; none if *response* does not complete it.

    Args:
        turn: The record of the turn.
        stored: The number of its request messages that are stored already.
        response: How it ended.
        tool_messages: Whether tool calls and their results are stored.
    """
    answer = answer_of(response)
    following = () if answer is None else (answer,)
    messages, count = turn.messages(*following), len(turn.request_messages)
    request, rounds = messages[stored:count], messages[count : count + len(turn.rounds)]
    if not request:
        return ()
    kept = (*request, *rounds) if tool_messages else _with_user_input(request, rounds)
    if answer is not None:
        return merge_consecutive((*kept, messages[-1]))
    incomplete = response.has_tool_calls() or response.paused
    return () if incomplete else _without_answer(merge_consecutive(kept), response)


def messages_ended_early(turn: Turn, stored: int, *, tool_messages: bool) -> tuple[Message, ...]:
    """Return the messages of *turn* to store, which has failed or was stopped.

    The last one is marked. A question without an answer gets one that says so, because others
    would follow it.

    Args:
        turn: The record of the turn.
        stored: The number of its request messages that are stored already.
        tool_messages: Whether tool calls and their results are stored.
    """
    count = len(turn.request_messages)
    shown = () if turn.shown is None else turn.shown.messages()
    messages = turn.messages(*shown)
    request, rounds = messages[stored:count], messages[count:]
    if not request:
        return ()
    if not tool_messages:
        text = [m for m in rounds[-1:] if isinstance(m, AssistantMessage) and not m.tool_calls]
        request, rounds = _with_user_input(request, rounds), tuple(text)
    if not isinstance((*request, *rounds)[-1], AssistantMessage | ToolResponseMessage):
        at = count + len(rounds)
        rounds = (*rounds, AssistantMessage(NO_ANSWER, id=f"{turn.id}-{at}"))
    *before, last = with_turn_ended(merge_consecutive((*request, *rounds)))
    assert isinstance(last, AssistantMessage | ToolResponseMessage)  # noqa: S101 - see above
    return (*before, last.mutate(metadata={**last.metadata, ENDED_EARLY: True}))


def answer_of(response: ChatResponse) -> AssistantMessage | None:
    """Return the message that answers a turn, or None if there is none to be sent again.

    There is none if the model said nothing, if its tool calls were not run, if it has paused and
    the application is to continue, and if a filter or guard withheld the answer: neither what was
    refused nor the refusal belongs in a memory.
    """
    if response.has_tool_calls() or response.paused or _is_withheld(response):
        return None
    answer = complete_answer(response)
    return answer if answer is not None and has_content(answer) else None


def _is_withheld(response: ChatResponse) -> bool:
    """Return whether a filter or guard has withheld the answer."""
    return response.finish_reason == "content_filter"


def _with_user_input(
    request: tuple[Message, ...], rounds: Sequence[Message]
) -> tuple[Message, ...]:
    """Return *request* with the user messages of the *rounds* merged into its last message.

    Without the tool results between them, two user messages would follow each other.
    """
    added = [message for message in rounds if isinstance(message, UserMessage)]
    if not added:
        return request
    if isinstance(last := request[-1], UserMessage):
        request, added = request[:-1], [last, *added]
    parts = [part for message in added for part in ("\n\n", *message.parts)]
    first = added[0]
    return (*request, UserMessage(parts[1:], metadata=first.metadata, id=first.id))


def _without_answer(messages: tuple[Message, ...], response: ChatResponse) -> tuple[Message, ...]:
    """Return *messages* up to the last tool result, as a complete turn; none without tools.

    A model that does not know of the calls would make them again. A handoff does nothing itself.
    """
    end = len(messages)
    while end and isinstance(messages[end - 1], UserMessage):  # user input without an answer
        end -= 1
    last = messages[end - 1] if end else None
    if not isinstance(last, ToolResponseMessage):
        return ()
    if all(HANDOFF in result.metadata for result in last.responses):
        return _without_answer(messages[: end - 2], response)
    if _is_withheld(response):
        # The results may be the reason, and later answers would be withheld as well.
        text = "What '{}' returned is not shown: the answer to it was withheld."
        responses = [
            result if result.is_error else replace(result, data=text.format(result.name), media=())
            for result in last.responses
        ]
        last = last.mutate(responses=responses)
    return with_turn_ended((*messages[: end - 1], last))
