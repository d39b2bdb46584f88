"""Encodes messages to Gemini; no I/O."""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from chatclient._internal.frozen import without
from chatclient._internal.json import loads
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
from chatclient.chat.prompt import Prompt
from chatclient.chat.response import ChatResponse
from chatclient.errors import UsageError
from chatclient.providers.gemini.decoding import INVENTED_ID, part_metadata
from chatclient.providers.http.continuation import Continuation
from chatclient.providers.wire.fields import (
    arguments_object,
    base64_of,
    encode_tool_media,
    unsupported_message,
    valid_tool_name,
)
from chatclient.providers.wire.request_body import cached_json

# Google's documented value for calls of other models, which are rejected without a signature.
_FOREIGN_SIGNATURE = "skip_thought_signature_validator"


@dataclass(frozen=True, slots=True, eq=False)
class Dialect:
    """Differences between generations of Gemini models.

    Attributes:
        media_in_results: Whether the media of a tool result are part of its function response;
            for older models they are separate parts.
        checks_signatures: Whether the first function call of a message requires a thought
            signature.
    """

    media_in_results: bool = False
    checks_signatures: bool = False


UP_TO_2 = Dialect()
FROM_3 = Dialect(media_in_results=True, checks_signatures=True)

_FROM_3 = re.compile(r"gemini-(?:[3-9]|\d{2}|[a-z-]*latest$)")


def dialect_of(model: str) -> Dialect:
    """Return the dialect of *model*, from its name."""
    return FROM_3 if _FROM_3.search(model) else UP_TO_2


def _next_prompt(prompt: Prompt, answer: ChatResponse) -> Prompt | None:
    """Return *prompt* with the continuation token of *answer*, or None if it is complete."""
    if len(answer.generations) != 1:
        return None
    generation = answer.generations[0]
    token = generation.metadata.get("continuationToken")
    if not token or generation.native_finish_reason != _UNFINISHED:
        return None
    extra = {**prompt.options.extra, "continuationToken": token}
    return Prompt.of(prompt.messages, prompt.options.mutate(extra=extra))


_UNFINISHED = "CONTINUATION"
LONG_ANSWERS = Continuation(_UNFINISHED, _next_prompt)
"""Continues answers that are too long for one request."""


@dataclass(frozen=True, slots=True)
class EncodedConversation:
    """An encoded conversation, which the next request usually continues.

    Attributes:
        messages: The messages.
        dialect: The dialect of the JSON.
        system: The parts of the system instruction.
        contents: The contents.
        answers_tools: Whether the last content consists of tool results.
    """

    messages: tuple[Message, ...] = ()
    dialect: Dialect = UP_TO_2
    system: bytes = b""
    contents: bytes = b""
    answers_tools: bool = False

    def continued(self, messages: tuple[Message, ...], dialect: Dialect) -> "EncodedConversation":
        """Encode *messages*; if this conversation is a prefix, only the new ones."""
        size = len(self.messages)
        is_prefix = dialect is self.dialect and messages[:size] == self.messages
        prefix = self if is_prefix else EncodedConversation()
        system, contents, answers_tools = [prefix.system], [prefix.contents], prefix.answers_tools
        for message in messages[len(prefix.messages) :]:
            parts = cached_json(message, dialect, encode_message)
            if not parts:  # the API rejects contents without parts
                continue
            if message.role == "system":
                system.append(parts)
                continue
            if answers_tools and message.role == "tool":
                # The responses to one round of calls have to be in one content.
                contents[-1] = b"%b,%b]}" % (contents[-1][:-2], parts)
                continue
            role = b"model" if message.role == "assistant" else b"user"
            contents.append(b'{"role":"%b","parts":[%b]}' % (role, parts))
            answers_tools = message.role == "tool"
        return EncodedConversation(
            messages,
            dialect,
            b",".join(filter(None, system)),
            b",".join(filter(None, contents)),
            answers_tools,
        )


