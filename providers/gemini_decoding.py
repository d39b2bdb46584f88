"""Answers of Gemini, whole and streamed, as responses; no I/O."""

import base64
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from chatclient.json import dumps, loads
from chatclient.messages import (
    AssistantMessage,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.providers.failures import (
    ended_early,
    no_answer,
    refuse_error,
    request_id,
    unreadable,
)
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
    "mediaResolution",
)

# --- responses ------------------------------------------------------------------------------

# Some Vertex endpoints give the numbers of Vertex's own enumeration.
_FINISH_REASONS: dict[str, FinishReason] = {
    "STOP": "stop",
    "1": "stop",
    "MAX_TOKENS": "length",
    "2": "length",
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
    "MODEL_ARMOR": "content_filter",
    "10": "content_filter",
    "IMAGE_SAFETY": "content_filter",
    "IMAGE_PROHIBITED_CONTENT": "content_filter",
    "IMAGE_RECITATION": "content_filter",
}
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
        generations = [_generation(c, at) for at, c in enumerate(candidates)] or _blocked(data)
        if not generations:
            raise no_answer(PROVIDER, data)
        return ChatResponse(tuple(generations), _metadata(data, headers))
    except MISSHAPEN as error:
        raise unreadable(PROVIDER, data) from error


def _generation(candidate: Mapping[str, Any], at: int) -> Generation:
    output = AssistantMessage(_decoded(_parts_of(candidate)))
    native = _native(candidate)
    reason = _finish_reason(native, has_calls=bool(output.tool_calls))
    index = number_of(candidate.get("index")) or at
    return Generation(output, reason, native, index, _beside(candidate, _CANDIDATE))


def _parts_of(candidate: Mapping[str, Any]) -> Sequence[Mapping[str, Any]]:
    return (candidate.get("content") or {}).get("parts") or ()


def _decoded(parts: Iterable[Mapping[str, Any]]) -> list[Part]:
    return [decoded for part in parts if (decoded := decode_part(part)) is not None]


def _native(candidate: Mapping[str, Any]) -> str | None:
    native = candidate.get("finishReason")
    return None if native in _UNSET else str(native)


def _finish_reason(native: str | None, *, has_calls: bool) -> FinishReason | None:
    reason = None if native is None else _FINISH_REASONS.get(native, "error")
    return "tool_call" if has_calls and reason in (None, "stop") else reason


def _blocked(data: Mapping[str, Any]) -> list[Generation]:
    """Return the empty answer to a prompt that was refused, if it was."""
    reason = (data.get("promptFeedback") or {}).get("blockReason")
    return [Generation(AssistantMessage(), "content_filter", str(reason))] if reason else []


_CANDIDATE = ("content", "finishReason", "index")
_RESPONSE = ("candidates", "usageMetadata", "responseId", "modelVersion")


def _beside(data: Mapping[str, Any], known: Sequence[str]) -> Mapping[str, Any]:
    # Streams repeat empty metadata until the last chunk has the full one.
    rest = {k: v for k, v in data.items() if k not in known and v is not None and v != {}}
    return FrozenDict(rest) if rest else EMPTY


