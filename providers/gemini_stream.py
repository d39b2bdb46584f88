"""Streams of Gemini: bytes in, chunks out; no I/O."""

import re
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic_core import from_json

from chatclient.errors import InvalidResponseError
from chatclient.json import dumps, loads
from chatclient.messages import AssistantMessage, Part, Reasoning, ToolCallChunk
from chatclient.providers.failures import ended_early, no_answer, refuse_error, unreadable
from chatclient.providers.fields import MISSHAPEN, number_of, object_in, text_of
from chatclient.providers.gemini_decoding import (
    CANDIDATE_KEYS,
    PROVIDER,
    beside_content,
    beside_known,
    blocked,
    decode_part,
    finish_reason,
    has_failed,
    metadata_of,
    native_reason,
    new_call_id,
    parts_of,
    usage_of,
)
from chatclient.providers.keys import Headers
from chatclient.providers.sse import LARGEST_EVENT, ServerSentEventDecoder, is_end
from chatclient.response import ChatResponse, ChatResponseMetadata, FinishReason, Generation
from chatclient.values import EMPTY, FrozenDict


class StreamReader:
    """Takes the bytes of a stream as they come and gives the JSON values they hold.

    A stream consists of server-sent events as a rule, but of the elements of an array where
    `alt=sse` was lost on the way; and a stream that fails ends with a bare object.

    Args:
        limit: How many bytes an event, or the array, may have.
    """

    __slots__ = ("_events", "_is_json", "_limit", "_whole")

    def __init__(self, limit: int = LARGEST_EVENT) -> None:
        self._limit = limit
        self._events = ServerSentEventDecoder(limit)
        self._is_json: bool | None = None  # until the first bytes tell
        self._whole = bytearray()  # of an array

    def feed(self, chunk: bytes) -> list[bytes]:
        """Return the values that *chunk* completes.

        Raises:
            InvalidResponseError: There is more of one than the limit allows.
        """
        if self._is_json is None and (begun := chunk.lstrip(b"\xef\xbb\xbf \t\r\n")):
            self._is_json = begun[0] in b"[{"
            chunk = begun if self._is_json else chunk
        if self._is_json:
            self._whole += chunk
            if len(self._whole) > self._limit:
                msg = f"the answer in place of a stream is larger than {self._limit:,} bytes"
                raise InvalidResponseError(msg)
            return []
        events = self._events.feed(chunk)
        return [data for data, _ in events if data and not is_end(data)]

    def finish(self) -> list[bytes]:
        """Return the values that only the end of the stream completes."""
        if self._is_json:
            return self._elements()
        # An event that lacks the blank line after it, or an error that lacks the form of an event.
        rest = self._events.finish().strip()
        return [] if object_in(rest) is None else [rest]

    def _elements(self) -> list[bytes]:
        try:
            value = from_json(bytes(self._whole), allow_partial=True)
        except ValueError:
            return [bytes(self._whole)]
        return [dumps(element) for element in (value if isinstance(value, list) else [value])]


_PLAIN = {"content", "index"}


