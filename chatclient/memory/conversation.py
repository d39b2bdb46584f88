"""Validates and repairs conversations for providers, and formats them as text for a model."""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from html import escape
from itertools import dropwhile, groupby
from typing import Any, Literal

from chatclient.chat.message_merging import INTERRUPTED, ends_turn, has_content
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    ProviderPart,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
    system_messages,
    without_system,
)
from chatclient.chat.parts import generate_call_id

Ending = Literal["answer", "question"]
"""How a conversation ends: with an answer of the model, or with a message to be answered."""


def conversation_problems(
    messages: Sequence[Message], *, ending: Ending | None = None
) -> tuple[str, ...]:
    """Return the reasons why a provider might reject *messages*, one line each; empty if valid.

    The rules are the union of all providers' rules, for example the roles of Anthropic and
    Gemini, the tool call ids of OpenAI, and the chat templates of local models:

    - System messages come first.
    - Then user and assistant messages alternate, beginning with a user message.
    - The tool calls of a message have unique ids. The next message has exactly one response for
      each call. An assistant message or a user message follows.
    - No message is empty.

    Args:
        messages: The conversation.
        ending: What the last message must be; None permits both. Responses of tools that end a
            turn (`ENDS_TURN`) count as an answer.
    """
    dialogue = list(dropwhile(lambda message: isinstance(message, SystemMessage), messages))
    system_count = len(messages) - len(dialogue)
    problems = [
        f"message {index}: {problem}"
        for index in range(len(dialogue))
        for problem in _problems_at(dialogue, index)
    ]
    problems += _problems_at_end(dialogue, ending)
    if system_count:
        problems = [f"after {system_count} system messages, {problem}" for problem in problems]
    return tuple(problems)


def repair_conversation(messages: Sequence[Message]) -> tuple[Message, ...]:
    """Return *messages* as a conversation without problems, which every provider accepts.

    Use it for conversations that were truncated or come from other systems. The only content
    that it adds is an error response for each tool call without one:

    - System messages are moved to the front.
    - Messages before the first user message, empty messages, responses without a call and
      incomplete calls are dropped.
    - Responses are moved directly after their calls.
    - Consecutive messages of the user, or of the assistant, are merged.

    A conversation without problems is returned unchanged.
    """
    if not conversation_problems(messages):
        return tuple(messages)
    dialogue = without_system(messages)
    responses = _responses_by_answer(dialogue)
    kept: list[Message] = []
    for index, message in enumerate(dialogue):
        if isinstance(message, UserMessage) and _has_content(message):
            kept.append(message)
        if isinstance(message, AssistantMessage) and kept:
            taken = {""}
            parts: list[Part] = []
            for part in message.parts:
                if isinstance(part, ToolCall):
                    call = replace(part, id=generate_call_id()) if part.id in taken else part
                    taken.add(call.id)
                    parts.append(call)
                elif not isinstance(part, ToolCallChunk):
                    parts.append(part)
            complete = AssistantMessage(parts, metadata=message.metadata, id=message.id)
            if has_content(complete):
                kept.append(complete)
            if message.tool_calls:
                kept.append(_matched(message.tool_calls, complete.tool_calls, responses[index]))
    merged = (
        _merged(list(consecutive)) for _, consecutive in groupby(kept, lambda message: message.role)
    )
    return (*system_messages(messages), *merged)


def _merged(messages: Sequence[Message]) -> Message:
    """Return consecutive messages of the same type as one message."""
    first = messages[0]
    if len(messages) == 1 or not isinstance(first, UserMessage | AssistantMessage):
        return first
    # In one step: to append one after the other would copy the earlier parts each time.
    parts: list[Any] = []
    metadata: dict[str, Any] = {}
    for message in messages:
        found: tuple[Any, ...] = getattr(message, "parts", ())
        both_text = parts and isinstance(parts[-1], str) and isinstance(found[0], str)
        if parts and (both_text or isinstance(first, UserMessage)):
            parts.append("\n\n")
        parts += found
        metadata |= message.metadata
    if isinstance(first, UserMessage):
        return UserMessage(parts, metadata=first.metadata, id=first.id)
    return AssistantMessage(parts, metadata=metadata, id=first.id)


def _responses_by_answer(messages: Sequence[Message]) -> dict[int, list[ToolResponse]]:
    """Return the tool responses between each assistant message and the next, by its index."""
    found: dict[int, list[ToolResponse]] = {}
    responses: list[ToolResponse] = []
    for index, message in enumerate(messages):
        if isinstance(message, AssistantMessage):
            responses = found[index] = []
        elif isinstance(message, ToolResponseMessage):
            responses += message.responses
    return found


