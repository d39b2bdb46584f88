"""Finds the turns in messages, merges messages of the same role, and answers open tool calls.

Chat templates of local models, for example, refuse two consecutive messages of the user or of the
assistant.
"""

from collections.abc import Sequence

from chatclient.chat.messages import (
    ENDS_TURN,
    AssistantMessage,
    Message,
    Part,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.chat.response import ChatResponse
from chatclient.chat.tool import BACKGROUND

CORRECTION = "correction"
"""Metadata key of a message with which an advisor requests a better answer."""

INTERRUPTED = "There is no result: the call was interrupted."
"""The response to a tool call that has none."""


STARTED = "in the background, with the id {id!r}."
"""A part of what the model is told of a call that was started in the background."""

ARRIVED = "started with the id {id!r}"
"""A part of what the model is told of such a call that has ended."""


def is_of_user(message: Message) -> bool:
    """Return whether the user wrote *message*, which is no correction and no result of a tool."""
    own = CORRECTION, BACKGROUND
    return isinstance(message, UserMessage) and not any(key in message.metadata for key in own)


def has_content(message: AssistantMessage) -> bool:
    """Return whether *message* has a part other than reasoning and blank text."""
    return any(
        bool(part.strip()) if isinstance(part, str) else not isinstance(part, Reasoning)
        for part in message.parts
    )


def current_turn_start(messages: Sequence[Message]) -> int:
    """Return the index at which the current turn begins; corrections do not begin a turn."""
    for at in reversed(range(len(messages))):
        if begins_turn(messages, at) and CORRECTION not in messages[at].metadata:
            return at
    return 0


def with_correction(
    messages: tuple[Message, ...], answer: AssistantMessage | None, correction: str
) -> tuple[Message, ...]:
    """Return *messages* with *answer*, if it has content, and a message that requests a better one.

    The correction is a separate message, merged with the user's only when it is sent, so that
    advisors find the user's question.
    """
    answers = () if answer is None or not has_content(answer) else (answer,)
    request = UserMessage(correction, metadata={CORRECTION: True})
    return (*append_messages(messages, answers), request)


def merge_consecutive(
    messages: tuple[Message, ...], kind: type[Message] = Message
) -> tuple[Message, ...]:
    """Return *messages* with corrections and continued answers of the current turn merged.

    Several user messages of the application are not merged.

    Args:
        messages: The conversation.
        kind: The type of the messages to merge; default: all types.
    """
    if not _has_consecutive(messages):
        return messages
    begin = current_turn_start(messages)
    turn: list[Message] = []
    for message in messages[begin:]:
        merged = _merged(turn[-1], message) if turn and isinstance(message, kind) else None
        if merged is None:
            turn.append(message)
        else:
            turn[-1] = merged
    return messages if begin + len(turn) == len(messages) else (*messages[:begin], *turn)


def _has_consecutive(messages: tuple[Message, ...]) -> bool:
    """Return whether the current turn may have consecutive messages of the same role."""
    following = None
    for at in reversed(range(len(messages))):
        role = messages[at].role
        if role == following:
            return True
        if role == "user" and begins_turn(messages, at) and CORRECTION not in messages[at].metadata:
            return False
        following = role
    return False


def append_messages(
    messages: tuple[Message, ...], added: tuple[Message, ...]
) -> tuple[Message, ...]:
    """Return *messages* and *added*, with consecutive answers at the boundary merged."""
    merged = _merged(messages[-1], added[0]) if messages and added else None
    return (*messages, *added) if merged is None else (*messages[:-1], merged, *added[1:])


def with_user_message(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *messages*; if all are system messages, as messages of the user.

    Some APIs have a separate field for system messages, and need another message.
    """
    if not messages or not all(isinstance(each, SystemMessage) for each in reversed(messages)):
        return messages
    return tuple(UserMessage(message.text, metadata=message.metadata) for message in messages)


def complete_answer(response: ChatResponse) -> AssistantMessage | None:
    """Return the answer of *response* as one message; several direct tool results are joined."""
    generations = response.generations
    if response.finish_reason != "return_direct" or len(generations) == 1:
        return response.output
    parts: list[Part] = []
    for generation in generations:
        parts += ["\n\n", *generation.output.parts] if parts else generation.output.parts
    return AssistantMessage(parts)


def with_turn_ended(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *messages*; tool results at their end are marked as the end of the turn."""
    last = messages[-1] if messages else None
    if not isinstance(last, ToolResponseMessage):
        return messages
    return (*messages[:-1], last.mutate(metadata={**last.metadata, ENDS_TURN: True}))


def with_answered_calls(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return *messages* with an error response for each tool call without a response.

    Calls are left open by a crash, by a turn that waits for approval and is not resumed, or by a
    conversation that was cut off. Providers reject them.
    """
    open_calls = {}
    for at, message in enumerate(messages):
        if isinstance(message, AssistantMessage) and (calls := _open_calls(message, messages, at)):
            open_calls[at] = calls
    if not open_calls:
        return messages
    # A response may come later than directly after its call; such a call gets no second response.
    late = {r.id for m in messages if isinstance(m, ToolResponseMessage) for r in m.responses}
    answered: list[Message] = []
    missing: list[ToolResponse] = []  # of the message before
    for at, message in enumerate(messages):
        if missing and isinstance(message, ToolResponseMessage):
            answered.append(message.mutate(responses=(*message.responses, *missing)))
        else:
            if missing:
                # Without this mark, the user's message would be taken for a part of the interrupted
                # turn.
                metadata = {ENDS_TURN: True} if isinstance(message, UserMessage) else {}
                answered.append(ToolResponseMessage(missing, metadata))
            answered.append(message)
        missing = [
            ToolResponse(call.id, call.name, INTERRUPTED, is_error=True)
            for call in open_calls.get(at, ())
            if call.id not in late
        ]
    if missing:
        answered.append(ToolResponseMessage(missing))
    return tuple(answered)


def _open_calls(message: AssistantMessage, messages: Sequence[Message], at: int) -> list[ToolCall]:
    """Return the calls of *message*, at index *at*, that the messages after it do not answer."""
    if not message.tool_calls:
        return []
    ids: set[str] = set()
    for index in range(at + 1, len(messages)):
        following = messages[index]
        if not isinstance(following, ToolResponseMessage):
            break
        ids.update(response.id for response in following.responses)
    return [call for call in message.tool_calls if call.id not in ids]


def _merged(last: Message, next: Message) -> Message | None:
    """Return *last* and *next* as one message, or None if they must be separate."""
    match last, next:
        case AssistantMessage(tool_calls=()), AssistantMessage():
            metadata = {**last.metadata, **next.metadata}
            said = (*last.parts, *next.parts)
            return AssistantMessage(said, metadata=metadata, id=last.id or next.id)
        case UserMessage(), UserMessage() if CORRECTION in next.metadata:
            parts = (*last.parts, "\n\n", *next.parts)
            return UserMessage(parts, metadata=last.metadata, id=last.id)
        case _:
            return None


def begins_turn(messages: Sequence[Message], index: int) -> bool:
    """Return whether a turn begins at index *index*: with the first of consecutive user messages.

    User messages directly after tool results belong to the running turn, unless the results end it;
    so do messages with results of tools that ran in the background.
    """
    message = messages[index]
    if not isinstance(message, UserMessage) or BACKGROUND in message.metadata:
        return False
    while index and isinstance(messages[index - 1], SystemMessage):
        index -= 1
    return not index or ends_turn(messages[index - 1])


def ends_turn(message: Message) -> bool:
    """Return whether *message* completes a turn: an answer, or tool results with `ENDS_TURN`."""
    if isinstance(message, ToolResponseMessage):
        return bool(message.metadata.get(ENDS_TURN))
    return not isinstance(message, UserMessage)


def last_turn_start(messages: Sequence[Message]) -> int | None:
    """Return the index at which the last turn of *messages* begins, or None."""
    for at in reversed(range(len(messages))):
        if begins_turn(messages, at):
            return at
    return None
