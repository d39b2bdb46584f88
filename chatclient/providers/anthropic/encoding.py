"""Encodes messages for Anthropic's Messages API; no I/O."""

import base64
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import count
from typing import Any

from chatclient._internal.frozen import EMPTY
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
from chatclient.providers.wire.fields import (
    arguments_object,
    base64_of,
    encode_tool_media,
    is_inline,
    unsupported_message,
    valid_tool_name,
)
from chatclient.providers.wire.request_body import cached_json

PROVIDER = "anthropic"
"""The provider's name in errors and parts of messages."""


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """Differences of a server's Messages API from Anthropic's.

    Attributes:
        unsigned_thinking: Whether reasoning without a signature is sent back. Anthropic rejects it;
            models of servers without signatures need it.
    """

    unsigned_thinking: bool = False


ANTHROPIC = Dialect()
COMPATIBLE = Dialect(unsigned_thinking=True)

Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EncodedConversation:
    """An encoded conversation to which messages can be appended.

    Consecutive messages of one role become one turn. All bytes are JSON elements, separated by
    commas.

    Attributes:
        system: The system messages, which are a separate field of the request.
        turns: The complete turns.
        role: Role of the last turn: `user`, `assistant`, or empty for messages in the API's format.
        results: Tool results of the last turn; the API requires them first.
        content: Other content of the last turn.
        calls: The ids of all tool calls.
        renamed: New ids of the last calls, by original ids, if those were not unique.
    """

    system: bytes = b""
    turns: bytes = b""
    role: str = ""
    results: bytes = b""
    content: bytes = b""
    calls: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = EMPTY

    def plus(
        self,
        messages: Iterable[Message],
        dialect: Dialect,
        encode: Callable[[Message, Dialect], Iterable[Block]] | None = None,
    ) -> "EncodedConversation":
        """Return this conversation with *messages* appended.

        Args:
            messages: What to append.
            dialect: The dialect of the server.
            encode: Encodes a message as blocks; default: as in Anthropic's API. Bedrock has
                other blocks, in the same turns.
        """
        role, system, turns = self.role, [self.system], [self.turns]
        results, content = [self.results], [self.content]
        ids = _CallIds(self.calls, self.renamed)
        encode = encode or encode_blocks
        for message in messages:
            encoded = cached_json(ids.with_unique_ids(message), dialect, encode)
            if not encoded:
                continue
            if isinstance(message, SystemMessage):
                system.append(encoded)
                continue
            if (new_role := _role(message)) != role:
                turns.append(_turn(role, _joined(results), _joined(content)))
                role, results, content = new_role, [], []
            (results if isinstance(message, ToolResponseMessage) else content).append(encoded)
        return EncodedConversation(
            *(_joined(system), _joined(turns), role, _joined(results), _joined(content)),
            *(frozenset(ids.used), ids.renamed),
        )

    def messages(self) -> bytes:
        """Return the elements of the request's `messages`."""
        return _joined([self.turns, _turn(self.role, self.results, self.content)])


