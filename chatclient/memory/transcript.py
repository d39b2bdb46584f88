"""A conversation as text: data that a model reads, with nothing in it that looks like markup."""

from collections.abc import Iterable, Iterator
from html import escape

from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
)


def transcript(messages: Iterable[Message]) -> str:
    """Return *messages* as lines of XML, with everything that was said escaped.

    A speaker cannot break out of the line that holds the words: `<`, `>`, `&` and quotes are
    written as entities. Reasoning is left out; of media only the type and name are told.
    """
    return "\n".join(line for message in messages for line in _lines(message))


def _lines(message: Message) -> Iterator[str]:
    if isinstance(message, ToolResponseMessage):
        for response in message.responses:
            yield _result(response)
        return
    if said := _said(message):
        yield f'<message from="{message.role}">{said}</message>'
    if isinstance(message, AssistantMessage):
        for call in message.tool_calls:
            yield _call(call)


def _said(message: Message) -> str:
    parts: tuple[object, ...] = getattr(message, "parts", (message.text,))
    return " ".join(filter(None, map(_part, parts)))


def _part(part: object) -> str:
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


def _call(call: ToolCall) -> str:
    return f'<tool-call name="{escape(call.name)}">{escape(call.arguments)}</tool-call>'


def _result(response: ToolResponse) -> str:
    failed = ' failed="true"' if response.is_error else ""
    said = " ".join([escape(response.data), *map(_part, response.media)])
    return f'<tool-result name="{escape(response.name)}"{failed}>{said}</tool-result>'
