"""What makes a conversation one that every provider accepts, and how one becomes such."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal

from chatclient.messages import (
    AssistantMessage,
    Message,
    Part,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    ends_turn,
    system_messages,
    without_system,
)
from chatclient.parts import invented_call_id
from chatclient.turn_taking import says_something

_INTERRUPTED = "There is no result: the call was interrupted."

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


def repair_conversation(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return *messages* as a conversation that every provider accepts: one without problems.

    For conversations that come from elsewhere, or were cut off. Nothing is made up but that a tool
    call without a result was interrupted:

    - System messages are put before all others.
    - What stands before the first word of the user is left out, and so are empty messages, results
      without a call and calls in pieces.
    - Results go to their calls; a call without one gets an error for a result.
    - What the user, or the assistant, says in several messages in a row becomes one.

    A conversation without problems comes back as it is.
    """
    if not conversation_problems(messages):
        return tuple(messages)
    spoken = without_system(messages)
    repaired: list[Message] = []
    for at, message in enumerate(spoken):
        if isinstance(message, UserMessage) and _has_words(message):
            _say(repaired, message)
        if isinstance(message, AssistantMessage) and repaired:
            whole = _with_ids(message)
            if says_something(whole):
                _say(repaired, whole)
            if message.tool_calls:
                responses = _responses_behind(spoken, at)
                repaired.append(_answered(message.tool_calls, whole.tool_calls, responses))
    return (*system_messages(messages), *repaired)


def _say(said: list[Message], message: UserMessage | AssistantMessage) -> None:
    """Add *message* to what was *said*: to the last message, if that is of the same speaker."""
    match said[-1] if said else None, message:
        case UserMessage() as last, UserMessage():
            said[-1] = UserMessage((*last.parts, "\n\n", *message.parts), metadata=last.metadata)
        case AssistantMessage() as last, AssistantMessage():
            metadata = {**last.metadata, **message.metadata}
            apart = isinstance(last.parts[-1], str) and isinstance(message.parts[0], str)
            between = ("\n\n",) if apart else ()
            parts = (*last.parts, *between, *message.parts)
            said[-1] = AssistantMessage(parts, metadata=metadata)
        case _:
            said.append(message)


def _responses_behind(messages: Sequence[Message], at: int) -> list[ToolResponse]:
    """Return what tools said between the message at index *at* and the assistant's next one."""
    responses: list[ToolResponse] = []
    for following in range(at + 1, len(messages)):
        message = messages[following]
        if isinstance(message, AssistantMessage):
            break
        if isinstance(message, ToolResponseMessage):
            responses += message.responses
    return responses


def _with_ids(message: AssistantMessage) -> AssistantMessage:
    """Return *message* with an id of its own for each call, and without calls in pieces."""
    taken = {""}
    parts: list[Part] = []
    for part in message.parts:
        if isinstance(part, ToolCall):
            call = replace(part, id=invented_call_id()) if part.id in taken else part
            taken.add(call.id)
            parts.append(call)
        elif not isinstance(part, ToolCallChunk):
            parts.append(part)
    return AssistantMessage(parts, metadata=message.metadata)


def _answered(
    calls: Sequence[ToolCall], named: Sequence[ToolCall], responses: list[ToolResponse]
) -> ToolResponseMessage:
    """Return the *responses* that belong to *calls*, by the ids that these have got."""
    answers: list[ToolResponse] = []
    for call, own in zip(calls, named, strict=True):
        for response in responses:
            if response.id == call.id and (call.id or response.name == call.name):
                responses.remove(response)
                break
        else:
            response = ToolResponse(own.id, own.name, _INTERRUPTED, is_error=True)
        answers.append(replace(response, id=own.id))
    return ToolResponseMessage(answers)


def _problems_at(messages: Sequence[Message], at: int) -> Iterator[str]:
    before = messages[at - 1] if at else None
    match messages[at]:
        case SystemMessage():
            yield "a system message stands behind others"
        case UserMessage() as message:
            if not isinstance(before, AssistantMessage | ToolResponseMessage | None):
                yield f"the user speaks after a message of the {before.role}"
            if not _has_words(message):
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


def _has_words(message: UserMessage) -> bool:
    return bool(message.media or message.text.strip())


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
