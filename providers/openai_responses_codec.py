"""OpenAI's Responses as data: messages to input items, output items to parts; no I/O.

A response is a list of items. They become the parts of one `AssistantMessage`, in their order, and
go back as the items they were:

- a message: its text, then a `ProviderPart` that holds what else the item says (id, phase,
  annotations) and marks where the message ends;
- reasoning: a `Reasoning` with the text there is, then one with the whole item as its `data`;
- a call of the application's tool: a `ToolCall`, the rest of the item in its metadata;
- a generated image: a `Media`, the rest of the item in its metadata;
- anything else, such as a search on the provider's side: a `ProviderPart` with the item.
"""

import base64
import binascii
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

from chatclient.errors import UsageError
from chatclient.messages import (
    AssistantMessage,
    Media,
    Message,
    Part,
    ProviderPart,
    Reasoning,
    SystemMessage,
    ToolCall,
    ToolCallChunk,
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.providers.fields import arguments_of, beside, text_of
from chatclient.providers.media import is_here
from chatclient.providers.openai_encoding import short_id
from chatclient.providers.openai_media import file_name
from chatclient.values import EMPTY, FrozenDict

PROVIDER = "openai"
"""Whose parts these are, whichever server speaks this API."""

CONVERSATION = "conversation"
"""In a message's metadata: the provider's conversation that holds it, and all before it."""

SystemRole = Literal["system", "developer"]

Item = Mapping[str, Any]
"""An input or output item, or another JSON object of the API."""

# --- encoding -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """On what else than the message itself its items depend.

    Attributes:
        system_role: Who speaks a system message.
        stored: Whether the provider keeps its answers, and so knows reasoning by its id alone.
        custom_tools: The names of tools that take free text in place of JSON.
        takes_reasoning: Whether the model takes reasoning; those that never reason refuse it.
    """

    system_role: SystemRole = "system"
    stored: bool = False
    custom_tools: frozenset[str] = frozenset()
    takes_reasoning: bool = True


@lru_cache(maxsize=64)
def form_of(
    role: SystemRole, custom_tools: frozenset[str], *, stored: bool, takes_reasoning: bool
) -> Form:
    """Return the form of these values: always the same object, so that it can be a cache's key."""
    return Form(role, stored, custom_tools, takes_reasoning)


def encode_message(message: Message, form: Form) -> list[dict[str, Any]]:
    """Return *message* as input items."""
    match message:
        case SystemMessage():
            return [{"role": form.system_role, "content": message.text}]
        case UserMessage():
            return _user(message)
        case AssistantMessage():
            return _assistant(message, form)
        case ToolResponseMessage():
            return [_tool_output(response, form) for response in message.responses]
        case _:
            msg = f"{type(message).__name__} is not a kind of message that can be sent"
            raise UsageError(msg)


_LONGEST_ID = 64  # of a call; other servers' may be longer

# What Chat Completions, the same provider's other API, puts into its parts.
_OF_CHAT = (None, "text", "image_url", "file")


def _is_item(part: ProviderPart) -> bool:
    """Return whether *part* is JSON of this API."""
    return part.provider == PROVIDER and part.data.get("type") not in _OF_CHAT


def _is_content(part: ProviderPart) -> bool:
    """Return whether *part* belongs into a message, rather than being an item of its own."""
    return not _is_item(part) or part.data["type"].startswith("input_")


def _user(message: UserMessage) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    content: list[str | Media | ProviderPart] = []
    for part in message.parts or ("",):
        if not isinstance(part, ProviderPart) or _is_content(part):
            content.append(part)
            continue
        items += [*_user_content(content), dict(part.data)]
        content = []
    return [*items, *_user_content(content)]


def _user_content(content: list[str | Media | ProviderPart]) -> list[dict[str, Any]]:
    if not content:
        return []
    if len(content) == 1 and isinstance(content[0], str):
        return [{"role": "user", "content": content[0]}]
    return [{"role": "user", "content": [_content_part(part) for part in content]}]


def _content_part(part: str | Media | ProviderPart) -> dict[str, Any]:
    if isinstance(part, str):
        return {"type": "input_text", "text": part}
    if isinstance(part, ProviderPart):
        return dict(part.data) if _is_item(part) else {"type": "input_text", "text": part.text}
    if part.mime_type.startswith("image/"):
        image = {"image_url": part.url()} if part.id is None else {"file_id": part.id}
        return {"type": "input_image", "detail": part.metadata.get("detail", "auto"), **image}
    if part.mime_type.startswith("audio/") and is_here(part):
        msg = f"the Responses API does not take {part.mime_type}; use OpenAIChatModel with a model"
        raise UsageError(f"{msg} that listens, or send what is said in it as text")
    return {"type": "input_file", **_file(part)}


def _file(media: Media) -> dict[str, Any]:
    if media.id is not None:
        return {"file_id": media.id}
    if not is_here(media):
        return {"file_url": media.url()}
    return {"filename": file_name(media), "file_data": media.url()}


def _tool_output(response: ToolResponse, form: Form) -> dict[str, Any]:
    custom = response.name in form.custom_tools
    output: Any = response.data
    if response.media:
        content: list[str | Media] = [response.data] if response.data else []
        output = [_content_part(part) for part in (*content, *response.media)]
    kind = "custom_tool_call_output" if custom else "function_call_output"
    return {"type": kind, "call_id": short_id(response.id, _LONGEST_ID), "output": output}


def _assistant(message: AssistantMessage, form: Form) -> list[dict[str, Any]]:
    if message.reasoning and not form.takes_reasoning:
        message = _without_reasoning(message)
    items: list[dict[str, Any]] = []
    said: list[str | ProviderPart] = []  # by a message whose end has not come yet
    for part in message.parts:
        if isinstance(part, str) or (isinstance(part, ProviderPart) and not _is_item(part)):
            said.append(part)
            continue
        if isinstance(part, ProviderPart) and part.data["type"] == "message":
            items += _message(part.data, said)
        else:
            items += [*_plain_message(said), *_other_item(part, form)]
        said = []
    items += _plain_message(said)
    while items and items[-1]["type"] == "reasoning":
        items.pop()  # refused without the item that it led to
    return items


def _without_reasoning(message: AssistantMessage) -> AssistantMessage:
    """Return *message* without reasoning, and without the ids by which that would be missed.

    The calls of the provider's own tools go with it: they are refused without it, and without ids.
    """
    rest = (part for part in message.parts if not (isinstance(part, Reasoning) or _is_own(part)))
    return AssistantMessage([_without_id(part) for part in rest])


def _is_own(part: Part) -> bool:
    """Return whether *part* is a call of one of the provider's own tools."""
    match part:
        case ProviderPart(data={"type": str(kind)} as data) if _is_item(part):
            return kind.endswith("_call") and "call_id" not in data
        case Media(metadata=metadata):
            return PROVIDER in metadata
        case _:
            return False


def _without_id(part: Part) -> Part:
    match part:
        case ToolCall(metadata=metadata) if PROVIDER in metadata:
            more = beside(metadata[PROVIDER], ("id",))
            return replace(part, metadata=FrozenDict({**metadata, PROVIDER: more}))
        case ProviderPart(data=data) if data.get("type") == "message":
            return replace(part, data=beside(data, ("id",)))
        case _:
            return part


def _plain_message(said: list[str | ProviderPart], **more: Any) -> list[dict[str, Any]]:
    text = "".join(part if isinstance(part, str) else part.text for part in said)
    if not text:
        return []
    return [{"type": "message", "role": "assistant", "content": text, **more}]


def _message(end: Item, said: list[str | ProviderPart]) -> list[dict[str, Any]]:
    """Return the message of which *end* holds everything but what was *said*."""
    text = "".join(part for part in said if isinstance(part, str))
    content: list[dict[str, Any]] = []
    at = 0
    for slot in end["content"]:
        filled = dict(slot)
        if (length := filled.pop("length", None)) is not None:
            filled = {"annotations": [], "logprobs": [], **filled, "text": text[at : at + length]}
            at += length
        content.append(filled)
    whole = {"status": "completed", "role": "assistant", **end, "content": content}
    if at == len(text) and "id" in end:
        return [whole]
    # The application has changed the text (then nothing else in there holds), or the server gives
    # its messages no id (then only the plain form is valid).
    phase = {"phase": end["phase"]} if "phase" in end else {}
    plain = _plain_message(said, **phase)
    if plain and "id" in end:
        changed = {"type": "output_text", "annotations": [], "logprobs": []}
        plain = [{**whole, "content": [{**changed, "text": plain[0]["content"]}]}]
    return plain


def _other_item(part: Part, form: Form) -> list[dict[str, Any]]:
    match part:
        case ToolCall():
            return [_tool_call(part, form)]
        case ProviderPart(data=data):
            return [dict(data)]
        case Reasoning(provider=provider, data=data) if provider == PROVIDER and data is not None:
            if form.stored or data.get("encrypted_content") or data.get("content"):
                return [{key: value for key, value in data.items() if value is not None}]
        case Media(metadata=metadata) if PROVIDER in metadata:
            return [{**metadata[PROVIDER], "result": part.base64()}]
        case _:
            pass  # other providers' reasoning, and media: there is no item for either
    return []


def _tool_call(call: ToolCall, form: Form) -> dict[str, Any]:
    more = dict(call.metadata.get(PROVIDER, EMPTY))
    if more.pop("type", None) == "custom_tool_call" and call.name in form.custom_tools:
        what = {"type": "custom_tool_call", "input": call.arguments}
    else:
        what = {"type": "function_call", "arguments": call.arguments.strip() or "{}"}
    return {**what, "call_id": short_id(call.id, _LONGEST_ID), "name": call.name, **more}


# --- decoding -------------------------------------------------------------------------------

CALLS = {"function_call": "arguments", "custom_tool_call": "input"}
"""Calls of the application's tools, and where each says what to call it with."""


def decode_item(item: Item, number: int, said: str = "") -> list[Part]:
    """Return the parts that an output item becomes.

    Args:
        item: The item, whole.
        number: Tells parallel calls apart.
        said: What of its text (or reasoning, or arguments) a stream has already told.
    """
    match item.get("type"):
        case "message":
            return _message_parts(item, said)
        case "reasoning":
            return _reasoning_parts(item, said)
        case "function_call" | "custom_tool_call":
            return [_call_chunk(item, number, said)]
        case "image_generation_call" if (image := _image(item)) is not None:
            return [image]
        case _:
            return [ProviderPart(PROVIDER, FrozenDict(item))]


def rest_of(whole: str, said: str) -> str:
    """Return what of *whole* has not been *said*; nothing where it does not begin with that."""
    return whole[len(said) :] if whole.startswith(said) else ""


def _message_parts(item: Item, said: str) -> list[Part]:
    parts: list[Part] = []
    content: list[dict[str, Any]] = []
    for piece in item.get("content") or ():
        slot = {key: value for key, value in piece.items() if value not in (None, [])}
        content.append(slot)
        is_text = piece.get("type") == "output_text"
        text = (piece.get("text") if is_text else piece.get("refusal")) or ""
        if is_text:
            slot.pop("text", None)
            slot["length"] = len(text)
        new = rest_of(text, said)
        said = rest_of(said, text)
        if new:
            parts.append(new if is_text else refusal(new))
    kept = {key: value for key, value in item.items() if value is not None}
    return [*parts, ProviderPart(PROVIDER, FrozenDict({**kept, "content": content}))]


def refusal(text: str) -> ProviderPart:
    """Return the part that says *text* in refusal, just as Chat Completions has it."""
    return ProviderPart(PROVIDER, FrozenDict({"refusal": text}), text)


def _reasoning_parts(item: Item, said: str) -> list[Part]:
    texts = item.get("summary") or item.get("content") or ()
    new = rest_of("".join(text.get("text") or "" for text in texts), said)
    thoughts = [Reasoning(new, provider=PROVIDER)] if new else []
    return [*thoughts, Reasoning(provider=PROVIDER, data=FrozenDict(item))]


def _call_chunk(item: Item, number: int, said: str) -> ToolCallChunk:
    field = CALLS[item["type"]]
    arguments = item.get(field)
    if arguments or field == "arguments":  # the other kind is free text, which may be none
        arguments = arguments_of(arguments)
    known = ("call_id", "name", field, *(["type"] if field == "arguments" else []))
    more = beside(item, known)
    return ToolCallChunk(
        number,
        text_of(item.get("call_id") or item.get("id")),
        text_of(item.get("name")),
        rest_of(arguments or "", said),
        FrozenDict({PROVIDER: more}) if more else EMPTY,
    )


def _image(item: Item) -> Media | None:
    """Return the image that *item* holds, if the item can be made again from it."""
    result = item.get("result") or ""
    try:
        image = base64.b64decode(result, validate=True)
    except binascii.Error:
        return None
    if not image or base64.b64encode(image).decode() != result:
        return None
    more = FrozenDict({PROVIDER: beside(item, ("result",))})
    return Media(f"image/{item.get('output_format') or 'png'}", image, metadata=more)
