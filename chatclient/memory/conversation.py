"""What makes a conversation one that every provider accepts."""

from collections.abc import Iterator, Sequence
from typing import Literal

from chatclient.messages import (
    AssistantMessage,
    Message,
    SystemMessage,
    ToolCallChunk,
    ToolResponseMessage,
    UserMessage,
    ends_turn,
)
from chatclient.turn_taking import says_something

Ending = Literal["answer", "question"]
"""How a conversation ends: with the model's answer, or with what the model is to answer."""


def conversation_problems(
    messages: Sequence[Message], *, ending: Ending | None = None
) -> tuple[str, ...]:
    """Return why a provider might refuse *messages*, a line for each reason; empty when fine.

    The rules are those of all providers together: what satisfies the strictest (Anthropic's and
    Gemini's roles, OpenAI's tool call ids, the chat templates of local models) satisfies all.

    - System messages stand before all others.
    - After them the user begins, and user and assistant take turns.
    - Each tool call has an id of its own in its message; the very next message has one response
      for each of them and no other; then the assistant goes on, or the user says
      more.
    - No message is empty.

    Args:
        messages: The conversation.
        ending: What it has to end with, or None if that is all the same. The answers of tools that
            end a turn (`ENDS_TURN`) are an answer.
    """
    spoken = list(messages)
    while spoken and isinstance(spoken[0], SystemMessage):
        del spoken[0]
    first = len(messages) - len(spoken)
    problems = [
        f"message {at}: {problem}"
        for at in range(len(spoken))
        for problem in _problems_at(spoken, at)
    ]
    problems += _problems_at_end(spoken, ending)
    if first:
        problems = [f"after {first} system messages, {problem}" for problem in problems]
    return tuple(problems)


def _problems_at(messages: Sequence[Message], at: int) -> Iterator[str]:
    before = messages[at - 1] if at else None
    match messages[at]:
        case SystemMessage():
            yield "a system message stands behind others"
        case UserMessage() as message:
            if not isinstance(before, AssistantMessage | ToolResponseMessage | None):
                yield f"the user speaks after a message of the {before.role}"
            if not message.media and not message.text.strip():
                yield "the user says nothing"
        case AssistantMessage() as message:
            if not isinstance(before, UserMessage | ToolResponseMessage):
                yield "the assistant speaks without being asked"
            yield from _problems_of_answer(message)
            if message.tool_calls:
                yield from _problems_of_calls(message, messages[at + 1 : at + 2])
        case ToolResponseMessage() if not _has_calls(before):
            yield "tool responses stand behind no tool call"
        case _:
            return


def _answers(message: Message) -> bool:
    return isinstance(message, AssistantMessage | ToolResponseMessage) and ends_turn(message)


def _has_calls(message: Message | None) -> bool:
    return isinstance(message, AssistantMessage) and bool(message.tool_calls)


def _problems_of_answer(message: AssistantMessage) -> Iterator[str]:
    if not says_something(message):
        yield "the assistant says nothing"
    if any(isinstance(part, ToolCallChunk) for part in message.parts):
        yield "a tool call is in pieces"


def _problems_of_calls(message: AssistantMessage, following: Sequence[Message]) -> Iterator[str]:
    ids = [call.id for call in message.tool_calls]
    if not all(ids) or len(set(ids)) < len(ids):
        yield f"the tool calls have no ids of their own: {ids}"
    answers = following[0] if following else None
    if not isinstance(answers, ToolResponseMessage):
        yield f"the tool calls {ids} are not answered by the next message"
    elif sorted(response.id for response in answers.responses) != sorted(ids):
        answered = [response.id for response in answers.responses]
        yield f"the tool calls {ids} have the answers {answered}"


def _problems_at_end(messages: Sequence[Message], ending: Ending | None) -> Iterator[str]:
    last = messages[-1] if messages else None
    if ending == "answer" and last is not None and not _answers(last):
        yield f"the last message is of the {last.role}, not an answer"
    if ending == "question" and not isinstance(last, UserMessage | ToolResponseMessage):
        yield "the last message leaves the model nothing to answer"