def decode_part(part: Mapping[str, Any]) -> Part | None:
    """Return what a part says, or None for an empty one."""
    if "functionCall" in part:
        call = part["functionCall"]
        return ToolCall(
            text_of(call.get("id")) or _new_id(),
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


def _new_id() -> str:
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


def _metadata(data: Mapping[str, Any], headers: Headers) -> ChatResponseMetadata:
    return ChatResponseMetadata(
        id=data.get("responseId") or "",
        model=data.get("modelVersion") or "",
        usage=_usage(data.get("usageMetadata") or EMPTY),
        request_id=request_id(headers),
        values=_beside(data, _RESPONSE),
    )


def _usage(usage: Mapping[str, Any]) -> Usage:
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


# --- streams --------------------------------------------------------------------------------


_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")


def _with_piece(old: Any, steps: Sequence[Any], piece: Mapping[str, Any]) -> Any:
    """Return *old* with a piece of an argument put at the place to which *steps* lead."""
    if not steps:
        kinds = ("stringValue", "numberValue", "boolValue")
        value = next((piece[kind] for kind in kinds if kind in piece), None)
        return old + value if isinstance(old, str) and isinstance(value, str) else value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        items = old if isinstance(old, list) else []
        items.extend([None] * (step + 1 - len(items)))
        items[step] = _with_piece(items[step], rest, piece)
        return items
    fields = old if isinstance(old, dict) else {}
    fields[step] = _with_piece(fields.get(step), rest, piece)
    return fields


def _steps(path: str) -> list[Any]:
    found = _STEP.finditer(path)
    return [int(m[2]) if m[2] is not None else m[1] or m[3] or "" for m in found]


class _Candidate:
    """One answer of a stream as far as it has come; Vertex may send calls in pieces."""

    __slots__ = ("_arguments", "_calls", "_id", "_logprobs", "finished")

    def __init__(self) -> None:
        self.finished = False
        self._calls = 0
        self._id = ""
        self._arguments: Any = None  # of the call that is still open
        self._logprobs: dict[str, list[Any]] = {}

    @property
    def has_calls(self) -> bool:
        return self._calls > 0

    def parts(self, candidate: Mapping[str, Any]) -> list[Part]:
        """Return what a chunk adds."""
        parts: list[Part] = []
        for part in _parts_of(candidate):
            if "functionCall" in part:
                parts.extend(self._call(part, part["functionCall"]))
            elif (decoded := decode_part(part)) is not None:
                parts.append(decoded)
        return parts

    def metadata(self, candidate: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what a chunk tells beside its content; the last one, what all have told."""
        for key, value in (candidate.get("logprobsResult") or {}).items():
            if isinstance(value, list):
                self._logprobs.setdefault(key, []).extend(value)
        metadata = _beside(candidate, _CANDIDATE)
        if not (self.finished and self._logprobs):
            return metadata
        joined = {**metadata.get("logprobsResult", EMPTY), **self._logprobs}
        return FrozenDict({**metadata, "logprobsResult": joined})

    def _call(self, part: Mapping[str, Any], call: Mapping[str, Any]) -> list[ToolCallChunk]:
        chunks: list[ToolCallChunk] = []
        if name := text_of(call.get("name")):
            chunks.extend(self.close())
            self._id = text_of(call.get("id")) or _new_id()
            self._calls += 1
            self._arguments = {}
            chunks.append(
                ToolCallChunk(self._calls - 1, self._id, name, metadata=beside_content(part))
            )
        if self._arguments is None:  # the end of a call that has ended already
            return chunks
        self._arguments.update(call.get("args") or {})
        for piece in call.get("partialArgs") or ():
            if steps := _steps(piece.get("jsonPath") or ""):
                self._arguments = _with_piece(self._arguments, steps, piece)
        return chunks if call.get("willContinue") else [*chunks, *self.close()]

    def close(self) -> list[ToolCallChunk]:
        """Return the arguments of the call that is still open, if one is."""
        if self._arguments is None:
            return []
        arguments, self._arguments = dumps(self._arguments).decode(), None
        return [ToolCallChunk(self._calls - 1, self._id, arguments=arguments)]


class StreamDecoder:
    """Makes chunks of the values of a stream; no I/O.

    Raises (from `feed` and `finish`):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: A value cannot be read.
    """

    __slots__ = ("_blocked", "_candidates", "_headers", "_started", "_usage")

    def __init__(self, headers: Headers = EMPTY) -> None:
        self._headers = headers
        self._candidates: dict[int, _Candidate] = {}
        self._started = False
        self._blocked = False
        self._usage: Mapping[str, Any] | None = None  # reported, but not yet handed on

    def feed(self, data: bytes) -> ChatResponse | str:
        """Return the chunk that a value spells."""
        try:
            return self._chunk(loads(data))
        except MISSHAPEN as error:
            raise unreadable(PROVIDER, data) from error

    def _chunk(self, chunk: dict[str, Any]) -> ChatResponse | str:
        candidates: Sequence[Any] = chunk.get("candidates") or ()
        self._usage = chunk.get("usageMetadata") or self._usage
        only = candidates[0] if len(candidates) == 1 else None
        if only is not None and (text := self._plain_text(chunk, only)) is not None:
            return text
        refuse_error(PROVIDER, chunk, self._headers)
        generations = [self._delta(candidate) for candidate in candidates] or _blocked(chunk)
        self._blocked = self._blocked or bool(generations and not candidates)
        self._started = True
        if self._usage is not None:
            chunk["usageMetadata"], self._usage = self._usage, None
        return ChatResponse(tuple(generations), _metadata(chunk, self._headers))

    def finish(self) -> ChatResponse | None:
        """Return what is left to say, once the stream is known to have come to its end."""
        states = self._candidates.values()
        if not self._blocked and not (states and all(state.finished for state in states)):
            raise ended_early(PROVIDER)
        if self._usage is None:
            return None
        return ChatResponse((), ChatResponseMetadata(usage=_usage(self._usage)))

    def _plain_text(self, chunk: Mapping[str, Any], candidate: Mapping[str, Any]) -> str | None:
        """Return the text of a chunk that has nothing else to say, as nearly all have."""
        if not self._started or candidate.keys() - _PLAIN or candidate.get("index"):
            return None
        parts = _parts_of(candidate)
        if len(parts) != 1 or len(parts[0]) != 1 or "error" in chunk or "promptFeedback" in chunk:
            return None
        text = parts[0].get("text")
        return text if type(text) is str else None

    def _delta(self, candidate: Mapping[str, Any]) -> Generation:
        index = number_of(candidate.get("index")) or 0
        state = self._candidates.setdefault(index, _Candidate())
        parts = state.parts(candidate)
        native = _native(candidate)
        reason: FinishReason | None = None
        if native is not None:
            state.finished = True
            parts.extend(state.close())
            reason = _finish_reason(native, has_calls=state.has_calls)
        metadata = state.metadata(candidate)
        return Generation(AssistantMessage(parts), reason, native, index, metadata)


_PLAIN = {"content", "index"}
