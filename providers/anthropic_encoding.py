"""Messages in the JSON of Anthropic's Messages API."""

import base64
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from itertools import count
from typing import Any

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
from chatclient.providers.fields import arguments_in, called_name, unsendable
from chatclient.providers.media import base64_of, shown_by_tool
from chatclient.providers.wire_cache import kept_wire
from chatclient.values import EMPTY

PROVIDER = "anthropic"
"""What this API is called in errors, and in the parts of messages that only it knows."""


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """In what a server's Messages API differs from Anthropic's.

    Attributes:
        unsigned_thinking: Whether thoughts without a signature are sent back. Anthropic refuses
            them; servers that never sign want them, for their models continue from them.
    """

    unsigned_thinking: bool = False


ANTHROPIC = Dialect()
COMPATIBLE = Dialect(unsigned_thinking=True)

Block = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class EncodedConversation:
    """A conversation in the API's form, to which messages can be added without encoding it anew.

    Neighbours of one role become one turn. All bytes are JSON elements, joined by commas.

    Attributes:
        system: The system messages, which the API takes beside the conversation.
        turns: What is complete.
        role: Whose turn is open: `user`, `assistant`, or empty for messages in the API's own form.
        results: The open turn's tool results, which the API wants first.
        content: The open turn's other content.
        calls: The ids of all tool calls.
        renamed: The ids of the last calls that had been taken before, and what they are now.
    """

    system: bytes = b""
    turns: bytes = b""
    role: str = ""
    results: bytes = b""
    content: bytes = b""
    calls: frozenset[str] = frozenset()
    renamed: Mapping[str, str] = EMPTY

    def plus(self, messages: Iterable[Message], dialect: Dialect) -> "EncodedConversation":
        """Return this conversation with *messages* at its end."""
        role, system, turns = self.role, [self.system], [self.turns]
        results, content = [self.results], [self.content]
        ids = _CallIds(self.calls, self.renamed)
        for message in messages:
            form = kept_wire(ids.told_apart(message), dialect, encode_message)
            if not form:
                continue
            if isinstance(message, SystemMessage):
                system.append(form)
                continue
            if (its_role := _role(message)) != role:
                turns.append(_turn(role, _joined(results), _joined(content)))
                role, results, content = its_role, [], []
            (results if isinstance(message, ToolResponseMessage) else content).append(form)
        return EncodedConversation(
            *(_joined(system), _joined(turns), role, _joined(results), _joined(content)),
            *(frozenset(ids.known), ids.renamed),
        )

    def messages(self) -> bytes:
        """Return the elements of the request's `messages`."""
        return _joined([self.turns, _turn(self.role, self.results, self.content)])


class _CallIds:
    """Tells calls apart whose ids would be the same.

    Those of some servers repeat from round to round, and others differ only in letters that are not
    allowed here. The API takes each id once in a conversation.
    """

    __slots__ = ("known", "renamed")

    def __init__(self, known: frozenset[str], renamed: Mapping[str, str]) -> None:
        self.known = set(known)
        self.renamed = renamed

    def told_apart(self, message: Message) -> Message:
        """Return *message* with new ids for calls, or the responses to them, whose id is taken."""
        match message:
            case AssistantMessage() if message.tool_calls:
                return self._calling(message)
            case ToolResponseMessage() if self.renamed:
                return message.mutate(responses=[self._answering(r) for r in message.responses])
            case UserMessage() if self.renamed:
                parts = [self._answering_block(part) for part in message.parts]
                return UserMessage(parts, metadata=message.metadata)
            case _:
                return message

    def _calling(self, message: AssistantMessage) -> AssistantMessage:
        renamed: dict[str, str] = {}
        for id in dict.fromkeys(call.id for call in message.tool_calls):
            allowed = _id(id)
            if allowed in self.known:
                renamed[id] = self._free(allowed)
            self.known.add(allowed)
        self.renamed = renamed
        if not renamed:
            return message
        return AssistantMessage([self._called(p) for p in message.parts], metadata=message.metadata)

    def _called(self, part: Part) -> Part:
        if not isinstance(part, ToolCall):
            return part
        return replace(part, id=self.renamed.get(part.id, part.id))

    def _answering(self, response: ToolResponse) -> ToolResponse:
        return replace(response, id=self.renamed.get(response.id, response.id))

    def _answering_block(self, part: str | Media | ProviderPart) -> str | Media | ProviderPart:
        """Return *part*, with the new id if it is a response in the API's own form."""
        if isinstance(part, ProviderPart):
            new = self.renamed.get(str(part.data.get("tool_use_id")))
            return part if new is None else replace(part, data={**part.data, "tool_use_id": new})
        return part

    def _free(self, id: str) -> str:
        """Return an id like *id* that no call has; the same whenever the conversation is sent."""
        new = next(name for at in count(2) if (name := f"{id}_{at}") not in self.known)
        self.known.add(new)
        return new


def _joined(elements: list[bytes]) -> bytes:
    return b",".join([element for element in elements if element])


def _role(message: Message) -> str:
    if isinstance(message, AssistantMessage):
        return "assistant"
    return "" if _is_whole(message) else "user"


def _is_whole(message: Message) -> bool:
    """Whether *message* is nothing but one in the API's own form, such as a later system turn."""
    if not isinstance(message, UserMessage) or len(message.parts) != 1:
        return False
    part = message.parts[0]
    return isinstance(part, ProviderPart) and part.provider == PROVIDER and "role" in part.data


def _turn(role: str, results: bytes, content: bytes) -> bytes:
    elements = _joined([results, content])
    if not role or not elements:
        return elements
    return b'{"role":"%b","content":[%b]}' % (role.encode(), elements)


