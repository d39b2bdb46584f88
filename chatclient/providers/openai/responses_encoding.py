"""Encodes messages as input items of OpenAI's Responses API; no I/O.

A response is a list of items. They are decoded to the parts of one `AssistantMessage`, in order,
and encoded to the same items again:

- message: its text, then a `ProviderPart` with the other fields (id, phase, annotations), which
  also marks the end of the message;
- reasoning: a `Reasoning` with the text, if any, then one with the complete item as its `data`;
- call of an application's tool: a `ToolCall`, the other fields in its metadata;
- generated image: a `Media`, the other fields in its metadata;
- anything else, such as a server-side search: a `ProviderPart` with the item.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.errors import UsageError
from chatclient.providers.openai.chat_encoding import file_name, shorten_id
from chatclient.providers.openai.dialect import IMAGES
from chatclient.providers.wire.fields import (
    arguments_json,
    encode_tool_media,
    is_inline,
    other_fields,
    unsupported_message,
    valid_tool_name,
)

PROVIDER = "openai"
"""Provider of the parts from all servers of this API; reasoning has the origin of its server."""

CONVERSATION = "conversation"
"""Key in a message's metadata: the provider's conversation that contains the message."""

SystemRole = Literal["system", "developer"]

Item = Mapping[str, Any]
"""An input or output item, or another JSON object of the API."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodingSettings:
    """Settings on which the encoding of messages depends.

    Attributes:
        system_role: Role of system messages.
        stored: Whether the provider stores responses, so that reasoning needs only its id.
        custom_tools: Names of tools that take text instead of JSON.
        takes_reasoning: Whether the model accepts reasoning; non-reasoning models reject it.
        origin: Origin of reasoning that the server can decrypt.
    """

    system_role: SystemRole = "system"
    stored: bool = False
    custom_tools: frozenset[str] = frozenset()
    takes_reasoning: bool = True
    origin: str = PROVIDER


def encode_message(message: Message, settings: EncodingSettings) -> list[dict[str, Any]]:
    """Return *message* as input items."""
    match message:
        case SystemMessage():
            return [{"role": settings.system_role, "content": message.text}]
        case UserMessage():
            items: list[dict[str, Any]] = []
            content: list[str | Media | ProviderPart] = []
            for part in message.parts or ("",):
                if not isinstance(part, ProviderPart) or _is_content(part):
                    content.append(part)
                    continue
                items += [*_user_content(content, settings), dict(part.data)]
                content = []
            return [*items, *_user_content(content, settings)]
        case AssistantMessage():
            return _assistant(message, settings)
        case ToolResponseMessage():
            return [_tool_output(response, settings) for response in message.responses]
        case _:
            raise unsupported_message(message)


# Items that are accepted without an id.
_OPTIONAL_ID = ("message", "tool_search_call", "tool_search_output")
_MAX_ID_LENGTH = 64  # of a call; ids of other servers may be longer

# Types of parts from Chat Completions, which has the same provider name.
_CHAT_TYPES = (None, "text", "image_url", "file")


def _is_responses_item(part: ProviderPart) -> bool:
    """Return whether *part* is JSON of this API."""
    return part.provider == PROVIDER and part.data.get("type") not in _CHAT_TYPES


def _is_content(part: ProviderPart) -> bool:
    """Return whether *part* is message content instead of an item."""
    return not _is_responses_item(part) or part.data["type"].startswith("input_")


def _user_content(
    content: list[str | Media | ProviderPart], settings: EncodingSettings
) -> list[dict[str, Any]]:
    if not content:
        return []
    if len(content) == 1 and isinstance(content[0], str):
        return [{"role": "user", "content": content[0]}]
    return [{"role": "user", "content": [_content_part(part, settings) for part in content]}]


