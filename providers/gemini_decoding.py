"""Whole answers of Gemini as responses, and what streams have in common with them; no I/O."""

import base64
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chatclient.messages import (
    AssistantMessage,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
)
from chatclient.providers.error_bodies import request_id
from chatclient.providers.failures import no_answer, refuse_error, unreadable
from chatclient.providers.fields import MISSHAPEN, arguments_of, number_of, text_of
from chatclient.providers.keys import Headers
from chatclient.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.values import EMPTY, FrozenDict

PROVIDER = "gemini"
INVENTED_ID = "gemini-call-"
"""How ids begin that were given to calls without one; the service never sees them."""

# What may stand in a part beside its content, and is sent back with it.
_BESIDE_CONTENT = (
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

# Some Vertex endpoints give the numbers of Vertex's own enumeration.
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
# Of a call that the model could not write down, the service tells nothing but that.
_MALFORMED = ("MALFORMED_FUNCTION_CALL", "9", "MALFORMED_RESPONSE")
_UNSET = (None, 0, "", "FINISH_REASON_UNSPECIFIED")


def decode_response(data: Any, headers: Headers = EMPTY) -> ChatResponse:
    """Return the response that a whole answer spells.

    Raises:
        ProviderError: The answer is an error in disguise.
        InvalidResponseError: The answer is of no known form, or there is none in it.
    """
    refuse_error(PROVIDER, data, headers)
    try:
        if not data.keys() & {"candidates", "promptFeedback", "usageMetadata"}:
            raise unreadable(PROVIDER, data)
        candidates: Sequence[Any] = data.get("candidates") or ()
        generations = [_generation(c, at) for at, c in enumerate(candidates)] or blocked(data)
        if all(has_failed(g.native_finish_reason, g.output.parts) for g in generations):
            raise no_answer(PROVIDER, data)
        return ChatResponse(tuple(generations), metadata_of(data, headers))
    except MISSHAPEN as error:
        raise unreadable(PROVIDER, data) from error


def _generation(candidate: Mapping[str, Any], at: int) -> Generation:
    output = AssistantMessage(_decoded(parts_of(candidate)))
    native = native_reason(candidate)
    reason = finish_reason(native, has_calls=bool(output.tool_calls))
    index = number_of(candidate.get("index")) or at
    return Generation(output, reason, native, index, beside_known(candidate, CANDIDATE_KEYS))


def parts_of(candidate: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    """Return the parts of the content of *candidate*; a blocked one has none."""
    return (candidate.get("content") or {}).get("parts") or ()


def _decoded(parts: Iterable[Mapping[str, Any]]) -> list[Part]:
    return [decoded for part in parts if (decoded := decode_part(part)) is not None]


def native_reason(candidate: Mapping[str, Any]) -> str | None:
    """Return why *candidate* ends, in the API's own words; None while it goes on."""
    native = candidate.get("finishReason")
    return None if native in _UNSET else str(native)


def finish_reason(native: str | None, *, has_calls: bool) -> FinishReason | None:
    """Return what a *native* reason means, of an answer with calls or without."""
    reason = None if native is None else _FINISH_REASONS.get(native, "error")
    return "tool_call" if has_calls and reason in (None, "stop") else reason


def has_failed(native: str | None, parts: Iterable[Part]) -> bool:
    """Return whether an answer that ended for a *native* reason is none, which may pass."""
    return native in _MALFORMED and all(isinstance(part, Reasoning) for part in parts)


def blocked(data: Mapping[str, Any]) -> list[Generation]:
    """Return the empty answer to a prompt that was refused, if it was."""
    reason = (data.get("promptFeedback") or {}).get("blockReason")
    return [Generation(AssistantMessage(), "content_filter", str(reason))] if reason else []


CANDIDATE_KEYS = ("content", "finishReason", "index")
_RESPONSE = ("candidates", "usageMetadata", "responseId", "modelVersion")


def beside_known(data: Mapping[str, Any], known: Sequence[str]) -> Mapping[str, Any]:
    """Return the entries of *data* that are not *known* and say something."""
    # Streams repeat empty metadata until the last chunk has the full one.
    rest = {k: v for k, v in data.items() if k not in known and v is not None and v != {}}
    return FrozenDict(rest) if rest else EMPTY


def decode_part(part: Mapping[str, Any]) -> Part | None:
    """Return what a part says, or None for an empty one."""
    if "functionCall" in part:
        call = part["functionCall"]
        return ToolCall(
            text_of(call.get("id")) or new_call_id(),
            text_of(call.get("name")),
            arguments_of(call.get("args")),
            beside_content(part),
        )
    if part.get("thought"):
        return _reasoning(part)
    if "text" in part:
        text = text_of(part["text"])
        return text or None if len(part) == 1 else ProviderPart(PROVIDER, FrozenDict(part), text)
    for key in ("inlineData", "fileData"):
        if key in part:
            return _decoded_media(part, part[key])
    return ProviderPart(PROVIDER, FrozenDict(part)) if part else None


def new_call_id() -> str:
    """Return an id for a call that came without one."""
    return f"{INVENTED_ID}{uuid.uuid4().hex[:20]}"


def beside_content(part: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return what stands in *part* beside its content and belongs to it."""
    beside = {key: part[key] for key in _BESIDE_CONTENT if key in part}
    return FrozenDict(beside) if beside else EMPTY


def _reasoning(part: Mapping[str, Any]) -> Reasoning:
    plain = "text" in part and part.keys() <= {"text", "thought", "thoughtSignature"}
    data = None if plain else FrozenDict(part)
    signature = text_of(part.get("thoughtSignature")) or None
    return Reasoning(text_of(part.get("text")), signature, PROVIDER, data)


def _decoded_media(part: Mapping[str, Any], blob: Mapping[str, Any]) -> Part:
    data: bytes | str = text_of(blob.get("fileUri"))
    try:
        # Both alphabets of base 64 are in use.
        data = data or base64.b64decode((blob.get("data") or "").translate({45: 43, 95: 47}))
    except ValueError:
        return ProviderPart(PROVIDER, FrozenDict(part))
    mime_type = text_of(blob.get("mimeType")) or "application/octet-stream"
    name = text_of(blob.get("displayName")) or None
    return Media(mime_type, data, name=name, metadata=beside_content(part))


def metadata_of(data: Mapping[str, Any], headers: Headers) -> ChatResponseMetadata:
    """Return what a response, or a chunk of one, says beside its candidates."""
    return ChatResponseMetadata(
        id=data.get("responseId") or "",
        model=data.get("modelVersion") or "",
        usage=usage_of(data.get("usageMetadata") or EMPTY),
        request_id=request_id(headers),
        values=beside_known(data, _RESPONSE),
    )


def usage_of(usage: Mapping[str, Any]) -> Usage:
    """Return what was spent; the API counts thoughts beside the answer."""

    def count(name: str) -> int | None:
        return number_of(usage.get(name))

    thoughts = count("thoughtsTokenCount")
    return Usage(
        (count("promptTokenCount") or 0) + (count("toolUsePromptTokenCount") or 0),
        (count("candidatesTokenCount") or 0) + (thoughts or 0),
        count("cachedContentTokenCount"),
        None,
        thoughts,
        FrozenDict(usage) if usage else EMPTY,
    )