def encode_message(message: Message, dialect: Dialect) -> list[Block]:
    """Return *message* as content blocks; there may be none, for the API takes no blank text.

    Its metadata may mark it as the end of what is cached (`cache_control`).

    Raises:
        UsageError: It holds something that the API does not take.
    """
    blocks = _blocks(message, dialect)
    mark = message.metadata.get("cache_control")
    if mark and blocks and blocks[-1].get("type") not in _UNMARKED:
        blocks[-1] = {**blocks[-1], "cache_control": mark}
    return blocks


_UNMARKED = ("thinking", "redacted_thinking")


def _blocks(message: Message, dialect: Dialect) -> list[Block]:
    match message:
        case SystemMessage():
            return _text(message.text)
        case UserMessage():
            return [block for part in message.parts for block in _said_by_user(part)]
        case AssistantMessage():
            return [b for part in message.parts for b in _said_by_assistant(part, dialect)]
        case ToolResponseMessage():
            results = [_tool_result(response) for response in message.responses]
            return [*results, *_media_of_failures(message.responses)]
        case _:
            raise unsendable(message)


def without_trailing_space(message: AssistantMessage) -> AssistantMessage:
    """Return *message* as the API takes it at the end of a conversation, for the model to go on."""
    *before, last = message.parts or ("",)
    if not isinstance(last, str):
        return message
    return AssistantMessage([*before, last.rstrip()], metadata=message.metadata)


def _text(text: str) -> list[Block]:
    # The API refuses text that is nothing but white space, although its models may write it.
    return [{"type": "text", "text": text}] if text.strip() else []


def _said_by_user(part: str | Media | ProviderPart) -> list[Block]:
    match part:
        case str():
            return _text(part)
        case Media():
            return [_media(part)]
        case _:
            return _own_block(part)


def _said_by_assistant(part: Part, dialect: Dialect) -> list[Block]:
    match part:
        case str():
            return _text(part)
        case Reasoning():
            return _thinking(part, dialect)
        case ToolCall():
            return [_tool_use(part)]
        case ProviderPart():
            return _own_block(part)
        case _:
            return []  # of what a model drew or spoke, the API takes nothing back


def _own_block(part: ProviderPart) -> list[Block]:
    if part.provider != PROVIDER:
        return _text(part.text)
    if part.data.get("type") == "text" and not part.data.get("text", "").strip():
        return []
    return [part.data]


def _thinking(part: Reasoning, dialect: Dialect) -> list[Block]:
    if part.provider != PROVIDER:
        return []
    if part.data is not None:
        return [part.data]
    if part.signature:  # an empty one is none, and would be refused
        return [{"type": "thinking", "thinking": part.text, "signature": part.signature}]
    unsigned = dialect.unsigned_thinking and part.text
    return [{"type": "thinking", "thinking": part.text}] if unsigned else []


CALL_KEYS = ("caller", "toolset_name")
_NOT_IN_IDS = re.compile(r"[^a-zA-Z0-9_-]")


def _tool_use(call: ToolCall) -> Block:
    more = {key: call.metadata[key] for key in CALL_KEYS if key in call.metadata}
    name, input = called_name(call.name), arguments_in(call.arguments)
    return {"type": "tool_use", "id": _id(call.id), "name": name, "input": input, **more}


def _id(id: str) -> str:
    """Return *id* in the letters that the API allows; other providers' ids may have more."""
    return _NOT_IN_IDS.sub("_", id)


def _tool_result(response: ToolResponse) -> Block:
    result: dict[str, Any] = {"type": "tool_result", "tool_use_id": _id(response.id)}
    if response.is_error:
        return {**result, "content": response.data.strip() or "error", "is_error": True}
    if response.media:
        result["content"] = [*_text(response.data), *_shown_by_tool(response)]
    elif response.data.strip():
        result["content"] = response.data
    return result


def _media_of_failures(responses: Iterable[ToolResponse]) -> list[Block]:
    """Return what failed tools have to show: their results may hold text only."""
    return [block for r in responses if r.is_error for block in _shown_by_tool(r)]


def _shown_by_tool(response: ToolResponse) -> list[Block]:
    shown, told = shown_by_tool(response.media, _media)
    return [*shown, *({"type": "text", "text": words} for words in told)]


_MEDIA_KEYS = ("cache_control", "citations", "context", "title")
_AS_TEXT = ("application/json", "application/xml", "application/yaml")


def _media(media: Media) -> Block:
    kind = _media_kind(media)
    if kind == "container_upload":
        return {"type": kind, "file_id": media.id}
    title = {"title": media.name} if kind == "document" and media.name else {}
    more = {key: media.metadata[key] for key in _MEDIA_KEYS if key in media.metadata}
    return {"type": kind, "source": _source(media), **title, **more}


def _media_kind(media: Media) -> str:
    mime_type = media.mime_type
    if mime_type.startswith("image/"):
        return "image"
    if mime_type in ("application/pdf", "text/plain"):
        return "document"
    if media.id is not None:
        return "container_upload"  # for the model's code to read
    if mime_type.startswith("text/") or mime_type in _AS_TEXT:
        return "document"
    msg = f"the Messages API takes images, PDFs and text, not {mime_type}; convert it, or upload it"
    raise UsageError(msg)


def _source(media: Media) -> Block:
    if media.id is not None:
        return {"type": "file", "file_id": media.id}
    content = base64_of(media)
    if content is None:
        return {"type": "url", "url": media.data}
    if media.mime_type.startswith("image/") or media.mime_type == "application/pdf":
        # The API takes a few types only, by their proper names.
        media_type = "image/jpeg" if media.mime_type == "image/jpg" else media.mime_type
        return {"type": "base64", "media_type": media_type, "data": content}
    text = base64.b64decode(content).decode(errors="replace")
    return {"type": "text", "media_type": "text/plain", "data": text}