class _CallIds:
    """Makes the ids of tool calls unique, as the API requires.

    Some servers reuse ids in each round, and ids that differ only in characters that the API does
    not allow become equal.
    """

    __slots__ = ("renamed", "used")

    def __init__(self, used: frozenset[str], renamed: Mapping[str, str]) -> None:
        self.used = set(used)
        self.renamed = renamed

    def with_unique_ids(self, message: Message) -> Message:
        """Return *message* with new ids for calls, and their results, whose id is not unique."""
        match message:
            case AssistantMessage() if message.tool_calls:
                renamed: dict[str, str] = {}
                for id in dict.fromkeys(call.id for call in message.tool_calls):
                    allowed = valid_call_id(id)
                    if allowed in self.used:
                        start = allowed[: _MAX_ID - 8]
                        new = next(
                            name for at in count(2) if (name := f"{start}_{at}") not in self.used
                        )
                        self.used.add(new)
                        renamed[id] = new
                    self.used.add(allowed)
                self.renamed = renamed
                if not renamed:
                    return message
                return AssistantMessage(
                    [self._rename_call(p) for p in message.parts], metadata=message.metadata
                )
            case ToolResponseMessage() if self.renamed:
                return message.mutate(
                    responses=[
                        replace(r, id=self.renamed.get(r.id, r.id)) for r in message.responses
                    ]
                )
            case UserMessage() if self.renamed:
                parts = [self._rename_result_part(part) for part in message.parts]
                return UserMessage(parts, metadata=message.metadata)
            case _:
                return message

    def _rename_call(self, part: Part) -> Part:
        if not isinstance(part, ToolCall):
            return part
        return replace(part, id=self.renamed.get(part.id, part.id))

    def _rename_result_part(self, part: str | Media | ProviderPart) -> str | Media | ProviderPart:
        """Return *part*, with the new id if it is a tool result in the API's format."""
        if isinstance(part, ProviderPart):
            new = self.renamed.get(str(part.data.get("tool_use_id")))
            return part if new is None else replace(part, data={**part.data, "tool_use_id": new})
        return part


def _joined(elements: list[bytes]) -> bytes:
    return b",".join([element for element in elements if element])


def _role(message: Message) -> str:
    if isinstance(message, AssistantMessage):
        return "assistant"
    return "" if _is_native_message(message) else "user"


def _is_native_message(message: Message) -> bool:
    """Whether *message* is one in the API's format, such as a system turn after the first."""
    if not isinstance(message, UserMessage) or len(message.parts) != 1:
        return False
    part = message.parts[0]
    return isinstance(part, ProviderPart) and part.provider == PROVIDER and "role" in part.data


def _turn(role: str, results: bytes, content: bytes) -> bytes:
    elements = _joined([results, content])
    if not role or not elements:
        return elements
    return b'{"role":"%b","content":[%b]}' % (role.encode(), elements)


def encode_blocks(message: Message, dialect: Dialect) -> list[Block]:
    """Return *message* as content blocks; there are none for blank text."""
    blocks = _blocks(message, dialect)
    cache_control = message.metadata.get("cache_control")
    if cache_control and blocks and blocks[-1].get("type") not in _WITHOUT_CACHE_CONTROL:
        blocks[-1] = {**blocks[-1], "cache_control": cache_control}
    return blocks


_WITHOUT_CACHE_CONTROL = ("thinking", "redacted_thinking")


def _blocks(message: Message, dialect: Dialect) -> list[Block]:
    match message:
        case SystemMessage():
            return _text(message.text)
        case UserMessage():
            return [block for part in message.parts for block in _user_blocks(part)]
        case AssistantMessage():
            return [b for part in message.parts for b in _assistant_blocks(part, dialect)]
        case ToolResponseMessage():
            results, following = [], []
            for response in message.responses:
                media, errors = encode_tool_media(response.media, _media)
                media = [*media, *({"type": "text", "text": error} for error in errors)]
                # A failed result may contain only text, and none files for code execution.
                outside = [b for b in media if response.is_error or b["type"] in _NOT_IN_RESULTS]
                following += outside
                results.append(_tool_result(response, [b for b in media if b not in outside]))
            return [*results, *following]
        case _:
            raise unsupported_message(message)


def without_trailing_space(message: AssistantMessage) -> AssistantMessage:
    """Return *message* without trailing space, which the API rejects in the last message."""
    *before, last = message.parts or ("",)
    if not isinstance(last, str):
        return message
    return AssistantMessage([*before, last.rstrip()], metadata=message.metadata)


def _text(text: str) -> list[Block]:
    # The API rejects blank text, although its models may write it.
    return [{"type": "text", "text": text}] if text.strip() else []


def _user_blocks(part: str | Media | ProviderPart) -> list[Block]:
    match part:
        case str():
            return _text(part)
        case Media():
            return [_media(part)]
        case _:
            return _native_block(part)


