"""Decodes responses and streams of Gemini; no I/O."""

import base64
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient._internal.json import NestingError, dumps, dumps_exact, loads, loads_exact
from chatclient.chat.messages import (
    AssistantMessage,
    Media,
    Part,
    ProviderPart,
    Reasoning,
    ToolCall,
    ToolCallChunk,
)
from chatclient.chat.response import (
    ChatResponse,
    ChatResponseMetadata,
    FinishReason,
    Generation,
    Usage,
)
from chatclient.errors import ResponseLimitError
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.errors import (
    empty_response,
    invalid_response,
    raise_for_error,
    request_id,
    stream_ended_early,
)
from chatclient.providers.http.limits import LIMITS
from chatclient.providers.http.reader import ServerSentEventDecoder, is_end
from chatclient.providers.wire.fields import (
    MALFORMED,
    dump_arguments,
    int_field,
    parse_object,
    text_field,
)

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
            blob = part[key]
            data: bytes | str = text_field(blob.get("fileUri"))
            try:
                # Both base64 alphabets occur.
                data = data or base64.b64decode(
                    (blob.get("data") or "").translate({45: 43, 95: 47})
                )
            except ValueError:
                return ProviderPart(PROVIDER, FrozenDict(part))
            mime_type = text_field(blob.get("mimeType")) or "application/octet-stream"
            name = text_field(blob.get("displayName")) or None
            return Media(mime_type, data, name=name, metadata=part_metadata(part))
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


