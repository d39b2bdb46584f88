"""Decodes responses of Gemini, and parts of its streams; no I/O."""

import base64
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
)
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.error_details import request_id
from chatclient.providers.http.errors import empty_response, invalid_response, raise_for_error
from chatclient.providers.wire.fields import MALFORMED, dump_arguments, int_field, text_field

PROVIDER = "gemini"
INVENTED_ID = "gemini-call-"
"""Prefix of ids generated for calls without one; they are not sent to the service."""

# Fields of a part other than its content, which are sent back with it.
_PART_METADATA = (
    "thoughtSignature",
    "thought",
    "partMetadata",
    "videoMetadata",
    "audioMetadata",
    "documentMetadata",
    "spreadsheetMetadata",
    "mediaResolution",
    "mediaProcessing",
    "audioTranscription",
)

# Some Vertex endpoints send numbers of Vertex's enumeration.
_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "1": "stop",
    "MAX_TOKENS": "length",
    "2": "length",
    "CONTINUATION": "length",
    "SAFETY": "content_filter",
    "3": "content_filter",
    "RECITATION": "content_filter",
    "4": "content_filter",
    "BLOCKLIST": "content_filter",
    "6": "content_filter",
    "PROHIBITED_CONTENT": "content_filter",
    "7": "content_filter",
    "SPII": "content_filter",
    "8": "content_filter",
    "ESCALATION": "content_filter",
    "MODEL_ARMOR": "content_filter",
    "10": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
# The model wrote an invalid call, whose text the service does not return.
_MALFORMED = (
    *("MALFORMED_FUNCTION_CALL", "9", "MALFORMED_RESPONSE"),
    *("UNEXPECTED_TOOL_CALL", "TOO_MANY_TOOL_CALLS", "MISSING_THOUGHT_SIGNATURE"),
)
_UNSET = (None, 0, "", "FINISH_REASON_UNSPECIFIED")


