"""Messages as the input items of OpenAI's Responses; no I/O.

A response is a list of items. They become the parts of one `AssistantMessage`, in their order, and
go back as the items they were:

- a message: its text, then a `ProviderPart` that holds what else the item says (id, phase,
  annotations) and marks where the message ends;
- reasoning: a `Reasoning` with the text there is, then one with the whole item as its `data`;
- a call of the application's tool: a `ToolCall`, the rest of the item in its metadata;
- a generated image: a `Media`, the rest of the item in its metadata;
- anything else, such as a search on the provider's side: a `ProviderPart` with the item.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
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
    ToolResponse,
    ToolResponseMessage,
    UserMessage,
)
from chatclient.providers.fields import beside, called_name, unsendable, written_arguments
from chatclient.providers.media import is_here, shown_by_tool
from chatclient.providers.openai_encoding import short_id
from chatclient.providers.openai_media import file_name
from chatclient.values import EMPTY, FrozenDict

PROVIDER = "openai"
"""Whose parts these are, whichever server speaks this API; but each has reasoning of its own."""

CONVERSATION = "conversation"
"""In a message's metadata: the provider's conversation that holds it, and all before it."""

SystemRole = Literal["system", "developer"]

Item = Mapping[str, Any]
"""An input or output item, or another JSON object of the API."""


@dataclass(frozen=True, slots=True, eq=False)
class Form:
    """On what else than the message itself its items depend.

    Attributes:
        system_role: Who speaks a system message.
        stored: Whether the provider keeps its answers, and so knows reasoning by its id alone.
        custom_tools: The names of tools that take free text in place of JSON.
        takes_reasoning: Whether the model takes reasoning; those that never reason refuse it.
        origin: Whose reasoning the server can read: encrypted, it is of use to nobody else.
    """

    system_role: SystemRole = "system"
    stored: bool = False
    custom_tools: frozenset[str] = frozenset()
    takes_reasoning: bool = True
    origin: str = PROVIDER


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
            raise unsendable(message)


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
        shown, told = shown_by_tool(response.media, _content_part)
        output = [_content_part(text) for text in (response.data, *told) if text]
        output += shown
    kind = "custom_tool_call_output" if custom else "function_call_output"
    return {"type": kind, "call_id": short_id(response.id, _LONGEST_ID), "output": output}


def _assistant(message: AssistantMessage, form: Form) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    said: list[str | ProviderPart] = []  # by a message whose end has not come yet
    for part in _without_lost_reasoning(message, form):
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


def _without_lost_reasoning(message: AssistantMessage, form: Form) -> Sequence[Part]:
    """Return the parts without reasoning that cannot go back, nor ids by which it would be missed.

    The calls of the provider's own tools that it led to go with it: they are refused without it,
    and without ids.
    """
    if not message.reasoning:
        return message.parts
    parts: list[Part] = []
    is_missed = False
    for part in message.parts:
        if isinstance(part, Reasoning):
            if part.data is not None and part.data.get("type") == "reasoning":
                is_missed = not _is_known(part, part.data, form)
            if not is_missed:
                parts.append(part)
        elif not is_missed:
            parts.append(part)
        elif not _is_own(part):
            parts.append(_without_id(part))
    return parts


def _is_known(part: Reasoning, item: Item, form: Form) -> bool:
    """Return whether the model can be sent reasoning: as such, or as what the provider keeps."""
    kept = form.stored or item.get("encrypted_content") or item.get("content")
    return part.provider == form.origin and form.takes_reasoning and bool(kept)


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
        case Reasoning(provider=whose, data=data) if whose == form.origin and data is not None:
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
        what = {"type": "function_call", "arguments": written_arguments(call.arguments)}
    id, name = short_id(call.id, _LONGEST_ID), called_name(call.name)
    return {**what, "call_id": id, "name": name, **more}
