"""What models and tools say to each other, in the form of OpenTelemetry's conventions for it."""

from collections.abc import Mapping
from typing import Any

from chatclient.json import dumps
from chatclient.messages import (
    Media,
    Message,
    Reasoning,
    ToolCall,
    ToolResponseMessage,
    system_messages,
    without_system,
)
from chatclient.prompt import Prompt
from chatclient.response import ChatResponse
from chatclient.tool import ToolDefinition


def content_of(prompt: Prompt, response: ChatResponse | None) -> Mapping[str, str]:
    """Return the messages both ways, and the tools offered, as JSON by attribute name."""
    callbacks = prompt.options.tool_callbacks or ()
    generations = () if response is None else response.generations
    found = {
        "gen_ai.system_instructions": [_text(m.text) for m in system_messages(prompt.messages)],
        "gen_ai.input.messages": [_message(m) for m in without_system(prompt.messages)],
        "gen_ai.tool.definitions": [_tool(callback.definition) for callback in callbacks],
        "gen_ai.output.messages": [
            {**_message(each.output), "finish_reason": each.finish_reason} for each in generations
        ],
    }
    return {name: dumps(value).decode() for name, value in found.items() if value}


def _message(message: Message) -> dict[str, Any]:
    if isinstance(message, ToolResponseMessage):
        parts = [
            {"type": "tool_call_response", "id": answer.id, "response": answer.data}
            for answer in message.responses
        ]
        return {"role": "tool", "parts": parts}
    parts = [_part(part) for part in getattr(message, "parts", (message.text,))]
    return {"role": message.role, "parts": parts}


def _part(part: Any) -> dict[str, Any]:
    match part:
        case str():
            return _text(part)
        case ToolCall(id=id, name=name, arguments=arguments):
            return {"type": "tool_call", "id": id, "name": name, "arguments": arguments}
        case Reasoning():
            return {"type": "reasoning", "content": part.text}
        case Media():
            kind = "uri" if isinstance(part.data, str) else "blob"
            return {"type": kind, "mime_type": part.mime_type}
        case _:
            return {"type": type(part).__name__}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "content": text}


def _tool(definition: ToolDefinition) -> dict[str, Any]:
    return {
        "type": "function",
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }
