"""Decodes streams of Chat Completions, also tool names that are sent in fragments; no I/O."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from chatclient._internal.frozen import EMPTY, FrozenDict
from chatclient._internal.json import loads
from chatclient.chat.messages import AssistantMessage, ProviderPart, ToolCallChunk
from chatclient.chat.response import NO_METADATA, ChatResponse, ChatResponseMetadata, Generation
from chatclient.errors import InvalidResponseError
from chatclient.providers.http.auth import Headers
from chatclient.providers.http.errors import invalid_response, stream_ended_early
from chatclient.providers.http.reader import is_end
from chatclient.providers.openai.chat_decoding import (
    CHOICE_FIELDS,
    call_chunk,
    decode_parts,
    finish_reason,
    message_metadata,
    metadata_of,
    raise_for_errors,
)
from chatclient.providers.openai.dialect import Dialect
from chatclient.providers.openai.reasoning import (
    FIELDS,
    ContentReasoning,
    FieldReasoning,
    ThinkTags,
)
from chatclient.providers.wire.fields import MALFORMED, int_field, other_fields


class CallNames:
    """Withholds tool calls until their names are complete.

    A server may stream a name in fragments, repeat it in every chunk, or send a longer prefix each
    time. A name is complete when its arguments start or the answer ends. Later calls wait for
    earlier ones to keep the order of calls; text and reasoning are not withheld.
    """

    __slots__ = ("_by_id", "_by_index", "_indexes", "_pending", "_without_arguments")

    def __init__(self) -> None:
        self._pending: deque[_PendingCall] = deque()
        self._by_id: dict[str, _PendingCall] = {}
        self._by_index: dict[int, _PendingCall] = {}
        self._indexes: set[int | None] = set()  # of all calls so far
        self._without_arguments: set[str] = set()  # ids

    def __bool__(self) -> bool:
        """Whether a call is withheld."""
        return bool(self._pending)

    def join(self, parts: list[Any]) -> list[Any]:
        """Return the parts of a chunk, with each call whose name is now complete."""
        for part in parts:
            if type(part) is ToolCallChunk and (part.name or self._pending):
                return self._join_chunks(parts)
        return parts  # the usual case

    def end(self) -> list[ToolCallChunk]:
        """Return the calls that are withheld when the answer ends."""
        chunks = [chunk for call in self._pending for chunk in call.chunks()]
        self._pending.clear()
        self._by_id.clear()
        self._by_index.clear()
        return chunks

    def awaits_arguments(self, id: str) -> bool:
        """Return whether no arguments of the call with this id have been received."""
        return id in self._without_arguments

    def _join_chunks(self, parts: list[Any]) -> list[Any]:
        joined: list[Any] = []
        started: set[_PendingCall] = set()
        for part in parts:
            if type(part) is ToolCallChunk:
                joined += self._add(part, started)
            else:
                joined.append(part)
        return joined

    def _add(self, chunk: ToolCallChunk, started: set["_PendingCall"]) -> Sequence[ToolCallChunk]:
        """Add a chunk, and return the chunks that need not be withheld any longer."""
        call = self._call_of(chunk, started)
        if call is None:
            if not chunk.name:
                return (chunk,)  # continues a call that is not withheld
            call = _PendingCall()
            self._pending.append(call)
            started.add(call)
        call.add(chunk)
        self._indexes.add(chunk.index)
        if chunk.index is not None:
            self._by_index[chunk.index] = call
        if chunk.id:
            self._by_id[chunk.id] = call
        if call.id:
            change = self._without_arguments.discard if call.arguments else None
            (change or self._without_arguments.add)(call.id)
        return list(self._release())

    def _call_of(self, chunk: ToolCallChunk, started: set["_PendingCall"]) -> "_PendingCall | None":
        """Return the pending call that *chunk* continues."""
        call = self._by_id.get(chunk.id) or self._call_by_index(chunk)
        if call is None or not chunk.name:
            return call
        return call if call.takes_name_of(chunk, same_chunk=call in started) else None

    def _call_by_index(self, chunk: ToolCallChunk) -> "_PendingCall | None":
        newest = self._pending[-1] if self._pending else None
        if chunk.index is None:
            call = newest
        elif chunk.name or chunk.index in self._indexes:
            call = self._by_index.get(chunk.index)
        else:
            call = newest  # some servers number the chunks instead of the calls
        if call is not None and chunk.name and chunk.id and (call.id or chunk.index is None):
            return None  # a new call with another id
        return call

    def _release(self) -> Iterator[ToolCallChunk]:
        """Yield the calls whose names are complete, up to the first whose name is not."""
        while self._pending and self._pending[0].arguments:
            yield from self._pending.popleft().chunks()
        if not self._pending:
            self._by_id.clear()
            self._by_index.clear()


class _PendingCall:
    """A tool call whose name may be incomplete, or that waits for an earlier call.

    Attributes:
        id: The id; empty if not received yet.
        arguments: The chunks since the start of the arguments.
    """

    __slots__ = ("_index", "_length", "_metadata", "_name", "arguments", "id")

    def __init__(self) -> None:
        self.id = ""
        self.arguments: list[ToolCallChunk] = []
        self._index: int | None = None
        self._name: list[str] = []
        self._length = 0
        self._metadata: dict[str, Any] = {}

    def takes_name_of(self, chunk: ToolCallChunk, *, same_chunk: bool) -> bool:
        """Return whether the name in *chunk* may be a fragment of this call's name.

        Within one chunk of the stream, the index or the id has to match.
        """
        if self.arguments:
            return False
        if None in (self._index, chunk.index):
            return not same_chunk or bool(chunk.id)
        return not same_chunk or (self._index == chunk.index and bool(self.id))

    def add(self, chunk: ToolCallChunk) -> None:
        """Add the next chunk."""
        if self.arguments:
            self.arguments.append(chunk)
            return
        self.id = self.id or chunk.id
        # Some servers change the index when the arguments start.
        self._index = self._index if chunk.index is None else chunk.index
        self._metadata.update(chunk.metadata)
        if len(chunk.name) >= self._length and chunk.name.startswith("".join(self._name)):
            self._name = [chunk.name]  # a repetition or a longer prefix
            self._length = len(chunk.name)
        else:
            self._name.append(chunk.name)
            self._length += len(chunk.name)
        if chunk.arguments:
            name = "".join(self._name)
            metadata = FrozenDict(self._metadata) if self._metadata else EMPTY
            self.arguments = [ToolCallChunk(self._index, self.id, name, chunk.arguments, metadata)]

    def chunks(self) -> list[ToolCallChunk]:
        """Return the chunks; the first contains the complete name."""
        if self.arguments:
            return self.arguments
        metadata = FrozenDict(self._metadata) if self._metadata else EMPTY
        return [ToolCallChunk(self._index, self.id, "".join(self._name), metadata=metadata)]


class _Streamed:
    """The content streamed so far, to detect repetitions in a full message at the end.

    Attributes:
        texts: The pieces of the text.
        fields: The names of reasoning fields that were streamed.
    """

    __slots__ = ("_has_text_deltas", "_joined", "_length", "_types", "fields", "texts")

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.fields: set[str] = set()
        self._types: set[type] = set()
        self._has_text_deltas = False
        self._length = self._joined = 0  # characters of the first `_joined` pieces

    @property
    def has_calls(self) -> bool:
        """Whether a tool was called."""
        return ToolCallChunk in self._types

    def add(self, parts: list[Any], *, is_full_message: bool) -> None:
        """Add the next parts, of a delta or a full message."""
        for part in parts:
            if type(part) is str:
                self.texts.append(part)
                self._has_text_deltas = self._has_text_deltas or not is_full_message
            else:
                self._types.add(type(part))

    def not_yet_streamed(self, message: list[Any], names: CallNames) -> list[Any]:
        """Return the parts of a full *message* that were not streamed before.

        A call counts as streamed even if its id in the message differs, so that it never runs
        twice. Its arguments are returned if only its name was streamed.
        """
        if not self.texts and not self._types:
            return message
        text = self._not_yet_streamed_text("".join(part for part in message if type(part) is str))
        new: list[Any] = []
        for part in message:
            if type(part) is str:
                new += [text] if text else []
                text = ""
            elif type(part) not in self._types or (
                type(part) is ToolCallChunk and names.awaits_arguments(part.id)
            ):
                new.append(part)
        return new

    def _not_yet_streamed_text(self, text: str) -> str:
        self._length += sum(map(len, self.texts[self._joined :]))
        self._joined = len(self.texts)
        if len(text) >= self._length:
            self.texts = ["".join(self.texts)]
            self._joined = 1
            if text.startswith(self.texts[0]):
                return text[self._length :]
        # The message is a variant of the deltas. Without deltas, it is the next piece.
        return "" if self._has_text_deltas else text


@dataclass(slots=True)
class _Choice:
    """State of one answer of a stream.

    Attributes:
        has_calls: Whether a tool was called.
        has_refusal: Whether the model refused.
        is_finished: Whether the finish reason was received.
        reasoning_details: The reasoning in separate fields, by field; emitted at the end.
        content_reasoning: Joins the reasoning in content parts.
        logprobs: The log probabilities so far; part of the metadata of the last chunk.
        audio_id: The part with the id of the audio, which chunks repeat.
        call_names: Holds names of calls back until they are complete.
        streamed: What was streamed.
        tags: Splits reasoning in tags from the text, if there may be some.
    """

    has_calls: bool = False
    has_refusal: bool = False
    is_finished: bool = False
    reasoning_details: dict[str, FieldReasoning] = field(default_factory=dict)
    content_reasoning: ContentReasoning = field(default_factory=ContentReasoning)
    logprobs: dict[str, list[Any]] = field(default_factory=dict)
    audio_id: ProviderPart | None = None
    call_names: CallNames = field(default_factory=CallNames)
    streamed: _Streamed = field(default_factory=_Streamed)
    tags: ThinkTags | None = None

    def take_reasoning_details(
        self, delta: Mapping[str, Any], *, is_full_message: bool
    ) -> Mapping[str, Any]:
        """Collect the reasoning details of *delta*, to emit them at the end; return the rest."""
        if delta.keys().isdisjoint(FIELDS):
            return delta
        for name in FIELDS:
            pieces = delta.get(name) or ()
            if is_full_message and name in self.streamed.fields:
                continue
            for piece in pieces:
                self.reasoning_details.setdefault(name, FieldReasoning()).add(piece)
                self.streamed.fields.add(name)
        return {key: value for key, value in delta.items() if key not in FIELDS}

    def without_repeated_audio_id(self, parts: list[Any]) -> list[Any]:
        """Return *parts* without the id of the audio if an earlier chunk contained it."""
        new = [part for part in parts if part != self.audio_id]
        for part in new:
            if isinstance(part, ProviderPart) and "audio" in part.data:
                self.audio_id = part
        return new

    def add_logprobs(self, logprobs: Mapping[str, Any], *, is_full_message: bool) -> None:
        """Add the log probabilities of the next tokens; a full message may repeat them."""
        if is_full_message and self.logprobs:
            return
        for name, tokens in logprobs.items():
            if isinstance(tokens, list):
                self.logprobs.setdefault(name, []).extend(tokens)


# Fields that all chunks repeat.
_REPEATED_FIELDS = frozenset(
    {
        *("id", "object", "created", "model", "choices", "usage", "obfuscation", "p", "provider"),
        *("system_fingerprint", "service_tier"),
    }
)
_NO_ID_YET = object()


class StreamDecoder:
    """Converts the events of a stream to chunks.

    Attributes:
        complete: Whether the server has marked the end of the stream.
    """

    __slots__ = ("_choices", "_dialect", "_headers", "_id", "complete")

    def __init__(self, dialect: Dialect, headers: Headers = EMPTY) -> None:
        self._dialect = dialect
        self._headers = headers
        self._id: object = _NO_ID_YET
        self._choices: dict[int, _Choice] = {}
        self.complete = False

    @property
    def is_finished(self) -> bool:
        """Whether the answers are complete."""
        return bool(self._choices) and (self.complete or not self._unfinished())

    def feed(self, data: bytes, event: str = "") -> ChatResponse | str | None:
        """Return the chunk of an event, or None if the event has no content."""
        if self.complete or not data:
            return None
        try:
            chunk = loads(data)
            choices: Any = chunk.get("choices") or ()
            if len(choices) == 1 and (text := self._plain_text(chunk, choices[0])) is not None:
                return text
            raise_for_errors(chunk, self._dialect, self._headers, event)
            generations = tuple(g for choice in choices if (g := self._delta(choice)) is not None)
            metadata = self._metadata(chunk)
        except MALFORMED as error:
            if is_end(data):  # checked here, because the end marker is not a JSON object
                self.complete = True
                return None
            raise invalid_response(self._dialect.provider, data, error) from error
        if not generations and metadata is NO_METADATA:
            return None
        return ChatResponse(generations, metadata)

    def finish(self, rest: bytes) -> Iterator[ChatResponse | str]:
        """Yield the chunk in *rest* and the last ones, and check that the answers are complete."""
        if rest.strip() and not self.complete:
            with suppress(InvalidResponseError):  # truncated
                if (chunk := self.feed(rest.strip())) is not None:
                    yield chunk
        if not self.is_finished:
            raise stream_ended_early(self._dialect.provider)
        if unfinished := self._unfinished():  # a server without finish reasons
            yield ChatResponse(tuple(self._closing(index, {}, "") for index in unfinished))
        for index, choice in self._choices.items():
            if choice.call_names:  # a call after the finish reason
                yield ChatResponse(
                    (Generation(AssistantMessage(choice.call_names.end()), index=index),)
                )

    def _unfinished(self) -> list[int]:
        """Return the indexes of answers without a finish reason."""
        return [index for index, choice in self._choices.items() if not choice.is_finished]

    def _plain_text(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> str | None:
        """Return the text of a chunk with nothing else: a fast path for nearly all chunks."""
        delta = choice.get("delta")
        if not delta or len(delta) != 1 or chunk.get("id") != self._id or not self._choices:
            return None
        text = delta.get("content")
        other = choice.get("index") or choice.get("finish_reason") or choice.get("logprobs")
        other = other or choice.get("content_filter_results") or chunk.get("usage")
        if (
            other
            or type(text) is not str
            or "error" in chunk
            or (state := self._choices.get(0)) is None
            or (state.tags is not None and state.tags.at != "answer")
        ):
            return None
        state.streamed.add([text], is_full_message=False)
        return text

    def _delta(self, choice: Mapping[str, Any]) -> Generation | None:
        # Some servers send a full message instead of deltas, or after them.
        delta = choice.get("delta")
        message = None if delta else choice.get("message")
        is_full_message, delta = bool(message), message or delta or {}
        index = int_field(choice.get("index")) or 0
        state = self._choices.get(index)
        if state is None:
            tags = ThinkTags(self._dialect.provider) if self._dialect.think_tags else None
            state = self._choices[index] = _Choice(tags=tags)
        provider = self._dialect.provider
        delta = state.take_reasoning_details(delta, is_full_message=is_full_message)
        if logprobs := choice.get("logprobs"):
            state.add_logprobs(logprobs, is_full_message=is_full_message)
        parts = decode_parts(delta, provider, call_chunk)
        if is_full_message:
            parts = state.streamed.not_yet_streamed(parts, state.call_names)
        state.streamed.add(parts, is_full_message=is_full_message)
        parts = state.content_reasoning.join(parts, provider)
        if state.tags is not None:
            parts = state.tags.split(parts)
        if "audio" in delta:
            parts = state.without_repeated_audio_id(parts)
        parts = state.call_names.join(parts)
        state.has_calls = state.has_calls or state.streamed.has_calls
        state.has_refusal = state.has_refusal or bool(delta.get("refusal"))
        native = choice.get("finish_reason")
        metadata, message_fields = other_fields(choice, CHOICE_FIELDS), message_metadata(delta)
        if native:  # some servers have an empty reason in every chunk
            closing = self._closing(index, metadata, native)
            message = AssistantMessage((*parts, *closing.output.parts), metadata=message_fields)
            return Generation(message, closing.finish_reason, native, index, closing.metadata)
        if not parts and not metadata and not message_fields:
            return None
        message = AssistantMessage(parts, metadata=message_fields)
        return Generation(message, index=index, metadata=metadata)

    def _closing(self, index: int, metadata: Mapping[str, Any], native: str) -> Generation:
        """Return the end of an answer: its finish reason, and the parts that were withheld."""
        state = self._choices[index]
        state.is_finished = True
        provider = self._dialect.provider
        parts: list[Any] = state.tags.end() if state.tags is not None else []
        parts += [*state.call_names.end(), *state.content_reasoning.end(provider)]
        for name, reasoning in state.reasoning_details.items():
            parts.append(ProviderPart(provider, FrozenDict({name: reasoning.end()})))
        state.reasoning_details = {}
        if state.logprobs:
            metadata = FrozenDict({**metadata, "logprobs": state.logprobs})
        reason = finish_reason(native, calls=state.has_calls, refused=state.has_refusal)
        return Generation(AssistantMessage(parts), reason, native, index, metadata)

    def _metadata(self, chunk: Mapping[str, Any]) -> ChatResponseMetadata:
        """Return the metadata of a chunk, empty if it only repeats that of earlier chunks."""
        id = chunk.get("id")
        if self._id == id and not chunk.get("usage") and chunk.keys() <= _REPEATED_FIELDS:
            return NO_METADATA
        self._id = id
        return metadata_of(chunk, self._headers)
