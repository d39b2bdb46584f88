"""What of a turn that is over is worth remembering."""

from collections.abc import Sequence
from dataclasses import replace

from chatclient.exchange import ended_by_tools, whole_answer
from chatclient.messages import (
    AssistantMessage,
    Message,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.response import ChatResponse
from chatclient.turn_taking import in_turns, says_something


def remembered(
    own: tuple[Message, ...],
    said: tuple[Message, ...],
    response: ChatResponse,
    *,
    tool_messages: bool,
) -> tuple[Message, ...]:
    """Return what is remembered of a turn: nothing if it came to nothing.

    Args:
        own: What the turn began with.
        said: What models and tools have said on the way.
        response: How it ended.
        tool_messages: Whether tool calls and their answers are remembered too.
    """
    if not own:
        return ()
    kept = (*own, *said) if tool_messages else _with_words(own, said)
    answer = answer_of(response)
    if answer is not None:
        return in_turns((*kept, answer))
    goes_on = response.has_tool_calls() or response.paused
    return () if goes_on else _without_answer(in_turns(kept), response)


def answer_of(response: ChatResponse) -> AssistantMessage | None:
    """Return the message that answers a turn, or None when there is none that can be sent back.

    That is so when the model said nothing, when its tool calls were not run, when it has paused and
    the application is to send it back, and when a filter or guard withheld the answer: neither
    what was refused nor the refusal belongs in a memory.
    """
    if response.has_tool_calls() or response.paused or _is_withheld(response):
        return None
    answer = whole_answer(response)
    return answer if answer is not None and says_something(answer) else None


def _is_withheld(response: ChatResponse) -> bool:
    """Return whether a filter or guard has withheld the answer."""
    return response.finish_reason == "content_filter"


def _with_words(own: tuple[Message, ...], said: Sequence[Message]) -> tuple[Message, ...]:
    """Return *own* with what the user has *said* meanwhile, in one message with the words before.

    Without what the tools said between, the user would speak twice in a row.
    """
    words = [message for message in said if isinstance(message, UserMessage)]
    if not words:
        return own
    if isinstance(last := own[-1], UserMessage):
        own, words = own[:-1], [last, *words]
    parts = [part for message in words for part in ("\n\n", *message.parts)]
    return (*own, UserMessage(parts[1:], metadata=words[0].metadata))


def _without_answer(said: tuple[Message, ...], response: ChatResponse) -> tuple[Message, ...]:
    """Return *said* up to the last result of a tool, as a whole turn; nothing without tools.

    A model that does not know of them would do it all again.
    """
    heard = len(said)
    while heard and isinstance(said[heard - 1], UserMessage):  # said while tools ran, unheard
        heard -= 1
    last = said[heard - 1] if heard else None
    if not isinstance(last, ToolResponseMessage):
        return ()
    if _is_withheld(response):
        last = _unseen(last)
    return ended_by_tools((*said[: heard - 1], last))


def _unseen(results: ToolResponseMessage) -> ToolResponseMessage:
    """Return *results* without what the tools returned, for the answer to it was withheld.

    They may be the reason, and later answers would then be withheld, too.
    """

    def unseen(result: ToolResponse) -> ToolResponse:
        if result.is_error:
            return result
        told = f"What '{result.name}' returned is not shown: the answer to it was withheld."
        return replace(result, data=told, media=())

    return results.mutate(responses=map(unseen, results.responses))