class StreamReader:
    """Splits the bytes of a stream into JSON values.

    Streams consist of server-sent events, or, if a proxy drops `alt=sse`, of one JSON array. Errors
    may end a stream with a plain object.
    """

    __slots__ = ("_events", "_is_json", "_limit", "_received")

    def __init__(self, limit: int = LIMITS.event_bytes) -> None:
        self._limit = limit
        self._events = ServerSentEventDecoder(limit)
        self._is_json: bool | None = None  # None before the first bytes
        self._received = bytearray()  # of the array

    def set_limit(self, limit: int) -> None:
        """Use another limit for the bytes of one event or array."""
        self._limit = self._events.limit = limit

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the values that *chunk* completes.

        Raises:
            ResponseLimitError: An event or the array is larger than the limit.
        """
        if self._is_json is None and (start := chunk.lstrip(b"\xef\xbb\xbf \t\r\n")):
            self._is_json = start[0] in b"[{"
            chunk = start if self._is_json else chunk
        if self._is_json:
            self._received += chunk
            if len(self._received) > self._limit:
                msg = f"the answer in place of a stream is larger than {self._limit:,} bytes"
                raise ResponseLimitError(msg, limit="event_bytes", maximum=self._limit)
            return []
        events = self._events.feed(chunk)
        return [data for data, _ in events if data and not is_end(data)]

    def finish(self) -> list[bytes]:
        """Return the values that the end of the stream completes."""
        if self._is_json:
            # The array may have been cut off; its complete elements are read all the same.
            try:
                value = from_json(bytes(self._received), allow_partial=True)
            except ValueError:
                return [bytes(self._received)]
            return [dumps(element) for element in (value if isinstance(value, list) else [value])]
        # An event without its blank line, or an error as plain JSON.
        rest = self._events.finish().strip()
        return [] if parse_object(rest) is None else [rest]


_PLAIN = {"content", "index"}


class StreamDecoder:
    """Converts the values of a stream to chunks."""

    __slots__ = ("_blocked", "_candidates", "_first_content", "_headers", "_started", "_usage")

    def __init__(self, headers: Headers = EMPTY) -> None:
        self._headers = headers
        self._candidates: dict[int, _Candidate] = {}
        self._started = False
        self._first_content: Sequence[
            Part
        ] = ()  # parts of the first chunk with content; an answer may have none
        self._blocked = False
        self._usage: Mapping[str, Any] | None = None  # received but not emitted

    def feed(self, data: bytes) -> ChatResponse | str:
        """Return the chunk of a value."""
        try:
            chunk = loads_exact(data) if b'"functionCall"' in data else loads(data)
            candidates: Sequence[Any] = chunk.get("candidates") or ()
            self._usage = chunk.get("usageMetadata") or self._usage
            only = candidates[0] if len(candidates) == 1 else None
            if only is not None and (text := self._plain_text(chunk, only)) is not None:
                self._first_content = self._first_content or ([text] if text else ())
                return text
            raise_for_error(PROVIDER, chunk, self._headers)
            generations = [self._delta(candidate) for candidate in candidates] or blocked_answer(
                chunk
            )
            self._blocked = self._blocked or bool(generations and not candidates)
            parts = (part for generation in generations for part in generation.output.parts)
            self._first_content = self._first_content or list(filter(is_content, parts))
            self._started = True
            if self._usage is not None:
                chunk["usageMetadata"], self._usage = self._usage, None
            return ChatResponse(tuple(generations), metadata_of(chunk, self._headers))
        except MALFORMED as error:
            raise invalid_response(PROVIDER, data, error) from error

    def finish(self) -> ChatResponse | None:
        """Return the last chunk, if any, after a check that the answer is complete."""
        states = self._candidates.values()
        if not self._blocked and not (states and all(state.finished for state in states)):
            raise stream_ended_early(PROVIDER)
        if states and all(is_malformed_call(state.native, self._first_content) for state in states):
            raise empty_response(PROVIDER, [state.native for state in states])
        if self._usage is None:
            return None
        return ChatResponse((), ChatResponseMetadata(usage=usage_of(self._usage)))

    def _plain_text(self, chunk: Mapping[str, Any], candidate: Mapping[str, Any]) -> str | None:
        """Return the text of a chunk with nothing else: a fast path for nearly all chunks."""
        if not self._started or candidate.keys() - _PLAIN or candidate.get("index"):
            return None
        parts = decode_parts(candidate)
        if len(parts) != 1 or len(parts[0]) != 1 or "error" in chunk or "promptFeedback" in chunk:
            return None
        text = parts[0].get("text")
        return text if type(text) is str else None

    def _delta(self, candidate: Mapping[str, Any]) -> Generation:
        index = int_field(candidate.get("index")) or 0
        state = self._candidates.setdefault(index, _Candidate())
        parts = state.parts(candidate)
        native = native_reason(candidate)
        reason: FinishReason | None = None
        if native is not None:
            state.finished, state.native = True, native
            parts.extend(state.close())
            reason = finish_reason(native, has_calls=state.has_calls)
        metadata = state.metadata(candidate)
        return Generation(AssistantMessage(parts), reason, native, index, metadata)


class _Candidate:
    """State of one answer of a stream; Vertex may send calls in fragments.

    Attributes:
        finished: Whether the finish reason was received.
        native: The API's finish reason.
    """

    __slots__ = ("_arguments", "_calls", "_id", "_logprobs", "finished", "native")

    def __init__(self) -> None:
        self.finished = False
        self.native: str | None = None
        self._calls = 0
        self._id = ""
        self._arguments: _Arguments | None = None  # of the unfinished call
        self._logprobs: dict[str, list[Any]] = {}

    @property
    def has_calls(self) -> bool:
        """Whether a tool was called."""
        return self._calls > 0

    def parts(self, candidate: Mapping[str, Any]) -> list[Part]:
        """Return the parts of a chunk."""
        parts: list[Part] = []
        for part in decode_parts(candidate):
            if "functionCall" in part:
                parts.extend(self._call(part, part["functionCall"]))
            elif (decoded := decode_part(part)) is not None:
                parts.append(decoded)
        return parts

    def metadata(self, candidate: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return the metadata of a chunk; the last one contains all log probabilities."""
        for key, value in (candidate.get("logprobsResult") or {}).items():
            if isinstance(value, list):
                self._logprobs.setdefault(key, []).extend(value)
        metadata = other_fields(candidate, CANDIDATE_KEYS)
        if not (self.finished and self._logprobs):
            return metadata
        joined = {**metadata.get("logprobsResult", EMPTY), **self._logprobs}
        return FrozenDict({**metadata, "logprobsResult": joined})

    def _call(self, part: Mapping[str, Any], call: Mapping[str, Any]) -> list[ToolCallChunk]:
        chunks: list[ToolCallChunk] = []
        if name := text_field(call.get("name")):
            chunks.extend(self.close())
            self._id = text_field(call.get("id")) or new_call_id()
            self._calls += 1
            self._arguments = _Arguments()
            chunks.append(
                ToolCallChunk(self._calls - 1, self._id, name, metadata=part_metadata(part))
            )
        if self._arguments is None:  # a repeated end
            return chunks
        self._arguments.root.update(call.get("args") or {})
        for piece in call.get("partialArgs") or ():
            self._arguments.put(piece)
        # Without `willContinue`, arguments may still follow if there are none yet.
        is_open = call.get("willContinue") or not self._arguments.root
        return chunks if is_open else [*chunks, *self.close()]

    def close(self) -> list[ToolCallChunk]:
        """Return the arguments of the unfinished call, if there is one."""
        if self._arguments is None:
            return []
        arguments, self._arguments = self._arguments.dumps(), None
        return [ToolCallChunk(self._calls - 1, self._id, arguments=arguments)]