def _assistant_blocks(part: Part, dialect: Dialect) -> list[Block]:
    match part:
        case str():
            return _text(part)
        case Reasoning():
            if part.provider != PROVIDER:
                return []
            if part.data is not None:
                return [part.data]
            if part.signature:  # the API rejects an empty one
                return [{"type": "thinking", "thinking": part.text, "signature": part.signature}]
            unsigned = dialect.unsigned_thinking and part.text
            return [{"type": "thinking", "thinking": part.text}] if unsigned else []
        case ToolCall():
            extra = {key: part.metadata[key] for key in CALL_KEYS if key in part.metadata}
            name, input = valid_tool_name(part.name), arguments_object(part.arguments)
            return [
                {
                    "type": "tool_use",
                    "id": valid_call_id(part.id),
                    "name": name,
                    "input": input,
                    **extra,
                }
            ]
        case ProviderPart():
            return _native_block(part)
        case _:
            return []  # the API accepts no media of the assistant


def _native_block(part: ProviderPart) -> list[Block]:
    if part.provider != PROVIDER:
        return _text(part.text)
    if part.data.get("type") == "text" and not part.data.get("text", "").strip():
        return []
    return [part.data]


CALL_KEYS = ("caller", "toolset_name")
_MAX_ID = 64
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")


def valid_call_id(id: str) -> str:
    """Return *id* with characters that the API does not allow replaced, or a digest of it.

    Bedrock takes 1 to 64 characters.
    """
    allowed = _NOT_IN_IDS.sub("_", id)
    return allowed if 0 < len(allowed) <= _MAX_ID else sha256(id.encode()).hexdigest()


def _tool_result(response: ToolResponse, media: list[Block]) -> Block:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": valid_call_id(response.id)}
    if response.is_error:
        return {**result, "content": response.data.strip() or "error", "is_error": True}
    if media:
        result["content"] = [*_text(response.data), *media]
    elif response.data.strip():
        result["content"] = response.data
    return result


_IMAGES = ("image/png", "image/jpeg", "image/jpg", "image/gif", "image/webp")
_NOT_IN_RESULTS = ("container_upload",)
_DOCUMENT_KEYS = ("cache_control", "citations", "context", "title")
_AS_TEXT = ("application/json", "application/xml", "application/yaml")


def _media(media: Media) -> Block:
    mime_type = media.mime_type
    if mime_type in _IMAGES or (mime_type.startswith("image/") and not is_inline(media)):
        kind = "image"
    elif mime_type in ("application/pdf", "text/plain"):
        kind = "document"
    elif media.id is not None:
        kind = "container_upload"  # a file for code execution
    elif mime_type.startswith("text/") or mime_type in _AS_TEXT:
        kind = "document"
    else:
        msg = (
            "the Messages API takes images (PNG, JPEG, GIF, WebP), PDFs and text, not"
            f" {mime_type}; convert it, or upload it"
        )
        raise UsageError(msg)
    if kind == "container_upload":
        return {"type": kind, "file_id": media.id}
    title = {"title": media.name} if kind == "document" and media.name else {}
    keys = _DOCUMENT_KEYS if kind == "document" else ("cache_control",)
    extra = {key: media.metadata[key] for key in keys if key in media.metadata}
    return {"type": kind, "source": _source(media), **title, **extra}


def _source(media: Media) -> Block:
    if media.id is not None:
        return {"type": "file", "file_id": media.id}
    content = base64_of(media)
    if content is None:
        return {"type": "url", "url": media.data}
    if media.mime_type.startswith("image/") or media.mime_type == "application/pdf":
        # The API accepts only the registered name.
        media_type = "image/jpeg" if media.mime_type == "image/jpg" else media.mime_type
        return {"type": "base64", "media_type": media_type, "data": content}
    text = base64.b64decode(content).decode(errors="replace")
    return {"type": "text", "media_type": "text/plain", "data": text}
