"""Formats a conversation as XML text for a model, with all content escaped."""

from collections.abc import Iterable, Iterator
from html import escape

from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)


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