def decode_response(data: Any, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response in *data*, or raise the error that it reports."""
    raise_for_error(PROVIDER, data, headers)
    try:
        if not data.keys() & {"candidates", "promptFeedback", "usageMetadata"}:
            raise invalid_response(PROVIDER, data)
        candidates: Sequence[Any] = data.get("candidates") or ()
        generations = [_generation(c, at) for at, c in enumerate(candidates)] or blocked_answer(
            data
        )
        if all(is_malformed_call(g.native_finish_reason, g.output.parts) for g in generations):
            raise empty_response(PROVIDER, data)
        return ChatResponse(tuple(generations), metadata_of(data, headers))
    except MALFORMED as error:
        raise invalid_response(PROVIDER, data, error) from error


def _generation(candidate: Mapping[str, Any], at: int) -> Generation:
    output = AssistantMessage(_decode(decode_parts(candidate)))
    native = native_reason(candidate)
    reason = finish_reason(native, has_calls=bool(output.tool_calls))
    index = int_field(candidate.get("index")) or at
    return Generation(output, reason, native, index, other_fields(candidate, CANDIDATE_KEYS))


def decode_parts(candidate: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the content parts of *candidate*; a blocked one has none."""
    return (candidate.get("content") or {}).get("parts") or ()


def _decode(parts: Iterable[Mapping[str, Any]]) -> list[Part]:
    return [decoded for part in parts if (decoded := decode_part(part)) is not None]


def native_reason(candidate: Mapping[str, Any]) -> str | None:
    """Return the API's finish reason of *candidate*, or None if it is not finished."""
    native = candidate.get("finishReason")
    return None if native in _UNSET else str(native)


def finish_reason(native: str | None, *, has_calls: bool) -> FinishReason | None:
    """Return the finish reason for the API's *native* one."""
    reason = None if native is None else _FINISH_REASONS.get(native, "error")
    return "tool_call" if has_calls and reason in (None, "stop") else reason


def is_malformed_call(native: str | None, parts: Iterable[Part]) -> bool:
    """Return whether an answer is empty because of a malformed call; a retry may succeed."""
    return native in _MALFORMED and not any(map(is_content, parts))


def is_content(part: Part) -> bool:
    """Return whether *part* is more than reasoning or a signature."""
    if isinstance(part, ProviderPart):
        return bool(part.text)
    return not isinstance(part, Reasoning)


def blocked_answer(data: Mapping[str, Any]) -> list[Generation]:
    """Return an empty answer if the prompt was blocked, else an empty list."""
    reason = (data.get("promptFeedback") or {}).get("blockReason")
    return [Generation(AssistantMessage(), "content_filter", str(reason))] if reason else []


CANDIDATE_KEYS = ("content", "finishReason", "index")
_RESPONSE = ("candidates", "usageMetadata", "responseId", "modelVersion")


def other_fields(data: Mapping[str, Any], known: Sequence[str]) -> Mapping[str, Any]:
    """Return the fields of *data* that are not *known*, null or an empty object."""
    # Streams contain empty metadata in all chunks but the last.
    rest = {k: v for k, v in data.items() if k not in known and v is not None and v != {}}
    return FrozenDict(rest) if rest else EMPTY


def decode_part(part: Mapping[str, Any]) -> Part | None:
    """Return the decoded part, or None if it is empty."""
    if "functionCall" in part:
        call = part["functionCall"]
        return ToolCall(
            text_field(call.get("id")) or new_call_id(),
            text_field(call.get("name")),
            dump_arguments(call.get("args")),
            part_metadata(part),
        )
    if part.get("thought"):
        return _reasoning(part)
    if "text" in part:
        text = text_field(part["text"])
        return text or None if len(part) == 1 else ProviderPart(PROVIDER, FrozenDict(part), text)
    for key in ("inlineData", "fileData"):
        if key in part:
            return _decode_media(part, part[key])
    return ProviderPart(PROVIDER, FrozenDict(part)) if part else None


def new_call_id() -> str:
    """Return an id for a call without one."""
    return f"{INVENTED_ID}{uuid.uuid4().hex[:20]}"


def part_metadata(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the fields of *part* that are sent back with its content."""
    fields = {key: part[key] for key in _PART_METADATA if key in part}
    return FrozenDict(fields) if fields else EMPTY


def _reasoning(part: Mapping[str, Any]) -> Reasoning:
    plain = "text" in part and part.keys() <= {"text", "thought", "thoughtSignature"}
    data = None if plain else FrozenDict(part)
    signature = text_field(part.get("thoughtSignature")) or None
    return Reasoning(text_field(part.get("text")), signature, PROVIDER, data)


def _decode_media(part: Mapping[str, Any], blob: Mapping[str, Any]) -> Part:
    data: bytes | str = text_field(blob.get("fileUri"))
    try:
        # Both base64 alphabets occur.
        data = data or base64.b64decode((blob.get("data") or "").translate({45: 43, 95: 47}))
    except ValueError:
        return ProviderPart(PROVIDER, FrozenDict(part))
    mime_type = text_field(blob.get("mimeType")) or "application/octet-stream"
    name = text_field(blob.get("displayName")) or None
    return Media(mime_type, data, name=name, metadata=part_metadata(part))


def metadata_of(data: Mapping[str, Any], headers: Headers) -> ChatResponseMetadata:
    """Return the metadata of a response, or of a chunk."""
    return ChatResponseMetadata(
        id=data.get("responseId") or "",
        model=data.get("modelVersion") or "",
        usage=usage_of(data.get("usageMetadata") or EMPTY),
        request_id=request_id(headers),
        values=other_fields(data, _RESPONSE),
    )


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """Return the usage; the API's `candidatesTokenCount` does not include reasoning."""

    def count(name: str) -> int | None:
        return int_field(usage.get(name))

    reasoning = count("thoughtsTokenCount")
    return Usage(
        (count("promptTokenCount") or 0) + (count("toolUsePromptTokenCount") or 0),
        (count("candidatesTokenCount") or 0) + (reasoning or 0),
        count("cachedContentTokenCount"),
        None,
        reasoning,
        FrozenDict(usage) if usage else EMPTY,
    )