def _content_part(part: str | Media | ProviderPart, settings: EncodingSettings) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    if isinstance(part, ProviderPart):
        return (
            dict(part.data)
            if _is_responses_item(part)
            else {"type": "input_text", "text": part.text}
        )
    if part.mime_type.startswith("image/"):
        if settings.origin == PROVIDER and is_inline(part) and part.mime_type not in IMAGES:
            msg = f"OpenAI takes no {part.mime_type}; convert it"
            raise UsageError(msg)
        image = {"image_url": part.url()} if part.id is None else {"file_id": part.id}
        return {"type": "input_image", "detail": part.metadata.get("detail", "auto"), **image}
    if part.mime_type.startswith("audio/") and is_inline(part):
        msg = f"the Responses API does not take {part.mime_type}; use OpenAIChatModel with a model"
        raise UsageError(f"{msg} that listens, or send what is said in it as text")
    return {"type": "input_file", **_file(part)}


def _file(media: Media) -> dict[str, Any]:
    if media.id is not None:
        return {"file_id": media.id}
    if not is_inline(media):
        return {"file_url": media.url()}
    return {"filename": file_name(media), "file_data": media.url()}


def _tool_output(response: ToolResponse, settings: EncodingSettings) -> dict[str, Any]:
    custom = response.name in settings.custom_tools
    output: Any = response.data
    if response.media:
        encode = partial(_content_part, settings=settings)
        media, errors = encode_tool_media(response.media, encode)
        output = [encode(text) for text in (response.data, *errors) if text]
        output += media
    kind = "custom_tool_call_output" if custom else "function_call_output"
    id = shorten_id(response.id, _MAX_ID_LENGTH)
    caller = {_CALLER: response.caller} if isinstance(response, _CalledResponse) else {}
    return {"type": kind, "call_id": id, "output": output, **caller}


_CALLER = "caller"


@dataclass(frozen=True, slots=True)
class _CalledResponse(ToolResponse):
    """A result with the caller of its call.

    It is not in the metadata, because tools, also those of MCP servers, determine that.

    Attributes:
        caller: A program that the model has written, or the model itself.
    """

    caller: Any = None


def with_callers(messages: tuple[Message, ...], history: Sequence[Message]) -> tuple[Message, ...]:
    """Return *messages* whose results name the callers of their calls, as the API requires.

    Args:
        messages: The messages to send.
        history: All messages, also those with calls that the provider has stored.
    """
    answers = (message for message in history if isinstance(message, AssistantMessage))
    callers = {
        part.id: part.metadata[PROVIDER][_CALLER]
        for answer in answers
        for part in answer.parts
        if isinstance(part, ToolCall) and part.metadata.get(PROVIDER, EMPTY).get(_CALLER)
    }
    if not callers:
        return messages
    return tuple([_with_callers(message, callers) for message in messages])


def _with_callers(message: Message, callers: Mapping[str, Any]) -> Message:
    if not isinstance(message, ToolResponseMessage):
        return message
    responses = [
        _CalledResponse(r.id, r.name, r.data, r.is_error, r.media, caller=callers[r.id])
        if r.id in callers
        else r
        for r in message.responses
    ]
    return message.mutate(responses=responses)


def _assistant(message: AssistantMessage, settings: EncodingSettings) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    content: list[str | ProviderPart] = []  # of an unfinished message
    for part in _without_unreadable_reasoning(message, settings):
        if isinstance(part, str) or (
            isinstance(part, ProviderPart) and not _is_responses_item(part)
        ):
            content.append(part)
            continue
        if isinstance(part, ProviderPart) and part.data["type"] == "message":
            items += _message(part.data, content)
        else:
            items += [*_plain_message(content), *_other_item(part, settings)]
        content = []
    items += _plain_message(content)
    while items and items[-1]["type"] == "reasoning":
        items.pop()  # rejected without the item that follows it
    return items


def _without_unreadable_reasoning(
    message: AssistantMessage, settings: EncodingSettings
) -> Sequence[Part]:
    """Return the parts without reasoning that the server cannot read.

    The server looks for the reasoning of items that have an id. Therefore the ids of items after
    omitted reasoning are removed, and calls of server-side tools, which require an id, are omitted.
    """
    if not message.reasoning:
        return message.parts
    parts: list[Part] = []
    is_omitted = False
    for part in message.parts:
        if isinstance(part, Reasoning):
            if part.data is not None and part.data.get("type") == "reasoning":
                is_omitted = not _is_readable(part, part.data, settings)
            if not is_omitted:
                parts.append(part)
        elif not is_omitted:
            parts.append(part)
        elif not _is_server_call(part):
            parts.append(_without_id(part))
    return parts