_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")
_MAX_PATH_LENGTH = 1_000


class _Arguments:
    """The arguments of a call, built from fragments with JSON paths.

    Attributes:
        root: The arguments so far; `dumps` completes strings.
    """

    __slots__ = ("_texts", "root")

    def __init__(self) -> None:
        self.root: Any = {}
        # Pieces of strings, by container id and key. The containers are kept so that their ids are
        # not reused.
        self._texts: dict[tuple[int, Any], tuple[Any, list[str]]] = {}

    def put(self, fragment: Mapping[str, Any]) -> None:
        """Insert a fragment at its path."""
        steps = _steps(fragment.get("jsonPath") or "")
        if not steps:
            return
        holder: Any = {None: self.root}
        key: Any = None
        container = holder
        for step in steps:
            container, key = self._enter(container, key, step), step
        self.root = holder[None]
        value = next((fragment[kind] for kind in _VALUES if kind in fragment), None)
        location = (id(container), key)
        if not isinstance(value, str):
            self._texts.pop(location, None)
        elif isinstance(old := _value_at(container, key), str):
            self._texts.setdefault(location, (container, [old]))[1].append(value)
            return
        container[key] = value

    def dumps(self) -> str:
        """Return the arguments as JSON."""
        for (_, key), (container, pieces) in self._texts.items():
            container[key] = "".join(pieces)
        self._texts = {}
        return dumps_exact(self.root)

    def _enter(self, container: Any, key: Any, step: Any) -> Any:
        """Return the list or object at *key*, created if needed, for *step* as index or key."""
        kind = list if isinstance(step, int) else dict
        value = _value_at(container, key)
        if not isinstance(value, kind):
            # The pieces of a string that was replaced must not be put back by `dumps`.
            self._texts.pop((id(container), key), None)
            value = container[key] = kind()
        if isinstance(value, list):
            if step > len(value):  # padding could exhaust memory
                msg = f"item {step} of an argument comes before item {len(value)}"
                raise ValueError(msg)
            if step == len(value):
                value.append(None)
        return value


_VALUES = ("stringValue", "numberValue", "boolValue")


def _value_at(container: Any, key: Any) -> Any:
    return container[key] if isinstance(container, list) else container.get(key)


def _steps(path: str) -> list[Any]:
    if len(path) > _MAX_PATH_LENGTH:
        msg = f"the path of an argument has {len(path):,} characters"
        raise ValueError(msg)
    found = _STEP.finditer(path)
    steps = [int(m[2]) if m[2] is not None else m[1] or m[3] or "" for m in found]
    if len(steps) > LIMITS.nesting:
        raise NestingError
    return steps
