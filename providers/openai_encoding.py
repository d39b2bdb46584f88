"""Prompts as Chat Completions requests; no I/O."""

import hashlib
import re
from collections.abc import Mapping
from functools import partial
from itertools import takewhile
from typing import Any

from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.options import ChatOptions
from chatclient.providers.fields import (
    called_name,
    fields_of,
    overlaid,
    unsendable,
    written_arguments,
)
from chatclient.providers.media import shown_by_tool
from chatclient.providers.openai_dialect import REASONING_FIELD, Dialect
from chatclient.providers.openai_media import media_part
from chatclient.providers.openai_schemas import enforceable, json_schema_format
from chatclient.providers.openai_thoughts import FIELDS, content_of
from chatclient.tool import ToolDefinition

# --- options --------------------------------------------------------------------------------

_NAMES = {
    name: name
    for name in (
        *("model", "temperature", "top_p", "top_k", "presence_penalty", "frequency_penalty"),
        *("stop", "n", "reasoning_effort", "verbosity", "service_tier", "user"),
        *("safety_identifier", "logit_bias", "logprobs", "top_logprobs", "store", "modalities"),
        *("audio", "prediction", "prompt_cache_key", "prompt_cache_retention"),
        "web_search_options",
    )
}


def encode_options(options: ChatOptions, dialect: Dialect, *, streaming: bool) -> dict[str, Any]:
    """Return all of a request but its messages."""
    body = fields_of(options, _NAMES, dialect.lacks)
    renamed = (
        (dialect.max_tokens, options.max_tokens),
        (dialect.seed, options.seed),
        ("metadata", getattr(options, "request_metadata", None)),
        ("response_format", _response_format(options)),
    )
    body.update({name: value for name, value in renamed if value is not None})
    body.update(_tools(options))
    if streaming:
        body["stream"] = True
        if dialect.usage_in_stream:
            body["stream_options"] = {"include_usage": True}
    return overlaid(body, options.extra)


def _tools(options: ChatOptions) -> dict[str, Any]:
    if not options.tool_callbacks:
        return {}
    strict: bool | None = getattr(options, "strict_tools", None)
    tools = [_tool(callback.definition, strict=strict) for callback in options.tool_callbacks]
    fields: dict[str, Any] = {"tools": tools}
    if options.tool_choice is not None:
        fields["tool_choice"] = _tool_choice(options.tool_choice)
    if options.parallel_tool_calls is not None:
        fields["parallel_tool_calls"] = options.parallel_tool_calls
    return fields


def _tool(definition: ToolDefinition, *, strict: bool | None) -> dict[str, Any]:
    function: dict[str, Any] = {
        "name": definition.name,
        "description": definition.description,
        "parameters": definition.input_schema,
    }
    if definition.strict is not None:
        function["strict"] = definition.strict
    elif strict is not None:
        form = enforceable(definition.input_schema) if strict else None
        function["strict"] = form is not None
        function["parameters"] = form or definition.input_schema
    return {"type": "function", "function": function}


def _tool_choice(choice: str) -> Any:
    if choice in ("auto", "none", "required"):
        return choice
    return {"type": "function", "function": {"name": choice}}


def _response_format(options: ChatOptions) -> Mapping[str, Any] | None:
    schema = options.output_schema
    if schema is None:
        return getattr(options, "response_format", None)
    return {"type": "json_schema", "json_schema": json_schema_format(schema)}


# --- messages -------------------------------------------------------------------------------


_BETWEEN = AssistantMessage("I have the results.")


def sendable(messages: tuple[Message, ...], dialect: Dialect) -> tuple[Message, ...]:
    """Return *messages* in an order that the server takes, the model's own word put in."""
    if dialect.one_system_message:
        messages = _with_one_system_message(messages)
    if dialect.user_after_tool:
        return messages
    result: list[Message] = []
    for message in messages:
        follows_results = bool(result) and isinstance(result[-1], ToolResponseMessage)
        if follows_results and isinstance(message, UserMessage):
            result.append(_BETWEEN)
        result.append(message)
    return tuple(result)