def _matched(
    calls: Sequence[ToolCall], renamed: Sequence[ToolCall], responses: list[ToolResponse]
) -> ToolResponseMessage:
    """Return one response for each of *calls*, with the ids of the *renamed* calls."""
    waiting: dict[tuple[str, str], deque[ToolResponse]] = {}
    for response in responses:
        waiting.setdefault(_key(response), deque()).append(response)
    matched: list[ToolResponse] = []
    for call, new in zip(calls, renamed, strict=True):
        if found := waiting.get(_key(call)):
            response = found.popleft()
        else:
            response = ToolResponse(new.id, new.name, INTERRUPTED, is_error=True)
        matched.append(replace(response, id=new.id))
    return ToolResponseMessage(matched)


def _key(each: ToolCall | ToolResponse) -> tuple[str, str]:
    """Return what a call and its response have in common: the id, or without one the name."""
    return each.id, "" if each.id else each.name


def _problems_at(messages: Sequence[Message], index: int) -> Iterator[str]:
    before = messages[index - 1] if index else None
    match messages[index]:
        case SystemMessage():
            yield "a system message follows other messages"
        case UserMessage() as message:
            if not isinstance(before, AssistantMessage | ToolResponseMessage | None):
                yield f"a user message follows a {before.role} message"
            if not _has_content(message):
                yield "the user message is empty"
        case AssistantMessage() as message:
            if not isinstance(before, UserMessage | ToolResponseMessage):
                yield "an assistant message follows no user message or tool responses"
            if not has_content(message):
                yield "the assistant message is empty"
            if any(isinstance(part, ToolCallChunk) for part in message.parts):
                yield "a tool call is incomplete"
            if message.tool_calls:
                yield from _problems_of_calls(message, messages[index + 1 : index + 2])
        case ToolResponseMessage() if not _has_calls(before):
            yield "tool responses follow no tool calls"
        case _:
            return


def _has_content(message: UserMessage) -> bool:
    return bool(message.media or message.text.strip())


def _answers(message: Message) -> bool:
    return isinstance(message, AssistantMessage | ToolResponseMessage) and ends_turn(message)


def _has_calls(message: Message | None) -> bool:
    return isinstance(message, AssistantMessage) and bool(message.tool_calls)


def _problems_of_calls(message: AssistantMessage, following: Sequence[Message]) -> Iterator[str]:
    ids = [call.id for call in message.tool_calls]
    if not all(ids) or len(set(ids)) < len(ids):
        yield f"the ids of the tool calls are empty or not unique: {ids}"
    responses = following[0] if following else None
    if not isinstance(responses, ToolResponseMessage):
        yield f"no tool responses follow the tool calls {ids}"
    elif sorted(response.id for response in responses.responses) != sorted(ids):
        present = [response.id for response in responses.responses]
        yield f"the tool calls {ids} have responses with the ids {present}"


def _problems_at_end(messages: Sequence[Message], ending: Ending | None) -> Iterator[str]:
    last = messages[-1] if messages else None
    if ending == "answer" and last is not None and not _answers(last):
        yield f"the last message (role {last.role}) is not an answer"
    if ending == "question" and not isinstance(last, UserMessage | ToolResponseMessage):
        yield "the last message leaves the model nothing to answer"


def transcript(messages: Iterable[Message]) -> str:
    """Return *messages* as XML, one line for each message, tool call and tool response.

    `<`, `>`, `&` and quotes are escaped, so that no content can imitate markup. Reasoning is
    omitted; of media, only type and name are included.
    """
    return "\n".join(line for message in messages for line in _lines(message))


def _lines(message: Message) -> Iterator[str]:
    if isinstance(message, ToolResponseMessage):
        yield from map(_response_line, message.responses)
        return
    if content := _content(getattr(message, "parts", (message.text,))):
        yield f'<message from="{message.role}">{content}</message>'
    if isinstance(message, AssistantMessage):
        yield from map(_call_line, message.tool_calls)


def _content(parts: Iterable[object]) -> str:
    return " ".join(filter(None, map(_part_text, parts)))


def _part_text(part: object) -> str:
    match part:
        case str():
            return escape(part.strip())
        case Media():
            name = part.name or part.id or ""
            return escape(f"[{part.mime_type}: {name}]" if name else f"[{part.mime_type}]")
        case ProviderPart():
            return escape(part.text.strip())
        case _:
            return ""


def _call_line(call: ToolCall) -> str:
    return f'<tool-call name="{escape(call.name)}">{escape(call.arguments)}</tool-call>'


def _response_line(response: ToolResponse) -> str:
    failed = ' failed="true"' if response.is_error else ""
    content = " ".join([escape(response.data), *map(_part_text, response.media)])
    return f'<tool-result name="{escape(response.name)}"{failed}>{content}</tool-result>'