class StreamDecoder:
    """Makes chunks of the values of a stream; no I/O.

    Raises (from `feed` and `finish`):
        ProviderError: The stream reports an error.
        StreamInterruptedError: It ended before its answer did.
        InvalidResponseError: A value cannot be read.
    """

    __slots__ = ("_blocked", "_candidates", "_headers", "_started", "_told", "_usage")

    def __init__(self, headers: Headers = EMPTY) -> None:
        self._headers = headers
        self._candidates: dict[int, _Candidate] = {}
        self._started = False
        self._told: Sequence[Part] = ()  # a part that is no thought, if there was any
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
            self._told = self._told or ([text] if text else ())
            return text
        refuse_error(PROVIDER, chunk, self._headers)
        generations = [self._delta(candidate) for candidate in candidates] or blocked(chunk)
        self._blocked = self._blocked or bool(generations and not candidates)
        said = (part for generation in generations for part in generation.output.parts)
        self._told = self._told or [part for part in said if not isinstance(part, Reasoning)]
        self._started = True
        if self._usage is not None:
            chunk["usageMetadata"], self._usage = self._usage, None
        return ChatResponse(tuple(generations), metadata_of(chunk, self._headers))

    def finish(self) -> ChatResponse | None:
        """Return what is left to say, once the stream is known to have come to its end."""
        states = self._candidates.values()
        if not self._blocked and not (states and all(state.finished for state in states)):
            raise ended_early(PROVIDER)
        if states and all(has_failed(state.native, self._told) for state in states):
            raise no_answer(PROVIDER, [state.native for state in states])
        if self._usage is None:
            return None
        return ChatResponse((), ChatResponseMetadata(usage=usage_of(self._usage)))

    def _plain_text(self, chunk: Mapping[str, Any], candidate: Mapping[str, Any]) -> str | None:
        """Return the text of a chunk that has nothing else to say, as nearly all have."""
        if not self._started or candidate.keys() - _PLAIN or candidate.get("index"):
            return None
        parts = parts_of(candidate)
        if len(parts) != 1 or len(parts[0]) != 1 or "error" in chunk or "promptFeedback" in chunk:
            return None
        text = parts[0].get("text")
        return text if type(text) is str else None

    def _delta(self, candidate: Mapping[str, Any]) -> Generation:
        index = number_of(candidate.get("index")) or 0
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
    """One answer of a stream as far as it has come; Vertex may send calls in pieces.

    Attributes:
        finished: Whether its end was told.
        native: Why it ended, in the API's own words, once that was told.
    """

    __slots__ = ("_arguments", "_calls", "_id", "_logprobs", "finished", "native")

    def __init__(self) -> None:
        self.finished = False
        self.native: str | None = None
        self._calls = 0
        self._id = ""
        self._arguments: Any = None  # of the call that is still open
        self._logprobs: dict[str, list[Any]] = {}

    @property
    def has_calls(self) -> bool:
        """Whether it has called a tool so far."""
        return self._calls > 0

    def parts(self, candidate: Mapping[str, Any]) -> list[Part]:
        """Return what a chunk adds."""
        parts: list[Part] = []
        for part in parts_of(candidate):
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
        metadata = beside_known(candidate, CANDIDATE_KEYS)
        if not (self.finished and self._logprobs):
            return metadata
        joined = {**metadata.get("logprobsResult", EMPTY), **self._logprobs}
        return FrozenDict({**metadata, "logprobsResult": joined})

    def _call(self, part: Mapping[str, Any], call: Mapping[str, Any]) -> list[ToolCallChunk]:
        chunks: list[ToolCallChunk] = []
        if name := text_of(call.get("name")):
            chunks.extend(self.close())
            self._id = text_of(call.get("id")) or new_call_id()
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
        # Arguments may follow those of a call that has none, although it does not say so.
        is_open = call.get("willContinue") or not self._arguments
        return chunks if is_open else [*chunks, *self.close()]

    def close(self) -> list[ToolCallChunk]:
        """Return the arguments of the call that is still open, if one is."""
        if self._arguments is None:
            return []
        arguments, self._arguments = dumps(self._arguments).decode(), None
        return [ToolCallChunk(self._calls - 1, self._id, arguments=arguments)]


# --- arguments in pieces --------------------------------------------------------------------

_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+)\]|\[['\"](.*?)['\"]\]")
_LONGEST = 1_000  # characters of a path: it leads into as many levels as it likes


def _with_piece(old: Any, steps: Sequence[Any], piece: Mapping[str, Any]) -> Any:
    """Return *old* with a piece of an argument put at the place to which *steps* lead."""
    if not steps:
        kinds = ("stringValue", "numberValue", "boolValue")
        value = next((piece[kind] for kind in kinds if kind in piece), None)
        return old + value if isinstance(old, str) and isinstance(value, str) else value
    step, rest = steps[0], steps[1:]
    if isinstance(step, int):
        items = old if isinstance(old, list) else []
        if step > len(items):  # one could ask for more than there is memory
            msg = f"item {step} of an argument comes before item {len(items)}"
            raise ValueError(msg)
        if step == len(items):
            items.append(None)
        items[step] = _with_piece(items[step], rest, piece)
        return items
    fields = old if isinstance(old, dict) else {}
    fields[step] = _with_piece(fields.get(step), rest, piece)
    return fields


def _steps(path: str) -> list[Any]:
    if len(path) > _LONGEST:
        msg = f"the path of an argument has {len(path):,} characters"
        raise ValueError(msg)
    found = _STEP.finditer(path)
    return [int(m[2]) if m[2] is not None else m[1] or m[3] or "" for m in found]