def _is_readable(part: Reasoning, item: Item, settings: EncodingSettings) -> bool:
    """Return whether the server can read the reasoning in *item*, or has stored it."""
    available = settings.stored or item.get("encrypted_content") or item.get("content")
    return part.provider == settings.origin and settings.takes_reasoning and bool(available)


def _is_server_call(part: Part) -> bool:
    """Return whether *part* is a call of a server-side tool."""
    match part:
        case ProviderPart(data={"type": str(kind)} as data) if _is_responses_item(part):
            return kind.endswith("_call") and "call_id" not in data
        case Media(metadata=metadata):
            return PROVIDER in metadata
        case _:
            return False


def _without_id(part: Part) -> Part:
    match part:
        case ToolCall(metadata=metadata) if PROVIDER in metadata:
            more = other_fields(metadata[PROVIDER], ("id",))
            return replace(part, metadata=FrozenDict({**metadata, PROVIDER: more}))
        case ProviderPart(data=data) if data.get("type") in _OPTIONAL_ID:
            return replace(part, data=other_fields(data, ("id",)))
        case _:
            return part


def _plain_message(content: list[str | ProviderPart], **more: Any) -> list[dict[str, Any]]:
    text = "".join(part if isinstance(part, str) else part.text for part in content)
    if not text:
        return []
    return [{"type": "message", "role": "assistant", "content": text, **more}]


def _message(final: Item, parts: list[str | ProviderPart]) -> list[dict[str, Any]]:
    """Return the message with the text of *parts*, and the other fields in *final*.

    A message item is decoded to its texts, and a last part with *final*, the JSON of the item. The
    decoder replaces each text in *final* by its `length` in characters, so that the text is stored
    once; here the texts are cut from that of *parts*.
    """
    text = "".join(part for part in parts if isinstance(part, str))
    content: list[dict[str, Any]] = []
    start = 0
    for slot in final["content"]:
        filled = dict(slot)
        if (length := filled.pop("length", None)) is not None:
            filled = {
                "annotations": [],
                "logprobs": [],
                **filled,
                "text": text[start : start + length],
            }
            start += length
        content.append(filled)
    item = {"status": "completed", "role": "assistant", **final, "content": content}
    if start == len(text) and "id" in final:
        return [item]
    # The application has changed the text (annotations are invalid then), or the server's messages
    # have no id (only the plain form is valid then).
    phase = {"phase": final["phase"]} if "phase" in final else {}
    plain = _plain_message(parts, **phase)
    if plain and "id" in final:
        changed = {"type": "output_text", "annotations": [], "logprobs": []}
        plain = [{**item, "content": [{**changed, "text": plain[0]["content"]}]}]
    return plain


def _other_item(part: Part, settings: EncodingSettings) -> list[dict[str, Any]]:
    match part:
        case ToolCall():
            extra = dict(part.metadata.get(PROVIDER, EMPTY))
            if extra.pop("type", None) == "custom_tool_call" and part.name in settings.custom_tools:
                fields = {"type": "custom_tool_call", "input": part.arguments}
            else:
                fields = {"type": "function_call", "arguments": arguments_json(part.arguments)}
            id, name = shorten_id(part.id, _MAX_ID_LENGTH), valid_tool_name(part.name)
            return [{**fields, "call_id": id, "name": name, **extra}]
        case ProviderPart(data=data):
            return [dict(data)]
        case Reasoning(provider=origin, data=data) if (
            origin == settings.origin and data is not None
        ):
            return [{key: value for key, value in data.items() if value is not None}]
        case Media(metadata=metadata) if PROVIDER in metadata:
            return [{**metadata[PROVIDER], "result": part.base64()}]
        case _:
            pass  # no item type for media and reasoning of other providers
    return []