def encode_message(message: Message, dialect: Dialect) -> list[dict[str, Any]]:
    """Return the parts of *message* in the API's format."""
    match message:
        case SystemMessage():
            return [{"text": message.text}] if message.text else []
        case UserMessage():
            return [part for p in message.parts if (part := _part(p)) is not None]
        case AssistantMessage():
            parts = [part for p in message.parts if (part := _part(p)) is not None]
            return _sign(parts) if dialect.checks_signatures else parts
        case ToolResponseMessage():
            return _results(message.responses, dialect)
        case _:
            raise unsupported_message(message)


def _part(part: Part) -> dict[str, Any] | None:
    match part:
        case str():
            return {"text": part} if part else None
        case Media():
            return _media(part)
        case ToolCall():
            function = {
                "name": valid_tool_name(part.name),
                "args": arguments_object(part.arguments),
            }
            return {"functionCall": _with_id(function, part.id), **part_metadata(part.metadata)}
        case Reasoning(provider="gemini"):
            if part.data is not None:
                return dict(part.data)
            thought: dict[str, Any] = {"text": part.text, "thought": True}
            return (
                thought
                if part.signature is None
                else {**thought, "thoughtSignature": part.signature}
            )
        case ProviderPart(provider="gemini"):
            return dict(part.data)
        case ProviderPart(text=text) if text:
            return {"text": text}
        case _:
            return None  # reasoning and data of other providers


def _media(media: Media) -> dict[str, Any]:
    metadata = part_metadata(media.metadata)
    content = base64_of(media)
    if content is not None:
        return {"inlineData": {"mimeType": media.mime_type, "data": content}, **metadata}
    if not media.data:
        msg = f"Gemini finds files by their URI, not by an id such as {media.id!r}"
        raise UsageError(f"{msg}; pass the URI as the data, Media({media.mime_type!r}, uri)")
    return {"fileData": {"mimeType": media.mime_type, "fileUri": media.data}, **metadata}


# Fields of a part that those of function responses lack; media of an agent may have them.
_NOT_IN_RESULTS = ("thoughtSignature", "thought", "partMetadata", "audioTranscription")


def _result_media(media: Media) -> dict[str, Any]:
    return without(_media(media), *_NOT_IN_RESULTS)


def _with_id(function: dict[str, Any], id: str) -> dict[str, Any]:
    return {"id": id, **function} if id and not id.startswith(INVENTED_ID) else function


def _sign(parts: list[dict[str, Any]]) -> list[dict[str, Any]]:
    calls = [part for part in parts if "functionCall" in part]
    if calls and not any("thoughtSignature" in part for part in calls):
        calls[0]["thoughtSignature"] = _FOREIGN_SIGNATURE
    return parts


def _results(responses: Sequence[ToolResponse], dialect: Dialect) -> list[dict[str, Any]]:
    parts: list[dict[str, Any]] = []
    following: list[dict[str, Any]] = []
    for response in responses:
        name = valid_tool_name(response.name)
        function: dict[str, Any] = {"name": name, "response": _result(response)}
        media, errors = encode_tool_media(response.media, _result_media)
        if media and dialect.media_in_results:
            function["parts"] = media
        elif media:
            if len(responses) > 1:
                following.append({"text": f"Content returned by tool {response.name}:"})
            following.extend(media)
        following.extend({"text": error} for error in errors)
        parts.append({"functionResponse": _with_id(function, response.id)})
    return [*parts, *following]


def _result(response: ToolResponse) -> dict[str, Any]:
    """Return a tool's result as an object, which the API requires.

    Some keys are special: of an object with `output` the model sees only that value, `error` marks
    a failure, and `$ref` at any depth refers to media of the result, and is rejected if there are
    none of that name. Results with these keys are nested, or sent as text.
    """
    try:
        value = loads(response.data)
    except ValueError:
        value = response.data
    if _has_reference(value):
        value = response.data
    if response.is_error:
        return value if isinstance(value, dict) and "error" in value else {"error": value}
    if not isinstance(value, dict) or "error" in value or ("output" in value and len(value) > 1):
        return {"result": value}
    return value


def _has_reference(value: Any) -> bool:
    """Return whether an object in *value*, at any depth, has the key `$ref`."""
    pending = [value]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            if "$ref" in item:
                return True
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)
    return False