def _with_one_system_message(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    first = tuple(takewhile(lambda message: isinstance(message, SystemMessage), messages))
    if len(first) < 2 or any(message.metadata for message in first):  # noqa: PLR2004 - or marked
        return messages
    return (SystemMessage("\n\n".join(message.text for message in first)), *messages[len(first) :])


def encode_message(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    """Return *message* as the API wants it; tool responses become a message each.

    Its metadata may say who speaks (`name`), and that it is the end of what is cached
    (`cache_control`), which servers in front of Anthropic's models pass on.
    """
    elements = _elements(message, dialect)
    if not message.metadata.keys().isdisjoint(("name", "cache_control")) and elements:
        elements[-1] = _annotated(elements[-1], message.metadata, dialect)
    return elements


_NOT_IN_NAMES = re.compile(r"[\s<|\\/>]+")


def _annotated(
    element: dict[str, Any], metadata: Mapping[str, Any], dialect: Dialect
) -> dict[str, Any]:
    """Return a message with what its metadata says of it."""
    name, mark = metadata.get("name"), metadata.get("cache_control")
    if isinstance(name, str) and name and element["role"] != "tool":
        element = {"name": _NOT_IN_NAMES.sub("_", name)[:64], **element}
    content = element["content"]
    if mark and content and dialect.takes_marks:
        parts = [_text(content)] if isinstance(content, str) else content
        element = {**element, "content": [*parts[:-1], {**parts[-1], "cache_control": mark}]}
    return element


def _elements(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    match message:
        case SystemMessage():
            return [_system(message, dialect)]
        case UserMessage():
            return [_user(message, dialect)]
        case AssistantMessage():
            return [_assistant(message, dialect)]
        case ToolResponseMessage():
            return _tool_responses(message, dialect)
        case _:
            raise unsendable(message)


def _system(message: SystemMessage, dialect: Dialect) -> dict[str, Any]:
    return {"role": message.metadata.get("role", dialect.system_role), "content": message.content}


def _text(text: str) -> dict[str, Any]:
    return {"type": "text", "text": text}


def _user(message: UserMessage, dialect: Dialect) -> dict[str, Any]:
    body: dict[str, Any] = {"role": "user", "content": ""}
    if len(message.parts) == 1 and isinstance(message.parts[0], str):
        body["content"] = message.parts[0]
        return body
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, ProviderPart) and part.provider == dialect.provider:
            # The provider's own content part, or fields of the message such as `name`.
            if "type" in part.data:
                content.append(dict(part.data))
            else:
                body.update(part.data)
        elif isinstance(part, Media):
            content.append(media_part(part, dialect))
        elif text := part if isinstance(part, str) else part.text:
            content.append(_text(text))
    if content:
        body["content"] = content
    return body


# --- the assistant's messages ---------------------------------------------------------------


def _assistant(message: AssistantMessage, dialect: Dialect) -> dict[str, Any]:
    text, fields = _said(message, dialect)
    content: Any = text or None
    if dialect.reasoning_field == "content":
        content = _thinking_content(message, dialect) or content
    # Without a field for it, reasoning is that of another API of the same provider.
    elif dialect.reasoning_field and (message.reasoning or dialect.needs_reasoning):
        if kept := _kept_thoughts(message, dialect):
            content = [*kept, _text(text)] if text else kept
        elif fields.keys().isdisjoint(FIELDS):
            fields.update(_thoughts(message, dialect))
    if calls := message.tool_calls:
        fields["tool_calls"] = [_tool_call(call, dialect) for call in calls]
    elif content is None and not fields.keys() & {"refusal", "audio"}:
        content = ""
    return {"role": "assistant", "content": content, **fields}


def _said(message: AssistantMessage, dialect: Dialect) -> tuple[str, dict[str, Any]]:
    """Return a message's text, and what of it goes into fields of its own."""
    texts: list[str] = []
    fields: dict[str, Any] = {}
    for part in message.parts:
        if isinstance(part, str):
            texts.append(part)
        elif isinstance(part, ProviderPart):
            taken = _replayed(part, dialect)
            for name, value in taken.items():
                fields[name] = _joined(fields.get(name), value)
            if not taken:
                texts.append(part.text)
    # Of a spoken answer, the text is what the voice says.
    return "" if "audio" in fields else "".join(texts), fields


def _replayed(part: ProviderPart, dialect: Dialect) -> dict[str, Any]:
    """Return the fields of a part that the server wants back."""
    if part.provider != dialect.provider:
        return {}
    if "type" in part.data:  # a part of the content, whatever its fields are called
        return {}
    return {name: value for name, value in part.data.items() if name in dialect.replayed}


def _joined(old: Any, new: Any) -> Any:
    """Return two fragments of one field as one."""
    if isinstance(old, str) and isinstance(new, str):
        return old + new
    if isinstance(old, list | tuple) and isinstance(new, list | tuple):
        return [*old, *new]
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        return {**old, **new}
    return new


def _kept_thoughts(message: AssistantMessage, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the reasoning that came as parts of the content, which goes back as such."""
    own = [content_of(r) for r in message.reasoning if r.provider == dialect.provider]
    return [dict(data) for data in own if data is not None]


def _thoughts(message: AssistantMessage, dialect: Dialect) -> dict[str, str]:
    """Return the reasoning in the field in which the server wants it."""
    name = dialect.reasoning_field
    if name == "received":
        name = message.metadata.get(REASONING_FIELD)
    if name is None:
        return {}
    own = [r.text for r in message.reasoning if r.provider in ("", dialect.provider)]
    return {name: "".join(own)} if own or dialect.needs_reasoning else {}


def _thinking_content(message: AssistantMessage, dialect: Dialect) -> list[dict[str, Any]]:
    """Return content in parts, thoughts among them; empty when text is all there is."""
    content: list[dict[str, Any]] = []
    for part in message.parts:
        if isinstance(part, Reasoning) and part.provider in ("", dialect.provider):
            content.append(
                dict(part.data)
                if part.data
                else {"type": "thinking", "thinking": [_text(part.text)]}
            )
        elif isinstance(part, ProviderPart):
            own = part.provider == dialect.provider and "type" in part.data
            content.extend([dict(part.data)] if own else [_text(part.text)] if part.text else [])
        elif isinstance(part, str) and part:
            content.append(_text(part))
    return [] if all(part["type"] == "text" for part in content) else content


def _tool_call(call: ToolCall, dialect: Dialect) -> dict[str, Any]:
    id = _call_id(call.id, dialect)
    if call.metadata.get("type") == "custom":
        custom = {"name": called_name(call.name), "input": call.arguments}
        return {"id": id, "type": "custom", "custom": custom}
    function = {"name": called_name(call.name), "arguments": _arguments(call.arguments, dialect)}
    body = {"id": id, "type": "function", "function": function}
    if "extra_content" in dialect.replayed and "extra_content" in call.metadata:
        body["extra_content"] = call.metadata["extra_content"]
    return body


def _arguments(arguments: str, dialect: Dialect) -> str:
    # Many chat templates parse them.
    return written_arguments(arguments) if dialect.parses_arguments else arguments.strip() or "{}"


def _call_id(id: str, dialect: Dialect) -> str:
    """Return the id of a call in the form the server takes; the same for its result."""
    length = dialect.call_id_length
    if length is None:
        return short_id(id, dialect.longest_call_id)
    if len(id) == length and id.isalnum() and id.isascii():
        return id
    return _digest(id, length)


def short_id(id: str, longest: int | None) -> str:
    """Return an id that is not longer than *longest*, the same for the same *id* every time."""
    return id if longest is None or len(id) <= longest else _digest(id, longest)


def _digest(id: str, length: int) -> str:
    return hashlib.sha256(id.encode()).hexdigest()[:length]


# --- tool results ---------------------------------------------------------------------------


def _tool_responses(message: ToolResponseMessage, dialect: Dialect) -> list[dict[str, Any]]:
    elements: list[dict[str, Any]] = [
        {"role": "tool", "tool_call_id": _call_id(response.id, dialect), "content": response.data}
        for response in message.responses
    ]
    shown = [part for r in message.responses for part in _shown_media(r, dialect)]
    if shown and not dialect.user_after_tool:
        elements.append(_assistant(_BETWEEN, dialect))
    # A tool message holds text only; what else a tool returned is shown by the user.
    return [*elements, {"role": "user", "content": shown}] if shown else elements


def _shown_media(response: ToolResponse, dialect: Dialect) -> list[dict[str, Any]]:
    if not response.media:
        return []
    introduction = f"Content returned by tool {response.name} (call {response.id}):"
    shown, told = shown_by_tool(response.media, partial(media_part, dialect=dialect))
    return [_text(introduction), *shown, *map(_text, told)]
